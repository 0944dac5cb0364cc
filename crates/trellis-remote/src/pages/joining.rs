//! Combines adjacent pages into one datagram, if datagrams can hold more than a page.
//!
//! Promises: combined pages are contiguous in one object. Pure; must never access a server.

use std::borrow::Cow;

use super::super::Pointer;
use super::PAGE_BYTES;

/// The place of a page: its object, by space and number, and its address.
pub(super) type At = ((u32, u64), Pointer);

/// The lengths of the ranges of adjacent pages.
pub(super) fn runs(pages: &[At]) -> Vec<usize> {
    let mut runs: Vec<usize> = Vec::new();
    for (place, page) in pages.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if follows(pages[place - 1], PAGE_BYTES, *page) => *run += 1,
            _ => runs.push(1),
        }
    }
    runs
}

/// Whether a place is exactly this many bytes after another one, in the same object.
fn follows(before: At, bytes: usize, after: At) -> bool {
    before.0 == after.0 && before.1.plus(bytes as u64) == Some(after.1)
}

/// The same bytes at the same places, with adjacent ones combined.
pub(super) fn joined<'a>(parts: &[(At, &'a [u8])]) -> Vec<(Pointer, Cow<'a, [u8]>)> {
    let mut joined: Vec<(Pointer, Cow<'a, [u8]>)> = Vec::new();
    for (place, (at, bytes)) in parts.iter().enumerate() {
        match joined.last_mut() {
            Some((_, run)) if follows(parts[place - 1].0, parts[place - 1].1.len(), *at) => {
                run.to_mut().extend_from_slice(bytes);
            }
            _ => joined.push((at.1, Cow::Borrowed(bytes))),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(object: u64, page: u64) -> At {
        let pointer: Pointer = "fd12:3456:7:0:1::".parse().expect("a pointer");
        ((0, object), pointer.plus(page * PAGE_BYTES as u64).expect("it is in the memory"))
    }

    #[test]
    fn only_neighbours_in_one_object_are_joined() {
        let pages = [at(1, 0), at(1, 1), at(1, 2), at(2, 3), at(2, 5), at(2, 6), at(2, 5)];
        assert_eq!(runs(&pages), [3, 1, 2, 1]);
        assert!(runs(&[]).is_empty());
        let (whole, half) = ([7; PAGE_BYTES], [8; PAGE_BYTES / 2]);
        let parts = [(at(1, 0), &whole[..]), (at(1, 1), &half[..]), (at(1, 2), &half[..]), (at(2, 3), &whole[..])];
        let joined = joined(&parts);
        let places: Vec<(Pointer, usize)> = joined.iter().map(|(at, bytes)| (*at, bytes.len())).collect();
        let expected = [(at(1, 0).1, 6144), (at(1, 2).1, 2048), (at(2, 3).1, 4096)];
        assert_eq!(places, expected, "behind half a page nothing follows");
        assert_eq!(joined[0].1, [&whole[..], &half[..]].concat());
    }
}
