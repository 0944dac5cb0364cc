//! Tests objects of a region on a real Redis server, between real processes: what is stored under a lock is stored once,
//! a killed process is replaced, one that comes late is refused, and the number of calls is as promised.
//!
//! A test starts this program again for each process, and passes the role in the environment ([`child`]).

#[path = "../src/synchronisation/tests/memory.rs"]
#[allow(dead_code, reason = "the tests within the crate use more of it")]
mod memory;
mod stored_processes;

use std::time::Duration;

use trellis_testing::redis_server::RedisServer;
// The paths that `memory` knows from within the crate.
use trellis_stored::{coherence, error, layout};

use stored_processes::{PAGE, Process, Started, role, say, wait_for_parent};
use trellis_stored::synchronisation::SynchronisationError;

const PROCESSES: u64 = 4;
const TIMES: u64 = 200;
const ITEMS: u64 = 50;
/// Long enough that a process which only waits for a processor gives a sign of life in time.
const HOLDER_LEASE: Duration = Duration::from_secs(2);

/// What a process does that a test started.
#[test]
#[ignore = "a role that tests start"]
fn child() {
    let Some((role, url)) = role() else { return };
    match role.as_str() {
        "increments" => {
            let process = Process::open(&url, Duration::from_secs(10), true);
            for _ in 0..TIMES {
                process.increment().unwrap();
            }
        }
        "holder" => {
            let process = Process::open(&url, HOLDER_LEASE, true);
            let _guard = process.session.mutex("word").unwrap().lock().unwrap();
            process.memory.write(PAGE, 0, 1_000);
            say("holds");
            wait_for_parent();
        }
        "late" => {
            let process = Process::open(&url, Duration::from_millis(400), false);
            let guard = process.session.mutex("word").unwrap().lock().unwrap();
            process.memory.write(PAGE, 0, 1_000);
            say("holds");
            wait_for_parent();
            let error = guard.unlock().expect_err("it was replaced");
            assert!(matches!(error, SynchronisationError::LeaseLost(_)), "{error}");
            assert_eq!(process.increment(), Err(error.clone()), "and stays so");
            say(&error.to_string());
        }
        "produces" | "consumes" => passes_items(&Process::open(&url, Duration::from_secs(10), true), &role),
        role => panic!("{role} is not a role"),
    }
}

fn passes_items(process: &Process, role: &str) {
    let full = process.session.semaphore(0x1000).unwrap();
    let free = process.session.semaphore(0x1008).unwrap();
    // The page is there before the first item.
    process.memory.read(PAGE, 0);
    let before = process.calls();
    for item in 1..=ITEMS {
        if role == "produces" {
            free.acquire().unwrap();
            process.memory.write(PAGE, 0, item);
            full.release(1).unwrap();
        } else {
            full.acquire().unwrap();
            assert_eq!(process.memory.read(PAGE, 0), item);
            free.release(1).unwrap();
        }
    }
    say(&format!("calls {}", process.calls() - before));
}

#[test]
fn four_processes_of_two_hundred_locked_increments_each() {
    let Some(server) = RedisServer::start("four_processes_of_two_hundred_locked_increments_each", &[]) else { return };
    let process = Process::open(&server.url(), Duration::from_secs(10), true);
    let started: Vec<Started> = (0..PROCESSES).map(|_| Started::start("increments", &server.url())).collect();
    started.into_iter().for_each(Started::succeed);
    assert_eq!(process.word(), PROCESSES * TIMES);
    assert_eq!(process.increment().unwrap(), PROCESSES * TIMES + 1);
}

#[test]
fn a_killed_holder_is_replaced() {
    let Some(server) = RedisServer::start("a_killed_holder_is_replaced", &[]) else { return };
    let process = Process::open(&server.url(), Duration::from_millis(400), true);
    let mut holder = Started::start("holder", &server.url());
    assert_eq!(holder.said(), "holds");
    let lock = process.session.mutex("word").unwrap();
    assert!(lock.try_lock_for(HOLDER_LEASE * 5 / 4).unwrap().is_none(), "it lives and has it");
    holder.child.kill().unwrap();
    assert_eq!(process.increment().unwrap(), 1, "nothing of the other was stored");
    assert!(lock.lock().unwrap().token() > 2);
}

