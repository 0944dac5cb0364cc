//! Finds clang, the pass, the runtime archives and libtrellis.
//!
//! Promises: a missing part is an error that names the Debian package or the folder where it was expected. It must
//! never use another version of clang, because a pass fits one version only.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::arguments::{Language, Mode};
use trellis_command::exit::{self, Failure};
use trellis_command::installed::{PASS, compiler_folder, library_folder, missing_part};
use trellis_output::programs;

/// Everything outside this command that compiling needs.
pub(super) struct Toolchain {
    pub(super) clang: PathBuf,
    folder: PathBuf,
}

impl Toolchain {
    /// Finds clang and the compiler folder.
    pub(super) fn find(language: Language) -> Result<Toolchain, Failure> {
        Ok(Toolchain { clang: clang(language)?, folder: compiler_folder()? })
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

fn clang(language: Language) -> Result<PathBuf, Failure> {
    let (versioned, plain) = match language {
        Language::C => ("clang-19", "clang"),
        Language::Cxx => ("clang++-19", "clang++"),
    };
    let found = programs::find(versioned).or_else(|| programs::find(Path::new("/usr/lib/llvm-19/bin").join(plain)));
    found.ok_or_else(|| {
        Failure::new(
            exit::SYSTEM,
            format!("{versioned} is not installed; `apt-get install clang-19` brings it (the pass fits LLVM 19 only)"),
        )
    })
}
