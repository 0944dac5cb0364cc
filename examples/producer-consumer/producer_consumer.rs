//! One node fills a buffer in shared memory, another empties it, and so on.
//!
//! ```text
//! cargo build --release --example producer_consumer
//! trellis run -n 2 target/release/examples/producer_consumer --with lock
//! trellis run -n 2 target/release/examples/producer_consumer --with test-and-set --pages 3 --items 5000
//! ```
//!
//! There is one buffer, so the two take turns. Who may use it is decided in one of two ways:
//!
//! * `lock`: the pages of the buffer are locked: they come, all of them for stores, and do not leave until they are
//!   unlocked; a request for them waits at the holder. The protocol is `lock(dynamic(forward))`.
//! * `test-and-set`: a word on a page of its own is exchanged by the processor until it was 0, as on any machine with
//!   shared memory. The protocol is `dynamic(forward)`, in which any page goes to whoever asks for it.
//!
//! Every item is checked by the consumer. What is printed at the end: the time of an item, and how many messages and
//! pages travelled for it, between all nodes. Packets count as in the paper from which this program is (Sane, MacGregor
//! and Campbell, 1990, section 5.2): a message is one packet of an Ethernet, a page in it two more.

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use trellis::{Cluster, WaitError};

const USAGE: &str =
    "usage: producer_consumer [--with lock | test-and-set] [--pages N] [--items N] [--work-microseconds N]";

struct Options {
    pages: usize,
    items: u64,
    work: Duration,
    lock: bool,
}

impl Options {
    fn read() -> Result<Options, Box<dyn Error>> {
        let mut chosen = Options { pages: 1, items: 2000, work: Duration::from_micros(20), lock: true };
        let mut words = std::env::args().skip(1);
        while let Some(name) = words.next() {
            let value = words.next().ok_or(USAGE)?;
            let number = |least: u64| value.parse().ok().filter(|number| *number >= least).ok_or(USAGE);
            match name.as_str() {
                "--pages" => chosen.pages = number(1)? as usize,
                "--items" => chosen.items = number(1)?,
                "--work-microseconds" => chosen.work = Duration::from_micros(number(0)?),
                "--with" if value == "lock" => chosen.lock = true,
                "--with" if value == "test-and-set" => chosen.lock = false,
                _ => return Err(USAGE.into()),
            }
        }
        Ok(chosen)
    }
}

/// The buffer, the test-and-set word on the page behind it, and behind that a page for the traffic of each node.
struct Exchange<'a> {
    cluster: &'a Cluster,
    chosen: &'a Options,
    page_bytes: usize,
}

impl Exchange<'_> {
    fn bytes(&self) -> usize {
        self.chosen.pages * self.page_bytes
    }

    /// Every node says which protocol looks after the buffer and the word.
    fn set_protocol(&self) -> Result<(), WaitError> {
        let protocol = if self.chosen.lock { "lock(dynamic(forward))" } else { "dynamic(forward)" };
        self.cluster.region().set_protocol(0, self.bytes() + self.page_bytes, protocol)
    }

    fn produce(&self) -> Result<(), WaitError> {
        for item in 1..=self.chosen.items {
            self.in_turn(false, |words| {
                words[1..].iter_mut().enumerate().for_each(|(index, word)| *word = content(item, index));
                work(self.chosen.work);
                words[0] = item;
            })?;
        }
        Ok(())
    }

    /// Whether every item came once, in order and whole.
    fn consume(&self) -> Result<bool, WaitError> {
        let mut is_right = true;
        for item in 1..=self.chosen.items {
            self.in_turn(true, |words| {
                is_right &= words[0] == item;
                is_right &= words[1..].iter().enumerate().all(|(index, word)| *word == content(item, index));
                work(self.chosen.work);
                words[0] = 0;
            })?;
        }
        Ok(is_right)
    }

    /// Has the buffer for itself as soon as it is full, or empty, and does `task` with it.
    fn in_turn(&self, full: bool, mut task: impl FnMut(&mut [u64])) -> Result<(), WaitError> {
        let region = self.cluster.region();
        loop {
            let guard = if self.chosen.lock { Some(region.lock_range(0, self.bytes())?) } else { None };
            while guard.is_none() && self.taken().swap(1, Ordering::AcqRel) != 0 {}
            // SAFETY: whoever locked the range, or found 0 in the word, has the buffer for itself.
            let words = unsafe { region.slice_mut::<u64>(0, self.bytes() / size_of::<u64>()) };
            // The first word is the number of the item in the buffer, 0 when it is empty.
            let is_my_turn = (words[0] != 0) == full;
            if is_my_turn {
                task(words);
            }
            match guard {
                Some(guard) => guard.unlock()?,
                None => self.taken().store(0, Ordering::Release),
            }
            if is_my_turn {
                return Ok(());
            }
        }
    }

    fn taken(&self) -> &AtomicU64 {
        // SAFETY: inside the region, aligned, and used as an atomic only.
        unsafe { AtomicU64::from_ptr(self.cluster.region().base().add(self.bytes()).cast()) }
    }

    /// Messages and pages that a node sent.
    fn traffic_of(&self, node: usize) -> *mut [u64; 2] {
        let at = self.bytes() + (1 + node) * self.page_bytes;
        assert!(at + self.page_bytes <= self.cluster.region().bytes(), "set region_bytes: the region is too small");
        self.cluster.region().base().wrapping_add(at).cast()
    }
}

/// The processor is busy for so long, as with the processing of an item.
fn work(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

fn content(item: u64, index: usize) -> u64 {
    item.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index as u64)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("producer_consumer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let chosen = Options::read()?;
    let cluster = trellis::join()?;
    let (node, nodes) = (cluster.node(), cluster.nodes());
    if nodes < 2 {
        return Err("producer_consumer needs two nodes: trellis run -n 2".into());
    }
    let exchange = Exchange { cluster: &cluster, chosen: &chosen, page_bytes: cluster.region().page_bytes() };
    exchange.set_protocol()?;
    cluster.barrier(0)?;

    let (start, before) = (Instant::now(), cluster.counters());
    let mut is_right = true;
    match node {
        0 => exchange.produce()?,
        1 => is_right = exchange.consume()?,
        _ => {}
    }
    let (taken, counted) = (start.elapsed(), cluster.counters().since(&before));
    // SAFETY: before the barrier a node uses its own place only.
    unsafe { exchange.traffic_of(node).write([counted.messages_out, counted.pages_out]) };
    cluster.barrier(0)?;

    if node == 1 && is_right {
        // SAFETY: every node wrote its own before the barrier.
        let all = (0..nodes).map(|node| unsafe { exchange.traffic_of(node).read() });
        let [messages, pages] = all.fold([0, 0], |sum, one| [sum[0] + one[0], sum[1] + one[1]]);
        let per_item = |count: u64| count as f64 / chosen.items as f64;
        println!(
            "{} items of {} page{} with {}: {:.2} us, {} messages, {} pages, {} packets per item (verified)",
            chosen.items,
            chosen.pages,
            if chosen.pages == 1 { "" } else { "s" },
            if chosen.lock { "lock" } else { "test-and-set" },
            taken.as_secs_f64() * 1e6 / chosen.items as f64,
            per_item(messages),
            per_item(pages),
            per_item(messages + 2 * pages)
        );
    }
    cluster.leave()?;
    if is_right { Ok(()) } else { Err("an item was lost, came twice or was broken".into()) }
}
