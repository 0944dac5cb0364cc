//! `sigaction` and `signal`, which replace the C library's.
//!
//! A program that installs its own SIGSEGV or SIGBUS handler after joining would otherwise remove the one that serves
//! faults of the region. While a region needs a signal, the program's action is recorded and gets every fault outside
//! the region. At any other time, and for any other signal, these functions behave as the C library's. They allocate
//! nothing and take no lock, since the C library's may be called in a signal handler.
//!
//! Only programs linked with the shared library get them (a test program of this crate does not).

use std::ffi::c_int;
use std::mem::transmute;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{sigaction as Action, sighandler_t};

type Sigaction = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;

/// The address of the C library's function after its look-up; 0 before.
static REAL: AtomicUsize = AtomicUsize::new(0);

/// sigaction(2); see the module's documentation.
///
/// # Safety
/// As sigaction(2): each pointer is null or valid.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigaction(signal: c_int, action: *const Action, previous: *mut Action) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { trellis_memory::claim_signal(signal, action, previous) } {
        return 0;
    }
    // SAFETY: the same pointers, to the function they were meant for.
    unsafe { real_sigaction()(signal, action, previous) }
}

/// signal(2) of BSD and glibc: the handler stays installed, and interrupted system calls are restarted.
///
/// # Safety
/// As signal(2): `handler` is SIG_DFL, SIG_IGN or a function that takes an int.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's promise.
    unsafe { set_handler(signal, handler, libc::SA_RESTART) }
}

/// glibc's signal(2) in a program compiled as strict ISO C: the handler is called once.
///
/// # Safety
/// As signal(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's promise.
    unsafe { set_handler(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER) }
}

/// # Safety
/// `handler` is SIG_DFL, SIG_IGN or a function that takes an int.
unsafe fn set_handler(signal: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    // SAFETY: an all-zero action is valid.
    let (mut action, mut previous): (Action, Action) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: both live for the call; the handler is the caller's promise.
    match unsafe { sigaction(signal, &raw const action, &raw mut previous) } {
        0 => previous.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}

/// Looks up the C library's function before it is needed in a signal handler, where dlsym(3) must not be called.
pub(crate) fn prepare() {
    real_sigaction();
}

fn real_sigaction() -> Sigaction {
    let mut found = REAL.load(Ordering::Relaxed);
    if found == 0 {
        // SAFETY: the name is a C string.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr()) } as usize;
        assert!(found != 0, "the C library has sigaction");
        REAL.store(found, Ordering::Relaxed);
    }
    // SAFETY: the address of the C library's sigaction, which has this type.
    unsafe { transmute::<usize, Sigaction>(found) }
}

#[cfg(test)]
mod tests {
    use std::ptr::{null, null_mut};

    use super::*;

    extern "C" fn nothing(_: c_int) {}

    #[test]
    fn signals_that_no_region_needs_are_those_of_the_c_library() {
        let handler = nothing as *const () as sighandler_t;
        // SAFETY: the handlers do nothing; the pointers are null or live.
        unsafe {
            assert_eq!(signal(libc::SIGUSR2, handler), libc::SIG_DFL);
            let mut now: Action = std::mem::zeroed();
            assert_eq!(libc::sigaction(libc::SIGUSR2, null(), &raw mut now), 0);
            assert_eq!((now.sa_sigaction, now.sa_flags & libc::SA_RESTART), (handler, libc::SA_RESTART));
            assert_eq!(__sysv_signal(libc::SIGUSR2, libc::SIG_DFL), handler);
            assert_eq!(signal(-1, libc::SIG_DFL), libc::SIG_ERR);
            assert_eq!(sigaction(libc::SIGUSR2, null(), null_mut()), 0);
        }
    }
}
