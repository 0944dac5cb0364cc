//! Pages of other homes of which this server answers READs from copies, at a controller's request.
//!
//! Promises: an answer from a copy is what its home held at that moment: [`Reader`] decides, as for any process that
//! has copies, and a recalled copy is not used after its home is informed. Nothing of it lasts longer than the
//! controller requested. A request for more than is copied here is left to the host that knows the home.
//!
//! It must never answer anything but READ, nor for another object than the one that had the page when the copy arrived,
//! nor follow more than [`PAGES_MAX`] pages.

use std::collections::BTreeMap;

use trellis_fabric_protocol::lease::reader::{Input, Reader};
use trellis_fabric_protocol::lease::{Ask, Effect, Epoch, Message, Party, RangeNumber, Status as Outcome, Timing};
use trellis_fabric_protocol::wire::address::{Arguments, Cluster, Destination, Host, PAGE_BYTES, Pointer};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::control::What;
use trellis_fabric_protocol::wire::datagram::{Body, ControlMessage, Notice, Operation, Reply, Request, Status};

use super::context::Context;

/// The maximum number of pages that are followed.
const PAGES_MAX: usize = 256;

/// See the top of this file.
pub(super) struct Follows {
    timing: Timing,
    cluster: Cluster,
    me: Party,
    /// By the range's number.
    readers: BTreeMap<RangeNumber, Reader>,
    /// By range and page.
    pages: BTreeMap<(RangeNumber, u64), Followed>,
}

/// A page that is followed.
struct Followed {
    /// The controller that requested it, and receives reports about it.
    controller: Host,
    /// The end of the request.
    until: u64,
    /// The generation of the page's object, once the home has reported it.
    generation: Option<u16>,
    /// When the home is asked for that again.
    inquire_at: u64,
    /// The bytes of the object, as copied.
    bytes: Vec<u8>,
    answered: u64,
    /// The state that its controller was last sent.
    had_copy: bool,
}

impl Follows {
    pub(super) fn new(timing: Timing, context: &Context) -> Follows {
        let me = Party { host: context.prefix.host, incarnation: context.incarnation.bits() };
        Follows { timing, cluster: context.prefix.cluster, me, readers: BTreeMap::new(), pages: BTreeMap::new() }
    }

    /// The time at which [`Follows::tick`] has something to do.
    pub(super) fn alarm(&self) -> u64 {
        let readers = self.readers.values().filter_map(Reader::alarm);
        let pages = self.pages.values().map(|followed| match followed.generation {
            Some(_) => followed.until,
            None => followed.until.min(followed.inquire_at),
        });
        readers.chain(pages).min().unwrap_or(u64::MAX)
    }

    /// A controller requests that a page is followed for this long, or no longer.
    pub(super) fn follow(
        &mut self,
        context: &mut Context,
        controller: Host,
        (range, page): (RangeNumber, u64),
        lasts: u64,
    ) {
        if lasts == 0 {
            return self.leave(context, (range, page));
        }
        let now = context.now();
        let until = now.saturating_add(lasts);
        let is_known = self.pages.contains_key(&(range, page));
        let can_be = Pointer::new(self.cluster, range.host(), 0, page.saturating_mul(PAGE_BYTES)).is_some();
        if can_be && (is_known || self.pages.len() < PAGES_MAX) {
            let new = Followed {
                controller,
                until,
                generation: None,
                inquire_at: now,
                bytes: Vec::new(),
                answered: 0,
                had_copy: false,
            };
            let followed = self.pages.entry((range, page)).or_insert(new);
            (followed.controller, followed.until) = (controller, until);
            self.tick(context);
        }
        self.report(context, controller, (range, page));
    }

    fn leave(&mut self, context: &mut Context, of: (RangeNumber, u64)) {
        // The state machine stays, so that its numbers continue and late answers are ignored.
        if self.pages.remove(&of).is_some() {
            self.step(context, of.0, Input::Drop(of.1), &[]);
        }
    }

