//! A series of simulated runs of litmus tests: what is drawn for each run, and what is counted.
//!
//! A seed determines a program, a protocol, a placement of threads on nodes, a layout of locations on pages, and a
//! schedule. It stands for [`BLOCK`] runs on one cluster: each begins with what the run before left.
//!
//! Promises: a run depends only on its seed, its number in the block, its program and its protocol, so that a failing
//! run can be repeated alone and printed step by step. Failures are a forbidden outcome, a run in which nothing can
//! happen while a thread waits, a run beyond its bound of steps, a failed assertion and a breach of the contract. It
//! must never count a run that did not end as completed.

use super::generate::partitions;
use super::oracle::{Allowed, Memory, allowed};
use super::program::{Outcome, Program};
use super::{Failure, Kind, LitmusOptions, LitmusReport, Progress, ShapeReport};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use trellis_base::{Random, seed_of_run};
use trellis_cluster_protocol::coherence::Protocol;

/// Runs of one seed.
pub const BLOCK: u64 = 8;
/// A job reports its progress after so many runs.
const REPORTED_RUNS: u64 = 0x4000;

/// A program and its data that are the same for all runs.
pub(crate) struct Prepared {
    pub(crate) program: Program,
    pub(crate) allowed: Allowed,
    /// Assignments of threads to nodes and of locations to pages; the last has each on its own.
    pub(crate) placements: Vec<Vec<u8>>,
    pub(crate) layouts: Vec<Vec<u8>>,
}

/// See the module.
pub(crate) struct Series<'a> {
    pub(crate) options: &'a LitmusOptions,
    pub(crate) programs: Vec<Prepared>,
}

/// The parameters of a run that its seed determines.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    /// The seed of its block.
    pub(crate) seed: u64,
    /// Its index in the block.
    pub(crate) number: u64,
    pub(crate) program: usize,
    pub(crate) protocol: usize,
}

/// The reason why a run ended before its outcome.
pub(crate) type Ended = (Kind, String);

/// A cluster that runs tests, one after the other.
pub(crate) trait Runner {
    /// One run. It begins with what the run before left, unless it is the first of its block or that one failed.
    fn run(&mut self, run: &Run) -> Result<Outcome, Ended>;

    /// The steps of all runs.
    fn steps(&self) -> u64;

    /// Records a trace from now on.
    fn keep_story(&mut self);

    /// The cluster of `run`, which was the last one, in words, and the trace.
    fn take_story(&mut self, run: &Run) -> (String, Vec<String>);
}

