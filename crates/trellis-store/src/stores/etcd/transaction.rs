//! A call: read what it needs, carry it out here, and write the result if nothing that was read has changed.
//!
//! It promises that a transaction that fails by a conflict returns what is needed to carry the call out again, so that
//! each further attempt is one round trip.

use std::collections::BTreeSet;
use std::time::Instant;

use etcd_client::{Compare, CompareOp, DeleteOptions, GetOptions, Txn, TxnOp, WatchOptions};
use tonic::Code;

use super::link::{Found, Link, gets, place, revision};
use super::receipt::{Settled, renew, settle};
use super::{REQUEST_BYTES_MAX, TRANSACTION_OPERATIONS_MAX};
use crate::error::StoreError;
use crate::key::Key;
use crate::operation::{Applied, Guard, Operation, Refused};
use crate::stores::grpc::Timeout;
use crate::stores::grpc::failure::{Failure, answer};
use crate::stores::grpc::flat::{self, Write};
use crate::stores::grpc::image::{Image, Needs};
use crate::transaction;

/// What was read of the store, and the conditions that must still hold when the call is committed.
struct State {
    image: Image,
    unchanged: Vec<Compare>,
    revision: i64,
}

enum Commit {
    Done,
    /// There was a conflict; this is the current state.
    Others(State),
}

impl Link {
    /// Carries out a call; also returns the revision of the store on which the result is based.
    pub(super) async fn apply_now(
        &mut self,
        operations: &[Operation],
        guard: Option<&Guard>,
    ) -> Result<(Applied, i64), StoreError> {
        let needs = Needs::of(operations, guard);
        let mut timeout = Timeout::new();
        let mut state = self.state(&needs, &mut timeout).await?;
        loop {
            let (applied, changes) = transaction::run(&mut state.image, operations, guard)?;
            let writes = flat::writes(changes);
            if writes.is_empty() {
                return Ok((applied, state.revision));
            }
            self.check(&needs, &writes)?;
            let decided = state.revision;
            match self.commit(&needs, state, &writes, &mut timeout).await? {
                Commit::Done => return Ok((applied, decided)),
                Commit::Others(_) if timeout.is_over() => return Err(self.address.site.contended()),
                Commit::Others(now) => state = now,
            }
        }
    }

    /// Carries out a call as soon as nothing refuses it.
    pub(super) async fn apply_in_time(
        &mut self,
        operations: &[Operation],
        guard: Option<&Guard>,
        deadline: Instant,
    ) -> Result<Applied, StoreError> {
        loop {
            let (applied, revision) = self.apply_now(operations, guard).await?;
            let Applied::Refused(Refused { step, .. }, _) = &applied else { return Ok(applied) };
            if Instant::now() >= deadline {
                return Ok(applied);
            }
            // Only these two keys can change the answer: the effects of earlier steps depend on the same keys.
            let watched = [Some(operations[*step].key()), guard.map(|guard| &guard.key)];
            let watched: BTreeSet<&Key> = watched.into_iter().flatten().collect();
            if let Err(failure) = self.wait(watched, revision + 1, deadline).await
                && !Timeout::new().pause_after(&failure).await
            {
                return Err(self.address.site.unchanged("a watch", failure));
            }
        }
    }

    /// Sleeps until one of the keys changes at `revision` or later, or the deadline has passed. May return early.
    async fn wait(&mut self, keys: BTreeSet<&Key>, revision: i64, deadline: Instant) -> Result<(), Failure> {
        let options = WatchOptions::new().with_start_revision(revision);
        let mut keys = keys.into_iter().map(|key| place(flat::value(key)));
        let Some(first) = keys.next() else { return Ok(()) };
        let mut watch = answer(self.client.watch(first, Some(options.clone()))).await?;
        for key in keys {
            answer(watch.watch(key, Some(options.clone()))).await?;
        }
        loop {
            let Ok(message) = tokio::time::timeout_at(deadline.into(), watch.message()).await else { return Ok(()) };
            match message? {
                // A cancelled watch asked for a compacted revision, so there have been changes.
                Some(message) if message.events().is_empty() && !message.canceled() => {}
                _ => return Ok(()),
            }
        }
    }

