//! `migrate`: one copy of each page, which moves to the node that touches it (the migration algorithm of Stumm and Zhou
//! 1990, §3; also "single reader, single writer").
//!
//! The home of a page knows its holder and orders one transfer at a time; requests that come in the meantime queue there. A
//! load moves a page as a store does. There is no copyset and no invalidation, so this is the smallest protocol that keeps
//! the contract. It is a baseline for measurements, suits data that one node uses at a time, and is the worked example of
//! `docs/guides/add-a-protocol.md`.

use super::{Coherence, Content, Effect, Geometry, Input, Message, violation};
use crate::Nanoseconds;
use crate::page::{Access, NodeId, PageIndex, PageRange};
use alloc::vec;
use alloc::vec::Vec;

/// One shard of the protocol at one node. See the documentation of this module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Migrate {
    geometry: Geometry,
    flags: Vec<u8>,
    /// At the home: the holder of the page, plus one; zero stands for the home itself.
    holder_or_home: Vec<u16>,
    /// At the home: requests that wait for a transfer, in the order of their arrival.
    queue: Vec<(NodeId, PageIndex)>,
    /// At a holder: transfers that were ordered before the thread that waited for the page had run on.
    ordered: Vec<(NodeId, PageIndex)>,
}

/// The page is here; its view allows every access.
const HERE: u8 = 1;
/// A request of this node for the page is under way.
const PENDING: u8 = 2;
/// A thread waits for the page that is under way: the page is held for it.
const AWAITED: u8 = 4;
/// A thread of this node was granted the page and has not run on yet.
const HELD: u8 = 8;
/// At the home: a transfer of the page is under way.
const MOVING: u8 = 16;

impl Coherence for Migrate {
    fn step(&mut self, _now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Fault { page, .. } => self.ask(page, true, effects),
            Input::Prefetch { wanted, announced: true, .. } => {
                wanted.pages().for_each(|page| self.ask(page, false, effects));
            }
            // A guess would take the only copy away from the node that uses it.
            Input::Prefetch { .. } => {}
            Input::Message { from, message } => self.message(from, message, effects),
            Input::Resumed { page } => self.resumed(page, effects),
            Input::Gone { .. } | Input::Alarm { .. } | Input::Lock { .. } | Input::Unlock { .. } => {}
            release_consistency_only!() => {}
        }
    }

    fn access(&self, page: PageIndex) -> Access {
        if self.has(page, HERE) { Access::Write } else { Access::None }
    }

    fn is_pending(&self, page: PageIndex) -> bool {
        self.has(page, PENDING)
    }

    fn owns(&self, page: PageIndex) -> bool {
        self.has(page, HERE)
    }

    fn leaves_behind(&self, page: PageIndex) -> bool {
        self.has(page, HERE)
    }

    fn is_untouched(&self, page: PageIndex) -> bool {
        let slot = self.geometry.slot(page);
        self.is_home(page) && self.flags[slot] == 0 && self.holder_or_home[slot] == 0
    }

    fn release(&mut self, page: PageIndex) {
        let slot = self.geometry.slot(page);
        self.flags[slot] = 0;
        self.holder_or_home[slot] = 0;
    }

    fn adopt(&mut self, page: PageIndex) {
        self.set(page, HERE);
    }
}

impl Migrate {
    /// One shard for one node. Every page is at its home and zero.
    pub fn new(geometry: Geometry) -> Migrate {
        let slots = geometry.slots();
        Migrate {
            geometry,
            flags: vec![0; slots],
            holder_or_home: vec![0; slots],
            queue: Vec::with_capacity(64),
            ordered: Vec::with_capacity(64),
        }
    }

    fn ask(&mut self, page: PageIndex, awaited: bool, effects: &mut Vec<Effect>) {
        if self.has(page, HERE) {
            return effects.push(Effect::Wake(PageRange::one(page)));
        }
        let is_new = !self.has(page, PENDING);
        self.set(page, if awaited { PENDING | AWAITED } else { PENDING });
        if !is_new {
            return;
        }
        if self.is_home(page) {
            self.requested(self.geometry.me, page, effects);
        } else {
            let (range, requester) = (PageRange::one(page), self.geometry.me);
            let message =
                Message::Request { demand: page, range, write: true, announced: !awaited, requester, hops: 0 };
            effects.push(Effect::Send { to: self.geometry.home_of(page), message });
        }
    }

    fn message(&mut self, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        match message {
            Message::Request { demand, requester, .. } if self.is_home(demand) && requester == from => {
                self.requested(from, demand, effects);
            }
            Message::Forward { demand, requester, .. } if from == self.geometry.home_of(demand) => {
                self.ordered_to(requester, demand, effects);
            }
            Message::Grant { demand, content, .. } if self.has(demand, PENDING) => {
                self.granted(demand, content, effects);
            }
            Message::Confirm { demand, .. } if self.is_home(demand) && self.has(demand, MOVING) => {
                self.moved(from, demand, effects);
            }
            _ => violation(from, "a message that does not fit the page's state", effects),
        }
    }

