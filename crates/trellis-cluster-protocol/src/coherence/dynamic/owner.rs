//! The side of `dynamic` that receives requests: it shares pages, gives them away, and passes requests on.
//!
//! Promises: a request is served, kept in the line of its page, or passed on towards the owner. It must never give a page
//! away that a thread of this node was granted and has not used.

use super::{
    AWAITED, Callback, Dynamic, GIVEN, HELD, HOPS_PER_NODE_MAX, OWNER, PENDING, ROOT, Reader, Request, Variation,
    WRITTEN, violation,
};
use crate::coherence::{Coherence, Content, Effect, Message};
use crate::page::{Access, NodeId, PageIndex, PageRange};
use alloc::vec::Vec;

impl Dynamic {
    /// Serves a request, keeps it, or passes it on. A range is split where its pages differ.
    pub(super) fn requested(&mut self, request: Request, effects: &mut Vec<Effect>) {
        if request.from == self.geometry.me || request.hops > self.geometry.nodes * HOPS_PER_NODE_MAX {
            return violation(request.from, "a request that went round in a circle", effects);
        }
        if !request.write {
            return self.load_requested(request, effects);
        }
        if !request.announced {
            return self.page_requested(request, effects);
        }
        let mut next = request.range.first().0;
        while next < request.range.end() {
            let page = PageIndex(next);
            let rest = PageRange::around(page, next, request.range.end());
            let served = if self.is_root(page) && self.next[self.slot(page)] == 0 {
                self.store_requested(request.from, page, rest, effects)
            } else {
                let hint = self.hint(page);
                let alike = |other: &Dynamic, page| {
                    !(other.is_root(page) && other.next[other.slot(page)] == 0) && other.hint(page) == hint
                };
                let run = rest.grow(page, |page| alike(self, page));
                self.pass_on(Request { demand: page, range: run, ..request }, effects);
                run
            };
            next = served.end();
        }
    }

    /// Handles a store to a page whose neighbours are welcome. The neighbours that go with it are pages that no node
    /// has touched, of which the requester has a copy, or that never left this node, their home. Others may be in use
    /// here: a stream of stores that runs past the end of its own part must not strip the neighbour's.
    fn page_requested(&mut self, request: Request, effects: &mut Vec<Effect>) {
        let Request { from, demand, range, .. } = request;
        if !self.is_root(demand) || self.next[self.slot(demand)] != 0 {
            return self.pass_on(Request { range: PageRange::one(demand), ..request }, effects);
        }
        let content = self.content_for(demand, from);
        let is_welcome = |page| {
            self.content_for(page, from) == content
                && match content {
                    Content::Kept => true,
                    Content::Zero => self.access(page) == Access::None,
                    Content::Bytes => !self.has(page, OWNER | GIVEN),
                }
        };
        let welcome = if is_welcome(demand) { range.grow(demand, is_welcome) } else { PageRange::one(demand) };
        self.store_requested(from, demand, welcome, effects);
    }

    /// Handles a store that this root serves or keeps: its requester becomes the next. Returns the pages for which this was
    /// done.
    fn store_requested(
        &mut self,
        from: NodeId,
        page: PageIndex,
        rest: PageRange,
        effects: &mut Vec<Effect>,
    ) -> PageRange {
        let is_simple =
            |this: &Dynamic, page: PageIndex| this.is_free(page) && this.copyset.is_empty_but(this.slot(page), &[from]);
        if !is_simple(self, page) {
            self.set_next(page, from);
            self.serve(page, effects);
            return PageRange::one(page);
        }
        let content = self.content_for(page, from);
        let run = rest.grow(page, |other| {
            is_simple(self, other)
                && self.content_for(other, from) == content
                && self.access(other) == self.access(page)
        });
        for page in run.pages() {
            self.set_next(page, from);
        }
        self.give(page, run, content, effects);
        run
    }

