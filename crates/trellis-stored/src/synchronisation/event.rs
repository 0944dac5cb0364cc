//! Event flags: waiting threads continue when the flag is set, and a wait returns at once while it is set. Each
//! operation is one call of the store.

use std::sync::Arc;
use std::time::Duration;

use super::error::SynchronisationError;
use super::object::{Object, Place};
use super::record::{self, Form};
use super::session::{Answer, Ends, Session};

/// 1 while the flag is set.
const SET: u32 = 0;

impl Session {
    /// The event at a place, by a name or an address; initially not set. A name costs one call the first time, an
    /// address none.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::Misuse`] for an invalid place.
    pub fn event<'a>(&self, place: impl Into<Place<'a>>) -> Result<Event, SynchronisationError> {
        let object = self.inner.object(Form::Event, place.into())?;
        Ok(Event { session: Arc::clone(&self.inner), object })
    }
}

/// An event flag.
#[derive(Clone)]
pub struct Event {
    session: Arc<Ends>,
    object: Object,
}

impl Event {
    /// Sets the flag, and releases everything that this process stored.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn set(&self) -> Result<(), SynchronisationError> {
        self.session.release(&[record::put(&self.object.key, SET, &[1])]).map(drop)
    }

    /// Clears the flag.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn clear(&self) -> Result<(), SynchronisationError> {
        self.session.apply(&[record::put(&self.object.key, SET, &[0])]).map(drop)
    }

    /// Waits until the flag is set.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::TooLong`] after the session's `wait_max`.
    pub fn wait(&self) -> Result<(), SynchronisationError> {
        let timeout = self.session.timeout(None);
        if self.wait_within(timeout)? {
            return Ok(());
        }
        Err(SynchronisationError::TooLong {
            what: self.object.label.clone(),
            milliseconds: timeout.as_millis() as u64,
            whom: "nobody has set it; does the thread that should still run?".to_owned(),
        })
    }

    /// Waits like [`Event::wait`], for `duration` at most. Returns whether the flag was set.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn wait_for(&self, duration: Duration) -> Result<bool, SynchronisationError> {
        self.wait_within(duration)
    }

    /// Whether the flag is set. If it is, what was stored before it was set is visible.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn is_set(&self) -> Result<bool, SynchronisationError> {
        self.wait_within(Duration::ZERO)
    }

    fn wait_within(&self, timeout: Duration) -> Result<bool, SynchronisationError> {
        let deadline = (!timeout.is_zero()).then(|| self.session.now() + timeout);
        let steps = [record::is_within(&self.object.key, SET, (1, 1))];
        Ok(matches!(self.session.acquire(&steps, deadline)?, Answer::Done(_)))
    }
}
