//! Read-write locks: one writer, or any number of readers.
//!
//! First come, first served: a call waits behind all calls that already wait, and readers next to each other in the queue
//! go in together. So neither readers nor writers starve. Several threads of a node may read at the same time.

use super::objects::{Answer, Caller, HomeObject, Outcome};
use crate::page::NodeId;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// The demands on a read-write lock. Answered with 1 if the lock was obtained, otherwise with 0; demands that end a lock
/// are not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadWriteDemand {
    /// Lock for reading, together with other readers.
    Read,
    /// Lock for reading, if that is possible now.
    TryRead,
    /// Lock for writing, alone.
    Write,
    /// Lock for writing, if that is possible now.
    TryWrite,
    /// End one read lock of this node.
    EndRead,
    /// End the write lock of this node.
    EndWrite,
}

impl ReadWriteDemand {
    pub(super) fn is_end(self) -> bool {
        matches!(self, ReadWriteDemand::EndRead | ReadWriteDemand::EndWrite)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ReadWriteLock {
    writer: Option<NodeId>,
    /// The nodes that read, and how many times each.
    readers: BTreeMap<NodeId, u32>,
    /// The waiting calls, and whether each wants to write.
    queue: VecDeque<(Caller, bool)>,
}

impl HomeObject for ReadWriteLock {
    type Demand = ReadWriteDemand;

    fn demand(&mut self, caller: Caller, demand: ReadWriteDemand, _: &mut u64, answers: &mut Vec<Answer>) {
        use ReadWriteDemand::*;
        match demand {
            Read | Write => {
                self.queue.push_back((caller, demand == Write));
                self.admit(answers);
            }
            TryRead | TryWrite => {
                let got = self.queue.is_empty() && self.enter(caller.node, demand == TryWrite);
                answers.push(Answer::To(caller, Outcome::Done(u64::from(got))));
            }
            EndRead | EndWrite => self.end(caller.node, demand == EndWrite, answers),
        }
    }

    fn forget(&mut self, caller: Caller, answers: &mut Vec<Answer>) -> bool {
        let before = self.queue.len();
        self.queue.retain(|(other, _)| *other != caller);
        let waited = self.queue.len() < before;
        // Readers may have waited behind a writer that no longer waits.
        self.admit(answers);
        waited
    }

    fn undo(&mut self, node: NodeId, demand: ReadWriteDemand, value: u64, answers: &mut Vec<Answer>) {
        if value == 1 && !demand.is_end() {
            let writes = matches!(demand, ReadWriteDemand::Write | ReadWriteDemand::TryWrite);
            self.end(node, writes, answers);
        }
    }
}

impl ReadWriteLock {
    /// Admits the calls that can go in, in the order of their arrival.
    fn admit(&mut self, answers: &mut Vec<Answer>) {
        while let Some(&(caller, writes)) = self.queue.front() {
            if !self.enter(caller.node, writes) {
                break;
            }
            self.queue.pop_front();
            answers.push(Answer::To(caller, Outcome::Done(1)));
        }
    }

    fn enter(&mut self, node: NodeId, writes: bool) -> bool {
        if self.writer.is_some() || writes && !self.readers.is_empty() {
            return false;
        }
        if writes {
            self.writer = Some(node);
        } else {
            *self.readers.entry(node).or_default() += 1;
        }
        debug_assert!(self.writer.is_none() || self.readers.is_empty());
        true
    }

    fn end(&mut self, node: NodeId, writes: bool, answers: &mut Vec<Answer>) {
        if writes {
            if self.writer != Some(node) {
                return answers.push(Answer::Wrong("the end of a write lock that it does not have"));
            }
            self.writer = None;
        } else {
            let Some(count) = self.readers.get_mut(&node) else {
                return answers.push(Answer::Wrong("the end of a read lock that it does not have"));
            };
            *count -= 1;
            if *count == 0 {
                self.readers.remove(&node);
            }
        }
        self.admit(answers);
    }
}
