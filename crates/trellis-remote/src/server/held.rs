//! One range of a server, or a part of one: its objects, its leases, its memory.
//!
//! Clients name the pages of a part by the addresses of its range; inside they are numbered from 0, on the way in and out
//! they are counted over. A part does nothing but what leases are for: its range has the objects.
//!
//! Promises: what [`MemoryServer`] and [`Keeper`] order is carried out in their order, all of it before the next fact. Where a
//! controller places the range, nothing is answered about it but by [`Placed`]'s leave.

use std::collections::BTreeSet;
use std::ops::Range;

use trellis_fabric_protocol::lease::parts::{Keeps, Part, Within, may_keep, part_with};
use trellis_fabric_protocol::lease::{self, Status as Outcome, epoch_of};
use trellis_fabric_protocol::memory_server::table_pages::table_pages;
use trellis_fabric_protocol::memory_server::{
    Carried, Client, Effect, Input, Keeper, MemoryServer, Order, Settings, Staged, refusal,
};
use trellis_fabric_protocol::wire::address::{Destination, Host, PAGE_BYTES, Pointer};
use trellis_fabric_protocol::wire::command::{Class, Command};
use trellis_fabric_protocol::wire::datagram::told::{About, What};
use trellis_fabric_protocol::wire::datagram::{Body, Reply, Request, Status, Told, WRITE_BYTES_MAX};

use super::super::memory::{ServerMemory, entry_word};
use super::context::Context;
use super::events::Place;
use super::placed::{Placed, Standing};

/// See the top of this file.
pub(super) struct Held {
    /// The host number in its pointers; the number of a part.
    pub(super) range: u16,
    /// Of a part: where it was cut from.
    pub(super) within: Option<Within>,
    /// Of a range: which of its pages have a home of their own, as far as it is known here; each is held here, too.
    pub(super) parts: Vec<Part>,
    /// A part that has to come back before something can be said.
    pub(super) misses: u16,
    /// The part that the controller was told of last because it has to come back.
    told_back: u16,
    pub(super) settings: Settings,
    /// While this server answers for it.
    pub(super) logic: Option<MemoryServer>,
    pub(super) leases: Keeper,
    /// Once it is known how much it is.
    pub(super) memory: Option<Box<dyn ServerMemory>>,
    /// Where a controller says who is home.
    pub(super) placed: Option<Placed>,
    /// Hosts that a controller named as home or backup; no other is believed to be home.
    pub(super) named: BTreeSet<u16>,
    /// Bytes that wait, by the number of their slot, where they were needed.
    pub(super) slots: Vec<Vec<u8>>,
    /// What its memory takes of what is given to others.
    pub(super) taken_bytes: u64,
    /// When somebody counted on what is here last: a controller that named this host, a home that had something kept.
    pub(super) counted_at: u64,
    /// The controller was asked whether anybody does.
    pub(super) asks_for_counting: bool,
    effects: Vec<Effect>,
}

/// The datagram at hand.
#[derive(Clone, Copy, Default)]
pub(super) struct Hand<'a> {
    /// All of it.
    pub(super) payload: &'a [u8],
    /// Who asked, and from which port.
    pub(super) client: Option<(Client, u16)>,
    /// Of a STORE: by the home of which incarnation, and the bytes; none where they are zero.
    pub(super) store: Option<(u16, &'a [u8])>,
}

impl Held {
    pub(super) fn new(range: u16, settings: Settings, leases: Keeper, memory: Option<Box<dyn ServerMemory>>) -> Held {
        let slots = vec![Vec::new(); settings.staging.slots];
        Held {
            range,
            within: None,
            parts: Vec::new(),
            misses: 0,
            told_back: 0,
            settings,
            logic: None,
            leases,
            memory,
            placed: None,
            named: BTreeSet::new(),
            slots,
            taken_bytes: 0,
            counted_at: 0,
            asks_for_counting: false,
            effects: Vec::new(),
        }
    }

    /// Whether it has something of the range, as far as the controller knows.
    pub(super) fn has_bytes(&self) -> bool {
        self.memory.is_some() && !self.leases.server().memory.is_blank
    }

