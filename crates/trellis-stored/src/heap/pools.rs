//! The part of a heap that one thread uses: for each size class of small blocks, the spans that have free ones.
//!
//! Promises: its lists contain every open span of its pools exactly once. A span knows its position in the list, so
//! that any span is removed in constant time. It must never be used without the lock of the part.

use trellis_base::size_classes::CLASSES;

use super::span::{Span, State};
use super::table::Dense;

/// The pools of one thread, or of several if there are more threads than parts.
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

    /// Removes a span from its list and sets its new state.
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
