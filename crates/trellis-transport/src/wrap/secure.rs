//! The handshake that admits a peer, and the protection of its frames and datagrams.
//!
//! Promises: a connection is used only after both ends proved that they know the secret of the cluster and that they
//! are alive now. An unauthenticated peer gets no byte of an answer, and every buffer used before authentication has a
//! fixed size. Frames of a `signed` or `sealed` connection that were changed, repeated, dropped, reordered or sent
//! back to their sender are detected before they are delivered.
//!
//! It must never read a socket, allocate what a peer asked for, or tell an unauthenticated peer why it was refused.
//!
//! # Handshake
//!
//! `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`. The secret is mixed in before the first byte:
//!
//! ```text
//! dialler  -> listener   8 B "trellis" 01 | 32 B ephemeral | card, encrypted | 16 B tag
//! listener -> dialler                       32 B ephemeral | card, encrypted | 16 B tag
//! dialler  -> listener   16 B tag over the hash of the whole exchange: "I am here now"
//! ```
//!
//! Over datagrams (`Carrier::Datagrams`) the same messages have other magics, and the second and third message also
//! begin with one, because each datagram must identify itself.
//!
//! A card is the payload of a handshake message (`NodeDescription`). It always has 276 bytes. The listener answers a first
//! message only if it authenticates and its ephemeral is new (`Remembered`). A replay that outlives this memory never
//! becomes a connection, because it cannot produce the third message.
//!
//! # Frames
//!
//! ```text
//! plain    header                 | body
//! signed   header | 16 B tag      | body | 16 B tag      ChaCha20-Poly1305 over the bytes as they are
//! sealed   header | 16 B tag      | body | 16 B tag      the same, encrypted
//! ```
//!
//! Datagrams are protected as a whole; each carries the number that its nonce is made of (`DatagramCipher`).
//!
//! Each direction has its own key, and a counter that advances with each record. A byte in the nonce states the kind of
//! record, so that a body is never taken for a header. An empty body has no tag.

use std::fmt;
use std::str::FromStr;

use chacha20poly1305::aead::AeadInPlace;
use chacha20poly1305::{ChaCha20Poly1305, KeyInit, Nonce, Tag};
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::{Builder, HandshakeState};

use crate::{HEADER_BYTES, HELLO_BYTES_MAX};

/// How the frames of a connection are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// Not at all after the handshake: for one host, or a network without other users.
    Plain,
    /// No one can change, repeat or drop a frame undetected; anyone on the path can read it.
    Signed,
    /// As signed, and no one on the path can read it.
    Sealed,
}

impl fmt::Display for Security {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Security::Plain => "plain",
            Security::Signed => "signed",
            Security::Sealed => "sealed",
        })
    }
}

impl FromStr for Security {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "plain" => Ok(Security::Plain),
            "signed" => Ok(Security::Signed),
            "sealed" => Ok(Security::Sealed),
            other => Err(format!("`{other}` is no protection; use plain, signed or sealed")),
        }
    }
}

pub(crate) const TAG_BYTES: usize = 16;
/// The longest header on the wire: the header and its tag.
pub(crate) const WIRE_HEADER_BYTES_MAX: usize = HEADER_BYTES + TAG_BYTES;
/// The version of everything after the handshake. The handshake itself is fixed by its magic, so that two versions can
/// still tell each other why they refuse.
pub(crate) const LINK_VERSION: u16 = 2;

const MAGIC_BYTES: usize = 8;
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const EPHEMERAL_BYTES: usize = 32;
const CARD_FIXED_BYTES: usize = 20;
/// Bytes of a card on the wire; always the same.
pub(crate) const DESCRIPTION_BYTES: usize = CARD_FIXED_BYTES + HELLO_BYTES_MAX;
const _: () = assert!(DESCRIPTION_BYTES == 276, "the module text says so");
pub(crate) const FIRST_MESSAGE_BYTES: usize = MAGIC_BYTES + EPHEMERAL_BYTES + DESCRIPTION_BYTES + TAG_BYTES;
pub(crate) const SECOND_MESSAGE_BYTES: usize = EPHEMERAL_BYTES + DESCRIPTION_BYTES + TAG_BYTES;
pub(crate) const CONFIRMATION_BYTES: usize = TAG_BYTES;
/// First messages remembered against replay. A cluster makes one per pair and retry, so this covers a start-up with
/// thousands of attempts; the module text says what holds beyond.
const REMEMBERED_MAX: usize = 4096;

