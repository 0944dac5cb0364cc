//! Strings.

use super::value::{Becomes, STRING, as_read, content, string_or_nothing, with_kind};
use super::{Call, Failure, NO_INTEGER, SYNTAX, WRONG_TYPE};
use crate::operation::{Applied, Change, Expect, Operation, Outcome};

const TOO_LONG: Failure = Failure::Text("ERR string exceeds maximum allowed size");

pub(super) fn get(call: &mut Call) -> Result<(), Failure> {
    let value = call.read(&call.key(call.parts.get(1)))?;
    let string = content(&value, STRING)?;
    call.reply.optional(string);
    Ok(())
}

/// The options of `SET`.
#[derive(Default)]
struct SetOptions {
    only_new: bool,
    only_old: bool,
    answer_old: bool,
}

fn set_options(call: &Call) -> Result<SetOptions, Failure> {
    let mut options = SetOptions::default();
    for place in 3..call.parts.len() {
        let is = |word| call.parts.is(place, word);
        if is("NX") {
            options.only_new = true;
        } else if is("XX") {
            options.only_old = true;
        } else if is("GET") {
            options.answer_old = true;
        } else if ["EX", "PX", "EXAT", "PXAT", "KEEPTTL"].into_iter().any(is) {
            return Err(Failure::Sentence(
                "keys do not expire here; SET without EX, PX, EXAT, PXAT and KEEPTTL".into(),
            ));
        } else {
            return Err(SYNTAX);
        }
    }
    if options.only_new && options.only_old { Err(SYNTAX) } else { Ok(options) }
}

pub(super) fn set(call: &mut Call) -> Result<(), Failure> {
    if call.parts.len() == 3 {
        put(call, 1, 2)?;
        call.reply.ok();
        return Ok(());
    }
    let options = set_options(call)?;
    let key = call.key(call.parts.get(1));
    let string = call.parts.get(2);
    let (done, old) = call.update(&key, |value| {
        let old = if options.answer_old { content(value, STRING)?.map(<[u8]>::to_vec) } else { None };
        let allowed = if value.is_some() { !options.only_new } else { !options.only_old };
        let is_plain = content(value, STRING).is_ok();
        Ok(match (allowed, is_plain) {
            (false, _) => (Becomes::Same, (Some(false), old)),
            (true, true) => (Becomes::Value(with_kind(STRING, string)), (Some(true), old)),
            (true, false) => (Becomes::Same, (None, old)),
        })
    })?;
    if done.is_none() {
        put(call, 1, 2)?;
    }
    if options.answer_old {
        call.reply.optional(old.as_deref());
    } else if done == Some(false) {
        call.reply.null();
    } else {
        call.reply.ok();
    }
    Ok(())
}

/// Stores part `string` under the key that part `name` gives, replacing any earlier value.
fn put(call: &Call, name: usize, string: usize) -> Result<(), Failure> {
    let key = call.key(call.parts.get(name));
    let value = with_kind(STRING, call.parts.get(string));
    call.retry(|| {
        let change = Change::Put(value.clone());
        let step = Operation::CompareAndSwap { key: key.clone(), expect: string_or_nothing(), change };
        match call.shared.store.apply(&[step], None)? {
            Applied::Done(_) => Ok(Some(())),
            // A key of another type may consist of several keys of the store.
            _ => call.delete_one(call.parts.get(name)).map(|_| None),
        }
    })
}

pub(super) fn set_new(call: &mut Call) -> Result<(), Failure> {
    let key = call.key(call.parts.get(1));
    let change = Change::Put(with_kind(STRING, call.parts.get(2)));
    let step = Operation::CompareAndSwap { key, expect: Expect::Absent, change };
    let done = matches!(call.shared.store.apply(&[step], None)?, Applied::Done(_));
    call.reply.integer(i64::from(done));
    Ok(())
}

