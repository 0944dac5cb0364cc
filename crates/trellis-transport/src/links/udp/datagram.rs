//! The format of a datagram of an established connection, and the check of its sender.
//!
//! Promises: if the link is signed or sealed, what is read was sent by the peer, once, and is unchanged. If it is
//! plain, its sender knew the epoch of the connection, 64 bits that only the two ends know unless someone listens on
//! the path. Nothing is allocated for a datagram that is not authentic.
//!
//! It must never use sockets, or decide what a fragment means.
//!
//! ```text
//!  0  u64  epoch: which connection and direction this is
//!  8  u64  number of the datagram: counts up, never used twice; the nonce
//! 16  u8   flags
//! 17  u16  room, in KiB
//! 19  u64  the first fragment that the sender of this misses
//! 27       with GAP: u64, which of the next 64 it has; with GAPS: 4 x u64, which of the next 256
//!          with MISSING: u16, so many from the first missing one on were sent, as it knows
//!          with BYE: u64, how many fragments there were in all
//!          with INTRODUCTION: u64 epoch, 16 B salt, 4 B address and u16 port of its sender's multicasts
//!          with FRAGMENT: u64 sequence, u32 index, u32 bytes of the body, u16 bytes of a fragment,
//!          32 B header of the frame, then the fragment
//!          16 B tag where signed or sealed
//! ```
//!
//! The first 16 bytes are always readable; in a sealed datagram nothing else is. Numbers are little-endian.

use std::net::SocketAddrV4;

use super::delivery::{Acknowledgement, Fragment};
use crate::HEADER_BYTES;
use crate::wrap::protection::{DatagramCipher, TAG_BYTES};
use crate::wrap::secure::SALT_BYTES;

/// Bytes that are always readable.
pub(super) const CLEAR_BYTES: usize = 16;
const FIXED_BYTES: usize = 27;
const FRAGMENT_BYTES: usize = 18 + HEADER_BYTES;
const INTRODUCTION_BYTES: usize = 8 + SALT_BYTES + 6;
/// The longest datagram without the bytes of a fragment.
pub(super) const HEAD_BYTES_MAX: usize = FIXED_BYTES + 32 + 2 + 8 + INTRODUCTION_BYTES + FRAGMENT_BYTES;
/// The maximum size of a datagram with a fragment, without the bytes of the fragment.
pub(super) const OVERHEAD_BYTES: usize = FIXED_BYTES + 8 + 2 + FRAGMENT_BYTES + TAG_BYTES;

/// The receiver must acknowledge at once, because the sender requests a sign of life or waits to send more.
pub(super) const PROMPT: u8 = 1;
const FRAGMENT: u8 = 2;
const GAP: u8 = 4;
const GAPS: u8 = 8;
/// The sender leaves.
const BYE: u8 = 16;
/// The sender tells where its multicasts go.
const INTRODUCTION: u8 = 32;
/// The sender receives the multicasts of the receiver.
const HEARD: u8 = 64;
/// The sender knows of fragments that are missing.
const MISSING: u8 = 128;

/// The number of datagrams by which one may be late and is not taken for a replay.
const REPLAY_WINDOW: u64 = 1024;
const REPLAY_WORDS: usize = REPLAY_WINDOW as usize / 64;

/// The content of a datagram, without the bytes of its fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) prompt: bool,
    pub(super) acknowledgement: Acknowledgement,
    pub(super) fragment: Option<(Fragment, [u8; HEADER_BYTES])>,
    /// The number of fragments that the leaving sender has sent in all.
    pub(super) bye: Option<u64>,
    /// Whether the sender receives the receiver's multicasts.
    pub(super) heard: bool,
    pub(super) introduction: Option<Introduction>,
}

/// Where a node's multicasts go and how they are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Introduction {
    /// The first bytes of each multicast.
    pub(super) epoch: u64,
    /// The salt from which, with the secret of the cluster, their key is derived.
    pub(super) salt: [u8; SALT_BYTES],
    pub(super) address: SocketAddrV4,
}

/// Writes the datagrams of one direction.
pub(super) struct Writer {
    epoch: u64,
    number: u64,
    cipher: DatagramCipher,
}

/// The head of a datagram.
pub(super) struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    length: usize,
}

