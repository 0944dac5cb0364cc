//! Detects members of a region that are gone, and removes what they left half done.
//!
//! A member that left says so in its record, and so does one that was replaced by a process that waited for its lock.
//! For a process of this machine, the operating system tells whether it runs. Any other member that gives no heartbeat
//! for its lease, by this process's clock, is replaced: every process that has a heap in a region gives one every third
//! of its lease.
//!
//! Promises: a process that runs and reaches the store is not declared gone, however long *this* process could not
//! reach it: a silence counts only if it lasted over two more looks, each half a lease after the previous one. From the
//! moment at which a member is declared gone, no change of it to the region succeeds. It must never wait.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use trellis_store::{Applied, Change, Kind, Operation, Store, StoreError};

use super::coherence::entry::Pending;
use super::coherence::keys;
use super::end;
use super::synchronisation::member::{self, MemberRecord};

/// How many redo records are listed and removed at once.
const RECORDS_AT_ONCE: usize = 512;
/// How many looks after the first must find no new heartbeat.
const SILENT_LOOKS: u32 = 2;

/// What this process has observed of the other members' silence.
pub(crate) struct Liveness {
    store: Arc<dyn Store>,
    region: u32,
    me: u64,
    watch: Mutex<Watch>,
}

#[derive(Default)]
struct Watch {
    seen: HashMap<u64, Seen>,
    /// When the next look is due: an earlier one would reveal nothing new.
    look_at: Option<Instant>,
}

/// The last observed heartbeat of a member.
#[derive(Clone, Copy)]
struct Seen {
    heartbeat: u64,
    looks: u32,
    /// The time of the last look that counts.
    at: Instant,
}

impl Liveness {
    pub(crate) fn new(store: Arc<dyn Store>, region: u32, me: u64) -> Liveness {
        Liveness { store, region, me, watch: Mutex::default() }
    }

    /// Whether a look can reveal more than the last one.
    pub(crate) fn is_time(&self, now: Instant) -> bool {
        self.watch().look_at.is_none_or(|at| now >= at)
    }

    /// The members among these that are gone; they can change nothing any more when this returns. This takes one call,
    /// and two more for each member that is found to have ended.
    pub(crate) fn gone(&self, members: &[u64], now: Instant) -> Result<Vec<u64>, StoreError> {
        let others: Vec<u64> = members.iter().copied().filter(|member| *member != self.me).collect();
        let mut gone = Vec::new();
        let mut shortest = member::LEASE.time();
        for record in member::records(&*self.store, self.region, &others)? {
            let is_gone = if !record.is_alive {
                true
            } else if end::has_ended(record.process, &record.identity) {
                member::leave(&*self.store, self.region, record.number)?;
                true
            } else {
                shortest = shortest.min(record.lease);
                self.is_silent(&record, now) && self.replace(&record)?
            };
            if is_gone {
                self.watch().seen.remove(&record.number);
                gone.push(record.number);
            }
        }
        self.watch().look_at = Some(now + shortest / 2);
        Ok(gone)
    }

    /// Records a look; returns whether the silence is long enough.
    fn is_silent(&self, record: &MemberRecord, now: Instant) -> bool {
        let mut watch = self.watch();
        let first = Seen { heartbeat: record.heartbeat, looks: 0, at: now };
        let seen = watch.seen.entry(record.number).or_insert(first);
        if seen.heartbeat != record.heartbeat {
            *seen = first;
        } else if now.saturating_duration_since(seen.at) >= record.lease.max(Duration::from_millis(1)) / 2 {
            seen.looks += 1;
            seen.at = now;
        }
        seen.looks >= SILENT_LOOKS
    }

    /// Replaces a member; false if it gave a heartbeat meanwhile.
    fn replace(&self, record: &MemberRecord) -> Result<bool, StoreError> {
        let mut steps = member::take_back(&*self.store, self.region, record.number)?;
        steps.push(member::replace(self.region, record, self.me));
        Ok(matches!(self.store.apply(&steps, Some(&member::guard(self.region, self.me)))?, Applied::Done(_)))
    }

    /// The members that have a record, or redo records of releases in the store. Two calls, more if there are hundreds.
    pub(crate) fn members(&self) -> Result<Vec<u64>, StoreError> {
        let mut members = BTreeSet::new();
        let mut from = 1;
        loop {
            let some = self.store.numbers(self.region, Kind::Member, from, RECORDS_AT_ONCE)?;
            members.extend(some.iter().copied());
            match some.last() {
                Some(last) if some.len() == RECORDS_AT_ONCE => from = last + 1,
                _ => break,
            }
        }
        self.each_redo_record(0, u64::MAX, &mut |numbers| {
            members.extend(numbers.iter().map(|number| keys::member_of_redo_record(*number)));
            Ok(())
        })?;
        Ok(members.into_iter().collect())
    }

    /// Removes the redo records of a member that is gone, except those that are committed: the process that finishes
    /// that release removes them. Returns how many were removed.
    pub(crate) fn remove_redo_records(&self, member: u64) -> Result<u64, StoreError> {
        // The member is gone, so what it has not committed by now it never will.
        let pending = self.store.get_many(&[keys::pending(self.region)])?.pop().flatten();
        let committed: BTreeSet<u64> = match pending.as_deref().map(Pending::decode) {
            None => BTreeSet::new(),
            Some(Ok(pending)) => pending.redo_records.into_iter().collect(),
            // The record cannot be decoded; the next acquire reports this.
            Some(Err(_)) => return Ok(0),
        };
        let mut removed = 0;
        self.each_redo_record(
            keys::redo_record_number(member, 0),
            keys::redo_record_number(member + 1, 0),
            &mut |numbers| {
                let key = |number: &u64| keys::redo_record(self.region, *number);
                let delete = |number| Operation::Change { key: key(number), change: Change::Delete };
                let steps: Vec<Operation> =
                    numbers.iter().filter(|number| !committed.contains(number)).map(delete).collect();
                removed += steps.len() as u64;
                for some in steps.chunks(self.store.capabilities().operations_max.clamp(1, RECORDS_AT_ONCE)) {
                    self.store.apply(some, None)?;
                }
                Ok(())
            },
        )?;
        Ok(removed)
    }

    fn each_redo_record(
        &self,
        first: u64,
        end: u64,
        each: &mut dyn FnMut(&[u64]) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut from = first;
        loop {
            let some = self.store.numbers(self.region, Kind::Staged, from, RECORDS_AT_ONCE)?;
            let inside: Vec<u64> = some.iter().copied().take_while(|number| *number < end).collect();
            if inside.is_empty() {
                return Ok(());
            }
            each(&inside)?;
            if some.len() < RECORDS_AT_ONCE || inside.len() < some.len() {
                return Ok(());
            }
            from = inside.last().map_or(u64::MAX, |last| last + 1);
        }
    }

    fn watch(&self) -> std::sync::MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
