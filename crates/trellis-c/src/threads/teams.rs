//! Operations of the cluster for teams of OpenMP threads: meetings of all nodes, barriers, words and permits.
//!
//! Objects have numbers of their own, each with a home that the caller chooses: a thread at the home waits without a
//! message. Promises: objects of different numbers or homes are different. A wait has no limit but the caller's.

use std::time::Duration;

use trellis::synchronisation::Reduce;

use super::{cluster, patiently, stop};
use crate::addresses::OWN_NUMBERS;

/// The first number of these objects; those of [`super::end`] are below.
const TEAM_NUMBERS: u64 = OWN_NUMBERS + 0x1000_0000;
/// The word of [`trellis_threads_release`].
const RELEASES: u32 = 0x100;
/// No limit.
const FOREVER: u64 = u64::MAX;

/// The number of the object that this module's callers call `number`, at `home`. The home of an object is its number modulo
/// the number of nodes.
fn number_at(number: u32, home: usize) -> u64 {
    let nodes = cluster().nodes() as u64;
    (TEAM_NUMBERS.next_multiple_of(nodes)) + u64::from(number) * nodes + home as u64
}

/// One thread of every node meets the others. All get the greatest value that one of them brought.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_meet(value: u64) -> u64 {
    patiently("a team", || cluster().barrier_reduce(TEAM_NUMBERS, Reduce::Greatest, value))
}

/// Waits at a barrier of so many threads; whether all have come within the limit. If not, this thread has come
/// nevertheless, and its next call goes on waiting.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_arrive(number: u32, home: usize, participants: u32, limit_ns: u64) -> bool {
    let barrier = cluster().barrier_of(number_at(number, home), participants);
    if limit_ns == FOREVER {
        patiently("a barrier of a team", || barrier.wait());
        return true;
    }
    match barrier.wait_for(Duration::from_nanos(limit_ns)) {
        Ok(last) => last.is_some(),
        Err(error) => stop(format_args!("a barrier of a team: {error}")),
    }
}

/// Adds to a word; the value before.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_word_add(number: u32, home: usize, value: u64) -> u64 {
    patiently("a word of a team", || cluster().atomic(number_at(number, home)).fetch_add(value))
}

/// Sets a word to zero, in which state it takes no memory.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_word_clear(number: u32, home: usize) {
    patiently("a word of a team", || cluster().atomic(number_at(number, home)).store(0));
}

/// Lets threads that call [`trellis_threads_acquire`] later, at any node, see what those of this node have stored.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_release() {
    trellis_threads_word_add(RELEASES, 0, 0);
}

/// Lets the threads of this node see what was stored before any earlier [`trellis_threads_release`].
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_acquire() {
    patiently("a word of a team", || cluster().atomic(number_at(RELEASES, 0)).load());
}

/// Gives a permit.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_permit(number: u32, home: usize) {
    patiently("a permit of a team", || cluster().semaphore(number_at(number, home)).release(1));
}

/// Takes a permit. `limit_ns` is 0 for a try, and `u64::MAX` for no limit. Whether it got one.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_take_permit(number: u32, home: usize, limit_ns: u64) -> bool {
    let permits = cluster().semaphore(number_at(number, home));
    match limit_ns {
        FOREVER => patiently("a permit of a team", || permits.acquire().map(|()| true)),
        0 => patiently("a permit of a team", || permits.try_acquire()),
        limit_ns => patiently("a permit of a team", || permits.try_acquire_for(Duration::from_nanos(limit_ns))),
    }
}
