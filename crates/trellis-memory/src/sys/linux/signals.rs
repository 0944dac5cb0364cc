//! The signals that a fault becomes, and the application's own handlers for them.
//!
//! Promises: a fault in a region is served. Any other fault reaches the handler that the application installed, or has
//! the default action, including a core dump, as if Trellis were not there. A handler must never allocate, lock or log;
//! the one message that it can write (a forked child touched a region) is composed on the stack, and the process ends
//! after it.
//!
//! Handlers stay installed for the life of the process: removing one would leave a moment in which a fault of another
//! thread finds no handler.

use std::ffi::c_void;
use std::fmt::{self, Write};
use std::io;
use std::mem::{size_of, zeroed};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::{c_int, sigaction as Action, siginfo_t, ucontext_t};

use super::watches::{self, Watch};
use super::{context, errno, stack};

pub use super::watches::REGIONS_MAX;

/// `si_code` of a fault at an address where nothing is mapped.
const SEGV_MAPERR: c_int = 1;
/// `si_code` of a fault that userfaultfd turned into a SIGBUS. A hardware memory error has other codes.
const BUS_ADRERR: c_int = 2;
/// The kernel's signal sets are 64 bits wide; the C library's are larger.
const KERNEL_SET_BYTES: usize = 8;
/// glibc and the kernel on x86-64 keep this flag to themselves: it never comes from an application.
const SA_RESTORER: c_int = 0x0400_0000;
/// The bit of SIGSYS. If system calls become this signal, those of a handler must become it, too.
const SYSTEM_CALL_SIGNAL: u64 = 1 << (libc::SIGSYS - 1);
/// Signals that the running instruction raises: if they were blocked, the kernel would kill the process without a
/// message.
const FAULT_SIGNALS: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGABRT);

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// One signal that may be taken over.
struct Claim {
    /// Whether regions need this handler. The application's actions are then recorded and not installed.
    needed: AtomicBool,
    /// The application's action.
    application: RecordedAction,
}

static SEGMENTATION: Claim = Claim::new();
static BUS: Claim = Claim::new();
static CHANGES: Mutex<()> = Mutex::new(());

/// Takes `signal` over, once per process. With `needed`, faults of regions arrive with it. Otherwise the handler only
/// explains what happened to a forked child, and an application may replace it.
pub(crate) fn take_over(signal: c_int, needed: bool) -> io::Result<()> {
    let _changing = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
    let claim = Claim::of(signal).expect("only SIGSEGV and SIGBUS are taken over");
    let current = installed_action(signal)?;
    if current.handler == on_fault as *const () as usize {
        claim.needed.fetch_or(needed, Ordering::SeqCst);
        return Ok(());
    }
    // The order matters: when the handler runs, it must know to which handler it passes other faults.
    claim.needed.store(false, Ordering::SeqCst);
    claim.application.record(current);
    install(signal)?;
    claim.needed.store(needed, Ordering::SeqCst);
    Ok(())
}

/// Lets a C library that wraps sigaction(2) keep the catcher's handler in place.
///
/// While regions need the handler of `signal` (SIGBUS with the catcher `signal`, SIGSEGV with `mprotect`), the
/// application's action is recorded as the one that receives every fault outside the regions, its former action is
/// written to `previous`, and the result is true: the real sigaction(2) must not be called. Otherwise nothing happens
/// and the result is false. Either pointer may be null, as with sigaction(2). Async-signal-safe, as sigaction(2) is.
///
/// # Safety
/// Each pointer is null or points to a valid `struct sigaction`.
pub unsafe fn claim_signal(signal: c_int, application: *const Action, previous: *mut Action) -> bool {
    let Some(claim) = Claim::of(signal) else { return false };
    if !claim.needed.load(Ordering::SeqCst) {
        return false;
    }
    let wanted = if application.is_null() {
        None
    } else {
        // SAFETY: the caller's promise; copied out before anything is locked.
        Some(PlainAction::of(unsafe { &*application }))
    };
    let former = match wanted {
        Some(wanted) => claim.application.record(wanted),
        None => claim.application.read(),
    };
    if !previous.is_null() {
        // SAFETY: the caller's promise.
        unsafe { previous.write(former.to_action()) };
    }
    true
}

