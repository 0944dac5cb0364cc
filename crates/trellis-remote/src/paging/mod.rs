//! Pages of a region whose bytes are at memory servers: faults are caught by the kernel, pages are held under leases,
//! within a bounded memory.
//!
//! A page in memory is either a *copy*, which many hosts may hold and none changes, or *owned*: held under the lease of
//! this process, which may change it. A process that wants to change a page takes a lease; the home recalls the copies
//! of others before it grants one, and recalls a lease when another process wants the page. A few threads *serve*
//! faults, others *fetch ahead* and *clean* (return pages while memory is short), and one *returns* what the home
//! recalls.
//!
//! Promises: memory is sequentially consistent, because a page is returned only after local access to it was removed.
//! Changes are committed on recall, when memory becomes short and at the end. If the lease ended before that, the
//! commit takes effect if no other process had the page since, and otherwise the process ends. Copies and owned pages
//! together use no more than the allowed memory. A page that was granted stays for `HOLD`, so that the thread that
//! waited for it can run.
//!
//! It must never touch the application view, nor wait for a server while it holds the table: the thread that reports a
//! recall needs it.
//!
//! A server that does not answer while a thread waits for a page ends the process with a message, because there is no
//! caller to which an error could be returned.
//!
//! # Why not the driver of stored memory
//!
//! Two designs were considered. In the first, both kinds of memory implement a *source of pages* (fetch many, write
//! back many, events) for one driver. The source would have had to decide the meaning of a store to a page in memory (a
//! twin there, a request to the home here), what an eviction writes (differences and chunks there; the page here), who
//! waits for a page that is being returned (no thread there, every thread here), and what arrives from outside and when
//! (notices at an acquire there, at any moment here): more hooks than driver. The second was chosen: each has a driver
//! of its own around common parts, namely the table of page frames with its second chance
//! ([`trellis_cache::page_frames`]), the read-ahead ([`trellis_cache::readahead`]) and the threads
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

use trellis_base::{Deadline, Limit};
use trellis_fabric_protocol::wire::address::PAGE_BYTES;
use trellis_memory::{MapError, Region};

use trellis_cache::fault_threads::FaultThreads;
use trellis_cache::page_frames::{self, Measure, Table, runs};
use trellis_cache::readahead::ReadAhead;
use trellis_record::{FaultKind, LiveCounters};

use crate::client::DEADLINE;

/// The threads that serve faults: this many may wait for servers at once.
const SERVERS: usize = 4;
/// Threads that fetch ahead.
const FETCHERS: usize = 2;
/// The threads that clean.
const CLEANERS: usize = 2;
/// The maximum number of pages that one call fetches or returns: several nodes' calls must fit into the receive buffer
/// of a server's socket.
const BATCH_PAGES_MAX: usize = 16;
/// The minimum memory in which pages are cached.
pub const ROOM_BYTES_MIN: usize = 1 << 20;
/// A thread that touches a page waits as long as the thread that asks for it.
pub(crate) const PAGE: Deadline = Deadline {
    who: "a thread at a page of a memory server",
    waits_for: "the server",
    limit: DEADLINE.limit,
    then: "the process ends (exit status 70), with the host",
    tested: "crates/trellis-cli/tests/remote_paging.rs a_server_that_is_killed_ends_the_program_with_a_sentence",
};
/// A page is fetched into memory that another page has left.
pub(crate) const ROOM: Deadline = Deadline {
    waits_for: "room in the cache, where another thread returns pages to a server",
    limit: Limit::Other("as long as that waits for the server"),
    then: "it waits",
    tested: "the wait of the other thread ends it",
    ..PAGE
};
/// How long a granted page stays although another process wants it: the time of a wake-up on another core.
const HOLD: Duration = Duration::from_micros(100);

/// Where pages are fetched from and returned to. A call waits until it is done, and its error is a message that names
/// server and pages. Pages are those of the region.
pub trait Pages: Send + Sync {
    /// Takes copies, which are readable here until [`Events`](crate::leased::Events) reports otherwise.
    ///
    /// # Errors
    ///
    /// A server did not answer in time, or refused.
    fn copy(&self, pages: &[u64], put: &mut dyn FnMut(u64, &[u8])) -> Result<(), String>;

    /// Takes leases. Each page is reported as soon as it is granted, whichever others are still waited for; otherwise
    /// two processes that want the same two pages would wait for each other. With `keeps`, the bytes that were last
    /// received are still here, and none are passed if they are current.
    ///
    /// # Errors
    ///
    /// As [`Self::copy`].
    fn update(&self, pages: &[u64], keeps: bool, granted: &mut dyn FnMut(u64, Option<&[u8]>)) -> Result<(), String>;

    /// Commits these bytes as the pages' content, and returns their leases; also after a lease had ended, if no other
    /// process had the page since it was granted. Returns the pages for which this failed.
    ///
    /// # Errors
    ///
    /// As [`Self::copy`].
    fn commit(&self, pages: &[(u64, &[u8])]) -> Result<Vec<u64>, String>;

    /// A phrase that names the server of a page.
    fn server_of(&self, page: u64) -> String;

