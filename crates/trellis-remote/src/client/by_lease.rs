//! Changes under leases, for homes that refuse them otherwise: because backups store copies of their pages, or because
//! another client holds the page.
//!
//! A page is taken (UPDATE), changed here, and committed and returned at once (COMMIT with release); all changes of one
//! request or batch to a page are combined. Promises: a change takes effect once. A commit without an answer is sent
//! again under the same epoch, with the same bytes. If the home answers that it never took effect, it is done again from
//! the start; if its result is unknown, that is an error of its own ([`Failure::Unknown`]). No page is held while another
//! one is waited for.
//!
//! Must never change a page beyond the request, nor repeat a change whose result is unknown.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use trellis_base::{Deadline, Limit};
use trellis_fabric_protocol::lease::incarnation_of;
use trellis_fabric_protocol::wire::address::{Arguments, Host, HostPrefix, PAGE_BYTES, Pointer, Source};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{Body, Extent, Operation, Reply, Status, TagKind};
use trellis_transport::links::ipv6::NoAnswer;

use super::asking::{End, Failure, Take, Wanted, moved_to, pieces};
use super::waiting::{Wait, Way, places};
use super::{CLIENT, Client};

/// The number of pages that are taken at the same time.
const PAGES_MAX: usize = 16;
/// How often the limits below double, and their maximum, unless they are longer.
const DOUBLINGS_MAX: u32 = 6;
const LONGER_MAX: Duration = Duration::from_millis(400);
/// How long a page that another client holds is waited for under one number.
pub(crate) const TURN: Deadline = Deadline {
    who: CLIENT,
    waits_for: "a page that another client holds, under its first number",
    limit: Limit::milliseconds(20),
    then: "it is asked for under another number; after each silence of the home for twice as long, up to 400 ms, within the call's deadline",
    tested: "crates/trellis-remote/tests/remote_moving.rs what_is_not_answered_soon_is_asked_again_otherwise",
};
/// The same beside others.
pub(crate) const TURN_OF_MANY: Deadline =
    Deadline { waits_for: "such a page, while others of the same call wait", limit: Limit::milliseconds(4), ..TURN };
/// How long the answer to RELEASE is waited for; it is not needed.
pub(crate) const RELEASE: Deadline = Deadline {
    who: CLIENT,
    waits_for: "the answer to RELEASE",
    limit: Limit::milliseconds(20),
    then: "the lease ends by itself",
    tested: "crates/trellis-remote/tests/remote_moving.rs what_is_not_answered_soon_is_asked_again_otherwise",
};
/// How long a commit is waited for before it is sent under another number.
pub(crate) const COMMIT: Deadline = Deadline {
    who: CLIENT,
    waits_for: "a commit, under its first number",
    limit: Limit::milliseconds(100),
    then: "it is sent under another number, and waited for twice as long, up to 400 ms, within the call's deadline",
    tested: "crates/trellis-remote/tests/remote_moving.rs what_is_not_answered_soon_is_asked_again_otherwise",
};

/// Whether this request can be done under leases of its pages, one after the other.
pub(super) fn can_be(wanted: &Wanted<'_>) -> bool {
    let is_in_one_page = |bytes: u64| wanted.pointer.offset() % PAGE_BYTES + bytes <= PAGE_BYTES;
    match wanted.command {
        Command::Write => !wanted.is_whole || is_in_one_page(wanted.data.len() as u64),
        Command::FetchAdd | Command::CompareSwap => is_in_one_page(8),
        Command::CreateWrite => true,
        _ => false,
    }
}

/// The changes of one call that are done under leases.
#[derive(Default)]
pub(super) struct Changes<'a> {
    pages: Vec<Page<'a>>,
    /// By the index of the request.
    parts: BTreeMap<usize, Parts>,
}

/// What remains of a request.
#[derive(Default)]
struct Parts {
    left: usize,
    failure: Option<Failure>,
    answer: Option<(Status, Body)>,
}

/// A page that requests change.
struct Page<'a> {
    /// Its first byte.
    pointer: Pointer,
    changes: Vec<Change<'a>>,
    step: Step,
    /// The lease.
    epoch: u64,
    /// The page's bytes, including the changes.
    bytes: Vec<u8>,
    /// The changed part of them.
    changed: Range<usize>,
    heard: Option<(Status, Option<Host>)>,
    sent: u32,
    /// How many requests got no answer in time since the last answer.
    unanswered: u32,
    failure: Option<Failure>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Take,
    Commit,
    Over,
}

