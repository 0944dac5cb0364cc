//! Which thread of this node's program holds which object, so that a thread that would wait for itself is refused at
//! once.
//!
//! The state machines know nodes and calls, not threads. Another thread than the one that took an object may give it back,
//! so an entry belongs to the object and not to the thread. Promises: only a thread that holds the object itself is
//! refused. It must never refuse a call that could succeed.

use super::objects::Demand;
use super::once::OnceDemand;
use super::read_write_lock::ReadWriteDemand;
use alloc::vec::Vec;

/// How a thread holds an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holding {
    /// A lock.
    Lock,
    /// A read-write lock, to read.
    Read,
    /// A read-write lock, to write.
    Write,
    /// A once object, which the thread does.
    Once,
}

impl Holding {
    /// Whether a thread that holds an object so waits for itself if it wants the object as `wanted`.
    fn excludes(self, wanted: Holding) -> bool {
        match wanted {
            Holding::Lock | Holding::Once => self == wanted,
            Holding::Read => self == Holding::Write,
            Holding::Write => matches!(self, Holding::Read | Holding::Write),
        }
    }
}

impl Demand {
    /// The right that the caller holds after the demand was answered with 1.
    pub(super) fn holding(&self) -> Option<Holding> {
        match self {
            Demand::ReadWriteLock(ReadWriteDemand::Read | ReadWriteDemand::TryRead) => Some(Holding::Read),
            Demand::ReadWriteLock(ReadWriteDemand::Write | ReadWriteDemand::TryWrite) => Some(Holding::Write),
            Demand::Once(OnceDemand::Begin) => Some(Holding::Once),
            _ => None,
        }
    }

    /// The right for which the demand waits. `None` for one that only tries, which is answered at once.
    pub(super) fn waits_to_hold(&self) -> Option<Holding> {
        let tries = matches!(self, Demand::ReadWriteLock(ReadWriteDemand::TryRead | ReadWriteDemand::TryWrite));
        self.holding().filter(|_| !tries)
    }

    /// The right that the caller gives back with the demand.
    pub(super) fn gives_back(&self) -> Option<Holding> {
        match self {
            Demand::ReadWriteLock(ReadWriteDemand::EndRead) => Some(Holding::Read),
            Demand::ReadWriteLock(ReadWriteDemand::EndWrite) => Some(Holding::Write),
            Demand::Once(OnceDemand::Done | OnceDemand::Failed) => Some(Holding::Once),
            _ => None,
        }
    }
}

/// The objects that the threads of a node's program hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Held {
    /// How, the number of the object, and the thread.
    entries: Vec<(Holding, u64, u64)>,
}

impl Held {
    /// How the thread holds the object that it wants, if it would wait for itself.
    pub fn in_the_way(&self, wanted: Holding, object: u64, thread: u64) -> Option<Holding> {
        let is_it = |&&(how, held, by): &&(Holding, u64, u64)| held == object && by == thread && how.excludes(wanted);
        self.entries.iter().find(is_it).map(|(how, ..)| *how)
    }

    /// The thread got the object.
    pub fn took(&mut self, how: Holding, object: u64, thread: u64) {
        self.entries.push((how, object, thread));
    }

    /// The thread gave an object back that it, or else another thread, held.
    pub fn gave_back(&mut self, how: Holding, object: u64, thread: u64) {
        let is_it = |one: &(Holding, u64, u64)| one.0 == how && one.1 == object;
        let own = self.entries.iter().rposition(|one| is_it(one) && one.2 == thread);
        if let Some(place) = own.or_else(|| self.entries.iter().rposition(is_it)) {
            self.entries.swap_remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_refused_only_for_what_it_holds_itself() {
        let mut held = Held::default();
        held.took(Holding::Lock, 7, 1);
        assert_eq!(held.in_the_way(Holding::Lock, 7, 1), Some(Holding::Lock));
        assert_eq!(held.in_the_way(Holding::Lock, 7, 2), None, "another thread waits for thread 1");
        assert_eq!(held.in_the_way(Holding::Lock, 8, 1), None);
        assert_eq!(held.in_the_way(Holding::Write, 7, 1), None, "a lock and a read-write lock share a number");
        held.gave_back(Holding::Lock, 7, 2);
        assert_eq!(held.in_the_way(Holding::Lock, 7, 1), None, "another thread gave it back");
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let mut held = Held::default();
        held.took(Holding::Read, 3, 1);
        assert_eq!(held.in_the_way(Holding::Read, 3, 1), None);
        assert_eq!(held.in_the_way(Holding::Write, 3, 1), Some(Holding::Read));
        held.took(Holding::Read, 3, 2);
        held.gave_back(Holding::Read, 3, 2);
        assert_eq!(held.in_the_way(Holding::Write, 3, 1), Some(Holding::Read), "its own entry stays");
        held.gave_back(Holding::Read, 3, 1);
        held.took(Holding::Write, 3, 1);
        assert_eq!(held.in_the_way(Holding::Read, 3, 1), Some(Holding::Write));
    }

    #[test]
    fn a_demand_that_only_tries_waits_for_nothing() {
        let try_read = Demand::ReadWriteLock(ReadWriteDemand::TryRead);
        assert_eq!((try_read.holding(), try_read.waits_to_hold()), (Some(Holding::Read), None));
        let done = Demand::Once(OnceDemand::Done);
        assert_eq!((done.holding(), done.gives_back()), (None, Some(Holding::Once)));
    }
}
