//! `mutants`.
//!
//! Promises: what is not noticed is named, and makes the result a failure. It must never try fewer mutants than it says.

use super::explore::protocols;
use super::lease::LEASE;
use super::{Bound, json_text};
use crate::explore::Report;
use crate::leases::faults::FAULTS;
use crate::mutants::{
    self, Mutation, TABLE, markdown, mutants_of, noticed, release_mutants_of, try_leases, try_pages, try_release,
    try_sync,
};
use crate::say;
use clap::Args;
use trellis_protocol::coherence::Protocol;

/// What `--protocol` calls locks, barriers and words.
const SYNCHRONISATION: &str = "synchronisation";

#[derive(Args, Debug)]
pub(super) struct Mutants {
    /// Only those of this protocol, or `synchronisation` for those of locks, barriers and words, or `lease` for those of
    /// leases of remote memory; otherwise all.
    #[arg(long)]
    protocol: Option<String>,
    /// Only those whose name holds this.
    #[arg(long, default_value = "")]
    name: String,
    /// Try nothing: print the list as it stands in the documentation.
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
    let (all, with_synchronisation, with_leases) = match chosen.protocol.as_deref() {
        Some(SYNCHRONISATION) => (Vec::new(), true, false),
        Some(LEASE) => (Vec::new(), false, true),
        Some(name) => (protocols(name)?, false, false),
        None => ([mutants::protocols(), Protocol::all_release_consistent()].concat(), true, true),
    };
    for protocol in all {
        let of = protocol.to_string();
        for broken in release_mutants_of(protocol).iter().filter(|broken| broken.name.contains(&chosen.name)) {
            total.add(&of, broken.name, broken.what, &try_release(protocol, broken.fault, options));
        }
        if protocol.is_release_consistent() {
            continue;
        }
        for (row, fault) in mutants_of(protocol).into_iter().filter(|(row, _)| row.name.contains(&chosen.name)) {
            total.add(&of, row.name, row.broken, &try_pages(protocol, fault, options));
        }
    }
    for row in TABLE.iter().filter(|row| with_synchronisation && row.name.contains(&chosen.name)) {
        if let Mutation::Sync(fault, program) = row.mutation {
            total.add(SYNCHRONISATION, row.name, row.broken, &try_sync(fault, program, options));
        }
    }
    for broken in FAULTS.iter().filter(|broken| with_leases && broken.name.contains(&chosen.name)) {
        total.add(LEASE, broken.name, broken.what, &try_leases(broken.fault, options));
    }
    if total.tried == 0 {
        return Err(format!("--name {}: no mutant has it; see the list of --markdown", chosen.name));
    }
    if !json {
        say!("{} mutants, {} not noticed", total.tried, total.missed);
    }
    Ok(total.missed == 0)
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
