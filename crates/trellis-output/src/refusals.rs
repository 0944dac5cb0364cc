//! The refusals at a control socket.
//!
//! Promises: the peer is told why, and each refusal is counted. The process that owns the socket reports the first one, the
//! tenth, the hundredth and so on, if it has a place for that. It must never let a peer fill the output of that process.

use std::fmt::Arguments;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::json_lines::Lines;

/// The sentence for a request that is not understood.
const NOT_UNDERSTOOD: &str = "the request is not understood: the command and the process that it asks are of different \
                              versions; start the process again, or use the command that belongs to it";

/// See the module.
pub struct Refusals {
    /// The name of the owner in sentences, for example `switch`.
    owner: &'static str,
    report: Option<fn(Arguments<'_>)>,
    count: AtomicU64,
}

impl Refusals {
    /// None yet. `report` shows a sentence to the user of the process; a process without output only counts.
    pub const fn new(owner: &'static str, report: Option<fn(Arguments<'_>)>) -> Refusals {
        Refusals { owner, report, count: AtomicU64::new(0) }
    }

    /// The number of refusals so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Refuses a request: `refusal` makes the answer for the peer from the sentence.
    ///
    /// # Errors
    ///
    /// Those of the socket. The refusal is counted in any case.
    pub fn refuse<A: Serialize>(
        &self,
        lines: &mut Lines,
        sentence: String,
        refusal: impl Fn(String) -> A,
    ) -> io::Result<()> {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(report) = self.report.filter(|_| trellis_base::is_worth_reporting(count)) {
            let owner = self.owner;
            report(format_args!("the {owner} refused a request at its control socket: {sentence} (refusal {count})"));
        }
        lines.send(&refusal(sentence))
    }

    /// Like [`Lines::receive`]. A request that is not understood is refused before the error is returned.
    ///
    /// # Errors
    ///
    /// See [`Lines::receive`].
    pub fn receive<T: for<'a> Deserialize<'a>, A: Serialize>(
        &self,
        lines: &mut Lines,
        refusal: impl Fn(String) -> A,
    ) -> io::Result<Option<T>> {
        let received = lines.receive();
        if received.as_ref().is_err_and(|error| error.kind() == ErrorKind::InvalidData) {
            self.refuse(lines, NOT_UNDERSTOOD.to_owned(), refusal)?;
        }
        received
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;

    static REPORTED: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn report(sentence: Arguments<'_>) {
        REPORTED.lock().unwrap().push(sentence.to_string());
    }

    #[test]
    fn a_peer_is_told_why_and_the_owner_reports_the_first_and_the_tenth() {
        let refusals = Refusals::new("switch", Some(report));
        for _ in 0..12 {
            let (one, other) = UnixStream::pair().expect("a pair of sockets");
            let mut server = Lines::new(one, Duration::from_secs(60)).expect("a socket");
            let mut client = Lines::new(other, Duration::from_secs(60)).expect("a socket");
            client.send(&"a word").expect("it is taken");
            let refused = refusals.receive::<u32, _>(&mut server, |why| why).expect_err("a word is not a number");
            assert_eq!(refused.kind(), ErrorKind::InvalidData);
            assert_eq!(client.receive::<String>().expect("an answer").as_deref(), Some(NOT_UNDERSTOOD));
        }
        assert_eq!(refusals.count(), 12);
        let reported = REPORTED.lock().unwrap();
        let [first, tenth] = &reported[..] else { panic!("{reported:?}") };
        assert!(first.starts_with("the switch refused a request at its control socket: the request is not understood"));
        assert!(first.ends_with("(refusal 1)") && tenth.ends_with("(refusal 10)"), "{reported:?}");
    }
}
