//! Changes under leases, for homes that refuse them otherwise: because backups store copies of their pages, or because
//! another client holds the page.
//!
//! A page is taken (UPDATE), changed here, and committed and returned at once (COMMIT with release); all changes of one
//! request or batch to a page are combined. The protocol's client ([`trellis_fabric_protocol::lease::client`]) decides
//! what is asked of a home, when again, and what an answer means; there is one for each home of a call. Promises: a
//! change takes effect once. If the home answers that a commit never took effect, the change is done again from the
//! start; if its result is unknown, that is an error of its own ([`Failure::Unknown`]). A page that was granted is
//! committed next, and no request for a lease is sent after the deadline. A home may still grant an earlier request:
//! that lease ends with its term.
//!
//! It must never change a page beyond the request, nor repeat a change whose result is unknown.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use trellis_base::{Deadline, Limit};
use trellis_fabric_protocol::lease::client::{Client as Holder, Input};
use trellis_fabric_protocol::lease::{
    Ask, Effect, Epoch, Message, Outcome, Party, Status as Said, Timing, incarnation_of, is_of_no_lease,
};
use trellis_fabric_protocol::wire::address::{Arguments, Host, HostPrefix, PAGE_BYTES, Pointer, Source};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{Body, Extent, Operation, Reply, Status, TagKind};
use trellis_transport::links::ipv6::NoAnswer;

use super::super::{leases, nanoseconds};
use super::asking::{End, Failure, Take, Wanted, moved_to, pieces};
use super::waiting::{Wait, Way, places};
use super::{CLIENT, Client};

/// The number of pages that are taken at the same time.
const PAGES_MAX: usize = 16;
/// How long a page is waited for under one number.
pub(crate) const TURN: Deadline = Deadline {
    who: CLIENT,
    waits_for: "a lease or a commit of a page, under its first number",
    limit: Limit::milliseconds(20),
    then: "it is asked for under another number; after each silence of the home for twice as long, up to 320 ms or a quarter of the term, within the call's deadline",
    tested: "crates/trellis-remote/tests/remote_moving.rs what_is_not_answered_soon_is_asked_again_otherwise",
};
/// The same beside others.
pub(crate) const TURN_OF_MANY: Deadline =
    Deadline { waits_for: "the same, while others of the same call wait", limit: Limit::milliseconds(4), ..TURN };
/// How long the answer to RELEASE is waited for; it is not needed.
pub(crate) const RELEASE: Deadline = Deadline {
    who: CLIENT,
    waits_for: "the answer to RELEASE",
    limit: Limit::milliseconds(20),
    then: "the lease ends by itself",
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
pub(super) struct Changes<'a> {
    began: Instant,
    deadline: Instant,
    /// How long a grant is waited for at first.
    retry: Duration,
    pages: Vec<Page<'a>>,
    /// By the index of the request.
    parts: BTreeMap<usize, Remainder>,
    /// The protocol's client for each home: the leases and the open requests there.
    holders: BTreeMap<Host, Holder>,
}

/// What remains of a request.
#[derive(Default)]
struct Remainder {
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
    /// The page's bytes, including the changes.
    bytes: Vec<u8>,
    /// The changed part of them.
    changed: Range<usize>,
    heard: Option<(Status, Option<Host>)>,
    sent: u32,
    failure: Option<Failure>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Nothing is asked for it, perhaps because another entry for the same page comes first.
    Wait,
    Take,
    Commit,
    Over,
}

/// A request of a page's home.
#[derive(Clone, Copy)]
struct Question {
    /// The index of the page.
    place: usize,
    number: u64,
    ask: Ask,
}

