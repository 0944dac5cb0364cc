//! The lease server of a memory server's pages: the rules of [`crate::lease`] in the server's terms.
//!
//! Promises, besides the contract of [`super::leases`]: every decision about a request is made by
//! [`crate::lease::server::RangeServer`], and carried out in its order. A page is guarded before anything of it is
//! granted, and stays guarded for a term after it was last in use. A page with a lease or a copy is neither written nor
//! deleted by other clients; its holders are asked to give it back. An accepted commit is never reported as fenced
//! while this home lives and its client asks again in time. Bytes are left out of a grant only if nothing has changed
//! them since the epoch that the client names, with or without a lease.
//!
//! Pages may get a lease server of their own ([`LeaseServer::split`]) and come back ([`LeaseServer::merge`]). Leases,
//! copies and accepted commits go with them. A client that waits for one of these pages asks again, and a commit that
//! was not decided is not decided here.
//!
//! It must never be called in the middle of a step: after each call, the caller calls [`LeaseServer::next_order`] until
//! there is none, and carries out each order before it takes the next.

use super::leases::{Access, AccessKind, Admission, Decision, Lease, Leases};
use super::{Client, Input};
use crate::Nanoseconds;
use crate::lease::home::Stamp;
use crate::lease::parts::Part;
use crate::lease::server::{Input as Fact, Memory, RangeServer};
use crate::lease::{
    Ask, Bytes, Effect, Entry, Epoch, Host, Message, PageNumber, Party, RangeNumber, Status as Outcome, Timing,
};
use crate::lease::{epoch_of, incarnation_of, is_of_no_lease};
use crate::wire::address::{self, Cluster, Incarnation, Pointer};
use crate::wire::command::Command;
use crate::wire::datagram::control::{About, What, parts_of};
use crate::wire::datagram::{Status, Whole};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// How many of a client's accepted commits are remembered, so that one whose answer was lost is recognised when it comes
/// again.
const COUNTED_MAX: usize = 4096;

/// A range and this host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Range {
    /// Its cluster.
    pub cluster: Cluster,
    /// Its number.
    pub of: RangeNumber,
    /// This host.
    pub me: Host,
    /// How many pages it has.
    pub pages: PageNumber,
}

/// An order to the caller.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Order {
    /// Pass this to the memory server.
    Server(Input),
    /// Send this to a client, from the address of the page.
    Notice {
        /// The receiver.
        to: Client,
        /// The page, in the server's memory.
        page: PageNumber,
        /// [`Command::Recall`] or [`Command::Invalidate`].
        command: Command,
        /// With this epoch.
        epoch: Epoch,
    },
    /// Send this to another server or the controller.
    Send {
        /// The receiver.
        to: Host,
        /// The message. The sender adds what a REPORT says about the server.
        what: What,
        /// With the bytes of the page that it names.
        bytes: Payload,
    },
    /// The bytes that came with the datagram at hand, a STORE, are now those of this page.
    Keep(PageNumber),
    /// The home's own change of this page ([`LeaseServer::change`]) is now its content; or it was refused, and nothing
    /// happened.
    Changed(PageNumber, bool),
}

/// Which bytes of a page go with something.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Payload {
    /// None.
    Nothing,
    /// As they are.
    Page,
    /// As they will be after the bytes in this slot are written.
    With {
        /// Where the bytes belong, in the server's memory.
        offset: u64,
        /// Where they are.
        staged: super::Staged,
    },
    /// As they will be after the home's own change of the page counts.
    Own,
}

/// See the documentation of this module.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LeaseServer {
    range: Range,
    server: RangeServer,
    /// Pages that programs in the kernel leave to the server, with the epoch since which only commits have changed them.
    guarded: BTreeMap<PageNumber, Epoch>,
    /// The requests that wait for a page, for a lease or for a copy.
    waiting: BTreeMap<(PageNumber, Party, Command), Lease>,
    /// Commits that are not decided yet.
    staged: BTreeMap<PageNumber, Commit>,
    counted: BTreeMap<Party, Counted>,
    /// It is unknown here whether commits up to this epoch were accepted, unless they are in `counted`.
    forgotten: Epoch,
    /// When to look for rights that have ended.
    look_at: Nanoseconds,
    whole: Whole,
    batch: u64,
    effects: Vec<Effect>,
    orders: VecDeque<Order>,
}

