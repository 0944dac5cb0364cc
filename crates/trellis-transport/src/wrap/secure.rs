//! The handshake that admits a peer, and the layout of what is protected after it by `super::protection`.
//!
//! Promises: a connection is used only after both ends proved that they know the secret of the cluster and that they
//! are alive now. An unauthenticated peer gets no byte of an answer, and every buffer used before authentication has a
//! fixed size. Frames of a `signed` or `sealed` connection that were changed, repeated, dropped, reordered or sent
//! back to their sender are detected before they are delivered.
//!
//! It must never read a socket, allocate a size that a peer chose, or tell an unauthenticated peer why it was refused.
//!
//! # Handshake
//!
//! `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`. The secret is mixed in before the first byte:
//!
//! ```text
//! dialler  -> listener   8 B "trellis" 01 | 32 B ephemeral | description, encrypted | 16 B tag
//! listener -> dialler                       32 B ephemeral | description, encrypted | 16 B tag
//! dialler  -> listener   16 B tag over the hash of the whole exchange: "I am here now"
//! ```
//!
//! Over datagrams (`Carrier::Datagrams`) the same messages have other magics, and the second and third message also
//! begin with one, because each datagram must identify itself.
//!
//! A description is the payload of a handshake message (`NodeDescription`). It always has 276 bytes. The listener
//! answers a first message only if it authenticates and its ephemeral is new (`Remembered`). A replay that outlives
//! this memory never becomes a connection, because it cannot produce the third message.
//!
//! # Frames
//!
//! ```text
//! plain    header                 | body
//! signed   header | 16 B tag      | body | 16 B tag      the cipher's tag over the bytes as they are
//! sealed   header | 16 B tag      | body | 16 B tag      the same, encrypted
//! ```
//!
//! The cipher is AES-256-GCM (NIST SP 800-38D) if the processors of both ends have instructions for it, which each says
//! in its description, and ChaCha20-Poly1305 (RFC 8439) otherwise and for multicasts.
//!
//! Datagrams are protected as a whole; each carries the number that its nonce is made of (`DatagramCipher`).
//!
//! Each direction has its own key, and a counter that advances with each record. A byte in the nonce states the kind of
//! record, so that a body is never taken for a header. An empty body has no tag.

use std::fmt;
use std::str::FromStr;

use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::{Builder, HandshakeState};

use super::protection::{Cipher, DatagramCipher, NotAuthentic, Opener, Sealer, TAG_BYTES, has_aes};
use crate::HELLO_BYTES_MAX;

/// How the frames of a connection are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// Not at all after the handshake: for one host, or a network without other users.
    Plain,
    /// A frame that is changed, repeated or dropped is detected; anyone on the path can read it.
    Signed,
    /// As signed, and nobody on the path can read it.
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

/// The version of everything after the handshake. The handshake itself is fixed by its magic, so that two versions can
/// still tell each other why they refuse.
pub(crate) const LINK_VERSION: u16 = 3;

const MAGIC_BYTES: usize = 8;
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const EPHEMERAL_BYTES: usize = 32;
const DESCRIPTION_FIXED_BYTES: usize = 20;
/// The byte of a description that says whether its sender has instructions for AES-GCM.
const HAS_AES: usize = 18;
/// Bytes of a description on the wire; always the same.
pub(crate) const DESCRIPTION_BYTES: usize = DESCRIPTION_FIXED_BYTES + HELLO_BYTES_MAX;
const _: () = assert!(DESCRIPTION_BYTES == 276, "the module text says so");
pub(crate) const FIRST_MESSAGE_BYTES: usize = MAGIC_BYTES + EPHEMERAL_BYTES + DESCRIPTION_BYTES + TAG_BYTES;
pub(crate) const SECOND_MESSAGE_BYTES: usize = EPHEMERAL_BYTES + DESCRIPTION_BYTES + TAG_BYTES;
pub(crate) const CONFIRMATION_BYTES: usize = TAG_BYTES;
/// The maximum number of first messages that are remembered against replay. A cluster makes one per pair and retry, so
/// this covers a start-up with thousands of attempts; the module text says what holds beyond.
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
    fn encode(&self, has_aes: bool) -> [u8; DESCRIPTION_BYTES] {
        let length = self.text.len().min(HELLO_BYTES_MAX);
        let mut bytes = [0; DESCRIPTION_BYTES];
        bytes[0..2].copy_from_slice(&self.version.to_le_bytes());
        bytes[2] = u8::from(self.refused);
        bytes[3] = self.security;
        bytes[4..8].copy_from_slice(&self.from.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.to.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.nodes.to_le_bytes());
        bytes[16..18].copy_from_slice(&(length as u16).to_le_bytes());
        bytes[HAS_AES] = u8::from(has_aes);
        bytes[DESCRIPTION_FIXED_BYTES..DESCRIPTION_FIXED_BYTES + length].copy_from_slice(&self.text[..length]);
        bytes
    }

    /// Called only with bytes that authenticated; a length out of range is still an error, not a panic.
    fn decode(bytes: &[u8; DESCRIPTION_BYTES]) -> Result<NodeDescription, NotAuthentic> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let length = usize::from(u16::from_le_bytes([bytes[16], bytes[17]]));
        let text = bytes[DESCRIPTION_FIXED_BYTES..].get(..length).ok_or(NotAuthentic)?;
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
    has_aes: bool,
}

