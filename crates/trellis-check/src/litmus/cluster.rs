//! The cluster of litmus tests: shards, copies with real values, messages and threads.
//!
//! Promises: any message under way may be delivered next, and whatever is pending in a shard may go off next. A waiting
//! thread tries its access again only after a wake. An effect that breaks the contract is recorded as a problem and
//! ends the run. It must never help a protocol: it retries nothing, and delivers nothing that was not sent.

use super::program::{ALIEN, Code, LOCATIONS_MAX};
use crate::model::{self, First, Memory, Stepping};
use trellis_cluster_protocol::coherence::{Coherence, Effect, Input, Message};
use trellis_cluster_protocol::node::{Order, Shard};
use trellis_cluster_protocol::{Access, Nanoseconds, NodeId, PageIndex, PageRange};

/// The maximum number of nodes of a simulated cluster.
pub const NODES_MAX: usize = 9;
/// The maximum number of pages: one for each location.
pub const PAGES_MAX: usize = LOCATIONS_MAX;

/// A set of pages or locations, one bit each.
pub(super) type Set = u8;

/// The priority of a message that has not got one yet.
pub(super) const NEW: u32 = 0;

/// A message under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope {
    pub(super) from: u8,
    pub(super) to: u8,
    pub(super) priority: u32,
    pub(super) message: Message,
}

/// How long a page is held at most. No event has to wait for another, so nor does the end of that time.
const HOLD_MAX: Nanoseconds = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Activity {
    /// About to try its next instruction.
    #[default]
    Ready,
    /// The access failed; the protocol does not know yet.
    Faulted,
    Waiting,
    Woken,
    Done,
}

/// A thread and its current access.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Thread {
    pub(super) node: u8,
    pub(super) activity: Activity,
    /// The next instruction.
    pub(super) next: u8,
    pub(super) page: u8,
    pub(super) asks_write: bool,
    pub(super) priority: u32,
}

/// The words of a page. Those whose locations are on other pages are not used.
type Words = [Code; LOCATIONS_MAX];

pub(super) struct Cluster<N> {
    pub(super) nodes: Vec<Shard<N>>,
    memory: Memory<First, Words>,
    /// By node: the pages that are held, and let go when their time is over.
    asked_for: [Set; NODES_MAX],
    pub(super) threads: Vec<Thread>,
    /// Threads that can run, and those that are not done; one bit each.
    pub(super) runnable: u16,
    pub(super) unfinished: u16,
    /// Nodes at which something is pending.
    pub(super) open: u16,
    /// The protocol does not learn when a woken thread has run on. This is so where the kernel blocks the thread.
    pub(super) silent: bool,
    pub(super) messages: Vec<Envelope>,
    pub(super) now: Nanoseconds,
    pub(super) pages: u8,
    /// The locations of each page.
    words_of: [Set; PAGES_MAX],
    /// The first breach of the contract.
    pub(super) problem: Option<String>,
    pub(super) trace: Option<Vec<String>>,
}

impl<N: Coherence + Clone> Cluster<N> {
    pub(super) fn new() -> Cluster<N> {
        Cluster {
            nodes: Vec::new(),
            memory: Memory::new(First(0), 0, [ALIEN; LOCATIONS_MAX]),
            asked_for: [0; NODES_MAX],
            threads: Vec::new(),
            runnable: 0,
            unfinished: 0,
            open: 0,
            silent: false,
            messages: Vec::with_capacity(64),
            now: 0,
            pages: 0,
            words_of: [0; PAGES_MAX],
            problem: None,
            trace: None,
        }
    }

    /// A fresh cluster, with the locations on the pages that `layout` assigns.
    pub(super) fn reset(&mut self, start: &[Shard<N>], layout: &[u8], pages: u8, checks_contract: bool) {
        self.nodes.clear();
        self.nodes.extend_from_slice(start);
        let memory = Memory::new(First(pages.into()), start.len(), [ALIEN; LOCATIONS_MAX]);
        self.memory = if checks_contract { memory } else { memory.unchecked() };
        self.asked_for = [0; NODES_MAX];
        self.clear_threads();
        self.open = 0;
        self.messages.clear();
        self.now = 0;
        self.pages = pages;
        self.words_of = [0; PAGES_MAX];
        for (location, &page) in layout.iter().enumerate() {
            self.words_of[usize::from(page)] |= 1 << location;
        }
        self.problem = None;
    }

    /// Removes the threads and leaves the rest unchanged.
    pub(super) fn clear_threads(&mut self) {
        self.threads.clear();
        (self.runnable, self.unfinished) = (0, 0);
    }

