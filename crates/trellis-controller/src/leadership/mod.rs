//! The election of one of several controllers: a record in the store, which the leader changes again and again.
//!
//! Promises: of all controllers that use the same record, at most one leads at any instant, as long as clocks keep to
//! their rates, whatever the store loses, delays or does without answering. The leader counts its term from when it
//! *sent* the renewal. Another controller takes over, by compare-and-swap, when it has seen the record unchanged for a
//! whole term by its own clock. A controller that finds its own name in the record and does not lead knows that none
//! leads, and need not wait. A controller that has stopped leading, for any reason, leads again only under another
//! name, so that nothing that it wrote before can take effect later. A controller that leaves removes its record: then
//! nothing that it wrote takes effect any more, and none has to wait.
//!
//! It must never lead on an assumption: only what the store has confirmed counts. It has no clock and calls no store:
//! `now` is on its own host's clock, and its caller carries out [`Action`]s, one at a time.

use trellis_base::{Deadline, Limit};
use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::Host;

/// The limit of what controllers owe each other.
pub(crate) const SILENCE: Deadline = Deadline {
    who: "a controller that does not lead",
    waits_for: "the one that leads, to renew that",
    limit: Limit::Other("`--leader-term`, in [Controllers](controller.md)"),
    then: "it leads itself",
    tested: "crates/trellis-controller/src/leadership/tests.rs another_takes_over_when_the_leader_is_gone",
};

/// The bytes of the record that name the leader: random number, turn, host, zeros. A guard compares these.
pub const NAME_BYTES: usize = 16;
/// The bytes of the record: the name, and a count that every renewal raises.
pub const RECORD_BYTES: usize = NAME_BYTES + 8;

/// A fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// Time passed.
    Tick,
    /// The current record: the answer to [`Action::Read`], or why [`Action::Swap`] was refused.
    Found(Option<Vec<u8>>),
    /// The record was changed as requested.
    Swapped,
    /// The store did not report the result.
    Unknown,
}

/// A request to the store. One [`Fact`] follows each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read the record.
    Read,
    /// Change the record if it is as expected.
    Swap {
        /// The expected record.
        expect: Option<Vec<u8>>,
        /// The new record; `None` removes it.
        value: Option<Vec<u8>>,
    },
}

/// The duration of a leader's right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The time that others wait.
    pub term: Nanoseconds,
    /// The time that the leader counts: shorter.
    pub held: Nanoseconds,
}

impl Term {
    /// For clocks whose rates are wrong by at most this many parts per million.
    pub fn new(term: Nanoseconds, rate_error_ppm: u32) -> Term {
        let error = u128::from(rate_error_ppm.min(999_999));
        let held = u128::from(term) * (1_000_000 - error) / (1_000_000 + error);
        Term { term, held: held as Nanoseconds }
    }
}

/// A value that is being written, and when it was first sent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Proposed {
    value: Vec<u8>,
    sent: Nanoseconds,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    /// The record as last seen, and since when it has been unchanged.
    Watching(Option<(Option<Vec<u8>>, Nanoseconds)>),
    /// The leader's record, and the end of its right.
    Leading(Vec<u8>, Nanoseconds),
    /// It will never lead again. Its record, if it exists, is to be removed.
    Leaving(Option<Vec<u8>>),
    /// Nothing of it remains.
    Left,
}

/// The state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leadership {
    term: Term,
    random_number: u64,
    host: Host,
    /// Whether no other process can have the store open, so that any earlier leader is gone.
    is_alone: bool,
    /// How often it has tried to lead.
    turns: u32,
    standing: Standing,
    proposed: Option<Proposed>,
    is_busy: bool,
    /// Whether the result of the last deed is unknown.
    is_unsure: bool,
    next_at: Nanoseconds,
    /// Before this time, it does not treat its own old record as ownerless, to give others their turn.
    returns_at: Nanoseconds,
}

