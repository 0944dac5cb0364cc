//! Writes of more than one datagram: which of their bytes have come, and where they wait.
//!
//! Bytes wait in numbered *slots* of [`WRITE_BYTES_MAX`] bytes each, which belong to the caller that carries out effects.
//! This module knows which request has which slot and what is missing. A request is identified by its client and its id;
//! all its datagrams have the same destination and the same total.
//!
//! Promises: a write is carried out when its last missing byte has come, and must never be carried out before. A repeated
//! datagram changes nothing. A write that was carried out is remembered while there is room, so that a late duplicate is
//! answered and does not start it again. The number of slots is bounded, in total and per host. A write that needs another
//! slot takes that of the oldest write that was carried out, or else that of one that has gone too long without a datagram;
//! otherwise it is answered BUSY. A write that was handed to the lease server stays until that has decided.

use super::sessions::Client;
use crate::Nanoseconds;
use crate::wire::address::{Address, Host};
use crate::wire::datagram::Extent;
#[cfg(doc)]
use crate::wire::datagram::WRITE_BYTES_MAX;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// The largest number of separate byte ranges of a write before it is whole; datagrams in order need one.
pub const RUNS_MAX: usize = 64;

/// Bounds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StagingLimits {
    /// The number of slots.
    pub slots: usize,
    /// The largest number of slots of one host.
    pub slots_per_host_max: usize,
    /// A write that goes this long without a datagram gives its slot to another one.
    pub silence_max: Nanoseconds,
}

/// A request: its sender and its id.
pub(super) type Key = (Client, u64);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Staging {
    slots: Vec<Option<Write>>,
    by_key: BTreeMap<Key, usize>,
    limits: StagingLimits,
    /// Writes that gave up their slot before they were whole.
    pub(super) dropped: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Write {
    key: Key,
    destination: Address,
    total: u32,
    /// The bytes that came: ranges as `start, end`, ascending and separate.
    runs: Vec<(u32, u32)>,
    heard: Nanoseconds,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Filling,
    /// A decision about it is pending.
    Handed,
    Done,
}

/// The result for the bytes of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// They belong in this slot, and others are missing; this many came.
    Missing(u32, u32),
    /// They belong in this slot, and now all bytes are there.
    Whole(u32),
    /// All of it was carried out before.
    Done,
    /// A decision about it is pending.
    Handed,
    /// There is no slot.
    Full,
    /// The other datagrams of this request said something else, or there are too many gaps between the bytes that came.
    Other,
}

impl Staging {
    pub(super) fn new(limits: StagingLimits) -> Staging {
        Staging { slots: vec![None; limits.slots], by_key: BTreeMap::new(), limits, dropped: 0 }
    }

    /// Takes the bytes of one datagram of a write.
    pub(super) fn take(&mut self, now: Nanoseconds, key: Key, destination: Address, extent: &Extent) -> Taken {
        let known = self.by_key.get(&key).copied();
        let Some(slot) = known.or_else(|| self.find(now, key.0.host)) else { return Taken::Full };
        let write = match &mut self.slots[slot] {
            Some(write) if known.is_some() => write,
            free => {
                self.by_key.insert(key, slot);
                let runs = Vec::new();
                free.insert(Write { key, destination, total: extent.total, runs, heard: now, phase: Phase::Filling })
            }
        };
        if write.destination != destination || write.total != extent.total {
            return Taken::Other;
        }
        write.heard = write.heard.max(now);
        match write.phase {
            Phase::Done => return Taken::Done,
            Phase::Handed => return Taken::Handed,
            Phase::Filling => {}
        }
        if !write.add(extent.position, extent.position + extent.bytes) {
            return Taken::Other;
        }
        let received = write.received();
        if received == write.total { Taken::Whole(slot as u32) } else { Taken::Missing(slot as u32, received) }
    }

    /// All of it was carried out: the bytes are no longer needed.
    pub(super) fn done(&mut self, key: Key) {
        self.set(key, Phase::Done);
    }

    /// A decision about it is pending from now on.
    pub(super) fn hand(&mut self, key: Key) {
        self.set(key, Phase::Handed);
    }

    /// Whether this slot has the write, and a decision about it is pending.
    pub(super) fn is_handed(&self, key: Key, slot: u32) -> bool {
        let write = self.slots.get(slot as usize).and_then(Option::as_ref);
        write.is_some_and(|write| write.key == key && write.phase == Phase::Handed)
    }

