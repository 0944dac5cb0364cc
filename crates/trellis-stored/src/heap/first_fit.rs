//! The paper's heap (§4.2): blocks in the order of their addresses, the first free one that suffices, one lock.
//!
//! As in the paper: a free block is split if at least [`SPLIT_BYTES_MIN`] remain, a freed block is merged with both
//! neighbours, the heap's end moves down when the last block is free, and a hash table finds a block by its address.
//! Two things differ: alignment is that of C (16, not 4), and the first block that fits is found without a walk over
//! all blocks, because free blocks are indexed by size and address, which gives the same result. Blocks are adjacent,
//! so that each begins where the previous one ends.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::{ALIGN_BYTES_MIN, Allocator, Block, Held, Memory, PAGE_BYTES, Refusal, Statistics, lock};

/// The minimum size of a free block.
const SPLIT_BYTES_MIN: u64 = 32;
/// The minimum number of bytes above the end that are released. Less is likely to be reused soon.
const RELEASE_BYTES_MIN: u64 = 1 << 20;

pub(super) struct FirstFit {
    range: Range<u64>,
    list: Mutex<List>,
    memory: Arc<dyn Memory>,
}

/// The entry of a block.
#[derive(Clone, Copy)]
struct Entry {
    bytes: u64,
    /// The start of the preceding block.
    before: Option<u64>,
    is_free: bool,
}

struct List {
    blocks: HashMap<u64, Entry>,
    /// The sizes of free blocks by address, for each power of two of the size.
    free: [BTreeMap<u64, u64>; 64],
    last: Option<u64>,
    /// The paper's break: one past the last block.
    end: u64,
    /// The address from which on everything reads as zero.
    zero_from: u64,
    /// One past the last page that was allocated and not released since.
    warm_end: u64,
    live: u64,
    live_bytes: u64,
}

impl FirstFit {
    pub(super) fn new(range: Range<u64>, memory: Arc<dyn Memory>) -> FirstFit {
        let start = range.start;
        let list = List {
            blocks: HashMap::new(),
            free: [const { BTreeMap::new() }; 64],
            last: None,
            end: start,
            zero_from: start,
            warm_end: start,
            live: 0,
            live_bytes: 0,
        };
        FirstFit { range, list: Mutex::new(list), memory }
    }

    fn found(&self, list: &List, address: u64) -> Result<Entry, Refusal> {
        if !self.range.contains(&address) {
            return Err(Refusal::Foreign);
        }
        list.blocks.get(&address).copied().filter(|entry| !entry.is_free).ok_or(Refusal::NoBlock)
    }

    /// Moves the end up, as the paper's `set_bt_brk`.
    fn extend(&self, list: &mut List, bytes: u64, align: u64) -> Option<Block> {
        let from = list.end;
        let address = aligned(from, align)?;
        let end = address.checked_add(bytes).filter(|&end| end <= self.range.end)?;
        if from < address {
            list.append(from, address - from, true);
        }
        list.append(address, bytes, false);
        list.end = end;
        let is_zero = address >= list.zero_from;
        let pages = list.zero_from.next_multiple_of(PAGE_BYTES)..end.next_multiple_of(PAGE_BYTES);
        list.zero_from = list.zero_from.max(end);
        list.warm_end = list.warm_end.max(pages.end);
        if !pages.is_empty() {
            self.memory.fresh(pages);
        }
        Some(Block { address, bytes, is_zero })
    }

    /// Moves the end down if the last block is free.
    fn shrink(&self, list: &mut List, release_bytes_min: u64) {
        if let Some(last) = list.last
            && list.blocks[&last].is_free
        {
            let entry = list.remove(last);
            list.last = entry.before;
            list.end = last;
        }
        let pages = list.end.next_multiple_of(PAGE_BYTES)..list.warm_end;
        if !pages.is_empty() && pages.end - pages.start >= release_bytes_min {
            list.warm_end = pages.start;
            if self.memory.released(pages.clone()) {
                list.zero_from = list.zero_from.min(pages.start);
            }
        }
    }
}

impl List {
    fn append(&mut self, address: u64, bytes: u64, is_free: bool) {
        let before = self.last.replace(address);
        self.put(address, Entry { bytes, before, is_free });
    }

    /// Stores a block's entry, and updates the next block's.
    fn put(&mut self, address: u64, entry: Entry) {
        if entry.is_free {
            self.free[bin(entry.bytes)].insert(address, entry.bytes);
        }
        self.blocks.insert(address, entry);
        if let Some(next) = self.blocks.get_mut(&(address + entry.bytes)) {
            next.before = Some(address);
        }
    }

    fn remove(&mut self, address: u64) -> Entry {
        let entry = self.blocks.remove(&address).expect("a block that is removed is there");
        if entry.is_free {
            self.free[bin(entry.bytes)].remove(&address);
        }
        entry
    }

    /// The free block at the lowest address from which these bytes can be cut, and the address in it.
    fn first_fit(&self, bytes: u64, align: u64) -> Option<(u64, u64)> {
        let mut best: Option<(u64, u64)> = None;
        for blocks in &self.free[bin(bytes)..] {
            let below = best.map_or(u64::MAX, |(first, _)| first);
            let fitting = blocks.range(..below).find_map(|(&first, &all)| {
                let address = aligned(first, align)?;
                (address - first + bytes <= all).then_some((first, address))
            });
            best = fitting.or(best);
        }
        best
    }

