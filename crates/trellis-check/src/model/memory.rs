//! The views and copies of all nodes under sequential consistency, and what must hold in them.
//!
//! A copy is the version that a store made: a number that no other store of the page has. Bytes may go with it.
//!
//! Promises: after every change of a view there is one writer or any number of readers; a load sees the last store; the
//! bytes of a grant are the last ones when they are read out and still are when they arrive; no node stores to a page
//! whose bytes travel. Every breach is an error that names the node and the page. The change is made all the same, so
//! that a caller may go on and see what follows from it. It must never repair anything.

use super::views::{Change, check_change, check_read_out};
use trellis_cluster_protocol::{Access, PageIndex, PageRange};

/// The version of a copy that has no bytes yet.
pub(crate) const ABSENT: u32 = u32::MAX;

/// The pages that a cluster uses, which need not be the first ones of its region.
pub(crate) trait Layout: Copy {
    /// The number of pages that are used.
    fn places(self) -> usize;

    /// The index of `page`, which is used, among those that are.
    fn place(self, page: PageIndex) -> usize;

    /// Whether all pages of `range` are used.
    fn has(self, range: PageRange) -> bool;
}

/// The pages 0, 1, 2 and so on, up to this number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct First(
    /// The number of pages.
    pub(crate) u32,
);

impl Layout for First {
    fn places(self) -> usize {
        self.0 as usize
    }

    fn place(self, page: PageIndex) -> usize {
        page.0 as usize
    }

    fn has(self, range: PageRange) -> bool {
        range.end() <= self.0
    }
}

/// One page at one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied<B> {
    view: Access,
    /// The node is about to leave: its programs load no more, though the view may allow it.
    is_retired: bool,
    version: u32,
    bytes: B,
}

impl<B> Copied<B> {
    fn writes(&self) -> u16 {
        u16::from(self.view == Access::Write)
    }

    /// Whether a thread may use the copy.
    fn holds(&self) -> u16 {
        u16::from(self.view > if self.is_retired { Access::Read } else { Access::None })
    }
}

/// The state of one page over all nodes.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// The version of the last store; zero before the first.
    last: u32,
    writers: u16,
    holders: u16,
    /// Grants with its bytes that are on their way.
    travelling: u16,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Memory<L, B = ()> {
    layout: L,
    /// One row of pages for each node.
    copies: Vec<Copied<B>>,
    pages: Vec<Page>,
    /// Whether breaches are reported.
    is_checked: bool,
}

impl<L: Layout, B: Copy> Clone for Memory<L, B> {
    fn clone(&self) -> Memory<L, B> {
        Memory { copies: self.copies.clone(), pages: self.pages.clone(), ..*self }
    }

    fn clone_from(&mut self, other: &Memory<L, B>) {
        self.copies.clone_from(&other.copies);
        self.pages.clone_from(&other.pages);
        (self.layout, self.is_checked) = (other.layout, other.is_checked);
    }
}

impl<L: Layout, B: Copy + Default> Memory<L, B> {
    /// No node holds anything; `absent` is the content of a copy without bytes.
    pub(crate) fn new(layout: L, nodes: usize, absent: B) -> Memory<L, B> {
        let nothing = Copied { view: Access::None, is_retired: false, version: ABSENT, bytes: absent };
        Memory {
            layout,
            copies: vec![nothing; nodes * layout.places()],
            pages: vec![Page::default(); layout.places()],
            is_checked: true,
        }
    }

    /// Breaches of the contract are not reported from now on.
    pub(crate) fn unchecked(mut self) -> Memory<L, B> {
        self.is_checked = false;
        self
    }

    pub(crate) fn layout(&self) -> L {
        self.layout
    }

    pub(crate) fn is_checked(&self) -> bool {
        self.is_checked
    }

    pub(crate) fn view(&self, node: u16, page: PageIndex) -> Access {
        self.copies[self.at(node, page)].view
    }

    /// The version of a copy, or [`ABSENT`].
    pub(crate) fn version(&self, node: u16, page: PageIndex) -> u32 {
        self.copies[self.at(node, page)].version
    }

