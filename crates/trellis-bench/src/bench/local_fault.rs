//! `trellis bench local-fault`: the cost of catching an access, without another node.
//!
//! There are two families: the paper's own measurement (mprotect pair, SIGSEGV through sigaction), and each catcher
//! of Trellis with the page already present, so that only the catching and the mapping are timed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trellis_memory::{Access, Catcher, Fault, FaultServer, Region, RegionOptions, Reserve};

use crate::bench::cluster::{ClusterPlan, Common};
use crate::bench::figures::Figures;
use crate::bench::node::{Found, Task, WorkError, shuffled};
use trellis_base::Random;
use trellis_base::statistics::quantile;
use trellis_command::exit::{Ending, Failure};

const EXAMPLES: &str = "\
Example:
  trellis bench local-fault --samples 100000 --json

mprotect_pair_us_mean and sigaction_fault_us_mean are measured as in Table 3 of the libivy paper.";

/// Measure the cost of catching an access on this machine, without another node
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LocalFaultArguments {
    /// Faults measured with each catcher
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=2_000_000))]
    pub(crate) samples: u32,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// A node's task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LocalFaultTask {
    samples: usize,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &LocalFaultArguments) -> Ending {
    figures(arguments.samples as usize)?.print(arguments.json)
}

/// Measures everything that this benchmark reports.
pub(crate) fn figures(samples: usize) -> Result<Figures, Failure> {
    let task = Task::LocalFault(LocalFaultTask { samples });
    let common = Common::default();
    let plan = ClusterPlan { nodes: 1, common: &common, settings: Vec::new(), task: &task, with_connection: false };
    let found = plan.run::<Value>()?.pop().unwrap_or_default();
    let mut figures = Figures::new("local-fault");
    let mut add = |name: &'static str, label: &str| match &found[name] {
        Value::Null => {}
        value => figures.add(name, value.as_f64().unwrap_or(f64::NAN), label),
    };
    add("mprotect_pair_us_mean", "mprotect lock + unlock (µs, mean)");
    add("sigaction_fault_us_mean", "fault handled with sigaction and mprotect (µs, mean)");
    add("signal_fault_us_p50", "catcher signal, read fault (µs, median)");
    add("signal_fault_us_p99", "catcher signal, read fault (µs, 99 %)");
    add("handler_fault_us_p50", "catcher handler, read fault (µs, median)");
    add("handler_fault_us_p99", "catcher handler, read fault (µs, 99 %)");
    add("mprotect_fault_us_p50", "catcher mprotect, read fault (µs, median)");
    add("mprotect_fault_us_p99", "catcher mprotect, read fault (µs, 99 %)");
    figures.add_value("samples", samples, "samples");
    Ok(figures)
}

/// Runs the node's part.
pub(crate) fn node(task: &LocalFaultTask) -> Found {
    // The catchers come last: they keep the signals that they take over.
    let (pair, fault) = bare_mprotect_us(task.samples)?;
    let mut found = json!({ "mprotect_pair_us_mean": pair, "sigaction_fault_us_mean": fault });
    for catcher in Catcher::ALL {
        if trellis_memory::choose(Some(catcher), &trellis_memory::probe()).is_err() {
            continue;
        }
        let mut samples = read_fault_us(catcher, task.samples.min(100_000))?;
        found[format!("{catcher}_fault_us_p50")] = quantile(&mut samples, 0.5).into();
        found[format!("{catcher}_fault_us_p99")] = quantile(&mut samples, 0.99).into();
    }
    Ok(found)
}

const PAGE_BYTES: usize = 4096;

/// A region of so many pages, whose bytes are present but which are not mapped.
fn region_with_bytes(catcher: Catcher, samples: usize) -> Result<Arc<Region>, WorkError> {
    let options = RegionOptions {
        base_address: None,
        bytes: samples.max(16) * PAGE_BYTES,
        page_bytes: PAGE_BYTES,
        catcher,
        reserve: Reserve::Lazy,
    };
    let region = Arc::new(Region::create(&options)?);
    region.populate(0, samples)?;
    for page in 0..samples {
        // SAFETY: the page was populated, and nobody else uses this region.
        unsafe { region.privileged(page, 1).write_volatile(1) };
    }
    Ok(region)
}

