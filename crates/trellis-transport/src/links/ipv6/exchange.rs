//! Questions and their answers, for one thread.
//!
//! Promised: [`Exchange::ask`] returns when every question has an answer that was accepted, or says which host gave none until
//! the deadline. Within one call questions to different hosts do not wait for each other. An answer to a question of an
//! earlier call is dropped.
//!
//! Never done here: believing an answer. Whoever asks looks at it, and what is not accepted is as good as lost.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use super::window::Window;
use super::{Address, Arrived, Endpoint, HOST_BYTES, Way};

type HostPart = [u8; HOST_BYTES];

/// A datagram, headers of IPv6 and UDP not counted, is no longer.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;
/// A socket that is full is tried again after so long.
const FULL_FOR: Duration = Duration::from_micros(200);

/// When a question without an answer is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Not earlier than this.
    pub again_after_min: Duration,
    /// Not later than this.
    pub again_after_max: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing { again_after_min: Duration::from_millis(1), again_after_max: Duration::from_millis(250) }
    }
}

/// A question.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// What it is about.
    pub to: Address,
    /// What the datagram carries, one part after the other; at most three.
    pub parts: &'a [&'a [u8]],
}

/// What whoever asked thinks of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is one.
    Accepted,
    /// It is damaged, or no answer to that; another one may come.
    Ignored,
}

/// A host that did not answer.
#[derive(Debug)]
pub struct NoAnswer {
    /// What the question was about.
    pub to: Address,
    /// How often it was sent.
    pub sent: u32,
    /// For how long an answer was waited for.
    pub waited: Duration,
    /// Why it could not be sent, if that is so.
    pub error: Option<io::Error>,
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
                 whether its server runs, and at the switch's routes",
                self.waited.as_secs_f64()
            ),
        }
    }
}

impl std::error::Error for NoAnswer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.as_ref().map(|error| error as _)
    }
}

/// What is known of a question.
#[derive(Clone, Copy)]
struct Question {
    sent: u32,
    sent_at: Instant,
    again_at: Instant,
    is_answered: bool,
}

/// The questions of one call to one host.
struct Line {
    host: HostPart,
    waiting: VecDeque<usize>,
    under_way: Vec<usize>,
}

/// Asks.
pub struct Exchange {
    endpoint: Endpoint,
    /// Of every source address.
    source: [u8; 8],
    port: u16,
    next: u64,
    timing: Timing,
    windows: BTreeMap<HostPart, Window>,
    questions: Vec<Question>,
    room: Box<[u8]>,
    repeated: u64,
}

impl Exchange {
    /// Asks at `port` of other hosts, from addresses that begin with `source` and end with the question's number, the first
    /// of which is `first`: nobody else may use these addresses, now or while an answer may be on its way.
    pub fn new(endpoint: Endpoint, source: [u8; 8], port: u16, first: u64, timing: Timing) -> Exchange {
        let room = vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice();
        let (windows, questions) = (BTreeMap::new(), Vec::new());
        Exchange { endpoint, source, port, next: first, timing, windows, questions, room, repeated: 0 }
    }

    /// Numbers for so many questions, the first of them; to be asked with the next call of [`Self::ask`].
    pub fn numbers(&mut self, count: usize) -> u64 {
        let first = self.next;
        self.next = self.next.wrapping_add(count as u64);
        first
    }

    /// The address that a question comes from.
    pub fn source(&self, number: u64) -> Address {
        let mut source = [0; 16];
        source[..8].copy_from_slice(&self.source);
        source[8..].copy_from_slice(&number.to_be_bytes());
        source
    }

