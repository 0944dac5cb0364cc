//! Waits for objects that others hold, and replaces holders that give no heartbeat.
//!
//! A wait sleeps in the store, and looks from time to time who blocks it. If a member's hold and heartbeats were the
//! same at two looks, at least that member's lease apart on this process's clock, the member is replaced: one call
//! marks its record and clears its traces, and is refused if it gave a heartbeat meanwhile. The wait then continues.
//!
//! Promises: no member is replaced that gave a heartbeat within its lease, by this clock. A member that has left, or
//! was replaced before, is cleared at the first look. A wait ends at its deadline plus one more look. It must never
//! rely on the age of a refusal: the call that replaces compares again everything on which the decision depends.

use std::time::{Duration, Instant};

use trellis_store::{Operation, Outcome, Refused};

use super::error::SynchronisationError;
use super::member::{self, MemberRecord};
use super::session::{Answer, Core, Trouble, locked, of_store};

/// The phrase for a lock that was found taken, without a holder that could be named.
pub(super) const JUST_CHANGED: &str = "who has it has just changed; wait longer, or try again";

/// A member that blocks.
#[derive(Clone, Debug)]
pub(super) struct Blocker {
    /// The member.
    pub(super) member: u64,
    /// Words that distinguish this hold from every other hold of the member, past and future.
    pub(super) trace: Vec<u64>,
    /// The steps that remove the hold; refused if it no longer exists.
    pub(super) clear: Vec<Operation>,
    /// What the member does: "has it".
    pub(super) does: &'static str,
}

/// The observations of the members that block one object.
#[derive(Default)]
pub(super) struct Watch {
    seen: Vec<Seen>,
}

struct Seen {
    member: u64,
    trace: Vec<u64>,
    heartbeat: u64,
    /// When this hold was first seen.
    first: Instant,
    /// When this heartbeat was first seen.
    since: Instant,
}

/// An object that can be taken when no member blocks it.
pub(super) trait Contended {
    /// The number of the object.
    fn number(&self) -> u64;

    /// The steps that take it.
    fn steps(&self) -> Vec<Operation>;

    /// The members that blocked it when it was refused.
    fn blockers(&self, core: &Core, refused: &Refused) -> Result<Vec<Blocker>, SynchronisationError>;

    /// Whether a refusal shows that an earlier call has taken it.
    fn can_tell(&self) -> bool;

    /// Whether it was refused because an earlier call, whose answer was lost, has taken it.
    fn is_mine(&self, refused: &Refused) -> bool;
}

/// A result, or the error of a wait that ran out of time; the outer error means that neither is known.
pub(super) type Timely<T> = Result<Result<T, SynchronisationError>, SynchronisationError>;

/// The result of a wait.
pub(super) enum Obtained {
    /// The object was taken, with the outcome of each step.
    Taken(Vec<Outcome>),
    /// An earlier call, whose answer was lost, took it. The bytes are the record.
    TakenBefore(Vec<u8>),
    /// It was not taken. The members are those that blocked it last.
    TooLate(Vec<Blocker>),
}

impl Core {
    /// Takes an object, and waits for `timeout` at most. With zero, it takes the object at once or not at all.
    pub(super) fn obtain(&self, what: &dyn Contended, timeout: Duration) -> Result<Obtained, SynchronisationError> {
        let begun = self.now();
        let deadline = begun + timeout;
        let mut look_at = begun + self.lease / 3;
        let mut may_be_mine = false;
        let steps = what.steps();
        loop {
            let until = (!timeout.is_zero()).then(|| deadline.min(look_at));
            let refused = match self.acquire(&steps, until) {
                Ok(Answer::Done(outcomes)) => {
                    locked(&self.watched).remove(&what.number());
                    return Ok(Obtained::Taken(outcomes));
                }
                Ok(Answer::Refused(refused)) => refused,
                // This is tried again once: either the store has returned, or the next call reports the error.
                Err(Trouble::Unknown(_)) if !may_be_mine && what.can_tell() => {
                    may_be_mine = true;
                    continue;
                }
                Err(trouble) => return Err(trouble.into()),
            };
            if may_be_mine && what.is_mine(&refused) {
                return Ok(Obtained::TakenBefore(refused.found.unwrap_or_default()));
            }
            if timeout.is_zero() {
                return Ok(Obtained::TooLate(Vec::new()));
            }
            let blockers = what.blockers(self, &refused)?;
            look_at = self.look(what.number(), &blockers)?;
            if self.now() >= deadline {
                return Ok(Obtained::TooLate(blockers));
            }
        }
    }

