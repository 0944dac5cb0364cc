//! A table of how each system call uses memory. Calls with a function of the C library are in table.rs instead.
//!
//! Promises: each system call is in one class. A test asks about every number.

use std::ffi::c_int;

use crate::numbers;
use Memory::{Fills, Sets, Takes, Text};
use Size::{Argument, Bits, Bytes, Items};

pub(crate) type Arguments = [usize; 6];

/// An argument with memory: its place among the arguments, and how the kernel uses the memory.
pub(crate) type Part = (usize, Memory);

/// How the kernel uses the memory of an argument.
#[derive(Clone, Copy)]
pub(crate) enum Memory {
    /// It reads all bytes.
    Takes(Size),
    /// It writes some bytes, and may read them before, whatever its answer is.
    Sets(Size),
    /// It writes as many bytes as it answers.
    Fills(Size),
    /// It reads a string that ends with a zero byte.
    Text,
}

/// The number of bytes.
#[derive(Clone, Copy)]
pub(crate) enum Size {
    Bytes(usize),
    /// Another argument has the number of bytes.
    Argument(usize),
    /// Another argument has the number of items of this size.
    Items(usize, usize),
    /// Another argument has the number of bits. The kernel uses whole words.
    Bits(usize),
}

impl Size {
    pub(crate) fn of(self, arguments: &Arguments) -> usize {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Argument(place) => arguments[place],
            Size::Items(place, bytes) => arguments[place].saturating_mul(bytes),
            Size::Bits(place) => arguments[place].div_ceil(64) * 8,
        }
    }
}

