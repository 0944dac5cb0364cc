//! What a node knows about releases: vector time, and the notices that belong to it (Keleher, Cox and Zwaenepoel 1992, §3).
//!
//! The stores of a node between two releases are an *interval*. When it ends, its notices (which pages changed, and at what
//! time of their homes) are kept under the node's next number. For every node, *vector time* gives the last of its
//! intervals that this node knows. Whatever this node releases carries the notices that the receiver may lack
//! ([`Intervals::append_notices`]). A node that acquires therefore also learns what the releaser had learnt: causality is
//! passed on.
//!
//! Promises: after [`Intervals::learn`] a node knows everything that the sender knew when it called
//! [`Intervals::append_notices`].
//! The memory is bounded ([`NOTICES_MAX`]): forgotten notices are replaced by one that says that any page may have changed.
//! If the link does not keep the order of messages, they may overtake each other. Each then carries how many came before
//! it, and one that comes too early is to be kept and learnt later. It must never pass on knowledge that is not complete.

use crate::page::{NodeId, PageIndex, PageRange};
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

/// An interval that was sent to no node is continued by the next one. From this number of notices on, notices that a later
/// one replaces are removed whenever the number has doubled since the last time.
const NOTICES_THINNED_MIN: usize = 64;

/// The number of notices that one node keeps. Beyond it, the node forgets the oldest.
pub const NOTICES_MAX: usize = 1 << 16;
/// The largest number of bytes of notices that a message carries.
pub const KNOWLEDGE_BYTES_MAX: usize = 1 << 20;

/// The notice that these pages changed at that time of their home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Notice {
    /// The pages.
    pub range: PageRange,
    /// The time.
    pub stamp: u64,
}

/// The result of learning notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learnt {
    /// The notices are known now; the message that they came with may be used.
    Known,
    /// They depend on notices that are still on their way: try again when something was learnt.
    TooEarly,
}

/// Bytes that no correct peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Intervals `after + 1 ..= upto` of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Segment {
    after: u64,
    upto: u64,
    /// The notices are gone: any page may have changed.
    any: bool,
    notices: Vec<Notice>,
}

/// See the documentation of this module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Intervals {
    me: NodeId,
    pages: u32,
    /// By node: the last of its intervals that this node knows.
    time: Vec<u64>,
    /// By node: its intervals, the oldest first, without a gap up to `time`.
    log: Vec<VecDeque<Segment>>,
    /// By peer: what it knows, or will know when what was sent to it has arrived. Allocated when something is first sent to
    /// it.
    known: Vec<Vec<u64>>,
    /// By peer, if messages may overtake each other: how many messages have piggybacked notices to it, and from it.
    sequence: Option<Vec<(u32, u32)>>,
    /// The last of this node's intervals that was sent to any node.
    sent_last: u64,
    /// The number of notices of this node's last interval when they were last thinned.
    thinned: usize,
    /// The notices of the current interval.
    open: Vec<Notice>,
    /// Notices of other nodes that have not been applied here.
    unapplied: Vec<Notice>,
    /// Still to be applied: any page may have changed.
    unapplied_any: bool,
    /// By node: the number of notices and intervals in its log.
    kept: Vec<usize>,
}

const SEGMENT_BYTES: usize = 2 + 8 + 8 + 1 + 4;
const NOTICE_BYTES: usize = 4 + 4 + 8;

impl Intervals {
    /// Intervals of node `me` in a cluster of `nodes` with a region of `pages`. `is_ordered` is whether messages from one
    /// node to another arrive in the order in which [`Intervals::append_notices`] was called for them.
    pub fn new(me: NodeId, nodes: u16, pages: u32, is_ordered: bool) -> Intervals {
        let nodes = usize::from(nodes);
        Intervals {
            me,
            pages,
            time: vec![0; nodes],
            log: vec![VecDeque::new(); nodes],
            known: vec![Vec::new(); nodes],
            sent_last: 0,
            thinned: 0,
            sequence: (!is_ordered).then(|| vec![(0, 0); nodes]),
            open: Vec::new(),
            unapplied: Vec::new(),
            unapplied_any: false,
            kept: vec![0; nodes],
        }
    }

