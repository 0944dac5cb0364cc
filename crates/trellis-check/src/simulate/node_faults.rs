//! Decisions of a node, broken one by one: what the simulator must notice besides broken protocols.
//!
//! Promises: each breaks one rule of [`trellis_cluster_protocol::node`] or of how a runtime carries it out. Must never change
//! anything where it is [`NodeFault::None`].

use trellis_cluster_protocol::node::{LeavingStep, LockedRange};
use trellis_cluster_protocol::{Nanoseconds, PageRange};

/// What a node does wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeFault {
    /// Nothing.
    #[default]
    None,
    /// A call that gave up a range keeps the pieces that it had.
    KeepsPieces,
    /// A call that gave up a range still waits at the protocol.
    StaysInQueue,
    /// A thread that holds pages may wait for them.
    WaitsForItself,
    /// Some nodes take the upper part of a range first.
    AnyOrder,
    /// A page that is held for a thread is never let go.
    HeldForEver,
    /// The alarms of the protocols do not go off.
    NoAlarms,
    /// Messages about pages are still sent to a node that has departed.
    SendsToDeparted,
    /// A request for a departed node is dropped.
    DropsRequests,
    /// No node answers an invalidation in place of a departed node.
    DropsInvalidations,
    /// A node that leaves keeps the tokens that it has.
    KeepsTokens,
    /// A node that leaves does not wait for its turn.
    LeavesOutOfTurn,
    /// A node leaves before every other node has said farewell.
    LeavesWithoutFarewell,
    /// A node leaves while its own requests are under way.
    LeavesWithRequests,
    /// A node that leaves does not name the pages that it leaves behind.
    NamesNothing,
    /// The coordinator does not make sure that it has the pages that a leaving node named.
    TakesNothing,
}

impl NodeFault {
    /// The step that a node with this fault leaves out.
    pub(super) fn skipped(self) -> Option<LeavingStep> {
        match self {
            NodeFault::LeavesOutOfTurn => Some(LeavingStep::AwaitTurn),
            NodeFault::LeavesWithoutFarewell => Some(LeavingStep::AwaitFarewells),
            NodeFault::LeavesWithRequests => Some(LeavingStep::AwaitRequests),
            _ => None,
        }
    }
}

/// A range that a thread locks, or holds.
pub(super) struct Locking {
    /// One, but for [`NodeFault::AnyOrder`].
    ranges: Vec<LockedRange>,
    pub(super) stay: Option<Nanoseconds>,
    /// The number of the time-out after which it gives up.
    pub(super) time_out: u32,
}

impl Locking {
    pub(super) fn new(first: u32, end: u32, stay: Option<Nanoseconds>, time_out: u32, is_ordered: bool) -> Locking {
        let whole = LockedRange::new(first..end);
        let lower = whole.wanted().map_or(end, PageRange::end);
        let ranges =
            if is_ordered { vec![whole] } else { vec![LockedRange::new(lower..end), LockedRange::new(first..lower)] };
        Locking { ranges, stay, time_out }
    }

    /// The piece to take next.
    pub(super) fn wanted(&self) -> Option<PageRange> {
        self.ranges.iter().find_map(LockedRange::wanted)
    }

    pub(super) fn took(&mut self, piece: PageRange, number: u32) {
        let range = self.ranges.iter_mut().find(|range| range.wanted().is_some()).expect("something was wanted");
        range.took(piece, number);
    }

    /// The piece to give back next.
    pub(super) fn pop(&mut self) -> Option<(PageRange, u32)> {
        self.ranges.iter_mut().rev().find_map(LockedRange::pop)
    }
}
