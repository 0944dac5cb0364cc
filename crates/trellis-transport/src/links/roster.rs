//! The peers of a link: the stage of each, its counters, why it is not up, and which peers have news for the sink.
//!
//! Promises: a peer goes from absent to up to lost, or from absent to lost, and never back. A poll without news takes
//! no lock. It must never send, receive or connect; what a link needs for that is its own part of each peer.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::descriptors::{Epoll, Event};
use super::{LinkStatistics, Lost, PeerStatistics, Sink};
use crate::HEADER_BYTES;

/// The maximum number of peers that are served one by one. For more, it is cheaper to ask epoll which are ready.
const ASKED_ONE_BY_ONE_MAX: usize = 2;

const ABSENT: u8 = 0;
const UP: u8 = 1;
const LOST: u8 = 2;

/// The stage of a peer.
#[derive(Debug, Default)]
pub(super) struct Stage(AtomicU8);

impl Stage {
    #[inline]
    pub(super) fn is_absent(&self) -> bool {
        self.0.load(Ordering::Acquire) == ABSENT
    }

    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.0.load(Ordering::Acquire) == UP
    }

    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        self.0.load(Ordering::Acquire) == LOST
    }

    pub(super) fn come_up(&self) {
        self.0.store(UP, Ordering::Release);
    }

    /// Makes the peer lost. Returns whether it was up.
    pub(super) fn lose(&self) -> bool {
        self.0.swap(LOST, Ordering::AcqRel) == UP
    }
}

/// What a poll of one peer brought.
#[derive(Default)]
pub(super) struct Harvest {
    /// Whether any part of a frame arrived.
    pub(super) came: bool,
    pub(super) frames: u64,
    pub(super) bytes: u64,
    pub(super) lost: Option<Lost>,
    pub(super) refused: bool,
}

impl Harvest {
    /// A whole frame arrived.
    #[inline]
    pub(super) fn count(&mut self, body_bytes: usize) {
        self.came = true;
        self.frames += 1;
        self.bytes += (HEADER_BYTES + body_bytes) as u64;
    }
}

/// Counters of the frames between this node and a peer. Bytes count headers and bodies.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    frames_in: AtomicU64,
    frames_out: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    frames_refused: AtomicU64,
}

impl Traffic {
    /// Counts a frame that `send` took.
    #[inline]
    pub(super) fn sent(&self, body_bytes: usize) {
        self.frames_out.fetch_add(1, Ordering::Relaxed);
        self.bytes_out.fetch_add((HEADER_BYTES + body_bytes) as u64, Ordering::Relaxed);
    }

