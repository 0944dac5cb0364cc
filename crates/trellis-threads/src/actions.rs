//! Actions of signals, and the signals that threads of the program block.
//!
//! Promises: a handler of the program is called by this library, on the memory of the program, and returns through it, so
//! that its system calls come to this library as all others. An action counts at every node. Signals of faults and SIGSYS are
//! never blocked.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::kernel::{Arguments, call};
use crate::system_calls::{let_pass, pass};
use crate::{cancellation, context, faults, interrupted, state};

/// An action in the form of the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}
const SA_RESTORER: u64 = 0x0400_0000;

impl KernelAction {
    /// What differs between actions of the program: the handler, the flags and the signals that it blocks.
    pub(crate) fn words(&self) -> [usize; 3] {
        [self.handler, self.flags as usize, self.mask as usize]
    }

    pub(crate) fn of_words([handler, flags, mask]: [usize; 3]) -> KernelAction {
        KernelAction { handler, flags: flags as u64, restorer: way_back(), mask: mask as u64 }
    }
}

impl From<&libc::sigaction> for KernelAction {
    /// The action, with a way back from the handler that lies in this library, whose system calls pass.
    fn from(action: &libc::sigaction) -> KernelAction {
        KernelAction {
            handler: action.sa_sigaction,
            flags: action.sa_flags as u32 as u64 | SA_RESTORER,
            restorer: way_back(),
            // SAFETY: the C library's set begins with the kernel's 64 bits.
            mask: unsafe { (&raw const action.sa_mask).cast::<u64>().read_unaligned() } & !faults::UNBLOCKED,
        }
    }
}

impl From<KernelAction> for libc::sigaction {
    fn from(action: KernelAction) -> libc::sigaction {
        // SAFETY: an action that is zero is valid, and the C library's set begins with the kernel's 64 bits.
        unsafe {
            let mut plain = std::mem::zeroed::<libc::sigaction>();
            plain.sa_sigaction = action.handler;
            plain.sa_flags = (action.flags & !SA_RESTORER) as c_int;
            (&raw mut plain.sa_mask).cast::<u64>().write_unaligned(action.mask);
            plain
        }
    }
}

/// The present action of a signal, also of one that the C library keeps for itself.
pub(crate) fn action_of(signal: c_int) -> libc::sigaction {
    let mut action = MaybeUninit::<KernelAction>::zeroed();
    // SAFETY: room for the answer, in the kernel's form.
    unsafe {
        call(libc::SYS_rt_sigaction, [signal as usize, 0, action.as_mut_ptr() as usize, 8, 0, 0]);
        action.assume_init().into()
    }
}

/// rt_sigaction(2), for a handler of this library.
///
/// # Safety
/// As sigaction(2).
pub(crate) unsafe fn set_action(signal: c_int, action: &libc::sigaction) {
    let kernel = KernelAction::from(action);
    // SAFETY: the caller's promise; the structure is the kernel's.
    unsafe { call(libc::SYS_rt_sigaction, [signal as usize, (&raw const kernel) as usize, 0, 8, 0, 0]) };
}

/// The end of a signal handler, one byte behind: who unwinds the stack looks for the function before the return address, and
/// takes a handler's frame for what it is if there is none that it knows, and the code is this.
#[unsafe(naked)]
unsafe extern "C" fn before_way_back() {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!("nop", "mov rax, 15", "syscall", "ud2");
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!("mov x8, 139", "svc 0", "brk 1");
}

pub(crate) fn way_back() -> usize {
    before_way_back as *const () as usize + usize::from(cfg!(target_arch = "x86_64"))
}

/// rt_sigprocmask(2) on the mask that the kernel restores when the handler returns. Signals of faults
/// and SIGSYS are never blocked: the kernel would end the process at the next fault or system call.
pub(crate) fn mask_changed(mask: &mut u64, [how, set, old, bytes, ..]: Arguments) -> isize {
    if bytes != size_of::<u64>() {
        return -(libc::EINVAL as isize);
    }
    let before = *mask;
    if set != 0 {
        // SAFETY: the program's set, of 64 bits.
        let set = unsafe { (set as *const u64).read_unaligned() };
        *mask = match how as c_int {
            libc::SIG_BLOCK => before | set,
            libc::SIG_UNBLOCK => before & !set,
            libc::SIG_SETMASK => set,
            _ => return -(libc::EINVAL as isize),
        } & !faults::UNBLOCKED;
    }
    if old != 0 {
        // SAFETY: the program's place for the answer.
        unsafe { (old as *mut u64).write_unaligned(before) };
    }
    0
}

/// The program's handlers of signals, and their flags.
static HANDLERS: [[AtomicUsize; 2]; 65] = [const { [const { AtomicUsize::new(0) }; 2] }; 65];

/// rt_sigaction(2): the action counts at every node.
pub(crate) fn action_changed([signal, action, old, bytes, ..]: Arguments) -> isize {
    // SAFETY: the program's action, as the kernel has it.
    let new = (action != 0).then(|| unsafe { (action as *const KernelAction).read_unaligned() });
    match new {
        Some(new) if signal < HANDLERS.len() && signal as c_int != libc::SIGSYS && bytes == size_of::<u64>() => {
            let answer = set_action_of_program(signal, new, old);
            if answer == 0 {
                state::action_was_set(signal, &new);
            }
            answer
        }
        _ => set_action_at_this_node(signal, None, old, bytes),
    }
}

