//! One end of a link whose messages travel as datagrams, with the real recovery of the `udp` link.
//!
//! Promises: what a datagram says is exactly what the link's sender and receiver machines decided. A message is whole
//! once. It must never recover anything by itself.

use trellis_cluster_protocol::Nanoseconds;
use trellis_transport::links::udp::delivery::{Acknowledgement, Arrival, Fragment, Plan, Receiver, Sender};

/// Of every datagram beside its fragment: addresses, seal, acknowledgement, the frame's header.
const OVERHEAD_BYTES: u32 = 140;
/// The room of a receiver.
const ROOM_BYTES: u32 = 1 << 20;

/// What travels.
#[derive(Clone, Copy)]
pub(crate) struct Datagram {
    pub(crate) from: u16,
    pub(crate) to: u16,
    /// A part of the message with this number.
    part: Option<(Fragment, u32)>,
    acknowledgement: Acknowledgement,
    /// The sender waits for an acknowledgement.
    asks: bool,
}

impl Datagram {
    pub(crate) fn bytes(&self) -> u32 {
        OVERHEAD_BYTES + self.part.map_or(0, |(fragment, _)| fragment.range().len() as u32)
    }
}

/// One direction at its sender, the other at its receiver. Messages are numbers.
pub(crate) struct End {
    pub(crate) sender: Sender<u32>,
    receiver: Receiver<u32>,
}

impl End {
    pub(crate) fn new(now: Nanoseconds, fragment_bytes: u32) -> End {
        let sender = Sender::new(now, fragment_bytes, OVERHEAD_BYTES as usize);
        End { sender, receiver: Receiver::default() }
    }

    /// The next datagram that goes out now, from this node to its peer.
    pub(crate) fn next(&mut self, now: Nanoseconds, from: u16, to: u16) -> Option<Datagram> {
        let plan = self.sender.next(now)?;
        let part = self.sender.fragment(plan).map(|(fragment, &message)| (fragment, message));
        let asks = plan == Plan::Probe || self.sender.is_held_back();
        let acknowledgement = *self.sender.acknowledgement();
        self.sender.sent(plan, now);
        Some(Datagram { from, to, part, acknowledgement, asks })
    }

    /// A datagram of the peer arrives. Returns its message, if that is whole now.
    pub(crate) fn arrives(&mut self, now: Nanoseconds, datagram: &Datagram) -> Result<Option<u32>, String> {
        let Datagram { from, to, part, acknowledgement, asks } = datagram;
        let End { sender, receiver } = self;
        sender.heard(now);
        let believed = sender.acknowledged(now, acknowledgement, |_| {});
        believed.map_err(|_| format!("node {from} acknowledges what node {to} never sent"))?;
        let mut whole = None;
        if let Some((fragment, message)) = part {
            match receiver.accept(fragment, fragment.range().len()) {
                Arrival::Duplicate => {}
                Arrival::Whole => whole = Some(*message),
                Arrival::First => receiver.open(fragment, *message),
                Arrival::Later { slot } => whole = receiver.finish(slot),
                wrong @ (Arrival::OutOfReach | Arrival::Inconsistent) => {
                    return Err(format!("a fragment from node {from} to node {to} is {wrong:?}"));
                }
            }
        }
        if part.is_some() || *asks {
            sender.owe(now, receiver.acknowledgement(ROOM_BYTES), *asks);
        }
        Ok(whole)
    }
}
