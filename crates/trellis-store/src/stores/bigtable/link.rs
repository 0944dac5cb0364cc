//! A connection to Bigtable: reads, unconditional changes and conditional changes of rows.
//!
//! It promises that reads are repeated until their time is over, and that changes are not: only the caller knows what a
//! change depends on, and decides whether to send it again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::bigtable_client::BigtableClient;
use api::read_rows_response::cell_chunk::RowStatus;
use api::row_filter::Filter;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as api;
use tonic::Code;
use tonic::transport::Channel;

use super::cells::{self, MARK, Marks, Row};
use super::table::{FAMILY, Table};
use super::{control, pages};
use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::{Applied, Guard, Operation};
use crate::stores::google::Caller;
use crate::stores::grpc::failure::{Failure, answer};
use crate::stores::grpc::served::Connection;
use crate::stores::grpc::{ANSWER_BYTES_MAX, Timeout};

/// The maximum number of rows in one request.
const ROWS_MAX: usize = 1024;
/// The maximum number of columns in one request; a filter may have 20 KiB.
const COLUMNS_MAX: usize = 256;

/// Rows by their keys.
pub(super) type Rows = BTreeMap<Vec<u8>, Row>;

/// A connection; clones share it.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) table: Arc<Table>,
    path: String,
    caller: Caller,
    client: BigtableClient<Channel>,
}

impl Link {
    pub(super) fn new(table: Arc<Table>) -> Link {
        let client = BigtableClient::new(table.service.channel()).max_decoding_message_size(ANSWER_BYTES_MAX);
        Link { path: table.path(), caller: table.caller(), table, client }
    }

    /// Reads rows; rows that do not exist are left out.
    pub(super) async fn read(
        &mut self,
        rows: api::RowSet,
        filter: Filter,
        timeout: &mut Timeout,
    ) -> Result<Rows, StoreError> {
        loop {
            match self.try_read(rows.clone(), filter.clone()).await {
                Ok(rows) => return Ok(rows),
                Err(failure) => {
                    if !timeout.pause_after(&failure).await {
                        return Err(self.table.site.unchanged("a read", failure));
                    }
                }
            }
        }
    }

    /// Reads one row.
    pub(super) async fn read_row(
        &mut self,
        row: &[u8],
        filter: Filter,
        timeout: &mut Timeout,
    ) -> Result<Row, StoreError> {
        let mut rows = self.read(one_row(row.to_vec()), filter, timeout).await?;
        Ok(rows.remove(row).unwrap_or_default())
    }

    async fn try_read(&mut self, rows: api::RowSet, filter: Filter) -> Result<Rows, Failure> {
        let message = api::ReadRowsRequest {
            table_name: self.path.clone(),
            rows: Some(rows),
            filter: Some(api::RowFilter { filter: Some(filter) }),
            ..api::ReadRowsRequest::default()
        };
        let request = self.caller.request(message).await?;
        answer(async {
            let mut stream = self.client.read_rows(request).await?.into_inner();
            let mut assembly = Assembly::default();
            while let Some(response) = stream.message().await? {
                response.chunks.into_iter().for_each(|chunk| assembly.take(chunk));
            }
            Ok::<Rows, tonic::Status>(assembly.rows)
        })
        .await
    }

    /// Changes a row if it still has these marks; returns whether it had.
    pub(super) async fn try_change_if(
        &mut self,
        row: &[u8],
        seen: &Marks,
        mutations: Vec<api::Mutation>,
    ) -> Result<bool, Failure> {
        let marks = column_filter(MARK.to_vec());
        let exists = seen.bytes();
        let predicate = match &exists {
            None => marks,
            Some(bytes) => chain([marks, Filter::ValueRangeFilter(exactly(bytes.clone()))]),
        };
        let (true_mutations, false_mutations) = match exists {
            Some(_) => (mutations, Vec::new()),
            None => (Vec::new(), mutations),
        };
        let message = api::CheckAndMutateRowRequest {
            table_name: self.path.clone(),
            row_key: row.to_vec(),
            predicate_filter: Some(api::RowFilter { filter: Some(predicate) }),
            true_mutations,
            false_mutations,
            ..api::CheckAndMutateRowRequest::default()
        };
        let request = self.caller.request(message).await?;
        let matched = answer(self.client.check_and_mutate_row(request)).await?.into_inner().predicate_matched;
        Ok(matched == seen.bytes().is_some())
    }

