//! Barriers: a barrier opens when a given number of threads, of any processes, have arrived. The last arrival takes one
//! call; the others take two: one that releases what was stored and counts, and one that sleeps until the count is
//! reached.
//!
//! The count is never reset: arrival number `n` waits until the count reaches the next multiple of the number of
//! participants, so no thread has to leave before the next round can begin. A thread that gives up withdraws its
//! arrival, unless the barrier has opened meanwhile. A process that crashes after its arrival stays counted. One that
//! crashes before it is missing, and the error of the others names who has arrived and who has not. A barrier waits for
//! a number and not for particular members, so it replaces none.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trellis_store::{Applied, Entry, Key, Kind, Operation, Outcome};

use super::error::SynchronisationError;
use super::member::{self, MemberRecord};
use super::object::{Object, Place};
use super::record::{self, Form};
use super::session::{Answer, Ends, Session, locked};

/// The number of arrivals since the barrier was first used, minus those that were withdrawn.
const ARRIVED: u32 = 0;
/// The number of participants; 0 before the first use.
const PARTICIPANTS: u32 = 8;

/// The two events in an entry of the barrier's log: an arrival, and giving up.
const CAME: u64 = 1;
const GAVE_UP: u64 = 2;

/// The maximum number of entries of a barrier's log that an error examines.
const ENTRIES_MAX: u32 = 65_536;

/// The knowledge of this process about a barrier.
#[derive(Clone, Copy)]
pub(super) struct Known {
    participants: u32,
    /// The sequence number of this process's last entry in a finished round.
    upto: u64,
}

impl Session {
    /// The barrier at a place, by a name or an address, for `participants` threads. It costs one call the first time,
    /// and a name one more.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::Misuse`] for zero participants, or if the barrier was used with another number of them.
    pub fn barrier_of<'a>(
        &self,
        place: impl Into<Place<'a>>,
        participants: u32,
    ) -> Result<Barrier, SynchronisationError> {
        let object = self.inner.object(Form::Barrier, place.into())?;
        if participants == 0 {
            return Err(SynchronisationError::Misuse(format!("{}: a barrier needs a participant", object.label)));
        }
        let barrier = Barrier { session: Arc::clone(&self.inner), object, participants };
        barrier.agree()?;
        Ok(barrier)
    }
}

/// A barrier.
#[must_use = "nobody waits before `wait` is called"]
#[derive(Clone)]
pub struct Barrier {
    session: Arc<Ends>,
    object: Object,
    participants: u32,
}

/// One arrival.
#[derive(Clone, Copy)]
struct Arrival {
    /// The count before it.
    before: u64,
    /// The sequence number of its entry.
    sequence: u64,
}

impl Barrier {
    /// Waits until all participants have arrived. What each stored before is then visible to all. Returns true to the
    /// last arrival.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::TooLong`] after the session's `wait_max`. It names the members that have arrived, and
    /// those that have not.
    pub fn wait(&self) -> Result<bool, SynchronisationError> {
        self.wait_within(self.session.timeout(None))?
    }

