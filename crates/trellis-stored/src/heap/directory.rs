//! The directory of a shared heap: which process owns which part. It is one value in the store, which compare-and-swap
//! changes.
//!
//! The heap is divided into segments of [`SEGMENT_PAGES`]. A process takes several at once, and allocates blocks from
//! them without a call. Promises: no segment belongs to two processes. A change is one call of the store unless another
//! process changed the directory meanwhile, and each repetition means that another process made progress.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use trellis_store::{Applied, Change, Expect, Guard, Key, Kind, Operation, Outcome, Store, StoreError};

use super::{HeapError, Held, lock};
use crate::synchronisation::member;

/// The number of pages of a segment: 1 MiB.
pub(super) const SEGMENT_PAGES: u32 = 256;
/// The maximum number of attempts of a change while other processes change the directory, too.
pub(super) const ATTEMPTS_MAX: u32 = 10_000;
/// The first byte of the value.
const VERSION: u8 = 1;
/// The directory's number among the keys of its kind; [`description`] uses the others.
const DIRECTORY: u64 = 0;
/// The number that a heap without free adds to.
pub(super) const BUMP: u64 = 1;
/// Added to the member's number among the logs of a region; log number 0 is that of the releases.
const MAILBOX: u64 = 1 << 62;
const DESCRIPTION: u64 = 1 << 61;

/// The log to which other processes append the freed blocks of a member.
pub(super) fn mailbox(region: u32, member: u64) -> Key {
    Key::new(region, Kind::Log, MAILBOX | member)
}

/// The key of a segment's description.
pub(super) fn description(region: u32, segment: u32) -> Key {
    Key::new(region, Kind::Heap, DESCRIPTION | u64::from(segment))
}

/// The content of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The number of segments of the heap.
    pub(super) segments: u32,
    /// Segments from this one on were never owned.
    pub(super) untouched: u32,
    /// Free segments that were owned before: first and one past the last, ascending, never adjacent.
    free: Vec<Range<u32>>,
    /// Owned segments with their owners, ascending; those of one owner are never adjacent.
    owned: Vec<(Range<u32>, u64)>,
}

impl Record {
    fn new(segments: u32) -> Record {
        Record { segments, untouched: 0, free: Vec::new(), owned: Vec::new() }
    }

    /// Takes contiguous segments; returns them, and whether they were never owned before.
    pub(super) fn take(&mut self, count: u32, member: u64) -> Option<(Range<u32>, bool)> {
        let fits = |run: &&Range<u32>| run.len() >= count as usize;
        if let Some(best) = self.free.iter().filter(fits).min_by_key(|run| run.len()).cloned() {
            let taken = best.start..best.start + count;
            self.free.retain(|run| run.start != best.start);
            self.put_free(taken.end..best.end);
            self.put_owned(taken.clone(), member);
            return Some((taken, false));
        }
        let end = self.untouched.checked_add(count).filter(|&end| end <= self.segments)?;
        let taken = self.untouched..end;
        self.untouched = end;
        self.put_owned(taken.clone(), member);
        Some((taken, true))
    }

    /// Returns segments from their owner.
    pub(super) fn give_back(&mut self, segments: Range<u32>, member: u64) {
        let mut owned = Vec::new();
        for (run, owner) in std::mem::take(&mut self.owned) {
            if owner != member || run.end <= segments.start || segments.end <= run.start {
                owned.push((run, owner));
                continue;
            }
            owned.extend([(run.start..segments.start, owner), (segments.end..run.end, owner)]);
            self.put_free(run.start.max(segments.start)..run.end.min(segments.end));
        }
        self.owned = owned.into_iter().filter(|(run, _)| !run.is_empty()).collect();
    }

    /// The segments of one member.
    pub(super) fn runs_of(&self, member: u64) -> Vec<Range<u32>> {
        self.owned.iter().filter(|(_, owner)| *owner == member).map(|(run, _)| run.clone()).collect()
    }