    /// At the home: `to` wants the page.
    fn requested(&mut self, to: NodeId, page: PageIndex, effects: &mut Vec<Effect>) {
        if self.has(page, HELD | MOVING) {
            if self.has(page, HELD) {
                effects.push(Effect::Hold(page));
            }
            return self.queue.push((to, page));
        }
        let me = self.geometry.me;
        match self.holder(page) {
            holder if holder != me => {
                self.set(page, MOVING);
                let (range, write, sequence) = (PageRange::one(page), true, 0);
                let message = Message::Forward { demand: page, range, write, requester: to, after: 0, sequence };
                effects.push(Effect::Send { to: holder, message });
            }
            // No node has touched it: if it were here, no thread here would request it.
            _ if to == me => self.granted(page, Content::Zero, effects),
            _ => {
                self.set(page, MOVING);
                self.give(to, page, effects);
            }
        }
    }

    /// At the holder: the home has named the next holder.
    fn ordered_to(&mut self, to: NodeId, page: PageIndex, effects: &mut Vec<Effect>) {
        if !self.has(page, HERE) || to == self.geometry.me {
            return violation(self.geometry.home_of(page), "an order to give a page that is not here", effects);
        }
        if self.has(page, HELD) {
            effects.push(Effect::Hold(page));
            return self.ordered.push((to, page));
        }
        self.give(to, page, effects);
    }

    fn give(&mut self, to: NodeId, page: PageIndex, effects: &mut Vec<Effect>) {
        let range = PageRange::one(page);
        let is_here = self.has(page, HERE);
        if is_here {
            self.clear(page, HERE);
            effects.push(Effect::Revoke(range));
        }
        // A page that is at its home without being mapped there has never been touched.
        let content = if is_here { Content::Bytes } else { Content::Zero };
        let message = Message::Grant { demand: page, range, write: true, content, sequence: 0 };
        effects.push(Effect::Send { to, message });
    }

    fn granted(&mut self, page: PageIndex, content: Content, effects: &mut Vec<Effect>) {
        let range = PageRange::one(page);
        let held = if self.has(page, AWAITED) { HELD } else { 0 };
        self.clear(page, PENDING | AWAITED);
        self.set(page, HERE | held);
        effects.push(Effect::Install { range, access: Access::Write, zero: content == Content::Zero });
        effects.push(Effect::Wake(range));
        if !self.is_home(page) {
            let message = Message::Confirm { demand: page, range };
            effects.push(Effect::Send { to: self.geometry.home_of(page), message });
        } else {
            self.moved(self.geometry.me, page, effects);
        }
    }

    /// At the home: the page has arrived where it was sent.
    fn moved(&mut self, holder: NodeId, page: PageIndex, effects: &mut Vec<Effect>) {
        self.clear(page, MOVING);
        let slot = self.geometry.slot(page);
        self.holder_or_home[slot] = if holder == self.geometry.me { 0 } else { holder.0 + 1 };
        self.serve_next(page, effects);
    }

    fn resumed(&mut self, page: PageIndex, effects: &mut Vec<Effect>) {
        if !self.has(page, HELD) {
            return;
        }
        self.clear(page, HELD);
        if let Some(index) = self.ordered.iter().position(|&(_, ordered)| ordered == page) {
            let (to, _) = self.ordered.remove(index);
            self.give(to, page, effects);
        }
        self.serve_next(page, effects);
    }

    fn serve_next(&mut self, page: PageIndex, effects: &mut Vec<Effect>) {
        let waiting = self.queue.iter().position(|&(_, wanted)| wanted == page);
        match waiting {
            Some(_) if self.has(page, HELD) => effects.push(Effect::Hold(page)),
            Some(index) if !self.has(page, MOVING) => {
                let (to, _) = self.queue.remove(index);
                self.requested(to, page, effects);
            }
            _ => {}
        }
    }

    fn is_home(&self, page: PageIndex) -> bool {
        self.geometry.home_of(page) == self.geometry.me
    }

    fn holder(&self, page: PageIndex) -> NodeId {
        match self.holder_or_home[self.geometry.slot(page)] {
            0 => self.geometry.me,
            holder => NodeId(holder - 1),
        }
    }

    fn has(&self, page: PageIndex, flag: u8) -> bool {
        self.flags[self.geometry.slot(page)] & flag != 0
    }

    fn set(&mut self, page: PageIndex, flag: u8) {
        let slot = self.geometry.slot(page);
        self.flags[slot] |= flag;
    }

    fn clear(&mut self, page: PageIndex, flag: u8) {
        let slot = self.geometry.slot(page);
        self.flags[slot] &= !flag;
    }
}
