//! Encodes messages about membership as fields of a header.

use super::{Fields, Limits, Malformed, kind};
use crate::membership;

impl Fields {
    pub(super) fn put_membership(&mut self, message: &membership::Message) {
        use membership::Message::*;
        self.kind = match *message {
            Alive => kind::ALIVE,
            Leave => kind::LEAVE,
            Fail(culprit) => {
                self.node = culprit.0;
                kind::FAIL
            }
            Join => kind::JOIN,
            Present(node) => {
                self.node = node.0;
                kind::PRESENT
            }
            Welcome(in_all) => {
                self.count = u32::from(in_all);
                kind::WELCOME
            }
            Joined => kind::JOINED,
            Depart => kind::DEPART,
            Turn => kind::TURN,
            Behind(range) => {
                self.put_run(range.first(), range);
                kind::BEHIND
            }
            Handed(named) => {
                self.count = named;
                kind::HANDED
            }
            Taken => kind::TAKEN,
            Going => kind::GOING,
            Farewell => kind::FAREWELL,
        };
    }

    pub(super) fn membership(&self, limits: &Limits) -> Result<membership::Message, Malformed> {
        use membership::Message::*;
        Ok(match self.kind {
            kind::ALIVE => Alive,
            kind::LEAVE => Leave,
            kind::FAIL => Fail(self.member(limits)?),
            kind::JOIN => Join,
            kind::PRESENT => Present(self.member(limits)?),
            kind::WELCOME => Welcome(u16::try_from(self.count).map_err(|_| Malformed::Field)?),
            kind::JOINED => Joined,
            kind::DEPART => Depart,
            kind::TURN => Turn,
            kind::BEHIND => Behind(self.run(limits)?),
            kind::HANDED => Handed(self.count),
            kind::TAKEN => Taken,
            kind::GOING => Going,
            _ => Farewell,
        })
    }
}
