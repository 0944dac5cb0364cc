//! Whole clusters in virtual time: one seed, one run, the same on every machine.
//!
//! A seed gives the nodes, pages, protocol, programs, network and faults ([`Scenario`]); the real state machines run:
//! the coherence protocols, locks, barriers and the membership, and under the messages of half the seeds the
//! delivery of the `udp` link. What must hold:
//!
//! 1. *At every effect*: single writer or many readers; downgrade before read-out before send; bytes stay put until
//!    they are delivered; a load sees the last store; a locked page does not leave; views are what the protocol thinks.
//! 2. *At every return of a call*: a lock has one holder; nobody leaves a barrier early; additions add up; blocks of the heap
//!    are apart.
//! 3. *Bounded waiting*: in seeds without faults that may hold a request up, only a bounded number of others are served
//!    with a page while an access waits for it ([`overtaken_max`]).
//! 4. *Healing*: once the faults end, every access ends within a bound ([`wait_ns_max`]); at the end nobody waits.
//! 5. *A lost node ends the cluster*: every other learns of it, by name and within the bound of the membership, and
//!    every wait ends. Nobody is taken for lost who is not.
//!
//! Promises: the same seed gives the same [`Outcome::trace_hash`], in debug and in release builds. It must never read a
//! clock, start a thread or iterate in hash order, and never look into a protocol.

mod blocks;
mod changes;
mod datagrams;
mod events;
mod leaving;
mod members;
mod network;
mod node;
mod node_faults;
mod pages;
mod record;
mod scenario;
mod threads;
mod workload;
mod world;

pub use node_faults::NodeFault;
pub use scenario::{Faults, Layout, Manners, Pattern, Scenario, Seed, Wires};

use crate::intern::guarded;
use trellis_base::mixed;
use trellis_cluster_protocol::Nanoseconds;
use trellis_cluster_protocol::coherence::{Coherence, Geometry, Protocol, Ranges};
use world::World;

/// What stands at the nodes: the real protocols, or broken ones.
pub trait Start {
    /// One node's part.
    type Node: Coherence;

    /// A node's part of `protocol`.
    fn start(&self, protocol: Protocol, geometry: Geometry) -> Self::Node;

    /// What the nodes do wrong besides.
    fn fault(&self) -> NodeFault {
        NodeFault::None
    }

    /// Whether a protocol can be changed while the cluster runs.
    fn can_change(&self) -> bool {
        false
    }
}

/// The real protocols.
#[derive(Clone, Copy, Debug, Default)]
pub struct Real;

impl Start for Real {
    type Node = Ranges;

    fn start(&self, protocol: Protocol, geometry: Geometry) -> Ranges {
        Ranges::new(protocol, geometry)
    }

    fn can_change(&self) -> bool {
        true
    }
}

/// The real protocols at nodes with a fault.
#[derive(Clone, Copy, Debug)]
pub struct Faulty(
    /// What they do wrong.
    pub NodeFault,
);

impl Start for Faulty {
    type Node = Ranges;

    fn start(&self, protocol: Protocol, geometry: Geometry) -> Ranges {
        Ranges::new(protocol, geometry)
    }

    fn fault(&self) -> NodeFault {
        self.0
    }

    fn can_change(&self) -> bool {
        true
    }
}

/// Something else, for example a mutant.
#[derive(Clone, Copy, Debug)]
pub struct Instead<F>(
    /// Makes a node's part.
    pub F,
);

impl<N: Coherence, F: Fn(Protocol, Geometry) -> N> Start for Instead<F> {
    type Node = N;

    fn start(&self, protocol: Protocol, geometry: Geometry) -> N {
        (self.0)(protocol, geometry)
    }
}

