//! The protection of frames and datagrams, once a handshake has given the keys.
//!
//! Promises: each record has its own nonce, which contains the kind of the record. A frame that was changed, repeated,
//! reordered or sent back to its sender is not opened, nor is the one after a dropped frame.
//!
//! It must never choose a key, or use one for both directions. [`super::secure`] has the layout.

use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, Tag, UnboundKey};

use super::secure::Security;
use crate::HEADER_BYTES;

pub(crate) const TAG_BYTES: usize = 16;
/// The longest header on the wire: the header and its tag.
pub(crate) const WIRE_HEADER_BYTES_MAX: usize = HEADER_BYTES + TAG_BYTES;

/// The other side does not know the secret, or its bytes were changed in transit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotAuthentic;

/// Whether this processor has instructions for AES-GCM.
pub(super) fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    let has = std::arch::is_aarch64_feature_detected!("aes") && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has = false;
    has
}

/// The kind of a record; part of its nonce, so that no kind is taken for another.
#[derive(Clone, Copy)]
enum Record {
    Confirmation = 0,
    Header = 1,
    Body = 2,
    Datagram = 3,
}

/// Protects the frames of one direction.
pub(crate) struct Sealer {
    pub(super) cipher: Cipher,
    security: Security,
    counter: u64,
}

impl Sealer {
    pub(super) fn new(cipher: Cipher, security: Security) -> Sealer {
        Sealer { cipher, security, counter: 0 }
    }

    pub(crate) fn security(&self) -> Security {
        self.security
    }

    /// Makes the cipher for a connection of datagrams. The caller must never repeat a number.
    pub(crate) fn into_cipher(self) -> DatagramCipher {
        DatagramCipher { cipher: self.cipher, security: self.security }
    }

    pub(super) fn confirm(&mut self, hash: &[u8]) -> [u8; TAG_BYTES] {
        self.cipher.tag(next_nonce(&mut self.counter, Record::Confirmation), hash, &mut [])
    }

    /// Writes the header as it is sent; returns its length in bytes.
    #[inline]
    pub(crate) fn header(&mut self, header: &[u8; HEADER_BYTES], wire: &mut [u8; WIRE_HEADER_BYTES_MAX]) -> usize {
        wire[..HEADER_BYTES].copy_from_slice(header);
        if self.security == Security::Plain {
            return HEADER_BYTES;
        }
        let nonce = next_nonce(&mut self.counter, Record::Header);
        let (bytes, tag_bytes) = wire.split_at_mut(HEADER_BYTES);
        let tag = match self.security {
            Security::Sealed => self.cipher.tag(nonce, &[], bytes),
            _ => self.cipher.tag(nonce, bytes, &mut []),
        };
        tag_bytes.copy_from_slice(&tag);
        WIRE_HEADER_BYTES_MAX
    }

    /// The tag of a body that is sent unencrypted.
    pub(crate) fn sign_body(&mut self, body: &[u8]) -> [u8; TAG_BYTES] {
        assert!(self.security == Security::Signed && !body.is_empty());
        self.cipher.tag(next_nonce(&mut self.counter, Record::Body), body, &mut [])
    }

    /// Encrypts a body in place; returns its tag.
    pub(crate) fn seal_body(&mut self, body: &mut [u8]) -> [u8; TAG_BYTES] {
        assert!(self.security == Security::Sealed && !body.is_empty());
        self.cipher.tag(next_nonce(&mut self.counter, Record::Body), &[], body)
    }
}

/// Protects or opens the datagrams of one direction, each by its own number.
pub(crate) struct DatagramCipher {
    cipher: Cipher,
    security: Security,
}

impl DatagramCipher {
    pub(super) fn new(cipher: Cipher, security: Security) -> DatagramCipher {
        DatagramCipher { cipher, security }
    }

    /// The number of bytes that are added after each datagram.
    #[inline]
    pub(crate) fn tag_bytes(&self) -> usize {
        if self.security == Security::Plain { 0 } else { TAG_BYTES }
    }

    /// Protects a datagram whose first `clear` bytes stay readable; returns its tag. The number must never have been
    /// used before.
    #[inline]
    pub(crate) fn protect(&self, number: u64, clear: usize, datagram: &mut [u8]) -> [u8; TAG_BYTES] {
        let nonce = nonce(number, Record::Datagram);
        match self.security {
            Security::Plain => [0; TAG_BYTES],
            Security::Signed => self.cipher.tag(nonce, datagram, &mut []),
            Security::Sealed => {
                let (shown, hidden) = datagram.split_at_mut(clear);
                self.cipher.tag(nonce, shown, hidden)
            }
        }
    }

    /// Checks and opens a datagram in place; returns its length in bytes without its tag.
    #[inline]
    pub(crate) fn open(&self, number: u64, clear: usize, datagram: &mut [u8]) -> Result<usize, NotAuthentic> {
        let length = datagram.len().checked_sub(self.tag_bytes()).ok_or(NotAuthentic)?;
        if length < clear {
            return Err(NotAuthentic);
        }
        let (text, sent) = datagram.split_at_mut(length);
        let nonce = nonce(number, Record::Datagram);
        match self.security {
            Security::Plain => {}
            Security::Signed => self.cipher.check(nonce, text, &mut [], as_tag(sent)?)?,
            Security::Sealed => {
                let (shown, hidden) = text.split_at_mut(clear);
                self.cipher.check(nonce, shown, hidden, as_tag(sent)?)?;
            }
        }
        Ok(length)
    }
}

