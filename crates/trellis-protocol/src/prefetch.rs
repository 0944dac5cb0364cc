//! Guesses which pages a faulting thread will want next.
//!
//! Promises: the page that faulted is always asked for; a single fault, or faults in no order, ask
//! for nothing else; two neighbouring faults make a *stream*, upwards or downwards, whose window
//! grows fourfold up to the configured bound. It must never decide who may have a page: the wish
//! is a hint that the coherence protocol may ignore.
//!
//! A stream that has reached its full window also reads ahead while the program works on what it
//! has: the next window is asked for without its first page, so that the fault on that page, one
//! short round trip, says when to ask for the window after it (Linux' readahead marks a page for
//! the same purpose).

use crate::page::{PageIndex, PageRange};

/// Streams followed at the same time; the one that was idle longest gives way.
const STREAMS: usize = 8;
const GROWTH: u32 = 4;

/// What to ask for because of one fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    /// Holds the page that faulted.
    pub range: PageRange,
    /// Ask for the right to write: the fault was a store, or stores have followed the loads of
    /// this stream so far.
    pub write: bool,
    /// To be asked for right after, without waiting for it.
    pub ahead: Option<PageRange>,
}

/// The streams of one node.
#[derive(Clone, Debug)]
pub struct Streams {
    streams: [Stream; STREAMS],
    clock: u32,
    window_pages_max: u32,
    pages: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// What was asked for last, `first..end`.
    first: u32,
    end: u32,
    /// What was asked for ahead of it; empty when `ahead_first == ahead_end`.
    ahead_first: u32,
    ahead_end: u32,
    window: u32,
    downwards: bool,
    write: bool,
    used: u32,
}

impl Streams {
    /// No streams yet, in a region of `pages` pages; `window_pages_max` of 1 turns guessing off.
    pub fn new(pages: u32, window_pages_max: u32) -> Streams {
        let streams = [Stream::default(); STREAMS];
        Streams { streams, clock: 0, window_pages_max: window_pages_max.max(1), pages }
    }

    /// Notes a fault and says what to ask for.
    pub fn fault(&mut self, page: PageIndex, write: bool) -> Wish {
        self.clock = self.clock.wrapping_add(1);
        let alone = Wish { range: PageRange::one(page), write, ahead: None };
        if self.window_pages_max == 1 {
            return alone;
        }
        let (clock, pages, window_max) = (self.clock, self.pages, self.window_pages_max);
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.meets(page.0)) {
            stream.used = clock;
            return stream.follow(page, write, window_max, pages);
        }
        let oldest = self.streams.iter_mut().max_by_key(|stream| clock.wrapping_sub(stream.used));
        *oldest.expect("there are streams") =
            Stream { first: page.0, end: page.0 + 1, window: 1, write, used: clock, ..Stream::default() };
        alone
    }
}

impl Stream {
    /// Whether a fault on `page` continues this stream: inside what was asked for (a store after a
    /// load, or a page that was not given) or right behind its end.
    fn meets(&self, page: u32) -> bool {
        if self.window == 0 {
            return false;
        }
        let either_way = self.window == 1;
        let (low, high) = match (either_way, self.downwards) {
            (true, _) => (self.first.saturating_sub(1), self.end),
            (false, false) => (self.first, self.end.max(self.ahead_end)),
            (false, true) => {
                let first = if self.has_ahead() { self.ahead_first } else { self.first };
                (first.saturating_sub(1), self.end - 1)
            }
        };
        (low..=high).contains(&page)
    }

    fn has_ahead(&self) -> bool {
        self.ahead_first < self.ahead_end
    }

