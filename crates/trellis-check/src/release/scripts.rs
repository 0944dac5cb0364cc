//! The programs of explored clusters: each is the smallest that needs a certain rule.
//!
//! Promises: every store has a different value, so that a loaded value identifies its store. The larger ones are the
//! instances whose sizes are in the documentation; [`small`] ones are explored for every mutant.

use super::{Fault, Operation, PAGE_WORDS, Script, Setup, Source, Troubles, Value};
use std::ops::Range;
use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::coherence::choices::Base;
use trellis_cluster_protocol::homes::{FirstTouch, Home, Interleaved, Manager, Migrating};
use trellis_cluster_protocol::node::{PublicationLimits, STORED_IN_A_ROW};
use trellis_cluster_protocol::sync::{ConditionDemand, Demand};

/// The programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Program {
    /// Every node stores to its own words of every page, and loads its neighbour's between barriers.
    Barriers,
    /// Every node changes a word of one page under one lock, and one of the other page under another.
    Locks,
    /// A releases to B under one lock, B to C under another: C sees what A stored.
    Chain,
    /// The same with flags.
    Flags,
    /// All store and load the same words in any order.
    Races,
    /// One node publishes a page repeatedly and another reads it: its home may move.
    Wanders,
    /// The home stores too, including values that change back, and shares what it stored.
    AtHome,
    /// Two threads of one node, and one of another.
    Company,
    /// A page travels with a lock, and all give it another protocol with release consistency.
    Changes,
    /// All give a page a sequentially consistent protocol, and the first one again.
    AndBack,
    /// The same, once for each interval, and nothing else.
    Agree,
    /// The last node first makes another change than the others.
    Differ,
    /// Two threads take an item each, under a lock, or wait for it. One comes after the other, and one thread is notified
    /// each time.
    Items,
    /// Both come at once, and all threads are notified.
    ItemsAtOnce,
    /// One item comes for two threads.
    TooFew,
}

impl Program {
    /// All programs.
    pub const ALL: [Program; 15] = [
        Program::Barriers,
        Program::Locks,
        Program::Chain,
        Program::Flags,
        Program::Races,
        Program::Wanders,
        Program::AtHome,
        Program::Company,
        Program::Changes,
        Program::AndBack,
        Program::Agree,
        Program::Differ,
        Program::Items,
        Program::ItemsAtOnce,
        Program::TooFew,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Program::Barriers => "barriers",
            Program::Locks => "locks",
            Program::Chain => "chain",
            Program::Flags => "flags",
            Program::Races => "races",
            Program::Wanders => "wanders",
            Program::AtHome => "at-home",
            Program::Company => "company",
            Program::Changes => "changes",
            Program::AndBack => "and-back",
            Program::Agree => "agree",
            Program::Differ => "differ",
            Program::Items => "items",
            Program::ItemsAtOnce => "items-at-once",
            Program::TooFew => "too-few",
        }
    }
}

/// The size of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// The number of nodes.
    pub nodes: u16,
    /// The number of pages.
    pub pages: u8,
    /// The number of intervals of each node.
    pub intervals: u8,
}

/// Writes the operations of one thread.
struct Writer {
    thread: u16,
    operations: Vec<Operation>,
    values: Value,
}

const NOWHERE: u8 = u8::MAX;

impl Writer {
    fn new(thread: u16) -> Writer {
        Writer { thread, operations: Vec::new(), values: 0 }
    }

    fn load(&mut self, page: u8, word: u8) {
        let word = u16::from(page) * PAGE_WORDS as u16 + u16::from(word);
        self.operations.push(Operation::Load { word, register: NOWHERE });
    }

    fn store(&mut self, page: u8, word: u8) {
        self.values += 1;
        let value = Value::from(self.thread + 1) * 100 + self.values;
        let word = u16::from(page) * PAGE_WORDS as u16 + u16::from(word);
        self.operations.push(Operation::Store { word, source: Source::Constant(value) });
    }

    /// Stores to a word, and then stores its previous value again.
    fn change_back(&mut self, page: u8, place: u8) {
        let word = u16::from(page) * PAGE_WORDS as u16 + u16::from(place);
        self.operations.push(Operation::Load { word, register: 0 });
        self.store(page, place);
        self.operations.push(Operation::Store { word, source: Source::Register(0) });
    }

