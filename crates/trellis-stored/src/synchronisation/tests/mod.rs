//! Tests that the objects keep their promises whichever process runs next, ends or sleeps, and that broken variants are
//! detected.

mod conditions;
mod crowds;
mod locks;
mod memory;
mod mutants;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use trellis_base::Random;
use trellis_store::Store;
use trellis_store::stores::embedded::Embedded;
use trellis_store::wrap::{Counted, Failing, Fault as StoreFault};

use super::{Options, Session, SynchronisationError, member};
use crate::coherence::log::{Coherence, Identity, NoCopies};
use memory::Memory;
use mutants::Mutant;
use world::{Chooser, Fault, World};

/// The lease of the processes in the world.
const LEASE: Duration = Duration::from_secs(1);
/// The limit of waits. No wait of a run without a fault comes near it.
const WAIT_MAX: Duration = Duration::from_secs(60);
const REGION: u32 = 7;

/// A process in a world.
struct Process {
    number: usize,
    session: Session,
    memory: Arc<Memory>,
    is_over: AtomicBool,
}

/// How a run chooses its order, and what is broken in it.
struct Plan {
    chooser: Chooser,
    faults: Vec<(usize, usize, Fault)>,
    mutant: Option<Mutant>,
}

impl Plan {
    fn seed(seed: u64) -> Plan {
        Plan { chooser: Chooser::Random(Random::new(seed)), faults: Vec::new(), mutant: None }
    }

    fn first() -> Plan {
        Plan::path(Vec::new())
    }

    fn path(given: Vec<usize>) -> Plan {
        Plan { chooser: Chooser::Path { given, taken: Vec::new() }, faults: Vec::new(), mutant: None }
    }

    fn with(mut self, process: usize, call: usize, fault: Fault) -> Plan {
        self.faults.push((process, call, fault));
        self
    }

    fn broken(mut self, mutant: Option<Mutant>) -> Plan {
        self.mutant = mutant;
        self
    }

    /// One or two random faults of any kind, at an early call of any process.
    fn random_faults(mut self, seed: u64, processes: usize) -> Plan {
        let mut random = Random::for_purpose(seed, 1);
        for _ in 0..1 + random.below(2) {
            let process = random.index(processes);
            let call = random.index(16);
            let fault = match random.below(4) {
                0 => Fault::KilledBefore,
                1 => Fault::KilledAfter,
                _ => Fault::Stopped(Duration::from_millis(random.below(4_000))),
            };
            self.faults.push((process, call, fault));
        }
        self
    }

    fn is_faultless(&self) -> bool {
        self.faults.is_empty()
    }
}

