//! A process's part in the coherence of a region: its releases and acquires, and the completion of other processes'
//! releases.
//!
//! Promises the contract in `mod.rs` for any [`Copies`]. The number of calls is part of the promise: an undisturbed
//! release or acquire is one call of the store, and a release of nothing with an empty change is none.
//!
//! `turn` is held during a release, so that no release of another thread is acknowledged before the changes that this
//! one collected are stored. It is also held while notices are handled. It must never take `turn` while holding `seen`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use trellis_base::{Deadline, Limit};
use trellis_store::{Applied, Atomic, Capabilities, Change, Expect, Guard, Key, Operation, Outcome, Refused, Store};

use super::entry::{self, LogEntry, Notice, Patch, Pending};
use super::{Shared, keys};
use crate::error::StoredError;
use crate::synchronisation::member;

/// The number of entries of the log that are kept.
pub const ENTRIES_KEPT: u64 = 4096;
/// The log is trimmed when it is this much longer.
const TRIM_STEP: u64 = 512;
/// The number of entries that an acquire reads; a process that is further behind drops all its copies.
pub const ENTRIES_READ_MAX: u64 = 256;
/// How long another process is given to finish its own release before it is helped, where helping can do no harm.
pub(crate) const RELEASE: Deadline = Deadline {
    who: "a process that reads a release",
    waits_for: "the process that is writing it",
    limit: Limit::milliseconds(50),
    then: "it is finished in its place",
    tested: "crates/trellis-stored/src/coherence/tests.rs a_helper_that_ends_at_any_call_is_helped_in_turn",
};
/// The maximum number of bytes that this process puts into one call, whatever the store accepts.
const CALL_BYTES_MAX: usize = 8 << 20;
/// The maximum size of a staged redo record.
const RECORD_BYTES_MAX: usize = 256 << 10;
/// The number of redo records that are read in one call.
const RECORDS_AT_ONCE: usize = 16;
/// The overhead of a step in addition to the changed bytes: its key and its framing.
const STEP_BYTES: usize = 48;

/// A process's copies of a region's pages, as its coherence sees them.
pub trait Copies: Send + Sync {
    /// Collects the program's changes that were not collected before, up to about this many bytes. Until
    /// [`Copies::settled`], a copy that is fetched again has these changes applied.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    fn collect(&self, bytes_max: usize) -> Result<Collected, StoredError>;

    /// Reports that these patches are now in this redo record of the store, so that their memory can be freed.
    fn staged(&self, redo_record: u64, patches: &[Arc<Patch>]);

    /// A number for a redo record that this process has never used.
    fn next_redo_record(&self) -> u64;

    /// Reports that everything that was collected is in the store's pages.
    fn settled(&self);

    /// Handles changes of other processes, in this order; the store's pages have them.
    ///
    /// # Errors
    ///
    /// As the store's, for copies that must be fetched again at once.
    fn apply_notices(&self, notices: &[Notice]) -> Result<(), StoredError>;
}

/// The changes of a process.
#[derive(Debug, Default)]
pub struct Collected {
    /// Changes, in order.
    pub patches: Vec<Arc<Patch>>,
    /// Redo records that already hold earlier changes, in order.
    pub redo_records: Vec<u64>,
    /// The pages of these redo records, and pages that were changed in the store directly.
    pub named: Vec<u64>,
    /// Whether there are more changes.
    pub more: bool,
}

/// The identity of a process in a region.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The region's name, for messages.
    pub name: String,
    /// Its number.
    pub region: u32,
    /// The process's member number.
    pub member: u64,
    /// How long a record must be unchanged for its process to count as dead.
    pub lease: Duration,
    /// Whether the region belongs to this process alone; then there is no log.
    pub is_private: bool,
}

/// See the module.
pub struct Coherence {
    store: Arc<dyn Store>,
    who: Identity,
    limits: Limits,
    copies: Arc<dyn Copies>,
    turn: Mutex<Turn>,
    seen: Mutex<u64>,
}

