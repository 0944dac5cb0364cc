//! Tests objects of a region between processes, on the stores that an ordinary build leaves out: etcd itself, Google's
//! emulator of Bigtable, and this project's servers of Spanner and Datastore. Each test starts its own server.
//!
//! The requirements are the same for each: nothing that is stored under a lock is lost, all objects wait and wake, a
//! killed process is replaced in all that it held, and one that comes late is refused.

#[path = "../src/synchronisation/tests/memory.rs"]
#[allow(dead_code, reason = "the tests within the crate use more of it")]
mod memory;
#[path = "../../trellis-store/tests/servers/mod.rs"]
mod servers;
mod stored_processes;

use std::time::Duration;

use servers::kinds::Kind;
// The paths that `memory` knows from within the crate.
use trellis_stored::{coherence, error, layout};

use stored_processes::{PAGE, Process, Started, role, say, wait_for_parent};
use trellis_stored::synchronisation::SynchronisationError;

const PROCESSES: u64 = 3;
const TIMES: u64 = 40;
const ITEMS: u64 = 25;
/// Longer than anything that lives needs to give a sign of life on a busy machine.
const LEASE: Duration = Duration::from_secs(10);
/// So that a test need not wait that long, with room for a process that only waits for a processor.
const HOLDER_LEASE: Duration = Duration::from_secs(3);
const SHORT_LEASE: Duration = Duration::from_millis(400);

/// Where the words of the objects' tests lie in the page, behind the one that is counted in.
const ITEM: usize = 8;
const NOTIFIED: usize = 16;
const AT_EVENT: usize = 24;
const TABLE: usize = 32;
const SET_UP: usize = 40;

/// What a process does that a test started.
#[test]
#[ignore = "a role that tests start"]
fn child() {
    let Some((role, url)) = role() else { return };
    match role.as_str() {
        "increments" => {
            let process = Process::open(&url, LEASE, true);
            for _ in 0..TIMES {
                process.increment().unwrap();
            }
        }
        "produces" | "consumes" => pass_items(&Process::open(&url, LEASE, true), &role),
        "partner" => be_partner(&Process::open(&url, LEASE, true)),
        "holder" => hold_everything(&Process::open(&url, HOLDER_LEASE, true)),
        "late" => come_late(&Process::open(&url, SHORT_LEASE, false)),
        role => panic!("{role} is not a role"),
    }
}

/// The tests of a store.
macro_rules! tests_of {
    ($($store:ident: $kind:expr;)*) => {$(
        mod $store {
            use super::*;

            #[test]
            fn locked_increments_of_several_processes_all_count() {
                with_server($kind, "locked_increments_of_several_processes_all_count", increments_all_count);
            }

            #[test]
            fn semaphores_pass_items_from_process_to_process() {
                with_server($kind, "semaphores_pass_items_from_process_to_process", items_pass);
            }

            #[test]
            fn every_other_object_waits_and_wakes() {
                with_server($kind, "every_other_object_waits_and_wakes", objects_wait_and_wake);
            }

            #[test]
            fn a_killed_holder_is_replaced_in_all_that_it_held() {
                with_server($kind, "a_killed_holder_is_replaced_in_all_that_it_held", killed_holder_is_replaced);
            }

            #[test]
            fn a_late_release_is_refused() {
                with_server($kind, "a_late_release_is_refused", late_release_is_refused);
            }
        }
    )*};
}

tests_of! {
    etcd: Kind::Etcd;
    bigtable: Kind::Bigtable;
    spanner: Kind::Spanner;
    datastore: Kind::Datastore;
}

fn with_server(kind: Kind, test: &str, run: fn(&str)) {
    let Some(server) = kind.start(test, &[]) else { return };
    run(&kind.url(&server, "memory"));
}

fn increments_all_count(url: &str) {
    let process = Process::open(url, LEASE, true);
    let started: Vec<Started> = (0..PROCESSES).map(|_| Started::start("increments", url)).collect();
    started.into_iter().for_each(Started::succeed);
    assert_eq!(process.word(), PROCESSES * TIMES);
    assert_eq!(process.increment().unwrap(), PROCESSES * TIMES + 1);
}

fn items_pass(url: &str) {
    let process = Process::open(url, LEASE, true);
    process.session.semaphore("free").unwrap().set(1).unwrap();
    let mut started = ["produces", "consumes"].map(|role| Started::start(role, url));
    for process in &mut started {
        assert_eq!(process.said(), format!("{ITEMS} items"));
    }
    started.into_iter().for_each(Started::succeed);
}

fn pass_items(process: &Process, role: &str) {
    let full = process.session.semaphore("full").unwrap();
    let free = process.session.semaphore("free").unwrap();
    // Here from the beginning, so that each item comes with the notice of it.
    process.memory.read(PAGE, ITEM);
    for item in 1..=ITEMS {
        if role == "produces" {
            free.acquire().unwrap();
            process.memory.write(PAGE, ITEM, item);
            full.release(1).unwrap();
        } else {
            full.acquire().unwrap();
            assert_eq!(process.memory.read(PAGE, ITEM), item);
            free.release(1).unwrap();
        }
    }
    say(&format!("{ITEMS} items"));
}

