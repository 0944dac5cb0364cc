//! Streams of the C library in threads of the program: each is one stream, whichever node uses it.
//!
//! A stream lies in the region, and its lock is one of the cluster. The list of all streams is a variable of the C library,
//! so each node has a list of those that its threads opened. Promises: what a stream holds is written when it is closed, at
//! any node, and at the end of the program, unless a thread is using the stream then.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use libc::FILE;

use crate::control::control;
use crate::{start, threads};

/// The offsets at which glibc keeps the next stream of the list and the descriptor, on 64-bit processors.
const NEXT_OFFSET: usize = 104;
const DESCRIPTOR_OFFSET: usize = 112;

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    /// The first of the streams of this node.
    static _IO_list_all: *mut FILE;
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn ftrylockfile(stream: *mut FILE) -> c_int;
    fn funlockfile(stream: *mut FILE);
    fn fflush_unlocked(stream: *mut FILE) -> c_int;
}

/// Called by a thread of the program that has just begun: its standard streams are those of all nodes.
pub(crate) fn begin_thread() {
    let [input, output] = &control().streams;
    // SAFETY: variables of the C library that point to streams; those of all nodes lie in the region.
    unsafe {
        stdin = input.load(Ordering::Acquire) as *mut FILE;
        stdout = output.load(Ordering::Acquire) as *mut FILE;
    }
}

/// Makes the standard streams of all nodes in the region. They replace those that are variables of the C library.
pub(crate) fn make() {
    // SAFETY: constant modes; the C library allocates a stream in a thread of the program, so in the region.
    let made =
        unsafe { [libc::fdopen(libc::STDIN_FILENO, c"r".as_ptr()), libc::fdopen(libc::STDOUT_FILENO, c"w".as_ptr())] };
    // SAFETY: variables of the C library that point to streams.
    let own = unsafe { [stdin, stdout] };
    for ((place, made), own) in control().streams.iter().zip(made).zip(own) {
        // A descriptor that is closed has no stream that works.
        place.store(if made.is_null() { own } else { made } as usize, Ordering::Release);
    }
    begin_thread();
}

/// The streams of this node.
///
/// # Safety
/// The list is locked while this is used.
unsafe fn of_this_node() -> impl Iterator<Item = *mut FILE> {
    // SAFETY: the C library's list, by the caller's promise.
    let first = unsafe { _IO_list_all };
    std::iter::successors(Some(first).filter(|stream| !stream.is_null()), |stream| {
        // SAFETY: a stream of the list.
        let next = unsafe { stream.byte_add(NEXT_OFFSET).cast::<*mut FILE>().read() };
        Some(next).filter(|next| !next.is_null())
    })
}

/// Writes what the streams of this node hold, except those that a thread is using. It is the function of a thread.
pub(crate) extern "C-unwind" fn flush(_: *mut c_void) -> *mut c_void {
    // SAFETY: streams of the C library's list, which is locked, each locked while it is used.
    unsafe {
        _IO_list_lock();
        for stream in of_this_node() {
            if ftrylockfile(stream) == 0 {
                fflush_unlocked(stream);
                funlockfile(stream);
            }
        }
        _IO_list_unlock();
    }
    null_mut()
}

/// fclose(3). A stream that was opened at another node stays in that node's list, without a descriptor.
///
/// # Safety
/// As fclose(3).
pub(crate) unsafe fn close(real: unsafe extern "C" fn(*mut FILE) -> c_int, stream: *mut FILE) -> c_int {
    // SAFETY: as the caller promises; the list is locked while it is looked at.
    unsafe {
        _IO_list_lock();
        let is_own = of_this_node().any(|other| other == stream);
        _IO_list_unlock();
        if start::nodes() == 1 || is_own {
            return real(stream);
        }
        let written = libc::fflush(stream);
        let closed = libc::close(libc::fileno(stream));
        stream.byte_add(DESCRIPTOR_OFFSET).cast::<c_int>().write(-1);
        if written == 0 && closed == 0 { 0 } else { libc::EOF }
    }
}

/// Has the other nodes write what their streams hold.
pub(crate) fn flush_elsewhere() {
    threads::run_elsewhere(flush);
}
