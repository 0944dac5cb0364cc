//! The programs of the paper: finds their sources, builds them in three ways, and parses their output.
//!
//! Promises: all three builds use the same compiler and flags, so that their times can be compared. What is built is
//! removed when the command ends. For anything missing, the error says how to get it. It must never write outside of
//! its own folder.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use clap::ValueEnum;

use trellis_command::exit::{self, Failure};
use trellis_command::scratch::Scratch;

/// The flags of `examples/parmacs/Makefile`, without its warnings.
const FLAGS: [&str; 2] = ["-std=gnu11", "-O3"];
/// The file by which a folder of sources is recognised.
const SIGN: &str = "program.h";

/// A program, in the order of the paper's tables; `ocean` is not in the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Program {
    /// N-body problem
    Barnes,
    /// Fast Fourier transform
    Fft,
    /// LU decomposition
    Lu,
    /// Integer radix sort
    Radix,
    /// Successive over-relaxation of a grid
    Ocean,
}

impl Program {
    /// Its name, which is also that of its folder.
    pub(super) fn name(self) -> &'static str {
        match self {
            Program::Barnes => "barnes",
            Program::Fft => "fft",
            Program::Lu => "lu",
            Program::Radix => "radix",
            Program::Ocean => "ocean",
        }
    }

    /// The options for a size that takes a moment; none for the paper's size.
    pub(super) fn options(self, quick: bool) -> &'static [&'static str] {
        match self {
            _ if !quick => &[],
            Program::Barnes => &["-n", "1024", "-s", "2"],
            Program::Fft => &["-m", "14"],
            Program::Lu => &["-n", "256"],
            Program::Radix => &["-n", "131072"],
            Program::Ocean => &["-n", "256", "-s", "20"],
        }
    }

    /// What it does, and the paper's size (table 2).
    pub(super) fn description(self) -> [&'static str; 2] {
        match self {
            Program::Barnes => ["N-body problem", "32768 bodies"],
            Program::Fft => ["Fast Fourier Transformations", "2**20 data points"],
            Program::Lu => ["LU-decomposition for dense matrices", "2048x2048 matrix"],
            Program::Radix => ["Integer radix sort", "8M keys"],
            Program::Ocean => ["Successive over-relaxation (not in the paper)", "2048x2048 grid"],
        }
    }
}

/// How a program is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// One processor; the macros expand to nothing.
    Sequential,
    /// Threads of one process.
    Threads,
    /// Nodes of a cluster.
    Nodes,
}

impl Way {
    const ALL: [Way; 3] = [Way::Sequential, Way::Threads, Way::Nodes];

    fn macro_file(self) -> &'static str {
        match self {
            Way::Sequential => "c.m4.null",
            Way::Threads => "c.m4.pthreads",
            Way::Nodes => "c.m4.trellis",
        }
    }
}

/// The locations of everything that a build needs.
#[derive(Debug, PartialEq, Eq)]
struct Sources {
    /// A folder for each program.
    programs: PathBuf,
    /// The macro files.
    macros: PathBuf,
    headers: PathBuf,
    library: PathBuf,
}

/// The programs, built; their folder is removed with this value.
pub(super) struct Built {
    folder: Scratch,
}

impl Built {
    /// Builds the programs in all three ways.
    pub(super) fn new(programs: &[Program], mut tell: impl FnMut(&str)) -> Result<Built, Failure> {
        let sources = Sources::find()?;
        let built = Built { folder: Scratch::new("vismi")? };
        // With the names that the linker and the loader look for, whatever cargo's name is.
        let major = env!("CARGO_PKG_VERSION_MAJOR");
        for name in ["libtrellis.so".to_owned(), format!("libtrellis.so.{major}")] {
            symlink(&sources.library, built.folder.file(name)).map_err(|error| {
                Failure::new(exit::FILE, format!("cannot write {}: {error}", built.folder.path().display()))
            })?;
        }
        for &program in programs {
            tell(&format!("building {}", program.name()));
            for way in Way::ALL {
                built.build(&sources, program, way)?;
            }
        }
        Ok(built)
    }

