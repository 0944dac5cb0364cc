//! The whole contract of a store, for our own client.
//!
//! | command | answer |
//! |---|---|
//! | `TRELLIS.APPLY flags lane number milliseconds call` | the result (`codec` encodes both) |
//! | `TRELLIS.GET key...` | values |
//! | `TRELLIS.NUMBERS region kind from count` | numbers |
//! | `TRELLIS.NAMES region count [after]` | names |
//! | `TRELLIS.CAPABILITIES` | numbers, as [`capabilities`] lists them |
//!
//! The flags are those of the script in Redis: 1 for a call that waits while it is refused, 2 for one that was sent
//! before. A call that changes something has a lane and an increasing number. The answer of each lane's last call is
//! kept, so that a repeated call is answered and not carried out again. The kept answers are lost with this process; a
//! new `session` in the answer to `HELLO` then shows that they were.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use trellis_base::{Deadline, Limit};

use super::{After, Call, Failure};
use crate::capabilities::Atomic;
use crate::codec;
use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::Applied;
use crate::resp::server::Shared;
use crate::resp::waiting::{Wait, Waiter};

/// How long an answer is kept at least.
const KEPT: Duration = Duration::from_secs(600);
/// The number of lanes above which old ones are removed.
const LANES: usize = 4096;
/// The longest time that a client may wait in one call.
pub(crate) const WAIT: Deadline = Deadline {
    who: "a client of `store serve --resp` that waits for a change",
    waits_for: "the change, as long as it asks for and no longer than this",
    limit: Limit::seconds(86_400),
    then: "an empty answer",
    tested: "it takes a day",
};

/// The last call of each lane.
pub(in crate::resp) struct Lanes {
    lanes: HashMap<Vec<u8>, Last>,
    /// The number of lanes at which old ones are removed next.
    limit: usize,
}

struct Last {
    number: Vec<u8>,
    state: State,
    at: Instant,
}

enum State {
    /// A thread carries it out.
    Running,
    /// It is waiting.
    Waiting(Arc<Waiter>),
    /// It was answered.
    Answered(Vec<u8>),
}

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes { lanes: HashMap::new(), limit: LANES }
    }
}

impl Lanes {
    fn begin(&mut self, lane: &[u8], number: &[u8]) {
        if self.lanes.len() >= self.limit {
            self.lanes.retain(|_, last| !matches!(last.state, State::Answered(_)) || last.at.elapsed() < KEPT);
            self.limit = (self.lanes.len() * 2).max(LANES);
        }
        let last = Last { number: number.to_vec(), state: State::Running, at: Instant::now() };
        self.lanes.insert(lane.to_vec(), last);
    }

    /// Records that a call waits.
    pub(in crate::resp) fn wait(&mut self, lane: &[u8], number: &[u8], waiter: &Arc<Waiter>) {
        if let Some(last) = self.lanes.get_mut(lane).filter(|last| last.number == number) {
            last.state = State::Waiting(Arc::clone(waiter));
        }
    }

    /// Records the answer of a call. A call that failed may be repeated.
    pub(in crate::resp) fn end(&mut self, lane: &[u8], number: &[u8], answer: Option<&[u8]>) {
        let Some(last) = self.lanes.get_mut(lane).filter(|last| last.number == number) else { return };
        match answer {
            Some(answer) => {
                last.state = State::Answered(answer.to_vec());
                last.at = Instant::now();
            }
            None => drop(self.lanes.remove(lane)),
        }
    }
}

/// The lanes, locked; the holder must not wait for anything.
pub(in crate::resp) fn locked(shared: &Shared) -> MutexGuard<'_, Lanes> {
    shared.lanes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The message that tells our own client of a failure of the store.
pub(in crate::resp) fn refusal(error: &StoreError) -> String {
    let kind = match error {
        StoreError::Unsupported { .. } | StoreError::TooLarge { .. } => "unsupported",
        StoreError::Unreachable { .. } | StoreError::Deadline { .. } => "unreachable",
        StoreError::OutcomeUnknown { .. } => "unknown",
        _ => "protocol",
    };
    format!("TRELLIS {kind} {error}")
}

/// What is known of a call from its lane.
enum Known {
    /// The call is new.
    New,
    /// It was answered.
    Answered(Vec<u8>),
    /// It is waiting, and this client now receives its answer.
    Waits(Arc<Waiter>),
    /// It is being carried out; the client must ask again.
    Busy,
    /// A later call of the lane was answered.
    Old,
}

fn known(shared: &Shared, lane: &[u8], number: &[u8]) -> Known {
    let mut lanes = locked(shared);
    match lanes.lanes.get(lane) {
        Some(last) if last.number.as_slice() > number => Known::Old,
        Some(last) if last.number == number => match &last.state {
            State::Running => Known::Busy,
            State::Waiting(waiter) => Known::Waits(Arc::clone(waiter)),
            State::Answered(answer) => Known::Answered(answer.clone()),
        },
        _ => {
            lanes.begin(lane, number);
            Known::New
        }
    }
}

