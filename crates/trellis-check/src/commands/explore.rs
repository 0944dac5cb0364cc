//! The commands that explore: `explore`, `sync`, `members`, `heap` and `ends`.
//!
//! Promises: the first line describes the instance. It must never print the rate of an exploration that was cut short
//! as if it had ended.

use super::lease::{self, LEASE, Lease};
use super::release::{self, Release, Shared};
use super::side_by_side::side_by_side;
use super::{Bound, json_text};
use crate::ends::{EndFault, EndInstance};
use crate::explore::{Model, Options, Progress, Report, Verdict, explore};
use crate::heap::{HeapFault, HeapInstance, HeapProgram};
use crate::members::{MemberFault, MemberInstance};
use crate::pages::{Instance, Locks, Requests};
use crate::synchronisation::{Program, SyncInstance};
use clap::{Args, ValueEnum, value_parser};
use std::io::IsTerminal;
use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::homes::{FirstTouch, Home, Interleaved, Manager, Migrating};
use trellis_output::lines::say;

#[derive(Args, Debug)]
pub(super) struct Explore {
    /// The protocol, for example `dynamic(forward)` or `delay(lock(ivy))`; `all` for each that the tests cover;
    /// `release` for those with release consistency; `lease` for leases of remote memory, whose clusters are given.
    #[arg(long, default_value = "ivy")]
    protocol: String,
    /// Number of nodes.
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u16).range(1..=6))]
    nodes: u16,
    /// Number of pages.
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u32).range(1..=4))]
    pages: u32,
    /// Operations of each thread: loads, stores and locked changes, each of any page.
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u8).range(1..=15))]
    operations: u8,
    /// Threads of each node.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u8).range(1..=2))]
    threads: u8,
    /// Which node manages pages.
    #[arg(long, value_enum, default_value_t = HomeName::Manager)]
    home: HomeName,
    /// The managing node, with `--home manager`.
    #[arg(long, default_value_t = 0)]
    manager: u16,
    /// Which pages requests ask for besides the page that a thread waits for.
    #[arg(long, value_enum, default_value_t = Requests::Narrow)]
    requests: Requests,
    /// Maximum number of announcements of each node.
    #[arg(long, default_value_t = 0, value_parser = value_parser!(u8).range(0..=15))]
    prefetches: u8,
    /// How often each node may report a thread as resumed before it has run on.
    #[arg(long, default_value_t = 0, value_parser = value_parser!(u8).range(0..=15))]
    time_outs: u8,
    /// How often each node may ask again for a locked page while other events happen.
    #[arg(long, default_value_t = 0, value_parser = value_parser!(u8).range(0..=15))]
    spins: u8,
    /// Let time pass between an access and the fault that it causes.
    #[arg(long)]
    late_faults: bool,
    /// Do not report when a woken thread resumes.
    #[arg(long)]
    silent: bool,
    /// Let loads ask for the right to store.
    #[arg(long)]
    eager: bool,
    /// Let threads lock pages, change them and unlock them; only with a protocol `lock(…)`.
    #[arg(long, value_enum, default_value_t = Locks::None)]
    locks: Locks,
    /// Let the last node leave when its operations are done.
    #[arg(long)]
    leaver: bool,
    /// Give the pages this protocol when all are done, and let all do the same number of operations again.
    #[arg(long)]
    change: Option<String>,
    /// Let no waiting thread be overtaken more often than this; without a number, twice per thread.
    #[arg(long, num_args = 0..=1, default_missing_value = "0")]
    overtaken_max: Option<u8>,
    /// Also prove that the states form no cycle.
    #[arg(long)]
    must_end: bool,
    #[command(flatten)]
    release: Release,
    #[command(flatten)]
    lease: Lease,
    #[command(flatten)]
    bound: Bound,
}

