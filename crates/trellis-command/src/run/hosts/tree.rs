//! `--tree`: agents of the first hosts start those of the next ones, so that the launcher needs few logins.
//!
//! A host that is reached through another one has a connection like any other. Its bytes are the body of orders and
//! reports on the connection of its parent, which may be relayed itself.
//!
//! Promises: a relay does not read the bytes that it carries. The bytes on their way to a host are bounded, so a slow host
//! does not keep the others waiting. When the host in the middle is gone, the agents behind it see the end of their input.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};

use rustix::event::PollFlags;
use rustix::io::Errno;

use super::dialogue::{BODY_BYTES_MAX, ON_THEIR_WAY_BYTES_MAX, Order, Outgoing, Report};
use crate::run::cause::Ended;
use crate::run::child::{self, Running};
use crate::run::output::set_non_blocking;

/// The number of hosts that are reached from one. With 64 hosts the last ones are three logins away.
const CHILDREN: usize = 4;

/// Which host is reached through which.
#[derive(Debug, Default)]
pub(super) struct Tree {
    places: Vec<usize>,
}

impl Tree {
    /// Adds the host at a place, and returns the place of the one through which it is reached; `None` for the first
    /// ones, which the launcher reaches.
    pub(super) fn parent_of(&mut self, place: usize) -> Option<usize> {
        let parent = (self.places.len() / CHILDREN).checked_sub(1).map(|index| self.places[index]);
        self.places.push(place);
        parent
    }
}

/// Starts the process that carries a connection. Its pipes do not block.
pub(super) fn carried(mut command: Command) -> std::io::Result<Running> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    child::bind(&mut command, Vec::new());
    let running: Running = command.spawn()?.into();
    for pipe in [&running.stdin, &running.stdout, &running.stderr].into_iter().flatten() {
        set_non_blocking(pipe);
    }
    Ok(running)
}

/// The launcher's side of a connection through another host.
#[derive(Debug)]
pub(super) struct Relay {
    /// The place of the connection to the host through which this one goes.
    pub(super) parent: usize,
    /// The name of that host.
    pub(super) through: String,
    /// The order for that host to start the connection; `None` once it was sent.
    command: Option<Command>,
    /// Whether bytes can still be sent.
    pub(super) is_writable: bool,
    /// Whether bytes can still come.
    pub(super) is_readable: bool,
    /// Whether the other host knows that nothing more is sent.
    has_said_end: bool,
    /// Whether the connection was given up, and the other host does not know that yet.
    is_to_drop: bool,
    /// The number of bytes that the other host has not yet passed on.
    on_their_way: usize,
}

/// An order for the host in the middle.
pub(super) enum RelayOrder {
    Open(Vec<OsString>),
    Relay,
    Drop,
}

impl RelayOrder {
    /// The order about the host at this place.
    pub(super) fn about(self, host: usize) -> Order {
        match self {
            RelayOrder::Open(command) => Order::Open { host, command },
            RelayOrder::Relay => Order::Relay { host },
            RelayOrder::Drop => Order::Drop { host },
        }
    }
}

impl Relay {
    pub(super) fn new(parent: usize, through: &str, command: Command) -> Relay {
        Relay {
            parent,
            through: through.to_owned(),
            command: Some(command),
            is_writable: true,
            is_readable: true,
            has_said_end: false,
            is_to_drop: false,
            on_their_way: 0,
        }
    }

    pub(super) fn taken(&mut self, bytes: usize) {
        self.on_their_way = self.on_their_way.saturating_sub(bytes);
    }

    /// Nothing more is sent or expected.
    pub(super) fn give_up(&mut self) {
        self.is_to_drop |= self.is_readable;
        (self.is_writable, self.is_readable) = (false, false);
    }

    /// The orders to send now, with the bytes for the agent at the end.
    pub(super) fn orders(&mut self, outgoing: &mut Outgoing) -> Vec<(RelayOrder, Vec<u8>)> {
        let mut orders = Vec::new();
        if let Some(command) = self.command.take_if(|_| self.is_writable) {
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            orders.push((RelayOrder::Open(words.map(OsString::from).collect()), Vec::new()));
        }
        if self.command.is_some() {
            return orders; // it was given up before its host was asked for anything
        }
        while !outgoing.is_empty() && self.on_their_way < ON_THEIR_WAY_BYTES_MAX {
            let piece = outgoing.take(BODY_BYTES_MAX);
            self.on_their_way += piece.len();
            orders.push((RelayOrder::Relay, piece));
        }
        if !self.is_writable && !self.has_said_end && outgoing.is_empty() {
            self.has_said_end = true;
            orders.push((RelayOrder::Relay, Vec::new()));
        }
        if std::mem::take(&mut self.is_to_drop) {
            orders.push((RelayOrder::Drop, Vec::new()));
        }
        orders
    }
}

/// The relays of an agent. It starts the processes that carry connections to other hosts, and passes bytes on.
#[derive(Default)]
pub(super) struct Relays(Vec<Passing>);

struct Passing {
    host: usize,
    pid: i32,
    input: Option<OwnedFd>,
    waiting: Outgoing,
    /// Whether nothing more is to be passed on to the host.
    is_at_end: bool,
    streams: [Option<OwnedFd>; 2],
    ended: Option<Ended>,
}

