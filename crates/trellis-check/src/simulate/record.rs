//! What happened: always as a number, on request in words.
//!
//! Promises: two runs have the same number exactly when the same things happened at the same times (up to collisions of
//! 64 bits); the words are bounded. It must never change what happens.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use trellis_base::mixed;
use trellis_cluster_protocol::Nanoseconds;
use trellis_cluster_protocol::coherence::{Effect, Input};

/// Keeps the number, and lines if somebody wants to read them.
pub(super) struct Recorder {
    hash: u64,
    lines: Option<Lines>,
}

struct Lines {
    most: usize,
    kept: VecDeque<String>,
    dropped: u64,
}

impl Recorder {
    /// Keeps the last `lines` lines; with zero, none.
    pub(super) fn new(lines: usize) -> Recorder {
        let lines = (lines > 0).then(|| Lines { most: lines, kept: VecDeque::new(), dropped: 0 });
        Recorder { hash: 0, lines }
    }

    pub(super) fn hash(&self) -> u64 {
        mixed(self.hash)
    }

    /// Something happened that `value` tells apart from other things.
    pub(super) fn fold(&mut self, value: u64) {
        Fold(&mut self.hash).write_u64(value);
    }

    pub(super) fn input(&mut self, now: Nanoseconds, node: u16, input: &Input) {
        self.fold(now);
        let mut fold = Fold(&mut self.hash);
        node.hash(&mut fold);
        input.hash(&mut fold);
        if self.lines.is_some() {
            self.note(now, || format!("n{node} {input}"));
        }
    }

    pub(super) fn effect(&mut self, effect: &Effect) {
        if let Some(lines) = &mut self.lines {
            lines.add(format!("                 {effect}"));
        }
    }

    /// A line, if anybody reads.
    pub(super) fn note(&mut self, now: Nanoseconds, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.add(format!("{:>12.3} us {}", now as f64 / 1e3, line()));
        }
    }

    /// The lines that were kept.
    pub(super) fn into_lines(self) -> Vec<String> {
        let Some(lines) = self.lines else { return Vec::new() };
        let dropped = (lines.dropped > 0).then(|| format!("… {} lines before", lines.dropped));
        dropped.into_iter().chain(lines.kept).collect()
    }
}

impl Lines {
    fn add(&mut self, line: String) {
        if self.kept.len() == self.most {
            self.kept.pop_front();
            self.dropped += 1;
        }
        self.kept.push_back(line);
    }
}

/// Folds words of any width into one number, the same on every machine.
struct Fold<'a>(&'a mut u64);

impl Hasher for Fold<'_> {
    fn finish(&self) -> u64 {
        *self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u16(&mut self, value: u16) {
        self.write_u64(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        let product = u128::from(*self.0 ^ value ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
        *self.0 = (product as u64) ^ (product >> 64) as u64;
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }
}
