//! A memory server's role in one range: home, backup, or neither.
//!
//! Promises: it is home only while the controller's word (its home lease) lasts, counted from when it asked. As a
//! backup it keeps what the newest home sends, and acknowledges nothing from an older one. If it receives a request for
//! a page that it must not answer for, it names the home. It must never acknowledge a page as if it still had the
//! others after its memory was lost.
//!
//! ```text
//! blank ── the controller knows, and counts it no more ──► idle ── placed as home ──► home ──┐
//!                                                           ▲  ▲──── another is home ────────┤
//!                                                           └─────── handed over ────────────┘
//! ```

use super::home::{Context, Home, Stamp, Stamps};
use super::settling::{Settling, WINDOW};
use super::{
    Answer, Bytes, Effect, Entry, Epoch, Host, Message, PageNumber, Party, Placement, State, Status, Timing, send,
};
use crate::Nanoseconds;
use alloc::vec::Vec;
use core::ops::Range;

/// The maximum number of a home's reports to which answers count. A home reports three times in the time of its home lease,
/// so that a controller may take up to two thirds of that time to answer, and also when it is called or has news.
const REPORTS_MAX: usize = 8;

/// A fact.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Input {
    /// A message arrived.
    Message(Party, Message),
    /// The home itself changes a page of its own, of which clients never get a lease or a copy; the new content is staged.
    /// One [`Effect::Changed`] follows, at once or later. None follows if this server is no longer home: then it is unknown
    /// whether the change counted.
    Change(PageNumber),
    /// Time passed.
    Tick,
}

/// What lasts as long as the bytes of the pages: kept beside them, lost with them.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Memory {
    /// The bytes were lost, and the controller does not know yet.
    pub is_blank: bool,
    /// The highest incarnation that this server has learnt of.
    pub incarnation: u16,
    /// The versions of the pages.
    pub stamps: Stamps,
}

/// The state machine. The fields are public for the checkers; a caller must not use them, except that it keeps
/// [`RangeServer::memory`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RangeServer {
    /// The number of this host.
    pub me: Host,
    /// The controller, which places the range.
    pub controller: Party,
    /// The number of pages.
    pub pages: PageNumber,
    /// How many of them, the last ones, are the home's own, which it changes itself. Backups get these first.
    pub own: PageNumber,
    /// How many pages may be on their way at a time to backups that lack them.
    pub window: usize,
    /// How long rights last.
    pub timing: Timing,
    /// The boot id: a random number that the server chose at its start.
    pub boot_id: u16,
    /// See [`Memory`].
    pub memory: Memory,
    /// The state of the home, while this server is home.
    pub home: Option<Home>,
    /// The incarnation in which it handed the range over.
    pub handed: Option<u16>,
    /// All leases of the home of that incarnation, if that home handed them over to this server.
    pub table: Option<(u16, Vec<Entry>)>,
    /// The host that it takes for home, and the last incarnation that the controller announced.
    pub knows: (Host, u16),
    /// The controller said that the range is unserved, and no home was heard of since.
    pub is_unserved: bool,
    /// The reports without an answer that may still count, the last one at the end: their numbers and when they were
    /// sent. At most eight.
    pub asked: Vec<(u64, Nanoseconds)>,
    /// How long the last report of a server that does not serve is waited for; 0 after an answer.
    pub waited: Nanoseconds,
    /// The number of reports made.
    pub reports: u64,
    /// The last call of the controller that arrived.
    pub called: u64,
    /// When to report again.
    pub report_at: Option<Nanoseconds>,
}

impl RangeServer {
    /// A server that starts. `memory` is what it kept, with the bytes of the pages; `None` if they are lost, or the host
    /// never had them. `home` is the host that it takes for home until it learns of a newer one.
    pub fn new(
        me: Host,
        controller: Party,
        pages: PageNumber,
        timing: Timing,
        boot_id: u16,
        home: Host,
    ) -> RangeServer {
        RangeServer {
            me,
            controller,
            pages,
            own: 0,
            window: WINDOW,
            timing,
            boot_id,
            memory: Memory::default(),
            home: None,
            handed: None,
            table: None,
            knows: (home, 0),
            is_unserved: false,
            asked: Vec::new(),
            waited: 0,
            reports: 0,
            called: 0,
            report_at: Some(0),
        }
    }

