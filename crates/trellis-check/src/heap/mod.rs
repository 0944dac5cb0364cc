//! The shared heap of a small cluster: the explorer's model for allocating and freeing.
//!
//! Programs allocate blocks, store to them and free them, at the same node or at another one; a call takes the steps that
//! a runtime carries out ([`heap::Call`](trellis_cluster_protocol::heap::Call)). Every node is a [`node::Node`] with a heap
//! and its knowledge of releases, and without pages. Messages arrive in any order, and a step takes as long as it likes. A
//! store is known at another node after its node has published and the other one has applied the notice. The model checks:
//!
//! 1. *Blocks are apart.* No block overlaps another, and no page has blocks of two nodes.
//! 2. *Nothing overwrites a new block.* When a program gets a block, no other node has stores to it that it will publish.
//! 3. *A new block shows no old stores.* When a program gets a block, its node has applied all that was published there; a
//!    fresh block was never written.
//! 4. *Freed means free.* When a free has returned, the next allocation that needs the memory gets it; of two frees of a
//!    block exactly one succeeds.
//! 5. *Every call ends*, and when all have, every page without a block goes back, whatever was given up before.
//!
//! It must never inspect the state machines: it uses steps, inputs, effects, and the numbers of free and used pages.

mod effects;
mod faults;
mod memory;

pub use faults::HeapFault;

use crate::explore::Model;
use crate::intern::guarded;
use crate::model;
use crate::world::{self, Pass, Piece, Pieces, Worlds};
use effects::Acting;
use memory::{Memory, Place, UNIT_BYTES};
use trellis_cluster_protocol::coherence::Running;
use trellis_cluster_protocol::coherence::hlrc::intervals::Learnt;
use trellis_cluster_protocol::heap::{
    Answer, Block, Call, Geometry, Heap, Input, Message, Request, Separation, Step, StepOutcome, Zone,
};
use trellis_cluster_protocol::node::{self, Consistency, Node};
use trellis_cluster_protocol::sync::{Sync, Waiter};
use trellis_cluster_protocol::{NodeId, wire};

/// The node that keeps the directory.
const DIRECTORY: u16 = 0;
const PAGE_BYTES: u64 = 4096;
/// The region has some pages before the heap.
const FIRST_PAGE: u32 = 3;
const PAGES: u32 = 5;
/// Names the calls that are made after the end of the programs.
const LAST: Waiter = Waiter::MAX;
/// A block that shares its page.
const SMALL_BYTES: u64 = UNIT_BYTES;

/// The calls of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapProgram {
    /// Blocks are freed where they were not allocated, and their memory is allocated again.
    Elsewhere,
    /// An allocation needs the memory of a block that another node had and a third one frees.
    Room,
    /// An allocation needs all pages, and a page without blocks is kept for small ones.
    Full,
    /// Two nodes free the same small block of a third one.
    TwiceSmall,
    /// The same with a block that has its own page.
    Twice,
    /// Two threads of a node free blocks, and another node allocates.
    Threads,
    /// Allocations are given up at any point.
    Late,
}