    /// Changes rows unconditionally; returns the result for each.
    pub(super) async fn try_change(
        &mut self,
        changes: &[(Vec<u8>, Vec<api::Mutation>)],
    ) -> Result<Vec<Result<(), Failure>>, Failure> {
        let entry = |(row, mutations): &(Vec<u8>, Vec<api::Mutation>)| api::mutate_rows_request::Entry {
            row_key: row.clone(),
            mutations: mutations.clone(),
            ..api::mutate_rows_request::Entry::default()
        };
        let message = api::MutateRowsRequest {
            table_name: self.path.clone(),
            entries: changes.iter().map(entry).collect(),
            ..api::MutateRowsRequest::default()
        };
        let request = self.caller.request(message).await?;
        // The result of a row that the answer does not mention is unknown.
        let mut results = vec![Err(Failure::Lost("the answer does not mention it".to_owned())); changes.len()];
        answer(async {
            let mut stream = self.client.mutate_rows(request).await?.into_inner();
            while let Some(response) = stream.message().await? {
                for entry in response.entries {
                    let Some(result) = usize::try_from(entry.index).ok().and_then(|at| results.get_mut(at)) else {
                        continue;
                    };
                    let status = entry.status.unwrap_or_default();
                    *result = match Code::from(status.code) {
                        Code::Ok => Ok(()),
                        code => Err(Failure::from(tonic::Status::new(code, status.message))),
                    };
                }
            }
            Ok::<(), tonic::Status>(())
        })
        .await?;
        Ok(results)
    }
}

impl Connection for Link {
    /// Checks that the table exists and is accessible; creates it in an emulator.
    async fn probe(&mut self) -> Result<(), StoreError> {
        let read = self.try_read(one_row(vec![0]), Filter::CellsPerRowLimitFilter(1)).await;
        let missing = matches!(&read, Err(Failure::Answered(Code::NotFound, _)));
        let result = match read {
            Err(_) if missing && self.table.service.is_emulator => self.table.make().await,
            read => read.map(drop),
        };
        result.map_err(|failure| self.table.site.unchanged("the first call", failure))
    }

    /// The values of some keys.
    async fn values(&mut self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let mut timeout = Timeout::new();
        let mut found: BTreeMap<&Key, Option<Vec<u8>>> = BTreeMap::new();
        let each: BTreeSet<&Key> = keys.iter().collect();
        let (control, own): (Vec<&Key>, Vec<&Key>) = each.into_iter().partition(|key| key.kind().is_control());
        for chunk in own.chunks(ROWS_MAX) {
            let row_keys = chunk.iter().map(|key| key.encode()).collect();
            let mut rows =
                self.read(api::RowSet { row_keys, ..Default::default() }, everything(), &mut timeout).await?;
            found.extend(chunk.iter().map(|key| (*key, rows.remove(&key.encode()).and_then(|row| cells::value(&row)))));
        }
        let mut regions: BTreeMap<u32, Vec<&Key>> = BTreeMap::new();
        for key in control {
            regions.entry(key.region()).or_default().push(key);
        }
        for (region, keys) in regions {
            for chunk in keys.chunks(COLUMNS_MAX) {
                let columns = chunk.iter().map(|key| column_filter(cells::column(key))).collect();
                let mut row = self.read_row(&cells::control_row(region), any(columns), &mut timeout).await?;
                found.extend(chunk.iter().map(|key| (*key, row.remove(&cells::column(key)))));
            }
        }
        Ok(keys.iter().map(|key| found.get(key).cloned().flatten()).collect())
    }

    /// The keys of one kind in a region, in no order.
    async fn keys(&mut self, region: u32, kind: Kind, from: u64) -> Result<Vec<Key>, StoreError> {
        let mut timeout = Timeout::new();
        let nothing = Filter::StripValueTransformer(true);
        if kind.is_control() {
            let (first, last) = (Key::new(region, kind, from), Key::new(region, kind, u64::MAX));
            let columns = column_range(cells::column(&first), cells::column(&last));
            let row = self.read_row(&cells::control_row(region), chain([columns, nothing]), &mut timeout).await?;
            return Ok(row.keys().filter_map(|column| cells::key(region, column)).collect());
        }
        let range = |spread: u8| {
            let start = |number: u64| {
                let mut row = vec![kind as u8, spread];
                row.extend_from_slice(&region.to_be_bytes());
                row.extend_from_slice(&number.to_be_bytes());
                row
            };
            let mut end = start(u64::MAX);
            end.resize(end.len() + 1, 0xff);
            api::RowRange {
                start_key: Some(api::row_range::StartKey::StartKeyClosed(start(from))),
                end_key: Some(api::row_range::EndKey::EndKeyOpen(end)),
            }
        };
        let rows = api::RowSet { row_ranges: (0..=u8::MAX).map(range).collect(), ..Default::default() };
        let filter = chain([Filter::CellsPerRowLimitFilter(1), nothing]);
        let rows = self.read(rows, filter, &mut timeout).await?;
        Ok(rows.keys().filter_map(|row| Key::decode(row)).collect())
    }

