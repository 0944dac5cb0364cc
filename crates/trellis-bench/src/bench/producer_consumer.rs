//! `trellis bench producer-consumer`: one node fills a buffer and another empties it, once with locked pages and once
//! with a test-and-set word, in one run.
//!
//! Promises: both ways do the same work on the same items, and every item is checked; a lost or repeated item is an
//! error and never a figure. Packets count as in Sane, MacGregor and Campbell (1990, §4.2): a message is one Ethernet
//! packet, and a page in it two more.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bench::cluster::{ClusterPlan, Common, numbers};
use crate::bench::figures::{Figures, p50};
use crate::bench::node::{Found, Member, Task, WorkError};
use trellis_command::exit::{Ending, Failure};

const EXAMPLES: &str = "\
Examples:
  trellis bench producer-consumer
  trellis bench producer-consumer --pages 10 --work-microseconds 50 --json
  trellis bench producer-consumer --spin 100";

/// Compare locked pages with test-and-set: one node fills a buffer and another empties it
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ProducerConsumerArguments {
    /// Pages of the buffer
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) pages: u32,
    /// Items in each round
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) items: u32,
    /// How long the processor is busy with an item, on each side
    #[arg(long, default_value_t = WORK_MICROSECONDS, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) work_microseconds: u32,
    /// A node that finds the buffer locked asks again after this many microseconds, instead of sleeping
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) spin: Option<u32>,
    /// How often each way is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Enough that a request for the buffer always finds it in use.
pub(crate) const WORK_MICROSECONDS: u32 = 20;

/// How the nodes agree on which of them may use the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum With {
    /// The lock on its pages.
    Lock,
    /// A word that the processor exchanges.
    TestAndSet,
}

/// A node's task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ProducerConsumerTask {
    pub(crate) pages: usize,
    pub(crate) items: usize,
    pub(crate) work_microseconds: u64,
    pub(crate) with: With,
}

/// The cost of an item.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Item {
    pub(crate) us: f64,
    pub(crate) messages: f64,
    pub(crate) packets: f64,
}

const PAGE_BYTES: usize = 4096;
const PAGE_WORDS: usize = PAGE_BYTES / size_of::<u64>();
/// Packets of 1.5 kB for a page of 4 KiB after the first one.
const PACKETS_MORE_PER_PAGE: f64 = 2.0;

/// Runs the subcommand.
pub(crate) fn run(arguments: &ProducerConsumerArguments) -> Ending {
    let task = |with| ProducerConsumerTask {
        pages: arguments.pages as usize,
        items: arguments.items as usize,
        work_microseconds: u64::from(arguments.work_microseconds),
        with,
    };
    let (mut locked, mut tested) = (Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        locked.push(item(&task(With::Lock), arguments.spin, &arguments.common)?);
        tested.push(item(&task(With::TestAndSet), None, &arguments.common)?);
    }
    let (lock, test) = (median(&locked), median(&tested));
    let mut figures = Figures::new("producer-consumer");
    figures.add("lock_us_p50", lock.us, "an item with locked pages (µs, median of the rounds)");
    figures.add("test_and_set_us_p50", test.us, "an item with test-and-set (µs, median of the rounds)");
    figures.add("lock_over_test_and_set", lock.us / test.us, "time, lock / test-and-set");
    figures.add("lock_packets", lock.packets, "packets of an item with locked pages");
    figures.add("test_and_set_packets", test.packets, "packets of an item with test-and-set");
    figures.add("lock_over_test_and_set_packets", lock.packets / test.packets, "packets, lock / test-and-set");
    figures.add("lock_messages", lock.messages, "messages of an item with locked pages");
    figures.add("test_and_set_messages", test.messages, "messages of an item with test-and-set");
    figures.add_value("pages", arguments.pages, "pages of the buffer");
    figures.add_value("work_us", arguments.work_microseconds, "work on an item, on either side (µs)");
    figures.add_value("items", arguments.items, "items in each round");
    figures.add_value("rounds", arguments.rounds, "rounds");
    figures.print(arguments.common.json)
}

/// The median of each number.
pub(crate) fn median(rounds: &[Item]) -> Item {
    let of = |number: fn(&Item) -> f64| p50(rounds.iter().map(number));
    Item { us: of(|item| item.us), messages: of(|item| item.messages), packets: of(|item| item.packets) }
}

