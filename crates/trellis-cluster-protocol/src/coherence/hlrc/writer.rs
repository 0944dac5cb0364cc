//! The side of a node that stored to pages: what it publishes, and how it handles the notices of other nodes.

use super::{BEHIND, DEAF, DIRTY, FETCHED, HOME, Hlrc, PENDING, PIGGYBACKED, READABLE, SHARED, TWIN, WANTED, WRITABLE};
use crate::coherence::{Coherence, Effect, Message, violation};
use crate::page::{NodeId, PageIndex, PageRange, PageSet};
use alloc::vec::Vec;

/// A diff or an update of this node that is not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Awaited {
    pub(super) number: u32,
    /// The pages that are not acknowledged yet.
    pub(super) pages: PageSet,
    /// The only node that may acknowledge it, if that is known: the receiver of an update.
    pub(super) receiver: Option<NodeId>,
}

/// A home's answer to a diff.
#[derive(Clone, Copy)]
pub(super) struct Answer {
    pub(super) pages: PageSet,
    pub(super) number: u32,
    pub(super) stamp: u64,
    pub(super) copied: u64,
    pub(super) current: u64,
    pub(super) moved: u64,
}

impl Hlrc {
    /// The runtime found marks: there were stores since the last publication.
    pub(super) fn stored(&mut self, page: PageIndex) {
        if self.is_watched(page) {
            self.set(page, WRITABLE);
            self.note_dirty(page);
        }
    }

    /// Begins a publication, or continues one that no thread waits for any more because its time was over: new stores join
    /// those that have not been sent yet. [`Effect::Published`] comes once, when all of them are at their homes.
    pub(super) fn publish(&mut self, unacknowledged_max: u32, together_max: u32, effects: &mut Vec<Effect>) {
        debug_assert!(self.is_publishing || self.unsent.is_empty(), "what is not sent belongs to a publication");
        self.is_publishing = true;
        self.overlaps = !(self.awaited.is_empty() && self.late.is_empty());
        self.unacknowledged_max = unacknowledged_max.max(1);
        self.together_max = together_max.max(1);
        if !self.dirty.is_empty() {
            self.migratory.clear();
        }
        self.unsent.append(&mut self.dirty);
        // Sorted from the back, because ascending pages form long ranges.
        self.unsent.sort_unstable_by(|one, other| other.cmp(one));
        self.unsent.dedup();
        self.go_on_publishing(effects);
    }

    /// Sends what may be sent, and ends the publication when everything is acknowledged. A page waits while an earlier diff
    /// or update of it is under way, from a publication that took too long: on some links one could overtake the other.
    pub(super) fn go_on_publishing(&mut self, effects: &mut Vec<Effect>) {
        if !self.is_publishing {
            return;
        }
        let mut waiting = Vec::new();
        let waits = |this: &Hlrc, page| {
            let is_under_way = |awaited: &Awaited| awaited.pages.contains(page);
            this.overlaps && (this.awaited.iter().any(is_under_way) || this.late.contains(&page))
        };
        while let Some(&page) = self.unsent.last()
            && self.awaited.iter().map(|awaited| awaited.pages.count()).sum::<u32>() < self.unacknowledged_max
        {
            let home_of = |this: &Hlrc, page| (!this.is_home(page)).then(|| this.believed_home(page));
            let home = home_of(self, page);
            let mut pages = PageSet::one(page);
            self.unsent.pop();
            if !self.has(page, DIRTY) {
                continue;
            }
            if waits(self, page) {
                waiting.push(page);
                continue;
            }
            while let Some(&next) = self.unsent.last()
                && pages.window_holds(next)
                && pages.count() < self.together_max
                && self.has(next, DIRTY)
                && !waits(self, next)
                && home_of(self, next) == home
            {
                pages = pages.with(next);
                self.unsent.pop();
            }
            match home {
                Some(home) => self.send_diff(home, pages, effects),
                None => self.publish_at_home(pages, effects),
            }
        }
        self.unsent.extend(waiting.into_iter().rev());
        if self.unsent.is_empty() && self.awaited.is_empty() && self.late.is_empty() {
            self.is_publishing = false;
            effects.push(Effect::Published);
        }
    }

