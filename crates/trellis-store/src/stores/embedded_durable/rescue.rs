//! Checking a durable store's file, copying it, and recovering the content of a damaged one.
//!
//! Promises: each command works on a file that no process has open, and leaves it unchanged; every statement about a
//! page rests on its checksum; a copy and a recovered store get their names only when they are complete and were read
//! again. From a damaged file, the newest commit that can be read completely is used, or otherwise the newest.
//! Unreadable parts of that commit are reported with their place and their keys, and so is what is dropped with them:
//! the first part of a value whose tail is lost, and the entries of a log before a gap. It must never return a value
//! that is not the one that was written.

use std::fs::File;
use std::path::Path;

use super::file::{self, Aside};
use super::format::{Image, Place};
use super::survey::{Chosen, chosen};
use super::{losses, new_database, tables};
use crate::error::StoreError;

/// The maximum number of places that are reported; further ones are only counted.
pub const PLACES_MAX: usize = 1000;

/// The progress of a long operation, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The current step.
    pub step: &'static str,
    /// The number of bytes done.
    pub done_bytes: u64,
    /// The size of the file.
    pub of_bytes: u64,
}

/// What was found in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The size of the file.
    pub bytes: u64,
    /// How many bytes of pages in use were compared with their checksums.
    pub read_bytes: u64,
    /// How many pairs of the store's tables were read.
    pub pairs: u64,
    /// The damaged places, in the order in which they were found; at most [`PLACES_MAX`].
    pub damage: Vec<Damage>,
    /// The number of damaged places.
    pub damaged_count: u64,
    /// How many pairs of the store's tables cannot be read, as far as this is known.
    pub lost_pairs: u64,
    /// How many commits were skipped: 1 if only the one before the last is intact or readable.
    pub commits_back: u32,
}

/// A damaged place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The first byte; [`Damage::to_byte`] is the first byte after the place.
    pub from_byte: u64,
    /// See [`Damage::from_byte`].
    pub to_byte: u64,
    /// The wrong bit, counted from the beginning of the file, if there is exactly one and it is known. No data is lost
    /// here.
    pub mended_bit: Option<u64>,
    /// What the place is, and what it held.
    pub what: String,
    /// Whether data is lost with it.
    pub is_loss: bool,
}

impl Report {
    /// Whether everything is as it was written.
    pub fn is_whole(&self) -> bool {
        self.damaged_count == 0
    }

    /// Whether the store holds less than was acknowledged.
    pub fn has_losses(&self) -> bool {
        self.commits_back > 0 || self.lost_pairs > 0 || self.damage.iter().any(|damage| damage.is_loss)
    }

    pub(super) fn add(&mut self, place: &Place, what: String, is_loss: bool) {
        self.damaged_count += 1;
        if self.damage.len() < PLACES_MAX {
            let (from_byte, to_byte) = (place.bytes.start, place.bytes.end);
            self.damage.push(Damage { from_byte, to_byte, mended_bit: place.bit, what, is_loss });
        }
    }
}

/// Receives progress reports.
pub type OnProgress<'a> = &'a mut dyn FnMut(Progress);

/// Compares every page in use with its checksum. Changes nothing.
///
/// # Errors
///
/// When the file does not exist, another process has it open, or the system does not let us read it. Damage is not an
/// error.
pub fn check(path: &Path, on_progress: OnProgress) -> Result<Report, StoreError> {
    Ok(chosen(path, &image(path)?, "looking through it", on_progress)?.report)
}

