//! A place in remote memory, and a request about it, as an IPv6 address: 128 bits, in network order.
//!
//! | byte | bits | destination of a request | source of a request |
//! |---|---|---|---|
//! | 0 | 8 | `fd` | `fd` |
//! | 1 | 24 | cluster | cluster |
//! | 4 | 16 | home: the server | client: the host |
//! | 6 | 8 | command | incarnation, whose highest bit is 1 |
//! | 7 | 8 | arguments | its lower half |
//! | 8 | 16 | generation | request id, 64 bits |
//! | 10 | 48 | offset in the home's memory | |
//!
//! An answer has source and destination exchanged. A *pointer* that is kept somewhere is a destination whose command and
//! arguments are zero. All addresses of a host have one prefix of 48 bits, a unique local one (RFC 4193, section 3.1): one
//! route for each host, and none for a pointer.
//!
//! Promises: decoding is total. Bytes and texts from anywhere give a value or an error of one sentence; it must never
//! panic. An address contains an offset in a server's memory and never a virtual address. The server checks whether
//! anything is there.

mod prefix;

pub use prefix::{HostPrefix, Prefix};

use super::command::Command;
use core::fmt;
use core::net::Ipv6Addr;
use core::str::FromStr;

/// The default UDP port of requests and answers.
pub const PORT: u16 = 5000;
/// Bytes of a page: the unit of leases, redirects and replicas.
pub const PAGE_BYTES: u64 = 4096;
/// One past the greatest offset.
pub const OFFSET_END: u64 = 1 << 48;
/// The first of the numbers that name parts of ranges ([`crate::lease::parts`]) and no host.
pub const PARTS_FROM: u16 = 0xf000;

/// The offsets of the fields. A header for C asserts that it has the same.
#[allow(missing_docs)]
pub mod layout {
    pub const ADDRESS_BYTES: usize = 16;
    pub const SCOPE: u8 = 0xfd;
    pub const SCOPE_AT: usize = 0;
    pub const CLUSTER_AT: usize = 1;
    pub const CLUSTER_BYTES: usize = 3;
    pub const HOST_AT: usize = 4;
    pub const COMMAND_AT: usize = 6;
    pub const ARGUMENTS_AT: usize = 7;
    pub const GENERATION_AT: usize = 8;
    pub const OFFSET_AT: usize = 10;
    pub const OFFSET_BYTES: usize = 6;
    pub const INCARNATION_AT: usize = 6;
    pub const INCARNATION_BIT: u16 = 0x8000;
    pub const REQUEST_AT: usize = 8;
    pub const CLUSTER_PREFIX_BITS: u8 = 32;
    pub const HOST_PREFIX_BITS: u8 = 48;
    pub const PAGE_SHIFT: u32 = 12;
}

/// 16 bytes in network order, whatever they mean.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address(pub [u8; layout::ADDRESS_BYTES]);

/// A cluster: 24 bits, chosen at random when it was set up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cluster(u32);

/// A machine of the fabric, by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Host(pub u16);

/// Identifies a process of a host: chosen at random at its start. Its highest bit is set, so no answer looks like a
/// request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Incarnation(u16);

/// What a command needs besides the place: a length, and flags.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Arguments(u8);

/// A byte of remote memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Pointer {
    cluster: Cluster,
    home: Host,
    generation: u16,
    offset: u64,
}

/// The destination of a request, with its command.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Destination {
    /// The place.
    pub pointer: Pointer,
    /// The command.
    pub command: Command,
    /// Its arguments.
    pub arguments: Arguments,
}

/// The sender and number of a request: no other request has this address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Source {
    /// Of the asking host.
    pub cluster: Cluster,
    /// The asking host.
    pub host: Host,
    /// The asking process.
    pub incarnation: Incarnation,
    /// The request, by a number that this process uses once.
    pub request: u64,
}

