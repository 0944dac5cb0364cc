//! The sending side of [`super`]: what waits, what is in flight, and what is sent next.
//!
//! Promises: [`Sender::next`] returns what may be sent now and changes nothing; [`Sender::sent`] notes that it was
//! sent. So a full socket has no effect.
//!
//! It must never drop a frame before all of it was acknowledged.

use std::collections::VecDeque;

use super::{
    ACKNOWLEDGE_NS, Acknowledgement, BURST, CONGESTION_WINDOW_FIRST, CONGESTION_WINDOW_MIN, Fragment,
    MULTICAST_ACKNOWLEDGE_NS, MULTICAST_RESEND_NS, Nanoseconds, PROBE_NS, RESEND_NS_FIRST, RESEND_NS_MAX,
    RESEND_NS_MIN, ROOM_BYTES_FIRST, UNACKNOWLEDGED_MAX, WINDOW, WORDS, cost,
};

/// The number of later transmissions after whose acknowledgement one counts as lost. Reordering by fewer is common.
const REORDERED_MAX: u64 = 3;
const NEVER: Nanoseconds = Nanoseconds::MAX;

/// The acknowledgement names fragments that were never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inconsistent;

/// A transmission that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// A fragment that was sent before.
    Again {
        /// Its number.
        sequence: u64,
    },
    /// The next fragment.
    Next,
    /// Only an acknowledgement is sent.
    Acknowledge,
    /// Only an acknowledgement is sent, and the other side must answer at once.
    Probe,
}

/// The sending side; see the module text.
#[derive(Debug)]
pub struct Sender<T> {
    fragment_bytes: u32,
    /// The size of a datagram without the bytes of its fragment, for its cost at the receiver.
    overhead_bytes: usize,
    /// Frames from the first unacknowledged one on.
    frames: VecDeque<Frame<T>>,
    /// The number of the first of `frames`.
    first_frame: u64,
    /// The next fragment: the number of its frame, and its index in there.
    cursor: (u64, u32),
    /// Fragments from the first unacknowledged one on.
    flight: VecDeque<Flight>,
    base: u64,
    under_way: u64,
    under_way_bytes: u64,
    lost: u64,
    transmissions: u64,
    latest_acknowledged: u64,
    round_trip: RoundTrip,
    congestion: Congestion,
    room_bytes: u32,
    /// A lower bound of the time at which something in flight must be sent again.
    resend_due: Nanoseconds,
    /// When the next datagram beyond a burst may be sent.
    paced_from: Nanoseconds,
    owed: Owed,
    heard_at: Nanoseconds,
    probe_due: Nanoseconds,
    probe_wanted: bool,
    probes_unanswered: u32,
    /// Multicast fragments that did not arrive since the last one that did.
    misses: u32,
    /// The number of times that fragments were sent again.
    pub resent: u64,
    /// The number of these that had been sent by multicast before.
    pub repaired: u64,
}

#[derive(Debug)]
struct Frame<T> {
    /// Taken when all of the frame is acknowledged.
    content: Option<T>,
    body_bytes: u32,
    fragment_bytes: u32,
    unacknowledged: u32,
    /// Whether the caller sends it by multicast.
    held: bool,
}

#[derive(Debug)]
struct Flight {
    frame: u64,
    index: u32,
    cost: u32,
    state: State,
    sends: u32,
    sent_at: Nanoseconds,
    transmission: u64,
    by_multicast: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    UnderWay,
    Lost,
    Acknowledged,
}

/// What the other side must be told.
#[derive(Debug)]
struct Owed {
    acknowledgement: Acknowledgement,
    fragments: u32,
    due: Nanoseconds,
}

/// RFC 6298.
#[derive(Debug, Default)]
struct RoundTrip {
    smoothed_ns: u64,
    deviation_ns: u64,
    doublings: u32,
}

