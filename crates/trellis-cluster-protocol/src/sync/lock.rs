//! Locks: a token that stays where it was used last, and a queue that is spread over the waiting nodes.
//!
//! The home knows only the last requester and tells that node which node to hand the token to (TreadMarks' lock manager;
//! Keleher et al. 1994, §3.3). So an acquisition by the last holder costs no message and any other at most three, and the
//! order is that of arrival at the home. If a node has to hand the token on while its threads still wait, it requests the
//! token again at once, so no thread starves.
//!
//! A call that only *tries* sends the same request. If the token cannot be handed on at once, the node that would hand it
//! on sends `busy` to the node that tries. The place of that node in the queue remains, so the token comes later and is
//! passed on, or stays there.
//!
//! A node that leaves must keep no token. It tells the home, which then requests the lock as any other node does. So the
//! token comes in the usual way, and a request that was faster than this message gets it first.

use super::{ABANDONED, Effect, Message, OBJECTS_MAX, Place, Standing, Waiter};
use crate::page::NodeId;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Locks {
    place: Place,
    locks: BTreeMap<u64, Lock>,
    departing: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lock {
    has_token: bool,
    requested: bool,
    held: bool,
    /// Since the token was requested, this node heard that another node has the lock; or it will hear nothing.
    busy: bool,
    successor: Option<NodeId>,
    waiters: VecDeque<Waiter>,
    /// Calls that wait only for the answer whether the token comes at once.
    trying: Vec<Waiter>,
    /// At the home: the last requester.
    tail: NodeId,
}

impl Locks {
    pub(super) fn new(place: Place) -> Locks {
        Locks { place, locks: BTreeMap::new(), departing: false }
    }

    pub(super) fn acquire(&mut self, id: u64, waiter: Waiter, effects: &mut Vec<Effect>) {
        let place = self.place;
        let Some(lock) = self.lock(id) else {
            return effects.push(Effect::Refused(waiter, "too many locks at this node"));
        };
        if lock.has_token && !lock.held {
            debug_assert!(lock.waiters.is_empty() && lock.successor.is_none());
            lock.held = true;
            return effects.push(Effect::Wake(waiter, 0));
        }
        lock.waiters.push_back(waiter);
        self.ask_for_token(id, place, effects);
    }

    /// The program wants the lock if it is free: woken with 1 if it got the lock, otherwise with 0.
    pub(super) fn try_acquire(&mut self, id: u64, waiter: Waiter, effects: &mut Vec<Effect>) {
        let place = self.place;
        let Some(lock) = self.lock(id) else {
            return effects.push(Effect::Refused(waiter, "too many locks at this node"));
        };
        let is_free = lock.has_token && !lock.held;
        if lock.has_token || lock.busy || !lock.waiters.is_empty() {
            lock.held |= is_free;
            return effects.push(Effect::Wake(waiter, u64::from(is_free)));
        }
        lock.trying.push(waiter);
        self.ask_for_token(id, place, effects);
    }

    pub(super) fn release(&mut self, id: u64, effects: &mut Vec<Effect>) {
        let place = self.place;
        let lock = self.locks.get_mut(&id).filter(|lock| lock.held);
        let lock = lock.expect("only the holder releases a lock; the runtime checks it");
        lock.held = false;
        lock.settle(id, effects);
        self.ask_for_token(id, place, effects);
    }

    pub(super) fn abandon(&mut self, id: u64, waiter: Waiter, effects: &mut Vec<Effect>) {
        let Some(lock) = self.locks.get_mut(&id) else { return };
        let before = lock.waiters.len() + lock.trying.len();
        lock.waiters.retain(|&other| other != waiter);
        lock.trying.retain(|&other| other != waiter);
        if lock.waiters.len() + lock.trying.len() < before {
            effects.push(Effect::Refused(waiter, ABANDONED));
        }
    }

    /// At the home: the last requester gets `from` as its successor.
    pub(super) fn requested(&mut self, from: NodeId, id: u64, tries: bool, effects: &mut Vec<Effect>) {
        let place = self.place;
        if !place.is_home_of(id) {
            return effects.push(Effect::Violation(from, "a lock request to a wrong home"));
        }
        let Some(lock) = self.lock(id) else {
            return effects.push(Effect::Violation(from, "too many locks at their home"));
        };
        let last = core::mem::replace(&mut lock.tail, from);
        if last == place.me {
            self.forwarded(place.me, id, from, tries, effects);
        } else if last != from {
            effects.push(Effect::Send(last, Message::LockForward(id, from, tries)));
        } else {
            effects.push(Effect::Violation(from, "a lock request by the last who asked"));
        }
    }

    pub(super) fn forwarded(&mut self, from: NodeId, id: u64, next: NodeId, tries: bool, effects: &mut Vec<Effect>) {
        let place = self.place;
        let Some(lock) = self.lock(id).filter(|lock| lock.successor.is_none()) else {
            return effects.push(Effect::Violation(from, "a second successor for a lock"));
        };
        lock.successor = Some(next);
        if lock.has_token && !lock.held {
            lock.settle(id, effects);
            self.ask_for_token(id, place, effects);
        } else if tries {
            effects.push(Effect::Send(next, Message::LockBusy(id)));
        }
    }

    /// The node that is to hand the token to this node cannot do so yet. The message is outdated if the token has come in
    /// the meantime: a call that tries now has requested it again, and receives what was true a moment ago.
    pub(super) fn is_busy(&mut self, from: NodeId, id: u64, effects: &mut Vec<Effect>) {
        let Some(lock) = self.locks.get_mut(&id) else {
            return effects.push(Effect::Violation(from, "news of a lock that nobody asked for"));
        };
        lock.busy = lock.requested;
        effects.extend(lock.trying.drain(..).map(|waiter| Effect::Wake(waiter, 0)));
    }

    pub(super) fn received(&mut self, from: NodeId, id: u64, effects: &mut Vec<Effect>) {
        let Some(lock) = self.locks.get_mut(&id).filter(|lock| lock.requested) else {
            return effects.push(Effect::Violation(from, "a lock that nobody asked for"));
        };
        lock.has_token = true;
        (lock.requested, lock.busy) = (false, false);
        let mut trying = core::mem::take(&mut lock.trying).into_iter();
        // The request was for a thread of this node: that thread comes before the successor.
        if let Some(waiter) = lock.waiters.pop_front() {
            lock.held = true;
            effects.push(Effect::Wake(waiter, 0));
        } else if let Some(waiter) = trying.next() {
            lock.held = true;
            effects.push(Effect::Wake(waiter, 1));
        }
        effects.extend(trying.map(|waiter| Effect::Wake(waiter, 0)));
        if !lock.held {
            lock.settle(id, effects);
            self.return_idle(id, effects);
        }
    }

    /// This node leaves: every token goes back, now or when it comes.
    pub(super) fn depart(&mut self, effects: &mut Vec<Effect>) {
        debug_assert!(self.in_use().is_none() && !self.place.is_founder());
        self.departing = true;
        let ids: Vec<u64> = self.locks.keys().copied().collect();
        ids.into_iter().for_each(|id| self.return_idle(id, effects));
    }

    /// At the home: the node that asked last leaves and has the token.
    pub(super) fn returned(&mut self, from: NodeId, id: u64, effects: &mut Vec<Effect>) {
        let place = self.place;
        if !place.is_home_of(id) {
            return effects.push(Effect::Violation(from, "a lock returned to a wrong home"));
        }
        // Otherwise another node made a request in the meantime, and `from` has been told which node to hand the token to.
        if let Some(lock) = self.locks.get_mut(&id).filter(|lock| lock.tail == from) {
            debug_assert!(!lock.requested && !lock.has_token, "the token is at {from}");
            lock.requested = true;
            self.requested(place.me, id, false, effects);
        }
    }

    pub(super) fn in_use(&self) -> Option<u64> {
        self.locks
            .iter()
            .find(|(_, lock)| lock.held || !lock.waiters.is_empty() || !lock.trying.is_empty())
            .map(|(&id, _)| id)
    }

    pub(super) fn is_clear(&self) -> bool {
        self.locks.values().all(|lock| !lock.has_token && !lock.requested)
    }

    /// Returns a token that is not used here, at a node that leaves.
    fn return_idle(&self, id: u64, effects: &mut Vec<Effect>) {
        if self.departing && self.locks.get(&id).is_some_and(|lock| lock.has_token && !lock.held) {
            effects.push(Effect::Send(self.place.home_of(id), Message::LockReturn(id)));
        }
    }

    pub(super) fn standing(&self, id: u64) -> Standing {
        let Some(lock) = self.locks.get(&id) else { return Standing::default() };
        Standing { holds: u32::from(lock.held), waits: lock.waiters.len() as u32 }
    }

    /// The next node to get the token of a lock that is held here, once it is given back.
    pub(super) fn successor(&self, id: u64) -> Option<NodeId> {
        self.locks.get(&id).filter(|lock| lock.held)?.successor
    }

    /// Whether the token lies here unused.
    pub(super) fn is_idle(&self, id: u64) -> bool {
        self.locks.get(&id).is_some_and(|lock| lock.has_token && !lock.held)
    }

    /// At the home: `from`, if its request would make the token leave this node at once.
    pub(super) fn would_hand_to(&self, from: NodeId, id: u64) -> Option<NodeId> {
        let lock = self.locks.get(&id)?;
        (self.place.is_home_of(id) && lock.tail == self.place.me && self.is_idle(id)).then_some(from)
    }

    pub(super) fn is_held(&self, id: u64) -> bool {
        self.locks.get(&id).is_some_and(|lock| lock.held)
    }

    /// Requests the token if threads wait and it is neither here nor on its way.
    fn ask_for_token(&mut self, id: u64, place: Place, effects: &mut Vec<Effect>) {
        let lock = self.locks.get_mut(&id).expect("a lock in use");
        if lock.has_token || lock.requested || lock.waiters.is_empty() && lock.trying.is_empty() {
            return;
        }
        lock.requested = true;
        let tries = !lock.trying.is_empty();
        lock.busy = !tries;
        if place.is_home_of(id) {
            self.requested(place.me, id, tries, effects);
        } else {
            effects.push(Effect::Send(place.home_of(id), Message::LockRequest(id, tries)));
        }
    }

    fn lock(&mut self, id: u64) -> Option<&mut Lock> {
        let place = self.place;
        if self.locks.len() >= OBJECTS_MAX && !self.locks.contains_key(&id) {
            return None;
        }
        Some(self.locks.entry(id).or_insert_with(|| Lock {
            has_token: place.is_home_of(id),
            requested: false,
            held: false,
            busy: false,
            successor: None,
            waiters: VecDeque::new(),
            trying: Vec::new(),
            tail: place.home_of(id),
        }))
    }
}

impl Lock {
    /// The token is here and the lock is free: it goes to the next.
    fn settle(&mut self, id: u64, effects: &mut Vec<Effect>) {
        debug_assert!(self.has_token && !self.held);
        if let Some(next) = self.successor.take() {
            self.has_token = false;
            effects.push(Effect::Send(next, Message::LockToken(id)));
        } else if let Some(waiter) = self.waiters.pop_front() {
            self.held = true;
            effects.push(Effect::Wake(waiter, 0));
        }
    }
}