    async fn state(&mut self, needs: &Needs, timeout: &mut Timeout) -> Result<State, StoreError> {
        if needs.is_empty() {
            return Ok(State { image: Image::new(&self.address.site.store), unchanged: Vec::new(), revision: 0 });
        }
        let reads = reads(needs);
        self.check_count(reads.len())?;
        let response = self.read(&reads, timeout).await?;
        self.understand(needs, gets(&response), revision(&response))
    }

    /// Decodes the answers to [`reads`].
    fn understand(
        &self,
        needs: &Needs,
        mut answers: impl Iterator<Item = Vec<Found>>,
        revision: i64,
    ) -> Result<State, StoreError> {
        let mut image = Image::new(&self.address.site.store);
        let mut unchanged = Vec::new();
        let mut next = || answers.next().ok_or_else(|| self.address.site.nonsense("an answer is missing"));
        let mut remember = |flat: Vec<u8>, found: &Option<Found>| {
            let revision = found.as_ref().map_or(0, |found| found.revision);
            unchanged.push(Compare::mod_revision(place(flat), CompareOp::Equal, revision));
        };
        for key in &needs.values {
            let found = next()?.into_iter().next();
            remember(flat::value(key), &found);
            image.value_is(key, found.map(|found| found.bytes));
        }
        for (log, windows) in &needs.logs {
            let found = next()?.into_iter().next();
            remember(flat::head(log), &found);
            image.head_is(log, found.as_ref().map(|found| &found.bytes[..]))?;
            for _ in windows {
                for found in next()? {
                    if let Some(sequence) = flat::sequence(&found.place) {
                        image.entry_is(log, sequence, found.bytes);
                    }
                }
            }
        }
        Ok(State { image, unchanged, revision })
    }

    /// Writes, on the condition that what was read is unchanged.
    async fn commit(
        &mut self,
        needs: &Needs,
        state: State,
        writes: &[Write],
        timeout: &mut Timeout,
    ) -> Result<Commit, StoreError> {
        let State { unchanged, .. } = state;
        loop {
            renew(self, timeout).await?;
            let Some(receipt) = &mut self.receipt else { return Err(self.address.site.nonsense("no receipt")) };
            let conditions: Vec<Compare> = unchanged.iter().cloned().chain([receipt.unmoved()]).collect();
            let effects: Vec<TxnOp> = writes.iter().map(effect).chain([receipt.moved()]).collect();
            let otherwise: Vec<TxnOp> = [receipt.look()].into_iter().chain(reads(needs)).collect();
            let transaction = Txn::new().when(conditions).and_then(effects).or_else(otherwise);
            let failure = match self.send(transaction).await {
                Ok(response) if response.succeeded() => {
                    if let Some(receipt) = &mut self.receipt {
                        receipt.advance(revision(&response));
                    }
                    return Ok(Commit::Done);
                }
                Ok(response) => {
                    let mut answers = gets(&response);
                    let moved = answers.next().and_then(|found| found.into_iter().next()).map_or(0, |one| one.revision);
                    // Its lease has ended because the store was away for long. No transaction is under way, so a new
                    // receipt can be used.
                    self.receipt.take_if(|receipt| !receipt.is_at(moved));
                    return Ok(Commit::Others(self.understand(needs, answers, revision(&response))?));
                }
                Err(failure) => failure,
            };
            match failure {
                Failure::Answered(Code::NotFound, _) => self.receipt = None,
                Failure::Answered(..) => return Err(self.refused_to_write(failure, writes)),
                Failure::NotSent(_) => {
                    if !timeout.pause_after(&failure).await {
                        return Err(self.address.site.unchanged("a change", failure));
                    }
                }
                Failure::Lost(_) | Failure::Late => match settle(self, failure.clone(), timeout).await? {
                    Settled::Done => return Ok(Commit::Done),
                    Settled::Never => return Ok(Commit::Others(self.state(needs, timeout).await?)),
                    Settled::Unknown => return Err(self.address.site.changing("a change", failure)),
                },
            }
            if timeout.is_over() {
                return Err(self.address.site.contended());
            }
        }
    }

