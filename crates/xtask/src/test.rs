//! `cargo xtask test`: runs every test of the workspace, and checks that only the allowed ones are skipped.
//!
//! The runners capture the output of passed tests; this task requests it and searches it for lines
//! `SKIPPED name: reason`. A skip that `tests/expected-skips.txt` does not list is a failure: a test that silently
//! does not run is worse than none. All other output of the runners is passed on unchanged. The last lines name every
//! test that failed, because readers of a log look at its end.

use std::collections::BTreeSet;
use std::io::Write;
use std::thread::available_parallelism;

use anyhow::{Context, Result, bail};

use crate::compiler;
use crate::setup;
use crate::step;
use crate::test_programs::Tests;
use crate::workspace::{Profile, Workspace};

const EXPECTED_SKIPS: &str = "tests/expected-skips.txt";

/// Runs all tests.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    build(workspace)?;
    run_tests(workspace, "run the tests", &all(at_once()))?;
    compiler::test(workspace)
}

/// Every test of the workspace.
pub(crate) fn all(at_once: usize) -> Tests<'static> {
    Tests { arguments: vec!["--workspace"], only: Vec::new(), filter: None, at_once }
}

/// How many test programs run at a time on this machine: tests mostly wait.
pub(crate) fn at_once() -> usize {
    available_parallelism().map_or(2, |count| count.get())
}

/// Builds all tests, and the programs that they start.
pub(crate) fn build(workspace: &Workspace) -> Result<()> {
    setup::ensure(setup::NEEDED)?;
    let mut build = workspace.cargo();
    build.args(["test", "--workspace", "--locked", "--no-run"]);
    step::command("build the tests", &mut build)?;
    // Tests link programs with the library beside the command; cargo does not put it there when it builds only tests.
    let mut library = workspace.cargo();
    library.args(["build", "--locked", "-p", "trellis-c", "-p", "trellis-cli"]);
    step::command("build the library beside the command", &mut library)?;
    compiler::build(workspace, Profile::Debug)
}

/// Runs tests, and compares their skips with the list.
pub(crate) fn run_tests(workspace: &Workspace, name: &str, tests: &Tests<'_>) -> Result<()> {
    let mut log = Log::default();
    let passed = step::step(name, || {
        tests.run(workspace, |runner, output| {
            // If standard output was closed, the tests must still run to their end.
            let _ = std::io::stdout().write_all(log.take(runner, output).as_bytes());
        })
    })?;
    if !log.results.is_empty() {
        println!("{}", log.summary());
    }
    let list = workspace.root.join(EXPECTED_SKIPS);
    let expected = std::fs::read_to_string(&list).with_context(|| format!("{} cannot be read", list.display()))?;
    let skips = check_skips(&log.skips, &expected);
    if !passed {
        bail!("failed:\n{}", log.failed.join("\n"));
    }
    skips
}

/// The runners' output: the skips, the closing lines, and the names of tests that failed.
#[derive(Default)]
struct Log {
    skips: Vec<(String, String)>,
    results: Vec<String>,
    failed: Vec<String>,
}

impl Log {
    /// Takes the whole output of one runner, and returns the part to be shown. The output of a test that starts
    /// itself in a separate process contains lines of a runner, so the runner's own lines are the last ones.
    fn take(&mut self, runner: &str, output: &str) -> String {
        let lines: Vec<&str> = output.split_inclusive('\n').collect();
        let skips = lines.iter().filter_map(|line| skip_of(line));
        self.skips.extend(skips.map(|(name, reason)| (name.to_owned(), reason.to_owned())));
        let last = |heading: &str| lines.iter().rposition(|line| line.trim_end() == heading);
        let names = |heading: usize| lines[heading + 1..].iter().take_while(|line| line.starts_with("    "));
        match lines.iter().rfind(|line| line.starts_with("test result: ")) {
            Some(result) => {
                self.results.push(result.trim_end().to_owned());
                if let (true, Some(heading)) = (result.contains(" FAILED"), last("failures:")) {
                    self.failed.extend(names(heading).map(|name| format!("    {runner}: {}", name.trim())));
                }
            }
            None => self.failed.push(format!("    {runner}: it did not reach its end")),
        }
        let hidden = match (lines.iter().position(|line| line.trim_end() == "successes:"), last("successes:")) {
            (Some(first), Some(heading)) => first..heading + 1 + names(heading).count(),
            _ => 0..0,
        };
        let is_shown = |(at, line): &(usize, &&str)| !hidden.contains(at) || skip_of(line).is_some();
        lines.iter().enumerate().filter(is_shown).map(|(_, line)| *line).collect()
    }