impl Relays {
    /// Starts the process that carries the connection to a host. An error counts as its end.
    pub(super) fn open(&mut self, host: usize, words: &[OsString]) -> Result<i32, Vec<(Report, Vec<u8>)>> {
        let (program, arguments) =
            words.split_first().map_or((OsString::new(), words), |(one, rest)| (one.clone(), rest));
        let mut command = Command::new(program);
        command.args(arguments);
        match carried(command) {
            Ok(Running { pid, stdin, stdout, stderr }) => {
                let (waiting, streams) = (Outgoing::default(), [stdout, stderr]);
                self.0.push(Passing { host, pid, input: stdin, waiting, is_at_end: false, streams, ended: None });
                Ok(pid)
            }
            Err(error) => Err(vec![
                (Report::Relayed { host, stream: 1 }, format!("it cannot be started: {error}\n").into_bytes()),
                (Report::RelayEnded { host, ended: Ended::Exited(1) }, Vec::new()),
            ]),
        }
    }

    /// Whether nothing is relayed any more.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes bytes for a host; none of them means their end.
    pub(super) fn give(&mut self, host: usize, bytes: &[u8]) {
        for passing in self.0.iter_mut().filter(|passing| passing.host == host) {
            passing.waiting.add(bytes);
            passing.is_at_end |= bytes.is_empty();
        }
    }

    /// Ends the process that carries the connection to a host.
    pub(super) fn kill(&self, host: usize) {
        let running = self.0.iter().filter(|passing| passing.host == host && passing.ended.is_none());
        running.for_each(|passing| child::signal_group(passing.pid, libc::SIGKILL));
    }

    /// Closes all of them: the agents at their ends see that, and end what they started.
    pub(super) fn close(&mut self) {
        self.0.clear();
    }

    /// Notes the end of a child; returns whether it carried a connection.
    pub(super) fn note(&mut self, pid: i32, ended: Ended) -> bool {
        let found = self.0.iter_mut().find(|passing| passing.pid == pid && passing.ended.is_none());
        found.map(|passing| passing.ended = Some(ended)).is_some()
    }

    /// The descriptors to wait for. Nothing is read while too much waits for the launcher.
    pub(super) fn watched(&self, may_read: bool) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.0.iter().flat_map(move |passing| {
            let input = passing.input.as_ref().filter(|_| !passing.waiting.is_empty());
            let streams = passing.streams.iter().flatten().filter(move |_| may_read);
            let input = input.map(|pipe| (pipe.as_fd(), PollFlags::OUT));
            streams.map(|pipe| (pipe.as_fd(), PollFlags::IN)).chain(input)
        })
    }

    /// Passes on as many bytes as possible, and returns the reports for the launcher.
    pub(super) fn pump(&mut self, may_read: bool) -> Vec<(Report, Vec<u8>)> {
        let mut reports = Vec::new();
        for passing in &mut self.0 {
            let written = passing.write();
            if written > 0 {
                reports.push((Report::RelayTaken { host: passing.host, bytes: written }, Vec::new()));
            }
            if may_read {
                passing.read(&mut reports);
            }
            let is_silent = passing.streams.iter().all(Option::is_none);
            if let Some(ended) = passing.ended.filter(|_| is_silent) {
                reports.push((Report::RelayEnded { host: passing.host, ended }, Vec::new()));
            }
        }
        self.0.retain(|passing| passing.ended.is_none() || passing.streams.iter().any(Option::is_some));
        reports
    }
}

impl Passing {
    fn write(&mut self) -> usize {
        let mut written = 0;
        while let Some(pipe) = self.input.as_ref().filter(|_| !self.waiting.is_empty()) {
            match self.waiting.write(pipe) {
                Ok(0) => break,
                Ok(count) => written += count,
                // Its end is seen where it is read.
                Err(_) => self.input = None,
            }
        }
        if self.is_at_end && self.waiting.is_empty() {
            self.input = None;
        }
        written
    }

    fn read(&mut self, reports: &mut Vec<(Report, Vec<u8>)>) {
        for (stream, place) in self.streams.iter_mut().enumerate() {
            let Some(pipe) = place else { continue };
            let mut buffer = [0; 32 << 10];
            let count = match rustix::io::read(pipe, &mut buffer) {
                Ok(count) => count,
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Err(_) => 0,
            };
            if count == 0 {
                *place = None;
            }
            // The end of its complaints says nothing.
            if count > 0 || stream == 0 {
                reports.push((Report::Relayed { host: self.host, stream }, buffer[..count].to_vec()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_few_logins_away() {
        let mut tree = Tree::default();
        let mut depths: Vec<usize> = Vec::new();
        for place in 0..64 {
            let depth = tree.parent_of(place).map_or(1, |parent| depths[parent] + 1);
            depths.push(depth);
        }
        let count = |depth| depths.iter().filter(|found| **found == depth).count();
        assert_eq!([1, 2, 3, 4].map(count), [4, 16, 44, 0]);
    }

    #[test]
    fn what_is_on_its_way_through_a_host_is_bounded() {
        let mut relay = Relay::new(0, "a", Command::new("true"));
        let mut outgoing = Outgoing::default();
        outgoing.add(&vec![7; 2 * ON_THEIR_WAY_BYTES_MAX]);
        let sent = |orders: Vec<(RelayOrder, Vec<u8>)>| orders.iter().map(|(_, body)| body.len()).sum::<usize>();
        assert_eq!(sent(relay.orders(&mut outgoing)), ON_THEIR_WAY_BYTES_MAX);
        assert_eq!(sent(relay.orders(&mut outgoing)), 0);
        relay.taken(1);
        relay.is_writable = false;
        assert_eq!(sent(relay.orders(&mut outgoing)), BODY_BYTES_MAX);
        relay.taken(2 * ON_THEIR_WAY_BYTES_MAX);
        let last = relay.orders(&mut outgoing);
        assert!(last.last().is_some_and(|(order, body)| matches!(order, RelayOrder::Relay) && body.is_empty()));
    }
}
