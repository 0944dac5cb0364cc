//! Advice: the settings and changes of layout that the records of a run point to.
//!
//! Promises: each piece of advice says what was measured, in time and in counts, and what to do about it. The time that
//! it names as lost is what was measured, so that no change can gain more. Pages have one use each, so that no time is
//! named twice among them; the shares of barriers, locks and the service thread are others. It must never advise a
//! setting that the run already had.

mod pages;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use pages::{Group, Use, uses};
use serde::Serialize;

use crate::{Counters, FaultKind, FaultRecord, Record};

/// How many pieces of advice are given.
pub const ADVICE_MAX: usize = 3;

/// What costs less than this share of the threads' time is not worth a change.
const SHARE_MIN: f64 = 0.02;

/// A piece of advice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The time of all threads that was lost, in seconds.
    pub lost_seconds: f64,
    /// The same as a share of the threads' time, 0 to 1.
    pub share: f64,
    /// What was lost, and what to do.
    pub sentence: String,
}

/// What is advised after a run: at most [`ADVICE_MAX`] pieces, the most expensive first. With a phase, only what
/// happened in phases of that name counts.
///
/// # Errors
///
/// The names of the phases that there are, if none has this name.
pub fn advise(records: &[Record], phase: Option<&str>) -> Result<Vec<Advice>, String> {
    let run = Run::new(records, phase)?;
    let mut all = run.of_pages();
    all.extend(
        [run.fresh(), run.barriers(), run.locks(), run.service(), run.diffs(), run.evictions()].into_iter().flatten(),
    );
    let seconds = run.seconds();
    let advice = all.into_iter().map(|(lost_ns, sentence)| {
        let lost_seconds = lost_ns as f64 / 1e9;
        Advice { lost_seconds, share: lost_seconds / seconds.max(f64::MIN_POSITIVE), sentence }
    });
    let mut advice: Vec<Advice> = advice.filter(|advice| advice.share >= SHARE_MIN).collect();
    advice.sort_by(|one, other| other.lost_seconds.total_cmp(&one.lost_seconds));
    advice.truncate(ADVICE_MAX);
    Ok(advice)
}

/// The counters of each node; with a phase, only what happened in phases of that name.
///
/// # Errors
///
/// As [`advise`].
pub fn counters(records: &[Record], phase: Option<&str>) -> Result<BTreeMap<usize, Counters>, String> {
    Ok(Run::new(records, phase)?.counters)
}

/// What is lost, in nanoseconds, and the sentence about it.
type Loss = (u64, String);

/// The part of a run that counts.
struct Run<'a> {
    records: &'a [Record],
    phase: Option<&'a str>,
    /// By node.
    counters: BTreeMap<usize, Counters>,
}

impl<'a> Run<'a> {
    fn new(records: &'a [Record], phase: Option<&'a str>) -> Result<Run<'a>, String> {
        let phases = || records.iter().flat_map(|record| &record.phases);
        if let Some(phase) = phase
            && !phases().any(|other| other.name == phase)
        {
            let mut names: Vec<&str> = phases().map(|phase| phase.name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            return Err(match names.is_empty() {
                true => {
                    format!("no phase is named {phase}: the program names none (`cluster.phase(\"{phase}\")` does)")
                }
                false => format!("no phase is named {phase}; the program names {}", names.join(", ")),
            });
        }
        let counters_of = |record: &Record| match phase {
            None => record.counters,
            Some(phase) => {
                let of_phase = record.phases.iter().filter(|other| other.name == phase);
                let sum = of_phase.fold(Counters::default(), |sum, phase| sum.plus(&phase.counters));
                // Each phase names the threads of the whole run.
                Counters { program_threads: record.counters.program_threads, ..sum }
            }
        };
        let counters = records.iter().map(|record| (record.node, counters_of(record))).collect();
        Ok(Run { records, phase, counters })
    }

