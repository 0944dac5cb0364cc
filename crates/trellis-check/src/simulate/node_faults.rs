//! Decisions of a node, broken one by one: what the explorer and the simulator must notice besides broken protocols.
//!
//! Promises: each breaks one rule of [`trellis_cluster_protocol::node`] or of how a runtime carries it out. It must
//! never change anything where it is [`NodeFault::None`].

use std::ops::Range;
use trellis_cluster_protocol::coherence::{Coherence, Effect, Input, Purpose};
use trellis_cluster_protocol::node::{LeavingStep, LockStep, LockedRange, Order, Parts, Shard};
use trellis_cluster_protocol::{Nanoseconds, PageRange, runs};

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
    /// A call that gave up a block still waits for it.
    AbandonsNothing,
    /// A call is over when it has the pages of the first shard.
    LocksPart,
    /// Of a range that is given back, only the last piece is.
    UnlocksPart,
    /// A thread that holds pages may wait for them.
    WaitsForItself,
    /// Some nodes take the upper part of a range first.
    AnyOrder,
    /// A page that is held for a thread is never let go.
    HeldForEver,
    /// The alarms of the protocols do not go off.
    NoAlarms,
    /// An alarm that has gone off stays set.
    AlarmsStay,
    /// The time of a lock that ends by itself does not begin.
    TimelessLocks,
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
    /// A node that leaves does not answer those that it told to ask again.
    LeavesUnanswered,
    /// A node leaves although it still holds pages back.
    LeavesHolding,
    /// A node that leaves does not name the pages that it leaves behind.
    NamesNothing,
    /// The coordinator does not make sure that it has the pages that a leaving node named.
    TakesNothing,
    /// The coordinator does not wait for the pages that it requested from a leaving node.
    TakesEarly,
    /// A node that has come counts as departed.
    ForgetsComers,
    /// Pages are not frozen while their protocol is changed.
    AsksForFrozen,
    /// Pages are locked while their protocol is changed.
    LocksFrozen,
    /// Pages are not thawed when a change has ended.
    StaysFrozen,
    /// A protocol is changed while requests of the node are under way.
    ChangesUnsettled,
    /// A protocol is changed although the home has not got the pages.
    ChangesAway,
    /// The home does not look whether all pages came that it requested together.
    GathersTogether,
}

impl NodeFault {
    /// Whether the simulator notices it. In virtual time an alarm that stays set would go off for ever at one moment, no
    /// program asks whether the time of a lock is over, and a node hardly ever holds back anything when it ends.
    pub(crate) fn is_simulated(self) -> bool {
        !matches!(
            self,
            NodeFault::AlarmsStay | NodeFault::TimelessLocks | NodeFault::LeavesUnanswered | NodeFault::LeavesHolding
        )
    }

    /// The step that a node with this fault leaves out.
    pub(crate) fn skipped(self) -> Option<LeavingStep> {
        match self {
            NodeFault::LeavesOutOfTurn => Some(LeavingStep::AwaitTurn),
            NodeFault::LeavesUnanswered => Some(LeavingStep::AnswerDeferred),
            NodeFault::LeavesWithRequests => Some(LeavingStep::AwaitRequests),
            NodeFault::LeavesWithoutFarewell => Some(LeavingStep::AwaitFarewells),
            NodeFault::LeavesHolding => Some(LeavingStep::AnswerHeld),
            _ => None,
        }
    }

    /// How long a page is held at most.
    pub(crate) fn held_at_most(self, at_most: Nanoseconds) -> Nanoseconds {
        if self == NodeFault::HeldForEver { Nanoseconds::MAX } else { at_most }
    }

