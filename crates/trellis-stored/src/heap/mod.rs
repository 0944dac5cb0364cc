//! The heap of a region in a store: the malloc family over a range of addresses.
//!
//! # Contract
//!
//! A [`Heap`] allocates blocks from `[base, base + bytes)`. Its bookkeeping is kept outside these bytes, in memory of
//! this process (and, for a heap that several processes share, in control keys of the store), so that neither
//! allocating nor freeing touches the region. The few operations on the bytes themselves go through [`Memory`].
//!
//! Promises: blocks never overlap. Every block is aligned to 16 bytes, or as requested. An address that is not that of
//! a live block is refused with one message, and nothing changes. Free neighbours are merged. Unused pages are
//! released. The heap sometimes calls [`Memory`] while it holds locks that allocation needs, so a [`Memory`] must never
//! allocate from the heap that called it, nor wait for a thread that does. The heap must never touch memory of the
//! region except through [`Memory`].
//!
//! There are three kinds, one file each: `first_fit` and `bump` are those of the paper (chapter 4), and `scalable` is
//! the default.

mod bump;
mod description;
mod directory;
mod first_fit;
mod native;
#[cfg(test)]
mod order_tests;
mod pages;
mod pools;
pub mod process;
mod recovery;
#[cfg(test)]
mod recovery_tests;
mod scalable;
mod shared;
#[cfg(test)]
mod shared_tests;
mod span;
mod table;
#[cfg(test)]
mod tests;
mod threads;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trellis_store::{Operation, Store, StoreError};

pub use native::Native;

/// The minimum alignment of a block, as C requires it.
pub const ALIGN_BYTES_MIN: u64 = trellis_base::size_classes::ALIGN_BYTES_MIN;
/// The size of the pages in which memory is released and fetched.
pub const PAGE_BYTES: u64 = 4096;
/// The maximum length of a block: distances within an object are signed numbers.
const BLOCK_BYTES_MAX: u64 = i64::MAX as u64;

/// The heap's access to the bytes that it allocates.
///
/// The ranges of [`Memory::released`] and [`Memory::fresh`] are whole pages.
pub trait Memory: Send + Sync {
    /// Reports that the content of these pages is no longer needed. Returns whether they read as zero from now on.
    fn released(&self, pages: Range<u64>) -> bool;

    /// Reports that these pages are being allocated and are zero everywhere, so they need not be fetched. Pages that
    /// are already in memory stay unchanged, because another thread may have begun to use them.
    fn fresh(&self, pages: Range<u64>);

    /// Sets every byte of a range to zero.
    fn zero(&self, bytes: Range<u64>);

    /// Copies bytes between ranges that do not overlap.
    fn copy(&self, from: u64, to: u64, bytes: u64);

    /// Writes bytes for the program anywhere in its memory: a result that a C function stores at an address.
    ///
    /// # Safety
    ///
    /// The program may write there.
    // SAFETY: this is only the declaration; each implementation says why it is sound.
    unsafe fn write(&self, address: u64, bytes: &[u8]);

    /// Whether the child of a `fork` has this memory as the parent does. If not, the child allocates elsewhere.
    fn survives_fork(&self) -> bool {
        false
    }

    /// Makes everything that this process wrote visible to every process. The heap calls it before it passes memory to
    /// another process.
    ///
    /// # Errors
    ///
    /// The errors of the store; the memory is then not passed on.
    fn publish(&self) -> Result<(), HeapError> {
        Ok(())
    }

    /// Makes everything that other processes published visible here. The heap calls it after it received memory from
    /// another process.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    fn refresh(&self) -> Result<(), HeapError> {
        Ok(())
    }

    /// Whether other processes see each store at once, before a release. They may then know a block as soon as it is
    /// allocated, so the heap records it in the store before that.
    fn is_seen_at_once(&self) -> bool {
        false
    }

    /// Whether [`Memory::publish`] includes the result of [`Heap::changes`]; otherwise the heap applies the changes
    /// itself when needed.
    fn publishes_changes(&self) -> bool {
        false
    }
}

