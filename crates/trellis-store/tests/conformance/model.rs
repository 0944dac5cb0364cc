//! Compares random calls with a simple model that is independent of any store's implementation.

use std::collections::BTreeMap;

use trellis_base::Random;
use trellis_store::{Entry, Outcome};

use super::*;

pub(super) const CASES: &[Case] = &[("random calls give what a model gives", random_calls)];

/// The whole content.
#[derive(Clone, Default)]
struct Model {
    values: BTreeMap<Key, Vec<u8>>,
    logs: BTreeMap<Key, (u64, Vec<Entry>)>,
}

impl Model {
    fn apply(&mut self, operations: &[Operation], guard: Option<&Guard>) -> Applied {
        if let Some(guard) = guard
            && !self.is(&guard.key, &guard.expect)
        {
            return Applied::Fenced { found: self.values.get(&guard.key).cloned() };
        }
        let mut after = self.clone();
        let mut outcomes = Vec::new();
        for (step, operation) in operations.iter().enumerate() {
            let Some(outcome) = after.step(operation) else {
                let found = after.values.get(operation.key()).cloned();
                let mut read = |operation: &Operation| match operation.only_reads() {
                    true => self.step(operation).expect("nothing refuses a read"),
                    false => Outcome::Skipped,
                };
                return Applied::Refused(Refused { step, found }, operations.iter().map(&mut read).collect());
            };
            outcomes.push(outcome);
        }
        *self = after;
        Applied::Done(outcomes)
    }

    /// Bytes of a value; those it does not have are zero.
    fn bytes(&self, key: &Key, offset: u32, count: usize) -> Vec<u8> {
        let value = self.values.get(key).cloned().unwrap_or_default();
        (0..count).map(|place| value.get(offset as usize + place).copied().unwrap_or(0)).collect()
    }

    fn is(&self, key: &Key, expect: &Expect) -> bool {
        match expect {
            Expect::Absent => !self.values.contains_key(key),
            Expect::Value(bytes) => self.values.get(key) == Some(bytes),
            Expect::Range { offset, bytes } => self.bytes(key, *offset, bytes.len()) == *bytes,
        }
    }

    fn write(&mut self, key: &Key, offset: u32, bytes: &[u8]) {
        let value = self.values.entry(key.clone()).or_default();
        for (place, byte) in bytes.iter().enumerate() {
            let at = offset as usize + place;
            while value.len() <= at {
                value.push(0);
            }
            value[at] = *byte;
        }
    }

    fn change(&mut self, key: &Key, change: &Change) {
        match change {
            Change::Put(bytes) => drop(self.values.insert(key.clone(), bytes.clone())),
            Change::PutRange { offset, bytes } => self.write(key, *offset, bytes),
            Change::Delete => {
                self.values.remove(key);
                self.logs.remove(key);
            }
        }
    }

    fn step(&mut self, operation: &Operation) -> Option<Outcome> {
        Some(match operation {
            Operation::Get { key, range } => {
                let mut value = self.values.get(key).cloned();
                if let (Some(value), Some((offset, length))) = (&mut value, range) {
                    value.drain(..(*offset as usize).min(value.len()));
                    value.truncate(*length as usize);
                }
                Outcome::Value(value)
            }
            Operation::Change { key, change } => {
                self.change(key, change);
                Outcome::Changed
            }
            Operation::CompareAndSwap { key, expect, change } => {
                if !self.is(key, expect) {
                    return None;
                }
                self.change(key, change);
                Outcome::Changed
            }
            Operation::Add { key, offset, width, delta, bounds } => {
                let bytes = self.bytes(key, *offset, usize::from(*width));
                let (before, after) = added(&bytes, *delta);
                if bounds.is_some_and(|(least, most)| after < least || after > most) {
                    return None;
                }
                self.write(key, *offset, &after.to_le_bytes()[..usize::from(*width)]);
                Outcome::Added(before)
            }
            Operation::Append { log, bytes } => {
                let (last, entries) = self.logs.entry(log.clone()).or_default();
                *last += 1;
                entries.push(Entry { sequence: *last, bytes: bytes.clone() });
                Outcome::Appended(*last)
            }
            Operation::Entries { log, after, count } => {
                let (last, kept) = self.logs.get(log).cloned().unwrap_or_default();
                let first = kept.first().map_or(last + 1, |entry| entry.sequence);
                let asked = kept.into_iter().filter(|entry| entry.sequence > *after).take(*count as usize);
                Outcome::Entries { last, first, entries: asked.collect() }
            }
            Operation::Trim { log, upto } => {
                if let Some((_, entries)) = self.logs.get_mut(log) {
                    entries.retain(|entry| entry.sequence > *upto);
                }
                Outcome::Trimmed
            }
        })
    }
}

