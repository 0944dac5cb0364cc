//! The functions of `trellis/stored_synchronisation.h`: results, codes and messages over a store in this process, and
//! C programs that share pages in a real Redis server.

mod support;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use support::{C, CPP, Node};
use trellis::stored::layout::REGION_BASE;
use trellis::stored::memory::{Memory, Mode};
use trellis::stored::settings::Settings;
use trellis::stored::synchronisation::{Options, Session, process};
use trellis_c::status;
use trellis_c::stored::synchronisation::*;
use trellis_testing::{Need, redis_server::RedisServer, skip};

/// An address in the region.
fn at(offset: usize) -> *const c_void {
    ptr::without_provenance(REGION_BASE + offset)
}

fn named(name: &str) -> *const c_void {
    let name = CString::new(name).unwrap();
    // SAFETY: a string that ends with a NUL.
    unsafe { trellis_store_name(name.as_ptr()) }
}

fn sentence() -> String {
    let text: *const c_char = status::trellis_last_error();
    // SAFETY: never null, and valid until the next failure of this thread.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

fn fails(answer: c_int, status: c_int, part: &str) {
    assert_eq!(answer, status, "{}", sentence());
    assert!(sentence().contains(part), "{part}: {}", sentence());
}

/// Opens the region of this test program; before that, every function reports that none is open.
fn open() {
    fails(trellis_store_lock(at(0)), status::STATE, "no region is open");
    let memory = Memory::open(&Settings::default(), Mode::Words).unwrap();
    let make = move || {
        let wait_max = Duration::from_millis(20);
        Session::new(Arc::clone(&memory) as _, Options { is_alone: true, wait_max, ..Options::default() })
    };
    assert!(process::install_with(make), "nobody has opened one before");
}

/// One test, because a process has one region.
#[test]
fn every_function_answers_as_the_header_says() {
    open();
    places();
    locks();
    read_write_locks();
    semaphores();
    barriers();
    conditions();
    events_and_what_is_done_once();
}

fn places() {
    fails(trellis_store_lock(ptr::null()), status::ARGUMENT, "NULL");
    fails(trellis_store_lock(ptr::without_provenance(64)), status::ARGUMENT, "0x40 is not an object");
    assert_eq!(named("jobs"), named("jobs"));
    assert_ne!(named("jobs"), named("other"));
    // SAFETY: NULL is allowed.
    assert!(unsafe { trellis_store_name(ptr::null()) }.is_null());
    fails(trellis_store_lock(named("")), status::ARGUMENT, "a name of 0 bytes");
    fails(trellis_store_lock(named(&"x".repeat(256))), status::ARGUMENT, "a name of 256 bytes");
}

fn locks() {
    for lock in [at(8), at((1 << 40) - 1), named("jobs")] {
        assert_eq!(trellis_store_lock(lock), status::OK);
        assert_eq!(trellis_store_try_lock(lock), 0, "locks are not recursive");
        assert_eq!(trellis_store_try_lock_for(lock, 1_000), 0);
        fails(trellis_store_lock(lock), status::STATE, "would wait for itself");
        let address = lock.addr();
        let other = move || {
            fails(trellis_store_lock(ptr::without_provenance(address)), status::DEADLINE, "this process has it")
        };
        std::thread::spawn(other).join().unwrap();
        let mut token = 0;
        // SAFETY: a variable of this function, and NULL.
        unsafe {
            assert_eq!(trellis_store_lock_token(lock, &raw mut token), status::OK);
            fails(trellis_store_lock_token(lock, ptr::null_mut()), status::ARGUMENT, "token is NULL");
        }
        assert_eq!(token, 1);
        assert_eq!(trellis_store_unlock(lock), status::OK);
        fails(trellis_store_unlock(lock), status::STATE, "does not hold the lock");
        assert_eq!(trellis_store_try_lock(lock), 1);
        assert_eq!(trellis_store_unlock_and_notify_all(lock, lock), status::OK);
        assert_eq!(trellis_store_try_lock_for(lock, 1), 1);
        assert_eq!(trellis_store_unlock(lock), status::OK);
    }
}

fn read_write_locks() {
    let lock = at(8);
    assert_eq!(trellis_store_rwlock_read(lock), status::OK);
    assert_eq!(trellis_store_rwlock_try_read_for(lock, 0), 1);
    assert_eq!(trellis_store_rwlock_try_write_for(lock, 0), 0);
    fails(trellis_store_rwlock_write(lock), status::DEADLINE, "this process reads");
    fails(trellis_store_rwlock_end_write(lock), status::STATE, "in that way");
    assert_eq!(trellis_store_rwlock_end_read(lock), status::OK);
    assert_eq!(trellis_store_rwlock_end_read(lock), status::OK);
    fails(trellis_store_rwlock_end_read(lock), status::STATE, "does not hold");
    assert_eq!(trellis_store_rwlock_write(lock), status::OK);
    assert_eq!(trellis_store_rwlock_try_read_for(lock, 1), 0);
    fails(trellis_store_rwlock_read(lock), status::DEADLINE, "this process writes");
    assert_eq!(trellis_store_rwlock_end_write(lock), status::OK);
    assert_eq!(trellis_store_rwlock_try_write_for(lock, 1), 1);
    assert_eq!(trellis_store_rwlock_end_write(lock), status::OK);
}

fn semaphores() {
    let semaphore = at(8);
    let value = || {
        let mut value = u64::MAX;
        // SAFETY: a variable of this function.
        assert_eq!(unsafe { trellis_store_semaphore_value(semaphore, &raw mut value) }, status::OK);
        value
    };
    assert_eq!(trellis_store_semaphore_begin(semaphore, 2), status::OK);
    assert_eq!(trellis_store_semaphore_begin(semaphore, 9), status::OK);
    assert_eq!(value(), 2);
    assert_eq!(trellis_store_semaphore_acquire(semaphore), status::OK);
    assert_eq!(trellis_store_semaphore_try_acquire_for(semaphore, u64::MAX), 1, "no time is too long");
    assert_eq!(trellis_store_semaphore_try_acquire(semaphore), 0);
    assert_eq!(trellis_store_semaphore_try_acquire_for(semaphore, 1), 0);
    fails(trellis_store_semaphore_acquire(semaphore), status::DEADLINE, "last acquired by this process");
    assert_eq!(trellis_store_semaphore_release(semaphore, 3), status::OK);
    assert_eq!(value(), 3);
    fails(trellis_store_semaphore_release(semaphore, u64::MAX), status::ARGUMENT, "the most it can be");
    assert_eq!(trellis_store_semaphore_set(semaphore, 7), status::OK);
    assert_eq!(value(), 7);
    // SAFETY: NULL is refused.
    let answer = unsafe { trellis_store_semaphore_value(semaphore, ptr::null_mut()) };
    fails(answer, status::ARGUMENT, "value is NULL");
}

fn barriers() {
    let last = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // The start times of the threads may differ by more than a time-out.
                let answer = loop {
                    match trellis_store_barrier_of(at(8), 2) {
                        status::DEADLINE => {}
                        answer => break answer,
                    }
                };
                last.fetch_add(answer as usize, Ordering::SeqCst);
            });
        }
    });
    assert_eq!(last.into_inner(), 1);
    fails(trellis_store_barrier_of(at(8), 3), status::ARGUMENT, "was used for 2 participants");
    fails(trellis_store_barrier_of(at(8), 2), status::DEADLINE, "1 of 2 are missing; there: this process");
}