    /// Somebody counts on what is here.
    pub(super) fn is_counted_on(&mut self, now: u64) {
        (self.counted_at, self.asks_for_counting) = (now, false);
    }

    /// Whether what a home says is heard. Of a page that a part here has its home alone speaks; and a part believes who is home
    /// from a controller, because its number may be that of another one since. The controller is asked where somebody knows
    /// more than this host.
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
        // Who has given the bytes up cannot keep any.
        let has_room = !has_bytes || self.memory.is_some() || self.leases.server().memory.is_blank;
        if is_newer || keeps == Keeps::Ask || self.memory.is_none() {
            self.leases.ask(now);
        }
        !is_newer && keeps == Keeps::Yes && has_room
    }

    /// For operators.
    pub(super) fn place(&self, context: &Context) -> Place {
        match self.within {
            None => Place::whole(context.prefix_of(self.range)),
            Some(within) => context.place_of(self.range, within, self.settings.memory_bytes / PAGE_BYTES),
        }
    }

    /// The first of its bytes, as clients count them.
    fn first_offset(&self) -> u64 {
        self.within.map_or(0, |within| within.first * PAGE_BYTES)
    }

    /// A request as it is understood here. `None`: it is about no page of this part.
    fn inner(&self, request: &Request) -> Option<Request> {
        let pointer = request.destination.pointer;
        let offset = pointer.offset().checked_sub(self.first_offset())?;
        let pointer = Pointer::new(pointer.cluster(), pointer.home(), pointer.generation(), offset)?;
        Some(Request { destination: Destination { pointer, ..request.destination }, ..*request })
    }

    /// An answer as its client understands it.
    fn outer(&self, reply: Reply) -> Reply {
        if self.within.is_none() {
            return reply;
        }
        let from = Destination::decode(reply.from).ok();
        let asked = from.and_then(|it| Some(Destination { pointer: it.pointer.plus(self.first_offset())?, ..it }));
        asked.map_or(reply, |asked| Reply { from: asked.encode(), ..reply })
    }

    /// A request about this range, from a port.
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
            // What is done without a lease is done in order with what its range does for its client: that one takes a lease.
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

    /// Whether this server may say something about a request now, by what the range's leases and its table say.
    fn standing(&self, now: u64, request: &Request) -> Standing {
        let Some(placed) = &self.placed else {
            // Nobody places it; or nothing of it is here.
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
            // Backups keep what was committed, and nothing else.
            return Standing::Elsewhere(Status::Lease, 0, Body::Nothing);
        }
        let is_handing = server.home.as_ref().is_some_and(|home| home.hand_to.is_some());
        let changes = matches!(command, Command::Create | Command::CreateWrite | Command::Delete);
        if changes && (is_handing || placed.is_under_way()) || has_page && placed.touches(page) {
            return Standing::Later;
        }
        Standing::Here
    }

    /// What is said where this is no home.
    fn elsewhere(&self) -> Standing {
        let server = self.leases.server();
        let (home, incarnation) = server.knows;
        if server.is_unserved {
            return Standing::Elsewhere(Status::Unserved, 0, Body::Nothing);
        }
        if home == server.me {
            return Standing::Elsewhere(Status::Restarting, 0, Body::Nothing);
        }
        let to = Pointer::to_host(self.settings.cluster, Host(home)).encode();
        Standing::Elsewhere(Status::Moved, epoch_of(incarnation), Body::Moved(to))
    }

    /// Lets a fact be decided, and carries out what follows from it.
    pub(super) fn step(&mut self, context: &mut Context, input: Input, hand: Hand<'_>) {
        self.decide(context, input, hand);
        self.obey(context, hand);
    }

    /// Does what whoever keeps leases wants, each thing before the next.
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
                Order::Tell { what: What::Report { request, life, state, call, .. }, .. } => {
                    let about = self.about(context.spare_bytes);
                    context.report(self.range, What::Report { request, life, state, call, about });
                }
                Order::Tell { to, what, bytes } => self.tell(context, to, what, bytes),
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

    /// Does one thing; what is a fact because of it.
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
        // A grant goes to who was told BUSY a while ago.
        let port = hand.client.filter(|(client, _)| *client == to).map(|(_, port)| port);
        let Some(port) = port.or_else(|| context.ports.get(&to).map(|(port, _)| *port)) else { return };
        match &mut self.placed {
            // A grant, to somebody else, has bytes and speaks of no object that is new or gone.
            Some(placed) if placed.holds_back && placed.has_touched() && reply.body.data_bytes() == 0 => {
                placed.withhold(reply, port)
            }
            _ => context.reply(&reply, self.memory.as_deref(), offset, port),
        }
    }

    /// Tells another server.
    fn tell(&mut self, context: &mut Context, to: u16, what: What, bytes: Carried) {
        let page = match &what {
            What::Store { page, pages, epoch: 0, .. } if bytes == Carried::Nothing => {
                debug_assert!(self.are_zero(*page..page + u64::from(*pages)), "pages that nothing changed are zero");
                Vec::new()
            }
            What::Store { page, .. } => self.bytes_of(*page, bytes),
            _ => Vec::new(),
        };
        context.tell(to, &Told { range: self.range, what }, &page);
    }

    /// What a page shall be at a backup; nothing where that is all zero.
    fn bytes_of(&self, page: u64, bytes: Carried) -> Vec<u8> {
        let (Some(placed), Some(memory)) = (&self.placed, &self.memory) else { return Vec::new() };
        let pages = placed.table.pages();
        let whole = match page.checked_sub(pages) {
            Some(number) if bytes == Carried::Own => placed.staged(number),
            Some(number) => placed.table.bytes(number),
            None => {
                let mut whole = read(memory.as_ref(), page);
                if let Carried::With { offset, staged: Staged { slot, bytes } } = bytes {
                    let (at, bytes) = ((offset % PAGE_BYTES) as usize, bytes as usize);
                    whole[at..at + bytes].copy_from_slice(&self.slots[slot as usize][..bytes]);
                }
                whole
            }
        };
        if whole.iter().all(|byte| *byte == 0) { Vec::new() } else { whole }
    }

    /// Whether there is nothing in objects with those of these pages that nothing has changed. What is left of an object that is
    /// gone is nobody's.
    fn are_zero(&self, pages: Range<u64>) -> bool {
        let (Some(memory), Some(logic)) = (&self.memory, &self.logic) else { return true };
        let mut unchanged = self.leases.server().unchanged(pages);
        unchanged.all(|page| logic.page(page).is_none_or(|it| it.valid_bytes == 0) || is_zero(memory.as_ref(), page))
    }

    /// What came with a STORE is the page's.
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

    /// Whether a STORE says something that can be kept of this range.
    pub(super) fn may_keep(&self, stored: &Range<u64>, bytes: &[u8]) -> bool {
        // What is not known here is told to nobody but the controller.
        let Some(placed) = &self.placed else { return true };
        let pages = placed.table.pages();
        match stored.start.checked_sub(pages) {
            // Table pages are told one by one.
            Some(number) => {
                let is_one = stored.end - stored.start == 1 && number < table_pages(pages);
                is_one && placed.table.read(number, bytes).is_some()
            }
            None => stored.end <= pages,
        }
    }

    fn about(&self, spare_bytes: u64) -> About {
        let lease::Timing { term, tenure, .. } = self.leases.server().timing;
        let pages = self.placed.as_ref().map_or(0, |placed| placed.table.pages());
        let requests = self.logic.as_ref().map_or(0, |logic| logic.statistics().requests);
        About { pages, requests, spare_bytes, term, tenure, wants_back: self.wants_back() }
    }

    /// Says at once which part has to come back.
    pub(super) fn tell_back(&mut self, now: u64) {
        let wanted = self.wants_back();
        if std::mem::replace(&mut self.told_back, wanted) != wanted && wanted != 0 {
            self.leases.report(now);
        }
    }

    /// The part that has to come back first; 0 for none.
    fn wants_back(&self) -> u16 {
        let page = self.logic.as_ref().and_then(MemoryServer::wants_back);
        let part = page.and_then(|page| part_with(&self.parts, page)).map(|part| part.number);
        part.unwrap_or(self.misses)
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
