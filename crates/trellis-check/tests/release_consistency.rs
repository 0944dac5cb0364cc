//! `hlrc` in random clusters: every load that locks and barriers order after a store returns its value.
//!
//! The model is small: pages of a few words, nodes with one thread each, a network that delivers in any order, and
//! locks and barriers that only carry knowledge. The words of one page are under different locks, so pages are
//! falsely shared all the time. A failure names the seed; `TRELLIS_SEED=… cargo test -p trellis-check --test
//! release_consistency` replays it.

// The seed to replay comes from the environment.
#![allow(clippy::disallowed_methods)]

use trellis_base::Random;
use trellis_check::model::twinned::{Body, Handling, PAGE_WORDS as WORDS, Releasing, Twinned};
use trellis_cluster_protocol::coherence::hlrc::intervals::{Intervals, Learnt, Notice};
use trellis_cluster_protocol::coherence::{Coherence, Content, Effect, Geometry, Hlrc, Input, Message, Propagation};
use trellis_cluster_protocol::homes::{FirstTouch, Home, Interleaved, Manager, Migrating};
use trellis_cluster_protocol::{Access, NodeId, PageIndex, PageRange};

/// A value that is never released.
const SCRIBBLE: u32 = 1 << 30;

enum Packet {
    Page { message: Message, body: Body },
    Knowledge { bytes: Vec<u8>, for_lock: Option<usize> },
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Doing {
    Idle,
    /// Waits for this lock.
    Acquiring(usize),
    /// Holds this lock; accesses left.
    Inside(usize, usize),
    Touching {
        lock: Option<usize>,
        left: usize,
        word: usize,
        write: bool,
        asked: bool,
    },
    /// Has stored a value that it will replace by the old one or a new one.
    Scribbling {
        lock: Option<usize>,
        left: usize,
        word: usize,
    },
    /// Publishes before it releases the lock, or before the barrier.
    Publishing(Option<usize>),
    AtBarrier,
    /// All have arrived; waits for the knowledge of the others.
    Leaving,
    Checking(usize),
}

struct Node {
    protocol: Hlrc,
    intervals: Intervals,
    copies: Twinned,
    published: bool,
    doing: Doing,
    early: Vec<(usize, Vec<u8>, Option<usize>)>,
    heard: usize,
}

#[derive(Clone, Copy)]
enum LockState {
    Free { last: Option<usize> },
    Coming { to: usize },
    Held,
}

struct World {
    random: Random,
    nodes: Vec<Node>,
    network: Vec<(usize, usize, Packet)>,
    is_ordered: bool,
    marks: bool,
    locks: Vec<LockState>,
    /// The value of each word by the order of its lock; a word at a multiple of three belongs to a node and a
    /// barrier.
    truth: Vec<u32>,
    at_last_barrier: Vec<u32>,
    /// Words that were scribbled on since the last barrier.
    scribbled: Vec<bool>,
    rounds_left: usize,
    /// Piggybacked pages that were merged into copies.
    merged: u64,
    /// Publications whose end was not awaited.
    gave_up: u64,
    seed: u64,
}

fn is_owned(word: usize) -> bool {
    word.is_multiple_of(3)
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let nodes = 2 + random.index(3);
        let pages = 1 + random.index(4);
        let propagation = random.one_of(&[Propagation::Invalidate, Propagation::Update, Propagation::Adaptive]);
        let home = match random.below(4) {
            0 => Home::Manager(Manager(NodeId(random.index(nodes) as u16))),
            1 => Home::Interleaved(Interleaved),
            2 => Home::FirstTouch(FirstTouch),
            _ => Home::Migrating(Migrating),
        };
        let (marks, is_ordered) = (random.once_in(2), random.once_in(3));
        let node = |me: usize| {
            let me = NodeId(me as u16);
            let geometry = Geometry {
                me,
                nodes: nodes as u16,
                founders: nodes as u16,
                pages: pages as u32,
                shard: 0,
                shards: 1,
                home,
                marks,
            };
            Node {
                protocol: Hlrc::new(geometry, propagation),
                intervals: Intervals::new(me, nodes as u16, pages as u32, is_ordered),
                copies: Twinned::new(pages),
                published: false,
                doing: Doing::Idle,
                early: Vec::new(),
                heard: 0,
            }
        };
        World {
            nodes: (0..nodes).map(node).collect(),
            network: Vec::new(),
            is_ordered,
            marks,
            locks: vec![LockState::Free { last: None }; 1 + random.index(3)],
            truth: vec![0; pages * WORDS],
            at_last_barrier: vec![0; pages * WORDS],
            scribbled: vec![false; pages * WORDS],
            rounds_left: 4,
            merged: 0,
            gave_up: 0,
            random,
            seed,
        }
    }

