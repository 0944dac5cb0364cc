//! A scalable heap in which several processes own a part each, with the directory of the parts in the store.
//!
//! A process allocates blocks from segments of its own. It requests more from the directory in one call, each time as
//! many as it already has, up to [`SEGMENTS_AT_ONCE_MAX`]; the answer includes the blocks that others freed. A block of
//! another process that is freed here is queued, and reported to its owner together with others in one call.
//!
//! Promises: no call of the store is made while a lock is held that allocation from local segments needs. Memory passes
//! to another process only after this one has published what it wrote, and received memory is used only after a
//! refresh. When a process dies, its part is taken over (`recovery`) as it was at its last release, and at most
//! [`PENDING_MAX`] blocks of others that it freed are lost. A process that was replaced must never take, return or free
//! anything.
//!
//! The description of a segment in the store is always what its owner, or the previous one, had released; a segment
//! that is returned has no description.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use trellis_store::{Applied, Change, Operation, Outcome, Store};

use super::description::{self, Described};
use super::directory::{ATTEMPTS_MAX, Directory, Record, SEGMENT_PAGES, description as description_key, mailbox};
use super::scalable::Scalable;
use super::{Allocator, Block, HeapError, Held, Memory, PAGE_BYTES, Refusal, Statistics, lock};
use crate::liveness::Liveness;
use crate::synchronisation::member;
use trellis_base::size_classes::{CLASSES, size_of};

/// The maximum number of segments requested in advance: 64 MiB.
const SEGMENTS_AT_ONCE_MAX: u32 = 64;
/// The maximum number of other processes' freed blocks that are queued.
const PENDING_MAX: usize = 256;
/// The maximum number of free bytes that are kept here. If more is free, whole segments are returned.
const SPARE_BYTES_MAX: u64 = 128 << 20;
/// The number of mailbox entries that are read at once.
const MAIL_AT_ONCE_MAX: u32 = 256;
/// The number of values that are read at once.
const KEYS_AT_ONCE_MAX: usize = 64;
const SEGMENT_BYTES: u64 = SEGMENT_PAGES as u64 * PAGE_BYTES;

pub(super) struct Shared {
    pub(super) range: Range<u64>,
    pub(super) here: Scalable,
    pub(super) directory: Directory,
    pub(super) store: Arc<dyn Store>,
    pub(super) region: u32,
    pub(super) member: u64,
    pub(super) memory: Arc<dyn Memory>,
    pub(super) liveness: Liveness,
    /// Other processes' blocks that were freed here, in the order of freeing.
    pending: Mutex<Vec<u64>>,
    /// Locked by the one thread that calls the store about pages.
    talking: Mutex<Own>,
    /// Segments that have a description in the store, each with one past the last page that the description has ever
    /// reached.
    pub(super) descriptions: Mutex<BTreeMap<u32, u32>>,
    strays: AtomicU64,
}

/// The description of a segment, and the member that wrote it.
type Said = (u64, Vec<Described>);

/// What this process owns.
#[derive(Default)]
pub(super) struct Own {
    pub(super) segments: u32,
    /// The last mail that was read.
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
            directory: Directory::new(Arc::clone(&store), region, member, segments),
            liveness: Liveness::new(Arc::clone(&store), region, member),
            descriptions: Mutex::default(),
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

