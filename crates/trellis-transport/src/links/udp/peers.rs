//! All peers of one node, with the two halves of each, and the timer.
//!
//! Promises: the sink is told once of each step from absent to up to lost. A thread that polls does what is due by the
//! clock: the descriptor is readable then.
//!
//! It must never connect (the acceptor does, and hands the connection to [`Peers::install`]).

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use super::datagram::{Introduction, Reader, Writer};
use super::delivery::{Arrival, Nanoseconds};
use super::input::{CONFIRMATION_DATAGRAM_BYTES, Input, Overheard, Step};
use super::multicast::Group;
use super::output::Output;
use super::sockets::{self, Wire};
use super::timer::{self, Timer};
use crate::HEADER_BYTES;
use crate::links::descriptors::NO_EVENT;
use crate::links::roster::{self, Harvest, Roster, lock, try_lock};
use crate::links::{LinkStatistics, Lost, Payload, PeerStatistics, SendError, Sink, check_sendable};
use crate::wrap::secure::Keys;

/// Maximum datagrams of one peer in one poll, so that a fast peer does not starve the others.
const RECEIVES_PER_POLL_MAX: usize = 32;
/// The pause before another attempt to serve a peer whose receiving half was busy.
const AGAIN_NS: Nanoseconds = 1_000_000;
/// Farewells to a peer that does not know yet that it is lost, so that one of them arrives.
const FAREWELLS: usize = 5;
const NEWS_TOKEN: u64 = u64::MAX;
const TIMER_TOKEN: u64 = u64::MAX - 1;
const NEVER: Nanoseconds = Nanoseconds::MAX;
/// Marks a peer that received multicasts once and no longer does, or that is lost.
const DEAF: usize = usize::MAX;

/// All peers of a node; see the module text.
pub(super) struct Peers {
    pub(super) roster: Roster<Halves>,
    pub(super) timer: Timer,
    pub(super) group: Group,
}

pub(super) struct Halves {
    /// Whether the socket is full and something waits; changed only under the lock of `output`.
    waits: AtomicBool,
    /// Whether an authentic datagram has arrived.
    heard: AtomicBool,
    pub(super) input: Mutex<Input>,
    pub(super) output: Mutex<Output>,
    pub(super) packets_in: AtomicU64,
    packets_duplicate: AtomicU64,
    packets_refused: AtomicU64,
    /// The longest datagram on the path to it if it receives this node's multicasts; otherwise 0, or [`DEAF`].
    hears: AtomicUsize,
}

/// The two sources of datagrams from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Datagrams for this node only.
    Connection,
    /// Datagrams for several nodes.
    Multicasts,
}

/// A connection that passed the handshake.
pub(super) struct Established {
    pub(super) wire: Arc<Wire>,
    pub(super) address: SocketAddr,
    pub(super) keys: Keys,
    /// The peer's last message of the handshake, if it dialled.
    pub(super) confirmation: Option<[u8; CONFIRMATION_DATAGRAM_BYTES]>,
}

impl Established {
    /// Both directions derive their epochs from the hash of the handshake. The topmost bit is set, so that none is
    /// taken for a message of a handshake.
    fn halves(keys: Keys, dialled_here: bool) -> (Writer, Reader) {
        let word = |at: usize| {
            let bytes: [u8; 8] = keys.exchange[at..at + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes) | 1 << 63
        };
        let (from_dialler, from_listener) = (word(0), word(8));
        let (outward, inward) =
            if dialled_here { (from_dialler, from_listener) } else { (from_listener, from_dialler) };
        (Writer::new(outward, keys.sealer.into_cipher()), Reader::new(inward, keys.opener.into_cipher()))
    }
}

impl Peers {
    pub(super) fn new(node: usize, nodes: usize, group: Group) -> io::Result<Peers> {
        let (roster, timer) = (Roster::new(node, nodes, NEWS_TOKEN, Halves::new)?, Timer::new()?);
        roster.epoll.add(timer.descriptor(), false, TIMER_TOKEN)?;
        Ok(Peers { roster, timer, group })
    }

