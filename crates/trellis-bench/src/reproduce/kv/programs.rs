//! The paper's programs: compiled by clang alone and by `trellis c++` in its modes, and run on a store.
//!
//! Promises: every mode has the same source and optimisation. The programs that it builds are removed when the command ends. A
//! program that fails is an error with its own sentence.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::servers::{Folder, Process};
use super::ycsb::missing;
use trellis_command::exit::{self, Failure};
use trellis_command::installed;

/// The paper's round trip: its heap test writes 100 times in 284,047 µs.
pub(super) const PAPER_ROUND_TRIP_US: u64 = 2750;

/// A program that runs longer than this hangs.
pub(super) const RUN_MAX: Duration = Duration::from_secs(300);

/// How a program's memory is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    /// In local memory, compiled by clang.
    Original,
    /// Every access is a call of the store.
    Full,
    /// Every access to the heap is a call of the store.
    Heap,
    /// The heap is cached, with a check at each access.
    Line,
    /// The heap is cached; the program is not compiled for it.
    Page,
}

impl Mode {
    pub(super) const ALL: [Mode; 5] = [Mode::Original, Mode::Full, Mode::Heap, Mode::Line, Mode::Page];

    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::Original => "original",
            Mode::Full => "full",
            Mode::Heap => "heap",
            Mode::Line => "line",
            Mode::Page => "page",
        }
    }

    /// Its name for `trellis c++`, if it is compiled with that.
    pub(super) fn compiled(self) -> Option<&'static str> {
        (!matches!(self, Mode::Original | Mode::Page)).then(|| self.name())
    }
}

/// A source that is part of this command.
pub(super) struct Source {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
}

impl Source {
    /// Trellis' compiler for it, and clang's, which is also the name of the package.
    fn compilers(&self) -> [&'static str; 2] {
        if self.name.ends_with(".c") { ["cc", "clang-19"] } else { ["c++", "clang++-19"] }
    }
}

/// The store for a program's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) url: &'a str,
    pub(super) round_trip_us: u64,
    /// The heap's kind; the default if it is empty.
    pub(super) heap: &'a str,
}

/// A folder of built programs.
pub(super) struct Programs {
    folder: Folder,
    command: PathBuf,
}

impl Programs {
    pub(super) fn new() -> Result<Programs, Failure> {
        Ok(Programs { folder: Folder::new()?, command: installed::command()? })
    }

