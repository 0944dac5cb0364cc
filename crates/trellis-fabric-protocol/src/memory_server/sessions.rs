//! Clients of a memory server, and the answers to their requests that are carried out once.
//!
//! # Exactly once
//!
//! A client opens a *session* (HELLO) and names its epoch in every request that is to be carried out once. In one session a
//! request id is carried out at most once: the answer is kept, and a repeated request gets the same answer, whatever it is.
//! An epoch is never given twice, so a request of a session that is over is fenced, however late it arrives.
//!
//! Memory is bounded because a client waits: it sends a request with id *n* only when all its requests up to *n* -
//! [`WINDOW`] at this server are answered. So answers to ids that are [`WINDOW`] or more below the highest are no longer
//! needed and are forgotten. A request with such an id is a late duplicate; it is not carried out, and is fenced. A client
//! that breaks this rule hurts only itself: its request is fenced, never done twice.
//!
//! A session ends when its client has been silent for a time, or when the client is known to be gone; everything that was
//! kept for it goes with it. The number of sessions is bounded, in total and per host; beyond the bounds HELLO is answered
//! BUSY.

use crate::Nanoseconds;
use crate::wire::address::{Address, Host, Incarnation, Source};
use crate::wire::datagram::{Reply, Status};
use alloc::collections::BTreeMap;

/// How many request ids below the highest one are remembered, this one included.
pub const WINDOW: u64 = 64;

/// A process of a host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Client {
    /// Its host.
    pub host: Host,
    /// The random number that it chose at its start.
    pub incarnation: Incarnation,
}

impl Client {
    /// The client that sent this request.
    pub const fn of(source: &Source) -> Client {
        Client { host: source.host, incarnation: source.incarnation }
    }
}

