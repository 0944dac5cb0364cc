//! The system calls of the tcp link; some serve the udp link as well.
//!
//! Promises: every socket is non-blocking and closed on `exec`, and every send carries `MSG_NOSIGNAL`, so that a lost
//! peer causes an error and never a SIGPIPE.
//!
//! It must never keep state, or wait (except in [`wait`], which has a time-out).

#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::OnceLock;

use crate::links::descriptors::Descriptor;

/// The buffer size that is requested for each direction of a connection: a burst of pages must not stop its sender.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// The result of a receive call.
pub(in crate::links) enum Received {
    Bytes(usize),
    Nothing,
    End,
    Failed(io::Error),
}

/// The result of a send call; zero bytes if the socket is full.
pub(in crate::links) enum Sent {
    Bytes(usize),
    Failed(io::Error),
}

/// A part of memory to send from or receive into.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(in crate::links) struct IoVec(libc::iovec);

impl IoVec {
    pub(in crate::links) const EMPTY: IoVec = IoVec(libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 });

    pub(in crate::links) fn read(pointer: *const u8, bytes: usize) -> IoVec {
        IoVec(libc::iovec { iov_base: pointer.cast_mut().cast(), iov_len: bytes })
    }

    pub(in crate::links) fn of(bytes: &[u8]) -> IoVec {
        IoVec::read(bytes.as_ptr(), bytes.len())
    }

    pub(in crate::links) fn write(pointer: *mut u8, bytes: usize) -> IoVec {
        IoVec(libc::iovec { iov_base: pointer.cast(), iov_len: bytes })
    }

    pub(in crate::links) fn bytes(&self) -> usize {
        self.0.iov_len
    }

    /// Copies the bytes to `place`.
    ///
    /// # Safety
    ///
    /// The part must be readable and `place` writable for its whole length.
    pub(in crate::links) unsafe fn copy_to(&self, place: *mut u8) {
        if self.0.iov_len > 0 {
            // SAFETY: the caller's promise.
            unsafe { place.copy_from_nonoverlapping(self.0.iov_base.cast(), self.0.iov_len) };
        }
    }

    /// # Safety
    ///
    /// The part must be readable for its whole length, and stay so and unchanged.
    pub(in crate::links) unsafe fn as_slice(&self) -> &[u8] {
        if self.0.iov_len == 0 {
            return &[];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.0.iov_base.cast(), self.0.iov_len) }
    }
}

/// Receives into `room`.
#[inline]
pub(in crate::links) fn receive(socket: RawFd, room: &mut [u8]) -> Received {
    loop {
        // SAFETY: `room` is writable for its whole length.
        let count = unsafe { libc::recv(socket, room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT) };
        if let Some(received) = classify_received(count) {
            return received;
        }
    }
}

/// Receives into several parts, one after the other.
///
/// # Safety
///
/// Every part must be writable for its whole length.
pub(in crate::links) unsafe fn receive_parts(socket: RawFd, parts: &mut [IoVec]) -> Received {
    // SAFETY: a message header of zeros is a valid empty one.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr().cast();
    message.msg_iovlen = parts.len();
    loop {
        // SAFETY: the caller's promise; `Part` is laid out as iovec.
        let count = unsafe { libc::recvmsg(socket, &raw mut message, libc::MSG_DONTWAIT) };
        if let Some(received) = classify_received(count) {
            return received;
        }
    }
}

/// Sends several parts as one run of bytes.
///
/// # Safety
///
/// Every part must be readable for its whole length.
#[inline]
pub(in crate::links) unsafe fn send_parts(socket: RawFd, parts: &[IoVec]) -> Sent {
    // SAFETY: a message header of zeros is a valid empty one.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = parts.as_ptr().cast_mut().cast();
    message.msg_iovlen = parts.len();
    loop {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the caller's promise; the kernel only reads the parts.
        let count = unsafe { libc::sendmsg(socket, &raw const message, flags) };
        if count >= 0 {
            return Sent::Bytes(count.unsigned_abs());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return Sent::Bytes(0),
            _ => return Sent::Failed(error),
        }
    }
}

