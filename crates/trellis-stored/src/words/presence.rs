//! Records which bytes of this process's own memory are in the store.
//!
//! Promises: the record is exact for each byte, and a byte that is kept native never changes its place. It must never
//! call the store, or touch the memory itself.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::layout::PAGE_BYTES;

/// The place of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// In the process's own memory, until a store moves it to the store.
    Nowhere,
    /// In the store.
    Stored,
    /// In the process's own memory, permanently.
    Native,
}

const SHARDS: usize = 16;
const WORDS: usize = PAGE_BYTES / 64;

/// The place of each byte of memory.
#[derive(Default)]
pub(super) struct Presence {
    shards: [Mutex<HashMap<usize, Box<Page>>>; SHARDS],
}

struct Page {
    stored: [u64; WORDS],
    native: [u64; WORDS],
}

impl Page {
    const EMPTY: Page = Page { stored: [0; WORDS], native: [0; WORDS] };

    fn at(&self, byte: usize) -> Where {
        let bit = 1 << (byte % 64);
        if self.native[byte / 64] & bit != 0 {
            Where::Native
        } else if self.stored[byte / 64] & bit != 0 {
            Where::Stored
        } else {
            Where::Nowhere
        }
    }
}

impl Presence {
    fn shard(&self, page: usize) -> MutexGuard<'_, HashMap<usize, Box<Page>>> {
        self.shards[page % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `each` for each range of bytes in the same place: the place, the offset in the range, and the length.
    pub(super) fn runs(&self, address: usize, bytes: usize, each: &mut dyn FnMut(Where, usize, usize)) {
        let mut run: Option<(Where, usize)> = None;
        let mut turn = |place: Where, at: usize| match run {
            Some((same, _)) if same == place => {}
            before => {
                if let Some((place, start)) = before {
                    each(place, start, at - start);
                }
                run = Some((place, at));
            }
        };
        for (page, first, at, count) in pages(address, bytes) {
            // The states are copied, so that no lock is held during the callback.
            let states: Option<Vec<Where>> =
                self.shard(page).get(&page).map(|page| (first..first + count).map(|byte| page.at(byte)).collect());
            match states {
                None => turn(Where::Nowhere, at),
                Some(states) => states.iter().enumerate().for_each(|(index, place)| turn(*place, at + index)),
            }
        }
        if let Some((place, start)) = run {
            each(place, start, bytes - start);
        }
    }

    /// Records that these bytes are in the store, except those that are kept native.
    pub(super) fn stored(&self, address: usize, bytes: usize) {
        for (page, first, _, count) in pages(address, bytes) {
            let mut shard = self.shard(page);
            let page = shard.entry(page).or_insert_with(|| Box::new(Page::EMPTY));
            (first..first + count).for_each(|byte| page.stored[byte / 64] |= 1 << (byte % 64));
        }
    }

    /// Records that the store's bytes are no longer valid.
    pub(super) fn forget(&self, address: usize, bytes: usize) {
        for (page, first, _, count) in pages(address, bytes) {
            if let Some(page) = self.shard(page).get_mut(&page) {
                (first..first + count).for_each(|byte| page.stored[byte / 64] &= !(1 << (byte % 64)));
            }
        }
    }

    /// Records that these bytes stay native.
    pub(super) fn keep_native(&self, address: usize, bytes: usize) {
        for (page, first, _, count) in pages(address, bytes) {
            let mut shard = self.shard(page);
            let page = shard.entry(page).or_insert_with(|| Box::new(Page::EMPTY));
            (first..first + count).for_each(|byte| page.native[byte / 64] |= 1 << (byte % 64));
        }
    }

    /// Whether all these bytes are native.
    pub(super) fn is_native(&self, address: usize, bytes: usize) -> bool {
        let mut all = true;
        self.runs(address, bytes, &mut |place, _, _| all &= place == Where::Native);
        all
    }
}

/// The pages of a range: page number, first byte in the page, first byte in the range, length.
fn pages(address: usize, bytes: usize) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = (address + at) % PAGE_BYTES;
        let count = (PAGE_BYTES - first).min(bytes - at);
        let found = ((address + at) / PAGE_BYTES, first, at, count);
        at += count;
        (count > 0).then_some(found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(presence: &Presence, address: usize, bytes: usize) -> Vec<(Where, usize, usize)> {
        let mut found = Vec::new();
        presence.runs(address, bytes, &mut |place, at, count| found.push((place, at, count)));
        found
    }

    #[test]
    fn each_byte_is_where_it_was_put() {
        let presence = Presence::default();
        let base = 7 * PAGE_BYTES;
        assert_eq!(runs(&presence, base, 8), [(Where::Nowhere, 0, 8)]);
        presence.stored(base - 2, 5);
        let (nowhere, stored, native) = (Where::Nowhere, Where::Stored, Where::Native);
        assert_eq!(runs(&presence, base - 4, 10), [(nowhere, 0, 2), (stored, 2, 5), (nowhere, 7, 3)]);
        presence.keep_native(base, 1);
        assert_eq!(
            runs(&presence, base - 4, 10),
            [(nowhere, 0, 2), (stored, 2, 2), (native, 4, 1), (stored, 5, 2), (nowhere, 7, 3)]
        );
        presence.stored(base, 1);
        assert!(presence.is_native(base, 1), "for good");
        presence.forget(base - 2, 5);
        assert_eq!(runs(&presence, base - 4, 10), [(nowhere, 0, 4), (native, 4, 1), (nowhere, 5, 5)]);
        assert_eq!(runs(&presence, base, 0), []);
    }
}
