//! Reads the commands of scripts.

pub(crate) mod coherence;
pub(crate) mod lease;
pub(crate) mod release;
pub(crate) mod synchronisation;

use trellis_protocol::{PageIndex, PageRange};

/// Something that a script can tell.
pub(crate) trait Story {
    /// Carries out one line, returns what happened.
    fn command(&mut self, line: &str) -> Result<Vec<String>, String>;

    /// Who waits and what is under way.
    fn left_over(&self) -> Vec<String>;
}

/// The words of a command after the first.
pub(crate) struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    pub(crate) fn of(line: &'a str) -> (&'a str, Words<'a>) {
        let mut words = line.split_whitespace();
        (words.next().unwrap_or(""), Words(words.collect()))
    }

    pub(crate) fn at(&self, index: usize) -> Result<&'a str, String> {
        self.0.get(index).copied().ok_or_else(|| "a word is missing".to_string())
    }

    pub(crate) fn has(&self, word: &str) -> bool {
        self.0.contains(&word)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `n3` or `p3` at this place.
    pub(crate) fn name(&self, index: usize, letter: char) -> Result<u16, String> {
        name(self.at(index)?, letter)
    }

    /// The text behind `key=`.
    pub(crate) fn value(&self, key: &str) -> Option<&'a str> {
        self.0.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    /// The text behind `key=`, to the end of the line.
    pub(crate) fn rest(&self, key: &str) -> Option<String> {
        let place = self.0.iter().position(|word| word.strip_prefix(key).is_some_and(|rest| rest.starts_with('=')))?;
        Some(self.0[place..].join(" ")[key.len() + 1..].to_string())
    }

    pub(crate) fn number(&self, key: &str) -> Result<u64, String> {
        let value = self.value(key).ok_or_else(|| format!("`{key}=` is missing"))?;
        value.parse().map_err(|_| format!("`{key}={value}` is no number"))
    }

    /// `n0->n1` at the first place.
    pub(crate) fn link(&self) -> Result<(u16, u16), String> {
        let (from, to) = self.at(0)?.split_once("->").ok_or("a link looks like n0->n1")?;
        Ok((name(from, 'n')?, name(to, 'n')?))
    }
}

fn name(word: &str, letter: char) -> Result<u16, String> {
    let number = word.strip_prefix(letter).and_then(|rest| rest.parse().ok());
    number.ok_or_else(|| format!("`{word}` is not `{letter}` and a number"))
}

/// `0-3` or `p0-3`.
fn range(text: &str) -> Result<PageRange, String> {
    let text = text.strip_prefix('p').unwrap_or(text);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let parse = |number: &str| number.parse::<u32>().map_err(|_| format!("`{text}` is no run of pages"));
    let (first, last) = (parse(first)?, parse(last)?);
    PageRange::new(PageIndex(first), (last + 1).saturating_sub(first)).ok_or_else(|| format!("`{text}` is no run"))
}
