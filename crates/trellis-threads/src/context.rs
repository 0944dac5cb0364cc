//! The private memory of a thread of the program: a stack, and thread-local variables.
//!
//! Each thread of the program has a companion, a private thread that made it. The companion lends it its stack and its
//! thread-local variables, and waits until it gets them back. In between, the thread changes the stack pointer and the
//! thread pointer, calls, and changes them back. Then no page of the region is needed for what Trellis' code does itself.
//!
//! Promises: [`aside`] calls on private memory, whichever thread calls it, and at once where it is private already. The
//! two threads never use that memory at the same time: the companion waits with a system call of its own, which touches
//! neither. The thread pointer is changed first and restored last, so that a signal handler in between counts as private
//! code and does not use the private stack from its top. The code that is called must not unwind. While it waits without a
//! lock, [`back`] calls on the memory of the program.

use std::arch::asm;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::control::SLOTS;
use crate::{interrupted, system_calls};

/// The private memory of the thread in a slot.
struct Context {
    /// The upper end of its stack, which grows downwards.
    stack: AtomicUsize,
    thread_pointer: AtomicUsize,
    /// Who uses the memory: one of the constants below.
    state: AtomicU32,
    /// 1 until the kernel has ended the thread, which sets it to 0.
    alive: AtomicU32,
    /// While the thread is on its private memory: its own thread pointer, and where its own stack is free.
    own_thread_pointer: AtomicUsize,
    own_stack: AtomicUsize,
}

/// The companion uses its memory itself.
const OWN: u32 = 0;
/// The thread may use it.
const LENT: u32 = 1;

static CONTEXTS: [Context; SLOTS] = [const {
    Context {
        stack: AtomicUsize::new(0),
        thread_pointer: AtomicUsize::new(0),
        state: AtomicU32::new(OWN),
        alive: AtomicU32::new(0),
        own_thread_pointer: AtomicUsize::new(0),
        own_stack: AtomicUsize::new(0),
    }
}; SLOTS];

thread_local! {
    /// In a companion: the slot of the thread that it accompanies, plus one.
    static ACCOMPANIED: Cell<usize> = const { Cell::new(0) };
}

/// The address of the room of the first thread, and the size of all rooms; 0 before the program begins.
pub(crate) static ROOMS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static ROOM_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Sets where the rooms are. Threads whose thread-local variables lie there are threads of the program from now on.
pub(crate) fn begin(rooms: usize, room_bytes: usize) {
    ROOM_BYTES.store(room_bytes, Ordering::Relaxed);
    ROOMS[0].store(rooms, Ordering::Relaxed);
    ROOMS[1].store(room_bytes * SLOTS, Ordering::Release);
}

/// The address of the control block of the calling thread, which is also its handle in pthreads.
#[inline]
pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a word that every thread of glibc has there (x86-64), or a register (aarch64).
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("mov {}, fs:[0x10]", out(reg) pointer, options(nostack, preserves_flags, readonly));
        #[cfg(target_arch = "aarch64")]
        asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, nomem));
    }
    pointer
}

/// The slot of the thread of the program whose control block is at this address.
#[inline]
pub(crate) fn slot_of(thread_pointer: usize) -> Option<usize> {
    let inside = thread_pointer.wrapping_sub(ROOMS[0].load(Ordering::Relaxed));
    (inside < ROOMS[1].load(Ordering::Acquire)).then(|| inside / ROOM_BYTES.load(Ordering::Relaxed))
}

/// The slot of the calling thread; `None` if it is private, or on private memory now.
#[inline]
pub(crate) fn slot() -> Option<usize> {
    slot_of(thread_pointer())
}

/// The slot of the calling thread, which is one of the program.
#[inline]
pub(crate) fn own_slot() -> usize {
    slot().expect("the caller is a thread of the program")
}

/// Whether the caller is a thread of the program, on the program's memory.
#[inline]
pub(crate) fn is_of_program() -> bool {
    slot().is_some()
}

/// The address of the room of a slot.
pub(crate) fn room(slot: usize) -> usize {
    ROOMS[0].load(Ordering::Relaxed) + slot * ROOM_BYTES.load(Ordering::Relaxed)
}

/// The size of a room.
pub(crate) fn room_bytes() -> usize {
    ROOM_BYTES.load(Ordering::Relaxed)
}

