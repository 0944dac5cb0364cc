//! A client's identity, and its sessions at servers.
//!
//! Promises: a request that is done once is sent in a session that its server has not ended for silence, as far as can
//! be known here. A client whose number is used by another process of its host picks another random one, a bounded
//! number of times; all its sessions are then opened again, because they belong to the number. It must never reuse a
//! session under another number.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use trellis_base::Random;
use trellis_fabric_protocol::wire::address::{Host, HostPrefix, Incarnation, Source};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{Body, Operation, Status};

use super::asking::{Failure, Wanted};
use super::{Client, Welcome};

/// The maximum number of attempts. A host has at most 1,024 sessions at a server and 32,768 numbers, so that an attempt
/// fails in one of 32 cases.
const DRAWS_MAX: u32 = 16;

pub(super) struct Sessions {
    /// A random value that identifies this process to servers.
    identity: u64,
    /// The sequence of its numbers, from an unpredictable seed.
    draws: Random,
    incarnation: Incarnation,
    open: BTreeMap<Host, Session>,
}

struct Session {
    epoch: u64,
    /// The server has heard this client at this time or later.
    heard: Instant,
    silence: Duration,
    welcome: Welcome,
}

impl Sessions {
    pub(super) fn new(identity: u64, mut draws: Random) -> Sessions {
        let incarnation = Incarnation::new(draws.draw() as u16);
        Sessions { identity, draws, incarnation, open: BTreeMap::new() }
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The first bytes of every address of this client.
    pub(super) fn source(&self, prefix: HostPrefix) -> [u8; 8] {
        let HostPrefix { cluster, host } = prefix;
        let source = Source { cluster, host, incarnation: self.incarnation, request: 0 }.encode();
        *source.0.first_chunk().expect("an address is longer than half of it")
    }

    /// The epoch of the session; zero, which servers refuse, if there is none.
    pub(super) fn epoch(&self, home: Host) -> u64 {
        self.open.get(&home).map_or(0, |session| session.epoch)
    }

    pub(super) fn forget(&mut self, home: Host) {
        self.open.remove(&home);
    }

    pub(super) fn heard(&mut self, home: Host, at: Instant) {
        if let Some(session) = self.open.get_mut(&home) {
            session.heard = session.heard.max(at);
        }
    }

    /// Whether there is a session that its server will not end for silence soon.
    fn is_open(&self, home: Host, now: Instant) -> bool {
        self.open.get(&home).is_some_and(|session| now.saturating_duration_since(session.heard) < session.silence / 2)
    }

    fn draw_again(&mut self) {
        self.incarnation = Incarnation::new(self.draws.draw() as u16);
        self.open.clear();
    }
}

impl Client {
    /// The epoch of the session at a server; opens a session if there is none.
    pub(super) fn session(&mut self, home: Host) -> Result<u64, Failure> {
        match self.open_sessions(&[home]).remove(&home) {
            Some(failure) => Err(failure),
            None => Ok(self.sessions.epoch(home)),
        }
    }

    /// A server's answer to HELLO, which is sent even if there is a session.
    pub(super) fn renew_session(&mut self, home: Host) -> Result<Welcome, Failure> {
        self.sessions.forget(home);
        self.session(home)?;
        let refused = |status| Failure::Refused { command: Command::Hello, pointer: self.host_pointer(home), status };
        self.sessions.open.get(&home).map(|session| session.welcome).ok_or_else(|| refused(Status::Denied))
    }

    /// Opens missing sessions at these servers; returns those that refused, with the reason. If the client's number was
    /// in use at one of them, all epochs change.
    pub(super) fn open_sessions(&mut self, homes: &[Host]) -> BTreeMap<Host, Failure> {
        let mut failed = BTreeMap::new();
        let now = Instant::now();
        let mut strange: BTreeSet<Host> =
            homes.iter().copied().filter(|home| !self.sessions.is_open(*home, now)).collect();
        for draws_left in (0..DRAWS_MAX).rev() {
            if strange.is_empty() {
                break;
            }
            let mut is_taken = false;
            for (home, failure) in self.say_hello(&strange) {
                match failure {
                    Failure::Refused { status: Status::Denied, .. } if draws_left > 0 => is_taken = true,
                    failure => drop(failed.insert(home, failure)),
                }
            }
            strange.clear();
            if is_taken {
                self.sessions.draw_again();
                self.exchange.set_source(self.sessions.source(self.options.prefix));
                strange.extend(homes.iter().filter(|home| !failed.contains_key(home)));
            }
        }
        failed
    }

    /// Sends HELLO to servers, to all at the same time; returns those that did not accept.
    fn say_hello(&mut self, homes: &BTreeSet<Host>) -> Vec<(Host, Failure)> {
        let operation = Operation::Hello { identity: self.sessions.identity };
        let wanted: Vec<Wanted<'_>> =
            homes.iter().map(|home| Wanted::plain(self.host_pointer(*home), Command::Hello, operation)).collect();
        let began = Instant::now();
        let mut welcomes = Vec::new();
        let ends = self.ask(&wanted.iter().collect::<Vec<_>>(), &mut |number, reply, _| {
            if let Body::Welcome { quota_bytes, used_bytes, silence_ms, .. } = reply.body {
                let silence = Duration::from_millis(silence_ms.into());
                let welcome = Welcome { quota_bytes, used_bytes };
                welcomes.push((number, Session { epoch: reply.epoch, heard: began, silence, welcome }));
            }
            true
        });
        for (number, session) in welcomes {
            self.sessions.open.insert(wanted[number].pointer.home(), session);
        }
        let ends = wanted.iter().zip(ends);
        ends.filter_map(|(wanted, end)| match end {
            Ok(Status::Ok) => None,
            Ok(status) => Some((wanted.pointer.home(), wanted.refused(status))),
            Err(why) => Some((wanted.pointer.home(), why)),
        })
        .collect()
    }
}
