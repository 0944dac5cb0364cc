//! A scalable heap of which several processes have a part each, with the directory of the parts in the store.
//!
//! A process cuts blocks from segments of its own. It asks the directory for more in one call, each time for as many as it
//! has, up to [`SEGMENTS_AT_ONCE_MAX`]; the answer brings what others freed of its blocks. A block of another process that
//! is freed here waits, and goes to its owner with others in one call.
//!
//! Promises: no store call while a lock is held that allocating from what is here needs; memory goes to another process
//! only after this one has published what it wrote, and is used here only after a refresh; when a process dies, what it
//! had stays what it is until somebody takes it over, and at most [`PENDING_MAX`] blocks that it freed are lost.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use trellis_store::{Applied, Change, Operation, Outcome, Store};

use super::description::{self, Described};
use super::directory::{ATTEMPTS_MAX, Directory, Record, SEGMENT_PAGES, description as description_key, mailbox};
use super::scalable::Scalable;
use super::{Allocator, Block, HeapError, Held, Memory, PAGE_BYTES, Refusal, Statistics, lock};
use trellis_protocol::heap::classes::{CLASSES, size_of};

/// The most segments that are asked for in advance: 64 MiB.
const SEGMENTS_AT_ONCE_MAX: u32 = 64;
/// So many blocks of others wait here until they are told.
const PENDING_MAX: usize = 256;
/// When more than so many bytes are free here, whole segments go back.
const SPARE_BYTES_MAX: u64 = 128 << 20;
/// So many entries of the mailbox are read at once.
const MAIL_AT_ONCE_MAX: u32 = 256;
/// So many values are read at once.
const KEYS_AT_ONCE_MAX: usize = 64;
const SEGMENT_BYTES: u64 = SEGMENT_PAGES as u64 * PAGE_BYTES;

pub(super) struct Shared {
    range: Range<u64>,
    here: Scalable,
    directory: Directory,
    store: Arc<dyn Store>,
    region: u32,
    member: u64,
    memory: Arc<dyn Memory>,
    /// Blocks of others that were freed here, in the order in which they were.
    pending: Mutex<Vec<u64>>,
    /// One thread at a time talks to the store about pages.
    talking: Mutex<Own>,
    strays: AtomicU64,
}

/// What is said of a segment, and the member who said it.
type Said = (u64, Vec<Described>);

/// What this process has.
#[derive(Default)]
struct Own {
    segments: u32,
    /// The last mail that was taken.
    mail_seen: u64,
}

impl Shared {
    pub(super) fn new(
        range: Range<u64>,
        memory: Arc<dyn Memory>,
        store: Arc<dyn Store>,
        region: u32,
        member: u64,
    ) -> Shared {
        let segments = ((range.end - range.start) / SEGMENT_BYTES).min(u64::from(u32::MAX / SEGMENT_PAGES)) as u32;
        Shared {
            here: Scalable::of_segments(range.clone(), Arc::clone(&memory)),
            directory: Directory::new(Arc::clone(&store), region, segments),
            range,
            store,
            region,
            member,
            memory,
            pending: Mutex::new(Vec::new()),
            talking: Mutex::default(),
            strays: AtomicU64::new(0),
        }
    }

    /// Gets segments for so many pages, and blocks that others freed. False when there are none.
    fn refill(&self, own: &mut Own, pages: u64, align_pages: u64) -> Result<bool, Refusal> {
        let need = pages.saturating_add(align_pages - 1).div_ceil(SEGMENT_PAGES.into());
        let need = u32::try_from(need).unwrap_or(u32::MAX);
        let wanted = need.max(own.segments.min(SEGMENTS_AT_ONCE_MAX));
        let take = |record: &mut Record| record.take(wanted, self.member).or_else(|| record.take(need, self.member));
        let Some(((segments, is_clean), outcomes)) = self.directory.change(&[self.read_mail(own)], take)? else {
            return Ok(self.receive(own)?);
        };
        own.segments += segments.len() as u32;
        let has_mail = self.take_mail(own, outcomes.into_iter().nth(1))?;
        if !is_clean && !has_mail {
            self.memory.refresh()?;
        }
        self.here.insert(segments.start * SEGMENT_PAGES..segments.end * SEGMENT_PAGES, is_clean);
        Ok(true)
    }

