//! Runs the programs on one processor, on threads, and on nodes, in turns.
//!
//! Promises: every repetition runs all configurations of a program one after the other, so that a disturbance affects
//! all of them. The breakdown of a row is that of one run, the one with the median time.

use std::process::Command;

use trellis::record::{Breakdown, Counters};

use super::programs::{Built, Program, Said, Way};
use crate::bench::cluster::Common;
use crate::bench::figures::p50;
use trellis_command::exit::{self, Failure};
use trellis_command::run::stdin::InputMode;
use trellis_command::run::{self, BindTo, Output, Plan};
use trellis_command::terminal::Progress;

/// The name that `SPLASH3_ROI_BEGIN` gives to the part of the run that the programs time.
const TIMED_PHASE: &str = "measured";

/// Enough for the largest program of the paper's sizes.
const REGION_BYTES: &str = "128MiB";

/// What is run, and how.
pub(super) struct Request<'a> {
    pub(super) programs: &'a [Program],
    /// The numbers of nodes, ascending.
    pub(super) nodes: &'a [usize],
    pub(super) runs: usize,
    pub(super) quick: bool,
    pub(super) common: &'a Common,
}

/// A program on a number of nodes.
pub(super) struct Row {
    pub(super) program: Program,
    pub(super) nodes: usize,
    /// The median, like the next one.
    pub(super) seconds: f64,
    pub(super) sequential_seconds: f64,
    /// The time of that many threads in one process, if this machine has a core for each.
    pub(super) thread_seconds: Option<f64>,
    /// Whether every run verified its result, including the sequential ones.
    pub(super) verified: bool,
    /// The counters of the timed part, node by node.
    pub(super) counters: Vec<Counters>,
}

impl Row {
    pub(super) fn speedup(&self) -> f64 {
        self.sequential_seconds / self.seconds
    }

    pub(super) fn efficiency(&self) -> f64 {
        self.speedup() / self.nodes as f64
    }

    /// The speed-up relative to that of threads.
    pub(super) fn over_threads(&self) -> Option<f64> {
        self.thread_seconds.map(|threads| threads / self.seconds)
    }

    /// The breakdown of each node.
    pub(super) fn breakdowns(&self) -> Vec<Breakdown> {
        self.counters.iter().map(Breakdown::of).collect()
    }

    /// The shares of all nodes together.
    pub(super) fn shares(&self) -> [f64; 6] {
        let sum = |index: usize| self.breakdowns().iter().map(|one| one.parts()[index]).sum::<f64>();
        let parts: [f64; 6] = std::array::from_fn(sum);
        let total: f64 = parts.iter().sum();
        if total > 0.0 { parts.map(|part| part / total) } else { Breakdown::default().shares() }
    }

    pub(super) fn sum(&self) -> Counters {
        self.counters.iter().fold(Counters::default(), |sum, one| sum.plus(one))
    }

    /// The upper bound of the part of the nodes' time that the measurement itself took.
    pub(super) fn measuring_share(&self) -> f64 {
        let total: f64 = self.breakdowns().iter().map(Breakdown::total).sum();
        if total > 0.0 { Breakdown::seconds_to_measure(&self.sum()) / total } else { 0.0 }
    }
}

/// The results of the runs of one configuration.
#[derive(Default)]
struct Runs {
    said: Vec<(Said, Vec<Counters>)>,
}

impl Runs {
    fn median_seconds(&self) -> f64 {
        p50(self.said.iter().map(|(said, _)| said.seconds))
    }

    fn are_verified(&self) -> bool {
        self.said.iter().all(|(said, _)| said.verified)
    }

    /// The counters of the run whose time is nearest to the median.
    fn counters(&self) -> Vec<Counters> {
        let median = self.median_seconds();
        let distance = |said: &Said| (said.seconds - median).abs();
        let nearest = self.said.iter().min_by(|(one, _), (other, _)| distance(one).total_cmp(&distance(other)));
        nearest.map(|(_, counters)| counters.clone()).unwrap_or_default()
    }
}