    /// The version of the last store to `page`.
    pub(crate) fn last(&self, page: PageIndex) -> u32 {
        self.pages[self.layout.place(page)].last
    }

    pub(crate) fn bytes(&self, node: u16, page: PageIndex) -> &B {
        &self.copies[self.at(node, page)].bytes
    }

    pub(crate) fn bytes_mut(&mut self, node: u16, page: PageIndex) -> &mut B {
        let at = self.at(node, page);
        &mut self.copies[at].bytes
    }

    /// The version that a thread of `node`, whose view allows it, sees.
    pub(crate) fn load(&self, node: u16, page: PageIndex) -> Result<u32, String> {
        let (version, last) = (self.version(node, page), self.last(page));
        let what = || format!("node {node} loads {} from {page}, but the last store put {last}", shown(version));
        self.checked(version == last, what).map(|()| version)
    }

    /// A thread of `node`, whose view allows it, stores. Returns the version.
    pub(crate) fn store(&mut self, node: u16, page: PageIndex) -> Result<u32, String> {
        let (at, place) = (self.at(node, page), self.layout.place(page));
        let Page { last, travelling, .. } = &mut self.pages[place];
        *last += 1;
        let (version, travels) = (*last, *travelling > 0);
        self.copies[at].version = version;
        let what = || format!("node {node} stores to {page} while its bytes are on their way to another node");
        self.checked(!travels, what).map(|()| version)
    }

    pub(crate) fn revoke(&mut self, node: u16, range: PageRange) -> Result<(), String> {
        self.each(range, |memory, page| memory.change(node, page, Access::None))
    }

    pub(crate) fn downgrade(&mut self, node: u16, range: PageRange) -> Result<(), String> {
        self.each(range, |memory, page| {
            let found = memory.check(node, page, Change::Downgrade);
            found.and(memory.change(node, page, Access::Read))
        })
    }

    pub(crate) fn upgrade(&mut self, node: u16, range: PageRange) -> Result<(), String> {
        self.each(range, |memory, page| {
            let found = memory.check(node, page, Change::Upgrade);
            found.and(memory.change(node, page, Access::Write))
        })
    }

    pub(crate) fn install(&mut self, node: u16, range: PageRange, access: Access, zero: bool) -> Result<(), String> {
        self.each(range, |memory, page| {
            let mut found = memory.check(node, page, Change::Install);
            let at = memory.at(node, page);
            if memory.copies[at].version == ABSENT {
                memory.copies[at].version = 0;
                if zero {
                    memory.copies[at].bytes = B::default();
                }
                found = found.and(memory.checked(zero, || format!("node {node} installs {page} without any bytes")));
            }
            found.and(memory.change(node, page, access))
        })
    }

    /// The moment at which the bytes of a grant count as read; the right to store goes with them if `write`.
    pub(crate) fn read_out(&mut self, node: u16, range: PageRange, write: bool) -> Result<(), String> {
        self.each(range, |memory, page| {
            let Copied { view, version, .. } = memory.copies[memory.at(node, page)];
            let found = if memory.is_checked { check_read_out(node, page.0, view, write) } else { Ok(()) };
            let is_last = version == memory.last(page);
            let what = || format!("node {node} sends bytes of {page} that are not the last ones stored");
            memory.set_out(PageRange::one(page));
            found.and(memory.checked(is_last, what))
        })
    }

    /// The bytes of these pages are on their way.
    pub(crate) fn set_out(&mut self, range: PageRange) {
        range.pages().for_each(|page| self.pages[self.layout.place(page)].travelling += 1);
    }

    /// The bytes arrive; they are taken from where they lie only now.
    pub(crate) fn arrive(&mut self, from: u16, to: u16, range: PageRange) -> Result<(), String> {
        self.each(range, |memory, page| {
            let (source, target) = (memory.at(from, page), memory.at(to, page));
            let Copied { version, bytes, .. } = memory.copies[source];
            let copy = &mut memory.copies[target];
            (copy.version, copy.bytes) = (version, bytes);
            let is_mapped = copy.view != Access::None;
            memory.pages[memory.layout.place(page)].travelling -= 1;
            let changed = || format!("the bytes of {page} changed on their way from node {from} to node {to}");
            let mapped = || format!("bytes arrive for {page}, which node {to} has mapped");
            memory.checked(version == memory.last(page), changed).and(memory.checked(!is_mapped, mapped))
        })
    }

