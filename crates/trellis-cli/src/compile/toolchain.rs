//! Finds clang, the pass, the runtime archives and libtrellis.
//!
//! Promises: a missing part is an error that names the Debian package or the folder where it was expected. It must
//! never use another version of clang, because a pass fits one version only.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::arguments::{Language, Mode};
use crate::exit::{self, Failure};

/// The pass plugin, in the compiler folder.
const PASS: &str = "libtrellis_pass.so";

/// Everything outside this command that compiling needs.
pub(super) struct Toolchain {
    pub(super) clang: PathBuf,
    folder: PathBuf,
}

impl Toolchain {
    /// Finds clang and the compiler folder.
    pub(super) fn find(language: Language) -> Result<Toolchain, Failure> {
        Ok(Toolchain { clang: clang(language)?, folder: folder()? })
    }

    /// The plugin that clang loads.
    pub(super) fn pass(&self) -> PathBuf {
        self.folder.join(PASS)
    }

    /// The header that is included first in C++, in modes full and heap.
    pub(super) fn prelude(&self) -> PathBuf {
        self.folder.join("prelude.hpp")
    }

    /// What a program or shared library is linked with, after the user's own arguments.
    pub(super) fn libraries(&self, mode: Mode, language: Language) -> Result<Vec<OsString>, Failure> {
        let part = |name: String| {
            let path = self.folder.join(name);
            if path.is_file() { Ok(path.into_os_string()) } else { Err(missing_part(&path)) }
        };
        // The user's `-x c` must not apply to these.
        let mut words = vec!["-x".into(), "none".into(), part(format!("start_{}.o", mode.name()))?];
        if mode == Mode::Line && language == Language::Cxx {
            words.push(part("operators_line.o".to_owned())?);
        }
        words.push(part(format!("libtrellis_{}.a", mode.name()))?);
        if let Some(runtime) = std::env::var_os("TRELLIS_COMPILER_RUNTIME") {
            words.push(runtime);
        } else {
            let library = library_folder()?;
            let mut path = OsString::from("-Wl,-rpath,");
            path.push(&library);
            words.extend([OsString::from("-L"), library.into_os_string(), path, "-ltrellis".into()]);
        }
        words.push("-pthread".into());
        Ok(words)
    }
}

/// A file of the compiler folder.
pub(super) fn part(name: &str) -> Result<PathBuf, Failure> {
    let path = folder()?.join(name);
    if path.is_file() { Ok(path) } else { Err(missing_part(&path)) }
}

fn missing_part(path: &Path) -> Failure {
    Failure::new(
        exit::SYSTEM,
        format!(
            "{} is not there; install Trellis' compiler folder again, or set TRELLIS_COMPILER_DIRECTORY",
            path.display()
        ),
    )
}

fn clang(language: Language) -> Result<PathBuf, Failure> {
    let (versioned, plain) = match language {
        Language::C => ("clang-19", "clang"),
        Language::Cxx => ("clang++-19", "clang++"),
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(versioned))
        .chain([PathBuf::from("/usr/lib/llvm-19/bin").join(plain)])
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| {
            Failure::new(
                exit::SYSTEM,
                format!(
                    "{versioned} is not installed; `apt-get install clang-19` brings it (the pass fits LLVM 19 only)"
                ),
            )
        })
}

/// The folder of this command; a link to it is followed.
fn own_folder() -> Option<PathBuf> {
    let command = std::env::current_exe().ok()?.canonicalize().ok()?;
    command.parent().map(Path::to_owned)
}

fn folder() -> Result<PathBuf, Failure> {
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
pub(super) fn library_folder() -> Result<PathBuf, Failure> {
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
