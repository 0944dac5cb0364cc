//! Fetches pages from the store.
//!
//! Promises: an installed page is what the store had after the page was requested, with this process's own unreleased
//! changes applied on top. A page that changed in the store meanwhile is requested again. It must never hold the table
//! during a call.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use trellis_memory::Access;
use trellis_store::Key;

use super::Paging;
use crate::coherence::{entry, keys};
use crate::error::StoredError;
use crate::layout::PAGE_BYTES;
use crate::page_frames::{Layer, State, Table, runs};
use crate::readahead::Window;

impl Paging {
    /// The loop of a thread that fetches ahead.
    pub(super) fn fetch_ahead(&self) {
        while let Some(wanted) = self.fault_threads.wait_for_window() {
            let mut table = self.wait_for_room(self.table(), wanted);
            // The window is taken with the table locked: a fault inside it either takes it first, or finds its pages
            // being fetched.
            let Some(window) = self.fault_threads.next_window() else { continue };
            let begun = self.begin_window(&mut table, &window);
            self.notice_shortage(&table);
            drop(table);
            if let Err(error) = self.fetch_begun(begun, window.trigger) {
                self.fail(&error);
            }
        }
    }

    /// Waits until this many page frames are free, or the region is stopped.
    pub(super) fn wait_for_room<'a>(&self, mut table: MutexGuard<'a, Table>, wanted: usize) -> MutexGuard<'a, Table> {
        let wanted = wanted.min(table.room() / 8).max(1);
        while table.free() < wanted && !self.is_over() {
            self.short.notify_all();
            // This wait ends when a cleaner has freed page frames (its writes have the deadline of the store), or the
            // region is stopped.
            table = self.changed.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        table
    }

    pub(super) fn notice_shortage(&self, table: &Table) {
        if self.is_short(table) {
            self.short.notify_one();
        }
    }

    /// Begins to fetch the missing pages of a window, as far as there is room.
    fn begin_window(&self, table: &mut Table, window: &Window) -> Vec<u64> {
        let mut begun = Vec::new();
        for page in window.pages.clone() {
            if table.state(page) == State::Absent && !table.is_zero(page) && table.free() > 0 {
                table.begin_fetch(page, false);
                begun.push(page);
            }
        }
        self.counters.ahead.fetch_add(begun.len() as u64, Ordering::Relaxed);
        begun
    }

    /// Fetches pages that are *fetching*, and a window besides.
    pub(super) fn fetch(&self, pages: &[u64], window: Option<Window>) {
        if pages.is_empty() {
            return;
        }
        let mut begun = pages.to_vec();
        let mut trigger = None;
        if let Some(window) = window {
            let mut table = self.table();
            // The fetch takes half of the free memory, so that the next fault finds room too. The rest of the window
            // waits for a limited time.
            let (now, later) = window.share(pages[0], table.free() as u64 / 2);
            if let Some(now) = now {
                begun.extend(self.begin_window(&mut table, &now));
                trigger = now.trigger;
            }
            drop(table);
            later.into_iter().for_each(|later| self.fault_threads.queue(later));
        }
        begun.sort_unstable();
        begun.dedup();
        if let Err(error) = self.fetch_begun(begun, trigger) {
            self.fail(&error);
        }
    }

    fn fetch_begun(&self, mut pages: Vec<u64>, trigger: Option<u64>) -> Result<(), StoredError> {
        while !pages.is_empty() {
            for (first, count) in runs(&pages).filter(|(_, count)| *count > 1) {
                self.region.prepare(first, count)?;
            }
            let contents = self.contents(&pages)?;
            self.counters.fetched.fetch_add(pages.len() as u64, Ordering::Relaxed);
            for (&page, content) in pages.iter().zip(&contents) {
                // SAFETY: while the page is fetching, only this thread uses the page frame.
                let frame = unsafe { self.page_frame(page) };
                let (known, rest) = frame.split_at_mut(content.len());
                known.copy_from_slice(content);
                rest.fill(0);
            }
            drop(contents);
            pages = self.end_fetch(&pages, trigger)?;
        }
        Ok(())
    }

    /// Makes fetched pages usable; returns those that are already outdated.
    fn end_fetch(&self, pages: &[u64], trigger: Option<u64>) -> Result<Vec<u64>, StoredError> {
        let (mut again, mut readable, mut writable) = (Vec::new(), Vec::new(), Vec::new());
        let mut table = self.table();
        for &page in pages {
            if table.take_stale(page) {
                again.push(page);
                continue;
            }
            let wanted = table.end_fetch(page);
            if wanted && table.free() > 0 {
                self.region.keep_twin(page as usize, 1);
                table.make_dirty(page, true);
                table.set_mapped(page, true);
                writable.push(page);
            } else if Some(page) != trigger || wanted {
                table.set_mapped(page, true);
                readable.push(page);
            } else {
                // A thread may be waiting for the page already; it is mapped when that thread asks again.
                self.region.wake(page as usize, 1);
            }
        }
        for (first, count) in runs(&readable) {
            self.region.install(first, count, Access::Read, false)?;
        }
        for (first, count) in runs(&writable) {
            self.region.install(first, count, Access::Write, false)?;
        }
        self.notice_shortage(&table);
        drop(table);
        self.arrived();
        Ok(again)
    }

    /// The current contents of pages: the store's bytes with this process's changes on top. One call, and another if
    /// redo records lie on top.
    pub(super) fn contents(&self, pages: &[u64]) -> Result<Vec<Vec<u8>>, StoredError> {
        // This is read before the call: what is settled meanwhile is either in the answer or applied on top again.
        let layers: Vec<(u64, Vec<Layer>)> = {
            let table = self.table();
            pages.iter().map(|&page| (page, table.overlay(page))).filter(|(_, layers)| !layers.is_empty()).collect()
        };
        let mut redo_records: Vec<u64> = layers
            .iter()
            .flat_map(|(_, layers)| layers)
            .filter_map(|layer| if let Layer::Staged(redo_record) = layer { Some(*redo_record) } else { None })
            .collect();
        redo_records.sort_unstable();
        redo_records.dedup();
        let region = self.options.region;
        let mut named: Vec<Key> =
            redo_records.iter().map(|&redo_record| keys::redo_record(region, redo_record)).collect();
        named.extend(pages.iter().map(|&page| Key::page(region, page)));
        let mut values = self.store.get_many(&named)?;
        let mut pages_values = values.split_off(redo_records.len());
        if values.contains(&None) {
            // A redo record that no longer exists was applied to its page, but perhaps after the page was read.
            pages_values = self.store.get_many(&named[redo_records.len()..])?;
        }
        let mut pages_found: Vec<Vec<u8>> = pages_values.into_iter().map(Option::unwrap_or_default).collect();
        pages_found.iter_mut().for_each(|page| page.truncate(PAGE_BYTES));
        if layers.is_empty() {
            return Ok(pages_found);
        }
        let mut staged = HashMap::new();
        for (redo_record, value) in redo_records.iter().zip(values) {
            let Some(value) = value else { continue };
            let patches =
                entry::decode_redo_record(&value).map_err(|reason| StoredError::Argument(reason.to_owned()))?;
            staged.insert(*redo_record, patches);
        }
        for (page, layers) in layers {
            let index = pages.iter().position(|&asked| asked == page).unwrap_or_default();
            let content = &mut pages_found[index];
            content.resize(PAGE_BYTES, 0);
            for layer in layers {
                match layer {
                    Layer::Patch(patch) => patch.apply(content),
                    Layer::Staged(redo_record) => {
                        let patches = staged.get(&redo_record).into_iter().flatten();
                        patches.filter(|patch| patch.page == page).for_each(|patch| patch.apply(content));
                    }
                }
            }
        }
        Ok(pages_found)
    }
}
