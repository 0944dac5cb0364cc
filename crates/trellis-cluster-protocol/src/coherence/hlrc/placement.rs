//! Where homes are: fixed, at the first node to touch a page, where the program wants them, or at the node that writes
//! most.
//!
//! The *directory* of a page is the node that the configured home names. If homes are fixed, the directory is the home,
//! unless the program placed the page elsewhere before any node touched it. Otherwise the directory knows the first home,
//! and each home that handed a page over knows the next one, so a request reaches the home by being sent on. A request
//! never returns to a node that it visited: a node that was the home points to a later home. A node that does not know yet
//! that it is the home is waiting for the acknowledgement of a diff, which tells it so, and keeps requests until then.

use super::home::{Arrived, Wanted};
use super::{AWAY, BEHIND, FETCHED, HOME, Hlrc, PIGGYBACKED, READABLE, SHARED, TWIN, WRITABLE, WRITTEN};
use crate::coherence::{Content, Effect, Message, violation};
use crate::homes::{HomeOf, Placement};
use crate::page::{NodeId, PageIndex, PageRange};
use alloc::vec::Vec;

/// The number of hops of a message is counted up to here.
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

    /// The node to ask for `page`. It is this node if this node is the directory and there is no home yet.
    pub(super) fn believed_home(&self, page: PageIndex) -> NodeId {
        match self.homes[self.geometry.slot(page)] {
            0 => self.geometry.home_of(page),
            known => NodeId(known - 1),
        }
    }

    /// Makes this node the home of `page`, which no node has touched.
    pub(super) fn claim(&mut self, page: PageIndex) {
        if !self.is_home(page) {
            self.clear(page, AWAY);
            self.set(page, HOME);
        }
        let slot = self.geometry.slot(page);
        self.homes[slot] = 0;
        self.stamps[slot] = self.clock;
    }

    /// At the directory: notes that `node` is the home.
    fn note_home(&mut self, page: PageIndex, node: NodeId) {
        let slot = self.geometry.slot(page);
        self.homes[slot] = node.0 + 1;
        self.set(page, AWAY);
    }

    /// The home of `page` moves to `to`.
    pub(super) fn leave_home(&mut self, page: PageIndex, to: NodeId) {
        let slot = self.geometry.slot(page);
        self.homes[slot] = to.0 + 1;
        if self.is_directory(page) {
            self.set(page, AWAY);
        }
    }

    /// This node, whose copy of `page` is as new as the master, is its home from now on.
    pub(super) fn take_over(&mut self, page: PageIndex, before: NodeId, is_known_to_others: bool, stamp: u64) {
        let slot = self.geometry.slot(page);
        self.clear(page, AWAY | TWIN | FETCHED | PIGGYBACKED | BEHIND);
        self.set(page, HOME | SHARED | WRITTEN);
        self.homes[slot] = 0;
        self.clock = self.clock.max(stamp);
        self.stamps[slot] = self.clock;
        self.copies.insert(slot, before);
        if is_known_to_others {
            // The old home knows which nodes these are. Assuming that any node may have a copy costs notices and nothing
            // else.
            (0..self.geometry.nodes).for_each(|node| self.copies.insert(slot, NodeId(node)));
        }
        self.copies.remove(slot, self.geometry.me);
    }

    /// Handles a request for pages whose home is not here.
    pub(super) fn send_on(&mut self, from: NodeId, wanted: Wanted, effects: &mut Vec<Effect>) {
        let Wanted { demand, range, write, announced, requester, hops } = wanted;
        if self.is_awaited(demand) {
            // The answer to this node's diff may make it the home, and the requester may already know that. What this node
            // believes now may be older than what brought the request here, and would send the request round in a cycle.
            return self.parked.push((from, wanted));
        }
        let slot = self.geometry.slot(demand);
        if self.is_directory(demand) && [0, requester.0 + 1].contains(&self.homes[slot]) {
            // This is the first node to touch the page. The pages that it did not touch itself may belong to another node.
            let range = if announced || self.homes_move() {
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
            // The directory says that this node is the home; the message that says so may be on its way.
            self.claim(demand);
            return self.requested(from, wanted, effects);
        }
        let to = self.believed_home(demand);
        let hops = hops.saturating_add(1).min(HOPS_MAX);
        let range = PageRange::one(demand);
        effects
            .push(Effect::Send { to, message: Message::Request { demand, range, write, announced, requester, hops } });
    }

    /// No store of this node to `page` is on its way any more: answers the requests that came in the meantime.
    pub(super) fn answer_parked(&mut self, page: PageIndex, effects: &mut Vec<Effect>) {
        while let Some(index) = self.parked.iter().position(|(_, wanted)| wanted.demand == page) {
            let (from, wanted) = self.parked.remove(index);
            self.requested(from, wanted, effects);
        }
    }

    /// Sends on the diffs of pages that have moved.
    pub(super) fn pass_diffs_on(&mut self, arrived: Arrived, effects: &mut Vec<Effect>) {
        let Arrived { pages, writer, number, hops, piggybacked, stamp } = arrived;
        let hops = hops.saturating_add(1).min(HOPS_MAX);
        let mut rest = self.among(pages, |this, page| !this.is_home(page));
        while let Some(away) = rest {
            let to = self.believed_home(away.first());
            let there = self.among(away, |this, page| this.believed_home(page) == to).expect("the first is");
            rest = away.without(there);
            let piggybacked = piggybacked & there.mask();
            let message = Message::Diff { pages: there, writer, number, hops, piggybacked, stamp };
            effects.push(Effect::Send { to, message });
        }
    }

    /// The program wants `node` to be the home of pages that no node has touched.
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
            return violation(from, "a request for a home at the wrong directory", effects);
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