/// The home's answer to a question, which is given by its index.
struct Answered {
    question: usize,
    reply: Reply,
    bytes: Vec<u8>,
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
        take: Take<'_>,
    ) -> bool {
        let deadline = changes.deadline;
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
        changes.retry = if is_alone { TURN.time() } else { TURN_OF_MANY.time() };
        for from in (0..changes.pages.len()).step_by(PAGES_MAX) {
            self.change_pages(changes, from..changes.pages.len().min(from + PAGES_MAX));
        }
        for page in changes.pages.extract_if(.., |page| page.step == Step::Over) {
            self.end_page(page, wanted, waits, &mut changes.parts, take);
        }
        for page in &changes.pages {
            for change in &page.changes {
                let wait = &mut waits[change.place];
                // The last answer may be about one commit although the home has made another one.
                wait.heard = page.heard.filter(|_| page.step != Step::Commit);
                wait.sent = page.sent;
            }
        }
        let now = nanoseconds(changes.began);
        !changes.pages.is_empty() && !changes.pages.iter().any(|page| changes.is_due(page, now))
    }

    /// Asks for these pages, as far as it is time to, and changes and commits those that are granted.
    fn change_pages(&mut self, changes: &mut Changes<'_>, range: Range<usize>) {
        let mut questions = Vec::new();
        for place in range {
            let page = &changes.pages[place];
            let is_due = changes.is_due(page, nanoseconds(changes.began)) && !changes.is_late();
            let number = page.pointer.page();
            match page.step {
                Step::Wait if is_due => {
                    changes.pages[place].step = Step::Take;
                    self.step(changes, place, Input::Update(number), None, &mut questions);
                }
                Step::Take | Step::Commit if is_due => {
                    self.step(changes, place, Input::TickPage(number), None, &mut questions);
                }
                _ => {}
            }
        }
        // Requests that follow from answers are sent at once.
        let is_new = |question: &Question| matches!(question.ask, Ask::Update);
        while !(questions.is_empty() || changes.is_late() && questions.iter().all(is_new)) {
            let asked = std::mem::take(&mut questions);
            for answered in self.ask_homes(changes, &asked, &mut questions) {
                self.hear(changes, asked[answered.question], &answered, &mut questions);
            }
        }
    }

    /// Ends a page with a failure, and with it its lease.
    fn fail(&mut self, changes: &mut Changes<'_>, place: usize, failure: Failure, questions: &mut Vec<Question>) {
        let page = &mut changes.pages[place];
        (page.failure, page.step) = (Some(failure), Step::Over);
        let input = Input::Release(page.pointer.page());
        self.step(changes, place, input, None, questions);
    }

    /// Passes a fact about a page to what this client holds at the page's home, and carries out what follows. `came`: the
    /// epoch and the bytes of the answer that it is.
    fn step(
        &mut self,
        changes: &mut Changes<'_>,
        place: usize,
        input: Input,
        came: Option<(Epoch, &[u8])>,
        questions: &mut Vec<Question>,
    ) {
        let page = &changes.pages[place];
        let (home, page_number) = (page.pointer.home(), page.pointer.page());
        // A commit is answered when backups have it.
        let retry = if page.step == Step::Commit { TURN.time() } else { changes.retry };
        let me = Party::of(self.options.prefix.host);
        let holder = changes.holders.entry(home).or_insert_with(|| {
            // No controller is known here; the network leads to the home.
            Holder::new(me, Party::of(home), timing(leases::TERM, retry), home)
        });
        holder.timing = timing(holder.timing.term, retry);
        // The requests of all homes, and all other requests of this client, have one sequence of numbers.
        let last = self.exchange.numbers(0).wrapping_sub(1);
        holder.requests = last;
        let mut effects = Vec::new();
        holder.step(nanoseconds(changes.began), input, &mut effects);
        self.exchange.numbers(holder.requests.wrapping_sub(last) as usize);
        for effect in effects {
            match effect {
                Effect::Send { message: Message::Request { page, request, ask }, .. } => {
                    let place = if page == page_number { Some(place) } else { changes.place_of(home, page) };
                    let place = place.expect("only pages of this call are asked for");
                    questions.push(Question { place, number: request, ask });
                }
                Effect::Done(_, Outcome::Owned) => {
                    let (epoch, bytes) = came.expect("a grant is an answer");
                    // A new home knows no session of this client.
                    if self.homes.granted(home, incarnation_of(epoch)) {
                        self.sessions.forget(home);
                    }
                    let is_late = changes.is_late();
                    let page = &mut changes.pages[place];
                    if is_late {
                        page.step = Step::Wait;
                    } else {
                        page.change(bytes);
                    }
                    let input = match page.step {
                        Step::Commit => Input::Commit { page: page_number, release: true },
                        _ => Input::Release(page_number),
                    };
                    self.step(changes, place, input, None, questions);
                }
                Effect::Done(_, Outcome::Committed) => changes.pages[place].step = Step::Over,
                Effect::Done(_, Outcome::Fenced) => {
                    let page = &mut changes.pages[place];
                    match (page.step, came) {
                        (Step::Take, _) => {
                            let failure = page.wanted(Ask::Update).refused(Status::Fenced);
                            self.fail(changes, place, failure, questions);
                        }
                        // It did not take effect and never will, or it was not sent because the lease was over. Others of
                        // the call have their turn before it is taken again.
                        (_, came) if came.is_none_or(|(epoch, _)| is_of_no_lease(epoch)) => page.step = Step::Wait,
                        _ => {
                            let failure = Failure::Unknown { command: Command::Commit, pointer: page.pointer };
                            self.fail(changes, place, failure, questions);
                        }
                    }
                }
                // A page is committed as soon as it is granted: nothing ends unnoticed.
                _ => {}
            }
        }
    }

    /// Sends these questions, whose numbers follow each other, and returns the answers, grants first: another answer may
    /// let the holder ask again for everything.
    fn ask_homes(
        &mut self,
        changes: &mut Changes<'_>,
        asked: &[Question],
        questions: &mut Vec<Question>,
    ) -> Vec<Answered> {
        let waited_until = asked.iter().filter_map(|question| changes.asked_until(question)).max();
        let until = waited_until.unwrap_or_else(|| Instant::now() + RELEASE.time()).min(changes.deadline);
        let wanted: Vec<Wanted<'_>> =
            asked.iter().map(|question| changes.pages[question.place].wanted(question.ask)).collect();
        let asks: Vec<&Wanted<'_>> = wanted.iter().collect();
        let mut answers = Vec::new();
        let silent = self.ask_as(asked[0].number, &asks, Arguments::DIRECT, until, &mut |question, reply, data| {
            let is_page = matches!(reply.body, Body::Leased { term, .. } if leases::TERMS.contains(&term))
                && (1..=PAGE_BYTES as usize).contains(&data.len());
            let is_final = match (reply.status, asked[question].ask) {
                (Status::BadTag, _) => return false,
                (Status::Moved, _) if leases::status_of(reply).is_none() => return false,
                (Status::Ok, Ask::Update) if !is_page => return false,
                // An answer about an earlier commit is not an answer to this one.
                (Status::Ok, Ask::Commit { epoch, .. }) if reply.epoch < epoch => return false,
                // The home grants it later, under this number.
                (Status::Busy, Ask::Update) => reply.epoch == 0,
                _ => true,
            };
            answers.push(Answered { question, reply: *reply, bytes: data.to_vec() });
            is_final
        });
        for (question, why) in silent {
            let place = asked[question].place;
            let page = &mut changes.pages[place];
            page.sent += why.sent;
            if why.error.is_some() && page.step != Step::Over {
                let failure = Failure::Silent(NoAnswer { sent: page.sent, ..why });
                self.fail(changes, place, failure, questions);
            }
        }
        answers.sort_by_key(|answered| answered.reply.status != Status::Ok);
        answers
    }

    /// Handles an answer.
    fn hear(&mut self, changes: &mut Changes<'_>, asked: Question, answered: &Answered, questions: &mut Vec<Question>) {
        let Question { place, number: request, ask } = asked;
        let Answered { reply, bytes, .. } = answered;
        let page = &mut changes.pages[place];
        let is_late_grant = reply.status == Status::Ok && matches!(ask, Ask::Update);
        // A grant that nothing waits for any more is given back.
        if matches!(ask, Ask::Release(_)) || page.step == Step::Over && !is_late_grant {
            return;
        }
        let Some(status) = leases::status_of(reply) else {
            let failure = page.wanted(ask).refused(reply.status);
            return self.fail(changes, place, failure, questions);
        };
        let is_awaited = match ask {
            Ask::Update => page.step == Step::Take,
            Ask::Commit { .. } | Ask::Renew(_) => page.step == Step::Commit,
            Ask::Read | Ask::Copy | Ask::Release(_) => false,
        };
        if is_awaited && !matches!(status, Said::Ok | Said::Fenced) {
            page.heard = Some((reply.status, moved_to(reply)));
            page.sent += u32::from(status != Said::Busy);
        }
        let (home, number, epoch) = (page.pointer.home(), page.pointer.page(), reply.epoch);
        if let (Said::Ok, Body::Leased { term, .. }, Some(holder)) =
            (status, reply.body, changes.holders.get_mut(&home))
        {
            holder.timing.term = term;
        }
        let message = Message::Reply { page: number, request, ask, status, epoch };
        let input = Input::Message(Party::of(home), message);
        self.step(changes, place, input, Some((epoch, bytes)), questions);
    }

    /// Reports the result of a page to its requests; a request without another page is finished.
    fn end_page(
        &self,
        page: Page<'_>,
        wanted: &[&Wanted<'_>],
        waits: &mut [Wait],
        parts: &mut BTreeMap<usize, Remainder>,
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
    pub(super) fn new(began: Instant, deadline: Instant) -> Changes<'a> {
        let (pages, parts, holders) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Changes { began, deadline, retry: TURN.time(), pages, parts, holders }
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }

    fn holder(&self, page: &Page<'_>) -> Option<&Holder> {
        self.holders.get(&page.pointer.home())
    }

    /// Whether there is something to ask about a page now.
    fn is_due(&self, page: &Page<'_>, now: u64) -> bool {
        let number = page.pointer.page();
        match (page.step, self.holder(page)) {
            (Step::Over, _) => false,
            (Step::Wait, holder) => holder.is_none_or(|holder| !holder.pages.contains_key(&number)),
            (_, holder) => holder.and_then(|holder| holder.due(number)).is_some_and(|at| at <= now),
        }
    }

    /// Until when the answer to this question is waited for, if it is needed.
    fn asked_until(&self, question: &Question) -> Option<Instant> {
        let page = &self.pages[question.place];
        let wait = self.holder(page)?.pages.get(&page.pointer.page())?.wait?;
        (wait.request == question.number).then(|| self.began + Duration::from_nanos(wait.again_at))
    }

    /// The index of the page of a home that is asked for.
    fn place_of(&self, home: Host, number: u64) -> Option<usize> {
        let is_it = |page: &Page<'_>| page.pointer.home() == home && page.pointer.page() == number;
        self.pages.iter().position(|page| is_it(page) && matches!(page.step, Step::Take | Step::Commit))
    }

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
        self.parts.insert(place, Remainder { left: changes.len(), ..Remainder::default() });
        for (from, at, what) in changes {
            let first = wanted.pointer.plus(from as u64).expect("it was cut where an address can name it");
            let offset = first.offset() - first.offset() % PAGE_BYTES;
            let pointer = Pointer::new(first.cluster(), first.home(), first.generation(), offset);
            let pointer = pointer.expect("it is before an address");
            let change = Change { place, at, what, answer: None };
            let may_join =
                |page: &&mut Page<'_>| page.pointer == pointer && matches!(page.step, Step::Wait | Step::Take);
            match self.pages.iter_mut().find(may_join) {
                Some(page) => page.changes.push(change),
                None => self.pages.push(Page {
                    pointer,
                    changes: vec![change],
                    step: Step::Wait,
                    bytes: Vec::new(),
                    changed: 0..0,
                    heard: None,
                    sent: 0,
                    failure: None,
                }),
            }
        }
    }
}

