//! One range of a server, or a part of one: its objects, its leases, its memory.
//!
//! Clients name the pages of a part by the addresses of its range; internally they are numbered from 0 and converted on
//! the way in and out. A part only handles what leases are for: its range has the objects.
//!
//! Promises: the orders of [`MemoryServer`] and [`LeaseServer`] are carried out in their order, all of them before the
//! next fact. It must never answer about a range that a controller places without the permission of [`Placed`].

use std::collections::BTreeSet;
use std::ops::Range;

use trellis_fabric_protocol::lease::parts::{Keeps, Part, Within, may_keep, part_with};
use trellis_fabric_protocol::lease::{self, RangeNumber, Status as Outcome, epoch_of};
use trellis_fabric_protocol::memory_server::table_pages::table_pages;
use trellis_fabric_protocol::memory_server::{
    Client, Effect, Input, LeaseServer, MemoryServer, Order, Payload, Settings, Staged, refusal,
};
use trellis_fabric_protocol::wire::address::{Destination, Host, PAGE_BYTES, Pointer};
use trellis_fabric_protocol::wire::command::{Class, Command};
use trellis_fabric_protocol::wire::datagram::control::{About, What};
use trellis_fabric_protocol::wire::datagram::{Body, ControlMessage, Reply, Request, Status, WRITE_BYTES_MAX};

use super::super::memory::{ServerMemory, entry_word};
use super::SECOND;
use super::context::Context;
use super::events::Place;
use super::placed::{Placed, Standing};

/// See the top of this file.
pub(super) struct Held {
    /// The host number in its pointers, or the number of a part.
    pub(super) range: RangeNumber,
    /// For a part: the range and the pages from which it was split.
    pub(super) within: Option<Within>,
    /// For a range: the known parts with homes of their own; each is held here, too.
    pub(super) parts: Vec<Part>,
    /// A part that has to be merged back before anything can be answered.
    pub(super) misses: Option<RangeNumber>,
    /// The part that was last reported to the controller as having to be merged back.
    reported_back: Option<RangeNumber>,
    pub(super) settings: Settings,
    /// Present while this server answers for it.
    pub(super) logic: Option<MemoryServer>,
    pub(super) leases: LeaseServer,
    /// Present once its size is known.
    pub(super) memory: Option<Box<dyn ServerMemory>>,
    /// Present if a controller assigns the home.
    pub(super) placed: Option<Placed>,
    /// Hosts that a controller named as home or backup; no other host is believed to be home.
    pub(super) named: BTreeSet<Host>,
    /// Bytes that wait for later use, by the number of their slot.
    pub(super) slots: Vec<Vec<u8>>,
    /// How much of the memory for other hosts' ranges it uses.
    pub(super) taken_bytes: u64,
    /// When the controller is to be asked whether its content is still needed.
    pub(super) ask_at: u64,
    /// Whether the controller was asked if the content is still needed.
    pub(super) asks_for_counting: bool,
    effects: Vec<Effect>,
}

/// How long content may still be needed without having been named.
const FORGET_AFTER: u64 = 10 * SECOND;
/// The same for a former home: the controller has assigned the copies by then.
const ASK_AFTER_END: u64 = SECOND;

/// The current datagram.
#[derive(Clone, Copy, Default)]
pub(super) struct Hand<'a> {
    /// Its payload.
    pub(super) payload: &'a [u8],
    /// The client, and its port.
    pub(super) client: Option<(Client, u16)>,
    /// For a STORE: the incarnation of the home, and the bytes; empty if they are zero.
    pub(super) store: Option<(u16, &'a [u8])>,
}

impl Held {
    pub(super) fn new(
        range: RangeNumber,
        settings: Settings,
        leases: LeaseServer,
        memory: Option<Box<dyn ServerMemory>>,
    ) -> Held {
        let slots = vec![Vec::new(); settings.staging.slots];
        Held {
            range,
            within: None,
            parts: Vec::new(),
            misses: None,
            reported_back: None,
            settings,
            logic: None,
            leases,
            memory,
            placed: None,
            named: BTreeSet::new(),
            slots,
            taken_bytes: 0,
            ask_at: FORGET_AFTER,
            asks_for_counting: false,
            effects: Vec::new(),
        }
    }

    /// Whether it has content of the range, as far as the controller knows.
    pub(super) fn has_bytes(&self) -> bool {
        self.memory.is_some() && !self.leases.server().memory.is_blank
    }