    fn read_mail(&self, own: &Own) -> Operation {
        Operation::Entries { log: mailbox(self.region, self.member), after: own.mail_seen, count: MAIL_AT_ONCE_MAX }
    }

    /// Takes back the blocks that others freed; false when there are none.
    fn receive(&self, own: &mut Own) -> Result<bool, HeapError> {
        match self.store.apply(&[self.read_mail(own)], None)? {
            Applied::Done(outcomes) => self.take_mail(own, outcomes.into_iter().next()),
            _ => Err(self.directory.nonsense("it refused to read a log")),
        }
    }

    /// The same with mail that was read. It is forgotten before a block of it can be handed out again: who takes over from
    /// a dead process must not free that once more.
    fn take_mail(&self, own: &mut Own, mail: Option<Outcome>) -> Result<bool, HeapError> {
        let Some(Outcome::Entries { entries, .. }) = mail else {
            return Err(self.directory.nonsense("it answered with something else than entries of a log"));
        };
        let Some(upto) = entries.last().map(|entry| entry.sequence) else { return Ok(false) };
        self.store.apply(&[Operation::Trim { log: mailbox(self.region, self.member), upto }], None)?;
        own.mail_seen = upto;
        self.memory.refresh()?;
        entries.iter().flat_map(|entry| addresses(&entry.bytes)).for_each(|address| self.free_own(address));
        Ok(true)
    }

