//! Receives from the link: checks frames, gives their bodies a place, and passes messages to their protocol.

use std::sync::atomic::Ordering;

use trellis_cluster_protocol::wire::{self, BodyKind, HEADER_BYTES};
use trellis_cluster_protocol::{NodeId, node};
use trellis_transport::{INLINE_BODY_BYTES_MAX, Lost, Placement, QUEUE_BYTES_MAX, Refused, Sink};

use super::Node;
use super::ordered::{Ordered, Rank, lock};
use trellis_record::LiveCounters;

/// The minimum length of a run for which one system call that makes its memory exist is cheaper than a kernel fault per
/// page.
const POPULATE_PAGES_MIN: u32 = 8;

/// The maximum number of buffers that are kept for the next long bodies.
const SPARE_BODIES_MAX: usize = 8;

/// The maximum number of long bodies of one peer that have begun and not arrived. A peer's link has no more of them
/// under way.
const PLACED_BODIES_MAX: usize = QUEUE_BYTES_MAX / INLINE_BODY_BYTES_MAX;

/// The next step for the reader of a refusal.
const CHANGED_ON_ITS_WAY: &str = "it was changed on its way, or that node runs another build: compare `trellis --version` \
                                  on both hosts, and use `security = \"signed\"` where the network cannot be trusted";

/// Long bodies that are not pages: diffs and notices. A body is found again by its header, which identifies one message
/// of a peer.
pub(super) struct Bodies(Ordered<Waiting>);

#[derive(Default)]
struct Waiting {
    placed: Vec<(usize, [u8; HEADER_BYTES], Vec<u8>)>,
    spare: Vec<Vec<u8>>,
}

impl Bodies {
    pub(super) fn new() -> Bodies {
        Bodies(Ordered::new(Rank::Last, Waiting::default()))
    }

    fn place(&self, peer: usize, header: &[u8; HEADER_BYTES], bytes: usize) -> Result<Placement, &'static str> {
        let mut waiting = lock(&self.0);
        if waiting.placed.iter().filter(|(from, ..)| *from == peer).count() >= PLACED_BODIES_MAX {
            return Err("more long bodies have begun than can be under way");
        }
        let mut body = waiting.spare.pop().unwrap_or_default();
        body.resize(bytes, 0);
        let pointer = body.as_mut_ptr();
        waiting.placed.push((peer, *header, body));
        Ok(Placement::At { pointer, bytes })
    }

    fn take(&self, peer: usize, header: &[u8; HEADER_BYTES]) -> Option<Vec<u8>> {
        let mut waiting = lock(&self.0);
        let index = waiting.placed.iter().position(|(from, of, _)| *from == peer && of == header)?;
        Some(waiting.placed.remove(index).2)
    }

    fn give_back(&self, body: Vec<u8>) {
        let mut waiting = lock(&self.0);
        if waiting.spare.len() < SPARE_BODIES_MAX {
            waiting.spare.push(body);
        }
    }

    /// The link has stopped writing to the bodies of this peer.
    fn forget(&self, peer: usize) {
        lock(&self.0).placed.retain(|(from, ..)| *from != peer);
    }
}

/// The node, as the link sees it.
pub(super) struct Receiver<'a>(pub(super) &'a Node);

