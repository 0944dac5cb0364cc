//! Release consistency on a whole node: what it does before it releases something and after it acquired something.
//!
//! A publication begins ([`Consistency::begin`]), each shard owes answers to it ([`Consistency::owes`]) and gives them
//! ([`Consistency::published`]), and it ends ([`Consistency::end`]), also if it was waited for too long: in that case the node
//! releases nothing. [`super::releases`] carries this out over all shards. Every message that releases something carries what its
//! receiver may not know ([`Intervals::append_notices`]). These messages are sent in the order in which the notices were
//! appended, because notices depend on earlier ones.
//!
//! Promises: a release follows only after every store that was made before it is at its home, and it belongs to an
//! interval that has ended. A publication that took too long is finished by the next one. Publications follow one
//! another. It must never say that a publication is over while a shard owes an answer to it.

use super::Knowledge;
use crate::coherence::hlrc::intervals::{Intervals, Notice};
use crate::coherence::{Coherence, Input};
use crate::page::{NodeId, PageIndex, PageRange};
use alloc::vec::Vec;

/// Bytes of pages that a node has sent to homes and that are not acknowledged: several times as many as a link's queue
/// holds, and enough to keep it busy.
const UNACKNOWLEDGED_BYTES_MAX: usize = 8 << 20;
/// Bytes of pages whose diffs go together in one message.
const TOGETHER_BYTES_MAX: usize = 256 << 10;
/// Pages that go with the token of a lock, and their bytes: as much as a thread is likely to touch under one lock. The
/// token must not wait long for them.
const PIGGYBACKED_PAGES_MAX: usize = 4;
const PIGGYBACKED_BYTES_MAX: usize = 16 << 10;

/// The sizes of a publication, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PublicationLimits {
    /// The maximum number of pages of a shard that were sent to homes and are not acknowledged.
    pub unacknowledged_pages_max: u32,
    /// The maximum number of pages whose diffs are sent together.
    pub together_pages_max: u32,
}

impl PublicationLimits {
    /// For a node with pages of `page_bytes` in `shards` shards.
    pub fn of(page_bytes: usize, shards: usize) -> PublicationLimits {
        PublicationLimits {
            unacknowledged_pages_max: (UNACKNOWLEDGED_BYTES_MAX / page_bytes / shards).max(1) as u32,
            together_pages_max: (TOGETHER_BYTES_MAX / page_bytes).max(1) as u32,
        }
    }
}

/// The pages that go with the token of a lock, from all shards of a node: at most as many as a thread is likely to touch
/// under one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piggybacking {
    to: NodeId,
    pages_left: u32,
}

impl Piggybacking {
    /// Before the token goes to `to`. Nothing goes with it once the protocol of pages has changed, because the two nodes may
    /// not have the same protocol yet.
    pub fn new(to: NodeId, page_bytes: usize, has_changed_protocols: bool) -> Piggybacking {
        let pages_max = PIGGYBACKED_PAGES_MAX.min(PIGGYBACKED_BYTES_MAX / page_bytes) as u32;
        Piggybacking { to, pages_left: if has_changed_protocols { 0 } else { pages_max } }
    }

    /// Whether enough pages go already, or none may: no other shard need be looked at.
    pub fn is_over(&self) -> bool {
        self.pages_left == 0
    }

    /// The input of a shard's protocol; `None` if it has nothing to send, or enough pages go already. The caller reports the
    /// pages that were sent ([`Piggybacking::sent`]).
    pub fn of(&self, protocol: &impl Coherence) -> Option<Input> {
        let goes_on = !self.is_over() && protocol.has_migratory();
        goes_on.then_some(Input::Piggyback { to: self.to, pages_max: self.pages_left })
    }

