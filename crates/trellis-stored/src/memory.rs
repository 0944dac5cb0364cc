//! A process's view of a region: the parts of this crate, combined for one mode.
//!
//! Promises: everything that a mode needs is created at the start, or the mode is refused with a message. A release
//! includes the heap's changes for other processes. A region without a name is removed at [`Memory::close`]; one with a
//! name is released and left. What departed members left in the region is reused or removed ([`Memory::recover`]). It
//! must never be used by a forked child: connections and pages belong to the parent.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use trellis_store::wrap::{Counted, Counts, Delayed};
use trellis_store::{Applied, Change, Guard, Operation, Store};

use super::closable::Closable;
use super::coherence::Shared;
use super::coherence::log::{self, Coherence, Copies, Identity};
use super::error::StoredError;
use super::fenced::Fenced;
use super::heap::{self, Heap, HeapError};
use super::heartbeats::Heartbeats;
use super::layout::REGION_BASE;
use super::liveness::Liveness;
use super::paging::{Options, PageStatistics, Paging};
use super::region::{self, Opened};
use super::settings::Settings;
use super::stores;
use super::synchronisation::member;
use super::words::Words;

/// The maximum size of the heap's own changes in the call of a release.
const HEAP_BYTES_MAX: usize = 1 << 20;

/// How a process uses a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Every load and store of the process is a call of the store.
    Full,
    /// Every load and store in the region is a call of the store.
    Words,
    /// Cached pages behind the inline check of compiled programs.
    Lines,
    /// Cached pages.
    Pages,
}

/// A process's view of a region; see the module.
pub struct Memory {
    opened: Opened,
    /// The region for this process's own memory, in full mode.
    process: Option<Opened>,
    mode: Mode,
    counted: Arc<Counted>,
    coherence: Coherence,
    words: Option<Arc<Words>>,
    paging: Option<Arc<Paging>>,
    heap: OnceLock<&'static Heap>,
    heartbeats: OnceLock<Heartbeats>,
    /// The store through which the pages' calls go.
    closable: Arc<Closable>,
    /// Changes of the heap for other processes that no release has included yet.
    heap_changes: Mutex<Vec<Operation>>,
    creator: u32,
    is_closed: AtomicBool,
}

/// The counts of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Calls of the store, by kind.
    pub calls: Counts,
    /// Counts of pages; zero in modes without a cache.
    pub pages: PageStatistics,
}

impl Memory {
    /// Opens the store and the region that the settings name.
    ///
    /// # Errors
    ///
    /// The errors of the store and of the region, and what this machine lacks for the mode.
    pub fn open(settings: &Settings, mode: Mode) -> Result<Arc<Memory>, StoredError> {
        Memory::open_in(stores::open(settings)?, settings, mode)
    }

    /// Opens a region like [`Memory::open`], in a store that is already open.
    ///
    /// # Errors
    ///
    /// As [`Memory::open`].
    pub fn open_in(store: Arc<dyn Store>, settings: &Settings, mode: Mode) -> Result<Arc<Memory>, StoredError> {
        let store = if settings.delay.is_zero() { store } else { Delayed::new(store, settings.delay) };
        let counted = Counted::new(store);
        let store = Arc::clone(&counted) as Arc<dyn Store>;
        let opened = region::open(Arc::clone(&store), settings)?;
        let bytes = opened.header.bytes as usize;
        let is_private = opened.header.is_private;
        let process = match mode {
            Mode::Full => Some(region::open(Arc::clone(&store), &Settings { region: None, ..settings.clone() })?),
            _ => None,
        };
        let (mut words, mut paging) = (None, None);
        let closable = Closable::new(Arc::clone(&store));
        let copies: Arc<dyn Copies> = match mode {
            Mode::Full | Mode::Words => {
                let of_process = process.as_ref().map(|process| process.number);
                let over = match is_private {
                    true => Arc::clone(&store),
                    false => Fenced::over(Arc::clone(&store), &opened.name, opened.number, opened.member),
                };
                let new = Arc::new(Words::new(over, opened.number, bytes, !is_private, of_process));
                words = Some(Arc::clone(&new));
                new
            }
            Mode::Lines | Mode::Pages => {
                let options = Options {
                    region: opened.number,
                    base: REGION_BASE,
                    bytes,
                    member: opened.member,
                    is_private,
                    is_new: opened.is_new,
                    cache_bytes_max: settings.cache_bytes_max,
                    has_lines: mode == Mode::Lines,
                    join_bytes: stores::join_bytes(&settings.store),
                };
                let new = Paging::start(Arc::clone(&closable) as Arc<dyn Store>, options)?;
                paging = Some(Arc::clone(&new));
                new
            }
        };
        let who = Identity {
            name: opened.name.clone(),
            region: opened.number,
            member: opened.member,
            lease: settings.lease,
            is_private,
        };
        let coherence = Coherence::new(store, who, copies, opened.seen);
        Ok(Arc::new(Memory {
            opened,
            process,
            mode,
            counted,
            coherence,
            words,
            paging,
            heap: OnceLock::new(),
            heartbeats: OnceLock::new(),
            closable,
            heap_changes: Mutex::default(),
            creator: std::process::id(),
            is_closed: AtomicBool::new(false),
        }))
    }

