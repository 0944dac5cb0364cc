//! The side of the home: answers requests, applies diffs, and keeps copies current where that pays.

use super::{DIRTY, FETCHED, HOME, Hlrc, PIGGYBACKED, Propagation, READABLE, SHARED, TWIN, WRITABLE, WRITTEN};
use crate::coherence::{Content, Effect, Message, violation};
use crate::page::{Access, NodeId, PageIndex, PageRange, PageSet};
use alloc::vec::Vec;

/// A request in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Wanted {
    pub(super) demand: PageIndex,
    pub(super) range: PageRange,
    pub(super) write: bool,
    pub(super) announced: bool,
    pub(super) requester: NodeId,
    pub(super) hops: u16,
}

/// A diff in transit.
#[derive(Clone, Copy)]
pub(super) struct Arrived {
    pub(super) pages: PageSet,
    pub(super) writer: NodeId,
    pub(super) number: u32,
    pub(super) hops: u16,
    pub(super) piggybacked: u64,
    pub(super) stamp: u64,
}

/// A diff that was sent on to copies. Its writer receives the answer when they have it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Relay {
    /// The updates that not all of their receivers have answered.
    updates: Vec<Sent>,
    writer: NodeId,
    answer: Message,
}

/// An update under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sent {
    number: u32,
    pages: PageSet,
    /// The receivers that have not answered.
    waiting: Vec<NodeId>,
}

/// What a home remembers about a page. Bits 0-2: how often a copy was fetched again after it was dropped. Bits 3-6: updates
/// since the last trial without one. Bits 7-8: publications in a row by the same writer. Bits 9-24: that writer, plus one.
pub(super) type Past = u32;

/// After this many fetches of dropped copies, the copies of the page are updated instead.
const REFETCHES_TO_UPDATE: u32 = 3;
/// After this many updates, one change is not sent on, to see whether any node fetches the page again.
const UPDATES_PER_TRIAL: u32 = 15;

fn refetches(past: Past) -> u32 {
    past & 7
}

fn updates(past: Past) -> u32 {
    past >> 3 & 15
}

fn with_refetches(past: Past, refetches: u32) -> Past {
    past & !7 | refetches.min(7)
}

fn with_updates(past: Past, updates: u32) -> Past {
    past & !(15 << 3) | updates.min(15) << 3
}

/// Notes that `writer` published. Returns how often in a row it was the one to do so, this time included; at most 3.
fn note_writer(past: &mut Past, writer: NodeId) -> u32 {
    let same = *past >> 9 & 0xffff == u32::from(writer.0) + 1;
    let times = if same { (*past >> 7 & 3) + 1 } else { 1 }.min(3);
    *past = *past & 0x7f | times << 7 | (u32::from(writer.0) + 1) << 9;
    times
}

/// After this many publications in a row by one node, the page moves there.
const PUBLICATIONS_TO_MOVE: u32 = 3;

impl Hlrc {
    /// A page of which this node is the home is touched here.
    pub(super) fn open_at_home(&mut self, page: PageIndex, write: bool, effects: &mut Vec<Effect>) {
        let range = PageRange::one(page);
        let zero = !self.has(page, WRITTEN);
        self.set(page, WRITTEN);
        if !self.has(page, SHARED) {
            self.set(page, READABLE | WRITABLE);
            return effects.push(Effect::Install { range, access: Access::Write, zero });
        }
        // A page that was closed with stores to it has no twin that matches its copies.
        if self.keeps_home_twin(page) && !self.has(page, TWIN | DIRTY) {
            self.set(page, TWIN);
            effects.push(Effect::KeepTwin(range));
        }
        self.set(page, READABLE);
        effects.push(Effect::Install { range, access: Access::Read, zero });
        if write && !self.geometry.marks {
            self.first_store(page, effects);
            effects.push(Effect::Upgrade(range));
        }
    }

