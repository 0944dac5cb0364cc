//! Litmus tests on simulated clusters with release consistency, in one thread, millions of times.
//!
//! A seed determines a test, a protocol, the placement of threads and words, homes, how stores are noticed, and a
//! schedule. It stands for [`BLOCK`] runs on one cluster: each begins with the copies, twins, notices and messages
//! under way that the previous run left. A run writes the initial values at one node, lets nodes load copies after a
//! barrier, runs the threads, and after a last barrier lets one node read every word. A word contains the number of
//! its run: a value of an earlier run counts as never written.
//!
//! Promises: a run depends only on its seed, its number in the block, its test and its protocol. It must never count a
//! run that did not end as completed.

use super::cluster::{Cluster, Pace};
use super::{Fault, Operation, PAGE_WORDS, Script, Setup, Source, Value};
use crate::intern::guarded;
use crate::litmus::generate::partitions;
use crate::litmus::oracle::{Allowed, Memory, allowed};
use crate::litmus::program::{ALIEN, Call, Code, Instruction, Operand, Outcome, Program};
use crate::litmus::{Failure, Kind, LitmusOptions, LitmusReport, Progress, ShapeReport};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use trellis_base::{Random, seed_of_run};
use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::homes::{FirstTouch, Home, Interleaved, Manager, Migrating};
use trellis_cluster_protocol::node::{PublicationLimits, STORED_IN_A_ROW};

/// Runs of one seed.
pub const BLOCK: u64 = 8;
/// The maximum number of nodes of a cluster: one for each thread, and one more.
const NODES_MAX: u16 = 9;

/// A test and its data that are the same for all runs.
struct Prepared {
    program: Program,
    allowed: Allowed,
    placements: Vec<Vec<u8>>,
    layouts: Vec<Vec<u8>>,
}

struct Series<'a> {
    options: &'a LitmusOptions,
    programs: Vec<Prepared>,
    fault: Fault,
}

/// Runs the tests of `options` on its protocols, all of which have release consistency.
///
/// # Errors
///
/// A sentence about a test that cannot be run.
pub fn simulate(options: &LitmusOptions, progress: &mut dyn FnMut(Progress)) -> Result<LitmusReport, String> {
    simulate_broken(options, Fault::None, progress)
}

/// Like [`simulate`], with a fault.
///
/// # Errors
///
/// The same.
pub fn simulate_broken(
    options: &LitmusOptions,
    fault: Fault,
    progress: &mut dyn FnMut(Progress),
) -> Result<LitmusReport, String> {
    let series = Series::new(options, fault)?;
    let began = Instant::now();
    let jobs = options.jobs.clamp(1, 64) as u64;
    let done = AtomicU64::new(0);
    let mut report = series.empty_report();
    std::thread::scope(|scope| {
        let (series, done) = (&series, &done);
        let others: Vec<_> =
            (1..jobs).map(|job| scope.spawn(move || series.run_share(job, jobs, done, &mut |_| {}))).collect();
        report.absorb(series.run_share(0, jobs, done, progress));
        for other in others {
            report.absorb(other.join().expect("a run that fails is caught in its own thread"));
        }
    });
    report.failures.sort_by_key(|failure| failure.index);
    report.failures.truncate(options.failures_max);
    report.seconds = began.elapsed().as_secs_f64();
    Ok(report)
}

/// Repeats the first block, up to the number of runs, and describes the last of them. The last line says how it ended.
///
/// # Errors
///
/// The same as for [`simulate`].
pub fn tell(options: &LitmusOptions) -> Result<Vec<String>, String> {
    let series = Series::new(options, Fault::None)?;
    let mut block = series.block(0);
    let runs = options.runs.clamp(1, BLOCK);
    let mut end = Err((Kind::Broken, "no run was asked for".to_string()));
    for _ in 0..runs {
        block.cluster.keep_story();
        end = block.guarded_run();
    }
    let program = &block.prepared.program;
    let mut lines: Vec<String> = program.to_string().lines().map(str::to_string).collect();
    let seed = block.seed;
    lines.push(format!(
        "{}, threads on nodes {:?}, seed {seed:#x}, run {runs} of its block",
        block.describe, block.placement
    ));
    lines.append(&mut block.cluster.take_story());
    lines.push(match end {
        Err((kind, what)) => format!("=> {}: {what}", kind.name()),
        Ok(outcome) => {
            let word = if block.prepared.allowed.contains(outcome) { "allowed" } else { "FORBIDDEN" };
            format!("=> {word}: {}", program.outcome_text(outcome))
        }
    });
    Ok(lines)
}

