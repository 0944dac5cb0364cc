//! The sockets of the udp link: one that receives first messages of any peer, and one connected socket for each peer.
//!
//! Promises: every socket is non-blocking and closed on `exec` and in a forked child.
//!
//! It must never keep state besides the faults of a [`Wire`], or wait.
//!
//! There is a connected socket for each peer, and not one for all, for these reasons. The kernel keeps its route, so a
//! send costs less. Two threads can receive from two peers at once. Every peer has its own buffer, so it is known what
//! may be in flight to this node. Readiness tells which peer has something. And only on a connected socket does the
//! kernel report that nothing listens any more (ICMP) and how large a packet the path takes.

#![allow(unsafe_code)]

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Mutex;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};

use super::delivery::Nanoseconds;
use crate::links::descriptors::Descriptor;
use crate::links::roster::lock;
use crate::links::tcp::sockets::{self, IoVec, Received, SOCKET_FLAGS, Sent, widen};
use crate::wrap::faulty::{Faults, Faulty};

/// The size of packets that every network path is assumed to carry. A larger size is not trusted: a router on the path
/// may take less without reporting it.
const NETWORK_PACKET_BYTES: usize = 1500;
const HEADERS_V4_BYTES: usize = 20 + 8;
const HEADERS_V6_BYTES: usize = 40 + 8;
/// The minimum size of datagrams on loopback: several fit into a receiver's buffer of any size.
const LOOPBACK_BYTES_MIN: usize = 8 << 10;
const LOOPBACK_BYTES_MAX: usize = 60 << 10;
/// The size of a buffer into which any datagram fits.
pub(super) const DATAGRAM_BYTES_MAX: usize = 64 << 10;

/// The result of sending a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Gone,
    /// The socket is full.
    Full,
    /// The kernel reports that nothing listens there.
    NobodyThere,
    /// It was not sent and will not be soon; it counts as lost in transit.
    Dropped,
}

/// A socket, and the faulty network before it if there is one.
pub(super) struct Wire {
    pub(super) socket: Descriptor,
    faulty: Option<Box<Mutex<Faulty>>>,
}

impl Wire {
    /// `way` distinguishes the directions of one node.
    pub(super) fn new(socket: Descriptor, faults: Option<&Faults>, way: u64) -> Wire {
        let faulty = faults.map(|faults| Box::new(Mutex::new(Faulty::new(faults.clone(), way))));
        Wire { socket, faulty }
    }

    /// Sends one datagram.
    ///
    /// # Safety
    ///
    /// Every part must be readable for its whole length.
    #[inline]
    pub(super) unsafe fn send(&self, now: Nanoseconds, parts: &[IoVec]) -> Outcome {
        match &self.faulty {
            // SAFETY: the caller's promise.
            None => unsafe { send_once(&self.socket, parts) },
            // SAFETY: the caller's promise.
            Some(faulty) => unsafe { self.send_faulty(faulty, now, parts) },
        }
    }

    pub(super) fn send_bytes(&self, now: Nanoseconds, bytes: &[u8]) -> Outcome {
        // SAFETY: a slice is readable.
        unsafe { self.send(now, &[IoVec::of(bytes)]) }
    }

    /// Sends the datagrams that a faulty network held back until now.
    pub(super) fn release(&self, now: Nanoseconds) {
        if let Some(faulty) = &self.faulty {
            lock(faulty).release(now, &mut |bytes| {
                // A faulty network may lose this one too.
                let _ = self.send_plainly(bytes);
            });
        }
    }

    pub(super) fn due(&self) -> Option<Nanoseconds> {
        lock(self.faulty.as_ref()?).due()
    }

    #[inline]
    pub(super) fn receive(&self, room: &mut [u8]) -> Received {
        sockets::receive(&self.socket, room)
    }

    /// # Safety
    ///
    /// As [`Self::send`].
    #[cold]
    unsafe fn send_faulty(&self, faulty: &Mutex<Faulty>, now: Nanoseconds, parts: &[IoVec]) -> Outcome {
        let mut datagram = Vec::new();
        for part in parts {
            // SAFETY: the caller's promise.
            datagram.extend_from_slice(unsafe { part.as_slice() });
        }
        let mut outcome = Outcome::Gone;
        lock(faulty).pass(now, &datagram, &mut |bytes| {
            if self.send_plainly(bytes) == Outcome::NobodyThere {
                outcome = Outcome::NobodyThere;
            }
        });
        outcome
    }

