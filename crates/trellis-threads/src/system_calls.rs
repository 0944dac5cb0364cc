//! System calls of threads of the program.
//!
//! The kernel turns them into SIGSYS (syscall user dispatch, prctl(2)), wherever they are made, also inside the C library.
//! The program is one process, and that process is node 0's: its files, sockets, working directory and identity are there.
//! The handler has calls about files and the like made at node 0, with the same arguments: what they point to is the same
//! memory there. A futex in the region is one of the cluster, because the locks of streams and others that the C library
//! makes for itself are in the region. All other calls are made here.
//!
//! Promises: a system call is made once, at one node, and its answer and error are those of the kernel there. Trellis' own
//! system calls are not touched: the thread lets them pass while it is on private memory. A call that would be about the
//! wrong process ends the run with a sentence. One that waits holds up nobody but its thread, because each thread has a
//! deputy at node 0 that makes its calls.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use crate::context::{self, aside};
#[cfg(target_arch = "x86_64")]
use crate::control::ROOM_BYTES;
use crate::control::{INTERRUPTED, INTERRUPTIBLE, SLOTS, record};
use crate::kernel::{Arguments, call};
use crate::time::FOREVER;
use crate::{
    actions, awaited, cancellation, conditions, faults, libraries, memory, processors, runtime, start, threads, whole,
};

/// Values of the byte at which the kernel looks (linux/prctl.h).
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;
const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
const PR_SYS_DISPATCH_ON: usize = 1;

/// Numbers of system calls are below this, and addresses of functions above.
const SYSTEM_CALLS_MAX: i64 = 4096;

/// The byte of each thread at which the kernel looks for each of its system calls.
static SELECTORS: [AtomicU8; SLOTS] = [const { AtomicU8::new(ALLOW) }; SLOTS];
/// The address and the number of the pairs of addresses between which the program's variables lie.
static IMAGES: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));
/// The number of this process. At nodes other than node 0, it is not the number of the program.
static OWN_PROCESS: AtomicI32 = AtomicI32::new(0);
/// Whether the system calls of any thread come here.
static IS_ON: AtomicBool = AtomicBool::new(false);
/// Whether the thread has a deputy at node 0, which only that node uses.
static DEPUTIES: [AtomicBool; SLOTS] = [const { AtomicBool::new(false) }; SLOTS];

