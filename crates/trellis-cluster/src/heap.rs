//! The shared heap: memory of the region for objects of any size, allocated and freed at any node.
//!
//! Promises: blocks that different nodes allocate never share a page. A block may be freed at any node. A pointer that
//! was freed before, or never allocated, is refused with a sentence. It must never keep data of the allocator in the
//! region: they are private memory of the nodes.

use std::alloc::Layout;
use std::ptr::NonNull;

use trellis_cluster_protocol::heap::{ALIGN_BYTES_MIN, Block, Separation, Zone};

use crate::cluster::{Cluster, Region, WaitError};
use crate::config::{CoherenceRange, Config};
use crate::runtime::{AllocationRequest, Node};

/// The size of a line of a processor's cache.
const CACHE_LINE_BYTES: usize = 64;

/// The node that keeps the pages of an allocation, if their protocol leaves a choice. This is a hint and does not
/// change the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Home {
    /// The choice of the protocol for large allocations, this node for small ones.
    #[default]
    Unspecified,
    /// The node that allocates.
    Here,
    /// The node of this number.
    Node(usize),
    /// The nodes in turn for allocations with their own pages, this node for small ones.
    Interleaved,
}

/// How an allocation is separated from others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Padding {
    /// It may share lines and pages with others of this node.
    #[default]
    Packed,
    /// It shares no cache line (64 bytes) with others: for data that threads of one node use at the same time.
    PerCacheLine,
    /// It shares no page with others: for data that different nodes write.
    PerPage,
    /// It shares no page with others while this node has few blocks of its size, about 256: for a program that does not
    /// say what different nodes write. A heap of fewer than 262,144 pages has fewer such blocks, one for each 1,024
    /// pages.
    PerPageWhileFew,
}

/// Why memory could not be allocated or freed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// The region does not have so many free bytes in a row.
    #[error("{0}")]
    NoRoom(String),
    /// The call cannot be carried out as the program made it; the sentence says why.
    #[error("{0}")]
    Misuse(String),
    /// The cluster failed, or a node did not answer.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

/// The use of the heap. Bytes count whole blocks and pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapStatistics {
    /// Blocks that this node allocated and that are not freed.
    pub blocks: u64,
    /// The bytes of these blocks.
    pub block_bytes: u64,
    /// Bytes of the pages that this node has for its blocks.
    pub span_bytes: u64,
    /// Blocks that this node ever allocated.
    pub allocations: u64,
    /// Blocks of this node that other nodes freed.
    pub frees_by_others: u64,
    /// Free bytes that no node has. Only the configured manager knows them; elsewhere the value is 0.
    pub free_bytes: u64,
}

/// The shared heap, as one node sees it. Any thread may use it.
#[derive(Clone, Copy)]
pub struct Heap<'a> {
    node: &'a Node,
    zone: Zone,
}

impl Cluster {
    /// The shared heap. It takes its pages from the end of the region downwards.
    ///
    /// # Examples
    ///
    /// ```
    /// # use trellis_cluster as trellis;
    /// use trellis::Home;
    /// let cluster = trellis::Cluster::join(trellis::Config::default())?;
    /// let numbers = cluster.heap().allocate_zeroed::<u64>(1000, Home::Here)?;
    /// // SAFETY: the block holds 1000 zeros, and no other thread knows it.
    /// unsafe { numbers.add(999).write(7) };
    /// // SAFETY: nobody uses the block any more.
    /// unsafe { cluster.heap().free(numbers)? };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn heap(&self) -> Heap<'_> {
        Heap { node: self.region().node, zone: Zone::Lower }
    }
}

impl Region<'_> {
    /// The offset at which the shared heap begins; views ([`Region::slice`]) end here. The key `heap_bytes` sets it.
    /// Without the key, the heap may use half the region.
    pub fn heap_start(&self) -> usize {
        self.node.config.heap_start()
    }
}

