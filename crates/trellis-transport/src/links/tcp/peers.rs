//! All peers of one node: their state, their two halves, and the descriptor that reports when to poll.
//!
//! Promises: a peer goes from absent to up to lost, or from absent to lost, and never back. The sink is told of each
//! step once.
//!
//! It must never connect (the acceptor does, and hands the connection to [`Peers::install`]).

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::input::{Harvest, Input};
use super::output::{Output, Queue};
use super::sockets;
use crate::HEADER_BYTES;
use crate::links::descriptors::{Descriptor, Epoll, Event};
use crate::links::waits::Closing;
use crate::links::{LinkStatistics, Lost, Payload, PeerStatistics, SendError, Sink, check_sendable};
use crate::wrap::secure::Keys;

/// Up to so many peers are served one by one; for more it is cheaper to ask epoll which are ready.
const ASKED_ONE_BY_ONE_MAX: usize = 2;
const NEWS_TOKEN: u64 = u64::MAX;

const ABSENT: u8 = 0;
const UP: u8 = 1;
const LOST: u8 = 2;

/// See the module text.
pub(super) struct Peers {
    pub(super) node: usize,
    /// Readable when a poll would do something.
    pub(super) epoll: Epoll,
    /// Wakes the acceptor.
    pub(super) wake: Event,
    pub(super) closed: AtomicBool,
    pub(super) unauthenticated: AtomicU64,
    pub(super) nodes_refused: AtomicU64,
    peers: Vec<Peer>,
    /// Peers that came up or were given up since the last poll; `news` is their number, so that a poll without news
    /// takes no lock.
    arrivals: Mutex<Vec<usize>>,
    news: AtomicUsize,
    news_event: Event,
    up: AtomicUsize,
}

struct Peer {
    state: AtomicU8,
    /// Something waits in `output`; changed only under its lock.
    waits: AtomicBool,
    input: Mutex<Input>,
    output: Mutex<Output>,
    trouble: Mutex<Option<String>>,
    frames_in: AtomicU64,
    frames_out: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    frames_refused: AtomicU64,
}

impl Peers {
    pub(super) fn new(node: usize, nodes: usize) -> io::Result<Peers> {
        let (epoll, news_event) = (Epoll::new()?, Event::new()?);
        epoll.add(news_event.raw(), false, NEWS_TOKEN)?;
        Ok(Peers {
            node,
            epoll,
            wake: Event::new()?,
            closed: AtomicBool::new(false),
            unauthenticated: AtomicU64::new(0),
            nodes_refused: AtomicU64::new(0),
            peers: (0..nodes).map(Peer::new).collect(),
            arrivals: Mutex::new(Vec::new()),
            news: AtomicUsize::new(0),
            news_event,
            up: AtomicUsize::new(0),
        })
    }

    pub(super) fn count(&self) -> usize {
        self.peers.len()
    }

    pub(super) fn is_up(&self, peer: usize) -> bool {
        self.peers.get(peer).is_some_and(|peer| peer.is_in(UP))
    }

    pub(super) fn is_lost(&self, peer: usize) -> bool {
        self.peers.get(peer).is_some_and(|peer| peer.is_in(LOST))
    }

    pub(super) fn is_absent(&self, peer: usize) -> bool {
        self.peers.get(peer).is_some_and(|peer| peer.is_in(ABSENT))
    }

    /// Whether this is a forked child, where every descriptor is closed.
    pub(super) fn is_forked(&self) -> bool {
        self.epoll.raw() < 0
    }

    pub(super) fn trouble(&self, peer: usize) -> Option<String> {
        lock(&self.peers.get(peer)?.trouble).clone()
    }

    pub(super) fn set_trouble(&self, peer: usize, trouble: Option<String>) {
        if let Some(peer) = self.peers.get(peer) {
            *lock(&peer.trouble) = trouble;
        }
    }