    /// The write is forgotten.
    pub(super) fn free(&mut self, key: Key) {
        if let Some(slot) = self.by_key.remove(&key) {
            self.slots[slot] = None;
        }
    }

    /// The write is forgotten, unless a decision about it is pending.
    pub(super) fn give_up(&mut self, key: Key) {
        let slot = self.by_key.get(&key).and_then(|slot| self.slots[*slot].as_ref());
        if slot.is_some_and(|write| write.phase != Phase::Handed) {
            self.free(key);
        }
    }

    /// Frees the writes of a client that is gone, except those that were handed on.
    pub(super) fn free_all(&mut self, client: Client) {
        self.clear(|write| write.key.0 == client);
    }

    /// Frees every write that has gone too long without a datagram.
    pub(super) fn free_silent(&mut self, now: Nanoseconds) {
        let silence_max = self.limits.silence_max;
        self.clear(|write| now.saturating_sub(write.heard) > silence_max);
    }

    /// Slots that are in use.
    pub(super) fn count(&self) -> usize {
        self.by_key.len()
    }

    fn clear(&mut self, is_over: impl Fn(&Write) -> bool) {
        for slot in &mut self.slots {
            if let Some(write) = slot.take_if(|write| write.phase != Phase::Handed && is_over(write)) {
                self.by_key.remove(&write.key);
                self.dropped += u64::from(write.phase == Phase::Filling);
            }
        }
    }

    fn set(&mut self, key: Key, phase: Phase) {
        if let Some(slot) = self.by_key.get(&key)
            && let Some(write) = &mut self.slots[*slot]
        {
            write.phase = phase;
        }
    }

    /// Finds a slot for another write of this host: it is empty afterwards.
    fn find(&mut self, now: Nanoseconds, host: Host) -> Option<usize> {
        let is_own = |write: &Write| write.key.0.host == host;
        let own = self.slots.iter().flatten().filter(|write| is_own(write)).count();
        let is_bounded = own >= self.limits.slots_per_host_max;
        if !is_bounded && let Some(slot) = self.slots.iter().position(Option::is_none) {
            return Some(slot);
        }
        let silence_max = self.limits.silence_max;
        let may_go = |write: &Write| match write.phase {
            Phase::Done => Some((0, write.heard)),
            Phase::Filling if now.saturating_sub(write.heard) > silence_max => Some((1, write.heard)),
            _ => None,
        };
        let candidates = self.slots.iter().enumerate().filter_map(|(slot, write)| {
            let write = write.as_ref().filter(|write| !is_bounded || is_own(write))?;
            may_go(write).map(|order| (order, slot))
        });
        let (_, slot) = candidates.min()?;
        let write = self.slots[slot].take()?;
        self.by_key.remove(&write.key);
        self.dropped += u64::from(write.phase == Phase::Filling);
        Some(slot)
    }
}

impl Write {
    fn received(&self) -> u32 {
        self.runs.iter().map(|(start, end)| end - start).sum()
    }

