//! `malloc` and its family: memory of the region for threads of the program, memory of the process for all others.
//!
//! Promises: a block is given back to the heap that it came from, whoever frees it. A block of the process that the program
//! frees (from before it began, or from inside the C library) is freed on private memory, because the lock of that heap
//! must not be held while a page is waited for.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::context::{self, aside, is_of_program};
use crate::relaxed::{self, Zone};
use crate::table::reals;
use crate::{early, runtime};

/// The region: its address and size; none before the program begins.
static BASE: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Alignment of `malloc`.
pub(crate) const ALIGNMENT: usize = 16;
/// The size of a page of memory.
pub(crate) const PAGE: usize = 4096;

/// Sets where the region is: blocks at these addresses belong to it.
pub(crate) fn begin(base: usize, bytes: usize) {
    BASE.store(base, Ordering::Relaxed);
    BYTES.store(bytes, Ordering::Release);
}

/// Whether an address is in the region.
pub(crate) fn is_in_region(address: usize) -> bool {
    let bytes = BYTES.load(Ordering::Acquire);
    address.wrapping_sub(BASE.load(Ordering::Relaxed)) < bytes
}

fn or_no_memory(block: usize) -> *mut c_void {
    if block == 0 {
        trellis_interpose::set_errno(libc::ENOMEM);
    }
    block as *mut c_void
}

/// Allocates for the caller, if it is a thread of the program or a library that is being initialised. `None` if the C
/// library must allocate. Without a size, because that of an array overflowed, the result is null.
pub(crate) fn of_program(bytes: Option<usize>, alignment: usize, zeroed: bool) -> Option<*mut c_void> {
    given(Zone::OfProgram, bytes, alignment, zeroed)
}

/// Allocates like [`allocate`], in a zone.
pub(crate) fn given(zone: Zone, bytes: Option<usize>, alignment: usize, zeroed: bool) -> Option<*mut c_void> {
    if early::is_loading() {
        return Some(bytes.map_or(null_mut(), |bytes| early::allocate(bytes, alignment)));
    }
    is_of_program().then(|| or_no_memory(bytes.map_or(0, |bytes| relaxed::allocate(zone, bytes, alignment, zeroed))))
}

/// # Safety
/// As free(3).
pub(crate) unsafe fn free(real: unsafe extern "C" fn(*mut c_void), block: *mut c_void) {
    if block.is_null() || early::has(block as usize) {
        return;
    }
    let errno = trellis_interpose::errno();
    if context::is_bare() {
        // The C library frees a few bytes at the very end of a thread. Those of the region stay taken.
        if !is_in_region(block as usize) {
            // SAFETY: as the caller promises.
            unsafe { real(block) };
        }
        return;
    }
    if is_in_region(block as usize) {
        runtime::free(block as usize);
    } else {
        // SAFETY: as the caller promises.
        aside(|| unsafe { real(block) });
    }
    trellis_interpose::set_errno(errno);
}

/// # Safety
/// As malloc_usable_size(3).
pub(crate) unsafe fn usable_size(real: unsafe extern "C" fn(*mut c_void) -> usize, block: *mut c_void) -> usize {
    if early::has(block as usize) {
        return early::usable(block as usize);
    }
    if is_in_region(block as usize) {
        return runtime::usable(block as usize);
    }
    // SAFETY: as the caller promises.
    unsafe { real(block) }
}

/// # Safety
/// As realloc(3).
pub(crate) unsafe fn realloc(
    real: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    block: *mut c_void,
    bytes: usize,
) -> *mut c_void {
    // SAFETY: as the caller promises.
    unsafe { realloc_in(Zone::OfProgram, real, block, bytes) }
}

/// The same; a block that is new lies in a zone.
///
/// # Safety
/// As realloc(3).
pub(crate) unsafe fn realloc_in(
    zone: Zone,
    real: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    block: *mut c_void,
    bytes: usize,
) -> *mut c_void {
    let in_region = is_in_region(block as usize);
    if !in_region && !is_of_program() && !early::is_loading() && !early::has(block as usize) {
        // SAFETY: as the caller promises.
        return unsafe { real(block, bytes) };
    }
    type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
    let new_block = |bytes: usize| match given(zone, Some(bytes), ALIGNMENT, false) {
        Some(block) => block,
        // SAFETY: the C library's function, which has this type.
        None => unsafe { std::mem::transmute::<*mut c_void, Malloc>(reals::malloc.address())(bytes) },
    };
    if block.is_null() {
        return new_block(bytes);
    }
    // SAFETY: as the caller promises; the functions of the C library have these types.
    unsafe {
        let free_real: unsafe extern "C" fn(*mut c_void) = std::mem::transmute(reals::free.address());
        if bytes == 0 {
            free(free_real, block);
            return null_mut();
        }
        let usable_real: unsafe extern "C" fn(*mut c_void) -> usize =
            std::mem::transmute(reals::malloc_usable_size.address());
        let has = usable_size(usable_real, block);
        if in_region && bytes <= has && bytes >= has / 2 {
            return block;
        }
        let new = new_block(bytes);
        if new.is_null() {
            return or_no_memory(0);
        }
        new.cast::<u8>().copy_from_nonoverlapping(block.cast(), has.min(bytes));
        free(free_real, block);
        new
    }
}

/// # Safety
/// As reallocarray(3).
pub(crate) unsafe fn realloc_array(
    _: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    block: *mut c_void,
    count: usize,
    bytes: usize,
) -> *mut c_void {
    let Some(bytes) = count.checked_mul(bytes) else { return or_no_memory(0) };
    // SAFETY: as the caller promises; the C library's function has this type.
    unsafe {
        type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
        realloc(std::mem::transmute::<*mut c_void, Realloc>(reals::realloc.address()), block, bytes)
    }
}

/// As memalign(3) and aligned_alloc(3).
pub(crate) fn aligned(alignment: usize, bytes: usize) -> Option<*mut c_void> {
    if !alignment.is_power_of_two() && (is_of_program() || early::is_loading()) {
        trellis_interpose::set_errno(libc::EINVAL);
        return Some(null_mut());
    }
    of_program(Some(bytes), alignment, false)
}

/// As posix_memalign(3); `None` if the C library is to answer.
///
/// # Safety
/// The place for the answer is valid.
pub(crate) unsafe fn posix_aligned(to: *mut *mut c_void, alignment: usize, bytes: usize) -> Option<c_int> {
    if !is_of_program() && !early::is_loading() {
        return None;
    }
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<usize>()) {
        return Some(libc::EINVAL);
    }
    let errno = trellis_interpose::errno();
    let block = of_program(Some(bytes), alignment, false)?;
    trellis_interpose::set_errno(errno);
    if block.is_null() {
        return Some(libc::ENOMEM);
    }
    // SAFETY: the caller's promise.
    unsafe { *to = block };
    Some(0)
}