/// Installs the handler.
fn install(signal: c_int) -> io::Result<()> {
    // SAFETY: an all-zero action is a valid one.
    let mut action: Action = unsafe { zeroed() };
    action.sa_sigaction = on_fault as *const () as usize;
    // SA_SIGINFO: without it, there is no fault address. SA_NODEFER: a handler of the application that is called for
    // its own fault may touch a region; without this flag it would fault with the signal blocked, and the kernel would
    // kill the process. SA_ONSTACK, SIGSEGV only: without it, a stack overflow leaves no room for any handler,
    // including the application's. A stack overflow is never a SIGBUS, whose faults are therefore spared the detour
    // over another stack (0.3 µs).
    let stack = if signal == libc::SIGSEGV { libc::SA_ONSTACK } else { 0 };
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | stack;
    // Every other signal waits until the page is there: a handler of the application that interrupted the serving and
    // touched a region would need the locks that this very thread holds. SAFETY: the C library's set starts with the
    // kernel's 64 bits.
    unsafe { (&raw mut action.sa_mask).cast::<u64>().write_unaligned(!FAULT_SIGNALS & !SYSTEM_CALL_SIGNAL) };
    // SAFETY: the handler keeps what this file promises; `action` lives for the call.
    if unsafe { libc::sigaction(signal, &raw const action, null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The kernel's current action for `signal`. It is read without the C library, because a wrapper of Trellis may replace
/// its function.
fn installed_action(signal: c_int) -> io::Result<PlainAction> {
    let mut answer = KernelAction::DEFAULT;
    // SAFETY: the answer has the kernel's layout and lives for the call.
    let done =
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, null::<c_void>(), &raw mut answer, KERNEL_SET_BYTES) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PlainAction { handler: answer.handler, flags: answer.flags as c_int & !SA_RESTORER, mask: answer.mask })
}

/// Restores the default action permanently, without the C library as above.
fn restore_default(signal: c_int) {
    if let Some(claim) = Claim::of(signal) {
        // A library that is asked about each action lets this one pass.
        claim.needed.store(false, Ordering::SeqCst);
    }
    let action = KernelAction::DEFAULT;
    // SAFETY: the action has the kernel's layout; the default action runs no code of this process.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, &raw const action, null::<c_void>(), KERNEL_SET_BYTES) };
}

/// Says that the calling thread is about to touch all of these bytes, and stores to them with `write`. Pages of regions
/// that are missing come together then, instead of one after the other. This is a hint: nothing depends on it.
///
/// Only regions whose faults are served in the faulting thread get the announcement. Async-signal-safe; `errno` stays
/// as it is.
pub fn announce(start: usize, bytes: usize, write: bool) {
    let (mut at, end) = (start, start.saturating_add(bytes));
    while at < end {
        let Some(watch) = watches::find(at).filter(|watch| watch.serves()) else { return };
        let (base, size) = watch.range();
        let upto = end.min(base + size);
        let errno_before = errno();
        // As while a fault is served: a handler of the application would need the locks that this thread holds.
        let mask = change_mask(libc::SIG_BLOCK, !FAULT_SIGNALS & !SYSTEM_CALL_SIGNAL);
        watch.announce(at, upto - 1, write);
        change_mask(libc::SIG_SETMASK, mask);
        // SAFETY: this thread's own errno.
        unsafe { *libc::__errno_location() = errno_before };
        at = upto;
    }
}

/// The handler.
extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let errno_before = errno();
    let context = context.cast::<ucontext_t>();
    // SAFETY: the kernel passes a valid siginfo; for SIGSEGV and SIGBUS it has an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // A signal that was sent has a sender in the place of a fault's address.
    let watch = if code > 0 { watches::find(address) } else { None };
    match (signal, code, watch) {
        (libc::SIGBUS, BUS_ADRERR, Some(watch)) if watch.serves() => serve(watch, address, context),
        (libc::SIGSEGV, SEGV_MAPERR, Some(watch)) => explain_to_child(watch, address, signal),
        (libc::SIGSEGV, _, Some(watch)) if watch.serves() && SEGMENTATION.needed.load(Ordering::SeqCst) => {
            serve(watch, address, context);
        }
        _ => hand_on(signal, info, context),
    }
    // SAFETY: this thread's own errno; the interrupted code must find its previous value.
    unsafe { *libc::__errno_location() = errno_before };
}

struct Serving {
    watch: &'static Watch,
    address: usize,
    write: bool,
}

