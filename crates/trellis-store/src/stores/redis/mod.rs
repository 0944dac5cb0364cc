//! The store `redis`: any server that speaks the Redis protocol and runs scripts, and our own front end.
//!
//! Promises one round trip for every call, including a call that waits. Values are plain strings of Redis, so that byte
//! ranges are read and written in place. A call that changes something is one script (`redis/apply.lua`), which carries
//! out all of it or nothing.
//!
//! **Once.** Callers use *lanes*: a connection, a name, and a number that increases with each call that changes
//! something. In the same atomic step as the change, the script stores the last number of each lane with its answer,
//! for ten minutes. If a connection ends before the answer arrives, the same call is sent again under the same number
//! on a new connection. If the first copy had arrived, the script returns the stored answer. A first copy that arrives
//! late finds that its number was answered. It therefore does not matter where a connection is cut. If no new
//! connection can be made in time, the error is [`StoreError::OutcomeUnknown`].
//!
//! **Waiting.** When a lane connects, it subscribes to a channel of its own name (this needs version 3 of the protocol).
//! A call that is refused and may wait is registered with the server, under the keys that decide: the key that refused
//! and the guard's. Every script that changes something checks, in the same atomic step, whether calls wait for the
//! keys it changed. It carries out these calls in the order in which they arrived, stores their answers like its own,
//! and publishes them to their lanes. No wake-up is lost:
//!
//! - nothing can happen between refusal and registration, since both are in one script;
//! - the decision of a refusing step depends on its key and on earlier steps of the same call, which are the same at each
//!   attempt, so only a change of that key (or of the guard) can reverse it; if another key refuses at the next attempt,
//!   the call is registered under that one;
//! - an answer that was published into a connection that had ended is found under its number by the new connection;
//! - if the server knows that a caller's connection has ended, the caller has no subscription, so its call is dropped and
//!   acquires nothing; if the caller is alive, it reconnects and sends its call again, which is evaluated again;
//! - a caller that gives up sends its call once more without waiting: this removes the registration or finds the answer.
//!
//! **Loading.** A server that is still loading its data answers but carries out nothing. Calls wait for it as long as it
//! makes progress, which is reported on standard error. If it makes no progress within a deadline, the call fails.
//!
//! A call of a machine that has failed (rather than of a process that has ended) may still be carried out until TCP
//! notices the failure; leases cover this case.
//!
//! It must never change a key outside `trellis:`, and never show a password.

mod address;
pub(crate) mod connection;
mod lane;
mod listing;
pub(crate) mod loading;
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

/// The maximum number of connections that are kept for reuse.
const LANES_KEPT_MAX: usize = 64;
/// The maximum number of keys that are read with one command.
const KEYS_MAX: usize = 4096;

/// The capabilities of a Redis server.
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
    /// How long an answer may take, and for how long a lost connection is retried.
    deadline: Duration,
    /// When it was last reported that the server is loading.
    reported_loading: Mutex<Option<Instant>>,
    /// Names this client to the server; unique.
    client: String,
    server: OnceLock<ServerFacts>,
    lanes: Mutex<Vec<Lane>>,
    lanes_made: AtomicU32,
}

/// What was learnt about a server at the first connection.
struct ServerFacts {
    /// Whether it is our own front end.
    ours: bool,
    /// How it runs the script.
    runner: Runner,
    /// A number that the server keeps as long as its data.
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
            reported_loading: Mutex::default(),
            server: OnceLock::new(),
            lanes: Mutex::default(),
            lanes_made: AtomicU32::new(0),
        };
        let mut lane = redis.lane();
        lane.open_first(&redis)?;
        redis.keep(lane);
        Ok(Arc::new(redis))
    }

    fn server(&self) -> &ServerFacts {
        self.server.get().expect("a store is there when its server is known")
    }

    /// An unused lane.
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

    /// Reads; asks again whenever the connection ends.
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
            // There is a value now, but it may have been created after its bytes were read. The script sees a single
            // moment.
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

/// Sixteen random bytes.
fn client_name(store: &str) -> Result<String, StoreError> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom").and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes)).map_err(
        |error| StoreError::Unreachable { store: store.to_owned(), reason: format!("/dev/urandom: {error}") },
    )?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
