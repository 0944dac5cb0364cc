//! Matches of flows: fields of packets (OXM), each with a value and optionally a mask.
//!
//! Masks are arbitrary bits, not only prefixes. An unknown field keeps its bytes.

use super::CodecError;
use super::bytes::{Reader, Writer};

/// The class of all fields of the specification.
const BASIC: u16 = 0x8000;
/// The only kind of match that OpenFlow 1.3 has.
const MATCH_OXM: u16 = 1;
/// The header before the fields: kind and length.
const MATCH_HEADER_BYTES: usize = 4;

/// A field of a packet, or of the switch's information about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// The port at which it arrived.
    InPort,
    /// The metadata set by earlier tables.
    Metadata,
    /// The destination hardware address.
    EthDst,
    /// The source hardware address.
    EthSrc,
    /// The EtherType.
    EthType,
    /// The VLAN id.
    VlanVid,
    /// The IP protocol.
    IpProto,
    /// The UDP source port.
    UdpSrc,
    /// The UDP destination port.
    UdpDst,
    /// The IPv6 source address.
    Ipv6Src,
    /// The IPv6 destination address.
    Ipv6Dst,
}

impl Field {
    /// Every field that is supported here.
    pub const ALL: [Field; 11] = [
        Field::InPort,
        Field::Metadata,
        Field::EthDst,
        Field::EthSrc,
        Field::EthType,
        Field::VlanVid,
        Field::IpProto,
        Field::UdpSrc,
        Field::UdpDst,
        Field::Ipv6Src,
        Field::Ipv6Dst,
    ];

    /// Its number in the specification, and its length in bytes.
    const fn layout(self) -> (u8, usize) {
        match self {
            Field::InPort => (0, 4),
            Field::Metadata => (2, 8),
            Field::EthDst => (3, 6),
            Field::EthSrc => (4, 6),
            Field::EthType => (5, 2),
            Field::VlanVid => (6, 2),
            Field::IpProto => (10, 1),
            Field::UdpSrc => (15, 2),
            Field::UdpDst => (16, 2),
            Field::Ipv6Src => (26, 16),
            Field::Ipv6Dst => (27, 16),
        }
    }

    /// All of its bits.
    #[must_use]
    pub const fn every_bit(self) -> u128 {
        u128::MAX >> (128 - 8 * self.layout().1 as u32)
    }

    fn from_number(number: u8, width: usize) -> Option<Field> {
        Field::ALL.into_iter().find(|field| field.layout() == (number, width))
    }
}

/// A field with its required value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Oxm {
    /// A field of [`Field`].
    Known {
        /// The field.
        field: Field,
        /// Its value; zero where the mask is zero.
        value: u128,
        /// The significant bits; `None` for all.
        mask: Option<u128>,
    },
    /// Another field.
    Other {
        /// Class, number, and whether it has a mask.
        kind: [u8; 3],
        /// Value and mask.
        bytes: Vec<u8>,
    },
}

impl Oxm {
    /// All bits of a field.
    #[must_use]
    pub fn exact(field: Field, value: u128) -> Oxm {
        Oxm::Known { field, value: value & field.every_bit(), mask: None }
    }

    /// Some bits of a field.
    #[must_use]
    pub fn masked(field: Field, value: u128, mask: u128) -> Oxm {
        let mask = mask & field.every_bit();
        Oxm::Known { field, value: value & mask, mask: (mask != field.every_bit()).then_some(mask) }
    }

    pub(super) fn write(&self, writer: &mut Writer) -> Result<(), CodecError> {
        match self {
            Oxm::Known { field, value, mask } => {
                let (number, width) = field.layout();
                writer.u16(BASIC);
                writer.u8(number << 1 | u8::from(mask.is_some()));
                writer.u8((width << usize::from(mask.is_some())) as u8);
                writer.number(*value, width);
                if let Some(mask) = mask {
                    writer.number(*mask, width);
                }
            }
            Oxm::Other { kind, bytes } => {
                writer.put(kind);
                writer.u8(u8::try_from(bytes.len()).map_err(|_| CodecError::Long)?);
                writer.put(bytes);
            }
        }
        Ok(())
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Oxm, CodecError> {
        let kind: [u8; 3] = reader.array()?;
        let length = usize::from(reader.u8()?);
        let bytes = reader.take(length)?;
        let has_mask = kind[2] & 1 == 1;
        let width = if has_mask { length / 2 } else { length };
        let known = (u16::from_be_bytes([kind[0], kind[1]]) == BASIC && !(has_mask && length % 2 == 1))
            .then(|| Field::from_number(kind[2] >> 1, width))
            .flatten();
        let Some(field) = known else { return Ok(Oxm::Other { kind, bytes: bytes.to_vec() }) };
        let mut parts = Reader::new(bytes);
        let value = parts.number(width)?;
        let mask = if has_mask { Some(parts.number(width)?) } else { None };
        Ok(Oxm::Known { field, value, mask })
    }
}

/// A match: packets in which every field has the required value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Match {
    /// The fields; prerequisites of a field come before it.
    pub fields: Vec<Oxm>,
}

impl Match {
    /// Every packet.
    #[must_use]
    pub fn any() -> Match {
        Match::default()
    }

    /// Adds a field with an exact value.
    #[must_use]
    pub fn with(mut self, field: Field, value: u128) -> Match {
        self.fields.push(Oxm::exact(field, value));
        self
    }

    /// Adds a field with a mask; a mask without bits adds nothing.
    #[must_use]
    pub fn with_masked(mut self, field: Field, value: u128, mask: u128) -> Match {
        if mask & field.every_bit() != 0 {
            self.fields.push(Oxm::masked(field, value, mask));
        }
        self
    }

    /// The value of a field with an exact match.
    #[must_use]
    pub fn exact(&self, wanted: Field) -> Option<u128> {
        self.fields.iter().find_map(|oxm| match oxm {
            Oxm::Known { field, value, mask: None } if *field == wanted => Some(*value),
            _ => None,
        })
    }

    pub(super) fn write(&self, writer: &mut Writer) -> Result<(), CodecError> {
        let begin = writer.len();
        writer.u16(MATCH_OXM);
        writer.u16(0);
        self.fields.iter().try_for_each(|field| field.write(writer))?;
        let length = writer.len() - begin;
        writer.set_u16(begin + 2, length)?;
        writer.pad(begin);
        Ok(())
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Match, CodecError> {
        let kind = reader.u16()?;
        let length = reader.u16()?;
        if kind != MATCH_OXM {
            return Err(CodecError::Unknown("kind of match"));
        }
        let mut part = reader.body(length, MATCH_HEADER_BYTES)?;
        let mut fields = Vec::new();
        while !part.is_empty() {
            fields.push(Oxm::read(&mut part)?);
        }
        let length = usize::from(length);
        reader.skip(length.next_multiple_of(8) - length)?;
        Ok(Match { fields })
    }
}
