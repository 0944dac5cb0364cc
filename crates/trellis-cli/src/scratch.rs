//! Folders for what a command needs for a while.
//!
//! Promises: a folder is its user's alone (mode 0700, whatever the umask), has a name that nobody could foresee, and goes with
//! its value; what a process that was killed left is removed by the next command that makes one of the kind. Must never use a
//! folder that was there, and never remove one that is in use.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempDir};

use crate::exit::{self, Failure};

/// A folder that goes with this value.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// The kernel ends this lock with the process, however that ends: so others know whether the folder is in use.
    _lock: File,
    folder: TempDir,
}

impl Scratch {
    /// A new one among the temporary files, named after what it is for.
    pub(crate) fn new(what: &str) -> Result<Scratch, Failure> {
        Scratch::within(&std::env::temp_dir(), what)
    }

    fn within(parent: &Path, what: &str) -> Result<Scratch, Failure> {
        let prefix = format!("trellis-{what}-");
        sweep(parent, &prefix);
        let failed = |error| {
            let parent = parent.display();
            Failure::new(exit::FILE, format!("cannot make a folder in {parent}: {error}; TMPDIR names another place"))
        };
        let mode = Permissions::from_mode(0o700);
        loop {
            let folder = Builder::new().prefix(&prefix).permissions(mode.clone()).tempdir_in(parent).map_err(failed)?;
            let lock = File::open(folder.path()).map_err(failed)?;
            // Who sweeps may have been faster than this lock, and removes what it can lock.
            if lock.try_lock().is_ok() && folder.path().exists() {
                return Ok(Scratch { _lock: lock, folder });
            }
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A file in it.
    pub(crate) fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }
}

/// Removes the folders that nobody uses any more.
fn sweep(parent: &Path, prefix: &str) {
    let is_ours = |name: OsString| name.to_str().is_some_and(|name| name.starts_with(prefix));
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        // A link is not followed; what cannot be looked at or removed is somebody else's, and no result depends on it.
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
