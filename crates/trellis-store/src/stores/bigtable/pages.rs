//! Calls on keys that have a row each.
//!
//! Promises: each key changes completely or not at all, and a refused call changes none. The way of changing depends on
//! the key's steps: short byte ranges and whole values are written without reading. Everything else is read, changed
//! here, and written on the condition that no other writer changed it meanwhile. Steps that may be refused are done
//! first.

use std::collections::{BTreeMap, BTreeSet};

use tokio::task::JoinSet;

use super::cells::{self, Marks};
use super::control::RowChange;
use super::link::{Link, everything};
use crate::error::StoreError;
use crate::key::Key;
use crate::operation::{Applied, Change, Guard, Operation, Outcome, Refused};
use crate::steps;
use crate::stores::grpc::Timeout;
use crate::stores::grpc::failure::Failure;
use crate::stores::grpc::image::{Image, Needs};
use crate::stores::grpc::served::Connection as _;
use crate::transaction;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as api;

/// The maximum number of bytes of a value that are changed one by one; for more, reading and writing the whole value
/// costs less.
const BYTES_ONE_BY_ONE_MAX: usize = 256;
/// The maximum number of rows that are changed conditionally at once.
const AT_ONCE_MAX: usize = 32;

/// Carries out a call.
pub(super) async fn apply(
    link: &mut Link,
    operations: &[Operation],
    guard: Option<&Guard>,
) -> Result<Applied, StoreError> {
    if let Some(guard) = guard {
        let found = link.values(std::slice::from_ref(&guard.key)).await?.pop().flatten();
        if !steps::holds(&guard.expect, found.as_deref()) {
            return Ok(Applied::Fenced { found });
        }
    }
    let mut call = Call::new(link, operations);
    match call.run().await {
        // Some rows may have been changed before this one.
        Err(error) if call.some_done => Err(call.half_done(error)),
        result => result,
    }
}

struct Call<'a> {
    link: &'a mut Link,
    operations: &'a [Operation],
    /// The changed bytes of each key that is changed byte by byte.
    overlays: BTreeMap<&'a Key, BTreeMap<u32, u8>>,
    outcomes: Vec<Outcome>,
    timeout: Timeout,
    /// Whether a row was changed.
    some_done: bool,
}

impl<'a> Call<'a> {
    fn new(link: &'a mut Link, operations: &'a [Operation]) -> Call<'a> {
        let outcomes = vec![Outcome::Skipped; operations.len()];
        let overlays = overlays(operations);
        Call { link, operations, overlays, outcomes, timeout: Timeout::new(), some_done: false }
    }

    async fn run(&mut self) -> Result<Applied, StoreError> {
        let mut blind: Vec<RowChange> = Vec::new();
        let is_left = |(_, operation): &(usize, &Operation)| !self.overlays.contains_key(operation.key());
        let mut left: Vec<usize> = self.operations.iter().enumerate().filter(is_left).map(|(step, _)| step).collect();
        while !left.is_empty() {
            let now: Vec<Operation> = left.iter().map(|step| self.operations[*step].clone()).collect();
            let needs = Needs::of(&now, None);
            let (mut image, seen) = self.read(&needs).await?;
            let (applied, changes) = transaction::run(&mut image, &now, None)?;
            let outcomes = match applied {
                Applied::Done(outcomes) => outcomes,
                Applied::Refused(Refused { step, found }, outcomes) => {
                    self.note(&left, outcomes);
                    let all = self.operations.iter().zip(std::mem::take(&mut self.outcomes));
                    let reads = all.map(|(of, outcome)| if of.only_reads() { outcome } else { Outcome::Skipped });
                    return Ok(Applied::Refused(Refused { step: left[step], found }, reads.collect()));
                }
                Applied::Fenced { .. } => {
                    return Err(self.link.table.site.nonsense("a call without a guard was fenced"));
                }
            };
            self.note(&left, outcomes);
            let mut conditional = Vec::new();
            for (key, value) in changes.values {
                let marks = seen.get(&key).unwrap_or(&Marks::default()).next();
                let mutations = cells::replace(value.as_deref(), &marks);
                match seen.get(&key) {
                    Some(seen) => conditional.push(Conditional { key, seen: seen.clone(), marks, mutations }),
                    None => blind.push((cells::row(&key), mutations, marks)),
                }
            }
            let again = self.change_conditionally(conditional, &now).await?;
            left.retain(|step| again.contains(self.operations[*step].key()));
            if !left.is_empty() && !self.timeout.pause().await {
                return Err(self.link.table.site.contended());
            }
        }
        for (key, bytes) in &self.overlays {
            let marks = Marks::default().next();
            blind.push((cells::row(key), cells::overlay(bytes, &marks), marks));
        }
        self.change_blindly(blind).await?;
        for (step, operation) in self.operations.iter().enumerate() {
            if self.overlays.contains_key(operation.key()) {
                self.outcomes[step] = Outcome::Changed;
            }
        }
        Ok(Applied::Done(std::mem::take(&mut self.outcomes)))
    }

    fn note(&mut self, steps: &[usize], outcomes: Vec<Outcome>) {
        for (step, outcome) in steps.iter().zip(outcomes) {
            self.outcomes[*step] = outcome;
        }
    }

    async fn read(&mut self, needs: &Needs) -> Result<(Image, BTreeMap<Key, Marks>), StoreError> {
        let mut image = Image::new(&self.link.table.site.store);
        let mut seen = BTreeMap::new();
        if needs.values.is_empty() {
            return Ok((image, seen));
        }
        let row_keys = needs.values.iter().map(Key::encode).collect();
        let set = api::RowSet { row_keys, ..api::RowSet::default() };
        let mut rows = self.link.read(set, everything(), &mut self.timeout).await?;
        for key in &needs.values {
            let row = rows.remove(&key.encode()).unwrap_or_default();
            image.value_is(key, cells::value(&row));
            seen.insert(key.clone(), Marks::of(&row));
        }
        Ok((image, seen))
    }

    /// Changes rows on the condition that no other writer did so meanwhile; returns the keys for which this failed.
    async fn change_conditionally(
        &mut self,
        changes: Vec<Conditional>,
        operations: &[Operation],
    ) -> Result<BTreeSet<Key>, StoreError> {
        let refusing = operations.iter().filter(|operation| may_refuse(operation)).map(Operation::key);
        let refusing: BTreeSet<&Key> = refusing.collect();
        let (first, then): (Vec<_>, Vec<_>) = changes.into_iter().partition(|change| refusing.contains(&change.key));
        let mut again = BTreeSet::new();
        // If one change may be refused, nothing else is changed before its result is known.
        for group in [first, then] {
            if !again.is_empty() {
                again.extend(group.into_iter().map(|change| change.key));
                continue;
            }
            let mut waiting = group.into_iter();
            loop {
                let batch: Vec<Conditional> = waiting.by_ref().take(AT_ONCE_MAX).collect();
                if batch.is_empty() {
                    break;
                }
                again.extend(self.change_batch(batch).await?);
            }
        }
        Ok(again)
    }

    async fn change_batch(&mut self, batch: Vec<Conditional>) -> Result<Vec<Key>, StoreError> {
        let mut tasks = JoinSet::new();
        for change in batch {
            let mut link = self.link.clone();
            tasks.spawn(async move {
                let Conditional { key, seen, marks, mutations } = change;
                let row = cells::row(&key);
                let done = link.change_if(&row, &seen, &marks, mutations, &mut Timeout::new()).await;
                (key, done)
            });
        }
        let mut again = Vec::new();
        let mut failed = None;
        while let Some(joined) = tasks.join_next().await {
            match joined {
                Ok((_, Ok(true))) => self.some_done = true,
                Ok((key, Ok(false))) => again.push(key),
                Ok((_, Err(error))) => failed = Some(error),
                Err(error) => failed = Some(self.link.table.site.nonsense(format!("a change ended early: {error}"))),
            }
        }
        failed.map_or(Ok(again), Err)
    }

    async fn change_blindly(&mut self, changes: Vec<RowChange>) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        self.link.change(changes, &mut self.timeout).await
    }

    fn half_done(&self, error: StoreError) -> StoreError {
        match error {
            StoreError::OutcomeUnknown { .. } => error,
            other => {
                let failure = Failure::Lost(format!("some of its rows were changed before this happened: {other}"));
                self.link.table.site.changing("a change of several rows", failure)
            }
        }
    }
}

