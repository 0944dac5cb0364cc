//! `__trellis_malloc` and its family: the targets to which the malloc family of a compiled program is renamed, and
//! which the preloaded library for pages calls.
//!
//! Promises: the results and `errno` of C. An address that is not in the heap goes to the C library, and so does
//! everything before the heap exists. A double free, or a lost store, ends the process with one message and status
//! 70. It must never panic into C: the bodies call functions that return errors.

use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};

use trellis::stored::heap::process::{Place, install, place};
use trellis::stored::heap::{Heap, HeapError, Kind, Native};

/// The status with which `runtime` ends processes that cannot go on.
const EXIT_STATUS: c_int = 70;
const SECOND: &str = "the heap of this process is there already; start it once";

fn end(sentence: &str) -> ! {
    trellis::complain(format_args!("{sentence}"));
    // SAFETY: ends the process without running destructors, which would use the broken heap.
    unsafe { libc::_exit(EXIT_STATUS) }
}

fn set_errno(number: c_int) {
    // SAFETY: the C library's own place for this thread.
    unsafe { *libc::__errno_location() = number };
}

/// The address that a heap returned; NULL and `ENOMEM` if it has no room.
fn answer(outcome: Result<u64, HeapError>) -> *mut c_void {
    match outcome {
        Ok(address) => with_exposed_provenance_mut(address as usize),
        Err(HeapError::NoRoom(_)) => {
            set_errno(libc::ENOMEM);
            null_mut()
        }
        Err(other) => end(&other.to_string()),
    }
}

/// The owner of a pointer of the program.
enum Owner {
    /// The C library.
    Library,
    /// The heap.
    Heap(&'static Heap),
    /// The heap of the parent process.
    Parent(&'static Heap),
}

fn owner(address: *mut c_void) -> Owner {
    match place() {
        Place::Here(heap) if heap.contains(address.addr() as u64) => Owner::Heap(heap),
        Place::AtParent(heap) if heap.contains(address.addr() as u64) => Owner::Parent(heap),
        _ => Owner::Library,
    }
}

/// As `malloc`.
#[unsafe(no_mangle)]
pub extern "C" fn __trellis_malloc(bytes: usize) -> *mut c_void {
    match place() {
        Place::Here(heap) => answer(heap.malloc(bytes as u64)),
        // SAFETY: any number of bytes may be requested.
        _ => unsafe { libc::malloc(bytes) },
    }
}

/// As `calloc`.
#[unsafe(no_mangle)]
pub extern "C" fn __trellis_calloc(count: usize, bytes: usize) -> *mut c_void {
    match place() {
        Place::Here(heap) => answer(heap.calloc(count as u64, bytes as u64)),
        // SAFETY: any number of bytes may be requested.
        _ => unsafe { libc::calloc(count, bytes) },
    }
}

/// As `realloc` of glibc: size 0 frees the block and returns NULL.
///
/// # Safety
///
/// As `realloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __trellis_realloc(address: *mut c_void, bytes: usize) -> *mut c_void {
    if address.is_null() {
        return __trellis_malloc(bytes);
    }
    match owner(address) {
        // SAFETY: the caller's promise.
        Owner::Library => unsafe { libc::realloc(address, bytes) },
        Owner::Heap(heap) if bytes == 0 => {
            free_here(heap, address);
            null_mut()
        }
        Owner::Heap(heap) => answer(heap.realloc(address.addr() as u64, bytes as u64)),
        Owner::Parent(heap) => move_to_library(heap, address, bytes),
    }
}

/// In a child: copies the content of the parent's block to a block of the C library.
fn move_to_library(heap: &Heap, address: *mut c_void, bytes: usize) -> *mut c_void {
    let held = heap.usable_bytes(address.addr() as u64).unwrap_or_else(|error| end(&error.to_string()));
    // SAFETY: any number of bytes may be requested.
    let moved = unsafe { libc::malloc(bytes) };
    if !moved.is_null() {
        // SAFETY: both blocks have so many bytes, and nothing else uses the new one.
        unsafe { moved.copy_from_nonoverlapping(address, bytes.min(held as usize)) };
    }
    moved
}

/// As `aligned_alloc`, for any power of two and any number of bytes, as in glibc.
#[unsafe(no_mangle)]
pub extern "C" fn __trellis_aligned_alloc(alignment: usize, bytes: usize) -> *mut c_void {
    match place() {
        Place::Here(_) if !alignment.is_power_of_two() => {
            set_errno(libc::EINVAL);
            null_mut()
        }
        Place::Here(heap) => answer(heap.aligned(alignment as u64, bytes as u64)),
        // SAFETY: any number of bytes may be requested.
        _ => unsafe { libc::aligned_alloc(alignment, bytes) },
    }
}

/// As `memalign`: an alignment that is not a power of two is rounded up to the next one.
#[unsafe(no_mangle)]
pub extern "C" fn __trellis_memalign(alignment: usize, bytes: usize) -> *mut c_void {
    match alignment.checked_next_power_of_two() {
        Some(alignment) => __trellis_aligned_alloc(alignment, bytes),
        None => {
            set_errno(libc::EINVAL);
            null_mut()
        }
    }
}

/// As `posix_memalign`; `into` is an address of the program, and its bytes may be in a store.
///
/// # Safety
///
/// As `posix_memalign`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __trellis_posix_memalign(into: *mut *mut c_void, alignment: usize, bytes: usize) -> c_int {
    let Place::Here(heap) = place() else {
        // SAFETY: the caller's promise.
        return unsafe { libc::posix_memalign(into, alignment, bytes) };
    };
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    match heap.aligned(alignment as u64, bytes as u64) {
        Ok(address) => {
            // SAFETY: the caller's promise.
            unsafe { heap.memory().write(into.addr() as u64, &address.to_ne_bytes()) };
            0
        }
        Err(HeapError::NoRoom(_)) => libc::ENOMEM,
        Err(other) => end(&other.to_string()),
    }
}