fn as_tag(bytes: &[u8]) -> Result<&[u8; TAG_BYTES], NotAuthentic> {
    bytes.try_into().map_err(|_| NotAuthentic)
}

/// Checks and opens the frames of one direction, in the order in which they were protected.
pub(crate) struct Opener {
    pub(super) cipher: Cipher,
    security: Security,
    counter: u64,
}

impl Opener {
    pub(super) fn new(cipher: Cipher, security: Security) -> Opener {
        Opener { cipher, security, counter: 0 }
    }

    /// Makes the cipher for a connection of datagrams.
    pub(crate) fn into_cipher(self) -> DatagramCipher {
        DatagramCipher { cipher: self.cipher, security: self.security }
    }

    pub(super) fn confirm(&mut self, hash: &[u8], sent: &[u8; TAG_BYTES]) -> Result<(), NotAuthentic> {
        let nonce = next_nonce(&mut self.counter, Record::Confirmation);
        self.cipher.check(nonce, hash, &mut [], sent)
    }

    /// The length of a header on the wire in bytes.
    #[inline]
    pub(crate) fn wire_header_bytes(&self) -> usize {
        match self.security {
            Security::Plain => HEADER_BYTES,
            _ => WIRE_HEADER_BYTES_MAX,
        }
    }

    /// The number of bytes that follow a body that is not empty.
    #[inline]
    pub(crate) fn body_tag_bytes(&self) -> usize {
        match self.security {
            Security::Plain => 0,
            _ => TAG_BYTES,
        }
    }

    /// Checks and opens `wire`, which has [`Self::wire_header_bytes`] bytes.
    #[inline]
    pub(crate) fn header(&mut self, wire: &[u8]) -> Result<[u8; HEADER_BYTES], NotAuthentic> {
        assert_eq!(wire.len(), self.wire_header_bytes());
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&wire[..HEADER_BYTES]);
        if self.security == Security::Plain {
            return Ok(header);
        }
        let mut sent = [0; TAG_BYTES];
        sent.copy_from_slice(&wire[HEADER_BYTES..]);
        let nonce = next_nonce(&mut self.counter, Record::Header);
        match self.security {
            Security::Sealed => self.cipher.check(nonce, &[], &mut header, &sent)?,
            _ => self.cipher.check(nonce, &header, &mut [], &sent)?,
        }
        Ok(header)
    }

    /// Checks a body and opens it in place. After an error its bytes are undefined.
    pub(crate) fn body(&mut self, body: &mut [u8], sent: &[u8; TAG_BYTES]) -> Result<(), NotAuthentic> {
        match self.security {
            Security::Plain => Ok(()),
            Security::Signed => {
                let nonce = next_nonce(&mut self.counter, Record::Body);
                self.cipher.check(nonce, body, &mut [], sent)
            }
            Security::Sealed => {
                let nonce = next_nonce(&mut self.counter, Record::Body);
                self.cipher.check(nonce, &[], body, sent)
            }
        }
    }
}

/// The counter never overflows: 2^64 records at a billion per second take five centuries.
#[inline]
fn next_nonce(counter: &mut u64, record: Record) -> Nonce {
    let nonce = nonce(*counter, record);
    *counter += 1;
    nonce
}

#[inline]
fn nonce(number: u64, record: Record) -> Nonce {
    let mut nonce = [0; 12];
    nonce[0] = record as u8;
    nonce[4..].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// A cipher with its key. The caller gives each record its own nonce.
pub(super) struct Cipher(LessSafeKey);

impl Cipher {
    #[cfg(test)]
    pub(super) fn is_aes(&self) -> bool {
        self.0.algorithm() == &AES_256_GCM
    }

    pub(super) fn new(key: &[u8; 32], is_aes: bool) -> Cipher {
        let algorithm = if is_aes { &AES_256_GCM } else { &CHACHA20_POLY1305 };
        Cipher(LessSafeKey::new(UnboundKey::new(algorithm, key).expect("both ciphers have keys of 32 bytes")))
    }

    /// Encrypts `sealed` in place. The tag covers it and `read`, which stays readable.
    #[inline]
    fn tag(&self, nonce: Nonce, read: &[u8], sealed: &mut [u8]) -> [u8; TAG_BYTES] {
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(read), sealed);
        let tag = tag.expect("the ciphers take 64 GiB in one record, a body is far below");
        tag.as_ref().try_into().expect("both ciphers have tags of 16 bytes")
    }

    /// Decrypts `sealed` in place if the tag is right.
    #[inline]
    fn check(&self, nonce: Nonce, read: &[u8], sealed: &mut [u8], sent: &[u8; TAG_BYTES]) -> Result<(), NotAuthentic> {
        let opened = self.0.open_in_place_separate_tag(nonce, Aad::from(read), Tag::from(*sent), sealed, 0..);
        opened.map(drop).map_err(|_| NotAuthentic)
    }
}
