//! Waiting for what others have, and replacing who has it but gives no sign of life.
//!
//! A wait sleeps in the store. From time to time it looks who is in its way. A member whose hold and whose heartbeats were the
//! same at two looks, at least that member's lease apart on this process's clock, is replaced: one call marks its record
//! and clears its traces, and is refused when it gave a sign of life meanwhile. Then the wait goes on.
//!
//! Promises: nobody is replaced who gave a sign of life within its lease, as this clock counts; a member that has left or
//! was replaced before is cleared at the first look; a wait ends with its deadline and one more look. Must never trust a
//! refusal's age: what decides is compared again in the call that replaces.

use std::time::{Duration, Instant};

use trellis_store::{Operation, Outcome, Refused};

use super::error::SynchronisationError;
use super::member::{self, Card};
use super::session::{Answer, Core, Trouble, locked, of_store};

/// Of a lock that was found taken, and by nobody who could be named.
pub(super) const JUST_CHANGED: &str = "who has it has just changed; wait longer, or try again";

/// Somebody who is in the way.
#[derive(Clone, Debug)]
pub(super) struct Blocker {
    /// Who.
    pub(super) member: u64,
    /// What tells this hold from every other that it had or will have.
    pub(super) trace: Vec<u64>,
    /// The steps that take the hold away, refused when it is not there any more.
    pub(super) clear: Vec<Operation>,
    /// What it does: "has it".
    pub(super) does: &'static str,
}

/// What was seen of who is in the way of one object.
#[derive(Default)]
pub(super) struct Watch {
    seen: Vec<Seen>,
}

struct Seen {
    member: u64,
    trace: Vec<u64>,
    beat: u64,
    /// When this hold was seen first.
    first: Instant,
    /// When this beat was seen first.
    since: Instant,
}

/// Something that can be taken when nobody is in the way.
pub(super) trait Contended {
    /// The number of the object.
    fn number(&self) -> u64;

    /// What takes it.
    fn steps(&self) -> Vec<Operation>;

    /// Who was in the way when it was refused.
    fn blockers(&self, core: &Core, refused: &Refused) -> Result<Vec<Blocker>, SynchronisationError>;

    /// Whether a refusal says that an earlier call has taken it.
    fn can_tell(&self) -> bool;

    /// Whether it was refused because an earlier call, whose answer was lost, has taken it.
    fn is_mine(&self, refused: &Refused) -> bool;
}

/// Something, or why it came too late; or why neither can be told.
pub(super) type Timely<T> = Result<Result<T, SynchronisationError>, SynchronisationError>;

/// How a wait ended.
pub(super) enum Obtained {
    /// With what each step gave.
    Taken(Vec<Outcome>),
    /// By a call whose answer was lost; the record.
    TakenBefore(Vec<u8>),
    /// Not at all; who was in the way at last.
    TooLate(Vec<Blocker>),
}

impl Core {
    /// Takes something, at most `patience` from now; with none at once or not at all.
    pub(super) fn obtain(&self, what: &dyn Contended, patience: Duration) -> Result<Obtained, SynchronisationError> {
        let begun = self.now();
        let deadline = begun + patience;
        let mut look_at = begun + self.lease / 3;
        let mut may_be_mine = false;
        let steps = what.steps();
        loop {
            let until = (!patience.is_zero()).then(|| deadline.min(look_at));
            let refused = match self.acquire(&steps, until) {
                Ok(Answer::Done(outcomes)) => {
                    locked(&self.watched).remove(&what.number());
                    return Ok(Obtained::Taken(outcomes));
                }
                Ok(Answer::Refused(refused)) => refused,
                // Once: the store is there again, or the next call says why not.
                Err(Trouble::Unknown(_)) if !may_be_mine && what.can_tell() => {
                    may_be_mine = true;
                    continue;
                }
                Err(trouble) => return Err(trouble.into()),
            };
            if may_be_mine && what.is_mine(&refused) {
                return Ok(Obtained::TakenBefore(refused.found.unwrap_or_default()));
            }
            if patience.is_zero() {
                return Ok(Obtained::TooLate(Vec::new()));
            }
            let blockers = what.blockers(self, &refused)?;
            look_at = self.look(what.number(), &blockers)?;
            if self.now() >= deadline {
                return Ok(Obtained::TooLate(blockers));
            }
        }
    }

