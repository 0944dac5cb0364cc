//! Counting semaphores: a release adds permits, and an acquisition takes one as soon as there is one. Each operation is
//! one call, however long the wait takes.
//!
//! A permit has no owner: what a process acquired and did not release before it crashed is not returned, as with POSIX
//! semaphores between processes, because the process that takes one item is often not the one that adds another. Where
//! permits serve as a kind of lock, use a [`super::Mutex`].

use std::sync::Arc;
use std::time::Duration;

use trellis_store::{Change, Expect, Operation};

use super::error::SynchronisationError;
use super::member;
use super::object::{Object, Place};
use super::record::{self, Form};
use super::session::{Answer, Ends, Session};

const VALUE: u32 = 0;
/// The member that acquired last.
const ACQUIRED_BY: u32 = 8;
/// The member that released last.
const RELEASED_BY: u32 = 16;

impl Session {
    /// The semaphore at a place, by a name or an address, initially zero. A name costs one call the first time, an
    /// address none.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::Misuse`] for an invalid place.
    pub fn semaphore<'a>(&self, place: impl Into<Place<'a>>) -> Result<Semaphore, SynchronisationError> {
        let object = self.inner.object(Form::Semaphore, place.into())?;
        Ok(Semaphore { session: Arc::clone(&self.inner), object })
    }

    /// The semaphore as of [`Session::semaphore`], with an initial value if no process has used it before. This costs
    /// one call more.
    ///
    /// # Errors
    ///
    /// As [`Session::semaphore`], and for more than 2^63 - 1.
    pub fn semaphore_from<'a>(
        &self,
        place: impl Into<Place<'a>>,
        value: u64,
    ) -> Result<Semaphore, SynchronisationError> {
        let semaphore = self.semaphore(place)?;
        let value = semaphore.signed(value)?;
        let step = Operation::CompareAndSwap {
            key: semaphore.object.key.clone(),
            expect: Expect::Absent,
            change: Change::Put(record::words(&[value as u64])),
        };
        semaphore.session.apply(&[step])?;
        Ok(semaphore)
    }
}

/// A semaphore.
#[derive(Clone)]
pub struct Semaphore {
    session: Arc<Ends>,
    object: Object,
}

impl Semaphore {
    /// Waits for a permit and takes it.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::TooLong`] names who acquired last and who released last. A later release is not lost.
    pub fn acquire(&self) -> Result<(), SynchronisationError> {
        let timeout = self.session.timeout(None);
        if self.lower(timeout)? { Ok(()) } else { Err(self.too_long(timeout)) }
    }

    /// Takes a permit if there is one. Returns whether there was.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn try_acquire(&self) -> Result<bool, SynchronisationError> {
        self.lower(Duration::ZERO)
    }

    /// Waits like [`Semaphore::acquire`], for `duration` at most. Returns whether a permit was taken.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn try_acquire_for(&self, duration: Duration) -> Result<bool, SynchronisationError> {
        self.lower(duration)
    }

    /// Adds `count` permits, and releases everything that this process stored.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::Misuse`] if the number of permits would exceed 2^63 - 1.
    pub fn release(&self, count: u64) -> Result<(), SynchronisationError> {
        let count = self.signed(count)?;
        let steps = [
            record::add_within(&self.object.key, VALUE, count, (0, i64::MAX)),
            record::put(&self.object.key, RELEASED_BY, &[self.session.me]),
        ];
        match self.session.release(&steps)? {
            Answer::Done(_) => Ok(()),
            Answer::Refused(refused) => {
                let value = record::word(refused.found.as_deref().unwrap_or_default(), VALUE);
                Err(self.too_large(&format!("it stands at {value}, and {count} more")))
            }
        }
    }

    /// Sets the value regardless of waiting threads: for a semaphore in memory that was used for something else before.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::Misuse`] for more than 2^63 - 1.
    pub fn set(&self, value: u64) -> Result<(), SynchronisationError> {
        let value = self.signed(value)?;
        self.session.release(&[record::put(&self.object.key, VALUE, &[value as u64, 0, 0])]).map(drop)
    }

    /// The current value, which others may change at any moment.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn value(&self) -> Result<u64, SynchronisationError> {
        self.record().map(|record| record::word(&record, VALUE))
    }

    fn lower(&self, timeout: Duration) -> Result<bool, SynchronisationError> {
        let steps = [
            record::add_within(&self.object.key, VALUE, -1, (0, i64::MAX)),
            record::put(&self.object.key, ACQUIRED_BY, &[self.session.me]),
        ];
        let deadline = (!timeout.is_zero()).then(|| self.session.now() + timeout);
        Ok(matches!(self.session.acquire(&steps, deadline)?, Answer::Done(_)))
    }

    fn record(&self) -> Result<Vec<u8>, SynchronisationError> {
        let records = self.session.store().get_many(std::slice::from_ref(&self.object.key));
        let record = records.map_err(super::session::of_store)?.pop();
        Ok(record.flatten().unwrap_or_default())
    }

    fn signed(&self, value: u64) -> Result<i64, SynchronisationError> {
        i64::try_from(value).map_err(|_| self.too_large(&value.to_string()))
    }

    fn too_large(&self, what: &str) -> SynchronisationError {
        let most = i64::MAX;
        SynchronisationError::Misuse(format!("{}: {what} is more than {most}, the most it can be", self.object.label))
    }

    fn too_long(&self, timeout: Duration) -> SynchronisationError {
        // An error is being reported already, so what the store does not answer is left out.
        let record = self.record().unwrap_or_default();
        let (acquired, released) = (record::word(&record, ACQUIRED_BY), record::word(&record, RELEASED_BY));
        let records =
            member::records(self.session.store(), self.session.region(), &[acquired, released]).unwrap_or_default();
        let who = |number: u64| match records.iter().find(|record| record.number == number) {
            Some(_) if number == self.session.me => "this process".to_owned(),
            Some(record) if number != 0 => record.describe(),
            _ => "nobody yet".to_owned(),
        };
        SynchronisationError::TooLong {
            what: self.object.label.clone(),
            milliseconds: timeout.as_millis() as u64,
            whom: format!("last released by {}, last acquired by {}", who(released), who(acquired)),
        }
    }
}