/// The allocation algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Pools of size classes for each thread, and whole pages for large blocks.
    #[default]
    Scalable,
    /// The paper's free list under one lock.
    FirstFit,
    /// The paper's malloc without free: a number that only grows.
    Bump,
}

impl Kind {
    /// The kind's name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Scalable => "scalable",
            Kind::FirstFit => "first-fit",
            Kind::Bump => "bump",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Kind, String> {
        let kinds = [Kind::Scalable, Kind::FirstFit, Kind::Bump];
        kinds
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| format!("`{name}` is not a kind of heap; write `scalable`, `first-fit` or `bump`"))
    }
}

/// The parameters of a shared heap.
#[derive(Clone)]
pub struct Share {
    /// The store of the region.
    pub store: Arc<dyn Store>,
    /// The region's number.
    pub region: u32,
    /// This process's member number: unique, and below 2^32.
    pub member: u64,
}

/// Why a heap refused a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// There is no contiguous memory of this size.
    #[error("{0}")]
    NoRoom(String),
    /// The program freed something that is not a live block, or made an impossible request.
    #[error("{0}")]
    Misuse(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Other processes declared this process dead, and took over its part of the heap.
    #[error(
        "the heap of the region in store {store}: the other processes declared this one (member {member}) dead, because it \
         gave no sign of life for a lease, and its part of the heap is theirs now; start it again"
    )]
    Fenced {
        /// The store.
        store: String,
        /// This process's member number.
        member: u64,
    },
}

/// The use of a heap. Bytes count whole blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Blocks that were allocated and not freed yet.
    pub blocks: u64,
    /// The bytes of these blocks.
    pub block_bytes: u64,
    /// Bytes that cannot be used for anything else now: blocks, and memory that is kept to cut blocks from.
    pub held_bytes: u64,
    /// The number of free ranges of memory; one if everything was freed. A heap without free reports none.
    pub free_runs: u64,
    /// In a shared heap: addresses that other processes freed and that were not blocks.
    pub strays: u64,
}

/// An allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    address: u64,
    bytes: u64,
    /// Whether every byte of it reads as zero.
    is_zero: bool,
}

/// Why an allocator refused a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Refusal {
    /// It does not have this many contiguous pages that begin at a multiple of the second number.
    NoRoom { pages: u64, align_pages: u64 },
    /// It has no blocks in that range.
    Foreign,
    /// It has blocks in that range, but no live one begins there.
    NoBlock,
    /// Another error.
    Failed(HeapError),
}

impl From<HeapError> for Refusal {
    fn from(error: HeapError) -> Refusal {
        Refusal::Failed(error)
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Refusal {
        Refusal::Failed(error.into())
    }
}

/// The operations of every kind of heap. Sizes are from 1 to [`BLOCK_BYTES_MAX`]; alignments are powers of two, and at
/// least [`ALIGN_BYTES_MIN`]. A refused request changes nothing.
trait Allocator: Send + Sync {
    fn allocate(&self, bytes: u64, align: u64) -> Result<Block, Refusal>;

    fn free(&self, address: u64) -> Result<(), Refusal>;

    /// Resizes the block that begins at `address` without moving it; false if that is not possible.
    fn resize(&self, address: u64, bytes: u64) -> Result<bool, Refusal>;

    fn usable_bytes(&self, address: u64) -> Result<u64, Refusal>;

    /// Releases everything that is kept for later use.
    fn trim(&self) -> Result<(), Refusal>;

    fn statistics(&self) -> Statistics;

    /// As [`Heap::changes`]. This method and the next three are for shared heaps.
    fn changes(&self) -> Vec<Operation> {
        Vec::new()
    }

    fn settle(&self, _leaves: bool) -> Result<(), Refusal> {
        Ok(())
    }

    fn owners(&self) -> Result<Vec<u64>, Refusal> {
        Ok(Vec::new())
    }

    fn take_over(&self, _member: u64) -> Result<(), Refusal> {
        Ok(())
    }

    fn take_over_dead(&self) -> Result<(), Refusal> {
        Ok(())
    }

    fn withheld(&self, _changes: &[Operation]) -> Vec<Operation> {
        Vec::new()
    }