impl Head {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Writer {
    pub(super) fn new(epoch: u64, cipher: DatagramCipher) -> Writer {
        Writer { epoch, number: 0, cipher }
    }

    /// Whether a fragment may be sent without a copy.
    pub(super) fn is_plain(&self) -> bool {
        self.cipher.tag_bytes() == 0
    }

    /// The head of the next datagram.
    #[inline]
    pub(super) fn head(&mut self, content: &Content) -> Head {
        self.number += 1;
        let mut head = Head { bytes: [0; HEAD_BYTES_MAX], length: 0 };
        let acknowledgement = &content.acknowledgement;
        let gap = match (&content.fragment, acknowledgement.has_gap()) {
            (_, false) => 0,
            (Some(_), true) => GAP,
            (None, true) => GAPS,
        };
        let flags = gap
            | if content.prompt { PROMPT } else { 0 }
            | if content.fragment.is_some() { FRAGMENT } else { 0 }
            | if content.bye.is_some() { BYE } else { 0 }
            | if content.introduction.is_some() { INTRODUCTION } else { 0 }
            | if content.heard { HEARD } else { 0 }
            | if acknowledgement.expected > 0 { MISSING } else { 0 };
        head.put(&self.epoch.to_le_bytes());
        head.put(&self.number.to_le_bytes());
        head.put(&[flags]);
        head.put(&u16::try_from(acknowledgement.room_bytes >> 10).unwrap_or(u16::MAX).to_le_bytes());
        head.put(&acknowledgement.cumulative.to_le_bytes());
        let words = match gap {
            GAP => 1,
            GAPS => acknowledgement.beyond.len(),
            _ => 0,
        };
        acknowledgement.beyond[..words].iter().for_each(|word| head.put(&word.to_le_bytes()));
        if acknowledgement.expected > 0 {
            head.put(&(acknowledgement.expected as u16).to_le_bytes());
        }
        if let Some(count) = content.bye {
            head.put(&count.to_le_bytes());
        }
        if let Some(introduction) = &content.introduction {
            head.put(&introduction.epoch.to_le_bytes());
            head.put(&introduction.salt);
            head.put(&introduction.address.ip().octets());
            head.put(&introduction.address.port().to_le_bytes());
        }
        if let Some((fragment, header)) = &content.fragment {
            head.put(&fragment.sequence.to_le_bytes());
            head.put(&fragment.index.to_le_bytes());
            head.put(&fragment.body_bytes.to_le_bytes());
            head.put(&(fragment.fragment_bytes as u16).to_le_bytes());
            head.put(header);
        }
        head
    }

    /// Protects the datagram whose head was made last, complete in `datagram`, and appends its tag.
    #[inline]
    pub(super) fn protect(&self, datagram: &mut Vec<u8>) {
        let tag = self.cipher.protect(self.number, CLEAR_BYTES, datagram);
        datagram.extend_from_slice(&tag[..self.cipher.tag_bytes()]);
    }
}

/// Reads the datagrams of one direction.
pub(super) struct Reader {
    epoch: u64,
    cipher: DatagramCipher,
    seen: Seen,
}

/// The datagram is not from the peer, was changed in transit, or was received before.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Foreign;

impl Reader {
    pub(super) fn new(epoch: u64, cipher: DatagramCipher) -> Reader {
        Reader { epoch, cipher, seen: Seen::default() }
    }

