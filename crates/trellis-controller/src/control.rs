//! The operators' interface to a controller: a Unix socket, one line of JSON in each direction, any number of them on a
//! connection.
//!
//! Promises: only the owner can use the socket (mode 0600), and another user who connects is told so. A socket that a
//! dead controller left behind is replaced. Every request gets one answer. When it is answered, the request has been
//! decided and its lasting effects have been written, but it may not be complete: the status shows its progress. The
//! number of connections is bounded.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender, sync_channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trellis_base::{Deadline, Limit};
use trellis_fabric_protocol::lease::{Host, RangeNumber};
use trellis_fabric_protocol::wire::address::{Cluster, HostPrefix};
use trellis_output::json_lines::Lines;
use trellis_output::refusals::Refusals;
use trellis_output::sockets;
use trellis_output::sockets::{clients, connect_path, is_left_behind, is_listening};

use crate::ranges::{Moved, Status};
use crate::records::Directive;

/// The maximum number of connections at the same time.
const CONNECTIONS_MAX: usize = 64;
/// Longer than a command is silent between two requests. Silent clients must not take up all places.
pub(crate) const SILENCE: Deadline = Deadline {
    who: "a controller",
    waits_for: "the next request of a command that is connected",
    limit: Limit::seconds(60),
    then: "the connection is closed",
    tested: "crates/trellis-controller/src/control.rs a_command_that_is_silent_is_hung_up",
};
/// Longer than a controller needs for an answer.
pub(crate) const TIMEOUT: Deadline = Deadline {
    who: "`trellis controller …`",
    waits_for: "the controller's answer",
    limit: Limit::seconds(10),
    then: "exit status 1, with the socket",
    tested: "crates/trellis-output/src/json_lines.rs who_says_nothing_or_takes_nothing_is_not_waited_for",
};

/// A request of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Request {
    /// The current state.
    Status,
    /// The events after the one with this number.
    Events(u64),
    /// Move a range to a host.
    Move {
        /// The range.
        range: RangeNumber,
        /// The destination.
        to: Host,
    },
    /// Move pages of a range to a host. If that is the range's own home, they are merged into the range again.
    MovePages {
        /// The range.
        range: RangeNumber,
        /// The destination.
        to: Host,
        /// The first page.
        first: u64,
        /// The number of pages.
        pages: u64,
    },
    /// Set the backups of a range; `None` for as many as all ranges have.
    Backups {
        /// The range.
        range: RangeNumber,
        /// The operator's directive.
        directive: Option<Directive>,
    },
    /// Move everything away from a server, or stop doing so.
    Drain {
        /// The server.
        host: Host,
        /// Whether it is drained.
        is_drained: bool,
    },
    /// Reset a range of which no host has the content.
    Reset {
        /// The range.
        range: RangeNumber,
        /// The new home; by default its current home.
        at: Option<Host>,
        /// Also if there are copies of it at servers that are gone.
        may_lose_copies: bool,
    },
    /// Choose the range to move so that the busiest server has less load, and move it.
    Rebalance {
        /// Only report the choice.
        only_says: bool,
    },
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is decided.
    Done,
    /// The current state.
    Status(Status),
    /// The numbers and texts of events.
    Events(Vec<(u64, String)>),
    /// The page ranges that move: first page, and number of pages.
    Pages(Vec<(u64, u64)>),
    /// The range and its destination; `None` if a move would not help.
    Moves(Option<Moved>),
    /// The reason for a refusal.
    Refused(String),
}

/// A request, and the channel for its answer.
pub(crate) type Asked = (Request, SyncSender<Answer>);

/// The beginning and the end of the names of controllers' sockets.
const SOCKET: (&str, &str) = ("trellis-controller-", ".sock");

/// The default socket of a host's controller: in a folder for run-time files, with the host's number.
pub fn default_socket(prefix: HostPrefix) -> PathBuf {
    let (before, after) = SOCKET;
    folder().join(format!("{before}{:06x}-{:04x}{after}", prefix.cluster.number(), prefix.host.0))
}