fn objects_wait_and_wake(url: &str) {
    let Process { session, memory, .. } = &Process::open(url, LEASE, true);
    let mut partner = Started::start("partner", url);
    let phase = session.barrier_of("phase", 2).unwrap();
    phase.wait().unwrap();

    let queue = session.mutex("queue").unwrap();
    assert_eq!(partner.said(), "has the lock");
    // Had only when the other waits for the condition.
    let mut guard = queue.lock().unwrap();
    memory.write(PAGE, NOTIFIED, 7);
    guard.notify_all(&session.condvar("queue").unwrap());
    guard.unlock().unwrap();

    let event = session.event("ready").unwrap();
    event.wait().unwrap();
    assert_eq!(memory.read(PAGE, AT_EVENT), 9);
    assert!(event.is_set().unwrap());

    let table = session.rwlock("table").unwrap();
    let reader = table.read().unwrap();
    partner.go_on();
    assert_eq!(partner.said(), "reads, and cannot write");
    reader.unlock().unwrap();
    assert_eq!(partner.said(), "has written");
    let reader = table.read().unwrap();
    assert_eq!(memory.read(PAGE, TABLE), 11);
    reader.unlock().unwrap();

    phase.wait().unwrap();
    let did = session.once("set up").unwrap().call_once(|| memory.write(PAGE, SET_UP, 13)).unwrap();
    assert_eq!(memory.read(PAGE, SET_UP), 13, "whoever did it");
    assert_eq!(partner.said(), format!("did it: {}", !did));
    partner.succeed();
}

fn be_partner(process: &Process) {
    let Process { session, memory, .. } = process;
    let phase = session.barrier_of("phase", 2).unwrap();
    phase.wait().unwrap();

    let mut guard = session.mutex("queue").unwrap().lock().unwrap();
    say("has the lock");
    let condition = session.condvar("queue").unwrap();
    condition.wait_while(&mut guard, || memory.read(PAGE, NOTIFIED) != 7).unwrap();
    guard.unlock().unwrap();

    memory.write(PAGE, AT_EVENT, 9);
    session.event("ready").unwrap().set().unwrap();

    wait_for_parent();
    let table = session.rwlock("table").unwrap();
    let reader = table.read().unwrap();
    reader.unlock().unwrap();
    assert!(table.try_write_for(Duration::from_millis(50)).unwrap().is_none(), "the other reads");
    say("reads, and cannot write");
    let writer = table.write().unwrap();
    memory.write(PAGE, TABLE, 11);
    writer.unlock().unwrap();
    say("has written");

    phase.wait().unwrap();
    let did = session.once("set up").unwrap().call_once(|| memory.write(PAGE, SET_UP, 13)).unwrap();
    assert_eq!(memory.read(PAGE, SET_UP), 13, "whoever did it");
    say(&format!("did it: {did}"));
}

fn killed_holder_is_replaced(url: &str) {
    let Process { session, memory, .. } = &Process::open(url, SHORT_LEASE, true);
    let mut holder = Started::start("holder", url);
    assert_eq!(holder.said(), "holds");
    let [lock, free] = ["word", "free"].map(|name| session.mutex(name).unwrap());
    assert!(lock.try_lock_for(HOLDER_LEASE * 5 / 4).unwrap().is_none(), "it lives and has it");
    holder.child.kill().unwrap();
    let guard = lock.lock().unwrap();
    assert_eq!(memory.read(PAGE, 0), 5, "what it had released is there, and nothing of what it stored since");
    guard.unlock().unwrap();
    free.lock().unwrap().unlock().unwrap();
    session.rwlock("written").unwrap().read().unwrap().unlock().unwrap();
    session.rwlock("read").unwrap().write().unwrap().unlock().unwrap();
    assert!(session.once("set up").unwrap().call_once(|| ()).unwrap(), "it had not said that it is done");
}

fn hold_everything(process: &Process) {
    let Process { session, memory, .. } = process;
    let word = session.mutex("word").unwrap();
    let guard = word.lock().unwrap();
    memory.write(PAGE, 0, 5);
    guard.unlock().unwrap();
    let _turn = session.once("set up").unwrap().begin().unwrap().expect("nobody has done it");
    let _writer = session.rwlock("written").unwrap().write().unwrap();
    let _reader = session.rwlock("read").unwrap().read().unwrap();
    let _guard = word.lock().unwrap();
    memory.write(PAGE, 0, 1_000);
    say("holds");
    wait_for_parent();
}

fn late_release_is_refused(url: &str) {
    let process = Process::open(url, SHORT_LEASE, true);
    let mut late = Started::start("late", url);
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

fn come_late(process: &Process) {
    let guard = process.session.mutex("word").unwrap().lock().unwrap();
    process.memory.write(PAGE, 0, 1_000);
    say("holds");
    wait_for_parent();
    let error = guard.unlock().expect_err("it was replaced");
    assert!(matches!(error, SynchronisationError::LeaseLost(_)), "{error}");
    assert_eq!(process.increment(), Err(error.clone()), "and stays so");
    say(&error.to_string());
}
