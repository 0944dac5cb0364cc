//! The objects of pthreads and of C11, as objects of the cluster that have their addresses as names.
//!
//! Promises: an object is never read or written here, so that no lock costs a page. All operations are as POSIX defines
//! them; answers are its error numbers. A wait has no limit but the caller's.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use trellis::{Cluster, WaitError};

use super::{cluster, patiently, stop};
use crate::addresses;

/// No limit.
const FOREVER: u64 = u64::MAX;
/// Bits that tell the name of a futex, or of a call that is made once, from that of another object at the same address.
const OF_FUTEX: u64 = 1 << 49;
const OF_ONCE: u64 = 1 << 50;

/// How a mutex treats a thread that has it already: the numbers of glibc.
const RECURSIVE: c_int = 1;
const ERROR_CHECKING: c_int = 2;
/// The caller has not looked, because that may cost a page. Where it matters, the answer is [`NEEDS_KIND`].
const UNKNOWN: c_int = -1;
/// Nothing was done: the caller must look, and call again.
const NEEDS_KIND: c_int = -1;

fn name(object: usize) -> u64 {
    addresses::name(object as *const _)
}

/// A lock that a thread of this node holds: a mutex, or a read-write lock with which it writes.
#[derive(Clone, Copy)]
struct Holding {
    lock: usize,
    thread: usize,
    /// How often the thread has locked it, if it is a mutex.
    count: u32,
}

/// The count of a read-write lock.
const WRITES: u32 = 0;

/// The locks that threads of this node hold, in lists by address.
static HELD: [Mutex<Vec<Holding>>; 64] = [const { Mutex::new(Vec::new()) }; 64];

/// The list with a lock.
fn held(lock: usize) -> Held {
    // Mutexes are 8 bytes aligned, and seldom closer than 32.
    let list = HELD[(lock >> 5) % HELD.len()].lock().unwrap_or_else(PoisonError::into_inner);
    Held { lock, list }
}

struct Held {
    lock: usize,
    list: MutexGuard<'static, Vec<Holding>>,
}

impl Held {
    fn holding(&mut self) -> Option<&mut Holding> {
        self.list.iter_mut().find(|holding| holding.lock == self.lock)
    }

    fn is_by(&mut self, thread: usize) -> bool {
        self.holding().is_some_and(|holding| holding.thread == thread)
    }

    fn add(mut self, thread: usize, count: u32) {
        self.list.push(Holding { lock: self.lock, thread, count });
    }

    fn remove(&mut self) -> Option<Holding> {
        let at = self.list.iter().position(|holding| holding.lock == self.lock)?;
        Some(self.list.swap_remove(at))
    }
}

/// The answer of a call with a limit: 0, or the number of the error if the limit has passed.
fn in_time(what: &str, limit_ns: u64, late: c_int, mut call: impl FnMut(Duration) -> Result<bool, WaitError>) -> c_int {
    match call(Duration::from_nanos(limit_ns)) {
        Ok(true) => 0,
        Ok(false) | Err(WaitError::TooLong { .. }) => late,
        Err(error) => stop(format_args!("{what}: {error}")),
    }
}

/// How often threads of this node have read-write locks to read: a thread that has one gets it again, also while a writer
/// waits (pthread_rwlock_rdlock(3p), and the kind of lock that glibc makes by default).
static READERS: Mutex<Option<HashMap<(usize, usize), u32>>> = Mutex::new(None);

fn readers() -> MutexGuard<'static, Option<HashMap<(usize, usize), u32>>> {
    READERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mutex or a read-write lock is new. Its memory may have held another one, which was never unlocked.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_lock_init(lock: usize) {
    held(lock).remove();
    // It is an error if this node does not have it.
    let _ = cluster().mutex(name(lock)).release();
}

