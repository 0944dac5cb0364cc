//! Sends a client's requests as datagrams and receives the answers.
//!
//! Promises: every request ends, with the status of its answer or with the host that did not answer. A request for
//! which a server has no room is sent again under another number. A request whose bytes do not fit into one datagram is
//! divided but stays one request: its bytes are written when all have arrived. A request that gets no answer for a
//! while, or is answered with MOVED or RESTARTING, is sent again under the same number, past the switch's redirects
//! (DIRECT), until the deadline: moves and failovers of ranges are handled by the network. What is refused without a
//! lease is done under one ([`super::by_lease`]), and bytes at several places are read page by page
//! ([`super::by_page`]). It must never send a request that may have been done again under another number.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use trellis_base::{Deadline, Limit};
use trellis_fabric_protocol::memory_server::WINDOW;
use trellis_fabric_protocol::wire::address::{Address, Arguments, Destination, Host, HostPrefix, Pointer, Source};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::request::Small;
use trellis_fabric_protocol::wire::datagram::{
    Body, Extent, HEADER_BYTES, Operation, Reply, Request, Rules, Status, TagKind, seal,
};
use trellis_transport::links::ipv6::{Ask, NoAnswer, PARTS_MAX, Verdict};

use super::super::{Hardware, RemoteError};
use super::by_lease::{Changes, can_be};
use super::waiting::{Wait, places};
use super::{CLIENT, Client};

/// The pause before another attempt when a server answers that it is too early: initially, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// How often BUSY is received before a lease is taken, for which the home recalls the page from its holder.
const BUSY_WITHOUT_LEASE: u32 = 2;
/// In how many new sessions a request is sent.
const SESSIONS_MAX: u32 = 3;
/// How often that time doubles while the home is silent.
const SLICE_DOUBLINGS_MAX: u32 = 3;
/// How long one home is asked while others wait for their turn.
pub(crate) const SLICE: Deadline = Deadline {
    who: CLIENT,
    waits_for: "one home for the first time, while the call has requests to others",
    limit: Limit::milliseconds(50),
    then: "the others are asked, and then this one for twice as long, up to 400 ms, within the call's deadline",
    tested: "crates/trellis-remote/tests/remote_moving.rs who_is_silent_does_not_make_others_silent",
};
/// How long a request may be delivered to the host that the switch selects.
pub(crate) const DETOUR: Deadline = Deadline {
    who: CLIENT,
    waits_for: "the host that the switch selects; each request that goes along adds 100 µs",
    limit: Limit::milliseconds(30),
    then: "the home is asked, within the call's deadline",
    tested: "crates/trellis-remote/tests/remote_moving.rs what_is_not_answered_soon_is_asked_again_otherwise",
};
/// The additional time for each request that is sent with it.
const DETOUR_EACH: Duration = Duration::from_micros(100);

/// A request without a number, and its bytes.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) pointer: Pointer,
    pub(super) command: Command,
    pub(super) arguments: Arguments,
    pub(super) operation: Operation,
    pub(super) epoch: u64,
    pub(super) data: &'a [u8],
    /// Atomic, even if it affects several pages.
    pub(super) is_whole: bool,
    /// COMMIT: the lease is returned with it.
    pub(super) is_release: bool,
}

