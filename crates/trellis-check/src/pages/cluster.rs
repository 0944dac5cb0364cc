//! The state of a small cluster: views, memories, threads and messages under way.
//!
//! Promises: two clusters whose differences do not matter are written as the same bytes. It must never change a view
//! without checking the views of all other nodes.

use super::actions::Operation;
use super::{Instance, PageSet};
use crate::views::{Change, check_change};
use trellis_cluster_protocol::Access;
use trellis_cluster_protocol::coherence::Purpose;

/// The maximum number of nodes of an instance.
pub const NODES_MAX: usize = 6;
/// The maximum number of pages of an instance.
pub const PAGES_MAX: usize = 4;
/// The maximum number of threads of a node.
pub const THREADS_MAX: usize = 2;
/// The maximum number of messages under way at the same time.
const MESSAGES_MAX: usize = 40;

/// The content of a page in a node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Memory {
    /// There is no memory yet.
    #[default]
    Absent,
    /// A value older than the last store.
    Old,
    /// The last value stored by any node; zero before the first store.
    Last,
}

/// One page at one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Place {
    pub(super) access: Access,
    pub(super) memory: Memory,
    /// With [`Instance::silent`]: the node lets the page go when its time is over. Otherwise it may, but need not.
    pub(super) is_asked_for: bool,
}

/// The purposes of alarms.
pub(super) const PURPOSES: [Purpose; 3] = [Purpose::Retry, Purpose::Expiry, Purpose::Threshold];

/// The index of [`Purpose::Retry`].
pub(super) const RETRY: usize = 0;
/// The index of [`Purpose::Threshold`].
pub(super) const THRESHOLD: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Activity {
    #[default]
    Idle,
    /// The access failed; the protocol does not know yet.
    Faulted,
    Waiting,
    Woken,
    /// It asked for a lock.
    Locking,
    /// It has its lock.
    Holding,
    /// The time of its lock is over, and the thread has not noticed yet.
    Expired,
}

const ACTIVITIES: [Activity; 7] = [
    Activity::Idle,
    Activity::Faulted,
    Activity::Waiting,
    Activity::Woken,
    Activity::Locking,
    Activity::Holding,
    Activity::Expired,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Thread {
    pub(super) activity: Activity,
    /// Meaningless, and equal to the default, while idle.
    pub(super) operation: Operation,
    pub(super) left: u8,
    /// How often another node was given the right to store to the awaited page. Counted if the instance bounds it.
    pub(super) overtaken: u8,
}

/// The progress of a change of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Progress {
    /// The threads have met at the first barrier.
    pub(super) is_begun: bool,
    /// The nodes that have changed, one bit each. The threads go on when all have.
    pub(super) done: u8,
}

impl Place {
    fn unpacked(packed: u8) -> Place {
        let memory = usize::from(packed >> 2 & 3);
        Place {
            access: [Access::None, Access::Read, Access::Write][usize::from(packed & 3)],
            memory: [Memory::Absent, Memory::Old, Memory::Last][memory],
            is_asked_for: packed >> 4 != 0,
        }
    }
}