    fn send_plainly(&self, bytes: &[u8]) -> Outcome {
        // SAFETY: a slice is readable.
        unsafe { send_once(&self.socket, &[IoVec::of(bytes)]) }
    }
}

/// # Safety
///
/// As [`Wire::send`].
#[inline]
unsafe fn send_once(socket: &Descriptor, parts: &[IoVec]) -> Outcome {
    // SAFETY: the caller's promise.
    match unsafe { sockets::send_parts(socket.raw(), parts) } {
        // A datagram is sent whole or not at all, and none of this link is empty.
        Sent::Bytes(0) => Outcome::Full,
        Sent::Bytes(_) => Outcome::Gone,
        Sent::Failed(error) if is_refusal(&error) => Outcome::NobodyThere,
        // There is no route, a firewall drops it, or it is too long for a path that shrank: all may be temporary.
        Sent::Failed(_) => Outcome::Dropped,
    }
}

/// Whether the kernel was told by the other machine that nothing listens.
pub(super) fn is_refusal(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ECONNREFUSED)
}

/// Takes over a bound socket.
pub(super) fn adopt(socket: UdpSocket) -> io::Result<Descriptor> {
    let socket = Descriptor::adopt(|| Ok(socket.into()))?;
    sockets::make_own(&socket)?;
    widen(&socket);
    Ok(socket)
}

/// Makes a separate socket for one peer that this node dials.
pub(super) fn dial(address: &SocketAddr) -> io::Result<Descriptor> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = adopt(UdpSocket::bind(any)?)?;
    connect(&socket, address)?;
    Ok(socket)
}

/// Makes a separate socket for one peer that dialled this node. It has the same port as the socket that received the
/// first message, so that the peer, and a firewall in between, see one address. The kernel gives a datagram to the
/// socket of a port that is connected to its sender.
pub(super) fn answer(listening: &Descriptor, address: &SocketAddr) -> io::Result<Descriptor> {
    let shared = listening.borrowed()?;
    let own = rustix::net::getsockname(shared)?;
    let socket = open(own.address_family())?;
    // All sockets of the port must allow it, the listening one only for this moment, so that no other process can bind
    // this port.
    let _ = sockopt::set_socket_reuseaddr(shared, true);
    let bound = socket.borrowed().and_then(|socket| {
        let _ = sockopt::set_socket_reuseaddr(socket, true);
        rustix::net::bind(socket, &own)
    });
    let _ = sockopt::set_socket_reuseaddr(shared, false);
    bound?;
    connect(&socket, address)?;
    widen(&socket);
    Ok(socket)
}

/// The address of this machine that a socket uses, if it is an IPv4 address.
pub(super) fn local_v4(socket: &Descriptor) -> Option<Ipv4Addr> {
    let own = rustix::net::getsockname(socket.borrowed().ok()?).ok()?;
    match SocketAddr::try_from(own).ok()? {
        SocketAddr::V4(address) => Some(*address.ip()),
        SocketAddr::V6(_) => None,
    }
}

/// Makes a socket whose datagrams go to a group, through the interface with this address. They do not leave its network
/// (a time to live of 1), and are also delivered to other sockets of this host.
pub(super) fn multicast_sender(interface: Ipv4Addr, group: SocketAddrV4) -> io::Result<Descriptor> {
    let socket = UdpSocket::bind((interface, 0))?;
    socket.set_multicast_ttl_v4(1)?;
    socket.set_multicast_loop_v4(true)?;
    let socket = adopt(socket)?;
    sockopt::set_ip_multicast_if(socket.borrowed()?, &interface)?;
    connect(&socket, &group.into())?;
    Ok(socket)
}

