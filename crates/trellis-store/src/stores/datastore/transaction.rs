//! A call: one transaction, repeated if another one conflicted with it.
//!
//! A commit whose answer was lost is settled as follows. The transaction is rolled back, after which it can no longer be
//! committed. Then the marks decide; each entity keeps those of its last [`MARKS_MAX`] changes. If an entity has this
//! call's mark, the commit was done. If an entity has the mark that was read but not this call's, it was not done, and
//! the call begins again. In any other case the result is unknown, because no entity existed before or many other changes
//! followed.

use std::collections::BTreeMap;

use super::link::{Contents, Link, Within};
use crate::error::StoreError;
use crate::key::Key;
use crate::operation::{Applied, Guard, Operation};
use crate::stores::grpc::failure::Failure;
use crate::stores::grpc::flat::{self, Found, Write};
use crate::stores::grpc::image::{Image, Needs};
use crate::stores::grpc::{Timeout, random};
use crate::transaction;
use googleapis_tonic_google_datastore_v1::google::datastore::v1 as api;
use tonic::Code;

/// The maximum number of changes in a commit.
const CHANGES_MAX: usize = 500;
/// The maximum number of bytes in a commit; the service accepts 10 MiB.
const COMMIT_BYTES_MAX: usize = (10 << 20) - (256 << 10);
/// How many deleted entries of a log are removed at once.
const CLEARED_AT_ONCE: u64 = 400;

/// The number of marks that are kept: a change can be found until this many later changes have been made.
const MARKS_MAX: usize = 8;
const MARK_BYTES: usize = 16;

/// What was read, and in which transaction.
struct State {
    image: Image,
    /// The marks of what was read, newest first; `None` if there was no entity.
    seen: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    transaction: Option<Vec<u8>>,
}

/// Carries out a call.
pub(super) async fn apply(
    link: &mut Link,
    operations: &[Operation],
    guard: Option<&Guard>,
) -> Result<Applied, StoreError> {
    let needs = Needs::of(operations, guard);
    let within = if operations.iter().all(Operation::only_reads) { Within::Snapshot } else { Within::New };
    let mut timeout = Timeout::new();
    loop {
        let mut state = state(link, &needs, &within, &mut timeout).await?;
        let (applied, changes) = transaction::run(&mut state.image, operations, guard)?;
        let writes = flat::writes(changes);
        if writes.is_empty() {
            if let (Some(transaction), Within::New) = (state.transaction, &within) {
                // What the transaction has read may be locked until it ends. If this fails, the service ends it after a
                // while.
                link.try_end(transaction).await.ok();
            }
            return Ok(applied);
        }
        if commit(link, state, &writes, &mut timeout).await? {
            return Ok(applied);
        }
        if !timeout.pause().await {
            return Err(link.place.site.contended());
        }
    }
}

/// Begins a transaction and reads what the call needs; for a call that needs nothing, no transaction is begun.
async fn state(link: &mut Link, needs: &Needs, within: &Within, timeout: &mut Timeout) -> Result<State, StoreError> {
    let store = link.place.site.store.clone();
    if needs.is_empty() {
        return Ok(State { image: Image::new(&store), seen: BTreeMap::new(), transaction: None });
    }
    let places = flat::places(needs);
    loop {
        let failure = match read(link, needs, &places, within).await {
            Ok(Ok(state)) => return Ok(state),
            Ok(Err(error)) => return Err(error),
            Err(failure) => failure,
        };
        let goes_on = match &failure {
            Failure::Answered(Code::Aborted, _) => timeout.pause().await,
            failure => timeout.pause_after(failure).await,
        };
        if !goes_on {
            return Err(link.place.site.unchanged("a read", failure));
        }
    }
}

