//! Litmus tests on real processes: the part of each node, given shared words and a barrier.
//!
//! The method is that of litmus7 (Alglave, Maranget, Sarkar and Sewell 2011). A batch is an array of instances of the
//! test, each with words of its own. Every thread runs its code on one instance after the other, with small random
//! delays, and keeps what it loaded. After the batch one node compares the results with the oracle. The layout changes
//! between batches: how many instances share a page, how far apart their words are, which nodes hold copies at the
//! start.
//!
//! Promises: every node computes the same plan, so only the words and the barrier are shared. A word contains the
//! number of its batch and a check, so that a value of an earlier batch, half a value and a value that was never
//! written are all detected. It must never wait except at the barrier, whose failure ends the run with the barrier's
//! message.
//!
//! Accesses are relaxed atomics of 64 bits (plain `mov` on x86), `swap` (`xchg`) and a sequentially consistent fence;
//! a compiler fence keeps each in place.

use super::generate::partitions;
use super::oracle::{Allowed, Memory, allowed};
use super::program::{ALIEN, Call, Code, Instruction, Operand, Outcome, Program};
use super::{Failure, Kind, LitmusReport, ShapeReport};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, compiler_fence, fence};
use trellis_base::Random;

/// The maximum number of batches: a word contains its batch in 28 bits.
pub const BATCHES_MAX: u32 = 1 << 28;

/// One test on a cluster of processes. The plan must be the same at every node.
#[derive(Clone, Debug)]
pub struct RealPlan {
    /// The test.
    pub program: Program,
    /// The node of each thread.
    pub placement: Vec<u8>,
    /// The page of each location.
    pub layout: Vec<u8>,
    /// The number of nodes of the cluster; all of them take part in the barrier.
    pub nodes: u8,
    /// Instances of the test in a batch.
    pub instances: u32,
    /// The number of batches.
    pub batches: u32,
    /// Batches of plans that ran before in the same cluster: flags still have their old values.
    pub batches_before: u32,
    /// Words of 8 bytes in a page.
    pub page_words: u32,
    /// The longest delay of a thread before its code, in iterations of an empty loop.
    pub delay_max: u32,
    /// Selects layouts, delays and the holders of copies.
    pub seed: u64,
    /// Whether the cluster has release consistency only; the test may call the library only then.
    pub is_released: bool,
}

/// The calls that the threads of a test make. Locks and flags are numbers; a flag holds 64 bits.
pub trait Calls: Sync {
    /// Returns once every node has called it, in one thread on each.
    ///
    /// # Errors
    ///
    /// A sentence, here and below: the cluster cannot go on.
    fn barrier(&self) -> Result<(), String>;
    /// Takes a lock.
    ///
    /// # Errors
    ///
    /// The same.
    fn lock(&self, lock: u64) -> Result<(), String>;
    /// Releases a lock.
    ///
    /// # Errors
    ///
    /// The same.
    fn unlock(&self, lock: u64) -> Result<(), String>;
    /// Stores to a flag.
    ///
    /// # Errors
    ///
    /// The same.
    fn set(&self, flag: u64, value: u64) -> Result<(), String>;
    /// Loads a flag.
    ///
    /// # Errors
    ///
    /// The same.
    fn get(&self, flag: u64) -> Result<u64, String>;
}

impl RealPlan {
    /// A plan of about `runs` runs on `nodes` nodes.
    pub fn new(program: Program, placement: Vec<u8>, layout: Vec<u8>, nodes: u8, runs: u64) -> RealPlan {
        let instances = 64;
        let batches = runs.div_ceil(instances.into()).clamp(1, (BATCHES_MAX - 1).into()) as u32;
        RealPlan {
            program,
            placement,
            layout,
            nodes,
            instances,
            batches,
            batches_before: 0,
            page_words: 512,
            delay_max: 200,
            seed: 1,
            is_released: false,
        }
    }