#[derive(Args, Debug)]
pub(super) struct Synchronise {
    /// What every thread does.
    #[arg(long, value_enum, default_value_t = Program::Locks)]
    program: Program,
    /// Number of nodes.
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u16).range(1..=8))]
    nodes: u16,
    /// Threads of each node.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u8).range(1..=4))]
    threads: u8,
    /// How often every thread does it.
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u8).range(1..=3))]
    rounds: u8,
    /// Locks or words to choose from.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u8).range(1..=3))]
    objects: u8,
    /// Maximum number of calls that are abandoned, all together.
    #[arg(long, default_value_t = 0, value_parser = value_parser!(u8).range(0..=3))]
    time_outs: u8,
    #[command(flatten)]
    bound: Bound,
}

/// Nodes that join and leave.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct ComeAndGo {
    /// Number of founders.
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u16).range(2..=4))]
    founders: u16,
    /// Number of processes that join.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u16).range(1..=3))]
    joiners: u16,
    /// One process may be killed, at any moment.
    #[arg(long)]
    kills: bool,
    #[command(flatten)]
    bound: Bound,
}

/// Programs that allocate and free.
#[derive(Args, Clone, Debug)]
pub(super) struct AllocateAndFree {
    /// Only these programs; by default all.
    #[arg(long, value_name = "NAME", value_parser = |name: &str| named(name, &HeapProgram::ALL, HeapProgram::name))]
    program: Vec<HeapProgram>,
    #[command(flatten)]
    bound: Bound,
}

/// The one of `all` with this name.
fn named<P: Copy>(name: &str, all: &[P], name_of: fn(P) -> &'static str) -> Result<P, String> {
    all.iter().copied().find(|&program| name_of(program) == name).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|&program| name_of(program)).collect();
        format!("accepted: {}", names.join(", "))
    })
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum HomeName {
    Manager,
    Interleaved,
    /// Only with release consistency.
    FirstTouch,
    /// Only with release consistency.
    Migrating,
    /// Explore each of them in turn; only with release consistency.
    All,
}

pub(super) fn run(chosen: &Explore, json: bool) -> Result<bool, String> {
    if chosen.protocol == LEASE {
        return lease::explore(&chosen.lease, chosen.bound.options(), json);
    }
    let mut passed = true;
    for protocol in protocols(&chosen.protocol)? {
        let options = Options { must_end: chosen.must_end, ..chosen.bound.options() };
        if protocol.is_release_consistent() {
            passed &= release::explore(&chosen.release, &shared(chosen, protocol)?, options, json);
            continue;
        }
        let instance = instance(chosen, protocol)?;
        let name = instance.describe();
        passed &= match instance.change {
            Some(_) => show(&name, &mut instance.model_of_ranges(), options, json),
            None => show(&name, &mut instance.model(), options, json),
        };
    }
    Ok(passed)
}

pub(super) fn run_sync(chosen: &Synchronise, json: bool) -> bool {
    let instance = sync_instance(chosen);
    show(&instance.describe(), &mut instance.model(), chosen.bound.options(), json)
}

pub(super) fn run_members(chosen: &ComeAndGo, json: bool) -> bool {
    let &ComeAndGo { founders, joiners, kills, .. } = chosen;
    let instance = MemberInstance { founders, joiners, kills, fault: MemberFault::None };
    show(&instance.describe(), &mut instance.model(), chosen.bound.options(), json)
}

pub(super) fn run_heap(chosen: &AllocateAndFree, json: bool) -> bool {
    each(&chosen.program, &HeapProgram::ALL, |program| {
        let instance = HeapInstance { program, fault: HeapFault::None };
        show(&instance.describe(), &mut instance.model(), must_end(chosen.bound), json)
    })
}

pub(super) fn run_ends(bound: Bound, json: bool) -> bool {
    let explore = |instance: EndInstance| show(&instance.describe(), &mut instance.model(), must_end(bound), json);
    each(&[], &EndInstance::all(EndFault::None), explore)
}

