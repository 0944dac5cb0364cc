//! Condition variables: a thread that holds a lock waits until another thread of any process notifies.
//!
//! A condition is a number that a notification raises. A wait reads it in the call that releases the lock. It then
//! sleeps, in one call of the store, until the number is larger *and* the lock is free, and takes the lock in the same
//! call. No notification in between is therefore lost, and a wait takes two calls. A notification wakes all waiting
//! threads; each must check its condition again under the lock: see [`Condvar::wait_while`].

use std::sync::Arc;
use std::time::Duration;

use trellis_store::{Operation, Outcome};

use super::error::SynchronisationError;
use super::mutex::{self, HeldMutex, MutexGuard};
use super::object::{Object, Place};
use super::record::{self, Form};
use super::session::{Ends, Session};

/// The number of notifications.
const NOTIFIED: u32 = 0;

impl Session {
    /// The condition variable at a place, by a name or an address. A name costs one call the first time, an address
    /// none.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::Misuse`] for an invalid place.
    pub fn condvar<'a>(&self, place: impl Into<Place<'a>>) -> Result<Condvar, SynchronisationError> {
        let object = self.inner.object(Form::Condition, place.into())?;
        Ok(Condvar { session: Arc::clone(&self.inner), object })
    }
}

/// A condition variable.
#[derive(Clone)]
pub struct Condvar {
    session: Arc<Ends>,
    object: Object,
}

/// The outcome of a wait: whether the lock is held again, and whether there was a notification.
pub struct Waited {
    /// The lock; `None` if it could not be taken again.
    pub held: Option<HeldMutex>,
    /// Whether there was a notification during the wait; false if the time ran out.
    pub notified: Result<bool, SynchronisationError>,
}

impl Condvar {
    /// Releases the lock, waits for a notification, and takes the lock again.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::TooLong`] after the session's `wait_max`. The lock is held again even after an error,
    /// unless it could not be taken again; then dropping the guard does nothing.
    pub fn wait(&self, guard: &mut MutexGuard) -> Result<(), SynchronisationError> {
        self.wait_within(guard, None).and_then(|notified| if notified { Ok(()) } else { Err(self.too_long()) })
    }

    /// Waits like [`Condvar::wait`] for as long as `is_to_wait` returns true. It is called under the lock, also before
    /// the first wait.
    ///
    /// # Errors
    ///
    /// As [`Condvar::wait`].
    pub fn wait_while(
        &self,
        guard: &mut MutexGuard,
        mut is_to_wait: impl FnMut() -> bool,
    ) -> Result<(), SynchronisationError> {
        while is_to_wait() {
            self.wait(guard)?;
        }
        Ok(())
    }

    /// Waits like [`Condvar::wait`], for `duration` at most. Returns whether there was a notification.
    ///
    /// # Errors
    ///
    /// As [`Condvar::wait`], without the deadline.
    pub fn wait_for(&self, guard: &mut MutexGuard, duration: Duration) -> Result<bool, SynchronisationError> {
        self.wait_within(guard, Some(duration))
    }

    /// Wakes at least one waiting thread. A store cannot choose one, so this wakes all of them.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn notify_one(&self) -> Result<(), SynchronisationError> {
        self.notify_all()
    }

    /// Wakes all waiting threads. This is one call, which also releases what this process stored.
    /// [`MutexGuard::notify_all`] combines it with the release of the lock.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn notify_all(&self) -> Result<(), SynchronisationError> {
        self.session.release(&[self.step()]).map(drop)
    }

    /// The step that notifies.
    pub(super) fn step(&self) -> Operation {
        record::add(&self.object.key, NOTIFIED, 1)
    }

    /// Waits like [`Condvar::wait_for`], for callers that store the hold themselves. Without `duration`, the wait is
    /// limited by the session's `wait_max`, and reaching that limit is an error.
    pub fn wait_held(&self, held: HeldMutex, duration: Option<Duration>) -> Waited {
        let mut waited = self.wait_with(held, Vec::new(), duration);
        if duration.is_none() && matches!(waited.notified, Ok(false)) {
            waited.notified = Err(self.too_long());
        }
        waited
    }

    fn wait_within(&self, guard: &mut MutexGuard, duration: Option<Duration>) -> Result<bool, SynchronisationError> {
        let Some((held, pending)) = guard.take_held() else {
            return Err(SynchronisationError::Misuse(format!(
                "{} cannot be waited for: the lock is not held any more, because an earlier wait could not take it again",
                self.object.label
            )));
        };
        let waited = self.wait_with(held, pending, duration);
        guard.set_held(waited.held);
        waited.notified
    }

    fn wait_with(&self, held: HeldMutex, pending: Vec<Operation>, duration: Option<Duration>) -> Waited {
        let (session, object) = (Arc::clone(held.session()), held.object().clone());
        let timeout = session.timeout(duration);
        let read = Operation::Get { key: self.object.key.clone(), range: Some((NOTIFIED, 8)) };
        // This thread's own pending notifications come first, because it does not wait for them.
        let mut steps = pending;
        let at = steps.len();
        steps.push(read);
        let notified_before = match held.release_with(steps) {
            Ok(outcomes) => notified(&outcomes[at]),
            Err(error) => return Waited { held: None, notified: Err(error) },
        };
        let more = record::is_within(&self.object.key, NOTIFIED, (notified_before as i64 + 1, i64::MAX));
        match mutex::take(&session, &object, &[more], timeout) {
            Ok(Ok(held)) => Waited { held: Some(held), notified: Ok(true) },
            Ok(Err(_)) => self.take_again(&session, &object, notified_before),
            Err(error) => Waited { held: None, notified: Err(error) },
        }
    }

    /// Takes the lock again after the time is over, and checks whether there was a notification after all.
    fn take_again(&self, session: &Arc<Ends>, object: &Object, notified_before: u64) -> Waited {
        match mutex::take(session, object, &[], session.timeout(None)) {
            Ok(Ok(held)) => {
                let now = session.store().get_many(std::slice::from_ref(&self.object.key));
                let now = now.map_err(super::session::of_store);
                let notified = now.map(|records| {
                    let record = records.first().and_then(Option::as_deref).unwrap_or_default();
                    record::word(record, NOTIFIED) > notified_before
                });
                Waited { held: Some(held), notified }
            }
            Ok(Err(error)) | Err(error) => Waited { held: None, notified: Err(error) },
        }
    }

    fn too_long(&self) -> SynchronisationError {
        SynchronisationError::TooLong {
            what: self.object.label.clone(),
            milliseconds: self.session.timeout(None).as_millis() as u64,
            whom: "nobody notified it; does the thread that should still run?".to_owned(),
        }
    }
}

fn notified(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Value(Some(bytes)) => record::word(bytes, 0),
        _ => 0,
    }
}