    /// A block of this process that another one freed.
    fn free_own(&self, address: u64) {
        if self.here.free(address).is_err() {
            self.strays.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Tells the owners of blocks that were freed here.
    fn send(&self) -> Result<(), Refusal> {
        let pending = std::mem::take(&mut *lock(&self.pending));
        if pending.is_empty() {
            return Ok(());
        }
        let outcome = self.send_these(&pending);
        if outcome.is_err() {
            lock(&self.pending).extend(pending);
        }
        outcome
    }

    fn send_these(&self, pending: &[u64]) -> Result<(), Refusal> {
        self.memory.publish()?;
        let mut rest = pending.to_vec();
        for _ in 0..ATTEMPTS_MAX {
            let (record, guard) = self.directory.last_seen_and_guard()?;
            let mut mail: BTreeMap<Option<u64>, Vec<u64>> = BTreeMap::new();
            rest.iter().for_each(|&block| mail.entry(record.owner_of(self.segment_of(block))).or_default().push(block));
            let Some((owner, blocks)) = mail.pop_first() else { return Ok(()) };
            match owner {
                None => _ = self.strays.fetch_add(blocks.len() as u64, Ordering::Relaxed),
                Some(owner) if owner == self.member => {
                    self.memory.refresh()?;
                    blocks.iter().for_each(|&block| self.free_own(block));
                }
                Some(owner) => {
                    let bytes = blocks.iter().flat_map(|block| block.to_le_bytes()).collect();
                    let append = Operation::Append { log: mailbox(self.region, owner), bytes };
                    // An owner that was replaced meanwhile reads no mail any more.
                    if let Applied::Fenced { .. } = self.store.apply(&[append], Some(&guard))? {
                        self.directory.look()?;
                        continue;
                    }
                }
            }
            rest.retain(|block| !blocks.contains(block));
        }
        Err(self.directory.nonsense("the owners of freed blocks changed at every attempt to tell them").into())
    }

    fn segment_of(&self, address: u64) -> u32 {
        ((address - self.range.start) / SEGMENT_BYTES) as u32
    }

    /// Makes sure that a block is another process's, as far as the directory tells.
    fn check_elsewhere(&self, address: u64) -> Result<(), Refusal> {
        if !self.range.contains(&address) {
            return Err(Refusal::Foreign);
        }
        let segment = self.segment_of(address);
        let owner = match self.directory.last_seen()?.owner_of(segment) {
            None => self.directory.look()?.owner_of(segment),
            known => known,
        };
        match owner {
            Some(owner) if owner != self.member => Ok(()),
            _ => Err(Refusal::NoBlock),
        }
    }

    /// How many bytes the block of another process has that begins at an address.
    fn bytes_elsewhere(&self, address: u64) -> Result<u64, Refusal> {
        self.check_elsewhere(address)?;
        // A span of small blocks may begin in the segment before.
        let (segment, page) = (self.segment_of(address), ((address - self.range.start) / PAGE_BYTES) as u32);
        let described = self.described(segment.saturating_sub(1)..segment + 1)?;
        let mut spans = described.into_iter().flatten().flat_map(|(_, spans)| spans);
        let span = spans.find(|span| (span.first_page..span.first_page + span.pages).contains(&page));
        let span = span.ok_or_else(|| {
            HeapError::Misuse(format!(
                "how long the block at address {address:#x} is, which another process allocated, is not known here; let it \
                 release what it wrote before it hands the pointer on"
            ))
        })?;
        let within = address - self.range.start - u64::from(span.first_page) * PAGE_BYTES;
        let whole = u64::from(span.pages) * PAGE_BYTES;
        let bytes = if usize::from(span.class) < CLASSES { u64::from(size_of(span.class)) } else { whole };
        if within.is_multiple_of(bytes) { Ok(bytes) } else { Err(Refusal::NoBlock) }
    }

    /// What is said of segments, and by whom.
    fn described(&self, segments: Range<u32>) -> Result<Vec<Option<Said>>, Refusal> {
        let keys: Vec<_> = segments.map(|segment| description_key(self.region, segment)).collect();
        let mut all = Vec::with_capacity(keys.len());
        for some in keys.chunks(KEYS_AT_ONCE_MAX) {
            for bytes in self.store.get_many(some)? {
                let read = |bytes: &[u8]| {
                    description::decode(bytes)
                        .ok_or_else(|| self.directory.nonsense("a segment of the heap is unreadable"))
                };
                all.push(bytes.as_deref().map(read).transpose()?);
            }
        }
        Ok(all)
    }

    /// Gives whole free segments back, all but so many.
    fn surrender(&self, own: &mut Own, keep: usize) -> Result<(), Refusal> {
        let runs = self.here.surrender(keep);
        if runs.is_empty() {
            return Ok(());
        }
        let back = self.memory.publish().and_then(|()| {
            self.directory.change(&[], |record| {
                runs.iter().for_each(|run| record.give_back(run.clone(), self.member));
                Some(())
            })
        });
        if let Err(error) = back {
            let pages = |run: &Range<u32>| run.start * SEGMENT_PAGES..run.end * SEGMENT_PAGES;
            runs.iter().for_each(|run| self.here.insert(pages(run), false));
            return Err(error.into());
        }
        own.segments -= runs.iter().map(|run| run.len() as u32).sum::<u32>();
        Ok(())
    }

    /// Takes over what a member that is gone had in a run of segments. What it never described, nobody else knows a
    /// pointer into. Where the description is an earlier owner's, nothing is known, so that nothing is used.
    fn adopt(&self, run: Range<u32>, member: u64) -> Result<(), Refusal> {
        let mut spans = Vec::new();
        for (segment, described) in run.clone().zip(self.described(run.clone())?) {
            match described {
                Some((owner, described)) if owner == member => spans.extend(described),
                Some(_) => spans.push(Described::unknown(segment * SEGMENT_PAGES, SEGMENT_PAGES)),
                None => {}
            }
        }
        self.here.adopt(run, &spans);
        Ok(())
    }

    fn describe(&self, segments: impl IntoIterator<Item = u32>, with_live: bool) -> Vec<Operation> {
        let describe = |segment| {
            let bytes = description::encode(self.member, &self.here.describe(segment, with_live));
            Operation::Change { key: description_key(self.region, segment), change: Change::Put(bytes) }
        };
        segments.into_iter().map(describe).collect()
    }

    /// Applies operations, a bounded number at a time.
    fn apply_all(&self, operations: &[Operation]) -> Result<(), Refusal> {
        for some in operations.chunks(self.store.capabilities().operations_max.clamp(1, 64)) {
            match self.store.apply(some, None)? {
                Applied::Done(_) => {}
                other => {
                    return Err(self.directory.nonsense(&format!("plain changes were answered with {other:?}")).into());
                }
            }
        }
        Ok(())
    }
}

/// Addresses that are one after the other in a value.
fn addresses(mail: &[u8]) -> impl Iterator<Item = u64> + '_ {
    mail.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

impl Allocator for Shared {
    fn allocate(&self, bytes: u64, align: u64) -> Result<Block, Refusal> {
        match self.here.allocate(bytes, align) {
            Err(Refusal::NoRoom { .. }) => {}
            other => return other,
        }
        let mut own = lock(&self.talking);
        loop {
            // Another thread may have got pages meanwhile.
            let (pages, align_pages) = match self.here.allocate(bytes, align) {
                Err(Refusal::NoRoom { pages, align_pages }) => (pages, align_pages),
                other => return other,
            };
            if !self.refill(&mut own, pages, align_pages)? {
                return Err(Refusal::NoRoom { pages, align_pages });
            }
        }
    }

    fn free(&self, address: u64) -> Result<(), Refusal> {
        match self.here.free(address) {
            Err(Refusal::Foreign) => {}
            Ok(()) if self.here.free_pages() * PAGE_BYTES > SPARE_BYTES_MAX => {
                let mut own = lock(&self.talking);
                return self.surrender(&mut own, SEGMENTS_AT_ONCE_MAX as usize / 2);
            }
            other => return other,
        }
        self.check_elsewhere(address)?;
        let is_full = {
            let mut pending = lock(&self.pending);
            if pending.contains(&address) {
                return Err(Refusal::NoBlock);
            }
            pending.push(address);
            pending.len() >= PENDING_MAX
        };
        if is_full { self.send() } else { Ok(()) }
    }

    fn resize(&self, address: u64, bytes: u64) -> Result<bool, Refusal> {
        match self.here.resize(address, bytes) {
            Err(Refusal::Foreign) => {}
            other => return other,
        }
        let before = self.bytes_elsewhere(address)?;
        Ok(bytes <= before && bytes * 2 >= before)
    }

    fn usable_bytes(&self, address: u64) -> Result<u64, Refusal> {
        match self.here.usable_bytes(address) {
            Err(Refusal::Foreign) => self.bytes_elsewhere(address),
            other => other,
        }
    }

    fn trim(&self) -> Result<(), Refusal> {
        self.settle(false)
    }

    fn statistics(&self) -> Statistics {
        Statistics { strays: self.strays.load(Ordering::Relaxed), ..self.here.statistics() }
    }

    fn hold(&self) -> Held<'_> {
        let held = Held::of([&self.talking]).and(Held::of([&self.pending])).and(self.here.hold());
        held.and(self.directory.hold())
    }

    fn changes(&self) -> Vec<Operation> {
        self.describe(self.here.take_changed(), false)
    }

    fn settle(&self, leaves: bool) -> Result<(), Refusal> {
        self.send()?;
        let mut own = lock(&self.talking);
        while self.receive(&mut own)? {}
        self.here.trim()?;
        self.surrender(&mut own, 0)?;
        let changes = self.changes();
        self.apply_all(&changes)?;
        if leaves {
            let record = self.directory.last_seen()?;
            let mine = (0..record.untouched).filter(|&segment| record.owner_of(segment) == Some(self.member));
            self.apply_all(&self.describe(mine, true))?;
        }
        Ok(())
    }

    fn owners(&self) -> Result<Vec<u64>, Refusal> {
        Ok(self.directory.look()?.owners())
    }

    fn take_over(&self, member: u64) -> Result<(), Refusal> {
        let mut own = lock(&self.talking);
        let mail = Operation::Entries { log: mailbox(self.region, member), after: 0, count: u32::MAX };
        let hand_over = |record: &mut Record| {
            let runs = record.hand_over(member, self.member);
            (!runs.is_empty()).then_some(runs)
        };
        let Some((runs, outcomes)) = self.directory.change(&[mail], hand_over)? else { return Ok(()) };
        self.memory.refresh()?;
        for run in runs {
            own.segments += run.len() as u32;
            self.adopt(run, member)?;
        }
        // Nobody adds to it any more: its owner is not in the directory.
        if let Some(Outcome::Entries { entries, .. }) = outcomes.into_iter().nth(1) {
            entries.iter().flat_map(|entry| addresses(&entry.bytes)).for_each(|address| self.free_own(address));
        }
        self.apply_all(&[Operation::Change { key: mailbox(self.region, member), change: Change::Delete }])
    }
}
