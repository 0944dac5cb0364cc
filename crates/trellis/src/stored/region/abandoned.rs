//! Regions without a name whose process ended without leaving them: removed by who makes the next one.
//!
//! Promises: one start removes a bounded number of keys and goes on at the next start where there are more; what is cut
//! short is found again, because the two records that lead here go last. Must never touch a region of a process that may
//! run, or of one about which this machine knows nothing.

use trellis_store::{Key, Kind, Store};

use super::{DIRECTORY, ONLY_MEMBER, PRIVATE, delete, each_number, header_key, values};
use crate::stored::end;
use crate::stored::error::StoredError;
use crate::stored::synchronisation::member::{self, Card};

/// So many keys are removed at one start: a few calls.
const KEYS_MAX: usize = 4096;
/// And so many regions at most, because keys are listed kind by kind.
const REGIONS_MAX: usize = 8;

/// Removes what processes of this machine left that have ended. One call where there is no such region, and one more
/// where all of them are used.
pub(super) fn remove(store: &dyn Store) -> Result<(), StoredError> {
    remove_some(store, KEYS_MAX)
}

fn remove_some(store: &dyn Store, keys_max: usize) -> Result<(), StoredError> {
    let mut left = keys_max;
    for number in abandoned(store)?.into_iter().take(REGIONS_MAX) {
        left = left.saturating_sub(remove_region(store, number, left)?);
        if left == 0 {
            break;
        }
    }
    Ok(())
}

/// The numbers of regions whose only process has ended.
fn abandoned(store: &dyn Store) -> Result<Vec<u32>, StoredError> {
    let mut found = Vec::new();
    each_number(store, DIRECTORY, Kind::Directory, PRIVATE, &mut |keys| {
        let regions: Vec<u32> = keys.iter().filter_map(|key| u32::try_from(key & !PRIVATE).ok()).collect();
        let records = values(store, regions.iter().map(|&region| member::key(region, ONLY_MEMBER)))?;
        let ended = |record: &Option<Vec<u8>>| {
            let card = Card::read(ONLY_MEMBER, record.as_deref());
            // Who has no record is leaving, and removes the region itself.
            card.is_alive && end::has_ended(card.process, &card.identity)
        };
        found.extend(regions.iter().zip(&records).filter(|(_, record)| ended(record)).map(|(&region, _)| region));
        Ok(())
    })?;
    Ok(found)
}

/// Removes at most so many keys of a region, and the region with its last ones: how many.
fn remove_region(store: &dyn Store, number: u32, keys_max: usize) -> Result<usize, StoredError> {
    let mut removed = 0;
    let is_last = |kind: &Kind| matches!(kind, Kind::Named | Kind::Header | Kind::Member);
    for kind in Kind::ALL.into_iter().filter(|kind| !is_last(kind)) {
        // All that may go at once: a store without an order looks through everything for each list.
        let numbers = store.numbers(number, kind, 0, keys_max - removed)?;
        removed += numbers.len();
        delete(store, numbers.into_iter().map(|key| Key::new(number, kind, key)).collect())?;
        if removed >= keys_max {
            return Ok(removed);
        }
    }
    let directory = Key::new(DIRECTORY, Kind::Directory, PRIVATE | u64::from(number));
    let last = vec![header_key(number), directory, member::key(number, ONLY_MEMBER)];
    removed += last.len();
    delete(store, last)?;
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use trellis_store::wrap::Counted;

    use super::super::{list, open, put, stat};
    use super::*;
    use crate::stored::region::Opened;
    use crate::stored::settings::Settings;

    fn store() -> Arc<Counted> {
        Counted::new(trellis_store::open("embedded:").expect("it needs nothing"))
    }

    fn private(store: &Arc<Counted>) -> Opened {
        open(Arc::clone(store) as Arc<dyn Store>, &Settings::default()).expect("made")
    }

    fn names(store: &Counted) -> Vec<String> {
        list(store).expect("listed").into_iter().map(|region| region.name).collect()
    }

    /// Its record then says another process: `told` makes it from what it says.
    fn of_another(region: &Opened, told: impl Fn(&str) -> String) {
        let key = member::key(region.number, region.member);
        let mut record = region.store.get_many(std::slice::from_ref(&key)).expect("readable").remove(0).expect("there");
        let identity = Card::read(region.member, Some(&record)).identity;
        record.truncate(record.len() - identity.len());
        record.extend(told(&identity).bytes());
        put(&*region.store, key, record).expect("stored");
    }

    /// As if its process had ended, and another one had its number.
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
        remove(&*store).expect("removed");
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
        remove_some(&*store, 4).expect("removed");
        assert_eq!(stat(&*store, &large.name).expect("readable").expect("still there").pages, 6);
        remove_some(&*store, 4).expect("removed");
        remove_some(&*store, 4).expect("removed");
        assert_eq!(names(&store), Vec::<String>::new());
        let many: Vec<Opened> = (0..=REGIONS_MAX).map(|_| private(&store)).collect();
        many.iter().for_each(|region| of_another(region, ended));
        remove(&*store).expect("removed");
        assert_eq!(names(&store), [many[REGIONS_MAX].name.as_str()]);
    }

    #[test]
    fn where_nothing_was_left_it_is_one_call() {
        let store = store();
        remove(&*store).expect("nothing to remove");
        assert_eq!(store.counts().calls(), 1);
    }
}
