//! A connection to Spanner, with a session of its own.
//!
//! It promises that a session that no longer exists in the service is replaced, and that reads are repeated until their
//! time is over.

use std::sync::Arc;

use api::key_range::{EndKeyType, StartKeyType};
use api::spanner_client::SpannerClient;
use api::transaction_selector::Selector;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use googleapis_tonic_google_spanner_v1::google::spanner::v1 as api;
use prost_types::{ListValue, Value, value};
use tonic::Code;
use tonic::transport::Channel;

use super::database::{BYTES, Database, PLACE, TABLE};
use super::transaction;
use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::{Applied, Guard, Operation};
use crate::stores::google::Caller;
use crate::stores::grpc::failure::{Failure, answer};
use crate::stores::grpc::flat::{self, Found};
use crate::stores::grpc::served::Connection;
use crate::stores::grpc::{ANSWER_BYTES_MAX, Timeout};

/// The maximum number of rows in one request.
const ROWS_MAX: usize = 1024;

/// A connection.
pub(super) struct Link {
    pub(super) database: Arc<Database>,
    caller: Caller,
    client: SpannerClient<Channel>,
    session: Option<String>,
}

/// A transaction that has begun.
#[derive(Clone)]
pub(super) struct Begun {
    session: String,
    id: Vec<u8>,
}

/// What to read.
#[derive(Clone, Default)]
pub(super) struct Wanted {
    pub(super) places: Vec<Vec<u8>>,
    /// Ranges of places: the first included, the last excluded.
    pub(super) ranges: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether only the places of existing rows are read.
    pub(super) places_only: bool,
}

/// The context of a read.
pub(super) enum Within {
    /// A transaction for this read alone.
    Alone,
    /// A new read-only transaction.
    Snapshot,
    /// A new read-write transaction.
    New,
    /// A transaction that has begun.
    Begun(Begun),
}

impl Link {
    pub(super) fn new(database: Arc<Database>) -> Link {
        let client = SpannerClient::new(database.service.channel());
        let client = client.max_decoding_message_size(ANSWER_BYTES_MAX).max_encoding_message_size(ANSWER_BYTES_MAX);
        Link { caller: database.caller(), database, client, session: None }
    }

    async fn session(&mut self) -> Result<String, Failure> {
        if let Some(session) = &self.session {
            return Ok(session.clone());
        }
        let message = api::CreateSessionRequest { database: self.database.path(), ..Default::default() };
        let request = self.caller.request(message).await?;
        let session = answer(self.client.create_session(request)).await?.into_inner().name;
        Ok(self.session.insert(session).clone())
    }

    /// Drops the session if the failure shows that it no longer exists.
    fn forgotten(&mut self, failure: Failure) -> Failure {
        match failure {
            Failure::Answered(Code::NotFound, reason) if reason.contains("Session not found") => {
                self.session = None;
                Failure::NotSent(reason)
            }
            other => other,
        }
    }

    /// Begins a read-write transaction.
    pub(super) async fn try_begin(&mut self) -> Result<Begun, Failure> {
        let session = self.session().await?;
        let options = Some(read_write());
        let message = api::BeginTransactionRequest { session: session.clone(), options, ..Default::default() };
        let request = self.caller.request(message).await?;
        let begun = answer(self.client.begin_transaction(request)).await;
        let id = begun.map_err(|failure| self.forgotten(failure))?.into_inner().id;
        Ok(Begun { session, id })
    }