    /// Records that its content is needed: a controller named this host, or a home stored something.
    pub(super) fn is_counted_on(&mut self, now: u64) {
        (self.ask_at, self.asks_for_counting) = (now + FORGET_AFTER, false);
    }

    /// Records that this host is home no more. Its content may be needed as a copy.
    pub(super) fn is_home_no_more(&mut self, now: u64) {
        self.ask_at = now + ASK_AFTER_END;
    }

    /// Whether a message of a home is accepted. Only the part's own home speaks for a page of a part here; and a part
    /// accepts a home only from a controller, because its number may have been reassigned. The controller is asked if
    /// another host knows more than this one.
    pub(super) fn believes(&mut self, now: u64, what: &What) -> bool {
        let (incarnation, pages) = match what {
            What::Store { incarnation, page, pages, .. } => {
                (*incarnation, Some(*page..page.saturating_add(u64::from(*pages))))
            }
            What::Leases { incarnation, .. } => (*incarnation, None),
            _ => return true,
        };
        let is_newer = self.within.is_some() && incarnation > self.leases.server().memory.incarnation;
        let has_bytes = pages.is_some();
        let keeps = pages.map_or(Keeps::Yes, |pages| may_keep(&self.parts, &pages, incarnation));
        // A host that has dropped the bytes cannot store any.
        let has_room = !has_bytes || self.memory.is_some() || self.leases.server().memory.is_blank;
        if is_newer || keeps == Keeps::Ask || self.memory.is_none() {
            self.leases.ask(now);
        }
        !is_newer && keeps == Keeps::Yes && has_room
    }

    /// Its name for operators.
    pub(super) fn place(&self, context: &Context) -> Place {
        match self.within {
            None => Place::whole(context.prefix_of(self.range.host())),
            Some(within) => context.place_of(self.range, within, self.settings.memory_bytes / PAGE_BYTES),
        }
    }

    /// The offset of its first byte, as clients count them.
    fn first_offset(&self) -> u64 {
        self.within.map_or(0, |within| within.first * PAGE_BYTES)
    }

    /// A request in internal numbering. `None`: it is about no page of this part.
    fn inner(&self, request: &Request) -> Option<Request> {
        let pointer = request.destination.pointer;
        let offset = pointer.offset().checked_sub(self.first_offset())?;
        let pointer = Pointer::new(pointer.cluster(), pointer.home(), pointer.generation(), offset)?;
        Some(Request { destination: Destination { pointer, ..request.destination }, ..*request })
    }

    /// An answer in the client's numbering.
    fn outer(&self, reply: Reply) -> Reply {
        if self.within.is_none() {
            return reply;
        }
        let from = Destination::decode(reply.from).ok();
        let asked = from.and_then(|it| Some(Destination { pointer: it.pointer.plus(self.first_offset())?, ..it }));
        asked.map_or(reply, |asked| Reply { from: asked.encode(), ..reply })
    }

    /// Handles a request about this range, from a port.
    pub(super) fn asked(&mut self, context: &mut Context, request: &Request, payload: &[u8], port: u16) {
        let client = Client::of(&request.source);
        let command = request.command();
        let now = context.now();
        if matches!(command.class(), Class::Leases) || matches!(command, Command::Commit | Command::Clone) {
            context.ports.insert(client, (port, now));
        }
        let hand = Hand { payload, client: Some((client, port)), store: None };
        let Some(inner) = self.inner(request) else { return };
        if command == Command::Invalidated {
            let pointer = inner.destination.pointer;
            self.leases.invalidated(now, client, pointer.page(), request.epoch);
            return self.obey(context, hand);
        }
        match self.standing(now, &inner) {
            // Requests without a lease must be ordered with those that the range handles for the client: the client has
            // to take a lease.
            Standing::Here
                if self.within.is_some() && command.class() == Class::Changing && command != Command::Commit =>
            {
                if let Some(reply) = refusal(request, Status::Lease, 0, Body::Nothing) {
                    context.reply(&reply, None, 0, port);
                }
                return;
            }
            Standing::Here => {}
            Standing::Later => {
                if let Some(placed) = &mut self.placed {
                    placed.keep(request, payload, port);
                }
                return;
            }
            Standing::Elsewhere(status, epoch, body) => {
                if let Some(reply) = refusal(request, status, epoch, body) {
                    context.reply(&reply, None, 0, port);
                }
                return;
            }
        }
        if let Some(placed) = &mut self.placed {
            placed.holds_back = matches!(command, Command::Create | Command::CreateWrite | Command::Delete);
        }
        self.step(context, Input::Request(inner), hand);
        if let Some(placed) = &mut self.placed {
            placed.holds_back = false;
        }
    }