/// The calling thread lends its memory to the thread in `slot`, except `reserve` bytes of its stack, and returns when it
/// has it back and the thread has ended.
pub(crate) fn lend_to(slot: usize, reserve: usize) {
    let here = 0u8;
    let context = &CONTEXTS[slot];
    ACCOMPANIED.set(slot + 1);
    context.stack.store(((&raw const here) as usize - reserve) & !63, Ordering::Relaxed);
    context.thread_pointer.store(thread_pointer(), Ordering::Relaxed);
    context.alive.store(1, Ordering::Relaxed);
    context.state.store(LENT, Ordering::Release);
    futex(&context.state, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
    while context.state.load(Ordering::Acquire) == LENT {
        futex(&context.state, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, LENT);
    }
    // The kernel wakes waiters of this word as those of a futex that several processes share.
    while context.alive.load(Ordering::Acquire) != 0 {
        futex(&context.alive, libc::FUTEX_WAIT, 1);
    }
}

/// The slot of the calling thread of the program while it is on its private memory.
pub(crate) fn slot_aside() -> Option<usize> {
    let slot = ACCOMPANIED.get().checked_sub(1)?;
    (CONTEXTS[slot].state.load(Ordering::Relaxed) == LENT).then_some(slot)
}

/// The calling thread of the program waits until its companion has lent it its memory.
pub(crate) fn borrow() {
    let state = &CONTEXTS[own_slot()].state;
    while state.load(Ordering::Acquire) == OWN {
        futex(state, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, OWN);
    }
}

/// The calling thread of the program gives the memory back. From then on it has none, and must not need any.
///
/// The kernel will say at a private place that the thread has ended. The C library's own place for that is in the region,
/// and the kernel does not wait for a page of a thread that ends.
pub(crate) fn give_back() {
    let context = &CONTEXTS[own_slot()];
    system_calls::tell_end_to(&context.alive);
    context.state.store(OWN, Ordering::Release);
    futex(&context.state, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
}

/// Whether the calling thread is one of the program that has given its private memory back, because it ends.
pub(crate) fn is_bare() -> bool {
    slot().is_some_and(|slot| CONTEXTS[slot].state.load(Ordering::Relaxed) == OWN)
}

/// futex(2) for waiting without a limit and for waking. It touches no stack and no thread-local variable, not even `errno`.
fn futex(word: &AtomicU32, operation: libc::c_int, value: u32) {
    let word = word.as_ptr() as usize;
    // SAFETY: a system call on a word that lives as long as the process; the kernel keeps all registers but the ones named.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "syscall",
            inout("rax") libc::SYS_futex => _,
            in("rdi") word,
            in("rsi") operation as usize,
            in("rdx") value as usize,
            in("r10") 0usize,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            "svc 0",
            in("x8") libc::SYS_futex,
            inout("x0") word => _,
            in("x1") operation as usize,
            in("x2") value as usize,
            in("x3") 0usize,
            options(nostack),
        );
    }
}

/// Waits while a word of private memory has this value; on private memory. The caller looks a few times before it sleeps.
pub(crate) fn wait_while(word: &AtomicU32, value: u32) {
    /// About as long as a thread needs that is about to change the word.
    const LOOKS: u32 = 100;
    for _ in 0..LOOKS {
        if word.load(Ordering::Acquire) != value {
            return;
        }
        std::hint::spin_loop();
    }
    while word.load(Ordering::Acquire) == value {
        interrupted::slept(true);
        futex(word, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, value);
        interrupted::slept(false);
    }
}

/// Wakes all threads that wait for a word of private memory.
pub(crate) fn wake_all(word: &AtomicU32) {
    futex(word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX as u32);
}

/// Calls `work` on private memory.
#[inline]
pub(crate) fn aside<T>(work: impl FnOnce() -> T) -> T {
    match slot() {
        None => work(),
        Some(slot) => switched(slot, work),
    }
}

/// The values that [`switched`] passes to the other stack.
struct Passed<W, T> {
    work: MaybeUninit<W>,
    result: MaybeUninit<T>,
}

fn switched<W: FnOnce() -> T, T>(slot: usize, work: W) -> T {
    extern "C" fn run<W: FnOnce() -> T, T>(passed: *mut Passed<W, T>) {
        // SAFETY: `switched` passes a value that lives until this returns, with the work in it, once.
        unsafe {
            let work = (*passed).work.assume_init_read();
            (*passed).result.write(work());
        }
    }
    let mut passed = Passed { work: MaybeUninit::new(work), result: MaybeUninit::<T>::uninit() };
    let context = &CONTEXTS[slot];
    debug_assert_eq!(context.state.load(Ordering::Relaxed), LENT, "the thread has private memory");
    let stack = context.stack.load(Ordering::Relaxed);
    let own_stack = context.own_stack.swap(below(stack_pointer()), Ordering::Relaxed);
    context.own_thread_pointer.store(thread_pointer(), Ordering::Relaxed);
    let passes = system_calls::pass(slot);
    system_calls::let_pass(slot, true);
    // SAFETY: the companion of this thread waits until it has its memory back, so that is unused below what it reserved; it
    // is aligned as the calling convention wants.
    unsafe {
        change(
            stack,
            context.thread_pointer.load(Ordering::Relaxed),
            run::<W, T> as *const () as usize,
            &raw mut passed as usize,
        );
        context.own_stack.store(own_stack, Ordering::Relaxed);
        system_calls::let_pass(slot, passes);
        interrupted::end_aside(slot);
        passed.result.assume_init()
    }
}

