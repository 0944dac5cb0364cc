//! A cluster whose every step a test chooses: scripts and random programs.
//!
//! Promises: what a step does is logged, effects in their order. A breach of the contract is a panic that says what
//! broke, unless the cluster is unchecked. A call for locked pages goes to the protocol as it is, so that a test may
//! unlock what has ended by itself. It must never let a thread retry that was not woken, or let an alarm expire that
//! was not set.

use super::{Cluster, First, Memory, Stepping};
use trellis_cluster_protocol::coherence::{Coherence, Effect, Geometry, Input, Message, Protocol, Purpose, Running};
use trellis_cluster_protocol::homes::Home;
use trellis_cluster_protocol::node::{Order, Shard};
use trellis_cluster_protocol::{Access, CHUNK_PAGES, Nanoseconds, NodeId, PageIndex, PageRange};

/// A message under way.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    /// Its sender.
    pub from: NodeId,
    /// Its receiver.
    pub to: NodeId,
    /// The message.
    pub message: Message,
}

/// An access of a thread that waits for its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The page.
    pub page: u32,
    /// Whether it is a store.
    pub write: bool,
    /// The pages that were requested.
    pub wanted: PageRange,
    /// Whether the thread may retry.
    pub woken: bool,
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

/// See the module.
#[derive(Debug)]
pub struct Driven<N = Running> {
    /// By node, its shards.
    nodes: Vec<Vec<Shard<N>>>,
    memory: Memory<First, u64>,
    values: u64,
    last_call: u32,
    /// The messages under way, the oldest first.
    pub under_way: Vec<Envelope>,
    /// By node, the threads that wait.
    pub waiting: Vec<Vec<Waiting>>,
    /// Calls that have locked pages, or wait for them.
    pub calls: Vec<Call>,
    /// The time that is passed to the protocol.
    pub now: Nanoseconds,
    /// The history in words.
    pub log: Vec<String>,
}

impl Driven {
    /// A cluster at its start.
    pub fn new(protocol: Protocol, home: Home, nodes: u16, pages: u32, shards: u32) -> Driven {
        Driven::of(home, nodes, pages, shards, |geometry| protocol.start(geometry))
    }
}

impl<N: Coherence> Driven<N> {
    /// The same, with `start` in place of a real protocol.
    pub fn of(home: Home, nodes: u16, pages: u32, shards: u32, start: impl Fn(Geometry) -> N) -> Driven<N> {
        let start = |me, shard| {
            let me = NodeId(me);
            let geometry = Geometry { me, nodes, founders: nodes, pages, shard, shards, home, marks: false };
            Shard::new(start(geometry), geometry, NodeId(0))
        };
        Driven {
            nodes: (0..nodes).map(|me| (0..shards).map(|shard| start(me, shard)).collect()).collect(),
            memory: Memory::new(First(pages), usize::from(nodes), 0),
            values: 0,
            last_call: 0,
            under_way: Vec::new(),
            waiting: vec![Vec::new(); usize::from(nodes)],
            calls: Vec::new(),
            now: 0,
            log: Vec::new(),
        }
    }

    /// Breaches of the contract are passed over. A copy without bytes has this value.
    pub fn unchecked(mut self, absent: u64) -> Driven<N> {
        self.memory = Memory::new(self.memory.layout(), self.nodes.len(), absent).unchecked();
        self
    }

    /// Attempts an access. A store writes a value that was never stored before.
    pub fn access(&mut self, node: u16, page: u32, write: bool) -> Outcome {
        let next = self.values + u64::from(write);
        match if write { self.exchange(node, page, next) } else { self.load(node, page) } {
            None => Outcome::Faulted,
            Some(value) if !write => Outcome::Loaded(value),
            Some(_) => {
                self.values = next;
                Outcome::Stored(next)
            }
        }
    }

