//! A lane: a connection under a name, with the number of its last call.
//!
//! A lane is used by one caller at a time, so at most one of its calls is under way. It promises that a call is
//! repeated until it is answered or its time is over, always under the same number.

use std::io;
use std::time::{Duration, Instant};

use super::connection::{Commands, Connection};
use super::loading::Loading;
use super::reply::Reply;
use super::script::{self, CallKind, Runner};
use super::{CAPABILITIES, Redis, ServerFacts, refusals};
use crate::capabilities::{Atomic, Capabilities};
use crate::error::StoreError;

/// A lane.
pub(super) struct Lane {
    name: String,
    number: u64,
    connection: Option<Connection>,
    /// As long as this is unchanged, our own front end keeps its earlier answers.
    session: Vec<u8>,
}

/// The parameters of one attempt to send a call.
pub(super) struct How<'a> {
    script: [&'a [u8]; 2],
    flags: &'static [u8],
    lane: &'a [u8],
    number: &'a [u8],
    /// How long the front end may wait.
    milliseconds: u64,
}

impl<'a> How<'a> {
    /// The command that runs the script, and the script's name, hash or text.
    pub(super) fn script(&self) -> [&'a [u8]; 2] {
        self.script
    }

    /// The first three arguments of the script.
    pub(super) fn first(&self) -> [&'a [u8]; 3] {
        [self.flags, self.lane, self.number]
    }

    /// Writes the command of our own front end.
    pub(super) fn ours(&self, commands: &mut Commands, call: &[u8]) {
        let milliseconds = self.milliseconds.to_string();
        commands.command(&[b"TRELLIS.APPLY", self.flags, self.lane, self.number, milliseconds.as_bytes(), call]);
    }
}

/// Writes a call for one attempt.
type Write<'a> = &'a mut dyn FnMut(&mut Commands, &How);

/// Why an attempt failed.
pub(super) enum Failure {
    /// The connection ended or could not be made.
    Connection(io::Error),
    /// The server refused the call for now and did nothing.
    ForNow(String),
    /// Another attempt makes no sense.
    Final(StoreError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Connection(error)
    }
}

/// Until when attempts are repeated, and the pause before the next one.
struct Timeout {
    limit: Duration,
    until: Option<Instant>,
    pause: Duration,
    loading: Loading,
}

impl Timeout {
    fn new(limit: Duration) -> Timeout {
        Timeout { limit, until: None, pause: Duration::from_millis(1), loading: Loading::default() }
    }

    /// Like [`Timeout::again`], after the server has refused a call for now: as long as it makes progress with loading,
    /// the time does not run out.
    fn again_after(&mut self, redis: &Redis, line: &str) -> bool {
        if refusals::is_loading(line) && self.loading.gets_on(redis) {
            self.until = None;
        }
        self.again()
    }

    /// Pauses; returns false when the time is over.
    fn again(&mut self) -> bool {
        let now = Instant::now();
        let until = *self.until.get_or_insert(now + self.limit);
        if now >= until {
            return false;
        }
        std::thread::sleep(self.pause.min(until - now));
        self.pause = (self.pause * 2).min(Duration::from_millis(100));
        true
    }
}

impl Lane {
    pub(super) fn new(name: String) -> Lane {
        Lane { name, number: 0, connection: None, session: Vec::new() }
    }

    /// Connects for the first time; only a server that is loading is retried.
    pub(super) fn open_first(&mut self, redis: &Redis) -> Result<(), StoreError> {
        let mut timeout = Timeout::new(redis.deadline);
        loop {
            match self.connect(redis) {
                Ok(_) => return Ok(()),
                Err(Failure::ForNow(line)) if timeout.again_after(redis, &line) => {}
                Err(Failure::ForNow(line)) => return Err(not_in_time(redis, &line)),
                Err(Failure::Connection(error)) => return Err(failed(redis, "the first hello", &error)),
                Err(Failure::Final(error)) => return Err(error),
            }
        }
    }

