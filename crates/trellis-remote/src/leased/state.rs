//! The state of a [`super::LeasedPages`]: the two state machines of the protocol, the callers' operations, and the
//! events to report.
//!
//! Promises: a page's event is reported neither while a caller puts the page nor out of order. It must never inform the
//! home that a copy is gone except by [`State::reported`], after the event. Pages have the callers' numbers, in the
//! machines, too.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use trellis_fabric_protocol::lease::client::{Client, Input};
use trellis_fabric_protocol::lease::reader::{self, Followed, Reader};
use trellis_fabric_protocol::lease::{Ask, Belief, Effect, Epoch, Message, Outcome, Party};
use trellis_fabric_protocol::wire::address::{Host, Incarnation, PAGE_BYTES};
use trellis_fabric_protocol::wire::datagram::Status;
use trellis_transport::links::ipv6::AnswerTime;

use super::super::leases::{TERM, TERMS, timing};
use super::{LeasedOptions, Placed, Shared};

/// The offset of the numbers of a reader's requests, and of requests without answers, above those of a client.
const READER_NUMBERS: u64 = 1 << 62;
const OTHER_NUMBERS: u64 = 1 << 61;
/// The divisor of a term after which a queued request is repeated; the home drops it from its queue after half a term.
const QUEUED_PARTS: u64 = 5;
/// The room for a datagram: a page with its headers. Nothing longer is for this process.
const DATAGRAM_BYTES_MAX: usize = 2 * PAGE_BYTES as usize;
/// The number of rooms for datagrams that are kept; pages that arrive in one call take as many at most.
const ROOMS_MAX: usize = super::WINDOW_PAGES;
/// How often a copy is renewed before the caller is asked whether it is used.
const RENEWALS_UNASKED: u8 = 2;

/// What a caller requests for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A copy.
    Copy,
    /// A lease.
    Update,
    /// A commit of its changes.
    Commit {
        /// With the return of the lease.
        release: bool,
    },
}

/// Which bytes of the page are kept here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// None.
    Nothing,
    /// Those that were last put or committed.
    Known,
}

/// The bytes of a page, in the datagram that brought them.
#[derive(Debug)]
pub(super) struct Came {
    room: Box<[u8]>,
    bytes: Range<usize>,
}

impl Came {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.room[self.bytes.clone()]
    }
}

/// The result of an operation.
#[derive(Debug)]
pub(super) enum End {
    /// The bytes, or `None` for those that are here; [`State::was_put`] is called afterwards.
    Put(Option<Came>),
    /// Committed.
    Done,
    /// The lease had ended.
    Fenced,
    /// The server refused.
    Refused(Status),
}

/// An event to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A copy was recalled.
    Invalidate(u64),
    /// A lease was recalled.
    Recalled(u64),
    /// A copy or a lease has ended.
    Lost(u64),
    /// A copy has been renewed for a while, and is renewed again only if it is used.
    Used(u64),
}

/// A caller's operation.
struct Operation {
    kind: Kind,
    keeps: Keeps,
    phase: Phase,
    /// The number of datagrams sent for it.
    sent: u32,
    /// The last answer that was not final, and the host that it named.
    heard: Option<InterimAnswer>,
}

/// An answer that is not final.
pub(super) type InterimAnswer = (Status, Option<Host>);

enum Phase {
    Asked,
    Ended(End),
    Putting,
}

/// See the top of this file.
pub(super) struct State {
    pub(super) incarnation: Incarnation,
    /// In the order of their pages.
    objects: Vec<Object>,
    /// The numbers of requests of all objects: a home tells the commits of a process apart by them.
    client_requests: u64,
    reader_requests: u64,
    /// As the options say, in nanoseconds.
    retry_min: u64,
    operations: HashMap<u64, Operation>,
    /// The page that the present datagram brought, and where its bytes are in it.
    came: Option<(u64, Range<usize>)>,
    /// Rooms for datagrams.
    rooms: Vec<Box<[u8]>>,
    /// The bytes of commits that were not answered yet.
    commits: HashMap<u64, Vec<u8>>,
    /// The epoch of the bytes that the caller has.
    known: BTreeMap<u64, Epoch>,
    /// Copies that callers use.
    held: HashSet<u64>,
    /// How often copies were renewed since they arrived or were last reported as used.
    renewed: HashMap<u64, u8>,
    /// The times at which copies end unless they are renewed; may contain outdated entries.
    ends: BTreeSet<(u64, u64)>,
    /// Pages whose end is being reported, and the epoch that the home must then be sent.
    leaving: HashMap<u64, Option<Epoch>>,
    recalled: HashSet<u64>,
    events: VecDeque<Event>,
    /// Pages for which this process is queued at the home, and until when the home is not asked again.
    queued: HashMap<u64, u64>,
    numbers: u64,
    /// The times at which pages of the machines have something due, and the same by page.
    due: BTreeSet<(u64, u64)>,
    due_of: HashMap<u64, u64>,
    pub(super) is_closed: bool,
}