    /// This node's vector time.
    pub fn time(&self) -> &[u64] {
        &self.time
    }

    /// The number of intervals and notices that are kept for nodes that may lack them; at most [`NOTICES_MAX`].
    pub fn kept(&self) -> usize {
        self.kept.iter().sum()
    }

    /// Adds a notice to the current interval.
    pub fn note(&mut self, notice: Notice) {
        match self.open.last_mut() {
            // The pages follow one another and changed at the same time.
            Some(last) if last.stamp == notice.stamp && last.range.end() == notice.range.first().0 => {
                match PageRange::new(last.range.first(), last.range.count() + notice.range.count()) {
                    Some(range) => last.range = range,
                    None => self.open.push(notice),
                }
            }
            _ => self.open.push(notice),
        }
    }

    /// Ends the interval, before a release. An interval without notices is dropped, and one that was sent to no node since
    /// the last release is continued.
    pub fn close(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let me = usize::from(self.me.0);
        if let Some(last) = self.log[me].back_mut().filter(|last| last.upto > self.sent_last) {
            let before = last.notices.len();
            last.notices.append(&mut self.open);
            if last.notices.len() > NOTICES_THINNED_MIN.max(2 * self.thinned) {
                thin(&mut last.notices);
                self.thinned = last.notices.len();
            }
            let after = last.notices.len();
            self.kept[me] = self.kept[me] - before + after;
            return self.forget();
        }
        let notices = core::mem::take(&mut self.open);
        self.thinned = 0;
        let after = self.time[me];
        self.time[me] = after + 1;
        self.keep(me, Segment { after, upto: after + 1, any: false, notices });
    }

    /// Appends the notices that `to` may lack to `out`. Appends nothing if `to` knows everything and messages keep their
    /// order.
    pub fn append_notices(&mut self, to: NodeId, out: &mut Vec<u8>) {
        let to = usize::from(to.0);
        if let Some(sequence) = &self.sequence {
            out.extend_from_slice(&sequence[to].0.to_le_bytes());
        }
        let empty = out.len();
        self.append_segments(to, out);
        if let Some(sequence) = &mut self.sequence
            && out.len() > empty
        {
            sequence[to].0 = sequence[to].0.wrapping_add(1);
        }
    }

    fn append_segments(&mut self, to: usize, out: &mut Vec<u8>) {
        if self.known[to].is_empty() {
            self.known[to] = vec![0; self.time.len()];
        }
        let news: usize = (0..self.time.len())
            .filter(|&node| node != to && self.time[node] > self.known[to][node])
            .flat_map(|node| self.since(node, self.known[to][node]))
            .map(|segment| SEGMENT_BYTES + segment.notices.len() * NOTICE_BYTES)
            .sum();
        let is_short = news <= KNOWLEDGE_BYTES_MAX - self.time.len() * SEGMENT_BYTES;
        for node in (0..self.time.len()).filter(|&node| node != to) {
            let known = self.known[to][node];
            if self.time[node] <= known {
                continue;
            }
            let oldest = self.log[node].front().map_or(self.time[node], |segment| segment.after);
            if !is_short || oldest > known {
                put_segment(node, known, self.time[node], true, &[], out);
            } else {
                for segment in self.since(node, known) {
                    let after = segment.after.max(known);
                    put_segment(node, after, segment.upto, segment.any, &segment.notices, out);
                }
            }
            self.known[to][node] = self.time[node];
        }
        self.sent_last = self.time[usize::from(self.me.0)];
    }

    /// The intervals of `node` after number `known`.
    fn since(&self, node: usize, known: u64) -> impl Iterator<Item = &Segment> {
        let log = &self.log[node];
        log.range(log.partition_point(|segment| segment.upto <= known)..)
    }