    /// Sends this node's stores to `pages`, whose home is `home`. Their views no longer allow unnoticed stores.
    fn send_diff(&mut self, home: NodeId, pages: PageSet, effects: &mut Vec<Effect>) {
        for run in pages.runs() {
            // A page that was dropped in the meantime was sent then.
            debug_assert!(run.pages().all(|page| self.has(page, DIRTY) && !self.is_home(page)));
            for page in run.pages() {
                if self.has(page, FETCHED) {
                    self.note_migratory(page, None);
                }
                self.clear(page, DIRTY | WRITABLE);
            }
            effects.push(Effect::Downgrade(run));
        }
        self.send_what_changed(home, pages, effects);
    }

    fn send_what_changed(&mut self, home: NodeId, pages: PageSet, effects: &mut Vec<Effect>) {
        debug_assert_ne!(home, self.geometry.me);
        let number = self.number();
        self.awaited.push(Awaited { number, pages, receiver: None });
        let piggybacked = self.among(pages, |this, page| this.has(page, PIGGYBACKED));
        let stamps = piggybacked.into_iter().flat_map(PageSet::pages).map(|page| self.stamps[self.geometry.slot(page)]);
        let stamp = stamps.min().unwrap_or(0);
        let piggybacked = piggybacked.map_or(0, PageSet::mask);
        let message = Message::Diff { pages, writer: self.geometry.me, number, hops: 0, piggybacked, stamp };
        effects.push(Effect::Send { to: home, message });
    }

    pub(super) fn number(&mut self) -> u32 {
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        number
    }

    /// Whether a diff of `page` is on its way to its home.
    pub(super) fn is_awaited(&self, page: PageIndex) -> bool {
        self.is_under_way(page) || self.late.contains(&page)
    }

    /// The nodes that have not acknowledged what this node sent.
    pub fn awaited_from(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.awaited.iter().map(|awaited| awaited.receiver.unwrap_or_else(|| self.believed_home(awaited.pages.first())))
    }

    fn is_under_way(&self, page: PageIndex) -> bool {
        self.awaited.iter().any(|awaited| awaited.receiver.is_none() && awaited.pages.contains(page))
    }

    /// The home has put a diff of this node into some of its pages.
    pub(super) fn diffed(&mut self, from: NodeId, answer: Answer, effects: &mut Vec<Effect>) {
        let Answer { pages, number, stamp, copied, current, moved } = answer;
        let awaited =
            |awaited: &Awaited| awaited.number == number && awaited.receiver.is_none() && awaited.pages.covers(pages);
        let Some(index) = self.awaited.iter().position(awaited) else {
            return violation(from, "an acknowledgement of what was not sent", effects);
        };
        self.acknowledge(index, pages);
        for run in pages.masked(copied).into_iter().flat_map(PageSet::runs) {
            effects.push(Effect::Notice { range: run, stamp });
        }
        for page in pages.pages() {
            let slot = self.geometry.slot(page);
            if from != self.geometry.me {
                self.homes[slot] = from.0 + 1;
            }
            self.clear(page, PIGGYBACKED);
            if pages.bit(page) & current != 0 && !self.has(page, PENDING | DEAF) {
                self.stamps[slot] = self.stamps[slot].max(stamp);
                self.is_as_published(page, stamp);
            } else if !self.is_home(page) {
                self.set(page, BEHIND);
            }
            if pages.bit(page) & moved != 0 {
                self.take_over(page, from, pages.bit(page) & copied != 0, stamp);
            }
            if let Some(index) = self.late.iter().position(|&late| late == page)
                && !self.is_under_way(page)
            {
                self.late.swap_remove(index);
                self.changed(page, effects);
            }
            if !self.is_awaited(page) {
                if self.has(page, WANTED) {
                    self.clear(page, WANTED);
                    effects.push(Effect::Wake(PageRange::one(page)));
                }
                self.answer_parked(page, effects);
            }
        }
        self.go_on_publishing(effects);
    }

