//! Hashes: fields with values under one key.
//!
//! A hash is one value of the store, so reading or changing a field costs as much as copying the hash. For records of
//! some kilobytes that is cheaper than a second call.

use super::value::{Becomes, HASH, content};
use super::{Call, Failure, strings};

/// The fields of a hash, in the order in which they were added.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, rest) = self.0.split_first_chunk()?;
        let (value, rest) = rest.split_first_chunk()?;
        let (name, rest) = rest.split_at_checked(u32::from_le_bytes(*name) as usize)?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*value) as usize)?;
        self.0 = rest;
        Some((name, value))
    }
}

fn write(into: &mut Vec<u8>, field: &[u8], value: &[u8]) {
    into.extend_from_slice(&(field.len() as u32).to_le_bytes());
    into.extend_from_slice(&(value.len() as u32).to_le_bytes());
    into.extend_from_slice(field);
    into.extend_from_slice(value);
}

/// The fields of the hash that part 1 names.
fn read(call: &Call) -> Result<Option<Vec<u8>>, Failure> {
    call.read(&call.key(call.parts.get(1)))
}

fn fields(value: &Option<Vec<u8>>) -> Result<Fields<'_>, Failure> {
    Ok(Fields(content(value, HASH)?.unwrap_or_default()))
}

fn find<'a>(value: &'a Option<Vec<u8>>, field: &[u8]) -> Result<Option<&'a [u8]>, Failure> {
    Ok(fields(value)?.find(|(name, _)| *name == field).map(|(_, value)| value))
}

/// A hash with some fields set, and the number of new fields.
fn with(value: &Option<Vec<u8>>, pairs: &[(&[u8], &[u8])]) -> Result<(Vec<u8>, usize), Failure> {
    let room: usize = pairs.iter().map(|(field, value)| 8 + field.len() + value.len()).sum();
    let mut all = Vec::with_capacity(value.as_ref().map_or(1, Vec::len) + room);
    all.push(HASH);
    let mut known = vec![false; pairs.len()];
    // If a field is named twice, the later value counts.
    let given = |field: &[u8]| pairs.iter().rposition(|(name, _)| *name == field);
    for (field, old) in fields(value)? {
        match given(field) {
            Some(pair) => {
                known[pair] = true;
                write(&mut all, field, pairs[pair].1);
            }
            None => write(&mut all, field, old),
        }
    }
    let mut new = 0;
    for (place, (field, value)) in pairs.iter().enumerate() {
        if given(field) == Some(place) && !known[place] {
            write(&mut all, field, value);
            new += 1;
        }
    }
    Ok((all, new))
}

fn set_pairs(call: &Call) -> Result<usize, Failure> {
    if !call.parts.len().is_multiple_of(2) {
        return Err(Failure::Text("ERR wrong number of arguments for 'hset' command"));
    }
    let parts: Vec<&[u8]> = call.parts.from(2).collect();
    let pairs: Vec<(&[u8], &[u8])> = parts.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    call.update(&call.key(call.parts.get(1)), |value| {
        let (all, new) = with(value, &pairs)?;
        Ok((Becomes::Value(all), new))
    })
}

pub(super) fn set(call: &mut Call) -> Result<(), Failure> {
    let new = set_pairs(call)?;
    call.reply.integer(new as i64);
    Ok(())
}

pub(super) fn set_ok(call: &mut Call) -> Result<(), Failure> {
    set_pairs(call)?;
    call.reply.ok();
    Ok(())
}

pub(super) fn set_new(call: &mut Call) -> Result<(), Failure> {
    let (field, string) = (call.parts.get(2), call.parts.get(3));
    let new = call.update(&call.key(call.parts.get(1)), |value| match find(value, field)? {
        Some(_) => Ok((Becomes::Same, false)),
        None => Ok((Becomes::Value(with(value, &[(field, string)])?.0), true)),
    })?;
    call.reply.integer(i64::from(new));
    Ok(())
}

pub(super) fn get(call: &mut Call) -> Result<(), Failure> {
    let value = read(call)?;
    let found = find(&value, call.parts.get(2))?;
    call.reply.optional(found);
    Ok(())
}

pub(super) fn get_many(call: &mut Call) -> Result<(), Failure> {
    let value = read(call)?;
    fields(&value)?;
    call.reply.array(call.parts.len() - 2);
    for field in call.parts.from(2) {
        call.reply.optional(find(&value, field)?);
    }
    Ok(())
}

pub(super) fn get_all(call: &mut Call) -> Result<(), Failure> {
    let value = read(call)?;
    call.reply.map(fields(&value)?.count());
    for (field, value) in fields(&value)? {
        call.reply.bulk(field);
        call.reply.bulk(value);
    }
    Ok(())
}

pub(super) fn names(call: &mut Call) -> Result<(), Failure> {
    let value = read(call)?;
    call.reply.array(fields(&value)?.count());
    fields(&value)?.for_each(|(field, _)| call.reply.bulk(field));
    Ok(())
}

pub(super) fn values(call: &mut Call) -> Result<(), Failure> {
    let value = read(call)?;
    call.reply.array(fields(&value)?.count());
    fields(&value)?.for_each(|(_, value)| call.reply.bulk(value));
    Ok(())
}

pub(super) fn delete(call: &mut Call) -> Result<(), Failure> {
    let gone: Vec<&[u8]> = call.parts.from(2).collect();
    let count = call.update(&call.key(call.parts.get(1)), |value| {
        let (mut left, mut count) = (vec![HASH], 0);
        for (field, value) in fields(value)? {
            if gone.contains(&field) {
                count += 1;
            } else {
                write(&mut left, field, value);
            }
        }
        Ok(match (count, left.len()) {
            (0, _) => (Becomes::Same, 0),
            // A hash without fields does not exist.
            (_, 1) => (Becomes::Nothing, count),
            _ => (Becomes::Value(left), count),
        })
    })?;
    call.reply.integer(count);
    Ok(())
}

pub(super) fn exists(call: &mut Call) -> Result<(), Failure> {
    let found = find(&read(call)?, call.parts.get(2))?.is_some();
    call.reply.integer(i64::from(found));
    Ok(())
}

pub(super) fn length(call: &mut Call) -> Result<(), Failure> {
    let count = fields(&read(call)?)?.count();
    call.reply.integer(count as i64);
    Ok(())
}

pub(super) fn value_length(call: &mut Call) -> Result<(), Failure> {
    let length = find(&read(call)?, call.parts.get(2))?.map_or(0, <[u8]>::len);
    call.reply.integer(length as i64);
    Ok(())
}

pub(super) fn increment_by(call: &mut Call) -> Result<(), Failure> {
    let field = call.parts.get(2);
    let delta = call.parts.integer(3)?;
    let sum = call.update(&call.key(call.parts.get(1)), |value| {
        let sum = strings::added(find(value, field)?, delta).map_err(|failure| match failure {
            Failure::Text(text) if text.contains("not an integer") => Failure::Text("ERR hash value is not an integer"),
            other => other,
        })?;
        let (all, _) = with(value, &[(field, sum.to_string().as_bytes())])?;
        Ok((Becomes::Value(all), sum))
    })?;
    call.reply.integer(sum);
    Ok(())
}
