//! The control socket of a running process.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::fs::Mode;
use rustix::net;

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
            if UnixStream::connect(path).is_ok() {
                return Err(taken(format!("a {who} runs there; end that one, or give another {option}")));
            }
            fs::remove_file(path)?;
            bind(path)?
        }
        bound => bound?,
    };
    Ok(listener)
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
