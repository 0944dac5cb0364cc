//! G_MALLOC and its family, and the private heap behind malloc.
//!
//! Promises: shared memory is zero when it is allocated and can be freed on any node. Private memory is part of the
//! image. A pointer from the C library is returned to the C library, so strdup, getline and the like continue to
//! work. If shared memory does not suffice, the program ends with a message that names the key to enlarge it; malloc
//! returns NULL, as in C.

use std::alloc::Layout;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};

use trellis::{Heap, Home, Padding};

use super::arena::{Arena, arena};
use super::{PROGRAM, program, stop};

/// `G_MALLOC(bytes)`
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_g_malloc(bytes: usize) -> *mut c_void {
    shared("G_MALLOC", bytes, None)
}

/// `NU_MALLOC(bytes, node)`
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_nu_malloc(bytes: usize, node: usize) -> *mut c_void {
    shared("NU_MALLOC", bytes, Some(node))
}

/// `G_FREE(pointer)`
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_g_free(pointer: *mut c_void) {
    if !pointer.is_null() {
        give_back("G_FREE", pointer.cast());
    }
}

/// Allocates zeroed memory in the region; at `node` if that is given.
pub(super) fn shared(asking: &str, bytes: usize, node: Option<usize>) -> *mut c_void {
    let program = program(asking);
    let home = node.map_or(Home::Unspecified, |node| Home::Node(node % program.cluster.nodes()));
    match program.cluster.heap().allocate_zeroed::<u128>(bytes.div_ceil(16), home) {
        Ok(block) => block.as_ptr().cast(),
        Err(error) => stop(asking, error),
    }
}

/// Frees memory of [`shared`].
pub(super) fn give_back(asking: &str, pointer: *mut u8) {
    let Some(block) = NonNull::new(pointer) else { return };
    // SAFETY: by calling this the program promises that nothing uses the memory any more, as for free(3).
    if let Err(error) = unsafe { program(asking).cluster.heap().free(block) } {
        stop(asking, error);
    }
}

/// The result of a C allocator that has no memory.
fn out_of_memory() -> *mut c_void {
    // SAFETY: the address of the calling thread's errno.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    null_mut()
}

