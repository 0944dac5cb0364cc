//! Lists the keys of a region. Redis keeps no order, so all keys of the server are scanned. For tools and for cleaning
//! up.

use super::connection::Commands;
use super::reply::Reply;
use super::{Redis, script};
use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::stores::listing;

/// How many keys the server examines at a time.
const SCANNED: &[u8] = b"1000";

pub(super) fn numbers(redis: &Redis, region: u32, kind: Kind, from: u64, count: usize) -> Result<Vec<u64>, StoreError> {
    if redis.server().ours {
        let [region, kind, from, count] = [u64::from(region), kind as u64, from, count as u64].map(|n| n.to_string());
        let parts = [&b"TRELLIS.NUMBERS"[..], region.as_bytes(), kind.as_bytes(), from.as_bytes(), count.as_bytes()];
        let numbers = listed(redis, &parts)?.into_iter();
        let number = |bytes: Vec<u8>| String::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
        return numbers.map(|bytes| number(bytes).ok_or_else(|| redis.strange("a listing"))).collect();
    }
    Ok(listing::numbers(&scan(redis, region, kind)?, from, count))
}

pub(super) fn names(
    redis: &Redis,
    region: u32,
    after: Option<&[u8]>,
    count: usize,
) -> Result<Vec<Vec<u8>>, StoreError> {
    if redis.server().ours {
        let [region, count] = [u64::from(region), count as u64].map(|number| number.to_string());
        let parts = [&b"TRELLIS.NAMES"[..], region.as_bytes(), count.as_bytes()];
        let parts: Vec<&[u8]> = parts.into_iter().chain(after).collect();
        return listed(redis, &parts);
    }
    Ok(listing::names(&scan(redis, region, Kind::Named)?, after, count))
}

/// A list of strings from our own front end.
fn listed(redis: &Redis, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>, StoreError> {
    let mut commands = Commands::default();
    commands.command(parts);
    match redis.read("a listing", &commands, 1)?.pop() {
        Some(Reply::Array(items)) => {
            items.into_iter().map(|item| item.into_bytes().ok_or_else(|| redis.strange("a listing"))).collect()
        }
        _ => Err(redis.strange("a listing")),
    }
}

/// Every key of a kind and region; some perhaps twice.
fn scan(redis: &Redis, region: u32, kind: Kind) -> Result<Vec<Key>, StoreError> {
    let mut pattern = script::PREFIX.to_vec();
    escaped(&[kind as u8], &mut pattern);
    pattern.push(b'?');
    escaped(&region.to_be_bytes(), &mut pattern);
    pattern.push(b'*');
    let mut keys = Vec::new();
    let mut cursor = b"0".to_vec();
    loop {
        let mut commands = Commands::default();
        commands.command(&[b"SCAN", &cursor, b"MATCH", &pattern, b"COUNT", SCANNED]);
        let mut replies = redis.read("a listing", &commands, 1)?;
        let Some(Reply::Array(mut parts)) = replies.pop() else { return Err(redis.strange("a listing")) };
        let (Some(Reply::Array(found)), Some(next)) = (parts.pop(), parts.pop().and_then(Reply::into_bytes)) else {
            return Err(redis.strange("a listing"));
        };
        // A log has a second key in Redis, which does not decode to a key.
        let names = found.into_iter().filter_map(Reply::into_bytes);
        keys.extend(names.filter_map(|name| Key::decode(name.strip_prefix(script::PREFIX)?)));
        if next == b"0" {
            return Ok(keys);
        }
        cursor = next;
    }
}

/// Escapes bytes so that a pattern matches them literally.
fn escaped(bytes: &[u8], pattern: &mut Vec<u8>) {
    for byte in bytes {
        if b"*?[]^-\\".contains(byte) {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
}