    /// No thread of `node` loads any more, though its views may still allow it.
    pub(crate) fn retire(&mut self, node: u16) {
        let places = self.layout.places();
        let row = &mut self.copies[usize::from(node) * places..][..places];
        for (copy, page) in row.iter_mut().zip(&mut self.pages) {
            page.holders -= copy.holds();
            copy.is_retired = true;
            page.holders += copy.holds();
        }
    }

    /// `node` has ended: it neither loads nor stores. Its messages are still on their way.
    pub(crate) fn remove(&mut self, node: u16) {
        for place in 0..self.layout.places() {
            self.turn(node, place, Access::None);
        }
    }

    /// The copies of `node` by place: its view, its version, and the version of the last store.
    pub(crate) fn row(&self, node: u16) -> impl Iterator<Item = (Access, u32, u32)> {
        let places = self.layout.places();
        let row = &self.copies[usize::from(node) * places..][..places];
        row.iter().zip(&self.pages).map(|(copy, page)| (copy.view, copy.version, page.last))
    }

    /// Forgets all pages, to take over a state; [`Memory::restore`] follows for every copy.
    pub(crate) fn clear(&mut self) {
        self.pages.fill(Page::default());
    }

    /// Takes over a copy from a state. Nothing is on its way.
    pub(crate) fn restore(&mut self, node: u16, place: usize, view: Access, is_retired: bool, version: u32, last: u32) {
        let copy = &mut self.copies[usize::from(node) * self.layout.places() + place];
        (copy.view, copy.is_retired, copy.version) = (view, is_retired, version);
        let page = &mut self.pages[place];
        page.last = last;
        page.writers += copy.writes();
        page.holders += copy.holds();
    }

    /// A view allows `to` from now on; returns the page over all nodes.
    fn turn(&mut self, node: u16, place: usize, to: Access) -> Page {
        let copy = &mut self.copies[usize::from(node) * self.layout.places() + place];
        let page = &mut self.pages[place];
        page.writers -= copy.writes();
        page.holders -= copy.holds();
        copy.view = to;
        page.writers += copy.writes();
        page.holders += copy.holds();
        *page
    }

    /// Checks the rule: a single writer or many readers.
    fn change(&mut self, node: u16, page: PageIndex, to: Access) -> Result<(), String> {
        let place = self.layout.place(page);
        let Page { writers, holders, .. } = self.turn(node, place, to);
        self.checked(writers == 0 || holders == 1, || {
            let places = self.layout.places();
            let may = |least: Access| -> Vec<usize> {
                let nodes = 0..self.copies.len() / places;
                nodes.filter(|node| self.copies[node * places + place].view >= least).collect()
            };
            let (writers, readers) = (may(Access::Write), may(Access::Read));
            format!("nodes {writers:?} may store to {page} while nodes {readers:?} may load from it")
        })
    }

    fn check(&self, node: u16, page: PageIndex, change: Change) -> Result<(), String> {
        if self.is_checked { check_change(node, page.0, self.view(node, page), change) } else { Ok(()) }
    }

    fn checked(&self, is_right: bool, what: impl FnOnce() -> String) -> Result<(), String> {
        if is_right || !self.is_checked { Ok(()) } else { Err(what()) }
    }

    /// Changes all pages, and returns the first breach. No node can have asked for an effect on other pages.
    fn each(
        &mut self,
        range: PageRange,
        mut with: impl FnMut(&mut Memory<L, B>, PageIndex) -> Result<(), String>,
    ) -> Result<(), String> {
        if !self.layout.has(range) {
            return Err(format!("an effect on {range}, of which nobody asked for all"));
        }
        let mut found = Ok(());
        for page in range.pages() {
            let next = with(self, page);
            found = found.and(next);
        }
        found
    }

    fn at(&self, node: u16, page: PageIndex) -> usize {
        usize::from(node) * self.layout.places() + self.layout.place(page)
    }
}

fn shown(version: u32) -> String {
    if version == ABSENT { "nothing".to_string() } else { version.to_string() }
}