    /// Whether a datagram has arrived from this peer; a peer that this node dialled then knows that it is up.
    pub(super) fn was_heard(&self, peer: usize) -> bool {
        self.roster.peers[peer].own.heard.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn send(&self, peer: usize, header: &[u8; HEADER_BYTES], payload: Payload<'_>) -> Result<(), SendError> {
        let bytes = payload.bytes();
        check_sendable(self.roster.node, self.roster.count(), peer, bytes)?;
        let to = &self.roster.peers[peer];
        if self.roster.closed.load(Ordering::Relaxed) || self.roster.is_forked() {
            return Err(SendError::Closed);
        }
        let mut output = lock(&to.own.output);
        output.send(timer::now, header, payload)?;
        to.traffic.sent(bytes);
        self.note(peer, output);
        Ok(())
    }

    /// The longest datagram on the path to a peer that receives this node's multicasts.
    #[inline]
    pub(super) fn hears_bytes(&self, peer: usize) -> Option<usize> {
        match self.roster.peers.get(peer)?.own.hears.load(Ordering::Acquire) {
            0 | DEAF => None,
            bytes => Some(bytes),
        }
    }

    pub(super) fn poll(&self, sink: &mut dyn Sink) -> bool {
        if self.roster.closed.load(Ordering::Relaxed) {
            return false;
        }
        let now = timer::now();
        let mut came = false;
        if self.roster.has_news() {
            came |=
                self.roster.hear_news(sink, |index, sink| self.serve(index, Source::Connection, now, sink), unreported);
        }
        if self.timer.is_due(now) {
            came |= self.serve_timer(now, sink);
        }
        let is_listening = self.group.is_listening.load(Ordering::Relaxed);
        if self.roster.serves_all() && !is_listening {
            for (index, peer) in self.roster.peers.iter().enumerate() {
                if peer.stage.is_up() {
                    came |= self.serve(index, Source::Connection, now, sink);
                }
            }
            return came;
        }
        let nodes = self.roster.count() as u64;
        let mut events = [NO_EVENT; 64];
        let count = self.roster.epoll.ready(&mut events);
        if is_listening {
            // Multicasts are received first: a later datagram for this node alone would make an earlier multicast seem
            // lost.
            for event in &events[..count] {
                if (nodes..2 * nodes).contains(&event.data.u64()) {
                    came |= self.serve((event.data.u64() - nodes) as usize, Source::Multicasts, now, sink);
                }
            }
        }
        for event in &events[..count] {
            if event.data.u64() < nodes {
                came |= self.serve(event.data.u64() as usize, Source::Connection, now, sink);
            }
        }
        came
    }

    /// Installs a connection that passed the handshake; false if the peer is no longer absent.
    pub(super) fn install(&self, peer: usize, established: Established) -> bool {
        let to = &self.roster.peers[peer];
        let mut input = lock(&to.own.input);
        let mut output = lock(&to.own.output);
        if !to.stage.is_absent() || self.roster.closed.load(Ordering::SeqCst) {
            return false;
        }
        let Established { wire, address, keys, confirmation } = established;
        let (writer, reader) = Established::halves(keys, confirmation.is_none());
        input.start(Arc::clone(&wire), reader, confirmation);
        output.start(timer::now(), Arc::clone(&wire), writer, address);
        if self.roster.epoll.add(&wire.socket, false, peer as u64).is_err() {
            // Without readiness frames would never be noticed; a clear loss is better.
            input.loss = Some(Lost::Broken { why: "the kernel takes no more events".into() });
        }
        self.roster.come_up(peer);
        self.note(peer, output);
        drop(input);
        self.meet(peer, sockets::local_v4(&wire.socket));
        self.roster.tell(peer);
        true
    }

    /// Gives up an absent peer that will never come; the next poll reports it lost.
    pub(super) fn give_up(&self, peer: usize, why: Lost) {
        let to = &self.roster.peers[peer];
        let mut input = lock(&to.own.input);
        if !to.stage.is_absent() {
            return;
        }
        lock(&to.own.output).end(why.clone());
        input.loss = Some(why);
        self.roster.lose(peer);
        drop(input);
        self.roster.tell(peer);
    }

    pub(super) fn statistics(&self) -> LinkStatistics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut all = self.roster.statistics();
        for entry in &self.roster.peers {
            let peer = &entry.own;
            let output = lock(&peer.output);
            let (counts, resent, repaired) = output.counts();
            let one = PeerStatistics { queued_bytes: output.held_bytes() as u64, ..entry.traffic.read() };
            all.add_peer(one, entry.traffic.frames_refused());
            all.packets_in += read(&peer.packets_in);
            all.packets_out += counts.datagrams;
            all.packets_resent += resent;
            all.packets_acknowledging += counts.acknowledgements;
            all.packets_duplicate += read(&peer.packets_duplicate);
            all.packets_refused += read(&peer.packets_refused);
            all.multicast_negative += counts.negative;
            all.multicast_repaired += repaired;
        }
        all.multicast_out = read(&self.group.packets_out);
        all.multicast_in = read(&self.group.packets_in);
        all.multicast_peers = (0..self.roster.count()).filter(|&peer| self.hears_bytes(peer).is_some()).count() as u64;
        all.packets_out += all.multicast_out;
        all.packets_in += all.multicast_in;
        all.packets_refused += read(&self.group.packets_refused);
        all
    }

