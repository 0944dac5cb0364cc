//! Reads a configuration file into entries with their lines: TOML, or libivy's JSON unchanged.
//!
//! It knows the two notations, and nothing about the meaning of a key. It must never read more than a megabyte: a
//! larger file is not a configuration.

use std::io::Read;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::values::Raw;

/// One key of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) value: Raw,
}

/// The keys of a file, and its notation.
pub(super) struct Contents {
    pub(super) is_libivy: bool,
    pub(super) entries: Vec<Entry>,
}

/// The error in a file as a whole, and its line.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) line: Option<usize>,
    pub(super) sentence: String,
}

const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads a file. JSON begins with a brace, and TOML cannot.
pub(super) fn read(path: &Path) -> Result<Contents, Unreadable> {
    let text = read_text(path).map_err(|sentence| Unreadable { line: None, sentence })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    if text.trim_start().starts_with('{') {
        Ok(Contents { is_libivy: true, entries: parse_json(text)? })
    } else {
        Ok(Contents { is_libivy: false, entries: parse_toml(text)? })
    }
}

fn read_text(path: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read ({error}); give the path of a configuration file");
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(unreadable)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err("is larger than 1 MiB, so it is not a configuration file; give the path of one".to_owned());
    }
    String::from_utf8(text).map_err(|_| "is not UTF-8 text; save it as UTF-8".to_owned())
}

fn parse_toml(text: &str) -> Result<Vec<Entry>, Unreadable> {
    let table = DeTable::parse(text).map_err(|error| Unreadable {
        line: Some(line_of(text, error.span().map_or(0, |span| span.start))),
        sentence: format!("is not valid TOML: {}", one_line(error.message())),
    })?;
    let mut entries: Vec<Entry> = table
        .get_ref()
        .iter()
        .map(|(key, value)| Entry {
            key: key.get_ref().to_string(),
            line: line_of(text, key.span().start),
            value: toml_value(text, value.get_ref()),
        })
        .collect();
    entries.sort_by_key(|entry| entry.line);
    Ok(entries)
}

fn toml_value(text: &str, value: &DeValue<'_>) -> Raw {
    match value {
        DeValue::String(string) => Raw::Text(string.to_string()),
        DeValue::Integer(integer) => {
            let digits = integer.as_str().replace('_', "");
            i128::from_str_radix(&digits, integer.radix()).map_or(Raw::Other("a number without bounds"), Raw::Number)
        }
        DeValue::Boolean(truth) => Raw::Truth(*truth),
        DeValue::Array(items) => items
            .iter()
            .map(|item| Some((item.get_ref().as_str()?.to_owned(), line_of(text, item.span().start))))
            .collect::<Option<Vec<_>>>()
            .map_or(Raw::Other("a list of something else than strings"), Raw::List),
        DeValue::Float(_) => Raw::Other("a number with a fraction"),
        DeValue::Datetime(_) => Raw::Other("a date"),
        DeValue::Table(_) => Raw::Other("a table"),
    }
}

/// Checks the whole text with the JSON library, then walks its outermost object once more for the lines.
fn parse_json(text: &str) -> Result<Vec<Entry>, Unreadable> {
    let whole: serde_json::Value = serde_json::from_str(text).map_err(|error| Unreadable {
        line: Some(error.line().max(1)),
        sentence: format!("is not valid JSON: {}", one_line(&error.to_string())),
    })?;
    debug_assert!(whole.is_object(), "the text begins with a brace");
    Ok(Walk { text, at: 0 }.object())
}

/// A walk over valid JSON, for what the library does not report: lines, and keys that occur twice.
struct Walk<'a> {
    text: &'a str,
    at: usize,
}