impl<'a> Series<'a> {
    /// The tests of `options`, with the outcomes that `memory` allows.
    ///
    /// # Errors
    ///
    /// A sentence about a test that cannot be run.
    pub(crate) fn new(options: &'a LitmusOptions, memory: Memory<'_>) -> Result<Series<'a>, String> {
        if options.programs.is_empty() || options.protocols.is_empty() {
            return Err("there is no litmus test or no protocol to run; name at least one of each".to_string());
        }
        let prepare = |program: &Program| {
            let count = program.threads.len();
            let allowed = allowed(program, memory)?;
            let mut placements = partitions(count);
            let nodes = |placement: &[u8]| placement.iter().max().map_or(1, |&last| usize::from(last) + 1);
            placements.retain(|placement| {
                nodes(placement) <= usize::from(options.nodes_max)
                    && (program.barriers() == 0 || nodes(placement) == count)
            });
            if placements.is_empty() {
                let name = &program.name;
                return Err(format!("{name}: its threads meet at a barrier, and need {count} nodes; raise --nodes"));
            }
            let layouts = partitions(program.locations.len());
            Ok(Prepared { program: program.clone(), allowed, placements, layouts })
        };
        let programs = options.programs.iter().map(prepare).collect::<Result<_, String>>()?;
        Ok(Series { options, programs })
    }

    /// The protocol of a run.
    pub(crate) fn protocol(&self, run: &Run) -> Protocol {
        self.options.protocols[run.protocol]
    }

    /// Runs all of them, in several threads.
    pub(crate) fn simulate<R: Runner>(
        &self,
        runner: impl Fn() -> R + Sync,
        progress: &mut dyn FnMut(Progress),
    ) -> LitmusReport {
        let began = Instant::now();
        let jobs = self.options.jobs.clamp(1, 64) as u64;
        let done = AtomicU64::new(0);
        let mut report = self.empty_report();
        std::thread::scope(|scope| {
            let (done, runner) = (&done, &runner);
            let share =
                move |job, progress: &mut dyn FnMut(Progress)| self.run_share(job, jobs, done, runner(), progress);
            let others: Vec<_> = (1..jobs).map(|job| scope.spawn(move || share(job, &mut |_| {}))).collect();
            report.absorb(share(0, progress));
            for other in others {
                report.absorb(other.join().expect("a run that fails is caught in its own thread"));
            }
        });
        report.failures.sort_by_key(|failure| failure.index);
        report.failures.truncate(self.options.failures_max);
        report.seconds = began.elapsed().as_secs_f64();
        report
    }

    /// Repeats the first block, up to the number of runs, and describes the last of them step by step. The last line
    /// says how it ended.
    pub(crate) fn tell(&self, mut runner: impl Runner) -> Vec<String> {
        let mut end = Err((Kind::Broken, "no run was asked for".to_string()));
        let runs = self.options.runs.clamp(1, BLOCK);
        for index in 0..runs {
            runner.keep_story();
            end = runner.run(&self.draw(index));
        }
        let run = self.draw(runs - 1);
        let Prepared { program, allowed, .. } = &self.programs[run.program];
        let mut lines: Vec<String> = program.to_string().lines().map(str::to_string).collect();
        let (cluster, mut story) = runner.take_story(&run);
        lines.push(format!("{cluster}, seed {:#x}, run {runs} of its block", run.seed));
        lines.append(&mut story);
        lines.push(match end {
            Err((kind, what)) => format!("=> {}: {what}", kind.name()),
            Ok(outcome) => {
                let word = if allowed.contains(outcome) { "allowed" } else { "FORBIDDEN" };
                format!("=> {word}: {}", program.outcome_text(outcome))
            }
        });
        lines
    }

    fn draw(&self, index: u64) -> Run {
        let (seed, number) = (seed_of_run(self.options.seed, index / BLOCK), index % BLOCK);
        // Separate random streams, so that a run stays the same when it is repeated with its program and its protocol
        // alone.
        let program = Random::for_purpose(seed, 1).index(self.programs.len());
        let protocol = Random::for_purpose(seed, 2).index(self.options.protocols.len());
        Run { seed, number, program, protocol }
    }

    fn empty_report(&self) -> LitmusReport {
        let shapes = self.programs.iter().map(|prepared| ShapeReport::new(&prepared.program, &prepared.allowed));
        LitmusReport {
            protocols: self.options.protocols.iter().map(ToString::to_string).collect(),
            shapes: shapes.collect(),
            ..LitmusReport::default()
        }
    }

    /// Runs every `jobs`-th block from `job` on.
    fn run_share(
        &self,
        job: u64,
        jobs: u64,
        done: &AtomicU64,
        mut runner: impl Runner,
        progress: &mut dyn FnMut(Progress),
    ) -> LitmusReport {
        let mut report = self.empty_report();
        let blocks = self.options.runs.div_ceil(BLOCK);
        let mut reported = 0;
        for block in (job..blocks).step_by(jobs as usize) {
            for index in block * BLOCK..self.options.runs.min((block + 1) * BLOCK) {
                let run = self.draw(index);
                let end = runner.run(&run);
                self.count(&mut report, index, &run, end);
            }
            if report.runs - reported >= REPORTED_RUNS {
                let runs = done.fetch_add(report.runs - reported, Ordering::Relaxed) + report.runs - reported;
                reported = report.runs;
                progress(Progress { runs, failures: report.forbidden + report.stuck + report.broken });
            }
        }
        report.steps = runner.steps();
        report
    }

    fn count(&self, report: &mut LitmusReport, index: u64, run: &Run, end: Result<Outcome, Ended>) {
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
                protocol: self.protocol(run).to_string(),
                shape: prepared.program.name.clone(),
                what,
            });
        }
    }
}
