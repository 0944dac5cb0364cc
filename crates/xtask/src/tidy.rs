//! The house rules that no other tool checks, over every file of the repository.
//!
//! A rule is a function from a file to messages `file:line: what is wrong; what to do`. It must never change a file.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// The maximum length of a source file; longer ones contain more than one subject.
const LINES_MAX: usize = 800;
/// The first page that people see, and its maximum number of lines.
const FIRST_PAGE: (&str, usize) = ("README.md", 130);

/// The maximum width of a line of C and C++, like `max_width` in rustfmt.toml for Rust.
const COLUMNS_MAX: usize = 120;

/// Folders whose files are not checked: built, fetched or measured.
const FOREIGN_FOLDERS: [&str; 4] = ["target", ".git", "benchmarks/runs", "node_modules"];

/// The files that may contain `unsafe`. An addition to the list needs a reviewer; a file without `unsafe` must be
/// removed from it.
const UNSAFE_FILES: &str = include_str!("../assets/unsafe-files.txt");

/// The page of the documentation that links to all others.
const INDEX: &str = "docs/README.md";

/// Folders whose waits users of a product never meet: tests, measurements, tasks.
const WITHOUT_WAITS: [&str; 6] =
    ["/tests", "/bench/", "/reproduce/", "crates/trellis-check/", "crates/xtask/", "/model.rs"];
/// How the limit of a wait is called, as a time and as a number, and pauses after which something is repeated.
const TIMES: [&str; 8] = ["TIMEOUT", "_TIME", "DEADLINE", "DEAD_AFTER", "_FOR", "GRACE", "LEASE", "_WITHIN"];
const NUMBERS: [&str; 4] = ["_MS_MAX", "_NS_MAX", "_WITHIN", "TIMEOUT_NS"];
const PAUSES: [&str; 6] =
    ["AGAIN_NS_MAX", "ATTEMPT_NS_MAX", "FULL_FOR", "HEARTBEAT_NS_MAX", "OVERTAKEN_NS_MAX", "RESEND_NS_MAX"];

/// Calls that wait without a limit, by what their line contains. A comment above must say what ends the wait.
const UNLIMITED: [&[&str]; 11] = [
    &[".recv()"],
    &[".join()"],
    &["thread::park()"],
    &[".wait(", ".unwrap_or_else(PoisonError::into_inner)"],
    &["libc::poll(", ", -1)"],
    &["libc::waitpid(", ", 0)"],
    &["child.wait()"],
    &[".wait()", "map_err"],
    &["epoll::wait(", ", None)"],
    &["libc::sigwait("],
    &["libc::sigwaitinfo("],
];
/// So far above such a call its comment begins at most.
const COMMENT_LINES_MAX: usize = 4;

/// The texts of links to what shows that an invariant holds.
const PROOFS: [&str; 6] = ["asserted", "counted", "explored", "linked", "simulated", "tested"];

/// The page that gives each concept its word, and the heading above the retired words.
const GLOSSARY: &str = "docs/reference/glossary.md";
const RETIRED: &str = "## Retired names";

/// Words that promise later work. Assembled, so that this file does not contain them.
const UNFINISHED: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
];
/// The only reason for which something may be ignored: it is not a test. Assembled likewise.
const IGNORED: &str = concat!("#[igno", "re");
const ROLE: &str = concat!("#[igno", "re = \"a role that tests start\"]");

/// One file of the repository.
struct File {
    /// Its path from the root, with slashes.
    path: String,
    text: String,
}

/// Checks every file; all violations are listed.
pub(crate) fn check(root: &Path) -> Result<()> {
    let files = read_all(root)?;
    let mut wrong: Vec<String> = files.iter().flat_map(|file| violations(file, root)).collect();
    wrong.extend(unsafe_violations(&files, UNSAFE_FILES));
    wrong.extend(index_violations(&files));
    wrong.extend(wait_violations(&files));
    wrong.extend(module_violations(&files));
    wrong.extend(name_violations(&files));
    eprintln!("    {} files", files.len());
    if !wrong.is_empty() {
        bail!("{} violations\n{}", wrong.len(), wrong.join("\n"));
    }
    Ok(())
}