impl Leadership {
    /// A controller that starts. `random_number` is a random number that no other controller has; `is_alone`: no other process
    /// can open the store.
    pub fn new(term: Term, random_number: u64, host: Host, is_alone: bool) -> Leadership {
        Leadership {
            term,
            random_number,
            host,
            is_alone,
            turns: 0,
            standing: Standing::Watching(None),
            proposed: None,
            is_busy: false,
            is_unsure: false,
            next_at: 0,
            returns_at: 0,
        }
    }

    /// Whether it may send now.
    pub fn leads(&self, now: Nanoseconds) -> bool {
        matches!(&self.standing, Standing::Leading(_, until) if now < *until)
    }

    /// The name under which it leads, which guards all its writes.
    pub fn name(&self) -> Option<[u8; NAME_BYTES]> {
        match &self.standing {
            Standing::Leading(value, _) => value.first_chunk().copied(),
            _ => None,
        }
    }

    /// When its right ends unless it is renewed; zero while it has none.
    pub fn until(&self) -> Nanoseconds {
        if let Standing::Leading(_, until) = self.standing { until } else { 0 }
    }

    /// The leader's host, as last seen.
    pub fn leader(&self) -> Option<Host> {
        let value = match &self.standing {
            Standing::Leading(value, _) => Some(value),
            Standing::Watching(seen) => seen.as_ref().and_then(|(value, _)| value.as_ref()),
            Standing::Leaving(_) | Standing::Left => None,
        };
        value.and_then(|value| host_in(value))
    }

    /// The next time for [`Fact::Tick`].
    pub fn alarm(&self) -> Nanoseconds {
        let next = if self.is_busy { Nanoseconds::MAX } else { self.next_at };
        match self.standing {
            Standing::Leading(_, until) => next.min(until),
            Standing::Watching(_) | Standing::Leaving(_) => next,
            Standing::Left => Nanoseconds::MAX,
        }
    }

    /// Gives up leading because it cannot do its work: pending messages must not be sent, and other controllers may lead
    /// for a term.
    pub fn step_down(&mut self, now: Nanoseconds) {
        self.end(now);
        self.returns_at = now + self.term.term;
    }

    /// Ends leading under this name.
    fn end(&mut self, now: Nanoseconds) {
        self.standing = Standing::Watching(None);
        self.proposed = None;
        self.next_at = now;
    }

    /// Leaves permanently, so that no other controller has to wait. Pending messages must not be sent from now on; its
    /// record is removed when [`Leadership::has_left`] is true, if the store answers.
    pub fn leave(&mut self, now: Nanoseconds) {
        self.standing = match std::mem::replace(&mut self.standing, Standing::Left) {
            Standing::Leading(value, _) => Standing::Leaving(Some(value)),
            Standing::Watching(_) => Standing::Leaving(None),
            other => other,
        };
        self.next_at = now;
    }

    /// Whether nothing of it remains for which others would wait.
    pub fn has_left(&self) -> bool {
        self.standing == Standing::Left
    }

    /// Handles a fact; returns the resulting request to the store.
    pub fn step(&mut self, now: Nanoseconds, fact: Fact) -> Option<Action> {
        if matches!(self.standing, Standing::Leading(_, until) if now >= until) {
            self.end(now);
        }
        match fact {
            Fact::Tick => {}
            Fact::Unknown => {
                (self.is_busy, self.is_unsure) = (false, true);
                self.next_at = now + self.term.term / 16;
            }
            Fact::Swapped => {
                self.is_busy = false;
                match self.proposed.take() {
                    Some(proposed) => self.confirm(now, proposed),
                    None if matches!(self.standing, Standing::Leaving(_)) => self.standing = Standing::Left,
                    None => {}
                }
            }
            Fact::Found(found) => {
                (self.is_busy, self.is_unsure) = (false, false);
                self.found(now, found);
            }
        }
        if self.standing == Standing::Leaving(None) && !self.is_busy && !self.is_unsure {
            self.standing = Standing::Left;
        }
        if self.is_busy || now < self.next_at || self.standing == Standing::Left {
            return None;
        }
        self.is_busy = true;
        Some(self.action(now))
    }

