//! Layer `delay`: being written.

use super::choices::Threshold;
use super::{Coherence, Effect, Geometry, Input};
use crate::Nanoseconds;
use crate::page::{Access, PageIndex};
use alloc::vec::Vec;

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Delay<P> {
    inner: P,
    geometry: Geometry,
    threshold: Threshold,
}

impl<P: Coherence> Delay<P> {
    /// Round `inner`, which was started with `geometry`.
    pub fn new(inner: P, geometry: Geometry, threshold: Threshold) -> Delay<P> {
        Delay { inner, geometry, threshold }
    }
}

impl<P: Coherence> Coherence for Delay<P> {
    fn step(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        self.inner.step(now, input, effects);
    }

    fn access(&self, page: PageIndex) -> Access {
        self.inner.access(page)
    }

    fn is_pending(&self, page: PageIndex) -> bool {
        self.inner.is_pending(page)
    }

    fn owns(&self, page: PageIndex) -> bool {
        self.inner.owns(page)
    }

    fn leaves_behind(&self, page: PageIndex) -> bool {
        self.inner.leaves_behind(page)
    }

    fn is_untouched(&self, page: PageIndex) -> bool {
        self.inner.is_untouched(page)
    }

    fn release(&mut self, page: PageIndex) {
        self.inner.release(page);
    }

    fn adopt(&mut self, page: PageIndex) {
        self.inner.adopt(page);
    }
}