/// RFC 5681, in fragments.
#[derive(Debug)]
struct Congestion {
    window: u64,
    threshold: u64,
    acknowledged: u64,
    /// Losses of fragments before this one belong to a round trip that was counted.
    counted_until: u64,
    interval_ns: u64,
}

impl<T> Sender<T> {
    /// Splits frames into fragments of so many bytes; `overhead_bytes` is the size of a datagram without them.
    pub fn new(now: Nanoseconds, fragment_bytes: u32, overhead_bytes: usize) -> Self {
        assert!(fragment_bytes > 0);
        Sender {
            fragment_bytes,
            overhead_bytes,
            frames: VecDeque::new(),
            first_frame: 0,
            cursor: (0, 0),
            flight: VecDeque::with_capacity(WINDOW as usize),
            base: 0,
            under_way: 0,
            under_way_bytes: 0,
            lost: 0,
            transmissions: 0,
            latest_acknowledged: 0,
            round_trip: RoundTrip::default(),
            congestion: Congestion {
                window: CONGESTION_WINDOW_FIRST,
                threshold: WINDOW,
                acknowledged: 0,
                counted_until: 0,
                interval_ns: 0,
            },
            room_bytes: ROOM_BYTES_FIRST,
            resend_due: NEVER,
            paced_from: 0,
            owed: Owed { acknowledgement: Acknowledgement::default(), fragments: 0, due: NEVER },
            heard_at: now,
            probe_due: NEVER,
            probe_wanted: false,
            probes_unanswered: 0,
            misses: 0,
            resent: 0,
            repaired: 0,
        }
    }

    /// Changes the fragment size from now on; frames that were begun keep theirs.
    pub fn set_fragment_bytes(&mut self, fragment_bytes: u32) {
        assert!(fragment_bytes > 0);
        self.fragment_bytes = fragment_bytes;
    }

    /// Sets how many bytes the other side may have in flight to this one; every datagram states it.
    pub fn set_room(&mut self, room_bytes: u32) {
        self.owed.acknowledgement.room_bytes = room_bytes;
    }

    /// Probes the other side from now on when it is silent, because it is up.
    pub fn start(&mut self, now: Nanoseconds) {
        self.heard_at = now;
        self.probe_due = now + PROBE_NS;
    }

    /// Takes a frame with so many bytes of body; `content` is returned when all of it is acknowledged.
    #[inline]
    pub fn submit(&mut self, content: T, body_bytes: u32) {
        let content = Some(content);
        self.frames.push_back(Frame { content, body_bytes, fragment_bytes: 0, unacknowledged: 0, held: false });
    }

    /// Whether a frame may begin by [`Self::multicast`]: no other is partly sent.
    #[inline]
    pub fn may_multicast(&self) -> bool {
        self.cursor.1 == 0 && !self.is_held()
    }

    /// Takes a frame for several receivers, split as the caller says, before everything that was not sent yet; returns
    /// the number of its first fragment. [`Self::next`] sends nothing of it until [`Self::release`].
    pub fn multicast(&mut self, content: T, body_bytes: u32, fragment_bytes: u32) -> u64 {
        assert!(fragment_bytes > 0 && self.may_multicast());
        let frame = Frame { content: Some(content), body_bytes, fragment_bytes, unacknowledged: 0, held: true };
        // Fragments in flight refer to their frames by number, and those numbers are smaller.
        self.frames.insert((self.cursor.0 - self.first_frame) as usize, frame);
        self.fragments()
    }

    /// The number of fragments that may be sent by multicast now.
    pub fn room(&self) -> u64 {
        if !self.has_room() {
            return 0;
        }
        let window = (self.congestion.window - self.under_way).min(WINDOW - self.flight.len() as u64);
        let Some(frame) = self.frames.get((self.cursor.0 - self.first_frame) as usize) else { return window };
        let cost = u64::from(cost(self.overhead_bytes + frame.fragment_bytes.min(frame.body_bytes) as usize));
        window.min((u64::from(self.room_bytes) - self.under_way_bytes).div_ceil(cost))
    }