    /// Adds a range and merges it with its neighbours. Returns false, and changes nothing, if there would be too many.
    fn add(&mut self, start: u32, end: u32) -> bool {
        let first = self.runs.partition_point(|run| run.1 < start);
        let after = self.runs.partition_point(|run| run.0 <= end);
        if first == after && self.runs.len() >= RUNS_MAX {
            return false;
        }
        let met = &self.runs[first..after];
        let start = met.first().map_or(start, |run| run.0.min(start));
        let end = met.last().map_or(end, |run| run.1.max(end));
        self.runs.splice(first..after, [(start, end)]);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::address::Incarnation;

    const LIMITS: StagingLimits = StagingLimits { slots: 3, slots_per_host_max: 2, silence_max: 100 };
    const PLACE: Address = Address([1; 16]);

    fn key(host: u16, request: u64) -> Key {
        (Client { host: Host(host), incarnation: Incarnation::new(1) }, request)
    }

    fn take(staging: &mut Staging, now: u64, key: Key, position: u32, bytes: u32) -> Taken {
        staging.take(now, key, PLACE, &Extent::part(position, bytes, 100))
    }

    #[test]
    fn a_write_is_whole_with_its_last_byte_in_any_order() {
        let mut staging = Staging::new(LIMITS);
        let a = key(1, 1);
        assert_eq!(take(&mut staging, 0, a, 60, 40), Taken::Missing(0, 40), "the last comes first");
        assert_eq!(take(&mut staging, 0, a, 0, 20), Taken::Missing(0, 60));
        assert_eq!(take(&mut staging, 0, a, 0, 20), Taken::Missing(0, 60), "twice");
        assert_eq!(take(&mut staging, 0, a, 10, 40), Taken::Missing(0, 90), "an overlap counts once");
        assert_eq!(take(&mut staging, 0, a, 50, 10), Taken::Whole(0));
        staging.done(a);
        assert_eq!(take(&mut staging, 0, a, 50, 10), Taken::Done);
        staging.free(a);
        assert_eq!(staging.count(), 0);
    }

    #[test]
    fn datagrams_that_contradict_each_other_are_refused() {
        let mut staging = Staging::new(LIMITS);
        let a = key(1, 1);
        take(&mut staging, 0, a, 0, 10);
        assert_eq!(staging.take(0, a, Address([2; 16]), &Extent::part(10, 10, 100)), Taken::Other);
        assert_eq!(staging.take(0, a, PLACE, &Extent::part(10, 10, 99)), Taken::Other);
        assert_eq!(take(&mut staging, 0, a, 10, 10), Taken::Missing(0, 20));
    }

    #[test]
    fn holes_are_bounded() {
        let mut staging = Staging::new(LIMITS);
        let a = key(1, 1);
        let total = 4 * RUNS_MAX as u32;
        for index in 0..RUNS_MAX as u32 {
            let taken = staging.take(0, a, PLACE, &Extent::part(2 * index, 1, total));
            assert_eq!(taken, Taken::Missing(0, index + 1));
        }
        assert_eq!(staging.take(0, a, PLACE, &Extent::part(total - 1, 1, total)), Taken::Other);
        let filled = staging.take(0, a, PLACE, &Extent::part(0, 2 * RUNS_MAX as u32, total));
        assert_eq!(filled, Taken::Missing(0, 2 * RUNS_MAX as u32), "what joins is taken");
        assert_eq!(staging.slots[0].as_ref().map(|write| write.runs.len()), Some(1));
    }

    #[test]
    fn slots_are_bounded_and_the_done_and_the_silent_make_room() {
        let mut staging = Staging::new(LIMITS);
        for (now, host, request) in [(0, 1, 1), (10, 1, 2)] {
            assert!(matches!(take(&mut staging, now, key(host, request), 0, 1), Taken::Missing(..)));
        }
        assert_eq!(take(&mut staging, 20, key(1, 3), 0, 1), Taken::Full, "two of one host");
        assert_eq!(take(&mut staging, 20, key(2, 1), 0, 1), Taken::Missing(2, 1));
        assert_eq!(take(&mut staging, 20, key(3, 1), 0, 1), Taken::Full, "three in all");
        staging.done(key(1, 2));
        assert_eq!(take(&mut staging, 30, key(3, 1), 0, 1), Taken::Missing(1, 1), "what was done makes room");
        assert_eq!(take(&mut staging, 100, key(4, 1), 0, 1), Taken::Full);
        assert_eq!(take(&mut staging, 101, key(4, 1), 0, 1), Taken::Missing(0, 1), "the oldest is silent");
        assert_eq!((staging.count(), staging.dropped), (3, 1));
        assert_eq!(take(&mut staging, 101, key(1, 1), 1, 1), Taken::Full, "it would have to begin again");
    }

    #[test]
    fn what_was_handed_on_stays_until_it_is_decided() {
        let mut staging = Staging::new(LIMITS);
        let a = key(1, 1);
        assert_eq!(take(&mut staging, 0, a, 0, 100), Taken::Whole(0));
        staging.hand(a);
        assert_eq!(take(&mut staging, 0, a, 0, 100), Taken::Handed);
        assert!(staging.is_handed(a, 0) && !staging.is_handed(a, 1) && !staging.is_handed(key(1, 2), 0));
        staging.free_silent(1_000_000);
        staging.free_all(a.0);
        staging.give_up(a);
        assert!(staging.is_handed(a, 0));
        take(&mut staging, 0, key(1, 2), 0, 1);
        staging.free_all(a.0);
        assert_eq!((staging.count(), staging.dropped), (1, 1));
        staging.free(a);
        assert!(!staging.is_handed(a, 0));
    }
}
