//! The cluster of scripts, random programs and litmus tests, which choose every step of it.
//!
//! It has whole nodes, their copies of pages, the messages under way, and the threads that wait for pages. Any message
//! may be delivered next, and whatever is pending in a shard may go off next.
//!
//! Promises: what a step does is told, effects in their order, if a story is kept. The first breach of the contract is
//! kept as the problem. A call for locked pages goes to the protocol as it is, so that a test may unlock what has ended
//! by itself. It must never let a thread retry that was not woken, let an alarm go off that was not set, or deliver what
//! was not sent.

use super::{Cluster, Envelope, First, Memory, Stepping};
use trellis_cluster_protocol::coherence::{Coherence, Effect, Geometry, Input, Message, Protocol, Purpose, Running};
use trellis_cluster_protocol::homes::Home;
use trellis_cluster_protocol::node::{Node, Order, Shard};
use trellis_cluster_protocol::sync::Sync;
use trellis_cluster_protocol::{Access, CHUNK_PAGES, Nanoseconds, NodeId, PageIndex, PageRange};

/// An access of a thread that waits for its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The thread, by a number that the caller chose.
    pub thread: usize,
    /// The page.
    pub page: u32,
    /// Whether it is a store.
    pub write: bool,
    /// The pages that were requested.
    pub wanted: PageRange,
    /// Whether the thread may retry.
    pub woken: bool,
}

/// How a node learns that a thread has run on that it woke for a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunsOn {
    /// The script says so ([`Driven::resume`]).
    #[default]
    Told,
    /// The thread says so when it looks again, as in a runtime.
    Looks,
    /// Nobody says so, as where the kernel blocks the thread. The page stays for a while.
    Silent,
}

/// A call that locks pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The node of the program.
    pub node: u16,
    /// Its number.
    pub number: u32,
    /// The pages.
    pub range: PageRange,
    /// Whether the lock ends by itself.
    pub is_timed: bool,
    /// Whether it has all its pages.
    pub has_all: bool,
}

/// The outcome of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The load returned this value.
    Loaded(u64),
    /// The store wrote this value.
    Stored(u64),
    /// The view does not allow it.
    Faulted,
}

/// An alarm: its node, its page and its purpose.
pub type Alarm = (u16, u32, Purpose);

/// How long a page is held at most. No event has to wait for another, so nor does the end of that time.
const HOLD_MAX: Nanoseconds = 0;

/// See the module.
#[derive(Debug)]
pub struct Driven<N = Running, B = u64> {
    nodes: Vec<Node<N>>,
    pub(crate) memory: Memory<First, B>,
    values: u64,
    last_call: u32,
    /// The messages under way, the oldest first, unless the caller orders them otherwise.
    pub under_way: Vec<Envelope>,
    /// By node, the threads that wait.
    pub waiting: Vec<Vec<Waiting>>,
    pub(crate) runs_on: RunsOn,
    /// Held pages that somebody wants, or at which their node looks by itself: these are let go after a while.
    asked_for: Vec<(u16, PageIndex)>,
    /// Calls that have locked pages, or wait for them.
    pub calls: Vec<Call>,
    /// The time that is passed to the protocol.
    pub now: Nanoseconds,
    /// The history in words, if it is kept.
    pub story: Option<Vec<String>>,
    /// The first breach of the contract.
    pub problem: Option<String>,
}

/// The nodes of a cluster at its start.
pub fn nodes_of<N: Coherence>(
    home: Home,
    nodes: u16,
    pages: u32,
    shards: u32,
    start: impl Fn(Geometry) -> N,
) -> Vec<Node<N>> {
    let shard = |me, shard| {
        let geometry = Geometry { me, nodes, founders: nodes, pages, shard, shards, home, marks: false };
        Shard::new(start(geometry), geometry, NodeId(0))
    };
    let node = |me| {
        let shards = (0..shards).map(|number| shard(me, number)).collect();
        Node::new(shards, Sync::new(me, nodes), None, NodeId(0))
    };
    (0..nodes).map(NodeId).map(node).collect()
}

impl Driven {
    /// A cluster at its start, with its story.
    pub fn new(protocol: Protocol, home: Home, nodes: u16, pages: u32, shards: u32) -> Driven {
        let nodes = nodes_of(home, nodes, pages, shards, |geometry| protocol.start(geometry));
        Driven { story: Some(Vec::new()), ..Driven::of(nodes, pages, 0) }
    }
}

impl<N: Coherence> Driven<N> {
    /// Attempts an access. A store writes a value that was never stored before.
    pub fn access(&mut self, node: u16, page: u32, write: bool) -> Outcome {
        let next = self.values + u64::from(write);
        let found =
            if write { self.store(node, page, |value| std::mem::replace(value, next)) } else { self.load(node, page) };
        match found {
            None => Outcome::Faulted,
            Some(value) if !write => Outcome::Loaded(value),
            Some(_) => {
                self.values = next;
                Outcome::Stored(next)
            }
        }
    }
}

