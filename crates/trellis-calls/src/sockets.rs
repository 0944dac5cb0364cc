//! Calls of sockets. A datagram that cannot be handed over is lost, and so is a connection whose address cannot be
//! written. So all of them work on private memory.
//!
//! Promises: a message keeps its borders, its address, its control data and the descriptors in it.

use std::ffi::{c_int, c_uint, c_void};

use libc::{mmsghdr, msghdr, sockaddr, socklen_t, timespec};

use crate::arguments::{Argument, InOut};
use crate::buffer::Buffer;
use crate::shared;
use crate::streams::{self, BYTES_MAX, Pieces};
use trellis_interpose::{errno, set_errno};

/// An address that the kernel writes, with the length that the program gives and gets.
struct Address {
    to: *mut sockaddr,
    room: socklen_t,
    private: Buffer,
    length: InOut<socklen_t>,
    length_private: <InOut<socklen_t> as Argument>::StandIn,
}

impl Address {
    fn of(to: *mut sockaddr, length: InOut<socklen_t>) -> Address {
        // SAFETY: the kernel would read the length, and what is there.
        unsafe {
            let room = if length.0.is_null() { 0 } else { length.0.read() };
            let bytes = if shared::overlaps(to, room as usize) { room as usize } else { 0 };
            // Some options of sockets read the memory that they fill.
            let private = Buffer::copied(to.cast(), bytes);
            Address { to, room, private, length, length_private: length.stand_in() }
        }
    }

    fn is_shared(&self) -> bool {
        shared::overlaps(self.to, self.room as usize)
    }

    fn to(&mut self) -> *mut sockaddr {
        if self.is_shared() { self.private.at() } else { self.to }
    }

    fn length(&mut self) -> *mut socklen_t {
        self.length.given(&mut self.length_private).0
    }

    /// The kernel wrote the address.
    fn finish(mut self) {
        let before = errno();
        // SAFETY: the kernel set the length; it would have written the address, cut to the room, to the program's memory.
        unsafe {
            if self.is_shared() {
                let length = self.length().read().min(self.room);
                self.private.give(self.to.cast(), length as usize);
            }
            self.length.finish(&mut self.length_private);
        }
        set_errno(before);
    }
}

/// `accept`, `getsockname` and `getpeername`: `call` gets the place of the address and of its length.
pub(crate) fn address(
    to: *mut sockaddr,
    length: InOut<socklen_t>,
    call: impl FnOnce(*mut sockaddr, InOut<socklen_t>) -> c_int,
) -> c_int {
    if !shared::is_any() || to.is_null() {
        return call(to, length);
    }
    address_shared(to, length, call)
}

#[cold]
#[inline(never)]
fn address_shared(
    to: *mut sockaddr,
    length: InOut<socklen_t>,
    call: impl FnOnce(*mut sockaddr, InOut<socklen_t>) -> c_int,
) -> c_int {
    let mut address = Address::of(to, length);
    let answer = call(address.to(), InOut(address.length()));
    if answer >= 0 {
        address.finish();
    }
    answer
}

pub(crate) fn received_from(
    to: *mut c_void,
    bytes: usize,
    how: c_int,
    from: *mut sockaddr,
    length: InOut<socklen_t>,
    call: impl FnOnce(*mut c_void, *mut sockaddr, InOut<socklen_t>) -> isize,
) -> isize {
    if !shared::is_any() || from.is_null() {
        return received(to, bytes, how, |to| call(to, from, length));
    }
    received_from_shared(to, bytes, how, from, length, call)
}

#[cold]
#[inline(never)]
fn received_from_shared(
    to: *mut c_void,
    bytes: usize,
    how: c_int,
    from: *mut sockaddr,
    length: InOut<socklen_t>,
    call: impl FnOnce(*mut c_void, *mut sockaddr, InOut<socklen_t>) -> isize,
) -> isize {
    let mut address = Address::of(from, length);
    let (from, length) = (address.to(), InOut(address.length()));
    let answer = received(to, bytes, how, |to| call(to, from, length));
    if answer >= 0 {
        address.finish();
    }
    answer
}

