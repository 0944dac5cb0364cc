//! The side of `dynamic` that requests pages: faults, announcements and guesses, and the grants that answer them.
//!
//! Promises: a thread that waits is woken by a grant, or by a refusal after which it asks again. It must never decide who
//! gets a page: the owner does.

use super::{
    AWAITED, Dynamic, Guess, HELD, LOAD_AWAITED, Load, OWNER, PENDING, ROOT, Reader, Request, RequestKind,
    STORE_AWAITED, Variation, WRITTEN, needed, violation,
};
use crate::coherence::{Choice, Coherence, Content, Effect, Message};
use crate::page::{Access, NodeId, PageIndex, PageRange};
use alloc::vec::Vec;

impl Dynamic {
    pub(super) fn fault(&mut self, page: PageIndex, write: bool, wanted: PageRange, effects: &mut Vec<Effect>) {
        if self.access(page) >= needed(write) {
            // The request of another thread was faster.
            return effects.push(Effect::Wake(PageRange::one(page)));
        }
        self.set(page, if write { STORE_AWAITED } else { LOAD_AWAITED });
        if write {
            self.patterns.stored(self.slot(page));
        }
        if !self.has(page, PENDING) && !self.is_occupied(page) {
            self.ask(page, wanted, if write { RequestKind::Store } else { RequestKind::Load }, effects);
        }
    }

    pub(super) fn prefetch(&mut self, wanted: PageRange, write: bool, announced: bool, effects: &mut Vec<Effect>) {
        let kind_of = |this: &Dynamic, page| match (write, announced) {
            (true, true) => RequestKind::AnnouncedStore,
            (true, false) if this.owns(page) => RequestKind::Store,
            // A guess at stores would strip other writers. A copy does not, unless the page moves with its loads.
            _ => RequestKind::Load,
        };
        let is_next = |this: &Dynamic, page| this.is_wanting(page, kind_of(this, page) != RequestKind::Load);
        let mut next = wanted.first().0;
        while let Some(page) = (next..wanted.end()).map(PageIndex).find(|&page| is_next(self, page)) {
            let rest = PageRange::around(page, page.0, wanted.end());
            let kind = kind_of(self, page);
            next = self.ask(page, rest, kind, effects).end();
        }
    }

    /// Whether a request for `page` could be made now and would achieve something.
    fn is_wanting(&self, page: PageIndex, write: bool) -> bool {
        self.access(page) < needed(write) && !self.has(page, PENDING) && !self.is_occupied(page)
    }

    /// Whether this node is the owner and is about to give the page away or is calling copies back. Threads here that want
    /// the page wait for that.
    fn is_occupied(&self, page: PageIndex) -> bool {
        self.owns(page) && (self.next[self.slot(page)] != 0 || self.is_called_back(page))
    }

    /// Requests `demand`, and those neighbours in `wanted` that are in the same state here. Returns the range that was
    /// requested.
    fn ask(&mut self, demand: PageIndex, wanted: PageRange, kind: RequestKind, effects: &mut Vec<Effect>) -> PageRange {
        if self.owns(demand) {
            return self.ask_myself(demand, wanted, kind != RequestKind::Load, effects);
        }
        let (access, hint) = (self.access(demand), self.hint(demand));
        let is_migratory = |page| self.patterns.is_migratory(self.slot(page));
        let moves_with_loads = kind == RequestKind::Load && is_migratory(demand);
        let is_demand_unknown = self.is_unknown(demand);
        let range = wanted.grow(demand, |page| {
            self.access(page) == access
                && !self.owns(page)
                && !self.has(page, PENDING | HELD)
                && self.hint(page) == hint
                && match kind {
                    RequestKind::Load => is_migratory(page) == moves_with_loads,
                    RequestKind::Store => access == Access::Read || is_demand_unknown && self.is_unknown(page),
                    RequestKind::AnnouncedStore => true,
                }
        });
        let write = moves_with_loads || kind != RequestKind::Load;
        for page in range.pages() {
            self.set(page, if write { PENDING | ROOT } else { PENDING });
            if kind == RequestKind::Load {
                self.patterns.asked_for_loads(self.slot(page));
            }
        }
        if !write {
            self.loads.push(Load { demand, range, redirects: 0 });
            self.loads.sort_unstable();
        } else if kind == RequestKind::Store && range.count() > 1 {
            self.guesses.push(Guess { demand, range, asked: hint });
            self.guesses.sort_unstable();
        }
        if moves_with_loads {
            effects.push(Effect::Chose { range, choice: Choice::MovesWithLoad });
        }
        let announced = write && kind != RequestKind::Store;
        let requester = self.geometry.me;
        let message = Message::Request { demand, range, write, announced, requester, hops: 0 };
        effects.push(Effect::Send { to: hint, message });
        range
    }

