//! How the nodes use each page, from their faults.

use std::collections::{BTreeMap, BTreeSet};

use crate::{FaultKind, FaultRecord, Record};

/// A page is divided into this many parts, of which each node's are kept.
const PARTS: u64 = 64;
/// From so many faults on beyond the first of each node, nodes take a page from each other rather than once.
const RETURNS_MIN: u64 = 3;
/// The faults of a sequence, which reading ahead could have served.
const SEQUENCE_MIN: usize = 4;
/// How far the next fault of a sequence may be: a window of the default size, whose pages were read ahead. Larger steps
/// must repeat.
const STEP_PAGES_MAX: u64 = 129;

/// How the nodes use a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Use {
    /// Nodes that store to different parts of the page take it from each other.
    FalseSharing,
    /// A node loads from the page, and then stores to it.
    ReadThenWritten,
    /// One node stores to the page, and others load from it.
    OneWriter,
    /// Several nodes store to the same parts.
    SameBytes,
    /// Several nodes store to the page; to which parts is not known.
    Taken,
    /// A thread goes from page to page.
    Sequence,
}

/// The pages of one use.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Group {
    /// The time that threads waited for these pages, in nanoseconds.
    pub(super) waited_ns: u64,
    pub(super) faults: u64,
    /// The pages, ascending.
    pub(super) pages: Vec<u64>,
    /// The nodes, ascending.
    pub(super) nodes: Vec<usize>,
}

impl Group {
    fn add(&mut self, page: u64, nodes: impl IntoIterator<Item = usize>, faults: u64, waited_ns: u64) {
        self.waited_ns += waited_ns;
        self.faults += faults;
        if self.pages.last() != Some(&page) {
            self.pages.push(page);
        }
        self.nodes.extend(nodes);
        self.nodes.sort_unstable();
        self.nodes.dedup();
    }

    /// The longest run of successive pages: its first page, and their number.
    pub(super) fn longest_run(&self) -> (u64, u64) {
        let mut longest = (0, 0);
        let mut run = (0, 0);
        for page in &self.pages {
            run = if run.1 > 0 && *page == run.0 + run.1 { (run.0, run.1 + 1) } else { (*page, 1) };
            if run.1 > longest.1 {
                longest = run;
            }
        }
        longest
    }
}

/// The faults of one node on a page.
#[derive(Clone, Copy, Default)]
struct OfNode {
    reads: u64,
    writes: u64,
    /// Stores to a page that was held for reading.
    upgrades: u64,
    upgrades_ns: u64,
    waited_ns: u64,
    /// The parts to which it stored first, as bits.
    stored: u64,
    /// A store did not say where.
    is_vague: bool,
}

impl OfNode {
    fn count(&mut self, fault: &FaultRecord, page_bytes: u64) {
        let waited_ns = fault.wait_us_x10 * 100;
        self.waited_ns += waited_ns;
        match fault.kind {
            FaultKind::Read => {
                self.reads += 1;
                return;
            }
            FaultKind::Write => self.writes += 1,
            FaultKind::Upgrade | FaultKind::UpgradeOwner => {
                self.upgrades += 1;
                self.upgrades_ns += waited_ns;
            }
            FaultKind::Local => return,
        }
        match fault.offset {
            Some(offset) => self.stored |= 1 << (u64::from(offset) * PARTS / page_bytes).min(PARTS - 1),
            None => self.is_vague = true,
        }
    }

    fn stores(&self) -> bool {
        self.writes + self.upgrades > 0
    }

    fn faults(&self) -> u64 {
        self.reads + self.writes + self.upgrades
    }
}

/// The use of a page, and its cost.
struct Cost {
    usage: Use,
    faults: u64,
    waited_ns: u64,
    /// The nodes that the use is about.
    nodes: Vec<usize>,
}