    /// Notes that the next fragments of the frame that was taken last were sent by multicast, at most `count` and as
    /// many as may be sent; returns their number.
    pub fn depart_by_multicast(&mut self, now: Nanoseconds, count: u64) -> u64 {
        let mut went = 0;
        while went < count && self.is_held() && self.has_room() {
            let at = self.take_off();
            self.flight[at].by_multicast = true;
            self.depart(at, now);
            went += 1;
        }
        went
    }

    /// [`Self::next`] sends the rest of the frame that was taken last.
    pub fn release(&mut self) {
        if let Some(frame) = self.frames.get_mut((self.cursor.0 - self.first_frame) as usize) {
            frame.held = false;
        }
    }

    /// Whether fragments sent by multicast are not known to have arrived.
    pub fn waits_for_multicast(&self) -> bool {
        self.flight.iter().any(|flight| flight.state == State::UnderWay && flight.is_by_multicast())
    }

    /// Multicast fragments in a row that did not arrive.
    #[inline]
    pub fn misses(&self) -> u32 {
        self.misses
    }

    /// What may be sent now, if anything.
    #[inline]
    pub fn next(&self, now: Nanoseconds) -> Option<Plan> {
        if self.unsent() && self.may_send(now) {
            if self.lost > 0 {
                let at = self.flight.iter().position(|flight| flight.state == State::Lost);
                let at = at.expect("as many are counted as there are");
                return Some(Plan::Again { sequence: self.base + at as u64 });
            }
            if (self.flight.len() as u64) < WINDOW {
                return Some(Plan::Next);
            }
        }
        if self.probe_wanted {
            return Some(Plan::Probe);
        }
        (self.owed.due <= now).then_some(Plan::Acknowledge)
    }

    /// The fragment of a plan, if it has one, and what was submitted for its frame.
    #[inline]
    pub fn fragment(&self, plan: Plan) -> Option<(Fragment, &T)> {
        let (frame_number, index, sequence) = match plan {
            Plan::Again { sequence } => {
                let flight = &self.flight[(sequence - self.base) as usize];
                (flight.frame, flight.index, sequence)
            }
            Plan::Next => (self.cursor.0, self.cursor.1, self.base + self.flight.len() as u64),
            Plan::Acknowledge | Plan::Probe => return None,
        };
        let frame = &self.frames[(frame_number - self.first_frame) as usize];
        let fragment_bytes = if frame.fragment_bytes == 0 { self.fragment_bytes } else { frame.fragment_bytes };
        let fragment = Fragment { sequence, index, body_bytes: frame.body_bytes, fragment_bytes };
        frame.content.as_ref().map(|content| (fragment, content))
    }

    /// The acknowledgement in every datagram.
    #[inline]
    pub fn acknowledgement(&self) -> &Acknowledgement {
        &self.owed.acknowledgement
    }

    /// Whether more waits than may be sent, so that the other side must acknowledge soon.
    #[inline]
    pub fn is_held_back(&self) -> bool {
        let unsent = self.cursor.0 + 1 < self.first_frame + self.frames.len() as u64
            || self.frames.back().is_some_and(|frame| u64::from(frame.body_bytes) > u64::from(self.fragment_bytes));
        unsent && self.is_half_full()
    }

    /// Whether at least half of what may be in flight is in flight.
    #[inline]
    pub fn is_half_full(&self) -> bool {
        self.under_way * 2 >= self.congestion.window || self.under_way_bytes * 2 >= u64::from(self.room_bytes)
    }

    /// Notes that the plan was carried out.
    #[inline]
    pub fn sent(&mut self, plan: Plan, now: Nanoseconds) {
        self.owed.fragments = 0;
        self.owed.due = NEVER;
        let at = match plan {
            Plan::Acknowledge => return,
            Plan::Probe => {
                self.probe_wanted = false;
                return;
            }
            Plan::Again { sequence } => {
                let at = (sequence - self.base) as usize;
                self.lost -= 1;
                self.resent += 1;
                self.repaired += u64::from(self.flight[at].is_by_multicast());
                at
            }
            Plan::Next => self.take_off(),
        };
        self.depart(at, now);
    }

