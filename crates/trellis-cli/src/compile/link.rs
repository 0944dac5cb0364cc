//! Linking in modes full and heap: a call of something that was not translated becomes a sentence with a place.
//!
//! Promises: whatever the linker says reaches the user, names as they stand in the program; each missing function is
//! explained once for each place. Never lets an unresolved function pass.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};

use super::arguments::Mode;
use crate::exit::{self, Failure};

/// The exit code of a compiler that ended; a signal counts as it does for a shell.
pub(super) fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(exit::FAILED)
}

/// Runs the compiler and explains what the linker did not find.
pub(super) fn run_and_explain(mut command: Command, mode: Mode) -> Result<u8, Failure> {
    let failed = |error: std::io::Error| Failure::new(exit::SYSTEM, format!("cannot run clang: {error}"));
    let mut child = command.stderr(Stdio::piped()).spawn().map_err(failed)?;
    let mut explanation = Explanation::new(mode);
    if let Some(pipe) = child.stderr.take() {
        for line in BufReader::new(pipe).split(b'\n') {
            let line = String::from_utf8_lossy(&line.map_err(failed)?).into_owned();
            explanation.see(&line);
            // Nobody may be reading; the compiler's status still counts.
            let _ = writeln!(std::io::stderr(), "{}", explanation.plain(&line));
        }
    }
    let code = code_of(child.wait().map_err(failed)?);
    for sentence in explanation.sentences() {
        eprintln!("trellis: {sentence}");
    }
    Ok(code)
}

/// What the linker missed, read from its messages (GNU ld and lld).
struct Explanation {
    mode: Mode,
    suffix: String,
    /// Of the current message: the function (GNU ld says it first) or the missing symbol (lld says it first).
    function: String,
    symbol: String,
    missing: BTreeSet<(String, String, String)>,
}

impl Explanation {
    fn new(mode: Mode) -> Explanation {
        let suffix = format!(".trellis_{}", mode.name());
        Explanation { mode, suffix, function: String::new(), symbol: String::new(), missing: BTreeSet::new() }
    }

    /// A message with names as they stand in the program.
    fn plain(&self, line: &str) -> String {
        line.replace(&format!(" [clone {}]", self.suffix), "").replace(&self.suffix, "")
    }

    fn see(&mut self, line: &str) {
        if let Some((_, rest)) = line.split_once(": in function `") {
            self.function = self.plain(rest.trim_end_matches([':', '\'']));
        } else if let Some((place, symbol)) = line.split_once(": undefined reference to `") {
            let symbol = symbol.split('\'').next().unwrap_or(symbol).to_owned();
            let (place, part) = place.trim_start_matches("/usr/bin/ld: ").split_once(":(").unwrap_or((place, ""));
            // A table of functions is in no function, whatever was named before.
            let function = if part.starts_with(".data") { String::new() } else { self.function.clone() };
            self.add(&symbol, place.trim_start_matches("/usr/bin/ld: ").to_owned(), function);
        } else if let Some((_, symbol)) = line.split_once("undefined symbol: ") {
            self.symbol = symbol.to_owned();
        } else if let Some(place) = line.strip_prefix(">>> referenced by ") {
            let place = place.split(" (").next().unwrap_or(place).to_owned();
            self.add(&self.symbol.clone(), place, String::new());
        }
    }

    fn add(&mut self, symbol: &str, place: String, function: String) {
        if symbol.contains(&self.suffix) {
            self.missing.insert((place, function, self.plain(symbol)));
        }
    }

    fn sentences(&self) -> Vec<String> {
        let mode = self.mode.name();
        let sentence = |(place, function, symbol): &(String, String, String)| {
            let within = if function.is_empty() { String::new() } else { format!(" in function `{function}`:") };
            format!(
                "{place}:{within} `{symbol}` was not compiled by trellis cc --mode {mode} and is no library function \
                 that this mode knows; compile it so, name it in a list for --assume-native if it touches no memory of \
                 the program, or use --mode line"
            )
        };
        self.missing.iter().map(sentence).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(lines: &[&str]) -> Vec<String> {
        let mut explanation = Explanation::new(Mode::Heap);
        lines.iter().for_each(|line| explanation.see(line));
        explanation.sentences()
    }

    #[test]
    fn gnu_ld_and_lld_give_the_place() {
        let gnu = explained(&[
            "/usr/bin/ld: /tmp/x-1.o: in function `main':",
            "/src/x.c:12: undefined reference to `foo.trellis_heap'",
            "/usr/bin/ld: /src/x.c:12: undefined reference to `foo.trellis_heap'",
        ]);
        assert_eq!(gnu.len(), 1, "{gnu:?}");
        assert!(gnu[0].starts_with("/src/x.c:12: in function `main`: `foo` was not compiled"), "{gnu:?}");
        let lld =
            explained(&["ld.lld: error: undefined symbol: foo.trellis_heap", ">>> referenced by x.c:3 (/src/x.c:3)"]);
        assert!(lld[0].starts_with("x.c:3: `foo` was not compiled"), "{lld:?}");
    }

    #[test]
    fn a_table_is_in_no_function() {
        let table = explained(&[
            "/usr/bin/ld: /tmp/x-1.o: in function `main':",
            "/usr/bin/ld: /tmp/x-1.o:(.data.rel+0x28): undefined reference to `foo.trellis_heap'",
        ]);
        assert!(table.len() == 1 && table[0].starts_with("/tmp/x-1.o: `foo` was not compiled"), "{table:?}");
    }

    #[test]
    fn other_missing_symbols_are_the_linkers_business() {
        assert!(explained(&["x.c:1: undefined reference to `sin'"]).is_empty());
        assert_eq!(Explanation::new(Mode::Heap).plain("`foo() [clone .trellis_heap]'"), "`foo()'");
    }
}