    /// Sends commands that only read, and reads their answers.
    pub(super) fn read(
        &mut self,
        redis: &Redis,
        what: &str,
        commands: &Commands,
        answers: usize,
    ) -> Result<Vec<Reply>, StoreError> {
        let mut timeout = Timeout::new(redis.deadline);
        loop {
            match self.read_once(redis, commands, answers) {
                Ok(replies) => return Ok(replies),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::ForNow(line)) if timeout.again_after(redis, &line) => {}
                Err(Failure::ForNow(line)) => return Err(not_in_time(redis, &line)),
                Err(Failure::Connection(error)) => {
                    self.connection = None;
                    if error.kind() == io::ErrorKind::InvalidData || !timeout.again() {
                        return Err(failed(redis, what, &error));
                    }
                }
            }
        }
    }

    fn read_once(&mut self, redis: &Redis, commands: &Commands, answers: usize) -> Result<Vec<Reply>, Failure> {
        let connection = self.connect(redis)?;
        connection.send(commands)?;
        let mut replies = Vec::with_capacity(answers);
        let mut refused = None;
        for _ in 0..answers {
            match connection.answer()? {
                Reply::Error(line) => refused = Some(line),
                reply => replies.push(reply),
            }
        }
        match refused {
            None => Ok(replies),
            Some(line) => Err(refusal(redis, line)),
        }
    }

    /// Sends a call until it is answered.
    pub(super) fn call(
        &mut self,
        redis: &Redis,
        what: &str,
        kind: CallKind,
        deadline: Option<Instant>,
        write: Write,
    ) -> Result<Vec<u8>, StoreError> {
        let reads = kind == CallKind::Reads;
        // Only a call that changes something, or waits, must be distinguished from its copies.
        let numbered = !reads || deadline.is_some();
        self.number += u64::from(numbered);
        let kind = if numbered && reads { CallKind::Changes } else { kind };
        let mut call = Call {
            redis,
            kind,
            numbered,
            deadline,
            sent: false,
            session: Vec::new(),
            loaded: false,
            text: None,
            timeout: Timeout::new(redis.deadline),
        };
        loop {
            let failure = match call.once(self, write) {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => continue,
                Err(failure) => failure,
            };
            let (reason, error) = match failure {
                Failure::ForNow(line) if call.timeout.again_after(redis, &line) => continue,
                Failure::ForNow(line) => (line.clone(), not_in_time(redis, &line)),
                Failure::Final(error) => (error.to_string(), error),
                Failure::Connection(error) => {
                    self.connection = None;
                    if error.kind() != io::ErrorKind::InvalidData && call.timeout.again() {
                        continue;
                    }
                    (error.to_string(), failed(redis, what, &error))
                }
            };
            // A copy that was sent before may have been done, or may still arrive.
            let unknown = call.sent && !reads;
            let store = redis.address.shown.clone();
            return Err(if unknown {
                StoreError::OutcomeUnknown { store, what: what.to_owned(), reason }
            } else {
                error
            });
        }
    }

    /// The connection; a new one if there is none.
    fn connect(&mut self, redis: &Redis) -> Result<&mut Connection, Failure> {
        if self.connection.is_none() {
            self.connection = Some(self.connected(redis)?);
        }
        Ok(self.connection.as_mut().expect("it was just made"))
    }

    fn connected(&mut self, redis: &Redis) -> Result<Connection, Failure> {
        let mut connection = Connection::open(&redis.address.place, redis.deadline)?;
        let hello = say_hello(redis, &mut connection)?;
        self.session.clone_from(&hello.session);
        if redis.address.database != 0 {
            let database = redis.address.database.to_string();
            ask(redis, &mut connection, &[b"SELECT", database.as_bytes()])?;
        }
        let server = match redis.server.get() {
            Some(server) => {
                let incarnation = match hello.ours {
                    true => Some(hello.incarnation),
                    false => ask(redis, &mut connection, &[b"GET", b"trellis:incarnation"])?.into_bytes(),
                };
                if incarnation.as_ref() != Some(&server.incarnation) {
                    return Err(Failure::Final(StoreError::Protocol {
                        store: redis.address.shown.clone(),
                        reason: "it was started again and has lost everything it kept; begin again, and let it keep \
                                 an append-only file (appendonly yes, appendfsync always) if that must not happen"
                            .to_owned(),
                    }));
                }
                server
            }
            None => {
                let server = look(redis, &mut connection, hello)?;
                redis.server.get_or_init(|| server)
            }
        };
        if server.can.wait && !server.ours {
            connection.send(Commands::default().command(&[b"SUBSCRIBE", channel(&self.name).as_bytes()]))?;
            if let Reply::Error(line) = connection.answer_or_message()? {
                return Err(refusal(redis, line));
            }
        }
        Ok(connection)
    }
}

