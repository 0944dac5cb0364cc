//! Condition variables: a thread waits, under a lock, until a thread of any node notifies it of a change.

use std::time::Duration;

use trellis_cluster_protocol::sync::{ConditionDemand, Demand};

use super::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
use crate::cluster::{Cluster, WaitError};
use crate::named::MutexOfGuard;
use crate::names::Name;
use crate::runtime::{Guarding, Timeout};

impl Cluster {
    /// Condition variable `name`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use trellis_cluster as trellis;
    /// use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    /// let cluster = trellis::Cluster::join(trellis::Config::default())?;
    /// let ready = AtomicBool::new(false);
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         let _guard = cluster.mutex(1).lock().unwrap();
    ///         ready.store(true, Relaxed);
    ///         cluster.condvar(1).notify_one().unwrap();
    ///     });
    ///     let mut guard = cluster.mutex(1).lock()?;
    ///     cluster.condvar(1).wait_while(&mut guard, || !ready.load(Relaxed))
    /// })?;
    /// # cluster.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn condvar<'n>(&self, name: impl Into<Name<'n>>) -> Condvar<'_> {
        Condvar { cluster: self, id: self.inner().number_of(name) }
    }
}

/// The guard of a lock under which a thread can wait for a condition.
pub trait Guard: sealed::Guarded {}

impl Guard for MutexGuard<'_> {}
impl<T> Guard for MutexOfGuard<'_, T> {}
impl Guard for RwLockReadGuard<'_> {}
impl Guard for RwLockWriteGuard<'_> {}

mod sealed {
    use crate::cluster::Cluster;
    use crate::runtime::Guarding;

    /// What a wait needs from a guard.
    pub trait Guarded {
        fn cluster(&self) -> &Cluster;
        fn guarding(&self) -> Guarding;
        fn is_held(&self) -> bool;
        fn set_held(&mut self, is_held: bool);
    }
}

impl sealed::Guarded for MutexGuard<'_> {
    fn cluster(&self) -> &Cluster {
        self.of_cluster()
    }
    fn guarding(&self) -> Guarding {
        Guarding::Lock(self.id())
    }
    fn is_held(&self) -> bool {
        self.is_held
    }
    fn set_held(&mut self, is_held: bool) {
        self.is_held = is_held;
    }
}

impl<T> sealed::Guarded for MutexOfGuard<'_, T> {
    fn cluster(&self) -> &Cluster {
        self.lock_guard().of_cluster()
    }
    fn guarding(&self) -> Guarding {
        self.lock_guard().guarding()
    }
    fn is_held(&self) -> bool {
        self.lock_guard().is_held
    }
    fn set_held(&mut self, is_held: bool) {
        self.lock_guard_mut().is_held = is_held;
    }
}

impl sealed::Guarded for RwLockReadGuard<'_> {
    fn cluster(&self) -> &Cluster {
        self.of_cluster()
    }
    fn guarding(&self) -> Guarding {
        Guarding::ReadLock(self.id())
    }
    fn is_held(&self) -> bool {
        self.is_held
    }
    fn set_held(&mut self, is_held: bool) {
        self.is_held = is_held;
    }
}

impl sealed::Guarded for RwLockWriteGuard<'_> {
    fn cluster(&self) -> &Cluster {
        self.of_cluster()
    }
    fn guarding(&self) -> Guarding {
        Guarding::WriteLock(self.id())
    }
    fn is_held(&self) -> bool {
        self.is_held
    }
    fn set_held(&mut self, is_held: bool) {
        self.is_held = is_held;
    }
}

/// A condition variable, kept at its home. A wait costs a round trip to begin, one message for the notification, and
/// then the lock. Only a notification that is given during a wait ends it, or a wake-up that was under way. A thread
/// that took the lock first may have made the condition false again, so the caller must check it again;
/// [`Condvar::wait_while`] does so.
#[derive(Clone, Copy)]
pub struct Condvar<'a> {
    cluster: &'a Cluster,
    id: u64,
}

