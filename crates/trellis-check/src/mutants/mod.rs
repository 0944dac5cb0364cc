//! Broken protocols, each of which the explorer must notice.
//!
//! A mutant is the real protocol behind a wrapper that alters its input or its output. An explorer is useless if it
//! accepts a mutant, and more so if it rejects the unaltered protocol. Promises: each mutation breaks one rule of the
//! protocol, deterministically. It must never change the behaviour of a wrapper without a mutation: the canary runs
//! the same instances with [`Fault::None`].

mod leases;
mod node;
mod pages;
mod release;
mod rules;
mod synchronisation;
mod table;

pub use leases::{LEASE_SEEDS_MAX, try_leases};
pub use node::{NODE_SEEDS_MAX, node_instances, try_node};
pub use pages::{Fault, Mutant};
pub use release::{SEEDS_MAX, release_mutants_of, try_release};
pub use synchronisation::{SyncFault, SyncMutant};
pub use table::TABLE;

use crate::ends::{EndFault, EndInstance};
use crate::explore::{Options, Report, Verdict, explore};
use crate::heap::{HeapFault, HeapInstance, HeapProgram};
use crate::leases::faults as lease_faults;
use crate::members::{MemberFault, MemberInstance};
use crate::pages::{Instance, Locks, Requests};
use crate::release::faults::FAULTS;
use crate::simulate::NodeFault;
use crate::synchronisation::{Program, SyncInstance};
use std::fmt::Write;
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::coherence::choices::{Base, Layer, Waiting};

/// A mutant and the rule that it breaks.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// The rule that it breaks.
    pub broken: &'static str,
    /// The protocols that have the rule.
    pub fits: Fits,
    /// The mutation that breaks it.
    pub mutation: Mutation,
}

/// The component that a mutation changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The coherence protocol.
    Pages(Fault),
    /// Synchronisation.
    Sync(SyncFault, Program),
    /// The end of a program.
    End(EndFault),
    /// Joining and leaving.
    Member(MemberFault),
    /// The shared heap.
    Heap(HeapFault),
    /// Other decisions of a node.
    Node(NodeFault),
}

/// The protocols that have a rule. A rule that belongs to no layer is also tried within layers, unless a layer removes
/// the subject of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fits {
    /// All.
    Any,
    /// Those with read copies.
    Copies,
    /// Those that grant ranges of pages.
    Runs,
    /// Those whose pages have a manager that orders transfers.
    Managed,
    /// `ivy`.
    Ivy,
    /// `dynamic(…)`.
    Dynamic,
    /// `dynamic(…)`, within layers too.
    AnyDynamic,
    /// `dynamic(forward)`.
    Forward,
    /// `dynamic(redirect)`.
    Redirect,
    /// `lock(…)`.
    Lock,
    /// `lock(…, spin …)`.
    Spin,
    /// `delay(…)`.
    Delay,
    /// `lock(…)`, `delay(…)`.
    Layered,
    /// No coherence protocol: locks, barriers, words, objects at their home, and the end of programs.
    Synchronisation,
    /// No coherence protocol: joining and leaving.
    Membership,
    /// No coherence protocol: allocating and freeing.
    Heap,
}

impl Fits {
    /// Whether `protocol` has the rule.
    pub fn includes(self, protocol: Protocol) -> bool {
        let base = protocol.base();
        let is_forward = matches!(base, Base::DynamicForward | Base::DynamicMigratory);
        let is_dynamic = is_forward || base == Base::DynamicRedirect;
        let is_bare = protocol.layers().next().is_none();
        let has = |which: fn(&Layer) -> bool| protocol.layers().any(|layer| which(&layer));
        match self {
            Fits::Any => true,
            Fits::Copies => base != Base::Migrate,
            Fits::Runs => is_bare && base != Base::Migrate,
            Fits::Managed => is_bare && !is_dynamic,
            Fits::Ivy => is_bare && base == Base::Ivy,
            Fits::Dynamic => is_bare && is_dynamic,
            Fits::AnyDynamic => is_dynamic,
            Fits::Forward => is_bare && is_forward,
            Fits::Redirect => is_bare && base == Base::DynamicRedirect,
            Fits::Lock => protocol.can_lock(),
            Fits::Spin => has(|layer| matches!(layer, Layer::Lock(Waiting::Spin(_)))),
            Fits::Delay => has(|layer| matches!(layer, Layer::Delay(_))),
            Fits::Layered => !is_bare,
            Fits::Synchronisation | Fits::Membership | Fits::Heap => false,
        }
    }

