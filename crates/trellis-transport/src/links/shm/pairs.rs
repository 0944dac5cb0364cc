//! All pairs of one node: which are served in a poll, woken, or lost.
//!
//! Promises: how a pair's frames travel is decided once. Everything written into a ring before its writer was lost is
//! received first. A thread that sleeps on the link's readiness is woken for every frame.
//!
//! It must never negotiate with a peer (see `negotiation`), or call the sink of one peer from two threads at once.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::negotiation::{Through, Token};
use super::receiving::Receiving;
use super::sending::{Flushed, NotTaken, Sending, Taken};
use super::{EVENT_TOKEN, LISTENER_TOKEN, Manner, Shm, TCP_TOKEN};
use crate::HEADER_BYTES;
use crate::links::descriptors::NO_EVENT;
use crate::links::roster::{Traffic, lock, try_lock};
use crate::links::waits::Closing;
use crate::links::{Choice, Link, LinkStatistics, Lost, Payload, PeerStatistics, SendError, Sink, check_sendable};

/// While a thread polls continuously, one poll in this number checks connections and new peers.
const POLLS_PER_LOOK: u32 = 256;

/// The way is not decided yet, or the peer has not come.
const WAITING: u8 = 0;
/// Frames travel over the connection.
const OVER_TCP: u8 = 1;
/// Frames travel through shared memory.
const SHARED: u8 = 2;
/// The peer is lost, and reported as such.
const LOST: u8 = 3;

/// The state of one pair.
pub(super) struct Pair {
    state: AtomicU8,
    /// Whether something in `sending` waits for room in the ring.
    queued: AtomicBool,
    /// Whether `loss` is known and not yet reported.
    unsettled: AtomicBool,
    /// The next slot of the incoming ring, so that a poll that finds nothing takes no lock.
    next: AtomicU64,
    pub(super) channel: OnceLock<Arc<Channel>>,
    sending: Mutex<Sending>,
    receiving: Mutex<Receiving>,
    loss: Mutex<Option<Lost>>,
    /// Why this pair stays on tcp.
    pub(super) note: Mutex<Option<String>>,
    /// What the peer must know to be admitted through the listening socket.
    pub(super) token: Mutex<Option<Token>>,
    /// Whether the connection is or was up.
    met: AtomicBool,
    /// The peer's invitation arrived.
    invited: AtomicBool,
    /// The counters of the rings.
    traffic: Traffic,
    /// Invitations and verdicts, which the connection counts as frames.
    pub(super) own: Traffic,
}

impl Pair {
    pub(super) fn new(peer: usize) -> Pair {
        Pair {
            state: AtomicU8::new(WAITING),
            queued: AtomicBool::new(false),
            unsettled: AtomicBool::new(false),
            next: AtomicU64::new(0),
            channel: OnceLock::new(),
            sending: Mutex::new(Sending::new(peer)),
            receiving: Mutex::new(Receiving::new(peer)),
            loss: Mutex::new(None),
            note: Mutex::new(None),
            token: Mutex::new(None),
            met: AtomicBool::new(false),
            invited: AtomicBool::new(false),
            traffic: Traffic::default(),
            own: Traffic::default(),
        }
    }

    #[inline]
    fn is_in(&self, state: u8) -> bool {
        self.state.load(Ordering::Acquire) == state
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.is_in(WAITING)
    }

    pub(super) fn is_over_tcp(&self) -> bool {
        self.is_in(OVER_TCP)
    }

    /// Whether this peer's invitation is expected; true once.
    pub(super) fn takes_invitation(&self) -> bool {
        !self.invited.swap(true, Ordering::AcqRel)
    }

    /// Whether the peer is gone for good, whether or not the sink was told already.
    pub(super) fn is_lost(&self) -> bool {
        self.is_in(LOST) || self.unsettled.load(Ordering::Acquire)
    }

    /// Whether a slot has arrived that was not taken.
    #[inline]
    fn has_frame(&self) -> bool {
        self.channel.get().is_some_and(|channel| channel.incoming.is_written(self.next.load(Ordering::Acquire)))
    }
}

impl Shm {
    /// Whether this is a forked child, where every descriptor is closed.
    #[inline]
    pub(super) fn is_forked(&self) -> bool {
        self.epoll.raw() < 0
    }

