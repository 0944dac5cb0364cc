//! The transfer from a home to backups that lack pages: its own pages first, then the others, many at a time.
//!
//! Promises: a page counts as given when every backup that may lack it has acknowledged it since the transfer began. No
//! page of clients is sent before all pages of the home's own were given, and none that a part of the range has. A page of
//! clients that was never changed is zero, and one message gives a whole range of such pages: an empty range takes one
//! message, whatever its size. It must never count a page as given that was not.

use super::home::Stamps;
use super::{Host, PageNumber, Timing};
use crate::Nanoseconds;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

/// How many pages, or ranges of zero pages, are under way at a time.
pub const WINDOW: usize = 64;
/// The largest number of pages that one message declares zero: as many as its field can count.
const RUN_MAX: PageNumber = u32::MAX as PageNumber;

/// See the documentation of this module.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Settling {
    /// The number of pages of the range.
    pub pages: PageNumber,
    /// How many of them, the last ones, are the home's own.
    pub own: PageNumber,
    /// How many may be under way at a time: fewer if answers do not keep up.
    pub window: usize,
    /// The upper limit of `window`.
    pub window_max: usize,
    /// The backups that may lack pages; empty when all were given.
    pub lacking: Vec<Host>,
    /// Pages that have another home, in order.
    pub elsewhere: Vec<Range<PageNumber>>,
    /// How many pages were sent, in the order of the transfer, or are elsewhere.
    pub sent: PageNumber,
    /// Those of them that are not given yet: ranges, by their first page.
    pub under_way: BTreeMap<PageNumber, Lacked>,
}

/// When to send an unanswered message again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Again {
    /// The time.
    pub at: Nanoseconds,
    /// The previous waiting time: twice as long each time, so that a slow host does not receive ever more messages.
    pub wait: Nanoseconds,
}

impl Again {
    /// For a message that is sent now for the first time.
    pub(super) fn after(now: Nanoseconds, timing: &Timing) -> Again {
        Again { at: now + timing.retry, wait: timing.retry }
    }

    /// For a message that is due at once, because its present content was not sent before: the waiting time of earlier ones
    /// says nothing about it.
    pub(super) fn now(now: Nanoseconds) -> Again {
        Again { at: now, wait: 0 }
    }

    /// The message is sent again now.
    pub(super) fn put_off(&mut self, now: Nanoseconds, timing: &Timing) {
        self.wait = (2 * self.wait).min(timing.home_lease / 3).max(timing.retry);
        self.at = now + self.wait;
    }
}

/// A page, or a range of zero pages, on its way to the backups that lack it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lacked {
    /// How many pages.
    pub pages: PageNumber,
    /// They were never changed.
    pub are_zero: bool,
    /// The backups that have not acknowledged it.
    pub missing: Vec<Host>,
    /// Since when it is under way.
    pub since: Nanoseconds,
    /// When to send it again.
    pub again: Again,
}

impl Settling {
    /// For a range of this many pages, of which so many are the home's own. At most `window_max` are under way at a time.
    pub fn new(pages: PageNumber, own: PageNumber, window_max: usize) -> Settling {
        let (lacking, under_way, elsewhere, window) = (Vec::new(), BTreeMap::new(), Vec::new(), window_max);
        Settling { pages, own: own.min(pages), window, window_max, lacking, elsewhere, sent: 0, under_way }
    }

    /// Begins, or begins again.
    pub fn begin(&mut self, lacking: Vec<Host>) {
        (self.lacking, self.sent, self.window) = (lacking, 0, self.window_max);
        self.under_way.clear();
    }

    /// Gives these pages, and no others, to all of them again.
    pub(super) fn give_again(&mut self, pages: impl IntoIterator<Item = PageNumber>, lacking: Vec<Host>, again: Again) {
        self.begin(lacking);
        let lacked = Lacked { pages: 1, are_zero: false, missing: self.lacking.clone(), since: again.at, again };
        self.under_way.extend(pages.into_iter().map(|page| (page, lacked.clone())));
        self.sent = self.pages;
        if self.under_way.is_empty() || self.lacking.is_empty() {
            self.begin(Vec::new());
        }
    }

    /// Sets the pages that have another home.
    pub(super) fn leave_out(&mut self, elsewhere: Vec<Range<PageNumber>>) {
        self.elsewhere = elsewhere;
        let runs = core::mem::take(&mut self.under_way);
        for (first, lacked) in runs {
            for run in outside(&self.elsewhere, first..first + lacked.pages) {
                self.under_way.insert(run.start, Lacked { pages: run.end - run.start, ..lacked.clone() });
            }
        }
    }

