//! The program that is measured: compiled once, and started in a limit with its heap in each place.
//!
//! Promises: a run that fails, hangs or is killed because of its memory is an error with a sentence. The reported
//! times are those that the program took itself, so its start and its end do not count.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::limit::{Limit, START};
use super::place::Place;
use trellis_command::exit::{self, Failure};
use trellis_command::installed;

const SOURCE: &str = include_str!("../../../../../examples/stored/word_count.c");

/// Any slower way hangs: the limit of a run apart from its text, and the fewest bytes of text in a second.
const RUN_SECONDS_MAX: u64 = 300;
const BYTES_PER_SECOND_MIN: u64 = 1 << 20;

/// The page traffic of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pages {
    pub(super) fetched: u64,
    pub(super) written_bytes: u64,
    pub(super) calls: u64,
}

/// The result of a run.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// The words.
    pub(super) printed: String,
    pub(super) fill_seconds: f64,
    pub(super) count_seconds: f64,
    /// `None` where no store was used.
    pub(super) pages: Option<Pages>,
}

impl Run {
    pub(super) fn seconds(&self) -> f64 {
        self.fill_seconds + self.count_seconds
    }
}

/// The program, compiled.
#[derive(Debug)]
pub(super) struct Program {
    program: PathBuf,
    command: PathBuf,
}

impl Program {
    pub(super) fn compile(place: &Place) -> Result<Program, Failure> {
        let program = place.compile("word_count", SOURCE)?;
        Ok(Program { program, command: installed::command()? })
    }

    /// Runs it, with its heap in a store (address, bytes of the cache) if one is given.
    pub(super) fn run(
        &self,
        place: &Place,
        limit: Option<&Limit>,
        store: Option<(&str, u64)>,
        words: &[&str],
    ) -> Result<Run, Failure> {
        let (pid_file, stdout, stderr) = (place.file("program.pid"), place.file("stdout"), place.file("stderr"));
        let mut command = Command::new("sh");
        command.args(["-c", START, "sh"]).arg(&pid_file);
        command.arg(limit.map(Limit::join).unwrap_or_default());
        if let Some((url, cache)) = store {
            command.arg(&self.command).args(["store", "run", "--statistics", "--store", url]);
            command.args(["--cache", &cache.to_string(), "--"]);
        }
        command.arg(&self.program).args(words);
        // The variables of the user's shell about regions do not apply to this program.
        for variable in ["TRELLIS_STORE_REGION", "TRELLIS_STORE_DELAY_US", "TRELLIS_STORE_HEAP"] {
            command.env_remove(variable);
        }
        let bytes: u64 = words.get(1).and_then(|bytes| bytes.parse().ok()).unwrap_or_default();
        // Room for the text and the table, independent of the user's shell.
        command.env("TRELLIS_STORE_REGION_BYTES", (2 * bytes).clamp(64 << 30, 1 << 40).to_string());
        command.stdin(Stdio::null()).stdout(file(&stdout)?).stderr(file(&stderr)?);
        let seconds_max = RUN_SECONDS_MAX + bytes / BYTES_PER_SECOND_MIN;
        let ended = waited(command, Duration::from_secs(seconds_max));
        let read = |file: &Path| std::fs::read_to_string(file).unwrap_or_default();
        let (printed, said) = (read(&stdout), read(&stderr));
        for name in ["program.pid", "stdout", "stderr"] {
            place.remove(name);
        }
        match ended? {
            None => Err(Failure::new(exit::FAILED, format!("word_count did not end within {seconds_max} s"))),
            Some(status) if status.success() => read_run(&printed, &said, store.is_some()),
            Some(status) => Err(failure(status, &said)),
        }
    }
}

fn file(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| Failure::new(exit::FILE, format!("cannot write {}: {error}", path.display())))
}

