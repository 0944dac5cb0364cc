//! Parts of a range: subranges of its pages that have a home of their own.
//!
//! A part is a range with a number of its own. Messages between servers and controllers carry that number
//! ([`crate::wire::datagram::control`]), but it never stands in an address: clients name its pages as pages of the
//! range that it was split from. Its own machines number them from 0.
//!
//! Every host that has the range has a machine for each of its parts, whichever host is home of it. The machine exists
//! from when the host learns that the part was split off until it learns that it was merged back; both come with a new
//! incarnation of the range ([`next`]).
//!
//! Promises: at every moment a host has one machine for a page. What the range's home knew about the pages of a part (their
//! versions, and their leases and copies, which continue under their epochs) the part's home knows, and the other way
//! round. A commit that some backup lacked is forgotten at the split or the merge without an answer, and its client
//! repeats it. The home shows its version of such a page again only when every backup has it.
//!
//! It must never split or merge by a placement that was replaced, and must never take the pages of one part for those
//! of another that had its number before ([`Part::since`]).

use super::home::Home;
use super::server::{Memory, RangeServer};
use super::settling::{Again, Settling};
use super::{Host, Message, PageNumber, RangeNumber, Timing};
use crate::Nanoseconds;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

/// The most pages of a part.
pub const PART_PAGES_MAX: PageNumber = 16_384;
/// The most parts of a range.
pub const PARTS_MAX: usize = 256;

/// A subrange of pages that has a home of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Part {
    /// The number that identifies it in messages: a part's ([`RangeNumber::is_part`]).
    pub number: RangeNumber,
    /// Its first page, by the numbering of the range.
    pub first: PageNumber,
    /// The number of its pages.
    pub pages: PageNumber,
    /// The incarnation of the range, and of the part, with which it was split off. A number that is used again has a
    /// later one.
    pub since: u16,
}

/// The place of a part in its range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Within {
    /// The range.
    pub range: RangeNumber,
    /// The part's first page, by the numbering of the range.
    pub first: PageNumber,
    /// [`Part::since`].
    pub since: u16,
}

impl Part {
    /// One past its last page, by the numbering of the range.
    pub fn end(&self) -> PageNumber {
        self.first.saturating_add(self.pages)
    }

    /// Its pages, by the numbering of the range.
    pub fn run(&self) -> Range<PageNumber> {
        self.first..self.end()
    }

    /// Its place in the range.
    pub fn within(&self, range: RangeNumber) -> Within {
        Within { range, first: self.first, since: self.since }
    }
}

/// Whether these may be the parts of one range: not too many or too long, in order, and disjoint.
pub fn are_parts(parts: &[Part]) -> bool {
    let is_one = |part: &Part| {
        let may_end = part.first.checked_add(part.pages).is_some();
        part.number.is_part() && part.since > 0 && (1..=PART_PAGES_MAX).contains(&part.pages) && may_end
    };
    let is_alone = |index: usize| parts[..index].iter().all(|before| before.number != parts[index].number);
    parts.len() <= PARTS_MAX
        && parts.iter().all(is_one)
        && parts.windows(2).all(|two| two[0].end() <= two[1].first)
        && (0..parts.len()).all(is_alone)
}

/// The part of a range that has this page, if any.
pub fn part_with(parts: &[Part], page: PageNumber) -> Option<&Part> {
    let place = parts.partition_point(|part| part.end() <= page);
    parts.get(place).filter(|part| part.run().contains(&page))
}

/// The next step of a host in handling a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Pass it to the machine of the range; nothing else.
    Hear,
    /// First make a machine for this part ([`RangeServer::split`]).
    Split(Part),
    /// First end the machine of this part ([`RangeServer::merge`]).
    Merge(Part),
}

/// The next step for a message about a range; `here` are its parts that this host has machines for.
pub fn next(range: &RangeServer, here: &[Part], message: &Message) -> Step {
    let Message::Placed { request, boot_id, placement, .. } = message else { return Step::Hear };
    if !range.takes(*request, *boot_id, placement) {
        return Step::Hear;
    }
    let merged = here.iter().find(|part| !placement.parts.contains(part)).map(|part| Step::Merge(*part));
    let split = || placement.parts.iter().find(|part| !here.contains(part)).map(|part| Step::Split(*part));
    merged.or_else(split).unwrap_or(Step::Hear)
}

/// How a host handles pages that the home of a range sends it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Keeps {
    /// The machine of the range handles them.
    Yes,
    /// Ignore them: a part has some of them, and that home did not know.
    No,
    /// That home has merged the parts that have some of them here: ask the controller about the range.
    Ask,
}

/// How a host with these parts handles these pages when the home of their range, in this incarnation, sends them.
pub fn may_keep(here: &[Part], pages: &Range<PageNumber>, incarnation: u16) -> Keeps {
    let has_some = |part: &&Part| part.first < pages.end && pages.start < part.end();
    match here.iter().filter(has_some).map(|part| part.since).max() {
        None => Keeps::Yes,
        Some(since) if incarnation < since => Keeps::No,
        Some(_) => Keeps::Ask,
    }
}

/// Whether the machine of a part may handle this message. It must not if the message comes from a home in an incarnation
/// that no controller has announced to it: it may be about a later part with the same number. The machine asks the
/// controller instead.
pub fn is_credible(part: &RangeServer, message: &Message) -> bool {
    match message {
        Message::Store { incarnation, .. } | Message::Leases { incarnation, .. } => {
            *incarnation <= part.memory.incarnation
        }
        _ => true,
    }
}