struct Conditional {
    key: Key,
    seen: Marks,
    marks: Marks,
    mutations: Vec<api::Mutation>,
}

/// Whether the content of the store can make this step refuse its call.
fn may_refuse(operation: &Operation) -> bool {
    matches!(operation, Operation::CompareAndSwap { .. } | Operation::Add { bounds: Some(_), .. })
}

/// The keys of which a call changes some bytes unconditionally.
fn overlays(operations: &[Operation]) -> BTreeMap<&Key, BTreeMap<u32, u8>> {
    let mut overlays: BTreeMap<&Key, BTreeMap<u32, u8>> = BTreeMap::new();
    let mut others = BTreeSet::new();
    for operation in operations {
        match operation {
            Operation::Change { key, change: Change::PutRange { offset, bytes } }
                if !bytes.is_empty() && bytes.len() <= BYTES_ONE_BY_ONE_MAX =>
            {
                overlays.entry(key).or_default().extend((*offset..).zip(bytes.iter().copied()));
            }
            other => drop(others.insert(other.key())),
        }
    }
    overlays.retain(|key, bytes| !others.contains(*key) && bytes.len() <= BYTES_ONE_BY_ONE_MAX);
    overlays
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put_range(key: &Key, offset: u32, length: usize) -> Operation {
        Operation::Change {
            key: key.clone(),
            change: Change::PutRange { offset, bytes: vec![offset as u8 + 1; length] },
        }
    }

    #[test]
    fn short_runs_go_byte_by_byte_and_the_last_one_wins() {
        let key = Key::page(1, 1);
        let call = [put_range(&key, 0, 3), put_range(&key, 2, 2)];
        assert_eq!(overlays(&call)[&key], BTreeMap::from([(0, 1), (1, 1), (2, 3), (3, 3)]));
    }

    #[test]
    fn long_runs_and_keys_that_are_also_read_do_not() {
        let (one, two, three) = (Key::page(1, 1), Key::page(1, 2), Key::page(1, 3));
        let call = [
            put_range(&one, 0, BYTES_ONE_BY_ONE_MAX + 1),
            put_range(&two, 0, 1),
            Operation::Get { key: two, range: None },
            put_range(&three, 0, 0),
        ];
        assert!(overlays(&call).is_empty());
    }
}