impl HeapProgram {
    /// All programs.
    pub const ALL: [HeapProgram; 7] = [
        HeapProgram::Elsewhere,
        HeapProgram::Room,
        HeapProgram::Full,
        HeapProgram::TwiceSmall,
        HeapProgram::Twice,
        HeapProgram::Threads,
        HeapProgram::Late,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            HeapProgram::Elsewhere => "elsewhere",
            HeapProgram::Room => "room",
            HeapProgram::Full => "full",
            HeapProgram::TwiceSmall => "twice-small",
            HeapProgram::Twice => "twice",
            HeapProgram::Threads => "threads",
            HeapProgram::Late => "late",
        }
    }

    /// The node and the calls of each thread.
    fn threads(self) -> &'static [(u16, &'static [Act])] {
        use Act::{Allocate, Free, FreeToo, Try};
        match self {
            HeapProgram::Elsewhere => &[
                (0, &[Free(0), Allocate(2, 1), Free(2)]),
                (1, &[Allocate(0, 2), Allocate(1, 0), Free(3), Allocate(4, 0), Free(4)]),
                (2, &[Free(1), Allocate(3, 1)]),
            ],
            HeapProgram::Room => {
                &[(1, &[Allocate(0, 4), Allocate(1, 1)]), (2, &[Free(0), Allocate(2, 4), Free(2), Free(1)])]
            }
            HeapProgram::Full => {
                &[(1, &[Allocate(0, 0), Free(0), Allocate(1, PAGES as u64), Free(1), Allocate(2, 1), Free(2)])]
            }
            HeapProgram::TwiceSmall => &[(0, &[FreeToo(0)]), (1, &[Allocate(0, 0)]), (2, &[Free(0)])],
            HeapProgram::Twice => &[(0, &[FreeToo(0)]), (1, &[Allocate(0, 1)]), (2, &[Free(0)])],
            HeapProgram::Threads => {
                &[(1, &[Allocate(0, 2), Free(0)]), (1, &[Allocate(1, 1), Free(1)]), (2, &[Allocate(2, 2), Free(2)])]
            }
            HeapProgram::Late => {
                &[(1, &[Try(0, 3), Free(0)]), (2, &[Allocate(1, 0), Free(1), Try(2, 5), Free(2), Try(3, 1), Free(3)])]
            }
        }
    }

    /// How many frees succeed, and how many are refused; `None` if that depends on the order.
    fn frees(self) -> Option<(u8, u8)> {
        match self {
            HeapProgram::Elsewhere => Some((5, 0)),
            HeapProgram::Room | HeapProgram::Full | HeapProgram::Threads => Some((3, 0)),
            HeapProgram::TwiceSmall | HeapProgram::Twice => Some((1, 1)),
            HeapProgram::Late => None,
        }
    }
}

/// A call of a program; blocks have numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// Allocates this block: so many pages of its own, or a small block if 0.
    Allocate(usize, u64),
    /// The same, but the call may be given up, and there may be no room.
    Try(usize, u64),
    /// Frees the block once it is there; does nothing if it never will be.
    Free(usize),
    /// Frees the block once it is there, although another program frees it too.
    FreeToo(usize),
}

/// A program and the rule that is broken.
#[derive(Clone, Copy, Debug)]
pub struct HeapInstance {
    /// The calls of the programs.
    pub program: HeapProgram,
    /// The rule that this instance breaks on purpose.
    pub fault: HeapFault,
}

impl HeapInstance {
    /// The model of this instance.
    pub fn model(&self) -> impl Model {
        Worlds::new(World::first(*self))
    }

    /// A description of this instance.
    pub fn describe(&self) -> String {
        format!("heap program={}", self.program.name())
    }

    fn nodes(&self) -> u16 {
        self.program.threads().iter().map(|&(node, _)| node + 1).max().unwrap_or(1)
    }
}

/// A message under way, and the notices that are attached to it.
type Envelope = model::Envelope<(wire::Message, Vec<u8>)>;

/// How far a thread is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Thread {
    /// Its next call, or the one that runs.
    next: usize,
    call: Option<Call>,
    at: At,
    /// With a fault: it has published before it knew the spans that go back.
    has_published: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    /// Between two calls.
    Program,
    /// This is to be carried out.
    Step(Step),
    /// The heap has not answered.
    Waits,
    /// The heap has answered, and the call has not gone on.
    Answered(Answer),
}

impl Thread {
    /// Between two calls.
    fn before(next: usize) -> Thread {
        Thread { next, call: None, at: At::Program, has_published: false }
    }
}

#[derive(Clone)]
struct World {
    instance: HeapInstance,
    nodes: Vec<Piece<Node<Running>>>,
    threads: Vec<Piece<Thread>>,
    memory: Piece<Memory>,
    network: Vec<Piece<Envelope>>,
    /// The answer to the call that is made after the end of the programs.
    last: Option<Answer>,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    /// The thread does what is next.
    Run(usize),
    /// The thread's call is given up.
    GiveUp(usize),
    Deliver(usize),
}

impl world::World for World {
    type Action = Action;
    type Tables = (Pieces<Memory>, Pieces<Node<Running>>, Pieces<Thread>, Pieces<Envelope>);

