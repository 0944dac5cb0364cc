//! Slots in which threads wait: a fixed number, each with a futex, and one wake-up descriptor for the thread that
//! sleeps at the link instead.
//!
//! Promises: a slot that was signalled stays signalled until it is given back, so no signal is lost. A signal for an
//! earlier use of a slot neither ends the wait of the present use nor changes its outcome. Taking, signalling and
//! giving back a slot allocate nothing and take no lock, because the fault path does all three.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use trellis_base::{Deadline, Limit};

use crate::launch::Activity;
use crate::waits::{Urgency, Wait};

/// The number of slots.
const SLOTS: usize = 1024;
/// The slot of publications, of which a node makes one at a time. A thread publishes while it has another slot, so that it
/// must not wait for this one.
const PUBLICATION: u32 = SLOTS as u32 - 1;
/// The maximum number of threads of one node that wait at the same time. Another thread sleeps until it gets a slot.
pub(crate) const WAITERS_MAX: usize = SLOTS - 1;
/// How long such a thread waits for a slot.
pub(crate) const SLOT: Deadline = Deadline {
    who: "a thread of a node",
    waits_for: "a place to wait, where 1,023 threads of the node wait already",
    limit: Limit::Other("until one of those goes on, which each does at its own limit at the latest"),
    then: "it waits. Where all of those wait for this thread, their limits end that",
    tested: "crates/trellis-cluster/src/runtime/waiters.rs threads_without_a_slot_sleep_until_slots_are_given_back",
};

// States of a slot, in the low bits of its word. The high bits count how often the slot was taken. A signal changes
// both with one instruction, or nothing.
const IDLE: u32 = 0;
const WAITING: u32 = 1;
const SLEEPING: u32 = 2;
/// A thread signals: it is writing the outcome, for a few instructions.
const SIGNALLING: u32 = 3;
const DONE: u32 = 4;
/// The thread sleeps until the link or the wake-up descriptor wakes it.
const AT_LINK: u32 = 5;
/// The thread was roused while it did not sleep: it does not sleep before it has looked again.
const ROUSED: u32 = 6;
const STATES: u32 = 8;
/// The number of successive uses of a slot that have different names. Only a signal that is late by this number of uses
/// could hit another one.
const USES: u32 = u32::MAX / SLOTS as u32 + 1;

/// The slots of one node.
pub(crate) struct Waiters {
    slots: Box<[Slot]>,
    /// One bit per slot: set when taken.
    taken: Box<[AtomicU64]>,
    /// The number of threads that sleep, or are about to, because no slot is free.
    without_slot: AtomicU32,
    /// The futex on which threads without a slot sleep. It changes when a slot is given back while there are such
    /// threads.
    given_back: AtomicU32,
    /// An eventfd that wakes the thread that sleeps at the link. Only that thread takes what was written to it.
    wake: OwnedFd,
    is_link_taken: AtomicBool,
}

#[derive(Default)]
struct Slot {
    /// The number of this use times [`STATES`], and the state.
    word: AtomicU32,
    value: AtomicU64,
    is_refused: AtomicBool,
    /// Why the call was refused. It is locked only after a refusal, which does not happen on the fault path.
    refusal: Mutex<&'static str>,
    /// What the present use waits for, as [`Activity::to_word`] encodes it; 0 while it does not wait. The word has no
    /// room for a whole number, so `number` holds it.
    wait: AtomicU64,
    number: AtomicU64,
    since_ns: AtomicU64,
    until_ns: AtomicU64,
}

impl Slot {
    /// Changes the state of the present use to `after`, if it is `before`.
    fn change(&self, before: u32, after: u32) -> bool {
        let word = self.word.load(Ordering::Relaxed) / STATES * STATES;
        self.word.compare_exchange(word | before, word | after, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn state(&self) -> u32 {
        self.word.load(Ordering::Acquire) % STATES
    }
}

/// The right to sleep at the link.
pub(super) struct AtLink<'a>(&'a Waiters);

impl Drop for AtLink<'_> {
    fn drop(&mut self) {
        self.0.is_link_taken.store(false, Ordering::Release);
    }
}

/// What a thread waits for, since when, and until when at most.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waits {
    pub(crate) wait: Wait,
    pub(crate) since_ns: u64,
    pub(crate) until_ns: u64,
}

/// A taken slot. Dropping it gives it back.
pub(crate) struct Ticket<'a> {
    waiters: &'a Waiters,
    index: u32,
    name: u32,
    /// Ends the wait early while it is set.
    interrupt: Cell<Option<&'static AtomicBool>>,
}

