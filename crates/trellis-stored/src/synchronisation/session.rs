//! A process that uses the objects of one region: its calls, its heartbeats, and its state.
//!
//! Promises: at most one thread, which gives a heartbeat every third of the lease while something is held. After the
//! process was replaced, or a guard could not release, every later call reports it without a call of the store. It must
//! never hold a lock of its own during a call of the store.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trellis_base::{Deadline, Limit};
use trellis_store::{Applied, Guard, Operation, Outcome, Refused, Store, StoreError};

use super::barrier::Known;
use super::clock::{Clock, SystemClock};
use super::error::SynchronisationError;
use super::member::{self, MemberRecord};
use super::record::Form;
use super::slots::Slots;
use super::watch::Watch;
use crate::coherence::Shared;
use crate::error::StoredError;
use trellis_cache::this_thread;

/// The limit of waits that have none of their own.
pub(crate) const WAIT: Deadline = Deadline {
    who: "a thread with synchronisation in a store",
    waits_for: "the processes that hold or signal the object",
    limit: Limit::Setting("TRELLIS_STORE_WAIT_SECONDS_MAX", Duration::from_secs(3_600)),
    then: "an error that names the object and who has it",
    tested: "crates/trellis-c/tests/stored_synchronisation.rs every_function_answers_as_the_header_says",
};

/// No wait is longer, whatever its limit.
pub const WAIT_MAX: Duration = Duration::from_secs(30 * 24 * 3_600);

/// The options of a session.
#[derive(Clone)]
pub struct Options {
    /// The limit of waits that have none of their own.
    pub wait_max: Duration,
    /// Whether a thread gives the heartbeats; otherwise the creator of the session calls [`Session::heartbeat`].
    pub has_heartbeat_thread: bool,
    /// Whether no other process can use the region; member records are not needed then.
    pub is_alone: bool,
    /// The clock of waits and leases.
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Options {
        let clock = Arc::new(SystemClock);
        Options { wait_max: WAIT.time(), has_heartbeat_thread: true, is_alone: false, clock }
    }
}

/// The objects of a region, for one process. Clones share the session.
#[derive(Clone)]
pub struct Session {
    pub(super) inner: Arc<Ends>,
}

/// What a session and all its objects share; dropping the last one ends the thread.
pub(super) struct Ends {
    core: Arc<Core>,
    thread: Mutex<Option<JoinHandle<()>>>,
    has_thread: bool,
}

/// The part that the thread needs too.
pub(super) struct Core {
    shared: Arc<dyn Shared>,
    clock: Arc<dyn Clock>,
    /// This process's member number.
    pub(super) me: u64,
    /// How long it may give no heartbeat.
    pub(super) lease: Duration,
    /// The guard that it was not replaced; `None` if it cannot be.
    guard: Option<Guard>,
    wait_max: Duration,
    nonces: AtomicU64,
    failure: Mutex<Option<SynchronisationError>>,
    state: Mutex<HoldState>,
    changed: Condvar,
    /// What was observed of blocking members, by the number of the object.
    pub(super) watched: Mutex<HashMap<u64, Watch>>,
    pub(super) slots: Mutex<Slots>,
    /// The numbers of names.
    pub(super) names: Mutex<HashMap<(Form, String), u64>>,
    pub(super) barriers: Mutex<HashMap<u64, Known>>,
}

#[derive(Default)]
struct HoldState {
    holds: usize,
    /// Locks that threads of this process hold, and the thread that took each.
    owners: Vec<(u64, u64)>,
    /// Whether something was taken since the thread last checked.
    was_used: bool,
    /// Whether the thread sleeps until something is taken. It does so only after a whole heartbeat interval without a
    /// hold, so that taking a lock does not wake it each time.
    is_parked: bool,
    is_over: bool,
}

/// The answer to a call that was made.
pub(super) enum Answer {
    Done(Vec<Outcome>),
    Refused(Refused),
}

/// Why a call could not be made or was not answered.
pub(super) enum Trouble {
    /// The connection ended during the call, which may have taken effect.
    Unknown(SynchronisationError),
    Known(SynchronisationError),
}

impl From<Trouble> for SynchronisationError {
    fn from(trouble: Trouble) -> SynchronisationError {
        match trouble {
            Trouble::Unknown(error) | Trouble::Known(error) => error,
        }
    }
}

