//! Litmus tests: a few loads and stores, and the outcomes that must never be seen.
//!
//! [`generate`] makes the tests. [`parse`] reads tests in the format of herd (Alglave, Maranget and Tautschnig 2014).
//! [`oracle`] computes which outcomes a test may have. [`simulate`] runs tests on the real state machines, and
//! [`real`] is the part of a node that runs them on real processes.
//!
//! Promises: an outcome counts as forbidden if and only if the oracle does not allow it, whatever the test file says
//! about it; a run that does not end is a failure. It must never let the condition of a test decide what is correct:
//! conditions are counted and reported beside the verdict.

pub mod generate;
pub mod oracle;
pub mod parse;
pub mod program;
pub mod real;
pub mod released;
mod run;
pub(crate) mod series;
pub mod simulate;

use oracle::Allowed;
use program::{Condition, Outcome, Program, Quantifier};
use trellis_cluster_protocol::coherence::Protocol;

/// The tests to run in the simulator.
#[derive(Clone, Debug)]
pub struct LitmusOptions {
    /// The number of runs, spread evenly over programs and protocols.
    pub runs: u64,
    /// The seed of the first run; the others follow from it.
    pub seed: u64,
    /// The protocols.
    pub protocols: Vec<Protocol>,
    /// The tests: [`generate::shapes`] unless files were named.
    pub programs: Vec<Program>,
    /// The maximum number of nodes of a cluster, 1 to 8.
    pub nodes_max: u8,
    /// A run that takes more steps counts as stuck.
    pub steps_max: u32,
    /// Threads of this process that run tests.
    pub jobs: usize,
    /// Also fail if a protocol breaks its contract without a visible outcome.
    pub checks_contract: bool,
    /// The maximum number of failures that are described; all are counted.
    pub failures_max: usize,
}

impl LitmusOptions {
    /// Every generated test on `protocols`, `runs` times.
    pub fn new(protocols: Vec<Protocol>, runs: u64) -> LitmusOptions {
        LitmusOptions {
            runs,
            seed: 1,
            protocols,
            programs: generate::shapes(),
            nodes_max: 5,
            steps_max: 20_000,
            jobs: 1,
            checks_contract: true,
            failures_max: 16,
        }
    }
}

/// The progress of a series of runs.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Runs so far, of all jobs together.
    pub runs: u64,
    /// Failures so far, of the reporting job.
    pub failures: u64,
}

/// The kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An outcome that the oracle does not allow.
    Forbidden,
    /// A run that did not end.
    Stuck,
    /// A failed assertion or a breach of the contract.
    Broken,
}

impl Kind {
    /// The word used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Forbidden => "forbidden",
            Kind::Stuck => "stuck",
            Kind::Broken => "broken",
        }
    }
}

/// One run that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its index in the series.
    pub index: u64,
    /// The kind of failure.
    pub kind: Kind,
    /// The seed of its block.
    pub seed: u64,
    /// Its index in the block.
    pub number: u64,
    /// The protocol.
    pub protocol: String,
    /// The test.
    pub shape: String,
    /// The outcome or problem.
    pub what: String,
}

impl Failure {
    /// The options that repeat this run: its block up to this run.
    pub fn options(&self, of: &LitmusOptions) -> LitmusOptions {
        let mut options = LitmusOptions { runs: self.number + 1, seed: self.seed, jobs: 1, ..of.clone() };
        options.protocols.retain(|protocol| protocol.to_string() == self.protocol);
        options.programs.retain(|program| program.name == self.shape);
        options
    }
}

/// The results of one test.
#[derive(Clone, Debug)]
pub struct ShapeReport {
    /// The test.
    pub name: String,
    /// The number of runs.
    pub runs: u64,
    /// Its condition as text, and the number of runs in which the formula held.
    pub condition: Option<(String, u64)>,
    /// For each allowed outcome, whether it was seen.
    pub seen: Vec<bool>,
}

impl ShapeReport {
    pub(crate) fn new(program: &Program, allowed: &Allowed) -> ShapeReport {
        ShapeReport {
            name: program.name.clone(),
            runs: 0,
            condition: program.condition_text().map(|text| (text, 0)),
            seen: vec![false; allowed.outcomes().len()],
        }
    }

    pub(crate) fn count_condition(&mut self, program: &Program, outcome: Outcome) {
        if let (Some((_, held)), Some(condition)) = (&mut self.condition, &program.condition) {
            *held += u64::from(program.holds(&condition.formula, outcome));
        }
    }

    /// Adds the results of another arrangement of the same test. For allowed outcomes, the arrangement that allows the
    /// most counts.
    fn absorb_arrangement(&mut self, other: ShapeReport) {
        self.runs += other.runs;
        if let (Some(mine), Some(theirs)) = (&mut self.condition, other.condition) {
            mine.1 += theirs.1;
        }
        match self.seen.len().cmp(&other.seen.len()) {
            std::cmp::Ordering::Less => self.seen = other.seen,
            std::cmp::Ordering::Equal => {
                self.seen.iter_mut().zip(other.seen).for_each(|(mine, theirs)| *mine |= theirs);
            }
            std::cmp::Ordering::Greater => {}
        }
    }

    /// The number of allowed outcomes that were seen.
    pub fn outcomes_seen(&self) -> usize {
        self.seen.iter().filter(|&&seen| seen).count()
    }
}

