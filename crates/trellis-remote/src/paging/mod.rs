//! Pages of a region whose bytes lie at memory servers: caught by the kernel, had under leases, within a bounded memory.
//!
//! A page that is here is a *copy*, which many hosts may have and nobody changes, or it is *owned*: under the lease of this
//! process, which may change it. Whoever wants to change a page takes a lease; home recalls the copies of others before it
//! grants one, and recalls a lease when somebody else wants the page. A few threads *serve* faults, others *fetch ahead*
//! and *clean* (give pages back while memory is short), and one *gives back* what home recalls.
//!
//! Promises: memory is sequentially consistent: a page is given away only when its access was taken away here; what was
//! changed is committed on recall, when memory gets short and at the end; where the lease had ended before that, because its
//! home died, it counts if nobody has changed the page since, and otherwise the process ends; copies and owned pages
//! together take no more than the memory that was allowed. A page that was granted stays until the thread that waited for it
//! could run on, for `HOLD`.
//!
//! Must never touch the application view, nor wait for a server while it has the table: whoever tells of a recall needs it.
//!
//! A server that does not answer while somebody waits for a page ends the process, with a sentence: there is nobody to
//! return it to.
//!
//! # Why not the driver of stored memory
//!
//! Two shapes were drawn. One driver over a *source of pages* (fetch many, write back many, events), which both kinds of
//! memory implement: its source would have had to decide what a store to a page means that is here (a twin there, a request
//! to home here), what an eviction writes (differences and chunks there; the page here), who waits for a page on its way out
//! (nobody there, everybody here), and what comes from outside and when (notices at an acquire there, at any moment here):
//! more hooks than driver. The other, taken: each has a driver of its own round common parts, the table of frames with its
//! second chance ([`trellis_cache::frames`]), the guesses ([`trellis_cache::readahead`]) and the threads
//! ([`trellis_cache::fault_threads`]).

mod events;
mod faults;
mod fetching;
mod giving;
#[cfg(test)]
mod model;
pub mod objects;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use trellis_fabric_protocol::wire::address::PAGE_BYTES;
use trellis_memory::{MapError, Region};

use trellis_cache::fault_threads::FaultThreads;
use trellis_cache::frames::{self, Measure, Table, runs};
use trellis_cache::readahead::ReadAhead;
use trellis_record::{FaultKind, LiveCounters};

pub use events::Events;

/// Threads that serve faults: so many may wait for servers at once.
const SERVERS: usize = 4;
/// Threads that fetch ahead.
const FETCHERS: usize = 2;
/// Threads that clean.
const CLEANERS: usize = 2;
/// The most pages that one call brings or takes away: several nodes' calls must fit the receive buffer of a server's socket.
const BATCH_PAGES_MAX: usize = 16;
/// The least memory in which pages are cached.
pub const ROOM_BYTES_MIN: usize = 1 << 20;
/// How long a page stays after it was granted, though somebody else wants it: a wake-up on another core.
const HOLD: Duration = Duration::from_micros(100);

/// Where pages come from and go to. A call waits until it is done, and its error is a sentence that names server and pages.
/// Pages are those of the region.
pub trait Pages: Send + Sync {
    /// Takes copies, readable here until [`Events`] says otherwise.
    ///
    /// # Errors
    ///
    /// A server did not answer in time, or refused.
    fn copy(&self, pages: &[u64], put: &mut dyn FnMut(u64, &[u8])) -> Result<(), String>;

    /// Takes leases. Each page is told of as soon as it is granted, whichever others are still waited for: else two who want
    /// the same two pages would wait for each other. With `keeps` the bytes that came last are still here, and none come
    /// when they are what the page holds.
    ///
    /// # Errors
    ///
    /// As [`Self::copy`].
    fn update(&self, pages: &[u64], keeps: bool, granted: &mut dyn FnMut(u64, Option<&[u8]>)) -> Result<(), String>;

