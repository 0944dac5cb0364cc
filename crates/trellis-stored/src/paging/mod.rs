//! Pages of a region at the addresses of the program: the kernel catches faults, pages are fetched when they are
//! touched, and only differences are written back, within a bounded memory.
//!
//! A few threads *serve*. One of them waits for faults and decides what it can without the store (a page that is known
//! to be zero, a store to a page that is in memory); before it waits for the store, it lets another thread lead.
//! Further threads *fetch ahead* and *clean*: while the program computes, they write back pages that it no longer uses,
//! and free page frames.
//!
//! Promises: page frames and twins together use no more than `cache_bytes_max`. A page frame is never freed in the
//! middle of a store to it: access is removed first, then the page frame is compared, written, and only then dropped.
//! System calls on pages that are not in memory wait for them. In a shared region, nothing is written to a page of the
//! store before its release; changes that must leave memory earlier are kept in separate redo records.
//!
//! An error of the store while a thread waits for a page ends the process, because there is no caller to which it could
//! be returned.
//!
//! It must never touch the application view, or wait for the store while it holds the table.

mod cleaning;
mod copies;
mod faults;
mod fetching;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use trellis_base::{Deadline, Limit};
use trellis_memory::{Catcher, Fault, FaultServer, Region, RegionOptions, Reserve};
use trellis_store::Store;

use super::coherence::entry::Patch;
use super::error::StoredError;
use super::fault_threads::FaultThreads;
use super::layout::PAGE_BYTES;
use super::lines::Lines;
use super::page_frames::{Measure, Table};
use super::readahead::ReadAhead;

/// The limit of a wait for a page. A page is fetched once, and into memory that another page has left, so a thread
/// waits for the thread that fetches it or makes room.
pub(crate) const PAGE: Deadline = Deadline {
    who: "a thread at a page in a store",
    waits_for: "the page, or room in the cache, where another thread fetches or writes back pages",
    limit: Limit::Other("as long as that waits for the store"),
    then: "it waits",
    tested: "the wait of the other thread ends it",
};
/// The number of threads that serve faults, and so of pages that are awaited at once.
const SERVERS: usize = 4;
/// The number of threads that fetch ahead.
const FETCHERS: usize = 2;
/// The number of threads that write back and free page frames.
const CLEANERS: usize = 2;
/// The maximum number of pages that one call fetches or writes back.
const BATCH_PAGES_MAX: usize = 256;

/// The parameters of a region's pages.
#[derive(Clone, Debug)]
pub struct Options {
    /// The region's number in the store.
    pub region: u32,
    /// The region's first address: [`super::layout::REGION_BASE`].
    pub base: usize,
    /// The region's size in bytes.
    pub bytes: usize,
    /// This process's number among the members.
    pub member: u64,
    /// Whether no other process uses the region.
    pub is_private: bool,
    /// Whether the region was just created, so that nothing of it is in the store.
    pub is_new: bool,
    /// The maximum memory for page frames and twins, in bytes.
    pub cache_bytes_max: usize,
    /// Whether programs compiled for mode `line` use the region.
    pub has_lines: bool,
    /// In a page that no other process uses, changed bytes at most this far apart are written as one byte range.
    pub join_bytes: usize,
}

/// The pages of a region in this process.
pub struct Paging {
    region: Region,
    store: Arc<dyn Store>,
    options: Options,
    batch: Batch,
    table: Mutex<Table>,
    /// It is signalled when memory was freed, or a change has arrived in the store.
    changed: Condvar,
    /// It is signalled when memory becomes short, or when a page frame may be freed while memory is short.
    short: Condvar,
    ahead: Mutex<ReadAhead>,
    lines: Option<Lines>,
    fault_threads: FaultThreads,
    is_sealed: AtomicBool,
    /// Whether a release is collecting the changed pages: no write-back begins meanwhile.
    is_collecting: AtomicBool,
    /// The number of threads that are cleaning now; changed only with the table locked.
    cleaning: AtomicUsize,
    redo_records: AtomicU64,
    counters: Counters,
}

