//! Encodes messages about the shared heap as fields of a header.

use super::{Fields, Limits, Malformed, kind};
use crate::heap::{Message, Operation, Outcome, Run, Zone};
use crate::page::NodeId;

const FRESH: u8 = 1;
const ROUTED: u8 = 1;
const UPPER: u8 = 1;

impl Fields {
    pub(super) fn put_heap(&mut self, message: &Message) {
        match *message {
            Message::Request { waiter, pages, align_shift, zone } => {
                self.put_object(kind::HEAP_REQUEST, u64::from(align_shift), waiter);
                self.detail = pages;
                self.flags = if zone == Zone::Upper { UPPER } else { 0 };
            }
            Message::Grant { waiter, run, is_fresh } => {
                self.put_object(kind::HEAP_GRANT, u64::from(run.first), waiter);
                self.detail = run.pages;
                self.flags = if is_fresh { FRESH } else { 0 };
            }
            Message::NoRoom { waiter, longest } => {
                self.put_object(kind::HEAP_NO_ROOM, 0, waiter);
                self.detail = longest;
            }
            Message::Return { run, requester, waiter } => {
                self.put_object(kind::HEAP_RETURN, u64::from(run.first), waiter);
                self.detail = run.pages;
                self.node = requester.0;
            }
            Message::Ask { offset, operation, requester, waiter, is_routed } => {
                self.put_object(kind::HEAP_ASK, offset, waiter);
                self.detail = match operation {
                    Operation::Free => 0,
                    Operation::Measure => 1,
                };
                self.node = requester.0;
                self.flags = if is_routed { ROUTED } else { 0 };
            }
            Message::Reply { waiter, outcome, owner } => {
                let (code, bytes) = match outcome {
                    Outcome::Freed => (0, 0),
                    Outcome::Bytes(bytes) => (1, bytes),
                    Outcome::NoBlock => (2, 0),
                };
                self.put_object(kind::HEAP_REPLY, bytes, waiter);
                self.detail = code;
                self.node = owner.0;
            }
        }
    }

    pub(super) fn heap(&self, limits: &Limits) -> Result<Message, Malformed> {
        let waiter = self.count;
        Ok(match self.kind {
            kind::HEAP_REQUEST => {
                let align_shift = u8::try_from(self.object).ok().filter(|&shift| shift < u32::BITS as u8);
                let align_shift = align_shift.ok_or(Malformed::Field)?;
                let pages = self.detail;
                if pages == 0 || pages > limits.pages {
                    return Err(Malformed::Pages);
                }
                let zone = if self.heap_flag()? { Zone::Upper } else { Zone::Lower };
                Message::Request { waiter, pages, align_shift, zone }
            }
            kind::HEAP_GRANT => Message::Grant { waiter, run: self.heap_run(limits)?, is_fresh: self.heap_flag()? },
            kind::HEAP_NO_ROOM => Message::NoRoom { waiter, longest: self.detail },
            kind::HEAP_RETURN => {
                Message::Return { run: self.heap_run(limits)?, requester: self.member(limits)?, waiter }
            }
            kind::HEAP_ASK => {
                let operation = match self.detail {
                    0 => Operation::Free,
                    1 => Operation::Measure,
                    _ => return Err(Malformed::Field),
                };
                if self.object >= region_bytes(limits) {
                    return Err(Malformed::Pages);
                }
                let (requester, is_routed) = (self.member(limits)?, self.heap_flag()?);
                Message::Ask { offset: self.object, operation, requester, waiter, is_routed }
            }
            _ => {
                let outcome = match self.detail {
                    0 => Outcome::Freed,
                    1 if self.object <= region_bytes(limits) => Outcome::Bytes(self.object),
                    2 => Outcome::NoBlock,
                    _ => return Err(Malformed::Field),
                };
                let owner: NodeId = self.member(limits)?;
                Message::Reply { waiter, outcome, owner }
            }
        })
    }

    fn heap_run(&self, limits: &Limits) -> Result<Run, Malformed> {
        let first = u32::try_from(self.object).map_err(|_| Malformed::Pages)?;
        let end = first.checked_add(self.detail).filter(|&end| end <= limits.pages && end > first);
        end.map(|_| Run { first, pages: self.detail }).ok_or(Malformed::Pages)
    }

    fn heap_flag(&self) -> Result<bool, Malformed> {
        match self.flags {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Field),
        }
    }
}

fn region_bytes(limits: &Limits) -> u64 {
    u64::from(limits.pages) * u64::from(limits.page_bytes)
}
