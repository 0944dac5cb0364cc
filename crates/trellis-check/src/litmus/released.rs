//! The outcomes that release consistency allows.
//!
//! This oracle is the model of [`crate::release::ghost`]: for every thread and location, the stores that happened
//! before, and those that were overwritten before. A load sees any store that was made and that its thread does not
//! know to be overwritten. Locks, barriers and flags pass this knowledge on. A test whose accesses are ordered by its
//! calls therefore has exactly the outcomes of interleaving, which a test below checks. Where accesses race, a load
//! may return an old value, for each location independently, but always a value that was stored there.
//!
//! Threads run in order: no load sees a store that has not been made. At the end all threads have met.
//!
//! Promises: exact for that model. It must never guess: a program with too many orders is refused.

use super::oracle::STATES_MAX;
use super::program::{Call, Code, Instruction, LOCATIONS_MAX, Outcome, Program, THREADS_MAX};
use std::collections::HashSet;

/// The knowledge of a thread, a lock or a flag: sets of stores, by location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct View {
    known: [u16; LOCATIONS_MAX],
    overwritten: [u16; LOCATIONS_MAX],
}

impl View {
    /// The initial values are known.
    const START: View = View { known: [1; LOCATIONS_MAX], overwritten: [0; LOCATIONS_MAX] };