    /// Takes the notices that `from` sent. If they are too early, nothing has changed.
    ///
    /// # Errors
    ///
    /// No correct peer sends this; nothing has changed.
    pub fn learn(&mut self, from: NodeId, bytes: &[u8]) -> Result<Learnt, Malformed> {
        if bytes.is_empty() {
            // From a node that has not begun to send notices.
            return Ok(Learnt::Known);
        }
        let mut segments = Vec::new();
        let mut reader = Reader(bytes);
        if let Some(sequence) = &self.sequence {
            let ahead = u32::from_le_bytes(reader.take()?).wrapping_sub(sequence[usize::from(from.0)].1) as i32;
            if ahead > 0 {
                return Ok(Learnt::TooEarly);
            }
            if ahead < 0 {
                // A message without notices was overtaken by one with notices.
                return if reader.0.is_empty() { Ok(Learnt::Known) } else { Err(Malformed) };
            }
        }
        let mut upto = self.time.clone();
        while !reader.0.is_empty() {
            let (node, segment) = reader.segment(self.time.len(), self.pages)?;
            if node == usize::from(self.me.0) && segment.upto > self.time[node] {
                // No other node knows of an interval of this node before it has ended.
                return Err(Malformed);
            }
            if segment.after > upto[node] {
                return Ok(Learnt::TooEarly);
            }
            upto[node] = upto[node].max(segment.upto);
            segments.push((node, segment));
        }
        for (node, segment) in segments {
            self.learn_segment(node, segment);
        }
        let from = usize::from(from.0);
        if self.known[from].is_empty() {
            self.known[from] = vec![0; self.time.len()];
        }
        let mut reader = Reader(bytes);
        if let Some(sequence) = &mut self.sequence {
            reader.take::<4>()?;
            if !reader.0.is_empty() {
                sequence[from].1 = sequence[from].1.wrapping_add(1);
            }
        }
        while let Ok((node, segment)) = reader.segment(self.time.len(), self.pages) {
            // The sender knows what it sent.
            self.known[from][node] = self.known[from][node].max(segment.upto);
        }
        Ok(Learnt::Known)
    }

    fn learn_segment(&mut self, node: usize, segment: Segment) {
        if segment.upto <= self.time[node] {
            return;
        }
        if segment.any {
            self.unapplied_any = true;
            self.unapplied.clear();
        } else if !self.unapplied_any {
            self.unapplied.extend_from_slice(&segment.notices);
        }
        let after = self.time[node];
        self.time[node] = segment.upto;
        self.keep(node, Segment { after, ..segment });
        if self.unapplied.len() > NOTICES_MAX {
            self.unapplied_any = true;
            self.unapplied.clear();
        }
    }

    fn keep(&mut self, node: usize, segment: Segment) {
        self.kept[node] += segment.notices.len() + 1;
        self.log[node].push_back(segment);
        self.forget();
    }

    /// Keeps no more than is allowed: the node with the largest log loses its oldest entries.
    fn forget(&mut self) {
        while self.kept() > NOTICES_MAX {
            let longest = (0..self.log.len()).max_by_key(|&node| self.kept[node]).expect("a cluster has nodes");
            let Some(oldest) = self.log[longest].pop_front() else { return };
            self.kept[longest] -= oldest.notices.len() + 1;
        }
    }

    /// Every node knows what this node knew at `time`, so it need not be kept. This is the case when all nodes have arrived
    /// at a barrier, for what this node knew when it arrived at the same barrier the time before.
    pub fn everybody_knows(&mut self, time: &[u64]) {
        debug_assert_eq!(time.len(), self.time.len());
        for (node, &time) in time.iter().enumerate() {
            while self.log[node].front().is_some_and(|segment| segment.upto <= time) {
                let oldest = self.log[node].pop_front().expect("there is one");
                self.kept[node] -= oldest.notices.len() + 1;
            }
        }
        self.sent_last = self.sent_last.max(time[usize::from(self.me.0)]);
        for known in &mut self.known {
            if known.is_empty() {
                *known = time.to_vec();
            }
            known.iter_mut().zip(time).for_each(|(known, &time)| *known = (*known).max(time));
        }
    }

    /// Whether there are notices to apply.
    pub fn has_unapplied(&self) -> bool {
        self.unapplied_any || !self.unapplied.is_empty()
    }

    /// Takes the notices that this node must apply before an acquire is over. Returns true if any page may have changed.
    pub fn take_unapplied(&mut self, into: &mut Vec<Notice>) -> bool {
        into.append(&mut self.unapplied);
        core::mem::take(&mut self.unapplied_any)
    }
}