/// A release that was not acknowledged yet.
#[derive(Default)]
struct Turn {
    patches: Vec<Arc<Patch>>,
    redo_records: Vec<u64>,
    named: Vec<u64>,
    /// The number of the release; a refused release keeps its number.
    release: u64,
    trimmed: u64,
    trim: Option<u64>,
    /// The newest known entry of the log before a commit whose answer was lost: whether it took effect is not known.
    doubt: Option<u64>,
}

impl Turn {
    fn is_empty(&self) -> bool {
        self.patches.is_empty() && self.redo_records.is_empty() && self.named.is_empty()
    }

    fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.named.iter().copied()
    }
}

/// The limits of one call.
#[derive(Clone, Copy, Debug)]
struct Limits {
    atomic: Atomic,
    operations_max: usize,
    call_bytes_max: usize,
    record_bytes_max: usize,
}

impl Limits {
    fn of(can: &Capabilities) -> Limits {
        let call_bytes_max = can.call_bytes_max.min(CALL_BYTES_MAX);
        Limits {
            atomic: can.atomic,
            operations_max: can.operations_max,
            call_bytes_max,
            record_bytes_max: RECORD_BYTES_MAX.min(can.value_bytes_max / 2).min(call_bytes_max / 2),
        }
    }
}

impl Coherence {
    /// The coherence of a process; `seen` is the newest entry of the log at a moment at which the process had no copies.
    pub fn new(store: Arc<dyn Store>, who: Identity, copies: Arc<dyn Copies>, seen: u64) -> Coherence {
        let limits = Limits::of(&store.capabilities());
        Coherence { store, who, limits, copies, turn: Mutex::default(), seen: Mutex::new(seen) }
    }

    /// The identity of this process.
    pub fn identity(&self) -> &Identity {
        &self.who
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> MutexGuard<'_, u64> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release_in_turn(
        &self,
        turn: &mut Turn,
        change: &[Operation],
        guard: Option<&Guard>,
        acquires: bool,
    ) -> Result<Applied, StoredError> {
        self.settle_doubt(turn)?;
        self.collect(turn, change)?;
        if turn.is_empty() && change.is_empty() && !acquires {
            return Ok(Applied::Done(Vec::new()));
        }
        loop {
            let call = self.commit(turn, change, acquires);
            turn.doubt = Some(*self.seen());
            let own = member::guard(self.who.region, self.who.member);
            let guarded = if self.who.is_private { guard } else { Some(guard.unwrap_or(&own)) };
            match self.store.apply(&call.operations, guarded)? {
                Applied::Done(outcomes) => return self.committed(turn, call, change.len(), outcomes),
                Applied::Refused(refused, _) if Some(refused.step) == call.pending_step => {
                    turn.doubt = None;
                    self.help(refused.found)?;
                }
                Applied::Refused(refused, mut outcomes) => {
                    turn.doubt = None;
                    let outcomes = outcomes.drain(..).skip(call.change_at).take(change.len()).collect();
                    return Ok(Applied::Refused(Refused { step: refused.step - call.change_at, ..refused }, outcomes));
                }
                Applied::Fenced { found } if guard.is_some() => {
                    turn.doubt = None;
                    return Ok(Applied::Fenced { found });
                }
                Applied::Fenced { .. } => return Err(self.fenced()),
            }
        }
    }

    /// Finds out whether a release whose answer was lost is part of the region. Writing it again in that case could
    /// overwrite newer bytes of other processes with old ones.
    fn settle_doubt(&self, turn: &mut Turn) -> Result<(), StoredError> {
        let Some(after) = turn.doubt.filter(|_| !turn.is_empty() && !self.who.is_private) else { return Ok(()) };
        let region = self.who.region;
        let look = [
            Operation::Entries { log: keys::log(region), after, count: ENTRIES_KEPT as u32 },
            Operation::Get { key: keys::pending(region), range: None },
        ];
        let Applied::Done(outcomes) = self.store.apply(&look, None)? else { return Ok(()) };
        let [Outcome::Entries { entries, .. }, Outcome::Value(pending)] = &outcomes[..] else { return Ok(()) };
        let ours = |member, release| (member, release) == (self.who.member, turn.release);
        let read = entries.iter().filter_map(|entry| LogEntry::decode(&entry.bytes).ok());
        if !read.into_iter().any(|entry| ours(entry.member, entry.release)) {
            turn.doubt = None;
            return Ok(());
        }
        if let Some(found) = pending {
            let waiting = Pending::decode(found).map_err(|reason| self.broken(reason))?;
            if ours(waiting.member, waiting.release) {
                self.finish(found)?;
            }
        }
        self.is_in_pages(turn);
        Ok(())
    }