    /// Passes all segments of one member to another, and returns them.
    pub(super) fn hand_over(&mut self, from: u64, to: u64) -> Vec<Range<u32>> {
        let moved = self.runs_of(from);
        self.owned.retain(|(_, owner)| *owner != from);
        moved.iter().for_each(|run| self.put_owned(run.clone(), to));
        moved
    }

    pub(super) fn owner_of(&self, segment: u32) -> Option<u64> {
        self.owned.iter().find(|(run, _)| run.contains(&segment)).map(|&(_, owner)| owner)
    }

    pub(super) fn owners(&self) -> Vec<u64> {
        let mut owners: Vec<u64> = self.owned.iter().map(|&(_, owner)| owner).collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    fn put_free(&mut self, run: Range<u32>) {
        if run.is_empty() {
            return;
        }
        let at = self.free.partition_point(|other| other.start < run.start);
        self.free.insert(at, run);
        self.free.dedup_by(|next, before| {
            let joins = before.end == next.start;
            before.end = if joins { next.end } else { before.end };
            joins
        });
    }

    fn put_owned(&mut self, run: Range<u32>, member: u64) {
        let at = self.owned.partition_point(|(other, _)| other.start < run.start);
        self.owned.insert(at, (run, member));
        self.owned.dedup_by(|next, before| {
            let joins = before.1 == next.1 && before.0.end == next.0.start;
            before.0.end = if joins { next.0.end } else { before.0.end };
            joins
        });
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        let numbers = [self.segments, self.untouched, self.free.len() as u32];
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        for run in &self.free {
            bytes.extend(run.start.to_le_bytes());
            bytes.extend(run.end.to_le_bytes());
        }
        for (run, member) in &self.owned {
            bytes.extend(run.start.to_le_bytes());
            bytes.extend(run.end.to_le_bytes());
            bytes.extend(member.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Record> {
        let (&version, rest) = bytes.split_first()?;
        let (head, mut rest) = rest.split_at_checked(12)?;
        let number = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let mut record = Record::new(number(head, 0));
        record.untouched = number(head, 4);
        for _ in 0..number(head, 8) {
            let (run, after) = rest.split_at_checked(8)?;
            record.free.push(number(run, 0)..number(run, 4));
            rest = after;
        }
        let owned = rest.chunks_exact(16);
        let is_whole = owned.remainder().is_empty();
        record.owned = owned
            .map(|entry| {
                let member = u64::from_le_bytes(entry[8..].try_into().expect("eight bytes"));
                (number(entry, 0)..number(entry, 4), member)
            })
            .collect();
        (version == VERSION && is_whole).then_some(record)
    }
}

/// The directory, as this process last read it.
pub(super) struct Directory {
    store: Arc<dyn Store>,
    region: u32,
    member: u64,
    segments: u32,
    seen: Mutex<Option<Vec<u8>>>,
}

impl Directory {
    /// Makes the directory for one member. After the member is replaced, it changes nothing any more.
    pub(super) fn new(store: Arc<dyn Store>, region: u32, member: u64, segments: u32) -> Directory {
        Directory { store, region, member, segments, seen: Mutex::new(None) }
    }

    pub(super) fn key(&self) -> Key {
        Key::new(self.region, Kind::Heap, DIRECTORY)
    }

    /// The directory as it was last read, without a call.
    pub(super) fn last_seen(&self) -> Result<Record, HeapError> {
        self.read(lock(&self.seen).as_deref())
    }

    /// Reads the current directory, with one call.
    pub(super) fn look(&self) -> Result<Record, HeapError> {
        let found = self.store.get_many(&[self.key()])?.into_iter().next().flatten();
        let record = self.read(found.as_deref());
        *lock(&self.seen) = found;
        record
    }

    /// Applies control changes of the heap, unless this member was replaced.
    pub(super) fn apply(&self, operations: &[Operation]) -> Result<Applied, HeapError> {
        match self.store.apply(operations, Some(&member::guard(self.region, self.member)))? {
            Applied::Fenced { .. } => Err(self.fenced()),
            applied => Ok(applied),
        }
    }

    /// The error that this member was replaced.
    pub(super) fn fenced(&self) -> HeapError {
        HeapError::Fenced { store: self.store.name().to_owned(), member: self.member }
    }

    /// Changes the directory and makes the given other changes in the same call. If the body returns `None`, nothing is
    /// changed.
    pub(super) fn change<T>(
        &self,
        also: &[Operation],
        body: impl Fn(&mut Record) -> Option<T>,
    ) -> Result<Option<(T, Vec<Outcome>)>, HeapError> {
        for _ in 0..ATTEMPTS_MAX {
            let seen = lock(&self.seen).clone();
            let mut record = self.read(seen.as_deref())?;
            let Some(value) = body(&mut record) else {
                // The body found nothing to change, but what was read may be outdated.
                self.look()?;
                if *lock(&self.seen) == seen {
                    return Ok(None);
                }
                continue;
            };
            let expect = seen.map_or(Expect::Absent, Expect::Value);
            let encoded = record.encode();
            let change = Change::Put(encoded.clone());
            let mut operations = vec![Operation::CompareAndSwap { key: self.key(), expect, change }];
            operations.extend_from_slice(also);
            match self.apply(&operations)? {
                Applied::Done(outcomes) => {
                    *lock(&self.seen) = Some(encoded);
                    return Ok(Some((value, outcomes)));
                }
                Applied::Refused(refused, _) => *lock(&self.seen) = refused.found,
                Applied::Fenced { .. } => return Err(self.fenced()),
            }
        }
        Err(self.nonsense("the heap's directory was changed by others at every attempt"))
    }

    /// The directory as it was last read, and a guard that holds as long as it is unchanged.
    pub(super) fn last_seen_and_guard(&self) -> Result<(Record, Guard), HeapError> {
        let seen = lock(&self.seen).clone();
        let record = self.read(seen.as_deref())?;
        Ok((record, Guard { key: self.key(), expect: seen.map_or(Expect::Absent, Expect::Value) }))
    }

    pub(super) fn nonsense(&self, reason: &str) -> HeapError {
        StoreError::Protocol { store: self.store.name().to_owned(), reason: reason.to_owned() }.into()
    }

    pub(super) fn hold(&self) -> Held<'_> {
        Held::of([&self.seen])
    }

    fn read(&self, bytes: Option<&[u8]>) -> Result<Record, HeapError> {
        let Some(bytes) = bytes else { return Ok(Record::new(self.segments)) };
        let record = Record::decode(bytes).ok_or_else(|| {
            self.nonsense(
                "the heap's directory is not one of this version; remove the region, or use the version that made it",
            )
        })?;
        if record.segments != self.segments {
            let (there, here) = (record.segments, self.segments);
            return Err(HeapError::Misuse(format!(
                "the heap of this region has {there} segments, and this process gives it {here}; give every process the same \
                 size"
            )));
        }
        Ok(record)
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "a list of runs may have one")]
mod tests {
    use super::*;

    #[test]
    fn segments_are_taken_given_back_and_handed_over() {
        let mut record = Record::new(10);
        assert_eq!(record.take(3, 1), Some((0..3, true)));
        assert_eq!(record.take(2, 2), Some((3..5, true)));
        assert_eq!(record.take(4, 1), Some((5..9, true)));
        assert_eq!(record.take(2, 1), None);
        record.give_back(1..2, 1);
        record.give_back(3..5, 1);
        assert_eq!((record.owner_of(0), record.owner_of(1), record.owner_of(3)), (Some(1), None, Some(2)));
        assert_eq!(record.take(1, 2), Some((1..2, false)), "what came back goes out first");
        assert_eq!(Record::decode(&record.encode()), Some(record.clone()));
        assert_eq!(record.hand_over(2, 1), vec![1..2, 3..5]);
        assert_eq!((record.owners(), record.owned.len()), (vec![1], 1), "neighbours of one owner join");
        record.give_back(0..9, 1);
        assert_eq!((record.free.clone(), record.owned.len()), (vec![0..9], 0));
        assert_eq!(record.take(10, 3), None, "what nobody had does not join what came back");
        assert_eq!(Record::decode(&record.encode()), Some(record.clone()));
        let mut short = record.encode();
        short.pop();
        assert_eq!(Record::decode(&short), None);
    }
}
