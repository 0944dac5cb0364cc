//! Calls and their results as bytes.
//!
//! The front end and its clients use this form, and so does the script in Redis, which writes outcomes in it. Numbers are
//! little-endian. Byte strings are preceded by their length (u32); the length `0xffff_ffff` means that there is no value.
//! Reading never panics and never allocates more than the input holds.

use crate::key::Key;
use crate::operation::{Applied, Change, Entry, Expect, Guard, Operation, Outcome, Refused};

const NONE: u32 = u32::MAX;

/// Encodes a call.
pub(crate) fn encode_call(operations: &[Operation], guard: Option<&Guard>) -> Vec<u8> {
    let mut out = Writer(Vec::with_capacity(64));
    match guard {
        None => out.byte(0),
        Some(guard) => {
            out.byte(1);
            out.key(&guard.key);
            out.expect(&guard.expect);
        }
    }
    out.u32(operations.len() as u32);
    operations.iter().for_each(|operation| out.operation(operation));
    out.0
}

/// Decodes a call; `None` if the bytes are not one.
pub(crate) fn decode_call(bytes: &[u8]) -> Option<(Vec<Operation>, Option<Guard>)> {
    let mut reader = Reader(bytes);
    let guard = match reader.byte()? {
        0 => None,
        1 => Some(Guard { key: reader.key()?, expect: reader.expect()? }),
        _ => return None,
    };
    let count = reader.u32()?;
    let mut operations = Vec::new();
    for _ in 0..count {
        operations.push(reader.operation()?);
    }
    reader.0.is_empty().then_some((operations, guard))
}

/// Encodes the result of a call.
pub(crate) fn encode_applied(applied: &Applied) -> Vec<u8> {
    let mut out = Writer(Vec::with_capacity(64));
    let outcomes = match applied {
        Applied::Done(outcomes) => {
            out.byte(b'D');
            outcomes
        }
        Applied::Refused(refused, outcomes) => {
            out.byte(b'R');
            out.u32(refused.step as u32);
            out.optional(refused.found.as_deref());
            outcomes
        }
        Applied::Fenced { found } => {
            out.byte(b'F');
            out.optional(found.as_deref());
            return out.0;
        }
    };
    outcomes.iter().for_each(|outcome| out.outcome(outcome));
    out.0
}

/// Decodes the result of a call; `None` if the bytes are not one.
pub(crate) fn decode_applied(bytes: &[u8]) -> Option<Applied> {
    let mut reader = Reader(bytes);
    let refused = match reader.byte()? {
        b'D' => None,
        b'R' => Some(Refused { step: reader.u32()? as usize, found: reader.optional()? }),
        b'F' => {
            let found = reader.optional()?;
            return reader.0.is_empty().then_some(Applied::Fenced { found });
        }
        _ => return None,
    };
    let mut outcomes = Vec::new();
    while !reader.0.is_empty() {
        outcomes.push(reader.outcome()?);
    }
    Some(match refused {
        None => Applied::Done(outcomes),
        Some(refused) => Applied::Refused(refused, outcomes),
    })
}

struct Writer(Vec<u8>);