    /// Collects the program's changes; what is too much for one call is staged.
    fn collect(&self, turn: &mut Turn, change: &[Operation]) -> Result<(), StoredError> {
        loop {
            let part = self.copies.collect(self.limits.record_bytes_max)?;
            turn.patches.extend(part.patches);
            turn.redo_records.extend(part.redo_records);
            turn.named.extend(part.named);
            let fits = self.fits(turn, change);
            if !part.more && fits {
                return Ok(());
            }
            // The result of several collections still goes into one call if it fits.
            if !fits && self.who.is_private {
                self.write_through(turn)?;
            } else if !fits {
                self.stage(turn)?;
            }
            if !part.more {
                return Ok(());
            }
        }
    }

    /// Writes to the pages at once: in a region that no other process sees, a release cannot be seen in part.
    fn write_through(&self, turn: &mut Turn) -> Result<(), StoredError> {
        let operations: Vec<Operation> = turn.patches.iter().flat_map(|patch| puts(self.who.region, patch)).collect();
        for part in cut(&operations, self.limits.operations_max, self.limits.call_bytes_max) {
            self.store.apply(part, None)?;
        }
        turn.patches.clear();
        self.copies.settled();
        Ok(())
    }

    /// Whether everything that is not staged fits into the call that commits.
    fn fits(&self, turn: &Turn, change: &[Operation]) -> bool {
        let steps: usize = turn.patches.iter().map(|patch| patch.runs.len()).sum();
        let bytes: usize = turn.patches.iter().map(|patch| patch.bytes()).sum();
        let others = change.len() + 6;
        let change_bytes: usize = change.iter().map(|step| carried_bytes(step) + 256).sum();
        let other_bytes: usize = change_bytes + 32 * entry::NAMED_RUNS_MAX + 8 * turn.redo_records.len();
        match self.limits.atomic {
            Atomic::Control if self.who.is_private => steps == 0,
            Atomic::Call if turn.redo_records.is_empty() => {
                steps + others <= self.limits.operations_max
                    && bytes + steps * STEP_BYTES + entry::INLINE_BYTES_MAX + other_bytes <= self.limits.call_bytes_max
            }
            // The patches are stored in one value.
            _ => bytes + steps * 8 + other_bytes <= self.limits.record_bytes_max,
        }
    }

    /// Writes everything that is not staged into redo records.
    fn stage(&self, turn: &mut Turn) -> Result<(), StoredError> {
        while !turn.patches.is_empty() {
            let mut bytes = 0;
            let fitting = turn.patches.iter().take_while(|patch| {
                bytes += patch.bytes() + patch.runs.len() * 8 + 16;
                bytes <= self.limits.record_bytes_max
            });
            let count = fitting.count().max(1);
            let part: Vec<Arc<Patch>> = turn.patches[..count].to_vec();
            let number = self.copies.next_redo_record();
            let put = Operation::Change {
                key: keys::redo_record(self.who.region, number),
                change: Change::Put(entry::encode_redo_record(part.iter().map(|patch| &**patch))),
            };
            self.store.apply(&[put], None)?;
            turn.patches.drain(..count);
            turn.redo_records.push(number);
            turn.named.extend(part.iter().map(|patch| patch.page));
            self.copies.staged(number, &part);
        }
        Ok(())
    }

    /// The call that makes the release part of the region.
    fn commit(&self, turn: &Turn, change: &[Operation], acquires: bool) -> Commit {
        let mut call =
            Commit { operations: Vec::new(), pending_step: None, append_at: None, change_at: 0, pending: None };
        if !turn.is_empty() {
            self.commit_pages(turn, &mut call);
        }
        call.change_at = call.operations.len();
        call.operations.extend_from_slice(change);
        if acquires {
            call.operations.extend(self.acquiring());
        }
        if let Some(upto) = turn.trim.filter(|_| call.append_at.is_some()) {
            call.operations.push(Operation::Trim { log: keys::log(self.who.region), upto });
        }
        call
    }