    /// Obtains segments for this many pages, and the blocks that others freed. False if there are none.
    fn refill(&self, own: &mut Own, pages: u64, align_pages: u64) -> Result<bool, Refusal> {
        // The memory of dead members is reused before memory that was never owned.
        if self.liveness.is_time(Instant::now()) && self.take_over_gone(own)? {
            return Ok(true);
        }
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

    /// Takes back the blocks that others freed; false if there are none.
    fn receive(&self, own: &mut Own) -> Result<bool, HeapError> {
        match self.store.apply(&[self.read_mail(own)], None)? {
            Applied::Done(outcomes) => self.take_mail(own, outcomes.into_iter().next()),
            _ => Err(self.directory.nonsense("it refused to read a log")),
        }
    }

    /// Takes back the blocks in mail that was read. The mail is deleted before any of its blocks can be allocated
    /// again, because a process that takes over after a crash must not free them once more.
    fn take_mail(&self, own: &mut Own, mail: Option<Outcome>) -> Result<bool, HeapError> {
        let Some(Outcome::Entries { entries, .. }) = mail else {
            return Err(self.directory.nonsense("it answered with something else than entries of a log"));
        };
        let Some(upto) = entries.last().map(|entry| entry.sequence) else { return Ok(false) };
        self.directory.apply(&[Operation::Trim { log: mailbox(self.region, self.member), upto }])?;
        own.mail_seen = upto;
        self.memory.refresh()?;
        entries.iter().flat_map(|entry| addresses(&entry.bytes)).for_each(|address| self.free_own(address));
        Ok(true)
    }

    /// Frees a block of this process that another one has freed.
    pub(super) fn free_own(&self, address: u64) {
        if self.here.free(address).is_err() {
            self.strays.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reports blocks that were freed here to their owners.
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
                    // The frees of a replaced process must not count: the other processes keep the pointers that it had
                    // removed.
                    let lives = member::lives(self.region, self.member);
                    match self.store.apply(&[lives, append], Some(&guard))? {
                        Applied::Done(_) => {}
                        Applied::Refused(..) => return Err(self.directory.fenced().into()),
                        // An owner that was replaced meanwhile reads no mail any more.
                        Applied::Fenced { .. } => {
                            self.directory.look()?;
                            continue;
                        }
                    }
                }
            }
            rest.retain(|block| !blocks.contains(block));
        }
        Err(self.directory.nonsense("the owners of freed blocks changed at every attempt to tell them").into())
    }

    pub(super) fn segment_of(&self, address: u64) -> u32 {
        ((address - self.range.start) / SEGMENT_BYTES) as u32
    }

    /// Checks that a block belongs to another process, as far as the directory shows.
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

    /// The size of another process's block that begins at an address.
    fn bytes_elsewhere(&self, address: u64) -> Result<u64, Refusal> {
        self.check_elsewhere(address)?;
        // A span of small blocks may begin in the preceding segment.
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

    /// The descriptions of segments, with their authors.
    pub(super) fn described(&self, segments: Range<u32>) -> Result<Vec<Option<Said>>, Refusal> {
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

    /// Returns whole free segments, except for this number of them.
    fn surrender(&self, own: &mut Own, keep: usize) -> Result<(), Refusal> {
        let runs = self.here.surrender(keep);
        if runs.is_empty() {
            return Ok(());
        }
        let back = self.memory.publish().and_then(|()| self.forget(&runs)).and_then(|()| {
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

    /// Deletes the descriptions of segments that are returned.
    fn forget(&self, runs: &[Range<u32>]) -> Result<(), HeapError> {
        let descriptions: Vec<u32> = {
            let descriptions = lock(&self.descriptions);
            runs.iter().flat_map(|run| descriptions.range(run.clone()).map(|(segment, _)| *segment)).collect()
        };
        let delete =
            |&segment| Operation::Change { key: description_key(self.region, segment), change: Change::Delete };
        self.apply_all(&descriptions.iter().map(delete).collect::<Vec<_>>())?;
        let gone: BTreeSet<u32> = descriptions.into_iter().collect();
        lock(&self.descriptions).retain(|segment, _| !gone.contains(segment));
        Ok(())
    }

    fn describe(&self, segments: impl IntoIterator<Item = u32>, with_live: bool) -> Vec<Operation> {
        let describe = |segment| {
            let spans = self.here.describe(segment, with_live);
            self.note_description(segment, &spans);
            let bytes = description::encode(self.member, &spans);
            Operation::Change { key: description_key(self.region, segment), change: Change::Put(bytes) }
        };
        segments.into_iter().map(describe).collect()
    }

    /// Records that a segment has a description in the store.
    pub(super) fn note_description(&self, segment: u32, spans: &[Described]) {
        let end = spans.iter().map(Described::end_page).fold((segment + 1).saturating_mul(SEGMENT_PAGES), u32::max);
        let mut descriptions = lock(&self.descriptions);
        let reaches = descriptions.entry(segment).or_default();
        *reaches = end.max(*reaches);
    }

    /// Applies operations, a bounded number at a time.
    pub(super) fn apply_all(&self, operations: &[Operation]) -> Result<(), HeapError> {
        for some in operations.chunks(self.store.capabilities().operations_max.clamp(1, 64)) {
            match self.directory.apply(some)? {
                Applied::Done(_) => {}
                other => return Err(self.directory.nonsense(&format!("plain changes were answered with {other:?}"))),
            }
        }
        Ok(())
    }

    fn allocate_here(&self, bytes: u64, align: u64) -> Result<Block, Refusal> {
        match self.here.allocate(bytes, align) {
            Err(Refusal::NoRoom { .. }) => {}
            other => return other,
        }
        let mut own = lock(&self.talking);
        loop {
            // Another thread may have obtained pages meanwhile.
            let (pages, align_pages) = match self.here.allocate(bytes, align) {
                Err(Refusal::NoRoom { pages, align_pages }) => (pages, align_pages),
                other => return other,
            };
            if !self.refill(&mut own, pages, align_pages)? {
                return Err(Refusal::NoRoom { pages, align_pages });
            }
        }
    }

    /// Describes blocks before they are used, if other processes see stores at once: these can know a block as soon as
    /// it is allocated or grown.
    fn describe_at_once(&self) -> Result<(), Refusal> {
        if self.memory.is_seen_at_once() && self.here.has_begun() {
            self.publish_changes()?;
        }
        Ok(())
    }

    /// Writes the result of [`Allocator::changes`] to the store.
    fn publish_changes(&self) -> Result<(), HeapError> {
        self.memory.publish()?;
        if self.memory.publishes_changes() { Ok(()) } else { self.apply_all(&self.changes()) }
    }
}

/// The addresses that a value contains, one after another.
pub(super) fn addresses(mail: &[u8]) -> impl Iterator<Item = u64> + '_ {
    mail.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

impl Allocator for Shared {
    fn allocate(&self, bytes: u64, align: u64) -> Result<Block, Refusal> {
        let block = self.allocate_here(bytes, align)?;
        self.describe_at_once()?;
        Ok(block)
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
            Ok(true) => return self.describe_at_once().map(|()| true),
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
        // If stores are visible at once, the set of blocks changes with each of them, so any block may be in use.
        self.describe(self.here.take_changed(), !self.memory.is_seen_at_once())
    }

    fn settle(&self, leaves: bool) -> Result<(), Refusal> {
        self.send()?;
        let mut own = lock(&self.talking);
        while self.receive(&mut own)? {}
        self.here.trim()?;
        self.surrender(&mut own, 0)?;
        self.publish_changes()?;
        if leaves && self.memory.is_seen_at_once() {
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
        self.take_over_from(&mut own, member).map(drop)
    }

    fn take_over_dead(&self) -> Result<(), Refusal> {
        let mut own = lock(&self.talking);
        self.directory.look()?;
        self.take_over_gone(&mut own).map(drop)
    }

    fn withheld(&self, changes: &[Operation]) -> Vec<Operation> {
        self.withhold(changes)
    }
}
