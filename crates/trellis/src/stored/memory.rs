//! A process's view of a region: everything of this module, put together for one mode.
//!
//! Promises: what a mode needs is made at the start or refused with a sentence; a release takes along what the heap has to
//! tell other processes; a region without a name is removed at [`Memory::close`], one with a name is released and left.
//! Must never be used by a forked child: connections and pages are the parent's.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use trellis_store::wrap::{Counted, Counts, Delayed};
use trellis_store::{Applied, Guard, Operation, Store};

use super::coherence::Shared;
use super::coherence::log::{Coherence, Copies, Identity};
use super::error::StoredError;
use super::heap::{self, Heap, HeapError};
use super::layout::REGION_BASE;
use super::paging::{Options, PageStatistics, Paging};
use super::region::{self, Opened};
use super::settings::Settings;
use super::words::Words;

/// How a process uses a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Words, of all memory.
    Full,
    /// Words, of the region.
    Words,
    /// Pages, behind the inline check of compiled programs.
    Lines,
    /// Pages.
    Pages,
}

/// See the module.
pub struct Memory {
    opened: Opened,
    /// The region of this process's own memory, in full mode.
    process: Option<Opened>,
    mode: Mode,
    counted: Arc<Counted>,
    coherence: Coherence,
    words: Option<Arc<Words>>,
    paging: Option<Arc<Paging>>,
    heap: OnceLock<&'static Heap>,
    /// What the heap has to tell others, and no release has taken along yet.
    heap_changes: Mutex<Vec<Operation>>,
    creator: u32,
    is_closed: AtomicBool,
}

/// What a process did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Calls of the store, by kind.
    pub calls: Counts,
    /// What happened to pages; zero in modes without.
    pub pages: PageStatistics,
}

impl Memory {
    /// Opens the store and the region that the settings name.
    ///
    /// # Errors
    ///
    /// As the store's and the region's, and what this machine lacks for pages.
    pub fn open(settings: &Settings, mode: Mode) -> Result<Arc<Memory>, StoredError> {
        Memory::open_in(trellis_store::open(&settings.store)?, settings, mode)
    }

    /// The same in a store that is open.
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
        let copies: Arc<dyn Copies> = match mode {
            Mode::Full | Mode::Words => {
                let of_process = process.as_ref().map(|process| process.number);
                let new = Arc::new(Words::new(Arc::clone(&store), opened.number, bytes, !is_private, of_process));
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
                };
                let new = Paging::start(Arc::clone(&store), options)?;
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
            heap_changes: Mutex::default(),
            creator: std::process::id(),
            is_closed: AtomicBool::new(false),
        }))
    }

    /// The region.
    pub fn region(&self) -> &Opened {
        &self.opened
    }

    /// How it is used.
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

    /// The heap whose changes go with releases; the first one counts.
    pub fn set_heap(&self, heap: &'static Heap) {
        let _ = self.heap.set(heap);
    }

    /// What this process did so far.
    pub fn statistics(&self) -> Statistics {
        let pages = self.paging.as_ref().map(|paging| paging.statistics()).unwrap_or_default();
        Statistics { calls: self.counted.counts(), pages }
    }

    /// Whether this is the process that opened it.
    pub fn is_here(&self) -> bool {
        std::process::id() == self.creator
    }

    /// Ends the use of the region: releases, leaves, and removes what is this process's alone. What is not released of a
    /// region that goes is not written. A second call, or one of a forked child, does nothing. Threads that touch pages
    /// may go on until the process ends.
    ///
    /// # Errors
    ///
    /// The store's.
    pub fn close(&self) -> Result<(), StoredError> {
        if !self.is_here() || self.is_closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        if let Some(process) = &self.process {
            process.leave(None)?;
        }
        if self.opened.header.is_private {
            let Some(paging) = &self.paging else { return self.opened.leave(None) };
            paging.seal();
            return self.opened.leave(Some(&mut paging.stored_pages().into_iter()));
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
        waiting.extend(heap.changes());
        if waiting.is_empty() {
            drop(waiting);
            return step(change);
        }
        let all: Vec<Operation> = change.iter().chain(waiting.iter()).cloned().collect();
        let shortened = |mut outcomes: Vec<_>| {
            outcomes.truncate(change.len());
            outcomes
        };
        Ok(match step(&all)? {
            Applied::Done(outcomes) => {
                waiting.clear();
                Applied::Done(shortened(outcomes))
            }
            Applied::Refused(refused, outcomes) => Applied::Refused(refused, shortened(outcomes)),
            fenced => fenced,
        })
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

/// The memory of the heap over a region. What fails here ends the process: the heap's callers are malloc and free.
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
            // SAFETY: pages of the region; a page that is zero is removed from the store.
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
            // SAFETY: bytes of a block that nobody else knows yet; a page that is not here is a fault like any other.
            None => unsafe { HeapMemory::at(bytes.start).write_bytes(0, count) },
        }
    }

    fn copy(&self, from: u64, to: u64, bytes: u64) {
        match &self.0.words {
            // SAFETY: bytes of the region.
            Some(words) => had(unsafe { words.copy(to as usize, from as usize, bytes as usize) }),
            // SAFETY: two blocks of the region, of which the heap says that they do not overlap.
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
        self.0.coherence.release(&[], None).map(drop).map_err(for_heap)
    }

    fn refresh(&self) -> Result<(), HeapError> {
        self.0.coherence.acquire(&[], None, None).map(drop).map_err(for_heap)
    }
}