    /// The text for the published list.
    pub fn words(self) -> &'static str {
        match self {
            Fits::Any => "all",
            Fits::Copies => "all but `migrate`",
            Fits::Runs => "`ivy`, `dynamic`",
            Fits::Managed => "`ivy`, `migrate`",
            Fits::Ivy => "`ivy`",
            Fits::Dynamic => "`dynamic`",
            Fits::AnyDynamic => "`dynamic`, within layers too",
            Fits::Forward => "`dynamic(forward)`",
            Fits::Redirect => "`dynamic(redirect)`",
            Fits::Lock => "`lock(…)`",
            Fits::Spin => "`lock(…, spin …)`",
            Fits::Delay => "`delay(…)`",
            Fits::Layered => "`lock(…)`, `delay(…)`",
            Fits::Synchronisation => "synchronisation",
            Fits::Membership => "membership",
            Fits::Heap => "heap",
        }
    }
}

/// The protocols on which mutants are tried: those that all tests cover, and some whose pages always stay for a while.
pub fn protocols() -> Vec<Protocol> {
    let fixed = ["delay(ivy, 500us)", "delay(dynamic(forward), 500us)", "lock(migrate)"];
    let mut all = Protocol::all();
    all.extend(fixed.iter().map(|name| name.parse::<Protocol>().expect("a protocol")));
    all
}

/// The mutants of `protocol`.
pub fn mutants_of(protocol: Protocol) -> Vec<Row> {
    TABLE.iter().copied().filter(|row| row.fits.includes(protocol)).collect()
}

/// Tries a mutant. `protocol` must have its rule, and does not matter to synchronisation.
pub fn try_mutant(mutation: Mutation, protocol: Protocol, options: Options) -> Report {
    match mutation {
        Mutation::Pages(fault) => try_pages(protocol, fault, options),
        Mutation::Sync(fault, program) => try_sync(fault, program, options),
        Mutation::End(fault) => try_end(fault, options),
        Mutation::Member(fault) => try_member(fault, options),
        Mutation::Heap(fault) => try_heap(fault, options),
        Mutation::Node(fault) => try_node(protocol, fault, options),
    }
}

/// The instances on which mutants of the coherence protocol are tried, smallest first.
pub fn page_instances(protocol: Protocol) -> Vec<Instance> {
    // Where grants are numbered, waiting threads lead to new states for ever; the bound on overtaking ends this.
    let of = |nodes, pages, operations| Instance {
        paired: false,
        overtaken_max: Some(8),
        ..Instance::new(protocol, nodes, pages, operations)
    };
    let three = of(3, 1, 2);
    let silent = Instance { silent: true, ..of(2, 1, 2) };
    let three_runs = Instance { requests: Requests::Wide, ..of(3, 2, 1) };
    if !protocol.can_lock() {
        let mut instances = vec![of(2, 1, 2), silent, three_runs, of(2, 2, 2), three];
        if Fits::Runs.includes(protocol) {
            instances.push(Instance { requests: Requests::Wide, threads: 2, ..of(2, 2, 1) });
        }
        return instances;
    }
    let two = Instance { locks: Locks::Kept, ..of(2, 1, 2) };
    let timed = Instance { locks: Locks::Timed, ..of(2, 1, 1) };
    let withdrawn = Instance { locks: Locks::GivenUp, ..of(2, 1, 1) };
    let threads = Instance { locks: Locks::Kept, threads: 2, ..of(2, 1, 1) };
    let pages = Instance { locks: Locks::Kept, requests: Requests::Both, ..of(2, 2, 1) };
    let locks = Instance { locks: Locks::Kept, ..of(3, 1, 1) };
    vec![two, silent, timed, withdrawn, pages, locks, threads, of(2, 2, 2), three]
}

/// The instances on which mutants of synchronisation are tried, smallest first.
pub fn sync_instances(program: Program) -> Vec<SyncInstance> {
    let whole = SyncInstance { program, nodes: 3, threads: 1, rounds: 1, objects: 1, time_outs: 0 };
    let twice = SyncInstance { rounds: 2, ..whole };
    let can_abandon = !matches!(program, Program::Locks | Program::AbandonedLocks | Program::Words);
    let abandoned = SyncInstance { time_outs: 1, ..whole };
    let abandoned_twice = SyncInstance { time_outs: 1, ..twice };
    let four = SyncInstance { nodes: 4, ..abandoned };
    match program {
        Program::ReadWriteLocks => vec![whole, abandoned, twice],
        _ if can_abandon => vec![whole, abandoned, twice, abandoned_twice, four],
        _ => vec![whole, twice],
    }
}

