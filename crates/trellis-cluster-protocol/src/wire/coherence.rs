//! Encodes messages about pages as fields of a header and a small body.

use super::{Fields, Limits, Malformed, kind};
use crate::coherence::{self, Content};
use crate::page::{NodeId, PageIndex, PageRange};

impl Fields {
    pub(super) fn put_coherence(&mut self, message: &coherence::Message) {
        use coherence::Message::*;
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
                self.flags = u8::from(write) | content_bits(content);
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
            Copy { demand, range, content, stamp, home } => {
                self.kind = kind::COPY;
                self.put_run(demand, range);
                self.object |= stamp >> 32 << 32;
                self.sequence = stamp as u32;
                self.flags = u8::from(home) | content_bits(content);
            }
            Diff { pages, writer, number, hops, piggybacked, stamp } => {
                self.kind = kind::DIFF;
                self.put_set(pages, number);
                self.count = u32::from(hops);
                self.node = writer.0;
                self.put_words(&[pages.mask(), piggybacked, stamp]);
            }
            Diffed { pages, number, stamp, copied, current, moved } => {
                self.kind = kind::DIFFED;
                self.put_set(pages, number);
                (self.count, self.detail) = (stamp as u32, (stamp >> 32) as u32);
                self.put_words(&[pages.mask(), copied, current, moved]);
            }
            Update { pages, origin, number, stamp } => {
                self.kind = kind::UPDATE;
                self.put_set(pages, number);
                self.node = origin.0;
                self.put_words(&[pages.mask(), stamp]);
            }
            Updated { pages, number, kept } => {
                self.kind = kind::UPDATED;
                self.put_set(pages, number);
                self.put_words(&[pages.mask(), kept]);
            }
            Piggybacked { page, stamp } => {
                self.kind = kind::PIGGYBACKED;
                self.object = u64::from(page.0);
                (self.count, self.detail) = (stamp as u32, (stamp >> 32) as u32);
            }
            Place { range, home } => {
                self.kind = kind::PLACE;
                self.put_run(range.first(), range);
                self.node = home.0;
            }
            Placed { range } => {
                self.kind = kind::PLACED;
                self.put_run(range.first(), range);
            }
        }
    }

    pub(super) fn coherence(&self, body: &[u8], limits: &Limits) -> Result<coherence::Message, Malformed> {
        use coherence::Message::*;
        if let kind::DIFF..=kind::UPDATED = self.kind {
            return self.about_diffs(body, limits);
        }
        if self.kind == kind::PIGGYBACKED {
            let first = Fields { count: 1, ..*self }.run(limits)?.first();
            return Ok(Piggybacked { page: first, stamp: u64::from(self.count) | u64::from(self.detail) << 32 });
        }
        let range = self.first_run(limits)?;
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
            kind::COPY => {
                let (content, home) = (self.content()?, self.flags & 1 != 0);
                Copy { demand, range, content, stamp: self.object >> 32 << 32 | u64::from(sequence), home }
            }
            kind::PLACE => Place { range, home: self.member(limits)? },
            kind::PLACED => Placed { range },
            kind::CONFIRM => Confirm { demand, range },
            kind::INVALIDATE => Invalidate { page: demand, owner: self.member(limits)? },
            _ => Invalidated { page: demand },
        })
    }

    fn about_diffs(&self, body: &[u8], limits: &Limits) -> Result<coherence::Message, Malformed> {
        use coherence::Message::*;
        let [mask] = words(body)?;
        let (pages, number) = self.set(mask, limits)?;
        Ok(match self.kind {
            kind::DIFF => {
                let hops = u16::try_from(self.count).map_err(|_| Malformed::Field)?;
                let [_, piggybacked, stamp] = words(body)?;
                Diff { pages, writer: self.member(limits)?, number, hops, piggybacked, stamp }
            }
            kind::DIFFED => {
                let [_, copied, current, moved] = words(body)?;
                let stamp = u64::from(self.count) | u64::from(self.detail) << 32;
                Diffed { pages, number, stamp, copied, current, moved }
            }
            kind::UPDATE => {
                let [_, stamp] = words(body)?;
                let origin: NodeId = self.member(limits)?;
                Update { pages, origin, number, stamp }
            }
            _ => {
                let [_, kept] = words(body)?;
                Updated { pages, number, kept }
            }
        })
    }

    fn put_words(&mut self, words: &[u64]) {
        for (place, word) in self.body.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        self.body_bytes = (words.len() * 8) as u8;
    }
}

fn content_bits(content: Content) -> u8 {
    match content {
        Content::Kept => 0,
        Content::Zero => 1 << 1,
        Content::Bytes => 2 << 1,
    }
}

/// The first words of a body.
fn words<const N: usize>(body: &[u8]) -> Result<[u64; N], Malformed> {
    let mut words = [0; N];
    for (index, word) in words.iter_mut().enumerate() {
        let bytes = body.get(index * 8..index * 8 + 8).and_then(|bytes| bytes.try_into().ok());
        *word = u64::from_le_bytes(bytes.ok_or(Malformed::Body)?);
    }
    Ok(words)
}
