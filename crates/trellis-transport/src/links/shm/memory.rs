//! Memory that two processes share: files without a name, and mappings of them.
//!
//! Promises: a mapped file can never become shorter ([`check`] verifies it), so no access to a mapping raises SIGBUS.
//! A forked child has none of the mappings. A mapping of a peer's memory is not writable.
//!
//! It must never depend on the content of the memory.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use crate::links::descriptors::Descriptor;

/// A range of mapped memory.
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// The process that mapped it; in a forked child there is nothing to unmap.
    owner: u32,
}

// SAFETY: a mapping is an address range that stays valid until it is dropped; the users of the pointer synchronise
// their accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` bytes of `file`.
    pub(super) fn of(file: RawFd, bytes: usize, writable: bool) -> io::Result<Mapping> {
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("the kernel maps at address 0"))?;
        let mapping = Mapping { start, bytes, owner: std::process::id() };
        for advice in [libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
            // SAFETY: the range was mapped just now; neither advice touches a byte of it.
            if unsafe { libc::madvise(start.as_ptr().cast(), bytes, advice) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(mapping)
    }

    /// The first byte.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The length in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            // SAFETY: this range was mapped by `of` in this process and is unmapped once.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        }
    }
}

/// Creates a file of `bytes` bytes, all zero and allocated, whose size is sealed.
pub(super) fn create(bytes: usize) -> io::Result<Descriptor> {
    // Newer kernels want to be told that the file is not executable; older ones do not know the flag.
    let file = Descriptor::adopt(|| memfd(PLAIN | MemfdFlags::NOEXEC_SEAL).or_else(|_| memfd(PLAIN)))?;
    let length = libc::off_t::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let opened = file.borrowed()?;
    rustix::fs::ftruncate(opened, length.unsigned_abs())?;
    rustix::fs::fallocate(opened, FallocateFlags::empty(), 0, length.unsigned_abs())?;
    rustix::fs::fcntl_add_seals(opened, SEALS | SealFlags::SEAL)?;
    Ok(file)
}

const SEALS: SealFlags = SealFlags::SHRINK;
const PLAIN: MemfdFlags = MemfdFlags::CLOEXEC.union(MemfdFlags::ALLOW_SEALING);

fn memfd(flags: MemfdFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::memfd_create(c"trellis-rings", flags)
}

/// Checks that a file from a peer has at least `bytes` bytes and always will; the error says what is wrong.
pub(super) fn check(file: &Descriptor, bytes: usize) -> Result<(), String> {
    // A descriptor that is no such file gives an error.
    let seals = file.borrowed().and_then(rustix::fs::fcntl_get_seals);
    if !seals.is_ok_and(|seals| seals.contains(SEALS)) {
        return Err("its memory may become shorter (it is not sealed)".to_owned());
    }
    let about = file.borrowed().and_then(rustix::fs::fstat);
    let about = about.map_err(|error| format!("its memory cannot be looked at: {}", io::Error::from(error)))?;
    let size = about.st_size;
    match usize::try_from(size) {
        Ok(size) if size >= bytes && bytes > 0 => Ok(()),
        _ => Err(format!("its memory has {size} bytes and not {bytes}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_is_sealed_and_mapped_twice_is_the_same() {
        let file = create(8192).unwrap();
        check(&file, 8192).unwrap();
        assert!(check(&file, 8193).unwrap_err().contains("has 8192 bytes"));
        let (one, other) =
            (Mapping::of(file.raw(), 8192, true).unwrap(), Mapping::of(file.raw(), 8192, false).unwrap());
        // SAFETY: inside both mappings; nothing else has the file.
        let seen = unsafe {
            one.start().as_ptr().add(5000).write_volatile(7);
            other.start().as_ptr().add(5000).read_volatile()
        };
        assert_eq!((seen, other.bytes()), (7, 8192));
    }

    #[test]
    fn a_file_that_may_shrink_is_refused() {
        let file = Descriptor::adopt(|| memfd(PLAIN)).unwrap();
        rustix::fs::ftruncate(file.borrowed().unwrap(), 4096).unwrap();
        assert!(check(&file, 4096).unwrap_err().contains("not sealed"));
        let no_file = crate::links::descriptors::Event::new().unwrap();
        assert!(check(no_file.descriptor(), 4096).is_err());
    }
}
