//! Takes over the part of a shared heap whose owner has left or is dead.
//!
//! Its segments are assigned to the process that takes over, in one change of the directory, together with the blocks
//! that others freed and that the owner had not read. The blocks that remain allocated are those of the owner's last
//! release: later allocations are not known to any process, and later frees must be ignored because other processes may
//! still have pointers to those blocks.
//!
//! Promises: if two processes take over from the same member, each segment is assigned to one of them. A process that
//! dies in between leaves the rest to the next. The member is declared *gone* first ([`Liveness`]), so that it changes
//! nothing meanwhile. It must never use memory whose content is not known.
//!
//! [`Liveness`]: crate::liveness::Liveness

use std::collections::BTreeSet;

use trellis_store::{Applied, Change, Operation, Outcome};

use super::description::{self, Described, WHOLE};
use super::directory::{ATTEMPTS_MAX, Record, SEGMENT_PAGES, description as description_key, mailbox};
use super::shared::{Own, Shared, addresses};
use super::{HeapError, PAGE_BYTES, Refusal};

/// The spans of a range of segments, in the order of pages, each with the segment that names it.
type Spans = Vec<(u32, Described)>;

impl Shared {
    /// Takes over from every owner that is gone, as far as the directory that was last read names it; returns whether
    /// there was one.
    pub(super) fn take_over_gone(&self, own: &mut Own) -> Result<bool, Refusal> {
        let mut others = self.directory.last_seen()?.owners();
        others.retain(|owner| *owner != self.member);
        if others.is_empty() {
            return Ok(false);
        }
        let mut has_more = false;
        for member in self.liveness.gone(&others, std::time::Instant::now())? {
            has_more |= self.take_over_from(own, member)?;
            self.liveness.remove_redo_records(member)?;
        }
        Ok(has_more)
    }

    /// Takes over everything from a member that is gone; false if another process did, or the member has nothing.
    pub(super) fn take_over_from(&self, own: &mut Own, member: u64) -> Result<bool, Refusal> {
        for _ in 0..ATTEMPTS_MAX {
            let runs = self.directory.look()?.runs_of(member);
            if runs.is_empty() {
                return Ok(false);
            }
            let (mail, read_upto) = self.mail_of(member)?;
            let mut spans = Vec::new();
            for run in &runs {
                spans.extend(self.spans_of(run.clone())?);
            }
            if !self.strike(member, &mut spans, &mail)? {
                continue;
            }
            // This is the mail that arrived since, without what is already deleted.
            let log = mailbox(self.region, member);
            let also = [
                Operation::Entries { log: log.clone(), after: read_upto, count: u32::MAX },
                Operation::Change { key: log, change: Change::Delete },
            ];
            let hand_over = |record: &mut Record| (record.hand_over(member, self.member) == runs).then_some(());
            let Some((_, outcomes)) = self.directory.change(&also, hand_over)? else { continue };
            self.memory.refresh()?;
            for run in runs {
                own.segments += run.len() as u32;
                let within = |span: &Described| run.contains(&(span.first_page / SEGMENT_PAGES));
                let of_run: Vec<Described> =
                    spans.iter().filter(|(_, span)| within(span)).map(|(_, span)| span.clone()).collect();
                self.here.adopt(run, &of_run);
            }
            if let Some(Outcome::Entries { entries, .. }) = outcomes.into_iter().nth(1) {
                entries.iter().flat_map(|entry| addresses(&entry.bytes)).for_each(|address| self.free_own(address));
            }
            return Ok(true);
        }
        Err(self.directory.nonsense("the owner of a part of the heap changed at every attempt to take it over").into())
    }

    /// The blocks of a member that others freed and that it did not read, and the number of the last entry.
    fn mail_of(&self, member: u64) -> Result<(Vec<u64>, u64), HeapError> {
        let read = Operation::Entries { log: mailbox(self.region, member), after: 0, count: u32::MAX };
        match self.store.apply(&[read], None)? {
            Applied::Done(outcomes) => {
                let Some(Outcome::Entries { entries, .. }) = outcomes.into_iter().next() else {
                    return Err(self.directory.nonsense("it answered with something else than entries of a log"));
                };
                let upto = entries.last().map_or(0, |entry| entry.sequence);
                Ok((entries.iter().flat_map(|entry| addresses(&entry.bytes)).collect(), upto))
            }
            _ => Err(self.directory.nonsense("it refused to read a log")),
        }
    }

    fn spans_of(&self, run: std::ops::Range<u32>) -> Result<Spans, Refusal> {
        let mut spans = Vec::new();
        for (segment, said) in run.clone().zip(self.described(run)?) {
            if let Some((_, described)) = said {
                self.note_description(segment, &described);
                spans.extend(described.into_iter().map(|span| (segment, span)));
            }
        }
        Ok(spans)
    }

    /// Removes freed blocks from the descriptions, here and in the store. This happens before the mail is deleted,
    /// because this process may die, too. False if another process has taken over meanwhile.
    fn strike(&self, member: u64, spans: &mut Spans, freed: &[u64]) -> Result<bool, Refusal> {
        let mut changed = BTreeSet::new();
        for &address in freed.iter().filter(|address| self.range.contains(address)) {
            let (page, within) =
                (((address - self.range.start) / PAGE_BYTES) as u32, (address - self.range.start) % PAGE_BYTES);
            let Some(at) = spans.iter().position(|(_, span)| (span.first_page..span.end_page()).contains(&page)) else {
                continue;
            };
            let (segment, span) = &mut spans[at];
            let begins = u64::from(page - span.first_page) * PAGE_BYTES + within;
            let segment = *segment;
            if span.class == WHOLE && begins == 0 {
                spans.remove(at);
                changed.insert(segment);
            } else if span.strike(begins) {
                changed.insert(segment);
            }
        }
        let put = |segment: &u32| {
            let of: Vec<Described> =
                spans.iter().filter(|(named_in, _)| named_in == segment).map(|(_, span)| span.clone()).collect();
            let change = Change::Put(description::encode(member, &of));
            Operation::Change { key: description_key(self.region, *segment), change }
        };
        let puts: Vec<Operation> = changed.iter().map(put).collect();
        let (record, guard) = self.directory.last_seen_and_guard()?;
        if record.runs_of(member).is_empty() {
            return Ok(false);
        }
        for some in puts.chunks(self.store.capabilities().operations_max.clamp(1, 64)) {
            // The process that took over meanwhile has newer descriptions than were read here.
            if let Applied::Fenced { .. } = self.store.apply(some, Some(&guard))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// For descriptions that are stored after their release: returns changes that mark what they describe as unknown.
    pub(super) fn withhold(&self, changes: &[Operation]) -> Vec<Operation> {
        let descriptions = super::lock(&self.descriptions);
        let unknown = |change: &Operation| {
            let segment = (change.key().number() & u64::from(u32::MAX)) as u32;
            let first = segment * SEGMENT_PAGES;
            let end = descriptions.get(&segment).copied().unwrap_or((segment + 1).saturating_mul(SEGMENT_PAGES));
            let bytes = description::encode(self.member, &[Described::unknown(first, end - first)]);
            Operation::Change { key: change.key().clone(), change: Change::Put(bytes) }
        };
        changes.iter().map(unknown).collect()
    }
}
