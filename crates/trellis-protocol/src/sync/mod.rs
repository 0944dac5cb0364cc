//! Synchronisation as protocol: locks, barriers, words with atomic operations.
//!
//! # Contract
//!
//! One [`Sync`] per node. Objects are named by any 64-bit number and exist from their first use;
//! object `i` has its home at founder `i % founders`: a node that joined later is no home, and takes
//! part in locks and words but not in barriers. A call of the program carries a [`Waiter`], a
//! number that the caller chose; [`Effect::Wake`] names it exactly once.
//!
//! It promises: a lock has at most one holder and is handed on in the order in which the requests
//! reached its home; nobody leaves a barrier before every node has entered it; operations on a
//! word happen one after the other. It must never assume that messages keep their order.

mod atomic;
mod barrier;
mod lock;

pub use atomic::Operation;

use crate::page::NodeId;
use alloc::vec::Vec;
use atomic::Words;
use barrier::Barriers;
use lock::Locks;

/// Names a call that waits, until its [`Effect::Wake`].
pub type Waiter = u32;

/// Most objects of one kind that one node keeps; more are refused, so that a peer cannot make a
/// node grow without bound.
pub const OBJECTS_MAX: usize = 65_536;

/// A fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// The program wants the lock.
    Acquire(u64, Waiter),
    /// The program gives the lock back.
    Release(u64),
    /// The program no longer waits for the lock (its deadline passed).
    Abandon(u64, Waiter),
    /// This node wants to leave the cluster: its program holds no lock and waits for none any more, and every lock
    /// that lies here goes back to its home. [`Sync::is_clear`] says when that is done.
    Depart,
    /// This node's program has arrived at the barrier.
    Arrive(u64, Waiter),
    /// The program operates on a word.
    Operate(u64, Operation, Waiter),
    /// A message arrived.
    Message(NodeId, Message),
}

/// An order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Send this; never to this node itself.
    Send(NodeId, Message),
    /// The call is done; for a word, its value before the operation.
    Wake(Waiter, u64),
    /// The peer sent what no correct peer can send.
    Violation(NodeId, &'static str),
    /// The program did what it must not do, or this node keeps too many objects.
    Refused(Waiter, &'static str),
}

/// What nodes tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// To the lock's home: this node wants the lock.
    LockRequest(u64),
    /// From the home to the last who asked: the node to hand the lock to.
    LockForward(u64, NodeId),
    /// The lock itself.
    LockToken(u64),
    /// To the lock's home, from a node that leaves: ask for this lock, which nobody uses here.
    LockReturn(u64),
    /// To the parent: everybody below has arrived.
    BarrierArrive(u64, u32),
    /// To the children: everybody has arrived.
    BarrierRelease(u64, u32),
    /// To the word's home.
    AtomicRequest(u64, Operation, Waiter),
    /// From the word's home: the value before.
    AtomicReply(u64, Waiter, u64),
}

/// All synchronisation of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sync {
    locks: Locks,
    barriers: Barriers,
    words: Words,
}

/// Where node `me` stands in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    me: NodeId,
    founders: u16,
}

impl Place {
    fn home_of(self, object: u64) -> NodeId {
        NodeId((object % u64::from(self.founders)) as u16)
    }

    fn is_home_of(self, object: u64) -> bool {
        self.home_of(object) == self.me
    }

    fn is_founder(self) -> bool {
        self.me.0 < self.founders
    }
}

impl Sync {
    /// For node `me` of a cluster of `founders` nodes and perhaps others, with higher numbers, that join later.
    pub fn new(me: NodeId, founders: u16) -> Sync {
        let place = Place { me, founders };
        Sync { locks: Locks::new(place), barriers: Barriers::new(place), words: Words::new(place) }
    }

    /// Takes one fact, pushes what follows.
    pub fn step(&mut self, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Acquire(id, waiter) => self.locks.acquire(id, waiter, effects),
            Input::Release(id) => self.locks.release(id, effects),
            Input::Abandon(id, waiter) => self.locks.abandon(id, waiter, effects),
            Input::Depart => self.locks.depart(effects),
            Input::Arrive(id, waiter) => self.barriers.arrive(id, waiter, effects),
            Input::Operate(id, operation, waiter) => {
                self.words.operate(id, operation, waiter, effects);
            }
            Input::Message(from, message) => match message {
                Message::LockRequest(id) => self.locks.requested(from, id, effects),
                Message::LockForward(id, next) => self.locks.forwarded(from, id, next, effects),
                Message::LockToken(id) => self.locks.received(from, id, effects),
                Message::LockReturn(id) => self.locks.returned(from, id, effects),
                Message::BarrierArrive(id, generation) => {
                    self.barriers.child_arrived(from, id, generation, effects);
                }
                Message::BarrierRelease(id, generation) => {
                    self.barriers.released(from, id, generation, effects);
                }
                Message::AtomicRequest(id, operation, waiter) => {
                    self.words.requested(from, id, operation, waiter, effects);
                }
                Message::AtomicReply(_, waiter, before) => {
                    effects.push(Effect::Wake(waiter, before));
                }
            },
        }
    }

    /// Whether this node holds the lock for its program.
    pub fn holds(&self, lock: u64) -> bool {
        self.locks.is_held(lock)
    }

    /// The lowest lock that this node's program holds or waits for.
    pub fn lock_in_use(&self) -> Option<u64> {
        self.locks.in_use()
    }

    /// Whether no lock lies at this node, nor is on its way to it. Only of interest after [`Input::Depart`].
    pub fn is_clear(&self) -> bool {
        self.locks.is_clear()
    }

    /// The nodes (each stands for those below it) that this node still waits for at `barrier`;
    /// its parent if everybody below has arrived.
    pub fn missing(&self, barrier: u64) -> Vec<NodeId> {
        self.barriers.missing(barrier)
    }
}