    /// One peer's share of a poll.
    #[inline]
    fn serve(&self, index: usize, source: Source, now: Nanoseconds, sink: &mut dyn Sink) -> bool {
        let peer = &self.roster.peers[index];
        if peer.own.waits.load(Ordering::Acquire)
            && let Some(mut output) = try_lock(&peer.own.output)
        {
            output.flush(now);
            self.note(index, output);
        }
        let mut input = match peer.own.input.try_lock() {
            Ok(input) => input,
            Err(TryLockError::WouldBlock) => return false,
            Err(TryLockError::Poisoned(poisoned)) => {
                let mut input = poisoned.into_inner();
                let why = "a callback panicked in the middle of a frame".into();
                input.loss.get_or_insert(Lost::Broken { why });
                input
            }
        };
        if !peer.stage.is_up() || self.roster.closed.load(Ordering::Relaxed) {
            return false;
        }
        input.announce(sink);
        let mut harvest = Harvest { lost: input.loss.clone(), ..Harvest::default() };
        if harvest.lost.is_none() {
            self.receive(index, source, now, &mut input, sink, &mut harvest);
        }
        peer.traffic.received_many(harvest.frames, harvest.bytes);
        if let Some(lost) = harvest.lost {
            if harvest.refused {
                peer.traffic.refused();
            }
            self.retire(index, &mut input, lost.clone());
            input.loss_reported = true;
            sink.lost(index, &lost);
        }
        harvest.came
    }

    /// Receives what has arrived, within the bounds of one poll. A complete frame ends it: the caller most likely
    /// waits for just this frame, and a call to learn that there is nothing more would delay it.
    #[inline]
    fn receive(
        &self,
        index: usize,
        source: Source,
        now: Nanoseconds,
        input: &mut MutexGuard<'_, Input>,
        sink: &mut dyn Sink,
        harvest: &mut Harvest,
    ) {
        let peer = &self.roster.peers[index].own;
        let mut has_work = false;
        for _ in 0..RECEIVES_PER_POLL_MAX {
            let received = match source {
                Source::Connection => self.receive_one(index, now, input, sink, harvest, &mut has_work),
                Source::Multicasts => self.overhear_one(index, now, input, sink, harvest, &mut has_work),
            };
            match received {
                Ok(true) => {}
                Ok(false) => break,
                Err(lost) => {
                    harvest.lost = Some(lost);
                    return;
                }
            }
        }
        if has_work {
            let mut output = lock(&peer.output);
            output.flush(now);
            self.note(index, output);
        }
        if self.group.is_waiting.load(Ordering::Acquire) {
            self.go_on(now);
        }
    }

