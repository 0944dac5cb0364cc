//! A connection to Datastore.
//!
//! Promises: every requested entity is read, over however many answers the service distributes them, and reads outside
//! a transaction are repeated until their time is over.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::datastore_client::DatastoreClient;
use api::read_options::{ConsistencyType, ReadConsistency};
use googleapis_tonic_google_datastore_v1::google::datastore::v1 as api;
use tonic::transport::Channel;

use super::place::{Content, GROUP, KIND, Place, content, group, place};
use super::transaction;
use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::{Applied, Guard, Operation};
use crate::stores::google::Caller;
use crate::stores::grpc::failure::{Failure, answer};
use crate::stores::grpc::served::Connection;
use crate::stores::grpc::{ANSWER_BYTES_MAX, Timeout, flat};

/// The maximum number of keys in one lookup.
const KEYS_MAX: usize = 1000;

/// Contents by place.
pub(super) type Contents = BTreeMap<Vec<u8>, Content>;

/// A connection.
pub(super) struct Link {
    pub(super) place: Arc<Place>,
    caller: Caller,
    client: DatastoreClient<Channel>,
}

/// The context of a read.
#[derive(Clone)]
pub(super) enum Within {
    /// No transaction: the current state of each entity.
    Alone,
    /// A new read-only transaction.
    Snapshot,
    /// A new read-write transaction.
    New,
    /// A transaction that has begun.
    Begun(Vec<u8>),
}

impl Link {
    pub(super) fn new(place: Arc<Place>) -> Link {
        let client = DatastoreClient::new(place.service.channel());
        let client = client.max_decoding_message_size(ANSWER_BYTES_MAX).max_encoding_message_size(ANSWER_BYTES_MAX);
        Link { caller: place.caller(), place, client }
    }

    /// Reads; also returns the transaction, if there is one.
    pub(super) async fn try_read(
        &mut self,
        places: &[Vec<u8>],
        within: Within,
    ) -> Result<(Contents, Option<Vec<u8>>), Failure> {
        let mut within = within;
        let mut contents = Contents::new();
        let mut left: Vec<api::Key> = places.iter().map(|place| self.place.key(place)).collect();
        while !left.is_empty() {
            let later = left.split_off(left.len().min(KEYS_MAX));
            let message = api::LookupRequest {
                project_id: self.place.project.clone(),
                read_options: Some(api::ReadOptions { consistency_type: Some(consistency(&within)) }),
                keys: left,
                ..api::LookupRequest::default()
            };
            let request = self.caller.request(message).await?;
            let found = answer(self.client.lookup(request)).await?.into_inner();
            if !found.transaction.is_empty() {
                within = Within::Begun(found.transaction);
            }
            for mut entity in found.found.into_iter().filter_map(|result| result.entity) {
                if let Some(place) = entity.key.as_ref().and_then(place)
                    && let Some(content) = content(&mut entity)
                {
                    contents.insert(place, content);
                }
            }
            left = found.deferred;
            left.extend(later);
        }
        let transaction = match within {
            Within::Begun(transaction) => Some(transaction),
            _ => None,
        };
        Ok((contents, transaction))
    }

    /// Reads outside a transaction, and repeats this until it succeeds or the time is over.
    pub(super) async fn read(&mut self, places: &[Vec<u8>], timeout: &mut Timeout) -> Result<Contents, StoreError> {
        loop {
            match self.try_read(places, Within::Alone).await {
                Ok((contents, _)) => return Ok(contents),
                Err(failure) => {
                    if !timeout.pause_after(&failure).await {
                        return Err(self.place.site.unchanged("a read", failure));
                    }
                }
            }
        }
    }

    /// Commits a transaction, or a single commit of these changes.
    pub(super) async fn try_commit(
        &mut self,
        transaction: Option<Vec<u8>>,
        mutations: Vec<api::Mutation>,
    ) -> Result<(), Failure> {
        use api::commit_request::{Mode, TransactionSelector};
        let selector = match transaction {
            Some(transaction) => TransactionSelector::Transaction(transaction),
            None => TransactionSelector::SingleUseTransaction(read_write()),
        };
        let message = api::CommitRequest {
            project_id: self.place.project.clone(),
            mode: Mode::Transactional.into(),
            mutations,
            transaction_selector: Some(selector),
            ..api::CommitRequest::default()
        };
        let request = self.caller.request(message).await?;
        answer(self.client.commit(request)).await.map(drop)
    }

