//! The part of the controller that places a range: it appoints a home, moves it, and appoints a backup when the home is
//! gone.
//!
//! Promises: it persists a decision before it sends it, so that it may stop and start again at any moment. Incarnations
//! only rise. A backup becomes home only if it is *complete* (a home said that every backup has every page, and every
//! later commit went to all of them). In addition, the home lease of the previous home must have ended by the
//! controller's clock, or that home must have said, in the incarnation that is still the last, that it has handed over.
//! It must never assume after its own restart that a home has ended: it then waits for a whole home lease.
//!
//! Pages get a home of their own (they are split off), or lose it again (they are merged back), only while
//! the home has said, in the last incarnation, that every backup has every page. Both records are persisted together. The
//! pages are given to another host only after the home lease has ended under which the previous home may still serve
//! them.

use super::parts::{Part, are_parts};
use super::{Bytes, Effect, Host, Message, Party, Placement, RangeNumber, State, Timing, send};
use crate::Nanoseconds;
use alloc::vec::Vec;

/// A fact, or an order of an operator.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Input {
    /// A message arrived.
    Message(Party, Message),
    /// Make this host the home once it has everything.
    Move(Host),
    /// Make this host a backup: the home sends it everything.
    Back(Host),
    /// This host is no longer a backup.
    Drop(Host),
    /// No host has the pages any more: reset the range at this host when the home lease has ended. The order is void if
    /// the home is heard before that, or a complete backup.
    Reset(Host),
    /// Time passed.
    Tick,
}

/// The persistent state.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Record {
    /// Raised whenever the home, its boot id or the set of backups changes.
    pub incarnation: u16,
    /// The home.
    pub home: Host,
    /// The boot id of the home; `None` until it has reported as home.
    pub boot_id: Option<u16>,
    /// The hosts that must have every commit.
    pub backups: Vec<Host>,
    /// The backups that may become home.
    pub complete: Vec<Host>,
    /// The next home, if the range is to move.
    pub moving: Option<Host>,
    /// The range starts with this incarnation (a reset), and its home has not yet said that it is home. The first boot
    /// of that host that reports may be without memory.
    pub begins_empty: bool,
    /// Its parts, which have a home and a record of their own; in order.
    pub parts: Vec<Part>,
}

/// The state machine. The fields are public for the checkers; a caller must not use them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Controller {
    /// How long rights last.
    pub timing: Timing,
    /// What is persisted.
    pub record: Record,
    /// When the home lease ends.
    pub until: Nanoseconds,
    /// The home lease has ended: the first complete host that answers a call becomes home.
    pub is_open: bool,
    /// The last call. Calls are numbered by the controller's clock.
    pub call: u64,
    /// When to call again.
    pub call_at: Option<Nanoseconds>,
    /// How long the last call is waited for; 0 after an answer. A report that answers an older call gives nothing.
    pub waited: Nanoseconds,
    /// Where to reset the range. Forgotten when the controller stops.
    pub begins_at: Option<Host>,
    /// The incarnation in which the home said, under its known boot id, that every backup has every page. Forgotten
    /// when the controller stops.
    pub settled: Option<u16>,
}

impl Controller {
    /// A controller that starts, for the first time or again. Everything that it sent before was sent before `now`.
    pub fn new(timing: Timing, record: Record, now: Nanoseconds) -> Controller {
        let until = now + timing.home_lease;
        let (call_at, begins_at, settled) = (Some(now), None, None);
        Controller { timing, record, until, is_open: false, call: 0, call_at, waited: 0, begins_at, settled }
    }