/// Modules with a folder whose own file is beside it: the only allowed layout is `mod.rs` in the folder.
fn module_violations(files: &[File]) -> Vec<String> {
    let is_source = |file: &&File| file.path.contains("/src/") && file.path.ends_with(".rs");
    let folders: BTreeSet<&str> =
        files.iter().filter(is_source).filter_map(|file| Some(file.path.rsplit_once('/')?.0)).collect();
    let beside = files.iter().filter(is_source).filter_map(|file| {
        let folder = file.path.strip_suffix(".rs")?;
        folders.contains(folder).then(|| format!("{}: belongs into its folder, as {folder}/mod.rs", file.path))
    });
    beside.collect()
}

/// Identifiers that contain a word that the glossary has retired.
fn name_violations(files: &[File]) -> Vec<String> {
    let glossary = files.iter().find(|file| file.path == GLOSSARY).map_or("", |file| &file.text);
    let Some((_, table)) = glossary.split_once(RETIRED) else {
        return vec![format!("{GLOSSARY}: has no heading `{RETIRED}`; the names below it are checked")];
    };
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    let retired: Vec<(&str, &str)> = rows.filter(|(word, _)| *word != "retired").collect();
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs") && !file.path.starts_with("crates/xtask/")) {
        for (number, line) in numbered(&file.text) {
            let code = line.split("//").next().unwrap_or("");
            for (word, term) in retired.iter().filter(|(word, _)| has_part(code, word)) {
                wrong.push(format!("{}:{number}: `{word}` is retired; the term is {term} ({GLOSSARY})", file.path));
            }
        }
    }
    wrong
}

/// Whether an identifier of the line has `word` as one of its words: `word`, `a_word`, `WordOf`, `WORDS`.
fn has_part(line: &str, word: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    lower.match_indices(word).any(|(start, _)| {
        let (before, after) = (line[..start].chars().next_back(), line[start + word.len()..].chars().next());
        let begins_here = line[start..].starts_with(char::is_uppercase);
        let is_begin = before.is_none_or(|c| !c.is_alphanumeric() || begins_here && c.is_lowercase());
        let is_end = after.is_none_or(|c| !c.is_ascii_lowercase() || c == 's');
        is_begin && is_end
    })
}

/// Limits of waits that are no `Deadline`, so that the documentation lacks them, and tests of limits that do not exist.
fn wait_violations(files: &[File]) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with("crates/") && file.path.contains("/src/")) {
        if !file.path.ends_with(".rs") || WITHOUT_WAITS.iter().any(|folder| file.path.contains(folder)) {
            continue;
        }
        for number in unlimited_waits(&file.text).filter(|_| !file.path.ends_with("tests.rs")) {
            let what = "this wait has no limit; say in a comment above what ends it (`Ends when …`)";
            wrong.push(format!("{}:{number}: {what}", file.path));
        }
        for (number, line) in numbered(&file.text) {
            if let Some(name) = limit_of_a_wait(line) {
                wrong.push(format!("{}:{number}: {name} is the limit of a wait; make it a `Deadline`", file.path));
            }
            let tested = line.trim().strip_prefix("tested: \"").and_then(|tested| tested.strip_suffix("\","));
            let test = tested.filter(|tested| tested.starts_with("crates/")).map(|tested| tested.split_once(' '));
            let is_there =
                |(path, name): (&str, &str)| files.iter().any(|file| file.path == path && has_test(&file.text, name));
            if test.is_some_and(|test| !test.is_some_and(is_there)) {
                wrong.push(format!("{}:{number}: there is no such test; name one as `PATH NAME`", file.path));
            }
        }
    }
    wrong
}

/// The name in `const …TIMEOUT: Duration = Duration::from_secs(20);`, or in `const …_MS_MAX: u64 = 20_000;`.
fn limit_of_a_wait(line: &str) -> Option<&str> {
    let (head, value) = line.split_once(": ").filter(|(head, _)| head.contains("const "))?;
    let name = head.rsplit_once("const ")?.1;
    let (_, value) = value.split_once(" = ")?;
    let is_limit = value.starts_with("Duration::from_") && ends_with_any(name, &TIMES)
        || value.starts_with(|digit: char| digit.is_ascii_digit()) && ends_with_any(name, &NUMBERS);
    (is_limit && !PAUSES.contains(&name)).then_some(name)
}

