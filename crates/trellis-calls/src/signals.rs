//! Signals: those of faults stay unblocked, and their handler stays in place.
//!
//! Promises: a program's action for a signal that a region needs is recorded, and gets every fault outside the regions.
//! SIGBUS and SIGSEGV are never blocked, because the kernel ends a process whose fault is a blocked signal.

use std::ffi::c_int;
use std::mem::{MaybeUninit, transmute, zeroed};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{sighandler_t, sigset_t};

use crate::arguments::{Argument, In, InOut, Out};

pub(crate) type Action = libc::sigaction;

/// The runtime's part of sigaction(2): true if the signal is one that regions need, and everything is done.
pub(crate) type Claim = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> bool;

static CLAIM: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// From now on the runtime gets each action first.
pub(crate) fn ask(claim: Claim) {
    CLAIM.store(claim as *mut (), Ordering::Release);
}

/// A set of signals to block.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Mask(*const sigset_t);

impl Argument for Mask {
    type StandIn = Option<sigset_t>;

    /// All sets are examined.
    fn is_shared(self) -> bool {
        !self.0.is_null()
    }

    unsafe fn stand_in(self) -> Option<sigset_t> {
        // SAFETY: the kernel would read the set.
        self.is_shared().then(|| unsafe { without_faults(self.0.read()) })
    }

    fn given(self, stand_in: &mut Option<sigset_t>) -> Mask {
        stand_in.as_ref().map_or(self, |set| Mask(set))
    }

    unsafe fn finish(self, _: &mut Option<sigset_t>) {}
}

fn without_faults(mut set: sigset_t) -> sigset_t {
    for signal in [libc::SIGBUS, libc::SIGSEGV] {
        // SAFETY: a valid set and a valid signal.
        unsafe { libc::sigdelset(&raw mut set, signal) };
    }
    set
}

/// The signals of faults may have been blocked by the process that started this one.
pub(crate) fn unblock() {
    // SAFETY: a set that is made here; this thread's mask.
    unsafe {
        let mut set = MaybeUninit::<sigset_t>::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGBUS);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGSEGV);
        libc::sigprocmask(libc::SIG_UNBLOCK, set.as_ptr(), null_mut());
    }
}

type SetMask = unsafe extern "C" fn(c_int, In<sigset_t>, Out<sigset_t>) -> c_int;

/// `sigprocmask` and `pthread_sigmask`, which answer 0 if they succeed.
pub(crate) fn sigmask(real: SetMask, how: c_int, set: In<sigset_t>, before: Out<sigset_t>) -> c_int {
    // SAFETY: the kernel would read the one and write the other.
    unsafe {
        let mut private = (!set.0.is_null()).then(|| set.0.read());
        if let (true, Some(set)) = (how != libc::SIG_UNBLOCK, &mut private) {
            *set = without_faults(*set);
        }
        let given = private.as_ref().map_or(set, |set| In(set));
        let mut out = before.stand_in();
        let answer = real(how, given, before.given(&mut out));
        if answer == 0 {
            before.finish(&mut out);
        }
        answer
    }
}

type Sigaction = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;

pub(crate) fn sigaction(real: Sigaction, signal: c_int, action: *const Action, before: *mut Action) -> c_int {
    // SAFETY: the program's pointers, each null or valid; what they point to is used before and after the call only.
    unsafe {
        let mut private = (!action.is_null()).then(|| action.read());
        if let Some(action) = &mut private {
            action.sa_mask = without_faults(action.sa_mask);
        }
        let given = private.as_ref().map_or(action, |action| action);
        let (before, mut out) = (InOut(before), MaybeUninit::<Action>::uninit());
        let to = if before.0.is_null() { null_mut() } else { out.as_mut_ptr() };
        let claim = CLAIM.load(Ordering::Acquire);
        // SAFETY: only `ask` stores it, a function of this type.
        let is_claimed = !claim.is_null() && transmute::<*mut (), Claim>(claim)(signal, given, to);
        let answer = if is_claimed { 0 } else { real(signal, given, to) };
        if answer == 0 && !to.is_null() {
            before.0.write(out.assume_init());
        }
        answer
    }
}

type SetHandler = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;

/// The signals of faults, as bits of an old-fashioned set.
pub(crate) const FAULTS: c_int = 1 << (libc::SIGBUS - 1) | 1 << (libc::SIGSEGV - 1);
/// The third choice of sigset(3).
pub(crate) const SIG_HOLD: sighandler_t = 2;

pub(crate) fn is_of_faults(signal: c_int) -> bool {
    [libc::SIGBUS, libc::SIGSEGV].contains(&signal)
}

/// `signal` and its like, with the flags of each; for other signals than those of faults, the C library's.
pub(crate) fn signal(real: SetHandler, signal: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    if is_of_faults(signal) && handler != libc::SIG_ERR {
        return set_handler(signal, handler, flags);
    }
    // SAFETY: as the program calls it.
    unsafe { real(signal, handler) }
}

pub(crate) fn set_handler(signal: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    // SAFETY: an all-zero action is valid; both live for the call, which goes to `sigaction` above.
    unsafe {
        let (mut action, mut previous): (Action, Action) = (zeroed(), zeroed());
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        match libc::sigaction(signal, &raw const action, &raw mut previous) {
            0 => previous.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}
