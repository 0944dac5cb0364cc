//! `signal` for most pages, and `handler` for some: those at which the kernel looks by itself, such as stacks and
//! thread-local variables of threads.
//!
//! Promises: each page belongs to one of the two for the life of the region, and has what that one promises. A change of
//! several pages is divided at the borders.

use std::convert::Infallible;
use std::ops::Range;
use std::os::fd::RawFd;

use super::handler::Handler;
use super::signal::Signal;
use super::{Catch, DESCRIPTORS, Refusal, Span};
use crate::places::Places;
use crate::region::Detection;
use crate::sys::linux::memfd::Memfd;
use crate::sys::linux::uffd::Message;

pub(super) struct Mixed {
    signal: Signal,
    handler: Handler,
    /// The addresses of the pages whose faults are queued, ascending.
    queued: Vec<Range<usize>>,
}

impl Mixed {
    /// The faults of the pages `queued` are queued, ranges of them.
    pub(super) fn prepare(
        places: Places,
        queued: &[Range<usize>],
        page_bytes: usize,
        file: &Memfd,
    ) -> Result<Mixed, String> {
        let mut addresses = Vec::new();
        for pages in queued {
            let Ok(()) = places.spans(pages.start, pages.len(), |span| {
                addresses.push(span.start..span.start + span.bytes);
                Ok::<(), Infallible>(())
            });
        }
        addresses.sort_by_key(|range| range.start);
        let (mut around, mut within) = (Vec::new(), Vec::new());
        let Ok(()) = divided(&addresses, places.whole(), |is_queued, part| {
            if is_queued { &mut within } else { &mut around }.push(part);
            Ok::<(), Infallible>(())
        });
        Ok(Mixed {
            signal: Signal::prepare(places.clone(), &around, page_bytes, file)?,
            handler: Handler::prepare(places, &within, page_bytes, file)?,
            queued: addresses,
        })
    }

    /// Calls `step` for the parts of a span, each with the catcher that it belongs to.
    fn parts(&self, span: Span, mut step: impl FnMut(&dyn Catch, Span) -> Result<(), Refusal>) -> Result<(), Refusal> {
        divided(
            &self.queued,
            span,
            |is_queued, part| {
                if is_queued { step(&self.handler, part) } else { step(&self.signal, part) }
            },
        )
    }
}

/// Calls `step` for the parts of a span, each with whether it is in one of the ranges, which are ascending.
fn divided<E>(ranges: &[Range<usize>], span: Span, mut step: impl FnMut(bool, Span) -> Result<(), E>) -> Result<(), E> {
    let (mut at, end) = (span.start, span.start + span.bytes);
    for range in ranges.iter().filter(|range| range.end > span.start && range.start < end) {
        if at < range.start {
            step(false, Span { start: at, bytes: range.start - at })?;
        }
        let first = at.max(range.start);
        at = range.end.min(end);
        step(true, Span { start: first, bytes: at - first })?;
    }
    if at < end { step(false, Span { start: at, bytes: end - at }) } else { Ok(()) }
}

impl Catch for Mixed {
    fn signal(&self) -> Option<libc::c_int> {
        self.signal.signal()
    }

    fn install(&self, span: Span, writable: bool) -> Result<(), Refusal> {
        self.parts(span, |catch, part| catch.install(part, writable))
    }

    fn upgrade(&self, span: Span) -> Result<(), Refusal> {
        self.parts(span, |catch, part| catch.upgrade(part))
    }

    fn downgrade(&self, span: Span) -> Result<(), Refusal> {
        self.parts(span, |catch, part| catch.downgrade(part))
    }

    fn revoke(&self, span: Span) -> Result<(), Refusal> {
        self.parts(span, |catch, part| catch.revoke(part))
    }

    fn watch(&self, span: Span) -> Result<(), Refusal> {
        self.parts(span, |catch, part| catch.watch(part))
    }

    fn wake(&self, span: Span) {
        // Waking cannot fail.
        let _ = self.parts(span, |catch, part| {
            catch.wake(part);
            Ok(())
        });
    }

    fn event(&self) -> Option<RawFd> {
        self.handler.event()
    }

    fn descriptors(&self) -> [Option<RawFd>; DESCRIPTORS] {
        let mut all = self.signal.descriptors();
        let free = all.iter_mut().filter(|place| place.is_none());
        let more = self.handler.descriptors().into_iter().flatten();
        free.zip(more).for_each(|(place, number)| *place = Some(number));
        all
    }

    fn system_calls_wait(&self) -> bool {
        false
    }

    fn take(&self, into: &mut [Message]) -> usize {
        self.handler.take(into)
    }

    fn marks_work(&self) -> bool {
        self.signal.marks_work() && self.handler.marks_work()
    }

    fn detect(&self, span: Span, detection: Detection) -> Result<(), Refusal> {
        self.parts(span, |catch, part| catch.detect(part, detection))
    }

    fn stored_to(&self, span: Span, found: &mut dyn FnMut(usize, usize)) -> Result<(), Refusal> {
        self.parts(span, |catch, part| catch.stored_to(part, found))
    }
}
