//! Threads that allocate and free blocks of the shared heap.
//!
//! Every node has its part of the heap, and a call takes the steps that a runtime carries out ([`Call`]). Any thread may free
//! any block. Stores are known at once here, so that nothing has to be published. What must hold: blocks do not overlap, and
//! no page has blocks of two nodes. An address without a block is refused. At the end every page is free or at a node that needs it.
//!
//! It must never let a program use a block that it does not have.

use super::Start;
use super::events::Event;
use super::node::{Action, Doing};
use super::node_faults::NodeFault;
use super::scenario::{Pattern, Scenario};
use super::world::World;
use crate::model::Stepping;
use std::collections::BTreeMap;
use trellis_cluster_protocol::heap::{
    Answer, Block, Call, Geometry, Heap, Input, Request, Separation, Statistics, Step, StepOutcome, Zone,
};
use trellis_cluster_protocol::sync::Waiter;
use trellis_cluster_protocol::{NodeId, node};

/// The pages of the heap, and of its lower zone. They follow the pages to which programs store.
pub(super) const HEAP_PAGES: u32 = 2048;
const LOWER_PAGES: u32 = 1200;
/// More bytes than the heap has.
const MORE_THAN_ALL: u64 = 1 << 40;
/// One of so many allocations may be given up.
const GIVEN_UP_ONCE_IN: u64 = 6;

/// The part of the heap of node `me`.
pub(super) fn heap_of(scenario: &Scenario, me: u16) -> Heap {
    let first_page = scenario.layout.pages();
    Heap::new(Geometry {
        me: NodeId(me),
        directory: NodeId(scenario.coordinator),
        first_page,
        border_page: first_page + LOWER_PAGES,
        end_page: first_page + HEAP_PAGES,
        page_bytes: scenario.wires.page_bytes,
        base_pages: 0x1_0000,
    })
}

/// The allocated blocks, as the programs know them.
#[derive(Default)]
pub(super) struct Blocks {
    /// By offset: the length of the block, and its node.
    live: BTreeMap<u64, (u64, u16)>,
    /// Blocks about which no call is under way.
    idle: Vec<u64>,
    /// Pages with live blocks: their node, and the number of blocks that touch them.
    pages: BTreeMap<u64, (u16, u32)>,
    /// Empty spans have gone back, after the end of the programs.
    are_returned: bool,
}

impl Blocks {
    fn insert(&mut self, node: u16, block: &Block, page_bytes: u64) -> Result<(), String> {
        let end = block.offset + block.bytes;
        if let Some((&before, &(bytes, _))) = self.live.range(..end).next_back()
            && before + bytes > block.offset
        {
            return Err(format!("node {node} gets {block:?}, and there is a block at {before}"));
        }
        for page in block.offset / page_bytes..end.div_ceil(page_bytes) {
            let (owner, count) = self.pages.entry(page).or_insert((node, 0));
            if *owner != node {
                return Err(format!("node {node} gets {block:?}, and node {owner} has a block on the same page"));
            }
            *count += 1;
        }
        self.live.insert(block.offset, (block.bytes, node));
        self.idle.push(block.offset);
        Ok(())
    }

    /// Chooses a block. No other call is about it until it is idle again.
    fn take(&mut self, choice: u64) -> Option<u64> {
        let count = self.idle.len() as u64;
        (count > 0).then(|| self.idle.swap_remove((choice % count) as usize))
    }

    /// A program frees this block. From now on any node may get the memory.
    fn remove(&mut self, offset: u64, page_bytes: u64) {
        let (bytes, _) = self.live.remove(&offset).expect("a program frees what it has");
        for page in offset / page_bytes..(offset + bytes).div_ceil(page_bytes) {
            let (_, count) = self.pages.get_mut(&page).expect("a page of a block");
            *count -= 1;
            if *count == 0 {
                self.pages.remove(&page);
            }
        }
    }
}