impl<'a> Series<'a> {
    fn new(options: &'a LitmusOptions, fault: Fault) -> Result<Series<'a>, String> {
        if options.programs.is_empty() || options.protocols.is_empty() {
            return Err("there is no litmus test or no protocol to run; name at least one of each".to_string());
        }
        if let Some(other) = options.protocols.iter().find(|protocol| !protocol.is_release_consistent()) {
            return Err(format!("{other} keeps sequential consistency; its litmus tests are others, so name it alone"));
        }
        let mut programs = Vec::new();
        for program in &options.programs {
            let count = program.threads.len();
            let mut placements = partitions(count);
            let nodes = |placement: &Vec<u8>| placement.iter().max().map_or(1, |&last| usize::from(last) + 1);
            placements.retain(|placement| {
                nodes(placement) <= usize::from(options.nodes_max)
                    && (program.barriers() == 0 || nodes(placement) == count)
            });
            if placements.is_empty() {
                let name = &program.name;
                return Err(format!("{name}: its threads meet at a barrier, and need {count} nodes; raise --nodes"));
            }
            let allowed = allowed(program, Memory::Released)?;
            let layouts = partitions(program.locations.len());
            programs.push(Prepared { program: program.clone(), allowed, placements, layouts });
        }
        Ok(Series { options, programs, fault })
    }

    fn empty_report(&self) -> LitmusReport {
        let shapes = self.programs.iter().map(|prepared| ShapeReport::new(&prepared.program, &prepared.allowed));
        LitmusReport {
            protocols: self.options.protocols.iter().map(ToString::to_string).collect(),
            shapes: shapes.collect(),
            ..LitmusReport::default()
        }
    }

    fn run_share(&self, job: u64, jobs: u64, done: &AtomicU64, progress: &mut dyn FnMut(Progress)) -> LitmusReport {
        let mut report = self.empty_report();
        let blocks = self.options.runs.div_ceil(BLOCK);
        let mut reported = 0;
        for number in (job..blocks).step_by(jobs as usize) {
            let mut block = self.block(number);
            for index in number * BLOCK..self.options.runs.min((number + 1) * BLOCK) {
                let end = block.guarded_run();
                report.steps += block.steps;
                let is_sound = end.is_ok();
                self.count(&mut report, index, &block, end);
                if !is_sound {
                    // After an error, the same cluster would only repeat it.
                    block = self.block(number);
                    block.number = index + 1 - number * BLOCK;
                }
            }
            if report.runs - reported >= 0x4000 {
                let runs = done.fetch_add(report.runs - reported, Ordering::Relaxed) + report.runs - reported;
                reported = report.runs;
                progress(Progress { runs, failures: report.forbidden + report.stuck + report.broken });
            }
        }
        report
    }

    fn count(&self, report: &mut LitmusReport, index: u64, block: &Block<'_>, end: Result<Outcome, (Kind, String)>) {
        report.runs += 1;
        let shape = &mut report.shapes[block.program];
        shape.runs += 1;
        let (kind, what) = match end {
            Ok(outcome) => {
                report.completed += 1;
                shape.count_condition(&block.prepared.program, outcome);
                if let Some(place) = block.prepared.allowed.place(outcome) {
                    shape.seen[place] = true;
                    return;
                }
                (Kind::Forbidden, block.prepared.program.outcome_text(outcome))
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
                seed: block.seed,
                number: index % BLOCK,
                protocol: block.protocol.to_string(),
                shape: block.prepared.program.name.clone(),
                what,
            });
        }
    }

    /// The cluster of a block, before its first run.
    fn block(&self, number: u64) -> Block<'_> {
        let seed = seed_of_run(self.options.seed, number);
        // Separate random streams, so that a run stays the same when it is repeated with its program and its protocol
        // alone.
        let program = Random::for_purpose(seed, 1).index(self.programs.len());
        let protocol = Random::for_purpose(seed, 2).index(self.options.protocols.len());
        let (prepared, protocol) = (&self.programs[program], self.options.protocols[protocol]);
        let mut random = Random::for_purpose(seed, 3);
        let placement = one_of(&mut random, &prepared.placements).clone();
        let layout = one_of(&mut random, &prepared.layouts).clone();
        let used = placement.iter().max().map_or(1, |&last| u16::from(last) + 1);
        // Sometimes one node has no threads, only copies or homes.
        let nodes = (used + u16::from(random.once_in(3))).clamp(2, NODES_MAX);
        let setup = setup_of(&mut random, protocol, self.fault, nodes, &placement, &layout);
        let pace = Pace {
            threads_of_8: 1 + random.below(6),
            slow_once_in: random.one_of(&[0, 3, 8]),
            is_lossy: false,
            steps_max: u64::from(self.options.steps_max) * 10,
        };
        Block {
            describe: setup.describe(),
            words: words_of(&layout, random.index(PAGE_WORDS) as u16),
            cluster: Cluster::new(setup, seed, pace, false),
            random,
            seed,
            number: 0,
            program,
            prepared,
            protocol,
            placement,
            nodes,
            steps: 0,
        }
    }
}