    /// Waits like [`Barrier::wait`], for `duration` at most. Returns `None` if the barrier did not open in that time.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn wait_for(&self, duration: Duration) -> Result<Option<bool>, SynchronisationError> {
        Ok(self.wait_within(duration)?.ok())
    }

    fn wait_within(&self, timeout: Duration) -> Result<Result<bool, SynchronisationError>, SynchronisationError> {
        let deadline = self.session.now() + timeout;
        let arrival = self.arrive()?;
        let participants = u64::from(self.participants);
        let (opens_at, begun_at) = {
            let begun_at = arrival.before - arrival.before % participants;
            (begun_at + participants, begun_at)
        };
        let is_last = arrival.before + 1 == opens_at;
        if is_last || self.sleep(opens_at, deadline)? || !self.withdraw(begun_at, opens_at)? {
            self.is_over(arrival);
            return Ok(Ok(is_last));
        }
        let whom = self.who_came(arrival, begun_at);
        Ok(Err(SynchronisationError::TooLong {
            what: self.object.label.clone(),
            milliseconds: timeout.as_millis() as u64,
            whom,
        }))
    }

    /// Arrives: releases what was stored, and for the last arrival acquires what others stored.
    fn arrive(&self) -> Result<Arrival, SynchronisationError> {
        let mut steps = vec![record::add(&self.object.key, ARRIVED, 1), self.entry(CAME)];
        // Entries up to this process's last one in a finished round will not be needed again.
        let upto = locked(&self.session.barriers).get(&self.object.number).map_or(0, |known| known.upto);
        if upto != 0 {
            steps.push(Operation::Trim { log: self.log(), upto });
        }
        match self.session.exchange(&steps)? {
            Answer::Done(outcomes) => {
                let sequence = match outcomes.get(1) {
                    Some(Outcome::Appended(sequence)) => *sequence,
                    _ => 0,
                };
                Ok(Arrival { before: record::before(&outcomes, 0) as u64, sequence })
            }
            Answer::Refused(_) => Err(self.strange()),
        }
    }

    /// Sleeps until the count is reached. Returns false if the time ran out first.
    fn sleep(&self, opens_at: u64, deadline: Instant) -> Result<bool, SynchronisationError> {
        let steps = [record::is_within(&self.object.key, ARRIVED, (opens_at as i64, i64::MAX))];
        Ok(matches!(self.session.acquire(&steps, Some(deadline))?, Answer::Done(_)))
    }

    /// Withdraws the arrival. Returns false if the barrier has opened meanwhile, which is then acquired.
    fn withdraw(&self, begun_at: u64, opens_at: u64) -> Result<bool, SynchronisationError> {
        let bounds = (begun_at as i64, opens_at as i64 - 2);
        let steps = [record::add_within(&self.object.key, ARRIVED, -1, bounds), self.entry(GAVE_UP)];
        if matches!(self.session.apply(&steps)?, Answer::Done(_)) {
            return Ok(true);
        }
        match self.sleep(opens_at, self.session.now())? {
            true => Ok(false),
            false => Err(self.strange()),
        }
    }

    /// Records that a round is over.
    fn is_over(&self, arrival: Arrival) {
        if let Some(known) = locked(&self.session.barriers).get_mut(&self.object.number) {
            known.upto = known.upto.max(arrival.sequence);
        }
    }

    /// Ensures that all processes use the same number of participants.
    fn agree(&self) -> Result<(), SynchronisationError> {
        let known = locked(&self.session.barriers).get(&self.object.number).map(|known| known.participants);
        let agreed = match known {
            Some(participants) => participants,
            None => self.participants_in_store()?,
        };
        if agreed != self.participants {
            return Err(SynchronisationError::Misuse(format!(
                "{} was used for {agreed} participants and cannot be for {}; use another name or address",
                self.object.label, self.participants
            )));
        }
        let fresh = Known { participants: agreed, upto: 0 };
        locked(&self.session.barriers).entry(self.object.number).or_insert(fresh);
        Ok(())
    }

    fn participants_in_store(&self) -> Result<u32, SynchronisationError> {
        let step = record::swap(&self.object.key, PARTICIPANTS, &[0], &[u64::from(self.participants)]);
        Ok(match self.session.apply(&[step])? {
            Answer::Done(_) => self.participants,
            Answer::Refused(refused) => record::word(refused.found.as_deref().unwrap_or_default(), PARTICIPANTS) as u32,
        })
    }

    fn log(&self) -> Key {
        Key::new(self.session.region(), Kind::Log, self.object.number)
    }

    fn entry(&self, what: u64) -> Operation {
        Operation::Append { log: self.log(), bytes: record::words(&[self.session.me, what]) }
    }

    /// Describes who has arrived in this round, and who is a member but has not.
    fn who_came(&self, arrival: Arrival, begun_at: u64) -> String {
        // An error is being reported already, so what the store does not answer is left out.
        let read = Operation::Entries { log: self.log(), after: 0, count: ENTRIES_MAX };
        let entries = match self.session.store().apply(&[read], None) {
            Ok(Applied::Done(outcomes)) => match outcomes.into_iter().next() {
                Some(Outcome::Entries { entries, .. }) => entries,
                _ => Vec::new(),
            },
            _ => Vec::new(),
        };
        let round = round(&entries, arrival, begun_at, self.session.me);
        let living = member::living(self.session.store(), self.session.region()).unwrap_or_default();
        let describe = |(number, _): &(u64, i64)| match living.iter().find(|record| record.number == *number) {
            _ if *number == self.session.me => "this process".to_owned(),
            Some(record) => record.describe(),
            None => format!("member {number}, which has ended since"),
        };
        let listed = |what: &str, who: Vec<String>| match who.is_empty() {
            true => String::new(),
            false => format!("; {what}: {}", who.join(", ")),
        };
        let absent = |record: &&MemberRecord| {
            round.came.iter().chain(&round.gave_up).all(|(number, _)| *number != record.number)
        };
        let absent: Vec<String> = living.iter().filter(absent).map(MemberRecord::describe).collect();
        let candidates = match absent.is_empty() {
            true => "; no other process has the region open, so they have ended or not begun".to_owned(),
            false => listed("not there", absent),
        };
        let seen: i64 = round.came.iter().chain(&round.gave_up).map(|(_, times)| times).sum();
        format!(
            "{} of {} are missing{}{}{candidates}",
            i64::from(self.participants) - seen,
            self.participants,
            listed("there", round.came.iter().map(describe).collect()),
            listed("gave up since", round.gave_up.iter().map(describe).collect()),
        )
    }

    fn strange(&self) -> SynchronisationError {
        SynchronisationError::Failed(format!(
            "{} does not count as a barrier does: its record was changed by something else; look at the region with \
             `trellis store stat`",
            self.object.label
        ))
    }
}

