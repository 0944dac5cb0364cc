//! Random clusters, programs and networks, one for each seed.
//!
//! Promises: a seed stands for the same run on every machine as long as the version is the same. Every access is
//! checked against the memory model, with and without races, and at the end no store is lost. It must never judge
//! results itself.

use super::cluster::{Cluster, Pace};
use super::ghost::STORES_MAX;
use super::{Fault, Operation, PAGE_WORDS, Script, Setup, Source, Troubles, Value};
use crate::intern::guarded;
use trellis_base::Random;
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::homes::{FirstTouch, Home, Interleaved, Manager, Migrating};
use trellis_cluster_protocol::node::{PublicationLimits, STORED_IN_A_ROW};
use trellis_cluster_protocol::{CHUNK_PAGES, NodeId};

/// The result of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The protocol and the seed.
    pub seed: (Protocol, u64),
    /// A short description of the cluster.
    pub cluster: String,
    /// The problem, if there was one.
    pub problem: Option<String>,
    /// Operations of the threads.
    pub operations: u64,
    /// Steps of nodes and network.
    pub steps: u64,
    /// The trace, if requested.
    pub story: Vec<String>,
}

impl Outcome {
    /// The problem and the command that reproduces it, in one line.
    pub fn complaint(&self) -> Option<String> {
        let (protocol, number) = self.seed;
        let what = self.problem.as_ref()?;
        Some(format!("{what} ({}); trellis check replay '{protocol}:{number}'", self.cluster))
    }
}

/// Runs the cluster of a seed.
pub fn run(protocol: Protocol, number: u64, fault: Fault, with_story: bool) -> Outcome {
    let (setup, pace) = draw(protocol, number, fault);
    let cluster_text = format!("{}{}", setup.describe(), if pace.is_lossy { " lossy" } else { "" });
    let operations = setup.scripts.iter().map(|script| script.operations.len() as u64).sum();
    let mut cluster = Cluster::new(setup, number, pace, true);
    if with_story {
        cluster.keep_story();
    }
    let ended =
        guarded(|| cluster.run(true)).unwrap_or_else(|what| Err((false, format!("a protocol stopped: {what}"))));
    Outcome {
        seed: (protocol, number),
        cluster: cluster_text,
        problem: ended.err().map(|(_, what)| what),
        operations,
        steps: cluster.steps(),
        story: cluster.take_story(),
    }
}

/// The kind of programs of a seed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Every word has its lock; the locks of one page are different.
    Locks,
    /// Every word has its owner, and all meet at barriers.
    Phases,
    /// Both.
    Mixed,
    /// Accesses in any order, with flags and locks in between.
    Races,
}

fn draw(protocol: Protocol, number: u64, fault: Fault) -> (Setup, Pace) {
    let mut random = Random::for_purpose(number, 1);
    let nodes = 2 + random.below(4) as u16;
    let manner = random.one_of(&[Manner::Locks, Manner::Phases, Manner::Mixed, Manner::Races]);
    let count = 1 + random.below(4) as u32;
    let is_split = random.once_in(4);
    let pages = (0..count).map(|page| if is_split && page >= count / 2 { CHUNK_PAGES + page } else { page }).collect();
    let home = match random.below(4) {
        0 => Home::Manager(Manager(NodeId(random.below(nodes.into()) as u16))),
        1 => Home::Interleaved(Interleaved),
        2 => Home::FirstTouch(FirstTouch),
        _ => Home::Migrating(Migrating),
    };
    let marks = match random.below(4) {
        0 => 0,
        1 => random.below(1 << nodes) as u16,
        _ => u16::MAX,
    };
    let mut setup = Setup {
        protocol,
        nodes,
        pages,
        home,
        marks,
        stored_in_a_row: 1 + random.below(STORED_IN_A_ROW.into()) as u8,
        is_ordered: random.once_in(3),
        is_wide: random.once_in(2),
        late_faults: random.once_in(3),
        late_bytes: random.once_in(3),
        limits: PublicationLimits {
            unacknowledged_pages_max: random.one_of(&[1, 2, 64]),
            together_pages_max: random.one_of(&[1, 2, 64]),
        },
        troubles: Troubles { give_ups: Random::for_purpose(number, 2).one_of(&[0, 0, 2, 8]), objections: 0 },
        may_disagree: false,
        changes: Vec::new(),
        objects: None,
        fault,
        scripts: Vec::new(),
    };
    let is_lossy = !setup.is_ordered && random.once_in(3);
    let has_company = manner == Manner::Locks && random.once_in(2);
    setup.scripts = programs(&mut random, &setup, manner, has_company);
    draw_changes(number, &mut setup);
    let pace = Pace {
        threads_of_8: 1 + random.below(7),
        slow_once_in: random.one_of(&[0, 2, 5, 12]),
        is_lossy,
        steps_max: 400_000,
    };
    (setup, pace)
}