    fn load_requested(&mut self, request: Request, effects: &mut Vec<Effect>) {
        let Request { from, demand, range, hops, .. } = request;
        if !self.is_root(demand) || self.next[self.slot(demand)] != 0 {
            return self.pass_on(request, effects);
        }
        if !self.is_free(demand) {
            if self.has(demand, HELD) {
                effects.push(Effect::Hold(demand));
            }
            return self.readers.push(Reader { from, demand, range, hops });
        }
        self.share(Reader { from, demand, range, hops }, effects);
    }

    /// Gives read copies: event `Read` of the paper.
    fn share(&mut self, reader: Reader, effects: &mut Vec<Effect>) {
        let Reader { from, demand, range, .. } = reader;
        let run = range.grow(demand, |page| {
            self.is_free(page)
                && self.next[self.slot(page)] == 0
                && self.has(page, WRITTEN) == self.has(demand, WRITTEN)
                && !self.copyset.contains(self.slot(page), from)
        });
        let writable = |page: &PageIndex| self.access(*page) == Access::Write;
        if run.pages().any(|page| writable(&page)) {
            // Every page of the range is mapped: a page that was written has a view at its owner.
            effects.push(Effect::Downgrade(run));
        }
        for page in run.pages() {
            let slot = self.slot(page);
            self.access.set(slot, self.access[slot].min(Access::Read));
            self.copyset.insert(slot, from);
            self.patterns.left(slot);
        }
        let content = if self.has(demand, WRITTEN) { Content::Bytes } else { Content::Zero };
        let message = Message::Grant { demand, range: run, write: false, content, sequence: 0 };
        effects.push(Effect::Send { to: from, message });
    }

    /// Goes on with a page that may have become free: readers first, then the next writer.
    pub(super) fn serve(&mut self, page: PageIndex, effects: &mut Vec<Effect>) {
        while self.is_free(page)
            && let Some(index) = self.readers.iter().position(|reader| reader.demand == page)
        {
            let reader = self.readers.remove(index);
            self.share(reader, effects);
        }
        if !self.is_free(page) {
            if self.has(page, HELD) && (self.next[self.slot(page)] != 0 || self.has_reader(page)) {
                effects.push(Effect::Hold(page));
            }
            return;
        }
        if let Some(next) = self.next_of(page) {
            if self.copyset.is_empty_but(self.slot(page), &[next]) {
                let content = self.content_for(page, next);
                self.give(page, PageRange::one(page), content, effects);
            } else {
                self.call_back(page, next, effects);
            }
        }
    }

    /// Calls every copy back except that of `owner`, which will own the page.
    pub(super) fn call_back(&mut self, page: PageIndex, owner: NodeId, effects: &mut Vec<Effect>) {
        let mut awaited = 0;
        for reader in self.copyset.members(self.slot(page)).filter(|&reader| reader != owner) {
            awaited += 1;
            effects.push(Effect::Send { to: reader, message: Message::Invalidate { page, owner } });
        }
        debug_assert!(awaited > 0);
        self.callbacks.push(Callback { page, owner, awaited });
        self.callbacks.sort_unstable();
    }

    pub(super) fn invalidated(&mut self, from: NodeId, page: PageIndex, effects: &mut Vec<Effect>) {
        let slot = self.slot(page);
        let index = self.callbacks.iter().position(|callback| callback.page == page);
        let Some(index) = index.filter(|_| self.copyset.contains(slot, from)) else {
            return violation(from, "an acknowledgement that nobody waits for", effects);
        };
        self.copyset.remove(slot, from);
        self.callbacks[index].awaited -= 1;
        if self.callbacks[index].awaited > 0 {
            return;
        }
        let owner = self.callbacks.remove(index).owner;
        if owner == self.geometry.me {
            // It was this node's own store. A writer that came in the meantime is served once the thread has run on.
            let is_here = self.access(page) == Access::Read;
            self.put_in_force(PageRange::one(page), true, is_here, !self.has(page, WRITTEN), effects);
        }
        self.serve(page, effects);
    }

