//! Pages of a region at the addresses of the program: caught by the kernel, fetched when touched, written back by
//! difference, within a bounded memory.
//!
//! A few threads *serve*: one of them waits for faults, decides what it can by itself (a page that is known to be zero, a
//! store to a page that is here), and stops leading before it waits for the store. Others *fetch ahead* and *clean*:
//! write back what the program is done with, and give frames up, while it computes.
//!
//! Promises: frames and twins together take no more than `cache_bytes_max`; a frame is never given up in the middle of a
//! store to it: its access is taken away first, then it is compared, written, and only then dropped. System calls on
//! pages that are not here wait for them. Of a shared region nothing gets into a page of the store before its release:
//! what must leave memory earlier lies in chunks of its own.
//!
//! An error of the store while somebody waits for a page ends the process: there is nobody to return it to.
//!
//! Must never touch the application view, or wait for the store while it holds the table.

mod cleaning;
mod copies;
mod faults;
mod fetching;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use trellis_memory::{Catcher, Fault, FaultServer, Region, RegionOptions, Reserve};
use trellis_store::Store;

use super::coherence::entry::Patch;
use super::error::StoredError;
use super::fault_threads::FaultThreads;
use super::frames::{Measure, Table};
use super::layout::PAGE_BYTES;
use super::lines::Lines;
use super::readahead::ReadAhead;

/// Threads that serve faults: so many pages may be waited for at once.
const SERVERS: usize = 4;
/// Threads that fetch ahead.
const FETCHERS: usize = 2;
/// Threads that write back and give up.
const CLEANERS: usize = 2;
/// The most pages that one call brings or takes away.
const BATCH_PAGES_MAX: usize = 256;

/// What a region's pages are to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// The region's number in the store.
    pub region: u32,
    /// Where programs expect it: [`super::layout::REGION_BASE`].
    pub base: usize,
    /// Its size.
    pub bytes: usize,
    /// This process's number among the members.
    pub member: u64,
    /// Whether nobody else uses it.
    pub is_private: bool,
    /// Whether it has just been made, so that nothing of it is in the store.
    pub is_new: bool,
    /// How much memory frames and twins may take.
    pub cache_bytes_max: usize,
    /// Whether programs compiled for mode `line` use it.
    pub has_lines: bool,
    /// Changed bytes of a page that nobody else uses are written as one run where they are no further apart.
    pub join_bytes: usize,
}

/// The pages of a region in this process.
pub struct Paging {
    region: Region,
    store: Arc<dyn Store>,
    options: Options,
    batch: Batch,
    table: Mutex<Table>,
    /// Memory became free, or a change arrived in the store.
    changed: Condvar,
    /// Memory gets short, or what is short of it may be given up.
    short: Condvar,
    ahead: Mutex<ReadAhead>,
    lines: Option<Lines>,
    fault_threads: FaultThreads,
    is_sealed: AtomicBool,
    /// A release looks at the pages: nothing new is written before it has.
    is_collecting: AtomicBool,
    /// The threads that clean just now; changed by who has the table.
    cleaning: AtomicUsize,
    chunks: AtomicU64,
    counters: Counters,
}

/// How much one call takes.
#[derive(Clone, Copy, Debug)]
struct Batch {
    measure: Measure,
    operations_max: usize,
    call_bytes_max: usize,
}

/// What happened, since the start.
#[derive(Debug, Default)]
struct Counters {
    faults: AtomicU64,
    fetched: AtomicU64,
    ahead: AtomicU64,
    evicted: AtomicU64,
    written_bytes: AtomicU64,
}

/// What happened to the pages of a region in this process, and what of it is here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageStatistics {
    /// Accesses that were not allowed at once.
    pub faults: u64,
    /// Pages that came from the store.
    pub pages_fetched: u64,
    /// Of these, those that came before they were touched.
    pub pages_fetched_ahead: u64,
    /// Frames that were given up.
    pub pages_evicted: u64,
    /// Bytes that were written back before a release.
    pub bytes_written_back: u64,
    /// Frames in memory.
    pub frames: u64,
    /// Twins in memory.
    pub twins: u64,
}

