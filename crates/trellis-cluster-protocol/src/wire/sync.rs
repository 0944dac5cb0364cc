//! Encodes messages about synchronisation as fields of a header and a small body.

use super::{Fields, Limits, Malformed, kind};
use crate::sync::{
    self, ConditionDemand, Contribution, Demand, EventDemand, Kind, OnceDemand, Operation, Outcome, ReadWriteDemand,
    Reduction, Refusal, SemaphoreDemand, Subject,
};

/// Codes of contributions to a barrier after those of [`Reduction::ALL`], which begin at 1; 0 is none.
const BROADCAST: u32 = 12;
const MIXED: u32 = 13;
/// Codes of outcomes; those of [`Refusal::ALL`] begin at [`REFUSED`].
const DONE: u32 = 0;
const ENROLLED: u32 = 1;
const FORGOTTEN: u32 = 2;
const REFUSED: u32 = 3;

/// Demands in the order of their codes; their operands go into the body.
const DEMANDS: [Demand; 25] = [
    Demand::ReadWriteLock(ReadWriteDemand::Read),
    Demand::ReadWriteLock(ReadWriteDemand::TryRead),
    Demand::ReadWriteLock(ReadWriteDemand::Write),
    Demand::ReadWriteLock(ReadWriteDemand::TryWrite),
    Demand::ReadWriteLock(ReadWriteDemand::EndRead),
    Demand::ReadWriteLock(ReadWriteDemand::EndWrite),
    Demand::Semaphore(SemaphoreDemand::Acquire),
    Demand::Semaphore(SemaphoreDemand::TryAcquire),
    Demand::Semaphore(SemaphoreDemand::Release(0)),
    Demand::Semaphore(SemaphoreDemand::Value),
    Demand::Event(EventDemand::Set),
    Demand::Event(EventDemand::Clear),
    Demand::Event(EventDemand::Wait),
    Demand::Event(EventDemand::IsSet),
    Demand::Once(OnceDemand::Begin),
    Demand::Once(OnceDemand::Done),
    Demand::Once(OnceDemand::Failed),
    Demand::Once(OnceDemand::IsDone),
    Demand::Condition(ConditionDemand::Wait),
    Demand::Condition(ConditionDemand::NotifyOne),
    Demand::Condition(ConditionDemand::NotifyAll),
    Demand::CountingBarrier(0),
    Demand::Semaphore(SemaphoreDemand::Post(0)),
    Demand::Condition(ConditionDemand::WakeOne),
    Demand::Condition(ConditionDemand::WakeAll),
];

