//! Values as users write them: sizes, addresses, numbers and lists.
//!
//! Every function returns a sentence that says what is wrong and what is accepted. Nothing here knows where a value
//! came from; the caller adds the file, the line and the key.

/// A value as its source wrote it, before its key gave it a meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Raw {
    /// Text: a TOML or JSON string, an environment variable, or a flag.
    Text(String),
    /// A whole number of a file.
    Number(i128),
    /// `true` or `false` of a file.
    Truth(bool),
    /// A list of strings, each with its line in the file.
    List(Vec<(String, usize)>),
    /// Something that no key accepts; the word says what it was.
    Other(&'static str),
}

impl Raw {
    /// What this is, for the sentence `expected a number, found a list`.
    fn kind(&self) -> &'static str {
        match self {
            Raw::Text(_) => "text",
            Raw::Number(_) => "a number",
            Raw::Truth(_) => "true or false",
            Raw::List(_) => "a list",
            Raw::Other(kind) => kind,
        }
    }
}

/// A whole number between two bounds.
pub(super) fn number(raw: &Raw, least: u64, most: u64) -> Result<u64, String> {
    let accepted = || format!("accepted: a whole number from {least} to {most}");
    let value = match raw {
        Raw::Number(value) => *value,
        Raw::Text(text) => {
            text.trim().parse::<i128>().map_err(|_| format!("`{text}` is not a whole number; {}", accepted()))?
        }
        other => return Err(format!("this is {}; {}", other.kind(), accepted())),
    };
    if value < i128::from(least) || value > i128::from(most) {
        return Err(format!("{value} is out of range; {}", accepted()));
    }
    Ok(value as u64)
}

/// A number of bytes: `268435456`, `256MiB`, `64 KiB`.
pub(super) fn bytes(raw: &Raw) -> Result<u64, String> {
    const ACCEPTED: &str = "accepted: a number of bytes, or a number with KiB, MiB, GiB or TiB, such as 256MiB";
    match raw {
        Raw::Number(value) => u64::try_from(*value).map_err(|_| format!("{value} is not a size; {ACCEPTED}")),
        Raw::Text(text) => bytes_of_text(text).ok_or_else(|| format!("`{text}` is not a size; {ACCEPTED}")),
        other => Err(format!("this is {}; {ACCEPTED}", other.kind())),
    }
}

/// A number of bytes in text.
pub fn bytes_of_text(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits_end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '_');
    let (digits, unit) = text.split_at(digits_end.unwrap_or(text.len()));
    let number: u64 = digits.replace('_', "").parse().ok()?;
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// An address: `"0x400000000000"`, or the number itself.
pub(super) fn address(raw: &Raw) -> Result<usize, String> {
    const ACCEPTED: &str = "accepted: a hexadecimal address such as \"0x400000000000\"";
    match raw {
        Raw::Number(value) => usize::try_from(*value).map_err(|_| format!("{value} is not an address; {ACCEPTED}")),
        Raw::Text(text) => hexadecimal(text.trim()).ok_or_else(|| format!("`{text}` is not an address; {ACCEPTED}")),
        other => Err(format!("this is {}; {ACCEPTED}", other.kind())),
    }
}

fn hexadecimal(text: &str) -> Option<usize> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?;
    // The standard reader would also take a sign.
    if digits.starts_with('+') { None } else { usize::from_str_radix(digits, 16).ok() }
}

/// Text that is not empty.
pub(super) fn text(raw: &Raw, accepted: &str) -> Result<String, String> {
    match raw {
        Raw::Text(text) if !text.is_empty() => Ok(text.clone()),
        Raw::Text(_) => Err(format!("this is empty; accepted: {accepted}")),
        other => Err(format!("this is {}; accepted: {accepted}", other.kind())),
    }
}

/// A name that can be part of a message unchanged.
pub(super) fn name(raw: &Raw) -> Result<String, String> {
    const ACCEPTED: &str = "up to 40 letters, digits, and . _ -";
    let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || matches!(letter, b'.' | b'_' | b'-');
    match text(raw, ACCEPTED)? {
        name if name.len() <= 40 && name.bytes().all(is_plain) => Ok(name),
        name => Err(format!("`{name}` is no name; accepted: {ACCEPTED}")),
    }
}