/// The exclusive right to set how the wait of one use of a slot ended. The slot is not taken again meanwhile.
struct Signal<'a> {
    waiters: &'a Waiters,
    slot: &'a Slot,
    /// The slot's word while this lives.
    word: u32,
    /// The state before the signal.
    before: u32,
}

impl Signal<'_> {
    fn finish(self) {
        self.slot.word.store(self.word - SIGNALLING + DONE, Ordering::Release);
        match self.before {
            SLEEPING => futex_wake(&self.slot.word),
            AT_LINK => self.waiters.rouse_at_link(),
            _ => {}
        }
    }
}

impl Waiters {
    pub(crate) fn new() -> io::Result<Waiters> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Waiters {
            wake,
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            taken: (0..SLOTS as u32 / 64)
                .map(|word| AtomicU64::new(u64::from(word == PUBLICATION / 64) << (PUBLICATION % 64)))
                .collect(),
            without_slot: AtomicU32::new(0),
            given_back: AtomicU32::new(0),
            is_link_taken: AtomicBool::new(false),
        })
    }

    /// The place at the link, for one thread at a time; `None` while another thread has it.
    pub(super) fn take_link(&self) -> Option<AtLink<'_>> {
        (!self.is_link_taken.swap(true, Ordering::AcqRel)).then(|| AtLink(self))
    }

    /// Wakes the thread that sleeps at the link, or keeps the next one from sleeping.
    pub(super) fn rouse_at_link(&self) {
        // It cannot block: the counter is far from full.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Takes a slot. If [`WAITERS_MAX`] threads have one, sleeps until one of them gives it back.
    pub(crate) fn take(&self) -> Ticket<'_> {
        self.try_take().unwrap_or_else(|| self.take_given_back())
    }

    fn try_take(&self) -> Option<Ticket<'_>> {
        let index = self.taken.iter().enumerate().find_map(|(word_index, word)| {
            // Sequentially consistent with the count in [`Waiters::take_given_back`]: a thread there either sees the
            // slot or is woken.
            let mut seen = word.load(Ordering::SeqCst);
            while seen != u64::MAX {
                let bit = (!seen).trailing_zeros();
                seen = word.fetch_or(1 << bit, Ordering::SeqCst);
                if seen >> bit & 1 == 0 {
                    return Some(word_index as u32 * 64 + bit);
                }
            }
            None
        })?;
        Some(self.begin_use(index))
    }

    /// Takes the slot of publications. Only the thread whose turn it is to publish may call this, and it gives the slot
    /// back before the next one's turn.
    pub(super) fn take_for_publication(&self) -> Ticket<'_> {
        self.begin_use(PUBLICATION)
    }

    fn begin_use(&self, index: u32) -> Ticket<'_> {
        let slot = &self.slots[index as usize];
        let uses = (slot.word.load(Ordering::Relaxed) / STATES + 1) % USES;
        slot.word.store(uses * STATES + WAITING, Ordering::Release);
        Ticket { waiters: self, index, name: uses * SLOTS as u32 + index, interrupt: Cell::new(None) }
    }

    #[cold]
    fn take_given_back(&self) -> Ticket<'_> {
        self.without_slot.fetch_add(1, Ordering::SeqCst);
        let ticket = loop {
            let seen = self.given_back.load(Ordering::Acquire);
            match self.try_take() {
                Some(ticket) => break ticket,
                None => futex_wait(&self.given_back, seen, Duration::from_secs(600)),
            }
        };
        self.without_slot.fetch_sub(1, Ordering::Relaxed);
        ticket
    }

    /// Signals the ticket of this name with `value`. The name of an ended use is ignored.
    pub(crate) fn signal(&self, name: u32, value: u64) {
        if let Some(signal) = self.begin_signal(name) {
            signal.slot.value.store(value, Ordering::Relaxed);
            signal.finish();
        }
    }

    /// Signals the ticket of this name that its call was refused.
    pub(crate) fn refuse(&self, name: u32, why: &'static str) {
        if let Some(signal) = self.begin_signal(name) {
            *signal.slot.refusal.lock().unwrap_or_else(PoisonError::into_inner) = why;
            signal.slot.is_refused.store(true, Ordering::Relaxed);
            signal.finish();
        }
    }

    /// `None` if the use of this name is over, or was signalled already.
    fn begin_signal(&self, name: u32) -> Option<Signal<'_>> {
        let slot = &self.slots[name as usize % SLOTS];
        let use_of_name = name / SLOTS as u32;
        let claim = |word: u32| {
            let is_awaited =
                word / STATES == use_of_name && matches!(word % STATES, WAITING | ROUSED | SLEEPING | AT_LINK);
            is_awaited.then_some(use_of_name * STATES + SIGNALLING)
        };
        let before = slot.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, claim).ok()?;
        Some(Signal { waiters: self, slot, word: use_of_name * STATES + SIGNALLING, before: before % STATES })
    }

    /// What threads wait for. Threads continue meanwhile, so some of the waits may be over.
    pub(crate) fn waits(&self) -> impl Iterator<Item = Waits> {
        self.slots.iter().filter_map(|slot| match Activity::from_word(slot.wait.load(Ordering::Acquire))? {
            Activity::Waiting(wait) => Some(Waits {
                wait: wait.with(slot.number.load(Ordering::Relaxed)),
                since_ns: slot.since_ns.load(Ordering::Relaxed),
                until_ns: slot.until_ns.load(Ordering::Relaxed),
            }),
            _ => None,
        })
    }

    /// Makes every thread that waits look again before it goes on sleeping: the cluster has failed, or somebody has set an
    /// interrupt.
    pub(crate) fn rouse_all(&self) {
        for slot in &self.slots {
            if !slot.change(WAITING, ROUSED) && slot.change(SLEEPING, WAITING) {
                futex_wake(&slot.word);
            }
        }
        self.rouse_at_link();
    }
}

