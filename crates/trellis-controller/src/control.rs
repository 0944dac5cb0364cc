//! How operators ask a controller: a Unix socket, one line of JSON each way, any number of them on a connection.
//!
//! Promises: the socket is its owner's alone (mode 0600); one that a controller left that is gone is taken over; every
//! request gets one answer. What was asked for has been decided when it is answered, and may not be done yet: the status
//! says how far it is.

use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, SyncSender, sync_channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trellis_protocol::lease::Host;
use trellis_protocol::wire::address::{Cluster, HostPrefix};

use crate::ranges::Status;
use crate::records::Wish;

/// The longest line; the status of 60,000 ranges is shorter.
const LINE_BYTES_MAX: u64 = 32 << 20;
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
    /// This range goes to this host; nothing if there is nothing to be gained.
    Moves(Option<(Host, Host)>),
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
    let (before, after) = SOCKET;
    let before = before.to_owned() + &cluster.map_or_else(String::new, |cluster| format!("{:06x}-", cluster.number()));
    let is_one = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&before) && name.ends_with(after)) && UnixStream::connect(path).is_ok()
    };
    let entries = fs::read_dir(folder()).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(is_one).collect()
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

/// Takes the socket.
///
/// # Errors
///
/// When another controller listens there, or the system does not let us.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            if UnixStream::connect(path).is_ok() {
                return Err(io::Error::new(
                    ErrorKind::AddrInUse,
                    "a controller runs there; end that one, or give another --control",
                ));
            }
            fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Answers who connects, each in a thread, by what `asked` gets.
pub(crate) fn serve<T: Send + 'static>(listener: &UnixListener, asked: &Sender<T>, wrap: fn(Asked) -> T) {
    for stream in listener.incoming().flatten() {
        let asked = asked.clone();
        // Who gets no thread is as one whose connection broke.
        let _ = std::thread::Builder::new().name("controller control".to_owned()).spawn(move || {
            // Who is gone needs no answer.
            let _ = converse(stream, &asked, wrap);
        });
    }
}

fn converse<T>(stream: UnixStream, asked: &Sender<T>, wrap: fn(Asked) -> T) -> io::Result<()> {
    let mut lines = Lines::new(stream)?;
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
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Lines::new(stream)
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
        let answer = self.lines.send(request).and_then(|()| self.lines.receive());
        let answer = answer.and_then(|answer| answer.ok_or_else(|| ErrorKind::UnexpectedEof.into()));
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

struct Lines {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Lines {
    fn new(stream: UnixStream) -> io::Result<Lines> {
        Ok(Lines { writer: stream.try_clone()?, reader: BufReader::new(stream) })
    }

    fn send<T: Serialize>(&mut self, message: &T) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.writer.write_all(&line)
    }

    /// The next one; nothing when the other side has ended.
    fn receive<T: for<'a> Deserialize<'a>>(&mut self) -> io::Result<Option<T>> {
        let mut line = Vec::new();
        let read = self.reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&line)?))
    }
}
