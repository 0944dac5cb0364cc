//! Waits until one of many sockets can be read or written, with epoll.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The events that a socket is watched for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Interest {
    pub(super) read: bool,
    pub(super) write: bool,
    /// Whether the peer has stopped sending.
    pub(super) end: bool,
}

/// An event of a socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    /// The token with which it was registered.
    pub(super) token: u64,
    /// Whether the connection has ended, or the peer sends no more and this was asked for.
    pub(super) over: bool,
}

/// The maximum number of events taken at once.
const EVENTS_MAX: usize = 256;

/// The watched sockets.
pub(super) struct Poll {
    descriptor: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Poll {
    pub(super) fn new() -> io::Result<Poll> {
        // SAFETY: a system call that takes a number.
        let number = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        Ok(Poll { descriptor, events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX] })
    }

    /// Starts watching a socket.
    pub(super) fn add(&self, socket: BorrowedFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, token, flags(interest))
    }

    /// Watches a socket that several threads watch; one of them is woken.
    pub(super) fn add_shared(&self, socket: BorrowedFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, token, (libc::EPOLLIN | libc::EPOLLEXCLUSIVE) as u32)
    }

    /// Changes the events that a socket is watched for.
    pub(super) fn change(&self, socket: BorrowedFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, socket, token, flags(interest))
    }

    /// Waits for events.
    pub(super) fn wait(&mut self, into: &mut Vec<Event>) -> io::Result<()> {
        into.clear();
        // Ends with an event; the waker's when the server is stopped.
        // SAFETY: the buffer holds as many events as the call states, and is borrowed for the call.
        let count = unsafe {
            libc::epoll_wait(self.descriptor.as_raw_fd(), self.events.as_mut_ptr(), EVENTS_MAX as libc::c_int, -1)
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        let over = (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) as u32;
        into.extend(
            self.events[..count as usize]
                .iter()
                .map(|event| Event { token: event.u64, over: event.events & over != 0 }),
        );
        Ok(())
    }

    fn control(&self, operation: libc::c_int, socket: BorrowedFd, token: u64, events: u32) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: both descriptors are open during the call, and the event is a local variable.
        let done =
            unsafe { libc::epoll_ctl(self.descriptor.as_raw_fd(), operation, socket.as_raw_fd(), &raw mut event) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn flags(interest: Interest) -> u32 {
    let flag = |wanted, flag| if wanted { flag } else { 0 };
    let flags = flag(interest.read, libc::EPOLLIN)
        | flag(interest.write, libc::EPOLLOUT)
        | flag(interest.end, libc::EPOLLRDHUP);
    flags as u32
}
