//! `mprotect`: pages are protected with mprotect(2), and a fault is a SIGSEGV that is served in the faulting thread.
//!
//! Promises: it works on every kernel and in every container. It must never be preferred if userfaultfd works: each
//! change can split a mapping (vm.max_map_count bounds them) and takes the process's memory-map lock for writing, and a
//! system call on a page that is not held fails with EFAULT.

use std::os::fd::RawFd;

use super::userfault::without_marks;
use super::{Abilities, Catch, DESCRIPTORS, Refusal, Span};
use crate::region::Detection;
use crate::sys::linux::memfd::protect_pages;
use crate::sys::linux::uffd::Message;

pub(super) const ABILITIES: Abilities = Abilities {
    serves_in_the_faulting_thread: true,
    system_calls_wait: false,
    works_with_signals_blocked: false,
    needs_userfaultfd: false,
};

/// The name of the only request, for errors.
pub(crate) const REQUEST: &str = "mprotect";

pub(super) struct Mprotect;

impl Mprotect {
    fn set(span: Span, protection: libc::c_int) -> Result<(), Refusal> {
        protect_pages(span.start, span.bytes, protection).map_err(Refusal::of(REQUEST))
    }
}

impl Catch for Mprotect {
    fn signal(&self) -> Option<libc::c_int> {
        Some(libc::SIGSEGV)
    }

    fn install(&self, span: Span, writable: bool) -> Result<(), Refusal> {
        if writable { self.upgrade(span) } else { self.downgrade(span) }
    }

    fn upgrade(&self, span: Span) -> Result<(), Refusal> {
        Mprotect::set(span, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn downgrade(&self, span: Span) -> Result<(), Refusal> {
        Mprotect::set(span, libc::PROT_READ)
    }

    fn revoke(&self, span: Span) -> Result<(), Refusal> {
        Mprotect::set(span, libc::PROT_NONE)
    }

    fn watch(&self, span: Span) -> Result<(), Refusal> {
        self.revoke(span)
    }

    fn wake(&self, _: Span) {}

    fn event(&self) -> Option<RawFd> {
        None
    }

    fn descriptors(&self) -> [Option<RawFd>; DESCRIPTORS] {
        [None; DESCRIPTORS]
    }

    fn system_calls_wait(&self) -> bool {
        false
    }

    fn take(&self, _: &mut [Message]) -> usize {
        0
    }

    fn marks_work(&self) -> bool {
        false
    }

    fn detect(&self, _: Span, detection: Detection) -> Result<(), Refusal> {
        match detection {
            Detection::Faults => Ok(()),
            Detection::Marks => Err(without_marks()),
        }
    }

    fn stored_to(&self, _: Span, _: &mut dyn FnMut(usize, usize)) -> Result<(), Refusal> {
        Err(without_marks())
    }
}
