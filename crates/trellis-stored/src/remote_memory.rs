//! Memory of this process that lies at memory servers, as one slice.
//!
//! Promises: the slice is zero at first, and holds what is stored there, however little of it is here at a time; with the
//! value everything goes, here and at the servers. Must never be had twice at a time by a process, or be used by a forked
//! child.

#![allow(unsafe_code)]

use std::sync::Arc;

use super::error::StoredError;
use super::layout::{PAGE_BYTES, REGION_BASE, REGION_SPAN};
use super::memory::{Memory, Mode, Statistics};
use super::settings::{BYTES_MIN, Settings};

/// Numbers that any bytes are one of, and that have no other bytes.
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
/// Whoever touches a page that is not here waits for it; a page that cannot be had, because its server is gone, ends the
/// process with one sentence and status 70.
pub struct RemoteMemory {
    memory: Arc<Memory>,
    bytes: usize,
}

impl RemoteMemory {
    /// So many bytes in a store, `memory-server:PREFIX` or any other ([`super::stores`]), of which at most
    /// `cache_bytes_max` are here at a time, bookkeeping of changes included; 1 MiB at least.
    ///
    /// # Errors
    ///
    /// As [`Memory::open`]; a size that is none of 1 byte to 1 TiB.
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

    /// What it is to the rest of this module.
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// All whole numbers of this kind that fit.
    pub fn slice<T: Plain>(&self) -> &[T] {
        // SAFETY: the region is mapped for as long as `self` lives, begins at a page, and has so many bytes; any bytes are
        // a `T`; whoever changes them has `self` alone.
        unsafe { std::slice::from_raw_parts(first(), self.bytes / size_of::<T>()) }
    }

    /// The same, to be changed.
    pub fn slice_mut<T: Plain>(&mut self) -> &mut [T] {
        // SAFETY: as in `slice`; and `self` is borrowed by the caller alone.
        unsafe { std::slice::from_raw_parts_mut(first(), self.bytes / size_of::<T>()) }
    }

    /// Faults, pages that came and went, and the calls that brought them.
    pub fn statistics(&self) -> Statistics {
        self.memory.statistics()
    }

    /// Gives everything back, as dropping it does, and says what did not work.
    ///
    /// # Errors
    ///
    /// A server's that does not answer: what it keeps stays there.
    pub fn close(self) -> Result<(), StoredError> {
        self.memory.close()
    }
}

impl Drop for RemoteMemory {
    fn drop(&mut self) {
        // What cannot be deleted stays until its server ends; `close` says so to who asks.
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
