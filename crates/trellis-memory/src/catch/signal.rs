//! `signal`: userfaultfd turns a fault into SIGBUS, and the thread that caused it serves it.
//!
//! Promises: no other thread has to wake up, which would be the most expensive part (`docs/concepts/catchers.md`). The
//! kernel cannot run a signal handler in the middle of a system call, so a call with a page that is not here fails with
//! EFAULT, unless the library `trellis-calls` makes it whole.

use std::os::fd::RawFd;

use super::userfault::Userfault;
use super::{Abilities, Catch, DESCRIPTORS, Refusal, Span};
use crate::places::Places;
use crate::region::Detection;
use crate::sys::linux::memfd::Memfd;
use crate::sys::linux::uffd::Message;

pub(super) const ABILITIES: Abilities = Abilities {
    serves_in_the_faulting_thread: true,
    system_calls_wait: false,
    works_with_signals_blocked: false,
    needs_userfaultfd: true,
};

pub(super) struct Signal {
    pages: Userfault,
}

impl Signal {
    /// It catches faults in these parts of the view, and in pieces that it is to watch.
    pub(super) fn prepare(places: Places, parts: &[Span], page_bytes: usize, file: &Memfd) -> Result<Signal, String> {
        Ok(Signal { pages: Userfault::prepare(places, parts, page_bytes, file, true)? })
    }
}

impl Catch for Signal {
    fn signal(&self) -> Option<libc::c_int> {
        Some(libc::SIGBUS)
    }

    fn install(&self, span: Span, writable: bool) -> Result<(), Refusal> {
        self.pages.install(span, writable)
    }

    fn upgrade(&self, span: Span) -> Result<(), Refusal> {
        self.pages.upgrade(span)
    }

    fn downgrade(&self, span: Span) -> Result<(), Refusal> {
        self.pages.downgrade(span)
    }

    fn revoke(&self, span: Span) -> Result<(), Refusal> {
        self.pages.revoke(span)
    }

    fn watch(&self, span: Span) -> Result<(), Refusal> {
        self.pages.watch(span)
    }

    fn wake(&self, _: Span) {}

    fn event(&self) -> Option<RawFd> {
        None
    }

    fn descriptors(&self) -> [Option<RawFd>; DESCRIPTORS] {
        let [faults, marks, pagemap] = self.pages.descriptors();
        [faults, marks, pagemap, None, None, None, None]
    }

    fn system_calls_wait(&self) -> bool {
        false
    }

    fn take(&self, _: &mut [Message]) -> usize {
        0
    }

    fn marks_work(&self) -> bool {
        self.pages.marks_work()
    }

    fn detect(&self, span: Span, detection: Detection) -> Result<(), Refusal> {
        self.pages.detect(span, detection)
    }

    fn stored_to(&self, span: Span, found: &mut dyn FnMut(usize, usize)) -> Result<(), Refusal> {
        self.pages.stored_to(span, found)
    }
}
