//! Several processes over one store in virtual time: the world chooses, call by call, which of them runs next.
//!
//! Every process is a thread, or two with the one that gives heartbeats, and runs the real code. A thread stops at each
//! call of the store until it is its turn, so that a run is determined by the choices alone: random ones from a seed,
//! or all of them one after the other. Time advances by a millisecond with each call, and to the next deadline when all
//! threads wait. A process can be killed before or after any call, and can be suspended for a time.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use trellis_base::Random;
use trellis_store::stores::embedded::Embedded;
use trellis_store::{Applied, Capabilities, Guard, Key, Kind, Operation, Store, StoreError};

use super::super::clock::Clock;
use super::mutants::Mutant;

/// The duration of a call of the store.
const CALL: Duration = Duration::from_millis(1);
/// The maximum number of steps, more than any run needs: a run with more does not end.
const STEPS_MAX: usize = 20_000;

thread_local! {
    /// The thread's seat in the world; `None` before and after the run.
    static SEAT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A way to choose one of several alternatives.
pub(super) enum Chooser {
    /// At random, by a seed.
    Random(Random),
    /// As given, then always the first; the number of alternatives is recorded.
    Path { given: Vec<usize>, taken: Vec<(usize, usize)> },
}

impl Chooser {
    fn choose(&mut self, count: usize) -> usize {
        match self {
            Chooser::Random(random) => random.index(count),
            Chooser::Path { given, taken } => {
                let choice = given.get(taken.len()).copied().unwrap_or(0);
                taken.push((choice, count));
                choice
            }
        }
    }
}

/// What happens to a process at one of its calls.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// It ends before the call.
    KilledBefore,
    /// It ends after the call was carried out, without receiving the answer.
    KilledAfter,
    /// It sleeps before the call.
    Stopped(Duration),
}

enum Seat {
    /// Its next call may begin.
    Ready {
        from: Duration,
    },
    /// The store refused it at this number of changes; it waits for another change.
    Waiting {
        until: Duration,
        changes: u64,
    },
    Asleep {
        until: Duration,
    },
    Running,
    Ended,
}

struct State {
    now: Duration,
    seats: Vec<Seat>,
    /// The process of each seat.
    processes: Vec<usize>,
    dead: Vec<bool>,
    calls: Vec<usize>,
    faults: Vec<(usize, usize, Fault)>,
    chooser: Chooser,
    changes: u64,
    steps: usize,
}

/// The store, the clock and the order of the processes.
pub(super) struct World {
    store: Embedded,
    begun: Instant,
    state: Mutex<State>,
    turns: Vec<Condvar>,
    mutant: Option<Mutant>,
}

impl World {
    /// A world with a thread for each seat; `processes` gives the process of each.
    pub(super) fn new(processes: Vec<usize>, chooser: Chooser, mutant: Option<Mutant>) -> Arc<World> {
        let count = processes.iter().max().map_or(0, |most| most + 1);
        let state = State {
            now: Duration::ZERO,
            seats: processes.iter().map(|_| Seat::Ready { from: Duration::ZERO }).collect(),
            dead: vec![false; count],
            calls: vec![0; count],
            faults: Vec::new(),
            chooser,
            changes: 0,
            steps: 0,
            processes,
        };
        let turns = state.seats.iter().map(|_| Condvar::new()).collect();
        // Far from the machine's own time, so that mixing the two is detected.
        let begun = Instant::now() + Duration::from_secs(1_000_000);
        Arc::new(World { store: Embedded::new(), begun, state: Mutex::new(state), turns, mutant })
    }

    /// Sets the fault of a process at one of its calls, counted from 0.
    pub(super) fn fault(&self, process: usize, call: usize, fault: Fault) {
        self.state().faults.push((process, call, fault));
    }