    /// Cuts a used block out of a free one that holds it.
    fn cut(&mut self, first: u64, address: u64, bytes: u64) -> u64 {
        let whole = self.remove(first);
        let mut before = whole.before;
        if first < address {
            self.put(first, Entry { bytes: address - first, before, is_free: true });
            before = Some(first);
        }
        let all = first + whole.bytes - address;
        self.put(address, Entry { bytes: all, before, is_free: false });
        if self.last == Some(first) {
            self.last = Some(address);
        }
        self.split(address, bytes)
    }

    /// Shortens a used block if the rest is large enough for a block of its own, which is merged with a following free
    /// one. Returns the block's new length.
    fn split(&mut self, address: u64, bytes: u64) -> u64 {
        let entry = self.blocks[&address];
        let rest = entry.bytes - bytes;
        if rest < SPLIT_BYTES_MIN {
            return entry.bytes;
        }
        self.blocks.insert(address, Entry { bytes, ..entry });
        self.put(address + bytes, Entry { bytes: rest, before: Some(address), is_free: true });
        if self.last == Some(address) {
            self.last = Some(address + bytes);
        }
        self.fuse_with_next(address + bytes);
        bytes
    }

    /// Merges a block with the next one if that is free.
    fn fuse_with_next(&mut self, address: u64) {
        let entry = self.blocks[&address];
        let next = address + entry.bytes;
        if !self.blocks.get(&next).is_some_and(|next| next.is_free) {
            return;
        }
        let bytes = entry.bytes + self.remove(next).bytes;
        self.remove(address);
        self.put(address, Entry { bytes, ..entry });
        if self.last == Some(next) {
            self.last = Some(address);
        }
    }
}

impl Allocator for FirstFit {
    fn allocate(&self, bytes: u64, align: u64) -> Result<Block, Refusal> {
        let wanted = bytes.next_multiple_of(ALIGN_BYTES_MIN);
        let mut list = lock(&self.list);
        let block = match list.first_fit(wanted, align) {
            Some((first, address)) => {
                let bytes = list.cut(first, address, wanted);
                Some(Block { address, bytes, is_zero: false })
            }
            None => self.extend(&mut list, wanted, align),
        };
        let pages = bytes.div_ceil(PAGE_BYTES);
        let block = block.ok_or(Refusal::NoRoom { pages, align_pages: align.div_ceil(PAGE_BYTES) })?;
        list.live += 1;
        list.live_bytes += block.bytes;
        Ok(block)
    }

    fn free(&self, address: u64) -> Result<(), Refusal> {
        let mut list = lock(&self.list);
        let entry = self.found(&list, address)?;
        list.live -= 1;
        list.live_bytes -= entry.bytes;
        list.put(address, Entry { is_free: true, ..entry });
        list.fuse_with_next(address);
        if let Some(before) = entry.before.filter(|before| list.blocks[before].is_free) {
            list.fuse_with_next(before);
        }
        self.shrink(&mut list, RELEASE_BYTES_MIN);
        Ok(())
    }

    fn resize(&self, address: u64, bytes: u64) -> Result<bool, Refusal> {
        let mut list = lock(&self.list);
        let before = self.found(&list, address)?.bytes;
        let Some(wanted) = bytes.checked_next_multiple_of(ALIGN_BYTES_MIN) else { return Ok(false) };
        if wanted > before {
            let next = list.blocks.get(&(address + before)).filter(|next| next.is_free);
            if next.is_none_or(|next| before + next.bytes < wanted) {
                return Ok(false);
            }
            list.fuse_with_next(address);
        }
        let after = list.split(address, wanted);
        list.live_bytes = list.live_bytes - before + after;
        self.shrink(&mut list, RELEASE_BYTES_MIN);
        Ok(true)
    }

    fn usable_bytes(&self, address: u64) -> Result<u64, Refusal> {
        self.found(&lock(&self.list), address).map(|entry| entry.bytes)
    }

    fn trim(&self) -> Result<(), Refusal> {
        self.shrink(&mut lock(&self.list), 1);
        Ok(())
    }

    fn statistics(&self) -> Statistics {
        let list = lock(&self.list);
        let free_blocks: usize = list.free.iter().map(BTreeMap::len).sum();
        Statistics {
            blocks: list.live,
            block_bytes: list.live_bytes,
            held_bytes: list.end - self.range.start,
            free_runs: free_blocks as u64 + u64::from(list.end < self.range.end),
            ..Statistics::default()
        }
    }

    fn hold(&self) -> Held<'_> {
        Held::of([&self.list])
    }
}

/// The largest power of two that a size reaches.
fn bin(bytes: u64) -> usize {
    bytes.ilog2() as usize
}

/// The first aligned address from `from` on that leaves either nothing before it or enough for a free block.
fn aligned(from: u64, align: u64) -> Option<u64> {
    let first = from.checked_next_multiple_of(align)?;
    if first == from || first - from >= SPLIT_BYTES_MIN { Some(first) } else { first.checked_add(align) }
}
