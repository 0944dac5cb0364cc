//! A simulated cluster: the real protocol at every node, tables as memories, and a network from which the test takes
//! messages in any order.
//!
//! Promises: effects are carried out in their order, and after each of them the contract of `coherence` is asserted:
//! single writer or many readers; downgrade before read-out before send; bytes that do not change until they are
//! delivered; loads that see the last store; locked pages that stay and that no other node has. It must never let a
//! thread retry that was not woken, or let an alarm expire that was not set.

use std::collections::{BTreeMap, BTreeSet};
use trellis_cluster_protocol::coherence::{Coherence, Effect, Geometry, Input, Message, Protocol, Purpose, Running};
use trellis_cluster_protocol::homes::Home;
use trellis_cluster_protocol::{Access, CHUNK_PAGES, NodeId, PageIndex, PageRange};

/// A message under way, and the contents of the supplier's pages when it was sent.
#[derive(Clone, Debug)]
pub(crate) struct Envelope {
    pub(crate) from: NodeId,
    pub(crate) to: NodeId,
    pub(crate) message: Message,
    sent: Vec<(u32, u64)>,
}

/// An access of a thread that waits for its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) page: u32,
    pub(crate) write: bool,
    pub(crate) wanted: PageRange,
    pub(crate) woken: bool,
}

/// A call that locks pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) node: u16,
    pub(crate) number: u32,
    pub(crate) range: PageRange,
    pub(crate) is_timed: bool,
    /// It has all its pages.
    pub(crate) has_all: bool,
}

/// The outcome of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The load returned this value.
    Loaded(u64),
    /// The store wrote this value.
    Stored(u64),
    /// The view does not allow it.
    Faulted,
}

pub(crate) struct Cluster {
    shards: u32,
    nodes: Vec<Vec<Running>>,
    views: Vec<BTreeMap<u32, Access>>,
    memories: Vec<BTreeMap<u32, u64>>,
    last: BTreeMap<u32, u64>,
    values: u64,
    pub(crate) under_way: Vec<Envelope>,
    pub(crate) waiting: Vec<Vec<Waiting>>,
    /// Pages that another node waits for.
    pub(crate) wanted: BTreeSet<(u16, u32)>,
    /// Calls that have locked pages, or wait for them.
    pub(crate) calls: Vec<Call>,
    last_call: u32,
    /// The alarms that are set, and when they are due.
    pub(crate) alarms: BTreeMap<(u16, u32, Purpose), u64>,
    /// How often a node received a page, or the right to store to it.
    pub(crate) grants: BTreeMap<(u32, u16), u64>,
    /// The time that is passed to the protocol.
    pub(crate) now: u64,
    /// The history in words.
    pub(crate) log: Vec<String>,
}

impl Cluster {
    pub(crate) fn new(protocol: Protocol, home: Home, nodes: u16, pages: u32, shards: u32) -> Cluster {
        let start = |me, shard| {
            protocol.start(Geometry {
                me: NodeId(me),
                nodes,
                founders: nodes,
                pages,
                shard,
                shards,
                home,
                marks: false,
            })
        };
        let count = usize::from(nodes);
        Cluster {
            shards,
            nodes: (0..nodes).map(|me| (0..shards).map(|shard| start(me, shard)).collect()).collect(),
            views: vec![BTreeMap::new(); count],
            memories: vec![BTreeMap::new(); count],
            last: BTreeMap::new(),
            values: 0,
            under_way: Vec::new(),
            waiting: vec![Vec::new(); count],
            wanted: BTreeSet::new(),
            calls: Vec::new(),
            last_call: 0,
            alarms: BTreeMap::new(),
            grants: BTreeMap::new(),
            now: 0,
            log: Vec::new(),
        }
    }

    /// Attempts an access. A store writes a value that was never stored before.
    pub(crate) fn access(&mut self, node: u16, page: u32, write: bool) -> Outcome {
        let needed = if write { Access::Write } else { Access::Read };
        if self.view(node, page) < needed {
            return Outcome::Faulted;
        }
        if !write {
            let value = self.memories[usize::from(node)].get(&page).copied();
            assert_eq!(value, Some(self.last_value(page)), "node {node} loads from page {page}: not the last store");
            return Outcome::Loaded(self.last_value(page));
        }
        let on_the_way = |envelope: &Envelope| envelope.sent.iter().any(|&(sent, _)| sent == page);
        assert!(
            !self.under_way.iter().any(on_the_way),
            "node {node} stores to page {page}, whose bytes are on the way"
        );
        self.values += 1;
        self.memories[usize::from(node)].insert(page, self.values);
        self.last.insert(page, self.values);
        Outcome::Stored(self.values)
    }

    /// Records that a thread's access faulted: the thread waits from now on.
    pub(crate) fn fault(&mut self, node: u16, page: u32, write: bool, wanted: PageRange) {
        self.waiting[usize::from(node)].push(Waiting { page, write, wanted, woken: false });
        self.step(node, page, Input::Fault { page: PageIndex(page), write, wanted });
    }

