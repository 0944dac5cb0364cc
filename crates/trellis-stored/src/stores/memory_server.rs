//! The store `memory-server`: pages at memory servers, everything else in this process.
//!
//! Promises the contract of a store to one process: pages and values (`Staged`, `Named`) change one by one, control
//! keys together. A page has 4 KiB even if less was put. A page that was never written, or was deleted, is absent and
//! costs no call. Changes of whole pages and of parts of them are sent to the servers as such, many at once. Steps that
//! read a page and change it (additions, comparisons) are carried out here, while no other call uses any page.
//!
//! It must never be opened for a region that other processes use: they would not find the keys that are kept here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trellis_store::stores::embedded::Embedded;
use trellis_store::{Applied, Atomic, Capabilities, Change, Guard, Key, Kind, Operation, Outcome, Store, StoreError};

use super::super::layout::{PAGE_BYTES, REGION_BASE};
use trellis_remote::pages::{PageChange, PageName, Pages, PagesError, PagesOptions};

/// The pause before a refused call is tried again.
const PAUSE: Duration = Duration::from_millis(1);

const CAPABILITIES: Capabilities = Capabilities {
    atomic: Atomic::Control,
    byte_ranges: true,
    native_add: true,
    wait: false,
    durable: false,
    shared: false,
    value_bytes_max: 16 << 20,
    operations_max: 4096,
    call_bytes_max: 16 << 20,
};

/// The store; see the module.
struct MemoryServers {
    name: String,
    pages: Pages,
    /// Everything except pages.
    others: Embedded,
}

/// Opens the store.
pub(super) fn open(url: &str, options: PagesOptions) -> Result<Arc<dyn Store>, StoreError> {
    let name = url.split('?').next().unwrap_or(url).to_owned();
    let pages = Pages::open(options)
        .map_err(|error| StoreError::Protocol { store: name.clone(), reason: error.to_string() })?;
    Ok(Arc::new(MemoryServers { name, pages, others: Embedded::new() }))
}

impl MemoryServers {
    fn failed(&self, error: &PagesError) -> StoreError {
        let mut reason = error.to_string();
        if let Some((first, last)) = error.pages {
            let mebibytes = (error.kept * PAGE_BYTES as u64) as f64 / f64::from(1 << 20);
            let (start, end) = (address(first), address(last) + PAGE_BYTES as u64 - 1);
            reason += &format!(
                "; it keeps {mebibytes:.1} MiB of this program's memory, {start:#x} to {end:#x} among it, which are lost \
                 unless it comes back"
            );
        }
        StoreError::Protocol { store: self.name.clone(), reason }
    }

    fn unsupported(&self, what: &str) -> StoreError {
        StoreError::Unsupported { store: self.name.clone(), what: what.to_owned() }
    }

    /// Carries out steps that are all about pages.
    fn apply_to_pages(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        if let Some(guard) = guard
            && let fenced @ Applied::Fenced { .. } = self.others.apply(&[], Some(guard))?
        {
            return Ok(fenced);
        }
        operations.iter().try_for_each(|operation| self.check(operation))?;
        let parts: Option<Vec<PageChange<'_>>> = operations.iter().map(part).collect();
        if let Some(parts) = parts
            && self.pages.write(&parts).map_err(|error| self.failed(&error))?
        {
            return Ok(Applied::Done(vec![Outcome::Changed; operations.len()]));
        }
        let deletes = |operation: &Operation| matches!(operation, Operation::Change { change: Change::Delete, .. });
        if operations.iter().all(deletes) {
            let names: Vec<PageName> = operations.iter().map(|operation| name(operation.key())).collect();
            self.pages.alone().give_up(&names).map_err(|error| self.failed(&error))?;
            return Ok(Applied::Done(vec![Outcome::Changed; operations.len()]));
        }
        self.apply_alone(operations)
    }

