//! The generated litmus tests: all minimal critical cycles of two to four threads, single-location tests, exchanges.
//!
//! An execution breaks sequential consistency if and only if it contains a *critical cycle* (Shasha and Snir 1988):
//! threads with two accesses to different locations each, joined where one thread's last access meets the next
//! thread's first. Three joints are minimal: a read sees a write (*reads-from*), a write is overwritten by the next
//! (*coherence*), a read sees what the next write overwrites (*from-read*). Two reads meet only through a third thread
//! that writes between them. A cycle is therefore a ring of joints, and rotations of a ring are equal. Its threads are
//! its joints plus its third threads: there are 54 rings with two to four threads.
//!
//! Promises: the list is always the same, in the same order, and no two tests are the same cycle. It must never choose
//! tests by name: names are attached to cycles.

use super::program::{Code, Condition, Formula, Instruction, Observed, Operand, Program, Quantifier};

/// Where the last access of a thread meets the first access of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Joint {
    /// Write, then a read that sees it.
    ReadsFrom,
    /// Read, then a write that it did not see.
    FromRead,
    /// Write, then the write that overwrites it.
    Coherence,
    /// Read, then a write of another thread that it did not see, then a read that sees it.
    Through,
}

use Joint::{Coherence, FromRead, ReadsFrom, Through};

const JOINTS: [Joint; 4] = [ReadsFrom, FromRead, Coherence, Through];

impl Joint {
    fn leaves_with_write(self) -> bool {
        matches!(self, ReadsFrom | Coherence)
    }

    fn arrives_with_write(self) -> bool {
        matches!(self, FromRead | Coherence)
    }
}

/// Cycles that have a name in the literature (Sarkar et al. 2011; Alglave, Maranget and Tautschnig 2014).
const NAMES: [(&[Joint], &str); 21] = [
    (&[ReadsFrom, FromRead], "MP"),
    (&[FromRead, FromRead], "SB"),
    (&[ReadsFrom, ReadsFrom], "LB"),
    (&[ReadsFrom, Coherence], "S"),
    (&[FromRead, Coherence], "R"),
    (&[Coherence, Coherence], "2+2W"),
    (&[Through, ReadsFrom], "WRC"),
    (&[Through, FromRead], "RWC"),
    (&[Through, Coherence], "WRW+WR"),
    (&[Through, Through], "IRIW"),
    (&[ReadsFrom, ReadsFrom, FromRead], "ISA2"),
    (&[ReadsFrom, FromRead, FromRead], "W+RWC"),
    (&[ReadsFrom, Coherence, FromRead], "Z6.0"),
    (&[ReadsFrom, Coherence, Coherence], "Z6.1"),
    (&[ReadsFrom, ReadsFrom, Coherence], "Z6.2"),
    (&[ReadsFrom, FromRead, Coherence], "Z6.3"),
    (&[FromRead, FromRead, Coherence], "Z6.4"),
    (&[FromRead, Coherence, Coherence], "Z6.5"),
    (&[FromRead, FromRead, FromRead], "3.SB"),
    (&[ReadsFrom, ReadsFrom, ReadsFrom], "3.LB"),
    (&[Coherence, Coherence, Coherence], "3.2W"),
];

/// The names of rings with four threads and one kind of joint.
const FOUR: [(Joint, &str); 3] = [(FromRead, "4.SB"), (ReadsFrom, "4.LB"), (Coherence, "4.2W")];

/// Every generated test: cycles, single-location tests, exchanges.
pub fn shapes() -> Vec<Program> {
    let mut all = cycles(4);
    all.extend(single_location());
    all.extend(exchanges());
    all
}

/// Every minimal critical cycle with at most `threads_max` threads, smallest first.
pub fn cycles(threads_max: usize) -> Vec<Program> {
    let mut rings = Vec::new();
    for joints in 2..=threads_max {
        extend_rings(&mut Vec::new(), joints, threads_max, &mut rings);
    }
    rings.sort_by_key(|ring| (threads_of(ring), ring.len(), ring.clone()));
    rings.iter().map(|ring| program_of(ring)).collect()
}