impl Dialling {
    pub(crate) fn start(
        carrier: Carrier,
        secret: &[u8; 32],
        description: &NodeDescription,
    ) -> Result<(Dialling, [u8; FIRST_MESSAGE_BYTES]), snow::Error> {
        Dialling::start_with(carrier, secret, description, has_aes())
    }

    fn start_with(
        carrier: Carrier,
        secret: &[u8; 32],
        description: &NodeDescription,
        has_aes: bool,
    ) -> Result<(Dialling, [u8; FIRST_MESSAGE_BYTES]), snow::Error> {
        let magic = carrier.magic();
        let mut state = builder(secret, &magic)?.build_initiator()?;
        let mut message = [0; FIRST_MESSAGE_BYTES];
        message[..MAGIC_BYTES].copy_from_slice(&magic);
        let written = state.write_message(&description.encode(has_aes), &mut message[MAGIC_BYTES..])?;
        assert_eq!(written, FIRST_MESSAGE_BYTES - MAGIC_BYTES, "the first message has one size");
        Ok((Dialling { state, has_aes }, message))
    }

    /// Reads the answer; returns the listener's description, the keys and the confirmation to send. After an error the
    /// true answer may still come.
    pub(crate) fn finish(
        &mut self,
        message: &[u8; SECOND_MESSAGE_BYTES],
        security: Security,
    ) -> Result<(NodeDescription, Keys, [u8; CONFIRMATION_BYTES]), NotAuthentic> {
        let (description, peer_has_aes) = read_description(&mut self.state, message)?;
        let (outward, inward) = self.state.dangerously_get_raw_split();
        let cipher = |key| Cipher::new(key, self.has_aes && peer_has_aes);
        let mut sealer = Sealer::new(cipher(&outward), security);
        let exchange = exchange(&self.state);
        let confirmation = sealer.confirm(&exchange);
        Ok((description, Keys { sealer, opener: Opener::new(cipher(&inward), security), exchange }, confirmation))
    }
}

/// The side that listened, after a first message that authenticated.
pub(crate) struct Answering {
    state: HandshakeState,
    ephemeral: [u8; EPHEMERAL_BYTES],
    has_aes: bool,
    peer_has_aes: bool,
}

impl Answering {
    /// Reads a first message. This costs only hashes: no curve arithmetic and no answer.
    pub(crate) fn read(
        carrier: Carrier,
        secret: &[u8; 32],
        message: &[u8; FIRST_MESSAGE_BYTES],
    ) -> Result<(Answering, NodeDescription), NotAuthentic> {
        Answering::read_with(carrier, secret, message, has_aes())
    }

    fn read_with(
        carrier: Carrier,
        secret: &[u8; 32],
        message: &[u8; FIRST_MESSAGE_BYTES],
        has_aes: bool,
    ) -> Result<(Answering, NodeDescription), NotAuthentic> {
        let magic = carrier.magic();
        let noise = message.strip_prefix(&magic).ok_or(NotAuthentic)?;
        let mut ephemeral = [0; EPHEMERAL_BYTES];
        ephemeral.copy_from_slice(&noise[..EPHEMERAL_BYTES]);
        let mut state = builder(secret, &magic).and_then(Builder::build_responder).map_err(|_| NotAuthentic)?;
        let (description, peer_has_aes) = read_description(&mut state, noise)?;
        Ok((Answering { state, ephemeral, has_aes, peer_has_aes }, description))
    }

