//! Faults of threads of the program, which they serve themselves where the catcher is `signal`.
//!
//! The kernel turns such a fault into SIGBUS. The handler is that of `libtrellis.so`, called on private memory: serving
//! takes locks of Trellis, and the stack and the thread-local variables of the thread can be taken away from it.
//!
//! Promises: a fault of the region is served wherever the program's code or this library makes it, as long as the thread
//! has its private memory. Any other SIGBUS goes to the program's own handler, on the program's memory.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::actions::{self, KernelAction};
use crate::context::{self, aside};
use crate::control::{ALTERNATE_BYTES, ALTERNATE_OFFSET, SLOTS};
use crate::kernel::{Arguments, call};
use crate::runtime::{self, Begin};
use crate::system_calls;

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Signals that are never blocked: the kernel ends a process whose fault is a blocked signal.
pub(crate) const UNBLOCKED: u64 = bit(libc::SIGBUS) | bit(libc::SIGSEGV) | bit(libc::SIGSYS);

/// The memory on which system calls wait: its address and size.
static QUEUED: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));
/// The handler of `libtrellis.so`; 0 where threads do not serve their faults.
static SERVE: AtomicUsize = AtomicUsize::new(0);

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Takes over the signal, if threads are to serve their faults.
pub(crate) fn begin(begin: &Begin) {
    if begin.serves_in_thread == 0 {
        return;
    }
    QUEUED.0.store(begin.queued, Ordering::Relaxed);
    QUEUED.1.store(begin.queued_bytes, Ordering::Relaxed);
    let mut action = actions::action_of(libc::SIGBUS);
    SERVE.store(action.sa_sigaction, Ordering::Release);
    action.sa_sigaction = faulted as Handler as usize;
    action.sa_flags |= libc::SA_ONSTACK;
    // SAFETY: the handler keeps to what a handler may do.
    unsafe { actions::set_action(libc::SIGBUS, &action) };
    runtime::announce_to(announced);
}

/// A system call of the program that is made whole is about to copy memory of the region.
extern "C" fn announced(start: usize, bytes: usize, write: bool) {
    runtime::announce(start, bytes, write);
}

/// Whether threads of the program serve their faults.
pub(crate) fn are_served_in_thread() -> bool {
    SERVE.load(Ordering::Acquire) != 0
}

/// The kernel leaves the stack alone while a handler runs (sigaltstack(2)), which may be on another one meanwhile.
const SS_AUTODISARM: c_int = 1 << 31;

/// The alternate stack that each thread has set: its address, its size, and whether there is one.
static SAID: [[AtomicUsize; 3]; SLOTS] = [const { [const { AtomicUsize::new(0) }; 3] }; SLOTS];
/// Where the stack of each thread was when its last system call came.
static CALLED_AT: [AtomicUsize; SLOTS] = [const { AtomicUsize::new(0) }; SLOTS];

/// The alternate stack of the thread in a slot: a part of its room, on which the kernel waits for pages. The thread's own
/// stack may lie on a page that is not here, such as that of a coroutine in the heap.
fn stack_of(slot: usize) -> libc::stack_t {
    let start = context::room(slot) + ALTERNATE_OFFSET;
    libc::stack_t { ss_sp: start as *mut c_void, ss_flags: SS_AUTODISARM, ss_size: ALTERNATE_BYTES }
}

fn is_on_stack_of(slot: usize, address: usize) -> bool {
    address.wrapping_sub(stack_of(slot).ss_sp as usize) < ALTERNATE_BYTES
}

/// The calling thread has its alternate stack from now on.
pub(crate) fn begin_thread(slot: usize) {
    SAID[slot][2].store(0, Ordering::Relaxed);
    let stack = stack_of(slot);
    // SAFETY: a part of the thread's room, which nothing else uses; the structure is the kernel's.
    unsafe { call(libc::SYS_sigaltstack, [(&raw const stack) as usize, 0, 0, 0, 0, 0]) };
}

