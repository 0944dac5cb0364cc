//! Synchronisation as a protocol: locks, barriers, words with atomic operations, and objects that are kept at their home:
//! read-write locks, semaphores, event flags, once objects, condition variables, counting barriers.
//!
//! # Contract
//!
//! One [`Sync`] per node. Objects are named by any 64-bit number and exist from their first use. The home of object `i` is
//! founder `i % founders`. A node that joined later is no home, and takes part in everything except the barrier of all
//! nodes. A call of the program carries a [`Waiter`], a number that the caller chose; [`Effect::Wake`] names it exactly
//! once.
//!
//! Promises: a lock has at most one holder and is handed on in the order in which the requests reached its home. No node
//! leaves a barrier before every node has entered it. Operations on a word, and on an object, happen one after the other. A
//! call that is abandoned leaves nothing locked, acquired, running or notified; only an arrival at a barrier stands. It
//! must never assume that messages keep their order.

mod atomic;
mod barrier;
mod call;
mod condition;
mod condition_wait;
mod counting_barrier;
mod event;
mod held;
mod inquiry;
mod lock;
mod objects;
mod once;
mod program_end;
mod read_write_lock;
mod reduction;
mod semaphore;
mod words;

pub use atomic::Operation;
pub use call::{Call, CallOutcome, CallStep};
pub use condition::ConditionDemand;
pub use condition_wait::{ConditionWait, WaitEnd, WaitOutcome, WaitStep};
pub use event::EventDemand;
pub use held::{Held, Holding};
pub use inquiry::Answers;
pub use objects::{Demand, Outcome, Refusal};
pub use once::OnceDemand;
pub use program_end::{EndStep, ProgramEnd};
pub use read_write_lock::ReadWriteDemand;
pub use reduction::{Contribution, Reduction};
pub use semaphore::SemaphoreDemand;

use crate::page::NodeId;
use alloc::vec::Vec;
use atomic::Words;
use barrier::Barriers;
use inquiry::Inquiries;
use lock::Locks;
use objects::Objects;

/// Names a waiting call until its [`Effect::Wake`].
pub type Waiter = u32;

/// The text of the [`Effect::Refused`] that ends an abandoned call.
pub const ABANDONED: &str = "abandoned";

/// The largest number of objects of one kind that one node keeps. More are refused, so that a peer cannot make a node's
/// memory grow without bound.
pub const OBJECTS_MAX: usize = 65_536;

/// The kinds of objects that a program waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Kind {
    Lock,
    Barrier,
    ReadWriteLock,
    Semaphore,
    Event,
    Once,
    Condition,
    CountingBarrier,
}

impl Kind {
    /// All kinds, in the order of their codes on the wire.
    pub const ALL: [Kind; 8] = [
        Kind::Lock,
        Kind::Barrier,
        Kind::ReadWriteLock,
        Kind::Semaphore,
        Kind::Event,
        Kind::Once,
        Kind::Condition,
        Kind::CountingBarrier,
    ];
}

/// An object: objects of different kinds may have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    /// Its kind.
    pub kind: Kind,
    /// Its number.
    pub id: u64,
}

impl core::fmt::Display for Subject {
    /// The form used in messages: `read-write lock 7`.
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let kind = match self.kind {
            Kind::Lock => "lock",
            Kind::Barrier => "barrier",
            Kind::ReadWriteLock => "read-write lock",
            Kind::Semaphore => "semaphore",
            Kind::Event => "event",
            Kind::Once => "once",
            Kind::Condition => "condition",
            Kind::CountingBarrier => "counting barrier",
        };
        write!(formatter, "{kind} {}", self.id)
    }
}

/// How a node's program uses an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Standing {
    /// The number of its calls that have it: that hold the lock, read, write, or run the once object.
    pub holds: u32,
    /// The number of its calls that wait for it, or have arrived at the barrier.
    pub waits: u32,
}

/// A fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// The program wants the lock.
    Acquire(u64, Waiter),
    /// The program wants the lock if it can have it at once: woken with 1 if it got the lock, otherwise with 0.
    TryAcquire(u64, Waiter),
    /// The program gives the lock back.
    Release(u64),
    /// The program no longer waits for the lock (its deadline passed). The call is refused at once, unless it was woken.
    Abandon(u64, Waiter),
    /// This node wants to leave the cluster. Its program holds no lock and no longer waits for one, and every token that
    /// lies here goes back to its home. [`Sync::is_clear`] says when that is done.
    Depart,
    /// This node's program has arrived at the barrier with this contribution. Woken with the result.
    Arrive(u64, Contribution, Waiter),
    /// The program no longer waits in the barrier. Its arrival stands: its next call continues the wait.
    AbandonBarrier(u64, Waiter),
    /// The program demands something of an object; not for waiting on a condition. A demand that ends a lock, a
    /// post and a wake-up are not answered, and their waiter is ignored. The lock must be held, and a once object that
    /// is reported as done or failed must have been begun.
    Demand(u64, Demand, Waiter),
    /// The program waits for a condition. The first call is woken when no notification can be missed any more, the second
    /// when it was notified.
    Enroll(u64, Waiter, Waiter),
    /// The program no longer waits for what it demanded. The call is refused at once, unless it was woken.
    AbandonDemand(Waiter),
    /// The program operates on a word.
    Operate(u64, Operation, Waiter),
    /// A message arrived.
    Message(NodeId, Message),
}