/// One of so many runs has changes of protocols.
const CHANGES_ONCE_IN: u64 = 4;

/// Sometimes one thread of every node changes the protocol of pages, repeatedly. The other threads go on.
fn draw_changes(number: u64, setup: &mut Setup) {
    let mut random = Random::for_purpose(number, 3);
    if !random.once_in(CHANGES_ONCE_IN) {
        return;
    }
    let (last, all) = (setup.protocol, Protocol::bases());
    for change in 0..1 + random.below(3) as u8 {
        let (one, other) = (random.index(setup.pages.len()), random.index(setup.pages.len()));
        let pages = setup.pages[one.min(other)]..setup.pages[one.max(other)] + 1;
        let protocol = if random.once_in(3) { last } else { random.one_of(&all) };
        setup.changes.push((pages, protocol));
        let phase = random.index(4);
        let nodes = usize::from(setup.nodes);
        setup.scripts[..nodes].iter_mut().for_each(|script| insert_change(&mut random, phase, change, script));
    }
    if random.once_in(4) {
        setup.protocol = random.one_of(&all);
    }
    setup.troubles.objections = random.one_of(&[0, 0, 0, 1]);
    setup.may_disagree = random.once_in(4);
}

/// The thread makes this change, which follows its earlier ones, before its barrier of this number, or at the end. It does
/// not hold a lock.
fn insert_change(random: &mut Random, phase: usize, change: u8, script: &mut Script) {
    let operations = &script.operations;
    let of_kind = |kind: fn(&Operation) -> bool| {
        let places = operations.iter().enumerate().filter(move |(_, operation)| kind(operation));
        places.map(|(place, _)| place)
    };
    let barriers: Vec<usize> = of_kind(|operation| *operation == Operation::Barrier).collect();
    let phase = phase % (barriers.len() + 1);
    let first = phase.checked_sub(1).map_or(0, |before| barriers[before] + 1);
    let last = barriers.get(phase).copied().unwrap_or(operations.len());
    let after = of_kind(|operation| matches!(operation, Operation::Change(_))).next_back().map_or(0, |place| place + 1);
    let is_free = |place: &usize| {
        let held = operations[..*place].iter().fold(0, |held, operation| match operation {
            Operation::Lock(_) => held + 1,
            Operation::Unlock(_) => held - 1,
            _ => held,
        });
        held == 0
    };
    let places: Vec<usize> = (first.max(after)..=last.max(after)).filter(is_free).collect();
    let place = random.one_of(&places);
    script.operations.insert(place, Operation::Change(change));
}

/// Writes the programs of all threads.
struct Writer {
    words: usize,
    /// By word, the number of stores.
    stores: Vec<usize>,
    next_value: Value,
}

impl Writer {
    fn store(&mut self, word: usize) -> Option<Operation> {
        if self.stores[word] >= STORES_MAX {
            return None;
        }
        self.stores[word] += 1;
        self.next_value += 1;
        Some(Operation::Store { word: word as u16, source: Source::Constant(self.next_value) })
    }

    /// A load, a store or, if no other thread may store there, a store that is undone before any other thread may see
    /// it.
    fn access(&mut self, random: &mut Random, word: usize, races: bool) -> Vec<Operation> {
        let load = |register| Operation::Load { word: word as u16, register };
        match random.below(if races { 2 } else { 5 }) * if races { 3 } else { 1 } {
            0 | 1 => self.store(word).into_iter().collect(),
            2 if self.stores[word] + 1 < STORES_MAX => {
                let back = Operation::Store { word: word as u16, source: Source::Register(0) };
                let stored = self.store(word);
                self.stores[word] += 1;
                [load(0)].into_iter().chain(stored).chain([back]).collect()
            }
            _ => vec![load(u8::MAX)],
        }
    }
}

