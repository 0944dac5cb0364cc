//! Runs litmus tests on the real state machines, in one thread, millions of times.
//!
//! A seed determines a program, a protocol, a placement, a layout and a schedule. Copies are first spread *through the
//! protocol* (random loads, and stores of the initial values), because a cluster in which no node holds anything hides
//! a whole class of bugs. Then the threads run, and at the end one node reads every location. A seed stands for
//! [`BLOCK`] runs on one cluster: each begins with the copies, the rights and the messages under way that the previous
//! run left, and only the words are reset.
//!
//! Promises: a run depends only on its seed, its number in the block, its program and its protocol, so that a failing
//! run can be repeated alone and printed step by step. Failures are a forbidden outcome, a run in which nothing can
//! happen while a thread waits, a run beyond its bound of steps, a failed assertion and a breach of the contract. It
//! must never count a run that did not end as completed.

use super::cluster::NODES_MAX;
use super::generate::partitions;
use super::oracle::{Allowed, Memory, allowed};
use super::program::{Outcome, Program};
use super::run::Simulator;
use super::{Failure, Kind, LitmusOptions, LitmusReport, Progress, ShapeReport};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use trellis_base::{Random, seed_of_run};
use trellis_cluster_protocol::coherence::{Coherence, Geometry, Protocol};

/// Runs of one seed.
pub const BLOCK: u64 = 8;

/// Runs the programs on the real protocols.
pub fn simulate(options: &LitmusOptions, progress: &mut dyn FnMut(Progress)) -> Result<LitmusReport, String> {
    simulate_with(options, |protocol, geometry| protocol.start(geometry), progress)
}

/// Runs the programs with `start` in place of the real protocols.
pub fn simulate_with<N: Coherence + Clone>(
    options: &LitmusOptions,
    start: impl Fn(Protocol, Geometry) -> N + Sync,
    progress: &mut dyn FnMut(Progress),
) -> Result<LitmusReport, String> {
    let series = Series::new(options)?;
    let began = Instant::now();
    let jobs = options.jobs.clamp(1, 64) as u64;
    let done = AtomicU64::new(0);
    let mut report = series.empty_report();
    std::thread::scope(|scope| {
        let (series, done, start) = (&series, &done, &start);
        let others: Vec<_> =
            (1..jobs).map(|job| scope.spawn(move || series.run_share(job, jobs, done, start, &mut |_| {}))).collect();
        report.absorb(series.run_share(0, jobs, done, start, progress));
        for other in others {
            report.absorb(other.join().expect("a run that fails is caught in its own thread"));
        }
    });
    report.failures.sort_by_key(|failure| failure.index);
    report.failures.truncate(options.failures_max);
    report.seconds = began.elapsed().as_secs_f64();
    Ok(report)
}

/// Repeats the first block of `options`, up to its number of runs, and describes the last of them step by step. The
/// last line says how it ended.
pub fn tell(options: &LitmusOptions) -> Result<Vec<String>, String> {
    tell_with(options, |protocol, geometry| protocol.start(geometry))
}

/// As [`tell`], with `start` in place of the real protocols.
pub fn tell_with<N: Coherence + Clone>(
    options: &LitmusOptions,
    start: impl Fn(Protocol, Geometry) -> N,
) -> Result<Vec<String>, String> {
    let series = Series::new(options)?;
    let mut simulator = Simulator::new(&series, start);
    let mut end = Err((Kind::Broken, "no run was asked for".to_string()));
    let runs = options.runs.clamp(1, BLOCK);
    for index in 0..runs {
        simulator.cluster.trace = Some(Vec::new());
        let run = series.draw(index);
        end = simulator.guarded_run(&run);
    }
    let run = series.draw(runs - 1);
    let program = &series.programs[run.program].program;
    let mut lines: Vec<String> = program.to_string().lines().map(str::to_string).collect();
    let protocol = series.protocols[run.protocol];
    lines.push(format!("protocol {protocol}, seed {:#x}, run {} of its block", run.seed, run.number + 1));
    lines.append(&mut simulator.cluster.trace.take().unwrap_or_default());
    lines.push(match end {
        Err((kind, what)) => format!("=> {}: {what}", kind.name()),
        Ok(outcome) => {
            let is_allowed = series.programs[run.program].allowed.contains(outcome);
            let word = if is_allowed { "allowed" } else { "FORBIDDEN" };
            format!("=> {word}: {}", program.outcome_text(outcome))
        }
    });
    Ok(lines)
}