/// The state machines for an object's pages, which have the callers' numbers in them, too.
struct Object {
    first_page: u64,
    client: Client,
    reader: Reader,
    /// How long an answer is waited for: at least as the options say, and longer if the home takes longer.
    retry: u64,
    answer_time: AnswerTime,
}

impl State {
    pub(super) fn new(options: &LeasedOptions, placed: &[Placed], random_number: u64, number: u64) -> State {
        let incarnation = Incarnation::new(random_number as u16);
        let me = Party { host: options.prefix.host, incarnation: incarnation.bits() };
        let retry = u64::try_from(options.retry.as_nanos()).unwrap_or(u64::MAX).clamp(1_000_000, TERM / 20);
        // Request numbers begin at a random value, so that an answer to a process that had the same incarnation before is
        // not taken for an answer to this one.
        let number = number >> 16;
        let object = |placed: &Placed| {
            let (home, timing) = (placed.pointer.home(), timing(TERM, retry));
            // No controller places the range: requests to one would go to the home, and none is ever sent.
            let controller = Party::of(home);
            Object {
                first_page: placed.first_page,
                client: Client::new(me, controller, timing, home),
                reader: Reader::new(me, controller, timing, home),
                retry,
                answer_time: AnswerTime::default(),
            }
        };
        State {
            incarnation,
            objects: placed.iter().map(object).collect(),
            client_requests: number,
            reader_requests: READER_NUMBERS + number,
            retry_min: retry,
            operations: HashMap::new(),
            came: None,
            rooms: Vec::new(),
            commits: HashMap::new(),
            known: BTreeMap::new(),
            held: HashSet::new(),
            renewed: HashMap::new(),
            ends: BTreeSet::new(),
            leaving: HashMap::new(),
            recalled: HashSet::new(),
            events: VecDeque::new(),
            queued: HashMap::new(),
            numbers: OTHER_NUMBERS + number,
            due: BTreeSet::new(),
            due_of: HashMap::new(),
            is_closed: false,
        }
    }

    /// The index of a page's object.
    fn at(&self, page: u64) -> usize {
        self.objects.partition_point(|object| object.first_page <= page) - 1
    }

    fn machines(&self, page: u64) -> &Object {
        &self.objects[self.at(page)]
    }

    fn machines_mut(&mut self, page: u64) -> &mut Object {
        let at = self.at(page);
        &mut self.objects[at]
    }

    /// The host that is taken for home of a page, and its incarnation.
    pub(super) fn belief(&self, page: u64) -> Belief {
        self.machines(page).client.belief
    }

    /// Whether no operation is under way for this page.
    pub(super) fn may_begin(&self, page: u64) -> bool {
        !self.operations.contains_key(&page) && !self.leaving.contains_key(&page)
    }

    /// Begins an operation for a page.
    pub(super) fn begin(
        &mut self,
        shared: &Shared,
        now: u64,
        page: u64,
        kind: Kind,
        keeps: Keeps,
        bytes: Option<&[u8]>,
    ) {
        if self.queued.remove(&page).is_some() {
            self.retime(page);
        }
        let operation = Operation { kind, keeps, phase: Phase::Asked, sent: 0, heard: None };
        self.operations.insert(page, operation);
        let is_here = self.machines(page).client.owns(now, page)
            || kind == Kind::Copy && keeps == Keeps::Known && self.held.contains(&page);
        match kind {
            Kind::Copy | Kind::Update if is_here => self.ended(page, End::Put(None)),
            Kind::Copy => self.ask_reader(shared, now, page, reader::Input::Follow(page)),
            Kind::Update => self.ask_client(shared, now, page, Input::Update(page)),
            Kind::Commit { release } => {
                self.commits.insert(page, bytes.expect("a commit has bytes").to_vec());
                self.known.remove(&page);
                self.ask_client(shared, now, page, Input::Commit { page, release });
            }
        }
    }

