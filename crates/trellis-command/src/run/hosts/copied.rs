//! The files that `--copy` sends to each host: the program, and the libraries of ours that it names.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use trellis_output::programs;

use super::connection::Upload;
use crate::exit::{self, Failure};
use crate::installed;
use crate::run::preload;

/// The names of libraries of ours begin with this.
const OURS: &[u8] = b"libtrellis";

/// The program first; an error names what cannot be read.
pub(super) fn files(program: &OsStr) -> Result<Vec<Upload>, Failure> {
    let path = programs::find(program).unwrap_or_else(|| PathBuf::from(program));
    let contents = read(&path)?;
    let libraries = preload::libraries(&contents).into_iter().filter(|name| name.starts_with(OURS));
    let libraries: Vec<String> = libraries.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    let mut files = vec![upload(&path, contents)];
    for name in libraries {
        let library = installed::library_folder()?.join(name);
        files.push(upload(&library, read(&library)?));
    }
    Ok(files)
}

fn upload(path: &Path, contents: Vec<u8>) -> Upload {
    (path.file_name().unwrap_or_default().to_owned(), Rc::new(contents))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| Failure::new(exit::FILE, format!("--copy: cannot read {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_libraries_of_ours_is_one_file() {
        let files = files(OsStr::new("sh")).expect("every machine has it");
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].0, "sh");
        let missing = super::files(OsStr::new("./no-such-program")).expect_err("nobody has it").sentence;
        assert!(missing.starts_with("--copy: cannot read ./no-such-program: "), "{missing}");
    }
}
