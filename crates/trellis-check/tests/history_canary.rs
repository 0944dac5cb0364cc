//! The canary of the history checker: histories of real protocols pass, those of broken protocols do not.
//!
//! A small cluster with one thread at each node runs in an order that a seed determines. Promises: one seed gives one
//! history on every machine; only the history is judged. It must never check the contract of effects, violations or
//! values, and must never help a protocol: no message is lost, duplicated or sent again.

use trellis_base::Random;
use trellis_check::history::check::{Checked, Wrong, check};
use trellis_check::history::{History, Operation, Thread, value_of};
use trellis_check::mutants::{Fault, Mutant};
use trellis_cluster_protocol::coherence::{Coherence, Effect, Geometry, Input, Message, Protocol};
use trellis_cluster_protocol::homes::{Home, Manager};
use trellis_cluster_protocol::{Access, NodeId, PageIndex, PageRange};

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

/// The next operation of a thread.
#[derive(Clone, Copy, Default)]
struct NextAccess {
    cell: u32,
    write: bool,
    faulted: bool,
    /// Whether it faulted and was not woken yet.
    waits: bool,
}

struct Cluster<N> {
    nodes: Vec<N>,
    views: [[Access; PAGES]; NODES],
    memories: [[u64; PAGES]; NODES],
    next: [NextAccess; NODES],
    history: History,
    /// Sender, receiver and message of the messages under way, which arrive in any order.
    messages: Vec<(usize, usize, Message)>,
    /// Pages to be reported as resumed to a protocol: the protocol asked, or a thread has run on.
    resumed: Vec<(usize, PageIndex)>,
    random: Random,
}

impl<N: Coherence> Cluster<N> {
    fn new(seed: u64, start: impl Fn(Geometry) -> N) -> Cluster<N> {
        let mut random = Random::new(seed);
        let home = Home::Manager(Manager(NodeId(random.index(NODES) as u16)));
        let (nodes, pages) = (NODES as u16, PAGES as u32);
        let geometry =
            |me| Geometry { me: NodeId(me), nodes, founders: nodes, pages, shard: 0, shards: 1, home, marks: false };
        let mut cluster = Cluster {
            nodes: (0..nodes).map(|me| start(geometry(me))).collect(),
            views: [[Access::None; PAGES]; NODES],
            memories: [[UNFILLED; PAGES]; NODES],
            next: [NextAccess::default(); NODES],
            history: History { threads: (0..nodes).map(|node| Thread { node, operations: Vec::new() }).collect() },
            messages: Vec::new(),
            resumed: Vec::new(),
            random,
        };
        (0..NODES).for_each(|node| cluster.draw_next(node));
        cluster
    }

    /// Runs until nothing can happen any more.
    fn run(mut self) -> History {
        for _ in 0..STEPS_MAX {
            let is_done = |node: usize| self.history.threads[node].operations.len() == OPERATIONS;
            let runnable: Vec<usize> = (0..NODES).filter(|&node| !self.next[node].waits && !is_done(node)).collect();
            let (threads, messages) = (runnable.len(), self.messages.len());
            let choices = threads + messages + self.resumed.len();
            let chosen = if choices == 0 { break } else { self.random.index(choices) };
            if chosen < threads {
                self.run_thread(runnable[chosen]);
            } else if chosen < threads + messages {
                self.deliver(chosen - threads);
            } else {
                // The thread has run on, or its time to do so is over.
                let (node, page) = self.resumed.swap_remove(chosen - threads - messages);
                self.step(node, Input::Resumed { page });
            }
        }
        self.history
    }

    fn draw_next(&mut self, node: usize) {
        let cell = self.random.index(PAGES) as u32;
        self.next[node] = NextAccess { cell, write: self.random.once_in(2), ..NextAccess::default() };
    }

    /// The thread does its operation in one step if the view allows it, and faults otherwise.
    fn run_thread(&mut self, node: usize) {
        let NextAccess { cell, write, faulted, .. } = self.next[node];
        let needed = if write { Access::Write } else { Access::Read };
        if self.views[node][cell as usize] < needed {
            self.next[node] = NextAccess { cell, write, faulted: true, waits: true };
            let page = PageIndex(cell);
            return self.step(node, Input::Fault { page, write, wanted: PageRange::one(page) });
        }
        let word = &mut self.memories[node][cell as usize];
        let operations = &mut self.history.threads[node].operations;
        operations.push(if write {
            let value = value_of(node as u32, operations.len() as u32);
            Operation::Exchange { cell, value, replaced: std::mem::replace(word, value) }
        } else {
            Operation::Read { cell, value: *word }
        });
        self.resumed.extend(faulted.then_some((node, PageIndex(cell))));
        self.draw_next(node);
    }

    /// The bytes of a grant are read at the supplier only now, as the contract allows.
    fn deliver(&mut self, index: usize) {
        let (from, to, message) = self.messages.swap_remove(index);
        for page in message.bytes().into_iter().flat_map(PageRange::pages) {
            self.memories[to][page.0 as usize] = self.memories[from][page.0 as usize];
        }
        self.step(to, Input::Message { from: NodeId(from as u16), message });
    }

    fn step(&mut self, node: usize, input: Input) {
        let mut effects = Vec::new();
        self.nodes[node].step(0, input, &mut effects);
        effects.into_iter().for_each(|effect| self.carry_out(node, effect));
    }

    fn carry_out(&mut self, node: usize, effect: Effect) {
        let mut change = |range: PageRange, to| range.pages().for_each(|page| self.views[node][page.0 as usize] = to);
        match effect {
            Effect::Revoke(range) => change(range, Access::None),
            Effect::Downgrade(range) => change(range, Access::Read),
            Effect::Upgrade(range) => change(range, Access::Write),
            Effect::Install { range, access, zero } => {
                change(range, access);
                range.pages().filter(|_| zero).for_each(|page| self.memories[node][page.0 as usize] = 0);
            }
            Effect::Send { to, message } => self.messages.push((node, usize::from(to.0), message)),
            Effect::Wake(range) => {
                let next = &mut self.next[node];
                next.waits &= !range.contains(PageIndex(next.cell));
            }
            Effect::Hold(page) => self.resumed.push((node, page)),
            Effect::Violation { .. } => {} // The history has to show what comes of it.
            other => panic!("a protocol without layers orders {other:?}"),
        }
    }
}

/// The checker's result for the run of `seed` with `fault`; without one, the real protocol runs without a wrapper.
fn checked(protocol: Protocol, fault: Option<Fault>, seed: u64) -> Result<Checked, Wrong> {
    let mutant = |geometry, fault| Mutant::new(protocol.start(geometry), geometry, fault);
    check(&match fault {
        None => Cluster::new(seed, |geometry| protocol.start(geometry)).run(),
        Some(fault) => Cluster::new(seed, |geometry| mutant(geometry, fault)).run(),
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
