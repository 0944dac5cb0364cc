//! The heap of a region in a store: the malloc family over a range of addresses.
//!
//! # Contract
//!
//! A [`Heap`] hands out blocks of `[base, base + bytes)`. What it knows about them is kept outside of these bytes, in
//! memory of this process (and, for a heap that several processes share, in control keys of the store), so that neither
//! allocating nor freeing touches the region. The few things that a heap needs of the bytes themselves go through
//! [`Memory`].
//!
//! It promises: blocks never overlap; every block is aligned to 16, or to what was asked; what is no block, or none any
//! more, is refused with one sentence and changes nothing; free neighbours join; pages that nobody needs are given up.
//! It calls [`Memory`] under locks that allocating needs, here and there; so a [`Memory`] must never allocate from the heap
//! that called it, nor wait for a thread that does. No memory of the region is touched but through [`Memory`].
//!
//! Three kinds, one file each: `first_fit` and `bump` are those of the paper (chapter 4), `scalable` is the default.

mod bump;
mod description;
mod directory;
mod first_fit;
mod intervals;
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

/// Every block is aligned to this, as C wants it.
pub const ALIGN_BYTES_MIN: u64 = trellis_base::size_classes::ALIGN_BYTES_MIN;
/// Memory is released and fetched in pages of so many bytes.
pub const PAGE_BYTES: u64 = 4096;
/// No block is longer: distances within an object are signed numbers.
const BLOCK_BYTES_MAX: u64 = i64::MAX as u64;

/// The bytes that a heap hands out, as far as the heap itself has to do with them.
///
/// Ranges of [`Memory::released`] and [`Memory::fresh`] are whole pages.
pub trait Memory: Send + Sync {
    /// Nobody needs what these pages hold, so that nothing has to keep them. True when they read as zero from now on.
    fn released(&self, pages: Range<u64>) -> bool;

    /// These pages are handed out, and are zero everywhere: nobody has to fetch them. Those that are here already stay
    /// as they are; another thread may have begun to use them.
    fn fresh(&self, pages: Range<u64>);

    /// Makes every byte of a range zero.
    fn zero(&self, bytes: Range<u64>);

    /// Copies bytes to where they do not overlap.
    fn copy(&self, from: u64, to: u64, bytes: u64);

    /// Writes bytes for the program, wherever in its memory: an answer that C wants at an address.
    ///
    /// # Safety
    ///
    /// The program may write there.
    // SAFETY: it is only declared here; each implementation says why it is sound.
    unsafe fn write(&self, address: u64, bytes: &[u8]);

    /// Whether the child of a `fork` has this memory as the parent does. Where it has not, the child's allocations go
    /// elsewhere.
    fn survives_fork(&self) -> bool {
        false
    }

    /// What this process wrote is known to every process from now on; before memory goes from this process to another.
    ///
    /// # Errors
    ///
    /// The store's; then the memory stays here.
    fn publish(&self) -> Result<(), HeapError> {
        Ok(())
    }

    /// What other processes published is seen here from now on; after memory came from another process.
    ///
    /// # Errors
    ///
    /// The store's.
    fn refresh(&self) -> Result<(), HeapError> {
        Ok(())
    }

    /// Whether other processes see each store at once, before a release. Then they may know a block as soon as it is handed
    /// out, and the heap tells of it before that.
    fn is_seen_at_once(&self) -> bool {
        false
    }

    /// Whether [`Memory::publish`] takes along what [`Heap::changes`] returns; else the heap applies it where it has to.
    fn publishes_changes(&self) -> bool {
        false
    }
}

/// How blocks are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Pools of sizes for each thread, pages for large blocks.
    #[default]
    Scalable,
    /// The paper's free list under one lock.
    FirstFit,
    /// The paper's malloc without free: a number that grows.
    Bump,
}

impl Kind {
    /// How it is written.
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
            .ok_or_else(|| format!("`{name}` is no kind of heap; write `scalable`, `first-fit` or `bump`"))
    }
}

/// With whom a heap is shared.
#[derive(Clone)]
pub struct Share {
    /// Where the region is.
    pub store: Arc<dyn Store>,
    /// Its number.
    pub region: u32,
    /// This process's number among its members: nobody else's, and below 2^32.
    pub member: u64,
}

