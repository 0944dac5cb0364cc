//! Linking: explains calls of functions that were not compiled by `trellis cc`, and objects of another mode, each
//! with its location.
//!
//! Promises: every message of the linker reaches the user, with names as they are in the program. Each missing
//! function is explained once for each location, unless objects of another mode are the reason. It must never let an
//! unresolved function pass.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};

use super::arguments::Mode;
use trellis_command::exit::{self, Failure};
use trellis_command::terminal::whole_line;

/// The exit code of a compiler that ended; after a signal it is the shell's.
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
            whole_line(format_args!("{}", explanation.plain(&line)));
        }
    }
    // Ends with the compiler.
    let code = code_of(child.wait().map_err(failed)?);
    for sentence in explanation.sentences() {
        trellis_output::lines::complain(format_args!("{sentence}"));
    }
    Ok(code)
}

/// The prefixes of runtime functions that exist only in the word modes.
const IN_WORDS: [&str; 2] = ["__trellis_load_", "__trellis_store_"];
/// The most objects that are named in a sentence.
const NAMED_MAX: usize = 3;

/// The symbols that the linker missed, read from its messages (GNU ld and lld).
struct Explanation {
    mode: Mode,
    suffix: String,
    /// Of the current message: the object, and the function's symbol.
    object: String,
    symbol_of_function: String,
    /// Of the current message: the function (GNU ld prints it first) or the missing symbol (lld prints it first).
    function: String,
    symbol: String,
    missing: BTreeSet<(String, String, String)>,
    /// Objects that were compiled in another mode, and that mode; `None` if it is unknown.
    others: BTreeMap<String, Option<&'static str>>,
}

impl Explanation {
    fn new(mode: Mode) -> Explanation {
        let suffix = format!(".trellis_{}", mode.name());
        Explanation {
            mode,
            suffix,
            object: String::new(),
            symbol_of_function: String::new(),
            function: String::new(),
            symbol: String::new(),
            missing: BTreeSet::new(),
            others: BTreeMap::new(),
        }
    }

    /// A message with names as they are in the program.
    fn plain(&self, line: &str) -> String {
        line.replace(&format!(" [clone {}]", self.suffix), "").replace(&self.suffix, "")
    }

    fn see(&mut self, line: &str) {
        if let Some((object, rest)) = line.split_once(": in function `") {
            self.object = behind_linker(object);
            self.symbol_of_function = rest.trim_end_matches([':', '\'']).to_owned();
            self.function = self.plain(&self.symbol_of_function);
        } else if let Some((place, symbol)) = line.split_once(": undefined reference to `") {
            let symbol = symbol.split('\'').next().unwrap_or(symbol).to_owned();
            let (place, part) = place.split_once(":(").unwrap_or((place, ""));
            let place = behind_linker(place);
            // A table of functions is in no function, whatever was named before.
            let is_table = part.starts_with(".data");
            let function = if is_table { String::new() } else { self.function.clone() };
            let object = if is_table { place.clone() } else { self.object.clone() };
            let within = if is_table { String::new() } else { self.symbol_of_function.clone() };
            self.add_object(&symbol, object, &within);
            self.add(&symbol, place, function);
        } else if let Some((_, symbol)) = line.split_once("undefined symbol: ") {
            self.symbol = symbol.to_owned();
        } else if let Some(place) = line.strip_prefix(">>> referenced by ") {
            let place = place.split(" (").next().unwrap_or(place).to_owned();
            self.add(&self.symbol.clone(), place, String::new());
        } else if let Some((object, within)) = line.strip_prefix(">>> ").and_then(|line| line.split_once(":(")) {
            self.add_object(&self.symbol.clone(), object.trim().to_owned(), within);
        }
    }

    /// Detects an object of another mode by its calls, or by the function that makes them.
    fn add_object(&mut self, symbol: &str, object: String, within: &str) {
        match mode_of(symbol).or_else(|| mode_of(within)) {
            Some(mode) if mode != self.mode => {
                self.others.insert(object, Some(mode.name()));
            }
            // Only objects of the other two modes need these.
            None if self.mode == Mode::Line && IN_WORDS.iter().any(|begin| symbol.starts_with(begin)) => {
                self.others.entry(object).or_insert(None);
            }
            _ => {}
        }
    }

    fn add(&mut self, symbol: &str, place: String, function: String) {
        if symbol.contains(&self.suffix) {
            self.missing.insert((place, function, self.plain(symbol)));
        }
    }

