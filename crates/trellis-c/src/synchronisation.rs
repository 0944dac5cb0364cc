//! The synchronisation functions of the header, except barriers, locks and words, which are in `cluster`.
//!
//! Promises: an operation that may be refused returns 1 or 0, and only a failure is negative. It must never decide
//! what the crate `trellis` decides.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use trellis::synchronisation::{Reduce, Reducible};
use trellis::{Cluster, WaitError};

use crate::cluster::{ClusterHandle, on_cluster};
use crate::failure::{self, Failure};
use crate::status;

/// `TRELLIS_SUM`
pub const SUM: c_int = 0;
/// `TRELLIS_LEAST`
pub const LEAST: c_int = 1;
/// `TRELLIS_GREATEST`
pub const GREATEST: c_int = 2;
/// `TRELLIS_AND`
pub const AND: c_int = 3;
/// `TRELLIS_OR`
pub const OR: c_int = 4;
/// `TRELLIS_XOR`
pub const XOR: c_int = 5;

/// The C result of a call without a value, and of one that returns yes or no.
trait Answer {
    fn status(self) -> c_int;
}

impl Answer for () {
    fn status(self) -> c_int {
        status::OK
    }
}

impl Answer for bool {
    fn status(self) -> c_int {
        self.into()
    }
}

fn microseconds(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// Functions of the header whose arguments are only numbers.
macro_rules! calls {
    ($($(#[doc = $doc:literal])+ $name:ident($($argument:ident: $type:ty),*), $cluster:ident => $call:expr;)+) => { $(
        $(#[doc = $doc])+
        ///
        /// # Safety
        /// `cluster` is NULL or came from `trellis_join` and was not freed.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(cluster: *mut ClusterHandle, $($argument: $type),*) -> c_int {
            // SAFETY: the caller's promise.
            unsafe {
                on_cluster(cluster, |$cluster| {
                    let answered = $call?;
                    Ok(Answer::status(answered))
                })
            }
        }
    )+ };
}

calls! {
    /// Acquires a lock if it is free.
    trellis_try_lock(id: u64), cluster => cluster.mutex(id).try_acquire();
    /// Acquires a lock if it is free in time.
    trellis_try_lock_for(id: u64, duration: u64), cluster => cluster.mutex(id).try_acquire_for(microseconds(duration));

    /// Waits for a number of participants.
    trellis_barrier_of(id: u64, participants: u32), cluster => cluster.barrier_of(id, participants).wait();

    /// Acquires a lock for reading, together with other readers.
    trellis_rwlock_read(id: u64), cluster => cluster.rwlock(id).read_acquire();
    /// Acquires a lock for reading if that is possible now.
    trellis_rwlock_try_read(id: u64), cluster => cluster.rwlock(id).try_read_acquire();
    /// Acquires a lock for reading if that is possible in time.
    trellis_rwlock_try_read_for(id: u64, duration: u64), cluster => {
        cluster.rwlock(id).try_read_acquire_for(microseconds(duration))
    };
    /// Ends a read.
    trellis_rwlock_end_read(id: u64), cluster => cluster.rwlock(id).read_release();
    /// Acquires a lock for writing, alone.
    trellis_rwlock_write(id: u64), cluster => cluster.rwlock(id).write_acquire();
    /// Acquires a lock for writing if that is possible now.
    trellis_rwlock_try_write(id: u64), cluster => cluster.rwlock(id).try_write_acquire();
    /// Acquires a lock for writing if that is possible in time.
    trellis_rwlock_try_write_for(id: u64, duration: u64), cluster => {
        cluster.rwlock(id).try_write_acquire_for(microseconds(duration))
    };
    /// Ends a write.
    trellis_rwlock_end_write(id: u64), cluster => cluster.rwlock(id).write_release();

    /// Wakes the longest waiter.
    trellis_condition_notify_one(id: u64), cluster => cluster.condvar(id).notify_one();
    /// Wakes all waiters.
    trellis_condition_notify_all(id: u64), cluster => cluster.condvar(id).notify_all().map(drop);

    /// Adds permits to a semaphore.
    trellis_semaphore_release(id: u64, count: u64), cluster => cluster.semaphore(id).release(count);
    /// Takes a permit of a semaphore.
    trellis_semaphore_acquire(id: u64), cluster => cluster.semaphore(id).acquire();
    /// Takes a permit of a semaphore if there is one.
    trellis_semaphore_try_acquire(id: u64), cluster => cluster.semaphore(id).try_acquire();
    /// Takes a permit of a semaphore if there is one in time.
    trellis_semaphore_try_acquire_for(id: u64, duration: u64), cluster => {
        cluster.semaphore(id).try_acquire_for(microseconds(duration))
    };

    /// Sets an event.
    trellis_event_set(id: u64), cluster => cluster.event(id).set();
    /// Clears an event.
    trellis_event_clear(id: u64), cluster => cluster.event(id).clear();
    /// Waits until an event is set.
    trellis_event_wait(id: u64), cluster => cluster.event(id).wait();
    /// Waits until an event is set, with a time-out.
    trellis_event_wait_for(id: u64, duration: u64), cluster => cluster.event(id).wait_for(microseconds(duration));
    /// Whether an event is set.
    trellis_event_is_set(id: u64), cluster => cluster.event(id).is_set();

    /// Returns whether the work is done; otherwise the caller must do it.
    trellis_once_begin(id: u64), cluster => cluster.once(id).begin();
    /// Records that the work is done.
    trellis_once_done(id: u64), cluster => cluster.once(id).done();
    /// Records that the work failed.
    trellis_once_failed(id: u64), cluster => cluster.once(id).failed();
}

/// Runs a function once in the cluster.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not freed; `work` may be called with `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_once(
    cluster: *mut ClusterHandle,
    id: u64,
    work: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            let why = "work is NULL; give the function that does it";
            let work = work.ok_or_else(|| Failure::new(status::ARGUMENT, why))?;
            Ok(cluster.once(id).call_once(|| work(argument))?.into())
        })
    }
}

