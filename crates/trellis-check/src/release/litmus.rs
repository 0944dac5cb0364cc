//! Litmus tests on simulated clusters with release consistency, in one thread, millions of times.
//!
//! A seed also determines homes, and how stores are noticed. A run writes the initial values at one node, lets nodes
//! load copies after a barrier, runs the threads, and after a last barrier lets one node read every word. The next run
//! of a block begins with the copies, twins, notices and messages under way. A word contains the number of its run: a
//! value of an earlier run counts as never written.
//!
//! Promises: those of `crate::litmus::series`.

use super::cluster::{Cluster, Pace};
use super::{Fault, Operation, PAGE_WORDS, Script, Setup, Source, Troubles, Value};
use crate::intern::guarded;
use crate::litmus::oracle::Memory;
use crate::litmus::program::{ALIEN, Call, Code, Instruction, Operand, Outcome};
use crate::litmus::series::{Ended, Prepared, Run, Runner, Series};
use crate::litmus::{Kind, LitmusOptions, LitmusReport, Progress};
use trellis_base::Random;
use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::homes::{FirstTouch, Home, Interleaved, Manager, Migrating};
use trellis_cluster_protocol::node::{PublicationLimits, STORED_IN_A_ROW};

/// The maximum number of nodes of a cluster: one for each thread, and one more.
const NODES_MAX: u16 = 9;

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
    let series = series(options)?;
    Ok(series.simulate(|| Blocks::new(&series, fault), progress))
}

/// Repeats the first block, up to the number of runs, and describes the last of them. The last line says how it ended.
///
/// # Errors
///
/// The same as for [`simulate`].
pub fn tell(options: &LitmusOptions) -> Result<Vec<String>, String> {
    let series = series(options)?;
    Ok(series.tell(Blocks::new(&series, Fault::None)))
}

fn series(options: &LitmusOptions) -> Result<Series<'_>, String> {
    if let Some(other) = options.protocols.iter().find(|protocol| !protocol.is_release_consistent()) {
        return Err(format!("{other} keeps sequential consistency; its litmus tests are others, so name it alone"));
    }
    Series::new(options, Memory::Released)
}

/// The clusters of one thread, one after the other.
struct Blocks<'a> {
    series: &'a Series<'a>,
    fault: Fault,
    /// The last one, unless its run failed: after an error, the same cluster would only repeat it.
    block: Option<Block<'a>>,
    keeps_story: bool,
    steps: u64,
}

impl<'a> Blocks<'a> {
    fn new(series: &'a Series<'a>, fault: Fault) -> Blocks<'a> {
        Blocks { series, fault, block: None, keeps_story: false, steps: 0 }
    }

    /// The cluster of a block, before its first run.
    fn begin(&self, run: &Run) -> Block<'a> {
        let (prepared, protocol) = (&self.series.programs[run.program], self.series.protocol(run));
        let mut random = Random::for_purpose(run.seed, 3);
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
            steps_max: u64::from(self.series.options.steps_max) * 10,
        };
        Block {
            describe: setup.describe(),
            words: words_of(&layout, random.index(PAGE_WORDS) as u16),
            cluster: Cluster::new(setup, run.seed, pace, false),
            random,
            number: 0,
            prepared,
            placement,
            nodes,
            steps: 0,
        }
    }
}

impl Runner for Blocks<'_> {
    fn run(&mut self, run: &Run) -> Result<Outcome, Ended> {
        let last = self.block.take().filter(|_| run.number > 0);
        let mut block = last.unwrap_or_else(|| self.begin(run));
        block.number = run.number + 1;
        if self.keeps_story {
            block.cluster.keep_story();
        }
        let end = guarded(|| block.run()).unwrap_or_else(|what| Err((Kind::Broken, what)));
        self.steps += std::mem::take(&mut block.steps);
        self.block = (end.is_ok() || self.keeps_story).then_some(block);
        end
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn keep_story(&mut self) {
        self.keeps_story = true;
    }

    fn take_story(&mut self, _run: &Run) -> (String, Vec<String>) {
        let block = self.block.as_mut().expect("a run that is told keeps its cluster");
        (format!("{}, threads on nodes {:?}", block.describe, block.placement), block.cluster.take_story())
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
        troubles: Troubles::default(),
        may_disagree: false,
        changes: Vec::new(),
        objects: None,
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
    /// The number of its run, from 1 on.
    number: u64,
    prepared: &'a Prepared,
    placement: Vec<u8>,
    nodes: u16,
    words: Vec<u16>,
    describe: String,
    steps: u64,
}

impl Block<'_> {
    /// A value as a word of this run.
    fn encoded(&self, code: Code) -> Value {
        (self.number as Value) << 4 | Value::from(code)
    }

    fn decoded(&self, value: Value) -> Code {
        let code = (value & 15) as Code;
        if value == self.encoded(code) { code } else { ALIEN }
    }

    fn run(&mut self) -> Result<Outcome, Ended> {
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

    fn go_on(&mut self) -> Result<(), Ended> {
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