/// sigaction(2) on one node.
///
/// # Safety
/// As sigaction(2), which `real` is.
pub(crate) unsafe fn set_action_of_one_node(
    real: unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int,
    signal: c_int,
    action: *const libc::sigaction,
    before: *mut libc::sigaction,
) -> c_int {
    if signal == libc::SIGSYS || HANDLERS.get(signal as usize).is_none() {
        // SAFETY: the caller's promise.
        return unsafe { real(signal, action, before) };
    }
    let mut old = KernelAction::of_words([0; 3]);
    let to = (&raw mut old) as usize;
    // SAFETY: the caller's structures.
    let answer = unsafe {
        match action.as_ref() {
            Some(action) => set_action_of_program(signal as usize, KernelAction::from(action), to),
            None => set_action_at_this_node(signal as usize, None, to, size_of::<u64>()),
        }
    };
    if answer < 0 {
        trellis_interpose::set_errno(-answer as c_int);
        return -1;
    }
    if !before.is_null() {
        // SAFETY: the caller's place for the answer.
        unsafe { before.write(old.into()) };
    }
    0
}

/// signal(2) on one node.
pub(crate) fn set_handler_of_one_node(signal: c_int, handler: usize) -> usize {
    // SAFETY: an action that is zero but for what is set here.
    unsafe {
        let (mut action, mut before) = (std::mem::zeroed::<libc::sigaction>(), std::mem::zeroed::<libc::sigaction>());
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_RESTART;
        match libc::sigaction(signal, &raw const action, &raw mut before) {
            0 => before.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

/// Sets an action of the program at this node. `old` is the place for the one before, or 0.
pub(crate) fn set_action_of_program(signal: usize, new: KernelAction, old: usize) -> isize {
    if signal as c_int == libc::SIGBUS
        && faults::are_served_in_thread()
        && let Some(answer) = faults::action(Some(&new), old)
    {
        return answer;
    }
    set_action_at_this_node(signal, Some(new), old, size_of::<u64>())
}

/// rt_sigaction(2), but the handler is called by this library, returns through it, and lets the signals of faults and SIGSYS
/// through.
fn set_action_at_this_node(signal: usize, mut changed: Option<KernelAction>, old: usize, bytes: usize) -> isize {
    if signal as c_int == libc::SIGBUS
        && changed.is_none()
        && faults::are_served_in_thread()
        && let Some(answer) = faults::action(None, old)
    {
        return answer;
    }
    let Some(place) = HANDLERS.get(signal).filter(|_| signal as c_int != libc::SIGSYS) else {
        // SAFETY: as the program makes it.
        return unsafe { call(libc::SYS_rt_sigaction, [signal, 0, old, bytes, 0, 0]) };
    };
    let known = [0, 1].map(|index: usize| place[index].load(Ordering::Relaxed));
    // SAFETY: the program's place for the answer, and an action as the kernel has it.
    unsafe {
        if let Some(changed) = &mut changed {
            if changed.handler != libc::SIG_DFL && changed.handler != libc::SIG_IGN {
                place[0].store(changed.handler, Ordering::Relaxed);
                place[1].store(changed.flags as usize, Ordering::Relaxed);
                changed.handler = enter as *const () as usize;
                changed.flags |= libc::SA_SIGINFO as u64;
            }
            changed.flags |= SA_RESTORER;
            changed.restorer = way_back();
            changed.mask &= !faults::UNBLOCKED;
        }
        let mut before = MaybeUninit::<KernelAction>::zeroed();
        let new = changed.as_ref().map_or(0, |changed| std::ptr::from_ref(changed) as usize);
        let answer = call(libc::SYS_rt_sigaction, [signal, new, before.as_mut_ptr() as usize, bytes, 0, 0]);
        if answer < 0 {
            place.iter().zip(known).for_each(|(place, value)| place.store(value, Ordering::Relaxed));
        } else if old != 0 {
            let mut before = before.assume_init();
            if before.handler == enter as *const () as usize {
                before.handler = known[0];
                before.flags = known[1] as u64;
            }
            (old as *mut KernelAction).write_unaligned(before);
        }
        answer
    }
}

/// Calls the program's handler, on the memory of the program. Its system calls come to [`crate::system_calls`] also if it interrupts one
/// that waits, and from then on if it leaves by siglongjmp(3).
extern "C" fn enter(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a description and the registers of the interrupted thread.
    let (is_of_instruction, registers) =
        unsafe { ((*info).si_code > 0 && OF_INSTRUCTIONS.contains(&signal), &mut *context.cast::<libc::ucontext_t>()) };
    match (context::slot(), context::slot_aside()) {
        (Some(slot), _) => {
            let before = pass(slot);
            let_pass(slot, false);
            call_handler(Some(slot), signal, info, context);
            let_pass(slot, before);
        }
        (None, Some(slot)) if !is_of_instruction => {
            // SAFETY: the same.
            unsafe {
                interrupted::handle(slot, signal, info, registers, || call_handler(Some(slot), signal, info, context))
            };
        }
        _ => call_handler(None, signal, info, context),
    }
}

/// Signals that tell of the instruction which the thread is at, unless a thread sent them.
const OF_INSTRUCTIONS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

fn call_handler(slot: Option<usize>, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let [handler, flags] = [0, 1].map(|index: usize| HANDLERS[signal as usize][index].load(Ordering::Relaxed));
    // SAFETY: the function that the program installed, which has one of these types.
    unsafe {
        if flags & libc::SA_SIGINFO as usize != 0 {
            type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            std::mem::transmute::<usize, Handler>(handler)(signal, info, context);
        } else {
            std::mem::transmute::<usize, extern "C" fn(c_int)>(handler)(signal);
        }
    }
    if let Some(slot) = slot.filter(|_| flags & libc::SA_RESTART as usize == 0) {
        cancellation::signalled(slot);
    }
}