    /// Whether the operation has ended.
    pub(super) fn has_ended(&self, page: u64) -> bool {
        matches!(self.operations.get(&page), Some(Operation { phase: Phase::Ended(_), .. }))
    }

    /// Its result.
    pub(super) fn end(&mut self, page: u64) -> End {
        let operation = self.operations.get_mut(&page).expect("it was begun");
        let Phase::Ended(end) = std::mem::replace(&mut operation.phase, Phase::Putting) else {
            unreachable!("it has ended")
        };
        if !matches!(end, End::Put(_)) {
            self.operations.remove(&page);
        }
        end
    }

    /// Records that the caller has put the page.
    pub(super) fn was_put(&mut self, page: u64, came: Option<Came>) {
        self.operations.remove(&page);
        self.rooms.extend(came.map(|came| came.room).filter(|_| self.rooms.len() < ROOMS_MAX));
    }

    /// The bytes of a page are put from where they arrived: the datagram that was handled goes to the operation that
    /// waited for it, and another room takes its place.
    pub(super) fn keep(&mut self, room: &mut Box<[u8]>) {
        if let Some((page, bytes)) = self.came.take() {
            let spare = self.rooms.pop().unwrap_or_else(new_room);
            let room = std::mem::replace(room, spare);
            self.ended(page, End::Put(Some(Came { room, bytes })));
        }
    }

    /// Ends an operation with the bytes of the present datagram, or with those that are here.
    fn put(&mut self, page: u64, bytes: Range<usize>) {
        if bytes.is_empty() {
            self.ended(page, End::Put(None));
        } else {
            self.came = Some((page, bytes));
        }
    }

    /// The history of a waiting operation: how often a request was sent, and the server's last answer.
    pub(super) fn timeout(&self, page: u64) -> (u32, Option<InterimAnswer>) {
        self.operations.get(&page).map_or((0, None), |operation| (operation.sent, operation.heard))
    }

    /// Gives up an operation for which no caller waits any more.
    pub(super) fn give_up(&mut self, shared: &Shared, now: u64, page: u64) {
        self.queued.remove(&page);
        match self.operations.remove(&page).map(|operation| operation.kind) {
            Some(Kind::Copy) if !self.held.contains(&page) => self.forget(page),
            Some(Kind::Update | Kind::Commit { .. }) => self.release(shared, now, page),
            _ => self.retime(page),
        }
    }

    /// Returns a lease.
    pub(super) fn release(&mut self, shared: &Shared, now: u64, page: u64) {
        self.commits.remove(&page);
        self.recalled.remove(&page);
        self.ask_client(shared, now, page, Input::Release(page));
    }

    fn forget(&mut self, page: u64) {
        self.renewed.remove(&page);
        self.machines_mut(page).reader.forget(page);
        self.retime(page);
    }

    /// Drops a copy that is not used here any more; returns the epoch under which it was granted, which the home is sent.
    pub(super) fn drop_copy(&mut self, page: u64) -> Option<(u64, Epoch)> {
        let copy = self.machines(page).reader.pages.get(&page).and_then(|followed| followed.copy);
        if !self.held.remove(&page) {
            return None;
        }
        self.forget(page);
        copy.map(|(epoch, _)| (page, epoch))
    }

    /// Returns everything; no more events are reported.
    pub(super) fn close(&mut self, shared: &Shared, now: u64) {
        let owned: Vec<u64> = self.objects.iter().flat_map(|object| object.client.pages.keys().copied()).collect();
        owned.into_iter().for_each(|page| self.ask_client(shared, now, page, Input::Release(page)));
        let copies: Vec<u64> = self.held.iter().copied().collect();
        copies.into_iter().for_each(|page| shared.drop_copy(self, page));
        self.is_closed = true;
    }