/// The place where a system call is made.
enum Place {
    Here,
    /// Node 0, where the program's files and identity are.
    FirstNode,
    /// Nowhere. The text completes "… is not supported by `trellis threads`; ".
    Nowhere(&'static str),
}

const START_ELSEWHERE: &str = "use system or posix_spawn, or let the main thread start other programs";

fn place_of(number: i64) -> Place {
    #[cfg(target_arch = "x86_64")]
    {
        match number {
            libc::SYS_fork | libc::SYS_vfork => return Place::Nowhere(START_ELSEWHERE),
            libc::SYS_open
            | libc::SYS_creat
            | libc::SYS_stat
            | libc::SYS_lstat
            | libc::SYS_poll
            | libc::SYS_select
            | libc::SYS_access
            | libc::SYS_pipe
            | libc::SYS_dup2
            | libc::SYS_rename
            | libc::SYS_mkdir
            | libc::SYS_rmdir
            | libc::SYS_link
            | libc::SYS_unlink
            | libc::SYS_symlink
            | libc::SYS_readlink
            | libc::SYS_chmod
            | libc::SYS_chown
            | libc::SYS_lchown
            | libc::SYS_getdents
            | libc::SYS_utime
            | libc::SYS_utimes
            | libc::SYS_mknod
            | libc::SYS_epoll_create
            | libc::SYS_epoll_wait
            | libc::SYS_eventfd
            | libc::SYS_signalfd
            | libc::SYS_inotify_init
            | libc::SYS_futimesat
            | libc::SYS_getpgrp
            | libc::SYS_alarm => return Place::FirstNode,
            _ => {}
        }
    }
    match number {
        // Files and folders.
        libc::SYS_read | libc::SYS_write | libc::SYS_close | libc::SYS_fstat | libc::SYS_lseek | libc::SYS_ioctl
        | libc::SYS_pread64 | libc::SYS_pwrite64 | libc::SYS_readv | libc::SYS_writev | libc::SYS_preadv
        | libc::SYS_pwritev | libc::SYS_preadv2 | libc::SYS_pwritev2 | libc::SYS_dup | libc::SYS_dup3
        | libc::SYS_pipe2 | libc::SYS_sendfile | libc::SYS_fcntl | libc::SYS_flock | libc::SYS_fsync
        | libc::SYS_fdatasync | libc::SYS_truncate | libc::SYS_ftruncate | libc::SYS_getdents64 | libc::SYS_getcwd
        | libc::SYS_chdir | libc::SYS_fchdir | libc::SYS_fchmod | libc::SYS_fchown | libc::SYS_umask
        | libc::SYS_openat | libc::SYS_openat2 | libc::SYS_mkdirat | libc::SYS_mknodat | libc::SYS_fchownat
        | libc::SYS_newfstatat | libc::SYS_unlinkat | libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat
        | libc::SYS_symlinkat | libc::SYS_readlinkat | libc::SYS_fchmodat | libc::SYS_faccessat
        | libc::SYS_faccessat2 | libc::SYS_utimensat | libc::SYS_statx | libc::SYS_statfs | libc::SYS_fstatfs
        | libc::SYS_fallocate | libc::SYS_fadvise64 | libc::SYS_readahead | libc::SYS_splice | libc::SYS_tee
        | libc::SYS_vmsplice | libc::SYS_copy_file_range | libc::SYS_sync | libc::SYS_syncfs
        | libc::SYS_sync_file_range | libc::SYS_setxattr | libc::SYS_lsetxattr | libc::SYS_fsetxattr
        | libc::SYS_getxattr | libc::SYS_lgetxattr | libc::SYS_fgetxattr | libc::SYS_listxattr
        | libc::SYS_llistxattr | libc::SYS_flistxattr | libc::SYS_removexattr | libc::SYS_lremovexattr
        | libc::SYS_fremovexattr | libc::SYS_close_range | libc::SYS_chroot | libc::SYS_memfd_create
        // Descriptors of other kinds, and waiting for them.
        | libc::SYS_ppoll | libc::SYS_pselect6 | libc::SYS_epoll_create1 | libc::SYS_epoll_ctl
        | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 | libc::SYS_eventfd2 | libc::SYS_timerfd_create
        | libc::SYS_timerfd_settime | libc::SYS_timerfd_gettime | libc::SYS_signalfd4 | libc::SYS_inotify_init1
        | libc::SYS_inotify_add_watch | libc::SYS_inotify_rm_watch
        // Sockets.
        | libc::SYS_socket | libc::SYS_socketpair | libc::SYS_bind | libc::SYS_listen | libc::SYS_accept
        | libc::SYS_accept4 | libc::SYS_connect | libc::SYS_getsockname | libc::SYS_getpeername | libc::SYS_sendto
        | libc::SYS_recvfrom | libc::SYS_setsockopt | libc::SYS_getsockopt | libc::SYS_shutdown
        | libc::SYS_sendmsg | libc::SYS_recvmsg | libc::SYS_sendmmsg | libc::SYS_recvmmsg
        // The process, its family and its user.
        | libc::SYS_getppid | libc::SYS_getpgid | libc::SYS_setpgid | libc::SYS_getsid
        | libc::SYS_setsid | libc::SYS_getuid | libc::SYS_geteuid | libc::SYS_getgid | libc::SYS_getegid
        | libc::SYS_getresuid | libc::SYS_getresgid | libc::SYS_getgroups | libc::SYS_wait4 | libc::SYS_waitid
        | libc::SYS_kill | libc::SYS_getrlimit | libc::SYS_setrlimit | libc::SYS_prlimit64 | libc::SYS_times
        | libc::SYS_getrusage | libc::SYS_uname | libc::SYS_sysinfo | libc::SYS_getpriority
        | libc::SYS_setpriority | libc::SYS_setitimer | libc::SYS_getitimer => Place::FirstNode,
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_execve | libc::SYS_execveat => Place::Nowhere(START_ELSEWHERE),
        libc::SYS_io_uring_setup | libc::SYS_io_setup => Place::Nowhere("read and write in the usual way"),
        libc::SYS_setuid | libc::SYS_setgid | libc::SYS_setreuid | libc::SYS_setregid | libc::SYS_setresuid
        | libc::SYS_setresgid | libc::SYS_setgroups | libc::SYS_unshare | libc::SYS_setns => {
            Place::Nowhere("change the user before threads are made")
        }
        _ => Place::Here,
    }
}

/// Whether the kernel uses the memory of such calls when they have returned.
fn is_asynchronous(number: i64) -> bool {
    [libc::SYS_io_uring_setup, libc::SYS_io_setup].contains(&number)
}

/// Called by a thread of the program that has just begun: from now on its system calls come to [`trapped`], unless this
/// is the only node.
pub(crate) fn begin_thread() {
    if start::nodes() > 1 {
        faults::begin_thread(context::own_slot());
        trap_all();
    }
}

/// From now on all system calls of the calling thread of the program come to [`trapped`].
pub(crate) fn trap_all() {
    let (first, bytes) = own_code();
    let selector = &SELECTORS[context::own_slot()];
    selector.store(ALLOW, Ordering::Relaxed);
    // SAFETY: a byte that lives as long as the process, and the code of this library, whose calls pass.
    let done = unsafe {
        libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, first, bytes, selector.as_ptr() as usize)
    };
    if done != 0 {
        runtime::unsupported(
            "a kernel without syscall user dispatch",
            "Linux 5.11 on x86-64 has it; run all threads at one node (-n 1) where it is missing",
        );
    }
    // The program may have taken SIGSYS over while its system calls were not trapped, as programs in Fortran do.
    handle();
    IS_ON.store(true, Ordering::Relaxed);
    selector.store(BLOCK, Ordering::Relaxed);
}