fn programs(random: &mut Random, setup: &Setup, manner: Manner, has_company: bool) -> Vec<Script> {
    let threads = if has_company { setup.nodes + 1 + random.below(setup.nodes.into()) as u16 } else { setup.nodes };
    let words = setup.words();
    let mut writer = Writer { words, stores: vec![0; words], next_value: 0 };
    let locks = 1 + random.index(4);
    let phases = 1 + random.below(5);
    // Few consecutive accesses make intervals short; consecutive intervals of one writer move homes.
    let calls = 1 + random.below(6);
    let mut scripts: Vec<Script> = (0..threads)
        .map(|thread| Script { node: thread % setup.nodes, operations: Vec::new(), registers: vec![0] })
        .collect();
    for _ in 0..phases {
        for (thread, script) in scripts.iter_mut().enumerate() {
            for _ in 0..1 + random.below(calls) {
                writer.stretch(random, manner, thread, usize::from(threads), locks, &mut script.operations);
            }
            if random.once_in(6) {
                let page = random.index(setup.pages.len()) as u8;
                let (write, announced) = (random.once_in(2), random.once_in(2));
                script.operations.push(Operation::Announce { page, write, announced });
            }
        }
        if !has_company {
            scripts.iter_mut().for_each(|script| script.operations.push(Operation::Barrier));
        }
        if manner == Manner::Phases || manner == Manner::Mixed {
            // Every thread loads what the others own, and no thread stores there before all have done so.
            for script in &mut scripts {
                let owned = (0..words).filter(|&word| is_owned(manner, word));
                let load = |word: usize| Operation::Load { word: word as u16, register: u8::MAX };
                script.operations.extend(owned.filter(|_| !random.once_in(4)).map(load));
                script.operations.push(Operation::Barrier);
            }
        }
    }
    scripts
}

fn is_owned(manner: Manner, word: usize) -> bool {
    manner == Manner::Phases || manner == Manner::Mixed && word.is_multiple_of(3)
}

impl Writer {
    fn stretch(
        &mut self,
        random: &mut Random,
        manner: Manner,
        thread: usize,
        threads: usize,
        locks: usize,
        operations: &mut Vec<Operation>,
    ) {
        let number = random.index(1 << 16);
        match manner {
            Manner::Races => {
                let word = number % self.words.min(2 * PAGE_WORDS);
                match random.below(6) {
                    0 => operations.push(Operation::Set { flag: (number % 3) as u8, source: Source::Constant(1) }),
                    1 => operations.push(Operation::Get { flag: (number % 3) as u8, register: u8::MAX }),
                    2 => {
                        let lock = (number % locks) as u8;
                        operations.push(Operation::Lock(lock));
                        operations.extend(self.access(random, word, true));
                        operations.push(Operation::Unlock(lock));
                    }
                    _ => operations.extend(self.access(random, word, true)),
                }
            }
            Manner::Mixed | Manner::Phases if manner == Manner::Phases || random.once_in(3) => {
                let own: Vec<usize> = (0..self.words)
                    .filter(|&word| {
                        is_owned(manner, word) && word / if manner == Manner::Mixed { 3 } else { 1 } % threads == thread
                    })
                    .collect();
                if let Some(&word) = own.get(number % own.len().max(1)) {
                    operations.extend(self.access(random, word, false));
                }
            }
            _ => {
                let lock = number % locks;
                let under = |word: &usize| !is_owned(manner, *word) && word % locks == lock;
                let words: Vec<usize> = (0..self.words).filter(under).collect();
                operations.push(Operation::Lock(lock as u8));
                for _ in 0..1 + random.below(3) {
                    if let Some(&word) = words.get(random.index(words.len().max(1))) {
                        operations.extend(self.access(random, word, false));
                    }
                }
                operations.push(Operation::Unlock(lock as u8));
            }
        }
    }
}