    fn reader(&mut self, range: RangeNumber) -> &mut Reader {
        let (me, timing) = (self.me, self.timing);
        // Requests are sent to the page's address; the switch knows its home.
        self.readers.entry(range).or_insert_with(|| Reader::new(me, Party::of(range.host()), timing, range.host()))
    }

    /// Handles the passing of time.
    pub(super) fn tick(&mut self, context: &mut Context) {
        let now = context.now();
        let over: Vec<(RangeNumber, u64)> =
            self.pages.iter().filter(|(_, followed)| now >= followed.until).map(|(of, _)| *of).collect();
        over.into_iter().for_each(|of| self.leave(context, of));
        for (&(range, page), followed) in &mut self.pages {
            if followed.generation.is_none() && now >= followed.inquire_at {
                followed.inquire_at = now + self.timing.retry;
                send(context, self.cluster, (range, page), 0, None, Command::Inquire, 0);
            }
        }
        let due: Vec<RangeNumber> =
            self.readers.iter().filter(|(_, it)| it.alarm().is_some_and(|at| now >= at)).map(|(of, _)| *of).collect();
        due.into_iter().for_each(|range| self.step(context, range, Input::Tick, &[]));
        self.tell_changes(context);
    }

    /// The answer to a READ if it is about bytes that are copied here.
    pub(super) fn read(&mut self, now: u64, request: &Request) -> Option<&[u8]> {
        let Operation::Read { bytes } = request.operation else { return None };
        let pointer = request.destination.pointer;
        let (range, page) = (RangeNumber::of(pointer.home()), pointer.page());
        let followed = self.pages.get_mut(&(range, page))?;
        let has = self.readers.get(&range)?.has(now, page);
        let from = (pointer.offset() % PAGE_BYTES) as usize;
        let is_it = has && request.command() == Command::Read && followed.generation == Some(pointer.generation());
        let found = followed.bytes.get(from..from + bytes as usize).filter(|_| is_it)?;
        followed.answered += 1;
        Some(found)
    }

    /// Handles a home's answer.
    pub(super) fn answered(&mut self, context: &mut Context, reply: &Reply, payload: &[u8]) {
        let Ok(Destination { pointer, command, .. }) = Destination::decode(reply.from) else { return };
        let (range, page) = (RangeNumber::of(pointer.home()), pointer.page());
        let now = context.now();
        let Some(followed) = self.pages.get_mut(&(range, page)) else { return };
        if command == Command::Inquire {
            if let (Status::Ok, Body::Object { pointer, .. }, None) = (reply.status, reply.body, followed.generation) {
                followed.generation = Some(pointer.generation());
                self.step(context, range, Input::Follow(page), &[]);
            }
            return;
        }
        if command != Command::Clone || followed.generation != Some(pointer.generation()) {
            return;
        }
        let status = match (reply.status, reply.body) {
            // A home with another term would recall too late.
            (Status::Ok, Body::Leased { term, .. }) if term == self.timing.term => Outcome::Ok,
            (Status::Moved, Body::Moved(address)) => match Pointer::decode(address) {
                Ok(there) => Outcome::Moved(there.home()),
                Err(_) => return,
            },
            (Status::Busy, _) => Outcome::Busy,
            (Status::Restarting, _) => Outcome::Restarting,
            (Status::Unserved, _) => Outcome::Unserved,
            (Status::Stale | Status::Bounds, _) => {
                // Another object has the page, or none.
                let is_awaited = |reader: &Reader| {
                    reader.pages.get(&page).and_then(|it| it.asked).is_some_and(|(asked, _)| asked == reply.to.request)
                };
                if self.readers.get(&range).is_some_and(is_awaited) {
                    (followed.generation, followed.inquire_at) = (None, now + self.timing.retry);
                    self.step(context, range, Input::Drop(page), &[]);
                }
                return self.tell_changes(context);
            }
            _ => return,
        };
        let (request, epoch) = (reply.to.request, reply.epoch);
        let message = Message::Reply { page, request, ask: Ask::Copy, status, epoch };
        let bytes = payload.get(reply.body.data_at()..).unwrap_or_default();
        self.step(context, range, Input::Message(Party::of(range.host()), message), bytes);
        self.tell_changes(context);
    }

