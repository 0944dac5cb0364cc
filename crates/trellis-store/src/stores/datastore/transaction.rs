//! A call: one transaction, again if others were first.
//!
//! A commit whose answer was lost is settled so: the transaction is ended, after which it can no longer be committed; then
//! the marks tell; each entity keeps those of its last [`MARKS_MAX`] changes. An entity with our mark: it was done. An entity
//! that has the mark that was read but not ours: it was not, and the call begins again. Neither: nobody can tell, because
//! nothing of it was there before, or many others wrote it since.

use std::collections::BTreeMap;

use super::link::{Contents, Link, Within};
use crate::error::StoreError;
use crate::key::Key;
use crate::operation::{Applied, Guard, Operation};
use crate::stores::grpc::failure::Failure;
use crate::stores::grpc::flat::{self, Found, Write};
use crate::stores::grpc::image::{Image, Needs};
use crate::stores::grpc::{Patience, random};
use crate::transaction;
use googleapis_tonic_google_datastore_v1::google::datastore::v1 as api;
use tonic::Code;

/// The most changes in a commit.
const CHANGES_MAX: usize = 500;
/// The most bytes in a commit; the service takes 10 MiB.
const COMMIT_BYTES_MAX: usize = (10 << 20) - (256 << 10);
/// How many entries of a log are cleared away at once.
const CLEARED_AT_ONCE: u64 = 400;

/// How many changes ago a change can still be found.
const MARKS_MAX: usize = 8;
const MARK_BYTES: usize = 16;

/// What was read, and within what.
struct State {
    image: Image,
    /// The marks of what was read, newest first; nothing where nothing was.
    seen: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    transaction: Option<Vec<u8>>,
}

/// Does a call.
pub(super) async fn apply(
    link: &mut Link,
    operations: &[Operation],
    guard: Option<&Guard>,
) -> Result<Applied, StoreError> {
    let needs = Needs::of(operations, guard);
    let within = if operations.iter().all(Operation::only_reads) { Within::Snapshot } else { Within::New };
    let mut patience = Patience::new();
    loop {
        let mut state = state(link, &needs, &within, &mut patience).await?;
        let (applied, changes) = transaction::run(&mut state.image, operations, guard)?;
        let writes = flat::writes(changes);
        if writes.is_empty() {
            if let (Some(transaction), Within::New) = (state.transaction, &within) {
                // What it read may be locked until it ends; if this fails it ends by itself.
                link.try_end(transaction).await.ok();
            }
            return Ok(applied);
        }
        if commit(link, state, &writes, &mut patience).await? {
            return Ok(applied);
        }
        if !patience.pause().await {
            return Err(link.place.site.contended());
        }
    }
}

/// Begins a transaction and reads what the call needs; nothing for one that needs nothing.
async fn state(link: &mut Link, needs: &Needs, within: &Within, patience: &mut Patience) -> Result<State, StoreError> {
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
            Failure::Answered(Code::Aborted, _) => patience.pause().await,
            failure => patience.pause_after(failure).await,
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

/// Commits; tells whether it did, or others were first.
async fn commit(link: &mut Link, state: State, writes: &[Write], patience: &mut Patience) -> Result<bool, StoreError> {
    let mark = [random().to_ne_bytes(), random().to_ne_bytes()].concat();
    let plan = Plan::new(link, writes, &mark, &state)?;
    let failure = loop {
        let failure = match link.try_commit(state.transaction.clone(), plan.mutations.clone()).await {
            Ok(()) => break None,
            Err(failure) => failure,
        };
        match &failure {
            Failure::Answered(Code::Aborted, _) => return Ok(false),
            // A transaction that was slow may have been ended by the service.
            Failure::Answered(Code::InvalidArgument | Code::FailedPrecondition, reason)
                if state.transaction.is_some() && reason.contains("transaction") =>
            {
                return Ok(false);
            }
            Failure::Answered(..) => return Err(link.place.site.unchanged("a change", failure)),
            Failure::NotSent(_) if patience.pause_after(&failure).await => {}
            Failure::NotSent(_) => return Err(link.place.site.unchanged("a change", failure)),
            Failure::Lost(_) | Failure::Late => break Some(failure),
        }
    };
    if let Some(lost) = failure
        && !settle(link, &state, writes, &mark, lost, patience).await?
    {
        return Ok(false);
    }
    for (log, from, upto) in plan.left_over {
        clear_away(link, &log, from, upto, patience).await;
    }
    Ok(true)
}

/// What one commit changes.
struct Plan {
    mutations: Vec<api::Mutation>,
    /// Entries that are forgotten, too many to be deleted in the same commit.
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
            // A log that is deleted and begun again puts new entries where old ones lay.
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

/// Finds out whether a commit was done whose answer was lost; it never will be when it was not.
async fn settle(
    link: &mut Link,
    state: &State,
    writes: &[Write],
    mark: &[u8],
    lost: Failure,
    patience: &mut Patience,
) -> Result<bool, StoreError> {
    let unknown = |link: &Link| link.place.site.changing("a change", lost.clone());
    while let Some(transaction) = &state.transaction {
        match link.try_end(transaction.clone()).await {
            // It was alive and is no longer, or it was already dead.
            Ok(()) | Err(Failure::Answered(..)) => break,
            Err(failure) if patience.pause_after(&failure).await => {}
            Err(_) => return Err(unknown(link)),
        }
    }
    let places: Vec<Vec<u8>> = writes.iter().filter_map(place_of).map(<[u8]>::to_vec).collect();
    let now = link.read(&places, patience).await.map_err(|_| unknown(link))?;
    let knows = |place: &Vec<u8>, mark: &[u8]| {
        now.get(place).is_some_and(|content| content.marks.chunks(MARK_BYTES).any(|one| one == mark))
    };
    if places.iter().any(|place| knows(place, mark)) {
        return Ok(true);
    }
    // Whoever came after what was read left its mark there, and would have left ours.
    let never = |(place, seen): (&Vec<u8>, &Option<Vec<u8>>)| {
        let newest = seen.as_ref().and_then(|marks| marks.get(..MARK_BYTES));
        newest.is_some_and(|newest| places.contains(place) && knows(place, newest))
    };
    // What began no transaction cannot be shut out, so it is not known what still becomes of it.
    if state.transaction.is_some() && state.seen.iter().any(never) { Ok(false) } else { Err(unknown(link)) }
}

/// Deletes entries that are forgotten already. What is left of them when that fails takes room and nothing else.
async fn clear_away(link: &mut Link, log: &Key, from: u64, upto: u64, patience: &mut Patience) {
    let mut from = from;
    while from <= upto {
        let last = upto.min(from + CLEARED_AT_ONCE - 1);
        // Somebody may have begun the log again meanwhile, so what is kept now is read in the same transaction.
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
            Err(_) if patience.pause().await => {}
            Err(_) => return,
        }
    }
}
