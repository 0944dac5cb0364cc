//! Frees page frames, after writing back their changes.
//!
//! Promises: access is removed first, then the page frame is compared, then the difference is written, and only when
//! the store has it may the page frame be freed. For one page, never two writes are under way at the same time, so that
//! no old content overwrites newer. In a shared region nothing is written to a page of the store: separate redo records
//! hold the changes until the next release.
//!
//! It must never free the last page frames of recently used pages while others can be freed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use trellis_store::{Change, Key, Operation};

use super::Paging;
use crate::coherence::entry::{self, Patch};
use crate::coherence::keys;
use crate::coherence::log::cut;
use crate::error::StoredError;
use crate::layout::PAGE_BYTES;
use crate::page_frames::{Layer, State, Table, runs};

impl Paging {
    /// The loop of a thread that cleans while memory is short.
    pub(super) fn clean(&self) {
        loop {
            let mut table = self.table();
            while (!self.is_short(&table) || self.is_sealed.load(Ordering::SeqCst)) && !self.is_over() {
                // This wait ends when memory is short, or the region is stopped.
                table = self.short.wait(table).unwrap_or_else(PoisonError::into_inner);
            }
            if self.is_over() {
                return;
            }
            self.cleaning.fetch_add(1, Ordering::SeqCst);
            drop(table);
            while !self.is_over() {
                match self.clean_once() {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => self.fail(&error),
                }
            }
            self.cleaning.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(super) fn is_short(&self, table: &Table) -> bool {
        self.batch.measure.is_short(table)
    }

    /// Frees one batch. False if there is enough memory.
    fn clean_once(&self) -> Result<bool, StoredError> {
        let mut table = self.table();
        // This is checked with the table locked, so a thread that seals then waits for writes that are under way.
        if table.free() >= self.batch.measure.high || self.is_sealed.load(Ordering::SeqCst) {
            return Ok(false);
        }
        if self.is_collecting.load(Ordering::SeqCst) && !self.is_over() {
            // This wait ends when the release has collected, which signals it.
            drop(self.short.wait(table).unwrap_or_else(PoisonError::into_inner));
            return Ok(true);
        }
        let before = table.queued();
        if table.candidates() < table.room() / 4 {
            let mut mapped = table.deactivate(self.batch.measure.pages);
            mapped.sort_unstable();
            self.unmap(&mapped)?;
        }
        // In a shared region, changes that a release has collected must stay above those that are staged here.
        let (clean, dirty) = table.take_candidates(self.batch.measure.pages, !self.options.is_private);
        if clean.is_empty() && dirty.is_empty() {
            if table.queued() == before && !self.is_over() {
                // Everything is being written already. This wait ends when a thread has finished a write, which signals
                // it.
                drop(self.short.wait(table).unwrap_or_else(PoisonError::into_inner));
            }
            return Ok(true);
        }
        self.discard(&mut table, &clean)?;
        let patches = self.compare(&mut table, &dirty)?;
        drop(table);
        self.arrived();
        if dirty.is_empty() {
            return Ok(true);
        }
        let staged = self.write(patches)?;
        let table = self.table();
        self.written(table, &dirty, staged)?;
        Ok(true)
    }

    /// The differences of pages that are not mapped; each counts as being written from here on.
    fn compare(&self, table: &mut Table, dirty: &[u64]) -> Result<Vec<Patch>, StoredError> {
        let join = self.join_bytes();
        let mut patches = Vec::new();
        for &page in dirty {
            if let Some(patch) = self.take_difference(table, page, join) {
                table.set_zero(page, false);
                patches.push(patch);
            }
            table.set_writing(page, true);
        }
        for (first, count) in runs(dirty) {
            self.region.drop_twins(first, count);
        }
        Ok(patches)
    }

    /// Writes differences to the store: into the pages of a private region, otherwise into redo records, which are
    /// returned.
    fn write(&self, patches: Vec<Patch>) -> Result<Vec<(u64, u64)>, StoredError> {
        let bytes: usize = patches.iter().map(Patch::bytes).sum();
        self.counters.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let region = self.options.region;
        let mut staged = Vec::new();
        let operations: Vec<Operation> = if self.options.is_private {
            patches.into_iter().flat_map(|patch| writes(region, patch)).collect()
        } else {
            let stage = |patch: &Patch| {
                let redo_record = self.new_redo_record();
                staged.push((patch.page, redo_record));
                let change = Change::Put(entry::encode_redo_record(std::iter::once(patch)));
                Operation::Change { key: keys::redo_record(region, redo_record), change }
            };
            patches.iter().map(stage).collect()
        };
        for part in cut(&operations, self.batch.operations_max, self.batch.call_bytes_max) {
            self.store.apply(part, None)?;
        }
        Ok(staged)
    }

    /// Completes a write: page frames that were neither used nor changed meanwhile are freed.
    fn written(
        &self,
        mut table: MutexGuard<'_, Table>,
        pages: &[u64],
        staged: Vec<(u64, u64)>,
    ) -> Result<(), StoredError> {
        for (page, redo_record) in &staged {
            table.lay_over(*page, Layer::Staged(*redo_record), false);
        }
        let mut gone = Vec::new();
        for &page in pages {
            table.set_writing(page, false);
            match table.state(page) {
                State::Clean if !table.is_mapped(page) => gone.push(page),
                State::Absent => {}
                _ => table.give_candidate_back(page),
            }
        }
        self.discard(&mut table, &gone)?;
        drop(table);
        self.arrived();
        Ok(())
    }

    /// Removes access from ascending pages.
    pub(super) fn unmap(&self, pages: &[u64]) -> Result<(), StoredError> {
        for (first, count) in runs(pages) {
            if let Some(lines) = &self.lines {
                lines.clear(first, count);
            }
            self.region.revoke(first, count)?;
        }
        Ok(())
    }

    /// Frees the page frames of ascending pages.
    pub(super) fn discard(&self, table: &mut Table, pages: &[u64]) -> Result<(), StoredError> {
        let mut twins = Vec::new();
        for &page in pages {
            if table.drop_frame(page) {
                twins.push(page);
            }
        }
        for (first, count) in runs(pages) {
            if let Some(lines) = &self.lines {
                lines.clear(first, count);
            }
            self.region.discard(first, count)?;
        }
        for (first, count) in runs(&twins) {
            self.region.drop_twins(first, count);
        }
        self.counters.evicted.fetch_add(pages.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn new_redo_record(&self) -> u64 {
        keys::redo_record_number(self.options.member, self.redo_records.fetch_add(1, Ordering::Relaxed))
    }

    /// Keeps a change above its page until a release is acknowledged.
    pub(super) fn keep(&self, table: &mut Table, patch: Patch) -> Arc<Patch> {
        let patch = Arc::new(patch);
        table.lay_over(patch.page, Layer::Patch(Arc::clone(&patch)), true);
        patch
    }
}

/// The steps that write a private page's changes. A page that changed completely is written with a put, because a store
/// without byte ranges would otherwise read the old one.
fn writes(region: u32, patch: Patch) -> impl Iterator<Item = Operation> {
    let key = Key::page(region, patch.page);
    patch.runs.into_iter().map(move |(offset, bytes)| {
        let change = if bytes.len() == PAGE_BYTES {
            Change::Put(bytes)
        } else {
            Change::PutRange { offset: u32::from(offset), bytes }
        };
        Operation::Change { key: key.clone(), change }
    })
}
