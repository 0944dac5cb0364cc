//! The locks of a node, and the order in which a thread takes them.
//!
//! Promises: a thread that takes a lock holds only locks of lower rank, and one that waits for another thread or node
//! holds only locks of [`Rank::Program`]. Builds with debug assertions check every lock and every wait, and panic with
//! a message that names the ranks. Other builds must never pay for this.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The place of a lock in the order. A thread never holds two locks of the same rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Rank {
    /// Locks that only threads of the program take, while they publish or apply notices. They wait with such a lock.
    Program,
    /// The addresses of joined nodes.
    Joiners,
    /// The members.
    Membership,
    /// A shard's pages; locks, barriers and other objects; the shared heap.
    State,
    /// The knowledge of intervals.
    Knowledge,
    /// Locks under which no other lock of the node is taken.
    Last,
}

/// Data behind a lock that has a rank.
pub(crate) struct Ordered<T> {
    rank: Rank,
    data: Mutex<T>,
}

/// The data, locked.
pub(crate) struct Guard<'a, T> {
    rank: Rank,
    data: MutexGuard<'a, T>,
}

thread_local! {
    /// One bit for each rank of which this thread holds a lock.
    static HELD: Cell<u8> = const { Cell::new(0) };
}

impl Rank {
    fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl<T> Ordered<T> {
    pub(crate) fn new(rank: Rank, data: T) -> Ordered<T> {
        Ordered { rank, data: Mutex::new(data) }
    }
}

/// Takes the lock. A poisoned one means that a thread of the runtime panicked: the panic was the report.
pub(crate) fn lock<T>(ordered: &Ordered<T>) -> Guard<'_, T> {
    let rank = ordered.rank;
    if cfg!(debug_assertions) {
        let held = HELD.get();
        assert!(held < rank.bit(), "a lock of rank {rank:?} is taken while locks {held:#07b} are held");
        HELD.set(held | rank.bit());
    }
    Guard { rank, data: ordered.data.lock().unwrap_or_else(PoisonError::into_inner) }
}

/// A thread calls this when it is about to wait for others.
pub(super) fn assert_free_to_wait() {
    if cfg!(debug_assertions) {
        let held = HELD.get();
        assert!(held <= Rank::Program.bit(), "a thread waits while it holds locks {held:#07b}");
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.data
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.data
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            HELD.set(HELD.get() & !self.rank.bit());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a lock of rank State is taken")]
    fn two_locks_of_one_rank_are_refused() {
        let (one, other) = (Ordered::new(Rank::State, ()), Ordered::new(Rank::State, ()));
        let _first = lock(&one);
        let _second = lock(&other);
    }

    #[test]
    #[should_panic(expected = "a thread waits while it holds locks")]
    fn a_wait_under_a_lock_is_refused() {
        let state = Ordered::new(Rank::State, ());
        let _held = lock(&state);
        assert_free_to_wait();
    }

    #[test]
    fn ascending_ranks_and_what_was_given_back_are_fine() {
        let (turn, state, last) =
            (Ordered::new(Rank::Program, 1), Ordered::new(Rank::State, 2), Ordered::new(Rank::Last, 3));
        let held = lock(&turn);
        assert_free_to_wait();
        assert_eq!(*lock(&last), 3, "given back at the end of the statement");
        let _state = lock(&state);
        drop(held);
        assert_eq!(*lock(&last), 3);
    }
}
