//! The shared heap: carries out the steps of the program's calls ([`Call`]), and waits.
//!
//! Promises: a call that fails has changed nothing, except that it may have given empty pages back; a free that fails
//! while it does so is done. It must never touch the region: only the program's own stores fill a block.

use std::collections::BTreeMap;
use std::ops::Range;

use trellis_cluster_protocol::heap::{
    Answer, Block, Call, Debt, Geometry, Input, Request, Run, SMALL_BYTES_MAX, SPANS_MAX, Separation, Statistics, Step,
    StepOutcome, Zone,
};
use trellis_cluster_protocol::{NodeId, heap, node};

use super::carrier::NodeCarrier;
use super::ordered::{Guard, Ordered, Rank, lock};
use super::progress::Waited;
use super::{Node, Ticket};
use crate::cluster::WaitError;
use crate::config::Config;
use crate::heap::{HeapError, Home};
use crate::waits::Wait;
use trellis_record::LiveCounters;

/// The home of interleaved pages changes after this many pages, unless that would make more than [`STRIPES_MAX`]
/// pieces.
const STRIPE_PAGES_MIN: u32 = 16;
/// The maximum number of pieces in which one allocation is placed.
const STRIPES_MAX: u32 = 1024;

/// The heap of one node, and the answers to the calls that wait.
pub(super) struct SharedHeap {
    machine: Ordered<heap::Heap>,
    /// Answers for threads that were woken and have not looked yet, by ticket.
    answers: Ordered<BTreeMap<u32, Answer>>,
}

/// An allocation that the program requests.
#[derive(Clone, Copy)]
pub(crate) struct AllocationRequest {
    pub(crate) bytes: u64,
    pub(crate) align: u64,
    pub(crate) home: Home,
    pub(crate) separation: Separation,
    pub(crate) zone: Zone,
}

impl SharedHeap {
    pub(super) fn new(config: &Config) -> SharedHeap {
        let geometry = Geometry {
            me: NodeId(config.node as u16),
            directory: NodeId(config.manager as u16),
            first_page: (config.heap_start() / config.page_bytes) as u32,
            border_page: (config.heap_border() / config.page_bytes) as u32,
            end_page: (config.region_bytes / config.page_bytes) as u32,
            page_bytes: config.page_bytes as u32,
            base_pages: (config.base_address / config.page_bytes) as u64,
        };
        SharedHeap {
            machine: Ordered::new(Rank::State, heap::Heap::new(geometry)),
            answers: Ordered::new(Rank::Last, BTreeMap::new()),
        }
    }
}

/// The advice when memory is short. The advice is "by much", because a program learns of one failed allocation at a
/// time.
const LARGER: &str = "raise heap_bytes or region_bytes, by much (region_bytes=64GiB is fine): pages take memory only when they \
                      are touched";

impl Node {
    /// Allocates a block for the program.
    pub(crate) fn heap_allocate(&self, wanted: AllocationRequest) -> Result<Block, HeapError> {
        let request = self.heap_request(wanted)?;
        let ticket = self.waiters.take();
        let call = Call::allocate(request, ticket.name());
        match self.heap_run(&ticket, call, |run| self.heap_place(run, &wanted, request.home))? {
            Answer::Block(block) => Ok(block),
            Answer::NoRoom { pages, longest } => Err(HeapError::NoRoom(self.no_room(&wanted, pages, longest))),
            other => unreachable!("an allocation was answered with {other:?}"),
        }
    }

    /// Frees a block, whichever node handed it out.
    pub(crate) fn heap_free(&self, offset: u64) -> Result<(), HeapError> {
        let ticket = self.waiters.take();
        let call = Call::free(offset, ticket.name());
        match self.heap_run(&ticket, call, |_| unreachable!("a block that is freed has its pages"))? {
            Answer::Freed => Ok(()),
            _ => Err(self.no_block(offset, "freed")),
        }
    }

