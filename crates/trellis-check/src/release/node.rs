//! One node: the protocol, what it knows of intervals, its locks, barriers and words, its memory, its threads, and what
//! a runtime does between them.
//!
//! Promises: whatever happens to a node is decided by the node and by that alone, so a step can be remembered; a release
//! goes on only when the publication before it has ended; knowledge goes with every message that may release something,
//! and a message is used only when what it rests on is known; what was learnt is respected before an acquire is over; pages
//! go along with the token of a lock.
//! It must never see another node.

use super::effects::{Body, Envelope, Event, Letter, Out};
use super::{Fault, Operation, PAGE_WORDS, Page, Setup, Source, Value, faults};
use trellis_cluster_protocol::coherence::hlrc::intervals::{Intervals, Learnt, Notice};
use trellis_cluster_protocol::coherence::{Coherence, Input, Running};
use trellis_cluster_protocol::sync::{self, Contribution, Sync};
use trellis_cluster_protocol::{Access, CHUNK_PAGES, NodeId, PageRange};

/// Pages that go with the token of a lock.
const PAGES_CARRIED_MAX: u32 = 4;

/// What a thread is about to do, or waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doing {
    /// Its next operation.
    Ready,
    /// The access failed; the protocol does not know yet.
    Faulted,
    /// It waits for the page at this place.
    Waiting(u8),
    /// It publishes, before a release.
    Publishing,
    /// It has published.
    Published,
    /// It waits for a lock, a barrier or a word.
    Calling,
    /// It has got it, with this value.
    Granted(u64),
    /// It is done.
    Over,
}

/// A thread of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Thread {
    /// Its number among all threads, by which calls name it.
    pub number: u8,
    /// Its next operation.
    pub next: u16,
    /// What it does.
    pub doing: Doing,
    /// What it loaded.
    pub registers: Vec<Value>,
}

/// Knowledge at a barrier, for what need not be kept any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct AtBarrier {
    last: Vec<u64>,
    before: Option<Vec<u64>>,
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Its number.
    pub me: u16,
    pub(super) protocol: Running,
    pub(super) intervals: Intervals,
    sync: Sync,
    pub(super) memory: Vec<Page>,
    pub(super) twins: Vec<Page>,
    pub(super) views: Vec<Access>,
    /// By page: it was stored to since it was opened or downgraded.
    pub(super) stored: Vec<bool>,
    /// The thread that publishes, and whether that has ended.
    publisher: Option<u8>,
    pub(super) is_published: bool,
    /// Its threads.
    pub threads: Vec<Thread>,
    /// Messages that rest on knowledge which is still on its way.
    early: Vec<(u16, sync::Message, Vec<u8>)>,
    at_barrier: AtBarrier,
}

impl Node {
    /// Node `me` of `setup`, at the start.
    pub fn new(setup: &Setup, me: u16) -> Node {
        let pages = setup.pages.len();
        let threads = setup.scripts.iter().enumerate().filter(|(_, script)| script.node == me);
        let thread = |(number, script): (usize, &super::Script)| Thread {
            number: number as u8,
            next: 0,
            doing: if script.operations.is_empty() { Doing::Over } else { Doing::Ready },
            registers: script.registers.clone(),
        };
        Node {
            me,
            protocol: setup.protocol.start(setup.geometry(me)),
            intervals: Intervals::new(NodeId(me), setup.nodes, setup.region_pages(), setup.is_ordered),
            sync: Sync::new(NodeId(me), setup.nodes),
            memory: vec![[0; PAGE_WORDS]; pages],
            twins: vec![[0; PAGE_WORDS]; pages],
            views: vec![Access::None; pages],
            stored: vec![false; pages],
            publisher: None,
            is_published: false,
            threads: threads.map(thread).collect(),
            early: Vec::new(),
            at_barrier: AtBarrier::default(),
        }
    }

    /// Gives the threads new work, where all are done.
    pub fn set_scripts(&mut self, setup: &Setup) {
        for thread in &mut self.threads {
            let script = &setup.scripts[usize::from(thread.number)];
            thread.next = 0;
            thread.registers.clone_from(&script.registers);
            thread.doing = if script.operations.is_empty() { Doing::Over } else { Doing::Ready };
        }
    }

    /// Whether its thread at this place of its list can do something.
    pub fn can_go(&self, setup: &Setup, thread: usize) -> bool {
        let Thread { number, next, doing, .. } = self.threads[thread];
        match doing {
            Doing::Ready => {
                let operation = setup.scripts[usize::from(number)].operations[usize::from(next)];
                !releases(operation) || self.publisher.is_none()
            }
            Doing::Faulted | Doing::Published | Doing::Granted(_) => true,
            Doing::Waiting(_) | Doing::Publishing | Doing::Calling | Doing::Over => false,
        }
    }