/// Called when the thread is about to run code of Trellis on private memory, and when it is back.
#[inline]
pub(crate) fn let_pass(slot: usize, passes: bool) {
    if IS_ON.load(Ordering::Relaxed) {
        SELECTORS[slot].store(if passes { ALLOW } else { BLOCK }, Ordering::Relaxed);
    }
}

/// Whether the calling thread's system calls pass now.
pub(crate) fn pass(slot: usize) -> bool {
    SELECTORS[slot].load(Ordering::Relaxed) == ALLOW
}

/// Takes over SIGSYS. `images` are pairs of addresses, between which are variables of the program.
pub(crate) fn begin(images: usize, count: usize) {
    IMAGES.0.store(images, Ordering::Relaxed);
    IMAGES.1.store(count, Ordering::Release);
    // SAFETY: has no conditions.
    OWN_PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    handle();
}

/// From now on SIGSYS comes to [`trapped`].
fn handle() {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: an action that is zero but for what is set here; the handler is one for three arguments.
    unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = trapped as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
        actions::set_action(libc::SIGSYS, action);
    }
}

/// Sends a signal to a thread of this process, if it has not ended. The answer is the kernel's.
pub(crate) fn send_here(thread: u32, signal: c_int) -> isize {
    let process = OWN_PROCESS.load(Ordering::Relaxed) as usize;
    // SAFETY: has no conditions.
    unsafe { call(libc::SYS_tgkill, [process, thread as usize, signal as usize, 0, 0, 0]) }
}

/// The address at which threads go on after [`start_child`].
#[cfg(target_arch = "x86_64")]
static CONTINUATIONS: [AtomicUsize; SLOTS] = [const { AtomicUsize::new(0) }; SLOTS];

/// Whether a system call makes a process that shares the memory of this one, or a copy of it.
#[cfg(target_arch = "x86_64")]
fn makes_a_process(number: i64, arguments: Arguments) -> bool {
    let flags = match number {
        libc::SYS_vfork => return true,
        libc::SYS_clone => arguments[0],
        // SAFETY: the structure begins with the flags (clone3(2)).
        libc::SYS_clone3 => unsafe { (arguments[0] as *const usize).read() },
        libc::SYS_fork => 0,
        _ => return false,
    };
    let shares_until_exec = (libc::CLONE_VM | libc::CLONE_VFORK) as usize;
    if flags & libc::CLONE_THREAD as usize != 0 {
        runtime::unsupported("a thread that the C library makes for itself", "do not use SIGEV_THREAD");
    }
    if flags & shares_until_exec != shares_until_exec {
        runtime::unsupported("fork without exec", "posix_spawn, system and popen are");
    }
    true
}

