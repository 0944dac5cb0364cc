//! The numbers of system calls: those of the `libc` crate, and the ones that it lacks.
//!
//! A call that the kernel has on x86-64 only, beside a newer one, has the number [`NONE`] elsewhere.

pub(crate) use libc::*;

/// The number of no system call.
#[cfg(not(target_arch = "x86_64"))]
const NONE: c_long = -1;

macro_rules! numbers {
    ($($name:ident = $number:expr;)*) => { $(
            #[allow(non_upper_case_globals, reason = "they have the names that the `libc` crate gives to others")]
            pub(crate) const $name: c_long = $number;
        )* };
}

// Calls since Linux 5.1 have one number on all processors.
numbers! {
    SYS_cachestat = 451;
    SYS_fchmodat2 = 452;
    SYS_map_shadow_stack = 453;
    SYS_futex_wake = 454;
    SYS_futex_wait = 455;
    SYS_futex_requeue = 456;
    SYS_statmount = 457;
    SYS_listmount = 458;
    SYS_lsm_get_self_attr = 459;
    SYS_lsm_set_self_attr = 460;
    SYS_lsm_list_modules = 461;
}

#[cfg(target_arch = "x86_64")]
numbers! {
    SYS_create_module = 174;
    SYS_get_kernel_syms = 177;
    SYS_query_module = 178;
    SYS_io_pgetevents = 333;
}

#[cfg(target_arch = "aarch64")]
numbers! {
    SYS_io_pgetevents = 292;
}

#[cfg(not(target_arch = "x86_64"))]
numbers! {
    SYS_open = NONE;
    SYS_stat = NONE;
    SYS_lstat = NONE;
    SYS_poll = NONE;
    SYS_access = NONE;
    SYS_pipe = NONE;
    SYS_select = NONE;
    SYS_dup2 = NONE;
    SYS_pause = NONE;
    SYS_alarm = NONE;
    SYS_fork = NONE;
    SYS_vfork = NONE;
    SYS_getdents = NONE;
    SYS_rename = NONE;
    SYS_mkdir = NONE;
    SYS_rmdir = NONE;
    SYS_creat = NONE;
    SYS_link = NONE;
    SYS_unlink = NONE;
    SYS_symlink = NONE;
    SYS_readlink = NONE;
    SYS_chmod = NONE;
    SYS_chown = NONE;
    SYS_lchown = NONE;
    SYS_getpgrp = NONE;
    SYS_utime = NONE;
    SYS_mknod = NONE;
    SYS_uselib = NONE;
    SYS_ustat = NONE;
    SYS_sysfs = NONE;
    SYS_modify_ldt = NONE;
    SYS__sysctl = NONE;
    SYS_arch_prctl = NONE;
    SYS_iopl = NONE;
    SYS_ioperm = NONE;
    SYS_getpmsg = NONE;
    SYS_putpmsg = NONE;
    SYS_afs_syscall = NONE;
    SYS_tuxcall = NONE;
    SYS_security = NONE;
    SYS_time = NONE;
    SYS_set_thread_area = NONE;
    SYS_get_thread_area = NONE;
    SYS_epoll_create = NONE;
    SYS_epoll_ctl_old = NONE;
    SYS_epoll_wait_old = NONE;
    SYS_epoll_wait = NONE;
    SYS_utimes = NONE;
    SYS_vserver = NONE;
    SYS_inotify_init = NONE;
    SYS_futimesat = NONE;
    SYS_signalfd = NONE;
    SYS_eventfd = NONE;
    SYS_create_module = NONE;
    SYS_get_kernel_syms = NONE;
    SYS_query_module = NONE;
}
