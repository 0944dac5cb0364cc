//! Words: each load and store of the program is a call of the store, and no copy is kept.
//!
//! Addresses of the region are bytes of its pages. In *full* mode, every other address is a byte of a second region,
//! which belongs to this process alone, after it was stored to. Until then, and again after plain instructions wrote
//! it, the byte is in the process's own memory. `presence` records this for each byte.
//!
//! Promises: an access is one call, whatever its length and alignment, up to [`PIECE_BYTES`]. It changes exactly the
//! bytes that it names. An atomic access is one step for all processes. Pages of a shared region that were stored to
//! are named at the next release, for processes that keep copies.
//!
//! It must never keep a value: a load returns what was in the store after the call began.
//!
//! The functions that take addresses are unsafe because an address outside the region is memory of this process.

mod atomics;
mod native;
mod presence;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use trellis_store::{Applied, Change, Key, Operation, Outcome, Store};

use super::coherence::entry::{Notice, Patch};
use super::coherence::log::{Collected, Copies};
use super::error::StoredError;
use super::layout::{PAGE_BYTES, REGION_BASE, is_inside};
use presence::{Presence, Where};

pub use atomics::Update;

/// The maximum length of one call in bytes. A longer access takes several.
pub const PIECE_BYTES: usize = 256 * PAGE_BYTES;

/// The words of a region, and in full mode those of this process's own memory.
pub struct Words {
    store: Arc<dyn Store>,
    region: u32,
    bytes: usize,
    /// The region for addresses outside, in full mode.
    process: Option<Process>,
    /// Pages that were stored to since the last release; `None` for a private region.
    touched: Option<Mutex<BTreeSet<u64>>>,
    piece_bytes: usize,
    whole_calls: bool,
}

struct Process {
    region: u32,
    presence: Presence,
    /// Locked while native bytes are moved into the store, so that no atomic change in between is undone.
    importing: Mutex<()>,
}

/// The part of an access that lies in one value.
#[derive(Clone, Copy, Debug)]
struct AccessPart {
    region: u32,
    page: u64,
    offset: u32,
    /// The offset of the part in the access.
    at: usize,
    bytes: usize,
}

impl AccessPart {
    fn key(&self) -> Key {
        Key::page(self.region, self.page)
    }

    fn get(&self) -> Operation {
        Operation::Get { key: self.key(), range: Some((self.offset, self.bytes as u32)) }
    }

    fn put(&self, from: &[u8]) -> Operation {
        let bytes = &from[self.at..self.at + self.bytes];
        // An absent page is zero, and costs nothing.
        let is_gone = self.bytes == PAGE_BYTES && bytes.iter().all(|byte| *byte == 0);
        let change = match is_gone {
            true => Change::Delete,
            false => Change::PutRange { offset: self.offset, bytes: bytes.to_vec() },
        };
        Operation::Change { key: self.key(), change }
    }
}

impl Words {
    /// The words of region `region`, which has `bytes` bytes; with `process`, also those of all other addresses, in
    /// that region.
    pub fn new(store: Arc<dyn Store>, region: u32, bytes: usize, is_shared: bool, process: Option<u32>) -> Words {
        let can = store.capabilities();
        let by_steps = (can.operations_max.saturating_sub(2)).max(1).saturating_mul(PAGE_BYTES);
        let by_bytes = (can.call_bytes_max / 2).max(64);
        Words {
            store,
            region,
            bytes,
            process: process.map(|region| Process {
                region,
                presence: Presence::default(),
                importing: Mutex::default(),
            }),
            touched: is_shared.then(Mutex::default),
            piece_bytes: PIECE_BYTES.min(by_steps).min(by_bytes),
            whole_calls: can.atomic == trellis_store::Atomic::Call,
        }
    }

    /// Loads `into.len()` bytes.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    ///
    /// # Safety
    ///
    /// The part of the range outside the region is readable memory of this process.
    pub unsafe fn load(&self, address: usize, into: &mut [u8]) -> Result<(), StoredError> {
        let mut at = 0;
        while at < into.len() {
            let count = self.piece_bytes.min(into.len() - at);
            // SAFETY: a part of the caller's range.
            unsafe { self.load_piece(address + at, &mut into[at..at + count])? };
            at += count;
        }
        Ok(())
    }

