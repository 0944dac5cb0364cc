//! The steps of a node, and the messages that leave it.
//!
//! Promises: effects are carried out in their order. An effect that breaks the contract is a problem and ends the run.
//! It must never decide anything.

use super::changing::{FIRST_CALL, FIRST_NUMBER};
use super::conditions;
use super::node::{Doing, Node};
use super::{Fault, Setup, faults};
use crate::model::twinned::{Body, Releasing, Twinned, Value};
use std::fmt;
use std::ops::Range;
use trellis_cluster_protocol::coherence::hlrc::intervals::Notice;
use trellis_cluster_protocol::coherence::{Coherence, Effect, Input, Message, Protocol, Ranges};
use trellis_cluster_protocol::node::change::Ending;
use trellis_cluster_protocol::node::{self, Carrier, Effects, Order, Parts, Releases, Shard};
use trellis_cluster_protocol::sync::{ABANDONED, CallOutcome, WaitOutcome};
use trellis_cluster_protocol::{
    Access, CHUNK_PAGES, Nanoseconds, NodeId, PageIndex, PageRange, heap, membership, sync, wire,
};

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Packet {
    /// About pages.
    Page {
        /// The message.
        message: Message,
        /// Its content.
        body: Body,
    },
    /// About locks, barriers and words.
    Sync {
        /// The message.
        message: sync::Message,
        /// Its sender's knowledge of intervals.
        knowledge: Vec<u8>,
    },
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Packet::Page { message, body: Body::Nothing } => message.fmt(f),
            Packet::Page { message, body } => write!(f, "{message} {body:?}"),
            Packet::Sync { message, .. } => message.fmt(f),
        }
    }
}

/// A message under way.
pub type Envelope = crate::model::Envelope<Packet>;

/// An event of a thread: an access, or an operation that others may have to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Event {
    Load {
        thread: u8,
        word: u16,
        value: Value,
    },
    Store {
        thread: u8,
        word: u16,
        value: Value,
    },
    Locked {
        thread: u8,
        lock: u8,
    },
    Unlock {
        thread: u8,
        lock: u8,
    },
    Arrive {
        thread: u8,
    },
    Left {
        thread: u8,
    },
    /// The home of a flag carries out a thread's operation.
    Flag {
        thread: u8,
        flag: u8,
        is_store: bool,
    },
    /// Every store of the thread is at its home.
    Published {
        thread: u8,
    },
    /// A wait for a condition is over, and says whether its lock is held.
    Waited {
        thread: u8,
        lock: u8,
        is_lock_held: bool,
    },
    /// A call of an object begins, is answered, or is abandoned.
    Enters {
        thread: u8,
        call: sync::Input,
    },
    Answered {
        thread: u8,
        call: sync::Input,
        value: u64,
    },
    Abandoned {
        thread: u8,
        call: sync::Input,
    },
    /// No notification is missed any more.
    Enrolled {
        thread: u8,
    },
    /// The home of a lock hears that a node wants it, and a node hears that it has it.
    Requested {
        lock: u8,
        node: u16,
    },
    Handed {
        lock: u8,
        node: u16,
    },
    /// A thread begins to change the protocol of pages.
    Meets {
        thread: u8,
    },
    /// Its node objects to that.
    Objects {
        thread: u8,
    },
    /// It waits for something about that no longer.
    TooLong {
        thread: u8,
    },
    /// Its node has changed its own choice.
    Changes {
        thread: u8,
        change: u8,
    },
    /// The change is over for it.
    Ended {
        thread: u8,
        ending: Ending,
    },
}

/// The result of a step of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Out {
    /// Messages, in their order.
    pub packets: Vec<Envelope>,
    /// The events of its threads, in their order.
    pub events: Vec<Event>,
    /// The first breach of the contract.
    pub problem: Option<String>,
    /// The trace, if requested.
    pub story: Option<Vec<String>>,
}

