//! System calls that a program makes itself, whose memory is not here.
//!
//! Promises: a call is made once, with private memory in place of what is shared, and its answer is the kernel's. A
//! call for which this may be wrong is refused with a sentence, and answers ENOSYS, as in a kernel without it. A call
//! without shared memory goes to the kernel as it is.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{iovec, timespec};

use crate::buffer::{Buffer, Changeable};
use crate::classes::{
    Arguments, BY_COMMAND, CALLED_OTHERWISE, Memory, Named, Part, REFUSED, Size, WITH_MEMORY, WITHOUT_MEMORY,
    by_command,
};
use crate::streams::{Use, in_one, listed, place};
use crate::table::OF_SYSTEM_CALLS;
use crate::waits::{polled, selected};
use crate::{numbers, refused, shared};
use trellis_interpose::{errno, set_errno};

/// Makes a system call; the answer is the kernel's.
pub(crate) type Call = unsafe extern "C" fn(i64, *const Arguments) -> isize;

/// A function with up to six arguments that makes a system call, and answers as the C library does.
pub(crate) type Real = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize;

/// A function of the C library that does the same as a system call.
pub(crate) struct Function {
    pub(crate) number: i64,
    /// Answers it, with the function that it gets in place of the C library's.
    pub(crate) answer_with: *const (),
    /// Make the system call itself: one that may not be interrupted, and one that may.
    pub(crate) reals: [Real; 2],
    pub(crate) answers_int: bool,
}

/// The function that makes system calls which may not be interrupted, and that for those which may.
static CALLS: [AtomicPtr<()>; 2] = [const { AtomicPtr::new(null_mut()) }; 2];

/// Makes a system call for a function of this library. That of the C library would be a cancellation point.
pub(crate) unsafe extern "C" fn real<const NUMBER: i64, const IS_INTERRUPTIBLE: bool>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    // SAFETY: the caller's promise; `__trellis_calls_made` has stored the function before.
    let answer = unsafe {
        let call = CALLS[usize::from(IS_INTERRUPTIBLE)].load(Ordering::Acquire);
        transmute::<*mut (), Call>(call)(NUMBER, &[a, b, c, d, e, f])
    };
    if (-4095..0).contains(&answer) {
        set_errno(-answer as c_int);
        return -1;
    }
    answer
}

