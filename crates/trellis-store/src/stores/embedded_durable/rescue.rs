//! Looking through a durable store's file, copying it, and reading what is left of a damaged one.
//!
//! Promises: each works on a file that nobody has open, and leaves it as it is; what is said of a page was compared with its
//! checksum; a copy and a rescued store have their names only when they are whole and were read again. Of a damaged file the
//! newest commit is taken of which everything can be read, otherwise the newest; what could not be read of that one is named
//! with its place and its keys, and so is what was let go with it: the first part of a value whose end is lost, and entries of
//! a log before a gap. Must never give a value that is not the one that was written.

use std::fs::File;
use std::path::Path;

use super::file::{self, Aside};
use super::format::{Image, Place};
use super::survey::{Chosen, chosen};
use super::{losses, new_database, tables};
use crate::error::StoreError;

/// The most places that are kept to be told; the others are counted.
pub const PLACES_MAX: usize = 1000;

/// What a long work has done so far, for who watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub step: &'static str,
    /// So many bytes are done.
    pub done_bytes: u64,
    /// The file has so many.
    pub of_bytes: u64,
}

/// What was found in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How long the file is.
    pub bytes: u64,
    /// How many bytes of pages in use were compared with their checksums.
    pub read_bytes: u64,
    /// How many pairs of the store's tables were read.
    pub pairs: u64,
    /// What is damaged, in the order in which it was met; at most [`PLACES_MAX`].
    pub damage: Vec<Damage>,
    /// How many places are damaged.
    pub damaged_count: u64,
    /// How many pairs of the store's tables cannot be read, as far as their number is known.
    pub lost_pairs: u64,
    /// How many commits were passed over: 1 when only the one before the last is whole, or can be read.
    pub commits_back: u32,
}

/// A damaged place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The first byte, and the first after it.
    pub from_byte: u64,
    /// See [`Damage::from_byte`].
    pub to_byte: u64,
    /// The wrong bit, counted from the beginning of the file, where it is one and known: nothing is lost here.
    pub mended_bit: Option<u64>,
    /// What it is, and what was in it.
    pub what: String,
    /// Whether anything is lost with it.
    pub is_loss: bool,
}

impl Report {
    /// Whether everything is as it was written.
    pub fn is_whole(&self) -> bool {
        self.damaged_count == 0
    }

    /// Whether the store keeps less than was acknowledged.
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

/// Who is told how far a work is.
pub type Told<'a> = &'a mut dyn FnMut(Progress);

/// Compares every page in use with its checksum. Changes nothing.
///
/// # Errors
///
/// When the file is not there, somebody has it open, or the system does not let us read it. Damage is no error.
pub fn check(path: &Path, told: Told) -> Result<Report, StoreError> {
    Ok(chosen(path, &image(path)?, "looking through it", told)?.report)
}

/// Makes a copy, which is looked through before it has its name. The file must be whole.
///
/// # Errors
///
/// As [`check`]; when the file is damaged; when there is a file of the copy's name.
pub fn backup(path: &Path, copy: &Path, told: Told) -> Result<Report, StoreError> {
    refuse_existing(copy)?;
    let source = image(path)?;
    let found = chosen(path, &source, "looking through it", told)?.report;
    if !found.is_whole() {
        return Err(file::damaged(path, "a copy would be damaged too"));
    }
    let mut aside = Aside::begin(copy)?;
    let of_bytes = found.bytes;
    aside.copy(source.file(), &mut |done_bytes| told(Progress { step: "copying", done_bytes, of_bytes }))?;
    let written = read(copy, aside.file()?)?;
    if chosen(copy, &written, "looking through the copy", told)?.report != found {
        let reason = "the copy is not what was written; look at the disk, and copy again".to_owned();
        return Err(StoreError::Protocol { store: file::name(copy), reason });
    }
    named(aside, copy)?;
    Ok(found)
}

/// Reads everything that can be read into a new store, and says what could not.
///
/// # Errors
///
/// When nothing can be read at all; when the file is not there, somebody has it open, or there is a file of the new one's
/// name; when the new one cannot be written.
pub fn salvage(path: &Path, new: &Path, told: Told) -> Result<Report, StoreError> {
    refuse_existing(new)?;
    let image = image(path)?;
    let Chosen { mut report, tables } = chosen(path, &image, "looking through it", told)?;
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
        let copied = losses::copy(&image, table, &database, told);
        lost.extend(copied.map_err(|error| failed(&error))?.into_iter().map(|between| (name, between)));
    }
    losses::settle(&database, &lost, &mut |what, pairs| {
        report.lost_pairs += pairs;
        report.add(&Place::default(), what, true);
    })
    .map_err(|error| failed(&error))?;
    drop(database);
    let again = chosen(new, &read(new, aside.file()?)?, "looking through the new store", told)?;
    if !again.report.is_whole() {
        return Err(file::damaged(new, "it was just written: look at the disk"));
    }
    named(aside, new)?;
    Ok(report)
}

/// A file that nobody has open, and that nobody opens meanwhile.
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

/// What is there is never written over.
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
