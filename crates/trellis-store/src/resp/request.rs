//! Finds requests of the Redis protocol in the received bytes.
//!
//! Promises: nothing is copied, since a request is a list of places in the buffer. Every length that a client announces
//! is checked against a limit before it is used.

/// What a client may send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The maximum number of parts of a request.
    pub(super) parts_max: usize,
    /// The maximum length of a request.
    pub(super) bytes_max: usize,
}

/// The maximum length of a request in the inline form, which people type.
const LINE_BYTES_MAX: usize = 64 << 10;

/// What a buffer begins with.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// An incomplete request that needs at least this many bytes.
    Incomplete(usize),
    /// A request of this many bytes; its parts are in the list, which may be empty.
    Request(usize),
    /// An invalid request. Nothing after it can be understood.
    Broken(&'static str),
}

/// The place of a part in the buffer.
pub(super) type Place = (usize, usize);

/// Finds the first request in a buffer.
pub(super) fn find(bytes: &[u8], limits: Limits, parts: &mut Vec<Place>) -> Found {
    parts.clear();
    match bytes.first() {
        None => Found::Incomplete(1),
        Some(b'*') => find_array(bytes, limits, parts).unwrap_or_else(|found| found),
        Some(_) => find_line(bytes, limits, parts),
    }
}

fn find_array(bytes: &[u8], limits: Limits, parts: &mut Vec<Place>) -> Result<Found, Found> {
    let (count, mut at) = number(bytes, 0, b'*')?;
    if count > limits.parts_max as i64 {
        return Err(Found::Broken("Protocol error: invalid multibulk length"));
    }
    for _ in 0..count {
        let (length, begin) = number(bytes, at, b'$')?;
        let Some(length) = usize::try_from(length).ok().filter(|length| *length <= limits.bytes_max) else {
            return Err(Found::Broken("Protocol error: invalid bulk length"));
        };
        let end = begin + length;
        if end > limits.bytes_max {
            return Err(Found::Broken("Protocol error: too big request"));
        }
        if bytes.len() < end + 2 {
            return Err(Found::Incomplete(end + 2));
        }
        if bytes[end..end + 2] != *b"\r\n" {
            return Err(Found::Broken("Protocol error: a part is longer than it says"));
        }
        parts.push((begin, end));
        at = end + 2;
    }
    Ok(Found::Request(at))
}

/// The number on a line that begins with `kind`, and the offset of the next line.
fn number(bytes: &[u8], at: usize, kind: u8) -> Result<(i64, usize), Found> {
    /// More digits than any number has.
    const DIGITS_MAX: usize = 24;
    match bytes.get(at) {
        None => return Err(Found::Incomplete(at + 1)),
        Some(found) if *found != kind => return Err(Found::Broken("Protocol error: expected '$'")),
        Some(_) => {}
    }
    let rest = &bytes[at + 1..];
    let line = &rest[..rest.len().min(DIGITS_MAX)];
    let Some(end) = line.iter().position(|byte| *byte == b'\r') else {
        let broken = line.len() == DIGITS_MAX;
        return Err(if broken {
            Found::Broken("Protocol error: invalid number")
        } else {
            Found::Incomplete(bytes.len() + 1)
        });
    };
    match rest.get(end + 1) {
        None => return Err(Found::Incomplete(bytes.len() + 1)),
        Some(b'\n') => {}
        Some(_) => return Err(Found::Broken("Protocol error: invalid number")),
    }
    match integer(&line[..end]) {
        Some(number) => Ok((number, at + 1 + end + 2)),
        None => Err(Found::Broken("Protocol error: invalid number")),
    }
}

/// The inline form, which people type: words on a line.
fn find_line(bytes: &[u8], limits: Limits, parts: &mut Vec<Place>) -> Found {
    let most = LINE_BYTES_MAX.min(limits.bytes_max);
    let Some(end) = bytes.iter().take(most).position(|byte| *byte == b'\n') else {
        let broken = bytes.len() >= most;
        return if broken {
            Found::Broken("Protocol error: too big inline request")
        } else {
            Found::Incomplete(bytes.len() + 1)
        };
    };
    let mut at = 0;
    for word in bytes[..end].split(|byte| byte.is_ascii_whitespace()) {
        if !word.is_empty() {
            parts.push((at, at + word.len()));
        }
        at += word.len() + 1;
    }
    if parts.len() > limits.parts_max {
        return Found::Broken("Protocol error: too many words");
    }
    Found::Request(end + 1)
}

/// A decimal number.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.split_first()? {
        (b'-', digits) => (true, digits),
        _ => (false, text),
    };
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    let mut number: i128 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number * 10 + i128::from(digit - b'0');
    }
    i64::try_from(if negative { -number } else { number }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { parts_max: 8, bytes_max: 1000 };

    fn found(bytes: &[u8]) -> (Found, Vec<Vec<u8>>) {
        let mut parts = Vec::new();
        let found = find(bytes, LIMITS, &mut parts);
        (found, parts.iter().map(|(from, to)| bytes[*from..*to].to_vec()).collect())
    }

    #[test]
    fn a_request_is_found_however_much_has_arrived() {
        let bytes = b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\na\r\nb\r\n*1\r\n";
        for length in 0..29 {
            assert!(matches!(found(&bytes[..length]).0, Found::Incomplete(more) if more > length), "{length}");
        }
        assert_eq!(found(bytes), (Found::Request(29), vec![b"SET".to_vec(), b"".to_vec(), b"a\r\nb".to_vec()]));
        assert_eq!(found(b"*0\r\nrest"), (Found::Request(4), vec![]));
        assert_eq!(found(b"*-1\r\n").0, Found::Request(5));
    }

    #[test]
    fn words_on_a_line_are_a_request() {
        assert_eq!(found(b"  get  key \r\nmore"), (Found::Request(13), vec![b"get".to_vec(), b"key".to_vec()]));
        assert_eq!(found(b"\r\n"), (Found::Request(2), vec![]));
        assert!(matches!(found(b"ping").0, Found::Incomplete(_)));
    }

    #[test]
    fn what_promises_too_much_is_broken() {
        for bytes in [
            &b"*9\r\n"[..],
            b"*99999999999999999999\r\n",
            b"*1\r\n$-1\r\n",
            b"*1\r\n$1001\r\n",
            b"*1\r\n$99999999999999\r\n",
            b"*1\r\n+1\r\n",
            b"*x\r\n",
            b"*1\rx",
            b"*1\r\n$1\r\nabc",
            b"*2\r\n$999\r\n",
        ] {
            let mut long = bytes.to_vec();
            if bytes == b"*2\r\n$999\r\n" {
                long.resize(2000, b'x');
            }
            assert!(matches!(found(&long).0, Found::Broken(_)), "{}", String::from_utf8_lossy(bytes));
        }
        assert!(matches!(found(&[b'a'; 1001]).0, Found::Broken(_)));
        assert!(matches!(found(b"a b c d e f g h i\n").0, Found::Broken(_)));
    }

    #[test]
    fn numbers_are_read_exactly() {
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(integer(b"9223372036854775807"), Some(i64::MAX));
        for text in [&b""[..], b"-", b"9223372036854775808", b"1x", b"+1", b" 1", b"00000000000000000000000001"] {
            assert_eq!(integer(text), None);
        }
    }
}