    /// The time at which [`State::tick`] has something to do.
    pub(super) fn alarm(&self) -> u64 {
        let sets = [&self.due, &self.ends];
        sets.into_iter().filter_map(|set| set.first()).map(|(at, _)| *at).min().unwrap_or(u64::MAX)
    }

    /// Updates the due time of a page of the machines.
    fn retime(&mut self, page: u64) {
        let due =
            self.objects[self.at(page)].client.due(page).into_iter().chain(self.machines(page).reader.due(page)).min();
        let is_owned = self.machines(page).client.has(page);
        let quiet = self.queued.get(&page).copied().filter(|_| !is_owned);
        let due = due.map(|at| quiet.map_or(at, |quiet| at.max(quiet)));
        let before = match due {
            Some(at) => self.due_of.insert(page, at),
            None => self.due_of.remove(&page),
        };
        if before == due {
            return;
        }
        before.map(|at| self.due.remove(&(at, page)));
        due.map(|at| self.due.insert((at, page)));
    }

    /// Updates the due times of all pages of an object, because the home or the term has changed.
    fn retime_all(&mut self, at: usize) {
        let Object { client, reader, .. } = &self.objects[at];
        let pages: BTreeSet<u64> = client.pages.keys().chain(reader.pages.keys()).copied().collect();
        pages.into_iter().for_each(|page| self.retime(page));
    }

    /// Handles the passing of time.
    pub(super) fn tick(&mut self, shared: &Shared, now: u64) {
        while let Some(&(_, page)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.queued.remove(&page);
            if self.asks_whether_used(page) {
                continue;
            }
            self.ask_client(shared, now, page, Input::TickPage(page));
            self.ask_reader(shared, now, page, reader::Input::TickPage(page));
            self.retime(page);
            if self.due_of.get(&page).is_some_and(|at| *at <= now) {
                debug_assert!(false, "a machine that was told the time has something due at it");
                break;
            }
        }
        while let Some(&(at, page)) = self.ends.first().filter(|(at, _)| *at <= now) {
            self.ends.remove(&(at, page));
            if self.held.contains(&page) && !self.machines(page).reader.has(now, page) {
                self.drop_copy(page);
                self.leave(page, None, Event::Lost(page));
            }
        }
    }

    /// Whether this is due to be renewed but the caller has to be asked first. Nothing of it is due until then.
    fn asks_whether_used(&mut self, page: u64) -> bool {
        let client = &self.machines(page).client;
        let is_asked_for = self.operations.contains_key(&page)
            || client.has(page)
            || client.pages.get(&page).is_some_and(|hold| hold.wait.is_some());
        let is_often = self.renewed.get(&page).is_some_and(|times| *times >= RENEWALS_UNASKED);
        let until = match self.machines(page).reader.pages.get(&page) {
            Some(&Followed { is_wanted: true, copy: Some((_, until)), asked: None, .. }) => until,
            _ => return false,
        };
        if is_asked_for || !is_often || !self.held.contains(&page) {
            return false;
        }
        self.renewed.remove(&page);
        self.queued.insert(page, until);
        self.retime(page);
        self.events.push_back(Event::Used(page));
        true
    }

    /// Records the caller's answer whether a copy was used; an unused one ends with its term.
    pub(super) fn was_used(&mut self, page: u64, is_used: bool) {
        if self.operations.contains_key(&page) || !self.held.contains(&page) {
            return;
        }
        if !is_used {
            self.machines_mut(page).reader.step(0, reader::Input::Leave(page), &mut Vec::new());
        }
        self.queued.remove(&page);
        self.retime(page);
    }

    /// Adopts the duration of rights at a page's server; false if it is not valid.
    pub(super) fn hear_term(&mut self, page: u64, term: u64) -> bool {
        if !TERMS.contains(&term) {
            return false;
        }
        let at = self.at(page);
        let Object { client, reader, retry, .. } = &mut self.objects[at];
        if client.timing.term != term {
            (client.timing, reader.timing) = (timing(term, *retry), timing(term, *retry));
            self.retime_all(at);
        }
        true
    }

