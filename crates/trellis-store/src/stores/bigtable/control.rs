//! Calls on control keys: one row, one read, one conditional change.
//!
//! It promises that a guard, entries of a log and values of one region change together or not at all.

use std::collections::BTreeSet;

use super::cells::{self, MARK, Marks, Row};
use super::link::{Link, any, chain, column_filter, column_range};
use crate::error::StoreError;
use crate::operation::{Applied, Guard, Operation};
use crate::stores::grpc::Timeout;
use crate::stores::grpc::failure::Failure;
use crate::stores::grpc::image::{Head, Image, Needs};
use crate::transaction::{self, Changes};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as api;

/// Carries out a call.
pub(super) async fn apply(
    link: &mut Link,
    operations: &[Operation],
    guard: Option<&Guard>,
) -> Result<Applied, StoreError> {
    let regions = operations.iter().map(Operation::key).chain(guard.map(|guard| &guard.key)).map(|key| key.region());
    let regions: BTreeSet<u32> = regions.collect();
    let mut each = regions.into_iter();
    let Some(region) = each.next() else { return Ok(Applied::Done(Vec::new())) };
    if each.next().is_some() {
        let what = "a guard must be a key of the region that is changed".to_owned();
        return Err(StoreError::Unsupported { store: link.table.site.store.clone(), what });
    }
    let row = cells::control_row(region);
    let needs = Needs::of(operations, guard);
    let mut timeout = Timeout::new();
    loop {
        let (mut image, seen) = if needs.is_empty() {
            (Image::new(&link.table.site.store), None)
        } else {
            let cells = link.read_row(&row, filter(&needs), &mut timeout).await?;
            let seen = Marks::of(&cells);
            (understand(link, &needs, cells)?, Some(seen))
        };
        let (applied, changes) = transaction::run(&mut image, operations, guard)?;
        if changes.is_empty() {
            return Ok(applied);
        }
        let done = match seen {
            Some(seen) => {
                let marks = seen.next();
                let mutations = mutations(changes, &marks);
                mutations.len() == 1 || link.change_if(&row, &seen, &marks, mutations, &mut timeout).await?
            }
            None => {
                let marks = Marks::default().next();
                let change = (row.clone(), mutations(changes, &marks), marks);
                link.change(vec![change], &mut timeout).await?;
                true
            }
        };
        if done {
            return Ok(applied);
        }
        if !timeout.pause().await {
            return Err(link.table.site.contended());
        }
    }
}

/// The part of the row that a call needs.
fn filter(needs: &Needs) -> api::row_filter::Filter {
    let mut filters = vec![column_filter(MARK.to_vec())];
    filters.extend(needs.values.iter().map(|key| column_filter(cells::column(key))));
    for (log, windows) in &needs.logs {
        filters.push(column_filter(cells::column(log)));
        for window in windows.iter().filter(|window| window.count > 0) {
            // Deleted entries no longer exist, so the first entries that are found are the first that are kept.
            let from = cells::entry(log, window.after.saturating_add(1));
            let limit = i32::try_from(window.count).unwrap_or(i32::MAX);
            let limit = api::row_filter::Filter::CellsPerRowLimitFilter(limit);
            filters.push(chain([column_range(from, cells::entry(log, u64::MAX)), limit]));
        }
    }
    any(filters)
}

fn understand(link: &Link, needs: &Needs, mut cells: Row) -> Result<Image, StoreError> {
    let mut image = Image::new(&link.table.site.store);
    for key in &needs.values {
        image.value_is(key, cells.remove(&cells::column(key)));
    }
    for (log, windows) in &needs.logs {
        let head: Head = image.head_is(log, cells.get(&cells::column(log)).map(Vec::as_slice))?;
        for sequence in windows.iter().flat_map(|window| window.numbers(head)) {
            if let Some(bytes) = cells.get(&cells::entry(log, sequence)) {
                image.entry_is(log, sequence, bytes.clone());
            }
        }
    }
    Ok(image)
}

