//! How `trellis leave` finds the launchers of processes that joined a cluster, and communicates with them.
//!
//! A launcher with `--join` listens on a socket in the abstract namespace, whose name contains the user and the
//! launcher: no file is left behind, and `/proc/net/unix` lists all of them.
//!
//! Promises: only processes of the same user are served. Another process, and a request that is not understood, is
//! answered with a sentence, counted and reported ([`Refusals`]). A client that connects and sends nothing delays the
//! launcher once, for a bounded, short time.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trellis_base::{Deadline, Limit};
use trellis_output::json_lines::Lines;
use trellis_output::refusals::Refusals;
use trellis_output::sockets;

use super::JoinedNode;
use crate::exit::{self, Failure};

/// How long one request and its answer may take; both sides write at once.
pub(crate) const REQUEST: Deadline = Deadline {
    who: "`trellis run`",
    waits_for: "a request of `trellis leave`",
    limit: Limit::milliseconds(200),
    then: "it is refused, and says so",
    tested: "crates/trellis-command/src/run/requests.rs a_client_that_says_nothing_is_refused",
};
/// The time limit of the client: the launcher may be busy with output.
pub(crate) const ANSWER: Deadline = Deadline {
    who: "`trellis leave`",
    waits_for: "the launcher's answer",
    limit: Limit::seconds(5),
    then: "a sentence; other launchers are asked",
    tested: "crates/trellis-command/src/run/requests.rs a_launcher_that_does_not_answer_is_named",
};
const NAME: &str = "trellis-join";

/// The launcher's end.
pub(super) struct Requests {
    listener: UnixListener,
    refusals: Refusals,
}

/// A request to a launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Request {
    /// List its nodes.
    List,
    /// Ask the node with this process number to leave.
    Leave(i32),
}

/// The answer of a launcher.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The running nodes.
    Nodes(Vec<JoinedNode>),
    /// Whether the node runs, and was asked to leave.
    IsAsked(bool),
    /// A sentence.
    Refused(String),
}

impl Requests {
    pub(super) fn listen() -> Result<Requests, Failure> {
        let listening = address(std::process::id() as i32).and_then(|address| Requests::listen_at(&address));
        listening
            .map_err(|error| Failure::new(exit::SYSTEM, format!("cannot make a socket for `trellis leave`: {error}")))
    }

    fn listen_at(address: &SocketAddr) -> io::Result<Requests> {
        let listener = UnixListener::bind_addr(address)?;
        listener.set_nonblocking(true)?;
        Ok(Requests { listener, refusals: Refusals::new("launcher", Some(trellis_output::lines::report)) })
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// Answers all clients that have connected.
    pub(super) fn serve(&self, mut answer: impl FnMut(Request) -> Answer) {
        while let Ok((stream, _)) = self.listener.accept() {
            // A client that hangs up does not want the answer.
            let _ = self.serve_one(stream, &mut answer);
        }
    }

    fn serve_one(&self, stream: UnixStream, answer: &mut impl FnMut(Request) -> Answer) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        let (_, user) = sockets::peer(&stream)?;
        let mut lines = Lines::new(stream, REQUEST.time())?.limiting_silence(REQUEST.time());
        if user != sockets::own_user() {
            let owner = sockets::own_user();
            let sentence = format!("user {user} may not ask this launcher; ask as its owner, user {owner}");
            return self.refusals.refuse(&mut lines, sentence, Answer::Refused);
        }
        match self.refusals.receive(&mut lines, Answer::Refused) {
            Ok(Some(request)) => lines.send(&answer(request)),
            Ok(None) => Ok(()),
            // Without an answer, the client would take this launcher for one that has ended.
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                let sentence = format!("the request did not come within {} s; ask again", REQUEST.time().as_secs_f64());
                self.refusals.refuse(&mut lines, sentence, Answer::Refused)
            }
            Err(error) => Err(error),
        }
    }
}

/// Sends a request to the launcher with this process number; `None` if it has ended.
///
/// # Errors
///
/// The sentence of a launcher that refuses the request, and one about a launcher that does not answer.
pub(super) fn ask(launcher: i32, request: Request) -> Result<Option<Answer>, Failure> {
    let named = |what: String| Failure::new(exit::SYSTEM, format!("the launcher {launcher} {what}"));
    let address = address(launcher).map_err(|error| named(format!("has no socket: {error}")))?;
    match exchange(&address, request, ANSWER.time()) {
        Ok(Answer::Refused(sentence)) => Err(named(format!("refused: {sentence}"))),
        Ok(answer) => Ok(Some(answer)),
        Err(error) if is_gone(error.kind()) => Ok(None),
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            Err(named("is of another version; use the `trellis leave` that belongs to its `trellis run`".to_owned()))
        }
        Err(error) => Err(named(format!("does not answer: {error}"))),
    }
}

