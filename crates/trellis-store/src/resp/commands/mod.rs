//! The commands that clients may send.
//!
//! It promises that a refusal is the whole answer: a command writes its answer only after it has succeeded.

mod hashes;
mod keys;
mod server;
mod sorted;
mod strings;
mod transactions;
pub(crate) mod trellis;
mod value;

use std::collections::HashMap;
use std::sync::LazyLock;

use super::reply::Reply;
use super::request::{self, Place};
use super::server::Shared;
use super::waiting::Wait;
use crate::error::StoreError;
use crate::key::Key;
use transactions::Transaction;

pub(super) use keys::Cursors;
pub(super) use trellis::Lanes;

/// The function that carries out a command.
type Run = fn(&mut Call) -> Result<(), Failure>;

/// A command: its name, the minimum and maximum number of parts of its request, and its function.
type Command = (&'static str, usize, usize, Run);

/// No maximum number of parts.
const MANY: usize = usize::MAX;

/// The names of all commands.
pub const COMMANDS: &[&str] = &{
    let mut names = [""; TABLE.len()];
    let mut place = 0;
    while place < TABLE.len() {
        names[place] = TABLE[place].0;
        place += 1;
    }
    names
};

const TABLE: &[Command] = &[
    ("GET", 2, 2, strings::get),
    ("SET", 3, MANY, strings::set),
    ("SETNX", 3, 3, strings::set_new),
    ("GETSET", 3, 3, strings::get_and_set),
    ("GETDEL", 2, 2, strings::get_and_delete),
    ("GETRANGE", 4, 4, strings::get_range),
    ("SUBSTR", 4, 4, strings::get_range),
    ("SETRANGE", 4, 4, strings::set_range),
    ("APPEND", 3, 3, strings::append),
    ("STRLEN", 2, 2, strings::length),
    ("INCR", 2, 2, strings::increment),
    ("DECR", 2, 2, strings::decrement),
    ("INCRBY", 3, 3, strings::increment_by),
    ("DECRBY", 3, 3, strings::decrement_by),
    ("MGET", 2, MANY, strings::get_many),
    ("MSET", 3, MANY, strings::set_many),
    ("MSETNX", 3, MANY, strings::set_many_new),
    ("HSET", 4, MANY, hashes::set),
    ("HMSET", 4, MANY, hashes::set_ok),
    ("HSETNX", 4, 4, hashes::set_new),
    ("HGET", 3, 3, hashes::get),
    ("HMGET", 3, MANY, hashes::get_many),
    ("HGETALL", 2, 2, hashes::get_all),
    ("HKEYS", 2, 2, hashes::names),
    ("HVALS", 2, 2, hashes::values),
    ("HDEL", 3, MANY, hashes::delete),
    ("HEXISTS", 3, 3, hashes::exists),
    ("HLEN", 2, 2, hashes::length),
    ("HSTRLEN", 3, 3, hashes::value_length),
    ("HINCRBY", 4, 4, hashes::increment_by),
    ("ZADD", 4, MANY, sorted::add),
    ("ZREM", 3, MANY, sorted::remove),
    ("ZSCORE", 3, 3, sorted::score),
    ("ZCARD", 2, 2, sorted::count),
    ("ZCOUNT", 4, 4, sorted::count_between),
    ("ZRANGE", 4, 5, sorted::by_rank),
    ("ZRANGEBYSCORE", 4, 8, sorted::by_score),
    ("DEL", 2, MANY, keys::delete),
    ("UNLINK", 2, MANY, keys::delete),
    ("EXISTS", 2, MANY, keys::exists),
    ("TYPE", 2, 2, keys::kind),
    ("TTL", 2, 2, keys::time_to_live),
    ("PTTL", 2, 2, keys::time_to_live),
    ("PERSIST", 2, 2, keys::persist),
    ("KEYS", 2, 2, keys::keys),
    ("SCAN", 2, 8, keys::scan),
    ("DBSIZE", 1, 1, keys::count),
    ("FLUSHDB", 1, 2, keys::flush),
    ("MULTI", 1, 1, transactions::begin),
    ("EXEC", 1, 1, transactions::execute),
    ("DISCARD", 1, 1, transactions::discard),
    ("WATCH", 2, MANY, transactions::watch),
    ("UNWATCH", 1, 1, transactions::unwatch),
    ("PING", 1, 2, server::ping),
    ("ECHO", 2, 2, server::echo),
    ("SELECT", 2, 2, server::select),
    ("AUTH", 2, 3, server::authenticate),
    ("HELLO", 1, 7, server::hello),
    ("CLIENT", 2, MANY, server::client),
    ("COMMAND", 1, MANY, server::command),
    ("CONFIG", 2, MANY, server::config),
    ("INFO", 1, MANY, server::info),
    ("TIME", 1, 1, server::time),
    ("RESET", 1, 1, server::reset),
    ("QUIT", 1, 1, server::quit),
    ("TRELLIS.APPLY", 6, 6, trellis::apply),
    ("TRELLIS.GET", 2, MANY, trellis::get),
    ("TRELLIS.NUMBERS", 5, 5, trellis::numbers),
    ("TRELLIS.NAMES", 3, 4, trellis::names),
    ("TRELLIS.CAPABILITIES", 1, 1, trellis::capabilities),
];

static BY_NAME: LazyLock<HashMap<&'static [u8], &'static Command>> =
    LazyLock::new(|| TABLE.iter().map(|command| (command.0.as_bytes(), command)).collect());

/// Why a command had no effect.
pub(super) enum Failure {
    /// An error text of Redis.
    Text(&'static str),
    /// An error text of this server.
    Sentence(String),
    /// The store failed.
    Store(StoreError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        Failure::Store(error)
    }
}

impl Failure {
    fn text(&self) -> String {
        match self {
            Failure::Text(text) => (*text).to_owned(),
            Failure::Sentence(text) => format!("ERR {text}"),
            Failure::Store(error) => format!("ERR {error}"),
        }
    }
}

const WRONG_TYPE: Failure = Failure::Text("WRONGTYPE Operation against a key holding the wrong kind of value");
const NO_INTEGER: Failure = Failure::Text("ERR value is not an integer or out of range");
const SYNTAX: Failure = Failure::Text("ERR syntax error");

/// The state of a client's session.
pub(super) struct Session {
    /// Whether the client has given the password, or none is required.
    known: bool,
    /// Whether the client uses version 3 of the protocol.
    pub(super) three: bool,
    database: u32,
    number: u64,
    name: Vec<u8>,
    transaction: Transaction,
    /// Whether the client waits for an answer of another thread.
    pub(super) waiting: bool,
}

impl Session {
    pub(super) fn new(known: bool, number: u64) -> Session {
        Session {
            known,
            three: false,
            database: 0,
            number,
            name: Vec::new(),
            transaction: Transaction::default(),
            waiting: false,
        }
    }

    pub(super) fn is_known(&self) -> bool {
        self.known
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waiting
    }
}

/// The parts of a request.
#[derive(Clone, Copy)]
pub(super) struct RequestParts<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) places: &'a [Place],
}

