//! Collects changes from the pages for releases, and applies other processes' notices to the pages.
//!
//! Promises: a page from which a release collected a change remains usable, and if it is fetched again meanwhile, the
//! change is applied on top. A page that this process changed keeps its change, whatever other processes did to the
//! rest of it.
//!
//! It must never lose a store that happens while a page is compared: either write access is removed first, or, in an
//! open page, the compared bytes become the twin, so that a later store is in the next difference.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use trellis_memory::diff;
use trellis_store::{Change, Key, Operation};

use super::Paging;
use crate::coherence::entry::{self, Notice, Patch};
use crate::coherence::log::{Collected, Copies};
use crate::error::StoredError;
use crate::layout::PAGE_BYTES;
use crate::page_frames::{State, Table, runs};

/// The maximum number of adjacent pages that a release makes read-only at once.
const PROTECT_AT_ONCE: usize = 64;

impl Copies for Paging {
    fn collect(&self, bytes_max: usize) -> Result<Collected, StoredError> {
        let mut table = self.table();
        // Cleaners see this with the table locked, so no new write-back begins; otherwise one of them could always be
        // at work.
        self.is_collecting.store(true, Ordering::SeqCst);
        while self.is_something_written(&table) {
            // Changes that are being staged belong to this release. This wait ends when the write that is under way
            // ends; it has the deadline of the store.
            table = self.changed.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        self.is_collecting.store(false, Ordering::SeqCst);
        let dirty = table.take_dirty();
        let join = self.join_bytes();
        let (mut patches, mut bytes, mut rest) = (Vec::new(), 0, &dirty[..]);
        while bytes < bytes_max
            && let Some((_, count)) = runs(rest).next()
        {
            // This is a part of a long range, so that no more pages are made read-only than are collected.
            let count = count.min(PROTECT_AT_ONCE);
            let mut found = Vec::new();
            let mut closing = Vec::new();
            for &page in &rest[..count] {
                if table.should_stay_open(page) {
                    found.extend(self.look_at_open(&mut table, page, join));
                } else {
                    closing.push(page);
                }
            }
            for (first, count) in runs(&closing) {
                self.protect(&table, first, count)?;
            }
            for &page in &closing {
                if let Some(patch) = self.take_difference(&mut table, page, join) {
                    table.note_closed(page);
                    found.push(patch);
                }
            }
            for (first, count) in runs(&closing) {
                self.region.drop_twins(first, count);
            }
            for patch in found {
                bytes += patch.bytes();
                table.set_zero(patch.page, false);
                patches.push(self.keep(&mut table, patch));
            }
            rest = &rest[count..];
        }
        let more = !rest.is_empty();
        table.give_dirty_back(rest);
        let (redo_records, named) = table.take_redo_records();
        self.notice_shortage(&table);
        drop(table);
        self.arrived();
        Ok(Collected { patches, redo_records, named, more })
    }

    fn staged(&self, redo_record: u64, patches: &[Arc<Patch>]) {
        self.table().stage(redo_record, patches);
    }

    fn next_redo_record(&self) -> u64 {
        self.new_redo_record()
    }

    fn settled(&self) {
        self.table().settle();
        self.arrived();
    }

    fn apply_notices(&self, notices: &[Notice]) -> Result<(), StoredError> {
        let mut table = self.table();
        let mut to_merge = Vec::new();
        for notice in notices {
            match notice {
                Notice::Inline(patches) => patches.iter().for_each(|patch| self.patch(&mut table, patch)),
                Notice::Named(named) => {
                    for &(first, count) in named {
                        let end = first.saturating_add(count).min(table.pages());
                        (first..end).for_each(|page| table.set_zero(page, false));
                        let pages: Vec<u64> = (first..end).collect();
                        self.outdate(&mut table, &pages, &mut to_merge)?;
                    }
                }
                Notice::Everything => self.outdate_everything(&mut table, &mut to_merge)?,
            }
        }
        self.notice_shortage(&table);
        drop(table);
        self.arrived();
        to_merge.sort_unstable();
        to_merge.dedup();
        for part in to_merge.chunks(self.batch.measure.pages) {
            self.merge(part.to_vec())?;
        }
        Ok(())
    }
}

impl Paging {
    /// Whether a cleaner is staging changes of a shared region now.
    fn is_something_written(&self, table: &Table) -> bool {
        !self.options.is_private && table.is_any_writing() && !self.is_over()
    }