    /// Whether this server may answer a request now, according to the range's leases and its table.
    fn standing(&self, now: u64, request: &Request) -> Standing {
        let Some(placed) = &self.placed else {
            // No controller places it, or nothing of it is here.
            return if self.logic.is_some() { Standing::Here } else { self.elsewhere() };
        };
        let command = request.command();
        let page = request.destination.pointer.page();
        let has_page = !matches!(command, Command::Create | Command::CreateWrite | Command::Hello | Command::Ping);
        let server = self.leases.server();
        match server.may_read(now, if has_page { page..page + 1 } else { 0..0 }) {
            Ok(()) => {}
            Err(Outcome::Moved(_)) => return self.elsewhere(),
            Err(Outcome::Unserved) => return Standing::Elsewhere(Status::Unserved, 0, Body::Nothing),
            Err(_) => return Standing::Elsewhere(Status::Restarting, 0, Body::Nothing),
        }
        if command == Command::CreateWrite && server.has_backups() {
            // Backups store only what was committed.
            return Standing::Elsewhere(Status::Lease, 0, Body::Nothing);
        }
        let is_handing = server.home.as_ref().is_some_and(|home| home.hand_to.is_some());
        let changes = matches!(command, Command::Create | Command::CreateWrite | Command::Delete);
        if changes && (is_handing || placed.is_under_way()) || has_page && placed.touches(page) {
            return Standing::Later;
        }
        Standing::Here
    }

    /// The answer of a host that is not home.
    fn elsewhere(&self) -> Standing {
        let server = self.leases.server();
        let (home, incarnation) = server.knows;
        if server.is_unserved {
            return Standing::Elsewhere(Status::Unserved, 0, Body::Nothing);
        }
        if home == server.me {
            return Standing::Elsewhere(Status::Restarting, 0, Body::Nothing);
        }
        let to = Pointer::to_host(self.settings.cluster, home).encode();
        Standing::Elsewhere(Status::Moved, epoch_of(incarnation), Body::Moved(to))
    }

    /// Passes a fact to the lease state, and carries out what follows.
    pub(super) fn step(&mut self, context: &mut Context, input: Input, hand: Hand<'_>) {
        self.decide(context, input, hand);
        self.obey(context, hand);
    }

    /// Carries out the orders of the lease state, one after the other.
    pub(super) fn obey(&mut self, context: &mut Context, hand: Hand<'_>) {
        self.look_with(context, hand);
        self.carry_out_orders(context, hand);
    }

    pub(super) fn carry_out_orders(&mut self, context: &mut Context, hand: Hand<'_>) {
        while let Some(order) = self.leases.next_order() {
            match order {
                Order::Server(fact) => self.decide(context, fact, hand),
                Order::Notice { to, page, command, epoch } => {
                    let generation =
                        self.logic.as_ref().and_then(|logic| logic.page(page)).map_or(0, |it| it.generation);
                    let Settings { cluster, home, .. } = self.settings;
                    let offset = self.first_offset() + page * PAGE_BYTES;
                    if let Some(page) = Pointer::new(cluster, home, generation, offset) {
                        context.notify(to, page, command, epoch);
                    }
                }
                Order::Send { what: What::Report { request, boot_id, state, call, .. }, .. } => {
                    let about = self.about(context.spare_bytes);
                    context.report(self.range, What::Report { request, boot_id, state, call, about });
                }
                Order::Send { to, what, bytes } => self.send(context, to, what, bytes),
                Order::Keep(page) => self.keep(page, hand),
                Order::Changed(page, counts) => {
                    if let Some(placed) = &mut self.placed {
                        placed.changed(page, counts);
                    }
                }
            }
        }
    }