impl Sink for Receiver<'_> {
    fn place(&mut self, peer: usize, header: &[u8; HEADER_BYTES]) -> Result<Placement, Refused> {
        let refuse = |why: String| {
            LiveCounters::add(&self.0.counters().frames_refused, 1);
            Refused::from(why)
        };
        match wire::body_of(header, &self.0.limits).map_err(|error| refuse(error.to_string()))? {
            BodyKind::Nothing => Ok(Placement::Nothing),
            BodyKind::Small(bytes) => Ok(Placement::Inline(bytes)),
            BodyKind::Attached(bytes) if bytes <= INLINE_BODY_BYTES_MAX => Ok(Placement::Inline(bytes)),
            BodyKind::Attached(bytes) => self.0.bodies.place(peer, header, bytes).map_err(|why| refuse(why.to_owned())),
            BodyKind::Pages(range) if lock(self.0.shard_of(range.first())).node.may_place(range) => {
                if range.count() >= POPULATE_PAGES_MIN {
                    self.0.prepare(range).map_err(|error| refuse(error.to_string()))?;
                }
                Ok(Placement::At { pointer: self.0.privileged(range), bytes: self.0.bytes_of(range) })
            }
            BodyKind::Pages(range) => Err(refuse(format!("it brings the bytes of {range}, which nobody asked for"))),
        }
    }

    fn deliver(&mut self, peer: usize, header: &[u8; HEADER_BYTES], body: &[u8]) {
        let node = self.0;
        let from = NodeId(peer as u16);
        node.heard[peer].store(true, Ordering::Relaxed);
        let counters = node.counters();
        let long = if body.is_empty() { node.bodies.take(peer, header) } else { None };
        let body = long.as_deref().unwrap_or(body);
        let message = match wire::decode(header, body, &node.limits) {
            Ok(message) => message,
            Err(error) => return node.refuse_frame(from, &error.to_string()),
        };
        let pages = match &message {
            wire::Message::Coherence(message) => message.bytes().map_or(0, |range| node.bytes_of(range)),
            _ => 0,
        };
        LiveCounters::add(&counters.messages_in, 1);
        LiveCounters::add(&counters.bytes_in, (HEADER_BYTES + body.len() + pages) as u64);
        match message {
            wire::Message::Coherence(message) => node.page_message(from, message, wire::attached(header, body)),
            message => {
                let Ok(()) = node::receive(&mut node.carrier(), from, message, wire::attached(header, body));
            }
        }
        if let Some(long) = long {
            node.bodies.give_back(long);
        }
    }

    fn connected(&mut self, peer: usize) {
        self.0.member_connected(NodeId(peer as u16));
    }

    fn lost(&mut self, peer: usize, why: &Lost) {
        self.0.bodies.forget(peer);
        if let Lost::NodeRefused { why } = why
            && !self.0.has_met(peer)
        {
            return self.0.fail(format!("this node cannot take part: {why}"));
        }
        let what = match why {
            Lost::FrameRefused { why } => format!("sent what this node refuses: {why}; {CHANGED_ON_ITS_WAY}"),
            other => format!("is gone without having left the cluster: {other}"),
        };
        self.0.member_lost(NodeId(peer as u16), &what);
    }
}

impl Node {
    /// Ends the cluster because a frame of an authenticated peer cannot be used: a thread that waits for what it should
    /// have brought would wait for ever. The error names the peer.
    pub(super) fn refuse_frame(&self, from: NodeId, why: &str) {
        self.fail_because_of(from, self.refused(from, why));
    }

    /// Counts a frame that a peer may not send. Returns the sentence about it.
    pub(super) fn refused(&self, from: NodeId, why: &str) -> String {
        LiveCounters::add(&self.counters().frames_refused, 1);
        format!("{} sent what this node refuses: {why}; {CHANGED_ON_ITS_WAY}", self.name_of(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_begins_a_bounded_number_of_long_bodies() {
        let bodies = Bodies::new();
        let header = |number: usize| {
            let mut header = [0; HEADER_BYTES];
            header[..8].copy_from_slice(&number.to_le_bytes());
            header
        };
        for number in 0..PLACED_BODIES_MAX {
            assert!(bodies.place(1, &header(number), 1).is_ok());
        }
        assert!(bodies.place(1, &header(PLACED_BODIES_MAX), 1).is_err());
        assert!(bodies.place(2, &header(0), 1).is_ok(), "each peer has places of its own");
        assert!(bodies.take(1, &header(3)).is_some() && bodies.take(1, &header(3)).is_none());
        assert!(bodies.place(1, &header(PLACED_BODIES_MAX), 1).is_ok());
        bodies.forget(1);
        assert!(bodies.take(1, &header(4)).is_none() && bodies.take(2, &header(0)).is_some());
    }
}