impl Config {
    /// The offset at which the shared heap begins.
    pub(crate) fn heap_start(&self) -> usize {
        let heap_bytes = self.heap_bytes.unwrap_or(self.region_bytes / 2).min(self.region_bytes);
        (self.region_bytes - heap_bytes).next_multiple_of(self.page_bytes)
    }

    /// The offset at which the upper part of the heap begins; the end of the region if it has none. It is the last of
    /// `coherence_ranges`, if that begins inside of the heap and ends with it, and is either under release consistency while
    /// the rest is not, or has the protocol of the rest, so that it says nothing else.
    pub fn heap_border(&self) -> usize {
        let is_border = |range: &&CoherenceRange| {
            let is_relaxed = range.protocol.is_release_consistent() && !self.coherence.is_release_consistent();
            range.end == self.region_bytes
                && range.first > self.heap_start()
                && (is_relaxed || range.protocol == self.coherence)
        };
        self.coherence_ranges.iter().find(is_border).map_or(self.region_bytes, |range| range.first)
    }
}

impl<'a> Heap<'a> {
    /// Where the heap has an upper part ([`Config::heap_border`]): allocates there, and not in the rest. Otherwise there is
    /// no difference.
    pub fn in_last_range(self) -> Heap<'a> {
        let has_part = self.node.config.heap_border() < self.node.config.region_bytes;
        Heap { zone: if has_part { Zone::Upper } else { Zone::Lower }, ..self }
    }
}

