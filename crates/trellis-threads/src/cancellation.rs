//! Cancellation of threads of the program (pthread_cancel(3p)), by threads of any node.
//!
//! The C library has bits for it in the control block of each thread, and its cancellation points look at them. The block is
//! the same memory on every node, so a request is those bits. A signal to the thread interrupts its system call, and one to
//! its deputy the call that node 0 makes for it.
//!
//! Promises: a thread ends by the C library's own function for it, which runs the handlers that the thread has pushed, and in
//! its own code. No request is lost: a system call that is a cancellation point has not begun when a request is seen, or the
//! signal interrupts it. What a system call has done is not lost either. A request to a thread that ignores it, or has ended,
//! changes nothing. It must never end a thread inside of Trellis' code.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::context::{self, own_slot};
use crate::control::{FREE, RUNNING, SLOTS, control, record};
use crate::system_calls;
use crate::table::reals;
use crate::{actions, awaited, early, kernel, runtime, start, threads};

/// The signal that the C library keeps for this.
pub(crate) const SIGNAL: c_int = 32;
const ENABLE: c_int = 0;
const DISABLE: c_int = 1;
const DEFERRED: c_int = 0;
const ASYNCHRONOUS: c_int = 1;

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_testcancel();
    fn pthread_cancel(thread: usize) -> c_int;
}

/// The offset in the control block of the word with the bits, and the bits.
static WORD_OFFSET: AtomicUsize = AtomicUsize::new(0);
static BITS: AtomicU32 = AtomicU32::new(0);

/// Whether the system call of the thread in a slot is to be interrupted: at the node where the thread runs, and at node 0 if
/// its deputy is there.
static INTERRUPTS: [AtomicBool; SLOTS] = [const { AtomicBool::new(false) }; SLOTS];
/// Whether a wait in the cluster of the thread in a slot of this node is to be interrupted.
static WAIT_INTERRUPTS: [AtomicBool; SLOTS] = [const { AtomicBool::new(false) }; SLOTS];
/// Whether a handler has run in the thread in a slot of this node after which calls that it interrupted are not made again
/// (`SA_RESTART`).
static SIGNALLED: [AtomicBool; SLOTS] = [const { AtomicBool::new(false) }; SLOTS];
/// Whether the thread in a slot, or its deputy, makes a system call that may be interrupted, or is about to.
static CALLS: [AtomicBool; SLOTS] = [const { AtomicBool::new(false) }; SLOTS];
/// Whether the thread in a slot of this node wants to be cancelled at any time. The C library's own type does not tell,
/// because its cancellation points change it for as long as their system calls take.
static IS_ASYNCHRONOUS: [AtomicBool; SLOTS] = [const { AtomicBool::new(false) }; SLOTS];

/// pthread_setcanceltype(3p) of the C library.
unsafe fn set_type(kind: c_int, before: *mut c_int) -> c_int {
    type SetType = unsafe extern "C-unwind" fn(c_int, *mut c_int) -> c_int;
    // SAFETY: the C library's function, which has this type; the caller's promise.
    unsafe { transmute::<*mut c_void, SetType>(reals::pthread_setcanceltype.address())(kind, before) }
}

/// The calling thread of the program changes when it may be cancelled.
///
/// # Safety
/// The place for the answer is valid, or null.
pub(crate) unsafe fn change_type(kind: c_int, before: *mut c_int) -> c_int {
    IS_ASYNCHRONOUS[own_slot()].store(kind == ASYNCHRONOUS, Ordering::SeqCst);
    // SAFETY: the caller's promise.
    unsafe { set_type(kind, before) }
}

/// The calling thread of the program has just begun.
pub(crate) fn begin_thread() {
    IS_ASYNCHRONOUS[own_slot()].store(false, Ordering::SeqCst);
}

thread_local! {
    /// The slot for which this private thread makes system calls.
    static DEPUTISES: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) };
}