/// The change that a request makes in one page.
struct Change<'a> {
    /// The index of the request.
    place: usize,
    /// The offset in the page.
    at: usize,
    what: What<'a>,
    /// The answer to give when the page is committed.
    answer: Option<(Status, Body)>,
}

#[derive(Clone, Copy)]
enum What<'a> {
    Bytes(&'a [u8]),
    Add(u64),
    Swap(u64, u64),
}

/// The result of a request about a page.
enum Said {
    /// The home's status, and the epoch.
    Done(Status, u64),
    /// It is too early.
    Early(Status, Option<Host>),
}

impl Client {
    /// How a request is best done.
    pub(super) fn way_of(&self, wanted: &Wanted<'_>, now: Instant) -> Way {
        let is_under_lease = can_be(wanted) && self.homes.wants_leases(wanted.pointer.home(), now);
        if is_under_lease { Way::ByLease } else { Way::Plain }
    }

    /// Makes the open changes that need leases, as far as possible now; returns whether a server answered that it is too
    /// early.
    pub(super) fn change_under_leases<'a>(
        &mut self,
        wanted: &[&Wanted<'a>],
        waits: &mut [Wait],
        changes: &mut Changes<'a>,
        deadline: Instant,
        take: Take<'_>,
    ) -> bool {
        for place in places(waits, |wait| wait.way == Way::ByLease) {
            if wanted[place].command == Command::CreateWrite {
                waits[place].end = Some(self.create_and_write(wanted[place], deadline, &mut |reply| {
                    take(place, reply, &[]);
                }));
            } else if !changes.parts.contains_key(&place) {
                changes.add(place, wanted[place]);
            }
        }
        let is_alone = changes.pages.len() == 1 && places(waits, Wait::is_plain).is_empty();
        let mut is_early = false;
        for from in (0..changes.pages.len()).step_by(PAGES_MAX) {
            let upto = changes.pages.len().min(from + PAGES_MAX);
            is_early |= self.take_pages(changes, from..upto, is_alone, deadline);
            is_early |= self.commit_pages(&mut changes.pages[from..upto], deadline);
        }
        for page in changes.pages.extract_if(.., |page| page.step == Step::Over) {
            self.end_page(page, wanted, waits, &mut changes.parts, take);
        }
        for page in &changes.pages {
            for change in &page.changes {
                let wait = &mut waits[change.place];
                (wait.heard, wait.sent) = (page.heard, page.sent);
            }
        }
        is_early
    }

    /// Takes leases of pages, and changes the pages here.
    fn take_pages(
        &mut self,
        changes: &mut Changes<'_>,
        range: Range<usize>,
        is_alone: bool,
        deadline: Instant,
    ) -> bool {
        let pages = &mut changes.pages;
        // A client that requests a page that it holds gives up its lease.
        let committing: Vec<Pointer> =
            pages.iter().filter(|page| page.step == Step::Commit).map(|page| page.pointer).collect();
        let here: Vec<usize> = range
            .filter(|&place| pages[place].step == Step::Take && !committing.contains(&pages[place].pointer))
            .collect();
        if here.is_empty() {
            return false;
        }
        let asked: Vec<Wanted<'_>> =
            here.iter().map(|&place| Wanted::plain(pages[place].pointer, Command::Update, Operation::Plain)).collect();
        let turn = if is_alone { TURN.time() } else { TURN_OF_MANY.time() };
        let turn = longer(turn, here.iter().map(|&place| &pages[place]));
        let first = self.exchange.numbers(asked.len());
        let mut said: Vec<Option<Said>> = here.iter().map(|_| None).collect();
        let mut queued = vec![false; here.len()];
        let asks: Vec<&Wanted<'_>> = asked.iter().collect();
        let until = deadline.min(Instant::now() + turn);
        let silent = self.ask_as(first, &asks, Arguments::DIRECT, until, &mut |number, reply, data| {
            let page = &mut pages[here[number]];
            match (reply.status, reply.body) {
                (Status::Ok, Body::Leased { .. }) if (1..=PAGE_BYTES as usize).contains(&data.len()) => {
                    page.bytes = data.to_vec();
                    said[number] = Some(Said::Done(Status::Ok, reply.epoch));
                }
                // The home grants it later, under this number.
                (Status::Busy, _) => {
                    page.heard = Some((Status::Busy, None));
                    queued[number] = true;
                    return false;
                }
                (Status::Ok | Status::BadTag, _) => return false,
                (status, _) if status.is_of_no_home() => {
                    said[number] = Some(Said::Early(status, moved_to(reply)));
                }
                (status, _) => said[number] = Some(Said::Done(status, reply.epoch)),
            }
            true
        });
        for (number, why) in silent {
            let page = &mut pages[here[number]];
            page.is_silent(why);
            // The home answers in time, and other clients take long.
            page.unanswered -= u32::from(queued[number]);
        }
        let mut is_early = false;
        for (said, &place) in said.into_iter().zip(&here) {
            let page = &mut pages[place];
            if said.is_some() {
                page.unanswered = 0;
            }
            match said {
                Some(Said::Done(Status::Ok, epoch)) => {
                    let home = page.pointer.home();
                    // A new home knows no session of this client.
                    if self.homes.granted(home, incarnation_of(epoch)) {
                        self.sessions.forget(home);
                    }
                    page.change(epoch);
                }
                Some(Said::Done(status, _)) => page.fail(asked_of(page, Command::Update).refused(status)),
                Some(Said::Early(status, told)) => {
                    (page.heard, is_early) = (Some((status, told)), true);
                    page.sent += 1;
                }
                None => {}
            }
        }
        self.give_back(pages, &here, deadline);
        is_early
    }