    /// Whether the plan is consistent; otherwise a sentence.
    pub fn check(&self) -> Result<(), String> {
        self.program.check()?;
        let name = &self.program.name;
        if self.placement.len() != self.program.threads.len() || self.layout.len() != self.program.locations.len() {
            return Err(format!("{name}: a plan names the node of every thread and the page of every location"));
        }
        if self.placement.iter().any(|&node| node >= self.nodes) {
            return Err(format!("{name}: a thread is placed on a node past the {} that there are", self.nodes));
        }
        if usize::from(*self.layout.iter().max().unwrap_or(&0)) >= self.program.locations.len() {
            return Err(format!("{name}: pages are numbered from 0, and there are not more of them than locations"));
        }
        let batches = self.batches.saturating_add(self.batches_before);
        if self.instances == 0 || self.batches == 0 || batches >= BATCHES_MAX {
            return Err(format!("{name}: a plan has at least one instance and 1 to {} batches", BATCHES_MAX - 1));
        }
        if (self.page_words as usize) < self.program.locations.len() {
            return Err(format!("{name}: a page of {} words has no room for the test", self.page_words));
        }
        Ok(())
    }

    /// The memory model that decides the allowed outcomes.
    pub fn memory(&self) -> Memory<'_> {
        match self.is_released {
            true => Memory::Released,
            false => Memory::Processes { placement: &self.placement, layout: &self.layout },
        }
    }

    /// The number of runs of the plan.
    pub fn runs(&self) -> u64 {
        u64::from(self.instances) * u64::from(self.batches)
    }

    /// The number of shared words that it needs, from the start of a page.
    pub fn words(&self) -> usize {
        self.finals_at(usize::from(self.nodes))
    }

    fn pages(&self) -> usize {
        self.layout.iter().max().map_or(1, |&last| usize::from(last) + 1)
    }

    fn whole_pages(&self, words: usize) -> usize {
        words.next_multiple_of(self.page_words as usize)
    }

    /// Where thread number `thread` stores what it loaded.
    fn loaded_at(&self, thread: usize) -> usize {
        let cells = self.instances as usize * self.pages() * self.page_words as usize;
        let all = self.program.registers.len().max(1) * self.instances as usize;
        cells + thread * self.whole_pages(all)
    }

    /// Where node number `node` stores the final values that it sees.
    fn finals_at(&self, node: usize) -> usize {
        let all = self.program.locations.len() * self.instances as usize;
        self.loaded_at(self.program.threads.len()) + node * self.whole_pages(all)
    }
}

/// The placements and layouts to try on `nodes` nodes. With `everything` all of them; otherwise the threads as far
/// apart as the nodes allow, and the locations each on its own page or all on one.
pub fn arrangements(program: &Program, nodes: u8, everything: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
    let groups = |partition: &Vec<u8>| partition.iter().max().map_or(0, |&last| usize::from(last) + 1);
    let mut placements = partitions(program.threads.len());
    placements.retain(|placement| groups(placement) <= usize::from(nodes));
    if program.barriers() > 0 {
        // Only one thread of a node takes part in a barrier.
        placements.retain(|placement| groups(placement) == program.threads.len());
    }
    let mut layouts = partitions(program.locations.len());
    if !everything {
        let most = placements.iter().map(groups).max().unwrap_or(1);
        placements.retain(|placement| groups(placement) == most);
        layouts.retain(|layout| groups(layout) == 1 || groups(layout) == program.locations.len());
    }
    let pairs = |placement: Vec<u8>| layouts.iter().map(move |layout| (placement.clone(), layout.clone()));
    placements.into_iter().flat_map(pairs).collect()
}

/// The results of one plan at node 0.
#[derive(Clone, Debug)]
pub struct RealReport {
    /// How often each outcome was seen.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// The allowed outcomes.
    pub allowed: Allowed,
    /// The first forbidden outcomes: batch, instance, outcome.
    pub forbidden: Vec<(u32, u32, Outcome)>,
}

/// The maximum number of forbidden outcomes of a plan that are described; all are counted.
const FORBIDDEN_MAX: usize = 8;