/// The source of the program's malloc memory.
enum Source<'a> {
    /// The private heap, which workers get as a copy.
    Arena(&'a mut Arena),
    /// The shared heap, if the globals are shared, too.
    Shared(Heap<'a>),
    /// The C library: memory that it allocated itself, and memory from before the program began.
    Library,
}

/// Calls with the source of a pointer, or with the source of new memory if there is no pointer.
fn with_source<T>(pointer: Option<usize>, call: impl FnOnce(Source<'_>) -> T) -> T {
    if let Some(program) = PROGRAM.get().filter(|program| program.shared.is_some()) {
        let region = program.cluster.region();
        let start = region.base() as usize;
        let is_ours = pointer.is_none_or(|pointer| (start..start + region.bytes()).contains(&pointer));
        return call(if is_ours { Source::Shared(program.cluster.heap()) } else { Source::Library });
    }
    let mut held = arena();
    let ours = held.as_mut().filter(|arena| pointer.is_none_or(|pointer| arena.has(pointer)));
    match ours {
        Some(arena) => call(Source::Arena(arena)),
        None => {
            drop(held);
            call(Source::Library)
        }
    }
}

/// Stops the program if a pointer that was freed or examined is not from this heap.
fn settled<T>(outcome: Result<T, String>) -> T {
    outcome.unwrap_or_else(|why| stop("free", why))
}

fn allocate(bytes: usize, alignment: usize) -> Option<NonNull<u8>> {
    with_source(None, |source| match source {
        Source::Arena(arena) => arena.allocate(bytes, alignment).ok(),
        Source::Shared(heap) => {
            let layout = Layout::from_size_align(bytes, alignment.max(16)).ok()?;
            heap.allocate_layout(layout, Home::Unspecified, Padding::Packed).ok()
        }
        // SAFETY: the only condition is that the alignment is a power of two, which callers ensure.
        Source::Library => NonNull::new(unsafe { libc::memalign(alignment, bytes) }.cast()),
    })
}

/// `malloc(bytes)`
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_malloc(bytes: usize) -> *mut c_void {
    allocate(bytes, 16).map_or_else(out_of_memory, |block| block.as_ptr().cast())
}

/// `calloc(count, bytes)`
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_calloc(count: usize, bytes: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(bytes) else { return out_of_memory() };
    let block = trellis_parmacs_malloc(bytes);
    if !block.is_null() {
        // SAFETY: the block has so many bytes.
        unsafe { block.write_bytes(0, bytes) };
    }
    block
}

/// `realloc(pointer, bytes)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_parmacs_realloc(pointer: *mut c_void, bytes: usize) -> *mut c_void {
    if pointer.is_null() {
        return trellis_parmacs_malloc(bytes);
    }
    let place = pointer as usize;
    let sizes = with_source(Some(place), |source| match source {
        Source::Arena(arena) => Some(arena.sizes(place)),
        Source::Shared(heap) => {
            let has = heap.usable_bytes(NonNull::new(pointer)?).map_err(|error| error.to_string());
            Some(has.map(|has| (has, has)))
        }
        Source::Library => None,
    });
    let Some(sizes) = sizes else {
        // SAFETY: the pointer is not from our heaps, so the caller got it from the C library.
        return unsafe { libc::realloc(pointer, bytes) };
    };
    let (asked, has) = settled(sizes);
    if bytes <= has && bytes >= has / 2 {
        with_source(Some(place), |source| match source {
            Source::Arena(arena) => arena.resize(place, bytes),
            _ => Ok(()),
        })
        .unwrap_or_else(|why| stop("realloc", why));
        return pointer;
    }
    let block = trellis_parmacs_malloc(bytes);
    if !block.is_null() {
        // SAFETY: both blocks have so many bytes, and one was taken while the other was held; the caller gives up the
        // old one.
        unsafe {
            block.copy_from_nonoverlapping(pointer, asked.min(bytes));
            trellis_parmacs_free(pointer);
        }
    }
    block
}

/// `free(pointer)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_parmacs_free(pointer: *mut c_void) {
    let Some(block) = NonNull::new(pointer) else { return };
    let freed = with_source(Some(pointer as usize), |source| match source {
        Source::Arena(arena) => arena.free(pointer as usize),
        // SAFETY: the caller's promise, as free(3) requires.
        Source::Shared(heap) => unsafe { heap.free(block) }.map_err(|error| error.to_string()),
        Source::Library => {
            // SAFETY: the pointer is not from our heaps, so the caller got it from the C library.
            unsafe { libc::free(pointer) };
            Ok(())
        }
    });
    settled(freed);
}

/// `aligned_alloc(alignment, bytes)`, `memalign` and `valloc`
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_aligned_alloc(alignment: usize, bytes: usize) -> *mut c_void {
    if !alignment.is_power_of_two() {
        // SAFETY: the address of the calling thread's errno.
        unsafe { *libc::__errno_location() = libc::EINVAL };
        return null_mut();
    }
    allocate(bytes, alignment).map_or_else(out_of_memory, |block| block.as_ptr().cast())
}

/// `posix_memalign(pointer, alignment, bytes)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_parmacs_posix_memalign(
    pointer: *mut *mut c_void,
    alignment: usize,
    bytes: usize,
) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let Some(block) = allocate(bytes, alignment) else { return libc::ENOMEM };
    // SAFETY: posix_memalign(3) requires a valid address.
    unsafe { *pointer = block.as_ptr().cast() };
    0
}

/// `strdup(text)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_parmacs_strdup(text: *const c_char) -> *mut c_char {
    // SAFETY: strdup(3) requires a string.
    let bytes = unsafe { libc::strlen(text) } + 1;
    let copy = trellis_parmacs_malloc(bytes).cast::<c_char>();
    if !copy.is_null() {
        // SAFETY: both have so many bytes.
        unsafe { copy.copy_from_nonoverlapping(text, bytes) };
    }
    copy
}