/// Why an address or a prefix was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NotAnAddress {
    /// Its first byte.
    Scope(u8),
    /// Its command does not exist.
    Command(u8),
    /// Its arguments are invalid for its command.
    Arguments(u8),
    /// It names a host number that no single machine has.
    Host(u16),
    /// It is a source whose incarnation looks like a command.
    Incarnation(u16),
    /// A pointer that is kept has neither command nor arguments.
    Request,
    /// The text is no IPv6 address.
    Text,
    /// The text is not a number of a host in hexadecimal.
    HostText,
    /// The text is not a prefix of a host.
    PrefixText,
    /// There are bits after the prefix.
    Rest,
}

impl fmt::Display for NotAnAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotAnAddress::Scope(byte) => {
                write!(f, "the address begins with {byte:02x}, and those of remote memory with fd")
            }
            NotAnAddress::Command(byte) => write!(f, "the address has the command {byte:#04x}, which does not exist"),
            NotAnAddress::Arguments(byte) => {
                write!(f, "the address has the arguments {byte:#04x}, which its command does not take")
            }
            NotAnAddress::Host(number) => {
                write!(f, "the address names host {number:#x}, and a machine has a number from 0x1 to 0xfffe")
            }
            NotAnAddress::Incarnation(bits) => {
                write!(f, "the source has the incarnation {bits:#06x}, and those of clients begin at 0x8000")
            }
            NotAnAddress::Request => {
                write!(f, "the address is that of a request; a pointer has zeros where its command and arguments are")
            }
            NotAnAddress::Text => write!(f, "the text is no IPv6 address; write a pointer like fd12:3456:7:0:1::1000"),
            NotAnAddress::HostText => write!(
                f,
                "the text is not a host; hosts have the radix of their prefixes: write 0x1001 or fd12:3456:1001::/48"
            ),
            NotAnAddress::PrefixText => {
                write!(f, "the text is not a prefix of a host; write it like fd12:3456:7::/48")
            }
            NotAnAddress::Rest => {
                write!(f, "the prefix of a host has 48 bits, and this text has others behind them; make them zero")
            }
        }
    }
}

impl core::error::Error for NotAnAddress {}

impl Address {
    /// The address as one number, whose highest byte is the first.
    pub const fn bits(self) -> u128 {
        u128::from_be_bytes(self.0)
    }

