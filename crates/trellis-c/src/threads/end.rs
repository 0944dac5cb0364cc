//! Orders from node to node, and the end of the program.
//!
//! Promises: an order is ordered after everything that its sender did. The status of node 0 is that of the program. No
//! node ends before all of them have written what their threads printed. When a node ends is decided by [`ProgramEnd`].

use std::sync::atomic::{AtomicBool, Ordering};

use trellis::WaitError;
use trellis_cluster_protocol::sync::{EndStep, ProgramEnd};

use super::{cluster, patiently, stop};
use crate::addresses::OWN_NUMBERS;

/// A semaphore of each node: the caller has left something for it to do in the memory that it shares, or [`END`] is set.
const ORDERED: u64 = OWN_NUMBERS + 0x1000;
/// Whether the program is over.
const END: u64 = OWN_NUMBERS + 0x100;
/// Raised by each node that is ready to end, and once more when its record is written ([`EndStep::SayReady`]). [`BUSY`]
/// counts the nodes where threads still run.
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
    // Threads that still run end with the program, wherever they are; what they would write comes after its end.
    silence();
    IS_OVER.store(true, Ordering::Relaxed);
    // After the end of the program an error says that node 0 has ended.
    let _ = end(0, busy);
    exit(0)
}

/// Ends the program at node 0, with this status; `busy` as for [`trellis_threads_end_here`].
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_end(status: i32, busy: bool) -> ! {
    if IS_ENDING.swap(true, Ordering::SeqCst) {
        park();
    }
    stop(format_args!("the end of the program: {}", end(status, busy)))
}

/// Takes the steps of this node, the last of which ends the process with `status`. Returns only with an error.
fn end(status: i32, busy: bool) -> WaitError {
    let (mut end, mut step) = ProgramEnd::begin(cluster().node() == 0, busy);
    loop {
        match carry_out(step, status) {
            Ok(busy_nodes) => step = end.go_on(busy_nodes),
            Err(error) => return error,
        }
    }
}

/// Takes a step. Returns what was looked up, or zero.
fn carry_out(step: EndStep, status: i32) -> Result<u64, WaitError> {
    let others = cluster().nodes() as u64 - 1;
    match step {
        EndStep::CountBusy => _ = cluster().atomic(BUSY).fetch_add(1)?,
        EndStep::Announce => {
            cluster().atomic(END).store(1)?;
            (1..=others).try_for_each(|node| cluster().semaphore(ORDERED + node).release(1))?;
        }
        EndStep::SayReady => cluster().semaphore(READY).release(1)?,
        EndStep::AwaitReady => (0..others).try_for_each(|_| cluster().semaphore(READY).acquire())?,
        EndStep::LetGo => cluster().semaphore(GO).release(others.max(1))?,
        EndStep::AwaitGo => cluster().semaphore(GO).acquire()?,
        EndStep::LookUpBusy => return cluster().atomic(BUSY).load(),
        EndStep::WriteRecord => cluster().write_record(),
        EndStep::AwaitEnd => cluster().semaphore(NEVER).acquire()?,
        EndStep::Leave => {
            cluster().leave()?;
            exit(status)
        }
        EndStep::Exit => exit(status),
    }
    Ok(0)
}

/// Waits for the end of the process.
pub(super) fn park() -> ! {
    loop {
        // SAFETY: has no conditions.
        unsafe { libc::pause() };
    }
}

/// Ends the process, whatever its threads do.
fn exit(status: i32) -> ! {
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
