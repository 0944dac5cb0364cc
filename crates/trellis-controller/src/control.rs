//! How operators ask a controller: a Unix socket, one line of JSON each way, any number of them on a connection.
//!
//! Promises: the socket is its owner's alone (mode 0600), and whoever else comes by it is told so; one that a controller left
//! that is gone is taken over; every request gets one answer. What was asked for has been decided when it is answered, what
//! shall last has been written, and it may not be done yet: the status says how far it is. Connections are bounded.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender, sync_channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trellis_fabric_protocol::lease::Host;
use trellis_fabric_protocol::wire::address::{Cluster, HostPrefix};
use trellis_switch::control::Lines;
use trellis_switch::lab::space;

use crate::ranges::{Moved, Status};
use crate::records::Wish;

/// Operators who ask at once.
const CONNECTIONS_MAX: usize = 64;
/// For how long no connection is taken after the system gave none: it does not say when it has a descriptor again. Twice as
/// long each time, up to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Longer than a controller needs for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// How things are.
    Status,
    /// What has happened after the sentence with this number.
    Events(u64),
    /// Let a range go to a host.
    Move {
        /// Which.
        range: Host,
        /// Where.
        to: Host,
    },
    /// Let pages of a range go to a host; to the range's own home: come home, and be the range's again.
    MovePages {
        /// Which.
        range: Host,
        /// Where.
        to: Host,
        /// The first page.
        first: u64,
        /// How many.
        pages: u64,
    },
    /// Say which backups a range has; nothing for as many as all have.
    Backups {
        /// Which.
        range: Host,
        /// What.
        wish: Option<Wish>,
    },
    /// Let everything go away from a server, or let it have something again.
    Drain {
        /// Which.
        host: Host,
        /// Or not.
        is_drained: bool,
    },
    /// Let a range begin anew that nobody has.
    Reset {
        /// Which.
        range: Host,
        /// Where; at its home, unless told.
        at: Option<Host>,
        /// Also if there are copies of it at servers that are gone.
        may_lose_copies: bool,
    },
    /// The range that should move, so that the busiest server has less to do; and let it.
    Rebalance {
        /// Only say which.
        only_says: bool,
    },
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is decided.
    Done,
    /// How things are.
    Status(Status),
    /// Numbers, and what happened.
    Events(Vec<(u64, String)>),
    /// These runs go: first page, and how many.
    Pages(Vec<(u64, u64)>),
    /// This goes to a host; nothing if there is nothing to be gained.
    Moves(Option<Moved>),
    /// A sentence.
    Refused(String),
}

/// A request, and where its answer goes.
pub(crate) type Asked = (Request, SyncSender<Answer>);

/// How the sockets of controllers are named.
const SOCKET: (&str, &str) = ("trellis-controller-", ".sock");

/// Where the controller of a host is asked unless it is told: a folder for what runs, and its host's number.
pub fn default_socket(prefix: HostPrefix) -> PathBuf {
    let (before, after) = SOCKET;
    folder().join(format!("{before}{:06x}-{:04x}{after}", prefix.cluster.number(), prefix.host.0))
}

/// The sockets there at which somebody listens; of one cluster, if it is named.
pub fn sockets_here(cluster: Option<Cluster>) -> Vec<PathBuf> {
    sockets(cluster).filter(|path| UnixStream::connect(path).is_ok()).collect()
}

/// Takes away what controllers of a cluster that were killed left behind: the sockets there at which nobody listens.
pub fn forget_sockets(cluster: Cluster) {
    let is_socket = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket());
    let is_left = |path: &PathBuf| {
        let refused = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
        is_socket(path) && UnixStream::connect(path).is_err_and(refused)
    };
    // One that another user left cannot be taken away, and does no harm.
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

/// The same for who listens and who asks: the first folder that this user may write to.
fn folder() -> PathBuf {
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let mut folders = named.into_iter().chain([PathBuf::from("/run")]).filter(|folder| may_write(folder));
    folders.next().unwrap_or_else(std::env::temp_dir)
}

