//! Text scripts: commands and their expected results, which a reader can follow and a test replays.
//!
//! A script consists of blocks: commands, `----`, and everything that happened. Each folder of scripts has its own
//! commands; the test that replays it lists them. With `TRELLIS_REWRITE_SCRIPTS=1` a test writes what happens now;
//! review the difference as you would review code. A script must end with nothing in flight and nobody waiting.

use std::path::{Path, PathBuf};

/// What executes the commands of a script.
pub trait Story {
    /// Executes one line; returns what happened.
    fn command(&mut self, line: &str) -> Result<Vec<String>, String>;

    /// Who waits and what is in flight.
    fn left_over(&self) -> Vec<String>;
}

/// The words of a command after the first.
pub struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    /// The first word of a line, and the others.
    pub fn of(line: &'a str) -> (&'a str, Words<'a>) {
        let mut words = line.split_whitespace();
        (words.next().unwrap_or(""), Words(words.collect()))
    }

    /// The word at this place; an error if there is none.
    pub fn at(&self, index: usize) -> Result<&'a str, String> {
        self.0.get(index).copied().ok_or_else(|| "a word is missing".to_string())
    }

    /// Whether this word is among them.
    pub fn has(&self, word: &str) -> bool {
        self.0.contains(&word)
    }

    /// Whether there are no words.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `n3` or `p3` at this place.
    pub fn name(&self, index: usize, letter: char) -> Result<u16, String> {
        name(self.at(index)?, letter)
    }

    /// The text after `key=`.
    pub fn value(&self, key: &str) -> Option<&'a str> {
        self.0.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    /// The text after `key=`, to the end of the line.
    pub fn rest(&self, key: &str) -> Option<String> {
        let place = self.0.iter().position(|word| word.strip_prefix(key).is_some_and(|rest| rest.starts_with('=')))?;
        Some(self.0[place..].join(" ")[key.len() + 1..].to_string())
    }

    /// The number after `key=`; an error if it is missing or not a number.
    pub fn number(&self, key: &str) -> Result<u64, String> {
        let value = self.value(key).ok_or_else(|| format!("`{key}=` is missing"))?;
        value.parse().map_err(|_| format!("`{key}={value}` is not a number"))
    }

    /// `n0->n1` at the first place.
    pub fn link(&self) -> Result<(u16, u16), String> {
        let (from, to) = self.at(0)?.split_once("->").ok_or("a link looks like n0->n1")?;
        Ok((name(from, 'n')?, name(to, 'n')?))
    }
}

fn name(word: &str, letter: char) -> Result<u16, String> {
    let number = word.strip_prefix(letter).and_then(|rest| rest.parse().ok());
    number.ok_or_else(|| format!("`{word}` is not `{letter}` and a number"))
}

/// Whether to write the current results instead of comparing.
fn rewrites() -> bool {
    std::env::var_os("TRELLIS_REWRITE_SCRIPTS").is_some()
}

/// Replays every script of `folder`, each with a story of its own, and fails if one has other results now.
///
/// # Panics
///
/// If one has other results, cannot be read, has no title, or ends while something is in flight.
pub fn run_all(folder: &Path, start: impl Fn() -> Box<dyn Story>) {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} has no scripts", folder.display());
    let mut different = Vec::new();
    for file in files {
        let expected = std::fs::read_to_string(&file).expect("a readable script");
        let actual = replay(&file, &expected, start());
        if rewrites() {
            std::fs::write(&file, &actual).expect("a writable script");
        } else if actual != expected {
            eprintln!("{}", first_difference(&file, &expected, &actual));
            different.push(file);
        }
    }
    assert!(
        different.is_empty(),
        "{different:?} tell another story now; if it is right, run this test again with TRELLIS_REWRITE_SCRIPTS=1"
    );
}

/// The script with the results that its commands have now.
fn replay(file: &Path, script: &str, mut story: Box<dyn Story>) -> String {
    assert!(script.starts_with("# "), "{} does not begin with a title", file.display());
    let mut text = String::new();
    for block in script.trim_end().split("\n\n") {
        let input = block.split("\n----").next().expect("a block has lines");
        text += input;
        let commands: Vec<&str> = input.lines().filter(|line| !line.starts_with('#')).collect();
        if !commands.is_empty() {
            text += "\n----";
            for command in commands {
                let lines = story.command(command).unwrap_or_else(|error| {
                    panic!("{}: `{command}`: {error}", file.display());
                });
                lines.iter().for_each(|line| text += &format!("\n{line}"));
            }
        }
        text += "\n\n";
    }
    let left = story.left_over();
    if !left.is_empty() {
        eprintln!("{text}");
        panic!("{} ends while {}", file.display(), left.join(", "));
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

fn first_difference(file: &Path, expected: &str, actual: &str) -> String {
    let lines = expected.lines().zip(actual.lines()).enumerate();
    match lines.into_iter().find(|(_, (before, now))| before != now) {
        Some((index, (before, now))) => {
            format!("{}:{}\n  written: {before}\n  now:     {now}", file.display(), index + 1)
        }
        None => format!("{}: one is longer than the other", file.display()),
    }
}