/// Sends a short message that an empty socket takes whole; anything less is a failure.
pub(in crate::links) fn send_whole(socket: RawFd, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: a slice is readable.
    match unsafe { send_parts(socket, &[IoVec::of(bytes)]) } {
        Sent::Bytes(count) if count == bytes.len() => Ok(()),
        Sent::Bytes(_) => Err(io::Error::from(io::ErrorKind::WriteZero)),
        Sent::Failed(error) => Err(error),
    }
}

/// Begins to connect; the socket is writable when the result is known.
pub(in crate::links) fn dial(address: &SocketAddr) -> io::Result<Descriptor> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed.
    let socket = Descriptor::adopt(|| unsafe { libc::socket(family, kind, 0) })?;
    // This comes before connecting, because the window scale is negotiated in the first packet.
    tune(socket.raw());
    let (storage, length) = socket_address(address);
    // SAFETY: `storage` holds an address of `length` bytes.
    let result = unsafe { libc::connect(socket.raw(), (&raw const storage).cast(), length) };
    if result == 0 {
        return Ok(socket);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EINPROGRESS | libc::EINTR) => Ok(socket),
        _ => Err(error),
    }
}

/// The result of a connection attempt, after the socket became writable.
pub(in crate::links) fn dialled(socket: RawFd) -> io::Result<()> {
    let code = option(socket, libc::SOL_SOCKET, libc::SO_ERROR)?;
    if code != 0 {
        return Err(io::Error::from_raw_os_error(code));
    }
    // A dialler that tries a port repeatedly may be given that port as its own. TCP then connects the socket to
    // itself, which would keep the peer from ever binding the port.
    if name(socket, libc::getsockname)? == name(socket, libc::getpeername)? {
        return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
    }
    Ok(())
}

/// Accepts a waiting connection, if there is one.
pub(in crate::links) fn accept(listener: RawFd) -> io::Result<Option<Descriptor>> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: null addresses mean that the peer's address is not requested.
    let accepted =
        Descriptor::adopt(|| unsafe { libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), flags) });
    match accepted {
        Ok(socket) => {
            tune(socket.raw());
            Ok(Some(socket))
        }
        Err(error) => match error.raw_os_error() {
            // There is no connection, or it was closed before it was accepted.
            Some(libc::EAGAIN | libc::ECONNABORTED | libc::EINTR) => Ok(None),
            _ => Err(error),
        },
    }
}

/// Disables delays of small frames, and enlarges buffers if this machine allows it.
///
/// Failures are ignored: the link works without, only slower. A buffer that the machine would reduce is not requested,
/// because the kernel's own automatic limit is better then.
pub(in crate::links) fn tune(socket: RawFd) {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    widen(socket);
}

/// Enlarges buffers if this machine allows it; see [`tune`].
pub(in crate::links) fn widen(socket: RawFd) {
    let bytes = SOCKET_BUFFER_BYTES as i32;
    for (name, forced, limit) in [
        (libc::SO_SNDBUF, libc::SO_SNDBUFFORCE, send_limit_bytes()),
        (libc::SO_RCVBUF, libc::SO_RCVBUFFORCE, receive_limit_bytes()),
    ] {
        if !set_option(socket, libc::SOL_SOCKET, forced, bytes) && limit >= SOCKET_BUFFER_BYTES {
            set_option(socket, libc::SOL_SOCKET, name, bytes);
        }
    }
}

