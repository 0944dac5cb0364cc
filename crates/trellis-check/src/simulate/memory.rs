//! What every node's views allow and its memories hold, and what must be so.
//!
//! Promises: after every change of a view there is one writer or any number of readers; a load sees the last store; the
//! bytes of a grant are the last ones when they are read out and still are when they arrive; nobody stores to a page
//! whose bytes travel; a page that a program locked does not leave. Every other outcome is an error that says which. It
//! must never repair anything.

use super::scenario::Layout;
use crate::views::{Change, check_change, check_read_out};
use trellis_cluster_protocol::{Access, Nanoseconds, PageIndex, PageRange};

/// There are no bytes yet.
const ABSENT: u32 = u32::MAX;

/// All views and memories. What a page holds is the number of stores that made it so.
pub(super) struct Memories {
    layout: Layout,
    places: usize,
    views: Vec<Access>,
    /// Nodes whose programs are done and which are leaving.
    retired: Vec<u16>,
    values: Vec<u32>,
    /// Grants with bytes that are on their way from a node, by node and page.
    travelling: Vec<u16>,
    shared: Vec<Shared>,
}

/// What is known of one page over all nodes.
#[derive(Clone, Copy, Default)]
struct Shared {
    last: u32,
    writers: u16,
    holders: u16,
    /// Who stored last.
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

impl Memories {
    pub(super) fn new(nodes: u16, layout: Layout) -> Memories {
        let places = layout.places() as usize;
        let count = usize::from(nodes) * places;
        Memories {
            layout,
            places,
            views: vec![Access::None; count],
            retired: Vec::new(),
            values: vec![ABSENT; count],
            travelling: vec![0; count],
            shared: vec![Shared::default(); places],
        }
    }

    pub(super) fn view(&self, node: u16, page: PageIndex) -> Access {
        self.views[self.at(node, page)]
    }

    /// How often `page` was granted to anybody so far.
    pub(super) fn grants(&self, page: PageIndex) -> u32 {
        self.shared[self.layout.place(page)].grants
    }

    /// The bytes that a thread of `node`, whose view allows it, sees.
    pub(super) fn load(&self, node: u16, page: PageIndex) -> Result<u32, String> {
        let (value, last) = (self.values[self.at(node, page)], self.shared[self.layout.place(page)].last);
        if value == last {
            Ok(value)
        } else {
            Err(format!("node {node} loads {} from {page}, but the last store put {last}", shown(value)))
        }
    }

    /// A thread of `node`, whose view allows it, puts a value that nobody put before.
    pub(super) fn store(&mut self, node: u16, page: PageIndex) -> Result<u32, String> {
        let at = self.at(node, page);
        if self.travelling[at] > 0 {
            return Err(format!("node {node} stores to {page} while its bytes are on their way to another node"));
        }
        self.load(node, page)?;
        let shared = &mut self.shared[self.layout.place(page)];
        shared.last += 1;
        shared.writer = node;
        self.values[at] = shared.last;
        Ok(shared.last)
    }

    /// Who stored to `page` last.
    pub(super) fn writer(&self, page: PageIndex) -> u16 {
        self.shared[self.layout.place(page)].writer
    }

    pub(super) fn revoke(&mut self, node: u16, range: PageRange, now: Nanoseconds) -> Result<(), String> {
        self.check(range)?;
        for page in range.pages() {
            self.check_unlocked(node, page, now)?;
            self.change(node, page, Access::None)?;
        }
        Ok(())
    }

    pub(super) fn downgrade(&mut self, node: u16, range: PageRange, now: Nanoseconds) -> Result<(), String> {
        self.check(range)?;
        for page in range.pages() {
            self.check_unlocked(node, page, now)?;
            check_change(node, page.0, self.view(node, page), Change::Downgrade)?;
            self.change(node, page, Access::Read)?;
        }
        Ok(())
    }

    pub(super) fn install(&mut self, node: u16, range: PageRange, access: Access, zero: bool) -> Result<(), String> {
        self.check(range)?;
        for page in range.pages() {
            check_change(node, page.0, self.view(node, page), Change::Install)?;
            let at = self.at(node, page);
            if self.values[at] == ABSENT {
                if !zero {
                    return Err(format!("node {node} installs {page} without any bytes"));
                }
                self.values[at] = 0;
            }
            self.shared[self.layout.place(page)].grants += 1;
            self.change(node, page, access)?;
        }
        Ok(())
    }

    pub(super) fn upgrade(&mut self, node: u16, range: PageRange) -> Result<(), String> {
        self.check(range)?;
        for page in range.pages() {
            check_change(node, page.0, self.view(node, page), Change::Upgrade)?;
            self.shared[self.layout.place(page)].grants += 1;
            self.change(node, page, Access::Write)?;
        }
        Ok(())
    }