    /// The owner's own access: event `UpgradeO` of the paper, or the first touch of a page at its home.
    fn ask_myself(
        &mut self,
        demand: PageIndex,
        wanted: PageRange,
        write: bool,
        effects: &mut Vec<Effect>,
    ) -> PageRange {
        let is_alone = self.copyset.is_empty_but(self.slot(demand), &[]);
        if write && !is_alone {
            self.call_back(demand, self.geometry.me, effects);
            return PageRange::one(demand);
        }
        let access = self.access(demand);
        let range = wanted.grow(demand, |page| {
            self.owns(page)
                && self.access(page) == access
                && !self.has(page, PENDING | HELD)
                && !self.is_occupied(page)
                && self.has(page, WRITTEN) == self.has(demand, WRITTEN)
                && self.copyset.is_empty_but(self.slot(page), &[]) == is_alone
        });
        // No other node holds the page: the write that often follows a read need not fault again.
        self.put_in_force(range, write || is_alone, access == Access::Read, !self.has(demand, WRITTEN), effects);
        range
    }

    /// Opens pages that came with the right to store. Where the first store must be noticed, it opens them for loads.
    fn put_owned_in_force(&mut self, range: PageRange, content: Content, effects: &mut Vec<Effect>) {
        // Where another writer is waiting, there would be no time for a fault of its own.
        let for_stores = |this: &Dynamic, page| {
            this.has(page, STORE_AWAITED) || this.next_of(page).is_some() || !this.patterns.is_checked(this.slot(page))
        };
        let (is_here, is_zero) = (content == Content::Kept, content == Content::Zero);
        let mut next = range.first().0;
        while next < range.end() {
            let first = PageIndex(next);
            let write = for_stores(self, first);
            let run = PageRange::around(first, next, range.end()).grow(first, |page| for_stores(self, page) == write);
            if !write && !is_zero {
                run.pages().for_each(|page| self.set(page, WRITTEN));
            }
            self.put_in_force(run, write, is_here, is_zero, effects);
            next = run.end();
        }
    }

    /// Changes the view of pages that this node owns or was given, and wakes the threads that wait for them.
    pub(super) fn put_in_force(
        &mut self,
        range: PageRange,
        write: bool,
        is_here: bool,
        zero: bool,
        effects: &mut Vec<Effect>,
    ) {
        let access = needed(write);
        let (known, satisfied) = if write { (WRITTEN, AWAITED) } else { (0, LOAD_AWAITED) };
        for page in range.pages() {
            let slot = self.slot(page);
            self.access.set(slot, access);
            self.flags[slot] |= known;
            if self.flags[slot] & satisfied != 0 {
                self.flags[slot] |= HELD;
            }
            self.flags[slot] &= !(PENDING | ROOT | AWAITED);
            if write {
                self.patterns.opened_for_stores(slot);
            }
        }
        effects.push(match is_here {
            true => Effect::Upgrade(range),
            false => Effect::Install { range, access, zero },
        });
        effects.push(Effect::Wake(range));
    }

    pub(super) fn granted(&mut self, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        let Message::Grant { demand, range, write, content, .. } = message else {
            unreachable!("only called with a grant");
        };
        let is_here = content == Content::Kept;
        let expected = if is_here { Access::Read } else { Access::None };
        let asked = if write { PENDING | ROOT } else { PENDING };
        let fits = |page| self.access(page) == expected && self.flags[self.slot(page)] & (PENDING | ROOT) == asked;
        if is_here && !write || !range.pages().all(fits) {
            return violation(from, "a grant that does not fit the request", effects);
        }
        if write {
            for page in range.pages() {
                self.set(page, OWNER);
            }
            if let Some(index) = self.guesses.iter().position(|guess| guess.demand == demand) {
                let guess = self.guesses.remove(index);
                self.let_go_of_rest(guess.range, range, effects);
                guess.range.pages().filter(|&page| !range.contains(page)).for_each(|page| {
                    self.pass_queue_on(page, guess.asked, effects);
                });
            }
            self.put_owned_in_force(range, content, effects);
        } else {
            let Some(index) = self.loads.iter().position(|load| load.demand == demand && load.range.covers(range))
            else {
                return violation(from, "a grant that nobody asked for", effects);
            };
            let load = self.loads.remove(index);
            self.let_go_of_rest(load.range, range, effects);
            for page in range.pages() {
                self.set_hint(page, from);
            }
            self.put_in_force(range, false, false, content == Content::Zero, effects);
        }
        for page in range.pages() {
            self.retry_deferred(page, effects);
            self.serve(page, effects);
        }
    }