async fn read(
    link: &mut Link,
    needs: &Needs,
    places: &[Vec<u8>],
    within: &Within,
) -> Result<Result<State, StoreError>, Failure> {
    let store = link.place.site.store.clone();
    let (mut contents, transaction) = link.try_read(places, within.clone()).await?;
    let bytes = |contents: &Contents| -> Found {
        contents.iter().map(|(place, content)| (place.clone(), content.bytes.clone())).collect()
    };
    let mut image = match flat::image(&store, needs, &bytes(&contents)) {
        Ok((image, missing)) if missing.is_empty() => image,
        Ok((_, missing)) => {
            let begun = transaction.clone().map_or(Within::Alone, Within::Begun);
            contents.extend(link.try_read(&missing, begun).await?.0);
            match flat::image(&store, needs, &bytes(&contents)) {
                Ok((image, missing)) if missing.is_empty() => image,
                Ok(_) => return Err(Failure::Answered(Code::Aborted, "the log was trimmed meanwhile".to_owned())),
                Err(error) => return Ok(Err(error)),
            }
        }
        Err(error) => return Ok(Err(error)),
    };
    let seen = places.iter().map(|place| (place.clone(), contents.get(place).map(|content| content.marks.clone())));
    let seen = seen.collect();
    Ok(Ok(State { image: std::mem::take(&mut image), seen, transaction }))
}

/// Commits; returns whether it succeeded, or false after a conflict.
async fn commit(link: &mut Link, state: State, writes: &[Write], timeout: &mut Timeout) -> Result<bool, StoreError> {
    let mark = [random().to_ne_bytes(), random().to_ne_bytes()].concat();
    let plan = Plan::new(link, writes, &mark, &state)?;
    let failure = loop {
        let failure = match link.try_commit(state.transaction.clone(), plan.mutations.clone()).await {
            Ok(()) => break None,
            Err(failure) => failure,
        };
        match &failure {
            Failure::Answered(Code::Aborted, _) => return Ok(false),
            // The service may have ended a slow transaction.
            Failure::Answered(Code::InvalidArgument | Code::FailedPrecondition, reason)
                if state.transaction.is_some() && reason.contains("transaction") =>
            {
                return Ok(false);
            }
            Failure::Answered(..) => return Err(link.place.site.unchanged("a change", failure)),
            Failure::NotSent(_) if timeout.pause_after(&failure).await => {}
            Failure::NotSent(_) => return Err(link.place.site.unchanged("a change", failure)),
            Failure::Lost(_) | Failure::Late => break Some(failure),
        }
    };
    if let Some(lost) = failure
        && !settle(link, &state, writes, &mark, lost, timeout).await?
    {
        return Ok(false);
    }
    for (log, from, upto) in plan.left_over {
        clear_away(link, &log, from, upto, timeout).await;
    }
    Ok(true)
}

/// The changes of one commit.
struct Plan {
    mutations: Vec<api::Mutation>,
    /// Deleted entries that are too many for the same commit.
    left_over: Vec<(Key, u64, u64)>,
}

impl Plan {
    fn new(link: &Link, writes: &[Write], mark: &[u8], state: &State) -> Result<Plan, StoreError> {
        let mut plan = Plan { mutations: Vec::new(), left_over: Vec::new() };
        let mut bytes = 0;
        let changed: std::collections::BTreeSet<&[u8]> = writes.iter().filter_map(place_of).collect();
        for write in writes {
            match write {
                Write::Put(place, value) => {
                    bytes += 3 * place.len() + value.len() + 128;
                    let before = state.seen.get(place).and_then(Option::as_deref).unwrap_or_default();
                    let mut marks = [mark, before].concat();
                    marks.truncate(MARKS_MAX * MARK_BYTES);
                    plan.change(api::mutation::Operation::Upsert(link.place.entity(place, value, &marks)));
                }
                Write::Delete(place) => {
                    bytes += 3 * place.len();
                    plan.change(api::mutation::Operation::Delete(link.place.key(place)));
                }
                Write::Forget(..) => {}
            }
        }
        for write in writes {
            let Write::Forget(log, from, upto) = write else { continue };
            let room = CHANGES_MAX.saturating_sub(plan.mutations.len()) as u64;
            let last = from.saturating_add(room).min(upto + 1);
            // If a log is deleted and begun again, its new entries replace old ones at the same places.
            let places = (*from..last).map(|sequence| flat::entry(log, sequence));
            for place in places.filter(|place| !changed.contains(place.as_slice())) {
                plan.change(api::mutation::Operation::Delete(link.place.key(&place)));
            }
            if last <= *upto {
                plan.left_over.push((log.clone(), last, *upto));
            }
        }
        if bytes > COMMIT_BYTES_MAX {
            return Err(StoreError::TooLarge {
                store: link.place.site.store.clone(),
                what: "a change with all values that it touches".to_owned(),
                bytes,
                limit: COMMIT_BYTES_MAX,
                hint: "cut it into several calls".to_owned(),
            });
        }
        Ok(plan)
    }