fn may_write(folder: &Path) -> bool {
    let probe = folder.join(format!(".trellis-{}", std::process::id()));
    let may = fs::OpenOptions::new().write(true).create_new(true).open(&probe).is_ok();
    may && fs::remove_file(probe).is_ok()
}

/// Answers who connects, each in a thread, by what `asked` gets.
pub(crate) fn serve<T: Send + 'static>(listener: &UnixListener, asked: &Sender<T>, wrap: fn(Asked) -> T) {
    let connections = Arc::new(());
    let mut pause = PAUSE.0;
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE.1);
            continue;
        };
        pause = PAUSE.0;
        if let Some(sentence) = why_not(&stream, Arc::strong_count(&connections) - 1) {
            // Before it has asked: its first question waits for this. Who is gone needs no answer.
            let _ = Lines::new(stream, PATIENCE).and_then(|mut lines| lines.send(&Answer::Refused(sentence)));
            continue;
        }
        let (asked, connection) = (asked.clone(), Arc::clone(&connections));
        // Who gets no thread is as one whose connection broke.
        let _ = std::thread::Builder::new().name("controller control".to_owned()).spawn(move || {
            // Who is gone needs no answer.
            let _ = converse(stream, &asked, wrap);
            drop(connection);
        });
    }
}

/// Why nobody listens to who has connected, beside so many others.
fn why_not(stream: &UnixStream, others: usize) -> Option<String> {
    match space::peer(stream) {
        Ok((_, user)) if !may_ask(user, space::own_user()) => Some(format!(
            "user {user} may not ask this controller; ask as user {}, to whom it belongs, or as root",
            space::own_user()
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

fn converse<T>(stream: UnixStream, asked: &Sender<T>, wrap: fn(Asked) -> T) -> io::Result<()> {
    let mut lines = Lines::new(stream, PATIENCE)?;
    while let Some(request) = lines.receive::<Request>()? {
        let (sender, answer) = sync_channel(1);
        let gone = || io::Error::from(ErrorKind::BrokenPipe);
        asked.send(wrap((request, sender))).map_err(|_| gone())?;
        lines.send(&answer.recv().map_err(|_| gone())?)?;
    }
    Ok(())
}

/// A controller of another process.
pub struct Remote {
    path: PathBuf,
    lines: Lines,
}

impl Remote {
    /// Connects.
    ///
    /// # Errors
    ///
    /// A sentence, when nobody is there.
    pub fn open(path: &Path) -> Result<Remote, String> {
        let opened = UnixStream::connect(path).and_then(|stream| {
            let lines = Lines::new(stream, PATIENCE)?;
            lines.is_impatient()?;
            Ok(lines)
        });
        let lines = opened.map_err(|error| gone(path, &error))?;
        Ok(Remote { path: path.to_owned(), lines })
    }

    /// Asks something.
    ///
    /// # Errors
    ///
    /// A sentence, when it is gone, and what it refuses.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, String> {
        // Who is turned away has an answer before the question.
        let sent = self.lines.send(request);
        let answer = match self.lines.receive() {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => sent.and(Err(ErrorKind::UnexpectedEof.into())),
            Err(error) => sent.and(Err(error)),
        };
        match answer.map_err(|error| gone(&self.path, &error))? {
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
    fn who_comes_when_all_places_are_taken_is_told_so_and_the_next_is_heard() {
        let path = std::env::temp_dir().join(format!("trellis-control-{}", std::process::id()));
        let listener = trellis_switch::control::listen(&path, "controller", "--control").expect("a socket");
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
        // The thread of the one that went ends by itself.
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while Remote::open(&path).expect("it listens").ask(&Request::Status) != Ok(Answer::Done) {
            assert!(std::time::Instant::now() < deadline, "its place is not free");
        }
        fs::remove_file(&path).expect("it is there");
    }
}
