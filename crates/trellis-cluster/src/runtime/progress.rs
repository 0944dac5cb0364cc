//! Which thread receives from the link, and how threads wait.
//!
//! One thread at a time has the *receiving role*. A thread that waits takes it if it is free and polls, because waking
//! another core costs more than everything else on the way of a page (about 22 µs on the reference machine). When no
//! thread waits, the service thread sleeps on the link's readiness and takes the role when something arrives. While a
//! thread of the program polls, the service thread's interest in the link is switched off, so that a message wakes no
//! thread. The link is told when a thread polls continuously. A link that can keep silent meanwhile saves the peers a
//! system call for each frame, and saves this thread the two calls that switch the interest. The link is told before
//! the request is sent, because the answer may be faster than the work that comes in between, and a needless wake-up
//! costs 10 µs.
//!
//! A thread that polls yields its core after two round trips, or at once where other threads ran when threads yielded of
//! late: the thread that answers may be on the same core.
//!
//! Polling is bounded by `spin_microseconds_max` since the last frame. There is none when this host runs more nodes
//! than it has cores, or while other threads want the cores: a thread that polls would then keep the thread that
//! answers from running.
//!
//! A thread that has polled for long enough sleeps at the link and keeps the role: a frame wakes only this thread. Where
//! the program has several threads, only one whose wait is urgent does: frames are for the others, too, and the service
//! thread gets a core sooner. A thread leaves the role to the service thread when this host runs more nodes than it has
//! cores and threads take each other's cores: a frame for another node's thread would wait until this thread has a core,
//! and the service thread is not kept waiting.
//! Another thread that begins to poll takes the role away; the first one then sleeps in a futex until its wait is over.
//! So does a thread that cannot poll, if its wait is more urgent: a frame would otherwise wake a thread that waits for
//! something else, only for this one to be woken in turn.
//! While a thread sleeps in a futex, the service thread polls for the same bounded time after each frame that wakes it.
//! Otherwise it sleeps again at once.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use super::breakdown::is_counted;
use super::contention::{Contention, Sharing, TURN_NS_MIN};
use super::waiters::Waiters;
use super::{Node, Ticket};
use crate::config::Config;
use crate::launch::Activity;
use crate::waits::{Urgency, Wait};
use trellis_record::ticks;

/// A sleeping thread looks at the cluster's health this often.
const SLEEP_MAX: Duration = Duration::from_millis(250);
/// An answer that has not come after two round trips may come from a thread that has no core.
const YIELD_AFTER_NS: u64 = 20_000;
/// The service thread's priority, if the process may raise it (CAP_SYS_NICE).
const SERVICE_NICE: i32 = -10;
/// The minimum time between two looks, by threads that give locks back, for requests of the lock. It doubles with each
/// look that finds nothing, because a look costs more than taking a lock again. In [`ticks`]: the longest is 2 to 8 µs.
const LOOK_TICKS_FIRST: u64 = 2_000;
const LOOK_TICKS_LONGEST: u64 = 8_000;
/// Polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 8;

// States of the receiving role.
const FREE: u8 = 0;
/// A thread polls, or looks at the link for a moment.
const POLLING: u8 = 1;
/// A thread sleeps at the link. This state is followed by those of more urgent waits, in the order of [`Urgency`].
const SLEEPING: u8 = 2;

const LINK: u64 = 1;
const FAULTS: u64 = 2;
const TIMER: u64 = 3;
const STOP: u64 = 4;

thread_local! {
    /// When this thread's last wait ended, and its processor time then.
    static RESUMED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    /// Whether this thread sleeps at the link: a signal handler that interrupts it may touch the region.
    static SLEEPS_AT_LINK: Cell<bool> = const { Cell::new(false) };
}

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waited {
    Done,
    Failed,
    TooLong,
}