    fn follow(&mut self, page: PageIndex, write: bool, window_max: u32, pages: u32) -> Wish {
        let inside = page.0 >= self.first && page.0 < self.end;
        if inside {
            // A store behind the loads: whoever stores once stores again.
            self.write |= write;
            let range = PageRange::around(page, self.first, self.end);
            return Wish { range, write, ahead: None };
        }
        if self.window == 1 {
            self.downwards = page.0 < self.first;
        }
        self.window = (self.window * GROWTH).min(window_max);
        let write = write || self.write;
        let marker = self.has_ahead() && self.is_marker(page.0);
        let range = if marker { PageRange::one(page) } else { self.window_from(page, pages) };
        let full = self.window == window_max;
        let behind = if marker { (self.ahead_first, self.ahead_end) } else { bounds(range) };
        (self.first, self.end) = (behind.0.min(range.first().0), behind.1.max(range.end()));
        let ahead = full.then(|| self.window_behind(behind, pages)).flatten();
        (self.ahead_first, self.ahead_end) = ahead.map_or((0, 0), bounds);
        Wish { range, write, ahead }
    }

    /// The page that was left out when the window behind it was asked for.
    fn is_marker(&self, page: u32) -> bool {
        if self.downwards { page == self.ahead_end } else { page + 1 == self.ahead_first }
    }

    fn window_from(&self, page: PageIndex, pages: u32) -> PageRange {
        if self.downwards {
            PageRange::around(page, (page.0 + 1).saturating_sub(self.window), page.0 + 1)
        } else {
            PageRange::around(page, page.0, page.0.saturating_add(self.window).min(pages))
        }
    }

    /// The window after `behind`, without the page next to it.
    fn window_behind(&self, behind: (u32, u32), pages: u32) -> Option<PageRange> {
        let start = if self.downwards {
            behind.0.checked_sub(2)?
        } else {
            behind.1.checked_add(1).filter(|&start| start < pages)?
        };
        Some(self.window_from(PageIndex(start), pages))
    }
}

fn bounds(range: PageRange) -> (u32, u32) {
    (range.first().0, range.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn fault(streams: &mut Streams, page: u32) -> (u32, u32) {
        bounds(streams.fault(PageIndex(page), false).range)
    }

    #[test]
    fn faults_in_no_order_ask_for_nothing_else() {
        let mut streams = Streams::new(10_000, 256);
        for page in [5, 900, 17, 4000, 33, 2000, 7000, 9000, 512] {
            assert_eq!(fault(&mut streams, page), (page, page + 1));
        }
    }

    #[test]
    fn a_stream_grows_upwards_and_downwards() {
        let mut streams = Streams::new(10_000, 64);
        assert_eq!(fault(&mut streams, 100), (100, 101));
        assert_eq!(fault(&mut streams, 101), (101, 105));
        assert_eq!(fault(&mut streams, 105), (105, 121));
        assert_eq!(fault(&mut streams, 500), (500, 501));
        assert_eq!(fault(&mut streams, 499), (496, 500));
        assert_eq!(fault(&mut streams, 495), (480, 496));
    }

    #[test]
    fn a_long_stream_faults_once_per_window_and_reads_ahead() {
        for downwards in [false, true] {
            let pages = 4096u32;
            let mut streams = Streams::new(pages, 64);
            let mut held = alloc::vec![false; pages as usize];
            let mut demanded = 0;
            let order: Vec<u32> = if downwards { (0..pages).rev().collect() } else { (0..pages).collect() };
            for page in order {
                if held[page as usize] {
                    continue;
                }
                demanded += 1;
                let wish = streams.fault(PageIndex(page), false);
                assert!(wish.range.contains(PageIndex(page)));
                for range in [Some(wish.range), wish.ahead].into_iter().flatten() {
                    for page in range.pages() {
                        held[page.0 as usize] = true;
                    }
                }
            }
            assert!(demanded < 90, "{demanded} faults for 64 windows, downwards: {downwards}");
        }
    }

    #[test]
    fn a_store_behind_a_load_makes_the_stream_ask_for_the_right_to_write() {
        let mut streams = Streams::new(10_000, 64);
        streams.fault(PageIndex(10), false);
        assert!(streams.fault(PageIndex(10), true).write);
        assert!(streams.fault(PageIndex(11), false).write);
        assert!(!streams.fault(PageIndex(700), false).write);
    }

    #[test]
    fn a_window_of_one_turns_guessing_off() {
        let mut streams = Streams::new(10_000, 1);
        for page in 0..100 {
            assert_eq!(fault(&mut streams, page), (page, page + 1));
        }
    }
}
