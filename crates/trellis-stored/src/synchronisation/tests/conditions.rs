//! Tests condition variables, semaphores, events and one-time actions: no thread continues to sleep when there is
//! something to do.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::mutants::Mutant;
use super::world::{Fault, World};
use super::{LEASE, Plan, Process, WAIT_MAX, every_order, is_expected, is_noticed, run, seeds};
use crate::synchronisation::{Clock, SynchronisationError};

const PAGE: u64 = 5;
const LOCK: u64 = 0x100;
const NOT_EMPTY: u64 = 0x108;
const NOT_FULL: u64 = 0x110;
/// The words of the page: how many items were put and taken, and their places.
const PUT: usize = 0;
const TAKEN: usize = 8;
const ITEMS: usize = 16;
const ROOM: u64 = 1;

/// One process puts this many items through a buffer with room for one; the others take them.
fn through_conditions(plan: Plan, takers: usize, items: u64, with_release: bool) -> Vec<(usize, usize)> {
    let taken = Mutex::new(Vec::new());
    let (world, _processes) = run(plan, 1 + takers, |world, process| {
        let begun = world.now();
        let put = |process: &Process, word| process.memory.read(PAGE, word);
        let lock = process.session.mutex(LOCK).unwrap();
        let (not_empty, not_full) =
            (process.session.condvar(NOT_EMPTY).unwrap(), process.session.condvar(NOT_FULL).unwrap());
        let share = if process.number == 0 { items } else { items / takers as u64 };
        for item in 0..share {
            let mut guard = lock.lock().unwrap();
            if process.number == 0 {
                let is_full = || put(process, PUT) - put(process, TAKEN) == ROOM;
                not_full.wait_while(&mut guard, is_full).unwrap();
                process.memory.write(PAGE, ITEMS, item + 1);
                process.memory.write(PAGE, PUT, put(process, PUT) + 1);
            } else {
                not_empty.wait_while(&mut guard, || put(process, PUT) == put(process, TAKEN)).unwrap();
                taken.lock().unwrap().push(put(process, ITEMS));
                process.memory.write(PAGE, TAKEN, put(process, TAKEN) + 1);
            }
            let other = if process.number == 0 { &not_empty } else { &not_full };
            if with_release {
                guard.notify_all(other);
                guard.unlock().unwrap();
            } else {
                guard.unlock().unwrap();
                other.notify_all().unwrap();
            }
        }
        assert!(world.now() - begun < WAIT_MAX / 2, "who waits is woken, not ended by its deadline");
    });
    assert_eq!(taken.into_inner().unwrap(), (1..=items).collect::<Vec<_>>());
    world.taken()
}

#[test]
fn no_wake_up_is_lost_in_any_order() {
    let orders = every_order(700, |given| through_conditions(Plan::path(given), 1, 2, true));
    assert!(orders > 100, "{orders}");
    every_order(400, |given| through_conditions(Plan::path(given), 1, 2, false));
}

#[test]
fn no_wake_up_is_lost_in_random_orders() {
    seeds(60, |seed| {
        through_conditions(Plan::seed(seed), 1, 5, seed % 2 == 0);
        through_conditions(Plan::seed(seed), 3, 6, seed % 2 == 0);
    });
}

#[test]
fn broken_conditions_are_noticed() {
    is_noticed(Mutant::ConditionReadLate, 20, |seed, mutant| {
        through_conditions(Plan::seed(seed).broken(mutant), 1, 5, true);
    });
}

