//! Guesses which pages a faulting thread will need next.
//!
//! Promises: the page that faulted is always requested. A single fault, two neighbouring faults, or faults in no order
//! request nothing else, unless they are of a pass (below). Three faults in a row, or three loads at the same distance of
//! a few pages, form a *stream*, upwards or downwards, whose window grows up to the configured bound. What is requested
//! beyond a fault is at most a quarter of what the stream has gone through, or three pages, unless the stream was as
//! long before. Where the stream ends, these pages were requested for nothing; often they are a neighbour's. It must
//! never decide who may have a page: the request is a hint that the coherence protocol may ignore.
//!
//! A stream with a full window also reads ahead while the program works on the pages that it has. It requests the next
//! windows without their first pages. The fault on such a first page costs one short round trip and shows that it
//! is time to request one more window. (Linux' readahead marks a page for the same purpose.)
//!
//! A stream that comes again is a *pass*: its pages are requested together when its first one faults, or by the window
//! if they are many.

mod passes;

use crate::page::{PageIndex, PageRange};
use passes::Passes;

/// The number of streams that are followed at the same time. A new stream replaces the one that was idle longest.
const STREAMS: usize = 8;
/// The window grows at most fourfold, and is this large as soon as there is one.
const GROWTH: u32 = 4;
/// A stream may request one page in advance for each of so many that it has gone through.
const SURPLUS: u32 = 4;
/// The same for one that goes on beyond the place where it ended before.
const SURPLUS_BEYOND: u32 = 8;
/// The window of a stream after two faults: nothing beyond the second page is requested.
const PROBATION: u32 = 2;
/// The largest distance of three loads in a row that form a stream. An example is a column of a matrix whose rows fill a
/// few pages each. The pages between them are fetched too; they belong to the next columns.
const STRIDE_MAX: u32 = 4;
/// The number of windows under way ahead of a full stream: while one is received, the other is being sent.
const WINDOWS_AHEAD: usize = 2;

/// The pages to request because of one fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Contains the page that faulted.
    pub range: PageRange,
    /// Request the right to write: the fault was a store, or stores have followed the loads of this stream so far.
    pub write: bool,
    /// Ranges to request right afterwards, without waiting for them.
    pub ahead: [Option<PageRange>; WINDOWS_AHEAD],
}

impl Request {
    /// Only the page itself.
    pub fn only(page: PageIndex, write: bool) -> Request {
        Request { range: PageRange::one(page), write, ahead: [None; WINDOWS_AHEAD] }
    }
}

/// The streams of one node.
#[derive(Clone, Debug)]
pub struct Streams {
    streams: [Stream; STREAMS],
    passes: Passes,
    clock: u32,
    window_pages_max: u32,
    pages: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The page of its first fault.
    origin: u32,
    /// The end of the pass that this stream repeats. 0 if it repeats none.
    known_end: u32,
    /// The pages that the program works on, `first..end`.
    first: u32,
    end: u32,
    /// The far end of the pages that were requested.
    frontier: u32,
    /// The pages that were left out in front of the windows ahead, the nearest first.
    markers: [Option<u32>; WINDOWS_AHEAD],
    window: u32,
    /// The distance from one fault to the next, in pages, once there were two.
    stride: u32,
    downwards: bool,
    /// The faults of this stream are stores. Loads right behind stores form another stream, for example at the edge of a
    /// neighbour.
    stores: bool,
    /// Stores to the same pages followed the loads: request the right to write at once.
    write: bool,
    /// The page of the last fault, if that was a load.
    loaded: Option<u32>,
    /// The page of the last store behind loads.
    stored: Option<u32>,
    used: u32,
}

impl Streams {
    /// No streams yet, in a region of `pages` pages. A `window_pages_max` of 1 turns guessing off.
    pub fn new(pages: u32, window_pages_max: u32) -> Streams {
        let streams = [Stream::default(); STREAMS];
        Streams { streams, passes: Passes::default(), clock: 0, window_pages_max: window_pages_max.max(1), pages }
    }