/// Divides the pages that nodes waited for among the uses. Each record comes with the faults that count.
pub(super) fn uses(records: &[(&Record, Vec<&FaultRecord>)]) -> BTreeMap<Use, Group> {
    let mut pages: BTreeMap<u64, BTreeMap<usize, OfNode>> = BTreeMap::new();
    for (record, faults) in records {
        for fault in faults.iter().filter(|fault| fault.kind != FaultKind::Local) {
            let node = pages.entry(fault.page).or_default().entry(record.node).or_default();
            node.count(fault, record.page_bytes.max(1) as u64);
        }
    }
    let mut groups: BTreeMap<Use, Group> = BTreeMap::new();
    for (page, nodes) in &pages {
        if let Some(Cost { usage, faults, waited_ns, nodes }) = cost_of(nodes) {
            groups.entry(usage).or_default().add(*page, nodes, faults, waited_ns);
        }
    }
    let named: BTreeSet<u64> = groups.values().flat_map(|group| group.pages.iter().copied()).collect();
    let mut walks = Group::default();
    for (record, faults) in records {
        let others = faults.iter().filter(|fault| fault.kind != FaultKind::Local && !named.contains(&fault.page));
        sequences(record.node, others.copied(), &mut walks);
    }
    if walks.faults > 0 {
        walks.pages.sort_unstable();
        walks.pages.dedup();
        groups.insert(Use::Sequence, walks);
    }
    groups
}

/// The use of a page by these nodes, and what it cost; `None` for one that is not special.
fn cost_of(nodes: &BTreeMap<usize, OfNode>) -> Option<Cost> {
    let sum = |part: fn(&OfNode) -> u64| nodes.values().map(part).sum::<u64>();
    let writers: Vec<usize> = nodes.iter().filter(|(_, of)| of.stores()).map(|(node, _)| *node).collect();
    let returns = sum(OfNode::faults).saturating_sub(nodes.len() as u64);
    let is_taken = nodes.len() > 1 && !writers.is_empty() && returns >= RETURNS_MIN;
    let all =
        |usage, nodes| Some(Cost { usage, faults: sum(OfNode::faults), waited_ns: sum(|node| node.waited_ns), nodes });
    if is_taken && writers.len() > 1 && are_apart(nodes) {
        return all(Use::FalseSharing, writers);
    }
    let (reads, followed) = (sum(|node| node.reads), sum(|node| node.reads.min(node.upgrades)));
    if followed > 1 && followed * 10 >= reads * 8 {
        let nodes = nodes.iter().filter(|(_, of)| of.reads.min(of.upgrades) > 0).map(|(node, _)| *node).collect();
        let waited_ns = sum(|node| node.upgrades_ns);
        return Some(Cost { usage: Use::ReadThenWritten, faults: sum(|node| node.upgrades), waited_ns, nodes });
    }
    match writers.len() {
        _ if !is_taken => None,
        1 => all(Use::OneWriter, nodes.keys().copied().collect()),
        _ if nodes.values().any(|node| node.is_vague) => all(Use::Taken, writers),
        _ => all(Use::SameBytes, writers),
    }
}

/// Whether the nodes that store do so to different parts, as far as their faults say: a fault is at the first byte that
/// is touched, and not at those that are touched afterwards. Loads of other nodes' parts are not considered: they cause
/// a transfer wherever the parts lie.
fn are_apart(nodes: &BTreeMap<usize, OfNode>) -> bool {
    let mut seen = 0;
    nodes.values().all(|node| {
        let is_apart = !node.is_vague && seen & node.stored == 0;
        seen |= node.stored;
        is_apart
    })
}

/// Finds the faults of a node that go from page to page.
fn sequences<'a>(node: usize, faults: impl Iterator<Item = &'a FaultRecord>, group: &mut Group) {
    let mut runs: BTreeMap<u64, Vec<&FaultRecord>> = BTreeMap::new();
    let goes_on = |run: &[&FaultRecord], page: u64| match run {
        [] => true,
        [.., last] if page <= last.page => false,
        [_] => true,
        [.., last] if page - last.page <= STEP_PAGES_MAX => true,
        [.., before, last] => page - last.page == last.page - before.page,
    };
    let mut end = |run: &mut Vec<&FaultRecord>| {
        if run.len() >= SEQUENCE_MIN {
            // The first one is not foreseen.
            run[1..].iter().for_each(|fault| group.add(fault.page, [node], 1, fault.wait_us_x10 * 100));
        }
        run.clear();
    };
    for fault in faults {
        let run = runs.entry(fault.thread).or_default();
        if !goes_on(run, fault.page) {
            end(run);
        }
        run.push(fault);
    }
    runs.values_mut().for_each(end);
}