impl Fields {
    pub(super) fn put_sync(&mut self, message: &sync::Message) {
        use sync::Message::*;
        match *message {
            LockRequest(id, tries) => {
                self.put_object(kind::LOCK_REQUEST, id, 0);
                self.detail = u32::from(tries);
            }
            LockForward(id, next, tries) => {
                self.put_object(kind::LOCK_FORWARD, id, 0);
                self.detail = u32::from(tries);
                self.node = next.0;
            }
            LockBusy(id) => self.put_object(kind::LOCK_BUSY, id, 0),
            LockToken(id) => self.put_object(kind::LOCK_TOKEN, id, 0),
            LockReturn(id) => self.put_object(kind::LOCK_RETURN, id, 0),
            BarrierArrive(id, generation, brought) => {
                self.put_object(kind::BARRIER_ARRIVE, id, generation);
                self.put_contribution(brought);
            }
            BarrierRelease(id, generation, result) => {
                self.put_object(kind::BARRIER_RELEASE, id, generation);
                self.put_contribution(result);
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
            ObjectRequest(id, demand, waiter) => {
                self.put_object(kind::OBJECT_REQUEST, id, waiter);
                let (code, operand) = demand_code(demand);
                self.detail = code;
                self.put_body(&operand.to_le_bytes());
            }
            ObjectReply(id, waiter, outcome) => {
                self.put_object(kind::OBJECT_REPLY, id, waiter);
                let (code, value) = outcome_code(outcome);
                self.detail = code;
                self.put_body(&value.to_le_bytes());
            }
            ObjectAbandon(id, which, waiter) => {
                self.put_object(kind::OBJECT_ABANDON, id, waiter);
                self.detail = which as u32;
            }
            ObjectUndo(id, demand, waiter, value) => {
                self.put_object(kind::OBJECT_UNDO, id, waiter);
                self.detail = demand_code(demand).0;
                self.put_body(&value.to_le_bytes());
            }
            Inquiry(subject, generation, waiter) => {
                self.put_object(kind::INQUIRY, subject.id, waiter);
                self.detail = subject.kind as u32;
                self.put_body(&u64::from(generation).to_le_bytes());
            }
            Standing(waiter, standing) => {
                self.put_object(kind::STANDING, 0, waiter);
                let both = u64::from(standing.holds) | u64::from(standing.waits) << 32;
                self.put_body(&both.to_le_bytes());
            }
        }
    }

    fn put_contribution(&mut self, contribution: Contribution) {
        let value = match contribution {
            Contribution::Nothing => return,
            Contribution::Value(Reduction::Broadcast(node), value) => {
                (self.detail, self.node) = (BROADCAST, node.0);
                value
            }
            Contribution::Value(reduction, value) => {
                self.detail = 1 + code_in(&Reduction::ALL, reduction);
                value
            }
            Contribution::Mixed => {
                self.detail = MIXED;
                0
            }
        };
        self.put_body(&value.to_le_bytes());
    }

    fn contribution(&self, body: &[u8], limits: &Limits) -> Result<Contribution, Malformed> {
        if self.detail == 0 {
            return if body.is_empty() { Ok(Contribution::Nothing) } else { Err(Malformed::Body) };
        }
        let value = eight(body)?;
        Ok(match self.detail {
            BROADCAST => Contribution::Value(Reduction::Broadcast(self.member(limits)?), value),
            MIXED => Contribution::Mixed,
            code => Contribution::Value(nth(&Reduction::ALL, code - 1)?, value),
        })
    }

    fn tries(&self) -> Result<bool, Malformed> {
        if self.detail <= 1 { Ok(self.detail == 1) } else { Err(Malformed::Field) }
    }

    pub(super) fn sync(&self, body: &[u8], limits: &Limits) -> Result<sync::Message, Malformed> {
        use sync::Message::*;
        let id = self.object;
        Ok(match self.kind {
            kind::LOCK_REQUEST => LockRequest(id, self.tries()?),
            kind::LOCK_FORWARD => LockForward(id, self.member(limits)?, self.tries()?),
            kind::LOCK_BUSY => LockBusy(id),
            kind::LOCK_TOKEN => LockToken(id),
            kind::LOCK_RETURN => LockReturn(id),
            kind::BARRIER_ARRIVE => BarrierArrive(id, self.count, self.contribution(body, limits)?),
            kind::BARRIER_RELEASE => BarrierRelease(id, self.count, self.contribution(body, limits)?),
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
            kind::ATOMIC_REPLY => AtomicReply(id, self.count, eight(body)?),
            kind::OBJECT_REQUEST => ObjectRequest(id, demand(self.detail, eight(body)?)?, self.count),
            kind::OBJECT_REPLY => ObjectReply(id, self.count, outcome(self.detail, eight(body)?)?),
            kind::OBJECT_ABANDON => ObjectAbandon(id, nth(&Kind::ALL, self.detail)?, self.count),
            kind::OBJECT_UNDO => ObjectUndo(id, demand(self.detail, 0)?, self.count, eight(body)?),
            kind::INQUIRY => {
                let generation = u32::try_from(eight(body)?).map_err(|_| Malformed::Body)?;
                Inquiry(Subject { kind: nth(&Kind::ALL, self.detail)?, id }, generation, self.count)
            }
            _ => {
                let both = eight(body)?;
                let standing = sync::Standing { holds: both as u32, waits: (both >> 32) as u32 };
                Standing(self.count, standing)
            }
        })
    }
}

fn eight(body: &[u8]) -> Result<u64, Malformed> {
    body.try_into().map(u64::from_le_bytes).map_err(|_| Malformed::Body)
}

fn nth<T: Copy>(all: &[T], code: u32) -> Result<T, Malformed> {
    all.get(code as usize).copied().ok_or(Malformed::Field)
}

fn code_in<T: PartialEq>(all: &[T], one: T) -> u32 {
    all.iter().position(|other| *other == one).expect("all are listed") as u32
}

fn demand_code(demand: Demand) -> (u32, u64) {
    let (plain, operand) = match demand {
        Demand::Semaphore(SemaphoreDemand::Release(count)) => (Demand::Semaphore(SemaphoreDemand::Release(0)), count),
        Demand::Semaphore(SemaphoreDemand::Post(count)) => (Demand::Semaphore(SemaphoreDemand::Post(0)), count),
        Demand::CountingBarrier(count) => (Demand::CountingBarrier(0), u64::from(count)),
        other => (other, 0),
    };
    (code_in(&DEMANDS, plain), operand)
}

fn demand(code: u32, operand: u64) -> Result<Demand, Malformed> {
    Ok(match nth(&DEMANDS, code)? {
        Demand::Semaphore(SemaphoreDemand::Release(_)) => Demand::Semaphore(SemaphoreDemand::Release(operand)),
        Demand::Semaphore(SemaphoreDemand::Post(_)) => Demand::Semaphore(SemaphoreDemand::Post(operand)),
        Demand::CountingBarrier(_) => Demand::CountingBarrier(u32::try_from(operand).map_err(|_| Malformed::Field)?),
        other => other,
    })
}

fn outcome_code(outcome: Outcome) -> (u32, u64) {
    match outcome {
        Outcome::Done(value) => (DONE, value),
        Outcome::Enrolled => (ENROLLED, 0),
        Outcome::Forgotten => (FORGOTTEN, 0),
        Outcome::Refused(why) => (REFUSED + code_in(&Refusal::ALL, why), 0),
    }
}

fn outcome(code: u32, value: u64) -> Result<Outcome, Malformed> {
    Ok(match code {
        DONE => Outcome::Done(value),
        ENROLLED => Outcome::Enrolled,
        FORGOTTEN => Outcome::Forgotten,
        code => Outcome::Refused(nth(&Refusal::ALL, code - REFUSED)?),
    })
}