/// Finds out how the C library does it. Called by the first thread of the process, which is never cancelled, when there are
/// other threads: the C library takes the first request for the first thread otherwise.
pub(crate) fn begin() {
    match threads::debugger_offset(c"_thread_db_pthread_cancelhandling") {
        Ok(offset) => WORD_OFFSET.store(offset, Ordering::Relaxed),
        Err(why) => runtime::stop(why),
    }
    let own = word_of(context::thread_pointer());
    let mut before = 0;
    // SAFETY: a request to this thread itself, which ignores it. The first request makes the C library install its handler.
    unsafe {
        pthread_setcancelstate(DISABLE, &mut before);
        let clear = own.load(Ordering::Relaxed);
        pthread_cancel(context::thread_pointer());
        BITS.store(own.swap(clear, Ordering::Relaxed) ^ clear, Ordering::Relaxed);
        pthread_setcancelstate(before, null_mut());
    }
    if BITS.load(Ordering::Relaxed) == 0 {
        runtime::stop("this C library cancels threads in a way that is not known; glibc 2.34 and later are");
    }
    let mut action = actions::action_of(SIGNAL);
    action.sa_sigaction = interrupted as *const () as usize;
    // Not on the alternate stack, which is in the region: the thread may hold locks of Trellis, on its private stack.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler keeps to what a handler may do.
    unsafe { actions::set_action(SIGNAL, &action) };
}

/// The word of a thread's control block that has the bits.
fn word_of(thread: usize) -> &'static AtomicU32 {
    let word = thread + WORD_OFFSET.load(Ordering::Relaxed);
    // SAFETY: a word of the control block of a thread, whose memory is that of a slot and never given back.
    unsafe { AtomicU32::from_ptr(word as *mut u32) }
}

/// Whether somebody has asked to cancel the thread of a slot.
pub(crate) fn is_wanted(slot: usize) -> bool {
    word_of(record(slot).handle.load(Ordering::Relaxed)).load(Ordering::SeqCst) & BITS.load(Ordering::Relaxed) != 0
}

/// pthread_cancel(3p).
pub(crate) fn cancel(thread: usize) -> c_int {
    let thread = early::handle_of(thread);
    let Some(slot) = context::slot_of(thread) else { return libc::ESRCH };
    let control = control();
    match control.states[slot].load(Ordering::Acquire) {
        RUNNING => {}
        FREE => return libc::ESRCH,
        _ => return 0,
    }
    let bits = BITS.load(Ordering::Relaxed);
    let is_first = word_of(thread).fetch_or(bits, Ordering::SeqCst) & bits == 0;
    if thread == context::thread_pointer() {
        end_if_asynchronous();
    } else if is_first {
        let node = control.nodes[slot].load(Ordering::Relaxed) as usize;
        threads::send_anywhere(slot, node, SIGNAL);
        // A call that begins after this look sees the request.
        if record(slot).is_interruptible.load(Ordering::SeqCst) != 0 {
            awaited::send_to_deputy(slot, SIGNAL);
        }
    }
    0
}

/// The calling thread ends if it is to be cancelled, and not only at cancellation points.
fn end_if_asynchronous() {
    // On one node, system calls are not trapped, and the C library's cancellation points wait for this.
    let is_asynchronous =
        if start::nodes() == 1 { has_type() } else { IS_ASYNCHRONOUS[own_slot()].load(Ordering::SeqCst) };
    if is_asynchronous {
        // SAFETY: has no conditions. If the thread is to end, nothing of this function is left.
        unsafe { pthread_testcancel() };
    }
}

/// Whether the calling thread has the type of asynchronous cancellation now. The thread may end here.
fn has_type() -> bool {
    state_and_type().1 == ASYNCHRONOUS
}

/// Whether the calling thread heeds requests, and when. Both are what they were afterwards. The thread may end here.
///
/// The type comes last: where the state makes a thread end, some versions of the C library do not set its result.
fn state_and_type() -> (c_int, c_int) {
    let (mut state, mut kind) = (DISABLE, DEFERRED);
    // SAFETY: room for the answers.
    unsafe {
        pthread_setcancelstate(DISABLE, &mut state);
        set_type(DEFERRED, &mut kind);
        pthread_setcancelstate(state, null_mut());
        set_type(kind, null_mut());
    }
    (state, kind)
}

/// Interrupts what a thread of this node waits for.
pub(crate) fn interrupt(slot: usize) {
    INTERRUPTS[slot].store(true, Ordering::SeqCst);
    WAIT_INTERRUPTS[slot].store(true, Ordering::SeqCst);
    runtime::interrupt();
    if CALLS[slot].load(Ordering::SeqCst) || IS_ASYNCHRONOUS[slot].load(Ordering::SeqCst) || start::nodes() == 1 {
        system_calls::send_here(threads::number_of(slot).load(Ordering::Acquire), SIGNAL);
    }
}

/// Interrupts the system call that the deputy of a slot makes; returns whether it needs the signal.
pub(crate) fn interrupts_call(slot: usize) -> bool {
    INTERRUPTS[slot].store(true, Ordering::SeqCst);
    CALLS[slot].load(Ordering::SeqCst)
}

/// The calling private thread is the deputy of the threads in a slot.
pub(crate) fn begin_deputy(slot: usize) {
    DEPUTISES.set(slot);
}

