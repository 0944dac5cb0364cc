//! A local file as the source of pages: from the kernel's cache, or from the disk each time.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use super::fault::Source;
use crate::bench::switch::served::PAGE_BYTES;
use trellis_command::exit::{self, Failure};
use trellis_command::scratch::Scratch;

/// A file whose pages begin with their own numbers. It has no name when it is ready, and is removed with its value.
pub(super) struct Disk {
    cached: File,
    /// Bypasses the cache of the kernel; the error is the reason why the file system cannot do that.
    direct: Result<File, String>,
}

impl Disk {
    pub(super) fn make(pages: usize) -> Result<Disk, Failure> {
        let folder = Scratch::new("bluebridge")?;
        let path = folder.file("disk");
        let failed = |error: std::io::Error| {
            Failure::new(exit::FILE, format!("cannot make {} ({error}); see TMPDIR", path.display()))
        };
        let mut options = OpenOptions::new();
        let mut cached = options.read(true).write(true).create_new(true).open(&path).map_err(failed)?;
        let mut direct = OpenOptions::new();
        let direct = direct.read(true).custom_flags(libc::O_DIRECT).open(&path);
        drop(folder);
        for page in 0..pages {
            let mut bytes = [0; PAGE_BYTES];
            bytes[..8].copy_from_slice(&(page as u64).to_le_bytes());
            cached.write_all(&bytes).map_err(failed)?;
        }
        cached.sync_all().map_err(failed)?;
        let direct = direct.map_err(|error| match error.kind() {
            ErrorKind::InvalidInput => "the file system of TMPDIR reads nothing past the kernel's cache".to_owned(),
            _ => error.to_string(),
        });
        Ok(Disk { cached, direct })
    }

    /// From the kernel's cache, as in the paper.
    pub(super) fn cached(&self) -> Result<Box<dyn Source>, String> {
        self.cached.try_clone().map(source).map_err(|error| error.to_string())
    }

    /// From the disk.
    pub(super) fn direct(&self) -> Result<Box<dyn Source>, String> {
        let file = self.direct.as_ref().map_err(Clone::clone)?;
        file.try_clone().map(source).map_err(|error| error.to_string())
    }
}

fn source(file: File) -> Box<dyn Source> {
    Box::new(Reading(file))
}

struct Reading(File);

impl Source for Reading {
    fn fetch(&mut self, page: usize, into: &mut [u8]) -> Result<(), Failure> {
        self.0
            .read_exact_at(into, (page * PAGE_BYTES) as u64)
            .map_err(|error| Failure::new(exit::FILE, format!("cannot read page {page} of a file of our own: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::switch::served::is_page;

    #[test]
    fn pages_of_the_file_have_their_numbers() {
        let disk = Disk::make(5).expect("a file");
        let mut bytes = [0; PAGE_BYTES];
        let mut source = disk.cached().expect("it is open");
        for page in [4, 0, 3] {
            source.fetch(page, &mut bytes).expect("it is there");
            is_page(page, &bytes).expect("it is that page");
        }
        assert!(source.fetch(5, &mut bytes).is_err());
    }
}