/// A program and its data that are the same for all runs.
pub(super) struct Prepared {
    pub(super) program: Program,
    allowed: Allowed,
    /// Assignments of threads to nodes and of locations to pages; the last has each on its own.
    pub(super) placements: Vec<Vec<u8>>,
    pub(super) layouts: Vec<Vec<u8>>,
}

pub(super) struct Series<'a> {
    pub(super) options: &'a LitmusOptions,
    pub(super) programs: Vec<Prepared>,
    pub(super) protocols: &'a [Protocol],
}

/// The parameters of a run that its seed determines.
pub(super) struct Run {
    /// The seed of its block.
    pub(super) seed: u64,
    /// Its index in the block.
    pub(super) number: u64,
    pub(super) program: usize,
    pub(super) protocol: usize,
}

impl<'a> Series<'a> {
    fn new(options: &'a LitmusOptions) -> Result<Series<'a>, String> {
        let nodes_max = usize::from(options.nodes_max);
        if !(1..NODES_MAX).contains(&nodes_max) {
            return Err(format!("litmus tests run on 1 to {} nodes, not on {nodes_max}", NODES_MAX - 1));
        }
        if options.programs.is_empty() || options.protocols.is_empty() {
            return Err("there is no litmus test or no protocol to run; name at least one of each".to_string());
        }
        let mut programs = Vec::new();
        for program in &options.programs {
            let mut placements = partitions(program.threads.len());
            placements.retain(|placement| placement.iter().all(|&node| usize::from(node) < nodes_max));
            programs.push(Prepared {
                allowed: allowed(program, Memory::Sequential)?,
                placements,
                layouts: partitions(program.locations.len()),
                program: program.clone(),
            });
        }
        Ok(Series { options, programs, protocols: &options.protocols })
    }

    fn draw(&self, index: u64) -> Run {
        let (seed, number) = (seed_of_run(self.options.seed, index / BLOCK), index % BLOCK);
        // Separate random streams, so that a run stays the same when it is repeated with its program and its protocol
        // alone.
        let program = Random::for_purpose(seed, 1).index(self.programs.len());
        let protocol = Random::for_purpose(seed, 2).index(self.protocols.len());
        Run { seed, number, program, protocol }
    }

    fn empty_report(&self) -> LitmusReport {
        LitmusReport {
            protocols: self.protocols.iter().map(ToString::to_string).collect(),
            shapes: self
                .programs
                .iter()
                .map(|prepared| ShapeReport::new(&prepared.program, &prepared.allowed))
                .collect(),
            ..LitmusReport::default()
        }
    }

    /// Runs every `jobs`-th block from `job` on.
    fn run_share<N: Coherence + Clone>(
        &self,
        job: u64,
        jobs: u64,
        done: &AtomicU64,
        start: impl Fn(Protocol, Geometry) -> N,
        progress: &mut dyn FnMut(Progress),
    ) -> LitmusReport {
        let mut report = self.empty_report();
        let mut simulator = Simulator::new(self, start);
        let blocks = self.options.runs.div_ceil(BLOCK);
        let mut reported = 0;
        for block in (job..blocks).step_by(jobs as usize) {
            for index in block * BLOCK..self.options.runs.min((block + 1) * BLOCK) {
                let run = self.draw(index);
                let end = simulator.guarded_run(&run);
                self.count(&mut report, index, &run, end);
            }
            if report.runs - reported >= 0x4000 {
                let runs = done.fetch_add(report.runs - reported, Ordering::Relaxed) + report.runs - reported;
                reported = report.runs;
                progress(Progress { runs, failures: report.forbidden + report.stuck + report.broken });
            }
        }
        report.steps = simulator.steps;
        report
    }

    fn count(&self, report: &mut LitmusReport, index: u64, run: &Run, end: Result<Outcome, (Kind, String)>) {
        report.runs += 1;
        let prepared = &self.programs[run.program];
        let shape = &mut report.shapes[run.program];
        shape.runs += 1;
        let (kind, what) = match end {
            Ok(outcome) => {
                report.completed += 1;
                shape.count_condition(&prepared.program, outcome);
                if let Some(place) = prepared.allowed.place(outcome) {
                    shape.seen[place] = true;
                    return;
                }
                (Kind::Forbidden, prepared.program.outcome_text(outcome))
            }
            Err(failure) => failure,
        };
        match kind {
            Kind::Forbidden => report.forbidden += 1,
            Kind::Stuck => report.stuck += 1,
            Kind::Broken => report.broken += 1,
        }
        if report.failures.len() < self.options.failures_max {
            report.failures.push(Failure {
                index,
                kind,
                seed: run.seed,
                number: run.number,
                protocol: self.protocols[run.protocol].to_string(),
                shape: prepared.program.name.clone(),
                what,
            });
        }
    }
}