/// An element; half of the time the last, where everything is separate.
fn one_of<'a, T>(random: &mut Random, all: &'a [T]) -> &'a T {
    let last = all.len() - 1;
    &all[if random.once_in(2) { last } else { random.index(all.len()) }]
}

fn setup_of(
    random: &mut Random,
    protocol: Protocol,
    fault: Fault,
    nodes: u16,
    placement: &[u8],
    layout: &[u8],
) -> Setup {
    let pages = layout.iter().max().map_or(1, |&last| u32::from(last) + 1);
    let home = match random.below(4) {
        0 => Home::Manager(Manager(NodeId(random.below(nodes.into()) as u16))),
        1 => Home::Interleaved(Interleaved),
        2 => Home::FirstTouch(FirstTouch),
        _ => Home::Migrating(Migrating),
    };
    let none = |node: u16| Script { node, operations: Vec::new(), registers: Vec::new() };
    let errands = (0..nodes).map(none);
    Setup {
        protocol,
        nodes,
        pages: (0..pages).collect(),
        home,
        marks: if random.once_in(2) { u16::MAX } else { 0 },
        stored_in_a_row: 1 + random.below(STORED_IN_A_ROW.into()) as u8,
        is_ordered: random.once_in(3),
        is_wide: random.once_in(2),
        late_faults: random.once_in(4),
        late_bytes: random.once_in(4),
        limits: PublicationLimits {
            unacknowledged_pages_max: random.one_of(&[1, 64]),
            together_pages_max: random.one_of(&[1, 64]),
        },
        give_ups: 0,
        fault,
        scripts: placement.iter().map(|&node| none(node.into())).chain(errands).collect(),
    }
}

/// The word of each location: locations on one page have neighbouring words.
fn words_of(layout: &[u8], first: u16) -> Vec<u16> {
    let place = |(location, page): (usize, &u8)| {
        let before = layout[..location].iter().filter(|other| *other == page).count() as u16;
        u16::from(*page) * PAGE_WORDS as u16 + (first + before) % PAGE_WORDS as u16
    };
    layout.iter().enumerate().map(place).collect()
}

struct Block<'a> {
    cluster: Cluster,
    random: Random,
    seed: u64,
    number: u64,
    program: usize,
    prepared: &'a Prepared,
    protocol: Protocol,
    placement: Vec<u8>,
    nodes: u16,
    words: Vec<u16>,
    describe: String,
    steps: u64,
}