    /// Loads a value; `None` if the view does not allow it.
    pub fn load(&mut self, node: u16, page: u32) -> Option<u64> {
        let page = PageIndex(page);
        let may_load = self.memory.view(node, page) >= Access::Read;
        may_load.then(|| {
            must(self.memory.load(node, page));
            *self.memory.bytes(node, page)
        })
    }

    /// Stores a value, and returns the one before; `None` if the view does not allow it.
    pub fn exchange(&mut self, node: u16, page: u32, value: u64) -> Option<u64> {
        let page = PageIndex(page);
        let may_store = self.memory.view(node, page) == Access::Write;
        may_store.then(|| {
            must(self.memory.store(node, page));
            std::mem::replace(self.memory.bytes_mut(node, page), value)
        })
    }

    /// A thread's access faulted: the thread waits from now on.
    pub fn fault(&mut self, node: u16, page: u32, write: bool, wanted: PageRange) {
        self.waiting[usize::from(node)].push(Waiting { page, write, wanted, woken: false });
        self.take(node, page, Input::Fault { page: PageIndex(page), write, wanted });
    }

    /// Removes a woken thread from the waiting ones, so that it retries.
    pub fn take_woken(&mut self, node: u16, index: usize) -> Waiting {
        let waiting = self.waiting[usize::from(node)].remove(index);
        assert!(waiting.woken, "nobody woke the thread of node {node} that waits for page {}", waiting.page);
        waiting
    }

    /// A program announces accesses, or its node guesses them.
    pub fn prefetch(&mut self, node: u16, wanted: PageRange, write: bool, announced: bool) {
        self.take(node, wanted.first().0, Input::Prefetch { wanted, write, announced });
    }

    /// The threads for which `page` was held have run on.
    pub fn resume(&mut self, node: u16, page: u32) {
        let input = Input::Resumed { page: PageIndex(page) };
        self.shard(node, PageIndex(page)).timers.take(input);
        self.take(node, page, input);
    }

    /// The program locks pages; returns the number of the call.
    pub fn lock(&mut self, node: u16, range: PageRange, stay: Option<Nanoseconds>) -> u32 {
        self.last_call += 1;
        let call = self.last_call;
        self.calls.push(Call { node, number: call, range, is_timed: stay.is_some(), has_all: false });
        self.take(node, range.first().0, Input::Lock { range, call, stay });
        call
    }

    /// The program unlocks what a call locked, or no longer waits for it; the call may have ended by itself.
    pub fn unlock(&mut self, node: u16, range: PageRange, call: u32) {
        self.calls.retain(|known| known.number != call);
        self.take(node, range.first().0, Input::Unlock { range, call });
    }

    /// An alarm expires, due or not.
    pub fn alarm(&mut self, (node, page, purpose): Alarm) {
        let input = Input::Alarm { page: PageIndex(page), purpose };
        let was_set = self.shard(node, PageIndex(page)).timers.take(input);
        assert!(was_set, "node {node} set no alarm {purpose} for page {page}");
        let ends = |call: &Call| {
            purpose == Purpose::Expiry && (call.node, call.range.first().0) == (node, page) && call.is_timed
        };
        self.calls.retain(|call| !(call.has_all && ends(call)));
        self.take(node, page, input);
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
        self.nodes.iter().flatten().all(|shard| shard.timers.is_empty())
    }

    /// A node has left; every other node is informed.
    pub fn gone(&mut self, node: u16, successor: u16) {
        let gone = Input::Gone { node: NodeId(node), successor: NodeId(successor) };
        for other in (0..self.nodes.len() as u16).filter(|&other| other != node) {
            (0..self.nodes[0].len() as u32).for_each(|shard| self.take(other, shard * CHUNK_PAGES, gone));
        }
    }

    /// Whether a call of `node` has `page`.
    pub fn is_locked(&self, node: u16, page: u32) -> bool {
        self.calls.iter().any(|call| call.node == node && call.has_all && call.range.contains(PageIndex(page)))
    }