/// The receiving role and the service thread's descriptors.
pub(crate) struct Progress {
    role: AtomicU8,
    /// Whether the service thread must watch the link again when the role is free: it was woken and found the role
    /// taken, or a sleeper lost the role.
    was_called: AtomicBool,
    epoll: OwnedFd,
    link: RawFd,
    timer: OwnedFd,
    stop: OwnedFd,
    /// When the timer is set to go off; `u64::MAX` when it is not.
    due: AtomicU64,
    /// The number of threads of the program that sleep in a wait, but not at the link. Their cores are free.
    sleepers: AtomicU32,
    /// When a thread that gives a lock back looks for requests again, and the time between that look and the next one.
    next_look: AtomicU64,
    look_ticks: AtomicU64,
    spin_ns: u64,
    /// How many cores this node has for itself, at least one.
    cores: usize,
    contention: Contention,
    sharing: Sharing,
}

impl Progress {
    pub(super) fn new(config: &Config, link: RawFd, faults: Option<RawFd>) -> io::Result<Progress> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let nodes_here = if config.is_on_loopback() { config.capacity() } else { 1 };
        let progress = Progress {
            role: AtomicU8::new(FREE),
            was_called: AtomicBool::new(false),
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            link,
            timer: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?,
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            due: AtomicU64::new(u64::MAX),
            sleepers: AtomicU32::new(0),
            next_look: AtomicU64::new(0),
            look_ticks: AtomicU64::new(LOOK_TICKS_FIRST),
            spin_ns: if cores < nodes_here { 0 } else { config.spin_microseconds_max * 1000 },
            cores: (cores / nodes_here).max(1),
            contention: Contention::default(),
            sharing: Sharing::default(),
        };
        let watch = |fd: BorrowedFd, tag| epoll::add(&progress.epoll, fd, EventData::new_u64(tag), EventFlags::IN);
        watch(progress.link(), LINK)?;
        watch(progress.timer.as_fd(), TIMER)?;
        watch(progress.stop.as_fd(), STOP)?;
        if let Some(faults) = faults {
            // SAFETY: the region, which owns the descriptor, lives as long as the node.
            watch(unsafe { BorrowedFd::borrow_raw(faults) }, FAULTS)?;
        }
        Ok(progress)
    }

    /// Makes the service thread handle held pages and alarms at `due` (see [`Node::now`]) at the latest.
    pub(super) fn wake_at(&self, now: u64, due: u64) {
        if self.due.fetch_min(due, Ordering::AcqRel) <= due {
            return;
        }
        let mut set = due;
        loop {
            self.set_timer(set.saturating_sub(now).max(1));
            // Another thread may have set the timer to an earlier moment just before this one did.
            let earliest = self.due.load(Ordering::Acquire);
            if earliest >= set {
                return;
            }
            set = earliest;
        }
    }

    /// Whether something is due, as of `now`.
    fn is_due(&self, now: u64) -> bool {
        self.due.load(Ordering::Relaxed) <= now
    }

    fn set_timer(&self, wait: u64) {
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = Timespec { tv_sec: (wait / 1_000_000_000) as _, tv_nsec: (wait % 1_000_000_000) as _ };
        // The descriptor is a timer, and the time is one.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value });
    }

    /// Ends the service thread.
    pub(super) fn stop(&self) {
        // The counter is far from full.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }

    /// How long a thread that begins to wait now polls, in nanoseconds.
    fn poll_ns(&self, now: u64) -> u64 {
        if self.contention.is_there(now) { 0 } else { self.spin_ns }
    }

    /// Whether this host runs more nodes than it has cores, and another thread took a whole turn of this one's core of
    /// late.
    fn is_short_of_cores(&self, now: u64) -> bool {
        self.spin_ns == 0 && self.contention.is_there(now)
    }

    /// This thread begins to wait. If it had no core for a long time since its last wait, threads want more cores than
    /// there are, or it slept in the program.
    fn note_lost_turns(&self, now: u64) {
        let (then, ran) = RESUMED.get();
        // The last wait may have been at another node of this process, with a clock of its own. A thread of `trellis
        // threads` may have the variables of another one, which has run for longer.
        let Some(ran) = trellis_record::thread_time_ns().checked_sub(ran) else { return };
        if then > 0 && now.saturating_sub(then).saturating_sub(ran) > TURN_NS_MIN {
            self.contention.note(now);
        }
    }

    /// This thread goes on with the program.
    fn note_resumed(now: u64) {
        RESUMED.set((now, trellis_record::thread_time_ns()));
    }

    fn take_role(&self) -> bool {
        self.change_role(FREE, POLLING)
    }

    /// Takes the role if it is free, or from a thread that sleeps with it and waits with at most this urgency.
    fn take_role_from_sleeper(&self, waiters: &Waiters, urgency_max: Urgency) -> bool {
        if self.take_role() {
            return true;
        }
        let takes = (0..=urgency_max as u8).any(|urgency| self.change_role(SLEEPING + urgency, POLLING));
        if takes {
            // The sleeper had switched off the service thread's interest in the link.
            self.was_called.store(true, Ordering::SeqCst);
            waiters.rouse_at_link();
        }
        takes
    }

    /// Whether frames wait while a thread sleeps with the role.
    fn is_slept_through(&self) -> bool {
        let link = self.link();
        self.role.load(Ordering::SeqCst) >= SLEEPING
            && rustix::event::poll(&mut [PollFd::new(&link, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
                == Ok(1)
    }

    fn change_role(&self, before: u8, after: u8) -> bool {
        self.role.compare_exchange(before, after, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    fn drop_role(&self) {
        self.role.store(FREE, Ordering::SeqCst);
        self.watch_link_again();
    }

    /// The service thread was woken although another thread polls: a link that was told to keep silent may have woken
    /// it just before. It must not be woken again and again meanwhile, on the core where that thread runs.
    fn leave_link_to_another(&self) {
        self.watch_link(false);
        self.was_called.store(true, Ordering::SeqCst);
        if self.role.load(Ordering::SeqCst) == FREE {
            // The thread that had the role may not have seen this.
            self.watch_link_again();
        }
    }

    fn was_called(&self) -> bool {
        self.was_called.load(Ordering::SeqCst)
    }

    fn watch_link_again(&self) {
        if self.was_called() && self.was_called.swap(false, Ordering::SeqCst) {
            self.watch_link(true);
        }
    }

    /// Switches the service thread's interest in the link.
    fn watch_link(&self, on: bool) {
        let events = if on { EventFlags::IN } else { EventFlags::empty() };
        // Both descriptors live as long as the node, so this cannot fail.
        let _ = epoll::modify(&self.epoll, self.link(), EventData::new_u64(LINK), events);
    }

    fn link(&self) -> BorrowedFd<'_> {
        // SAFETY: the link, which owns the descriptor, lives as long as the node.
        unsafe { BorrowedFd::borrow_raw(self.link) }
    }

    /// Sleeps until something happens, or `timeout` has passed. An interrupted sleep ends early.
    fn sleep(&self, timeout: Duration, events: &mut Vec<epoll::Event>) {
        events.clear();
        let milliseconds = timeout.as_millis().clamp(1, i32::MAX as u128);
        let timeout = Timespec { tv_sec: (milliseconds / 1000) as _, tv_nsec: (milliseconds % 1000 * 1_000_000) as _ };
        let _ = epoll::wait(&self.epoll, spare_capacity(events), Some(&timeout));
    }
}

/// A thread that polls, or is about to. It has the receiving role, if that was free, and the link keeps silent, if it
/// can.
pub(super) struct Polling<'a> {
    node: &'a Node,
    urgency: Urgency,
    has_role: bool,
    /// Whether the link keeps silent: no frame wakes the service thread while this lives.
    is_silent: bool,
    /// Whether the link was told that a thread polls continuously.
    polls: bool,
    /// Whether the service thread's interest in the link is switched off.
    is_unwatched: bool,
}

impl Polling<'_> {
    /// An answer is on its way: from now on no frame wakes the service thread. If another thread sleeps with the role,
    /// this one takes the role away to poll, or because its own wait is more urgent.
    pub(super) fn expect_answer(&mut self) {
        let node = self.node;
        if !self.has_role
            && let Some(urgency_max) = node.displaces(self.urgency)
            && node.progress.take_role_from_sleeper(&node.waiters, urgency_max)
        {
            self.has_role = true;
            self.is_silent = node.link.set_polling(true);
            self.polls = true;
        }
        if self.has_role && !self.is_silent && !self.is_unwatched {
            self.node.progress.watch_link(false);
            self.is_unwatched = true;
        }
    }

    /// Ends a wait; the caller must hold no lock. This receives the frames that woke the service thread just before
    /// this thread polled, so that they do not wake it once more.
    fn end(mut self) {
        self.stop_polling();
        if self.is_silent && self.node.progress.was_called() {
            self.node.receive();
        }
    }

    /// Sleeps at the link until a frame arrives, the ticket is signalled, or `timeout` has passed. Returns whether this
    /// thread still has the role. It does not sleep without the role, while cores are short, or while another thread is
    /// about to leave the link; nor where frames may be for other threads of the program, unless its own wait is urgent.
    fn sleep(&mut self, ticket: &Ticket<'_>, timeout: Duration) -> bool {
        let progress = &self.node.progress;
        if !self.has_role || self.node.is_over() || progress.is_short_of_cores(self.node.now()) {
            return false;
        }
        if self.urgency == Urgency::None && self.node.has_several_threads() {
            return false;
        }
        let Some(place) = self.node.waiters.take_link() else { return false };
        self.stop_polling();
        if !self.is_unwatched {
            progress.watch_link(false);
            self.is_unwatched = true;
        }
        let state = SLEEPING + self.urgency as u8;
        progress.role.store(state, Ordering::SeqCst);
        SLEEPS_AT_LINK.set(true);
        ticket.sleep_at(&place, progress.link, timeout);
        SLEEPS_AT_LINK.set(false);
        // While this thread has the place at the link, no other one sleeps with the role.
        self.has_role = progress.change_role(state, POLLING);
        drop(place);
        if self.has_role {
            // Frames that called earlier are received before this thread reports that it polls, so they do not call
            // again.
            self.node.receive();
            self.is_silent = self.node.link.set_polling(true);
            self.polls = true;
        } else {
            self.is_unwatched = false;
        }
        self.has_role
    }

    fn stop_polling(&mut self) {
        if std::mem::take(&mut self.polls) {
            self.node.link.set_polling(false);
        }
    }
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.stop_polling();
        if self.is_unwatched {
            self.node.progress.watch_link(true);
        }
        if self.has_role {
            self.node.progress.drop_role();
        }
    }
}

/// The limit of one stretch of polling.
struct PollLimit {
    since: u64,
    nanoseconds: u64,
    polls: u32,
}

impl PollLimit {
    fn new(node: &Node) -> PollLimit {
        let since = node.now();
        PollLimit { since, nanoseconds: node.progress.poll_ns(since), polls: 0 }
    }

    /// Whether a poll that brought nothing was the last one.
    fn is_over(&mut self, node: &Node, deadline: u64) -> bool {
        std::hint::spin_loop();
        self.polls = self.polls.wrapping_add(1);
        let shares_core = node.progress.sharing.is_there();
        if !shares_core && !self.polls.is_multiple_of(POLLS_PER_LOOK) && self.nanoseconds > 0 {
            return false;
        }
        let now = node.now();
        if now >= deadline || now - self.since >= self.nanoseconds || node.is_over() {
            return true;
        }
        if !shares_core && now - self.since <= YIELD_AFTER_NS {
            return false;
        }
        // The thread that would answer may be waiting for this core.
        std::thread::yield_now();
        let back = node.now();
        let was_long = back - now > TURN_NS_MIN;
        node.progress.sharing.note(back - now);
        if was_long {
            node.progress.contention.note(back);
        }
        was_long
    }
}

impl Node {
    /// Waits until the ticket is signalled, the cluster has failed, or the limit of this kind of wait has passed.
    pub(crate) fn wait(&self, ticket: &Ticket<'_>, wait: Wait) -> Waited {
        self.wait_polling(None, ticket, wait, self.now().saturating_add(wait.limit_ns(&self.config)))
    }

    /// Waits like [`Node::wait`], but until `deadline`, perhaps after [`Node::poll_early`]. The launcher and the
    /// watchdog see the wait meanwhile.
    pub(super) fn wait_polling<'a>(
        &'a self,
        early: Option<Polling<'a>>,
        ticket: &Ticket<'_>,
        wait: Wait,
        deadline: u64,
    ) -> Waited {
        if ticket.is_done() {
            return Waited::Done;
        }
        self.doing(Activity::Waiting(wait));
        ticket.begin_wait(wait, self.recent(), deadline);
        let waited = self.wait_unseen(early, ticket, deadline);
        ticket.end_wait();
        if waited != Waited::Failed {
            self.doing(Activity::Computing);
        }
        waited
    }

    /// Waits like [`Node::wait_polling`], as a part of another wait: the launcher and the watchdog do not see it.
    pub(super) fn wait_unseen<'a>(&'a self, early: Option<Polling<'a>>, ticket: &Ticket<'_>, deadline: u64) -> Waited {
        super::ordered::assert_free_to_wait();
        let _inside = self.inside(self.recent());
        let is_crowded = self.progress.spin_ns == 0;
        if is_crowded {
            self.progress.note_lost_turns(self.now());
        }
        let waited = if is_counted() && !self.cores_are_taken() {
            self.poll_or_sleep(early, ticket, deadline)
        } else {
            drop(early);
            self.sleep_apart(ticket, deadline)
        };
        if is_crowded {
            Progress::note_resumed(self.recent());
        }
        waited
    }

    /// Whether other threads of the program compute on all cores of this node, as far as they are counted. The calling
    /// thread is inside.
    fn cores_are_taken(&self) -> bool {
        let threads = self.threads.get().map_or(0, |threads| threads.load(Ordering::Relaxed));
        threads.saturating_sub(self.breakdown.inside()) >= self.progress.cores
    }

    /// Whether the program has several threads at this node, as far as they are counted.
    fn has_several_threads(&self) -> bool {
        self.threads.get().is_some_and(|threads| threads.load(Ordering::Relaxed) > 1)
    }

    /// Sleeps until the wait is over. For threads that have no core on which they could poll, such as those that are none
    /// of the program's: the service thread receives as if they were not there.
    fn sleep_apart(&self, ticket: &Ticket<'_>, deadline: u64) -> Waited {
        loop {
            match self.next_sleep(ticket, deadline) {
                Ok(timeout) => ticket.sleep(timeout),
                Err(waited) => return waited,
            }
        }
    }

    /// How long a waiting thread may sleep before it looks again; the error is how its wait ended.
    fn next_sleep(&self, ticket: &Ticket<'_>, deadline: u64) -> Result<Duration, Waited> {
        if ticket.is_done() {
            return Err(Waited::Done);
        }
        if self.failure.is_set() {
            return Err(Waited::Failed);
        }
        let now = self.now();
        if now >= deadline || ticket.is_interrupted() {
            return Err(Waited::TooLong);
        }
        Ok(SLEEP_MAX.min(Duration::from_nanos(deadline - now)))
    }

    fn poll_or_sleep<'a>(&'a self, mut early: Option<Polling<'a>>, ticket: &Ticket<'_>, deadline: u64) -> Waited {
        loop {
            if early.is_none() && ticket.is_done() {
                return Waited::Done;
            }
            let mut polling = early.take().unwrap_or_else(|| self.begin_polling(ticket.urgency()));
            self.poll_until(&mut polling, ticket, deadline);
            if ticket.is_done() {
                polling.end();
                return Waited::Done;
            }
            let timeout = match self.next_sleep(ticket, deadline) {
                Ok(timeout) => timeout,
                Err(waited) => return waited,
            };
            if polling.sleep(ticket, timeout) {
                early = Some(polling);
                continue;
            }
            drop(polling);
            self.progress.sleepers.fetch_add(1, Ordering::Relaxed);
            ticket.sleep(timeout);
            self.progress.sleepers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Begins to poll before a request is sent, for a caller that has other work before it waits for the answer: an
    /// answer that is faster than this work then wakes no thread. Returns `None` if the link cannot keep silent; the
    /// service thread then receives until the wait begins. This takes no lock.
    pub(super) fn poll_early(&self) -> Option<Polling<'_>> {
        Some(self.begin_polling(Urgency::None)).filter(|polling| polling.is_silent)
    }

    /// Takes the receiving role if no thread has it. The caller must wait with it soon. This takes no lock.
    pub(super) fn begin_polling(&self, urgency: Urgency) -> Polling<'_> {
        let has_role = self.progress.take_role();
        let is_silent = has_role && self.link.set_polling(true);
        Polling { node: self, urgency, has_role, is_silent, polls: has_role, is_unwatched: false }
    }

    /// Polls, with the receiving role if it was free, until the ticket is signalled or [`PollLimit`] ends it.
    fn poll_until(&self, polling: &mut Polling<'_>, ticket: &Ticket<'_>, deadline: u64) {
        let mut poll_limit = PollLimit::new(self);
        polling.expect_answer();
        while !ticket.is_done() {
            self.serve_due();
            if polling.has_role && self.receive() {
                if !ticket.is_done() {
                    poll_limit = PollLimit::new(self);
                }
            } else if poll_limit.is_over(self, deadline) {
                break;
            }
        }
    }

    /// From which sleeping threads a thread that waits now takes the role: from any, to poll, or because it is itself that
    /// thread, interrupted by a signal handler; otherwise from those whose waits are less urgent.
    fn displaces(&self, urgency: Urgency) -> Option<Urgency> {
        match urgency {
            _ if self.progress.poll_ns(self.recent()) > 0 || SLEEPS_AT_LINK.get() => Some(Urgency::Page),
            Urgency::Page => Some(Urgency::Lock),
            Urgency::Lock => Some(Urgency::None),
            Urgency::None => None,
        }
    }

    /// Whether the last [`Node::receive_before_giving_back`] was long enough ago: it costs more than giving a lock back.
    pub(super) fn is_look_due(&self) -> bool {
        ticks() >= self.progress.next_look.load(Ordering::Relaxed)
    }

    /// Receives, unless another thread has the receiving role.
    pub(super) fn receive_before_giving_back(&self) {
        if self.progress.take_role() {
            let before = self.progress.look_ticks.load(Ordering::Relaxed);
            let distance = if self.receive() { LOOK_TICKS_FIRST } else { (2 * before).min(LOOK_TICKS_LONGEST) };
            self.progress.look_ticks.store(distance, Ordering::Relaxed);
            self.progress.next_look.store(ticks() + distance, Ordering::Relaxed);
            self.progress.drop_role();
        }
    }

    fn receive(&self) -> bool {
        self.link.poll(&mut super::sink::Receiver(self))
    }

    fn serve_forever(&self) {
        let mut next_tick = 0;
        let mut ran_ns = trellis_record::thread_time_ns();
        let mut faults = Vec::with_capacity(trellis_memory::FAULT_BATCH);
        let mut events = Vec::with_capacity(4);
        while !self.is_over() {
            let now = self.now();
            let timeout = Duration::from_nanos(next_tick.max(now) - now);
            self.progress.sleep(timeout, &mut events);
            let woke = self.now();
            for event in &events {
                // The event is packed: its data is copied before it is used.
                let data = event.data;
                match data.u64() {
                    LINK => self.serve_link(),
                    FAULTS => self.serve_faults(&mut faults),
                    TIMER => self.serve_timer(),
                    _ => return,
                }
            }
            let now = self.now();
            ran_ns = self.note_handled(woke, now, ran_ns);
            if now >= next_tick {
                self.relieve_sleeper();
                next_tick = self.now() + self.tick();
            }
        }
    }

    /// Something arrived while no thread polled. If a thread of the program sleeps, its core is free, so this thread
    /// polls in its place for what comes next.
    fn serve_link(&self) {
        if !self.progress.take_role() {
            return self.progress.leave_link_to_another();
        }
        // Frames that called earlier are received before this thread reports that it polls, so they do not call again.
        self.receive();
        // A thread that these frames woke takes the role for its next wait. If it found the role taken, it would sleep in a
        // futex, and need this thread once more.
        if self.progress.sleepers.load(Ordering::Relaxed) == 0 || self.progress.poll_ns(self.recent()) == 0 {
            self.progress.drop_role();
            return;
        }
        self.link.set_polling(true);
        let mut poll_limit = PollLimit::new(self);
        loop {
            self.serve_due();
            if self.receive() {
                poll_limit = PollLimit::new(self);
            } else if self.progress.sleepers.load(Ordering::Relaxed) == 0 || poll_limit.is_over(self, u64::MAX) {
                break;
            }
        }
        self.link.set_polling(false);
        self.progress.drop_role();
    }

    /// Submits the faults of blocked threads and stays awake for the answers, because waking this thread once more for
    /// each would cost more than the answer takes.
    fn serve_faults(&self, faults: &mut Vec<trellis_memory::Fault>) {
        // The thread with the role polls; if this one does not have it, another one does.
        self.link.set_polling(true);
        let mut poll_limit = PollLimit::new(self);
        loop {
            self.serve_due();
            self.region.take_faults(faults);
            let busy = !faults.is_empty();
            for fault in faults.drain(..) {
                self.submit(fault);
            }
            let mut received = false;
            let has_role = match poll_limit.nanoseconds {
                0 => self.progress.take_role(),
                _ => self.progress.take_role_from_sleeper(&self.waiters, Urgency::Page),
            };
            if has_role {
                received = self.receive();
                self.progress.drop_role();
            }
            if busy || received {
                poll_limit = PollLimit::new(self);
            } else if poll_limit.is_over(self, u64::MAX) {
                self.link.set_polling(false);
                return;
            }
        }
    }

    /// Receives in place of a thread that sleeps with the role: it may be in a signal handler of the program, for any
    /// time.
    fn relieve_sleeper(&self) {
        if self.progress.is_slept_through() && self.progress.take_role_from_sleeper(&self.waiters, Urgency::Page) {
            self.receive();
            self.progress.drop_role();
        }
    }

    fn serve_timer(&self) {
        // The number of expirations means nothing.
        let _ = rustix::io::read(&self.progress.timer, &mut [0; 8]);
        self.serve_held();
    }

    /// Handles what is due. Every thread that polls does so: the service thread may be waiting for a core, or be busy
    /// with the link.
    fn serve_due(&self) {
        if self.progress.is_due(self.recent()) {
            self.serve_held();
        }
    }

    fn serve_held(&self) {
        self.progress.due.store(u64::MAX, Ordering::Release);
        if let Some(due) = self.release_held() {
            self.progress.wake_at(self.now(), due);
        }
    }
}