    /// The executable.
    pub(super) fn path(&self, program: Program, way: Way) -> PathBuf {
        self.folder.file(format!("{}-{}", program.name(), way.macro_file()))
    }

    /// The folder for the records of a run; initially empty.
    pub(super) fn record(&self) -> Result<PathBuf, Failure> {
        let folder = self.folder.file("record");
        let fresh = match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => std::fs::create_dir_all(&folder),
        };
        fresh.map_err(|error| Failure::new(exit::FILE, format!("cannot make {}: {error}", folder.display())))?;
        Ok(folder)
    }

    fn build(&self, sources: &Sources, program: Program, way: Way) -> Result<(), Failure> {
        let own = sources.programs.join(program.name());
        let source = own.join(format!("{}.c.in", program.name()));
        let expanded = tool(
            Command::new("m4").args(["-s", "-Ulen", "-Uindex"]).arg(sources.macros.join(way.macro_file())).arg(&source),
            "m4, the macro processor, is needed to build the programs; install it (Debian and Ubuntu: apt install m4)",
        )?;
        let executable = self.path(program, way);
        let text = executable.with_added_extension("c");
        std::fs::write(&text, expanded.stdout)
            .map_err(|error| Failure::new(exit::FILE, format!("cannot write {}: {error}", text.display())))?;
        let compiler = std::env::var_os("CC").unwrap_or_else(|| OsString::from("cc"));
        let mut command = Command::new(&compiler);
        command.args(FLAGS).arg("-I").arg(&own).arg("-I").arg(&sources.programs).arg("-I").arg(&sources.headers);
        command.arg(&text).arg("-o").arg(&executable);
        if way == Way::Nodes {
            command
                .arg("-L")
                .arg(self.folder.path())
                .arg(format!("-Wl,-rpath,{}", self.folder.path().display()))
                .arg("-ltrellis");
        }
        command.args(["-pthread", "-lm"]);
        let missing = format!(
            "a C compiler is needed to build the programs, and `{}` is none; install one or name it in CC",
            compiler.display()
        );
        tool(&mut command, &missing).map(drop)
    }
}

/// Runs a tool to its end; a failure's sentence contains its output.
fn tool(command: &mut Command, missing: &str) -> Result<Output, Failure> {
    let output = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(exit::NOT_FOUND, missing),
        _ => Failure::new(exit::SYSTEM, format!("{missing} ({error})")),
    })?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().find(|line| line.contains("error")).or(said.lines().last()).unwrap_or_default();
    let name = command.get_program().display();
    Err(Failure::new(exit::FAILED, format!("a program cannot be built, because {name} failed: {}", last.trim())))
}

impl Sources {
    /// Finds them beside the installed command, or in a repository around it or around the working directory.
    fn find() -> Result<Sources, Failure> {
        let command = std::env::current_exe().and_then(|path| path.canonicalize()).map_err(|error| {
            Failure::new(exit::SYSTEM, format!("cannot find this executable and so not what lies beside it: {error}"))
        })?;
        let here = std::env::current_dir().unwrap_or_default();
        Sources::beside(&command, &here)
    }

    fn beside(command: &Path, here: &Path) -> Result<Sources, Failure> {
        let above = command.ancestors().skip(1).chain(here.ancestors());
        let mut places = above.flat_map(|above| Sources::candidates(command, above));
        let sources = places.find(|sources| sources.programs.join(SIGN).is_file()).ok_or_else(|| {
            Failure::new(
                exit::FILE,
                format!(
                    "the sources of the programs are neither in share/trellis/parmacs beside {} nor in a repository \
                     round it or here; install Trellis with `cargo xtask install --prefix DIRECTORY`, or run this in \
                     the repository",
                    command.display()
                ),
            )
        })?;
        if !sources.library.is_file() {
            let sentence = format!(
                "the library is not at {}; build it with `cargo build --release -p trellis-c`",
                sources.library.display()
            );
            return Err(Failure::new(exit::FILE, sentence));
        }
        Ok(sources)
    }

