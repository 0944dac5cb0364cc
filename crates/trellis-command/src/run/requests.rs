//! How `trellis leave` finds the launchers of processes that joined a cluster, and communicates with them.
//!
//! A launcher with `--join` listens on a socket in the abstract namespace, whose name contains the user and the
//! launcher: no file is left behind, and `/proc/net/unix` lists all of them.
//!
//! Promises: only processes of the same user are served. Another process, and a request that is not understood, is
//! answered with a sentence, counted, and reported the first time, the tenth, the hundredth and so on. A client that
//! connects and sends nothing delays the launcher once, for a bounded, short time.

use std::cell::Cell;
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use trellis_base::{Deadline, Limit};

use crate::exit::{self, Failure};

/// How long one request and its answer may take; both sides write at once.
pub(crate) const REQUEST: Deadline = Deadline {
    who: "`trellis run`",
    waits_for: "a request of `trellis leave`",
    limit: Limit::milliseconds(200),
    then: "the request is dropped",
    tested: "crates/trellis-command/src/run/requests.rs a_client_that_says_nothing_is_dropped",
};
/// The time limit of the client: the launcher may be busy with output.
pub(crate) const ANSWER: Deadline = Deadline {
    who: "`trellis leave`",
    waits_for: "the launcher's answer",
    limit: Limit::seconds(5),
    then: "the launcher is passed over",
    tested: "crates/trellis-command/src/run/requests.rs a_launcher_that_does_not_answer_is_passed_over",
};
const NAME: &str = "trellis-join";
/// An answer that begins with this is a refusal; the rest is the sentence.
const REFUSED: &str = "refused ";
const NOT_UNDERSTOOD: &str = "the request is not understood: `trellis leave` and `trellis run` are of different versions; \
                              use the `trellis leave` that belongs to that `trellis run`";

/// The launcher's end.
pub(super) struct Requests {
    listener: UnixListener,
    refused: Cell<u64>,
}

/// A request to a launcher.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// List its nodes.
    List,
    /// Ask the node with this process number to leave.
    Leave(i32),
}

impl Requests {
    pub(super) fn listen() -> Result<Requests, Failure> {
        let name = format!("{NAME}-{}-{}", own_user(), std::process::id());
        let listener = SocketAddr::from_abstract_name(name).and_then(|address| UnixListener::bind_addr(&address));
        let listening = listener.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
        let listener = listening.map_err(|error| {
            Failure::new(exit::SYSTEM, format!("cannot make a socket for `trellis leave`: {error}"))
        })?;
        Ok(Requests { listener, refused: Cell::new(0) })
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// Answers all clients that have connected.
    pub(super) fn serve(&self, mut answer: impl FnMut(&Request) -> String) {
        while let Ok((stream, _)) = self.listener.accept() {
            // A client that hangs up does not want the answer.
            let _ = self.serve_one(stream, &mut answer);
        }
    }

    fn serve_one(&self, mut stream: UnixStream, answer: &mut impl FnMut(&Request) -> String) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(REQUEST.time()))?;
        stream.set_write_timeout(Some(REQUEST.time()))?;
        let text = match peer_user(&stream) {
            Some(user) if user != own_user() => self.refuse(&wrong_user(user)),
            _ => {
                let mut buffer = [0u8; 64];
                let count = stream.read(&mut buffer)?;
                match Request::parse(&String::from_utf8_lossy(&buffer[..count])) {
                    Some(request) => answer(&request),
                    None => self.refuse(NOT_UNDERSTOOD),
                }
            }
        };
        stream.write_all(text.as_bytes())
    }

    /// Counts and reports a refusal, and returns the answer for the client.
    fn refuse(&self, sentence: &str) -> String {
        let count = self.refused.get() + 1;
        self.refused.set(count);
        if trellis_base::is_worth_reporting(count) {
            trellis_store::complain(format_args!(
                "a request to this launcher is refused: {sentence} (refusal {count})"
            ));
        }
        format!("{REFUSED}{sentence}")
    }
}

fn wrong_user(user: u32) -> String {
    format!("user {user} may not ask this launcher; ask as user {}, to whom it belongs", own_user())
}

impl Request {
    fn parse(text: &str) -> Option<Request> {
        match text.trim().split_once(' ') {
            None if text.trim() == "list" => Some(Request::List),
            Some(("leave", pid)) => pid.parse().ok().map(Request::Leave),
            _ => None,
        }
    }
}

impl std::fmt::Display for Request {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Request::List => formatter.write_str("list"),
            Request::Leave(pid) => write!(formatter, "leave {pid}"),
        }
    }
}