#[test]
fn a_wait_is_two_calls_and_a_notification_with_the_release_none() {
    let (waiting, notifying) = (AtomicU64::new(0), AtomicU64::new(0));
    run(Plan::first(), 2, |world, process| {
        let lock = process.session.mutex(LOCK).unwrap();
        let condition = process.session.condvar(NOT_EMPTY).unwrap();
        if process.number == 0 {
            let mut guard = lock.lock().unwrap();
            let before = world.calls(0);
            condition.wait(&mut guard).unwrap();
            waiting.store((world.calls(0) - before) as u64, Ordering::SeqCst);
            assert!(guard.token() > 2, "the lock was taken again");
        } else {
            world.sleep(LEASE / 8);
            let before = world.calls(1);
            let mut guard = lock.lock().unwrap();
            guard.notify_all(&condition);
            guard.unlock().unwrap();
            notifying.store((world.calls(1) - before) as u64, Ordering::SeqCst);
        }
    });
    assert_eq!((waiting.into_inner(), notifying.into_inner()), (2, 2));
}

#[test]
fn a_wait_that_is_over_has_the_lock_again() {
    run(Plan::first(), 2, |world, process| {
        let lock = process.session.mutex(LOCK).unwrap();
        let condition = process.session.condvar(NOT_EMPTY).unwrap();
        if process.number == 0 {
            let mut guard = lock.lock().unwrap();
            assert!(!condition.wait_for(&mut guard, LEASE).unwrap(), "nobody notified");
            world.sleep(2 * LEASE);
            assert!(guard.token() > 1);
            // The notification comes while the lock is not free, and is reported although it is late.
            let begun = world.now();
            assert!(condition.wait_for(&mut guard, LEASE).unwrap());
            assert!(world.now() - begun >= 3 * LEASE);
            guard.unlock().unwrap();
        } else {
            world.sleep(LEASE * 2);
            assert!(lock.try_lock().unwrap().is_none());
            let guard = lock.lock().unwrap();
            condition.notify_all().unwrap();
            world.sleep(3 * LEASE);
            drop(guard);
        }
    });
}

#[test]
fn a_lock_whose_holder_ended_is_taken_again_by_who_waits_under_it() {
    let held = AtomicU64::new(0);
    run(Plan::first().with(1, 2, Fault::KilledBefore), 2, |world, process| {
        let lock = process.session.mutex(LOCK).unwrap();
        let condition = process.session.condvar(NOT_EMPTY).unwrap();
        if process.number == 0 {
            let mut guard = lock.lock().unwrap();
            condition.wait(&mut guard).unwrap();
            held.store(guard.token(), Ordering::SeqCst);
        } else {
            world.sleep(LEASE / 8);
            let _guard = lock.lock().unwrap();
            condition.notify_all().unwrap();
            let error = condition.notify_all().expect_err("it was killed");
            assert!(matches!(error, SynchronisationError::Memory(_)), "{error}");
        }
    });
    assert_eq!(held.into_inner(), 3);
}

/// Two processes, a buffer with room for `room`, two semaphores.
fn through_semaphores(plan: Plan, items: u64, room: u64) -> [usize; 2] {
    let (world, _processes) = run(plan, 2, |world, process| {
        let full = process.session.semaphore(NOT_EMPTY).unwrap();
        let free = process.session.semaphore_from(NOT_FULL, room).unwrap();
        // The calls of the opening are not counted.
        let before = world.calls(process.number);
        for item in 0..items {
            let word = ITEMS + 8 * (item % room) as usize;
            if process.number == 0 {
                free.acquire().unwrap();
                process.memory.write(PAGE, word, item + 1);
                full.release(1).unwrap();
            } else {
                full.acquire().unwrap();
                assert_eq!(process.memory.read(PAGE, word), item + 1);
                free.release(1).unwrap();
            }
        }
        let fetched = 1;
        assert_eq!(world.calls(process.number) - before, 2 * items as usize + fetched);
        if process.number == 1 {
            assert_eq!((full.value().unwrap(), free.value().unwrap()), (0, room));
        }
    });
    [world.calls(0), world.calls(1)]
}

#[test]
fn fifty_items_through_semaphores_are_two_calls_each() {
    seeds(30, |seed| {
        // There is one more for the page, one for the initial value, and two at the end to look.
        assert_eq!(through_semaphores(Plan::seed(seed), 50, 1), [102, 104]);
        through_semaphores(Plan::seed(seed), 20, 4);
    });
    is_noticed(Mutant::SemaphoreWithoutBound, 10, |seed, mutant| {
        through_semaphores(Plan::seed(seed).broken(mutant), 20, 1);
    });
}