/// The changes of a call to the row; the marks come last.
fn mutations(changes: Changes, marks: &Marks) -> Vec<api::Mutation> {
    let mut mutations = Vec::new();
    for (key, value) in changes.values {
        mutations.push(match value {
            Some(value) => cells::set(cells::column(&key), value),
            None => cells::unset(cells::column(&key)),
        });
    }
    for (log, change) in changes.logs {
        let kept_from = if change.emptied { change.last_before + 1 } else { change.first };
        let gone = change.first_before..kept_from.min(change.last_before + 1);
        mutations.extend(gone.map(|sequence| cells::unset(cells::entry(&log, sequence))));
        let appended = change.appended.into_iter();
        mutations.extend(appended.map(|new| cells::set(cells::entry(&log, new.sequence), new.bytes)));
        if change.last == 0 {
            mutations.push(cells::unset(cells::column(&log)));
        } else if (change.first, change.last) != (change.first_before, change.last_before) {
            let head = Head { first: change.first, last: change.last };
            mutations.push(cells::set(cells::column(&log), head.encode()));
        }
    }
    mutations.push(marks.set());
    mutations
}

/// Mutations of a row, and the marks that they leave.
pub(super) type RowChange = (Vec<u8>, Vec<api::Mutation>, Marks);

impl Link {
    /// Changes a row if it still has the marks that were read, and returns whether it did. Takes effect once even if
    /// answers are lost, because the change replaces the marks on which it depends.
    pub(super) async fn change_if(
        &mut self,
        row: &[u8],
        seen: &Marks,
        marks: &Marks,
        mutations: Vec<api::Mutation>,
        timeout: &mut Timeout,
    ) -> Result<bool, StoreError> {
        let mut lost: Option<Failure> = None;
        loop {
            let failure = match (self.try_change_if(row, seen, mutations.clone()).await, &lost) {
                (Ok(true), _) => return Ok(true),
                (Ok(false), None) => return Ok(false),
                (Ok(false), Some(lost)) => {
                    let now = Marks::of(&self.read_row(row, column_filter(MARK.to_vec()), timeout).await?);
                    // Any change that came after the read kept the earlier mark, and would have kept this change's mark
                    // too.
                    return match (now.know(marks), now.know(seen)) {
                        (true, _) => Ok(true),
                        (false, true) => Ok(false),
                        (false, false) => Err(self.table.site.changing("a change", lost.clone())),
                    };
                }
                (Err(failure), _) => failure,
            };
            let goes_on = timeout.pause_after(&failure).await;
            match lost.take().filter(|_| failure.is_without_effect()).or(Some(failure)) {
                Some(failure) if !goes_on => return Err(self.table.site.changing("a change", failure)),
                failure => lost = failure.filter(|failure| !failure.is_without_effect()),
            }
        }
    }

    /// Changes rows unconditionally. Sent once.
    pub(super) async fn change(&mut self, changes: Vec<RowChange>, timeout: &mut Timeout) -> Result<(), StoreError> {
        let marks: Vec<(Vec<u8>, Marks)> = changes.iter().map(|(row, _, marks)| (row.clone(), marks.clone())).collect();
        let entries: Vec<_> = changes.into_iter().map(|(row, mutations, _)| (row, mutations)).collect();
        let results = loop {
            match self.try_change(&entries).await {
                Ok(results) => break results,
                Err(failure) if failure.is_without_effect() => {
                    if !timeout.pause_after(&failure).await {
                        return Err(self.table.site.unchanged("a change", failure));
                    }
                }
                Err(failure) => break vec![Err(failure); entries.len()],
            }
        };
        let mut failed: Vec<(Vec<u8>, &Marks, Failure)> = Vec::new();
        for ((row, marks), result) in marks.iter().zip(results) {
            failed.extend(result.err().map(|failure| (row.clone(), marks, failure)));
        }
        let all = failed.len() == marks.len();
        let Some((_, _, first)) = failed.first().cloned() else { return Ok(()) };
        if all && failed.iter().all(|(_, _, failure)| failure.is_without_effect()) {
            return Err(self.table.site.unchanged("a change", first));
        }
        // Changes whose mark is found were done.
        let rows = api::RowSet { row_keys: failed.iter().map(|(row, ..)| row.clone()).collect(), ..Default::default() };
        let found = self.read(rows, column_filter(MARK.to_vec()), timeout).await;
        let done = |row: &[u8], marks: &Marks| {
            found.as_ref().is_ok_and(|found| found.get(row).is_some_and(|row| Marks::of(row).know(marks)))
        };
        match failed.into_iter().find(|(row, marks, _)| !done(row, marks)) {
            None => Ok(()),
            Some((_, _, Failure::Answered(code, reason))) => {
                let failure = Failure::Lost(format!("some rows were refused with {code:?}: {reason}"));
                Err(self.table.site.changing("a change of several rows", failure))
            }
            Some((_, _, failure)) => Err(self.table.site.changing("a change", failure)),
        }
    }
}