    /// Takes every lock, so that a forked copy of the process finds them in a consistent state.
    fn hold(&self) -> Held<'_>;
}

/// While this exists, no other thread allocates or frees. It is for the moment of a fork.
#[must_use = "the heap goes on as soon as this is dropped"]
pub struct Held<'a>(#[allow(dead_code, reason = "it is kept for its end")] Vec<Box<dyn Guard + 'a>>);

trait Guard {}
impl<T: ?Sized> Guard for MutexGuard<'_, T> {}

impl<'a> Held<'a> {
    fn of<T>(mutexes: impl IntoIterator<Item = &'a Mutex<T>>) -> Held<'a>
    where
        T: 'a,
    {
        Held(mutexes.into_iter().map(|mutex| Box::new(lock(mutex)) as Box<dyn Guard + 'a>).collect())
    }

    fn and(mut self, more: Held<'a>) -> Held<'a> {
        self.0.extend(more.0);
        self
    }
}

/// A heap. Any thread may use it.
pub struct Heap {
    range: Range<u64>,
    kind: Kind,
    allocator: Box<dyn Allocator>,
    memory: Arc<dyn Memory>,
}

impl fmt::Debug for Heap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Heap({}, {:#x}..{:#x})", self.kind, self.range.start, self.range.end)
    }
}

impl Heap {
    /// Makes a heap over addresses that nothing else allocates and that all read as zero. A partial page at either end
    /// stays unused.
    ///
    /// # Errors
    ///
    /// [`HeapError::Misuse`] for an invalid range, or one longer than 16 TiB.
    pub fn local(range: Range<u64>, kind: Kind, memory: Arc<dyn Memory>) -> Result<Heap, HeapError> {
        let range = checked(range)?;
        let (inside, for_allocator) = (range.clone(), Arc::clone(&memory));
        let allocator: Box<dyn Allocator> = match kind {
            Kind::Scalable => Box::new(scalable::Scalable::local(inside, for_allocator)),
            Kind::FirstFit => Box::new(first_fit::FirstFit::new(inside, for_allocator)),
            Kind::Bump => Box::new(bump::Bump::local(inside, for_allocator)),
        };
        Ok(Heap { range, kind, allocator, memory })
    }

    /// Makes a heap that several processes share. Each has one of these for the same range, and control keys of the
    /// region record which process owns what. A process takes memory from the shared range in bulk, so that few
    /// allocations call the store. Any process may free a block; it reports freed blocks to their owners, many at a
    /// time.
    ///
    /// The code that writes memory back must cooperate: the result of [`Heap::changes`] must be included in every
    /// release, so that another process that learns of a pointer can also reallocate and free it.
    ///
    /// # Errors
    ///
    /// [`HeapError::Misuse`] for an invalid range, and for [`Kind::FirstFit`], whose list is private to one process.
    pub fn shared(range: Range<u64>, kind: Kind, memory: Arc<dyn Memory>, share: Share) -> Result<Heap, HeapError> {
        let range = checked(range)?;
        let (inside, for_allocator) = (range.clone(), Arc::clone(&memory));
        let Share { store, region, member } = share;
        let allocator: Box<dyn Allocator> = match kind {
            Kind::Scalable => Box::new(shared::Shared::new(inside, for_allocator, store, region, member)),
            Kind::Bump => Box::new(bump::Bump::shared(inside, for_allocator, store, region)),
            Kind::FirstFit => {
                let why =
                    "a `first-fit` heap keeps its list in one process; use `scalable` for a heap that several share";
                return Err(HeapError::Misuse(why.into()));
            }
        };
        Ok(Heap { range, kind, allocator, memory })
    }

    /// The changes that must be in the store before another process can use pointers of this one; empty for a heap of
    /// one process. The caller applies all of them, with its release or separately.
    pub fn changes(&self) -> Vec<Operation> {
        self.allocator.changes()
    }

    /// Reports the blocks of other processes that were freed here, takes back those of this process that others freed,
    /// and returns memory that is not needed. A process that leaves calls it at its end, with `leaves`. The process
    /// that takes over (see [`Heap::take_over`]) can then free blocks that are still in use.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn settle(&self, leaves: bool) -> Result<(), HeapError> {
        self.allocator.settle(leaves).map_err(|refusal| self.explain(refusal, 0))
    }

    /// The members that own memory of a shared heap.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn owners(&self) -> Result<Vec<u64>, HeapError> {
        self.allocator.owners().map_err(|refusal| self.explain(refusal, 0))
    }

    /// Makes this process the owner of everything that a member owned. The member must have left or be known to be
    /// dead, so that it can change nothing any more. Blocks of a dead member that were never freed remain allocated.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn take_over(&self, member: u64) -> Result<(), HeapError> {
        self.allocator.take_over(member).map_err(|refusal| self.explain(refusal, 0))
    }

    /// Makes this process the owner of everything that departed or dead members owned, so that it is reused: at the
    /// start, and automatically before a shared heap grows. Blocks that such a member had at its last release remain
    /// allocated. This takes one call, or two if other members own a part of the heap.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn take_over_dead(&self) -> Result<(), HeapError> {
        self.allocator.take_over_dead().map_err(|refusal| self.explain(refusal, 0))
    }