/// A function that is called when a thread is about to sleep in a wait (true), and when it has slept (false).
pub(crate) type ToldOfSleeps = extern "C" fn(bool);

static TOLD_OF_SLEEPS: OnceLock<ToldOfSleeps> = OnceLock::new();

/// Tells this function of sleeps from now on. A thread that sleeps holds no lock, so a handler of a signal may wait, too.
pub(crate) fn tell_of_sleeps(function: ToldOfSleeps) {
    TOLD_OF_SLEEPS.get_or_init(|| function);
}

fn told<T>(sleep: impl FnOnce() -> T) -> T {
    let Some(tell) = TOLD_OF_SLEEPS.get() else { return sleep() };
    tell(true);
    let slept = sleep();
    tell(false);
    slept
}

impl Ticket<'_> {
    /// The number by which this use of the slot is signalled.
    pub(crate) fn name(&self) -> u32 {
        self.name
    }

    pub(crate) fn is_done(&self) -> bool {
        self.slot().state() == DONE
    }

    /// From now on the wait ends early while `interrupt` is set; [`Waiters::rouse_all`] makes a sleeping thread look.
    pub(super) fn set_interrupt(&self, interrupt: Option<&'static AtomicBool>) {
        self.interrupt.set(interrupt);
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupt.get().is_some_and(|interrupt| interrupt.load(Ordering::SeqCst))
    }

    /// What came with the signal: a value, or why the call was refused.
    pub(crate) fn outcome(&self) -> Result<u64, &'static str> {
        if self.slot().is_refused.load(Ordering::Relaxed) {
            return Err(*self.slot().refusal.lock().unwrap_or_else(PoisonError::into_inner));
        }
        Ok(self.slot().value.load(Ordering::Relaxed))
    }

    /// Notes what the thread waits for from now on, for [`Waiters::waits`].
    pub(super) fn begin_wait(&self, wait: Wait, now_ns: u64, until_ns: u64) {
        self.slot().since_ns.store(now_ns, Ordering::Relaxed);
        self.slot().until_ns.store(until_ns, Ordering::Relaxed);
        self.slot().number.store(wait.to_code().1, Ordering::Relaxed);
        self.slot().wait.store(Activity::Waiting(wait).to_word(), Ordering::Release);
    }

    /// The urgency of the wait that was noted.
    pub(super) fn urgency(&self) -> Urgency {
        match Activity::from_word(self.slot().wait.load(Ordering::Relaxed)) {
            Some(Activity::Waiting(wait)) => wait.urgency(),
            _ => Urgency::None,
        }
    }

    /// Notes that the thread does not wait any more.
    pub(super) fn end_wait(&self) {
        self.slot().wait.store(0, Ordering::Relaxed);
    }

    /// Makes the slot ready to be signalled again.
    pub(crate) fn rearm(&self) {
        self.settle(WAITING);
    }

    /// Sleeps until it is signalled or roused, or `timeout` has passed. It may also return for no reason.
    pub(crate) fn sleep(&self, timeout: Duration) {
        let slot = self.slot();
        if slot.change(ROUSED, WAITING) || !slot.change(WAITING, SLEEPING) {
            return;
        }
        told(|| futex_wait(&slot.word, self.word(SLEEPING), timeout));
        slot.change(SLEEPING, WAITING);
    }

    /// Sleeps until `link` is readable, the ticket is signalled, [`Waiters::rouse_at_link`] is called, or `timeout` has
    /// passed. It may also return for no reason.
    pub(super) fn sleep_at(&self, _place: &AtLink<'_>, link: RawFd, timeout: Duration) {
        let slot = self.slot();
        if slot.change(ROUSED, WAITING) || !slot.change(WAITING, AT_LINK) {
            return;
        }
        let wake = self.waiters.wake.as_raw_fd();
        let awaited = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut both = [awaited(link), awaited(wake)];
        let mut timeout = timespec(timeout);
        // SAFETY: the system call writes to the array of two and to the time-out, which both live during the call.
        told(|| unsafe {
            libc::syscall(
                libc::SYS_ppoll,
                both.as_mut_ptr(),
                both.len(),
                &raw mut timeout,
                std::ptr::null::<libc::sigset_t>(),
                0,
            )
        });
        if both[1].revents != 0 {
            // The number of calls means nothing.
            let _ = rustix::io::read(&self.waiters.wake, &mut [0; 8]);
        }
        slot.change(AT_LINK, WAITING);
    }

    /// Sets the state of the slot, after a signal that is being given has ended.
    fn settle(&self, state: u32) {
        loop {
            let seen = self.slot().word.load(Ordering::Acquire);
            let is_settled = seen % STATES != SIGNALLING
                && self
                    .slot()
                    .word
                    .compare_exchange(seen, self.word(state), Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok();
            if is_settled {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// The word of this use in `state`.
    fn word(&self, state: u32) -> u32 {
        self.name / SLOTS as u32 * STATES + state
    }

    fn slot(&self) -> &Slot {
        &self.waiters.slots[self.index as usize]
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.settle(IDLE);
        self.slot().is_refused.store(false, Ordering::Relaxed);
        if self.index == PUBLICATION {
            return;
        }
        let bit = 1 << (self.index % 64);
        let Waiters { taken, without_slot, given_back, .. } = self.waiters;
        taken[self.index as usize / 64].fetch_and(!bit, Ordering::SeqCst);
        if without_slot.load(Ordering::SeqCst) > 0 {
            given_back.fetch_add(1, Ordering::Release);
            futex_wake(given_back);
        }
    }
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec { tv_sec: duration.as_secs() as libc::time_t, tv_nsec: libc::c_long::from(duration.subsec_nanos()) }
}

fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let timeout = timespec(timeout);
    // SAFETY: futex(2) reads the word, which outlives the call, and the time-out, which is on this stack. It returns
    // for any reason; callers look at the word again.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            &raw const timeout,
        );
    }
}