    /// Whether all threads are done.
    pub fn is_over(&self) -> bool {
        self.threads.iter().all(|thread| thread.doing == Doing::Over)
    }

    /// Whether it keeps nothing back.
    pub fn is_quiet(&self) -> bool {
        self.early.is_empty()
    }

    /// What the home of the page at `place` has for everybody.
    pub fn master(&self, setup: &Setup, place: usize) -> Option<&Page> {
        self.protocol.owns(setup.page(place)).then(|| &self.memory[place])
    }

    /// A thread does what comes next.
    pub fn go(&mut self, setup: &Setup, thread: usize, out: &mut Out) {
        let Thread { number, next, doing, .. } = self.threads[thread];
        let operation = setup.scripts[usize::from(number)].operations[usize::from(next)];
        match (doing, operation) {
            (Doing::Ready, Operation::Load { .. } | Operation::Store { .. }) => {
                self.access(setup, thread, operation, out);
            }
            (Doing::Faulted, operation) => self.submit(setup, thread, operation, out),
            (Doing::Ready, Operation::Lock(lock)) => {
                self.call(setup, thread, sync::Input::Acquire(lock.into(), number.into()), out);
            }
            (Doing::Ready, Operation::Get { flag, .. }) => {
                let load = sync::Input::Operate(flag.into(), sync::Operation::Load, number.into());
                self.call(setup, thread, load, out);
            }
            (Doing::Ready, Operation::Announce { page, write }) => {
                self.threads[thread].next += 1;
                self.end_if_over(setup, thread);
                let page = setup.page(usize::from(page));
                let wish = PageRange::around(page, page.0, setup.region_pages());
                let wish = wish.grow(page, |other| setup.place(other).is_some());
                self.step(setup, Input::Prefetch { wish, write, announced: true }, &Body::Nothing, out);
            }
            (Doing::Ready, _) => self.publish(setup, thread, out),
            (Doing::Published, _) => self.release(setup, thread, operation, out),
            (Doing::Granted(value), _) => self.granted(setup, thread, operation, value, out),
            _ => out.problem(format!("thread {number} cannot go on: {doing:?}")),
        }
    }

    fn access(&mut self, setup: &Setup, thread: usize, operation: Operation, out: &mut Out) {
        let (word, write) = match operation {
            Operation::Load { word, .. } => (word, false),
            Operation::Store { word, .. } => (word, true),
            _ => unreachable!("only these are accesses"),
        };
        let (page, place) = (usize::from(word) / PAGE_WORDS, usize::from(word) % PAGE_WORDS);
        let view = self.views[page];
        if view != Access::Write && (view == Access::None || write && !setup.marks(self.me)) {
            self.threads[thread].doing = Doing::Faulted;
            if !setup.late_faults {
                self.submit(setup, thread, operation, out);
            }
            return;
        }
        let number = self.threads[thread].number;
        match operation {
            Operation::Load { register, .. } => {
                let value = self.memory[page][place];
                if let Some(register) = self.threads[thread].registers.get_mut(usize::from(register)) {
                    *register = value;
                }
                out.event(Event::Load { thread: number, word, value });
            }
            Operation::Store { source, .. } => {
                let value = self.value(thread, source);
                self.memory[page][place] = value;
                self.stored[page] = true;
                out.event(Event::Store { thread: number, word, value });
            }
            _ => unreachable!("only these are accesses"),
        }
        self.threads[thread].next += 1;
        self.end_if_over(setup, thread);
    }

    fn value(&self, thread: usize, source: Source) -> Value {
        match source {
            Source::Constant(value) => value,
            Source::Register(register) => self.threads[thread].registers[usize::from(register)],
        }
    }

    fn end_if_over(&mut self, setup: &Setup, thread: usize) {
        let Thread { number, next, .. } = self.threads[thread];
        let is_over = usize::from(next) >= setup.scripts[usize::from(number)].operations.len();
        self.threads[thread].doing = if is_over { Doing::Over } else { Doing::Ready };
    }

    fn submit(&mut self, setup: &Setup, thread: usize, operation: Operation, out: &mut Out) {
        let (word, write) = match operation {
            Operation::Load { word, .. } => (word, false),
            Operation::Store { word, .. } => (word, true),
            _ => unreachable!("only accesses fault"),
        };
        let place = usize::from(word) / PAGE_WORDS;
        self.threads[thread].doing = Doing::Waiting(place as u8);
        let page = setup.page(place);
        let wish = if setup.is_wide {
            let chunk = page.0 / CHUNK_PAGES * CHUNK_PAGES;
            let all = PageRange::around(page, chunk, setup.region_pages());
            all.grow(page, |other| setup.place(other).is_some())
        } else {
            PageRange::one(page)
        };
        self.step(setup, Input::Fault { page, write, wish }, &Body::Nothing, out);
    }

