//! All peers of one node, with the two halves of each.
//!
//! Promises: the sink is told once of each step from absent to up to lost.
//!
//! It must never connect (the acceptor does, and hands the connection to [`Peers::install`]).

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::net::Shutdown;

use super::input::Input;
use super::output::{Output, Queue};
use super::sockets;
use crate::HEADER_BYTES;
use crate::links::descriptors::{Descriptor, NO_EVENT};
use crate::links::roster::{self, Harvest, Roster, lock, try_lock};
use crate::links::waits::Closing;
use crate::links::{LinkStatistics, Lost, Payload, PeerStatistics, SendError, Sink, check_sendable};
use crate::wrap::secure::Keys;

const NEWS_TOKEN: u64 = u64::MAX;

/// All peers of a node; see the module text.
pub(super) struct Peers {
    pub(super) roster: Roster<Halves>,
}

pub(super) struct Halves {
    /// Whether something waits in `output`; changed only under its lock.
    waits: AtomicBool,
    input: Mutex<Input>,
    output: Mutex<Output>,
}

impl Peers {
    pub(super) fn new(node: usize, nodes: usize) -> io::Result<Peers> {
        let halves = |index| Halves {
            waits: AtomicBool::new(false),
            input: Mutex::new(Input::new(index)),
            output: Mutex::new(Output::new(index)),
        };
        Ok(Peers { roster: Roster::new(node, nodes, NEWS_TOKEN, halves)? })
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
        let queue = output.send(header, payload)?;
        to.traffic.sent(bytes);
        if queue == Queue::Waits {
            self.note_queue(peer, &output, queue);
        }
        Ok(())
    }

    pub(super) fn poll(&self, sink: &mut dyn Sink) -> bool {
        if self.roster.closed.load(Ordering::Relaxed) {
            return false;
        }
        let mut came = false;
        if self.roster.has_news() {
            came |= self.roster.hear_news(sink, |index, sink| self.serve(index, sink), unreported);
        }
        if self.roster.serves_all() {
            for (index, peer) in self.roster.peers.iter().enumerate() {
                if peer.stage.is_up() {
                    came |= self.serve(index, sink);
                }
            }
        } else {
            let mut events = [NO_EVENT; 64];
            let count = self.roster.epoll.ready(&mut events);
            for event in &events[..count] {
                if event.data.u64() != NEWS_TOKEN {
                    came |= self.serve(event.data.u64() as usize, sink);
                }
            }
        }
        came
    }

    /// Installs a connection that passed the handshake; false if the peer is no longer absent.
    pub(super) fn install(&self, peer: usize, socket: Descriptor, keys: Keys) -> bool {
        let to = &self.roster.peers[peer];
        let mut input = lock(&to.own.input);
        let mut output = lock(&to.own.output);
        if !to.stage.is_absent() || self.roster.closed.load(Ordering::SeqCst) {
            return false;
        }
        let socket = Arc::new(socket);
        input.start(Arc::clone(&socket), keys.opener);
        output.start(Arc::clone(&socket), keys.sealer);
        let queue = output.flush();
        if self.roster.epoll.add(&socket, queue == Queue::Waits, peer as u64).is_err() {
            // Without readiness frames would never be noticed; a clear loss is better.
            input.loss = Some(Lost::Broken { why: "the kernel takes no more events".into() });
        }
        to.own.waits.store(queue == Queue::Waits, Ordering::Release);
        self.roster.come_up(peer);
        drop((output, input));
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

    /// Ends a connection for a layer that found the peer lost; no sink is told.
    pub(super) fn end(&self, peer: usize, why: &Lost) {
        let mut input = lock(&self.roster.peers[peer].own.input);
        input.loss_reported = true;
        input.loss.get_or_insert(why.clone());
        self.retire(peer, &mut input, why.clone());
    }

    /// Whether the other end is gone. True for a peer that is not up.
    pub(super) fn has_ended(&self, peer: usize) -> bool {
        let socket = lock(&self.roster.peers[peer].own.output).socket().cloned();
        socket.is_none_or(|socket| sockets::has_ended(&socket))
    }

    pub(super) fn statistics(&self) -> LinkStatistics {
        let mut all = self.roster.statistics();
        for peer in &self.roster.peers {
            let queued_bytes = lock(&peer.own.output).held_bytes() as u64;
            let one = PeerStatistics { queued_bytes, ..peer.traffic.read() };
            all.add_peer(one, peer.traffic.frames_refused());
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
            (0..self.roster.count()).filter(|&peer| self.roster.is_up(peer)).map(|peer| (peer, false)).collect();
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
            let full: Vec<_> = leaving
                .iter()
                .filter(|(_, said_so)| !said_so)
                .filter_map(|&(peer, _)| lock(&self.roster.peers[peer].own.output).socket().cloned())
                .collect();
            if full.is_empty() {
                // There is no event for an acknowledgement.
                std::thread::sleep(Duration::from_micros(200));
            } else {
                let full: Vec<_> = full.iter().map(|socket| (&**socket, PollFlags::OUT)).collect();
                sockets::wait(&full, 2);
            }
        }
        for (index, peer) in self.roster.peers.iter().enumerate() {
            let Some(mut input) = try_lock(&peer.own.input) else { continue };
            self.retire(index, &mut input, Lost::ClosedHere);
        }
    }

    /// One step of leaving one peer; returns how many bytes are left, or `None` when it is done.
    fn leave(&self, index: usize, said_so: &mut bool) -> Option<usize> {
        let peer = &self.roster.peers[index].own;
        let mut output = lock(&peer.output);
        let queue = output.flush();
        let socket = output.socket()?;
        if queue == Queue::Empty && !*said_so {
            sockets::shut_down(socket, Shutdown::Write);
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
        let peer = &self.roster.peers[index];
        if peer.own.waits.load(Ordering::Acquire) {
            self.flush(index);
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
        let harvest = match input.loss.clone() {
            Some(lost) => Harvest { lost: Some(lost), ..Harvest::default() },
            None => input.receive(sink),
        };
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

    #[cold]
    fn flush(&self, index: usize) {
        // The holder of the lock is sending and will see that something waits; the descriptor stays readable until a
        // thread has flushed.
        let Some(mut output) = try_lock(&self.roster.peers[index].own.output) else { return };
        let queue = output.flush();
        self.note_queue(index, &output, queue);
    }

    /// Updates the flag and the requested events to match the queue; called under its lock.
    fn note_queue(&self, index: usize, output: &Output, queue: Queue) {
        let waits = queue == Queue::Waits;
        if self.roster.peers[index].own.waits.swap(waits, Ordering::AcqRel) == waits {
            return;
        }
        if let Some(socket) = output.socket() {
            // This fails only if the connection is being retired, and then nothing waits any more.
            let _ = self.roster.epoll.modify(socket, waits, index as u64);
        }
    }

    /// Ends a connection on this side. The caller holds the receiving half.
    fn retire(&self, index: usize, input: &mut MutexGuard<'_, Input>, why: Lost) {
        self.roster.lose(index);
        let peer = &self.roster.peers[index].own;
        let mut output = lock(&peer.output);
        output.end(why);
        peer.waits.store(false, Ordering::Release);
        if let Some(socket) = input.end() {
            self.roster.epoll.remove(&socket);
            sockets::shut_down(&socket, Shutdown::Both);
        }
    }
}

/// The loss of a peer, if it was not reported; `None` while another thread has its receiving half.
fn unreported(peer: &Halves) -> Option<Option<Lost>> {
    let input = &mut *try_lock(&peer.input)?;
    Some(roster::unreported(&input.loss, &mut input.loss_reported))
}