    /// Continues in another incarnation, for the backups that still lack pages; from the beginning if one of them is new.
    ///
    /// A page of a zero range that was changed since is given by itself from now on. A backup that has the change has it
    /// of the former incarnation, and would take the page for zero in this one.
    pub(super) fn go_on_for(&mut self, lacking: Vec<Host>, now: Nanoseconds, stamps: &Stamps) {
        if lacking.is_empty() || !lacking.iter().all(|host| self.lacking.contains(host)) {
            return self.begin(lacking);
        }
        let runs = core::mem::take(&mut self.under_way);
        let most = self.window_max.max(runs.len());
        for (first, mut lacked) in runs {
            lacked.missing.retain(|host| lacking.contains(host));
            if lacked.missing.is_empty() {
                continue;
            }
            (lacked.since, lacked.again) = (now, Again::now(now));
            let mut run = first..first + lacked.pages;
            while let Some(page) = run.next() {
                let zero = if lacked.are_zero { self.zero_from(page, stamps).min(run.end - page) } else { 0 };
                let pages = zero.max(1);
                run.start = page + pages;
                self.under_way.insert(page, Lacked { pages, are_zero: zero > 0, ..lacked.clone() });
                if self.under_way.len() > most {
                    return self.begin(lacking);
                }
            }
        }
        self.lacking = lacking;
    }

    /// Whether no backup lacks anything.
    pub fn is_over(&self) -> bool {
        self.lacking.is_empty()
    }

    /// Whether every backup has this page.
    pub fn is_given(&self, page: PageNumber) -> bool {
        let is_in = |(first, lacked): (&PageNumber, &Lacked)| page - first < lacked.pages;
        let is_under_way = self.under_way.range(..=page).next_back().is_some_and(is_in);
        self.is_over() || self.place_of(page) < self.sent && !is_under_way
    }

    /// The next ranges to send, by their first pages. When none is left and none is under way, the transfer is over. Pages
    /// without a stamp, or with one of epoch 0, were never changed.
    pub(super) fn go_on(&mut self, now: Nanoseconds, again: Again, stamps: &Stamps) -> Vec<PageNumber> {
        let mut pages = Vec::new();
        while !self.is_over() && self.under_way.len() < self.window {
            // The last of the home's own pages, or the last of all.
            let is_end = self.sent == self.own || self.sent == self.pages;
            if is_end && !self.under_way.is_empty() {
                break;
            }
            if self.sent == self.pages {
                self.begin(Vec::new());
                break;
            }
            let page = self.page_at(self.sent);
            self.sent += 1;
            if is_in(&self.elsewhere, page) {
                continue;
            }
            let zero = self.zero_from(page, stamps);
            let count = zero.max(1);
            self.sent += count - 1;
            let missing = self.lacking.clone();
            self.under_way.insert(page, Lacked { pages: count, are_zero: zero > 0, missing, since: now, again });
            pages.push(page);
        }
        pages
    }

    /// What is to be sent again now. Fewer may be under way from now on: answers do not keep up.
    pub(super) fn due(&mut self, now: Nanoseconds, timing: &Timing) -> Vec<PageNumber> {
        let due = self.under_way.iter_mut().filter(|(_, lacked)| now >= lacked.again.at);
        let due: Vec<PageNumber> = due
            .map(|(&page, lacked)| {
                lacked.again.put_off(now, timing);
                page
            })
            .collect();
        if !due.is_empty() {
            self.window = (self.window / 2).max(1);
        }
        due
    }

    /// A backup has a page, or each page of a range.
    pub(super) fn stored(&mut self, from: Host, run: &Range<PageNumber>) {
        let is_all = |lacked: &&mut Lacked| lacked.pages <= run.end - run.start;
        if let Some(lacked) = self.under_way.get_mut(&run.start).filter(is_all) {
            lacked.missing.retain(|&host| host != from);
            self.window = self.window_max.min(self.window + 1);
            if lacked.missing.is_empty() {
                self.under_way.remove(&run.start);
            }
        }
    }

    /// How many pages from this one on were never changed and are given next. The home's own pages are not among them:
    /// their description of the range does not start as zero.
    fn zero_from(&self, page: PageNumber, stamps: &Stamps) -> PageNumber {
        let others = self.pages - self.own;
        let mut stamps = stamps.range(page..others.max(page));
        let changed = stamps.find(|(_, stamp)| stamp.epoch > 0).map_or(others, |(changed, _)| *changed);
        let place = self.elsewhere.partition_point(|run| run.end <= page);
        let elsewhere = self.elsewhere.get(place).map_or(others, |run| run.start);
        changed.min(elsewhere).min(others).saturating_sub(page).min(RUN_MAX)
    }

    fn place_of(&self, page: PageNumber) -> PageNumber {
        let others = self.pages - self.own;
        if page < others { page + self.own } else { page - others }
    }

    fn page_at(&self, place: PageNumber) -> PageNumber {
        let others = self.pages - self.own;
        if place < self.own { place + others } else { place - self.own }
    }
}

/// The rest of a range without these.
fn outside(runs: &[Range<PageNumber>], run: Range<PageNumber>) -> Vec<Range<PageNumber>> {
    let mut left = Vec::new();
    let mut from = run.start;
    for other in runs.iter().filter(|other| other.start < run.end && other.end > run.start) {
        left.push(from..other.start.max(from));
        from = other.end;
    }
    left.push(from..run.end.max(from));
    left.retain(|run| !run.is_empty());
    left
}

fn is_in(runs: &[Range<PageNumber>], page: PageNumber) -> bool {
    let place = runs.partition_point(|run| run.end <= page);
    runs.get(place).is_some_and(|run| run.contains(&page))
}