    /// Carries out any steps while no other call uses any page: on a copy of the pages, which is written back.
    fn apply_alone(&self, operations: &[Operation]) -> Result<Applied, StoreError> {
        let alone = self.pages.alone();
        let mut keys: Vec<Key> = operations.iter().map(|operation| operation.key().clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        let names: Vec<PageName> = keys.iter().map(name).collect();
        let before = alone.read(&names).map_err(|error| self.failed(&error))?;
        let copy = Embedded::new();
        let put = |(key, value): (&Key, &Option<Vec<u8>>)| {
            let change = Change::Put(value.clone()?);
            Some(Operation::Change { key: key.clone(), change })
        };
        let known: Vec<Operation> = keys.iter().zip(&before).filter_map(put).collect();
        copy.apply(&known, None)?;
        let applied = copy.apply(operations, None)?;
        if matches!(applied, Applied::Done(_)) {
            let after = copy.get_many(&keys)?;
            let (mut changed, mut gone) = (BTreeMap::new(), Vec::new());
            for ((page, before), after) in names.into_iter().zip(before).zip(after) {
                match after {
                    None => gone.extend(before.map(|_| page)),
                    Some(after) if before.as_deref() == Some(&after[..]) => {}
                    Some(after) => {
                        let mut whole = Box::new([0; PAGE_BYTES]);
                        whole[..after.len()].copy_from_slice(&after);
                        changed.insert(page, whole);
                    }
                }
            }
            let changed: Vec<_> = changed.iter().map(|(page, bytes)| (*page, &**bytes)).collect();
            alone.write(&changed).map_err(|error| self.failed(&error))?;
            alone.give_up(&gone).map_err(|error| self.failed(&error))?;
        }
        Ok(applied)
    }

    /// Refuses a step that exceeds a page.
    fn check(&self, operation: &Operation) -> Result<(), StoreError> {
        let end = |change: &Change| match change {
            Change::Put(bytes) => bytes.len(),
            Change::PutRange { offset, bytes } => *offset as usize + bytes.len(),
            Change::Delete => 0,
        };
        let end = match operation {
            Operation::Change { change, .. } | Operation::CompareAndSwap { change, .. } => end(change),
            Operation::Add { offset, width, .. } => *offset as usize + usize::from(*width),
            _ => 0,
        };
        if end <= PAGE_BYTES {
            return Ok(());
        }
        Err(StoreError::TooLarge {
            store: self.name.clone(),
            what: "a page".to_owned(),
            bytes: end,
            limit: PAGE_BYTES,
            hint: "memory lies there in pages".to_owned(),
        })
    }
}

impl Store for MemoryServers {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let names: Vec<PageName> = keys.iter().filter(|key| is_page(key)).map(name).collect();
        let pages = self.pages.read(&names).map_err(|error| self.failed(&error))?;
        if names.len() == keys.len() {
            return Ok(pages);
        }
        let others: Vec<Key> = keys.iter().filter(|key| !is_page(key)).cloned().collect();
        let (mut pages, mut others) = (pages.into_iter(), self.others.get_many(&others)?.into_iter());
        let mut next = |key: &Key| if is_page(key) { pages.next() } else { others.next() };
        Ok(keys.iter().map(|key| next(key).flatten()).collect())
    }

    fn apply(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        let of_pages = operations.iter().filter(|operation| is_page(operation.key())).count();
        if of_pages == 0 {
            return self.others.apply(operations, guard);
        }
        if of_pages < operations.len() {
            return Err(self.unsupported("a call cannot be about pages and other keys; make two"));
        }
        self.apply_to_pages(operations, guard)
    }

    fn apply_when(
        &self,
        operations: &[Operation],
        guard: Option<&Guard>,
        deadline: Instant,
    ) -> Result<Applied, StoreError> {
        if !operations.iter().any(|operation| is_page(operation.key())) {
            return self.others.apply_when(operations, guard, deadline);
        }
        loop {
            let applied = self.apply(operations, guard)?;
            if !matches!(applied, Applied::Refused(..)) || Instant::now() >= deadline {
                return Ok(applied);
            }
            std::thread::sleep(PAUSE.min(deadline.saturating_duration_since(Instant::now())));
        }
    }

    fn numbers(&self, region: u32, kind: Kind, from: u64, count: usize) -> Result<Vec<u64>, StoreError> {
        match kind {
            Kind::Memory => Ok(self.pages.stored(region, from, count)),
            _ => self.others.numbers(region, kind, from, count),
        }
    }

    fn names(&self, region: u32, after: Option<&[u8]>, count: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        self.others.names(region, after, count)
    }
}

fn is_page(key: &Key) -> bool {
    key.kind() == Kind::Memory
}

fn name(key: &Key) -> PageName {
    (key.region(), key.number())
}

/// The address of a page in the program.
fn address((_, page): PageName) -> u64 {
    (REGION_BASE as u64).wrapping_add(page.wrapping_mul(PAGE_BYTES as u64))
}

/// The write of a step that only writes all or part of a page.
fn part(operation: &Operation) -> Option<PageChange<'_>> {
    let Operation::Change { key, change } = operation else { return None };
    match change {
        Change::Put(bytes) if bytes.len() == PAGE_BYTES => Some(PageChange { page: name(key), offset: 0, bytes }),
        Change::PutRange { offset, bytes } => Some(PageChange { page: name(key), offset: *offset as usize, bytes }),
        _ => None,
    }
}