    /// The moment at which the bytes of a grant count as read.
    pub(super) fn read_out(&mut self, node: u16, range: PageRange, write: bool) -> Result<(), String> {
        self.check(range)?;
        for page in range.pages() {
            let at = self.at(node, page);
            check_read_out(node, page.0, self.views[at], write)?;
            if self.values[at] != self.shared[self.layout.place(page)].last {
                return Err(format!("node {node} sends bytes of {page} that are not the last ones stored"));
            }
            self.travelling[at] += 1;
        }
        Ok(())
    }

    /// The bytes arrive; they are taken from where they lie only now.
    pub(super) fn arrive(&mut self, from: u16, to: u16, range: PageRange) -> Result<(), String> {
        for page in range.pages() {
            let (source, target) = (self.at(from, page), self.at(to, page));
            if self.values[source] != self.shared[self.layout.place(page)].last {
                return Err(format!("the bytes of {page} changed on their way from node {from} to node {to}"));
            }
            self.values[target] = self.values[source];
            self.travelling[source] -= 1;
        }
        Ok(())
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
        self.check(range)?;
        for page in range.pages() {
            if self.view(node, page) != Access::Write {
                return Err(format!("node {node} has locked {page}, which it may not store to"));
            }
            let lock = &mut self.shared[self.layout.place(page)].lock;
            if let Some(held) = lock.filter(|held| held.until > now) {
                return Err(format!("node {node} has locked {page}, which node {} locked before", held.node));
            }
            *lock = Some(Locked { node, call, until });
        }
        Ok(())
    }

    pub(super) fn unlock(&mut self, node: u16, range: PageRange, call: u32) {
        for page in range.pages() {
            let lock = &mut self.shared[self.layout.place(page)].lock;
            if lock.is_some_and(|held| (held.node, held.call) == (node, call)) {
                *lock = None;
            }
        }
    }

    /// Whether a program of `node` holds the lock of `page`.
    pub(super) fn is_locked_by(&self, node: u16, page: PageIndex, now: Nanoseconds) -> bool {
        let lock = self.shared[self.layout.place(page)].lock;
        lock.is_some_and(|held| held.node == node && held.until > now)
    }

    /// `node` is about to leave: none of its threads loads any more, though its views may still allow it.
    pub(super) fn retire(&mut self, node: u16) {
        self.retired.push(node);
    }

    /// `node` is no more: it neither loads nor stores. What it sent is on its way.
    pub(super) fn remove(&mut self, node: u16) {
        for place in 0..self.places {
            let at = usize::from(node) * self.places + place;
            let before = std::mem::take(&mut self.views[at]);
            let shared = &mut self.shared[place];
            shared.writers -= u16::from(before == Access::Write);
            shared.holders -= u16::from(before != Access::None);
            shared.lock = shared.lock.filter(|held| held.node != node);
        }
    }

    fn change(&mut self, node: u16, page: PageIndex, to: Access) -> Result<(), String> {
        let at = self.at(node, page);
        let before = std::mem::replace(&mut self.views[at], to);
        let shared = &mut self.shared[self.layout.place(page)];
        shared.writers = shared.writers + u16::from(to == Access::Write) - u16::from(before == Access::Write);
        shared.holders = shared.holders + u16::from(to != Access::None) - u16::from(before != Access::None);
        if shared.writers == 0 || shared.holders == 1 {
            return Ok(());
        }
        let may = |least| -> Vec<usize> {
            let place = self.layout.place(page);
            let nodes = 0..self.views.len() / self.places;
            nodes.filter(|node| self.views[node * self.places + place] >= least).collect()
        };
        let (writers, readers) = (may(Access::Write), may(Access::Read));
        let others = |node: &&usize| !writers.contains(node) && !self.retired.contains(&(**node as u16));
        if writers.len() == 1 && readers.iter().filter(others).count() == 0 {
            return Ok(());
        }
        Err(format!("nodes {writers:?} may store to {page} while nodes {readers:?} may load from it"))
    }

    fn check_unlocked(&self, node: u16, page: PageIndex, now: Nanoseconds) -> Result<(), String> {
        if self.is_locked_by(node, page, now) {
            return Err(format!("{page} leaves node {node} while a program of that node has locked it"));
        }
        Ok(())
    }

    /// Whether these are pages that the programs of this simulation use; others nobody can have asked for.
    fn check(&self, range: PageRange) -> Result<(), String> {
        if self.layout.has(range) {
            Ok(())
        } else {
            Err(format!("an effect on {range}, of which nobody asked for all"))
        }
    }

    fn at(&self, node: u16, page: PageIndex) -> usize {
        usize::from(node) * self.places + self.layout.place(page)
    }
}

fn shown(value: u32) -> String {
    if value == ABSENT { "nothing".to_string() } else { value.to_string() }
}
