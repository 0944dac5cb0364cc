//! Questions and their answers, for one thread.
//!
//! Promises: [`Exchange::ask`] returns when every question has an accepted answer, or reports which have none at the
//! deadline. Within one call questions to different hosts do not wait for each other. A host that did not answer, and
//! is available again, is found within [`Timing::probe_after_max`] and a round trip, if the oldest question to it was
//! sent more than once and the host did not say that it answers later. An answer to a question of an earlier call is
//! dropped.
//!
//! A question may be several datagrams from one address to one other. Each is sent again until an answer says that it
//! arrived ([`Verdict::Part`]) or that the question is answered. If all arrived and there is no answer, the receiver
//! has forgotten them, and they are all sent again.
//!
//! It must never trust an answer: the asker examines it, and what is not accepted counts as lost.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::Ipv6Addr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::window::Window;
use super::{Address, Arrived, Endpoint, HOST_BYTES, Way};

type HostPart = [u8; HOST_BYTES];

/// The maximum size of a datagram, without the headers of IPv6 and UDP.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;
/// The time after which a full socket is tried again.
const FULL_FOR: Duration = Duration::from_micros(200);

/// The time after which an unanswered question is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The minimum.
    pub again_after_min: Duration,
    /// The maximum.
    pub again_after_max: Duration,
    /// The maximum for the oldest question to a host, unless its answers take longer: it detects that the host, or
    /// another one in its place, is available again.
    pub probe_after_max: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            again_after_min: Duration::from_millis(1),
            again_after_max: Duration::from_millis(250),
            probe_after_max: Duration::from_millis(4),
        }
    }
}

/// A datagram of a question.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The address of its object.
    pub to: Address,
    /// What the datagram carries, one part after the other; at most [`super::PARTS_MAX`].
    pub parts: &'a [&'a [u8]],
    /// Whether it is one more datagram of the preceding one's question; it then has the same address.
    pub is_more: bool,
}

/// The asker's judgement of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the answer.
    Accepted,
    /// This datagram of the question, counted from 0, arrived, and others are missing.
    Part(usize),
    /// The host has the question and answers it later: it no longer counts as in flight, and is rarely sent again.
    Later,
    /// It is damaged, or does not belong to the question; another one may come.
    Ignored,
}

/// A host that did not answer.
#[derive(Clone, Debug)]
pub struct NoAnswer {
    /// The address of the question.
    pub to: Address,
    /// How often the question was sent.
    pub sent: u32,
    /// How long an answer was awaited.
    pub waited: Duration,
    /// Why it could not be sent, if that is the reason.
    pub error: Option<Arc<io::Error>>,
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut host = [0; 16];
        host[..HOST_BYTES].copy_from_slice(&self.to[..HOST_BYTES]);
        let (host, about, sent) = (Ipv6Addr::from(host), Ipv6Addr::from(self.to), self.sent);
        match &self.error {
            Some(error) => write!(
                f,
                "no question can be sent to the host {host}/48 ({error}); give this host a route to it (`ip -6 route get {about}`)"
            ),
            None => write!(
                f,
                "the host {host}/48 did not answer within {:.3} s, though it was asked {sent} times about {about}; look \
                 whether its server runs, and at the switch's routes and rules",
                self.waited.as_secs_f64()
            ),
        }
    }
}

impl std::error::Error for NoAnswer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.as_deref().map(|error| error as _)
    }
}

/// The state of a datagram.
#[derive(Clone, Copy)]
struct Known {
    /// Its question, and the line in which it waits.
    question: usize,
    line: usize,
    sent: u32,
    sent_at: Instant,
    again_at: Instant,
    /// Whether nothing more is to be done for it.
    is_over: bool,
}

/// The datagrams of one call to one host, by their indices.
struct Line {
    host: HostPart,
    waiting: VecDeque<usize>,
    under_way: Vec<usize>,
    /// Datagrams that the host has and answers later.
    held: Vec<usize>,
}

/// Judges an answer to a question, which is given by its index among those of the call.
pub type Judge<'a> = &'a mut dyn FnMut(usize, &Arrived, &[u8]) -> Verdict;

