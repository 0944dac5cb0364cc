//! The store `redis`: any server that speaks the Redis protocol and runs scripts, and our own front end.
//!
//! Promises one round trip for every call, also for one that waits. Values are plain strings of Redis, so that ranges of
//! bytes are read and written in place; a call that changes something is one script (`redis/apply.lua`), which does all
//! of it or nothing.
//!
//! **Once.** Callers use *lanes*: a connection, a name, and a number that grows with each call that changes something. The
//! script keeps the last number of each lane with its answer, for ten minutes, in the same atomic step as the change. When
//! a connection ends before the answer came, the same call goes again under the same number on a new connection: the
//! script answers from what it kept if the first copy had arrived, and a first copy that arrives late finds that its
//! number was answered. So it does not matter where a connection is cut. When no new connection comes about in time, the
//! error is [`StoreError::OutcomeUnknown`].
//!
//! **Waiting.** A lane subscribes to a channel of its own name when it connects (that needs version 3 of the protocol). A
//! call that is refused and may wait is left with the server, under the keys that decide: the one that refused, and the
//! guard's. Every script that changes something looks, in the same atomic step, whether a call waits for one of the keys it
//! changed, does these calls in the order in which they came, keeps their answers as it keeps its own, and publishes them
//! to their lanes. No wake-up is lost:
//!
//! - between refusal and registration nothing can happen, since both are one script;
//! - the decision of a refusing step depends on its key and on steps before it of the same call, which are the same each
//!   time they are tried, so only a change of that key (or of the guard) can turn it; where another key refuses at the
//!   next try, the call is registered under that one;
//! - an answer that was published into a connection that had ended is found again under its number by the new connection;
//! - a caller whose connection the server knows to have ended has no subscription, so its call is forgotten and nothing is
//!   taken for it; when it lives, it connects again and sends its call again, which looks anew;
//! - a caller that gives up sends its call once more without waiting: that takes it from the list or finds its answer.
//!
//! **Not there yet.** A server that still loads what it kept answers, and does nothing. It is waited for as long as it gets on
//! with that, which is said on standard error; when it gets no further for a deadline, that is the error.
//!
//! What a dead machine (as against a dead process) waited for may be taken for it until TCP notices; leases are for that.
//!
//! It must never change a key outside of `trellis:`, and never show a password.

mod address;
mod connection;
mod lane;
mod listing;
mod loading;
mod refusals;
mod reply;
mod script;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::capabilities::{Atomic, Capabilities};
use crate::codec;
use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::{Applied, Guard, Operation, Outcome};
use crate::steps;
use crate::store::{self, Store};
use address::Address;
use connection::Commands;
use lane::Lane;
use reply::Reply;
use script::{Arguments, CallKind, Runner};

/// The most connections that are kept for later.
const LANES_KEPT_MAX: usize = 64;
/// The most keys that are read with one command.
const KEYS_MAX: usize = 4096;

/// What Redis can do.
const CAPABILITIES: Capabilities = Capabilities {
    atomic: Atomic::Call,
    byte_ranges: true,
    native_add: true,
    wait: true,
    durable: false,
    shared: true,
    value_bytes_max: 16 << 20,
    operations_max: 1 << 14,
    call_bytes_max: 64 << 20,
};

/// A client of a server.
pub struct Redis {
    address: Address,
    /// How long an answer may take, and how long a connection that ended is tried again.
    deadline: Duration,
    /// When it was last said that the server is not there yet.
    told_of_loading: Mutex<Option<Instant>>,
    /// Names this client to the server; the same for no two.
    client: String,
    server: OnceLock<Server>,
    lanes: Mutex<Vec<Lane>>,
    lanes_made: AtomicU32,
}

/// What is known of a server since it was first talked to.
struct Server {
    /// Whether it is our own front end.
    ours: bool,
    /// How it runs the script.
    runner: Runner,
    /// A number that the server lost if it lost everything.
    incarnation: Vec<u8>,
    can: Capabilities,
}

/// Opens `redis://`.
pub(super) fn open(url: &str, rest: &str, deadline: Duration) -> Result<Arc<dyn Store>, StoreError> {
    Redis::open(Address::tcp(url, rest)?, deadline)
}

/// Opens `redis+unix:`.
pub(super) fn open_unix(url: &str, path: &str, deadline: Duration) -> Result<Arc<dyn Store>, StoreError> {
    Redis::open(Address::unix(url, path)?, deadline)
}

impl Redis {
    fn open(address: Address, deadline: Duration) -> Result<Arc<dyn Store>, StoreError> {
        let redis = Redis {
            client: client_name(&address.shown)?,
            address,
            deadline,
            told_of_loading: Mutex::default(),
            server: OnceLock::new(),
            lanes: Mutex::default(),
            lanes_made: AtomicU32::new(0),
        };
        let mut lane = redis.lane();
        lane.open_first(&redis)?;
        redis.keep(lane);
        Ok(Arc::new(redis))
    }

    fn server(&self) -> &Server {
        self.server.get().expect("a store is there when its server is known")
    }

    /// A lane that nobody uses.
    fn lane(&self) -> Lane {
        let kept = self.lanes.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.unwrap_or_else(|| {
            let number = self.lanes_made.fetch_add(1, Ordering::Relaxed);
            Lane::new(format!("{}:{number}", self.client))
        })
    }

