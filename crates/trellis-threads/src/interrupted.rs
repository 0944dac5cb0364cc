//! Handlers of the program's signals that come while a thread is on its private memory.
//!
//! There a thread may hold locks of Trellis, and its thread-local variables are others. A signal waits until the thread is
//! back on the memory of the program, or sleeps in a wait without a lock: then its handler runs on the memory of the
//! program, and the thread sleeps on.
//!
//! Promises: no handler of the program runs while its thread holds a lock of Trellis. None is lost. The kernel holds back
//! signals that wait, so they come in its order, with what it knows of them.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::context;
use crate::control::SLOTS;
use crate::kernel::call;
use crate::system_calls::stack_pointer;

/// Whether each thread sleeps, or is about to, so that a handler may run.
static SLEEPS: [AtomicBool; SLOTS] = [const { AtomicBool::new(false) }; SLOTS];
/// The signals that each thread holds back.
static HELD_BACK: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

/// A thread is about to sleep in a wait, or has slept.
pub(crate) extern "C" fn slept(begins: bool) {
    let Some(slot) = context::slot_aside() else { return };
    SLEEPS[slot].store(begins, Ordering::SeqCst);
    while begins && HELD_BACK[slot].load(Ordering::SeqCst) != 0 {
        context::back(slot, None, || let_come(slot));
        SLEEPS[slot].store(true, Ordering::SeqCst);
    }
}

/// The calling thread is back on the memory of the program.
#[inline]
pub(crate) fn end_aside(slot: usize) {
    if HELD_BACK[slot].load(Ordering::Relaxed) != 0 {
        let_come(slot);
    }
}

/// Lets the signals come that are held back.
fn let_come(slot: usize) {
    let signals = HELD_BACK[slot].swap(0, Ordering::SeqCst);
    let how = libc::SIG_UNBLOCK as usize;
    // SAFETY: a set of the kernel's size.
    unsafe { call(libc::SYS_rt_sigprocmask, [how, (&raw const signals) as usize, 0, size_of::<u64>(), 0, 0]) };
}

/// A signal has come while the thread in a slot is on its private memory. Calls the handler of the program, or lets the
/// kernel hold the signal back.
///
/// # Safety
/// The kernel's description and registers.
pub(crate) unsafe fn handle(
    slot: usize,
    signal: c_int,
    info: *mut libc::siginfo_t,
    registers: &mut libc::ucontext_t,
    handler: impl FnOnce(),
) {
    if SLEEPS[slot].swap(false, Ordering::SeqCst) {
        context::back(slot, Some(stack_pointer(registers)), handler);
        SLEEPS[slot].store(true, Ordering::SeqCst);
        return;
    }
    let bit = 1 << (signal - 1);
    HELD_BACK[slot].fetch_or(bit, Ordering::SeqCst);
    // SAFETY: the C library's set begins with the kernel's 64 bits; a description that the kernel made, sent to the thread
    // itself, which blocks the signal from now on.
    unsafe {
        let mask = (&raw mut registers.uc_sigmask).cast::<u64>();
        mask.write_unaligned(mask.read_unaligned() | bit);
        let (process, thread) = (call(libc::SYS_getpid, [0; 6]), call(libc::SYS_gettid, [0; 6]));
        let arguments = [process as usize, thread as usize, signal as usize, info as usize, 0, 0];
        call(libc::SYS_rt_tgsigqueueinfo, arguments);
    }
}
