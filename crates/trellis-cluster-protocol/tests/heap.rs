//! The heap of a few nodes: random calls compared with a model, with messages in any order, and every interleaving of
//! small programs.

mod heap_nodes;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use heap_nodes::{Call, Nodes, PAGE_BYTES, Underway};
use trellis_base::Random;
use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::heap::{Answer, Debt, Input, Request};

const NODES: u16 = 3;
const HEAP_PAGES: u32 = 4096;

/// Prints the seed if a test panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay: TRELLIS_HEAP_SEED={} cargo test -p trellis-cluster-protocol --test heap random", self.0);
        }
    }
}

#[test]
fn a_call_knows_whom_it_waits_for() {
    let mut nodes = Nodes::new(3, 64);
    let deliver_all = |nodes: &mut Nodes| {
        while !nodes.network.is_empty() {
            nodes.deliver(0);
        }
    };
    let request = Request { bytes: 100, align: 16, home: NodeId(1), own_pages: false };
    nodes.call(1, 7, Call::Allocate(request));
    assert_eq!(nodes.heaps[1].debt(7), Some(Debt::Directory), "only the directory hands pages out");
    deliver_all(&mut nodes);
    assert_eq!(nodes.heaps[1].debt(7), None);
    let offset = *nodes.model.live.keys().next().expect("the block");
    // Node 2 knows nothing and asks node 0; the answer names the owner.
    nodes.call(2, 8, Call::Measure(offset));
    assert_eq!(nodes.heaps[2].debt(8), Some(Debt::Block(NodeId(0))));
    deliver_all(&mut nodes);
    nodes.call(2, 9, Call::Measure(offset));
    assert_eq!(nodes.heaps[2].debt(9), Some(Debt::Block(NodeId(1))));
    // The directory knows the owner of the block at once.
    nodes.call(0, 8, Call::Measure(offset));
    assert_eq!(nodes.heaps[0].debt(8), Some(Debt::Block(NodeId(1))));
    deliver_all(&mut nodes);
    assert_eq!((nodes.heaps[2].debt(9), nodes.heaps[0].debt(8)), (None, None));
}

#[test]
fn random_calls_in_any_order_agree_with_a_model() {
    let seed = std::env::var("TRELLIS_HEAP_SEED").map_or(20_260, |seed| seed.parse().expect("a number"));
    let steps = if cfg!(debug_assertions) { 200_000 } else { 10_000_000 };
    let named = Seed(seed);
    let mut run = RandomRun {
        nodes: Nodes::new(NODES, HEAP_PAGES),
        random: Random::new(seed),
        blocks: Vec::new(),
        calls: 0,
        without_room: 0,
    };
    for step in 0..steps {
        run.act();
        if step % 1000 == 999 {
            run.settle();
            run.frees_what_is_no_block();
        }
    }
    run.ends_with_every_page_free();
    drop(named);
}

struct RandomRun {
    nodes: Nodes,
    random: Random,
    /// Offsets of the programs' blocks.
    blocks: Vec<u64>,
    calls: u32,
    /// Allocations that failed for lack of room.
    without_room: u32,
}

impl RandomRun {
    fn act(&mut self) {
        let node = self.random.below(u64::from(NODES)) as u16;
        match self.random.below(8) {
            _ if self.nodes.calls.len() > 16 => self.deliver(),
            0..=2 => self.allocate(node),
            // A full heap is emptied faster than it fills.
            3..=5 if self.blocks.len() > 20_000 || !self.random.once_in(8) => self.free(node),
            _ => self.deliver(),
        }
        self.take_ended();
    }

    fn allocate(&mut self, node: u16) {
        let bytes = match self.random.below(200) {
            0 => self.random.below(300_000),
            1..=10 => self.random.below(40_000),
            _ => self.random.below(1_000),
        };
        let align = match self.random.below(10) {
            0 => 1 << self.random.below(16),
            _ => 8,
        };
        let home = if self.random.once_in(4) { NodeId((node + 1) % NODES) } else { NodeId(node) };
        let request = Request { bytes, align, home, own_pages: self.random.once_in(100) };
        let waiter = self.number();
        self.nodes.call(node, waiter, Call::Allocate(request));
    }

