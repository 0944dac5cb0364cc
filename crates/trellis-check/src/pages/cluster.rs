//! The state of a small cluster: views, memories, threads and messages under way.
//!
//! Promises: two clusters that differ in nothing that matters are written as the same bytes. It
//! must never change a view without looking at the views of all other nodes.

use super::{Instance, Operation, PageSet};
use trellis_protocol::Access;

/// Most nodes of an instance.
pub const NODES_MAX: usize = 6;
/// Most pages of an instance.
pub const PAGES_MAX: usize = 4;
/// Most threads of a node.
pub const THREADS_MAX: usize = 2;
/// Most messages under way at the same time.
const MESSAGES_MAX: usize = 40;

/// What a node's memory of a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Memory {
    /// Nothing: there is no memory yet.
    #[default]
    Absent,
    /// Something older than the last store.
    Old,
    /// What was stored last by anybody; zero if nobody stored.
    Last,
}

/// One page at one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Place {
    pub(super) access: Access,
    pub(super) memory: Memory,
    /// A thread for which the page was granted has run on and nobody said so yet.
    pub(super) owes_resume: bool,
    /// The protocol asked to be told.
    pub(super) is_wanted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Activity {
    #[default]
    Idle,
    /// The access failed; the protocol does not know yet.
    Faulted,
    Waiting,
    Woken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Thread {
    pub(super) activity: Activity,
    /// Meaningless, and equal to the default, while idle.
    pub(super) operation: Operation,
    pub(super) left: u8,
}

impl Thread {
    /// The operation is done.
    pub(super) fn retire(&mut self) {
        debug_assert!(self.left > 0);
        *self = Thread { left: self.left - 1, ..Thread::default() };
    }
}

#[derive(Clone)]
pub(super) struct Cluster {
    pub(super) nodes: [u32; NODES_MAX],
    pub(super) places: [[Place; PAGES_MAX]; NODES_MAX],
    pub(super) threads: [[Thread; THREADS_MAX]; NODES_MAX],
    pub(super) prefetches: [u8; NODES_MAX],
    pub(super) impatience: [u8; NODES_MAX],
    /// Pages to which somebody stored.
    stored: PageSet,
    messages: [u32; MESSAGES_MAX],
    message_count: u8,
}

impl Cluster {
    pub(super) fn new(instance: &Instance, start: &[u32]) -> Cluster {
        let mut cluster = Cluster {
            nodes: [0; NODES_MAX],
            places: Default::default(),
            threads: Default::default(),
            prefetches: [0; NODES_MAX],
            impatience: [0; NODES_MAX],
            stored: 0,
            messages: [0; MESSAGES_MAX],
            message_count: 0,
        };
        for (node, &number) in start.iter().enumerate() {
            cluster.nodes[node] = number;
            cluster.prefetches[node] = instance.prefetches;
            cluster.impatience[node] = instance.impatience;
            for thread in &mut cluster.threads[node][..usize::from(instance.threads)] {
                thread.left = instance.operations;
            }
        }
        cluster
    }

    pub(super) fn write(&self, instance: &Instance, bytes: &mut Vec<u8>) {
        for node in 0..usize::from(instance.nodes) {
            bytes.extend_from_slice(&self.nodes[node].to_le_bytes());
            for place in &self.places[node][..instance.pages.len()] {
                bytes.push(
                    place.access as u8
                        | (place.memory as u8) << 2
                        | u8::from(place.owes_resume) << 4
                        | u8::from(place.is_wanted) << 5,
                );
            }
            for thread in &self.threads[node][..usize::from(instance.threads)] {
                let operation = thread.operation;
                bytes.push(thread.left);
                bytes.push(
                    thread.activity as u8
                        | operation.page << 2
                        | u8::from(operation.write) << 5
                        | u8::from(operation.wide) << 6
                        | u8::from(operation.asks_write) << 7,
                );
            }
            bytes.push(self.prefetches[node] | self.impatience[node] << 4);
        }
        bytes.push(self.stored);
        for message in self.messages() {
            bytes.extend_from_slice(&message.to_le_bytes()[..3]);
        }
    }

    pub(super) fn read(instance: &Instance, bytes: &[u8]) -> Cluster {
        let mut cluster = Cluster::new(instance, &[]);
        let mut bytes = bytes.iter().copied();
        let mut byte = || bytes.next().expect("a state as it was written");
        for node in 0..usize::from(instance.nodes) {
            cluster.nodes[node] = u32::from_le_bytes([byte(), byte(), byte(), byte()]);
            for place in &mut cluster.places[node][..instance.pages.len()] {
                let packed = byte();
                place.access = [Access::None, Access::Read, Access::Write][usize::from(packed & 3)];
                let memory = usize::from(packed >> 2 & 3);
                place.memory = [Memory::Absent, Memory::Old, Memory::Last][memory];
                place.owes_resume = packed >> 4 & 1 != 0;
                place.is_wanted = packed >> 5 & 1 != 0;
            }
            for thread in &mut cluster.threads[node][..usize::from(instance.threads)] {
                thread.left = byte();
                let packed = byte();
                use Activity::{Faulted, Idle, Waiting, Woken};
                thread.activity = [Idle, Faulted, Waiting, Woken][usize::from(packed & 3)];
                thread.operation = Operation {
                    page: packed >> 2 & 7,
                    write: packed >> 5 & 1 != 0,
                    wide: packed >> 6 & 1 != 0,
                    asks_write: packed >> 7 & 1 != 0,
                };
            }
            let left = byte();
            cluster.prefetches[node] = left & 15;
            cluster.impatience[node] = left >> 4;
        }
        cluster.stored = byte();
        while let Some(low) = bytes.next() {
            let mut rest = || bytes.next().expect("a state as it was written");
            let message = u32::from_le_bytes([low, rest(), rest(), 0]);
            cluster.messages[usize::from(cluster.message_count)] = message;
            cluster.message_count += 1;
        }
        cluster
    }

    /// Messages under way, by number, ascending.
    pub(super) fn messages(&self) -> &[u32] {
        &self.messages[..usize::from(self.message_count)]
    }

    pub(super) fn add_message(&mut self, number: u32) {
        let count = usize::from(self.message_count);
        assert!(count < MESSAGES_MAX && number < 1 << 24, "more messages than an instance can have");
        let at = self.messages[..count].partition_point(|&other| other <= number);
        self.messages.copy_within(at..count, at + 1);
        self.messages[at] = number;
        self.message_count += 1;
    }

    pub(super) fn remove_message(&mut self, number: u32) {
        let at = self.messages().iter().position(|&other| other == number);
        let at = at.expect("a message under way");
        self.messages.copy_within(at + 1..usize::from(self.message_count), at);
        self.message_count -= 1;
    }

    /// Whether a thread of `node` was woken for `page` and did not run yet.
    pub(super) fn is_about_to_look(&self, node: usize, page: usize) -> bool {
        self.threads[node]
            .iter()
            .any(|thread| thread.activity == Activity::Woken && usize::from(thread.operation.page) == page)
    }

    pub(super) fn holds_last_value(&self, node: usize, page: usize) -> bool {
        self.places[node][page].memory == Memory::Last
    }

    /// The last value arrives in the memory of `node`.
    pub(super) fn copy(&mut self, node: usize, page: usize) {
        self.places[node][page].memory = Memory::Last;
    }

    pub(super) fn load(&self, node: usize, page: usize) -> Result<(), String> {
        match self.places[node][page].memory {
            Memory::Last => Ok(()),
            _ => Err(format!("node {node} loads from page {page} and misses the last store")),
        }
    }

    pub(super) fn store(&mut self, node: usize, page: usize) {
        for places in &mut self.places {
            if places[page].memory == Memory::Last {
                places[page].memory = Memory::Old;
            }
        }
        self.places[node][page].memory = Memory::Last;
        self.stored |= 1 << page;
    }

    pub(super) fn revoke(&mut self, node: usize, pages: PageSet) {
        for page in members(pages) {
            self.places[node][page].access = Access::None;
        }
    }

    pub(super) fn downgrade(&mut self, node: usize, pages: PageSet) -> Result<(), String> {
        for page in members(pages) {
            if self.places[node][page].access == Access::None {
                return Err(format!("node {node} downgrades page {page}, which it has not mapped"));
            }
            self.places[node][page].access = Access::Read;
        }
        Ok(())
    }

    pub(super) fn install(&mut self, node: usize, pages: PageSet, access: Access, zero: bool) -> Result<(), String> {
        for page in members(pages) {
            let place = &mut self.places[node][page];
            if place.access != Access::None {
                return Err(format!("node {node} installs page {page}, which it has mapped"));
            }
            if place.memory == Memory::Absent {
                if !zero {
                    return Err(format!("node {node} installs page {page} without any bytes"));
                }
                let is_zero = self.stored >> page & 1 == 0;
                place.memory = if is_zero { Memory::Last } else { Memory::Old };
            }
            place.access = access;
            self.check(page)?;
        }
        Ok(())
    }

    pub(super) fn upgrade(&mut self, node: usize, pages: PageSet) -> Result<(), String> {
        for page in members(pages) {
            let access = &mut self.places[node][page].access;
            if *access != Access::Read {
                return Err(format!("node {node} upgrades page {page}, which allows {access:?}"));
            }
            *access = Access::Write;
            self.check(page)?;
        }
        Ok(())
    }

    pub(super) fn wake(&mut self, node: usize, pages: PageSet) {
        for thread in &mut self.threads[node] {
            let is_meant = pages >> thread.operation.page & 1 != 0;
            if thread.activity == Activity::Waiting && is_meant {
                thread.activity = Activity::Woken;
            }
        }
    }

    /// Single writer or many readers.
    fn check(&self, page: usize) -> Result<(), String> {
        let holders = |least: Access| (0..NODES_MAX).filter(move |&node| self.places[node][page].access >= least);
        let Some(writer) = holders(Access::Write).next() else { return Ok(()) };
        match holders(Access::Read).find(|&other| other != writer) {
            None => Ok(()),
            Some(other) => Err(format!(
                "node {writer} may store to page {page} while node {other} may {} it",
                match self.places[other][page].access {
                    Access::Write => "store to",
                    _ => "load from",
                }
            )),
        }
    }
}

/// The places in a set of pages.
fn members(pages: PageSet) -> impl Iterator<Item = usize> {
    (0..PAGES_MAX).filter(move |&page| pages >> page & 1 != 0)
}