    /// Removes write access; page frames that are not mapped have none.
    fn protect(&self, table: &Table, first: usize, count: usize) -> Result<(), StoredError> {
        let mapped: Vec<u64> =
            (first..first + count).map(|page| page as u64).filter(|&page| table.is_mapped(page)).collect();
        for (first, count) in runs(&mapped) {
            if let Some(lines) = &self.lines {
                lines.protect(first, count);
            }
            self.region.downgrade(first, count)?;
        }
        Ok(())
    }

    /// The bytes of a page to which threads may be storing: each aligned word is as it was either before or after such
    /// a store.
    fn snapshot(&self, page: u64) -> [u8; PAGE_BYTES] {
        let frame = self.region.privileged(page as usize, 1).cast::<u64>().cast_const();
        let mut now = [0; PAGE_BYTES];
        for (word, bytes) in now.chunks_exact_mut(8).enumerate() {
            // SAFETY: inside the page frame, which is aligned to pages.
            bytes.copy_from_slice(&unsafe { frame.add(word).read_volatile() }.to_ne_bytes());
        }
        now
    }

    /// The difference of a page that stays open. The compared bytes become its twin, so a store that came too late is
    /// in the next difference.
    fn look_at_open(&self, table: &mut Table, page: u64, join: usize) -> Option<Patch> {
        if !table.has_twin(page) {
            // Its twin was all zeros; memory of a twin that was returned to the kernel is zero too.
            table.add_twin(page);
        }
        let now = self.snapshot(page);
        // SAFETY: the table is held; only its holder uses twins.
        let twin = unsafe { self.twin(page) };
        let patch = entry::difference(page, &now, twin, join);
        if patch.is_some() {
            twin.copy_from_slice(&now);
        }
        table.keep_open(page, patch.is_some());
        patch
    }

    /// Closes an open page if nothing was stored to it since the last release; returns whether it is clean now.
    fn close_unchanged(&self, table: &mut Table, page: u64) -> Result<bool, StoredError> {
        // SAFETY: the table is held; only its holder uses twins.
        let is_changed = || self.snapshot(page)[..] != *unsafe { self.twin(page) };
        if !table.is_open(page) || is_changed() {
            return Ok(false);
        }
        self.protect(table, page as usize, 1)?;
        // Stores between the two comparisons remain to be released.
        if is_changed() {
            self.region.upgrade(page as usize, 1)?;
            return Ok(false);
        }
        table.make_clean(page);
        self.region.drop_twins(page as usize, 1);
        Ok(true)
    }

    /// Applies another process's bytes to a copy that is in memory.
    fn patch(&self, table: &mut Table, patch: &Patch) {
        let page = patch.page;
        if page >= table.pages() {
            return;
        }
        table.set_zero(page, false);
        match table.state(page) {
            State::Absent => {}
            State::Fetching => table.make_stale(page),
            State::Clean => {
                // SAFETY: the table is held, and a clean page is not mapped for stores.
                patch.apply(unsafe { self.page_frame(page) });
            }
            State::Dirty => {
                if !table.has_twin(page) {
                    // Its twin was all zeros; memory of a twin that was returned to the kernel is zero too.
                    table.add_twin(page);
                }
                // SAFETY: the table is held; only its holder uses twins.
                patch.apply(unsafe { self.twin(page) });
                let frame = self.region.privileged(page as usize, 1);
                for (offset, bytes) in &patch.runs {
                    for (index, byte) in bytes.iter().enumerate() {
                        // SAFETY: inside the page frame. The program may store to other bytes of the page meanwhile,
                        // and to these only without having acquired what was released.
                        unsafe { frame.add(usize::from(*offset) + index).write_volatile(*byte) };
                    }
                }
            }
        }
    }

    /// Handles pages that changed in the store: clean ones are dropped, and those that were changed here must be
    /// merged.
    fn outdate(&self, table: &mut Table, pages: &[u64], to_merge: &mut Vec<u64>) -> Result<(), StoredError> {
        let mut gone = Vec::new();
        for &page in pages {
            match table.state(page) {
                State::Absent => {}
                State::Fetching => table.make_stale(page),
                // A page that is being staged is merged when that is done.
                State::Clean if table.is_writing(page) => to_merge.push(page),
                State::Clean => gone.push(page),
                State::Dirty if self.close_unchanged(table, page)? => gone.push(page),
                State::Dirty => to_merge.push(page),
            }
        }
        self.discard(table, &gone)
    }

    fn outdate_everything(&self, table: &mut Table, to_merge: &mut Vec<u64>) -> Result<(), StoredError> {
        // Any page may have been written, so none is known to be zero any more.
        table.forget_zeros();
        let here = table.here();
        self.outdate(table, &here, to_merge)?;
        for page in table.fetching() {
            table.make_stale(page);
        }
        Ok(())
    }