fn extend_rings(ring: &mut Vec<Joint>, joints: usize, threads_max: usize, rings: &mut Vec<Vec<Joint>>) {
    if ring.len() == joints {
        if *ring == canonical(ring) && threads_of(ring) <= threads_max {
            rings.push(ring.clone());
        }
        return;
    }
    for joint in JOINTS {
        ring.push(joint);
        extend_rings(ring, joints, threads_max, rings);
        ring.pop();
    }
}

fn threads_of(ring: &[Joint]) -> usize {
    ring.len() + ring.iter().filter(|&&joint| joint == Through).count()
}

/// The least rotation of the ring.
fn canonical(ring: &[Joint]) -> Vec<Joint> {
    let turned = (0..ring.len()).map(|by| {
        let mut turned = ring.to_vec();
        turned.rotate_left(by);
        turned
    });
    turned.min().expect("a ring has joints")
}

fn name_of(ring: &[Joint]) -> String {
    let known = NAMES.iter().find(|(named, _)| canonical(named) == ring);
    let four = FOUR.iter().find(|(joint, _)| ring.len() == 4 && ring.iter().all(|other| other == joint));
    match (known, four) {
        (Some((_, name)), _) | (None, Some((_, name))) => name.to_string(),
        // The accesses of each thread, in the order of the ring, determine the joints.
        _ => accesses_of(ring).join("+"),
    }
}

/// The accesses of each thread as letters, in ring order.
fn accesses_of(ring: &[Joint]) -> Vec<&'static str> {
    let mut threads = Vec::new();
    for (index, &joint) in ring.iter().enumerate() {
        let before = ring[(index + ring.len() - 1) % ring.len()];
        threads.push(match (before.arrives_with_write(), joint.leaves_with_write()) {
            (false, false) => "RR",
            (false, true) => "RW",
            (true, false) => "WR",
            (true, true) => "WW",
        });
        if joint == Through {
            threads.push("W");
        }
    }
    threads
}

/// The program whose forbidden outcome is the ring.
fn program_of(ring: &[Joint]) -> Program {
    let mut program = Program::new(&name_of(ring));
    let mut witness = Vec::new();
    let one = program.code(1);
    for name in &["x", "y", "z", "w"][..ring.len()] {
        program.location(name);
    }
    for (index, &joint) in ring.iter().enumerate() {
        let before_index = (index + ring.len() - 1) % ring.len();
        let before = ring[before_index];
        let thread = program.threads.len();
        program.threads.push(Vec::new());
        // The first access meets the previous thread, the last one the next thread.
        let first_value = if before == Coherence { 2 } else { 1 };
        let first = EdgeEnd { location: before_index as u8, write: before.arrives_with_write() };
        // An edge that arrives at a read comes from the write that it sees; an edge that leaves a read goes to the
        // write that overwrites.
        add_access(&mut program, thread, first, first_value, one, &mut witness);
        let last = EdgeEnd { location: index as u8, write: joint.leaves_with_write() };
        add_access(&mut program, thread, last, 1, 0, &mut witness);
        if joint == Through {
            let source = Operand::Constant(one);
            program.threads.push(vec![Instruction::Store { location: index as u8, source }]);
        }
        if joint == Coherence {
            let two = program.code(2);
            witness.push(Formula::Equal(Observed::Location(index as u8), Some(two)));
        }
    }
    forbid(program, witness)
}

#[derive(Clone, Copy)]
struct EdgeEnd {
    location: u8,
    write: bool,
}

fn add_access(program: &mut Program, thread: usize, end: EdgeEnd, value: i64, seen: Code, witness: &mut Vec<Formula>) {
    let EdgeEnd { location, write } = end;
    if write {
        let source = Operand::Constant(program.code(value));
        program.threads[thread].push(Instruction::Store { location, source });
        return;
    }
    let count = program.registers.iter().filter(|register| usize::from(register.thread) == thread).count();
    let register = program.register(thread, &format!("r{count}"));
    program.threads[thread].push(Instruction::Load { register, location });
    witness.push(Formula::Equal(Observed::Register(register), Some(seen)));
}