    fn enabled(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (thread, state) in self.threads.iter().enumerate() {
            match state.at {
                At::Program if !self.can_begin(thread) => continue,
                At::Program | At::Step(_) | At::Answered(_) => actions.push(Action::Run(thread)),
                At::Waits => {}
            }
            let may_fail = matches!(state.at, At::Waits | At::Step(Step::Publish | Step::Refresh | Step::Place(_)));
            if may_fail && matches!(self.act(thread), Some(Act::Try(..))) {
                actions.push(Action::GiveUp(thread));
            }
        }
        actions.extend((0..self.network.len()).map(Action::Deliver));
        actions
    }

    fn take(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Run(thread) => match self.threads[thread].at {
                At::Program => self.begin(thread),
                At::Step(step) => self.carry_out(thread, step),
                At::Answered(answer) => self.go_on(thread, StepOutcome::Answer(answer)),
                At::Waits => unreachable!("a thread that waits does not run"),
            },
            Action::GiveUp(thread) => self.give_up(thread),
            Action::Deliver(index) => self.deliver(index),
        }
    }

    fn check_last(mut self) -> Result<(), String> {
        if let Some(thread) = (0..self.threads.len()).find(|&thread| self.act(thread).is_some()) {
            return Err(format!("thread {thread}, of node {}, waits for ever", self.node_of(thread)));
        }
        let frees = (self.memory.freed, self.memory.refused);
        if let Some(expected) = self.instance.program.frees().filter(|&expected| expected != frees) {
            return Err(format!("{} frees succeeded and {} were refused instead of {expected:?}", frees.0, frees.1));
        }
        for node in 0..self.instance.nodes() {
            self.return_empty_spans(node)?;
        }
        let free = self.heap(DIRECTORY).pages_free().expect("the directory knows");
        let used: Vec<_> = (0..self.instance.nodes()).map(|node| self.heap(node).statistics()).collect();
        let held: u64 = used.iter().map(|used| used.span_bytes / PAGE_BYTES).sum();
        let blocks: u64 = used.iter().map(|used| used.blocks).sum();
        match (free + held == u64::from(PAGES), blocks > 0 || held == 0) {
            (true, true) => Ok(()),
            (false, _) => Err(format!("{free} pages are free and nodes have {held}: of {PAGES} some are lost")),
            (true, false) => Err(format!("there is no block, and nodes have {held} pages")),
        }
    }

    fn describe(&self, action: Action) -> String {
        match action {
            Action::Run(thread) => {
                let node = self.node_of(thread);
                match self.threads[thread].at {
                    At::Program => format!("thread {thread} of node {node} begins {:?}", self.act(thread)),
                    at => format!("thread {thread} of node {node}: {at:?}"),
                }
            }
            Action::GiveUp(thread) => format!("thread {thread} gives its call up"),
            Action::Deliver(index) => {
                let Envelope { from, to, message: (message, _) } = &*self.network[index];
                format!("arrives: {from}->{to} {message:?}")
            }
        }
    }

    fn pass(&mut self, (memories, nodes, threads, envelopes): &mut Self::Tables, pass: &mut Pass) {
        pass.one(memories, &mut self.memory);
        pass.each(nodes, &mut self.nodes);
        pass.each(threads, &mut self.threads);
        pass.unordered(envelopes, &mut self.network);
    }
}

impl World {
    fn first(instance: HeapInstance) -> World {
        let (nodes, end_page) = (instance.nodes(), FIRST_PAGE + PAGES);
        let node = |me| {
            let (me, directory) = (NodeId(me), NodeId(DIRECTORY));
            let consistency = Consistency::new(me, nodes, end_page, false, usize::MAX);
            let mut node = Node::new(Vec::new(), Sync::new(me, nodes), Some(consistency), directory);
            node.heap = Some(Heap::new(Geometry {
                me,
                directory,
                first_page: FIRST_PAGE,
                border_page: end_page,
                end_page,
                page_bytes: PAGE_BYTES as u32,
                base_pages: 0x1_0000,
            }));
            Piece::new(node)
        };
        let threads = instance.program.threads();
        World {
            instance,
            nodes: (0..nodes).map(node).collect(),
            threads: vec![Piece::new(Thread::before(0)); threads.len()],
            memory: Piece::new(Memory::new(usize::from(nodes), blocks(threads))),
            network: Vec::new(),
            last: None,
        }
    }