    /// Takes one fact and pushes the effects that follow from it.
    pub fn step(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Message(from, Message::Report { request, boot_id, state, call }) => {
                let answers = self.is_open && call == self.call && self.record.complete.contains(&from.host);
                if answers && state != State::Blank {
                    self.give(now, from.host, Some(boot_id), effects);
                } else {
                    self.report(now, from.host, boot_id, state, effects);
                }
                // A home without memory must not get an answer that it could take for a home lease, unless there is
                // none to be had.
                let may_hear = state != State::Blank || from.host != self.record.home || self.is_unserved();
                if may_hear || self.record.begins_in(boot_id) {
                    self.send_placement(from, request, boot_id, effects);
                }
            }
            Input::Message(from, Message::Locate) => self.send_placement(from, 0, 0, effects),
            Input::Message(..) => {}
            Input::Move(to) => self.move_to(now, to, effects),
            Input::Back(host) => self.back(now, host, effects),
            Input::Drop(host) => self.drop_backup(now, host, effects),
            Input::Reset(host) => {
                self.begins_at = Some(host);
                if self.reset(effects) {
                    self.call(now, effects);
                }
            }
            Input::Tick => self.tick(now, effects),
        }
    }

    /// When to give [`Input::Tick`].
    pub fn alarm(&self) -> Option<Nanoseconds> {
        let until = Some(self.until).filter(|_| !self.is_open);
        until.into_iter().chain(self.call_at).min()
    }

    fn send_placement(&self, to: Party, request: u64, boot_id: u16, effects: &mut Vec<Effect>) {
        let Record { incarnation, home, backups, complete, moving, begins_empty, parts, .. } = &self.record;
        // A home that hands over does not serve, so it must not begin before every backup has everything.
        let hand_to = moving.filter(|_| backups.iter().all(|backup| complete.contains(backup)));
        let (incarnation, home, backups, begins_empty, parts) =
            (*incarnation, *home, backups.clone(), *begins_empty, parts.clone());
        let is_unserved = self.is_unserved();
        let placement = Placement { incarnation, home, backups, hand_to, begins_empty, is_unserved, parts };
        let call = if request == 0 { self.call } else { 0 };
        send(effects, to, Message::Placed { request, boot_id, placement, call }, Bytes::Nothing);
    }

    /// Whether the range is unserved: the home lease of its home has ended, and no other host has everything. It is
    /// served again when that home reports with its memory.
    pub fn is_unserved(&self) -> bool {
        self.is_open && self.record.complete.is_empty()
    }

    /// Calls the home and, when its home lease has ended, every host that is complete.
    fn call(&mut self, now: Nanoseconds, effects: &mut Vec<Effect>) {
        self.call = now.max(self.call + 1);
        self.waited = self.timing.report_after(self.waited);
        self.call_at = Some(now + self.waited);
        self.send_placement(Party::of(self.record.home), 0, 0, effects);
        // An incomplete backup cannot take over, but it tells clients that the range is unserved.
        let others = if self.is_unserved() { &self.record.backups } else { &self.record.complete };
        for host in others.clone().into_iter().filter(|_| self.is_open) {
            self.send_placement(Party::of(host), 0, 0, effects);
        }
    }

    /// Changes the persistent state, with a new incarnation if there is one left.
    fn change(&mut self, raises: bool, change: impl FnOnce(&mut Record), effects: &mut Vec<Effect>) -> bool {
        let Some(incarnation) = self.record.incarnation.checked_add(u16::from(raises)) else {
            effects.push(Effect::Unserved);
            return false;
        };
        let before = self.record.clone();
        self.record.incarnation = incarnation;
        change(&mut self.record);
        if self.record != before {
            effects.push(Effect::Persist(self.record.clone()));
        }
        true
    }

    fn report(&mut self, now: Nanoseconds, host: Host, boot_id: u16, state: State, effects: &mut Vec<Effect>) {
        let record = &self.record;
        if host != record.home {
            if state == State::Blank && record.backups.contains(&host) {
                self.change(true, |record| record.drop_backup(host), effects);
            }
            return;
        }
        let is_same_boot = record.boot_id == Some(boot_id);
        match state {
            State::Blank if record.begins_in(boot_id) => {
                self.change(false, |record| record.boot_id = Some(boot_id), effects);
                return self.begin_home_lease(now);
            }
            // It is no longer home; wait until its home lease has ended.
            State::Blank => return,
            State::Handed(incarnation) if is_same_boot && incarnation == record.incarnation => {
                if let Some(to) = record.moving {
                    self.give(now, to, None, effects);
                }
                return;
            }
            _ => {}
        }
        let incarnation = record.incarnation;
        let is_informed = match record.boot_id {
            Some(_) if is_same_boot => true,
            // It has restarted, and knows nothing about the leases that it gave.
            known => self.change(known.is_some(), |record| record.boot_id = Some(boot_id), effects),
        };
        if !is_informed {
            return;
        }
        // It has memory now: from here on, losing that memory loses the pages.
        self.change(false, |record| record.begins_empty = false, effects);
        match state {
            State::Home { incarnation: of, silent: Some(silent), .. } if is_same_boot && of == incarnation => {
                let is_backup = self.record.backups.contains(&silent);
                self.change(is_backup, |record| record.drop_backup(silent), effects);
            }
            State::Home { incarnation: of, is_settled: true, .. } if is_same_boot && of == incarnation => {
                self.change(false, |record| record.complete.clone_from(&record.backups), effects);
                self.settled = Some(of);
            }
            _ => {}
        }
        self.begin_home_lease(now);
    }

    /// Whether the range is as its record says: its home and all backups are present and complete. Only such a range is
    /// split or merged. A home that has missed an incarnation does not know which host has which page. One that
    /// reported before its restart does not know which clients have leases.
    pub fn is_at_rest(&self) -> bool {
        let Record { incarnation, boot_id, moving, begins_empty, .. } = &self.record;
        let is_served = !self.is_open && self.begins_at.is_none() && boot_id.is_some() && !begins_empty;
        is_served && moving.is_none() && self.settled == Some(*incarnation)
    }

    /// Splits a range of pages off: gives it a home of its own (at first the same host), and thereby a controller of
    /// its own. The part's `since` follows from the record; no part that had its number before may have had an
    /// incarnation as high. Both records must be made durable together, as [`Effect::Persist`] says. If the range is
    /// not at rest, nothing happens and the result is `None`.
    pub fn split(&mut self, now: Nanoseconds, part: Part, effects: &mut Vec<Effect>) -> Option<Controller> {
        let since = self.record.incarnation.checked_add(1)?;
        let mut parts = self.record.parts.clone();
        parts.push(Part { since, ..part });
        parts.sort_unstable_by_key(|part| part.first);
        if !self.is_at_rest() || !are_parts(&parts) {
            return None;
        }
        self.change(true, |record| record.parts = parts, effects);
        // The home may serve these pages as part of the range until the home lease has ended that it was given before
        // now.
        let record = Record { parts: Vec::new(), ..self.record.clone() };
        let part = Controller::new(self.timing, record, now);
        self.call_all(now, effects);
        Some(part)
    }

    /// Merges a part: takes its pages back into the range. Returns whether it did. After that the part no longer
    /// exists: its number may name another part only with a higher incarnation. Both records must be made durable
    /// together, as [`Effect::Persist`] says. Nothing happens unless both are at rest at the same hosts.
    pub fn merge(
        &mut self,
        now: Nanoseconds,
        number: RangeNumber,
        other: &Controller,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let (record, of_part) = (&self.record, &other.record);
        let is_backed = |host: &Host| record.backups.contains(host);
        let is_same_place = (record.home, record.boot_id) == (of_part.home, of_part.boot_id)
            && record.backups.len() == of_part.backups.len()
            && of_part.backups.iter().all(is_backed);
        let last = record.incarnation.max(of_part.incarnation);
        let is_there = record.parts.iter().any(|part| part.number == number);
        if !is_there || !is_same_place || !self.is_at_rest() || !other.is_at_rest() || last == u16::MAX {
            return false;
        }
        // Any version of these pages is older than those of the range's home from now on.
        let merges = |record: &mut Record| {
            record.incarnation = last + 1;
            record.parts.retain(|part| part.number != number);
        };
        self.change(false, merges, effects);
        // Until then the part's home may serve the pages.
        self.until = self.until.max(other.until);
        self.call_all(now, effects);
        true
    }

    /// Resets the range at this host, without its parts, in a later incarnation than `last`, the last one of the parts.
    /// Returns whether it did, which it does only if no host can be home of the range as it was. The caller makes sure that
    /// no host can be home of a part any more either.
    pub fn begin_without_parts(&mut self, now: Nanoseconds, home: Host, last: u16, effects: &mut Vec<Effect>) -> bool {
        let last = self.record.incarnation.max(last);
        if !self.is_open || !self.record.complete.is_empty() || last == u16::MAX {
            return false;
        }
        self.record.incarnation = last;
        self.record.parts.clear();
        self.begins_at = Some(home);
        let begins = self.reset(effects);
        self.call(now, effects);
        begins
    }

    /// Calls the home and all complete backups.
    fn call_all(&mut self, now: Nanoseconds, effects: &mut Vec<Effect>) {
        self.call(now, effects);
        self.record.backups.iter().for_each(|&host| self.send_placement(Party::of(host), 0, 0, effects));
    }

    fn begin_home_lease(&mut self, now: Nanoseconds) {
        (self.until, self.is_open, self.begins_at) = (now + self.timing.home_lease, false, None);
        (self.call_at, self.waited) = (None, 0);
    }

    /// Gives the range to a complete backup. `boot_id` is that of the host, if it has reported.
    fn give(&mut self, now: Nanoseconds, to: Host, boot_id: Option<u16>, effects: &mut Vec<Effect>) {
        let gives = |record: &mut Record| {
            record.drop_backup(to);
            (record.home, record.boot_id, record.moving) = (to, boot_id, None);
        };
        if self.change(true, gives, effects) {
            self.begin_home_lease(now);
            if boot_id.is_none() {
                self.call(now, effects);
            }
        }
    }

    fn move_to(&mut self, now: Nanoseconds, to: Host, effects: &mut Vec<Effect>) {
        if to == self.record.home || self.record.moving == Some(to) {
            return;
        }
        // A home that has begun to hand over resumes only in another incarnation.
        let raises = self.record.moving.is_some() || !self.record.backups.contains(&to);
        let changes = |record: &mut Record| {
            record.moving = Some(to);
            if !record.backups.contains(&to) {
                record.backups.push(to);
            }
        };
        if self.change(raises, changes, effects) {
            self.call(now, effects);
        }
    }

    fn back(&mut self, now: Nanoseconds, host: Host, effects: &mut Vec<Effect>) {
        let is_there = host == self.record.home || self.record.backups.contains(&host);
        if !is_there && self.change(true, |record| record.backups.push(host), effects) {
            self.call(now, effects);
        }
    }

    fn drop_backup(&mut self, now: Nanoseconds, host: Host, effects: &mut Vec<Effect>) {
        let is_there = self.record.backups.contains(&host);
        if is_there && self.change(true, |record| record.drop_backup(host), effects) {
            self.call(now, effects);
            // The host is told that it is no longer a backup, if it is there.
            self.send_placement(Party::of(host), 0, 0, effects);
        }
    }

    /// Resets the range where that was ordered, if no host can be home of it as it was.
    fn reset(&mut self, effects: &mut Vec<Effect>) -> bool {
        let is_nobody_left = self.is_open && self.record.complete.is_empty();
        let Some(home) = self.begins_at.take_if(|_| is_nobody_left) else { return false };
        let begins = |record: &mut Record| {
            let incarnation = record.incarnation;
            // Its parts have homes of their own and continue.
            let parts = core::mem::take(&mut record.parts);
            *record = Record { incarnation, parts, ..Record::first(home) };
        };
        self.change(true, begins, effects)
    }

    fn tick(&mut self, now: Nanoseconds, effects: &mut Vec<Effect>) {
        if now >= self.until && !self.is_open {
            self.is_open = true;
            if !self.reset(effects) && self.record.complete.is_empty() {
                effects.push(Effect::Unserved);
            }
            self.call(now, effects);
        } else if self.call_at.is_some_and(|at| now >= at) {
            self.call(now, effects);
        }
    }
}

impl Record {
    /// The record of a new range at this host.
    pub fn first(home: Host) -> Record {
        let (backups, complete, parts) = (Vec::new(), Vec::new(), Vec::new());
        Record { incarnation: 1, home, boot_id: None, backups, complete, moving: None, begins_empty: true, parts }
    }

    /// Whether a home with this boot id may be without memory.
    fn begins_in(&self, boot_id: u16) -> bool {
        self.begins_empty && self.boot_id.is_none_or(|known| known == boot_id)
    }

    fn drop_backup(&mut self, host: Host) {
        self.backups.retain(|&backup| backup != host);
        self.complete.retain(|&backup| backup != host);
        self.moving = self.moving.filter(|&to| to != host);
    }
}