#[test]
fn a_late_release_is_refused() {
    let Some(server) = RedisServer::start("a_late_release_is_refused", &[]) else { return };
    let process = Process::open(&server.url(), Duration::from_millis(400), true);
    let mut late = Started::start("late", &server.url());
    assert_eq!(late.said(), "holds");
    assert_eq!(process.increment().unwrap(), 1);
    late.go_on();
    let sentence = late.said();
    let (mine, its) = (format!("process {} on ", std::process::id()), format!("process {} on ", late.child.id()));
    for part in [&mine, &its, "no sign of life for 0.4 s"] {
        assert!(sentence.contains(part), "{part}: {sentence}");
    }
    late.succeed();
    assert_eq!(process.word(), 1);
    assert_eq!(process.increment().unwrap(), 2);
}

#[test]
fn fifty_items_between_two_processes_are_a_hundred_calls_each() {
    let test = "fifty_items_between_two_processes_are_a_hundred_calls_each";
    let Some(server) = RedisServer::start(test, &[]) else { return };
    let process = Process::open(&server.url(), Duration::from_secs(10), true);
    process.session.semaphore(0x1008).unwrap().set(1).unwrap();
    let mut started = ["produces", "consumes"].map(|role| Started::start(role, &server.url()));
    for process in &mut started {
        assert_eq!(process.said(), format!("calls {}", 2 * ITEMS));
    }
    started.into_iter().for_each(Started::succeed);
}

/// A lease of which no third passes in a test: heartbeats are calls, too.
const NO_HEARTBEAT: Duration = Duration::from_secs(3_600);

#[test]
fn calls_are_as_promised() {
    let Some(server) = RedisServer::start("calls_are_as_promised", &[]) else { return };
    let open = || Process::open(&server.url(), NO_HEARTBEAT, true);
    let (one, two) = (open(), open());
    let locks = [&one, &two].map(|process| process.session.mutex("word").unwrap());
    // In turn, so that each finds the lock as the other left it.
    for _ in 0..10 {
        for (process, lock) in [&one, &two].into_iter().zip(&locks) {
            let before = process.calls();
            drop(lock.lock().unwrap());
            assert_eq!(process.calls() - before, 2);
        }
    }
    let table = one.session.rwlock(0x10).unwrap();
    let event = one.session.event(0x20).unwrap();
    let before = one.calls();
    drop(table.read().unwrap());
    drop(table.write().unwrap());
    event.set().unwrap();
    event.wait().unwrap();
    assert_eq!(one.calls() - before, 6);
}

#[test]
fn a_wait_sleeps_in_the_store_until_it_is_woken() {
    let Some(server) = RedisServer::start("a_wait_sleeps_in_the_store_until_it_is_woken", &[]) else { return };
    let open = || Process::open(&server.url(), NO_HEARTBEAT, true);
    let (one, two) = (open(), open());
    let [lock, other] = [&one, &two].map(|process| process.session.mutex("queue").unwrap());
    let [condition, signal] = [&one, &two].map(|process| process.session.condvar("queue").unwrap());
    let barriers = [&one, &two].map(|process| process.session.barrier_of("phase", 2).unwrap());
    let mut guard = lock.lock().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Had only when the other waits.
            let mut guard = other.lock().unwrap();
            two.memory.write(PAGE, 8, 7);
            guard.notify_all(&signal);
            guard.unlock().unwrap();
            barriers[1].wait().unwrap();
        });
        let before = one.calls();
        condition.wait_while(&mut guard, || one.memory.read(PAGE, 8) != 7).unwrap();
        // The page, giving back and waiting; the notice brings what was stored.
        assert_eq!(one.calls() - before, 3);
        barriers[0].wait().unwrap();
    });
}