/// `true` or `false`; `1` and `0` from the environment and flags.
pub(super) fn truth(raw: &Raw) -> Result<bool, String> {
    match raw {
        Raw::Truth(value) => Ok(*value),
        Raw::Text(text) if text == "true" || text == "1" => Ok(true),
        Raw::Text(text) if text == "false" || text == "0" => Ok(false),
        Raw::Text(text) => Err(format!("`{text}` is no truth value; accepted: true, false")),
        other => Err(format!("this is {}; accepted: true, false", other.kind())),
    }
}

/// One of an enumeration's words.
pub(super) fn choice<T: std::str::FromStr<Err = String>>(raw: &Raw, words: &[&str]) -> Result<T, String> {
    text(raw, &words.join(", "))?.parse()
}

/// A list of `host:port`, each with its line if the source has lines.
pub(super) fn addresses(raw: &Raw) -> Result<Vec<(String, Option<usize>)>, String> {
    match raw {
        Raw::List(items) => Ok(items.iter().map(|(text, line)| (text.trim().to_owned(), Some(*line))).collect()),
        Raw::Text(text) if text.trim().is_empty() => Ok(Vec::new()),
        Raw::Text(text) => Ok(text.split(',').map(|item| (item.trim().to_owned(), None)).collect()),
        other => Err(format!("this is {}; accepted: a list of \"host:port\"", other.kind())),
    }
}

/// The maximum length of the name of a host in bytes. It must fit into what a node says at a rendezvous.
const HOST_BYTES_MAX: usize = 100;

/// A name or an address of a host.
pub(super) fn name_of_host(raw: &Raw) -> Result<String, String> {
    let name = text(raw, "a name or an address of this host")?;
    match is_name_of_host(&name) {
        true => Ok(name),
        false => Err(format!(
            "`{name}` is no host; accepted: a name such as a.example.org of up to {HOST_BYTES_MAX} letters, or an address \
             such as 10.0.0.1 or fd00::1, without a port"
        )),
    }
}

/// Whether this is an address, or may be the name of a host.
pub fn is_name_of_host(name: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | '_');
    let is_name = (1..=HOST_BYTES_MAX).contains(&name.len()) && !name.starts_with('-') && name.chars().all(is_letter);
    is_name || name.parse::<std::net::IpAddr>().is_ok()
}

/// Checks one `host:port` and returns its two parts. An IPv6 address stands in brackets.
pub(super) fn host_and_port(item: &str) -> Result<(&str, u16), String> {
    let wrong = |what: &str| format!("`{item}` {what}; accepted: host:port, such as 10.0.0.1:2000 or [::1]:2000");
    let (host, port) = item.rsplit_once(':').ok_or_else(|| wrong("has no port"))?;
    let bare = match host.strip_prefix('[') {
        Some(rest) => {
            let inside = rest.strip_suffix(']').ok_or_else(|| wrong("has a bracket that is not closed"))?;
            inside.parse::<std::net::Ipv6Addr>().map_err(|_| wrong("has no IPv6 address in its brackets"))?;
            inside
        }
        None if host.contains(':') => return Err(wrong("is an IPv6 address without brackets")),
        None => host,
    };
    let host_is_good = !bare.is_empty()
        && bare.bytes().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, b'.' | b'-' | b'_' | b':'));
    if !host_is_good {
        return Err(wrong("has no valid host name"));
    }
    if looks_like_ipv4(bare) && bare.parse::<std::net::Ipv4Addr>().is_err() {
        return Err(wrong("has no valid IPv4 address"));
    }
    match port.parse::<u16>() {
        Ok(0) => Err(wrong("has port 0, which no peer could dial")),
        Ok(number) if port.bytes().all(|digit| digit.is_ascii_digit()) => Ok((bare, number)),
        _ => Err(wrong("has no port between 1 and 65535")),
    }
}

fn looks_like_ipv4(host: &str) -> bool {
    host.bytes().all(|letter| letter.is_ascii_digit() || letter == b'.')
}

/// Whether a host, as [`host_and_port`] returned it, is certainly this machine's loopback.
pub(super) fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The accepted word nearest to a wrong one, if any is near enough to be meant: a few letters differ, it is
/// abbreviated, or only the part after the first underscore differs (`page_size`).
pub(super) fn nearest<'a>(wrong: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = wrong.to_ascii_lowercase();
    let first_part = wrong.split_once('_').map(|(first, _)| first);
    let limit = (wrong.len() / 3).max(1);
    let distance_of = |word: &'a str| {
        let is_abbreviated = wrong.len() >= 4 && word.starts_with(&wrong);
        let shares_first_part = first_part.is_some() && word.split('_').next() == first_part;
        match distance(&wrong, word) {
            _ if is_abbreviated => 0,
            far if far > limit && shares_first_part => limit,
            far => far,
        }
    };
    words.into_iter().map(|word| (distance_of(word), word)).min().filter(|(far, _)| *far <= limit).map(|(_, word)| word)
}