/// Runs `processes` processes, each doing `work`, and gives them back with their world.
fn run(plan: Plan, processes: usize, work: impl Fn(&World, &Process) + Sync) -> (Arc<World>, Vec<Process>) {
    // Each process has two threads: the second gives the heartbeats.
    let world = World::new((0..2 * processes).map(|seat| seat / 2).collect(), plan.chooser, plan.mutant);
    let processes: Vec<Process> = (0..processes).map(|number| process(&world, number)).collect();
    for (process, call, fault) in plan.faults {
        world.fault(process, call, fault);
    }
    let mut threads: Vec<Box<dyn FnOnce() + Send + '_>> = Vec::new();
    for process in &processes {
        let (world, work) = (&world, &work);
        threads.push(Box::new(move || {
            let _over = Over(&process.is_over);
            work(world, process);
        }));
        threads.push(Box::new(move || give_signs_of_life(world, process)));
    }
    world.run(threads);
    (world, processes)
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn process(world: &Arc<World>, number: usize) -> Process {
    let store: Arc<dyn Store> = Arc::clone(world) as Arc<dyn Store>;
    let member = member::join(&*store, REGION, LEASE).unwrap();
    let memory = Arc::new(Memory::new(Arc::clone(&store), REGION));
    let who = Identity { name: "world".to_owned(), region: REGION, member, lease: LEASE, is_private: false };
    let shared = Coherence::new(store, who, Arc::clone(&memory) as _, 0);
    let options =
        Options { wait_max: WAIT_MAX, has_heartbeat_thread: false, is_alone: false, clock: Arc::clone(world) as _ };
    let session = Session::new(Arc::new(shared), options).unwrap();
    Process { number, session, memory, is_over: AtomicBool::new(false) }
}

fn give_signs_of_life(world: &World, process: &Process) {
    while !process.is_over.load(Ordering::SeqCst) && !world.is_dead(process.number) {
        world.sleep(LEASE / 3);
        if process.session.heartbeat().is_err() {
            return;
        }
    }
}

/// Whether an error is one that a killed process gets, or one that slept for longer than its lease; panics for others.
fn is_expected(world: &World, process: &Process, may_be_replaced: bool, error: &SynchronisationError) -> bool {
    match error {
        SynchronisationError::LeaseLost(_) => assert!(may_be_replaced, "{error}"),
        SynchronisationError::Memory(_) => assert!(world.is_dead(process.number), "{error}"),
        error => panic!("process {}: {error}", process.number),
    }
    true
}

/// Runs with seeds: `count` of them, or as many as `TRELLIS_SEEDS` says, or the one in `TRELLIS_SEED`. A failure names
/// its seed.
fn seeds(count: u64, mut run: impl FnMut(u64)) {
    struct Names(u64);
    impl Drop for Names {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let test = std::thread::current().name().unwrap_or_default().to_owned();
                println!("again: TRELLIS_SEED={} cargo test -p trellis --lib {test}", self.0);
            }
        }
    }
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a seed is a number"));
    let count = number("TRELLIS_SEEDS").unwrap_or(count);
    for seed in number("TRELLIS_SEED").map_or(0..count, |seed| seed..seed + 1) {
        let _names = Names(seed);
        run(seed);
    }
}

/// Runs every possible order of the calls, up to a limit; returns how many there were. `run` returns its choices.
fn every_order(most: usize, mut run: impl FnMut(Vec<usize>) -> Vec<(usize, usize)>) -> usize {
    let mut given = Vec::new();
    for count in 1..=most {
        let mut taken = run(given);
        while taken.last().is_some_and(|(choice, of)| choice + 1 == *of) {
            taken.pop();
        }
        let Some(last) = taken.last_mut() else { return count };
        last.0 += 1;
        given = taken.into_iter().map(|(choice, _)| choice).collect();
    }
    most
}

#[test]
fn a_process_that_is_alone_needs_no_record() {
    let counted = Counted::new(Arc::new(Embedded::new()));
    let who = Identity { name: "alone".to_owned(), region: REGION, member: 1, lease: LEASE, is_private: true };
    let shared = Coherence::new(Arc::clone(&counted) as _, who, Arc::new(NoCopies), 0);
    let session = Session::new(Arc::new(shared), Options { is_alone: true, ..Options::default() }).unwrap();
    let (lock, semaphore) = (session.mutex(1).unwrap(), session.semaphore(1).unwrap());
    drop(lock.lock().unwrap());
    assert_eq!(counted.counts().calls(), 2);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..100).for_each(|_| semaphore.release(1).unwrap()));
        (0..100).for_each(|_| semaphore.acquire().unwrap());
    });
    assert_eq!(counted.counts().calls(), 202);
    assert!(!session.heartbeat().unwrap());
}

/// The calls of the threads of one process go together and cross each other.
#[test]
fn threads_of_one_process_exclude_each_other_too() {
    let store: Arc<dyn Store> = Arc::new(Embedded::new());
    let member = member::join(&*store, REGION, LEASE).unwrap();
    let who = Identity { name: "threads".to_owned(), region: REGION, member, lease: LEASE, is_private: false };
    let shared = Coherence::new(store, who, Arc::new(NoCopies), 0);
    let session = Session::new(Arc::new(shared), Options::default()).unwrap();
    let (inside, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (lock, table) = (session.mutex("l").unwrap(), session.rwlock("t").unwrap());
                let barrier = session.barrier_of("b", 4).unwrap();
                for round in 0..50 {
                    let guard = lock.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().unwrap();
                    if barrier.wait().unwrap() {
                        rounds.fetch_add(1, Ordering::SeqCst);
                    }
                    let reader = table.read().unwrap();
                    assert!((round..=round + 1).contains(&rounds.load(Ordering::SeqCst)));
                    drop(reader);
                    let writer = table.write().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    writer.unlock().unwrap();
                    barrier.wait().unwrap();
                }
            });
        }
    });
}