/// A little-endian signed number before and after an addition, by plain arithmetic.
fn added(bytes: &[u8], delta: i64) -> (i64, i64) {
    let modulus = 1i128 << (8 * bytes.len());
    let unsigned = bytes.iter().rev().fold(0i128, |number, byte| number << 8 | i128::from(*byte));
    let signed = |number: i128| if number >= modulus / 2 { number - modulus } else { number } as i64;
    (signed(unsigned), signed((unsigned + i128::from(delta)).rem_euclid(modulus)))
}

fn bytes(random: &mut Random) -> Vec<u8> {
    (0..1 + random.below(6)).map(|_| random.below(2) as u8).collect()
}

fn offset(random: &mut Random) -> u32 {
    random.below(6) as u32
}

fn change(random: &mut Random) -> Change {
    match random.below(5) {
        0 => Change::Delete,
        1 | 2 => Change::Put(bytes(random)),
        _ => Change::PutRange { offset: offset(random), bytes: bytes(random) },
    }
}

fn expect(random: &mut Random, model: &Model, key: &Key) -> Expect {
    match random.below(4) {
        0 => Expect::Absent,
        1 => Expect::Value(bytes(random)),
        2 => model.values.get(key).cloned().map_or(Expect::Absent, Expect::Value),
        _ => {
            let offset = offset(random);
            Expect::Range { offset, bytes: model.bytes(key, offset, 2) }
        }
    }
}

fn operation(random: &mut Random, model: &Model, context: &Context) -> Operation {
    let key = context.control(1000 + random.below(3));
    let log = context.log(1000 + random.below(2));
    match random.below(12) {
        0 => get(&key),
        1 => get_range(&key, offset(random), random.below(9) as u32),
        2..=4 => Operation::Change { key, change: change(random) },
        5 | 6 => {
            let expect = expect(random, model, &key);
            Operation::CompareAndSwap { key, expect, change: change(random) }
        }
        7 | 8 => {
            let width = 1 << random.below(4);
            let delta = random.draw() as i64 >> random.below(60);
            let bounds = random.one_of(&[None, Some((0, i64::MAX)), Some((-300, 300))]);
            Operation::Add { key, offset: offset(random), width, delta, bounds }
        }
        9 => append(&log, &bytes(random)),
        10 => entries(&log, random.below(8), random.below(8) as u32),
        _ if random.once_in(8) => delete(&log),
        _ => trim(&log, random.below(6)),
    }
}

fn random_calls(context: &Context) {
    let seed = match std::env::var("TRELLIS_SEED") {
        Ok(seed) => seed.parse().expect("TRELLIS_SEED is a number"),
        // The same calls each time, so that a passing test passes again. Others can be selected by hand.
        Err(_) => 751_082_239,
    };
    println!("TRELLIS_SEED={seed} cargo test -p trellis-store replays these calls");
    let mut random = Random::new(seed);
    let mut model = Model::default();
    for call in 0..400 {
        let operations: Vec<Operation> =
            (0..random.below(6)).map(|_| operation(&mut random, &model, context)).collect();
        let guard = random.once_in(4).then(|| {
            let key = context.control(1000 + random.below(3));
            Guard { expect: expect(&mut random, &model, &key), key }
        });
        let expected = model.apply(&operations, guard.as_ref());
        let found = context.store.apply(&operations, guard.as_ref()).expect("the store answers");
        assert_eq!(found, expected, "call {call} of seed {seed}: {operations:?} with {guard:?}");
    }
}
