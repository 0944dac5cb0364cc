//! The state of a small cluster: views, memories, threads and messages under way.
//!
//! Promises: two clusters whose differences do not matter are written as the same bytes. A version is written as one of
//! three: none, an old one, the last. It must never forget a difference that matters.

use super::actions::Operation;
use super::{Instance, PageSet};
use crate::model::{ABSENT, Layout, Memory};
use trellis_cluster_protocol::coherence::Purpose;
use trellis_cluster_protocol::{Access, PageIndex, PageRange};

/// The maximum number of nodes of an instance.
pub const NODES_MAX: usize = 6;
/// The maximum number of pages of an instance.
pub const PAGES_MAX: usize = 4;
/// The maximum number of threads of a node.
pub const THREADS_MAX: usize = 2;
/// The maximum number of messages under way at the same time.
const MESSAGES_MAX: usize = 40;

/// The pages of an instance.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    pages: [u32; PAGES_MAX],
    count: usize,
}

impl Used {
    fn of(instance: &Instance) -> Used {
        let mut pages = [0; PAGES_MAX];
        let count = instance.pages.len();
        pages[..count].copy_from_slice(&instance.pages);
        Used { pages, count }
    }

    pub(super) fn page(self, place: usize) -> PageIndex {
        PageIndex(self.pages[place])
    }
}

impl Layout for Used {
    fn places(self) -> usize {
        self.count
    }

    fn place(self, page: PageIndex) -> usize {
        self.pages[..self.count].iter().position(|&other| other == page.0).expect("a page of the instance")
    }

    fn has(self, range: PageRange) -> bool {
        range.pages().all(|page| self.pages[..self.count].contains(&page.0))
    }
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

pub(super) struct Cluster {
    pub(super) nodes: [u32; NODES_MAX],
    pub(super) memory: Memory<Used>,
    /// With [`Instance::silent`]: the pages that each node lets go when their time is over. Others it may let go, but
    /// need not.
    pub(super) asked_for: [PageSet; NODES_MAX],
    /// One more than an instance has, for the thread that takes pages over.
    pub(super) threads: [[Thread; THREADS_MAX + 1]; NODES_MAX],
    pub(super) prefetches: [u8; NODES_MAX],
    pub(super) time_outs: [u8; NODES_MAX],
    /// How often each node may still ask again for a locked page while other actions are possible.
    pub(super) spins: [u8; NODES_MAX],
    /// The steps of the last node that are over. From the first one on none of its threads uses its views any more.
    pub(super) leaving: u8,
    /// The number in `take_overs` of the pages that are taken over from that node, and whether all of them were.
    pub(super) take_over: u32,
    pub(super) is_taken: bool,
    /// The nodes that were told that it departs, and those that were told that it is gone; one bit each.
    pub(super) departed: u8,
    pub(super) gone: u8,
    /// The progress of the change of the protocol; after it, the threads do the second half of their operations.
    pub(super) change: Progress,
    messages: [u32; MESSAGES_MAX],
    message_count: u8,
}

impl Clone for Cluster {
    fn clone(&self) -> Cluster {
        Cluster { memory: self.memory.clone(), ..*self }
    }