    fn commit_pages(&self, turn: &Turn, call: &mut Commit) {
        let region = self.who.region;
        if self.who.is_private {
            call.operations.extend(turn.patches.iter().flat_map(|patch| puts(region, patch)));
            return;
        }
        call.pending_step = Some(0);
        if turn.redo_records.is_empty() && self.limits.atomic == Atomic::Call {
            call.operations.push(keys::nothing_pending(region));
            call.operations.extend(turn.patches.iter().flat_map(|patch| puts(region, patch)));
        } else if turn.redo_records.is_empty() && turn.patches.is_empty() {
            call.operations.push(keys::nothing_pending(region));
        } else {
            let pending = Pending {
                member: self.who.member,
                release: turn.release,
                redo_records: turn.redo_records.clone(),
                patches: turn.patches.iter().map(|patch| (**patch).clone()).collect(),
            };
            let bytes = pending.encode();
            call.operations.push(Operation::CompareAndSwap {
                key: keys::pending(region),
                expect: Expect::Absent,
                change: Change::Put(bytes.clone()),
            });
            call.pending = Some(bytes);
        }
        call.append_at = Some(call.operations.len());
        let named: Vec<u64> = turn.pages().collect();
        let notice = entry::notice_of(&turn.patches, &named);
        let bytes = LogEntry { member: self.who.member, release: turn.release, notice }.encode();
        call.operations.push(Operation::Append { log: keys::log(region), bytes });
    }

    /// Completes a release that the store has committed.
    fn committed(
        &self,
        turn: &mut Turn,
        call: Commit,
        changes: usize,
        mut outcomes: Vec<Outcome>,
    ) -> Result<Applied, StoredError> {
        let had_pages = !turn.is_empty();
        if let Some(Outcome::Appended(number)) = call.append_at.map(|at| &outcomes[at]) {
            let number = *number;
            let mut seen = self.seen();
            if number == *seen + 1 {
                *seen = number;
            }
            drop(seen);
            if turn.trim.take().is_some() {
                turn.trimmed = number;
            }
            if number > ENTRIES_KEPT && number >= turn.trimmed + TRIM_STEP {
                turn.trim = Some(number - ENTRIES_KEPT);
            }
        }
        if let Some(pending) = &call.pending {
            self.finish(pending)?;
        }
        if had_pages {
            self.is_in_pages(turn);
        }
        let mut change: Vec<Outcome> = outcomes.drain(..).skip(call.change_at).collect();
        let rest = change.split_off(changes);
        if let [entries @ Outcome::Entries { .. }, Outcome::Value(pending), ..] = &rest[..] {
            self.apply_entries(entries, pending.clone())?;
        }
        Ok(Applied::Done(change))
    }

    /// Records that everything that was collected is released.
    fn is_in_pages(&self, turn: &mut Turn) {
        *turn = Turn { release: turn.release + 1, trimmed: turn.trimmed, trim: turn.trim, ..Turn::default() };
        self.copies.settled();
    }

    fn acquiring(&self) -> [Operation; 2] {
        let region = self.who.region;
        [
            Operation::Entries { log: keys::log(region), after: *self.seen(), count: ENTRIES_READ_MAX as u32 },
            Operation::Get { key: keys::pending(region), range: None },
        ]
    }

    /// Handles what an acquire found. The caller holds the turn, or every collected change is in the store.
    fn apply_entries(&self, entries: &Outcome, pending: Option<Vec<u8>>) -> Result<(), StoredError> {
        // This comes first: a copy that is fetched after its notice was handled must contain what the notice is about.
        self.help(pending)?;
        let Outcome::Entries { last, first, entries } = entries else { return Ok(()) };
        let mut seen = self.seen();
        if *last <= *seen {
            return Ok(());
        }
        let reached = entries.last().map_or(0, |entry| entry.sequence);
        let mut notices = Vec::new();
        if *first > *seen + 1 || reached < *last {
            notices.push(Notice::Everything);
        } else {
            for entry in entries.iter().filter(|entry| entry.sequence > *seen) {
                let read = LogEntry::decode(&entry.bytes).map_err(|reason| self.broken(reason))?;
                if read.member != self.who.member {
                    notices.push(read.notice);
                }
            }
        }
        if !notices.is_empty() {
            self.copies.apply_notices(&notices)?;
        }
        *seen = *last;
        Ok(())
    }

