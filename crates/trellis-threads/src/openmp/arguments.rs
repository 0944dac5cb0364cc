//! Calls with a number of arguments that only the program knows: of the functions of regions that LLVM's compilers make, and
//! by `__kmpc_fork_call` and `__kmpc_fork_teams`, which have such arguments themselves.
//!
//! Promises: every argument is passed on as it came. A function that is called finds the stack as the calling convention
//! wants it. Must not be unwound through.

use std::ffi::c_int;

use super::team::{self, ARGUMENTS, Arguments, Work};
use super::this_thread;
use crate::context::own_slot;

/// The number of words that [`invoke`] reads at least.
const PASSED: usize = 10;

/// Calls the function of a region with `count` arguments.
///
/// # Safety
/// The function takes them; at least [`PASSED`] words can be read there.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn invoke(function: usize, count: usize, arguments: *const usize) {
    /// The number of arguments that are passed in registers, after the two numbers.
    const IN_REGISTERS: usize = 4;
    let (global, bound) = (own_slot() as c_int, this_thread().number.get() as c_int);
    let on_stack = count.saturating_sub(IN_REGISTERS);
    // SAFETY: the caller's promise; the stack pointer is kept in a register that the function keeps.
    unsafe {
        std::arch::asm!(
            "mov r12, rsp",
            "sub rsp, rdx",
            "and rsp, -16",
            "mov rdi, rsp",
            "rep movsq",
            "mov rdi, r14",
            "mov rsi, r15",
            "mov rdx, [r13]",
            "mov rcx, [r13 + 8]",
            "mov r8, [r13 + 16]",
            "mov r9, [r13 + 24]",
            "call rax",
            "mov rsp, r12",
            inout("rax") function => _,
            inout("rcx") on_stack => _,
            inout("rdx") on_stack * size_of::<usize>() => _,
            inout("rsi") arguments.add(IN_REGISTERS) => _,
            in("r13") arguments,
            in("r14") &raw const global,
            in("r15") &raw const bound,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// The same. Arguments that the function does not take are ignored.
///
/// # Safety
/// The same.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn invoke(function: usize, count: usize, arguments: *const usize) {
    type Function = extern "C-unwind" fn(
        *const c_int,
        *const c_int,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
    );
    if count > PASSED {
        crate::runtime::unsupported("a region with more than ten shared variables on this processor", super::WAY_OUT);
    }
    let (global, bound) = (own_slot() as c_int, this_thread().number.get() as c_int);
    // SAFETY: the caller's promise.
    unsafe {
        let a = std::slice::from_raw_parts(arguments, PASSED);
        std::mem::transmute::<usize, Function>(function)(
            &global, &bound, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9],
        );
    }
}

/// Defines a function with the arguments (place, count, function, ...), which passes on where those are that follow:
/// the first ones are in registers.
macro_rules! with_any_number {
    ($name:ident = $passes_to:ident) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name() {
            std::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "sub rsp, 32",
                "mov [rsp], rcx",
                "mov [rsp + 8], r8",
                "mov [rsp + 16], r9",
                "mov rdi, rsi",
                "mov rsi, rdx",
                "mov rdx, rsp",
                "lea rcx, [rbp + 16]",
                "call {passes_to}",
                "leave",
                "ret",
                passes_to = sym $passes_to,
            );
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name() {
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-64]!",
                "mov x29, sp",
                "stp x3, x4, [sp, #16]",
                "stp x5, x6, [sp, #32]",
                "str x7, [sp, #48]",
                "mov x0, x1",
                "mov x1, x2",
                "add x2, sp, #16",
                "add x3, sp, #64",
                "bl {passes_to}",
                "ldp x29, x30, [sp], #64",
                "ret",
                passes_to = sym $passes_to,
            );
        }
    };
}

with_any_number! { __kmpc_fork_call = fork_with }
with_any_number! { __kmpc_fork_teams = teams_with }

/// How many of the arguments that follow are in registers.
const IN_REGISTERS: usize = if cfg!(target_arch = "x86_64") { 3 } else { 5 };

/// Returns an argument by its place among those that follow.
///
/// # Safety
/// The call has so many, in these registers and on this stack.
unsafe fn argument(place: usize, registers: *const usize, stack: *const usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        match place < IN_REGISTERS {
            true => *registers.add(place),
            false => *stack.add(place - IN_REGISTERS),
        }
    }
}

unsafe extern "C-unwind" fn fork_with(count: c_int, function: usize, registers: *const usize, stack: *const usize) {
    // SAFETY: the arguments of the call.
    fork(function, count as usize, |place| unsafe { argument(place, registers, stack) });
}

/// One league of one team.
unsafe extern "C-unwind" fn teams_with(count: c_int, function: usize, registers: *const usize, stack: *const usize) {
    let count = count as usize;
    // SAFETY: the arguments of the call.
    let mut arguments: Vec<usize> = (0..count).map(|place| unsafe { argument(place, registers, stack) }).collect();
    // On some processors a function gets more arguments than it takes.
    arguments.resize(count.max(PASSED), 0);
    // SAFETY: the compiler's function.
    unsafe { invoke(function, count, arguments.as_ptr()) };
}

/// Begins a region.
pub(super) fn fork(function: usize, count: usize, argument: impl Fn(usize) -> usize) {
    let wanted = this_thread().pushed_threads.take();
    if count <= ARGUMENTS {
        let words = std::array::from_fn(|place| if place < count { argument(place) } else { 0 });
        return team::fork(Work::Llvm { function, count, arguments: Arguments::Here(words) }, wanted, None);
    }
    let more: Vec<usize> = (0..count).map(argument).collect();
    team::fork(Work::Llvm { function, count, arguments: Arguments::At(more.as_ptr() as usize) }, wanted, None);
}