/// Waits under a lock until a condition is notified.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_condition_wait(cluster: *mut ClusterHandle, id: u64, lock: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on_cluster(cluster, |cluster| wait_for_condition(cluster, id, lock, None).map(|_| status::OK)) }
}

/// Waits under a lock until a condition is notified, with a time-out.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_condition_wait_for(
    cluster: *mut ClusterHandle,
    id: u64,
    lock: u64,
    duration: u64,
) -> c_int {
    let duration = Some(microseconds(duration));
    // SAFETY: the caller's promise.
    unsafe { on_cluster(cluster, |cluster| wait_for_condition(cluster, id, lock, duration).map(c_int::from)) }
}

fn wait_for_condition(cluster: &Cluster, id: u64, lock: u64, duration: Option<Duration>) -> Result<bool, Failure> {
    let (is_held, notified) = cluster.condvar(id).wait_with_lock(lock, duration);
    match notified {
        // A time-out is reported as one only if the lock is held.
        Err(error @ WaitError::TooLong { .. }) if !is_held => {
            Err(Failure::new(status::STATE, format!("lock {lock} could not be taken again: {error}")))
        }
        // So that the status says whether the lock is held.
        Err(WaitError::Misuse(why)) if is_held => Err(Failure::new(status::ARGUMENT, why)),
        other => Ok(other?),
    }
}

/// The value of a semaphore.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not freed; `value` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_semaphore_value(cluster: *mut ClusterHandle, id: u64, value: *mut u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            *failure::place(value, "value")? = cluster.semaphore(id).value()?;
            Ok(status::OK)
        })
    }
}

/// Reduces unsigned numbers in a barrier.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not freed; `value` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_barrier_reduce_u64(
    cluster: *mut ClusterHandle,
    id: u64,
    how: c_int,
    value: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { reduce(cluster, id, how, value) }
}

/// Reduces signed numbers in a barrier.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not freed; `value` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_barrier_reduce_i64(
    cluster: *mut ClusterHandle,
    id: u64,
    how: c_int,
    value: *mut i64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { reduce(cluster, id, how, value) }
}

/// Reduces floating-point numbers in a barrier.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not freed; `value` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_barrier_reduce_double(
    cluster: *mut ClusterHandle,
    id: u64,
    how: c_int,
    value: *mut f64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { reduce(cluster, id, how, value) }
}

/// # Safety
/// As for the functions above.
unsafe fn reduce<T: Reducible>(cluster: *mut ClusterHandle, id: u64, how: c_int, value: *mut T) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            let reduce = match how {
                SUM => Reduce::Sum,
                LEAST => Reduce::Least,
                GREATEST => Reduce::Greatest,
                AND => Reduce::And,
                OR => Reduce::Or,
                XOR => Reduce::ExclusiveOr,
                _ => {
                    let why = format!("reduction {how} is unknown; give TRELLIS_SUM or another that the header names");
                    return Err(Failure::new(status::ARGUMENT, why));
                }
            };
            let value = failure::place(value, "value")?;
            *value = cluster.barrier_reduce(id, reduce, *value)?;
            Ok(status::OK)
        })
    }
}

/// Gives every node the value of one in a barrier.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not freed; `value` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_broadcast(
    cluster: *mut ClusterHandle,
    id: u64,
    from: usize,
    value: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on_cluster(cluster, |cluster| {
            let value = failure::place(value, "value")?;
            *value = cluster.broadcast(id, from, *value)?;
            Ok(status::OK)
        })
    }
}
