//! Calls that move bytes between a file and memory.
//!
//! Promises: nothing is lost, and a caller sees what it would see if all memory were here. Bytes move through private
//! memory with one call, whose answer is the kernel's. So messages, and records that several processes append to a
//! file, stay whole. Received bytes are not lost, and no device uses a page that another node takes meanwhile. Only
//! large transfers of files are tried on the shared memory itself, which costs no copy.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;

use libc::iovec;

use crate::buffer::Buffer;
use crate::shared;
use trellis_interpose::errno;

/// The kernel moves no more with one call (read(2), write(2)).
pub(crate) const BYTES_MAX: usize = 0x7fff_f000;
/// Up to this many bytes of a file are copied, which costs no more than two calls.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// The size of the private buffer for larger transfers.
const FILE_PIECE_BYTES: usize = 1 << 20;
/// The size of the private buffer for a pipe or a stream socket, which takes all of it unless it is non-blocking or a
/// signal interrupts the call.
const STREAM_PIECE_BYTES: usize = 16 << 20;

/// The direction: whether the kernel reads the memory or writes to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Takes,
    Fills,
}

/// The way in which bytes have to move.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// In pieces if there are many.
    File,
    /// In pieces, until an answer is smaller than its piece.
    Stream,
    /// With one call.
    Whole,
    /// With one call, in pages of their own.
    Device,
}

fn kind(file: c_int, how: Use) -> Kind {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for the status.
    if unsafe { libc::fstat(file, status.as_mut_ptr()) } != 0 {
        // The call itself reports the error.
        return Kind::Whole;
    }
    // SAFETY: fstat succeeded.
    let status = unsafe { status.assume_init() };
    match status.st_mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFBLK => {
            // SAFETY: asks for numbers.
            let flags = unsafe { libc::fcntl(file, libc::F_GETFL) };
            // The kernel's own files have no size, and some of them give what they have once (proc(5)).
            let is_made_up = how == Use::Fills && status.st_mode & libc::S_IFMT == libc::S_IFREG && status.st_size == 0;
            match () {
                () if flags & libc::O_DIRECT != 0 => Kind::Device,
                () if flags & libc::O_APPEND != 0 && how == Use::Takes || is_made_up => Kind::Whole,
                () => Kind::File,
            }
        }
        libc::S_IFIFO => Kind::Stream,
        libc::S_IFSOCK if socket_type(file) == libc::SOCK_STREAM => Kind::Stream,
        _ => Kind::Whole,
    }
}

fn socket_type(file: c_int) -> c_int {
    let (mut kind, mut bytes): (c_int, u32) = (0, size_of::<c_int>() as u32);
    // SAFETY: room for a number. If it fails, no type is 0.
    unsafe { libc::getsockopt(file, libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &raw mut bytes) };
    kind
}

impl Kind {
    /// The maximum number of bytes of one call.
    fn piece_bytes_max(self) -> usize {
        match self {
            Kind::File => FILE_PIECE_BYTES,
            Kind::Stream => STREAM_PIECE_BYTES,
            Kind::Whole | Kind::Device => BYTES_MAX,
        }
    }

    /// Whether there is another call after one that moved all of its `bytes`.
    fn goes_on(self, file: c_int, how: Use) -> bool {
        match (self, how) {
            (Kind::File, Use::Fills) | (Kind::Stream, Use::Takes) => true,
            (Kind::File, Use::Takes) => !has_its_largest_size(file),
            // A second call might wait for bytes that have not arrived.
            (Kind::Stream, Use::Fills) | (Kind::Whole | Kind::Device, _) => false,
        }
    }

    fn buffer(self, bytes: usize) -> Buffer {
        if self == Kind::Device { Buffer::mapped(bytes) } else { Buffer::of(bytes) }
    }
}