    fn free(&mut self, node: u16) {
        if self.blocks.is_empty() {
            return;
        }
        let at = self.random.index(self.blocks.len());
        let offset = self.blocks.swap_remove(at);
        let (_, owner) = self.nodes.model.remove(offset);
        // Most blocks are freed where they were allocated.
        let node = if self.random.once_in(4) { node } else { owner };
        let waiter = self.number();
        self.nodes.call(node, waiter, Call::Free(offset));
    }

    fn deliver(&mut self) {
        if !self.nodes.network.is_empty() {
            let at = self.random.index(self.nodes.network.len());
            self.nodes.deliver(at);
        }
    }

    fn take_ended(&mut self) {
        for (node, _, call, answer) in std::mem::take(&mut self.nodes.ended) {
            match (call, answer) {
                (Call::Allocate(_), Answer::Block(block)) => self.blocks.push(block.offset),
                (Call::Allocate(_), Answer::NoRoom { .. }) => {
                    self.without_room += 1;
                    (0..4).for_each(|_| self.free(node));
                }
                (Call::Free(_), Answer::Freed) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Delivers all messages.
    fn settle(&mut self) {
        while !self.nodes.is_quiet() {
            self.deliver();
            self.take_ended();
        }
    }

    fn frees_what_is_no_block(&mut self) {
        let region = u64::from(HEAP_PAGES + 3) * PAGE_BYTES;
        let near = self.blocks.get(self.random.index(self.blocks.len().max(1))).copied();
        let wrong =
            [near.map_or(0, |offset| offset + 1), near.map_or(0, |offset| offset + 16), self.random.below(region)];
        for offset in wrong {
            if self.nodes.model.live.contains_key(&offset) {
                continue;
            }
            let node = self.random.below(u64::from(NODES)) as u16;
            let before = self.nodes.heaps.iter().map(|heap| heap.statistics()).collect::<Vec<_>>();
            assert_eq!(self.call(node, Call::Free(offset)), Answer::NoBlock);
            assert_eq!(self.call(node, Call::Measure(offset)), Answer::NoBlock);
            let after = self.nodes.heaps.iter().map(|heap| heap.statistics()).collect::<Vec<_>>();
            assert_eq!(before, after, "nothing has happened");
        }
        if let Some(offset) = near {
            let node = self.random.below(u64::from(NODES)) as u16;
            let bytes = self.nodes.model.live[&offset].0;
            assert_eq!(self.call(node, Call::Measure(offset)), Answer::Bytes(bytes));
        }
    }

    /// Makes a call while nothing else happens.
    fn call(&mut self, node: u16, call: Call) -> Answer {
        let waiter = self.number();
        self.nodes.call(node, waiter, call);
        while !self.nodes.is_quiet() {
            self.deliver();
        }
        let (_, _, _, answer) = self.nodes.ended.pop().expect("the call ended");
        answer
    }

    fn ends_with_every_page_free(&mut self) {
        self.settle();
        while !self.blocks.is_empty() {
            let node = self.random.below(u64::from(NODES)) as u16;
            self.free(node);
            self.settle();
        }
        for node in 0..NODES {
            // Empty spans go back where there is no room.
            let more_than_all = u64::from(HEAP_PAGES + 1) * PAGE_BYTES;
            let request = Request { bytes: more_than_all, align: 8, home: NodeId(node), own_pages: true };
            assert!(matches!(self.call(node, Call::Allocate(request)), Answer::NoRoom { .. }));
            let now = self.nodes.heaps[usize::from(node)].statistics();
            assert_eq!((now.blocks, now.block_bytes, now.spans, now.span_bytes), (0, 0, 0, 0), "node {node}");
            assert!(now.allocations > 1000 && now.frees_by_others > 1000, "node {node} took part");
        }
        assert_eq!(self.nodes.heaps[0].pages_free(), Some(u64::from(HEAP_PAGES)));
        assert!(self.without_room > 0, "the heap was full at times");
    }

    fn number(&mut self) -> u32 {
        self.calls += 1;
        self.calls
    }
}

/// A step of a program of the explorer; blocks have numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Allocates this block: so many pages of its own, or a small block if 0.
    Allocate(usize, u64),
    /// Frees the block once it is there.
    Free(usize),
    /// Frees the block once it is there, although another program frees it too.
    FreeToo(usize),
}

const PAGES: u32 = 5;

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    nodes: Nodes,
    /// The next step of each node's program, and its call that waits.
    next: Vec<(usize, Option<u32>)>,
    /// The block that each node's program waits for.
    wanted: Vec<Option<usize>>,
    /// The offsets of the blocks that the programs have, or had.
    blocks: Vec<Option<u64>>,
    /// Frees that succeeded, and those that were refused.
    freed: u32,
    refused: u32,
    no_room: u32,
}

/// Visits every state that the programs can reach; calls `end` with each state in which no step is left.
fn explore(programs: &[&[Step]], end: impl Fn(&World)) -> usize {
    let nodes = programs.len() as u16;
    let start = World {
        nodes: Nodes::new(nodes, PAGES),
        next: vec![(0, None); programs.len()],
        wanted: vec![None; programs.len()],
        blocks: vec![None; 4],
        freed: 0,
        refused: 0,
        no_room: 0,
    };
    let (mut seen, mut open, mut ends) = (Seen::default(), vec![start], 0);
    while let Some(mut world) = open.pop() {
        world.nodes.network.sort_unstable_by_key(order);
        if !seen.insert(&world) {
            continue;
        }
        let before = open.len();
        for node in 0..nodes {
            let mut next = world.clone();
            if next.run(node, programs[usize::from(node)]) {
                open.push(next);
            }
        }
        for at in 0..world.nodes.network.len() {
            let mut next = world.clone();
            next.nodes.deliver(at);
            next.take_ended();
            open.push(next);
        }
        if open.len() == before {
            ends += 1;
            let stuck = (0..programs.len()).find(|&node| world.next[node] != (programs[node].len(), None));
            assert_eq!(stuck, None, "a program does not end");
            end(&world);
        }
    }
    assert!(ends > 0);
    seen.count
}

/// The states that were visited, by a hash that is the same in every run.
#[derive(Default)]
struct Seen {
    worlds: BTreeMap<u64, Vec<World>>,
    count: usize,
}

impl Seen {
    /// Whether the state is new.
    fn insert(&mut self, world: &World) -> bool {
        let mut hasher = DefaultHasher::new();
        world.hash(&mut hasher);
        let same = self.worlds.entry(hasher.finish()).or_default();
        if same.contains(world) {
            return false;
        }
        same.push(world.clone());
        self.count += 1;
        true
    }
}

fn order(underway: &Underway) -> String {
    format!("{underway:?}")
}

impl World {
    /// Runs the next step of a node's program, if it can do one now.
    fn run(&mut self, node: u16, program: &[Step]) -> bool {
        let me = usize::from(node);
        let (next, None) = self.next[me] else { return false };
        let waiter = next as u32 + 1;
        let Some(step) = program.get(next) else { return false };
        let call = match *step {
            Step::Allocate(block, pages) => {
                self.wanted[me] = Some(block);
                let bytes = if pages == 0 { 100 } else { pages * PAGE_BYTES };
                let request = Request { bytes, align: 8, home: NodeId(node), own_pages: pages > 0 };
                Call::Allocate(request)
            }
            Step::Free(block) | Step::FreeToo(block) => {
                let Some(offset) = self.blocks[block] else { return false };
                if matches!(step, Step::Free(_)) {
                    self.nodes.model.remove(offset);
                }
                Call::Free(offset)
            }
        };
        self.next[me] = (next + 1, Some(waiter));
        self.nodes.call(node, waiter, call);
        self.take_ended();
        true
    }