    /// Handles one datagram; returns whether there may be more worth a call.
    #[inline]
    fn receive_one(
        &self,
        index: usize,
        now: Nanoseconds,
        input: &mut MutexGuard<'_, Input>,
        sink: &mut dyn Sink,
        harvest: &mut Harvest,
        has_work: &mut bool,
    ) -> Result<bool, Lost> {
        let peer = &self.roster.peers[index].own;
        let (content, range) = match input.receive() {
            Step::Datagram(content, range) => (content, range),
            Step::Nothing => return Ok(false),
            Step::Handshake => return Ok(true),
            Step::Failed(lost) => return Err(lost),
            Step::Foreign => {
                peer.packets_refused.fetch_add(1, Ordering::Relaxed);
                return Ok(true);
            }
            Step::NobodyThere => {
                let mut output = lock(&peer.output);
                output.nobody_there(now);
                let doom = output.doom.clone();
                self.note(index, output);
                return doom.map_or(Ok(true), Err);
            }
            Step::Confirmation => {
                lock(&peer.output).owe_word(now, input.acknowledgement());
                *has_work = true;
                return Ok(true);
            }
        };
        peer.packets_in.fetch_add(1, Ordering::Relaxed);
        if !peer.heard.load(Ordering::Relaxed) {
            peer.heard.store(true, Ordering::Release);
        }
        let arrival = content.fragment.as_ref().map(|(fragment, _)| input.accept(fragment, range.len()));
        let mut output = lock(&peer.output);
        let heard = output.heard(now, &content, arrival, input.acknowledgement());
        if content.heard {
            self.note_hearing(index, true, output.misses(), output.datagram_bytes());
        }
        *has_work |= output.has_work(now);
        if !*has_work {
            // In the other case, something is sent below, and the timer is set after that.
            self.timer.set_by(output.due());
        }
        drop(output);
        if heard.is_err() {
            harvest.refused = true;
            return Err(Lost::FrameRefused { why: "it acknowledges what was never sent".to_owned() });
        }
        if let Some(introduction) = &content.introduction {
            self.heed(index, introduction, input);
        }
        let mut complete = false;
        if let (Some((fragment, header)), Some(arrival)) = (&content.fragment, arrival) {
            if arrival == Arrival::Duplicate {
                peer.packets_duplicate.fetch_add(1, Ordering::Relaxed);
            }
            complete = input.take(fragment, header, arrival, range, sink, harvest)?;
        }
        match content.bye {
            Some(count) if input.has_all(count) => Err(Lost::Ended),
            Some(_) => Err(Lost::Truncated),
            None => Ok(!complete),
        }
    }

    /// Handles one multicast of a peer; returns whether there may be more.
    fn overhear_one(
        &self,
        index: usize,
        now: Nanoseconds,
        input: &mut MutexGuard<'_, Input>,
        sink: &mut dyn Sink,
        harvest: &mut Harvest,
        has_work: &mut bool,
    ) -> Result<bool, Lost> {
        let peer = &self.roster.peers[index].own;
        let (heard, range) = match input.overhear() {
            Overheard::Datagram(heard, range) => (heard, range),
            Overheard::Nothing => return Ok(false),
            Overheard::Foreign => {
                self.group.packets_refused.fetch_add(1, Ordering::Relaxed);
                return Ok(true);
            }
        };
        self.group.packets_in.fetch_add(1, Ordering::Relaxed);
        let number = heard.number.map(|low| input.widen(low));
        let mut fragment = heard.fragment;
        let mut arrival = None;
        match (&mut fragment, number) {
            (Some((fragment, _)), Some(number)) => {
                fragment.sequence = number;
                arrival = Some(input.accept(fragment, range.len()));
            }
            (None, Some(number)) if input.note_report(number).is_err() => {
                harvest.refused = true;
                return Err(Lost::FrameRefused { why: "it says that it sent what it cannot have sent".to_owned() });
            }
            _ => {}
        }
        let mut output = lock(&peer.output);
        output.heard_multicast(now, heard.prompt && number.is_some(), arrival, input.acknowledgement());
        *has_work |= output.has_work(now);
        if !*has_work {
            self.timer.set_by(output.due());
        }
        drop(output);
        if let (Some((fragment, header)), Some(arrival)) = (&fragment, arrival) {
            if arrival == Arrival::Duplicate {
                peer.packets_duplicate.fetch_add(1, Ordering::Relaxed);
            }
            input.take(fragment, header, arrival, range, sink, harvest)?;
        }
        // All waiting multicasts are received; otherwise a datagram for this node alone would seem to have overtaken
        // the rest.
        Ok(true)
    }