impl Out {
    /// Resets it to the initial state.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.events.clear();
        self.problem = None;
    }

    pub(super) fn event(&mut self, event: Event) {
        self.tell(|| format!("    {event:?}"));
        self.events.push(event);
    }

    pub(super) fn send(&mut self, envelope: Envelope) {
        if envelope.from == envelope.to {
            self.problem(format!("node {} sends to itself", envelope.from));
        }
        self.packets.push(envelope);
    }

    pub(super) fn check(&mut self, found: Result<(), String>) {
        found.unwrap_or_else(|what| self.problem(what));
    }

    pub(super) fn problem(&mut self, what: String) {
        self.problem.get_or_insert(what);
    }

    pub(super) fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(line());
        }
    }
}

impl Node {
    /// This node, about to take a step.
    pub(super) fn acting<'a>(&'a mut self, setup: &'a Setup, out: &'a mut Out) -> Acting<'a> {
        Acting { node: self, shard: 0, setup, out }
    }
}

/// A node that takes a step.
pub(super) struct Acting<'a> {
    pub(super) node: &'a mut Node,
    /// The shard that is held.
    shard: u32,
    pub(super) setup: &'a Setup,
    pub(super) out: &'a mut Out,
}

impl<'a> Carrier for Acting<'a> {
    type Protocol = Ranges;
    crate::obeys!('a);

    fn shard(&mut self) -> &mut Shard<Ranges> {
        &mut self.node.parts.shards[self.shard as usize]
    }

    fn decide(&mut self, input: Input, effects: &mut Vec<Effect>) {
        let Acting { node, shard, setup, out } = self;
        let Some(input) = faults::alter_input(setup.fault, node, input, out) else { return };
        let taken_anyway = faults::takes_anyway(setup, node, &input);
        node.parts.shards[*shard as usize].protocol.step(0, input, effects);
        faults::alter_effects(setup.fault, setup, &input, effects);
        effects.extend(taken_anyway);
        out.tell(|| format!("n{} {input}", node.me));
        effects.iter().for_each(|effect| out.tell(|| format!("    {effect}")));
    }

    fn has_carried_out(&mut self, _effects: &[Effect]) -> Result<(), String> {
        let Acting { node, setup, .. } = self;
        (0..setup.pages.len()).try_for_each(|place| {
            let thought = node.parts.shard(setup.page(place)).protocol.access(setup.page(place));
            node.copies.check(node.me, place, thought, node.marks(setup, place))
        })
    }

    fn look_for_stores(&mut self, stored: &mut Vec<PageIndex>) -> Result<(), String> {
        let (setup, Node { parts, copies: Twinned { bytes, twins, views, stored: marked }, .. }) =
            (self.setup, &mut *self.node);
        let place = |page: PageIndex| setup.place(page).expect("a page of the setup is open");
        let differs = |page| bytes[place(page)] != twins[place(page)];
        let protect = |page| {
            (views[place(page)], marked[place(page)]) = (Access::Read, false);
            Ok::<(), String>(())
        };
        parts.shards[self.shard as usize].look_for_stores(differs, protect, stored)?;
        if setup.fault == Fault::OpenNotCompared {
            stored.clear();
        }
        Ok(())
    }

    fn wait_for(&mut self, page: PageIndex, _waiter: u32) {
        if let Some(changing) = &mut self.node.changing {
            changing.wait_for(page);
        }
    }

    fn has_changed_protocols(&self) -> bool {
        let Node { changing, has_changed, .. } = &self.node;
        (changing.is_some() || *has_changed) && self.setup.fault != Fault::PiggybacksAfterChange
    }

    /// Opens the pages that the new protocol takes over as open to stores, however stores were noticed before.
    fn has_changed(&mut self, run: PageRange, _protocol: Protocol) {
        let Acting { node, setup, .. } = self;
        for page in run.pages().filter(|_| setup.marks(node.me)) {
            let Some(place) = setup.place(page) else { continue };
            if node.parts.shard(page).protocol.access(page) == Access::Write && setup.fault != Fault::OpensNothing {
                node.copies.views[place] = Access::Write;
            }
        }
    }

    fn owes(&mut self, answers: u32) {
        if self.setup.fault != Fault::OwesForOne || self.shard == 0 {
            self.consistency().owes(answers);
        }
    }
}

impl Releasing for Acting<'_> {
    fn me(&self) -> u16 {
        self.node.me
    }