fn conditions() {
    let (condition, lock) = (at(16), at(24));
    fails(trellis_store_condition_wait(condition, lock), status::STATE, "does not hold the lock");
    assert_eq!(trellis_store_lock(lock), status::OK);
    fails(trellis_store_condition_wait(condition, lock), status::DEADLINE, "nobody notified it");
    assert_eq!(trellis_store_try_lock(lock), 0, "it is held again");
    assert_eq!(trellis_store_condition_wait_for(condition, lock, 1_000), 0);
    std::thread::scope(|scope| {
        // Held by this thread while the other waits.
        let notifying = scope.spawn(|| {
            let (condition, lock) = (at(16), at(24));
            while trellis_store_lock(lock) != status::OK {}
            assert_eq!(trellis_store_condition_notify_all(condition), status::OK);
            assert_eq!(trellis_store_unlock(lock), status::OK);
        });
        while trellis_store_condition_wait(condition, lock) == status::DEADLINE {}
        assert_eq!(trellis_store_unlock(lock), status::OK);
        notifying.join().unwrap();
    });
}

fn events_and_what_is_done_once() {
    let place = at(8);
    assert_eq!(trellis_store_event_is_set(place), 0);
    assert_eq!(trellis_store_event_wait_for(place, 1), 0);
    fails(trellis_store_event_wait(place), status::DEADLINE, "nobody has set it");
    assert_eq!(trellis_store_event_set(place), status::OK);
    assert_eq!(trellis_store_event_wait(place), status::OK);
    assert_eq!(trellis_store_event_wait_for(place, 1), 1);
    assert_eq!(trellis_store_event_clear(place), status::OK);
    assert_eq!(trellis_store_event_is_set(place), 0);
    assert_eq!(trellis_store_once_begin(place), 1);
    fails(trellis_store_once_begin(place), status::DEADLINE, "this process has it");
    assert_eq!(trellis_store_once_failed(place), status::OK);
    assert_eq!(trellis_store_once_begin(place), 1);
    assert_eq!(trellis_store_once_done(place), status::OK);
    assert_eq!(trellis_store_once_begin(place), 0);
    fails(trellis_store_once_done(place), status::STATE, "does not hold the turn");
}