/// Waits for a process; returns `None` when its time is over.
fn waited(mut command: Command, longest: Duration) -> Result<Option<ExitStatus>, Failure> {
    let cannot = |error: std::io::Error| Failure::new(exit::SYSTEM, format!("cannot run word_count: {error}"));
    let mut process = Started(command.spawn().map_err(cannot)?);
    let deadline = Instant::now() + longest;
    loop {
        match process.0.try_wait().map_err(cannot)? {
            Some(status) => return Ok(Some(status)),
            None if Instant::now() > deadline => return Ok(None),
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// A process that is killed when this value is dropped.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        // It may have ended by itself; it is waited for in either case.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn failure(status: ExitStatus, said: &str) -> Failure {
    if status.signal() == Some(libc::SIGKILL) {
        return Failure::new(exit::FAILED, "word_count was killed: its memory is too small; give a larger --cache");
    }
    let line = said.lines().rfind(|line| line.starts_with("trellis: ")).or_else(|| said.lines().next_back());
    let code = match status.code().and_then(|code| u8::try_from(code).ok()) {
        // A missing part keeps its exit code.
        Some(code @ (exit::SYSTEM | exit::FILE | exit::NOT_FOUND | exit::NOT_EXECUTABLE)) => code,
        _ => exit::FAILED,
    };
    let line = line.map_or_else(|| status.to_string(), |line| line.trim_start_matches("trellis: ").to_owned());
    Failure::new(code, format!("word_count failed: {line}"))
}

/// Reads the output of the program and of the runtime.
fn read_run(printed: &str, said: &str, has_store: bool) -> Result<Run, Failure> {
    let strange = || Failure::new(exit::FAILED, format!("word_count printed unexpected output: {}", said.trim()));
    let number = |text: &str, before: &str, behind: &str| -> Option<f64> {
        let (_, rest) = text.split_once(before)?;
        rest.split_once(behind)?.0.trim().parse().ok()
    };
    let times = said.lines().find(|line| line.starts_with("filled in ")).ok_or_else(strange)?;
    let fill_seconds = number(times, "filled in ", " s").ok_or_else(strange)?;
    let count_seconds = number(times, "counted in ", " s").ok_or_else(strange)?;
    let pages = if has_store { Some(read_pages(said).ok_or_else(strange)?) } else { None };
    Ok(Run { printed: printed.to_owned(), fill_seconds, count_seconds, pages })
}

/// The runtime's line of statistics; each number stands before its word.
fn read_pages(said: &str) -> Option<Pages> {
    let line = said.lines().find(|line| line.starts_with("trellis: store "))?;
    let before = |words: &str| -> Option<u64> { line.split_once(words)?.0.rsplit([' ', '(']).next()?.parse().ok() };
    Some(Pages {
        fetched: before(" fetched (")?,
        written_bytes: before(" bytes written back")?,
        calls: before(" calls (")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: &str = "filled in 1.500 s, counted in 2.250 s\n";
    const STORE: &str = "trellis: store redis+unix:/tmp/s: 120 calls (get 70, read 1, change 49, wait 0, list 0; 900 \
                         keys, 800 steps); pages: 33 faults, 512 fetched (500 ahead), 9 given up, 2097152 bytes \
                         written back\n";

    #[test]
    fn what_is_said_is_read() {
        let run = read_run("9 words\n", &format!("{TIMES}{STORE}"), true).expect("it makes sense");
        assert_eq!((run.fill_seconds, run.count_seconds, run.seconds()), (1.5, 2.25, 3.75));
        assert_eq!(run.pages, Some(Pages { fetched: 512, written_bytes: 2_097_152, calls: 120 }));
        assert_eq!(read_run("", TIMES, false).expect("no store").pages, None);
        assert!(read_run("", TIMES, true).is_err() && read_run("", STORE, true).is_err());
    }

    #[test]
    fn a_program_that_fails_says_why() {
        let status = |text: &str| Command::new("sh").args(["-c", text]).status().expect("sh");
        let failed = failure(status("exit 74"), "trellis: no library\n");
        assert_eq!(failed, Failure::new(exit::FILE, "word_count failed: no library"));
        assert!(failure(status("kill -9 $$"), "").sentence.contains("its memory is too small"));
    }
}