/// Whether the kernel ends the process if it writes more (setrlimit(2), RLIMIT_FSIZE).
fn has_its_largest_size(file: c_int) -> bool {
    let (mut limit, mut status) = (MaybeUninit::<libc::rlimit>::uninit(), MaybeUninit::<libc::stat>::uninit());
    // SAFETY: room for both, which are set if the calls succeed.
    unsafe {
        libc::getrlimit(libc::RLIMIT_FSIZE, limit.as_mut_ptr()) == 0
            && libc::fstat(file, status.as_mut_ptr()) == 0
            && status.assume_init().st_size as u64 >= limit.assume_init().rlim_cur
    }
}

/// Moves bytes in or out: `call` gets the place in memory, the number of bytes, and how many came before.
fn moved(
    file: c_int,
    memory: *mut c_void,
    bytes: usize,
    how: Use,
    call: impl Fn(*mut c_void, usize, usize) -> isize,
) -> isize {
    if bytes == 0 || !shared::overlaps(memory, bytes) {
        return call(memory, bytes, 0);
    }
    moved_shared(file, memory, bytes.min(BYTES_MAX), how, call)
}

#[cold]
#[inline(never)]
fn moved_shared(
    file: c_int,
    memory: *mut c_void,
    bytes: usize,
    how: Use,
    call: impl Fn(*mut c_void, usize, usize) -> isize,
) -> isize {
    let kind = kind(file, how);
    in_pieces(bytes, |done| {
        let (next, left) = (memory.wrapping_byte_add(done), bytes - done);
        if kind == Kind::File && left > COPIED_BYTES_MAX {
            let answer = call(next, left, done);
            if answer > 0 {
                // It stopped at a page that is not here, or there is no more: the next call says so.
                return (answer, answer < left as isize && kind.goes_on(file, how));
            }
            if answer == 0 || errno() != libc::EFAULT {
                return (answer, false);
            }
        }
        let piece = left.min(kind.piece_bytes_max());
        let answer = copied(kind.buffer(piece), next, how, |private| call(private, piece, done));
        (answer, answer == piece as isize && kind.goes_on(file, how))
    })
}

/// Repeats a call, which gets how many bytes were moved before, and says how many it moved and whether it would have moved
/// more.
fn in_pieces(bytes: usize, mut call: impl FnMut(usize) -> (isize, bool)) -> isize {
    let mut done = 0;
    loop {
        let (answer, goes_on) = call(done);
        if answer <= 0 {
            return if done > 0 { done as isize } else { answer };
        }
        done += answer as usize;
        if !goes_on || done >= bytes {
            return done as isize;
        }
    }
}

/// The call on private memory.
#[inline(never)]
fn copied(mut private: Buffer, memory: *mut c_void, how: Use, call: impl FnOnce(*mut c_void) -> isize) -> isize {
    if how == Use::Takes {
        // SAFETY: the kernel would read these bytes.
        private = unsafe { private.with(memory) };
    }
    let done = call(private.at());
    if how == Use::Fills && done > 0 {
        let bytes = private.bytes().min(done as usize);
        // SAFETY: the kernel filled so many bytes, and would have written them there. A datagram may have had more.
        unsafe { private.give(memory, bytes) };
    }
    done
}

type Io<T> = unsafe extern "C" fn(c_int, T, usize) -> isize;
type IoAt<T> = unsafe extern "C" fn(c_int, T, usize, i64) -> isize;

pub(crate) fn read(real: Io<*mut c_void>, file: c_int, to: *mut c_void, bytes: usize) -> isize {
    // SAFETY: the program's descriptor, with memory that is the program's or private.
    moved(file, to, bytes, Use::Fills, |to, bytes, _| unsafe { real(file, to, bytes) })
}

pub(crate) fn write(real: Io<*const c_void>, file: c_int, from: *const c_void, bytes: usize) -> isize {
    // SAFETY: as in `read`.
    moved(file, from.cast_mut(), bytes, Use::Takes, |from, bytes, _| unsafe { real(file, from, bytes) })
}