    pub(super) fn is_decided(&self, peer: usize) -> bool {
        self.pairs.get(peer).is_some_and(|pair| pair.is_in(OVER_TCP) || pair.is_in(SHARED))
    }

    pub(super) fn way_of(&self, peer: usize) -> Choice {
        // A lost pair reports how its frames travelled.
        let is_shared = self.pairs.get(peer).is_some_and(|pair| match pair.state.load(Ordering::Acquire) {
            SHARED => true,
            LOST => lock(&pair.sending).channel().is_some(),
            _ => self.manner == Manner::Require,
        });
        if is_shared { Choice::Shm } else { Choice::Tcp }
    }

    #[inline]
    pub(super) fn send_one(
        &self,
        peer: usize,
        header: &[u8; HEADER_BYTES],
        payload: Payload<'_>,
    ) -> Result<(), SendError> {
        let bytes = payload.bytes();
        check_sendable(self.node(), self.pairs.len(), peer, bytes)?;
        if self.closed.load(Ordering::Relaxed) || self.is_forked() {
            return Err(SendError::Closed);
        }
        let pair = &self.pairs[peer];
        if pair.is_in(OVER_TCP) {
            return self.tcp.send(peer, header, payload);
        }
        let mut sending = lock(&pair.sending);
        let taken = match sending.send(header, payload) {
            Ok(taken) => taken,
            Err(NotTaken::Refused(error)) => return Err(error),
            Err(NotTaken::Implausible) => {
                drop(sending);
                return Err(SendError::Lost { peer, why: self.break_pair(peer) });
            }
        };
        if taken == Taken::UseTcp {
            drop(sending);
            return self.tcp.send(peer, header, payload);
        }
        pair.traffic.sent(bytes);
        if taken == Taken::Waits {
            self.flush_locked(peer, sending);
        } else {
            drop(sending);
            if let Some(channel) = pair.channel.get() {
                wake_receiver(channel);
            }
        }
        Ok(())
    }

    #[inline]
    pub(super) fn poll_all(&self, sink: &mut dyn Sink) -> bool {
        if self.closed.load(Ordering::Relaxed) || self.is_forked() {
            return false;
        }
        let mut came = false;
        if self.pollers.load(Ordering::Relaxed) == 0
            || self.polls.fetch_add(1, Ordering::Relaxed).is_multiple_of(POLLS_PER_LOOK)
        {
            came |= self.look(sink);
        } else if self.asked_over_tcp.load(Ordering::Relaxed) > 0 {
            came |= self.tcp.poll(&mut Through { link: self, sink });
        }
        for number in &self.order[..self.rings.load(Ordering::Acquire)] {
            came |= self.serve(number.load(Ordering::Relaxed) as usize, sink);
        }
        if self.unsettled.load(Ordering::Relaxed) > 0 {
            for peer in 0..self.pairs.len() {
                if self.pairs[peer].unsettled.load(Ordering::Acquire) {
                    came |= self.serve(peer, sink);
                }
            }
        }
        came
    }

    /// Checks what makes the link ready, apart from rings: the wake-up descriptor, the connections, the listening
    /// socket.
    #[cold]
    fn look(&self, sink: &mut dyn Sink) -> bool {
        let mut came = false;
        let mut events = [NO_EVENT; 16];
        let count = self.epoll.ready(&mut events);
        for event in &events[..count] {
            match event.data.u64() {
                // In this order: drain, mark, then check the rings. A later writer signals again.
                EVENT_TOKEN => {
                    self.event.drain();
                    if self.pollers.load(Ordering::SeqCst) == 0 {
                        self.mark_sleeping(true);
                    }
                }
                TCP_TOKEN => came |= self.tcp.poll(&mut Through { link: self, sink }),
                LISTENER_TOKEN => self.accept_waiting(),
                token => came |= self.go_on_negotiating(token, sink),
            }
        }
        came
    }

    /// Tells the peers whether they must wake this node for what they write.
    fn mark_sleeping(&self, sleeping: bool) {
        for number in &self.order[..self.rings.load(Ordering::SeqCst)] {
            let pair = &self.pairs[number.load(Ordering::Relaxed) as usize];
            if let Some(channel) = pair.channel.get() {
                channel.incoming.set_sleeping(sleeping);
            }
        }
        fence(Ordering::SeqCst);
    }

