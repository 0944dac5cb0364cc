//! The changes of a page.

/// Bytes of one page that changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// The page.
    pub page: u64,
    /// Offsets and new bytes; ascending, and not adjacent.
    pub runs: Vec<(u16, Vec<u8>)>,
}

impl Patch {
    /// How many bytes it changes.
    pub fn bytes(&self) -> usize {
        self.runs.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    /// Applies the changes to a copy of the page.
    pub fn apply(&self, page: &mut [u8]) {
        for (offset, bytes) in &self.runs {
            let from = usize::from(*offset);
            page[from..from + bytes.len()].copy_from_slice(bytes);
        }
    }
}
