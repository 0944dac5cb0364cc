//! Read-write locks: one writer, or any number of readers. Each uncontended acquisition is one call, and each release
//! another.
//!
//! A reader raises a count and records that it was this process ([`super::slots`]). A writer that finds the lock in use
//! announces itself, after which no new reader comes before it. Writers thus take precedence over readers, and a writer
//! that waits needs one call more than for a lock. Crashed readers, writers and waiting writers are replaced.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use trellis_store::{Operation, Refused};

use super::error::SynchronisationError;
use super::object::{Object, Place};
use super::record::{self, Form};
use super::session::{Answer, Core, Ends, Hold, Session, locked, of_store};
use super::slots::{self, Counts, Note};
use super::watch::{Blocker, Contended, JUST_CHANGED, Obtained, Timely};

/// The member that writes; 0 if none does.
const WRITER: u32 = 0;
/// A number that identifies the hold among those of the member.
const NONCE: u32 = 8;
/// The number of times that the lock was taken for writing.
const TOKEN: u32 = 16;
/// The number of readers.
pub(super) const READERS: u32 = 24;
/// The number of writers that wait and have announced themselves.
pub(super) const WRITE_REQUESTS: u32 = 32;

impl Session {
    /// The read-write lock at a place, by a name or an address. A name costs one call the first time, an address none.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::Misuse`] for an invalid place.
    pub fn rwlock<'a>(&self, place: impl Into<Place<'a>>) -> Result<RwLock, SynchronisationError> {
        let object = self.inner.object(Form::ReadWriteLock, place.into())?;
        Ok(RwLock { session: Arc::clone(&self.inner), object })
    }
}

/// A lock that one writer holds alone, or readers hold together. It is not recursive: a thread that reads and requests
/// to read again may wait behind a writer that waits for it.
#[derive(Clone)]
pub struct RwLock {
    session: Arc<Ends>,
    object: Object,
}

/// The kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading, together with other readers.
    Read,
    /// Writing, alone.
    Write,
}

impl RwLock {
    /// Takes the lock for reading, together with other readers.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::TooLong`] names the members that write or wait to write, and for how long.
    pub fn read(&self) -> Result<RwLockReadGuard, SynchronisationError> {
        Ok(RwLockReadGuard(ScopedAccess::of(self.acquire(Access::Read)?)))
    }

    /// Takes the lock for writing, alone.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::TooLong`] names the members that hold it, and for how long.
    pub fn write(&self) -> Result<RwLockWriteGuard, SynchronisationError> {
        Ok(RwLockWriteGuard(ScopedAccess::of(self.acquire(Access::Write)?)))
    }