    fn two(self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    fn with(cluster: Cluster, host: Host) -> Address {
        let mut bytes = [0; layout::ADDRESS_BYTES];
        bytes[layout::SCOPE_AT] = layout::SCOPE;
        bytes[layout::CLUSTER_AT..layout::HOST_AT].copy_from_slice(&cluster.0.to_be_bytes()[1..]);
        bytes[layout::HOST_AT..layout::COMMAND_AT].copy_from_slice(&host.0.to_be_bytes());
        Address(bytes)
    }

    fn cluster_and_host(self) -> Result<(Cluster, Host), NotAnAddress> {
        if self.0[layout::SCOPE_AT] != layout::SCOPE {
            return Err(NotAnAddress::Scope(self.0[layout::SCOPE_AT]));
        }
        let [_, high, middle, low, ..] = self.0;
        Ok((Cluster(u32::from_be_bytes([0, high, middle, low])), Host(self.two(layout::HOST_AT))))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

impl FromStr for Address {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Address, NotAnAddress> {
        Ipv6Addr::from_str(text).map(|address| Address(address.octets())).map_err(|_| NotAnAddress::Text)
    }
}

impl Cluster {
    /// The cluster of this number; `None` if it needs more than 24 bits.
    pub const fn new(number: u32) -> Option<Cluster> {
        if number >> 24 == 0 { Some(Cluster(number)) } else { None }
    }

    /// Below 2^24.
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl Host {
    /// Any server: the switch decides which one.
    pub const ANYWHERE: Host = Host(0);
    /// Every server.
    pub const ALL: Host = Host(0xffff);

    /// Whether it names one machine.
    pub const fn is_one(self) -> bool {
        self.0 != Host::ANYWHERE.0 && self.0 != Host::ALL.0
    }
}

/// The number alone, for traces and counterexamples.
impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::LowerHex for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

impl FromStr for Host {
    type Err = NotAnAddress;

    /// Parses a number in the radix that it has in prefixes: `0x1001` is the host of `fd12:3456:1001::/48`. `0x` may be
    /// omitted only before a single digit, because `200` could be meant in either radix.
    fn from_str(text: &str) -> Result<Host, NotAnAddress> {
        let digits = text.strip_prefix("0x").or(Some(text).filter(|text| text.len() == 1)).unwrap_or_default();
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(NotAnAddress::HostText);
        }
        let number = u16::from_str_radix(digits, 16).map_err(|_| NotAnAddress::HostText)?;
        Some(Host(number)).filter(|host| host.is_one()).ok_or(NotAnAddress::Host(number))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {:#x}", self.0)
    }
}

impl Incarnation {
    /// An incarnation of these random bits; the highest is set in any case.
    pub const fn new(random_number: u16) -> Incarnation {
        Incarnation(random_number | layout::INCARNATION_BIT)
    }

    /// As it is in the address.
    pub const fn bits(self) -> u16 {
        self.0
    }
}

impl Arguments {
    /// The switch must not apply a redirect: deliver to the home.
    pub const DIRECT: Arguments = Arguments(0x10);
    /// A switch or a host sent it to a host that is not home, and that answers as owner or replica.
    pub const FORWARDED: Arguments = Arguments(0x20);
    /// No answer is expected.
    pub const NO_REPLY: Arguments = Arguments(0x40);
    /// None.
    pub const NONE: Arguments = Arguments(0);
    /// For CREATE and CREATE_WRITE: the object is deleted with the session in which it was made.
    pub const OF_SESSION: Arguments = Arguments(0x01);

    const LENGTH: u8 = 0x0f;
    const RESERVED: u8 = 0x80;

    /// For a READ of two to this power of bytes; `None` above 15.
    pub const fn of_length(log2: u8) -> Option<Arguments> {
        if log2 <= Arguments::LENGTH { Some(Arguments(log2)) } else { None }
    }

    /// Both.
    pub const fn and(self, other: Arguments) -> Arguments {
        Arguments(self.0 | other.0)
    }

    /// Whether all flags of `other` are set.
    pub const fn has(self, other: Arguments) -> bool {
        self.0 & other.0 == other.0
    }

    /// How long a READ is.
    pub const fn bytes(self) -> u32 {
        1 << (self.0 & Arguments::LENGTH)
    }

    /// As it is in the address.
    pub const fn byte(self) -> u8 {
        self.0
    }

    fn decode(byte: u8, command: Command) -> Result<Arguments, NotAnAddress> {
        let known = match command {
            Command::Read => Arguments::LENGTH,
            Command::Create | Command::CreateWrite => Arguments::OF_SESSION.0,
            _ => 0,
        };
        let unknown = Arguments::RESERVED | Arguments::LENGTH & !known;
        if byte & unknown == 0 { Ok(Arguments(byte)) } else { Err(NotAnAddress::Arguments(byte)) }
    }
}

impl Pointer {
    /// The byte at `offset`; `None` from [`OFFSET_END`] on.
    pub const fn new(cluster: Cluster, home: Host, generation: u16, offset: u64) -> Option<Pointer> {
        if offset < OFFSET_END { Some(Pointer { cluster, home, generation, offset }) } else { None }
    }

    /// All of a host's memory, for commands about a host: generation and offset are zero.
    pub const fn to_host(cluster: Cluster, home: Host) -> Pointer {
        Pointer { cluster, home, generation: 0, offset: 0 }
    }

    /// Its cluster.
    pub const fn cluster(self) -> Cluster {
        self.cluster
    }

    /// The server that it belongs to.
    pub const fn home(self) -> Host {
        self.home
    }

    /// The generation of the object: a later object at the same place has another one.
    pub const fn generation(self) -> u16 {
        self.generation
    }

    /// The byte, in the home's memory.
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// The page, in the home's memory.
    pub const fn page(self) -> u64 {
        self.offset >> layout::PAGE_SHIFT
    }

    /// This many bytes further; `None` past the last offset.
    pub const fn plus(self, bytes: u64) -> Option<Pointer> {
        match self.offset.checked_add(bytes) {
            Some(offset) => Pointer::new(self.cluster, self.home, self.generation, offset),
            None => None,
        }
    }

    /// The destination of a request about it.
    pub const fn request(self, command: Command, arguments: Arguments) -> Destination {
        Destination { pointer: self, command, arguments }
    }

    /// The address of a pointer that is kept: command and arguments are zero.
    pub fn encode(self) -> Address {
        let mut address = Address::with(self.cluster, self.home);
        address.0[layout::GENERATION_AT..layout::OFFSET_AT].copy_from_slice(&self.generation.to_be_bytes());
        address.0[layout::OFFSET_AT..].copy_from_slice(&self.offset.to_be_bytes()[8 - layout::OFFSET_BYTES..]);
        address
    }

    /// Decodes a pointer that was kept.
    pub fn decode(address: Address) -> Result<Pointer, NotAnAddress> {
        let pointer = Pointer::of(address)?;
        if address.two(layout::COMMAND_AT) == 0 { Ok(pointer) } else { Err(NotAnAddress::Request) }
    }

    fn of(address: Address) -> Result<Pointer, NotAnAddress> {
        let (cluster, home) = address.cluster_and_host()?;
        let offset = address.0[layout::OFFSET_AT..].iter().fold(0, |offset, byte| offset << 8 | u64::from(*byte));
        Ok(Pointer { cluster, home, generation: address.two(layout::GENERATION_AT), offset })
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.encode().fmt(f)
    }
}

impl FromStr for Pointer {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Pointer, NotAnAddress> {
        Pointer::decode(text.parse()?)
    }
}

impl Destination {
    /// As the destination of a request, and the source of its answer.
    pub fn encode(self) -> Address {
        let mut address = self.pointer.encode();
        address.0[layout::COMMAND_AT] = self.command.byte();
        address.0[layout::ARGUMENTS_AT] = self.arguments.0;
        address
    }

    /// What is requested, whichever way it came: a request that is repeated past a switch's redirects is the same request.
    #[must_use]
    pub const fn identity(self) -> Destination {
        let way = Arguments::DIRECT.0 | Arguments::FORWARDED.0;
        Destination { arguments: Arguments(self.arguments.0 & !way), ..self }
    }

    /// The destination of a request, or the source of an answer.
    pub fn decode(address: Address) -> Result<Destination, NotAnAddress> {
        let pointer = Pointer::of(address)?;
        let byte = address.0[layout::COMMAND_AT];
        let command = Command::from_byte(byte).ok_or(NotAnAddress::Command(byte))?;
        let arguments = Arguments::decode(address.0[layout::ARGUMENTS_AT], command)?;
        Ok(Destination { pointer, command, arguments })
    }
}

impl Source {
    /// As the source of a request, and the destination of its answer.
    pub fn encode(self) -> Address {
        let mut address = Address::with(self.cluster, self.host);
        address.0[layout::INCARNATION_AT..layout::REQUEST_AT].copy_from_slice(&self.incarnation.0.to_be_bytes());
        address.0[layout::REQUEST_AT..].copy_from_slice(&self.request.to_be_bytes());
        address
    }

    /// The source of a request, or the destination of an answer.
    pub fn decode(address: Address) -> Result<Source, NotAnAddress> {
        let (cluster, host) = address.cluster_and_host()?;
        if !host.is_one() {
            return Err(NotAnAddress::Host(host.0));
        }
        let bits = address.two(layout::INCARNATION_AT);
        if bits & layout::INCARNATION_BIT == 0 {
            return Err(NotAnAddress::Incarnation(bits));
        }
        let request = address.0[layout::REQUEST_AT..].iter().fold(0, |id, byte| id << 8 | u64::from(*byte));
        Ok(Source { cluster, host, incarnation: Incarnation(bits), request })
    }
}

#[cfg(test)]
mod tests;
