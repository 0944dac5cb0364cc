//! `handler`: userfaultfd queues a fault, and the thread that caused it waits in the kernel until the page is there.
//!
//! Promises: system calls on shared buffers work, because a thread inside one waits in the same way. This file has no
//! thread of its own: the region's user polls the descriptor, takes the faults and serves them with `install` or
//! `upgrade`, which also wake. The thread that does so must never touch the application view: no thread would be left
//! to serve its fault.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use super::userfault::Userfault;
use super::{Abilities, Catch, DESCRIPTORS, Refusal, Span};
use crate::places::Places;
use crate::region::Detection;
use crate::sys::linux::memfd::Memfd;
use crate::sys::linux::readiness::Readiness;
use crate::sys::linux::uffd::Message;

pub(super) const ABILITIES: Abilities = Abilities {
    serves_in_the_faulting_thread: false,
    system_calls_wait: true,
    works_with_signals_blocked: true,
    needs_userfaultfd: true,
};

pub(super) struct Handler {
    pages: Userfault,
    /// A descriptor that is readable while faults of either userfaultfd are queued; `None` if there is only one.
    either: Option<Readiness>,
    /// Whether the faults of pages under marks are taken first. It alternates, so that neither userfaultfd starves.
    marks_first: AtomicBool,
}

impl Handler {
    /// It catches faults in these parts of the view, and in pieces that it is to watch.
    pub(super) fn prepare(places: Places, parts: &[Span], page_bytes: usize, file: &Memfd) -> Result<Handler, String> {
        let pages = Userfault::prepare(places, parts, page_bytes, file, false)?;
        let either = match pages.marks() {
            None => None,
            Some(marks) => {
                let both = Readiness::of(&[pages.faults().number(), marks.number()]);
                Some(both.map_err(|error| format!("epoll failed ({error}); look at `ulimit -n`"))?)
            }
        };
        Ok(Handler { pages, either, marks_first: AtomicBool::new(false) })
    }
}

impl Catch for Handler {
    fn signal(&self) -> Option<libc::c_int> {
        None
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

    fn wake(&self, span: Span) {
        self.pages.wake(span);
    }

    fn event(&self) -> Option<RawFd> {
        Some(self.either.as_ref().map_or(self.pages.faults().number(), Readiness::number))
    }

    fn descriptors(&self) -> [Option<RawFd>; DESCRIPTORS] {
        let [faults, marks, pagemap] = self.pages.descriptors();
        [faults, marks, pagemap, self.either.as_ref().map(Readiness::number), None, None, None]
    }

    fn system_calls_wait(&self) -> bool {
        self.pages.faults().catches_system_calls()
    }

    fn take(&self, into: &mut [Message]) -> usize {
        let faults = self.pages.faults();
        let Some(marks) = self.pages.marks().filter(|_| self.pages.marks_in_use()) else { return faults.read(into) };
        let marks_first = self.marks_first.fetch_not(Ordering::Relaxed);
        let (first, second) = if marks_first { (marks, faults) } else { (faults, marks) };
        let taken = first.read(into);
        if taken == into.len() { taken } else { taken + second.read(&mut into[taken..]) }
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
