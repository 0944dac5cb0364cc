//! What can be done to a store in one call, and what came of it.

use crate::key::Key;

/// One step of a call of [`crate::Store::apply`].
///
/// Steps see what earlier steps of the same call did. Keys of [`crate::Kind::Log`] are logs: only `Append`, `Entries`, `Trim`
/// and [`Change::Delete`] (which forgets the whole log) are about them; all other keys are values, and nothing of that
/// is about those.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read a value, or `length` bytes of it from `offset` on when `range` is `Some((offset, length))`; bytes beyond its end
    /// are left out.
    Get {
        /// Which.
        key: Key,
        /// Which bytes; all of them without.
        range: Option<(u32, u32)>,
    },
    /// Change a value, whatever it was.
    Change {
        /// Which.
        key: Key,
        /// To what.
        change: Change,
    },
    /// Change a value if it is what was expected; refused otherwise.
    CompareAndSwap {
        /// Which.
        key: Key,
        /// What it must be.
        expect: Expect,
        /// To what.
        change: Change,
    },
    /// Add to the little-endian integer of `width` bytes at `offset` (missing bytes are zero), wrapping at its width;
    /// refused where the sum, as a signed number, would leave `bounds`.
    Add {
        /// Which.
        key: Key,
        /// Where the number begins.
        offset: u32,
        /// 1, 2, 4 or 8.
        width: u8,
        /// What to add.
        delta: i64,
        /// Least and most that the sum may be.
        bounds: Option<(i64, i64)>,
    },
    /// Append an entry to a log; its sequence number is one more than the last one's. The first is 1.
    Append {
        /// The log.
        log: Key,
        /// The entry.
        bytes: Vec<u8>,
    },
    /// Read the entries of a log after a sequence number, oldest first, at most `count` of them.
    Entries {
        /// The log.
        log: Key,
        /// The last one that is known.
        after: u64,
        /// The most to read.
        count: u32,
    },
    /// Forget the entries of a log up to and with a sequence number. Numbers go on as before.
    Trim {
        /// The log.
        log: Key,
        /// The last one to forget.
        upto: u64,
    },
}

/// What becomes of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is these bytes.
    Put(Vec<u8>),
    /// These bytes of it change; a value that is shorter grows with zeros.
    PutRange {
        /// Where the bytes go.
        offset: u32,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// It is gone.
    Delete,
}

/// What a value must be for a change to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// There is none.
    Absent,
    /// It is these bytes.
    Value(Vec<u8>),
    /// It has these bytes at `offset`; bytes that are missing count as zero.
    Range {
        /// Where they begin.
        offset: u32,
        /// The bytes.
        bytes: Vec<u8>,
    },
}

/// What must hold for a call to have any effect: fencing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Of which value; always a control key of the region that is changed.
    pub key: Key,
    /// What it must be.
    pub expect: Expect,
}

/// What one step gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The bytes that were read; nothing where there is no value.
    Value(Option<Vec<u8>>),
    /// It was changed.
    Changed,
    /// What the number was before (sign-extended).
    Added(i64),
    /// The number of the new entry.
    Appended(u64),
    /// Entries of a log.
    Entries {
        /// The newest number ever given; 0 for a log that has none.
        last: u64,
        /// The oldest number that is still kept, `last + 1` when none is. Where it is above `after + 1`, entries between
        /// were forgotten.
        first: u64,
        /// What was asked for.
        entries: Vec<Entry>,
    },
    /// It was forgotten.
    Trimmed,
    /// The call was refused at another step, so that this one (which would have changed something) did nothing.
    Skipped,
}

/// An entry of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number.
    pub sequence: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Which step refused a call, and what it found instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The step.
    pub step: usize,
    /// The whole value as it is.
    pub found: Option<Vec<u8>>,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Everything was done; one outcome for each step.
    Done(Vec<Outcome>),
    /// A comparison or a bound failed, and nothing was changed. There is an outcome for each step: that of a step that
    /// only reads is what it finds in the unchanged store (wherever it stands in the call), every other is
    /// [`Outcome::Skipped`].
    Refused(Refused, Vec<Outcome>),
    /// The guard did not hold, and nothing was changed or read.
    Fenced {
        /// What the guard's value is.
        found: Option<Vec<u8>>,
    },
}

impl Operation {
    /// The key that it is about.
    pub fn key(&self) -> &Key {
        match self {
            Operation::Get { key, .. }
            | Operation::Change { key, .. }
            | Operation::CompareAndSwap { key, .. }
            | Operation::Add { key, .. } => key,
            Operation::Append { log, .. } | Operation::Entries { log, .. } | Operation::Trim { log, .. } => log,
        }
    }

    /// Whether it only reads.
    pub fn only_reads(&self) -> bool {
        matches!(self, Operation::Get { .. } | Operation::Entries { .. })
    }
}