pub(super) fn get_and_set(call: &mut Call) -> Result<(), Failure> {
    let key = call.key(call.parts.get(1));
    let string = call.parts.get(2);
    let old = call.update(&key, |value| {
        let old = content(value, STRING)?.map(<[u8]>::to_vec);
        Ok((Becomes::Value(with_kind(STRING, string)), old))
    })?;
    call.reply.optional(old.as_deref());
    Ok(())
}

pub(super) fn get_and_delete(call: &mut Call) -> Result<(), Failure> {
    let key = call.key(call.parts.get(1));
    let old = call.update(&key, |value| {
        let old = content(value, STRING)?.map(<[u8]>::to_vec);
        Ok((if old.is_some() { Becomes::Nothing } else { Becomes::Same }, old))
    })?;
    call.reply.optional(old.as_deref());
    Ok(())
}

pub(super) fn get_range(call: &mut Call) -> Result<(), Failure> {
    let key = call.key(call.parts.get(1));
    let (first, last) = (call.parts.integer(2)?, call.parts.integer(3)?);
    let place = |number: i64| u32::try_from(number).ok().and_then(|number| number.checked_add(1));
    // If neither bound counts from the end, only these bytes are read.
    if let (Some(from), Some(to)) = (place(first), place(last)) {
        let length = (to + 1).saturating_sub(from);
        let read = |range| Operation::Get { key: key.clone(), range: Some(range) };
        let answer = call.shared.store.apply(&[read((0, 1)), read((from, length))], None)?;
        let Applied::Done(outcomes) = answer else { return Err(WRONG_TYPE) };
        let [Outcome::Value(kind), Outcome::Value(bytes)] = &outcomes[..] else { return Err(WRONG_TYPE) };
        content(kind, STRING)?;
        call.reply.bulk(bytes.as_deref().unwrap_or_default());
        return Ok(());
    }
    let value = call.read(&key)?;
    let string = content(&value, STRING)?.unwrap_or_default();
    let length = string.len() as i64;
    let from_end = |number: i64| if number < 0 { number.saturating_add(length).max(0) } else { number };
    let (first, last) = (from_end(first), from_end(last).min(length - 1));
    let bytes = if first > last { &[][..] } else { &string[first as usize..=last as usize] };
    call.reply.bulk(bytes);
    Ok(())
}

pub(super) fn set_range(call: &mut Call) -> Result<(), Failure> {
    let key = call.key(call.parts.get(1));
    let offset = call.parts.integer(2)?;
    let bytes = call.parts.get(3);
    if offset < 0 {
        return Err(Failure::Text("ERR offset is out of range"));
    }
    if bytes.is_empty() {
        return length(call);
    }
    let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(bytes.len() + 1));
    if end.is_none_or(|end| end > call.shared.can.value_bytes_max) {
        return Err(TOO_LONG);
    }
    let change = Change::PutRange { offset: offset as u32 + 1, bytes: bytes.to_vec() };
    let write = Operation::CompareAndSwap { key: key.clone(), expect: string_or_nothing(), change };
    let read = Operation::Get { key, range: None };
    let Applied::Done(outcomes) = call.shared.store.apply(&[write, read], None)? else { return Err(WRONG_TYPE) };
    let Some(Outcome::Value(Some(value))) = outcomes.last() else { return Err(WRONG_TYPE) };
    call.reply.integer(value.len() as i64 - 1);
    Ok(())
}

pub(super) fn append(call: &mut Call) -> Result<(), Failure> {
    let key = call.key(call.parts.get(1));
    let more = call.parts.get(2);
    let longest = call.shared.can.value_bytes_max;
    let length = call.update(&key, |value| {
        let old = content(value, STRING)?.unwrap_or_default();
        if old.len() + more.len() + 1 > longest {
            return Err(TOO_LONG);
        }
        let mut all = with_kind(STRING, old);
        all.extend_from_slice(more);
        let length = all.len() as i64 - 1;
        Ok((Becomes::Value(all), length))
    })?;
    call.reply.integer(length);
    Ok(())
}

pub(super) fn length(call: &mut Call) -> Result<(), Failure> {
    let value = call.read(&call.key(call.parts.get(1)))?;
    let length = content(&value, STRING)?.map_or(0, <[u8]>::len);
    call.reply.integer(length as i64);
    Ok(())
}

