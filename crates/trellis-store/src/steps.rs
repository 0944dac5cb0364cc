//! The meaning of each step of a call, for stores that carry out steps in this process.
//!
//! Promises: every such store agrees in the smallest detail, including ranges beyond the end, missing bytes, wrapping
//! and bounds. It must never touch a store: values go in, and values come out.

use crate::capabilities::{Atomic, Capabilities};
use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::{Change, Expect, Guard, Operation};

/// The bytes of `value` that `range` names; without a range, all of them.
pub(crate) fn part(value: &[u8], range: Option<(u32, u32)>) -> &[u8] {
    let Some((offset, length)) = range else { return value };
    let from = (offset as usize).min(value.len());
    let to = from.saturating_add(length as usize).min(value.len());
    &value[from..to]
}

/// Whether a value is as expected.
pub(crate) fn holds(expect: &Expect, value: Option<&[u8]>) -> bool {
    match expect {
        Expect::Absent => value.is_none(),
        Expect::Value(bytes) => value == Some(bytes),
        Expect::Range { offset, bytes } => {
            let found = part(value.unwrap_or_default(), Some((*offset, bytes.len() as u32)));
            found == &bytes[..found.len()] && bytes[found.len()..].iter().all(|byte| *byte == 0)
        }
    }
}

/// Changes a value; `None` after a deletion.
pub(crate) fn change(value: Option<Vec<u8>>, change: &Change) -> Option<Vec<u8>> {
    match change {
        Change::Put(bytes) => {
            let mut value = value.unwrap_or_default();
            bytes.clone_into(&mut value);
            Some(value)
        }
        Change::PutRange { offset, bytes } => {
            let mut value = value.unwrap_or_default();
            put_range(&mut value, *offset, bytes);
            Some(value)
        }
        Change::Delete => None,
    }
}

/// Changes some bytes of a value, after extending a shorter one with zeros.
pub(crate) fn put_range(value: &mut Vec<u8>, offset: u32, bytes: &[u8]) {
    let from = offset as usize;
    let to = from + bytes.len();
    if value.len() < to {
        value.resize(to, 0);
    }
    value[from..to].copy_from_slice(bytes);
}

/// The integer that [`Operation::Add`] changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    /// The integer before, sign-extended.
    pub(crate) before: i64,
    /// The integer after; the first `width` bytes count.
    pub(crate) bytes: [u8; 8],
}

/// The result of an addition; `None` if a bound refuses it.
pub(crate) fn add(value: Option<&[u8]>, offset: u32, width: u8, delta: i64, bounds: Option<(i64, i64)>) -> Option<Sum> {
    let mut number = [0; 8];
    let found = part(value.unwrap_or_default(), Some((offset, u32::from(width))));
    number[..found.len()].copy_from_slice(found);
    let unused = 64 - 8 * u32::from(width);
    let signed = |number: i64| (number << unused) >> unused;
    let before = signed(i64::from_le_bytes(number));
    let after = signed(before.wrapping_add(delta));
    let allowed = bounds.is_none_or(|(least, most)| (least..=most).contains(&after));
    allowed.then_some(Sum { before, bytes: after.to_le_bytes() })
}

/// Refuses a call that no store accepts or that exceeds this store's limits, before any step is carried out.
pub(crate) fn check(
    store: &str,
    can: &Capabilities,
    operations: &[Operation],
    guard: Option<&Guard>,
) -> Result<(), StoreError> {
    let limits = Limits { store, can };
    if operations.len() > can.operations_max {
        return Err(limits.unsupported(format!(
            "a call of {} steps is more than the {} it takes; cut it into several calls",
            operations.len(),
            can.operations_max
        )));
    }
    let mut bytes = 0;
    for operation in operations {
        let (largest, carried) = limits.operation(operation)?;
        limits.value(largest)?;
        bytes += carried;
    }
    if let Some(guard) = guard {
        limits.no_log(&guard.key)?;
        bytes += key_bytes(&guard.key) + expect_bytes(&guard.expect);
        if can.atomic == Atomic::Control && !guard.key.kind().is_control() {
            return Err(limits.unsupported("a guard must be a control key here".to_owned()));
        }
    }
    if bytes > can.call_bytes_max {
        return Err(StoreError::TooLarge {
            store: store.to_owned(),
            what: format!("a call of {} steps", operations.len()),
            bytes,
            limit: can.call_bytes_max,
            hint: "cut it into several calls".to_owned(),
        });
    }
    if can.atomic == Atomic::Control { limits.not_mixed(operations) } else { Ok(()) }
}

/// Refuses more keys than a store accepts in one call.
pub(crate) fn check_keys(store: &str, keys: &[Key]) -> Result<(), StoreError> {
    keys.iter().find(|key| key.kind() == Kind::Log).map_or(Ok(()), |_| Err(log_is_no_value(store)))
}

struct Limits<'a> {
    store: &'a str,
    can: &'a Capabilities,
}

