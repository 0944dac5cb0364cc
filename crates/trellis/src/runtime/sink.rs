//! What arrives from the link: checked, put in place, and given to the protocol that it is for.

use std::sync::atomic::Ordering;

use trellis_protocol::coherence::Coherence;
use trellis_protocol::wire::{self, BodyKind, HEADER_BYTES};
use trellis_protocol::{Access, NodeId, PageRange};
use trellis_transport::{Lost, Placement, Refused, Sink};

use super::Node;
use super::pages::lock;
use crate::record::LiveCounters;

/// A run this long is worth one system call that makes its memory exist, instead of a kernel fault per page.
const POPULATE_PAGES_MIN: u32 = 8;

/// The node, as the link sees it.
pub(super) struct Receiver<'a>(pub(super) &'a Node);

impl Sink for Receiver<'_> {
    fn place(&mut self, _peer: usize, header: &[u8; HEADER_BYTES]) -> Result<Placement, Refused> {
        let refuse = |why: String| {
            LiveCounters::add(&self.0.counters().frames_refused, 1);
            Refused::from(why)
        };
        match wire::body_of(header, &self.0.limits).map_err(|error| refuse(error.to_string()))? {
            BodyKind::Nothing => Ok(Placement::Nothing),
            BodyKind::Small(bytes) => Ok(Placement::Inline(bytes)),
            BodyKind::Pages(range) if self.0.expects(range) => {
                if range.count() >= POPULATE_PAGES_MIN {
                    let (first, count) = (range.first().0 as usize, range.count() as usize);
                    self.0.region.populate(first, count).map_err(|error| refuse(error.to_string()))?;
                }
                Ok(Placement::At { pointer: self.0.engine(range), bytes: self.0.bytes_of(range) })
            }
            BodyKind::Pages(range) => Err(refuse(format!("it brings the bytes of {range}, which nobody asked for"))),
        }
    }

    fn deliver(&mut self, peer: usize, header: &[u8; HEADER_BYTES], body: &[u8]) {
        let node = self.0;
        let from = NodeId(peer as u16);
        node.heard[peer].store(node.now(), Ordering::Relaxed);
        let counters = node.counters();
        let message = match wire::decode(header, body, &node.limits) {
            Ok(message) => message,
            Err(error) => {
                LiveCounters::add(&counters.frames_refused, 1);
                return node.fail(format!("{} sent a frame that was refused: {error}", node.name_of(from)));
            }
        };
        let pages = match &message {
            wire::Message::Coherence(message) => message.bytes().map_or(0, |range| node.bytes_of(range)),
            _ => 0,
        };
        LiveCounters::add(&counters.messages_in, 1);
        LiveCounters::add(&counters.bytes_in, (HEADER_BYTES + body.len() + pages) as u64);
        match message {
            wire::Message::Coherence(message) => node.page_message(from, message),
            wire::Message::Sync(message) => node.sync_message(from, message),
            wire::Message::Membership(message) => node.member_message(from, message),
        }
    }

    fn connected(&mut self, peer: usize) {
        self.0.member_connected(NodeId(peer as u16));
    }

    fn lost(&mut self, peer: usize, why: &Lost) {
        self.0.member_lost(NodeId(peer as u16), &why.to_string());
    }
}

impl Node {
    /// Whether the bytes of these pages were asked for and may be overwritten.
    fn expects(&self, range: PageRange) -> bool {
        let shard = lock(self.shard_of(range.first()));
        range.pages().all(|page| shard.protocol.is_pending(page) && shard.protocol.access(page) == Access::None)
    }
}
