//! Frames for several peers: which peers get them in one datagram, and when.
//!
//! Promises: [`Peers::send_to_all`] has the effect of [`Peers::send`] to each of the peers, with one transmission for
//! those that receive this node's multicasts. No peer waits longer than [`ROOM`] for another one.
//!
//! It must never wait, or send anything again. A multicast is the first transmission of fragments that belong to the
//! connections with its receivers, and these connections ensure that they arrive.
//!
//! # The line
//!
//! A peer's window bounds what may be in flight to it, and a burst of multicasts soon fills it. So frames line up. The
//! first one continues when something was acknowledged. A receiver that has had no room for a while is left out: the
//! rest of the frame goes to it separately, when possible, and so do later frames until it has room.

use std::sync::atomic::Ordering;

use trellis_base::{Deadline, Limit};

use super::delivery::{Fragment, Nanoseconds};
use super::multicast::{Half, PEERS_MIN};
use super::multicast_datagram::{ADDRESSED_MAX, overhead_bytes};
use super::output::Common;
use super::peers::Peers;
use super::timer;
use crate::HEADER_BYTES;
use crate::links::roster::lock;
use crate::links::{Payload, SendError, check_sendable};

/// How long a frame waits for a receiver that has no room. A requested acknowledgement takes one round trip, and
/// longer if the receiver computes.
pub(crate) const ROOM: Deadline = Deadline {
    who: "the link udp, with a frame for several peers",
    waits_for: "one of them that has no room",
    limit: Limit::milliseconds(20),
    then: "the others get it, and that one gets it by itself when it has room",
    tested: "crates/trellis-transport/tests/multicast.rs a_node_that_takes_nothing_keeps_nothing_from_the_others",
};

/// A frame that is not completely sent.
pub(super) struct Waiting {
    common: Common,
    fragment_bytes: u32,
    /// The peers that get it by multicast, and after it began the number of its first fragment for each.
    receivers: Vec<(usize, u64)>,
    begun: bool,
    /// The next fragment.
    index: u32,
    /// The limit of waiting for receivers without room; set when the frame is the first in line.
    pub(super) until: Nanoseconds,
}

impl Waiting {
    fn fragment(&self, index: u32) -> Fragment {
        let (body_bytes, fragment_bytes) = (self.common.bytes() as u32, self.fragment_bytes);
        Fragment { sequence: 0, index, body_bytes, fragment_bytes }
    }
}

impl Peers {
    /// Sends a frame to several peers, as [`Peers::send`] does to each of them.
    pub(super) fn send_to_all(
        &self,
        peers: &[usize],
        header: &[u8; HEADER_BYTES],
        payload: Payload<'_>,
    ) -> Result<(), (usize, SendError)> {
        let mut failed = Vec::new();
        let mut hearing = Vec::new();
        for (at, &peer) in peers.iter().enumerate() {
            // A peer that is named twice gets it twice. In a forked child the holder of a lock may be missing.
            if !self.roster.is_forked() && self.hears_bytes(peer).is_some() && !peers[..at].contains(&peer) {
                hearing.push(peer);
            } else if let Err(error) = self.send(peer, header, payload) {
                failed.push((peer, error));
            }
        }
        for hearing in hearing.chunks(ADDRESSED_MAX) {
            if hearing.len() >= PEERS_MIN {
                self.send_common(hearing, Common::new(header, payload), &mut failed);
                continue;
            }
            for &peer in hearing {
                failed.extend(self.send(peer, header, payload).err().map(|error| (peer, error)));
            }
        }
        let first = failed.into_iter().min_by_key(|(peer, _)| peers.iter().position(|named| named == peer));
        first.map_or(Ok(()), Err)
    }

    /// Sends a frame in one transmission to up to [`ADDRESSED_MAX`] peers.
    fn send_common(&self, peers: &[usize], common: Common, failed: &mut Vec<(usize, SendError)>) {
        let now = timer::now();
        let datagram_bytes = peers.iter().filter_map(|&peer| self.hears_bytes(peer)).min().unwrap_or(0);
        let fragment_bytes = datagram_bytes.saturating_sub(overhead_bytes(peers.len())).max(64) as u32;
        let mut half = lock(&self.group.half);
        let mut receivers = Vec::with_capacity(peers.len());
        for &peer in peers {
            match self.line_up(peer, now, &common) {
                Ok(true) => receivers.push((peer, 0)),
                Ok(false) => {}
                Err(error) => failed.push((peer, error)),
            }
        }
        let until = now + ROOM.nanoseconds();
        half.line.push_back(Waiting { common, fragment_bytes, receivers, begun: false, index: 0, until });
        self.advance(&mut half, now);
    }

    /// Whether the frame waits for its turn; otherwise it goes to this peer separately.
    fn line_up(&self, peer: usize, now: Nanoseconds, common: &Common) -> Result<bool, SendError> {
        check_sendable(self.roster.node, self.roster.count(), peer, common.bytes())?;
        if self.roster.closed.load(Ordering::Relaxed) {
            return Err(SendError::Closed);
        }
        let mut output = lock(&self.roster.peers[peer].own.output);
        let waits = output.line_up(now, common)?;
        self.roster.peers[peer].traffic.sent(common.bytes());
        self.note(peer, output);
        Ok(waits)
    }

    /// Sends what is allowed now, because something was acknowledged.
    #[cold]
    pub(super) fn go_on(&self, now: Nanoseconds) {
        let mut half = lock(&self.group.half);
        self.advance(&mut half, now);
    }

