//! One descriptor that is readable while any of several is: that of an epoll(7), on which this code itself never waits.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The descriptor.
pub(crate) struct Readiness {
    file: OwnedFd,
}

impl Readiness {
    /// Makes a descriptor that is readable while one of `numbers` is. These must remain open as long as the result is
    /// used.
    pub(crate) fn of(numbers: &[RawFd]) -> io::Result<Readiness> {
        // SAFETY: takes flags by value and gives a new descriptor.
        let number = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
        let file = unsafe { OwnedFd::from_raw_fd(number) };
        for number in numbers {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            // SAFETY: the event lives for the call.
            if unsafe { libc::epoll_ctl(file.as_raw_fd(), libc::EPOLL_CTL_ADD, *number, &raw mut event) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Readiness { file })
    }

    /// The descriptor's number.
    pub(crate) fn number(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}