fn forbid(mut program: Program, witness: Vec<Formula>) -> Program {
    program.condition = Some(Condition { quantifier: Quantifier::NotExists, formula: Formula::All(witness) });
    program.check().expect("generated programs are small");
    program
}

/// One access of a handwritten test: `Some(value)` stores it, `None` loads.
type Access = (&'static str, Option<i64>);

/// The five ways in which two accesses to one location can contradict its coherence order.
pub fn single_location() -> Vec<Program> {
    let x = "x";
    let store = |value| (x, Some(value));
    let load = (x, None);
    vec![
        straight("CoRR", &[&[store(1)], &[load, load]], &[("1:r0", 1), ("1:r1", 0)]),
        straight("CoWW", &[&[store(1), store(2)]], &[("x", 1)]),
        straight("CoWR", &[&[store(1), load], &[store(2)]], &[("0:r0", 2), ("x", 1)]),
        straight("CoRW1", &[&[load, store(1)]], &[("0:r0", 1)]),
        straight("CoRW2", &[&[load, store(1)], &[store(2)]], &[("0:r0", 2), ("x", 2)]),
    ]
}

fn straight(name: &str, threads: &[&[Access]], witness: &[(&str, i64)]) -> Program {
    let mut program = Program::new(name);
    for (thread, accesses) in threads.iter().enumerate() {
        let mut code = Vec::new();
        for &(location, value) in *accesses {
            let location = program.location(location);
            code.push(match value {
                Some(value) => Instruction::Store { location, source: Operand::Constant(program.code(value)) },
                None => {
                    let count = code.iter().filter(|one| matches!(one, Instruction::Load { .. })).count();
                    Instruction::Load { register: program.register(thread, &format!("r{count}")), location }
                }
            });
        }
        program.threads.push(code);
    }
    forbid_named(program, witness)
}

fn forbid_named(program: Program, witness: &[(&str, i64)]) -> Program {
    let formulas = witness.iter().map(|&(name, value)| {
        let observed = match name.split_once(':') {
            Some((thread, register)) => {
                let is_it = |r: &super::program::Register| r.thread.to_string() == thread && r.name == register;
                Observed::Register(program.registers.iter().position(is_it).expect("it is loaded") as u8)
            }
            None => Observed::Location(program.find_location(name).expect("it is touched")),
        };
        Formula::Equal(observed, program.find_code(value))
    });
    let formulas = formulas.collect();
    forbid(program, formulas)
}

/// Tests of exchanges: an exchange is atomic and a full fence.
pub fn exchanges() -> Vec<Program> {
    vec![
        contest("2+XCHG", 2, &[("0:r0", 0), ("1:r0", 0)]),
        contest("3+XCHG", 3, &[("0:r0", 0), ("1:r0", 1), ("2:r0", 1)]),
        exchange_against_store(),
        exchange_buffering(),
        fenced_buffering(),
    ]
}

/// Every thread exchanges its own number for the current value: the answers form one chain.
fn contest(name: &str, threads: usize, witness: &[(&str, i64)]) -> Program {
    let mut program = Program::new(name);
    let location = program.location("x");
    for thread in 0..threads {
        let source = Operand::Constant(program.code(thread as i64 + 1));
        let register = program.register(thread, "r0");
        program.threads.push(vec![Instruction::Exchange { register, location, source }]);
    }
    forbid_named(program, witness)
}

/// A store must not fall between the two halves of an exchange.
fn exchange_against_store() -> Program {
    let mut program = Program::new("XCHG+W");
    let location = program.location("x");
    let (one, two) = (Operand::Constant(program.code(1)), Operand::Constant(program.code(2)));
    let register = program.register(0, "r0");
    program.threads.push(vec![Instruction::Exchange { register, location, source: one }]);
    program.threads.push(vec![Instruction::Store { location, source: two }]);
    forbid_named(program, &[("0:r0", 0), ("x", 1)])
}

fn exchange_buffering() -> Program {
    let mut program = Program::new("SB+XCHG");
    let one = Operand::Constant(program.code(1));
    let locations = [program.location("x"), program.location("y")];
    for thread in 0..2 {
        let before = program.register(thread, "before");
        let seen = program.register(thread, "r0");
        program.threads.push(vec![
            Instruction::Exchange { register: before, location: locations[thread], source: one },
            Instruction::Load { register: seen, location: locations[1 - thread] },
        ]);
    }
    forbid_named(program, &[("0:r0", 0), ("1:r0", 0)])
}

fn fenced_buffering() -> Program {
    let mut program = straight(
        "SB+fences",
        &[&[("x", Some(1)), ("y", None)], &[("y", Some(1)), ("x", None)]],
        &[("0:r0", 0), ("1:r0", 0)],
    );
    program.threads.iter_mut().for_each(|code| code.insert(1, Instruction::Fence));
    program
}

/// Every way to partition `count` things into groups, each as the group of each thing. Groups are numbered from 0 in
/// the order of their first members.
pub fn partitions(count: usize) -> Vec<Vec<u8>> {
    let mut all = vec![Vec::new()];
    for _ in 0..count {
        all = all
            .into_iter()
            .flat_map(|partition: Vec<u8>| {
                let next = partition.iter().max().map_or(0, |&last| last + 1);
                (0..=next).map(move |group| {
                    let mut longer = partition.clone();
                    longer.push(group);
                    longer
                })
            })
            .collect();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn there_are_fifty_four_minimal_cycles() {
        let count = |threads| cycles(4).iter().filter(|program| program.threads.len() == threads).count();
        assert_eq!((count(2), count(3), count(4)), (6, 14, 34));
        assert_eq!(cycles(4).len(), 54);
    }

    #[test]
    fn no_two_tests_share_a_name_or_code() {
        let all = shapes();
        let names: HashSet<&str> = all.iter().map(|program| program.name.as_str()).collect();
        let codes: HashSet<String> =
            all.iter().map(|program| program.to_string().split_once('\n').unwrap().1.to_string()).collect();
        assert_eq!((names.len(), codes.len()), (all.len(), all.len()));
        assert_eq!(all.len(), 54 + 5 + 5);
    }

    #[test]
    fn known_cycles_have_their_names() {
        let all = shapes();
        let text = |name: &str| all.iter().find(|program| program.name == name).expect(name).to_string();
        for name in NAMES.iter().map(|(_, name)| name).chain(FOUR.iter().map(|(_, name)| name)) {
            text(name);
        }
        let store_buffering = text("SB");
        assert!(store_buffering.contains("P0: y = 1; r0 = x") || store_buffering.contains("P0: x = 1; r0 = y"));
        assert!(store_buffering.contains("~exists ((0:r0=0 /\\ 1:r0=0))"), "{store_buffering}");
        assert_eq!(text("IRIW").matches(" = 1\n").count(), 2, "two threads only store");
    }

    #[test]
    fn a_thread_of_a_cycle_has_two_accesses_to_different_locations_or_one_store() {
        for program in cycles(4) {
            for code in &program.threads {
                let places: Vec<u8> = code.iter().filter_map(|one| one.access()).map(|(place, _)| place).collect();
                match places[..] {
                    [first, last] => assert_ne!(first, last, "{program}"),
                    [_] => assert!(matches!(code[0], Instruction::Store { .. }), "{program}"),
                    _ => panic!("{program}"),
                }
            }
        }
    }

    #[test]
    fn every_partition_is_there_once() {
        assert_eq!([1, 2, 3, 4].map(|count| partitions(count).len()), [1, 2, 5, 15]);
        assert_eq!(partitions(2), [vec![0, 0], vec![0, 1]]);
    }

    #[test]
    fn the_cycles_have_the_known_number_of_instances() {
        let of =
            |program: &Program| partitions(program.threads.len()).len() * partitions(program.locations.len()).len();
        assert_eq!(cycles(4).iter().map(of).sum::<usize>(), 6434);
    }
}