    /// Notes a fault and returns the pages to request.
    pub fn fault(&mut self, page: PageIndex, write: bool) -> Request {
        self.clock = self.clock.wrapping_add(1);
        if self.window_pages_max == 1 {
            return Request::only(page, write);
        }
        let (clock, pages, window_max) = (self.clock, self.pages, self.window_pages_max);
        if let Some(wanted) = self.passes.fault(page.0, write, clock, window_max) {
            if !wanted.is_long {
                let range = PageRange::around(page, page.0, wanted.end.min(pages));
                return Request { range, ..Request::only(page, wanted.write) };
            }
            let stream = self.replace_oldest(Stream::starting_at(page.0, write, clock));
            (stream.known_end, stream.stride, stream.write) = (wanted.end, 1, wanted.write && !write);
            return stream.go_on(page, write, window_max, window_max, pages);
        }
        // A stream that expected this page is preferred to one that has had it: an older one would take a second pass
        // over the same pages apart.
        let goes_on = self.streams.iter().position(|stream| stream.meets(page.0, write) && !stream.has_had(page.0));
        let found = goes_on.or_else(|| self.streams.iter().position(|stream| stream.meets(page.0, write)));
        if let Some(stream) = found.map(|at| &mut self.streams[at]) {
            stream.used = clock;
            let request = stream.follow(page, write, window_max, pages);
            if stream.is_run_to(page.0, write) {
                let end = match stream.known_end {
                    0 => page.0 + 1,
                    known_end if page.0 < known_end => known_end,
                    _ => request.range.end(),
                };
                self.passes.learn(stream.origin..end, write, request.write, clock, window_max);
            }
            return request;
        }
        self.replace_oldest(Stream::starting_at(page.0, write, clock));
        Request::only(page, write)
    }

    fn replace_oldest(&mut self, stream: Stream) -> &mut Stream {
        let clock = self.clock;
        let oldest = self.streams.iter_mut().max_by_key(|stream| clock.wrapping_sub(stream.used));
        let oldest = oldest.expect("there are streams");
        *oldest = stream;
        oldest
    }
}

impl Stream {
    fn starting_at(page: u32, write: bool, used: u32) -> Stream {
        let (first, end) = (page, page + 1);
        let loaded = Some(page).filter(|_| !write);
        Stream { origin: page, first, end, frontier: end, window: 1, stores: write, loaded, used, ..Stream::default() }
    }

    fn asked_for(&self) -> core::ops::Range<u32> {
        self.first.min(self.frontier)..self.end.max(self.frontier)
    }

    /// Whether it has requested this page.
    fn has_had(&self, page: u32) -> bool {
        self.asked_for().contains(&page) && !self.markers.contains(&Some(page))
    }

    /// Whether a fault on `page` continues this stream. It does if the page was requested before (a store after a load, or
    /// a page that was not granted), or if it lies right behind the end of the stream and is of the same kind.
    fn meets(&self, page: u32, write: bool) -> bool {
        if self.window > 0 && self.has_had(page) {
            return true;
        }
        if write != self.stores {
            return false;
        }
        let reach = if self.stores { 1 } else { STRIDE_MAX };
        let (low, high) = match (self.window, self.downwards) {
            (0, _) => return false,
            (1, _) => (self.first.saturating_sub(reach), self.first + reach),
            (PROBATION, false) => (self.first + self.stride, self.first + self.stride),
            (PROBATION, true) => return self.first.checked_sub(self.stride) == Some(page),
            (_, false) => (self.first, self.frontier + self.stride - 1),
            (_, true) => (self.frontier.saturating_sub(self.stride), self.end - 1),
        };
        (low..=high).contains(&page)
    }

    /// Whether its faults, of this kind, went through all pages from the first one to this.
    fn is_run_to(&self, page: u32, stores: bool) -> bool {
        self.window > 1 && !self.downwards && self.stride == 1 && self.stores == stores && page > self.origin
    }

