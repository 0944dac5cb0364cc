//! Histories: what threads of a real run read and wrote, and whether one order explains it.
//!
//! Deciding sequential consistency from reads and writes alone is NP-complete (Gibbons and Korach
//! 1997). Here every write says what it replaced (it is an exchange, or the page's version was
//! logged), so the order of the writes to each cell is known, and the question is whether program order,
//! reads-from, coherence, from-read and the barriers together form a circle. That takes time linear in the
//! number of operations.
//!
//! [`check`](check::check) answers it, [`log`] writes and reads histories, [`record`] makes them on real
//! processes.
//!
//! Promises: a history is called consistent only if it is, and one that is not is told as a short story.
//! It must never need a value to be plausible: values from nowhere and halves of values are named as
//! such.

pub mod check;
pub mod log;
pub mod record;

/// One thing that a thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It read `value` from `cell`.
    Read {
        /// Which cell.
        cell: u32,
        /// What was there; zero before anybody wrote.
        value: u64,
    },
    /// It put `value` in place of `replaced`, in one step.
    Exchange {
        /// Which cell.
        cell: u32,
        /// What it put; nobody else ever puts it into this cell.
        value: u64,
        /// What was there.
        replaced: u64,
    },
    /// It wrote `value` as version number `version` of the cell.
    Write {
        /// Which cell.
        cell: u32,
        /// What it put; nobody else ever puts it into this cell.
        value: u64,
        /// Its place among the writes to the cell; gaps are allowed.
        version: u64,
    },
    /// It came to barrier number `number` and went on when all threads that come to it had come.
    Barrier {
        /// Which barrier.
        number: u32,
    },
}

/// What one thread did, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its node.
    pub node: u16,
    /// What it did.
    pub operations: Vec<Operation>,
}

/// What all threads of a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The threads.
    pub threads: Vec<Thread>,
}

impl History {
    /// Number of operations.
    pub fn len(&self) -> usize {
        self.threads.iter().map(|thread| thread.operations.len()).sum()
    }

    /// Whether nothing was done.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Most threads whose values [`value_of`] keeps apart.
pub const THREADS_MAX: u32 = 1 << 9;
/// Most writes of a thread.
pub const WRITES_MAX: u32 = 1 << 23;

/// The value of write number `number` of `thread`: unlike that of any other write, never zero, and its upper half is
/// the complement of its lower half, so that halves of two values do not make a third.
pub fn value_of(thread: u32, number: u32) -> u64 {
    assert!(thread < THREADS_MAX && number < WRITES_MAX, "thread {thread}, write {number}");
    let low = thread << 23 | number;
    u64::from(low) | u64::from(!low) << 32
}

/// A value in words: whose write it is, if it is one.
pub fn value_text(value: u64) -> String {
    let low = value as u32;
    match value {
        0 => "0".to_string(),
        _ if (value >> 32) as u32 == !low => format!("{}.{}", low >> 23, low & (WRITES_MAX - 1)),
        _ => format!("{value:#x}"),
    }
}
