//! Moves mappings to another address while they stay registered with their userfaultfd: mremap(2) with
//! UFFD_EVENT_REMAP.
//!
//! Promises: a mapping replaces another in one step of the kernel, so no access in between finds neither. The call
//! waits until the event has been read from the userfaultfd, so it is made on a thread of its own. Faults that are read
//! meanwhile are dropped; the caller must wake every thread that waits at its userfaultfd.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::errno;
use super::uffd::{Message, Uffd};

/// The destination of a mapping.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// The pages move to an address of the kernel's choice. The mapping itself stays, without pages.
    PagesAway,
    /// The mapping moves to this address and replaces what is mapped there.
    Onto(usize),
}

/// Moves the mapping at `start`, which is registered with `uffd`, and returns its new address.
///
/// # Safety
/// The caller owns the mapping of the range and what it replaces, and there is no reference into either that the change
/// would invalidate.
pub(crate) unsafe fn move_mapping(uffd: &Uffd, start: usize, bytes: usize, way: Way) -> Result<usize, i32> {
    let os_error = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
    // SAFETY: takes a number and flags by value and gives a new descriptor.
    let done = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if done < 0 {
        return Err(errno());
    }
    // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
    let done = unsafe { OwnedFd::from_raw_fd(done) };
    std::thread::scope(|scope| {
        let call = || {
            // SAFETY: the caller's promise.
            let moved = unsafe { remap(start, bytes, way) };
            let one = 1u64;
            // SAFETY: eight bytes to an eventfd.
            unsafe { libc::write(done.as_raw_fd(), (&raw const one).cast(), 8) };
            moved
        };
        let mover = std::thread::Builder::new().spawn_scoped(scope, call).map_err(os_error)?;
        read_until(uffd, &done);
        // This wait ends with the system call, which has moved the mapping when `done` is readable.
        mover.join().expect("a system call does not panic")
    })
}

/// Reads events from the userfaultfd until `done` is readable.
fn read_until(uffd: &Uffd, done: &OwnedFd) {
    let mut messages = [Message::EMPTY; 16];
    loop {
        let wait = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut waits = [wait(done.as_raw_fd()), wait(uffd.number())];
        // SAFETY: two valid entries. An interrupted call reports nothing, and both are checked again.
        // Ends when the system call in the other thread has moved the mapping.
        let ready = unsafe { libc::poll(waits.as_mut_ptr(), 2, -1) };
        if ready > 0 && waits[0].revents != 0 {
            return;
        }
        uffd.read(&mut messages);
    }
}

/// # Safety
/// See [`move_mapping`].
unsafe fn remap(start: usize, bytes: usize, way: Way) -> Result<usize, i32> {
    let old = start as *mut libc::c_void;
    let moved = match way {
        // SAFETY: the caller's promise; the pages move to an unused address. With this flag libc reads a fifth
        // argument, a hint for the new address; it is null.
        Way::PagesAway => unsafe {
            let anywhere = std::ptr::null_mut::<libc::c_void>();
            libc::mremap(old, bytes, bytes, libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP, anywhere)
        },
        // SAFETY: the caller's promise.
        Way::Onto(new) => unsafe {
            libc::mremap(old, bytes, bytes, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, new as *mut libc::c_void)
        },
    };
    if moved == libc::MAP_FAILED { Err(errno()) } else { Ok(moved as usize) }
}