/// A call that is carried out.
struct Call<'a> {
    redis: &'a Redis,
    kind: CallKind,
    numbered: bool,
    /// Until when it may wait; `None` if it may not, or no longer.
    deadline: Option<Instant>,
    /// Whether a copy may be under way.
    sent: bool,
    /// The session that knows whether it was done.
    session: Vec<u8>,
    /// Whether the library was loaded again.
    loaded: bool,
    /// The script's text, for a server that does not know its hash.
    text: Option<String>,
    timeout: Timeout,
}

impl Call<'_> {
    /// Makes one attempt; `None` if the call must be sent again at once.
    fn once(&mut self, lane: &mut Lane, write: Write) -> Result<Option<Vec<u8>>, Failure> {
        let server = self.redis.server.get();
        let ours = server.is_some_and(|server| server.ours);
        let runner = server.map(|server| &server.runner);
        let text = self.text.take();
        lane.connect(self.redis)?;
        if self.sent && self.numbered && lane.session != self.session {
            let reason = "it was started again, and has forgotten what it answered".to_owned();
            let store = self.redis.address.shown.clone();
            return Err(Failure::Final(StoreError::Protocol { store, reason }));
        }
        self.session.clone_from(&lane.session);
        let number = format!("{:016}", lane.number);
        let left = self.deadline.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        let how = How {
            script: match (&text, runner) {
                (Some(text), _) => [b"EVAL", text.as_bytes()],
                (None, Some(runner)) => runner.command(self.kind),
                (None, None) => [b"", b""],
            },
            flags: match (self.deadline.is_some(), self.sent) {
                (false, false) => b"0",
                (true, false) => b"1",
                (false, true) => b"2",
                (true, true) => b"3",
            },
            lane: if self.numbered { lane.name.as_bytes() } else { b"" },
            number: number.as_bytes(),
            milliseconds: left.as_micros().div_ceil(1000) as u64,
        };
        let mut commands = Commands::default();
        write(&mut commands, &how);
        let connection = lane.connect(self.redis)?;
        connection.set_timeout(if ours { self.redis.deadline + left } else { self.redis.deadline })?;
        let sent_before = std::mem::replace(&mut self.sent, true);
        connection.send(&commands)?;
        match connection.answer()? {
            Reply::Bulk(Some(answer)) if answer == b"W" => self.wait(lane, &number),
            Reply::Bulk(Some(answer)) => Ok(Some(answer)),
            // The script did not run: the server was restarted, or its script cache was emptied.
            Reply::Error(line) if line.starts_with("NOSCRIPT") && text.is_none() => {
                self.sent = sent_before;
                self.text = Some(script::text());
                Ok(None)
            }
            Reply::Error(line) if line.starts_with("ERR Function not found") && !self.loaded => {
                self.sent = sent_before;
                self.loaded = true;
                load(self.redis, connection)?;
                Ok(None)
            }
            Reply::Error(line) => {
                self.sent = sent_before;
                Err(refusal(self.redis, line))
            }
            other => {
                let error = format!("it answered {other:?}, which makes no sense");
                Err(Failure::Connection(io::Error::new(io::ErrorKind::InvalidData, error)))
            }
        }
    }

    /// Waits for the published answer.
    fn wait(&mut self, lane: &mut Lane, number: &str) -> Result<Option<Vec<u8>>, Failure> {
        let connection = lane.connect(self.redis)?;
        // From here on, a lost connection has its whole time again.
        self.timeout = Timeout::new(self.redis.deadline);
        let deadline = self.deadline.unwrap_or_else(Instant::now);
        while let Some(parts) = connection.message(deadline)? {
            let payload = parts.into_iter().nth(2).and_then(Reply::into_bytes).unwrap_or_default();
            if let Some(answer) = payload.strip_prefix(number.as_bytes()) {
                return Ok(Some(answer.to_vec()));
            }
        }
        // The time is over. The same call without waiting removes the registration, or finds the answer.
        self.deadline = None;
        Ok(None)
    }
}