impl Session {
    /// The objects of the region that `shared` is, for the member that it is. One call of the store, because the member's
    /// own record says how long its lease is; none where it is alone.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::Memory`] as the store's; [`SynchronisationError::LeaseLost`] for no living member.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use trellis_stored::coherence::log::{Coherence, Identity, NoCopies};
    /// use trellis_stored::synchronisation::{Options, Session, member};
    ///
    /// let store = trellis_store::open("embedded:")?;
    /// let (region, lease) = (1, member::LEASE.time());
    /// let member = member::join(&*store, region, lease)?;
    /// let who = Identity { name: "shop".to_owned(), region, member, lease, is_private: false };
    /// let shared = Coherence::new(store, who, Arc::new(NoCopies), 0);
    /// let session = Session::new(Arc::new(shared), Options::default())?;
    ///
    /// let jobs = session.mutex("jobs")?;
    /// let guard = jobs.lock()?;
    /// assert!(jobs.try_lock()?.is_none());
    /// guard.unlock()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(shared: Arc<dyn Shared>, options: Options) -> Result<Session, SynchronisationError> {
        let me = shared.member();
        let (store, region) = (shared.store(), shared.region());
        let lease = if options.is_alone { member::LEASE.time() } else { lease_of(store, region, me)? };
        let core = Core {
            me,
            lease,
            guard: (!options.is_alone).then(|| member::guard(region, me)),
            wait_max: options.wait_max,
            clock: options.clock,
            nonces: AtomicU64::new(1),
            failure: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            watched: Mutex::default(),
            slots: Mutex::default(),
            names: Mutex::default(),
            barriers: Mutex::default(),
            shared,
        };
        let has_thread = options.has_heartbeat_thread && !options.is_alone;
        let ends = Ends { core: Arc::new(core), thread: Mutex::default(), has_thread };
        Ok(Session { inner: Arc::new(ends) })
    }

    /// Gives a heartbeat if something is held; for sessions without a thread, to be called every third of the lease or
    /// more often. Returns whether it gave one.
    ///
    /// # Errors
    ///
    /// [`SynchronisationError::LeaseLost`] if this process was replaced.
    pub fn heartbeat(&self) -> Result<bool, SynchronisationError> {
        self.inner.core.heartbeat()
    }

    /// How long this process may give no heartbeat while it holds something.
    pub fn lease(&self) -> Duration {
        self.inner.core.lease
    }
}

impl std::ops::Deref for Ends {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Ends {
    /// Records that something is held, until the result is dropped.
    pub(super) fn hold(self: &Arc<Self>) -> Hold {
        self.start_thread();
        let mut state = locked(&self.state);
        state.holds += 1;
        state.was_used = true;
        if std::mem::take(&mut state.is_parked) {
            self.changed.notify_all();
        }
        drop(state);
        Hold { session: Arc::clone(self), owner: None }
    }

    /// Records that this thread holds a lock from now on.
    pub(super) fn hold_lock(self: &Arc<Self>, lock: u64) -> Hold {
        let owner = (lock, this_thread());
        let mut hold = self.hold();
        locked(&self.state).owners.push(owner);
        hold.owner = Some(owner);
        hold
    }

    /// Whether this thread holds the lock, and would wait for itself.
    pub(super) fn is_own(&self, lock: u64) -> bool {
        locked(&self.state).owners.contains(&(lock, this_thread()))
    }

    fn start_thread(&self) {
        if !self.has_thread {
            return;
        }
        let mut thread = locked(&self.thread);
        if thread.is_none() {
            let core = Arc::clone(&self.core);
            let started =
                std::thread::Builder::new().name("trellis-heartbeat".to_owned()).spawn(move || core.give_heartbeats());
            // Without a thread there are no heartbeats, and a process that waits long replaces this one: slow, but not
            // wrong.
            *thread = started.ok();
        }
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        locked(&self.state).is_over = true;
        self.changed.notify_all();
        if let Some(thread) = locked(&self.thread).take() {
            // If it panicked, there is nothing more to report than the thread has reported itself.
            // Ends with its heartbeat, which has the deadline of the store.
            let _ = thread.join();
        }
    }
}

/// A record that something is held.
pub(super) struct Hold {
    session: Arc<Ends>,
    /// The lock, and the thread that took it.
    owner: Option<(u64, u64)>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = locked(&self.session.state);
        state.holds -= 1;
        if let Some(place) = state.owners.iter().rposition(|owner| Some(*owner) == self.owner) {
            state.owners.swap_remove(place);
        }
    }
}

impl Core {
    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(super) fn store(&self) -> &dyn Store {
        self.shared.store()
    }

    pub(super) fn region(&self) -> u32 {
        self.shared.region()
    }

    /// The limit of a wait: the given time, or the configured one.
    pub(super) fn timeout(&self, given: Option<Duration>) -> Duration {
        given.unwrap_or(self.wait_max).min(WAIT_MAX)
    }