    /// Handles a request for copies.
    pub(super) fn requested(&mut self, from: NodeId, wanted: Wanted, effects: &mut Vec<Effect>) {
        let Wanted { demand, range, requester, .. } = wanted;
        if !self.is_home(demand) {
            return self.send_on(from, wanted, effects);
        }
        let is_written = self.has(demand, WRITTEN);
        let range = range.grow(demand, |page| self.is_home(page) && self.has(page, WRITTEN) == is_written);
        let is_open = |this: &Hlrc, page: PageIndex| this.has(page, WRITABLE) && !this.has(page, DIRTY);
        let mut next = range.first().0;
        while next < range.end() {
            let first = PageIndex(next);
            let opened = is_open(self, first);
            let run = PageRange::around(first, next, range.end()).grow(first, |page| is_open(self, page) == opened);
            next = run.end();
            if opened {
                // From here on this node's stores must be noticed, and the bytes that are sent hold all earlier ones.
                run.pages().for_each(|page| self.clear(page, WRITABLE));
                effects.push(Effect::Downgrade(run));
            }
        }
        for page in range.pages() {
            let slot = self.geometry.slot(page);
            if self.copies.contains(slot, requester) && !self.fresh.contains(slot, requester) {
                self.past[slot] = with_refetches(self.past[slot], refetches(self.past[slot]) + 1);
            }
            self.copies.insert(slot, requester);
            self.set(page, SHARED);
            // A link may read the bytes of a page when they leave, and again when they were lost. A closed page may have
            // been opened and stored to by then, so its bytes are sent from a twin, too.
            if self.keeps_home_twin(page) && is_written && !self.has(page, TWIN | DIRTY) {
                if self.has(page, READABLE) || self.propagation == Propagation::Adaptive {
                    // An earlier copy may lack stores of this node, or hold some that are not published; this one is sent
                    // later.
                    self.fresh.clear(slot);
                }
                self.set(page, TWIN);
                effects.push(Effect::KeepTwin(PageRange::one(page)));
            }
        }
        let content = if is_written { Content::Bytes } else { Content::Zero };
        // Stores of this node that are not published may still change back, and then no update would say so. So if a twin
        // is kept, the twin is sent: the bytes on which the next update builds.
        let has_twin = self.has(demand, TWIN);
        let range = range.grow(demand, |page| self.has(page, TWIN) == has_twin);
        for page in range.pages() {
            let is_open = self.has(page, READABLE | WRITABLE) && self.is_updated(page);
            if has_twin || !is_open {
                self.fresh.insert(self.geometry.slot(page), requester);
            }
        }
        let message = Message::Copy { demand, range, content, stamp: self.clock, home: false };
        effects.push(match has_twin {
            true => Effect::SendTwins { to: requester, message },
            false => Effect::Send { to: requester, message },
        });
    }

    /// Whether this node, as the home of `page`, keeps a twin so that it can send its own stores.
    pub(super) fn keeps_home_twin(&self, page: PageIndex) -> bool {
        debug_assert!(self.is_home(page));
        self.is_updated(page)
    }

    /// Whether changes of `page` are sent to its copies.
    pub(super) fn is_updated(&self, page: PageIndex) -> bool {
        match self.propagation {
            Propagation::Invalidate => false,
            Propagation::Update => true,
            Propagation::Adaptive => refetches(self.past[self.geometry.slot(page)]) >= REFETCHES_TO_UPDATE,
        }
    }

    /// Whether this change of `page` is sent to its copies. All changes except the trials are.
    fn is_updated_now(&mut self, page: PageIndex) -> bool {
        if !self.is_updated(page) {
            return false;
        }
        if self.propagation == Propagation::Update {
            return true;
        }
        let past = &mut self.past[self.geometry.slot(page)];
        if updates(*past) < UPDATES_PER_TRIAL {
            *past = with_updates(*past, updates(*past) + 1);
            return true;
        }
        *past = with_updates(with_refetches(*past, REFETCHES_TO_UPDATE - 1), 0);
        false
    }