/// The sockets in that folder on which a process listens; of one cluster, if it is given.
pub fn sockets_here(cluster: Option<Cluster>) -> Vec<PathBuf> {
    sockets(cluster).filter(|path| is_listening(path)).collect()
}

/// Removes the sockets on which no process listens, left behind by killed controllers of a cluster.
pub fn forget_sockets(cluster: Cluster) {
    let is_socket = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket());
    let is_left = |path: &PathBuf| is_socket(path) && is_left_behind(path);
    // A socket of another user cannot be removed, and does no harm.
    sockets(Some(cluster)).filter(is_left).for_each(|path| drop(fs::remove_file(path)));
}

fn sockets(cluster: Option<Cluster>) -> impl Iterator<Item = PathBuf> {
    let (before, after) = SOCKET;
    let before = before.to_owned() + &cluster.map_or_else(String::new, |cluster| format!("{:06x}-", cluster.number()));
    let is_one = move |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&before) && name.ends_with(after))
    };
    let entries = fs::read_dir(folder()).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(is_one)
}

/// The folder, the same for both sides: the first one that this user may write to.
fn folder() -> PathBuf {
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let mut folders =
        named.into_iter().chain([PathBuf::from("/run")]).filter(|folder| trellis_output::files::may_write(folder));
    folders.next().unwrap_or_else(std::env::temp_dir)
}

/// Serves each connection on a thread, with the answers of the receiver of `asked`.
pub(crate) fn serve<T: Send + 'static>(listener: &UnixListener, asked: &Sender<T>, wrap: fn(Asked) -> T) {
    let connections = Arc::new(());
    let refusals = Arc::new(Refusals::new("controller", Some(trellis_output::lines::report)));
    for stream in clients(listener, "controller", Some(trellis_output::lines::report)) {
        if let Some(sentence) = why_not(&stream, Arc::strong_count(&connections) - 1) {
            // This answer is sent before the request arrives; the client reads it after sending its first one. A client
            // that has disconnected needs no answer.
            let _ = Lines::new(stream, TIMEOUT.time())
                .and_then(|mut lines| refusals.refuse(&mut lines, sentence, Answer::Refused));
            continue;
        }
        let (asked, connection, of_thread) = (asked.clone(), Arc::clone(&connections), Arc::clone(&refusals));
        let spare = stream.try_clone();
        let thread = std::thread::Builder::new().name("controller control".to_owned());
        let started = thread.spawn(move || {
            // A client that has disconnected needs no answer.
            let _ = converse(stream, SILENCE.time(), &asked, wrap, &of_thread);
            drop(connection);
        });
        if let Err(error) = started {
            let sentence = format!("the controller cannot start a thread for the request ({error}); ask again");
            let _ = spare
                .and_then(|spare| Lines::new(spare, TIMEOUT.time()))
                .and_then(|mut lines| refusals.refuse(&mut lines, sentence, Answer::Refused));
        }
    }
}

/// Why a connection is refused, given the number of others.
fn why_not(stream: &UnixStream, others: usize) -> Option<String> {
    match sockets::peer(stream) {
        Ok((_, user)) if !may_ask(user, sockets::own_user()) => Some(format!(
            "user {user} may not ask this controller; ask as its owner, user {}, or as root",
            sockets::own_user()
        )),
        Err(error) => Some(error.to_string()),
        Ok(_) if others >= CONNECTIONS_MAX => Some(format!(
            "{CONNECTIONS_MAX} others ask this controller at the moment; ask again when one of them has ended"
        )),
        Ok(_) => None,
    }
}

fn may_ask(user: u32, own: u32) -> bool {
    user == 0 || user == own
}

