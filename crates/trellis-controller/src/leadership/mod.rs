//! Which of several controllers speaks: a record in the store, which the leader changes again and again.
//!
//! Promises: of all controllers that use the same record, at most one leads at an instant, as long as clocks keep to their
//! rates, whatever the store loses, delays or does without saying so. The leader counts its term from when it *sent* what
//! renewed it; another takes over when it has seen the record unchanged for a whole term by its own clock, by a comparison
//! with what it saw. Who finds its own name there and does not lead knows that nobody does, and waits for nothing. Who stops leading, for whatever reason, leads again only under another name, so that nothing that it
//! wrote before can count later. Who leaves takes its record away: then nothing counts that it wrote, and nobody waits.
//!
//! It must never lead on an opinion: only what the store confirmed counts. It has no clock and calls no store: `now` is its
//! own host's, and [`Deed`]s are carried out by who runs it, one at a time.

use trellis_fabric_protocol::Nanoseconds;

/// Bytes of the record that name who leads: drawn, turn, host, zeros. A guard compares these.
pub const NAME_BYTES: usize = 16;
/// Bytes of the record: the name, and a count that every renewal raises.
pub const RECORD_BYTES: usize = NAME_BYTES + 8;

/// A fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// Time passed.
    Tick,
    /// The record as it is: answer to [`Deed::Read`], or why [`Deed::Swap`] was refused.
    Found(Option<Vec<u8>>),
    /// The record was changed as the deed said.
    Swapped,
    /// The store did not say what came of the deed.
    Unknown,
}

/// What to ask of the store. One [`Fact`] follows each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Read the record.
    Read,
    /// Change it, if it is what is expected.
    Swap {
        /// What it must be.
        expect: Option<Vec<u8>>,
        /// What it shall be; nothing: gone.
        value: Option<Vec<u8>>,
    },
}

/// How long rights last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// What others wait for.
    pub term: Nanoseconds,
    /// What the leader counts: shorter.
    pub held: Nanoseconds,
}

impl Term {
    /// For clocks whose rates are wrong by at most `rate_error_ppm` millionths.
    pub fn new(term: Nanoseconds, rate_error_ppm: u32) -> Term {
        let error = u128::from(rate_error_ppm.min(999_999));
        let held = u128::from(term) * (1_000_000 - error) / (1_000_000 + error);
        Term { term, held: held as Nanoseconds }
    }
}

/// What is about to be written, and when that was sent for the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Proposed {
    value: Vec<u8>,
    sent: Nanoseconds,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    /// Since when the record has been this, as far as it was seen.
    Watching(Option<(Option<Vec<u8>>, Nanoseconds)>),
    /// The record is this, and lasts until then.
    Leading(Vec<u8>, Nanoseconds),
    /// It leads never more. The record is this, if it is one of ours, and shall be gone.
    Leaving(Option<Vec<u8>>),
    /// It is as if it had never been.
    Left,
}

/// The state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leadership {
    term: Term,
    drawn: u64,
    host: u16,
    /// Nobody else can have the store open: who led before is gone.
    is_alone: bool,
    /// How often it tried to lead.
    turns: u32,
    standing: Standing,
    proposed: Option<Proposed>,
    is_busy: bool,
    /// Nobody knows what came of the last deed.
    is_unsure: bool,
    next_at: Nanoseconds,
    /// Before that it does not take its own record for nobody's: others are to have their turn.
    returns_at: Nanoseconds,
}

