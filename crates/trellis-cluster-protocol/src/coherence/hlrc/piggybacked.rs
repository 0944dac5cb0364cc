//! Pages that travel with the token of a lock.
//!
//! A page that one node after the other changes under a lock is *migratory* (Cox and Fowler 1993; Stenström, Brorsson and
//! Sandberg 1993): the next holder would drop its copy and fetch the page from its home. So a node that hands the lock on
//! sends the page along, just before the token. The notice that comes with the token then finds the copy new enough. A page
//! of the last publication is taken for migratory if it had come here before: it was fetched or piggybacked here or, at a home,
//! another node had changed it. It is piggybacked once, and again when it has come back: a page that no other node wants stays.
//!
//! Promises: a piggybacked page has the same effect as a copy that was fetched a moment earlier. It is not requested, waited
//! for or answered: if it is lost, late or refused, it changes nothing, and the notice has its usual effect. It must never
//! take from a copy what this node stored, or what this node has a right to see.
//!
//! # Why no store is lost
//!
//! *What is sent* is the page as its home had it at the time `stamp`, without later stores that are not published. A home
//! has that by itself. Another node has it in its twin if the answer to its last diff said so (*current*), and until
//! anything happens to its copy: then the copy has another time, or was fetched again.
//!
//! *What is taken*: a copy takes the page only if it is open, older, and if its twin (or, if nothing was stored, the copy
//! itself) is the page as its home had it at the copy's own time. Both are states of one home, and the one that came is the
//! later, so wherever they differ, some node published in between. Those bytes, and no others, go into copy and twin.
//!
//! - A store of this node that is not published makes no difference between the two states, so it stays. It still differs
//!   from the twin, so it will be published.
//! - A store that is on its way to the home may be missing in the page that came: while a diff of the page is awaited,
//!   nothing is taken.
//! - A store that is published is in every later state of the home. The time of the copy covers it if the diff found the
//!   copy current. Otherwise the copy holds more than its own time says, and counts as *behind* until it is fetched again.
//! - What other nodes released to this node came with notices, and an open copy is as new as all notices that were applied;
//!   the page that came is newer than the copy.
//! - If a copy lacks an update, nothing is taken (the copy is *deaf*). While an update is on its way, nothing that is
//!   ordered behind it can come: its writer waits for this node's answer.
//!
//! *What the home must know*: the home does not see which copies were renewed by a lock's token. So a diff names the copies
//! that were piggybacked here, and their time. If the page has not changed since, the writer's copy is current. This does not
//! hold if changes are sent to copies: a home that keeps a twin knows its content only for copies that it sent itself.

use super::{BEHIND, DEAF, FETCHED, HOME, Hlrc, PENDING, PIGGYBACKED, Propagation, READABLE, SHARED, TWIN};
use crate::coherence::{Effect, Message};
use crate::page::{NodeId, PageIndex};
use alloc::vec::Vec;

/// The number of pages of one publication that are remembered.
const MIGRATORY_MAX: usize = 8;

/// A page of the last publication that may travel with the token of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Migratory {
    page: PageIndex,
    /// The time of the publication; `None` until its home has said that the copy is as new as the master.
    stamp: Option<u64>,
}

/// Why a page that is piggybacked to a node is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Objection {
    /// There is no copy here that it could be merged into, or the copy here is the master.
    NoCopy,
    /// A diff of this node is on its way.
    Awaited,
    /// The copy holds stores of this node that may be newer.
    Behind,
    /// The copy is at least as new.
    Older,
}

impl Hlrc {
    pub(super) fn note_migratory(&mut self, page: PageIndex, stamp: Option<u64>) {
        if self.migratory.len() < MIGRATORY_MAX && self.propagation != Propagation::Update {
            self.migratory.push(Migratory { page, stamp });
        }
    }

    /// The home says that this node's copy is the page in its state since `stamp`.
    pub(super) fn is_as_published(&mut self, page: PageIndex, stamp: u64) {
        if let Some(migratory) = self.migratory.iter_mut().find(|migratory| migratory.page == page) {
            migratory.stamp = Some(stamp);
        }
    }

    /// The token of a lock is about to go to `to`.
    pub(super) fn piggyback(&mut self, to: NodeId, pages_max: u32, effects: &mut Vec<Effect>) {
        let mut left = pages_max;
        for Migratory { page, stamp } in core::mem::take(&mut self.migratory) {
            let Some(stamp) = stamp.filter(|_| left > 0 && self.has(page, FETCHED)) else { continue };
            // Otherwise it has changed since, or is another copy.
            if self.stamps[self.geometry.slot(page)] != stamp || !self.is_of_use(page, to) {
                continue;
            }
            left -= 1;
            self.clear(page, FETCHED);
            let message = Message::Piggybacked { page, stamp };
            effects.push(match self.has(page, TWIN) {
                true => Effect::SendTwins { to, message },
                false => Effect::Send { to, message },
            });
        }
    }

    /// Whether this node can send the page, as it was published last, to a node that may take it.
    fn is_of_use(&self, page: PageIndex, to: NodeId) -> bool {
        if self.is_home(page) {
            return self.copies.contains(self.geometry.slot(page), to) && !self.is_updated(page);
        }
        self.believed_home(page) != to
            && self.has(page, READABLE)
            && self.has(page, TWIN)
            && !self.has(page, PENDING | DEAF | BEHIND)
            && !self.is_awaited(page)
    }

    /// Why the page in its state at `stamp` of its home would not be taken; `None` if it would be.
    pub fn objection(&self, page: PageIndex, stamp: u64) -> Option<Objection> {
        let is_copy =
            self.has(page, READABLE) && !self.is_home(page) && !self.has(page, PENDING | DEAF | HOME | SHARED);
        if !is_copy || self.propagation == Propagation::Update {
            Some(Objection::NoCopy)
        } else if self.is_awaited(page) {
            Some(Objection::Awaited)
        } else if self.has(page, BEHIND) {
            Some(Objection::Behind)
        } else if self.stamps[self.geometry.slot(page)] >= stamp {
            Some(Objection::Older)
        } else {
            None
        }
    }

    /// A page came that was not requested.
    pub(super) fn piggybacked_here(&mut self, page: PageIndex, stamp: u64, effects: &mut Vec<Effect>) {
        if self.objection(page, stamp).is_some() {
            return;
        }
        let slot = self.geometry.slot(page);
        self.stamps[slot] = stamp;
        self.set(page, FETCHED | PIGGYBACKED);
        effects.push(Effect::Merge { page, has_twin: self.has(page, TWIN) });
    }
}