    /// Removes `pages` from what is awaited.
    pub(super) fn acknowledge(&mut self, index: usize, pages: PageSet) {
        match self.awaited[index].pages.without(pages) {
            Some(rest) => self.awaited[index].pages = rest,
            None => {
                self.awaited.swap_remove(index);
            }
        }
    }

    /// A node that released to this node knows that pages were changed at the time `stamp` of their home.
    pub(super) fn noticed(&mut self, range: PageRange, stamp: u64, effects: &mut Vec<Effect>) {
        let first = effects.len();
        for page in range.pages() {
            if self.is_home(page) {
                continue;
            }
            let slot = self.geometry.slot(page);
            if self.has(page, PENDING) {
                self.stamps[slot] = self.stamps[slot].max(stamp);
            } else if self.stamps[slot] < stamp {
                self.revoke(page, effects);
            }
        }
        self.send_what_was_dropped(first, effects);
    }

    fn revoke(&mut self, page: PageIndex, effects: &mut Vec<Effect>) {
        if self.has(page, READABLE | WRITABLE) {
            self.clear(page, READABLE | WRITABLE | DEAF | FETCHED | PIGGYBACKED | BEHIND);
            effects.push(Effect::Revoke(PageRange::one(page)));
        }
    }

    /// The protocol of these pages will be changed: only directories that are their homes keep them open. Another directory
    /// fetches them afterwards, because what it has may be old.
    pub(super) fn close(&mut self, range: PageRange, effects: &mut Vec<Effect>) {
        let first = effects.len();
        for page in range.pages() {
            if !(self.is_directory(page) && self.is_home(page)) {
                self.revoke(page, effects);
            }
        }
        self.send_what_was_dropped(first, effects);
    }

    /// The views of the pages of these effects were just closed: sends the stores to them to their homes.
    fn send_what_was_dropped(&mut self, first: usize, effects: &mut Vec<Effect>) {
        for index in first..effects.len() {
            let Effect::Revoke(dropped) = effects[index] else { continue };
            let page = dropped.first();
            if self.is_home(page) {
                // A home that sends its twin has to know what differs from it.
                if self.geometry.marks && self.has(page, TWIN) && !self.has(page, DIRTY) {
                    effects.push(Effect::Inspect(page));
                }
                continue;
            }
            if self.has(page, DIRTY) {
                // Its entries in the lists are skipped.
                self.clear(page, DIRTY);
                self.changed(page, effects);
            } else if self.geometry.marks {
                // There are marked stores that were not looked for yet: the twin shows them.
                effects.push(Effect::Inspect(page));
            }
        }
    }

    /// A page that was dropped differs from its twin, or was known to differ: sends this node's stores to its home.
    pub(super) fn changed(&mut self, page: PageIndex, effects: &mut Vec<Effect>) {
        if self.is_home(page) {
            // The home moved here in the meantime, and the bytes are here.
            return self.note_dirty(page);
        }
        debug_assert!(self.has(page, TWIN) && !self.has(page, READABLE | WRITABLE));
        if self.is_under_way(page) {
            return self.late.push(page);
        }
        let home = self.believed_home(page);
        self.send_what_changed(home, PageSet::one(page), effects);
    }

