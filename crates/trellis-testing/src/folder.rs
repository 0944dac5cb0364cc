//! Temporary folders of tests.

use std::fmt;
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempDir};

/// A folder for the files of a test, removed with this value.
#[derive(Debug)]
pub struct Folder(TempDir);

impl Folder {
    /// An empty folder that no other test has. Hosts of a lab have it, too.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    #[expect(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> Folder {
        // These temporary files are those of the machine; a host of a lab has its own `/tmp`.
        let shared = Path::new("/var/tmp");
        if shared.is_dir() { Folder::within(shared) } else { Folder::within(&std::env::temp_dir()) }
    }

    /// An empty folder that hosts of a lab do not have.
    ///
    /// # Panics
    ///
    /// As [`Folder::new`].
    #[must_use]
    pub fn of_this_machine() -> Folder {
        Folder::within(Path::new("/tmp"))
    }

    /// A folder in memory if possible, for tests about the end of a process, not of a machine.
    ///
    /// # Panics
    ///
    /// As [`Folder::new`].
    pub fn in_memory() -> Folder {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Folder::within(memory) } else { Folder::new() }
    }

    fn within(parent: &Path) -> Folder {
        Folder(Builder::new().prefix("trellis-test-").tempdir_in(parent).expect("a folder among the temporary files"))
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The path of a file in it.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// That path, as an argument of a command.
    pub fn argument(&self, name: impl AsRef<Path>) -> String {
        self.file(name).display().to_string()
    }

    /// Writes a file in it or in a folder below it, which it makes; returns its path.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    pub fn write(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let file = self.file(name);
        std::fs::create_dir_all(file.parent().expect("it is below the folder")).expect("the folder is ours");
        std::fs::write(&file, content).expect("the folder is ours");
        file
    }
}

/// Its path.
impl fmt::Display for Folder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path().display().fmt(formatter)
    }
}