/// `send`, and `sendto` without an address.
pub(crate) fn sent_to(
    socket: c_int,
    from: *const c_void,
    bytes: usize,
    how: c_int,
    call: impl Fn(*const c_void, usize) -> isize,
) -> isize {
    if how & libc::MSG_ZEROCOPY != 0 && shared::overlaps(from, bytes) {
        return copied(Buffer::mapped(bytes), from.cast_mut(), Use::Takes, |from| call(from, bytes));
    }
    moved(socket, from.cast_mut(), bytes, Use::Takes, |from, bytes, _| call(from, bytes))
}

pub(crate) fn send(
    real: unsafe extern "C" fn(c_int, *const c_void, usize, c_int) -> isize,
    socket: c_int,
    from: *const c_void,
    bytes: usize,
    how: c_int,
) -> isize {
    // SAFETY: as in `read`.
    sent_to(socket, from, bytes, how, |from, bytes| unsafe { real(socket, from, bytes, how) })
}

pub(crate) fn pread(real: IoAt<*mut c_void>, file: c_int, to: *mut c_void, bytes: usize, at: i64) -> isize {
    // SAFETY: as in `read`.
    moved(file, to, bytes, Use::Fills, |to, bytes, before| unsafe { real(file, to, bytes, at + before as i64) })
}

pub(crate) fn pwrite(real: IoAt<*const c_void>, file: c_int, from: *const c_void, bytes: usize, at: i64) -> isize {
    let call = |from: *mut c_void, bytes, before| {
        // SAFETY: as in `read`.
        unsafe { real(file, from, bytes, at + before as i64) }
    };
    moved(file, from.cast_mut(), bytes, Use::Takes, call)
}

/// The functions of programs that were compiled with _FORTIFY_SOURCE: `room` is the size of the buffer, and the C
/// library ends a program that asks for more.
pub(crate) fn read_checked(
    real: unsafe extern "C" fn(c_int, *mut c_void, usize, usize) -> isize,
    file: c_int,
    to: *mut c_void,
    bytes: usize,
    room: usize,
) -> isize {
    // SAFETY: as in `read`.
    moved(file, to, bytes, Use::Fills, |to, bytes, before| unsafe {
        real(file, to, bytes, room.saturating_sub(before))
    })
}

pub(crate) fn pread_checked(
    real: unsafe extern "C" fn(c_int, *mut c_void, usize, i64, usize) -> isize,
    file: c_int,
    to: *mut c_void,
    bytes: usize,
    at: i64,
    room: usize,
) -> isize {
    let call = |to, bytes, before| {
        // SAFETY: as in `read`.
        unsafe { real(file, to, bytes, at + before as i64, room.saturating_sub(before)) }
    };
    moved(file, to, bytes, Use::Fills, call)
}

/// Bytes in several pieces.
#[derive(Clone, Copy)]
pub(crate) struct Pieces<'list>(&'list [iovec]);

