//! `signal`: userfaultfd turns a fault into SIGBUS, and the thread that made the fault serves it.
//!
//! No other thread has to wake up, which is what costs most (`docs/concepts/catchers.md`). It must
//! never be chosen for a program that passes shared buffers to system calls: the kernel cannot run
//! a signal handler in the middle of a system call, so the call fails with EFAULT.

use std::os::fd::RawFd;

use super::{Abilities, Catch, Refusal, Span};
use crate::sys::linux::memfd;
use crate::sys::linux::uffd::{self, Message, Uffd};

pub(super) const ABILITIES: Abilities = Abilities {
    tells_writes_from_reads: true,
    serves_in_the_faulting_thread: true,
    system_calls_wait: false,
    works_with_signals_blocked: false,
    needs_userfaultfd: true,
    bounded_by_mapping_count: false,
};

pub(super) struct Signal {
    uffd: Uffd,
}

impl Signal {
    pub(super) fn prepare(view: Span) -> Result<Signal, String> {
        Ok(Signal { uffd: open(view, true)? })
    }
}

/// Opens a userfaultfd, tries it out on a page of its own, and registers the view.
pub(super) fn open(view: Span, signal: bool) -> Result<Uffd, String> {
    let uffd = Uffd::open(signal)?;
    uffd::try_out(&uffd)?;
    uffd.register(view.start, view.bytes)
        .map_err(|error| format!("UFFDIO_REGISTER of the region failed ({error}); run `trellis doctor`"))?;
    Ok(uffd)
}

impl Catch for Signal {
    fn signal(&self) -> Option<libc::c_int> {
        Some(libc::SIGBUS)
    }

    fn install(&self, span: Span, writable: bool) -> Result<(), Refusal> {
        self.uffd.make_present(span.start, span.bytes, writable).map_err(Refusal::of("UFFDIO_CONTINUE"))
    }

    fn upgrade(&self, span: Span) -> Result<(), Refusal> {
        self.uffd.protect(span.start, span.bytes, true).map_err(Refusal::of("UFFDIO_WRITEPROTECT"))
    }

    fn downgrade(&self, span: Span) -> Result<(), Refusal> {
        self.uffd.protect(span.start, span.bytes, false).map_err(Refusal::of("UFFDIO_WRITEPROTECT"))
    }

    fn revoke(&self, span: Span) -> Result<(), Refusal> {
        memfd::drop_pages(span.start, span.bytes).map_err(Refusal::of("madvise(MADV_DONTNEED)"))
    }

    fn wake(&self, _: Span) {}

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.uffd.number())
    }

    fn system_calls_wait(&self) -> bool {
        false
    }

    fn take(&self, _: &mut [Message]) -> usize {
        0
    }
}
