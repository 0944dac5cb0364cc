//! Removes regions without a name whose process ended without leaving them; the creation of the next such region does
//! this.
//!
//! Promises: a start examines the most recently created regions with one call, however much the store holds. It removes
//! at most one region, and a bounded number of its keys; the next start continues if there are more. An interrupted
//! removal is found again, because the two records that lead here are removed last. It must never touch a region of a
//! process that may be running, or of one about which this machine has no information.

use trellis_store::{Key, Kind, Store};

use super::{DIRECTORY, ONLY_MEMBER, PRIVATE, delete, header_key, values};
use crate::end;
use crate::error::StoredError;
use crate::synchronisation::member::{self, MemberRecord};

/// The maximum number of keys that one start removes, with a few calls.
const KEYS_MAX: usize = 4096;
/// The number of regions before its own that a start examines. It does not examine all: a store without an order would
/// search everything that it holds for a list. Older regions are left to `trellis store rm`.
const LOOKED_AT: u32 = 64;

/// Removes what an ended process of this machine left; `next` is the number of the region being created.
pub(super) fn remove(store: &dyn Store, next: u32) -> Result<(), StoredError> {
    remove_some(store, next, KEYS_MAX)
}

fn remove_some(store: &dyn Store, next: u32, keys_max: usize) -> Result<(), StoredError> {
    match abandoned(store, next)? {
        Some(number) => remove_region(store, number, keys_max),
        None => Ok(()),
    }
}

/// The number of the first region whose only process has ended.
fn abandoned(store: &dyn Store, next: u32) -> Result<Option<u32>, StoredError> {
    let numbers = next.saturating_sub(LOOKED_AT).max(1)..next;
    let records = values(store, numbers.clone().map(|number| member::key(number, ONLY_MEMBER)))?;
    let ended = |record: &[u8]| {
        let record = MemberRecord::read(ONLY_MEMBER, Some(record));
        record.is_alive && end::has_ended(record.process, &record.identity)
    };
    // A region with a name has such a record too. A member without a record is leaving, and removes the region itself.
    let candidates = numbers.zip(records).filter(|(_, record)| record.as_deref().is_some_and(ended));
    for (number, _) in candidates {
        if values(store, std::iter::once(directory_key(number)))?.iter().any(Option::is_some) {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

fn directory_key(number: u32) -> Key {
    Key::new(DIRECTORY, Kind::Directory, PRIVATE | u64::from(number))
}

/// Removes at most this many keys of a region, and the region itself with its last keys.
fn remove_region(store: &dyn Store, number: u32, keys_max: usize) -> Result<(), StoredError> {
    let mut removed = 0;
    let is_last = |kind: &Kind| matches!(kind, Kind::Named | Kind::Header | Kind::Member);
    for kind in Kind::ALL.into_iter().filter(|kind| !is_last(kind)) {
        // The list has as many keys as may be removed at once: a store without an order searches everything for each
        // list.
        let numbers = store.numbers(number, kind, 0, keys_max - removed)?;
        removed += numbers.len();
        delete(store, numbers.into_iter().map(|key| Key::new(number, kind, key)).collect())?;
        if removed >= keys_max {
            return Ok(());
        }
    }
    delete(store, vec![header_key(number), directory_key(number), member::key(number, ONLY_MEMBER)])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use trellis_store::wrap::Counted;

    use super::super::{list, open, put, stat};
    use super::*;
    use crate::region::Opened;
    use crate::settings::Settings;

    /// Larger than any number in these tests, but close enough that the first ones are still examined.
    const NEXT: u32 = 20;

    fn store() -> Arc<Counted> {
        Counted::new(trellis_store::open("embedded:").expect("it needs nothing"))
    }

    fn private(store: &Arc<Counted>) -> Opened {
        open(Arc::clone(store) as Arc<dyn Store>, &Settings::default()).expect("made")
    }

    fn names(store: &Counted) -> Vec<String> {
        list(store).expect("listed").into_iter().map(|region| region.name).collect()
    }

    /// Makes a region's record name another process, with the identity that `changed` derives from the current one.
    fn of_another(region: &Opened, changed: impl Fn(&str) -> String) {
        let key = member::key(region.number, region.member);
        let mut record = region.store.get_many(std::slice::from_ref(&key)).expect("readable").remove(0).expect("there");
        let identity = MemberRecord::read(region.member, Some(&record)).identity;
        record.truncate(record.len() - identity.len());
        record.extend(changed(&identity).bytes());
        put(&*region.store, key, record).expect("stored");
    }

    /// Changes an identity as if its process had ended, and another one had its process number.
    fn ended(identity: &str) -> String {
        format!("{identity}0")
    }

    #[test]
    fn the_next_start_removes_what_an_ended_process_left() {
        let store = store();
        let one = private(&store);
        for kind in [Kind::Memory, Kind::Staged, Kind::Heap, Kind::Synchronisation] {
            put(&*store, Key::new(one.number, kind, 7), vec![1]).expect("stored");
        }
        of_another(&one, ended);
        let two = private(&store);
        assert_eq!(names(&store), [two.name]);
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Named) {
            assert!(store.numbers(one.number, kind, 0, 9).expect("readable").is_empty(), "{kind:?}");
        }
        let directory = store.numbers(DIRECTORY, Kind::Directory, PRIVATE, 9).expect("readable");
        assert_eq!(directory, [PRIVATE | u64::from(two.number)]);
    }

    #[test]
    fn regions_of_others_stay() {
        let store = store();
        let own = private(&store);
        let elsewhere = private(&store);
        of_another(&elsewhere, |identity| format!("elsewhere {identity}0"));
        let unknown = private(&store);
        of_another(&unknown, |_| String::new());
        let leaving = private(&store);
        delete(&*store, vec![member::key(leaving.number, leaving.member)]).expect("removed");
        let named = Settings { region: Some("jobs".to_owned()), ..Settings::default() };
        let named = open(Arc::clone(&store) as Arc<dyn Store>, &named).expect("made");
        of_another(&named, ended);
        remove(&*store, NEXT).expect("removed");
        let kept = [own.name, elsewhere.name, unknown.name, leaving.name, "jobs".to_owned()];
        assert_eq!(names(&store), kept);
    }

    #[test]
    fn one_start_removes_so_much_and_the_next_the_rest() {
        let store = store();
        let large = private(&store);
        for page in 0..10 {
            put(&*store, Key::page(large.number, page), vec![1]).expect("stored");
        }
        of_another(&large, ended);
        remove_some(&*store, NEXT, 4).expect("removed");
        assert_eq!(stat(&*store, &large.name).expect("readable").expect("still there").pages, 6);
        remove_some(&*store, NEXT, 4).expect("removed");
        remove_some(&*store, NEXT, 4).expect("removed");
        assert_eq!(names(&store), Vec::<String>::new());
        let several = [private(&store), private(&store)];
        several.iter().for_each(|region| of_another(region, ended));
        remove(&*store, NEXT).expect("removed");
        assert_eq!(names(&store), [several[1].name.as_str()]);
    }

    #[test]
    fn where_nothing_was_left_it_is_one_call_however_much_there_is() {
        let store = store();
        let others: Vec<Opened> = (0..5).map(|_| private(&store)).collect();
        let before = store.counts();
        remove(&*store, NEXT).expect("nothing to remove");
        let made = store.counts().since(&before);
        assert_eq!((made.calls(), made.gets), (1, 1), "no list");
        assert_eq!(names(&store).len(), others.len());
    }
}
