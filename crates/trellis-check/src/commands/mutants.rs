//! The command `mutants`.
//!
//! Promises: a mutant that is not noticed is named and makes the result a failure. It must never try fewer mutants
//! than it reports.

use super::explore::protocols;
use super::lease::LEASE;
use super::side_by_side::side_by_side;
use super::{Bound, json_text};
use crate::explore::Report;
use crate::leases::faults::FAULTS;
use crate::mutants::{
    self, Fits, TABLE, markdown, mutants_of, noticed, release_mutants_of, try_leases, try_mutant, try_release,
};
use clap::Args;
use trellis_cluster_protocol::coherence::Protocol;
use trellis_output::lines::say;

/// The name of all about synchronisation in `--protocol`.
const SYNCHRONISATION: &str = "synchronisation";
/// The name of joining and leaving.
const MEMBERSHIP: &str = "membership";
/// The name of allocating and freeing.
const HEAP: &str = "heap";

#[derive(Args, Debug)]
pub(super) struct Mutants {
    /// Only those of this protocol; `synchronisation` for those of locks, barriers and words and of the end of programs;
    /// `membership` for those of joining and leaving; `heap` for those of allocating and freeing; `lease` for those of
    /// leases of remote memory; by default all.
    #[arg(long)]
    protocol: Option<String>,
    /// Only those whose name contains this text.
    #[arg(long, default_value = "")]
    name: String,
    /// Try none: print the list as it is in the documentation.
    #[arg(long)]
    markdown: bool,
    #[command(flatten)]
    bound: Bound,
}

pub(super) fn run(chosen: &Mutants, json: bool) -> Result<bool, String> {
    if chosen.markdown {
        say!("{}", markdown().trim_end());
        return Ok(true);
    }
    let mut total = Total { tried: 0, missed: 0, json };
    let options = chosen.bound.options();
    let all = match chosen.protocol.as_deref() {
        Some(SYNCHRONISATION | MEMBERSHIP | HEAP | LEASE) => Vec::new(),
        Some(name) => protocols(name)?,
        None => [mutants::protocols(), Protocol::all_release_consistent()].concat(),
    };
    let with = |group| chosen.protocol.as_deref().is_none_or(|name| name == group);
    let mut tries: Vec<Try> = Vec::new();
    for protocol in all {
        let of = protocol.to_string();
        for broken in release_mutants_of(protocol) {
            let work = move || try_release(protocol, broken, options);
            tries.push(Try::new(&of, broken.name, broken.what, work));
        }
        if protocol.is_release_consistent() {
            continue;
        }
        for row in mutants_of(protocol) {
            tries.push(Try::new(&of, row.name, row.broken, move || try_mutant(row.mutation, protocol, options)));
        }
    }
    for row in TABLE {
        let group = match row.fits {
            Fits::Synchronisation => SYNCHRONISATION,
            Fits::Membership => MEMBERSHIP,
            Fits::Heap => HEAP,
            _ => continue,
        };
        if with(group) {
            let work = move || try_mutant(row.mutation, Protocol::IVY, options);
            tries.push(Try::new(group, row.name, row.broken, work));
        }
    }
    for broken in FAULTS.iter().filter(|_| with(LEASE)) {
        tries.push(Try::new(LEASE, broken.name, broken.what, move || try_leases(broken.fault, options)));
    }
    tries.retain(|one| one.name.contains(&chosen.name));
    side_by_side(&tries, |one| (one.work)(), |one, report| total.add(&one.protocol, one.name, one.broken, &report));
    if total.tried == 0 {
        return Err(format!("--name {}: no mutant has it; see the list of --markdown", chosen.name));
    }
    if !json {
        say!("{} mutants, {} not noticed", total.tried, total.missed);
    }
    Ok(total.missed == 0)
}

/// A mutant to be tried.
struct Try {
    protocol: String,
    name: &'static str,
    broken: &'static str,
    work: Box<dyn Fn() -> Report + Sync>,
}

impl Try {
    fn new(
        protocol: &str,
        name: &'static str,
        broken: &'static str,
        work: impl Fn() -> Report + Sync + 'static,
    ) -> Try {
        Try { protocol: protocol.to_owned(), name, broken, work: Box::new(work) }
    }
}

struct Total {
    tried: usize,
    missed: usize,
    json: bool,
}

impl Total {
    fn add(&mut self, protocol: &str, name: &str, broken: &str, report: &Report) {
        self.tried += 1;
        self.missed += usize::from(noticed(report).is_none());
        let noticed = noticed(report).unwrap_or("NOT NOTICED");
        if self.json {
            say!(
                "{{\"protocol\": {}, \"mutant\": {}, \"broken\": {}, \"states\": {}, \"noticed\": {}}}",
                json_text(protocol),
                json_text(name),
                json_text(broken),
                report.states,
                json_text(noticed)
            );
        } else {
            say!("{protocol:28} {name:24} {:>8} states: {noticed}", report.states);
        }
    }
}