    /// Gives pages with their ownership to the next writer: events `Write` and `UpgradeNO` of the paper.
    fn give(&mut self, demand: PageIndex, run: PageRange, content: Content, effects: &mut Vec<Effect>) {
        let first = run.first();
        let next = self.next_of(first).expect("somebody is next");
        if self.access(first) != Access::None {
            effects.push(Effect::Revoke(run));
        }
        for page in run.pages() {
            let slot = self.slot(page);
            self.access.set(slot, Access::None);
            self.flags[slot] = self.flags[slot] & !(OWNER | WRITTEN) | GIVEN;
            self.next[slot] = 0;
            self.copyset.clear(slot);
            self.patterns.left(slot);
        }
        let message = Message::Grant { demand, range: run, write: true, content, sequence: 0 };
        effects.push(Effect::Send { to: next, message });
        for page in run.pages().filter(|&page| self.has(page, AWAITED)) {
            // A thread here that waited for the callbacks to end asks the new owner.
            effects.push(Effect::Wake(PageRange::one(page)));
        }
    }

    pub(super) fn pass_on(&mut self, request: Request, effects: &mut Vec<Effect>) {
        let Request { from, demand, range, write, announced, hops } = request;
        let hint = self.hint(demand);
        let is_redirected = self.variation == Variation::Redirect || !write && hops >= self.geometry.nodes;
        if hint == from || hint == self.geometry.me {
            return violation(from, "a request that comes back to its requester", effects);
        }
        if write {
            for page in range.pages() {
                self.set_hint(page, from);
            }
        }
        if !is_redirected {
            let (requester, hops) = (from, hops + 1);
            let message = Message::Request { demand, range, write, announced, requester, hops };
            return effects.push(Effect::Send { to: hint, message });
        }
        let pages = if write { range } else { PageRange::one(demand) };
        for page in pages.pages() {
            effects.push(Effect::Send { to: from, message: Message::Redirect { page, owner: hint } });
        }
    }

    /// Handles an order to give up a read copy. If there is no copy, the grant that the order refers to is still on its
    /// way, and the order waits for it.
    pub(super) fn invalidate(&mut self, from: NodeId, page: PageIndex, owner: NodeId, effects: &mut Vec<Effect>) {
        match self.access(page) {
            Access::Read if self.owns(page) => violation(from, "an invalidation of a page that is owned here", effects),
            Access::Read if self.has(page, HELD) => {
                effects.push(Effect::Hold(page));
                self.deferred.push((from, page, owner));
            }
            Access::Read => {
                let slot = self.slot(page);
                self.access.set(slot, Access::None);
                self.patterns.left(slot);
                if self.next[slot] == 0 {
                    self.set_hint(page, owner);
                }
                effects.push(Effect::Revoke(PageRange::one(page)));
                effects.push(Effect::Send { to: from, message: Message::Invalidated { page } });
            }
            Access::None if self.has(page, PENDING) && !self.has(page, ROOT) => {
                self.deferred.push((from, page, owner));
            }
            _ => violation(from, "an invalidation of a page that is no read copy", effects),
        }
    }

    pub(super) fn retry_deferred(&mut self, page: PageIndex, effects: &mut Vec<Effect>) {
        // An owner calls a page back from all nodes before it passes it on: at most one order waits.
        if let Some(index) = self.deferred.iter().position(|&(_, deferred, _)| deferred == page) {
            let (from, page, owner) = self.deferred.swap_remove(index);
            self.invalidate(from, page, owner, effects);
        }
    }

    /// Handles a node that left. Requests that would have gone to it go to the node that took its pages over and was their
    /// owner after it.
    pub(super) fn gone(&mut self, node: NodeId, successor: NodeId, effects: &mut Vec<Effect>) {
        self.gone.push((node, successor));
        self.gone.sort_unstable();
        for slot in 0..self.flags.len() {
            self.copyset.remove(slot, node);
            if self.next[slot] == node.0 + 1 {
                return violation(node, "nothing: it left while it waited for a page", effects);
            }
            if self.hint_or_home[slot] == node.0 + 1 {
                // The successor's own pointer is already right unless it never owned the page. In that case no pointer
                // mattered.
                self.hint_or_home[slot] = if successor == self.geometry.me { 0 } else { successor.0 + 1 };
            }
        }
    }
}