    /// The region.
    pub fn region(&self) -> &Opened {
        &self.opened
    }

    /// The mode in which the region is used.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The words, in the modes that have them.
    pub fn words(&self) -> Option<&Words> {
        self.words.as_deref()
    }

    /// The pages, in the modes that have them.
    pub fn paging(&self) -> Option<&Paging> {
        self.paging.as_deref()
    }

    /// The addresses of the region.
    pub fn addresses(&self) -> Range<u64> {
        let base = REGION_BASE as u64;
        base..base + self.opened.header.bytes
    }

    /// Sets the heap whose changes are included in releases; only the first call has an effect. If other processes use
    /// the region, this process gives heartbeats from now on, so that they do not take over its part of the heap.
    pub fn set_heap(&self, heap: &'static Heap) {
        let Opened { store, number, member, lease, header, .. } = &self.opened;
        if self.heap.set(heap).is_ok() && !header.is_private {
            self.heartbeats.get_or_init(|| Heartbeats::start(Arc::clone(store), *number, *member, *lease));
        }
    }

    /// Reuses or removes what departed members left in the region: their parts of the heap, and those of their releases
    /// that were never committed. This takes at most five calls for a region that is not new and none for a new one,
    /// and more if a member is gone.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn recover(&self) -> Result<(), StoredError> {
        if self.opened.header.is_private || self.opened.is_new {
            return Ok(());
        }
        let liveness = Liveness::new(Arc::clone(&self.opened.store), self.opened.number, self.opened.member);
        let members = liveness.members()?;
        for member in liveness.gone(&members, Instant::now())? {
            liveness.remove_redo_records(member)?;
        }
        if let Some(heap) = self.heap.get() {
            heap.take_over_dead().map_err(|error| StoredError::Argument(error.to_string()))?;
        }
        Ok(())
    }

    /// The counts so far.
    pub fn statistics(&self) -> Statistics {
        let pages = self.paging.as_ref().map(|paging| paging.statistics()).unwrap_or_default();
        Statistics { calls: self.counted.counts(), pages }
    }

    /// Whether this is the process that opened the region.
    pub fn is_here(&self) -> bool {
        std::process::id() == self.creator
    }

    /// Ends the use of the region: releases, leaves, and removes what belongs to this process alone. Unreleased changes
    /// of a region that is removed are not written. A second call, or one by a forked child, does nothing. Threads that
    /// touch pages may continue until the process ends.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn close(&self) -> Result<(), StoredError> {
        self.end(false)
    }

    /// Ends the use like [`Memory::close`], in the last moment of a process that ends. Threads that still run, and
    /// touch pages of a region without a name that are not in memory, stop there for good: these pages no longer exist
    /// in the store, and they are not zero. Returns whether that may have happened to a thread; the process must then
    /// do nothing but end.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn close_at_exit(&self) -> Result<bool, StoredError> {
        let stops = self.opened.header.is_private && self.paging.is_some() && !self.is_closed.load(Ordering::SeqCst);
        self.end(true).map(|()| stops && self.is_here())
    }

    fn end(&self, is_last: bool) -> Result<(), StoredError> {
        if !self.is_here() || self.is_closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        if let Some(process) = &self.process {
            process.leave(None)?;
        }
        if self.opened.header.is_private {
            let Some(paging) = &self.paging else { return self.opened.leave(None) };
            paging.seal();
            if is_last {
                self.closable.close();
            }
            return self.opened.leave(Some(&mut paging.stored_pages().into_iter()));
        }
        if let Some(heartbeats) = self.heartbeats.get() {
            heartbeats.stop();
        }
        self.release(&[], None)?;
        if let Some(heap) = self.heap.get() {
            heap.settle(true).map_err(|error| StoredError::Argument(error.to_string()))?;
            self.release(&[], None)?;
        }
        self.opened.leave(None)
    }

    fn with_heap_changes(
        &self,
        change: &[Operation],
        step: impl FnOnce(&[Operation]) -> Result<Applied, StoredError>,
    ) -> Result<Applied, StoredError> {
        let Some(heap) = self.heap.get().filter(|_| !self.opened.header.is_private) else { return step(change) };
        let mut waiting = self.heap_changes.lock().unwrap_or_else(PoisonError::into_inner);
        let newer = heap.changes();
        waiting.retain(|old| !newer.iter().any(|new| new.key() == old.key()));
        waiting.extend(newer);
        if waiting.is_empty() {
            drop(waiting);
            return step(change);
        }
        let (with, later) = waiting.split_at(self.heap_changes_at_once(&waiting));
        self.apply_heap_changes(&heap.withheld(later))?;
        let all: Vec<Operation> = change.iter().chain(with).cloned().collect();
        let shortened = |mut outcomes: Vec<_>| {
            outcomes.truncate(change.len());
            outcomes
        };
        Ok(match step(&all)? {
            Applied::Done(outcomes) => {
                self.apply_heap_changes(later)?;
                waiting.clear();
                Applied::Done(shortened(outcomes))
            }
            Applied::Refused(refused, outcomes) => Applied::Refused(refused, shortened(outcomes)),
            fenced => fenced,
        })
    }

    /// The number of the heap's changes that the call of a release includes.
    fn heap_changes_at_once(&self, changes: &[Operation]) -> usize {
        let can = self.opened.store.capabilities();
        let mut left = HEAP_BYTES_MAX.min(can.call_bytes_max / 4);
        let fits = |change: &&Operation| {
            let bytes = if let Operation::Change { change: Change::Put(bytes), .. } = change { bytes.len() } else { 0 };
            let room = left.checked_sub(bytes + 64);
            left = room.unwrap_or(left);
            room.is_some()
        };
        changes.iter().take(can.operations_max / 4).take_while(fits).count()
    }

    /// Makes changes of the heap outside a release.
    fn apply_heap_changes(&self, changes: &[Operation]) -> Result<(), StoredError> {
        let Opened { store, number, member, .. } = &self.opened;
        let can = store.capabilities();
        let lives = member::guard(*number, *member);
        for some in log::cut(changes, can.operations_max.min(64), can.call_bytes_max / 2) {
            if let Applied::Fenced { .. } = store.apply(some, Some(&lives))? {
                return Err(self.coherence.fenced());
            }
        }
        Ok(())
    }
}