impl Walk<'_> {
    fn object(&mut self) -> Vec<Entry> {
        let mut entries = Vec::new();
        self.skip_to(|letter| letter == b'{');
        self.at += 1;
        loop {
            self.skip_to(|letter| letter == b'"' || letter == b'}');
            if self.letter() != b'"' {
                return entries;
            }
            let line = line_of(self.text, self.at);
            let key = self.string();
            self.skip_to(|letter| letter == b':');
            self.at += 1;
            self.skip_space();
            entries.push(Entry { key, line, value: self.value() });
        }
    }

    fn value(&mut self) -> Raw {
        match self.letter() {
            b'"' => Raw::Text(self.string()),
            b'[' => self.list(),
            b'{' => {
                self.skip_nested();
                Raw::Other("an object")
            }
            _ => self.word(),
        }
    }

    fn list(&mut self) -> Raw {
        let start = self.at;
        let mut items = Vec::new();
        self.at += 1;
        loop {
            self.skip_space();
            match self.letter() {
                b']' => {
                    self.at += 1;
                    return Raw::List(items);
                }
                b',' => self.at += 1,
                b'"' => {
                    let line = line_of(self.text, self.at);
                    items.push((self.string(), line));
                }
                _ => {
                    self.at = start;
                    self.skip_nested();
                    return Raw::Other("a list of something else than strings");
                }
            }
        }
    }

    /// A number, `true`, `false` or `null`.
    fn word(&mut self) -> Raw {
        let start = self.at;
        self.skip_to(|letter| matches!(letter, b',' | b'}' | b']') || letter.is_ascii_whitespace());
        match &self.text[start..self.at] {
            "true" => Raw::Truth(true),
            "false" => Raw::Truth(false),
            "null" => Raw::Other("null"),
            number => number.parse().map_or(Raw::Other("a number with a fraction"), Raw::Number),
        }
    }

    /// Reads the string that begins here and resolves its escapes.
    fn string(&mut self) -> String {
        let start = self.at;
        self.at += 1;
        while self.letter() != b'"' {
            self.at += if self.letter() == b'\\' { 2 } else { 1 };
        }
        self.at += 1;
        serde_json::from_str(&self.text[start..self.at]).expect("the whole text is valid JSON")
    }

    /// Steps over the list or object that begins here.
    fn skip_nested(&mut self) {
        let mut depth = 0;
        loop {
            match self.letter() {
                b'"' => {
                    self.string();
                    continue;
                }
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }

    fn letter(&self) -> u8 {
        self.text.as_bytes()[self.at]
    }

    fn skip_space(&mut self) {
        self.skip_to(|letter| !letter.is_ascii_whitespace());
    }

    fn skip_to(&mut self, stop: impl Fn(u8) -> bool) {
        while !stop(self.letter()) {
            self.at += 1;
        }
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|letter| **letter == b'\n').count()
}

/// Joins the lines of a library's message, because an error here is one sentence.
fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_keys_come_with_their_lines() {
        let text = "# a comment\nnodes = [\n  \"a:1\",\n  \"b:2\",\n]\nmanager = 1\nbase_address = 0x1000_0000\nstatistics = true\n";
        let entries = parse_toml(text).unwrap();
        let summary: Vec<(&str, usize)> = entries.iter().map(|entry| (entry.key.as_str(), entry.line)).collect();
        assert_eq!(summary, [("nodes", 2), ("manager", 6), ("base_address", 7), ("statistics", 8)]);
        assert_eq!(entries[0].value, Raw::List(vec![("a:1".to_owned(), 3), ("b:2".to_owned(), 4)]));
        assert_eq!(entries[2].value, Raw::Number(0x1000_0000));
    }

    #[test]
    fn json_keys_come_with_their_lines() {
        let text = "{\n  \"a\\u0041\": [\"x:1\",\n \"y:2\"],\n\"n\": -7, \"deep\": {\"}\": [1, {\"]\": 2}]},\n \"t\": true, \"mixed\": [1, \"]\"], \"f\": 1.5, \"z\": null }\n";
        let entries = parse_json(text).unwrap();
        let summary: Vec<(&str, usize)> = entries.iter().map(|entry| (entry.key.as_str(), entry.line)).collect();
        assert_eq!(summary, [("aA", 2), ("n", 4), ("deep", 4), ("t", 5), ("mixed", 5), ("f", 5), ("z", 5)]);
        assert_eq!(entries[0].value, Raw::List(vec![("x:1".to_owned(), 2), ("y:2".to_owned(), 3)]));
        assert_eq!(entries[1].value, Raw::Number(-7));
        assert_eq!(entries[2].value, Raw::Other("an object"));
        assert_eq!(entries[4].value, Raw::Other("a list of something else than strings"));
        assert_eq!(entries[5].value, Raw::Other("a number with a fraction"));
    }

    #[test]
    fn an_empty_object_and_an_empty_list_are_walked() {
        assert_eq!(parse_json("{}").unwrap(), []);
        assert_eq!(parse_json(" { \"a\" : [ ] } ").unwrap()[0].value, Raw::List(Vec::new()));
    }

    #[test]
    fn broken_notations_name_their_line() {
        let broken = parse_toml("manager = 0\npage_bytes = = 3\n").unwrap_err();
        assert_eq!(broken.line, Some(2));
        assert!(broken.sentence.starts_with("is not valid TOML: "), "{}", broken.sentence);
        let broken = parse_json("{\n\"a\": 1\n\"b\": 2 }").unwrap_err();
        assert_eq!(broken.line, Some(3));
        assert!(broken.sentence.starts_with("is not valid JSON: "), "{}", broken.sentence);
        assert_eq!(parse_toml("manager = 0\nmanager = 1\n").unwrap_err().line, Some(2));
    }
}