impl Page<'_> {
    /// The lease was granted: makes the changes here, one after the other.
    fn change(&mut self, bytes: &[u8]) {
        (self.bytes, self.changed) = (bytes.to_vec(), 0..0);
        // Statuses from before the grant say nothing about the commit.
        self.heard = None;
        for change in &mut self.changes {
            change.answer = change.what.apply(&mut self.bytes, change.at, &mut self.changed);
        }
        self.step = if self.changed.is_empty() { Step::Over } else { Step::Commit };
    }

    /// The request that asks a question.
    fn wanted(&self, ask: Ask) -> Wanted<'_> {
        let plain = |command: Command| Wanted::plain(self.pointer, command, Operation::Plain);
        match ask {
            Ask::Commit { epoch, release } => {
                let data = &self.bytes[self.changed.clone()];
                let operation = Operation::Bytes(Extent::whole(data.len() as u32));
                let pointer = self.pointer.plus(self.changed.start as u64).expect("it is inside of the page");
                Wanted { epoch, data, is_release: release, ..Wanted::plain(pointer, Command::Commit, operation) }
            }
            Ask::Release(epoch) => Wanted { epoch, ..plain(Command::Release) },
            Ask::Renew(epoch) => Wanted { epoch, ..plain(Command::Renew) },
            // Nothing is copied here.
            Ask::Read | Ask::Copy | Ask::Update => plain(Command::Update),
        }
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

/// The timing for leases of this term. A page beside others is asked for again sooner, but waited for as long as one that
/// is alone if its home takes long.
fn timing(term: u64, retry: Duration) -> Timing {
    let [alone, retry] = [TURN.time(), retry].map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let whole = leases::timing(term, alone);
    Timing { retry: retry.min(whole.retry), ..whole }
}

/// Turns the failure of a page into that of its request: the caller's command and pointer.
fn of_question(failure: &Failure, wanted: &Wanted<'_>) -> Failure {
    match failure {
        Failure::Refused { status, .. } => wanted.refused(*status),
        Failure::Unknown { .. } => Failure::Unknown { command: wanted.command, pointer: wanted.pointer },
        failure => failure.clone(),
    }
}