/// Makes a socket that receives only what goes to a group at the interface with this address.
pub(super) fn multicast_receiver(interface: Ipv4Addr, group: SocketAddrV4) -> io::Result<Descriptor> {
    let socket = open(AddressFamily::INET)?;
    let opened = socket.borrowed()?;
    // Several nodes of one host listen to the same group.
    let _ = sockopt::set_socket_reuseaddr(opened, true);
    rustix::net::bind(opened, &group)?;
    sockopt::set_ip_add_membership(opened, group.ip(), &interface)?;
    widen(&socket);
    Ok(socket)
}

fn open(family: AddressFamily) -> io::Result<Descriptor> {
    Descriptor::adopt(|| rustix::net::socket_with(family, SocketType::DGRAM, SOCKET_FLAGS, None))
}

/// Receives a datagram from any sender; `None` if there is nothing. Errors of earlier sends have no meaning here.
pub(super) fn receive_from(socket: &Descriptor, room: &mut [u8]) -> Option<(usize, SocketAddr)> {
    let socket = socket.borrowed().ok()?;
    loop {
        match rustix::net::recvfrom(socket, &mut *room, RecvFlags::DONTWAIT) {
            Ok((count, _, from)) => match from.and_then(|from| SocketAddr::try_from(from).ok()) {
                Some(address) => return Some((count, address)),
                None => continue,
            },
            Err(Errno::INTR | Errno::CONNREFUSED) => {}
            Err(_) => return None,
        }
    }
}

/// Sends a datagram to an address to which this socket is not connected; it may be lost like any other.
pub(super) fn send_to(socket: &Descriptor, bytes: &[u8], address: &SocketAddr) {
    if let Ok(socket) = socket.borrowed() {
        let _ = rustix::net::sendto(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, address);
    }
}

/// The number of bytes that may wait in the buffer of a socket, as [`super::delivery::cost`] counts them. An eighth is
/// reserved.
pub(super) fn room_bytes(socket: &Descriptor) -> u32 {
    let buffer = socket.borrowed().and_then(sockopt::socket_recv_buffer_size).unwrap_or(0) as u32;
    (buffer - buffer / 8).clamp(16 << 10, 32 << 20)
}

/// The longest datagram that is sent over a connected socket.
///
/// The kernel knows the path's packet size as far as routers have reported it (IP_MTU). Loopback takes 64 KiB, so a
/// page fits into one datagram; for any other path at most 1,500 bytes are assumed. Packets carry the don't-fragment
/// mark, unless they are longer than what the kernel knows: then the kernel fragments them (IP_PMTUDISC_WANT), so that
/// fragments made for a larger path still arrive.
pub(super) fn datagram_bytes(socket: &Descriptor, address: &SocketAddr) -> usize {
    let (known, headers) = match address {
        SocketAddr::V4(_) => (socket.borrowed().and_then(sockopt::ip_mtu), HEADERS_V4_BYTES),
        SocketAddr::V6(_) => (socket.borrowed().and_then(sockopt::ipv6_mtu), HEADERS_V6_BYTES),
    };
    let known = known.map_or(NETWORK_PACKET_BYTES, |bytes| bytes as usize);
    if address.ip().is_loopback() {
        let share = room_bytes(socket) as usize / 8;
        return (known.saturating_sub(headers)).min(share.clamp(LOOPBACK_BYTES_MIN, LOOPBACK_BYTES_MAX)).max(512);
    }
    known.min(NETWORK_PACKET_BYTES).saturating_sub(headers).max(512)
}

/// Allows routers to fragment packets from now on: the path may take less than it seems to.
pub(super) fn let_routers_cut(socket: &Descriptor, address: &SocketAddr) {
    let Ok(socket) = socket.borrowed() else { return };
    // If this is refused, the kernel keeps its setting.
    let _ = match address {
        SocketAddr::V4(_) => sockopt::set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::DONT),
        SocketAddr::V6(_) => sockopt::set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::DONT),
    };
}

fn connect(socket: &Descriptor, address: &SocketAddr) -> io::Result<()> {
    let socket = socket.borrowed()?;
    rustix::net::connect(socket, address)?;
    // If this is refused, the kernel keeps its setting.
    let _ = match address {
        SocketAddr::V4(_) => sockopt::set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::WANT),
        SocketAddr::V6(_) => sockopt::set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::WANT),
    };
    Ok(())
}
