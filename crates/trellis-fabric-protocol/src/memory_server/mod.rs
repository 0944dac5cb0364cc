//! A memory server: objects in its memory, which clients make, read, write and delete by their addresses.
//!
//! # Contract
//!
//! One [`MemoryServer`] for each home: a host that answers for two has two. Its one entry point is [`MemoryServer::step`]:
//! a fact goes in ([`Input`]), orders come out ([`Effect`]). It never sees a byte of memory. Orders name places in the
//! memory, in a slot for staged bytes, or in the datagram at hand. The caller carries them out in the order of the list,
//! all of them before the next step.
//!
//! It promises:
//!
//! - **Bounds and generation first.** No order names a byte of memory outside of the object that the pointer refers to. A
//!   pointer to a deleted object is refused ([`pages`]).
//! - **No client sees what another object left.** The pages of a new object are zeroed, then published in the page table,
//!   then named in an answer; those of a deleted one are published as gone before they are given again.
//! - **Exactly once**, within a session, for CREATE, CREATE_WRITE, DELETE, FETCH_ADD and COMPARE_SWAP, and for a WRITE that
//!   asks for it ([`sessions`]). Whatever was answered, even a refusal, is the answer to that request id: a client that
//!   wants another answer uses another id.
//! - **Whole writes.** A write of several datagrams is carried out when all its bytes are there ([`staging`]).
//! - **Nothing of a client outlives it**, where that was requested: an object that was made for a session goes with it.
//! - **What is elsewhere stays.** No object is made of pages that were lent ([`MemoryServer::lend`]), and none that has one
//!   of them is deleted: the answer is BUSY until they are back.
//! - **Bounded.** Objects, sessions, kept answers and slots have named maxima; a host has no more memory than its quota.
//!
//! READ, and WRITE in one datagram, change nothing here. So a program in the kernel may answer them from the page table
//! without asking, except for guarded pages. A WRITE that does not ask for *once* may be repeated by a late duplicate of
//! its datagram: that is the meaning of *blind*.
//!
//! It must never carry out a request about the memory of another home: it answers where to ask. A request to *anywhere*
//! gets this server's own address: a switch may deliver the second attempt somewhere else, so nothing is made before the
//! client has chosen. Leases are kept by another machine ([`leases`]).

mod changes;
mod interface;
pub mod lease_server;
pub mod leases;
mod objects;
pub mod pages;
pub mod sessions;
pub mod staging;
pub mod table_pages;

pub use interface::{Effect, Input, NoTable, Settings, Statistics};
pub use lease_server::{LeaseServer, Order, Payload, Range};
pub use leases::{Access, AccessKind, Admission, Decision, Lease, Leases, NoLeases, Staged};
pub use objects::Object;
pub use pages::PageEntry;
pub use sessions::{Client, SessionLimits, WINDOW};
pub use staging::StagingLimits;

use crate::Nanoseconds;
use crate::wire::address::{Address, Arguments, Host, OFFSET_END, PAGE_BYTES, Pointer};
use crate::wire::command::Command;
use crate::wire::datagram::{Body, Extent, Operation, Reply, Request, STATUSES, Status};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use objects::Objects;
use sessions::{Sessions, Standing};
use staging::{Staging, Taken};

/// See the documentation of this module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemoryServer {
    settings: Settings,
    objects: Objects,
    sessions: Sessions,
    staging: Staging,
    /// How many bytes each host has, in whole pages. Hosts without any are not here.
    used_bytes: BTreeMap<Host, u64>,
    requests: u64,
    answers: [u64; STATUSES],
    repeated: u64,
    /// The number of sessions that had ended when objects of ended ones were last looked for.
    sessions_seen: u64,
    /// A lent page of an object that is to be deleted.
    wants_back: Option<u64>,
}

/// How a request ends; nothing else is answered to it.
enum End {
    Refused(Status),
    Moved(Address, u64),
    Body(Status, Body),
}

impl MemoryServer {
    /// A server without objects.
    pub fn new(settings: Settings) -> MemoryServer {
        assert!(settings.home.is_one(), "a server answers for one home");
        let pages = settings.memory_bytes.min(OFFSET_END) / PAGE_BYTES;
        MemoryServer {
            objects: Objects::new(pages, settings.generation, settings.objects_max),
            sessions: Sessions::new(settings.sessions, settings.incarnation),
            staging: Staging::new(settings.staging),
            used_bytes: BTreeMap::new(),
            requests: 0,
            answers: [0; STATUSES],
            repeated: 0,
            sessions_seen: 0,
            wants_back: None,
            settings,
        }
    }