/// A commit that is not decided yet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Commit {
    /// The request that has the bytes.
    lease: Lease,
    /// A later request with the same content.
    again: Option<Lease>,
}

/// The last accepted commits of a client.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Counted {
    /// The epoch and the turn of each.
    by_page: BTreeMap<PageNumber, (Epoch, u64)>,
    by_turn: BTreeMap<u64, PageNumber>,
    turns: u64,
    heard: Nanoseconds,
}

/// The request at hand.
struct AtHand {
    lease: Lease,
    is_answered: bool,
}

impl LeaseServer {
    /// For a home of its own range for its whole life. `memory`: it kept its pages and this knowledge about them.
    pub fn alone(
        range: Range,
        timing: Timing,
        incarnation: u16,
        now: Nanoseconds,
        memory: Option<Memory>,
    ) -> LeaseServer {
        let server = RangeServer::alone(range.me, range.pages, timing, incarnation, now, memory);
        LeaseServer::of(range, server, now)
    }

    /// For a server that a controller places; see [`RangeServer::new`] and [`RangeServer::restarted`].
    pub fn of(range: Range, server: RangeServer, now: Nanoseconds) -> LeaseServer {
        let look_at = now + server.timing.term;
        LeaseServer {
            range,
            guarded: BTreeMap::new(),
            waiting: BTreeMap::new(),
            staged: BTreeMap::new(),
            counted: BTreeMap::new(),
            forgotten: server.home.as_ref().map_or(0, |home| epoch_of(home.incarnation)),
            look_at,
            whole: Whole::default(),
            batch: 0,
            effects: Vec::new(),
            orders: VecDeque::new(),
            server,
        }
    }

    /// The machine that decides. What lasts as long as the pages is in it ([`RangeServer::memory`]).
    pub fn server(&self) -> &RangeServer {
        &self.server
    }

    /// The next thing to do.
    pub fn next_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// When [`LeaseServer::tick`] has something to do.
    pub fn alarm(&self) -> Nanoseconds {
        self.server.alarm().map_or(self.look_at, |at| at.min(self.look_at))
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Nanoseconds) {
        self.step(now, Fact::Tick, None);
        if now < self.look_at {
            return;
        }
        self.look_at = now + self.server.timing.term;
        let mut effects = core::mem::take(&mut self.effects);
        self.server.forget_ended(now, &mut effects);
        self.effects = effects;
        self.carry_out(now, &mut None);
        let home = self.server.home.as_ref();
        let is_used = |page: &PageNumber| home.is_some_and(|home| home.is_in_use(*page));
        let waits = |page: &PageNumber| home.is_some_and(|home| home.queues.contains_key(page));
        let over: Vec<PageNumber> = self.guarded.keys().copied().filter(|page| !is_used(page)).collect();
        self.waiting.retain(|(page, ..), _| waits(page));
        over.into_iter().for_each(|page| self.guard(page, false));
        let heard_after = now.saturating_sub(2 * self.server.timing.term);
        let LeaseServer { counted, forgotten, .. } = self;
        counted.retain(|_, counted| {
            let is_kept = counted.heard >= heard_after;
            if !is_kept {
                *forgotten = counted.by_page.values().map(|last| last.0).fold(*forgotten, Epoch::max);
            }
            is_kept
        });
    }

    /// A request about a lease, passed on by the memory server.
    pub fn asked(&mut self, now: Nanoseconds, lease: Lease) {
        let request = &lease.request;
        let epoch = request.epoch;
        let ask = match request.command() {
            Command::Update => Ask::Update,
            Command::Clone => Ask::Copy,
            Command::Renew => Ask::Renew(epoch),
            Command::Release => Ask::Release(epoch),
            Command::Commit => Ask::Commit { epoch, release: request.is_release },
            _ => return self.decide(lease, Decision::Refused { status: Status::UnknownCommand, epoch: 0 }),
        };
        let message = Message::Request { page: lease.page(), request: request.source.request, ask };
        let party = party_of(lease.client());
        let before = self.orders.len();
        let mut at_hand = Some(AtHand { lease, is_answered: false });
        self.step_with(now, Fact::Message(party, message), &mut at_hand);
        if let Some(AtHand { is_answered: false, .. }) = at_hand {
            self.left_open(now, lease, ask);
        }
        debug_assert!(lease.staged.is_none() || self.orders.len() > before || self.staged.contains_key(&lease.page()));
    }