    /// Resets the words to their initial values wherever a copy is current; an outdated copy gets a value that was
    /// never written. Requests, rights and messages under way stay unchanged.
    pub(super) fn rewrite(&mut self, initial: &[Code]) {
        for page in (0..self.pages).map(|page| PageIndex(page.into())) {
            for node in 0..self.nodes.len() as u16 {
                let is_current = self.memory.version(node, page) == self.memory.last(page);
                let words = self.memory.bytes_mut(node, page);
                for location in members(self.words_of[page.0 as usize].into()).map(usize::from) {
                    words[location] = if is_current { initial[location] } else { ALIEN };
                }
            }
        }
    }

    /// The rights of all nodes and the messages under way, as text.
    pub(super) fn situation(&self) -> String {
        let views = |node: usize| {
            let view = |page: u8| self.memory.view(node as u16, PageIndex(page.into()));
            let word = |page| ["-", "read", "write"][view(page) as usize];
            format!("node {node}: {}", (0..self.pages).map(word).collect::<Vec<_>>().join(" "))
        };
        let views: Vec<String> = (0..self.nodes.len()).map(views).collect();
        let under_way = self.messages.iter();
        let under_way: Vec<String> = under_way.map(|m| format!("; {} to {}: {}", m.from, m.to, m.message)).collect();
        format!("views of the pages: {}{}", views.join(", "), under_way.concat())
    }

    /// Adds a line to the trace if there is one.
    pub(super) fn tell(&mut self, line: impl FnOnce(&Cluster<N>) -> String) {
        if self.trace.is_some() {
            let line = line(self);
            self.trace.get_or_insert_default().push(line);
        }
    }

    /// The value at `location` of `page` at `node`, or `None` if the access faults.
    pub(super) fn load(&self, node: u8, page: u8, location: u8) -> Option<Code> {
        let (node, page) = (node.into(), PageIndex(page.into()));
        let may_load = self.memory.view(node, page) >= Access::Read;
        may_load.then(|| self.memory.bytes(node, page)[usize::from(location)])
    }

    /// Stores a value and returns the previous one, or `None` if the access faults.
    pub(super) fn swap(&mut self, node: u8, page: u8, location: u8, code: Code) -> Option<Code> {
        let (node, page) = (node.into(), PageIndex(page.into()));
        if self.memory.view(node, page) < Access::Write {
            return None;
        }
        let stored = self.memory.store(node, page);
        self.note(stored.map(|_| ()));
        Some(std::mem::replace(&mut self.memory.bytes_mut(node, page)[usize::from(location)], code))
    }

    /// Sets the activity of a thread.
    pub(super) fn turn(&mut self, thread: usize, activity: Activity) {
        let bit = 1 << thread;
        self.threads[thread].activity = activity;
        let can_run = !matches!(activity, Activity::Waiting | Activity::Done);
        self.runnable = if can_run { self.runnable | bit } else { self.runnable & !bit };
        self.unfinished = if activity == Activity::Done { self.unfinished & !bit } else { self.unfinished | bit };
    }

    /// Whether a page is held at `node` for a thread that was woken and has not run yet.
    pub(super) fn is_about_to_look(&self, node: u8) -> bool {
        self.asked_for[usize::from(node)] & self.about_to_look(node) != 0
    }

    fn about_to_look(&self, node: u8) -> Set {
        let woken = self.threads.iter().filter(|t| t.activity == Activity::Woken && t.node == node);
        woken.fold(0, |set, thread| set | 1 << thread.page)
    }

    /// The timers of `node` that may expire: the place of each among its timers, and whether it is the alarm of a page.
    /// The timer of a page that is held for a thread that has not run yet may expire only if `is_late`: the time of the
    /// thread is over.
    pub(super) fn pending(&self, node: u8, is_late: bool) -> impl Iterator<Item = (usize, bool)> {
        let kept = if is_late { 0 } else { self.about_to_look(node) };
        let free = self.asked_for[usize::from(node)] & !kept;
        let of_timer = move |(place, (input, _))| match input {
            Input::Resumed { page } => (free >> page.0 & 1 != 0).then_some((place, false)),
            _ => Some((place, true)),
        };
        self.nodes[usize::from(node)].timers.pending().enumerate().filter_map(of_timer)
    }

    /// The thread that waited for `page` has run on. Where nobody tells, the node may look at its timers by itself.
    pub(super) fn looked(&mut self, node: u8, page: u8, looks_itself: bool) {
        if self.silent {
            self.asked_for[usize::from(node)] |= Set::from(looks_itself) << page;
            return;
        }
        let done = self.looks(node.into(), PageIndex(page.into()));
        self.note(done);
        self.look_at_timers(node);
    }