/// The edit distance: how many letters to insert, remove or replace.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, letter) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, other) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Raw {
        Raw::Text(text.to_owned())
    }

    #[test]
    fn sizes_are_read_with_and_without_a_unit() {
        for (written, expected) in [
            ("4096", 4096),
            ("64KiB", 65_536),
            ("256 MiB", 1 << 28),
            ("2gib", 1 << 31),
            ("1TiB", 1 << 40),
            ("268_435_456", 1 << 28),
        ] {
            assert_eq!(bytes(&said(written)), Ok(expected), "{written}");
        }
        for wrong in ["", "MiB", "4MB", "1.5GiB", "-1", "99999999999TiB", "4 KiB 2"] {
            assert!(bytes(&said(wrong)).unwrap_err().contains("is not a size; accepted:"), "{wrong}");
        }
        assert!(bytes(&Raw::Number(-1)).is_err());
        assert!(bytes(&Raw::Truth(true)).unwrap_err().starts_with("this is true or false;"));
    }

    #[test]
    fn addresses_are_hexadecimal() {
        assert_eq!(address(&said("0x10000000000")), Ok(1 << 40));
        assert_eq!(address(&Raw::Number(1 << 40)), Ok(1 << 40));
        for wrong in ["10000000000", "0x", "0x+5", "0x-5", "0xfffffffffffffffff", ""] {
            assert!(address(&said(wrong)).unwrap_err().contains("is not an address; accepted:"), "{wrong}");
        }
        assert!(address(&Raw::Number(-1)).is_err());
    }

    #[test]
    fn numbers_have_bounds() {
        assert_eq!(number(&Raw::Number(7), 1, 9), Ok(7));
        assert_eq!(number(&said(" 9 "), 1, 9), Ok(9));
        assert_eq!(
            number(&Raw::Number(10), 1, 9).unwrap_err(),
            "10 is out of range; accepted: a whole number from 1 to 9"
        );
        assert!(number(&said("-1"), 0, 9).unwrap_err().starts_with("-1 is out of range"));
        assert!(number(&said("two"), 0, 9).unwrap_err().starts_with("`two` is not a whole number"));
        assert!(number(&Raw::List(Vec::new()), 0, 9).unwrap_err().starts_with("this is a list"));
    }

    #[test]
    fn a_node_address_is_a_host_and_a_port() {
        assert_eq!(host_and_port("localhost:2000"), Ok(("localhost", 2000)));
        assert_eq!(host_and_port("[::1]:2000"), Ok(("::1", 2000)));
        assert_eq!(host_and_port("node-1.rack_2:65535"), Ok(("node-1.rack_2", 65535)));
        for (wrong, fact) in [
            ("localhost", "has no port"),
            ("localhost:", "has no port between"),
            ("localhost:65536", "has no port between"),
            ("localhost:+80", "has no port between"),
            ("localhost:0", "has port 0"),
            (":2000", "has no valid host name"),
            ("a b:2000", "has no valid host name"),
            ("::1:2000", "without brackets"),
            ("[::1:2000", "not closed"),
            ("[zz]:2000", "no IPv6 address"),
            ("10.0.0.256:2000", "has no valid IPv4 address"),
        ] {
            let sentence = host_and_port(wrong).unwrap_err();
            assert!(sentence.contains(fact), "{wrong}: {sentence}");
        }
    }

    #[test]
    fn loopback_is_recognised_without_asking_a_resolver() {
        assert!(is_loopback("localhost") && is_loopback("127.3.2.1") && is_loopback("::1"));
        assert!(!is_loopback("10.0.0.1") && !is_loopback("localhost.example.org") && !is_loopback("::2"));
    }

    #[test]
    fn the_nearest_word_is_offered_only_when_it_is_near() {
        let words = ["nodes", "page_bytes", "region_bytes", "manager"];
        assert_eq!(nearest("page_byte", words), Some("page_bytes"));
        assert_eq!(nearest("Manger", words), Some("manager"));
        assert_eq!(nearest("regi", words), Some("region_bytes"));
        assert_eq!(nearest("page_size", words), Some("page_bytes"));
        assert_eq!(nearest("colour", words), None);
    }
}
