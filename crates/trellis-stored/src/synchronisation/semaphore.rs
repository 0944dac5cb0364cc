//! Counting semaphores: a number that posts raise and waits lower while it is above zero. Each is one call, the wait as
//! long as it takes.
//!
//! A permit belongs to nobody: what a process took and did not post before it crashed is not given back, as with POSIX
//! semaphores between processes, because who took one item and who posts another are often not the same. Where permits
//! are a kind of lock, take a [`super::Lock`].

use std::sync::Arc;
use std::time::Duration;

use trellis_store::{Change, Expect, Operation};

use super::error::SynchronisationError;
use super::member;
use super::object::{Object, Place};
use super::record::{self, Form};
use super::session::{Answer, Ends, Session};

const VALUE: u32 = 0;
/// The member that lowered it last.
const TAKEN_BY: u32 = 8;
/// The member that raised it last.
const POSTED_BY: u32 = 16;

impl Session {
    /// The semaphore at a place, by a name or an address; zero at first. A name costs one call the first time, an address
    /// none.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::Misuse`] for no possible place.
    pub fn semaphore<'a>(&self, place: impl Into<Place<'a>>) -> Result<Semaphore, SynchronisationError> {
        let object = self.inner.object(Form::Semaphore, place.into())?;
        Ok(Semaphore { session: Arc::clone(&self.inner), object })
    }

    /// The same, with a value to begin with if no process has used it before. One call more.
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
    /// Waits until the semaphore is above zero, and lowers it by one.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::TooLong`] says who lowered it last and who raised it. A post that comes later is not lost.
    pub fn wait(&self) -> Result<(), SynchronisationError> {
        let patience = self.session.patience(None);
        if self.lower(patience)? { Ok(()) } else { Err(self.too_long(patience)) }
    }

    /// Lowers the semaphore by one if it is above zero; whether it was.
    ///
    /// # Errors
    ///
    /// As the store's.
    pub fn try_wait(&self) -> Result<bool, SynchronisationError> {
        self.lower(Duration::ZERO)
    }

    /// As [`Semaphore::wait`], for `duration` at most; whether it was lowered.
    ///
    /// # Errors
    ///
    /// As the store's.
    pub fn wait_for(&self, duration: Duration) -> Result<bool, SynchronisationError> {
        self.lower(duration)
    }

    /// Raises the semaphore by `count`, with everything that this process stored.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::Misuse`] if it would pass 2^63 - 1.
    pub fn post(&self, count: u64) -> Result<(), SynchronisationError> {
        let count = self.signed(count)?;
        let steps = [
            record::add_within(&self.object.key, VALUE, count, (0, i64::MAX)),
            record::put(&self.object.key, POSTED_BY, &[self.session.me]),
        ];
        match self.session.release(&steps)? {
            Answer::Done(_) => Ok(()),
            Answer::Refused(refused) => {
                let value = record::word(refused.found.as_deref().unwrap_or_default(), VALUE);
                Err(self.too_large(&format!("it stands at {value}, and {count} more")))
            }
        }
    }

    /// Sets it, whoever waits: for a semaphore in memory that was used for something else before.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::Misuse`] for more than 2^63 - 1.
    pub fn set(&self, value: u64) -> Result<(), SynchronisationError> {
        let value = self.signed(value)?;
        self.session.release(&[record::put(&self.object.key, VALUE, &[value as u64, 0, 0])]).map(drop)
    }

    /// What it stands at; others may change it at any moment.
    ///
    /// # Errors
    ///
    /// As the store's.
    pub fn value(&self) -> Result<u64, SynchronisationError> {
        self.record().map(|record| record::word(&record, VALUE))
    }

    fn lower(&self, patience: Duration) -> Result<bool, SynchronisationError> {
        let steps = [
            record::add_within(&self.object.key, VALUE, -1, (0, i64::MAX)),
            record::put(&self.object.key, TAKEN_BY, &[self.session.me]),
        ];
        let deadline = (!patience.is_zero()).then(|| self.session.now() + patience);
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

    fn too_long(&self, patience: Duration) -> SynchronisationError {
        // This is already the end of a failure: what the store does not say is left out.
        let record = self.record().unwrap_or_default();
        let (taken, posted) = (record::word(&record, TAKEN_BY), record::word(&record, POSTED_BY));
        let cards = member::cards(self.session.store(), self.session.region(), &[taken, posted]).unwrap_or_default();
        let who = |number: u64| match cards.iter().find(|card| card.number == number) {
            Some(_) if number == self.session.me => "this process".to_owned(),
            Some(card) if number != 0 => card.describe(),
            _ => "nobody yet".to_owned(),
        };
        SynchronisationError::TooLong {
            what: self.object.label.clone(),
            milliseconds: patience.as_millis() as u64,
            whom: format!("last raised by {}, last lowered by {}", who(posted), who(taken)),
        }
    }
}
