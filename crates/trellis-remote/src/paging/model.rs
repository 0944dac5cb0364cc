//! A memory server in this process, for tests: one mutex, no network, no terms, and each rule of leases written out.
//!
//! Promises: a page has one owner or any number of copies; copies are recalled before a lease is granted; a commit takes
//! effect only while its owner holds the lease.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::{PAGE_BYTES, Pages};
use crate::leased::Events;

/// Longer than any test waits; reaching it means that a page is not returned.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone)]
struct Page {
    bytes: Vec<u8>,
    owner: Option<usize>,
    /// How many leases of it were granted.
    grants: u64,
    copies: HashSet<usize>,
    /// A lease is being granted: no client gets a copy meanwhile.
    is_busy: bool,
}

/// The server.
pub(super) struct ModelServer {
    pages: Mutex<Vec<Page>>,
    changed: Condvar,
    clients: Vec<OnceLock<Arc<dyn Events>>>,
}

/// A client of it.
pub(super) struct ModelClient {
    pub(super) server: Arc<ModelServer>,
    pub(super) number: usize,
}

impl ModelServer {
    pub(super) fn new(pages: usize, clients: usize) -> Arc<ModelServer> {
        let page = Page {
            bytes: vec![0; PAGE_BYTES as usize],
            owner: None,
            grants: 0,
            copies: HashSet::new(),
            is_busy: false,
        };
        Arc::new(ModelServer {
            pages: Mutex::new(vec![page; pages]),
            changed: Condvar::new(),
            clients: (0..clients).map(|_| OnceLock::new()).collect(),
        })
    }

    pub(super) fn attach(&self, number: usize, events: Arc<dyn Events>) {
        assert!(self.clients[number].set(events).is_ok(), "each client comes once");
    }

    /// The bytes of a page as last committed.
    pub(super) fn bytes(&self, page: u64) -> Vec<u8> {
        self.pages()[page as usize].bytes.clone()
    }

    /// The client that may change a page, and those that have copies of it.
    pub(super) fn rights(&self, page: u64) -> (Option<usize>, HashSet<usize>) {
        let page = &self.pages()[page as usize];
        (page.owner, page.copies.clone())
    }

    /// Ends the right of the owner of a page; returns the owner.
    pub(super) fn expire(&self, page: u64) -> Option<usize> {
        let owner = self.pages()[page as usize].owner.take();
        self.changed.notify_all();
        if let Some(events) = owner.and_then(|owner| self.events(owner)) {
            events.lost(page);
        }
        owner
    }

    fn pages(&self) -> MutexGuard<'_, Vec<Page>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn events(&self, number: usize) -> Option<&Arc<dyn Events>> {
        self.clients[number].get()
    }

    /// Waits until a page has no owner and no grant is under way.
    fn free(&self, page: u64) -> MutexGuard<'_, Vec<Page>> {
        let mut asked = None;
        loop {
            let pages = self.pages();
            let wanted = &pages[page as usize];
            match wanted.owner {
                None if !wanted.is_busy => return pages,
                // The next grant may be to the same client, also while it is told.
                Some(owner) if asked != Some(wanted.grants) => {
                    asked = Some(wanted.grants);
                    drop(pages);
                    if let Some(events) = self.events(owner) {
                        events.recalled(page);
                    }
                }
                _ => {
                    let waited = self.changed.wait_timeout(pages, TIMEOUT);
                    assert!(!waited.unwrap_or_else(PoisonError::into_inner).1.timed_out(), "page {page} stays away");
                }
            }
        }
    }
}

impl Pages for ModelClient {
    fn copy(&self, pages: &[u64], put: &mut dyn FnMut(u64, &[u8])) -> Result<(), String> {
        for &page in pages {
            let mut all = self.server.free(page);
            let home = &mut all[page as usize];
            home.copies.insert(self.number);
            // Before the copy can be recalled.
            put(page, &home.bytes);
        }
        Ok(())
    }

    fn update(&self, pages: &[u64], keeps: bool, granted: &mut dyn FnMut(u64, Option<&[u8]>)) -> Result<(), String> {
        for &page in pages {
            let mut all = self.server.free(page);
            let home = &mut all[page as usize];
            home.is_busy = true;
            let has_copy = home.copies.remove(&self.number);
            let readers: Vec<usize> = home.copies.drain().collect();
            drop(all);
            for reader in readers {
                if let Some(events) = self.server.events(reader) {
                    events.invalidate(page);
                }
            }
            let mut all = self.server.pages();
            let home = &mut all[page as usize];
            (home.is_busy, home.owner, home.grants) = (false, Some(self.number), home.grants + 1);
            granted(page, (!(keeps && has_copy)).then_some(&home.bytes));
            drop(all);
            self.server.changed.notify_all();
        }
        Ok(())
    }

    fn commit(&self, pages: &[(u64, &[u8])]) -> Result<Vec<u64>, String> {
        let mut all = self.server.pages();
        let mut late = Vec::new();
        for (page, bytes) in pages {
            let home = &mut all[*page as usize];
            if home.owner == Some(self.number) {
                home.bytes.copy_from_slice(bytes);
                home.owner = None;
            } else {
                late.push(*page);
            }
        }
        drop(all);
        self.server.changed.notify_all();
        Ok(late)
    }

    fn server_of(&self, _: u64) -> String {
        "the model".to_owned()
    }

    fn drop_copies(&self, pages: &[u64]) {
        let mut all = self.server.pages();
        for &page in pages {
            all[page as usize].copies.remove(&self.number);
        }
    }

    fn close(&self) {}
}