/// As `free`.
///
/// # Safety
///
/// As `free`; `errno` is preserved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __trellis_free(address: *mut c_void) {
    if address.is_null() {
        return;
    }
    match owner(address) {
        // SAFETY: the caller's promise.
        Owner::Library => unsafe { libc::free(address) },
        Owner::Heap(heap) => free_here(heap, address),
        // The parent frees its own blocks.
        Owner::Parent(_) => {}
    }
}

fn free_here(heap: &Heap, address: *mut c_void) {
    // SAFETY: the C library's own place for this thread.
    let errno = unsafe { *libc::__errno_location() };
    if let Err(error) = heap.free(address.addr() as u64) {
        end(&error.to_string());
    }
    set_errno(errno);
}

/// As `malloc_usable_size`; 0 for a block of a heap that keeps no sizes.
///
/// # Safety
///
/// As `malloc_usable_size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __trellis_malloc_usable_size(address: *mut c_void) -> usize {
    if address.is_null() {
        return 0;
    }
    match owner(address) {
        // SAFETY: the caller's promise.
        Owner::Library => unsafe { libc::malloc_usable_size(address) },
        Owner::Heap(heap) | Owner::Parent(heap) if heap.kind() == Kind::Bump => 0,
        Owner::Heap(heap) | Owner::Parent(heap) => match heap.usable_bytes(address.addr() as u64) {
            Ok(bytes) => bytes as usize,
            Err(error) => end(&error.to_string()),
        },
    }
}

/// Whether an address belongs to the heap of this process or of its parent.
#[unsafe(no_mangle)]
pub extern "C" fn __trellis_is_of_heap(address: *const c_void) -> bool {
    !matches!(owner(address.cast_mut()), Owner::Library)
}

/// Creates the heap of this process over private memory, without a store, to test whether a program runs with the
/// library at all. `kind` is `scalable`, `first-fit` or `bump`; NULL means the first. Ends the process on failure.
///
/// # Safety
///
/// `kind` is NULL or a string that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __trellis_heap_over_private_memory(base: usize, bytes: usize, kind: *const std::ffi::c_char) {
    let kind = if kind.is_null() {
        Kind::default()
    } else {
        // SAFETY: the caller's promise.
        let name = unsafe { std::ffi::CStr::from_ptr(kind) }.to_string_lossy();
        name.parse().unwrap_or_else(|error: String| end(&error))
    };
    if !matches!(place(), Place::Nowhere) {
        end(SECOND);
    }
    let range = base as u64..(base as u64).saturating_add(bytes as u64);
    let memory = Native::reserve(range.clone()).unwrap_or_else(|error| {
        end(&format!("{range:#x?} cannot be reserved for the heap: {error}; is something else mapped there?"))
    });
    let heap = Heap::local(range, kind, std::sync::Arc::new(memory)).unwrap_or_else(|error| end(&error.to_string()));
    if install(heap).is_err() {
        end(SECOND);
    }
}
