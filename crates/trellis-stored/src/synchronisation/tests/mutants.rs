//! Broken variants: each must be detected by the test of what it breaks.

use trellis_store::{Expect, Guard, Kind, Operation};

use super::super::record;

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutant {
    /// Calls are not guarded by the member's record.
    NoGuard,
    /// A lock can be taken while it is held.
    LockIsTakenAlways,
    /// Heartbeats are not counted.
    NoHeartbeats,
    /// A wait for a condition does not read it when the lock is released.
    ConditionReadLate,
    /// A reader ignores a writer.
    ReaderOverlooksWriter,
    /// A semaphore is lowered below zero.
    SemaphoreWithoutBound,
    /// A barrier opens one arrival too early.
    BarrierTooEarly,
}

impl Mutant {
    /// The steps of a call as the mutant makes them.
    pub(super) fn change(
        mutant: Option<Mutant>,
        operations: &[Operation],
        guard: Option<&Guard>,
    ) -> (Vec<Operation>, Option<Guard>) {
        let Some(mutant) = mutant else { return (operations.to_vec(), guard.cloned()) };
        let operations = operations.iter().map(|operation| mutant.step(operation)).collect();
        (operations, guard.filter(|_| mutant != Mutant::NoGuard).cloned())
    }

    fn step(self, operation: &Operation) -> Operation {
        let form = |operation: &Operation| operation.key().number() >> 60;
        let kind = operation.key().kind();
        match (self, operation.clone()) {
            (
                Mutant::LockIsTakenAlways,
                Operation::CompareAndSwap { key, expect: Expect::Range { bytes, .. }, change },
            ) if kind == Kind::Synchronisation && form(operation) == record::Form::Lock as u64 && bytes == [0; 8] => {
                Operation::Change { key, change }
            }
            (Mutant::NoHeartbeats, Operation::Add { key, offset, width, bounds, .. })
                if kind == Kind::Member && key.number() != 0 =>
            {
                Operation::Add { key, offset, width, delta: 0, bounds }
            }
            (
                Mutant::ConditionReadLate,
                Operation::Add { key, offset, width, delta: 0, bounds: Some((least, most)) },
            ) if form(operation) == record::Form::Condition as u64 => {
                // It waits for the number that it would have read after the notification.
                Operation::Add { key, offset, width, delta: 0, bounds: Some((least + 1, most)) }
            }
            (
                Mutant::ReaderOverlooksWriter,
                Operation::Add { key, offset: 0, width, delta: 0, bounds: Some((0, 0)) },
            ) if form(operation) == record::Form::ReadWriteLock as u64 => {
                Operation::Add { key, offset: 0, width, delta: 0, bounds: None }
            }
            (Mutant::SemaphoreWithoutBound, Operation::Add { key, offset, width, delta: -1, .. })
                if form(operation) == record::Form::Semaphore as u64 =>
            {
                Operation::Add { key, offset, width, delta: -1, bounds: None }
            }
            (Mutant::BarrierTooEarly, Operation::Add { key, offset, width, delta: 0, bounds: Some((least, most)) })
                if form(operation) == record::Form::Barrier as u64 =>
            {
                Operation::Add { key, offset, width, delta: 0, bounds: Some((least - 1, most)) }
            }
            (_, operation) => operation,
        }
    }
}
