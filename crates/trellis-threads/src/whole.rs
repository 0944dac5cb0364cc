//! System calls with memory on which the kernel cannot wait.
//!
//! Where threads serve their own faults, a system call that meets a page which is not here answers EFAULT, or loses what it
//! moved. `libtrellis.so` knows what each system call does with memory, and makes it with private memory instead
//! (`trellis-calls`).
//!
//! Promises: a call without such memory goes to the kernel as it is. Nothing is lost or repeated. Sets of signals never
//! block those of faults.

use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use trellis_interpose::Real;

use crate::cancellation;
use crate::faults::{self, UNBLOCKED};
use crate::kernel::{Arguments, call, call_unless};
use crate::table::reals;

type Call = unsafe extern "C" fn(i64, *const Arguments) -> isize;
type Made = unsafe extern "C" fn(i64, *const Arguments, Call, bool) -> isize;

/// The function of `libtrellis.so`.
static MADE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// The argument of a system call that has a set of signals.
#[derive(Clone, Copy)]
enum Mask {
    At(usize),
    /// The last argument is a pair of an address and a size.
    Paired,
}

fn mask_of(number: i64) -> Option<Mask> {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_signalfd {
        return Some(Mask::At(1));
    }
    Some(match number {
        libc::SYS_rt_sigsuspend | libc::SYS_rt_sigtimedwait => Mask::At(0),
        libc::SYS_signalfd4 => Mask::At(1),
        libc::SYS_ppoll => Mask::At(3),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => Mask::At(4),
        libc::SYS_pselect6 => Mask::Paired,
        _ => return None,
    })
}

/// Functions of the C library that start other programs, whose kernel looks at the memory of their arguments.
const STARTERS: [(&CStr, &Real); 7] = [
    (c"execve", &reals::execve),
    (c"execv", &reals::execv),
    (c"execvp", &reals::execvp),
    (c"posix_spawn", &reals::posix_spawn),
    (c"posix_spawnp", &reals::posix_spawnp),
    (c"system", &reals::system),
    (c"popen", &reals::popen),
];
/// The functions that do the same with private memory.
static STARTERS_INSTEAD: [AtomicPtr<c_void>; STARTERS.len()] = [const { AtomicPtr::new(null_mut()) }; STARTERS.len()];

/// The function to call instead of one of the C library.
pub(crate) fn instead_of(function: *mut c_void) -> *mut c_void {
    let place = STARTERS.iter().position(|(_, real)| real.address() == function);
    let instead = place.filter(|_| faults::are_served_in_thread()).map(|place| &STARTERS_INSTEAD[place]);
    instead.map_or(function, |instead| instead.load(Ordering::Acquire))
}

/// Finds the functions; the error names the first that is missing.
pub(crate) fn find_all(library: *mut c_void) -> Result<(), &'static str> {
    for ((name, _), place) in STARTERS.iter().zip(&STARTERS_INSTEAD) {
        place.store(found(library, name)?, Ordering::Release);
    }
    MADE.store(found(library, c"__trellis_calls_made")?, Ordering::Release);
    Ok(())
}

fn found(library: *mut c_void, name: &'static CStr) -> Result<*mut c_void, &'static str> {
    // SAFETY: a library that is open, and a text.
    let function = unsafe { libc::dlsym(library, name.as_ptr()) };
    if function.is_null() { Err(name.to_str().unwrap_or_default()) } else { Ok(function) }
}

/// Makes a system call of the program, on the program's memory or private one. One that is interruptible answers EINTR if
/// there is an interrupt.
///
/// # Safety
/// As the system call.
pub(crate) unsafe fn made(number: i64, arguments: Arguments, is_interruptible: bool) -> isize {
    let (mut set, mut pair) = (0, [0; 2]);
    // SAFETY: the caller's promise; the function of this name, which has this type.
    unsafe {
        let arguments = match mask_of(number) {
            Some(mask) => unblocked(mask, arguments, &mut set, &mut pair),
            None => arguments,
        };
        let make: Call = if is_interruptible { call_unless_interrupted } else { call_with };
        if !faults::are_served_in_thread() {
            return make(number, &raw const arguments);
        }
        let made = transmute::<*mut c_void, Made>(MADE.load(Ordering::Acquire));
        made(number, &raw const arguments, make, is_interruptible)
    }
}

unsafe extern "C" fn call_with(number: i64, arguments: *const Arguments) -> isize {
    // SAFETY: the caller's promise, as for the call.
    unsafe { call(number, *arguments) }
}

unsafe extern "C" fn call_unless_interrupted(number: i64, arguments: *const Arguments) -> isize {
    // SAFETY: the caller's promise, as for the call; an interrupt lives as long as the process.
    cancellation::interruptibly(|interrupt| unsafe { call_unless(number, arguments, interrupt) })
}

/// The arguments with a set of signals in which those of faults are not blocked. `set` and `pair` have room for it, on
/// memory on which the kernel waits.
///
/// # Safety
/// As the system call.
unsafe fn unblocked(mask: Mask, mut arguments: Arguments, set: &mut u64, pair: &mut [usize; 2]) -> Arguments {
    let place = match mask {
        Mask::At(place) => &mut arguments[place],
        Mask::Paired if arguments[5] == 0 => return arguments,
        Mask::Paired => {
            // SAFETY: the pair of the caller.
            *pair = unsafe { (arguments[5] as *const [usize; 2]).read() };
            arguments[5] = pair.as_ptr() as usize;
            &mut pair[0]
        }
    };
    if *place != 0 {
        // SAFETY: a set of the kernel's size.
        *set = unsafe { (*place as *const u64).read_unaligned() } & !UNBLOCKED;
        *place = std::ptr::from_ref(set) as usize;
    }
    arguments
}