    /// Rolls a transaction back, so that it can no longer be committed.
    pub(super) async fn try_end(&mut self, transaction: Vec<u8>) -> Result<(), Failure> {
        let project_id = self.place.project.clone();
        let message = api::RollbackRequest { project_id, transaction, ..api::RollbackRequest::default() };
        let request = self.caller.request(message).await?;
        answer(self.client.rollback(request)).await.map(drop)
    }

    async fn try_query(&mut self, region: u32, kind: Kind, start: &[u8]) -> Result<api::QueryResultBatch, Failure> {
        let property = |name: &str| Some(api::PropertyReference { name: name.to_owned() });
        let filter = api::PropertyFilter {
            property: property(GROUP),
            op: api::property_filter::Operator::Equal.into(),
            value: Some(group(region, kind)),
        };
        let query = api::Query {
            projection: vec![api::Projection { property: property("__key__") }],
            kind: vec![api::KindExpression { name: KIND.to_owned() }],
            filter: Some(api::Filter { filter_type: Some(api::filter::FilterType::PropertyFilter(filter)) }),
            start_cursor: start.to_vec(),
            ..api::Query::default()
        };
        let message = api::RunQueryRequest {
            project_id: self.place.project.clone(),
            partition_id: Some(self.place.partition()),
            query_type: Some(api::run_query_request::QueryType::Query(query)),
            ..api::RunQueryRequest::default()
        };
        let request = self.caller.request(message).await?;
        Ok(answer(self.client.run_query(request)).await?.into_inner().batch.unwrap_or_default())
    }
}

impl Connection for Link {
    /// Checks that the service is there and accessible.
    async fn probe(&mut self) -> Result<(), StoreError> {
        let read = self.try_read(&[vec![0]], Within::Alone).await;
        read.map(drop).map_err(|failure| self.place.site.unchanged("the first call", failure))
    }

    /// The values of some keys.
    async fn values(&mut self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let places: std::collections::BTreeSet<Vec<u8>> = keys.iter().map(flat::value).collect();
        let places: Vec<Vec<u8>> = places.into_iter().collect();
        let found = self.read(&places, &mut Timeout::new()).await?;
        Ok(keys.iter().map(|key| found.get(&flat::value(key)).map(|content| content.bytes.clone())).collect())
    }

    /// The keys of one kind in a region, in no order.
    async fn keys(&mut self, region: u32, kind: Kind, _from: u64) -> Result<Vec<Key>, StoreError> {
        let mut timeout = Timeout::new();
        let mut keys = Vec::new();
        let mut start_cursor = Vec::new();
        loop {
            let batch = match self.try_query(region, kind, &start_cursor).await {
                Ok(batch) => batch,
                Err(failure) if timeout.pause_after(&failure).await => continue,
                Err(failure) => return Err(self.place.site.unchanged("a query", failure)),
            };
            let found = batch.entity_results.into_iter().filter_map(|result| result.entity?.key);
            keys.extend(found.filter_map(|key| flat::key(&place(&key)?)));
            if batch.more_results != i32::from(api::query_result_batch::MoreResultsType::NotFinished) {
                return Ok(keys);
            }
            start_cursor = batch.end_cursor;
        }
    }

    async fn apply(&mut self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        transaction::apply(self, operations, guard).await
    }
}

fn consistency(within: &Within) -> ConsistencyType {
    use api::transaction_options::{Mode, ReadOnly};
    let read_only = api::TransactionOptions { mode: Some(Mode::ReadOnly(ReadOnly::default())) };
    match within {
        Within::Alone => ConsistencyType::ReadConsistency(ReadConsistency::Strong.into()),
        Within::Snapshot => ConsistencyType::NewTransaction(read_only),
        Within::New => ConsistencyType::NewTransaction(read_write()),
        Within::Begun(transaction) => ConsistencyType::Transaction(transaction.clone()),
    }
}

fn read_write() -> api::TransactionOptions {
    use api::transaction_options::{Mode, ReadWrite};
    api::TransactionOptions { mode: Some(Mode::ReadWrite(ReadWrite::default())) }
}