    fn copies(&mut self) -> &mut Twinned {
        &mut self.node.copies
    }

    fn place(&self, page: PageIndex) -> Option<usize> {
        self.setup.place(page)
    }

    fn send(&mut self, to: NodeId, message: Message, body: Body) {
        self.out.send(Envelope { from: self.node.me, to: to.0, message: Packet::Page { message, body } });
    }

    fn wake(&mut self, pages: PageRange) {
        for thread in &mut self.node.threads {
            let Doing::Waiting(place) = thread.doing else { continue };
            let page = self.setup.page(place.into());
            if pages.contains(page) {
                thread.doing = Doing::Ready;
                let shard = self.node.parts.shard_mut(page);
                // Under release consistency no page is held for a thread.
                if !shard.protocol.protocol(page).is_release_consistent() {
                    shard.timers.wake(page);
                    thread.woken = Some(place);
                }
            }
        }
        if let Some(changing) = &mut self.node.changing {
            changing.look_again(pages);
        }
    }

    fn note(&mut self, notice: Notice) {
        self.consistency().knowledge.intervals.note(notice);
    }

    fn published(&mut self) {
        node::published(self);
    }

    fn differs(&mut self, page: PageIndex) {
        self.shard().differs(page);
    }

    /// The pages are protected, or stay open and are compared.
    fn notice_stores(&mut self, pages: PageRange) -> Result<(), String> {
        let (setup, Node { parts, copies, .. }) = (self.setup, &mut *self.node);
        let protect = |run: PageRange| {
            run.pages().filter_map(|page| setup.place(page)).for_each(|place| copies.protect(place));
            Ok(())
        };
        parts.shards[self.shard as usize].downgrade(pages, protect)
    }

    fn reads_late(&self) -> bool {
        self.setup.late_bytes
    }

    fn fault(&self) -> Fault {
        self.setup.fault
    }
}

impl Parts for Acting<'_> {
    type Held<'a>
        = Acting<'a>
    where
        Self: 'a;
    type Breach = String;

    fn shards(&self) -> u32 {
        self.setup.shards()
    }

    fn hold(&mut self, shard: u32) -> Acting<'_> {
        Acting { node: self.node, shard, setup: self.setup, out: self.out }
    }
}