fn serve(watch: &'static Watch, address: usize, context: *const ucontext_t) {
    // SAFETY: `context` is the handler's third argument.
    let write = unsafe { context::was_write(context) };
    let mut serving = Serving { watch, address, write };
    // SAFETY: the same; `serve_now` takes a Serving, which lives until it returns.
    unsafe { stack::call_with_room(context, serve_now, (&raw mut serving).cast()) };
}

/// `extern "C"`: a panic of the server ends the process here instead of unwinding through a signal
/// frame.
extern "C" fn serve_now(serving: *mut c_void) {
    // SAFETY: `serve` passes its own Serving.
    let serving = unsafe { &*serving.cast::<Serving>() };
    serving.watch.serve(serving.address, serving.write);
}

/// A region exists only in the process that created it. In the parent its addresses are always mapped, so "nothing is
/// mapped there" means that this is a forked child.
fn explain_to_child(watch: &Watch, address: usize, signal: c_int) {
    let (base, bytes) = watch.range();
    let mut text = Sentence::new();
    // SAFETY: getpid has no conditions.
    let process = unsafe { libc::getpid() };
    // A Sentence drops what does not fit, so writing to it cannot fail.
    let _ = writeln!(
        text,
        "trellis: process {process} touched {address:#x} in the shared region {base:#x}-{:#x}, which a forked child \
         does not have; touch it in the parent only, or let the child exec a program that joins the cluster, or opens \
         the store, itself",
        base + bytes
    );
    text.print();
    // The instruction runs again, and its fault now has the default action.
    restore_default(signal);
}

/// Handles a signal as it would have been handled without this handler.
fn hand_on(signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    let Some(claim) = Claim::of(signal) else { return };
    // SAFETY: the kernel passed a valid siginfo.
    let sent = unsafe { (*info).si_code } <= 0;
    let action = claim.application.read();
    match action.handler {
        libc::SIG_IGN if sent => {}
        // A fault cannot be ignored: the kernel, too, takes the default action.
        libc::SIG_DFL | libc::SIG_IGN => {
            restore_default(signal);
            if sent {
                // A sent signal does not recur by itself, so it is sent again. SAFETY: raise(3) has no conditions.
                unsafe { libc::raise(signal) };
            }
        }
        handler => {
            if action.flags & libc::SA_RESETHAND != 0 {
                claim.application.record(PlainAction::DEFAULT);
            }
            call_application(signal, handler, action, info, context);
        }
    }
}

/// Calls the application's handler with the signals blocked that it requested.
fn call_application(
    signal: c_int,
    handler: usize,
    action: PlainAction,
    info: *mut siginfo_t,
    context: *mut ucontext_t,
) {
    // Signals of faults stay unblocked: the handler may touch a region.
    let of_faults = [(&SEGMENTATION, libc::SIGSEGV), (&BUS, libc::SIGBUS)];
    let needed = of_faults.iter().filter(|(claim, _)| claim.needed.load(Ordering::SeqCst));
    let needed = needed.fold(0, |bits, (_, signal)| bits | bit(*signal));
    let own = if action.flags & libc::SA_NODEFER == 0 { bit(signal) } else { 0 };
    // The signals are blocked as if the kernel had called the handler: those that were blocked at the fault, and those
    // that the handler requested. SAFETY: the kernel passed a valid context, whose signal set starts with the kernel's
    // 64 bits.
    let interrupted = unsafe { (&raw const (*context.cast::<ucontext_t>()).uc_sigmask).cast::<u64>().read_unaligned() };
    let before = change_mask(libc::SIG_SETMASK, (interrupted | action.mask | own) & !needed);
    if action.flags & libc::SA_SIGINFO != 0 {
        // SAFETY: the application installed a function of this type with SA_SIGINFO.
        let call: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = unsafe { std::mem::transmute(handler) };
        call(signal, info, context.cast());
    } else {
        // SAFETY: the application installed a function of this type without SA_SIGINFO.
        let call: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
        call(signal);
    }
    change_mask(libc::SIG_SETMASK, before);
}

/// Changes this thread's blocked signals and returns the former ones. Async-signal-safe.
fn change_mask(how: c_int, mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: both sets have the kernel's size and live for the call.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const mask, &raw mut before, KERNEL_SET_BYTES);
    }
    before
}

impl Claim {
    const fn new() -> Claim {
        Claim { needed: AtomicBool::new(false), application: RecordedAction::new() }
    }

