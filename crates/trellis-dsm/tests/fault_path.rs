//! The fault path allocates nothing: counted over thousands of faults between two nodes, with each catcher and each base
//! protocol, over sockets.
//!
//! Nothing else may run in this process meanwhile, so this file has one test.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use support::{run_over, sockets, word};
use trellis::config::Catch;
use trellis::transport::Tcp;
use trellis::{Cluster, Protocol};

/// Counts while it is told to.
struct Counting;

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// The first bytes of the name of the last thread that was counted.
static ALLOCATOR: AtomicU64 = AtomicU64::new(0);
/// How many nodes are not past the barrier before.
static IN_BARRIER: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands every call on to the system's allocator, which keeps the promises.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if IS_COUNTING.load(Ordering::Relaxed) {
            note_allocation();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Counts it, and keeps the name of the thread for the sentence of a failure. Two threads tell people of a long wait, which is no
/// part of the path, and a busy machine makes waits long: the watchdog, and the process' first thread, on which the test runner
/// says after 60 s that a test is still running. The nodes have threads of their own.
fn note_allocation() {
    // SAFETY: gettid(2) and getpid(2) take no pointers.
    let is_runner = unsafe { libc::gettid() == libc::getpid() };
    let mut name = [0_u8; 16];
    // SAFETY: the kernel writes 16 bytes at most (PR_GET_NAME(2const)).
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    if !is_runner && !name.starts_with(b"trellis-watchdo") {
        ALLOCATOR.store(u128::from_ne_bytes(name) as u64, Ordering::Relaxed);
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const PAGE_WORDS: usize = 4096 / 8;
const PAGES: usize = 16;

fn links() -> Vec<Tcp> {
    sockets(2).map(|options| Tcp::start(options).unwrap()).collect()
}

/// The nodes take turns on every page: a read, a write and an upgrade for each turn.
fn take_turns(cluster: &Cluster, first: u64, end: u64) {
    for turn in first..end {
        for page in 0..PAGES {
            let (counter, other) = (word(cluster, page * PAGE_WORDS), word(cluster, page * PAGE_WORDS + 1));
            let mine = turn * 2 + cluster.node() as u64;
            while counter.load(Ordering::SeqCst) != mine {
                std::hint::spin_loop();
            }
            other.fetch_add(1, Ordering::Relaxed);
            counter.store(mine + 1, Ordering::SeqCst);
        }
    }
}

#[test]
fn the_fault_path_allocates_nothing() {
    const WARM: u64 = 10;
    const TURNS: u64 = 20;
    for coherence in
        [Protocol::IVY, Protocol::DYNAMIC, "dynamic(migratory)".parse().unwrap(), "migrate".parse().unwrap()]
    {
        for catch in [Catch::Signal, Catch::Handler, Catch::Mprotect] {
            let change = |config: &mut trellis::Config| {
                (config.coherence, config.catch, config.prefetch_pages_max) = (coherence, catch, 1);
                // The service thread's look at the peers, which is not a part of it, comes four times in this.
                config.silence_seconds_max = 3600;
            };
            IN_BARRIER.store(2, Ordering::SeqCst);
            run_over(links(), change, |cluster| {
                take_turns(cluster, 0, WARM);
                cluster.barrier(0).unwrap();
                // Nobody is in the barrier any more when counting begins: what barriers allocate does not count.
                IN_BARRIER.fetch_sub(1, Ordering::SeqCst);
                while IN_BARRIER.load(Ordering::SeqCst) > 0 {
                    std::thread::yield_now();
                }
                if cluster.node() == 0 {
                    ALLOCATIONS.store(0, Ordering::SeqCst);
                    IS_COUNTING.store(true, Ordering::SeqCst);
                }
                take_turns(cluster, WARM, WARM + TURNS);
                if cluster.node() == 1 {
                    // The last turn is this node's.
                    IS_COUNTING.store(false, Ordering::SeqCst);
                    let counters = cluster.counters();
                    let faults = counters.read_faults + counters.write_faults + counters.upgrade_faults;
                    assert!(faults >= TURNS * PAGES as u64, "{coherence}, {catch}: only {faults} faults");
                }
                while IS_COUNTING.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                cluster.barrier(1).unwrap();
            });
            let allocations = ALLOCATIONS.load(Ordering::SeqCst);
            let name = ALLOCATOR.load(Ordering::SeqCst).to_ne_bytes();
            let (turns, name) = (TURNS * PAGES as u64, String::from_utf8_lossy(&name));
            assert_eq!(allocations, 0, "{coherence}, {catch}: allocations in {turns} turns, the last of thread {name}");
        }
    }
}
