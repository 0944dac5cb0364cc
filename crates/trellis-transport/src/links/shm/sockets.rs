//! The sockets through which two processes of one host hand each other memory, and their messages.
//!
//! Promises: both ends of a connection belong to the same user, or it is closed. A message is taken whole or not at
//! all. No call waits.
//!
//! It must never make any other admission decision, or keep state.
//!
//! The sockets are abstract (they have a name and no file), so a killed process leaves nothing behind. They are
//! visible within one network namespace only, so nodes in different containers stay on tcp.

#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use crate::links::descriptors::Descriptor;
use crate::links::tcp::sockets::SOCKET_FLAGS;

/// The longest message.
pub(super) const MESSAGE_BYTES_MAX: usize = 320;
/// The maximum number of descriptors with one message.
const DESCRIPTORS_MAX: usize = 3;
/// The random part of a name.
pub(super) const NAME_BYTES: usize = 16;

/// A message and its descriptors.
pub(super) struct Parcel {
    pub(super) text: Vec<u8>,
    pub(super) files: Vec<Descriptor>,
}

/// The result of a receive call.
pub(super) enum Arrived {
    Parcel(Parcel),
    Nothing,
    /// The other end hung up, or sent something invalid.
    Over,
}

/// Listens under a name.
pub(super) fn listen(name: &[u8; NAME_BYTES]) -> io::Result<Descriptor> {
    let socket = make()?;
    rustix::net::bind(socket.borrowed()?, &address(name)?)?;
    rustix::net::listen(socket.borrowed()?, libc::SOMAXCONN)?;
    Ok(socket)
}

/// Connects to a name; succeeds or fails at once.
pub(super) fn connect(name: &[u8; NAME_BYTES]) -> io::Result<Descriptor> {
    let socket = make()?;
    rustix::net::connect(socket.borrowed()?, &address(name)?)?;
    check_user(socket.raw())?;
    Ok(socket)
}

/// Takes a waiting connection of this user, if there is one. Connections of other users are closed, and counted in
/// `refused`.
pub(super) fn accept(listener: &Descriptor, refused: &AtomicU64) -> io::Result<Option<Descriptor>> {
    loop {
        match Descriptor::adopt(|| rustix::net::accept_with(listener.borrowed()?, SOCKET_FLAGS)) {
            Ok(socket) if check_user(socket.raw()).is_ok() => return Ok(Some(socket)),
            Ok(_) => refused.fetch_add(1, Ordering::Relaxed),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
    }
}

/// Sends a message with descriptors; an empty socket takes it whole.
pub(super) fn send(socket: RawFd, text: &[u8], files: &[RawFd]) -> io::Result<()> {
    assert!(text.len() <= MESSAGE_BYTES_MAX && files.len() <= DESCRIPTORS_MAX);
    let mut part = libc::iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.len() };
    let mut room = ControlRoom([0; CONTROL_WORDS]);
    // SAFETY: a message header of zeros is a valid empty one. The control room is aligned and large enough for
    // DESCRIPTORS_MAX numbers, so CMSG_FIRSTHDR and CMSG_DATA stay inside.
    let sent = unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !files.is_empty() {
            let bytes = mem::size_of_val(files) as libc::c_uint;
            message.msg_control = room.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
            let first = libc::CMSG_FIRSTHDR(&raw const message);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(bytes) as _;
            libc::CMSG_DATA(first).copy_from_nonoverlapping(files.as_ptr().cast(), bytes as usize);
        }
        libc::sendmsg(socket, &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    match usize::try_from(sent) {
        Ok(count) if count == text.len() => Ok(()),
        Ok(_) => Err(io::Error::from(io::ErrorKind::WriteZero)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Receives a message, if there is one. Its descriptors are closed in forked children like all others of this crate.
pub(super) fn receive(socket: RawFd) -> Arrived {
    let mut text = vec![0_u8; MESSAGE_BYTES_MAX];
    let mut part = libc::iovec { iov_base: text.as_mut_ptr().cast(), iov_len: text.len() };
    let mut room = ControlRoom([0; CONTROL_WORDS]);
    // SAFETY: a message header of zeros is a valid empty one; text and control room are writable for the given
    // lengths.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = room.0.as_mut_ptr().cast();
    message.msg_controllen = mem::size_of_val(&room.0) as _;
    // SAFETY: as above.
    let count = unsafe { libc::recvmsg(socket, &raw mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) };
    let Ok(count) = usize::try_from(count) else {
        let kind = io::Error::last_os_error().kind();
        let waits = matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
        return if waits { Arrived::Nothing } else { Arrived::Over };
    };
    let mut files = Vec::new();
    let mut is_whole = message.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) == 0;
    for file in files_of(&message) {
        match Descriptor::adopt(|| Ok(file)) {
            Ok(file) => files.push(file),
            Err(_) => is_whole = false,
        }
    }
    if count == 0 || !is_whole {
        return Arrived::Over;
    }
    text.truncate(count);
    Arrived::Parcel(Parcel { text, files })
}

/// The descriptors of a message.
fn files_of(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut files = Vec::new();
    // SAFETY: the kernel wrote whole control messages, each with its length, into the room that the header names; the
    // numbers after a header of kind SCM_RIGHTS fill that length. They are open, and nothing else has them.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(message);
        while !control.is_null() {
            if (*control).cmsg_level == libc::SOL_SOCKET && (*control).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*control).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(control).cast::<RawFd>();
                let numbers = (0..bytes / size_of::<RawFd>()).map(|index| data.add(index).read_unaligned());
                files.extend(numbers.map(|number| OwnedFd::from_raw_fd(number)));
            }
            control = libc::CMSG_NXTHDR(message, control);
        }
    }
    files
}