    /// How many datagrams were sent again, in all.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Asks all questions, whose numbers begin with `first`, and hands each answer to `answer` with the place of its
    /// question, until all are accepted.
    ///
    /// # Errors
    ///
    /// [`NoAnswer`] of the first question that has no answer at the deadline, or cannot be sent at all.
    pub fn ask(
        &mut self,
        first: u64,
        asks: &[Ask<'_>],
        deadline: Instant,
        answer: &mut dyn FnMut(usize, &Arrived, &[u8]) -> Verdict,
    ) -> Result<(), NoAnswer> {
        let start = Instant::now();
        let mut lines = lines(asks);
        self.questions.clear();
        let question = Question { sent: 0, sent_at: start, again_at: start, is_answered: false };
        self.questions.resize(asks.len(), question);
        let outcome = self.ask_lines(first, asks, &mut lines, start, deadline, answer);
        // What is not answered counts no longer.
        for line in &lines {
            self.window(line.host).under_way -= line.under_way.len();
        }
        outcome
    }

    fn ask_lines(
        &mut self,
        first: u64,
        asks: &[Ask<'_>],
        lines: &mut [Line],
        start: Instant,
        deadline: Instant,
        answer: &mut dyn FnMut(usize, &Arrived, &[u8]) -> Verdict,
    ) -> Result<(), NoAnswer> {
        let mut missing = asks.len();
        while missing > 0 {
            let wake_at = self.send_due(first, asks, lines)?;
            let accepted = self.receive(first, lines, answer);
            missing -= accepted;
            if accepted > 0 || missing == 0 {
                continue;
            }
            let now = Instant::now();
            if now >= deadline {
                let place = self.questions.iter().position(|question| !question.is_answered).unwrap_or(0);
                let (to, sent, waited) = (asks[place].to, self.questions[place].sent, now - start);
                return Err(NoAnswer { to, sent, waited, error: None });
            }
            self.endpoint.wait(wake_at.min(deadline).saturating_duration_since(now));
        }
        Ok(())
    }

    fn window(&mut self, host: HostPart) -> &mut Window {
        self.windows.entry(host).or_insert_with(Window::new)
    }

    /// Sends what was not sent and has room, and what got no answer for too long; when to look again.
    fn send_due(&mut self, first: u64, asks: &[Ask<'_>], lines: &mut [Line]) -> Result<Instant, NoAnswer> {
        let now = Instant::now();
        let mut wake_at = now + self.timing.again_after_max;
        for line in lines {
            for &place in &line.under_way {
                if self.questions[place].again_at <= now {
                    if self.questions[place].sent > 0 {
                        let (number, next) = (first.wrapping_add(place as u64), self.next);
                        self.window(line.host).lost(number, next);
                        self.repeated += 1;
                    }
                    self.send(first, place, &asks[place], now)?;
                }
                wake_at = wake_at.min(self.questions[place].again_at);
            }
            while !line.waiting.is_empty() && self.window(line.host).has_room() {
                let place = line.waiting.pop_front().expect("it is not empty");
                self.window(line.host).under_way += 1;
                line.under_way.push(place);
                self.send(first, place, &asks[place], now)?;
                wake_at = wake_at.min(self.questions[place].again_at);
            }
        }
        Ok(wake_at)
    }

    fn send(&mut self, first: u64, place: usize, ask: &Ask<'_>, now: Instant) -> Result<(), NoAnswer> {
        let way = Way { from: self.source(first.wrapping_add(place as u64)), to: ask.to, port: self.port };
        let is_gone = match self.endpoint.send(&way, ask.parts) {
            Ok(is_gone) => is_gone,
            Err(error) => {
                let (sent, waited) = (self.questions[place].sent, Duration::ZERO);
                return Err(NoAnswer { to: ask.to, sent, waited, error: Some(error) });
            }
        };
        let (least, most) = (self.timing.again_after_min, self.timing.again_after_max);
        let sent = self.questions[place].sent + u32::from(is_gone);
        let after = match is_gone {
            true => self.window(host_of(&ask.to)).again_after(sent, least, most),
            false => FULL_FOR,
        };
        self.questions[place] = Question { sent, sent_at: now, again_at: now + after, is_answered: false };
        Ok(())
    }

    /// Takes everything that is there; how many questions got their answer.
    fn receive(
        &mut self,
        first: u64,
        lines: &mut [Line],
        answer: &mut dyn FnMut(usize, &Arrived, &[u8]) -> Verdict,
    ) -> usize {
        let mut accepted = 0;
        // A failing receive is a datagram that is not there; the deadline ends what nobody answers.
        while let Ok(Some(arrived)) = self.endpoint.receive(&mut self.room) {
            let Some(place) = self.place_of(first, &arrived.destination) else { continue };
            let Some(payload) = self.room.get(..arrived.bytes) else { continue };
            let question = &mut self.questions[place];
            // What was not asked yet has no answer, whoever sent this.
            if question.sent == 0 || question.is_answered || answer(place, &arrived, payload) == Verdict::Ignored {
                continue;
            }
            question.is_answered = true;
            let after = (question.sent == 1).then(|| question.sent_at.elapsed());
            let line = lines.iter_mut().find(|line| line.under_way.contains(&place)).expect("it was sent");
            line.under_way.retain(|other| *other != place);
            let host = line.host;
            self.window(host).answered(after);
            accepted += 1;
        }
        accepted
    }

    /// The place among the questions of now of the one that came from this address.
    fn place_of(&self, first: u64, address: &Address) -> Option<usize> {
        let (source, number) = address.split_at(8);
        let number = u64::from_be_bytes(number.try_into().expect("eight bytes"));
        let place = usize::try_from(number.wrapping_sub(first)).ok()?;
        (source == self.source && place < self.questions.len()).then_some(place)
    }
}

fn host_of(address: &Address) -> HostPart {
    *address.first_chunk().expect("an address is longer than its host's part")
}

fn lines(asks: &[Ask<'_>]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for (place, ask) in asks.iter().enumerate() {
        let host = host_of(&ask.to);
        match lines.iter_mut().find(|line| line.host == host) {
            Some(line) => line.waiting.push_back(place),
            None => lines.push(Line { host, waiting: [place].into(), under_way: Vec::new() }),
        }
    }
    lines
}