/// The instances on which mutants of membership are tried, smallest first.
pub fn member_instances(fault: MemberFault) -> Vec<MemberInstance> {
    let one = MemberInstance { founders: 2, joiners: 1, kills: false, fault };
    let three = MemberInstance { founders: 3, ..one };
    let killed = |instance| MemberInstance { kills: true, ..instance };
    vec![one, three, MemberInstance { joiners: 2, ..one }, killed(one), killed(three)]
}

/// Explores a mutant of membership.
pub fn try_member(fault: MemberFault, options: Options) -> Report {
    one_after_the_other(member_instances(fault), |instance| explore(&mut instance.model(), options, &mut |_| {}))
}

/// Explores a mutant of the end of a program.
pub fn try_end(fault: EndFault, options: Options) -> Report {
    one_after_the_other(EndInstance::all(fault), |instance| explore(&mut instance.model(), options, &mut |_| {}))
}

/// The instances on which mutants of the shared heap are tried.
pub fn heap_instances(fault: HeapFault) -> Vec<HeapInstance> {
    HeapProgram::ALL.into_iter().map(|program| HeapInstance { program, fault }).collect()
}

/// Explores a mutant of the shared heap.
pub fn try_heap(fault: HeapFault, options: Options) -> Report {
    one_after_the_other(heap_instances(fault), |instance| explore(&mut instance.model(), options, &mut |_| {}))
}

/// Explores a mutant of `protocol` on one instance after the other until one notices it; the report contains the sum
/// of the states.
pub fn try_pages(protocol: Protocol, fault: Fault, options: Options) -> Report {
    let options = Options { must_end: true, ..options };
    one_after_the_other(page_instances(protocol), |instance| {
        let mut model = instance.model_of(|geometry| Mutant::new(protocol.start(geometry), geometry, fault));
        explore(&mut model, options, &mut |_| {})
    })
}

/// Explores a mutant of synchronisation.
pub fn try_sync(fault: SyncFault, program: Program, options: Options) -> Report {
    one_after_the_other(sync_instances(program), |instance| {
        explore(&mut instance.model_with(fault), options, &mut |_| {})
    })
}

/// Explores instances until something is noticed. Returns the last report, with the states of all.
fn one_after_the_other<I>(instances: Vec<I>, explore: impl Fn(I) -> Report) -> Report {
    let mut sum: Option<Report> = None;
    for instance in instances {
        let mut report = explore(instance);
        if let Some(before) = sum {
            report.states += before.states;
            report.transitions += before.transitions;
            report.elapsed += before.elapsed;
        }
        if !report.passed() {
            return report;
        }
        sum = Some(report);
    }
    sum.expect("there are instances")
}

/// The rule that the explorer saw broken by a mutant, if any.
pub fn noticed(report: &Report) -> Option<&str> {
    match &report.verdict {
        Verdict::Broken { what, .. } => Some(what),
        Verdict::Endless { .. } => Some("threads can wait for ever: the states form a cycle"),
        Verdict::Passed | Verdict::TooLarge => None,
    }
}

/// The content of `docs/reference/mutants.md`.
pub fn markdown() -> String {
    let mut text = String::from(
        "# Mutants\n\nProtocols with one rule broken. The explorer of `trellis check` must notice each of them: \
         `trellis check mutants`\ntries all, on every protocol that has the rule, and its exit status is 0 when none \
         was missed. This list is printed by\n`trellis check mutants --markdown`.\n\n| protocol | mutants |\n|---|---|\n",
    );
    for protocol in protocols() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| `{protocol}` | {} |", mutants_of(protocol).len());
    }
    for protocol in Protocol::all_release_consistent() {
        let _ = writeln!(text, "| `{protocol}` | {} |", release_mutants_of(protocol).len());
    }
    for fits in [Fits::Synchronisation, Fits::Membership, Fits::Heap] {
        let count = TABLE.iter().filter(|row| row.fits == fits).count();
        let _ = writeln!(text, "| {} | {count} |", fits.words());
    }
    let _ = writeln!(text, "| `lease` | {} |\n", lease_faults::FAULTS.len());
    text += "| mutant | what is broken | where |\n|---|---|---|\n";
    for row in TABLE {
        let _ = writeln!(text, "| `{}` | {} | {} |", row.name, row.broken, row.fits.words());
    }
    for broken in FAULTS {
        let _ = writeln!(text, "| `{}` | {} | {} |", broken.name, broken.what, release::words(broken.of));
    }
    for broken in lease_faults::FAULTS {
        let _ = writeln!(text, "| `{}` | {} | `lease` |", broken.name, broken.what);
    }
    text
}