impl<'a> Wanted<'a> {
    pub(super) fn plain(pointer: Pointer, command: Command, operation: Operation) -> Wanted<'a> {
        let arguments = Arguments::NONE;
        Wanted { pointer, command, arguments, operation, epoch: 0, data: &[], is_whole: false, is_release: false }
    }

    /// A READ, without a header if its length allows that.
    pub(super) fn read(pointer: Pointer, bytes: usize) -> Wanted<'a> {
        let mut read = Wanted::plain(pointer, Command::Read, Operation::Read { bytes: bytes as u32 });
        if bytes.is_power_of_two() {
            read.arguments = Arguments::of_length(bytes.trailing_zeros() as u8).expect("a piece is not so long");
        }
        read
    }

    /// A WRITE that is done once: a late datagram must not undo a later write.
    pub(super) fn write(pointer: Pointer, epoch: u64, data: &'a [u8]) -> Wanted<'a> {
        let operation = Operation::Bytes(Extent::whole(data.len() as u32));
        Wanted { data, epoch, ..Wanted::plain(pointer, Command::Write, operation) }
    }

    /// Like [`Wanted::write`], for bytes that are written atomically.
    pub(super) fn write_whole(pointer: Pointer, epoch: u64, data: &'a [u8]) -> Wanted<'a> {
        Wanted { is_whole: true, ..Wanted::write(pointer, epoch, data) }
    }

    /// Whether it is sent in a session and done once, however often it arrives.
    fn is_once(&self) -> bool {
        self.command.is_once() || self.command == Command::Write
    }

    pub(super) fn refused(&self, status: Status) -> Failure {
        match status {
            // A change within one page is done under a lease.
            Status::Lease if self.is_whole => {
                Failure::SeveralPages { pointer: self.pointer, bytes: self.data.len() as u64 }
            }
            _ => Failure::Refused { command: self.command, pointer: self.pointer, status },
        }
    }
}

/// Why a request failed, in a form that can be reported to several callers.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    Silent(NoAnswer),
    Refused { command: Command, pointer: Pointer, status: Status },
    Range { pointer: Pointer, bytes: u64 },
    TooLong { bytes: u64 },
    SeveralPages { pointer: Pointer, bytes: u64 },
    Unserved { command: Command, pointer: Pointer, status: Status, moved_to: Option<Host>, sent: u32, waited: Duration },
    Unknown { command: Command, pointer: Pointer },
}

impl From<Failure> for RemoteError {
    fn from(failure: Failure) -> RemoteError {
        match failure {
            Failure::Silent(why) => RemoteError::NoAnswer(why),
            Failure::Refused { command, pointer, status } => RemoteError::Refused { command, pointer, status },
            Failure::Range { pointer, bytes } => RemoteError::Range { pointer, bytes },
            Failure::TooLong { bytes } => RemoteError::TooLong { bytes },
            Failure::SeveralPages { pointer, bytes } => RemoteError::SeveralPages { pointer, bytes },
            Failure::Unserved { command, pointer, status, moved_to, sent, waited } => {
                RemoteError::Unserved { command, pointer, status, moved_to, sent, waited }
            }
            Failure::Unknown { command, pointer } => RemoteError::Unknown { command, pointer },
        }
    }
}

/// The pointer `at` bytes further, in a range of `bytes` bytes.
pub(super) fn plus(pointer: Pointer, at: u64, bytes: u64) -> Result<Pointer, Failure> {
    pointer.plus(at).ok_or(Failure::Range { pointer, bytes })
}

/// The pieces of a range of bytes, with the offset of each.
pub(super) fn pieces(
    pointer: Pointer,
    bytes: usize,
    piece: usize,
) -> impl Iterator<Item = Result<(Pointer, Range<usize>), Failure>> {
    (0..bytes).step_by(piece).map(move |at| {
        let place = at..bytes.min(at + piece);
        Ok((plus(pointer, at as u64, bytes as u64)?, place))
    })
}

/// The result of a request.
pub(super) type End = Result<Status, Failure>;

/// Examines an answer, given the index of its request and its bytes of memory; returns whether it is valid.
pub(super) type Take<'a> = &'a mut dyn FnMut(usize, &Reply, &[u8]) -> bool;