    /// Examines the members that block, and replaces those that may be replaced; returns when to look again.
    fn look(&self, object: u64, blockers: &[Blocker]) -> Result<Instant, SynchronisationError> {
        let before = self.now();
        let numbers: Vec<u64> =
            blockers.iter().map(|blocker| blocker.member).filter(|member| *member != self.me).collect();
        let records = member::records(self.store(), self.region(), &numbers).map_err(of_store)?;
        let after = self.now();
        let mut look_at = after + self.lease;
        let mut seen = Vec::with_capacity(blockers.len());
        let mut known = locked(&self.watched).remove(&object).unwrap_or_default();
        for blocker in blockers {
            let record = records.iter().find(|record| record.number == blocker.member);
            let now = known.update(blocker, record.map_or(0, |record| record.heartbeat), after);
            // Of this process itself, only the time since when it blocks is recorded.
            if let Some(record) = record {
                // The time between two looks counts from the end of the first to the start of the second.
                let unchanged = before.saturating_duration_since(now.since);
                if (!record.is_alive || unchanged >= record.lease) && self.replace(blocker, record)? {
                    look_at = after;
                    continue;
                }
                look_at = look_at.min((now.since + record.lease).max(after + record.lease / 8));
            }
            seen.push(now);
        }
        locked(&self.watched).insert(object, Watch { seen });
        Ok(look_at)
    }

    /// Marks a member as replaced and clears its hold. Returns false if either has changed meanwhile.
    fn replace(&self, blocker: &Blocker, record: &MemberRecord) -> Result<bool, SynchronisationError> {
        let mark = record.is_alive.then(|| member::replace(self.region(), record, self.me));
        let steps: Vec<Operation> = mark.into_iter().chain(blocker.clear.iter().cloned()).collect();
        Ok(matches!(self.apply(&steps)?, Answer::Done(_)))
    }

    /// The end of a message: which members block, and for how long; `nobody` if that is not known.
    pub(super) fn whom(&self, object: u64, blockers: &[Blocker], nobody: &str) -> String {
        let numbers: Vec<u64> = blockers.iter().map(|blocker| blocker.member).collect();
        // An error is being reported already, so what the store does not answer is left out.
        let records = member::records(self.store(), self.region(), &numbers).unwrap_or_default();
        let now = self.now();
        let watched = locked(&self.watched);
        let seen = watched.get(&object).map(|watch| watch.seen.as_slice()).unwrap_or_default();
        let mut sentences: Vec<String> = Vec::new();
        for (blocker, record) in blockers.iter().zip(&records) {
            let who = if blocker.member == self.me { "this process".to_owned() } else { record.describe() };
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
    /// Updates what is known of a blocking member with a new observation.
    fn update(&mut self, blocker: &Blocker, heartbeat: u64, now: Instant) -> Seen {
        let same_hold = |seen: &Seen| seen.member == blocker.member && seen.trace == blocker.trace;
        let known = self.seen.iter().position(same_hold).map(|at| self.seen.swap_remove(at));
        let (first, since) = match known {
            Some(known) if known.heartbeat == heartbeat => (known.first, known.since),
            Some(known) => (known.first, now),
            None => (now, now),
        };
        Seen { member: blocker.member, trace: blocker.trace.clone(), heartbeat, first, since }
    }
}
