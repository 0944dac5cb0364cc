//! A network that loses, duplicates and reorders datagrams, below the real recovery of the `udp` link.
//!
//! Promises: a complete message is delivered at once, and once. Any datagram may be the next. It must never recover
//! anything by itself.

use super::effects::Envelope;
use trellis_base::Random;
use trellis_cluster_protocol::Nanoseconds;
use trellis_transport::links::udp::delivery::{Acknowledgement, Arrival, Fragment, Plan, Receiver, Sender};

const OVERHEAD_BYTES: usize = 140;
const FRAGMENT_BYTES: u32 = 1200;
/// The sizes of messages; the largest needs two datagrams.
const BODY_BYTES: [u32; 3] = [0, 800, 2000];
const ROOM_BYTES: u32 = 1 << 20;
/// The time between two events.
const STEP_NS: Nanoseconds = 20_000;
/// One of this many datagrams is lost, or arrives twice.
const LOST_ONCE_IN: u64 = 10;
const DOUBLED_ONCE_IN: u64 = 12;

/// A datagram.
#[derive(Clone, Copy)]
struct Datagram {
    from: u16,
    to: u16,
    part: Option<(Fragment, u32)>,
    acknowledgement: Acknowledgement,
    asks: bool,
}

struct Pair {
    sender: Sender<u32>,
    receiver: Receiver<u32>,
}

/// The links of all nodes.
pub(super) struct Recovery {
    nodes: usize,
    /// By node and peer.
    pairs: Vec<Pair>,
    under_way: Vec<Datagram>,
    envelopes: Vec<Option<Envelope>>,
    now: Nanoseconds,
}

impl Recovery {
    pub(super) fn new(nodes: u16) -> Recovery {
        let pair = |_| Pair { sender: Sender::new(0, FRAGMENT_BYTES, OVERHEAD_BYTES), receiver: Receiver::default() };
        let nodes = usize::from(nodes);
        Recovery {
            nodes,
            pairs: (0..nodes * nodes).map(pair).collect(),
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
        let (now, sender) = (self.now, &mut self.pairs[place].sender);
        while let Some(plan) = sender.next(now) {
            let part = sender.fragment(plan).map(|(fragment, &envelope)| (fragment, envelope));
            let asks = plan == Plan::Probe || sender.is_held_back();
            self.under_way.push(Datagram { from, to, part, acknowledgement: *sender.acknowledgement(), asks });
            sender.sent(plan, now);
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
        let Datagram { from, to, part, acknowledgement, asks } = datagram;
        let place = self.place(to, from);
        let (now, Pair { sender, receiver }) = (self.now, &mut self.pairs[place]);
        sender.heard(now);
        let believed = sender.acknowledged(now, &acknowledgement, |_| {});
        believed.map_err(|_| format!("node {from} acknowledges what node {to} never sent"))?;
        let mut whole = None;
        if let Some((fragment, envelope)) = part {
            match receiver.accept(&fragment, fragment.range().len()) {
                Arrival::Duplicate => {}
                Arrival::Whole => whole = Some(envelope),
                Arrival::First => receiver.open(&fragment, envelope),
                Arrival::Later { slot } => whole = receiver.finish(slot),
                wrong @ (Arrival::OutOfReach | Arrival::Inconsistent) => {
                    return Err(format!("a fragment from node {from} to node {to} is {wrong:?}"));
                }
            }
        }
        if part.is_some() || asks {
            sender.owe(now, receiver.acknowledgement(ROOM_BYTES), asks);
        }
        self.pump(to, from);
        Ok(whole.and_then(|envelope| self.envelopes[envelope as usize].take()))
    }
}