    /// The call that the thread runs, or its next one.
    fn act(&self, thread: usize) -> Option<Act> {
        self.instance.program.threads()[thread].1.get(self.threads[thread].next).copied()
    }

    fn node_of(&self, thread: usize) -> u16 {
        self.instance.program.threads()[thread].0
    }

    /// Names the call; no two calls of a node have the same name.
    fn waiter(&self, thread: usize) -> Waiter {
        (thread * 16 + self.threads[thread].next) as Waiter
    }

    fn can_begin(&self, thread: usize) -> bool {
        match self.act(thread) {
            Some(Act::Free(block)) => {
                let hears = |owner| self.hears_all(owner, self.node_of(thread));
                self.memory.places[block] != Place::Unknown && self.memory.owner(block).is_none_or(hears)
            }
            Some(Act::FreeToo(block)) => self.memory.places[block] != Place::Unknown,
            Some(Act::Allocate(..) | Act::Try(..)) => true,
            None => false,
        }
    }

    fn begin(&mut self, thread: usize) -> Result<(), String> {
        let (node, waiter) = (self.node_of(thread), self.waiter(thread));
        let call = match self.act(thread).expect("there is a call") {
            Act::Allocate(_, pages) | Act::Try(_, pages) => {
                let (bytes, separation) = match pages {
                    0 => (SMALL_BYTES, Separation::Never),
                    _ => (pages * PAGE_BYTES, Separation::Always),
                };
                Call::allocate(Request { bytes, align: 8, home: NodeId(node), separation, zone: Zone::Lower }, waiter)
            }
            Act::Free(block) => {
                let Place::At(offset) = self.memory.places[block] else {
                    self.threads[thread].next += 1;
                    return Ok(());
                };
                let owner = self.memory.owner(block).filter(|&owner| owner != node);
                self.memory.frees(node, block)?;
                if let Some(owner) = owner {
                    self.hand_over(owner, node);
                }
                Call::free(offset, waiter)
            }
            Act::FreeToo(block) => {
                let Place::At(offset) = self.memory.places[block] else { unreachable!("it is allocated") };
                Call::free(offset, waiter)
            }
        };
        let World { threads, nodes, .. } = self;
        let state = &mut *threads[thread];
        state.at = At::Step(guarded(|| state.call.insert(call).begin(heap_of(nodes, node)))?);
        Ok(())
    }

    fn carry_out(&mut self, thread: usize, step: Step) -> Result<(), String> {
        let (node, fault) = (self.node_of(thread), self.instance.fault);
        match step {
            Step::Publish => {
                if fault.publishes_in_time() && !self.threads[thread].has_published {
                    self.publish(node);
                }
                self.go_on(thread, StepOutcome::Done)
            }
            Step::Refresh => {
                if fault != HeapFault::NoRefresh {
                    self.refresh(node);
                }
                self.go_on(thread, StepOutcome::Done)
            }
            Step::Place(_) => self.go_on(thread, StepOutcome::Done),
            Step::Ask(Input::GiveBack(..)) if fault == HeapFault::KeepsSpans => {
                self.go_on(thread, StepOutcome::Answer(Answer::Freed))
            }
            Step::Ask(input) => {
                self.threads[thread].at = At::Waits;
                self.step(node, input)
            }
            Step::End(answer) => self.end(thread, answer),
        }
    }