/// Locks a mutex. `limit_ns` is 0 for a try, and `u64::MAX` for no limit.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_mutex_lock(mutex: usize, kind: c_int, thread: usize, limit_ns: u64) -> c_int {
    if let Some(holding) = held(mutex).holding().filter(|holding| holding.thread == thread) {
        match kind {
            UNKNOWN => return NEEDS_KIND,
            RECURSIVE => {
                holding.count += 1;
                return 0;
            }
            ERROR_CHECKING => return if limit_ns == 0 { libc::EBUSY } else { libc::EDEADLK },
            // It waits for itself.
            _ => {}
        }
    }
    let lock = cluster().mutex(name(mutex));
    let answer = match limit_ns {
        FOREVER => {
            patiently("a mutex", || lock.acquire());
            0
        }
        0 => in_time("a mutex", 0, libc::EBUSY, |_| lock.try_acquire()),
        limit_ns => in_time("a mutex", limit_ns, libc::ETIMEDOUT, |limit| lock.try_acquire_for(limit)),
    };
    if answer == 0 {
        held(mutex).add(thread, 1);
    }
    answer
}

/// Unlocks a mutex.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_mutex_unlock(mutex: usize, kind: c_int, thread: usize) -> c_int {
    {
        let mut held = held(mutex);
        match held.holding() {
            Some(holding) if holding.thread == thread && holding.count > 1 => {
                holding.count -= 1;
                return 0;
            }
            Some(holding) if holding.thread == thread => {}
            _ if kind == UNKNOWN => return NEEDS_KIND,
            _ if kind == RECURSIVE || kind == ERROR_CHECKING => return libc::EPERM,
            _ => {}
        }
        held.remove();
    }
    match cluster().mutex(name(mutex)).release() {
        Ok(()) => 0,
        Err(WaitError::Misuse(_)) => libc::EPERM,
        Err(error) => stop(format_args!("a mutex: {error}")),
    }
}

/// The first mutex that a thread of this node holds, in the order of their addresses, above an address; 0 if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_next_held(thread: usize, after: usize) -> usize {
    let of_list = |list: &Mutex<Vec<Holding>>| {
        let list = list.lock().unwrap_or_else(PoisonError::into_inner);
        let own = list.iter().filter(|holding| holding.thread == thread && holding.count != WRITES);
        own.map(|holding| holding.lock).filter(|lock| *lock > after).min()
    };
    HELD.iter().filter_map(of_list).min().unwrap_or(0)
}

/// Waits for a condition under a mutex. If there is an interrupt, the wait ends with EINTR when that is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_threads_condition_wait(
    condition: usize,
    mutex: usize,
    kind: c_int,
    thread: usize,
    limit_ns: u64,
    interrupt: *const AtomicBool,
) -> c_int {
    let before = {
        let mut held = held(mutex);
        match kind {
            _ if held.is_by(thread) => {}
            UNKNOWN => return NEEDS_KIND,
            RECURSIVE | ERROR_CHECKING => return libc::EPERM,
            _ => {}
        }
        held.remove()
    };
    let condition = cluster().condvar(name(condition));
    // SAFETY: the caller's promise.
    let interrupt = unsafe { interrupt.as_ref() };
    let limit = (limit_ns != FOREVER || interrupt.is_some()).then(|| Duration::from_nanos(limit_ns));
    let (is_held, notified) = interrupted_by(interrupt, || condition.wait_with_lock(name(mutex), limit));
    let answer = match notified {
        Ok(true) => 0,
        Ok(false) if is_set(interrupt) => libc::EINTR,
        Ok(false) => libc::ETIMEDOUT,
        Err(WaitError::TooLong { .. }) => {
            if !is_held {
                patiently("a condition", || cluster().mutex(name(mutex)).acquire());
            }
            // A wake-up without a reason, which POSIX allows, in place of a wait that began again.
            if limit_ns != FOREVER { libc::ETIMEDOUT } else { 0 }
        }
        Err(WaitError::Misuse(_)) => libc::EPERM,
        Err(error) => stop(format_args!("a condition: {error}")),
    };
    if let Some(Holding { thread, count, .. }) = before {
        held(mutex).add(thread, count);
    }
    answer
}

