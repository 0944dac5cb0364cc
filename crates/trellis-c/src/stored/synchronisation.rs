//! Objects of the stored region that this process has open: what `trellis/stored_synchronisation.h` declares.
//!
//! Promises: an operation that may be refused returns 1 or 0, and only a failure is negative. Held locks are kept
//! here between two calls of C, by the address that C gave. No mutex of this module is held during a call of the
//! store. It must never decide what the crate `trellis` decides.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use trellis::stored::layout;
use trellis::stored::synchronisation::{
    Access, Condvar, HeldAccess, HeldMutex, Place, Session, SynchronisationError, Turn, process,
};

use crate::failure::{self, Failure, answer, answer_or};
use crate::status;

impl From<SynchronisationError> for Failure {
    fn from(error: SynchronisationError) -> Failure {
        let status = match error {
            SynchronisationError::TooLong { .. } => status::DEADLINE,
            SynchronisationError::Misuse(_) => status::ARGUMENT,
            SynchronisationError::Recursion(_) => status::STATE,
            _ => status::NODE_LOST,
        };
        Failure::new(status, error)
    }
}

/// The locks that this process holds, by the address that C names them with.
#[derive(Default)]
struct Holds {
    locks: HashMap<usize, HeldMutex>,
    accesses: HashMap<usize, Vec<HeldAccess>>,
    turns: HashMap<usize, Turn>,
}

static HOLDS: LazyLock<Mutex<Holds>> = LazyLock::new(Mutex::default);
/// Names by the address that stands for each; they are never freed, because C may keep the address.
static NAMES: LazyLock<Mutex<HashMap<usize, &'static str>>> = LazyLock::new(Mutex::default);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each of these mutexes protects data that is changed in one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The object that an address means.
fn place_of(address: usize) -> Result<Place<'static>, Failure> {
    if layout::is_inside(address) {
        return Ok(Place::At((address - layout::REGION_BASE) as u64));
    }
    if let Some(name) = locked(&NAMES).get(&address) {
        return Ok(Place::Named(name));
    }
    let base = layout::REGION_BASE;
    let why = match address {
        0 => "the object is NULL; give an address in the region, or what trellis_store_name answered".to_owned(),
        _ => format!("{address:#x} is not an object: the region begins at {base:#x}, and no name has that address"),
    };
    Err(Failure::new(status::ARGUMENT, why))
}

/// Runs the body of a function on the object at an address.
fn on_object(address: *const c_void, body: impl FnOnce(&Session, Place<'static>) -> Result<c_int, Failure>) -> c_int {
    answer(|| {
        let place = place_of(address.addr())?;
        let session = process::session().map_err(|error| match error {
            SynchronisationError::Misuse(why) => Failure::new(status::STATE, why),
            error => error.into(),
        })?;
        body(session, place)
    })
}

fn not_held(what: &str) -> Failure {
    let why = format!(
        "this process does not hold the {what}, or has released it; it is released once for each time that it was taken"
    );
    Failure::new(status::STATE, why)
}

fn microseconds(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// Converts a name to an address, for the functions below.
///
/// # Safety
/// `name` is NULL or points to a string that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_store_name(name: *const c_char) -> *const c_void {
    answer_or(std::ptr::null(), || {
        // SAFETY: the caller's promise.
        let name = unsafe { failure::text(name, "name") }?;
        let mut names = locked(&NAMES);
        if let Some((address, _)) = names.iter().find(|(_, known)| **known == name) {
            return Ok(std::ptr::without_provenance(*address));
        }
        // One byte more, so that the empty name, which is refused later by its own rule, has a unique address too.
        let kept: &'static str = String::leak(format!("{name}\0"));
        names.insert(kept.as_ptr().addr(), &kept[..name.len()]);
        Ok(kept.as_ptr().cast())
    })
}

// ---------------------------------------------------------------------------------------------------------- locks

fn keep_lock(address: *const c_void, held: HeldMutex) {
    locked(&HOLDS).locks.insert(address.addr(), held);
}

fn take_lock(address: *const c_void) -> Result<HeldMutex, Failure> {
    locked(&HOLDS).locks.remove(&address.addr()).ok_or_else(|| not_held("lock"))
}

/// Acquires a lock.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_lock(lock: *const c_void) -> c_int {
    on_object(lock, |session, place| {
        keep_lock(lock, session.mutex(place)?.acquire()?);
        Ok(status::OK)
    })
}

/// Acquires a lock if it is free.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_try_lock(lock: *const c_void) -> c_int {
    trellis_store_try_lock_for(lock, 0)
}

/// Acquires a lock if it is free in time.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_try_lock_for(lock: *const c_void, duration: u64) -> c_int {
    on_object(lock, |session, place| {
        let held = session.mutex(place)?.try_acquire_for(microseconds(duration))?;
        Ok(held.map(|held| keep_lock(lock, held)).is_some().into())
    })
}

/// Releases a lock.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_unlock(lock: *const c_void) -> c_int {
    on_object(lock, |_, _| {
        take_lock(lock)?.release()?;
        Ok(status::OK)
    })
}