/// Asks questions and collects their answers.
pub struct Exchange {
    endpoint: Endpoint,
    /// The first half of every source address.
    source: [u8; 8],
    port: u16,
    next: u64,
    timing: Timing,
    windows: BTreeMap<HostPart, Window>,
    /// The datagrams of the current call, the lines in which they wait, and the number of those that are not over.
    known: Vec<Known>,
    lines: Vec<Line>,
    missing: usize,
    room: Box<[u8]>,
    repeated: u64,
}

impl Exchange {
    /// Asks at `port` of other hosts, from addresses that begin with `source` and end with the question's number, the
    /// first of which is `first`. Nothing else may use these addresses, now or while an answer may be in flight.
    pub fn new(endpoint: Endpoint, source: [u8; 8], port: u16, first: u64, timing: Timing) -> Exchange {
        let room = vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice();
        let (windows, known, lines) = (BTreeMap::new(), Vec::new(), Vec::new());
        Exchange { endpoint, source, port, next: first, timing, windows, known, lines, missing: 0, room, repeated: 0 }
    }

    /// Asks from addresses with another first half, from the next question on; the numbering continues. An answer to
    /// an earlier question is dropped.
    pub fn set_source(&mut self, source: [u8; 8]) {
        self.source = source;
    }

    /// Reserves numbers for `count` questions, for the next call of [`Self::ask`]. Returns the first.
    pub fn numbers(&mut self, count: usize) -> u64 {
        let first = self.next;
        self.next = self.next.wrapping_add(count as u64);
        first
    }

    /// The source address of a question.
    pub fn source(&self, number: u64) -> Address {
        let mut source = [0; 16];
        source[..8].copy_from_slice(&self.source);
        source[8..].copy_from_slice(&number.to_be_bytes());
        source
    }