    /// Sends what the line may send now.
    pub(super) fn advance(&self, half: &mut Half, now: Nanoseconds) {
        let mut sent = false;
        while let Some(mut waiting) = half.line.pop_front() {
            let before = waiting.index;
            let done = self.advance_one(half, &mut waiting, now);
            sent |= waiting.index > before;
            if !done {
                self.timer.set_by(waiting.until);
                half.line.push_front(waiting);
                break;
            }
            if let Some(next) = half.line.front_mut() {
                next.until = now + ROOM.nanoseconds();
            }
        }
        self.group.is_waiting.store(!half.line.is_empty(), Ordering::Release);
        if sent {
            half.heartbeats.sent(now);
            self.timer.set_by(half.heartbeats.due());
            let held_back = half.connection.as_ref().and_then(|connection| connection.wire.due());
            self.timer.set_by(held_back.unwrap_or(Nanoseconds::MAX));
        }
    }

    /// Sends what this frame may send now; returns whether nothing of it waits any more.
    fn advance_one(&self, half: &mut Half, waiting: &mut Waiting, now: Nanoseconds) -> bool {
        if !waiting.begun {
            let may_begin = |&(peer, _): &(usize, u64)| lock(&self.roster.peers[peer].own.output).may_begin();
            if now < waiting.until && !waiting.receivers.iter().all(may_begin) {
                return false;
            }
            waiting.begun = true;
            let Waiting { receivers, common, fragment_bytes, .. } = waiting;
            receivers.retain_mut(|(peer, first)| {
                let mut output = lock(&self.roster.peers[*peer].own.output);
                let begun = output.begin(now, common, *fragment_bytes);
                self.note(*peer, output);
                *first = begun.unwrap_or(0);
                begun.is_some()
            });
        }
        let count = waiting.fragment(0).count();
        while waiting.index < count {
            let room = |&(peer, _): &(usize, u64)| lock(&self.roster.peers[peer].own.output).room();
            let rest = u64::from(count - waiting.index);
            let going = waiting.receivers.iter().map(room).min().unwrap_or(0).min(rest);
            if waiting.receivers.len() < PEERS_MIN {
                self.leave_out(waiting, now, |_| true);
                return true;
            }
            if going == 0 {
                if now < waiting.until {
                    return false;
                }
                self.leave_out(waiting, now, |peer| lock(&self.roster.peers[peer].own.output).is_timed_out());
                continue;
            }
            self.transmit(half, waiting, going, now);
            waiting.until = now + ROOM.nanoseconds();
        }
        true
    }

    /// Sends the rest of the frame to these receivers separately.
    fn leave_out(&self, waiting: &mut Waiting, now: Nanoseconds, who: impl Fn(usize) -> bool) {
        waiting.receivers.retain(|&(peer, _)| {
            let leaves = who(peer);
            if leaves {
                let mut output = lock(&self.roster.peers[peer].own.output);
                output.release(now);
                self.note(peer, output);
            }
            !leaves
        });
    }

    /// Sends the next `count` fragments.
    fn transmit(&self, half: &mut Half, waiting: &mut Waiting, count: u64, now: Nanoseconds) {
        let (mut prompt, mut went_least) = (false, count);
        let mut departed = Vec::with_capacity(waiting.receivers.len());
        for &(peer, first) in &waiting.receivers {
            let mut output = lock(&self.roster.peers[peer].own.output);
            let went = output.depart(now, count);
            prompt |= output.is_held_back();
            went_least = went_least.min(went);
            departed.push((peer, first, went));
            self.note(peer, output);
        }
        // Sorted by descending share, so that the receivers of a fragment are a prefix.
        departed.sort_unstable_by_key(|&(_, _, went)| std::cmp::Reverse(went));
        let Half { connection, scratch, .. } = half;
        for ahead in 0..count {
            let index = waiting.index + ahead as u32;
            let reached = departed.partition_point(|&(_, _, went)| ahead < went);
            let addressed = departed[..reached].iter().map(|&(peer, first, _)| (peer as u16, first + u64::from(index)));
            // Without a connection, no peer receives anything; what departed counts as lost in transit.
            let Some(connection) = connection.as_mut().filter(|_| reached > 0) else { break };
            let fragment = waiting.fragment(index);
            connection.writer.head(prompt, addressed, Some((&fragment, waiting.common.header())), scratch);
            waiting.common.transmit(now, &connection.wire, &fragment, &connection.writer, scratch);
            self.group.packets_out.fetch_add(1, Ordering::Relaxed);
        }
        waiting.index += count as u32;
        if went_least < count {
            // Another frame used the room, or the peer was just lost.
            self.leave_out(waiting, now, |peer| departed.iter().any(|&(other, _, went)| other == peer && went < count));
        }
        if waiting.index == waiting.fragment(0).count() {
            // What waited behind this frame at one of its receivers can be sent.
            self.leave_out(waiting, now, |_| true);
        }
    }

    /// Sends what is in line to each receiver separately, because this node leaves.
    pub(super) fn disperse(&self, now: Nanoseconds) {
        if !self.group.is_waiting.load(Ordering::Acquire) {
            return;
        }
        let mut half = lock(&self.group.half);
        self.group.is_waiting.store(false, Ordering::Release);
        for mut waiting in std::mem::take(&mut half.line) {
            if waiting.begun {
                self.leave_out(&mut waiting, now, |_| true);
                continue;
            }
            for &(peer, _) in &waiting.receivers {
                lock(&self.roster.peers[peer].own.output).submit_held(now, &waiting.common);
            }
        }
    }
}