/// What a handshake travels over. It is part of the exchange, so that a recording of one is invalid for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// One stream of bytes per connection.
    Stream,
    /// Single datagrams.
    Datagrams,
}

impl Carrier {
    /// The first bytes of a first message.
    pub(crate) const fn magic(self) -> [u8; MAGIC_BYTES] {
        match self {
            Carrier::Stream => *b"trellis\x01",
            Carrier::Datagrams => *b"trellis\x11",
        }
    }
}

/// The other side does not know the secret, or its bytes were changed in transit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotAuthentic;

/// The payload of a handshake message: what a node says about itself. Encrypted under the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeDescription {
    pub(crate) version: u16,
    /// The listener refuses this dialler; `text` says why.
    pub(crate) refused: bool,
    pub(crate) security: u8,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) nodes: u32,
    /// The hello of the layer above, or the reason of a refusal.
    pub(crate) text: Vec<u8>,
}

impl NodeDescription {
    fn encode(&self) -> [u8; DESCRIPTION_BYTES] {
        let length = self.text.len().min(HELLO_BYTES_MAX);
        let mut bytes = [0; DESCRIPTION_BYTES];
        bytes[0..2].copy_from_slice(&self.version.to_le_bytes());
        bytes[2] = u8::from(self.refused);
        bytes[3] = self.security;
        bytes[4..8].copy_from_slice(&self.from.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.to.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.nodes.to_le_bytes());
        bytes[16..18].copy_from_slice(&(length as u16).to_le_bytes());
        bytes[CARD_FIXED_BYTES..CARD_FIXED_BYTES + length].copy_from_slice(&self.text[..length]);
        bytes
    }

    /// Called only with bytes that authenticated; a length out of range is still an error, not a panic.
    fn decode(bytes: &[u8; DESCRIPTION_BYTES]) -> Result<NodeDescription, NotAuthentic> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let length = usize::from(u16::from_le_bytes([bytes[16], bytes[17]]));
        let text = bytes[CARD_FIXED_BYTES..].get(..length).ok_or(NotAuthentic)?;
        Ok(NodeDescription {
            version: u16::from_le_bytes([bytes[0], bytes[1]]),
            refused: bytes[2] != 0,
            security: bytes[3],
            from: word(4),
            to: word(8),
            nodes: word(12),
            text: text.to_vec(),
        })
    }
}

/// The number of a security level on the wire.
pub(crate) fn security_code(security: Security) -> u8 {
    match security {
        Security::Plain => 0,
        Security::Signed => 1,
        Security::Sealed => 2,
    }
}

/// The name of a security level's number, for messages about a peer.
pub(crate) fn security_word(code: u8) -> &'static str {
    match code {
        0 => "plain",
        1 => "signed",
        2 => "sealed",
        _ => "unknown",
    }
}

/// The keys of one connection: they protect what is sent and open what is received.
pub(crate) struct Keys {
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
    /// The hash of the whole exchange: equal on both sides, and different for every connection.
    pub(crate) exchange: [u8; 32],
}

/// The side that dialled, after its first message.
pub(crate) struct Dialling {
    state: HandshakeState,
}

impl Dialling {
    pub(crate) fn start(
        carrier: Carrier,
        secret: &[u8; 32],
        description: &NodeDescription,
    ) -> Result<(Dialling, [u8; FIRST_MESSAGE_BYTES]), snow::Error> {
        let magic = carrier.magic();
        let mut state = builder(secret, &magic)?.build_initiator()?;
        let mut message = [0; FIRST_MESSAGE_BYTES];
        message[..MAGIC_BYTES].copy_from_slice(&magic);
        let written = state.write_message(&description.encode(), &mut message[MAGIC_BYTES..])?;
        assert_eq!(written, FIRST_MESSAGE_BYTES - MAGIC_BYTES, "the first message has one size");
        Ok((Dialling { state }, message))
    }