    /// The home passes on the stores of another node.
    pub(super) fn update_arrived(
        &mut self,
        from: NodeId,
        pages: PageSet,
        number: u32,
        stamp: u64,
        effects: &mut Vec<Effect>,
    ) {
        for page in pages.pages() {
            if self.has(page, PENDING) {
                // The copy on its way may be older.
                self.set(page, DEAF);
            }
        }
        let takes = |this: &Hlrc, page: PageIndex| {
            this.has(page, READABLE | WRITABLE) && !this.has(page, DEAF | PENDING | HOME | SHARED)
        };
        let kept = self.among(pages, takes);
        if let Some(kept) = kept {
            effects.push(Effect::Apply { pages: kept, twins: self.among(kept, |this, page| this.has(page, TWIN)) });
            for page in kept.pages() {
                let slot = self.geometry.slot(page);
                self.stamps[slot] = self.stamps[slot].max(stamp);
                // The update may have been older than what was piggybacked here.
                self.clear(page, PIGGYBACKED);
            }
        }
        let kept = kept.map_or(0, PageSet::mask);
        effects.push(Effect::Send { to: from, message: Message::Updated { pages, number, kept } });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coherence::{Content, Geometry, Input, Protocol};
    use crate::homes::{FirstTouch, Home, Manager};
    use crate::page::Access;

    /// A publication that took too long is followed by another one of the same page.
    #[test]
    fn two_diffs_of_a_page_are_never_under_way_together() {
        let (me, home) = (NodeId(1), NodeId(0));
        let geometry = Geometry {
            me,
            nodes: 2,
            founders: 2,
            pages: 4,
            shard: 0,
            shards: 1,
            home: Home::Manager(Manager(home)),
            marks: false,
        };
        let protocol: Protocol = "hlrc(invalidate)".parse().expect("a protocol");
        let mut node = protocol.start(geometry);
        let (page, range) = (PageIndex(2), PageRange::one(PageIndex(2)));
        let mut step = |input| {
            let mut effects = Vec::new();
            node.step(0, input, &mut effects);
            let sent =
                effects.iter().filter(|effect| matches!(effect, Effect::Send { message: Message::Diff { .. }, .. }));
            (sent.count(), effects.contains(&Effect::Published))
        };
        let store = Input::Fault { page, write: true, wanted: range };
        let publish = Input::Publish { unacknowledged_max: 64, together_max: 64 };
        let from_home = |message| Input::Message { from: home, message };
        let diffed = |number| {
            let pages = PageSet::one(page);
            from_home(Message::Diffed { pages, number, stamp: 1, copied: 0, current: pages.mask(), moved: 0 })
        };
        step(store);
        step(from_home(Message::Copy { demand: page, range, content: Content::Zero, stamp: 0, home: false }));
        step(store);
        assert_eq!(step(publish), (1, false));
        step(store);
        assert_eq!(step(publish), (0, false), "the first diff is under way");
        assert_eq!(step(diffed(0)), (1, false));
        assert_eq!(step(diffed(1)), (0, true));
    }

    #[test]
    fn only_a_home_keeps_a_page_open_for_its_next_protocol() {
        let (me, other) = (NodeId(0), NodeId(1));
        let (page, range) = (PageIndex(2), PageRange::one(PageIndex(2)));
        let closes = |home, inputs: &[Input]| {
            let geometry = Geometry { me, nodes: 2, founders: 2, pages: 4, shard: 0, shards: 1, home, marks: false };
            let mut node = "hlrc(invalidate)".parse::<Protocol>().expect("a protocol").start(geometry);
            let mut effects = Vec::new();
            inputs.iter().for_each(|input| node.step(0, *input, &mut effects));
            assert_eq!(node.access(page), Access::Read);
            effects.clear();
            node.step(0, Input::Close { range }, &mut effects);
            effects.contains(&Effect::Revoke(range))
        };
        let load = Input::Fault { page, write: false, wanted: range };
        let from_other = |message| Input::Message { from: other, message };
        let request =
            Message::Request { demand: page, range, write: true, announced: false, requester: other, hops: 0 };
        let copy = Message::Copy { demand: page, range, content: Content::Bytes, stamp: 0, home: false };
        // The directory is the home, and another node has a copy; or another node was the first to touch the page.
        assert!(!closes(Home::Manager(Manager(me)), &[from_other(request), load]));
        assert!(closes(Home::FirstTouch(FirstTouch), &[from_other(request), load, from_other(copy)]));
    }
}
