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

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};
use rustix::net::sockopt;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType};

use crate::links::descriptors::Descriptor;

/// The flags of every socket.
pub(in crate::links) const SOCKET_FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

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
pub(in crate::links) fn receive(socket: &Descriptor, room: &mut [u8]) -> Received {
    loop {
        let result = socket.borrowed().and_then(|socket| rustix::net::recv(socket, &mut *room, RecvFlags::DONTWAIT));
        if let Some(received) = classify_received(result.map(|(count, _)| count)) {
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
        let result = usize::try_from(count).map_err(|_| last_error());
        if let Some(received) = classify_received(result) {
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
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = Descriptor::adopt(|| rustix::net::socket_with(family, SocketType::STREAM, SOCKET_FLAGS, None))?;
    // This comes before connecting, because the window scale is negotiated in the first packet.
    tune(&socket);
    match rustix::net::connect(socket.borrowed()?, address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// The result of a connection attempt, after the socket became writable.
pub(in crate::links) fn dialled(socket: &Descriptor) -> io::Result<()> {
    let socket = socket.borrowed()?;
    sockopt::socket_error(socket)??;
    // A dialler that tries a port repeatedly may be given that port as its own. TCP then connects the socket to
    // itself, which would keep the peer from ever binding the port.
    if Some(rustix::net::getsockname(socket)?) == rustix::net::getpeername(socket)? {
        return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
    }
    Ok(())
}

/// Accepts a waiting connection, if there is one.
pub(in crate::links) fn accept(listener: &Descriptor) -> io::Result<Option<Descriptor>> {
    match Descriptor::adopt(|| rustix::net::accept_with(listener.borrowed()?, SOCKET_FLAGS)) {
        Ok(socket) => {
            tune(&socket);
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
pub(in crate::links) fn tune(socket: &Descriptor) {
    if let Ok(socket) = socket.borrowed() {
        let _ = sockopt::set_tcp_nodelay(socket, true);
    }
    widen(socket);
}

/// Enlarges buffers if this machine allows it; see [`tune`].
pub(in crate::links) fn widen(socket: &Descriptor) {
    let Ok(socket) = socket.borrowed() else { return };
    let bytes = SOCKET_BUFFER_BYTES;
    if sockopt::set_socket_send_buffer_size_force(socket, bytes).is_err() && send_limit_bytes() >= bytes {
        let _ = sockopt::set_socket_send_buffer_size(socket, bytes);
    }
    if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() && receive_limit_bytes() >= bytes {
        let _ = sockopt::set_socket_recv_buffer_size(socket, bytes);
    }
}

/// Makes a socket inherited from elsewhere non-blocking and closed on `exec`.
pub(in crate::links) fn make_own(socket: &Descriptor) -> io::Result<()> {
    let socket = socket.borrowed()?;
    rustix::io::fcntl_setfd(socket, FdFlags::CLOEXEC)?;
    Ok(rustix::fs::fcntl_setfl(socket, OFlags::NONBLOCK)?)
}

/// Ends one or both directions.
pub(in crate::links) fn shut_down(socket: &Descriptor, how: Shutdown) {
    if let Ok(socket) = socket.borrowed() {
        // A connection that is over already is the wanted result.
        let _ = rustix::net::shutdown(socket, how);
    }
}

/// Whether the other end is gone and nothing is left to receive; receives nothing.
pub(in crate::links) fn has_ended(socket: &Descriptor) -> bool {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let result = socket.borrowed().and_then(|socket| rustix::net::recv(socket, &mut [0_u8], flags));
    matches!(classify_received(result.map(|(count, _)| count)), Some(Received::End | Received::Failed(_)))
}

/// Bytes that the peer's machine has not acknowledged yet.
pub(in crate::links) fn unconfirmed_bytes(socket: &Descriptor) -> usize {
    let mut count = 0_i32;
    // SAFETY: TIOCOUTQ writes one int.
    let result = unsafe { libc::ioctl(socket.raw(), libc::TIOCOUTQ, &raw mut count) };
    if result == 0 { usize::try_from(count).unwrap_or(0) } else { 0 }
}

/// Waits until one of the sockets has one of its events, or the time has passed; `-1` means forever. Returns which of
/// the sockets have events. A failure (a signal) counts as nothing ready, because callers loop.
pub(in crate::links) fn wait(sockets: &[(&Descriptor, PollFlags)], timeout_ms: i32) -> Vec<bool> {
    try_wait(sockets, timeout_ms).unwrap_or_else(|_| vec![false; sockets.len()])
}

fn try_wait(sockets: &[(&Descriptor, PollFlags)], timeout_ms: i32) -> rustix::io::Result<Vec<bool>> {
    let mut entries = Vec::with_capacity(sockets.len());
    for &(socket, events) in sockets {
        entries.push(PollFd::from_borrowed_fd(socket.borrowed()?, events));
    }
    let timeout = Timespec { tv_sec: i64::from(timeout_ms / 1000), tv_nsec: i64::from(timeout_ms % 1000) * 1_000_000 };
    rustix::event::poll(&mut entries, (timeout_ms >= 0).then_some(&timeout))?;
    Ok(entries.iter().map(|entry| !entry.revents().is_empty()).collect())
}

/// Whether the socket is listening.
pub(in crate::links) fn is_listening(socket: &Descriptor) -> bool {
    socket.borrowed().and_then(sockopt::socket_acceptconn).unwrap_or(false)
}

fn classify_received(result: rustix::io::Result<usize>) -> Option<Received> {
    match result {
        Ok(0) => Some(Received::End),
        Ok(count) => Some(Received::Bytes(count)),
        Err(Errno::INTR) => None,
        Err(Errno::AGAIN) => Some(Received::Nothing),
        Err(error) => Some(Received::Failed(error.into())),
    }
}

/// The reason why the last call of `libc` failed.
fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).expect("the system's error has a number")
}

/// Sets how many bytes make the socket readable (SO_RCVLOWAT; the kernel takes at most half of its buffer). Returns
/// whether that was accepted.
pub(in crate::links) fn set_low_water(socket: &Descriptor, bytes: usize) -> bool {
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes as i32).is_ok()
}

/// Sets an option that `rustix` does not have.
pub(in crate::links) fn set_option(socket: &Descriptor, level: i32, name: i32, value: i32) -> io::Result<()> {
    let length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` is an int and outlives the call.
    let result = unsafe { libc::setsockopt(socket.raw(), level, name, (&raw const value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