    /// The faults of a node that count.
    fn faults(&self, record: &'a Record) -> Vec<&'a FaultRecord> {
        let counts = |fault: &&FaultRecord| {
            self.phase.is_none_or(|name| {
                let is_inside = |time| move |phase: &&crate::Phase| (phase.start_us..phase.end_us).contains(&time);
                record.phases.iter().filter(is_inside(fault.time_us)).any(|phase| phase.name == name)
            })
        };
        record.faults.iter().filter(counts).collect()
    }

    /// The time of the program's threads.
    fn seconds(&self) -> f64 {
        let of_node = |counters: &Counters| counters.program_ns as f64 / 1e9 * counters.program_threads.max(1) as f64;
        self.counters.values().map(of_node).sum()
    }

    fn sum(&self, counter: fn(&Counters) -> u64) -> u64 {
        self.counters.values().map(counter).sum()
    }

    fn first(&self) -> Option<&'a Record> {
        self.records.first()
    }

    fn has(&self, coherence: &str) -> bool {
        self.first().is_some_and(|record| record.coherence.starts_with(coherence))
    }

    fn of_pages(&self) -> Vec<Loss> {
        let groups = uses(|record| self.faults(record), self.records);
        groups.into_iter().filter_map(|(usage, group)| Some((group.waited_ns, self.about(usage, &group)?))).collect()
    }

    fn about(&self, usage: Use, group: &Group) -> Option<String> {
        let page_bytes = self.first().map_or(0, |record| record.page_bytes);
        let (faults, nodes) = (group.faults, listed(&group.nodes));
        let place = place(group, page_bytes as u64);
        Some(match usage {
            Use::FalseSharing if self.has("hlrc") => format!(
                "false sharing, {faults} faults: {nodes} use different parts of the same pages, {place}; give each \
                 node's part pages of its own (padding to {page_bytes} bytes)"
            ),
            Use::FalseSharing => format!(
                "false sharing, {faults} faults: {nodes} use different parts of the same pages, {place}; give each \
                 node's part pages of its own (padding to {page_bytes} bytes), or set coherence = hlrc for them if the \
                 program is free of data races"
            ),
            Use::ReadThenWritten if self.has("migrate") || self.has("hlrc") => return None,
            Use::ReadThenWritten => format!(
                "second faults, {faults} faults of {nodes}: pages are loaded from and then stored to, {place}; set \
                 coherence = migrate for them, which brings the right to store with the first load"
            ),
            Use::OneWriter if self.has("hlrc(update)") => return None,
            Use::OneWriter => format!(
                "one node stores and others load what it stored, {faults} faults of {nodes}, {place}; prefetch() it \
                 before it is used, or set coherence = hlrc(update) for it if the program is free of data races"
            ),
            Use::SameBytes => format!(
                "the same bytes in turn, {faults} faults: {nodes} store to them, {place}; let each node collect its own \
                 part and join the parts once (`reduce` in a barrier), or take turns less often"
            ),
            Use::Sequence => format!(
                "page after page, {faults} faults of {nodes}, {place}; call prefetch() for these pages before they are \
                 used, or set reserve = full if their memory is fresh"
            ),
        })
    }

    /// Pages that are touched for the first time.
    fn fresh(&self) -> Option<Loss> {
        let of_node =
            |record: &'a Record| self.faults(record).into_iter().filter(|fault| fault.kind == FaultKind::Local);
        let lost = self.records.iter().flat_map(of_node).map(|fault| fault.wait_us_x10 * 100).sum();
        let faults = self.sum(|counters| counters.local_faults);
        Some((
            lost,
            format!(
                "fresh pages, {faults} faults without another node: set reserve = full, and region_bytes to the size that \
             the program needs, so that its memory is there before it starts; or name a phase after the data is filled, \
             so that this does not count"
            ),
        ))
    }