    /// Refuses what etcd would not accept.
    fn check(&self, needs: &Needs, writes: &[Write]) -> Result<(), StoreError> {
        self.check_count((writes.len() + 1).max(reads(needs).len() + 1))?;
        let bytes = writes.iter().map(bytes).sum();
        if bytes > REQUEST_BYTES_MAX {
            return Err(self.too_large(bytes));
        }
        Ok(())
    }

    fn check_count(&self, operations: usize) -> Result<(), StoreError> {
        if operations <= TRANSACTION_OPERATIONS_MAX {
            return Ok(());
        }
        let what = format!(
            "this call needs {operations} operations in one transaction, and etcd takes {TRANSACTION_OPERATIONS_MAX}; \
             cut it into several calls"
        );
        Err(StoreError::Unsupported { store: self.address.site.store.clone(), what })
    }

    fn too_large(&self, bytes: usize) -> StoreError {
        StoreError::TooLarge {
            store: self.address.site.store.clone(),
            what: "a change with all values that it touches".to_owned(),
            bytes,
            limit: REQUEST_BYTES_MAX,
            hint: "cut it into several calls, or into smaller values".to_owned(),
        }
    }

    fn refused_to_write(&self, failure: Failure, writes: &[Write]) -> StoreError {
        match failure {
            Failure::Answered(_, reason) if reason.contains("request is too large") => {
                self.too_large(writes.iter().map(bytes).sum())
            }
            Failure::Answered(Code::ResourceExhausted, reason) if reason.contains("database space exceeded") => {
                self.address.site.nonsense(format!(
                    "its quota is used up ({reason}); start it with --auto-compaction-retention, and free space with \
                     `etcdctl compact`, `etcdctl defrag` and `etcdctl alarm disarm`"
                ))
            }
            failure => self.address.site.unchanged("a change", failure),
        }
    }
}

/// The reads for everything that a call needs.
fn reads(needs: &Needs) -> Vec<TxnOp> {
    let mut reads: Vec<TxnOp> = needs.values.iter().map(|key| TxnOp::get(place(flat::value(key)), None)).collect();
    for (log, windows) in &needs.logs {
        reads.push(TxnOp::get(place(flat::head(log)), None));
        for window in windows {
            // Deleted entries no longer exist, so the first entries that are found are the first that are kept.
            let options = GetOptions::new().with_range(after_entries(log)).with_limit(i64::from(window.count).max(1));
            reads.push(TxnOp::get(place(flat::entry(log, window.after.saturating_add(1))), Some(options)));
        }
    }
    reads
}

/// A key after the last entry that a log can have.
fn after_entries(log: &Key) -> Vec<u8> {
    let mut end = place(flat::entry(log, u64::MAX));
    end.push(0);
    end
}

fn effect(write: &Write) -> TxnOp {
    match write {
        Write::Put(flat, bytes) => TxnOp::put(place(flat.clone()), bytes.clone(), None),
        Write::Delete(flat) => TxnOp::delete(place(flat.clone()), None),
        Write::Forget(log, from, upto) => {
            let mut end = place(flat::entry(log, *upto));
            end.push(0);
            TxnOp::delete(place(flat::entry(log, *from)), Some(DeleteOptions::new().with_range(end)))
        }
    }
}

fn bytes(write: &Write) -> usize {
    match write {
        Write::Put(place, bytes) => place.len() + bytes.len(),
        Write::Delete(place) => place.len(),
        Write::Forget(..) => 2 * Key::ENCODED_BYTES,
    }
}