impl<S: Start> World<'_, S> {
    /// A thread begins a call of the heap, if there is a block for it.
    pub(super) fn call_heap(&mut self, node: u16, index: u8, action: Action) -> Result<(), String> {
        let number = self.nodes[usize::from(node)].ticket();
        let page_bytes = u64::from(self.scenario.wires.page_bytes);
        let call = match action {
            Action::Allocate(request) => {
                let (now, latency_ns) = (self.now, self.scenario.wires.latency_ns);
                let random = &mut self.thread(node, index).random;
                let may_be = random.once_in(GIVEN_UP_ONCE_IN) && request.bytes < MORE_THAN_ALL;
                let given_up = may_be.then(|| now + random.below(8 * latency_ns));
                if let Some(at) = given_up {
                    self.queue.put(at, Event::GiveUp { node, thread: index, time_out: number });
                }
                Call::allocate(request, number)
            }
            Action::Free(choice) => {
                let Some(offset) = self.blocks.take(choice) else { return self.goes_on(node, index) };
                self.blocks.remove(offset, page_bytes);
                Call::free(offset, number)
            }
            // No block begins at an odd number.
            Action::FreeNone(offset) => Call::free(offset | 1, number),
            Action::Measure(choice) => {
                let Some(offset) = self.blocks.take(choice) else { return self.goes_on(node, index) };
                let thread = self.thread(node, index);
                (thread.doing, thread.measures) = (Doing::Calling(number), offset);
                return self.step_heap(node, Input::Measure(offset, number));
            }
            other => unreachable!("{other:?} is no call of the heap"),
        };
        let thread = self.thread(node, index);
        thread.doing = Doing::Calling(number);
        thread.heap_call = Some(call);
        self.go_on_with_heap(node, index, None)
    }

    /// Carries out the steps of the thread's call, up to one that waits.
    fn go_on_with_heap(&mut self, node: u16, index: u8, mut outcome: Option<StepOutcome>) -> Result<(), String> {
        loop {
            let machine = &mut self.nodes[usize::from(node)];
            let heap = machine.parts.heap.as_mut().expect("every node has a heap");
            let call = machine.threads[usize::from(index)].heap_call.as_mut().expect("it makes a call");
            let step = match outcome {
                None => call.begin(heap),
                Some(outcome) => call.go_on(heap, outcome),
            };
            match step {
                Step::Publish | Step::Refresh | Step::Place(_) => outcome = Some(StepOutcome::Done),
                Step::Ask(input) => return self.step_heap(node, input),
                Step::End(answer) => return self.end_heap_call(node, index, answer),
            }
        }
    }

    /// The heap of a node has answered a call.
    pub(super) fn heap_answered(&mut self, node: u16, number: Waiter, answer: Answer) -> Result<(), String> {
        let index = self.caller(node, number)?;
        match self.thread(node, index).heap_call.is_some() {
            true => self.go_on_with_heap(node, index, Some(StepOutcome::Answer(answer))),
            false => self.end_heap_call(node, index, answer),
        }
    }

    /// A thread waits for a block no longer, if it still does. Returns whether it was about a block.
    pub(super) fn gives_up_block(&mut self, node: u16, index: u8, time_out: u32) -> Result<bool, String> {
        let machine = &mut self.nodes[usize::from(node)];
        let thread = &mut machine.threads[usize::from(index)];
        if thread.doing != Doing::Calling(time_out) {
            return Ok(false);
        }
        let Some(call) = thread.heap_call.take() else { return Ok(false) };
        let abandon = call.give_up(machine.parts.heap.as_mut().expect("every node has a heap"));
        self.tally.given_up += 1;
        self.recorder.note(self.now, || format!("n{node} thread {index} gives up a block"));
        if self.start.fault() != NodeFault::AbandonsNothing {
            self.step_heap(node, abandon)?;
        }
        self.go_on(node, index);
        Ok(true)
    }

    fn step_heap(&mut self, node: u16, input: Input) -> Result<(), String> {
        node::take_fact(&mut self.at(node), node::Input::Heap(input))
    }

    fn end_heap_call(&mut self, node: u16, index: u8, answer: Answer) -> Result<(), String> {
        let page_bytes = u64::from(self.scenario.wires.page_bytes);
        let thread = self.thread(node, index);
        thread.heap_call = None;
        let (action, measured) = (thread.action, thread.measures);
        match (action, answer) {
            (Some(Action::Allocate(request)), Answer::Block(block)) => {
                self.check_block(&request, &block)?;
                self.blocks.insert(node, &block, page_bytes)?;
            }
            (Some(Action::Measure(_)), Answer::Bytes(bytes)) if self.blocks.live[&measured].0 == bytes => {
                self.blocks.idle.push(measured);
            }
            (Some(Action::Allocate(_)), Answer::NoRoom { .. })
            | (Some(Action::Free(_)), Answer::Freed)
            | (Some(Action::FreeNone(_)), Answer::NoBlock) => {}
            (action, answer) => return Err(format!("{action:?} at node {node} ends with {answer:?}")),
        }
        self.tally.calls += 1;
        self.goes_on(node, index)
    }

    fn goes_on(&mut self, node: u16, index: u8) -> Result<(), String> {
        self.go_on(node, index);
        Ok(())
    }

    fn check_block(&self, request: &Request, block: &Block) -> Result<(), String> {
        let (page_bytes, first) = (u64::from(self.scenario.wires.page_bytes), u64::from(self.scenario.layout.pages()));
        let (start, border) = (first * page_bytes, (first + u64::from(LOWER_PAGES)) * page_bytes);
        let is_whole = block.offset.is_multiple_of(page_bytes) && block.bytes.is_multiple_of(page_bytes);
        let is_right = block.bytes >= request.bytes
            && block.offset.is_multiple_of(request.align.max(16))
            && (request.separation != Separation::Always || is_whole)
            && block.offset >= start
            && (block.offset >= border) == (request.zone == Zone::Upper)
            && !(block.is_fresh && block.is_foreign);
        if is_right { Ok(()) } else { Err(format!("{request:?} is answered with {block:?}")) }
    }

    /// When all threads are done, every founder makes a call for which there is no room, so that its empty spans go back.
    /// Returns whether it does.
    pub(super) fn returns_spans(&mut self) -> bool {
        let is_first = !self.blocks.are_returned;
        self.blocks.are_returned = true;
        if !is_first || self.scenario.pattern != Pattern::Blocks || self.members.culprit().is_some() {
            return false;
        }
        for node in 0..self.scenario.founders {
            let (bytes, separation, zone) = (MORE_THAN_ALL, Separation::Always, Zone::Lower);
            let thread = self.thread(node, 0);
            thread.plan.push(Action::Allocate(Request { bytes, align: 8, home: NodeId(node), separation, zone }));
            self.busy_threads += 1;
            self.go_on(node, 0);
        }
        true
    }

    /// At the end every page of the heap is free or at a node, and nodes have the blocks that the programs know.
    pub(super) fn check_heap(&self) -> Result<(), String> {
        if self.members.culprit().is_some() {
            return Ok(());
        }
        let heaps = || self.nodes.iter().filter_map(|node| node.parts.heap.as_ref());
        let used: Vec<Statistics> = heaps().map(Heap::statistics).collect();
        let held: u64 = used.iter().map(|used| used.span_bytes / u64::from(self.scenario.wires.page_bytes)).sum();
        let blocks: u64 = used.iter().map(|used| used.blocks).sum();
        let free = heaps().find_map(Heap::pages_free).expect("one node keeps the directory");
        let live = self.blocks.live.len() as u64;
        match (blocks == live, free + held == u64::from(HEAP_PAGES)) {
            (true, true) => Ok(()),
            (false, _) => Err(format!("nodes have {blocks} blocks of which programs know {live}")),
            (true, false) => Err(format!("{free} pages are free and nodes have {held}: of {HEAP_PAGES} some are lost")),
        }
    }
}