/// Explores the chosen programs, or all; each, whatever is found in those before it. Returns whether all passed.
fn each<P: Copy>(chosen: &[P], all: &[P], explore: impl FnMut(P) -> bool) -> bool {
    let programs = if chosen.is_empty() { all } else { chosen };
    programs.iter().copied().map(explore).fold(true, |all, passed| all & passed)
}

fn must_end(bound: Bound) -> Options {
    Options { must_end: true, ..bound.options() }
}

/// The name of all protocols with release consistency together in `--protocol`.
pub(super) const RELEASE: &str = "release";

/// The protocol with that name, all with sequential consistency, or all with release consistency.
pub(super) fn protocols(name: &str) -> Result<Vec<Protocol>, String> {
    match name {
        "all" => Ok(Protocol::all()),
        RELEASE => Ok(Protocol::all_release_consistent()),
        name => name.parse().map(|protocol| vec![protocol]).map_err(|error| format!("--protocol: {error}")),
    }
}

/// The options, for a protocol with release consistency.
fn shared(chosen: &Explore, protocol: Protocol) -> Result<Shared, String> {
    let has_other = chosen.leaver || chosen.silent || chosen.change.is_some() || !matches!(chosen.locks, Locks::None);
    if has_other || chosen.overtaken_max.is_some() {
        return Err(format!(
            "--protocol {protocol}: it knows no --locks, --leaver, --silent, --change and --overtaken-max"
        ));
    }
    if chosen.manager >= chosen.nodes {
        return Err(format!("--manager {}: nodes are 0 to {}", chosen.manager, chosen.nodes - 1));
    }
    let home = match chosen.home {
        HomeName::Manager => Some(release::manager(chosen.manager)),
        HomeName::Interleaved => Some(Home::Interleaved(Interleaved)),
        HomeName::FirstTouch => Some(Home::FirstTouch(FirstTouch)),
        HomeName::Migrating => Some(Home::Migrating(Migrating)),
        HomeName::All => None,
    };
    let is_wide = !matches!(chosen.requests, Requests::Narrow);
    let (nodes, pages, late_faults) = (chosen.nodes, chosen.pages, chosen.late_faults);
    Ok(Shared { protocol, nodes, pages, home, is_wide, late_faults })
}

fn instance(chosen: &Explore, protocol: Protocol) -> Result<Instance, String> {
    if chosen.manager >= chosen.nodes {
        let last = chosen.nodes - 1;
        return Err(format!("--manager {}: nodes are 0 to {last}", chosen.manager));
    }
    if chosen.leaver && chosen.manager + 1 >= chosen.nodes {
        return Err(format!("--leaver: the last node leaves, so --manager {} must be another one", chosen.manager));
    }
    let locks = chosen.locks;
    if locks != Locks::None && !protocol.can_lock() {
        return Err(format!("--locks: {protocol} cannot lock pages; choose a protocol like lock({protocol})"));
    }
    let change = chosen.change.as_ref().map(|name| name.parse().map_err(|error| format!("--change: {error}")));
    let change: Option<Protocol> = change.transpose()?;
    if let Some(changed) = change.filter(|changed| locks != Locks::None && !changed.can_lock()) {
        return Err(format!(
            "--locks: {changed} cannot lock pages; choose a protocol like lock({changed}) for --change"
        ));
    }
    let instance = Instance {
        home: match chosen.home {
            HomeName::Manager => Home::Manager(Manager(NodeId(chosen.manager))),
            HomeName::Interleaved => Home::Interleaved(Interleaved),
            HomeName::FirstTouch | HomeName::Migrating | HomeName::All => {
                return Err(format!("--home: {protocol} has its homes at a manager, or interleaved"));
            }
        },
        threads: chosen.threads,
        requests: chosen.requests,
        prefetches: chosen.prefetches,
        time_outs: chosen.time_outs,
        spins: chosen.spins,
        late_faults: chosen.late_faults,
        silent: chosen.silent,
        eager: chosen.eager,
        locks,
        leaver: chosen.leaver,
        change,
        ..Instance::new(protocol, chosen.nodes, chosen.pages, chosen.operations)
    };
    let bound = |asked: u8| if asked == 0 { instance.overtaken_bound() } else { asked };
    Ok(Instance { overtaken_max: chosen.overtaken_max.map(bound), ..instance })
}