/// The size of one call.
#[derive(Clone, Copy, Debug)]
struct Batch {
    measure: Measure,
    operations_max: usize,
    call_bytes_max: usize,
}

/// Counts since the start.
#[derive(Debug, Default)]
struct Counters {
    faults: AtomicU64,
    fetched: AtomicU64,
    ahead: AtomicU64,
    evicted: AtomicU64,
    written_bytes: AtomicU64,
}

/// Counts of what happened to the pages of a region in this process, and what is in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageStatistics {
    /// Accesses that were not allowed at once.
    pub faults: u64,
    /// Pages fetched from the store.
    pub pages_fetched: u64,
    /// Pages among these that were fetched before they were touched.
    pub pages_fetched_ahead: u64,
    /// Page frames that were freed.
    pub pages_evicted: u64,
    /// Bytes that were written back before a release.
    pub bytes_written_back: u64,
    /// Page frames in memory.
    pub page_frames: u64,
    /// Twins in memory.
    pub twins: u64,
}

struct Nobody;

impl FaultServer for Nobody {
    fn serve(&self, _fault: Fault) {}
}

impl Paging {
    /// Maps the region at its fixed address, and starts to serve.
    ///
    /// # Errors
    ///
    /// What this machine lacks, or what already occupies the addresses.
    pub fn start(store: Arc<dyn Store>, options: Options) -> Result<Arc<Paging>, StoredError> {
        let region = Region::create(&RegionOptions {
            base_address: Some(options.base),
            bytes: options.bytes,
            page_bytes: PAGE_BYTES,
            catcher: Catcher::Handler,
            reserve: Reserve::Overcommit,
        })?;
        let lines = match options.has_lines {
            true => Some(Lines::map().map_err(|error| {
                StoredError::Argument(format!(
                    "the table of lines could not be mapped where programs look for it: {error}"
                ))
            })?),
            false => None,
        };
        region.catch(Arc::new(Nobody))?;
        let fault_threads = FaultThreads::new()
            .map_err(|error| StoredError::Argument(format!("eventfd failed ({error}); look at `ulimit -n`")))?;
        let pages = options.bytes / PAGE_BYTES;
        let room = (options.cache_bytes_max / PAGE_BYTES).max(256);
        let can = store.capabilities();
        let batch = Batch {
            measure: Measure::of(room, BATCH_PAGES_MAX.min((can.call_bytes_max / 2 / PAGE_BYTES).max(1))),
            operations_max: can.operations_max,
            call_bytes_max: can.call_bytes_max.min(2 << 20),
        };
        let paging = Arc::new(Paging {
            table: Mutex::new(Table::new(pages, room, !(options.is_private && options.is_new))),
            ahead: Mutex::new(ReadAhead::new(pages as u64, batch.measure.pages as u64)),
            region,
            store,
            options,
            batch,
            changed: Condvar::new(),
            short: Condvar::new(),
            lines,
            fault_threads,
            is_sealed: AtomicBool::new(false),
            is_collecting: AtomicBool::new(false),
            cleaning: AtomicUsize::new(0),
            redo_records: AtomicU64::new(0),
            counters: Counters::default(),
        });
        for _ in 0..SERVERS {
            paging.spawn("trellis-serve", Paging::serve)?;
        }
        for _ in 0..FETCHERS {
            paging.spawn("trellis-ahead", Paging::fetch_ahead)?;
        }
        for _ in 0..CLEANERS {
            paging.spawn("trellis-clean", Paging::clean)?;
        }
        Ok(paging)
    }

    /// Ends the threads; the region must not be touched any more. Nothing is written.
    pub fn stop(&self) {
        if !self.fault_threads.end() {
            return;
        }
        drop(self.table());
        self.arrived();
        // This ends when the threads see that it is over; each of their calls has the deadline of the store.
        self.fault_threads.join();
        self.region.release();
    }

