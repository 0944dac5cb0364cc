//! Bytes in network order, read and written. Promises that reading is total: any input gives a value or an error. It
//! must never panic.

use super::CodecError;

/// The unread bytes.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], CodecError> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(CodecError::Short)?;
        self.bytes = rest;
        Ok(taken)
    }

    /// The next bytes, as a reader of their own.
    pub(super) fn part(&mut self, count: usize) -> Result<Reader<'a>, CodecError> {
        self.take(count).map(Reader::new)
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    pub(super) fn skip(&mut self, count: usize) -> Result<(), CodecError> {
        self.take(count).map(drop)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        self.take(N)?.try_into().map_err(|_| CodecError::Short)
    }

    pub(super) fn u8(&mut self) -> Result<u8, CodecError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, CodecError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, CodecError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, CodecError> {
        self.array().map(u64::from_be_bytes)
    }

    /// A number of this many bytes, at most 16.
    pub(super) fn number(&mut self, width: usize) -> Result<u128, CodecError> {
        Ok(self.take(width)?.iter().fold(0, |number, byte| number << 8 | u128::from(*byte)))
    }

    /// The body of an item whose length includes the length field and the kind before it.
    pub(super) fn body(&mut self, length: u16, before: usize) -> Result<Reader<'a>, CodecError> {
        let body = usize::from(length).checked_sub(before).ok_or(CodecError::Length)?;
        self.part(body)
    }
}

/// The output.
#[derive(Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn zeros(&mut self, count: usize) {
        self.bytes.resize(self.bytes.len() + count, 0);
    }

    pub(super) fn u8(&mut self, number: u8) {
        self.put(&[number]);
    }

    pub(super) fn u16(&mut self, number: u16) {
        self.put(&number.to_be_bytes());
    }

    pub(super) fn u32(&mut self, number: u32) {
        self.put(&number.to_be_bytes());
    }

    pub(super) fn u64(&mut self, number: u64) {
        self.put(&number.to_be_bytes());
    }

    /// The lowest `width` bytes of a number.
    pub(super) fn number(&mut self, number: u128, width: usize) {
        let bytes = number.to_be_bytes();
        self.put(&bytes[bytes.len() - width..]);
    }

    /// Text in a field of this many bytes, the last of which is zero; longer text is truncated.
    pub(super) fn text(&mut self, text: &str, width: usize) {
        let shown = text.bytes().take(width - 1).map(|byte| if byte.is_ascii() { byte } else { b'?' });
        let end = self.bytes.len() + width;
        self.bytes.extend(shown);
        self.bytes.resize(end, 0);
    }

    /// Zeros up to a multiple of eight, counted from `begin`.
    pub(super) fn pad(&mut self, begin: usize) {
        let length = self.bytes.len() - begin;
        self.zeros(length.next_multiple_of(8) - length);
    }

    /// Writes a length into a place that was reserved for it.
    pub(super) fn set_u16(&mut self, at: usize, number: usize) -> Result<(), CodecError> {
        let number = u16::try_from(number).map_err(|_| CodecError::Long)?;
        self.bytes[at..at + 2].copy_from_slice(&number.to_be_bytes());
        Ok(())
    }
}

/// Text of a field padded with zeros; non-ASCII characters become question marks.
pub(super) fn text(bytes: &[u8]) -> String {
    let letters = bytes.iter().take(bytes.len() - 1).take_while(|&&byte| byte != 0);
    letters.map(|&byte| if byte.is_ascii() { char::from(byte) } else { '?' }).collect()
}