    fn run(&mut self) {
        for _ in 0..2_000_000 {
            if self.rounds_left == 0 && self.network.is_empty() {
                return;
            }
            let choices = self.nodes.len() + usize::from(!self.network.is_empty()) * (2 + self.network.len().min(4));
            let choice = self.random.index(choices);
            if choice < self.nodes.len() { self.act(choice) } else { self.deliver() }
        }
        let doing: Vec<Doing> = self.nodes.iter().map(|node| node.doing).collect();
        panic!("seed {}: nobody gets on: {doing:?}", self.seed);
    }

    fn deliver(&mut self) {
        let mut index = self.random.index(self.network.len());
        let (from, to) = (self.network[index].0, self.network[index].1);
        if self.is_ordered {
            index = self.network.iter().position(|packet| (packet.0, packet.1) == (from, to)).unwrap();
        }
        let (from, to, packet) = self.network.remove(index);
        match packet {
            Packet::Page { message, body } => {
                let arrived = Acting { world: self, node: to }.arrive(message, &body);
                self.must(arrived);
                self.step(to, Input::Message { from: NodeId(from as u16), message }, &body);
            }
            Packet::Knowledge { bytes, for_lock } => {
                self.nodes[to].early.push((from, bytes, for_lock));
                self.learn(to);
            }
        }
    }

    fn learn(&mut self, to: usize) {
        loop {
            let node = &mut self.nodes[to];
            let known = node.early.iter().position(|(from, bytes, _)| {
                node.intervals.learn(NodeId(*from as u16), bytes).unwrap() == Learnt::Known
            });
            let Some(index) = known else { return };
            let (_, _, for_lock) = node.early.remove(index);
            match for_lock {
                Some(lock) => {
                    self.locks[lock] = LockState::Held;
                    self.acquired(to);
                    self.nodes[to].doing = Doing::Inside(lock, 3);
                }
                None => node.heard += 1,
            }
        }
    }

    /// An acquire ends: apply what was learnt.
    fn acquired(&mut self, node: usize) {
        let mut notices = Vec::new();
        assert!(!self.nodes[node].intervals.take_unapplied(&mut notices));
        for Notice { range, stamp } in notices {
            self.step(node, Input::Notice { range, stamp }, &Body::Nothing);
        }
    }

    fn act(&mut self, node: usize) {
        if self.random.once_in(8) {
            self.prefetch(node);
        }
        match self.nodes[node].doing {
            Doing::Idle if self.rounds_left == 0 => {}
            Doing::Idle => {
                let doing = match self.random.below(5) {
                    0 => Doing::Publishing(None),
                    1 => Doing::Touching { lock: None, left: 0, word: self.own_word(node), write: true, asked: false },
                    _ => Doing::Acquiring(self.random.index(self.locks.len())),
                };
                self.nodes[node].doing = doing;
                if doing == Doing::Publishing(None) {
                    self.publish(node);
                }
            }
            Doing::Acquiring(lock) => {
                if let LockState::Free { last } = self.locks[lock] {
                    match last.filter(|&last| last != node) {
                        Some(last) => {
                            let (to, pages_max) = (NodeId(node as u16), 1 + self.random.below(4) as u32);
                            self.step(last, Input::Carry { to, pages_max }, &Body::Nothing);
                            self.locks[lock] = LockState::Coming { to: node };
                            self.tell(last, node, Some(lock));
                        }
                        None => {
                            self.locks[lock] = LockState::Held;
                            self.acquired(node);
                            self.nodes[node].doing = Doing::Inside(lock, 3);
                        }
                    }
                } else if let LockState::Coming { to } = self.locks[lock] {
                    assert!(to < self.nodes.len());
                }
            }
            Doing::Inside(lock, 0) => {
                self.nodes[node].doing = Doing::Publishing(Some(lock));
                self.publish(node);
            }
            Doing::Inside(lock, left) => {
                let word = self.word_of(lock);
                let write = self.random.once_in(2);
                self.nodes[node].doing = match word {
                    Some(word) => Doing::Touching { lock: Some(lock), left: left - 1, word, write, asked: false },
                    None => Doing::Inside(lock, 0),
                };
            }
            Doing::Touching { lock, left, word, write, asked } => self.touch(node, lock, left, word, write, asked),
            Doing::Scribbling { lock, left, word } => self.settle(node, lock, left, word),
            Doing::Publishing(after) if self.nodes[node].published => {
                self.nodes[node].intervals.close();
                match after {
                    Some(lock) => {
                        self.locks[lock] = LockState::Free { last: Some(node) };
                        self.nodes[node].doing = Doing::Idle;
                    }
                    None => {
                        self.nodes[node].doing = Doing::AtBarrier;
                        self.barrier();
                    }
                }
            }
            // The time-out is over: what the publication was for did not happen, and the next publication continues
            // it.
            Doing::Publishing(Some(lock)) if self.random.once_in(16) => {
                self.gave_up += 1;
                self.nodes[node].doing = Doing::Inside(lock, self.random.index(3));
            }
            Doing::Publishing(_) => {}
            Doing::Leaving if self.nodes[node].heard == self.nodes.len() - 1 => {
                self.nodes[node].heard = 0;
                self.acquired(node);
                self.nodes[node].doing = Doing::Checking(0);
            }
            Doing::AtBarrier | Doing::Leaving => {}
            Doing::Checking(word) if word >= self.truth.len() => self.nodes[node].doing = Doing::Idle,
            Doing::Checking(word) => {
                // The owner's last store before the barrier, or a later one.
                let (page, place) = (word / WORDS, word % WORDS);
                if !is_owned(word) {
                    self.nodes[node].doing = Doing::Checking(word + 1);
                } else if self.nodes[node].copies.views[page] == Access::None {
                    self.fault(node, page, false);
                } else {
                    let seen = self.nodes[node].copies.bytes[page][place];
                    let (least, most) = (self.at_last_barrier[word], self.truth[word]);
                    // The owner may have scribbled on it since.
                    assert!(
                        (least..=most).contains(&seen) || seen == SCRIBBLE && self.scribbled[word],
                        "seed {}: node {node} sees {seen} in word {word} after a barrier, not {least} to {most}",
                        self.seed
                    );
                    self.nodes[node].doing = Doing::Checking(word + 1);
                }
            }
        }
    }