    /// Stops writing back and freeing page frames, at the end of a process whose region is removed. Pages are still
    /// served.
    pub fn seal(&self) {
        self.is_sealed.store(true, Ordering::SeqCst);
        let mut table = self.table();
        while table.is_any_writing() {
            // This wait ends when the write that is under way ends, which has the deadline of the store.
            table = self.changed.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        // Threads that wait for memory get it; the process is about to end.
        table.set_room(usize::MAX);
        drop(table);
        self.arrived();
    }

    /// The region's first address.
    pub fn base(&self) -> usize {
        self.options.base
    }

    /// The region's size.
    pub fn bytes(&self) -> usize {
        self.options.bytes
    }

    /// Whether system calls on pages that are not in memory wait, with this process's permissions.
    pub fn system_calls_work(&self) -> bool {
        self.region.system_calls_work()
    }

    /// The counts so far.
    pub fn statistics(&self) -> PageStatistics {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (page_frames, twins) = {
            let table = self.table();
            (table.page_frames() as u64, table.twins() as u64)
        };
        PageStatistics {
            faults: count(&self.counters.faults),
            pages_fetched: count(&self.counters.fetched),
            pages_fetched_ahead: count(&self.counters.ahead),
            pages_evicted: count(&self.counters.evicted),
            bytes_written_back: count(&self.counters.written_bytes),
            page_frames,
            twins,
        }
    }

    /// The pages that may be in the store; for a private region, exactly those that are.
    pub fn stored_pages(&self) -> Vec<u64> {
        self.table().stored_pages().collect()
    }

    fn spawn(self: &Arc<Self>, name: &str, body: fn(&Paging)) -> Result<(), StoredError> {
        let paging = Arc::clone(self);
        let spawned = self.fault_threads.spawn(name, move || body(&paging));
        spawned.map_err(|error| {
            StoredError::Argument(format!(
                "a thread that looks after pages could not be started: {error}; look at `ulimit -u`"
            ))
        })
    }

    /// The distance up to which changed bytes are joined into one range: zero if other processes may have changed the
    /// bytes in between.
    fn join_bytes(&self) -> usize {
        if self.options.is_private { self.options.join_bytes } else { 0 }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.fault_threads.is_over()
    }

    /// Wakes threads that may wait for a change of the table: memory was freed, bytes were fetched, or a change has
    /// arrived in the store. It is called after the table was changed.
    fn arrived(&self) {
        self.changed.notify_all();
        // Pages whose write-back has ended may be freed now. Threads that have nothing to clean are not woken for each
        // release.
        if self.cleaning.load(Ordering::SeqCst) > 0 || self.is_over() {
            self.short.notify_all();
        }
    }

    /// The bytes of a page frame.
    ///
    /// # Safety
    ///
    /// The caller holds the table, and no thread can store to the page: it is not mapped for writing, or not yet.
    #[allow(clippy::mut_from_ref, reason = "it is memory of the region, and the table says who uses it")]
    unsafe fn page_frame(&self, page: u64) -> &mut [u8] {
        // SAFETY: the privileged view of one page; the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.region.privileged(page as usize, 1), PAGE_BYTES) }
    }

    /// The bytes of a twin.
    ///
    /// # Safety
    ///
    /// The caller holds the table.
    #[allow(clippy::mut_from_ref, reason = "as for a page frame")]
    unsafe fn twin(&self, page: u64) -> &mut [u8] {
        // SAFETY: the twin of one page; only the holder of the table uses twins.
        unsafe { std::slice::from_raw_parts_mut(self.region.twin(page as usize, 1), PAGE_BYTES) }
    }

    /// The difference of a dirty page to which no thread can store now. Afterwards the page is clean, and its twin is
    /// dropped.
    fn take_difference(&self, table: &mut Table, page: u64, join: usize) -> Option<Patch> {
        const ZERO: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
        let has_twin = table.make_clean(page);
        // SAFETY: the caller holds the table and has removed write access.
        let (frame, twin) = unsafe { (self.page_frame(page), if has_twin { self.twin(page) } else { &ZERO[..] }) };
        super::coherence::entry::difference(page, frame, twin, join)
    }

    /// Ends the process, because a page is needed and cannot be read.
    fn fail(&self, error: &StoredError) -> ! {
        super::end::end_process(&format!("a page of the region could not be had: {error}"))
    }
}