    /// This node stored to `pages`, of which it is the home.
    pub(super) fn publish_at_home(&mut self, pages: PageSet, effects: &mut Vec<Effect>) {
        if pages.pages().any(|page| self.has_copies(page)) {
            self.clock += 1;
        }
        // The notice outdates every copy. Until another node fetches the page again, stores here need not be noticed, so the
        // page stays open, and costs nothing in the next publications. A page that may go with the token of a lock, or whose
        // copies get updates, is closed. They are closed together: one call of the kernel for each range.
        let stays_open = |this: &Hlrc, page: PageIndex| {
            this.has(page, READABLE | WRITABLE) && !this.has(page, FETCHED | TWIN) && !this.is_updated(page)
        };
        let open = self.among(pages, |this, page| this.has(page, WRITABLE) && !stays_open(this, page));
        for run in open.into_iter().flat_map(PageSet::runs) {
            effects.push(Effect::Downgrade(run));
        }
        for page in pages.pages() {
            let slot = self.geometry.slot(page);
            if self.has(page, FETCHED) && self.has_copies(page) && !self.is_updated(page) {
                self.note_migratory(page, Some(self.clock));
            }
            self.past[slot] &= 0x7f;
            self.stamps[slot] = self.clock;
            let closed = if stays_open(self, page) { 0 } else { WRITABLE };
            self.clear(page, DIRTY | closed);
        }
        let copied = self.among(pages, Hlrc::has_copies);
        for range in copied.into_iter().flat_map(PageSet::runs) {
            effects.push(Effect::Notice { range, stamp: self.clock });
        }
        // The changes are known only if there was a twin.
        let mut updated: Option<PageSet> = None;
        for page in pages.pages() {
            let slot = self.geometry.slot(page);
            if self.has(page, TWIN) && self.is_updated_now(page) {
                updated = Some(updated.map_or(PageSet::one(page), |set| set.with(page)));
                continue;
            }
            self.fresh.clear(slot);
            if self.is_updated(page) && self.has(page, READABLE) {
                self.set(page, TWIN);
                effects.push(Effect::KeepTwin(PageRange::one(page)));
            } else {
                self.clear(page, TWIN);
            }
        }
        let Some(updated) = updated else { return };
        for Sent { number, pages, waiting } in self.send_updates(updated, self.geometry.me, effects) {
            let awaited = |to| super::writer::Awaited { number, pages, receiver: Some(to) };
            self.awaited.extend(waiting.into_iter().map(awaited));
        }
        // A twin must follow even if nothing of it was sent.
        let is_alone = |page: PageIndex| self.fresh.is_empty_but(self.geometry.slot(page), &[self.geometry.me]);
        let alone = updated.filter(is_alone);
        alone.into_iter().flat_map(PageSet::runs).for_each(|run| effects.push(Effect::KeepTwin(run)));
    }

    /// Sends the stores of `origin` to the nodes whose copies are fresh. Only these may put them into their copies, so
    /// pages that have the same fresh copies go together.
    fn send_updates(&mut self, pages: PageSet, origin: NodeId, effects: &mut Vec<Effect>) -> Vec<Sent> {
        let mut sent: Vec<Sent> = Vec::new();
        for page in pages.pages() {
            let fresh = self.fresh.members(self.geometry.slot(page)).filter(|&node| node != origin);
            let waiting: Vec<NodeId> = fresh.filter(|&node| node != self.geometry.me).collect();
            if waiting.is_empty() {
                continue;
            }
            match sent.iter_mut().find(|sent| sent.waiting == waiting) {
                Some(sent) => sent.pages = sent.pages.with(page),
                None => {
                    let number = self.number();
                    sent.push(Sent { number, pages: PageSet::one(page), waiting });
                }
            }
        }
        for Sent { number, pages, waiting } in &sent {
            let message = Message::Update { pages: *pages, origin, number: *number, stamp: self.clock };
            effects.extend(waiting.iter().map(|&to| Effect::Send { to, message }));
        }
        sent
    }

