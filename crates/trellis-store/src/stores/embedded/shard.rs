//! One shard of the map: values, logs, and their waiters.
//!
//! Every method is called with the shard locked. Promises: a step happens entirely or, if it refuses, not at all.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use super::watch::{Waiter, Watch};
use super::{Names, locked};
use crate::key::{Key, Kind};
use crate::operation::{Change, Entry, Operation, Outcome, Refused};
use crate::steps;

/// One shard of the map.
#[derive(Default)]
pub(super) struct Shard {
    values: HashMap<Key, Vec<u8>, BuildHasherDefault<Mix>>,
    logs: HashMap<Key, Log, BuildHasherDefault<Mix>>,
    watches: Vec<Watch>,
}

/// A log: the newest entries, oldest first.
#[derive(Default)]
pub(super) struct Log {
    last: u64,
    entries: VecDeque<Vec<u8>>,
}

/// How to undo a step.
pub(super) enum Undo {
    /// Restore this value.
    Value(Key, Option<Vec<u8>>),
    /// Remove the last entry of a log, and the log itself if that was its first entry.
    Append(Key),
    /// Restore these as the oldest entries of a log.
    Trim(Key, Vec<Vec<u8>>),
    /// Restore a log.
    Log(Key, Log),
}

impl Undo {
    pub(super) fn key(&self) -> &Key {
        match self {
            Undo::Value(key, _) | Undo::Append(key) | Undo::Trim(key, _) | Undo::Log(key, _) => key,
        }
    }
}

impl Shard {
    /// The value of a key.
    pub(super) fn value(&self, key: &Key) -> Option<&[u8]> {
        self.values.get(key).map(Vec::as_slice)
    }

    /// Carries out a step and, if asked to, records how to undo it. A step that refuses has no effect.
    pub(super) fn step(
        &mut self,
        names: &Names,
        operation: &Operation,
        undo: Option<&mut Vec<Undo>>,
    ) -> Option<Outcome> {
        match operation {
            Operation::Get { key, range } => {
                Some(Outcome::Value(self.value(key).map(|value| steps::part(value, *range).to_vec())))
            }
            Operation::Change { key, change } => {
                self.change(names, key, change, undo);
                Some(Outcome::Changed)
            }
            Operation::CompareAndSwap { key, expect, change } => {
                if !steps::holds(expect, self.value(key)) {
                    return None;
                }
                self.change(names, key, change, undo);
                Some(Outcome::Changed)
            }
            Operation::Add { key, offset, width, delta, bounds } => {
                let sum = steps::add(self.value(key), *offset, *width, *delta, *bounds)?;
                self.remember(key, undo);
                steps::put_range(self.slot(names, key), *offset, &sum.bytes[..*width as usize]);
                Some(Outcome::Added(sum.before))
            }
            Operation::Append { log: key, bytes } => {
                let log = self.logs.entry(key.clone()).or_default();
                log.last += 1;
                log.entries.push_back(bytes.clone());
                let last = log.last;
                if let Some(undo) = undo {
                    undo.push(Undo::Append(key.clone()));
                }
                Some(Outcome::Appended(last))
            }
            Operation::Entries { log, after, count } => Some(self.entries(log, *after, *count)),
            Operation::Trim { log: key, upto } => {
                let gone = self.logs.get_mut(key).map(|log| log.trim(*upto)).unwrap_or_default();
                if let Some(undo) = undo {
                    undo.push(Undo::Trim(key.clone(), gone));
                }
                Some(Outcome::Trimmed)
            }
        }
    }

    /// Undoes a step. Steps are undone in reverse order.
    pub(super) fn undo(&mut self, names: &Names, undo: Undo) {
        match undo {
            Undo::Value(key, Some(value)) => *self.slot(names, &key) = value,
            Undo::Value(key, None) => self.remove(names, &key),
            Undo::Append(key) => {
                let Some(log) = self.logs.get_mut(&key) else { return };
                log.entries.pop_back();
                log.last -= 1;
                if log.last == 0 {
                    self.logs.remove(&key);
                }
            }
            Undo::Trim(key, gone) => {
                let Some(log) = self.logs.get_mut(&key) else { return };
                gone.into_iter().rev().for_each(|entry| log.entries.push_front(entry));
            }
            Undo::Log(key, log) => drop(self.logs.insert(key, log)),
        }
    }

    /// Which step refused, and what it found.
    pub(super) fn refused(&self, step: usize, operation: &Operation) -> Refused {
        Refused { step, found: self.value(operation.key()).map(<[u8]>::to_vec) }
    }