    /// Reports a fault to the protocol; the thread waits.
    pub(super) fn report_fault(&mut self, thread: usize, wanted: PageRange) {
        let Thread { node, page, asks_write, .. } = self.threads[thread];
        self.turn(thread, Activity::Waiting);
        self.take(node, Input::Fault { page: PageIndex(page.into()), write: asks_write, wanted });
    }

    /// Delivers a message.
    pub(super) fn deliver(&mut self, index: usize) {
        let Envelope { from, to, message, .. } = self.messages.swap_remove(index);
        let done = self.hand_over(from.into(), to.into(), message);
        self.note(done);
        self.look_at_timers(to);
    }

    /// The timer of `node` at this place expires.
    pub(super) fn go_off(&mut self, node: u8, place: usize) {
        let pending = self.nodes[usize::from(node)].timers.pending().nth(place);
        let (input, due) = pending.expect("the timer is pending");
        self.now = self.now.max(due);
        if let Input::Resumed { page } = input {
            self.asked_for[usize::from(node)] &= !(1 << page.0);
        }
        self.nodes[usize::from(node)].timers.take(input);
        self.take(node, input);
    }

    fn take(&mut self, node: u8, input: Input) {
        let done = self.step(node.into(), PageIndex(0), input);
        self.note(done);
        self.look_at_timers(node);
    }

    fn look_at_timers(&mut self, node: u8) {
        let is_open = u16::from(!self.nodes[usize::from(node)].timers.is_empty());
        self.open = self.open & !(1 << node) | is_open << node;
    }

    fn note(&mut self, done: Result<(), String>) {
        if let Err(problem) = done {
            self.problem.get_or_insert(problem);
        }
    }
}

impl<N: Coherence + Clone> model::Cluster for Cluster<N> {
    type Layout = First;
    type Bytes = Words;

    fn memory(&mut self) -> &mut Memory<First, Words> {
        &mut self.memory
    }

    fn put_under_way(&mut self, node: u16, to: NodeId, message: Message) -> Result<(), String> {
        if usize::from(to.0) >= self.nodes.len() {
            return Err(format!("node {node} sends to {to}: {message}"));
        }
        self.messages.push(Envelope { from: node as u8, to: to.0 as u8, priority: NEW, message });
        Ok(())
    }

    fn look_again(&mut self, node: u16, range: PageRange) -> Result<(), String> {
        for index in 0..self.threads.len() {
            let Thread { node: at, page, activity, .. } = self.threads[index];
            let page = PageIndex(page.into());
            if u16::from(at) != node || activity != Activity::Waiting || !range.contains(page) {
                continue;
            }
            self.turn(index, Activity::Woken);
            let timers = &mut self.nodes[usize::from(node)].timers;
            if self.silent {
                timers.hold(page, self.now, HOLD_MAX);
            } else {
                timers.wake(page);
            }
        }
        Ok(())
    }

    /// Litmus tests take no locks of pages.
    fn has_locked(&mut self, node: u16, pages: PageRange, call: u32) -> Result<(), String> {
        Err(format!("node {node} locks {pages} for call {call}, which nobody made"))
    }
}

impl<N: Coherence + Clone> Stepping for Cluster<N> {
    type Node = N;

    fn shard(&mut self, node: u16, _page: PageIndex) -> &mut Shard<N> {
        &mut self.nodes[usize::from(node)]
    }

    fn shards(&self) -> u32 {
        1
    }

    fn now(&self) -> Nanoseconds {
        self.now
    }

    fn order(&mut self, node: u16, _page: PageIndex, effect: Effect) -> Order {
        let now = self.now;
        self.nodes[usize::from(node)].order(effect, || now, HOLD_MAX)
    }

    fn note_input(&mut self, node: u16, input: Input) {
        self.tell(|_| format!("n{node} {input}"));
    }

    fn note_effect(&mut self, node: u16, effect: Effect) {
        if let Effect::Hold(page) = effect {
            self.asked_for[usize::from(node)] |= 1 << page.0;
        }
        self.tell(|_| format!("    {effect}"));
    }
}

/// The members of a set, ascending.
pub(super) fn members(set: u16) -> impl Iterator<Item = u8> {
    let mut left = set;
    std::iter::from_fn(move || {
        let next = (left != 0).then(|| left.trailing_zeros() as u8)?;
        left &= left - 1;
        Some(next)
    })
}
