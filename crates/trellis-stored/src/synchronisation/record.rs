//! The layout of objects in the store, and the steps that change them.
//!
//! Every object is a record of little-endian words at fixed offsets. Every word is zero at first, so an object does not
//! need to be created: a missing record is one of zeros. Each step names only the words that it uses. A process can
//! therefore change a record without having read it, and an uncontended operation is one call, whichever process used
//! the object before.
//!
//! Promises: a step changes only its own words. It must never depend on the length of a record.

use trellis_store::{Change, Expect, Key, Kind, Operation, Outcome, Store, StoreError};

/// The kinds of objects; the highest bits of a record's number. Objects of different kinds may have the same address or
/// name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(super) enum Form {
    Lock = 1,
    ReadWriteLock = 2,
    Semaphore = 3,
    Barrier = 4,
    Condition = 5,
    Event = 6,
    Once = 7,
    /// This is not an object, but a member's record of what it holds together with others.
    Holds = 8,
}

/// The number of bits below the form.
const NUMBER_BITS: u32 = 60;
/// The bit that is set in the numbers of objects with a name.
const NAMED: u64 = 1 << (NUMBER_BITS - 1);
/// The largest possible address of an object.
pub(super) const ADDRESS_MAX: u64 = NAMED - 1;

/// The number of the object at an address.
pub(super) const fn at_address(form: Form, address: u64) -> u64 {
    (form as u64) << NUMBER_BITS | (address & ADDRESS_MAX)
}

/// The number of an object with a name, from the name's hash.
pub(super) const fn with_name(form: Form, hash: u64) -> u64 {
    (form as u64) << NUMBER_BITS | NAMED | (hash & ADDRESS_MAX)
}

/// The key of an object's record.
pub(super) const fn key(region: u32, number: u64) -> Key {
    Key::new(region, Kind::Synchronisation, number)
}

/// The key of a member's record of its shared holds.
pub(super) const fn holds_key(region: u32, member: u64) -> Key {
    key(region, at_address(Form::Holds, member))
}

/// The members of a region that have a record of shared holds.
pub(super) fn holders(store: &dyn Store, region: u32) -> Result<Vec<u64>, StoreError> {
    let (first, last) = (at_address(Form::Holds, 0), at_address(Form::Holds, ADDRESS_MAX));
    let numbers = numbers(store, region, Kind::Synchronisation, first, last)?;
    Ok(numbers.into_iter().map(|number| number & ADDRESS_MAX).collect())
}

/// The maximum number of numbers that one call requests.
const NUMBERS_AT_ONCE: usize = 4096;

/// The numbers of one kind between two, both included.
pub(super) fn numbers(
    store: &dyn Store,
    region: u32,
    kind: Kind,
    first: u64,
    last: u64,
) -> Result<Vec<u64>, StoreError> {
    let mut all = Vec::new();
    let mut from = first;
    loop {
        let some = store.numbers(region, kind, from, NUMBERS_AT_ONCE)?;
        all.extend(some.iter().copied().filter(|number| *number <= last));
        match some.last() {
            Some(number) if some.len() == NUMBERS_AT_ONCE && *number < last => from = number + 1,
            _ => return Ok(all),
        }
    }
}

/// The word at an offset; bytes that are missing are zero.
pub(super) fn word(record: &[u8], offset: u32) -> u64 {
    let mut bytes = [0; 8];
    let found = record.get(offset as usize..).unwrap_or_default();
    let found = &found[..found.len().min(8)];
    bytes[..found.len()].copy_from_slice(found);
    u64::from_le_bytes(bytes)
}

/// Encodes words.
pub(super) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Writes words at an offset.
pub(super) fn put(key: &Key, offset: u32, new: &[u64]) -> Operation {
    Operation::Change { key: key.clone(), change: Change::PutRange { offset, bytes: words(new) } }
}

/// Writes `new` if `old` is there; refused otherwise. They may differ in length.
pub(super) fn swap(key: &Key, offset: u32, old: &[u64], new: &[u64]) -> Operation {
    Operation::CompareAndSwap {
        key: key.clone(),
        expect: Expect::Range { offset, bytes: words(old) },
        change: Change::PutRange { offset, bytes: words(new) },
    }
}

/// Adds to a word.
pub(super) fn add(key: &Key, offset: u32, delta: i64) -> Operation {
    Operation::Add { key: key.clone(), offset, width: 8, delta, bounds: None }
}

/// Adds to a word; refused if the sum would leave `bounds`.
pub(super) fn add_within(key: &Key, offset: u32, delta: i64, bounds: (i64, i64)) -> Operation {
    Operation::Add { key: key.clone(), offset, width: 8, delta, bounds: Some(bounds) }
}

/// Changes nothing; refused if a word is not within `bounds`.
pub(super) fn is_within(key: &Key, offset: u32, bounds: (i64, i64)) -> Operation {
    add_within(key, offset, 0, bounds)
}

/// The value of a number before the step that added to it; 0 if the outcome is of another kind, which no store returns.
pub(super) fn before(outcomes: &[Outcome], step: usize) -> i64 {
    debug_assert!(matches!(outcomes.get(step), Some(Outcome::Added(_))), "step {step} of {outcomes:?} adds");
    match outcomes.get(step) {
        Some(Outcome::Added(before)) => *before,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_different_objects_differ() {
        let number = at_address(Form::Lock, 0x20_1234);
        assert_ne!(number, at_address(Form::Semaphore, 0x20_1234));
        assert_ne!(number, with_name(Form::Lock, 0x20_1234));
        assert_eq!(with_name(Form::Lock, u64::MAX) >> NUMBER_BITS, Form::Lock as u64);
        assert!(with_name(Form::Once, u64::MAX) < at_address(Form::Holds, 0));
    }

    #[test]
    fn a_missing_word_is_zero() {
        assert_eq!(word(&[1, 2], 0), 0x201);
        assert_eq!(word(&[1, 2], 1), 2);
        assert_eq!(word(&[1, 2], 9), 0);
        assert_eq!(word(&words(&[7, 8, 9]), 8), 8);
    }
}