    /// Removes a woken thread from the waiting ones, so that it retries.
    pub(crate) fn take_woken(&mut self, node: u16, index: usize) -> Waiting {
        let waiting = self.waiting[usize::from(node)].remove(index);
        assert!(waiting.woken, "nobody woke the thread of node {node} that waits for page {}", waiting.page);
        waiting
    }

    pub(crate) fn prefetch(&mut self, node: u16, wanted: PageRange, write: bool, announced: bool) {
        self.step(node, wanted.first().0, Input::Prefetch { wanted, write, announced });
    }

    pub(crate) fn resume(&mut self, node: u16, page: u32) {
        self.wanted.remove(&(node, page));
        self.step(node, page, Input::Resumed { page: PageIndex(page) });
    }

    /// The program locks pages; returns the number of the call.
    pub(crate) fn lock(&mut self, node: u16, range: PageRange, stay: Option<u64>) -> u32 {
        self.last_call += 1;
        let call = self.last_call;
        self.calls.push(Call { node, number: call, range, is_timed: stay.is_some(), has_all: false });
        self.step(node, range.first().0, Input::Lock { range, call, stay });
        call
    }

    /// The program unlocks what a call locked, or no longer waits for it; the call may have ended by itself.
    pub(crate) fn unlock(&mut self, node: u16, range: PageRange, call: u32) {
        self.calls.retain(|known| known.number != call);
        self.step(node, range.first().0, Input::Unlock { range, call });
    }

    /// An alarm expires, due or not.
    pub(crate) fn alarm(&mut self, node: u16, page: u32, purpose: Purpose) {
        let was_set = self.alarms.remove(&(node, page, purpose));
        assert!(was_set.is_some(), "node {node} set no alarm {} for page {page}", purpose);
        let ends = |call: &Call| {
            purpose == Purpose::Expiry && (call.node, call.range.first().0) == (node, page) && call.is_timed
        };
        self.calls.retain(|call| !(call.has_all && ends(call)));
        self.step(node, page, Input::Alarm { page: PageIndex(page), purpose });
    }

    /// The alarm that is due next.
    pub(crate) fn next_alarm(&self) -> Option<(u64, (u16, u32, Purpose))> {
        self.alarms.iter().map(|(&alarm, &due)| (due, alarm)).min()
    }

    /// A node has left; every other node is informed.
    pub(crate) fn gone(&mut self, node: u16, successor: u16) {
        for other in (0..self.nodes.len() as u16).filter(|&other| other != node) {
            for shard in 0..self.shards {
                let first_page = shard * CHUNK_PAGES;
                let (node, successor) = (NodeId(node), NodeId(successor));
                self.step(other, first_page, Input::Gone { node, successor });
            }
        }
    }

    /// Whether a call of `node` has `page`.
    pub(crate) fn is_locked(&self, node: u16, page: u32) -> bool {
        self.calls.iter().any(|call| call.node == node && call.has_all && call.range.contains(PageIndex(page)))
    }

    /// Message number `index` arrives; its bytes are read at the supplier only now.
    pub(crate) fn deliver(&mut self, index: usize) {
        let Envelope { from, to, message, sent } = self.under_way.remove(index);
        for (page, value) in sent {
            let now = self.memories[usize::from(from.0)].get(&page).copied();
            assert_eq!(now, Some(value), "the bytes of page {page} changed at {from} before {to} had them");
            assert_eq!(self.view(to.0, page), Access::None, "bytes arrive for page {page}, which {to} has mapped");
            self.memories[usize::from(to.0)].insert(page, value);
        }
        self.step(to.0, message.page().0, Input::Message { from, message });
    }

    pub(crate) fn view(&self, node: u16, page: u32) -> Access {
        self.views[usize::from(node)].get(&page).copied().unwrap_or_default()
    }

    pub(crate) fn memory(&self, node: u16, page: u32) -> Option<u64> {
        self.memories[usize::from(node)].get(&page).copied()
    }

    pub(crate) fn is_pending(&self, node: u16, page: u32) -> bool {
        self.nodes[usize::from(node)][self.shard_of(page)].is_pending(PageIndex(page))
    }

    fn last_value(&self, page: u32) -> u64 {
        self.last.get(&page).copied().unwrap_or(0)
    }

    fn shard_of(&self, page: u32) -> usize {
        (page / CHUNK_PAGES % self.shards) as usize
    }

    fn step(&mut self, node: u16, page: u32, input: Input) {
        self.log.push(format!("n{node} {input}"));
        let shard = self.shard_of(page);
        let mut effects = Vec::new();
        self.nodes[usize::from(node)][shard].step(self.now, input, &mut effects);
        let mut touched = BTreeSet::from([page]);
        for effect in effects {
            self.log.push(format!("  {}", effect));
            touched.extend(self.carry_out(node, effect));
        }
        for page in touched {
            let thought = self.nodes[usize::from(node)][shard].access(PageIndex(page));
            assert_eq!(thought, self.view(node, page), "what node {node} thinks of its view of page {page}");
        }
    }