/// The numbers of lines before the tests of a file that wait without a limit, and without a comment about their end.
fn unlimited_waits(text: &str) -> impl Iterator<Item = usize> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_tests = |at: &[&str]| at[0] == "#[cfg(test)]" && at[1].starts_with("mod ") && at[1].ends_with('{');
    let end = lines.windows(2).position(is_tests).unwrap_or(lines.len());
    let lines = &lines[..end];
    let waits = |line: &str| {
        !line.starts_with("//") && UNLIMITED.iter().any(|parts| parts.iter().all(|part| line.contains(part)))
    };
    let is_explained = |before: &[&str]| {
        let comments = before.iter().rev().take(COMMENT_LINES_MAX).filter(|line| line.starts_with("//"));
        comments
            .flat_map(|line| line.split_whitespace())
            .any(|word| word.trim_matches(|c: char| !c.is_alphabetic()).eq_ignore_ascii_case("ends"))
    };
    let found: Vec<usize> =
        (0..lines.len()).filter(|&at| waits(lines[at]) && !is_explained(&lines[..at])).map(|at| at + 1).collect();
    found.into_iter()
}

/// Whether a file has a test with this name.
fn has_test(text: &str, name: &str) -> bool {
    let head = format!("fn {name}(");
    let mut lines = text.lines().map(str::trim);
    let mut is_test = false;
    lines.any(|line| {
        let is_it = is_test && line.starts_with(&head);
        is_test = line == "#[test]" || is_test && line.starts_with("#[");
        is_it
    })
}

fn read_all(root: &Path) -> Result<Vec<File>> {
    let mut folders = vec![root.to_path_buf()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("{} cannot be read", folder.display()))? {
            let path = entry?.path();
            let relative = relative(&path, root);
            if FOREIGN_FOLDERS.contains(&relative.as_str()) || path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if is_text(&relative) {
                let text = std::fs::read_to_string(&path).with_context(|| format!("{relative} is not UTF-8 text"))?;
                files.push(File { path: relative, text });
            }
        }
    }
    files.sort_by(|left, right| left.path.cmp(&right.path));
    Ok(files)
}

fn relative(path: &Path, root: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/")
}

fn ends_with_any(path: &str, endings: &[&str]) -> bool {
    endings.iter().any(|ending| path.ends_with(ending))
}

fn is_source(path: &str) -> bool {
    ends_with_any(path, &[".rs", ".c", ".cc", ".cpp", ".h", ".hh", ".hpp", ".sh", ".cmake", ".py"])
}

/// C and C++, and what m4 expands to C; Rust has rustfmt.
fn is_c(path: &str) -> bool {
    ends_with_any(path, &[".c", ".cc", ".cpp", ".h", ".hh", ".hpp", ".c.in"])
}

fn is_text(path: &str) -> bool {
    is_source(path) || ends_with_any(path, &[".md", ".toml", ".txt", ".json", ".in", ".ci/run"])
}

fn violations(file: &File, root: &Path) -> Vec<String> {
    let mut wrong = Vec::new();
    if file.path == FIRST_PAGE.0 {
        length_violations(file, FIRST_PAGE.1, &mut wrong);
    }
    if is_source(&file.path) {
        length_violations(file, LINES_MAX, &mut wrong);
        unfinished_violations(file, &mut wrong);
    }
    if is_c(&file.path) {
        width_violations(file, &mut wrong);
    }
    if file.path.ends_with(".rs") && !file.text.starts_with("//!") {
        wrong.push(format!("{}:1: the file does not say what it promises; open it with `//!`", file.path));
    }
    if file.path.ends_with("Cargo.toml") && file.path.starts_with("crates/") {
        manifest_violations(file, &mut wrong);
    }
    if file.path.ends_with(".md") {
        link_violations(file, root, &mut wrong);
        table_violations(file, &mut wrong);
    }
    if file.path == "ARCHITECTURE.md" {
        invariant_violations(file, &mut wrong);
    }
    space_violations(file, &mut wrong);
    wrong
}

