//! Finds what is installed beside the command: the compiler's parts and the libraries.
//!
//! Promises: a missing part is an error that names the folder where it was expected, and how to get it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::exit::{self, Failure};

/// The command.
const COMMAND: &str = "trellis";

/// The executable with `bench`, `reproduce` and `check`.
pub const BENCH: &str = "trellis-bench";

/// The pass plugin, in the compiler folder.
pub const PASS: &str = "libtrellis_pass.so";
/// The library with the heap, in the compiler folder.
const MALLOC: &str = "libtrellis_malloc.so";

/// The library that makes calls of the C library whole.
pub const CALLS: &str = "libtrellis_calls.so";

/// The library that lets the threads of a program run on several nodes.
pub const THREADS: &str = "libtrellis_threads.so";

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

/// The command, which lies beside this executable: itself, or what measures it.
pub fn command() -> Result<PathBuf, Failure> {
    executable(COMMAND).ok_or_else(|| {
        Failure::new(exit::SYSTEM, "the command `trellis` is not beside this executable; install Trellis again")
    })
}

/// Another executable of Trellis, if it lies beside this one.
pub fn executable(name: &str) -> Option<PathBuf> {
    own_folder().map(|own| own.join(name)).filter(|file| file.is_file())
}

/// Places relative to the folder of this command. Some distributions have a folder for 64-bit libraries.
fn beside_command(places: &[&str]) -> Vec<PathBuf> {
    own_folder().map(|own| places.iter().map(|place| own.join(place)).collect()).unwrap_or_default()
}

/// The folder with the pass and the runtime archives.
pub fn compiler_folder() -> Result<PathBuf, Failure> {
    let candidates: Vec<PathBuf> = match std::env::var_os("TRELLIS_COMPILER_DIRECTORY") {
        Some(named) => vec![named.into()],
        None => beside_command(&["trellis", "../lib/trellis", "../lib64/trellis"]),
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

/// The folders in which libraries may lie.
fn library_folders() -> Vec<PathBuf> {
    match std::env::var_os("TRELLIS_LIBRARY_DIRECTORY") {
        Some(named) => vec![named.into()],
        None => beside_command(&["", "../lib", "../lib64"]),
    }
}

/// The folder with libtrellis.so.
pub fn library_folder() -> Result<PathBuf, Failure> {
    let candidates = library_folders();
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

/// A library that is loaded first, such as [`CALLS`], if it is installed.
pub fn loaded_first(name: &str) -> Option<PathBuf> {
    // In a build by cargo, it lies among the dependencies if it was not named on the command line.
    let folders = library_folders().into_iter().chain(own_folder().map(|own| own.join("deps")));
    folders.map(|folder| folder.join(name)).find_map(|file| file.canonicalize().ok())
}

/// The value of LD_PRELOAD: ours first, so that their functions are used.
pub fn preloaded(libraries: &[PathBuf], others: Option<OsString>) -> OsString {
    let ours = libraries.iter().map(|library| library.clone().into_os_string());
    let all: Vec<OsString> = ours.chain(others.filter(|others| !others.is_empty())).collect();
    all.join(OsStr::new(":"))
}

/// The libraries that are loaded before a program whose heap lies in a store; an error names a missing one.
pub fn preloaded_libraries() -> Result<Vec<PathBuf>, Failure> {
    let malloc = part(MALLOC)?;
    Ok(vec![library_folder()?.join("libtrellis.so.0"), malloc])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_preloaded_libraries_stay() {
        let libraries = ["/lib/ours.so", "/lib/malloc.so"].map(PathBuf::from);
        assert_eq!(preloaded(&libraries, None), "/lib/ours.so:/lib/malloc.so");
        assert_eq!(preloaded(&libraries, Some("".into())), "/lib/ours.so:/lib/malloc.so");
        assert_eq!(preloaded(&libraries, Some("/lib/other.so".into())), "/lib/ours.so:/lib/malloc.so:/lib/other.so");
    }
}
