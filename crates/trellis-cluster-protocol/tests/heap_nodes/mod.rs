//! A few nodes with their heaps, a network that delivers in any order, and the results of the programs' calls.
//!
//! Promises: calls of the programs take the steps that a runtime carries out ([`heap::Call`]). Every step checks that no block overlaps another and that no
//! page has blocks of two nodes.

use std::collections::BTreeMap;

use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::heap::{
    self, Answer, Block, Effect, Geometry, Heap, Input, Message, Request, Separation, Step, StepOutcome, Waiter,
};

pub(crate) const PAGE_BYTES: u64 = 4096;

/// The allocated blocks, as the programs know them.
#[derive(Debug, Default)]
pub(crate) struct Model {
    /// By offset: the length of the block, and its node.
    pub(crate) live: BTreeMap<u64, (u64, u16)>,
    /// Pages with live blocks: their node, and the number of blocks that touch them.
    pages: BTreeMap<u64, (u16, u32)>,
}

impl Model {
    fn insert(&mut self, node: u16, block: Block) {
        let end = block.offset + block.bytes;
        if let Some((&before, &(bytes, _))) = self.live.range(..end).next_back() {
            assert!(before + bytes <= block.offset, "{block:?} overlaps the block at {before}");
        }
        self.live.insert(block.offset, (block.bytes, node));
        for page in block.offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES) {
            let (owner, count) = self.pages.entry(page).or_insert((node, 0));
            assert_eq!(*owner, node, "page {page} has blocks of two nodes");
            *count += 1;
        }
    }

    /// Removes a block. Once the program frees it, any node may get the memory.
    pub(crate) fn remove(&mut self, offset: u64) -> (u64, u16) {
        let (bytes, node) = self.live.remove(&offset).expect("the program has this block");
        for page in offset / PAGE_BYTES..(offset + bytes).div_ceil(PAGE_BYTES) {
            let count = self.pages.get_mut(&page).map(|(_, count)| {
                *count -= 1;
                *count
            });
            if count == Some(0) {
                self.pages.remove(&page);
            }
        }
        (bytes, node)
    }
}

/// A message under way: sender, receiver, content.
pub(crate) type Underway = (u16, u16, Message);

#[derive(Debug)]
pub(crate) struct Nodes {
    pub(crate) heaps: Vec<Heap>,
    pub(crate) network: Vec<Underway>,
    /// The steps of the calls that have several.
    running: BTreeMap<(u16, Waiter), heap::Call>,
    /// The calls that wait, by node and number.
    pub(crate) calls: BTreeMap<(u16, Waiter), Call>,
    /// Calls that ended, for the test to collect.
    pub(crate) ended: Vec<(u16, Waiter, Call, Answer)>,
    pub(crate) model: Model,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Allocate(Request),
    /// The block at this offset.
    Free(u64),
    /// The size of the block at this offset.
    Measure(u64),
}

impl Nodes {
    /// The first node keeps the directory; the heap has `pages` pages, and the region has some more before them.
    pub(crate) fn new(nodes: u16, pages: u32) -> Nodes {
        Nodes::in_zones(nodes, pages, pages)
    }

    /// The same, with so many pages in the lower zone.
    pub(crate) fn in_zones(nodes: u16, pages: u32, lower_pages: u32) -> Nodes {
        let heap = |me| {
            Heap::new(Geometry {
                me: NodeId(me),
                directory: NodeId(0),
                first_page: 3,
                border_page: 3 + lower_pages,
                end_page: 3 + pages,
                page_bytes: PAGE_BYTES as u32,
                base_pages: 0x1_0000,
            })
        };
        Nodes {
            heaps: (0..nodes).map(heap).collect(),
            network: Vec::new(),
            running: BTreeMap::new(),
            calls: BTreeMap::new(),
            ended: Vec::new(),
            model: Model::default(),
        }
    }

    pub(crate) fn call(&mut self, node: u16, waiter: Waiter, call: Call) {
        assert_eq!(self.calls.insert((node, waiter), call), None, "one call has one number");
        let steps = match call {
            Call::Allocate(request) => heap::Call::allocate(request, waiter),
            Call::Free(offset) => heap::Call::free(offset, waiter),
            Call::Measure(offset) => return self.step(node, Input::Measure(offset, waiter)),
        };
        self.running.insert((node, waiter), steps);
        self.go_on(node, waiter, None);
    }

    /// The next step of a call, after the one with this outcome.
    fn go_on(&mut self, node: u16, waiter: Waiter, mut outcome: Option<StepOutcome>) {
        let heap = &mut self.heaps[usize::from(node)];
        let call = self.running.get_mut(&(node, waiter)).expect("a call with steps");
        loop {
            let step = match outcome {
                None => call.begin(heap),
                Some(outcome) => call.go_on(heap, outcome),
            };
            match step {
                Step::Publish | Step::Refresh | Step::Place(_) => outcome = Some(StepOutcome::Done),
                Step::Ask(input) => return self.step(node, input),
                Step::End(answer) => {
                    self.running.remove(&(node, waiter));
                    return self.end(node, waiter, answer);
                }
            }
        }
    }

    pub(crate) fn deliver(&mut self, at: usize) {
        let (from, to, message) = self.network.swap_remove(at);
        self.step(to, Input::Message(NodeId(from), message));
    }

    pub(crate) fn step(&mut self, node: u16, input: Input) {
        let mut effects = Vec::new();
        self.heaps[usize::from(node)].step(input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Send(to, message) => {
                    assert_ne!(to.0, node, "nobody writes to itself");
                    self.network.push((node, to.0, message));
                }
                Effect::Done(waiter, answer) => self.done(node, waiter, answer),
                Effect::Violation(from, what) => panic!("{from} sent {what}"),
            }
        }
    }

    fn done(&mut self, node: u16, waiter: Waiter, answer: Answer) {
        match self.running.contains_key(&(node, waiter)) {
            true => self.go_on(node, waiter, Some(StepOutcome::Answer(answer))),
            false => self.end(node, waiter, answer),
        }
    }

    fn end(&mut self, node: u16, waiter: Waiter, answer: Answer) {
        let call = self.calls.remove(&(node, waiter)).expect("each call ends once");
        if let (Call::Allocate(request), Answer::Block(block)) = (call, answer) {
            check(&request, &block);
            self.model.insert(node, block);
        }
        self.ended.push((node, waiter, call, answer));
    }

    /// Whether no message is under way and no call waits.
    pub(crate) fn is_quiet(&self) -> bool {
        self.network.is_empty() && self.calls.is_empty()
    }
}

fn check(request: &Request, block: &Block) {
    assert!(block.bytes >= request.bytes, "{request:?} got {block:?}");
    assert!(block.offset.is_multiple_of(request.align.max(16)), "{request:?} got {block:?}");
    assert!(block.offset >= 3 * PAGE_BYTES);
    assert!(!(block.is_fresh && block.is_foreign), "{block:?}");
    if request.separation == Separation::Always {
        assert!(block.offset.is_multiple_of(PAGE_BYTES) && block.bytes.is_multiple_of(PAGE_BYTES), "{block:?}");
    }
}