    fn locked(&mut self, lock: u8, inside: impl FnOnce(&mut Writer)) {
        self.operations.push(Operation::Lock(lock));
        inside(self);
        self.operations.push(Operation::Unlock(lock));
    }

    fn barrier(&mut self) {
        self.operations.push(Operation::Barrier);
    }

    fn change(&mut self, number: u8) {
        self.operations.push(Operation::Change(number));
    }

    fn set(&mut self, flag: u8) {
        self.operations.push(Operation::Set { flag, source: Source::Constant(1) });
    }

    fn get(&mut self, flag: u8) {
        self.operations.push(Operation::Get { flag, register: NOWHERE });
    }

    fn at(self, node: u16) -> Script {
        Script { node, operations: self.operations, registers: vec![0] }
    }
}

/// The threads of `program`.
pub fn scripts(program: Program, size: Size) -> Vec<Script> {
    let each = |write: &dyn Fn(u16, &mut Writer)| -> Vec<Script> {
        let script = |node| {
            let mut writer = Writer::new(node);
            write(node, &mut writer);
            writer.at(node)
        };
        (0..size.nodes).map(script).collect()
    };
    let Size { nodes, pages, intervals } = size;
    let last = pages - 1;
    let word = |node: u16| (node % PAGE_WORDS as u16) as u8;
    match program {
        Program::Barriers => each(&|node, w| {
            for _ in 0..intervals {
                (0..pages).for_each(|page| w.store(page, word(node)));
                w.barrier();
                (0..pages).for_each(|page| w.load(page, word((node + 1) % nodes)));
            }
        }),
        Program::Locks => each(&|node, w| {
            for interval in 0..intervals {
                let lock = (u8::try_from(node).unwrap_or(0) + interval) % 2;
                w.locked(lock, |w| {
                    // The words of one page are under different locks.
                    w.load(lock % pages, lock);
                    w.store(lock % pages, lock);
                    w.store(last - lock % pages, lock);
                });
            }
        }),
        Program::Chain => each(&|node, w| {
            let (before, behind) = (node.checked_sub(1), node + 1 < nodes);
            let pass = |w: &mut Writer| {
                if let Some(before) = before {
                    w.locked(before as u8, |w| {
                        (0..=before).for_each(|other| w.load(0, word(other)));
                        w.load(last, word(0));
                    });
                }
                if behind {
                    w.locked(node as u8, |w| {
                        w.store(0, word(node));
                        if node == 0 {
                            w.store(last, word(0));
                        }
                    });
                }
            };
            (0..intervals).for_each(|_| pass(w));
        }),
        Program::Flags => each(&|node, w| {
            for _ in 0..intervals {
                if node > 0 {
                    w.get(node as u8 - 1);
                    (0..node).for_each(|other| w.load(0, word(other)));
                    w.load(last, word(0));
                }
                if node + 1 < nodes {
                    w.store(0, word(node));
                    if node == 0 {
                        w.store(last, word(0));
                    }
                    w.set(node as u8);
                }
            }
        }),
        Program::Races => each(&|node, w| {
            for interval in 0..intervals {
                w.store((node as u8 + interval) % pages, 0);
                w.load(0, 0);
                w.load(last, 0);
                w.set(node as u8);
            }
            w.barrier();
            w.load(0, 0);
        }),
        Program::Wanders => each(&|node, w| {
            if node == 1 {
                for _ in 0..intervals + 3 {
                    w.store(0, 1);
                    w.set(0);
                }
                w.barrier();
                w.store(0, 1);
            } else {
                w.store(0, word(2 * node));
                w.get(0);
                w.load(0, 1);
                w.set(1);
                w.barrier();
                w.store(last, word(2 * node));
            }
            w.barrier();
            w.load(0, 1);
            w.load(0, 0);
        }),
        Program::AtHome => each(&|node, w| {
            if node == 0 {
                w.store(0, 0);
                w.locked(0, |w| w.store(0, 1));
                w.store(0, 2);
                w.locked(0, |w| {
                    w.change_back(0, 1);
                    w.load(last, 3);
                });
            } else {
                for _ in 0..intervals {
                    w.locked(0, |w| {
                        w.load(0, 1);
                        w.load(0, 0);
                        w.store(last, 3);
                    });
                }
            }
        }),
        Program::Company => {
            let thread = |number: u16, node: u16| {
                let mut w = Writer::new(number);
                for _ in 0..intervals {
                    w.locked(0, |w| {
                        w.load(0, 0);
                        w.store(0, 0);
                    });
                    w.store(last, word(number + 1));
                    w.set(number as u8);
                }
                w.at(node)
            };
            vec![thread(0, 0), thread(1, 1), thread(2, 1)]
        }
        // The lock comes back with the page, which may arrive when the change is over.
        Program::Changes => each(&|node, w| {
            w.locked(0, |w| w.store(0, word(node)));
            if node > 0 {
                w.locked(0, |w| w.load(0, word(0)));
            }
            w.change(0);
            if node == 0 {
                (0..pages).for_each(|page| w.store(page, 3));
            }
            w.barrier();
            w.load(last, 3);
            w.load(0, 3);
        }),
        Program::AndBack => each(&|node, w| {
            for change in 0..2 {
                (0..pages).for_each(|page| w.store(page, word(node)));
                w.change(change);
                w.load(last, word((node + 1) % nodes));
            }
            // If the changes are given up, nothing else publishes the last stores.
            w.barrier();
        }),
        Program::Agree => each(&|_, w| (0..intervals).for_each(|interval| w.change(interval % 2))),
        Program::Differ => each(&|node, w| {
            w.change(u8::from(node + 1 == nodes));
            (1..intervals).for_each(|interval| w.change((interval + 1) % 2));
        }),
        Program::Items => items(nodes, &[1, 1], false),
        Program::ItemsAtOnce => items(nodes, &[2], true),
        Program::TooFew => items(nodes, &[1], false),
    }
}