    /// Reads the answer; returns the listener's card, the keys and the confirmation to send. After an error the true
    /// answer may still come.
    pub(crate) fn finish(
        &mut self,
        message: &[u8; SECOND_MESSAGE_BYTES],
        security: Security,
    ) -> Result<(NodeDescription, Keys, [u8; CONFIRMATION_BYTES]), NotAuthentic> {
        let description = read_description(&mut self.state, message)?;
        let (outward, inward) = self.state.dangerously_get_raw_split();
        let mut sealer = Sealer::new(&outward, security);
        let exchange = exchange(&self.state);
        let confirmation = sealer.confirm(&exchange);
        Ok((description, Keys { sealer, opener: Opener::new(&inward, security), exchange }, confirmation))
    }
}

/// The side that listened, after a first message that authenticated.
pub(crate) struct Answering {
    state: HandshakeState,
    ephemeral: [u8; EPHEMERAL_BYTES],
}

impl Answering {
    /// Reads a first message; costs hashes only: no curve arithmetic and no answer.
    pub(crate) fn read(
        carrier: Carrier,
        secret: &[u8; 32],
        message: &[u8; FIRST_MESSAGE_BYTES],
    ) -> Result<(Answering, NodeDescription), NotAuthentic> {
        let magic = carrier.magic();
        let noise = message.strip_prefix(&magic).ok_or(NotAuthentic)?;
        let mut ephemeral = [0; EPHEMERAL_BYTES];
        ephemeral.copy_from_slice(&noise[..EPHEMERAL_BYTES]);
        let mut state = builder(secret, &magic).and_then(Builder::build_responder).map_err(|_| NotAuthentic)?;
        let description = read_description(&mut state, noise)?;
        Ok((Answering { state, ephemeral }, description))
    }

    pub(crate) fn ephemeral(&self) -> &[u8; EPHEMERAL_BYTES] {
        &self.ephemeral
    }

    pub(crate) fn answer(&mut self, description: &NodeDescription) -> Result<[u8; SECOND_MESSAGE_BYTES], snow::Error> {
        let mut message = [0; SECOND_MESSAGE_BYTES];
        let written = self.state.write_message(&description.encode(), &mut message)?;
        assert_eq!(written, SECOND_MESSAGE_BYTES, "the second message has one size");
        Ok(message)
    }

    /// Checks that the dialler is alive and has read the answer; returns the keys.
    pub(crate) fn confirm(
        &mut self,
        confirmation: &[u8; CONFIRMATION_BYTES],
        security: Security,
    ) -> Result<Keys, NotAuthentic> {
        let (inward, outward) = self.state.dangerously_get_raw_split();
        let mut opener = Opener::new(&inward, security);
        let exchange = exchange(&self.state);
        opener.confirm(&exchange, confirmation)?;
        Ok(Keys { sealer: Sealer::new(&outward, security), opener, exchange })
    }
}

/// Whether bytes can still be the start of a first message. Peers that speak another protocol are refused at once and
/// do not hold a place until the deadline.
pub(crate) fn may_be_first_message(bytes: &[u8]) -> bool {
    let length = bytes.len().min(MAGIC_BYTES);
    bytes[..length] == Carrier::Stream.magic()[..length]
}

/// The ephemerals of answered first messages; the oldest are forgotten first.
pub(crate) struct Remembered {
    seen: Vec<[u8; EPHEMERAL_BYTES]>,
    next: usize,
}

impl Remembered {
    pub(crate) fn new() -> Remembered {
        Remembered { seen: Vec::new(), next: 0 }
    }

    /// True the first time. Called only with messages that authenticated, so that an unauthenticated peer cannot
    /// displace an entry.
    pub(crate) fn is_new(&mut self, ephemeral: &[u8; EPHEMERAL_BYTES]) -> bool {
        if self.seen.contains(ephemeral) {
            return false;
        }
        if self.seen.len() < REMEMBERED_MAX {
            self.seen.push(*ephemeral);
        } else {
            self.seen[self.next] = *ephemeral;
            self.next = (self.next + 1) % REMEMBERED_MAX;
        }
        true
    }
}

/// Bytes of the salt that makes the key of a node's multicasts different in every run.
pub(crate) const SALT_BYTES: usize = 16;

