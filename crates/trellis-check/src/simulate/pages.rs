//! What is known of each page over all nodes, besides its views and copies: grants, stores, locks of programs.
//!
//! Promises: a page that a program locked does not leave, and no other program locks it. It must never look at a view.

use super::scenario::Layout;
use trellis_cluster_protocol::{Nanoseconds, PageIndex, PageRange};

/// See the module.
pub(super) struct Pages {
    layout: Layout,
    pages: Vec<Page>,
}

#[derive(Clone, Copy, Default)]
struct Page {
    /// The node that stored last.
    writer: u16,
    /// How often it was granted.
    grants: u32,
    lock: Option<Locked>,
}

/// A page that a program locked.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Locked {
    node: u16,
    call: u32,
    until: Nanoseconds,
}

impl Pages {
    pub(super) fn new(layout: Layout) -> Pages {
        Pages { layout, pages: vec![Page::default(); layout.places() as usize] }
    }

    /// How often `page` was granted to anybody so far.
    pub(super) fn grants(&self, page: PageIndex) -> u32 {
        self.pages[self.layout.place(page)].grants
    }

    /// These pages were granted once more.
    pub(super) fn granted(&mut self, range: PageRange) {
        range.pages().for_each(|page| self.page(page).grants += 1);
    }

    /// The node that stored to `page` last.
    pub(super) fn writer(&self, page: PageIndex) -> u16 {
        self.pages[self.layout.place(page)].writer
    }

    /// `node` stores to `page`.
    pub(super) fn stored(&mut self, node: u16, page: PageIndex) {
        self.page(page).writer = node;
    }

    /// `call` of a program of `node` has every page of `range` until `until`.
    pub(super) fn lock(
        &mut self,
        node: u16,
        range: PageRange,
        call: u32,
        now: Nanoseconds,
        until: Nanoseconds,
    ) -> Result<(), String> {
        for page in range.pages() {
            let lock = &mut self.page(page).lock;
            if let Some(held) = lock.filter(|held| held.until > now) {
                return Err(format!("node {node} has locked {page}, which node {} locked before", held.node));
            }
            *lock = Some(Locked { node, call, until });
        }
        Ok(())
    }

    pub(super) fn unlock(&mut self, node: u16, range: PageRange, call: u32) {
        for page in range.pages() {
            let lock = &mut self.page(page).lock;
            *lock = lock.filter(|held| (held.node, held.call) != (node, call));
        }
    }

    /// Whether a program of `node` holds the lock of `page`.
    pub(super) fn is_locked_by(&self, node: u16, page: PageIndex, now: Nanoseconds) -> bool {
        let lock = self.pages[self.layout.place(page)].lock;
        lock.is_some_and(|held| held.node == node && held.until > now)
    }

    /// `node` is no more, and holds no locks.
    pub(super) fn remove(&mut self, node: u16) {
        self.pages.iter_mut().for_each(|page| page.lock = page.lock.filter(|held| held.node != node));
    }

    fn page(&mut self, page: PageIndex) -> &mut Page {
        &mut self.pages[self.layout.place(page)]
    }
}