/// Wakes one thread that waits for a condition, or all.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_condition_notify(condition: usize, all: bool) {
    let condition = cluster().condvar(name(condition));
    patiently("a condition", || if all { condition.wake_all() } else { condition.wake_one() });
}

/// Waits at a barrier of so many threads; whether this thread is the one that POSIX calls serial.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_barrier_wait(barrier: usize, participants: u32) -> bool {
    // A wait that took too long has left the barrier, so it begins again.
    patiently("a barrier", || cluster().barrier_of(name(barrier), participants).wait())
}

/// Gives a semaphore its value.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_semaphore_set(semaphore: usize, value: u64) {
    let semaphore = cluster().semaphore(name(semaphore));
    // The memory may have held another semaphore.
    while patiently("a semaphore", || semaphore.try_acquire()) {}
    if value > 0 {
        patiently("a semaphore", || semaphore.release(value));
    }
}

/// Raises a semaphore of the program. When this returns, all threads can see that.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_semaphore_post(semaphore: usize) {
    patiently("a semaphore", || cluster().semaphore(name(semaphore)).release(1));
}

/// Raises a semaphore at which exactly one thread waits, now or later.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_semaphore_signal(semaphore: usize) {
    patiently("a semaphore", || cluster().semaphore(name(semaphore)).post(1));
}

/// Calls with an interrupt, if there is one.
fn interrupted_by<T>(interrupt: Option<&'static AtomicBool>, call: impl FnOnce() -> T) -> T {
    match interrupt {
        Some(interrupt) => Cluster::interruptible(interrupt, call),
        None => call(),
    }
}

fn is_set(interrupt: Option<&AtomicBool>) -> bool {
    interrupt.is_some_and(|interrupt| interrupt.load(Ordering::SeqCst))
}

/// Threads of this node that wait look at their interrupts.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_interrupt() {
    cluster().interrupt();
}

/// Lowers a semaphore, or returns EINTR when the interrupt is set. `limit_ns` may be `u64::MAX` for no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_threads_semaphore_wait_or_interrupt(
    semaphore: usize,
    limit_ns: u64,
    interrupt: *const AtomicBool,
) -> c_int {
    // SAFETY: the caller's promise.
    let interrupt = unsafe { interrupt.as_ref() };
    let semaphore = cluster().semaphore(name(semaphore));
    let wait = || in_time("a semaphore", limit_ns, libc::ETIMEDOUT, |limit| semaphore.try_acquire_for(limit));
    match interrupted_by(interrupt, wait) {
        libc::ETIMEDOUT if is_set(interrupt) => libc::EINTR,
        answer => answer,
    }
}

/// Lowers a semaphore. `limit_ns` is 0 for a try, and `u64::MAX` for no limit.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_semaphore_wait(semaphore: usize, limit_ns: u64) -> c_int {
    let semaphore = cluster().semaphore(name(semaphore));
    match limit_ns {
        FOREVER => {
            patiently("a semaphore", || semaphore.acquire());
            0
        }
        0 => in_time("a semaphore", 0, libc::EAGAIN, |_| semaphore.try_acquire()),
        limit_ns => in_time("a semaphore", limit_ns, libc::ETIMEDOUT, |limit| semaphore.try_acquire_for(limit)),
    }
}

/// The value of a semaphore.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_semaphore_value(semaphore: usize) -> u64 {
    patiently("a semaphore", || cluster().semaphore(name(semaphore)).value())
}

