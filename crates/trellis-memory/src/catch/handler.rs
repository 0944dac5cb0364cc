//! `handler`: userfaultfd queues a fault, and the thread that made it waits in the kernel until the
//! page is there.
//!
//! System calls on shared buffers work, because a thread inside one waits in the same way. This
//! file has no thread of its own: whoever drives the region polls the descriptor, takes the faults
//! and answers with `install` or `upgrade`, which also wake. The thread that does so must never
//! touch the application view: nobody would be left to answer.

use std::os::fd::RawFd;

use super::{Abilities, Catch, Refusal, Span, signal};
use crate::sys::linux::memfd;
use crate::sys::linux::uffd::{Message, Uffd};

pub(super) const ABILITIES: Abilities = Abilities {
    tells_writes_from_reads: true,
    serves_in_the_faulting_thread: false,
    system_calls_wait: true,
    works_with_signals_blocked: true,
    needs_userfaultfd: true,
    bounded_by_mapping_count: false,
};

pub(super) struct Handler {
    uffd: Uffd,
}

impl Handler {
    pub(super) fn prepare(view: Span) -> Result<Handler, String> {
        Ok(Handler { uffd: signal::open(view, false)? })
    }
}

impl Catch for Handler {
    fn signal(&self) -> Option<libc::c_int> {
        None
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

    fn wake(&self, span: Span) {
        self.uffd.wake(span.start, span.bytes);
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.uffd.number())
    }

    fn system_calls_wait(&self) -> bool {
        self.uffd.catches_system_calls()
    }

    fn take(&self, into: &mut [Message]) -> usize {
        self.uffd.read(into)
    }
}
