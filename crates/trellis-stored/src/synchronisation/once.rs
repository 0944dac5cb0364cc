//! What is done once in a region, by one thread of one process, while others that come wait until it is done.
//!
//! It is a lock with a flag: who comes takes it, and finds the flag set or does the work. So a process that crashed at
//! the work is replaced like the holder of a lock, and the next does it. Two calls the first time in a process, none
//! after that. What it is about must be in the region: a process that ended does not undo it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::SynchronisationError;
use super::lock::{self, HeldLock};
use super::object::{Object, Place};
use super::record::{self, Form};
use super::session::{Ends, Session};

/// 1 when it is done; behind the words of a lock.
const DONE: u32 = 24;

impl Session {
    /// What is done once, by a name or an address. A name costs one call the first time, an address none.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::Misuse`] for no possible place.
    pub fn once<'a>(&self, place: impl Into<Place<'a>>) -> Result<Once, SynchronisationError> {
        let object = self.inner.object(Form::Once, place.into())?;
        Ok(Once { session: Arc::clone(&self.inner), object, is_done: Arc::default() })
    }
}

/// Something that is done once. Clones remember together that it is done.
#[derive(Clone)]
pub struct Once {
    session: Arc<Ends>,
    object: Object,
    is_done: Arc<AtomicBool>,
}

/// A turn to do it. Dropped, it was not done, and the next who comes does it.
pub struct Turn {
    once: Once,
    held: Option<HeldLock>,
}

impl Once {
    /// Does `work` if nobody has done it, and returns when it is done; whether it was done here. If `work` panics, the
    /// next who comes does it.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::TooLong`] says who does it and for how long.
    pub fn call(&self, work: impl FnOnce()) -> Result<bool, SynchronisationError> {
        let Some(turn) = self.begin()? else { return Ok(false) };
        work();
        turn.done()?;
        Ok(true)
    }

    /// A turn: do it, then say [`Turn::done`]. Without one it is done.
    ///
    /// # Errors
    ///
    /// As [`Once::call`].
    pub fn begin(&self) -> Result<Option<Turn>, SynchronisationError> {
        if self.is_done.load(Ordering::Acquire) {
            return Ok(None);
        }
        let patience = self.session.patience(None);
        let (held, done) = lock::take_and_read(&self.session, &self.object, &[], Some(DONE), patience)??;
        if done == 0 {
            return Ok(Some(Turn { once: self.clone(), held: Some(held) }));
        }
        held.release()?;
        self.is_done.store(true, Ordering::Release);
        Ok(None)
    }
}

impl Turn {
    /// It is done, with everything that this process stored.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::LeaseLost`] when another process was given the turn meanwhile.
    pub fn done(mut self) -> Result<(), SynchronisationError> {
        if let Some(held) = self.held.take() {
            held.release_with(vec![record::put(&self.once.object.key, DONE, &[1])])?;
            self.once.is_done.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// It could not be done: the next who comes, or waits, does it.
    ///
    /// # Errors
    ///
    /// As [`Turn::done`].
    pub fn failed(mut self) -> Result<(), SynchronisationError> {
        self.held.take().map_or(Ok(()), HeldLock::release)
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