    fn own_word(&mut self, node: usize) -> usize {
        let words: Vec<usize> = (0..self.truth.len()).filter(|&word| is_owned(word)).collect();
        let mine: Vec<usize> = words.iter().copied().filter(|word| word / 3 % self.nodes.len() == node).collect();
        if mine.is_empty() { usize::MAX } else { mine[self.random.index(mine.len())] }
    }

    fn word_of(&mut self, lock: usize) -> Option<usize> {
        let locks = self.locks.len();
        let words: Vec<usize> = (0..self.truth.len()).filter(|&word| !is_owned(word) && word % locks == lock).collect();
        (!words.is_empty()).then(|| words[self.random.index(words.len())])
    }

    fn touch(&mut self, node: usize, lock: Option<usize>, left: usize, word: usize, write: bool, asked: bool) {
        let after = match lock {
            Some(lock) => Doing::Inside(lock, left),
            None => Doing::Idle,
        };
        if word == usize::MAX {
            self.nodes[node].doing = after;
            return;
        }
        let (page, place) = (word / WORDS, word % WORDS);
        if !self.nodes[node].copies.allows(page, write, self.marks) {
            if !asked || self.random.once_in(3) {
                self.fault(node, page, write);
                self.nodes[node].doing = Doing::Touching { lock, left, word, write, asked: true };
            }
            return;
        }
        let seen = self.nodes[node].copies.bytes[page][place];
        assert_eq!(seen, self.truth[word], "seed {}: node {node} sees a wrong value in word {word}", self.seed);
        if write {
            self.scribbled[word] = true;
            self.nodes[node].copies.bytes[page][place] = SCRIBBLE;
            self.nodes[node].copies.stored[page] = true;
            self.nodes[node].doing = Doing::Scribbling { lock, left, word };
            return;
        }
        self.nodes[node].doing = after;
    }

    /// Stores the final value: a new one, or the old one.
    fn settle(&mut self, node: usize, lock: Option<usize>, left: usize, word: usize) {
        let (page, place) = (word / WORDS, word % WORDS);
        if !self.nodes[node].copies.allows(page, true, self.marks) {
            return self.fault(node, page, true);
        }
        if self.random.once_in(2) {
            self.truth[word] += 1;
        }
        self.nodes[node].copies.bytes[page][place] = self.truth[word];
        self.nodes[node].copies.stored[page] = true;
        self.nodes[node].doing = match lock {
            Some(lock) => Doing::Inside(lock, left),
            None => Doing::Idle,
        };
    }

    /// Makes a prefetch, guessed or announced.
    fn prefetch(&mut self, node: usize) {
        let pages = self.nodes[node].copies.bytes.len();
        let page = self.random.index(pages) as u32;
        let wanted = PageRange::around(PageIndex(page), page, pages as u32);
        let (write, announced) = (self.random.once_in(2), self.random.once_in(2));
        self.step(node, Input::Prefetch { wanted, write, announced }, &Body::Nothing);
    }

    fn fault(&mut self, node: usize, page: usize, write: bool) {
        let page = PageIndex(page as u32);
        let wanted = PageRange::around(page, 0, self.nodes[node].copies.bytes.len() as u32);
        let wanted = if self.random.once_in(2) { wanted } else { PageRange::one(page) };
        self.step(node, Input::Fault { page, write, wanted }, &Body::Nothing);
    }

