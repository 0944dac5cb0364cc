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
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{IntoRawFd, RawFd};
use std::sync::Mutex;

use super::delivery::Nanoseconds;
use crate::links::descriptors::Descriptor;
use crate::links::roster::lock;
use crate::links::tcp::sockets::{self, IoVec, Received, Sent, option, set_option, socket_address, widen};
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
            None => unsafe { send_once(self.socket.raw(), parts) },
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
        sockets::receive(self.socket.raw(), room)
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
        unsafe { send_once(self.socket.raw(), &[IoVec::of(bytes)]) }
    }
}

/// # Safety
///
/// As [`Wire::send`].
#[inline]
unsafe fn send_once(socket: RawFd, parts: &[IoVec]) -> Outcome {
    // SAFETY: the caller's promise.
    match unsafe { sockets::send_parts(socket, parts) } {
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
    let socket = Descriptor::adopt(|| socket.into_raw_fd())?;
    sockets::make_own(socket.raw())?;
    widen(socket.raw());
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
    let (own, length) = own_address(listening.raw())?;
    let family = i32::from(own.ss_family);
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed.
    let socket = Descriptor::adopt(|| unsafe { libc::socket(family, kind, 0) })?;
    // All sockets of the port must allow it, the listening one only for this moment, so that no other process can bind
    // this port.
    set_option(listening.raw(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    set_option(socket.raw(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    // SAFETY: `own` holds an address of `length` bytes.
    let bound = unsafe { libc::bind(socket.raw(), (&raw const own).cast(), length) };
    let error = io::Error::last_os_error();
    set_option(listening.raw(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 0);
    if bound != 0 {
        return Err(error);
    }
    connect(&socket, address)?;
    widen(socket.raw());
    Ok(socket)
}

/// The address of this machine that a socket uses, if it is an IPv4 address.
pub(super) fn local_v4(socket: RawFd) -> Option<Ipv4Addr> {
    let (own, _) = own_address(socket).ok()?;
    match read_address(&own)? {
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
    // An in_addr is four bytes in network order.
    let out_of = i32::from_ne_bytes(interface.octets());
    if !set_option(socket.raw(), libc::IPPROTO_IP, libc::IP_MULTICAST_IF, out_of) {
        return Err(io::Error::last_os_error());
    }
    connect(&socket, &group.into())?;
    Ok(socket)
}

/// Makes a socket that receives only what goes to a group at the interface with this address.
pub(super) fn multicast_receiver(interface: Ipv4Addr, group: SocketAddrV4) -> io::Result<Descriptor> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed.
    let socket = Descriptor::adopt(|| unsafe { libc::socket(libc::AF_INET, kind, 0) })?;
    // Several nodes of one host listen to the same group.
    set_option(socket.raw(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    let (storage, length) = socket_address(&group.into());
    // SAFETY: `storage` holds an address of `length` bytes.
    if unsafe { libc::bind(socket.raw(), (&raw const storage).cast(), length) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let address = |ip: &Ipv4Addr| libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) };
    let membership = libc::ip_mreq { imr_multiaddr: address(group.ip()), imr_interface: address(&interface) };
    let length = size_of::<libc::ip_mreq>() as libc::socklen_t;
    let place = (&raw const membership).cast();
    // SAFETY: `membership` is readable for `length` bytes.
    let joined = unsafe { libc::setsockopt(socket.raw(), libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, place, length) };
    if joined != 0 {
        return Err(io::Error::last_os_error());
    }
    widen(socket.raw());
    Ok(socket)
}

/// Receives a datagram from any sender; `None` if there is nothing. Errors of earlier sends have no meaning here.
pub(super) fn receive_from(socket: RawFd, room: &mut [u8]) -> Option<(usize, SocketAddr)> {
    loop {
        // SAFETY: a storage of zeros is a valid empty one.
        let mut from: libc::sockaddr_storage = unsafe { mem::zeroed() };
        let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        // SAFETY: `room` and `from` are writable for the lengths given.
        let count = unsafe {
            let place = (&raw mut from).cast();
            libc::recvfrom(socket, room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT, place, &raw mut length)
        };
        match usize::try_from(count) {
            Ok(count) => match read_address(&from) {
                Some(address) => return Some((count, address)),
                None => continue,
            },
            Err(_) => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR | libc::ECONNREFUSED) => {}
                _ => return None,
            },
        }
    }
}

/// Sends a datagram to an address to which this socket is not connected; it may be lost like any other.
pub(super) fn send_to(socket: RawFd, bytes: &[u8], address: &SocketAddr) {
    let (storage, length) = socket_address(address);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `bytes` is readable and `storage` holds an address of `length` bytes.
    unsafe { libc::sendto(socket, bytes.as_ptr().cast(), bytes.len(), flags, (&raw const storage).cast(), length) };
}

/// The number of bytes that may wait in the buffer of a socket, as [`super::delivery::cost`] counts them. An eighth is
/// reserved.
pub(super) fn room_bytes(socket: RawFd) -> u32 {
    let buffer = option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0).unsigned_abs();
    (buffer - buffer / 8).clamp(16 << 10, 32 << 20)
}

/// The longest datagram that is sent over a connected socket.
///
/// The kernel knows the path's packet size as far as routers have reported it (IP_MTU). Loopback takes 64 KiB, so a
/// page fits into one datagram; for any other path at most 1,500 bytes are assumed. Packets carry the don't-fragment
/// mark, unless they are longer than what the kernel knows: then the kernel fragments them (IP_PMTUDISC_WANT), so that
/// fragments made for a larger path still arrive.
pub(super) fn datagram_bytes(socket: RawFd, address: &SocketAddr) -> usize {
    let (level, name, headers) = match address {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU, HEADERS_V4_BYTES),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU, HEADERS_V6_BYTES),
    };
    let known = option(socket, level, name).map_or(NETWORK_PACKET_BYTES, |value| value.unsigned_abs() as usize);
    if address.ip().is_loopback() {
        let share = room_bytes(socket) as usize / 8;
        return (known.saturating_sub(headers)).min(share.clamp(LOOPBACK_BYTES_MIN, LOOPBACK_BYTES_MAX)).max(512);
    }
    known.min(NETWORK_PACKET_BYTES).saturating_sub(headers).max(512)
}

/// Allows routers to fragment packets from now on: the path may take less than it seems to.
pub(super) fn let_routers_cut(socket: RawFd, address: &SocketAddr) {
    match address {
        SocketAddr::V4(_) => {
            set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT);
        }
        SocketAddr::V6(_) => {
            set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT);
        }
    }
}

fn connect(socket: &Descriptor, address: &SocketAddr) -> io::Result<()> {
    let (storage, length) = socket_address(address);
    // SAFETY: `storage` holds an address of `length` bytes.
    let result = unsafe { libc::connect(socket.raw(), (&raw const storage).cast(), length) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    match address {
        SocketAddr::V4(_) => set_option(socket.raw(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_WANT),
        SocketAddr::V6(_) => {
            set_option(socket.raw(), libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_WANT)
        }
    };
    Ok(())
}

fn own_address(socket: RawFd) -> io::Result<(libc::sockaddr_storage, libc::socklen_t)> {
    // SAFETY: a storage of zeros is a valid empty one.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: `storage` has room for every kind of address.
    let result = unsafe { libc::getsockname(socket, (&raw mut storage).cast(), &raw mut length) };
    if result == 0 { Ok((storage, length)) } else { Err(io::Error::last_os_error()) }
}

fn read_address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let place = &raw const *storage;
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which kind of address this is, and a storage is aligned for all.
            let v4 = unsafe { &*place.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some((ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says which kind of address this is, and a storage is aligned for all.
            let v6 = unsafe { &*place.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(std::net::SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}
