//! The outcomes that a litmus test may have, found by trying every order.
//!
//! Promises: the answer is exact for the requested model. The model for real processes allows everything that the
//! hardware can do, so a forbidden outcome is a bug of the protocol or of the runtime. It must never guess: a program
//! with more states than [`STATES_MAX`] is refused.
//!
//! # Which model when
//!
//! **In the simulator** ([`Memory::Sequential`]) an instruction of a thread is one step on its node's memory, so every
//! outcome must be that of some interleaving.
//!
//! **On real processes** ([`Memory::Processes`]) plain `mov` goes through a store buffer (x86-TSO; Sewell et al.
//! 2010), which the protocol cannot see:
//!
//! * *A thread alone on its node* behaves as if it had no buffer. Its own loads see its buffer, and no other node can
//!   read the page before the node has lost the right to write it. Taking that right changes a page table and
//!   interrupts every core that runs a thread of the node, and an interrupt drains the store buffer (Intel SDM vol. 3,
//!   "Store Buffer"; AMD APM vol. 2 §7.4.2).
//! * *Threads on one node* follow x86-TSO among themselves: a store waits in the thread's buffer, first in first out,
//!   and reaches the node's memory at any later time. Loads of the same thread see it at once; exchanges and fences
//!   wait until the buffer is empty.
//! * *Between nodes*: while a store is in the buffer of any thread of a node, the pages that the node's threads
//!   touched since its buffers were last empty stay at the node: no other node loads from those it stored to or stores
//!   to those it touched. (Giving a page up drains *all* its threads.) While its buffers are empty, a node can give up
//!   every page at once, so no pages need to be remembered.
//!
//! With every thread alone this is sequential consistency; with all threads on one node it is x86-TSO. Tests below
//! cover both. Machines that invalidate translations by broadcast instead of an interrupt (AMD `INVLPGB`) do not
//! guarantee such a drain. A store-buffering outcome across nodes would there be a property of the machine, and the
//! tests can find it.

use super::program::{Code, Instruction, Outcome, Program, THREADS_MAX};
use super::released;
use std::collections::HashSet;

/// The maximum number of states that are visited.
pub const STATES_MAX: usize = 1_000_000;

/// The memory that the threads of a test share.
#[derive(Clone, Copy, Debug)]
pub enum Memory<'a> {
    /// One memory, one step at a time.
    Sequential,
    /// Nodes with release consistency ([`released`]). This model also covers calls.
    Released,
    /// Processes on x86 with a protocol between them.
    Processes {
        /// The node of each thread.
        placement: &'a [u8],
        /// The page of each location.
        layout: &'a [u8],
    },
}

/// Every outcome that a program may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    outcomes: Vec<Outcome>,
}

impl Allowed {
    fn new(outcomes: HashSet<Outcome>) -> Allowed {
        let mut outcomes: Vec<Outcome> = outcomes.into_iter().collect();
        outcomes.sort_unstable();
        Allowed { outcomes }
    }

    /// Whether `outcome` is allowed.
    pub fn contains(&self, outcome: Outcome) -> bool {
        self.place(outcome).is_some()
    }

    /// The index of `outcome` among the allowed ones.
    pub fn place(&self, outcome: Outcome) -> Option<usize> {
        self.outcomes.binary_search(&outcome).ok()
    }

    /// All allowed outcomes, ascending.
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }
}

/// Tries every order of `program`.
pub fn allowed(program: &Program, memory: Memory<'_>) -> Result<Allowed, String> {
    program.check()?;
    if let Memory::Released = memory {
        return released::allowed(program).map(Allowed::new);
    }
    if program.has_calls() {
        return Err(format!("{}: locks, barriers and flags are for protocols with release consistency", program.name));
    }
    let machine = Machine::new(program, memory);
    let mut outcomes = HashSet::new();
    let mut seen = HashSet::new();
    let mut open = vec![machine.start()];
    seen.insert(open[0].clone());
    while let Some(state) = open.pop() {
        if machine.is_done(&state) {
            outcomes.insert(state.so_far);
        }
        machine.successors(&state, |next| {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        });
        if seen.len() > STATES_MAX {
            return Err(format!(
                "{}: the test has more than {STATES_MAX} states; take threads or instructions away",
                program.name
            ));
        }
    }
    Ok(Allowed::new(outcomes))
}