    /// Handles a notice that a home sent unasked.
    pub(super) fn noticed(&mut self, context: &mut Context, notice: &Notice) {
        let Destination { pointer, command, .. } = notice.from;
        let (range, page) = (RangeNumber::of(pointer.home()), pointer.page());
        if command != Command::Invalidate {
            return;
        }
        if self.pages.contains_key(&(range, page)) {
            let message = Message::Invalidate { page, epoch: notice.epoch };
            self.step(context, range, Input::Message(Party::of(range.host()), message), &[]);
            self.tell_changes(context);
        } else {
            // There is no copy, and none that is being fetched will be used.
            send(context, self.cluster, (range, page), pointer.generation(), None, Command::Invalidated, notice.epoch);
        }
    }

    /// Passes a fact to a range's state machine, and carries out what follows.
    fn step(&mut self, context: &mut Context, range: RangeNumber, input: Input, bytes: &[u8]) {
        let now = context.now();
        let mut effects = Vec::new();
        self.reader(range).step(now, input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Put(page) => {
                    if let Some(followed) = self.pages.get_mut(&(range, page)) {
                        followed.bytes.clear();
                        followed.bytes.extend_from_slice(bytes);
                    }
                }
                Effect::Send { message: Message::Request { page, request, ask: Ask::Copy }, .. } => {
                    let generation = self.pages.get(&(range, page)).and_then(|followed| followed.generation);
                    if let Some(generation) = generation {
                        send(context, self.cluster, (range, page), generation, Some(request), Command::Clone, 0);
                    }
                }
                Effect::Send { message: Message::Invalidated { page, epoch }, .. } => {
                    // The home only uses the number of the page.
                    let generation = self.pages.get(&(range, page)).and_then(|followed| followed.generation);
                    let generation = generation.unwrap_or_default();
                    send(context, self.cluster, (range, page), generation, None, Command::Invalidated, epoch);
                }
                _ => {}
            }
        }
    }

    /// Reports to controllers which copies have arrived or are gone.
    fn tell_changes(&mut self, context: &mut Context) {
        let now = context.now();
        let changed: Vec<((RangeNumber, u64), Host)> = self
            .pages
            .iter()
            .filter(|((range, page), followed)| followed.had_copy != self.has(now, *range, *page))
            .map(|(of, followed)| (*of, followed.controller))
            .collect();
        changed.into_iter().for_each(|(of, controller)| self.report(context, controller, of));
    }

    fn has(&self, now: u64, range: RangeNumber, page: u64) -> bool {
        self.readers.get(&range).is_some_and(|reader| reader.has(now, page))
    }

    fn report(&mut self, context: &mut Context, controller: Host, (range, page): (RangeNumber, u64)) {
        let now = context.now();
        let copy = self.readers.get(&range).and_then(|reader| reader.pages.get(&page)).and_then(|it| it.copy);
        let followed = self.pages.get_mut(&(range, page));
        let left =
            copy.map_or(0, |(_, until)| until.saturating_sub(now)).min(if followed.is_some() { u64::MAX } else { 0 });
        let answered = followed.map_or(0, |followed| {
            followed.had_copy = left > 0;
            followed.answered
        });
        context.send(controller, &ControlMessage { range, what: What::Followed { page, left, answered } }, &[]);
    }
}

/// Sends the home a request about a page, past redirects; under the number of a machine's request, or any.
fn send(
    context: &mut Context,
    cluster: Cluster,
    (range, page): (RangeNumber, u64),
    generation: u16,
    number: Option<u64>,
    command: Command,
    epoch: Epoch,
) {
    let Some(pointer) = Pointer::new(cluster, range.host(), generation, page * PAGE_BYTES) else { return };
    let silent = if command == Command::Invalidated { Arguments::NO_REPLY } else { Arguments::NONE };
    context.ask(number, pointer.request(command, Arguments::DIRECT.and(silent)), epoch);
}
