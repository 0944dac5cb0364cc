//! Local sockets: those on which a process serves others of this machine, and connections to them.
//!
//! Promises: a socket belongs to its user alone from the first moment (mode 0600), and its file is removed with the
//! [`Socket`]. A socket that a killed process left behind is taken over. Connecting has a limit. It must never remove a
//! file that is not a socket, or one on which another process listens.

use std::fmt::Arguments;
use std::fs;
use std::io::{self, ErrorKind};
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::net;
use trellis_base::{Deadline, Limit};

/// The maximum number of connections that wait to be accepted; as in the standard library.
const CONNECTING_MAX: i32 = 128;
/// The pause in accepting clients after an error: it doubles from the first value to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// A listening socket; its file is removed with this value.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    file: SocketFile,
}

/// The file of a socket that this process made.
#[derive(Clone, Debug)]
pub struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<SocketFile> {
        let about = fs::symlink_metadata(path)?;
        Ok(SocketFile { path: path.to_owned(), device: about.dev(), inode: about.ino() })
    }

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, unless somebody has put another one in its place.
    pub fn remove(&self) {
        let is_same = |about: fs::Metadata| (about.dev(), about.ino()) == (self.device, self.inode);
        if fs::symlink_metadata(&self.path).is_ok_and(is_same) {
            // A missing file is the desired result.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Socket {
    /// Its file, for those that remove it while a thread still holds the socket.
    pub fn file(&self) -> &SocketFile {
        &self.file
    }
}

impl Deref for Socket {
    type Target = UnixListener;

    fn deref(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.file.remove();
    }
}

/// Listens on a socket that only its owner can use (mode 0600). A socket that was left behind, and on which no process
/// listens any more, is replaced; a file that is not a socket is kept. In messages, `who` is what listens on such a
/// socket, and `option` is the option that names it.
///
/// # Errors
///
/// When another process listens there, another file has the name, or the system refuses.
pub fn listen(path: &Path, who: &str, option: &str) -> io::Result<Socket> {
    let taken = |what: String| io::Error::new(ErrorKind::AddrInUse, what);
    let listener = match bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            if !fs::symlink_metadata(path)?.file_type().is_socket() {
                return Err(taken(format!("what is there is not a socket; give another {option}")));
            }
            // Only a refusal shows that nobody listens: another user's socket, for example, cannot be tried.
            if !is_left_behind(path) {
                return Err(taken(format!("a {who} runs there; end that one, or give another {option}")));
            }
            fs::remove_file(path)?;
            bind(path)?
        }
        bound => bound?,
    };
    Ok(Socket { listener, file: SocketFile::of(path)? })
}

/// The limit of a look at whether a process listens.
pub const PROBE: Deadline = Deadline {
    who: "a command that makes or finds a local socket",
    waits_for: "a process that listens there already, to accept a connection",
    limit: Limit::seconds(1),
    then: "that process counts as running",
    tested: "crates/trellis-output/src/sockets.rs a_process_that_accepts_nobody_is_not_waited_for",
};

/// Whether a process listens on the socket, even if it accepts no connection now.
pub fn is_listening(path: &Path) -> bool {
    let probed = connect_path(path, PROBE.time());
    probed.map_or_else(|error| error.kind() == ErrorKind::TimedOut, |_| true)
}

/// Whether no process listens on the socket any more.
pub fn is_left_behind(path: &Path) -> bool {
    connect_path(path, PROBE.time()).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// The clients that connect, without end. While the system has no descriptor for one, nobody is accepted for a while,
/// because the system does not say when there is one again. `report` hears of the first such error, the tenth, the
/// hundredth and so on; `owner` names the process there.
pub fn clients(
    listener: &UnixListener,
    owner: &'static str,
    report: Option<fn(Arguments<'_>)>,
) -> impl Iterator<Item = UnixStream> {
    let mut errors = 0;
    let pause = move |error: &io::Error, pause: Duration| {
        errors += 1;
        if let Some(report) = report.filter(|_| trellis_base::is_worth_reporting(errors)) {
            report(format_args!(
                "the {owner} cannot accept a client at its socket: {error}; clients wait until it can. `ulimit -n` \
                 raises the number of files that it may open"
            ));
        }
        std::thread::sleep(pause);
    };
    accepted(listener.incoming(), pause)
}

/// What is accepted, with a pause after each error.
fn accepted<T>(
    incoming: impl Iterator<Item = io::Result<T>>,
    mut pause: impl FnMut(&io::Error, Duration),
) -> impl Iterator<Item = T> {
    let mut next = PAUSE.0;
    incoming.filter_map(move |accepted| match accepted {
        Ok(accepted) => {
            next = PAUSE.0;
            Some(accepted)
        }
        // That client has gone, and the next one can be accepted.
        Err(error) if error.kind() == ErrorKind::ConnectionAborted => None,
        Err(error) => {
            pause(&error, next);
            next = (next * 2).min(PAUSE.1);
            None
        }
    })
}

/// As [`connect`], by the path of the socket.
///
/// # Errors
///
/// As [`connect`].
pub fn connect_path(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    connect(&SocketAddr::from_pathname(path)?, limit)
}

/// Connects to a socket. A process that does not accept connections for `limit`, because it is stopped for example, is
/// not waited for any longer.
///
/// # Errors
///
/// Those of the system, and one that gives the time.
pub fn connect(address: &SocketAddr, limit: Duration) -> io::Result<UnixStream> {
    let name = match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), _) => net::SocketAddrUnix::new(path)?,
        (None, Some(name)) => net::SocketAddrUnix::new_abstract_name(name)?,
        (None, None) => return Err(ErrorKind::AddrNotAvailable.into()),
    };
    let socket = net::socket_with(net::AddressFamily::UNIX, net::SocketType::STREAM, net::SocketFlags::CLOEXEC, None)?;
    // The time to send limits the wait for a place in the queue of the listener, too (socket(7)).
    net::sockopt::set_socket_timeout(&socket, net::sockopt::Timeout::Send, Some(limit))?;
    rustix::io::retry_on_intr(|| net::connect(&socket, &name)).map_err(|error| match error {
        rustix::io::Errno::AGAIN => {
            let what = format!("it has accepted no connection for {} s", limit.as_secs_f64());
            io::Error::new(ErrorKind::TimedOut, what)
        }
        error => error.into(),
    })?;
    Ok(UnixStream::from(socket))
}