impl Effects for Acting<'_> {
    type Protocol = Ranges;

    fn node(&mut self) -> &mut node::Node<Ranges> {
        &mut self.node.parts
    }

    fn now(&self) -> Nanoseconds {
        0
    }

    /// The home of a flag is about to carry out an operation, or a lock is asked for or handed on.
    fn takes(&mut self, input: &node::Input) -> bool {
        if self.setup.objects.is_some() {
            match *input {
                node::Input::Sync(sync::Input::Message(from, sync::Message::LockRequest(lock, _))) => {
                    self.out.event(Event::Requested { lock: lock as u8, node: from.0 });
                }
                node::Input::Sync(sync::Input::Message(_, sync::Message::LockToken(lock))) => {
                    self.out.event(Event::Handed { lock: lock as u8, node: self.node.me });
                }
                _ => {}
            }
            return true;
        }
        let operated = match *input {
            node::Input::Sync(sync::Input::Operate(flag, operation, waiter))
                if flag % u64::from(self.setup.nodes) == u64::from(self.node.me) =>
            {
                Some((flag, operation, waiter))
            }
            node::Input::Sync(sync::Input::Message(_, sync::Message::AtomicRequest(flag, operation, waiter))) => {
                Some((flag, operation, waiter))
            }
            _ => None,
        };
        if let Some((flag, operation, waiter)) = operated.filter(|(flag, ..)| *flag < FIRST_NUMBER) {
            let is_store = operation != sync::Operation::Load;
            self.out.event(Event::Flag { thread: waiter as u8, flag: flag as u8, is_store });
        }
        true
    }

    fn decide_objects(&mut self, input: sync::Input, decided: &mut Vec<sync::Effect>) {
        let Node { parts, mutant, .. } = &mut *self.node;
        match mutant {
            Some(mutant) => mutant.step(&mut parts.sync, input, decided),
            None => parts.sync.step(input, decided),
        }
    }

    fn heeds(&mut self, effect: membership::Effect) -> Result<bool, String> {
        Err(format!("node {} watches nobody, and reports {effect:?}", self.node.me))
    }

    fn send(&mut self, to: NodeId, message: wire::Message, knowledge: Vec<u8>) -> Result<(), String> {
        let wire::Message::Sync(message) = message else {
            return Err(format!("node {} sends {message}", self.node.me));
        };
        if to.0 >= self.setup.nodes {
            return Err(format!("node {} sends {message} to nobody", self.node.me));
        }
        // The home of a lock wants it itself.
        if let sync::Message::LockForward(lock, next, _) = message
            && next.0 == self.node.me
            && self.setup.objects.is_some()
        {
            self.out.event(Event::Requested { lock: lock as u8, node: next.0 });
        }
        self.out.send(Envelope { from: self.node.me, to: to.0, message: Packet::Sync { message, knowledge } });
        Ok(())
    }

    fn attached(&mut self, to: NodeId, message: &wire::Message) -> Vec<u8> {
        let (setup, me) = (self.setup, self.node.me);
        let mut knowledge = Vec::new();
        let intervals = &mut self.consistency().knowledge.intervals;
        faults::attach_notices(setup.fault, message, intervals, to, me, setup.is_ordered, &mut knowledge);
        knowledge
    }

    fn wake(&mut self, waiter: u32, value: u64) -> Result<(), String> {
        if waiter >= FIRST_CALL {
            if let Some(changing) = &mut self.node.changing {
                changing.returned(waiter, value);
            }
            return Ok(());
        }
        if conditions::is_wait(waiter) {
            return self.node.notified(self.setup, waiter, WaitOutcome::Done, self.out);
        }
        self.node.answered(self.setup, waiter, CallOutcome::Granted(value), self.out)
    }

    fn refuse(&mut self, waiter: u32, why: &'static str) -> Result<(), String> {
        match why {
            ABANDONED if conditions::is_wait(waiter) => {
                self.node.notified(self.setup, waiter, WaitOutcome::NotNotified, self.out)
            }
            ABANDONED => self.node.answered(self.setup, waiter, CallOutcome::NotGranted, self.out),
            _ => Err(format!("call {waiter} of node {} is refused: {why}", self.node.me)),
        }
    }

    fn answer(&mut self, waiter: u32, answer: heap::Answer) -> Result<(), String> {
        Err(format!("node {} has no heap, and answers {waiter} with {answer:?}", self.node.me))
    }

    fn wake_publisher(&mut self, publisher: u32) {
        self.node.publication_is_over(publisher, self.setup, self.out);
    }

    fn breach(&mut self, by: Option<NodeId>, what: &'static str) -> Result<(), String> {
        Err(crate::model::breach(self.node.me, by, what))
    }

    fn marked_in(
        &mut self,
        pages: Range<u32>,
        mut found: impl FnMut(&mut Self, Range<u32>) -> Result<(), String>,
    ) -> Result<(), String> {
        let first = self.node.parts.shards.iter().flat_map(Shard::watched).map(PageRange::first).min();
        let is_looked_at = |page: PageIndex| match self.setup.fault {
            Fault::NoScan => false,
            Fault::FirstChunkOnly => first.is_some_and(|first| first.0 / CHUNK_PAGES == page.0 / CHUNK_PAGES),
            _ => pages.contains(&page.0),
        };
        let all = (0..self.setup.pages.len()).filter(|&place| is_looked_at(self.setup.page(place)));
        for place in all.collect::<Vec<_>>() {
            let page = self.setup.page(place).0;
            let node = &self.node;
            if node.copies.stored[place] && node.copies.views[place] != Access::None && node.marks(self.setup, place) {
                found(self, page..page + 1)?;
            }
        }
        Ok(())
    }

    fn passes_over(&self, shard: u32) -> bool {
        self.setup.fault == Fault::LooksInOne && shard > 0
    }
}