impl<'a> RequestParts<'a> {
    fn len(&self) -> usize {
        self.places.len()
    }

    /// Part `place`; part 0 is the command's name.
    fn get(&self, place: usize) -> &'a [u8] {
        let (from, to) = self.places[place];
        &self.bytes[from..to]
    }

    fn from(&self, place: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.places[place.min(self.places.len())..].iter().map(move |(from, to)| &bytes[*from..*to])
    }

    fn integer(&self, place: usize) -> Result<i64, Failure> {
        request::integer(self.get(place)).ok_or(NO_INTEGER)
    }

    /// Whether a part equals this word, given in capitals, in any case.
    fn is(&self, place: usize, word: &str) -> bool {
        place < self.len() && self.get(place).eq_ignore_ascii_case(word.as_bytes())
    }
}

/// How to continue after a command.
pub(super) enum After {
    /// With the next command.
    Next,
    /// By closing the connection.
    Close,
    /// After another thread has answered.
    Wait(Wait),
}

/// A command that is carried out.
pub(super) struct Call<'a> {
    shared: &'a Shared,
    session: &'a mut Session,
    parts: RequestParts<'a>,
    reply: Reply<'a>,
    after: After,
}

/// Carries out a request.
pub(super) fn run(shared: &Shared, session: &mut Session, parts: RequestParts, out: &mut Vec<u8>) -> After {
    let three = session.three;
    let mut upper = [0; 24];
    let name = parts.get(0);
    let command = upper.get_mut(..name.len()).and_then(|upper| {
        upper.copy_from_slice(name);
        upper.make_ascii_uppercase();
        BY_NAME.get(&*upper)
    });
    let checked = check(shared, session, command.copied(), parts);
    let mut reply = Reply::new(out, three);
    let command = match checked {
        Ok(command) => command,
        Err(failure) => {
            session.transaction.spoil();
            reply.error(&failure.text());
            return After::Next;
        }
    };
    if session.transaction.keeps(command.0) {
        match session.transaction.keep(parts) {
            Ok(()) => reply.status("QUEUED"),
            Err(failure) => reply.error(&failure.text()),
        }
        return After::Next;
    }
    let mut call = Call { shared, session, parts, reply, after: After::Next };
    match (command.3)(&mut call) {
        Ok(()) => call.after,
        Err(failure) => {
            call.reply.error(&failure.text());
            After::Next
        }
    }
}

fn check(
    shared: &Shared,
    session: &Session,
    command: Option<&'static Command>,
    parts: RequestParts,
) -> Result<&'static Command, Failure> {
    let allowed = |command: &Command| session.known || matches!(command.0, "AUTH" | "HELLO" | "QUIT" | "RESET");
    if !session.known && !command.is_some_and(allowed) {
        return Err(Failure::Text("NOAUTH Authentication required."));
    }
    let Some(command) = command else {
        let name = String::from_utf8_lossy(&parts.get(0)[..parts.get(0).len().min(64)]).into_owned();
        let what = format!("unknown command '{name}'; {} has strings, hashes and sorted sets", shared.store.name());
        return Err(Failure::Sentence(what));
    };
    if parts.len() < command.1 || parts.len() > command.2 {
        let name = command.0.to_ascii_lowercase();
        return Err(Failure::Sentence(format!("wrong number of arguments for '{name}' command")));
    }
    Ok(command)
}

impl Call<'_> {
    /// The region that holds this client's keys.
    fn region(&self) -> u32 {
        self.shared.region.wrapping_add(self.session.database)
    }

    /// The store's key for a client's key.
    fn key(&self, name: &[u8]) -> Key {
        self.key_of(value::PLAIN, name)
    }

    fn key_of(&self, kind: u8, name: &[u8]) -> Key {
        let mut short = [0; 128];
        match short.get_mut(..=name.len()) {
            Some(short) => {
                short[0] = kind;
                short[1..].copy_from_slice(name);
                Key::named(self.region(), short)
            }
            None => Key::named(self.region(), &[&[kind][..], name].concat()),
        }
    }

    /// The value of a client's key, including the byte that gives its type.
    fn read(&self, key: &Key) -> Result<Option<Vec<u8>>, Failure> {
        Ok(self.shared.store.get_many(std::slice::from_ref(key))?.pop().flatten())
    }
}