    /// Takes the lock for reading if no writer holds it or waits for it, with one call.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn try_read(&self) -> Result<Option<RwLockReadGuard>, SynchronisationError> {
        self.try_read_for(Duration::ZERO)
    }

    /// Takes the lock for writing if it is free, with one call.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn try_write(&self) -> Result<Option<RwLockWriteGuard>, SynchronisationError> {
        self.try_write_for(Duration::ZERO)
    }

    /// Takes the lock for reading if that is possible before `duration` has passed.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn try_read_for(&self, duration: Duration) -> Result<Option<RwLockReadGuard>, SynchronisationError> {
        Ok(self.try_acquire_for(Access::Read, duration)?.map(|held| RwLockReadGuard(ScopedAccess::of(held))))
    }

    /// Takes the lock for writing if that is possible before `duration` has passed.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn try_write_for(&self, duration: Duration) -> Result<Option<RwLockWriteGuard>, SynchronisationError> {
        Ok(self.try_acquire_for(Access::Write, duration)?.map(|held| RwLockWriteGuard(ScopedAccess::of(held))))
    }

    /// Waits like [`RwLock::read`] or [`RwLock::write`], for callers that store the hold themselves. Only
    /// [`HeldAccess::release`] releases the lock.
    ///
    /// # Errors
    ///
    /// As these.
    pub fn acquire(&self, access: Access) -> Result<HeldAccess, SynchronisationError> {
        self.obtain(access, None)?
    }

    /// Takes the lock like [`RwLock::acquire`], if that is possible before `duration` has passed.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    pub fn try_acquire_for(
        &self,
        access: Access,
        duration: Duration,
    ) -> Result<Option<HeldAccess>, SynchronisationError> {
        Ok(self.obtain(access, Some(duration))?.ok())
    }

    pub(super) fn obtain(&self, access: Access, duration: Option<Duration>) -> Timely<HeldAccess> {
        let timeout = self.session.timeout(duration);
        match access {
            Access::Read => self.obtain_read(timeout),
            Access::Write => self.obtain_write(timeout),
        }
    }

    fn obtain_read(&self, timeout: Duration) -> Timely<HeldAccess> {
        let (slot, note) = self.slot(Counts::Read)?;
        let reading = Reading { lock: self, slot, note };
        match self.session.obtain(&reading, timeout) {
            Ok(Obtained::Taken(_) | Obtained::TakenBefore(_)) => Ok(Ok(self.held(How::Reads { slot, note }))),
            Ok(Obtained::TooLate(blockers)) => {
                locked(&self.session.slots).give(slot);
                Ok(Err(self.too_late(&blockers, timeout)))
            }
            Err(error) => {
                self.withdraw(slot, note);
                Err(error)
            }
        }
    }

    /// Takes the lock at once, or after an announcement that keeps new readers out.
    fn obtain_write(&self, timeout: Duration) -> Timely<HeldAccess> {
        let at_once = Writing { lock: self, nonce: self.session.nonce(), request: None };
        if let Some(held) = self.written(&at_once, self.session.obtain(&at_once, Duration::ZERO)?) {
            return Ok(Ok(held));
        }
        if timeout.is_zero() {
            return Ok(Err(self.too_late(&[], timeout)));
        }
        let (slot, note) = self.slot(Counts::WriteRequest)?;
        let (region, me) = (self.session.region(), self.session.me);
        let announce = [record::add(&self.object.key, WRITE_REQUESTS, 1), note.write(region, me, slot)];
        let _hold = self.session.hold();
        let later = Writing { request: Some((slot, note)), ..at_once };
        let announced = self.session.apply(&announce);
        match announced.and_then(|_| self.session.obtain(&later, timeout)) {
            Ok(Obtained::TooLate(blockers)) => {
                self.withdraw(slot, note);
                Ok(Err(self.too_late(&blockers, timeout)))
            }
            Ok(taken) => {
                locked(&self.session.slots).give(slot);
                self.written(&later, taken).map(Ok).ok_or_else(|| self.is_gone())
            }
            Err(error) => {
                self.withdraw(slot, note);
                Err(error)
            }
        }
    }

    /// Withdraws a note and its count, if they exist: one that remained would exclude others as long as this process
    /// lives. If even this fails, so does everything else.
    fn withdraw(&self, slot: u32, note: Note) {
        let (region, me) = (self.session.region(), self.session.me);
        if self.session.apply(&[note.erase(region, me, slot), note.lower(region)]).is_ok() {
            locked(&self.session.slots).give(slot);
        }
    }

    /// The hold of a writer that got the lock.
    fn written(&self, writing: &Writing<'_>, obtained: Obtained) -> Option<HeldAccess> {
        let token = match obtained {
            Obtained::Taken(outcomes) => record::before(&outcomes, 2) as u64 + 1,
            Obtained::TakenBefore(record) => record::word(&record, TOKEN),
            Obtained::TooLate(_) => return None,
        };
        Some(self.held(How::Writes { nonce: writing.nonce, token }))
    }

    fn held(&self, how: How) -> HeldAccess {
        HeldAccess { lock: self.clone(), how, _hold: self.session.hold() }
    }

    fn slot(&self, counts: Counts) -> Result<(u32, Note), SynchronisationError> {
        let slot = locked(&self.session.slots).take()?;
        Ok((slot, Note { object: self.object.number, nonce: self.session.nonce(), counts }))
    }

    /// The writer, if it was the writer that refused.
    fn writer(&self, refused: &Refused) -> Vec<Blocker> {
        let record = refused.found.as_deref().unwrap_or_default();
        let trace = [WRITER, NONCE, TOKEN].map(|offset| record::word(record, offset));
        if trace[0] == 0 {
            return Vec::new();
        }
        let clear = vec![record::swap(&self.object.key, WRITER, &trace, &[0, 0])];
        vec![Blocker { member: trace[0], trace: trace.to_vec(), clear, does: "writes" }]
    }

    /// The readers or the waiting writers; all holds of one member together, because it is replaced as a whole.
    fn noted(&self, core: &Core, counts: Counts) -> Result<Vec<Blocker>, SynchronisationError> {
        let does = match counts {
            Counts::Read => "reads",
            Counts::WriteRequest => "waits to write",
        };
        let notes = slots::find(core.store(), core.region(), self.object.number, counts).map_err(of_store)?;
        let mut blockers: Vec<Blocker> = Vec::new();
        for (member, slot, note) in notes {
            if blockers.last().is_none_or(|last| last.member != member) {
                blockers.push(Blocker { member, trace: Vec::new(), clear: Vec::new(), does });
            }
            if let Some(last) = blockers.last_mut() {
                last.trace.push(note.nonce);
                last.clear.push(note.erase(core.region(), member, slot));
                last.clear.push(note.lower(core.region()));
            }
        }
        Ok(blockers)
    }

    fn too_late(&self, blockers: &[Blocker], timeout: Duration) -> SynchronisationError {
        SynchronisationError::TooLong {
            what: self.object.label.clone(),
            milliseconds: timeout.as_millis() as u64,
            whom: self.session.whom(self.object.number, blockers, JUST_CHANGED),
        }
    }

    fn is_gone(&self) -> SynchronisationError {
        SynchronisationError::Failed(format!(
            "{} is not held any more though this process was not replaced: its record was changed by something else; \
             look at the region with `trellis store stat`",
            self.object.label
        ))
    }
}

