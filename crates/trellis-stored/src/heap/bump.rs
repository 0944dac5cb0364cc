//! The paper's malloc without free (§4.2): the end of the heap is a number that grows by an atomic addition.
//!
//! Promises: allocating takes no lock of its own, and blocks never overlap. It must never reuse memory that was freed.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trellis_store::{Applied, Key, Kind, Operation, Outcome, Store, StoreError};

use super::directory::BUMP;
use super::{ALIGN_BYTES_MIN, Allocator, Block, HeapError, Held, Memory, PAGE_BYTES, Refusal, Statistics};

/// The place of the number.
enum End {
    Here(AtomicU64),
    /// It is in the store, as in the paper: each allocation is one call. It counts from the heap's first byte.
    There {
        store: Arc<dyn Store>,
        key: Key,
    },
}

pub(super) struct Bump {
    range: Range<u64>,
    end: End,
    /// Blocks that this process allocated.
    blocks: AtomicU64,
    used: AtomicU64,
    memory: Arc<dyn Memory>,
}

impl Bump {
    pub(super) fn local(range: Range<u64>, memory: Arc<dyn Memory>) -> Bump {
        let end = End::Here(AtomicU64::new(range.start));
        Bump { range, end, blocks: AtomicU64::new(0), used: AtomicU64::new(0), memory }
    }

    pub(super) fn shared(range: Range<u64>, memory: Arc<dyn Memory>, store: Arc<dyn Store>, region: u32) -> Bump {
        let end = End::There { store, key: Key::new(region, Kind::Heap, BUMP) };
        Bump { range, end, blocks: AtomicU64::new(0), used: AtomicU64::new(0), memory }
    }

    /// Allocates `bytes` bytes. Returns the address of the first.
    fn add(&self, bytes: u64) -> Result<Option<u64>, Refusal> {
        match &self.end {
            End::Here(end) => {
                let grown = |end: u64| end.checked_add(bytes).filter(|&end| end <= self.range.end);
                Ok(end.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).ok())
            }
            End::There { store, key } => {
                let all = (self.range.end - self.range.start) as i64;
                let Some(delta) = i64::try_from(bytes).ok().filter(|&bytes| bytes <= all) else { return Ok(None) };
                let bounds = Some((0, all));
                let add = Operation::Add { key: key.clone(), offset: 0, width: 8, delta, bounds };
                match store.apply(&[add], None)? {
                    Applied::Done(outcomes) if let [Outcome::Added(before)] = outcomes[..] => {
                        Ok(Some(self.range.start + before as u64))
                    }
                    Applied::Refused(..) => Ok(None),
                    other => {
                        let (store, reason) =
                            (store.name().to_owned(), format!("an addition was answered with {other:?}"));
                        Err(StoreError::Protocol { store, reason }.into())
                    }
                }
            }
        }
    }
}

impl Allocator for Bump {
    fn allocate(&self, bytes: u64, align: u64) -> Result<Block, Refusal> {
        let no_room = Refusal::NoRoom { pages: bytes.div_ceil(PAGE_BYTES), align_pages: 1 };
        let bytes = bytes.next_multiple_of(ALIGN_BYTES_MIN);
        let Some(all) = bytes.checked_add(align - ALIGN_BYTES_MIN) else { return Err(no_room) };
        let first = self.add(all)?.ok_or(no_room)?;
        let address = first.next_multiple_of(align);
        self.blocks.fetch_add(1, Ordering::Relaxed);
        self.used.fetch_add(all, Ordering::Relaxed);
        // The page in which the previous block ended was reported as fresh at that time. A page that two processes
        // share is fresh for neither, because the other may have written to it already.
        let page_after = |byte: u64| byte.next_multiple_of(PAGE_BYTES).min(self.range.end);
        let pages = page_after(first)..page_after(first + all);
        if matches!(self.end, End::Here(_)) && !pages.is_empty() {
            self.memory.fresh(pages);
        }
        Ok(Block { address, bytes, is_zero: true })
    }

    fn free(&self, address: u64) -> Result<(), Refusal> {
        if self.range.contains(&address) { Ok(()) } else { Err(Refusal::Foreign) }
    }

    fn resize(&self, address: u64, _: u64) -> Result<bool, Refusal> {
        self.free(address).map(|()| false)
    }

    fn usable_bytes(&self, _: u64) -> Result<u64, Refusal> {
        let why = "a `bump` heap keeps no sizes of its blocks; use `first-fit` or `scalable`";
        Err(HeapError::Misuse(why.into()).into())
    }

    fn trim(&self) -> Result<(), Refusal> {
        Ok(())
    }

    fn statistics(&self) -> Statistics {
        let used = self.used.load(Ordering::Relaxed);
        let blocks = self.blocks.load(Ordering::Relaxed);
        Statistics { blocks, block_bytes: used, held_bytes: used, ..Statistics::default() }
    }

    fn hold(&self) -> Held<'_> {
        Held(Vec::new())
    }
}
