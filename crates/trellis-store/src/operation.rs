//! What one call can do to a store, and what it returns.

use crate::key::Key;

/// One step of a call of [`crate::Store::apply`].
///
/// A step sees the effects of earlier steps of the same call. Keys of [`crate::Kind::Log`] are logs: only `Append`,
/// `Entries`, `Trim` and [`Change::Delete`] (which deletes the whole log) apply to them. All other keys are values, to
/// which those log steps do not apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read a value, or `length` bytes of it from `offset` on when `range` is `Some((offset, length))`. Bytes beyond its
    /// end are left out.
    Get {
        /// The key.
        key: Key,
        /// The bytes to read; `None` reads all of them.
        range: Option<(u32, u32)>,
    },
    /// Change a value unconditionally.
    Change {
        /// The key.
        key: Key,
        /// The change.
        change: Change,
    },
    /// Change a value if it is as expected; refuse the call otherwise.
    CompareAndSwap {
        /// The key.
        key: Key,
        /// The expected value.
        expect: Expect,
        /// The change.
        change: Change,
    },
    /// Add to the little-endian integer of `width` bytes at `offset` (missing bytes are zero), wrapping at its width. The
    /// call is refused if the sum, as a signed number, would leave `bounds`.
    Add {
        /// The key.
        key: Key,
        /// The offset of the integer.
        offset: u32,
        /// 1, 2, 4 or 8.
        width: u8,
        /// What to add.
        delta: i64,
        /// The least and the greatest allowed sum.
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
        /// The last sequence number that the caller knows.
        after: u64,
        /// The maximum number of entries.
        count: u32,
    },
    /// Delete the entries of a log up to and including a sequence number. Numbering continues as before.
    Trim {
        /// The log.
        log: Key,
        /// The last sequence number to delete.
        upto: u64,
    },
}

/// The effect of a change on a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The value becomes these bytes.
    Put(Vec<u8>),
    /// These bytes of the value change; a shorter value is first extended with zeros.
    PutRange {
        /// The offset of the bytes.
        offset: u32,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The value is deleted.
    Delete,
}

/// The condition on a value for a change to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// There is no value.
    Absent,
    /// The value is exactly these bytes.
    Value(Vec<u8>),
    /// The value has these bytes at `offset`; missing bytes count as zero.
    Range {
        /// The offset of the bytes.
        offset: u32,
        /// The bytes.
        bytes: Vec<u8>,
    },
}

/// A condition for the whole call to have any effect: fencing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The key of the value that is compared; always a control key of the region that is changed.
    pub key: Key,
    /// The expected value.
    pub expect: Expect,
}

/// The result of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The bytes that were read; `None` if there is no value.
    Value(Option<Vec<u8>>),
    /// The value was changed.
    Changed,
    /// The integer before the addition, sign-extended.
    Added(i64),
    /// The sequence number of the new entry.
    Appended(u64),
    /// Entries of a log.
    Entries {
        /// The newest sequence number ever assigned; 0 for a log that has none.
        last: u64,
        /// The oldest sequence number still kept; `last + 1` if none is. If it is above `after + 1`, entries in between
        /// were deleted.
        first: u64,
        /// The entries.
        entries: Vec<Entry>,
    },
    /// The entries were deleted.
    Trimmed,
    /// The call was refused at another step, so this step, which would have changed something, had no effect.
    Skipped,
}

/// An entry of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its sequence number.
    pub sequence: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Which step refused a call, and the value that it found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The index of the step.
    pub step: usize,
    /// The whole current value.
    pub found: Option<Vec<u8>>,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Every step was done; one outcome for each.
    Done(Vec<Outcome>),
    /// A comparison or a bound failed, and nothing was changed. There is an outcome for each step. A step that only reads
    /// has what it finds in the unchanged store, wherever it stands in the call; every other step has
    /// [`Outcome::Skipped`].
    Refused(Refused, Vec<Outcome>),
    /// The guard did not hold; nothing was changed or read.
    Fenced {
        /// The current value of the guard's key.
        found: Option<Vec<u8>>,
    },
}

impl Operation {
    /// The key that the step is about.
    pub fn key(&self) -> &Key {
        match self {
            Operation::Get { key, .. }
            | Operation::Change { key, .. }
            | Operation::CompareAndSwap { key, .. }
            | Operation::Add { key, .. } => key,
            Operation::Append { log, .. } | Operation::Entries { log, .. } | Operation::Trim { log, .. } => log,
        }
    }

    /// Whether the step only reads.
    pub fn only_reads(&self) -> bool {
        matches!(self, Operation::Get { .. } | Operation::Entries { .. })
    }
}
