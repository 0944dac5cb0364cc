//! The record of a run: its phases always, its single faults if a record was requested.
//!
//! Promises: noting a fault or a choice allocates nothing. The room for `record_faults_max` faults is reserved at the start,
//! and is only address space until it is used. Faults that find no room are counted.

use std::sync::atomic::{AtomicU64, Ordering};

use trellis_cluster_protocol::PageRange;
use trellis_cluster_protocol::coherence;

use super::Node;
use super::ordered::{Ordered, Rank, lock};
use crate::config::Config;
use trellis_record::{Area, Choice, Chosen, Counters, FaultKind, FaultRecord, Phase, Record, VERSION};

/// The maximum number of threads whose faults are distinguished. Later threads count as the last.
const THREADS_MAX: usize = 1024;
/// The maximum number of pages whose choices are kept.
const CHOSEN_MAX: usize = 1 << 13;

pub(crate) struct Recorder {
    faults: Option<Ordered<Faults>>,
    /// Whether there is room for any fault. If not, the thread of a fault is not looked up.
    keeps_faults: bool,
    dropped: AtomicU64,
    /// The name of each phase, its start, and the counters at its start.
    phases: Ordered<Vec<(String, u64, Counters)>>,
    /// The parts of the region that have names.
    areas: Ordered<Vec<Area>>,
    /// How often pages were treated in ways that their protocols chose; sorted by choice and page.
    choices: Ordered<Vec<Chosen>>,
}

struct Faults {
    faults: Vec<FaultRecord>,
    /// Kernel numbers of the threads that faulted, in the order of their first fault.
    threads: Vec<libc::pid_t>,
}

impl Recorder {
    pub(crate) fn new(config: &Config) -> Recorder {
        let faults = config.record.as_ref().map(|_| {
            Ordered::new(
                Rank::Last,
                Faults {
                    faults: Vec::with_capacity(config.record_faults_max),
                    threads: Vec::with_capacity(THREADS_MAX),
                },
            )
        });
        let keeps_faults = config.record_faults_max > 0;
        Recorder {
            faults,
            keeps_faults,
            dropped: AtomicU64::new(0),
            phases: Ordered::new(Rank::Last, Vec::new()),
            areas: Ordered::new(Rank::Last, Vec::new()),
            choices: Ordered::new(Rank::Last, Vec::with_capacity(if config.record.is_some() { CHOSEN_MAX } else { 0 })),
        }
    }

    pub(super) fn fault(&self, since_ns: u64, page: u32, offset: Option<u32>, kind: FaultKind, waited_ns: u64) {
        let Some(faults) = &self.faults else { return };
        if !self.keeps_faults {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // SAFETY: gettid(2) has no arguments and cannot fail.
        let this_thread = unsafe { libc::gettid() };
        let mut faults = lock(faults);
        let thread = faults.number_of(this_thread);
        if faults.faults.len() == faults.faults.capacity() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        faults.faults.push(FaultRecord {
            time_us: since_ns / 1000,
            page: u64::from(page),
            offset,
            kind,
            wait_us_x10: waited_ns / 100,
            thread,
        });
    }

    /// A protocol treated these pages in a way that it chose for them.
    pub(super) fn chose(&self, range: PageRange, choice: coherence::Choice) {
        if self.faults.is_none() {
            return;
        }
        let choice = match choice {
            coherence::Choice::MovesWithLoad => Choice::MovesWithLoad,
            coherence::Choice::Stays => Choice::Stays,
        };
        let mut choices = lock(&self.choices);
        for page in range.pages().map(|page| u64::from(page.0)) {
            match choices.binary_search_by_key(&(choice, page), |chosen| (chosen.choice, chosen.first)) {
                Ok(place) => choices[place].times += 1,
                Err(place) if choices.len() < choices.capacity() => {
                    choices.insert(place, Chosen { choice, first: page, pages: 1, times: 1 });
                }
                // The counters have it.
                Err(_) => {}
            }
        }
    }

    /// Begins a part of the run that the program names.
    pub(crate) fn phase(&self, name: &str, now_ns: u64, until_now: Counters) {
        lock(&self.phases).push((name.to_owned(), now_ns, until_now));
    }

    /// Whether a record was requested.
    pub(crate) fn is_wanted(&self) -> bool {
        self.faults.is_some()
    }

    /// Parts of the region have these names from now on.
    pub(crate) fn name(&self, areas: impl IntoIterator<Item = Area>) {
        if self.is_wanted() {
            lock(&self.areas).extend(areas);
        }
    }

    /// Writes the record if one was requested.
    pub(crate) fn write(&self, node: &Node) {
        let (Some(folder), Some(faults)) = (&node.config.record, &self.faults) else { return };
        let faults = lock(faults).faults.clone();
        let record = self.record(node, faults);
        if let Err(error) = record.write(folder) {
            node.status.set_lost_record();
            trellis_output::lines::report(format_args!("node {}: {error}", node.me.0));
        }
    }

    fn record(&self, node: &Node, faults: Vec<FaultRecord>) -> Record {
        let now_us = node.now() / 1000;
        let counters = node.counters().load();
        let phases = phases(&lock(&self.phases), now_us, &counters);
        let mut areas = lock(&self.areas).clone();
        areas.sort_unstable();
        areas.dedup();
        let program = std::env::current_exe().ok();
        let program = program.as_deref().and_then(|path| path.file_name()).unwrap_or_default();
        Record {
            version: VERSION,
            node: usize::from(node.me.0),
            nodes: usize::from(node.founders),
            program: program.to_string_lossy().into_owned(),
            page_bytes: node.config.page_bytes,
            region_bytes: node.region.bytes(),
            catch: node.region.catcher().to_string(),
            link: node.config.link.to_string(),
            ways: node.ways(),
            coherence: node.config.coherence_word(),
            home: node.config.home.to_string(),
            reserve: node.config.reserve.to_string(),
            security: node.config.security_in_use().to_string(),
            seconds: now_us as f64 / 1e6,
            counters,
            phases,
            areas,
            choices: joined(&lock(&self.choices)),
            faults_dropped: self.dropped.load(Ordering::Relaxed),
            faults,
        }
    }
}

/// Pages of one choice that follow each other, together.
fn joined(choices: &[Chosen]) -> Vec<Chosen> {
    let mut runs: Vec<Chosen> = Vec::new();
    for chosen in choices {
        match runs.last_mut() {
            Some(last) if last.choice == chosen.choice && last.first + last.pages == chosen.first => {
                last.pages += chosen.pages;
                last.times += chosen.times;
            }
            _ => runs.push(chosen.clone()),
        }
    }
    runs
}

/// The phases with their ends: each ends where the next begins, and the last one ends now.
fn phases(begun: &[(String, u64, Counters)], now_us: u64, now: &Counters) -> Vec<Phase> {
    let ends = begun.iter().skip(1).map(|(_, start, until)| (start / 1000, until)).chain([(now_us, now)]);
    let phase = |((name, start, before), (end_us, after)): (&(String, u64, Counters), (u64, &Counters))| {
        let counters = Counters { program_threads: now.program_threads, ..after.since(before) };
        Phase { name: name.clone(), start_us: start / 1000, end_us, counters }
    };
    begun.iter().zip(ends).map(phase).collect()
}

impl Faults {
    fn number_of(&mut self, thread: libc::pid_t) -> u64 {
        let known = self.threads.iter().position(|&known| known == thread);
        let number = known.unwrap_or_else(|| {
            if self.threads.len() < THREADS_MAX {
                self.threads.push(thread);
            }
            self.threads.len() - 1
        });
        number as u64
    }
}
