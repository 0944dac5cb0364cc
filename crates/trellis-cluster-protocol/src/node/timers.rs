//! How long pages stay after they were granted to threads, and when alarms of the protocols are due.
//!
//! A page that was granted to a faulting thread stays until the thread has run on, so that busy pages do not travel without
//! being used. Each thread that was woken calls [`Timers::looks`] when it runs, and the last of them lets the page go. Once
//! another node wants the page, it stays only for a bounded time ([`crate::coherence::Effect::Hold`]).
//!
//! Promises: [`Input::Resumed`] is returned once for each page that was held, no later than its bound. An alarm goes off
//! once, no earlier than its due time, and setting it again replaces it. Timers in which the same is pending are equal,
//! however they came to be so. It must never read a clock: callers pass the time, and call [`Timers::pop_due`] when
//! [`Timers::next_due`] has come.

use crate::Nanoseconds;
use crate::coherence::{Input, Purpose};
use crate::page::{PageIndex, PageRange};
use alloc::vec::Vec;

/// How long a granted page stays, once another node wants it, for a thread that was woken: the time to return from a signal
/// handler and to retry one instruction.
const RESUME_NS: Nanoseconds = 20_000;
/// The number of pages and alarms for which there is room from the start. Up to this number, the fault path allocates
/// nothing.
const ROOM: usize = 64;

/// The timers of one shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Timers {
    /// The page of each thread that was woken after a fault and has not looked yet; ascending.
    woken: Vec<PageIndex>,
    /// Granted pages, ascending, and until when each stays although another node wants it.
    held: Vec<(PageIndex, Nanoseconds)>,
    /// By page and purpose, ascending.
    alarms: Vec<Alarm>,
}

/// An alarm that is set; see [`crate::coherence::Effect::Alarm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Alarm {
    page: PageIndex,
    purpose: Purpose,
    due: Nanoseconds,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers { woken: Vec::with_capacity(ROOM), held: Vec::with_capacity(ROOM), alarms: Vec::with_capacity(ROOM) }
    }
}

impl Timers {
    /// A thread was woken for `page` after a fault. It calls [`Timers::looks`] when it runs.
    pub fn wake(&mut self, page: PageIndex) {
        let place = self.woken.partition_point(|woken| *woken < page);
        self.woken.insert(place, page);
    }

    /// A thread that was woken for `page` is about to retry its instruction. If it is the last of them, returns what
    /// follows: the protocol is notified now, or, if another node already wants the page, a moment later.
    pub fn looks(&mut self, page: PageIndex, now: impl FnOnce() -> Nanoseconds) -> Option<Resumes> {
        if let Ok(place) = self.woken.binary_search(&page) {
            self.woken.remove(place);
        }
        self.runs_on(page, now)
    }

    /// Like [`Timers::looks`], for a thread that was not woken because of a fault.
    pub fn runs_on(&mut self, page: PageIndex, now: impl FnOnce() -> Nanoseconds) -> Option<Resumes> {
        if self.woken.binary_search(&page).is_ok() {
            return None;
        }
        let Ok(place) = self.held_at(page) else {
            return Some(Resumes::Now(Input::Resumed { page }));
        };
        let (_, due) = &mut self.held[place];
        *due = (*due).min(now().saturating_add(RESUME_NS));
        Some(Resumes::At(*due))
    }

    /// `page` stays for a thread that was woken although another node wants it, for `at_most` from now on. An earlier bound
    /// is kept. Returns the bound that applies.
    pub fn hold(&mut self, page: PageIndex, now: Nanoseconds, at_most: Nanoseconds) -> Nanoseconds {
        let place = self.held_at(page).unwrap_or_else(|place| {
            self.held.insert(place, (page, now.saturating_add(at_most)));
            place
        });
        self.held[place].1
    }

    /// Sets the alarm of `page` for `purpose`. It replaces an earlier one.
    pub fn set_alarm(&mut self, page: PageIndex, purpose: Purpose, due: Nanoseconds) {
        match self.alarm_at(page, purpose) {
            Ok(place) => self.alarms[place].due = due,
            Err(place) => self.alarms.insert(place, Alarm { page, purpose, due }),
        }
    }

    /// The pages of `range` are no longer held. The protocol is not notified, because it has been replaced.
    pub fn forget_held(&mut self, range: PageRange) {
        self.held.retain(|(page, _)| !range.contains(*page));
    }

    /// The next input for the protocol about a page that is held, whether or not its time has come; `None` if no page is
    /// held.
    pub fn pop_held(&mut self) -> Option<Input> {
        self.held.pop().map(|(page, _)| Input::Resumed { page })
    }

    /// What is pending: the inputs that the protocol will get, and when each is due.
    pub fn pending(&self) -> impl Iterator<Item = (Input, Nanoseconds)> {
        let held = self.held.iter().map(|&(page, due)| (Input::Resumed { page }, due));
        held.chain(self.alarms.iter().map(|&Alarm { page, purpose, due }| (Input::Alarm { page, purpose }, due)))
    }