    async fn apply(&mut self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        let control = operations.first().is_none_or(|operation| operation.key().kind().is_control());
        match control {
            true => control::apply(self, operations, guard).await,
            false => pages::apply(self, operations, guard).await,
        }
    }
}

fn one_row(row: Vec<u8>) -> api::RowSet {
    api::RowSet { row_keys: vec![row], ..api::RowSet::default() }
}

/// All cells, the newest of each column.
pub(super) fn everything() -> Filter {
    Filter::CellsPerColumnLimitFilter(1)
}

/// One column.
pub(super) fn column_filter(column: Vec<u8>) -> Filter {
    column_range(column.clone(), column)
}

/// The columns from one to another, both included.
pub(super) fn column_range(from: Vec<u8>, to: Vec<u8>) -> Filter {
    Filter::ColumnRangeFilter(api::ColumnRange {
        family_name: FAMILY.to_owned(),
        start_qualifier: Some(api::column_range::StartQualifier::StartQualifierClosed(from)),
        end_qualifier: Some(api::column_range::EndQualifier::EndQualifierClosed(to)),
    })
}

/// What passes all of these filters.
pub(super) fn chain<const COUNT: usize>(filters: [Filter; COUNT]) -> Filter {
    Filter::Chain(api::row_filter::Chain { filters: filters.into_iter().map(wrapped).collect() })
}

/// What passes at least one of these filters.
pub(super) fn any(mut filters: Vec<Filter>) -> Filter {
    match filters.len() {
        1 => filters.remove(0),
        _ => Filter::Interleave(api::row_filter::Interleave { filters: filters.into_iter().map(wrapped).collect() }),
    }
}

fn wrapped(filter: Filter) -> api::RowFilter {
    api::RowFilter { filter: Some(filter) }
}

/// Compares bytes exactly; a regular expression would have to be escaped.
fn exactly(bytes: Vec<u8>) -> api::ValueRange {
    api::ValueRange {
        start_value: Some(api::value_range::StartValue::StartValueClosed(bytes.clone())),
        end_value: Some(api::value_range::EndValue::EndValueClosed(bytes)),
    }
}

/// Assembles rows from the chunks of the answer.
#[derive(Default)]
struct Assembly {
    rows: Rows,
    key: Vec<u8>,
    row: Row,
    column: Vec<u8>,
    value: Vec<u8>,
}

impl Assembly {
    fn take(&mut self, chunk: api::read_rows_response::CellChunk) {
        if !chunk.row_key.is_empty() {
            self.key = chunk.row_key;
        }
        if let Some(column) = chunk.qualifier {
            self.column = column;
        }
        self.value.extend_from_slice(&chunk.value);
        match chunk.row_status {
            Some(RowStatus::ResetRow(_)) => {
                self.row.clear();
                self.value.clear();
                return;
            }
            // The rest of this cell follows.
            _ if chunk.value_size > 0 => return,
            _ => {}
        }
        // The newest version comes first.
        let value = std::mem::take(&mut self.value);
        self.row.entry(self.column.clone()).or_insert(value);
        if let Some(RowStatus::CommitRow(_)) = chunk.row_status {
            self.rows.insert(std::mem::take(&mut self.key), std::mem::take(&mut self.row));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(row: &[u8], column: Option<&[u8]>, value: &[u8]) -> api::read_rows_response::CellChunk {
        let (row_key, qualifier) = (row.to_vec(), column.map(<[u8]>::to_vec));
        api::read_rows_response::CellChunk { row_key, qualifier, value: value.to_vec(), ..Default::default() }
    }

    #[test]
    fn a_row_is_put_together_from_its_pieces() {
        let mut assembly = Assembly::default();
        let committed = Some(RowStatus::CommitRow(true));
        assembly.take(chunk(b"one", Some(b"x"), b"spoilt"));
        assembly.take(api::read_rows_response::CellChunk {
            row_status: Some(RowStatus::ResetRow(true)),
            ..chunk(b"", None, b"")
        });
        assembly.take(api::read_rows_response::CellChunk { value_size: 6, ..chunk(b"one", Some(b"x"), b"abc") });
        assembly.take(chunk(b"", None, b"def"));
        assembly.take(chunk(b"", None, b"an older version"));
        assembly.take(api::read_rows_response::CellChunk { row_status: committed, ..chunk(b"", Some(b"y"), b"") });
        assembly.take(api::read_rows_response::CellChunk { row_status: committed, ..chunk(b"two", Some(b"x"), b"z") });
        let one = Row::from([(b"x".to_vec(), b"abcdef".to_vec()), (b"y".to_vec(), Vec::new())]);
        let two = Row::from([(b"x".to_vec(), b"z".to_vec())]);
        assert_eq!(assembly.rows, Rows::from([(b"one".to_vec(), one), (b"two".to_vec(), two)]));
    }
}
