//! `cargo xtask soak`: runs, for a chosen time, what `cargo xtask test` does once and small: larger explorations,
//! fresh seeds, and repetitions of the tests with threads, processes and sockets.
//!
//! Promises: the time is divided among the steps; time that a step does not need goes to later ones, and each does at
//! least one thing. A failure never stops the other steps: the command that repeats it is printed at once, and the
//! exit code is not 0. Files that a run leaves behind are removed, and a process left behind is a failure. It must
//! never end or remove what it did not start or create. The logs of failures stay in `soak` of the target folder
//! until the next run.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};

use crate::demo::table;
use crate::workspace::{Profile, Workspace};
use crate::{compiler, setup, step};

/// A run of a test program that takes longer hangs; none needs a tenth of it.
const RUN_SECONDS_MAX: u64 = 600;
/// The time for the first run of a step, even if less is left.
const FIRST_SECONDS_MIN: u64 = 10;
/// A step is given up after this many failures: the first one is the most informative.
const FAILURES_MAX: u64 = 3;
/// How long processes may take to end after their test has ended.
const GONE_SECONDS_MAX: u64 = 5;
/// How often a step reports its progress if the output is not a terminal.
const PROGRESS_SECONDS: u64 = 30;
/// The limit of states of one exploration: about five gigabytes.
const STATES_MAX: &str = "50000000";
/// The number of lines of a failure's log that are shown.
const LINES_SHOWN: usize = 25;
/// The variable that marks every process that a run starts.
const MARK: &str = "XTASK_SOAK";

