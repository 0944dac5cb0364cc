//! A network that loses, duplicates and reorders datagrams, below the real recovery of the `udp` link.
//!
//! Promises: a complete message is delivered at once, and once. Any datagram may be the next. It must never recover
//! anything by itself.

use super::effects::Envelope;
use crate::model::datagrams::{Datagram, End};
use trellis_base::Random;
use trellis_cluster_protocol::Nanoseconds;

const FRAGMENT_BYTES: u32 = 1200;
/// The sizes of messages; the largest needs two datagrams.
const BODY_BYTES: [u32; 3] = [0, 800, 2000];
/// The time between two events.
const STEP_NS: Nanoseconds = 20_000;
/// One of this many datagrams is lost, or arrives twice.
const LOST_ONCE_IN: u64 = 10;
const DOUBLED_ONCE_IN: u64 = 12;

/// The links of all nodes.
pub(super) struct Recovery {
    nodes: usize,
    /// By node and peer.
    pairs: Vec<End>,
    under_way: Vec<Datagram>,
    envelopes: Vec<Option<Envelope>>,
    now: Nanoseconds,
}

impl Recovery {
    pub(super) fn new(nodes: u16) -> Recovery {
        let nodes = usize::from(nodes);
        Recovery {
            nodes,
            pairs: (0..nodes * nodes).map(|_| End::new(0, FRAGMENT_BYTES)).collect(),
            under_way: Vec::new(),
            envelopes: Vec::new(),
            now: 0,
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.under_way.is_empty() || self.pairs.iter().any(|pair| !pair.sender.is_idle())
    }

    fn place(&self, node: u16, peer: u16) -> usize {
        usize::from(node) * self.nodes + usize::from(peer)
    }

    pub(super) fn submit(&mut self, envelope: Envelope) {
        let (from, to, number) = (envelope.from, envelope.to, self.envelopes.len() as u32);
        self.envelopes.push(Some(envelope));
        let place = self.place(from, to);
        self.pairs[place].sender.submit(number, BODY_BYTES[number as usize % BODY_BYTES.len()]);
        self.pump(from, to);
    }

    fn pump(&mut self, from: u16, to: u16) {
        let place = self.place(from, to);
        while let Some(datagram) = self.pairs[place].next(self.now, from, to) {
            self.under_way.push(datagram);
        }
    }

    /// Delivers or loses a datagram or, if none is under way, lets time pass. Returns a message if one is complete.
    pub(super) fn go_on(&mut self, random: &mut Random) -> Result<Option<Envelope>, String> {
        self.now += STEP_NS;
        if self.under_way.is_empty() {
            let due = self.pairs.iter().map(|pair| pair.sender.due()).min().unwrap_or(self.now);
            self.now = self.now.max(due);
            for place in 0..self.pairs.len() {
                self.pairs[place].sender.tick(self.now);
                self.pump((place / self.nodes) as u16, (place % self.nodes) as u16);
            }
            return Ok(None);
        }
        let index = random.index(self.under_way.len());
        let datagram =
            if random.once_in(DOUBLED_ONCE_IN) { self.under_way[index] } else { self.under_way.swap_remove(index) };
        if random.once_in(LOST_ONCE_IN) {
            return Ok(None);
        }
        self.arrive(datagram)
    }

    fn arrive(&mut self, datagram: Datagram) -> Result<Option<Envelope>, String> {
        let Datagram { from, to, .. } = datagram;
        let place = self.place(to, from);
        let whole = self.pairs[place].arrives(self.now, &datagram)?;
        self.pump(to, from);
        Ok(whole.and_then(|envelope| self.envelopes[envelope as usize].take()))
    }
}
