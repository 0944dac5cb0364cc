//! The layout of keys in rows and cells, and the assembly of values from cells.
//!
//! | row | column | holds |
//! |---|---|---|
//! | each | `m` | the mark of the last change; conditional changes keep the marks before it |
//! | a key that is not a control key | `b` | the value when it was last written as a whole |
//! | | `o`, offset | one byte that was written since |
//! | the control keys of a region | `v`, kind, number | a value |
//! | | `h`, kind, number | the bounds of a log |
//! | | `e`, number, sequence | an entry of a log |
//!
//! Every cell is written at time 0, so that a column has one version. It promises that a value is the same whether its
//! bytes were written one by one or as a whole.

use std::collections::{BTreeMap, VecDeque};

use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as api;

use super::table::FAMILY;
use crate::key::{Key, Kind};
use crate::stores::grpc::random;

/// The content of a row, by column without the family.
pub(super) type Row = BTreeMap<Vec<u8>, Vec<u8>>;

/// The column of marks.
pub(super) const MARK: &[u8] = b"m";
const BASE: &[u8] = b"b";
const BYTE: u8 = b'o';

/// The number of marks that are kept: a change can be found until this many later changes have been made.
const MARKS_MAX: usize = 8;
const MARK_BYTES: usize = 16;

/// The row of a key.
pub(super) fn row(key: &Key) -> Vec<u8> {
    if key.kind().is_control() { control_row(key.region()) } else { key.encode() }
}

/// The row of all control keys of a region. No other row begins with 0.
pub(super) fn control_row(region: u32) -> Vec<u8> {
    let mut row = vec![0, (region.wrapping_mul(0x9e37_79b9) >> 24) as u8];
    row.extend_from_slice(&region.to_be_bytes());
    row
}

/// The column of a control key's value, or of a log's bounds.
pub(super) fn column(key: &Key) -> Vec<u8> {
    let tag = if key.kind() == Kind::Log { b'h' } else { b'v' };
    let mut column = vec![tag, key.kind() as u8];
    column.extend_from_slice(&key.number().to_be_bytes());
    column
}

/// The control key whose value is in this column of a region's row.
pub(super) fn key(region: u32, column: &[u8]) -> Option<Key> {
    let (head, number) = column.split_at_checked(2)?;
    let kind = Kind::from_number(head[1])?;
    matches!(head[0], b'v' | b'h').then_some(())?;
    Some(Key::new(region, kind, u64::from_be_bytes(number.try_into().ok()?)))
}

/// The column of an entry.
pub(super) fn entry(log: &Key, sequence: u64) -> Vec<u8> {
    let mut column = vec![b'e'];
    column.extend_from_slice(&log.number().to_be_bytes());
    column.extend_from_slice(&sequence.to_be_bytes());
    column
}

/// The value that the cells of a key's own row form.
pub(super) fn value(row: &Row) -> Option<Vec<u8>> {
    let mut value = row.get(BASE).cloned();
    for (column, byte) in row.range(vec![BYTE]..vec![BYTE + 1]) {
        let (Some(offset), [byte]) = (column[1..].try_into().ok(), &byte[..]) else { continue };
        let offset = u32::from_be_bytes(offset) as usize;
        let value = value.get_or_insert_default();
        if value.len() <= offset {
            value.resize(offset + 1, 0);
        }
        value[offset] = *byte;
    }
    value
}

/// Mutations after which a key's own row holds only the marks and this value; without a value, the row is deleted.
pub(super) fn replace(value: Option<&[u8]>, marks: &Marks) -> Vec<api::Mutation> {
    let mut mutations = vec![mutation(api::mutation::Mutation::DeleteFromRow(api::mutation::DeleteFromRow {}))];
    if let Some(value) = value {
        mutations.push(set(BASE.to_vec(), value.to_vec()));
        mutations.push(marks.set());
    }
    mutations
}

/// Mutations that change single bytes in a key's own row.
pub(super) fn overlay(bytes: &BTreeMap<u32, u8>, marks: &Marks) -> Vec<api::Mutation> {
    let byte = |(offset, byte): (&u32, &u8)| {
        let mut column = vec![BYTE];
        column.extend_from_slice(&offset.to_be_bytes());
        set(column, vec![*byte])
    };
    bytes.iter().map(byte).chain([marks.set()]).collect()
}

/// Writes bytes into a column.
pub(super) fn set(column: Vec<u8>, value: Vec<u8>) -> api::Mutation {
    mutation(api::mutation::Mutation::SetCell(api::mutation::SetCell {
        family_name: FAMILY.to_owned(),
        column_qualifier: column,
        timestamp_micros: 0,
        value,
    }))
}