struct Nobody;

impl FaultServer for Nobody {
    fn serve(&self, _fault: Fault) {}
}

impl Paging {
    /// Maps the region where programs expect it, and starts to serve.
    ///
    /// # Errors
    ///
    /// What this machine lacks, or what is in the way.
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
            chunks: AtomicU64::new(0),
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

    /// Ends the threads; nobody may touch the region any more. Nothing is written.
    pub fn stop(&self) {
        if !self.fault_threads.end() {
            return;
        }
        drop(self.table());
        self.arrived();
        self.fault_threads.join();
        self.region.release();
    }

    /// Writes nothing more and gives nothing more up: for the end of a process whose region goes. Pages are still served.
    pub fn seal(&self) {
        self.is_sealed.store(true, Ordering::SeqCst);
        let mut table = self.table();
        while table.is_any_writing() {
            table = self.changed.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        // Whoever waits for memory gets it: it is for moments.
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

    /// Whether system calls on pages that are not here wait, with this process's permissions.
    pub fn system_calls_wait(&self) -> bool {
        self.region.system_calls_wait()
    }

    /// What happened.
    pub fn statistics(&self) -> PageStatistics {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (frames, twins) = {
            let table = self.table();
            (table.frames() as u64, table.twins() as u64)
        };
        PageStatistics {
            faults: count(&self.counters.faults),
            pages_fetched: count(&self.counters.fetched),
            pages_fetched_ahead: count(&self.counters.ahead),
            pages_evicted: count(&self.counters.evicted),
            bytes_written_back: count(&self.counters.written_bytes),
            frames,
            twins,
        }
    }

    /// The pages that may be in the store; for a private region, all that are.
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

    /// How far changed bytes may be apart to be written as one run: not at all where others may have changed those between.
    fn join_bytes(&self) -> usize {
        if self.options.is_private { self.options.join_bytes } else { 0 }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.fault_threads.is_over()
    }

    /// Something changed that others may wait for: memory is free, bytes are here, or in the store. Called after the
    /// table was changed.
    fn arrived(&self) {
        self.changed.notify_all();
        // What was on its way may be given up now. Threads that have nothing to clean are not woken for each release.
        if self.cleaning.load(Ordering::SeqCst) > 0 || self.is_over() {
            self.short.notify_all();
        }
    }

    /// The bytes of a frame.
    ///
    /// # Safety
    ///
    /// The caller has the table, and nobody can store to the page: it is not mapped for writing, or not yet.
    #[allow(clippy::mut_from_ref, reason = "it is memory of the region, and the table says who uses it")]
    unsafe fn frame(&self, page: u64) -> &mut [u8] {
        // SAFETY: the engine view of one page; the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.region.engine(page as usize, 1), PAGE_BYTES) }
    }

    /// The bytes of a twin.
    ///
    /// # Safety
    ///
    /// The caller has the table.
    #[allow(clippy::mut_from_ref, reason = "as for a frame")]
    unsafe fn twin(&self, page: u64) -> &mut [u8] {
        // SAFETY: the twin of one page; only who has the table uses twins.
        unsafe { std::slice::from_raw_parts_mut(self.region.twin(page as usize, 1), PAGE_BYTES) }
    }

    /// What changed in a dirty page that cannot be stored to now; it is clean afterwards. Its twin goes.
    fn take_difference(&self, table: &mut Table, page: u64, join: usize) -> Option<Patch> {
        const ZERO: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
        let has_twin = table.make_clean(page);
        // SAFETY: the caller has the table and has taken the right to store away.
        let (frame, twin) = unsafe { (self.frame(page), if has_twin { self.twin(page) } else { &ZERO[..] }) };
        super::coherence::entry::difference(page, frame, twin, join)
    }

    /// A page must be had, and cannot.
    fn fail(&self, error: &StoredError) -> ! {
        super::end::end_process(&format!("a page of the region could not be had: {error}"))
    }
}