    #[inline]
    pub(super) fn send(&self, peer: usize, header: &[u8; HEADER_BYTES], payload: Payload<'_>) -> Result<(), SendError> {
        let bytes = payload.bytes();
        check_sendable(self.node, self.count(), peer, bytes)?;
        let to = &self.peers[peer];
        if self.closed.load(Ordering::Relaxed) || self.is_forked() {
            return Err(SendError::Closed);
        }
        let mut output = lock(&to.output);
        let queue = output.send(header, payload)?;
        to.frames_out.fetch_add(1, Ordering::Relaxed);
        to.bytes_out.fetch_add((HEADER_BYTES + bytes) as u64, Ordering::Relaxed);
        if queue == Queue::Waits {
            self.note_queue(peer, &output, queue);
        }
        Ok(())
    }

    pub(super) fn poll(&self, sink: &mut dyn Sink) -> bool {
        if self.closed.load(Ordering::Relaxed) {
            return false;
        }
        let mut came = false;
        if self.news.load(Ordering::Acquire) > 0 {
            came |= self.hear_news(sink);
        }
        if self.up.load(Ordering::Relaxed) <= ASKED_ONE_BY_ONE_MAX {
            for (index, peer) in self.peers.iter().enumerate() {
                if peer.is_in(UP) {
                    came |= self.serve(index, sink);
                }
            }
        } else {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
            let count = self.epoll.ready(&mut events);
            for event in &events[..count] {
                if event.u64 != NEWS_TOKEN {
                    came |= self.serve(event.u64 as usize, sink);
                }
            }
        }
        came
    }

    /// Installs a connection that passed the handshake; false if the peer is no longer absent.
    pub(super) fn install(&self, peer: usize, socket: Descriptor, keys: Keys) -> bool {
        let to = &self.peers[peer];
        let mut input = lock(&to.input);
        let mut output = lock(&to.output);
        if !to.is_in(ABSENT) || self.closed.load(Ordering::SeqCst) {
            return false;
        }
        let socket = Arc::new(socket);
        input.start(Arc::clone(&socket), keys.opener);
        output.start(Arc::clone(&socket), keys.sealer);
        let queue = output.flush();
        if self.epoll.add(socket.raw(), queue == Queue::Waits, peer as u64).is_err() {
            // Without readiness frames would never be noticed; a clear loss is better.
            input.loss = Some(Lost::Broken { why: "the kernel takes no more events".into() });
        }
        to.waits.store(queue == Queue::Waits, Ordering::Release);
        *lock(&to.trouble) = None;
        to.state.store(UP, Ordering::Release);
        self.up.fetch_add(1, Ordering::AcqRel);
        drop((output, input));
        self.tell(peer);
        true
    }

    /// Gives up an absent peer that will never come; the next poll reports it lost.
    pub(super) fn give_up(&self, peer: usize, why: Lost) {
        let to = &self.peers[peer];
        let mut input = lock(&to.input);
        if !to.is_in(ABSENT) {
            return;
        }
        lock(&to.output).end(why.clone());
        input.loss = Some(why);
        to.state.store(LOST, Ordering::Release);
        drop(input);
        self.tell(peer);
    }

    /// Ends a connection for a layer that found the peer lost; no sink is told.
    pub(super) fn end(&self, peer: usize, why: &Lost) {
        let mut input = lock(&self.peers[peer].input);
        input.loss_reported = true;
        input.loss.get_or_insert(why.clone());
        self.retire(peer, &mut input, why.clone());
    }

    /// Whether the other end is gone. True for a peer that is not up.
    pub(super) fn has_ended(&self, peer: usize) -> bool {
        let socket = lock(&self.peers[peer].output).socket();
        socket.is_none_or(sockets::has_ended)
    }

