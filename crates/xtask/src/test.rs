//! `cargo xtask test`: runs every test of the workspace, and checks that only the allowed ones are skipped.
//!
//! The runners capture the output of passed tests; this task requests it and searches it for lines
//! `SKIPPED name (need): reason`. A need that `tests/expected-skips.txt` does not list is a failure, and so is root
//! where root runs the tests: a test that silently does not run is worse than none. All other output of the runners is passed
//! on unchanged. The last lines name every test that failed, because readers of a log look at its end.

use std::collections::{BTreeMap, BTreeSet};
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
    // The suite of the pass is one long program.
    std::thread::scope(|scope| {
        let pass = scope.spawn(|| compiler::test(workspace));
        let tests = run_tests(workspace, "run the tests", &all(at_once()));
        let pass = pass.join().unwrap_or_else(|_| bail!("the tests of the compiler pass stopped"));
        tests.and(pass)
    })
}

/// Every test of the workspace.
pub(crate) fn all(at_once: usize) -> Tests<'static> {
    Tests { arguments: vec!["--workspace"], only: Vec::new(), filter: None, at_once }
}

/// How many test programs run at a time on this machine: two for each processor, because many tests wait.
pub(crate) fn at_once() -> usize {
    available_parallelism().map_or(4, |count| 2 * count.get())
}

/// Builds all tests, and the programs that they start.
pub(crate) fn build(workspace: &Workspace) -> Result<()> {
    setup::ensure(setup::NEEDED)?;
    let mut build = workspace.cargo();
    build.args(["test", "--workspace", "--locked", "--no-run"]);
    step::command("build the tests", &mut build)?;
    // Tests use the libraries beside the command; cargo does not put them there when it builds only tests, and older ones
    // would be used.
    workspace.build(Profile::Debug)?;
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
    let skips = check_skips(&log.skips, &expected, setup::is_root()?);
    if !passed {
        bail!("failed:\n{}", log.failed.join("\n"));
    }
    skips
}

/// The runners' output: the skips, the closing lines, and the names of tests that failed.
#[derive(Default)]
struct Log {
    skips: Vec<Skip>,
    results: Vec<String>,
    failed: Vec<String>,
}

impl Log {
    /// Takes the whole output of one runner, and returns the part to be shown. The output of a test that starts
    /// itself in a separate process contains lines of a runner, so the runner's own lines are the last ones.
    fn take(&mut self, runner: &str, output: &str) -> String {
        let lines: Vec<&str> = output.split_inclusive('\n').collect();
        self.skips.extend(lines.iter().filter_map(|line| skip_of(line)));
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

/// A test that was skipped, and what it lacked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Skip {
    name: String,
    need: String,
}

/// What `SKIPPED name (need): reason` says; the need is empty in a line of another form.
fn skip_of(line: &str) -> Option<Skip> {
    let (test, _) = line.trim().strip_prefix("SKIPPED ")?.split_once(": ")?;
    let (name, need) = test.strip_suffix(')').and_then(|test| test.rsplit_once(" (")).unwrap_or((test, ""));
    Some(Skip { name: name.trim().to_owned(), need: need.to_owned() })
}

/// Compares what skipped tests lacked with the list of what may be lacking.
fn check_skips(skips: &[Skip], expected: &str, is_root: bool) -> Result<()> {
    let lines = expected.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let expected: BTreeSet<&str> = lines.filter_map(|line| Some(line.split_once(": ")?.0)).collect();
    let mut tests: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for Skip { name, need } in skips {
        tests.entry(need).or_default().insert(name);
    }
    for (need, names) in &tests {
        println!("skipped for lack of {need}: {} tests", names.len());
    }
    let listed = |need: &str| tests[need].iter().copied().collect::<Vec<_>>().join(", ");
    if let Some(need) = tests.keys().find(|need| !expected.contains(*need)) {
        bail!("{EXPECTED_SKIPS} lists no need `{need}`, for which these were skipped: {}", listed(need));
    }
    if is_root && tests.contains_key("root") {
        bail!("skipped for lack of root, which runs the tests: {}", listed("root"));
    }
    Ok(())
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
                    "SKIPPED a (kernel): no userfaultfd\n\n\nsuccesses:\n    a\n    b\n\n",
                    "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n",
                ),
                RESULT
            ),
        );
        assert_eq!(log.skips, [skip("a", "kernel")]);
        assert_eq!(
            log.summary(),
            "tests: 2 passed, 0 failed, in 1 runners; 1 skipped; 1 roles that tests start are no tests"
        );
        assert!(!shown.contains("chatter") && shown.contains("SKIPPED a (kernel): "), "{shown}");
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

    fn skip(name: &str, need: &str) -> Skip {
        Skip { name: name.to_owned(), need: need.to_owned() }
    }

    #[test]
    fn what_a_skipped_test_lacks_must_be_listed() {
        let expected = "# a comment\nkernel: where there is no userfaultfd\nroot: where the tests do not run as root\n";
        assert_eq!(skip_of("SKIPPED a with b (kernel): c: d"), Some(skip("a with b", "kernel")));
        assert!(check_skips(&[skip("a", "kernel"), skip("b", "root")], expected, false).is_ok());
        assert!(check_skips(&[], "", true).is_ok());
        let error = check_skips(&[skip("a", "wings")], expected, false).unwrap_err().to_string();
        assert!(error.contains("lists no need `wings`, for which these were skipped: a"), "{error}");
        let error = check_skips(&[skip("b", "root")], expected, true).unwrap_err().to_string();
        assert!(error.contains("skipped for lack of root, which runs the tests: b"), "{error}");
        let without = skip_of("SKIPPED a: why").unwrap();
        assert!(check_skips(&[without], expected, false).is_err(), "a skip says what it lacks");
    }

    #[test]
    fn every_need_is_listed() {
        let list = std::fs::read_to_string(Workspace::find().unwrap().root.join(EXPECTED_SKIPS)).unwrap();
        for need in ["root", "namespaces", "kernel", "program", "part", "registry", "machine"] {
            assert!(check_skips(&[skip("a", need)], &list, false).is_ok(), "{need}");
        }
    }
}
