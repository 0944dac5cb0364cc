//! Timed page faults: a region whose pages come from elsewhere, each touched once, with the times of the steps.
//!
//! The time of a fault has four consecutive parts: *enter* until the handler has the fault, *directory* until it
//! knows where the page is, *data* until the page's bytes are here, and *exit* until the program goes on. Nothing is
//! prefetched.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use trellis_memory::{Access, Catcher, FAULT_BATCH, Fault, FaultServer, Region, RegionOptions, Reserve};

use crate::bench::switch::served::{PAGE_BYTES, is_page};
use trellis_command::exit::{self, Failure};

/// The smallest possible region, in pages.
const PAGES_MIN: usize = 16;
/// How long the thread that takes faults waits at most before it checks whether it shall end.
const TIMEOUT_MS: i32 = 20;

/// Where pages come from.
pub(super) trait Source: Send {
    /// Finds out where a page is, if that needs a request.
    fn locate(&mut self, _page: usize) -> Result<(), Failure> {
        Ok(())
    }

    /// Fetches the page's bytes.
    fn fetch(&mut self, page: usize, into: &mut [u8]) -> Result<(), Failure>;
}

/// The parts of one fault, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct FaultTimes {
    pub(super) enter: f64,
    pub(super) directory: f64,
    pub(super) data: f64,
    pub(super) exit: f64,
}

impl FaultTimes {
    pub(super) fn total(&self) -> f64 {
        self.enter + self.directory + self.data + self.exit
    }
}

/// The server of a region's faults.
struct Pager {
    region: OnceLock<Weak<Region>>,
    source: Mutex<Box<dyn Source>>,
    begin: Instant,
    /// When the handler had the fault, knew the place, and had the bytes, in nanoseconds since `begin`.
    moments: Vec<[AtomicU64; 3]>,
    failure: Mutex<Option<Failure>>,
}

impl Pager {
    fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    fn serve_page(&self, page: usize) {
        let Some(region) = self.region.get().and_then(Weak::upgrade) else { return };
        let entered = self.now();
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the page is in the region, which is held here; until it is installed nobody else uses its bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(region.privileged(page, 1), PAGE_BYTES) };
        let located = source.locate(page);
        let known = self.now();
        let fetched = located.and_then(|()| source.fetch(page, bytes));
        if let Err(failure) = fetched {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
        }
        for (moment, at) in self.moments[page].iter().zip([entered, known, self.now()]) {
            moment.store(at, Ordering::Relaxed);
        }
        // A page that cannot be mapped would fault for ever; aborting is the only correct end of a benchmark.
        if region.install(page, 1, Access::Read, false).is_err() {
            std::process::abort();
        }
    }
}

impl FaultServer for Pager {
    // Runs inside a signal handler, in a load of the only thread that touches the region: that thread holds no lock
    // of the allocator or of the source.
    fn serve(&self, fault: Fault) {
        self.serve_page(fault.page);
    }
}

/// Touches each of `pages` pages once.
pub(super) fn run(catcher: Catcher, source: Box<dyn Source>, pages: usize) -> Result<Vec<FaultTimes>, Failure> {
    let refused =
        |error: &dyn std::fmt::Display| Failure::new(exit::SYSTEM, format!("cannot catch page faults: {error}"));
    let bytes = pages.max(PAGES_MIN) * PAGE_BYTES;
    let options = RegionOptions { base_address: None, bytes, page_bytes: PAGE_BYTES, catcher, reserve: Reserve::Full };
    let region = Arc::new(Region::create(&options).map_err(|error| refused(&error))?);
    let moments = (0..pages).map(|_| Default::default()).collect();
    let (source, failure) = (Mutex::new(source), Mutex::new(None));
    let pager = Arc::new(Pager { region: OnceLock::new(), source, begin: Instant::now(), moments, failure });
    let _ = pager.region.set(Arc::downgrade(&region));
    region.catch(Arc::clone(&pager) as Arc<dyn FaultServer>).map_err(|error| refused(&error))?;
    let taking = (!catcher.abilities().serves_in_the_faulting_thread).then(|| Taking::start(&region, &pager));
    let touched = touch(&region, &pager, pages);
    drop(taking);
    region.release();
    touched
}

fn touch(region: &Region, pager: &Pager, pages: usize) -> Result<Vec<FaultTimes>, Failure> {
    let mut all = Vec::with_capacity(pages);
    for page in 0..pages {
        let place = region.base().wrapping_add(page * PAGE_BYTES);
        let start = pager.now();
        // SAFETY: eight bytes of the application view; the fault is answered by the pager.
        let found = unsafe { place.cast::<u64>().read_volatile() };
        let over = pager.now();
        if let Some(failure) = pager.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(failure);
        }
        is_page(page, &found.to_ne_bytes())?;
        let [entered, known, here] = pager.moments[page].each_ref().map(|moment| moment.load(Ordering::Relaxed));
        let us = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e3;
        all.push(FaultTimes {
            enter: us(start, entered),
            directory: us(entered, known),
            data: us(known, here),
            exit: us(here, over),
        });
    }
    Ok(all)
}

/// A thread that takes faults from the queue of the catcher `handler`; it ends with its value.
struct Taking {
    over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Taking {
    fn start(region: &Arc<Region>, pager: &Arc<Pager>) -> Taking {
        let over = Arc::new(AtomicBool::new(false));
        let (region, pager, ending) = (Arc::clone(region), Arc::clone(pager), Arc::clone(&over));
        let thread = std::thread::spawn(move || {
            let mut faults = Vec::with_capacity(FAULT_BATCH);
            let mut ready = libc::pollfd { fd: region.event_fd().unwrap_or(-1), events: libc::POLLIN, revents: 0 };
            while !ending.load(Ordering::Relaxed) {
                // SAFETY: one valid structure.
                unsafe { libc::poll(&mut ready, 1, TIMEOUT_MS) };
                region.take_faults(&mut faults);
                faults.drain(..).for_each(|fault| pager.serve_page(fault.page));
            }
        });
        Taking { over, thread: Some(thread) }
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there was printed, and the unfinished work is an error of the touch.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generates the bytes; one page is wrong on request.
    struct Made {
        wrong: Option<usize>,
    }

    impl Source for Made {
        fn fetch(&mut self, page: usize, into: &mut [u8]) -> Result<(), Failure> {
            if self.wrong == Some(page) {
                return Err(Failure::new(exit::FAILED, "it is not there"));
            }
            into[..8].copy_from_slice(&(page as u64).to_le_bytes());
            Ok(())
        }
    }

    #[test]
    fn every_page_is_fetched_once_and_the_parts_meet() {
        for catcher in [Catcher::Handler, Catcher::Signal] {
            if let Err(why) = trellis_memory::choose(Some(catcher), &trellis_memory::probe()) {
                return trellis_testing::skip(
                    "every_page_is_fetched_once_and_the_parts_meet",
                    trellis_testing::Need::Kernel,
                    why,
                );
            }
            let parts = run(catcher, Box::new(Made { wrong: None }), 50).expect("it works");
            assert_eq!(parts.len(), 50);
            assert!(parts.iter().all(|parts| parts.total() > 0.0 && parts.directory < parts.total()));
            let failure = run(catcher, Box::new(Made { wrong: Some(7) }), 50).expect_err("page 7 is missing");
            assert_eq!(failure.sentence, "it is not there");
        }
    }
}