impl Thread {
    fn unpacked(first: u8, second: u8) -> Thread {
        let operation = Operation {
            page: second & 15,
            lock: second >> 4 & 1 != 0,
            write: second >> 5 & 1 != 0,
            wide: second >> 6 & 1 != 0,
            asks_write: second >> 7 & 1 != 0,
        };
        Thread { activity: ACTIVITIES[usize::from(first >> 4)], operation, left: first & 15, overtaken: 0 }
    }

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
    /// One more than an instance has, for the thread that takes pages over.
    pub(super) threads: [[Thread; THREADS_MAX + 1]; NODES_MAX],
    pub(super) prefetches: [u8; NODES_MAX],
    pub(super) time_outs: [u8; NODES_MAX],
    /// How often each node may still ask again for a locked page while other actions are possible.
    pub(super) spins: [u8; NODES_MAX],
    /// The steps of the last node that are over. From the first one on none of its threads uses its views any more.
    pub(super) leaving: u8,
    /// The node that may leave, if any.
    leaver: Option<usize>,
    /// The number in `take_overs` of the pages that are taken over from that node, and whether all of them were.
    pub(super) take_over: u32,
    pub(super) is_taken: bool,
    /// The nodes that were told that it departs, and those that were told that it is gone; one bit each.
    pub(super) departed: u8,
    pub(super) gone: u8,
    /// The progress of the change of the protocol; after it, the threads do the second half of their operations.
    pub(super) change: Progress,
    /// Pages that were stored to.
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
            time_outs: [0; NODES_MAX],
            spins: [0; NODES_MAX],
            leaving: 0,
            leaver: instance.leaver(),
            take_over: 0,
            is_taken: false,
            departed: 0,
            gone: 0,
            change: Progress::default(),
            stored: 0,
            messages: [0; MESSAGES_MAX],
            message_count: 0,
        };
        for (node, &number) in start.iter().enumerate() {
            cluster.nodes[node] = number;
            cluster.prefetches[node] = instance.prefetches;
            cluster.time_outs[node] = instance.time_outs;
            cluster.spins[node] = instance.spins;
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
                bytes.push(place.access as u8 | (place.memory as u8) << 2 | u8::from(place.is_asked_for) << 4);
            }
            for thread in &self.threads[node][..instance.threads_of(node)] {
                let operation = thread.operation;
                bytes.push(thread.left | (thread.activity as u8) << 4);
                bytes.push(
                    operation.page
                        | u8::from(operation.lock) << 4
                        | u8::from(operation.write) << 5
                        | u8::from(operation.wide) << 6
                        | u8::from(operation.asks_write) << 7,
                );
                if instance.overtaken_max.is_some() {
                    bytes.push(thread.overtaken);
                }
            }
            bytes.push(self.prefetches[node] | self.time_outs[node] << 4);
            if instance.has_layers() {
                bytes.push(self.spins[node]);
            }
        }
        if instance.leaver {
            let take_over = u8::try_from(self.take_over).expect("few pages are left behind");
            bytes.extend_from_slice(&[self.leaving, take_over, u8::from(self.is_taken), self.departed, self.gone]);
        }
        if instance.change.is_some() {
            bytes.extend_from_slice(&[u8::from(self.change.is_begun), self.change.done]);
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
                *place = Place::unpacked(byte());
            }
            for thread in &mut cluster.threads[node][..instance.threads_of(node)] {
                *thread = Thread::unpacked(byte(), byte());
                if instance.overtaken_max.is_some() {
                    thread.overtaken = byte();
                }
            }
            let left = byte();
            cluster.prefetches[node] = left & 15;
            cluster.time_outs[node] = left >> 4;
            if instance.has_layers() {
                cluster.spins[node] = byte();
            }
        }
        if instance.leaver {
            (cluster.leaving, cluster.take_over) = (byte(), u32::from(byte()));
            (cluster.is_taken, cluster.departed, cluster.gone) = (byte() != 0, byte(), byte());
        }
        if instance.change.is_some() {
            cluster.change = Progress { is_begun: byte() != 0, done: byte() };
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

    /// Whether every thread has done all its operations.
    pub(super) fn is_at_rest(&self) -> bool {
        self.threads.iter().flatten().all(|thread| thread.activity == Activity::Idle && thread.left == 0)
    }

    /// Whether a thread of `node` was woken for `page` and has not run yet.
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
            let access = &mut self.places[node][page].access;
            check_change(node, page, *access, Change::Downgrade)?;
            *access = Access::Read;
        }
        Ok(())
    }

    pub(super) fn install(&mut self, node: usize, pages: PageSet, access: Access, zero: bool) -> Result<(), String> {
        for page in members(pages) {
            let place = &mut self.places[node][page];
            check_change(node, page, place.access, Change::Install)?;
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
            check_change(node, page, *access, Change::Upgrade)?;
            *access = Access::Write;
            self.check(page)?;
        }
        Ok(())
    }

    /// Node `node` may store to `pages` now: a thread that waits for one of them at another node was overtaken.
    pub(super) fn overtake(&mut self, node: usize, pages: PageSet, bound: u8) -> Result<(), String> {
        use Activity::{Locking, Waiting, Woken};
        for (other, threads) in self.threads.iter_mut().enumerate().filter(|(other, _)| *other != node) {
            for thread in threads {
                let waits = matches!(thread.activity, Waiting | Woken | Locking);
                if !waits || pages >> thread.operation.page & 1 == 0 {
                    continue;
                }
                thread.overtaken += 1;
                if thread.overtaken > bound {
                    return Err(format!("a thread of node {other} is overtaken more than {bound} times"));
                }
            }
        }
        Ok(())
    }

    /// Checks the rule: a single writer or many readers.
    fn check(&self, page: usize) -> Result<(), String> {
        let holders = |least: Access| (0..NODES_MAX).filter(move |&node| self.places[node][page].access >= least);
        let Some(writer) = holders(Access::Write).next() else { return Ok(()) };
        let unused = self.leaver.filter(|_| self.leaving > 0);
        let reads = |other: usize| Some(other) != unused || self.places[other][page].access == Access::Write;
        match holders(Access::Read).find(|&other| other != writer && reads(other)) {
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

/// The indexes in a set of pages.
pub(super) fn members(pages: PageSet) -> impl Iterator<Item = usize> {
    (0..PAGES_MAX).filter(move |&page| pages >> page & 1 != 0)
}
