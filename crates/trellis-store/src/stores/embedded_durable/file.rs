//! The file of a durable store as a file: its access rights and its creation.
//!
//! Promises: a file is created with rights for its owner alone (0600, whatever the umask), and gets its name only when
//! it is complete and on the disk. An existing file that is no store is refused. A store that other users may read is
//! restricted to its owner, with a notice on standard error. It must never overwrite an existing file, and never take
//! an empty file for a store.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use trellis_output::files::{Unfinished, folder_of};

use super::format::MAGIC;
use crate::error::StoreError;

/// The rights that only the owner may have.
const OTHERS: u32 = 0o077;
/// The owner's rights to the file.
const MODE: u32 = 0o600;
const COPY_BYTES: usize = 1 << 20;

/// The name in messages of the store in a file.
pub(super) fn name(path: &Path) -> String {
    format!("embedded-durable:{}", path.display())
}

/// The error for a file that the system does not let us use.
pub(super) fn failed(path: &Path, attempt: &str, error: &io::Error) -> StoreError {
    let store = name(path);
    let folder = folder_of(path);
    if !folder.is_dir() {
        let what = format!("folder {}", folder.display());
        return StoreError::Missing { store, what, hint: "make it, or name a file elsewhere".to_owned() };
    }
    match error.kind() {
        ErrorKind::PermissionDenied => StoreError::Denied {
            store,
            reason: format!("its file cannot be {attempt}: {error}"),
            hint: "run as its owner, or name another file".to_owned(),
        },
        _ => StoreError::Protocol {
            store,
            reason: format!("its file cannot be {attempt}: {error}; see to that, or name another file"),
        },
    }
}

/// The error for a file that another process has open.
pub(super) fn in_use(path: &Path) -> StoreError {
    StoreError::Denied {
        store: name(path),
        reason: "another process has it open".to_owned(),
        hint: "end that one, or let it serve the file to others: `trellis store serve`".to_owned(),
    }
}

/// The error for a file whose bytes are not what was written.
pub(super) fn damaged(path: &Path, what: &str) -> StoreError {
    StoreError::Damaged { store: name(path), path: path.display().to_string(), reason: what.to_owned() }
}

fn no_store(path: &Path, why: &str) -> StoreError {
    let next = "name a file that a store made, or one that is not there yet; remove this one if nobody needs it";
    StoreError::Protocol { store: name(path), reason: format!("its file is not a store: {why}; {next}") }
}

/// The file of an existing store, opened for reading or, if `writes`, for changing; `None` if there is no file.
pub(super) fn existing(path: &Path, writes: bool) -> Result<Option<File>, StoreError> {
    let file = match OpenOptions::new().read(true).write(writes).open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == ErrorKind::IsADirectory => return Err(no_store(path, "it is a folder")),
        opened => opened.map_err(|error| failed(path, "opened", &error))?,
    };
    let about = file.metadata().map_err(|error| failed(path, "looked at", &error))?;
    if !about.is_file() {
        return Err(no_store(path, "it is not an ordinary file"));
    }
    if about.len() == 0 {
        return Err(no_store(path, "it is empty"));
    }
    Ok(Some(file))
}

/// Refuses a file that does not begin as a store does.
pub(super) fn check_beginning(path: &Path, file: &File) -> Result<(), StoreError> {
    match begins_as_one(path, file) {
        Ok(true) => Ok(()),
        Err(error) => Err(failed(path, "read", &error)),
        Ok(false) => Err(no_store(
            path,
            &format!(
                "it does not begin as one; if it was one, `trellis store salvage {} NEW` reads what is left of it into a new one",
                path.display()
            ),
        )),
    }
}

/// Whether a file begins as a store does. Only then are other users' rights removed: a file named by mistake stays as it
/// is.
pub(super) fn begins_as_one(path: &Path, file: &File) -> std::io::Result<bool> {
    let mut beginning = [0; MAGIC.len()];
    let is_one = match file.read_exact_at(&mut beginning, 0) {
        Ok(()) => beginning == MAGIC,
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => false,
        Err(error) => return Err(error),
    };
    if is_one {
        tighten(path, file)?;
    }
    Ok(is_one)
}

/// Removes the rights of other users.
fn tighten(path: &Path, file: &File) -> std::io::Result<()> {
    let about = file.metadata()?;
    if about.mode() & OTHERS == 0 {
        return Ok(());
    }
    let (mode, owner, shown) = (about.mode() & 0o7777, about.uid(), path.display());
    let why = "a store holds the memory of programs";
    match file.set_permissions(Permissions::from_mode(mode & 0o700)) {
        Ok(()) => trellis_output::lines::report(format_args!(
            "the store {shown} had mode {mode:04o}, so that other users could get at it; it has mode {:04o} now, since \
             {why}",
            mode & 0o700
        )),
        Err(error) => trellis_output::lines::report(format_args!(
            "the store {shown} has mode {mode:04o}, so that other users can get at it, and {why}; it belongs to user \
             {owner}, and its mode cannot be changed from here ({error}): its owner should run `chmod 600 {shown}`"
        )),
    }
    Ok(())
}

/// The file of a new store until it is complete.
pub(super) struct Aside(Unfinished);

impl Aside {
    /// Creates an empty file for that place.
    pub(super) fn begin(place: &Path) -> Result<Aside, StoreError> {
        if place.file_name().is_none() {
            return Err(no_store(place, "it is a folder"));
        }
        Unfinished::begin(place, MODE).map(Aside).map_err(|error| failed(place, "made", &error))
    }

    /// The same file, for writing.
    pub(super) fn file(&self) -> Result<File, StoreError> {
        self.0.file().try_clone().map_err(|error| failed(self.0.place(), "made", &error))
    }

    /// Copies all bytes of a file, and reports how many were copied.
    pub(super) fn copy(&mut self, mut from: &File, on_progress: &mut dyn FnMut(u64)) -> Result<(), StoreError> {
        let mut buffer = vec![0; COPY_BYTES];
        let mut copied = 0;
        let all = from.rewind().and_then(|()| {
            loop {
                let count = from.read(&mut buffer)?;
                if count == 0 {
                    return Ok(());
                }
                self.0.file().write_all(&buffer[..count])?;
                copied += count as u64;
                on_progress(copied);
            }
        });
        all.map_err(|error| failed(self.0.place(), "copied", &error))
    }

    /// Gives the file its final name. False if another file has that name by now.
    pub(super) fn finish(self) -> Result<bool, StoreError> {
        let place = self.0.place().to_owned();
        match self.0.finish_new_on_disk() {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            named => named.map(|()| true).map_err(|error| failed(&place, "made", &error)),
        }
    }
}