    /// Runs the threads of the processes, one for each seat, until all have ended.
    pub(super) fn run<'a>(self: &Arc<Self>, threads: Vec<Box<dyn FnOnce() + Send + 'a>>) {
        assert_eq!(threads.len(), self.turns.len(), "a thread for each seat");
        std::thread::scope(|scope| {
            for (seat, thread) in threads.into_iter().enumerate() {
                let world = Arc::clone(self);
                scope.spawn(move || {
                    SEAT.set(Some(seat));
                    let _ended = Ended(Arc::clone(&world), seat);
                    let mut state = world.state();
                    while !matches!(state.seats[seat], Seat::Running) {
                        state = world.turns[seat].wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
                    }
                    drop(state);
                    thread();
                });
            }
            let mut state = self.state();
            self.next(&mut state);
        });
        assert!(self.state().steps < STEPS_MAX, "the run does not end by itself");
    }

    /// Whether a process was killed.
    pub(super) fn is_dead(&self, process: usize) -> bool {
        self.state().dead[process]
    }

    /// The number of calls that a process has made.
    pub(super) fn calls(&self, process: usize) -> usize {
        self.state().calls[process]
    }

    /// The choices, and the number of alternatives.
    pub(super) fn taken(&self) -> Vec<(usize, usize)> {
        match &self.state().chooser {
            Chooser::Path { taken, .. } => taken.clone(),
            Chooser::Random(_) => Vec::new(),
        }
    }

    /// Lets the thread sleep.
    pub(super) fn sleep(&self, duration: Duration) {
        let seat = SEAT.get().expect("a thread of the world");
        let mut state = self.state();
        let until = state.now + duration;
        state.seats[seat] = Seat::Asleep { until };
        drop(self.turn(seat, state));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Gives the turn away and waits until it returns.
    fn turn<'a>(&'a self, seat: usize, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.next(&mut state);
        while !matches!(state.seats[seat], Seat::Running) {
            state = self.turns[seat].wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        state
    }

    /// Chooses the thread that runs next, and advances the time if none can run.
    fn next(&self, state: &mut State) {
        state.steps += 1;
        if state.steps >= STEPS_MAX {
            // This is reported at the end of the run, because this thread may be ending with a panic.
            state.dead.fill(true);
        }
        loop {
            let can_go: Vec<usize> = (0..state.seats.len()).filter(|seat| state.can_go(*seat)).collect();
            if let Some(dead) = can_go.iter().find(|seat| state.dead[state.processes[**seat]]).copied() {
                return self.go(state, dead);
            }
            match can_go.len() {
                0 => {}
                1 => return self.go(state, can_go[0]),
                count => {
                    let choice = state.chooser.choose(count);
                    return self.go(state, can_go[choice]);
                }
            }
            let wakes = state.seats.iter().filter_map(|seat| match seat {
                Seat::Ready { from: until } | Seat::Waiting { until, .. } | Seat::Asleep { until } => Some(*until),
                Seat::Running | Seat::Ended => None,
            });
            match wakes.min() {
                Some(until) => state.now = state.now.max(until),
                None => return,
            }
        }
    }

    fn go(&self, state: &mut State, seat: usize) {
        state.seats[seat] = Seat::Running;
        self.turns[seat].notify_all();
    }

    /// Carries out a call when its turn comes.
    fn call<T>(
        &self,
        deadline: Option<Instant>,
        mut carry_out: impl FnMut(&Embedded) -> Result<T, StoreError>,
        is_refused: impl Fn(&T) -> bool,
    ) -> Result<T, StoreError> {
        let Some(seat) = SEAT.get() else { return carry_out(&self.store) };
        let mut state = self.state();
        let process = state.processes[seat];
        if state.dead[process] {
            return Err(unreachable());
        }
        let number = state.calls[process];
        state.calls[process] += 1;
        let fault = state.faults.iter().find(|(of, call, _)| (*of, *call) == (process, number)).map(|found| found.2);
        let from = state.now + if let Some(Fault::Stopped(duration)) = fault { duration } else { Duration::ZERO };
        if from > state.now {
            state.stop(process, from);
        }
        state.seats[seat] = Seat::Ready { from };
        state = self.turn(seat, state);
        if matches!(fault, Some(Fault::KilledBefore)) {
            state.dead[process] = true;
        }
        if state.dead[process] {
            return Err(unreachable());
        }
        loop {
            state.now += CALL;
            let answer = carry_out(&self.store)?;
            let refused = is_refused(&answer);
            if !refused {
                state.changes += 1;
            }
            if matches!(fault, Some(Fault::KilledAfter)) {
                state.dead[process] = true;
                return Err(unreachable());
            }
            let until = deadline.map_or(Duration::ZERO, |deadline| deadline.saturating_duration_since(self.begun));
            if !refused || state.now >= until {
                return Ok(answer);
            }
            state.seats[seat] = Seat::Waiting { until, changes: state.changes };
            state = self.turn(seat, state);
            if state.dead[process] {
                return Err(unreachable());
            }
        }
    }
}

impl State {
    fn can_go(&self, seat: usize) -> bool {
        let is_dead = self.dead[self.processes[seat]];
        match self.seats[seat] {
            Seat::Ready { from } => is_dead || from <= self.now,
            Seat::Waiting { until, changes } => is_dead || until <= self.now || changes != self.changes,
            Seat::Asleep { until } => is_dead || until <= self.now,
            Seat::Running | Seat::Ended => false,
        }
    }

    /// The process's other threads do not continue before then either.
    fn stop(&mut self, process: usize, until: Duration) {
        for (seat, of) in self.seats.iter_mut().zip(&self.processes) {
            match seat {
                Seat::Ready { from } if *of == process => *from = (*from).max(until),
                Seat::Asleep { until: wakes } if *of == process => *wakes = (*wakes).max(until),
                _ => {}
            }
        }
    }
}

/// Notes the end of a thread, when it is dropped.
struct Ended(Arc<World>, usize);

impl Drop for Ended {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.seats[self.1] = Seat::Ended;
        self.0.next(&mut state);
    }
}

fn unreachable() -> StoreError {
    StoreError::Unreachable { store: "world".to_owned(), reason: "this process was killed".to_owned() }
}

impl Clock for World {
    fn now(&self) -> Instant {
        self.begun + self.state().now
    }
}

impl Store for World {
    fn name(&self) -> &str {
        "world"
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.call(None, |store| store.get_many(keys), |_| false)
    }

    fn apply(&self, operations: &[Operation], guard: Option<&Guard>) -> Result<Applied, StoreError> {
        let (operations, guard) = Mutant::change(self.mutant, operations, guard);
        let carry_out = |store: &Embedded| store.apply(&operations, guard.as_ref());
        self.call(None, carry_out, |applied| !matches!(applied, Applied::Done(_)))
    }

    fn apply_when(
        &self,
        operations: &[Operation],
        guard: Option<&Guard>,
        deadline: Instant,
    ) -> Result<Applied, StoreError> {
        let (operations, guard) = Mutant::change(self.mutant, operations, guard);
        let carry_out = |store: &Embedded| store.apply(&operations, guard.as_ref());
        self.call(Some(deadline), carry_out, |applied| matches!(applied, Applied::Refused(..)))
    }

    fn numbers(&self, region: u32, kind: Kind, from: u64, count: usize) -> Result<Vec<u64>, StoreError> {
        self.call(None, |store| store.numbers(region, kind, from, count), |_| false)
    }

    fn names(&self, region: u32, after: Option<&[u8]>, count: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        self.call(None, |store| store.names(region, after, count), |_| false)
    }
}