/// Two threads that take an item each, and one that adds so many at a time, and notifies one of them, or all. The lock is at
/// home at node 0, and the condition at node 1.
fn items(nodes: u16, rounds: &[Value], all: bool) -> Vec<Script> {
    let (lock, condition, word) = (0, 1, 0);
    let taker = |number: u16| {
        let mut w = Writer::new(number);
        w.locked(lock, |w| w.operations.push(Operation::Take { word, lock, condition }));
        w.at((nodes.saturating_sub(2) + number).min(nodes - 1))
    };
    let mut w = Writer::new(2);
    for &by in rounds {
        // One of the two forms of each notification is explored.
        let demand = Demand::Condition(if all { ConditionDemand::NotifyAll } else { ConditionDemand::WakeOne });
        let notify = Operation::Demand { object: condition, demand };
        w.locked(lock, |w| w.operations.extend([Operation::Add { word, by }, notify]));
    }
    vec![taker(0), taker(1), w.at(nodes - 1)]
}

/// The changes of `program`, of the first page.
fn changes(program: Program, protocol: Protocol, pages: &[u32]) -> Vec<(Range<u32>, Protocol)> {
    // Pages travel with a lock under both.
    let travels = |other: &Protocol| *other != protocol && other.base() != Base::HlrcUpdate;
    let other = Protocol::all_release_consistent().into_iter().find(travels);
    let to = match program {
        Program::Changes => vec![other.expect("there are several")],
        Program::AndBack | Program::Agree | Program::Differ => vec![Protocol::IVY, protocol],
        _ => Vec::new(),
    };
    to.into_iter().map(|protocol| (pages[0]..pages[0] + 1, protocol)).collect()
}

/// A cluster in which messages may overtake each other, with threads that run `program`.
pub fn setup(protocol: Protocol, program: Program, size: Size, home: Home, marks: bool) -> Setup {
    let pages: Vec<u32> = match home {
        // Pages in different chunks have different homes.
        Home::Interleaved(_) if size.pages > 1 => {
            (0..size.pages).map(|page| u32::from(page) * trellis_cluster_protocol::CHUNK_PAGES).collect()
        }
        _ => (0..u32::from(size.pages)).collect(),
    };
    Setup {
        protocol,
        changes: changes(program, protocol, &pages),
        nodes: if program == Program::Company { 2 } else { size.nodes },
        pages,
        home,
        marks: if marks { u16::MAX } else { 0 },
        stored_in_a_row: STORED_IN_A_ROW,
        is_ordered: false,
        is_wide: false,
        late_faults: false,
        late_bytes: false,
        limits: PublicationLimits { unacknowledged_pages_max: 64, together_pages_max: 64 },
        troubles: Troubles::default(),
        may_disagree: false,
        objects: None,
        fault: Fault::None,
        scripts: scripts(program, size),
    }
}

