//! The control messages that two nodes of the link `fabric` exchange over the tcp connection that authenticates them.
//!
//! Promises: the address of an endpoint and the cookie of a pair travel only here. Everything that arrives from a peer
//! is read with bounds checks.
//!
//! It must never do more than encode and decode.

use super::device::{ADDRESS_BYTES_MAX, Target};
use crate::{BODY_BYTES_MAX, HEADER_BYTES};

/// The longest [`Hello`].
pub(super) const FABRIC_HELLO_BYTES_MAX: usize = ADDRESS_BYTES_MAX + 256;

/// One message; a body may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// A [`Hello`] of this length in bytes follows.
    Hello(usize),
    /// Packets may have arrived that woke no thread: the receiver must look, and then report what it saw.
    WakeUp,
    /// The report after a [`Said::WakeUp`].
    Seen {
        /// The number of packets that were seen.
        packets: u64,
        /// The number of frames that were delivered.
        delivered: u64,
    },
    /// The header, and then the body, of a frame follow that its sender no longer sends over the fabric.
    Detour {
        /// Its number in the order of frames.
        sequence: u64,
        /// The length of its body.
        bytes: usize,
    },
    /// The body of that frame, with its length.
    DetourBody(usize),
    /// The sender has dropped this peer.
    Dropped,
    /// The sender's shared memory, for bodies that the receiver writes.
    Shared(Target),
}

const HELLO: u8 = 1;
const WAKE_UP: u8 = 2;
const SEEN: u8 = 3;
const DETOUR: u8 = 4;
const DETOUR_BODY: u8 = 5;
const DROPPED: u8 = 6;
const SHARED: u8 = 7;

impl Said {
    pub(super) fn write(self) -> [u8; HEADER_BYTES] {
        let (kind, first, second, third) = match self {
            Said::Hello(bytes) => (HELLO, bytes as u64, 0, 0),
            Said::WakeUp => (WAKE_UP, 0, 0, 0),
            Said::Seen { packets, delivered } => (SEEN, packets, delivered, 0),
            Said::Detour { sequence, bytes } => (DETOUR, bytes as u64, sequence, 0),
            Said::DetourBody(bytes) => (DETOUR_BODY, bytes as u64, 0, 0),
            Said::Dropped => (DROPPED, 0, 0, 0),
            Said::Shared(Target { address, key, bytes }) => (SHARED, address, key, bytes),
        };
        let mut header = [0; HEADER_BYTES];
        header[0] = kind;
        header[8..16].copy_from_slice(&first.to_le_bytes());
        header[16..24].copy_from_slice(&second.to_le_bytes());
        header[24..32].copy_from_slice(&third.to_le_bytes());
        header
    }

    pub(super) fn read(header: &[u8; HEADER_BYTES]) -> Option<Said> {
        let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        let bytes = |most: usize| usize::try_from(number(8)).ok().filter(|&bytes| bytes <= most);
        Some(match header[0] {
            HELLO => Said::Hello(bytes(FABRIC_HELLO_BYTES_MAX)?),
            WAKE_UP => Said::WakeUp,
            SEEN => Said::Seen { packets: number(8), delivered: number(16) },
            DETOUR => Said::Detour { sequence: number(16), bytes: bytes(BODY_BYTES_MAX)? },
            DETOUR_BODY => Said::DetourBody(bytes(BODY_BYTES_MAX)?),
            DROPPED => Said::Dropped,
            SHARED => Said::Shared(Target { address: number(8), key: number(16), bytes: number(24) }),
            _ => return None,
        })
    }
}

/// How a peer reaches this node's endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The cookie that the peer must put into every packet.
    pub(super) cookie: u64,
    /// The number of frames that the peer may send before the first of them is delivered.
    pub(super) window: u64,
    /// The provider; equal at both ends.
    pub(super) provider: String,
    /// The endpoint's address, in the provider's format.
    pub(super) address: Vec<u8>,
}

impl Hello {
    pub(super) fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.cookie.to_le_bytes());
        bytes.extend_from_slice(&self.window.to_le_bytes());
        bytes.push(u8::try_from(self.provider.len()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(&self.provider.as_bytes()[..self.provider.len().min(usize::from(u8::MAX))]);
        bytes.extend_from_slice(&self.address);
        bytes.truncate(FABRIC_HELLO_BYTES_MAX);
        bytes
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Hello> {
        let (cookie, rest) = bytes.split_first_chunk::<8>()?;
        let (window, rest) = rest.split_first_chunk::<8>()?;
        let (&length, rest) = rest.split_first()?;
        let (provider, address) = rest.split_at_checked(usize::from(length))?;
        let hello = Hello {
            cookie: u64::from_le_bytes(*cookie),
            window: u64::from_le_bytes(*window),
            provider: std::str::from_utf8(provider).ok()?.to_owned(),
            address: address.to_vec(),
        };
        (hello.window > 0 && !hello.address.is_empty() && address.len() <= ADDRESS_BYTES_MAX).then_some(hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        for said in [
            Said::Hello(77),
            Said::WakeUp,
            Said::Seen { packets: u64::MAX, delivered: 3 },
            Said::Detour { sequence: 5, bytes: BODY_BYTES_MAX },
            Said::DetourBody(1),
            Said::Dropped,
            Said::Shared(Target { address: 1 << 47, key: u64::MAX, bytes: 1 << 30 }),
        ] {
            assert_eq!(Said::read(&said.write()), Some(said));
        }
        assert_eq!(Said::read(&Said::DetourBody(BODY_BYTES_MAX + 1).write()), None);
        assert_eq!(Said::read(&Said::Hello(FABRIC_HELLO_BYTES_MAX + 1).write()), None);
        assert_eq!(Said::read(&[0; HEADER_BYTES]), None);
    }

    #[test]
    fn a_hello_is_read_back_and_a_cut_one_is_refused() {
        let hello =
            Hello { cookie: 1 << 60, window: 16, provider: "tcp;ofi_rxm".to_owned(), address: vec![2, 0, 9, 9] };
        let bytes = hello.write();
        assert_eq!(Hello::read(&bytes), Some(hello));
        // This covers all lengths up to the end of the provider's name; after it, only the address is shorter.
        for cut in 0..=bytes.len() - 4 {
            assert_eq!(Hello::read(&bytes[..cut]), None, "{cut}");
        }
    }
}
