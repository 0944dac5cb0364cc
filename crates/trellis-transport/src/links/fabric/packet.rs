//! The format of a packet of the link `fabric`, byte by byte.
//!
//! Promises: [`Packet::read`] returns every packet that [`Packet::write`] makes unchanged; anything else is refused
//! without a panic.
//!
//! It must never decide whether a packet is accepted.

use crate::HEADER_BYTES;
use crate::links::fabric::device::Source;

/// The size of a packet and of the buffers that packets are received into.
pub(super) const PACKET_BYTES: usize = 8192;
/// The room for what precedes the body.
const FRONT_BYTES: usize = 96;
/// The longest body that is sent in its packet.
pub(super) const PACKET_BODY_BYTES_MAX: usize = PACKET_BYTES - FRONT_BYTES;

/// The content of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first packet to a peer: the path between the two is open.
    Hello,
    /// A frame with its body.
    Frame {
        /// Its number in the order of frames.
        sequence: u64,
        /// Its header.
        header: [u8; HEADER_BYTES],
    },
    /// A frame whose body the receiver reads.
    Offer {
        /// Its number in the order of frames.
        sequence: u64,
        /// Its header.
        header: [u8; HEADER_BYTES],
        /// The length of the body in bytes.
        bytes: u64,
        /// The address of the body in the sender's memory.
        source: Source,
        /// Whether the sender wants to be told at once when it was read.
        wants_word: bool,
    },
    /// A frame whose body its sender writes to the receiver's shared memory.
    Written {
        /// Its number in the order of frames.
        sequence: u64,
        /// Its header.
        header: [u8; HEADER_BYTES],
        /// The length of the body in bytes.
        bytes: u64,
        /// The offset in the receiver's shared memory at which it begins.
        place: u64,
    },
    /// No frame: only the counts.
    Word,
}

/// One packet, without its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    /// The value that the receiver gave to the sender over the authenticated connection.
    pub(super) cookie: u64,
    /// The sender.
    pub(super) from: u16,
    /// How many of the receiver's frames were delivered at the sender.
    pub(super) delivered: u64,
    /// How many of the receiver's packets were seen by the sender.
    pub(super) seen: u64,
    /// The content.
    pub(super) kind: Kind,
}

const HELLO: u8 = 1;
const FRAME: u8 = 2;
const OFFER: u8 = 3;
const WORD: u8 = 4;
const WRITTEN: u8 = 5;

impl Packet {
    /// Writes the packet with its body; returns its length in bytes.
    pub(super) fn write(&self, body: &[u8], out: &mut [u8; PACKET_BYTES]) -> usize {
        let (kind, sequence, header, bytes, source, wants_word) = match &self.kind {
            Kind::Hello => (HELLO, 0, None, 0, None, false),
            Kind::Frame { sequence, header } => (FRAME, *sequence, Some(header), body.len() as u64, None, false),
            Kind::Offer { sequence, header, bytes, source, wants_word } => {
                (OFFER, *sequence, Some(header), *bytes, Some(*source), *wants_word)
            }
            Kind::Written { sequence, header, bytes, place } => {
                (WRITTEN, *sequence, Some(header), *bytes, Some(Source { address: *place, key: 0 }), false)
            }
            Kind::Word => (WORD, 0, None, 0, None, false),
        };
        let source = source.unwrap_or(Source { address: 0, key: 0 });
        out[..8].copy_from_slice(&self.cookie.to_le_bytes());
        out[8..10].copy_from_slice(&self.from.to_le_bytes());
        out[10] = kind;
        out[11] = u8::from(wants_word);
        out[12..16].fill(0);
        for (at, value) in [sequence, self.delivered, self.seen, bytes, source.address, source.key].iter().enumerate() {
            out[16 + at * 8..24 + at * 8].copy_from_slice(&value.to_le_bytes());
        }
        out[64..FRONT_BYTES].copy_from_slice(header.unwrap_or(&[0; HEADER_BYTES]));
        out[FRONT_BYTES..FRONT_BYTES + body.len()].copy_from_slice(body);
        FRONT_BYTES + body.len()
    }

    /// Reads a packet and returns it with its body; `None` if it is invalid.
    pub(super) fn read(bytes: &[u8]) -> Option<(Packet, &[u8])> {
        let (front, body) = bytes.split_at_checked(FRONT_BYTES)?;
        let number = |at: usize| u64::from_le_bytes(front[at..at + 8].try_into().expect("eight bytes"));
        let header: [u8; HEADER_BYTES] = front[64..].try_into().expect("the rest is the header");
        let (sequence, body_bytes) = (number(16), number(40));
        let wants_word = front[11] == 1;
        let kind = match front[10] {
            HELLO if body_bytes == 0 => Kind::Hello,
            FRAME if body_bytes == body.len() as u64 => Kind::Frame { sequence, header },
            OFFER => {
                let source = Source { address: number(48), key: number(56) };
                Kind::Offer { sequence, header, bytes: body_bytes, source, wants_word }
            }
            WRITTEN => Kind::Written { sequence, header, bytes: body_bytes, place: number(48) },
            WORD if body_bytes == 0 => Kind::Word,
            _ => return None,
        };
        if !matches!(kind, Kind::Frame { .. }) && !body.is_empty() {
            return None;
        }
        let from = u16::from_le_bytes([front[8], front[9]]);
        Some((Packet { cookie: number(0), from, delivered: number(24), seen: number(32), kind }, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(kind: Kind) -> Packet {
        Packet { cookie: 0x0123_4567_89AB_CDEF, from: 63, delivered: u64::MAX, seen: 7, kind }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let header = [9; HEADER_BYTES];
        let source = Source { address: 0x1000_0000_2000, key: 11 };
        let offer = Kind::Offer { sequence: 8, header, bytes: 1 << 26, source, wants_word: true };
        for (kind, body) in [
            (Kind::Hello, vec![]),
            (Kind::Word, vec![]),
            (Kind::Frame { sequence: 5, header }, vec![]),
            (Kind::Frame { sequence: 6, header }, vec![3; PACKET_BODY_BYTES_MAX]),
            (offer, vec![]),
            (Kind::Written { sequence: 9, header, bytes: 4096, place: 1 << 40 }, vec![]),
        ] {
            let mut bytes = [0xEE; PACKET_BYTES];
            let length = packet(kind).write(&body, &mut bytes);
            assert_eq!(Packet::read(&bytes[..length]), Some((packet(kind), &body[..])));
        }
    }

    #[test]
    fn what_is_no_packet_is_refused() {
        let mut bytes = [0; PACKET_BYTES];
        let length = packet(Kind::Frame { sequence: 1, header: [1; HEADER_BYTES] }).write(&[1, 2, 3], &mut bytes);
        assert_eq!(Packet::read(&bytes[..length - 1]), None, "cut");
        assert_eq!(Packet::read(&bytes[..length + 1]), None, "too long");
        assert_eq!(Packet::read(&bytes[..FRONT_BYTES - 1]), None, "no front");
        bytes[10] = 9;
        assert_eq!(Packet::read(&bytes[..length]), None, "a kind that there is not");
        let length = packet(Kind::Word).write(&[], &mut bytes);
        assert_eq!(Packet::read(&bytes[..length + 4]), None, "a word has no body");
    }
}
