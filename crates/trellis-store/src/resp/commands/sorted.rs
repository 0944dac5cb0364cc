//! Sorted sets: members with scores.
//!
//! A member is two values of the store: its score and its place in the order. Adding one therefore costs the same for any
//! size of the set, and a range is found by the names of the places. This needs a store that lists names in order
//! cheaply; other stores look at all names.

use super::keys::NAMES_AT_ONCE;
use super::value::{MEMBER, ORDER, SORTED, as_read, content};
use super::{Call, Failure, SYNTAX};
use crate::key::Key;
use crate::operation::{Change, Expect, Operation};

const NO_FLOAT: Failure = Failure::Text("ERR value is not a valid float");
const NO_BOUND: Failure = Failure::Text("ERR min or max is not a float");

/// A score as bytes that sort in the order of scores.
fn ordered(score: f64) -> [u8; 8] {
    let bits = score.to_bits();
    let ordered = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
    ordered.to_be_bytes()
}

fn from_ordered(bytes: [u8; 8]) -> f64 {
    let ordered = u64::from_be_bytes(bytes);
    f64::from_bits(if ordered >> 63 == 1 { ordered & !(1 << 63) } else { !ordered })
}

fn number(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    // Minus zero is stored as zero.
    text.parse().ok().filter(|score: &f64| !score.is_nan()).map(|score: f64| score + 0.0)
}

/// The common prefix of all names of a set.
fn prefix(kind: u8, set: &[u8]) -> Vec<u8> {
    [&[kind][..], &(set.len() as u32).to_be_bytes(), set].concat()
}

fn member_key(call: &Call, set: &[u8], member: &[u8]) -> Key {
    Key::named(call.region(), &[&prefix(MEMBER, set)[..], member].concat())
}

fn order_key(call: &Call, set: &[u8], score: f64, member: &[u8]) -> Key {
    Key::named(call.region(), &[&prefix(ORDER, set)[..], &ordered(score), &[0], member].concat())
}

/// The value of a set's own key, and the score of a member.
type Read = (Option<Vec<u8>>, Option<Vec<u8>>);

fn read(call: &Call, set: &[u8], member: &[u8]) -> Result<Read, Failure> {
    let mut found = call.shared.store.get_many(&[call.key(set), member_key(call, set, member)])?.into_iter();
    let read = (found.next().flatten(), found.next().flatten());
    content(&read.0, SORTED)?;
    Ok(read)
}

fn score_of(value: Option<&[u8]>) -> Option<f64> {
    value?.first_chunk().map(|bytes| f64::from_le_bytes(*bytes))
}

/// The options of `ZADD`.
#[derive(Default)]
struct AddOptions {
    only_new: bool,
    only_old: bool,
    count_changed: bool,
}

pub(super) fn add(call: &mut Call) -> Result<(), Failure> {
    let mut options = AddOptions::default();
    let mut place = 2;
    loop {
        match place {
            _ if call.parts.is(place, "NX") => options.only_new = true,
            _ if call.parts.is(place, "XX") => options.only_old = true,
            _ if call.parts.is(place, "CH") => options.count_changed = true,
            _ => break,
        }
        place += 1;
    }
    let rest = call.parts.len() - place;
    if rest == 0 || !rest.is_multiple_of(2) || (options.only_new && options.only_old) {
        return Err(SYNTAX);
    }
    let pairs: Vec<&[u8]> = call.parts.from(place).collect();
    let scores: Option<Vec<f64>> = pairs.iter().step_by(2).map(|text| number(text)).collect();
    let scores = scores.ok_or(NO_FLOAT)?;
    let mut count = 0;
    for (score, member) in scores.into_iter().zip(pairs.iter().skip(1).step_by(2)) {
        count += i64::from(add_one(call, call.parts.get(1), score, member, &options)?);
    }
    call.reply.integer(count);
    Ok(())
}

