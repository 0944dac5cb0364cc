//! Serves a fault on a stack with enough room.
//!
//! The handlers run with SA_ONSTACK, so that a stack overflow of the application still reaches the application's own
//! handler. But an alternate signal stack is small (the Rust runtime gives each thread 8 KiB, of which a signal frame
//! with vector registers takes up to half), and serving a fault sends and receives messages. The interrupted stack has
//! the room, because an access to a region is not a stack overflow. The serving function is therefore called there.
//!
//! While it runs, the alternate stack is disarmed: another signal would otherwise start at its top and overwrite the
//! frame through which this handler returns. The return from the signal restores the alternate stack, as with
//! SS_AUTODISARM.

use std::arch::asm;
use std::ffi::c_void;

use libc::ucontext_t;

use super::context;

/// The x86-64 ABI lets a function keep data up to this far below its stack pointer.
const RED_ZONE_BYTES: usize = 128;

/// Calls `work(argument)`, on the interrupted stack if this code runs on an alternate one.
///
/// # Safety
/// `context` is the third argument of the signal handler that calls this, and `work` may be called
/// with `argument`.
pub(crate) unsafe fn call_with_room(
    context: *const ucontext_t,
    work: extern "C" fn(*mut c_void),
    argument: *mut c_void,
) {
    // SAFETY: the caller's promise about `context`.
    let (alternate, interrupted) = unsafe { ((*context).uc_stack, context::stack_pointer(context)) };
    let start = alternate.ss_sp as usize;
    let on_alternate = |address: usize| address.wrapping_sub(start) < alternate.ss_size;
    let here = (&raw const alternate) as usize;
    if !on_alternate(here) || on_alternate(interrupted) {
        work(argument);
        return;
    }
    let top = (interrupted - RED_ZONE_BYTES) & !15;
    let mut call = Call { work, argument };
    // SAFETY: `top` is the free end of this thread's interrupted stack, which is unchanged until this returns.
    unsafe { call_on(top, disarmed, (&raw mut call).cast()) };
}

struct Call {
    work: extern "C" fn(*mut c_void),
    argument: *mut c_void,
}

extern "C" fn disarmed(call: *mut c_void) {
    // SAFETY: `call_with_room` passes its Call, which outlives this function.
    let call = unsafe { &*call.cast::<Call>() };
    let off = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: this thread's alternate stack may be disarmed because it is no longer in use.
    let done = unsafe { libc::sigaltstack(&raw const off, std::ptr::null_mut()) };
    debug_assert_eq!(done, 0, "the alternate stack is disarmed from another stack");
    (call.work)(call.argument);
}

/// # Safety
/// `top` is 16-byte aligned and everything below it on this thread's stack is free; `work` may be
/// called.
#[cfg(target_arch = "x86_64")]
unsafe fn call_on(top: usize, work: extern "C" fn(*mut c_void), argument: *mut c_void) {
    // SAFETY: r12 survives the call by the ABI and restores the old stack; everything else that a call may change is
    // declared.
    unsafe {
        asm!(
            "xchg rsp, r12",
            "call {work}",
            "mov rsp, r12",
            work = in(reg) work,
            inout("r12") top => _,
            in("rdi") argument,
            clobber_abi("C"),
        );
    }
}

/// # Safety
/// `top` is 16-byte aligned and everything below it on this thread's stack is free; `work` may be
/// called.
#[cfg(target_arch = "aarch64")]
unsafe fn call_on(top: usize, work: extern "C" fn(*mut c_void), argument: *mut c_void) {
    // SAFETY: x20 survives the call by the ABI and restores the old stack; everything else that a call may change is
    // declared.
    unsafe {
        asm!(
            "mov x9, sp",
            "mov sp, x20",
            "mov x20, x9",
            "blr {work}",
            "mov sp, x20",
            work = in(reg) work,
            inout("x20") top => _,
            in("x0") argument,
            out("x9") _,
            clobber_abi("C"),
        );
    }
}