    pub(super) fn decide(&mut self, context: &mut Context, input: Input, hand: Hand<'_>) {
        let mut effects = std::mem::take(&mut self.effects);
        let mut next = Some(input);
        while let Some(input) = next.take() {
            let now = context.now();
            let Some(logic) = &mut self.logic else { break };
            logic.step(now, input, &mut self.leases, &mut effects);
            let is_guard = matches!(input, Input::Guard { .. });
            for effect in effects.drain(..) {
                if let Effect::Lease(lease) = effect {
                    self.leases.asked(now, lease);
                } else if let Some(fact) = self.carry_out(context, effect, hand, is_guard) {
                    debug_assert!(next.is_none(), "a request asks for one thing at a time");
                    next = Some(fact);
                }
            }
        }
        effects.clear();
        self.effects = effects;
    }

    /// Carries out one order; returns the fact that results.
    fn carry_out(&mut self, context: &mut Context, effect: Effect, hand: Hand<'_>, is_guard: bool) -> Option<Input> {
        let part = |at: u32, bytes: u32| &hand.payload[at as usize..at as usize + bytes as usize];
        let Some(memory) = &mut self.memory else { return None };
        match effect {
            Effect::Reply { reply, offset } => self.answer(context, reply, offset, hand),
            Effect::Write { offset, at, bytes } => memory.write(offset, part(at, bytes)),
            Effect::Stage { slot, position, at, bytes } => {
                let slot = &mut self.slots[slot as usize];
                slot.resize(WRITE_BYTES_MAX as usize, 0);
                let position = position as usize;
                slot[position..position + bytes as usize].copy_from_slice(part(at, bytes));
            }
            Effect::WriteStaged { slot, offset, bytes } => {
                memory.write(offset, &self.slots[slot as usize][..bytes as usize]);
            }
            Effect::Zero { offset, bytes } => memory.zero(offset..offset + bytes),
            Effect::FetchAdd { request, offset, addend } => {
                return Some(Input::Before(
                    request,
                    memory.replace(offset, &|before| Some(before.wrapping_add(addend))),
                ));
            }
            Effect::CompareSwap { request, offset, expected, new } => {
                let with = |before| (before == expected).then_some(new);
                return Some(Input::Before(request, memory.replace(offset, &with)));
            }
            Effect::Publish { first_page, pages } => {
                let logic = self.logic.as_ref()?;
                let entries = (first_page..first_page.saturating_add(pages)).map_while(|page| logic.page(page));
                memory.publish(first_page, &mut entries.map(entry_word));
                if let Some(placed) = self.placed.as_mut().filter(|_| !is_guard) {
                    placed.touch(first_page..first_page + pages);
                }
            }
            Effect::Lease(_) => unreachable!("it was handed over"),
        }
        None
    }

    fn answer(&mut self, context: &mut Context, reply: Reply, offset: u64, hand: Hand<'_>) {
        let reply = self.outer(reply);
        let to = Client::of(&reply.to);
        // A grant goes to a client that received BUSY earlier.
        let port = hand.client.filter(|(client, _)| *client == to).map(|(_, port)| port);
        let Some(port) = port.or_else(|| context.ports.get(&to).map(|(port, _)| *port)) else { return };
        match &mut self.placed {
            // A grant to another client contains bytes and does not depend on new or deleted objects.
            Some(placed) if placed.holds_back && placed.has_touched() && reply.body.data_bytes() == 0 => {
                placed.withhold(reply, port)
            }
            _ => context.reply(&reply, self.memory.as_deref(), offset, port),
        }
    }

    /// Sends a message to another server.
    fn send(&mut self, context: &mut Context, to: Host, what: What, bytes: Payload) {
        let page = match &what {
            What::Store { page, pages, epoch: 0, .. } if bytes == Payload::Nothing => {
                debug_assert!(self.are_zero(*page..page + u64::from(*pages)), "pages that nothing changed are zero");
                Vec::new()
            }
            What::Store { page, .. } => self.bytes_of(*page, bytes),
            _ => Vec::new(),
        };
        context.send(to, &ControlMessage { range: self.range, what }, &page);
    }