/// A process that uses a store in this process in real time.
fn session(store: Arc<dyn Store>) -> Session {
    let member = member::join(&*store, REGION, LEASE).unwrap();
    let who = Identity { name: "test".to_owned(), region: REGION, member, lease: LEASE, is_private: false };
    let shared = Coherence::new(store, who, Arc::new(NoCopies), 0);
    Session::new(Arc::new(shared), Options { wait_max: LEASE / 10, ..Options::default() }).unwrap()
}

/// The number of calls at the start: two of the member, and one of the session.
const OPENING: u64 = 3;

#[test]
fn a_lock_whose_answer_was_lost_is_held_once_or_not_at_all() {
    for applied in [false, true] {
        for write in [false, true] {
            let store: Arc<dyn Store> = Arc::new(Embedded::new());
            let unknown = StoreFault::Unknown { applied };
            let failing = Failing::new(Arc::clone(&store), OPENING + 1, unknown);
            let (one, two) = (session(failing), session(store));
            if write {
                let guard = one.rwlock(1).unwrap().write().unwrap();
                assert_eq!(guard.token(), 1);
                assert!(two.rwlock(1).unwrap().try_write_for(Duration::ZERO).unwrap().is_none());
                guard.unlock().unwrap();
                assert_eq!(two.rwlock(1).unwrap().write().unwrap().token(), 2);
            } else {
                let guard = one.mutex(1).unwrap().lock().unwrap();
                assert_eq!(guard.token(), 1);
                assert!(two.mutex(1).unwrap().try_lock().unwrap().is_none());
                guard.unlock().unwrap();
                assert_eq!(two.mutex(1).unwrap().lock().unwrap().token(), 2);
            }
        }
    }
}

#[test]
fn a_read_whose_answer_was_lost_is_taken_back() {
    for applied in [false, true] {
        // The calls are the read itself, then the announcement of a writer that has to wait, and its wait.
        for call in 1..=3 {
            let store: Arc<dyn Store> = Arc::new(Embedded::new());
            let at = if call == 1 { OPENING + 1 } else { OPENING + call };
            let failing = Failing::new(Arc::clone(&store), at, StoreFault::Unknown { applied });
            let (one, two) = (session(failing), session(store));
            let [lock, other] = [&one, &two].map(|session| session.rwlock(1).unwrap());
            if call == 1 {
                let error = lock.read().err().unwrap().to_string();
                assert!(error.contains("whether it took effect cannot be told"), "{error}");
            } else {
                let reader = other.read().unwrap();
                assert!(lock.write().is_err());
                reader.unlock().unwrap();
            }
            // Nothing of it remains.
            other.try_write_for(Duration::ZERO).unwrap().expect("nobody reads").unlock().unwrap();
            other.try_read_for(Duration::ZERO).unwrap().expect("nobody waits to write").unlock().unwrap();
        }
    }
}

#[test]
fn a_guard_that_could_not_release_is_told_by_the_next_call() {
    let store: Arc<dyn Store> = Arc::new(Embedded::new());
    let failing = Failing::new(Arc::clone(&store), OPENING + 2, StoreFault::Unreachable);
    let session = session(failing);
    drop(session.mutex(1).unwrap().lock().unwrap());
    let error = session.mutex(1).unwrap().try_lock().err().unwrap();
    assert!(error.to_string().contains("was told to fail"), "{error}");
    assert_eq!(session.semaphore(2).unwrap().release(1), Err(error));
}

/// Whether a broken variant is detected by one of the runs.
fn is_noticed(mutant: Mutant, runs: u64, run: impl Fn(u64, Option<Mutant>)) {
    let noticed = (0..runs).any(|seed| catch_unwind(AssertUnwindSafe(|| run(seed, Some(mutant)))).is_err());
    assert!(noticed, "{mutant:?} was not noticed in {runs} runs");
}
