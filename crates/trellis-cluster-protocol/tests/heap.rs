//! The heap of a few nodes: random calls compared with a model, with messages in any order. `trellis check heap` visits
//! every interleaving of small programs.

mod heap_nodes;

use heap_nodes::{Call, Nodes, PAGE_BYTES};
use trellis_base::Random;
use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::heap::{Answer, Debt, Input, Request, Separation, Zone};

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
    let request = Request { bytes: 100, align: 16, home: NodeId(1), separation: Separation::Never, zone: Zone::Lower };
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
        nodes: Nodes::in_zones(NODES, HEAP_PAGES, HEAP_PAGES / 2),
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
        let separation = match self.random.below(100) {
            0 => Separation::Always,
            1..=30 => Separation::WhileFew,
            _ => Separation::Never,
        };
        let zone = if self.random.once_in(3) { Zone::Upper } else { Zone::Lower };
        let request = Request { bytes, align, home, separation, zone };
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
                (Call::Allocate(request), Answer::Block(block)) => {
                    let is_above = block.offset >= u64::from(3 + HEAP_PAGES / 2) * PAGE_BYTES;
                    assert_eq!(is_above, request.zone == Zone::Upper);
                    self.blocks.push(block.offset);
                }
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
            let request = Request {
                bytes: more_than_all,
                align: 8,
                home: NodeId(node),
                separation: Separation::Always,
                zone: Zone::Lower,
            };
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

const PAGES: u32 = 5;

#[test]
fn a_span_that_comes_too_late_goes_back() {
    let mut nodes = Nodes::new(2, PAGES);
    let request = Request {
        bytes: 2 * PAGE_BYTES,
        align: 16,
        home: NodeId(1),
        separation: Separation::Always,
        zone: Zone::Lower,
    };
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
    let request = Request { bytes: 100, align: 16, home: NodeId(1), separation: Separation::Never, zone: Zone::Lower };
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
