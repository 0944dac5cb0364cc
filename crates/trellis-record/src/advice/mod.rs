//! Advice: the settings and changes of layout that the records of a run point to.
//!
//! Promises: each piece of advice says what was measured, in time and in counts, and what to do about it. No change can
//! gain more than the time that it names as lost. Pages have one use each, so that the time of a fault is named once. It
//! must never advise a setting that the run had according to its records, or that the run's configuration would refuse.

mod pages;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use pages::{Group, Use, uses};
use serde::Serialize;

use crate::{Area, Choice, Counters, FaultKind, FaultRecord, Phase, Record};

/// How many pieces of advice are given.
pub const ADVICE_MAX: usize = 3;

/// A loss below this share of the threads' time is not reported.
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

/// Returns the advice for a run: at most [`ADVICE_MAX`] pieces, the largest loss first. With a phase, only phases of that
/// name and the nodes that entered one are considered.
///
/// # Errors
///
/// The names of the phases that there are, if none has this name.
pub fn advise(records: &[Record], phase: Option<&str>) -> Result<Vec<Advice>, String> {
    let run = Run::new(records, phase)?;
    let mut all = run.of_pages();
    let others = [run.fresh(), run.barriers(), run.locks(), run.service(), run.diffs(), run.evictions()];
    all.extend(others.into_iter().flatten());
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

/// How often pages were treated in this way, and where they are. `None` if there are none.
pub fn chosen(records: &[Record], choice: Choice) -> Option<(u64, String)> {
    let page_bytes = records.first()?.page_bytes as u64;
    let of_choice = || records.iter().flat_map(|record| &record.choices).filter(|chosen| chosen.choice == choice);
    let mut pages: Vec<u64> = of_choice().flat_map(|chosen| chosen.first..chosen.first + chosen.pages).collect();
    pages.sort_unstable();
    pages.dedup();
    let times = of_choice().map(|chosen| chosen.times).sum();
    let areas = areas(records);
    (!pages.is_empty()).then(|| (times, place(&Group { pages, ..Group::default() }, page_bytes, &areas)))
}

/// What is lost, in nanoseconds, and the sentence about it.
type Loss = (u64, String);

/// When `hlrc` is right for a program (docs/concepts/release-consistency.md).
const IF_ORDERED: &str = "if only the cluster's barriers, locks and other objects order the accesses";

/// The part of a run that counts.
struct Run<'a> {
    /// With the faults that count.
    records: Vec<(&'a Record, Vec<&'a FaultRecord>)>,
    /// By node.
    counters: BTreeMap<usize, Counters>,
    /// The parts of the region that have names.
    areas: Vec<Area>,
}

