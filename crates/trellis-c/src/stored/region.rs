//! The region of this process, for programmers: what `trellis/stored.h` declares.
//!
//! Promises: everything that can fail returns a status and a message, and nothing here ends the process. It must
//! never decide what the crate `trellis` decides.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use trellis::stored::Applied;
use trellis::stored::StoredError;
use trellis::stored::coherence::Shared;
use trellis::stored::layout;
use trellis::stored::memory::{Memory, Mode};
use trellis::stored::settings::Settings;

use super::process;
use crate::failure::{Failure, answer, answer_or, place, text, value_or};
use crate::status;

/// `struct trellis_store_options`
#[repr(C)]
pub struct StoreOptions {
    store: *const c_char,
    region: *const c_char,
    region_bytes: usize,
    cache_bytes_max: usize,
}

/// `struct trellis_store_counts`
#[repr(C)]
#[derive(Default)]
pub struct StoreStatistics {
    calls: u64,
    gets: u64,
    reads: u64,
    changes: u64,
    waits: u64,
    listings: u64,
    faults: u64,
    pages_fetched: u64,
    pages_fetched_ahead: u64,
    pages_evicted: u64,
    bytes_written_back: u64,
    bytes_in_memory: u64,
}

const _: () = assert!(std::mem::size_of::<StoreOptions>() == 32);
const _: () = assert!(std::mem::size_of::<StoreStatistics>() == 96);

impl From<StoredError> for Failure {
    fn from(error: StoredError) -> Failure {
        let status = match error {
            StoredError::Setting { .. } => status::CONFIGURATION,
            StoredError::Argument(_) => status::STATE,
            StoredError::Fenced { .. } => status::NODE_LOST,
            _ => status::JOIN,
        };
        Failure::new(status, error)
    }
}

fn memory() -> Result<&'static Arc<Memory>, Failure> {
    process::memory().ok_or_else(|| Failure::new(status::STATE, "no region is open; call trellis_store_open first"))
}

/// Opens the region of this process in mode `pages`.
///
/// # Safety
///
/// `options` is NULL or points to options whose texts are NULL or end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_store_open(options: *const StoreOptions) -> c_int {
    answer(|| {
        let mut settings = Settings::from_environment()?;
        // SAFETY: the caller's promise.
        if let Some(options) = unsafe { options.as_ref() } {
            // SAFETY: the caller's promise.
            unsafe {
                if !options.store.is_null() {
                    settings.store = text(options.store, "store")?.to_owned();
                }
                if !options.region.is_null() {
                    settings.region = Some(text(options.region, "region")?.to_owned());
                }
            }
            if options.region_bytes != 0 {
                settings.region_bytes = checked(options.region_bytes, "region_bytes")?;
            }
            if options.cache_bytes_max != 0 {
                settings.cache_bytes_max = checked(options.cache_bytes_max, "cache_bytes_max")?;
            }
        }
        process::open(Some(settings), Mode::Pages)?;
        Ok(status::OK)
    })
}

fn checked(bytes: usize, name: &str) -> Result<usize, Failure> {
    if (1 << 20..=layout::REGION_SPAN).contains(&bytes) {
        return Ok(bytes.next_multiple_of(layout::PAGE_BYTES));
    }
    Err(Failure::new(status::ARGUMENT, format!("{name} of {bytes} bytes is out of range; accepted: 1 MiB to 1 TiB")))
}

/// Closes the region.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_close() -> c_int {
    answer(|| {
        memory()?;
        process::close()?;
        Ok(status::OK)
    })
}

/// The region's first byte; NULL without a region.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_base() -> *mut c_void {
    value_or(std::ptr::null_mut(), || {
        process::memory().map(|_| std::ptr::with_exposed_provenance_mut(layout::REGION_BASE))
    })
}

/// The region's size; 0 without a region.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_bytes() -> usize {
    value_or(0, || process::memory().map(|memory| memory.region().header.bytes as usize))
}