/// Adds a member; returns whether it counts in the answer.
fn add_one(call: &Call, set: &[u8], score: f64, member: &[u8], options: &AddOptions) -> Result<bool, Failure> {
    call.retry(|| {
        let (head, value) = read(call, set, member)?;
        let old = score_of(value.as_deref());
        let allowed = if old.is_some() { !options.only_new } else { !options.only_old };
        if !allowed || old == Some(score) {
            return Ok(Some(false));
        }
        let put = |key, bytes: &[u8]| Operation::Change { key, change: Change::Put(bytes.to_vec()) };
        let mut steps = vec![Operation::CompareAndSwap {
            key: member_key(call, set, member),
            expect: as_read(value.as_deref()),
            change: Change::Put(score.to_le_bytes().to_vec()),
        }];
        if let Some(old) = old {
            steps.push(Operation::Change { key: order_key(call, set, old, member), change: Change::Delete });
        }
        steps.push(put(order_key(call, set, score, member), b""));
        if old.is_none() {
            steps.push(counted(call, set, head.as_deref(), 1));
        }
        let counts = old.is_none() || options.count_changed;
        Ok(call.together(steps)?.map(|_| counts))
    })
}

/// The step that changes the number of members; removing the last member removes the set.
fn counted(call: &Call, set: &[u8], head: Option<&[u8]>, by: i64) -> Operation {
    let count = head.and_then(|head| head.get(1..)?.first_chunk()).map_or(0, |count| i64::from_le_bytes(*count)) + by;
    let change = match count {
        0 => Change::Delete,
        count => Change::Put([&[SORTED][..], &count.to_le_bytes()].concat()),
    };
    Operation::CompareAndSwap { key: call.key(set), expect: as_read(head), change }
}

pub(super) fn remove(call: &mut Call) -> Result<(), Failure> {
    let mut count = 0;
    for member in call.parts.from(2) {
        count += i64::from(remove_one(call, call.parts.get(1), member)?);
    }
    call.reply.integer(count);
    Ok(())
}

fn remove_one(call: &Call, set: &[u8], member: &[u8]) -> Result<bool, Failure> {
    call.retry(|| {
        let (head, value) = read(call, set, member)?;
        let Some(score) = score_of(value.as_deref()) else { return Ok(Some(false)) };
        let steps = vec![
            Operation::CompareAndSwap {
                key: member_key(call, set, member),
                expect: value.map_or(Expect::Absent, Expect::Value),
                change: Change::Delete,
            },
            Operation::Change { key: order_key(call, set, score, member), change: Change::Delete },
            counted(call, set, head.as_deref(), -1),
        ];
        Ok(call.together(steps)?.map(|_| true))
    })
}

/// Removes every member of a set, and the set with the last one.
pub(super) fn delete_members(call: &Call, set: &[u8]) -> Result<(), Failure> {
    let prefix = prefix(MEMBER, set);
    loop {
        let names = call.names(&prefix, &[], NAMES_AT_ONCE)?;
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            remove_one(call, set, &name[prefix.len()..])?;
        }
    }
}

pub(super) fn score(call: &mut Call) -> Result<(), Failure> {
    let (_, value) = read(call, call.parts.get(1), call.parts.get(2))?;
    match score_of(value.as_deref()) {
        Some(score) => call.reply.score(score),
        None => call.reply.null(),
    }
    Ok(())
}

pub(super) fn count(call: &mut Call) -> Result<(), Failure> {
    let head = call.read(&call.key(call.parts.get(1)))?;
    let count = content(&head, SORTED)?.and_then(|count| count.first_chunk()).map_or(0, |c| i64::from_le_bytes(*c));
    call.reply.integer(count);
    Ok(())
}

/// A limit of a range of scores.
#[derive(Clone, Copy)]
struct Bound {
    score: f64,
    /// Whether the bound itself is excluded.
    open: bool,
}

fn bound(text: &[u8]) -> Result<Bound, Failure> {
    let (open, text) = match text.split_first() {
        Some((b'(', text)) => (true, text),
        _ => (false, text),
    };
    Ok(Bound { score: number(text).ok_or(NO_BOUND)?, open })
}

