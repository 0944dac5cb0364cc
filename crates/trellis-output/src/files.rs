//! Results in files.
//!
//! Promises: a file is written whole or stays as it was. A command that is killed leaves nothing half done behind, where
//! the file system has files without names. It must never replace a file for a caller that wants a new one.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, CWD, OFlags};
use rustix::io::Errno;

use crate::exit::{self, Failure};

/// The folder of this thread's open files, through which a file without a name gets one.
const OWN_FILES: &str = "/proc/thread-self/fd";
/// The mode of results, before the umask.
pub const MODE: u32 = 0o666;

/// A file that gets its name when it is complete. Until then it has none, so a command that is killed leaves nothing
/// behind; where the file system has no files without names (`O_TMPFILE`, open(2)), it is hidden beside its final place.
#[derive(Debug)]
pub struct Unfinished {
    file: File,
    place: PathBuf,
    /// The hidden name, if it has one.
    hidden: Option<PathBuf>,
}

impl Unfinished {
    /// An empty file for that place, with this mode without the bits of the umask.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn begin(place: &Path, mode: u32) -> io::Result<Unfinished> {
        let place = place.to_owned();
        if place.file_name().is_none() {
            return Err(ErrorKind::IsADirectory.into());
        }
        let options = |flags| OFlags::RDWR | OFlags::CLOEXEC | flags;
        if Path::new(OWN_FILES).exists() {
            match rustix::fs::open(folder_of(&place), options(OFlags::TMPFILE), mode.into()) {
                Ok(file) => return Ok(Unfinished { file: file.into(), place, hidden: None }),
                // The last one is the answer of kernels that do not know the flag.
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::ISDIR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let flags = options(OFlags::CREATE | OFlags::EXCL);
        let (hidden, file) = hidden(&place, |name| Ok(rustix::fs::open(name, flags, mode.into())?))?;
        Ok(Unfinished { file: file.into(), place, hidden: Some(hidden) })
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The final place.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Gives it its name, if no other file has that.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AlreadyExists`], and those of the system.
    pub fn finish_new(self) -> io::Result<()> {
        match self.link(&self.place) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(error),
            // The file system has no hard links (vfat, 9p). A rename would overwrite a file that has appeared meanwhile,
            // so its existence is checked.
            Err(_) if self.place.symlink_metadata().is_ok() => Err(ErrorKind::AlreadyExists.into()),
            Err(error) => self.hidden.as_ref().map_or(Err(error), |hidden| fs::rename(hidden, &self.place)),
            Ok(()) => Ok(()),
        }
    }

    /// The same for a file that must outlive a failure of the machine: its bytes and its name are on the disk.
    ///
    /// # Errors
    ///
    /// As [`Unfinished::finish_new`].
    pub fn finish_new_on_disk(self) -> io::Result<()> {
        let (file, place) = (self.file.try_clone()?, self.place.clone());
        // A file system may log nothing of a file without a name, so it is written before and after it gets one.
        file.sync_all()?;
        self.finish_new()?;
        file.sync_all()?;
        File::open(folder_of(&place))?.sync_all()
    }

    /// Gives it its name, in place of the file that has it.
    ///
    /// # Errors
    ///
    /// Those of the system. The other file then stays as it was.
    pub fn finish(mut self) -> io::Result<()> {
        if self.hidden.is_none() {
            // Only a rename replaces a file, and it takes a name.
            self.hidden = Some(hidden(&self.place, |name| self.link(name))?.0);
        }
        self.hidden.as_ref().map_or(Ok(()), |hidden| fs::rename(hidden, &self.place))
    }

    fn link(&self, name: &Path) -> io::Result<()> {
        let unnamed = || format!("{OWN_FILES}/{}", self.file.as_raw_fd()).into();
        let from: PathBuf = self.hidden.clone().unwrap_or_else(unnamed);
        Ok(rustix::fs::linkat(CWD, from, CWD, name, AtFlags::SYMLINK_FOLLOW)?)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden {
            // It no longer exists if it was renamed.
            let _ = fs::remove_file(hidden);
        }
    }
}

/// The folder of a file, also of one without a folder in its name.
pub fn folder_of(place: &Path) -> &Path {
    place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes something under a name beside that place that no other file has. A killed process of the same number may have
/// left some.
fn hidden<T>(place: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(PathBuf, T)> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut name = OsString::from(".");
        name.push(place.file_name().unwrap_or_default());
        name.push(format!(".new-{}-{number}", std::process::id()));
        let name = place.with_file_name(name);
        match make(&name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return made.map(|made| (name, made)),
        }
    }
}

/// Whether files can be made in a folder.
pub fn may_write(folder: &Path) -> bool {
    Unfinished::begin(&folder.join("file"), 0o600).is_ok()
}

/// Writes a whole file; an error names the file. An existing file stays as it is until the new one is complete. A
/// device or a pipe is written to directly.
pub fn write(file: &Path, content: impl AsRef<[u8]>) -> Result<(), Failure> {
    write_with(file, |to| to.write_all(content.as_ref()))
}

/// Like [`write()`], with what `fill` writes.
pub fn write_with(file: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let fill = |into: &File| {
        let mut to = BufWriter::new(into);
        fill(&mut to)?;
        to.flush()
    };
    let written = match replaced(file) {
        None => File::create(file).and_then(|into| fill(&into)),
        Some(target) => Unfinished::begin(&target, MODE).and_then(|unfinished| {
            fill(unfinished.file())?;
            unfinished.finish()
        }),
    };
    written.map_err(|error| failed(file, &error))
}

/// Refuses a file that cannot be written before the work whose result it is for; nothing changes.
pub fn expect_writable(file: &Path) -> Result<(), Failure> {
    let tried = match replaced(file) {
        Some(target) => Unfinished::begin(&target, MODE).map(drop),
        None if file.is_dir() => Err(ErrorKind::IsADirectory.into()),
        None => Ok(()),
    };
    tried.map_err(|error| failed(file, &error))
}

/// The file to replace; nothing for what cannot be replaced. If the file is a link, its target is replaced.
fn replaced(file: &Path) -> Option<PathBuf> {
    let target = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let is_file = target.file_name().is_some() && fs::metadata(&target).map_or(true, |about| about.is_file());
    is_file.then_some(target)
}

fn failed(file: &Path, error: &io::Error) -> Failure {
    Failure::new(exit::FILE, format!("cannot write {}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, PermissionsExt};
    use trellis_testing::Folder;

    #[test]
    fn a_file_is_replaced_whole_or_stays_as_it_was() {
        let folder = Folder::new();
        let (file, link) = (folder.file("report.html"), folder.file("link"));
        write(&file, "one").unwrap();
        write(&file, "two").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, "three").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), expect_writable(&file)), ("three", Ok(())));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
        // The new content cannot be written, and the old file stays.
        fs::remove_file(&link).unwrap();
        let failure = write_with(&file, |_| Err(ErrorKind::StorageFull.into())).unwrap_err();
        assert!(failure.code == exit::FILE && failure.sentence.contains("cannot write"), "{failure}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "three");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_has_no_name_before_it_is_complete() {
        let folder = Folder::new();
        let place = folder.file("store");
        let listed = || fs::read_dir(folder.path()).unwrap().count();
        let (first, second) = (Unfinished::begin(&place, 0o600).unwrap(), Unfinished::begin(&place, 0o600).unwrap());
        let is_unnamed = first.hidden.is_none();
        assert_eq!(listed(), if is_unnamed { 0 } else { 2 });
        first.file().write_all_at(b"one", 0).unwrap();
        first.finish_new_on_disk().unwrap();
        assert_eq!(second.finish_new().unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!((fs::read_to_string(&place).unwrap().as_str(), listed()), ("one", 1));
        assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o600);

        // Where files without names are not possible.
        let named = |name: &str| {
            let hidden = folder.file(name);
            Unfinished { file: File::create_new(&hidden).unwrap(), place: place.clone(), hidden: Some(hidden) }
        };
        assert_eq!(named(".one").finish_new().unwrap_err().kind(), ErrorKind::AlreadyExists);
        // A killed process of this number left files.
        let left = (0..99).map(|number| folder.file(format!(".store.new-{}-{number}", std::process::id())));
        let left: Vec<PathBuf> = left.filter(|left| File::create_new(left).is_ok()).collect();
        Unfinished::begin(&place, 0o600).unwrap().finish().unwrap();
        left.iter().for_each(|left| fs::remove_file(left).unwrap());
        let next = named(".two");
        next.file().write_all_at(b"two", 0).unwrap();
        next.finish().unwrap();
        drop(named(".three"));
        assert_eq!((fs::read_to_string(&place).unwrap().as_str(), listed()), ("two", 1));
        assert!(may_write(folder.path()) && !may_write(&folder.file("missing")));
    }

    #[test]
    fn a_device_is_written_to_and_may_be_full() {
        assert_eq!(write(Path::new("/dev/null"), "text"), Ok(()));
        assert_eq!(write(Path::new("/dev/full"), "text").unwrap_err().code, exit::FILE);
    }

    #[test]
    fn a_folder_is_refused_early() {
        let folder = Folder::new();
        assert_eq!(expect_writable(folder.path()).unwrap_err().code, exit::FILE);
        assert_eq!(expect_writable(&folder.file("missing/file")).unwrap_err().code, exit::FILE);
        assert_eq!(expect_writable(Path::new("/dev/null")), Ok(()));
    }
}
