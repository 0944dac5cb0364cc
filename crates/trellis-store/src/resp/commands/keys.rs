//! Commands for keys of any type: deleting and listing.

use std::collections::VecDeque;

use super::value::{HASH, MEMBER, ORDER, PLAIN, SORTED, STRING, as_read};
use super::{Call, Failure, SYNTAX, sorted};
use crate::key::Key;
use crate::operation::{Applied, Change, Operation};

/// The number of names that are requested at once.
pub(super) const NAMES_AT_ONCE: usize = 1000;

/// Where running listings continue. A cursor is a number in Redis; here it stands for a name.
#[derive(Default)]
pub(in crate::resp) struct Cursors {
    last: u64,
    open: VecDeque<(u64, Vec<u8>)>,
}

impl Cursors {
    /// The maximum number of running listings.
    const OPEN_MAX: usize = 4096;

    fn keep(&mut self, name: Vec<u8>) -> u64 {
        self.last += 1;
        if self.open.len() == Cursors::OPEN_MAX {
            self.open.pop_front();
        }
        self.open.push_back((self.last, name));
        self.last
    }

    fn name(&self, cursor: u64) -> Option<Vec<u8>> {
        self.open.iter().rev().find(|(number, _)| *number == cursor).map(|(_, name)| name.clone())
    }
}

impl Call<'_> {
    /// Deletes a key of any type; returns whether it existed.
    pub(super) fn delete_one(&self, name: &[u8]) -> Result<bool, Failure> {
        let key = self.key(name);
        self.retry(|| {
            let value = self.read(&key)?;
            let Some(kind) = value.as_deref().map(|value| value.first().copied()) else { return Ok(Some(false)) };
            if kind == Some(SORTED) {
                sorted::delete_members(self, name)?;
            }
            let step = Operation::CompareAndSwap {
                key: key.clone(),
                expect: as_read(value.as_deref()),
                change: Change::Delete,
            };
            let done = matches!(self.shared.store.apply(&[step], None)?, Applied::Done(_));
            // Removing the last member has removed the set.
            let gone = done || (kind == Some(SORTED) && self.read(&key)?.is_none());
            Ok(gone.then_some(true))
        })
    }

    /// Names in the store that begin with `prefix` and come after `after`, about `count` of them; fewer only if there are
    /// no more.
    pub(super) fn names(&self, prefix: &[u8], after: &[u8], count: usize) -> Result<Vec<Vec<u8>>, Failure> {
        let mut names = Vec::new();
        let mut from = after;
        if after.is_empty() {
            // The prefix itself is also a name: that of the empty key.
            from = prefix;
            if self.read(&Key::named(self.region(), prefix))?.is_some() {
                names.push(prefix.to_vec());
            }
        }
        names.extend(self.shared.store.names(self.region(), Some(from), count)?);
        names.retain(|name| name.starts_with(prefix));
        Ok(names)
    }

    /// Calls `each` with the name of every client key, in order.
    fn every_key(&self, mut each: impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
        let mut after = Vec::new();
        loop {
            let names = self.names(&[PLAIN], &after, NAMES_AT_ONCE)?;
            for name in &names {
                each(&name[1..])?;
            }
            match names.last() {
                Some(last) if names.len() >= NAMES_AT_ONCE => after.clone_from(last),
                _ => return Ok(()),
            }
        }
    }
}

pub(super) fn delete(call: &mut Call) -> Result<(), Failure> {
    let mut count = 0;
    for name in call.parts.from(1) {
        count += i64::from(call.delete_one(name)?);
    }
    call.reply.integer(count);
    Ok(())
}

pub(super) fn exists(call: &mut Call) -> Result<(), Failure> {
    let keys: Vec<Key> = call.parts.from(1).map(|name| call.key(name)).collect();
    let count = call.shared.store.get_many(&keys)?.iter().flatten().count();
    call.reply.integer(count as i64);
    Ok(())
}

pub(super) fn kind(call: &mut Call) -> Result<(), Failure> {
    let value = call.read(&call.key(call.parts.get(1)))?;
    call.reply.status(match value.as_deref().map(<[u8]>::first) {
        None => "none",
        Some(Some(&STRING)) => "string",
        Some(Some(&HASH)) => "hash",
        Some(Some(&SORTED)) => "zset",
        Some(_) => "unknown",
    });
    Ok(())
}

pub(super) fn time_to_live(call: &mut Call) -> Result<(), Failure> {
    let there = call.read(&call.key(call.parts.get(1)))?.is_some();
    call.reply.integer(if there { -1 } else { -2 });
    Ok(())
}

/// Keys never expire, so nothing changes.
pub(super) fn persist(call: &mut Call) -> Result<(), Failure> {
    call.reply.integer(0);
    Ok(())
}

pub(super) fn keys(call: &mut Call) -> Result<(), Failure> {
    let pattern = call.parts.get(1);
    let mut found = Vec::new();
    call.every_key(|name| {
        if matches(pattern, name) {
            found.push(name.to_vec());
        }
        Ok(())
    })?;
    call.reply.array(found.len());
    found.iter().for_each(|name| call.reply.bulk(name));
    Ok(())
}