/// All rows, program by program.
pub(super) fn rows(request: &Request, progress: &mut Progress) -> Result<Vec<Row>, Failure> {
    let built = Built::new(request.programs, |what| progress.step(what))?;
    let mut rows = Vec::new();
    for &program in request.programs {
        rows.extend(rows_of(request, &built, program, progress)?);
    }
    Ok(rows)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn rows_of(request: &Request, built: &Built, program: Program, progress: &mut Progress) -> Result<Vec<Row>, Failure> {
    let mut sequential = Runs::default();
    let mut on: Vec<(usize, Runs, Runs)> =
        request.nodes.iter().map(|&nodes| (nodes, Runs::default(), Runs::default())).collect();
    for run in 0..request.runs {
        let mut tell = |what: &str| {
            progress.step(&format!("{} {what}, run {} of {}", program.name(), run + 1, request.runs));
        };
        tell("on one processor");
        sequential.said.push((alone(request, built, program, Way::Sequential, 1)?, Vec::new()));
        for (nodes, threads, cluster) in &mut on {
            if *nodes <= cores() {
                tell(&format!("on {nodes} threads"));
                threads.said.push((alone(request, built, program, Way::Threads, *nodes)?, Vec::new()));
            }
            tell(&format!("on {nodes} nodes"));
            cluster.said.push(on_nodes(request, built, program, *nodes)?);
        }
    }
    let rows = on.iter().map(|(nodes, threads, cluster)| Row {
        program,
        nodes: *nodes,
        seconds: cluster.median_seconds(),
        sequential_seconds: sequential.median_seconds(),
        thread_seconds: (!threads.said.is_empty()).then(|| threads.median_seconds()),
        verified: cluster.are_verified() && threads.are_verified() && sequential.are_verified(),
        counters: cluster.counters(),
    });
    Ok(rows.collect())
}

/// Does one run in one process.
fn alone(request: &Request, built: &Built, program: Program, way: Way, threads: usize) -> Result<Said, Failure> {
    let path = built.path(program, way);
    let mut command = Command::new(&path);
    command.args(["-p", &threads.to_string()]).args(program.options(request.quick));
    let output = command
        .output()
        .map_err(|error| Failure::new(exit::SYSTEM, format!("cannot run {}: {error}", path.display())))?;
    if output.stdout.is_empty() {
        let why = String::from_utf8_lossy(&output.stderr);
        let name = program.name();
        return Err(Failure::new(exit::FAILED, format!("{name} ended with {}: {}", output.status, why.trim())));
    }
    Said::find(program, &output.stdout)
}

/// Does one run on nodes, and returns what each counted in the timed part.
fn on_nodes(
    request: &Request,
    built: &Built,
    program: Program,
    nodes: usize,
) -> Result<(Said, Vec<Counters>), Failure> {
    let record = built.record()?;
    let mut arguments = vec!["-p".to_owned(), nodes.to_string()];
    arguments.extend(program.options(request.quick).iter().map(|&option| option.to_owned()));
    let plan = Plan {
        nodes,
        program: built.path(program, Way::Nodes).into_os_string(),
        arguments: arguments.into_iter().map(Into::into).collect(),
        config: None,
        settings: settings(request.common, nodes, &record.to_string_lossy()),
        variables: Vec::new(),
        hosts: None,
        directory: None,
        bind_to: BindTo::None,
        output: Output::Captured,
        inherited: Vec::new(),
        shown: None,
        input: InputMode::None,
        time_max: None,
        is_quiet: false,
        processors: None,
    };
    let made = run::launch(&plan)?;
    let printed = made.stdout.first().map(Vec::as_slice).unwrap_or_default();
    let said = match (Said::find(program, printed), made.ending) {
        // A wrong result ends the program with an error, and is reported as a wrong result.
        (Ok(said), Err(_)) if !said.verified => return Ok((said, Vec::new())),
        (_, Err(failure)) => return Err(failure),
        (said, Ok(_)) => said?,
    };
    let timed = |record: &trellis::record::Record| {
        let phase = record.phases.iter().find(|phase| phase.name == TIMED_PHASE);
        phase.map(|phase| phase.counters).ok_or_else(|| {
            Failure::new(exit::FAILED, format!("node {} never came to the part that is timed", record.node))
        })
    };
    let counters = trellis_command::report::read_records(&record)?.iter().map(timed).collect::<Result<_, _>>()?;
    Ok((said, counters))
}

/// The configuration of the nodes: each node on a core of its own if there are enough, each page's home at the node
/// that first touched it, all memory reserved before the programs begin (as the threads have touched theirs when the
/// time begins), and then the user's settings.
fn settings(common: &Common, nodes: usize, record: &str) -> Vec<(String, String)> {
    let pin = if nodes <= cores() { "core" } else { "none" };
    let mut settings = vec![
        ("coherence", "hlrc(adaptive)"),
        ("home", "first-touch"),
        ("link", "auto"),
        ("region_bytes", REGION_BYTES),
        ("reserve", "full"),
        ("pin", pin),
        ("catch", &common.catcher),
        ("security", &common.security),
        ("record", record),
        ("record_faults_max", "0"),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect::<Vec<_>>();
    for (key, value) in &common.set {
        settings.retain(|(other, _)| other != key);
        settings.push((key.clone(), value.clone()));
    }
    settings
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn example(program: Program, nodes: usize) -> Row {
        let counters = |node: u64| Counters {
            program_ns: 1_000_000_000,
            program_threads: 1,
            fault_wait_ns: 100_000_000,
            barrier_wait_ns: 100_000_000 * node,
            ..Counters::default()
        };
        Row {
            program,
            nodes,
            seconds: 1.0,
            sequential_seconds: 1.8,
            thread_seconds: (nodes == 2).then_some(0.95),
            verified: true,
            counters: (0..nodes as u64).map(counters).collect(),
        }
    }

    #[test]
    fn a_row_compares_with_one_processor_and_with_threads() {
        let row = example(Program::Lu, 2);
        assert_eq!((row.speedup(), row.efficiency(), row.over_threads()), (1.8, 0.9, Some(0.95)));
        let shares = row.shares();
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert!((shares[1] - 0.1).abs() < 1e-12 && (shares[3] - 0.05).abs() < 1e-12, "{shares:?}");
        assert!(row.measuring_share() < 0.01);
    }

    #[test]
    fn the_breakdown_is_that_of_the_median_run() {
        let run = |seconds, faults| {
            let counters = Counters { read_faults: faults, ..Counters::default() };
            (Said { seconds, verified: true }, vec![counters])
        };
        let runs = Runs { said: vec![run(3.0, 3), run(1.0, 1), run(2.0, 2)] };
        assert_eq!((runs.median_seconds(), runs.counters()[0].read_faults), (2.0, 2));
    }

    #[test]
    fn what_the_user_sets_is_set_once() {
        let common = Common { catcher: "signal".to_owned(), ..Common::default() };
        let found = settings(&common.with("coherence", "ivy"), 1000, "r");
        assert_eq!(found.iter().filter(|(key, _)| key == "coherence").count(), 1);
        assert!(found.contains(&("coherence".to_owned(), "ivy".to_owned())));
        assert!(found.contains(&("pin".to_owned(), "none".to_owned())));
    }
}