fn sync_instance(chosen: &Synchronise) -> SyncInstance {
    let program = chosen.program;
    let is_barrier = matches!(program, Program::Barrier | Program::Reduce);
    // The check of these programs remembers the state of one object.
    let is_single =
        matches!(program, Program::Events | Program::Onces | Program::Conditions | Program::CountingBarrier);
    SyncInstance {
        program,
        nodes: chosen.nodes,
        threads: if is_barrier { 1 } else { chosen.threads },
        rounds: chosen.rounds,
        objects: if is_barrier || is_single { 1 } else { chosen.objects },
        time_outs: chosen.time_outs,
    }
}

/// Explores a model and prints the result; returns whether it passed.
fn show(name: &str, model: &mut impl Model, options: Options, json: bool) -> bool {
    let report = explore(model, options, &mut show_progress());
    tell(name, &report, json)
}

/// Explores the named models side by side and prints the results; returns whether all passed.
pub(super) fn show_all<S: Sync, M: Model>(
    setups: &[(String, S)],
    model: impl Fn(&S) -> M + Sync,
    options: Options,
    json: bool,
) -> bool {
    if let [(name, setup)] = setups {
        return show(name, &mut model(setup), options, json);
    }
    let (watched, mut passed, mut done) = (std::io::stderr().is_terminal(), true, 0);
    let work = |(_, setup): &(String, S)| explore(&mut model(setup), options, &mut |_| {});
    side_by_side(setups, work, |(name, _), report| {
        done += 1;
        passed &= tell(name, &report, json);
        if watched {
            progress!("{done} of {} are explored ", setups.len());
        }
    });
    if watched {
        progress!("\r\x1b[K");
    }
    passed
}

/// Prints the result of an exploration; returns whether it passed.
fn tell(name: &str, report: &Report, json: bool) -> bool {
    if std::io::stderr().is_terminal() {
        progress!("\r\x1b[K");
    }
    if json {
        say!("{}", as_json(name, report))
    } else {
        print_text(name, report)
    }
    report.passed()
}

/// Prints the progress of an exploration if standard error is a terminal.
fn show_progress() -> impl FnMut(Progress) {
    let watched = std::io::stderr().is_terminal();
    move |progress| {
        if watched {
            progress!("\r\x1b[K{} states, {} waiting, depth {} ", progress.states, progress.waiting, progress.depth);
        }
    }
}

fn result(report: &Report) -> String {
    match &report.verdict {
        Verdict::Passed => "passed".to_string(),
        Verdict::Broken { what, .. } => format!("broken: {what}"),
        Verdict::TooLarge => "too large: raise --states-max or choose a smaller cluster".to_string(),
        Verdict::Endless { .. } => "endless: the states form a cycle".to_string(),
    }
}

fn as_json(name: &str, report: &Report) -> String {
    format!(
        "{{\"instance\": {}, \"states\": {}, \"transitions\": {}, \"depth\": {}, \"seconds\": {:.3}, \
         \"states_per_second\": {:.0}, \"result\": {}}}",
        json_text(name),
        report.states,
        report.transitions,
        report.depth,
        report.elapsed.as_secs_f64(),
        report.states_per_second(),
        json_text(&result(report))
    )
}

fn print_text(name: &str, report: &Report) {
    say!("{name}");
    say!(
        "  {} states, {} transitions, depth {}, {:.2} s, {:.0} states/s: {}",
        report.states,
        report.transitions,
        report.depth,
        report.elapsed.as_secs_f64(),
        report.states_per_second(),
        result(report)
    );
    if let Verdict::Broken { trace, .. } | Verdict::Endless { trace } = &report.verdict {
        trace.iter().for_each(|line| say!("  {line}"));
    }
}
