//! The program that is measured: compiled once, and started with its memory in each place.
//!
//! Promises: a run that fails, hangs or is killed because of its memory is an error with a sentence. The reported
//! times are those that the program took itself, so its start and its end do not count.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde::{Deserialize, Serialize};

use super::{Limit, Place, START, Sizes};
use trellis_command::exit::{self, Failure};

const SOURCE: &str = include_str!("../../../../../examples/remote/working_set.c");

/// The timed passes: name and description.
pub(super) const PASSES: [(&str, &str); 5] = [
    ("fill", "fill"),
    ("scan", "in order, read"),
    ("update", "in order, change"),
    ("work", "in order, compute"),
    ("touch", "here and there"),
];

/// The page traffic of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pages {
    pub(super) faults: u64,
    pub(super) fetched: u64,
    pub(super) written_bytes: u64,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Passes {
    /// The sums.
    pub(super) printed: String,
    pub(super) passes: Vec<(String, f64)>,
    /// `None` where the memory is the kernel's.
    pub(super) pages: Option<Pages>,
}

impl Passes {
    pub(super) fn seconds(&self, pass: &str) -> f64 {
        self.passes.iter().find(|(name, _)| name == pass).map_or(f64::NAN, |(_, seconds)| *seconds)
    }
}

/// The program, compiled.
#[derive(Debug)]
pub(super) struct Program(PathBuf);

impl Program {
    pub(super) fn compile(place: &Place) -> Result<Program, Failure> {
        place.compile("working_set", SOURCE).map(Program)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Runs it with the kernel's memory.
    pub(super) fn run(
        &self,
        place: &Place,
        limit: Option<&Limit>,
        more: &[&str],
        sizes: Sizes,
    ) -> Result<Passes, Failure> {
        let pid_file = place.file("program.pid");
        let mut command = Command::new("sh");
        command.args(["-c", START, "sh"]).arg(&pid_file).arg(limit.map(Limit::join).unwrap_or_default());
        command.arg(&self.0).args(arguments(sizes)).args(more);
        let ended = command.stdin(Stdio::null()).output();
        place.remove("program.pid");
        ended.map_err(cannot_run).and_then(|output| read(&output, false))
    }
}

/// The program's arguments.
pub(super) fn arguments(sizes: Sizes) -> [String; 3] {
    [sizes.bytes.to_string(), "--touches".to_owned(), sizes.touches.to_string()]
}

pub(super) fn cannot_run(error: std::io::Error) -> Failure {
    Failure::new(exit::SYSTEM, format!("cannot run working_set: {error}"))
}

/// Reads the output of a run.
pub(super) fn read(output: &Output, has_pages: bool) -> Result<Passes, Failure> {
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.signal() == Some(libc::SIGKILL) {
        return Err(Failure::new(
            exit::FAILED,
            "working_set was killed: its memory is too small; give a larger --cache",
        ));
    }
    if !output.status.success() {
        let line = said.lines().rfind(|line| line.starts_with("trellis: ")).or_else(|| said.lines().next_back());
        let code = match output.status.code().and_then(|code| u8::try_from(code).ok()) {
            // A missing part keeps its exit code.
            Some(code @ (exit::SYSTEM | exit::FILE | exit::NOT_FOUND | exit::NOT_EXECUTABLE)) => code,
            _ => exit::FAILED,
        };
        let line =
            line.map_or_else(|| output.status.to_string(), |line| line.trim_start_matches("trellis: ").to_owned());
        return Err(Failure::new(code, format!("working_set failed: {line}")));
    }
    let strange = || Failure::new(exit::FAILED, format!("working_set printed unexpected output: {}", said.trim()));
    let passes: Option<Vec<(String, f64)>> =
        PASSES.iter().map(|(pass, _)| Some(((*pass).to_owned(), seconds(&said, pass)?))).collect();
    let pages = if has_pages { Some(pages(&said).ok_or_else(strange)?) } else { None };
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(Passes { printed, passes: passes.ok_or_else(strange)?, pages })
}

fn seconds(said: &str, pass: &str) -> Option<f64> {
    let line = said.lines().find_map(|line| line.strip_prefix(pass)?.strip_prefix(" took "))?;
    line.strip_suffix(" s")?.parse().ok()
}

/// The runtime's line of statistics; each number stands before its word.
fn pages(said: &str) -> Option<Pages> {
    let line = said.lines().find(|line| line.starts_with("trellis: store "))?;
    let before = |words: &str| -> Option<u64> { line.split_once(words)?.0.rsplit([' ', '(']).next()?.parse().ok() };
    Some(Pages {
        faults: before(" faults, ")?,
        fetched: before(" fetched (")?,
        written_bytes: before(" bytes written back")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: &str = "fill took 0.5 s\nscan took 0.25 s\nupdate took 1 s\nwork took 2 s\ntouch took 3 s\n";
    const STORE: &str = "trellis: store memory-server:anywhere: 120 calls (get 70, read 1, change 49, wait 0, list 0; 900 \
                         keys, 800 steps); pages: 33 faults, 512 fetched (500 ahead), 9 given up, 2097152 bytes \
                         written back\n";

    fn output(script: &str, said: &str) -> Output {
        let script = format!("printf '%s' \"$1\" >&2; {script}");
        Command::new("sh").args(["-c", &script, "sh", said]).output().expect("sh")
    }

    #[test]
    fn what_is_said_is_read() {
        let run = read(&output("echo sums", &format!("{TIMES}{STORE}")), true).expect("it makes sense");
        assert_eq!((run.printed.as_str(), run.seconds("scan"), run.seconds("touch")), ("sums\n", 0.25, 3.0));
        assert_eq!(run.pages, Some(Pages { faults: 33, fetched: 512, written_bytes: 2_097_152 }));
        assert_eq!(read(&output("true", TIMES), false).expect("no pages").pages, None);
        assert!(read(&output("true", TIMES), true).is_err() && read(&output("true", STORE), true).is_err());
    }

    #[test]
    fn a_program_that_fails_says_why() {
        let failed = read(&output("exit 74", "trellis: no library\n"), false);
        assert_eq!(failed, Err(Failure::new(exit::FILE, "working_set failed: no library")));
        let killed = read(&output("kill -9 $$", ""), false).expect_err("it was killed");
        assert!(killed.sentence.contains("its memory is too small"));
    }
}