/// A socket for its owner alone. The mode of the socket becomes that of the file (unix(7)), so there is no moment at
/// which other users could connect.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let socket = net::socket_with(net::AddressFamily::UNIX, net::SocketType::STREAM, net::SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    net::bind(&socket, &net::SocketAddrUnix::new(path)?)?;
    net::listen(&socket, CONNECTING_MAX)?;
    Ok(UnixListener::from(socket))
}

/// The user of this process.
#[must_use]
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The process and the user at the other end of a connection. A process that this one cannot see, because it is outside
/// of its process namespace, has the number 0, for which `rustix` has no value.
///
/// # Errors
///
/// The kernel does not say it.
pub fn peer(stream: &UnixStream) -> io::Result<(i32, u32)> {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the structure is a local variable, and its size is passed.
    let result = unsafe {
        let to = std::ptr::from_mut(&mut who).cast();
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut size)
    };
    match result {
        0 => Ok((who.pid, who.uid)),
        _ => {
            let error = io::Error::last_os_error();
            Err(io::Error::new(error.kind(), format!("cannot ask who is at the other end of a socket: {error}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_process_that_accepts_nobody_is_not_waited_for() {
        let folder = trellis_testing::Folder::new();
        let path = folder.file("socket");
        let listener = listen(&path, "switch", "--control").unwrap();
        net::listen(&*listener, 0).unwrap();
        let address = SocketAddr::from_pathname(&path).unwrap();
        let mut connected = Vec::new();
        let late = loop {
            match connect(&address, Duration::from_millis(10)) {
                Ok(stream) => connected.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(late.to_string(), "it has accepted no connection for 0.01 s");
        assert!(is_listening(&path) && !is_left_behind(&path));
        assert!(!connected.is_empty());
        drop(listener);
        assert!(!is_listening(&path) && !path.exists());
        // As a process that is killed leaves it.
        drop(UnixListener::bind(&path).unwrap());
        assert!(!is_listening(&path) && is_left_behind(&path));
    }

    #[test]
    fn who_has_no_descriptor_for_a_client_pauses_and_goes_on() {
        let full = || Err(io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error()));
        let gone = || Err(ErrorKind::ConnectionAborted.into());
        let mut incoming: Vec<io::Result<u32>> = vec![Ok(1), gone(), Ok(2)];
        incoming.extend((0..9).map(|_| full()));
        incoming.extend([Ok(3), full()]);
        let mut pauses = Vec::new();
        let pause = |error: &io::Error, pause: Duration| {
            assert!(error.to_string().contains("Too many open files"), "{error}");
            pauses.push(pause.as_millis());
        };
        assert!(accepted(incoming.into_iter(), pause).eq([1, 2, 3]));
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 10]);
    }

    #[test]
    fn only_a_socket_at_which_nobody_listens_is_taken_over() {
        let folder = trellis_testing::Folder::new();
        let (socket, file, link) = (folder.file("socket"), folder.file("file"), folder.file("link"));
        let first = listen(&socket, "switch", "--control").unwrap();
        assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
        let sentence = |path: &Path| listen(path, "switch", "--control").unwrap_err().to_string();
        assert_eq!(sentence(&socket), "a switch runs there; end that one, or give another --control");
        drop(first);
        assert!(!socket.exists(), "a socket that nobody holds any more");
        drop(UnixListener::bind(&socket).unwrap());
        let second = listen(&socket, "switch", "--control").unwrap();
        // Another process takes the place of the socket.
        fs::remove_file(&socket).unwrap();
        let _other = UnixListener::bind(&socket).unwrap();
        drop(second);
        assert!(socket.exists(), "the socket of another process");
        fs::write(&file, "dear").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [file.as_path(), &link, folder.path()] {
            assert_eq!(sentence(path), "what is there is not a socket; give another --control", "{}", path.display());
        }
        assert_eq!(fs::read_to_string(&link).unwrap(), "dear");
    }
}
