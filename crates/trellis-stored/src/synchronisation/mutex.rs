//! Locks: one thread of one process holds a mutex at a time. Taking a free lock is one call and releasing it another,
//! whichever process held it before.
//!
//! Each acquisition returns a *token* that is larger than every earlier one of the same lock. A release names the token
//! and is guarded by the member record, so nothing that a replaced process stored under a lock is ever written, not
//! even in part. Waiting threads are served in no promised order. Locks are not recursive.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use trellis_store::{Operation, Outcome, Refused};

use super::condvar::Condvar;
use super::error::SynchronisationError;
use super::object::{Object, Place};
use super::record::{self, Form};
use super::session::{Answer, Core, Ends, Hold, Session};
use super::watch::{Blocker, Contended, JUST_CHANGED, Obtained, Timely};

/// The member that holds the lock; 0 if none does.
const HOLDER: u32 = 0;
/// A number that identifies the hold among those of the member.
const NONCE: u32 = 8;
/// The number of times that the lock was taken.
const TOKEN: u32 = 16;

impl Session {
    /// The mutex at a place, by a name or an address. A name costs one call the first time, an address none.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::Misuse`] for an invalid place.
    pub fn mutex<'a>(&self, place: impl Into<Place<'a>>) -> Result<Mutex, SynchronisationError> {
        let object = self.inner.object(Form::Lock, place.into())?;
        Ok(Mutex { session: Arc::clone(&self.inner), object })
    }
}

/// A lock.
#[derive(Clone)]
pub struct Mutex {
    session: Arc<Ends>,
    object: Object,
}

impl Mutex {
    /// Takes the lock. Dropping the guard releases it.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::TooLong`] names the holder and for how long it has held the lock;
    /// [`SynchronisationError::Recursion`] means that the holder is this thread.
    pub fn lock(&self) -> Result<MutexGuard, SynchronisationError> {
        match self.obtain(None)? {
            Ok(held) => Ok(MutexGuard::of(held)),
            Err(too_late) => Err(too_late),
        }
    }

    /// Takes the lock if it is free, with one call. Threads that wait replace a crashed holder; those that try do not.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn try_lock(&self) -> Result<Option<MutexGuard>, SynchronisationError> {
        self.try_lock_for(Duration::ZERO)
    }

    /// Takes the lock if that is possible before `duration` has passed.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn try_lock_for(&self, duration: Duration) -> Result<Option<MutexGuard>, SynchronisationError> {
        Ok(self.obtain(Some(duration))?.ok().map(MutexGuard::of))
    }

    /// Waits like [`Mutex::lock`], for callers that store the hold themselves. Only [`HeldMutex::release`] releases the
    /// lock.
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`].
    pub fn acquire(&self) -> Result<HeldMutex, SynchronisationError> {
        self.obtain(None)?
    }

    /// Waits like [`Mutex::try_lock_for`], for callers that store the hold themselves.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock_for`].
    pub fn try_acquire_for(&self, duration: Duration) -> Result<Option<HeldMutex>, SynchronisationError> {
        Ok(self.obtain(Some(duration))?.ok())
    }

    /// The hold, or the error of a wait that ran out of time.
    pub(super) fn obtain(&self, duration: Option<Duration>) -> Timely<HeldMutex> {
        // A thread with its own timeout learns after that time that it waited in vain.
        if duration.is_none() && self.session.is_own(self.object.number) {
            return Err(SynchronisationError::Recursion(format!(
                "this thread holds {} already, and would wait for itself; locks are not recursive",
                self.object.label
            )));
        }
        let timeout = self.session.timeout(duration);
        take(&self.session, &self.object, &[], timeout)
    }
}

/// Takes a lock as soon as nothing in `before` is refused either.
pub(super) fn take(session: &Arc<Ends>, object: &Object, before: &[Operation], timeout: Duration) -> Timely<HeldMutex> {
    Ok(take_and_read(session, object, before, None, timeout)?.map(|(held, _)| held))
}

/// Like `take`, and also reads a word of the record in the same call.
pub(super) fn take_and_read(
    session: &Arc<Ends>,
    object: &Object,
    before: &[Operation],
    read: Option<u32>,
    timeout: Duration,
) -> Timely<(HeldMutex, u64)> {
    let taking = Taking { object, me: session.me, nonce: session.nonce(), before, read };
    let (token, word) = match session.obtain(&taking, timeout)? {
        Obtained::Taken(outcomes) => {
            let read = match outcomes.last() {
                Some(Outcome::Value(Some(bytes))) => record::word(bytes, 0),
                _ => 0,
            };
            (record::before(&outcomes, before.len() + 1) as u64 + 1, read)
        }
        Obtained::TakenBefore(found) => {
            (record::word(&found, TOKEN), read.map_or(0, |offset| record::word(&found, offset)))
        }
        Obtained::TooLate(blockers) => {
            return Ok(Err(SynchronisationError::TooLong {
                what: object.label.clone(),
                milliseconds: timeout.as_millis() as u64,
                whom: session.whom(object.number, &blockers, JUST_CHANGED),
            }));
        }
    };
    let (nonce, object, hold) = (taking.nonce, object.clone(), session.hold_lock(object.number));
    Ok(Ok((HeldMutex { session: Arc::clone(session), object, nonce, token, _hold: hold }, word)))
}

/// One attempt to take a lock.
struct Taking<'a> {
    object: &'a Object,
    me: u64,
    nonce: u64,
    before: &'a [Operation],
    read: Option<u32>,
}

