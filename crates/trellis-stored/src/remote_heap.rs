//! Memory of this process at memory servers, as an allocator.
//!
//! Promises: blocks never overlap and never move. Their content is kept, however little of it is in local memory at a
//! time. Dropping the value releases everything, here and at the servers. It must never exist beside a
//! [`RemoteMemory`], which uses the same addresses, and must never be used by a forked child.

#![allow(unsafe_code)]

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;

use allocator_api2::alloc::{AllocError, Allocator};

use super::error::StoredError;
use super::heap::{self, ALIGN_BYTES_MIN, Heap, Kind};
use super::memory::{HeapMemory, Statistics};
use super::remote_memory::RemoteMemory;

/// An allocator whose blocks lie at memory servers: for `Vec` and `Box` of [`allocator_api2`], and for all else that
/// takes its [`Allocator`], such as the maps of `hashbrown`.
///
/// ```no_run
/// use trellis_stored::RemoteHeap;
/// use trellis_stored::allocator_api2::vec::Vec;
///
/// // 64 GiB at most, of which 256 MiB are here at a time.
/// let heap = RemoteHeap::open("memory-server:fd12:3456:7::/48", 64 << 30, 256 << 20)?;
/// let mut squares = Vec::new_in(&heap);
/// squares.extend((0..1 << 30).map(|i: u64| i * i));
/// println!("{:?}", squares.last());
/// drop(squares);
/// heap.close()?;
/// # Ok::<(), trellis_stored::StoredError>(())
/// ```
///
/// Any thread may use it. A thread that touches a page that is not here waits for it. If the page cannot be fetched
/// because its server is gone, the process ends with one sentence and status 70.
pub struct RemoteHeap {
    heap: Heap,
    memory: RemoteMemory,
}

impl RemoteHeap {
    /// Makes an allocator of up to `bytes` bytes in a store: `memory-server:PREFIX` or any other ([`super::stores`]).
    /// The bytes cost nothing until they are used. At most `cache_bytes_max` bytes of them are in local memory at a
    /// time, as for [`RemoteMemory::map`].
    ///
    /// # Errors
    ///
    /// As [`RemoteMemory::map`].
    pub fn open(store: &str, bytes: usize, cache_bytes_max: usize) -> Result<RemoteHeap, StoredError> {
        let memory = RemoteMemory::map(store, bytes, cache_bytes_max)?;
        let of_heap = Arc::new(HeapMemory(Arc::clone(memory.memory())));
        let heap = Heap::local(memory.memory().addresses(), Kind::Scalable, of_heap);
        Ok(RemoteHeap { heap: heap.map_err(|error| StoredError::Argument(error.to_string()))?, memory })
    }

    /// The use of the heap.
    pub fn usage(&self) -> heap::Statistics {
        self.heap.statistics()
    }

    /// Counts of faults, of pages fetched and evicted, and of calls.
    pub fn statistics(&self) -> Statistics {
        self.memory.statistics()
    }

    /// Releases everything, as dropping does, and reports errors.
    ///
    /// # Errors
    ///
    /// A server that does not answer; what it holds remains there.
    pub fn close(self) -> Result<(), StoredError> {
        let RemoteHeap { heap, memory } = self;
        drop(heap);
        memory.close()
    }

    fn block(address: Result<u64, heap::HeapError>, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let address = address.map_err(|_| AllocError)? as usize;
        let first = NonNull::new(std::ptr::with_exposed_provenance_mut(address)).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(first, layout.size()))
    }

    /// Resizes a block, which may move it; its content is preserved as far as it fits.
    ///
    /// # Safety
    ///
    /// The conditions of [`Allocator::grow`], or of [`Allocator::shrink`] if the new layout is smaller.
    unsafe fn resized(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // The heap gives every block this alignment when it resizes it.
        if old.size() > 0 && new.size() > 0 && new.align() as u64 <= ALIGN_BYTES_MIN {
            return RemoteHeap::block(self.heap.realloc(block.as_ptr() as u64, new.size() as u64), new);
        }
        let larger = self.allocate(new)?;
        // SAFETY: both have so many bytes, by the caller's promise and the line above, and the new block overlaps
        // nothing.
        unsafe {
            let bytes = old.size().min(new.size());
            std::ptr::copy_nonoverlapping(block.as_ptr(), larger.cast::<u8>().as_ptr(), bytes);
            self.deallocate(block, old);
        }
        Ok(larger)
    }
}