    /// Reads; also returns the transaction, if one has begun.
    pub(super) async fn try_read(
        &mut self,
        wanted: &Wanted,
        within: &Within,
    ) -> Result<(Found, Option<Begun>), Failure> {
        let session = match within {
            Within::Begun(begun) => begun.session.clone(),
            _ => self.session().await?,
        };
        let selector = match within {
            Within::Alone => Selector::SingleUse(read_only()),
            Within::Snapshot => Selector::Begin(read_only()),
            Within::New => Selector::Begin(read_write()),
            Within::Begun(begun) => Selector::Id(begun.id.clone()),
        };
        let columns: &[&str] = if wanted.places_only { &[PLACE] } else { &[PLACE, BYTES] };
        let message = api::ReadRequest {
            session: session.clone(),
            transaction: Some(api::TransactionSelector { selector: Some(selector) }),
            table: TABLE.to_owned(),
            columns: columns.iter().map(|column| (*column).to_owned()).collect(),
            key_set: Some(key_set(&wanted.places, &wanted.ranges)),
            ..api::ReadRequest::default()
        };
        let request = self.caller.request(message).await?;
        let mut id = Vec::new();
        let read = answer(async {
            let mut stream = self.client.streaming_read(request).await?.into_inner();
            let mut values = Pieces::default();
            while let Some(part) = stream.message().await? {
                if let Some(transaction) = part.metadata.and_then(|metadata| metadata.transaction) {
                    id = transaction.id;
                }
                values.take(part.values, part.chunked_value);
            }
            Ok::<Vec<Value>, tonic::Status>(values.whole)
        });
        let values = read.await.map_err(|failure| self.forgotten(failure))?;
        let mut found = Found::new();
        for row in values.chunks_exact(columns.len()) {
            let mut cells = row.iter().map(bytes);
            if let Some(Some(place)) = cells.next() {
                found.insert(place, cells.next().flatten().unwrap_or_default());
            }
        }
        Ok((found, (!id.is_empty()).then_some(Begun { session, id })))
    }

    /// Reads outside a transaction, and repeats this until it succeeds or the time is over.
    async fn read(&mut self, wanted: &Wanted, timeout: &mut Timeout) -> Result<Found, StoreError> {
        loop {
            match self.try_read(wanted, &Within::Alone).await {
                Ok((found, _)) => return Ok(found),
                Err(failure) => {
                    if !timeout.pause_after(&failure).await {
                        return Err(self.database.site.unchanged("a read", failure));
                    }
                }
            }
        }
    }

    /// Commits. May be repeated: a transaction is never committed twice.
    pub(super) async fn try_commit(&mut self, begun: &Begun, mutations: Vec<api::Mutation>) -> Result<(), Failure> {
        let message = api::CommitRequest {
            session: begun.session.clone(),
            mutations,
            transaction: Some(api::commit_request::Transaction::TransactionId(begun.id.clone())),
            ..api::CommitRequest::default()
        };
        let request = self.caller.request(message).await?;
        answer(self.client.commit(request)).await.map(drop)
    }
}

impl Connection for Link {
    /// Checks that the table exists and is accessible; creates it in an emulator.
    async fn probe(&mut self) -> Result<(), StoreError> {
        let wanted = Wanted { places: vec![vec![0]], ..Wanted::default() };
        let mut read = self.try_read(&wanted, &Within::Alone).await;
        if matches!(&read, Err(Failure::Answered(Code::NotFound, _))) && self.database.service.is_emulator {
            read = match self.database.make().await {
                Ok(()) => self.try_read(&wanted, &Within::Alone).await,
                Err(failure) => Err(failure),
            };
        }
        read.map(drop).map_err(|failure| self.database.site.unchanged("the first call", failure))
    }

    /// The values of some keys.
    async fn values(&mut self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let mut timeout = Timeout::new();
        let mut found = Found::new();
        for chunk in keys.chunks(ROWS_MAX) {
            let wanted = Wanted { places: chunk.iter().map(flat::value).collect(), ..Wanted::default() };
            found.extend(self.read(&wanted, &mut timeout).await?);
        }
        Ok(keys.iter().map(|key| found.get(&flat::value(key)).cloned()).collect())
    }

