//! Where homes are: fixed, at the first to touch a page, where the program wants them, or with whoever writes most.
//!
//! The *directory* of a page is the node that the configured home names. Where homes are fixed it is the home, unless
//! the program placed the page elsewhere before anybody touched it. Otherwise it knows the first home, and each home
//! that handed a page over knows the next one, so a request finds its way by being sent on. It never comes back to a
//! node where it was: whoever was the home believes in a later one, and who does not know yet that it is the home waits
//! for the acknowledgement of a diff, which says so, and keeps requests until then.

use super::home::{Arrived, Wanted};
use super::{AWAY, BEHIND, CARRIED, FETCHED, HOME, Hlrc, READABLE, SHARED, TWIN, WRITABLE, WRITTEN};
use crate::coherence::{Content, Effect, Message, violation};
use crate::homes::{HomeOf, Placement};
use crate::page::{NodeId, PageIndex, PageRange};
use alloc::vec::Vec;

/// How often a message was sent on is counted up to here.
const HOPS_MAX: u16 = 64;

impl Hlrc {
    pub(super) fn is_directory(&self, page: PageIndex) -> bool {
        self.geometry.home_of(page) == self.geometry.me
    }

    /// Whether this node is the home of `page` now.
    pub(super) fn is_home(&self, page: PageIndex) -> bool {
        self.has(page, HOME)
            || self.geometry.home.placement() == Placement::Fixed && self.is_directory(page) && !self.has(page, AWAY)
    }

    pub(super) fn homes_move(&self) -> bool {
        self.geometry.home.placement() == Placement::Migrating
    }

    /// Whom to ask for `page`; this node where it is the directory and nobody is the home yet.
    pub(super) fn believed_home(&self, page: PageIndex) -> NodeId {
        match self.homes[self.geometry.slot(page)] {
            0 => self.geometry.home_of(page),
            known => NodeId(known - 1),
        }
    }

    /// This node is the home of `page`, which nobody has touched.
    pub(super) fn claim(&mut self, page: PageIndex) {
        if !self.is_home(page) {
            self.clear(page, AWAY);
            self.set(page, HOME);
        }
        let slot = self.geometry.slot(page);
        self.homes[slot] = 0;
        self.stamps[slot] = self.clock;
    }

    /// At the directory: `node` is the home.
    fn note_home(&mut self, page: PageIndex, node: NodeId) {
        let slot = self.geometry.slot(page);
        self.homes[slot] = node.0 + 1;
        self.set(page, AWAY);
    }

    /// `page` goes to `to`.
    pub(super) fn leave_home(&mut self, page: PageIndex, to: NodeId) {
        let slot = self.geometry.slot(page);
        self.homes[slot] = to.0 + 1;
        if self.is_directory(page) {
            self.set(page, AWAY);
        }
    }

    /// `page`, of which this node has a copy as new as the master, is at home here from now on.
    pub(super) fn take_over(&mut self, page: PageIndex, before: NodeId, is_known_to_others: bool, stamp: u64) {
        let slot = self.geometry.slot(page);
        self.clear(page, AWAY | TWIN | FETCHED | CARRIED | BEHIND);
        self.set(page, HOME | SHARED | WRITTEN);
        self.homes[slot] = 0;
        self.clock = self.clock.max(stamp);
        self.stamps[slot] = self.clock;
        self.copies.insert(slot, before);
        if is_known_to_others {
            // Who they are, the old home knows; that they may be any costs notices and nothing else.
            (0..self.geometry.nodes).for_each(|node| self.copies.insert(slot, NodeId(node)));
        }
        self.copies.remove(slot, self.geometry.me);
    }

    /// A request for pages that are not at home here.
    pub(super) fn send_on(&mut self, from: NodeId, wanted: Wanted, effects: &mut Vec<Effect>) {
        let Wanted { demand, range, write, announced, requester, hops } = wanted;
        if self.is_awaited(demand) {
            // The answer to this node's diff may make it the home, and who asks may know that already. What it believes
            // now may be older than what brought the request here, and would send it round in a circle.
            return self.parked.push((from, wanted));
        }
        let slot = self.geometry.slot(demand);
        if self.is_directory(demand) && [0, requester.0 + 1].contains(&self.homes[slot]) {
            // The first to touch it. What it did not touch itself may be another's.
            let range = if announced {
                range.grow(demand, |page| {
                    self.is_directory(page) && !self.is_home(page) && self.homes[self.geometry.slot(page)] == 0
                })
            } else {
                PageRange::one(demand)
            };
            range.pages().for_each(|page| self.note_home(page, requester));
            let message = Message::Copy { demand, range, content: Content::Zero, stamp: self.clock, home: true };
            return effects.push(Effect::Send { to: requester, message });
        }
        if self.homes[slot] == 0 && from == self.geometry.home_of(demand) {
            // The directory says that this is the home; the news of that may be on its way.
            self.claim(demand);
            return self.requested(from, wanted, effects);
        }
        let to = self.believed_home(demand);
        let hops = hops.saturating_add(1).min(HOPS_MAX);
        let range = PageRange::one(demand);
        effects
            .push(Effect::Send { to, message: Message::Request { demand, range, write, announced, requester, hops } });
    }

    /// Nothing that this node stored to `page` is on its way any more: answers who asked meanwhile.
    pub(super) fn answer_parked(&mut self, page: PageIndex, effects: &mut Vec<Effect>) {
        while let Some(index) = self.parked.iter().position(|(_, wanted)| wanted.demand == page) {
            let (from, wanted) = self.parked.remove(index);
            self.requested(from, wanted, effects);
        }
    }

    /// Sends on the diffs of pages that have moved.
    pub(super) fn pass_diffs_on(&mut self, arrived: Arrived, effects: &mut Vec<Effect>) {
        let Arrived { pages, writer, number, hops, carried, stamp } = arrived;
        let hops = hops.saturating_add(1).min(HOPS_MAX);
        let mut rest = self.among(pages, |this, page| !this.is_home(page));
        while let Some(away) = rest {
            let to = self.believed_home(away.first());
            let there = self.among(away, |this, page| this.believed_home(page) == to).expect("the first is");
            rest = away.without(there);
            let carried = carried & there.mask();
            let message = Message::Diff { pages: there, writer, number, hops, carried, stamp };
            effects.push(Effect::Send { to, message });
        }
    }

    /// The program wants `node` to be the home of pages that nobody has touched.
    pub(super) fn place(&mut self, range: PageRange, node: NodeId, effects: &mut Vec<Effect>) {
        let directory = self.geometry.home_of(range.first());
        if directory == self.geometry.me {
            self.place_untouched(range, node);
            return effects.push(Effect::Wake(range));
        }
        effects.push(Effect::Send { to: directory, message: Message::Place { range, home: node } });
    }

    pub(super) fn placed_by(&mut self, from: NodeId, range: PageRange, home: NodeId, effects: &mut Vec<Effect>) {
        if !self.is_directory(range.first()) {
            return violation(from, "a wish for a home at the wrong directory", effects);
        }
        self.place_untouched(range, home);
        effects.push(Effect::Send { to: from, message: Message::Placed { range } });
    }

    fn place_untouched(&mut self, range: PageRange, node: NodeId) {
        for page in range.pages() {
            let is_touched = self.has(page, READABLE | WRITABLE | WRITTEN | SHARED | HOME);
            if is_touched || self.homes[self.geometry.slot(page)] != 0 {
                continue;
            }
            if node == self.geometry.me {
                self.claim(page);
            } else {
                self.note_home(page, node);
            }
        }
    }
}