impl<'list> Pieces<'list> {
    /// The pieces of a call, if any of them or their list is shared; `None` also if the number is none that the kernel
    /// accepts.
    ///
    /// # Safety
    /// `list` has `count` entries as long as the pieces are used.
    pub(crate) unsafe fn shared(list: *const iovec, count: usize) -> Option<Pieces<'list>> {
        if !shared::is_any() || list.is_null() || count == 0 || count > libc::UIO_MAXIOV as usize {
            return None;
        }
        // SAFETY: the caller's promise.
        let pieces = unsafe { std::slice::from_raw_parts(list, count) };
        let any = shared::overlaps(list, size_of_val(pieces))
            || pieces.iter().any(|piece| shared::overlaps(piece.iov_base, piece.iov_len));
        any.then_some(Pieces(pieces))
    }

    pub(crate) fn bytes(self) -> usize {
        self.0.iter().fold(0, |sum: usize, piece| sum.saturating_add(piece.iov_len))
    }

    /// Calls `visit` with the parts of the bytes from `first` on, `bytes` of them.
    fn parts(self, first: usize, bytes: usize, mut visit: impl FnMut(*mut u8, usize)) {
        let (mut skip, mut left) = (first, bytes);
        for piece in self.0 {
            let begin = skip.min(piece.iov_len);
            let part = (piece.iov_len - begin).min(left);
            visit(piece.iov_base.cast::<u8>().wrapping_add(begin), part);
            skip -= begin;
            left -= part;
        }
    }

    /// A copy of the bytes from `first` on, in a buffer that has room for them.
    ///
    /// # Safety
    /// The pieces are readable.
    pub(crate) unsafe fn gathered(self, first: usize, mut into: Buffer) -> Buffer {
        if into.is_there() {
            let mut at: *mut u8 = into.at();
            self.parts(first, into.bytes(), |from, part| {
                shared::announce(from, part, false);
                // SAFETY: the caller's promise; there is room for all of them.
                unsafe {
                    at.copy_from_nonoverlapping(from, part);
                    at = at.add(part);
                }
            });
        }
        into
    }

    /// # Safety
    /// The pieces are writable, and the first `bytes` of `all` are filled.
    pub(crate) unsafe fn scatter(self, first: usize, all: &mut Buffer, bytes: usize) {
        let mut at: *const u8 = all.at();
        self.parts(first, bytes, |to, part| {
            shared::announce(to, part, true);
            // SAFETY: the caller's promise.
            unsafe {
                to.copy_from_nonoverlapping(at, part);
                at = at.add(part);
            }
        });
    }
}

/// A call with pieces: `call` gets one piece of private memory at a time, and how many bytes came before.
pub(crate) fn in_one(
    file: c_int,
    list: *const iovec,
    count: c_int,
    how: Use,
    call: impl Fn(*const iovec, c_int, usize) -> isize,
) -> isize {
    // SAFETY: the kernel would read so many entries.
    match unsafe { Pieces::shared(list, count.max(0) as usize) } {
        None => call(list, count, 0),
        Some(pieces) => in_one_shared(file, pieces, how, call),
    }
}

#[cold]
#[inline(never)]
fn in_one_shared(
    file: c_int,
    pieces: Pieces<'_>,
    how: Use,
    call: impl Fn(*const iovec, c_int, usize) -> isize,
) -> isize {
    let bytes = pieces.bytes().min(BYTES_MAX);
    let kind = kind(file, how);
    in_pieces(bytes, |done| {
        let piece = (bytes - done).min(kind.piece_bytes_max());
        let mut private = kind.buffer(piece);
        if how == Use::Takes {
            // SAFETY: the kernel would read the pieces.
            private = unsafe { pieces.gathered(done, private) };
        }
        let one = iovec { iov_base: private.at(), iov_len: piece };
        let answer = call(&raw const one, 1, done);
        if how == Use::Fills && answer > 0 {
            // SAFETY: the kernel filled so many bytes, and would have written them to the pieces.
            unsafe { pieces.scatter(done, &mut private, answer as usize) };
        }
        (answer, answer == piece as isize && kind.goes_on(file, how))
    })
}

type Vector = unsafe extern "C" fn(c_int, *const iovec, c_int) -> isize;
type VectorAt = unsafe extern "C" fn(c_int, *const iovec, c_int, i64) -> isize;
type VectorWith = unsafe extern "C" fn(c_int, *const iovec, c_int, i64, c_int) -> isize;

pub(crate) fn readv(real: Vector, file: c_int, list: *const iovec, count: c_int) -> isize {
    // SAFETY: the program's pieces, or a private one.
    in_one(file, list, count, Use::Fills, |list, count, _| unsafe { real(file, list, count) })
}

pub(crate) fn writev(real: Vector, file: c_int, list: *const iovec, count: c_int) -> isize {
    // SAFETY: as in `readv`.
    in_one(file, list, count, Use::Takes, |list, count, _| unsafe { real(file, list, count) })
}

