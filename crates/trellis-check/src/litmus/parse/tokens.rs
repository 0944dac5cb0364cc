//! Words, numbers and punctuation marks of a litmus file, with their lines.
//!
//! Promises: any text gives tokens or a refusal. It must never join what a space separates.

use super::{Refused, refused};
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Word(String),
    Number(i64),
    Mark(&'static str),
    End,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Word(word) => f.write_str(word),
            Token::Number(number) => write!(f, "{number}"),
            Token::Mark(mark) => f.write_str(mark),
            Token::End => f.write_str("end of the file"),
        }
    }
}

/// Longer marks stand before their prefixes.
const MARKS: [&str; 23] = [
    "/\\", "\\/", "==", "{", "}", "(", ")", "[", "]", ";", ",", "=", ":", "|", "~", "$", "*", "&", "+", "-", "^", "<",
    "%",
];

pub(super) struct Tokens {
    all: Vec<(usize, Token)>,
    at: usize,
}

impl Tokens {
    /// The tokens of `text` from its first brace on; the text before it is a description.
    pub(super) fn after_header(text: &str, line: usize) -> Result<Tokens, Refused> {
        let Some(start) = text.find('{') else {
            return refused(line, "the test has no initial state in braces, not even an empty one");
        };
        let mut line = line + text[..start].matches('\n').count();
        let mut all = Vec::new();
        let mut rest = &text[start..];
        while let Some(first) = rest.chars().next() {
            if first.is_whitespace() {
                line += usize::from(first == '\n');
                rest = &rest[first.len_utf8()..];
                continue;
            }
            let (token, length) = token(rest, first, line)?;
            all.push((line, token));
            rest = &rest[length..];
        }
        Ok(Tokens { all, at: 0 })
    }

    /// Replaces `%eax`, `eax` and `rax` by one register: its whole name, without the sign.
    pub(super) fn name_whole_registers(&mut self) {
        self.all.retain(|(_, token)| token != &Token::Mark("%"));
        for (_, token) in &mut self.all {
            if let Token::Word(word) = token
                && let Some(whole) = whole_register(word)
            {
                *word = whole;
            }
        }
    }

    pub(super) fn peek(&self) -> &Token {
        self.all.get(self.at).map_or(&Token::End, |(_, token)| token)
    }

    pub(super) fn peek_second(&self) -> &Token {
        self.all.get(self.at + 1).map_or(&Token::End, |(_, token)| token)
    }

    pub(super) fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at = self.all.len().min(self.at + 1);
        token
    }

    pub(super) fn at_end(&self) -> bool {
        self.at >= self.all.len()
    }

    /// The line of the next token, or the last one.
    pub(super) fn line(&self) -> usize {
        self.all.get(self.at).or(self.all.last()).map_or(1, |(line, _)| *line)
    }

    /// Takes the next token if it is this mark or word.
    pub(super) fn take(&mut self, what: &str) -> bool {
        let is_it = match self.peek() {
            Token::Word(word) => word == what,
            Token::Mark(mark) => *mark == what,
            Token::Number(_) | Token::End => false,
        };
        self.at += usize::from(is_it);
        is_it
    }

    pub(super) fn expect(&mut self, what: &str) -> Result<(), Refused> {
        if self.take(what) { Ok(()) } else { self.refuse_instead(&format!("`{what}`")) }
    }

    pub(super) fn word(&mut self, what: &str) -> Result<String, Refused> {
        match self.peek().clone() {
            Token::Word(word) => {
                self.next();
                Ok(word)
            }
            _ => self.refuse_instead(what),
        }
    }

    /// A number, optionally with a sign.
    pub(super) fn number(&mut self) -> Result<i64, Refused> {
        let is_negative = self.take("-");
        match *self.peek() {
            Token::Number(number) => {
                self.next();
                Ok(if is_negative { -number } else { number })
            }
            _ => self.refuse_instead("a number"),
        }
    }

    pub(super) fn refuse<T>(&self, what: impl Into<String>) -> Result<T, Refused> {
        refused(self.line(), what)
    }

    fn refuse_instead<T>(&self, expected: &str) -> Result<T, Refused> {
        match self.peek() {
            Token::End => self.refuse(format!("the file ends where {expected} is expected")),
            found => self.refuse(format!("`{found}` stands where {expected} is expected")),
        }
    }
}

