//! Memory of this process at memory servers, as one slice.
//!
//! Promises: the slice is zero at first. Its content is kept, however little of it is in local memory at a time.
//! Dropping the value releases everything, here and at the servers. It must never exist twice at the same time in a
//! process, and must never be used by a forked child.

#![allow(unsafe_code)]

use std::sync::Arc;

use super::error::StoredError;
use super::layout::{PAGE_BYTES, REGION_BASE, REGION_SPAN};
use super::memory::{Memory, Mode, Statistics};
use super::settings::{BYTES_MIN, Settings};

/// Numbers for which every bit pattern is valid and which have no padding.
pub trait Plain: Copy + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! plain {
    ($($number:ty)*) => {
        $(
            impl sealed::Sealed for $number {}
            impl Plain for $number {}
        )*
    };
}

plain!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);

/// Memory at memory servers.
///
/// ```no_run
/// use trellis_stored::RemoteMemory;
///
/// // A quarter of it is here at a time.
/// let mut memory = RemoteMemory::map("memory-server:fd12:3456:7::/48", 1 << 30, 256 << 20)?;
/// let numbers = memory.slice_mut::<u64>();
/// numbers.iter_mut().zip(0..).for_each(|(number, i)| *number = i * i);
/// println!("{:?}", numbers.last());
/// memory.close()?;
/// # Ok::<(), trellis_stored::StoredError>(())
/// ```
///
/// A thread that touches a page that is not here waits for it. If the page cannot be fetched because its server is
/// gone, the process ends with one sentence and status 70.
pub struct RemoteMemory {
    memory: Arc<Memory>,
    bytes: usize,
}

impl RemoteMemory {
    /// Maps `bytes` bytes of a store: `memory-server:PREFIX` or any other ([`super::stores`]). At most
    /// `cache_bytes_max` bytes are in local memory at a time, including the bookkeeping of changes; at least 1 MiB.
    ///
    /// # Errors
    ///
    /// As [`Memory::open`], and for a size outside 1 byte to 1 TiB.
    pub fn map(store: &str, bytes: usize, cache_bytes_max: usize) -> Result<RemoteMemory, StoredError> {
        if !(1..=REGION_SPAN).contains(&bytes) {
            return Err(StoredError::Argument(format!(
                "memory of {bytes} bytes is not possible; give 1 byte to 1 TiB"
            )));
        }
        let settings = Settings {
            store: store.to_owned(),
            region_bytes: bytes.max(BYTES_MIN).next_multiple_of(PAGE_BYTES),
            cache_bytes_max: cache_bytes_max.max(BYTES_MIN).next_multiple_of(PAGE_BYTES),
            ..Settings::default()
        };
        Ok(RemoteMemory { memory: Memory::open(&settings, Mode::Pages)?, bytes })
    }

    /// The underlying memory, for this crate.
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory as a slice of as many whole numbers of this type as fit.
    pub fn slice<T: Plain>(&self) -> &[T] {
        // SAFETY: the region is mapped for as long as `self` lives, begins at a page, and has this many bytes; any
        // bytes are a `T`; a writer borrows `self` exclusively.
        unsafe { std::slice::from_raw_parts(first(), self.bytes / size_of::<T>()) }
    }

    /// The same slice as of [`RemoteMemory::slice`], for writing.
    pub fn slice_mut<T: Plain>(&mut self) -> &mut [T] {
        // SAFETY: as in `slice`; and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(first(), self.bytes / size_of::<T>()) }
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
        self.memory.close()
    }
}

impl Drop for RemoteMemory {
    fn drop(&mut self) {
        // What cannot be deleted remains until its server ends; `close` reports this.
        let _ = self.memory.close();
        if let Some(paging) = self.memory.paging() {
            paging.stop();
        }
    }
}

fn first<T>() -> *mut T {
    std::ptr::with_exposed_provenance_mut(REGION_BASE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_cannot_be_is_refused() {
        for bytes in [0, REGION_SPAN + 1] {
            let Err(error) = RemoteMemory::map("embedded:", bytes, 0) else { panic!("{bytes} bytes were given") };
            assert!(error.to_string().starts_with(&format!("memory of {bytes} bytes is not possible")), "{error}");
        }
    }
}