    fn sentences(&self) -> Vec<String> {
        if !self.others.is_empty() {
            return self.of_other_modes();
        }
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

    /// One sentence for each mode.
    fn of_other_modes(&self) -> Vec<String> {
        let here = self.mode.name();
        let modes: BTreeSet<_> = self.others.values().collect();
        let sentence = |mode: &Option<&str>| {
            let objects = self.others.iter().filter(|(_, of)| *of == mode).map(|(object, _)| object.as_str());
            let objects: Vec<&str> = objects.collect();
            let mut names = objects.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
            if objects.len() > NAMED_MAX {
                names += &format!(" and {} more", objects.len() - NAMED_MAX);
            }
            let (was, it) = if objects.len() == 1 { ("was", "it") } else { ("were", "them") };
            let (compiled, link) = match mode {
                Some(mode) => (format!("with --mode {mode}"), format!("--mode {mode}")),
                None => ("in mode full or heap".to_owned(), "that mode".to_owned()),
            };
            format!(
                "{names} {was} compiled {compiled} and cannot be linked with --mode {here}; link with {link}, or compile \
                 {it} again with --mode {here}"
            )
        };
        modes.into_iter().map(sentence).collect()
    }
}

/// A location without the linker's own name, which precedes some.
fn behind_linker(place: &str) -> String {
    place.rsplit(": ").next().unwrap_or(place).to_owned()
}

/// The mode whose suffix is in this name.
fn mode_of(name: &str) -> Option<Mode> {
    [Mode::Full, Mode::Heap, Mode::Line].into_iter().find(|mode| name.contains(&format!(".trellis_{}", mode.name())))
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
    fn objects_of_another_mode_are_named_with_it() {
        let explained_in = |mode: Mode, lines: &[&str]| {
            let mut explanation = Explanation::new(mode);
            lines.iter().for_each(|line| explanation.see(line));
            explanation.sentences()
        };
        let gnu = [
            "/usr/bin/ld: a.o: in function `main':",
            "a.c:(.text+0x69): undefined reference to `other'",
            "/usr/bin/ld: lib.a(b.o): in function `other.trellis_full':",
            "/src/b.c:3: undefined reference to `__trellis_store_pointer'",
            "/usr/bin/ld: /src/b.c:3: undefined reference to `strdup.trellis_full'",
            "/usr/bin/ld: c.o:(.data.rel+0x28): undefined reference to `foo(int) [clone .trellis_full]'",
        ];
        let expected = "c.o, lib.a(b.o) were compiled with --mode full and cannot be linked with --mode line; link with \
                        --mode full, or compile them again with --mode line";
        assert_eq!(explained_in(Mode::Line, &gnu), [expected]);
        let lld = [
            "ld.lld: error: undefined symbol: free.trellis_line",
            ">>> referenced by b.c",
            ">>>               b.o:(other)",
            "ld.lld: error: undefined symbol: other.trellis_heap",
            ">>> referenced by a.c:5 (/src/a.c:5)",
            ">>>               a.o:(main)",
        ];
        let expected = "b.o was compiled with --mode line and cannot be linked with --mode heap; link with --mode line, or \
                        compile it again with --mode heap";
        assert_eq!(explained_in(Mode::Heap, &lld), [expected]);
        let words = [
            "/usr/bin/ld: a.o: in function `main':",
            "/src/a.c:3: undefined reference to `__trellis_store_pointer'",
            "/usr/bin/ld: /src/a.c:3: undefined reference to `sin'",
        ];
        let sentences = explained_in(Mode::Line, &words);
        assert!(
            sentences.len() == 1 && sentences[0].starts_with("a.o was compiled in mode full or heap"),
            "{sentences:?}"
        );
        let many: Vec<String> =
            (0..5).map(|i| format!("ld: {i}.o:(.data+0x0): undefined reference to `f.trellis_heap'")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let sentences = explained_in(Mode::Full, &many);
        assert!(sentences.len() == 1 && sentences[0].contains("2.o and 2 more were compiled"), "{sentences:?}");
    }

    #[test]
    fn other_missing_symbols_are_the_linkers_business() {
        assert!(explained(&["x.c:1: undefined reference to `sin'"]).is_empty());
        assert_eq!(Explanation::new(Mode::Heap).plain("`foo() [clone .trellis_heap]'"), "`foo()'");
    }
}
