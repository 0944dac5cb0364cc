//! The waits of a node: what its threads may wait for, for how long, and what error they get after that.
//!
//! Promises: a node waits for another one, or for a thread of its own program, only by a kind of [`Wait`]. Each kind
//! has a limit and an error that names who is in the way. `docs/reference/waits.md` contains the table that is made
//! here; its other table contains [`WAITS`].

use std::fmt;
use std::time::Duration;

use trellis_base::Deadline;

use crate::config::Config;
use crate::engines::rendezvous;
#[cfg(feature = "remote")]
use crate::runtime::leases;
use crate::runtime::{consistency, failure, pages, waiters};
use crate::{join, secret};

/// What a thread waits for, with the page or the number of the object if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// For the peers, to start.
    Start,
    /// For a page to read.
    ReadFault(u64),
    /// For a page to write.
    WriteFault(u64),
    /// For a page that was requested before it is touched.
    Fetch(u64),
    /// For the others, in a barrier of all nodes.
    Barrier(u64),
    /// For a lock.
    Lock(u64),
    /// For the answer to an operation on a word.
    Atomic(u64),
    /// For the others, in a barrier for a number of participants.
    CountingBarrier(u64),
    /// For a read-write lock.
    ReadWriteLock(u64),
    /// For a semaphore.
    Semaphore(u64),
    /// For an event flag.
    Event(u64),
    /// For a one-time action.
    Once(u64),
    /// For a condition to be notified.
    Condition(u64),
    /// For pages to lock. The number is that of the first page.
    LockRange(u64),
    /// For the homes of pages, to take what was stored.
    Publication,
    /// For the new home of pages.
    Placement(u64),
    /// For the other nodes, to change the protocol of pages.
    ProtocolChange,
    /// For the shared heap, to allocate or free memory.
    Heap,
    /// For a page of a node that leaves.
    TakeOver(u64),
    /// For the reports of the others about an object, for the sentence of another wait.
    Inquiry,
    /// For the others, to leave.
    Leave,
}

/// How soon a wait may be over, in ascending order: who waits for less time is worth waking first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// The others must do something first.
    None,
    /// A lock, or another object that threads have for a short time.
    Lock,
    /// A page, which its owner gives at once.
    Page,
}

/// The limit of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// As long as this key of the configuration says, in seconds.
    Key(&'static str),
    /// As long as `fault_seconds_max` says; for a page that a program keeps locked, as long as `wait_seconds_max` says.
    Fault,
    /// This time.
    Fixed(Duration),
    /// As long as the others live: a member that dies or falls silent ends the wait.
    Members,
}

/// How long the others have to report about an object.
const INQUIRY_MAX: Duration = Duration::from_secs(1);

/// The waits of a node that are not kinds of [`Wait`].
pub const WAITS: &[Deadline] = &[
    secret::PIPE,
    join::LOOK,
    rendezvous::ANSWER,
    waiters::SLOT,
    consistency::TURN,
    pages::HOLD,
    #[cfg(feature = "remote")]
    leases::SERVER,
    #[cfg(feature = "remote")]
    leases::WHERE,
    failure::GRACE,
];

/// One row of the table.
struct Row {
    code: u64,
    wait: Wait,
    limit: Limit,
    /// What happens after the limit, and whom the sentence names.
    error: &'static str,
}

const WAIT_KEY: Limit = Limit::Key("wait_seconds_max");