/// How a system call uses memory.
enum Class {
    /// A function of the C library does the same. The memory of some calls has addresses of other memory.
    Function(&'static Function),
    Memory(&'static [Part]),
    /// Its name.
    ByCommand(&'static str),
    CalledOtherwise,
    WithoutMemory,
    /// Its name.
    Refused(&'static str),
}

/// The class of a system call; `None` if the kernel is newer than this list.
fn class_of(number: i64) -> Option<Class> {
    let named = move |list: &'static [Named]| {
        list.iter().filter(move |(of, _)| *of == number).map(|(_, name)| name.strip_prefix("SYS_").unwrap_or(name))
    };
    let functions = OF_SYSTEM_CALLS.iter().filter(move |function| function.number == number).map(Class::Function);
    let memory = WITH_MEMORY.iter().filter(move |(of, ..)| *of == number).map(|(.., parts)| Class::Memory(parts));
    functions
        .chain(memory)
        .chain(named(BY_COMMAND).map(Class::ByCommand))
        .chain(named(CALLED_OTHERWISE).map(|_| Class::CalledOtherwise))
        .chain(named(WITHOUT_MEMORY).map(|_| Class::WithoutMemory))
        .chain(named(REFUSED).map(Class::Refused))
        .next()
}

/// Makes a system call with private memory in place of what is shared. `call` makes one on the memory that it gets. There is
/// one such function for calls that may not be interrupted, and one for those that may.
///
/// # Safety
/// As the system call; its arguments are six.
#[unsafe(no_mangle)]
unsafe extern "C" fn __trellis_calls_made(
    number: i64,
    arguments: *const Arguments,
    call: Call,
    is_interruptible: bool,
) -> isize {
    // SAFETY: the caller's promise.
    let arguments = unsafe { *arguments };
    // Memory begins above this address.
    let is_shared = |argument: &usize| *argument >= 1 << 16 && shared::overlaps(*argument as *const c_void, 1);
    // SAFETY: the caller's promise; the functions do what the calls of their numbers do.
    unsafe {
        if !has_lists(number) && !arguments.iter().any(is_shared) {
            return call(number, &raw const arguments);
        }
        match class_of(number) {
            Some(Class::Function(function)) => {
                CALLS[usize::from(is_interruptible)].store(call as *mut (), Ordering::Release);
                through(function, arguments, is_interruptible)
            }
            Some(Class::Memory(parts)) => with_private(number, arguments, parts, call),
            Some(Class::CalledOtherwise) => otherwise(number, arguments, call),
            Some(Class::WithoutMemory) => call(number, &raw const arguments),
            Some(Class::ByCommand(name)) => match by_command(number, &arguments) {
                Some(parts) => with_private(number, arguments, parts, call),
                None => refuse(format_args!("the system call {name} with this command")),
            },
            Some(Class::Refused(name)) => refuse(format_args!("the system call {name}")),
            None => refuse(format_args!("the system call {number}")),
        }
    }
}

/// Whether the memory of a call has addresses of other memory.
fn has_lists(number: i64) -> bool {
    [
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_preadv,
        libc::SYS_pwritev,
        numbers::SYS_preadv2,
        numbers::SYS_pwritev2,
        libc::SYS_sendmsg,
        libc::SYS_recvmsg,
        libc::SYS_sendmmsg,
        libc::SYS_recvmmsg,
        libc::SYS_execve,
    ]
    .contains(&number)
}

fn refuse(what: std::fmt::Arguments<'_>) -> isize {
    let before = errno();
    refused::say(what);
    set_errno(before);
    -(libc::ENOSYS as isize)
}

/// The answer of the kernel, from that of the C library.
unsafe fn through(function: &Function, [a, b, c, d, e, f]: Arguments, is_interruptible: bool) -> isize {
    type Answer = unsafe extern "C-unwind" fn(Real, usize, usize, usize, usize, usize, usize) -> isize;
    let before = errno();
    let real = function.reals[usize::from(is_interruptible)];
    // SAFETY: the caller's promise; the function takes no more arguments.
    let answer = unsafe { transmute::<*const (), Answer>(function.answer_with)(real, a, b, c, d, e, f) };
    let answer = if function.answers_int { answer as c_int as isize } else { answer };
    let answer = if answer == -1 { -(errno() as isize) } else { answer };
    set_errno(before);
    answer
}

/// The private memory of an argument.
enum Private {
    Taken(Buffer),
    Set(Changeable),
    Filled(Buffer),
}

/// The most arguments with memory.
const PARTS_MAX: usize = 3;

/// The call with private memory in place of those of these arguments that are shared.
unsafe fn with_private(number: i64, arguments: Arguments, parts: &[Part], call: Call) -> isize {
    let mut private = [const { None }; PARTS_MAX];
    let mut given = arguments;
    // SAFETY: the kernel would read these bytes, or write there.
    unsafe {
        for (private, (place, memory)) in private.iter_mut().zip(parts) {
            let at = arguments[*place] as *mut c_void;
            *private = copied(at, *memory, &arguments);
            // The copy does not move from here on.
            match private {
                Some(Private::Taken(copy) | Private::Filled(copy)) => given[*place] = copy.at::<c_void>() as usize,
                Some(Private::Set(copy)) => given[*place] = copy.at::<c_void>() as usize,
                None => {}
            }
        }
        let answer = call(number, &raw const given);
        for (private, (place, _)) in private.iter_mut().zip(parts) {
            match private {
                Some(Private::Set(copy)) => copy.finish(),
                Some(Private::Filled(copy)) if answer > 0 => {
                    let bytes = copy.bytes().min(answer as usize);
                    copy.give(arguments[*place] as *mut c_void, bytes);
                }
                _ => {}
            }
        }
        answer
    }
}

/// A private copy of the memory at an address; `None` if it is private already.
unsafe fn copied(at: *mut c_void, memory: Memory, arguments: &Arguments) -> Option<Private> {
    if !shared::overlaps(at, 1) {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe {
        Some(match memory {
            Memory::Text => Private::Taken(Buffer::copied(at, libc::strlen(at.cast()) + 1)),
            Memory::Takes(size) => Private::Taken(Buffer::copied(at, size.of(arguments))),
            Memory::Fills(size) => Private::Filled(Buffer::of(size.of(arguments))),
            Memory::Sets(size) => {
                let bytes = size.of(arguments);
                Private::Set(Changeable::copied(at, bytes, bytes))
            }
        })
    }
}

/// The calls of [`CALLED_OTHERWISE`].
unsafe fn otherwise(number: i64, arguments: Arguments, call: Call) -> isize {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    // SAFETY: the caller's promise, with private memory in place of what is shared.
    let made = |arguments, parts: &[Part]| unsafe { with_private(number, arguments, parts, call) };
    const TIME: Memory = Memory::Sets(Size::Bytes(size_of::<timespec>()));
    const MASK: Memory = Memory::Takes(Size::Bytes(8));
    match number {
        numbers::SYS_preadv2 | numbers::SYS_pwritev2 => {
            let how = if number == numbers::SYS_preadv2 { Use::Fills } else { Use::Takes };
            in_one(first as c_int, second as *const iovec, third as c_int, how, |list, count, before| {
                let at = place(fourth as i64, before) as usize;
                made([first, list as usize, count as usize, at, fifth, sixth], &[])
            })
        }
        numbers::SYS_ppoll => polled(first as *mut _, second as u64, |list| {
            made([list as usize, second, third, fourth, fifth, sixth], &[(2, TIME), (3, MASK)]) as c_int
        }) as isize,
        numbers::SYS_pselect6 => selected(first as c_int, [second, third, fourth].map(|set| set as *mut _), |sets| {
            let [read, write, except] = sets.map(|set| set as usize);
            made([first, read, write, except, fifth, sixth], &[(4, TIME)]) as c_int
        }) as isize,
        // epoll_pwait and epoll_pwait2, whose limits are a number and a time.
        _ => listed(second as *mut libc::epoll_event, (third as c_int).max(0) as u32, |list| {
            let parts: &[Part] = &[(4, MASK), (3, TIME)];
            let parts = if number == numbers::SYS_epoll_pwait2 { parts } else { &parts[..1] };
            made([first, list as usize, third, fourth, fifth, sixth], parts) as c_int
        }) as isize,
    }
}