/// Unpredictable random bytes; `None` if the system has none.
pub(crate) fn random<const COUNT: usize>() -> Option<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    DefaultResolver.resolve_rng()?.try_fill_bytes(&mut bytes).ok()?;
    Some(bytes)
}

/// Protects and opens the datagrams that one node sends to several at once. All members can derive this key from the
/// secret, the number of the sender and its salt, which is different in every run. So it excludes non-members; it does
/// not prove which member is the sender, and members are trusted.
pub(crate) fn multicast_cipher(
    secret: &[u8; 32],
    node: usize,
    salt: &[u8; SALT_BYTES],
    security: Security,
) -> Option<DatagramCipher> {
    let mut hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s)?;
    let label = b"trellis multicast";
    let input = [&label[..], &(node as u64).to_le_bytes(), salt].concat();
    let mut key = [0; 32];
    hash.hkdf(secret, &input, 1, &mut key, &mut [], &mut []);
    Some(DatagramCipher { cipher: ChaCha20Poly1305::new(&key.into()), security })
}

/// The number of an address in `239.255.0.0/16`: the same for all who know the secret, which cannot be derived from
/// it.
pub(crate) fn multicast_number(secret: &[u8; 32]) -> Option<u16> {
    let mut hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s)?;
    let mut number = [0; 32];
    hash.hkdf(secret, b"trellis multicast address", 1, &mut number, &mut [], &mut []);
    Some(u16::from_le_bytes([number[0], number[1]]))
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
    cipher: ChaCha20Poly1305,
    security: Security,
    counter: u64,
}

impl Sealer {
    fn new(key: &[u8; 32], security: Security) -> Sealer {
        Sealer { cipher: ChaCha20Poly1305::new(key.into()), security, counter: 0 }
    }

    pub(crate) fn security(&self) -> Security {
        self.security
    }

    /// For a connection of datagrams: the key, used with numbers that the caller must never repeat.
    pub(crate) fn into_cipher(self) -> DatagramCipher {
        DatagramCipher { cipher: self.cipher, security: self.security }
    }

    fn confirm(&mut self, hash: &[u8]) -> [u8; TAG_BYTES] {
        tag(&self.cipher, &next_nonce(&mut self.counter, Record::Confirmation), hash, &mut [])
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
            Security::Sealed => tag(&self.cipher, &nonce, &[], bytes),
            _ => tag(&self.cipher, &nonce, bytes, &mut []),
        };
        tag_bytes.copy_from_slice(&tag);
        WIRE_HEADER_BYTES_MAX
    }

    /// The tag of a body that is sent unencrypted.
    pub(crate) fn sign_body(&mut self, body: &[u8]) -> [u8; TAG_BYTES] {
        assert!(self.security == Security::Signed && !body.is_empty());
        tag(&self.cipher, &next_nonce(&mut self.counter, Record::Body), body, &mut [])
    }

    /// Encrypts a body in place; returns its tag.
    pub(crate) fn seal_body(&mut self, body: &mut [u8]) -> [u8; TAG_BYTES] {
        assert!(self.security == Security::Sealed && !body.is_empty());
        tag(&self.cipher, &next_nonce(&mut self.counter, Record::Body), &[], body)
    }
}

/// Protects or opens the datagrams of one direction, each by its own number.
pub(crate) struct DatagramCipher {
    cipher: ChaCha20Poly1305,
    security: Security,
}