    /// Wakes the threads that wait for a key that a step has changed.
    pub(super) fn changed(&mut self, operation: &Operation) {
        if self.watches.is_empty() || operation.only_reads() {
            return;
        }
        self.watches.retain(|watch| {
            let stays = !watch.is_for(operation.key());
            if !stays {
                watch.wake();
            }
            stays
        });
    }

    /// Registers a thread to be woken when a key changes.
    pub(super) fn watch(&mut self, key: &Key, waiter: &Arc<Waiter>) {
        self.watches.push(Watch::new(key, waiter));
    }

    /// Removes a thread's registrations.
    pub(super) fn forget(&mut self, waiter: &Arc<Waiter>) {
        self.watches.retain(|watch| !watch.is_of(waiter));
    }

    /// The numbers of the keys of one kind, in no order.
    pub(super) fn numbers(&self, region: u32, kind: Kind, from: u64, into: &mut Vec<u64>) {
        let wanted = |key: &&Key| key.region() == region && key.kind() == kind && key.number() >= from;
        match kind {
            Kind::Log => into.extend(self.logs.keys().filter(wanted).map(Key::number)),
            _ => into.extend(self.values.keys().filter(wanted).map(Key::number)),
        }
    }

    fn change(&mut self, names: &Names, key: &Key, change: &Change, undo: Option<&mut Vec<Undo>>) {
        if key.kind() == Kind::Log {
            // Deletion is the only change of a log as a whole.
            if let (Some(log), Some(undo)) = (self.logs.remove(key), undo) {
                undo.push(Undo::Log(key.clone(), log));
            }
            return;
        }
        self.remember(key, undo);
        match change {
            Change::Put(bytes) => bytes.clone_into(self.slot(names, key)),
            Change::PutRange { offset, bytes } => steps::put_range(self.slot(names, key), *offset, bytes),
            Change::Delete => self.remove(names, key),
        }
    }

    fn remember(&self, key: &Key, undo: Option<&mut Vec<Undo>>) {
        if let Some(undo) = undo {
            undo.push(Undo::Value(key.clone(), self.values.get(key).cloned()));
        }
    }

    /// The value of a key, created empty if there was none.
    fn slot(&mut self, names: &Names, key: &Key) -> &mut Vec<u8> {
        self.values.entry(key.clone()).or_insert_with(|| {
            if let Some(name) = key.shared_name() {
                locked(names).insert((key.region(), name));
            }
            Vec::new()
        })
    }

    fn remove(&mut self, names: &Names, key: &Key) {
        if self.values.remove(key).is_some()
            && let Some(name) = key.shared_name()
        {
            locked(names).remove(&(key.region(), name));
        }
    }

    fn entries(&self, log: &Key, after: u64, count: u32) -> Outcome {
        let Some(log) = self.logs.get(log) else {
            return Outcome::Entries { last: 0, first: 1, entries: Vec::new() };
        };
        let first = log.first();
        let skipped = after.saturating_add(1).saturating_sub(first).min(log.entries.len() as u64);
        let kept = log.entries.iter().skip(skipped as usize).take(count as usize);
        let entries = (first + skipped..).zip(kept).map(|(sequence, bytes)| Entry { sequence, bytes: bytes.clone() });
        Outcome::Entries { last: log.last, first, entries: entries.collect() }
    }
}

impl Log {
    fn first(&self) -> u64 {
        self.last + 1 - self.entries.len() as u64
    }

    fn trim(&mut self, upto: u64) -> Vec<Vec<u8>> {
        let gone = upto.saturating_add(1).saturating_sub(self.first()).min(self.entries.len() as u64);
        self.entries.drain(..gone as usize).collect()
    }
}

/// A hash of a key, constant within this process.
pub(super) fn hash(key: &Key) -> u64 {
    let mut mix = Mix::default();
    key.hash(&mut mix);
    mix.finish()
}

/// Multiplies and folds: a few cycles for a key of numbers. Clients of the front end choose names and could make them
/// collide. That is not defended against, because a client that may write to a store can also fill it.
#[derive(Default)]
pub(super) struct Mix(u64);

impl Mix {
    fn take(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut number = [0; 8];
            number[..chunk.len()].copy_from_slice(chunk);
            self.take(u64::from_le_bytes(number) ^ (chunk.len() as u64) << 56);
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.take(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.take(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.take(number);
    }

    fn write_isize(&mut self, number: isize) {
        self.take(number as u64);
    }

    fn write_usize(&mut self, number: usize) {
        self.take(number as u64);
    }
}