pub(super) fn increment(call: &mut Call) -> Result<(), Failure> {
    add(call, 1)
}

pub(super) fn decrement(call: &mut Call) -> Result<(), Failure> {
    add(call, -1)
}

pub(super) fn increment_by(call: &mut Call) -> Result<(), Failure> {
    let delta = call.parts.integer(2)?;
    add(call, delta)
}

pub(super) fn decrement_by(call: &mut Call) -> Result<(), Failure> {
    let delta = call.parts.integer(2)?.checked_neg();
    add(call, delta.ok_or(Failure::Text("ERR decrement would overflow"))?)
}

fn add(call: &mut Call, delta: i64) -> Result<(), Failure> {
    let key = call.key(call.parts.get(1));
    let sum = call.update(&key, |value| {
        let sum = added(content(value, STRING)?, delta)?;
        Ok((Becomes::Value(with_kind(STRING, sum.to_string().as_bytes())), sum))
    })?;
    call.reply.integer(sum);
    Ok(())
}

/// The sum of an integer in text form and another.
pub(super) fn added(text: Option<&[u8]>, delta: i64) -> Result<i64, Failure> {
    let number = super::request::integer(text.unwrap_or(b"0")).ok_or(NO_INTEGER)?;
    number.checked_add(delta).ok_or(Failure::Text("ERR increment or decrement would overflow"))
}

pub(super) fn get_many(call: &mut Call) -> Result<(), Failure> {
    let keys: Vec<_> = call.parts.from(1).map(|name| call.key(name)).collect();
    let values = call.shared.store.get_many(&keys)?;
    call.reply.array(values.len());
    for value in &values {
        // As in Redis, a value that is not a string is returned as null.
        call.reply.optional(content(value, STRING).unwrap_or(None));
    }
    Ok(())
}

fn pairs(call: &Call) -> Result<usize, Failure> {
    match call.parts.len() % 2 {
        1 => Ok(call.parts.len() / 2),
        _ => Err(Failure::Text("ERR wrong number of arguments for 'mset' command")),
    }
}

fn set_all(call: &Call, expect: &Expect) -> Result<bool, Failure> {
    let steps = (0..pairs(call)?).map(|pair| {
        let change = Change::Put(with_kind(STRING, call.parts.get(2 * pair + 2)));
        Operation::CompareAndSwap { key: call.key(call.parts.get(2 * pair + 1)), expect: expect.clone(), change }
    });
    Ok(call.together(steps.collect())?.is_some())
}

pub(super) fn set_many(call: &mut Call) -> Result<(), Failure> {
    call.retry(|| {
        if set_all(call, &string_or_nothing())? {
            return Ok(Some(()));
        }
        for pair in 0..pairs(call)? {
            let name = call.parts.get(2 * pair + 1);
            if content(&call.read(&call.key(name))?, STRING).is_err() {
                call.delete_one(name)?;
            }
        }
        Ok(None)
    })?;
    call.reply.ok();
    Ok(())
}

pub(super) fn set_many_new(call: &mut Call) -> Result<(), Failure> {
    if !call.shared.together {
        return Err(Failure::Sentence("this store cannot change several keys at once, as MSETNX must".into()));
    }
    let names: Vec<_> = (0..pairs(call)?).map(|pair| call.key(call.parts.get(2 * pair + 1))).collect();
    let taken = call.shared.store.get_many(&names)?.iter().any(Option::is_some);
    // A repeated key is allowed: the later value counts.
    let mut last = std::collections::HashMap::new();
    for (pair, key) in names.into_iter().enumerate() {
        last.insert(key, call.parts.get(2 * pair + 2));
    }
    let steps = last.into_iter().map(|(key, string)| {
        let change = Change::Put(with_kind(STRING, string));
        Operation::CompareAndSwap { key, expect: as_read(None), change }
    });
    let done = !taken && call.together(steps.collect())?.is_some();
    call.reply.integer(i64::from(done));
    Ok(())
}