impl<N: Coherence, B: Copy + Default> Driven<N, B> {
    /// A cluster of these nodes; a copy without bytes has the content `absent`.
    pub fn of(nodes: Vec<Node<N>>, pages: u32, absent: B) -> Driven<N, B> {
        Driven {
            memory: Memory::new(First(pages), nodes.len(), absent),
            values: 0,
            last_call: 0,
            under_way: Vec::with_capacity(64),
            waiting: vec![Vec::new(); nodes.len()],
            runs_on: RunsOn::default(),
            asked_for: Vec::new(),
            calls: Vec::new(),
            now: 0,
            story: None,
            problem: None,
            nodes,
        }
    }

    /// Breaches of the contract are passed over.
    pub fn unchecked(mut self) -> Driven<N, B> {
        self.memory = self.memory.unchecked();
        self
    }

    /// Adds a line to the story, if it is kept.
    pub(crate) fn tell(&mut self, line: impl FnOnce(&Driven<N, B>) -> String) {
        if self.story.is_some() {
            let line = line(self);
            self.story.get_or_insert_default().push(line);
        }
    }

    /// Loads the content of a page; `None` if the view does not allow it.
    pub fn load(&mut self, node: u16, page: u32) -> Option<B> {
        let page = PageIndex(page);
        if self.memory.view(node, page) < Access::Read {
            return None;
        }
        let loaded = self.memory.load(node, page);
        self.note(loaded.map(drop));
        Some(*self.memory.bytes(node, page))
    }

    /// Stores to a page, and returns what `change` does; `None` if the view does not allow it.
    pub fn store<T>(&mut self, node: u16, page: u32, change: impl FnOnce(&mut B) -> T) -> Option<T> {
        let page = PageIndex(page);
        if self.memory.view(node, page) < Access::Write {
            return None;
        }
        let stored = self.memory.store(node, page);
        self.note(stored.map(drop));
        Some(change(self.memory.bytes_mut(node, page)))
    }

    /// A thread's access faulted: the thread waits from now on.
    pub fn fault(&mut self, node: u16, thread: usize, page: u32, write: bool, wanted: PageRange) {
        self.waiting[usize::from(node)].push(Waiting { thread, page, write, wanted, woken: false });
        let page = PageIndex(page);
        self.take(node, page, Input::Fault { page, write, wanted });
    }

    /// Removes a woken thread from the waiting ones, so that it retries.
    pub fn take_woken(&mut self, node: u16, index: usize) -> Waiting {
        let waiting = self.waiting[usize::from(node)].remove(index);
        assert!(waiting.woken, "nobody woke the thread of node {node} that waits for page {}", waiting.page);
        waiting
    }

    /// Whether a thread of `node`, which waits for a page, may retry.
    pub(crate) fn is_woken(&self, node: u16, thread: usize) -> bool {
        self.waiting[usize::from(node)].iter().any(|waiting| waiting.thread == thread && waiting.woken)
    }

    /// A woken thread has retried. Where nobody says so, the node may look at its timers by itself.
    pub(crate) fn looked(&mut self, node: u16, page: u32, looks_itself: bool) {
        let page = PageIndex(page);
        match self.runs_on {
            RunsOn::Told => {}
            RunsOn::Looks => {
                let done = self.looks(node, page);
                self.note(done);
            }
            RunsOn::Silent if looks_itself => self.ask_for(node, page),
            RunsOn::Silent => {}
        }
    }

    /// Whether a thread of `node` was woken for `page` and has not run yet.
    fn is_about_to_look(&self, node: u16, page: PageIndex) -> bool {
        self.waiting[usize::from(node)].iter().any(|waiting| waiting.woken && waiting.page == page.0)
    }

    /// Whether a page is held at `node` for a thread that was woken and has not run yet.
    pub(crate) fn holds_for_thread(&self, node: u16) -> bool {
        self.asked_for.iter().any(|&(other, page)| other == node && self.is_about_to_look(node, page))
    }

    /// The nodes at which something is pending.
    pub(crate) fn open(&self) -> impl Iterator<Item = u16> {
        let is_open = |(_, node): &(u16, &Node<N>)| node.shards.iter().any(|shard| !shard.timers.is_empty());
        (0..).zip(&self.nodes).filter(is_open).map(|(number, _)| number)
    }

    /// The alarms that may be due at `node`. A page that is held for a thread that has not run yet is let go only if
    /// `is_late`: the time of the thread is over.
    pub(crate) fn may_go_off(&self, node: u16, is_late: bool) -> impl Iterator<Item = (Input, Nanoseconds)> {
        let pending = self.nodes[usize::from(node)].shards.iter().flat_map(|shard| shard.timers.pending());
        pending.filter(move |(input, _)| match input {
            Input::Resumed { page } => {
                self.asked_for.contains(&(node, *page)) && (is_late || !self.is_about_to_look(node, *page))
            }
            _ => true,
        })
    }