    /// Allocates nothing and copies every field once, because the explorer does this for every action.
    fn clone_from(&mut self, other: &Cluster) {
        self.memory.clone_from(&other.memory);
        self.nodes = other.nodes;
        self.asked_for = other.asked_for;
        self.threads = other.threads;
        self.prefetches = other.prefetches;
        self.time_outs = other.time_outs;
        self.spins = other.spins;
        (self.leaving, self.take_over, self.is_taken) = (other.leaving, other.take_over, other.is_taken);
        (self.departed, self.gone, self.change) = (other.departed, other.gone, other.change);
        let count = usize::from(other.message_count);
        self.messages[..count].copy_from_slice(&other.messages[..count]);
        self.message_count = other.message_count;
    }
}

impl Cluster {
    pub(super) fn new(instance: &Instance, start: &[u32]) -> Cluster {
        let mut cluster = Cluster {
            nodes: [0; NODES_MAX],
            memory: Memory::new(Used::of(instance), usize::from(instance.nodes), ()),
            asked_for: [0; NODES_MAX],
            threads: Default::default(),
            prefetches: [0; NODES_MAX],
            time_outs: [0; NODES_MAX],
            spins: [0; NODES_MAX],
            leaving: 0,
            take_over: 0,
            is_taken: false,
            departed: 0,
            gone: 0,
            change: Progress::default(),
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
            for (place, (view, version, last)) in self.memory.row(node as u16).enumerate() {
                let version = if version == ABSENT { 0 } else { 1 + u8::from(version == last) };
                bytes.push(view as u8 | version << 2 | (self.asked_for[node] >> place & 1) << 4);
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
            bytes.push(u8::from(self.change.is_begun));
            bytes.push(self.change.done);
        }
        let stored = self.memory.row(0).enumerate().map(|(place, (_, _, last))| u8::from(last > 0) << place);
        bytes.push(stored.sum());
        for message in self.messages() {
            bytes.extend_from_slice(&message.to_le_bytes()[..3]);
        }
    }

    /// Becomes the state that was written; `travel` has the pages whose bytes go with a message.
    pub(super) fn read(&mut self, instance: &Instance, bytes: &[u8], travel: impl Fn(u32) -> Option<PageRange>) {
        let cluster = self;
        cluster.memory.clear();
        cluster.message_count = 0;
        let mut places = [[0; PAGES_MAX]; NODES_MAX];
        let mut bytes = bytes.iter().copied();
        let mut byte = || bytes.next().expect("a state as it was written");
        for (node, places) in places[..usize::from(instance.nodes)].iter_mut().enumerate() {
            cluster.nodes[node] = u32::from_le_bytes([byte(), byte(), byte(), byte()]);
            places[..instance.pages.len()].fill_with(&mut byte);
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
        let stored = byte();
        let retired = instance.leaver().filter(|_| cluster.leaving > 0);
        for (node, places) in places[..usize::from(instance.nodes)].iter().enumerate() {
            cluster.asked_for[node] = 0;
            for (place, packed) in places[..instance.pages.len()].iter().enumerate() {
                let view = [Access::None, Access::Read, Access::Write][usize::from(packed & 3)];
                let last = u32::from(stored >> place & 1);
                // Versions that are not the last are all alike.
                let version = [ABSENT, 0, last][usize::from(packed >> 2 & 3)];
                cluster.memory.restore(node as u16, place, view, retired == Some(node), version, last);
                cluster.asked_for[node] |= (packed >> 4 & 1) << place;
            }
        }
        while let Some(low) = bytes.next() {
            let mut rest = || bytes.next().expect("a state as it was written");
            let message = u32::from_le_bytes([low, rest(), rest(), 0]);
            cluster.messages[usize::from(cluster.message_count)] = message;
            cluster.message_count += 1;
            travel(message).into_iter().for_each(|range| cluster.memory.set_out(range));
        }
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

    /// Node `node` may store to `pages` now: a thread that waits for one of them at another node was overtaken.
    pub(super) fn overtake(&mut self, node: usize, pages: PageRange, bound: u8) -> Result<(), String> {
        use Activity::{Locking, Waiting, Woken};
        let layout = self.memory.layout();
        for (other, threads) in self.threads.iter_mut().enumerate().filter(|(other, _)| *other != node) {
            for thread in threads {
                let waits = matches!(thread.activity, Waiting | Woken | Locking);
                if !waits || !pages.contains(layout.page(usize::from(thread.operation.page))) {
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
}

/// The indexes in a set of pages.
pub(super) fn members(pages: PageSet) -> impl Iterator<Item = usize> {
    (0..PAGES_MAX).filter(move |&page| pages >> page & 1 != 0)
}