impl Limits<'_> {
    /// How long the value may become by this step, as far as can be known, and how many bytes the step holds.
    fn operation(&self, operation: &Operation) -> Result<(usize, usize), StoreError> {
        let key = key_bytes(operation.key());
        match operation {
            Operation::Change { key: of, change } => {
                // A log can only be deleted as a whole.
                if !matches!(change, Change::Delete) {
                    self.no_log(of)?;
                }
                let (largest, carried) = change_bytes(change);
                Ok((largest, key + carried))
            }
            Operation::CompareAndSwap { key: of, expect, change } => {
                self.no_log(of)?;
                let (largest, carried) = change_bytes(change);
                Ok((largest, key + carried + expect_bytes(expect)))
            }
            Operation::Add { key: of, offset, width, .. } => {
                self.no_log(of)?;
                if !matches!(width, 1 | 2 | 4 | 8) {
                    return Err(self.unsupported(format!("a number of {width} bytes cannot be added to; 1, 2, 4 or 8")));
                }
                Ok((*offset as usize + *width as usize, key + 8))
            }
            Operation::Get { key: of, .. } => self.no_log(of).map(|()| (0, key)),
            Operation::Append { log, bytes } => self.log(log).map(|()| (bytes.len(), key + bytes.len())),
            Operation::Entries { log, .. } | Operation::Trim { log, .. } => self.log(log).map(|()| (0, key)),
        }
    }

    fn value(&self, bytes: usize) -> Result<(), StoreError> {
        let limit = self.can.value_bytes_max;
        if bytes <= limit {
            return Ok(());
        }
        Err(StoreError::TooLarge {
            store: self.store.to_owned(),
            what: "a value".to_owned(),
            bytes,
            limit,
            hint: "cut it into several values".to_owned(),
        })
    }

    fn not_mixed(&self, operations: &[Operation]) -> Result<(), StoreError> {
        let mut keys = operations.iter().map(Operation::key);
        let Some(first) = keys.next() else { return Ok(()) };
        let mixed = if first.kind().is_control() {
            keys.any(|key| !key.kind().is_control() || key.region() != first.region())
        } else {
            keys.any(|key| key.kind().is_control())
        };
        if mixed {
            return Err(self.unsupported(
                "control keys of one region and other keys cannot be changed in one call; use one call for each"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    fn no_log(&self, key: &Key) -> Result<(), StoreError> {
        if key.kind() == Kind::Log { Err(log_is_no_value(self.store)) } else { Ok(()) }
    }

    fn log(&self, key: &Key) -> Result<(), StoreError> {
        if key.kind() == Kind::Log {
            return Ok(());
        }
        Err(self.unsupported(format!("{:?} {} is no log; logs have keys of the kind Log", key.kind(), key.number())))
    }

    fn unsupported(&self, what: String) -> StoreError {
        StoreError::Unsupported { store: self.store.to_owned(), what }
    }
}

fn log_is_no_value(store: &str) -> StoreError {
    let what = "a log is not a value; append to it, read its entries, trim it or delete it".to_owned();
    StoreError::Unsupported { store: store.to_owned(), what }
}

fn key_bytes(key: &Key) -> usize {
    Key::ENCODED_BYTES + key.name().map_or(0, <[u8]>::len)
}

fn expect_bytes(expect: &Expect) -> usize {
    match expect {
        Expect::Absent => 0,
        Expect::Value(bytes) | Expect::Range { bytes, .. } => bytes.len(),
    }
}

fn change_bytes(change: &Change) -> (usize, usize) {
    match change {
        Change::Put(bytes) => (bytes.len(), bytes.len()),
        Change::PutRange { offset, bytes } => (*offset as usize + bytes.len(), bytes.len()),
        Change::Delete => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_beyond_the_end_is_left_out() {
        assert_eq!(part(b"abc", Some((1, 9))), b"bc");
        assert_eq!(part(b"abc", Some((7, 9))), b"");
        assert_eq!(part(b"abc", Some((u32::MAX, u32::MAX))), b"");
    }

    #[test]
    fn missing_bytes_are_expected_as_zero() {
        let expect = |offset, bytes: &[u8]| Expect::Range { offset, bytes: bytes.to_vec() };
        assert!(holds(&expect(2, &[3, 0, 0]), Some(&[1, 2, 3])));
        assert!(!holds(&expect(2, &[3, 0, 1]), Some(&[1, 2, 3])));
        assert!(holds(&expect(9, &[0]), None));
        assert!(!holds(&Expect::Value(Vec::new()), None), "an empty value is not an absent one");
    }

    #[test]
    fn a_sum_wraps_at_its_width_and_is_signed() {
        let sum = add(Some(&[9, 0x7f]), 1, 1, 1, None).unwrap();
        assert_eq!((sum.before, sum.bytes[0]), (127, 0x80));
        assert_eq!(add(Some(&[0x80]), 0, 1, 1, None).unwrap().before, -128);
        assert_eq!(add(Some(&[0x7f]), 0, 1, 1, Some((0, 200))), None, "128 is -128 in one byte");
        let most = i64::MAX.to_le_bytes();
        assert_eq!(add(Some(&most), 0, 8, 1, None).unwrap().bytes, i64::MIN.to_le_bytes());
        assert_eq!(add(Some(&[1]), 0, 4, 1, Some((0, 2))).unwrap().bytes[..4], [2, 0, 0, 0]);
    }
}
