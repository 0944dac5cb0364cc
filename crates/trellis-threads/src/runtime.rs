//! The functions of `libtrellis.so` for programs with threads, found by their names when the program begins.
//!
//! Promises: each is called on private memory, whichever thread calls it. Both libraries are of one version, which
//! `begin` checks.

use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::context::aside;
use crate::whole;

/// What the library tells the cluster at the start, and what it gets back, as `trellis_threads_begin` declares it.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Begin {
    pub(crate) version: usize,
    pub(crate) control_bytes: usize,
    pub(crate) slots: usize,
    pub(crate) room_bytes: usize,
    /// The memory for what libraries allocate before the program begins, and how much of it is in use.
    pub(crate) early: usize,
    pub(crate) early_bytes: usize,
    pub(crate) early_bytes_used: usize,
    pub(crate) node: usize,
    pub(crate) nodes: usize,
    pub(crate) base: usize,
    pub(crate) bytes: usize,
    pub(crate) control: usize,
    pub(crate) rooms: usize,
    /// The variables of the program and its libraries: pairs of an address and the address behind it.
    pub(crate) images: usize,
    pub(crate) image_count: usize,
    /// The functions with which libraries of the process allocate, and those that they are to use: pairs of addresses.
    pub(crate) strict: usize,
    pub(crate) strict_count: usize,
    /// The least size of a block of the program that lies in the upper part of the heap.
    pub(crate) upper_bytes_min: usize,
    /// Whether some of the memory is relaxed.
    pub(crate) is_relaxed: usize,
    /// The memory of the region on which system calls wait: its address and size. On other memory they fail if
    /// `serves_in_thread`, because the thread that touches it serves the fault itself.
    pub(crate) queued: usize,
    pub(crate) queued_bytes: usize,
    pub(crate) serves_in_thread: usize,
    /// The address of the number of the program's threads at this node.
    pub(crate) threads: usize,
    /// The addresses for libraries that are loaded later: where they begin, and their size.
    pub(crate) libraries: usize,
    pub(crate) libraries_bytes: usize,
}

/// The version of this interface.
pub(crate) const VERSION: usize = 8;