struct Reading<'a> {
    lock: &'a RwLock,
    slot: u32,
    note: Note,
}

impl Contended for Reading<'_> {
    fn number(&self) -> u64 {
        self.lock.object.number
    }

    fn steps(&self) -> Vec<Operation> {
        let (key, session) = (&self.lock.object.key, &self.lock.session);
        vec![
            record::is_within(key, WRITER, (0, 0)),
            record::is_within(key, WRITE_REQUESTS, (0, 0)),
            record::add(key, READERS, 1),
            self.note.write(session.region(), session.me, self.slot),
        ]
    }

    fn blockers(&self, core: &Core, refused: &Refused) -> Result<Vec<Blocker>, SynchronisationError> {
        if refused.step == 0 { Ok(self.lock.writer(refused)) } else { self.lock.noted(core, Counts::WriteRequest) }
    }

    fn can_tell(&self) -> bool {
        // The record does not say who reads.
        false
    }

    fn is_mine(&self, _: &Refused) -> bool {
        false
    }
}

struct Writing<'a> {
    lock: &'a RwLock,
    nonce: u64,
    /// The writer's announcement, with its slot.
    request: Option<(u32, Note)>,
}

impl Contended for Writing<'_> {
    fn number(&self) -> u64 {
        self.lock.object.number
    }

    fn steps(&self) -> Vec<Operation> {
        let (key, session) = (&self.lock.object.key, &self.lock.session);
        let mut steps = vec![
            record::swap(key, WRITER, &[0], &[session.me, self.nonce]),
            record::is_within(key, READERS, (0, 0)),
            record::add(key, TOKEN, 1),
        ];
        if let Some((slot, note)) = self.request {
            steps.push(record::add(key, WRITE_REQUESTS, -1));
            steps.push(note.erase(session.region(), session.me, slot));
        }
        steps
    }

    fn blockers(&self, core: &Core, refused: &Refused) -> Result<Vec<Blocker>, SynchronisationError> {
        if refused.step == 0 { Ok(self.lock.writer(refused)) } else { self.lock.noted(core, Counts::Read) }
    }

    fn can_tell(&self) -> bool {
        true
    }

    fn is_mine(&self, refused: &Refused) -> bool {
        let record = refused.found.as_deref().unwrap_or_default();
        let is_writer = record::word(record, WRITER) == self.lock.session.me;
        refused.step == 0 && is_writer && record::word(record, NONCE) == self.nonce
    }
}