fn channel(lane: &str) -> String {
    format!("trellis:wake:{lane}")
}

/// A server's answer to `HELLO`.
pub(super) struct Hello {
    ours: bool,
    /// Whether it pushes messages into a connection that also sends commands.
    pushes: bool,
    cluster: bool,
    incarnation: Vec<u8>,
    session: Vec<u8>,
}

pub(super) fn say_hello(redis: &Redis, connection: &mut Connection) -> Result<Hello, Failure> {
    let credentials = redis.address.credentials.as_ref();
    let mut commands = Commands::default();
    match credentials {
        None => commands.command(&[b"HELLO", b"3"]),
        Some((user, password)) => commands.command(&[b"HELLO", b"3", b"AUTH", user.as_bytes(), password.as_bytes()]),
    };
    connection.send(&commands)?;
    let facts = match connection.answer()? {
        Reply::Array(facts) => facts,
        Reply::Error(line) if refusals::is_unknown(&line) => {
            if let Some((user, password)) = credentials {
                let user = Some(user.as_bytes()).filter(|user| *user != b"default");
                let auth: Vec<&[u8]> = [&b"AUTH"[..]].into_iter().chain(user).chain([password.as_bytes()]).collect();
                ask(redis, connection, &auth)?;
            }
            Vec::new()
        }
        Reply::Error(line) => return Err(refusal(redis, line)),
        _ => {
            return Err(
                io::Error::new(io::ErrorKind::InvalidData, "its answer to HELLO is not the Redis protocol").into()
            );
        }
    };
    let fact = |name: &str| {
        let mut pairs = facts.chunks_exact(2);
        let pair = pairs.find(|pair| pair[0].clone().into_bytes().is_some_and(|key| key == name.as_bytes()));
        pair.map(|pair| pair[1].clone())
    };
    let text = |name| fact(name).and_then(Reply::into_bytes).unwrap_or_default();
    Ok(Hello {
        ours: text("server") == b"trellis",
        pushes: fact("proto") == Some(Reply::Integer(3)),
        cluster: text("mode") == b"cluster",
        incarnation: text("incarnation"),
        session: text("session"),
    })
}