    /// See [`Link::set_polling`].
    pub(super) fn set_pollers(&self, polling: bool) -> bool {
        if polling {
            if self.pollers.fetch_add(1, Ordering::SeqCst) == 0 {
                self.mark_sleeping(false);
            }
        } else if self.pollers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.mark_sleeping(true);
            // Frames that arrived before the marks were set woke no thread.
            let pairs = self.order[..self.rings.load(Ordering::SeqCst)].iter();
            let mut pairs = pairs.map(|number| &self.pairs[number.load(Ordering::Relaxed) as usize]);
            if pairs.any(|pair| pair.has_frame() || pair.queued.load(Ordering::Acquire)) {
                self.event.signal();
            }
        }
        self.asked_over_tcp.load(Ordering::Relaxed) == 0
    }

    /// Makes the next poll check everything, even if no thread polls continuously.
    pub(super) fn wake_self(&self) {
        self.event.signal();
    }

    /// One peer's share of a poll.
    #[inline]
    fn serve(&self, peer: usize, sink: &mut dyn Sink) -> bool {
        let pair = &self.pairs[peer];
        if pair.queued.load(Ordering::Acquire) {
            self.flush(peer);
        }
        if !pair.has_frame() && !pair.unsettled.load(Ordering::Acquire) {
            return false;
        }
        self.receive(peer, sink)
    }

    fn receive(&self, peer: usize, sink: &mut dyn Sink) -> bool {
        let pair = &self.pairs[peer];
        let mut receiving = match pair.receiving.try_lock() {
            Ok(receiving) => receiving,
            Err(TryLockError::WouldBlock) => {
                // The holder may have looked already, and the descriptor that woke this thread is drained.
                self.wake_sleeper();
                return false;
            }
            Err(TryLockError::Poisoned(poisoned)) => {
                self.note_loss(peer, Lost::Broken { why: "a callback panicked in the middle of a frame".into() });
                let mut receiving = poisoned.into_inner();
                receiving.end();
                receiving
            }
        };
        if receiving.reported || self.closed.load(Ordering::Relaxed) {
            return false;
        }
        // This is read before the ring: everything that was written before the end is in the ring by now.
        let mut is_ending = pair.unsettled.load(Ordering::Acquire);
        let mut came = false;
        if pair.is_in(SHARED) {
            let harvest = receiving.receive(sink);
            came = harvest.came;
            if harvest.is_abandoned {
                self.note_loss(peer, Lost::Truncated);
                is_ending = true;
            }
            pair.traffic.received_many(harvest.frames, harvest.bytes);
            if came {
                pair.next.store(harvest.next, Ordering::Release);
            }
            if let Some(why) = harvest.violation {
                pair.traffic.refused();
                self.note_loss(peer, Lost::FrameRefused { why });
                receiving.end();
                is_ending = true;
            } else if let Some(channel) = pair.channel.get().filter(|_| came)
                && channel.incoming.takes_wake_of_sender()
            {
                channel.wake_peer();
            }
            is_ending &= !harvest.is_cut;
        }
        if is_ending {
            self.report(peer, &mut receiving, sink);
            return true;
        }
        drop(receiving);
        if pair.has_frame() || pair.unsettled.load(Ordering::Acquire) {
            self.wake_sleeper();
        }
        came
    }

    /// Wakes a sleeping thread for work that is left, if no thread polls continuously.
    fn wake_sleeper(&self) {
        if self.pollers.load(Ordering::SeqCst) == 0 {
            self.event.signal();
        }
    }

    /// Tells the sink that the peer is gone, after everything it wrote was received. The caller holds the receiving
    /// half.
    fn report(&self, peer: usize, receiving: &mut MutexGuard<'_, Receiving>, sink: &mut dyn Sink) {
        let pair = &self.pairs[peer];
        let Some(mut why) = lock(&pair.loss).clone() else { return };
        if why == Lost::Ended && receiving.is_in_a_frame() {
            why = Lost::Truncated;
        }
        receiving.end();
        receiving.reported = true;
        self.end_sending(peer, &why);
        pair.state.store(LOST, Ordering::Release);
        if pair.unsettled.swap(false, Ordering::AcqRel) {
            self.unsettled.fetch_sub(1, Ordering::AcqRel);
        }
        // If the other end does not know yet, it learns of this by the end of the connection.
        self.tcp.end_peer(peer, &why);
        sink.lost(peer, &why);
    }

    /// Notes that the peer is gone, or must go. A poll reports it after everything that it wrote was received.
    pub(super) fn note_loss(&self, peer: usize, why: Lost) {
        let pair = &self.pairs[peer];
        let mut loss = lock(&pair.loss);
        if loss.is_some() {
            return;
        }
        self.end_sending(peer, &why);
        *loss = Some(why);
        pair.unsettled.store(true, Ordering::Release);
        self.unsettled.fetch_add(1, Ordering::AcqRel);
        drop(loss);
        self.wake_self();
    }

    fn end_sending(&self, peer: usize, why: &Lost) {
        let pair = &self.pairs[peer];
        lock(&pair.sending).end(why.clone());
        pair.queued.store(false, Ordering::Release);
    }

    /// Loses a peer whose counts are invalid.
    fn break_pair(&self, peer: usize) -> Lost {
        let why = Lost::FrameRefused { why: "its counts in the shared memory cannot be true".to_owned() };
        self.pairs[peer].traffic.refused();
        self.note_loss(peer, why.clone());
        why
    }

    #[cold]
    fn flush(&self, peer: usize) {
        // The holder is sending, and flushes as well.
        if let Some(sending) = try_lock(&self.pairs[peer].sending) {
            self.flush_locked(peer, sending);
        }
    }

    fn flush_locked(&self, peer: usize, mut sending: MutexGuard<'_, Sending>) {
        let pair = &self.pairs[peer];
        let Ok(Flushed { moved, waits, has_room }) = sending.flush() else {
            drop(sending);
            self.break_pair(peer);
            return;
        };
        pair.queued.store(waits, Ordering::Release);
        drop(sending);
        if let Some(channel) = pair.channel.get().filter(|_| moved) {
            wake_receiver(channel);
        }
        if waits && has_room {
            self.wake_sleeper();
        }
    }

    /// Notes that the connection to a peer is up, and nothing is decided.
    pub(super) fn count_up(&self, peer: usize) {
        self.pairs[peer].met.store(true, Ordering::Release);
        self.asked_over_tcp.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that the connection of a peer ended.
    pub(super) fn connection_lost(&self, peer: usize, why: &Lost) {
        let pair = &self.pairs[peer];
        if pair.met.swap(false, Ordering::AcqRel) && !pair.is_in(SHARED) {
            self.asked_over_tcp.fetch_sub(1, Ordering::AcqRel);
        }
        self.note_loss(peer, why.clone());
    }

    /// Tells the sink that the peer is up, before its first frame; false if it is gone already.
    pub(super) fn announce(&self, peer: usize, sink: &mut dyn Sink) -> bool {
        // The holder, while nothing is decided, reports a loss.
        let Some(mut receiving) = try_lock(&self.pairs[peer].receiving) else { return false };
        if receiving.announced || receiving.reported {
            return false;
        }
        receiving.announced = true;
        sink.connected(peer);
        true
    }

    /// Decides that the pair's frames travel over tcp from now on. `verdict` is called before the first.
    pub(super) fn stay_on_tcp(&self, peer: usize, why: &str, verdict: impl FnOnce()) {
        let pair = &self.pairs[peer];
        let Some(receiving) = try_lock(&pair.receiving).filter(|receiving| !receiving.reported) else { return };
        *lock(&pair.note) = Some(why.to_owned());
        let mut sending = lock(&pair.sending);
        verdict();
        let (mut frames, mut bytes) = (0, 0);
        sending.take_tcp(|header, payload| {
            frames += 1;
            bytes += (HEADER_BYTES + payload.bytes()) as u64;
            // This fails only if the peer is lost, which a poll reports.
            let _ = self.tcp.send(peer, header, payload);
        });
        pair.traffic.unsent(frames, bytes);
        pair.state.store(OVER_TCP, Ordering::Release);
        drop((sending, receiving));
    }

    /// Decides that the pair's frames travel through its channel from now on. The channel exists.
    pub(super) fn go_through_memory(&self, peer: usize) {
        let pair = &self.pairs[peer];
        let Some(channel) = pair.channel.get() else { return };
        let receiving = try_lock(&pair.receiving).filter(|receiving| !receiving.reported);
        let Some(mut receiving) = receiving else { return };
        receiving.take_ring(Arc::clone(channel));
        let mut sending = lock(&pair.sending);
        sending.take_ring(Arc::clone(channel));
        pair.state.store(SHARED, Ordering::Release);
        self.flush_locked(peer, sending);
        drop(receiving);
        self.asked_over_tcp.fetch_sub(1, Ordering::AcqRel);
        let growing = lock(&self.growing);
        let index = self.rings.load(Ordering::Acquire);
        self.order[index].store(peer as u32, Ordering::Relaxed);
        self.rings.store(index + 1, Ordering::SeqCst);
        drop(growing);
        if self.pollers.load(Ordering::SeqCst) == 0 {
            channel.incoming.set_sleeping(true);
        }
        // Frames that were written before the mark woke no thread.
        self.wake_self();
    }

    pub(super) fn count_all(&self) -> LinkStatistics {
        let below = self.tcp.statistics();
        let mut all = LinkStatistics {
            unauthenticated_refused: below.unauthenticated_refused + self.unauthenticated.load(Ordering::Relaxed),
            nodes_refused: below.nodes_refused,
            frames_refused: below.frames_refused,
            ..LinkStatistics::default()
        };
        for (pair, connection) in self.pairs.iter().zip(below.peers) {
            let (rings, own) = (pair.traffic.read(), pair.own.read());
            // A verdict is counted and sent in two steps, so for a moment there may be one more of these.
            let sum = |rings: u64, connection: u64, own: u64| (rings + connection).saturating_sub(own);
            let one = PeerStatistics {
                frames_in: sum(rings.frames_in, connection.frames_in, own.frames_in),
                frames_out: sum(rings.frames_out, connection.frames_out, own.frames_out),
                bytes_in: sum(rings.bytes_in, connection.bytes_in, own.bytes_in),
                bytes_out: sum(rings.bytes_out, connection.bytes_out, own.bytes_out),
                queued_bytes: lock(&pair.sending).held_bytes() as u64 + connection.queued_bytes,
            };
            all.add_peer(one, pair.traffic.frames_refused());
        }
        (all.packets_in, all.packets_out) = (all.frames_in, all.frames_out);
        all
    }

    /// Sends what waits in rings, and waits until the peers took it: what they copy from this node's memory must not
    /// change before. `closed` is set, so polls do nothing any more.
    pub(super) fn leave_all(&self) {
        let leaving: Vec<usize> = (0..self.pairs.len()).filter(|&peer| self.pairs[peer].is_in(SHARED)).collect();
        for &peer in &leaving {
            if let Some(channel) = self.pairs[peer].channel.get() {
                // Otherwise two nodes that leave at once, each with a full ring, would wait for each other.
                channel.incoming.set_gone();
                channel.wake_peer();
            }
        }
        let (start, mut closing) = (Instant::now(), Closing::new());
        loop {
            let (mut rest, mut done) = (0, true);
            for &peer in &leaving {
                let pair = &self.pairs[peer];
                self.flush(peer);
                let sending = lock(&pair.sending);
                if !sending.is_done() && !self.tcp.has_ended(peer) {
                    done = false;
                    rest += sending.left_to_do();
                }
            }
            if done || closing.is_over(rest as u64, start.elapsed()) {
                break;
            }
            // There is no event for the peer taking something.
            std::thread::sleep(Duration::from_micros(100));
        }
        for (peer, pair) in self.pairs.iter().enumerate() {
            if let Some(channel) = pair.channel.get()
                && !lock(&pair.sending).is_done()
            {
                channel.outgoing.set_abandoned();
            }
            self.end_sending(peer, &Lost::ClosedHere);
            pair.state.store(LOST, Ordering::Release);
        }
    }
}

/// Wakes the peer for what was just written, if it sleeps.
#[inline]
fn wake_receiver(channel: &Channel) {
    if channel.outgoing.takes_wake_of_receiver() {
        channel.wake_peer();
    }
}