    /// These are the pages' bytes from now on, and their leases are given back; also where a lease had ended, if nobody has
    /// changed the page since it was granted. Those of which that is not so are the answer.
    ///
    /// # Errors
    ///
    /// As [`Self::copy`].
    fn commit(&self, pages: &[(u64, &[u8])]) -> Result<Vec<u64>, String>;

    /// Who has a page, in words.
    fn server_of(&self, page: u64) -> String;

    /// These copies are not here any more.
    fn drop_copies(&self, pages: &[u64]);

    /// Nothing more will be asked; rights that are left end.
    fn close(&self);
}

/// Whose pages they are.
pub trait Host: Send + Sync {
    /// Counts.
    fn count(&self, counter: fn(&LiveCounters) -> &AtomicU64, amount: u64);

    /// A fault was answered that somebody else was asked about, or was not (`Local`), after so long.
    fn served(&self, page: u64, kind: FaultKind, waited: Duration);

    /// A page must be had, and cannot.
    fn fail(&self, sentence: String) -> !;
}

/// See the module.
pub struct Paging {
    region: Arc<Region>,
    host: Box<dyn Host>,
    pages: OnceLock<Arc<dyn Pages>>,
    measure: Measure,
    state: Mutex<State>,
    /// Memory became free, or a page is gone.
    changed: Condvar,
    /// Memory gets short, or what is short of it may be given up.
    short: Condvar,
    /// A page was recalled, or one that was recalled has been granted.
    recalled: Condvar,
    /// What was changed under a lease that is over waits to be given back.
    lost: Condvar,
    ahead: Mutex<ReadAhead>,
    fault_threads: FaultThreads,
    /// The threads that clean just now; changed by who has the table.
    cleaning: AtomicUsize,
}

/// What the threads share.
struct State {
    table: Table,
    /// Pages that were granted a moment ago, the oldest first.
    granted: VecDeque<(u64, Instant)>,
    /// Pages that home wants back.
    recalled: Vec<u64>,
    /// Pages that are on their way back because their leases are over.
    lost: Vec<u64>,
}

impl Paging {
    /// Nothing is here yet, and nothing is served before [`Self::start`].
    ///
    /// # Errors
    ///
    /// The system has no descriptor left.
    pub fn new(region: Arc<Region>, cache_bytes_max: usize, host: Box<dyn Host>) -> std::io::Result<Paging> {
        let pages = region.pages();
        // A region that fits needs no room for what is given up.
        let room = (cache_bytes_max.max(ROOM_BYTES_MIN) / PAGE_BYTES as usize).min(2 * pages + 64);
        let measure = Measure::of(room, BATCH_PAGES_MAX);
        let table = Table::new(pages, room, true);
        Ok(Paging {
            region,
            host,
            pages: OnceLock::new(),
            measure,
            state: Mutex::new(State { table, granted: VecDeque::new(), recalled: Vec::new(), lost: Vec::new() }),
            changed: Condvar::new(),
            short: Condvar::new(),
            recalled: Condvar::new(),
            lost: Condvar::new(),
            ahead: Mutex::new(ReadAhead::new(pages as u64, measure.pages as u64)),
            fault_threads: FaultThreads::new()?,
            cleaning: AtomicUsize::new(0),
        })
    }

    /// Serves from now on.
    ///
    /// # Errors
    ///
    /// The system starts no thread.
    ///
    /// # Panics
    ///
    /// When it was started before.
    pub fn start(self: &Arc<Self>, pages: Arc<dyn Pages>) -> std::io::Result<()> {
        assert!(self.pages.set(pages).is_ok(), "pages come from one source");
        let spawn = |name, body: fn(&Paging)| {
            let paging = Arc::clone(self);
            self.fault_threads.spawn(name, move || body(&paging))
        };
        for _ in 0..SERVERS {
            spawn("trellis-serve", Paging::serve)?;
        }
        for _ in 0..FETCHERS {
            spawn("trellis-ahead", Paging::fetch_ahead)?;
        }
        for _ in 0..CLEANERS {
            spawn("trellis-clean", Paging::clean)?;
        }
        spawn("trellis-return", Paging::answer_recalls)?;
        spawn("trellis-again", Paging::give_lost)
    }