    fn follow(&mut self, page: PageIndex, write: bool, window_max: u32, pages: u32) -> Request {
        let passed = self.markers.iter().position(|marker| *marker == Some(page.0));
        if passed.is_none() && self.asked_for().contains(&page.0) {
            // A pass of stores begins again at its first page.
            let begins_again = self.stores && self.known_end > 0 && page.0 == self.origin;
            if write && !begins_again {
                return self.store_behind_loads(page);
            }
            // The page was here and another node took it, or it was not granted. The pages behind it may no longer be
            // needed.
            *self = Stream::starting_at(page.0, write, self.used);
            return Request::only(page, write);
        }
        if let Some(passed) = passed {
            let mut request = Request::only(page, write || self.write);
            self.loaded = Some(page.0).filter(|_| !write);
            self.markers.rotate_left(passed + 1);
            self.markers[WINDOWS_AHEAD - 1 - passed..].fill(None);
            let reach = self.markers[0].unwrap_or(self.frontier);
            (self.first, self.end) = if self.downwards { (reach, page.0 + 1) } else { (page.0, reach) };
            self.read_ahead(&mut request, page, pages);
            return request;
        }
        if self.window == 1 {
            self.downwards = page.0 < self.first;
            self.stride = page.0.abs_diff(self.first);
        }
        // Two neighbours may be chance, three form a stream.
        let window = match self.window {
            1 => PROBATION,
            PROBATION => GROWTH.min(window_max),
            window => (window * GROWTH).min(self.surplus(page).max(GROWTH)).min(window_max),
        };
        self.go_on(page, write, window, window_max, pages)
    }

    /// Requests a window that begins with this page.
    fn go_on(&mut self, page: PageIndex, write: bool, window: u32, window_max: u32, pages: u32) -> Request {
        self.window = window;
        self.loaded = Some(page.0).filter(|_| !write);
        let range = self.window_from(page, pages);
        let mut request = Request { range, ..Request::only(page, write || self.write) };
        (self.first, self.end) = (range.first().0, range.end());
        self.frontier = if self.downwards { self.first } else { self.end };
        self.markers = [None; WINDOWS_AHEAD];
        if self.window == window_max && window_max > PROBATION {
            self.read_ahead(&mut request, page, pages);
        }
        request
    }

    /// How many pages may be requested beyond this fault.
    fn surplus(&self, page: PageIndex) -> u32 {
        match self.known_end {
            0 => page.0.abs_diff(self.origin) / SURPLUS,
            end if page.0 < end => end - page.0,
            _ => (page.0 - self.origin) / SURPLUS_BEYOND,
        }
    }

    /// Handles a store to a page that was requested. A store to the page that was just loaded makes the stream request the
    /// right to write from then on. (A store to any other page may hit a page that a neighbour has read since.) Stores to
    /// two neighbours show that the rest of the window will be stored to as well.
    fn store_behind_loads(&mut self, page: PageIndex) -> Request {
        let goes_on = self.stored.is_some_and(|stored| stored.abs_diff(page.0) == 1);
        self.write |= self.loaded == Some(page.0);
        self.stored = Some(page.0);
        let mut request = Request::only(page, true);
        if goes_on && (self.first..self.end).contains(&page.0) {
            request.range = PageRange::around(page, self.first, self.end);
        }
        request
    }

    /// Requests one window for each free marker, each without its first page, as far as the stream is long enough.
    fn read_ahead(&mut self, request: &mut Request, page: PageIndex, pages: u32) {
        let free = self.markers.iter().position(Option::is_none).unwrap_or(WINDOWS_AHEAD);
        let count = (self.surplus(page) / self.window).saturating_sub(1).min(WINDOWS_AHEAD as u32) as usize;
        for index in free..count {
            let (marker, start) = if self.downwards {
                (self.frontier.checked_sub(1), self.frontier.checked_sub(2))
            } else {
                (Some(self.frontier), Some(self.frontier + 1).filter(|&start| start < pages))
            };
            let Some(start) = start else { return };
            let range = self.window_from(PageIndex(start), pages);
            self.frontier = if self.downwards { range.first().0 } else { range.end() };
            self.markers[index] = marker;
            request.ahead[index] = Some(range);
        }
    }

