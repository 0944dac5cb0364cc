//! Ports for servers that tests start, and for addresses at which nobody listens.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};

/// A TCP port of the loopback interface that no other test gets while this value lives.
///
/// A socket that does not listen is bound to the port. The kernel then gives the port to nobody who asks for any free
/// one, neither to listen nor to connect from. A server that names the port and sets `SO_REUSEADDR`, as servers do, can
/// listen on it. Until one does, connections are refused.
pub struct Port {
    _socket: OwnedFd,
    address: SocketAddr,
}

impl Port {
    /// A port that nobody uses.
    ///
    /// # Panics
    ///
    /// If the system has none.
    #[expect(clippy::new_without_default, reason = "it opens a socket")]
    pub fn new() -> Port {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket");
        sockopt::set_socket_reuseaddr(&socket, true).expect("an option of every socket");
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = getsockname(&socket).and_then(SocketAddr::try_from).expect("it is bound");
        Port { _socket: socket, address }
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.address.port()
    }
}

/// Sockets that listen on free ports of the loopback interface, and their addresses.
///
/// # Panics
///
/// If the system has no free port.
pub fn listeners(count: usize) -> (Vec<TcpListener>, Vec<String>) {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let listeners: Vec<TcpListener> = (0..count).map(|_| bind()).collect();
    let addresses = listeners.iter().map(|each| each.local_addr().expect("it is bound").to_string()).collect();
    (listeners, addresses)
}

/// Sockets for datagrams, bound to free ports of the loopback interface, and their addresses.
///
/// # Panics
///
/// If the system has no free port.
pub fn datagram_sockets(count: usize) -> (Vec<UdpSocket>, Vec<String>) {
    let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let sockets: Vec<UdpSocket> = (0..count).map(|_| bind()).collect();
    let addresses = sockets.iter().map(|each| each.local_addr().expect("it is bound").to_string()).collect();
    (sockets, addresses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn a_port_is_nobody_elses_and_a_server_can_use_it() {
        let port = Port::new();
        assert!(TcpStream::connect(port.address()).is_err());
        let listener = TcpListener::bind(port.address()).unwrap();
        let _accepted = TcpStream::connect(port.address()).unwrap();
        drop(listener);
        // The system gives a free port at random: this asks for more of them than there are odd ones, one at a time.
        for _ in 0..40_000 {
            let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            assert_ne!(other.local_addr().unwrap(), port.address());
        }
    }
}