#[test]
fn a_semaphore_has_limits_and_says_who_used_it() {
    run(Plan::first(), 1, |_, process| {
        let semaphore = process.session.semaphore_from("items", 3).unwrap();
        assert_eq!(process.session.semaphore_from("items", 9).unwrap().value().unwrap(), 3, "it was used before");
        assert!(semaphore.try_acquire().unwrap());
        semaphore.set(0).unwrap();
        assert!(!semaphore.try_acquire().unwrap());
        assert!(!semaphore.try_acquire_for(LEASE).unwrap());
        semaphore.release(i64::MAX as u64).unwrap();
        for count in [1, u64::MAX] {
            let error = semaphore.release(count).expect_err("too large").to_string();
            assert!(error.contains("semaphore `items`") && error.contains("the most it can be"), "{error}");
        }
        semaphore.set(1).unwrap();
        semaphore.acquire().unwrap();
        let error = semaphore.acquire().expect_err("nobody releases").to_string();
        assert!(
            error.contains("60.0 s") && error.contains("last released by nobody yet, last acquired by this process"),
            "{error}"
        );
    });
}

#[test]
fn an_event_lets_everybody_go_on_while_it_is_set() {
    seeds(20, |seed| {
        run(Plan::seed(seed), 3, |world, process| {
            let event = process.session.event("ready").unwrap();
            if process.number == 0 {
                assert!(!event.is_set().unwrap());
                world.sleep(LEASE);
                process.memory.write(PAGE, 0, 7);
                event.set().unwrap();
            } else {
                let before = world.calls(process.number);
                event.wait().unwrap();
                assert_eq!(world.calls(process.number) - before, 1);
                assert_eq!(process.memory.read(PAGE, 0), 7);
                assert!(event.wait_for(LEASE).unwrap());
                world.sleep(LEASE);
                event.clear().unwrap();
                assert!(!event.is_set().unwrap());
                let error = event.wait().expect_err("nobody sets it again").to_string();
                assert!(error.contains("event `ready`: nobody has set it"), "{error}");
            }
        });
    });
}

/// Every process wants an action done once; the first that begins may be killed during it.
fn once(plan: Plan) {
    let killed = !plan.is_faultless();
    let begun = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    run(plan, 3, |world: &World, process| {
        let once = match process.session.once("table") {
            Ok(once) => once,
            Err(error) => return assert!(is_expected(world, process, false, &error)),
        };
        let work = || {
            begun.fetch_add(1, Ordering::SeqCst);
            process.memory.write(PAGE, 0, process.memory.read(PAGE, 0) + 1);
        };
        match once.call_once(work) {
            Ok(was_done_here) => {
                done.fetch_add(u64::from(was_done_here), Ordering::SeqCst);
                let found = process.memory.read(PAGE, 0);
                if world.is_dead(process.number) {
                    return;
                }
                assert_eq!(found, 1);
                let before = world.calls(process.number);
                assert!(!once.call_once(|| panic!("it is done")).unwrap());
                assert_eq!(world.calls(process.number), before, "that is remembered");
            }
            Err(error) => assert!(is_expected(world, process, false, &error)),
        }
    });
    let (begun, done) = (begun.into_inner(), done.into_inner());
    assert!(if killed { begun <= 2 && done <= 1 } else { (begun, done) == (1, 1) }, "{begun} begun, {done} done");
}

#[test]
fn what_is_done_once_is_done_once_even_if_who_did_it_ends() {
    seeds(40, |seed| {
        once(Plan::seed(seed));
        once(Plan::seed(seed).with(0, (seed % 5) as usize, Fault::KilledBefore));
        once(Plan::seed(seed).with(0, (seed % 5) as usize, Fault::KilledAfter));
    });
}
