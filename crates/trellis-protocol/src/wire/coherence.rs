//! Messages about pages, as fields of a header and a small body.

use super::{Fields, Limits, Malformed, kind};
use crate::coherence::{self, Content};
use crate::page::{PageIndex, PageRange};

impl Fields {
    pub(super) fn put_coherence(&mut self, message: &coherence::Message) {
        use coherence::Message::{Again, Confirm, Forward, Grant, Invalidate, Invalidated, Redirect, Request, Retry};
        self.put_run(message.page(), PageRange::one(message.page()));
        match *message {
            Request { demand, range, write, announced, requester, hops } => {
                self.kind = kind::REQUEST;
                self.put_run(demand, range);
                self.flags = u8::from(write) | u8::from(announced) << 3;
                self.node = requester.0;
                self.sequence = u32::from(hops);
            }
            Redirect { owner, .. } => {
                self.kind = kind::REDIRECT;
                self.node = owner.0;
            }
            Forward { demand, range, write, requester, after, sequence } => {
                self.kind = kind::FORWARD;
                self.put_run(demand, range);
                self.flags = u8::from(write);
                self.node = requester.0;
                self.sequence = sequence;
                self.put_body(&after.to_le_bytes());
            }
            Grant { demand, range, write, content, sequence } => {
                self.kind = kind::GRANT;
                self.put_run(demand, range);
                self.flags = u8::from(write)
                    | match content {
                        Content::Kept => 0,
                        Content::Zero => 1 << 1,
                        Content::Bytes => 2 << 1,
                    };
                self.sequence = sequence;
            }
            Confirm { demand, range } => {
                self.kind = kind::CONFIRM;
                self.put_run(demand, range);
            }
            Invalidate { owner, .. } => {
                self.kind = kind::INVALIDATE;
                self.node = owner.0;
            }
            Invalidated { .. } => self.kind = kind::INVALIDATED,
            Retry { .. } => self.kind = kind::RETRY,
            Again { .. } => self.kind = kind::AGAIN,
        }
    }

    pub(super) fn coherence(&self, body: &[u8], limits: &Limits) -> Result<coherence::Message, Malformed> {
        use coherence::Message::{Again, Confirm, Forward, Grant, Invalidate, Invalidated, Redirect, Request, Retry};
        let range = self.run(limits)?;
        let demand = PageIndex(range.first().0.saturating_add(self.detail));
        if !range.contains(demand) {
            return Err(Malformed::Pages);
        }
        let write = self.flags & 1 != 0;
        let sequence = self.sequence;
        Ok(match self.kind {
            kind::REQUEST => {
                let hops = u16::try_from(sequence).map_err(|_| Malformed::Field)?;
                let requester = self.member(limits)?;
                Request { demand, range, write, announced: self.flags >> 3 & 1 != 0, requester, hops }
            }
            kind::REDIRECT => Redirect { page: demand, owner: self.member(limits)? },
            kind::RETRY => Retry { page: demand },
            kind::AGAIN => Again { page: demand },
            kind::FORWARD => {
                let after = body.try_into().map(u32::from_le_bytes).map_err(|_| Malformed::Body)?;
                let requester = self.member(limits)?;
                Forward { demand, range, write, requester, after, sequence }
            }
            kind::GRANT => {
                let content = self.content()?;
                Grant { demand, range, write, content, sequence }
            }
            kind::CONFIRM => Confirm { demand, range },
            kind::INVALIDATE => Invalidate { page: demand, owner: self.member(limits)? },
            _ => Invalidated { page: demand },
        })
    }
}
