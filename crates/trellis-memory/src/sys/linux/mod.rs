//! Linux: memfd, userfaultfd, signals, and the files under `/proc` that give a process's limits.

pub(crate) mod calls;
pub(crate) mod context;
pub(crate) mod limits;
pub(crate) mod maps;
pub(crate) mod memfd;
pub(crate) mod moving;
pub(crate) mod pagemap;
pub(crate) mod private;
pub(crate) mod readiness;
pub(crate) mod signals;
pub(crate) mod stack;
pub(crate) mod uffd;
pub(crate) mod watches;

/// The error number of the system call that just failed.
pub(crate) fn errno() -> i32 {
    // SAFETY: the location is this thread's own and always valid.
    unsafe { *libc::__errno_location() }
}

/// The size of the kernel's own pages.
pub(crate) fn kernel_page_bytes() -> usize {
    // SAFETY: sysconf reads a constant of the process.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("the kernel always has a page size")
}
