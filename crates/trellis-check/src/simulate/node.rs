//! A node of a simulated cluster: its parts, its threads, what its runtime remembers.
//!
//! Promises: what is here is what a real node has, and nothing else. It must never know what other nodes know.

use super::changes::Changing;
use super::node_faults::Locking;
use std::collections::BTreeSet;
use trellis_base::Random;
use trellis_cluster_protocol::heap::{self, Request};
use trellis_cluster_protocol::sync::Operation;
use trellis_cluster_protocol::{Nanoseconds, NodeId, PageIndex, PageRange, node};

/// One thing that a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Loads from a page.
    Load(PageIndex),
    /// Stores to a page.
    Store(PageIndex),
    /// Loads and stores in one instruction; since the thread's last store nobody stored, as it holds a lock.
    Again(PageIndex),
    /// The same, but since then other threads of this node may have stored, as the node holds a lock of the page.
    AgainHere(PageIndex),
    /// Takes a lock, gives it back.
    Acquire(u64),
    Release(u64),
    /// Waits at a barrier for all founders.
    Arrive(u64),
    /// Adds to a word.
    Operate(u64, Operation),
    /// Locks the pages from the first up to the number, for a time or until `Unlock`.
    Lock(PageIndex, u32, Option<Nanoseconds>),
    /// Goes on with the range that it locks.
    LockRest,
    /// Locks a page that it holds, and must be refused.
    LockOwn(PageIndex),
    Unlock,
    /// Says, or guesses, what will be touched.
    Prefetch {
        wanted: PageRange,
        write: bool,
        announced: bool,
    },
    /// Changes the protocol of the pages from the first up to the number, together with the other nodes, for the n-th time.
    Change(PageIndex, u32, u32),
    /// Goes on with that.
    GoOnChanging,
    /// Allocates a block.
    Allocate(Request),
    /// Frees some block, or asks for its size.
    Free(u64),
    Measure(u64),
    /// Frees what is no block.
    FreeNone(u64),
    /// Waits for its turn at a page by loads, and takes it with a store.
    Turn(PageIndex),
    /// Stores to a page until it is its turn.
    Exchange(PageIndex),
}

impl Action {
    /// The page that it loads from or stores to, if it does.
    pub(super) fn page(self) -> Option<PageIndex> {
        use Action::{Again, AgainHere, Exchange, Load, Store, Turn};
        let (Load(page) | Store(page) | Again(page) | AgainHere(page) | Turn(page) | Exchange(page)) = self else {
            return None;
        };
        Some(page)
    }
}

/// What a thread is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// It computes, or has just begun.
    Thinking,
    /// Its access failed, and the protocol does not know yet.
    Faulted,
    /// It waits for a page.
    Waiting,
    /// It was woken.
    Woken,
    /// It waits in a call; the number names the call.
    Calling(u32),
    /// It has nothing more to do.
    Done,
    /// It ended with an error that names this node.
    Failed(NodeId),
}

/// A thread.
pub(super) struct Thread {
    pub(super) random: Random,
    /// How often it will still do what the pattern says.
    pub(super) left: u32,
    /// Where it is in a pattern that goes through pages.
    pub(super) cursor: u32,
    /// The actions to do now, the last first.
    pub(super) plan: Vec<Action>,
    pub(super) doing: Doing,
    /// The action that it waits for, and since when.
    pub(super) action: Option<Action>,
    pub(super) since: Nanoseconds,
    /// How often the page had been granted then.
    pub(super) grants_before: u32,
    /// Whether the load that failed asks for the right to store.
    pub(super) asks_write: bool,
    /// The number of the last call, or of the last wake.
    pub(super) ticket: u32,
    /// The range that it locks, or holds.
    pub(super) locking: Option<Locking>,
    /// Its call of the heap, and the block of which it asks the size.
    pub(super) heap_call: Option<heap::Call>,
    pub(super) measures: u64,
    /// What it stored last, for [`Action::Again`].
    pub(super) stored: Option<(PageIndex, u32)>,
}

impl Thread {
    pub(super) fn new(random: Random, operations: u32) -> Thread {
        Thread {
            random,
            left: operations,
            cursor: 0,
            plan: Vec::with_capacity(16),
            doing: Doing::Thinking,
            action: None,
            since: 0,
            grants_before: 0,
            asks_write: false,
            ticket: 0,
            locking: None,
            heap_call: None,
            measures: 0,
            stored: None,
        }
    }

    /// Whether it will never do anything again.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.doing, Doing::Done | Doing::Failed(_))
    }

    /// Whether it can go on only after something else happened.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.doing, Doing::Waiting | Doing::Calling(_))
    }
}

/// The step of the thread that takes pages over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taker {
    /// It goes on when there is something to do.
    Ready,
    /// It waits until something about this page has changed.
    Waits(PageIndex),
    /// It is about to go on.
    Woken,
}

/// Whether a node takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It may join.
    Absent,
    Present,
    /// It stopped without a word.
    Crashed,
    /// It ended because it learned that this node is lost, at this time.
    Failed(NodeId, Nanoseconds),
    /// It left.
    Left,
}

/// A node.
pub(super) struct Node<N> {
    pub(super) parts: node::Node<N>,
    pub(super) threads: Vec<Thread>,
    pub(super) state: State,
    pub(super) paused_until: Nanoseconds,
    /// At the coordinator: the thread that takes pages over.
    pub(super) taker: Taker,
    pub(super) tickets: u32,
    /// The change of a protocol that is under way.
    pub(super) changing: Option<Changing>,
    /// Calls of barriers for which no thread waits.
    pub(super) passed: BTreeSet<u32>,
}

impl<N> Node<N> {
    pub(super) fn new(is_present: bool, parts: node::Node<N>) -> Node<N> {
        Node {
            parts,
            threads: Vec::new(),
            state: if is_present { State::Present } else { State::Absent },
            paused_until: 0,
            taker: Taker::Ready,
            tickets: 0,
            changing: None,
            passed: BTreeSet::new(),
        }
    }

    pub(super) fn is_present(&self) -> bool {
        self.state == State::Present
    }

    /// A number that this node did not use before.
    pub(super) fn ticket(&mut self) -> u32 {
        self.tickets += 1;
        self.tickets
    }
}