    /// Threads that waited in barriers.
    fn barriers(&self) -> Option<Loss> {
        let waited = |counters: &Counters| counters.barrier_wait_ns / counters.program_threads.max(1);
        let (last, least) =
            self.counters.iter().map(|(node, counters)| (*node, waited(counters))).min_by_key(|of| of.1)?;
        let lost = self.sum(|counters| counters.barrier_wait_ns);
        let uneven: u64 =
            self.counters.values().map(|counters| (waited(counters) - least) * counters.program_threads.max(1)).sum();
        let barriers =
            self.counters.values().map(|counters| counters.barriers / counters.program_threads.max(1)).max()?;
        Some(match uneven * 2 > lost {
            true => (
                uneven,
                format!(
                    "waiting in barriers for node {last}, which waited least: give it less work, or divide the work into \
                 smaller pieces that nodes take when they are free"
                ),
            ),
            false => (
                lost,
                format!(
                    "{barriers} barriers, in which all nodes wait alike, {:.0} us each: do more between two of them, or drop \
                 those that order nothing",
                    lost as f64 / 1e3 / self.sum(|counters| counters.barriers).max(1) as f64
                ),
            ),
        })
    }

    fn locks(&self) -> Option<Loss> {
        let (all, alone) =
            (self.sum(|counters| counters.lock_acquires), self.sum(|counters| counters.lock_acquires_local));
        (all > 0).then(|| {
            let lost = self.sum(|counters| counters.lock_wait_ns);
            (lost, format!(
                "locks, {all} taken, {alone} of them without a message: hold each for a shorter time, divide what it \
                 protects among several, or collect results with `reduce` in a barrier"
            ))
        })
    }

    /// The service thread, which takes a core from the program.
    fn service(&self) -> Option<Loss> {
        let record = self.first()?;
        let lost = self.sum(|counters| counters.handler_ns);
        let what = "the service thread worked while the program computed";
        match (record.catch.as_str(), record.home.as_str()) {
            ("handler", _) => {
                Some((lost, format!("{what}: set catch = signal (`trellis doctor` says whether it works)")))
            }
            (_, "manager") => {
                let homes = if self.has("hlrc") { "first-touch or interleaved" } else { "interleaved" };
                Some((lost, format!("{what}: set home = {homes}, which divides its work among the nodes")))
            }
            _ => None,
        }
    }

    /// What `hlrc` sends to homes.
    fn diffs(&self) -> Option<Loss> {
        let diffs = self.sum(|counters| counters.diffs_out);
        let is_elsewhere = self.first()?.home != "first-touch";
        (diffs > 0 && is_elsewhere).then(|| {
            let lost = self.sum(|counters| counters.overhead_ns);
            (lost, format!("{diffs} diffs sent to homes: set home = first-touch, so that who stores most is the home"))
        })
    }

    /// Pages that did not fit into the memory of a node.
    fn evictions(&self) -> Option<Loss> {
        let evicted = self.sum(|counters| counters.pages_evicted);
        (evicted > 0).then(|| {
            let lost = self.sum(|counters| counters.fault_wait_ns);
            (
                lost,
                format!(
                    "{evicted} pages left for lack of memory, and were fetched again if they were needed: raise --cache"
                ),
            )
        })
    }
}

/// The nodes of a list in words.
fn listed(nodes: &[usize]) -> String {
    match nodes {
        [] => "no node".to_owned(),
        [node] => format!("node {node}"),
        [first, .., last] if nodes.len() > 3 && last - first + 1 == nodes.len() => format!("nodes {first} to {last}"),
        [first, .., last] if nodes.len() > 3 => format!("{} of the nodes {first} to {last}", nodes.len()),
        [firsts @ .., last] => {
            let firsts: Vec<String> = firsts.iter().map(usize::to_string).collect();
            format!("nodes {} and {last}", firsts.join(", "))
        }
    }
}

/// Where pages lie.
fn place(group: &Group, page_bytes: u64) -> String {
    let (first, count) = group.longest_run();
    let run = format!("bytes {:#x} to {:#x} of the region", first * page_bytes, (first + count) * page_bytes - 1);
    match group.pages.len() as u64 - count {
        0 => run,
        others => format!("{run} and {others} other pages"),
    }
}