impl Leadership {
    /// A controller that starts. `drawn` is a number that no other one drew; `is_alone`: the store lets nobody else in.
    pub fn new(term: Term, drawn: u64, host: u16, is_alone: bool) -> Leadership {
        Leadership {
            term,
            drawn,
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

    /// Whether it may speak now.
    pub fn leads(&self, now: Nanoseconds) -> bool {
        matches!(&self.standing, Standing::Leading(_, until) if now < *until)
    }

    /// The name under which it leads, which everything that it writes is guarded by.
    pub fn name(&self) -> Option<[u8; NAME_BYTES]> {
        match &self.standing {
            Standing::Leading(value, _) => value.first_chunk().copied(),
            _ => None,
        }
    }

    /// By when its right ends, unless it is renewed; nothing while it has none.
    pub fn until(&self) -> Nanoseconds {
        if let Standing::Leading(_, until) = self.standing { until } else { 0 }
    }

    /// The host of who leads, as far as it was seen.
    pub fn leader(&self) -> Option<u16> {
        let value = match &self.standing {
            Standing::Leading(value, _) => Some(value),
            Standing::Watching(seen) => seen.as_ref().and_then(|(value, _)| value.as_ref()),
            Standing::Leaving(_) | Standing::Left => None,
        };
        value.and_then(|value| host_in(value))
    }

    /// When to say [`Fact::Tick`].
    pub fn alarm(&self) -> Nanoseconds {
        let next = if self.is_busy { Nanoseconds::MAX } else { self.next_at };
        match self.standing {
            Standing::Leading(_, until) => next.min(until),
            Standing::Watching(_) | Standing::Leaving(_) => next,
            Standing::Left => Nanoseconds::MAX,
        }
    }

    /// It cannot do what who leads has to do: what it was about to say cannot be said, and others may lead for a term.
    pub fn step_down(&mut self, now: Nanoseconds) {
        self.end(now);
        self.returns_at = now + self.term.term;
    }

    /// It leads no more under this name.
    fn end(&mut self, now: Nanoseconds) {
        self.standing = Standing::Watching(None);
        self.proposed = None;
        self.next_at = now;
    }

    /// It wants to lead never more, and nobody shall wait for it. What it was about to say cannot be said from now on; its
    /// record is gone when [`Leadership::has_left`], if the store answers.
    pub fn leave(&mut self, now: Nanoseconds) {
        self.standing = match std::mem::replace(&mut self.standing, Standing::Left) {
            Standing::Leading(value, _) => Standing::Leaving(Some(value)),
            Standing::Watching(_) => Standing::Leaving(None),
            other => other,
        };
        self.next_at = now;
    }

    /// Whether nothing of it is left that others would wait for.
    pub fn has_left(&self) -> bool {
        self.standing == Standing::Left
    }

    /// Takes one fact; what to ask of the store because of it.
    pub fn step(&mut self, now: Nanoseconds, fact: Fact) -> Option<Deed> {
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
        Some(self.deed(now))
    }

    /// The record is what was proposed.
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
            // It is gone, or another's.
            Standing::Leaving(_) | Standing::Left => self.standing = Standing::Left,
            // The renewal did not arrive; it may yet.
            Standing::Leading(value, _) if found.as_ref() == Some(value) => self.next_at = now,
            Standing::Watching(Some((seen, _))) if *seen == found => self.next_at = now + self.term.term / 8,
            _ => {
                self.proposed = None;
                self.next_at = if self.is_nobodys(now, found.as_deref()) { now } else { now + self.term.term / 8 };
                self.standing = Standing::Watching(Some((found, now)));
            }
        }
    }

    /// Whether nobody leads by a record, as far as this one knows, which does not lead: there is none, it is its own of a turn
    /// that is over, or nobody else can have made it who is still there.
    fn is_nobodys(&self, now: Nanoseconds, record: Option<&[u8]>) -> bool {
        let is_own = |record: &[u8]| record.len() == RECORD_BYTES && record.starts_with(&self.drawn.to_le_bytes());
        self.is_alone || record.is_none_or(|record| is_own(record) && now >= self.returns_at)
    }

    fn deed(&mut self, now: Nanoseconds) -> Deed {
        let expect = match &self.standing {
            Standing::Leading(value, _) => Some(value.clone()),
            Standing::Watching(Some((seen, since)))
                if self.is_nobodys(now, seen.as_deref()) || now >= since + self.term.term =>
            {
                seen.clone()
            }
            Standing::Leaving(value) if !self.is_unsure => {
                self.proposed = None;
                return Deed::Swap { expect: value.clone(), value: None };
            }
            _ => return Deed::Read,
        };
        if self.is_unsure {
            return Deed::Read;
        }
        if self.proposed.is_none() {
            let value = self.next_value();
            self.proposed = Some(Proposed { value, sent: now });
        }
        let value = self.proposed.as_ref().map(|proposed| proposed.value.clone());
        Deed::Swap { expect, value }
    }

    fn next_value(&mut self) -> Vec<u8> {
        let (name, count) = match &self.standing {
            Standing::Leading(value, _) if value.len() == RECORD_BYTES => {
                let count = value[NAME_BYTES..].try_into().map_or(0, u64::from_le_bytes);
                (value[..NAME_BYTES].to_vec(), count + 1)
            }
            _ => {
                self.turns += 1;
                let mut name = self.drawn.to_le_bytes().to_vec();
                name.extend(self.turns.to_le_bytes());
                name.extend(self.host.to_le_bytes());
                name.extend([0; 2]);
                (name, 0)
            }
        };
        [name, u64::to_le_bytes(count).to_vec()].concat()
    }
}

/// Whether what was found bears the name of a record.
fn is_of(record: &[u8], found: Option<&[u8]>) -> bool {
    found.is_some_and(|found| found.len() == RECORD_BYTES && record.get(..NAME_BYTES) == found.get(..NAME_BYTES))
}

/// The host that a record names; nothing where it is none of ours.
pub fn host_in(record: &[u8]) -> Option<u16> {
    let bytes = record.get(12..14).filter(|_| record.len() == RECORD_BYTES)?;
    bytes.try_into().ok().map(u16::from_le_bytes)
}

#[cfg(test)]
mod tests;