/// The token of the present acquisition of a lock.
///
/// # Safety
/// `token` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_store_lock_token(lock: *const c_void, token: *mut u64) -> c_int {
    on_object(lock, |_, _| {
        // SAFETY: the caller's promise.
        let token = unsafe { failure::place(token, "token") }?;
        *token = locked(&HOLDS).locks.get(&lock.addr()).ok_or_else(|| not_held("lock"))?.token();
        Ok(status::OK)
    })
}

// ---------------------------------------------------------------------------------------------- read-write locks

fn keep_access(address: *const c_void, held: HeldAccess) {
    locked(&HOLDS).accesses.entry(address.addr()).or_default().push(held);
}

fn acquire(lock: *const c_void, access: Access) -> c_int {
    on_object(lock, |session, place| {
        keep_access(lock, session.rwlock(place)?.acquire(access)?);
        Ok(status::OK)
    })
}

fn try_acquire(lock: *const c_void, access: Access, duration: u64) -> c_int {
    on_object(lock, |session, place| {
        let held = session.rwlock(place)?.try_acquire_for(access, microseconds(duration))?;
        Ok(held.map(|held| keep_access(lock, held)).is_some().into())
    })
}

fn end(lock: *const c_void, access: Access) -> c_int {
    on_object(lock, |_, _| {
        let held = {
            let mut holds = locked(&HOLDS);
            let of_lock = holds.accesses.get_mut(&lock.addr());
            let at = of_lock.as_ref().and_then(|of_lock| of_lock.iter().position(|held| held.access() == access));
            of_lock.zip(at).map(|(of_lock, at)| of_lock.swap_remove(at))
        };
        held.ok_or_else(|| not_held("read-write lock in that way"))?.release()?;
        Ok(status::OK)
    })
}

/// Acquires a lock for reading, together with other readers.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_rwlock_read(lock: *const c_void) -> c_int {
    acquire(lock, Access::Read)
}

/// Acquires a lock for reading if that is possible now.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_rwlock_try_read(lock: *const c_void) -> c_int {
    try_acquire(lock, Access::Read, 0)
}

/// Acquires a lock for reading if that is possible in time.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_rwlock_try_read_for(lock: *const c_void, duration: u64) -> c_int {
    try_acquire(lock, Access::Read, duration)
}

/// Ends a read.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_rwlock_end_read(lock: *const c_void) -> c_int {
    end(lock, Access::Read)
}

/// Acquires a lock for writing, alone.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_rwlock_write(lock: *const c_void) -> c_int {
    acquire(lock, Access::Write)
}

/// Acquires a lock for writing if that is possible now.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_rwlock_try_write(lock: *const c_void) -> c_int {
    try_acquire(lock, Access::Write, 0)
}

/// Acquires a lock for writing if that is possible in time.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_rwlock_try_write_for(lock: *const c_void, duration: u64) -> c_int {
    try_acquire(lock, Access::Write, duration)
}

/// Ends a write.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_rwlock_end_write(lock: *const c_void) -> c_int {
    end(lock, Access::Write)
}

// ---------------------------------------------------------------------------------------------------- semaphores

/// Sets a semaphore.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_semaphore_set(semaphore: *const c_void, value: u64) -> c_int {
    on_object(semaphore, |session, place| {
        session.semaphore(place)?.set(value)?;
        Ok(status::OK)
    })
}

/// Sets a semaphore's initial value.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_semaphore_begin(semaphore: *const c_void, value: u64) -> c_int {
    on_object(semaphore, |session, place| {
        session.semaphore_from(place, value)?;
        Ok(status::OK)
    })
}

/// Adds permits to a semaphore.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_semaphore_release(semaphore: *const c_void, count: u64) -> c_int {
    on_object(semaphore, |session, place| {
        session.semaphore(place)?.release(count)?;
        Ok(status::OK)
    })
}

/// Takes a permit of a semaphore.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_semaphore_acquire(semaphore: *const c_void) -> c_int {
    on_object(semaphore, |session, place| {
        session.semaphore(place)?.acquire()?;
        Ok(status::OK)
    })
}

/// Takes a permit of a semaphore if there is one.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_semaphore_try_acquire(semaphore: *const c_void) -> c_int {
    trellis_store_semaphore_try_acquire_for(semaphore, 0)
}

/// Takes a permit of a semaphore if there is one in time.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_semaphore_try_acquire_for(semaphore: *const c_void, duration: u64) -> c_int {
    on_object(semaphore, |session, place| Ok(session.semaphore(place)?.try_acquire_for(microseconds(duration))?.into()))
}

/// The value of a semaphore.
///
/// # Safety
/// `value` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_store_semaphore_value(semaphore: *const c_void, value: *mut u64) -> c_int {
    on_object(semaphore, |session, place| {
        // SAFETY: the caller's promise.
        let value = unsafe { failure::place(value, "value") }?;
        *value = session.semaphore(place)?.value()?;
        Ok(status::OK)
    })
}