impl Heap<'_> {
    /// Allocates `count` values of `T`, whose bytes are arbitrary. An allocation of 0 bytes has its own pointer and can
    /// be freed.
    ///
    /// # Errors
    ///
    /// [`HeapError::NoRoom`] says how much there is. [`HeapError::Misuse`] for a home that does not exist, and at a
    /// node that joined later.
    pub fn allocate<T>(&self, count: usize, home: Home) -> Result<NonNull<T>, HeapError> {
        self.allocate_layout(self.array_of::<T>(count)?, home, Padding::Packed).map(NonNull::cast)
    }

    /// Allocates like [`Heap::allocate`], with every byte zero.
    pub fn allocate_zeroed<T>(&self, count: usize, home: Home) -> Result<NonNull<T>, HeapError> {
        self.allocate_layout_zeroed(self.array_of::<T>(count)?, home, Padding::Packed).map(NonNull::cast)
    }

    /// Allocates a layout. The alignment is 16 at least, and at most that of the region's address.
    pub fn allocate_layout(&self, layout: Layout, home: Home, padding: Padding) -> Result<NonNull<u8>, HeapError> {
        self.block(layout, home, padding).map(|(pointer, _)| pointer)
    }

    /// Allocates like [`Heap::allocate_layout`], with every byte zero.
    pub fn allocate_layout_zeroed(
        &self,
        layout: Layout,
        home: Home,
        padding: Padding,
    ) -> Result<NonNull<u8>, HeapError> {
        let (pointer, block) = self.block(layout, home, padding)?;
        if !block.is_fresh {
            // SAFETY: the block has so many bytes, and no other thread knows it yet.
            unsafe { pointer.write_bytes(0, layout.size()) };
        }
        Ok(pointer)
    }

    /// Frees a block, at any node. After it returns, any node can allocate the memory again.
    ///
    /// # Errors
    ///
    /// [`HeapError::Misuse`] if no block begins there: it was freed before, or never allocated. Nothing has changed
    /// then.
    ///
    /// # Safety
    ///
    /// No thread of any node uses the block any more, and a lock, a barrier or the like orders its last use before this
    /// call.
    pub unsafe fn free<T>(&self, pointer: NonNull<T>) -> Result<(), HeapError> {
        self.node.heap_free(self.offset_of(pointer.cast())?)
    }

    /// The size of a block in bytes: the requested size or a little more. All of them may be used.
    ///
    /// # Errors
    ///
    /// As [`Heap::free`].
    pub fn usable_bytes<T>(&self, pointer: NonNull<T>) -> Result<usize, HeapError> {
        self.node.heap_measure(self.offset_of(pointer.cast())?).map(|bytes| bytes as usize)
    }

    /// Returns a block of `bytes` with the contents of this one as far as they fit. It may be the same block; otherwise
    /// the old one is freed. The alignment is 16, and padding and home are the defaults.
    ///
    /// # Errors
    ///
    /// As [`Heap::allocate`] and [`Heap::free`]; the old block is unchanged then.
    ///
    /// # Safety
    ///
    /// As [`Heap::free`].
    pub unsafe fn reallocate(&self, pointer: NonNull<u8>, bytes: usize) -> Result<NonNull<u8>, HeapError> {
        let before = self.usable_bytes(pointer)?;
        if bytes <= before && bytes >= before / 2 {
            return Ok(pointer);
        }
        let layout = Layout::from_size_align(bytes, ALIGN_BYTES_MIN as usize);
        let layout = layout.map_err(|_| self.too_large(bytes))?;
        let after = self.allocate_layout(layout, Home::Unspecified, Padding::Packed)?;
        // SAFETY: both blocks have so many bytes, they do not overlap, and the caller promises that no other thread
        // uses them.
        unsafe { pointer.copy_to_nonoverlapping(after, bytes.min(before)) };
        // SAFETY: the caller's promise; the contents are safe.
        unsafe { self.free(pointer)? };
        Ok(after)
    }

    /// The use of the heap, as this node knows it.
    pub fn statistics(&self) -> HeapStatistics {
        let (now, pages_free) = self.node.heap_statistics();
        HeapStatistics {
            blocks: now.blocks,
            block_bytes: now.block_bytes,
            span_bytes: now.span_bytes,
            allocations: now.allocations,
            frees_by_others: now.frees_by_others,
            free_bytes: pages_free.unwrap_or(0) * self.node.config.page_bytes as u64,
        }
    }

    fn block(&self, layout: Layout, home: Home, padding: Padding) -> Result<(NonNull<u8>, Block), HeapError> {
        let layout = match padding {
            Padding::Packed | Padding::PerPage | Padding::PerPageWhileFew => layout,
            Padding::PerCacheLine => {
                layout.align_to(CACHE_LINE_BYTES).map_err(|_| self.too_large(layout.size()))?.pad_to_align()
            }
        };
        let separation = match padding {
            Padding::Packed | Padding::PerCacheLine => Separation::Never,
            Padding::PerPageWhileFew => Separation::WhileFew,
            Padding::PerPage => Separation::Always,
        };
        let (bytes, align, zone) = (layout.size() as u64, layout.align() as u64, self.zone);
        let request = AllocationRequest { bytes, align, home, separation, zone };
        let block = self.node.heap_allocate(request)?;
        let address = self.node.region.base().wrapping_add(block.offset as usize);
        assert_eq!(address.addr() % layout.align(), 0, "the heap keeps alignments");
        Ok((NonNull::new(address).expect("the region is not at address 0"), block))
    }

    fn array_of<T>(&self, count: usize) -> Result<Layout, HeapError> {
        Layout::array::<T>(count).map_err(|_| self.too_large(count.saturating_mul(size_of::<T>())))
    }

    fn too_large(&self, bytes: usize) -> HeapError {
        let region_bytes = self.node.config.region_bytes;
        HeapError::NoRoom(format!("{bytes} bytes are more than the region of {region_bytes} bytes; ask for less"))
    }

    fn offset_of(&self, pointer: NonNull<u8>) -> Result<u64, HeapError> {
        let (address, base) = (pointer.as_ptr().addr(), self.node.region.base().addr());
        let offset = address.wrapping_sub(base);
        if offset >= self.node.region.bytes() {
            return Err(HeapError::Misuse(format!(
                "address {address:#x} is not in the region, which begins at {base:#x}: only what the shared heap \
                 returned can be given back to it"
            )));
        }
        Ok(offset as u64)
    }
}