/// The results of a series of runs.
#[derive(Clone, Debug, Default)]
pub struct LitmusReport {
    /// Runs that were started.
    pub runs: u64,
    /// Runs that ended with an outcome.
    pub completed: u64,
    /// Runs whose outcome is not allowed.
    pub forbidden: u64,
    /// Runs that did not end.
    pub stuck: u64,
    /// Runs that a failed assertion or a breach of the contract has ended.
    pub broken: u64,
    /// Steps of all runs.
    pub steps: u64,
    /// The time that it took.
    pub seconds: f64,
    /// Each test.
    pub shapes: Vec<ShapeReport>,
    /// The protocols.
    pub protocols: Vec<String>,
    /// The first failures.
    pub failures: Vec<Failure>,
}

impl LitmusReport {
    /// Whether there was no failure.
    pub fn passed(&self) -> bool {
        self.runs == self.completed && self.forbidden == 0
    }

    /// Runs per second; zero if no time was measured.
    pub fn runs_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.runs as f64 / self.seconds } else { 0.0 }
    }

    /// Adds another report, about these tests or others.
    pub fn merge(&mut self, other: LitmusReport) {
        self.count(&other);
        self.seconds += other.seconds;
        self.failures.extend(other.failures);
        self.protocols.extend(other.protocols);
        for shape in other.shapes {
            match self.shapes.iter_mut().find(|known| known.name == shape.name) {
                Some(known) => known.absorb_arrangement(shape),
                None => self.shapes.push(shape),
            }
        }
    }

    fn count(&mut self, other: &LitmusReport) {
        self.runs += other.runs;
        self.completed += other.completed;
        self.forbidden += other.forbidden;
        self.stuck += other.stuck;
        self.broken += other.broken;
        self.steps += other.steps;
    }

    /// Adds the results of another job for the same programs.
    pub(crate) fn absorb(&mut self, other: LitmusReport) {
        self.count(&other);
        self.failures.extend(other.failures);
        for (mine, theirs) in self.shapes.iter_mut().zip(other.shapes) {
            mine.runs += theirs.runs;
            mine.seen.iter_mut().zip(theirs.seen).for_each(|(mine, theirs)| *mine |= theirs);
            if let (Some(mine), Some(theirs)) = (&mut mine.condition, theirs.condition) {
                mine.1 += theirs.1;
            }
        }
    }

    /// The report as one line of JSON. `shapes` is the number of tests and `protocols` contains names; with `details`
    /// each test has an object of its own in `tests`.
    pub fn to_json(&self, details: bool) -> String {
        let protocols: Vec<String> = self.protocols.iter().map(|name| json_text(name)).collect();
        let seen: usize = self.shapes.iter().map(ShapeReport::outcomes_seen).sum();
        let allowed: usize = self.shapes.iter().map(|shape| shape.seen.len()).sum();
        let failures: Vec<String> = self.failures.iter().map(failure_json).collect();
        let mut text = format!(
            "{{\"runs\": {}, \"completed\": {}, \"forbidden\": {}, \"stuck\": {}, \"broken\": {}, \"shapes\": {}, \
             \"protocols\": [{}], \"outcomes_allowed\": {allowed}, \"outcomes_seen\": {seen}, \"steps\": {}, \
             \"seconds\": {:.3}, \"runs_per_second\": {:.0}, \"failures\": [{}]",
            self.runs,
            self.completed,
            self.forbidden,
            self.stuck,
            self.broken,
            self.shapes.len(),
            protocols.join(", "),
            self.steps,
            self.seconds,
            self.runs_per_second(),
            failures.join(", "),
        );
        if details {
            let tests: Vec<String> = self.shapes.iter().map(shape_json).collect();
            text += &format!(", \"tests\": [{}]", tests.join(", "));
        }
        text + "}"
    }
}

fn failure_json(failure: &Failure) -> String {
    format!(
        "{{\"kind\": \"{}\", \"seed\": \"{:#x}\", \"runs\": {}, \"protocol\": {}, \"shape\": {}, \"what\": {}}}",
        failure.kind.name(),
        failure.seed,
        failure.number + 1,
        json_text(&failure.protocol),
        json_text(&failure.shape),
        json_text(&failure.what)
    )
}

fn shape_json(shape: &ShapeReport) -> String {
    let condition = shape.condition.as_ref().map_or(String::new(), |(text, held)| {
        format!(", \"condition\": {}, \"condition_held\": {held}", json_text(text))
    });
    format!(
        "{{\"name\": {}, \"runs\": {}, \"outcomes_allowed\": {}, \"outcomes_seen\": {}{condition}}}",
        json_text(&shape.name),
        shape.runs,
        shape.seen.len(),
        shape.outcomes_seen()
    )
}

/// `text` as a JSON string.
pub(crate) fn json_text(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control < ' ' => quoted += &format!("\\u{:04x}", control as u32),
            other => quoted.push(other),
        }
    }
    quoted + "\""
}

/// The answer to a test's condition under a model, as text.
pub fn verdict(program: &Program, allowed: &Allowed) -> Option<&'static str> {
    let Condition { quantifier, formula } = program.condition.as_ref()?;
    let mut outcomes = allowed.outcomes().iter();
    let holds = |&outcome: &Outcome| program.holds(formula, outcome);
    Some(match quantifier {
        Quantifier::Exists if outcomes.any(holds) => "allowed",
        Quantifier::Exists => "forbidden",
        Quantifier::NotExists if outcomes.any(holds) => "can be",
        Quantifier::NotExists => "cannot be",
        Quantifier::ForAll if outcomes.all(holds) => "always",
        Quantifier::ForAll => "not always",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_in_json_is_quoted() {
        assert_eq!(json_text("a \"b\" /\\ c\n"), r#""a \"b\" /\\ c\u000a""#);
    }
}