    /// Notes that an authentic datagram arrived, whatever its content.
    #[inline]
    pub fn heard(&mut self, now: Nanoseconds) {
        self.heard_at = now;
        self.probes_unanswered = 0;
    }

    /// Notes that an acknowledgement is owed, because a fragment or a probe arrived. `at_once` says whether the other
    /// side waits for it.
    #[inline]
    pub fn owe(&mut self, now: Nanoseconds, acknowledgement: Acknowledgement, at_once: bool) {
        self.owe_within(now, acknowledgement, if at_once { 0 } else { ACKNOWLEDGE_NS });
    }

    /// Notes the same for a fragment that arrived by multicast. As long as nothing is missing, no datagram is sent for
    /// that alone.
    #[inline]
    pub fn owe_for_multicast(&mut self, now: Nanoseconds, acknowledgement: Acknowledgement, at_once: bool) {
        self.owe_within(now, acknowledgement, if at_once { 0 } else { MULTICAST_ACKNOWLEDGE_NS });
    }

    /// Handles an acknowledgement of the other side; `release` gets the contents of frames that arrived.
    #[inline]
    pub fn acknowledged(
        &mut self,
        now: Nanoseconds,
        acknowledgement: &Acknowledgement,
        mut release: impl FnMut(T),
    ) -> Result<(), Inconsistent> {
        let next = self.base + self.flight.len() as u64;
        if acknowledgement.cumulative > next || u64::from(acknowledgement.expected) > next - acknowledgement.cumulative
        {
            return Err(Inconsistent);
        }
        if acknowledgement.cumulative >= self.base {
            self.room_bytes = acknowledgement.room_bytes;
        }
        let was_full = self.under_way * 2 >= self.congestion.window;
        let (mut count, mut sample) = (0, None);
        while self.base < acknowledgement.cumulative {
            self.acknowledge(0, &mut count, &mut sample, &mut release);
            self.flight.pop_front();
            self.base += 1;
        }
        // An acknowledgement older than the last has an older base, and its bits lie below.
        let shift = self.base - acknowledgement.cumulative;
        if acknowledgement.has_gap() {
            for word in 0..WORDS {
                let mut bits = acknowledgement.beyond[word];
                while bits != 0 {
                    let ahead = (word * 64) as u64 + u64::from(bits.trailing_zeros());
                    bits &= bits - 1;
                    if ahead >= shift && ahead - shift < self.flight.len() as u64 {
                        self.acknowledge((ahead - shift) as usize, &mut count, &mut sample, &mut release);
                    }
                }
            }
            while self.flight.front().is_some_and(|flight| flight.state == State::Acknowledged) {
                self.flight.pop_front();
                self.base += 1;
            }
        }
        if count > 0 {
            if let Some(sent_at) = sample {
                self.round_trip.measure(now.saturating_sub(sent_at));
            }
            if std::mem::take(&mut self.round_trip.doublings) > 0 {
                // The time-out of what is in flight was longer than it is now.
                self.resend_due = self.resend_due.min(now + self.round_trip.resend_ns());
            }
            self.learn(count, was_full);
        }
        if acknowledgement.expected > 0 {
            let until = acknowledgement.cumulative + u64::from(acknowledgement.expected);
            self.mark_lost(|sequence, flight| sequence < until && flight.is_by_multicast());
        }
        Ok(())
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Nanoseconds) {
        if self.resend_due <= now {
            self.time_out(now);
        }
        if self.probe_due <= now {
            let quiet = now.saturating_sub(self.heard_at) >= PROBE_NS;
            if quiet {
                self.probe_wanted = true;
                self.probes_unanswered += 1;
            }
            self.probe_due = PROBE_NS + if quiet { now } else { self.heard_at };
        }
    }