    /// A program announces accesses, or its node guesses them.
    pub fn prefetch(&mut self, node: u16, wanted: PageRange, write: bool, announced: bool) {
        self.take(node, wanted.first(), Input::Prefetch { wanted, write, announced });
    }

    /// The threads for which `page` was held have run on.
    pub fn resume(&mut self, node: u16, page: u32) {
        self.go_off(node, Input::Resumed { page: PageIndex(page) });
    }

    /// The program locks pages; returns the number of the call.
    pub fn lock(&mut self, node: u16, range: PageRange, stay: Option<Nanoseconds>) -> u32 {
        self.last_call += 1;
        let call = self.last_call;
        self.calls.push(Call { node, number: call, range, is_timed: stay.is_some(), has_all: false });
        self.take(node, range.first(), Input::Lock { range, call, stay });
        call
    }

    /// The program unlocks what a call locked, or no longer waits for it; the call may have ended by itself.
    pub fn unlock(&mut self, node: u16, range: PageRange, call: u32) {
        self.calls.retain(|known| known.number != call);
        self.take(node, range.first(), Input::Unlock { range, call });
    }

    /// An alarm goes off, due or not.
    pub fn alarm(&mut self, (node, page, purpose): Alarm) {
        let ends = |call: &Call| {
            purpose == Purpose::Expiry && (call.node, call.range.first().0) == (node, page) && call.is_timed
        };
        self.calls.retain(|call| !(call.has_all && ends(call)));
        let was_set = self.go_off(node, Input::Alarm { page: PageIndex(page), purpose });
        assert!(was_set, "node {node} set no alarm {purpose} for page {page}");
    }

    /// The page is held no longer, or the alarm goes off. Returns whether that was pending.
    pub(crate) fn go_off(&mut self, node: u16, input: Input) -> bool {
        let (Input::Resumed { page } | Input::Alarm { page, .. }) = input else {
            unreachable!("timers know nothing else")
        };
        if matches!(input, Input::Resumed { .. }) {
            self.asked_for.retain(|asked| *asked != (node, page));
        }
        let was_pending = self.node_mut(node).shard_mut(page).timers.take(input);
        self.take(node, page, input);
        was_pending
    }

    /// The alarms that are set, and when they are due; ascending.
    pub fn alarms(&self) -> Vec<(Alarm, Nanoseconds)> {
        self.pending(|node, input, due| match input {
            Input::Alarm { page, purpose } => Some(((node, page.0, purpose), due)),
            _ => None,
        })
    }

    /// The pages that another node waits for, with their nodes; ascending.
    pub fn wanted(&self) -> Vec<(u16, u32)> {
        self.pending(|node, input, _| match input {
            Input::Resumed { page } => Some((node, page.0)),
            _ => None,
        })
    }

    /// Whether no alarm is set and no page is held.
    pub fn is_idle(&self) -> bool {
        self.nodes.iter().flat_map(|node| &node.shards).all(|shard| shard.timers.is_empty())
    }

    /// A node has left; every other node is informed.
    pub fn gone(&mut self, node: u16, successor: u16) {
        let gone = Input::Gone { node: NodeId(node), successor: NodeId(successor) };
        for other in (0..self.nodes.len() as u16).filter(|&other| other != node) {
            (0..self.node(other).shards.len() as u32)
                .for_each(|shard| self.take(other, PageIndex(shard * CHUNK_PAGES), gone));
        }
    }

    /// Whether a call of `node` has `page`.
    pub fn is_locked(&self, node: u16, page: u32) -> bool {
        self.calls.iter().any(|call| call.node == node && call.has_all && call.range.contains(PageIndex(page)))
    }

    /// The message at `index` arrives.
    pub fn deliver(&mut self, index: usize) {
        let envelope = self.under_way.remove(index);
        self.arrive(envelope);
    }

    /// A message, which is no longer among those under way, arrives.
    pub(crate) fn arrive(&mut self, Envelope { from, to, message }: Envelope) {
        let done = self.hand_over(from, to, message);
        self.note(done);
    }

    /// The number of nodes.
    pub(crate) fn nodes(&self) -> u16 {
        self.nodes.len() as u16
    }

    /// The number of pages.
    pub(crate) fn pages(&self) -> u32 {
        self.memory.layout().0
    }

    /// The access that the view of a node allows.
    pub fn view(&self, node: u16, page: u32) -> Access {
        self.memory.view(node, PageIndex(page))
    }

