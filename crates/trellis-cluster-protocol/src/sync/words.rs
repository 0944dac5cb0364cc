//! The text form of messages, for scripts and traces.
//!
//! Promises: each takes one line, without a line end. The text must never be needed for a decision.

use core::fmt;

use super::{Contribution, Demand, Message, Outcome};

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::LockRequest(id, false) => write!(f, "request lock {id}"),
            Message::LockRequest(id, true) => write!(f, "request lock {id} if it is free"),
            Message::LockForward(id, next, false) => write!(f, "hand lock {id} to n{}", next.0),
            Message::LockForward(id, next, true) => write!(f, "hand lock {id} to n{}, which tries", next.0),
            Message::LockBusy(id) => write!(f, "lock {id} is busy"),
            Message::LockToken(id) => write!(f, "lock {id}"),
            Message::LockReturn(id) => write!(f, "ask for lock {id}, which I leave"),
            Message::BarrierArrive(id, generation, brought) => {
                write!(f, "arrived at barrier {id}, use {generation}{}", With(brought))
            }
            Message::BarrierRelease(id, generation, result) => {
                write!(f, "leave barrier {id}, use {generation}{}", With(result))
            }
            Message::AtomicRequest(id, operation, _) => write!(f, "{operation:?} on word {id}"),
            Message::AtomicReply(id, _, before) => write!(f, "word {id} was {before}"),
            Message::ObjectRequest(_, demand, call) => write!(f, "call {call} demands {demand}"),
            Message::ObjectReply(_, call, Outcome::Done(value)) => write!(f, "call {call} is done, {value}"),
            Message::ObjectReply(_, call, outcome) => write!(f, "call {call}: {outcome:?}"),
            Message::ObjectAbandon(_, kind, call) => write!(f, "call {call} gave up, {kind:?}"),
            Message::ObjectUndo(_, demand, call, value) => write!(f, "undo {demand} of call {call}, {value}"),
            Message::Inquiry(subject, generation, _) => {
                write!(f, "how do you stand to {:?} {}, use {generation}?", subject.kind, subject.id)
            }
            Message::Standing(_, standing) => write!(f, "I hold {}, wait {}", standing.holds, standing.waits),
        }
    }
}

impl fmt::Display for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Demand::ReadWriteLock(demand) => write!(f, "{demand:?}"),
            Demand::Semaphore(demand) => write!(f, "{demand:?}"),
            Demand::Event(demand) => write!(f, "{demand:?}"),
            Demand::Once(demand) => write!(f, "{demand:?}"),
            Demand::Condition(demand) => write!(f, "{demand:?}"),
            Demand::CountingBarrier(count) => write!(f, "to meet {count}"),
        }
    }
}

/// A contribution to a barrier, after a comma.
struct With<'a>(&'a Contribution);

impl fmt::Display for With<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Contribution::Nothing => Ok(()),
            Contribution::Value(reduction, value) => write!(f, ", {reduction:?} {value}"),
            Contribution::Mixed => f.write_str(", different reductions"),
        }
    }
}