    /// Ends the threads; nobody may touch the region any more. What is here is forgotten: see [`Self::flush`].
    pub fn stop(&self) {
        if !self.fault_threads.end() {
            return;
        }
        drop(self.state());
        self.arrived();
        self.recalled.notify_all();
        self.lost.notify_all();
        if let Some(pages) = self.pages.get() {
            pages.close();
        }
        self.fault_threads.join();
    }

    fn pages(&self) -> &dyn Pages {
        &**self.pages.get().expect("it was started")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.fault_threads.is_over()
    }

    /// Something changed that others may wait for. Called after the table was changed.
    fn arrived(&self) {
        self.changed.notify_all();
        if self.cleaning.load(Ordering::SeqCst) > 0 || self.is_over() {
            self.short.notify_all();
        }
    }

    /// Waits until so many frames are free, or it is over.
    fn wait_for_room<'a>(&self, mut state: MutexGuard<'a, State>, wanted: usize) -> MutexGuard<'a, State> {
        let wanted = wanted.min(state.table.room() / 8).max(1);
        while state.table.free() < wanted && !self.is_over() {
            self.short.notify_all();
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    fn notice_shortage(&self, table: &Table) {
        if self.measure.is_short(table) {
            self.short.notify_one();
        }
    }

    /// The bytes of a frame.
    ///
    /// # Safety
    ///
    /// The page is not mapped, and nobody but the caller fetches it or gives it back; or the caller has the table.
    #[allow(clippy::mut_from_ref, reason = "it is memory of the region, and the table says who uses it")]
    unsafe fn frame(&self, page: u64) -> &mut [u8] {
        // SAFETY: the engine view of one page; the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.region.engine(page as usize, 1), PAGE_BYTES as usize) }
    }

    /// Takes access away from those of ascending pages that have it.
    fn unmap(&self, table: &mut Table, pages: &[u64]) {
        let mapped: Vec<u64> = pages.iter().copied().filter(|&page| table.is_mapped(page)).collect();
        mapped.iter().for_each(|&page| table.set_mapped(page, false));
        self.revoke(&mapped);
    }

    fn revoke(&self, pages: &[u64]) {
        for (first, count) in runs(pages) {
            self.mapped(self.region.revoke(first, count));
        }
    }

    /// Nothing acknowledged is lost, but this process cannot go on with what others will never see.
    fn lose(&self, page: u64) -> ! {
        let (first, last) = self.owned_around(page);
        self.host.fail(format!(
            "the lease of page {page} at {} ended before what was changed in it could be given back, and somebody else has \
             changed the page since, or nobody knows whether (pages {first} to {last} of the region may be as they were \
             before): their memory server ended or was replaced, this process was stopped, or the network is overloaded; \
             start the program again",
            self.pages().server_of(page)
        ))
    }

    /// The pages beside this one that this process may have changed.
    fn owned_around(&self, page: u64) -> (u64, u64) {
        let state = self.state();
        let is_owned = |page: &u64| state.table.state(*page) == frames::State::Dirty || state.table.is_writing(*page);
        let first = (0..page).rev().take_while(is_owned).last().unwrap_or(page);
        let last = (page + 1..state.table.pages()).take_while(is_owned).last().unwrap_or(page);
        (first, last)
    }

    /// What cannot be mapped cannot be used.
    fn mapped(&self, done: Result<(), MapError>) {
        if let Err(error) = done {
            self.host.fail(format!("cannot change the access to pages: {error}"));
        }
    }

    /// A server did what it was asked for, or there is no way on.
    fn had<T>(&self, done: Result<T, String>) -> T {
        match done {
            Ok(done) => done,
            Err(sentence) => self.host.fail(sentence),
        }
    }

    fn count(&self, counter: fn(&LiveCounters) -> &AtomicU64, amount: usize) {
        if amount > 0 {
            self.host.count(counter, amount as u64);
        }
    }
}