    /// Probes the other side at `due` if it sends nothing until then.
    pub fn probe_by(&mut self, due: Nanoseconds) {
        self.heard_at = self.heard_at.min(due.saturating_sub(PROBE_NS));
        self.probe_due = self.probe_due.min(due);
    }

    /// The latest time at which [`Self::tick`] or [`Self::next`] may have something to do.
    #[inline]
    pub fn due(&self) -> Nanoseconds {
        let resend = if self.under_way > 0 { self.resend_due } else { NEVER };
        let paced = if self.under_way >= BURST && self.has_room() && self.unsent() { self.paced_from } else { NEVER };
        resend.min(self.owed.due).min(self.probe_due).min(paced)
    }

    /// Probes in a row after which nothing arrived.
    pub fn probes_unanswered(&self) -> u32 {
        self.probes_unanswered
    }

    /// Time-outs in a row without any progress.
    pub fn doublings(&self) -> u32 {
        self.round_trip.doublings
    }

    /// Whether something may have to be sent before the clock says so.
    #[inline]
    pub fn has_work(&self, now: Nanoseconds) -> bool {
        self.unsent() || self.owed.due <= now || self.probe_wanted
    }

    /// Whether all frames that were submitted have arrived.
    pub fn is_idle(&self) -> bool {
        self.frames.is_empty()
    }

    /// The number of fragments that were sent for the first time.
    pub fn fragments(&self) -> u64 {
        self.base + self.flight.len() as u64
    }

    /// Fragments before the first one not known to have arrived: a measure of progress.
    pub fn arrived(&self) -> u64 {
        self.base
    }

    /// Fragments that are not known to have arrived; never more than [`WINDOW`].
    pub fn outstanding(&self) -> usize {
        self.flight.len()
    }

    /// The number of fragments that may be in flight.
    pub fn congestion_window(&self) -> u64 {
        self.congestion.window
    }

    /// Returns everything that has not arrived.
    pub fn abandon(&mut self, mut release: impl FnMut(T)) {
        self.frames.drain(..).filter_map(|frame| frame.content).for_each(&mut release);
        self.flight.clear();
        (self.under_way, self.under_way_bytes, self.lost) = (0, 0, 0);
        (self.resend_due, self.probe_due, self.owed.due) = (NEVER, NEVER, NEVER);
        self.probe_wanted = false;
    }

    #[inline]
    fn unsent(&self) -> bool {
        self.lost > 0 || (self.cursor.0 < self.first_frame + self.frames.len() as u64 && !self.is_held())
    }

    /// Whether the next fragment belongs to a frame that is sent by multicast.
    #[inline]
    fn is_held(&self) -> bool {
        self.frames.get((self.cursor.0 - self.first_frame) as usize).is_some_and(|frame| frame.held)
    }

    #[inline]
    fn may_send(&self, now: Nanoseconds) -> bool {
        // One may always be in flight; otherwise a receiver with little room would get nothing.
        self.under_way == 0 || (self.has_room() && (self.under_way < BURST || self.paced_from <= now))
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.under_way < self.congestion.window
            && self.under_way_bytes < u64::from(self.room_bytes)
            && (self.lost > 0 || (self.flight.len() as u64) < WINDOW)
    }

    /// Assigns the next fragment its number; returns its index in `flight`.
    #[inline]
    fn take_off(&mut self) -> usize {
        let (number, index) = self.cursor;
        let frame = &mut self.frames[(number - self.first_frame) as usize];
        if frame.fragment_bytes == 0 {
            frame.fragment_bytes = self.fragment_bytes;
        }
        let (body_bytes, fragment_bytes) = (frame.body_bytes, frame.fragment_bytes);
        let fragment = Fragment { sequence: 0, index, body_bytes, fragment_bytes };
        if index == 0 {
            frame.unacknowledged = fragment.count();
        }
        let cost = cost(self.overhead_bytes + fragment.range().len());
        self.cursor = if index + 1 == fragment.count() { (number + 1, 0) } else { (number, index + 1) };
        let state = State::UnderWay;
        let (sends, sent_at, transmission, by_multicast) = (0, 0, 0, false);
        self.flight.push_back(Flight { frame: number, index, cost, state, sends, sent_at, transmission, by_multicast });
        self.flight.len() - 1
    }