    /// Carries out an effect; returns the pages whose access may have changed.
    fn carry_out(&mut self, node: u16, effect: Effect) -> Vec<u32> {
        let all = |range: PageRange| range.pages().map(|page| page.0).collect::<Vec<u32>>();
        match effect {
            Effect::Revoke(range) => self.change(node, &all(range), Access::None, None, false),
            Effect::Downgrade(range) => {
                let pages = all(range);
                assert!(pages.iter().all(|&page| self.view(node, page) != Access::None), "node {node}: {effect:?}");
                self.change(node, &pages, Access::Read, None, false);
            }
            Effect::Install { range, access, zero } => {
                self.change(node, &all(range), access, Some(Access::None), zero);
            }
            Effect::Upgrade(range) => self.change(node, &all(range), Access::Write, Some(Access::Read), false),
            Effect::Send { to, message } => self.send(NodeId(node), to, message),
            Effect::Wake(range) => {
                for waiting in &mut self.waiting[usize::from(node)] {
                    waiting.woken |= range.contains(PageIndex(waiting.page));
                }
            }
            Effect::Hold(page) => {
                self.wanted.insert((node, page.0));
            }
            Effect::Alarm { page, purpose, after } => {
                self.alarms.insert((node, page.0, purpose), self.now + after);
            }
            Effect::Locked { range, call } => self.locked(node, range, call),
            Effect::Violation { from, what } => panic!("node {node} reports of {from}: {what}"),
            other => panic!("only release consistency has {other:?}"),
        }
        match effect {
            Effect::Revoke(range) | Effect::Downgrade(range) | Effect::Upgrade(range) => all(range),
            Effect::Install { range, .. } => all(range),
            _ => Vec::new(),
        }
    }

    /// A call has its pages: they are here, and no other node has them.
    fn locked(&mut self, node: u16, range: PageRange, number: u32) {
        for page in range.pages() {
            let others = self.calls.iter().find(|call| call.has_all && call.range.contains(page));
            assert_eq!(others, None, "node {node} locks {page}");
            assert_eq!(self.view(node, page.0), Access::Write, "node {node} is told that it has locked {page}");
        }
        let call = self.calls.iter_mut().find(|call| call.number == number && call.node == node && !call.has_all);
        call.unwrap_or_else(|| panic!("node {node} has locked {range} for call {number}, which does not wait"))
            .has_all = true;
    }

    /// How often nodes other than `node` received `page`.
    pub(crate) fn grants_to_others(&self, node: u16, page: u32) -> u64 {
        let of_page = self.grants.range((page, 0)..=(page, u16::MAX));
        of_page.filter(|((_, to), _)| *to != node).map(|(_, count)| count).sum()
    }

    fn change(&mut self, node: u16, pages: &[u32], to: Access, from: Option<Access>, zero: bool) {
        for &page in pages {
            assert!(
                to == Access::Write || !self.is_locked(node, page),
                "page {page} leaves node {node}, which locked it"
            );
            let before = self.views[usize::from(node)].insert(page, to).unwrap_or_default();
            *self.grants.entry((page, node)).or_default() += u64::from(to > before);
            assert!(from.is_none_or(|from| from == before), "node {node}: page {page} goes from {before:?} to {to:?}");
            if zero {
                self.memories[usize::from(node)].entry(page).or_insert(0);
            }
            assert!(
                to == Access::None || self.memory(node, page).is_some(),
                "node {node} maps page {page}, which has no bytes"
            );
            self.check_holders(page);
        }
    }

    /// Single writer or many readers.
    fn check_holders(&self, page: u32) {
        let holders = |least| -> Vec<u16> {
            (0..self.nodes.len() as u16).filter(|&node| self.view(node, page) >= least).collect()
        };
        let (writers, readers) = (holders(Access::Write), holders(Access::Read));
        assert!(
            writers.is_empty() || readers.len() == 1,
            "{writers:?} may store to page {page} and {readers:?} may load from it"
        );
    }

    fn send(&mut self, from: NodeId, to: NodeId, message: Message) {
        assert!(to != from && usize::from(to.0) < self.nodes.len(), "{from} sends to {to}");
        let mut sent = Vec::new();
        if let Message::Grant { write, .. } = message {
            let allowed = if write { Access::None } else { Access::Read };
            for page in message.bytes().into_iter().flat_map(PageRange::pages).map(|page| page.0) {
                assert!(self.view(from.0, page) <= allowed, "{from} reads page {page} out while it may change");
                let value = self.memory(from.0, page);
                assert_eq!(value, Some(self.last_value(page)), "{from} sends page {page}: not the last store");
                sent.push((page, self.last_value(page)));
            }
        }
        self.under_way.push(Envelope { from, to, message, sent });
    }
}
