//! The errors of this crate. Each message gives the fact, its cause and the next step, in one sentence.
//!
//! Promises: the errors of the fault path ([`MapError`]) hold only numbers, so that creating one allocates nothing.

use std::fmt;
use std::io;

use crate::catch::Catcher;
use crate::region::{PAGE_BYTES_MAX, PAGE_BYTES_MIN, REGION_BYTES_MAX, REGION_BYTES_MIN};

/// Why a region could not be created, or could not start to catch faults.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The size is outside the supported range.
    #[error(
        "a region of {} is outside what is supported; choose region_bytes from {} to {}",
        Bytes(*bytes), Bytes(REGION_BYTES_MIN), Bytes(REGION_BYTES_MAX)
    )]
    Size {
        /// The requested size.
        bytes: usize,
    },
    /// The page size is not a power of two, or is outside the range.
    #[error(
        "page_bytes = {page_bytes} is not possible; it must be a power of two from {} to {}",
        Bytes(PAGE_BYTES_MIN),
        Bytes(PAGE_BYTES_MAX)
    )]
    PageSize {
        /// The requested page size.
        page_bytes: usize,
    },
    /// The kernel's own pages are larger than the requested pages.
    #[error(
        "page_bytes = {page_bytes} is smaller than this kernel's own pages of {kernel_page_bytes} bytes; \
         choose page_bytes = {kernel_page_bytes} or more"
    )]
    KernelPageSize {
        /// The requested page size.
        page_bytes: usize,
        /// The result of `sysconf(_SC_PAGESIZE)`.
        kernel_page_bytes: usize,
    },
    /// The size is not a multiple of the page size.
    #[error(
        "a region of {bytes} bytes is not a whole number of pages of {page_bytes} bytes; \
         choose region_bytes = {next}, or a smaller page_bytes",
        next = bytes.next_multiple_of(*page_bytes)
    )]
    NotWholePages {
        /// The requested size.
        bytes: usize,
        /// The requested page size.
        page_bytes: usize,
    },
    /// The base address is not a multiple of the page size.
    #[error("base_address {base:#x} is not a multiple of page_bytes = {page_bytes}; {next:#x} is the next one that is",
        next = base.next_multiple_of(*page_bytes))]
    BaseUnaligned {
        /// The requested address.
        base: usize,
        /// The requested page size.
        page_bytes: usize,
    },
    /// Another mapping of this process occupies the region's addresses.
    #[error(
        "base_address {base:#x} is taken: {mapping} is mapped inside the {} that the region needs; \
         choose another base_address (all nodes need the same one)",
        Bytes(*bytes)
    )]
    BaseTaken {
        /// The requested address.
        base: usize,
        /// The requested size.
        bytes: usize,
        /// The mapping in the way, as `/proc/self/maps` shows it.
        mapping: String,
    },
    /// No process on this machine can have memory there.
    #[error(
        "base_address {base:#x} with {} is outside the addresses that a process can have on this machine; \
         choose a lower one, for example 0x400000000000",
        Bytes(*bytes)
    )]
    BaseUnreachable {
        /// The requested address.
        base: usize,
        /// The requested size.
        bytes: usize,
    },
    /// The machine, or this process's share of it, cannot hold the region.
    #[error(
        "a region of {} does not fit: {limit}; choose a smaller region_bytes, or reserve = \"overcommit\" \
         if the program touches only a small part of it",
        Bytes(*bytes)
    )]
    DoesNotFit {
        /// The requested size.
        bytes: usize,
        /// The limit, with its value and its source.
        limit: String,
    },
    /// The catcher does not work on this machine.
    #[error("catch = \"{catcher}\" does not work here: {why}")]
    Catcher {
        /// The requested catcher.
        catcher: Catcher,
        /// What is missing, and how to get it.
        why: String,
    },
    /// The maximum number of regions that catch faults is reached.
    #[error("this process has {max} regions that catch faults, which is the most it can have; drop one first")]
    TooManyRegions {
        /// That maximum.
        max: usize,
    },
    /// [`crate::Region::catch`] was called twice.
    #[error("this region catches faults already; call catch once")]
    AlreadyCatching,
    /// The kernel refused something that it normally grants.
    #[error("{operation} failed: {source}; {next}")]
    Kernel {
        /// The request to the kernel.
        operation: &'static str,
        /// The kernel's answer.
        source: io::Error,
        /// What to check.
        next: &'static str,
    },
}

/// Why the access to some pages could not be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// No memory is left for the pages.
    #[error(
        "no memory for {count} page(s) from page {page} of the region; \
         free memory on this machine, raise its memory limit, or start with reserve = \"full\" to learn it at the start"
    )]
    OutOfMemory {
        /// The first page.
        page: usize,
        /// The number of pages.
        count: usize,
    },
    /// The catcher `mprotect` split the region into more mappings than the kernel allows.
    #[error(
        "the kernel allows no further mapping while protecting page {page} ({count} page(s)); raise the sysctl \
         vm.max_map_count, choose larger page_bytes, or a catcher with userfaultfd (see `trellis doctor`)"
    )]
    TooManyMappings {
        /// The first page.
        page: usize,
        /// The number of pages.
        count: usize,
    },
    /// The kernel cannot record stores.
    #[error(
        "stores to {count} page(s) from page {page} cannot be noted without faults here; use Linux 6.7 or newer and the \
         catcher signal or handler (see `trellis doctor`), or let stores be faults"
    )]
    NoMarks {
        /// The first page.
        page: usize,
        /// The number of pages.
        count: usize,
    },
    /// The kernel refused.
    #[error("{operation} on {count} page(s) from page {page} failed: {}; run `trellis doctor`", io::Error::from_raw_os_error(*errno))]
    Kernel {
        /// The request.
        operation: &'static str,
        /// The first page.
        page: usize,
        /// The number of pages.
        count: usize,
        /// The error number.
        errno: i32,
    },
}

/// A word that is not among the accepted ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{word}\" is not known; use {accepted}")]
pub struct UnknownWord {
    /// The word as given.
    pub word: String,
    /// The accepted words.
    pub accepted: &'static str,
}

/// A number of bytes for people: exact if a unit divides it, with one decimal otherwise.
pub(crate) struct Bytes(pub(crate) usize);

impl fmt::Display for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, usize); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        for (name, unit) in UNITS {
            if self.0 >= unit {
                return if self.0.is_multiple_of(unit) {
                    write!(out, "{} {name}", self.0 / unit)
                } else {
                    write!(out, "{:.1} {name}", self.0 as f64 / unit as f64)
                };
            }
        }
        write!(out, "{} bytes", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_said_as_people_say_them() {
        assert_eq!(Bytes(64 << 30).to_string(), "64 GiB");
        assert_eq!(Bytes(3 << 29).to_string(), "1.5 GiB");
        assert_eq!(Bytes(4096).to_string(), "4 KiB");
        assert_eq!(Bytes(12).to_string(), "12 bytes");
    }

    #[test]
    fn a_size_that_is_no_multiple_names_the_next_one() {
        let error = RegionError::NotWholePages { bytes: 65_537, page_bytes: 4096 };
        assert!(error.to_string().contains("region_bytes = 69632"), "{error}");
    }
}