impl<'a> Run<'a> {
    fn new(records: &'a [Record], phase: Option<&'a str>) -> Result<Run<'a>, String> {
        let Some(name) = phase else {
            let counters = records.iter().map(|record| (record.node, record.counters)).collect();
            return Ok(Run {
                records: records.iter().map(|record| (record, record.faults.iter().collect())).collect(),
                counters,
                areas: areas(records),
            });
        };
        let (mut of_phase, mut counters) = (Vec::new(), BTreeMap::new());
        for record in records {
            let phases: Vec<&Phase> = record.phases.iter().filter(|phase| phase.name == name).collect();
            if phases.is_empty() {
                continue;
            }
            let sum = phases.iter().fold(Counters::default(), |sum, phase| sum.plus(&phase.counters));
            // Each phase names the threads of the whole run.
            let program_threads = record.counters.program_threads;
            counters.insert(record.node, Counters { program_threads, ..sum });
            // Phases follow each other, so the last one that began before a fault is the only one that may contain it.
            let counts = |fault: &&FaultRecord| {
                let begun = phases.partition_point(|phase| phase.start_us <= fault.time_us);
                begun > 0 && fault.time_us < phases[begun - 1].end_us
            };
            of_phase.push((record, record.faults.iter().filter(counts).collect()));
        }
        if of_phase.is_empty() {
            return Err(no_phase(records, name));
        }
        Ok(Run { records: of_phase, counters, areas: areas(records) })
    }

    /// The time of the program's threads.
    fn seconds(&self) -> f64 {
        let of_node = |counters: &Counters| counters.program_ns as f64 / 1e9 * counters.program_threads.max(1) as f64;
        self.counters.values().map(of_node).sum()
    }

    fn sum(&self, counter: fn(&Counters) -> u64) -> u64 {
        self.counters.values().map(counter).sum()
    }

    /// Settings are the same at all nodes.
    fn any(&self) -> Option<&'a Record> {
        self.records.first().map(|(record, _)| *record)
    }

    fn has(&self, coherence: &str) -> bool {
        self.any().is_some_and(|record| record.coherence.starts_with(coherence))
    }

    /// Whether a load brings the right to store where that helps.
    fn learns_migration(&self) -> bool {
        self.any().is_some_and(|record| record.coherence.contains("migratory"))
    }

    /// Whether the region lies at memory servers, where no other protocol or catcher is possible.
    fn is_leased(&self) -> bool {
        self.has("lease")
    }

    fn of_pages(&self) -> Vec<Loss> {
        let groups = uses(&self.records);
        groups.into_iter().filter_map(|(usage, group)| Some((group.waited_ns, self.about(usage, &group)?))).collect()
    }

    fn about(&self, usage: Use, group: &Group) -> Option<String> {
        let page_bytes = self.any().map_or(0, |record| record.page_bytes);
        let (faults, nodes) = (group.faults, listed(&group.nodes));
        let place = place(group, page_bytes as u64, &self.areas);
        // Where `hlrc` is not what the run had, and possible.
        let or_hlrc = |variant: &str| match self.has("hlrc") || self.is_leased() {
            true => String::new(),
            false => format!(", or set coherence = {variant} for them {IF_ORDERED}"),
        };
        Some(match usage {
            Use::FalseSharing => format!(
                "false sharing, {faults} faults: {nodes} store to different parts of the same pages, {place}; give each \
                 node's part pages of its own (padding to {page_bytes} bytes){}",
                or_hlrc("hlrc")
            ),
            Use::ReadThenWritten
                if self.has("migrate") || self.has("hlrc") || self.learns_migration() || self.is_leased() =>
            {
                return None;
            }
            Use::ReadThenWritten => format!(
                "second faults, {faults} faults of {nodes}: pages are loaded from and then stored to, {place}; set \
                 coherence = auto for them, which brings the right to store with the first load"
            ),
            Use::OneWriter if self.has("hlrc(update)") => return None,
            Use::OneWriter => format!(
                "one node stores and others load what it stored, {faults} faults of {nodes}, {place}; call prefetch() \
                 for these pages before they are used{}",
                or_hlrc("hlrc(update)")
            ),
            Use::SameBytes => format!(
                "the same bytes in turn, {faults} faults: {nodes} store to them, {place}; let each node collect its own \
                 part and join the parts once (`reduce` in a barrier), or take turns less often"
            ),
            Use::Taken => format!(
                "pages that nodes take from each other, {faults} faults: {nodes} store to them, {place}; give the part \
                 of each node pages of its own, or take turns less often"
            ),
            Use::Sequence => format!(
                "page after page, {faults} faults of {nodes}, {place}; call prefetch() for these pages before they are \
                 used{}",
                if self.may_take_memory() { ", or set reserve = full if their memory is fresh" } else { "" }
            ),
        })
    }

    /// Whether `reserve = full` would change anything.
    fn may_take_memory(&self) -> bool {
        !self.is_leased() && self.any().is_some_and(|record| record.reserve != "full")
    }

    /// The time of faults that no other node had a part in.
    fn local_ns(&self) -> u64 {
        let faults = self.records.iter().flat_map(|(_, faults)| faults);
        faults.filter(|fault| fault.kind == FaultKind::Local).map(|fault| fault.wait_us_x10 * 100).sum()
    }

    /// Pages that are touched for the first time. Under `hlrc`, local faults may be first stores after a release.
    fn fresh(&self) -> Option<Loss> {
        let faults = self.sum(|counters| counters.local_faults);
        (faults > 0 && self.may_take_memory() && !self.has("hlrc")).then(|| {
            let sentence = format!(
                "fresh pages, {faults} faults without another node: set reserve = full, and region_bytes to the size \
                 that the program needs, so that its memory is there before it starts; or name a phase after the data \
                 is filled, so that this does not count"
            );
            (self.local_ns(), sentence)
        })
    }

    /// Threads that waited in barriers.
    fn barriers(&self) -> Option<Loss> {
        if self.counters.len() < 2 {
            return None;
        }
        let threads = |counters: &Counters| counters.program_threads.max(1);
        let waited = |counters: &Counters| counters.barrier_wait_ns / threads(counters);
        let each = self.counters.iter().map(|(node, counters)| (*node, waited(counters)));
        let (last, least) = each.min_by_key(|(_, waited)| *waited)?;
        let lost = self.sum(|counters| counters.barrier_wait_ns);
        let uneven = self.counters.values().map(|counters| (waited(counters) - least) * threads(counters)).sum::<u64>();
        let barriers = self.counters.values().map(|counters| counters.barriers / threads(counters)).max()?;
        Some(match uneven * 2 > lost {
            true => (
                uneven,
                format!(
                    "waiting in barriers for node {last}, which waited least: give it less work, or divide the work \
                     into smaller pieces that nodes take when they are free"
                ),
            ),
            false => (
                lost,
                format!(
                    "{barriers} barriers, in which all nodes wait alike, {:.0} us each: do more between two of them, or \
                     drop those that order nothing",
                    lost as f64 / 1e3 / self.sum(|counters| counters.barriers).max(1) as f64
                ),
            ),
        })
    }

    fn locks(&self) -> Option<Loss> {
        let taken = self.sum(|counters| counters.lock_acquires);
        let alone = self.sum(|counters| counters.lock_acquires_local);
        (taken > 0).then(|| {
            let sentence = format!(
                "locks, {taken} taken, {alone} of them without a message: hold each for a shorter time, divide what it \
                 protects among several, or collect results with `reduce` in a barrier"
            );
            (self.sum(|counters| counters.lock_wait_ns), sentence)
        })
    }

    /// The service thread, which takes a core from the program.
    fn service(&self) -> Option<Loss> {
        let record = self.any().filter(|_| !self.is_leased())?;
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

    /// What `hlrc` sends to homes that do not follow the stores.
    fn diffs(&self) -> Option<Loss> {
        let diffs = self.sum(|counters| counters.diffs_out);
        let is_fixed = matches!(self.any()?.home.as_str(), "manager" | "interleaved");
        (diffs > 0 && is_fixed).then(|| {
            let lost = self.sum(|counters| counters.overhead_ns).saturating_sub(self.local_ns());
            (lost, format!("{diffs} diffs sent to homes: set home = first-touch, so that who stores first is the home"))
        })
    }

    /// Pages that did not fit into the memory of a node. At most each of them was fetched again once.
    fn evictions(&self) -> Option<Loss> {
        let evicted = self.sum(|counters| counters.pages_evicted);
        let faults = self.sum(|counters| counters.read_faults + counters.write_faults);
        (evicted > 0 && faults > 0).then(|| {
            let share = (evicted as f64 / faults as f64).min(1.0);
            let lost = self.sum(|counters| counters.fault_wait_ns) as f64 * share;
            let sentence = format!(
                "{evicted} pages left for lack of memory, and were fetched again if they were needed: raise --cache"
            );
            (lost as u64, sentence)
        })
    }
}