/// The arguments of a system call, from the registers of the thread that makes it.
#[cfg(target_arch = "x86_64")]
fn arguments_of(registers: &[i64; 23]) -> Arguments {
    [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9]
        .map(|register| registers[register as usize] as usize)
}

/// Makes the system call that is in the registers and goes on where the thread was, in the child too: its stack may be
/// another one, so the call cannot be made in the handler. It uses only the registers that a system call destroys.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn start_child() {
    std::arch::naked_asm!(
        "syscall",
        "mov rcx, fs:[0x10]",
        "sub rcx, [rip + {rooms}]",
        "shr rcx, {shift}",
        "lea r11, [rip + {continuations}]",
        "jmp [r11 + 8 * rcx]",
        rooms = sym context::ROOMS,
        shift = const ROOM_BYTES.trailing_zeros(),
        continuations = sym CONTINUATIONS,
    );
}

/// The stack pointer of the interrupted thread.
pub(crate) fn stack_pointer(context: &libc::ucontext_t) -> usize {
    #[cfg(target_arch = "x86_64")]
    return context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    #[cfg(target_arch = "aarch64")]
    return context.uc_mcontext.sp as usize;
}

/// The handler of SIGSYS.
extern "C-unwind" fn trapped(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    let of_program = context::slot();
    let slot = of_program.unwrap_or_else(libraries::loader);
    SELECTORS[slot].store(ALLOW, Ordering::Relaxed);
    // SAFETY: the kernel passes the registers of the interrupted thread.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    if of_program.is_some() {
        faults::rearm(slot, stack_pointer(context), context);
    }
    // SAFETY: the C library's set begins with the kernel's 64 bits.
    let mask = unsafe { &mut *(&raw mut context.uc_sigmask).cast::<u64>() };
    #[cfg(target_arch = "x86_64")]
    {
        let registers = &mut context.uc_mcontext.gregs;
        let at = |register: c_int| registers[register as usize] as usize;
        let number = at(libc::REG_RAX) as i64;
        if number == libc::SYS_rt_sigreturn {
            // The end of a handler that was installed before its way back was known.
            registers[libc::REG_RIP as usize] = actions::way_back() as i64;
            SELECTORS[slot].store(BLOCK, Ordering::Relaxed);
            return;
        }
        if start::node() == 0 && makes_a_process(number, arguments_of(registers)) {
            CONTINUATIONS[slot].store(at(libc::REG_RIP), Ordering::Relaxed);
            registers[libc::REG_RIP as usize] = start_child as *const () as i64;
            SELECTORS[slot].store(BLOCK, Ordering::Relaxed);
            return;
        }
        let arguments = arguments_of(registers);
        registers[libc::REG_RAX as usize] = answered(slot, mask, number, arguments) as i64;
    }
    #[cfg(target_arch = "aarch64")]
    {
        let registers = &mut context.uc_mcontext.regs;
        let arguments = [0, 1, 2, 3, 4, 5].map(|register: usize| registers[register] as usize);
        registers[0] = answered(slot, mask, registers[8] as i64, arguments) as u64;
    }
    SELECTORS[slot].store(BLOCK, Ordering::Relaxed);
}

/// Answers a system call of the program. `mask` has the signals that the thread blocks once the handler has returned. At a
/// cancellation point the thread may end.
fn answered(slot: usize, mask: &mut u64, number: i64, arguments: Arguments) -> isize {
    if !context::is_of_program() || context::is_bare() {
        return answered_once(slot, mask, number, arguments, false);
    }
    let mut is_point = cancellation::is_at_point(slot);
    loop {
        let answer = answered_once(slot, mask, number, arguments, is_point);
        if !is_point || answer != -(libc::EINTR as isize) || !cancellation::end_interrupt(slot) {
            return answer;
        }
        cancellation::interrupted_at_point(slot);
        // The request was for an earlier thread of this slot, or the thread is ending already.
        is_point = !cancellation::is_wanted(slot);
    }
}