/// The page ranges of the parts, in order.
pub(super) fn runs_of(parts: &[Part]) -> Vec<Range<PageNumber>> {
    parts.iter().map(Part::run).collect()
}

impl RangeServer {
    /// A part of this range has a machine of its own from now on. After the part's pages come `own` pages that its home
    /// changes itself. Commits of these pages that were under way to backups, and requests that waited for them, are
    /// forgotten.
    pub fn split(&mut self, now: Nanoseconds, part: &Part, own: PageNumber) -> RangeServer {
        let run = part.run();
        // Messages of a home of the part before its first incarnation must be ignored: they are about another part.
        let stamps = taken(&mut self.memory.stamps, &run);
        let memory = Memory { is_blank: self.memory.is_blank, incarnation: part.since, stamps };
        let timing = self.timing;
        let home = self.home.as_mut().map(|home| home.split(now, part, own, &timing));
        let pages = part.pages + own;
        RangeServer {
            own,
            window: self.window,
            memory,
            home,
            knows: self.knows,
            reports: self.reports,
            report_at: Some(now),
            ..RangeServer::new(self.me, self.controller, pages, timing, self.boot_id, self.knows.0)
        }
    }

    /// The machine of this part of the range ends. The machine of the range learns at once in which incarnation it has
    /// these pages again.
    pub fn merge(&mut self, now: Nanoseconds, part: &Part, other: RangeServer) {
        // A host that lacks some of the part lacks some of the whole.
        self.memory.is_blank |= other.memory.is_blank;
        self.memory.incarnation = self.memory.incarnation.max(other.memory.incarnation);
        let stamps = other.memory.stamps.into_iter().filter(|(page, _)| *page < part.pages);
        self.memory.stamps.extend(stamps.map(|(page, stamp)| (part.first + page, stamp)));
        self.home = match (self.home.take(), other.home) {
            (Some(mut home), Some(of_part)) if is_same(&home.backups, &of_part.backups) => {
                home.merge(now, part, of_part, &self.timing);
                Some(home)
            }
            // No machine here knows all leases, or which host has which pages: a home that begins.
            _ => None,
        };
    }

    /// The bytes of the pages are given up. The server counts as empty until the controller knows that.
    pub fn lose_memory(&mut self, now: Nanoseconds) {
        let incarnation = self.memory.incarnation;
        self.memory = Memory { is_blank: true, incarnation, ..Memory::default() };
        (self.home, self.handed, self.table) = (None, None, None);
        self.asked.clear();
        self.report_at = Some(now);
    }
}

impl Home {
    /// Takes out the knowledge about the pages of a part, for a home of their own.
    fn split(&mut self, now: Nanoseconds, part: &Part, own: PageNumber, timing: &Timing) -> Home {
        let run = part.run();
        let leased = taken(&mut self.leased, &run);
        taken(&mut self.queues, &run);
        let forgotten = taken(&mut self.staged, &run);
        let mut settling = Settling::new(part.pages + own, own, self.settling.window_max);
        if self.is_settled() {
            // This host makes the part's own pages from those of the range.
            let again = forgotten.keys().copied().chain(part.pages..part.pages + own);
            settling.give_again(again, self.backups.clone(), Again::after(now, timing));
        } else {
            settling.begin(self.backups.clone());
        }
        Home {
            incarnation: self.incarnation,
            counter: self.counter,
            until: self.until,
            grace_until: self.grace_until,
            backups: self.backups.clone(),
            hides: !settling.is_over() && (self.hides || !forgotten.is_empty()),
            settling,
            hand_to: None,
            hands: None,
            heard: self.heard.clone(),
            retry_at: now,
            leased,
            queues: BTreeMap::new(),
            staged: BTreeMap::new(),
        }
    }

    /// Takes in the knowledge of a part's home. Its next incarnation follows the last one of both.
    fn merge(&mut self, now: Nanoseconds, part: &Part, other: Home, timing: &Timing) {
        self.incarnation = self.incarnation.max(other.incarnation);
        self.grace_until = self.grace_until.max(other.grace_until);
        self.leased.extend(other.leased.into_iter().map(|(page, leased)| (part.first + page, leased)));
        let forgotten = other.staged.keys().filter(|page| **page < part.pages).map(|page| part.first + page);
        let forgotten: Vec<PageNumber> = forgotten.collect();
        let hides = self.hides || other.hides || !forgotten.is_empty();
        if self.is_settled() && other.settling.is_over() {
            self.settling.give_again(forgotten, self.backups.clone(), Again::after(now, timing));
        } else {
            self.settling.begin(self.backups.clone());
        }
        self.hides = hides && !self.is_settled();
        self.retry_at = now;
    }
}

/// The entries of a map for a range of pages, numbered from its first page.
fn taken<T>(map: &mut BTreeMap<PageNumber, T>, run: &Range<PageNumber>) -> BTreeMap<PageNumber, T> {
    let mut of_run = map.split_off(&run.start);
    map.extend(of_run.split_off(&run.end));
    of_run.into_iter().map(|(page, value)| (page - run.start, value)).collect()
}

fn is_same(one: &[Host], other: &[Host]) -> bool {
    one.len() == other.len() && one.iter().all(|host| other.contains(host))
}
