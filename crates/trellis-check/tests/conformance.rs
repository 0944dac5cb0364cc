//! One suite for every protocol with every home, in one shard and in four: random programs on a network that delivers
//! in any order. In half of the runs alarms expire at any time, on a clock that stands still, as in the explorer; in
//! the others they expire late, on a clock that runs.
//!
//! The seed determines the run. A failure names it; `TRELLIS_SEED=<seed> cargo test -p trellis-check --test
//! conformance` runs only that seed.

use trellis_base::Random;
use trellis_check::model::{Driven, Outcome, Waiting};
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::homes::Home;
use trellis_cluster_protocol::{NodeId, PageIndex, PageRange};

const PAGES: u32 = 5 * 512;
/// The pages that programs touch: adjacent ones, ends of chunks, chunks of every shard.
const HOT: [u32; 12] = [0, 1, 2, 3, 4, 510, 511, 512, 513, 1024, 1536, 2559];
const OPERATIONS: u32 = 60;
/// The calls of each node that lock pages.
const CALLS: u32 = 12;
const RUNS: u64 = 40;
/// Far more than any correct run needs.
const STEPS_MAX: u32 = 200_000;

/// A cluster whose threads act as the seed determines.
struct Run {
    cluster: Driven,
    random: Random,
    nodes: u16,
    /// The operations that each node's threads have not begun yet.
    left: Vec<u32>,
    threads: usize,
    /// How many adjacent pages of [`HOT`] are used: fewer pages mean more contention.
    spread: usize,
    can_lock: bool,
    /// The locking calls that each node has not begun yet.
    calls_left: Vec<u32>,
    /// Whether the clock runs.
    has_clock: bool,
}

impl Run {
    fn new(protocol: Protocol, home: Home, nodes: u16, shards: u32, seed: u64) -> Run {
        let mut random = Random::new(seed);
        let threads = 1 + random.index(3);
        let spread = 1 + random.index(HOT.len());
        Run {
            cluster: Driven::new(protocol, home, nodes, PAGES, shards),
            random,
            nodes,
            left: vec![OPERATIONS; usize::from(nodes)],
            threads,
            spread,
            can_lock: protocol.can_lock(),
            calls_left: vec![if protocol.can_lock() { CALLS } else { 0 }; usize::from(nodes)],
            has_clock: seed.is_multiple_of(2),
        }
    }

    fn finish(&mut self) {
        for _ in 0..STEPS_MAX {
            let goes_on = self.step();
            assert_eq!(self.cluster.problem, None);
            if !goes_on {
                return self.check_end();
            }
        }
        panic!("still not done after {STEPS_MAX} steps");
    }

    /// Takes one possible step; `false` if none is left.
    fn step(&mut self) -> bool {
        if self.random.once_in(40) {
            self.guess();
        }
        let node = self.random.below(self.nodes.into()) as u16;
        if self.has_clock {
            self.cluster.now += self.random.below(3000);
        }
        match self.random.below(if self.can_lock { 10 } else { 9 }) {
            0..4 if !self.cluster.under_way.is_empty() => {
                let index = self.random.index(self.cluster.under_way.len());
                self.cluster.deliver(index);
            }
            4 | 5 => self.begin(node),
            6 => self.look(node),
            7 => self.resume_wanted(),
            8 => self.alarm(),
            9 => self.call(node),
            _ => {}
        }
        self.is_something_left()
    }

    fn is_something_left(&self) -> bool {
        let woken = self.cluster.waiting.iter().flatten().any(|waiting| waiting.woken);
        woken
            || !self.cluster.under_way.is_empty()
            || !self.cluster.is_idle()
            || !self.cluster.calls.is_empty()
            || self.calls_left.iter().any(|&left| left > 0)
            || (0..usize::from(self.nodes))
                .any(|node| self.left[node] > 0 && self.cluster.waiting[node].len() < self.threads)
    }

    fn begin(&mut self, node: u16) {
        let index = usize::from(node);
        if self.left[index] == 0 || self.cluster.waiting[index].len() >= self.threads {
            return;
        }
        self.left[index] -= 1;
        let page = HOT[self.random.index(self.spread)];
        let write = self.random.once_in(2);
        self.access(node, page, write);
    }

    fn access(&mut self, node: u16, page: u32, write: bool) {
        if self.cluster.access(node, page, write) == Outcome::Faulted {
            let before = self.random.below(4) as u32;
            let after = self.random.below(6) as u32;
            let wanted = PageRange::around(PageIndex(page), page.saturating_sub(before), (page + 1 + after).min(PAGES));
            self.cluster.fault(node, 0, page, write, wanted);
        }
    }