    /// Completes another process's committed release that is not in the pages yet, after giving that process time to
    /// continue.
    fn help(&self, found: Option<Vec<u8>>) -> Result<(), StoredError> {
        let Some(found) = found else { return Ok(()) };
        let timeout = match self.limits.atomic {
            Atomic::Call => RELEASE.time(),
            Atomic::Control => self.who.lease,
        };
        let nothing = [keys::nothing_pending(self.who.region)];
        match self.store.apply_when(&nothing, None, Instant::now() + timeout)? {
            Applied::Refused(refused, _) if refused.found.as_ref() == Some(&found) => self.finish(&found),
            // That release is finished. If there is another one, it is newer than what the caller needs.
            _ => Ok(()),
        }
    }

    /// Writes a committed release into the pages, and clears it. Any process may do this, and several may at once.
    fn finish(&self, found: &[u8]) -> Result<(), StoredError> {
        let region = self.who.region;
        let pending = Pending::decode(found).map_err(|reason| self.broken(reason))?;
        let stands = Guard { key: keys::pending(region), expect: Expect::Value(found.to_vec()) };
        for redo_records in pending.redo_records.chunks(RECORDS_AT_ONCE) {
            let named: Vec<Key> =
                redo_records.iter().map(|redo_record| keys::redo_record(region, *redo_record)).collect();
            let mut patches = Vec::new();
            for value in self.store.get_many(&named)? {
                // A process that removes a redo record has finished the release before.
                let Some(value) = value else { return self.is_over(&stands) };
                patches.extend(entry::decode_redo_record(&value).map_err(|reason| self.broken(reason))?);
            }
            if !self.apply_patches(&patches, &stands)? {
                return Ok(());
            }
        }
        if !self.apply_patches(&pending.patches, &stands)? {
            return Ok(());
        }
        let over = Operation::CompareAndSwap {
            key: keys::pending(region),
            expect: Expect::Value(found.to_vec()),
            change: Change::Delete,
        };
        self.store.apply(&[over], None)?;
        self.remove_redo_records(&pending.redo_records)
    }

    fn is_over(&self, stands: &Guard) -> Result<(), StoredError> {
        match self.store.apply(&[Operation::Get { key: stands.key.clone(), range: None }], Some(stands))? {
            Applied::Fenced { .. } => Ok(()),
            _ => Err(self.broken("a redo record of a committed release is missing")),
        }
    }

    /// Applies patches; returns whether the release was still pending when everything was written.
    fn apply_patches(&self, patches: &[Patch], stands: &Guard) -> Result<bool, StoredError> {
        let operations: Vec<Operation> = patches.iter().flat_map(|patch| puts(self.who.region, patch)).collect();
        for part in cut(&operations, self.limits.operations_max, self.limits.call_bytes_max - stands_bytes(stands)) {
            if let Applied::Fenced { .. } = self.store.apply(part, Some(stands))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn remove_redo_records(&self, redo_records: &[u64]) -> Result<(), StoredError> {
        let delete = |redo_record: &u64| Operation::Change {
            key: keys::redo_record(self.who.region, *redo_record),
            change: Change::Delete,
        };
        for part in redo_records.chunks(self.limits.operations_max.min(512)) {
            self.store.apply(&part.iter().map(delete).collect::<Vec<_>>(), None)?;
        }
        Ok(())
    }

    pub(crate) fn fenced(&self) -> StoredError {
        let (region, store) = (self.who.name.clone(), self.store.name().to_owned());
        StoredError::Fenced { region, store, member: self.who.member }
    }

    fn broken(&self, reason: &str) -> StoredError {
        StoredError::Region {
            region: self.who.name.clone(),
            store: self.store.name().to_owned(),
            reason: reason.to_owned(),
            next: "remove the region with `trellis store rm`",
        }
    }
}

/// The call that commits a release.
struct Commit {
    operations: Vec<Operation>,
    /// The step that refuses while a release is pending.
    pending_step: Option<usize>,
    append_at: Option<usize>,
    /// The index of the caller's first step.
    change_at: usize,
    /// The pending release after the call.
    pending: Option<Vec<u8>>,
}

/// The steps that put a patch into its page.
pub(crate) fn puts(region: u32, patch: &Patch) -> impl Iterator<Item = Operation> + '_ {
    patch.runs.iter().map(move |(offset, bytes)| Operation::Change {
        key: Key::page(region, patch.page),
        change: Change::PutRange { offset: u32::from(*offset), bytes: bytes.clone() },
    })
}

/// Divides steps into calls within the limits.
pub(crate) fn cut(
    mut operations: &[Operation],
    operations_max: usize,
    bytes_max: usize,
) -> impl Iterator<Item = &[Operation]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fitting = operations.iter().take(operations_max).take_while(|operation| {
            bytes += carried_bytes(operation) + STEP_BYTES;
            bytes <= bytes_max
        });
        let count = fitting.count().max(1).min(operations.len());
        let (part, rest) = operations.split_at(count);
        operations = rest;
        (!part.is_empty()).then_some(part)
    })
}