    fn change(&mut self, operation: api::mutation::Operation) {
        self.mutations.push(api::Mutation { operation: Some(operation), ..api::Mutation::default() });
    }
}

fn place_of(write: &Write) -> Option<&[u8]> {
    match write {
        Write::Put(place, _) | Write::Delete(place) => Some(place),
        Write::Forget(..) => None,
    }
}

/// Finds out whether a commit whose answer was lost was done. If it was not, it can no longer be done afterwards.
async fn settle(
    link: &mut Link,
    state: &State,
    writes: &[Write],
    mark: &[u8],
    lost: Failure,
    timeout: &mut Timeout,
) -> Result<bool, StoreError> {
    let unknown = |link: &Link| link.place.site.changing("a change", lost.clone());
    while let Some(transaction) = &state.transaction {
        match link.try_end(transaction.clone()).await {
            // The transaction has been rolled back now, or had ended before.
            Ok(()) | Err(Failure::Answered(..)) => break,
            Err(failure) if timeout.pause_after(&failure).await => {}
            Err(_) => return Err(unknown(link)),
        }
    }
    let places: Vec<Vec<u8>> = writes.iter().filter_map(place_of).map(<[u8]>::to_vec).collect();
    let now = link.read(&places, timeout).await.map_err(|_| unknown(link))?;
    let knows = |place: &Vec<u8>, mark: &[u8]| {
        now.get(place).is_some_and(|content| content.marks.chunks(MARK_BYTES).any(|one| one == mark))
    };
    if places.iter().any(|place| knows(place, mark)) {
        return Ok(true);
    }
    // Any change that came after the read kept the earlier mark, and would have kept this change's mark too.
    let never = |(place, seen): (&Vec<u8>, &Option<Vec<u8>>)| {
        let newest = seen.as_ref().and_then(|marks| marks.get(..MARK_BYTES));
        newest.is_some_and(|newest| places.contains(place) && knows(place, newest))
    };
    // A commit without a transaction cannot be prevented, so its result remains unknown.
    if state.transaction.is_some() && state.seen.iter().any(never) { Ok(false) } else { Err(unknown(link)) }
}

/// Removes entries that are already deleted from their log. If this fails, the rest takes space but has no other effect.
async fn clear_away(link: &mut Link, log: &Key, from: u64, upto: u64, timeout: &mut Timeout) {
    let mut from = from;
    while from <= upto {
        let last = upto.min(from + CLEARED_AT_ONCE - 1);
        // The log may have been begun again meanwhile, so its current bounds are read in the same transaction.
        let Ok((contents, Some(transaction))) = link.try_read(&[flat::head(log)], Within::New).await else { return };
        let head = contents.get(&flat::head(log)).map(|content| content.bytes.as_slice());
        let Ok(head) = Image::new(&link.place.site.store).head_is(log, head) else { return };
        let gone = (from..=last).filter(|sequence| !(head.first..=head.last).contains(sequence));
        let delete = |sequence| api::Mutation {
            operation: Some(api::mutation::Operation::Delete(link.place.key(&flat::entry(log, sequence)))),
            ..api::Mutation::default()
        };
        match link.try_commit(Some(transaction), gone.map(delete).collect()).await {
            Ok(()) => from = last + 1,
            Err(_) if timeout.pause().await => {}
            Err(_) => return,
        }
    }
}