    /// Reports that these copies are not here any more.
    fn drop_copies(&self, pages: &[u64]);

    /// Ends all requests; remaining rights expire.
    fn close(&self);
}

/// The owner of the pages.
pub trait Host: Send + Sync {
    /// Adds to a counter.
    fn count(&self, counter: fn(&LiveCounters) -> &AtomicU64, amount: u64);

    /// Reports a fault that was served after this time, by another machine or (`Local`) without one.
    fn served(&self, page: u64, kind: FaultKind, waited: Duration);

    /// Ends the process: a page is needed and cannot be fetched.
    fn fail(&self, sentence: String) -> !;
}

/// See the module.
pub struct Paging {
    region: Arc<Region>,
    host: Box<dyn Host>,
    pages: OnceLock<Arc<dyn Pages>>,
    measure: Measure,
    state: Mutex<State>,
    /// Signalled when memory was freed, or a page is gone.
    changed: Condvar,
    /// Signalled when memory becomes short, or when a page frame may be freed while it is.
    short: Condvar,
    /// Signalled when a page was recalled, or a recalled page was granted.
    recalled: Condvar,
    /// Signalled when changes under an ended lease wait to be returned.
    lost: Condvar,
    ahead: Mutex<ReadAhead>,
    fault_threads: FaultThreads,
    /// The number of threads that are cleaning now; changed only with the table locked.
    cleaning: AtomicUsize,
}

/// The state that the threads share.
struct State {
    table: Table,
    /// Pages that were granted a moment ago, the oldest first.
    granted: VecDeque<(u64, Instant)>,
    /// Pages that the home has recalled.
    recalled: Vec<u64>,
    /// Pages that are being returned because their leases have ended.
    lost: Vec<u64>,
}

impl Paging {
    /// Creates it without any page in memory; nothing is served before [`Self::start`].
    ///
    /// # Errors
    ///
    /// If the system has no descriptor left.
    pub fn new(region: Arc<Region>, cache_bytes_max: usize, host: Box<dyn Host>) -> std::io::Result<Paging> {
        let pages = region.pages();
        // A region that fits completely needs no room for evictions.
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

    /// Starts to serve.
    ///
    /// # Errors
    ///
    /// If the system cannot start a thread.
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

    /// Ends the threads; the region must not be touched any more. Pages in memory are dropped: see [`Self::flush`].
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
        // Ends when the threads see that it is over; each call of theirs has a deadline.
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

    /// Wakes threads that may wait for a change of the table. Called after the table was changed.
    fn arrived(&self) {
        self.changed.notify_all();
        if self.cleaning.load(Ordering::SeqCst) > 0 || self.is_over() {
            self.short.notify_all();
        }
    }

    /// Waits until this many page frames are free, or paging is stopped.
    fn wait_for_room<'a>(&self, mut state: MutexGuard<'a, State>, wanted: usize) -> MutexGuard<'a, State> {
        let wanted = wanted.min(state.table.room() / 8).max(1);
        while state.table.free() < wanted && !self.is_over() {
            self.short.notify_all();
            // Ends when a cleaner has freed page frames (its calls have deadlines), or paging is stopped.
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    fn notice_shortage(&self, table: &Table) {
        if self.measure.is_short(table) {
            self.short.notify_one();
        }
    }

    /// The bytes of a page frame.
    ///
    /// # Safety
    ///
    /// The page is not mapped, and only the caller fetches or returns it; or the caller holds the table.
    #[allow(clippy::mut_from_ref, reason = "it is memory of the region, and the table says who uses it")]
    unsafe fn page_frame(&self, page: u64) -> &mut [u8] {
        // SAFETY: the privileged view of one page; the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.region.privileged(page as usize, 1), PAGE_BYTES as usize) }
    }

    /// Removes access from those of ascending pages that have it.
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

    /// Ends the process: nothing acknowledged is lost, but it cannot continue with changes that other processes will
    /// never see.
    fn lose(&self, page: u64) -> ! {
        let (first, last) = self.owned_around(page);
        self.host.fail(format!(
            "the lease of page {page} at {} ended before what was changed in it could be given back, and somebody else has \
             had the page since, or may have had it (pages {first} to {last} of the region may be as they were before): \
             their memory server ended or was replaced, this process was stopped, or the network is overloaded; start the \
             program again",
            self.pages().server_of(page)
        ))
    }

    /// The pages beside this one that this process owns.
    fn owned_around(&self, page: u64) -> (u64, u64) {
        let state = self.state();
        let is_owned =
            |page: &u64| state.table.state(*page) == page_frames::State::Dirty || state.table.is_writing(*page);
        let first = (0..page).rev().take_while(is_owned).last().unwrap_or(page);
        let last = (page + 1..state.table.pages()).take_while(is_owned).last().unwrap_or(page);
        (first, last)
    }

    /// A page that cannot be mapped cannot be used: ends the process.
    fn mapped(&self, done: Result<(), MapError>) {
        if let Err(error) = done {
            self.host.fail(format!("cannot change the access to pages: {error}"));
        }
    }

    /// Returns the result of a request to a server, or ends the process if it failed.
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