/// Does one run on a cluster of its own.
pub(crate) fn item(task: &ProducerConsumerTask, spin: Option<u32>, common: &Common) -> Result<Item, Failure> {
    let protocol = match (task.with, spin) {
        (With::TestAndSet, _) => "dynamic(forward)".to_owned(),
        (With::Lock, None) => "lock(dynamic(forward))".to_owned(),
        (With::Lock, Some(microseconds)) => format!("lock(dynamic(forward), spin {microseconds}us)"),
    };
    let region_bytes = ((task.pages + 1) * PAGE_BYTES).max(64 << 10);
    let settings = vec![
        ("region_bytes", region_bytes.to_string()),
        ("page_bytes", PAGE_BYTES.to_string()),
        ("coherence", protocol),
    ];
    let wrapped = Task::ProducerConsumer(task.clone());
    let found = ClusterPlan { nodes: 2, common, settings, task: &wrapped, with_connection: false }.run::<Value>()?;
    let items = task.items as f64;
    let sum = |name| numbers(&found, name).sum::<f64>() / items;
    Ok(Item {
        us: found[1]["seconds"].as_f64().unwrap_or(f64::NAN) * 1e6 / items,
        messages: sum("messages"),
        packets: sum("messages") + PACKETS_MORE_PER_PAGE * sum("pages"),
    })
}

/// The buffer and the word next to it.
struct Buffer<'a> {
    task: &'a ProducerConsumerTask,
    member: &'a Member,
}

impl Buffer<'_> {
    /// Waits until the buffer is full (or empty, by `full`), does `work` with exclusive access to it, and leaves
    /// `next` as its first word: the number of the item in it, or 0 when it is empty.
    fn in_turn(&self, full: bool, next: u64, work: &mut dyn FnMut(&mut [u64])) -> Result<(), WorkError> {
        let bytes = self.task.pages * PAGE_BYTES;
        let region = self.member.cluster.region();
        let words = self.task.pages * PAGE_WORDS;
        loop {
            let guard = match self.task.with {
                With::Lock => Some(region.lock_range(0, bytes)?),
                With::TestAndSet => {
                    while self.taken().swap(1, Ordering::AcqRel) != 0 {}
                    None
                }
            };
            // SAFETY: the holder of the lock or of the word has exclusive access to the buffer.
            let buffer = unsafe { region.slice_mut::<u64>(0, words) };
            let done = (buffer[0] != 0) == full;
            if done {
                work(buffer);
                let end = Instant::now() + Duration::from_micros(self.task.work_microseconds);
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                buffer[0] = next;
            }
            match guard {
                Some(guard) => drop(guard),
                None => self.taken().store(0, Ordering::Release),
            }
            if done {
                return Ok(());
            }
        }
    }

    /// The test-and-set word, alone on the page behind the buffer.
    fn taken(&self) -> &AtomicU64 {
        let place = self.member.cluster.region().base().wrapping_add(self.task.pages * PAGE_BYTES);
        // SAFETY: inside the region, aligned, and used as an atomic only.
        unsafe { AtomicU64::from_ptr(place.cast()) }
    }
}

fn content(item: u64, index: usize) -> u64 {
    item.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index as u64)
}

/// Runs a node's part: node 0 fills, node 1 empties.
pub(crate) fn node(task: &ProducerConsumerTask, member: &Member) -> Found {
    let buffer = Buffer { task, member };
    let cluster = &member.cluster;
    cluster.barrier(1)?;
    let before = cluster.counters();
    let start = Instant::now();
    for item in 1..=task.items as u64 {
        if cluster.node() == 0 {
            buffer.in_turn(false, item, &mut |words| {
                words[1..].iter_mut().enumerate().for_each(|(index, word)| *word = content(item, index));
            })?;
        } else {
            let mut is_right = true;
            buffer.in_turn(true, 0, &mut |words| {
                let whole = words[1..].iter().enumerate().all(|(index, word)| *word == content(item, index));
                is_right = whole && words[0] == item;
            })?;
            if !is_right {
                return Err(format!("item {item} is not what was put into the buffer").into());
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let counted = cluster.counters().since(&before);
    cluster.barrier(2)?;
    Ok(json!({ "seconds": seconds, "messages": counted.messages_out, "pages": counted.pages_out }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_each_number_by_itself() {
        let item = |us, messages, packets| Item { us, messages, packets };
        let rounds = [item(1.0, 9.0, 5.0), item(2.0, 7.0, 6.0), item(3.0, 8.0, 4.0)];
        assert_eq!(median(&rounds), item(2.0, 8.0, 5.0));
    }

    #[test]
    fn items_differ_from_each_other_and_from_an_empty_buffer() {
        assert_ne!(content(1, 0), content(2, 0));
        assert_ne!(content(1, 0), content(1, 1));
        assert_ne!(content(1, 0), 0);
    }
}