    /// Carries out the steps of a call, and returns its answer.
    fn heap_run(
        &self,
        ticket: &Ticket<'_>,
        mut call: Call,
        place: impl Fn(Run) -> Result<(), WaitError>,
    ) -> Result<Answer, WaitError> {
        let mut step = call.begin(&mut self.hold_heap());
        loop {
            let outcome = match step {
                Step::Publish => self.publish().map(|()| StepOutcome::Done),
                Step::Refresh => {
                    self.refresh();
                    Ok(StepOutcome::Done)
                }
                Step::Place(run) => place(run).map(|()| StepOutcome::Done),
                Step::Ask(input) => {
                    ticket.rearm();
                    self.heap_call(ticket, input).map(StepOutcome::Answer)
                }
                Step::End(answer) => return Ok(answer),
            };
            let mut machine = self.hold_heap();
            match outcome {
                Ok(outcome) => step = call.go_on(&mut machine, outcome),
                Err(error) => {
                    let abandon = call.give_up(&mut machine);
                    let Ok(()) = node::step_heap(&mut NodeCarrier { node: self, held: machine }, abandon);
                    return Err(error);
                }
            }
        }
    }

    /// The size in bytes of the block at `offset`.
    pub(crate) fn heap_measure(&self, offset: u64) -> Result<u64, HeapError> {
        let ticket = self.waiters.take();
        match self.heap_call(&ticket, Input::Measure(offset, ticket.name()))? {
            Answer::Bytes(bytes) => Ok(bytes),
            _ => Err(self.no_block(offset, "measured")),
        }
    }

    /// What this node handed out, and, at the node that keeps the directory, the number of free pages.
    pub(crate) fn heap_statistics(&self) -> (Statistics, Option<u64>) {
        let machine = self.hold_heap();
        (machine.statistics(), machine.pages_free())
    }

