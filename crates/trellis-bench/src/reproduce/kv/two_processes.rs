//! The producer and the consumer of table 6.1 as two processes of one region, with the store's own semaphores.
//!
//! Promises: the region has a name that only this run uses and is removed from the store afterwards. If one process
//! fails, the other one is ended, too. The time is that of the slower side; the calls are those of the side that
//! makes more.

use std::io::Read;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::programs::{Mode, Place, Programs, RUN_MAX, Source, printed, sentence};
use super::servers::{Folder, Kind, Process};
use super::table::{Said, said};
use trellis_command::exit::{self, Failure};

pub(super) const SOURCE: Source = Source { name: "two_processes.c", text: include_str!("two_processes.c") };

/// Whether two processes can open a store of this kind.
pub(super) fn is_possible(kind: Kind, mode: Mode) -> bool {
    !matches!(kind, Kind::Embedded | Kind::EmbeddedDurable) && matches!(mode, Mode::Line | Mode::Page)
}

/// One of the two processes.
struct Side {
    process: Process,
    stdout: ChildStdout,
    name: &'static str,
    folder: Folder,
}

impl Side {
    fn start(mut command: Command, name: &'static str) -> Result<Side, Failure> {
        let folder = Folder::new()?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(folder.log()?);
        let failed = |why: String| Failure::new(exit::FAILED, format!("the {name} cannot be started: {why}"));
        let mut process = Process(command.spawn().map_err(|error| failed(error.to_string()))?);
        let stdout = process.0.stdout.take().ok_or_else(|| failed("it has no output".to_owned()))?;
        Ok(Side { process, stdout, name, folder })
    }

    /// Whether it has ended; an error if it failed.
    fn has_ended(&mut self) -> Result<bool, Failure> {
        match self.process.0.try_wait() {
            Ok(Some(status)) if status.success() => Ok(true),
            Ok(None) => Ok(false),
            Ok(Some(status)) => Err(self.failure(&status.to_string())),
            Err(error) => Err(self.failure(&error.to_string())),
        }
    }

    fn failure(&self, otherwise: &str) -> Failure {
        Failure::new(exit::FAILED, format!("the {}: {}", self.name, sentence(&self.folder.said(), otherwise)))
    }

    fn result(mut self) -> Result<Said, Failure> {
        let mut text = String::new();
        let read = self.stdout.read_to_string(&mut text);
        read.map_err(|error| self.failure(&error.to_string()))?;
        said(&text)
    }
}

/// Runs the given number of repetitions.
pub(super) fn run(
    programs: &Programs,
    (program, mode): (&Path, Mode),
    place: &Place,
    repetitions: u32,
) -> Result<Said, Failure> {
    let region = format!("trellis-reproduce-{}", std::process::id());
    let command = |role: &str| {
        let mut command = programs.command(program, mode, place);
        command.env("TRELLIS_STORE_REGION", &region).arg(role);
        command
    };
    let found = both(command, repetitions);
    // The region is removed also after a failure, whose sentence then matters more.
    let removed =
        printed(&mut programs.trellis(&["store", "rm", &region, "--force", "--store", place.url]), "store rm", "");
    let found = found?;
    removed.map(|_| found)
}

fn both(command: impl Fn(&str) -> Command, repetitions: u32) -> Result<Said, Failure> {
    let start = |role: &'static str| {
        let mut command = command(role);
        command.arg(repetitions.to_string());
        Side::start(command, role)
    };
    let (mut producer, mut consumer) = (start("producer")?, start("consumer")?);
    // A process without its partner would wait for an hour.
    let deadline = Instant::now() + RUN_MAX;
    while !(producer.has_ended()? & consumer.has_ended()?) {
        if Instant::now() > deadline {
            return Err(producer.failure(&format!("both did not end within {} s", RUN_MAX.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(slower(producer.result()?, consumer.result()?))
}

fn slower(one: Said, other: Said) -> Said {
    Said {
        repetitions: one.repetitions.min(other.repetitions),
        microseconds: one.microseconds.max(other.microseconds),
        calls: one.calls.max(other.calls),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &'static str) -> impl Fn(&str) -> Command {
        move |role| {
            let mut command = Command::new("sh");
            command.args(["-c", script, role]);
            command
        }
    }

    #[test]
    fn the_slower_side_counts() {
        let script = "[ $0 = producer ] && calls=99 || calls=100; \
                      echo \"{\\\"repetitions\\\":2,\\\"microseconds\\\":$calls.5,\\\"calls\\\":$calls}\"";
        let found = both(shell(script), 2).expect("both are fine");
        assert_eq!(found, Said { repetitions: 2, microseconds: 100.5, calls: Some(100) });
    }

    #[test]
    fn a_side_that_fails_ends_the_other() {
        let script = "[ $0 = producer ] && exec sleep 1000; echo trellis: the store is gone >&2; exit 70";
        let failed = both(shell(script), 1).expect_err("the consumer fails");
        assert_eq!(failed.sentence, "the consumer: the store is gone");
        let silent = both(shell("[ $0 = consumer ] && exec sleep 1000; exit 3"), 1).expect_err("the producer fails");
        assert_eq!(silent.sentence, "the producer: exit status: 3");
    }

    #[test]
    fn a_store_of_one_process_has_no_second_one() {
        assert!(is_possible(Kind::Redis, Mode::Line) && is_possible(Kind::Etcd, Mode::Page));
        assert!(!is_possible(Kind::EmbeddedDurable, Mode::Page) && !is_possible(Kind::Redis, Mode::Heap));
    }
}