/// Makes a copy and checks it before it gets its name. The file must be intact.
///
/// # Errors
///
/// As [`check`]; when the file is damaged; when a file with the copy's name exists.
pub fn backup(path: &Path, copy: &Path, on_progress: OnProgress) -> Result<Report, StoreError> {
    refuse_existing(copy)?;
    let source = image(path)?;
    let found = chosen(path, &source, "looking through it", on_progress)?.report;
    if !found.is_whole() {
        return Err(file::damaged(path, "a copy would be damaged too"));
    }
    let mut aside = Aside::begin(copy)?;
    let of_bytes = found.bytes;
    aside.copy(source.file(), &mut |done_bytes| on_progress(Progress { step: "copying", done_bytes, of_bytes }))?;
    let written = read(copy, aside.file()?)?;
    if chosen(copy, &written, "looking through the copy", on_progress)?.report != found {
        let reason = "the copy is not what was written; look at the disk, and copy again".to_owned();
        return Err(StoreError::Protocol { store: file::name(copy), reason });
    }
    named(aside, copy)?;
    Ok(found)
}

/// Recovers everything that can be read into a new store, and reports what could not.
///
/// # Errors
///
/// When nothing can be read at all; when the file does not exist, another process has it open, or a file with the new
/// store's name exists; when the new store cannot be written.
pub fn salvage(path: &Path, new: &Path, on_progress: OnProgress) -> Result<Report, StoreError> {
    refuse_existing(new)?;
    let image = image(path)?;
    let Chosen { mut report, tables } = chosen(path, &image, "looking through it", on_progress)?;
    if tables.is_empty() {
        let reason =
            "nothing of it can be read: neither of the last two commits says where its tables are; if there is a \
                      copy (`trellis store backup`), use that"
                .to_owned();
        return Err(StoreError::Protocol { store: file::name(path), reason });
    }
    let aside = Aside::begin(new)?;
    let database = new_database(new, aside.file()?)?;
    let failed = |error: &dyn std::fmt::Display| StoreError::Protocol {
        store: file::name(new),
        reason: format!("what was read cannot be written: {error}"),
    };
    let mut lost = Vec::new();
    for name in tables::NAMES {
        let Some(table) = tables.iter().find(|table| table.name == name) else { continue };
        let copied = losses::copy(&image, table, &database, on_progress);
        lost.extend(copied.map_err(|error| failed(&error))?.into_iter().map(|between| (name, between)));
    }
    losses::settle(&database, &lost, &mut |what, pairs| {
        report.lost_pairs += pairs;
        report.add(&Place::default(), what, true);
    })
    .map_err(|error| failed(&error))?;
    drop(database);
    let again = chosen(new, &read(new, aside.file()?)?, "looking through the new store", on_progress)?;
    if !again.report.is_whole() {
        return Err(file::damaged(new, "it was just written: look at the disk"));
    }
    named(aside, new)?;
    Ok(report)
}

/// A file that no process has open, locked so that none opens it meanwhile.
fn image(path: &Path) -> Result<Image, StoreError> {
    let Some(file) = file::existing(path, false)? else {
        let what = format!("file {}", path.display());
        let hint = "correct the path".to_owned();
        return Err(StoreError::Missing { store: file::name(path), what, hint });
    };
    match file.try_lock_shared() {
        Ok(()) => {
            file::begins_as_one(path, &file).map_err(|error| file::failed(path, "read", &error))?;
            read(path, file)
        }
        Err(std::fs::TryLockError::WouldBlock) => Err(file::in_use(path)),
        Err(std::fs::TryLockError::Error(error)) => Err(file::failed(path, "locked", &error)),
    }
}

fn read(path: &Path, file: File) -> Result<Image, StoreError> {
    Image::open(file).map_err(|error| file::failed(path, "read", &error))
}

/// An existing file is never overwritten.
fn refuse_existing(path: &Path) -> Result<(), StoreError> {
    match path.symlink_metadata() {
        Err(_) => Ok(()),
        Ok(_) => Err(taken(path)),
    }
}

fn taken(path: &Path) -> StoreError {
    let reason = format!("there is a file {} already; name one that is not there", path.display());
    StoreError::Protocol { store: file::name(path), reason }
}

fn named(aside: Aside, path: &Path) -> Result<(), StoreError> {
    if aside.finish()? { Ok(()) } else { Err(taken(path)) }
}