/// With MSG_TRUNC the answer is the length of the datagram, of which no more than `bytes` came, or a stream was only
/// emptied.
pub(crate) fn received(to: *mut c_void, bytes: usize, how: c_int, call: impl FnOnce(*mut c_void) -> isize) -> isize {
    if !shared::overlaps(to, bytes) {
        return call(to);
    }
    received_privately(to, bytes, how, call)
}

#[cold]
#[inline(never)]
fn received_privately(to: *mut c_void, bytes: usize, how: c_int, call: impl FnOnce(*mut c_void) -> isize) -> isize {
    let mut private = Buffer::of(bytes.min(BYTES_MAX));
    if how & libc::MSG_TRUNC != 0 {
        // SAFETY: the kernel would write there.
        private = unsafe { private.with(to) };
    }
    let answer = call(private.at());
    if answer > 0 {
        // SAFETY: the kernel filled so many bytes, and would have written them there.
        unsafe {
            let bytes = private.bytes().min(answer as usize);
            private.give(to, bytes);
        }
    }
    answer
}

/// A call that takes bytes.
pub(crate) fn sent<T, R>(from: *const T, bytes: usize, call: impl FnOnce(*const T) -> R) -> R {
    if !shared::overlaps(from, bytes) {
        return call(from);
    }
    sent_privately(from, bytes, call)
}

#[cold]
#[inline(never)]
fn sent_privately<T, R>(from: *const T, bytes: usize, call: impl FnOnce(*const T) -> R) -> R {
    // SAFETY: the kernel would read these bytes.
    let mut private = unsafe { Buffer::copied(from.cast(), bytes) };
    call(private.at())
}

type SendTo = unsafe extern "C" fn(c_int, *const c_void, usize, c_int, *const sockaddr, socklen_t) -> isize;

pub(crate) fn sendto(
    real: SendTo,
    socket: c_int,
    from: *const c_void,
    bytes: usize,
    how: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> isize {
    let call = |from, bytes, to| {
        // SAFETY: the program's socket, with memory that is the program's or private.
        unsafe { real(socket, from, bytes, how, to, length) }
    };
    if to.is_null() {
        return streams::sent_to(socket, from, bytes, how, |from, bytes| call(from, bytes, to));
    }
    if !shared::overlaps(from, bytes) && !shared::overlaps(to, length as usize) {
        return call(from, bytes, to);
    }
    let private = if how & libc::MSG_ZEROCOPY != 0 { Buffer::mapped(bytes) } else { Buffer::of(bytes) };
    // SAFETY: the kernel would read both.
    let mut private = unsafe { private.with(from) };
    sent(to, length as usize, |to| call(private.at::<c_void>().cast_const(), bytes, to))
}

/// A message with private copies of its shared parts.
struct Message<'program> {
    header: msghdr,
    pieces: Option<Pieces<'program>>,
    data: Buffer,
    piece: libc::iovec,
    name: Option<Buffer>,
    control: Option<Buffer>,
}

/// Whether any part of a message is shared.
///
/// # Safety
/// `header` is one that the kernel accepts.
unsafe fn is_shared(header: *const msghdr) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        shared::overlaps(header, size_of::<msghdr>())
            || shared::overlaps((*header).msg_name, (*header).msg_namelen as usize)
            || shared::overlaps((*header).msg_control, (*header).msg_controllen)
            || Pieces::shared((*header).msg_iov, (*header).msg_iovlen).is_some()
    }
}