    /// Stores bytes.
    ///
    /// # Errors
    ///
    /// The errors of the store; any part of the bytes may then have been stored.
    ///
    /// # Safety
    ///
    /// The part of the range outside the region is writable memory of this process.
    pub unsafe fn store(&self, address: usize, from: &[u8]) -> Result<(), StoredError> {
        for (index, piece) in from.chunks(self.piece_bytes).enumerate() {
            // SAFETY: a part of the caller's range.
            unsafe { self.store_piece(address + index * self.piece_bytes, piece)? };
        }
        Ok(())
    }

    /// Copies bytes, as memmove(3) does.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    ///
    /// # Safety
    ///
    /// As [`Words::load`] and [`Words::store`].
    pub unsafe fn copy(&self, to: usize, from: usize, bytes: usize) -> Result<(), StoredError> {
        let mut buffer = vec![0; self.piece_bytes.min(bytes)];
        let pieces = bytes.div_ceil(self.piece_bytes);
        for index in 0..pieces {
            // The copy goes from the end if the target begins inside the source.
            let index = if to > from { pieces - 1 - index } else { index };
            let at = index * self.piece_bytes;
            let piece = &mut buffer[..self.piece_bytes.min(bytes - at)];
            // SAFETY: parts of the caller's ranges.
            unsafe {
                self.load_piece(from + at, piece)?;
                self.store_piece(to + at, piece)?;
            }
        }
        Ok(())
    }

    /// Sets every byte of a range to `byte`.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    ///
    /// # Safety
    ///
    /// As [`Words::store`].
    pub unsafe fn set(&self, address: usize, byte: u8, bytes: usize) -> Result<(), StoredError> {
        let piece = vec![byte; self.piece_bytes.min(bytes)];
        let mut at = 0;
        while at < bytes {
            let count = piece.len().min(bytes - at);
            // SAFETY: a part of the caller's range.
            unsafe { self.store_piece(address + at, &piece[..count])? };
            at += count;
        }
        Ok(())
    }

    /// Discards the store's bytes of this range, which plain instructions have written.
    pub fn import(&self, address: usize, bytes: usize) {
        if let Some(process) = &self.process {
            process.presence.forget(address, bytes);
        }
    }

    /// Copies the store's bytes of this range to the process's own memory.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    ///
    /// # Safety
    ///
    /// As [`Words::store`].
    pub unsafe fn export(&self, address: usize, bytes: usize) -> Result<(), StoredError> {
        let Some(process) = &self.process else { return Ok(()) };
        if is_inside(address) {
            return Ok(());
        }
        // Only bytes that are in the store are written: the rest may be read-only memory, or memory that others change.
        let mut runs = Vec::new();
        process.presence.runs(address, bytes, &mut |place, at, count| {
            if place == Where::Stored {
                runs.push((at, count));
            }
        });
        let mut buffer = vec![0; self.piece_bytes.min(bytes)];
        for (first, count) in runs {
            for at in (first..first + count).step_by(self.piece_bytes) {
                let piece = &mut buffer[..self.piece_bytes.min(first + count - at)];
                // SAFETY: a part of the caller's range.
                unsafe {
                    self.load_piece(address + at, piece)?;
                    native::write(address + at, piece);
                }
            }
        }
        Ok(())
    }

    /// Keeps these bytes in the process's own memory permanently.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    ///
    /// # Safety
    ///
    /// As [`Words::store`].
    pub unsafe fn keep_native(&self, address: usize, bytes: usize) -> Result<(), StoredError> {
        let Some(process) = &self.process else { return Ok(()) };
        if is_inside(address) || process.presence.is_native(address, bytes) {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.export(address, bytes)? };
        process.presence.keep_native(address, bytes);
        Ok(())
    }

    unsafe fn load_piece(&self, address: usize, into: &mut [u8]) -> Result<(), StoredError> {
        let mut parts = Vec::new();
        let mut all_native = true;
        self.split(address, into.len(), false, &mut |place, at, bytes| {
            match place {
                // SAFETY: by the caller's promise, it is readable memory outside the region.
                Place::Native => unsafe { native::read(address + at, &mut into[at..at + bytes]) },
                Place::Stored(part) => parts.push(part),
            }
            all_native &= matches!(place, Place::Native);
        })?;
        if all_native {
            return Ok(());
        }
        let gets: Vec<Operation> = parts.iter().map(AccessPart::get).collect();
        let outcomes = self.apply(&gets)?;
        for (part, outcome) in parts.iter().zip(outcomes) {
            let into = &mut into[part.at..part.at + part.bytes];
            let found = if let Outcome::Value(Some(found)) = outcome { found } else { Vec::new() };
            let (known, missing) = into.split_at_mut(found.len().min(part.bytes));
            known.copy_from_slice(&found[..known.len()]);
            missing.fill(0);
        }
        Ok(())
    }