impl Contended for Taking<'_> {
    fn number(&self) -> u64 {
        self.object.number
    }

    fn steps(&self) -> Vec<Operation> {
        let key = &self.object.key;
        let mut steps = self.before.to_vec();
        steps.push(record::swap(key, HOLDER, &[0], &[self.me, self.nonce]));
        steps.push(record::add(key, TOKEN, 1));
        steps.extend(self.read.map(|offset| Operation::Get { key: key.clone(), range: Some((offset, 8)) }));
        steps
    }

    fn blockers(&self, _: &Core, refused: &Refused) -> Result<Vec<Blocker>, SynchronisationError> {
        // The steps before the lock wait for something that no crashed process holds back.
        let is_lock = refused.step >= self.before.len();
        let record = refused.found.as_deref().filter(|_| is_lock).unwrap_or_default();
        let trace = [HOLDER, NONCE, TOKEN].map(|offset| record::word(record, offset));
        if trace[0] == 0 {
            return Ok(Vec::new());
        }
        let clear = vec![record::swap(&self.object.key, HOLDER, &trace, &[0, 0])];
        Ok(vec![Blocker { member: trace[0], trace: trace.to_vec(), clear, does: "has it" }])
    }

    fn can_tell(&self) -> bool {
        true
    }

    fn is_mine(&self, refused: &Refused) -> bool {
        let record = refused.found.as_deref().unwrap_or_default();
        refused.step == self.before.len()
            && record::word(record, HOLDER) == self.me
            && record::word(record, NONCE) == self.nonce
    }
}

/// A lock that is held until it is released. Dropping it without a release keeps the lock taken, but ends the
/// heartbeats for it.
#[must_use = "only `release` releases the lock"]
pub struct HeldMutex {
    session: Arc<Ends>,
    object: Object,
    nonce: u64,
    token: u64,
    _hold: Hold,
}

impl HeldMutex {
    /// The number of this acquisition, larger than that of every earlier one.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Releases the lock, together with everything that this process stored, with one call.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::LeaseLost`] if this process was replaced; then nothing that it stored was written.
    pub fn release(self) -> Result<(), SynchronisationError> {
        self.release_with(Vec::new()).map(drop)
    }

    /// Releases like [`HeldMutex::release`], and wakes the threads that wait for a condition in the same call.
    ///
    /// # Errors
    ///
    /// As [`HeldMutex::release`].
    pub fn release_and_notify_all(self, condvar: &Condvar) -> Result<(), SynchronisationError> {
        self.release_with(vec![condvar.step()]).map(drop)
    }

    /// Releases like [`HeldMutex::release`], with `more` steps in the same call. Returns their outcomes.
    pub(super) fn release_with(self, more: Vec<Operation>) -> Result<Vec<Outcome>, SynchronisationError> {
        let mut steps = more;
        steps.push(self.free());
        match self.session.release(&steps)? {
            Answer::Done(outcomes) => Ok(outcomes),
            Answer::Refused(_) => Err(self.is_gone()),
        }
    }

    pub(super) fn session(&self) -> &Arc<Ends> {
        &self.session
    }

    pub(super) fn object(&self) -> &Object {
        &self.object
    }

    /// The step that releases the lock.
    fn free(&self) -> Operation {
        record::swap(&self.object.key, HOLDER, &[self.session.me, self.nonce, self.token], &[0, 0])
    }

    fn is_gone(&self) -> SynchronisationError {
        SynchronisationError::Failed(format!(
            "{} is not held any more though this process was not replaced: its record was changed by something else; \
             look at the region with `trellis store stat`",
            self.object.label
        ))
    }
}

/// A held lock. Dropping the guard releases it.
#[must_use = "dropping it releases the lock"]
pub struct MutexGuard {
    /// `None` after a wait for a condition that could not take the lock again.
    held: Option<HeldMutex>,
    /// Steps that are done together with the release.
    pending: Vec<Operation>,
    /// As with `std::sync::MutexGuard`, the thread that took the lock must release it.
    not_send: PhantomData<*const ()>,
}

impl MutexGuard {
    fn of(held: HeldMutex) -> MutexGuard {
        MutexGuard { held: Some(held), pending: Vec::new(), not_send: PhantomData }
    }

    /// The number of this acquisition, larger than that of every earlier one; a system outside the region can use it to
    /// refuse late commands. 0 if a wait for a condition could not take the lock again.
    pub fn token(&self) -> u64 {
        self.held.as_ref().map_or(0, HeldMutex::token)
    }

    /// Releases the lock, and returns the error that dropping the guard cannot.
    ///
    /// # Errors
    ///
    /// As [`HeldMutex::release`].
    pub fn unlock(mut self) -> Result<(), SynchronisationError> {
        self.give_back()
    }

    /// Wakes the threads that wait for a condition when the lock is released, in the same call.
    pub fn notify_all(&mut self, condvar: &Condvar) {
        self.pending.push(condvar.step());
    }

    pub(super) fn take_held(&mut self) -> Option<(HeldMutex, Vec<Operation>)> {
        self.held.take().map(|held| (held, std::mem::take(&mut self.pending)))
    }

    pub(super) fn set_held(&mut self, held: Option<HeldMutex>) {
        self.held = held;
    }

    fn give_back(&mut self) -> Result<(), SynchronisationError> {
        match self.take_held() {
            Some((held, pending)) => held.release_with(pending).map(drop),
            None => Ok(()),
        }
    }
}

impl Drop for MutexGuard {
    fn drop(&mut self) {
        let Some(session) = self.held.as_ref().map(|held| Arc::clone(&held.session)) else { return };
        if let Err(error) = self.give_back() {
            session.fail(error);
        }
    }
}

const _: () = assert!(NONCE == HOLDER + 8 && TOKEN == NONCE + 8);