pub(crate) fn preadv(real: VectorAt, file: c_int, list: *const iovec, count: c_int, at: i64) -> isize {
    let call = |list, count, before| {
        // SAFETY: as in `readv`.
        unsafe { real(file, list, count, at + before as i64) }
    };
    in_one(file, list, count, Use::Fills, call)
}

pub(crate) fn pwritev(real: VectorAt, file: c_int, list: *const iovec, count: c_int, at: i64) -> isize {
    let call = |list, count, before| {
        // SAFETY: as in `readv`.
        unsafe { real(file, list, count, at + before as i64) }
    };
    in_one(file, list, count, Use::Takes, call)
}

/// Where a call with pieces begins after some bytes; -1 is the place of the descriptor itself.
pub(crate) fn place(at: i64, before: usize) -> i64 {
    if at == -1 { at } else { at + before as i64 }
}

pub(crate) fn preadv2(real: VectorWith, file: c_int, list: *const iovec, count: c_int, at: i64, how: c_int) -> isize {
    let call = |list, count, before| {
        // SAFETY: as in `readv`.
        unsafe { real(file, list, count, place(at, before), how) }
    };
    in_one(file, list, count, Use::Fills, call)
}

pub(crate) fn pwritev2(real: VectorWith, file: c_int, list: *const iovec, count: c_int, at: i64, how: c_int) -> isize {
    let call = |list, count, before| {
        // SAFETY: as in `readv`.
        unsafe { real(file, list, count, place(at, before), how) }
    };
    in_one(file, list, count, Use::Takes, call)
}

/// Calls that fill a buffer with one answer: a name, random bytes, attributes.
pub(crate) fn filled<T>(to: *mut T, bytes: usize, call: impl FnOnce(*mut T) -> isize) -> isize {
    if !shared::overlaps(to, bytes) {
        return call(to);
    }
    copied(Buffer::of(bytes), to.cast(), Use::Fills, |private| call(private.cast()))
}

/// Calls that fill all bytes and answer 0, or fill none.
pub(crate) fn filled_if_zero(to: *mut c_void, bytes: usize, call: impl FnOnce(*mut c_void) -> c_int) -> c_int {
    let filled = filled(to, bytes, |to| if call(to) == 0 { bytes as isize } else { -1 });
    if filled < 0 { -1 } else { 0 }
}

/// `getcwd`, which answers with the address of the text.
pub(crate) fn text_filled(to: *mut c_char, bytes: usize, call: impl FnOnce(*mut c_char) -> *mut c_char) -> *mut c_char {
    if !shared::overlaps(to, bytes) {
        return call(to);
    }
    let length = |private: *mut c_char| match call(private).is_null() {
        true => -1,
        // SAFETY: the call put a string there.
        false => unsafe { libc::strlen(private) as isize + 1 },
    };
    match copied(Buffer::of(bytes), to.cast(), Use::Fills, |private| length(private.cast())) {
        -1 => std::ptr::null_mut(),
        _ => to,
    }
}

/// `eventfd_read`, for which the C library reads by itself.
pub(crate) fn event_read(real: unsafe extern "C" fn(c_int, *mut u64) -> c_int, file: c_int, to: *mut u64) -> c_int {
    // SAFETY: memory that is the program's or private.
    filled_if_zero(to.cast(), size_of::<u64>(), |to| unsafe { real(file, to.cast()) })
}

/// `getgroups` and others that count what they fill.
pub(crate) fn listed<T>(to: *mut T, count: c_uint, call: impl FnOnce(*mut T) -> c_int) -> c_int {
    let bytes = (count as usize).saturating_mul(size_of::<T>());
    if !shared::overlaps(to, bytes) {
        return call(to);
    }
    let mut answer = -1;
    copied(Buffer::of(bytes), to.cast(), Use::Fills, |private| {
        answer = call(private.cast());
        answer.max(0) as isize * size_of::<T>() as isize
    });
    answer
}
