//! `mmap` and its family in threads of the program: memory of the region.
//!
//! Promises: memory without a file, and a private mapping of a file, are pages of the region with the same contents on
//! every node. A shared mapping of a file, or memory with code, ends the run with a sentence. Pages that are given back
//! can be used again only when their whole mapping was given back.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use crate::context::{aside, is_of_program};
use crate::memory::{PAGE, is_in_region};
use crate::relaxed::{self, Zone};
use crate::runtime;

/// The number of bytes that are still in use, for each mapping that this node made.
static MAPPINGS: Mutex<BTreeMap<usize, (usize, usize)>> = Mutex::new(BTreeMap::new());

fn mappings<T>(work: impl FnOnce(&mut BTreeMap<usize, (usize, usize)>) -> T) -> T {
    work(&mut MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner))
}

fn refused(error: c_int) -> *mut c_void {
    trellis_interpose::set_errno(error);
    libc::MAP_FAILED
}

/// # Safety
/// As mmap(2).
pub(crate) unsafe fn map(
    address: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    let is_fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    let is_file = flags & libc::MAP_ANONYMOUS == 0;
    if protection & libc::PROT_EXEC != 0 {
        runtime::unsupported("memory with code (mmap with PROT_EXEC)", "run the program without `trellis threads`");
    }
    if is_file && flags & libc::MAP_SHARED != 0 && protection & libc::PROT_WRITE != 0 {
        runtime::unsupported("a shared mapping of a file (mmap with MAP_SHARED)", "read and write the file instead");
    }
    let bytes = bytes.next_multiple_of(PAGE);
    if bytes == 0 {
        return refused(libc::EINVAL);
    }
    let block = if !is_fixed {
        let block = relaxed::allocate(Zone::OfProgram, bytes, PAGE, true);
        if block == 0 {
            return refused(libc::ENOMEM);
        }
        aside(|| mappings(|all| all.insert(block, (bytes, bytes))));
        block
    } else if is_in_region(address as usize) {
        // SAFETY: the caller replaces pages of its own.
        unsafe { address.write_bytes(0, bytes) };
        address as usize
    } else {
        runtime::unsupported(
            "memory at an address of the program's choice (mmap with MAP_FIXED)",
            "leave out the flag",
        );
    };
    if is_file {
        let mut done = 0;
        while done < bytes {
            // SAFETY: inside the new mapping.
            let got = unsafe { libc::pread(file, (block + done) as *mut c_void, bytes - done, offset + done as i64) };
            match got {
                1.. => done += got as usize,
                0 => break,
                _ if trellis_interpose::errno() == libc::EINTR => {}
                _ => return refused(trellis_interpose::errno()),
            }
        }
    }
    block as *mut c_void
}

/// # Safety
/// As munmap(2).
pub(crate) unsafe fn unmap(
    real: unsafe extern "C" fn(*mut c_void, usize) -> c_int,
    address: *mut c_void,
    bytes: usize,
) -> c_int {
    if !is_of_program() || !is_in_region(address as usize) {
        // SAFETY: as the caller promises.
        return unsafe { real(address, bytes) };
    }
    let (start, bytes) = (address as usize, bytes.next_multiple_of(PAGE));
    let over = aside(|| {
        mappings(|all| {
            let (&first, (whole, left)) = all.range_mut(..=start).next_back()?;
            if start >= first + *whole {
                return None;
            }
            *left = left.saturating_sub(bytes);
            (*left == 0).then(|| all.remove(&first)).map(|_| first)
        })
    });
    if let Some(first) = over {
        runtime::free(first);
    }
    0
}

/// # Safety
/// As mremap(2).
pub(crate) unsafe fn remap(
    real: unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void,
    address: *mut c_void,
    bytes: usize,
    new_bytes: usize,
    flags: c_int,
    new_address: *mut c_void,
) -> *mut c_void {
    if !is_of_program() || !is_in_region(address as usize) {
        // SAFETY: as the caller promises.
        return unsafe { real(address, bytes, new_bytes, flags, new_address) };
    }
    if new_bytes <= bytes {
        return address;
    }
    if flags & libc::MREMAP_MAYMOVE == 0 || flags & libc::MREMAP_FIXED != 0 {
        return refused(libc::ENOMEM);
    }
    let new_bytes = new_bytes.next_multiple_of(PAGE);
    let block = relaxed::allocate(Zone::OfProgram, new_bytes, PAGE, true);
    if block == 0 {
        return refused(libc::ENOMEM);
    }
    aside(|| mappings(|all| all.insert(block, (new_bytes, new_bytes))));
    // SAFETY: both are the program's, and the new one is larger.
    unsafe {
        (block as *mut u8).copy_from_nonoverlapping(address.cast(), bytes);
        unmap(never, address, bytes);
    }
    block as *mut c_void
}

unsafe extern "C" fn never(_: *mut c_void, _: usize) -> c_int {
    unreachable!("the pages are the region's")
}

/// # Safety
/// As mprotect(2).
pub(crate) unsafe fn protect(
    real: unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int,
    address: *mut c_void,
    bytes: usize,
    protection: c_int,
) -> c_int {
    if !is_of_program() || !is_in_region(address as usize) {
        // SAFETY: as the caller promises.
        return unsafe { real(address, bytes, protection) };
    }
    if protection & libc::PROT_EXEC != 0 {
        runtime::unsupported("memory with code (mprotect with PROT_EXEC)", "run the program without `trellis threads`");
    }
    // The protocol decides about access. A page that the program does not touch needs no protection.
    0
}

/// # Safety
/// As madvise(2).
pub(crate) unsafe fn advise(
    real: unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int,
    address: *mut c_void,
    bytes: usize,
    advice: c_int,
) -> c_int {
    if !is_of_program() || !is_in_region(address as usize) {
        // SAFETY: as the caller promises.
        return unsafe { real(address, bytes, advice) };
    }
    if advice == libc::MADV_DONTNEED {
        // Programs use it as a way to get zeros.
        // SAFETY: the caller gives the contents up.
        unsafe { address.write_bytes(0, bytes) };
    }
    0
}