/// The steps, the quick ones first, so that later ones know how much time is left.
const STEPS: [Step; 20] = [
    Step { name: "mutants", weight: 1, work: Work::Check(&["mutants"]) },
    Step {
        name: "synchronisation explored",
        weight: 2,
        work: Work::Check(&[
            "sync --program barrier --nodes 6 --rounds 3",
            "sync --program locks --nodes 4 --rounds 2",
            "sync --program abandoned-locks --nodes 3 --threads 2 --rounds 1",
            "sync --program words --nodes 4 --rounds 2",
            "sync --program locks --nodes 3 --threads 2 --rounds 1 --objects 2",
            "sync --program words --nodes 3 --threads 2 --rounds 1 --objects 2",
            "members --founders 3 --joiners 2",
            "heap",
            "ends",
        ]),
    },
    Step {
        name: "protocols explored",
        weight: 12,
        work: Work::Check(&[
            "explore --nodes 2 --pages 2 --operations 2 --home interleaved --requests wide --must-end",
            "explore --nodes 2 --pages 2 --operations 1 --threads 2",
            "explore --nodes 2 --pages 1 --operations 2 --threads 2 --must-end",
            "explore --nodes 3 --pages 1 --operations 3",
            "explore --nodes 4 --pages 1 --operations 2",
            "explore --nodes 3 --pages 2 --operations 2 --requests wide",
            "explore --nodes 2 --pages 2 --operations 2 --prefetches 1 --requests both",
            "explore --nodes 3 --pages 1 --operations 2 --late-faults --time-outs 1 --eager",
            // These two have more states than the limit: no verdict, but millions of states without a violation.
            "explore --nodes 2 --pages 2 --operations 2 --threads 2",
            "explore --nodes 2 --pages 2 --operations 1 --threads 2 --prefetches 1",
            "explore --protocol all --nodes 3 --pages 2 --operations 2",
            "explore --protocol all --nodes 3 --pages 1 --operations 2 --leaver --must-end",
            "explore --protocol lock(dynamic) --nodes 3 --pages 1 --operations 2 --locks kept --must-end",
            "explore --protocol delay(lock(dynamic)) --nodes 3 --pages 1 --operations 2 --locks kept",
            "explore --protocol dynamic --nodes 2 --pages 2 --operations 1 --change lock(ivy) --must-end",
            "explore --protocol dynamic --nodes 4 --pages 1 --operations 2 --overtaken-max",
            "explore --protocol release --nodes 3 --pages 1 --intervals 2 --program barriers --noticing marks --must-end",
            "explore --protocol hlrc(update) --nodes 3 --pages 1 --intervals 2 --give-ups 1 --may-disagree --noticing faults --program agree",
            "explore --protocol hlrc(update) --nodes 2 --pages 1 --intervals 2 --give-ups 3 --objections 1 --may-disagree --noticing faults --program agree",
            "explore --protocol hlrc(update) --nodes 4 --pages 1 --intervals 1 --give-ups 1 --may-disagree --noticing faults --program agree",
            "explore --protocol release --nodes 2 --pages 1 --intervals 1 --give-ups 1 --objections 1 --may-disagree --noticing faults --program and-back",
            "explore --protocol release --nodes 3 --pages 1 --give-ups 3 --program items --program items-at-once --program too-few",
        ]),
    },
    Step {
        name: "litmus, simulated",
        weight: 4,
        work: Work::Check(&[
            "litmus --simulated --runs 10000000 --jobs 2",
            "litmus --simulated --protocol release --runs 5000000 --jobs 2",
        ]),
    },
    Step {
        name: "swarm",
        weight: 6,
        work: Work::Check(&[
            "swarm --protocol all --seeds 20000 --first 1001",
            "swarm --protocol release --seeds 200000 --first 20001",
            "swarm --protocol lease --seeds 50000 --first 2001",
        ]),
    },
    Step {
        name: "litmus and histories on processes",
        weight: 14,
        work: Work::Command(&[
            "check litmus --protocol all --runs 10000 --nodes 2 --shape MP --shape SB --shape LB --shape S --shape R --shape 2+2W",
            "check litmus --protocol all --runs 10000 --nodes 4 --shape WRC --shape RWC --shape ISA2 --shape IRIW",
            "check history --protocol all --nodes 3 --operations 1000000",
            "check litmus --protocol all --runs 64 --nodes 4",
            "check litmus --protocol all --runs 500 --nodes 2 --shape MP --shape SB --set link=udp --set \
             link_faults=drop=10%,duplicate=5%,reorder=5%",
        ]),
    },
    Step { name: "protocol, fresh seeds", weight: 4, work: Work::Seeds("-p trellis-check --test conformance") },
    Step { name: "clusters in one process", weight: 6, work: Work::Repeat("-p trellis-dsm --test cluster") },
    Step { name: "protocols in one process", weight: 4, work: Work::Repeat("-p trellis-dsm --test protocols") },
    Step { name: "joining in one process", weight: 2, work: Work::Repeat("-p trellis-dsm --test elastic") },
    Step { name: "datagrams that get lost", weight: 4, work: Work::Repeat("-p trellis-dsm --test datagrams") },
    Step { name: "joining processes", weight: 4, work: Work::Repeat("-p trellis-cli --test join") },
    Step { name: "udp", weight: 2, work: Work::Repeat("-p trellis-transport --test udp") },
    Step { name: "launcher", weight: 6, work: Work::Repeat("-p trellis-cli --test run") },
    Step { name: "transport security", weight: 3, work: Work::Repeat("-p trellis-transport --test security") },
    Step { name: "transport lifetime", weight: 3, work: Work::Repeat("-p trellis-transport --test lifetime") },
    Step { name: "libivy programs", weight: 3, work: Work::Repeat("-p trellis-c --test libivy") },
    Step { name: "memory in a store", weight: 3, work: Work::Repeat("-p trellis-stored --test stored") },
    Step { name: "locks in a store", weight: 3, work: Work::Repeat("-p trellis-stored --test stored_synchronisation") },
    Step {
        name: "memory in a store, long",
        weight: 14,
        work: Work::Long(&[
            ("TRELLIS_HEAP_OPERATIONS=10000000", "--release -p trellis-stored --lib heap::"),
            ("TRELLIS_RECOVERY_STEP=1", "-p trellis-stored --test stored_recovery"),
            ("TRELLIS_FOREIGN=all", "-p trellis-cli --test foreign"),
        ]),
    },
];

/// Soaks for so many minutes, without building.
pub(crate) fn run(workspace: &Workspace, minutes: u32) -> Result<()> {
    setup::ensure(setup::NEEDED)?;
    build(workspace)?;
    let soak = Soak::prepare(workspace)?;
    let end = Instant::now() + Duration::from_secs(u64::from(minutes) * 60);
    let mut totals = Vec::new();
    for (index, step) in STEPS.iter().enumerate() {
        let left = end.saturating_duration_since(Instant::now());
        totals.push(soak.run_step(step, share(left, &STEPS[index..]))?);
    }
    let failures: u64 = totals.iter().map(|total| total.failures).sum();
    soak.clean_up(failures > 0)?;
    print!("{}", closing_table(&totals));
    for cut in totals.iter().flat_map(|total| &total.cut) {
        println!("no verdict, more minutes or memory would bring it: {cut}");
    }
    if failures > 0 {
        bail!("{failures} runs failed; the commands that repeat them are above, the logs in {}", soak.folder.display());
    }
    Ok(())
}