    /// Listens to the multicasts of a peer that tells where they go.
    #[cold]
    fn heed(&self, index: usize, introduction: &Introduction, input: &mut MutexGuard<'_, Input>) {
        let Some(interface) = input.may_listen() else { return };
        let Some((socket, reader)) = self.listen(index, introduction, interface) else { return };
        if self.roster.epoll.add(&socket, false, (self.roster.count() + index) as u64).is_ok() {
            input.listen(socket, reader);
            self.group.is_listening.store(true, Ordering::Relaxed);
        }
    }

    /// Does what is due by the clock, for all peers.
    #[cold]
    fn serve_timer(&self, now: Nanoseconds, sink: &mut dyn Sink) -> bool {
        if !self.timer.begin(now) {
            return false;
        }
        let mut came = false;
        let mut next = self.serve_group(now);
        for (index, peer) in self.roster.peers.iter().enumerate().filter(|(_, peer)| peer.stage.is_up()) {
            let peer = &peer.own;
            let mut output = lock(&peer.output);
            output.tick(now);
            let (doom, wire) = (output.doom.clone(), output.wire());
            next = next.min(output.due());
            self.note(index, output);
            if let Some(wire) = wire {
                wire.release(now);
                next = next.min(wire.due().unwrap_or(NEVER));
            }
            let Some(doom) = doom else { continue };
            match try_lock(&peer.input) {
                Some(mut input) => {
                    input.loss.get_or_insert(doom);
                    drop(input);
                    came |= self.serve(index, Source::Connection, now, sink);
                }
                None => next = next.min(now + AGAIN_NS),
            }
        }
        self.timer.set_by(next.max(now + 1));
        came
    }

    /// Updates the timer, the flag and the requested events after any use of a sending half.
    #[inline]
    pub(super) fn note(&self, index: usize, output: MutexGuard<'_, Output>) {
        self.timer.set_by(output.due());
        let full = output.is_full();
        if self.roster.peers[index].own.waits.load(Ordering::Relaxed) != full {
            self.roster.peers[index].own.waits.store(full, Ordering::Release);
            if let Some(socket) = output.socket() {
                // This fails only if the connection is being retired, and then nothing waits any more.
                let _ = self.roster.epoll.modify(socket, full, index as u64);
            }
        }
    }

    /// Ends a connection on this side. The caller holds the receiving half.
    pub(super) fn retire(&self, index: usize, input: &mut MutexGuard<'_, Input>, why: Lost) {
        self.roster.lose(index);
        let peer = &self.roster.peers[index].own;
        let mut output = lock(&peer.output);
        let farewells = match why {
            // The peer was told in `close`.
            Lost::ClosedHere => 0,
            // The peer left. At most, it still needs to know that this node knows.
            Lost::Ended | Lost::Truncated => 1,
            _ => FAREWELLS,
        };
        (0..farewells).for_each(|_| output.say_bye(timer::now()));
        output.end(why);
        peer.waits.store(false, Ordering::Release);
        peer.set_hears(None, true);
        drop(output);
        if let Some((wire, multicasts)) = input.end() {
            self.roster.epoll.remove(&wire.socket);
            if let Some(socket) = multicasts {
                self.roster.epoll.remove(&socket);
            }
        }
    }
}

impl Halves {
    fn new(index: usize) -> Halves {
        Halves {
            waits: AtomicBool::new(false),
            heard: AtomicBool::new(false),
            input: Mutex::new(Input::new(index)),
            output: Mutex::new(Output::new(index)),
            packets_in: AtomicU64::new(0),
            packets_duplicate: AtomicU64::new(0),
            packets_refused: AtomicU64::new(0),
            hears: AtomicUsize::new(0),
        }
    }

    /// Notes whether the peer receives this node's multicasts; once it no longer does, that is final.
    pub(super) fn set_hears(&self, datagram_bytes: Option<usize>, is_deaf: bool) {
        let bytes = if is_deaf { DEAF } else { datagram_bytes.unwrap_or(0) };
        if self.hears.load(Ordering::Relaxed) != DEAF {
            self.hears.store(bytes, Ordering::Release);
        }
    }
}

/// The loss of a peer, if it was not reported; `None` while another thread has its receiving half.
fn unreported(peer: &Halves) -> Option<Option<Lost>> {
    let input = &mut *try_lock(&peer.input)?;
    Some(roster::unreported(&input.loss, &mut input.loss_reported))
}