/// A blank line ends a table; rows behind it are shown as text.
fn table_violations(file: &File, wrong: &mut Vec<String>) {
    let lines: Vec<(usize, &str)> = numbered(&file.text).collect();
    let is_row = |place: usize| lines.get(place).is_some_and(|(_, line)| line.starts_with('|'));
    let is_rule = |place: usize| lines.get(place).is_some_and(|(_, line)| line.starts_with("|-"));
    for (place, (number, line)) in lines.iter().enumerate().skip(1) {
        if line.is_empty() && is_row(place - 1) && is_row(place + 1) && !is_rule(place + 2) {
            wrong.push(format!("{}:{number}: a blank line splits a table; leave it out", file.path));
        }
    }
}

/// An invariant needs an assertion or a test.
fn invariant_violations(file: &File, wrong: &mut Vec<String>) {
    let section = |line: &&(usize, &str)| !line.1.starts_with("## ");
    let lines: Vec<(usize, &str)> = numbered(&file.text).collect();
    let Some(begin) = lines.iter().position(|(_, line)| *line == "## Invariants") else { return };
    let mut items: Vec<(usize, String)> = Vec::new();
    for (number, line) in lines[begin + 1..].iter().take_while(section) {
        match items.last_mut() {
            _ if line.starts_with("- ") => items.push((*number, (*line).to_owned())),
            Some((_, item)) if line.starts_with("  ") => item.push_str(line),
            _ => {}
        }
    }
    let is_shown = |item: &str| PROOFS.iter().any(|proof| item.contains(&format!("[{proof}](")));
    for (number, item) in items.iter().filter(|(_, item)| !is_shown(item)) {
        let begins = item.chars().take(40).collect::<String>();
        wrong.push(format!(
            "{}:{number}: nothing is linked that asserts or tests `{begins}…`; link it as one of {}, or strike the item out",
            file.path,
            PROOFS.join(", ")
        ));
    }
}

fn length_violations(file: &File, lines_max: usize, wrong: &mut Vec<String>) {
    let lines = file.text.lines().count();
    if lines > lines_max {
        wrong.push(format!("{}: {lines} lines are more than {lines_max}; divide it by subject", file.path));
    }
}

fn width_violations(file: &File, wrong: &mut Vec<String>) {
    for (number, line) in numbered(&file.text) {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            wrong
                .push(format!("{}:{number}: {columns} columns are more than {COLUMNS_MAX}; break the line", file.path));
        }
    }
}

fn unfinished_violations(file: &File, wrong: &mut Vec<String>) {
    for (number, line) in numbered(&file.text) {
        for mark in UNFINISHED.iter().filter(|mark| has_word(line, mark)) {
            wrong.push(format!("{}:{number}: `{mark}` is work for later; finish it or leave it out", file.path));
        }
        if line.contains(IGNORED) && line.trim() != ROLE {
            wrong.push(format!("{}:{number}: a test is ignored; only what is none may be, with `{ROLE}`", file.path));
        }
    }
}

/// Whether the line contains the word as a separate word; `mkstemp` requires a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let is_letter = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
    line.match_indices(word).any(|(at, _)| {
        !is_letter(line[..at].chars().next_back())
            && (word.ends_with('(') || !is_letter(line[at + word.len()..].chars().next()))
    })
}

fn manifest_violations(file: &File, wrong: &mut Vec<String>) {
    for needed in
        ["license.workspace = true", "rust-version.workspace = true", "[lints]\nworkspace = true", "description = "]
    {
        if !file.text.contains(needed) {
            wrong.push(format!("{}: `{}` is missing", file.path, needed.replace('\n', " ")));
        }
    }
}

/// A relative link must lead to a file.
fn link_violations(file: &File, root: &Path, wrong: &mut Vec<String>) {
    let folder = root.join(&file.path).parent().map(Path::to_path_buf).unwrap_or_default();
    for (number, target) in links(&file.text) {
        let path = target.split('#').next().unwrap_or_default();
        let leads_away = path.is_empty() || path.contains("://") || path.starts_with("mailto:");
        if !leads_away && !folder.join(path).exists() {
            wrong.push(format!("{}:{number}: the link to {target} leads nowhere", file.path));
        }
    }
}