/// Whether the launcher ended before or while it was asked.
fn is_gone(error: ErrorKind) -> bool {
    matches!(
        error,
        ErrorKind::ConnectionRefused | ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    )
}

fn exchange(address: &SocketAddr, request: Request, limit: Duration) -> io::Result<Answer> {
    let stream = trellis_output::sockets::connect(address, limit)?;
    Lines::new(stream, limit)?.limiting_silence(limit).ask(&request)
}

/// The address of the socket of a launcher of this user.
fn address(launcher: i32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{NAME}-{}-{launcher}", sockets::own_user()))
}

/// The listening launchers of this user, by their process numbers.
pub(super) fn launchers() -> Result<Vec<i32>, Failure> {
    // The names of others' abstract sockets may be any bytes.
    let table = fs::read("/proc/net/unix")
        .map_err(|error| Failure::new(exit::SYSTEM, format!("cannot read /proc/net/unix: {error}")))?;
    Ok(launchers_in(&String::from_utf8_lossy(&table), sockets::own_user()))
}

fn launchers_in(table: &str, user: u32) -> Vec<i32> {
    let prefix = format!("@{NAME}-{user}-");
    let names = table.lines().filter_map(|line| line.split_whitespace().last());
    let mut found: Vec<i32> = names.filter_map(|name| name.strip_prefix(&prefix)?.parse().ok()).collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_found_in_the_kernels_table() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 1 @trellis-join-1000-4711\n\
             0000000000000000: 00000003 00000000 00000000 0001 03 2 @trellis-join-1000-4711\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 3 @trellis-join-1001-12\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 4\n";
        assert_eq!(launchers_in(table, 1000), [4711]);
        assert!(launchers_in(table, 100).is_empty());
    }

    #[test]
    fn a_launcher_is_asked_and_answers() {
        let requests = Requests::listen().expect("a socket");
        let me = std::process::id() as i32;
        // Another program's socket, whose name is not text.
        let name = [b"trellis-\xff\xfe-", me.to_le_bytes().as_slice()].concat();
        let other = SocketAddr::from_abstract_name(name).expect("a name");
        let _other = std::os::unix::net::UnixListener::bind_addr(&other).expect("a socket");
        assert!(launchers().expect("the table").contains(&me));
        let asked = std::thread::spawn(move || ask(me, Request::Leave(5)));
        let minute = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
        let ready = &mut [rustix::event::PollFd::new(&requests.listener, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(ready, Some(&minute)), Ok(1));
        requests.serve(|request| Answer::IsAsked(request == Request::Leave(5)));
        assert_eq!(asked.join().unwrap(), Ok(Some(Answer::IsAsked(true))));
        drop(requests);
        assert_eq!(ask(me, Request::List), Ok(None));
    }

    /// The launcher's end under a name of its own, because all tests are one process.
    fn listen_as(name: &str) -> (Requests, SocketAddr) {
        let name = format!("{NAME}-{name}-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).expect("a name");
        (Requests::listen_at(&address).expect("a socket"), address)
    }

    #[test]
    fn a_client_that_says_nothing_is_refused() {
        let (requests, _) = listen_as("silent");
        let (client, server) = UnixStream::pair().expect("a pair of sockets");
        requests.serve_one(server, &mut |_| unreachable!("it says nothing")).expect("it is told so");
        let mut client = Lines::new(client, Duration::from_secs(60)).expect("a socket");
        let Some(Answer::Refused(sentence)) = client.receive().expect("an answer") else { panic!("it is refused") };
        assert_eq!(sentence, "the request did not come within 0.2 s; ask again");
        assert_eq!(requests.refusals.count(), 1);
    }

    #[test]
    fn a_launcher_that_does_not_answer_is_named() {
        let (_launcher, address) = listen_as("busy");
        let late = exchange(&address, Request::List, Duration::from_millis(10)).expect_err("nobody answers");
        assert_eq!(late.to_string(), "it has said nothing for 0.01 s");
    }

    #[test]
    fn who_is_not_understood_hears_that_and_is_counted() {
        let (requests, _) = listen_as("refused");
        let (client, server) = UnixStream::pair().expect("a pair of sockets");
        let mut client = Lines::new(client, Duration::from_secs(60)).expect("a socket");
        client.send(&"a request of another version").expect("it is taken");
        let refused = requests.serve_one(server, &mut |_| unreachable!("it is no request"));
        assert_eq!(refused.expect_err("it is no request").kind(), ErrorKind::InvalidData);
        let Some(Answer::Refused(sentence)) = client.receive().expect("an answer") else { panic!("it is refused") };
        assert!(sentence.starts_with("the request is not understood"), "{sentence}");
        assert_eq!(requests.refusals.count(), 1);
    }
}