const CONTROL_WORDS: usize = 8;

/// Room for the descriptors of one message, aligned as the kernel requires.
struct ControlRoom([u64; CONTROL_WORDS]);

// CMSG_SPACE of three numbers: a header of 16 bytes, and 12 bytes rounded up to a word.
const _: () = assert!(CONTROL_WORDS * 8 >= 16 + DESCRIPTORS_MAX * size_of::<RawFd>() + 4);

fn make() -> io::Result<Descriptor> {
    Descriptor::adopt(|| rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SOCKET_FLAGS, None))
}

fn address(name: &[u8; NAME_BYTES]) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(&[b"trellis-", name.as_slice()].concat())
}

/// Checks that the other end runs as this user: another user's process must not get this user's memory.
fn check_user(socket: RawFd) -> io::Result<()> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let name = libc::SO_PEERCRED;
    // `rustix` takes no process number 0, which is that of a process in another container.
    // SAFETY: `peer` has room for `length` bytes.
    let asked = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, name, (&raw mut peer).cast(), &raw mut length) };
    match asked {
        0 if peer.uid == rustix::process::geteuid().as_raw() => Ok(()),
        0 => Err(io::Error::other("it runs as another user")),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::descriptors::Event;

    #[test]
    fn a_message_brings_its_descriptors() {
        let name = crate::random().unwrap();
        let listener = listen(&name).unwrap();
        let refused = AtomicU64::new(0);
        assert!(accept(&listener, &refused).unwrap().is_none());
        let one = connect(&name).unwrap();
        let other = accept(&listener, &refused).unwrap().unwrap();
        assert!(matches!(receive(other.raw()), Arrived::Nothing));
        let event = Event::new().unwrap();
        send(one.raw(), b"here", &[event.raw(), event.raw()]).unwrap();
        let Arrived::Parcel(parcel) = receive(other.raw()) else { panic!("a message was sent") };
        assert_eq!((parcel.text.as_slice(), parcel.files.len()), (b"here".as_slice(), 2));
        send(other.raw(), b"thanks", &[]).unwrap();
        let Arrived::Parcel(parcel) = receive(one.raw()) else { panic!("a message was sent") };
        assert_eq!((parcel.text.as_slice(), parcel.files.len()), (b"thanks".as_slice(), 0));
        drop(one);
        assert!(matches!(receive(other.raw()), Arrived::Over));
    }

    #[test]
    fn nobody_is_found_under_a_name_that_nobody_has() {
        assert!(connect(&crate::random().unwrap()).is_err());
    }
}
