//! Waits until one of many sockets can be read or written, with epoll.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

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
}

impl Poll {
    pub(super) fn new() -> io::Result<Poll> {
        let descriptor = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Poll { descriptor })
    }

    /// Starts watching a socket.
    pub(super) fn add(&self, socket: BorrowedFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.descriptor, socket, EventData::new_u64(token), flags(interest))?)
    }

    /// Watches a socket that several threads watch; one of them is woken.
    pub(super) fn add_shared(&self, socket: BorrowedFd, token: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
        Ok(epoll::add(&self.descriptor, socket, EventData::new_u64(token), flags)?)
    }

    /// Changes the events that a socket is watched for.
    pub(super) fn change(&self, socket: BorrowedFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.descriptor, socket, EventData::new_u64(token), flags(interest))?)
    }

    /// Waits for events.
    pub(super) fn wait(&self, into: &mut Vec<Event>) -> io::Result<()> {
        into.clear();
        let mut buffer = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        // Ends with an event; the waker's when the server is stopped.
        let events = match epoll::wait(&self.descriptor, &mut buffer, None) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let over = EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP;
        into.extend(events.iter().map(|event| {
            // The event is packed: its fields are copied before they are used.
            let (flags, data) = (event.flags, event.data);
            Event { token: data.u64(), over: flags.intersects(over) }
        }));
        Ok(())
    }
}

fn flags(interest: Interest) -> EventFlags {
    let flag = |wanted, flag| if wanted { flag } else { EventFlags::empty() };
    flag(interest.read, EventFlags::IN) | flag(interest.write, EventFlags::OUT) | flag(interest.end, EventFlags::RDHUP)
}