    /// Opens a datagram in place; returns its content and the range of its fragment.
    #[inline]
    pub(super) fn read(&mut self, datagram: &mut [u8]) -> Result<(Content, std::ops::Range<usize>), Foreign> {
        if datagram.len() < FIXED_BYTES {
            return Err(Foreign);
        }
        let mut cursor = Cursor { bytes: datagram, at: 0 };
        let (epoch, number) = (cursor.u64()?, cursor.u64()?);
        if epoch != self.epoch || !self.seen.is_new(number) {
            return Err(Foreign);
        }
        let length = self.cipher.open(number, CLEAR_BYTES, datagram).map_err(|_| Foreign)?;
        // The number is noted only after authentication; otherwise a forged one would displace true ones.
        self.seen.note(number);
        parse(&datagram[..length])
    }
}

fn parse(bytes: &[u8]) -> Result<(Content, std::ops::Range<usize>), Foreign> {
    let mut cursor = Cursor { bytes, at: CLEAR_BYTES };
    let flags = cursor.take::<1>()?[0];
    let room_bytes = u32::from(u16::from_le_bytes(cursor.take()?)) << 10;
    let mut acknowledgement = Acknowledgement { cumulative: cursor.u64()?, room_bytes, ..Default::default() };
    let words = match flags & (GAP | GAPS) {
        0 => 0,
        GAP => 1,
        _ => acknowledgement.beyond.len(),
    };
    for word in &mut acknowledgement.beyond[..words] {
        *word = cursor.u64()?;
    }
    if flags & MISSING != 0 {
        acknowledgement.expected = u32::from(u16::from_le_bytes(cursor.take()?));
    }
    let bye = if flags & BYE != 0 { Some(cursor.u64()?) } else { None };
    let mut introduction = None;
    if flags & INTRODUCTION != 0 {
        let (epoch, salt) = (cursor.u64()?, cursor.take()?);
        let (address, port) = (cursor.take::<4>()?, u16::from_le_bytes(cursor.take()?));
        introduction = Some(Introduction { epoch, salt, address: SocketAddrV4::new(address.into(), port) });
    }
    let mut fragment = None;
    if flags & FRAGMENT != 0 {
        let sequence = cursor.u64()?;
        let (index, body_bytes) = (u32::from_le_bytes(cursor.take()?), u32::from_le_bytes(cursor.take()?));
        let fragment_bytes = u32::from(u16::from_le_bytes(cursor.take()?));
        fragment = Some((Fragment { sequence, index, body_bytes, fragment_bytes }, cursor.take()?));
    }
    let (prompt, heard) = (flags & PROMPT != 0, flags & HEARD != 0);
    let content = Content { prompt, acknowledgement, fragment, bye, heard, introduction };
    Ok((content, cursor.at..bytes.len()))
}

/// Reads numbers in sequence.
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl Cursor<'_> {
    #[inline]
    pub(super) fn take<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], Foreign> {
        let bytes = self.bytes.get(self.at..self.at + COUNT).ok_or(Foreign)?;
        self.at += COUNT;
        bytes.try_into().map_err(|_| Foreign)
    }

    #[inline]
    pub(super) fn u64(&mut self) -> Result<u64, Foreign> {
        Ok(u64::from_le_bytes(self.take()?))
    }
}

/// The numbers that were received.
#[derive(Default)]
pub(super) struct Seen {
    /// The highest number. `bits` has one bit for it and for those below: bit `n % REPLAY_WINDOW` for number `n`.
    highest: u64,
    bits: [u64; REPLAY_WORDS],
}

impl Seen {
    #[inline]
    pub(super) fn is_new(&self, number: u64) -> bool {
        number > self.highest || (number + REPLAY_WINDOW > self.highest && !self.has(number))
    }

    #[inline]
    fn has(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.bits[word] & bit != 0
    }

    #[inline]
    pub(super) fn note(&mut self, number: u64) {
        if number > self.highest {
            let skipped = (number - self.highest).min(REPLAY_WINDOW);
            for passed in number - skipped + 1..number {
                let (word, bit) = place(passed);
                self.bits[word] &= !bit;
            }
            self.highest = number;
        }
        let (word, bit) = place(number);
        self.bits[word] |= bit;
    }
}