/// Why a heap did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// There is not so much memory in a row.
    #[error("{0}")]
    NoRoom(String),
    /// The program gave back what it does not have, or asked for what cannot be.
    #[error("{0}")]
    Misuse(String),
    /// The store did not do its part.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Others thought that this process had ended, and its part of the heap is theirs.
    #[error(
        "the heap of the region in store {store}: the other processes declared this one (member {member}) dead, because it \
         gave no sign of life for a lease, and its part of the heap is theirs now; start it again"
    )]
    Fenced {
        /// Where it is.
        store: String,
        /// This process's number.
        member: u64,
    },
}

/// How much of a heap is in use. Bytes are those of whole blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Blocks that were handed out and not freed yet.
    pub blocks: u64,
    /// Their bytes.
    pub block_bytes: u64,
    /// Bytes that cannot be used for anything else now: blocks, and what is kept to cut blocks from.
    pub held_bytes: u64,
    /// Runs of memory that are free; one when everything was freed. A heap without free counts none.
    pub free_runs: u64,
    /// Of a shared heap: blocks that another process gave back, and that were none.
    pub strays: u64,
}

/// A block that is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    address: u64,
    bytes: u64,
    /// Every byte of it reads as zero.
    is_zero: bool,
}

/// Why an allocator did nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Refusal {
    /// It has not so many pages in a row, the first at a multiple of the second number.
    NoRoom { pages: u64, align_pages: u64 },
    /// It has no blocks there.
    Foreign,
    /// It has blocks there, but none begins there now.
    NoBlock,
    /// Something else.
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

/// What every kind of heap can do. Sizes are at least 1 and at most [`BLOCK_BYTES_MAX`], alignments powers of two and at
/// least [`ALIGN_BYTES_MIN`]. Nothing has changed when something was refused.
trait Allocator: Send + Sync {
    fn allocate(&self, bytes: u64, align: u64) -> Result<Block, Refusal>;

    fn free(&self, address: u64) -> Result<(), Refusal>;

    /// Makes a block of these bytes of the one that begins there, without moving it; false where that cannot be.
    fn resize(&self, address: u64, bytes: u64) -> Result<bool, Refusal>;

    fn usable_bytes(&self, address: u64) -> Result<u64, Refusal>;

    /// Gives up everything that is kept for later.
    fn trim(&self) -> Result<(), Refusal>;

    fn statistics(&self) -> Statistics;

    /// As [`Heap::changes`]; this and the next three are for heaps that processes share.
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

    /// Every lock, so that a copy of the process finds them in order.
    fn hold(&self) -> Held<'_>;
}

