//! Waiting together: what the header declares under that name, besides barriers, locks and words in `cluster`.
//!
//! Promises: what can be got or not is answered with 1 or 0, and only what failed is negative. Must never decide what
//! the crate `trellis` decides.

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

/// What a call without a value answers, and one that answers yes or no.
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

/// Functions of the header whose arguments are plain numbers.
macro_rules! calls {
    ($($(#[doc = $doc:literal])+ $name:ident($($argument:ident: $type:ty),*), $cluster:ident => $call:expr;)+) => { $(
        $(#[doc = $doc])+
        ///
        /// # Safety
        /// `cluster` is NULL or came from `trellis_join` and was not given back.
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
    /// Take a lock if nobody has it.
    trellis_try_lock(id: u64), cluster => cluster.lock_try_acquire(id);
    /// Take a lock if it comes in time.
    trellis_try_lock_for(id: u64, duration: u64), cluster => cluster.lock_acquire_for(id, microseconds(duration));

    /// Wait for a number of participants.
    trellis_barrier_of(id: u64, participants: u32), cluster => cluster.barrier_of(id, participants);

    /// Read, together with other readers.
    trellis_rwlock_read(id: u64), cluster => cluster.rwlock(id).read_acquire();
    /// Read, if that is possible now.
    trellis_rwlock_try_read(id: u64), cluster => cluster.rwlock(id).read_try_acquire();
    /// Read, if that is possible in time.
    trellis_rwlock_try_read_for(id: u64, duration: u64), cluster => {
        cluster.rwlock(id).read_acquire_for(microseconds(duration))
    };
    /// End a read.
    trellis_rwlock_end_read(id: u64), cluster => cluster.rwlock(id).read_release();
    /// Write, alone.
    trellis_rwlock_write(id: u64), cluster => cluster.rwlock(id).write_acquire();
    /// Write, if that is possible now.
    trellis_rwlock_try_write(id: u64), cluster => cluster.rwlock(id).write_try_acquire();
    /// Write, if that is possible in time.
    trellis_rwlock_try_write_for(id: u64, duration: u64), cluster => {
        cluster.rwlock(id).write_acquire_for(microseconds(duration))
    };
    /// End a write.
    trellis_rwlock_end_write(id: u64), cluster => cluster.rwlock(id).write_release();

    /// Wake who has waited longest.
    trellis_condition_signal(id: u64), cluster => cluster.condition(id).signal();
    /// Wake everybody who waits.
    trellis_condition_broadcast(id: u64), cluster => cluster.condition(id).broadcast().map(drop);

    /// Raise a semaphore.
    trellis_semaphore_post(id: u64, count: u64), cluster => cluster.semaphore(id).post(count);
    /// Lower a semaphore.
    trellis_semaphore_wait(id: u64), cluster => cluster.semaphore(id).wait();
    /// Lower a semaphore if it is above zero.
    trellis_semaphore_try_wait(id: u64), cluster => cluster.semaphore(id).try_wait();
    /// Lower a semaphore if it is raised in time.
    trellis_semaphore_wait_for(id: u64, duration: u64), cluster => {
        cluster.semaphore(id).wait_for(microseconds(duration))
    };

    /// Set an event.
    trellis_event_set(id: u64), cluster => cluster.event(id).set();
    /// Clear an event.
    trellis_event_clear(id: u64), cluster => cluster.event(id).clear();
    /// Wait until an event is set.
    trellis_event_wait(id: u64), cluster => cluster.event(id).wait();
    /// Wait until an event is set, if it is in time.
    trellis_event_wait_for(id: u64, duration: u64), cluster => cluster.event(id).wait_for(microseconds(duration));
    /// Whether an event is set.
    trellis_event_is_set(id: u64), cluster => cluster.event(id).is_set();

    /// Find something done, or be told to do it.
    trellis_once_begin(id: u64), cluster => cluster.once(id).begin();
    /// Say that it is done.
    trellis_once_done(id: u64), cluster => cluster.once(id).done();
    /// Say that it could not be done.
    trellis_once_failed(id: u64), cluster => cluster.once(id).failed();
}

/// Do something once.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not given back; `work` may be called with `argument`.
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
            Ok(cluster.once(id).call(|| work(argument))?.into())
        })
    }
}

/// Wait under a lock until a condition is signalled.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trellis_condition_wait(cluster: *mut ClusterHandle, id: u64, lock: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on_cluster(cluster, |cluster| wait_for_condition(cluster, id, lock, None).map(|_| status::OK)) }
}

/// The same, if it is signalled in time.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not given back.
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
    let (is_held, signalled) = cluster.condition(id).wait_with_lock(lock, duration);
    match signalled {
        // Only a deadline that leaves the lock held is told as one.
        Err(error @ WaitError::TooLong { .. }) if !is_held => {
            Err(Failure::new(status::STATE, format!("lock {lock} could not be taken again: {error}")))
        }
        other => Ok(other?),
    }
}

/// What a semaphore stands at.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not given back; `value` is NULL or valid for writing.
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

/// Reduce unsigned numbers in a barrier.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not given back; `value` is NULL or valid.
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

/// Reduce signed numbers in a barrier.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not given back; `value` is NULL or valid.
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

/// Reduce floating-point numbers in a barrier.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not given back; `value` is NULL or valid.
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

/// Give every node the value of one in a barrier.
///
/// # Safety
/// `cluster` is NULL or came from `trellis_join` and was not given back; `value` is NULL or valid.
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
