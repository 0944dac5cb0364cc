//! The format of a datagram for several nodes at once, and the check of its sender.
//!
//! Promises: if the link is signed or sealed, what is read was sent by a node that knows the secret of the cluster, in
//! this run of the sender, once, and is unchanged. If it is plain, its sender knew the epoch, as with
//! [`super::datagram`]. Nothing is allocated for a datagram that is not authentic.
//!
//! It must never use sockets, or decide what a fragment means.
//!
//! ```text
//!  0  u64  epoch: whose multicasts these are, as the introduction said
//!  8  u64  number of the datagram: counts up, never used twice; the nonce
//! 16  u8   flags
//! 17  u8   how many nodes are addressed
//! 18       for each: u16 its number, u32 low half of the number that the fragment has in this pair's direction;
//!          without a fragment, of how many fragments there were
//!          with FRAGMENT: u32 index, u32 bytes of the body, u16 bytes of a fragment, 32 B header of the frame,
//!          then the fragment
//!          16 B tag where signed or sealed
//! ```
//!
//! A node that is not addressed only notes the datagram's number.

use super::datagram::{CLEAR_BYTES, Cursor, Foreign, OVERHEAD_BYTES, PROMPT, Seen};
use super::delivery::Fragment;
use crate::HEADER_BYTES;
use crate::wrap::protection::{DatagramCipher, TAG_BYTES};

/// The maximum number of nodes that one datagram addresses; further nodes need another one.
pub(super) const ADDRESSED_MAX: usize = 64;
const FRAGMENT: u8 = 2;
const FIXED_BYTES: usize = 18;
const ADDRESSED_BYTES: usize = 6;
const FRAGMENT_BYTES: usize = 10 + HEADER_BYTES;

/// A node that is addressed, and its number: that of the fragment, or the count of fragments.
pub(super) type Addressed = (u16, u64);

/// The content of a datagram for this node, without the bytes of its fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MulticastContent {
    pub(super) prompt: bool,
    /// The low half of the number for this node; `None` if the node is not addressed.
    pub(super) number: Option<u32>,
    /// The fragment, without its number, and the header of its frame.
    pub(super) fragment: Option<(Fragment, [u8; HEADER_BYTES])>,
}

/// The size of such a datagram without the bytes of its fragment; never less than that of one for a single node, so
/// that a fragment can be sent again to a node that missed it.
pub(super) fn overhead_bytes(addressed: usize) -> usize {
    (FIXED_BYTES + ADDRESSED_BYTES * addressed + FRAGMENT_BYTES + TAG_BYTES).max(OVERHEAD_BYTES)
}

/// Writes the multicasts of this node.
pub(super) struct Writer {
    epoch: u64,
    number: u64,
    cipher: DatagramCipher,
}

impl Writer {
    pub(super) fn new(epoch: u64, cipher: DatagramCipher) -> Writer {
        Writer { epoch, number: 0, cipher }
    }

    /// Whether a fragment may be sent without a copy.
    pub(super) fn is_plain(&self) -> bool {
        self.cipher.tag_bytes() == 0
    }

    /// Writes the head of the next datagram into `head`.
    pub(super) fn head(
        &mut self,
        prompt: bool,
        addressed: impl ExactSizeIterator<Item = Addressed>,
        fragment: Option<(&Fragment, &[u8; HEADER_BYTES])>,
        head: &mut Vec<u8>,
    ) {
        assert!(addressed.len() <= ADDRESSED_MAX);
        self.number += 1;
        head.clear();
        head.extend_from_slice(&self.epoch.to_le_bytes());
        head.extend_from_slice(&self.number.to_le_bytes());
        head.push(if prompt { PROMPT } else { 0 } | if fragment.is_some() { FRAGMENT } else { 0 });
        head.push(addressed.len() as u8);
        for (node, number) in addressed {
            head.extend_from_slice(&node.to_le_bytes());
            head.extend_from_slice(&(number as u32).to_le_bytes());
        }
        if let Some((fragment, header)) = fragment {
            head.extend_from_slice(&fragment.index.to_le_bytes());
            head.extend_from_slice(&fragment.body_bytes.to_le_bytes());
            head.extend_from_slice(&(fragment.fragment_bytes as u16).to_le_bytes());
            head.extend_from_slice(header);
        }
    }

    /// Protects the datagram whose head was made last, complete in `datagram`, and appends its tag.
    pub(super) fn protect(&self, datagram: &mut Vec<u8>) {
        let tag = self.cipher.protect(self.number, CLEAR_BYTES, datagram);
        datagram.extend_from_slice(&tag[..self.cipher.tag_bytes()]);
    }
}

/// Reads the multicasts of one peer.
pub(super) struct Reader {
    node: u16,
    epoch: u64,
    cipher: DatagramCipher,
    seen: Seen,
}

impl Reader {
    /// `node` is the reader's number.
    pub(super) fn new(node: u16, epoch: u64, cipher: DatagramCipher) -> Reader {
        Reader { node, epoch, cipher, seen: Seen::default() }
    }

    /// Opens a datagram in place; returns its content and the range of its fragment.
    pub(super) fn read(&mut self, datagram: &mut [u8]) -> Result<(MulticastContent, std::ops::Range<usize>), Foreign> {
        let mut cursor = Cursor { bytes: datagram, at: 0 };
        let (epoch, number) = (cursor.u64()?, cursor.u64()?);
        if epoch != self.epoch || !self.seen.is_new(number) {
            return Err(Foreign);
        }
        let length = self.cipher.open(number, CLEAR_BYTES, datagram).map_err(|_| Foreign)?;
        // The number is noted only after authentication; otherwise a forged one would displace true ones.
        self.seen.note(number);
        parse(self.node, &datagram[..length])
    }
}