    fn publish(&mut self, node: usize) {
        self.nodes[node].published = false;
        if self.marks {
            for page in 0..self.nodes[node].copies.bytes.len() {
                if self.nodes[node].copies.stored[page] && self.nodes[node].copies.views[page] != Access::None {
                    let range = PageRange::one(PageIndex(page as u32));
                    self.step(node, Input::Stored { range }, &Body::Nothing);
                }
            }
        }
        let (unacknowledged_max, together_max) = (1 + self.random.below(3) as u32, 1 + self.random.below(3) as u32);
        self.step(node, Input::Publish { unacknowledged_max, together_max }, &Body::Nothing);
    }

    fn barrier(&mut self) {
        if self.nodes.iter().any(|node| node.doing != Doing::AtBarrier) {
            // A node that waits for nothing arrives, too.
            return self.drive_to_barrier();
        }
        self.rounds_left -= 1;
        self.nodes.iter_mut().for_each(|node| node.doing = Doing::Leaving);
        self.at_last_barrier = self.truth.clone();
        self.scribbled.fill(false);
        for from in 0..self.nodes.len() {
            for to in (0..self.nodes.len()).filter(|&to| to != from) {
                self.tell(from, to, None);
            }
        }
    }

    fn drive_to_barrier(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].doing == Doing::Idle {
                self.nodes[node].doing = Doing::Publishing(None);
                self.publish(node);
            }
        }
    }

    fn tell(&mut self, from: usize, to: usize, for_lock: Option<usize>) {
        let mut bytes = Vec::new();
        self.nodes[from].intervals.append_notices(NodeId(to as u16), &mut bytes);
        self.network.push((from, to, Packet::Knowledge { bytes, for_lock }));
    }

    fn step(&mut self, node: usize, input: Input, body: &Body) {
        let mut effects = Vec::new();
        self.nodes[node].protocol.step(0, input, &mut effects);
        let mut handling = Handling::new(input, body);
        for effect in effects {
            self.merged += u64::from(matches!(effect, Effect::Merge { .. }));
            let done = Acting { world: self, node }.carry_out(effect, &mut handling);
            self.must(done);
        }
        for page in handling.changed {
            self.step(node, Input::Changed { page }, &Body::Nothing);
        }
        let this = &self.nodes[node];
        for page in 0..this.copies.views.len() {
            let thought = this.protocol.access(PageIndex(page as u32));
            self.must(this.copies.check(node as u16, page, thought, self.marks));
        }
    }

    fn must(&self, done: Result<(), String>) {
        done.unwrap_or_else(|what| panic!("seed {}: {what}", self.seed));
    }
}

/// A node that takes a step.
struct Acting<'a> {
    world: &'a mut World,
    node: usize,
}

impl Releasing for Acting<'_> {
    fn me(&self) -> u16 {
        self.node as u16
    }

    fn copies(&mut self) -> &mut Twinned {
        &mut self.world.nodes[self.node].copies
    }

    fn place(&self, page: PageIndex) -> Option<usize> {
        Some(page.0 as usize)
    }

    fn send(&mut self, to: NodeId, message: Message, body: Body) {
        self.world.network.push((self.node, usize::from(to.0), Packet::Page { message, body }));
    }

    /// Threads look again by themselves.
    fn wake(&mut self, _pages: PageRange) {}

    fn note(&mut self, notice: Notice) {
        self.world.nodes[self.node].intervals.note(notice);
    }

    fn published(&mut self) {
        self.world.nodes[self.node].published = true;
    }
}

#[test]
fn what_was_released_is_seen_in_random_clusters() {
    if let Some(seed) = std::env::var("TRELLIS_SEED").ok().and_then(|seed| seed.parse().ok()) {
        World::new(seed).run();
        return;
    }
    let runs = if cfg!(debug_assertions) { 3_000 } else { 100_000 };
    let first = std::env::var("TRELLIS_FIRST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let (mut merged, mut gave_up) = (0, 0);
    for seed in first..first + runs {
        let mut world = World::new(seed);
        world.run();
        merged += world.merged;
        gave_up += world.gave_up;
    }
    assert!(merged > runs, "only {merged} pages were carried in {runs} runs");
    assert!(gave_up > runs / 4, "only {gave_up} publications were given up in {runs} runs");
}

#[test]
fn a_copy_of_untouched_pages_brings_no_bytes() {
    let message = Message::Copy {
        demand: PageIndex(0),
        range: PageRange::one(PageIndex(0)),
        content: Content::Zero,
        stamp: 0,
        home: false,
    };
    assert_eq!(message.bytes(), None);
}
