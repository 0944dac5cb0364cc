//! Histories: what threads of a real run read and wrote, and whether one order explains it.
//!
//! Deciding sequential consistency from reads and writes alone is NP-complete (Gibbons and Korach 1997). Here every
//! write also records what it replaced (it is an exchange, or the page's version was logged), so the order of the
//! writes to each cell is known. The question is then whether program order, reads-from, coherence, from-read and the
//! barriers together form a cycle. That takes time linear in the number of operations.
//!
//! [`check`](check::check) decides it, [`log`] writes and reads histories, [`record`] makes them on real processes.
//!
//! Promises: a history is called consistent only if it is; for any other there is a short explanation. It must never
//! rely on values being plausible: values that were never written and halves of values are reported as such.

pub mod check;
pub mod log;
pub mod record;

/// One operation of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The thread read `value` from `cell`.
    Read {
        /// Which cell.
        cell: u32,
        /// The value read; zero before the first write.
        value: u64,
    },
    /// The thread replaced `replaced` by `value`, atomically.
    Exchange {
        /// Which cell.
        cell: u32,
        /// The value written; no other operation writes it into this cell.
        value: u64,
        /// The value replaced.
        replaced: u64,
    },
    /// The thread wrote `value` as version number `version` of the cell.
    Write {
        /// Which cell.
        cell: u32,
        /// The value written; no other operation writes it into this cell.
        value: u64,
        /// Its position among the writes to the cell; gaps are allowed.
        version: u64,
    },
    /// The thread arrived at barrier number `number` and went on when all threads that use it had arrived.
    Barrier {
        /// Which barrier.
        number: u32,
    },
}

/// The operations of one thread, in program order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its node.
    pub node: u16,
    /// Its operations.
    pub operations: Vec<Operation>,
}

/// The operations of all threads of a run.
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

    /// Whether there are no operations.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The maximum number of threads whose values [`value_of`] distinguishes.
pub const THREADS_MAX: u32 = 1 << 9;
/// The maximum number of writes of a thread.
pub const WRITES_MAX: u32 = 1 << 23;

/// The value of write number `number` of `thread`. It differs from that of any other write and is never zero. Its
/// upper half is the complement of its lower half, so that halves of two values do not make a third.
pub fn value_of(thread: u32, number: u32) -> u64 {
    assert!(thread < THREADS_MAX && number < WRITES_MAX, "thread {thread}, write {number}");
    let low = thread << 23 | number;
    u64::from(low) | u64::from(!low) << 32
}

/// A value as text: its thread and number of the write, if it has them.
pub fn value_text(value: u64) -> String {
    let low = value as u32;
    match value {
        0 => "0".to_string(),
        _ if (value >> 32) as u32 == !low => format!("{}.{}", low >> 23, low & (WRITES_MAX - 1)),
        _ => format!("{value:#x}"),
    }
}
