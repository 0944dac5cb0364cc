//! The stores of each node to the blocks, its publications, and its knowledge of the others' publications.
//!
//! Promises: a publication makes known everything that its node stored so far. A node applies what it has heard of, and
//! it hears by messages that release and by the programs' own hand-overs. A later publication of the same memory must be
//! heard of again.

use super::{Envelope, FIRST_PAGE, PAGE_BYTES};
use crate::world::Piece;
use trellis_cluster_protocol::heap::Block;

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

    /// All units of the pages of these units.
    fn pages(self) -> Units {
        let page = (1 << UNITS_PER_PAGE) - 1;
        let pages = (0..64 / UNITS_PER_PAGE).map(|index| page << (index * UNITS_PER_PAGE));
        Units(pages.filter(|page| page & self.0 != 0).fold(0, |all, page| all | page))
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    /// Its blocks.
    blocks: Units,
    /// Stored and not published.
    dirty: Units,
    /// Published by another node and not applied here.
    unseen: Units,
    /// The units of whose latest publication it has heard.
    known: Units,
}

/// The memory of all nodes, and the results of the calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Memory {
    nodes: Vec<Node>,
    /// Units that were ever stored to.
    written: Units,
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
            if state.blocks.meets(if is_other { units.pages() } else { units }) {
                return Err(format!("node {node} gets {block:?}, and node {other} has a block there"));
            }
            if is_other && state.dirty.meets(units) {
                return Err(format!("node {node} gets {block:?}, and stores of node {other} to it will be published"));
            }
        }
        let state = &mut self.nodes[usize::from(node)];
        if state.unseen.meets(units) {
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

    /// A program that knows the block stores to it, and is about to free it. If another node's program allocated it, that
    /// one released the block to this one.
    pub(super) fn frees(&mut self, node: u16, number: usize, under_way: &mut [Piece<Envelope>]) -> Result<(), String> {
        let (owner, units) = self.owners[number].take().ok_or("a program frees a block twice")?;
        self.nodes[usize::from(owner)].blocks.remove(units);
        if owner != node {
            self.publishes(owner, under_way);
            self.hears(node, self.known_at(owner));
            self.applies(node);
            self.nodes[usize::from(node)].dirty.add(units);
        }
        Ok(())
    }

    /// Everything that the node stored becomes known to those who hear of it from now on.
    pub(super) fn publishes(&mut self, node: u16, under_way: &mut [Piece<Envelope>]) {
        let units = std::mem::take(&mut self.nodes[usize::from(node)].dirty);
        for (other, state) in self.nodes.iter_mut().enumerate() {
            if other == usize::from(node) {
                state.known.add(units);
            } else {
                state.known.remove(units);
                state.unseen.add(units);
            }
        }
        under_way.iter_mut().for_each(|envelope| envelope.carries.remove(units));
    }

    /// The publications of which the node has heard, and which it tells on.
    pub(super) fn known_at(&self, node: u16) -> Units {
        self.nodes[usize::from(node)].known
    }

    pub(super) fn hears(&mut self, node: u16, of: Units) {
        self.nodes[usize::from(node)].known.add(of);
    }

    /// The node applies everything of which it has heard.
    pub(super) fn applies(&mut self, node: u16) {
        let state = &mut self.nodes[usize::from(node)];
        state.unseen.remove(state.known);
    }
}