/// The memory below a stack pointer that is left free: for the code that changes the stack, and for a signal that comes
/// before it has.
const LEFT_FREE_BYTES: usize = 32 << 10;

/// Where a stack is free whose pointer is here.
fn below(stack_pointer: usize) -> usize {
    (stack_pointer - LEFT_FREE_BYTES) & !63
}

/// The stack pointer of the caller, or a lower address.
#[inline(always)]
fn stack_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        asm!("mov {}, sp", out(reg) pointer, options(nomem, nostack, preserves_flags));
    }
    pointer
}

/// Calls `work` on the memory of the program, for a thread that is on its private memory and holds no lock. What `work`
/// does aside uses the private stack below what is used now, or below the place where it was interrupted if the caller is
/// on another stack.
pub(crate) fn back<W: FnOnce()>(slot: usize, interrupted: Option<usize>, work: W) {
    extern "C" fn run<W: FnOnce()>(work: *mut MaybeUninit<W>) {
        // SAFETY: `back` passes a value that lives until this returns, once.
        let work = unsafe { (*work).assume_init_read() };
        work();
    }
    /// A thread on its private stack is this far from another place of it at most.
    const STACK_BYTES_MAX: usize = 1 << 20;
    let mut work = MaybeUninit::new(work);
    let (context, now) = (&CONTEXTS[slot], stack_pointer());
    let lowest = interrupted.filter(|place| place.wrapping_sub(now) >= STACK_BYTES_MAX).unwrap_or(now);
    let stack = context.stack.swap(below(lowest), Ordering::Relaxed);
    let own_stack = context.own_stack.load(Ordering::Relaxed);
    system_calls::let_pass(slot, false);
    // SAFETY: the thread's own stack is free there, and its own thread pointer is not used while it is aside.
    unsafe {
        change(
            own_stack,
            context.own_thread_pointer.load(Ordering::Relaxed),
            run::<W> as *const () as usize,
            &raw mut work as usize,
        );
    }
    system_calls::let_pass(slot, true);
    context.own_stack.store(own_stack, Ordering::Relaxed);
    context.stack.store(stack, Ordering::Relaxed);
}

/// Calls a function with one argument on another stack, with another thread pointer.
///
/// # Safety
/// The stack is unused and aligned, and the thread pointer is that of a thread that only waits.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn change(stack: usize, theirs: usize, function: usize, argument: usize) {
    let ours = thread_pointer();
    // SAFETY: the caller's promise. r12 and r13 keep their values in the function that is called.
    unsafe {
        asm!(
            "wrfsbase {theirs}",
            "mov r12, rsp",
            "mov rsp, {stack}",
            "call {function}",
            "mov rsp, r12",
            "wrfsbase r13",
            theirs = in(reg) theirs,
            stack = in(reg) stack,
            function = in(reg) function,
            in("r13") ours,
            inout("rdi") argument => _,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// The same.
///
/// # Safety
/// The same.
#[cfg(target_arch = "aarch64")]
#[inline(never)]
unsafe fn change(stack: usize, theirs: usize, function: usize, argument: usize) {
    let ours = thread_pointer();
    // SAFETY: the caller's promise. x21 and x22 keep their values in the function that is called.
    unsafe {
        asm!(
            "msr tpidr_el0, {theirs}",
            "mov x21, sp",
            "mov sp, {stack}",
            "blr {function}",
            "mov sp, x21",
            "msr tpidr_el0, x22",
            theirs = in(reg) theirs,
            stack = in(reg) stack,
            function = in(reg) function,
            in("x22") ours,
            inout("x0") argument => _,
            out("x21") _,
            clobber_abi("C"),
        );
    }
}

/// Checks whether threads can change their thread pointer here. The error says why not.
pub(crate) fn possible() -> Result<(), &'static str> {
    #[cfg(target_arch = "x86_64")]
    {
        /// The bit of `AT_HWCAP2` by which the kernel says that programs may use the instruction.
        const HWCAP2_FSGSBASE: u64 = 1 << 1;
        // SAFETY: reads what the kernel gave this process.
        if unsafe { libc::getauxval(libc::AT_HWCAP2) } & HWCAP2_FSGSBASE == 0 {
            return Err(
                "this kernel or processor does not let programs use the instruction wrfsbase; Linux 5.9 and a processor of \
                 2013 or later do",
            );
        }
    }
    Ok(())
}
