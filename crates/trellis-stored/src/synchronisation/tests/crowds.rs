//! Tests read-write locks and barriers, which several threads hold together.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use trellis_store::{Key, Store};

use super::mutants::Mutant;
use super::world::Fault;
use super::{LEASE, Plan, Process, REGION, every_order, is_expected, is_noticed, run, seeds};
use crate::synchronisation::{Access, Clock, SynchronisationError, member, record};

const PAGE: u64 = 9;
const LOCK: u64 = 0x200;
const BARRIER: u64 = 0x300;

/// Writers change two words together; readers find them equal. Even processes write first, odd ones read first.
fn reads_and_writes(plan: Plan, processes: usize, times: usize) -> Vec<(usize, usize)> {
    let slept = plan.faults.iter().any(|(_, _, fault)| matches!(fault, Fault::Stopped(_)));
    let faultless = plan.is_faultless();
    let written = AtomicU64::new(0);
    let (world, _processes) = run(plan, processes, |world, process| {
        for time in 0..times {
            let done = if (process.number + time) % 2 == 0 { write(process) } else { read(process) };
            match done {
                Ok(count) => {
                    written.fetch_add(count, Ordering::SeqCst);
                }
                Err(error) => {
                    assert!(is_expected(world, process, slept, &error));
                    return;
                }
            }
        }
    });
    let value = world.get_many(&[Key::page(REGION, PAGE)]).unwrap().pop().flatten().unwrap_or_default();
    let (one, two) = (record::word(&value, 0), record::word(&value, 2048));
    assert_eq!(one, two);
    let written = written.into_inner();
    assert!(if faultless { one == written } else { (written..=written + 2).contains(&one) }, "{one}, {written}");
    let lock = record::key(REGION, record::at_address(record::Form::ReadWriteLock, LOCK));
    let left = world.get_many(&[lock]).unwrap().pop().flatten().unwrap_or_default();
    if faultless {
        assert_eq!([0, 24, 32].map(|offset| record::word(&left, offset)), [0, 0, 0], "nothing is left held");
    }
    world.taken()
}

fn write(process: &Process) -> Result<u64, SynchronisationError> {
    let guard = process.session.rwlock(LOCK)?.write()?;
    let value = process.memory.read(PAGE, 0) + 1;
    process.memory.write(PAGE, 0, value);
    process.memory.write(PAGE, 2048, value);
    guard.unlock().map(|()| 1)
}

fn read(process: &Process) -> Result<u64, SynchronisationError> {
    let guard = process.session.rwlock(LOCK)?.read()?;
    assert_eq!(process.memory.read(PAGE, 0), process.memory.read(PAGE, 2048));
    guard.unlock().map(|()| 0)
}

#[test]
fn every_order_of_a_writer_and_a_reader() {
    let orders = every_order(700, |given| reads_and_writes(Plan::path(given), 2, 2));
    assert!(orders > 50, "{orders}");
}

#[test]
fn readers_and_writers_in_random_orders_with_faults() {
    seeds(60, |seed| {
        reads_and_writes(Plan::seed(seed), 4, 3);
        reads_and_writes(Plan::seed(seed).random_faults(seed, 3), 3, 3);
    });
}

/// Two readers hold the lock; a waiting writer keeps a third out, and comes before it.
fn writers_come_first(plan: Plan) {
    let inside = AtomicUsize::new(0);
    let order = Mutex::new(Vec::new());
    run(plan, 4, |world, process| {
        let lock = process.session.rwlock(LOCK).unwrap();
        match process.number {
            0 | 1 => {
                let guard = lock.read().unwrap();
                inside.fetch_add(1, Ordering::SeqCst);
                world.sleep(LEASE * 3);
                assert_eq!(inside.load(Ordering::SeqCst), 2, "both read");
                drop(guard);
            }
            2 => {
                world.sleep(LEASE);
                assert!(lock.try_write_for(Duration::ZERO).unwrap().is_none());
                let _guard = lock.write().unwrap();
                order.lock().unwrap().push("writer");
                world.sleep(LEASE);
            }
            _ => {
                world.sleep(LEASE * 2);
                assert!(lock.try_read_for(LEASE / 10).unwrap().is_none(), "a writer waits");
                let _guard = lock.read().unwrap();
                order.lock().unwrap().push("reader");
            }
        }
    });
    assert_eq!(order.into_inner().unwrap(), ["writer", "reader"]);
}