    /// Whether this is the number of the request about the page that is waited for; other answers are ignored. Learns
    /// from it how long the home takes.
    pub(super) fn awaits(&mut self, now: u64, page: u64, is_copy: bool, request: u64) -> bool {
        let at = self.at(page);
        let object = &mut self.objects[at];
        let wait = object.client.pages.get(&page).and_then(|hold| hold.wait).filter(|_| !is_copy);
        let awaited = match is_copy {
            true => object.reader.pages.get(&page).and_then(|followed| followed.asked),
            false => wait.map(|wait| (wait.request, wait.asked_at)),
        };
        let Some((_, asked_at)) = awaited.filter(|(asked, _)| *asked == request) else { return false };
        // A commit is answered when backups have it, and a request that was queued when other clients are done.
        let is_commit = wait.is_some_and(|wait| matches!(wait.ask, Ask::Commit { .. }));
        if !is_commit && !self.queued.contains_key(&page) {
            object.answer_time.sample(Duration::from_nanos(now.saturating_sub(asked_at)));
            let bounds = [self.retry_min, self.retry_min.max(TERM / 20)].map(Duration::from_nanos);
            let retry = object.answer_time.timeout(bounds[0], bounds[1]).unwrap_or(bounds[0]);
            object.retry = u64::try_from(retry.as_nanos()).unwrap_or(u64::MAX);
            let timing = timing(object.client.timing.term, object.retry);
            (object.client.timing, object.reader.timing) = (timing, timing);
        }
        true
    }

    /// A number for a datagram that is not answered.
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Called for each request that is sent for this page: returns the epoch of the bytes that the caller has, and
    /// whether the request was sent before.
    pub(super) fn asks(&mut self, page: u64, is_copy: bool) -> (Epoch, bool) {
        let known = self.known.get(&page).copied().unwrap_or(0);
        let wait = self.machines(page).client.pages.get(&page).and_then(|hold| hold.wait);
        let is_retried = !is_copy && wait.is_some_and(|wait| wait.retries > 0);
        match self.operations.get_mut(&page) {
            Some(operation) => {
                operation.sent += 1;
                let of_bytes = match operation.keeps {
                    Keeps::Nothing => 0,
                    Keeps::Known => known,
                };
                (of_bytes, is_retried || operation.sent > 1)
            }
            // A copy is being renewed: the bytes are those of before.
            None => (if is_copy && self.held.contains(&page) { known } else { 0 }, is_retried),
        }
    }

    /// The bytes of a commit that was not answered yet.
    pub(super) fn commit_bytes(&self, page: u64) -> Option<&[u8]> {
        self.commits.get(&page).map(Vec::as_slice)
    }

    /// Whether the caller of this page may be told that its bytes are current.
    pub(super) fn is_known(&self, page: u64, is_copy: bool) -> bool {
        match self.operations.get(&page).map(|operation| operation.keeps) {
            Some(Keeps::Nothing) => false,
            Some(Keeps::Known) => self.known.contains_key(&page),
            None => is_copy && self.held.contains(&page) && self.known.contains_key(&page),
        }
    }

    /// Passes a fact about a page to the machine of its leases, and carries out what follows. `came`: where the bytes are in
    /// the current answer, and its epoch.
    pub(super) fn hear(
        &mut self,
        shared: &Shared,
        now: u64,
        page: u64,
        input: Input,
        came: Option<(Range<usize>, Epoch)>,
    ) -> Vec<Effect> {
        let at = self.at(page);
        let belief = self.objects[at].client.belief;
        let mut answers = Vec::new();
        for effect in self.step_client(at, now, input) {
            match effect {
                Effect::Done(page, outcome) => self.done(shared, now, page, outcome, came.clone()),
                Effect::Lost(page) => {
                    self.recalled.remove(&page);
                    self.leave(page, None, Event::Lost(page));
                }
                Effect::Recalled(page) if self.recalled.insert(page) => {
                    self.events.push_back(Event::Recalled(page));
                }
                Effect::Send { message: Message::Reply { .. }, .. } => answers.push(effect),
                Effect::Send { message, .. } => shared.send(self, &message),
                _ => {}
            }
        }
        if self.objects[at].client.belief == belief {
            self.retime(page);
        } else {
            // The other home has no queue yet.
            let queued: Vec<u64> = self.queued.keys().copied().filter(|page| self.at(*page) == at).collect();
            for page in queued {
                self.queued.remove(&page);
            }
            self.retime_all(at);
        }
        shared.changed.notify_all();
        answers
    }

