//! The words for protocols, of the whole region and of parts of it.
//!
//! Promises: a printed choice is read back as the same choice. Ranges are not empty, do not overlap, and name no more
//! protocols than a region may have. Another file checks whether they fit the region and its pages.

use std::fmt;

use trellis_cluster_protocol::coherence::choices::NoProtocol;
use trellis_cluster_protocol::coherence::{PROTOCOLS_MAX, Protocol};

use super::keys::Wrong;
use super::values::{self, Raw};

const ACCEPTED: &str = "accepted: FIRST-END=PROTOCOL, such as 0-1MiB=lock(dynamic)";

/// A part of the region and its protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CoherenceRange {
    /// The offset of the first byte.
    pub first: usize,
    /// The offset one past the last byte.
    pub end: usize,
    /// The protocol of its pages.
    pub protocol: Protocol,
}

impl fmt::Display for CoherenceRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-{}={}", self.first, self.end, self.protocol)
    }
}

/// Reads one protocol.
pub(super) fn protocol(raw: &Raw) -> Result<Protocol, String> {
    let text = values::text(raw, "a protocol, such as ivy or lock(dynamic)")?;
    text.parse().map_err(|error: NoProtocol| error.to_string())
}

/// Reads a list of ranges, in any order.
pub(super) fn ranges(raw: &Raw) -> Result<Vec<CoherenceRange>, Wrong> {
    let items: Vec<(String, Option<usize>)> = match raw {
        Raw::List(items) => items.iter().map(|(text, line)| (text.clone(), Some(*line))).collect(),
        _ => {
            let text = if matches!(raw, Raw::Text(text) if text.trim().is_empty()) {
                String::new()
            } else {
                values::text(raw, "a list of FIRST-END=PROTOCOL")?
            };
            split(&text).into_iter().map(|item| (item.to_owned(), None)).collect()
        }
    };
    let mut ranges: Vec<CoherenceRange> = Vec::with_capacity(items.len());
    for (item, line) in items {
        let at_line = |sentence| Wrong { line, sentence };
        let range = range(item.trim()).map_err(at_line)?;
        if let Some(other) = ranges.iter().find(|other| range.first < other.end && other.first < range.end) {
            return Err(at_line(format!("`{range}` overlaps `{other}`; accepted: ranges without a common byte")));
        }
        ranges.push(range);
        let kinds: std::collections::HashSet<Protocol> = ranges.iter().map(|range| range.protocol).collect();
        if kinds.len() >= PROTOCOLS_MAX {
            let most = PROTOCOLS_MAX - 1;
            return Err(at_line(format!("names more than {most} protocols; accepted: at most {most} different ones")));
        }
    }
    Ok(ranges)
}

fn range(item: &str) -> Result<CoherenceRange, String> {
    let wrong = |what: &str| format!("`{item}` {what}; {ACCEPTED}");
    let (bytes, protocol) = item.split_once('=').ok_or_else(|| wrong("has no equals sign"))?;
    let (first, end) = bytes.split_once('-').ok_or_else(|| wrong("has no first and last byte"))?;
    let size = |text: &str| {
        let bytes = values::bytes_of_text(text).and_then(|bytes| usize::try_from(bytes).ok());
        bytes.ok_or_else(|| wrong(&format!("has a byte `{text}` that is not a number of bytes")))
    };
    let (first, end) = (size(first)?, size(end)?);
    if end <= first {
        return Err(wrong("is empty"));
    }
    let protocol = protocol.parse().map_err(|error: NoProtocol| error.to_string())?;
    Ok(CoherenceRange { first, end, protocol })
}

/// The items of a list, separated by commas. Commas inside parentheses belong to a protocol.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0usize;
    let items = text.split(|letter: char| {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    });
    items.map(str::trim).filter(|item| !item.is_empty()).collect()
}

/// The longest protocol that a agreement spells out.
const WORD_BYTES_MAX: usize = 48;