    /// Looks at who is in the way and replaces who may be; when to look again.
    fn look(&self, object: u64, blockers: &[Blocker]) -> Result<Instant, SynchronisationError> {
        let before = self.now();
        let numbers: Vec<u64> =
            blockers.iter().map(|blocker| blocker.member).filter(|member| *member != self.me).collect();
        let cards = member::cards(self.store(), self.region(), &numbers).map_err(of_store)?;
        let after = self.now();
        let mut look_at = after + self.lease;
        let mut seen = Vec::with_capacity(blockers.len());
        let mut known = locked(&self.watched).remove(&object).unwrap_or_default();
        for blocker in blockers {
            let card = cards.iter().find(|card| card.number == blocker.member);
            let now = known.update(blocker, card.map_or(0, |card| card.beat), after);
            // Of this process itself one only remembers since when.
            if let Some(card) = card {
                // The time between two looks counts from the end of the first to the begin of the second.
                let unchanged = before.saturating_duration_since(now.since);
                if (!card.is_alive || unchanged >= card.lease) && self.replace(blocker, card)? {
                    look_at = after;
                    continue;
                }
                look_at = look_at.min((now.since + card.lease).max(after + card.lease / 8));
            }
            seen.push(now);
        }
        locked(&self.watched).insert(object, Watch { seen });
        Ok(look_at)
    }

    /// Marks a member as replaced and clears its hold; false when it was not so any more.
    fn replace(&self, blocker: &Blocker, card: &Card) -> Result<bool, SynchronisationError> {
        let mark = card.is_alive.then(|| member::replace(self.region(), card, self.me));
        let steps: Vec<Operation> = mark.into_iter().chain(blocker.clear.iter().cloned()).collect();
        Ok(matches!(self.apply(&steps)?, Answer::Done(_)))
    }

    /// Who is in the way, and for how long, as a sentence's end; `nobody` where that is not known.
    pub(super) fn whom(&self, object: u64, blockers: &[Blocker], nobody: &str) -> String {
        let numbers: Vec<u64> = blockers.iter().map(|blocker| blocker.member).collect();
        // This is already the end of a failure: what the store does not say is left out.
        let cards = member::cards(self.store(), self.region(), &numbers).unwrap_or_default();
        let now = self.now();
        let watched = locked(&self.watched);
        let seen = watched.get(&object).map(|watch| watch.seen.as_slice()).unwrap_or_default();
        let mut sentences: Vec<String> = Vec::new();
        for (blocker, card) in blockers.iter().zip(&cards) {
            let who = if blocker.member == self.me { "this process".to_owned() } else { card.describe() };
            let since = seen.iter().find(|seen| seen.member == blocker.member && seen.trace == blocker.trace);
            let long = since.map(|seen| now.saturating_duration_since(seen.first).as_millis() as u64).unwrap_or(0);
            let long = match long {
                0 => String::new(),
                long => format!(", for {} at least", super::error::seconds(long)),
            };
            sentences.push(format!("{who} {}{long}", blocker.does));
        }
        if sentences.is_empty() { nobody.to_owned() } else { sentences.join("; ") }
    }
}

impl Watch {
    /// What is known of a blocker with what was seen now.
    fn update(&mut self, blocker: &Blocker, beat: u64, now: Instant) -> Seen {
        let same_hold = |seen: &Seen| seen.member == blocker.member && seen.trace == blocker.trace;
        let known = self.seen.iter().position(same_hold).map(|at| self.seen.swap_remove(at));
        let (first, since) = match known {
            Some(known) if known.beat == beat => (known.first, known.since),
            Some(known) => (known.first, now),
            None => (now, now),
        };
        Seen { member: blocker.member, trace: blocker.trace.clone(), beat, first, since }
    }
}