    /// The keys of one kind in a region, in no order.
    async fn keys(&mut self, region: u32, kind: Kind, from: u64) -> Result<Vec<Key>, StoreError> {
        let ranges = flat::ranges(region, kind, from);
        let wanted = Wanted { ranges, places_only: true, ..Wanted::default() };
        let found = self.read(&wanted, &mut Timeout::new()).await?;
        Ok(found.keys().filter_map(|place| flat::key(place)).collect())
    }

    async fn apply(&mut self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        transaction::apply(self, operations, guard).await
    }
}

fn read_only() -> api::TransactionOptions {
    use api::transaction_options::read_only::TimestampBound;
    use api::transaction_options::{Mode, ReadOnly};
    let read_only = ReadOnly { timestamp_bound: Some(TimestampBound::Strong(true)), ..ReadOnly::default() };
    api::TransactionOptions { mode: Some(Mode::ReadOnly(read_only)), ..Default::default() }
}

fn read_write() -> api::TransactionOptions {
    use api::transaction_options::read_write::ReadLockMode;
    use api::transaction_options::{Mode, ReadWrite};
    let read_write = ReadWrite { read_lock_mode: ReadLockMode::Optimistic.into(), ..ReadWrite::default() };
    api::TransactionOptions { mode: Some(Mode::ReadWrite(read_write)), ..Default::default() }
}

/// Rows by their places.
pub(super) fn key_set(places: &[Vec<u8>], ranges: &[(Vec<u8>, Vec<u8>)]) -> api::KeySet {
    let range = |(from, to): &(Vec<u8>, Vec<u8>)| api::KeyRange {
        start_key_type: Some(StartKeyType::StartClosed(list([from.as_slice()]))),
        end_key_type: Some(EndKeyType::EndOpen(list([to.as_slice()]))),
    };
    api::KeySet {
        keys: places.iter().map(|place| list([place.as_slice()])).collect(),
        ranges: ranges.iter().map(range).collect(),
        all: false,
    }
}

/// A row or a key of byte columns, in the form of the service.
pub(super) fn list<const COUNT: usize>(columns: [&[u8]; COUNT]) -> ListValue {
    let value = |bytes: &[u8]| Value { kind: Some(value::Kind::StringValue(STANDARD.encode(bytes))) };
    ListValue { values: columns.into_iter().map(value).collect() }
}

fn bytes(value: &Value) -> Option<Vec<u8>> {
    match &value.kind {
        Some(value::Kind::StringValue(text)) => STANDARD.decode(text).ok(),
        _ => None,
    }
}

/// Assembles values: the last one of an answer may continue in the next.
#[derive(Default)]
struct Pieces {
    whole: Vec<Value>,
    goes_on: bool,
}

impl Pieces {
    fn take(&mut self, values: Vec<Value>, chunked: bool) {
        let mut values = values.into_iter();
        if self.goes_on
            && let Some(Value { kind: Some(value::Kind::StringValue(text)) }) = self.whole.last_mut()
            && let Some(Value { kind: Some(value::Kind::StringValue(more)) }) = values.next()
        {
            text.push_str(&more);
        }
        self.whole.extend(values);
        self.goes_on = chunked;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_comes_in_pieces_is_put_together() {
        let text = |text: &str| Value { kind: Some(value::Kind::StringValue(text.to_owned())) };
        let mut pieces = Pieces::default();
        pieces.take(vec![text("a"), text("b")], true);
        pieces.take(vec![text("c")], true);
        pieces.take(vec![text("d"), text("e")], false);
        pieces.take(vec![text("f")], false);
        assert_eq!(pieces.whole, ["a", "bcd", "e", "f"].map(text));
    }

    #[test]
    fn bytes_survive_being_a_value() {
        let all: Vec<u8> = (0..=255).collect();
        let row = list([&all, &[]]);
        assert_eq!(row.values.iter().map(bytes).collect::<Vec<_>>(), [Some(all), Some(Vec::new())]);
        assert_eq!(bytes(&Value { kind: Some(value::Kind::NullValue(0)) }), None);
    }
}