fn answered_once(slot: usize, mask: &mut u64, number: i64, arguments: Arguments, is_point: bool) -> isize {
    if !context::is_of_program() {
        // SAFETY: as the loader makes it, for the thread that has this slot.
        return unsafe { libraries::made(number, arguments) };
    }
    if context::is_bare() {
        // The C library is ending the thread, whose last calls are about itself.
        // SAFETY: as the C library makes it.
        return unsafe { call(number, arguments) };
    }
    let place = match place_of(number) {
        Place::FirstNode if start::node() == 0 => Place::Here,
        // The kernel would use memory on which it cannot wait.
        Place::Nowhere(_) if start::node() == 0 && !(is_asynchronous(number) && faults::are_served_in_thread()) => {
            Place::Here
        }
        place => place,
    };
    match place {
        Place::FirstNode => at_first_node(slot, number, arguments, is_point),
        Place::Nowhere(way_out) => {
            runtime::unsupported(&format!("system call {number} in a thread of node {}", start::node()), way_out)
        }
        Place::Here if number == libc::SYS_rt_sigprocmask => actions::mask_changed(mask, arguments),
        Place::Here if number == libc::SYS_rt_sigaction => actions::action_changed(arguments),
        // SAFETY: as the program makes it.
        Place::Here if number == libc::SYS_rt_sigtimedwait && start::node() != 0 => unsafe {
            awaited::wait(slot, arguments, is_point)
        },
        // SAFETY: the same.
        Place::Here if number == libc::SYS_rt_sigpending && start::node() != 0 => unsafe {
            awaited::pending(slot, arguments)
        },
        // The thread takes node 0's process for its own.
        Place::Here if number == libc::SYS_tgkill && arguments[0] == processors::process() as usize => {
            send_here(arguments[1] as u32, arguments[2] as c_int)
        }
        Place::Here if number == libc::SYS_futex && is_shared(arguments[0]) => {
            let [word, operation, value, time, _, bits] = arguments;
            let (operation, value, bits) = (operation as c_int, value as u32, bits as u32);
            // SAFETY: as the program makes it.
            unsafe { conditions::futex(word, operation, value, time as *const libc::timespec, bits) as isize }
        }
        Place::Here if number == libc::SYS_exit_group => {
            start::exit_now(arguments[0] as c_int);
            0
        }
        Place::Here if number == libc::SYS_getpid => processors::process() as isize,
        Place::Here if number == libc::SYS_sigaltstack => faults::alternate_stack(slot, arguments),
        // SAFETY: as the program makes it.
        Place::Here => unsafe { whole::made(number, arguments, is_point) },
    }
}

/// The kernel sets this word to 0 and wakes its waiters when the calling thread has ended.
pub(crate) fn tell_end_to(word: &AtomicU32) {
    // SAFETY: the word lives as long as the process.
    unsafe { call(libc::SYS_set_tid_address, [word.as_ptr() as usize, 0, 0, 0, 0, 0]) };
}

/// Whether the caller runs in a child that shares the memory of this process.
pub(crate) fn is_in_child() -> bool {
    // SAFETY: has no conditions.
    unsafe { call(libc::SYS_getpid, [0; 6]) as i32 != OWN_PROCESS.load(Ordering::Relaxed) }
}