macro_rules! functions {
    ($($name:ident: $symbol:literal = fn($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        mod found {
            use super::*;
            $(
                #[allow(non_upper_case_globals, reason = "they have the names of their functions")]
                pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            )*
        }

        /// Finds all functions; the error names the first that is missing.
        fn find_all(library: *mut c_void) -> Result<(), &'static str> {
            $(
                let name = concat!($symbol, "\0");
                // SAFETY: a library that is open, and a name with a zero byte at its end.
                let address = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
                if address.is_null() {
                    return Err($symbol);
                }
                found::$name.store(address, Ordering::Release);
            )*
            Ok(())
        }

        $(
            pub(crate) fn $name($($argument: $type),*) $(-> $result)? {
                let address = found::$name.load(Ordering::Acquire);
                debug_assert!(!address.is_null(), "the program has begun");
                // SAFETY: the function of this name, which has this type.
                let function = unsafe {
                    std::mem::transmute::<*mut c_void, extern "C" fn($($type),*) $(-> $result)?>(address)
                };
                aside(|| function($($argument),*))
            }
        )*
    };
}

functions! {
    begin: "trellis_threads_begin" = fn(begin: *mut Begin);
    stop_with: "trellis_threads_stop" = fn(why: *const u8, bytes: usize);
    allocate: "trellis_threads_allocate" = fn(bytes: usize, alignment: usize, zeroed: bool, upper: bool) -> usize;
    free: "trellis_threads_free" = fn(block: usize);
    usable: "trellis_threads_usable" = fn(block: usize) -> usize;
    order: "trellis_threads_order" = fn(node: usize);
    next_order: "trellis_threads_next_order" = fn() -> bool;
    end: "trellis_threads_end" = fn(status: c_int, busy: bool);
    end_here: "trellis_threads_end_here" = fn(busy: bool);
    lock_init: "trellis_threads_lock_init" = fn(lock: usize);
    mutex_lock: "trellis_threads_mutex_lock" = fn(mutex: usize, kind: c_int, thread: usize, limit_ns: u64) -> c_int;
    mutex_unlock: "trellis_threads_mutex_unlock" = fn(mutex: usize, kind: c_int, thread: usize) -> c_int;
    next_held: "trellis_threads_next_held" = fn(thread: usize, after: usize) -> usize;
    condition_wait: "trellis_threads_condition_wait" =
        fn(condition: usize, mutex: usize, kind: c_int, thread: usize, limit_ns: u64, interrupt: usize) -> c_int;
    condition_notify: "trellis_threads_condition_notify" = fn(condition: usize, all: bool);
    barrier_wait: "trellis_threads_barrier_wait" = fn(barrier: usize, participants: u32) -> bool;
    semaphore_set: "trellis_threads_semaphore_set" = fn(semaphore: usize, value: u64);
    semaphore_post: "trellis_threads_semaphore_post" = fn(semaphore: usize);
    semaphore_signal: "trellis_threads_semaphore_signal" = fn(semaphore: usize);
    semaphore_wait: "trellis_threads_semaphore_wait" = fn(semaphore: usize, limit_ns: u64) -> c_int;
    semaphore_wait_or_interrupt: "trellis_threads_semaphore_wait_or_interrupt" =
        fn(semaphore: usize, limit_ns: u64, interrupt: usize) -> c_int;
    semaphore_value: "trellis_threads_semaphore_value" = fn(semaphore: usize) -> u64;
    rwlock_lock: "trellis_threads_rwlock_lock" = fn(lock: usize, writes: bool, thread: usize, limit_ns: u64) -> c_int;
    rwlock_unlock: "trellis_threads_rwlock_unlock" = fn(lock: usize, thread: usize) -> c_int;
    once_lock: "trellis_threads_once_lock" = fn(object: usize);
    once_unlock: "trellis_threads_once_unlock" = fn(object: usize);
    futex_wait: "trellis_threads_futex_wait" = fn(word: usize, value: u32, limit_ns: u64) -> c_int;
    futex_wake: "trellis_threads_futex_wake" = fn(word: usize, count: u64) -> u64;
    meet: "trellis_threads_meet" = fn(value: u64) -> u64;
    arrive: "trellis_threads_arrive" = fn(number: u32, home: usize, participants: u32, limit_ns: u64) -> bool;
    word_add: "trellis_threads_word_add" = fn(number: u32, home: usize, value: u64) -> u64;
    word_clear: "trellis_threads_word_clear" = fn(number: u32, home: usize);
    release: "trellis_threads_release" = fn();
    acquire: "trellis_threads_acquire" = fn();
    permit: "trellis_threads_permit" = fn(number: u32, home: usize);
    leave_uncounted: "trellis_threads_leave_uncounted" = fn();
    claim_signal: "trellis_threads_claim_signal" = fn(signal: c_int, action: usize, before: usize) -> bool;
    tell_of_sleeps: "trellis_threads_tell_of_sleeps" = fn(function: extern "C" fn(bool));
    announce: "trellis_threads_announce" = fn(start: usize, bytes: usize, write: bool);
    interrupt: "trellis_threads_interrupt" = fn();
    announce_to: "__trellis_calls_announce_to" = fn(announce: extern "C" fn(usize, usize, bool));
    share_libraries: "trellis_threads_share_libraries" = fn(start: usize, end: usize) -> u64;
    take_permit: "trellis_threads_take_permit" = fn(number: u32, home: usize, limit_ns: u64) -> bool;
}

/// Opens `libtrellis.so`, which lies beside this library.
pub(crate) fn open() -> Result<(), String> {
    let own = own_file().ok_or("the place of libtrellis_threads.so is not known")?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    // Where cargo builds, this library lies among the dependencies.
    let beside = [folder.join("libtrellis.so"), folder.join("../libtrellis.so")];
    let file = beside.iter().find(|file| file.exists()).unwrap_or(&beside[0]);
    let name = CString::new(file.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: a name that ends with a zero byte.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        // SAFETY: there was an error in this thread, so there is a text, or none.
        let why = unsafe { libc::dlerror().as_ref() }.map(|why| unsafe { CStr::from_ptr(why) }.to_string_lossy());
        return Err(format!("{} cannot be loaded: {}", file.display(), why.unwrap_or_default()));
    }
    find_all(library).and_then(|()| whole::find_all(library)).map_err(|missing| {
        format!("{} has no function {missing}; install it and libtrellis_threads.so from one package", file.display())
    })
}

/// Ends the run with a sentence.
pub(crate) fn stop(why: &str) -> ! {
    stop_with(why.as_ptr(), why.len());
    unreachable!("the process has ended")
}

/// Ends the run because a function is not supported; `way_out` completes "…; ".
pub(crate) fn unsupported(function: &str, way_out: &str) -> ! {
    aside(|| stop(&format!("{function} is not supported by `trellis threads`; {way_out}")))
}

fn own_file() -> Option<std::path::PathBuf> {
    static HERE: u8 = 0;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: an address of this library, and room for the answer, which is set if dladdr(3) does not return 0.
    let name = unsafe {
        if libc::dladdr((&raw const HERE).cast(), info.as_mut_ptr()) == 0 {
            return None;
        }
        CStr::from_ptr(info.assume_init().dli_fname)
    };
    Some(Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())).to_path_buf())
}