impl Input {
    /// Whether the call is a release: what this node stored is published before it begins.
    pub fn releases(&self) -> bool {
        match self {
            Input::Release(_) | Input::Arrive(..) => true,
            Input::Operate(_, operation, _) => *operation != Operation::Load,
            Input::Demand(_, demand, _) => demand.releases(),
            _ => false,
        }
    }

    /// Whether the call is an acquire if it succeeds: what was released to this node is applied before it ends.
    pub fn acquires(&self) -> bool {
        match self {
            Input::Acquire(..) | Input::TryAcquire(..) | Input::Arrive(..) | Input::Operate(..) => true,
            Input::Demand(_, demand, _) => demand.acquires(),
            _ => false,
        }
    }
}

/// An order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Send this; never to this node itself.
    Send(NodeId, Message),
    /// The call is done. For a word, with its value before the operation.
    Wake(Waiter, u64),
    /// The peer sent a message that no correct peer can send.
    Violation(NodeId, &'static str),
    /// The program did something that it must not do, or this node keeps too many objects.
    Refused(Waiter, &'static str),
}

/// The messages between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// To the lock's home: this node wants the lock, or tries to get it.
    LockRequest(u64, bool),
    /// From the home to the last requester: the node to hand the lock to, and whether that node only tries.
    LockForward(u64, NodeId, bool),
    /// To a node that tries: the lock cannot be handed on at once.
    LockBusy(u64),
    /// The lock itself.
    LockToken(u64),
    /// To the lock's home, from a node that leaves: request this lock, which is not used here.
    LockReturn(u64),
    /// To the parent: every node below has arrived, with this contribution.
    BarrierArrive(u64, u32, Contribution),
    /// To the children: every node has arrived, with this result.
    BarrierRelease(u64, u32, Contribution),
    /// To the word's home.
    AtomicRequest(u64, Operation, Waiter),
    /// From the word's home: the value before.
    AtomicReply(u64, Waiter, u64),
    /// To the object's home.
    ObjectRequest(u64, Demand, Waiter),
    /// From the object's home.
    ObjectReply(u64, Waiter, Outcome),
    /// To the object's home: the call no longer waits.
    ObjectAbandon(u64, Kind, Waiter),
    /// To the object's home: undo what was granted, with this value, to a call that had been abandoned. The operands of the
    /// demand are zero.
    ObjectUndo(u64, Demand, Waiter, u64),
    /// How do you use this object? For a barrier, this use of it.
    Inquiry(Subject, u32, Waiter),
    /// The answer.
    Standing(Waiter, Standing),
}

impl Message {
    /// Whether the message may carry what its sender knows about writes to a program that acquires. Release consistency
    /// rests on it. It is true of
    ///
    /// - the token of a lock, which goes from the node that released it to the node that acquires it;
    /// - arrivals at a barrier, on their way up, and the release, on its way down;
    /// - requests to a home by which a program releases: a request that changes a word, ends a lock, releases a semaphore,
    ///   sets or clears, ends a once object, notifies, or arrives at a counting barrier. From then on the home knows it;
    /// - answers of a home, by which it passes on what it knows.
    ///
    /// It is false of everything else: requests that only acquire, the next holder of a lock, abandonments, undoings (the
    /// program of that node did not run in between) and inquiries.
    pub fn releases(&self) -> bool {
        match self {
            Message::LockToken(_) | Message::BarrierArrive(..) | Message::BarrierRelease(..) => true,
            Message::AtomicRequest(_, operation, _) => *operation != Operation::Load,
            Message::ObjectRequest(_, demand, _) => demand.releases(),
            Message::AtomicReply(..) => true,
            Message::ObjectReply(_, _, outcome) => matches!(outcome, Outcome::Done(_)),
            Message::LockRequest(..) | Message::LockForward(..) | Message::LockBusy(_) | Message::LockReturn(_) => {
                false
            }
            Message::ObjectAbandon(..) | Message::ObjectUndo(..) => false,
            Message::Inquiry(..) | Message::Standing(..) => false,
        }
    }
}