    fn window_from(&self, page: PageIndex, pages: u32) -> PageRange {
        let window = if self.window == PROBATION { 1 } else { self.window };
        if self.downwards {
            PageRange::around(page, (page.0 + 1).saturating_sub(window), page.0 + 1)
        } else {
            let end = if page.0 < self.known_end { self.known_end.min(pages) } else { pages };
            PageRange::around(page, page.0, page.0.saturating_add(window).min(end))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn bounds(range: PageRange) -> (u32, u32) {
        (range.first().0, range.end())
    }

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
        assert_eq!(fault(&mut streams, 101), (101, 102));
        assert_eq!(fault(&mut streams, 102), (102, 106));
        assert_eq!(fault(&mut streams, 106), (106, 110));
        assert_eq!(fault(&mut streams, 500), (500, 501));
        assert_eq!(fault(&mut streams, 499), (499, 500));
        assert_eq!(fault(&mut streams, 498), (495, 499));
        assert_eq!(fault(&mut streams, 494), (491, 495));
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
                let request = streams.fault(PageIndex(page), false);
                assert!(request.range.contains(PageIndex(page)));
                for range in request.ahead.into_iter().flatten().chain([request.range]) {
                    for page in range.pages() {
                        held[page.0 as usize] = true;
                    }
                }
            }
            assert!(demanded < 90, "{demanded} faults for 64 windows, downwards: {downwards}");
        }
    }

    #[test]
    fn a_stream_that_ends_has_asked_for_a_quarter_more_at_most() {
        for length in [10, 50, 188, 500, 3_000] {
            let mut streams = Streams::new(10_000, 128);
            let (mut held, mut faults) = (alloc::vec![false; 10_000], 0);
            for page in 0..length {
                if !held[page as usize] {
                    faults += 1;
                    let request = streams.fault(PageIndex(page), false);
                    for range in request.ahead.into_iter().flatten().chain([request.range]) {
                        range.pages().for_each(|page| held[page.0 as usize] = true);
                    }
                }
            }
            let asked_for = held.iter().filter(|held| **held).count() as u32;
            assert!(asked_for <= length + length / 4 + GROWTH, "{asked_for} pages for a stream of {length}");
            assert!(faults <= 12 + length / 30, "{faults} faults for a stream of {length}");
        }
    }

    #[test]
    fn loads_a_few_pages_apart_are_a_stream() {
        for (stride, downwards) in [(2, false), (4, false), (2, true), (3, false)] {
            let mut streams = Streams::new(4096, 64);
            let mut held = alloc::vec![false; 4096];
            let mut faults = 0;
            let mut order: Vec<u32> = (0..4096).step_by(stride).collect();
            if downwards {
                order.reverse();
            }
            for page in order {
                if !held[page as usize] {
                    faults += 1;
                    let request = streams.fault(PageIndex(page), false);
                    for range in request.ahead.into_iter().flatten().chain([request.range]) {
                        range.pages().for_each(|page| held[page.0 as usize] = true);
                    }
                }
            }
            assert!(faults < 100, "{faults} faults for 64 windows, {stride} apart, downwards: {downwards}");
        }
        let mut streams = Streams::new(10_000, 64);
        for page in [100, 102, 105, 107, 111] {
            assert_eq!(fault(&mut streams, page), (page, page + 1), "no distance repeats");
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
    fn one_store_behind_loads_asks_for_one_page_and_two_neighbours_for_the_window() {
        let mut streams = Streams::new(10_000, 16);
        for page in [100, 101, 102, 106] {
            fault(&mut streams, page);
        }
        let store = |streams: &mut Streams, page| bounds(streams.fault(PageIndex(page), true).range);
        assert_eq!(store(&mut streams, 107), (107, 108));
        assert_eq!(store(&mut streams, 109), (109, 110));
        assert_eq!(store(&mut streams, 108), (106, 110));
    }

    #[test]
    fn pages_that_were_taken_away_are_asked_for_again_and_alone() {
        let mut streams = Streams::new(10_000, 16);
        for page in [100, 101, 102, 106] {
            fault(&mut streams, page);
        }
        let mut asked_for = 0;
        for _ in 0..50 {
            for page in [107, 108] {
                let (first, end) = fault(&mut streams, page);
                asked_for += end - first;
            }
        }
        assert!(asked_for <= 100, "{asked_for} pages asked for, 100 needed");
    }

    #[test]
    fn loads_behind_stores_do_not_ask_for_the_right_to_write() {
        let mut streams = Streams::new(10_000, 64);
        for _ in 0..3 {
            for (page, write) in [(10, true), (11, true), (12, false), (13, false)] {
                assert_eq!(streams.fault(PageIndex(page), write).write, write, "page {page}");
            }
        }
    }

    #[test]
    fn a_window_of_one_turns_guessing_off() {
        let mut streams = Streams::new(10_000, 1);
        for page in 0..100 {
            assert_eq!(fault(&mut streams, page), (page, page + 1));
        }
    }
}
