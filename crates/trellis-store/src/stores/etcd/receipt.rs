//! The receipt of a transaction, from which its sender can learn whether it was done.
//!
//! Each connection has a key of its own below `trellis/r`. Every transaction that changes something writes its number
//! there, on the condition that nothing has changed the key since the transaction before. If an answer is lost, the key
//! shows whether the transaction was done. Once [`fence`] has changed the key, the transaction can no longer be done.
//!
//! The key has a lease, so that it disappears some time after its writer.

use std::time::{Duration, Instant};

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp};

use super::link::{Link, gets, place, revision};
use crate::error::StoreError;
use crate::stores::grpc::failure::{Failure, answer};
use crate::stores::grpc::{Timeout, random};

/// How long a receipt remains after its connection last renewed it.
const LEASE_SECONDS: i64 = 900;
/// How long a connection uses one receipt. This is much shorter than the lease, so that a receipt in use exists.
const USE_SECONDS_MAX: u64 = 300;

/// The receipt key of a connection.
#[derive(Clone)]
pub(super) struct Receipt {
    key: Vec<u8>,
    lease: i64,
    born: Instant,
    /// The revision of its last change.
    revision: i64,
    /// Its content.
    number: u64,
}

/// The result of a transaction whose answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// It was done.
    Done,
    /// It was not done, and cannot be done any more.
    Never,
    /// The receipt itself no longer exists.
    Unknown,
}

impl Receipt {
    /// The condition that nothing has changed the receipt since the transaction before.
    pub(super) fn unmoved(&self) -> Compare {
        Compare::mod_revision(self.key.clone(), CompareOp::Equal, self.revision)
    }

    /// Writes the number of the next transaction.
    pub(super) fn moved(&self) -> TxnOp {
        self.put(self.number + 1)
    }

    /// Reads the receipt.
    pub(super) fn look(&self) -> TxnOp {
        TxnOp::get(self.key.clone(), None)
    }

    /// Whether its last change was the transaction before.
    pub(super) fn is_at(&self, revision: i64) -> bool {
        self.revision == revision
    }

    /// Records that the next transaction was done.
    pub(super) fn advance(&mut self, revision: i64) {
        self.number += 1;
        self.revision = revision;
    }

    fn put(&self, number: u64) -> TxnOp {
        let options = PutOptions::new().with_lease(self.lease);
        TxnOp::put(self.key.clone(), number.to_be_bytes(), Some(options))
    }
}

/// Ensures that the connection has a receipt.
pub(super) async fn renew(link: &mut Link, timeout: &mut Timeout) -> Result<(), StoreError> {
    if let Some(receipt) = &link.receipt {
        if receipt.born.elapsed() < Duration::from_secs(USE_SECONDS_MAX) {
            return Ok(());
        }
        // If this fails, the lease expires.
        let old = receipt.lease;
        link.receipt = None;
        answer(link.client.lease_revoke(old)).await.ok();
    }
    loop {
        match begin(link).await {
            Ok(receipt) => {
                link.receipt = Some(receipt);
                return Ok(());
            }
            Err(failure) => {
                if !timeout.pause_after(&failure).await {
                    return Err(link.address.site.unchanged("beginning a change", failure));
                }
            }
        }
    }
}

/// Creates a receipt under a key that is unique, even among attempts whose answers were lost.
async fn begin(link: &mut Link) -> Result<Receipt, Failure> {
    let lease = answer(link.client.lease_grant(LEASE_SECONDS, None)).await?.id();
    let key = place(format!("r{:016x}{:016x}", random(), random()).into_bytes());
    let mut receipt = Receipt { key, lease, born: Instant::now(), revision: 0, number: 0 };
    let response = link.send(Txn::new().and_then([receipt.put(0)])).await?;
    receipt.revision = revision(&response);
    Ok(receipt)
}

/// Finds out whether the transaction whose answer was lost was done, and prevents it if it was not. If the store does not
/// return in time, the error says that this is unknown.
pub(super) async fn settle(link: &mut Link, lost: Failure, timeout: &mut Timeout) -> Result<Settled, StoreError> {
    let Some(mut receipt) = link.receipt.clone() else { return Ok(Settled::Unknown) };
    let (done, fenced) = (receipt.number + 1, receipt.number + 2);
    loop {
        let transaction =
            Txn::new().when([receipt.unmoved()]).and_then([receipt.put(fenced)]).or_else([receipt.look()]);
        let response = match link.send(transaction).await {
            Ok(response) => response,
            Err(failure) => {
                if !timeout.pause_after(&failure).await {
                    return Err(link.address.site.changing("a change", lost));
                }
                continue;
            }
        };
        let (number, moved) = if response.succeeded() {
            (Some(fenced), revision(&response))
        } else {
            let found = gets(&response).flatten().next();
            let number =
                found.as_ref().and_then(|found| found.bytes.last_chunk()).map(|bytes| u64::from_be_bytes(*bytes));
            (number, found.map_or(0, |found| found.revision))
        };
        let settled = match number {
            Some(number) if number == done => Settled::Done,
            Some(number) if number == fenced => Settled::Never,
            _ => Settled::Unknown,
        };
        receipt.revision = moved;
        receipt.number = number.unwrap_or_default();
        link.receipt = (settled != Settled::Unknown).then_some(receipt);
        return Ok(settled);
    }
}
