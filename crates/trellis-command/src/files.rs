//! Results in files.
//!
//! Promises: a file is written whole or stays as it was.

use std::fs;
use std::path::Path;

use crate::exit::{self, Failure};

/// Writes a whole file; an error names the file. An existing file stays as it is until the new one is complete. A
/// device or a pipe is written to directly.
pub fn write(file: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error| Failure::new(exit::FILE, format!("cannot write {}: {error}", file.display()));
    // If the file is a link, its target is replaced.
    let target = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let Some(name) = target.file_name().filter(|_| fs::metadata(&target).map_or(true, |about| about.is_file())) else {
        return fs::write(file, text).map_err(failed);
    };
    let unfinished = target.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let written = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, &target));
    written.map_err(|error| {
        // The error of the write matters, not one of the clean-up.
        let _ = fs::remove_file(&unfinished);
        failed(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_file_is_replaced_whole_or_stays_as_it_was() {
        let folder = Scratch::new("test-files").unwrap();
        let (file, link) = (folder.file("report.html"), folder.file("link"));
        write(&file, "one").unwrap();
        write(&file, "two").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, "three").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "three");
        // Something is in the way of the new file.
        fs::create_dir(folder.file(format!(".report.html.{}", std::process::id()))).unwrap();
        let failure = write(&file, "four").unwrap_err();
        assert!(failure.code == exit::FILE && failure.sentence.contains("cannot write"), "{failure}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "three");
    }

    #[test]
    fn a_device_is_written_to_and_may_be_full() {
        assert_eq!(write(Path::new("/dev/null"), "text"), Ok(()));
        assert_eq!(write(Path::new("/dev/full"), "text").unwrap_err().code, exit::FILE);
    }
}