impl DatagramCipher {
    /// Bytes added after each datagram.
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
            Security::Signed => tag(&self.cipher, &nonce, datagram, &mut []),
            Security::Sealed => {
                let (shown, hidden) = datagram.split_at_mut(clear);
                tag(&self.cipher, &nonce, shown, hidden)
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
            Security::Signed => check(&self.cipher, &nonce, text, &mut [], as_tag(sent)?)?,
            Security::Sealed => {
                let (shown, hidden) = text.split_at_mut(clear);
                check(&self.cipher, &nonce, shown, hidden, as_tag(sent)?)?;
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
    cipher: ChaCha20Poly1305,
    security: Security,
    counter: u64,
}

impl Opener {
    fn new(key: &[u8; 32], security: Security) -> Opener {
        Opener { cipher: ChaCha20Poly1305::new(key.into()), security, counter: 0 }
    }

    /// For a connection of datagrams.
    pub(crate) fn into_cipher(self) -> DatagramCipher {
        DatagramCipher { cipher: self.cipher, security: self.security }
    }

    fn confirm(&mut self, hash: &[u8], sent: &[u8; TAG_BYTES]) -> Result<(), NotAuthentic> {
        let nonce = next_nonce(&mut self.counter, Record::Confirmation);
        check(&self.cipher, &nonce, hash, &mut [], sent)
    }

    /// Bytes of a header on the wire.
    #[inline]
    pub(crate) fn wire_header_bytes(&self) -> usize {
        match self.security {
            Security::Plain => HEADER_BYTES,
            _ => WIRE_HEADER_BYTES_MAX,
        }
    }

    /// Bytes that follow a body that is not empty.
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
            Security::Sealed => check(&self.cipher, &nonce, &[], &mut header, &sent)?,
            _ => check(&self.cipher, &nonce, &header, &mut [], &sent)?,
        }
        Ok(header)
    }

    /// Checks a body and opens it in place. After an error its bytes are undefined.
    pub(crate) fn body(&mut self, body: &mut [u8], sent: &[u8; TAG_BYTES]) -> Result<(), NotAuthentic> {
        match self.security {
            Security::Plain => Ok(()),
            Security::Signed => {
                let nonce = next_nonce(&mut self.counter, Record::Body);
                check(&self.cipher, &nonce, body, &mut [], sent)
            }
            Security::Sealed => {
                let nonce = next_nonce(&mut self.counter, Record::Body);
                check(&self.cipher, &nonce, &[], body, sent)
            }
        }
    }
}

fn builder<'a>(secret: &'a [u8; 32], magic: &'a [u8; MAGIC_BYTES]) -> Result<Builder<'a>, snow::Error> {
    Builder::new(PATTERN.parse()?).psk(0, secret)?.prologue(magic)
}

fn exchange(state: &HandshakeState) -> [u8; 32] {
    state.get_handshake_hash().try_into().expect("BLAKE2s gives 32 bytes")
}

