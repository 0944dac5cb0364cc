//! Measures the cost of a fault on this machine, without a network: each catcher, one page at a time, one thread.
//!
//! ```text
//! cargo run --release -p trellis-memory --example fault_cost
//! ```
//!
//! It prints the median of several rounds, in microseconds. `install` is a load from a page whose bytes are there
//! already, `upgrade` a store to a readable page, `zero fill` a store to a page that was never written. The requests
//! listed below these are measured from outside, page by page.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use trellis_base::statistics::median;
use trellis_memory::{Access, Catcher, FAULT_BATCH, Fault, FaultServer, Region, RegionOptions, Reserve, choose, probe};

const PAGES: usize = 4096;
const ROUNDS: usize = 15;

struct Local {
    region: OnceLock<Arc<Region>>,
    readable: Vec<AtomicBool>,
    zero: AtomicBool,
    faults: AtomicU64,
}

impl FaultServer for Local {
    fn serve(&self, fault: Fault) {
        let region = self.region.get().expect("the region is there before the first fault");
        self.faults.fetch_add(1, Ordering::Relaxed);
        if self.readable[fault.page].swap(true, Ordering::Relaxed) && fault.write {
            region.upgrade(fault.page, 1).expect("upgraded");
        } else {
            let access = if fault.write { Access::Write } else { Access::Read };
            region.install(fault.page, 1, access, self.zero.load(Ordering::Relaxed)).expect("installed");
        }
    }
}

impl Local {
    /// Makes all pages inaccessible.
    fn forget(&self) {
        for readable in &self.readable {
            readable.store(false, Ordering::Relaxed);
        }
    }
}

fn main() {
    println!("{:<10} {:>16} {:>8}", "catch", "step", "µs");
    for catcher in Catcher::ALL {
        match choose(Some(catcher), &probe()) {
            Ok(_) => measure(catcher),
            Err(why) => println!("SKIPPED {catcher}: {why}"),
        }
    }
}

fn measure(catcher: Catcher) {
    let steps = ["zero fill", "downgrade", "revoke", "install", "upgrade"];
    let mut samples = steps.map(|_| Vec::with_capacity(ROUNDS));
    for _ in 0..ROUNDS {
        for (sample, microseconds) in samples.iter_mut().zip(one_round(catcher)) {
            sample.push(microseconds);
        }
    }
    for (step, sample) in steps.iter().zip(&mut samples) {
        println!("{:<10} {:>16} {:>8.2}", catcher.to_string(), step, median(sample));
    }
}

fn one_round(catcher: Catcher) -> [f64; 5] {
    let options =
        RegionOptions { base_address: None, bytes: PAGES * 4096, page_bytes: 4096, catcher, reserve: Reserve::Lazy };
    let region = Arc::new(Region::create(&options).unwrap_or_else(|error| panic!("{error}")));
    let local = Arc::new(Local {
        region: OnceLock::new(),
        readable: (0..PAGES).map(|_| AtomicBool::new(false)).collect(),
        zero: AtomicBool::new(true),
        faults: AtomicU64::new(0),
    });
    assert!(local.region.set(Arc::clone(&region)).is_ok());
    region.catch(Arc::clone(&local) as Arc<dyn FaultServer>).unwrap_or_else(|error| panic!("{error}"));
    let poller = Poller::start(&region, &local);
    let base = region.base() as usize;
    let load = |page: usize| {
        // SAFETY: a byte of the region.
        unsafe { ((base + page * 4096) as *const u8).read_volatile() };
    };
    let store = |page: usize| {
        // SAFETY: a byte of the region.
        unsafe { ((base + page * 4096) as *mut u8).write_volatile(1) };
    };
    let zero_fill = per_page(store);
    let downgrade = per_page(|page| region.downgrade(page, 1).expect("downgraded"));
    let revoke = per_page(|page| region.revoke(page, 1).expect("revoked"));
    local.forget();
    local.zero.store(false, Ordering::Relaxed);
    let install = per_page(load);
    let upgrade = per_page(store);
    assert_eq!(local.faults.load(Ordering::Relaxed), 3 * PAGES as u64, "each step was one fault");
    drop(poller);
    region.release();
    [zero_fill, downgrade, revoke, install, upgrade]
}

fn per_page(mut step: impl FnMut(usize)) -> f64 {
    let start = Instant::now();
    (0..PAGES).for_each(&mut step);
    start.elapsed().as_secs_f64() * 1e6 / PAGES as f64
}

/// Serves the faults of the catcher `handler`; ends within its short wait.
struct Poller {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Poller {
    fn start(region: &Arc<Region>, local: &Arc<Local>) -> Option<Poller> {
        let event = region.event_fd()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (region, local, stopping) = (Arc::clone(region), Arc::clone(local), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut faults = Vec::with_capacity(FAULT_BATCH);
            while !stopping.load(Ordering::SeqCst) {
                let mut wait = libc::pollfd { fd: event, events: libc::POLLIN, revents: 0 };
                // SAFETY: one valid entry.
                unsafe { libc::poll(&raw mut wait, 1, 10) };
                region.take_faults(&mut faults);
                faults.drain(..).for_each(|fault| local.serve(fault));
            }
        });
        Some(Poller { stop, thread: Some(thread) })
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the poller ends without a panic");
        }
    }
}
