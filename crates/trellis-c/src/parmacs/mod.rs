//! PARMACS/ANL programs: what the macros of `parmacs/c.m4.trellis` expand to.
//!
//! A program of this kind is one `main` that makes shared memory, then workers with CREATE, and waits for them. Here
//! each process of the cluster is one of its processors. Node 0 runs `main`. On every other node the constructor that
//! MAIN_ENV puts into the program never returns: the process waits for a CREATE, gets a copy of main's globals and
//! private heap as they are at that moment (`image`), runs the function, and waits again, until node 0 ends. A
//! program that was linked for it can share its globals instead (`globals`).
//!
//! Promises: `main` runs once, so no input is read and no output is printed twice; what main wrote before CREATE, the
//! worker sees; what a worker wrote to shared memory, main sees after WAIT_FOR_END. A macro has no way to report a
//! failure, so whatever fails ends the process, and with it the cluster, with one sentence. Must never touch what
//! belongs to libraries: their variables, their heap, their threads.

#![allow(clippy::missing_safety_doc)] // the macros are the only callers; `parmacs.h` says what each argument is

mod arena;
mod globals;
mod image;
mod layout;
pub mod memory;
pub mod start;
pub mod synchronisation;
pub mod workers;

use std::fmt::Display;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use trellis::{Cluster, WaitError};

use crate::parmacs::globals::Globals;
use crate::parmacs::layout::Layout;
use crate::parmacs::workers::Workers;

/// The exit status of a node that the cluster failed.
const EXIT_CLUSTER: i32 = trellis::launch::EXIT_CLUSTER;
/// Numbers of objects that this module names by itself begin here; those of the program's objects are below.
const OWN_NUMBERS: u64 = 0x5041_524d_0000_0000;

/// The program, as this process takes part in it.
struct Program {
    cluster: Cluster,
    layout: Layout,
    workers: Workers,
    /// Where the globals are, if they are shared; otherwise workers get copies.
    shared: Option<Globals>,
}

static PROGRAM: OnceLock<Program> = OnceLock::new();

/// How far this process is.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Stage {
    /// Node 0 in `main`, or another node between two functions.
    Ready,
    /// Another node in a function of the program.
    Working,
    /// It has left the cluster or is about to: what the end of the process does by itself is all there is to do.
    Over,
}

static STAGE: AtomicU8 = AtomicU8::new(Stage::Ready as u8);

fn stage() -> Stage {
    match STAGE.load(Ordering::Relaxed) {
        0 => Stage::Ready,
        1 => Stage::Working,
        _ => Stage::Over,
    }
}

fn enter(stage: Stage) {
    STAGE.store(stage as u8, Ordering::Relaxed);
}

/// The program, which has begun when a macro does anything.
fn program(asking: &str) -> &'static Program {
    PROGRAM.get().unwrap_or_else(|| {
        stop(asking, "the program has not begun; put MAIN_ENV into the file that has main, outside of every function")
    })
}

/// The outcome of a call that a macro cannot report.
fn done<T>(asking: &str, outcome: Result<T, WaitError>) -> T {
    outcome.unwrap_or_else(|error| stop(asking, error))
}

/// Ends the process because the program cannot go on, and the cluster with it.
fn stop(asking: &str, why: impl Display) -> ! {
    let Some(program) = PROGRAM.get() else {
        trellis::complain(format_args!("{asking}: {why}"));
        end_process(EXIT_CLUSTER)
    };
    let node = program.cluster.node();
    trellis::complain(format_args!("node {node}: {asking}: {why}"));
    program.cluster.abandon(&format!("{asking}: {why}"));
    end_process(EXIT_CLUSTER)
}

/// Ends the process without the program's own handlers: it is in the middle of something.
fn end_process(status: i32) -> ! {
    enter(Stage::Over);
    flush();
    // SAFETY: has no conditions.
    unsafe { libc::_exit(status) }
}

/// Writes out what the program has printed.
fn flush() {
    // SAFETY: a null stream stands for all of them.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}
