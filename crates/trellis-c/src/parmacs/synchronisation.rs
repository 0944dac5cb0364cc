//! Locks, barriers, pauses, conditions, counters and fences of PARMACS programs.
//!
//! An object is what the program declared with a macro that ends in DEC: a word that is never read. Its name in the
//! cluster is its address, which is the same on every node: for objects in G_MALLOC memory because the region is at
//! the same address, for globals because the binary is the same. So no operation fetches a page to learn which lock
//! is meant, and objects next to the data they guard cost nothing more.
//!
//! Promises: every operation that releases publishes what this node wrote, and every one that acquires makes visible
//! what was released to it, as the crate `trellis` defines for its own objects. A condition never wakes without a
//! signal. It must never read or write the object itself.

use std::ffi::{c_int, c_long, c_void};

use super::{done, program, stop};
use crate::addresses::{OWN_NUMBERS, name};

/// The word that all fences use.
const FENCE: u64 = OWN_NUMBERS + 0x3000;

/// `LOCK(lock)`, `ALOCK(array, index)`
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_lock(lock: *const c_void) {
    done("LOCK", program("LOCK").cluster.mutex(name(lock)).acquire());
}

/// `UNLOCK(lock)`, `AULOCK(array, index)`
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_unlock(lock: *const c_void) {
    done("UNLOCK", program("UNLOCK").cluster.mutex(name(lock)).release());
}

/// `BARRIER(barrier, processes)`
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_barrier(barrier: *const c_void, processes: c_long) {
    let asking = "BARRIER";
    let cluster = &program(asking).cluster;
    let nodes = cluster.nodes();
    match u32::try_from(processes) {
        // One process of every node: a tree needs fewer messages than one home.
        Ok(processes) if processes as usize == nodes => done(asking, cluster.barrier(name(barrier))),
        Ok(processes) if (1..nodes).contains(&(processes as usize)) => {
            done(asking, cluster.barrier_of(name(barrier), processes).wait());
        }
        _ => stop(
            asking,
            format!(
                "{processes} processes cannot meet on {nodes} nodes; start the program with as many nodes as processes"
            ),
        ),
    }
}

/// `SETPAUSE(pause)`: all current and later waiters go on until it is cleared.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_pause_set(pause: *const c_void) {
    done("SETPAUSE", program("SETPAUSE").cluster.event(name(pause)).set());
}

/// `CLEARPAUSE(pause)`, `PAUSEINIT(pause)`
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_pause_clear(pause: *const c_void) {
    done("CLEARPAUSE", program("CLEARPAUSE").cluster.event(name(pause)).clear());
}

/// `WAITPAUSE(pause)`
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_pause_wait(pause: *const c_void) {
    done("WAITPAUSE", program("WAITPAUSE").cluster.event(name(pause)).wait());
}

/// `SEMINIT(semaphore, value)`, and PAUSEINIT if a pause is a semaphore: sets its value.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_semaphore_init(semaphore: *const c_void, value: c_long) {
    let asking = "SEMINIT";
    let Ok(value) = u64::try_from(value) else {
        stop(asking, format!("a semaphore cannot begin with {value}; give 0 or more"))
    };
    let semaphore = program(asking).cluster.semaphore(name(semaphore));
    // Reused memory may have held another semaphore.
    while done(asking, semaphore.try_acquire()) {}
    if value > 0 {
        done(asking, semaphore.release(value));
    }
}

/// `SEMV(semaphore)`, and SETPAUSE if a pause is a semaphore
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_semaphore_post(semaphore: *const c_void) {
    done("SEMV", program("SEMV").cluster.semaphore(name(semaphore)).release(1));
}

/// `SEMP(semaphore)`, and WAITPAUSE if a pause is a semaphore
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_semaphore_wait(semaphore: *const c_void) {
    done("SEMP", program("SEMP").cluster.semaphore(name(semaphore)).acquire());
}

/// `CONDVARWAIT(condition, lock)`: the lock is released during the wait.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_condition_wait(condition: *const c_void, lock: *const c_void) {
    let cluster = &program("CONDVARWAIT").cluster;
    let (_, notified) = cluster.condvar(name(condition)).wait_with_lock(name(lock), None);
    done("CONDVARWAIT", notified);
}

/// `CONDVARSIGNAL(condition)`
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_condition_signal(condition: *const c_void) {
    done("CONDVARSIGNAL", program("CONDVARSIGNAL").cluster.condvar(name(condition)).notify_one());
}

/// `CONDVARBCAST(condition)`
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_condition_broadcast(condition: *const c_void) {
    done("CONDVARBCAST", program("CONDVARBCAST").cluster.condvar(name(condition)).notify_all());
}

/// `GSINIT(counter)`: the next subscript is 0.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_counter_init(counter: *const c_void) {
    done("GSINIT", program("GSINIT").cluster.atomic(name(counter)).store(0));
}

/// `GETSUB(counter, subscript, last, processes)`: the next of 0 to `last`, then -1 once for each process; the last -1
/// makes the counter ready for the next loop.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_counter_next(counter: *const c_void, last: c_long, processes: c_long) -> c_long {
    let asking = "GETSUB";
    let word = program(asking).cluster.atomic(name(counter));
    let taken = done(asking, word.fetch_add(1)) as c_long;
    if taken <= last {
        return taken;
    }
    if taken - last == processes {
        done(asking, word.store(0));
    }
    -1
}

/// `RELEASE_FENCE` (1), `ACQUIRE_FENCE` (2) and `FULL_FENCE` (3): what this node wrote before a release is visible at
/// a node that makes a later acquire. All fences change one word, which orders them; each change is both a release
/// and an acquire.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_fence(kind: c_int) {
    const ACQUIRE: c_int = 2;
    let asking = "a fence";
    let word = program(asking).cluster.atomic(FENCE);
    if kind == ACQUIRE {
        done(asking, word.load());
    } else {
        done(asking, word.fetch_add(1));
    }
}

/// `CLOCK(variable)`: microseconds since 1970.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

/// `GET_PID(variable)`: 0 in main, and another number in each worker.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_process() -> c_long {
    program("GET_PID").cluster.node() as c_long
}

/// `SPLASH3_ROI_BEGIN` and `SPLASH3_ROI_END`: mark the measured part in the record and the report.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_parmacs_region_of_interest(begins: c_int) {
    program("SPLASH3_ROI_BEGIN").cluster.phase(if begins != 0 { "measured" } else { "after it" });
}