    fn take_ended(&mut self) {
        for (node, waiter, _, answer) in std::mem::take(&mut self.nodes.ended) {
            let me = usize::from(node);
            assert_eq!(self.next[me].1.take(), Some(waiter), "a program waits for one call");
            match answer {
                Answer::Block(block) => {
                    let wanted = self.wanted[me].take().expect("the program waits for a block");
                    self.blocks[wanted] = Some(block.offset);
                }
                Answer::Freed => self.freed += 1,
                Answer::NoBlock => self.refused += 1,
                Answer::NoRoom { .. } => self.no_room += 1,
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn blocks_freed_at_other_nodes_come_back_in_every_order() {
    let programs: [&[Step]; 3] = [
        &[Step::Free(0), Step::Allocate(2, 1), Step::Free(2)],
        &[Step::Allocate(0, 2), Step::Allocate(1, 0), Step::Free(3)],
        &[Step::Free(1), Step::Allocate(3, 1)],
    ];
    let states = explore(&programs, |world| {
        assert_eq!((world.freed, world.refused, world.no_room), (4, 0, 0));
        let live: u64 = world.nodes.heaps.iter().map(|heap| heap.statistics().blocks).sum();
        assert_eq!(live, 0);
        // Only the pool of small blocks still has a page.
        assert_eq!(world.nodes.heaps[0].pages_free(), Some(u64::from(PAGES) - 1));
    });
    assert!(states > 200, "{states} states");
}

#[test]
fn memory_is_there_for_everybody_when_a_free_has_returned() {
    // The heap has five pages: node 2 gets its four only if the pages freed elsewhere are back.
    let programs: [&[Step]; 3] =
        [&[], &[Step::Allocate(0, 4), Step::Allocate(1, 1)], &[Step::Free(0), Step::Allocate(2, 4), Step::Free(1)]];
    let states = explore(&programs, |world| {
        assert_eq!((world.freed, world.refused, world.no_room), (2, 0, 0));
    });
    assert!(states > 30, "{states} states");
}

#[test]
fn of_two_frees_of_one_block_exactly_one_succeeds() {
    for pages in [0, 1] {
        let programs: [&[Step]; 3] = [&[Step::FreeToo(0)], &[Step::Allocate(0, pages)], &[Step::Free(0)]];
        let states = explore(&programs, |world| {
            assert_eq!((world.freed, world.refused), (1, 1));
            assert_eq!(world.nodes.heaps[1].statistics().blocks, 0);
        });
        assert!(states > 20, "{states} states");
    }
}

#[test]
fn a_span_that_comes_too_late_goes_back() {
    let mut nodes = Nodes::new(2, PAGES);
    let request = Request { bytes: 2 * PAGE_BYTES, align: 16, home: NodeId(1), own_pages: true };
    nodes.call(1, 7, Call::Allocate(request));
    nodes.step(1, Input::Abandon(7));
    while !nodes.network.is_empty() {
        nodes.deliver(0);
    }
    assert_eq!(nodes.heaps[0].pages_free(), Some(u64::from(PAGES)));
    assert!(nodes.ended.is_empty());
}

#[test]
fn a_block_that_another_node_had_says_so_and_a_new_one_is_fresh() {
    let mut nodes = Nodes::new(2, PAGES);
    let request = Request { bytes: 100, align: 16, home: NodeId(1), own_pages: false };
    let mut waiter = 0;
    let mut call = |nodes: &mut Nodes, node: u16, call: Call| {
        waiter += 1;
        nodes.call(node, waiter, call);
        while !nodes.network.is_empty() {
            nodes.deliver(0);
        }
        nodes.ended.pop().expect("it ended").3
    };
    let mut past = Vec::new();
    for freed_by in [1, 0, 1] {
        let answer = call(&mut nodes, 1, Call::Allocate(request));
        let Answer::Block(block) = answer else { panic!("{answer:?}") };
        past.push((block.is_fresh, block.is_foreign));
        nodes.model.remove(block.offset);
        let freed = call(&mut nodes, freed_by, Call::Free(block.offset));
        assert_eq!(freed, Answer::Freed);
    }
    assert_eq!(past, [(true, false), (false, false), (false, true)]);
    assert_eq!(nodes.heaps[1].statistics().frees_by_others, 1);
}