/// Ends such a child.
pub(crate) fn end_child(status: c_int) -> ! {
    loop {
        // SAFETY: has no conditions.
        unsafe { call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Whether an address is the same memory on all nodes.
pub(crate) fn is_shared(address: usize) -> bool {
    let (images, count) = (IMAGES.0.load(Ordering::Relaxed), IMAGES.1.load(Ordering::Acquire));
    if memory::is_in_region(address) || count == 0 {
        return count != 0;
    }
    // SAFETY: the list that `begin` was given, which lives as long as the process.
    let images = unsafe { std::slice::from_raw_parts(images as *const [usize; 2], count) };
    images.iter().any(|&[start, end]| (start..end).contains(&address))
}

/// Calls a function of the C library at node 0, where the program's children are started. Its address is the same
/// there. Must not be called at node 0 itself.
pub(crate) fn call_at_first_node(function: *mut c_void, arguments: Arguments) -> isize {
    let slot = context::own_slot();
    record(slot).mask.store(start::signal_mask(), Ordering::Relaxed);
    at_first_node(slot, function as usize as i64, arguments, false)
}

/// Lets the thread's deputy at node 0 make a system call, which may be interrupted if it is a cancellation point.
pub(crate) fn at_first_node(slot: usize, number: i64, arguments: Arguments, is_point: bool) -> isize {
    let record = record(slot);
    if is_point {
        // In this order: who asks to cancel the thread looks at what is stored here.
        record.is_interruptible.store(INTERRUPTIBLE, Ordering::SeqCst);
        if cancellation::is_wanted(slot) {
            record.is_interruptible.store(0, Ordering::Relaxed);
            cancellation::interrupt_self(slot);
            return -(libc::EINTR as isize);
        }
    }
    record.call_number.store(number as usize, Ordering::Relaxed);
    for (place, argument) in record.call_arguments.iter().zip(arguments) {
        place.store(argument, Ordering::Relaxed);
    }
    aside(|| {
        if record.has_deputy.swap(1, Ordering::AcqRel) == 0 {
            runtime::order(0);
        }
        runtime::semaphore_signal((&raw const record.called) as usize);
        runtime::semaphore_wait((&raw const record.answered) as usize, FOREVER);
    });
    if is_point && record.is_interruptible.swap(0, Ordering::AcqRel) == INTERRUPTED {
        cancellation::interrupt_self(slot);
    }
    record.call_answer.load(Ordering::Acquire) as isize
}

/// Makes the deputies of threads that want one, at node 0.
pub(crate) fn make_deputies() {
    for (slot, is_there) in DEPUTIES.iter().enumerate() {
        if threads::is_elsewhere(slot)
            && record(slot).has_deputy.load(Ordering::Acquire) == 1
            && !is_there.swap(true, Ordering::SeqCst)
        {
            let error = threads::make_private(deputise, slot);
            if error != 0 {
                let why = std::io::Error::from_raw_os_error(error);
                runtime::stop(&format!("system calls of another node cannot be made: {why}"));
            }
        }
    }
}

/// The function of the deputy of a slot's threads. It makes their system calls as long as the program runs.
extern "C-unwind" fn deputise(slot: *mut c_void) -> *mut c_void {
    start::block_signals();
    runtime::leave_uncounted();
    let slot = slot as usize;
    awaited::begin_deputy(slot);
    cancellation::begin_deputy(slot);
    let record = record(slot);
    loop {
        runtime::semaphore_wait((&raw const record.called) as usize, FOREVER);
        let number = record.call_number.load(Ordering::Relaxed) as i64;
        let arguments = [0, 1, 2, 3, 4, 5].map(|index: usize| record.call_arguments[index].load(Ordering::Relaxed));
        // SAFETY: as a thread of the program makes it, whose memory this is.
        let answer = unsafe {
            if number < SYSTEM_CALLS_MAX {
                let is_interruptible = record.is_interruptible.load(Ordering::Acquire) == INTERRUPTIBLE;
                let answer = whole::made(number, arguments, is_interruptible);
                if is_interruptible && cancellation::end_interrupt(slot) && answer == -(libc::EINTR as isize) {
                    record.is_interruptible.store(INTERRUPTED, Ordering::Release);
                }
                answer
            } else {
                // A child begins with the signals of the thread that makes it.
                start::set_signal_mask(record.mask.load(Ordering::Relaxed));
                let answer = start::called(number as usize as *mut c_void, arguments);
                start::block_signals();
                answer
            }
        };
        record.call_answer.store(answer as usize, Ordering::Release);
        runtime::semaphore_signal((&raw const record.answered) as usize);
    }
}

/// The code of this library: its address and size.
fn own_code() -> (usize, usize) {
    unsafe extern "C" fn find(object: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        let own = own_code as *const () as usize;
        // SAFETY: the loader passes valid descriptions, and the pointer of the call below.
        unsafe {
            let object = &*object;
            let headers = std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum));
            for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
                let start = (object.dlpi_addr + header.p_vaddr) as usize;
                if (start..start + header.p_memsz as usize).contains(&own) {
                    *found.cast::<(usize, usize)>() = (start, header.p_memsz as usize);
                    return 1;
                }
            }
        }
        0
    }
    let mut found = (0, 0);
    // SAFETY: the function is called before this returns.
    unsafe { libc::dl_iterate_phdr(Some(find), (&raw mut found).cast()) };
    found
}
