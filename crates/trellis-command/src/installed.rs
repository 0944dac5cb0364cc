//! Finds what is installed beside the command: the compiler's parts and the libraries.
//!
//! Promises: a missing part is an error that names the folder where it was expected, and how to get it.

use std::path::{Path, PathBuf};

use crate::exit::{self, Failure};

/// The pass plugin, in the compiler folder.
pub const PASS: &str = "libtrellis_pass.so";
/// The library with the heap, in the compiler folder.
const MALLOC: &str = "libtrellis_malloc.so";

/// A file of the compiler folder.
pub fn part(name: &str) -> Result<PathBuf, Failure> {
    let path = compiler_folder()?.join(name);
    if path.is_file() { Ok(path) } else { Err(missing_part(&path)) }
}

/// The error about a file that is not there.
pub fn missing_part(path: &Path) -> Failure {
    Failure::new(
        exit::SYSTEM,
        format!(
            "{} is not there; install Trellis' compiler folder again, or set TRELLIS_COMPILER_DIRECTORY",
            path.display()
        ),
    )
}

/// The folder of this command; a link to it is followed.
fn own_folder() -> Option<PathBuf> {
    let command = std::env::current_exe().ok()?.canonicalize().ok()?;
    command.parent().map(Path::to_owned)
}

/// The folder with the pass and the runtime archives.
pub fn compiler_folder() -> Result<PathBuf, Failure> {
    let candidates: Vec<PathBuf> = match std::env::var_os("TRELLIS_COMPILER_DIRECTORY") {
        Some(told) => vec![told.into()],
        None => own_folder().map(|own| vec![own.join("trellis"), own.join("../lib/trellis")]).unwrap_or_default(),
    };
    candidates
        .iter()
        .find(|candidate| candidate.join(PASS).is_file())
        .and_then(|found| found.canonicalize().ok())
        .ok_or_else(|| {
            let looked = candidates.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ");
            Failure::new(
                exit::SYSTEM,
                format!(
                    "the compiler's parts ({PASS}) are not in {looked}; build them with \
                     `cmake -S compiler -B build/compiler && cmake --build build/compiler` and set \
                     TRELLIS_COMPILER_DIRECTORY to build/compiler/trellis"
                ),
            )
        })
}

/// The folder with libtrellis.so.
pub fn library_folder() -> Result<PathBuf, Failure> {
    let candidates: Vec<PathBuf> = match std::env::var_os("TRELLIS_LIBRARY_DIRECTORY") {
        Some(told) => vec![told.into()],
        None => own_folder().map(|own| vec![own.clone(), own.join("../lib")]).unwrap_or_default(),
    };
    candidates
        .iter()
        .find(|candidate| candidate.join("libtrellis.so").exists())
        .and_then(|found| found.canonicalize().ok())
        .ok_or_else(|| {
            let looked = candidates.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ");
            Failure::new(
                exit::SYSTEM,
                format!(
                    "libtrellis.so is not in {looked}; `cargo xtask install --prefix PREFIX` puts it beside the \
                     command, or set TRELLIS_LIBRARY_DIRECTORY to its folder"
                ),
            )
        })
}

/// The libraries that are loaded before a program whose heap lies in a store; an error names a missing one.
pub fn preloaded_libraries() -> Result<Vec<PathBuf>, Failure> {
    let malloc = part(MALLOC)?;
    Ok(vec![library_folder()?.join("libtrellis.so.0"), malloc])
}
