//! The cluster under a program whose threads run on several nodes, as `trellis threads` starts it.
//!
//! The library that is loaded first into such a program (`trellis-threads`) has the functions of the C library that make
//! threads, take locks and allocate memory. It calls the functions of this module, which are about the cluster alone:
//! its memory, its objects of synchronisation, orders from node to node.
//!
//! Promises: every node has the same objects at the same addresses before the program begins, or the run ends with a
//! sentence that names what differs. A failure of the cluster ends the process with one message, because a function of
//! the C library cannot report it. The functions are called on private memory: a thread that holds a lock of this library
//! must never wait for a page of the region, so their callers leave the program's stack and its thread-local variables
//! first.

#![allow(clippy::missing_safety_doc)] // the library that is loaded first is the only caller

mod bindings;
pub mod end;
pub mod libraries;
pub mod memory;
mod relaxed;
pub mod start;
mod symbols;
pub mod synchronisation;
pub mod teams;

use std::fmt::Display;
use std::sync::OnceLock;

use trellis::{Cluster, WaitError};

/// The part of this process in the program.
struct Program {
    cluster: Cluster,
}

static PROGRAM: OnceLock<Program> = OnceLock::new();

fn cluster() -> &'static Cluster {
    &PROGRAM.get().expect("the program has begun").cluster
}

/// The result of a call that may take as long as the program's other threads let it take.
fn patiently<T>(what: &str, mut call: impl FnMut() -> Result<T, WaitError>) -> T {
    loop {
        match call() {
            Ok(result) => return result,
            Err(WaitError::TooLong { .. }) => {}
            Err(error) => stop(format_args!("{what}: {error}")),
        }
    }
}

/// Ends this process, and with it the run, because the program cannot go on. After the program's end nothing is a
/// failure, and the thread that waits for the end of node 0 ends the process.
fn stop(why: impl Display) -> ! {
    if end::is_over() {
        end::park();
    }
    match PROGRAM.get() {
        Some(Program { cluster }) => {
            trellis::complain(format_args!("node {}: {why}", cluster.node()));
            cluster.abandon(&why.to_string());
        }
        None => trellis::complain(format_args!("{why}")),
    }
    // SAFETY: has no conditions.
    unsafe { libc::_exit(trellis::launch::EXIT_CLUSTER) }
}

/// The same, for the library that is loaded first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_threads_stop(why: *const u8, bytes: usize) -> ! {
    // SAFETY: the caller's text.
    let why = unsafe { std::slice::from_raw_parts(why, bytes) };
    stop(String::from_utf8_lossy(why))
}
