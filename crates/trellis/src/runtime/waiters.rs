//! Places where threads wait: a fixed number of slots, each with a futex.
//!
//! Promises: a slot that was signalled stays signalled until it is given back, so a signal is never lost; taking,
//! signalling and giving back a slot allocate nothing and take no lock, because the fault path does all three.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Most threads of one node that wait at the same time; one more waits for a slot.
pub(crate) const WAITERS_MAX: usize = 1024;

const IDLE: u32 = 0;
const WAITING: u32 = 1;
const SLEEPING: u32 = 2;
const DONE: u32 = 3;

/// The slots of one node.
pub(crate) struct Waiters {
    slots: Box<[Slot]>,
    /// One bit per slot: set when taken.
    taken: Box<[AtomicU64]>,
}

#[derive(Default)]
struct Slot {
    state: AtomicU32,
    /// Counts how often the slot was taken: a late signal for an earlier use is not taken for this one's.
    uses: AtomicU32,
    value: AtomicU64,
    is_refused: AtomicBool,
    /// Why; only looked at when refused, which the fault path never is.
    refusal: Mutex<&'static str>,
}

/// A taken slot; given back when dropped.
pub(crate) struct Ticket<'a> {
    waiters: &'a Waiters,
    index: u32,
    name: u32,
}

impl Waiters {
    pub(crate) fn new() -> Waiters {
        Waiters {
            slots: (0..WAITERS_MAX).map(|_| Slot::default()).collect(),
            taken: (0..WAITERS_MAX / 64).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Takes a slot; waits for one if [`WAITERS_MAX`] threads wait already.
    pub(crate) fn take(&self) -> Ticket<'_> {
        loop {
            for (word_index, word) in self.taken.iter().enumerate() {
                let seen = word.load(Ordering::Relaxed);
                let bit = (!seen).trailing_zeros();
                if bit < 64 && word.fetch_or(1 << bit, Ordering::AcqRel) >> bit & 1 == 0 {
                    let index = word_index as u32 * 64 + bit;
                    let slot = &self.slots[index as usize];
                    let uses = slot.uses.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
                    slot.state.store(WAITING, Ordering::Release);
                    let name = uses.wrapping_mul(WAITERS_MAX as u32) | index;
                    return Ticket { waiters: self, index, name };
                }
            }
            std::thread::yield_now();
        }
    }

    /// Signals the ticket of this name with `value`; a name that nobody has any more is ignored.
    pub(crate) fn signal(&self, name: u32, value: u64) {
        if let Some(slot) = self.named(name) {
            slot.value.store(value, Ordering::Relaxed);
            self.finish(slot);
        }
    }

    /// Signals the ticket of this name: the call was refused.
    pub(crate) fn refuse(&self, name: u32, why: &'static str) {
        if let Some(slot) = self.named(name) {
            *slot.refusal.lock().unwrap_or_else(PoisonError::into_inner) = why;
            slot.is_refused.store(true, Ordering::Relaxed);
            self.finish(slot);
        }
    }

    fn named(&self, name: u32) -> Option<&Slot> {
        let slots = WAITERS_MAX as u32;
        let slot = &self.slots[(name % slots) as usize];
        let uses = slot.uses.load(Ordering::Acquire);
        (uses.wrapping_mul(slots) == name - name % slots).then_some(slot)
    }

    /// Makes every sleeping thread look again; used when the cluster failed.
    pub(crate) fn rouse_all(&self) {
        for slot in &self.slots {
            if slot.state.compare_exchange(SLEEPING, WAITING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                futex_wake(&slot.state);
            }
        }
    }

    fn finish(&self, slot: &Slot) {
        let before =
            slot.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |state| (state != IDLE).then_some(DONE));
        if before == Ok(SLEEPING) {
            futex_wake(&slot.state);
        }
    }
}

impl Ticket<'_> {
    /// The number by which this use of the slot is signalled.
    pub(crate) fn name(&self) -> u32 {
        self.name
    }

    pub(crate) fn is_done(&self) -> bool {
        self.slot().state.load(Ordering::Acquire) == DONE
    }

    /// What came with the signal: a value, or why the call was refused.
    pub(crate) fn outcome(&self) -> Result<u64, &'static str> {
        if self.slot().is_refused.load(Ordering::Relaxed) {
            return Err(*self.slot().refusal.lock().unwrap_or_else(PoisonError::into_inner));
        }
        Ok(self.slot().value.load(Ordering::Relaxed))
    }

    /// Makes the slot ready to be signalled again.
    pub(crate) fn rearm(&self) {
        self.slot().state.store(WAITING, Ordering::Release);
    }

    /// Sleeps until signalled, roused, or `timeout` passed; may also return for no reason.
    pub(crate) fn sleep(&self, timeout: Duration) {
        let state = &self.slot().state;
        if state.compare_exchange(WAITING, SLEEPING, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        futex_wait(state, SLEEPING, timeout);
        let _ = state.compare_exchange(SLEEPING, WAITING, Ordering::AcqRel, Ordering::Relaxed);
    }

    fn slot(&self) -> &Slot {
        &self.waiters.slots[self.index as usize]
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let slot = self.slot();
        slot.is_refused.store(false, Ordering::Relaxed);
        slot.state.store(IDLE, Ordering::Release);
        let bit = 1 << (self.index % 64);
        self.waiters.taken[self.index as usize / 64].fetch_and(!bit, Ordering::AcqRel);
    }
}

fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
    };
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
    // SAFETY: futex(2) uses the address only to find threads that sleep on it; one thread sleeps on a slot.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_before_the_sleep_is_not_lost() {
        let waiters = Waiters::new();
        let ticket = waiters.take();
        waiters.signal(ticket.name(), 7);
        ticket.sleep(Duration::from_secs(60));
        assert!(ticket.is_done());
        assert_eq!(ticket.outcome(), Ok(7));
    }

    #[test]
    fn a_sleeping_thread_is_woken_by_another() {
        let waiters = Waiters::new();
        std::thread::scope(|scope| {
            let ticket = waiters.take();
            let name = ticket.name();
            let sleeper = scope.spawn(move || {
                while !ticket.is_done() {
                    ticket.sleep(Duration::from_secs(60));
                }
                ticket.outcome()
            });
            waiters.signal(name, 9);
            assert_eq!(sleeper.join().unwrap(), Ok(9));
        });
    }

    #[test]
    fn a_slot_that_was_given_back_is_clean() {
        let waiters = Waiters::new();
        let first = waiters.take();
        let name = first.name();
        waiters.refuse(name, "no");
        assert_eq!(first.outcome(), Err("no"));
        drop(first);
        let second = waiters.take();
        assert_eq!(second.index, name % WAITERS_MAX as u32);
        waiters.signal(name, 5);
        assert!(!second.is_done(), "a late signal for the first use");
        assert_eq!(second.outcome().err(), None);
    }
}