    /// The home changes a page of its own, which no client can name. One [`Order::Changed`] follows, unless it is no longer
    /// home.
    pub fn change(&mut self, now: Nanoseconds, page: PageNumber) {
        self.step(now, Fact::Change(page), None);
    }

    /// An epoch later than all that were given here; 0 if this server is not home.
    pub fn next_epoch(&mut self) -> Epoch {
        self.server.changed(0..0)
    }

    /// Called at a backup for a message of the home of `incarnation`: what the page held before the epoch `since` belongs
    /// to an object that is gone. Returns whether the page holds that; if so, it is zero from now on.
    pub fn is_zero_since(&mut self, page: PageNumber, incarnation: u16, since: Epoch) -> bool {
        let kept = self.server.memory.stamps.get(&page).copied().unwrap_or_default();
        if kept.epoch >= since {
            return false;
        }
        // Old content that the same home reports late is older than this. Old content that the home has from its
        // predecessor, and reports because it does not know what is here, is not.
        let incarnation = if incarnation_of(since) == incarnation { incarnation } else { kept.incarnation };
        self.server.memory.stamps.insert(page, Stamp { incarnation, epoch: since });
        true
    }

    /// Sets the number of pages of the range, and how many of them, the last ones, are the home's own, if that was not
    /// known.
    pub fn set_pages(&mut self, pages: PageNumber, own: PageNumber) {
        (self.range.pages, self.server.pages, self.server.own) = (pages, pages, own);
    }

    /// INVALIDATED: a copy is no longer in use.
    pub fn invalidated(&mut self, now: Nanoseconds, client: Client, page: PageNumber, epoch: Epoch) {
        self.step(now, Fact::Message(party_of(client), Message::Invalidated { page, epoch }), None);
    }

    /// A message of another server, or of the controller, about this range.
    pub fn control(&mut self, now: Nanoseconds, from: Host, what: What) {
        let message = match what {
            What::Store { incarnation, pages, page, epoch } => {
                Message::Store { page, pages: pages.into(), incarnation, epoch }
            }
            What::Stored { incarnation, pages, page, epoch } => {
                Message::Stored { page, pages: pages.into(), incarnation, epoch }
            }
            // Only the home that this server was a backup of hands over to it.
            What::Leases { .. } if self.server.home.is_some() || self.server.knows.0 != from => return,
            What::Leases { incarnation, batch, total, first, entries } => {
                match self.whole.add(incarnation, batch, total, first, entries) {
                    Some(entries) => Message::Leases { incarnation, entries },
                    None => return,
                }
            }
            What::Taken { incarnation } => Message::Taken { incarnation },
            What::Placed { request, boot_id, placement, call, .. } => {
                Message::Placed { request, boot_id, placement, call }
            }
            // Messages that only a controller handles, and messages that do not concern homes and backups.
            What::Report { .. } | What::Locate | What::Follow { .. } | What::Followed { .. } => return,
        };
        if let Message::Store { page, pages, .. } = message
            && page.checked_add(pages).is_none_or(|end| end > self.range.pages)
        {
            return;
        }
        self.step(now, Fact::Message(Party::of(from), message), None);
    }

    /// These pages are a part from now on, with a lease server of its own, which has `own` pages of its own after them.
    #[must_use]
    pub fn split(&mut self, now: Nanoseconds, part: &Part, own: PageNumber) -> LeaseServer {
        let server = self.server.split(now, part, own);
        let of = Range { pages: part.pages + own, ..self.range };
        self.dismiss(part.first..part.end());
        let mut other =
            LeaseServer { look_at: self.look_at, forgotten: self.forgotten, ..LeaseServer::of(of, server, now) };
        let mut guarded = self.guarded.split_off(&part.first);
        self.guarded.append(&mut guarded.split_off(&part.end()));
        other.guarded = guarded.into_iter().map(|(page, since)| (page - part.first, since)).collect();
        for (party, counted) in &mut self.counted {
            let there = Counted { heard: counted.heard, ..Counted::default() };
            let there = other.counted.entry(*party).or_insert(there);
            for (page, under) in counted.take(part.first..part.end()) {
                there.add(page - part.first, under);
            }
        }
        other
    }

