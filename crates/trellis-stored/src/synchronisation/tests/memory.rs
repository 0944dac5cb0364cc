//! The memory of a process in a world: copies of pages, under the real coherence.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use trellis_store::{Key, Store};

use crate::coherence::entry::{Notice, Patch};
use crate::coherence::log::{Collected, Copies};
use crate::error::StoredError;
use crate::layout::PAGE_BYTES;

/// Words of a region, copied when they are first read.
pub(super) struct Memory {
    store: Arc<dyn Store>,
    region: u32,
    pages: Mutex<HashMap<u64, Vec<u8>>>,
    changed: Mutex<Vec<Arc<Patch>>>,
}

impl Memory {
    pub(super) fn new(store: Arc<dyn Store>, region: u32) -> Memory {
        Memory { store, region, pages: Mutex::default(), changed: Mutex::default() }
    }

    /// The word at an offset of a page. A killed process reads 0.
    pub(super) fn read(&self, page: u64, offset: usize) -> u64 {
        self.fetch(page);
        let pages = self.pages.lock().unwrap();
        u64::from_le_bytes(pages[&page][offset..offset + 8].try_into().unwrap())
    }

    pub(super) fn write(&self, page: u64, offset: usize, value: u64) {
        self.fetch(page);
        let mut pages = self.pages.lock().unwrap();
        let patch = Patch { page, runs: vec![(offset as u16, value.to_le_bytes().to_vec())] };
        patch.apply(pages.get_mut(&page).unwrap());
        self.changed.lock().unwrap().push(Arc::new(patch));
    }

    fn fetch(&self, page: u64) {
        if self.pages.lock().unwrap().contains_key(&page) {
            return;
        }
        let value = self.store.get_many(&[Key::page(self.region, page)]).map(|mut values| values.pop().flatten());
        let mut bytes = value.ok().flatten().unwrap_or_default();
        bytes.resize(PAGE_BYTES, 0);
        for patch in self.changed.lock().unwrap().iter().filter(|patch| patch.page == page) {
            patch.apply(&mut bytes);
        }
        self.pages.lock().unwrap().insert(page, bytes);
    }
}

impl Copies for Memory {
    fn collect(&self, _bytes_max: usize) -> Result<Collected, StoredError> {
        let patches = std::mem::take(&mut *self.changed.lock().unwrap());
        Ok(Collected { patches, ..Collected::default() })
    }

    fn staged(&self, _redo_record: u64, _patches: &[Arc<Patch>]) {}

    fn next_redo_record(&self) -> u64 {
        panic!("a word is never staged")
    }

    fn settled(&self) {}

    fn apply_notices(&self, notices: &[Notice]) -> Result<(), StoredError> {
        let mut pages = self.pages.lock().unwrap();
        for notice in notices {
            match notice {
                Notice::Named(runs) => {
                    pages.retain(|page, _| runs.iter().all(|(first, count)| !(*first..first + count).contains(page)));
                }
                Notice::Inline(patches) => {
                    for patch in patches {
                        if let Some(bytes) = pages.get_mut(&patch.page) {
                            patch.apply(bytes);
                        }
                    }
                }
                Notice::Everything => pages.clear(),
            }
        }
        Ok(())
    }
}