    /// Returns leases under which nothing was changed.
    fn give_back(&mut self, pages: &mut [Page<'_>], here: &[usize], deadline: Instant) {
        let is_unchanged = |page: &Page<'_>| page.step == Step::Commit && page.changed.start == page.changed.end;
        let here: Vec<usize> = here.iter().copied().filter(|&place| is_unchanged(&pages[place])).collect();
        let asked: Vec<Wanted<'_>> = here
            .iter()
            .map(|&place| Wanted { epoch: pages[place].epoch, ..asked_of(&pages[place], Command::Release) })
            .collect();
        here.iter().for_each(|&place| pages[place].step = Step::Over);
        if !asked.is_empty() {
            let first = self.exchange.numbers(asked.len());
            let until = deadline.min(Instant::now() + RELEASE.time());
            // A lease whose release is lost expires.
            self.ask_as(first, &asked.iter().collect::<Vec<_>>(), Arguments::DIRECT, until, &mut |_, _, _| true);
        }
    }

    /// Commits the changes.
    fn commit_pages(&mut self, pages: &mut [Page<'_>], deadline: Instant) -> bool {
        let here: Vec<usize> = (0..pages.len()).filter(|&place| pages[place].step == Step::Commit).collect();
        if here.is_empty() {
            return false;
        }
        let mut said: Vec<Option<Said>> = here.iter().map(|_| None).collect();
        let asked: Vec<Wanted<'_>> = here.iter().map(|&place| pages[place].commit()).collect();
        let first = self.exchange.numbers(asked.len());
        let until = deadline.min(Instant::now() + longer(COMMIT.time(), here.iter().map(|&place| &pages[place])));
        let asks: Vec<&Wanted<'_>> = asked.iter().collect();
        let silent = self.ask_as(first, &asks, Arguments::DIRECT, until, &mut |number, reply, _| {
            said[number] = Some(match reply.status {
                // An answer about an earlier commit is not an answer to this one.
                Status::Ok if reply.epoch < asks[number].epoch => return false,
                Status::BadTag => return false,
                status if status == Status::Busy || status.is_of_no_home() => Said::Early(status, moved_to(reply)),
                status => Said::Done(status, reply.epoch),
            });
            true
        });
        drop(asked);
        for (number, why) in silent {
            pages[here[number]].is_silent(why);
        }
        let mut is_early = false;
        for (said, &place) in said.into_iter().zip(&here) {
            let page = &mut pages[place];
            if said.is_some() {
                page.unanswered = 0;
            }
            match said {
                Some(Said::Done(Status::Ok, _)) => page.step = Step::Over,
                // It did not take effect and never will: the change is done again from the start.
                Some(Said::Done(Status::Fenced, 0)) => page.step = Step::Take,
                Some(Said::Done(Status::Fenced, _)) => {
                    let (command, pointer) = (Command::Commit, page.pointer);
                    page.fail(Failure::Unknown { command, pointer });
                }
                Some(Said::Done(status, _)) => page.fail(asked_of(page, Command::Commit).refused(status)),
                Some(Said::Early(status, told)) => {
                    (page.heard, is_early) = (Some((status, told)), true);
                    page.sent += 1;
                }
                None => {}
            }
        }
        is_early
    }

    /// Reports the result of a page to its requests; a request without another page is finished.
    fn end_page(
        &self,
        page: Page<'_>,
        wanted: &[&Wanted<'_>],
        waits: &mut [Wait],
        parts: &mut BTreeMap<usize, Parts>,
        take: Take<'_>,
    ) {
        for change in page.changes {
            let Some(part) = parts.get_mut(&change.place) else { continue };
            part.left -= 1;
            let failure = match (&page.failure, change.answer) {
                (Some(failure), _) => Some(of_question(failure, wanted[change.place])),
                (None, None) => Some(wanted[change.place].refused(Status::Bounds)),
                (None, Some(answer)) => {
                    part.answer = Some(answer);
                    None
                }
            };
            part.failure = part.failure.take().or(failure);
            if part.left > 0 {
                continue;
            }
            waits[change.place].end = Some(match (part.failure.take(), part.answer) {
                (None, Some((status, body))) => {
                    let is_taken = take(change.place, &self.answer(wanted[change.place], status, body), &[]);
                    debug_assert!(is_taken, "it is an answer to that");
                    Ok(status)
                }
                (Some(failure), _) => Err(failure),
                (None, None) => Err(wanted[change.place].refused(Status::Bounds)),
            });
        }
    }

    /// Creates an object of these bytes when they do not fit into the request; no other client knows it before its
    /// content is written.
    fn create_and_write(&mut self, wanted: &Wanted<'_>, deadline: Instant, made: &mut dyn FnMut(&Reply)) -> End {
        let operation = Operation::Create { bytes: wanted.data.len() as u64 };
        let &Wanted { pointer, arguments, epoch, .. } = wanted;
        let create = Wanted { arguments, epoch, ..Wanted::plain(pointer, Command::Create, operation) };
        let mut object = None;
        let end = self.ask_until(&[&create], deadline, &mut |_, reply, _| {
            object = Some(*reply);
            true
        });
        let end = end.into_iter().next().expect("one was asked");
        let Some(reply) = object.filter(|reply| reply.status == Status::Ok) else { return end };
        let Body::Object { pointer, .. } = reply.body else { return end };
        let questions: Result<Vec<Wanted<'_>>, Failure> = pieces(pointer, wanted.data.len(), PAGE_BYTES as usize)
            .map(|piece| piece.map(|(pointer, place)| Wanted::write(pointer, epoch, &wanted.data[place])))
            .collect();
        let questions = questions?;
        let ends = self.ask_until(&questions.iter().collect::<Vec<_>>(), deadline, &mut |_, _, _| true);
        let failure = questions.iter().zip(ends).find_map(|(question, end)| match end {
            Ok(Status::Ok) => None,
            Ok(status) => Some(question.refused(status)),
            Err(failure) => Some(failure),
        });
        let Some(failure) = failure else {
            made(&reply);
            return Ok(Status::Ok);
        };
        if !matches!(failure, Failure::Silent(_)) {
            // No client knows the object; if it cannot be deleted, it stays.
            let delete = Wanted { epoch, ..Wanted::plain(pointer, Command::Delete, Operation::Plain) };
            self.ask_until(&[&delete], deadline, &mut |_, _, _| true);
        }
        Err(failure)
    }

    /// An answer as a server would give it.
    pub(super) fn answer(&self, wanted: &Wanted<'_>, status: Status, body: Body) -> Reply {
        let HostPrefix { cluster, host } = self.options.prefix;
        Reply {
            to: Source { cluster, host, incarnation: self.sessions.incarnation(), request: 0 },
            from: wanted.pointer.request(wanted.command, wanted.arguments).encode(),
            status,
            tag_kind: TagKind::Checksum,
            is_several: false,
            is_last: false,
            is_release: false,
            epoch: 0,
            body,
        }
    }
}

impl<'a> Changes<'a> {
    /// Adds the changes of a request, page by page.
    fn add(&mut self, place: usize, wanted: &Wanted<'a>) {
        let at = (wanted.pointer.offset() % PAGE_BYTES) as usize;
        let mut changes = Vec::new();
        match wanted.operation {
            Operation::FetchAdd { addend } => changes.push((0, at, What::Add(addend))),
            Operation::CompareSwap { expected, new } => changes.push((0, at, What::Swap(expected, new))),
            _ => {
                let page = PAGE_BYTES as usize;
                let (mut from, mut at) = (0, at);
                while from < wanted.data.len() {
                    let upto = wanted.data.len().min(from + page - at);
                    changes.push((from, at, What::Bytes(&wanted.data[from..upto])));
                    (from, at) = (upto, 0);
                }
            }
        }
        self.parts.insert(place, Parts { left: changes.len(), ..Parts::default() });
        for (from, at, what) in changes {
            let first = wanted.pointer.plus(from as u64).expect("it was cut where an address can name it");
            let offset = first.offset() - first.offset() % PAGE_BYTES;
            let pointer = Pointer::new(first.cluster(), first.home(), first.generation(), offset);
            let pointer = pointer.expect("it is before an address");
            let change = Change { place, at, what, answer: None };
            match self.pages.iter_mut().find(|page| page.pointer == pointer && page.step == Step::Take) {
                Some(page) => page.changes.push(change),
                None => self.pages.push(Page {
                    pointer,
                    changes: vec![change],
                    step: Step::Take,
                    epoch: 0,
                    bytes: Vec::new(),
                    changed: 0..0,
                    heard: None,
                    sent: 0,
                    unanswered: 0,
                    failure: None,
                }),
            }
        }
    }
}

/// How long requests about these pages are waited for: twice as long for each time that the answer did not come. An
/// answer to an earlier number counts for nothing, so a home that takes longer than the first limit needs more time.
fn longer<'a>(first: Duration, pages: impl Iterator<Item = &'a Page<'a>>) -> Duration {
    let unanswered = pages.map(|page| page.unanswered).max().unwrap_or(0);
    (first * (1 << unanswered.min(DOUBLINGS_MAX))).min(first.max(LONGER_MAX))
}

impl Page<'_> {
    fn fail(&mut self, failure: Failure) {
        (self.failure, self.step) = (Some(failure), Step::Over);
    }

    fn is_silent(&mut self, why: NoAnswer) {
        self.sent += why.sent;
        self.unanswered += 1;
        if why.error.is_some() {
            self.fail(Failure::Silent(NoAnswer { sent: self.sent, ..why }));
        }
    }

    /// The lease was granted: makes the changes here, one after the other.
    fn change(&mut self, epoch: u64) {
        (self.epoch, self.step, self.changed) = (epoch, Step::Commit, 0..0);
        // Statuses from before the grant say nothing about the commit.
        self.heard = None;
        for change in &mut self.changes {
            change.answer = change.what.apply(&mut self.bytes, change.at, &mut self.changed);
        }
    }

    fn commit(&self) -> Wanted<'_> {
        let data = &self.bytes[self.changed.clone()];
        let operation = Operation::Bytes(Extent::whole(data.len() as u32));
        let pointer = self.pointer.plus(self.changed.start as u64).expect("it is inside of the page");
        Wanted { epoch: self.epoch, data, is_release: true, ..Wanted::plain(pointer, Command::Commit, operation) }
    }
}

