//! Writes answers of the Redis protocol into the output buffer.

/// The answers to a client, in the order in which they are sent.
pub(super) struct Reply<'a> {
    out: &'a mut Vec<u8>,
    /// Whether the client uses version 3 of the protocol.
    three: bool,
}

impl Reply<'_> {
    pub(super) fn new(out: &mut Vec<u8>, three: bool) -> Reply<'_> {
        Reply { out, three }
    }

    /// Selects the version of the protocol for the answers that follow.
    pub(super) fn set_three(&mut self, three: bool) {
        self.three = three;
    }

    /// Appends answers that were encoded elsewhere.
    pub(super) fn append(&mut self, answers: &[u8]) {
        self.out.extend_from_slice(answers);
    }

    pub(super) fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    pub(super) fn status(&mut self, word: &str) {
        self.line(b'+', word.as_bytes());
    }

    /// A refusal; always one line, whatever the message contains.
    pub(super) fn error(&mut self, sentence: &str) {
        self.out.push(b'-');
        self.out.extend(sentence.bytes().map(|byte| if byte == b'\r' || byte == b'\n' { b' ' } else { byte }));
        self.out.extend_from_slice(b"\r\n");
    }

    pub(super) fn integer(&mut self, number: i64) {
        self.out.push(b':');
        self.number(number);
    }

    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.out.push(b'$');
        self.number(bytes.len() as i64);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// A string or null.
    pub(super) fn optional(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    pub(super) fn null(&mut self) {
        self.out.extend_from_slice(if self.three { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// A null array.
    pub(super) fn null_array(&mut self) {
        self.out.extend_from_slice(if self.three { b"_\r\n" } else { b"*-1\r\n" });
    }

    /// The start of an array of this many answers.
    pub(super) fn array(&mut self, count: usize) {
        self.out.push(b'*');
        self.number(count as i64);
    }

    /// The start of a map of this many pairs.
    pub(super) fn map(&mut self, pairs: usize) {
        if self.three {
            self.out.push(b'%');
            self.number(pairs as i64);
        } else {
            self.array(pairs * 2);
        }
    }

    /// A number in the format in which Redis writes scores.
    pub(super) fn score(&mut self, score: f64) {
        let text = score_text(score);
        if self.three {
            self.line(b',', text.as_bytes());
        } else {
            self.bulk(text.as_bytes());
        }
    }

    fn line(&mut self, kind: u8, bytes: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    fn number(&mut self, number: i64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut left = number.unsigned_abs();
        loop {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        if number < 0 {
            self.out.push(b'-');
        }
        self.out.extend_from_slice(&digits[at..]);
        self.out.extend_from_slice(b"\r\n");
    }
}

/// A score as text that reads back as the same number.
pub(super) fn score_text(score: f64) -> String {
    if score.is_infinite() {
        return if score > 0.0 { "inf".to_owned() } else { "-inf".to_owned() };
    }
    format!("{score}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(three: bool, write: impl Fn(&mut Reply)) -> String {
        let mut out = Vec::new();
        write(&mut Reply::new(&mut out, three));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn answers_have_their_form() {
        assert_eq!(written(false, |reply| reply.integer(i64::MIN)), ":-9223372036854775808\r\n");
        assert_eq!(written(false, |reply| reply.bulk(b"")), "$0\r\n\r\n");
        assert_eq!(written(false, |reply| reply.error("ERR a\r\nb")), "-ERR a  b\r\n");
        assert_eq!(written(false, |reply| reply.map(2)), "*4\r\n");
        assert_eq!(written(true, |reply| reply.map(2)), "%2\r\n");
        assert_eq!(written(false, |reply| reply.null()), "$-1\r\n");
        assert_eq!(written(true, |reply| reply.null()), "_\r\n");
        assert_eq!(written(false, |reply| reply.score(3.0)), "$1\r\n3\r\n");
        assert_eq!(written(true, |reply| reply.score(-0.5)), ",-0.5\r\n");
    }
}