    /// A woken thread retries; sometimes `Resumed` is reported before it does.
    fn look(&mut self, node: u16) {
        let waiting = &self.cluster.waiting[usize::from(node)];
        let Some(index) = waiting.iter().position(|waiting| waiting.woken) else { return };
        if self.random.once_in(20) {
            let page = self.cluster.waiting[usize::from(node)][index].page;
            self.cluster.resume(node, page);
        }
        let waiting = self.cluster.take_woken(node, index);
        self.access(node, waiting.page, waiting.write);
        if self.random.once_in(2) {
            self.cluster.resume(node, waiting.page);
        }
    }

    fn resume_wanted(&mut self) {
        let wanted = self.cluster.wanted();
        let Some(&(node, page)) = wanted.get(self.random.index(wanted.len().max(1))) else { return };
        let about_to_look = |waiting: &Waiting| waiting.page == page && waiting.woken;
        if !self.cluster.waiting[usize::from(node)].iter().any(about_to_look) {
            self.cluster.resume(node, page);
        }
    }

    /// Lets one alarm expire: late, never early, if there is a clock.
    fn alarm(&mut self) {
        let alarms = self.cluster.alarms();
        let Some(&(alarm, due)) = alarms.get(self.random.index(alarms.len().max(1))) else { return };
        if self.has_clock {
            self.cluster.now = self.cluster.now.max(due);
        }
        self.cluster.alarm(alarm);
    }

    /// A thread locks pages, unlocks them, or sometimes stops waiting.
    fn call(&mut self, node: u16) {
        let mine: Vec<_> = self.cluster.calls.iter().filter(|call| call.node == node).copied().collect();
        if self.calls_left[usize::from(node)] > 0 && mine.len() < self.threads && self.random.once_in(2) {
            self.calls_left[usize::from(node)] -= 1;
            let page = HOT[self.random.index(self.spread)];
            let range = PageRange::around(PageIndex(page), page, (page + 1 + self.random.below(4) as u32).min(PAGES));
            let stay = self.random.once_in(4).then(|| self.random.below(100_000));
            self.cluster.lock(node, range, stay);
        } else if let Some(call) = mine.get(self.random.index(mine.len().max(1)))
            && (call.has_all || self.random.once_in(20))
        {
            self.cluster.unlock(node, call.range, call.number);
            if self.random.once_in(10) {
                // A second time, as after a lock that ended by itself.
                self.cluster.unlock(node, call.range, call.number);
            }
        }
    }

    fn guess(&mut self) {
        let node = self.random.below(self.nodes.into()) as u16;
        let page = HOT[self.random.index(self.spread)];
        let count = 1 + self.random.below(8) as u32;
        let wanted = PageRange::around(PageIndex(page), page, (page + count).min(PAGES));
        let (write, announced) = (self.random.once_in(2), self.random.once_in(2));
        self.cluster.prefetch(node, wanted, write, announced);
    }

    fn check_end(&self) {
        assert!(self.cluster.waiting.iter().all(Vec::is_empty), "threads wait for ever: {:?}", self.cluster.waiting);
        assert!(self.left.iter().all(|&left| left == 0));
        for node in 0..self.nodes {
            let pending = (0..PAGES).find(|&page| self.cluster.is_pending(node, page));
            assert_eq!(pending, None, "a request of node {node} is under way for ever");
        }
    }
}

/// The seeds to run: the one from the environment, or the first few.
fn seeds() -> std::ops::RangeInclusive<u64> {
    let chosen = std::env::var("TRELLIS_SEED").ok().map(|seed| seed.parse().expect("TRELLIS_SEED is a whole number"));
    chosen.map_or(1..=RUNS, |seed| seed..=seed)
}

fn suite(nodes: u16, shards: u32) {
    for protocol in Protocol::all() {
        for home in Home::all(NodeId(nodes / 2)) {
            for seed in seeds() {
                // Printed before the run, so that the output lists the seeds of successful runs too.
                println!("{protocol} {} TRELLIS_SEED={seed} nodes={nodes} shards={shards}", home.name());
                let mut run = Run::new(protocol, home, nodes, shards, seed);
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.finish()));
                if let Err(failure) = done {
                    let story = run.cluster.story.unwrap_or_default();
                    eprintln!("{}", story[story.len().saturating_sub(60)..].join("\n"));
                    std::panic::resume_unwind(failure);
                }
            }
        }
    }
}

#[test]
fn one_node_is_a_cluster() {
    suite(1, 1);
}

#[test]
fn two_nodes() {
    suite(2, 1);
    suite(2, 4);
}

#[test]
fn three_nodes() {
    suite(3, 1);
    suite(3, 4);
}

#[test]
fn five_nodes() {
    suite(5, 1);
    suite(5, 4);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let log = || {
        let home = Home::all(NodeId(1))[0];
        let mut run = Run::new(Protocol::IVY, home, 3, 4, 7);
        run.finish();
        run.cluster.story
    };
    assert!(log() == log());
}
