//! What will happen, in the order of its time.
//!
//! Promises: events come out by time, and at one time in the order in which they were put in. It must never depend on
//! anything but what was put in.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use trellis_cluster_protocol::Nanoseconds;

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The message at this place of the table of messages under way arrives.
    Arrive { envelope: u32 },
    /// A thread goes on with its program.
    Think { node: u16, thread: u8 },
    /// A fault that was noticed before is reported.
    Submit { node: u16, thread: u8 },
    /// A thread that was woken looks again.
    Look { node: u16, thread: u8, ticket: u32 },
    /// A thread waits no longer, for a range or in a barrier of a change, if this is still the time-out of its call.
    GiveUp { node: u16, thread: u8, time_out: u32 },
    /// The time of a held page or of an alarm may be over.
    Due { node: u16 },
    /// A node looks at the clock for its membership.
    Tick { node: u16 },
    /// The timer of a node's link to `peer`.
    Timer { node: u16, peer: u16 },
    /// A datagram arrives.
    Datagram { slot: u32 },
    /// A node stops for ever.
    Crash { node: u16 },
    /// A node stops for a while.
    Pause { node: u16 },
    /// The network falls into two parts for a while.
    Partition,
    /// The connection of `node` to `peer` broke.
    Lost { node: u16, peer: u16 },
    /// No more faults from now on.
    Heal,
    /// A process asks to join.
    Join,
    /// There is a connection between two nodes.
    Connect { node: u16, peer: u16 },
    /// A node that leaves goes on with it.
    Leave { node: u16 },
    /// The coordinator goes on taking pages over.
    Take { node: u16 },
}

impl Event {
    /// The node to which it happens, which may be one that does nothing just now.
    pub(super) fn node(self) -> Option<u16> {
        match self {
            Event::Think { node, .. }
            | Event::Submit { node, .. }
            | Event::Look { node, .. }
            | Event::GiveUp { node, .. }
            | Event::Due { node }
            | Event::Tick { node }
            | Event::Timer { node, .. }
            | Event::Lost { node, .. }
            | Event::Connect { node, .. }
            | Event::Leave { node }
            | Event::Take { node } => Some(node),
            _ => None,
        }
    }
}

#[derive(Clone, Copy)]
struct Entry {
    time: Nanoseconds,
    order: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        (self.time, self.order).cmp(&(other.time, other.order))
    }
}

/// The events to come.
pub(super) struct Queue {
    heap: BinaryHeap<Reverse<Entry>>,
    order: u64,
    /// Events that go on for ever by themselves.
    background: usize,
}

impl Queue {
    pub(super) fn new() -> Queue {
        Queue { heap: BinaryHeap::with_capacity(1024), order: 0, background: 0 }
    }

    pub(super) fn put(&mut self, time: Nanoseconds, event: Event) {
        self.order += 1;
        self.background += usize::from(is_background(event));
        self.heap.push(Reverse(Entry { time, order: self.order, event }));
    }

    pub(super) fn take(&mut self) -> Option<(Nanoseconds, Event)> {
        let Reverse(entry) = self.heap.pop()?;
        self.background -= usize::from(is_background(entry.event));
        Some((entry.time, entry.event))
    }

    /// Whether nothing is left but what goes on for ever by itself.
    pub(super) fn is_idle(&self) -> bool {
        self.heap.len() == self.background
    }
}

fn is_background(event: Event) -> bool {
    matches!(event, Event::Tick { .. } | Event::Timer { .. })
}

#[cfg(test)]
mod tests {
    use super::{Event, Queue};

    #[test]
    fn events_come_by_time_and_then_by_order() {
        let mut queue = Queue::new();
        for (time, node) in [(5, 1), (3, 2), (5, 0), (3, 9), (4, 4)] {
            queue.put(time, Event::Leave { node });
        }
        queue.put(1, Event::Tick { node: 7 });
        assert!(!queue.is_idle());
        let nodes = std::iter::from_fn(|| queue.take()).filter_map(|(_, event)| match event {
            Event::Leave { node } => Some(node),
            _ => None,
        });
        assert_eq!(nodes.collect::<Vec<_>>(), [2, 9, 4, 1, 0]);
    }
}