// SAFETY: the heap's blocks do not overlap, and remain at fixed addresses until they are freed or the heap is dropped,
// so a heap that moves leaves them in place. A block of no bytes is never passed to the heap.
unsafe impl Allocator for RemoteHeap {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        match layout.size() {
            0 => Ok(NonNull::slice_from_raw_parts(nothing(layout), 0)),
            bytes => RemoteHeap::block(self.heap.aligned(layout.align() as u64, bytes as u64), layout),
        }
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() > 0 && layout.align() as u64 <= ALIGN_BYTES_MIN {
            // Fresh pages are zero without being touched.
            return RemoteHeap::block(self.heap.calloc(1, layout.size() as u64), layout);
        }
        let block = self.allocate(layout)?;
        // SAFETY: the block has not been returned yet, and has this many bytes.
        unsafe { block.cast::<u8>().as_ptr().write_bytes(0, layout.size()) };
        Ok(block)
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if layout.size() > 0
            && let Err(error) = self.heap.free(block.as_ptr() as u64)
        {
            super::end::end_process(&error.to_string());
        }
    }

    unsafe fn grow(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise.
        unsafe { self.resized(block, old, new) }
    }

    unsafe fn grow_zeroed(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise.
        let larger = unsafe { self.resized(block, old, new)? };
        // SAFETY: the block has the new size, and no other code uses the bytes after the old size yet.
        unsafe { larger.cast::<u8>().as_ptr().add(old.size()).write_bytes(0, new.size() - old.size()) };
        Ok(larger)
    }

    unsafe fn shrink(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise.
        unsafe { self.resized(block, old, new) }
    }
}

/// A non-null address for blocks of no bytes.
fn nothing(layout: Layout) -> NonNull<u8> {
    NonNull::without_provenance(std::num::NonZero::new(layout.align()).expect("alignments are not zero"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paging::tests::{alone, cannot};

    #[test]
    fn blocks_of_every_alignment_keep_what_is_in_them() {
        let _alone = alone();
        if cannot("blocks_of_every_alignment_keep_what_is_in_them") {
            return;
        }
        let heap = RemoteHeap::open("embedded:", 8 << 20, 1 << 20).unwrap_or_else(|error| panic!("{error}"));
        for align in [1, 16, 64, 8192] {
            let layout = |bytes| Layout::from_size_align(bytes, align).expect("a layout");
            let (none, small, large) = (layout(0), layout(300), layout(9000));
            let of = |block: NonNull<[u8]>| {
                assert_eq!(block.cast::<u8>().addr().get() % align, 0);
                // SAFETY: a block of this test, with so many bytes.
                unsafe { &mut *block.as_ptr() }
            };
            let block = heap.allocate_zeroed(small).expect("there is room");
            assert!(of(block).iter().all(|byte| *byte == 0));
            of(block).fill(7);
            // SAFETY: each is resized and freed with its own layout.
            unsafe {
                let block = heap.grow_zeroed(block.cast(), small, large).expect("there is room");
                assert!(
                    of(block)[..300].iter().all(|byte| *byte == 7) && of(block)[300..].iter().all(|byte| *byte == 0)
                );
                let block = heap.shrink(block.cast(), large, small).expect("it becomes smaller");
                assert!(of(block).len() == 300 && of(block).iter().all(|byte| *byte == 7));
                let block = heap.shrink(block.cast(), small, none).expect("it becomes nothing");
                assert_eq!(heap.usage().blocks, 0);
                let block = heap.grow(block.cast(), none, small).expect("there is room");
                heap.deallocate(block.cast(), small);
            }
        }
        assert_eq!(heap.usage().blocks, 0);
        assert!(heap.allocate(Layout::from_size_align(1 << 30, 16).expect("a layout")).is_err());
    }
}