/// What happened, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Steps of protocols.
    pub steps: u64,
    /// Events in virtual time.
    pub events: u64,
    /// Messages.
    pub messages: u64,
    /// Of them about pages.
    pub page_messages: u64,
    /// Of them about locks, barriers and words.
    pub sync_messages: u64,
    /// Their bytes, with headers.
    pub bytes: u64,
    /// Pages whose bytes were sent.
    pub pages_sent: u64,
    /// Datagrams that arrived.
    pub datagrams: u64,
    /// Fragments that were sent again.
    pub resent: u64,
    /// Loads and stores.
    pub accesses: u64,
    /// Of them stores.
    pub stores: u64,
    /// Turns that were taken, with [`Pattern::Turns`] and [`Pattern::Exchanges`].
    pub turns: u64,
    /// Calls that waited: locks, barriers, ranges, blocks.
    pub calls: u64,
    /// Calls that gave up a range, a block, or waiting for a change.
    pub given_up: u64,
    /// Faults.
    pub faults: u64,
    /// Of them loads.
    pub read_faults: u64,
    /// Of them stores to pages that were not there.
    pub write_faults: u64,
    /// Of them stores to read copies that the node owns.
    pub owner_upgrades: u64,
    /// Of them stores to other read copies.
    pub other_upgrades: u64,
    /// Waits that ended with an error, because a node was lost.
    pub failed_waits: u64,
    /// Most others that were served with a page while one access waited for it.
    pub overtaken_max: u32,
    /// The longest that an access waited.
    pub wait_ns_max: Nanoseconds,
    /// The longest that one waited after the faults had ended.
    pub healed_wait_ns_max: Nanoseconds,
    /// When the last thread was done.
    pub last_done: Nanoseconds,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything held.
    Passed,
    /// Something did not; the sentence says what.
    Broken(String),
}

/// What a seed led to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was run.
    pub scenario: Scenario,
    /// How it ended.
    pub verdict: Verdict,
    /// Stands for everything that happened.
    pub trace_hash: u64,
    /// What happened, in numbers.
    pub tally: Tally,
}

impl Outcome {
    /// Whether everything held.
    pub fn passed(&self) -> bool {
        self.verdict == Verdict::Passed
    }

    /// What went wrong and the command that shows it, in one line.
    pub fn complaint(&self) -> Option<String> {
        match &self.verdict {
            Verdict::Passed => None,
            Verdict::Broken(what) => Some(format!("{what}; trellis check replay '{}'", self.scenario.seed)),
        }
    }
}

/// Runs the real protocols on what `seed` stands for.
pub fn simulate(seed: Seed) -> Outcome {
    run(Scenario::from_seed(seed), &Real)
}

/// Runs whatever `start` makes in `scenario`.
pub fn run<S: Start>(scenario: Scenario, start: &S) -> Outcome {
    traced(scenario, start, 0).0
}

/// As [`run`], with the real protocols, whose threads begin nothing more after `stop_at`.
pub fn run_until(scenario: Scenario, stop_at: Nanoseconds) -> Outcome {
    finish(&mut World::new(scenario, &Real, 0), stop_at).0
}

/// Runs `seed` again and tells what happened: the last `lines` lines, the verdict last.
pub fn replay(seed: Seed, lines: usize) -> (Outcome, Vec<String>) {
    traced(Scenario::from_seed(seed), &Real, lines)
}

/// As [`run`], with the last `lines` lines of what happened.
pub fn traced<S: Start>(mut scenario: Scenario, start: &S, lines: usize) -> (Outcome, Vec<String>) {
    if scenario.pattern == Pattern::Changes && !start.can_change() {
        scenario.pattern = Pattern::Phases;
    }
    let mut world = World::new(scenario, start, lines);
    finish(&mut world, Nanoseconds::MAX)
}