/// A handler of this library has begun, on top of a stack that was at `stack_pointer`. If the thread left an earlier handler
/// by siglongjmp(3) or an exception, its alternate stack is still disarmed: it gets it back when this handler ends.
pub(crate) fn rearm(slot: usize, stack_pointer: usize, context: &mut libc::ucontext_t) {
    CALLED_AT[slot].store(stack_pointer, Ordering::Relaxed);
    if context.uc_stack.ss_flags & libc::SS_DISABLE != 0 && !is_on_stack_of(slot, stack_pointer) {
        context.uc_stack = stack_of(slot);
    }
}

/// sigaltstack(2): the thread keeps its alternate stack, and later reads back what it set here.
pub(crate) fn alternate_stack(slot: usize, [new, old, ..]: Arguments) -> isize {
    let said = &SAID[slot];
    // SAFETY: the structures of the program.
    unsafe {
        if old != 0 {
            let [address, bytes, is_there] = [0, 1, 2].map(|index: usize| said[index].load(Ordering::Relaxed));
            let flags = if is_there == 0 { libc::SS_DISABLE } else { 0 };
            let stack = match is_on_stack_of(slot, CALLED_AT[slot].load(Ordering::Relaxed)) {
                true => libc::stack_t { ss_flags: libc::SS_ONSTACK, ..stack_of(slot) },
                false => libc::stack_t { ss_sp: address as *mut c_void, ss_flags: flags, ss_size: bytes },
            };
            (old as *mut libc::stack_t).write(stack);
        }
        if new != 0 {
            let new = (new as *const libc::stack_t).read();
            let is_there = usize::from(new.ss_flags & libc::SS_DISABLE == 0);
            for (place, value) in said.iter().zip([new.ss_sp as usize, new.ss_size, is_there]) {
                place.store(value, Ordering::Relaxed);
            }
        }
    }
    0
}

/// rt_sigaction(2) for SIGBUS: this action gets every SIGBUS that is not a fault of the region. `None` if the region no
/// longer needs the signal, because the process is about to end.
pub(crate) fn action(new: Option<&KernelAction>, old: usize) -> Option<isize> {
    let new = new.map(|action| libc::sigaction::from(*action));
    // SAFETY: the structures of the program, as the kernel has them.
    unsafe {
        let mut before = std::mem::zeroed::<libc::sigaction>();
        let new = new.as_ref().map_or(0, |new| std::ptr::from_ref(new) as usize);
        if !runtime::claim_signal(libc::SIGBUS, new, (&raw mut before) as usize) {
            return None;
        }
        if old != 0 {
            (old as *mut KernelAction).write_unaligned(KernelAction::from(&before));
        }
    }
    Some(0)
}

/// Whether a system call on this memory may fail, because it is the region's and the thread serves its faults.
pub(crate) fn may_fail(address: usize) -> bool {
    let queued = QUEUED.0.load(Ordering::Relaxed);
    SERVE.load(Ordering::Acquire) != 0
        && system_calls::is_shared(address)
        && address.wrapping_sub(queued) >= QUEUED.1.load(Ordering::Relaxed)
}

extern "C" fn faulted(signal: c_int, info: *mut libc::siginfo_t, registers: *mut c_void) {
    // SAFETY: `begin` stored a handler of this type.
    let serve = unsafe { std::mem::transmute::<usize, Handler>(SERVE.load(Ordering::Acquire)) };
    // SAFETY: the kernel passes a valid description; SIGBUS has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    match context::slot() {
        Some(slot) if may_fail(address) => {
            // SAFETY: the kernel passes the registers of the interrupted thread.
            let interrupted = unsafe { &mut *registers.cast::<libc::ucontext_t>() };
            rearm(slot, system_calls::stack_pointer(interrupted), interrupted);
            aside(|| serve(signal, info, registers));
        }
        _ => serve(signal, info, registers),
    }
}