impl Condvar<'_> {
    /// Releases the lock, waits for a notification, and takes the lock again.
    ///
    /// # Errors
    ///
    /// [`WaitError::TooLong`] after `wait_seconds_max`. The lock is held again after an error too, unless it could not
    /// be taken again; then dropping the guard does nothing. A wait that failed may have used up a notification.
    pub fn wait(&self, guard: &mut impl Guard) -> Result<(), WaitError> {
        self.wait_within(guard, Timeout::Configured).map(drop)
    }

    /// Waits like [`Condvar::wait`] for as long as `is_to_wait` returns true. It is called under the lock, also before
    /// the first wait.
    pub fn wait_while(&self, guard: &mut impl Guard, mut is_to_wait: impl FnMut() -> bool) -> Result<(), WaitError> {
        while is_to_wait() {
            self.wait(guard)?;
        }
        Ok(())
    }

    /// Waits like [`Condvar::wait`], for `duration` at most. Returns whether there was a notification.
    pub fn wait_for(&self, guard: &mut impl Guard, duration: Duration) -> Result<bool, WaitError> {
        self.wait_within(guard, Timeout::For(duration))
    }

    /// Wakes the thread that has waited longest. Returns whether there was one. It is usually called under the lock.
    pub fn notify_one(&self) -> Result<bool, WaitError> {
        self.demand(ConditionDemand::NotifyOne).map(|woken| woken == 1)
    }

    /// Wakes every thread that waits. Returns their number.
    pub fn notify_all(&self) -> Result<u64, WaitError> {
        self.demand(ConditionDemand::NotifyAll)
    }

    /// Wakes the thread that has waited longest, if there is one, and returns before that has happened. A wait that
    /// begins meanwhile may be the one that ends.
    pub fn wake_one(&self) -> Result<(), WaitError> {
        self.demand_silently(ConditionDemand::WakeOne)
    }

    /// Wakes every thread that waits, and returns before that has happened. A wait that begins meanwhile may end, too.
    pub fn wake_all(&self) -> Result<(), WaitError> {
        self.demand_silently(ConditionDemand::WakeAll)
    }

    /// Waits like [`Condvar::wait`] under lock `lock`, which has no guard. Returns whether the lock is held afterwards,
    /// and the outcome of the wait. Without `duration`, the limit is the configured one.
    #[doc(hidden)]
    pub fn wait_with_lock(&self, lock: u64, duration: Option<Duration>) -> (bool, Result<bool, WaitError>) {
        let lock = self.cluster.inner().number_of(lock);
        let timeout = duration.map_or(Timeout::Configured, Timeout::For);
        let waited = self.cluster.inner().wait_for_condition(self.id, Guarding::Lock(lock), timeout);
        (waited.is_lock_held, waited.notified)
    }

    fn wait_within(&self, guard: &mut impl Guard, timeout: Timeout) -> Result<bool, WaitError> {
        if !guard.is_held() {
            return Err(WaitError::Misuse(format!(
                "condition {} cannot be waited for: the lock is not held any more, because an earlier wait could not take \
                 it again",
                self.cluster.inner().object(self.id)
            )));
        }
        if !std::ptr::eq(guard.cluster().inner(), self.cluster.inner()) {
            return Err(WaitError::Misuse(format!(
                "condition {} cannot be waited for under a lock of another cluster",
                self.cluster.inner().object(self.id)
            )));
        }
        let waited = self.cluster.inner().wait_for_condition(self.id, guard.guarding(), timeout);
        guard.set_held(waited.is_lock_held);
        waited.notified
    }

    fn demand(&self, demand: ConditionDemand) -> Result<u64, WaitError> {
        self.cluster.inner().demand(self.id, Demand::Condition(demand))
    }

    fn demand_silently(&self, demand: ConditionDemand) -> Result<(), WaitError> {
        self.cluster.inner().demand_silently(self.id, Demand::Condition(demand))
    }
}
