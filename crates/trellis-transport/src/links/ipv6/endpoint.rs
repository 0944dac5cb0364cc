//! A socket for all addresses of a host.
//!
//! Promises: a datagram is sent from the given address (`IPV6_PKTINFO`, allowed by `IPV6_FREEBIND`, which needs no
//! privilege), and a received one reports the address it was sent to. The socket is non-blocking, and closed on `exec`
//! and in a forked child.
//!
//! A datagram without a checksum is accepted (RFC 6936): its content is protected by its tag.

#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::Address;
use crate::links::descriptors::Descriptor;
use crate::links::tcp::sockets::{IoVec, SOCKET_FLAGS, set_option, widen};

/// `UDP_NO_CHECK6_RX` (linux/udp.h), which `libc` does not have.
const UDP_NO_CHECK6_RX: i32 = 102;
/// The maximum number of parts of a datagram: a header, what precedes its bytes, and these.
pub const PARTS_MAX: usize = 3;
/// Room for one control message with an `in6_pktinfo`.
const CONTROL_WORDS: usize = 8;

/// The source and destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// An address of this host.
    pub from: Address,
    /// The receiver's.
    pub to: Address,
    /// The receiver's port.
    pub port: u16,
}

/// A received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The sender's address.
    pub source: Address,
    /// The sender's port.
    pub port: u16,
    /// The address it was sent to, one of ours.
    pub destination: Address,
    /// Its length; it may exceed the room for it.
    pub bytes: usize,
}

impl Arrived {
    /// The source and destination of an answer.
    pub fn back(&self) -> Way {
        Way { from: self.destination, to: self.source, port: self.port }
    }
}

/// The socket.
pub struct Endpoint {
    socket: Descriptor,
}

#[repr(C, align(8))]
struct Control([u64; CONTROL_WORDS]);

impl Endpoint {
    /// Opens `port` at all addresses; 0 means any free port.
    ///
    /// # Errors
    ///
    /// The errors of `socket(2)`, `setsockopt(2)` and `bind(2)`: no IPv6, or the port is in use.
    pub fn open(port: u16) -> io::Result<Endpoint> {
        let open = || rustix::net::socket_with(AddressFamily::INET6, SocketType::DGRAM, SOCKET_FLAGS, None);
        let socket = Descriptor::adopt(open)?;
        sockopt::set_ipv6_v6only(socket.borrowed()?, true)?;
        sockopt::set_ipv6_freebind(socket.borrowed()?, true)?;
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
        set_option(&socket, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)?;
        widen(&socket);
        rustix::net::bind(socket.borrowed()?, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))?;
        Ok(Endpoint { socket })
    }

    /// Sends one datagram that consists of these parts. False if the socket is full.
    ///
    /// # Panics
    ///
    /// With more than [`PARTS_MAX`] parts.
    ///
    /// # Errors
    ///
    /// The errors of `sendmsg(2)`: no route, an address that this host may not send from, or a datagram that is too
    /// long.
    #[inline]
    pub fn send(&self, way: &Way, parts: &[&[u8]]) -> io::Result<bool> {
        assert!(parts.len() <= PARTS_MAX, "a datagram of {} parts, and at most {PARTS_MAX} are sent", parts.len());
        let parts: [IoVec; PARTS_MAX] =
            std::array::from_fn(|place| parts.get(place).map_or(IoVec::EMPTY, |bytes| IoVec::of(bytes)));
        let to = libc::sockaddr_in6 {
            sin6_family: libc::AF_INET6 as libc::sa_family_t,
            sin6_port: way.port.to_be(),
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: way.to },
            sin6_scope_id: 0,
        };
        let mut control = Control([0; CONTROL_WORDS]);
        // SAFETY: a message header of zeros is a valid empty one.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_name = (&raw const to).cast_mut().cast();
        message.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
        message.msg_iov = parts.as_ptr().cast_mut().cast();
        message.msg_iovlen = parts.len();
        message.msg_control = (&raw mut control).cast();
        // SAFETY: these only compute with lengths; the control buffer has room for one message with an `in6_pktinfo`.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(size_of::<libc::in6_pktinfo>() as u32) as usize;
            let first = libc::CMSG_FIRSTHDR(&raw const message);
            (*first).cmsg_level = libc::IPPROTO_IPV6;
            (*first).cmsg_type = libc::IPV6_PKTINFO;
            (*first).cmsg_len = libc::CMSG_LEN(size_of::<libc::in6_pktinfo>() as u32) as usize;
            let from = libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: way.from }, ipi6_ifindex: 0 };
            libc::CMSG_DATA(first).cast::<libc::in6_pktinfo>().write_unaligned(from);
        }
        loop {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: everything that the header points to outlives the call; the kernel only reads it.
            if unsafe { libc::sendmsg(self.socket.raw(), &raw const message, flags) } >= 0 {
                return Ok(true);
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // Another host's ICMP answer to an earlier datagram has no meaning for this one.
                Some(libc::EINTR | libc::ECONNREFUSED) => {}
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return Ok(false),
                _ => return Err(error),
            }
        }
    }

    /// Receives a datagram, if there is one.
    ///
    /// # Errors
    ///
    /// The errors of `recvmsg(2)`; an open socket is not expected to give one.
    #[inline]
    pub fn receive(&self, room: &mut [u8]) -> io::Result<Option<Arrived>> {
        // SAFETY: an address of zeros is a valid empty one.
        let mut from: libc::sockaddr_in6 = unsafe { mem::zeroed() };
        let mut control = Control([0; CONTROL_WORDS]);
        let mut part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        // SAFETY: a message header of zeros is a valid empty one.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        loop {
            message.msg_name = (&raw mut from).cast();
            message.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = size_of::<Control>();
            // SAFETY: everything that the header points to is writable for the lengths given and outlives the call.
            let count =
                unsafe { libc::recvmsg(self.socket.raw(), &raw mut message, libc::MSG_DONTWAIT | libc::MSG_TRUNC) };
            if count < 0 {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EINTR | libc::ECONNREFUSED) => continue,
                    Some(libc::EAGAIN) => return Ok(None),
                    _ => return Err(error),
                }
            }
            // The destination is requested with every datagram; one without it is dropped.
            if let Some(destination) = destination(&message) {
                return Ok(Some(Arrived {
                    source: from.sin6_addr.s6_addr,
                    port: u16::from_be(from.sin6_port),
                    destination,
                    bytes: count.unsigned_abs(),
                }));
            }
        }
    }

    /// Waits until there is a datagram, or the time has passed. Returns early on a signal.
    pub fn wait(&self, at_most: Duration) {
        let time = Timespec {
            tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        // In a forked child only the time passes.
        let mut entry = self.socket.borrowed().ok().map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN));
        // Callers receive next, whatever it returns.
        let _ = rustix::event::poll(entry.as_mut_slice(), Some(&time));
    }
}

/// The address that a datagram was sent to.
fn destination(message: &libc::msghdr) -> Option<Address> {
    // SAFETY: the kernel filled the control buffer and set its length; the macros stay inside.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: not null, so a whole header.
    while let Some(header) = unsafe { next.as_ref() } {
        if header.cmsg_level == libc::IPPROTO_IPV6 && header.cmsg_type == libc::IPV6_PKTINFO {
            // SAFETY: that kind of message has this structure after its header, at any alignment.
            let info = unsafe { libc::CMSG_DATA(next).cast::<libc::in6_pktinfo>().read_unaligned() };
            return Some(info.ipi6_addr.s6_addr);
        }
        // SAFETY: as above.
        next = unsafe { libc::CMSG_NXTHDR(message, next) };
    }
    None
}