/// The homes that are explored.
pub fn homes() -> [Home; 4] {
    let manager = Home::Manager(Manager(NodeId(0)));
    [manager, Home::Interleaved(Interleaved), Home::FirstTouch(FirstTouch), Home::Migrating(Migrating)]
}

/// Small clusters, smallest first, for mutants and for the explorations of the tests.
pub fn small(protocol: Protocol) -> Vec<Setup> {
    let of = |program, nodes, pages, intervals, home, marks| {
        setup(protocol, program, Size { nodes, pages, intervals }, home, marks)
    };
    let [manager, interleaved, first_touch, migrating] = homes();
    let other = Home::Manager(Manager(NodeId(1)));
    let two_give_ups = Troubles { give_ups: 2, objections: 0 };
    let one_at_a_time = PublicationLimits { unacknowledged_pages_max: 1, together_pages_max: 64 };
    let mut all = Vec::new();
    for marks in [false, true] {
        all.extend([
            of(Program::Locks, 2, 1, 2, manager, marks),
            of(Program::AtHome, 2, 1, 2, manager, marks),
            of(Program::Barriers, 2, 2, 2, other, marks),
            of(Program::Chain, 3, 1, 1, manager, marks),
            of(Program::Flags, 3, 2, 1, manager, marks),
            of(Program::Wanders, 2, 1, 1, migrating, marks),
            of(Program::Locks, 2, 2, 2, first_touch, marks),
            of(Program::Races, 2, 2, 2, interleaved, marks),
            Setup { is_wide: true, late_faults: true, ..of(Program::Barriers, 2, 2, 1, manager, marks) },
            Setup { limits: one_at_a_time, ..of(Program::Barriers, 2, 2, 2, manager, marks) },
            Setup { troubles: two_give_ups, ..of(Program::Barriers, 2, 1, 1, other, marks) },
            Setup { troubles: two_give_ups, ..of(Program::Locks, 2, 1, 1, other, marks) },
            of(Program::Company, 2, 1, 1, manager, marks),
            of(Program::Changes, 2, 1, 1, manager, marks),
            of(Program::AndBack, 2, 1, 1, first_touch, marks),
            of(Program::AndBack, 2, 2, 1, other, marks),
        ]);
    }
    let hindered = |setup| Setup { troubles: Troubles { give_ups: 1, objections: 1 }, may_disagree: true, ..setup };
    all.extend([
        hindered(of(Program::Agree, 2, 1, 1, manager, false)),
        hindered(of(Program::Differ, 2, 1, 2, manager, false)),
        hindered(of(Program::Agree, 2, 1, 2, manager, false)),
        hindered(of(Program::Agree, 3, 1, 1, manager, false)),
    ]);
    all.extend(conditions(protocol));
    // Pages stay open from their first publication on.
    all.extend([
        Setup { stored_in_a_row: 1, ..of(Program::Locks, 2, 1, 2, manager, true) },
        Setup { stored_in_a_row: 1, ..of(Program::Barriers, 2, 2, 2, other, true) },
    ]);
    all
}

/// Small clusters whose threads wait for a condition.
pub fn conditions(protocol: Protocol) -> Vec<Setup> {
    let size = Size { nodes: 3, pages: 1, intervals: 1 };
    let of = |program| setup(protocol, program, size, homes()[0], false);
    let give_up = Troubles { give_ups: 1, objections: 0 };
    vec![
        of(Program::Items),
        of(Program::ItemsAtOnce),
        Setup { troubles: give_up, ..of(Program::TooFew) },
        Setup { troubles: give_up, ..of(Program::Items) },
    ]
}

/// Additional clusters that some mutants need: millions of states each.
pub fn larger(protocol: Protocol) -> Vec<Setup> {
    let size = Size { nodes: 3, pages: 1, intervals: 2 };
    [false, true].map(|marks| setup(protocol, Program::Barriers, size, homes()[0], marks)).to_vec()
}

/// The smallest instance of each program, for tests of other modules.
pub fn setups() -> Vec<Setup> {
    let protocol = Protocol::all_release_consistent()[0];
    let size = Size { nodes: 3, pages: 1, intervals: 1 };
    Program::ALL.iter().map(|&program| setup(protocol, program, size, homes()[0], false)).collect()
}