impl RealReport {
    /// Runs with an outcome that is not allowed.
    pub fn forbidden_runs(&self) -> u64 {
        self.outcomes.iter().filter(|(outcome, _)| !self.allowed.contains(**outcome)).map(|(_, count)| count).sum()
    }

    /// Adds the results to a report of several plans, in which each test has one entry.
    pub fn add_to(&self, plan: &RealPlan, report: &mut LitmusReport) {
        let runs: u64 = self.outcomes.values().sum();
        report.runs += runs;
        report.completed += runs;
        report.forbidden += self.forbidden_runs();
        let mut shape = ShapeReport::new(&plan.program, &self.allowed);
        shape.runs = runs;
        for (&outcome, &count) in &self.outcomes {
            if let Some(place) = self.allowed.place(outcome) {
                shape.seen[place] = true;
            }
            if let (Some((_, held)), Some(condition)) = (&mut shape.condition, &plan.program.condition) {
                *held += if plan.program.holds(&condition.formula, outcome) { count } else { 0 };
            }
        }
        match report.shapes.iter_mut().find(|known| known.name == shape.name) {
            Some(known) => known.absorb_arrangement(shape),
            None => report.shapes.push(shape),
        }
        for &(batch, instance, outcome) in &self.forbidden {
            report.failures.push(Failure {
                index: u64::from(batch) * u64::from(plan.instances) + u64::from(instance),
                kind: Kind::Forbidden,
                seed: plan.seed,
                number: 0,
                protocol: report.protocols.first().cloned().unwrap_or_default(),
                shape: plan.program.name.clone(),
                what: format!(
                    "{} (batch {batch}, instance {instance}, threads on nodes {:?}, locations on pages {:?})",
                    plan.program.outcome_text(outcome),
                    plan.placement,
                    plan.layout
                ),
            });
        }
    }
}

/// Runs the part of `node`. `words` is the same memory at every node, from the start of a page; `barrier` returns once
/// every node has called it, and makes earlier stores visible to all. Node 0 returns the results.
pub fn run_node(
    plan: &RealPlan,
    node: u8,
    words: &[AtomicU64],
    barrier: &mut dyn FnMut() -> Result<(), String>,
) -> Result<Option<RealReport>, String> {
    run_part(plan, node, words, barrier, None)
}

/// Like [`run_node`], for tests that may call the library.
///
/// # Errors
///
/// A sentence: the plan is not consistent, or the cluster cannot go on.
pub fn run_calling_node(
    plan: &RealPlan,
    node: u8,
    words: &[AtomicU64],
    calls: &dyn Calls,
) -> Result<Option<RealReport>, String> {
    run_part(plan, node, words, &mut || calls.barrier(), Some(calls))
}

fn run_part(
    plan: &RealPlan,
    node: u8,
    words: &[AtomicU64],
    barrier: &mut dyn FnMut() -> Result<(), String>,
    calls: Option<&dyn Calls>,
) -> Result<Option<RealReport>, String> {
    plan.check()?;
    if plan.program.has_calls() && calls.is_none() {
        return Err(format!("{}: the test calls the library, and there is none", plan.program.name));
    }
    if words.len() < plan.words() {
        let (has, needs) = (words.len(), plan.words());
        return Err(format!("{}: the test needs {needs} shared words and was given {has}", plan.program.name));
    }
    let mut report = None;
    if node == 0 {
        let allowed = allowed(&plan.program, plan.memory())?;
        report = Some(RealReport { outcomes: BTreeMap::new(), allowed, forbidden: Vec::new() });
    }
    for number in 0..plan.batches {
        let batch = Batch::new(plan, words, number);
        if u32::from(node) == number % u32::from(plan.nodes) {
            batch.write_initial();
        }
        barrier()?;
        batch.spread(node);
        barrier()?;
        batch.run_threads(node, calls)?;
        barrier()?;
        batch.read_finals(node);
        barrier()?;
        if let Some(report) = &mut report {
            batch.tally(report);
        }
    }
    Ok(report)
}