/// The targets of `[text](target)` outside of code blocks.
pub(crate) fn links(text: &str) -> Vec<(usize, &str)> {
    let mut inside_block = false;
    let mut found = Vec::new();
    for (number, line) in numbered(text) {
        if line.trim_start().starts_with("```") {
            inside_block = !inside_block;
        }
        if inside_block {
            continue;
        }
        // Every second part is between backticks.
        for prose in line.split('`').step_by(2) {
            let targets = prose.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
            found.extend(targets.map(|target| (number, target)));
        }
    }
    found
}

/// The index of the documentation must lead to every page.
fn index_violations(files: &[File]) -> Vec<String> {
    let Some(index) = files.iter().find(|file| file.path == INDEX) else {
        return vec![format!("{INDEX}: the index of the documentation is missing")];
    };
    let linked: BTreeSet<String> = links(&index.text)
        .iter()
        .filter_map(|(_, target)| target.split('#').next())
        .map(|to| format!("docs/{to}"))
        .collect();
    let pages = files.iter().filter(|file| file.path.starts_with("docs/") && file.path.ends_with(".md"));
    let missing = pages.filter(|page| page.path != INDEX && !linked.contains(&page.path));
    missing.map(|page| format!("{}: no line of {INDEX} leads to this page; add one", page.path)).collect()
}

fn space_violations(file: &File, wrong: &mut Vec<String>) {
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        wrong.push(format!("{}: the last line has no end; add a newline", file.path));
    }
    for (number, line) in numbered(&file.text) {
        if line.ends_with([' ', '\t', '\r']) {
            wrong.push(format!("{}:{number}: the line ends with a space; remove it", file.path));
        }
    }
}

/// `unsafe` only in listed files, every listed file with a reason, and no file listed without need.
fn unsafe_violations(files: &[File], list: &str) -> Vec<String> {
    let listed: BTreeSet<&str> =
        list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        let Some(number) = first_unsafe(&file.text) else { continue };
        used.insert(file.path.as_str());
        if !listed.contains(file.path.as_str()) {
            wrong.push(format!(
                "{}:{number}: unsafe code in a file that is not in crates/xtask/assets/unsafe-files.txt; move it into one \
                 of them, or add the file",
                file.path
            ));
        }
        if !file.text.contains("SAFETY:") {
            wrong.push(format!("{}:{number}: unsafe code without a SAFETY comment; say why it is sound", file.path));
        }
    }
    for path in listed.difference(&used) {
        wrong.push(format!(
            "crates/xtask/assets/unsafe-files.txt: {path} contains no unsafe code (any more); remove the line"
        ));
    }
    wrong
}

