//! Messages about synchronisation, as fields of a header and a small body.

use super::{Fields, Limits, Malformed, kind};
use crate::sync::{self, Operation};

impl Fields {
    pub(super) fn put_sync(&mut self, message: &sync::Message) {
        use sync::Message::*;
        match *message {
            LockRequest(id) => self.put_object(kind::LOCK_REQUEST, id, 0),
            LockForward(id, next) => {
                self.put_object(kind::LOCK_FORWARD, id, 0);
                self.node = next.0;
            }
            LockToken(id) => self.put_object(kind::LOCK_TOKEN, id, 0),
            LockReturn(id) => self.put_object(kind::LOCK_RETURN, id, 0),
            BarrierArrive(id, generation) => self.put_object(kind::BARRIER_ARRIVE, id, generation),
            BarrierRelease(id, generation) => {
                self.put_object(kind::BARRIER_RELEASE, id, generation);
            }
            AtomicRequest(id, operation, waiter) => {
                self.put_object(kind::ATOMIC_REQUEST, id, waiter);
                let (code, first, second) = match operation {
                    Operation::Load => (0, 0, 0),
                    Operation::Exchange(value) => (1, value, 0),
                    Operation::FetchAdd(value) => (2, value, 0),
                    Operation::CompareExchange(expected, value) => (3, expected, value),
                };
                self.detail = code;
                let operands = u128::from(first) | u128::from(second) << 64;
                self.put_body(&operands.to_le_bytes());
            }
            AtomicReply(id, waiter, before) => {
                self.put_object(kind::ATOMIC_REPLY, id, waiter);
                self.put_body(&before.to_le_bytes());
            }
        }
    }

    pub(super) fn sync(&self, body: &[u8], limits: &Limits) -> Result<sync::Message, Malformed> {
        use sync::Message::*;
        let id = self.object;
        Ok(match self.kind {
            kind::LOCK_REQUEST => LockRequest(id),
            kind::LOCK_FORWARD => LockForward(id, self.member(limits)?),
            kind::LOCK_TOKEN => LockToken(id),
            kind::LOCK_RETURN => LockReturn(id),
            kind::BARRIER_ARRIVE => BarrierArrive(id, self.count),
            kind::BARRIER_RELEASE => BarrierRelease(id, self.count),
            kind::ATOMIC_REQUEST => {
                let operands: [u8; 16] = body.try_into().map_err(|_| Malformed::Body)?;
                let operands = u128::from_le_bytes(operands);
                let (first, second) = (operands as u64, (operands >> 64) as u64);
                let operation = match self.detail {
                    0 => Operation::Load,
                    1 => Operation::Exchange(first),
                    2 => Operation::FetchAdd(first),
                    3 => Operation::CompareExchange(first, second),
                    _ => return Err(Malformed::Field),
                };
                AtomicRequest(id, operation, self.count)
            }
            _ => {
                let before: [u8; 8] = body.try_into().map_err(|_| Malformed::Body)?;
                AtomicReply(id, self.count, u64::from_le_bytes(before))
            }
        })
    }
}
