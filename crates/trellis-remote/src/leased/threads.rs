//! The threads of a [`super::LeasedPages`]: one receives datagrams and watches the time, one calls events.
//!
//! Promises: a datagram that is not an answer to this process, a notice about its object or a request is dropped. A
//! client whose request arrives here, because a switch believes that the page is here, is told which host is home.
//! Sending must never wait.

use std::time::Duration;

use trellis_fabric_protocol::lease::client::Input;
use trellis_fabric_protocol::lease::{Ask, Effect, Epoch, Message, Party, Status as Outcome, epoch_of};
use trellis_fabric_protocol::memory_server::{Client, lease_server::party_of};
use trellis_fabric_protocol::wire::address::{Address, Arguments, Destination, HostPrefix, Pointer, Source};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{
    Body, Extent, Notice, Operation, Reply, Request, Rules, Status, TagKind, seal,
};
use trellis_transport::links::ipv6::{Arrived, Way};

use super::super::{Hardware, leases};
use super::Shared;
use super::state::{Event, State, new_room};

/// How long the receiving thread waits at most before it checks whether it must end.
const LOOK: Duration = Duration::from_millis(20);

impl Shared {
    /// Receives datagrams until the end.
    pub(super) fn hear(&self) {
        let mut room = new_room();
        loop {
            // An open socket gives no error that another attempt would not give too.
            let came = self.endpoint.receive(&mut room).ok().flatten();
            let wait = {
                let mut state = self.lock();
                if state.is_closed {
                    return;
                }
                let now = self.now();
                if let Some(arrived) = came.filter(|arrived| arrived.bytes <= room.len()) {
                    self.take(&mut state, now, &arrived, &room[..arrived.bytes]);
                    state.keep(&mut room);
                }
                if now >= state.alarm() {
                    state.tick(self, now);
                    self.changed.notify_all();
                }
                Duration::from_nanos(state.alarm().saturating_sub(now))
            };
            if came.is_none() {
                self.endpoint.wait(wait.min(LOOK));
            }
        }
    }

