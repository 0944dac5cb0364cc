//! Which memory of a program is relaxed: under release consistency, because the user says that it is free of data races.
//!
//! Relaxed are the whole pages inside of large variables of the program and its libraries, and a part of the heap. All
//! other memory is sequentially consistent, also small variables: these are what threads use as flags and counters.
//!
//! Promises: the answer is the same on every node, which has the same files. A variable that a rule names stays
//! sequentially consistent. Without symbols, all variables do.

use std::ops::Range;

use trellis::config::Protocol;

use super::start::PAGE_BYTES;
use super::symbols::Variable;
use crate::layout::{Object, objects};

/// Set by `trellis threads --races none`: the least size of relaxed blocks of the heap, and patterns for the names of
/// variables that are not relaxed, all separated by commas.
const VARIABLE: &str = "TRELLIS_THREADS_RELAXED";
/// Libraries that change small blocks of the heap with atomic instructions, by the beginnings of their names, and the size
/// from which on their programs' blocks are relaxed.
const COUNTING: [&str; 3] = ["libstdc++.so", "libc++.so", "libgfortran.so"];
const SMALL_BYTES: usize = 4 << 10;
/// A variable of this size is large.
const LARGE_BYTES: usize = 64 << 10;
/// The most variables that are relaxed; the largest ones.
const VARIABLES_MAX: usize = 1024;
const PROTOCOL: &str = "hlrc(adaptive)";
/// The part of the heap that is relaxed begins at a multiple of this.
const BORDER_BYTES: usize = 2 << 20;

/// What the user says.
pub(super) struct Rules {
    /// The least size of relaxed blocks of the heap.
    pub(super) bytes_min: usize,
    sequential: Vec<String>,
}

impl Rules {
    /// Patterns that mean no variable.
    pub(super) fn unknown(&self, variables: &[Variable]) -> Vec<&str> {
        let is_unknown = |pattern: &&String| !variables.iter().any(|variable| matches(pattern, &variable.name));
        self.sequential.iter().filter(is_unknown).map(|pattern| pattern.as_str()).collect()
    }

    /// `None` if no memory is relaxed.
    pub(super) fn of_environment() -> Result<Option<Rules>, String> {
        let Ok(text) = std::env::var(VARIABLE) else { return Ok(None) };
        let mut items = text.split(',');
        let bytes_min = items.next().and_then(|bytes| bytes.parse().ok());
        let bytes_min = bytes_min.ok_or_else(|| format!("{VARIABLE}={text} does not begin with a number of bytes"))?;
        // These libraries count references, in small blocks, with atomic instructions.
        let counts = |object: &Object| COUNTING.iter().any(|start| object.name.starts_with(start));
        let least = if objects().iter().any(counts) { SMALL_BYTES } else { 0 };
        Ok(Some(Rules { bytes_min: least.max(bytes_min), sequential: items.map(str::to_owned).collect() }))
    }

    /// The pages of large variables, as addresses; ascending, without overlaps.
    pub(super) fn pages(&self, variables: &[Variable]) -> Vec<Range<usize>> {
        let is_named = |variable: &&Variable| self.sequential.iter().any(|pattern| matches(pattern, &variable.name));
        // The same memory may have several names.
        let kept: Vec<&Range<usize>> = variables.iter().filter(is_named).map(|variable| &variable.addresses).collect();
        let is_large = |variable: &&Variable| {
            let Range { start, end } = variable.addresses;
            end - start >= LARGE_BYTES && !kept.iter().any(|kept| kept.start < end && start < kept.end)
        };
        let pages = |variable: &Variable| {
            let Range { start, end } = variable.addresses;
            start.next_multiple_of(PAGE_BYTES)..end & !(PAGE_BYTES - 1)
        };
        let mut found: Vec<Range<usize>> = variables.iter().filter(is_large).map(pages).collect();
        found.sort_by_key(|range| std::cmp::Reverse(range.len()));
        found.truncate(VARIABLES_MAX);
        found.sort_by_key(|range| range.start);
        found.dedup_by(|next, before| {
            let is_same = next.start < before.end;
            before.end = before.end.max(if is_same { next.end } else { before.end });
            is_same
        });
        found
    }
}

/// Where the upper part of the heap begins, which begins at `heap_at`.
pub(super) fn border(heap_at: usize, region_bytes: usize) -> usize {
    (heap_at + region_bytes.saturating_sub(heap_at) / 2).next_multiple_of(BORDER_BYTES).min(region_bytes)
}

/// The protocols of the region's parts, as the key `coherence_ranges` has them. Without `relaxed` variables, all have the
/// same.
pub(super) fn coherence_ranges(
    relaxed: Option<&[Range<usize>]>,
    strict: Protocol,
    heap_at: usize,
    region_bytes: usize,
) -> String {
    let protocol = if relaxed.is_some() { PROTOCOL.to_owned() } else { strict.to_string() };
    let upper = border(heap_at, region_bytes)..region_bytes;
    let parts = relaxed.unwrap_or_default().iter().cloned().chain((!upper.is_empty()).then_some(upper));
    parts.map(|part| format!("{}-{}={protocol}", part.start, part.end)).collect::<Vec<_>>().join(",")
}

/// Whether a name is one that a pattern means, in which a star stands for any letters.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, rest)) => name
            .strip_prefix(before)
            .is_some_and(|name| (0..=name.len()).any(|at| name.is_char_boundary(at) && matches(rest, &name[at..]))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_letters() {
        for (pattern, name, expected) in [
            ("u", "u", true),
            ("u", "uv", false),
            ("flag_*", "flag_", true),
            ("flag_*", "flag_done", true),
            ("*_lock*", "queue_lock_2", true),
            ("*_lock*", "queue", false),
            ("", "u", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn whole_pages_of_large_variables_are_relaxed() {
        let variable = |start, bytes, name: &str| Variable { addresses: start..start + bytes, name: name.to_owned() };
        let variables = [
            variable(0x40_0010, 0x1_0000, "cells"),
            variable(0x40_0010, 0x1_0000, "alias"),
            variable(0x50_0000, 0xffff, "small"),
            variable(0x60_0000, 0x2_0000, "flag_table"),
            variable(0x60_0000, 0x2_0000, "table"),
        ];
        let rules = Rules { bytes_min: 0, sequential: vec!["flag_*".to_owned()] };
        assert_eq!(rules.pages(&variables), vec![0x40_1000..0x41_0000]);
        assert_eq!(rules.unknown(&variables[..3]), ["flag_*"]);
    }

    #[test]
    fn the_upper_half_of_the_heap_is_relaxed() {
        let border: usize = ((1usize << 30) + (63usize << 29)).next_multiple_of(BORDER_BYTES);
        let strict = "ivy".parse().expect("a protocol");
        let text = coherence_ranges(Some(&[0x1000..0x5000, 0x9000..0xa000]), strict, 1 << 30, 64 << 30);
        let upper = format!("{border}-{}", 64usize << 30);
        assert_eq!(text, format!("4096-20480=hlrc(adaptive),36864-40960=hlrc(adaptive),{upper}=hlrc(adaptive)"));
        assert_eq!(coherence_ranges(None, strict, 1 << 30, 64 << 30), format!("{upper}=ivy"));
    }
}