    /// They belong to the range again. Requests that waited there were [dismissed](LeaseServer::dismiss).
    pub fn merge(&mut self, now: Nanoseconds, part: &Part, other: LeaseServer) {
        let LeaseServer { server, guarded, counted, forgotten, orders, .. } = other;
        debug_assert!(orders.is_empty(), "what it decided is carried out");
        let was_home = self.server.home.is_some();
        self.server.merge(now, part, server);
        if was_home && self.server.home.is_none() {
            self.leave();
        }
        self.forgotten = self.forgotten.max(forgotten);
        self.dismiss(part.first..part.end());
        self.guarded.extend(guarded.into_iter().map(|(page, since)| (page + part.first, since)));
        for (party, mut there) in counted {
            let here = self.counted.entry(party).or_default();
            here.heard = here.heard.max(there.heard);
            for (page, under) in there.take(0..part.pages) {
                self.forgotten = self.forgotten.max(here.add(page + part.first, under));
            }
        }
    }

    /// Clients that wait for one of these pages are told that they have no turn any more, and ask again. A client with an
    /// undecided commit asks again by itself.
    pub fn dismiss(&mut self, pages: core::ops::Range<PageNumber>) {
        let waiting = core::mem::take(&mut self.waiting);
        for (of, lease) in waiting {
            if pages.contains(&of.0) {
                self.decide(lease, Decision::Refused { status: Status::Busy, epoch: 0 });
            } else {
                self.waiting.insert(of, lease);
            }
        }
        let known: Vec<PageNumber> = self.staged.range(pages).map(|(page, _)| *page).collect();
        for page in known {
            if let Some(commit) = self.staged.remove(&page) {
                self.decide(commit.lease, Decision::Silent);
            }
        }
    }

    /// The bytes of the pages are given up here, and with them all knowledge about them. Nothing is sent before a request
    /// comes.
    pub fn give_up(&mut self, now: Nanoseconds) {
        self.server.lose_memory(now);
        self.server.asked.clear();
        self.server.report_at = None;
        self.leave();
    }

    /// A host that no controller named sent a message about this range: the controller is asked, unless it is already.
    pub fn ask(&mut self, now: Nanoseconds) {
        if self.server.asked.is_empty() || self.server.report_at.is_none() {
            self.server.report_at = Some(now);
        }
    }

    /// There is news that the controller waits for.
    pub fn report(&mut self, now: Nanoseconds) {
        self.server.report_at = Some(now);
    }

    fn step(&mut self, now: Nanoseconds, fact: Fact, at_hand: Option<AtHand>) {
        let mut at_hand = at_hand;
        self.step_with(now, fact, &mut at_hand);
    }

    fn step_with(&mut self, now: Nanoseconds, fact: Fact, at_hand: &mut Option<AtHand>) {
        let mut effects = core::mem::take(&mut self.effects);
        let was_home = self.server.home.is_some();
        self.server.step(now, fact, &mut effects);
        self.effects = effects;
        self.carry_out(now, at_hand);
        match &self.server.home {
            None if was_home => self.leave(),
            Some(home) if !was_home => self.forgotten = self.forgotten.max(epoch_of(home.incarnation)),
            _ => {}
        }
    }

    /// Another host is home, or will be: clients that wait here ask there. It is not known here which commits are accepted.
    fn leave(&mut self) {
        self.dismiss(0..PageNumber::MAX);
        let guarded = core::mem::take(&mut self.guarded);
        for page in guarded.into_keys() {
            self.orders.push_back(Order::Server(Input::Guard { first_page: page, pages: 1, is_guarded: false }));
        }
    }

    /// Turns decisions into orders.
    fn carry_out(&mut self, now: Nanoseconds, at_hand: &mut Option<AtHand>) {
        let mut effects = core::mem::take(&mut self.effects);
        let mut applied = None;
        for effect in effects.drain(..) {
            match effect {
                Effect::Stage(page) => {
                    if let Some(hand) = at_hand {
                        hand.is_answered = true;
                        self.staged.insert(page, Commit { lease: hand.lease, again: None });
                    }
                }
                Effect::Apply(page) => applied = self.staged.remove(&page),
                Effect::Put(page) => self.orders.push_back(Order::Keep(page)),
                Effect::Send { to, message: Message::Reply { page, request, ask, status, epoch }, .. } => {
                    let reply = Reply { to, page, request, ask, status, epoch };
                    match applied.take_if(|_| matches!(ask, Ask::Commit { .. })) {
                        Some(commit) => self.committed(now, &reply, commit),
                        None => self.reply(&reply, at_hand),
                    }
                }
                Effect::Send { to, message, bytes } => self.send(to, message, bytes),
                // Effects of clients and controllers, and effects that were not requested here.
                Effect::Done(..) | Effect::Lost(_) | Effect::Recalled(_) | Effect::Persist(_) => {}
                Effect::Unserved => {}
                Effect::Changed(page, counts) => self.orders.push_back(Order::Changed(page, counts)),
            }
        }
        self.effects = effects;
    }

