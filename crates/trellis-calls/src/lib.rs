//! Makes calls of the C library whole that get memory which is not here.
//!
//! A catcher that serves a fault in the thread that made it cannot do so in the middle of a system call: the kernel
//! answers EFAULT instead, or stops before the page. The functions of this library have the names of the C library's,
//! and are called in their place, in programs that are linked with `libtrellis.so` or that have
//! `libtrellis_calls.so` loaded first, as `trellis run` does. A call whose memory is private goes on to the C library.
//! Any other is made so that it does what it would do if all memory were here.
//!
//! Promises: nothing is lost, repeated or reordered; the answer and `errno` are those of the call. A call without
//! shared memory costs a comparison for each region. Functions that may be called in a signal handler still may. It
//! must never depend on the rest of Trellis: this library is loaded into programs that may not use it at all.
//!
//! Two kinds of system calls are not covered: those that a program makes without the C library (the runtime of Go,
//! io_uring), and those that the C library makes for other functions (aio, locks of pthreads in shared memory).

mod arguments;
mod buffer;
mod classes;
mod numbers;
mod processes;
mod refused;
mod shared;
mod signals;
mod sockets;
mod stdio;
mod streams;
mod system_calls;
mod table;
mod waits;

use std::ffi::{c_int, c_void};

/// Whether the program's calls come here: its `read` is the one of this library.
#[unsafe(no_mangle)]
pub extern "C" fn __trellis_calls_are_answered() -> bool {
    static HERE: u8 = 0;
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"read".as_ptr()) };
    library_of(found).is_some_and(|library| Some(library) == library_of((&raw const HERE).cast()))
}

/// Counts a range of addresses as shared from now on; returns false if there is no room for another one.
///
/// `claim` is the runtime's part of sigaction(2): it returns true if the signal is one that regions need, and everything
/// is done. Only the runtime calls this, one thread at a time; it finds the function with dlsym(3).
///
/// # Safety
/// The range stays mapped until [`__trellis_calls_forget`]. `claim` may be called at any time from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __trellis_calls_watch(
    start: usize,
    bytes: usize,
    claim: unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> bool,
) -> bool {
    if !shared::add(start, bytes) {
        return false;
    }
    signals::ask(claim);
    true
}

/// From now on `announce` gets the parts of shared memory that a call is about to copy: their first address, their
/// length, and whether the call stores to them. This is a hint for the runtime. The call does not depend on it.
#[unsafe(no_mangle)]
pub extern "C" fn __trellis_calls_announce_to(announce: extern "C" fn(usize, usize, bool)) {
    shared::announce_to(announce);
}

/// The range that begins at `start` is not shared any more.
#[unsafe(no_mangle)]
pub extern "C" fn __trellis_calls_forget(start: usize) {
    shared::remove(start);
}

/// The first address of the library that contains an address.
fn library_of(address: *const c_void) -> Option<usize> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: room for the answer, which is set if dladdr(3) does not return 0.
    unsafe { (libc::dladdr(address, found.as_mut_ptr()) != 0).then(|| found.assume_init().dli_fbase as usize) }
}

/// Runs when the library is loaded.
extern "C" fn begin() {
    for real in table::ALL {
        real.look_up();
    }
    signals::unblock();
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