    fn keep(&self, lane: Lane) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if lanes.len() < LANES_KEPT_MAX {
            lanes.push(lane);
        }
    }

    /// Reads something: asks as often as the connection ends.
    fn read(&self, what: &str, commands: &Commands, answers: usize) -> Result<Vec<Reply>, StoreError> {
        let mut lane = self.lane();
        let replies = lane.read(self, what, commands, answers);
        self.keep(lane);
        replies
    }

    /// Changes something, or reads it in a call of several steps.
    fn call(
        &self,
        operations: &[Operation],
        guard: Option<&Guard>,
        deadline: Option<Instant>,
    ) -> Result<Applied, StoreError> {
        let what = format!("a call of {} steps", operations.len());
        let kind = CallKind::of(operations);
        let mut lane = self.lane();
        let answer = if self.server().ours {
            let call = codec::encode_call(operations, guard);
            lane.call(self, &what, kind, deadline, &mut |commands, how| how.ours(commands, &call))
        } else {
            let arguments = Arguments::new(operations, guard);
            lane.call(self, &what, kind, deadline, &mut |commands, how| {
                arguments.write(commands, how.script(), how.first());
            })
        };
        self.keep(lane);
        let answer = answer?;
        if let Some((b'X', error)) = answer.split_first() {
            return Err(refusals::refusal(self.name(), &String::from_utf8_lossy(error)));
        }
        codec::decode_applied(&answer).ok_or_else(|| self.strange(&what))
    }

    /// One step that only reads, without a script.
    fn get(&self, key: &Key, range: Option<(u32, u32)>) -> Result<Option<Vec<u8>>, StoreError> {
        let Some((offset, length)) = range.filter(|(_, length)| *length > 0) else {
            let whole = self.get_many(std::slice::from_ref(key))?.remove(0);
            return Ok(whole.map(|value| steps::part(&value, range).to_vec()));
        };
        let name = script::name(key);
        let mut commands = Commands::default();
        let last = u64::from(offset) + u64::from(length) - 1;
        commands.command(&[b"GETRANGE", &name, offset.to_string().as_bytes(), last.to_string().as_bytes()]);
        commands.command(&[b"EXISTS", &name]);
        let what = "a read of some bytes";
        let mut replies = self.read(what, &commands, 2)?.into_iter();
        match (replies.next(), replies.next()) {
            (Some(Reply::Bulk(Some(bytes))), Some(Reply::Integer(_))) if !bytes.is_empty() => Ok(Some(bytes)),
            (Some(Reply::Bulk(Some(_))), Some(Reply::Integer(0))) => Ok(None),
            // There is a value, but was there one when its bytes were read? The script sees one moment.
            (Some(Reply::Bulk(Some(_))), Some(Reply::Integer(_))) => {
                match self.call(&[Operation::Get { key: key.clone(), range }], None, None)? {
                    Applied::Done(mut outcomes) if outcomes.len() == 1 => match outcomes.remove(0) {
                        Outcome::Value(value) => Ok(value),
                        _ => Err(self.strange(what)),
                    },
                    _ => Err(self.strange(what)),
                }
            }
            _ => Err(self.strange(what)),
        }
    }

    fn strange(&self, what: &str) -> StoreError {
        let reason = format!("its answer to {what} makes no sense");
        StoreError::Protocol { store: self.name().to_owned(), reason }
    }
}

impl Store for Redis {
    fn name(&self) -> &str {
        &self.address.shown
    }

    fn capabilities(&self) -> Capabilities {
        self.server().can
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        steps::check_keys(self.name(), keys)?;
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(KEYS_MAX) {
            let mut commands = Commands::default();
            let ours = self.server().ours;
            commands.begin(keys.len() + 1).part(if ours { b"TRELLIS.GET" } else { b"MGET" });
            for key in keys {
                commands.part(&if ours { key.encode() } else { script::name(key) });
            }
            let what = "a read of values";
            let Some(Reply::Array(found)) = self.read(what, &commands, 1)?.pop() else {
                return Err(self.strange(what));
            };
            if found.len() != keys.len() {
                return Err(self.strange(what));
            }
            for value in found {
                let Reply::Bulk(value) = value else { return Err(self.strange(what)) };
                values.push(value);
            }
        }
        Ok(values)
    }

    fn apply(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        steps::check(self.name(), &self.server().can, operations, guard)?;
        if let ([Operation::Get { key, range }], None, false) = (operations, guard, self.server().ours) {
            return Ok(Applied::Done(vec![Outcome::Value(self.get(key, *range)?)]));
        }
        self.call(operations, guard, None)
    }

    fn apply_when(
        &self,
        operations: &[Operation],
        guard: Option<&Guard>,
        deadline: Instant,
    ) -> Result<Applied, StoreError> {
        steps::check(self.name(), &self.server().can, operations, guard)?;
        if !self.server().can.wait {
            return store::ask_again(self, operations, guard, deadline);
        }
        let waits = deadline > Instant::now();
        self.call(operations, guard, waits.then_some(deadline))
    }

    fn numbers(&self, region: u32, kind: Kind, from: u64, count: usize) -> Result<Vec<u64>, StoreError> {
        listing::numbers(self, region, kind, from, count)
    }

    fn names(&self, region: u32, after: Option<&[u8]>, count: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        listing::names(self, region, after, count)
    }
}

/// Sixteen bytes that nobody else has.
fn client_name(store: &str) -> Result<String, StoreError> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom").and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes)).map_err(
        |error| StoreError::Unreachable { store: store.to_owned(), reason: format!("/dev/urandom: {error}") },
    )?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
