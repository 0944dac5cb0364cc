//! The control socket of a running process.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::net;
use trellis_base::{Deadline, Limit};

/// The maximum number of connections that wait to be accepted; as in the standard library.
const CONNECTING_MAX: i32 = 128;

/// Listens on a socket that only its owner can use (mode 0600). A socket that was left behind, and on which no process
/// listens any more, is replaced; a file that is not a socket is kept. In messages, `who` is what listens on such a
/// socket, and `option` is the option that names it.
///
/// # Errors
///
/// When another process listens there, another file has the name, or the system refuses.
pub fn listen(path: &Path, who: &str, option: &str) -> io::Result<UnixListener> {
    let taken = |what: String| io::Error::new(ErrorKind::AddrInUse, what);
    let listener = match bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            if !fs::symlink_metadata(path)?.file_type().is_socket() {
                return Err(taken(format!("what is there is not a socket; give another {option}")));
            }
            if is_listening(path) {
                return Err(taken(format!("a {who} runs there; end that one, or give another {option}")));
            }
            fs::remove_file(path)?;
            bind(path)?
        }
        bound => bound?,
    };
    Ok(listener)
}

/// The limit of a look at whether a process listens.
pub(crate) const PROBE: Deadline = Deadline {
    who: "a command that makes or finds a local socket",
    waits_for: "a process that listens there already, to accept a connection",
    limit: Limit::seconds(1),
    then: "that process counts as running",
    tested: "crates/trellis-switch/src/control/socket.rs a_process_that_accepts_nobody_is_not_waited_for",
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
    net::connect(&socket, &name).map_err(|error| match error {
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_process_that_accepts_nobody_is_not_waited_for() {
        let folder = std::env::temp_dir().join(format!("trellis-connect-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("socket");
        let listener = listen(&path, "switch", "--control").unwrap();
        net::listen(&listener, 0).unwrap();
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
        assert!(!is_listening(&path) && is_left_behind(&path));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn only_a_socket_at_which_nobody_listens_is_taken_over() {
        let folder = std::env::temp_dir().join(format!("trellis-socket-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let (socket, file, link) = (folder.join("socket"), folder.join("file"), folder.join("link"));
        let first = listen(&socket, "switch", "--control").unwrap();
        assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
        let sentence = |path: &Path| listen(path, "switch", "--control").unwrap_err().to_string();
        assert_eq!(sentence(&socket), "a switch runs there; end that one, or give another --control");
        drop(first);
        drop(listen(&socket, "switch", "--control").unwrap());
        fs::write(&file, "dear").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&file, &link, &folder] {
            assert_eq!(sentence(path), "what is there is not a socket; give another --control", "{}", path.display());
        }
        assert_eq!(fs::read_to_string(&link).unwrap(), "dear");
        fs::remove_dir_all(&folder).unwrap();
    }
}