/// Ends the interrupt of the system call of a slot; returns whether there was one.
pub(crate) fn end_interrupt(slot: usize) -> bool {
    INTERRUPTS[slot].swap(false, Ordering::SeqCst)
}

/// Whether the calling thread of the program is in a cancellation point of the C library, and does not ignore requests. The
/// caller is the handler of a system call; its thread may end here.
pub(crate) fn is_at_point(slot: usize) -> bool {
    system_calls::let_pass(slot, false);
    let now = state_and_type();
    system_calls::let_pass(slot, true);
    now == (ENABLE, ASYNCHRONOUS)
}

/// Interrupts the calling thread itself: its call at node 0 was interrupted there.
pub(crate) fn interrupt_self(slot: usize) {
    INTERRUPTS[slot].store(true, Ordering::SeqCst);
}

/// A handler has run in the thread of a slot, which ends waits that heed signals.
pub(crate) fn signalled(slot: usize) {
    SIGNALLED[slot].store(true, Ordering::SeqCst);
    WAIT_INTERRUPTS[slot].store(true, Ordering::SeqCst);
    // The thread may have been about to sleep when the handler came.
    runtime::interrupt();
}

/// Calls a wait that is a cancellation point, with the address of the interrupt, or 0 if the thread ignores requests. The
/// wait answers EINTR if it was interrupted. Then the thread ends, or this returns that answer.
pub(crate) fn point(wait: impl FnOnce(usize) -> c_int) -> c_int {
    point_of(false, wait)
}

fn point_of(heeds_signals: bool, wait: impl FnOnce(usize) -> c_int) -> c_int {
    // SAFETY: has no conditions. If the thread is to end, nothing of this function is left.
    unsafe { pthread_testcancel() };
    if state_and_type().0 != ENABLE && !heeds_signals {
        return wait(0);
    }
    let slot = own_slot();
    let answer = wait(from_ref(&WAIT_INTERRUPTS[slot]) as usize);
    if answer == libc::EINTR {
        // In this order: a request that comes now sets the interrupt again.
        WAIT_INTERRUPTS[slot].store(false, Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { pthread_testcancel() };
    }
    answer
}

/// As [`point`], for a wait that goes on if the thread does not end. If it heeds signals, it answers EINTR after a handler.
pub(crate) fn repeated_point(heeds_signals: bool, mut wait: impl FnMut(usize) -> c_int) -> c_int {
    let slot = own_slot();
    // Those that came before do not count.
    SIGNALLED[slot].store(false, Ordering::SeqCst);
    loop {
        let answer = point_of(heeds_signals, &mut wait);
        if answer != libc::EINTR || heeds_signals && SIGNALLED[slot].swap(false, Ordering::SeqCst) {
            return answer;
        }
    }
}

/// A system call of the thread, which is a cancellation point, was interrupted: the thread ends if it is to be cancelled.
/// Otherwise the call is to be made again. The callers have nothing to drop.
pub(crate) fn interrupted_at_point(slot: usize) {
    system_calls::let_pass(slot, false);
    // SAFETY: has no conditions.
    unsafe { pthread_testcancel() };
    system_calls::let_pass(slot, true);
}

/// The handler of the signal. A thread of the program that runs its own code may end here. In any other case, the signal has
/// interrupted what the thread waited for, or keeps it from beginning to wait.
unsafe extern "C-unwind" fn interrupted(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    let slot = context::slot();
    // A signal may come late, when the thread has seen its interrupt already.
    let is_due = INTERRUPTS.get(slot.unwrap_or_else(|| DEPUTISES.get())).is_some_and(|due| due.load(Ordering::SeqCst));
    // SAFETY: the kernel passes the registers of the interrupted thread.
    if is_due && kernel::skip_call(unsafe { &mut *context.cast::<libc::ucontext_t>() }) {
        return;
    }
    if slot.is_some_and(|slot| start::nodes() == 1 || !system_calls::pass(slot)) && !context::is_bare() {
        end_if_asynchronous();
    }
}

/// Makes a system call of the calling thread, or of that of the calling deputy: `call` gets the byte that keeps it from
/// beginning.
pub(crate) fn interruptibly(call: impl FnOnce(*const AtomicBool) -> isize) -> isize {
    let slot = context::slot().unwrap_or_else(|| DEPUTISES.get());
    CALLS[slot].store(true, Ordering::SeqCst);
    let answer = call(&raw const INTERRUPTS[slot]);
    CALLS[slot].store(false, Ordering::SeqCst);
    answer
}