/// Members in a range of scores, in order, without the first `skip`, at most `count`.
fn between(call: &Call, least: Bound, most: Bound, skip: usize, count: usize) -> Result<Vec<(Vec<u8>, f64)>, Failure> {
    let set = call.parts.get(1);
    content(&call.read(&call.key(set))?, SORTED)?;
    let prefix = prefix(ORDER, set);
    // In a name, the score is followed by a 0, so every name with this score comes after this prefix.
    let mut after = [&prefix[..], &ordered(least.score)].concat();
    let (mut found, mut skip) = (Vec::new(), skip);
    while found.len() < count {
        let wanted = (count - found.len()).saturating_add(skip).min(NAMES_AT_ONCE);
        let names = call.names(&prefix, &after, wanted)?;
        for name in &names {
            let Some((score, member)) = name[prefix.len()..].split_first_chunk() else { continue };
            let (score, member) = (from_ordered(*score), member.get(1..).unwrap_or_default());
            if score > most.score || (most.open && score == most.score) {
                return Ok(found);
            }
            if least.open && score == least.score {
                continue;
            }
            if skip > 0 {
                skip -= 1;
            } else if found.len() < count {
                found.push((member.to_vec(), score));
            }
        }
        match names.last() {
            Some(last) if names.len() >= wanted => after.clone_from(last),
            _ => break,
        }
    }
    Ok(found)
}

fn answer(call: &mut Call, members: &[(Vec<u8>, f64)], scores: bool) {
    call.reply.array(if scores { members.len() * 2 } else { members.len() });
    for (member, score) in members {
        call.reply.bulk(member);
        if scores {
            call.reply.bulk(crate::resp::reply::score_text(*score).as_bytes());
        }
    }
}

pub(super) fn by_score(call: &mut Call) -> Result<(), Failure> {
    let (least, most) = (bound(call.parts.get(2))?, bound(call.parts.get(3))?);
    let (mut scores, mut skip, mut count) = (false, 0, usize::MAX);
    let mut place = 4;
    while place < call.parts.len() {
        if call.parts.is(place, "WITHSCORES") {
            scores = true;
            place += 1;
        } else if call.parts.is(place, "LIMIT") && place + 2 < call.parts.len() {
            skip = usize::try_from(call.parts.integer(place + 1)?).unwrap_or(usize::MAX);
            count = usize::try_from(call.parts.integer(place + 2)?).unwrap_or(usize::MAX);
            place += 3;
        } else {
            return Err(SYNTAX);
        }
    }
    let members = between(call, least, most, skip, count)?;
    answer(call, &members, scores);
    Ok(())
}

pub(super) fn count_between(call: &mut Call) -> Result<(), Failure> {
    let (least, most) = (bound(call.parts.get(2))?, bound(call.parts.get(3))?);
    let count = between(call, least, most, 0, usize::MAX)?.len();
    call.reply.integer(count as i64);
    Ok(())
}

pub(super) fn by_rank(call: &mut Call) -> Result<(), Failure> {
    let scores = call.parts.is(4, "WITHSCORES");
    if call.parts.len() == 5 && !scores {
        return Err(SYNTAX);
    }
    let (first, last) = (call.parts.integer(2)?, call.parts.integer(3)?);
    let everything = |score| Bound { score, open: false };
    let (least, most) = (everything(f64::NEG_INFINITY), everything(f64::INFINITY));
    let wanted = if first >= 0 && last >= 0 { (last as usize).saturating_add(1) } else { usize::MAX };
    let all = between(call, least, most, 0, wanted)?;
    let length = all.len() as i64;
    let from_end = |number: i64| if number < 0 { number.saturating_add(length).max(0) } else { number };
    let (first, last) = (from_end(first), if last < 0 { last + length } else { last }.min(length - 1));
    let members = if first > last { &[][..] } else { &all[first as usize..=last as usize] };
    let members = members.to_vec();
    answer(call, &members, scores);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_ordered_as_their_bytes_are() {
        let scores = [f64::NEG_INFINITY, -1e300, -2.0, -1.5, -f64::MIN_POSITIVE, 0.0, 1e-9, 1.0, 2.0, f64::INFINITY];
        assert!(scores.windows(2).all(|pair| ordered(pair[0]) < ordered(pair[1])));
        assert!(scores.iter().all(|score| from_ordered(ordered(*score)) == *score));
        assert_eq!(number(b"-0"), Some(0.0));
        assert_eq!(number(b"-0").map(ordered), Some(ordered(0.0)));
        assert_eq!((number(b"+inf"), number(b"nan"), number(b"1x")), (Some(f64::INFINITY), None, None));
    }
}