#[test]
fn the_headers_stand_alone() {
    let include = support::crate_folder().join("include");
    for (language, standards) in [(&C, &["-std=c11", "-std=c17"][..]), (&CPP, &["-std=c++20"])] {
        let folder = support::fresh_folder(&format!("stored-headers-{}", language.extension));
        for header in ["trellis/stored_synchronisation.h", "trellis/stored.h"] {
            let source = folder.join("source").with_extension(language.extension);
            let text = format!("#include \"{header}\"\n#include \"{header}\"\nint main(void) {{ return 0; }}\n");
            std::fs::write(&source, text).unwrap();
            for compiler in support::compilers("the_headers_stand_alone", language) {
                for standard in standards {
                    let mut command = Command::new(compiler);
                    command.args(language.flags).args([standard, "-fsyntax-only", "-I"]).args([&include, &source]);
                    support::succeed(&mut command);
                }
            }
        }
    }
}

/// A server and a program whose processes share a region in it; `None`, after reporting the reason, if one is
/// missing.
fn shared_program(test: &str) -> Option<(RedisServer, PathBuf)> {
    let page_faults = trellis::memory::choose(Some(trellis::memory::Catcher::Handler), &trellis::memory::probe());
    if let Err(why) = page_faults {
        skip(test, Need::Kernel, why);
        return None;
    }
    let include = format!("-I{}", support::crate_folder().join("include").display());
    let program = support::compile(test, &C, &support::program("stored_synchronisation.c"), &[&include])?;
    Some((RedisServer::start(test, &[])?, program))
}

/// Starts a process of the program.
fn start(folder: &Path, name: &str, role: &str, server: &RedisServer, program: &Path, lease: &str) -> Node {
    let url = server.url();
    let variables = [
        ("TRELLIS_STORE", url.as_str()),
        ("TRELLIS_STORE_REGION", "test"),
        ("TRELLIS_STORE_REGION_BYTES", "64MiB"),
        ("TRELLIS_STORE_LEASE_MS", lease),
    ];
    Node::start(folder, name, Command::new(program).arg(role), &variables)
}

#[test]
fn cpp_guards_take_the_types_of_the_header() {
    let test = "cpp-stored-types";
    let include = format!("-I{}", support::crate_folder().join("include").display());
    let source = support::program("stored_synchronisation.cpp");
    let Some(program) = support::compile(test, &CPP, &source, &[&include, "-pthread"]) else { return };
    let page_faults = trellis::memory::choose(Some(trellis::memory::Catcher::Handler), &trellis::memory::probe());
    if let Err(why) = page_faults {
        return skip(test, Need::Kernel, why);
    }
    let folder = support::fresh_folder("cpp-stored-types-run");
    assert_eq!(Node::start(&folder, "alone", &mut Command::new(&program), &[]).succeed(), "done\n");
    let Some(server) = RedisServer::start(test, &[]) else { return };
    assert_eq!(start(&folder, "shared", "", &server, &program, "10000").succeed(), "done\n");
}

#[test]
fn c_programs_share_pages_under_locks_barriers_conditions_and_events() {
    let test = "c-stored-count";
    let Some((server, program)) = shared_program(test) else { return };
    let folder = support::fresh_folder("c-stored-count-run");
    let mut nodes = ["0", "1"].map(|name| start(&folder, name, "count", &server, &program, "10000"));
    for node in &mut nodes {
        assert_eq!(node.succeed(), "counted\n");
    }
}

#[test]
fn fifty_items_between_two_c_programs_are_a_hundred_calls_each() {
    let test = "c-stored-items";
    let Some((server, program)) = shared_program(test) else { return };
    let folder = support::fresh_folder("c-stored-items-run");
    // Heartbeats are calls, too, three in the time of a lease: an hour is longer than any machine needs.
    let mut nodes = ["produce", "consume"].map(|role| start(&folder, role, role, &server, &program, "3600000"));
    for node in &mut nodes {
        assert_eq!(node.succeed(), "calls 100\n");
    }
}

#[test]
fn a_c_program_that_was_killed_is_replaced() {
    let test = "c-stored-killed";
    let Some((server, program)) = shared_program(test) else { return };
    let folder = support::fresh_folder("c-stored-killed-run");
    let mut holder = start(&folder, "holder", "hold", &server, &program, "500");
    holder.until_printed("holds");
    let mut waiter = start(&folder, "waiter", "replace", &server, &program, "500");
    holder.kill();
    assert_eq!(waiter.succeed(), "replaced\n");
}
