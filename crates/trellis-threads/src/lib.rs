//! Lets the threads of a program run on several nodes, as if they were in one process.
//!
//! `trellis threads` has this library loaded first into a program of glibc that is linked dynamically. Its functions
//! have the names of those of the C library that make threads, take locks and allocate memory. The program's variables,
//! heap, stacks and thread-local variables lie in the region of a cluster, at the same addresses on every node.
//!
//! # Two kinds of threads
//!
//! A *thread of the program* has its stack and its thread-local variables in the region. Everything else, such as the
//! threads of Trellis, is private to the process. A function of this library looks at the thread pointer to know which
//! of both calls it (`context`). A private thread gets the C library's function. A thread of the program must not run
//! Trellis' code on pages that can be taken away from it while it holds a lock of Trellis, so it changes to private
//! memory first.
//!
//! Promises: a program that is not started by `trellis threads` sees the C library and nothing else. What is not
//! supported ends the run with a sentence that names the function. It must never use the C library's allocator, or
//! wait, on a page of the region while a lock of this process is held.

use std::ffi::{c_char, c_int};

mod actions;
mod awaited;
mod barriers;
mod cancellation;
mod conditions;
mod context;
mod control;
mod early;
mod faults;
mod interrupted;
mod kernel;
mod keys;
mod libraries;
mod mappings;
mod memory;
mod mutexes;
mod once;
mod openmp;
mod processors;
mod relaxed;
mod runtime;
mod semaphores;
mod start;
mod state;
mod streams;
mod system_calls;
mod table;
mod threads;
mod time;
mod whole;

/// Runs when the library is loaded, before all other libraries, and before the C library knows the environment.
unsafe extern "C" fn begin(_: c_int, _: *mut *mut c_char, environment: *mut *mut c_char) {
    for real in table::ALL {
        real.look_up();
    }
    // SAFETY: what the loader passes.
    unsafe { start::prepare(environment) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: unsafe extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = begin;
