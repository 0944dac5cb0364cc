//! Tests locks: what is stored under one is stored once, whichever process runs next, ends or sleeps.

use std::sync::Mutex;
use std::time::Duration;

use trellis_store::{Applied, Key, Kind, Operation, Outcome, Store};

use super::mutants::Mutant;
use super::world::{Fault, World};
use super::{LEASE, Plan, Process, REGION, every_order, is_expected, is_noticed, run, seeds};
use crate::coherence::entry::{LogEntry, Notice};
use crate::synchronisation::{SynchronisationError, record};

/// The address of the lock, and the page with the word under it.
const LOCK: u64 = 0x40;
const PAGE: u64 = 3;

/// Processes increment a word under a lock; the stored result is compared with the acknowledged ones.
fn increments(plan: Plan, processes: usize, times: u64) -> Vec<(usize, usize)> {
    let slept_long = plan.faults.iter().any(|(_, _, fault)| matches!(fault, Fault::Stopped(_)));
    let ends = plan.faults.iter().filter(|(_, _, fault)| !matches!(fault, Fault::Stopped(_))).count() as u64;
    let faultless = plan.is_faultless();
    let acknowledged = Mutex::new(Vec::new());
    let (world, _processes) = run(plan, processes, |world, process| {
        for _ in 0..times {
            match increment(process) {
                Ok((token, value)) => acknowledged.lock().unwrap().push((token, value)),
                Err(error) if is_expected(world, process, slept_long, &error) => return,
                Err(_) => unreachable!("panicked before"),
            }
        }
    });
    let acknowledged = acknowledged.into_inner().unwrap();
    let stored = stored(&world);
    assert_eq!(stored, (1..=stored.len() as u64).collect::<Vec<_>>(), "a store was lost, or came late");
    assert_eq!(word(&world), stored.len() as u64);
    for (_, value) in &acknowledged {
        assert!(stored.contains(value), "{value} was acknowledged and is not stored: {stored:?}");
    }
    let unknown = stored.len() - acknowledged.len();
    assert!(unknown as u64 <= ends, "{unknown} more are stored than were acknowledged or in doubt");
    let mut by_token = acknowledged.clone();
    by_token.sort_unstable();
    assert!(by_token.is_sorted_by_key(|(_, value)| *value), "tokens grow with what is stored: {by_token:?}");
    if faultless {
        assert_eq!(acknowledged.len() as u64, times * processes as u64);
    }
    world.taken()
}

fn increment(process: &Process) -> Result<(u64, u64), SynchronisationError> {
    let guard = process.session.mutex(LOCK)?.lock()?;
    let value = process.memory.read(PAGE, 8) + 1;
    process.memory.write(PAGE, 8, value);
    let token = guard.token();
    guard.unlock()?;
    Ok((token, value))
}

/// The values that the word had, from the log.
fn stored(world: &World) -> Vec<u64> {
    let read = Operation::Entries { log: Key::new(REGION, Kind::Log, 0), after: 0, count: 10_000 };
    let Ok(Applied::Done(outcomes)) = world.apply(&[read], None) else { panic!("the log can be read") };
    let Outcome::Entries { entries, .. } = &outcomes[0] else { panic!("entries") };
    let notices = entries.iter().map(|entry| LogEntry::decode(&entry.bytes).unwrap().notice);
    let values = notices.map(|notice| match notice {
        Notice::Inline(patches) => record::word(&patches[0].runs[0].1, 0),
        other => panic!("{other:?}"),
    });
    values.collect()
}

fn word(world: &World) -> u64 {
    let value = world.get_many(&[Key::page(REGION, PAGE)]).unwrap().pop().flatten().unwrap_or_default();
    record::word(&value, 8)
}

#[test]
fn every_order_of_two_processes_keeps_every_increment() {
    let orders = every_order(20_000, |given| increments(Plan::path(given), 2, 1));
    assert!((10..20_000).contains(&orders), "{orders} orders, which is all of them");
}

#[test]
fn every_order_of_two_increments_each() {
    let orders = every_order(600, |given| increments(Plan::path(given), 2, 2));
    assert!(orders > 100, "{orders}");
}