    fn step_client(&mut self, at: usize, now: u64, input: Input) -> Vec<Effect> {
        let (client, mut effects) = (&mut self.objects[at].client, Vec::new());
        client.requests = self.client_requests;
        client.step(now, input, &mut effects);
        self.client_requests = client.requests;
        effects
    }

    fn step_reader(&mut self, at: usize, now: u64, input: reader::Input) -> Vec<Effect> {
        let (reader, mut effects) = (&mut self.objects[at].reader, Vec::new());
        reader.requests = self.reader_requests;
        reader.step(now, input, &mut effects);
        self.reader_requests = reader.requests;
        effects
    }

    fn ask_client(&mut self, shared: &Shared, now: u64, page: u64, input: Input) {
        let answers = self.hear(shared, now, page, input, None);
        debug_assert!(answers.is_empty(), "nobody asked");
    }

    /// Completes an operation of a lease's machine.
    fn done(&mut self, shared: &Shared, now: u64, page: u64, outcome: Outcome, came: Option<(Range<usize>, Epoch)>) {
        match (outcome, came) {
            (Outcome::Owned, Some((bytes, _))) => {
                // The caller may change it from now on: requests of other clients are no longer answered from here.
                self.machines_mut(page).client.change(now, page);
                self.known.remove(&page);
                self.recalled.remove(&page);
                if !self.held.contains(&page) {
                    self.forget(page);
                }
                let is_waited_for = self.operations.get(&page).is_some_and(|it| it.kind == Kind::Update);
                if is_waited_for {
                    self.put(page, bytes);
                } else {
                    self.release(shared, now, page);
                }
            }
            (Outcome::Committed, Some((_, epoch))) => {
                self.commits.remove(&page);
                self.recalled.remove(&page);
                self.known.insert(page, epoch);
                if let Some(Kind::Commit { release: false }) =
                    self.operations.get(&page).map(|operation| operation.kind)
                {
                    // The caller may change it again.
                    self.machines_mut(page).client.change(now, page);
                }
                self.ended(page, End::Done);
            }
            (Outcome::Fenced, _) => {
                self.commits.remove(&page);
                self.recalled.remove(&page);
                self.known.remove(&page);
                self.ended(page, End::Fenced);
            }
            (Outcome::Owned | Outcome::Committed | Outcome::Read, _) => {}
        }
    }

    /// Passes an answer to a reader's machine, and carries out what follows.
    pub(super) fn hear_copy(
        &mut self,
        shared: &Shared,
        now: u64,
        page: u64,
        message: Message,
        bytes: Range<usize>,
        epoch: Epoch,
    ) {
        let from = Party::of(self.machines(page).reader.belief.home);
        for effect in self.step_reader(self.at(page), now, reader::Input::Message(from, message)) {
            match effect {
                Effect::Put(page) => self.copied(page, bytes.clone(), epoch),
                Effect::Send { message, .. } => shared.send(self, &message),
                _ => {}
            }
        }
        self.retime(page);
        shared.changed.notify_all();
    }

    fn ask_reader(&mut self, shared: &Shared, now: u64, page: u64, input: reader::Input) {
        let at = self.at(page);
        for effect in self.step_reader(at, now, input) {
            if let Effect::Send { message, .. } = effect {
                shared.send(self, &message);
            }
        }
        self.retime(page);
    }

    /// Handles a copy that has arrived or was renewed.
    fn copied(&mut self, page: u64, bytes: Range<usize>, epoch: Epoch) {
        let Some((_, until)) = self.machines(page).reader.pages.get(&page).and_then(|followed| followed.copy) else {
            return;
        };
        let is_waited_for =
            matches!(self.operations.get(&page), Some(Operation { kind: Kind::Copy, phase: Phase::Asked, .. }));
        if !is_waited_for && !self.held.contains(&page) {
            return self.forget(page);
        }
        self.known.insert(page, epoch);
        self.held.insert(page);
        self.ends.insert((until, page));
        let times = self.renewed.entry(page).or_default();
        *times = if is_waited_for { 0 } else { times.saturating_add(1) };
        if is_waited_for {
            self.put(page, bytes);
        }
    }

