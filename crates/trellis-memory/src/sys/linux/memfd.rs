//! The bytes of a region: one memfd, and views of it.
//!
//! Promises: a memfd's size is sealed, so that no holder of the descriptor can shrink it and turn a plain access into a
//! SIGBUS. A view is unmapped when it is dropped, and must never be used after that.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::errno;
use super::maps;

/// The descriptor of a region's bytes.
pub(crate) struct Memfd {
    file: OwnedFd,
}

/// Why a view could not be mapped.
pub(crate) enum ViewError {
    /// Something is mapped there; the phrase names it.
    Taken(String),
    /// No process can have that address.
    Unreachable,
    /// Any other error.
    Kernel(io::Error),
}

impl Memfd {
    /// Creates a memfd of `bytes`, all zero, with no memory allocated yet.
    pub(crate) fn create(bytes: usize) -> io::Result<Memfd> {
        let plain = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // Without NOEXEC_SEAL, newer kernels warn, or refuse if vm.memfd_noexec requires it; older ones do not know it.
        let number = match memfd_create(plain | libc::MFD_NOEXEC_SEAL) {
            -1 if errno() == libc::EINVAL => memfd_create(plain),
            number => number,
        };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
        let file = unsafe { OwnedFd::from_raw_fd(number) };
        // SAFETY: a plain system call on a descriptor that this function owns.
        if unsafe { libc::ftruncate64(file.as_raw_fd(), bytes as libc::off64_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: a plain system call on a descriptor that this function owns.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Memfd { file })
    }

    /// Creates pages, zero if nothing was written yet. Returns the error number if there is no memory.
    ///
    /// It allocates nothing, so it may be called while a fault is served.
    pub(crate) fn populate(&self, offset: usize, bytes: usize) -> Result<(), i32> {
        loop {
            // SAFETY: a plain system call; the caller has checked the range, and the file's size is sealed.
            let done =
                unsafe { libc::fallocate64(self.file.as_raw_fd(), 0, offset as libc::off64_t, bytes as libc::off64_t) };
            match done {
                0 => return Ok(()),
                // A signal of the application interrupted a long range; completed pages remain.
                _ if errno() == libc::EINTR => {}
                _ => return Err(errno()),
            }
        }
    }

    /// Frees the memory of pages, which are zero when they are used again. Returns the error number if that fails.
    ///
    /// It allocates nothing, so it may be called while a fault is served.
    pub(crate) fn give_back(&self, offset: usize, bytes: usize) -> Result<(), i32> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (offset, bytes) = (offset as libc::off64_t, bytes as libc::off64_t);
        loop {
            // SAFETY: a plain system call; the caller has checked the range, and the file's size is sealed.
            match unsafe { libc::fallocate64(self.file.as_raw_fd(), mode, offset, bytes) } {
                0 => return Ok(()),
                _ if errno() == libc::EINTR => {}
                _ => return Err(errno()),
            }
        }
    }

    /// Maps a part of the file at an address and replaces what is mapped there. A forked child does not get it. Returns
    /// the error number if that fails.
    ///
    /// # Safety
    /// The caller owns what is mapped there, and nothing uses it meanwhile.
    pub(crate) unsafe fn map_over(
        &self,
        offset: usize,
        address: usize,
        bytes: usize,
        protection: libc::c_int,
    ) -> Result<(), i32> {
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let place = address as *mut libc::c_void;
        // SAFETY: the caller's promise.
        let at = unsafe { libc::mmap64(place, bytes, protection, flags, self.number(), offset as libc::off64_t) };
        // SAFETY: advice about the mapping that was just made.
        if at == libc::MAP_FAILED || unsafe { libc::madvise(place, bytes, libc::MADV_DONTFORK) } != 0 {
            return Err(errno());
        }
        Ok(())
    }