    /// The staged bytes are the content of the page: they are written, and the client is told.
    fn committed(&mut self, now: Nanoseconds, reply: &Reply, commit: Commit) {
        let Reply { to, page, ask, epoch, .. } = *reply;
        if let Ask::Commit { epoch: under, .. } = ask {
            let counted = self.counted.entry(to).or_default();
            counted.heard = now;
            self.forgotten = self.forgotten.max(counted.add(page, under));
        }
        self.decide(commit.lease, Decision::Done { epoch });
        if let Some(again) = commit.again {
            self.decide(Lease { staged: None, ..again }, Decision::Counted { epoch });
        }
    }

    fn reply(&mut self, reply: &Reply, at_hand: &mut Option<AtHand>) {
        let Reply { to, page, request, .. } = *reply;
        let is_of = |lease: &Lease| party_of(lease.client()) == to && lease.request.source.request == request;
        let decision = self.decision(reply);
        if let Some(hand) = at_hand.as_mut().filter(|hand| hand.lease.page() == page && is_of(&hand.lease)) {
            hand.is_answered = true;
            let lease = hand.lease;
            // A client with a place in the queue gets another answer later.
            if reply.status == Outcome::Busy && reply.epoch != 0 && matches!(reply.ask, Ask::Update | Ask::Copy) {
                let last = self.waiting.entry((page, to, lease.request.command())).or_insert(lease);
                replace_older(last, lease);
            }
            return self.grant(lease, decision);
        }
        let command = match reply.ask {
            Ask::Copy => Command::Clone,
            Ask::Update => Command::Update,
            _ => return,
        };
        if let Some(lease) = self.waiting.remove(&(page, to, command)).filter(is_of) {
            self.grant(lease, decision);
        }
    }

    fn decision(&self, reply: &Reply) -> Decision {
        let Reply { to, page, ask, status, epoch, .. } = *reply;
        let counted = self.counted.get(&to).and_then(|counted| counted.by_page.get(&page)).map(|last| last.0);
        match (status, ask) {
            (Outcome::Ok, Ask::Commit { .. }) => Decision::Counted { epoch },
            // It was accepted, others came after it, and the lease is over: an answer with its own epoch says that.
            (Outcome::Fenced, Ask::Commit { epoch: under, .. }) if counted == Some(under) => {
                Decision::Counted { epoch: under }
            }
            (Outcome::Fenced, Ask::Commit { epoch: under, .. }) if !is_of_no_lease(epoch) => {
                let is_known = under > self.forgotten && counted.is_none_or(|last| last < under);
                // It was not accepted, and never will be.
                let epoch = if is_known { epoch_of(self.server.memory.incarnation) } else { epoch };
                Decision::Refused { status: Status::Fenced, epoch }
            }
            (Outcome::Ok, _) => Decision::Granted { epoch, term: self.server.timing.term, is_known: false },
            (Outcome::Moved(home), _) => Decision::Moved { to: self.address_of(home), epoch },
            (Outcome::Fenced, _) => Decision::Refused { status: Status::Fenced, epoch },
            (Outcome::Busy, _) => Decision::Refused { status: Status::Busy, epoch },
            (Outcome::Restarting, _) => Decision::Refused { status: Status::Restarting, epoch },
            (Outcome::Unserved, _) => Decision::Refused { status: Status::Unserved, epoch },
        }
    }