    /// One line for all runners.
    fn summary(&self) -> String {
        let sum = |word: &str| self.results.iter().filter_map(|line| count_before(line, word)).sum::<u64>();
        format!(
            "tests: {} passed, {} failed, in {} runners; {} skipped; {} roles that tests start are no tests",
            sum("passed"),
            sum("failed"),
            self.results.len(),
            self.skips.len(),
            sum("ignored")
        )
    }
}

/// The number in `… 12 passed; …`.
fn count_before(line: &str, word: &str) -> Option<u64> {
    line.split(';').find_map(|part| part.trim().strip_suffix(word)?.trim().rsplit(' ').next()?.parse().ok())
}

/// The name and the reason in `SKIPPED name: reason`.
fn skip_of(line: &str) -> Option<(&str, &str)> {
    let (name, reason) = line.trim().strip_prefix("SKIPPED ")?.split_once(": ")?;
    Some((name.trim(), reason.trim()))
}

/// Compares skips with the list of names that may be skipped; a name there may begin or end with `*`.
fn check_skips(skips: &[(String, String)], expected: &str) -> Result<()> {
    let expected: BTreeSet<&str> = expected
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split_once(": ").map_or(line, |(name, _)| name).trim())
        .collect();
    let skipped: BTreeSet<&str> = skips.iter().map(|(name, _)| name.as_str()).collect();
    let ran = expected.iter().filter(|pattern| !skipped.iter().any(|name| matches(name, pattern))).count();
    println!("of the {} lines of {EXPECTED_SKIPS}, {ran} were not needed here", expected.len());
    let is_listed = |name: &&str| expected.iter().any(|pattern| matches(name, pattern));
    let unexpected: Vec<&str> = skipped.iter().copied().filter(|name| !is_listed(name)).collect();
    if !unexpected.is_empty() {
        bail!(
            "skipped without being listed in {EXPECTED_SKIPS}: {}; make it run, or list it with the reason",
            unexpected.join(", ")
        );
    }
    Ok(())
}

fn matches(name: &str, pattern: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), _) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULT: &str = "0 ignored; 0 measured; 0 filtered out; finished in 0.00s";

    #[test]
    fn captured_output_is_hidden_but_its_skips_are_found() {
        let mut log = Log::default();
        let shown = log.take(
            "a",
            &format!(
                concat!(
                    "running 2 tests\ntest a ... ok\n\nsuccesses:\n\n---- a stdout ----\nchatter\n",
                    "running 1 test\ntest result: ok. 1 passed; 0 failed; {}\nmore chatter\n",
                    "SKIPPED a: no userfaultfd\n\n\nsuccesses:\n    a\n    b\n\n",
                    "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n",
                ),
                RESULT
            ),
        );
        assert_eq!(log.skips, [("a".to_owned(), "no userfaultfd".to_owned())]);
        assert_eq!(
            log.summary(),
            "tests: 2 passed, 0 failed, in 1 runners; 1 skipped; 1 roles that tests start are no tests"
        );
        assert!(!shown.contains("chatter") && shown.contains("SKIPPED a: "), "{shown}");
        assert_eq!(shown.matches("test result: ").count(), 1, "{shown}");
    }

    #[test]
    fn failures_are_shown_and_named() {
        let mut log = Log::default();
        let shown = log.take(
            "b",
            &format!(
                concat!(
                    "successes:\nhidden\n\nsuccesses:\n    a\n\nfailures:\n\n---- b stdout ----\npanicked\n",
                    "failures:\n    inner\n\ntest result: FAILED. 0 passed; 1 failed; {}\n",
                    "\nfailures:\n    b\n    c\n\ntest result: FAILED. 1 passed; 2 failed; {}\n",
                ),
                RESULT, RESULT
            ),
        );
        assert!(shown.starts_with("\nfailures:\n\n---- b stdout ----\npanicked\n"), "{shown}");
        assert_eq!(log.failed, ["    b: b", "    b: c"]);
        log.take("d", "running 1 test\n");
        assert_eq!(log.failed[2..], ["    d: it did not reach its end"]);
    }

    #[test]
    fn a_skip_must_be_listed() {
        let skips = [("a".to_owned(), "why".to_owned())];
        assert!(check_skips(&skips, "# a comment\na: where there is no userfaultfd\nb: elsewhere\n").is_ok());
        let error = check_skips(&skips, "b: elsewhere\n").unwrap_err().to_string();
        assert!(error.starts_with("skipped without being listed in tests/expected-skips.txt: a;"), "{error}");
        assert!(check_skips(&[], "").is_ok());
        let skips = ["one with clang", "two with clang"].map(|name| (name.to_owned(), "why".to_owned()));
        assert!(check_skips(&skips, "* with clang: where only GCC is\n").is_ok());
        assert!(check_skips(&skips, "one*: here\n").unwrap_err().to_string().contains("skips.txt: two with clang;"));
    }
}