struct Step {
    name: &'static str,
    /// Its share of the time, relative to the others.
    weight: u32,
    work: Work,
}

enum Work {
    /// Arguments for `trellis-check`, each once: it visits the same states every time.
    Check(&'static [&'static str]),
    /// Arguments for `trellis`, each once.
    Command(&'static [&'static str]),
    /// One test program, repeatedly.
    Repeat(&'static str),
    /// One test program, repeatedly, each time with a seed that no soak has used.
    Seeds(&'static str),
    /// Test programs with a variable that makes them long, each once.
    Long(&'static [(&'static str, &'static str)]),
}

/// One command of a step.
#[derive(Debug, PartialEq)]
struct Trial {
    /// The arguments of cargo.
    words: String,
    seed: Option<u64>,
    /// A variable, as `NAME=VALUE`.
    variable: Option<&'static str>,
    /// Whether it may be ended without a verdict when the time is over.
    may_be_cut: bool,
}

/// The result of a step.
struct Total {
    name: &'static str,
    runs: u64,
    failures: u64,
    spent: Duration,
    /// The commands that were ended early or not begun, for lack of time.
    cut: Vec<String>,
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Passed,
    Cut,
    /// With the reason.
    Failed(String),
}

/// The time for the first of these steps if all of them have to share the remaining time.
fn share(left: Duration, steps: &[Step]) -> Duration {
    let all: u32 = steps.iter().map(|step| step.weight).sum();
    steps.first().map_or(Duration::ZERO, |first| left * first.weight / all)
}

impl Step {
    /// The next command after `begun` commands; `None` if every possible one was begun.
    fn trial(&self, begun: u64, first_seed: u64) -> Option<Trial> {
        match self.work {
            Work::Check(all) => all.get(begun as usize).map(|words| Trial {
                words: format!("run --release --locked -p trellis-check -- {words}{}", bound(words)),
                seed: None,
                variable: None,
                may_be_cut: true,
            }),
            Work::Command(all) => all.get(begun as usize).map(|words| Trial {
                words: format!("run --release --locked -p trellis-cli -- {words}"),
                seed: None,
                variable: None,
                may_be_cut: true,
            }),
            Work::Repeat(words) => {
                Some(Trial { words: format!("test --locked {words}"), seed: None, variable: None, may_be_cut: false })
            }
            Work::Seeds(words) => Some(Trial {
                // The output lists the seeds that were run.
                words: format!("test --locked {words} -- --nocapture"),
                seed: Some(first_seed + begun),
                variable: None,
                may_be_cut: false,
            }),
            Work::Long(all) => all.get(begun as usize).map(|&(variable, words)| Trial {
                words: format!("test --locked {words}"),
                seed: None,
                variable: Some(variable),
                may_be_cut: true,
            }),
        }
    }

    /// The commands that are omitted if only `begun` commands are begun.
    fn rest(&self, begun: u64) -> Vec<String> {
        let rest = (begun..).map_while(|begun| self.trial(begun, 0).filter(|trial| trial.may_be_cut));
        rest.map(|trial| trial.shown()).collect()
    }

    /// The arguments of cargo before the time starts.
    fn build(&self) -> Vec<String> {
        match self.work {
            Work::Check(_) => vec!["build --release --locked -p trellis-check".to_owned()],
            Work::Command(_) => vec!["build --release --locked -p trellis-cli".to_owned()],
            Work::Repeat(words) | Work::Seeds(words) => vec![format!("test --locked {words} --no-run")],
            Work::Long(all) => all.iter().map(|(_, words)| format!("test --locked {words} --no-run")).collect(),
        }
    }
}

/// The additional arguments of a command of the checkers, if it explores: the others have no limit of states.
fn bound(words: &str) -> String {
    match words.split(' ').next() {
        Some("explore" | "sync" | "ends" | "members" | "heap" | "mutants") => {
            format!(" --states-max {STATES_MAX}")
        }
        _ => String::new(),
    }
}

impl Trial {
    /// The command that a user types to reproduce a failure.
    fn shown(&self) -> String {
        let seed = self.seed.map_or_else(String::new, |seed| format!("TRELLIS_SEED={seed} "));
        let variable = self.variable.map_or_else(String::new, |variable| format!("{variable} "));
        format!("{seed}{variable}cargo {}", self.words)
    }

    fn judge(&self, status: ExitStatus, log: &str) -> Outcome {
        if log.contains("too large: raise --states-max") {
            return Outcome::Cut;
        }
        if !status.success() {
            return Outcome::Failed(format!("it ended with {status}"));
        }
        match self.seed {
            // A test that ignores an unknown seed would always pass.
            Some(seed) if !log.contains(&format!("TRELLIS_SEED={seed} ")) => {
                Outcome::Failed(format!("it does not say that it ran the seed {seed}"))
            }
            _ => Outcome::Passed,
        }
    }
}

/// Builds each program with the arguments of its runs, so that no run builds.
fn build(workspace: &Workspace) -> Result<()> {
    let builds: BTreeSet<String> = STEPS.iter().flat_map(Step::build).collect();
    step::step("build what soaks", || {
        builds.iter().try_for_each(|words| step::run(workspace.cargo().args(words.split(' ')).arg("--quiet")))?;
        // For compiled programs to link with.
        step::run(workspace.cargo().args([
            "build",
            "--quiet",
            "--locked",
            "-p",
            "trellis-c",
            "-p",
            "trellis-calls",
            "-p",
            "trellis-cli",
        ]))?;
        compiler::build(workspace, Profile::Debug)
    })
}

/// The environment of the runs.
struct Soak<'a> {
    workspace: &'a Workspace,
    /// Only for logs and temporary files.
    folder: PathBuf,
    first_seed: u64,
    /// Files of others in cargo's folder for the files of tests.
    foreign: BTreeSet<OsString>,
}

impl<'a> Soak<'a> {
    fn prepare(workspace: &'a Workspace) -> Result<Soak<'a>> {
        let folder = workspace.target.join("soak");
        if folder.exists() {
            std::fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        std::fs::create_dir_all(folder.join("tmp")).with_context(|| format!("cannot make {}", folder.display()))?;
        // Seconds since 1970, times the maximum of runs in a second: later soaks have other seeds.
        let first_seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs() * 1000;
        let foreign = names(&workspace.target.join("tmp"));
        Ok(Soak { workspace, folder, first_seed, foreign })
    }

    fn run_step(&self, step: &Step, time: Duration) -> Result<Total> {
        eprintln!("==> {} (for {})", step.name, step::seconds(time));
        let start = Instant::now();
        let mut progress = Progress::new();
        let mut total = Total { name: step.name, runs: 0, failures: 0, spent: Duration::ZERO, cut: Vec::new() };
        for begun in 0.. {
            let Some(trial) = step.trial(begun, self.first_seed) else { break };
            let left = time.saturating_sub(start.elapsed());
            if (left.is_zero() && begun > 0) || total.failures == FAILURES_MAX {
                total.cut.extend(step.rest(begun));
                break;
            }
            let shortest = Duration::from_secs(if begun == 0 { FIRST_SECONDS_MIN } else { 0 });
            let limit = if trial.may_be_cut { left.max(shortest) } else { Duration::from_secs(RUN_SECONDS_MAX) };
            let outcome = self.run_trial(&trial, limit, || progress.show(&total, start.elapsed()))?;
            if outcome == Outcome::Cut {
                total.cut.push(trial.shown());
                continue;
            }
            total.runs += 1;
            if let Outcome::Failed(why) = outcome {
                total.failures += 1;
                progress.clear();
                self.tell(&total, &trial, &why)?;
            }
        }
        total.spent = start.elapsed();
        progress.clear();
        eprintln!("    {} runs, {} failures ({})", total.runs, total.failures, step::seconds(total.spent));
        Ok(total)
    }

    /// Runs one command to its end or to the end of its time, and removes the files that it leaves.
    fn run_trial(&self, trial: &Trial, limit: Duration, mut show: impl FnMut()) -> Result<Outcome> {
        let log = File::create(self.log()).with_context(|| format!("cannot write {}", self.log().display()))?;
        let mut command = self.workspace.cargo();
        command.args(trial.words.split(' ')).env(MARK, mark()).env("TMPDIR", self.folder.join("tmp"));
        command.env_remove("TRELLIS_SEED").envs(trial.seed.map(|seed| ("TRELLIS_SEED", seed.to_string())));
        command.envs(trial.variable.and_then(|variable| variable.split_once('=')));
        let mut child = command.stdout(log.try_clone()?).stderr(log).spawn().context("cannot start cargo")?;
        let status = wait(&mut child, limit, &mut show)?;
        let outcome = match status {
            Some(status) => self.judge_with_leftovers(trial, status)?,
            None if trial.may_be_cut => Outcome::Cut,
            None => Outcome::Failed(format!("it still ran after {RUN_SECONDS_MAX} s")),
        };
        end(&marked(&mark()))?;
        child.wait().context("cannot wait for cargo")?;
        self.remove_leftovers();
        Ok(outcome)
    }

    fn judge_with_leftovers(&self, trial: &Trial, status: ExitStatus) -> Result<Outcome> {
        let outcome = trial.judge(status, &self.read_log()?);
        let left = wait_until_gone();
        if outcome != Outcome::Passed || left.is_empty() {
            return Ok(outcome);
        }
        let left: Vec<String> = left.iter().map(|process| process.shown()).collect();
        Ok(Outcome::Failed(format!("it left processes behind: {}", left.join("; "))))
    }

    /// Reports the failure, the command that repeats it, and the end of its output; the whole output stays as a file.
    fn tell(&self, total: &Total, trial: &Trial, why: &str) -> Result<()> {
        let name = format!("{}-{}.log", total.name.replace([' ', ','], "-"), total.failures);
        let kept = self.folder.join(name);
        std::fs::copy(self.log(), &kept).with_context(|| format!("cannot write {}", kept.display()))?;
        let log = self.read_log()?;
        let lines: Vec<&str> = log.lines().collect();
        for line in &lines[lines.len().saturating_sub(LINES_SHOWN)..] {
            eprintln!("    | {line}");
        }
        eprintln!("    FAILED: {}, run {}: {why}; all it printed: {}", total.name, total.runs, kept.display());
        eprintln!("    again:  {}", trial.shown());
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.folder.join("run.log")
    }

    fn read_log(&self) -> Result<String> {
        let bytes = std::fs::read(self.log()).with_context(|| format!("cannot read {}", self.log().display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Removes the files that tests leave in cargo's folder for inspection: an hour of them fills a disk.
    fn remove_leftovers(&self) {
        let folder = self.workspace.target.join("tmp");
        for name in names(&folder).difference(&self.foreign).filter(|name| is_left(name)) {
            // Another test run at the same time may remove it first.
            let _ = std::fs::remove_dir_all(folder.join(name));
        }
    }

    fn clean_up(&self, keep_logs: bool) -> Result<()> {
        let folder = if keep_logs { self.folder.join("tmp") } else { self.folder.clone() };
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
    }
}

/// Waits for a child; `None` if its time is over first.
fn wait(child: &mut Child, limit: Duration, show: &mut impl FnMut()) -> Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for cargo")? {
            return Ok(Some(status));
        }
        if start.elapsed() >= limit {
            return Ok(None);
        }
        show();
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The value of [`MARK`], unique to this soak.
fn mark() -> String {
    std::process::id().to_string()
}

struct Process {
    id: String,
    command: String,
}

impl Process {
    fn shown(&self) -> String {
        format!("{} (process {})", self.command, self.id)
    }
}

/// The processes with a mark in their environment; an ended one has none.
fn marked(mark: &str) -> Vec<Process> {
    let wanted = format!("{MARK}={mark}");
    let is_number = |name: &OsString| name.to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let ids = names(Path::new("/proc")).into_iter().filter(is_number);
    ids.filter_map(|id| {
        let folder = Path::new("/proc").join(&id);
        // Processes of other users, and processes that have ended, cannot be read.
        let environment = std::fs::read(folder.join("environ")).ok()?;
        environment.split(|&byte| byte == 0).find(|variable| *variable == wanted.as_bytes())?;
        let command = std::fs::read(folder.join("cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).trim_end_matches('\0').replace('\0', " ");
        Some(Process { id: id.to_string_lossy().into_owned(), command })
    })
    .collect()
}

/// The processes of a run that still exist some time after its end.
fn wait_until_gone() -> Vec<Process> {
    let start = Instant::now();
    loop {
        let left = marked(&mark());
        if left.is_empty() || start.elapsed() >= Duration::from_secs(GONE_SECONDS_MAX) {
            return left;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Kills processes, with the shell's built-in `kill`, because the system may have no other.
fn end(processes: &[Process]) -> Result<()> {
    if processes.is_empty() {
        return Ok(());
    }
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "kill -KILL \"$@\" 2>/dev/null", "sh"]);
    // It fails if one of them has already ended, which is fine.
    command.args(processes.iter().map(|process| &process.id)).status().context("cannot start sh")?;
    Ok(())
}

/// The names in a folder; empty if it does not exist.
fn names(folder: &Path) -> BTreeSet<OsString> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect()
}

/// Whether a folder `name-ID` belongs to a process that has ended.
fn is_left(name: &OsString) -> bool {
    let id = name.to_str().and_then(|name| name.rsplit_once('-')).and_then(|(_, id)| id.parse::<u32>().ok());
    id.is_some_and(|id| !Path::new("/proc").join(id.to_string()).exists())
}

/// Reports the progress of a step at intervals; on a terminal continuously, in one line.
struct Progress {
    watched: bool,
    last: Instant,
}

impl Progress {
    fn new() -> Progress {
        Progress { watched: std::io::stderr().is_terminal(), last: Instant::now() }
    }

    fn show(&mut self, total: &Total, spent: Duration) {
        let pause = if self.watched { 1 } else { PROGRESS_SECONDS };
        if self.last.elapsed() < Duration::from_secs(pause) {
            return;
        }
        self.last = Instant::now();
        let line = format!("    {} runs, {} failures, {}", total.runs, total.failures, step::seconds(spent));
        if self.watched {
            eprint!("\r\x1b[K{line} ");
        } else {
            eprintln!("{line}");
        }
    }

    fn clear(&self) {
        if self.watched {
            eprint!("\r\x1b[K");
        }
    }
}

fn closing_table(totals: &[Total]) -> String {
    let heads = ["step", "runs", "failures", "seconds"].map(str::to_owned);
    let row = |total: &Total| {
        let numbers = [total.runs.to_string(), total.failures.to_string()];
        let seconds = format!("{:.1}", total.spent.as_secs_f64());
        [total.name.to_owned()].into_iter().chain(numbers).chain([seconds]).collect()
    };
    table(&heads, &totals.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    fn steps(weights: &[u32]) -> Vec<Step> {
        weights.iter().map(|&weight| Step { name: "some", weight, work: Work::Repeat("-p some --test any") }).collect()
    }

    /// A test program that was moved or renamed would end a soak after hours, and a filter that matches nothing passes.
    #[test]
    fn every_test_that_is_named_exists() {
        let root = Workspace::find().unwrap().root;
        let words = STEPS.iter().flat_map(|step| match step.work {
            Work::Repeat(words) | Work::Seeds(words) => vec![words],
            Work::Long(all) => all.iter().map(|(_, words)| *words).collect(),
            Work::Check(_) | Work::Command(_) => Vec::new(),
        });
        for words in words {
            let words: Vec<&str> = words.split(' ').collect();
            let after = |option: &str| words.iter().position(|word| *word == option).map(|at| words[at + 1]);
            let package = root.join("crates").join(after("-p").expect("a package"));
            match after("--lib") {
                Some(module) => {
                    let module = module.trim_end_matches("::");
                    let places = ["", "/mod"].map(|rest| package.join(format!("src/{module}{rest}.rs")));
                    assert!(places.iter().any(|place| place.is_file()), "{words:?}");
                }
                None => {
                    let program = after("--test").expect("a test program");
                    assert!(package.join(format!("tests/{program}.rs")).is_file(), "{words:?}");
                }
            }
        }
    }

    #[test]
    fn the_time_is_divided_by_weight_and_used_up() {
        let steps = steps(&[1, 2, 3]);
        let mut left = Duration::from_secs(60);
        let mut shares = Vec::new();
        for index in 0..steps.len() {
            let share = share(left, &steps[index..]);
            left -= share;
            shares.push(share.as_secs());
        }
        assert_eq!((shares, left), (vec![10, 20, 30], Duration::ZERO));
        assert_eq!(share(Duration::from_secs(60), &[]), Duration::ZERO);
        assert_eq!(share(Duration::ZERO, &steps), Duration::ZERO);
    }

    #[test]
    fn time_that_is_not_used_goes_to_the_steps_after() {
        let steps = steps(&[1, 2, 3]);
        // The first needed 5 of its 10 seconds.
        assert_eq!(share(Duration::from_secs(55), &steps[1..]), Duration::from_secs(22));
        // The second took 10 seconds more than it had.
        assert_eq!(share(Duration::from_secs(20), &steps[2..]), Duration::from_secs(20));
    }

    #[test]
    fn every_step_has_time_and_a_name_of_its_own() {
        let names: BTreeSet<&str> = STEPS.iter().map(|step| step.name).collect();
        assert_eq!(names.len(), STEPS.len());
        assert!(STEPS.iter().all(|step| step.weight > 0 && step.trial(0, 1).is_some()));
    }

    #[test]
    fn explorations_end_and_seeds_go_on() {
        let explore = Step { name: "explore", weight: 1, work: Work::Check(&["mutants"]) };
        assert!(explore.trial(0, 1).is_some_and(|trial| trial.may_be_cut && trial.words.contains(" mutants ")));
        assert_eq!(explore.trial(1, 1), None);
        assert_eq!(explore.rest(0), [explore.trial(0, 1).unwrap().shown()]);
        assert!(explore.rest(1).is_empty());
        let seeds = Step { name: "seeds", weight: 1, work: Work::Seeds("-p some --test any") };
        assert!(seeds.rest(0).is_empty());
        let shown = seeds.trial(2, 40).unwrap().shown();
        assert_eq!(shown, "TRELLIS_SEED=42 cargo test --locked -p some --test any -- --nocapture");
    }

    #[test]
    fn only_what_explores_is_told_how_far() {
        let words_of = |words: &'static [&'static str]| {
            let step = Step { name: "any", weight: 1, work: Work::Check(words) };
            step.trial(0, 1).expect("a trial").words
        };
        for words in [&["mutants"][..], &["sync --nodes 3"], &["explore --protocol all"]] {
            assert!(words_of(words).ends_with(&format!(" --states-max {STATES_MAX}")), "{words:?}");
        }
        for words in [&["swarm --protocol all"][..], &["litmus --simulated"], &["scale --nodes 2"], &["history"]] {
            assert!(words_of(words).ends_with(words[0]), "{words:?}");
        }
    }

    #[test]
    fn a_verdict_needs_more_than_an_exit_code() {
        let (good, bad) = (ExitStatus::from_raw(0), ExitStatus::from_raw(1 << 8));
        let mut trial = Trial { words: "test".to_owned(), seed: None, variable: None, may_be_cut: false };
        assert_eq!(trial.judge(good, ""), Outcome::Passed);
        assert_eq!(trial.judge(bad, ""), Outcome::Failed("it ended with exit status: 1".to_owned()));
        assert_eq!(trial.judge(bad, "9 states: too large: raise --states-max or"), Outcome::Cut);
        trial.seed = Some(4);
        assert_eq!(trial.judge(good, "ivy TRELLIS_SEED=4 nodes=2"), Outcome::Passed);
        assert!(matches!(trial.judge(good, "ivy TRELLIS_SEED=42 nodes=2"), Outcome::Failed(_)));
    }

    #[test]
    fn processes_are_found_by_their_mark_and_ended() {
        let mark = format!("test-{}", std::process::id());
        assert!(marked(&mark).is_empty());
        let mut child = Command::new("sleep").arg("600").env(MARK, &mark).spawn().unwrap();
        // Until the new program runs, its environment is this process's.
        let start = Instant::now();
        while marked(&mark).is_empty() && start.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        let found = marked(&mark);
        let ended = end(&found).and_then(|()| Ok(child.try_wait()?));
        child.kill().unwrap();
        assert_eq!(found.iter().map(|process| process.id.clone()).collect::<Vec<_>>(), [child.id().to_string()]);
        assert!(found[0].shown().starts_with("sleep 600 (process "), "{}", found[0].shown());
        assert!(ended.is_ok());
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(marked(&mark).is_empty());
    }

    #[test]
    fn only_folders_of_processes_that_are_gone_are_removed() {
        assert!(!is_left(&format!("libivy-{}", std::process::id()).into()));
        assert!(!is_left(&"some-folder".into()) && !is_left(&"folder".into()));
        assert!(is_left(&format!("some-folder-{}", u32::MAX).into()));
    }

    #[test]
    fn the_table_has_a_row_for_each_step() {
        let total =
            Total { name: "mutants", runs: 12, failures: 0, spent: Duration::from_millis(1250), cut: Vec::new() };
        let shown = closing_table(&[total]);
        assert_eq!(shown, "step     runs  failures  seconds\nmutants    12         0      1.2\n");
    }
}
