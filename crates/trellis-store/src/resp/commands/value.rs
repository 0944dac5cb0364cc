//! The representation of clients' values in the store.
//!
//! | name in the store | value |
//! |---|---|
//! | `1`, key | `0`, string; or `1`, fields of a hash; or `2`, number of members of a sorted set (u64) |
//! | `2`, length of key (u32), key, member | score (f64) |
//! | `3`, length of key (u32), key, score, `0`, member | nothing |
//!
//! A field of a hash is two lengths (u32, little-endian), the field and its value. The score in a name is 8 bytes that
//! sort in the order of scores.

use super::{Call, Failure, WRONG_TYPE};
use crate::key::Key;
use crate::operation::{Applied, Change, Expect, Operation, Outcome};

/// The first byte of the name of a key.
pub(super) const PLAIN: u8 = 1;
/// The first byte of the name of a member.
pub(super) const MEMBER: u8 = 2;
/// The first byte of the name of a place in the order of a sorted set.
pub(super) const ORDER: u8 = 3;

/// The first byte of a string.
pub(super) const STRING: u8 = 0;
/// The first byte of a hash.
pub(super) const HASH: u8 = 1;
/// The first byte of a sorted set.
pub(super) const SORTED: u8 = 2;

/// How often a change is attempted when other writers keep coming first.
const TRIES_MAX: usize = 1000;

/// The content of a value after its first byte, which must be `kind`.
pub(super) fn content(value: &Option<Vec<u8>>, kind: u8) -> Result<Option<&[u8]>, Failure> {
    match value.as_deref().map(<[u8]>::split_first) {
        None => Ok(None),
        // A string that is written by its range keeps its first byte.
        Some(Some((found, content))) if *found == kind => Ok(Some(content)),
        Some(_) => Err(WRONG_TYPE),
    }
}

/// What a value becomes.
pub(super) enum Becomes {
    /// It is unchanged.
    Same,
    /// It becomes this.
    Value(Vec<u8>),
    /// It is deleted.
    Nothing,
}

/// A comparison with the value that was read.
pub(super) fn as_read(value: Option<&[u8]>) -> Expect {
    value.map_or(Expect::Absent, |value| Expect::Value(value.to_vec()))
}

/// The condition that there is a string or nothing.
pub(super) fn string_or_nothing() -> Expect {
    Expect::Range { offset: 0, bytes: vec![STRING] }
}

/// A value with its type in the first byte.
pub(super) fn with_kind(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(1 + content.len());
    value.push(kind);
    value.extend_from_slice(content);
    value
}

impl Call<'_> {
    /// Reads a value and changes it as `change` determines; repeats this when another writer was faster.
    pub(super) fn update<T>(
        &self,
        key: &Key,
        mut change: impl FnMut(&Option<Vec<u8>>) -> Result<(Becomes, T), Failure>,
    ) -> Result<T, Failure> {
        let mut value = self.read(key)?;
        for _ in 0..TRIES_MAX {
            let (becomes, answer) = change(&value)?;
            let change = match becomes {
                Becomes::Same => return Ok(answer),
                Becomes::Value(value) => Change::Put(value),
                Becomes::Nothing => Change::Delete,
            };
            let expect = value.take().map_or(Expect::Absent, Expect::Value);
            match self.shared.store.apply(&[Operation::CompareAndSwap { key: key.clone(), expect, change }], None)? {
                Applied::Done(_) => return Ok(answer),
                Applied::Refused(refused, _) => value = refused.found,
                Applied::Fenced { found } => value = found,
            }
        }
        Err(busy())
    }

    /// Carries out steps atomically if the store can, and one after the other otherwise. `None` if a step is refused.
    pub(super) fn together(&self, steps: Vec<Operation>) -> Result<Option<Vec<Outcome>>, Failure> {
        if self.shared.together {
            return Ok(match self.shared.store.apply(&steps, None)? {
                Applied::Done(outcomes) => Some(outcomes),
                _ => None,
            });
        }
        let mut all = Vec::with_capacity(steps.len());
        for step in steps {
            match self.shared.store.apply(&[step], None)? {
                Applied::Done(outcomes) => all.extend(outcomes),
                _ => return Ok(None),
            }
        }
        Ok(Some(all))
    }

    /// Repeats `attempt` until it has an answer.
    pub(super) fn retry<T>(&self, mut attempt: impl FnMut() -> Result<Option<T>, Failure>) -> Result<T, Failure> {
        for _ in 0..TRIES_MAX {
            if let Some(answer) = attempt()? {
                return Ok(answer);
            }
        }
        Err(busy())
    }
}

fn busy() -> Failure {
    Failure::Sentence(format!("others changed this key {TRIES_MAX} times while this was tried; try again"))
}