/// Times the change from write access to read access of single pages in random order, as the owner of a page makes it
/// before it sends a copy.
pub(crate) fn downgrade_us(catcher: Catcher, samples: usize) -> Result<Vec<f64>, WorkError> {
    let region = region_with_bytes(catcher, samples)?;
    region.install(0, samples, Access::Write, false)?;
    let mut times = Vec::with_capacity(samples);
    for page in shuffled(&mut Random::new(1), 0, samples) {
        // SAFETY: inside the application view, and the page may be written.
        unsafe { region.base().wrapping_add(page * PAGE_BYTES).write_volatile(2) };
        let start = Instant::now();
        region.downgrade(page, 1)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    region.release();
    Ok(times)
}

/// Times first reads of pages whose bytes are present but which are not mapped.
pub(crate) fn read_fault_us(catcher: Catcher, samples: usize) -> Result<Vec<f64>, WorkError> {
    let region = region_with_bytes(catcher, samples)?;
    let server = Arc::new(PageMapper { region: OnceLock::new() });
    let _ = server.region.set(Arc::downgrade(&region));
    region.catch(server.clone())?;
    let queue = (!catcher.abilities().serves_in_the_faulting_thread).then(|| Queue::start(&region));
    let mut waits = Vec::with_capacity(samples);
    for page in 0..samples {
        let place = region.base().wrapping_add(page * PAGE_BYTES);
        let start = Instant::now();
        // SAFETY: inside the application view; the fault is answered by the server above.
        unsafe { place.read_volatile() };
        waits.push(start.elapsed().as_secs_f64() * 1e6);
    }
    if let Some(queue) = queue {
        queue.stop();
    }
    region.release();
    Ok(waits)
}

/// Maps the page that was touched.
struct PageMapper {
    region: OnceLock<Weak<Region>>,
}

impl FaultServer for PageMapper {
    fn serve(&self, fault: Fault) {
        if let Some(region) = self.region.get().and_then(Weak::upgrade) {
            let access = if fault.write { Access::Write } else { Access::Read };
            // A page that cannot be mapped would fault for ever; aborting is the only correct end of a benchmark.
            if region.install(fault.page, 1, access, false).is_err() {
                std::process::abort();
            }
        }
    }
}

/// A thread that takes faults from the queue of the catcher `handler`.
struct Queue {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Queue {
    fn start(region: &Arc<Region>) -> Queue {
        let stop = Arc::new(AtomicBool::new(false));
        let (region, over) = (region.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut faults = Vec::with_capacity(trellis_memory::FAULT_BATCH);
            let mut ready = libc::pollfd { fd: region.event_fd().unwrap_or(-1), events: libc::POLLIN, revents: 0 };
            while !over.load(Ordering::Relaxed) {
                // SAFETY: one valid structure.
                unsafe { libc::poll(&mut ready, 1, 20) };
                region.take_faults(&mut faults);
                for fault in faults.drain(..) {
                    if region.install(fault.page, 1, Access::Read, false).is_err() {
                        std::process::abort();
                    }
                }
            }
        });
        Queue { stop, thread }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
    }
}

/// The page of the bare measurement; a signal handler has no other way to find it.
static BARE_PAGE: AtomicUsize = AtomicUsize::new(0);

/// Samples that are timed together in the bare measurement.
const BATCH: usize = 50;

/// The paper's measurement: the mean of lock and unlock, and the mean of a fault that unlocks, without the locking.
/// Batches of both alternate and the median batch counts, so that an interruption of one does not affect the
/// difference.
fn bare_mprotect_us(samples: usize) -> Result<(f64, f64), WorkError> {
    // SAFETY: a private page of our own; the handler makes only the async-signal-safe call mprotect on it; the
    // previous action is restored.
    unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if page == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        page.cast::<u8>().write_volatile(1);
        BARE_PAGE.store(page as usize, Ordering::Relaxed);
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut before: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = unlock as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSEGV, &action, &mut before);
        let (mut pairs, mut faults) = (Vec::new(), Vec::new());
        for _ in 0..samples.div_ceil(BATCH) {
            let start = Instant::now();
            for _ in 0..BATCH {
                libc::mprotect(page, 4096, libc::PROT_NONE);
                libc::mprotect(page, 4096, libc::PROT_READ | libc::PROT_WRITE);
            }
            let middle = Instant::now();
            for _ in 0..BATCH {
                libc::mprotect(page, 4096, libc::PROT_NONE);
                page.cast::<u8>().write_volatile(2);
            }
            let each_us = |time: Duration| time.as_secs_f64() * 1e6 / BATCH as f64;
            let pair = each_us(middle - start);
            pairs.push(pair);
            faults.push((each_us(middle.elapsed()) - pair).max(0.0));
        }
        libc::sigaction(libc::SIGSEGV, &before, std::ptr::null_mut());
        libc::munmap(page, 4096);
        Ok((quantile(&mut pairs, 0.5), quantile(&mut faults, 0.5)))
    }
}

extern "C" fn unlock(_signal: i32, information: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    let page = BARE_PAGE.load(Ordering::Relaxed);
    // SAFETY: the kernel passes a valid structure for SIGSEGV; mprotect and signal are async-signal-safe.
    unsafe {
        let at = (*information).si_addr() as usize;
        if (page..page + 4096).contains(&at) {
            libc::mprotect(page as *mut libc::c_void, 4096, libc::PROT_READ | libc::PROT_WRITE);
        } else {
            // The fault is not ours: it must become visible.
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        }
    }
}