    /// Decides, after the page was guarded if it is given.
    fn grant(&mut self, lease: Lease, decision: Decision) {
        let gives = matches!(lease.request.command(), Command::Update | Command::Clone);
        let page = lease.page();
        let since = self.guarded.get(&page).copied();
        // A page that is claimed was not guarded here yet either.
        if let (Decision::Granted { epoch, .. }, None) = (decision, since) {
            self.guard(page, true);
            self.guarded.insert(page, epoch);
        }
        match decision {
            Decision::Granted { epoch, term, .. } if gives => {
                let known = lease.request.epoch;
                let committed = self.server.memory.stamps.get(&page).map_or(0, |stamp| stamp.epoch);
                // If a controller places the range, every change has an epoch, whichever home it was made at. Otherwise
                // programs in the kernel change pages that are not guarded.
                let has_epochs = self.server.is_placed() && known != 0
                    || incarnation_of(known) == incarnation_of(epoch) && since.is_some_and(|since| known >= since);
                // The client may have committed something else under the epoch that it names.
                let is_known = known > committed && has_epochs;
                self.decide(lease, Decision::Granted { epoch, term, is_known });
            }
            decision => self.decide(lease, decision),
        }
    }

    /// The request at hand got no answer.
    fn left_open(&mut self, now: Nanoseconds, lease: Lease, ask: Ask) {
        match ask {
            // No client waits for this, but a switch on the path learns from it.
            Ask::Release(epoch) if self.server.serves(now) => self.decide(lease, Decision::Done { epoch }),
            Ask::Commit { epoch, .. } => {
                if let Some(commit) = self.staged.get_mut(&lease.page())
                    && commit.lease.request.epoch == epoch
                {
                    replace_older(commit.again.get_or_insert(lease), lease);
                }
                self.decide(lease, Decision::Silent);
            }
            _ => {}
        }
    }

    fn send(&mut self, to: Party, message: Message, bytes: Bytes) {
        let what = match message {
            Message::Recall { page, epoch } => return self.notice(to, page, Command::Recall, epoch),
            Message::Invalidate { page, epoch } => return self.notice(to, page, Command::Invalidate, epoch),
            Message::Store { page, pages, incarnation, epoch } => {
                What::Store { incarnation, pages: pages as u32, page, epoch }
            }
            Message::Stored { page, pages, incarnation, epoch } => {
                What::Stored { incarnation, pages: pages as u32, page, epoch }
            }
            Message::Leases { incarnation, entries } => return self.tell_leases(to.host, incarnation, &entries),
            Message::Taken { incarnation } => What::Taken { incarnation },
            Message::Report { request, boot_id, state, call } => {
                What::Report { request, boot_id, state, call, about: About::default() }
            }
            Message::Locate => What::Locate,
            Message::Placed { .. } | Message::Invalidated { .. } | Message::Request { .. } | Message::Reply { .. } => {
                return;
            }
        };
        let commit = match what {
            What::Store { page, .. } => self.staged.get(&page),
            _ => None,
        };
        let bytes = match (bytes, commit) {
            (Bytes::Staged, Some(Commit { lease: Lease { request, staged: Some(staged) }, .. })) => {
                Payload::With { offset: request.destination.pointer.offset(), staged: *staged }
            }
            (Bytes::Nothing | Bytes::Zero, _) => Payload::Nothing,
            (Bytes::Staged, _) => Payload::Own,
            (Bytes::Page, _) => Payload::Page,
        };
        self.orders.push_back(Order::Send { to: to.host, what, bytes });
    }

    fn tell_leases(&mut self, to: Host, incarnation: u16, entries: &[Entry]) {
        self.batch += 1;
        for what in parts_of(incarnation, self.batch, entries) {
            self.orders.push_back(Order::Send { to, what, bytes: Payload::Nothing });
        }
    }

    fn notice(&mut self, to: Party, page: PageNumber, command: Command, epoch: Epoch) {
        let to = Client { host: to.host, incarnation: Incarnation::new(to.incarnation) };
        self.orders.push_back(Order::Notice { to, page, command, epoch });
    }

    fn decide(&mut self, lease: Lease, decision: Decision) {
        self.orders.push_back(Order::Server(Input::Decided(lease, decision)));
    }

    fn guard(&mut self, page: PageNumber, is_guarded: bool) {
        if !is_guarded {
            self.guarded.remove(&page);
            // From now on a program in the kernel may change it without this server's knowledge.
            if !self.server.has_backups() {
                self.server.changed(page..page + 1);
            }
        }
        self.orders.push_back(Order::Server(Input::Guard { first_page: page, pages: 1, is_guarded }));
    }

    fn address_of(&self, home: Host) -> address::Address {
        Pointer::to_host(self.range.cluster, home).encode()
    }
}