    pub(crate) fn ephemeral(&self) -> &[u8; EPHEMERAL_BYTES] {
        &self.ephemeral
    }

    pub(crate) fn answer(&mut self, description: &NodeDescription) -> Result<[u8; SECOND_MESSAGE_BYTES], snow::Error> {
        let mut message = [0; SECOND_MESSAGE_BYTES];
        let written = self.state.write_message(&description.encode(self.has_aes), &mut message)?;
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
        let cipher = |key| Cipher::new(key, self.has_aes && self.peer_has_aes);
        let mut opener = Opener::new(cipher(&inward), security);
        let exchange = exchange(&self.state);
        opener.confirm(&exchange, confirmation)?;
        Ok(Keys { sealer: Sealer::new(cipher(&outward), security), opener, exchange })
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

    /// Whether this message is the first with its ephemeral. It is called only with messages that authenticated, so
    /// that an unauthenticated peer cannot displace an entry.
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
    Some(DatagramCipher::new(Cipher::new(&key, false), security))
}

/// The number of an address in `239.255.0.0/16`: the same for all who know the secret. The secret cannot be derived
/// from it.
pub(crate) fn multicast_number(secret: &[u8; 32]) -> Option<u16> {
    let mut hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s)?;
    let mut number = [0; 32];
    hash.hkdf(secret, b"trellis multicast address", 1, &mut number, &mut [], &mut []);
    Some(u16::from_le_bytes([number[0], number[1]]))
}

fn builder<'a>(secret: &'a [u8; 32], magic: &'a [u8; MAGIC_BYTES]) -> Result<Builder<'a>, snow::Error> {
    Builder::new(PATTERN.parse()?).psk(0, secret)?.prologue(magic)
}

fn exchange(state: &HandshakeState) -> [u8; 32] {
    state.get_handshake_hash().try_into().expect("BLAKE2s gives 32 bytes")
}

/// What the peer says about itself, and whether it has instructions for AES-GCM.
fn read_description(state: &mut HandshakeState, message: &[u8]) -> Result<(NodeDescription, bool), NotAuthentic> {
    let mut description = [0; DESCRIPTION_BYTES];
    match state.read_message(message, &mut description) {
        Ok(DESCRIPTION_BYTES) => Ok((NodeDescription::decode(&description)?, description[HAS_AES] != 0)),
        _ => Err(NotAuthentic),
    }
}

#[cfg(test)]
mod tests {
    use super::super::protection::WIRE_HEADER_BYTES_MAX;
    use super::*;
    use crate::HEADER_BYTES;

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
        connect_processors(security, [has_aes(); 2])
    }

    /// `have_aes` is what the processors of dialler and listener have.
    fn connect_processors(security: Security, have_aes: [bool; 2]) -> (Keys, Keys) {
        let hello = description(b"hello");
        let (mut dialling, first) = Dialling::start_with(Carrier::Stream, &SECRET, &hello, have_aes[0]).unwrap();
        let (mut answering, seen) = Answering::read_with(Carrier::Stream, &SECRET, &first, have_aes[1]).unwrap();
        assert_eq!(seen, description(b"hello"));
        let second = answering.answer(&description(b"welcome")).unwrap();
        let (seen, dialler, confirmation) = dialling.finish(&second, security).unwrap();
        assert_eq!(seen, description(b"welcome"));
        (dialler, answering.confirm(&confirmation, security).unwrap())
    }

    #[test]
    fn both_ends_take_the_fastest_cipher_that_both_processors_have() {
        for (have_aes, expected) in
            [([true, true], true), ([true, false], false), ([false, true], false), ([false, false], false)]
        {
            let (near, far) = connect_processors(Security::Sealed, have_aes);
            for cipher in [near.sealer.cipher, near.opener.cipher, far.sealer.cipher, far.opener.cipher] {
                assert_eq!(cipher.is_aes(), expected, "{have_aes:?}");
            }
        }
    }

    #[test]
    fn frames_open_in_order_in_every_mode() {
        for (security, have_aes) in [Security::Plain, Security::Signed, Security::Sealed]
            .into_iter()
            .flat_map(|security| [true, false].map(|has_aes| (security, [has_aes; 2])))
        {
            let (mut near, mut far) = connect_processors(security, have_aes);
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
        let mut bytes = description(b"x").encode(true);
        bytes[16..18].copy_from_slice(&300_u16.to_le_bytes());
        assert_eq!(NodeDescription::decode(&bytes), Err(NotAuthentic));
    }
}