fn finish<S: Start>(world: &mut World<'_, S>, stop_at: Nanoseconds) -> (Outcome, Vec<String>) {
    world.stop_at = stop_at;
    let ended = guarded(|| world.run()).unwrap_or_else(|what| Err(format!("a protocol stopped: {what}")));
    let verdict = ended.map_or_else(Verdict::Broken, |()| Verdict::Passed);
    world.tally.resent = world.datagrams.as_ref().map_or(0, datagrams::Datagrams::resent);
    let recorder = std::mem::replace(&mut world.recorder, record::Recorder::new(0));
    let outcome =
        Outcome { scenario: world.scenario.clone(), verdict, trace_hash: recorder.hash(), tally: world.tally };
    let mut lines = recorder.into_lines();
    lines.extend(outcome.complaint());
    (outcome, lines)
}

/// What a series of seeds led to.
#[derive(Clone, Debug, Default)]
pub struct Swarm {
    /// Runs.
    pub runs: u64,
    /// Steps of all of them.
    pub steps: u64,
    /// Loads, stores and calls.
    pub operations: u64,
    /// The failures, at most [`FAILURES_MAX`].
    pub failures: Vec<Outcome>,
    /// All trace hashes, folded into one.
    pub hash: u64,
    /// Runs in which waiting was held against its bound, and the most that was seen.
    pub fair_runs: u64,
    /// See [`Swarm::fair_runs`].
    pub overtaken_max: u32,
}

/// A series ends when so many seeds failed.
pub const FAILURES_MAX: usize = 10;

/// Runs `count` seeds from `first` on with `protocol`; tells `progress` of each run.
pub fn swarm(protocol: Protocol, first: u64, count: u64, progress: &mut dyn FnMut(&Swarm)) -> Swarm {
    let mut sum = Swarm::default();
    for number in first..first + count {
        let outcome = simulate(Seed { protocol: Some(protocol), number });
        sum.runs += 1;
        sum.steps += outcome.tally.steps;
        sum.operations += outcome.tally.accesses + outcome.tally.calls;
        sum.hash = mixed(sum.hash ^ outcome.trace_hash);
        if outcome.scenario.is_fair() {
            sum.fair_runs += 1;
            sum.overtaken_max = sum.overtaken_max.max(outcome.tally.overtaken_max);
        }
        if !outcome.passed() {
            sum.failures.push(outcome);
        }
        progress(&sum);
        if sum.failures.len() == FAILURES_MAX {
            break;
        }
    }
    sum
}

/// How many others are served with a page at most while one access waits for it, where nothing holds requests up.
///
/// A request that was queued is overtaken by nobody twice; but on its way it may be ten times slower than the fastest
/// (that is how far apart wires are, with reordering), and a thread that found its page gone asks again.
pub fn overtaken_max(scenario: &Scenario) -> u32 {
    u32::from(scenario.nodes()) * u32::from(scenario.threads) * 10 + 16
}

/// How long an access waits at most once the faults have ended.
///
/// What was lost before is sent again within half a second, the longest that the `udp` link waits; a message that
/// waited for that one, too. Behind it the accesses of all threads may queue, each with the time that a page is held and
/// with as many messages, one after the other, as it takes to pass a request on and to call a copy back, each on the
/// slowest way there is. Where pages are locked, who has some of them waits for the next.
pub fn wait_ns_max(scenario: &Scenario) -> Nanoseconds {
    const MESSAGES: u64 = 8;
    let workers = u64::from(scenario.nodes()) * u64::from(scenario.threads);
    let Wires { latency_ns, spread_ns, jitter_ns, .. } = scenario.wires;
    let reordered_ns = if scenario.faults.reorder { network::REORDERED_LATENCIES * latency_ns } else { 0 };
    let slowest_ns = latency_ns + spread_ns + jitter_ns + reordered_ns;
    let pages = if scenario.protocol.can_lock() { u64::from(workload::LOCKED_PAGES_MAX) } else { 1 };
    // A page whose protocol is being changed is frozen while the nodes meet, agree, and fetch pages.
    let meets = if scenario.pattern == Pattern::Changes { u64::from(scenario.nodes()) * 100 } else { 0 };
    1_500_000_000 + workers * (50_000_000 + MESSAGES * pages * slowest_ns) + meets * slowest_ns
}