impl Message<'_> {
    /// With `sends` the kernel reads the parts, otherwise it fills them. `flags` are those of the call.
    ///
    /// # Safety
    /// `header` is one that the kernel accepts.
    unsafe fn of(header: *const msghdr, sends: bool, flags: c_int) -> Self {
        // SAFETY: the caller's promise.
        let original = unsafe { header.read() };
        // SAFETY: the caller's promise.
        let pieces = unsafe { Pieces::shared(original.msg_iov, original.msg_iovlen) };
        let part = |memory: *mut c_void, bytes: usize| {
            // SAFETY: the kernel would read or write these bytes.
            shared::overlaps(memory, bytes).then(|| unsafe { Buffer::copied(memory, bytes) })
        };
        let name = part(original.msg_name, original.msg_namelen as usize);
        let control = part(original.msg_control, original.msg_controllen);
        let bytes = pieces.map_or(0, Pieces::bytes);
        let mut data = if flags & libc::MSG_ZEROCOPY != 0 { Buffer::mapped(bytes) } else { Buffer::of(bytes) };
        if let (true, Some(pieces)) = (sends || flags & libc::MSG_TRUNC != 0, pieces) {
            // SAFETY: the kernel would read the pieces.
            data = unsafe { pieces.gathered(0, data) };
        }
        let piece = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: bytes };
        Message { header: original, pieces, data, piece, name, control }
    }

    /// The header for the kernel. The message must not move from now on.
    fn header(&mut self) -> *mut msghdr {
        if self.pieces.is_some() {
            self.piece.iov_base = self.data.at();
            self.header.msg_iov = &raw mut self.piece;
            self.header.msg_iovlen = 1;
        }
        if let Some(name) = &mut self.name {
            self.header.msg_name = name.at();
        }
        if let Some(control) = &mut self.control {
            self.header.msg_control = control.at();
        }
        &raw mut self.header
    }

    /// Copies what was received to the program.
    ///
    /// # Safety
    /// The kernel filled the message, and would have written to the parts of `to`.
    unsafe fn finish(&mut self, to: *mut msghdr, received: usize) {
        let before = errno();
        // SAFETY: the caller's promise. The kernel cuts each part to its room, and says more where more was there.
        unsafe {
            if let Some(pieces) = self.pieces {
                pieces.scatter(0, &mut self.data, pieces.bytes().min(received));
            }
            let original = to.read();
            if let Some(name) = &mut self.name {
                name.give(original.msg_name, self.header.msg_namelen.min(original.msg_namelen) as usize);
            }
            if let Some(control) = &mut self.control {
                control.give(original.msg_control, self.header.msg_controllen.min(original.msg_controllen));
            }
            (*to).msg_namelen = self.header.msg_namelen;
            (*to).msg_controllen = self.header.msg_controllen;
            (*to).msg_flags = self.header.msg_flags;
        }
        set_errno(before);
    }
}

type Receive = unsafe extern "C" fn(c_int, *mut msghdr, c_int) -> isize;

pub(crate) fn recvmsg(real: Receive, socket: c_int, to: *mut msghdr, how: c_int) -> isize {
    // SAFETY: the program's message.
    if !shared::is_any() || to.is_null() || unsafe { !is_shared(to) } {
        // SAFETY: as the program calls it.
        return unsafe { real(socket, to, how) };
    }
    recvmsg_shared(real, socket, to, how)
}

#[cold]
#[inline(never)]
fn recvmsg_shared(real: Receive, socket: c_int, to: *mut msghdr, how: c_int) -> isize {
    // SAFETY: the program's message, which the kernel fills where it is.
    unsafe {
        let mut message = Message::of(to, false, how & libc::MSG_TRUNC);
        let answer = real(socket, message.header(), how);
        if answer >= 0 {
            message.finish(to, answer as usize);
        }
        answer
    }
}

type Send = unsafe extern "C" fn(c_int, *const msghdr, c_int) -> isize;

pub(crate) fn sendmsg(real: Send, socket: c_int, from: *const msghdr, how: c_int) -> isize {
    // SAFETY: the program's message.
    if !shared::is_any() || from.is_null() || unsafe { !is_shared(from) } {
        // SAFETY: as the program calls it.
        return unsafe { real(socket, from, how) };
    }
    sendmsg_shared(real, socket, from, how)
}

#[cold]
#[inline(never)]
fn sendmsg_shared(real: Send, socket: c_int, from: *const msghdr, how: c_int) -> isize {
    // SAFETY: the program's message.
    unsafe { real(socket, Message::of(from, true, how).header(), how) }
}

/// The maximum number of messages that the kernel reads.
const MESSAGES_MAX: c_uint = libc::UIO_MAXIOV as c_uint;