impl Shared for Memory {
    fn store(&self) -> &dyn Store {
        self.coherence.store()
    }

    fn region(&self) -> u32 {
        self.opened.number
    }

    fn member(&self) -> u64 {
        self.opened.member
    }

    fn release(&self, change: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoredError> {
        self.with_heap_changes(change, |all| self.coherence.release(all, guard))
    }

    fn acquire(
        &self,
        change: &[Operation],
        guard: Option<&Guard>,
        deadline: Option<Instant>,
    ) -> Result<Applied, StoredError> {
        self.coherence.acquire(change, guard, deadline)
    }

    fn exchange(&self, change: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoredError> {
        self.with_heap_changes(change, |all| self.coherence.exchange(all, guard))
    }
}

/// The memory of the heap over a region. A failure ends the process, because the heap's callers are malloc and free.
pub struct HeapMemory(pub Arc<Memory>);

impl HeapMemory {
    fn at(address: u64) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(address as usize)
    }
}

fn had<T>(answer: Result<T, StoredError>) -> T {
    answer.unwrap_or_else(|error| super::end::end_process(&format!("memory of the region could not be used: {error}")))
}

fn for_heap(error: StoredError) -> HeapError {
    match error {
        StoredError::Store(error) => HeapError::Store(error),
        other => HeapError::Misuse(other.to_string()),
    }
}

impl heap::Memory for HeapMemory {
    fn released(&self, pages: Range<u64>) -> bool {
        match (&self.0.paging, &self.0.words) {
            (Some(paging), _) => had(paging.released(pages)),
            // SAFETY: pages of the region. A page that is zero is removed from the store.
            (_, Some(words)) if self.0.opened.header.is_private => {
                // SAFETY: as above.
                had(unsafe { words.set(pages.start as usize, 0, (pages.end - pages.start) as usize) });
                true
            }
            _ => false,
        }
    }

    fn fresh(&self, pages: Range<u64>) {
        if let Some(paging) = &self.0.paging {
            paging.fresh(pages);
        }
    }

    fn zero(&self, bytes: Range<u64>) {
        let count = (bytes.end - bytes.start) as usize;
        match &self.0.words {
            // SAFETY: bytes of the region.
            Some(words) => had(unsafe { words.set(bytes.start as usize, 0, count) }),
            // SAFETY: bytes of a block that no other thread knows yet; a page that is not in memory causes an ordinary
            // fault.
            None => unsafe { HeapMemory::at(bytes.start).write_bytes(0, count) },
        }
    }

    fn copy(&self, from: u64, to: u64, bytes: u64) {
        match &self.0.words {
            // SAFETY: bytes of the region.
            Some(words) => had(unsafe { words.copy(to as usize, from as usize, bytes as usize) }),
            // SAFETY: two blocks of the region, which do not overlap by the heap's promise.
            None => unsafe { HeapMemory::at(from).copy_to_nonoverlapping(HeapMemory::at(to), bytes as usize) },
        }
    }

    unsafe fn write(&self, address: u64, bytes: &[u8]) {
        match &self.0.words {
            // SAFETY: the caller's promise.
            Some(words) => had(unsafe { words.store(address as usize, bytes) }),
            // SAFETY: the caller's promise.
            None => unsafe { HeapMemory::at(address).copy_from(bytes.as_ptr(), bytes.len()) },
        }
    }

    fn publish(&self) -> Result<(), HeapError> {
        // The release includes the heap's changes, so that a process that learns of a pointer also knows the block to
        // which it points.
        self.0.release(&[], None).map(drop).map_err(for_heap)
    }

    fn is_seen_at_once(&self) -> bool {
        self.0.words.is_some()
    }

    fn publishes_changes(&self) -> bool {
        true
    }

    fn refresh(&self) -> Result<(), HeapError> {
        self.0.coherence.acquire(&[], None, None).map(drop).map_err(for_heap)
    }
}
