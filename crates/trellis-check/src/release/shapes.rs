//! Litmus tests with calls: the generated cycles with added locks, barriers and flags, and a few handwritten ones.
//!
//! Promises: the list is always the same, in the same order. The condition of a test stays that of its cycle; the
//! oracle decides whether it is allowed. It must never contain a test whose threads can wait for each other for ever.

use crate::litmus::generate;
use crate::litmus::program::{Call, Condition, Formula, Instruction, Observed, Operand, Program, Quantifier};

/// All tests for protocols with release consistency: the plain ones, and those with calls.
pub fn shapes() -> Vec<Program> {
    let mut all = generate::shapes();
    all.extend(released_shapes());
    all
}

/// The tests with calls.
pub fn released_shapes() -> Vec<Program> {
    let mut all = Vec::new();
    for plain in generate::cycles(3) {
        all.extend([with_locks(&plain), with_flags(&plain), with_barrier(&plain), with_one_lock(&plain)]);
    }
    let named =
        |name: &str| generate::shapes().into_iter().find(|program| program.name == name).expect("it is generated");
    for plain in [named("IRIW"), named("4.SB"), named("4.LB"), named("4.2W")] {
        all.extend([with_one_lock(&plain), with_flags(&plain), with_barrier(&plain)]);
    }
    all.push(with_locks(&named("IRIW")));
    all.extend([handed_on_under_locks(), handed_on_by_flags(), counted_under_a_lock(), neighbours()]);
    all
}

fn changed(plain: &Program, suffix: &str, change: impl Fn(usize, Instruction) -> Vec<Instruction>) -> Program {
    let thread = |code: &Vec<Instruction>| {
        code.iter().enumerate().flat_map(|(index, &instruction)| change(index, instruction)).collect()
    };
    let threads = plain.threads.iter().map(thread).collect();
    Program { name: format!("{}+{suffix}", plain.name), threads, ..plain.clone() }
}

/// Each access is under the lock of its word.
pub fn with_locks(plain: &Program) -> Program {
    changed(plain, "locks", |_, instruction| match instruction.access() {
        Some((location, _)) => {
            vec![Instruction::Call(Call::Lock(location)), instruction, Instruction::Call(Call::Unlock(location))]
        }
        None => vec![instruction],
    })
}

/// Each thread as a whole is under one lock.
fn with_one_lock(plain: &Program) -> Program {
    let mut program = changed(plain, "lock", |_, instruction| vec![instruction]);
    for code in &mut program.threads {
        code.insert(0, Instruction::Call(Call::Lock(0)));
        code.push(Instruction::Call(Call::Unlock(0)));
    }
    program
}

/// Every word but the first becomes a flag.
fn with_flags(plain: &Program) -> Program {
    changed(plain, "flags", |_, instruction| {
        vec![match instruction {
            Instruction::Load { register, location } if location > 0 => {
                Instruction::Call(Call::Get { register, flag: location })
            }
            Instruction::Store { location, source } if location > 0 => {
                Instruction::Call(Call::Set { flag: location, source })
            }
            other => other,
        }]
    })
}

/// All threads meet after their first instruction.
fn with_barrier(plain: &Program) -> Program {
    changed(plain, "barrier", |index, instruction| match index {
        0 => vec![instruction, Instruction::Call(Call::Barrier)],
        _ => vec![instruction],
    })
}

/// Adds the condition that registers have these values at the end.
fn asked(mut program: Program, expected: &[(u8, i64)]) -> Program {
    let equal = |program: &mut Program, register: u8, value: i64| {
        let code = program.code(value);
        Formula::Equal(Observed::Register(register), Some(code))
    };
    let parts = expected.iter().map(|&(register, value)| equal(&mut program, register, value)).collect();
    program.condition = Some(Condition { quantifier: Quantifier::Exists, formula: Formula::All(parts) });
    program
}

fn under(lock: u8, inside: Vec<Instruction>) -> Vec<Instruction> {
    let mut all = vec![Instruction::Call(Call::Lock(lock))];
    all.extend(inside);
    all.push(Instruction::Call(Call::Unlock(lock)));
    all
}