/// The error about a phase that no node entered.
fn no_phase(records: &[Record], name: &str) -> String {
    let mut names: Vec<&str> =
        records.iter().flat_map(|record| &record.phases).map(|phase| phase.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    match names.is_empty() {
        true => format!("no phase is named {name}: the program names none (`cluster.phase(\"{name}\")` does)"),
        false => format!("no phase is named {name}; the program names {}", names.join(", ")),
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

/// The parts of the region that any node has named, by their first bytes.
fn areas(records: &[Record]) -> Vec<Area> {
    let mut areas: Vec<Area> = records.iter().flat_map(|record| &record.areas).cloned().collect();
    areas.sort_unstable();
    areas.dedup();
    areas
}

/// The most names that are told of one place.
const NAMES_MAX: usize = 3;

/// What lies in a range of bytes: the largest parts first.
fn names_in(range: std::ops::Range<u64>, areas: &[Area]) -> Option<String> {
    let common = |area: &Area| range.end.min(area.first + area.bytes).saturating_sub(range.start.max(area.first));
    let mut inside: Vec<&Area> = areas.iter().filter(|area| common(area) > 0).collect();
    inside.sort_by_key(|area| std::cmp::Reverse(common(area)));
    let names: Vec<&str> = inside.iter().take(NAMES_MAX).map(|area| &*area.name).collect();
    let more = inside.len() - names.len();
    match (names.is_empty(), more) {
        (true, _) => None,
        (_, 0) => Some(names.join(", ")),
        _ => Some(format!("{} and {more} more", names.join(", "))),
    }
}

/// Where pages lie.
fn place(group: &Group, page_bytes: u64, areas: &[Area]) -> String {
    let (first, count) = group.longest_run();
    let run = first * page_bytes..(first + count) * page_bytes;
    let bytes = format!("bytes {:#x} to {:#x} of the region", run.start, run.end - 1);
    let run = match names_in(run, areas) {
        Some(names) => format!("{bytes} ({names})"),
        None => bytes,
    };
    match group.pages.len() as u64 - count {
        0 => run,
        1 => format!("{run} and another page"),
        others => format!("{run} and {others} other pages"),
    }
}
