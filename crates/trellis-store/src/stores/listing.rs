//! The lists of [`Store::numbers`](crate::Store::numbers) and [`Store::names`](crate::Store::names), for stores that
//! find keys in any order.
//!
//! Promises: a list is ascending, and has each entry once. It must never look for keys itself.

use crate::key::Key;

/// The numbers of keys from `from` on, at most `count`.
pub(super) fn numbers(keys: &[Key], from: u64, count: usize) -> Vec<u64> {
    first(keys.iter().map(Key::number).filter(|number| *number >= from).collect(), count)
}

/// The names of named keys that follow `after`, at most `count`.
pub(super) fn names(keys: &[Key], after: Option<&[u8]>, count: usize) -> Vec<Vec<u8>> {
    let names = keys.iter().filter_map(Key::name).filter(|name| after.is_none_or(|after| *name > after));
    first(names.map(<[u8]>::to_vec).collect(), count)
}

fn first<T: Ord>(mut found: Vec<T>, count: usize) -> Vec<T> {
    found.sort_unstable();
    found.dedup();
    found.truncate(count);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_ascending_and_have_each_entry_once() {
        let keys = [7, 3, 9, 3, 1].map(|number| Key::page(5, number));
        assert_eq!(numbers(&keys, 2, 2), [3, 7]);
        assert_eq!(numbers(&keys, 10, 2), [0; 0]);
        let keys = ["b", "a", "c", "b"].map(|name| Key::named(5, name.as_bytes()));
        assert_eq!(names(&keys, None, 9), [b"a", b"b", b"c"]);
        assert_eq!(names(&keys, Some(b"a"), 1), [b"b"]);
    }
}