    /// The pages of `asked` that are not in `given` did not come. A thread that waits for one of them requests it by
    /// itself.
    fn let_go_of_rest(&mut self, asked: PageRange, given: PageRange, effects: &mut Vec<Effect>) {
        for page in asked.pages().filter(|&page| !given.contains(page)) {
            let awaited = self.has(page, AWAITED);
            self.clear(page, PENDING | ROOT | AWAITED);
            if self.access(page) == Access::None {
                self.patterns.left(self.slot(page));
            }
            if awaited {
                effects.push(Effect::Wake(PageRange::one(page)));
            }
        }
    }

    /// This node is no root of the page after all: it passes the requests that it kept on to the node that it asked.
    fn pass_queue_on(&mut self, page: PageIndex, asked: NodeId, effects: &mut Vec<Effect>) {
        let slot = self.slot(page);
        let next = self.next_of(page);
        if next.is_none() && !self.has_reader(page) {
            return;
        }
        self.next[slot] = 0;
        // It has not left: a node leaves only when every page is taken over that others may ask it for, and this node's
        // requests are answered before that.
        self.set_hint(page, asked);
        let range = PageRange::one(page);
        let request = |from, write, hops| Request { from, demand: page, range, write, announced: false, hops };
        while let Some(index) = self.readers.iter().position(|reader| reader.demand == page) {
            let Reader { from, hops, .. } = self.readers.remove(index);
            self.pass_on(request(from, false, hops), effects);
        }
        if let Some(next) = next {
            // A writer's path ends in the line, however often it was passed on before.
            self.pass_on(request(next, true, 1), effects);
        }
    }

    pub(super) fn redirected(&mut self, from: NodeId, page: PageIndex, owner: NodeId, effects: &mut Vec<Effect>) {
        let is_write = self.has(page, ROOT);
        let load = self.loads.iter().position(|load| load.demand == page);
        // A node that took a page over and no longer owns it knows more than a node that still names the one that left.
        let owner = if self.took_over_from(owner) { self.hint(page) } else { self.in_place_of(owner) };
        if owner == self.geometry.me || !self.has(page, PENDING) || (!is_write && load.is_none()) {
            return violation(from, "a redirection that nobody waits for", effects);
        }
        let requester = self.geometry.me;
        let mut message = Message::Request {
            demand: page,
            range: PageRange::one(page),
            write: true,
            announced: false,
            requester,
            hops: 1,
        };
        if let Some(index) = load.filter(|_| !is_write) {
            self.loads[index].redirects += 1;
            let load = self.loads[index];
            if load.redirects >= self.redirects_max() {
                // The request was passed around for long enough: as a writer it gets a place in the line.
                self.loads.remove(index);
                self.let_go_of_rest(load.range, PageRange::one(page), effects);
                self.set(page, ROOT);
            } else {
                let (range, hops) = (load.range, load.redirects);
                message = Message::Request { demand: page, range, write: false, announced: false, requester, hops };
            }
        }
        effects.push(Effect::Send { to: owner, message });
    }

    /// How often a load may be redirected. With `forward` it was passed around before that, so once is enough.
    fn redirects_max(&self) -> u16 {
        match self.variation {
            Variation::Forward | Variation::Migratory => 1,
            Variation::Redirect => self.geometry.nodes,
        }
    }

    pub(super) fn resumed(&mut self, page: PageIndex, effects: &mut Vec<Effect>) {
        if self.has(page, HELD) {
            self.clear(page, HELD);
            self.retry_deferred(page, effects);
            self.serve(page, effects);
        }
    }
}