/// A system call: its number, and its name with `SYS_` before it.
pub(crate) type Named = (i64, &'static str);

macro_rules! numbers {
    ($($name:ident)*) => { &[$((numbers::$name, stringify!($name))),*] };
}

macro_rules! memory {
    ($($name:ident: $($place:literal $memory:expr),+;)*) => {
        &[$((numbers::$name, stringify!($name), &[$(($place, $memory)),+])),*]
    };
}

const WORD: usize = 8;
const INT: usize = 4;
/// The sizes of structures of the kernel.
const TIME: usize = 16;
const SIGNAL: usize = 128;
const USAGE: usize = 144;
const CLOCK: usize = 208;
const EVENT: usize = 64;
const QUEUE: usize = 64;
const OPERATION: usize = 6;
/// The structures of sched_setattr(2) and the like begin with their size, which may grow.
const SCHEDULING: usize = 128;

/// Calls with memory: which arguments are addresses, and how the kernel uses the memory there.
#[rustfmt::skip]
pub(crate) const WITH_MEMORY: &[(i64, &str, &[Part])] = memory! {
    // Files and folders.
    SYS_getdents: 1 Fills(Argument(2)); SYS_getcwd: 0 Fills(Argument(1)); SYS_mknod: 0 Text; SYS_mknodat: 1 Text;
    SYS_chroot: 0 Text; SYS_acct: 0 Text; SYS_pivot_root: 0 Text, 1 Text; SYS_umount2: 0 Text; SYS_swapon: 0 Text;
    SYS_swapoff: 0 Text; SYS_llistxattr: 0 Text, 1 Fills(Argument(2)); SYS_flistxattr: 1 Fills(Argument(2));
    SYS_lremovexattr: 0 Text, 1 Text; SYS_fremovexattr: 1 Text; SYS_futimesat: 1 Text, 2 Takes(Bytes(2 * TIME));
    SYS_utimensat: 1 Text, 2 Takes(Bytes(2 * TIME)); SYS_fchmodat: 1 Text; SYS_fchmodat2: 1 Text; SYS_faccessat: 1 Text;
    SYS_faccessat2: 1 Text; SYS_openat2: 1 Text, 2 Takes(Argument(3)); SYS_fanotify_mark: 4 Text; SYS_open_tree: 1 Text;
    SYS_move_mount: 1 Text, 3 Text; SYS_fsopen: 0 Text; SYS_fspick: 1 Text; SYS_mount_setattr: 1 Text, 3 Takes(Argument(4));
    SYS_cachestat: 1 Takes(Bytes(16)), 2 Sets(Bytes(40)); SYS_ustat: 1 Sets(Bytes(32));
    // Signals and time.
    SYS_rt_sigpending: 0 Sets(Argument(1)); SYS_rt_sigtimedwait: 0 Takes(Bytes(WORD)), 1 Sets(Bytes(SIGNAL)), 2 Takes(Bytes(TIME));
    SYS_rt_sigsuspend: 0 Takes(Bytes(WORD)); SYS_signalfd: 1 Takes(Bytes(WORD)); SYS_signalfd4: 1 Takes(Bytes(WORD));
    SYS_rt_sigqueueinfo: 2 Takes(Bytes(SIGNAL)); SYS_rt_tgsigqueueinfo: 3 Takes(Bytes(SIGNAL));
    SYS_pidfd_send_signal: 2 Takes(Bytes(SIGNAL)); SYS_gettimeofday: 0 Sets(Bytes(TIME)), 1 Sets(Bytes(WORD));
    SYS_settimeofday: 0 Takes(Bytes(TIME)), 1 Takes(Bytes(WORD)); SYS_time: 0 Sets(Bytes(WORD));
    SYS_clock_nanosleep: 2 Takes(Bytes(TIME)), 3 Sets(Bytes(TIME)); SYS_adjtimex: 0 Sets(Bytes(CLOCK));
    SYS_clock_adjtime: 1 Sets(Bytes(CLOCK)); SYS_timer_create: 1 Takes(Bytes(EVENT)), 2 Sets(Bytes(INT));
    // Processes, users and scheduling.
    SYS_waitid: 2 Sets(Bytes(SIGNAL)), 4 Sets(Bytes(USAGE)); SYS_setgroups: 1 Takes(Items(0, INT));
    SYS_getresuid: 0 Sets(Bytes(INT)), 1 Sets(Bytes(INT)), 2 Sets(Bytes(INT));
    SYS_getresgid: 0 Sets(Bytes(INT)), 1 Sets(Bytes(INT)), 2 Sets(Bytes(INT));
    SYS_capget: 0 Sets(Bytes(8)), 1 Sets(Bytes(24)); SYS_capset: 0 Sets(Bytes(8)), 1 Takes(Bytes(24));
    SYS_sched_setparam: 1 Takes(Bytes(INT)); SYS_sched_getparam: 1 Sets(Bytes(INT));
    SYS_sched_setscheduler: 2 Takes(Bytes(INT)); SYS_sched_rr_get_interval: 1 Sets(Bytes(TIME));
    SYS_sched_getaffinity: 2 Fills(Argument(1)); SYS_sched_setattr: 1 Sets(Bytes(SCHEDULING));
    SYS_sched_getattr: 1 Sets(Argument(2)); SYS_getcpu: 0 Sets(Bytes(INT)), 1 Sets(Bytes(INT));
    SYS_get_robust_list: 1 Sets(Bytes(WORD)), 2 Sets(Bytes(WORD)); SYS_sethostname: 0 Takes(Argument(1));
    SYS_setdomainname: 0 Takes(Argument(1)); SYS_syslog: 1 Fills(Argument(2));
    SYS_mbind: 3 Takes(Bits(4)); SYS_set_mempolicy: 1 Takes(Bits(2)); SYS_get_mempolicy: 0 Sets(Bytes(INT)), 1 Sets(Bits(2));
    SYS_landlock_create_ruleset: 0 Takes(Argument(1)); SYS_landlock_add_rule: 2 Takes(Bytes(16));
    // Messages and semaphores.
    SYS_semtimedop: 1 Takes(Items(2, OPERATION)), 3 Takes(Bytes(TIME)); SYS_msgctl: 2 Sets(Bytes(120));
    SYS_shmctl: 2 Sets(Bytes(112)); SYS_mq_open: 0 Text, 3 Takes(Bytes(QUEUE)); SYS_mq_unlink: 0 Text;
    SYS_mq_notify: 1 Takes(Bytes(EVENT)); SYS_mq_getsetattr: 1 Takes(Bytes(QUEUE)), 2 Sets(Bytes(QUEUE));
};

/// Calls that use memory as functions of this library do, but take their arguments in another way (system_calls.rs).
pub(crate) const CALLED_OTHERWISE: &[Named] = numbers! {
    SYS_preadv2 SYS_pwritev2 SYS_ppoll SYS_pselect6 SYS_epoll_pwait SYS_epoll_pwait2
};

/// Calls whose use of memory depends on another argument ([`by_command`]).
pub(crate) const BY_COMMAND: &[Named] = numbers! { SYS_prctl SYS_arch_prctl SYS_semctl SYS_futex };

/// Calls with numbers alone, or with addresses that the kernel does not follow: parts of the address space, and words
/// of the thread. The kernel waits for pages where it uses the signals and the own words of a thread.
pub(crate) const WITHOUT_MEMORY: &[Named] = numbers! {
    SYS_close SYS_lseek SYS_mmap SYS_mprotect SYS_munmap SYS_brk SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn
    SYS_sched_yield SYS_mremap SYS_msync SYS_madvise SYS_shmget SYS_shmat SYS_dup SYS_dup2 SYS_pause SYS_getpid SYS_alarm
    SYS_socket SYS_shutdown SYS_listen SYS_clone SYS_fork SYS_vfork SYS_exit SYS_kill SYS_semget SYS_shmdt SYS_msgget
    SYS_flock SYS_fsync SYS_fdatasync SYS_ftruncate SYS_fchdir SYS_fchmod SYS_fchown SYS_umask SYS_getuid SYS_getgid
    SYS_setuid SYS_setgid SYS_geteuid SYS_getegid SYS_setpgid SYS_getppid SYS_getpgrp SYS_setsid SYS_setreuid
    SYS_setregid SYS_setresuid SYS_setresgid SYS_getpgid SYS_setfsuid SYS_setfsgid SYS_getsid SYS_sigaltstack
    SYS_personality SYS_getpriority SYS_setpriority SYS_sched_getscheduler SYS_sched_get_priority_max
    SYS_sched_get_priority_min SYS_mlock SYS_munlock SYS_mlockall SYS_munlockall SYS_vhangup SYS_sync SYS_iopl SYS_ioperm
    SYS_gettid SYS_readahead SYS_tkill SYS_io_destroy SYS_epoll_create SYS_remap_file_pages SYS_set_tid_address
    SYS_restart_syscall SYS_fadvise64 SYS_timer_getoverrun SYS_timer_delete SYS_exit_group SYS_tgkill SYS_ioprio_set
    SYS_ioprio_get SYS_inotify_init SYS_inotify_rm_watch SYS_unshare SYS_set_robust_list SYS_tee SYS_sync_file_range
    SYS_timerfd_create SYS_eventfd SYS_fallocate SYS_eventfd2 SYS_epoll_create1 SYS_dup3 SYS_inotify_init1
    SYS_fanotify_init SYS_syncfs SYS_setns SYS_kcmp SYS_userfaultfd SYS_membarrier SYS_mlock2 SYS_pkey_mprotect
    SYS_pkey_alloc SYS_pkey_free SYS_rseq SYS_fsmount SYS_pidfd_open SYS_clone3 SYS_close_range SYS_pidfd_getfd
    SYS_landlock_restrict_self SYS_memfd_secret SYS_process_mrelease SYS_set_mempolicy_home_node SYS_map_shadow_stack
    SYS_mseal
};

/// Calls that are refused if an argument is in shared memory. The kernel would use memory that their arguments do not
/// name, or use it after they have returned.
pub(crate) const REFUSED: &[Named] = numbers! {
    SYS_mincore SYS_ptrace SYS_uselib SYS_sysfs SYS_modify_ldt SYS__sysctl SYS_mount SYS_reboot SYS_create_module
    SYS_init_module SYS_delete_module SYS_get_kernel_syms SYS_query_module SYS_quotactl SYS_nfsservctl SYS_getpmsg
    SYS_putpmsg SYS_afs_syscall SYS_tuxcall SYS_security SYS_set_thread_area SYS_io_setup SYS_io_getevents SYS_io_submit
    SYS_io_cancel SYS_get_thread_area SYS_lookup_dcookie SYS_epoll_ctl_old SYS_epoll_wait_old SYS_vserver SYS_kexec_load
    SYS_add_key SYS_request_key SYS_keyctl SYS_migrate_pages SYS_vmsplice SYS_move_pages SYS_perf_event_open
    SYS_name_to_handle_at SYS_open_by_handle_at SYS_process_vm_readv SYS_process_vm_writev SYS_finit_module SYS_seccomp
    SYS_kexec_file_load SYS_bpf SYS_execveat SYS_io_pgetevents SYS_io_uring_setup SYS_io_uring_enter
    SYS_io_uring_register SYS_fsconfig SYS_process_madvise SYS_quotactl_fd SYS_futex_waitv SYS_futex_wake SYS_futex_wait
    SYS_futex_requeue SYS_statmount SYS_listmount SYS_lsm_get_self_attr SYS_lsm_set_self_attr SYS_lsm_list_modules
};

const IPC_INFO: c_int = 3;
const ARCH_GET_FS: c_int = 0x1003;
const ARCH_GET_GS: c_int = 0x1004;

/// The memory of a call of [`BY_COMMAND`]; `None` if the command is not known.
pub(crate) fn by_command(number: i64, arguments: &Arguments) -> Option<&'static [Part]> {
    const NOTHING: &[Part] = &[];
    const SETS_INT: &[Part] = &[(1, Sets(Bytes(INT)))];
    const SETS_WORD: &[Part] = &[(1, Sets(Bytes(WORD)))];
    let command = match number {
        numbers::SYS_semctl => arguments[2] as c_int,
        numbers::SYS_futex => arguments[1] as c_int & libc::FUTEX_CMD_MASK,
        _ => arguments[0] as c_int,
    };
    Some(match (number, command) {
        (numbers::SYS_prctl, libc::PR_SET_NAME) => &[(1, Text)],
        (numbers::SYS_prctl, libc::PR_GET_NAME) => &[(1, Sets(Bytes(16)))],
        (
            numbers::SYS_prctl,
            libc::PR_GET_PDEATHSIG
            | libc::PR_GET_UNALIGN
            | libc::PR_GET_FPEMU
            | libc::PR_GET_FPEXC
            | libc::PR_GET_ENDIAN
            | libc::PR_GET_TSC
            | libc::PR_GET_CHILD_SUBREAPER,
        ) => SETS_INT,
        (numbers::SYS_prctl, libc::PR_GET_TID_ADDRESS) => SETS_WORD,
        // The name that a part of the address space gets.
        (numbers::SYS_prctl, libc::PR_SET_VMA) => &[(4, Text)],
        (numbers::SYS_arch_prctl, ARCH_GET_GS | ARCH_GET_FS) => SETS_WORD,
        (numbers::SYS_arch_prctl, _) => NOTHING,
        (
            numbers::SYS_semctl,
            libc::IPC_RMID | libc::SETVAL | libc::GETVAL | libc::GETPID | libc::GETNCNT | libc::GETZCNT,
        ) => NOTHING,
        (numbers::SYS_semctl, libc::IPC_SET | libc::IPC_STAT | IPC_INFO | libc::SEM_STAT | libc::SEM_INFO) => {
            &[(3, Sets(Bytes(104)))]
        }
        // The fourth argument is a time if the command waits, and otherwise a number.
        (
            numbers::SYS_futex,
            libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET | libc::FUTEX_LOCK_PI | libc::FUTEX_LOCK_PI2,
        ) => &[(3, Takes(Bytes(TIME)))],
        (numbers::SYS_futex, libc::FUTEX_WAIT_REQUEUE_PI) => &[(3, Takes(Bytes(TIME)))],
        (numbers::SYS_futex, _) => NOTHING,
        _ => return None,
    })
}