    /// The content of a page for a backup; empty if it is all zero.
    fn bytes_of(&self, page: u64, bytes: Payload) -> Vec<u8> {
        let (Some(placed), Some(memory)) = (&self.placed, &self.memory) else { return Vec::new() };
        let pages = placed.table.pages();
        let whole = match page.checked_sub(pages) {
            Some(number) if bytes == Payload::Own => placed.staged(number),
            Some(number) => placed.table.bytes(number),
            None => {
                let mut whole = read(memory.as_ref(), page);
                if let Payload::With { offset, staged: Staged { slot, bytes } } = bytes {
                    let (at, bytes) = ((offset % PAGE_BYTES) as usize, bytes as usize);
                    whole[at..at + bytes].copy_from_slice(&self.slots[slot as usize][..bytes]);
                }
                whole
            }
        };
        if whole.iter().all(|byte| *byte == 0) { Vec::new() } else { whole }
    }

    /// Whether all objects in these pages are zero, as far as their pages are unchanged. The remains of a deleted object
    /// do not count.
    fn are_zero(&self, pages: Range<u64>) -> bool {
        let (Some(memory), Some(logic)) = (&self.memory, &self.logic) else { return true };
        let mut unchanged = self.leases.server().unchanged(pages);
        unchanged.all(|page| logic.page(page).is_none_or(|it| it.valid_bytes == 0) || is_zero(memory.as_ref(), page))
    }

    /// Stores the bytes of a STORE in the page.
    fn keep(&mut self, page: u64, hand: Hand<'_>) {
        let (Some((incarnation, bytes)), Some(placed)) = (hand.store, &mut self.placed) else { return };
        let Some(memory) = &mut self.memory else { return };
        let Some(number) = page.checked_sub(placed.table.pages()) else {
            let at = page * PAGE_BYTES;
            match bytes {
                [] if !is_zero(memory.as_ref(), page) => memory.zero(at..at + PAGE_BYTES),
                bytes => memory.write(at, bytes),
            }
            return;
        };
        let Some(records) = placed.table.read(number, bytes) else { return };
        let mut zero: Option<Range<u64>> = None;
        for (page, since) in placed.table.replace(number, &records) {
            if !self.leases.is_zero_since(page, incarnation, since) {
                continue;
            }
            match &mut zero {
                Some(run) if run.end == page => run.end += 1,
                run => {
                    if let Some(before) = run.replace(page..page + 1) {
                        memory.zero(before.start * PAGE_BYTES..before.end * PAGE_BYTES);
                    }
                }
            }
        }
        if let Some(run) = zero {
            memory.zero(run.start * PAGE_BYTES..run.end * PAGE_BYTES);
        }
    }

    /// Whether a STORE is valid for this range.
    pub(super) fn may_keep(&self, stored: &Range<u64>, bytes: &[u8]) -> bool {
        // Messages about an unknown range go to the controller only.
        let Some(placed) = &self.placed else { return true };
        let pages = placed.table.pages();
        match stored.start.checked_sub(pages) {
            // Table pages are sent one by one.
            Some(number) => {
                let is_one = stored.end - stored.start == 1 && number < table_pages(pages);
                is_one && placed.table.read(number, bytes).is_some()
            }
            None => stored.end <= pages,
        }
    }

    fn about(&self, spare_bytes: u64) -> About {
        let lease::Timing { term, home_lease, .. } = self.leases.server().timing;
        let pages = self.placed.as_ref().map_or(0, |placed| placed.table.pages());
        let requests = self.logic.as_ref().map_or(0, |logic| logic.statistics().requests);
        About { pages, requests, spare_bytes, term, home_lease, wants_back: self.wants_back() }
    }

    /// Reports at once which part has to be merged back.
    pub(super) fn tell_back(&mut self, now: u64) {
        let wanted = self.wants_back();
        if std::mem::replace(&mut self.reported_back, wanted) != wanted && wanted.is_some() {
            self.leases.report(now);
        }
    }

    /// The part that has to be merged back first, if any.
    fn wants_back(&self) -> Option<RangeNumber> {
        let page = self.logic.as_ref().and_then(MemoryServer::wants_back);
        let part = page.and_then(|page| part_with(&self.parts, page)).map(|part| part.number);
        part.or(self.misses)
    }
}

fn read(memory: &dyn ServerMemory, page: u64) -> Vec<u8> {
    let at = page * PAGE_BYTES;
    let mut room = Vec::new();
    memory.read(at..at + PAGE_BYTES, &mut room).to_vec()
}

fn is_zero(memory: &dyn ServerMemory, page: u64) -> bool {
    let at = page * PAGE_BYTES;
    memory.read(at..at + PAGE_BYTES, &mut Vec::new()).iter().all(|byte| *byte == 0)
}