fn parse(node: u16, bytes: &[u8]) -> Result<(MulticastContent, std::ops::Range<usize>), Foreign> {
    let mut cursor = Cursor { bytes, at: CLEAR_BYTES };
    let [flags, count] = cursor.take()?;
    let mut mine = None;
    for _ in 0..count {
        let (addressed, number) = (u16::from_le_bytes(cursor.take()?), u32::from_le_bytes(cursor.take()?));
        if addressed == node {
            mine = Some(number);
        }
    }
    let mut fragment = None;
    if flags & FRAGMENT != 0 {
        let (index, body_bytes) = (u32::from_le_bytes(cursor.take()?), u32::from_le_bytes(cursor.take()?));
        let fragment_bytes = u32::from(u16::from_le_bytes(cursor.take()?));
        fragment = Some((Fragment { sequence: 0, index, body_bytes, fragment_bytes }, cursor.take()?));
    }
    Ok((MulticastContent { prompt: flags & PROMPT != 0, number: mine, fragment }, cursor.at..bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Security;
    use crate::wrap::secure::{SALT_BYTES, multicast_cipher};

    const EPOCH: u64 = 1 << 63 | 5;

    fn cipher(security: Security, node: usize) -> DatagramCipher {
        multicast_cipher(&[3; 32], node, &[4; SALT_BYTES], security).unwrap()
    }

    fn write(writer: &mut Writer, addressed: &[Addressed], fragment: bool, body: &[u8]) -> Vec<u8> {
        let fragment = fragment.then_some(Fragment { sequence: 0, index: 2, body_bytes: 5000, fragment_bytes: 1400 });
        let mut datagram = Vec::new();
        let fragment = fragment.as_ref().map(|fragment| (fragment, &[6; HEADER_BYTES]));
        writer.head(true, addressed.iter().copied(), fragment, &mut datagram);
        datagram.extend_from_slice(body);
        writer.protect(&mut datagram);
        datagram
    }

    #[test]
    fn who_is_addressed_reads_its_number_and_others_read_that_they_are_not() {
        for security in [Security::Plain, Security::Signed, Security::Sealed] {
            let mut writer = Writer::new(EPOCH, cipher(security, 1));
            let addressed = [(2, 10), (7, (1 << 32) + 11), (9, 12)];
            for (fragment, body) in [(true, &[1, 2, 3][..]), (false, &[])] {
                let datagram = write(&mut writer, &addressed, fragment, body);
                assert!(datagram.len() <= overhead_bytes(3) + body.len());
                for (node, number) in [(2, Some(10)), (7, Some(11)), (9, Some(12)), (3, None)] {
                    let mut reader = Reader::new(node, EPOCH, cipher(security, 1));
                    let mut datagram = datagram.clone();
                    let (heard, range) = reader.read(&mut datagram).unwrap();
                    assert_eq!((heard.prompt, heard.number, heard.fragment.is_some()), (true, number, fragment));
                    assert_eq!(&datagram[range], body);
                }
            }
            let all: Vec<_> = (0..ADDRESSED_MAX as u16).map(|node| (node, 1)).collect();
            let datagram = write(&mut writer, &all, true, &[1; 100]);
            assert!(datagram.len() <= overhead_bytes(ADDRESSED_MAX) + 100);
        }
    }

    #[test]
    fn a_datagram_that_was_changed_cut_or_repeated_or_is_another_nodes_is_foreign_and_changes_nothing() {
        for security in [Security::Signed, Security::Sealed] {
            let mut writer = Writer::new(EPOCH, cipher(security, 1));
            let mut reader = Reader::new(2, EPOCH, cipher(security, 1));
            let datagram = write(&mut writer, &[(2, 1), (3, 1)], true, &[7; 40]);
            for at in 0..datagram.len() {
                for bit in 0..8 {
                    let mut changed = datagram.clone();
                    changed[at] ^= 1 << bit;
                    assert_eq!(reader.read(&mut changed), Err(Foreign), "bit {bit} of byte {at}");
                }
                assert_eq!(reader.read(&mut datagram.clone()[..at]), Err(Foreign), "cut to {at}");
            }
            // Another member sends this, with this one's epoch.
            let mut other = Writer::new(EPOCH, cipher(security, 4));
            assert_eq!(reader.read(&mut write(&mut other, &[(2, 1)], true, &[7; 40])), Err(Foreign));
            assert!(reader.read(&mut datagram.clone()).is_ok());
            assert_eq!(reader.read(&mut datagram.clone()), Err(Foreign), "repeated");
        }
        let mut writer = Writer::new(EPOCH, cipher(Security::Plain, 1));
        let mut reader = Reader::new(2, EPOCH ^ 1, cipher(Security::Plain, 1));
        assert_eq!(reader.read(&mut write(&mut writer, &[(2, 1)], false, &[])), Err(Foreign));
        // Plain datagrams are not authenticated: an impossible length is noticed nevertheless.
        let datagram = write(&mut writer, &[(2, 1), (3, 1)], true, &[]);
        for length in 0..datagram.len() {
            let mut reader = Reader::new(2, EPOCH, cipher(Security::Plain, 1));
            assert_eq!(reader.read(&mut datagram.clone()[..length]), Err(Foreign), "cut to {length}");
        }
    }
}
