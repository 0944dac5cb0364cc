//! Counting semaphores: a number of permits that starts at zero. A release adds permits, and an acquisition takes one as
//! soon as there is one.
//!
//! Waiting calls go on in the order of their arrival. A semaphore can also serve as an event that its waiter consumes, a
//! *pulse*: a release lets exactly one acquisition through, whether it is already there or still to come.

use super::objects::{Answer, Caller, HomeObject, Outcome, Refusal};
use crate::page::NodeId;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The demands on a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SemaphoreDemand {
    /// Lower it by one as soon as that is possible. Answered with 1.
    Acquire,
    /// Lower it by one if that is possible now. Answered with 1 if it was, otherwise with 0.
    TryAcquire,
    /// Raise it by this number. Answered with 0 when done.
    Release(u64),
    /// Raise it by this number, without an answer. It stays as it is if it would pass 2^64 - 1.
    Post(u64),
    /// Read its value. Answered with the value.
    Value,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Semaphore {
    value: u64,
    queue: VecDeque<Caller>,
}

impl HomeObject for Semaphore {
    type Demand = SemaphoreDemand;

    fn demand(&mut self, caller: Caller, demand: SemaphoreDemand, _: &mut u64, answers: &mut Vec<Answer>) {
        let answer = match demand {
            SemaphoreDemand::Acquire if self.value == 0 => return self.queue.push_back(caller),
            SemaphoreDemand::TryAcquire if self.value == 0 => 0,
            SemaphoreDemand::Acquire | SemaphoreDemand::TryAcquire => {
                self.value -= 1;
                1
            }
            SemaphoreDemand::Release(count) => {
                if self.value.checked_add(count).is_none() {
                    return answers.push(Answer::To(caller, Outcome::Refused(Refusal::Overflow)));
                }
                self.raise(count, answers);
                0
            }
            SemaphoreDemand::Post(count) => {
                if self.value.checked_add(count).is_some() {
                    self.raise(count, answers);
                }
                return;
            }
            SemaphoreDemand::Value => self.value,
        };
        answers.push(Answer::To(caller, Outcome::Done(answer)));
    }

    fn forget(&mut self, caller: Caller, _: &mut Vec<Answer>) -> bool {
        let before = self.queue.len();
        self.queue.retain(|other| *other != caller);
        self.queue.len() < before
    }

    fn undo(&mut self, _: NodeId, demand: SemaphoreDemand, value: u64, answers: &mut Vec<Answer>) {
        if value == 1 && matches!(demand, SemaphoreDemand::Acquire | SemaphoreDemand::TryAcquire) {
            self.raise(1, answers);
        }
    }
}

impl Semaphore {
    fn raise(&mut self, count: u64, answers: &mut Vec<Answer>) {
        debug_assert!(self.value == 0 || self.queue.is_empty(), "nobody waits for what is there");
        let let_through = (self.queue.len() as u64).min(count);
        for caller in self.queue.drain(..let_through as usize) {
            answers.push(Answer::To(caller, Outcome::Done(1)));
        }
        // The undoing of a wait may find the semaphore at the largest value: the value then stays as it is.
        self.value = self.value.saturating_add(count - let_through);
    }
}
