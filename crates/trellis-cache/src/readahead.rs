//! Decides which pages to request before they are touched.
//!
//! Promises: no request for scattered accesses. For sequential accesses in either direction, windows that double up to
//! a bound, each requested when the previous one is entered, so that a steady program never waits. Pure: numbers in, a
//! window out. It must never name a page outside the region.

use std::ops::Range;

/// The maximum number of streams that are tracked at a time.
const STREAMS: usize = 8;
/// The first window of a stream.
const FIRST_WINDOW: u64 = 4;

/// Pages to request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// These pages.
    pub pages: Range<u64>,
    /// Must remain a fault: touching it requests the next window. `None` if that was requested already.
    pub trigger: Option<u64>,
}

impl Window {
    /// Divides it in two: at most `count` pages next to `page`, which is touched now, and the rest.
    pub fn share(self, page: u64, count: u64) -> (Option<Window>, Option<Window>) {
        let Range { start, end } = self.pages;
        let count = count.min(end - start);
        let is_backward = page >= end;
        let cut = if is_backward { end - count } else { start + count };
        let (mut near, mut far) = (start..cut, cut..end);
        if is_backward {
            std::mem::swap(&mut near, &mut far);
        }
        // The part with the page that must remain a fault keeps the trigger.
        let part = |pages: Range<u64>| {
            let trigger = self.trigger.filter(|trigger| pages.contains(trigger));
            (!pages.is_empty()).then_some(Window { pages, trigger })
        };
        (part(near), part(far))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The last fault, while there is no window.
    last: u64,
    /// The window that was requested last; empty if there is none.
    start: u64,
    end: u64,
    backward: bool,
    used: u64,
}

impl Stream {
    fn has_window(&self) -> bool {
        self.start < self.end
    }

    /// Whether a fault there means that the window was entered or passed.
    fn is_entered_at(&self, page: u64) -> bool {
        let (start, end) =
            if self.backward { (self.start.saturating_sub(1), self.end) } else { (self.start, self.end + 1) };
        self.has_window() && (start..end).contains(&page)
    }
}

/// The streams of one region.
#[derive(Debug)]
pub struct ReadAhead {
    streams: [Stream; STREAMS],
    clock: u64,
    pages: u64,
    window_max: u64,
}

impl ReadAhead {
    /// For a memory of this many pages, with windows of at most `window_max` pages.
    pub fn new(pages: u64, window_max: u64) -> ReadAhead {
        ReadAhead { streams: [Stream::default(); STREAMS], clock: 0, pages, window_max: window_max.max(1) }
    }

    /// Handles a fault; returns what to request besides the page itself.
    pub fn fault(&mut self, page: u64) -> Option<Window> {
        self.clock += 1;
        let clock = self.clock;
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.is_entered_at(page)) {
            stream.used = clock;
            let window = (2 * (stream.end - stream.start)).min(self.window_max);
            // A fault just beyond the window: the program was faster.
            let passed = if stream.backward { page < stream.start } else { page >= stream.end };
            let from = match (stream.backward, passed) {
                (false, false) => stream.end,
                (false, true) => page + 1,
                (true, false) => stream.start,
                (true, true) => page,
            };
            return next(stream, from, window, self.pages);
        }
        let follows = |stream: &&mut Stream| {
            !stream.has_window() && stream.used > 0 && (stream.last + 1 == page || page + 1 == stream.last)
        };
        if let Some(stream) = self.streams.iter_mut().find(follows) {
            stream.used = clock;
            stream.backward = page < stream.last;
            let from = if stream.backward { page } else { page + 1 };
            return next(stream, from, FIRST_WINDOW.min(self.window_max), self.pages);
        }
        if let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.used) {
            *oldest = Stream { last: page, used: clock, ..Stream::default() };
        }
        None
    }
}

/// The next window of a stream, beginning (or, backward, ending) at `from`.
fn next(stream: &mut Stream, from: u64, window: u64, pages: u64) -> Option<Window> {
    let asked = match stream.backward {
        false => from.min(pages)..(from + window).min(pages),
        true => from.saturating_sub(window)..from,
    };
    if asked.is_empty() {
        *stream = Stream::default();
        return None;
    }
    (stream.start, stream.end) = (asked.start, asked.end);
    let trigger = if stream.backward { asked.end - 1 } else { asked.start };
    Some(Window { pages: asked, trigger: Some(trigger) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Touches pages in order; a page that was requested is a fault only if it is a trigger. Returns the number of faults
    /// of pages that had not been requested.
    fn missed(pages: impl Iterator<Item = u64>, window_max: u64) -> usize {
        let mut ahead = ReadAhead::new(10_000, window_max);
        let (mut here, mut triggers) = (std::collections::HashSet::new(), std::collections::HashSet::new());
        let mut missed = 0;
        for page in pages {
            if here.contains(&page) && !triggers.remove(&page) {
                continue;
            }
            missed += usize::from(here.insert(page));
            if let Some(window) = ahead.fault(page) {
                triggers.extend(window.trigger);
                here.extend(window.pages);
            }
        }
        missed
    }

    #[test]
    fn a_row_misses_twice() {
        assert_eq!(missed(0..10_000, 256), 2);
        assert_eq!(missed((0..10_000).rev(), 256), 2);
        assert_eq!(missed(5000..5100, 8), 2);
        assert_eq!(missed((0..400).flat_map(|page| [page, 5000 + page, 9999 - page]), 64), 6, "three rows at once");
    }

    #[test]
    fn a_window_is_cut_where_the_program_goes_on_last() {
        let window = |pages: Range<u64>, trigger| Window { pages, trigger };
        let forward = window(8..24, Some(8));
        let (near, far) = (window(8..12, Some(8)), window(12..24, None));
        assert_eq!(forward.clone().share(7, 4), (Some(near), Some(far)));
        assert_eq!(forward.clone().share(7, 100), (Some(forward.clone()), None));
        assert_eq!(forward.clone().share(7, 0), (None, Some(forward)));
        let backward = window(8..24, Some(23));
        let (near, far) = (window(20..24, Some(23)), window(8..20, None));
        assert_eq!(backward.clone().share(24, 4), (Some(near), Some(far)));
        assert_eq!(backward.clone().share(24, 16), (Some(backward), None));
    }

    #[test]
    fn nothing_is_asked_for_here_and_there() {
        let mut ahead = ReadAhead::new(10_000, 256);
        for index in 0..1000u64 {
            assert_eq!(ahead.fault(index * 7919 % 10_000 / 2 * 2), None);
        }
    }

    #[test]
    fn windows_end_with_the_region() {
        let mut ahead = ReadAhead::new(10, 256);
        assert_eq!(ahead.fault(4), None);
        assert_eq!(ahead.fault(5), Some(Window { pages: 6..10, trigger: Some(6) }));
        assert_eq!(ahead.fault(6), None);
        assert_eq!(ahead.fault(2), None);
        assert_eq!(ahead.fault(1), Some(Window { pages: 0..1, trigger: Some(0) }));
        assert_eq!(ahead.fault(0), None);
    }
}