    fn go_on(&mut self, thread: usize, outcome: StepOutcome) -> Result<(), String> {
        let (node, fault) = (self.node_of(thread), self.instance.fault);
        let is_freed = matches!(outcome, StepOutcome::Answer(Answer::Freed));
        if fault == HeapFault::PublishesLate && is_freed {
            self.publish(node);
        }
        if fault == HeapFault::PublishesFirst && is_freed && !self.threads[thread].has_published {
            self.publish(node);
            self.threads[thread].has_published = true;
            return Ok(());
        }
        let World { threads, nodes, .. } = self;
        let state = &mut *threads[thread];
        let step = match (fault, outcome) {
            (HeapFault::FullAtOnce, StepOutcome::Answer(answer @ Answer::NoRoom { .. })) => Step::End(answer),
            _ => guarded(|| state.call.as_mut().expect("a call runs").go_on(heap_of(nodes, node), outcome))?,
        };
        state.at = At::Step(step);
        Ok(())
    }

    fn give_up(&mut self, thread: usize) -> Result<(), String> {
        let (node, waiter) = (self.node_of(thread), self.waiter(thread));
        let Some(Act::Try(block, _)) = self.act(thread) else { unreachable!("only such a call is given up") };
        let call = self.threads[thread].call.take().expect("a call runs");
        self.memory.places[block] = Place::Never;
        *self.threads[thread] = Thread::before(self.threads[thread].next + 1);
        let abandon = match self.instance.fault {
            HeapFault::SurplusForgotten => Input::Abandon(waiter),
            _ => call.give_up(heap_of(&mut self.nodes, node)),
        };
        self.step(node, abandon)
    }

    fn end(&mut self, thread: usize, answer: Answer) -> Result<(), String> {
        let node = self.node_of(thread);
        let act = self.act(thread).expect("a call runs");
        *self.threads[thread] = Thread::before(self.threads[thread].next + 1);
        match (act, answer) {
            (Act::Allocate(number, pages) | Act::Try(number, pages), Answer::Block(block)) => {
                check(pages, &block)?;
                self.memory.gets(node, number, &block)
            }
            (Act::Try(number, _), Answer::NoRoom { .. }) => {
                self.memory.places[number] = Place::Never;
                Ok(())
            }
            (Act::Free(_) | Act::FreeToo(_), Answer::Freed) => {
                self.memory.freed += 1;
                Ok(())
            }
            (Act::Free(_) | Act::FreeToo(_), Answer::NoBlock) => {
                self.memory.refused += 1;
                Ok(())
            }
            (act, answer) => Err(format!("{act:?} at node {node} ends with {answer:?}")),
        }
    }

    fn step(&mut self, node: u16, input: Input) -> Result<(), String> {
        let mut acting = Acting { world: self, node };
        stepped(node, guarded(|| node::take_fact(&mut acting, node::Input::Heap(input))))
    }

    fn deliver(&mut self, index: usize) -> Result<(), String> {
        let Envelope { from, to, message: (message, knowledge) } = (*self.network.swap_remove(index)).clone();
        let mut acting = Acting { world: self, node: to };
        stepped(to, guarded(|| node::receive(&mut acting, NodeId(from), message, &knowledge)))
    }

    fn heap(&self, node: u16) -> &Heap {
        self.nodes[usize::from(node)].heap.as_ref().expect("every node has a heap")
    }

    fn releases(&mut self, node: u16) -> &mut Consistency {
        self.nodes[usize::from(node)].releases.as_mut().expect("every node knows of releases")
    }

    /// Everything that the node stored becomes known to those who hear of it from now on.
    fn publish(&mut self, node: u16) {
        let notices = self.memory.publishes(node);
        let consistency = self.releases(node);
        notices.into_iter().for_each(|notice| consistency.knowledge.intervals.note(notice));
        consistency.end();
    }

    /// The node applies everything of which it has heard.
    fn refresh(&mut self, node: u16) {
        if let Some(notices) = self.releases(node).refresh() {
            notices.for_each(|notice| self.memory.applies(node, notice));
        }
    }

    /// The program at `from` has released a block to the one at `to`.
    fn hand_over(&mut self, from: u16, to: u16) {
        self.publish(from);
        let mut knowledge = Vec::new();
        self.releases(from).knowledge.intervals.append_notices(NodeId(to), &mut knowledge);
        let learnt = self.releases(to).knowledge.intervals.learn(NodeId(from), &knowledge);
        assert_eq!(learnt, Ok(Learnt::Known), "the program waits until it can hear");
        self.refresh(to);
    }

