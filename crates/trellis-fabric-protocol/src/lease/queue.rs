//! Who waits for a page that is in use: for a lease, for a copy, or to change it without either; first come, first served.
//!
//! Promises: who asks once more keeps the place; who does not ask any more for a term has none. It must never have more than
//! [`WAITERS_MAX`] places.

use super::Party;
use crate::Nanoseconds;
use alloc::collections::VecDeque;

/// The most who may wait for a page.
pub const WAITERS_MAX: usize = 64;

/// See the module's documentation.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Queue {
    /// In the order in which they came.
    pub waiters: VecDeque<Waiter>,
    /// When to ask back again what is in use.
    pub again_at: Nanoseconds,
}

/// For what somebody waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Wish {
    /// A lease.
    Lease,
    /// A copy.
    Copy,
    /// That nobody has a lease or a copy, for one access that asks for neither. Whoever tries that next has the turn.
    Nothing,
}

/// Who waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Waiter {
    /// Who.
    pub party: Party,
    /// For what.
    pub wish: Wish,
    /// The last request for it.
    pub request: u64,
    /// Then it has no place any more.
    pub until: Nanoseconds,
}

impl Waiter {
    fn is_same(&self, other: &Waiter) -> bool {
        (self.party, self.wish) == (other.party, other.wish)
    }
}

impl Queue {
    /// Gives somebody a place, the last one, unless it has one; says whether it has one now.
    pub(super) fn add(&mut self, waiter: Waiter) -> bool {
        if let Some(known) = self.waiters.iter_mut().find(|known| known.is_same(&waiter)) {
            if known.request < waiter.request || waiter.wish == Wish::Nothing {
                *known = waiter;
            }
            return true;
        }
        let has_place = self.waiters.len() < WAITERS_MAX;
        if has_place {
            self.waiters.push_back(waiter);
        }
        has_place
    }

    /// Whether this one waits.
    pub(super) fn has(&self, waiter: &Waiter) -> bool {
        self.waiters.iter().any(|known| known.is_same(waiter))
    }

    /// Forgets who asks no more.
    pub(super) fn forget_ended(&mut self, now: Nanoseconds) {
        self.waiters.retain(|waiter| now < waiter.until);
    }
}