    fn of(signal: c_int) -> Option<&'static Claim> {
        match signal {
            libc::SIGSEGV => Some(&SEGMENTATION),
            libc::SIGBUS => Some(&BUS),
            _ => None,
        }
    }
}

/// The kernel's `struct sigaction`, which differs from the C library's.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: usize,
    #[cfg(target_arch = "x86_64")]
    restorer: usize,
    mask: u64,
}

#[cfg(target_arch = "x86_64")]
const _: () = assert!(size_of::<KernelAction>() == 32);
#[cfg(target_arch = "aarch64")]
const _: () = assert!(size_of::<KernelAction>() == 24);

impl KernelAction {
    const DEFAULT: KernelAction = KernelAction {
        handler: libc::SIG_DFL,
        flags: 0,
        #[cfg(target_arch = "x86_64")]
        restorer: 0,
        mask: 0,
    };
}

/// The relevant parts of an action.
#[derive(Clone, Copy)]
struct PlainAction {
    handler: usize,
    flags: c_int,
    mask: u64,
}

impl PlainAction {
    const DEFAULT: PlainAction = PlainAction { handler: libc::SIG_DFL, flags: 0, mask: 0 };

    fn of(action: &Action) -> PlainAction {
        const _: () = assert!(size_of::<libc::sigset_t>() >= KERNEL_SET_BYTES);
        // SAFETY: the C library's set starts with the kernel's 64 bits.
        let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read_unaligned() };
        PlainAction { handler: action.sa_sigaction, flags: action.sa_flags & !SA_RESTORER, mask }
    }

    fn to_action(self) -> Action {
        // SAFETY: an all-zero action is a valid one.
        let mut action: Action = unsafe { zeroed() };
        action.sa_sigaction = self.handler;
        action.sa_flags = self.flags;
        // SAFETY: the C library's set starts with the kernel's 64 bits.
        unsafe { (&raw mut action.sa_mask).cast::<u64>().write_unaligned(self.mask) };
        action
    }
}

/// An action that a signal handler can read while another thread writes it.
///
/// The sequence number is odd during a write. A writer blocks every signal of its thread, so no handler can interrupt a
/// write and then wait for it.
struct RecordedAction {
    sequence: AtomicU32,
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

impl RecordedAction {
    const fn new() -> RecordedAction {
        RecordedAction {
            sequence: AtomicU32::new(0),
            handler: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicI32::new(0),
            mask: AtomicU64::new(0),
        }
    }

    fn read(&self) -> PlainAction {
        loop {
            let sequence = self.sequence.load(Ordering::SeqCst);
            if sequence.is_multiple_of(2) {
                let action = self.load();
                if self.sequence.load(Ordering::SeqCst) == sequence {
                    return action;
                }
            }
            std::hint::spin_loop();
        }
    }

    /// Records an action. Returns the former one.
    fn record(&self, action: PlainAction) -> PlainAction {
        let mask = change_mask(libc::SIG_BLOCK, u64::MAX);
        let mut sequence = self.sequence.load(Ordering::SeqCst);
        loop {
            let even = sequence & !1;
            match self.sequence.compare_exchange_weak(even, even + 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(now) => sequence = now,
            }
            std::hint::spin_loop();
        }
        let former = self.load();
        self.handler.store(action.handler, Ordering::SeqCst);
        self.flags.store(action.flags, Ordering::SeqCst);
        self.mask.store(action.mask, Ordering::SeqCst);
        self.sequence.fetch_add(1, Ordering::SeqCst);
        change_mask(libc::SIG_SETMASK, mask);
        former
    }

    fn load(&self) -> PlainAction {
        PlainAction {
            handler: self.handler.load(Ordering::SeqCst),
            flags: self.flags.load(Ordering::SeqCst),
            mask: self.mask.load(Ordering::SeqCst),
        }
    }
}

/// A line of text on the stack.
struct Sentence {
    text: [u8; 400],
    used: usize,
}

impl Sentence {
    fn new() -> Sentence {
        Sentence { text: [0; 400], used: 0 }
    }

    fn print(&self) {
        // SAFETY: the bytes are this value's; nothing can be done about a closed standard error.
        unsafe { libc::write(libc::STDERR_FILENO, self.text.as_ptr().cast(), self.used) };
    }
}

impl Write for Sentence {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = self.text.len() - self.used;
        let part = &part.as_bytes()[..part.len().min(room)];
        self.text[self.used..self.used + part.len()].copy_from_slice(part);
        self.used += part.len();
        Ok(())
    }
}
