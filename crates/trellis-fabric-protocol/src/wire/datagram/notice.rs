//! Notices that a home sends to a client unasked: RECALL to an owner, INVALIDATE to a holder of a copy.
//!
//! The source is the address of the page with this command, so that a switch lets only the page's home send it. The
//! destination is an address of the client's process, like that of an answer, with a number that the home chose. The
//! addresses are followed by a header without *answer*, with that number and the page's epoch, and by nothing else.
//!
//! A notice must never be answered as such: the holder of a copy sends INVALIDATED, a request that has no answer, and the
//! holder of a lease sends a COMMIT or RELEASE of its own.

use super::request::Rules;
use super::{HEADER_BYTES, Header, Malformed, Status, TagKind, tag};
use crate::wire::address::{Address, Destination, Source};

/// See the documentation of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Notice {
    /// The page and the command.
    pub from: Destination,
    /// The receiver; its request is the home's number.
    pub to: Source,
    /// The kind of its tag.
    pub tag_kind: TagKind,
    /// RECALL: the epoch of the lease. INVALIDATE: older copies must not be used.
    pub epoch: u64,
}

impl Notice {
    /// The whole datagram, except for the tag ([`super::seal`]).
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let header = Header {
            status: Status::Ok,
            tag_kind: self.tag_kind,
            is_last: false,
            is_several: false,
            is_once: false,
            is_answer: false,
            is_release: false,
            length: 0,
            request: self.to.request,
            epoch: self.epoch,
            tag: 0,
        };
        header.encode()
    }

    /// Decodes a datagram from `source`, the address of a page, to `destination`, one of a client.
    pub fn decode(
        source: Address,
        destination: Address,
        payload: &[u8],
        rules: &Rules<'_>,
    ) -> Result<Notice, Malformed> {
        let to = Source::decode(destination).map_err(Malformed::Source)?;
        let from = Destination::decode(source).map_err(Malformed::Destination)?;
        if let Some(other) = [to.cluster, from.pointer.cluster()].into_iter().find(|it| *it != rules.cluster) {
            return Err(Malformed::Cluster(other.number()));
        }
        if !from.command.is_notice() {
            return Err(Malformed::Notice(from.command));
        }
        let header = Header::decode(payload)?;
        if header.is_answer {
            return Err(Malformed::Answer);
        }
        let raw = payload.first_chunk().ok_or(Malformed::Short(payload.len()))?;
        tag::check(raw, source, destination, &payload[HEADER_BYTES..], rules.least, rules.tags)?;
        if header.status != Status::Ok {
            return Err(Malformed::Status(header.status as u8));
        }
        if header.request != to.request {
            return Err(Malformed::RequestId);
        }
        if header.is_last || header.is_several || header.is_once || header.is_release {
            return Err(Malformed::Flags);
        }
        if header.length != 0 {
            return Err(Malformed::Body(from.command));
        }
        Ok(Notice { from, to, tag_kind: header.tag_kind, epoch: header.epoch })
    }
}