/// All synchronisation of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sync {
    locks: Locks,
    barriers: Barriers,
    words: Words,
    objects: Objects,
    inquiries: Inquiries,
    /// Room for the effects of a step; empty between steps.
    room: Vec<Effect>,
}

/// The position of node `me` in a cluster.
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
    /// For node `me` of a cluster of `founders` nodes. Other nodes, with higher numbers, may join later.
    pub fn new(me: NodeId, founders: u16) -> Sync {
        let place = Place { me, founders };
        Sync {
            locks: Locks::new(place),
            barriers: Barriers::new(place),
            words: Words::new(place),
            objects: Objects::new(place),
            inquiries: Inquiries::default(),
            room: Vec::new(),
        }
    }

    pub(crate) fn take_room(&mut self) -> Vec<Effect> {
        core::mem::take(&mut self.room)
    }

    pub(crate) fn give_room(&mut self, empty: Vec<Effect>) {
        self.room = empty;
    }

    /// Takes one fact and pushes the effects that follow from it.
    pub fn step(&mut self, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Acquire(id, waiter) => self.locks.acquire(id, waiter, effects),
            Input::TryAcquire(id, waiter) => self.locks.try_acquire(id, waiter, effects),
            Input::Release(id) => self.locks.release(id, effects),
            Input::Abandon(id, waiter) => self.locks.abandon(id, waiter, effects),
            Input::Depart => self.locks.depart(effects),
            Input::Arrive(id, own, waiter) => self.barriers.arrive(id, own, waiter, effects),
            Input::AbandonBarrier(id, waiter) => self.barriers.abandon(id, waiter, effects),
            Input::Operate(id, operation, waiter) => self.words.operate(id, operation, waiter, effects),
            Input::Demand(id, demand, waiter) => self.objects.call(id, demand, None, waiter, effects),
            Input::Enroll(id, enrolled, waiter) => {
                let demand = Demand::Condition(ConditionDemand::Wait);
                self.objects.call(id, demand, Some(enrolled), waiter, effects);
            }
            Input::AbandonDemand(waiter) => self.objects.abandon(waiter, effects),
            Input::Message(from, message) => self.hear(from, message, effects),
        }
    }

    fn hear(&mut self, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        match message {
            Message::LockRequest(id, tries) => self.locks.requested(from, id, tries, effects),
            Message::LockForward(id, next, tries) => self.locks.forwarded(from, id, next, tries, effects),
            Message::LockBusy(id) => self.locks.is_busy(from, id, effects),
            Message::LockToken(id) => self.locks.received(from, id, effects),
            Message::LockReturn(id) => self.locks.returned(from, id, effects),
            Message::BarrierArrive(id, generation, brought) => {
                self.barriers.child_arrived(from, id, generation, brought, effects);
            }
            Message::BarrierRelease(id, generation, result) => {
                self.barriers.released(from, id, generation, result, effects);
            }
            Message::AtomicRequest(id, operation, waiter) => {
                self.words.requested(from, id, operation, waiter, effects);
            }
            Message::AtomicReply(_, waiter, before) => effects.push(Effect::Wake(waiter, before)),
            Message::ObjectRequest(id, demand, waiter) => self.objects.requested(from, id, demand, waiter, effects),
            Message::ObjectReply(id, waiter, outcome) => self.objects.answered(from, id, waiter, outcome, effects),
            Message::ObjectAbandon(id, kind, waiter) => self.objects.abandoned(from, id, kind, waiter, effects),
            Message::ObjectUndo(id, demand, waiter, value) => {
                self.objects.undone(from, id, demand, waiter, value, effects);
            }
            Message::Inquiry(subject, generation, waiter) => {
                let standing = self.standing(subject, generation);
                effects.push(Effect::Send(from, Message::Standing(waiter, standing)));
            }
            Message::Standing(waiter, standing) => self.inquiries.answered(from, waiter, standing, effects),
        }
    }

    /// Asks `peers` how they use an object; `waiter` is woken when all have answered. [`Sync::conclude`] ends the inquiry.
    pub fn inquire(
        &mut self,
        subject: Subject,
        peers: impl Iterator<Item = NodeId>,
        waiter: Waiter,
        effects: &mut Vec<Effect>,
    ) {
        let generation = self.generation(subject);
        self.inquiries.ask(subject, generation, peers, waiter, effects);
    }

    /// Ends an inquiry. Returns the nodes that were asked and the answer of each.
    pub fn conclude(&mut self, waiter: Waiter) -> Answers {
        self.inquiries.conclude(waiter)
    }

    /// How this node's program uses an object now.
    pub fn own_standing(&self, subject: Subject) -> Standing {
        self.standing(subject, self.generation(subject))
    }

    fn generation(&self, subject: Subject) -> u32 {
        if subject.kind == Kind::Barrier { self.barriers.generation(subject.id) } else { 0 }
    }

    fn standing(&self, subject: Subject, generation: u32) -> Standing {
        match subject.kind {
            Kind::Lock => self.locks.standing(subject.id),
            Kind::Barrier => Standing { holds: 0, waits: u32::from(self.barriers.has_come(subject.id, generation)) },
            _ => self.objects.standing(subject),
        }
    }

    /// Whether this node holds the lock for its program.
    pub fn holds(&self, lock: u64) -> bool {
        self.locks.is_held(lock)
    }

    /// The node to which the token of a lock would go if this were the next fact.
    pub fn token_goes_to(&self, input: &Input) -> Option<NodeId> {
        match *input {
            Input::Release(id) => self.locks.successor(id),
            Input::Message(_, Message::LockForward(id, next, _)) => self.locks.is_idle(id).then_some(next),
            Input::Message(from, Message::LockRequest(id, _)) => self.locks.would_hand_to(from, id),
            _ => None,
        }
    }

    /// A lock, or another object, that this node's program holds or waits for. [`Sync::own_standing`] says which of the
    /// two.
    pub fn in_use(&self) -> Option<Subject> {
        let lock = self.locks.in_use().map(|id| Subject { kind: Kind::Lock, id });
        lock.or_else(|| self.objects.in_use())
    }

    /// Whether no token lies at this node or is on its way to it, and no home owes it an answer. Matters only after
    /// [`Input::Depart`].
    pub fn is_clear(&self) -> bool {
        self.locks.is_clear() && self.objects.is_clear()
    }

    /// Whether this node's program has what the demand ends: a read lock, a write lock, a once object that it runs.
    pub fn may_end(&self, id: u64, demand: Demand) -> bool {
        self.objects.may_end(id, demand)
    }

    /// Whether the program may make this call now: what it gives back is held here.
    pub fn allows(&self, call: &Input) -> bool {
        match *call {
            Input::Release(id) => self.holds(id),
            Input::Demand(id, demand, _) => self.may_end(id, demand),
            _ => true,
        }
    }

    /// Whether nothing is left here of demands that are over: everything that was remembered for them has been forgotten.
    pub fn is_quiet(&self) -> bool {
        self.objects.is_quiet()
    }

    /// The nodes (each stands for those below it) that this node still waits for at `barrier`; its parent if every node
    /// below has arrived.
    pub fn missing(&self, barrier: u64) -> Vec<NodeId> {
        self.barriers.missing(barrier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    /// What a node that joined later has to give back before it leaves, after these facts.
    fn in_use(inputs: &[Input]) -> Option<(alloc::string::String, Standing)> {
        let (mut sync, mut effects) = (Sync::new(NodeId(2), 2), Vec::new());
        inputs.iter().for_each(|&input| sync.step(input, &mut effects));
        sync.in_use().map(|subject| (subject.to_string(), sync.own_standing(subject)))
    }

    #[test]
    fn what_is_in_use_is_named_with_its_kind() {
        let (holds, waits) = (Standing { holds: 1, waits: 0 }, Standing { holds: 0, waits: 1 });
        let granted = |id| Input::Message(NodeId(1), Message::ObjectReply(id, 9, Outcome::Done(1)));
        let event = Input::Demand(5, Demand::Event(EventDemand::Wait), 9);
        let read = Input::Demand(7, Demand::ReadWriteLock(ReadWriteDemand::Read), 9);
        let once = Input::Demand(3, Demand::Once(OnceDemand::Begin), 9);
        let token = Input::Message(NodeId(1), Message::LockToken(5));
        assert_eq!(in_use(&[]), None);
        assert_eq!(in_use(&[Input::Acquire(5, 9)]), Some(("lock 5".to_string(), waits)));
        assert_eq!(in_use(&[Input::Acquire(5, 9), token]), Some(("lock 5".to_string(), holds)));
        assert_eq!(in_use(&[event]), Some(("event 5".to_string(), waits)));
        assert_eq!(in_use(&[event, granted(5)]), None);
        assert_eq!(in_use(&[read]), Some(("read-write lock 7".to_string(), waits)));
        assert_eq!(in_use(&[read, granted(7)]), Some(("read-write lock 7".to_string(), holds)));
        assert_eq!(in_use(&[once, granted(3)]), Some(("once 3".to_string(), holds)));
    }
}