/// Finds out what a server can do.
fn look(redis: &Redis, connection: &mut Connection, hello: Hello) -> Result<ServerFacts, Failure> {
    if hello.ours {
        return Ok(ServerFacts {
            ours: true,
            runner: Runner::Script(String::new()),
            incarnation: hello.incarnation,
            can: capabilities(ask(redis, connection, &[b"TRELLIS.CAPABILITIES"])?),
        });
    }
    if hello.cluster {
        return Err(refusal(redis, "CLUSTERDOWN its mode is `cluster`".to_owned()));
    }
    let info = ask(redis, connection, &[b"INFO"])?.into_bytes().unwrap_or_default();
    let info = String::from_utf8_lossy(&info);
    let fact = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap_or_default().trim()
    };
    let policy = fact("maxmemory_policy");
    if !matches!(fact("maxmemory"), "" | "0") && !matches!(policy, "" | "noeviction") {
        return Err(Failure::Final(StoreError::Unsupported {
            store: redis.address.shown.clone(),
            what: format!(
                "it forgets keys when it is full (maxmemory-policy {policy}), and memory must not be forgotten; set it \
                 to noeviction"
            ),
        }));
    }
    let runner = load(redis, connection)?;
    ask(redis, connection, &[b"SET", b"trellis:incarnation", redis.client.as_bytes(), b"NX"])?;
    let incarnation = ask(redis, connection, &[b"GET", b"trellis:incarnation"])?.into_bytes().unwrap_or_default();
    let can = Capabilities { wait: hello.pushes, durable: fact("aof_enabled") == "1", ..CAPABILITIES };
    Ok(ServerFacts { ours: false, runner, incarnation, can })
}

/// Loads the script into the server: as a library if it supports libraries, otherwise as a script that is called by its
/// hash.
fn load(redis: &Redis, connection: &mut Connection) -> Result<Runner, Failure> {
    let (text, library) = script::library();
    connection.send(Commands::default().command(&[b"FUNCTION", b"LOAD", text.as_bytes()]))?;
    match connection.answer()? {
        Reply::Error(line) if !line.contains("already exists") => {
            if refusals::is_for_now(&line) || !(refusals::is_unknown(&line) || line.starts_with("NOPERM")) {
                return Err(refusal(redis, line));
            }
        }
        _ => return Ok(Runner::Library(library)),
    }
    let hash = ask(redis, connection, &[b"SCRIPT", b"LOAD", script::text().as_bytes()])?.into_bytes();
    match hash.and_then(|hash| String::from_utf8(hash).ok()) {
        Some(hash) => Ok(Runner::Script(hash)),
        None => Err(refusal(redis, "ERR unknown answer to SCRIPT LOAD".to_owned())),
    }
}

/// The capabilities of the store behind our own front end.
fn capabilities(reply: Reply) -> Capabilities {
    let numbers: Vec<usize> = match reply {
        Reply::Array(numbers) => {
            let number = |reply| if let Reply::Integer(number) = reply { number as usize } else { 0 };
            numbers.into_iter().map(number).collect()
        }
        _ => Vec::new(),
    };
    let number = |place: usize| numbers.get(place).copied().unwrap_or(0);
    Capabilities {
        atomic: if number(0) == 1 { Atomic::Call } else { Atomic::Control },
        byte_ranges: number(1) == 1,
        native_add: number(2) == 1,
        wait: true,
        durable: number(3) == 1,
        shared: true,
        value_bytes_max: number(4),
        operations_max: number(5),
        call_bytes_max: number(6),
    }
}

/// Sends one command on a new connection and reads its answer.
pub(super) fn ask(redis: &Redis, connection: &mut Connection, parts: &[&[u8]]) -> Result<Reply, Failure> {
    connection.send(Commands::default().command(parts))?;
    match connection.answer()? {
        Reply::Error(line) => Err(refusal(redis, line)),
        reply => Ok(reply),
    }
}

fn refusal(redis: &Redis, line: String) -> Failure {
    if refusals::is_for_now(&line) {
        return Failure::ForNow(line);
    }
    Failure::Final(refusals::refusal(&redis.address.shown, &line))
}

fn not_in_time(redis: &Redis, line: &str) -> StoreError {
    refusals::not_in_time(&redis.address.shown, line, redis.deadline)
}

fn failed(redis: &Redis, what: &str, error: &io::Error) -> StoreError {
    refusals::failure(&redis.address.shown, what, redis.deadline.as_millis(), error)
}