/// Removes the notices that a later one of the same pages replaces.
fn thin(notices: &mut Vec<Notice>) {
    notices.sort_unstable_by_key(|notice| {
        let Notice { range, stamp } = *notice;
        (range.first(), range.count(), core::cmp::Reverse(stamp))
    });
    notices.dedup_by_key(|notice| notice.range);
}

fn put_segment(node: usize, after: u64, upto: u64, any: bool, notices: &[Notice], out: &mut Vec<u8>) {
    out.extend_from_slice(&(node as u16).to_le_bytes());
    out.extend_from_slice(&after.to_le_bytes());
    out.extend_from_slice(&upto.to_le_bytes());
    out.push(u8::from(any));
    out.extend_from_slice(&(notices.len() as u32).to_le_bytes());
    for notice in notices {
        out.extend_from_slice(&notice.range.first().0.to_le_bytes());
        out.extend_from_slice(&notice.range.count().to_le_bytes());
        out.extend_from_slice(&notice.stamp.to_le_bytes());
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*head)
    }

    fn segment(&mut self, nodes: usize, pages: u32) -> Result<(usize, Segment), Malformed> {
        let node = usize::from(u16::from_le_bytes(self.take()?));
        let (after, upto) = (u64::from_le_bytes(self.take()?), u64::from_le_bytes(self.take()?));
        let [any] = self.take::<1>()?;
        let count = u32::from_le_bytes(self.take()?) as usize;
        if node >= nodes || upto <= after || any > 1 || count > self.0.len() / NOTICE_BYTES {
            return Err(Malformed);
        }
        let mut notices = Vec::with_capacity(count);
        for _ in 0..count {
            let first = PageIndex(u32::from_le_bytes(self.take()?));
            let range = PageRange::new(first, u32::from_le_bytes(self.take()?)).ok_or(Malformed)?;
            if range.end() > pages {
                return Err(Malformed);
            }
            notices.push(Notice { range, stamp: u64::from_le_bytes(self.take()?) });
        }
        Ok((node, Segment { after, upto, any: any == 1, notices }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trellis_base::Random;

    fn notice(page: u32, stamp: u64) -> Notice {
        Notice { range: PageRange::one(PageIndex(page)), stamp }
    }

    fn nodes(count: u16) -> Vec<Intervals> {
        (0..count).map(|me| Intervals::new(NodeId(me), count, 1000, true)).collect()
    }

    fn send(nodes: &mut [Intervals], from: usize, to: usize) -> Vec<u8> {
        let mut sent = Vec::new();
        nodes[from].append_notices(NodeId(to as u16), &mut sent);
        sent
    }

    fn release(nodes: &mut [Intervals], from: usize, to: usize) -> Vec<Notice> {
        let sent = send(nodes, from, to);
        assert_eq!(nodes[to].learn(NodeId(from as u16), &sent), Ok(Learnt::Known));
        let mut notices = Vec::new();
        assert!(!nodes[to].take_unapplied(&mut notices));
        notices
    }

    #[test]
    fn what_a_releaser_learnt_is_passed_on() {
        let mut nodes = nodes(3);
        nodes[0].note(notice(7, 1));
        nodes[0].close();
        assert_eq!(release(&mut nodes, 0, 1), [notice(7, 1)]);
        assert_eq!(release(&mut nodes, 1, 2), [notice(7, 1)]);
        assert_eq!(nodes[2].time(), [1, 0, 0]);
        assert!(send(&mut nodes, 2, 1).is_empty(), "who told it knows it");
        assert_eq!(release(&mut nodes, 0, 2), [], "it is known already");
    }

    #[test]
    fn nothing_is_said_twice_and_nothing_without_notices() {
        let mut nodes = nodes(2);
        nodes[0].close();
        assert!(send(&mut nodes, 0, 1).is_empty());
        nodes[0].note(notice(1, 5));
        nodes[0].note(notice(2, 5));
        nodes[0].close();
        let both = Notice { range: PageRange::new(PageIndex(1), 2).unwrap(), stamp: 5 };
        assert_eq!(release(&mut nodes, 0, 1), [both]);
        assert!(send(&mut nodes, 0, 1).is_empty());
    }

    #[test]
    fn what_overtakes_its_predecessor_waits() {
        let mut nodes: Vec<Intervals> = (0..2).map(|me| Intervals::new(NodeId(me), 2, 1000, false)).collect();
        nodes[0].note(notice(1, 1));
        nodes[0].close();
        let first = send(&mut nodes, 0, 1);
        nodes[0].note(notice(2, 2));
        nodes[0].close();
        let second = send(&mut nodes, 0, 1);
        let third = send(&mut nodes, 0, 1);
        assert_eq!(nodes[1].learn(NodeId(0), &third), Ok(Learnt::TooEarly), "it says nothing, and rests on the others");
        assert_eq!(nodes[1].learn(NodeId(0), &second), Ok(Learnt::TooEarly));
        assert!(!nodes[1].has_unapplied());
        assert_eq!(nodes[1].learn(NodeId(0), &first), Ok(Learnt::Known));
        assert_eq!(nodes[1].learn(NodeId(0), &second), Ok(Learnt::Known));
        assert_eq!(nodes[1].learn(NodeId(0), &third), Ok(Learnt::Known));
        nodes[0].note(notice(3, 3));
        nodes[0].close();
        let fourth = send(&mut nodes, 0, 1);
        assert_eq!(nodes[1].learn(NodeId(0), &fourth), Ok(Learnt::Known));
        assert_eq!(nodes[1].learn(NodeId(0), &third), Ok(Learnt::Known), "it says nothing and was overtaken");
        let mut notices = Vec::new();
        nodes[1].take_unapplied(&mut notices);
        assert_eq!(notices, [notice(1, 1), notice(2, 2), notice(3, 3)]);
    }

    #[test]
    fn memory_is_bounded_and_what_was_forgotten_may_be_anything() {
        let mut nodes = nodes(3);
        for interval in 0..NOTICES_MAX as u64 + 10 {
            nodes[0].note(notice((interval % 1000) as u32, interval));
            nodes[0].close();
            // What was sent to a node has ended.
            send(&mut nodes, 0, 2);
        }
        assert!(nodes[0].kept() <= NOTICES_MAX);
        let sent = send(&mut nodes, 0, 1);
        assert!(sent.len() <= KNOWLEDGE_BYTES_MAX);
        assert_eq!(nodes[1].learn(NodeId(0), &sent), Ok(Learnt::Known));
        assert!(nodes[1].take_unapplied(&mut Vec::new()), "anything may have changed");
        assert_eq!(nodes[1].time(), nodes[0].time());
        // These notices are passed on, too.
        let sent = send(&mut nodes, 1, 2);
        assert_eq!(nodes[2].learn(NodeId(1), &sent), Ok(Learnt::Known));
        assert!(nodes[2].take_unapplied(&mut Vec::new()));
    }

    #[test]
    fn after_a_barrier_nothing_is_kept() {
        let mut nodes = nodes(2);
        nodes[0].note(notice(1, 1));
        nodes[0].close();
        release(&mut nodes, 0, 1);
        let time = nodes[1].time().to_vec();
        nodes.iter_mut().for_each(|node| node.everybody_knows(&time));
        assert!(nodes.iter().all(|node| node.kept() == 0));
        nodes[1].note(notice(3, 1));
        nodes[1].close();
        assert_eq!(release(&mut nodes, 1, 0), [notice(3, 1)]);
    }

    /// Some stores, and their release to another node. Returns the largest number of notices and intervals that this may
    /// add.
    fn hand_over(nodes: &mut [Intervals], random: &mut Random, stamp: u64, stores_max: u64) -> usize {
        let (from, to) = (random.index(4), random.index(4));
        let stores = random.below(stores_max + 1);
        for _ in 0..stores {
            nodes[from].note(notice(random.below(1000) as u32, stamp));
        }
        nodes[from].close();
        if from != to {
            let sent = send(nodes, from, to);
            assert_eq!(nodes[to].learn(NodeId(from as u16), &sent), Ok(Learnt::Known));
            nodes[to].take_unapplied(&mut Vec::new());
        }
        stores as usize + 1
    }

    fn come_to_a_barrier(nodes: &mut [Intervals], before: &mut [Vec<u64>]) {
        for from in 1..4 {
            release(nodes, from, 0);
        }
        for to in 1..4 {
            release(nodes, 0, to);
        }
        for (node, before) in nodes.iter_mut().zip(before) {
            let time = node.time().to_vec();
            node.everybody_knows(&core::mem::replace(before, time));
        }
    }

    #[test]
    fn a_long_run_of_locks_and_barriers_keeps_what_was_said_since_two_barriers_ago() {
        let (mut nodes, mut random) = (nodes(4), Random::new(1));
        let mut before = vec![vec![0; 4]; 4];
        let (mut since, mut since_one_before, mut most) = (0, 0, 0);
        for stamp in 1..=10_000 {
            since += hand_over(&mut nodes, &mut random, stamp, 3);
            for node in &nodes {
                assert!(node.kept() <= since + since_one_before, "hand-over {stamp}: {} are kept", node.kept());
                most = most.max(node.kept());
            }
            if stamp % 100 == 0 {
                come_to_a_barrier(&mut nodes, &mut before);
                (since, since_one_before) = (0, since);
                assert!(nodes.iter().all(|node| node.time() == nodes[0].time()), "a barrier tells everything");
            }
        }
        assert!(most > 100, "the run kept nothing: {most}");
        come_to_a_barrier(&mut nodes, &mut before);
        come_to_a_barrier(&mut nodes, &mut before);
        assert!(nodes.iter().all(|node| node.kept() == 0), "nothing was stored between the last barriers");
    }

    #[test]
    fn without_barriers_locks_keep_a_bounded_number() {
        let (mut nodes, mut random) = (nodes(4), Random::new(2));
        let mut noted = 0;
        for stamp in 1..=4_000 {
            noted += hand_over(&mut nodes, &mut random, stamp, 64);
            assert!(nodes.iter().all(|node| node.kept() <= NOTICES_MAX));
        }
        assert!(noted > NOTICES_MAX, "the run is too short to show it: {noted}");
        assert!(nodes.iter().any(|node| node.kept() > NOTICES_MAX / 2), "nothing is forgotten before it must be");
    }

    #[test]
    fn an_interval_that_was_sent_to_nobody_goes_on() {
        let mut nodes = nodes(2);
        for stamp in 1..=10_000 {
            nodes[0].note(notice(3, stamp));
            nodes[0].note(notice(stamp as u32 % 5 * 2, stamp));
            nodes[0].close();
        }
        assert_eq!(nodes[0].time(), [1, 0]);
        assert!(nodes[0].kept() <= 2 * NOTICES_THINNED_MIN + 2, "{} are kept", nodes[0].kept());
        let learnt = release(&mut nodes, 0, 1);
        for page in [3, 0, 2, 4, 6, 8] {
            let newest =
                learnt.iter().filter(|notice| notice.range.contains(PageIndex(page))).map(|notice| notice.stamp);
            assert!(newest.max().is_some_and(|stamp| stamp > 9_990), "page {page}");
        }
        nodes[0].note(notice(7, 20_000));
        nodes[0].close();
        assert_eq!(nodes[0].time(), [2, 0], "the other was told of the first");
        assert_eq!(release(&mut nodes, 0, 1), [notice(7, 20_000)]);
    }

    #[test]
    fn bytes_of_a_liar_change_nothing() {
        let mut node = Intervals::new(NodeId(0), 2, 10, true);
        for bytes in [&[1u8][..], &[0; SEGMENT_BYTES], &[9; SEGMENT_BYTES]] {
            assert_eq!(node.learn(NodeId(1), bytes), Err(Malformed), "{bytes:?}");
        }
        let mut sent = Vec::new();
        put_segment(1, 0, 1, false, &[notice(10, 1)], &mut sent);
        assert_eq!(node.learn(NodeId(1), &sent), Err(Malformed), "a page past the region");
        sent.clear();
        put_segment(0, 0, 1, false, &[], &mut sent);
        assert_eq!(node.learn(NodeId(1), &sent), Err(Malformed), "an interval of ours that we do not know");
        assert_eq!(node, Intervals { known: node.known.clone(), ..Intervals::new(NodeId(0), 2, 10, true) });
    }
}