    fn call(&mut self, setup: &Setup, thread: usize, input: sync::Input, out: &mut Out) {
        self.threads[thread].doing = Doing::Calling;
        self.sync_step(setup, input, out);
    }

    fn publish(&mut self, setup: &Setup, thread: usize, out: &mut Out) {
        self.publisher = Some(self.threads[thread].number);
        self.threads[thread].doing = Doing::Publishing;
        self.is_published = false;
        if setup.fault == Fault::ClosesEarly {
            self.intervals.close();
        }
        if setup.marks(self.me) && setup.fault != Fault::NoScan {
            for place in 0..self.views.len() {
                if self.stored[place] && self.views[place] != Access::None {
                    let range = PageRange::one(setup.page(place));
                    self.step(setup, Input::Stored { range }, &Body::Nothing, out);
                }
            }
        }
        let Setup { unacknowledged_max, together_max, .. } = *setup;
        self.step(setup, Input::Publish { unacknowledged_max, together_max }, &Body::Nothing, out);
        if setup.fault == Fault::ReleasesUnacknowledged {
            self.is_published = true;
        }
        self.note_published(setup, out);
    }

    /// The publication has ended, if it has: who waits for that goes on.
    pub(super) fn note_published(&mut self, setup: &Setup, out: &mut Out) {
        if !self.is_published {
            return;
        }
        let publisher = self.publisher;
        let is_it = |thread: &Thread| Some(thread.number) == publisher && thread.doing == Doing::Publishing;
        let Some(thread) = self.threads.iter().position(is_it) else { return };
        self.is_published = false;
        self.threads[thread].doing = Doing::Published;
        if setup.fault != Fault::ReleasesUnacknowledged {
            out.event(Event::Published { thread: self.threads[thread].number });
        }
    }

    fn release(&mut self, setup: &Setup, thread: usize, operation: Operation, out: &mut Out) {
        if !matches!(setup.fault, Fault::NeverCloses | Fault::ClosesEarly) {
            self.intervals.close();
        }
        self.publisher = None;
        let number = self.threads[thread].number;
        match operation {
            Operation::Unlock(lock) => {
                out.event(Event::Unlock { thread: number, lock });
                self.threads[thread].next += 1;
                self.end_if_over(setup, thread);
                self.sync_step(setup, sync::Input::Release(lock.into()), out);
            }
            Operation::Barrier => {
                out.event(Event::Arrive { thread: number });
                let time = self.intervals.time().to_vec();
                let before = std::mem::replace(&mut self.at_barrier.last, time);
                self.at_barrier.before = (!before.is_empty()).then_some(before);
                self.call(setup, thread, sync::Input::Arrive(0, Contribution::Nothing, number.into()), out);
            }
            Operation::Set { flag, source } => {
                let value = u64::from(self.value(thread, source));
                let store = sync::Operation::Exchange(value);
                self.call(setup, thread, sync::Input::Operate(flag.into(), store, number.into()), out);
            }
            other => out.problem(format!("{other:?} is no release")),
        }
    }

    /// A call returns: what was learnt is respected before the program goes on.
    fn granted(&mut self, setup: &Setup, thread: usize, operation: Operation, value: u64, out: &mut Out) {
        let number = self.threads[thread].number;
        match operation {
            Operation::Lock(lock) => out.event(Event::Locked { thread: number, lock }),
            Operation::Barrier => {
                if setup.fault == Fault::ForgetsTooEarly {
                    self.at_barrier.before = Some(self.intervals.time().to_vec());
                }
                if let Some(before) = self.at_barrier.before.take() {
                    self.intervals.everybody_knows(&before);
                }
                out.event(Event::Left { thread: number });
            }
            Operation::Get { register, .. } => {
                if let Some(register) = self.threads[thread].registers.get_mut(usize::from(register)) {
                    *register = value as Value;
                }
            }
            _ => {}
        }
        self.threads[thread].next += 1;
        self.end_if_over(setup, thread);
        // Who stores to a word only releases.
        if !matches!(operation, Operation::Set { .. }) {
            self.refresh(setup, out);
        }
    }

    fn refresh(&mut self, setup: &Setup, out: &mut Out) {
        if !self.intervals.has_unapplied() {
            return;
        }
        let mut notices = Vec::new();
        let any = self.intervals.take_unapplied(&mut notices);
        faults::alter_notices(setup.fault, &mut notices);
        if any {
            for place in 0..setup.pages.len() {
                let range = PageRange::one(setup.page(place));
                self.step(setup, Input::Notice { range, stamp: u64::MAX }, &Body::Nothing, out);
            }
        }
        for Notice { range, stamp } in notices {
            self.step(setup, Input::Notice { range, stamp }, &Body::Nothing, out);
        }
    }