#[inline]
fn place(number: u64) -> (usize, u64) {
    let at = number % REPLAY_WINDOW;
    ((at / 64) as usize, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Security;
    use crate::wrap::secure::{Answering, Carrier, Dialling, NodeDescription};

    fn pair(security: Security) -> (Writer, Reader) {
        let description =
            NodeDescription { version: 1, refused: false, security: 0, from: 1, to: 0, nodes: 2, text: Vec::new() };
        let (mut dialling, first) = Dialling::start(Carrier::Datagrams, &[3; 32], &description).unwrap();
        let (mut answering, _) = Answering::read(Carrier::Datagrams, &[3; 32], &first).unwrap();
        let (_, near, third) = dialling.finish(&answering.answer(&description).unwrap(), security).unwrap();
        let far = answering.confirm(&third, security).unwrap();
        (Writer::new(77, near.sealer.into_cipher()), Reader::new(77, far.opener.into_cipher()))
    }

    fn content(fragment: bool, beyond: [u64; 4], bye: Option<u64>) -> Content {
        let fragment = fragment.then(|| {
            let fragment = Fragment { sequence: 9, index: 2, body_bytes: 5000, fragment_bytes: 1400 };
            (fragment, [6; HEADER_BYTES])
        });
        let expected = if bye.is_some() { 200 } else { 0 };
        let acknowledgement = Acknowledgement { cumulative: 5, beyond, room_bytes: 64 << 10, expected };
        let introduction = bye.map(|_| Introduction {
            epoch: 3 << 62,
            salt: [8; SALT_BYTES],
            address: SocketAddrV4::new([239, 1, 2, 3].into(), 4567),
        });
        Content { prompt: bye.is_none(), acknowledgement, fragment, bye, heard: fragment.is_some(), introduction }
    }

    fn write(writer: &mut Writer, content: &Content, body: &[u8]) -> Vec<u8> {
        let mut datagram = writer.head(content).bytes().to_vec();
        datagram.extend_from_slice(body);
        writer.protect(&mut datagram);
        datagram
    }

    #[test]
    fn what_is_written_is_read_in_every_security_and_form() {
        for security in [Security::Plain, Security::Signed, Security::Sealed] {
            let (mut writer, mut reader) = pair(security);
            for beyond in [[0; 4], [2, 0, 0, 0], [4, 0, 0, 1 << 63]] {
                for (fragment, bye) in [(true, None), (false, None), (false, Some(8))] {
                    let mut content = content(fragment, beyond, bye);
                    let body: &[u8] = if fragment { &[1, 2, 3] } else { &[] };
                    let mut datagram = write(&mut writer, &content, body);
                    if fragment {
                        assert!(datagram.len() <= OVERHEAD_BYTES + body.len());
                        // There is only room for the nearest fragments.
                        content.acknowledgement.beyond[1..].fill(0);
                    }
                    let (read, range) = reader.read(&mut datagram).unwrap();
                    assert_eq!((read, &datagram[range]), (content, body));
                }
            }
        }
    }

    #[test]
    fn a_datagram_that_was_changed_cut_or_repeated_is_foreign_and_changes_nothing() {
        for security in [Security::Signed, Security::Sealed] {
            let (mut writer, mut reader) = pair(security);
            let datagram = write(&mut writer, &content(true, [2, 0, 0, 0], None), &[7; 40]);
            for at in 0..datagram.len() {
                for bit in 0..8 {
                    let mut changed = datagram.clone();
                    changed[at] ^= 1 << bit;
                    assert_eq!(reader.read(&mut changed), Err(Foreign), "bit {bit} of byte {at}");
                }
                assert_eq!(reader.read(&mut datagram.clone()[..at]), Err(Foreign), "cut to {at}");
            }
            // The true datagram still opens after all these attempts with its number.
            assert!(reader.read(&mut datagram.clone()).is_ok());
            assert_eq!(reader.read(&mut datagram.clone()), Err(Foreign), "repeated");
        }
        let (mut writer, mut reader) = pair(Security::Plain);
        let datagram = write(&mut writer, &content(true, [0; 4], None), &[7; 40]);
        let mut other_epoch = datagram.clone();
        other_epoch[3] ^= 1;
        assert_eq!(reader.read(&mut other_epoch), Err(Foreign));
        for length in 0..OVERHEAD_BYTES - TAG_BYTES - 10 {
            assert_eq!(reader.read(&mut datagram.clone()[..length]), Err(Foreign), "cut to {length}");
        }
    }

    #[test]
    fn each_number_is_new_once_whatever_the_order_and_old_ones_are_refused() {
        let mut seen = Seen::default();
        // Every number arrives, in a mixed order within the window.
        for block in 0..20_u64 {
            for at in 0..500_u64 {
                let number = 1 + block * 500 + (at * 7919) % 500;
                assert!(seen.is_new(number), "{number}");
                seen.note(number);
                assert!(!seen.is_new(number), "{number}");
            }
        }
        assert!(!seen.is_new(10_000 - REPLAY_WINDOW));
        seen.note(1 << 40);
        assert!(!seen.is_new(10_001) && seen.is_new((1 << 40) - 1));
    }
}