    /// Takes out one input of [`Timers::pending`], whether or not its time has come: the protocol gets it now. Returns
    /// whether it was pending.
    pub fn take(&mut self, input: Input) -> bool {
        match input {
            Input::Resumed { page } => self.held_at(page).map(|place| self.held.remove(place)).is_ok(),
            Input::Alarm { page, purpose } => {
                self.alarm_at(page, purpose).map(|place| self.alarms.remove(place)).is_ok()
            }
            _ => false,
        }
    }

    /// The next input for the protocol that is due by `now`; `None` if nothing more is due.
    pub fn pop_due(&mut self, now: Nanoseconds) -> Option<Input> {
        let (input, _) = self.pending().find(|(_, due)| *due <= now)?;
        self.take(input);
        Some(input)
    }

    /// When the next one is due.
    pub fn next_due(&self) -> Option<Nanoseconds> {
        self.pending().map(|(_, due)| due).min()
    }

    /// When the next alarm for `purpose` is due.
    pub fn next_alarm(&self, purpose: Purpose) -> Option<Nanoseconds> {
        self.alarms.iter().filter(|alarm| alarm.purpose == purpose).map(|alarm| alarm.due).min()
    }

    /// Whether no page is held and no alarm is set.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.alarms.is_empty()
    }

    /// Where the page is among those that are held, or belongs.
    fn held_at(&self, page: PageIndex) -> Result<usize, usize> {
        self.held.binary_search_by_key(&page, |(held, _)| *held)
    }

    /// Where the alarm is, or belongs.
    fn alarm_at(&self, page: PageIndex, purpose: Purpose) -> Result<usize, usize> {
        self.alarms.binary_search_by_key(&(page, purpose), |alarm| (alarm.page, alarm.purpose))
    }
}

/// When the protocol is notified that the threads to which a page was granted have run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumes {
    /// Now, with this input.
    Now(Input),
    /// At this time, by [`Timers::pop_due`].
    At(Nanoseconds),
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageIndex = PageIndex(3);
    const RESUMED: Input = Input::Resumed { page: PAGE };

    #[test]
    fn the_last_thread_that_was_woken_lets_the_page_go() {
        let mut timers = Timers::default();
        timers.wake(PAGE);
        timers.wake(PAGE);
        timers.wake(PageIndex(4));
        assert_eq!(timers.looks(PAGE, || 0), None);
        assert_eq!(timers.looks(PAGE, || unreachable!("nobody wants it")), Some(Resumes::Now(RESUMED)));
    }

    #[test]
    fn a_page_that_is_wanted_stays_no_longer_than_its_bound() {
        let mut timers = Timers::default();
        timers.wake(PAGE);
        assert_eq!(timers.hold(PAGE, 1_000, 5_000_000), 5_001_000);
        assert_eq!(timers.hold(PAGE, 2_000, 1), 5_001_000, "the first bound stays");
        assert_eq!(timers.looks(PAGE, || 100_000), Some(Resumes::At(100_000 + RESUME_NS)));
        assert_eq!(timers.pop_due(100_000), None);
        assert_eq!(timers.next_due(), Some(100_000 + RESUME_NS));
        assert_eq!(timers.pop_due(100_000 + RESUME_NS), Some(RESUMED));
        assert_eq!((timers.pop_due(u64::MAX), timers.is_empty()), (None, true));

        timers.hold(PAGE, 0, 10);
        assert_eq!(timers.looks(PAGE, || 5), Some(Resumes::At(10)), "it does not stay longer because a thread looked");
    }

    #[test]
    fn an_alarm_that_is_set_again_goes_off_once_and_later() {
        let mut timers = Timers::default();
        timers.set_alarm(PAGE, Purpose::Retry, 10);
        timers.set_alarm(PAGE, Purpose::Expiry, 5);
        timers.set_alarm(PAGE, Purpose::Retry, 20);
        assert_eq!(timers.pop_due(10), Some(Input::Alarm { page: PAGE, purpose: Purpose::Expiry }));
        assert_eq!(timers.pop_due(10), None);
        assert_eq!(timers.pop_due(20), Some(Input::Alarm { page: PAGE, purpose: Purpose::Retry }));
        assert!(timers.is_empty());
    }

    #[test]
    fn what_is_pending_goes_off_in_any_order_and_leaves_equal_timers() {
        let retry = Input::Alarm { page: PAGE, purpose: Purpose::Retry };
        let fill = |pages: [u32; 2]| {
            let mut timers = Timers::default();
            for page in pages.map(PageIndex) {
                timers.wake(page);
                timers.hold(page, 0, 7);
                timers.set_alarm(page, Purpose::Retry, 9);
            }
            timers
        };
        let (mut timers, other) = (fill([3, 8]), fill([8, 3]));
        assert_eq!(timers, other);
        assert_eq!(timers.pending().map(|(_, due)| due).collect::<Vec<_>>(), [7, 7, 9, 9]);
        assert!(timers.take(retry) && !timers.take(retry), "once");
        assert!(timers.take(RESUMED) && !timers.take(RESUMED), "once");
        assert_eq!(timers.pending().count(), 2);
        assert!(!timers.take(Input::Changed { page: PAGE }), "nothing that timers know");
    }
}