/// The members that have arrived in a round, and how often.
#[derive(Debug, Default, PartialEq, Eq)]
struct Round {
    came: Vec<(u64, i64)>,
    /// Members that gave up after this arrival, whose own arrival may not be visible.
    gave_up: Vec<(u64, i64)>,
}

/// The round that began at a count and includes an arrival; `me` has given up since, and counts as present.
fn round(entries: &[Entry], arrival: Arrival, begun_at: u64, me: u64) -> Round {
    let came = |entry: &Entry| record::word(&entry.bytes, 8) == CAME;
    // Goes back from the arrival, after which the count is known, to where the round began.
    let mine = entries.iter().position(|entry| entry.sequence == arrival.sequence).unwrap_or(0);
    let mut count = arrival.before as i64 + 1;
    let mut first = mine + 1;
    while first > 0 && count > begun_at as i64 {
        first -= 1;
        count -= entries.get(first).map_or(0, |entry| if came(entry) { 1 } else { -1 });
    }
    let mut round = Round { came: vec![(me, 1)], gave_up: Vec::new() };
    let raise = |list: &mut Vec<(u64, i64)>, member: u64, by: i64| match list.iter_mut().find(|who| who.0 == member) {
        Some(who) => who.1 += by,
        None => list.push((member, by)),
    };
    let mut mine_left = true;
    for entry in &entries[first.min(entries.len())..] {
        let member = record::word(&entry.bytes, 0);
        // This arrival and its withdrawal are counted already.
        let is_known = match came(entry) {
            true => entry.sequence == arrival.sequence,
            false => member == me && std::mem::take(&mut mine_left),
        };
        match came(entry) {
            _ if is_known => {}
            true => raise(&mut round.came, member, 1),
            false => {
                raise(&mut round.came, member, -1);
                raise(&mut round.gave_up, member, 1);
            }
        }
    }
    round.came.retain(|(_, times)| *times > 0);
    round
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(sequence: u64, member: u64, what: u64) -> Entry {
        Entry { sequence, bytes: record::words(&[member, what]) }
    }

    #[test]
    fn who_came_is_of_this_round_alone() {
        let entries = [
            entry(1, 1, CAME),
            entry(2, 2, CAME),
            entry(3, 3, CAME), // the first round of three
            entry(4, 2, CAME),
            entry(5, 2, GAVE_UP),
            entry(6, 1, CAME),
            entry(7, 3, CAME),
            entry(8, 1, GAVE_UP),
        ];
        let mine = Arrival { before: 3, sequence: 6 };
        assert_eq!(round(&entries, mine, 3, 1), Round { came: vec![(1, 1), (3, 1)], gave_up: Vec::new() });
        // As seen by the third, which gave up next.
        let entries = [&entries[..], &[entry(9, 3, GAVE_UP)]].concat();
        let mine = Arrival { before: 4, sequence: 7 };
        assert_eq!(round(&entries, mine, 3, 3), Round { came: vec![(3, 1)], gave_up: vec![(1, 1)] });
    }

    #[test]
    fn what_was_trimmed_is_not_missed() {
        let entries = [entry(7, 9, CAME), entry(8, 9, GAVE_UP)];
        let alone = || Round { came: vec![(9, 1)], gave_up: Vec::new() };
        assert_eq!(round(&entries, Arrival { before: 4, sequence: 7 }, 3, 9), alone());
        assert_eq!(round(&[], Arrival { before: 4, sequence: 7 }, 3, 9), alone());
    }
}