    /// The content of a copy, if it has bytes.
    pub fn value(&self, node: u16, page: u32) -> Option<B> {
        let page = PageIndex(page);
        (self.memory.version(node, page) != super::ABSENT).then(|| *self.memory.bytes(node, page))
    }

    /// Whether a request of `node` for `page` is under way.
    pub fn is_pending(&self, node: u16, page: u32) -> bool {
        self.node(node).shard(PageIndex(page)).protocol.is_pending(PageIndex(page))
    }

    fn take(&mut self, node: u16, page: PageIndex, input: Input) {
        let done = self.step(node, page, input);
        self.note(done);
    }

    fn note(&mut self, done: Result<(), String>) {
        if let Err(problem) = done {
            self.problem.get_or_insert(problem);
        }
    }

    fn ask_for(&mut self, node: u16, page: PageIndex) {
        if !self.asked_for.contains(&(node, page)) {
            self.asked_for.push((node, page));
        }
    }

    fn pending<T: Ord>(&self, which: impl Fn(u16, Input, Nanoseconds) -> Option<T>) -> Vec<T> {
        let nodes = self.nodes.iter().enumerate();
        let shards = nodes.flat_map(|(node, of)| of.shards.iter().map(move |shard| (node, shard)));
        let pending = shards.flat_map(|(node, shard)| shard.timers.pending().map(move |due| (node, due)));
        let mut found: Vec<T> = pending.filter_map(|(node, (input, due))| which(node as u16, input, due)).collect();
        found.sort();
        found
    }
}

impl<N: Coherence, B: Copy + Default> Cluster for Driven<N, B> {
    type Layout = First;
    type Bytes = B;

    fn memory(&mut self) -> &mut Memory<First, B> {
        &mut self.memory
    }

    fn put_under_way(&mut self, node: u16, to: NodeId, message: Message) -> Result<(), String> {
        if usize::from(to.0) >= self.nodes.len() {
            return Err(format!("node {node} sends {message} to nobody"));
        }
        self.under_way.push(Envelope { from: node, to: to.0, message });
        Ok(())
    }

    fn look_again(&mut self, node: u16, pages: PageRange) -> Result<(), String> {
        let Driven { waiting, nodes, runs_on, now, .. } = self;
        let node_of = &mut nodes[usize::from(node)];
        for waiting in &mut waiting[usize::from(node)] {
            let page = PageIndex(waiting.page);
            if waiting.woken || !pages.contains(page) {
                continue;
            }
            waiting.woken = true;
            let timers = &mut node_of.shard_mut(page).timers;
            match runs_on {
                RunsOn::Told => {}
                RunsOn::Looks => timers.wake(page),
                RunsOn::Silent => _ = timers.hold(page, *now, HOLD_MAX),
            }
        }
        Ok(())
    }

    fn violation(&mut self, node: u16, from: NodeId, what: &str) -> Result<(), String> {
        let is_checked = self.memory.is_checked();
        (!is_checked).then_some(()).ok_or_else(|| super::breach(node, Some(from), what))
    }

    /// No other call has one of the pages.
    fn has_locked(&mut self, node: u16, pages: PageRange, call: u32) -> Result<(), String> {
        if let Some(other) = self.calls.iter().find(|other| other.has_all && other.range.overlaps(pages)) {
            return Err(format!("node {node} locks {pages}, and {other:?} has them"));
        }
        let waits = |other: &&mut Call| other.number == call && other.node == node && !other.has_all;
        let call = self.calls.iter_mut().find(waits);
        let call = call.ok_or_else(|| format!("node {node} has locked {pages} for a call that does not wait"))?;
        call.has_all = true;
        Ok(())
    }

    fn check_unlocked(&self, node: u16, pages: PageRange) -> Result<(), String> {
        match pages.pages().find(|page| self.is_locked(node, page.0)) {
            Some(page) => Err(format!("{page} leaves node {node}, which locked it")),
            None => Ok(()),
        }
    }
}

impl<N: Coherence, B: Copy + Default> Stepping for Driven<N, B> {
    type Protocol = N;

    fn node(&self, node: u16) -> &Node<N> {
        &self.nodes[usize::from(node)]
    }

    fn node_mut(&mut self, node: u16) -> &mut Node<N> {
        &mut self.nodes[usize::from(node)]
    }

    fn now(&self) -> Nanoseconds {
        self.now
    }

    fn order(&mut self, node: u16, shard: usize, effect: Effect) -> Order {
        let now = self.now;
        self.node_mut(node).shards[shard].order(effect, || now, HOLD_MAX)
    }

    fn note_input(&mut self, node: u16, input: Input) {
        self.tell(|_| format!("n{node} {input}"));
    }

    fn note_effect(&mut self, node: u16, effect: Effect) {
        if let Effect::Hold(page) = effect {
            self.ask_for(node, page);
        }
        self.tell(|_| format!("  {effect}"));
    }
}