    /// For changes from [`Heap::changes`] that cannot be part of their release: returns what the caller must apply
    /// before the release. It applies the changes themselves after the release. A process that takes over from one that
    /// dies in between then finds nothing that it may use.
    pub fn withheld(&self, changes: &[Operation]) -> Vec<Operation> {
        self.allocator.withheld(changes)
    }

    /// The range of addresses from which blocks are allocated.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// The allocation algorithm.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The heap's memory.
    pub fn memory(&self) -> &dyn Memory {
        &*self.memory
    }

    /// Whether an address is in this heap's range.
    pub fn contains(&self, address: u64) -> bool {
        self.range.contains(&address)
    }

    /// Allocates a block of this many bytes with undefined content. A block of zero bytes has an address of its own.
    ///
    /// # Errors
    ///
    /// [`HeapError::NoRoom`]; for a shared heap, also the errors of the store.
    pub fn malloc(&self, bytes: u64) -> Result<u64, HeapError> {
        self.block(bytes, ALIGN_BYTES_MIN).map(|block| block.address)
    }

    /// Allocates like [`Heap::malloc`], aligned to a power of two.
    ///
    /// # Errors
    ///
    /// As [`Heap::malloc`], and [`HeapError::Misuse`] if `align` is not a power of two.
    pub fn aligned(&self, align: u64, bytes: u64) -> Result<u64, HeapError> {
        if !align.is_power_of_two() {
            return Err(HeapError::Misuse(format!(
                "alignment {align} is not a power of two; ask for 16 or 64, for example"
            )));
        }
        self.block(bytes, align.max(ALIGN_BYTES_MIN)).map(|block| block.address)
    }

    /// Allocates a block of zeros for `count` objects of this many bytes.
    ///
    /// # Errors
    ///
    /// As [`Heap::malloc`], also if the product overflows.
    pub fn calloc(&self, count: u64, bytes: u64) -> Result<u64, HeapError> {
        let all = count.checked_mul(bytes).ok_or_else(|| self.no_room(u64::MAX))?;
        let block = self.block(all, ALIGN_BYTES_MIN)?;
        if !block.is_zero && all > 0 {
            self.memory.zero(block.address..block.address + all);
        }
        Ok(block.address)
    }

    /// Returns a block of `bytes` with the content of the block that begins at `address`, as far as it fits. It may be
    /// the same block; otherwise the old one is freed.
    ///
    /// # Errors
    ///
    /// As [`Heap::malloc`] and [`Heap::free`]; the old block is unchanged then.
    pub fn realloc(&self, address: u64, bytes: u64) -> Result<u64, HeapError> {
        if bytes > BLOCK_BYTES_MAX {
            return Err(self.no_room(bytes));
        }
        let wanted = bytes.max(1);
        if self.allocator.resize(address, wanted).map_err(|refusal| self.explain(refusal, address))? {
            return Ok(address);
        }
        let block = self.block(wanted, ALIGN_BYTES_MIN)?;
        let kept = self.readable_bytes(address, block.address)?.min(wanted);
        self.memory.copy(address, block.address, kept);
        self.free(address)?;
        Ok(block.address)
    }

