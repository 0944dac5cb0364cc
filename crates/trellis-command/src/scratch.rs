//! Temporary folders of commands.
//!
//! Promises: a folder is accessible only to its user (mode 0700, whatever the umask), has an unpredictable name, and
//! is removed with its value. Folders that a killed process left behind are removed by the next command that makes
//! one of the same kind. It must never use an existing folder, and never remove one that is in use.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempDir};

use crate::exit::{self, Failure};

/// Temporary files that hosts of a lab have in common with this machine: each has a `/tmp` of its own.
pub const FOR_HOSTS: &str = "/var/tmp";

/// A folder that is removed with this value.
#[derive(Debug)]
pub struct Scratch {
    /// The kernel releases this lock when the process ends, however that happens, so others know whether the folder
    /// is in use.
    _lock: File,
    folder: TempDir,
}

impl Scratch {
    /// Makes a new folder among the temporary files, named after its purpose.
    pub fn new(what: &str) -> Result<Scratch, Failure> {
        Scratch::within(&std::env::temp_dir(), what)
    }

    /// Makes a new folder that hosts of a lab see, too.
    pub fn for_hosts(what: &str) -> Result<Scratch, Failure> {
        Scratch::within(Path::new(FOR_HOSTS), what)
    }

    /// Makes a new folder in another one, named after its purpose.
    pub fn within(parent: &Path, what: &str) -> Result<Scratch, Failure> {
        let prefix = format!("trellis-{what}-");
        sweep(parent, &prefix);
        let failed = |error| {
            let parent = parent.display();
            Failure::new(exit::FILE, format!("cannot make a folder in {parent}: {error}; TMPDIR names another place"))
        };
        let mode = Permissions::from_mode(0o700);
        loop {
            let folder = Builder::new().prefix(&prefix).permissions(mode.clone()).tempdir_in(parent).map_err(failed)?;
            // A concurrent sweep may have locked the folder first; it removes what it can lock.
            let lock = match File::open(folder.path()) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => opened.map_err(failed)?,
            };
            if lock.try_lock().is_ok() && folder.path().exists() {
                return Ok(Scratch { _lock: lock, folder });
            }
        }
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The path of a file in it.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }
}

/// Removes the folders that are no longer in use.
fn sweep(parent: &Path, prefix: &str) {
    let is_ours = |name: OsString| name.to_str().is_some_and(|name| name.starts_with(prefix));
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        // A link is not followed. A folder that cannot be inspected or removed belongs to another user, and no result
        // depends on it.
        if !is_ours(entry.file_name()) || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if File::open(entry.path()).is_ok_and(|folder| folder.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_its_users_alone_and_goes_with_its_value() {
        let scratch = Scratch::new("test-alone").unwrap();
        let path = scratch.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(scratch.file("file"), "x").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn what_nobody_uses_is_removed_and_nothing_else() {
        let parent = Scratch::new("test-parent").unwrap();
        let used = Scratch::within(parent.path(), "kind").unwrap();
        fs::write(used.file("file"), "x").unwrap();
        for left in ["trellis-kind-left/data", "trellis-other-left", "kind"] {
            fs::create_dir_all(parent.file(left)).unwrap();
        }
        fs::write(parent.file("trellis-kind-file"), "").unwrap();
        let next = Scratch::within(parent.path(), "kind").unwrap();
        assert!(used.file("file").exists() && next.path().exists());
        let left = ["trellis-kind-left", "trellis-other-left", "kind", "trellis-kind-file"];
        assert_eq!(left.map(|name| parent.file(name).exists()), [false, true, true, true]);
    }
}