/// The 64-bit register of which `word` names all or half.
fn whole_register(word: &str) -> Option<String> {
    let word = word.to_ascii_lowercase();
    let (first, rest) = word.split_at_checked(1)?;
    let has_name = ["ax", "bx", "cx", "dx", "si", "di", "bp", "sp"].contains(&rest);
    let number = rest.strip_suffix('d').unwrap_or(rest).parse::<u8>().ok().filter(|number| (8..16).contains(number));
    match (first, number) {
        ("e" | "r", _) if has_name => Some(format!("r{rest}")),
        ("r", Some(number)) => Some(format!("r{number}")),
        _ => None,
    }
}

fn token(rest: &str, first: char, line: usize) -> Result<(Token, usize), Refused> {
    let while_it = |fits: fn(char) -> bool| rest.find(|c: char| !fits(c)).unwrap_or(rest.len());
    if first.is_ascii_digit() {
        let length = while_it(|c| c.is_ascii_alphanumeric());
        let digits = &rest[..length];
        let number = match digits.strip_prefix("0x") {
            Some(hexadecimal) => i64::from_str_radix(hexadecimal, 16),
            None => digits.parse(),
        };
        return match number {
            Ok(number) => Ok((Token::Number(number), length)),
            Err(_) => refused(line, format!("`{digits}` is not a number of 64 bits")),
        };
    }
    if first.is_ascii_alphabetic() || first == '_' {
        let length = while_it(|c| c.is_ascii_alphanumeric() || c == '_');
        return Ok((Token::Word(rest[..length].to_string()), length));
    }
    match MARKS.iter().find(|mark| rest.starts_with(**mark)) {
        Some(mark) => Ok((Token::Mark(mark), mark.len())),
        None => refused(line, format!("`{first}` is not understood here")),
    }
}

/// `text` with its comments replaced by spaces. In C, `(*` before a name or a bracket is not a comment.
pub(super) fn without_comments(text: &str, line: usize, is_c: bool) -> Result<String, Refused> {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if opens_comment(rest, is_c) {
            comment_length(rest).ok_or(Refused {
                line: line + clean.matches('\n').count(),
                what: "a comment begins with `(*` and has no `*)`".to_string(),
            })?
        } else if first == '#' && clean.rsplit('\n').next().is_some_and(|before| before.trim().is_empty()) {
            let length = rest.find('\n').unwrap_or(rest.len());
            let word = rest[..length].split_whitespace().next().unwrap_or_default();
            if ["#define", "#undef", "#if", "#ifdef", "#ifndef", "#else", "#endif"].contains(&word) {
                let line = line + clean.matches('\n').count();
                return refused(line, format!("`{word}` is not understood; write what it stands for"));
            }
            length
        } else if is_c && rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if is_c && rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else {
            clean.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        clean.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = &rest[length..];
    }
    Ok(clean)
}

fn opens_comment(rest: &str, is_c: bool) -> bool {
    let Some(after) = rest.strip_prefix("(*") else { return false };
    let is_pointer = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '(';
    !(is_c && after.starts_with(is_pointer))
}

/// The length of the comment with which `rest` begins; comments may be nested.
fn comment_length(rest: &str) -> Option<usize> {
    let mut depth = 0;
    let mut at = 0;
    loop {
        let (open, close) = (rest[at..].find("(*"), rest[at..].find("*)")?);
        match open {
            Some(open) if open < close => {
                depth += 1;
                at += open + 2;
            }
            _ => {
                depth -= 1;
                at += close + 2;
                if depth == 0 {
                    return Some(at);
                }
            }
        }
    }
}