/// The number of bytes that a step writes.
fn carried_bytes(operation: &Operation) -> usize {
    match operation {
        Operation::Change { change: Change::PutRange { bytes, .. } | Change::Put(bytes), .. } => bytes.len(),
        _ => 0,
    }
}

fn stands_bytes(stands: &Guard) -> usize {
    let Expect::Value(bytes) = &stands.expect else { return STEP_BYTES };
    bytes.len() + STEP_BYTES
}

impl Shared for Coherence {
    fn store(&self) -> &dyn Store {
        &*self.store
    }

    fn region(&self) -> u32 {
        self.who.region
    }

    fn member(&self) -> u64 {
        self.who.member
    }

    fn release(&self, change: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoredError> {
        self.release_in_turn(&mut self.turn(), change, guard, false)
    }

    fn acquire(
        &self,
        change: &[Operation],
        guard: Option<&Guard>,
        deadline: Option<Instant>,
    ) -> Result<Applied, StoredError> {
        let mut operations = change.to_vec();
        operations.extend(self.acquiring());
        let applied = match deadline {
            Some(deadline) => self.store.apply_when(&operations, guard, deadline)?,
            None => self.store.apply(&operations, guard)?,
        };
        match applied {
            Applied::Done(mut outcomes) => {
                let found = outcomes.split_off(change.len());
                if let [entries @ Outcome::Entries { last, .. }, Outcome::Value(pending)] = &found[..]
                    && (pending.is_some() || *last > *self.seen())
                {
                    // A release of another thread comes first: its changes are in no page of the store yet.
                    let _turn = self.turn();
                    self.apply_entries(entries, pending.clone())?;
                }
                Ok(Applied::Done(outcomes))
            }
            Applied::Refused(refused, mut outcomes) => {
                outcomes.truncate(change.len());
                Ok(Applied::Refused(refused, outcomes))
            }
            fenced => Ok(fenced),
        }
    }

    fn exchange(&self, change: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoredError> {
        self.release_in_turn(&mut self.turn(), change, guard, true)
    }
}

/// The copies of a process that keeps none.
pub struct NoCopies;

impl Copies for NoCopies {
    fn collect(&self, _bytes_max: usize) -> Result<Collected, StoredError> {
        Ok(Collected::default())
    }

    fn staged(&self, _redo_record: u64, _patches: &[Arc<Patch>]) {}

    fn next_redo_record(&self) -> u64 {
        0
    }

    fn settled(&self) {}

    fn apply_notices(&self, _notices: &[Notice]) -> Result<(), StoredError> {
        Ok(())
    }
}

#[cfg(test)]
impl Coherence {
    /// Does what a writer does that resumes after other processes have finished its release.
    pub(super) fn apply_patches_for_test(&self, pending: &Pending) -> Result<bool, StoredError> {
        let stands = Guard { key: keys::pending(self.who.region), expect: Expect::Value(pending.encode()) };
        self.apply_patches(&pending.patches, &stands)
    }
}