// ------------------------------------------------------------------------------------------- barriers, conditions

/// Waits for a number of participants.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_barrier_of(barrier: *const c_void, participants: u32) -> c_int {
    on_object(barrier, |session, place| Ok(session.barrier_of(place, participants)?.wait()?.into()))
}

fn wait_for_condition(condition: *const c_void, lock: *const c_void, duration: Option<Duration>) -> c_int {
    on_object(condition, |session, place| {
        let (condition, held) = condition_under(session, place, lock)?;
        let waited = condition.wait_held(held, duration);
        match (waited.notified, waited.held) {
            // A time-out is reported as one only if the lock is held.
            (Err(error @ SynchronisationError::TooLong { .. }), None) => {
                Err(Failure::new(status::STATE, format!("the lock could not be taken again: {error}")))
            }
            (notified @ (Ok(_) | Err(SynchronisationError::TooLong { .. })), held) => {
                held.into_iter().for_each(|held| keep_lock(lock, held));
                Ok(notified?.into())
            }
            // After all other errors the lock counts as not held.
            (Err(error), _) => Err(error.into()),
        }
    })
}

/// A condition, and the lock that is held for it. After a failure the lock is held only if an argument was wrong.
fn condition_under(
    session: &Session,
    place: Place<'static>,
    lock: *const c_void,
) -> Result<(Condvar, HeldMutex), Failure> {
    let held = take_lock(lock)?;
    match session.condvar(place) {
        Ok(condition) => Ok((condition, held)),
        Err(error) => {
            if matches!(error, SynchronisationError::Misuse(_)) {
                keep_lock(lock, held);
            }
            Err(error.into())
        }
    }
}

/// Waits under a lock until a condition is notified.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_condition_wait(condition: *const c_void, lock: *const c_void) -> c_int {
    match wait_for_condition(condition, lock, None) {
        1 => status::OK,
        other => other,
    }
}

/// Waits under a lock until a condition is notified, with a time-out.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_condition_wait_for(
    condition: *const c_void,
    lock: *const c_void,
    duration: u64,
) -> c_int {
    wait_for_condition(condition, lock, Some(microseconds(duration)))
}

/// Wakes at least one waiter of a condition.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_condition_notify_one(condition: *const c_void) -> c_int {
    on_object(condition, |session, place| {
        session.condvar(place)?.notify_one()?;
        Ok(status::OK)
    })
}

/// Wakes all waiters of a condition.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_condition_notify_all(condition: *const c_void) -> c_int {
    on_object(condition, |session, place| {
        session.condvar(place)?.notify_all()?;
        Ok(status::OK)
    })
}

/// Releases a lock and wakes all waiters of a condition, in one call of the store.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_unlock_and_notify_all(lock: *const c_void, condition: *const c_void) -> c_int {
    on_object(condition, |session, place| {
        let (condition, held) = condition_under(session, place, lock)?;
        held.release_and_notify_all(&condition)?;
        Ok(status::OK)
    })
}

// ------------------------------------------------------------------------------------------------- events, once

/// Sets an event.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_event_set(event: *const c_void) -> c_int {
    on_object(event, |session, place| {
        session.event(place)?.set()?;
        Ok(status::OK)
    })
}

/// Clears an event.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_event_clear(event: *const c_void) -> c_int {
    on_object(event, |session, place| {
        session.event(place)?.clear()?;
        Ok(status::OK)
    })
}

/// Waits until an event is set.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_event_wait(event: *const c_void) -> c_int {
    on_object(event, |session, place| {
        session.event(place)?.wait()?;
        Ok(status::OK)
    })
}

/// Waits until an event is set, with a time-out.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_event_wait_for(event: *const c_void, duration: u64) -> c_int {
    on_object(event, |session, place| Ok(session.event(place)?.wait_for(microseconds(duration))?.into()))
}

/// Whether an event is set.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_event_is_set(event: *const c_void) -> c_int {
    trellis_store_event_wait_for(event, 0)
}

/// Returns whether the work is done; otherwise the caller must do it.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_once_begin(once: *const c_void) -> c_int {
    on_object(once, |session, place| {
        let turn = session.once(place)?.begin()?;
        Ok(turn.map(|turn| locked(&HOLDS).turns.insert(once.addr(), turn)).is_some().into())
    })
}

fn take_turn(once: *const c_void) -> Result<Turn, Failure> {
    locked(&HOLDS).turns.remove(&once.addr()).ok_or_else(|| not_held("turn to do it"))
}

/// Records that the work is done.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_once_done(once: *const c_void) -> c_int {
    on_object(once, |_, _| {
        take_turn(once)?.done()?;
        Ok(status::OK)
    })
}

/// Records that the work failed.
#[unsafe(no_mangle)]
pub extern "C" fn trellis_store_once_failed(once: *const c_void) -> c_int {
    on_object(once, |_, _| {
        take_turn(once)?.failed()?;
        Ok(status::OK)
    })
}