/// Every kind, with its code in a status page.
const ROWS: [Row; 21] = [
    Row {
        code: 1,
        wait: Wait::Start,
        limit: Limit::Key("start_seconds_max"),
        error: "`JoinError::Peers`; who did not come, and what was refused meanwhile",
    },
    Row {
        code: 3,
        wait: Wait::ReadFault(0),
        limit: Limit::Fault,
        error: "the node ends (exit status 70); the page's home, and who was asked for it last or keeps it locked",
    },
    Row {
        code: 4,
        wait: Wait::WriteFault(0),
        limit: Limit::Fault,
        error: "the node ends (exit status 70); the page's home, and who was asked for it last or keeps it locked",
    },
    Row {
        code: 18,
        wait: Wait::Fetch(0),
        limit: Limit::Fault,
        error: "`WaitError::TooLong`; the page's home, and who was asked for it last",
    },
    Row { code: 5, wait: Wait::Barrier(0), limit: WAIT_KEY, error: "`WaitError::TooLong`; who has not come" },
    Row { code: 6, wait: Wait::Lock(0), limit: WAIT_KEY, error: "`WaitError::TooLong`; who holds it" },
    Row { code: 7, wait: Wait::Atomic(0), limit: WAIT_KEY, error: "`WaitError::TooLong`; its home" },
    Row {
        code: 12,
        wait: Wait::CountingBarrier(0),
        limit: WAIT_KEY,
        error: "`WaitError::TooLong`; how many have come, and of which nodes",
    },
    Row { code: 13, wait: Wait::ReadWriteLock(0), limit: WAIT_KEY, error: "`WaitError::TooLong`; who holds it" },
    Row {
        code: 14,
        wait: Wait::Semaphore(0),
        limit: WAIT_KEY,
        error: "`WaitError::TooLong`; that nobody has released it, and who waits too",
    },
    Row {
        code: 15,
        wait: Wait::Event(0),
        limit: WAIT_KEY,
        error: "`WaitError::TooLong`; that nobody has set it, and who waits too",
    },
    Row { code: 16, wait: Wait::Once(0), limit: WAIT_KEY, error: "`WaitError::TooLong`; who does it" },
    Row {
        code: 17,
        wait: Wait::Condition(0),
        limit: WAIT_KEY,
        error: "`WaitError::TooLong`; that nobody has notified it, and who waits too",
    },
    Row {
        code: 10,
        wait: Wait::LockRange(0),
        limit: WAIT_KEY,
        error: "`WaitError::TooLong`; the page that did not come, and who has it",
    },
    Row {
        code: 19,
        wait: Wait::Publication,
        limit: WAIT_KEY,
        error: "`WaitError::TooLong`, and what was to be given back stays; the homes that owe an answer",
    },
    Row { code: 21, wait: Wait::Placement(0), limit: WAIT_KEY, error: "`WaitError::TooLong`; the page's home" },
    Row {
        code: 11,
        wait: Wait::ProtocolChange,
        limit: WAIT_KEY,
        error: "`WaitError::TooLong`; who did not come, or who has a page",
    },
    Row {
        code: 20,
        wait: Wait::Heap,
        limit: WAIT_KEY,
        error: "`WaitError::TooLong`; who has the block, or the directory",
    },
    Row {
        code: 22,
        wait: Wait::TakeOver(0),
        limit: WAIT_KEY,
        error: "the node ends (exit status 70); the pages that cannot be taken over",
    },
    Row {
        code: 23,
        wait: Wait::Inquiry,
        limit: Limit::Fixed(INQUIRY_MAX),
        error: "the sentence says who did not answer",
    },
    Row {
        code: 8,
        wait: Wait::Leave,
        limit: Limit::Members,
        error: "lines on standard error name the nodes that have not left",
    },
];

impl Wait {
    pub(crate) fn urgency(self) -> Urgency {
        match self {
            Wait::ReadFault(_) | Wait::WriteFault(_) | Wait::Fetch(_) => Urgency::Page,
            Wait::Lock(_) | Wait::ReadWriteLock(_) | Wait::Atomic(_) | Wait::Heap => Urgency::Lock,
            _ => Urgency::None,
        }
    }

    /// Every kind, with page or object 0 if it has one.
    pub const ALL: [Wait; ROWS.len()] = {
        let mut all = [Wait::Start; ROWS.len()];
        let mut index = 0;
        while index < ROWS.len() {
            all[index] = ROWS[index].wait;
            index += 1;
        }
        all
    };

    /// The limit of the wait.
    pub fn limit(self) -> Limit {
        self.row().limit
    }

    /// The limit in nanoseconds; `u64::MAX` if the members decide.
    pub(crate) fn limit_ns(self, config: &Config) -> u64 {
        match self.limit() {
            Limit::Key("start_seconds_max") => config.start_seconds_max.saturating_mul(1_000_000_000),
            Limit::Key(_) => config.wait_seconds_max.saturating_mul(1_000_000_000),
            Limit::Fault => config.fault_seconds_max.saturating_mul(1_000_000_000),
            Limit::Fixed(time) => nanoseconds(time),
            Limit::Members => u64::MAX,
        }
    }

    /// The table of `docs/reference/waits.md`.
    pub fn table() -> String {
        let mut table = String::from("| a thread of a node is | at most | then |\n|---|---|---|\n");
        for row in &ROWS {
            let what = row.wait.to_string();
            let what = what.strip_suffix(" 0").map_or(what.clone(), |before| format!("{before} N"));
            table += &format!("| {what} | {} | {} |\n", row.limit, row.error);
        }
        table
    }

    /// Whether both are of the same kind.
    pub(crate) fn is_like(self, other: Wait) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    /// The number of the object, if the wait is for an object.
    pub(crate) fn object(mut self) -> Option<u64> {
        let is_page = matches!(
            self,
            Wait::ReadFault(_)
                | Wait::WriteFault(_)
                | Wait::Fetch(_)
                | Wait::LockRange(_)
                | Wait::Placement(_)
                | Wait::TakeOver(_)
        );
        self.detail().map(|detail| *detail).filter(|_| !is_page)
    }

