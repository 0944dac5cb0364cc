//! How many system calls a fault takes, counted by the kernel over thousands of faults between two nodes.
//!
//! Only calls that each fault needs are counted: those that open and protect pages, and return from the signal handler. How
//! often a thread looks for a message and sleeps depends on the machine. Nothing else may run in this process
//! meanwhile, so this file has one test.

mod support;

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use support::{run_over, sockets, word};
use trellis::config::Catch;
use trellis::transport::Tcp;
use trellis::{Cluster, Config, Protocol};
use trellis_testing::Need;

const PAGE_WORDS: usize = 4096 / 8;
const PAGES: usize = 16;
const TURNS: u64 = 50;

/// Counts one system call of this process and of the threads that it starts later.
struct Counter(File);

impl Counter {
    /// `None` where this process may not count.
    fn new(call: libc::c_long) -> Option<Counter> {
        const TRACEPOINT: u32 = 2;
        const INHERIT: u64 = 1 << 1;
        const SET_FILTER: libc::Ioctl = 0x4008_2406;
        let id = std::fs::read_to_string("/sys/kernel/tracing/events/raw_syscalls/sys_enter/id").ok()?;
        // The first six fields of `struct perf_event_attr` (perf_event_open(2)) of its first version, 64 bytes: type, size,
        // config, sample period, sample type, read format, flags.
        let mut attributes = [0_u64; 8];
        attributes[0] = u64::from(TRACEPOINT) | 64 << 32;
        attributes[1] = id.trim().parse().ok()?;
        attributes[5] = INHERIT;
        // SAFETY: perf_event_open(2) reads 64 bytes of attributes; the descriptor is new.
        let file = unsafe {
            let descriptor = libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), 0, -1, -1, 8_u64);
            (descriptor >= 0).then(|| File::from_raw_fd(descriptor as i32))?
        };
        let filter = std::ffi::CString::new(format!("id == {call}")).ok()?;
        // SAFETY: PERF_EVENT_IOC_SET_FILTER reads a string.
        let is_set = unsafe { libc::ioctl(file.as_raw_fd(), SET_FILTER, filter.as_ptr()) == 0 };
        is_set.then_some(Counter(file))
    }

    fn count(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact(&mut bytes).expect("a counter can be read");
        u64::from_ne_bytes(bytes)
    }
}

/// The nodes take turns on every page: each stores to it.
fn take_turns(cluster: &Cluster, turns: u64) {
    for _ in 0..turns {
        for node in 0..2 {
            if cluster.node() == node {
                for page in 0..PAGES {
                    word(cluster, page * PAGE_WORDS).fetch_add(1, Ordering::Relaxed);
                }
            }
            cluster.barrier(2).expect("the other node comes");
        }
    }
}

/// The calls that are counted.
const CALLS: [(&str, libc::c_long); 4] = [
    ("ioctl", libc::SYS_ioctl),
    ("mprotect", libc::SYS_mprotect),
    ("madvise", libc::SYS_madvise),
    ("rt_sigreturn", libc::SYS_rt_sigreturn),
];
/// How often both nodes together make each of them for a fault.
const EXPECTED: [(Catch, [u64; 4]); 3] =
    [(Catch::Signal, [1, 0, 1, 1]), (Catch::Handler, [2, 0, 1, 0]), (Catch::Mprotect, [0, 2, 0, 1])];

#[test]
fn a_fault_takes_these_system_calls() {
    let counters: Option<Vec<Counter>> = CALLS.iter().map(|(_, call)| Counter::new(*call)).collect();
    let Some(counters) = counters else {
        return trellis_testing::skip(
            "a_fault_takes_these_system_calls",
            Need::Kernel,
            "this process may not count system calls",
        );
    };
    let counters = Mutex::new(counters);
    let count = || counters.lock().unwrap().iter_mut().map(Counter::count).collect::<Vec<u64>>();
    for (catch, expected) in EXPECTED {
        let links: Vec<Tcp> = sockets(2).map(|options| Tcp::start(options).unwrap()).collect();
        let change = |config: &mut Config| {
            (config.coherence, config.catch, config.prefetch_pages_max) = (Protocol::DYNAMIC, catch, 1);
        };
        run_over(links, change, |cluster| {
            take_turns(cluster, 5);
            let before = count();
            cluster.barrier(3).unwrap();
            take_turns(cluster, TURNS);
            let after = count();
            cluster.barrier(3).unwrap();
            if cluster.node() == 0 {
                let faults = TURNS * 2 * PAGES as u64;
                for (((name, _), expected), (before, after)) in
                    CALLS.iter().zip(expected).zip(before.iter().zip(&after))
                {
                    let calls = after - before;
                    // The service thread may make the last call of a turn after the thread has run on.
                    let slack = faults / 50;
                    let allowed = (expected * faults).saturating_sub(slack)..=expected * faults + slack;
                    assert!(allowed.contains(&calls), "{catch}: {calls} {name} in {faults} faults");
                }
            }
        });
    }
}