    /// Takes back the counts of frames that were taken and go another way.
    pub(super) fn unsent(&self, frames: u64, bytes: u64) {
        self.frames_out.fetch_sub(frames, Ordering::Relaxed);
        self.bytes_out.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts a frame that was received whole.
    #[inline]
    pub(super) fn received(&self, body_bytes: usize) {
        self.received_many(1, (HEADER_BYTES + body_bytes) as u64);
    }

    /// Counts frames that were received whole, with their bytes of headers and bodies.
    #[inline]
    pub(super) fn received_many(&self, frames: u64, bytes: u64) {
        if frames > 0 {
            self.frames_in.fetch_add(frames, Ordering::Relaxed);
            self.bytes_in.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Counts a refused frame.
    pub(super) fn refused(&self) {
        self.frames_refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn frames_refused(&self) -> u64 {
        self.frames_refused.load(Ordering::Relaxed)
    }

    /// All counters except the bytes that wait.
    pub(super) fn read(&self) -> PeerStatistics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PeerStatistics {
            frames_in: read(&self.frames_in),
            frames_out: read(&self.frames_out),
            bytes_in: read(&self.bytes_in),
            bytes_out: read(&self.bytes_out),
            queued_bytes: 0,
        }
    }
}

impl LinkStatistics {
    /// Appends a peer, and adds it to the totals.
    pub(super) fn add_peer(&mut self, peer: PeerStatistics, frames_refused: u64) {
        self.frames_in += peer.frames_in;
        self.frames_out += peer.frames_out;
        self.bytes_in += peer.bytes_in;
        self.bytes_out += peer.bytes_out;
        self.frames_refused += frames_refused;
        self.peers.push(peer);
    }
}

/// A peer, with what its link needs to send to it and to receive from it.
pub(super) struct Peer<T> {
    pub(super) stage: Stage,
    pub(super) traffic: Traffic,
    /// Why the peer is not up.
    trouble: Mutex<Option<String>>,
    pub(super) own: T,
}

/// The peers of a link; see the module text.
pub(super) struct Roster<T> {
    pub(super) node: usize,
    /// Readable when a poll would do something.
    pub(super) epoll: Epoll,
    /// Wakes the acceptor.
    pub(super) wake: Event,
    pub(super) closed: AtomicBool,
    pub(super) unauthenticated: AtomicU64,
    pub(super) nodes_refused: AtomicU64,
    pub(super) peers: Vec<Peer<T>>,
    /// Peers that came up or were given up since the last poll; `news` is their number.
    arrivals: Mutex<Vec<usize>>,
    news: AtomicUsize,
    news_event: Event,
    up: AtomicUsize,
}

impl<T> Roster<T> {
    /// Makes a roster in which all peers are absent. `news_token` is the token of news in the descriptor for polls.
    pub(super) fn new(node: usize, nodes: usize, news_token: u64, own: impl Fn(usize) -> T) -> io::Result<Roster<T>> {
        let (epoll, news_event) = (Epoll::new()?, Event::new()?);
        epoll.add(news_event.descriptor(), false, news_token)?;
        let peer = |index| Peer {
            stage: Stage::default(),
            traffic: Traffic::default(),
            trouble: Mutex::new(None),
            own: own(index),
        };
        Ok(Roster {
            node,
            epoll,
            wake: Event::new()?,
            closed: AtomicBool::new(false),
            unauthenticated: AtomicU64::new(0),
            nodes_refused: AtomicU64::new(0),
            peers: (0..nodes).map(peer).collect(),
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
        self.peers.get(peer).is_some_and(|peer| peer.stage.is_up())
    }

    pub(super) fn is_lost(&self, peer: usize) -> bool {
        self.peers.get(peer).is_some_and(|peer| peer.stage.is_lost())
    }

    pub(super) fn is_absent(&self, peer: usize) -> bool {
        self.peers.get(peer).is_some_and(|peer| peer.stage.is_absent())
    }

    /// Whether so few peers are up that each is served in every poll.
    #[inline]
    pub(super) fn serves_all(&self) -> bool {
        self.up.load(Ordering::Relaxed) <= ASKED_ONE_BY_ONE_MAX
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

    /// Marks an absent peer as up.
    pub(super) fn come_up(&self, peer: usize) {
        self.set_trouble(peer, None);
        self.peers[peer].stage.come_up();
        self.up.fetch_add(1, Ordering::AcqRel);
    }

    /// Marks a peer as lost.
    pub(super) fn lose(&self, peer: usize) {
        if self.peers[peer].stage.lose() {
            self.up.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Makes the next poll look at a peer.
    pub(super) fn tell(&self, peer: usize) {
        let mut arrivals = lock(&self.arrivals);
        arrivals.push(peer);
        self.news.store(arrivals.len(), Ordering::Release);
        self.news_event.signal();
    }

    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.news.load(Ordering::Acquire) > 0
    }

    /// Announces peers that came up, which `serve` then serves, and reports those that were given up. `unreported` is the loss
    /// of a peer if it was not reported, and `None` while another thread uses the peer.
    #[cold]
    pub(super) fn hear_news(
        &self,
        sink: &mut dyn Sink,
        serve: impl Fn(usize, &mut dyn Sink) -> bool,
        unreported: impl Fn(&T) -> Option<Option<Lost>>,
    ) -> bool {
        let mut came = false;
        for index in self.take_news() {
            let peer = &self.peers[index];
            if peer.stage.is_up() {
                came |= serve(index, sink);
                continue;
            }
            match unreported(&peer.own) {
                Some(Some(lost)) => sink.lost(index, &lost),
                Some(None) => {}
                None => self.tell(index),
            }
        }
        came
    }

    /// Takes the peers that a poll has to look at; none while another thread takes or adds some.
    fn take_news(&self) -> Vec<usize> {
        let Some(mut arrivals) = try_lock(&self.arrivals) else { return Vec::new() };
        self.news_event.drain();
        self.news.store(0, Ordering::Release);
        std::mem::take(&mut *arrivals)
    }

    /// The counters of refusals, which all links have.
    pub(super) fn statistics(&self) -> LinkStatistics {
        LinkStatistics {
            unauthenticated_refused: self.unauthenticated.load(Ordering::Relaxed),
            nodes_refused: self.nodes_refused.load(Ordering::Relaxed),
            ..LinkStatistics::default()
        }
    }
}

/// Locks ignore poisoning: no holder leaves a state from which another thread could not continue, except in a
/// receiving half, which handles a panic itself.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A loss, if it was not reported; from now on it is.
pub(super) fn unreported(loss: &Option<Lost>, is_reported: &mut bool) -> Option<Lost> {
    let lost = loss.clone().filter(|_| !*is_reported)?;
    *is_reported = true;
    Some(lost)
}

pub(super) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::descriptors::NO_EVENT;
    use super::*;

    #[test]
    fn a_peer_comes_up_and_is_lost_once() {
        let roster = Roster::new(0, 4, 0, |_| ()).expect("descriptors");
        assert!(roster.is_absent(1) && roster.serves_all() && !roster.is_up(9) && !roster.is_lost(9));
        roster.set_trouble(1, Some("it does not answer".to_owned()));
        (1..4).for_each(|peer| roster.come_up(peer));
        assert!(roster.is_up(1) && roster.trouble(1).is_none() && !roster.serves_all());
        roster.lose(1);
        roster.lose(1);
        assert!(roster.is_lost(1) && roster.serves_all(), "two are up");
        roster.lose(0);
        roster.lose(2);
        roster.lose(3);
        assert!(roster.serves_all(), "one that was never up is not counted");
    }

    #[test]
    fn news_is_taken_once() {
        let roster = Roster::new(0, 3, 7, |_| ()).expect("descriptors");
        let ready = || roster.epoll.ready(&mut [NO_EVENT; 2]);
        assert!(!roster.has_news() && ready() == 0);
        roster.tell(1);
        roster.tell(2);
        assert!(roster.has_news() && ready() == 1);
        assert_eq!(roster.take_news(), [1, 2]);
        assert!(!roster.has_news() && ready() == 0 && roster.take_news().is_empty());
    }

    #[test]
    fn totals_are_the_sums_of_peers() {
        let (one, other) = (Traffic::default(), Traffic::default());
        one.sent(10);
        one.received(0);
        other.received_many(3, 500);
        other.received_many(0, 0);
        other.refused();
        let mut all = LinkStatistics::default();
        all.add_peer(one.read(), one.frames_refused());
        all.add_peer(other.read(), other.frames_refused());
        let header = HEADER_BYTES as u64;
        assert_eq!((all.frames_in, all.frames_out, all.frames_refused), (4, 1, 1));
        assert_eq!((all.bytes_in, all.bytes_out, all.peers.len()), (header + 500, header + 10, 2));
        one.unsent(1, header + 10);
        assert_eq!((one.read().frames_out, one.read().bytes_out), (0, 0));
    }
}