    /// The number of datagrams that were sent again, in all.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Asks all questions, whose numbers begin with `first`, and hands each answer to `answer` with the index of its
    /// question, until all are accepted. Returns the indices of those without an answer at the deadline, and of those
    /// that cannot be sent, with the reason.
    ///
    /// # Panics
    ///
    /// If the datagrams of one question go to several addresses.
    pub fn ask(
        &mut self,
        first: u64,
        asks: &[Ask<'_>],
        deadline: Instant,
        answer: Judge<'_>,
    ) -> Vec<(usize, NoAnswer)> {
        let start = Instant::now();
        self.begin(asks, start);
        let mut silent = Vec::new();
        while self.missing > 0 {
            let wake_at = self.send_due(first, asks, &mut silent);
            if self.receive(first, answer) || self.missing == 0 {
                continue;
            }
            let now = Instant::now();
            if now >= deadline {
                self.give_up(asks, now - start, &mut silent);
                break;
            }
            self.endpoint.wait(wake_at.min(deadline).saturating_duration_since(now));
        }
        // Unanswered datagrams no longer count as in flight.
        for line in std::mem::take(&mut self.lines) {
            self.window(line.host).under_way -= line.under_way.len();
        }
        silent
    }

    fn begin(&mut self, asks: &[Ask<'_>], now: Instant) {
        self.known.clear();
        self.lines.clear();
        self.missing = asks.len();
        let mut question = 0;
        for (place, ask) in asks.iter().enumerate() {
            if place > 0 && !ask.is_more {
                question += 1;
            }
            assert!(!ask.is_more || place > 0 && asks[place - 1].to == ask.to, "a question goes to one address");
            let host = host_of(&ask.to);
            let line = self.lines.iter().position(|line| line.host == host).unwrap_or_else(|| {
                self.lines.push(Line { host, waiting: VecDeque::new(), under_way: Vec::new(), held: Vec::new() });
                self.lines.len() - 1
            });
            self.lines[line].waiting.push_back(place);
            self.known.push(Known { question, line, sent: 0, sent_at: now, again_at: now, is_over: false });
        }
    }

    fn window(&mut self, host: HostPart) -> &mut Window {
        self.windows.entry(host).or_insert_with(Window::new)
    }

    /// Sends the datagrams that were not sent and have room, and those again that got no answer in time. Returns when
    /// to look again.
    fn send_due(&mut self, first: u64, asks: &[Ask<'_>], silent: &mut Vec<(usize, NoAnswer)>) -> Instant {
        let now = Instant::now();
        let mut wake_at = now + self.timing.again_after_max;
        let mut failed = Vec::new();
        for line in 0..self.lines.len() {
            let host = self.lines[line].host;
            for at in 0..self.lines[line].under_way.len() {
                let place = self.lines[line].under_way[at];
                if self.known[place].again_at <= now {
                    if self.known[place].sent > 0 {
                        let (number, next) = (first.wrapping_add(self.known[place].question as u64), self.next);
                        self.window(host).lost(number, next);
                        self.repeated += 1;
                    }
                    self.send(first, place, &asks[place], now, &mut failed);
                }
                wake_at = wake_at.min(self.known[place].again_at);
            }
            while !self.lines[line].waiting.is_empty() && self.window(host).has_room() {
                let place = self.lines[line].waiting.pop_front().expect("it is not empty");
                self.window(host).under_way += 1;
                self.lines[line].under_way.push(place);
                self.send(first, place, &asks[place], now, &mut failed);
                wake_at = wake_at.min(self.known[place].again_at);
            }
            for at in 0..self.lines[line].held.len() {
                let place = self.lines[line].held[at];
                if self.known[place].again_at <= now {
                    let sent = self.known[place].sent;
                    self.send(first, place, &asks[place], now, &mut failed);
                    if self.known[place].sent > sent {
                        self.known[place].again_at = now + self.timing.again_after_max;
                        self.repeated += 1;
                    }
                }
                wake_at = wake_at.min(self.known[place].again_at);
            }
        }
        for (place, error) in failed {
            let Known { question, sent, is_over, .. } = self.known[place];
            if !is_over {
                let (to, error) = (asks[place].to, Some(Arc::new(error)));
                silent.push((question, NoAnswer { to, sent, waited: Duration::ZERO, error }));
                self.places(question).for_each(|place| self.end(place, None));
            }
        }
        wake_at
    }

    fn send(&mut self, first: u64, place: usize, ask: &Ask<'_>, now: Instant, failed: &mut Vec<(usize, io::Error)>) {
        let number = first.wrapping_add(self.known[place].question as u64);
        let way = Way { from: self.source(number), to: ask.to, port: self.port };
        let is_gone = match self.endpoint.send(&way, ask.parts) {
            Ok(is_gone) => is_gone,
            Err(error) => return failed.push((place, error)),
        };
        let (least, most) = (self.timing.again_after_min, self.timing.again_after_max);
        let sent = self.known[place].sent + u32::from(is_gone);
        let is_probe = self.lines[self.known[place].line].under_way.first() == Some(&place);
        let usual = self.window(host_of(&ask.to)).usual(least, most);
        // The first repetition is not hurried: an answer before it shows how long answers take.
        let most = if is_probe && sent > 1 { most.min(self.timing.probe_after_max.max(usual)) } else { most };
        let after = match is_gone {
            true => self.window(host_of(&ask.to)).again_after(sent, least, most),
            false => FULL_FOR,
        };
        self.known[place] = Known { sent, sent_at: now, again_at: now + after, ..self.known[place] };
    }

    /// Takes everything that has arrived; returns whether any of it was an answer.
    fn receive(&mut self, first: u64, answer: Judge<'_>) -> bool {
        let mut is_any = false;
        // A failed receive counts as no datagram; the deadline ends what gets no answer.
        while let Ok(Some(arrived)) = self.endpoint.receive(&mut self.room) {
            let Some(question) = self.question_of(first, &arrived.destination) else { continue };
            let Some(payload) = self.room.get(..arrived.bytes) else { continue };
            let places = self.places(question);
            // A question that was not sent yet has no answer, so this is not one.
            if self.known[places.start].sent == 0 || places.clone().all(|place| self.known[place].is_over) {
                continue;
            }
            match answer(question, &arrived, payload) {
                Verdict::Accepted => {
                    // It is unknown which of several datagrams it answers, and thus how long it took.
                    let after = (places.len() == 1).then(|| self.took(places.start)).flatten();
                    places.for_each(|place| self.end(place, Some(after)));
                }
                Verdict::Later => {
                    let after = (places.len() == 1).then(|| self.took(places.start)).flatten();
                    places.for_each(|place| self.hold(place, after));
                }
                Verdict::Part(part) if part < places.len() => self.arrived(places, part),
                Verdict::Part(_) | Verdict::Ignored => continue,
            }
            is_any = true;
        }
        is_any
    }

    /// Notes that the host has a datagram and answers later.
    fn hold(&mut self, place: usize, after: Option<Duration>) {
        let line = &mut self.lines[self.known[place].line];
        let Some(at) = line.under_way.iter().position(|other| *other == place) else { return };
        line.under_way.remove(at);
        line.held.push(place);
        let (host, sent) = (line.host, self.known[place].sent);
        self.window(host).answered(sent, after);
        self.known[place].again_at = Instant::now() + self.timing.again_after_max;
        if sent > 1 {
            self.hurry(place);
        }
    }

    /// Notes that one of several datagrams arrived.
    fn arrived(&mut self, places: Range<usize>, part: usize) {
        let place = places.start + part;
        if self.known[place].sent == 0 || self.known[place].is_over {
            return;
        }
        self.end(place, Some(self.took(place)));
        if places.clone().all(|place| self.known[place].is_over) {
            self.missing += places.len();
            for place in places {
                self.known[place].is_over = false;
                self.lines[self.known[place].line].waiting.push_back(place);
            }
        }
    }

    /// How long the answer to this datagram took, if that can be determined (see [`Window`]).
    fn took(&self, place: usize) -> Option<Duration> {
        (self.known[place].sent == 1).then(|| self.known[place].sent_at.elapsed())
    }

    /// Ends a datagram: it was answered, after this time if that is known, or it cannot be sent.
    fn end(&mut self, place: usize, answered: Option<Option<Duration>>) {
        if std::mem::replace(&mut self.known[place].is_over, true) {
            return;
        }
        self.missing -= 1;
        let line = &mut self.lines[self.known[place].line];
        let host = line.host;
        match line.under_way.iter().position(|other| *other == place) {
            None => {
                line.waiting.retain(|other| *other != place);
                line.held.retain(|other| *other != place);
            }
            Some(at) => {
                line.under_way.remove(at);
                match answered {
                    Some(after) => {
                        let sent = self.known[place].sent;
                        self.window(host).answered(sent, after);
                        if sent > 1 {
                            self.hurry(place);
                        }
                    }
                    None => self.window(host).under_way -= 1,
                }
            }
        }
    }

    /// Notes that a host that did not answer is available again: questions that were asked meanwhile are soon asked
    /// again.
    fn hurry(&mut self, place: usize) {
        let line = self.known[place].line;
        let (least, most) = (self.timing.again_after_min, self.timing.again_after_max);
        let soon = Instant::now() + self.window(self.lines[line].host).usual(least, most);
        for &other in &self.lines[line].under_way {
            let again_at = &mut self.known[other].again_at;
            *again_at = soon.min(*again_at);
        }
    }

    /// Reports every question without an answer.
    fn give_up(&mut self, asks: &[Ask<'_>], waited: Duration, silent: &mut Vec<(usize, NoAnswer)>) {
        let mut last = None;
        for (known, ask) in self.known.iter().zip(asks).filter(|(known, _)| !known.is_over) {
            if last.replace(known.question) != Some(known.question) {
                silent.push((known.question, NoAnswer { to: ask.to, sent: known.sent, waited, error: None }));
            }
        }
    }

    /// The question of the current call that has this source address.
    fn question_of(&self, first: u64, address: &Address) -> Option<usize> {
        let (source, number) = address.split_at(8);
        let number = u64::from_be_bytes(number.try_into().expect("eight bytes"));
        let question = usize::try_from(number.wrapping_sub(first)).ok()?;
        (source == self.source && question <= self.known.last()?.question).then_some(question)
    }

    /// The indices of a question's datagrams.
    fn places(&self, question: usize) -> Range<usize> {
        let start = match self.known.get(question) {
            // No question up to here has several datagrams.
            Some(known) if known.question == question => question,
            _ => self.known.partition_point(|known| known.question < question),
        };
        let more = self.known[start..].iter().take_while(|known| known.question == question).count();
        start..start + more
    }
}

fn host_of(address: &Address) -> HostPart {
    *address.first_chunk().expect("an address is longer than its host's part")
}
