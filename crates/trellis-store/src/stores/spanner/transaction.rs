//! A call: one transaction, repeated if another one conflicted with it.

use super::database::{BYTES, PLACE, TABLE};
use super::link::{Begun, Link, Wanted, Within, key_set, list};
use crate::error::StoreError;
use crate::operation::{Applied, Guard, Operation};
use crate::stores::grpc::Timeout;
use crate::stores::grpc::failure::Failure;
use crate::stores::grpc::flat::{self, Write};
use crate::stores::grpc::image::{Image, Needs};
use crate::transaction;
use googleapis_tonic_google_spanner_v1::google::spanner::v1 as api;
use tonic::Code;

/// Carries out a call.
pub(super) async fn apply(
    link: &mut Link,
    operations: &[Operation],
    guard: Option<&Guard>,
) -> Result<Applied, StoreError> {
    let needs = Needs::of(operations, guard);
    let writes_nothing = operations.iter().all(Operation::only_reads);
    let mut timeout = Timeout::new();
    loop {
        let (mut image, begun) = match begin(link, &needs, writes_nothing).await {
            Ok(state) => state,
            Err(Stop::Failed(error)) => return Err(error),
            Err(Stop::Again(failure)) => {
                // There was a conflict, or the service cannot be reached now; nothing has been written.
                let goes_on = match &failure {
                    Failure::Answered(..) => timeout.pause().await,
                    failure => timeout.pause_after(failure).await,
                };
                if goes_on {
                    continue;
                }
                return Err(link.database.site.unchanged("a read", failure));
            }
        };
        let (applied, changes) = transaction::run(&mut image, operations, guard)?;
        let writes = flat::writes(changes);
        if writes.is_empty() {
            return Ok(applied);
        }
        let Some(begun) = begun else { return Err(link.database.site.nonsense("it began no transaction")) };
        if commit(link, &begun, &writes, &mut timeout).await? {
            return Ok(applied);
        }
        if !timeout.pause().await {
            return Err(link.database.site.contended());
        }
    }
}

enum Stop {
    Again(Failure),
    Failed(StoreError),
}

/// Begins a transaction and reads what the call needs.
async fn begin(link: &mut Link, needs: &Needs, writes_nothing: bool) -> Result<(Image, Option<Begun>), Stop> {
    let failed = |link: &Link, failure: Failure| match failure {
        Failure::Answered(Code::Aborted, _) => Stop::Again(failure),
        Failure::Answered(..) => Stop::Failed(link.database.site.unchanged("a read", failure)),
        passing => Stop::Again(passing),
    };
    let store = link.database.site.store.clone();
    if needs.is_empty() {
        if writes_nothing {
            return Ok((Image::new(&store), None));
        }
        let begun = link.try_begin().await.map_err(|failure| failed(link, failure))?;
        return Ok((Image::new(&store), Some(begun)));
    }
    let within = match (writes_nothing, needs.logs.is_empty()) {
        (true, true) => Within::Alone,
        (true, false) => Within::Snapshot,
        (false, _) => Within::New,
    };
    // The first read assumes that no entries were deleted. If older ones were, the kept entries are read next.
    let windows = needs.logs.iter().flat_map(|(log, windows)| windows.iter().map(move |window| (log, window)));
    let windows = windows.filter(|(_, window)| window.count > 0);
    let range = |(log, window): (_, &crate::stores::grpc::image::Window)| {
        let from = window.after.saturating_add(1);
        let upto = from.saturating_add(u64::from(window.count));
        (flat::entry(log, from), flat::entry(log, upto))
    };
    let wanted = Wanted { places: flat::places(needs), ranges: windows.map(range).collect(), places_only: false };
    let (mut found, begun) = link.try_read(&wanted, &within).await.map_err(|failure| failed(link, failure))?;
    let (image, missing) = flat::image(&store, needs, &found).map_err(Stop::Failed)?;
    if missing.is_empty() {
        return Ok((image, begun));
    }
    let Some(transaction) = begun.clone() else {
        return Err(Stop::Failed(link.database.site.nonsense("it began no transaction")));
    };
    let wanted = Wanted { places: missing, ..Wanted::default() };
    let more = link.try_read(&wanted, &Within::Begun(transaction)).await.map_err(|failure| failed(link, failure))?;
    found.extend(more.0);
    match flat::image(&store, needs, &found).map_err(Stop::Failed)? {
        (image, missing) if missing.is_empty() => Ok((image, begun)),
        // The entries were deleted between the two reads.
        _ => Err(Stop::Again(Failure::Answered(Code::Aborted, "the log was trimmed meanwhile".to_owned()))),
    }
}

/// Commits; returns whether it succeeded, or false after a conflict.
async fn commit(link: &mut Link, begun: &Begun, writes: &[Write], timeout: &mut Timeout) -> Result<bool, StoreError> {
    let mut lost: Option<Failure> = None;
    loop {
        let mutations = writes.iter().map(mutation).collect();
        let failure = match link.try_commit(begun, mutations).await {
            Ok(()) => return Ok(true),
            Err(failure) => failure,
        };
        match (&failure, &lost) {
            (Failure::Answered(Code::Aborted, _), _) => return Ok(false),
            // The session no longer exists, nor do its transactions.
            (Failure::Answered(Code::NotFound, reason), None) if !reason.contains("Table") => return Ok(false),
            (Failure::Answered(..), Some(lost)) => return Err(link.database.site.changing("a change", lost.clone())),
            (Failure::Answered(..), None) => return Err(link.database.site.unchanged("a change", failure)),
            _ => {}
        }
        let goes_on = timeout.pause_after(&failure).await;
        if !failure.is_without_effect() {
            lost = Some(failure.clone());
        }
        if !goes_on {
            return Err(link.database.site.changing("a change", lost.unwrap_or(failure)));
        }
    }
}

fn mutation(write: &Write) -> api::Mutation {
    use api::mutation::{Delete, Operation, Write as Row};
    let delete = |key_set| Operation::Delete(Delete { table: TABLE.to_owned(), key_set: Some(key_set) });
    let operation = match write {
        Write::Put(place, bytes) => Operation::InsertOrUpdate(Row {
            table: TABLE.to_owned(),
            columns: vec![PLACE.to_owned(), BYTES.to_owned()],
            values: vec![list([place.as_slice(), bytes.as_slice()])],
        }),
        Write::Delete(place) => delete(key_set(std::slice::from_ref(place), &[])),
        Write::Forget(log, from, upto) => {
            let mut end = flat::entry(log, *upto);
            end.push(0);
            delete(key_set(&[], &[(flat::entry(log, *from), end)]))
        }
    };
    api::Mutation { operation: Some(operation) }
}