fn futex_wake(word: &AtomicU32) {
    // SAFETY: futex(2) uses the address only to find threads that sleep on it. One of them wakes.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_waits_for_has_all_of_its_number() {
        let waiters = Waiters::new().unwrap();
        let ticket = waiters.take();
        let wait = Wait::Lock(0x7f00_0000_0000_0005);
        ticket.begin_wait(wait, 1, 2);
        assert!(waiters.waits().any(|waits| waits.wait == wait));
        ticket.end_wait();
        assert_eq!(waiters.waits().count(), 0);
    }

    #[test]
    fn a_signal_before_the_sleep_is_not_lost() {
        let waiters = Waiters::new().unwrap();
        let ticket = waiters.take();
        waiters.signal(ticket.name(), 7);
        ticket.sleep(Duration::from_secs(60));
        assert!(ticket.is_done());
        assert_eq!(ticket.outcome(), Ok(7));
    }

    #[test]
    fn who_is_roused_before_the_sleep_looks_at_the_interrupt() {
        static INTERRUPT: AtomicBool = AtomicBool::new(false);
        let waiters = Waiters::new().unwrap();
        let ticket = waiters.take();
        ticket.set_interrupt(Some(&INTERRUPT));
        assert!(!ticket.is_interrupted());
        INTERRUPT.store(true, Ordering::SeqCst);
        waiters.rouse_all();
        ticket.sleep(Duration::from_secs(600));
        assert!(ticket.is_interrupted() && !ticket.is_done());
        waiters.rouse_all();
        waiters.signal(ticket.name(), 5);
        assert!(ticket.is_done(), "it can be signalled when it is roused");
    }

    /// A late signal arrives at any moment of the next use. If the code looked at the use and the state one after the
    /// other, this test would find it in less than a second.
    #[test]
    fn a_late_signal_never_ends_the_next_use_of_its_slot() {
        let waiters = Waiters::new().unwrap();
        let stale = AtomicU32::new(u32::MAX);
        std::thread::scope(|scope| {
            let uses = scope.spawn(|| {
                for round in 0..400_000u64 {
                    let ticket = waiters.take();
                    assert!(!ticket.is_done(), "round {round}: ended by a signal for an earlier use");
                    waiters.signal(ticket.name(), round);
                    assert_eq!(ticket.outcome(), Ok(round), "round {round}: the outcome of an earlier use");
                    stale.store(ticket.name(), Ordering::Relaxed);
                }
            });
            while !uses.is_finished() {
                waiters.signal(stale.load(Ordering::Relaxed), u64::MAX);
                waiters.refuse(stale.load(Ordering::Relaxed), "late");
            }
        });
    }

    /// Threads sleep in both places, some of them at the link, one at a time, and are signalled at any moment. One that
    /// is overlooked would sleep for ten minutes.
    #[test]
    fn sleeping_threads_are_woken_by_another() {
        let waiters = Waiters::new().unwrap();
        let (link, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let sleep = |ticket: &Ticket<'_>| match waiters.take_link() {
            Some(place) => ticket.sleep_at(&place, link.as_raw_fd(), Duration::from_secs(600)),
            None => ticket.sleep(Duration::from_secs(600)),
        };
        for round in 0..500 {
            std::thread::scope(|scope| {
                let sleepers = [(); 3].map(|()| {
                    let ticket = waiters.take();
                    let name = ticket.name();
                    let sleeper = scope.spawn(move || {
                        while !ticket.is_done() {
                            sleep(&ticket);
                        }
                        ticket.outcome()
                    });
                    (name, sleeper)
                });
                for (name, _) in &sleepers {
                    waiters.signal(*name, round);
                }
                for (_, sleeper) in sleepers {
                    assert_eq!(sleeper.join().unwrap(), Ok(round));
                }
            });
        }
    }

    #[test]
    fn the_link_and_a_call_end_a_sleep_at_the_link() {
        let waiters = Waiters::new().unwrap();
        let (link, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let ticket = waiters.take();
        let place = waiters.take_link().unwrap();
        assert!(waiters.take_link().is_none(), "one thread at a time");
        waiters.rouse_at_link();
        ticket.sleep_at(&place, link.as_raw_fd(), Duration::from_secs(600));
        std::io::Write::write_all(&mut &other, &[1]).unwrap();
        ticket.sleep_at(&place, link.as_raw_fd(), Duration::from_secs(600));
        assert!(!ticket.is_done());
        drop(place);
        assert!(waiters.take_link().is_some());
    }

    /// Both sleepers are woken and get a slot, even if one of them takes the slot that woke the other.
    #[test]
    fn threads_without_a_slot_sleep_until_slots_are_given_back() {
        let waiters = Waiters::new().unwrap();
        let mut tickets: Vec<Ticket<'_>> = (0..WAITERS_MAX).map(|_| waiters.take()).collect();
        for _ in 0..200 {
            std::thread::scope(|scope| {
                let late = [(); 2].map(|()| scope.spawn(|| waiters.take()));
                while waiters.without_slot.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
                assert!(late.iter().all(|thread| !thread.is_finished()));
                tickets.truncate(WAITERS_MAX - 2);
                tickets.extend(late.map(|thread| thread.join().unwrap()));
            });
        }
        assert_eq!(waiters.without_slot.load(Ordering::SeqCst), 0);
        for value in 0..2 {
            let publication = waiters.take_for_publication();
            waiters.signal(publication.name(), value);
            assert_eq!(publication.outcome(), Ok(value), "it needs no slot of another thread");
        }
    }

    #[test]
    fn a_slot_that_was_given_back_is_clean() {
        let waiters = Waiters::new().unwrap();
        let first = waiters.take();
        let name = first.name();
        waiters.refuse(name, "no");
        assert_eq!(first.outcome(), Err("no"));
        drop(first);
        let second = waiters.take();
        assert_eq!(second.index, name % SLOTS as u32);
        waiters.signal(name, 5);
        assert!(!second.is_done(), "a late signal for the first use");
        assert_eq!(second.outcome().err(), None);
    }
}
