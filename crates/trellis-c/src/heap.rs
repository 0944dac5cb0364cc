//! `trellis_malloc` and its family: the shared heap with the interface of C heaps.
//!
//! Promises: a function that returns a pointer returns NULL if it failed, and keeps a message with the reason.
//! Freeing NULL does nothing, as in C. An address that no allocation returned is refused and changes nothing.

use std::alloc::Layout;
use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};

use trellis::{Cluster, HeapError, HeapStatistics, Home, Padding};

use crate::cluster::{ClusterHandle, on_cluster, refuse_in_child};
use crate::failure::{Failure, answer_or};
use crate::status;

/// `TRELLIS_HOME_UNSPECIFIED`
pub const HOME_UNSPECIFIED: usize = usize::MAX;
/// `TRELLIS_HOME_HERE`
pub const HOME_HERE: usize = usize::MAX - 1;
/// `TRELLIS_HOME_INTERLEAVED`
pub const HOME_INTERLEAVED: usize = usize::MAX - 2;

/// `TRELLIS_PACKED`
pub const PACKED: c_int = 0;
/// `TRELLIS_PER_CACHE_LINE`
pub const PER_CACHE_LINE: c_int = 1;
/// `TRELLIS_PER_PAGE`
pub const PER_PAGE: c_int = 2;
/// `TRELLIS_PER_PAGE_WHILE_FEW`
pub const PER_PAGE_WHILE_FEW: c_int = 3;

/// The alignment of C's `malloc`.
const ALIGN_BYTES: usize = 16;

/// `struct trellis_heap_counts`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // The header describes the fields.
pub struct HeapCounts {
    pub blocks: u64,
    pub block_bytes: u64,
    pub span_bytes: u64,
    pub allocations: u64,
    pub frees_by_others: u64,
    pub free_bytes: u64,
}

impl From<HeapStatistics> for HeapCounts {
    fn from(now: HeapStatistics) -> HeapCounts {
        HeapCounts {
            blocks: now.blocks,
            block_bytes: now.block_bytes,
            span_bytes: now.span_bytes,
            allocations: now.allocations,
            frees_by_others: now.frees_by_others,
            free_bytes: now.free_bytes,
        }
    }
}

impl From<HeapError> for Failure {
    fn from(error: HeapError) -> Failure {
        match error {
            HeapError::Wait(error) => error.into(),
            HeapError::Misuse(why) => Failure::new(status::ARGUMENT, why),
            other => Failure::new(status::STATE, other),
        }
    }
}

/// Runs the body of a function that returns memory.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not freed.
pub(crate) unsafe fn memory(
    cluster: *const ClusterHandle,
    body: impl FnOnce(&Cluster) -> Result<NonNull<u8>, Failure>,
) -> *mut c_void {
    answer_or(null_mut(), || {
        refuse_in_child()?;
        // SAFETY: the caller's promise.
        let handle = unsafe { cluster.as_ref() }.ok_or_else(no_cluster)?;
        body(handle.cluster()).map(|block| block.as_ptr().cast())
    })
}

pub(crate) fn no_cluster() -> Failure {
    Failure::new(status::ARGUMENT, "cluster is NULL; give the handle of trellis_join")
}

fn layout(bytes: usize, alignment: usize) -> Result<Layout, Failure> {
    if !alignment.is_power_of_two() {
        let why = format!("alignment {alignment} is not a power of two; give 16, 64 or 4096, for example");
        return Err(Failure::new(status::ARGUMENT, why));
    }
    Layout::from_size_align(bytes, alignment.max(ALIGN_BYTES)).map_err(|_| {
        Failure::new(status::ARGUMENT, format!("{bytes} bytes aligned to {alignment} are more than any memory"))
    })
}

fn home_of(home: usize) -> Home {
    match home {
        HOME_UNSPECIFIED => Home::Unspecified,
        HOME_HERE => Home::Here,
        HOME_INTERLEAVED => Home::Interleaved,
        node => Home::Node(node),
    }
}

fn padding_of(padding: c_int) -> Result<Padding, Failure> {
    match padding {
        PACKED => Ok(Padding::Packed),
        PER_CACHE_LINE => Ok(Padding::PerCacheLine),
        PER_PAGE => Ok(Padding::PerPage),
        PER_PAGE_WHILE_FEW => Ok(Padding::PerPageWhileFew),
        other => {
            let why = format!(
                "padding {other} is unknown; give TRELLIS_PACKED, _PER_CACHE_LINE, _PER_PAGE or \
                 _PER_PAGE_WHILE_FEW"
            );
            Err(Failure::new(status::ARGUMENT, why))
        }
    }
}

/// Allocates memory with all options.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_allocate(
    cluster: *mut ClusterHandle,
    bytes: usize,
    alignment: usize,
    home: usize,
    padding: c_int,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe {
        memory(cluster, |cluster| {
            Ok(cluster.heap().allocate_layout(layout(bytes, alignment)?, home_of(home), padding_of(padding)?)?)
        })
    }
}