/// One batch: the places of its words and the encoding of its values.
struct Batch<'a> {
    plan: &'a RealPlan,
    words: &'a [AtomicU64],
    number: u32,
    /// The number of instances that share a page, and the distance of their words.
    share: usize,
    stride: usize,
}

impl<'a> Batch<'a> {
    fn new(plan: &'a RealPlan, words: &'a [AtomicU64], number: u32) -> Batch<'a> {
        let mut random = Random::for_purpose(plan.seed, 16 + u64::from(number));
        let locations = plan.program.locations.len();
        let room = plan.page_words as usize / locations;
        let share = random.one_of(&[1, 2, 8]).min(room);
        let stride = random.one_of(&[1, 8]).min(room / share).max(1);
        Batch { plan, words, number, share, stride }
    }

    fn random(&self, purpose: u64) -> Random {
        Random::for_purpose(self.plan.seed ^ purpose << 32, u64::from(self.number))
    }

    fn word(&self, instance: usize, location: usize) -> &AtomicU64 {
        let page = instance / self.share * self.plan.pages() + usize::from(self.plan.layout[location]);
        let slot = instance % self.share * self.plan.program.locations.len() + location;
        &self.words[page * self.plan.page_words as usize + slot * self.stride]
    }

    fn loaded(&self, thread: usize, instance: usize, register: usize) -> &AtomicU64 {
        &self.words[self.plan.loaded_at(thread) + instance * self.plan.program.registers.len() + register]
    }

    fn last(&self, node: usize, instance: usize, location: usize) -> &AtomicU64 {
        &self.words[self.plan.finals_at(node) + instance * self.plan.program.locations.len() + location]
    }

    /// The code, the batch, and the complement of both.
    fn encoded(&self, code: Code) -> u64 {
        let low = (self.plan.batches_before + self.number + 1) << 4 | u32::from(code);
        u64::from(low) | u64::from(!low) << 32
    }

    /// The batch of a valid word.
    fn batch_of(word: u64) -> Option<u32> {
        let low = word as u32;
        (word >> 32 == u64::from(!low)).then(|| (low >> 4).wrapping_sub(1))
    }

    fn decoded(&self, word: u64) -> Code {
        let code = (word & 15) as Code;
        if word == self.encoded(code) { code } else { ALIEN }
    }

    fn write_initial(&self) {
        for instance in 0..self.plan.instances as usize {
            for (location, &code) in self.plan.program.initial.iter().enumerate() {
                self.word(instance, location).store(self.encoded(code), Ordering::Relaxed);
            }
        }
    }

    /// Random loads and stores of the initial values, so that copies and rights are distributed at random.
    fn spread(&self, node: u8) {
        let mut random = self.random(1 + u64::from(node));
        for instance in 0..self.plan.instances as usize {
            for (location, &code) in self.plan.program.initial.iter().enumerate() {
                let word = self.word(instance, location);
                match random.below(4) {
                    0 => word.store(self.encoded(code), Ordering::Relaxed),
                    1 => {
                        std::hint::black_box(word.load(Ordering::Relaxed));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Runs the threads of the test that are on `node`, and waits for them.
    fn run_threads(&self, node: u8, calls: Option<&dyn Calls>) -> Result<(), String> {
        let mine = self.plan.placement.iter().enumerate().filter(|&(_, &other)| other == node);
        let mine: Vec<usize> = mine.map(|(thread, _)| thread).collect();
        if mine.is_empty() {
            return self.meet_only(calls);
        }
        let waiting = AtomicUsize::new(mine.len());
        std::thread::scope(|scope| {
            let run = |thread: usize| {
                let waiting = &waiting;
                scope.spawn(move || {
                    waiting.fetch_sub(1, Ordering::AcqRel);
                    while waiting.load(Ordering::Acquire) > 0 {
                        std::thread::yield_now();
                    }
                    self.run_thread(thread, calls)
                })
            };
            let threads: Vec<_> = mine.iter().map(|&thread| run(thread)).collect();
            let ended =
                threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a thread stopped".into())));
            ended.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// A node without a thread of the test takes part in its barriers all the same.
    fn meet_only(&self, calls: Option<&dyn Calls>) -> Result<(), String> {
        let barriers = self.plan.program.barriers() * self.plan.instances as usize;
        (0..barriers).try_for_each(|_| calls.expect("it was checked").barrier())
    }

    fn run_thread(&self, thread: usize, calls: Option<&dyn Calls>) -> Result<(), String> {
        let mut random = self.random(0x100 + thread as u64);
        let registers = self.plan.program.registers.len();
        let instances = self.plan.instances as usize;
        let start = self.plan.program.registers.iter().map(|register| self.encoded(register.initial));
        let start: Vec<u64> = start.collect();
        let mut loaded = start.repeat(instances);
        for instance in 0..instances {
            for _ in 0..random.below(self.plan.delay_max.max(1).into()) {
                std::hint::spin_loop();
            }
            let mine = &mut loaded[instance * registers..][..registers];
            for &instruction in &self.plan.program.threads[thread] {
                compiler_fence(Ordering::SeqCst);
                match (instruction, calls) {
                    (Instruction::Call(call), Some(calls)) => self.run_call(call, instance, mine, calls)?,
                    (instruction, _) => self.run_instruction(instruction, instance, mine),
                }
            }
        }
        for (index, &word) in loaded.iter().enumerate() {
            self.loaded(thread, index / registers, index % registers).store(word, Ordering::Relaxed);
        }
        Ok(())
    }

    fn run_call(&self, call: Call, instance: usize, registers: &mut [u64], calls: &dyn Calls) -> Result<(), String> {
        // Every instance has locks and flags of its own, the same in every batch.
        let object = |number: u8| (instance * self.plan.program.objects() + usize::from(number)) as u64;
        match call {
            Call::Lock(lock) => calls.lock(object(lock)),
            Call::Unlock(lock) => calls.unlock(object(lock)),
            Call::Barrier => calls.barrier(),
            Call::Set { flag, source } => calls.set(object(flag), self.operand(source, registers)),
            Call::Get { register, flag } => {
                let word = calls.get(object(flag))?;
                // A value that an earlier batch left there does not count.
                let now = self.plan.batches_before + self.number;
                let is_old = word == 0 || Batch::batch_of(word).is_some_and(|batch| batch < now);
                registers[usize::from(register)] = if is_old { self.encoded(0) } else { word };
                Ok(())
            }
        }
    }

    fn operand(&self, source: Operand, registers: &[u64]) -> u64 {
        match source {
            Operand::Constant(code) => self.encoded(code),
            Operand::Register(register) => registers[usize::from(register)],
        }
    }

    #[inline]
    fn run_instruction(&self, instruction: Instruction, instance: usize, registers: &mut [u64]) {
        match instruction {
            Instruction::Load { register, location } => {
                registers[usize::from(register)] = self.word(instance, location.into()).load(Ordering::Relaxed);
            }
            Instruction::Store { location, source } => {
                let value = self.operand(source, registers);
                self.word(instance, location.into()).store(value, Ordering::Relaxed);
            }
            Instruction::Exchange { register, location, source } => {
                let value = self.operand(source, registers);
                registers[usize::from(register)] = self.word(instance, location.into()).swap(value, Ordering::SeqCst);
            }
            Instruction::Fence => fence(Ordering::SeqCst),
            Instruction::Call(_) => unreachable!("calls were checked before the threads began"),
        }
    }

    fn read_finals(&self, node: u8) {
        for instance in 0..self.plan.instances as usize {
            for location in 0..self.plan.program.locations.len() {
                let seen = self.word(instance, location).load(Ordering::Relaxed);
                self.last(node.into(), instance, location).store(seen, Ordering::Relaxed);
            }
        }
    }

    fn tally(&self, report: &mut RealReport) {
        for instance in 0..self.plan.instances as usize {
            let outcome = self.outcome(instance);
            *report.outcomes.entry(outcome).or_default() += 1;
            if !report.allowed.contains(outcome) && report.forbidden.len() < FORBIDDEN_MAX {
                report.forbidden.push((self.number, instance as u32, outcome));
            }
        }
    }

    fn outcome(&self, instance: usize) -> Outcome {
        let program = &self.plan.program;
        let mut outcome = program.start();
        for (index, register) in program.registers.iter().enumerate() {
            let word = self.loaded(register.thread.into(), instance, index).load(Ordering::Relaxed);
            outcome = outcome.with(index, self.decoded(word));
        }
        for location in 0..program.locations.len() {
            let seen = |node: u8| self.last(node.into(), instance, location).load(Ordering::Relaxed);
            // After the barrier every node must see the same final value. Under release consistency stores may race,
            // so the value of one node counts.
            let first = seen(if self.plan.is_released { (self.number % u32::from(self.plan.nodes)) as u8 } else { 0 });
            let agreed = self.plan.is_released || (1..self.plan.nodes).all(|node| seen(node) == first);
            let code = if agreed { self.decoded(first) } else { ALIEN };
            outcome = outcome.with(program.location_slot(location as u8), code);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::super::generate::shapes;
    use super::*;

    fn named(name: &str) -> Program {
        shapes().into_iter().find(|program| program.name == name).expect("it is generated")
    }

    #[test]
    fn every_word_of_a_batch_is_its_own_and_inside() {
        for name in ["MP", "IRIW", "CoRR", "4.2W"] {
            let program = named(name);
            for (placement, layout) in arrangements(&program, 4, true) {
                let plan = RealPlan {
                    instances: 9,
                    page_words: 64,
                    ..RealPlan::new(program.clone(), placement, layout, 4, 9)
                };
                let words: Vec<AtomicU64> = (0..plan.words()).map(|_| AtomicU64::new(0)).collect();
                for number in 0..6 {
                    let batch = Batch::new(&plan, &words, number);
                    let mut places = Vec::new();
                    let place = |word: &AtomicU64| std::ptr::from_ref(word) as usize;
                    for instance in 0..9 {
                        places.extend((0..program.locations.len()).map(|l| place(batch.word(instance, l))));
                        for thread in 0..program.threads.len() {
                            places
                                .extend((0..program.registers.len()).map(|r| place(batch.loaded(thread, instance, r))));
                        }
                        for node in 0..4 {
                            places.extend((0..program.locations.len()).map(|l| place(batch.last(node, instance, l))));
                        }
                    }
                    let count = places.len();
                    places.sort_unstable();
                    places.dedup();
                    assert_eq!(places.len(), count, "{name}: two uses of one word");
                }
            }
        }
    }

    #[test]
    fn a_value_of_another_batch_or_half_a_value_is_alien() {
        let plan = RealPlan::new(named("MP"), vec![0, 1], vec![0, 1], 2, 1);
        let (this, next) = (Batch::new(&plan, &[], 4), Batch::new(&plan, &[], 5));
        assert_eq!(
            (0..15).map(|code| this.decoded(this.encoded(code))).collect::<Vec<_>>(),
            (0..15).collect::<Vec<_>>()
        );
        assert_eq!(next.decoded(this.encoded(1)), ALIEN);
        let torn = this.encoded(0) & 0xFFFF_FFFF | this.encoded(1) & !0xFFFF_FFFF;
        assert_eq!((this.decoded(torn), this.decoded(0)), (ALIEN, ALIEN));
    }

    #[test]
    fn arrangements_put_threads_as_far_apart_as_there_are_nodes() {
        assert_eq!(arrangements(&named("MP"), 2, false), [(vec![0, 1], vec![0, 0]), (vec![0, 1], vec![0, 1])]);
        assert!(arrangements(&named("IRIW"), 2, false).iter().all(|(placement, _)| placement.contains(&1)));
        assert_eq!(arrangements(&named("IRIW"), 4, true).len(), 15 * 2);
    }
}