impl Block<'_> {
    fn guarded_run(&mut self) -> Result<Outcome, (Kind, String)> {
        self.number += 1;
        self.steps = 0;
        guarded(|| self.run()).unwrap_or_else(|what| Err((Kind::Broken, what)))
    }

    /// A value as a word of this run.
    fn encoded(&self, code: Code) -> Value {
        (self.number as Value) << 4 | Value::from(code)
    }

    fn decoded(&self, value: Value) -> Code {
        let code = (value & 15) as Code;
        if value == self.encoded(code) { code } else { ALIEN }
    }

    fn run(&mut self) -> Result<Outcome, (Kind, String)> {
        let prepared = self.prepared;
        let program = &prepared.program;
        let threads = program.threads.len();
        self.begin();
        self.go_on()?;
        self.run_threads();
        self.go_on()?;
        let mut outcome = program.start();
        for (slot, register) in program.registers.iter().enumerate() {
            let value = self.cluster.registers(register.thread.into())[slot];
            outcome = outcome.with(slot, self.register_code(slot as u8, value));
        }
        let reader = self.random.index(self.nodes.into());
        self.read_end(reader);
        self.go_on()?;
        for location in 0..program.locations.len() {
            let value = self.cluster.registers(threads + reader)[location];
            outcome = outcome.with(program.location_slot(location as u8), self.decoded(value));
        }
        Ok(outcome)
    }

    fn go_on(&mut self) -> Result<(), (Kind, String)> {
        let done = self.cluster.run(false);
        self.steps += self.cluster.steps();
        done.map_err(|(is_stuck, what)| (if is_stuck { Kind::Stuck } else { Kind::Broken }, what))
    }

    fn register_code(&self, register: u8, value: Value) -> Code {
        let code = self.decoded(value);
        let mut all = self.prepared.program.threads.iter().flatten();
        let is_flag = |instruction: &Instruction| matches!(instruction, Instruction::Call(Call::Get { register: target, .. }) if *target == register);
        // A flag that was not set in this run counts as unset.
        if code == ALIEN && value >> 4 < self.number as Value && all.any(is_flag) { 0 } else { code }
    }

    /// One node writes the initial values, all meet, and some load copies.
    fn begin(&mut self) {
        let program = &self.prepared.program;
        let threads = program.threads.len();
        let writer = self.random.index(self.nodes.into());
        let initial: Vec<Value> = program.initial.iter().map(|&code| self.encoded(code)).collect();
        let (words, random) = (&self.words, &mut self.random);
        self.cluster.set_scripts(|setup| {
            for (number, script) in setup.scripts.iter_mut().enumerate() {
                script.operations.clear();
                let Some(node) = number.checked_sub(threads) else { continue };
                if node == writer {
                    let store =
                        |(&word, &value): (&u16, &Value)| Operation::Store { word, source: Source::Constant(value) };
                    script.operations.extend(words.iter().zip(&initial).map(store));
                }
                script.operations.push(Operation::Barrier);
                let copied = words.iter().filter(|_| random.once_in(2));
                script.operations.extend(copied.map(|&word| Operation::Load { word, register: u8::MAX }));
            }
        });
    }

    fn run_threads(&mut self) {
        let program = &self.prepared.program;
        let threads = program.threads.len();
        let barriers = program.barriers();
        let registers: Vec<Value> = program.registers.iter().map(|register| self.encoded(register.initial)).collect();
        let operations: Vec<Vec<Operation>> =
            program.threads.iter().map(|code| code.iter().flat_map(|&one| self.operation(one)).collect()).collect();
        let placement = &self.placement;
        self.cluster.set_scripts(|setup| {
            for (number, script) in setup.scripts.iter_mut().enumerate() {
                script.operations.clear();
                if number < threads {
                    script.operations.extend_from_slice(&operations[number]);
                    script.registers.clone_from(&registers);
                } else if !placement.contains(&((number - threads) as u8)) {
                    script.operations.extend(std::iter::repeat_n(Operation::Barrier, barriers));
                }
            }
        });
    }

    fn read_end(&mut self, reader: usize) {
        let threads = self.prepared.program.threads.len();
        let words = &self.words;
        self.cluster.set_scripts(|setup| {
            for (number, script) in setup.scripts.iter_mut().enumerate() {
                script.operations.clear();
                let Some(node) = number.checked_sub(threads) else { continue };
                script.operations.push(Operation::Barrier);
                if node == reader {
                    script.registers = vec![0; words.len()];
                    let load = |(register, &word): (usize, &u16)| Operation::Load { word, register: register as u8 };
                    script.operations.extend(words.iter().enumerate().map(load));
                }
            }
        });
    }

    /// The operations of a node for an instruction.
    fn operation(&self, instruction: Instruction) -> Vec<Operation> {
        let word = |location: u8| self.words[usize::from(location)];
        let source = |operand| match operand {
            Operand::Constant(code) => Source::Constant(self.encoded(code)),
            Operand::Register(register) => Source::Register(register),
        };
        match instruction {
            Instruction::Load { register, location } => vec![Operation::Load { word: word(location), register }],
            Instruction::Store { location, source: from } => {
                vec![Operation::Store { word: word(location), source: source(from) }]
            }
            // Between nodes it is only a load and a store.
            Instruction::Exchange { register, location, source: from } => vec![
                Operation::Load { word: word(location), register },
                Operation::Store { word: word(location), source: source(from) },
            ],
            Instruction::Fence => Vec::new(),
            Instruction::Call(Call::Lock(lock)) => vec![Operation::Lock(lock)],
            Instruction::Call(Call::Unlock(lock)) => vec![Operation::Unlock(lock)],
            Instruction::Call(Call::Barrier) => vec![Operation::Barrier],
            Instruction::Call(Call::Set { flag, source: from }) => vec![Operation::Set { flag, source: source(from) }],
            Instruction::Call(Call::Get { register, flag }) => vec![Operation::Get { flag, register }],
        }
    }
}
