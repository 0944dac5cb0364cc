//! Page protocol: takes a shard's lock, lets the protocol decide, carries out what it decided.

use std::sync::{Mutex, MutexGuard, PoisonError};

use trellis_protocol::coherence::{Coherence, Effect, Geometry, Input, Message, Protocol, Running};
use trellis_protocol::homes::{Home, Interleaved, Manager};
use trellis_protocol::{Access, NodeId, PageIndex, PageRange, wire};

use super::{Node, SHARDS};
use crate::config::{self, Config};
use crate::record::LiveCounters;

/// How long a granted page stays, once somebody else wants it, for a thread that was told that it may run on: the time
/// to return from a signal handler and to retry one instruction.
const RESUME_NS: u64 = 20_000;
/// The same for a thread that the kernel must wake first (`handler`): a wake-up on another core.
const WAKE_UP_NS: u64 = 100_000;
/// The same for a thread that sleeps and was not seen to run yet, on a machine with more threads than cores.
const HOLD_NS_MAX: u64 = 5_000_000;

/// The protocol of some chunks, and who waits for their pages.
pub(super) struct Shard {
    pub(super) protocol: Running,
    effects: Vec<Effect>,
    /// Threads that wait for a page: signalled when the page may have changed.
    pub(super) waiting: Vec<Waiting>,
    /// Granted pages that stay, if somebody else wants them, until that time.
    pub(super) held: Vec<(PageIndex, u64)>,
    /// Messages that the last step sent.
    pub(super) sent: u32,
}

#[derive(Clone, Copy)]
pub(super) enum Waiting {
    /// A thread in [`super::waiters`].
    Thread { page: PageIndex, ticket: u32 },
    /// A thread that the kernel blocks (`handler`), since when, and whether another node was asked for the page.
    Kernel { page: PageIndex, since: u64, before: Access, write: bool, asked: bool },
}

impl Shard {
    pub(super) fn new(config: &Config, pages: u32, shard: u32) -> Shard {
        let protocol = match config.coherence {
            config::Coherence::Ivy => Protocol::Ivy,
        };
        let geometry = Geometry {
            me: NodeId(config.node as u16),
            nodes: config.node_count() as u16,
            pages,
            shard,
            shards: SHARDS,
            home: home(config),
        };
        Shard {
            protocol: protocol.start(geometry),
            effects: Vec::with_capacity(256),
            waiting: Vec::with_capacity(super::waiters::WAITERS_MAX),
            held: Vec::with_capacity(64),
            sent: 0,
        }
    }
}

/// The pure counterpart of the configured home.
pub(super) fn home(config: &Config) -> Home {
    match config.home {
        config::Home::Manager => Home::Manager(Manager(NodeId(config.manager as u16))),
        config::Home::Interleaved => Home::Interleaved(Interleaved),
    }
}

/// A poisoned lock means that a thread of the runtime panicked: the panic was the report.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    pub(super) fn page_message(&self, from: NodeId, message: Message) {
        if let Some(range) = message.bytes() {
            LiveCounters::add(&self.counters().pages_in, u64::from(range.count()));
        }
        let mut shard = lock(self.shard_of(message.page()));
        self.release_due(&mut shard);
        self.step(&mut shard, Input::Message { from, message });
    }

    /// Lets the protocol decide about one fact and carries out what it decided.
    pub(super) fn step(&self, shard: &mut Shard, input: Input) {
        let mut effects = std::mem::take(&mut shard.effects);
        shard.protocol.step(self.recent(), input, &mut effects);
        shard.sent = 0;
        for effect in effects.drain(..) {
            self.carry_out(shard, effect);
        }
        shard.effects = effects;
    }

    fn carry_out(&self, shard: &mut Shard, effect: Effect) {
        let place = |range: PageRange| (range.first().0 as usize, range.count() as usize);
        let done = match effect {
            Effect::Revoke(range) => {
                LiveCounters::add(&self.counters().invalidations, u64::from(range.count()));
                self.region.revoke(place(range).0, place(range).1)
            }
            Effect::Downgrade(range) => self.region.downgrade(place(range).0, place(range).1),
            Effect::Install { range, access, zero } => {
                let access = match access {
                    Access::Write => trellis_memory::Access::Write,
                    _ => trellis_memory::Access::Read,
                };
                self.region.install(place(range).0, place(range).1, access, zero)
            }
            Effect::Upgrade(range) => self.region.upgrade(place(range).0, place(range).1),
            Effect::Send { to, message } => {
                shard.sent += 1;
                self.send(to, &wire::Message::Coherence(message));
                Ok(())
            }
            Effect::Wake(range) => {
                self.wake(shard, range);
                Ok(())
            }
            Effect::Hold(page) => {
                self.hold(shard, page);
                Ok(())
            }
            Effect::Violation { from, what } => {
                self.fail(format!("{} sent {what}", self.name_of(from)));
                Ok(())
            }
        };
        if let Err(error) = done {
            self.fail(format!("cannot change the access to pages: {error}"));
        }
    }

    fn wake(&self, shard: &mut Shard, range: PageRange) {
        let mut index = 0;
        while index < shard.waiting.len() {
            match shard.waiting[index] {
                Waiting::Thread { page, ticket } if range.contains(page) => {
                    self.waiters.signal(ticket, 0);
                }
                Waiting::Kernel { page, since, before, write, asked } if range.contains(page) => {
                    // The kernel lets the thread look again; it faults again if that was not enough.
                    self.region.wake(page.0 as usize, 1);
                    self.note_fault(page, write, before, since, asked);
                    // Nobody tells when that thread runs on. Usually nobody asks, either, so no timer is set.
                    self.keep(shard, page, WAKE_UP_NS);
                }
                _ => {
                    index += 1;
                    continue;
                }
            }
            shard.waiting.swap_remove(index);
        }
    }

    /// Somebody else wants `page` now: it stays until its thread ran on, but not for ever.
    fn hold(&self, shard: &mut Shard, page: PageIndex) {
        let due = self.keep(shard, page, HOLD_NS_MAX);
        self.progress.wake_at(self.now(), due);
    }

    /// Notes how long `page` stays at most, unless that is known; returns until when.
    fn keep(&self, shard: &mut Shard, page: PageIndex, at_most_ns: u64) -> u64 {
        if let Some((_, due)) = shard.held.iter().find(|(held, _)| *held == page) {
            return *due;
        }
        let due = self.now() + at_most_ns;
        shard.held.push((page, due));
        due
    }

    /// The thread for which `page` was granted is about to retry its instruction.
    pub(super) fn resumes(&self, shard: &mut Shard, page: PageIndex) {
        match shard.held.iter_mut().find(|(held, _)| *held == page) {
            Some((_, due)) => {
                let now = self.now();
                *due = (*due).min(now + RESUME_NS);
                self.progress.wake_at(now, *due);
            }
            None => self.step(shard, Input::Resumed { page }),
        }
    }

    /// Lets pages go whose time is over; returns when the next one's is.
    pub(super) fn release_held(&self) -> Option<u64> {
        let mut next: Option<u64> = None;
        for shard in &self.shards {
            let mut shard = lock(shard);
            self.release_due(&mut shard);
            let earliest = shard.held.iter().map(|(_, due)| *due).min();
            next = next.into_iter().chain(earliest).min();
        }
        next
    }

    fn release_due(&self, shard: &mut Shard) {
        if shard.held.is_empty() {
            return;
        }
        let now = self.now();
        while let Some(index) = shard.held.iter().position(|(_, due)| *due <= now) {
            let (page, _) = shard.held.swap_remove(index);
            self.step(shard, Input::Resumed { page });
        }
    }
}