impl Leases for LeaseServer {
    fn admit(&mut self, now: Nanoseconds, access: &Access) -> Admission {
        let pages = access.first_page..access.first_page + access.pages;
        let admitted = match access.kind {
            AccessKind::Read => self.server.may_read(now, pages),
            AccessKind::Write | AccessKind::Delete => {
                let mut effects = core::mem::take(&mut self.effects);
                let admitted = match access.kind {
                    AccessKind::Delete => self.server.may_delete(now, pages.clone(), &mut effects),
                    _ => self.server.may_change(now, pages.clone(), &mut effects),
                };
                self.effects = effects;
                self.carry_out(now, &mut None);
                // Earlier versions at any client are no longer the content of the page.
                if admitted.is_ok() && access.kind == AccessKind::Write {
                    let epoch = self.server.changed(pages.clone());
                    self.guarded.range_mut(pages).for_each(|(_, since)| *since = epoch);
                }
                admitted
            }
        };
        match admitted {
            Ok(()) => Admission::Admitted,
            Err(Outcome::Moved(home)) => Admission::Moved(self.address_of(home), epoch_of(self.server.knows.1)),
            Err(Outcome::Restarting) => Admission::Refused(Status::Restarting),
            Err(Outcome::Unserved) => Admission::Refused(Status::Unserved),
            Err(_) if self.server.has_backups() && access.kind != AccessKind::Delete => {
                Admission::Refused(Status::Lease)
            }
            Err(_) => Admission::Refused(Status::Busy),
        }
    }

    fn made_with_bytes(&mut self, first_page: u64, pages: u64) {
        self.server.changed(first_page..first_page + pages);
    }

    fn forget(&mut self, first_page: u64, pages: u64) {
        let pages = first_page..first_page + pages;
        self.server.forget(pages.clone());
        // Their entries in the page table are made again: nothing is guarded there.
        let known: Vec<PageNumber> = self.guarded.range(pages.clone()).map(|(page, _)| *page).collect();
        for page in known {
            self.guarded.remove(&page);
        }
        self.waiting.retain(|(page, ..), _| !pages.contains(page));
        // They are decided: their bytes wait for nothing any more.
        let known: Vec<PageNumber> = self.staged.range(pages).map(|(page, _)| *page).collect();
        for page in known {
            let Some(commit) = self.staged.remove(&page) else { continue };
            self.decide(commit.lease, Decision::Refused { status: Status::Stale, epoch: commit.lease.request.epoch });
        }
    }
}

impl Counted {
    /// Removes the accepted commits of these pages, the oldest first.
    fn take(&mut self, pages: core::ops::Range<PageNumber>) -> Vec<(PageNumber, Epoch)> {
        let mut taken: Vec<(u64, PageNumber)> =
            self.by_page.range(pages).map(|(page, (_, turn))| (*turn, *page)).collect();
        taken.sort_unstable();
        let epoch = |(turn, page): (u64, PageNumber)| {
            self.by_turn.remove(&turn);
            self.by_page.remove(&page).map(|(under, _)| (page, under))
        };
        taken.into_iter().filter_map(epoch).collect()
    }

    /// Adds one. Returns the epoch of the commit that is forgotten for it; 0 for none.
    fn add(&mut self, page: PageNumber, under: Epoch) -> Epoch {
        self.turns += 1;
        if let Some((_, turn)) = self.by_page.insert(page, (under, self.turns)) {
            self.by_turn.remove(&turn);
        }
        self.by_turn.insert(self.turns, page);
        if self.by_turn.len() > COUNTED_MAX
            && let Some((_, oldest)) = self.by_turn.pop_first()
        {
            return self.by_page.remove(&oldest).map_or(0, |last| last.0);
        }
        0
    }
}

/// The parts of an answer.
#[derive(Clone, Copy)]
struct Reply {
    to: Party,
    page: PageNumber,
    request: u64,
    ask: Ask,
    status: Outcome,
    epoch: Epoch,
}

/// A client waits for the answer to its latest request, and an older one may arrive after it.
fn replace_older(last: &mut Lease, lease: Lease) {
    if last.request.source.request < lease.request.source.request {
        *last = lease;
    }
}

/// A client's process, as a party to leases.
pub fn party_of(client: Client) -> Party {
    Party { host: client.host, incarnation: client.incarnation.bits() }
}