    /// Handles a recall of copies older than `epoch`. Returns the epoch to send to the home at once if no copy is in use.
    pub(super) fn invalidate(&mut self, now: u64, page: u64, epoch: Epoch) -> Option<Epoch> {
        let message = Message::Invalidate { page, epoch };
        let from = Party::of(self.machines(page).reader.belief.home);
        // The machine's own message is dropped: it is sent when the event has been reported.
        self.machines_mut(page).reader.step(now, reader::Input::Message(from, message), &mut Vec::new());
        self.retime(page);
        if let Some(wanted) = self.leaving.get_mut(&page) {
            *wanted = (*wanted).max(Some(epoch));
            return None;
        }
        let is_newer = self.machines(page).reader.pages.get(&page).is_some_and(|followed| followed.copy.is_some());
        if is_newer || !self.held.remove(&page) {
            return Some(epoch);
        }
        // A caller that waits for a lease wants no copy any more.
        if !self.operations.get(&page).is_some_and(|operation| operation.kind == Kind::Copy) {
            self.forget(page);
        }
        self.leave(page, Some(epoch), Event::Invalidate(page));
        None
    }

    /// Queues the event that a page is no longer held here.
    fn leave(&mut self, page: u64, epoch: Option<Epoch>, event: Event) {
        let wanted = self.leaving.entry(page).or_default();
        *wanted = (*wanted).max(epoch);
        self.events.push_back(event);
    }

    /// Records that the home will grant this page in its turn and send a notice then. It is asked again before it drops
    /// the entry, in case its answer is lost.
    pub(super) fn is_queued(&mut self, now: u64, page: u64, is_copy: bool) {
        if let Some(operation) = self.operations.get_mut(&page).filter(|it| (it.kind == Kind::Copy) == is_copy) {
            operation.heard = Some((Status::Busy, None));
        }
        self.queued.insert(page, now + self.machines(page).client.timing.term / QUEUED_PARTS);
        self.retime(page);
    }

    /// Handles a final refusal of an operation, or the answer that it is too early or that the page is at that host: then
    /// the machines ask again.
    pub(super) fn refused(&mut self, page: u64, is_copy: bool, status: Status, moved_to: Option<Host>) {
        let Some(operation) = self.operations.get_mut(&page).filter(|it| (it.kind == Kind::Copy) == is_copy) else {
            return;
        };
        operation.heard = Some((status, moved_to));
        if status == Status::Busy || status.is_of_no_home() {
            // A place in a queue is gone.
            self.queued.remove(&page);
            return self.retime(page);
        }
        if is_copy {
            self.forget(page);
        } else {
            self.machines_mut(page).client.pages.remove(&page);
            self.retime(page);
        }
        self.ended(page, End::Refused(status));
    }

    fn ended(&mut self, page: u64, end: End) {
        if self.queued.remove(&page).is_some() {
            self.retime(page);
        }
        if let Some(operation) = self.operations.get_mut(&page) {
            operation.phase = Phase::Ended(end);
        }
    }

    /// The next event that may be reported.
    pub(super) fn next_event(&mut self) -> Option<Event> {
        let may = |event: &Event| {
            !matches!(
                self.operations.get(&event.page()),
                Some(Operation { phase: Phase::Ended(_) | Phase::Putting, .. })
            )
        };
        let place = self.events.iter().position(may)?;
        self.events.remove(place)
    }

    fn is_left_again(&self, page: u64) -> bool {
        self.events.contains(&Event::Invalidate(page)) || self.events.contains(&Event::Lost(page))
    }

    /// Records that the event was reported; returns what the home must be sent now.
    pub(super) fn reported(&mut self, event: Event) -> Option<(u64, Epoch)> {
        match event {
            Event::Recalled(_) | Event::Used(_) => None,
            // The copy is gone, and then the lease: nothing begins before both are reported.
            Event::Invalidate(page) | Event::Lost(page) if self.is_left_again(page) => None,
            Event::Invalidate(page) | Event::Lost(page) => {
                let epoch = self.leaving.remove(&page)??;
                Some((page, epoch))
            }
        }
    }
}

impl Event {
    fn page(self) -> u64 {
        match self {
            Event::Invalidate(page) | Event::Recalled(page) | Event::Lost(page) | Event::Used(page) => page,
        }
    }
}

/// A room for a datagram.
pub(super) fn new_room() -> Box<[u8]> {
    vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice()
}