    /// The shard's order for an effect, as this fault changes it.
    pub(crate) fn order<C: Coherence>(
        self,
        shard: &mut Shard<C>,
        effect: Effect,
        now: Nanoseconds,
        hold_max: Nanoseconds,
    ) -> Order {
        match (self, effect) {
            (NodeFault::NoAlarms, Effect::Alarm { .. }) => return Order::Nothing,
            // No time comes after the end of all times.
            (NodeFault::TimelessLocks, Effect::Locked { .. }) => {
                return shard.order(effect, || Nanoseconds::MAX, hold_max);
            }
            (NodeFault::TimelessLocks, Effect::Alarm { page, purpose: Purpose::Expiry, after }) => {
                let due = now.saturating_add(after);
                shard.timers.set_alarm(page, Purpose::Expiry, due);
                return Order::WakeAt { now, due };
            }
            _ => {}
        }
        let order = shard.order(effect, || now, self.held_at_most(hold_max));
        let Effect::Send { to, message } = effect else { return order };
        match (self, order) {
            (NodeFault::SendsToDeparted, _) => {
                shard.forget_answers();
                Order::Send { to, message }
            }
            (NodeFault::DropsRequests, Order::Send { to: other, .. }) if other != to => Order::Nothing,
            (NodeFault::DropsInvalidations, Order::Nothing) => {
                shard.forget_answers();
                Order::Nothing
            }
            (_, order) => order,
        }
    }

    /// Takes out what goes off now; returns whether it was pending.
    pub(crate) fn take<C: Coherence>(self, shard: &mut Shard<C>, due: Input) -> bool {
        let before = shard.timers.clone();
        let was_pending = shard.timers.take(due);
        if self == NodeFault::AlarmsStay && matches!(due, Input::Alarm { .. }) {
            shard.timers = before;
        }
        was_pending
    }
}

/// A range that a thread locks, or holds.
pub(super) struct Locking {
    /// One, but for [`NodeFault::AnyOrder`].
    ranges: Vec<LockedRange>,
    /// The pages that it is about.
    pub(super) pages: Range<u32>,
    pub(super) stay: Option<Nanoseconds>,
    /// The number of the time-out after which it gives up.
    pub(super) time_out: u32,
}

impl Locking {
    pub(super) fn new(
        pages: Range<u32>,
        stay: Option<Nanoseconds>,
        time_out: u32,
        thread: u64,
        fault: NodeFault,
    ) -> Locking {
        let middle = runs(pages.clone()).next().map_or(pages.end, PageRange::end);
        let (lower, upper) = (pages.start..middle, middle..pages.end);
        let parts = match fault {
            NodeFault::AnyOrder => vec![upper, lower],
            NodeFault::LocksPart => vec![lower],
            _ => vec![pages.clone()],
        };
        let ranges = parts.into_iter().map(|part| LockedRange::new(part, thread, stay)).collect();
        Locking { ranges, pages, time_out, stay }
    }

    /// Takes the next step ([`LockedRange::go_on`]).
    pub(super) fn go_on<P: Parts>(
        &mut self,
        parts: &mut P,
        now: Nanoseconds,
        number: u32,
    ) -> Result<LockStep, P::Breach> {
        for range in &mut self.ranges {
            match range.go_on(parts, now, number, number)? {
                LockStep::Locked => {}
                other => return Ok(other),
            }
        }
        Ok(LockStep::Locked)
    }

    /// The pages that it has called for, in ascending order.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (PageRange, u32)> {
        self.ranges.iter().flat_map(|range| range.pieces.iter().copied())
    }

    /// Gives everything back ([`LockedRange::give_back`]), or as much as this fault lets it; `is_early`: it waits for a
    /// part.
    pub(super) fn give_back<P: Parts>(
        mut self,
        parts: &mut P,
        now: Nanoseconds,
        is_early: bool,
        fault: NodeFault,
    ) -> Result<bool, P::Breach> {
        let mut was_over = false;
        for LockedRange { pieces, .. } in &mut self.ranges {
            let last = pieces.len().saturating_sub(1);
            match fault {
                NodeFault::KeepsPieces if is_early => drop(pieces.drain(..last)),
                NodeFault::StaysInQueue if is_early => pieces.truncate(last),
                NodeFault::UnlocksPart if !is_early => drop(pieces.drain(..last)),
                _ => {}
            }
        }
        for range in self.ranges.iter_mut().rev() {
            was_over |= range.give_back(parts, now)?;
        }
        Ok(was_over)
    }
}