/// Bounds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SessionLimits {
    /// The largest number of sessions at a time.
    pub sessions_max: usize,
    /// The largest number of one host's sessions.
    pub sessions_per_host_max: usize,
    /// A session ends after this long without a request.
    pub silence_max: Nanoseconds,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sessions {
    open: BTreeMap<Client, Session>,
    limits: SessionLimits,
    next_epoch: u64,
    pub(super) ended: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Session {
    epoch: u64,
    identity: u64,
    heard: Nanoseconds,
    /// The highest request id so far.
    highest: u64,
    /// By request id; those that are [`WINDOW`] below the highest are gone.
    kept: BTreeMap<u64, RequestRecord>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RequestRecord {
    destination: Address,
    /// `None` while it is being carried out.
    reply: Option<Reply>,
}

/// The state of a request that is to be carried out once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It never came.
    New,
    /// It is being carried out.
    Running,
    /// It was carried out, with this answer.
    Answered(Reply),
    /// There is no such session, or the request is older than what is remembered.
    Fenced,
    /// The id was used for another place or command.
    Reused,
}

impl Sessions {
    /// No sessions. Epochs begin with the server's own incarnation, so those of its previous boot are never given
    /// again.
    pub(super) fn new(limits: SessionLimits, incarnation: u16) -> Sessions {
        Sessions { open: BTreeMap::new(), limits, next_epoch: (u64::from(incarnation) << 48) + 1, ended: 0 }
    }

    /// HELLO: the epoch of the client's session, which is opened unless there is one.
    pub(super) fn open(&mut self, now: Nanoseconds, client: Client, identity: u64) -> Result<u64, Status> {
        let silence_max = self.limits.silence_max;
        if let Some(session) = self.open.get_mut(&client).filter(|it| !it.is_silent(now, silence_max)) {
            if session.identity != identity {
                return Err(Status::Denied);
            }
            session.heard = session.heard.max(now);
            return Ok(session.epoch);
        }
        self.end(client);
        if self.open.len() >= self.limits.sessions_max || self.of_host(client.host) >= self.limits.sessions_per_host_max
        {
            self.end_silent(now);
        }
        if self.open.len() >= self.limits.sessions_max || self.of_host(client.host) >= self.limits.sessions_per_host_max
        {
            return Err(Status::Busy);
        }
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        self.open.insert(client, Session { epoch, identity, heard: now, highest: 0, kept: BTreeMap::new() });
        Ok(epoch)
    }

    /// The state of request `id`, whose header has `epoch`. The request keeps the session open.
    pub(super) fn standing(
        &mut self,
        now: Nanoseconds,
        client: Client,
        epoch: u64,
        id: u64,
        destination: Address,
    ) -> Standing {
        let silence_max = self.limits.silence_max;
        let Some(session) = self.open.get_mut(&client) else { return Standing::Fenced };
        if session.epoch != epoch || session.is_silent(now, silence_max) {
            return Standing::Fenced;
        }
        session.heard = session.heard.max(now);
        match session.kept.get(&id) {
            Some(kept) if kept.destination != destination => Standing::Reused,
            Some(RequestRecord { reply: Some(reply), .. }) => Standing::Answered(*reply),
            Some(_) => Standing::Running,
            None if session.is_forgotten(id) => Standing::Fenced,
            None => Standing::New,
        }
    }

    /// The request starts to be carried out, or was (`reply`). What fell out of the window is forgotten.
    pub(super) fn keep(&mut self, client: Client, epoch: u64, id: u64, destination: Address, reply: Option<Reply>) {
        let Some(session) = self.open.get_mut(&client).filter(|session| session.epoch == epoch) else { return };
        if session.is_forgotten(id) {
            return;
        }
        session.kept.insert(id, RequestRecord { destination, reply });
        session.highest = session.highest.max(id);
        while let Some(entry) = session.kept.first_entry().filter(|it| session.highest - it.key() >= WINDOW) {
            entry.remove();
        }
        debug_assert!(session.kept.len() as u64 <= WINDOW);
    }

    /// Whether this session is open.
    pub(super) fn is_open(&self, client: Client, epoch: u64) -> bool {
        self.open.get(&client).is_some_and(|session| session.epoch == epoch)
    }

    /// Forgets a client. Returns whether it was known.
    pub(super) fn end(&mut self, client: Client) -> bool {
        let was_open = self.open.remove(&client).is_some();
        self.ended += u64::from(was_open);
        was_open
    }

    /// Ends every session whose client was silent for too long.
    pub(super) fn end_silent(&mut self, now: Nanoseconds) {
        let before = self.open.len();
        let silence_max = self.limits.silence_max;
        self.open.retain(|_, session| !session.is_silent(now, silence_max));
        self.ended += (before - self.open.len()) as u64;
    }

    pub(super) fn count(&self) -> usize {
        self.open.len()
    }

    /// The number of answers kept.
    pub(super) fn kept(&self) -> usize {
        self.open.values().map(|session| session.kept.len()).sum()
    }

    fn of_host(&self, host: Host) -> usize {
        let (first, last) = (Incarnation::new(0), Incarnation::new(u16::MAX));
        let range = Client { host, incarnation: first }..=Client { host, incarnation: last };
        self.open.range(range).count()
    }
}

impl Session {
    fn is_silent(&self, now: Nanoseconds, silence_max: Nanoseconds) -> bool {
        now.saturating_sub(self.heard) > silence_max
    }

    fn is_forgotten(&self, id: u64) -> bool {
        self.highest.saturating_sub(id) >= WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::address::{Arguments, Cluster, Pointer};
    use crate::wire::command::Command;
    use crate::wire::datagram::{Body, TagKind};

    const LIMITS: SessionLimits = SessionLimits { sessions_max: 4, sessions_per_host_max: 2, silence_max: 100 };

    fn client(host: u16, random_number: u16) -> Client {
        Client { host: Host(host), incarnation: Incarnation::new(random_number) }
    }

    fn place(offset: u64) -> Address {
        let pointer = Pointer::new(Cluster::new(1).unwrap(), Host(9), 1, offset).unwrap();
        pointer.request(Command::FetchAdd, Arguments::NONE).encode()
    }

    fn reply(client: Client, id: u64) -> Reply {
        Reply {
            to: Source {
                cluster: Cluster::new(1).unwrap(),
                host: client.host,
                incarnation: client.incarnation,
                request: id,
            },
            from: place(0),
            status: Status::Ok,
            tag_kind: TagKind::Checksum,
            is_several: false,
            is_last: false,
            is_release: false,
            epoch: 0,
            body: Body::Value(id),
        }
    }

    #[test]
    fn an_answer_is_kept_and_repeated() {
        let mut sessions = Sessions::new(LIMITS, 3);
        let a = client(1, 7);
        let epoch = sessions.open(0, a, 11).unwrap();
        assert_eq!(epoch >> 48, 3);
        assert_eq!(sessions.standing(1, a, epoch, 5, place(0)), Standing::New);
        sessions.keep(a, epoch, 5, place(0), None);
        assert_eq!(sessions.standing(1, a, epoch, 5, place(0)), Standing::Running);
        sessions.keep(a, epoch, 5, place(0), Some(reply(a, 5)));
        assert_eq!(sessions.standing(1, a, epoch, 5, place(0)), Standing::Answered(reply(a, 5)));
        assert_eq!(sessions.standing(1, a, epoch, 5, place(8)), Standing::Reused);
        assert_eq!(sessions.standing(1, a, epoch + 1, 5, place(0)), Standing::Fenced);
        assert_eq!(sessions.standing(1, client(1, 8), epoch, 5, place(0)), Standing::Fenced);
    }

    #[test]
    fn what_falls_out_of_the_window_is_fenced_and_never_done_again() {
        let mut sessions = Sessions::new(LIMITS, 0);
        let a = client(1, 7);
        let epoch = sessions.open(0, a, 11).unwrap();
        // In any order, as long as the window is kept.
        for id in (1..=WINDOW).rev().chain(WINDOW + 1..=3 * WINDOW) {
            assert_eq!(sessions.standing(1, a, epoch, id, place(0)), Standing::New, "{id}");
            sessions.keep(a, epoch, id, place(0), Some(reply(a, id)));
            assert!(sessions.kept() as u64 <= WINDOW);
        }
        assert_eq!(sessions.kept() as u64, WINDOW);
        for id in 1..=3 * WINDOW {
            let expected = if id <= 2 * WINDOW { Standing::Fenced } else { Standing::Answered(reply(a, id)) };
            assert_eq!(sessions.standing(1, a, epoch, id, place(0)), expected, "{id}");
        }
        // What ended too late for the window is not put back.
        sessions.keep(a, epoch, 1, place(0), Some(reply(a, 1)));
        assert_eq!(sessions.kept() as u64, WINDOW);
        sessions.keep(a, epoch, u64::MAX, place(0), Some(reply(a, 1)));
        assert_eq!(sessions.kept(), 1, "a jump forgets the rest");
        assert_eq!(sessions.standing(1, a, epoch, u64::MAX - 1, place(0)), Standing::New);
    }

    #[test]
    fn a_session_of_zero_ids_begins_anywhere() {
        let mut sessions = Sessions::new(LIMITS, 0);
        let a = client(1, 7);
        let epoch = sessions.open(0, a, 1).unwrap();
        for id in [0, 40, 63] {
            assert_eq!(sessions.standing(0, a, epoch, id, place(0)), Standing::New, "{id}");
            sessions.keep(a, epoch, id, place(0), Some(reply(a, id)));
        }
        assert_eq!(sessions.standing(0, a, epoch, 0, place(0)), Standing::Answered(reply(a, 0)));
    }

    #[test]
    fn silence_ends_a_session_and_its_epoch_never_comes_again() {
        let mut sessions = Sessions::new(LIMITS, 0);
        let a = client(1, 7);
        let epoch = sessions.open(0, a, 11).unwrap();
        sessions.keep(a, epoch, 1, place(0), Some(reply(a, 1)));
        assert_eq!(sessions.open(90, a, 11), Ok(epoch), "hello again");
        assert_eq!(sessions.standing(180, a, epoch, 1, place(0)), Standing::Answered(reply(a, 1)), "heard at 180");
        assert_eq!(sessions.standing(281, a, epoch, 1, place(0)), Standing::Fenced, "even before anybody cleared up");
        assert_eq!(sessions.count(), 1);
        let later = sessions.open(281, a, 11).unwrap();
        assert!(later > epoch);
        assert_eq!((sessions.count(), sessions.kept(), sessions.ended), (1, 0, 1));
        assert_eq!(sessions.standing(281, a, epoch, 1, place(0)), Standing::Fenced);
        sessions.keep(a, epoch, 2, place(0), Some(reply(a, 2)));
        assert_eq!(sessions.kept(), 0, "what ended after the session did is not kept");
        assert!(sessions.end(a) && !sessions.end(a));
    }

    #[test]
    fn two_processes_that_drew_the_same_are_told_apart() {
        let mut sessions = Sessions::new(LIMITS, 0);
        let a = client(1, 7);
        let epoch = sessions.open(0, a, 11).unwrap();
        assert_eq!(sessions.open(50, a, 12), Err(Status::Denied));
        assert!(
            sessions.open(101, a, 12).is_ok_and(|later| later != epoch),
            "the first is silent: it was not heard at 50"
        );
    }

    #[test]
    fn sessions_are_bounded_in_all_and_for_each_host() {
        let mut sessions = Sessions::new(LIMITS, 0);
        assert!(sessions.open(0, client(1, 1), 0).is_ok() && sessions.open(50, client(1, 2), 0).is_ok());
        assert_eq!(sessions.open(60, client(1, 3), 0), Err(Status::Busy), "two of one host");
        assert!(sessions.open(60, client(2, 1), 0).is_ok() && sessions.open(60, client(2, 2), 0).is_ok());
        assert_eq!(sessions.open(100, client(3, 1), 0), Err(Status::Busy), "four in all");
        assert!(sessions.open(101, client(3, 1), 0).is_ok(), "the first is silent");
        assert_eq!(sessions.count(), 4);
        sessions.end_silent(1000);
        assert_eq!((sessions.count(), sessions.ended), (0, 5));
    }
}