    /// The sources if this folder is the prefix of an installation, and if it is a repository.
    fn candidates(command: &Path, above: &Path) -> [Sources; 2] {
        let shared = above.join("share/trellis");
        let mut libraries = ["lib", "lib64"].into_iter().map(|folder| above.join(folder).join("libtrellis.so"));
        let installed = Sources {
            programs: shared.join("parmacs"),
            macros: shared,
            headers: above.join("include"),
            library: libraries.find(|library| library.exists()).unwrap_or_else(|| above.join("lib/libtrellis.so")),
        };
        let repository = Sources {
            programs: above.join("examples/parmacs"),
            macros: above.join("parmacs"),
            headers: above.join("crates/trellis-c/include"),
            library: command.with_file_name("libtrellis_c.so"),
        };
        [installed, repository]
    }
}

/// What a program printed about its run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Said {
    pub(super) seconds: f64,
    pub(super) verified: bool,
}

impl Said {
    /// Finds the result in a program's output.
    pub(super) fn find(program: Program, output: &[u8]) -> Result<Said, Failure> {
        let text = String::from_utf8_lossy(output);
        let line = text.lines().find(|line| line.starts_with("trellis-result "));
        let value = |name: &str| line?.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        match (value("seconds").and_then(|seconds| seconds.parse().ok()), value("verified")) {
            (Some(seconds), Some(verified)) => Ok(Said { seconds, verified: verified == "yes" }),
            _ => {
                let name = program.name();
                Err(Failure::new(exit::FAILED, format!("{name} printed no result: {:?}", text.trim())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trellis_testing::Folder;

    fn tree(files: &[&str]) -> Folder {
        let root = Folder::new();
        files.iter().for_each(|file| drop(root.write(file, "")));
        root
    }

    #[test]
    fn sources_are_found_beside_an_installed_command() {
        let root = tree(&["bin/trellis", "lib/libtrellis.so", "share/trellis/parmacs/program.h"]);
        let sources = Sources::beside(&root.file("bin/trellis"), Path::new("/")).expect("they are there");
        assert_eq!((sources.macros, sources.headers), (root.file("share/trellis"), root.file("include")));
    }

    #[test]
    fn sources_are_found_in_the_repository_and_a_missing_library_is_named() {
        let root = tree(&["target/release/trellis", "examples/parmacs/program.h"]);
        let command = root.file("target/release/trellis");
        let refused = Sources::beside(&command, Path::new("/")).expect_err("there is no library");
        assert!(refused.sentence.contains("libtrellis_c.so; build it with"), "{refused}");
        root.write("target/release/libtrellis_c.so", "");
        assert_eq!(Sources::beside(&command, Path::new("/")).expect("they are there").macros, root.file("parmacs"));
        // A command built elsewhere finds them if it runs inside the repository.
        let elsewhere = tree(&["release/trellis", "release/libtrellis_c.so"]);
        let found = Sources::beside(&elsewhere.file("release/trellis"), &root.file("target")).expect("they are there");
        assert_eq!(found.library, elsewhere.file("release/libtrellis_c.so"));
    }

    #[test]
    fn what_is_nowhere_is_said() {
        let refused =
            Sources::beside(Path::new("/nowhere/bin/trellis"), Path::new("/nowhere")).expect_err("it is nowhere");
        assert!(refused.sentence.contains("cargo xtask install"), "{refused}");
    }

    #[test]
    fn a_result_is_found_among_other_lines() {
        let line =
            b"hello\ntrellis-result program=fft interface=parmacs processors=2 size=16 seconds=0.25 verified=yes\n";
        assert_eq!(Said::find(Program::Fft, line), Ok(Said { seconds: 0.25, verified: true }));
        let wrong = b"trellis-result program=fft seconds=0.25 verified=no\n";
        assert_eq!(Said::find(Program::Fft, wrong), Ok(Said { seconds: 0.25, verified: false }));
        assert!(Said::find(Program::Fft, b"oops").expect_err("no result").sentence.contains("oops"));
    }
}
