//! The part of a heap that one thread uses: for each size of small blocks, the spans that have some.
//!
//! Promises: its lists name every open span of its pools exactly once, and a span knows where in the list it is, so that
//! any of them goes in constant time. Used under the lock of the part only.

use trellis_base::size_classes::CLASSES;

use super::span::{Span, State};
use super::table::Dense;

/// Of one thread, or of several where there are more threads than parts.
#[derive(Debug)]
pub(super) struct Pools {
    open: [Vec<u32>; CLASSES],
}

impl Pools {
    pub(super) fn new() -> Pools {
        Pools { open: [const { Vec::new() }; CLASSES] }
    }

    /// The number of a span of that class that may have a free block.
    pub(super) fn current(&self, class: u8) -> Option<u32> {
        self.open[usize::from(class)].last().copied()
    }

    pub(super) fn open_spans(&self, class: u8) -> usize {
        self.open[usize::from(class)].len()
    }

    /// Adds a span from which blocks may be cut.
    pub(super) fn add(&mut self, number: u32, span: &Span) {
        let open = &mut self.open[usize::from(span.class())];
        span.set_state(State::Open);
        span.set_position(open.len() as u32);
        open.push(number);
    }

    /// Takes a span out of its list, which becomes what is said.
    pub(super) fn remove(&mut self, number: u32, span: &Span, spans: &Dense<Span>, becomes: State) {
        debug_assert_eq!(span.state(), State::Open);
        let open = &mut self.open[usize::from(span.class())];
        let position = span.position();
        let removed = open.swap_remove(position as usize);
        assert_eq!(removed, number, "a span knows where it is in its pool");
        if let Some(&moved) = open.get(position as usize) {
            spans.make(moved).set_position(position);
        }
        span.set_state(becomes);
    }

    /// The open spans without a live block.
    pub(super) fn empty(&self, spans: &Dense<Span>) -> Vec<u32> {
        let all = self.open.iter().flatten().copied();
        all.filter(|&number| spans.make(number).live_blocks() == 0).collect()
    }
}