/// Nobody else allocates or frees while this is kept: for the moment in which a process is copied.
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
    /// A heap over addresses that nobody else hands out, all of which read as zero. What is not whole pages at either end
    /// stays unused.
    ///
    /// # Errors
    ///
    /// [`HeapError::Misuse`] for a range that is no range of addresses, or longer than 16 TiB.
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

    /// A heap that several processes share, each with one of these for the same range: what belongs to whom is in control
    /// keys of the region. A process takes memory from there in bulk, so that few allocations call the store; a block may
    /// be freed by any process, which tells the owner, many at a time.
    ///
    /// Whoever writes memory back has a part in this: what [`Heap::changes`] returns goes into every release, so that
    /// pointers which another process gets to know are pointers that it can reallocate and free.
    ///
    /// # Errors
    ///
    /// [`HeapError::Misuse`] for a range that is no range of addresses, and for [`Kind::FirstFit`], whose list is of one
    /// process.
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

    /// What has to be in the store before another process can use pointers of this one; nothing for a heap of one process.
    /// The caller applies all of it, with its release or alone.
    pub fn changes(&self) -> Vec<Operation> {
        self.allocator.changes()
    }

    /// Tells other processes which of their blocks were freed here, takes back what they freed of this one's, and gives
    /// away what is not needed. A process that leaves calls it at its end, with `leaves`; then blocks that are still in
    /// use can be freed by whoever takes over (see [`Heap::take_over`]).
    ///
    /// # Errors
    ///
    /// The store's.
    pub fn settle(&self, leaves: bool) -> Result<(), HeapError> {
        self.allocator.settle(leaves).map_err(|refusal| self.explain(refusal, 0))
    }

    /// The members of which some have memory of a shared heap.
    ///
    /// # Errors
    ///
    /// The store's.
    pub fn owners(&self) -> Result<Vec<u64>, HeapError> {
        self.allocator.owners().map_err(|refusal| self.explain(refusal, 0))
    }

    /// Makes this process the owner of everything that a member had which has left, or is known to be dead, and can do
    /// nothing any more. Blocks of a dead member that nobody ever freed stay what they are.
    ///
    /// # Errors
    ///
    /// The store's.
    pub fn take_over(&self, member: u64) -> Result<(), HeapError> {
        self.allocator.take_over(member).map_err(|refusal| self.explain(refusal, 0))
    }

    /// Makes this process the owner of everything that members had which have left or are known to be dead, so that it is
    /// used again: at the beginning, and by itself before a shared heap grows. Blocks that such a member had at its last
    /// release stay what they are. One call, two when others have a part of the heap.
    ///
    /// # Errors
    ///
    /// The store's.
    pub fn take_over_dead(&self) -> Result<(), HeapError> {
        self.allocator.take_over_dead().map_err(|refusal| self.explain(refusal, 0))
    }

    /// For some of what [`Heap::changes`] returned, and cannot go with its release: what to apply before the release, the
    /// changes being applied after it. Whoever takes over from a process that dies between finds nothing there that it may use.
    pub fn withheld(&self, changes: &[Operation]) -> Vec<Operation> {
        self.allocator.withheld(changes)
    }

    /// The addresses from which blocks are cut.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// How blocks are found.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The memory that it is over.
    pub fn memory(&self) -> &dyn Memory {
        &*self.memory
    }

    /// Whether an address is one of this heap's.
    pub fn contains(&self, address: u64) -> bool {
        self.range.contains(&address)
    }

    /// A block of so many bytes, which may hold anything. A block of none has an address of its own.
    ///
    /// # Errors
    ///
    /// [`HeapError::NoRoom`]; where the heap is shared, also those of the store.
    pub fn malloc(&self, bytes: u64) -> Result<u64, HeapError> {
        self.block(bytes, ALIGN_BYTES_MIN).map(|block| block.address)
    }

    /// The same at a multiple of a power of two.
    ///
    /// # Errors
    ///
    /// As [`Heap::malloc`], and [`HeapError::Misuse`] where `align` is no power of two.
    pub fn aligned(&self, align: u64, bytes: u64) -> Result<u64, HeapError> {
        if !align.is_power_of_two() {
            return Err(HeapError::Misuse(format!(
                "alignment {align} is no power of two; ask for 16 or 64, for example"
            )));
        }
        self.block(bytes, align.max(ALIGN_BYTES_MIN)).map(|block| block.address)
    }

    /// Zeros for `count` objects of so many bytes.
    ///
    /// # Errors
    ///
    /// As [`Heap::malloc`], also where the product is no number.
    pub fn calloc(&self, count: u64, bytes: u64) -> Result<u64, HeapError> {
        let all = count.checked_mul(bytes).ok_or_else(|| self.no_room(u64::MAX))?;
        let block = self.block(all, ALIGN_BYTES_MIN)?;
        if !block.is_zero && all > 0 {
            self.memory.zero(block.address..block.address + all);
        }
        Ok(block.address)
    }

    /// A block of `bytes` with the contents of the one that begins at `address`, as far as they fit. It may be the same;
    /// otherwise the old one was freed.
    ///
    /// # Errors
    ///
    /// As [`Heap::malloc`] and [`Heap::free`]; the old block stays what it was.
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

    /// Gives a block back.
    ///
    /// # Errors
    ///
    /// [`HeapError::Misuse`] where no block begins there; nothing has changed then.
    pub fn free(&self, address: u64) -> Result<(), HeapError> {
        self.allocator.free(address).map_err(|refusal| self.explain(refusal, address))
    }

    /// How many bytes a block has: what was asked for, or a little more. All of them may be used.
    ///
    /// # Errors
    ///
    /// As [`Heap::free`]; and always with [`Kind::Bump`], which knows no sizes.
    pub fn usable_bytes(&self, address: u64) -> Result<u64, HeapError> {
        self.allocator.usable_bytes(address).map_err(|refusal| self.explain(refusal, address))
    }

    /// Gives up everything that is kept for later blocks.
    ///
    /// # Errors
    ///
    /// The store's, for a heap that several processes share.
    pub fn trim(&self) -> Result<(), HeapError> {
        self.allocator.trim().map_err(|refusal| self.explain(refusal, 0))
    }

    /// How much is in use.
    pub fn statistics(&self) -> Statistics {
        self.allocator.statistics()
    }

    /// Keeps every other thread out until the answer is dropped. `fork` is called between, so that the child's copy of
    /// the heap is in order.
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

    /// How many bytes may be copied from a block to a newer one: all of it; where sizes are not known, and addresses only
    /// grow, what lies between.
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

/// Whole pages of a range, which a heap can number.
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

/// The heap's state stays in order when a thread panics elsewhere, so a poisoned lock is as good as another.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
