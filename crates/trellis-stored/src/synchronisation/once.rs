//! Actions that are done once in a region, by one thread of one process, while others wait until they are done.
//!
//! It is a lock with a flag: a thread takes the lock, and either finds the flag set or does the work. A process that
//! crashes during the work is therefore replaced like the holder of a lock, and the next one does the work. This takes
//! two calls the first time in a process, and none after that. The result must be in the region: it is not undone when
//! a process ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::SynchronisationError;
use super::mutex::{self, HeldMutex};
use super::object::{Object, Place};
use super::record::{self, Form};
use super::session::{Ends, Session};

/// 1 when the work is done. The word follows those of a lock.
const DONE: u32 = 24;

impl Session {
    /// The one-time action at a place, by a name or an address. A name costs one call the first time, an address none.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::Misuse`] for an invalid place.
    pub fn once<'a>(&self, place: impl Into<Place<'a>>) -> Result<Once, SynchronisationError> {
        let object = self.inner.object(Form::Once, place.into())?;
        Ok(Once { session: Arc::clone(&self.inner), object, is_done: Arc::default() })
    }
}

/// A one-time action. Clones share the knowledge that it is done.
#[derive(Clone)]
pub struct Once {
    session: Arc<Ends>,
    object: Object,
    is_done: Arc<AtomicBool>,
}

/// A turn to do the work. If it is dropped, the work was not done, and the next thread does it.
#[must_use = "dropping it gives the turn up"]
pub struct Turn {
    once: Once,
    held: Option<HeldMutex>,
}

impl Once {
    /// Does `work` unless it was done before, and returns when it is done. Returns whether it was done here. If `work`
    /// panics, the next caller does it.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::TooLong`] names the member that does the work, and for how long.
    pub fn call_once(&self, work: impl FnOnce()) -> Result<bool, SynchronisationError> {
        let Some(turn) = self.begin()? else { return Ok(false) };
        work();
        turn.done()?;
        Ok(true)
    }

    /// Begins a turn: the caller does the work and then calls [`Turn::done`]. Returns `None` if the work is done.
    ///
    /// # Errors
    ///
    /// As [`Once::call_once`].
    pub fn begin(&self) -> Result<Option<Turn>, SynchronisationError> {
        if self.is_done.load(Ordering::Acquire) {
            return Ok(None);
        }
        let timeout = self.session.timeout(None);
        let (held, done) = mutex::take_and_read(&self.session, &self.object, &[], Some(DONE), timeout)??;
        if done == 0 {
            return Ok(Some(Turn { once: self.clone(), held: Some(held) }));
        }
        held.release()?;
        self.is_done.store(true, Ordering::Release);
        Ok(None)
    }
}

impl Turn {
    /// Marks the work as done, and releases everything that this process stored.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::LeaseLost`] if another process was given the turn meanwhile.
    pub fn done(mut self) -> Result<(), SynchronisationError> {
        if let Some(held) = self.held.take() {
            held.release_with(vec![record::put(&self.once.object.key, DONE, &[1])])?;
            self.once.is_done.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Gives the turn up: the next caller, or a waiting one, does the work.
    ///
    /// # Errors
    ///
    /// As [`Turn::done`].
    pub fn failed(mut self) -> Result<(), SynchronisationError> {
        self.held.take().map_or(Ok(()), HeldMutex::release)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        if let Err(error) = held.release() {
            self.once.session.fail(error);
        }
    }
}