enum How {
    Reads { slot: u32, note: Note },
    Writes { nonce: u64, token: u64 },
}

/// A read-write lock that is held until it is released. Dropping it without a release keeps the lock taken, but ends
/// the heartbeats for it.
#[must_use = "only `release` releases the lock"]
pub struct HeldAccess {
    lock: RwLock,
    how: How,
    _hold: Hold,
}

impl HeldAccess {
    /// The kind of access.
    pub fn access(&self) -> Access {
        match self.how {
            How::Reads { .. } => Access::Read,
            How::Writes { .. } => Access::Write,
        }
    }

    /// For a writer, the number of this acquisition, larger than that of every earlier one; 0 for a reader.
    pub fn token(&self) -> u64 {
        match self.how {
            How::Reads { .. } => 0,
            How::Writes { token, .. } => token,
        }
    }

    /// Releases the lock, together with everything that this process stored, with one call.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::LeaseLost`] if this process was replaced; then nothing that it stored was written.
    pub fn release(self) -> Result<(), SynchronisationError> {
        let (session, key) = (&self.lock.session, &self.lock.object.key);
        let steps = match self.how {
            How::Reads { slot, note } => {
                vec![note.erase(session.region(), session.me, slot), note.lower(session.region())]
            }
            How::Writes { nonce, token } => vec![record::swap(key, WRITER, &[session.me, nonce, token], &[0, 0])],
        };
        match session.release(&steps)? {
            Answer::Refused(_) => Err(self.lock.is_gone()),
            Answer::Done(_) => {
                if let How::Reads { slot, .. } = self.how {
                    locked(&session.slots).give(slot);
                }
                Ok(())
            }
        }
    }
}

/// A read-write lock that is held for reading. Dropping the guard releases it.
#[must_use = "dropping it releases the lock"]
pub struct RwLockReadGuard(ScopedAccess);

/// A read-write lock that is held for writing. Dropping the guard releases it.
#[must_use = "dropping it releases the lock"]
pub struct RwLockWriteGuard(ScopedAccess);

impl RwLockReadGuard {
    /// Releases the lock, and returns the error that dropping the guard cannot.
    ///
    /// # Errors
    ///
    /// As [`HeldAccess::release`].
    pub fn unlock(mut self) -> Result<(), SynchronisationError> {
        self.0.give_back()
    }
}

impl RwLockWriteGuard {
    /// The number of this acquisition, larger than that of every earlier one.
    pub fn token(&self) -> u64 {
        self.0.held.as_ref().map_or(0, HeldAccess::token)
    }

    /// Releases the lock, and returns the error that dropping the guard cannot.
    ///
    /// # Errors
    ///
    /// As [`HeldAccess::release`].
    pub fn unlock(mut self) -> Result<(), SynchronisationError> {
        self.0.give_back()
    }
}

/// A hold until it is dropped; as in the standard library, by the thread that took it.
struct ScopedAccess {
    held: Option<HeldAccess>,
    not_send: PhantomData<*const ()>,
}

impl ScopedAccess {
    fn of(held: HeldAccess) -> ScopedAccess {
        ScopedAccess { held: Some(held), not_send: PhantomData }
    }

    fn give_back(&mut self) -> Result<(), SynchronisationError> {
        self.held.take().map_or(Ok(()), HeldAccess::release)
    }
}

impl Drop for ScopedAccess {
    fn drop(&mut self) {
        let Some(session) = self.held.as_ref().map(|held| Arc::clone(&held.lock.session)) else { return };
        if let Err(error) = self.give_back() {
            session.fail(error);
        }
    }
}

const _: () = assert!(NONCE == WRITER + 8 && TOKEN == NONCE + 8);
