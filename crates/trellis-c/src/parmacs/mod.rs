//! The functions of PARMACS/ANL programs, to which the macros of `parmacs/c.m4.trellis` expand.
//!
//! A program of this kind has one `main` that creates shared memory, then workers with CREATE, and waits for them.
//! Here each process of the cluster is one of its processors. Node 0 runs `main`. On every other node the constructor
//! that MAIN_ENV puts into the program never returns: the process waits for a CREATE, gets a copy of main's globals
//! and private heap as they are at that moment (`image`), runs the function, and waits again, until node 0 ends. A
//! program that was linked for it can share its globals instead (`globals`).
//!
//! Promises: `main` runs once, so no input is read twice and no output is printed twice. A worker sees what main
//! wrote before CREATE; main sees what a worker wrote to shared memory after WAIT_FOR_END. A macro cannot report a
//! failure, so every failure ends the process, and with it the cluster, with one message. It must never touch what
//! belongs to libraries: their variables, their heap, their threads.

#![allow(clippy::missing_safety_doc)] // the macros are the only callers; `parmacs.h` says what each argument is

mod arena;
mod globals;
mod image;
pub mod memory;
pub mod start;
pub mod synchronisation;
pub mod workers;

use std::fmt::Display;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use trellis::{Cluster, WaitError};

use crate::layout::Layout;
use crate::parmacs::globals::Globals;
use crate::parmacs::workers::Workers;

/// The exit status of a node after a failure of the cluster.
const EXIT_CLUSTER: i32 = trellis::launch::EXIT_CLUSTER;

/// The program, from the point of view of this process.
struct Program {
    cluster: Cluster,
    layout: Layout,
    workers: Workers,
    /// The globals, if they are shared; otherwise workers get copies.
    shared: Option<Globals>,
}

static PROGRAM: OnceLock<Program> = OnceLock::new();

/// The stage of this process.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Stage {
    /// Node 0 in `main`, or another node between two functions.
    Ready,
    /// Another node in a function of the program.
    Working,
    /// It has left the cluster or is about to: the process needs no more than its normal end.
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

/// The program; it has begun before any macro does anything.
fn program(asking: &str) -> &'static Program {
    PROGRAM.get().unwrap_or_else(|| {
        stop(asking, "the program has not begun; put MAIN_ENV into the file that has main, outside of every function")
    })
}

/// Returns the result of a call, or stops the program, because a macro cannot report a failure.
fn done<T>(asking: &str, outcome: Result<T, WaitError>) -> T {
    outcome.unwrap_or_else(|error| stop(asking, error))
}

/// Ends the process, and with it the cluster, because the program cannot go on.
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

/// Ends the process without the program's own handlers, because it is in the middle of an operation.
fn end_process(status: i32) -> ! {
    enter(Stage::Over);
    flush();
    // SAFETY: has no conditions.
    unsafe { libc::_exit(status) }
}

/// Flushes the program's output.
fn flush() {
    // SAFETY: a null pointer means all streams.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}