/// Allocates zeroed memory with all options.
///
/// # Safety
/// As for [`trellis_allocate`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_allocate_zeroed(
    cluster: *mut ClusterHandle,
    bytes: usize,
    alignment: usize,
    home: usize,
    padding: c_int,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe {
        memory(cluster, |cluster| {
            let (layout, padding) = (layout(bytes, alignment)?, padding_of(padding)?);
            Ok(cluster.heap().allocate_layout_zeroed(layout, home_of(home), padding)?)
        })
    }
}

/// Allocates memory like `malloc`.
///
/// # Safety
/// As for [`trellis_allocate`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_malloc(cluster: *mut ClusterHandle, bytes: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { trellis_allocate(cluster, bytes, ALIGN_BYTES, HOME_UNSPECIFIED, PACKED) }
}

/// Allocates zeroed memory like `calloc`.
///
/// # Safety
/// As for [`trellis_allocate`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_calloc(cluster: *mut ClusterHandle, count: usize, bytes: usize) -> *mut c_void {
    // A product that overflows does not fit into a region either, and is refused as too large.
    let all = count.saturating_mul(bytes);
    // SAFETY: the caller's promise.
    unsafe { trellis_allocate_zeroed(cluster, all, ALIGN_BYTES, HOME_UNSPECIFIED, PACKED) }
}

/// Allocates memory aligned to a power of two.
///
/// # Safety
/// As for [`trellis_allocate`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_aligned_alloc(
    cluster: *mut ClusterHandle,
    alignment: usize,
    bytes: usize,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { trellis_allocate(cluster, bytes, alignment, HOME_UNSPECIFIED, PACKED) }
}

/// Allocates memory whose pages have their home at a node.
///
/// # Safety
/// As for [`trellis_allocate`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_malloc_at(cluster: *mut ClusterHandle, bytes: usize, node: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { trellis_allocate(cluster, bytes, ALIGN_BYTES, node, PACKED) }
}

/// Allocates memory with padding: none, per cache line, or per page.
///
/// # Safety
/// As for [`trellis_allocate`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_malloc_padded(
    cluster: *mut ClusterHandle,
    bytes: usize,
    padding: c_int,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { trellis_allocate(cluster, bytes, ALIGN_BYTES, HOME_UNSPECIFIED, padding) }
}

/// Changes the size of a block.
///
/// # Safety
/// As for [`trellis_allocate`]; no thread of any node uses the block meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_realloc(cluster: *mut ClusterHandle, block: *mut c_void, bytes: usize) -> *mut c_void {
    let Some(block) = NonNull::new(block.cast::<u8>()) else {
        // SAFETY: the caller's promise.
        return unsafe { trellis_malloc(cluster, bytes) };
    };
    // SAFETY: the caller's promise.
    unsafe { memory(cluster, |cluster| Ok(cluster.heap().reallocate(block, bytes)?)) }
}

/// Frees a block.
///
/// # Safety
/// As for [`trellis_realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_free(cluster: *mut ClusterHandle, block: *mut c_void) -> c_int {
    let Some(block) = NonNull::new(block.cast::<u8>()) else { return status::OK };
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            cluster.heap().free(block)?;
            Ok(status::OK)
        })
    }
}

/// The usable size of a block in bytes.
///
/// # Safety
/// As for [`trellis_allocate`]; `block` is only compared, never dereferenced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_usable_size(cluster: *mut ClusterHandle, block: *const c_void) -> usize {
    let Some(block) = NonNull::new(block.cast_mut().cast::<u8>()) else { return 0 };
    answer_or(0, || {
        refuse_in_child()?;
        // SAFETY: the caller's promise.
        let handle = unsafe { cluster.as_ref() }.ok_or_else(no_cluster)?;
        Ok(handle.cluster().heap().usable_bytes(block)?)
    })
}

/// The first offset in the region that the heap may use.
///
/// # Safety
/// As for [`trellis_allocate`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_heap_start(cluster: *const ClusterHandle) -> usize {
    answer_or(0, || {
        // SAFETY: the caller's promise.
        let handle = unsafe { cluster.as_ref() }.ok_or_else(no_cluster)?;
        Ok(handle.cluster().region().heap_start())
    })
}

/// Fills in the counts that the caller's structure has room for.
///
/// # Safety
/// As for [`trellis_allocate`]; `counts` is NULL or has room for `counts_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_heap_statistics(
    cluster: *const ClusterHandle,
    counts: *mut HeapCounts,
    counts_bytes: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            if counts.is_null() {
                let why = "counts is NULL; give the address of a trellis_heap_counts";
                return Err(Failure::new(status::ARGUMENT, why));
            }
            let now = HeapCounts::from(cluster.heap().statistics());
            let bytes = counts.cast::<u8>();
            bytes.write_bytes(0, counts_bytes);
            bytes.copy_from_nonoverlapping((&raw const now).cast(), counts_bytes.min(size_of::<HeapCounts>()));
            Ok(status::OK)
        })
    }
}
