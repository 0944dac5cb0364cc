//! Results in files.
//!
//! Promises: a file is written whole or stays as it was.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::exit::{self, Failure};

/// Writes a whole file; an error names the file. An existing file stays as it is until the new one is complete. A
/// device or a pipe is written to directly.
pub fn write(file: &Path, content: impl AsRef<[u8]>) -> Result<(), Failure> {
    write_with(file, |to| to.write_all(content.as_ref()))
}

/// Like [`write()`], with what `fill` writes.
pub fn write_with(file: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let fill = |into: &Path| {
        let mut to = BufWriter::new(File::create(into)?);
        fill(&mut to)?;
        to.flush()
    };
    let Some((target, unfinished)) = places(file) else {
        return fill(file).map_err(|error| failed(file, &error));
    };
    fill(&unfinished).and_then(|()| fs::rename(&unfinished, &target)).map_err(|error| {
        // The error of the write matters, not one of the clean-up.
        let _ = fs::remove_file(&unfinished);
        failed(file, &error)
    })
}

/// Refuses a file that cannot be written before the work whose result it is for; nothing changes.
pub fn expect_writable(file: &Path) -> Result<(), Failure> {
    let tried = match places(file) {
        Some((_, unfinished)) => File::create(&unfinished).and_then(|_| fs::remove_file(&unfinished)),
        None if file.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        None => Ok(()),
    };
    tried.map_err(|error| failed(file, &error))
}

/// The file to replace, and the name of the new one until it is complete; nothing for what cannot be replaced. If the
/// file is a link, its target is replaced.
fn places(file: &Path) -> Option<(PathBuf, PathBuf)> {
    let target = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let name = target.file_name().filter(|_| fs::metadata(&target).map_or(true, |about| about.is_file()))?;
    let unfinished = target.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    Some((target, unfinished))
}

fn failed(file: &Path, error: &io::Error) -> Failure {
    Failure::new(exit::FILE, format!("cannot write {}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
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
        // Something is in the way of the new file.
        fs::create_dir(folder.file(format!(".report.html.{}", std::process::id()))).unwrap();
        for failure in [write(&file, "four").unwrap_err(), expect_writable(&file).unwrap_err()] {
            assert!(failure.code == exit::FILE && failure.sentence.contains("cannot write"), "{failure}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "three");
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