pub(super) fn apply(call: &mut Call) -> Result<(), Failure> {
    let flags = call.parts.integer(1)?;
    let (lane, number) = (call.parts.get(2), call.parts.get(3));
    let milliseconds = (call.parts.integer(4)?.max(0) as u64).min(WAIT.milliseconds());
    let Some((operations, guard)) = codec::decode_call(call.parts.get(5)) else {
        return Err(Failure::Text("TRELLIS protocol these bytes are no call; do both sides have the same version?"));
    };
    if !lane.is_empty() {
        match known(call.shared, lane, number) {
            Known::New => {}
            Known::Answered(answer) => {
                call.reply.bulk(&answer);
                return Ok(());
            }
            Known::Waits(waiter) => {
                call.after = After::Wait(Wait::Join(waiter));
                return Ok(());
            }
            Known::Busy => return Err(Failure::Text("BUSY this call is under way")),
            Known::Old => return Err(Failure::Text("TRELLIS protocol this call was given up")),
        }
    }
    let applied = call.shared.store.apply(&operations, guard.as_ref());
    match applied {
        Ok(Applied::Refused(..)) if flags % 2 == 1 && milliseconds > 0 => {
            let deadline = Instant::now() + Duration::from_millis(milliseconds);
            let (lane, number) = (lane.to_vec(), number.to_vec());
            call.after = After::Wait(Wait::Start { operations, guard, deadline, lane, number });
        }
        Ok(applied) => {
            let answer = codec::encode_applied(&applied);
            if !lane.is_empty() {
                locked(call.shared).end(lane, number, Some(&answer));
            }
            call.reply.bulk(&answer);
        }
        Err(error) => {
            locked(call.shared).end(lane, number, None);
            call.reply.error(&refusal(&error));
        }
    }
    Ok(())
}

pub(super) fn get(call: &mut Call) -> Result<(), Failure> {
    let keys: Option<Vec<Key>> = call.parts.from(1).map(Key::decode).collect();
    let keys = keys.ok_or(Failure::Text("TRELLIS protocol these bytes are no key"))?;
    match call.shared.store.get_many(&keys) {
        Ok(values) => {
            call.reply.array(values.len());
            values.iter().for_each(|value| call.reply.optional(value.as_deref()));
        }
        Err(error) => call.reply.error(&refusal(&error)),
    }
    Ok(())
}

/// An unsigned number.
fn unsigned(text: &[u8]) -> Result<u64, Failure> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(super::NO_INTEGER)
}

/// A region number.
fn region(text: &[u8]) -> Result<u32, Failure> {
    u32::try_from(unsigned(text)?).map_err(|_| super::NO_INTEGER)
}

pub(super) fn numbers(call: &mut Call) -> Result<(), Failure> {
    let kind = u8::try_from(unsigned(call.parts.get(2))?).ok().and_then(Kind::from_number);
    let kind = kind.ok_or(super::NO_INTEGER)?;
    let (from, count) = (unsigned(call.parts.get(3))?, unsigned(call.parts.get(4))?);
    match call.shared.store.numbers(region(call.parts.get(1))?, kind, from, count as usize) {
        Ok(numbers) => {
            call.reply.array(numbers.len());
            numbers.iter().for_each(|number| call.reply.bulk(number.to_string().as_bytes()));
        }
        Err(error) => call.reply.error(&refusal(&error)),
    }
    Ok(())
}

pub(super) fn names(call: &mut Call) -> Result<(), Failure> {
    let after = (call.parts.len() == 4).then(|| call.parts.get(3));
    let count = unsigned(call.parts.get(2))? as usize;
    match call.shared.store.names(region(call.parts.get(1))?, after, count) {
        Ok(names) => {
            call.reply.array(names.len());
            names.iter().for_each(|name| call.reply.bulk(name));
        }
        Err(error) => call.reply.error(&refusal(&error)),
    }
    Ok(())
}

/// Atomic over a whole call, byte ranges, native addition, durable (0 or 1 each); the maximum length of a value, number
/// of steps and length of a call.
pub(super) fn capabilities(call: &mut Call) -> Result<(), Failure> {
    let can = call.shared.can;
    let facts = [can.atomic == Atomic::Call, can.byte_ranges, can.native_add, can.durable];
    let limits = [can.value_bytes_max, can.operations_max, can.call_bytes_max];
    call.reply.array(facts.len() + limits.len());
    facts.iter().for_each(|fact| call.reply.integer(i64::from(*fact)));
    limits.iter().for_each(|limit| call.reply.integer(i64::try_from(*limit).unwrap_or(i64::MAX)));
    Ok(())
}