    pub(super) fn hold_heap(&self) -> Guard<'_, heap::Heap> {
        lock(&self.heap.machine)
    }

    /// The heap answers a call, while it is held.
    pub(super) fn heap_answered(&self, ticket: u32, answer: Answer) {
        lock(&self.heap.answers).insert(ticket, answer);
        self.waiters.signal(ticket, 0);
    }

    fn heap_request(&self, wanted: AllocationRequest) -> Result<Request, HeapError> {
        if self.is_joined_node() {
            let why = "a node that joined later has no part of the shared heap, because it may leave before its blocks are \
                       freed; let a node that was there from the start allocate, and free at any";
            return Err(HeapError::Misuse(why.to_owned()));
        }
        let home = match wanted.home {
            Home::Node(node) if node >= usize::from(self.founders) => {
                let last = self.founders - 1;
                return Err(HeapError::Misuse(format!(
                    "node {node} cannot be the home of memory; accepted: nodes 0 to {last}"
                )));
            }
            Home::Node(node) => NodeId(node as u16),
            Home::Here | Home::Interleaved | Home::Unspecified => self.me,
        };
        let AllocationRequest { bytes, align, separation, zone, .. } = wanted;
        Ok(Request { bytes, align, home, separation, zone })
    }

    /// Gives the pages of a new span their home, before they are touched.
    fn heap_place(&self, run: Run, wanted: &AllocationRequest, home: NodeId) -> Result<(), WaitError> {
        let pages = run.first..run.first + run.pages;
        let is_shared = wanted.bytes <= SMALL_BYTES_MAX && wanted.separation != Separation::Always;
        match wanted.home {
            Home::Unspecified if !is_shared => Ok(()),
            Home::Interleaved if !is_shared => stripes(pages)
                .enumerate()
                .try_for_each(|(number, stripe)| self.place(stripe, number % usize::from(self.founders))),
            _ => self.place(pages, usize::from(home.0)),
        }
    }

    /// Passes a call to the state machine and waits for its answer.
    fn heap_call(&self, ticket: &Ticket<'_>, input: Input) -> Result<Answer, WaitError> {
        let Ok(()) = node::take_fact(&mut self.carrier(), node::Input::Heap(input));
        if !ticket.is_done() {
            let started = self.now();
            let waited = self.wait(ticket, Wait::Heap);
            LiveCounters::add(&self.counters().overhead_ns, self.now() - started);
            match waited {
                Waited::Done => {}
                Waited::Failed => return Err(WaitError::Failed(self.failure.sentence())),
                Waited::TooLong => self.heap_give_up(ticket)?,
            }
        }
        let answer = lock(&self.heap.answers).remove(&ticket.name());
        Ok(answer.expect("a ticket is signalled when its answer is there"))
    }

    /// The deadline passed. If the answer came at the last moment, the call continues.
    fn heap_give_up(&self, ticket: &Ticket<'_>) -> Result<(), WaitError> {
        let debt = self.hold_heap().debt(ticket.name());
        let whom = self.who_owes(debt);
        let machine = self.hold_heap();
        if lock(&self.heap.answers).contains_key(&ticket.name()) {
            return Ok(());
        }
        let abandon = Input::Abandon(ticket.name());
        let Ok(()) = node::step_heap(&mut NodeCarrier { node: self, held: machine }, abandon);
        Err(self.too_long(Wait::Heap, whom))
    }

    /// Which node has not answered. Every node answers at once, so the silent one is to blame; of several, the first on
    /// the way of the question.
    pub(super) fn who_owes(&self, debt: Option<Debt>) -> String {
        let directory = NodeId(self.config.manager as u16);
        let directory_is_silent =
            || format!("no answer from {}, which keeps the heap's directory", self.name_of(directory));
        let silent = self.silent_nodes();
        let asked = match debt {
            Some(Debt::Block(asked)) => asked,
            // It is not known which of several calls this is.
            None if !silent.is_empty() && !silent.contains(&directory) => {
                return format!("no answer from {}", self.names(&silent));
            }
            _ => return directory_is_silent(),
        };
        if asked != directory && (silent.contains(&asked) || silent.is_empty()) {
            return format!("no answer from {}, which has the block", self.name_of(asked));
        }
        match silent.as_slice() {
            [] => directory_is_silent(),
            several if several.contains(&directory) => directory_is_silent(),
            [one] => format!("no answer from {}, which has the block", self.name_of(*one)),
            several => format!("no answer from {}, one of which has the block", self.names(several)),
        }
    }

    fn no_room(&self, wanted: &AllocationRequest, pages: u32, longest: u32) -> String {
        let (bytes, region_bytes) = (wanted.bytes, self.config.region_bytes);
        let page_bytes = self.config.page_bytes as u64;
        if longest == u32::MAX {
            return format!(
                "the shared heap has {SPANS_MAX} pieces already, and {bytes} bytes need one more; free some"
            );
        }
        let heap_bytes = self.config.region_bytes - self.config.heap_start();
        if longest >= pages {
            let align = wanted.align;
            return format!(
                "the shared heap has no {bytes} free bytes aligned to {align} in its {heap_bytes} bytes of the region of \
                 {region_bytes}; {LARGER}"
            );
        }
        let (needed, longest) = (u64::from(pages) * page_bytes, u64::from(longest) * page_bytes);
        let used = self.heap_statistics().0.block_bytes;
        format!(
            "the shared heap has no {needed} bytes in a row left for an allocation of {bytes}: the longest free run of \
             its {heap_bytes} bytes of the region of {region_bytes} has {longest}, and this node has allocated {used}; free some, or {LARGER}"
        )
    }

    fn no_block(&self, offset: u64, what: &str) -> HeapError {
        let address = self.config.base_address as u64 + offset;
        HeapError::Misuse(format!(
            "no block of the shared heap begins at address {address:#x} (byte {offset} of the region), so it cannot be \
             {what}: it was freed before, or is not what an allocation returned"
        ))
    }
}

/// The pieces of `pages` whose homes alternate.
fn stripes(pages: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let count = pages.end - pages.start;
    let stripe = count.div_ceil(STRIPES_MAX).max(STRIPE_PAGES_MIN);
    (0..count.div_ceil(stripe)).map(move |number| {
        let first = pages.start + number * stripe;
        first..first.saturating_add(stripe).min(pages.end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_cover_the_pages_once_and_are_not_too_many() {
        for (first, count) in [(0, 1), (3, 16), (3, 17), (100, 5_000), (7, 1 << 20)] {
            let all: Vec<Range<u32>> = stripes(first..first + count).collect();
            assert!(all.len() <= STRIPES_MAX as usize);
            assert_eq!((all[0].start, all.last().unwrap().end), (first, first + count));
            assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }
}