#[test]
fn readers_read_together_and_a_writer_that_waits_comes_first() {
    seeds(10, |seed| writers_come_first(Plan::seed(seed)));
}

#[test]
fn broken_read_write_locks_are_noticed() {
    is_noticed(Mutant::ReaderOverlooksWriter, 50, |seed, mutant| {
        writer_is_alone(Plan::seed(seed).broken(mutant));
    });
}

/// There is no reader while a writer holds the lock.
fn writer_is_alone(plan: Plan) {
    let writing = AtomicUsize::new(0);
    run(plan, 2, |world, process| {
        let lock = process.session.rwlock(LOCK).unwrap();
        if process.number == 0 {
            let _guard = lock.write().unwrap();
            writing.store(1, Ordering::SeqCst);
            world.sleep(LEASE);
            writing.store(0, Ordering::SeqCst);
        } else {
            world.sleep(LEASE / 3);
            let _guard = lock.read().unwrap();
            assert_eq!(writing.load(Ordering::SeqCst), 0);
        }
    });
}

#[test]
fn readers_and_waiting_writers_that_ended_are_replaced() {
    for write in [false, true] {
        // A reader ends; then a writer, or a writer that waits for a reader that lives.
        let took = Mutex::new(Duration::ZERO);
        let plan = Plan::first().with(0, if write { 3 } else { 1 }, Fault::KilledBefore);
        run(plan, 3, |world, process| {
            let lock = process.session.rwlock(LOCK).unwrap();
            match process.number {
                0 if write => {
                    world.sleep(LEASE / 4);
                    assert!(lock.write().is_err(), "killed while it waited");
                }
                0 => assert!(lock.read().unwrap().unlock().is_err(), "killed while it read"),
                1 => {
                    world.sleep(LEASE / 2);
                    let begun = world.now();
                    if write {
                        lock.read().unwrap().unlock().unwrap();
                    } else {
                        lock.write().unwrap().unlock().unwrap();
                    }
                    *took.lock().unwrap() = world.now() - begun;
                }
                _ if write => {
                    let guard = lock.read().unwrap();
                    world.sleep(LEASE * 6);
                    guard.unlock().unwrap();
                }
                _ => {}
            }
        });
        let took = took.into_inner().unwrap();
        assert!(took >= LEASE && took < LEASE * 2, "{took:?} of virtual time, write {write}");
    }
}

#[test]
fn who_leaves_holds_nothing() {
    run(Plan::first(), 2, |world, process| {
        let table = process.session.rwlock(LOCK).unwrap();
        let lock = process.session.mutex(LOCK).unwrap();
        if process.number == 0 {
            let _ = (table.acquire(Access::Read).unwrap(), table.acquire(Access::Read).unwrap());
            let _ = lock.acquire().unwrap();
            member::leave(world, REGION, 1).unwrap();
            let error = lock.lock().err().unwrap().to_string();
            assert!(error.contains("the record of member 1 is gone"), "{error}");
        } else {
            world.sleep(LEASE);
            let before = world.calls(1);
            table.write().unwrap().unlock().unwrap();
            assert_eq!(world.calls(1) - before, 2, "its reads went with it");
            let begun = world.now();
            lock.lock().unwrap().unlock().unwrap();
            assert!(world.now() - begun < LEASE / 2, "nobody waits for a lease of who has left");
        }
    });
}

#[test]
fn calls_of_a_read_write_lock_and_its_sentences() {
    run(Plan::first(), 2, |world, process| {
        let lock = process.session.rwlock("table").unwrap();
        if process.number == 0 {
            for _ in 0..3 {
                let before = world.calls(0);
                drop(lock.read().unwrap());
                let guard = lock.write().unwrap();
                assert!(guard.token() > 0);
                drop(guard);
                assert_eq!(world.calls(0) - before, 4, "two each");
            }
            let guard = lock.read().unwrap();
            world.sleep(10 * LEASE);
            guard.unlock().unwrap();
        } else {
            world.sleep(LEASE / 2);
            let error = lock.obtain(Access::Write, Some(3 * LEASE)).unwrap().err().unwrap().to_string();
            for part in ["3.0 s waiting for read-write lock `table`", "(member 1) reads, for 2."] {
                assert!(error.contains(part), "{part}: {error}");
            }
            // The writer no longer waits.
            lock.read().unwrap().unlock().unwrap();
        }
    });
}