    /// Notes the transmission of a fragment.
    #[inline]
    fn depart(&mut self, at: usize, now: Nanoseconds) {
        self.transmissions += 1;
        let flight = &mut self.flight[at];
        flight.state = State::UnderWay;
        flight.sends += 1;
        flight.sent_at = now;
        flight.transmission = self.transmissions;
        self.under_way += 1;
        self.under_way_bytes += u64::from(flight.cost);
        self.resend_due = self.resend_due.min(now + flight.timeout_ns(self.round_trip.resend_ns()));
        let interval_ns = self.congestion.interval_ns;
        self.paced_from = self.paced_from.max(now.saturating_sub(BURST * interval_ns)) + interval_ns;
    }

    #[inline]
    fn owe_within(&mut self, now: Nanoseconds, acknowledgement: Acknowledgement, within_ns: Nanoseconds) {
        self.owed.fragments += 1;
        let soon = acknowledgement.is_negative() || self.owed.fragments >= UNACKNOWLEDGED_MAX;
        self.owed.acknowledgement = acknowledgement;
        self.owed.due = self.owed.due.min(if soon { now } else { now + within_ns });
    }

    #[inline]
    fn acknowledge(
        &mut self,
        at: usize,
        count: &mut u64,
        sample: &mut Option<Nanoseconds>,
        release: &mut impl FnMut(T),
    ) {
        let flight = &mut self.flight[at];
        match flight.state {
            State::Acknowledged => return,
            State::Lost => self.lost -= 1,
            State::UnderWay => {
                self.under_way -= 1;
                self.under_way_bytes -= u64::from(flight.cost);
            }
        }
        flight.state = State::Acknowledged;
        *count += 1;
        if flight.sends == 1 {
            // If it was sent twice it is not known which transmission arrived; a multicast is acknowledged with delay.
            if !flight.by_multicast {
                *sample = Some(sample.unwrap_or(0).max(flight.sent_at));
            }
            self.misses = if flight.by_multicast { 0 } else { self.misses };
            self.latest_acknowledged = self.latest_acknowledged.max(flight.transmission);
        }
        let frame = &mut self.frames[(flight.frame - self.first_frame) as usize];
        frame.unacknowledged -= 1;
        if frame.unacknowledged == 0 {
            release(frame.content.take().expect("a frame is whole once"));
            while self.frames.front().is_some_and(|frame| frame.content.is_none()) {
                self.frames.pop_front();
                self.first_frame += 1;
            }
        }
    }

    /// Learns about losses and the path from an acknowledgement of something new.
    #[inline]
    fn learn(&mut self, count: u64, was_full: bool) {
        if self.flight.is_empty() {
            self.resend_due = NEVER;
        } else {
            // If only few are in flight, there will never be three later ones (RFC 5827).
            self.find_losses((self.under_way + count).saturating_sub(1).clamp(1, REORDERED_MAX));
        }
        if self.base >= self.congestion.counted_until && was_full {
            self.congestion.grow(count);
        }
        self.congestion.pace(self.round_trip.smoothed_ns);
    }

    fn find_losses(&mut self, reordered_max: u64) {
        let latest = self.latest_acknowledged;
        self.mark_lost(|_, flight| flight.transmission + reordered_max <= latest);
    }