/// The number of store calls that this process made; 0 without a region.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_calls() -> u64 {
    value_or(0, || process::memory().map(|memory| memory.statistics().calls.calls()))
}

/// Publishes the stores of this process in the region.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_release() -> c_int {
    answer(|| {
        memory()?.release(&[], None)?;
        Ok(status::OK)
    })
}

/// Makes visible what others released.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_acquire() -> c_int {
    answer(|| {
        memory()?.acquire(&[], None, None)?;
        Ok(status::OK)
    })
}

/// The address with this name; NULL if the name is unknown.
///
/// # Safety
///
/// `name` ends with a NUL; `address` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_store_root(name: *const c_char, address: *mut *mut c_void) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let (name, address) = unsafe { (text(name, "name")?, place(address, "address")?) };
        *address = std::ptr::null_mut();
        let memory = memory()?;
        if let Some(found) = memory.region().root(name)? {
            // The content was released before the name was set.
            memory.acquire(&[], None, None)?;
            *address = std::ptr::with_exposed_provenance_mut(found as usize);
        }
        Ok(status::OK)
    })
}

/// Releases, and gives an address a name: 1; or 0 if the name exists already, and nothing happened.
///
/// # Safety
///
/// `name` ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_store_set_root(name: *const c_char, address: *const c_void) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { text(name, "name")? };
        if !layout::is_inside(address.addr()) {
            let why = format!("{:#x} is not in the region, so other processes cannot use it", address.addr());
            return Err(Failure::new(status::ARGUMENT, why));
        }
        let memory = memory()?;
        let set = memory.region().set_root(name, address.addr() as u64);
        Ok(if matches!(memory.release(&[set], None)?, Applied::Done(_)) { 1 } else { 0 })
    })
}

/// The statistics of this process so far.
///
/// # Safety
///
/// `into` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_store_statistics(into: *mut StoreStatistics) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let into = unsafe { place(into, "into")? };
        let statistics = memory()?.statistics();
        let (calls, pages) = (statistics.calls, statistics.pages);
        *into = StoreStatistics {
            calls: calls.calls(),
            gets: calls.gets,
            reads: calls.reads,
            changes: calls.changes,
            waits: calls.waits,
            listings: calls.listings,
            faults: pages.faults,
            pages_fetched: pages.pages_fetched,
            pages_fetched_ahead: pages.pages_fetched_ahead,
            pages_evicted: pages.pages_evicted,
            bytes_written_back: pages.bytes_written_back,
            bytes_in_memory: (pages.page_frames + pages.twins) * layout::PAGE_BYTES as u64,
        };
        Ok(status::OK)
    })
}

/// Allocates memory of the region like `malloc`; NULL without room, or without a region.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_malloc(bytes: usize) -> *mut c_void {
    answer_or(std::ptr::null_mut(), || allocated(bytes, || super::heap::__trellis_malloc(bytes)))
}

/// Allocates memory at a multiple of a power of two.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_aligned_alloc(alignment: usize, bytes: usize) -> *mut c_void {
    answer_or(std::ptr::null_mut(), || {
        if !alignment.is_power_of_two() {
            let why = format!("{alignment} is not a power of two, so nothing can be at a multiple of it");
            return Err(Failure::new(status::ARGUMENT, why));
        }
        allocated(bytes, || super::heap::__trellis_aligned_alloc(alignment, bytes))
    })
}

/// The memory of a heap's allocation, or an error.
fn allocated(bytes: usize, allocate: impl FnOnce() -> *mut c_void) -> Result<*mut c_void, Failure> {
    memory()?;
    let address = allocate();
    if address.is_null() {
        let next = "free some of it, or make a larger region (TRELLIS_STORE_REGION_BYTES)";
        return Err(Failure::new(status::STATE, format!("the region has no room for {bytes} bytes; {next}")));
    }
    Ok(address)
}

/// Frees memory of [`trellis_store_malloc`].
///
/// # Safety
///
/// As `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_store_free(address: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { super::heap::__trellis_free(address) };
}