    /// The same server after a restart, with what it kept. Without memory it has to tell the controller first.
    #[must_use]
    pub fn restarted(&self, now: Nanoseconds, boot_id: u16, memory: Option<Memory>) -> RangeServer {
        let fresh = RangeServer::new(self.me, self.controller, self.pages, self.timing, boot_id, self.knows.0);
        let memory = memory.unwrap_or(Memory { is_blank: true, ..Memory::default() });
        RangeServer { own: self.own, window: self.window, memory, report_at: Some(now), ..fresh }
    }

    /// Takes one fact and pushes the effects that follow from it.
    pub fn step(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Message(from, Message::Request { page, request, ask }) => {
                let answer = Answer { to: from, page, request, ask };
                if page < self.pages {
                    self.request(now, answer, effects);
                }
            }
            Input::Message(from, Message::Store { page, pages, incarnation, epoch }) => {
                self.store(from, page..page.saturating_add(pages), incarnation, epoch, effects);
            }
            // A message for the home of another part that had the same number.
            Input::Message(_, Message::Stored { incarnation, .. }) if incarnation < self.memory.incarnation => {}
            Input::Message(from, Message::Stored { page, pages, incarnation, epoch }) => {
                let run = page..page.saturating_add(pages);
                let is_settled = |server: &RangeServer| server.home.as_ref().is_some_and(Home::is_settled);
                let was_settled = is_settled(self);
                self.with_home(now, effects, |home, context| home.stored(from.host, run, incarnation, epoch, context));
                // The controller must know when all backups are complete: only then may they become home.
                if is_settled(self) && !was_settled {
                    self.report_at = Some(now);
                }
            }
            Input::Message(from, Message::Invalidated { page, epoch }) => {
                self.with_home(now, effects, |home, context| home.invalidated(from, page, epoch, context));
            }
            Input::Message(from, Message::Leases { incarnation, entries }) => {
                if self.home.is_none() && !self.memory.is_blank && incarnation >= self.memory.incarnation {
                    self.table = Some((incarnation, entries));
                    send(effects, from, Message::Taken { incarnation }, Bytes::Nothing);
                }
            }
            Input::Message(from, Message::Taken { incarnation }) => self.taken(now, from.host, incarnation),
            Input::Message(_, Message::Placed { request: 0, placement, call, .. }) => {
                self.called_up(now, &placement, call);
            }
            Input::Message(_, Message::Placed { request, boot_id, placement, .. }) => {
                self.placed(now, request, boot_id, &placement, effects);
            }
            Input::Message(..) => {}
            Input::Change(page) if self.serves(now) => {
                self.with_home(now, effects, |home, context| home.change(page, context))
            }
            Input::Change(page) => effects.push(Effect::Changed(page, false)),
            Input::Tick => self.with_home(now, effects, |home, context| home.tick(context)),
        }
        if self.report_at.is_some_and(|at| now >= at) {
            self.report(now, effects);
        }
    }

    /// Those of these pages that were never changed here: they are zero. A range that is announced as zero is announced
    /// again unchanged, even if pages of it were changed since, because a backup keeps a newer version that it has.
    pub fn unchanged(&self, run: Range<PageNumber>) -> impl Iterator<Item = PageNumber> {
        run.filter(|page| self.memory.stamps.get(page).is_none_or(|stamp| stamp.epoch == 0))
    }

    /// When to give [`Input::Tick`].
    pub fn alarm(&self) -> Option<Nanoseconds> {
        let home = self.home.as_ref().and_then(Home::alarm);
        self.report_at.into_iter().chain(home).min()
    }

    /// Whether it answers for pages as the home.
    pub fn serves(&self, now: Nanoseconds) -> bool {
        self.home.as_ref().is_some_and(|home| now < home.until)
    }

    pub(super) fn with_home(
        &mut self,
        now: Nanoseconds,
        effects: &mut Vec<Effect>,
        action: impl FnOnce(&mut Home, &mut Context<'_>),
    ) {
        let (timing, stamps) = (&self.timing, &mut self.memory.stamps);
        if let Some(home) = &mut self.home {
            action(home, &mut Context { now, timing, stamps, effects });
            home.rest();
        }
    }

    fn request(&mut self, now: Nanoseconds, answer: Answer, effects: &mut Vec<Effect>) {
        if self.serves(now) {
            return self.with_home(now, effects, |home, context| home.request(answer, context));
        }
        match self.knows {
            _ if self.is_unserved => answer.say(Status::Unserved, 0, effects),
            (home, incarnation) if home != self.me => answer.moved(home, incarnation, effects),
            _ => answer.say(Status::Restarting, 0, effects),
        }
    }

    /// The home of that incarnation sends a page, or a range of zero pages.
    fn store(
        &mut self,
        from: Party,
        run: Range<PageNumber>,
        incarnation: u16,
        epoch: Epoch,
        effects: &mut Vec<Effect>,
    ) {
        let is_replaced = self.home.as_ref().is_some_and(|home| incarnation <= home.incarnation);
        if self.memory.is_blank || is_replaced || incarnation < self.memory.incarnation {
            return;
        }
        self.follow(incarnation, from.host);
        let stamp = Stamp { incarnation, epoch };
        let (page, pages) = (run.start, run.end - run.start);
        if epoch == 0 && page < self.pages.saturating_sub(self.own) {
            // No client's page here was ever changed at the home: it is zero. The same holds for a page without a stamp
            // here.
            for (page, kept) in self.memory.stamps.range_mut(run).filter(|(_, kept)| **kept < stamp) {
                *kept = stamp;
                effects.push(Effect::Put(*page));
            }
        } else if self.memory.stamps.get(&page).is_none_or(|kept| *kept < stamp) {
            self.memory.stamps.insert(page, stamp);
            effects.push(Effect::Put(page));
        }
        send(effects, from, Message::Stored { page, pages, incarnation, epoch }, Bytes::Nothing);
    }

    /// The controller names the home.
    fn hear(&mut self, incarnation: u16, home: Host) {
        self.follow(incarnation, home);
        self.knows = (home, self.knows.1.max(incarnation));
    }

    /// Another host is home now, or the same as before. A home does not say which pages are its own in its incarnation;
    /// only the controller does, so this is not passed on.
    fn follow(&mut self, incarnation: u16, home: Host) {
        self.memory.incarnation = self.memory.incarnation.max(incarnation);
        self.knows.0 = home;
        self.is_unserved = false;
        if home != self.me {
            self.home = None;
            self.handed = None;
        }
    }

    fn taken(&mut self, now: Nanoseconds, from: Host, incarnation: u16) {
        let is_over =
            |home: &Home| home.incarnation == incarnation && home.hand_to == Some(from) && home.is_frozen(now);
        if self.home.as_ref().is_some_and(is_over) {
            self.home = None;
            self.handed = Some(incarnation);
            self.report_at = Some(now);
        }
    }

    fn state(&self, now: Nanoseconds) -> State {
        match (&self.home, self.handed) {
            _ if self.memory.is_blank => State::Blank,
            (Some(home), _) => {
                let silent = home.silent(now, &self.timing);
                State::Home { incarnation: home.incarnation, is_settled: home.is_settled(), silent }
            }
            (None, Some(incarnation)) => State::Handed(incarnation),
            (None, None) => State::Idle,
        }
    }

    fn report(&mut self, now: Nanoseconds, effects: &mut Vec<Effect>) {
        self.reports += 1;
        let (is_home, held) = (self.home.is_some(), self.timing.home_lease_held);
        // An answer to an older report could no longer prolong the home lease.
        self.asked.retain(|&(_, at)| is_home && now < at + held);
        self.asked.drain(..(self.asked.len() + 1).saturating_sub(REPORTS_MAX));
        self.asked.push((self.reports, now));
        let wait = if self.serves(now) {
            self.timing.home_lease_held / 3
        } else {
            self.waited = self.timing.report_after(self.waited);
            self.waited
        };
        self.report_at = Some(now + wait.max(1));
        let (request, boot_id, state, call) = (self.reports, self.boot_id, self.state(now), self.called);
        send(effects, self.controller, Message::Report { request, boot_id, state, call }, Bytes::Nothing);
    }

    /// The controller calls this server. The server reports, unless it is home and already knows all that the call says. It also
    /// reports while an earlier report has no answer: that one may have gone to a controller that is gone.
    fn called_up(&mut self, now: Nanoseconds, placement: &Placement, call: u64) {
        let knows_all = |home: &Home| {
            let Placement { incarnation, hand_to, .. } = placement;
            home.incarnation == *incarnation && (home.hand_to.is_some() || hand_to.is_none()) && now < home.until
        };
        if call != self.called && placement.incarnation >= self.memory.incarnation {
            self.called = call;
            if !self.asked.is_empty() || !self.home.as_ref().is_some_and(knows_all) {
                self.report_at = Some(now);
            }
        }
    }

    /// When this report of this boot was sent, if its answer counts here. While a server is home, answers to earlier
    /// reports also count: the controller promised the home lease after each of them was sent. Otherwise only the last
    /// report says what the server is.
    fn asked_at(&self, request: u64, boot_id: u16, placement: &Placement) -> Option<Nanoseconds> {
        let is_kept = self.home.is_some() && placement.home == self.me;
        let first = if is_kept { 0 } else { self.asked.len().saturating_sub(1) };
        let counted = self.asked.iter().skip(first);
        counted.filter(|_| boot_id == self.boot_id).find(|asked| asked.0 == request).map(|asked| asked.1)
    }

    /// Whether a placement, sent in answer to this report of this boot, holds from now on.
    pub(super) fn takes(&self, request: u64, boot_id: u16, placement: &Placement) -> bool {
        if request == 0 || placement.incarnation < self.memory.incarnation {
            return false;
        }
        let is_asked = || self.asked_at(request, boot_id, placement).is_some();
        // A placement that says that the range is unserved gives no right to it.
        let can_be = || !placement.is_unserved && (!self.memory.is_blank || placement.begins_empty);
        placement.home != self.me || is_asked() && can_be() && self.handed != Some(placement.incarnation)
    }

    fn placed(
        &mut self,
        now: Nanoseconds,
        request: u64,
        boot_id: u16,
        placement: &Placement,
        effects: &mut Vec<Effect>,
    ) {
        let asked = self.asked_at(request, boot_id, placement);
        if asked.is_some() && placement.incarnation >= self.memory.incarnation {
            self.is_unserved = placement.is_unserved;
        }
        if !self.takes(request, boot_id, placement) {
            return;
        }
        if placement.home != self.me {
            self.hear(placement.incarnation, placement.home);
            self.is_unserved = asked.is_some() && placement.is_unserved;
            if asked.is_some() && !placement.backups.contains(&self.me) {
                // What it had no longer counts.
                self.memory.is_blank = false;
            }
            if asked.is_some() && !self.memory.is_blank {
                self.asked.clear();
                (self.waited, self.report_at) = (0, None);
            }
            return;
        }
        let (Some(at), Some(&(_, last_at))) = (asked, self.asked.last()) else { return };
        // No host has anything that this server lacks.
        self.memory.is_blank = false;
        self.asked.retain(|asked| asked.0 > request);
        self.waited = 0;
        self.become_home(now, placement, effects);
        let until = at + self.timing.home_lease_held;
        if let Some(home) = &mut self.home {
            home.until = home.until.max(until);
        }
        self.with_home(now, effects, |home, context| home.tick(context));
        self.report_at = Some(last_at + (self.timing.home_lease_held / 3).max(1));
    }

    fn become_home(&mut self, now: Nanoseconds, placement: &Placement, effects: &mut Vec<Effect>) {
        self.hear(placement.incarnation, self.me);
        self.handed = None;
        if self.home.is_none() {
            let is_before = |&(incarnation, _): &(u16, _)| incarnation.checked_add(1) == Some(placement.incarnation);
            let table = self.table.take().filter(is_before);
            // Before the first home there was none, and no lease.
            let entries = table.map(|(_, entries)| entries).or((placement.incarnation == 1).then(Vec::new));
            let (timing, stamps) = (&self.timing, &mut self.memory.stamps);
            let context = Context { now, timing, stamps, effects };
            let settling = Settling::new(self.pages, self.own, self.window);
            self.home = Some(Home::new(placement, entries, settling, &context));
        }
        self.with_home(now, effects, |home, context| home.adopt(placement, context));
    }
}
