//! Orders from node to node, and the end of the program.
//!
//! Promises: an order is ordered after everything that its sender did. The status of node 0 is that of the program. No
//! node ends before all of them have written what their threads printed. Where no thread runs any more, all nodes leave the
//! cluster together. Where threads still run, node 0 ends first, and its end ends the other nodes.

use std::sync::atomic::{AtomicBool, Ordering};

use trellis::WaitError;

use super::{cluster, patiently, stop};
use crate::addresses::OWN_NUMBERS;

/// A semaphore of each node: the caller has left something for it to do in the memory that it shares, or [`END`] is set.
const ORDERED: u64 = OWN_NUMBERS + 0x1000;
/// Whether the program is over.
const END: u64 = OWN_NUMBERS + 0x100;
/// Raised by each node that is ready to end, and once more when its record is written. [`BUSY`] counts the nodes where
/// threads still run.
const READY: u64 = OWN_NUMBERS + 0x101;
const BUSY: u64 = OWN_NUMBERS + 0x102;
/// Raised for each node when all are ready.
const GO: u64 = OWN_NUMBERS + 0x103;
/// Never raised: who waits for it waits for the end of node 0.
const NEVER: u64 = OWN_NUMBERS + 0x104;

/// Whether this node, which is not node 0, waits for the end of node 0.
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// Whether a thread of node 0 ends the program.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

pub(super) fn is_over() -> bool {
    IS_OVER.load(Ordering::Relaxed)
}

/// Lets a node look for what it is to do.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_order(node: usize) {
    patiently("an order", || cluster().semaphore(ORDERED + node as u64).post(1));
}

/// Waits until this node has something to do; false if the program is over.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_next_order() -> bool {
    let me = cluster().node() as u64;
    patiently("the next order", || cluster().semaphore(ORDERED + me).acquire());
    patiently("the next order", || cluster().atomic(END).load()) == 0
}

/// Ends a node other than 0 after the end of the program; `busy` is whether threads of it still run here.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_end_here(busy: bool) -> ! {
    if busy {
        patiently("the end", || cluster().atomic(BUSY).fetch_add(1));
    }
    // Threads that still run end with the program, wherever they are; what they would write comes after its end.
    silence();
    IS_OVER.store(true, Ordering::Relaxed);
    let wait_for_end = || -> Result<bool, WaitError> {
        cluster().semaphore(READY).release(1)?;
        cluster().semaphore(GO).acquire()?;
        if cluster().atomic(BUSY).load()? == 0 {
            return Ok(true);
        }
        cluster().write_record();
        cluster().semaphore(READY).release(1)?;
        cluster().semaphore(NEVER).acquire()?;
        Ok(false)
    };
    match wait_for_end() {
        Ok(true) => leave(0),
        // Node 0 has ended.
        // SAFETY: has no conditions.
        _ => unsafe { libc::_exit(0) },
    }
}

/// Ends the program at node 0, with this status; `busy` as for [`trellis_threads_end_here`].
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_end(status: i32, busy: bool) -> ! {
    if IS_ENDING.swap(true, Ordering::SeqCst) {
        park();
    }
    let others = cluster().nodes() as u64 - 1;
    let ask_to_end = || -> Result<bool, WaitError> {
        if busy {
            cluster().atomic(BUSY).fetch_add(1)?;
        }
        cluster().atomic(END).store(1)?;
        (1..=others).try_for_each(|node| cluster().semaphore(ORDERED + node).release(1))?;
        (0..others).try_for_each(|_| cluster().semaphore(READY).acquire())?;
        let is_busy = cluster().atomic(BUSY).load()? != 0;
        cluster().semaphore(GO).release(others.max(1))?;
        if is_busy {
            cluster().write_record();
            (0..others).try_for_each(|_| cluster().semaphore(READY).acquire())?;
        }
        Ok(is_busy)
    };
    match ask_to_end() {
        Ok(false) => leave(status),
        // This node must end first: its threads would take the end of another node for a failure.
        // SAFETY: has no conditions.
        Ok(true) => unsafe { libc::_exit(status) },
        Err(error) => stop(format_args!("the end of the program: {error}")),
    }
}

/// Waits for the end of the process.
pub(super) fn park() -> ! {
    loop {
        // SAFETY: has no conditions.
        unsafe { libc::pause() };
    }
}

/// Ends the process when no thread of the program can touch the region any more, at any node.
fn leave(status: i32) -> ! {
    if let Err(error) = cluster().leave() {
        stop(error);
    }
    // SAFETY: has no conditions.
    unsafe { libc::_exit(status) }
}

/// From now on nothing is written to the outputs of this process.
fn silence() {
    // SAFETY: system calls on plain numbers and a constant name.
    unsafe {
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        libc::dup2(nothing, libc::STDOUT_FILENO);
        libc::dup2(nothing, libc::STDERR_FILENO);
    }
}