impl Client {
    /// Sends all requests, as many at a time as servers remember, and returns their results. After a host was silent,
    /// nothing more is sent to it.
    pub(super) fn ask_all(&mut self, wanted: &[Wanted<'_>], take: Take<'_>) -> Vec<End> {
        if wanted.len() <= WINDOW as usize || !wanted.iter().any(Wanted::is_once) {
            return self.ask(&wanted.iter().collect::<Vec<_>>(), take);
        }
        let (once, free): (Vec<usize>, Vec<usize>) = (0..wanted.len()).partition(|&place| wanted[place].is_once());
        let mut ends: Vec<End> = vec![Ok(Status::Busy); wanted.len()];
        let (first, rest) = once.split_at(once.len().min(WINDOW as usize));
        let chunks =
            std::iter::once([first, &free].concat()).chain(rest.chunks(WINDOW as usize).map(<[usize]>::to_vec));
        let mut silent: Vec<(Host, Failure)> = Vec::new();
        for mut places in chunks {
            places.retain(|&place| {
                let home = wanted[place].pointer.home();
                let Some((_, why)) = silent.iter().find(|(host, _)| *host == home) else { return true };
                ends[place] = Err(why.clone());
                false
            });
            let some: Vec<&Wanted<'_>> = places.iter().map(|&place| &wanted[place]).collect();
            let some_ends = self.ask(&some, &mut |number, reply, data| take(places[number], reply, data));
            for (place, end) in places.into_iter().zip(some_ends) {
                if let Err(why @ (Failure::Silent(_) | Failure::Unserved { .. })) = &end {
                    silent.push((wanted[place].pointer.home(), why.clone()));
                }
                ends[place] = end;
            }
        }
        ends
    }

    /// Sends requests, repeats those that cannot be done now, and uses leases for those that are refused without.
    /// `take` examines each other answer.
    pub(super) fn ask(&mut self, wanted: &[&Wanted<'_>], take: Take<'_>) -> Vec<End> {
        self.ask_until(wanted, Instant::now() + self.options.deadline, take)
    }

    /// Like [`Client::ask`], until a deadline.
    pub(super) fn ask_until(&mut self, wanted: &[&Wanted<'_>], deadline: Instant, take: Take<'_>) -> Vec<End> {
        let began = Instant::now();
        let mut waits: Vec<Wait> = wanted.iter().map(|wanted| Wait::new(self.way_of(wanted, began))).collect();
        let (mut pause, mut changes) = (PAUSE_MIN, Changes::new(began, deadline));
        loop {
            let must_wait = self.ask_round(wanted, &mut waits, &mut changes, deadline, take);
            if waits.iter().all(|wait| wait.end.is_some()) || Instant::now() >= deadline {
                break;
            }
            if must_wait {
                if Instant::now() + pause >= deadline {
                    break;
                }
                std::thread::sleep(pause);
                pause = PAUSE_MAX.min(2 * pause);
            }
        }
        self.remember(wanted, &waits, began);
        let at_deadline = |(wait, wanted): (Wait, &&Wanted<'_>)| wait.ended(wanted, began.elapsed());
        waits.into_iter().zip(wanted).map(at_deadline).collect()
    }

    /// Sends all open requests once; returns whether a server answered that it is too early.
    fn ask_round<'a>(
        &mut self,
        wanted: &[&Wanted<'a>],
        waits: &mut [Wait],
        changes: &mut Changes<'a>,
        deadline: Instant,
        take: Take<'_>,
    ) -> bool {
        let mut must_wait = self.ask_anybody(wanted, waits, deadline, take);
        let mut at_home: Vec<(u64, usize)> =
            places(waits, Wait::is_plain).into_iter().filter_map(|place| Some((waits[place].number?, place))).collect();
        at_home.sort_unstable();
        let runs: Vec<&[(u64, usize)]> = at_home.chunk_by(|one, next| next.0 == one.0.wrapping_add(1)).collect();
        // A silent host must not delay the requests to others.
        let is_only_one = runs.len() == 1 && waits.iter().all(|wait| wait.end.is_some() || wait.number.is_some());
        for run in runs {
            let here: Vec<usize> = run.iter().map(|(_, place)| *place).collect();
            // Answers that come while others are asked are lost: a home that takes longer needs longer turns.
            let turns = here.iter().map(|&place| waits[place].asks).max().unwrap_or(0);
            let slice = SLICE.time() * (1 << turns.min(SLICE_DOUBLINGS_MAX));
            let until = if is_only_one { deadline } else { deadline.min(Instant::now() + slice) };
            must_wait |= self.ask_these(run[0].0, wanted, &here, waits, Arguments::DIRECT, until, take);
        }
        self.read_by_page(wanted, waits, deadline, take);
        must_wait | self.change_under_leases(wanted, waits, changes, take)
    }

    /// Sends requests that were not sent yet, or were answered with BUSY, to wherever the switch delivers them.
    fn ask_anybody(&mut self, wanted: &[&Wanted<'_>], waits: &mut [Wait], deadline: Instant, take: Take<'_>) -> bool {
        // A home forgets requests that are far older than the latest one: nothing new is sent to a home at which an
        // older request is open.
        let held: BTreeSet<Host> = places(waits, |wait| wait.is_plain() && wait.number.is_some())
            .into_iter()
            .map(|place| wanted[place].pointer.home())
            .collect();
        let here: Vec<usize> = places(waits, |wait| wait.is_plain() && wait.number.is_none())
            .into_iter()
            .filter(|&place| !held.contains(&wanted[place].pointer.home()))
            .collect();
        if here.is_empty() {
            return false;
        }
        let first = self.exchange.numbers(here.len());
        for (number, &place) in here.iter().enumerate() {
            waits[place].number = Some(first.wrapping_add(number as u64));
        }
        let timeout = DETOUR.time() + DETOUR_EACH * u32::try_from(here.len()).unwrap_or(u32::MAX);
        let until = deadline.min(Instant::now() + timeout);
        self.ask_these(first, wanted, &here, waits, Arguments::NONE, until, take)
    }

    /// Sends the requests at these indexes, with consecutive numbers; returns whether a server answered that it is too
    /// early.
    #[allow(clippy::too_many_arguments, reason = "what is asked, how, and where the answers go")]
    fn ask_these(
        &mut self,
        first: u64,
        wanted: &[&Wanted<'_>],
        here: &[usize],
        waits: &mut [Wait],
        flags: Arguments,
        until: Instant,
        take: Take<'_>,
    ) -> bool {
        let some: Vec<Wanted<'_>> = here.iter().map(|&place| waits[place].again(wanted[place])).collect();
        let asked: Vec<&Wanted<'_>> = some.iter().collect();
        let repeated = self.exchange.repeated();
        let mut must_wait = false;
        let mut with_leases: Vec<Host> = Vec::new();
        let unanswered = self.ask_as(first, &asked, flags, until, &mut |number, reply, data| {
            let (wanted, wait) = (&some[number], &mut waits[here[number]]);
            let home = wanted.pointer.home();
            match (reply.status, can_be(wanted)) {
                // The answering host only holds the page for the moment, or another host is home: the home decides.
                // Nothing was done, and the number was not recorded. After a request to any server, MOVED tells which
                // one is home.
                (status, _) if status.is_of_no_home() && (home.is_one() || status != Status::Moved) => {
                    wait.sent += 1;
                    if flags.has(Arguments::DIRECT) {
                        wait.heard = Some((reply.status, moved_to(reply)));
                        must_wait = true;
                    }
                }
                (Status::Parts, _) if wanted.command == Command::Read => wait.go_by_page(),
                (Status::Lease, true) => {
                    wait.take_a_lease();
                    with_leases.push(home);
                }
                (Status::Lease, _) if wanted.command == Command::Delete => wait.is_busy(Status::Lease),
                (Status::Busy, may) => {
                    wait.is_busy(Status::Busy);
                    if may && wait.busy >= BUSY_WITHOUT_LEASE {
                        wait.take_a_lease();
                    }
                }
                _ if take(here[number], reply, data) => wait.end = Some(Ok(reply.status)),
                _ => return false,
            }
            true
        });
        for (number, why) in unanswered {
            let wait = &mut waits[here[number]];
            wait.sent += why.sent;
            if why.error.is_some() {
                wait.end = Some(Err(Failure::Silent(NoAnswer { sent: wait.sent, ..why })));
            }
        }
        let is_first = self.exchange.repeated() == repeated;
        self.open_again(&some, here, waits, is_first);
        let now = Instant::now();
        with_leases.into_iter().for_each(|home| self.homes.has_backups(home, now));
        let is_waiting = |wait: &Wait| wait.end.is_none() && wait.is_plain() && wait.number.is_none();
        must_wait || here.iter().any(|&place| is_waiting(&waits[place]))
    }

    /// A request was refused because its home does not know this client's session, perhaps because the home has
    /// changed. It is sent again in a new session if it cannot have been done: because it was sent once (`is_first`:
    /// nothing in this round was repeated), or because no client would know the object that it creates.
    fn open_again(&mut self, some: &[Wanted<'_>], here: &[usize], waits: &mut [Wait], is_first: bool) {
        let is_unknown = |wanted: &Wanted<'_>, wait: &Wait| {
            let makes = matches!(wanted.command, Command::Create | Command::CreateWrite);
            let is_not_done = makes || is_first && wait.asks == 0;
            wanted.is_once()
                && matches!(wait.end, Some(Ok(Status::Fenced)))
                && is_not_done
                && wait.sessions < SESSIONS_MAX
        };
        let unknown: Vec<(usize, Host)> = (some.iter().zip(here))
            .filter(|(wanted, place)| is_unknown(wanted, &waits[**place]))
            .map(|(wanted, place)| (*place, wanted.pointer.home()))
            .collect();
        here.iter().for_each(|&place| waits[place].asks += u32::from(waits[place].number.is_some()));
        if unknown.is_empty() {
            return;
        }
        let homes: BTreeSet<Host> = unknown.iter().map(|(_, home)| *home).collect();
        homes.iter().for_each(|home| self.sessions.forget(*home));
        let failed = self.open_sessions(&homes.into_iter().collect::<Vec<Host>>());
        for (place, home) in unknown {
            let wait = &mut waits[place];
            wait.send_in_session(self.sessions.epoch(home), failed.get(&home).cloned());
        }
    }

    /// Records what the results of requests show about sessions: if a server no longer knows a session, the next call
    /// opens it again.
    fn remember(&mut self, wanted: &[&Wanted<'_>], waits: &[Wait], began: Instant) {
        for (wanted, wait) in wanted.iter().zip(waits).filter(|(wanted, _)| wanted.is_once()) {
            let home = wanted.pointer.home();
            match wait.end {
                _ if wait.heard.is_some_and(|(status, _)| status.is_of_no_home()) => self.sessions.forget(home),
                Some(Ok(Status::Fenced)) => self.sessions.forget(home),
                Some(Ok(_)) if wait.is_plain() => self.sessions.heard(home, began),
                _ => {}
            }
        }
    }

    /// Sends requests with numbers from `first` on, and with these flags.
    pub(super) fn ask_as(
        &mut self,
        first: u64,
        wanted: &[&Wanted<'_>],
        flags: Arguments,
        deadline: Instant,
        take: Take<'_>,
    ) -> Vec<(usize, NoAnswer)> {
        let HostPrefix { cluster, host } = self.options.prefix;
        let (rules, piece) =
            (Rules { cluster, least: TagKind::Checksum, tags: &Hardware }, self.options.piece_bytes as usize);
        let mut datagrams = Vec::with_capacity(wanted.len());
        for (number, wanted) in wanted.iter().enumerate() {
            let request = first.wrapping_add(number as u64);
            let source = Source { cluster, host, incarnation: self.sessions.incarnation(), request };
            datagrams_of(wanted, flags, source, piece, &mut datagrams);
        }
        let parts: Vec<[&[u8]; PARTS_MAX]> = datagrams.iter().map(Datagram::parts).collect();
        let asks: Vec<Ask<'_>> = datagrams
            .iter()
            .zip(&parts)
            .map(|(it, parts)| Ask { to: it.to.0, parts: &parts[..], is_more: it.is_more })
            .collect();
        self.exchange.ask(first, &asks, deadline, &mut |number, arrived, payload| {
            let (source, destination) = (Address(arrived.source), Address(arrived.destination));
            // Damaged, or not for this client: treated as lost.
            let Ok(reply) = Reply::decode(source, destination, payload, &rules) else { return Verdict::Ignored };
            let command = Destination::decode(reply.from).map(|from| from.command);
            if command != Ok(wanted[number].command) {
                return Verdict::Ignored;
            }
            if let Body::Taken { position, .. } = reply.body {
                // More pieces than there are cannot belong to it, and are ignored.
                let is_one = wanted[number].data.len() > piece && (position as usize).is_multiple_of(piece);
                return if is_one { Verdict::Part(position as usize / piece) } else { Verdict::Ignored };
            }
            let data = &payload[reply.body.data_at().min(payload.len())..];
            match take(number, &reply, data) {
                true => Verdict::Accepted,
                // It has a place in the page's queue, and is granted in its turn.
                false if reply.status == Status::Busy && reply.epoch != 0 => Verdict::Later,
                false => Verdict::Ignored,
            }
        })
    }
}

/// One datagram of a request.
struct Datagram<'a> {
    to: Address,
    header: [u8; HEADER_BYTES],
    small: Small,
    data: &'a [u8],
    /// The request is encoded entirely in the address.
    is_bare: bool,
    /// Not the first datagram of its request.
    is_more: bool,
}

fn datagrams_of<'a>(
    wanted: &Wanted<'a>,
    flags: Arguments,
    source: Source,
    piece: usize,
    datagrams: &mut Vec<Datagram<'a>>,
) {
    if wanted.data.len() <= piece {
        return datagrams.push(Datagram::of(wanted, flags, wanted.operation, wanted.data, source));
    }
    let total = wanted.data.len() as u32;
    for (number, data) in wanted.data.chunks(piece).enumerate() {
        let extent = Extent::part((number * piece) as u32, data.len() as u32, total);
        let datagram = Datagram::of(wanted, flags, Operation::Bytes(extent), data, source);
        datagrams.push(Datagram { is_more: number > 0, ..datagram });
    }
}

impl<'a> Datagram<'a> {
    fn of(wanted: &Wanted<'a>, flags: Arguments, operation: Operation, data: &'a [u8], source: Source) -> Datagram<'a> {
        let destination = wanted.pointer.request(wanted.command, wanted.arguments.and(flags));
        let request = Request {
            source,
            destination,
            tag_kind: TagKind::Checksum,
            is_once: wanted.is_once(),
            is_release: wanted.is_release,
            epoch: wanted.epoch,
            operation,
        };
        let (mut header, small) = request.encode();
        let to = destination.encode();
        seal(&mut header, source.encode(), to, [small.bytes(), data], &Hardware);
        let is_bare = operation == Operation::Read { bytes: wanted.arguments.bytes() };
        Datagram { to, header, small, data, is_bare, is_more: false }
    }

    fn parts(&self) -> [&[u8]; PARTS_MAX] {
        if self.is_bare { [&[], &[], &[]] } else { [&self.header, self.small.bytes(), self.data] }
    }
}

/// The host that holds the page, according to an answer.
pub(super) fn moved_to(reply: &Reply) -> Option<Host> {
    let Body::Moved(address) = reply.body else { return None };
    let there = Destination::decode(address).map(|there| there.pointer).or_else(|_| Pointer::decode(address));
    there.ok().map(Pointer::home).filter(|home| home.is_one())
}