/// The maximum number of stores in the buffer of a thread. A thread with a full buffer would wait, which forbids
/// nothing because no thread of a test within its limits is longer.
const BUFFER_MAX: usize = super::program::INSTRUCTIONS_MAX;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// The next instruction of each thread.
    next: [u8; THREADS_MAX],
    so_far: Outcome,
    /// For each thread that shares its node: the stores in its buffer, the oldest first.
    buffers: Vec<Vec<(u8, Code)>>,
    /// For each node: the pages that it stored to, and those that it loaded from, since its buffers were empty.
    stored: Vec<u8>,
    loaded: Vec<u8>,
}

struct Machine<'a> {
    program: &'a Program,
    /// The node of each thread that has a store buffer.
    buffered: Vec<Option<u8>>,
    /// The node of each thread.
    nodes: Vec<u8>,
    /// The page of each location.
    layout: Vec<u8>,
    node_count: usize,
}

impl<'a> Machine<'a> {
    fn new(program: &'a Program, memory: Memory<'_>) -> Machine<'a> {
        let threads = program.threads.len();
        let (nodes, layout) = match memory {
            Memory::Sequential | Memory::Released => ((0..threads as u8).collect(), vec![0; program.locations.len()]),
            Memory::Processes { placement, layout } => {
                assert_eq!((placement.len(), layout.len()), (threads, program.locations.len()));
                (placement.to_vec(), layout.to_vec())
            }
        };
        let has_company = |node: u8| nodes.iter().filter(|&&other| other == node).count() > 1;
        let buffered = nodes.iter().map(|&node| has_company(node).then_some(node)).collect();
        let node_count = nodes.iter().max().map_or(0, |&last| usize::from(last) + 1);
        Machine { program, buffered, nodes, layout, node_count }
    }

    fn start(&self) -> State {
        State {
            next: [0; THREADS_MAX],
            so_far: self.program.start(),
            buffers: vec![Vec::new(); self.program.threads.len()],
            stored: vec![0; self.node_count],
            loaded: vec![0; self.node_count],
        }
    }

    fn is_done(&self, state: &State) -> bool {
        let all = self.program.threads.iter().enumerate();
        state.buffers.iter().all(Vec::is_empty) && { all }.all(|(t, code)| usize::from(state.next[t]) == code.len())
    }

    fn successors(&self, state: &State, mut push: impl FnMut(State)) {
        for (thread, code) in self.program.threads.iter().enumerate() {
            if let Some(&instruction) = code.get(usize::from(state.next[thread]))
                && let Some(next) = self.run(state, thread, instruction)
            {
                push(next);
            }
            if !state.buffers[thread].is_empty() {
                push(self.drain(state, thread));
            }
        }
    }

    /// The oldest store of the thread reaches memory.
    fn drain(&self, state: &State, thread: usize) -> State {
        let mut next = state.clone();
        let (location, code) = next.buffers[thread].remove(0);
        next.so_far = next.so_far.with(self.program.location_slot(location), code);
        self.forget_if_empty(&mut next, thread);
        next
    }

    /// Runs one instruction if it can run now.
    fn run(&self, state: &State, thread: usize, instruction: Instruction) -> Option<State> {
        let is_locked = matches!(instruction, Instruction::Exchange { .. } | Instruction::Fence);
        if is_locked && !state.buffers[thread].is_empty() {
            return None;
        }
        let mut next = state.clone();
        next.next[thread] += 1;
        if let Some((location, write)) = instruction.access() {
            self.touch(&mut next, thread, self.layout[usize::from(location)], write)?;
        }
        match instruction {
            Instruction::Load { register, location } => {
                let code = self.seen(&next, thread, location);
                next.so_far = next.so_far.with(usize::from(register), code);
            }
            Instruction::Store { location, source } => {
                let code = Program::operand(source, next.so_far);
                if self.buffered[thread].is_some() {
                    debug_assert!(next.buffers[thread].len() < BUFFER_MAX);
                    next.buffers[thread].push((location, code));
                } else {
                    next.so_far = next.so_far.with(self.program.location_slot(location), code);
                }
            }
            Instruction::Exchange { register, location, source } => {
                let slot = self.program.location_slot(location);
                let (before, code) = (next.so_far.get(slot), Program::operand(source, next.so_far));
                next.so_far = next.so_far.with(slot, code).with(usize::from(register), before);
            }
            Instruction::Fence => {}
            Instruction::Call(_) => unreachable!("tests with calls have an oracle of their own"),
        }
        self.forget_if_empty(&mut next, thread);
        Some(next)
    }

    /// Gives `page` to the node of `thread`; `None` while another node cannot give it up.
    fn touch(&self, state: &mut State, thread: usize, page: u8, write: bool) -> Option<()> {
        let me = usize::from(self.nodes[thread]);
        for other in (0..self.node_count).filter(|&other| other != me) {
            let held = state.stored[other] | if write { state.loaded[other] } else { 0 };
            if held >> page & 1 != 0 {
                return None;
            }
        }
        let pages = if write { &mut state.stored[me] } else { &mut state.loaded[me] };
        *pages |= 1 << page;
        Some(())
    }

    /// A node with empty buffers can give up every page.
    fn forget_if_empty(&self, state: &mut State, thread: usize) {
        let me = self.nodes[thread];
        let mine = (0..self.nodes.len()).filter(|&other| self.nodes[other] == me);
        if { mine }.all(|other| state.buffers[other].is_empty()) {
            state.stored[usize::from(me)] = 0;
            state.loaded[usize::from(me)] = 0;
        }
    }

    /// The value that a load of `thread` sees: its own last buffered store, or memory.
    fn seen(&self, state: &State, thread: usize, location: u8) -> Code {
        let own = state.buffers[thread].iter().rev().find(|(stored, _)| *stored == location);
        own.map_or(state.so_far.get(self.program.location_slot(location)), |&(_, code)| code)
    }
}