/// A protocol without spaces, for the agreement of the nodes: spaces separate its parts.
pub(super) fn word(protocol: Protocol) -> String {
    let word = protocol.to_string().replace(' ', "");
    if word.len() > WORD_BYTES_MAX { fingerprint_of(word.bytes()) } else { word }
}

/// A short word for a protocol of any length, for the same purpose.
pub(super) fn short_word(protocol: Protocol) -> String {
    fingerprint_of(protocol.to_string().bytes())
}

/// A short word that differs where the ranges differ: a node's agreement has no room for a list.
pub(super) fn fingerprint(ranges: &[CoherenceRange]) -> String {
    if ranges.is_empty() {
        return "none".to_owned();
    }
    let mut texts: Vec<(usize, String)> = ranges.iter().map(|range| (range.first, range.to_string())).collect();
    texts.sort();
    fingerprint_of(texts.iter().flat_map(|(_, text)| text.bytes().chain([b' '])))
}

fn fingerprint_of(bytes: impl Iterator<Item = u8>) -> String {
    let mix = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(FNV_PRIME);
    format!("{:08x}", bytes.fold(FNV_OFFSET, mix))
}

/// FNV-1a with 32 bits: the same on every machine and in every build.
const FNV_OFFSET: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Result<Vec<CoherenceRange>, String> {
        ranges(&Raw::Text(text.to_owned())).map_err(|wrong| wrong.sentence)
    }

    #[test]
    fn ranges_are_read_from_text_and_from_lists() {
        let expected = [
            CoherenceRange { first: 0, end: 1 << 20, protocol: "lock(dynamic)".parse().unwrap() },
            CoherenceRange { first: 2 << 20, end: 3 << 20, protocol: "lock(ivy, spin 20us)".parse().unwrap() },
        ];
        let texts = ["0-1MiB=lock(dynamic)", "2MiB-3 MiB=lock(ivy, spin 20us)"];
        assert_eq!(said(&texts.join(", ")).unwrap(), expected);
        let list = Raw::List(texts.iter().map(|text| ((*text).to_owned(), 7)).collect());
        assert!(ranges(&list).is_ok_and(|ranges| ranges == expected));
        assert_eq!(said("").unwrap(), []);
        let printed: Vec<String> = expected.iter().map(CoherenceRange::to_string).collect();
        assert_eq!(said(&printed.join(",")).unwrap(), expected, "what is printed is read back");
    }

    #[test]
    fn what_is_refused_is_refused_with_the_item() {
        for (text, fact) in [
            ("0-1MiB", "`0-1MiB` has no equals sign; accepted: FIRST-END=PROTOCOL"),
            ("1MiB=ivy", "has no first and last byte"),
            ("0-1MB=ivy", "has a byte `1MB` that is not a number of bytes"),
            ("4096-4096=ivy", "is empty"),
            ("0-4096=ivi", "`ivi` is not a protocol; there is auto, ivy"),
            ("0-8192=ivy,4096-12288=migrate", "`4096-12288=migrate` overlaps `0-8192=ivy`"),
        ] {
            let sentence = said(text).unwrap_err();
            assert!(sentence.contains(fact), "{text}: {sentence}");
        }
        let many: Vec<String> =
            (1..=PROTOCOLS_MAX).map(|n| format!("{}-{}=delay(ivy, {n}us)", n * 4096, (n + 1) * 4096)).collect();
        assert!(said(&many.join(",")).unwrap_err().contains("at most 15 different ones"));
        assert!(said(&many[1..].join(",")).is_ok());
        assert!(ranges(&Raw::Truth(true)).is_err_and(|wrong| wrong.sentence.starts_with("this is true or false")));
    }

    #[test]
    fn the_fingerprint_tells_ranges_apart_and_not_their_order() {
        let [one, two] = ["0-4096=ivy", "8192-12288=migrate"];
        let print = |text: &str| fingerprint(&said(text).unwrap());
        assert_eq!(print(""), "none");
        assert_eq!(print(&format!("{one},{two}")), print(&format!("{two},{one}")));
        assert_ne!(print(one), print(two));
        assert_eq!(print(one).len(), 8);
    }
}