/// Takes a read-write lock. `limit_ns` is 0 for a try, and `u64::MAX` for no limit.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_rwlock_lock(lock: usize, writes: bool, thread: usize, limit_ns: u64) -> c_int {
    if held(lock).is_by(thread) {
        return if limit_ns == 0 { libc::EBUSY } else { libc::EDEADLK };
    }
    if !writes && let Some(count) = readers().get_or_insert_default().get_mut(&(lock, thread)) {
        *count += 1;
        return 0;
    }
    let object = cluster().rwlock(name(lock));
    let answer = match (limit_ns, writes) {
        (FOREVER, false) => {
            patiently("a read-write lock", || object.read_acquire());
            0
        }
        (FOREVER, true) => {
            patiently("a read-write lock", || object.write_acquire());
            0
        }
        (0, false) => in_time("a read-write lock", 0, libc::EBUSY, |_| object.try_read_acquire()),
        (0, true) => in_time("a read-write lock", 0, libc::EBUSY, |_| object.try_write_acquire()),
        (limit, false) => {
            in_time("a read-write lock", limit, libc::ETIMEDOUT, |limit| object.try_read_acquire_for(limit))
        }
        (limit, true) => {
            in_time("a read-write lock", limit, libc::ETIMEDOUT, |limit| object.try_write_acquire_for(limit))
        }
    };
    if answer == 0 {
        match writes {
            true => held(lock).add(thread, WRITES),
            false => drop(readers().get_or_insert_default().insert((lock, thread), 1)),
        }
    }
    answer
}

/// Gives a read-write lock back, in whichever way the thread has it.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_rwlock_unlock(lock: usize, thread: usize) -> c_int {
    {
        let mut readers = readers();
        let readers = readers.get_or_insert_default();
        if let Some(count) = readers.get_mut(&(lock, thread)) {
            *count -= 1;
            if *count > 0 {
                return 0;
            }
            readers.remove(&(lock, thread));
        }
    }
    let object = cluster().rwlock(name(lock));
    let writes = {
        let mut held = held(lock);
        let writes = held.is_by(thread);
        if writes {
            held.remove();
        }
        writes
    };
    match if writes { object.write_release() } else { object.read_release() } {
        Ok(()) => 0,
        Err(WaitError::Misuse(_)) => libc::EPERM,
        Err(error) => stop(format_args!("a read-write lock: {error}")),
    }
}

/// Takes the lock under which a function is called once, or a static variable is initialised.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_once_lock(object: usize) {
    patiently("a call that is made once", || cluster().mutex(name(object) | OF_ONCE).acquire());
}

/// Gives that lock back.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_once_unlock(object: usize) {
    patiently("a call that is made once", || cluster().mutex(name(object) | OF_ONCE).release());
}

/// Waits as futex(2) does, if the word has this value; 0, or the number of the error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_threads_futex_wait(word: usize, value: u32, limit_ns: u64) -> c_int {
    let number = name(word) | OF_FUTEX;
    patiently("a futex", || cluster().mutex(number).acquire());
    // SAFETY: the program's word, in the region; a futex is aligned.
    let now = unsafe { AtomicU32::from_ptr(word as *mut u32) }.load(Ordering::SeqCst);
    let mut is_held = true;
    let answer = if now == value {
        let limit = (limit_ns != FOREVER).then(|| Duration::from_nanos(limit_ns));
        let (held, notified) = cluster().condvar(number).wait_with_lock(number, limit);
        is_held = held;
        match notified {
            Ok(true) => 0,
            Ok(false) => libc::ETIMEDOUT,
            // A wake-up without a reason, which the caller of futex(2) expects.
            Err(WaitError::TooLong { .. }) if limit.is_none() => 0,
            Err(WaitError::TooLong { .. }) => libc::ETIMEDOUT,
            Err(error) => stop(format_args!("a futex: {error}")),
        }
    } else {
        libc::EAGAIN
    };
    if is_held {
        patiently("a futex", || cluster().mutex(number).release());
    }
    answer
}

/// Wakes threads that wait for a word, at most so many; how many there were.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_threads_futex_wake(word: usize, count: u64) -> u64 {
    let number = name(word) | OF_FUTEX;
    patiently("a futex", || cluster().mutex(number).acquire());
    let condition = cluster().condvar(number);
    let mut woken = 0;
    if count > i32::MAX as u64 - 1 {
        woken = patiently("a futex", || condition.notify_all());
    } else {
        while woken < count && patiently("a futex", || condition.notify_one()) {
            woken += 1;
        }
    }
    patiently("a futex", || cluster().mutex(number).release());
    woken
}
