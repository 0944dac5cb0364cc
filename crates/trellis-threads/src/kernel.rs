//! System calls from the code of this library, which the kernel lets pass.
//!
//! Promises: the answer is the kernel's. A call that may be interrupted has not begun as long as the thread is at certain
//! instructions, so that a handler can keep it from beginning.

use std::arch::asm;
use std::sync::atomic::AtomicBool;

/// A system call with its arguments.
pub(crate) type Arguments = [usize; 6];

/// Makes a system call from the code of this library, which the kernel lets pass. The answer is the kernel's.
///
/// # Safety
/// As the system call.
#[inline(never)]
pub(crate) unsafe fn call(number: i64, [a, b, c, d, e, f]: Arguments) -> isize {
    let answer: isize;
    // SAFETY: the caller's promise.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "syscall",
            inout("rax") number as isize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            out("rcx") _, out("r11") _,
            options(nostack),
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            "svc 0",
            in("x8") number,
            inout("x0") a => answer,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    answer
}

// Makes a system call unless a byte is set: `call_unless(number, arguments, byte)`. From `trellis_call_begin` to
// `trellis_call_end`, the call has not begun.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".hidden trellis_call_unless",
    ".hidden trellis_call_begin",
    ".hidden trellis_call_end",
    ".hidden trellis_call_interrupted",
    ".globl trellis_call_unless, trellis_call_begin, trellis_call_end, trellis_call_interrupted",
    ".type trellis_call_unless, @function",
    "trellis_call_unless:",
    "mov rax, rdi",
    "mov rcx, rsi",
    "mov r11, rdx",
    "mov rdi, [rcx]",
    "mov rsi, [rcx + 8]",
    "mov rdx, [rcx + 16]",
    "mov r10, [rcx + 24]",
    "mov r8, [rcx + 32]",
    "mov r9, [rcx + 40]",
    "trellis_call_begin:",
    "cmp byte ptr [r11], 0",
    "jne trellis_call_interrupted",
    "syscall",
    "trellis_call_end:",
    "ret",
    "trellis_call_interrupted:",
    "mov rax, -{interrupted}",
    "ret",
    ".size trellis_call_unless, . - trellis_call_unless",
    interrupted = const libc::EINTR,
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    #[link_name = "trellis_call_unless"]
    pub(crate) fn call_unless(number: i64, arguments: *const Arguments, interrupt: *const AtomicBool) -> isize;
    #[link_name = "trellis_call_begin"]
    static CALL_BEGIN: u8;
    #[link_name = "trellis_call_end"]
    static CALL_END: u8;
    #[link_name = "trellis_call_interrupted"]
    static CALL_INTERRUPTED: u8;
}

/// Where there is no syscall user dispatch, no call is made here for a thread that may be interrupted.
///
/// # Safety
/// As the system call.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn call_unless(number: i64, arguments: *const Arguments, _: *const AtomicBool) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call(number, *arguments) }
}

/// A thread is about to make a call that can be interrupted, or the kernel is about to make it again: it goes on as if the
/// call had been interrupted. Returns whether that is so.
pub(crate) fn skip_call(context: &mut libc::ucontext_t) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let at = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
        let place = |label: &u8| std::ptr::from_ref(label) as i64;
        // SAFETY: addresses of code.
        let [begin, end, interrupted] = unsafe { [&CALL_BEGIN, &CALL_END, &CALL_INTERRUPTED].map(place) };
        if (begin..end).contains(at) {
            *at = interrupted;
            return true;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = context;
    false
}
