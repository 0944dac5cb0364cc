//! The requests that wait for a page in use: for a lease, for a copy, or to change it without either; first come, first
//! served.
//!
//! Promises: a client that repeats its request keeps its place; a client that has not asked for a term has none. The queue
//! must never have more than [`WAITERS_MAX`] places.

use super::Party;
use crate::Nanoseconds;
use alloc::collections::VecDeque;

/// The largest number of requests that may wait for a page.
pub const WAITERS_MAX: usize = 64;

/// See the documentation of this module.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Queue {
    /// In the order of their arrival.
    pub waiters: VecDeque<Waiter>,
    /// When to ask again that the rights in use be given back.
    pub again_at: Nanoseconds,
}

/// The right that a request waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Right {
    /// A lease.
    Lease,
    /// A copy.
    Copy,
    /// None: that no client has a lease or a copy, for one access that asks for neither. The next client that tries
    /// such an access has the turn.
    Nothing,
}

/// A waiting request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Waiter {
    /// The client.
    pub party: Party,
    /// What it waits for.
    pub right: Right,
    /// The last request for it.
    pub request: u64,
    /// When it loses its place.
    pub until: Nanoseconds,
}

impl Waiter {
    fn is_same(&self, other: &Waiter) -> bool {
        (self.party, self.right) == (other.party, other.right)
    }
}

impl Queue {
    /// Gives a client the last place, unless it has one. Returns whether it has one now.
    pub(super) fn add(&mut self, waiter: Waiter) -> bool {
        if let Some(known) = self.waiters.iter_mut().find(|known| known.is_same(&waiter)) {
            if known.request < waiter.request || waiter.right == Right::Nothing {
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

    /// Whether this request waits.
    pub(super) fn has(&self, waiter: &Waiter) -> bool {
        self.waiters.iter().any(|known| known.is_same(waiter))
    }

    /// Forgets clients that no longer ask.
    pub(super) fn forget_ended(&mut self, now: Nanoseconds) {
        self.waiters.retain(|waiter| now < waiter.until);
    }
}