impl What<'_> {
    /// Makes the change; returns the answer, unless the object ends before the change does. `changed` grows by the bytes
    /// that differ from before.
    fn apply(self, bytes: &mut [u8], at: usize, changed: &mut Range<usize>) -> Option<(Status, Body)> {
        let (length, mut grow) = (bytes.len(), |length: usize| {
            let end = at + length;
            *changed = if changed.start == changed.end { at..end } else { changed.start.min(at)..changed.end.max(end) };
        });
        let eight = |bytes: &[u8]| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        match self {
            What::Bytes(new) if at + new.len() <= length => {
                bytes[at..at + new.len()].copy_from_slice(new);
                grow(new.len());
                Some((Status::Ok, Body::Nothing))
            }
            What::Bytes(_) => None,
            What::Add(addend) => {
                let before = eight(bytes)?;
                bytes[at..at + 8].copy_from_slice(&before.wrapping_add(addend).to_le_bytes());
                grow(8);
                Some((Status::Ok, Body::Value(before)))
            }
            What::Swap(expected, new) => {
                let before = eight(bytes)?;
                if before != expected {
                    return Some((Status::Mismatch, Body::Value(before)));
                }
                bytes[at..at + 8].copy_from_slice(&new.to_le_bytes());
                grow(8);
                Some((Status::Ok, Body::Value(before)))
            }
        }
    }
}

fn asked_of(page: &Page<'_>, command: Command) -> Wanted<'static> {
    Wanted::plain(page.pointer, command, Operation::Plain)
}

/// Turns the failure of a page into that of its request: the caller's command and pointer.
fn of_question(failure: &Failure, wanted: &Wanted<'_>) -> Failure {
    match failure {
        Failure::Refused { status, .. } => wanted.refused(*status),
        Failure::Unknown { .. } => Failure::Unknown { command: wanted.command, pointer: wanted.pointer },
        failure => failure.clone(),
    }
}