    /// Frees a block.
    ///
    /// # Errors
    ///
    /// [`HeapError::Misuse`] if no block begins there; nothing has changed then.
    pub fn free(&self, address: u64) -> Result<(), HeapError> {
        self.allocator.free(address).map_err(|refusal| self.explain(refusal, address))
    }

    /// The size of a block: the requested size or slightly more. All of it may be used.
    ///
    /// # Errors
    ///
    /// As [`Heap::free`]; and always with [`Kind::Bump`], which records no sizes.
    pub fn usable_bytes(&self, address: u64) -> Result<u64, HeapError> {
        self.allocator.usable_bytes(address).map_err(|refusal| self.explain(refusal, address))
    }

    /// Releases everything that is kept for later blocks.
    ///
    /// # Errors
    ///
    /// The errors of the store, for a shared heap.
    pub fn trim(&self) -> Result<(), HeapError> {
        self.allocator.trim().map_err(|refusal| self.explain(refusal, 0))
    }

    /// The use of the heap.
    pub fn statistics(&self) -> Statistics {
        self.allocator.statistics()
    }

    /// Excludes every other thread until the result is dropped. `fork` is called in between, so that the child's copy
    /// of the heap is consistent.
    pub fn hold(&self) -> Held<'_> {
        self.allocator.hold()
    }

    fn block(&self, bytes: u64, align: u64) -> Result<Block, HeapError> {
        if bytes > BLOCK_BYTES_MAX || align > BLOCK_BYTES_MAX {
            return Err(self.no_room(bytes.max(align)));
        }
        let block = self.allocator.allocate(bytes.max(1), align).map_err(|refusal| match refusal {
            Refusal::NoRoom { .. } => self.no_room(bytes),
            other => self.explain(other, 0),
        })?;
        debug_assert!(block.address.is_multiple_of(align) && self.contains(block.address));
        Ok(block)
    }

    /// How many bytes may be copied from a block to a newer one: its whole size or, if sizes are not recorded and
    /// addresses only grow, the distance between the two.
    fn readable_bytes(&self, address: u64, newer: u64) -> Result<u64, HeapError> {
        if self.kind == Kind::Bump { Ok(newer - address) } else { self.usable_bytes(address) }
    }

    fn no_room(&self, bytes: u64) -> HeapError {
        let all = self.range.end - self.range.start;
        let held = self.statistics().held_bytes;
        HeapError::NoRoom(format!(
            "the heap has no {bytes} bytes in a row left: {held} of its {all} bytes are in use; free something, or give the \
             region more bytes"
        ))
    }

    fn explain(&self, refusal: Refusal, address: u64) -> HeapError {
        let Range { start, end } = self.range;
        match refusal {
            Refusal::Failed(error) => error,
            Refusal::NoRoom { pages, .. } => self.no_room(pages.saturating_mul(PAGE_BYTES)),
            Refusal::Foreign if !self.contains(address) => HeapError::Misuse(format!(
                "address {address:#x} is not in the heap, which is {start:#x}..{end:#x}; give back only what its own \
                 functions returned"
            )),
            Refusal::Foreign | Refusal::NoBlock => HeapError::Misuse(format!(
                "no block begins at address {address:#x} of the heap: it was freed before, or never allocated; look for a \
                 double free"
            )),
        }
    }
}

/// The whole pages of a range, if a heap can number them.
fn checked(range: Range<u64>) -> Result<Range<u64>, HeapError> {
    let pages =
        range.start.checked_next_multiple_of(PAGE_BYTES).map(|start| start..range.end / PAGE_BYTES * PAGE_BYTES);
    pages
        .filter(|pages| pages.start > 0 && pages.start < pages.end && (pages.end - pages.start) / PAGE_BYTES <= 1 << 32)
        .ok_or_else(|| {
            let Range { start, end } = range;
            HeapError::Misuse(format!(
                "{start:#x}..{end:#x} is no range for a heap; give at least one whole page, and at most 16 TiB"
            ))
        })
}

/// The heap's state stays consistent when a thread panics elsewhere, so a poisoned lock is still usable.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