    /// At the home of pages: the stores of `writer` to them arrived.
    pub(super) fn diff_arrived(&mut self, arrived: Arrived, effects: &mut Vec<Effect>) {
        self.pass_diffs_on(arrived, effects);
        let Arrived { pages, writer, number, .. } = arrived;
        let Some(here) = self.among(pages, Hlrc::is_home) else { return };
        if writer == self.geometry.me {
            return self.own_diff_came_back(here, number, effects);
        }
        effects.push(Effect::Apply { pages: here, twins: self.among(here, |this, page| this.has(page, TWIN)) });
        self.clock += 1;
        let (mut copied, mut current, mut moved) = (0, 0, 0);
        let mut updated: Option<PageSet> = None;
        for page in here.pages() {
            let slot = self.geometry.slot(page);
            let bit = here.bit(page);
            self.set(page, WRITTEN | SHARED | FETCHED);
            self.copies.insert(slot, writer);
            if !self.copies.is_empty_but(slot, &[self.geometry.me, writer]) {
                copied |= bit;
            }
            let is_updating = self.is_updating(writer, page);
            if is_updating {
                // It is not known in which order the update and the diff found the writer's copy. That copy will be dropped
                // when the writer learns of this change from here.
                self.fresh.remove(slot, writer);
                effects.push(Effect::Notice { range: PageRange::one(page), stamp: self.clock });
            }
            let is_as_piggybacked = arrived.piggybacked & bit != 0 && self.stamps[slot] <= arrived.stamp;
            let was_current =
                self.fresh.contains(slot, writer) || is_as_piggybacked && !is_updating && !self.is_updated(page);
            self.stamps[slot] = self.clock;
            if was_current {
                current |= bit;
            }
            if self.is_updated_now(page) {
                updated = Some(updated.map_or(PageSet::one(page), |set| set.with(page)));
            } else {
                self.fresh.clear(slot);
                if was_current {
                    self.fresh.insert(slot, writer);
                }
            }
            let times = note_writer(&mut self.past[slot], writer);
            if self.homes_move() && was_current && self.may_move(page, times, effects) {
                moved |= bit;
            }
        }
        let stamp = self.clock;
        let answer = Message::Diffed { pages: here, number, stamp, copied, current, moved };
        let updates = updated.map_or(Vec::new(), |updated| self.send_updates(updated, writer, effects));
        for page in here.masked(moved).into_iter().flat_map(PageSet::pages) {
            self.hand_over(page, writer);
        }
        if updates.is_empty() {
            return effects.push(Effect::Send { to: writer, message: answer });
        }
        self.relays.push(Relay { updates, writer, answer });
    }

    /// A diff of this node was sent on to this node, because its pages have moved here in the meantime: their bytes are
    /// here.
    fn own_diff_came_back(&mut self, pages: PageSet, number: u32, effects: &mut Vec<Effect>) {
        self.clock += 1;
        let copied = pages.filter(|page| self.has_copies(page)).map_or(0, PageSet::mask);
        let answer = super::writer::Answer { pages, number, stamp: self.clock, copied, current: 0, moved: 0 };
        for page in pages.pages() {
            let slot = self.geometry.slot(page);
            self.fresh.clear(slot);
            self.stamps[slot] = self.clock;
        }
        self.diffed(self.geometry.me, answer, effects);
    }

    /// Whether an update of `page` is on its way to `node`.
    fn is_updating(&self, node: NodeId, page: PageIndex) -> bool {
        let mut own = self.awaited.iter();
        let mut relayed = self.relays.iter().flat_map(|relay| &relay.updates);
        own.any(|awaited| awaited.receiver == Some(node) && awaited.pages.contains(page))
            || relayed.any(|sent| sent.pages.contains(page) && sent.waiting.contains(&node))
    }

    /// Whether any other node may have a copy of `page`.
    pub(super) fn has_copies(&self, page: PageIndex) -> bool {
        !self.copies.is_empty_but(self.geometry.slot(page), &[self.geometry.me])
    }

    /// Whether the page, which one node publishes again and again, moves to that node now. Before that it is closed here,
    /// to see whether this node uses it.
    fn may_move(&mut self, page: PageIndex, times: u32, effects: &mut Vec<Effect>) -> bool {
        let mut updates = self.relays.iter().flat_map(|relay| &relay.updates).map(|sent| sent.pages);
        let mut own = self.awaited.iter().filter(|awaited| awaited.receiver.is_some()).map(|awaited| awaited.pages);
        let is_under_way = updates.any(|pages| pages.contains(page)) || own.any(|pages| pages.contains(page));
        if self.has(page, DIRTY) || times + 1 < PUBLICATIONS_TO_MOVE || self.is_updated(page) || is_under_way {
            return false;
        }
        if self.has(page, READABLE | WRITABLE) {
            if self.geometry.marks {
                // There may be stores that were not looked for yet.
                self.note_dirty(page);
            }
            self.clear(page, READABLE | WRITABLE);
            effects.push(Effect::Revoke(PageRange::one(page)));
            return false;
        }
        times >= PUBLICATIONS_TO_MOVE
    }