    /// A message arrives.
    pub fn deliver(&mut self, setup: &Setup, from: u16, letter: &Letter, out: &mut Out) {
        match letter {
            Letter::Page { message, body } => {
                if let (Some(range), Body::Pages(pages)) = (message.bytes(), body) {
                    for (page, bytes) in range.pages().zip(pages) {
                        let Some(place) = setup.place(page) else { continue };
                        if self.views[place] != Access::None {
                            out.problem(format!("node {}: bytes of {page} come, which is mapped", self.me));
                        }
                        self.memory[place] = *bytes;
                    }
                }
                self.step(setup, Input::Message { from: NodeId(from), message: *message }, body, out);
                self.note_published(setup, out);
            }
            Letter::Sync { message, knowledge } => {
                if message.releases() && setup.fault != Fault::UsesTooEarly {
                    self.early.push((from, *message, knowledge.clone()));
                    return self.hear(setup, out);
                }
                if message.releases() {
                    // The mutant does not wait for what the message rests on.
                    let _ = self.intervals.learn(NodeId(from), knowledge);
                }
                self.sync_step(setup, sync::Input::Message(NodeId(from), *message), out);
            }
        }
    }

    /// Uses the messages whose knowledge can be learnt now.
    fn hear(&mut self, setup: &Setup, out: &mut Out) {
        loop {
            let mut refused = None;
            let Node { intervals, early, .. } = self;
            let known = early.iter().position(|(from, _, knowledge)| match intervals.learn(NodeId(*from), knowledge) {
                Ok(Learnt::Known) => true,
                Ok(Learnt::TooEarly) => false,
                Err(_) => {
                    refused = Some(*from);
                    true
                }
            });
            if let Some(from) = refused {
                return out.problem(format!("node {} refuses what {from} tells of intervals", self.me));
            }
            let Some(index) = known else { return };
            let (from, message, _) = self.early.remove(index);
            self.sync_step(setup, sync::Input::Message(NodeId(from), message), out);
        }
    }

    fn sync_step(&mut self, setup: &Setup, input: sync::Input, out: &mut Out) {
        let operated = match input {
            sync::Input::Operate(flag, operation, waiter) if flag % u64::from(setup.nodes) == u64::from(self.me) => {
                Some((flag, operation, waiter))
            }
            sync::Input::Message(_, sync::Message::AtomicRequest(flag, operation, waiter)) => {
                Some((flag, operation, waiter))
            }
            _ => None,
        };
        if let Some((flag, operation, waiter)) = operated {
            let is_store = operation != sync::Operation::Load;
            out.event(Event::Flag { thread: waiter as u8, flag: flag as u8, is_store });
        }
        let next = self.sync.token_goes_to(&input);
        if let Some(to) = next {
            self.step(setup, Input::Carry { to, pages_max: PAGES_CARRIED_MAX }, &Body::Nothing, out);
        }
        let mut effects = Vec::new();
        self.sync.step(input, &mut effects);
        let goes_to = |to| effects.iter().any(|effect| goes_with(effect) == Some(to));
        if next.is_some_and(|to| !goes_to(to)) {
            out.problem(format!("node {} keeps a token that was to leave it: {input:?}", self.me));
        }
        for effect in effects {
            match effect {
                sync::Effect::Send(to, message) => {
                    let mut knowledge = Vec::new();
                    if message.releases() {
                        let intervals = &mut self.intervals;
                        faults::tell(setup.fault, &message, intervals, to, self.me, setup.is_ordered, &mut knowledge);
                    }
                    out.send(Envelope { from: self.me, to: to.0, letter: Letter::Sync { message, knowledge } });
                }
                sync::Effect::Wake(waiter, value) => {
                    let is_it = |thread: &&mut Thread| u32::from(thread.number) == waiter;
                    match self.threads.iter_mut().find(is_it).filter(|thread| thread.doing == Doing::Calling) {
                        Some(thread) => thread.doing = Doing::Granted(value),
                        None => out.problem(format!("node {} wakes {waiter}, which does not wait", self.me)),
                    }
                }
                sync::Effect::Violation(from, what) => {
                    out.problem(format!("node {} reports of {from}: {what}", self.me));
                }
                sync::Effect::Refused(waiter, what) => {
                    out.problem(format!("node {} refuses a call of thread {waiter}: {what}", self.me));
                }
            }
        }
    }
}

/// To whom a lock's token goes.
fn goes_with(effect: &sync::Effect) -> Option<NodeId> {
    match effect {
        sync::Effect::Send(to, sync::Message::LockToken(_)) => Some(*to),
        _ => None,
    }
}

/// Whether an operation is preceded by a publication.
fn releases(operation: Operation) -> bool {
    matches!(operation, Operation::Unlock(_) | Operation::Barrier | Operation::Set { .. })
}