    pub(super) fn statistics(&self) -> LinkStatistics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut all = LinkStatistics {
            unauthenticated_refused: read(&self.unauthenticated),
            nodes_refused: read(&self.nodes_refused),
            ..LinkStatistics::default()
        };
        for peer in &self.peers {
            let one = PeerStatistics {
                frames_in: read(&peer.frames_in),
                frames_out: read(&peer.frames_out),
                bytes_in: read(&peer.bytes_in),
                bytes_out: read(&peer.bytes_out),
                queued_bytes: lock(&peer.output).held_bytes() as u64,
            };
            all.frames_in += one.frames_in;
            all.frames_out += one.frames_out;
            all.bytes_in += one.bytes_in;
            all.bytes_out += one.bytes_out;
            all.frames_refused += read(&peer.frames_refused);
            all.peers.push(one);
        }
        (all.packets_in, all.packets_out) = (all.frames_in, all.frames_out);
        all
    }

    /// Sends what waits and ends every connection. `closed` is set, so polls do nothing any more.
    ///
    /// A socket that is closed with unread bytes is reset, and a reset discards what was not acknowledged. So this
    /// waits until the peer's machine has acknowledged everything. What arrives meanwhile is discarded; otherwise two
    /// nodes that leave at once, each with a full queue, would wait for each other.
    pub(super) fn end_all(&self) {
        let (start, mut closing) = (Instant::now(), Closing::new());
        let mut leaving: Vec<(usize, bool)> =
            (0..self.count()).filter(|&peer| self.is_up(peer)).map(|peer| (peer, false)).collect();
        loop {
            let mut rest_bytes = 0;
            leaving.retain_mut(|(peer, said_so)| {
                let rest = self.leave(*peer, said_so);
                rest_bytes += rest.unwrap_or(0);
                rest.is_some()
            });
            if leaving.is_empty() || closing.is_over(rest_bytes as u64, start.elapsed()) {
                break;
            }
            let mut full: Vec<_> = leaving
                .iter()
                .filter(|(_, said_so)| !said_so)
                .filter_map(|&(peer, _)| lock(&self.peers[peer].output).socket())
                .map(|socket| libc::pollfd { fd: socket, events: libc::POLLOUT, revents: 0 })
                .collect();
            if full.is_empty() {
                // There is no event for an acknowledgement.
                std::thread::sleep(Duration::from_micros(200));
            } else {
                sockets::wait(&mut full, 2);
            }
        }
        for (index, peer) in self.peers.iter().enumerate() {
            let Some(mut input) = try_lock(&peer.input) else { continue };
            self.retire(index, &mut input, Lost::ClosedHere);
            peer.state.store(LOST, Ordering::Release);
        }
    }

    /// One step of leaving one peer; returns how many bytes are left, or `None` when it is done.
    fn leave(&self, index: usize, said_so: &mut bool) -> Option<usize> {
        let peer = &self.peers[index];
        let mut output = lock(&peer.output);
        let queue = output.flush();
        let socket = output.socket()?;
        if queue == Queue::Empty && !*said_so {
            sockets::shut_down(socket, libc::SHUT_WR);
            *said_so = true;
        }
        let unconfirmed = sockets::unconfirmed_bytes(socket);
        let rest = unconfirmed + output.unsent_bytes();
        drop(output);
        // A callback that is still running holds the receiving half; then nothing is discarded.
        let broken = try_lock(&peer.input).is_some_and(|mut input| !input.discard());
        let done = broken || (*said_so && unconfirmed == 0);
        (!done).then_some(rest)
    }

    /// One peer's share of a poll.
    #[inline]
    fn serve(&self, index: usize, sink: &mut dyn Sink) -> bool {
        let peer = &self.peers[index];
        if peer.waits.load(Ordering::Acquire) {
            self.flush(index);
        }
        let mut input = match peer.input.try_lock() {
            Ok(input) => input,
            Err(TryLockError::WouldBlock) => return false,
            Err(TryLockError::Poisoned(poisoned)) => {
                let mut input = poisoned.into_inner();
                let why = "a callback panicked in the middle of a frame".into();
                input.loss.get_or_insert(Lost::Broken { why });
                input
            }
        };
        if !peer.is_in(UP) || self.closed.load(Ordering::Relaxed) {
            return false;
        }
        input.announce(sink);
        let harvest = match input.loss.clone() {
            Some(lost) => Harvest { lost: Some(lost), ..Harvest::default() },
            None => input.receive(sink),
        };
        if harvest.frames > 0 {
            peer.frames_in.fetch_add(harvest.frames, Ordering::Relaxed);
            peer.bytes_in.fetch_add(harvest.bytes, Ordering::Relaxed);
        }
        if let Some(lost) = harvest.lost {
            peer.frames_refused.fetch_add(u64::from(harvest.refused), Ordering::Relaxed);
            self.retire(index, &mut input, lost.clone());
            input.loss_reported = true;
            sink.lost(index, &lost);
        }
        harvest.came
    }

    /// Announces peers that came up and reports those that were given up.
    #[cold]
    fn hear_news(&self, sink: &mut dyn Sink) -> bool {
        let arrivals = {
            let Some(mut arrivals) = try_lock(&self.arrivals) else { return false };
            self.news_event.drain();
            self.news.store(0, Ordering::Release);
            std::mem::take(&mut *arrivals)
        };
        let mut came = false;
        for index in arrivals {
            let peer = &self.peers[index];
            if peer.is_in(UP) {
                came |= self.serve(index, sink);
                continue;
            }
            let Some(mut input) = try_lock(&peer.input) else {
                self.tell(index);
                continue;
            };
            if let Some(lost) = input.loss.clone()
                && !input.loss_reported
            {
                input.loss_reported = true;
                sink.lost(index, &lost);
            }
        }
        came
    }

    fn tell(&self, peer: usize) {
        let mut arrivals = lock(&self.arrivals);
        arrivals.push(peer);
        self.news.store(arrivals.len(), Ordering::Release);
        self.news_event.signal();
    }

    #[cold]
    fn flush(&self, index: usize) {
        // The holder of the lock is sending and will see that something waits; the descriptor stays readable until a
        // thread has flushed.
        let Some(mut output) = try_lock(&self.peers[index].output) else { return };
        let queue = output.flush();
        self.note_queue(index, &output, queue);
    }

    /// Updates the flag and the requested events to match the queue; called under its lock.
    fn note_queue(&self, index: usize, output: &Output, queue: Queue) {
        let waits = queue == Queue::Waits;
        if self.peers[index].waits.swap(waits, Ordering::AcqRel) == waits {
            return;
        }
        if let Some(socket) = output.socket() {
            // Fails only if the connection is being retired, and then nothing waits any more.
            let _ = self.epoll.modify(socket, waits, index as u64);
        }
    }

    /// Ends a connection on this side. The caller holds the receiving half.
    fn retire(&self, index: usize, input: &mut MutexGuard<'_, Input>, why: Lost) {
        let peer = &self.peers[index];
        if peer.state.swap(LOST, Ordering::AcqRel) == UP {
            self.up.fetch_sub(1, Ordering::AcqRel);
        }
        let mut output = lock(&peer.output);
        output.end(why);
        peer.waits.store(false, Ordering::Release);
        if let Some(socket) = input.end() {
            self.epoll.remove(socket.raw());
            sockets::shut_down(socket.raw(), libc::SHUT_RDWR);
        }
    }
}

impl Peer {
    fn new(index: usize) -> Peer {
        Peer {
            state: AtomicU8::new(ABSENT),
            waits: AtomicBool::new(false),
            input: Mutex::new(Input::new(index)),
            output: Mutex::new(Output::new(index)),
            trouble: Mutex::new(None),
            frames_in: AtomicU64::new(0),
            frames_out: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            frames_refused: AtomicU64::new(0),
        }
    }

    #[inline]
    fn is_in(&self, state: u8) -> bool {
        self.state.load(Ordering::Acquire) == state
    }
}

/// Locks ignore poisoning: no holder leaves a state from which another thread could not continue, except in a
/// receiving half, which handles a panic itself.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