    /// A number that no hold of this process had before.
    pub(super) fn nonce(&self) -> u64 {
        self.nonces.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes `steps` as an acquire: with a deadline, as soon as nothing refuses them, otherwise at once or not at all.
    pub(super) fn acquire(&self, steps: &[Operation], deadline: Option<Instant>) -> Result<Answer, Trouble> {
        self.check().map_err(Trouble::Known)?;
        self.answer(self.shared.acquire(steps, self.guard.as_ref(), deadline))
    }

    /// Makes `steps` as a release.
    pub(super) fn release(&self, steps: &[Operation]) -> Result<Answer, SynchronisationError> {
        self.check()?;
        Ok(self.answer(self.shared.release(steps, None))?)
    }

    /// Makes `steps` as a release and an acquire.
    pub(super) fn exchange(&self, steps: &[Operation]) -> Result<Answer, SynchronisationError> {
        self.check()?;
        Ok(self.answer(self.shared.exchange(steps, None))?)
    }

    /// Makes `steps` without releasing or acquiring.
    pub(super) fn apply(&self, steps: &[Operation]) -> Result<Answer, SynchronisationError> {
        self.check()?;
        Ok(self.answer(self.store().apply(steps, self.guard.as_ref()).map_err(StoredError::from))?)
    }

    /// Sets the error that every later call returns, unless one is set already.
    pub(super) fn fail(&self, error: SynchronisationError) {
        locked(&self.failure).get_or_insert(error);
    }

    /// The permanent error, if there is one.
    pub(super) fn check(&self) -> Result<(), SynchronisationError> {
        locked(&self.failure).clone().map_or(Ok(()), Err)
    }

    fn answer(&self, answer: Result<Applied, StoredError>) -> Result<Answer, Trouble> {
        match answer {
            Ok(Applied::Fenced { found }) => Err(Trouble::Known(self.lose(found.as_deref()))),
            Err(StoredError::Fenced { .. }) => {
                let record = self.store().get_many(&[member::key(self.region(), self.me)]);
                let record = record.ok().and_then(|mut records| records.pop()).flatten();
                Err(Trouble::Known(self.lose(record.as_deref())))
            }
            Err(StoredError::Store(error @ StoreError::OutcomeUnknown { .. })) => {
                Err(Trouble::Unknown(of_store(error)))
            }
            Err(error) => Err(Trouble::Known(SynchronisationError::Memory(error.to_string()))),
            Ok(Applied::Done(outcomes)) => Ok(Answer::Done(outcomes)),
            Ok(Applied::Refused(refused, _)) => Ok(Answer::Refused(refused)),
        }
    }

    /// Records that this process was replaced: every later call reports it.
    fn lose(&self, record: Option<&[u8]>) -> SynchronisationError {
        let record = MemberRecord::read(self.me, record);
        let by = member::records(self.store(), self.region(), &[record.replaced_by]).unwrap_or_default();
        let error = lost(&record, by.first());
        self.fail(error.clone());
        error
    }

    fn heartbeat(&self) -> Result<bool, SynchronisationError> {
        self.check()?;
        if locked(&self.state).holds == 0 || self.guard.is_none() {
            return Ok(false);
        }
        match member::heartbeat(self.store(), self.region(), self.me) {
            Ok(true) => Ok(true),
            Ok(false) => {
                let record = self.store().get_many(&[member::key(self.region(), self.me)]).map_err(of_store)?;
                Err(self.lose(record.first().and_then(Option::as_deref)))
            }
            Err(error) => Err(of_store(error)),
        }
    }

    /// Gives heartbeats until the session ends.
    fn give_heartbeats(&self) {
        let mut state = locked(&self.state);
        loop {
            if state.holds == 0 && !std::mem::take(&mut state.was_used) {
                state.is_parked = true;
            }
            while state.is_parked && !state.is_over {
                // Ends when the session is used or ends.
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let heartbeat_at = Instant::now() + self.lease / 3;
            while !state.is_over {
                let left = heartbeat_at.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            if state.is_over {
                return;
            }
            if state.holds > 0 {
                drop(state);
                // A store that does not answer now may do so at the next heartbeat. If this process was replaced, that is
                // recorded.
                let _ = self.heartbeat();
                state = locked(&self.state);
            }
        }
    }
}

fn lease_of(store: &dyn Store, region: u32, me: u64) -> Result<Duration, SynchronisationError> {
    let records = member::records(store, region, &[me]).map_err(of_store)?;
    let record =
        records.first().filter(|record| record.is_alive).ok_or_else(|| lost(&MemberRecord::read(me, None), None))?;
    Ok(record.lease.max(member::LEASE_MIN))
}

/// Converts an error of the store.
pub(super) fn of_store(error: StoreError) -> SynchronisationError {
    SynchronisationError::Memory(error.to_string())
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Everything that these locks protect changes in a single step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lost(record: &MemberRecord, by: Option<&MemberRecord>) -> SynchronisationError {
    let by = by.filter(|by| by.number != 0).map_or_else(String::new, |by| format!(", by {}", by.describe()));
    let what = match record.host.is_empty() {
        true => {
            format!(
                "this process is not a member of the region any more: the record of member {} is gone",
                record.number
            )
        }
        false => format!(
            "{} lost its lease: it gave no sign of life for {} and was replaced{by}",
            record.describe(),
            super::error::seconds(record.lease.as_millis() as u64)
        ),
    };
    let next = "what it stored since its last release is not part of the region; open the region again";
    SynchronisationError::LeaseLost(format!("{what}; {next}"))
}