    fn row(self) -> &'static Row {
        ROWS.iter().find(|row| row.wait.is_like(self)).expect("every kind has a row")
    }

    /// The code of the kind, which a launcher of this version understands, and the page or object.
    pub(crate) fn to_code(mut self) -> (u64, u64) {
        (self.row().code, self.detail().map_or(0, |detail| *detail))
    }

    pub(crate) fn from_code(code: u64, detail: u64) -> Option<Wait> {
        ROWS.iter().find(|row| row.code == code).map(|row| row.wait.with(detail))
    }

    /// The same kind of wait with another page or object.
    pub(crate) fn with(mut self, detail: u64) -> Wait {
        if let Some(own) = self.detail() {
            *own = detail;
        }
        self
    }

    /// The page or the number of the object, if there is one.
    fn detail(&mut self) -> Option<&mut u64> {
        match self {
            Wait::ReadFault(detail)
            | Wait::WriteFault(detail)
            | Wait::Fetch(detail)
            | Wait::Barrier(detail)
            | Wait::Lock(detail)
            | Wait::Atomic(detail)
            | Wait::CountingBarrier(detail)
            | Wait::ReadWriteLock(detail)
            | Wait::Semaphore(detail)
            | Wait::Event(detail)
            | Wait::Once(detail)
            | Wait::Condition(detail)
            | Wait::LockRange(detail)
            | Wait::Placement(detail)
            | Wait::TakeOver(detail) => Some(detail),
            Wait::Start | Wait::Publication | Wait::ProtocolChange | Wait::Heap | Wait::Inquiry | Wait::Leave => None,
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Display for Wait {
    /// In words that complete "the node was killed while …".
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::Start => formatter.write_str("waiting for its peers to start"),
            Wait::ReadFault(page) => write!(formatter, "waiting to read page {page}"),
            Wait::WriteFault(page) => write!(formatter, "waiting to write page {page}"),
            Wait::Fetch(page) => write!(formatter, "fetching page {page}"),
            Wait::Barrier(id) => write!(formatter, "waiting in barrier {id}"),
            Wait::Lock(id) => write!(formatter, "waiting for lock {id}"),
            Wait::Atomic(id) => write!(formatter, "waiting for atomic {id}"),
            Wait::CountingBarrier(id) => write!(formatter, "waiting in counting barrier {id}"),
            Wait::ReadWriteLock(id) => write!(formatter, "waiting for read-write lock {id}"),
            Wait::Semaphore(id) => write!(formatter, "waiting for semaphore {id}"),
            Wait::Event(id) => write!(formatter, "waiting for event {id}"),
            Wait::Once(id) => write!(formatter, "waiting for once {id}"),
            Wait::Condition(id) => write!(formatter, "waiting for condition {id}"),
            Wait::LockRange(page) => write!(formatter, "waiting to lock page {page}"),
            Wait::Publication => formatter.write_str("sending what was stored to the homes of its pages"),
            Wait::Placement(page) => write!(formatter, "choosing a home for page {page}"),
            Wait::ProtocolChange => formatter.write_str("changing the protocol of pages"),
            Wait::Heap => formatter.write_str("waiting for the shared heap"),
            Wait::TakeOver(page) => write!(formatter, "taking over page {page}"),
            Wait::Inquiry => formatter.write_str("asking who is in the way"),
            Wait::Leave => formatter.write_str("leaving the cluster"),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Key(key) => write!(formatter, "`{key}`"),
            Limit::Fault => formatter.write_str("`fault_seconds_max`; of a locked page `wait_seconds_max`"),
            Limit::Fixed(time) => write!(formatter, "{} s", time.as_secs()),
            Limit::Members => formatter.write_str("as long as all members live (`silence_seconds_max`)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_kind_has_one_row_and_survives_its_code() {
        for (index, wait) in Wait::ALL.into_iter().enumerate() {
            let (code, _) = wait.with(7).to_code();
            assert_eq!(Wait::from_code(code, 7), Some(wait.with(7)));
            assert!(ROWS[..index].iter().all(|row| row.code != code), "{wait}: its code is another one's");
            assert!(!wait.row().error.is_empty());
        }
        assert_eq!(Wait::from_code(0, 0), None);
    }

    #[test]
    fn the_reference_page_has_the_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/waits.md");
        let page = std::fs::read_to_string(&path).unwrap();
        assert!(page.contains(&Wait::table()), "{} lacks the table\n{}", path.display(), Wait::table());
    }

    #[test]
    fn limits_come_from_the_keys_that_the_table_names() {
        let config = Config { start_seconds_max: 2, wait_seconds_max: 3, fault_seconds_max: 4, ..Config::default() };
        for wait in Wait::ALL {
            let expected = match wait.limit() {
                Limit::Key("start_seconds_max") => 2_000_000_000,
                Limit::Key("wait_seconds_max") => 3_000_000_000,
                Limit::Key(key) => panic!("{wait}: no such key: {key}"),
                Limit::Fault => 4_000_000_000,
                Limit::Fixed(_) => 1_000_000_000,
                Limit::Members => u64::MAX,
            };
            assert_eq!(wait.limit_ns(&config), expected, "{wait}");
        }
    }
}