#[test]
fn a_process_that_ends_at_any_call_is_replaced() {
    for call in 0..4 {
        for fault in [Fault::KilledBefore, Fault::KilledAfter, Fault::Stopped(3 * LEASE)] {
            let orders = every_order(80, |given| increments(Plan::path(given).with(0, call, fault), 2, 1));
            assert!(orders > 1, "{orders} orders with {fault:?} at call {call}");
        }
    }
}

#[test]
fn random_orders_and_faults_keep_every_increment() {
    seeds(150, |seed| {
        increments(Plan::seed(seed), 3, 3);
        increments(Plan::seed(seed).random_faults(seed, 3), 3, 3);
    });
}

#[test]
fn broken_locks_are_noticed() {
    is_noticed(Mutant::LockIsTakenAlways, 50, |seed, mutant| {
        increments(Plan::seed(seed).broken(mutant), 3, 3);
    });
    is_noticed(Mutant::NoGuard, 200, |seed, mutant| {
        late_writer(Plan::seed(seed).broken(mutant));
    });
    is_noticed(Mutant::NoGuard, 300, |seed, mutant| {
        increments(Plan::seed(seed).random_faults(seed, 3).broken(mutant), 3, 3);
    });
    is_noticed(Mutant::NoHeartbeats, 50, |seed, mutant| {
        long_hold(Plan::seed(seed).broken(mutant));
    });
}

/// The first process sleeps for longer than its lease before it releases the lock; the second waits for it.
fn late_writer(plan: Plan) {
    // Its calls take the lock, fetch the page, and give the lock back.
    let plan = plan.with(0, 2, Fault::Stopped(5 * LEASE));
    let (world, _processes) = run(plan, 2, |world, process| {
        if process.number == 0 {
            let error = increment(process).expect_err("the lease was lost");
            let sentence = error.to_string();
            assert!(matches!(error, SynchronisationError::LeaseLost(_)), "{sentence}");
            let id = std::process::id();
            for part in [&format!("process {id} on "), "(member 1)", "no sign of life for 1.0 s", "(member 2)"] {
                assert!(sentence.contains(part), "{part}: {sentence}");
            }
            assert_eq!(increment(process).expect_err("it stays so"), error);
        } else {
            world.sleep(LEASE / 10);
            assert_eq!(increment(process).unwrap(), (2, 1), "nothing of the first is there");
        }
    });
    assert_eq!(word(&world), 1, "what the first stored never arrives");
}

#[test]
fn a_late_writer_is_refused_and_told() {
    seeds(20, |seed| late_writer(Plan::seed(seed)));
}

/// The first process holds the lock for many leases, and is alive.
fn long_hold(plan: Plan) {
    run(plan, 2, |world, process| {
        if process.number == 0 {
            let guard = process.session.mutex(LOCK).unwrap().lock().unwrap();
            let value = process.memory.read(PAGE, 8) + 1;
            process.memory.write(PAGE, 8, value);
            world.sleep(10 * LEASE);
            guard.unlock().expect("who gives signs of life is not replaced");
        } else {
            world.sleep(LEASE / 10);
            increment(process).unwrap();
        }
    });
}

#[test]
fn who_lives_is_not_replaced() {
    seeds(20, |seed| long_hold(Plan::seed(seed)));
}

#[test]
fn a_holder_that_ended_is_replaced_within_a_lease_and_a_half() {
    let took = Mutex::new(Duration::ZERO);
    run(Plan::first().with(0, 1, Fault::KilledBefore), 2, |world, process| {
        if process.number == 0 {
            let _guard = process.session.mutex(LOCK).unwrap().lock().unwrap();
            process.memory.read(PAGE, 8);
        } else {
            world.sleep(LEASE / 10);
            let begun = super::super::Clock::now(world);
            let guard = process.session.mutex(LOCK).unwrap().lock().unwrap();
            assert_eq!(guard.token(), 2);
            *took.lock().unwrap() = super::super::Clock::now(world) - begun;
        }
    });
    let took = took.into_inner().unwrap();
    assert!((LEASE..LEASE * 3 / 2).contains(&took), "{took:?} of virtual time");
}