/// The first line with unsafe code: the word outside comments, strings and attributes, before something that it
/// opens.
fn first_unsafe(text: &str) -> Option<usize> {
    const OPENED: [&str; 5] = ["{", "impl", "fn", "extern", "trait"];
    numbered(text)
        .map(|(number, line)| (number, line.split("//").next().unwrap_or_default()))
        .find(|(_, code)| {
            code.match_indices("unsafe").any(|(at, word)| {
                let before = code[..at].chars().next_back();
                let after = code[at + word.len()..].trim_start();
                let begins_a_word =
                    before.is_none_or(|letter| !letter.is_alphanumeric() && !matches!(letter, '_' | '"' | '`'));
                begins_a_word && (after.is_empty() || OPENED.iter().any(|opened| after.starts_with(opened)))
            })
        })
        .map(|(number, _)| number)
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split_terminator('\n').enumerate().map(|(index, line)| (index + 1, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn retired_names_are_words_of_identifiers() {
        let glossary =
            file(GLOSSARY, "## Retired names\n\n| retired | term |\n|---|---|\n| bell | wake-up descriptor |\n");
        let code =
            "let bells = Bell::new();\nlet bellow = campbell; // a bell\nconst RING_BELL: u8 = 1;\nfn ring_bell() {}\n";
        let wrong = name_violations(&[glossary, file("a.rs", code)]);
        let lines: Vec<&str> = wrong.iter().map(|sentence| sentence.split(": ").next().unwrap_or("")).collect();
        assert_eq!(lines, ["a.rs:1", "a.rs:3", "a.rs:4"], "{wrong:?}");
        assert!(name_violations(&[]).join("").contains("no heading"));
    }

    fn sentences(path: &str, text: &str) -> String {
        violations(&file(path, text), Path::new(env!("CARGO_MANIFEST_DIR"))).join("\n")
    }

    #[test]
    fn a_good_file_has_no_violation() {
        assert_eq!(sentences("src/a.rs", "//! Adds.\nfn add() {}\n"), "");
        assert_eq!(sentences("a.md", "See [the manifest](Cargo.toml#x), [us](https://x.org), `[no](link)`.\n"), "");
    }

    #[test]
    fn a_table_is_whole_and_an_invariant_has_a_link() {
        let table = "| a | b |\n|---|---|\n| 1 | 2 |\n";
        assert_eq!(sentences("a.md", &format!("{table}\n{table}")), "", "two tables");
        assert!(sentences("a.md", &format!("{table}\n| 3 | 4 |\n")).contains("a.md:4: a blank line splits a table"));
        let page = |item: &str| format!("# A\n\n## Invariants\n\n- **One.** It is\n  so{item}.\n\n## B\n\n- other\n");
        assert_eq!(sentences("ARCHITECTURE.md", &page(" ([tested](Cargo.toml))")), "");
        for nothing in ["", " ([here](Cargo.toml))"] {
            assert!(sentences("ARCHITECTURE.md", &page(nothing)).contains("ARCHITECTURE.md:5: nothing is linked"));
        }
    }

    #[test]
    fn each_rule_finds_its_violation() {
        assert!(sentences("a.rs", "fn add() {}\n").contains("a.rs:1: the file does not say what it promises"));
        assert!(sentences("a.rs", &format!("//! A.\n{}", "\n".repeat(800))).contains("801 lines are more than 800"));
        for path in ["a.h", "a.hpp", "a.hh", "a.c", "a.cc", "a.cpp", "a.c.in"] {
            let of = |columns: usize| sentences(path, &format!("// {}\n", "µ".repeat(columns - 3)));
            assert!(of(121).contains(":1: 121 columns are more than 120; break the line"), "{path}");
            assert_eq!(of(120), "", "{path}");
        }
        assert_eq!(sentences("a.md", &format!("{}\n", "x".repeat(200))), "");
        for mark in UNFINISHED {
            let text = format!("//! A.\n// {mark} later\n");
            assert!(sentences("a.rs", &text).contains("a.rs:2: `"), "{mark}");
        }
        assert!(sentences("a.rs", &format!("//! A.\n{IGNORED}]\n")).contains("a.rs:2: a test is ignored"));
        assert!(sentences("a.rs", &format!("//! A.\n{IGNORED} = \"slow\"]\n")).contains("a.rs:2: a test is ignored"));
        assert_eq!(sentences("a.rs", &format!("//! A.\n    {ROLE}\n")), "");
        assert_eq!(sentences("a.rs", concat!("//! A.\nmkstemp(\"/tmp/X", "XX", "XX", "X\");\n")), "");
        assert!(sentences("a.md", "[x](none.md)\n").contains("a.md:1: the link to none.md leads nowhere"));
        assert_eq!(sentences("a.md", "```\n[x](none.md)\n```\n"), "");
        assert!(sentences("a.md", "x").contains("the last line has no end"));
        assert!(sentences("a.md", "x \n").contains("a.md:1: the line ends with a space"));
        assert!(sentences("crates/a/Cargo.toml", "[package]\n").contains("`[lints] workspace = true` is missing"));
    }

    #[test]
    fn the_index_of_the_documentation_is_complete() {
        let page = |path: &str| file(path, "# A page\n");
        let index = file(INDEX, "[a](guides/a.md), [b](reference/b.md#part), [up](../README.md)\n");
        let mut files = vec![index, page("docs/guides/a.md"), page("docs/reference/b.md"), page("README.md")];
        assert_eq!(index_violations(&files), Vec::<String>::new());
        files.push(page("docs/reference/c.md"));
        let wrong = index_violations(&files);
        assert_eq!(wrong, ["docs/reference/c.md: no line of docs/README.md leads to this page; add one"]);
        assert!(index_violations(&files[1..])[0].contains("is missing"));
    }

    #[test]
    fn unsafe_code_is_told_from_the_word() {
        for code in [
            "unsafe { f() }",
            "    unsafe impl Send for X {}",
            "pub unsafe extern \"C\" fn f() {}",
            "let x = unsafe {",
            "= unsafe\n",
        ] {
            assert_eq!(first_unsafe(code), Some(1), "{code}");
        }
        for other in [
            "// unsafe { }",
            "an unsafe word",
            "not_unsafe {",
            "\"unsafe {\"",
            "#![forbid(unsafe_code)]",
            "#[unsafe(no_mangle)]",
        ] {
            assert_eq!(first_unsafe(other), None, "{other}");
        }
    }

    #[test]
    fn the_list_of_unsafe_files_is_exact() {
        let files = [
            file("a.rs", "// SAFETY: x\nunsafe { f() }\n"),
            file("b.rs", "fn g() {}\n"),
            file("c.rs", "unsafe { f() }\n"),
        ];
        let wrong = unsafe_violations(&files, "# comment\na.rs\nb.rs\n");
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert!(wrong[0].starts_with("c.rs:1: unsafe code in a file that is not in"));
        assert!(wrong[1].starts_with("c.rs:1: unsafe code without a SAFETY comment"));
        assert!(wrong[2].contains("b.rs contains no unsafe code"));
    }

    #[test]
    fn the_limit_of_a_wait_is_a_deadline_and_its_test_is_there() {
        let count = |text: &str| {
            let test =
                file("crates/a/tests/c.rs", "    #[test]\n    #[cfg(unix)]\n    fn it_ends() {}\nfn helper() {}\n");
            wait_violations(&[file("crates/a/src/b.rs", text), test]).len()
        };
        for limit in [
            "    pub(super) const TIMEOUT: Duration = Duration::from_secs(20);",
            "const STALL_MS_MAX: u64 = 1_500;",
            "const LEAVE_NS_MAX: Nanoseconds = 1_000;",
            "const READY_WITHIN: Nanoseconds = 3_000_000_000;",
        ] {
            assert_eq!(count(limit), 1, "{limit}");
        }
        for other in [
            "const PAUSE: Duration = Duration::from_secs(1);",
            "const AGAIN_NS_MAX: Nanoseconds = 1_000;",
            "const TIMEOUT: Deadline = Deadline {",
            "const FRAMES_MAX: u64 = 7;",
        ] {
            assert_eq!(count(other), 0, "{other}");
        }
        let tested = |what: &str| count(&format!("    tested: \"{what}\",\n"));
        assert_eq!([tested("crates/a/tests/c.rs it_ends"), tested("it takes a day")], [0, 0]);
        assert_eq!([tested("crates/a/tests/c.rs helper"), tested("crates/a/tests/d.rs it_ends")], [1, 1]);
        assert_eq!(
            wait_violations(&[file("crates/a/src/tests.rs", "const TIMEOUT: Duration = Duration::from_secs(1);")]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_module_lies_in_its_folder() {
        let of = |path: &str| file(path, "");
        let good = [
            of("crates/a/src/b/mod.rs"),
            of("crates/a/src/b/c.rs"),
            of("crates/a/src/d.rs"),
            of("crates/a/tests/b.rs"),
        ];
        assert_eq!(module_violations(&good), Vec::<String>::new());
        let wrong = module_violations(&[of("crates/a/src/b.rs"), of("crates/a/src/b/c.rs")]);
        assert_eq!(wrong, ["crates/a/src/b.rs: belongs into its folder, as crates/a/src/b/mod.rs"]);
    }

    #[test]
    fn a_wait_without_a_limit_says_what_ends_it() {
        let waits = |text: &str| unlimited_waits(text).collect::<Vec<_>>();
        assert_eq!(waits("let job = jobs.recv()?;\n// It may fail.\nlet _ = thread.join();\n"), [1, 3]);
        assert_eq!(waits("// Ends with a job.\nlet job = jobs.recv()?;\nnames.join(\", \");\n"), [] as [usize; 0]);
        assert_eq!(waits("state = self.came.wait(state).unwrap_or_else(PoisonError::into_inner);"), [1]);
        assert_eq!(waits("// it ends soon\na\nb\nc\nd\nunsafe { libc::poll(waits.as_mut_ptr(), 2, -1) };"), [6]);
        assert_eq!(waits("/// jobs.recv()\n#[cfg(test)]\nmod tests {\njobs.recv();"), [] as [usize; 0]);
    }
}