    /// Whether nothing is under way to `to` without which it cannot hear from `from`.
    fn hears_all(&self, from: u16, to: u16) -> bool {
        if from == to {
            return true;
        }
        let intervals = |node: u16| {
            let releases = self.nodes[usize::from(node)].releases.as_ref();
            releases.expect("every node knows of releases").knowledge.intervals.clone()
        };
        let mut knowledge = Vec::new();
        intervals(from).append_notices(NodeId(to), &mut knowledge);
        intervals(to).learn(NodeId(from), &knowledge) == Ok(Learnt::Known)
    }

    fn answer(&mut self, node: u16, waiter: Waiter, answer: Answer) -> Result<(), String> {
        if waiter == LAST {
            self.last = Some(answer);
            return Ok(());
        }
        let thread = (waiter / 16) as usize;
        if self.waiter(thread) != waiter || self.threads[thread].at != At::Waits {
            return Err(format!("node {node} answers call {waiter}, which does not wait"));
        }
        self.threads[thread].at = At::Answered(self.instance.fault.answer(answer));
        Ok(())
    }

    /// With a fault: whether a span comes to a call that was given up, and stays at the node.
    fn passes_over(&self, node: u16, input: &node::Input) -> bool {
        let node::Input::Heap(Input::Message(_, Message::Grant { waiter, .. })) = *input else { return false };
        let thread = (waiter / 16) as usize;
        self.instance.fault == HeapFault::LateSpanKept && self.node_of(thread) == node && self.waiter(thread) != waiter
    }

    /// Makes a call for which there is no room, so that every empty span of the node goes back.
    fn return_empty_spans(&mut self, node: u16) -> Result<(), String> {
        let request = Request {
            bytes: u64::from(PAGES + 1) * PAGE_BYTES,
            align: 8,
            home: NodeId(node),
            separation: Separation::Always,
            zone: Zone::Lower,
        };
        let mut call = Call::allocate(request, LAST);
        let mut step = call.begin(heap_of(&mut self.nodes, node));
        loop {
            let outcome = match step {
                Step::End(_) => return Ok(()),
                Step::Ask(input) => StepOutcome::Answer(self.ask(node, input)?),
                Step::Publish | Step::Refresh | Step::Place(_) => StepOutcome::Done,
            };
            step = call.go_on(heap_of(&mut self.nodes, node), outcome);
        }
    }

    /// Gives an input to a heap, delivers all messages, and returns the answer.
    fn ask(&mut self, node: u16, input: Input) -> Result<Answer, String> {
        self.step(node, input)?;
        while !self.network.is_empty() {
            self.deliver(0)?;
        }
        self.last.take().ok_or_else(|| format!("node {node} gets no answer"))
    }
}

fn heap_of(nodes: &mut [Piece<Node<Running>>], node: u16) -> &mut Heap {
    nodes[usize::from(node)].heap.as_mut().expect("every node has a heap")
}

/// The outcome of a step, which fails if the node fails an assertion.
fn stepped(node: u16, outcome: Result<Result<(), String>, String>) -> Result<(), String> {
    outcome.map_err(|what| format!("node {node} stopped: {what}"))?
}

/// The number of blocks that the threads name.
fn blocks(threads: &[(u16, &[Act])]) -> usize {
    let numbers = threads.iter().flat_map(|(_, acts)| acts.iter()).map(|act| match *act {
        Act::Allocate(block, _) | Act::Try(block, _) | Act::Free(block) | Act::FreeToo(block) => block + 1,
    });
    numbers.max().unwrap_or(0)
}

/// Whether the block is what was requested.
fn check(pages: u64, block: &Block) -> Result<(), String> {
    let has_own_pages = block.offset.is_multiple_of(PAGE_BYTES) && block.bytes == pages * PAGE_BYTES;
    let is_small = block.offset.is_multiple_of(16) && block.bytes == SMALL_BYTES;
    if !(if pages > 0 { has_own_pages } else { is_small }) || block.offset < u64::from(FIRST_PAGE) * PAGE_BYTES {
        return Err(format!("a request for {pages} pages (0: a small block) gets {block:?}"));
    }
    Ok(())
}