/// Whether any part of any message is shared.
fn any_is_shared(list: *mut mmsghdr, count: c_uint) -> bool {
    // SAFETY: the kernel would read so many headers.
    let is_one = |at: usize| unsafe { is_shared(&raw const (*list.add(at)).msg_hdr) };
    shared::is_any() && !list.is_null() && (0..count.min(MESSAGES_MAX) as usize).any(is_one)
}

type ReceiveMany = unsafe extern "C" fn(c_int, *mut mmsghdr, c_uint, c_int, *mut timespec) -> c_int;

pub(crate) fn recvmmsg(
    real: ReceiveMany,
    socket: c_int,
    list: *mut mmsghdr,
    count: c_uint,
    how: c_int,
    limit: *mut timespec,
) -> c_int {
    if !any_is_shared(list, count) && !shared::overlaps(limit, size_of::<timespec>()) {
        // SAFETY: as the program calls it.
        return unsafe { real(socket, list, count, how, limit) };
    }
    recvmmsg_shared(real, socket, list, count, how, limit)
}

#[cold]
#[inline(never)]
fn recvmmsg_shared(
    real: ReceiveMany,
    socket: c_int,
    list: *mut mmsghdr,
    count: c_uint,
    how: c_int,
    limit: *mut timespec,
) -> c_int {
    let limit = InOut(limit);
    // SAFETY: the program's list and limit, which the kernel would write to.
    unsafe {
        let mut limit_private = limit.stand_in();
        let answer = many(list, count, false, how & libc::MSG_TRUNC, |list, count| {
            real(socket, list, count, how, limit.given(&mut limit_private).0)
        });
        if answer >= 0 {
            limit.finish(&mut limit_private);
        }
        answer
    }
}

/// One call with private forms of all messages; `call` gets their list.
///
/// # Safety
/// A list that the kernel accepts.
unsafe fn many(
    list: *mut mmsghdr,
    count: c_uint,
    sends: bool,
    flags: c_int,
    call: impl FnOnce(*mut mmsghdr, c_uint) -> c_int,
) -> c_int {
    let count = count.min(MESSAGES_MAX) as usize;
    let mut headers = Buffer::mapped(count * size_of::<mmsghdr>());
    let mut messages = Buffer::mapped(count * size_of::<Message<'_>>());
    if !headers.is_there() || !messages.is_there() {
        set_errno(libc::ENOMEM);
        return -1;
    }
    let (headers, messages) = (headers.at::<mmsghdr>(), messages.at::<Message<'_>>());
    // SAFETY: the caller's promise; there is room for all of them, and no message moves after its header was made.
    unsafe {
        for at in 0..count {
            messages.add(at).write(Message::of(&raw const (*list.add(at)).msg_hdr, sends, flags));
            headers.add(at).write(mmsghdr { msg_hdr: (*messages.add(at)).header().read(), msg_len: 0 });
        }
        let answer = call(headers, count as c_uint);
        for at in 0..count {
            let (message, header) = (&mut *messages.add(at), &*headers.add(at));
            if (at as c_int) < answer {
                if !sends {
                    message.header = header.msg_hdr;
                    message.finish(&raw mut (*list.add(at)).msg_hdr, header.msg_len as usize);
                }
                (*list.add(at)).msg_len = header.msg_len;
            }
            std::ptr::drop_in_place(message);
        }
        answer
    }
}

type SendMany = unsafe extern "C" fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int;

pub(crate) fn sendmmsg(real: SendMany, socket: c_int, list: *mut mmsghdr, count: c_uint, how: c_int) -> c_int {
    if !any_is_shared(list, count) {
        // SAFETY: as the program calls it.
        return unsafe { real(socket, list, count, how) };
    }
    sendmmsg_shared(real, socket, list, count, how)
}

#[cold]
#[inline(never)]
fn sendmmsg_shared(real: SendMany, socket: c_int, list: *mut mmsghdr, count: c_uint, how: c_int) -> c_int {
    // SAFETY: the program's list, to which the kernel would write.
    unsafe { many(list, count, true, how, |list, count| real(socket, list, count, how)) }
}