    /// A shard sent so many pages.
    pub fn sent(&mut self, pages: u32) {
        self.pages_left = self.pages_left.saturating_sub(pages);
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Consistency {
    /// The releases that this node knows of. [`crate::coherence::Effect::Notice`] is noted there.
    pub knowledge: Knowledge,
    pages: u32,
    /// The thread that waits for the publication, if one is under way.
    publisher: Option<u32>,
    /// The answers that shards owe to publications, including one that took too long, and one more until all shards of
    /// the current one have begun.
    owed: u32,
}

impl Consistency {
    /// Nothing has been published in a region of `pages` pages.
    pub fn new(me: NodeId, nodes: u16, pages: u32, is_ordered: bool, early_max: usize) -> Consistency {
        let knowledge = Knowledge::new(Intervals::new(me, nodes, pages, is_ordered), early_max);
        Consistency { knowledge, pages, publisher: None, owed: 0 }
    }

    /// A publication begins; thread `publisher` will wait for it.
    pub fn begin(&mut self, publisher: u32) {
        debug_assert!(self.publisher.is_none(), "publications follow one another");
        self.publisher = Some(publisher);
        self.owed += 1;
    }

    /// A shard owes `count` more answers from now on ([`super::Shard::publish`]).
    pub fn owes(&mut self, count: u32) {
        self.owed += count;
    }

    /// A shard that owed an answer has answered ([`crate::coherence::Effect::Published`]), or all shards have begun.
    /// Returns the publisher if the publication is over.
    pub fn published(&mut self) -> Option<u32> {
        debug_assert!(self.owed > 0, "an answer that no shard owed");
        self.owed -= 1;
        if self.owed == 0 { self.publisher } else { None }
    }

    /// The publisher waits no longer. The interval to which the published pages belong ends now.
    pub fn end(&mut self) {
        self.publisher = None;
        self.knowledge.intervals.close();
    }

    /// The notices ([`crate::coherence::Input::Notice`]) that drop every copy which is older than what this node has
    /// acquired. They are applied before the acquire ends. `None` if there are none.
    pub fn refresh(&mut self) -> Option<Refreshing> {
        if !self.knowledge.intervals.has_unapplied() {
            return None;
        }
        let mut notices = Vec::new();
        let any_page = self.knowledge.intervals.take_unapplied(&mut notices);
        Some(Refreshing { all: if any_page { 0..self.pages } else { 0..0 }, notices: notices.into_iter() })
    }
}

/// The notices of [`Consistency::refresh`], of one chunk each.
#[derive(Debug)]
pub struct Refreshing {
    /// The rest of the region, if any page may have changed: more did than could be told one by one.
    all: core::ops::Range<u32>,
    notices: alloc::vec::IntoIter<Notice>,
}

impl Iterator for Refreshing {
    type Item = Notice;

    fn next(&mut self) -> Option<Notice> {
        if self.all.is_empty() {
            return self.notices.next();
        }
        let range = PageRange::around(PageIndex(self.all.start), self.all.start, self.all.end);
        self.all.start = range.end();
        Some(Notice { range, stamp: u64::MAX })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coherence::hlrc::intervals::NOTICES_MAX;
    use crate::page::CHUNK_PAGES;
    use crate::sync;
    use crate::wire::Message;

    const PAGES: u32 = 3 * CHUNK_PAGES + 7;

    fn consistency(me: u16) -> Consistency {
        Consistency::new(NodeId(me), 3, PAGES, true, 4)
    }

    fn notice(page: u32, stamp: u64) -> Notice {
        Notice { range: PageRange::one(PageIndex(page)), stamp }
    }

    #[test]
    fn a_publication_is_over_when_every_shard_has_answered() {
        let mut node = consistency(0);
        node.begin(7);
        node.owes(2);
        assert_eq!(node.published(), None, "one shard");
        assert_eq!(node.published(), None, "the other, but not all have begun");
        assert_eq!(node.published(), Some(7));
        node.end();
    }

    #[test]
    fn a_publication_that_took_too_long_is_finished_by_the_next_one() {
        let mut node = consistency(0);
        node.begin(7);
        node.owes(1);
        assert_eq!(node.published(), None);
        node.end();
        node.begin(8);
        assert_eq!(node.published(), None, "all have begun, and one still owes an answer");
        assert_eq!(node.published(), Some(8));
        node.end();
        // A late answer that nobody waits for.
        node.begin(9);
        node.owes(1);
        node.published();
        node.end();
        assert_eq!(node.published(), None);
    }

    #[test]
    fn what_was_acquired_is_applied_once() {
        let (mut one, mut other) = (consistency(0), consistency(1));
        assert!(other.refresh().is_none());
        one.knowledge.intervals.note(notice(5, 11));
        one.knowledge.intervals.note(notice(CHUNK_PAGES, 12));
        one.end();
        let mut attached = Vec::new();
        one.knowledge.intervals.append_notices(NodeId(1), &mut attached);
        let token = Message::Sync(sync::Message::LockToken(0));
        assert_eq!(other.knowledge.hear(NodeId(0), token, &attached), Ok(Some(token)));
        let notices: Vec<Notice> = other.refresh().expect("notices").collect();
        assert_eq!(notices, [notice(5, 11), notice(CHUNK_PAGES, 12)]);
        assert!(other.refresh().is_none());
    }

    #[test]
    fn where_any_page_may_have_changed_every_page_is_named() {
        let (mut one, mut other) = (consistency(0), consistency(1));
        for interval in 0..NOTICES_MAX as u64 + 10 {
            one.knowledge.intervals.note(notice((interval % 1000) as u32, interval));
            one.end();
            // An interval that was sent to a node has ended.
            one.knowledge.intervals.append_notices(NodeId(2), &mut Vec::new());
        }
        let mut attached = Vec::new();
        one.knowledge.intervals.append_notices(NodeId(1), &mut attached);
        let token = Message::Sync(sync::Message::LockToken(0));
        assert_eq!(other.knowledge.hear(NodeId(0), token, &attached), Ok(Some(token)));
        let refreshing = other.refresh().expect("more changed than is listed one by one");
        let listed: Vec<(u32, u64)> = refreshing.take(4).map(|notice| (notice.range.end(), notice.stamp)).collect();
        let ends = [CHUNK_PAGES, 2 * CHUNK_PAGES, 3 * CHUNK_PAGES, PAGES];
        assert_eq!(listed, ends.map(|end| (end, u64::MAX)));
    }

    #[test]
    fn limits_follow_from_the_size_of_pages() {
        let limits = PublicationLimits::of(4096, 16);
        assert_eq!(limits, PublicationLimits { unacknowledged_pages_max: 128, together_pages_max: 64 });
        let large = PublicationLimits::of(16 << 20, 16);
        assert_eq!(large, PublicationLimits { unacknowledged_pages_max: 1, together_pages_max: 1 });
        let pages = |page_bytes| Piggybacking::new(NodeId(1), page_bytes, false).pages_left;
        assert_eq!((pages(4096), pages(8192), pages(1 << 20)), (4, 2, 0));
        assert_eq!(Piggybacking::new(NodeId(1), 4096, true).pages_left, 0, "after a change of protocols");
        let mut some = Piggybacking::new(NodeId(1), 4096, false);
        some.sent(3);
        some.sent(3);
        assert_eq!(some.pages_left, 0, "never less than none");
    }
}