    fn join(&mut self, other: &View) {
        for location in 0..LOCATIONS_MAX {
            self.known[location] |= other.known[location];
            self.overwritten[location] |= other.overwritten[location];
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// The next instruction of each thread.
    next: [u8; THREADS_MAX],
    so_far: Outcome,
    threads: Vec<View>,
    /// The stored values, by location.
    stores: Vec<Vec<Code>>,
    locks: Vec<(Option<u8>, View)>,
    flags: Vec<(Code, View)>,
    /// Threads that have arrived at the barrier, one bit each.
    met: u8,
}

/// Every outcome of `program`.
pub(super) fn allowed(program: &Program) -> Result<HashSet<Outcome>, String> {
    let mut seen = HashSet::new();
    let mut outcomes = HashSet::new();
    let mut open = vec![start(program)];
    while let Some(state) = open.pop() {
        let mut is_over = true;
        for (thread, code) in program.threads.iter().enumerate() {
            let Some(&instruction) = code.get(usize::from(state.next[thread])) else { continue };
            is_over = false;
            if state.met >> thread & 1 == 0 {
                run(program, &state, thread, instruction, &mut |next| {
                    if seen.insert(next.clone()) {
                        open.push(next);
                    }
                });
            }
        }
        if is_over {
            finals(program, &state, &mut outcomes);
        }
        if seen.len() > STATES_MAX {
            let name = &program.name;
            return Err(format!(
                "{name}: the test has more than {STATES_MAX} states; take threads or instructions away"
            ));
        }
    }
    if outcomes.is_empty() {
        return Err(format!("{}: the test cannot end; its locks are taken and not given back", program.name));
    }
    Ok(outcomes)
}

fn start(program: &Program) -> State {
    let objects = program.objects();
    State {
        next: [0; THREADS_MAX],
        so_far: program.start(),
        threads: vec![View::START; program.threads.len()],
        stores: program.initial.iter().map(|&code| vec![code]).collect(),
        locks: vec![(None, View::START); objects],
        flags: vec![(0, View::START); objects],
        met: 0,
    }
}

fn run(program: &Program, state: &State, thread: usize, instruction: Instruction, push: &mut dyn FnMut(State)) {
    let mut next = state.clone();
    next.next[thread] += 1;
    match instruction {
        Instruction::Fence => push(next),
        Instruction::Store { location, source } => {
            let code = Program::operand(source, next.so_far);
            next.store(thread, location, code);
            push(next);
        }
        Instruction::Load { register, location } => {
            for code in state.visible(&state.threads[thread], location) {
                let so_far = next.so_far.with(register.into(), code);
                push(State { so_far, ..next.clone() });
            }
        }
        Instruction::Exchange { register, location, source } => {
            // An exchange is not atomic here: two nodes may see the same value.
            for code in state.visible(&state.threads[thread], location) {
                let mut next = next.clone();
                next.store(thread, location, Program::operand(source, state.so_far));
                next.so_far = next.so_far.with(register.into(), code);
                push(next);
            }
        }
        Instruction::Call(call) => next.call(program, thread, call, push),
    }
}

impl State {
    /// The values that a load may see.
    fn visible(&self, view: &View, location: u8) -> Vec<Code> {
        let location = usize::from(location);
        let mut codes: Vec<Code> = { self.stores[location].iter().enumerate() }
            .filter(|(store, _)| view.overwritten[location] >> store & 1 == 0)
            .map(|(_, &code)| code)
            .collect();
        codes.sort_unstable();
        codes.dedup();
        codes
    }

    fn store(&mut self, thread: usize, location: u8, code: Code) {
        let location = usize::from(location);
        let store = self.stores[location].len();
        assert!(store < 16, "a test stores at most fifteen times to a location");
        self.stores[location].push(code);
        let view = &mut self.threads[thread];
        view.overwritten[location] |= view.known[location];
        view.known[location] |= 1 << store;
    }

    fn call(mut self, program: &Program, thread: usize, call: Call, push: &mut dyn FnMut(State)) {
        match call {
            Call::Lock(lock) => {
                let (holder, view) = &mut self.locks[usize::from(lock)];
                if holder.is_some() {
                    return;
                }
                *holder = Some(thread as u8);
                self.threads[thread].join(view);
            }
            Call::Unlock(lock) => {
                let (holder, view) = &mut self.locks[usize::from(lock)];
                if *holder != Some(thread as u8) {
                    return;
                }
                *holder = None;
                view.join(&self.threads[thread]);
            }
            Call::Set { flag, source } => {
                let code = Program::operand(source, self.so_far);
                let (value, view) = &mut self.flags[usize::from(flag)];
                *value = code;
                view.join(&self.threads[thread]);
            }
            Call::Get { register, flag } => {
                let (value, view) = self.flags[usize::from(flag)];
                self.threads[thread].join(&view);
                self.so_far = self.so_far.with(register.into(), value);
            }
            Call::Barrier => {
                self.met |= 1 << thread;
                self.next[thread] -= 1;
                if u32::from(self.met) + 1 == 1 << program.threads.len() {
                    let mut all = self.threads[0];
                    self.threads.iter().for_each(|view| all.join(view));
                    self.threads.fill(all);
                    self.next[..program.threads.len()].iter_mut().for_each(|next| *next += 1);
                    self.met = 0;
                }
            }
        }
        push(self);
    }
}

/// All threads have met: each location has some store that was not overwritten.
fn finals(program: &Program, state: &State, outcomes: &mut HashSet<Outcome>) {
    let mut all = View::START;
    state.threads.iter().for_each(|view| all.join(view));
    let mut ends = vec![state.so_far];
    for location in 0..program.locations.len() as u8 {
        let codes = state.visible(&all, location);
        let with = |end: &Outcome| {
            let end = *end;
            codes.iter().map(move |&code| end.with(program.location_slot(location), code)).collect::<Vec<_>>()
        };
        ends = ends.iter().flat_map(with).collect();
    }
    outcomes.extend(ends);
}

#[cfg(test)]
mod tests {
    use super::super::generate::{cycles, shapes};
    use super::super::oracle::{Memory, allowed};
    use super::*;
    use crate::release::shapes::{released_shapes, with_locks};

    fn outcomes(program: &Program, memory: Memory<'_>) -> Vec<Outcome> {
        allowed(program, memory).expect("generated tests are small").outcomes().to_vec()
    }

    fn asks_for(program: &Program) -> bool {
        let formula = &program.condition.as_ref().expect("generated tests ask").formula;
        outcomes(program, Memory::Released).iter().any(|&outcome| program.holds(formula, outcome))
    }

    #[test]
    fn with_every_access_under_the_lock_of_its_word_there_is_only_interleaving() {
        for plain in cycles(3) {
            let locked = with_locks(&plain);
            assert_eq!(outcomes(&locked, Memory::Released), outcomes(&plain, Memory::Sequential), "{locked}");
        }
    }

    #[test]
    fn without_calls_there_is_whatever_interleaving_allows_and_more() {
        for plain in shapes().iter().filter(|plain| plain.threads.len() < 4) {
            let released = outcomes(plain, Memory::Released);
            assert!(outcomes(plain, Memory::Sequential).iter().all(|outcome| released.contains(outcome)), "{plain}");
        }
        let named = |name: &str| shapes().into_iter().find(|program| program.name == name).expect("it is generated");
        assert!(["SB", "MP", "IRIW", "WRC", "ISA2"].iter().all(|name| asks_for(&named(name))));
        assert!(!asks_for(&named("LB")), "threads run in order");
    }

    #[test]
    fn what_is_released_is_seen_through_any_number_of_hands() {
        let all = released_shapes();
        let named = |name: &str| all.iter().find(|program| program.name == name).expect("it is made");
        for name in
            ["MP+flags", "ISA2+flags", "HANDED-ON+flags", "HANDED-ON+locks", "SB+barrier", "MP+barrier", "IRIW+locks"]
        {
            assert!(!asks_for(named(name)), "{}", named(name));
        }
    }
}