fn read_description(state: &mut HandshakeState, message: &[u8]) -> Result<NodeDescription, NotAuthentic> {
    let mut description = [0; DESCRIPTION_BYTES];
    match state.read_message(message, &mut description) {
        Ok(DESCRIPTION_BYTES) => NodeDescription::decode(&description),
        _ => Err(NotAuthentic),
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
    let mut nonce = Nonce::default();
    nonce[0] = record as u8;
    nonce[4..].copy_from_slice(&number.to_le_bytes());
    nonce
}

#[inline]
fn tag(cipher: &ChaCha20Poly1305, nonce: &Nonce, read: &[u8], sealed: &mut [u8]) -> [u8; 16] {
    cipher
        .encrypt_in_place_detached(nonce, read, sealed)
        .expect("the cipher takes 256 GiB in one record, a body is far below")
        .into()
}

#[inline]
fn check(
    cipher: &ChaCha20Poly1305,
    nonce: &Nonce,
    read: &[u8],
    sealed: &mut [u8],
    sent: &[u8; TAG_BYTES],
) -> Result<(), NotAuthentic> {
    cipher.decrypt_in_place_detached(nonce, read, sealed, Tag::from_slice(sent)).map_err(|_| NotAuthentic)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; 32] = [7; 32];

    fn description(text: &[u8]) -> NodeDescription {
        NodeDescription {
            version: LINK_VERSION,
            refused: false,
            security: 2,
            from: 1,
            to: 0,
            nodes: 2,
            text: text.to_vec(),
        }
    }

    fn connect(security: Security) -> (Keys, Keys) {
        let (mut dialling, first) = Dialling::start(Carrier::Stream, &SECRET, &description(b"hello")).unwrap();
        let (mut answering, seen) = Answering::read(Carrier::Stream, &SECRET, &first).unwrap();
        assert_eq!(seen, description(b"hello"));
        let second = answering.answer(&description(b"welcome")).unwrap();
        let (seen, dialler, confirmation) = dialling.finish(&second, security).unwrap();
        assert_eq!(seen, description(b"welcome"));
        (dialler, answering.confirm(&confirmation, security).unwrap())
    }

    #[test]
    fn frames_open_in_order_in_every_mode() {
        for security in [Security::Plain, Security::Signed, Security::Sealed] {
            let (mut near, mut far) = connect(security);
            for round in 0..3_u8 {
                let mut wire = [0; WIRE_HEADER_BYTES_MAX];
                let length = near.sealer.header(&[round; HEADER_BYTES], &mut wire);
                assert_eq!(length, far.opener.wire_header_bytes());
                assert_eq!(far.opener.header(&wire[..length]).unwrap(), [round; HEADER_BYTES]);
                let mut body = [round; 100];
                let tag = match security {
                    Security::Plain => [0; TAG_BYTES],
                    Security::Signed => near.sealer.sign_body(&body),
                    Security::Sealed => near.sealer.seal_body(&mut body),
                };
                assert_eq!(body != [round; 100], security == Security::Sealed);
                far.opener.body(&mut body, &tag).unwrap();
                assert_eq!(body, [round; 100]);
            }
        }
    }

    #[test]
    fn a_first_message_with_any_bit_flipped_is_no_first_message() {
        let (_, first) = Dialling::start(Carrier::Stream, &SECRET, &description(b"hello")).unwrap();
        for at in 0..FIRST_MESSAGE_BYTES {
            let mut changed = first;
            changed[at] ^= 1 << (at % 8);
            assert!(Answering::read(Carrier::Stream, &SECRET, &changed).is_err(), "byte {at}");
        }
        assert!(Answering::read(Carrier::Stream, &[8; 32], &first).is_err(), "another secret");
    }

    #[test]
    fn a_second_message_or_confirmation_with_any_bit_flipped_is_refused() {
        for at in (0..SECOND_MESSAGE_BYTES).step_by(7) {
            let (mut dialling, first) = Dialling::start(Carrier::Stream, &SECRET, &description(b"")).unwrap();
            let (mut answering, _) = Answering::read(Carrier::Stream, &SECRET, &first).unwrap();
            let mut second = answering.answer(&description(b"")).unwrap();
            second[at] ^= 0x10;
            assert!(dialling.finish(&second, Security::Sealed).is_err(), "byte {at}");
        }
        for at in 0..CONFIRMATION_BYTES {
            let (mut dialling, first) = Dialling::start(Carrier::Stream, &SECRET, &description(b"")).unwrap();
            let (mut answering, _) = Answering::read(Carrier::Stream, &SECRET, &first).unwrap();
            let second = answering.answer(&description(b"")).unwrap();
            let (_, _, mut third) = dialling.finish(&second, Security::Sealed).unwrap();
            third[at] ^= 1;
            assert!(answering.confirm(&third, Security::Sealed).is_err(), "byte {at}");
        }
    }

    #[test]
    fn an_answer_that_was_changed_does_not_spoil_the_one_that_comes_after_it() {
        let (mut dialling, first) = Dialling::start(Carrier::Datagrams, &SECRET, &description(b"")).unwrap();
        assert!(Answering::read(Carrier::Stream, &SECRET, &first).is_err(), "the carrier is part of the exchange");
        let (mut answering, _) = Answering::read(Carrier::Datagrams, &SECRET, &first).unwrap();
        let second = answering.answer(&description(b"")).unwrap();
        for at in [0, 40, SECOND_MESSAGE_BYTES - 1] {
            let mut changed = second;
            changed[at] ^= 1;
            assert!(dialling.finish(&changed, Security::Sealed).is_err(), "byte {at}");
        }
        let (_, near, third) = dialling.finish(&second, Security::Sealed).unwrap();
        let mut changed = third;
        changed[0] ^= 1;
        assert!(answering.confirm(&changed, Security::Sealed).is_err());
        let far = answering.confirm(&third, Security::Sealed).unwrap();
        assert_eq!(near.exchange, far.exchange);
    }

    #[test]
    fn a_datagram_opens_only_whole_unchanged_and_by_its_number() {
        for security in [Security::Signed, Security::Sealed] {
            let (near, far) = connect(security);
            let (near, near_opener, far) =
                (near.sealer.into_cipher(), near.opener.into_cipher(), far.opener.into_cipher());
            let text: Vec<u8> = (0..100).collect();
            let mut datagram = text.clone();
            let tag = near.protect(7, 16, &mut datagram);
            datagram.extend_from_slice(&tag);
            assert_eq!(datagram[..16], text[..16]);
            assert_eq!(datagram[16..100] != text[16..], security == Security::Sealed);
            for at in 0..datagram.len() {
                let mut changed = datagram.clone();
                changed[at] ^= 0x20;
                assert!(far.open(7, 16, &mut changed).is_err(), "byte {at}");
                assert!(far.open(7, 16, &mut datagram.clone()[..at]).is_err(), "cut to {at}");
            }
            assert!(far.open(8, 16, &mut datagram.clone()).is_err(), "another number");
            assert!(near_opener.open(7, 16, &mut datagram.clone()).is_err(), "sent back");
            assert_eq!(far.open(7, 16, &mut datagram), Ok(100));
            assert_eq!(datagram[..100], text);
        }
    }

    #[test]
    fn a_multicast_opens_with_the_secret_the_sender_and_the_salt_and_with_no_other() {
        assert_ne!(random::<32>(), random::<32>());
        for security in [Security::Signed, Security::Sealed] {
            let cipher = |secret: u8, node, salt: u8| {
                multicast_cipher(&[secret; 32], node, &[salt; SALT_BYTES], security).expect("what snow always has")
            };
            let near = cipher(1, 2, 3);
            let mut datagram = vec![7; 60];
            let tag = near.protect(5, 16, &mut datagram);
            datagram.extend_from_slice(&tag);
            for (secret, node, salt) in [(9, 2, 3), (1, 9, 3), (1, 2, 9)] {
                assert!(cipher(secret, node, salt).open(5, 16, &mut datagram.clone()).is_err());
            }
            assert_eq!(cipher(1, 2, 3).open(5, 16, &mut datagram), Ok(60));
            assert_eq!(datagram[..60], [7; 60]);
        }
        assert_eq!(multicast_number(&[1; 32]), multicast_number(&[1; 32]));
        assert_ne!(multicast_number(&[1; 32]), multicast_number(&[2; 32]));
    }

    #[test]
    fn a_body_is_never_taken_for_a_header() {
        for security in [Security::Signed, Security::Sealed] {
            let (mut near, mut far) = connect(security);
            let mut body = [9; HEADER_BYTES];
            let tag = match security {
                Security::Signed => near.sealer.sign_body(&body),
                _ => near.sealer.seal_body(&mut body),
            };
            let wire = [&body[..], &tag[..]].concat();
            assert!(far.opener.header(&wire).is_err());
        }
    }

    #[test]
    fn a_frame_repeated_or_sent_back_is_refused() {
        for security in [Security::Signed, Security::Sealed] {
            let (mut near, mut far) = connect(security);
            let mut wire = [0; WIRE_HEADER_BYTES_MAX];
            near.sealer.header(&[1; HEADER_BYTES], &mut wire);
            assert!(near.opener.header(&wire).is_err(), "sent back");
            assert!(far.opener.header(&wire).is_ok());
            assert!(far.opener.header(&wire).is_err(), "repeated");
        }
    }

    #[test]
    fn the_memory_of_first_messages_is_bounded_and_remembers_the_latest() {
        let mut remembered = Remembered::new();
        let ephemeral = |number: usize| {
            let mut bytes = [0; EPHEMERAL_BYTES];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            bytes
        };
        for number in 0..REMEMBERED_MAX + 10 {
            assert!(remembered.is_new(&ephemeral(number)));
            assert!(!remembered.is_new(&ephemeral(number)));
        }
        assert_eq!(remembered.seen.len(), REMEMBERED_MAX);
        assert!(!remembered.is_new(&ephemeral(REMEMBERED_MAX)));
    }

    #[test]
    fn a_card_with_an_impossible_length_is_refused() {
        let mut bytes = description(b"x").encode();
        bytes[16..18].copy_from_slice(&300_u16.to_le_bytes());
        assert_eq!(NodeDescription::decode(&bytes), Err(NotAuthentic));
    }
}