    /// The message at `index` arrives.
    pub fn deliver(&mut self, index: usize) {
        let Envelope { from, to, message } = self.under_way.remove(index);
        let done = self.hand_over(from.0, to.0, message);
        self.heed(done);
    }

    /// The access that the view of a node allows.
    pub fn view(&self, node: u16, page: u32) -> Access {
        self.memory.view(node, PageIndex(page))
    }

    /// The value of a copy, if it has bytes.
    pub fn value(&self, node: u16, page: u32) -> Option<u64> {
        let page = PageIndex(page);
        (self.memory.version(node, page) != super::ABSENT).then(|| *self.memory.bytes(node, page))
    }

    /// Whether a request of `node` for `page` is under way.
    pub fn is_pending(&self, node: u16, page: u32) -> bool {
        self.nodes[usize::from(node)][self.shard_of(PageIndex(page))].protocol.is_pending(PageIndex(page))
    }

    fn take(&mut self, node: u16, page: u32, input: Input) {
        let done = self.step(node, PageIndex(page), input);
        self.heed(done);
    }

    fn heed(&self, done: Result<(), String>) {
        if self.memory.is_checked() {
            must(done);
        }
    }

    fn pending<T: Ord>(&self, which: impl Fn(u16, Input, Nanoseconds) -> Option<T>) -> Vec<T> {
        let shards =
            self.nodes.iter().enumerate().flat_map(|(node, shards)| shards.iter().map(move |shard| (node, shard)));
        let pending = shards.flat_map(|(node, shard)| shard.timers.pending().map(move |due| (node, due)));
        let mut found: Vec<T> = pending.filter_map(|(node, (input, due))| which(node as u16, input, due)).collect();
        found.sort();
        found
    }

    fn shard_of(&self, page: PageIndex) -> usize {
        (page.0 / CHUNK_PAGES) as usize % self.nodes[0].len()
    }
}

impl<N: Coherence> Cluster for Driven<N> {
    type Layout = First;
    type Bytes = u64;

    fn memory(&mut self) -> &mut Memory<First, u64> {
        &mut self.memory
    }

    fn put_under_way(&mut self, node: u16, to: NodeId, message: Message) -> Result<(), String> {
        if usize::from(to.0) >= self.nodes.len() {
            return Err(format!("node {node} sends {message} to nobody"));
        }
        self.under_way.push(Envelope { from: NodeId(node), to, message });
        Ok(())
    }

    fn look_again(&mut self, node: u16, pages: PageRange) -> Result<(), String> {
        for waiting in &mut self.waiting[usize::from(node)] {
            waiting.woken |= pages.contains(PageIndex(waiting.page));
        }
        Ok(())
    }

    fn violation(&mut self, node: u16, from: NodeId, what: &str) -> Result<(), String> {
        let is_checked = self.memory.is_checked();
        (!is_checked).then_some(()).ok_or_else(|| format!("node {node} reports of {from}: {what}"))
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

impl<N: Coherence> Stepping for Driven<N> {
    type Node = N;

    fn shard(&mut self, node: u16, page: PageIndex) -> &mut Shard<N> {
        let shard = self.shard_of(page);
        &mut self.nodes[usize::from(node)][shard]
    }

    fn shards(&self) -> u32 {
        self.nodes[0].len() as u32
    }

    fn now(&self) -> Nanoseconds {
        self.now
    }

    fn order(&mut self, node: u16, page: PageIndex, effect: Effect) -> Order {
        let now = self.now;
        self.shard(node, page).order(effect, || now, 0)
    }

    fn note_input(&mut self, node: u16, input: Input) {
        self.log.push(format!("n{node} {input}"));
    }

    fn note_effect(&mut self, _node: u16, effect: Effect) {
        self.log.push(format!("  {effect}"));
    }
}

fn must<T>(done: Result<T, String>) -> T {
    done.unwrap_or_else(|what| panic!("{what}"))
}