    /// The descriptor's number.
    pub(crate) fn number(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

fn memfd_create(flags: libc::c_uint) -> RawFd {
    // SAFETY: the name is a constant C string.
    unsafe { libc::memfd_create(c"trellis-region".as_ptr(), flags) }
}

/// One mapping of a whole memfd.
pub(crate) struct View {
    base: usize,
    bytes: usize,
}

impl View {
    /// Maps `file` at `base`, or at any multiple of `alignment`. It never replaces an existing mapping.
    pub(crate) fn map(
        file: &Memfd,
        bytes: usize,
        base: Option<usize>,
        alignment: usize,
        protection: libc::c_int,
    ) -> Result<View, ViewError> {
        match base {
            Some(base) => View::map_at(file, bytes, base, protection),
            None => View::map_anywhere(file, bytes, alignment, protection),
        }
    }

    fn map_at(file: &Memfd, bytes: usize, base: usize, protection: libc::c_int) -> Result<View, ViewError> {
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: MAP_FIXED_NOREPLACE replaces no existing mapping.
        let at = unsafe { libc::mmap64(base as *mut libc::c_void, bytes, protection, flags, file.number(), 0) };
        if at == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::EEXIST) => ViewError::Taken(name_of_overlap(base, bytes)),
                Some(libc::ENOMEM | libc::EINVAL | libc::EPERM) => ViewError::Unreachable,
                _ => ViewError::Kernel(error),
            });
        }
        let view = View { base: at as usize, bytes };
        // Kernels before 4.17 treat the address as a hint only.
        if view.base != base {
            return Err(ViewError::Taken(name_of_overlap(base, bytes)));
        }
        Ok(view)
    }

    /// Reserves more than is needed, maps over the aligned part and unmaps the rest.
    fn map_anywhere(file: &Memfd, bytes: usize, alignment: usize, protection: libc::c_int) -> Result<View, ViewError> {
        let reserved = bytes + alignment;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { libc::mmap64(std::ptr::null_mut(), reserved, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(ViewError::Kernel(io::Error::last_os_error()));
        }
        let start = start as usize;
        let base = start.next_multiple_of(alignment);
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: the range lies in the reservation made above, which nothing else uses.
        let at = unsafe { libc::mmap64(base as *mut libc::c_void, bytes, protection, flags, file.number(), 0) };
        let error = io::Error::last_os_error();
        if at == libc::MAP_FAILED {
            unmap(start, reserved);
            return Err(ViewError::Kernel(error));
        }
        unmap(start, base - start);
        unmap(base + bytes, start + reserved - (base + bytes));
        Ok(View { base, bytes })
    }

    /// Maps a part of the file anywhere, for reading and writing. A forked child does not get it.
    pub(crate) fn map_part(file: RawFd, offset: usize, bytes: usize) -> io::Result<View> {
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let at = unsafe { libc::mmap64(std::ptr::null_mut(), bytes, protection, flags, file, offset as libc::off64_t) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let view = View { base: at as usize, bytes };
        view.advise(libc::MADV_DONTFORK)?;
        Ok(view)
    }

    /// A view of an existing mapping, whose ownership passes to this value.
    pub(crate) fn take_over(base: usize, bytes: usize) -> View {
        View { base, bytes }
    }

    /// Releases ownership: the mapping has become part of another view.
    pub(crate) fn give_up(self) {
        std::mem::forget(self);
    }

    /// The first address.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// Creates the bytes from `offset` on and maps them writable. The error is the system's number.
    pub(crate) fn populate(&self, offset: usize, bytes: usize) -> Result<(), i32> {
        debug_assert!(offset + bytes <= self.bytes);
        loop {
            let start = (self.base + offset) as *mut libc::c_void;
            // SAFETY: the range is inside this view; MADV_POPULATE_WRITE faults pages in and changes no byte.
            match unsafe { libc::madvise(start, bytes, libc::MADV_POPULATE_WRITE) } {
                0 => return Ok(()),
                _ if errno() == libc::EINTR => {}
                _ => return Err(errno()),
            }
        }
    }

    /// Gives the kernel advice about the whole view.
    pub(crate) fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the range is this view; the advice used (DONTFORK, DONTDUMP) does not touch its bytes.
        let done = unsafe { libc::madvise(self.base as *mut libc::c_void, self.bytes, advice) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        unmap(self.base, self.bytes);
    }
}

fn unmap(base: usize, bytes: usize) {
    if bytes > 0 {
        // SAFETY: only ranges that this file mapped reach this function, each once.
        unsafe { libc::munmap(base as *mut libc::c_void, bytes) };
    }
}

/// Unmaps pages of a view but keeps their bytes in the file. When it returns, no processor uses an old translation.
pub(crate) fn drop_pages(start: usize, bytes: usize) -> Result<(), i32> {
    // SAFETY: only ranges of a view come here; a shared mapping's bytes stay in its file.
    let done = unsafe { libc::madvise(start as *mut libc::c_void, bytes, libc::MADV_DONTNEED) };
    if done == 0 { Ok(()) } else { Err(errno()) }
}

/// Sets the protection of pages of a view. When it returns, no processor uses an old translation.
pub(crate) fn protect_pages(start: usize, bytes: usize, protection: libc::c_int) -> Result<(), i32> {
    // SAFETY: only ranges of a view come here.
    let done = unsafe { libc::mprotect(start as *mut libc::c_void, bytes, protection) };
    if done == 0 { Ok(()) } else { Err(errno()) }
}

fn name_of_overlap(base: usize, bytes: usize) -> String {
    maps::overlapping(base, base.saturating_add(bytes)).unwrap_or_else(|| "other memory of this process".to_owned())
}