/// Processes meet this many times; after each meeting, all see what all have stored before.
fn barriers(plan: Plan, processes: usize, times: u64) -> Vec<(usize, usize)> {
    let last = AtomicUsize::new(0);
    let (world, _processes) = run(plan, processes, |world, process| {
        let barrier = process.session.barrier_of(BARRIER, processes as u32).unwrap();
        for time in 1..=times {
            process.memory.write(PAGE, 8 * process.number, time);
            let before = world.calls(process.number);
            let is_last = barrier.wait().unwrap();
            assert_eq!(world.calls(process.number) - before, if is_last { 1 } else { 2 });
            last.fetch_add(usize::from(is_last), Ordering::SeqCst);
            for other in 0..processes {
                let found = process.memory.read(PAGE, 8 * other);
                assert!(found == time || found == time + 1, "{found} at {time}");
            }
        }
    });
    assert_eq!(last.into_inner() as u64, times);
    world.taken()
}

#[test]
fn a_barrier_opens_for_all_and_carries_what_they_stored() {
    every_order(400, |given| barriers(Plan::path(given), 2, 2));
    seeds(40, |seed| {
        barriers(Plan::seed(seed), 4, 6);
    });
    is_noticed(Mutant::BarrierTooEarly, 20, |seed, mutant| {
        barriers(Plan::seed(seed).broken(mutant), 3, 3);
    });
}

#[test]
fn a_barrier_names_who_came_and_who_is_missing() {
    // The third process is killed when it comes.
    run(Plan::first().with(2, 2, Fault::KilledBefore), 4, |world, process| {
        if process.number == 3 {
            world.sleep(200 * LEASE);
            return;
        }
        let barrier = process.session.barrier_of("phase", 3).unwrap();
        let error = barrier.wait().expect_err("one does not come").to_string();
        let id = std::process::id();
        if process.number == 1 {
            for part in [
                "60.0 s waiting for barrier `phase`: 1 of 3 are missing; there: ".to_owned(),
                "this process".to_owned(),
                format!("process {id} on "),
                "not there: ".to_owned(),
                "(member 3)".to_owned(),
                "(member 4)".to_owned(),
            ] {
                assert!(error.contains(&part), "{part}: {error}");
            }
        }
    });
}

#[test]
fn who_gives_up_at_a_barrier_takes_its_arrival_back() {
    run(Plan::first(), 2, |world, process| {
        let barrier = process.session.barrier_of(BARRIER, 2).unwrap();
        if process.number == 0 {
            assert_eq!(barrier.wait_for(LEASE).unwrap(), None);
            world.sleep(LEASE);
            barrier.wait().unwrap();
        } else {
            world.sleep(2 * LEASE);
            let begun = world.now();
            barrier.wait().unwrap();
            assert!(world.now() - begun < LEASE);
            assert!(matches!(process.session.barrier_of(BARRIER, 3), Err(SynchronisationError::Misuse(_))));
            assert!(matches!(process.session.barrier_of(BARRIER + 8, 0), Err(SynchronisationError::Misuse(_))));
        }
    });
}

#[test]
fn giving_up_at_the_last_moment_is_no_loss() {
    // In any order of the arrival and of giving up, both are through, or none is.
    for delay in 0..40 {
        let through = Mutex::new(Vec::new());
        run(Plan::seed(delay), 2, |world, process| {
            let barrier = process.session.barrier_of(BARRIER, 2).unwrap();
            let is_first = process.number == 0;
            if !is_first {
                world.sleep(LEASE - LEASE / 50 + LEASE / 1000 * delay as u32);
            }
            let opened = barrier.wait_for(LEASE).unwrap().is_some();
            through.lock().unwrap().push(opened);
        });
        let through = through.into_inner().unwrap();
        assert_eq!(through[0], through[1], "after {delay} ms more");
    }
}
