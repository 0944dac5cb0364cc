//! Calls with a number of arguments that only the program knows: of the functions of regions that LLVM's compilers make, and
//! by `__kmpc_fork_call` and `__kmpc_fork_teams`, which have such arguments themselves.
//!
//! Promises: every argument is passed on as it came. A function that is called finds the stack as the calling convention
//! wants it. Must not be unwound through.

use std::ffi::c_int;

use super::team::{self, ARGUMENTS, Arguments, Work};
use super::this_thread;
use crate::context::own_slot;

/// Calls the function of a region with so many arguments.
///
/// # Safety
/// The function takes them; at least four words can be read there.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn invoke(function: usize, count: usize, arguments: *const usize) {
    /// How many arguments are passed in registers, after the two numbers.
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

/// The same.
///
/// # Safety
/// The same, for ten words.
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
    /// Those that the function does not take are ignored.
    const PASSED: usize = 10;
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

/// `__kmpc_fork_call(place, count, function, ...)`: passes on where the arguments are that follow, of which the first
/// ones are in registers.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_fork_call() {
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
        "call {fork}",
        "leave",
        "ret",
        fork = sym fork_with,
    );
}

/// The same.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_fork_call() {
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
        "bl {fork}",
        "ldp x29, x30, [sp], #64",
        "ret",
        fork = sym fork_with,
    );
}

/// How many arguments of `__kmpc_fork_call` are in registers.
const IN_REGISTERS: usize = if cfg!(target_arch = "x86_64") { 3 } else { 5 };

unsafe extern "C-unwind" fn fork_with(count: c_int, function: usize, registers: *const usize, stack: *const usize) {
    let count = count as usize;
    // SAFETY: the arguments of the call, and what is on the stack.
    let argument = |place: usize| unsafe {
        match place < IN_REGISTERS {
            true => *registers.add(place),
            false => *stack.add(place - IN_REGISTERS),
        }
    };
    fork(function, count, argument);
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

/// `__kmpc_fork_teams(place, count, function, ...)`: one league of one team.
unsafe extern "C-unwind" fn teams_with(count: c_int, function: usize, registers: *const usize, stack: *const usize) {
    let count = count as usize;
    // SAFETY: the arguments of the call, and what is on the stack.
    let mut arguments: Vec<usize> = (0..count)
        .map(|place| unsafe {
            match place < IN_REGISTERS {
                true => *registers.add(place),
                false => *stack.add(place - IN_REGISTERS),
            }
        })
        .collect();
    arguments.resize(count.max(16), 0);
    // SAFETY: the compiler's function.
    unsafe { invoke(function, count, arguments.as_ptr()) };
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_fork_teams() {
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
        "call {fork}",
        "leave",
        "ret",
        fork = sym teams_with,
    );
}