/// A releases to B under one lock, B to C under another: does C, which never held the first, miss A's store?
fn handed_on_under_locks() -> Program {
    let mut program = Program::new("HANDED-ON+locks");
    let (x, y, z, one) = (program.location("x"), program.location("y"), program.location("z"), program.code(1));
    let registers = [program.register(1, "r0"), program.register(2, "r0"), program.register(2, "r1")];
    let store = |location| Instruction::Store { location, source: Operand::Constant(one) };
    let load = |location, register| Instruction::Load { register, location };
    let copied = Instruction::Store { location: z, source: Operand::Register(registers[0]) };
    program.threads = vec![
        [vec![store(x)], under(0, vec![store(y)])].concat(),
        [under(0, vec![load(y, registers[0])]), under(1, vec![copied])].concat(),
        [under(1, vec![load(z, registers[1])]), vec![load(x, registers[2])]].concat(),
    ];
    asked(program, &[(registers[1], 1), (registers[2], 0)])
}

/// The same with flags, through one more thread.
fn handed_on_by_flags() -> Program {
    let mut program = Program::new("HANDED-ON+flags");
    let (x, one) = (program.location("x"), program.code(1));
    let mut threads = vec![vec![
        Instruction::Store { location: x, source: Operand::Constant(one) },
        Instruction::Call(Call::Set { flag: 0, source: Operand::Constant(one) }),
    ]];
    for hand in 1..3u8 {
        let register = program.register(hand.into(), "r0");
        threads.push(vec![
            Instruction::Call(Call::Get { register, flag: hand - 1 }),
            Instruction::Call(Call::Set { flag: hand, source: Operand::Register(register) }),
        ]);
    }
    let (last, seen) = (program.register(3, "r0"), program.register(3, "r1"));
    threads.push(vec![
        Instruction::Call(Call::Get { register: last, flag: 2 }),
        Instruction::Load { register: seen, location: x },
    ]);
    program.threads = threads;
    asked(program, &[(last, 1), (seen, 0)])
}

/// Each of two threads loads the other's word and stores to its own under a lock: does neither see the other?
fn counted_under_a_lock() -> Program {
    let mut program = Program::new("TURNS+lock");
    let (x, y, one) = (program.location("x"), program.location("y"), program.code(1));
    let registers = [program.register(0, "r0"), program.register(1, "r0")];
    let turn = |mine: u8, other: u8, register: u8| {
        under(
            0,
            vec![
                Instruction::Load { register, location: other },
                Instruction::Store { location: mine, source: Operand::Constant(one) },
            ],
        )
    };
    program.threads = vec![turn(x, y, registers[0]), turn(y, x, registers[1])];
    asked(program, &[(registers[0], 0), (registers[1], 0)])
}

/// Each thread stores to a word of its own, often on one page, and loads another's after a barrier: is a store lost?
fn neighbours() -> Program {
    let mut program = Program::new("NEIGHBOURS+barrier");
    let (x, y, z) = (program.location("x"), program.location("y"), program.location("z"));
    let mut expected = Vec::new();
    let words = [x, y, z];
    for thread in 0..3usize {
        let code = program.code(thread as i64 + 1);
        let register = program.register(thread, "r0");
        program.threads.push(vec![
            Instruction::Store { location: words[thread], source: Operand::Constant(code) },
            Instruction::Call(Call::Barrier),
            Instruction::Load { register, location: words[(thread + 1) % 3] },
        ]);
        expected.push((register, 0));
    }
    asked(program, &expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_different_and_every_test_is_within_its_limits() {
        let all = shapes();
        for (index, program) in all.iter().enumerate() {
            assert_eq!(program.check(), Ok(()));
            assert!(all[..index].iter().all(|other| other.name != program.name), "{} is there twice", program.name);
        }
        assert!(all.iter().filter(|program| program.has_calls()).count() > 60);
    }
}