#[test]
fn a_deadline_says_who_has_the_lock_and_for_how_long() {
    run(Plan::first(), 2, |world, process| {
        let lock = process.session.mutex("jobs").unwrap();
        if process.number == 0 {
            let guard = lock.lock().unwrap();
            world.sleep(8 * LEASE);
            drop(guard);
        } else {
            world.sleep(LEASE / 10);
            assert!(lock.try_lock_for(5 * LEASE).unwrap().is_none());
            let sentence = match lock.obtain(Some(2 * LEASE)).unwrap() {
                Err(error) => error.to_string(),
                Ok(_) => panic!("the other has it"),
            };
            let id = std::process::id();
            for part in ["2.0 s waiting for lock `jobs`", &format!("process {id} on "), "(member 1) has it, for 6."] {
                assert!(sentence.contains(part), "{part}: {sentence}");
            }
        }
    });
}

#[test]
fn a_thread_that_has_the_lock_is_refused_it_at_once() {
    run(Plan::first(), 1, |world, process| {
        let lock = process.session.mutex("jobs").unwrap();
        let guard = lock.lock().unwrap();
        let before = world.calls(0);
        for refused in [lock.lock().map(drop), lock.acquire().map(drop)] {
            let sentence = refused.unwrap_err().to_string();
            assert!(sentence.contains("this thread holds lock `jobs` already"), "{sentence}");
        }
        assert_eq!(world.calls(0), before, "the store is not asked");
        assert!(lock.try_lock().unwrap().is_none());
        drop(guard);
        drop(lock.lock().unwrap());
    });
}

#[test]
fn a_lock_that_is_free_is_two_calls_whoever_had_it() {
    let (world, processes) = run(Plan::first(), 2, |world, process| {
        let lock = process.session.mutex(LOCK).unwrap();
        world.sleep(LEASE * process.number as u32);
        for _ in 0..5 {
            let before = world.calls(process.number);
            drop(lock.lock().unwrap());
            assert_eq!(world.calls(process.number) - before, 2);
            world.sleep(2 * LEASE);
        }
    });
    assert_eq!((world.calls(0), world.calls(1)), (10, 10), "and no sign of life");
    assert_eq!(processes.len(), 2);
}

#[test]
fn a_process_that_replaced_a_holder_has_every_lock_it_held() {
    run(Plan::first().with(0, 2, Fault::KilledBefore), 2, |world, process| {
        let one = process.session.mutex(LOCK).unwrap();
        let two = process.session.mutex(LOCK + 8).unwrap();
        if process.number == 0 {
            let _guards = (one.lock().unwrap(), two.lock().unwrap());
            process.memory.read(PAGE, 8);
        } else {
            world.sleep(LEASE / 10);
            let begun = super::super::Clock::now(world);
            let _guards = (one.lock().unwrap(), two.lock().unwrap());
            let took = super::super::Clock::now(world) - begun;
            assert!(took < 2 * LEASE, "the second needs no lease of its own: {took:?}");
        }
    });
}

#[test]
fn a_try_is_one_call_and_names_are_known_everywhere() {
    run(Plan::first(), 2, |world, process| {
        let lock = process.session.mutex("jobs").unwrap();
        assert_eq!(world.calls(process.number), 1, "the name");
        process.session.mutex("jobs").unwrap();
        assert_eq!(world.calls(process.number), 1, "which is remembered");
        if process.number == 0 {
            let guard = lock.lock().unwrap();
            world.sleep(LEASE);
            drop(guard);
        } else {
            world.sleep(LEASE / 2);
            assert!(lock.try_lock().unwrap().is_none());
            assert_eq!(world.calls(process.number), 2);
            world.sleep(LEASE);
            assert!(lock.try_lock().unwrap().is_some());
        }
    });
}

#[test]
fn places_that_cannot_be_are_refused() {
    run(Plan::first(), 1, |_, process| {
        let long = "x".repeat(256);
        for place in [super::super::Place::Named(""), super::super::Place::Named(&long), u64::MAX.into()] {
            assert!(matches!(process.session.mutex(place), Err(SynchronisationError::Misuse(_))));
        }
    });
}