/// Sends a request to the launcher with this process number; `None` if it is gone.
///
/// # Errors
///
/// The sentence of a launcher that refuses the request.
pub(super) fn ask(launcher: i32, request: &Request) -> Result<Option<String>, Failure> {
    let address = SocketAddr::from_abstract_name(format!("{NAME}-{}-{launcher}", own_user()));
    let answer = address.ok().and_then(|address| exchange(&address, request, ANSWER.time()));
    let Some(answer) = answer else { return Ok(None) };
    match answer.strip_prefix(REFUSED) {
        Some(sentence) => Err(Failure::new(exit::SYSTEM, format!("the launcher {launcher} refused: {sentence}"))),
        None => Ok(Some(answer)),
    }
}

fn exchange(address: &SocketAddr, request: &Request, timeout: Duration) -> Option<String> {
    let mut stream = UnixStream::connect_addr(address).ok()?;
    stream.set_read_timeout(Some(timeout)).ok()?;
    stream.write_all(request.to_string().as_bytes()).ok()?;
    stream.shutdown(Shutdown::Write).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The listening launchers of this user, by their process numbers.
pub(super) fn launchers() -> Result<Vec<i32>, Failure> {
    // The names of others' abstract sockets may be any bytes.
    let table = fs::read("/proc/net/unix")
        .map_err(|error| Failure::new(exit::SYSTEM, format!("cannot read /proc/net/unix: {error}")))?;
    Ok(launchers_in(&String::from_utf8_lossy(&table), own_user()))
}

fn launchers_in(table: &str, user: u32) -> Vec<i32> {
    let prefix = format!("@{NAME}-{user}-");
    let names = table.lines().filter_map(|line| line.split_whitespace().last());
    let mut found: Vec<i32> = names.filter_map(|name| name.strip_prefix(&prefix)?.parse().ok()).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn own_user() -> u32 {
    // SAFETY: geteuid has no conditions.
    unsafe { libc::geteuid() }
}

fn peer_user(stream: &UnixStream) -> Option<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` and `size` describe one writable structure of the kind that SO_PEERCRED gives.
    let got = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut size)
    };
    (got == 0).then_some(peer.uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_reads_as_it_was_written() {
        for request in [Request::List, Request::Leave(471)] {
            assert_eq!(Request::parse(&request.to_string()), Some(request));
        }
        for nonsense in ["", "leave", "leave me", "go 3"] {
            assert_eq!(Request::parse(nonsense), None, "{nonsense}");
        }
    }

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
        let asked = std::thread::spawn(move || ask(me, &Request::Leave(5)));
        let mut ready = libc::pollfd { fd: requests.descriptor(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        assert_eq!(unsafe { libc::poll(&mut ready, 1, 60_000) }, 1);
        requests.serve(|request| format!("heard {request}"));
        assert_eq!(asked.join().unwrap().expect("an answer").as_deref(), Some("heard leave 5"));
    }

    /// The launcher's end under a name of its own, because all tests are one process.
    fn listen_as(name: &str) -> (Requests, SocketAddr) {
        let name = format!("{NAME}-{name}-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).expect("a name");
        let listener = UnixListener::bind_addr(&address).expect("a socket");
        (Requests { listener, refused: Cell::new(0) }, address)
    }

    #[test]
    fn a_client_that_says_nothing_is_dropped() {
        let (requests, _) = listen_as("silent");
        let (_client, server) = UnixStream::pair().expect("a pair of sockets");
        let dropped = requests.serve_one(server, &mut |_| unreachable!("it says nothing"));
        assert_eq!(dropped.expect_err("its time is over").kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_launcher_that_does_not_answer_is_passed_over() {
        let (_launcher, address) = listen_as("busy");
        assert_eq!(exchange(&address, &Request::List, Duration::from_millis(10)), None);
    }

    #[test]
    fn who_is_refused_hears_why_and_is_counted() {
        let (requests, _) = listen_as("refused");
        let (mut client, server) = UnixStream::pair().expect("a pair of sockets");
        client.write_all(b"go 3").expect("it is taken");
        requests.serve_one(server, &mut |_| unreachable!("it is no request")).expect("it is answered");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("an answer");
        assert_eq!(answer, format!("{REFUSED}{NOT_UNDERSTOOD}"));
        assert!(
            requests.refuse(&wrong_user(4711)).starts_with("refused user 4711 may not ask this launcher; ask as user ")
        );
        assert_eq!(requests.refused.get(), 2);
    }
}
