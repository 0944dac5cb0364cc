//! Messages as datagrams that are lost, doubled and reordered, under the real recovery of the `udp` link.
//!
//! Promises: a message that is whole goes to its node at once. It must never recover anything by itself.

use super::Start;
use super::events::Event;
use super::network::Network;
use super::scenario::Scenario;
use super::world::World;
use crate::model::datagrams::{Datagram, End};
use trellis_cluster_protocol::Nanoseconds;

/// What fits into a datagram on an ordinary path, and on one with large frames.
const FRAGMENT_BYTES: [u32; 2] = [1200, 8800];

/// An end of a link.
struct Pair {
    end: End,
    /// When its next timer event comes.
    timer_at: Nanoseconds,
}

/// The links of all nodes.
pub(super) struct Datagrams {
    nodes: usize,
    fragment_bytes: u32,
    /// By the node that has it and its peer; made when they first speak.
    pairs: Vec<Option<Box<Pair>>>,
    under_way: Vec<Datagram>,
    free: Vec<u32>,
}

impl Datagrams {
    pub(super) fn new(scenario: &Scenario) -> Datagrams {
        let nodes = usize::from(scenario.nodes());
        Datagrams {
            nodes,
            fragment_bytes: FRAGMENT_BYTES[(scenario.seed.number % 2) as usize],
            pairs: (0..nodes * nodes).map(|_| None).collect(),
            under_way: Vec::with_capacity(256),
            free: Vec::with_capacity(256),
        }
    }

    /// Who receives the datagram at this place.
    pub(super) fn receiver(&self, slot: u32) -> u16 {
        self.under_way[slot as usize].to
    }

    /// Whether something was submitted that is not known to have arrived.
    pub(super) fn is_busy(&self) -> bool {
        self.pairs.iter().flatten().any(|pair| !pair.end.sender.is_idle())
    }

    /// Nobody speaks with `node` any more.
    pub(super) fn forget(&mut self, node: u16) {
        for index in 0..self.pairs.len() {
            if index / self.nodes == usize::from(node) || index % self.nodes == usize::from(node) {
                self.pairs[index] = None;
            }
        }
    }

    /// How many fragments were sent again.
    pub(super) fn resent(&self) -> u64 {
        self.pairs.iter().flatten().map(|pair| pair.end.sender.resent).sum()
    }

    fn pair(&mut self, now: Nanoseconds, node: u16, peer: u16) -> &mut Pair {
        let fragment_bytes = self.fragment_bytes;
        self.pairs[usize::from(node) * self.nodes + usize::from(peer)]
            .get_or_insert_with(|| Box::new(Pair { end: End::new(now, fragment_bytes), timer_at: Nanoseconds::MAX }))
    }

    /// Sends whatever may go from `node` to `peer`, and sees to it that it is asked again in time.
    fn pump(
        &mut self,
        now: Nanoseconds,
        node: u16,
        peer: u16,
        network: &mut Network,
        mut put: impl FnMut(Nanoseconds, Event),
    ) {
        while let Some(datagram) = self.pair(now, node, peer).end.next(now, node, peer) {
            let bytes = datagram.bytes();
            for time in network.datagram(now, node, peer, bytes).into_iter().flatten() {
                let slot = self.keep(datagram);
                put(time, Event::Datagram { slot });
            }
        }
        let pair = self.pair(now, node, peer);
        let due = pair.end.sender.due().max(now + 1);
        if due < pair.timer_at {
            pair.timer_at = due;
            put(due, Event::Timer { node, peer });
        }
    }

    fn keep(&mut self, datagram: Datagram) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.under_way[slot as usize] = datagram;
                slot
            }
            None => {
                self.under_way.push(datagram);
                self.under_way.len() as u32 - 1
            }
        }
    }
}

impl<S: Start> World<'_, S> {
    /// A message goes to the link.
    pub(super) fn submit_frame(&mut self, from: u16, to: u16, envelope: u32, body_bytes: u32) {
        if self.nodes[usize::from(to)].is_present() {
            let now = self.now;
            let datagrams = self.datagrams.as_mut().expect("messages are datagrams here");
            datagrams.pair(now, from, to).end.sender.submit(envelope, body_bytes);
            self.pump(from, to);
        }
    }

    pub(super) fn timer(&mut self, node: u16, peer: u16) -> Result<(), String> {
        let now = self.now;
        if self.nodes[usize::from(peer)].is_present() {
            let datagrams = self.datagrams.as_mut().expect("a link has a timer");
            let pair = datagrams.pair(now, node, peer);
            // Otherwise an earlier one was set after this one, and looked already.
            if pair.timer_at <= now {
                pair.timer_at = Nanoseconds::MAX;
                pair.end.sender.tick(now);
                self.pump(node, peer);
            }
        }
        Ok(())
    }

    pub(super) fn datagram_arrives(&mut self, slot: u32) -> Result<(), String> {
        let now = self.now;
        let datagrams = self.datagrams.as_mut().expect("it travelled");
        let datagram = datagrams.under_way[slot as usize];
        let Datagram { from, to, .. } = datagram;
        datagrams.free.push(slot);
        self.tally.datagrams += 1;
        if !self.nodes[usize::from(to)].is_present() || !self.nodes[usize::from(from)].is_present() {
            return Ok(());
        }
        let whole = datagrams.pair(now, to, from).end.arrives(now, &datagram)?;
        if let Some(envelope) = whole {
            self.arrive(envelope)?;
        }
        if self.nodes[usize::from(to)].is_present() && self.nodes[usize::from(from)].is_present() {
            self.pump(to, from);
        }
        Ok(())
    }

    fn pump(&mut self, node: u16, peer: u16) {
        let queue = &mut self.queue;
        let datagrams = self.datagrams.as_mut().expect("messages are datagrams here");
        datagrams.pump(self.now, node, peer, &mut self.network, |time, event| queue.put(time, event));
    }
}