    /// The record is now as proposed.
    fn confirm(&mut self, now: Nanoseconds, proposed: Proposed) {
        let until = proposed.sent + self.term.held;
        if let Standing::Leaving(record) = &mut self.standing {
            *record = Some(proposed.value);
        } else if now < until {
            self.standing = Standing::Leading(proposed.value, until);
            self.next_at = (proposed.sent + self.term.held / 3).max(now);
        } else {
            self.end(now);
        }
    }

    fn found(&mut self, now: Nanoseconds, found: Option<Vec<u8>>) {
        if let Some(proposed) = self.proposed.take_if(|proposed| found.as_ref() == Some(&proposed.value)) {
            return self.confirm(now, proposed);
        }
        match &mut self.standing {
            Standing::Leaving(Some(record)) if is_of(record, found.as_deref()) => {
                *record = found.unwrap_or_default();
                self.next_at = now;
            }
            // It is gone, or another controller's.
            Standing::Leaving(_) | Standing::Left => self.standing = Standing::Left,
            // The renewal has not arrived; it may yet.
            Standing::Leading(value, _) if found.as_ref() == Some(value) => self.next_at = now,
            Standing::Watching(Some((seen, _))) if *seen == found => self.next_at = now + self.term.term / 8,
            _ => {
                self.proposed = None;
                self.next_at = if self.is_nobodys(now, found.as_deref()) { now } else { now + self.term.term / 8 };
                self.standing = Standing::Watching(Some((found, now)));
            }
        }
    }

    /// Whether a record shows that no controller leads, as far as this one, which does not lead, can know: there is none,
    /// it is this controller's own from an earlier turn, or no other process that could have written it still exists.
    fn is_nobodys(&self, now: Nanoseconds, record: Option<&[u8]>) -> bool {
        let is_own =
            |record: &[u8]| record.len() == RECORD_BYTES && record.starts_with(&self.random_number.to_le_bytes());
        self.is_alone || record.is_none_or(|record| is_own(record) && now >= self.returns_at)
    }

    fn action(&mut self, now: Nanoseconds) -> Action {
        let expect = match &self.standing {
            Standing::Leading(value, _) => Some(value.clone()),
            Standing::Watching(Some((seen, since)))
                if self.is_nobodys(now, seen.as_deref()) || now >= since + self.term.term =>
            {
                seen.clone()
            }
            Standing::Leaving(value) if !self.is_unsure => {
                self.proposed = None;
                return Action::Swap { expect: value.clone(), value: None };
            }
            _ => return Action::Read,
        };
        if self.is_unsure {
            return Action::Read;
        }
        if self.proposed.is_none() {
            let value = self.next_value();
            self.proposed = Some(Proposed { value, sent: now });
        }
        let value = self.proposed.as_ref().map(|proposed| proposed.value.clone());
        Action::Swap { expect, value }
    }

    fn next_value(&mut self) -> Vec<u8> {
        let (name, count) = match &self.standing {
            Standing::Leading(value, _) if value.len() == RECORD_BYTES => {
                let count = value[NAME_BYTES..].try_into().map_or(0, u64::from_le_bytes);
                (value[..NAME_BYTES].to_vec(), count + 1)
            }
            _ => {
                self.turns += 1;
                let mut name = self.random_number.to_le_bytes().to_vec();
                name.extend(self.turns.to_le_bytes());
                name.extend(self.host.0.to_le_bytes());
                name.extend([0; 2]);
                (name, 0)
            }
        };
        [name, u64::to_le_bytes(count).to_vec()].concat()
    }
}

/// Whether the found record has the same name as another.
fn is_of(record: &[u8], found: Option<&[u8]>) -> bool {
    found.is_some_and(|found| found.len() == RECORD_BYTES && record.get(..NAME_BYTES) == found.get(..NAME_BYTES))
}

/// The host that a record names; `None` for an invalid record.
pub fn host_in(record: &[u8]) -> Option<Host> {
    let bytes = record.get(12..14).filter(|_| record.len() == RECORD_BYTES)?;
    bytes.try_into().ok().map(u16::from_le_bytes).map(Host)
}

#[cfg(test)]
mod tests;
