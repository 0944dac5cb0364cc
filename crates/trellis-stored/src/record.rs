//! The records of a region itself: its header, its entry in the directory, its root objects.
//!
//! Promises: little-endian numbers at fixed offsets, preceded by a version; records of another version are rejected. It
//! must never change the meaning of an offset: a new meaning gets a new version.

const MAGIC: [u8; 4] = *b"TRLS";
const VERSION: u8 = 1;

/// The description of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The size of a page in bytes.
    pub page_bytes: u32,
    /// Its first address.
    pub base: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it belongs to one process alone.
    pub is_private: bool,
    /// The time of its creation by its creator's clock, in milliseconds since 1970.
    pub made_milliseconds: u64,
    /// The number of the process that created it.
    pub process: u32,
    /// The kind of its heap, as text; empty for the default.
    pub heap: String,
}

impl Header {
    /// Encodes it as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend([VERSION, u8::from(self.is_private), 0, 0]);
        out.extend(self.page_bytes.to_le_bytes());
        out.extend(self.process.to_le_bytes());
        out.extend(self.base.to_le_bytes());
        out.extend(self.bytes.to_le_bytes());
        out.extend(self.made_milliseconds.to_le_bytes());
        out.extend(self.heap.as_bytes());
        out
    }

    /// Decodes bytes; `None` for another version.
    pub fn decode(bytes: &[u8]) -> Option<Header> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (&[VERSION, is_private, 0, 0], rest) = rest.split_first_chunk()? else { return None };
        let (page_bytes, rest) = rest.split_first_chunk()?;
        let (process, rest) = rest.split_first_chunk()?;
        let (base, rest) = rest.split_first_chunk()?;
        let (size, rest) = rest.split_first_chunk()?;
        let (made, heap) = rest.split_first_chunk()?;
        Some(Header {
            page_bytes: u32::from_le_bytes(*page_bytes),
            base: u64::from_le_bytes(*base),
            bytes: u64::from_le_bytes(*size),
            is_private: is_private == 1,
            made_milliseconds: u64::from_le_bytes(*made),
            process: u32::from_le_bytes(*process),
            heap: str::from_utf8(heap).ok()?.to_owned(),
        })
    }
}

/// The region that a name refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryRecord {
    pub(crate) number: u32,
    pub(crate) is_private: bool,
    pub(crate) name: String,
}

impl DirectoryRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, u8::from(self.is_private), 0, 0];
        out.extend(self.number.to_le_bytes());
        out.extend(self.name.as_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<DirectoryRecord> {
        let (&[VERSION, is_private, 0, 0], rest) = bytes.split_first_chunk()? else { return None };
        let (number, name) = rest.split_first_chunk()?;
        let name = str::from_utf8(name).ok()?.to_owned();
        Some(DirectoryRecord { number: u32::from_le_bytes(*number), is_private: is_private == 1, name })
    }
}

/// An address that is published under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) name: String,
    pub(crate) address: u64,
}

impl Root {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.address.to_le_bytes());
        out.extend(self.name.as_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Root> {
        let (&[VERSION], rest) = bytes.split_first_chunk()? else { return None };
        let (address, name) = rest.split_first_chunk()?;
        Some(Root { name: str::from_utf8(name).ok()?.to_owned(), address: u64::from_le_bytes(*address) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_being_written() {
        let header = Header {
            page_bytes: 4096,
            base: 1 << 45,
            bytes: 1 << 30,
            is_private: true,
            made_milliseconds: 5,
            process: 6,
            heap: "first-fit".to_owned(),
        };
        assert_eq!(Header::decode(&header.encode()), Some(header.clone()));
        let record = DirectoryRecord { number: 9, is_private: false, name: "jobs".to_owned() };
        assert_eq!(DirectoryRecord::decode(&record.encode()), Some(record));
        let root = Root { name: "queue".to_owned(), address: 1 << 46 };
        assert_eq!(Root::decode(&root.encode()), Some(root));
        for length in 0..40 {
            assert_eq!(Header::decode(&header.encode()[..length]), None, "{length} bytes");
        }
    }
}