    /// Marks the fragments in flight that are lost by the caller's rule.
    fn mark_lost(&mut self, is_lost: impl Fn(u64, &Flight) -> bool) {
        let next = self.base + self.flight.len() as u64;
        let mut newest_lost = None;
        for (flight, sequence) in self.flight.iter_mut().zip(self.base..) {
            if flight.state == State::UnderWay && is_lost(sequence, flight) {
                flight.state = State::Lost;
                self.lost += 1;
                self.under_way -= 1;
                self.under_way_bytes -= u64::from(flight.cost);
                self.misses += u32::from(flight.is_by_multicast());
                newest_lost = Some(sequence);
            }
        }
        if newest_lost.is_some_and(|sequence| sequence >= self.congestion.counted_until) {
            self.congestion.threshold = (self.congestion.window / 2).max(CONGESTION_WINDOW_MIN);
            self.congestion.window = self.congestion.threshold;
            self.congestion.counted_until = next;
        }
    }

    /// Marks the fragments that were not acknowledged in time.
    fn time_out(&mut self, now: Nanoseconds) {
        let resend_ns = self.round_trip.resend_ns();
        let mut timed_out = false;
        self.resend_due = NEVER;
        for flight in self.flight.iter_mut().filter(|flight| flight.state == State::UnderWay) {
            let due = flight.sent_at.saturating_add(flight.timeout_ns(resend_ns));
            if due <= now {
                flight.state = State::Lost;
                self.lost += 1;
                self.under_way -= 1;
                self.under_way_bytes -= u64::from(flight.cost);
                self.misses += u32::from(flight.is_by_multicast());
                timed_out = true;
            } else {
                self.resend_due = self.resend_due.min(due);
            }
        }
        if timed_out {
            let congestion = &mut self.congestion;
            // Repeated time-outs without an answer are one loss, not many.
            if self.round_trip.doublings == 0 {
                congestion.threshold = (congestion.window / 2).max(CONGESTION_WINDOW_MIN);
            }
            congestion.window = CONGESTION_WINDOW_MIN;
            congestion.counted_until = self.base + self.flight.len() as u64;
            congestion.pace(self.round_trip.smoothed_ns);
            self.round_trip.doublings = (self.round_trip.doublings + 1).min(16);
        }
    }
}

impl Flight {
    /// Whether it was sent by multicast only so far.
    #[inline]
    fn is_by_multicast(&self) -> bool {
        self.by_multicast && self.sends == 1
    }

    /// How long to wait for its acknowledgement.
    #[inline]
    fn timeout_ns(&self, resend_ns: Nanoseconds) -> Nanoseconds {
        if self.is_by_multicast() { resend_ns.max(MULTICAST_RESEND_NS) } else { resend_ns }
    }
}

impl RoundTrip {
    #[inline]
    fn measure(&mut self, sample_ns: u64) {
        if self.smoothed_ns == 0 {
            self.smoothed_ns = sample_ns.max(1);
            self.deviation_ns = sample_ns / 2;
            return;
        }
        let difference = self.smoothed_ns.abs_diff(sample_ns);
        self.deviation_ns = (3 * self.deviation_ns + difference) / 4;
        self.smoothed_ns = ((7 * self.smoothed_ns + sample_ns) / 8).max(1);
    }

    /// How long to wait for a fragment's acknowledgement.
    #[inline]
    fn resend_ns(&self) -> Nanoseconds {
        let estimated = match self.smoothed_ns {
            0 => RESEND_NS_FIRST,
            smoothed => (smoothed + 4 * self.deviation_ns).max(RESEND_NS_MIN),
        };
        (estimated << self.doublings.min(8)).min(RESEND_NS_MAX)
    }
}

impl Congestion {
    fn grow(&mut self, count: u64) {
        if self.window < self.threshold {
            self.window += count;
        } else {
            self.acknowledged += count;
            if self.acknowledged >= self.window {
                self.acknowledged -= self.window;
                self.window += 1;
            }
        }
        self.window = self.window.min(WINDOW);
    }

    /// Paces a quarter faster than one window per round trip; otherwise pacing would be the limit.
    #[inline]
    fn pace(&mut self, round_trip_ns: u64) {
        self.interval_ns = round_trip_ns * 4 / (self.window * 5);
    }
}