    /// Calls events until the end.
    pub(super) fn call_events(&self) {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return;
            }
            let Some(event) = state.next_event() else {
                state = self.wait(state, Duration::from_secs(1));
                continue;
            };
            drop(state);
            match event {
                Event::Invalidate(page) => self.events.invalidate(page),
                Event::Recalled(page) => self.events.recalled(page),
                Event::Lost(page) => self.events.lost(page),
                Event::Used(page) => {
                    let is_used = self.events.is_used(page);
                    state = self.lock();
                    state.was_used(page, is_used);
                    continue;
                }
            }
            state = self.lock();
            if let Some((page, epoch)) = state.reported(event) {
                self.invalidated(&mut state, page, epoch);
            }
            self.changed.notify_all();
        }
    }

    fn take(&self, state: &mut State, now: u64, arrived: &Arrived, payload: &[u8]) {
        let (source, destination) = (Address(arrived.source), Address(arrived.destination));
        let rules = Rules { cluster: self.options.prefix.cluster, least: TagKind::Checksum, tags: &Hardware };
        if let Ok(reply) = Reply::decode(source, destination, payload, &rules) {
            self.answered(state, now, &reply, payload);
        } else if let Ok(notice) = Notice::decode(source, destination, payload, &rules) {
            self.noticed(state, now, &notice);
        } else if let Ok(request) = Request::decode(source, destination, payload, &rules) {
            self.asked(state, now, &request, arrived.port);
        }
    }

    /// The page that contains this byte of an object, if it is not one of an object that was there before.
    fn page_now(&self, pointer: Pointer) -> Option<u64> {
        let (page, placed) = self.page(pointer)?;
        (pointer.generation() == placed.pointer.generation()).then_some(page)
    }

    fn is_me(&self, state: &State, to: &Source) -> bool {
        to.host == self.options.prefix.host && to.incarnation == state.incarnation
    }

    /// Handles an answer to a request of this process.
    fn answered(&self, state: &mut State, now: u64, reply: &Reply, payload: &[u8]) {
        let Ok(from) = Destination::decode(reply.from) else { return };
        let Some((page, _)) = self.page(from.pointer).filter(|_| self.is_me(state, &reply.to)) else { return };
        let ask = match from.command {
            Command::Clone => Ask::Copy,
            Command::Update => Ask::Update,
            Command::Renew => Ask::Renew(0),
            Command::Commit => Ask::Commit { epoch: 0, release: reply.is_release },
            _ => return,
        };
        let is_copy = ask == Ask::Copy;
        let is_awaited = state.awaits(now, page, is_copy, reply.to.request);
        let status = match (reply.status, reply.body) {
            (Status::Ok, Body::Taken { .. }) => return,
            // It was damaged in transit, or will never get another answer.
            (Status::BadTag, _) => return,
            _ => leases::status_of(reply),
        };
        let Some(status) = status else {
            // An answer to an older request may be about another object, or from another home.
            if is_awaited && reply.status != Status::Moved {
                state.refused(page, is_copy, reply.status, None);
                self.changed.notify_all();
            }
            return;
        };
        let moved_to = match status {
            Outcome::Moved(home) => Some(home).filter(|home| home.is_one()),
            _ => None,
        };
        let bytes = reply.body.data_at().min(payload.len())..payload.len();
        if let (Outcome::Ok, Body::Leased { term, .. }) = (status, reply.body) {
            let is_whole = bytes.len() == self.page_bytes(page);
            if matches!(ask, Ask::Copy | Ask::Update)
                && !is_whole
                && !(bytes.is_empty() && state.is_known(page, is_copy))
            {
                return;
            }
            if is_awaited && !state.hear_term(page, term) {
                return;
            }
        }
        let epoch = reply.epoch;
        let message = Message::Reply { page, request: reply.to.request, ask, status, epoch };
        if is_copy {
            state.hear_copy(self, now, page, message, bytes, epoch);
        } else {
            let from = Party::of(state.belief(page).home);
            state.hear(self, now, page, Input::Message(from, message), Some((bytes, epoch)));
        }
        // A place in the queue is identified by its epoch.
        let has_turn = status == Outcome::Busy && epoch != 0 && matches!(ask, Ask::Copy | Ask::Update);
        if is_awaited && has_turn {
            state.is_queued(now, page, is_copy);
        } else if is_awaited && (status == Outcome::Busy || reply.status.is_of_no_home()) {
            state.refused(page, is_copy, reply.status, moved_to);
        }
    }

    /// Handles a notice that the home sent unasked.
    fn noticed(&self, state: &mut State, now: u64, notice: &Notice) {
        let Some(page) = self.page_now(notice.from.pointer).filter(|_| self.is_me(state, &notice.to)) else { return };
        if notice.from.command == Command::Invalidate {
            if let Some(epoch) = state.invalidate(now, page, notice.epoch) {
                self.invalidated(state, page, epoch);
            }
            return self.changed.notify_all();
        }
        let from = Party::of(state.belief(page).home);
        let message = Message::Recall { page, epoch: notice.epoch };
        state.hear(self, now, page, Input::Message(from, message), None);
    }

    /// Handles another client's request that a switch delivered here.
    fn asked(&self, state: &mut State, now: u64, request: &Request, port: u16) {
        let Destination { pointer, command, arguments } = request.destination;
        if command == Command::Invalidated || command.is_control() {
            return;
        }
        let ask = match command {
            Command::Read => Ask::Read,
            Command::Update => Ask::Update,
            _ => Ask::Release(0),
        };
        let (mut to, mut epoch) = (pointer.encode(), 0);
        if let Some(page) = self.page_now(pointer) {
            let belief = state.belief(page);
            to = Pointer::to_host(pointer.cluster(), belief.home).encode();
            epoch = epoch_of(belief.incarnation);
            let message = Message::Request { page, request: request.source.request, ask };
            let from = party_of(Client::of(&request.source));
            // The machine's result does not matter: callers own the bytes, so the only answer from here is which host
            // is home.
            let _: Vec<Effect> = state.hear(self, now, page, Input::Message(from, message), None);
        }
        if arguments.has(Arguments::NO_REPLY) {
            return;
        }
        let reply = Reply {
            to: request.source,
            from: request.destination.encode(),
            status: Status::Moved,
            tag_kind: TagKind::Checksum,
            is_several: false,
            is_last: false,
            is_release: false,
            epoch,
            body: Body::Moved(to),
        };
        let (mut header, small) = reply.encode();
        let (from, to) = (reply.from, reply.to.encode());
        if seal(&mut header, from, to, [small.bytes(), &[]], &Hardware) {
            let _ = self.endpoint.send(&Way { from: from.0, to: to.0, port }, &[&header, small.bytes()]);
        }
    }

    /// Sends a message of a state machine to the home.
    pub(super) fn send(&self, state: &mut State, message: &Message) {
        // The range has one fixed home, so no controller is asked.
        let Message::Request { page, request, ask } = *message else { return };
        let (known, is_again) = state.asks(page, ask == Ask::Copy);
        let (command, epoch, is_release) = match ask {
            Ask::Copy => (Command::Clone, known, false),
            Ask::Update => (Command::Update, known, false),
            Ask::Renew(epoch) => (Command::Renew, epoch, false),
            Ask::Release(epoch) => (Command::Release, epoch, false),
            Ask::Commit { epoch, release } => (Command::Commit, epoch, release),
            Ask::Read => return,
        };
        let data = if command == Command::Commit { state.commit_bytes(page).unwrap_or_default() } else { &[] };
        let operation = match command {
            Command::Commit if data.is_empty() => return,
            Command::Commit => Operation::Bytes(Extent::whole(data.len() as u32)),
            _ => Operation::Plain,
        };
        let arguments = if is_again { Arguments::DIRECT } else { Arguments::NONE };
        self.send_request(state.incarnation, page, request, (command, arguments, epoch, is_release), operation, data);
    }

    /// Handles a copy that is no longer in use, without a request of the home.
    pub(super) fn drop_copy(&self, state: &mut State, page: u64) {
        if let Some((page, epoch)) = state.drop_copy(page) {
            self.invalidated(state, page, epoch);
        }
    }

    /// Informs the home that a copy is not in use.
    fn invalidated(&self, state: &mut State, page: u64, epoch: Epoch) {
        let request = state.number();
        let arguments = Arguments::NO_REPLY.and(Arguments::DIRECT);
        let what = (Command::Invalidated, arguments, epoch, false);
        self.send_request(state.incarnation, page, request, what, Operation::Plain, &[]);
    }

    fn send_request(
        &self,
        incarnation: trellis_fabric_protocol::wire::address::Incarnation,
        page: u64,
        request: u64,
        (command, arguments, epoch, is_release): (Command, Arguments, Epoch, bool),
        operation: Operation,
        data: &[u8],
    ) {
        let HostPrefix { cluster, host } = self.options.prefix;
        let source = Source { cluster, host, incarnation, request };
        let destination = self.pointer(page).request(command, arguments);
        let tag_kind = TagKind::Checksum;
        let request = Request { source, destination, tag_kind, is_once: false, is_release, epoch, operation };
        let (mut header, small) = request.encode();
        let (from, to) = (source.encode(), destination.encode());
        if seal(&mut header, from, to, [small.bytes(), data], &Hardware) {
            let way = Way { from: from.0, to: to.0, port: self.options.port };
            // A datagram that cannot be sent counts as lost, and is sent again.
            let _ = self.endpoint.send(&way, &[&header, small.bytes(), data]);
        }
    }
}