    /// Merges the store's bytes into pages that were changed here.
    fn merge(&self, mut pages: Vec<u64>) -> Result<(), StoredError> {
        while !pages.is_empty() {
            let contents = self.contents(&pages)?;
            let mut table = self.table();
            let mut later = Vec::new();
            for (&page, content) in pages.iter().zip(&contents) {
                match table.state(page) {
                    State::Absent => {}
                    State::Fetching => table.make_stale(page),
                    State::Clean if table.is_writing(page) => later.push(page),
                    State::Clean => self.discard(&mut table, &[page])?,
                    State::Dirty => {
                        if !table.has_twin(page) {
                            table.add_twin(page);
                        }
                        let mut whole = content.clone();
                        whole.resize(PAGE_BYTES, 0);
                        let twin = self.region.twin(page as usize, 1);
                        // SAFETY: both are pages of the region, aligned; the table is held, so no other thread uses the
                        // twin.
                        unsafe { diff::merge(&whole, Some(twin), self.region.privileged(page as usize, 1)) };
                    }
                }
            }
            self.notice_shortage(&table);
            if !later.is_empty() {
                // This wait ends when the write that is under way ends, which has the deadline of the store.
                table = self.changed.wait(table).unwrap_or_else(PoisonError::into_inner);
            }
            drop(table);
            pages = later;
        }
        Ok(())
    }

    /// Handles the heap's report that these pages are zero in the store and that no other process knows of them.
    pub fn fresh(&self, addresses: std::ops::Range<u64>) {
        let mut table = self.table();
        for page in self.pages_of(&addresses) {
            if table.state(page) == State::Absent && table.overlay(page).is_empty() {
                table.set_zero(page, true);
            }
        }
    }

    /// Drops the content of pages that is no longer needed. Returns whether they are zero from now on.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn released(&self, addresses: std::ops::Range<u64>) -> Result<bool, StoredError> {
        let pages: Vec<u64> = self.pages_of(&addresses).collect();
        let mut stored = Vec::new();
        {
            let mut table = self.table();
            let busy = |table: &Table| {
                pages.iter().any(|&page| table.is_writing(page) || table.state(page) == State::Fetching)
            };
            while busy(&table) && !self.is_over() {
                // This wait ends when what is under way ends, which has the deadline of the store.
                table = self.changed.wait(table).unwrap_or_else(PoisonError::into_inner);
            }
            let here: Vec<u64> = pages.iter().copied().filter(|&page| table.state(page) != State::Absent).collect();
            self.discard(&mut table, &here)?;
            if !self.options.is_private {
                return Ok(false);
            }
            for &page in &pages {
                if !table.overlay(page).is_empty() {
                    return Ok(false);
                }
                if !table.is_zero(page) {
                    stored.push(page);
                }
            }
        }
        // The pages belong to no block until this returns, so nothing is written to them meanwhile.
        let delete =
            |&page: &u64| Operation::Change { key: Key::page(self.options.region, page), change: Change::Delete };
        for part in stored.chunks(self.batch.operations_max.min(512)) {
            self.store.apply(&part.iter().map(delete).collect::<Vec<_>>(), None)?;
        }
        let mut table = self.table();
        stored.iter().for_each(|&page| table.set_zero(page, true));
        drop(table);
        self.arrived();
        Ok(true)
    }

    /// Makes the lines that hold these bytes readable, or writable, as far as this can be promised; see
    /// [`crate::lines`].
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn touch(&self, address: usize, bytes: usize, write: bool) -> Result<(), StoredError> {
        let Some(lines) = &self.lines else { return Ok(()) };
        let offset = address.wrapping_sub(self.options.base);
        if bytes == 0 || offset.checked_add(bytes).is_none_or(|end| end > self.options.bytes) {
            return Ok(());
        }
        let addresses = (address & !(PAGE_BYTES - 1)) as u64..(address + bytes) as u64;
        let pages: Vec<u64> = self.pages_of(&addresses).collect();
        self.make_ready(&pages, write)?;
        let table = self.table();
        for &page in &pages {
            let state = table.state(page);
            let is_ready = table.is_mapped(page) && (state == State::Dirty || state == State::Clean && !write);
            if is_ready {
                // This is done for all lines of the page frame, because access rights are those of the whole page.
                lines.allow(self.options.base + page as usize * PAGE_BYTES, PAGE_BYTES, write);
            }
        }
        Ok(())
    }

    /// The pages that hold these addresses of the region.
    fn pages_of(&self, addresses: &std::ops::Range<u64>) -> std::ops::Range<u64> {
        let (base, page) = (self.options.base as u64, PAGE_BYTES as u64);
        (addresses.start - base) / page..(addresses.end - base).div_ceil(page)
    }
}
