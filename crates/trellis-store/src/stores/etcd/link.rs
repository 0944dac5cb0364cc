//! A connection to one member of a cluster, or to another member when that one fails.
//!
//! It promises that reads are repeated until their time is over. A change is sent once ([`Link::send`]);
//! [`super::transaction`] decides whether to send it again.

use std::sync::Arc;
use std::time::Instant;

use etcd_client::{Client, Error, GetOptions, KvClient, Txn, TxnOp, TxnOpResponse, TxnResponse};
use tonic::Code;

use super::TRANSACTION_OPERATIONS_MAX;
use super::address::Address;
use super::receipt::Receipt;
use crate::error::StoreError;
use crate::key::{Key, Kind};
use crate::operation::{Applied, Guard, Operation};
use crate::stores::grpc::failure::{Failure, answer};
use crate::stores::grpc::served::Connection;
use crate::stores::grpc::{ANSWER_BYTES_MAX, Timeout, flat};

/// The prefix of all keys.
const PREFIX: &[u8] = b"trellis/";

/// A connection.
pub(super) struct Link {
    pub(super) address: Arc<Address>,
    member: usize,
    pub(super) client: Client,
    kv: KvClient,
    /// The receipt of the last change over this connection.
    pub(super) receipt: Option<Receipt>,
}

impl Link {
    /// Connects to the first member that accepts.
    pub(super) async fn open(address: Arc<Address>) -> Result<Link, StoreError> {
        let mut last = None;
        for member in 0..address.members() {
            match answer(address.client(member)).await.map_err(understood) {
                Ok(client) => {
                    let kv = kv(&client);
                    return Ok(Link { address, member, client, kv, receipt: None });
                }
                Err(failure) => last = Some(failure),
            }
        }
        let failure = last.unwrap_or(Failure::NotSent("no member is named".to_owned()));
        Err(address.site.unchanged("the first call", failure))
    }

    /// Sends a transaction once. If this fails, the next one goes to another member.
    pub(super) async fn send(&mut self, transaction: Txn) -> Result<TxnResponse, Failure> {
        let result = answer(self.kv.txn(transaction)).await.map_err(understood);
        if !matches!(result, Ok(_) | Err(Failure::Answered(..))) {
            self.turn().await;
        }
        result
    }

    /// Switches to the next member, or reconnects to the same one if there is no other.
    async fn turn(&mut self) {
        if self.address.members() < 2 {
            return;
        }
        self.member += 1;
        if let Ok(client) = answer(self.address.client(self.member)).await {
            self.kv = kv(&client);
            self.client = client;
        }
    }

    /// Reads, and repeats this until it succeeds or the time is over.
    pub(super) async fn read(&mut self, reads: &[TxnOp], timeout: &mut Timeout) -> Result<TxnResponse, StoreError> {
        loop {
            match self.send(Txn::new().and_then(reads)).await {
                Ok(response) => return Ok(response),
                Err(failure) => {
                    if !timeout.pause_after(&failure).await {
                        return Err(self.address.site.unchanged("a read", failure));
                    }
                }
            }
        }
    }
}

impl Connection for Link {
    /// Checks that a member is reachable and accepts the credentials; asks every member once.
    async fn probe(&mut self) -> Result<(), StoreError> {
        let mut left = self.address.members();
        loop {
            let options = GetOptions::new().with_prefix().with_keys_only().with_limit(1);
            match self.send(Txn::new().and_then([TxnOp::get(PREFIX, Some(options))])).await {
                Ok(_) => return Ok(()),
                Err(failure) if left <= 1 => return Err(self.address.site.unchanged("the first call", failure)),
                Err(_) => left -= 1,
            }
        }
    }

    /// The values of some keys.
    async fn values(&mut self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let mut timeout = Timeout::new();
        let mut values = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(TRANSACTION_OPERATIONS_MAX) {
            let reads: Vec<TxnOp> = chunk.iter().map(|key| TxnOp::get(place(flat::value(key)), None)).collect();
            let response = self.read(&reads, &mut timeout).await?;
            values.extend(gets(&response).map(|found| found.into_iter().next().map(|one| one.bytes)));
        }
        Ok(values)
    }

    /// The keys of one kind in a region, in no order.
    async fn keys(&mut self, region: u32, kind: Kind, from: u64) -> Result<Vec<Key>, StoreError> {
        let mut timeout = Timeout::new();
        let mut keys = Vec::new();
        for chunk in flat::ranges(region, kind, from).chunks(TRANSACTION_OPERATIONS_MAX) {
            let range = |(from, to): &(Vec<u8>, Vec<u8>)| {
                let options = GetOptions::new().with_range(place(to.clone())).with_keys_only();
                TxnOp::get(place(from.clone()), Some(options))
            };
            let reads: Vec<TxnOp> = chunk.iter().map(range).collect();
            let response = self.read(&reads, &mut timeout).await?;
            keys.extend(gets(&response).flatten().filter_map(|one| flat::key(&one.place)));
        }
        Ok(keys)
    }

    async fn apply(&mut self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        Ok(self.apply_now(operations, guard).await?.0)
    }

    async fn apply_when(
        &mut self,
        operations: &[Operation],
        guard: Option<&Guard>,
        deadline: Instant,
    ) -> Result<Applied, StoreError> {
        self.apply_in_time(operations, guard, deadline).await
    }
}

fn kv(client: &Client) -> KvClient {
    client.kv_client().max_decoding_message_size(ANSWER_BYTES_MAX)
}

/// A key that was read.
pub(super) struct Found {
    /// Its place, without the prefix.
    pub(super) place: Vec<u8>,
    pub(super) bytes: Vec<u8>,
    /// The revision of its last change.
    pub(super) revision: i64,
}

/// The key in the cluster for a place, with the prefix.
pub(super) fn place(flat: Vec<u8>) -> Vec<u8> {
    [PREFIX, &flat].concat()
}

/// The results of each read of a transaction.
pub(super) fn gets(response: &TxnResponse) -> impl Iterator<Item = Vec<Found>> + use<> {
    response.op_responses().into_iter().filter_map(|one| match one {
        TxnOpResponse::Get(mut found) => Some(found.take_kvs().into_iter().map(Found::from).collect()),
        _ => None,
    })
}

impl From<etcd_client::KeyValue> for Found {
    fn from(found: etcd_client::KeyValue) -> Found {
        let revision = found.mod_revision();
        let (place, bytes) = found.into_key_value();
        Found { place: place.strip_prefix(PREFIX).unwrap_or(&place).to_vec(), bytes, revision }
    }
}

/// The revision of the store at the time of the answer.
pub(super) fn revision(response: &TxnResponse) -> i64 {
    response.header().map_or(0, etcd_client::ResponseHeader::revision)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::GRpcStatus(status) => Failure::from(status),
            Error::TransportError(error) => Failure::NotSent(error.to_string()),
            other => Failure::Answered(Code::Internal, other.to_string()),
        }
    }
}

/// etcd reports an unknown user with other codes.
fn understood(failure: Failure) -> Failure {
    match failure {
        Failure::Answered(Code::InvalidArgument, reason)
            if reason.contains("authentication failed") || reason.contains("user name is empty") =>
        {
            Failure::Answered(Code::Unauthenticated, reason)
        }
        // Authentication was just turned on or a role changed; the next attempt authenticates again.
        Failure::Answered(Code::Internal, reason) if reason.contains("auth") => {
            Failure::Answered(Code::Unauthenticated, reason)
        }
        other => other,
    }
}