    /// A holder of copies has an update, or part of it.
    pub(super) fn updated(&mut self, from: NodeId, pages: PageSet, number: u32, kept: u64, effects: &mut Vec<Effect>) {
        let own = |awaited: &super::writer::Awaited| awaited.number == number && awaited.receiver == Some(from);
        let own = self.awaited.iter().position(own);
        let is_it = |sent: &Sent| sent.number == number && sent.waiting.contains(&from);
        let relay = self
            .relays
            .iter()
            .enumerate()
            .find_map(|(relay, known)| known.updates.iter().position(is_it).map(|update| (relay, update)));
        let of_relay = relay.map(|(relay, update)| self.relays[relay].updates[update].pages);
        if own.map(|index| self.awaited[index].pages).or(of_relay) != Some(pages) {
            return violation(from, "an acknowledgement of what was not sent", effects);
        }
        for page in pages.pages().filter(|&page| pages.bit(page) & kept == 0) {
            self.fresh.remove(self.geometry.slot(page), from);
        }
        if let Some(index) = own {
            self.acknowledge(index, pages);
            return self.go_on_publishing(effects);
        }
        let (relay, update) = relay.expect("one of the two");
        let updates = &mut self.relays[relay].updates;
        updates[update].waiting.retain(|&node| node != from);
        if updates[update].waiting.is_empty() {
            updates.swap_remove(update);
        }
        if updates.is_empty() {
            let Relay { writer, answer, .. } = self.relays.swap_remove(relay);
            effects.push(Effect::Send { to: writer, message: answer });
        }
    }

    /// This node hands over the home of `page`; `to` is the home from now on.
    fn hand_over(&mut self, page: PageIndex, to: NodeId) {
        debug_assert!(!self.has(page, READABLE | WRITABLE | DIRTY));
        let slot = self.geometry.slot(page);
        self.clear(page, HOME | SHARED | TWIN | WRITTEN | FETCHED | PIGGYBACKED);
        self.leave_home(page, to);
        self.copies.clear(slot);
        self.fresh.clear(slot);
        self.past[slot] = 0;
        self.stamps[slot] = self.clock;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coherence::{Coherence, Geometry, Input, Protocol};
    use crate::homes::{Home, Manager};

    /// The home's program may open the page and store to it before the bytes leave, and may then store the old value
    /// again. Its diff would be empty, and the copy would stay wrong.
    #[test]
    fn a_copy_of_a_closed_page_is_sent_from_a_twin() {
        let (home, writer) = (NodeId(0), NodeId(1));
        let geometry = Geometry {
            me: home,
            nodes: 3,
            founders: 3,
            pages: 4,
            shard: 0,
            shards: 1,
            home: Home::Manager(Manager(home)),
            marks: false,
        };
        let protocol: Protocol = "hlrc(update)".parse().expect("a protocol");
        let mut node = protocol.start(geometry);
        let (page, range) = (PageIndex(2), PageRange::one(PageIndex(2)));
        let mut step = |from, message| {
            let mut effects = Vec::new();
            node.step(0, Input::Message { from, message }, &mut effects);
            effects
        };
        step(writer, Message::Diff { pages: PageSet::one(page), writer, number: 0, hops: 0, piggybacked: 0, stamp: 0 });
        let requester = NodeId(2);
        let wanted = Message::Request { demand: page, range, write: false, announced: false, requester, hops: 0 };
        let effects = step(requester, wanted);
        assert_eq!(effects[0], Effect::KeepTwin(range));
        assert!(matches!(effects[1], Effect::SendTwins { to, .. } if to == requester), "{effects:?}");
        assert_eq!(effects.len(), 2);
    }
}