/// Starts the thread that serves the link while no thread of the program does.
pub(crate) fn start_service(node: &Arc<Node>) -> io::Result<std::thread::JoinHandle<()>> {
    let watchdog = super::watchdog::Watchdog::start(node)?;
    let node = Arc::clone(node);
    std::thread::Builder::new().name("trellis-service".to_owned()).spawn(move || {
        block_all_signals();
        ask_for_short_delays();
        node.serve_forever();
        drop(watchdog);
        if node.failure.is_set() {
            node.end_unless_program_does();
        }
    })
}

/// Leaves the program's signals to the program's threads.
pub(super) fn block_all_signals() {
    // SAFETY: a signal set on this stack is filled, cleared of the signals that a fault of our own would raise, and
    // handed to the kernel.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        for fatal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT] {
            libc::sigdelset(&raw mut set, fatal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// `struct sched_attr` of sched_setattr(2), first version.
#[repr(C)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Asks the kernel to run this thread early when every core computes, because a peer waits for it and it runs for
/// microseconds: the shortest time slice (used since Linux 6.12), and a higher priority if the process may have one.
fn ask_for_short_delays() {
    let apply = |attributes: &SchedulingAttributes| {
        // SAFETY: the structure is sched_setattr(2)'s first version, whose size it names; it lives during the call.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) == 0 }
    };
    let mut attributes = SchedulingAttributes {
        size: size_of::<SchedulingAttributes>() as u32,
        policy: 0,
        flags: 0,
        nice: SERVICE_NICE,
        priority: 0,
        runtime_ns: 100_000,
        deadline_ns: 0,
        period_ns: 0,
    };
    if !apply(&attributes) {
        attributes.nice = 0;
        apply(&attributes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_role_is_taken_from_waits_of_at_most_that_urgency() {
        let link = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let progress = Progress::new(&Config::default(), std::os::fd::AsRawFd::as_raw_fd(&link), None).unwrap();
        let waiters = Waiters::new().unwrap();
        progress.role.store(SLEEPING + Urgency::Lock as u8, Ordering::SeqCst);
        assert!(!progress.take_role_from_sleeper(&waiters, Urgency::None));
        assert!(progress.take_role_from_sleeper(&waiters, Urgency::Lock) && progress.was_called());
        assert!(!progress.take_role_from_sleeper(&waiters, Urgency::Page), "a thread that polls keeps it");
    }
}