    unsafe fn store_piece(&self, address: usize, from: &[u8]) -> Result<(), StoredError> {
        let mut parts = Vec::new();
        self.split(address, from.len(), true, &mut |place, at, bytes| match place {
            // SAFETY: by the caller's promise, it is writable memory outside the region.
            Place::Native => unsafe { native::write(address + at, &from[at..at + bytes]) },
            Place::Stored(part) => parts.push(part),
        })?;
        if parts.is_empty() {
            return Ok(());
        }
        let puts: Vec<Operation> = parts.iter().map(|part| part.put(from)).collect();
        self.apply(&puts)?;
        self.changed(address, &parts);
        Ok(())
    }

    /// Records which bytes were stored.
    fn changed(&self, address: usize, parts: &[AccessPart]) {
        for part in parts {
            if part.region == self.region {
                if let Some(touched) = &self.touched {
                    touched.lock().unwrap_or_else(PoisonError::into_inner).insert(part.page);
                }
            } else if let Some(process) = &self.process {
                process.presence.stored(address + part.at, part.bytes);
            }
        }
    }

    fn apply(&self, operations: &[Operation]) -> Result<Vec<Outcome>, StoredError> {
        match self.store.apply(operations, None)? {
            Applied::Done(outcomes) => Ok(outcomes),
            other => Err(StoredError::Argument(format!(
                "store {}: a plain access was answered with {other:?}; that is a fault of Trellis, please report it",
                self.store.name()
            ))),
        }
    }

    /// Where the bytes of a range are. Bytes that are not yet assigned go to the store if something is stored to them.
    fn split(
        &self,
        address: usize,
        bytes: usize,
        is_store: bool,
        each: &mut dyn FnMut(Place, usize, usize),
    ) -> Result<(), StoredError> {
        if is_inside(address) {
            return self.split_region(address, bytes, each);
        }
        let Some(process) = &self.process else {
            each(Place::Native, 0, bytes);
            return Ok(());
        };
        process.presence.runs(address, bytes, &mut |place, at, count| {
            if place == Where::Stored || place == Where::Nowhere && is_store {
                split_pages(process.region, address as u64 + at as u64, at, count, each);
            } else {
                each(Place::Native, at, count);
            }
        });
        Ok(())
    }

    fn split_region(
        &self,
        address: usize,
        bytes: usize,
        each: &mut dyn FnMut(Place, usize, usize),
    ) -> Result<(), StoredError> {
        let offset = address - REGION_BASE;
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(StoredError::Argument(format!(
                "address {address:#x} and {bytes} bytes from there are outside the region, which has {} bytes from \
                 {REGION_BASE:#x} on; the program used an address that no heap gave it",
                self.bytes
            )));
        }
        split_pages(self.region, offset as u64, 0, bytes, each);
        Ok(())
    }
}

/// Where bytes are.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In this process's own memory.
    Native,
    Stored(AccessPart),
}

fn split_pages(region: u32, offset: u64, at: usize, bytes: usize, each: &mut dyn FnMut(Place, usize, usize)) {
    let mut done = 0;
    while done < bytes {
        let here = offset + done as u64;
        let in_page = (here % PAGE_BYTES as u64) as usize;
        let count = (PAGE_BYTES - in_page).min(bytes - done);
        let part =
            AccessPart { region, page: here / PAGE_BYTES as u64, offset: in_page as u32, at: at + done, bytes: count };
        each(Place::Stored(part), at + done, count);
        done += count;
    }
}

impl Copies for Words {
    fn collect(&self, _bytes_max: usize) -> Result<Collected, StoredError> {
        let Some(touched) = &self.touched else { return Ok(Collected::default()) };
        let named = std::mem::take(&mut *touched.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Collected { named: named.into_iter().collect(), ..Collected::default() })
    }

    fn staged(&self, _redo_record: u64, _patches: &[Arc<Patch>]) {}

    fn next_redo_record(&self) -> u64 {
        0
    }

    fn settled(&self) {}

    fn apply_notices(&self, _notices: &[Notice]) -> Result<(), StoredError> {
        Ok(())
    }
}