fn converse<T>(
    stream: UnixStream,
    silence_max: Duration,
    asked: &Sender<T>,
    wrap: fn(Asked) -> T,
    refusals: &Refusals,
) -> io::Result<()> {
    let mut lines = Lines::new(stream, TIMEOUT.time())?.limiting_silence(silence_max);
    while let Some(request) = refusals.receive::<Request, _>(&mut lines, Answer::Refused)? {
        let (sender, answer) = sync_channel(1);
        let gone = || io::Error::from(ErrorKind::BrokenPipe);
        asked.send(wrap((request, sender))).map_err(|_| gone())?;
        // Ends with the answer of the thread that decides, or with that thread.
        lines.send(&answer.recv().map_err(|_| gone())?)?;
    }
    Ok(())
}

/// A connection to a controller in another process.
pub struct Remote {
    path: PathBuf,
    lines: Lines,
}

impl Remote {
    /// Connects.
    ///
    /// # Errors
    ///
    /// A message, if no controller listens.
    pub fn open(path: &Path) -> Result<Remote, String> {
        let opened = connect_path(path, TIMEOUT.time()).and_then(|stream| Lines::new(stream, TIMEOUT.time()));
        let lines = opened.map_err(|error| gone(path, &error))?.limiting_silence(TIMEOUT.time());
        Ok(Remote { path: path.to_owned(), lines })
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    ///
    /// A message, if the controller is gone, or the reason for its refusal.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, String> {
        match self.lines.ask(request).map_err(|error| gone(&self.path, &error))? {
            Answer::Refused(sentence) => Err(sentence),
            answer => Ok(answer),
        }
    }
}

fn gone(path: &Path, error: &io::Error) -> String {
    let hint = match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            "start it with `trellis controller run`, or give --control or --controller"
        }
        ErrorKind::PermissionDenied => "the socket is its owner's",
        _ => "look whether it runs",
    };
    format!("cannot ask the controller at {}: {error}; {hint}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_user_and_root_may_ask() {
        assert!(may_ask(0, 1000) && may_ask(1000, 1000) && may_ask(0, 0));
        assert!(!may_ask(1001, 1000) && !may_ask(1000, 0) && !may_ask(u32::MAX, 1000));
    }

    #[test]
    fn a_command_that_is_silent_is_hung_up() {
        let (_command, stream) = UnixStream::pair().expect("a pair of sockets");
        let (asked, _questions) = std::sync::mpsc::channel::<Asked>();
        let refusals = Refusals::new("controller", None);
        let silence_max = Duration::from_millis(10);
        let ended = converse(stream, silence_max, &asked, |asked| asked, &refusals).expect_err("it says nothing");
        assert_eq!(ended.to_string(), "it has said nothing for 0.01 s");
    }

    #[test]
    fn who_comes_when_all_places_are_taken_is_told_so_and_the_next_is_heard() {
        let folder = trellis_testing::Folder::new();
        let path = folder.file("control");
        let listener = trellis_output::sockets::listen(&path, "controller", "--control").expect("a socket");
        let (asked, questions) = std::sync::mpsc::channel::<Asked>();
        std::thread::spawn(move || serve(&listener, &asked, |asked| asked));
        std::thread::spawn(move || questions.iter().for_each(|(_, answer)| drop(answer.send(Answer::Done))));
        let mut open: Vec<Remote> = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let mut remote = Remote::open(&path).expect("it listens");
            assert_eq!(remote.ask(&Request::Status), Ok(Answer::Done));
            open.push(remote);
        }
        let mut late = Remote::open(&path).expect("it listens");
        let sentence = late.ask(&Request::Status).expect_err("there is no place");
        assert!(sentence.contains("64 others ask"), "{sentence}");
        open.pop();
        // The thread of the closed connection ends by itself.
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while Remote::open(&path).expect("it listens").ask(&Request::Status) != Ok(Answer::Done) {
            assert!(std::time::Instant::now() < deadline, "its place is not free");
        }
    }
}
