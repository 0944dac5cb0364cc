//! The keys under which values are kept.

use std::sync::Arc;

/// What kind of thing a key names. All kinds but [`Kind::Memory`], [`Kind::Staged`] and [`Kind::Named`] are *control*: a
/// region has few of these keys, their values are small, and every store changes several of them atomically (see
/// [`crate::Atomic`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A page of memory; its number counts pages from the start of the region.
    Memory = 1,
    /// Part of a change that is being written in several calls.
    Staged = 2,
    /// A key that a client of the front end chose.
    Named = 3,
    /// What a region is: size, page size, mapping address.
    Header = 16,
    /// The log of changes: who released what.
    Log = 17,
    /// Locks, semaphores, barriers, condition variables.
    Synchronisation = 18,
    /// The heap's records of its blocks.
    Heap = 19,
    /// A process that uses the region.
    Member = 20,
    /// Names of regions and of what is in them.
    Directory = 21,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 9] = [
        Kind::Memory,
        Kind::Staged,
        Kind::Named,
        Kind::Header,
        Kind::Log,
        Kind::Synchronisation,
        Kind::Heap,
        Kind::Member,
        Kind::Directory,
    ];

    /// Whether every store can change keys of this kind together with other control keys of the region.
    pub const fn is_control(self) -> bool {
        !matches!(self, Kind::Memory | Kind::Staged | Kind::Named)
    }

    /// The kind with this number.
    pub fn from_number(number: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// A key: a region, a kind, and a number or a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    region: u32,
    kind: Kind,
    number: u64,
    name: Option<Arc<[u8]>>,
}

impl Key {
    /// The length of [`Key::encode`] for a key without a name.
    pub const ENCODED_BYTES: usize = 14;

    /// The key of thing `number` of one kind in a region.
    pub const fn new(region: u32, kind: Kind, number: u64) -> Key {
        Key { region, kind, number, name: None }
    }

    /// The key of page `page` of a region.
    pub const fn page(region: u32, page: u64) -> Key {
        Key::new(region, Kind::Memory, page)
    }

    /// The key that a client of the front end calls `name`.
    pub fn named(region: u32, name: &[u8]) -> Key {
        Key { region, kind: Kind::Named, number: 0, name: Some(name.into()) }
    }

    /// The region.
    pub const fn region(&self) -> u32 {
        self.region
    }

    /// The kind.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// The number; 0 for a key with a name.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The name, for a key that has one.
    pub fn name(&self) -> Option<&[u8]> {
        self.name.as_deref()
    }

    /// The name, shared, for callers that keep it.
    pub(crate) fn shared_name(&self) -> Option<Arc<[u8]>> {
        self.name.clone()
    }

    /// The key as bytes: `kind u8, spread u8, region u32, number u64`, big-endian, then the name. The second byte spreads
    /// neighbouring pages over the servers of a store that partitions its keys into ranges. All control keys of a region
    /// have the same second byte, so that they are adjacent.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Key::ENCODED_BYTES + self.name().map_or(0, <[u8]>::len));
        bytes.push(self.kind as u8);
        bytes.push(self.spread());
        bytes.extend_from_slice(&self.region.to_be_bytes());
        bytes.extend_from_slice(&self.number.to_be_bytes());
        bytes.extend_from_slice(self.name().unwrap_or_default());
        bytes
    }

    /// The key that [`Key::encode`] turned into these bytes; `None` for any other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Key> {
        let (fixed, name) = bytes.split_at_checked(Key::ENCODED_BYTES)?;
        let kind = Kind::from_number(fixed[0])?;
        let region = u32::from_be_bytes(fixed[2..6].try_into().ok()?);
        let number = u64::from_be_bytes(fixed[6..].try_into().ok()?);
        let key = match kind {
            Kind::Named => Key::named(region, name),
            _ if name.is_empty() => Key::new(region, kind, number),
            _ => return None,
        };
        (key.spread() == fixed[1]).then_some(key)
    }

    fn spread(&self) -> u8 {
        match self.kind {
            Kind::Memory | Kind::Staged => (self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8,
            Kind::Named => self.name().unwrap_or_default().iter().fold(0u8, |sum, byte| sum.wrapping_mul(31) ^ byte),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_being_encoded() {
        for kind in Kind::ALL {
            let key = match kind {
                Kind::Named => Key::named(7, b"user1"),
                _ => Key::new(7, kind, 0x0102_0304_0506_0708),
            };
            assert_eq!(Key::decode(&key.encode()), Some(key));
        }
    }

    #[test]
    fn other_bytes_are_no_key() {
        let mut bytes = Key::page(1, 2).encode();
        bytes[1] ^= 1;
        assert_eq!(Key::decode(&bytes), None, "the spread does not belong to the number");
        assert_eq!(Key::decode(b"user1"), None);
        assert_eq!(Key::decode(&[0; Key::ENCODED_BYTES]), None);
    }
}
