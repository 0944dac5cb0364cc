//! Broken protocols, each of which the explorer must notice.
//!
//! A mutant is the real protocol behind a wrapper that alters what goes in or what comes out. An
//! explorer that lets one of them pass would not be worth its name; one that complains about the
//! unaltered protocol would be worth less. Promises: each mutation is one rule of the protocol
//! broken, deterministically. It must never change what a wrapper without a mutation does: the
//! canary runs the same instances with [`Fault::None`].

mod pages;
mod synchronisation;

pub use pages::{Fault, Mutant};
pub use synchronisation::{SyncFault, SyncMutant};

use crate::explore::{Options, Report, Verdict, explore};
use crate::pages::{Instance, Wishes};
use crate::synchronisation::{Program, SyncInstance};
use trellis_protocol::coherence::Protocol;

/// A mutant and what it breaks.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// The rule that it breaks.
    pub broken: &'static str,
    /// How.
    pub mutation: Mutation,
}

/// Where the mutation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// In the coherence protocol.
    Pages(Fault),
    /// In locks, barriers or words.
    Sync(SyncFault, Program),
}

const fn pages(name: &'static str, broken: &'static str, fault: Fault) -> Row {
    Row { name, broken, mutation: Mutation::Pages(fault) }
}

const fn sync(name: &'static str, broken: &'static str, fault: SyncFault, program: Program) -> Row {
    Row { name, broken, mutation: Mutation::Sync(fault, program) }
}

/// Every mutant.
pub const TABLE: [Row; 29] = [
    pages("keeps-copy", "an invalidation is acknowledged without giving up the copy", Fault::KeepsCopy),
    pages("no-downgrade", "a writer keeps its right when a reader gets a copy", Fault::NoDowngrade),
    pages("no-revoke", "a supplier keeps its view when it gives the right to write", Fault::NoRevoke),
    pages("grants-too-early", "the manager grants before readers acknowledged", Fault::GrantsTooEarly),
    pages("forgets-reader", "the manager forgets to invalidate a reader", Fault::ForgetsReader),
    pages("kept-not-bytes", "a grant says `kept` though the receiver has no copy", Fault::KeptNotBytes),
    pages("zero-not-bytes", "a grant says `zero` though the page was written", Fault::ZeroNotBytes),
    pages("ignores-after", "a forward is not made to wait for the grant it speaks of", Fault::IgnoresAfter),
    pages("no-wait-for-confirm", "the manager goes on before the transfer is confirmed", Fault::NoWaitForConfirm),
    pages("loses-queued", "a request that must queue is lost", Fault::LosesQueued),
    pages("no-wake", "a granted thread is not woken", Fault::NoWake),
    pages("narrow-wake", "threads that wait for the other pages of a run are not woken", Fault::NarrowWake),
    pages("no-confirm", "the receiver does not confirm", Fault::NoConfirm),
    pages("write-for-read", "a read grant is installed for stores", Fault::WriteForRead),
    pages("sends-write-for-read", "a read request is granted for stores", Fault::SendsWriteForRead),
    pages("send-before-revoke", "bytes are read out before the view loses its right", Fault::SendBeforeRevoke),
    pages("no-hold", "nobody is told that a held page is wanted", Fault::NoHold),
    pages("ignores-resumed", "a held page is never let go", Fault::IgnoresResumed),
    pages(
        "acknowledges-unheard",
        "an invalidation that overtook its grant is acknowledged at once",
        Fault::AcknowledgesUnheard,
    ),
    pages("grant-too-wide", "a grant names a page that was not given", Fault::GrantTooWide),
    pages("acknowledges-twice", "an invalidation is acknowledged twice", Fault::AcknowledgesTwice),
    pages("no-upgrade", "the right to write is recorded but not put into force", Fault::NoUpgrade),
    sync("token-twice", "a node keeps the token that it hands over", SyncFault::TokenTwice, Program::Locks),
    sync("no-lock-forward", "the home forgets to name the next holder", SyncFault::NoForward, Program::Locks),
    sync(
        "misroutes-token",
        "the home names somebody who did not ask as the next holder",
        SyncFault::Misroutes,
        Program::Locks,
    ),
    sync("releases-early", "a barrier opens before its last child arrived", SyncFault::ReleasesEarly, Program::Barrier),
    sync("forgets-child", "a child is not released from a barrier", SyncFault::ForgetsChild, Program::Barrier),
    sync("adds-twice", "an operation on a word is carried out twice", SyncFault::AddsTwice, Program::Words),
    sync("no-reply", "the value of a word is not sent back", SyncFault::NoReply, Program::Words),
];

/// The instances on which mutants of the coherence protocol are tried, smallest first.
pub fn page_instances(protocol: Protocol) -> Vec<Instance> {
    let two = Instance { paired: false, ..Instance::new(protocol, 2, 1, 2) };
    let three = Instance { paired: false, ..Instance::new(protocol, 3, 1, 2) };
    let runs =
        Instance { wishes: Wishes::Both, threads: 2, operations: 1, paired: false, ..Instance::new(protocol, 2, 2, 1) };
    let three_runs = Instance { wishes: Wishes::Wide, paired: false, ..Instance::new(protocol, 3, 2, 1) };
    vec![two, three, three_runs, runs]
}

/// The instance on which mutants of synchronisation are tried.
pub fn sync_instance(program: Program) -> SyncInstance {
    SyncInstance { program, nodes: 3, threads: 1, rounds: 2, objects: 1 }
}

/// Explores a mutant on one instance after the other until one notices it; the sum of the states
/// is in the report.
pub fn try_mutant(row: &Row, options: Options) -> Report {
    match row.mutation {
        Mutation::Pages(fault) => try_pages(fault, options),
        Mutation::Sync(fault, program) => {
            let mut model = sync_instance(program).model_of(|me, nodes| SyncMutant::new(me, nodes, fault));
            explore(&mut model, options, &mut |_| {})
        }
    }
}

fn try_pages(fault: Fault, options: Options) -> Report {
    let options = Options { must_end: true, ..options };
    let mut sum: Option<Report> = None;
    for instance in Protocol::ALL.into_iter().flat_map(page_instances) {
        let protocol = instance.protocol;
        let mut model = instance.model_of(|geometry| Mutant::new(protocol.start(geometry), geometry, fault));
        let mut report = explore(&mut model, options, &mut |_| {});
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

/// What the explorer noticed about a mutant, if it did.
pub fn noticed(report: &Report) -> Option<&str> {
    match &report.verdict {
        Verdict::Broken { what, .. } => Some(what),
        Verdict::Endless => Some("threads can wait for ever: the states form a circle"),
        Verdict::Passed | Verdict::TooLarge => None,
    }
}
