//! A server's memory: its own, or memory that is shared with a device that answers some requests itself.
//!
//! Promises of a [`ServerMemory`]: it is zero at first; reads return what was written; each call is one step for
//! everything that shares the memory. The server checks every range against the page table before it passes one; a range
//! that is not inside the memory panics. Whatever shares the memory obeys only the entries that were published last, and
//! must never touch a byte that they do not admit.

use std::ops::Range;

use trellis_fabric_protocol::memory_server::PageEntry;
use trellis_memory::Arena;

/// See the top of this file.
pub trait ServerMemory: Send {
    /// The size in bytes.
    fn bytes(&self) -> u64;

    /// Bytes in a range of offsets, as of one moment: in place if nothing else can change them, otherwise copied into
    /// `room`.
    fn read<'a>(&'a self, range: Range<u64>, room: &'a mut Vec<u8>) -> &'a [u8];

    /// Writes bytes from an offset on.
    fn write(&mut self, offset: u64, bytes: &[u8]);

    /// Zeroes the bytes of a future object, which no entry admits yet.
    fn zero(&mut self, range: Range<u64>);

    /// Replaces eight bytes, little-endian, by the result of `with`, if it returns one; returns the previous value.
    fn replace(&mut self, offset: u64, with: &dyn Fn(u64) -> Option<u64>) -> u64;

    /// The memory itself, if nothing else shares it.
    fn as_arena(&mut self) -> Option<&mut Arena> {
        None
    }

    /// Replaces the page-table entries, as words ([`entry_word`]), of the pages from `first_page` on. When it returns, no
    /// access that the previous entries admitted is still under way.
    fn publish(&mut self, first_page: u64, entries: &mut dyn Iterator<Item = u64>);
}

impl ServerMemory for Arena {
    fn bytes(&self) -> u64 {
        Arena::bytes(self)
    }

    fn read<'a>(&'a self, range: Range<u64>, _: &'a mut Vec<u8>) -> &'a [u8] {
        Arena::read(self, range)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        Arena::write(self, offset..offset + bytes.len() as u64).copy_from_slice(bytes);
    }

    fn zero(&mut self, range: Range<u64>) {
        Arena::zero(self, range);
    }

    fn replace(&mut self, offset: u64, with: &dyn Fn(u64) -> Option<u64>) -> u64 {
        let bytes = Arena::write(self, offset..offset + 8);
        let before = u64::from_le_bytes((&*bytes).try_into().expect("eight bytes"));
        if let Some(after) = with(before) {
            bytes.copy_from_slice(&after.to_le_bytes());
        }
        before
    }

    fn as_arena(&mut self) -> Option<&mut Arena> {
        Some(self)
    }

    /// Nothing else reads the entries.
    fn publish(&mut self, _: u64, _: &mut dyn Iterator<Item = u64>) {}
}

/// Moves whole pages to another memory, at its offset `at`; they are zero in the source afterwards.
pub(super) fn move_pages(from: &mut dyn ServerMemory, range: Range<u64>, to: &mut dyn ServerMemory, at: u64) {
    if let (Some(from), Some(to)) = (from.as_arena(), to.as_arena()) {
        return to.take_from(at, from, range);
    }
    let bytes = from.read(range.clone(), &mut Vec::new()).to_vec();
    to.write(at, &bytes);
    from.zero(range);
}

/// An entry as a number in the machine's byte order whose bytes are those of the entry.
pub fn entry_word(entry: PageEntry) -> u64 {
    let PageEntry { generation, valid_bytes, flags, laps } = entry;
    let mut bytes = [0; 8];
    for (two, field) in bytes.as_chunks_mut::<2>().0.iter_mut().zip([generation, valid_bytes, flags, laps]) {
        *two = field.to_ne_bytes();
    }
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_word_of_the_same_bytes() {
        let flags = PageEntry::FIRST | PageEntry::GUARDED;
        let entry = PageEntry { generation: 0x0102, valid_bytes: 0x0304, flags, laps: 0x0506 };
        let bytes = [0x0102_u16, 0x0304, 3, 0x0506].map(u16::to_ne_bytes).concat();
        assert_eq!(entry_word(entry).to_ne_bytes()[..], bytes);
    }

    #[test]
    fn an_arena_is_a_memory_of_its_own() {
        let mut arena = Arena::new(1 << 16).expect("there is that much");
        let memory: &mut dyn ServerMemory = &mut arena;
        let mut room = Vec::new();
        memory.write(4090, &[9; 20]);
        assert_eq!(memory.read(4089..4111, &mut room)[..], [&[0][..], &[9; 20], &[0]].concat());
        assert_eq!(memory.replace(4096, &|before| Some(before + 1)), u64::from_le_bytes([9; 8]));
        assert_eq!(memory.read(4096..4098, &mut room), [10, 9]);
        memory.zero(4090..4110);
        assert_eq!((memory.read(4089..4111, &mut room), memory.bytes()), (&[0; 22][..], 1 << 16));
    }
}