#[cfg(test)]
mod tests {
    use super::super::generate::{cycles, partitions, shapes};
    use super::*;

    fn forbidden(program: &Program, memory: Memory<'_>) -> bool {
        let condition = program.condition.as_ref().expect("generated tests ask");
        let allowed = allowed(program, memory).expect("generated tests are small");
        !allowed.outcomes().iter().any(|&outcome| program.holds(&condition.formula, outcome))
    }

    #[test]
    fn every_generated_test_asks_for_something_forbidden() {
        for program in shapes() {
            assert!(forbidden(&program, Memory::Sequential), "{program}");
        }
    }

    #[test]
    fn alone_on_its_node_no_thread_has_a_buffer_that_matters() {
        for program in shapes() {
            let placement: Vec<u8> = (0..program.threads.len() as u8).collect();
            for layout in partitions(program.locations.len()) {
                let processes = Memory::Processes { placement: &placement, layout: &layout };
                assert_eq!(allowed(&program, processes), allowed(&program, Memory::Sequential), "{program}");
            }
        }
    }

    #[test]
    fn on_one_node_exactly_a_store_before_a_load_may_be_passed() {
        for program in cycles(4) {
            let passes =
                |code: &Vec<Instruction>| matches!(code[..], [Instruction::Store { .. }, Instruction::Load { .. }]);
            let relaxed = program.threads.iter().any(passes);
            let placement = vec![0; program.threads.len()];
            let layout = vec![0; program.locations.len()];
            let processes = Memory::Processes { placement: &placement, layout: &layout };
            assert_eq!(forbidden(&program, processes), !relaxed, "{program}");
        }
    }

    #[test]
    fn fences_and_exchanges_empty_the_buffer() {
        for program in shapes().iter().filter(|program| ["SB+XCHG", "SB+fences"].contains(&program.name.as_str())) {
            assert!(forbidden(program, Memory::Processes { placement: &[0, 0], layout: &[0, 1] }), "{program}");
        }
    }

    #[test]
    fn company_on_a_node_does_not_relax_what_happens_between_nodes() {
        // Store buffering between nodes 0 and 1, with a third thread that does nothing on node 0.
        let mut program = shapes().into_iter().find(|program| program.name == "SB").expect("it is generated");
        program.threads.push(vec![Instruction::Fence]);
        for layout in partitions(2) {
            let apart = Memory::Processes { placement: &[0, 1, 0], layout: &layout };
            assert!(forbidden(&program, apart), "{program}");
            let together = Memory::Processes { placement: &[0, 0, 1], layout: &layout };
            assert!(!forbidden(&program, together), "{program}");
        }
    }

    #[test]
    fn every_placement_and_layout_allows_what_interleaving_allows_and_no_more_than_one_node() {
        for program in cycles(3) {
            let sequential = allowed(&program, Memory::Sequential).unwrap();
            let flat = vec![0; program.locations.len()];
            let one = vec![0; program.threads.len()];
            let tso = allowed(&program, Memory::Processes { placement: &one, layout: &flat }).unwrap();
            for placement in partitions(program.threads.len()) {
                for layout in partitions(program.locations.len()) {
                    let memory = Memory::Processes { placement: &placement, layout: &layout };
                    let here = allowed(&program, memory).unwrap();
                    assert!(sequential.outcomes().iter().all(|&outcome| here.contains(outcome)), "{program}");
                    assert!(here.outcomes().iter().all(|&outcome| tso.contains(outcome)), "{program}");
                }
            }
        }
    }
}