    /// A server whose memory and page table survived: after a restart, or at another host that has both. `maker` returns
    /// the host that made the object that begins at a page. There are no sessions, and the lease server must start
    /// again too.
    pub fn restored(
        settings: Settings,
        entries: &[PageEntry],
        maker: impl FnMut(u64) -> Host,
    ) -> Result<MemoryServer, NoTable> {
        let mut server = MemoryServer::new(Settings { memory_bytes: 0, ..settings });
        let pages = settings.memory_bytes.min(OFFSET_END) / PAGE_BYTES;
        if entries.len() as u64 != pages {
            return Err(NoTable { pages, page: entries.len() as u64 });
        }
        server.settings = settings;
        server.objects =
            Objects::restored(entries.to_vec(), settings.objects_max, maker).map_err(|page| NoTable { pages, page })?;
        for object in server.objects.all() {
            *server.used_bytes.entry(object.maker).or_default() += object.pages * PAGE_BYTES;
        }
        Ok(server)
    }

    /// Every object, in the order of their places.
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.all()
    }

    /// Takes one fact and pushes the effects that follow from it. `now` never goes back.
    pub fn step(&mut self, now: Nanoseconds, input: Input, leases: &mut impl Leases, effects: &mut Vec<Effect>) {
        match input {
            Input::Request(request) => {
                self.requests += 1;
                self.request(now, &request, leases, effects);
            }
            Input::Before(request, value) => self.before(&request, value, effects),
            Input::Decided(lease, decision) => self.decided(&lease, decision, effects),
            Input::Guard { first_page, pages, is_guarded } => {
                self.objects.table.guard(first_page, pages, is_guarded);
                effects.push(Effect::Publish { first_page, pages });
            }
            Input::Gone(client) => {
                self.sessions.end(client);
                self.staging.free_all(client);
                self.remove_orphans(leases, effects);
            }
            Input::Tick => {
                self.sessions.end_silent(now);
                self.staging.free_silent(now);
                self.remove_orphans(leases, effects);
            }
        }
    }

    /// The entry of a page; `None` past the end of the memory.
    pub fn page(&self, page: u64) -> Option<PageEntry> {
        self.objects.table.entry(page)
    }

    /// The object that has a page.
    pub fn object(&self, page: u64) -> Option<Object> {
        self.objects.at(page).copied()
    }

    /// These pages are elsewhere from now on. The caller leaves requests about their bytes to that place.
    pub fn lend(&mut self, first_page: u64, pages: u64) {
        self.objects.lend(first_page, pages);
    }

    /// Notes that these pages are back.
    pub fn take_back(&mut self, first_page: u64, pages: u64) {
        self.objects.take_back(first_page, pages);
        self.wants_back.take_if(|page| (first_page..first_page + pages).contains(page));
        // An object of an ended session may have waited for them.
        self.sessions_seen = self.sessions_seen.wrapping_sub(1);
    }

    /// A page that is lent and has to come back so that its object can be deleted.
    pub fn wants_back(&self) -> Option<u64> {
        self.wants_back
    }

    /// The quota of a host and what it has, in bytes of whole pages.
    pub fn quota(&self, host: Host) -> (u64, u64) {
        (self.settings.quota_bytes, self.used_bytes.get(&host).copied().unwrap_or_default())
    }

    /// Counters, and the present state.
    pub fn statistics(&self) -> Statistics {
        let pages_free = self.objects.pages_free();
        Statistics {
            requests: self.requests,
            answers: self.answers,
            repeated: self.repeated,
            objects: self.objects.count() as u64,
            pages_used: self.objects.table.pages() - pages_free,
            pages_free,
            longest_free_run_pages: self.objects.longest_run(),
            sessions: self.sessions.count() as u64,
            sessions_ended: self.sessions.ended,
            answers_kept: self.sessions.kept() as u64,
            slots_used: self.staging.count() as u64,
            writes_dropped: self.staging.dropped,
        }
    }

    fn request(&mut self, now: Nanoseconds, request: &Request, leases: &mut impl Leases, effects: &mut Vec<Effect>) {
        if let Some(end) = self.elsewhere(request) {
            return self.end(request, end, effects);
        }
        if request.is_once {
            let (client, id) = (Client::of(&request.source), request.source.request);
            match self.sessions.standing(now, client, request.epoch, id, request.destination.identity().encode()) {
                Standing::New => {}
                Standing::Running => return self.repeated += 1,
                Standing::Answered(reply) => {
                    self.repeated += 1;
                    return self.say(request, Reply { tag_kind: request.tag_kind, ..reply }, 0, effects);
                }
                Standing::Fenced => return self.end(request, End::Refused(Status::Fenced), effects),
                Standing::Reused => return self.end(request, End::Refused(Status::Malformed), effects),
            }
        }
        // A request that ends is answered. One that does not is staged, or waits for a decision.
        if let Some(end) = self.act(now, request, leases, effects) {
            self.finish(request, end, effects);
        }
    }

    /// Handles a request about another home, or about none in particular.
    fn elsewhere(&self, request: &Request) -> Option<End> {
        let home = request.destination.pointer.home();
        let me = Pointer::to_host(self.settings.cluster, self.settings.home).encode();
        let is_to_choose =
            matches!(request.command(), Command::Create | Command::CreateWrite | Command::Hello | Command::Ping);
        match home {
            _ if home == self.settings.home => None,
            Host::ALL if request.command() == Command::Ping => None,
            Host::ALL => Some(End::Refused(Status::UnknownCommand)),
            Host::ANYWHERE if is_to_choose => Some(End::Moved(me, 0)),
            Host::ANYWHERE => Some(End::Refused(Status::Malformed)),
            _ => Some(End::Moved(request.destination.pointer.encode(), 0)),
        }
    }

    fn act(
        &mut self,
        now: Nanoseconds,
        request: &Request,
        leases: &mut impl Leases,
        effects: &mut Vec<Effect>,
    ) -> Option<End> {
        let pointer = request.destination.pointer;
        let end = match (request.command(), request.operation) {
            (Command::Read, Operation::Read { bytes }) => {
                let admitted = self.admit(now, request, bytes.into(), AccessKind::Read, leases);
                admitted.err().unwrap_or(End::Body(Status::Ok, Body::Bytes(bytes)))
            }
            (Command::Write, Operation::Bytes(extent)) => return self.write(now, request, extent, leases, effects),
            (Command::FetchAdd, Operation::FetchAdd { addend }) => {
                match self.admit(now, request, 8, AccessKind::Write, leases) {
                    Err(end) => end,
                    Ok(()) => {
                        self.keep(request, None);
                        effects.push(Effect::FetchAdd { request: *request, offset: pointer.offset(), addend });
                        return None;
                    }
                }
            }
            (Command::CompareSwap, Operation::CompareSwap { expected, new }) => {
                match self.admit(now, request, 8, AccessKind::Write, leases) {
                    Err(end) => end,
                    Ok(()) => {
                        self.keep(request, None);
                        let offset = pointer.offset();
                        effects.push(Effect::CompareSwap { request: *request, offset, expected, new });
                        return None;
                    }
                }
            }
            (Command::Create, Operation::Create { bytes }) => self.create(request, bytes, effects),
            (Command::CreateWrite, Operation::Bytes(extent)) => {
                return self.create_write(now, request, extent, leases, effects);
            }
            (Command::Delete, Operation::Plain) => self.delete(now, request, leases, effects),
            (Command::Inquire, Operation::Plain) => self.inquire(pointer),
            (Command::Hello, Operation::Hello { identity }) => return self.hello(now, request, identity, effects),
            (Command::Ping, Operation::Plain) => self.present(),
            (Command::Update | Command::Renew | Command::Release | Command::Clone, Operation::Plain) => {
                match self.objects.table.check(pointer.generation(), pointer.offset(), 1) {
                    Err(status) => End::Refused(status),
                    Ok(()) => {
                        effects.push(Effect::Lease(Lease { request: *request, staged: None }));
                        return None;
                    }
                }
            }
            (Command::Commit, Operation::Bytes(extent)) => return self.commit(now, request, extent, effects),
            // A copy is requested from a host that has one; a recall and an invalidation go to the holders of a home's
            // rights.
            _ => End::Refused(Status::UnknownCommand),
        };
        Some(end)
    }

    /// Whether this many bytes from the request's place on may be accessed now.
    fn admit(
        &self,
        now: Nanoseconds,
        request: &Request,
        bytes: u64,
        kind: AccessKind,
        leases: &mut impl Leases,
    ) -> Result<(), End> {
        let pointer = request.destination.pointer;
        self.objects.table.check(pointer.generation(), pointer.offset(), bytes).map_err(End::Refused)?;
        let first_page = pointer.page();
        let pages = (pointer.offset() + bytes - 1) / PAGE_BYTES - first_page + 1;
        let access = Access { first_page, pages, kind, client: Client::of(&request.source) };
        match leases.admit(now, &access) {
            Admission::Admitted => Ok(()),
            Admission::Refused(status) => Err(End::Refused(status)),
            Admission::Moved(address, epoch) => Err(End::Moved(address, epoch)),
        }
    }

    fn hello(&mut self, now: Nanoseconds, request: &Request, identity: u64, effects: &mut Vec<Effect>) -> Option<End> {
        let client = Client::of(&request.source);
        let epoch = match self.sessions.open(now, client, identity) {
            Ok(epoch) => epoch,
            Err(status) => return Some(End::Refused(status)),
        };
        let (quota_bytes, used_bytes) = self.quota(client.host);
        let silence_ms = u32::try_from(self.settings.sessions.silence_max / 1_000_000).unwrap_or(u32::MAX);
        let body = Body::Welcome { quota_bytes, used_bytes, window: WINDOW as u32, silence_ms };
        self.say(request, Reply { epoch, ..reply(request, Status::Ok, body) }, 0, effects);
        None
    }

    fn present(&self) -> End {
        let host = Pointer::to_host(self.settings.cluster, self.settings.home);
        let free_bytes = self.objects.pages_free() * PAGE_BYTES;
        End::Body(Status::Ok, Body::Present { host, free_bytes, memory_bytes: self.objects.table.pages() * PAGE_BYTES })
    }

    /// The answer to an addition or an exchange.
    fn before(&mut self, request: &Request, value: u64, effects: &mut Vec<Effect>) {
        let status = match request.operation {
            Operation::CompareSwap { expected, .. } if expected != value => Status::Mismatch,
            _ => Status::Ok,
        };
        self.finish(request, End::Body(status, Body::Value(value)), effects);
    }

    /// The request was carried out or refused: remembers that if needed, and answers.
    fn finish(&mut self, request: &Request, end: End, effects: &mut Vec<Effect>) {
        let reply = end.reply(request);
        // Nothing was done, and the client asks again under the same number, perhaps at another home.
        if request.is_once && !reply.status.is_of_no_home() {
            self.keep(request, Some(reply));
        }
        self.say(request, reply, request.destination.pointer.offset(), effects);
    }

    /// The request was refused before it had any meaning.
    fn end(&mut self, request: &Request, end: End, effects: &mut Vec<Effect>) {
        self.say(request, end.reply(request), 0, effects);
    }

    fn keep(&mut self, request: &Request, reply: Option<Reply>) {
        let (client, id) = (Client::of(&request.source), request.source.request);
        self.sessions.keep(client, request.epoch, id, request.destination.identity().encode(), reply);
    }

    fn say(&mut self, request: &Request, reply: Reply, offset: u64, effects: &mut Vec<Effect>) {
        if !request.destination.arguments.has(Arguments::NO_REPLY) {
            self.answers[reply.status as usize] += 1;
            effects.push(Effect::Reply { reply, offset });
        }
    }
}

impl End {
    fn reply(self, request: &Request) -> Reply {
        match self {
            End::Refused(status) => reply(request, status, Body::Nothing),
            End::Moved(address, epoch) => Reply { epoch, ..reply(request, Status::Moved, Body::Moved(address)) },
            End::Body(status, body) => reply(request, status, body),
        }
    }
}

/// The answer to a request that is not carried out here, with this status and epoch. `None`: it wants no answer.
pub fn refusal(request: &Request, status: Status, epoch: u64, body: Body) -> Option<Reply> {
    let is_silent = request.destination.arguments.has(Arguments::NO_REPLY);
    (!is_silent).then(|| Reply { epoch, ..reply(request, status, body) })
}

/// The answer to a request as a whole.
fn reply(request: &Request, status: Status, body: Body) -> Reply {
    let is_several = matches!(request.operation, Operation::Bytes(Extent { is_several: true, .. }));
    Reply {
        to: request.source,
        from: request.destination.encode(),
        status,
        tag_kind: request.tag_kind,
        is_several,
        is_last: is_several,
        is_release: false,
        epoch: request.epoch,
        body,
    }
}
