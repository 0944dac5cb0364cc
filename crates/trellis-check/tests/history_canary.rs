//! The canary of the history checker: histories of real protocols pass, those of broken protocols do not.
//!
//! A small cluster with one thread at each node runs in an order that a seed determines. Promises: one seed gives one
//! history on every machine; only the history is judged. It must never check the contract of effects, violations or
//! values, and must never help a protocol: no message is lost, duplicated or sent again.

use trellis_base::Random;
use trellis_check::history::check::{Checked, Wrong, check};
use trellis_check::history::{History, Operation, Thread, value_of};
use trellis_check::model::{Driven, nodes_of};
use trellis_check::mutants::{Fault, Mutant};
use trellis_cluster_protocol::coherence::{Coherence, Geometry, Protocol};
use trellis_cluster_protocol::homes::{Home, Manager};
use trellis_cluster_protocol::{NodeId, PageIndex, PageRange};

const NODES: usize = 3;
/// Each page holds one cell with the same number.
const PAGES: usize = 2;
/// The number of operations of each thread.
const OPERATIONS: usize = 40;
const SEEDS: u64 = 100;
/// Far more than the steps of any run whose threads do not wait for ever.
const STEPS_MAX: usize = 50_000;
/// The content of memory before it is first filled: a reader that sees it sees a value that was never written.
const UNFILLED: u64 = 0xDEAD;

/// A cluster whose threads do what the seed determines.
struct Run<N> {
    cluster: Driven<N>,
    /// The cell of each thread's next operation, and whether it is an exchange.
    next: [(u32, bool); NODES],
    history: History,
    /// Threads that have run on after a fault, which the protocol does not know yet: their nodes and pages.
    ran_on: Vec<(u16, u32)>,
    random: Random,
}

impl<N: Coherence> Run<N> {
    fn new(seed: u64, start: impl Fn(Geometry) -> N) -> Run<N> {
        let mut random = Random::new(seed);
        let home = Home::Manager(Manager(NodeId(random.index(NODES) as u16)));
        let nodes = NODES as u16;
        let history = History { threads: (0..nodes).map(|node| Thread { node, operations: Vec::new() }).collect() };
        let cluster = Driven::of(nodes_of(home, nodes, PAGES as u32, 1, start), PAGES as u32, UNFILLED).unchecked();
        let mut run = Run { cluster, next: [(0, false); NODES], history, ran_on: Vec::new(), random };
        (0..NODES).for_each(|node| run.draw_next(node));
        run
    }

    /// Runs until nothing can happen any more.
    fn run(mut self) -> History {
        for _ in 0..STEPS_MAX {
            let can_run = |node: &usize| {
                self.cluster.waiting[*node].iter().all(|waiting| waiting.woken)
                    && self.history.threads[*node].operations.len() < OPERATIONS
            };
            let runnable: Vec<usize> = (0..NODES).filter(can_run).collect();
            let (threads, messages) = (runnable.len(), self.cluster.under_way.len());
            // The thread has run on, or its time to do so is over.
            let resumed: Vec<(u16, u32)> = self.ran_on.iter().copied().chain(self.cluster.wanted()).collect();
            let choices = threads + messages + resumed.len();
            let chosen = if choices == 0 { break } else { self.random.index(choices) };
            if chosen < threads {
                self.run_thread(runnable[chosen]);
            } else if chosen < threads + messages {
                self.cluster.deliver(chosen - threads);
            } else {
                let (node, page) = resumed[chosen - threads - messages];
                self.ran_on.retain(|other| *other != (node, page));
                self.cluster.resume(node, page);
            }
        }
        self.history
    }

    fn draw_next(&mut self, node: usize) {
        self.next[node] = (self.random.index(PAGES) as u32, self.random.once_in(2));
    }

    /// The thread does its operation in one step if the view allows it, and faults otherwise.
    fn run_thread(&mut self, node: usize) {
        let ((cell, write), me) = (self.next[node], node as u16);
        let has_faulted = !self.cluster.waiting[node].is_empty();
        if has_faulted {
            self.cluster.take_woken(me, 0);
        }
        let operations = &mut self.history.threads[node].operations;
        let value = value_of(node as u32, operations.len() as u32);
        let done = match write {
            true => {
                let replaced = self.cluster.store(me, cell, |now| std::mem::replace(now, value));
                replaced.map(|replaced| Operation::Exchange { cell, value, replaced })
            }
            false => self.cluster.load(me, cell).map(|value| Operation::Read { cell, value }),
        };
        let Some(operation) = done else {
            return self.cluster.fault(me, node, cell, write, PageRange::one(PageIndex(cell)));
        };
        operations.push(operation);
        self.ran_on.extend(has_faulted.then_some((me, cell)));
        self.draw_next(node);
    }
}

/// The checker's result for the run of `seed` with `fault`; without one, the real protocol runs without a wrapper.
fn checked(protocol: Protocol, fault: Option<Fault>, seed: u64) -> Result<Checked, Wrong> {
    let mutant = |geometry, fault| Mutant::new(protocol.start(geometry), geometry, fault);
    check(&match fault {
        None => Run::new(seed, |geometry| protocol.start(geometry)).run(),
        Some(fault) => Run::new(seed, |geometry| mutant(geometry, fault)).run(),
    })
}

#[test]
fn histories_of_the_real_protocols_pass() {
    for protocol in [Protocol::IVY, Protocol::DYNAMIC] {
        for seed in 0..SEEDS {
            let run = format!("{protocol}, seed {seed} (cargo test -p trellis-check --test history_canary real)");
            let checked = checked(protocol, None, seed);
            let checked = checked.unwrap_or_else(|wrong| panic!("{run}:\n{}", wrong.story.join("\n")));
            assert_eq!(checked.operations, NODES * OPERATIONS, "a thread waits for ever: {run}");
        }
    }
}

#[test]
fn histories_of_broken_protocols_are_noticed() {
    use Fault::{CopyOfCopy, DowngradeNotRevoke, ForgetsReader, KeepsCopy, NoDowngrade};
    use Fault::{NoRevoke, UpgradesItself, WriteForRead, ZeroNotBytes};
    let views = [NoRevoke, NoDowngrade, DowngradeNotRevoke, UpgradesItself, WriteForRead, ZeroNotBytes];
    let both = views.into_iter().chain([KeepsCopy, ForgetsReader]);
    let of_ivy = both.clone().map(|fault| (Protocol::IVY, fault));
    let of_dynamic = both.chain([CopyOfCopy]).map(|fault| (Protocol::DYNAMIC, fault));
    for (protocol, fault) in of_ivy.chain(of_dynamic) {
        let mut wrongs = (0..SEEDS).filter_map(|seed| Some((seed, checked(protocol, Some(fault), seed).err()?)));
        let (seed, wrong) =
            wrongs.next().unwrap_or_else(|| panic!("{protocol}, {fault:?}: the histories of {SEEDS} seeds pass"));
        let (kind, count) = (wrong.fault.name(), 1 + wrongs.count());
        println!("{protocol}, {fault:?}: {count} of {SEEDS} seeds, first seed {seed}: {kind}");
    }
}

#[test]
fn threads_that_wait_for_ever_are_no_lie() {
    // The history so far is correct; only the missing operations show the error.
    for seed in 0..SEEDS {
        let checked = checked(Protocol::IVY, Some(Fault::NoWake), seed).expect("nobody saw anything wrong");
        assert!(checked.operations < NODES * OPERATIONS, "seed {seed}");
    }
}
