//! Who a client is, and its sessions at servers.
//!
//! Promises: a request that is done once goes out in a session that its server has not ended for silence, as far as can be
//! told here. A client whose number another process of its host has draws another one, a bounded number of times; all its
//! sessions are then opened anew, because they are the number's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use trellis_base::Random;
use trellis_fabric_protocol::wire::address::{Host, HostPrefix, Incarnation, Source};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{Body, Operation, Status};

use super::asking::{Failure, Wanted};
use super::{Client, Welcome};

/// So many numbers are tried. A host has 1,024 sessions at a server and 32,768 numbers: each is taken in one of 32 cases.
const DRAWS_MAX: u32 = 16;

pub(super) struct Sessions {
    /// Drawn once: tells a server that it is the same process.
    identity: u64,
    /// Its numbers follow from one that nobody can foretell.
    draws: Random,
    incarnation: Incarnation,
    open: BTreeMap<Host, Session>,
}

struct Session {
    epoch: u64,
    /// The server heard of this client then, or later.
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

    /// What every address of this client begins with.
    pub(super) fn source(&self, prefix: HostPrefix) -> [u8; 8] {
        let HostPrefix { cluster, host } = prefix;
        let source = Source { cluster, host, incarnation: self.incarnation, request: 0 }.encode();
        *source.0.first_chunk().expect("an address is longer than half of it")
    }

    /// Zero, which is no session's and refused, where there is none.
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

    /// There is one, and its server will not end it for silence soon.
    fn is_open(&self, home: Host, now: Instant) -> bool {
        self.open.get(&home).is_some_and(|session| now.saturating_duration_since(session.heard) < session.silence / 2)
    }

    fn draw_again(&mut self) {
        self.incarnation = Incarnation::new(self.draws.draw() as u16);
        self.open.clear();
    }
}

impl Client {
    /// The epoch of the session at a server; opens one where there is none.
    pub(super) fn session(&mut self, home: Host) -> Result<u64, Failure> {
        match self.meet(&[home]).remove(&home) {
            Some(failure) => Err(failure),
            None => Ok(self.sessions.epoch(home)),
        }
    }

    /// What a server says when it is greeted, even if there is a session.
    pub(super) fn greet(&mut self, home: Host) -> Result<Welcome, Failure> {
        self.sessions.forget(home);
        self.session(home)?;
        let refused = |status| Failure::Refused { command: Command::Hello, pointer: self.host_pointer(home), status };
        self.sessions.open.get(&home).map(|session| session.welcome).ok_or_else(|| refused(Status::Denied))
    }

    /// Opens sessions at those of the servers where there are none; who would not have it, and why. The epochs of all are
    /// other ones afterwards if the client's number was taken at one of them.
    pub(super) fn meet(&mut self, homes: &[Host]) -> BTreeMap<Host, Failure> {
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

    /// HELLO to servers, all at the same time; who did not welcome this client.
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