/// Deletes a column.
pub(super) fn unset(column: Vec<u8>) -> api::Mutation {
    mutation(api::mutation::Mutation::DeleteFromColumn(api::mutation::DeleteFromColumn {
        family_name: FAMILY.to_owned(),
        column_qualifier: column,
        time_range: None,
    }))
}

fn mutation(mutation: api::mutation::Mutation) -> api::Mutation {
    api::Mutation { mutation: Some(mutation) }
}

/// The marks of a row, newest first; empty for a row that does not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks(VecDeque<[u8; MARK_BYTES]>);

impl Marks {
    /// The marks of a row that was read.
    pub(super) fn of(row: &Row) -> Marks {
        let bytes = row.get(MARK).map(Vec::as_slice).unwrap_or_default();
        Marks(bytes.as_chunks().0.iter().copied().collect())
    }

    /// These marks preceded by a new, unique one.
    pub(super) fn next(&self) -> Marks {
        let mut mark = [0; MARK_BYTES];
        mark[..8].copy_from_slice(&random().to_ne_bytes());
        mark[8..].copy_from_slice(&random().to_ne_bytes());
        Marks([mark].into_iter().chain(self.0.iter().copied()).take(MARKS_MAX).collect())
    }

    /// Whether the newest mark of `other` is among these.
    pub(super) fn know(&self, other: &Marks) -> bool {
        other.0.front().is_some_and(|mark| self.0.contains(mark))
    }

    /// The content of the column of marks; `None` for a row that does not exist.
    pub(super) fn bytes(&self) -> Option<Vec<u8>> {
        (!self.0.is_empty()).then(|| self.0.iter().flatten().copied().collect())
    }

    /// Writes the marks into a row.
    pub(super) fn set(&self) -> api::Mutation {
        set(MARK.to_vec(), self.bytes().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies mutations as Bigtable does.
    fn apply(row: &mut Row, mutations: Vec<api::Mutation>) {
        for one in mutations {
            match one.mutation.unwrap() {
                api::mutation::Mutation::SetCell(cell) => drop(row.insert(cell.column_qualifier, cell.value)),
                api::mutation::Mutation::DeleteFromRow(_) => row.clear(),
                other => panic!("{other:?} is not used for pages"),
            }
        }
    }

    #[test]
    fn bytes_lie_over_the_value_until_it_is_written_whole() {
        let mut row = Row::new();
        assert_eq!(value(&row), None);
        let marks = Marks::default().next();
        apply(&mut row, overlay(&BTreeMap::from([(2, 7), (3, 8)]), &marks));
        assert_eq!(value(&row).unwrap(), [0, 0, 7, 8]);
        apply(&mut row, replace(Some(b"abcdef"), &marks.next()));
        assert_eq!(value(&row).unwrap(), b"abcdef");
        apply(&mut row, overlay(&BTreeMap::from([(0, b'X'), (7, b'Y')]), &marks));
        assert_eq!(value(&row).unwrap(), b"Xbcdef\0Y");
        apply(&mut row, replace(None, &marks));
        assert!(row.is_empty());
    }

    #[test]
    fn a_change_is_known_until_eight_more_have_come() {
        let mut marks = Marks::default().next();
        let first = marks.clone();
        for _ in 1..MARKS_MAX {
            assert!(marks.know(&first));
            marks = marks.next();
        }
        assert!(marks.know(&first));
        assert!(!marks.next().know(&first));
        assert!(!first.know(&marks), "what came later");
        assert!(!marks.know(&Marks::default()), "a row that did not exist has no mark");
        let row = Row::from([(MARK.to_vec(), marks.bytes().unwrap())]);
        assert_eq!(Marks::of(&row), marks);
    }

    #[test]
    fn control_keys_of_a_region_share_a_row_that_no_page_has() {
        let (lock, log) = (Key::new(7, Kind::Synchronisation, 9), Key::new(7, Kind::Log, 1));
        assert_eq!(row(&lock), row(&log));
        assert_ne!(row(&lock), row(&Key::new(8, Kind::Log, 1)));
        assert_eq!(key(7, &column(&lock)), Some(lock));
        assert_eq!(key(7, &column(&log)), Some(log.clone()));
        assert_eq!(key(7, &entry(&log, 1)), None);
        assert_ne!(row(&Key::page(7, 9))[0], 0);
    }
}
