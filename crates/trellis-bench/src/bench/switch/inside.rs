//! A process with its own namespaces, in which a benchmark makes labs and starts servers.
//!
//! Promises: whatever the benchmark starts ends with it, however it or the command ends: the process is the first of
//! a process namespace, and ends when the command does. Its results, or the reason why there are none, come back as
//! one line of JSON.
//!
//! It must never be started from a process that has several threads: the kernel moves only single-threaded processes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use trellis_switch::lab::space;
use trellis_switch::switches::{self, SwitchKind};

use trellis_command::exit::{self, Ending, Failure};

/// The task of such a process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// `trellis bench switch`.
    Switch(super::SwitchTask),
    /// `trellis bench remote-paging`.
    Paging(crate::bench::remote_paging::PagingTask),
    /// `trellis reproduce bluebridge`.
    Paper(crate::reproduce::bluebridge::PaperTask),
}

/// Its result.
#[derive(Debug, Serialize, Deserialize)]
enum Report {
    Found(serde_json::Value),
    Failed { code: u8, sentence: String },
}

/// The switch with this name, which this build has, and whether it is to work without root rights.
pub(crate) fn choose(name: Option<&str>, rootless: bool) -> Result<(SwitchKind, bool), Failure> {
    let rootless = rootless || !space::is_root();
    let works = |kind: &&SwitchKind| kind.is_built && (kind.is_rootless || !rootless);
    let best = || switches::KINDS.iter().find(works).map_or("user", |kind| kind.name);
    let kind = switches::kind(name.unwrap_or_else(best)).map_err(|error| failure(&error))?;
    if rootless && !kind.is_rootless {
        let names: Vec<&str> = switches::KINDS.iter().filter(|kind| kind.is_rootless).map(|kind| kind.name).collect();
        let sentence = format!("the switch {} takes root; without, give --switch {}", kind.name, names.join(" or "));
        return Err(Failure::new(exit::CONFIGURATION, sentence));
    }
    Ok((kind.built().map_err(|error| failure(&error))?, rootless))
}

/// An error of the switch or the lab, with the exit code that fits.
pub(crate) fn failure(error: &trellis_switch::SwitchError) -> Failure {
    let code = match error {
        trellis_switch::SwitchError::System { .. } => exit::SYSTEM,
        _ => exit::CONFIGURATION,
    };
    Failure::new(code, error.to_string())
}

/// Does a task in a process of its own. The caller can start no other process afterwards: the kernel has made it the
/// parent of a process namespace that has ended.
pub(crate) fn start<T: for<'a> Deserialize<'a>>(task: &Task, rootless: bool) -> Result<T, Failure> {
    let failed = |what: String| Failure::new(exit::SYSTEM, format!("cannot start the process that measures: {what}"));
    let text = serde_json::to_string(task).map_err(|error| failed(error.to_string()))?;
    space::make(rootless).map_err(|error| failure(&error))?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["bench-inside", &text]).stdin(Stdio::null()).stdout(Stdio::piped());
    space::end_with_us(&mut command);
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(|error| failed(error.to_string()))?;
    }
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    let report = serde_json::from_str(&line);
    match report.map_err(|_| failed(format!("it ended with {status} and without a word")))? {
        Report::Found(found) => serde_json::from_value(found).map_err(|error| failed(error.to_string())),
        Report::Failed { code, sentence } => Err(Failure::new(code, sentence)),
    }
}

/// Runs the hidden subcommand.
pub fn run(task: &str) -> Ending {
    let report = match found(task) {
        Ok(found) => Report::Found(found),
        Err(Failure { code, sentence }) => Report::Failed { code, sentence },
    };
    let line = serde_json::to_string(&report).map_err(exit::not_json)?;
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")
        .and_then(|()| output.flush())
        .map_err(|error| Failure::new(exit::SYSTEM, error.to_string()))?;
    Ok(exit::FINE)
}

fn found(task: &str) -> Result<serde_json::Value, Failure> {
    let task: Task = serde_json::from_str(task)
        .map_err(|error| Failure::new(exit::USAGE, format!("this is not a task for a benchmark: {error}")))?;
    let json = match task {
        Task::Switch(task) => serde_json::to_value(super::measure(&task)?),
        Task::Paging(task) => serde_json::to_value(crate::bench::remote_paging::measure(&task)?),
        Task::Paper(task) => serde_json::to_value(crate::reproduce::bluebridge::measure(&task)?),
    };
    json.map_err(exit::not_json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_that_takes_root_is_refused_without() {
        let sentence = choose(Some("bpf"), true).expect_err("it takes root").sentence;
        assert!(sentence.starts_with("the switch bpf takes root; without, give --switch "), "{sentence}");
        assert_eq!(choose(Some("user"), true).expect("it works").0.name, "user");
        assert!(choose(None, true).expect("there is one").0.is_rootless);
        assert_eq!(choose(Some("hub"), true).expect_err("there is none").code, exit::CONFIGURATION);
    }

    #[test]
    fn what_is_no_task_is_refused() {
        assert_eq!(found("{}").expect_err("no task").code, exit::USAGE);
    }
}
