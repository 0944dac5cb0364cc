//! Makes a history on real processes: random reads and exchanges of words that all nodes share.
//!
//! Every write is an exchange of a value that no other operation writes, so the history records what it replaced.
//! Exchanges are `xchg` and reads are plain `mov`; a locked instruction empties the store buffer, so threads of one
//! node are sequentially consistent among themselves too.
//!
//! Promises: an operation is in the history if and only if it was done. It must never wait except at the barrier.

use super::{History, Operation, THREADS_MAX, Thread, WRITES_MAX, value_of};
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use trellis_base::Random;

/// What every node does. The plan must be the same at every node.
#[derive(Clone, Copy, Debug)]
pub struct RecordPlan {
    /// The number of nodes; all of them take part in the barrier.
    pub nodes: u16,
    /// Threads of each node.
    pub threads: u16,
    /// Operations of each thread between two barriers.
    pub operations: u32,
    /// How often all nodes meet at the barrier.
    pub rounds: u32,
    /// Pages that are used.
    pub pages: u32,
    /// Cells on each page.
    pub cells: u32,
    /// Words of 8 bytes in a page.
    pub page_words: u32,
    /// One of this many operations is an exchange.
    pub exchange_once_in: u32,
    /// Selects the operations.
    pub seed: u64,
}

impl RecordPlan {
    /// A plan of about `operations` operations of all threads together.
    pub fn new(nodes: u16, threads: u16, operations: u64) -> RecordPlan {
        let rounds = 8;
        let each = operations.div_ceil(u64::from(nodes) * u64::from(threads) * u64::from(rounds));
        RecordPlan {
            nodes,
            threads,
            operations: each.clamp(1, u64::from(WRITES_MAX / rounds - 1)) as u32,
            rounds,
            pages: 4,
            cells: 4,
            page_words: 512,
            exchange_once_in: 3,
            seed: 1,
        }
    }

    /// Whether the plan is consistent; otherwise a sentence.
    pub fn check(&self) -> Result<(), String> {
        let threads = u64::from(self.nodes) * u64::from(self.threads);
        if threads == 0 || threads > u64::from(THREADS_MAX) {
            return Err(format!("a history has 1 to {THREADS_MAX} threads, not {threads}"));
        }
        if u64::from(self.operations) * u64::from(self.rounds) >= u64::from(WRITES_MAX) {
            return Err(format!("a thread of a history does less than {WRITES_MAX} operations"));
        }
        if self.pages == 0 || self.cells == 0 || self.cells > self.page_words || self.exchange_once_in == 0 {
            return Err(format!("{} cells do not fit a page of {} words", self.cells, self.page_words));
        }
        Ok(())
    }

    /// The number of shared words that it needs, from the start of a page.
    pub fn words(&self) -> usize {
        self.pages as usize * self.page_words as usize
    }

    fn word_of(&self, cell: u32) -> usize {
        let distance = self.page_words / self.cells;
        (cell / self.cells * self.page_words + cell % self.cells * distance) as usize
    }
}

/// Runs the part of `node` and returns the operations of its threads. `words` is the same memory at every node;
/// `barrier` returns once every node has called it.
pub fn record_node(
    plan: &RecordPlan,
    node: u16,
    words: &[AtomicU64],
    barrier: &mut dyn FnMut() -> Result<(), String>,
) -> Result<Vec<Thread>, String> {
    plan.check()?;
    if words.len() < plan.words() {
        return Err(format!("the history needs {} shared words and was given {}", plan.words(), words.len()));
    }
    let cells = plan.pages * plan.cells;
    if node == 0 {
        (0..cells).for_each(|cell| words[plan.word_of(cell)].store(0, Ordering::SeqCst));
    }
    barrier()?;
    let room = plan.operations as usize * plan.rounds as usize + cells as usize + plan.rounds as usize;
    let mut threads: Vec<Recorder<'_>> =
        (0..plan.threads).map(|index| Recorder::new(plan, words, node, index, room)).collect();
    for round in 0..plan.rounds {
        std::thread::scope(|scope| {
            threads.iter_mut().for_each(|recorder| {
                scope.spawn(move || recorder.work());
            });
        });
        barrier()?;
        let number = round;
        threads.iter_mut().for_each(|recorder| recorder.log.push(Operation::Barrier { number }));
    }
    // After the last barrier every thread must see the last value of every cell.
    threads.iter_mut().for_each(|recorder| (0..cells).for_each(|cell| recorder.read(cell)));
    barrier()?;
    Ok(threads.into_iter().map(|recorder| Thread { node, operations: recorder.log }).collect())
}

/// The history of a single process, in which every thread stands for a node: for tests of this program itself.
pub fn record_alone(plan: &RecordPlan, words: &[AtomicU64]) -> Result<History, String> {
    let together = std::sync::Barrier::new(usize::from(plan.nodes));
    let mut history = History::default();
    std::thread::scope(|scope| {
        let together = &together;
        let node = |node| {
            scope.spawn(move || {
                record_node(plan, node, words, &mut || {
                    together.wait();
                    Ok(())
                })
            })
        };
        let nodes: Vec<_> = (0..plan.nodes).map(node).collect();
        for node in nodes {
            history.threads.append(&mut node.join().expect("no step of a recorder can fail")?);
        }
        Ok(history)
    })
}

struct Recorder<'a> {
    plan: &'a RecordPlan,
    words: &'a [AtomicU64],
    thread: u32,
    writes: u32,
    random: Random,
    log: Vec<Operation>,
}

impl<'a> Recorder<'a> {
    fn new(plan: &'a RecordPlan, words: &'a [AtomicU64], node: u16, index: u16, room: usize) -> Recorder<'a> {
        let thread = u32::from(node) * u32::from(plan.threads) + u32::from(index);
        let random = Random::for_purpose(plan.seed, u64::from(thread));
        Recorder { plan, words, thread, writes: 0, random, log: Vec::with_capacity(room) }
    }

    fn work(&mut self) {
        let plan = self.plan;
        for _ in 0..plan.operations {
            let cell = self.random.below(u64::from(plan.pages * plan.cells)) as u32;
            if self.random.once_in(plan.exchange_once_in.into()) { self.exchange(cell) } else { self.read(cell) }
        }
    }

    fn read(&mut self, cell: u32) {
        let value = self.words[self.plan.word_of(cell)].load(Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.log.push(Operation::Read { cell, value });
    }

    fn exchange(&mut self, cell: u32) {
        let value = value_of(self.thread, self.writes);
        self.writes += 1;
        let replaced = self.words[self.plan.word_of(cell)].swap(value, Ordering::SeqCst);
        self.log.push(Operation::Exchange { cell, value, replaced });
    }
}