    /// This command with other arguments.
    pub(super) fn trellis(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.command);
        command.args(words);
        command
    }

    /// Builds a program.
    pub(super) fn build(&self, source: &Source, mode: Mode, optimisation: &str) -> Result<PathBuf, Failure> {
        let [ours, clang] = source.compilers();
        let text = self.written(source)?;
        let stem = Path::new(source.name).file_stem().unwrap_or_default().to_string_lossy();
        let program = self.folder.path().join(format!("{stem}-{}{optimisation}", mode.name()));
        let mut command = match mode.compiled() {
            None => Command::new(clang),
            Some(mode) => {
                let mut command = Command::new(&self.command);
                command.args([ours, "--mode", mode]);
                command
            }
        };
        command.arg(optimisation).arg("-pthread").arg(&text).arg("-o").arg(&program);
        printed(&mut command, &format!("compiling {} ({})", source.name, mode.name()), clang)?;
        Ok(program)
    }

    /// The output of `--count` for a source, as JSON.
    pub(super) fn counts(&self, source: &Source, mode: Mode, optimisation: &str) -> Result<String, Failure> {
        let [ours, clang] = source.compilers();
        let text = self.written(source)?;
        let mut command = Command::new(&self.command);
        command.args([ours, "--mode", mode.name(), "--count", "--json", optimisation, "-c"]);
        command.arg(&text).arg("-o").arg(self.folder.path().join("counted.o"));
        printed(&mut command, &format!("counting the instructions of {} ({})", source.name, mode.name()), clang)
    }

    /// A program's command line, with its memory in a place.
    pub(super) fn command(&self, program: &Path, mode: Mode, place: &Place) -> Command {
        let mut command = if mode == Mode::Page {
            let mut command = Command::new(&self.command);
            command.args(["store", "run", "--store", place.url, "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.env("TRELLIS_STORE", place.url).env("TRELLIS_STORE_DELAY_US", place.round_trip_us.to_string());
        // The variables of the user's shell about regions do not apply to these programs.
        for variable in ["TRELLIS_STORE_REGION", "TRELLIS_STORE_CACHE_BYTES_MAX", "TRELLIS_STORE_STATISTICS"] {
            command.env_remove(variable);
        }
        match place.heap {
            "" => command.env_remove("TRELLIS_STORE_HEAP"),
            kind => command.env("TRELLIS_STORE_HEAP", kind),
        };
        command.stdin(Stdio::null());
        command
    }

    fn written(&self, source: &Source) -> Result<PathBuf, Failure> {
        let file = self.folder.path().join(source.name);
        std::fs::write(&file, source.text)
            .map_err(|error| Failure::new(exit::FILE, format!("cannot write {}: {error}", file.display())))?;
        Ok(file)
    }
}

/// Returns what a command prints on standard output; on failure, its last sentence. `package` is the command's
/// package.
pub(super) fn printed(command: &mut Command, what: &str, package: &str) -> Result<String, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let package = package.replace("++", "");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process(command.spawn().map_err(|error| missing(&program, &package, &error))?);
    let (stdout, stderr) = (reader(process.0.stdout.take()), reader(process.0.stderr.take()));
    let failed = |why: &str| Failure::new(exit::FAILED, format!("{what}: {why}"));
    let deadline = Instant::now() + RUN_MAX;
    let status = loop {
        match process.0.try_wait().map_err(|error| failed(&error.to_string()))? {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                return Err(failed(&format!("it did not end within {} s and was stopped", RUN_MAX.as_secs())));
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let text = |reader: JoinHandle<Vec<u8>>| String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned();
    let (stdout, stderr) = (text(stdout), text(stderr));
    if status.success() {
        return Ok(stdout);
    }
    let code = match status.code().and_then(|code| u8::try_from(code).ok()) {
        // A missing part keeps its exit code.
        Some(code @ (exit::SYSTEM | exit::FILE | exit::NOT_FOUND | exit::NOT_EXECUTABLE)) => code,
        _ => exit::FAILED,
    };
    Err(Failure::new(code, format!("{what}: {}", sentence(&stderr, &status.to_string()))))
}

/// Reads while the process runs, so that it never waits for us.
fn reader(stream: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // What came before an error is kept.
            let _ = stream.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// The most informative line of an error output: ours, else an error's, else the last.
pub(super) fn sentence(text: &str, otherwise: &str) -> String {
    let find = |wanted: &dyn Fn(&&str) -> bool| text.lines().rfind(|line| wanted(line));
    let line = find(&|line| line.starts_with("trellis: "))
        .or_else(|| find(&|line| line.contains("error: ")))
        .or_else(|| find(&|line| !line.trim().is_empty()))
        .unwrap_or(otherwise);
    line.strip_prefix("trellis: ").unwrap_or(line).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_that_says_most_is_found() {
        let text = "x.cpp:1:1: error: no\ntrellis: the pass is not there; build it\n1 error generated.\n";
        assert_eq!(sentence(text, ""), "the pass is not there; build it");
        assert_eq!(sentence("x.cpp:1:1: error: no\n1 error generated.\n", ""), "x.cpp:1:1: error: no");
        assert_eq!(sentence("\n", "signal: 11"), "signal: 11");
    }

    #[test]
    fn what_a_program_prints_is_returned_and_what_fails_is_said() {
        let shell = |script: &str| printed(Command::new("sh").args(["-c", script]), "running it", "dash");
        assert_eq!(shell("echo fine"), Ok("fine\n".to_owned()));
        let failed = shell("echo trellis: a part is missing >&2; exit 71").expect_err("it failed");
        assert_eq!(failed, Failure::new(exit::SYSTEM, "running it: a part is missing"));
        assert_eq!(shell("exit 9").expect_err("it failed").code, exit::FAILED);
        let none = printed(&mut Command::new("trellis-none++-19"), "running it", "clang++-19");
        assert!(none.expect_err("there is none").sentence.contains("apt-get install clang-19"));
    }

    #[test]
    fn a_program_is_told_where_its_memory_is() {
        let programs = Programs { folder: Folder::new().expect("a folder"), command: "trellis".into() };
        let place = Place { url: "redis://127.0.0.1:1", round_trip_us: 2750, heap: "bump" };
        let command = programs.command(Path::new("/p"), Mode::Heap, &place);
        let value = |name: &str| {
            command.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| Some(value?.to_owned()))
        };
        assert_eq!(command.get_program(), "/p");
        assert_eq!(value("TRELLIS_STORE"), Some("redis://127.0.0.1:1".into()));
        assert_eq!(value("TRELLIS_STORE_DELAY_US"), Some("2750".into()));
        assert_eq!(value("TRELLIS_STORE_HEAP"), Some("bump".into()));
        let page = programs.command(Path::new("/p"), Mode::Page, &place);
        let words: Vec<_> = page.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!(words, ["store", "run", "--store", "redis://127.0.0.1:1", "--", "/p"]);
    }
}
