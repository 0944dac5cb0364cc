//! How a controller and a switch connect: over TCP or a local socket, with either side listening.
//!
//! In the notation of switches' operators: `ptcp:6653` waits for the switch to connect (as hardware switches do),
//! `ptcp:6653:10.0.0.1` at one address only, `tcp:HOST:6653` connects to a switch that listens; `punix:FILE` and
//! `unix:FILE` do the same within one machine.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;

use trellis_output::sockets::{self, Socket, SocketFile, connect_path};

use crate::switches::waits::CONNECT;

/// The port of OpenFlow.
pub const PORT: u16 = 6653;

/// How they connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionMethod {
    /// The switch connects to this address.
    Listen(SocketAddr),
    /// The switch listens there: name or address, and port.
    Connect(String, u16),
    /// The switch connects to this socket.
    ListenFile(PathBuf),
    /// The switch listens on this socket.
    ConnectFile(PathBuf),
}

impl FromStr for ConnectionMethod {
    type Err = String;

    fn from_str(text: &str) -> Result<ConnectionMethod, String> {
        let wrong = || {
            format!(
                "`{text}` is no place to meet a switch; accepted: ptcp:PORT or ptcp:PORT:ADDRESS (the switch connects), \
                 tcp:HOST:PORT (it waits), punix:FILE, unix:FILE"
            )
        };
        let (kind, place) = text.split_once(':').filter(|(_, place)| !place.is_empty()).ok_or_else(wrong)?;
        match kind {
            "ptcp" => {
                let (port, address) = place.split_once(':').unwrap_or((place, ""));
                let address = match bare(address) {
                    "" => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
                    address => address.parse().map_err(|_| wrong())?,
                };
                Ok(ConnectionMethod::Listen(SocketAddr::new(address, port.parse().map_err(|_| wrong())?)))
            }
            "tcp" => {
                let (host, port) = match place.rsplit_once(':').filter(|_| !place.ends_with(']')) {
                    Some((host, port)) => (host, port.parse().map_err(|_| wrong())?),
                    None => (place, PORT),
                };
                if host.is_empty() {
                    return Err(wrong());
                }
                Ok(ConnectionMethod::Connect(bare(host).to_owned(), port))
            }
            "punix" => Ok(ConnectionMethod::ListenFile(place.into())),
            "unix" => Ok(ConnectionMethod::ConnectFile(place.into())),
            _ => Err(wrong()),
        }
    }
}

/// An address without brackets.
fn bare(address: &str) -> &str {
    address.strip_prefix('[').and_then(|address| address.strip_suffix(']')).unwrap_or(address)
}

impl fmt::Display for ConnectionMethod {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bracketed = |host: &str| if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        match self {
            ConnectionMethod::Listen(address) if address.ip().is_unspecified() => {
                write!(formatter, "ptcp:{}", address.port())
            }
            ConnectionMethod::Listen(address) => {
                write!(formatter, "ptcp:{}:{}", address.port(), bracketed(&address.ip().to_string()))
            }
            ConnectionMethod::Connect(host, port) => write!(formatter, "tcp:{}:{port}", bracketed(host)),
            ConnectionMethod::ListenFile(file) => write!(formatter, "punix:{}", file.display()),
            ConnectionMethod::ConnectFile(file) => write!(formatter, "unix:{}", file.display()),
        }
    }
}

/// An opened endpoint.
pub(super) enum Place {
    Tcp(TcpListener),
    Unix(Socket),
    Theirs(ConnectionMethod),
}

impl Place {
    pub(super) fn take(method: &ConnectionMethod) -> io::Result<Place> {
        Ok(match method {
            ConnectionMethod::Listen(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Place::Tcp(listener)
            }
            ConnectionMethod::ListenFile(file) => {
                // A peer that answers there as a switch learns the destinations of requests.
                let listener = sockets::listen(file, "controller that waits for a switch", "--openflow")?;
                listener.set_nonblocking(true)?;
                Place::Unix(listener)
            }
            theirs => Place::Theirs(theirs.clone()),
        })
    }

    /// The address to which switches connect, if there is one.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self {
            Place::Tcp(listener) => listener.local_addr().ok(),
            _ => None,
        }
    }

    /// The file of the socket at which switches connect, if there is one.
    pub(super) fn file(&self) -> Option<SocketFile> {
        match self {
            Place::Unix(socket) => Some(socket.file().clone()),
            _ => None,
        }
    }

    /// The descriptor that becomes readable when a switch connects; `None` if this side connects.
    pub(super) fn waiting(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Place::Tcp(listener) => Some(listener.as_fd()),
            Place::Unix(listener) => Some(listener.as_fd()),
            Place::Theirs(_) => None,
        }
    }

    /// The next connection; an error if there is none now.
    pub(super) fn connect(&self) -> io::Result<Stream> {
        let stream = match self {
            Place::Tcp(listener) => Stream::Tcp(listener.accept()?.0),
            Place::Unix(listener) => Stream::Unix(listener.accept()?.0),
            Place::Theirs(ConnectionMethod::ConnectFile(file)) => Stream::Unix(connect_path(file, CONNECT.time())?),
            Place::Theirs(ConnectionMethod::Connect(host, port)) => {
                let none = || io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
                let address = (host.as_str(), *port).to_socket_addrs()?.next().ok_or_else(none)?;
                Stream::Tcp(TcpStream::connect_timeout(&address, CONNECT.time())?)
            }
            Place::Theirs(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        stream.prepare()?;
        Ok(stream)
    }
}

/// A connection.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Reading does not wait, and writing does not wait forever.
    fn prepare(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(CONNECT.time()))?;
                stream.set_write_timeout(Some(CONNECT.time()))
            }
            Stream::Unix(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(CONNECT.time()))?;
                stream.set_write_timeout(Some(CONNECT.time()))
            }
        }
    }

    pub(super) fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Tcp(stream) => Stream::Tcp(stream.try_clone()?),
            Stream::Unix(stream) => Stream::Unix(stream.try_clone()?),
        })
    }

    /// Ends the connection, for every clone.
    pub(super) fn end(&self) {
        // The peer may have ended it already.
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(buffer),
            Stream::Unix(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_shown() {
        for text in [
            "ptcp:6653",
            "ptcp:6653:10.0.0.1",
            "ptcp:6653:[fd00::1]",
            "tcp:switch.example:6633",
            "tcp:[fd00::1]:6653",
            "punix:/run/controller.sock",
            "unix:/run/br0.mgmt",
        ] {
            assert_eq!(text.parse::<ConnectionMethod>().unwrap().to_string(), text);
        }
        assert_eq!("tcp:switch".parse(), Ok(ConnectionMethod::Connect("switch".to_owned(), PORT)));
        assert_eq!("tcp:[fd00::1]".parse(), Ok(ConnectionMethod::Connect("fd00::1".to_owned(), PORT)));
        for wrong in ["", "tcp", "tcp:", "tcp::6653", "ptcp:x", "ptcp:1:host", "ssl:host:6653", "tcp:host:x"] {
            assert!(wrong.parse::<ConnectionMethod>().unwrap_err().contains("accepted: ptcp:PORT"), "{wrong}");
        }
    }
}