impl Writer {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }

    fn optional(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bytes(bytes),
            None => self.u32(NONE),
        }
    }

    fn key(&mut self, key: &Key) {
        self.bytes(&key.encode());
    }

    fn expect(&mut self, expect: &Expect) {
        match expect {
            Expect::Absent => self.byte(b'A'),
            Expect::Value(bytes) => {
                self.byte(b'V');
                self.bytes(bytes);
            }
            Expect::Range { offset, bytes } => {
                self.byte(b'R');
                self.u32(*offset);
                self.bytes(bytes);
            }
        }
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::Put(bytes) => {
                self.byte(b'P');
                self.bytes(bytes);
            }
            Change::PutRange { offset, bytes } => {
                self.byte(b'p');
                self.u32(*offset);
                self.bytes(bytes);
            }
            Change::Delete => self.byte(b'D'),
        }
    }

    fn operation(&mut self, operation: &Operation) {
        let (letter, key) = match operation {
            Operation::Get { key, range: None } => (b'G', key),
            Operation::Get { key, range: Some(_) } => (b'g', key),
            Operation::Change { key, .. } => (b'S', key),
            Operation::CompareAndSwap { key, .. } => (b'C', key),
            Operation::Add { key, .. } => (b'N', key),
            Operation::Append { log, .. } => (b'A', log),
            Operation::Entries { log, .. } => (b'E', log),
            Operation::Trim { log, .. } => (b'T', log),
        };
        self.byte(letter);
        self.key(key);
        match operation {
            Operation::Get { range, .. } => {
                if let Some((offset, length)) = range {
                    self.u32(*offset);
                    self.u32(*length);
                }
            }
            Operation::Change { change, .. } => self.change(change),
            Operation::CompareAndSwap { expect, change, .. } => {
                self.expect(expect);
                self.change(change);
            }
            Operation::Add { offset, width, delta, bounds, .. } => {
                self.u32(*offset);
                self.byte(*width);
                self.u64(*delta as u64);
                self.byte(u8::from(bounds.is_some()));
                if let Some((least, most)) = bounds {
                    self.u64(*least as u64);
                    self.u64(*most as u64);
                }
            }
            Operation::Append { bytes, .. } => self.bytes(bytes),
            Operation::Entries { after, count, .. } => {
                self.u64(*after);
                self.u32(*count);
            }
            Operation::Trim { upto, .. } => self.u64(*upto),
        }
    }

    fn outcome(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Value(value) => {
                self.byte(1);
                self.optional(value.as_deref());
            }
            Outcome::Changed => self.byte(2),
            Outcome::Added(before) => {
                self.byte(3);
                self.u64(*before as u64);
            }
            Outcome::Appended(number) => {
                self.byte(4);
                self.u64(*number);
            }
            Outcome::Entries { last, first, entries } => {
                self.byte(5);
                self.u64(*last);
                self.u64(*first);
                // The sequence numbers of entries are consecutive.
                self.u64(entries.first().map_or(0, |entry| entry.sequence));
                self.u32(entries.len() as u32);
                entries.iter().for_each(|entry| self.bytes(&entry.bytes));
            }
            Outcome::Trimmed => self.byte(6),
            Outcome::Skipped => self.byte(7),
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn u32(&mut self) -> Option<u32> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*number))
    }

    fn u64(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        self.optional()?
    }

    fn optional(&mut self) -> Option<Option<Vec<u8>>> {
        let length = self.u32()?;
        if length == NONE {
            return Some(None);
        }
        let (bytes, rest) = self.0.split_at_checked(length as usize)?;
        self.0 = rest;
        Some(Some(bytes.to_vec()))
    }

    fn key(&mut self) -> Option<Key> {
        Key::decode(&self.bytes()?)
    }

    fn expect(&mut self) -> Option<Expect> {
        Some(match self.byte()? {
            b'A' => Expect::Absent,
            b'V' => Expect::Value(self.bytes()?),
            b'R' => Expect::Range { offset: self.u32()?, bytes: self.bytes()? },
            _ => return None,
        })
    }

    fn change(&mut self) -> Option<Change> {
        Some(match self.byte()? {
            b'P' => Change::Put(self.bytes()?),
            b'p' => Change::PutRange { offset: self.u32()?, bytes: self.bytes()? },
            b'D' => Change::Delete,
            _ => return None,
        })
    }

    fn operation(&mut self) -> Option<Operation> {
        let letter = self.byte()?;
        let key = self.key()?;
        Some(match letter {
            b'G' => Operation::Get { key, range: None },
            b'g' => Operation::Get { key, range: Some((self.u32()?, self.u32()?)) },
            b'S' => Operation::Change { key, change: self.change()? },
            b'C' => Operation::CompareAndSwap { key, expect: self.expect()?, change: self.change()? },
            b'N' => Operation::Add {
                key,
                offset: self.u32()?,
                width: self.byte()?,
                delta: self.u64()? as i64,
                bounds: match self.byte()? {
                    0 => None,
                    1 => Some((self.u64()? as i64, self.u64()? as i64)),
                    _ => return None,
                },
            },
            b'A' => Operation::Append { log: key, bytes: self.bytes()? },
            b'E' => Operation::Entries { log: key, after: self.u64()?, count: self.u32()? },
            b'T' => Operation::Trim { log: key, upto: self.u64()? },
            _ => return None,
        })
    }

    fn outcome(&mut self) -> Option<Outcome> {
        Some(match self.byte()? {
            1 => Outcome::Value(self.optional()?),
            2 => Outcome::Changed,
            3 => Outcome::Added(self.u64()? as i64),
            4 => Outcome::Appended(self.u64()?),
            5 => {
                let (last, first, from, count) = (self.u64()?, self.u64()?, self.u64()?, self.u32()?);
                let mut entries = Vec::new();
                for place in 0..u64::from(count) {
                    entries.push(Entry { sequence: from.checked_add(place)?, bytes: self.bytes()? });
                }
                Outcome::Entries { last, first, entries }
            }
            6 => Outcome::Trimmed,
            7 => Outcome::Skipped,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Kind;

    fn call() -> (Vec<Operation>, Option<Guard>) {
        let key = Key::named(3, b"name");
        let log = Key::new(3, Kind::Log, 1);
        let bytes = b"some bytes".to_vec();
        let operations = vec![
            Operation::Get { key: key.clone(), range: None },
            Operation::Get { key: key.clone(), range: Some((1, u32::MAX)) },
            Operation::Change { key: key.clone(), change: Change::Put(bytes.clone()) },
            Operation::CompareAndSwap {
                key: key.clone(),
                expect: Expect::Range { offset: 7, bytes: bytes.clone() },
                change: Change::PutRange { offset: 9, bytes: Vec::new() },
            },
            Operation::CompareAndSwap { key: key.clone(), expect: Expect::Absent, change: Change::Delete },
            Operation::Add { key: key.clone(), offset: 1, width: 8, delta: -5, bounds: None },
            Operation::Add { key: key.clone(), offset: 1, width: 2, delta: 5, bounds: Some((i64::MIN, -1)) },
            Operation::Append { log: log.clone(), bytes: bytes.clone() },
            Operation::Entries { log: log.clone(), after: u64::MAX, count: 7 },
            Operation::Trim { log, upto: 9 },
        ];
        (operations, Some(Guard { key, expect: Expect::Value(bytes) }))
    }

    fn applied() -> Vec<Applied> {
        let entries = (4..7).map(|sequence| Entry { sequence, bytes: vec![1; sequence as usize] }).collect();
        let outcomes = vec![
            Outcome::Value(None),
            Outcome::Value(Some(b"value".to_vec())),
            Outcome::Changed,
            Outcome::Added(-1),
            Outcome::Appended(9),
            Outcome::Entries { last: 6, first: 2, entries },
            Outcome::Entries { last: 6, first: 7, entries: Vec::new() },
            Outcome::Trimmed,
            Outcome::Skipped,
        ];
        vec![
            Applied::Done(outcomes.clone()),
            Applied::Done(Vec::new()),
            Applied::Refused(Refused { step: 2, found: None }, outcomes.clone()),
            Applied::Refused(Refused { step: 2, found: Some(Vec::new()) }, outcomes),
            Applied::Fenced { found: None },
            Applied::Fenced { found: Some(b"7".to_vec()) },
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        let (operations, guard) = call();
        assert_eq!(decode_call(&encode_call(&operations, guard.as_ref())), Some((operations.clone(), guard)));
        assert_eq!(decode_call(&encode_call(&operations, None)), Some((operations, None)));
        for applied in applied() {
            assert_eq!(decode_applied(&encode_applied(&applied)), Some(applied));
        }
    }

    #[test]
    fn what_is_cut_short_or_too_long_is_nothing() {
        let (operations, guard) = call();
        let mut bytes = encode_call(&operations, guard.as_ref());
        for length in 0..bytes.len() {
            assert_eq!(decode_call(&bytes[..length]), None, "{length} bytes");
        }
        bytes.push(0);
        assert_eq!(decode_call(&bytes), None);
        let promise = [&[0][..], &u32::MAX.to_le_bytes()].concat();
        assert_eq!(decode_call(&promise), None, "many steps are promised");
    }

    #[test]
    fn changed_bytes_never_panic() {
        let (operations, guard) = call();
        let bytes = encode_call(&operations, guard.as_ref());
        for place in 0..bytes.len() {
            for flip in [1u8, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[place] ^= flip;
                decode_call(&changed);
                decode_applied(&changed);
            }
        }
    }
}