pub(super) fn scan(call: &mut Call) -> Result<(), Failure> {
    let cursor = call.parts.integer(1)? as u64;
    let (mut pattern, mut count, mut kind) = (None, 10, None);
    for place in (2..call.parts.len()).step_by(2) {
        if place + 1 == call.parts.len() {
            return Err(SYNTAX);
        }
        if call.parts.is(place, "MATCH") {
            pattern = Some(call.parts.get(place + 1));
        } else if call.parts.is(place, "COUNT") {
            count = call.parts.integer(place + 1)?.clamp(1, NAMES_AT_ONCE as i64) as usize;
        } else if call.parts.is(place, "TYPE") {
            kind = Some(call.parts.get(place + 1).to_ascii_lowercase());
        } else {
            return Err(SYNTAX);
        }
    }
    let cursors = &call.shared.cursors;
    let locked = || cursors.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let after = match cursor {
        0 => Vec::new(),
        cursor => {
            locked().name(cursor).ok_or(Failure::Sentence("this cursor is too old; begin again with 0".into()))?
        }
    };
    let names = call.names(&[PLAIN], &after, count)?;
    let next = match names.last() {
        Some(last) if names.len() >= count => locked().keep(last.clone()),
        _ => 0,
    };
    let mut found: Vec<&[u8]> = names.iter().map(|name| &name[1..]).collect();
    found.retain(|name| pattern.is_none_or(|pattern| matches(pattern, name)));
    if let Some(kind) = kind {
        let wanted = match &kind[..] {
            b"string" => Some(STRING),
            b"hash" => Some(HASH),
            b"zset" => Some(SORTED),
            _ => None,
        };
        let keys: Vec<Key> = found.iter().map(|name| call.key(name)).collect();
        let mut values = call.shared.store.get_many(&keys)?.into_iter();
        found.retain(|_| wanted.is_some() && values.next().flatten().and_then(|v| v.first().copied()) == wanted);
    }
    call.reply.array(2);
    call.reply.bulk(next.to_string().as_bytes());
    call.reply.array(found.len());
    found.iter().for_each(|name| call.reply.bulk(name));
    Ok(())
}

pub(super) fn count(call: &mut Call) -> Result<(), Failure> {
    let mut count = 0;
    call.every_key(|_| {
        count += 1;
        Ok(())
    })?;
    call.reply.integer(count);
    Ok(())
}

pub(super) fn flush(call: &mut Call) -> Result<(), Failure> {
    for prefix in [ORDER, MEMBER, PLAIN] {
        loop {
            let names = call.names(&[prefix], &[], NAMES_AT_ONCE)?;
            if names.is_empty() {
                break;
            }
            for name in &names {
                let key = Key::named(call.region(), name);
                call.shared.store.apply(&[Operation::Change { key, change: Change::Delete }], None)?;
            }
        }
    }
    call.reply.ok();
    Ok(())
}

/// Whether a name matches a pattern of Redis: `*`, `?`, `[a-z]`, `[^x]`, and `\` before a character that stands for
/// itself.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    // After a mismatch, only the last star can match more, so the time is at most the product of the lengths.
    let (mut at, mut place) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at + 1, place));
            at += 1;
            continue;
        }
        let (fits, next) = one(pattern, at, name.get(place).copied());
        if fits {
            if place == name.len() {
                return true;
            }
            (at, place) = (next, place + 1);
            continue;
        }
        match star {
            Some((after, taken)) if taken < name.len() => {
                star = Some((after, taken + 1));
                (at, place) = (after, taken + 1);
            }
            _ => return false,
        }
    }
}

/// Whether the pattern at a place matches a byte (or the end), and where it continues.
fn one(pattern: &[u8], at: usize, byte: Option<u8>) -> (bool, usize) {
    match (pattern.get(at), byte) {
        (None, None) => (true, at),
        (None, Some(_)) | (Some(_), None) => (false, at),
        (Some(b'?'), Some(_)) => (true, at + 1),
        (Some(b'\\'), Some(byte)) => match pattern.get(at + 1) {
            Some(literal) => (*literal == byte, at + 2),
            None => (byte == b'\\', at + 1),
        },
        (Some(b'['), Some(byte)) => set(pattern, at + 1, byte),
        (Some(literal), Some(byte)) => (*literal == byte, at + 1),
    }
}

fn set(pattern: &[u8], begin: usize, byte: u8) -> (bool, usize) {
    let negated = pattern.get(begin) == Some(&b'^');
    let mut at = begin + usize::from(negated);
    let mut found = false;
    while let Some(&first) = pattern.get(at) {
        if first == b']' {
            return (found != negated, at + 1);
        }
        let escaped = first == b'\\' && at + 1 < pattern.len();
        let low = if escaped { pattern[at + 1] } else { first };
        at += 1 + usize::from(escaped);
        let mut high = low;
        if pattern.get(at) == Some(&b'-')
            && let Some(&last) = pattern.get(at + 1).filter(|last| **last != b']')
        {
            high = last;
            at += 2;
        }
        found |= (low.min(high)..=low.max(high)).contains(&byte);
    }
    (found != negated, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_redis() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*", "anything", true),
            ("user*", "user12", true),
            ("user*", "use", false),
            ("*1*2", "a1b12", true),
            ("*1*2", "a1b1", false),
            ("h?llo", "hallo", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hello", true),
            ("h[^e]llo", "hello", false),
            ("h[^e]llo", "hallo", true),
            ("h[a-c]llo", "hbllo", true),
            ("h[a-c]llo", "hdllo", false),
            ("a\\*b", "a*b", true),
            ("a\\*b", "axb", false),
            ("[", "a", false),
            ("", "", true),
            ("", "a", false),
            ("a", "", false),
            ("[\\]]", "]", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
        assert!(!matches(&b"*a".repeat(40), &b"a".repeat(5000)[..5000].iter().map(|_| b'b').collect::<Vec<_>>()));
    }
}
