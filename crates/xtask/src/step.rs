//! Steps that report on standard error what they do and how long they took.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Runs a step: prints its name before and its time after, and puts its name in front of its error.
pub(crate) fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("==> {name}");
    let start = Instant::now();
    let outcome = work().with_context(|| name.to_owned());
    let verdict = if outcome.is_ok() { "done" } else { "FAILED" };
    eprintln!("    {verdict}: {name} ({})", seconds(start.elapsed()));
    outcome
}

/// Runs a command as a step; it inherits this process's output.
pub(crate) fn command(name: &str, command: &mut Command) -> Result<()> {
    step(name, || run(command))
}

/// Runs a command; an exit code other than 0 is an error that repeats the command.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs a command and returns what it wrote to standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !output.status.success() {
        bail!("`{}` ended with {}", shown(command), output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{}` wrote something else than text", shown(command)))
}

/// A command as a user would type it, for an error.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// A duration for people.
pub(crate) fn seconds(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{} min {} s", duration.as_secs() / 60, duration.as_secs() % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_repeated_in_its_error() {
        let error = run(Command::new("false").arg("--really")).unwrap_err().to_string();
        assert!(error.starts_with("`false --really` ended with"), "{error}");
        let error = run(&mut Command::new("no-such-program-anywhere")).unwrap_err().to_string();
        assert_eq!(error, "cannot start `no-such-program-anywhere`");
        let error = step("the name", || run(&mut Command::new("false"))).unwrap_err();
        assert!(format!("{error:#}").starts_with("the name: `false` ended with"), "{error:#}");
    }

    #[test]
    fn output_is_returned() {
        assert_eq!(output(Command::new("echo").arg("one word")).unwrap(), "one word\n");
    }
}
