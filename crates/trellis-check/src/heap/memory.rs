//! The stores of each node to the blocks, its publications, and which of the others' publications it has applied.
//!
//! Promises: a publication contains everything that its node stored so far. It is one of whole pages, each of which has a
//! new time then, as at the home of the page. It must never decide which publications a node hears of.

use super::{FIRST_PAGE, PAGE_BYTES, PAGES};
use trellis_cluster_protocol::coherence::hlrc::intervals::Notice;
use trellis_cluster_protocol::heap::Block;
use trellis_cluster_protocol::{PageIndex, PageRange};

/// Small blocks have this size, so that every block consists of whole units.
pub(super) const UNIT_BYTES: u64 = 512;
const UNITS_PER_PAGE: u64 = PAGE_BYTES / UNIT_BYTES;

/// A set of units of the heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Units(u64);

impl Units {
    fn of(offset: u64, bytes: u64) -> Units {
        let first = offset / UNIT_BYTES - u64::from(FIRST_PAGE) * UNITS_PER_PAGE;
        Units(((1 << (bytes / UNIT_BYTES)) - 1) << first)
    }

    /// All units of a page.
    fn page(page: u32) -> Units {
        Units(((1 << UNITS_PER_PAGE) - 1) << (u64::from(page - FIRST_PAGE) * UNITS_PER_PAGE))
    }

    /// The pages of these units.
    fn pages(self) -> impl Iterator<Item = u32> {
        (FIRST_PAGE..FIRST_PAGE + PAGES).filter(move |&page| self.meets(Units::page(page)))
    }

    /// All units of the pages of these units.
    fn whole_pages(self) -> Units {
        Units(self.pages().fold(0, |all, page| all | Units::page(page).0))
    }

    fn add(&mut self, other: Units) {
        self.0 |= other.0;
    }

    fn remove(&mut self, other: Units) {
        self.0 &= !other.0;
    }

    fn meets(self, other: Units) -> bool {
        self.0 & other.0 != 0
    }
}

/// Where a block of the programs is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// It is not allocated yet.
    Unknown,
    /// It is, or was, at this offset.
    At(u64),
    /// Its allocation failed.
    Never,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    /// Its blocks.
    blocks: Units,
    /// Stored and not published.
    dirty: Units,
    /// Published by other nodes and not applied here.
    unseen: Vec<Publication>,
}

/// The part of a publication that concerns one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Publication {
    page: u32,
    stamp: u64,
    units: Units,
}

/// The memory of all nodes, and the results of the calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Memory {
    nodes: Vec<Node>,
    /// Units that were ever stored to.
    written: Units,
    /// The time of each page of the heap: the number of its publications.
    times: [u64; PAGES as usize],
    /// By number of the block.
    pub(super) places: Vec<Place>,
    /// The node to which each block was handed out, and its units, while it is allocated.
    owners: Vec<Option<(u16, Units)>>,
    /// Frees that succeeded, and frees that were refused.
    pub(super) freed: u8,
    pub(super) refused: u8,
}

impl Memory {
    pub(super) fn new(nodes: usize, blocks: usize) -> Memory {
        Memory {
            nodes: vec![Node::default(); nodes],
            written: Units::default(),
            times: [0; PAGES as usize],
            places: vec![Place::Unknown; blocks],
            owners: vec![None; blocks],
            freed: 0,
            refused: 0,
        }
    }

    /// A program gets a block, and stores to all of it.
    pub(super) fn gets(&mut self, node: u16, number: usize, block: &Block) -> Result<(), String> {
        let units = Units::of(block.offset, block.bytes);
        for (other, state) in self.nodes.iter().enumerate() {
            let is_other = other != usize::from(node);
            if state.blocks.meets(if is_other { units.whole_pages() } else { units }) {
                return Err(format!("node {node} gets {block:?}, and node {other} has a block there"));
            }
            if is_other && state.dirty.meets(units) {
                return Err(format!("node {node} gets {block:?}, and stores of node {other} to it will be published"));
            }
        }
        let state = &mut self.nodes[usize::from(node)];
        if state.unseen.iter().any(|publication| publication.units.meets(units)) {
            return Err(format!("node {node} gets {block:?}, and has not applied what was published there"));
        }
        if block.is_fresh && self.written.meets(units) {
            return Err(format!("node {node} gets {block:?} as fresh, and it was written before"));
        }
        state.blocks.add(units);
        state.dirty.add(units);
        self.written.add(units);
        self.places[number] = Place::At(block.offset);
        self.owners[number] = Some((node, units));
        Ok(())
    }

    /// The node to which a block was handed out, while it is allocated.
    pub(super) fn owner(&self, number: usize) -> Option<u16> {
        self.owners[number].map(|(owner, _)| owner)
    }

    /// A program that knows the block stores to it, and is about to free it.
    pub(super) fn frees(&mut self, node: u16, number: usize) -> Result<(), String> {
        let (owner, units) = self.owners[number].take().ok_or("a program frees a block twice")?;
        self.nodes[usize::from(owner)].blocks.remove(units);
        self.nodes[usize::from(node)].dirty.add(units);
        Ok(())
    }

    /// The node publishes everything that it stored. Returns the notices.
    pub(super) fn publishes(&mut self, node: u16) -> Vec<Notice> {
        let dirty = std::mem::take(&mut self.nodes[usize::from(node)].dirty);
        let mut notices = Vec::new();
        for page in dirty.pages() {
            let time = &mut self.times[(page - FIRST_PAGE) as usize];
            *time += 1;
            let publication = Publication { page, stamp: *time, units: Units(dirty.0 & Units::page(page).0) };
            for (other, state) in self.nodes.iter_mut().enumerate() {
                if other != usize::from(node) {
                    state.unseen.push(publication);
                }
            }
            notices.push(Notice { range: PageRange::one(PageIndex(page)), stamp: publication.stamp });
        }
        notices
    }

    /// The node applies a notice: it sees what its pages had at that time.
    pub(super) fn applies(&mut self, node: u16, notice: Notice) {
        let is_seen = |it: &Publication| notice.range.contains(PageIndex(it.page)) && it.stamp <= notice.stamp;
        self.nodes[usize::from(node)].unseen.retain(|publication| !is_seen(publication));
    }
}