/// Makes a socket inherited from elsewhere non-blocking and closed on `exec`.
pub(in crate::links) fn make_own(socket: RawFd) -> io::Result<()> {
    // SAFETY: no pointers are passed.
    let done = unsafe {
        libc::fcntl(socket, libc::F_SETFD, libc::FD_CLOEXEC) >= 0
            && libc::fcntl(socket, libc::F_SETFL, libc::O_NONBLOCK) >= 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Ends one or both directions.
pub(in crate::links) fn shut_down(socket: RawFd, how: i32) {
    // SAFETY: no pointers are passed. A connection that is over already is the wanted result.
    unsafe { libc::shutdown(socket, how) };
}

/// Whether the other end is gone and nothing is left to receive; receives nothing.
pub(in crate::links) fn has_ended(socket: RawFd) -> bool {
    let mut byte = 0_u8;
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    // SAFETY: `byte` is one writable byte.
    let count = unsafe { libc::recv(socket, (&raw mut byte).cast(), 1, flags) };
    matches!(classify_received(count), Some(Received::End | Received::Failed(_)))
}

/// Bytes that the peer's machine has not acknowledged yet.
pub(in crate::links) fn unconfirmed_bytes(socket: RawFd) -> usize {
    let mut count = 0_i32;
    // SAFETY: TIOCOUTQ writes one int.
    let result = unsafe { libc::ioctl(socket, libc::TIOCOUTQ, &raw mut count) };
    if result == 0 { usize::try_from(count).unwrap_or(0) } else { 0 }
}

/// Waits until one of the sockets has one of its events, or the time has passed; `-1` means forever.
pub(in crate::links) fn wait(sockets: &mut [libc::pollfd], timeout_ms: i32) {
    // SAFETY: `sockets` is writable for its whole length. A failure (a signal) counts as nothing ready: callers loop.
    let count = unsafe { libc::poll(sockets.as_mut_ptr(), sockets.len() as libc::nfds_t, timeout_ms) };
    if count < 0 {
        for socket in sockets {
            socket.revents = 0;
        }
    }
}

/// Whether the socket is listening.
pub(in crate::links) fn is_listening(socket: RawFd) -> bool {
    option(socket, libc::SOL_SOCKET, libc::SO_ACCEPTCONN).is_ok_and(|value| value != 0)
}

fn classify_received(count: isize) -> Option<Received> {
    match count {
        0 => return Some(Received::End),
        1.. => return Some(Received::Bytes(count.unsigned_abs())),
        _ => {}
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EINTR) => None,
        Some(libc::EAGAIN) => Some(Received::Nothing),
        _ => Some(Received::Failed(error)),
    }
}

/// Sets how many bytes make the socket readable (SO_RCVLOWAT; the kernel takes at most half of its buffer). Returns
/// whether that was accepted.
pub(in crate::links) fn set_low_water(socket: RawFd, bytes: usize) -> bool {
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes as i32)
}

pub(in crate::links) fn set_option(socket: RawFd, level: i32, name: i32, value: i32) -> bool {
    let length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` is an int and outlives the call.
    unsafe { libc::setsockopt(socket, level, name, (&raw const value).cast(), length) == 0 }
}

pub(in crate::links) fn option(socket: RawFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0_i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` has room for `length` bytes.
    let result = unsafe { libc::getsockopt(socket, level, name, (&raw mut value).cast(), &raw mut length) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

type NameCall = unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> i32;

/// The bytes of one end's address.
fn name(socket: RawFd, call: NameCall) -> io::Result<Vec<u8>> {
    let mut bytes = [0_u8; size_of::<libc::sockaddr_storage>()];
    let mut length = bytes.len() as libc::socklen_t;
    // SAFETY: `bytes` has room for the longest address.
    let result = unsafe { call(socket, bytes.as_mut_ptr().cast(), &raw mut length) };
    if result == 0 { Ok(bytes[..(length as usize).min(bytes.len())].to_vec()) } else { Err(io::Error::last_os_error()) }
}

pub(in crate::links) fn socket_address(address: &SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: a storage of zeros is a valid empty one.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let place = &raw mut storage;
    match address {
        SocketAddr::V4(address) => {
            // SAFETY: the storage is large and aligned enough for every kind of address.
            let v4 = unsafe { &mut *place.cast::<libc::sockaddr_in>() };
            v4.sin_family = libc::AF_INET as libc::sa_family_t;
            v4.sin_port = address.port().to_be();
            v4.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
            (storage, size_of::<libc::sockaddr_in>() as libc::socklen_t)
        }
        SocketAddr::V6(address) => {
            // SAFETY: the storage is large and aligned enough for every kind of address.
            let v6 = unsafe { &mut *place.cast::<libc::sockaddr_in6>() };
            v6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            v6.sin6_port = address.port().to_be();
            v6.sin6_addr.s6_addr = address.ip().octets();
            v6.sin6_flowinfo = address.flowinfo();
            v6.sin6_scope_id = address.scope_id();
            (storage, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
        }
    }
}

fn send_limit_bytes() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    *LIMIT.get_or_init(|| limit_bytes("/proc/sys/net/core/wmem_max"))
}

fn receive_limit_bytes() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    *LIMIT.get_or_init(|| limit_bytes("/proc/sys/net/core/rmem_max"))
}

fn limit_bytes(path: &str) -> usize {
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}
