//! The representation of a litmus test: a few threads of straight-line code over a few words, and a condition.
//!
//! Promises: every value that can occur in a program has a small number (its *code*), so that the outcome of a run
//! fits one machine word and is compared with one comparison. Code [`ALIEN`] stands for a value that the program never
//! wrote. A program is within its limits once [`Program::check`] passed. It must never know how a program is run.

use std::fmt;

/// The maximum number of threads of a program.
pub const THREADS_MAX: usize = 8;
/// The maximum number of words that threads share.
pub const LOCATIONS_MAX: usize = 8;
/// The maximum number of registers and locations together: an outcome has one slot for each, and one to spare.
pub const OBSERVED_MAX: usize = 31;
/// The maximum number of different values.
pub const VALUES_MAX: usize = 15;
/// The maximum number of instructions of all threads together.
pub const INSTRUCTIONS_MAX: usize = 40;
/// The code of a value that was never written.
pub const ALIEN: u8 = 15;

/// A value as its index in [`Program::values`].
pub type Code = u8;

/// The source of a stored value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A constant.
    Constant(Code),
    /// A register of the same thread.
    Register(u8),
}

/// One instruction. Registers are numbered over the whole program, and each is loaded at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// Reads a location into a register.
    Load {
        /// Receives the value.
        register: u8,
        /// The word.
        location: u8,
    },
    /// Writes a location.
    Store {
        /// The word.
        location: u8,
        /// The value.
        source: Operand,
    },
    /// Reads and writes a location atomically; also a full fence, as `xchg` is on x86.
    Exchange {
        /// Receives the previous value.
        register: u8,
        /// The word.
        location: u8,
        /// The value to write.
        source: Operand,
    },
    /// A full fence: no later access happens before an earlier one.
    Fence,
    /// A call of the library.
    Call(Call),
}

/// The calls of the library that a test can make: each is a release, an acquire, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Takes a lock.
    Lock(u8),
    /// Releases a lock.
    Unlock(u8),
    /// Meets all other threads, each of which has a node of its own.
    Barrier,
    /// Stores to a flag, which is not a word of the shared memory.
    Set {
        /// The flag.
        flag: u8,
        /// The value.
        source: Operand,
    },
    /// Loads a flag.
    Get {
        /// Receives the value.
        register: u8,
        /// The flag.
        flag: u8,
    },
}

impl Instruction {
    /// The word that it accesses, and whether it needs the right to write.
    pub fn access(self) -> Option<(u8, bool)> {
        match self {
            Instruction::Load { location, .. } => Some((location, false)),
            Instruction::Store { location, .. } | Instruction::Exchange { location, .. } => Some((location, true)),
            Instruction::Fence | Instruction::Call(_) => None,
        }
    }

    /// The register that it fills.
    pub fn target(self) -> Option<u8> {
        match self {
            Instruction::Load { register, .. }
            | Instruction::Exchange { register, .. }
            | Instruction::Call(Call::Get { register, .. }) => Some(register),
            Instruction::Store { .. } | Instruction::Fence | Instruction::Call(_) => None,
        }
    }
}

/// A register of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// Its thread.
    pub thread: u8,
    /// Its name in the test.
    pub name: String,
    /// Its value before it is loaded.
    pub initial: Code,
}

/// The subject of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Observed {
    /// A register, at the end.
    Register(u8),
    /// A location, at the end.
    Location(u8),
}

/// A statement about an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Formula {
    /// Always holds.
    True,
    /// The final value is this one; `None` is a value that cannot occur.
    Equal(Observed, Option<Code>),
    /// The negation.
    Not(Box<Formula>),
    /// All of them.
    All(Vec<Formula>),
    /// At least one of them.
    Any(Vec<Formula>),
}

/// The quantifier of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quantifier {
    /// The formula can hold.
    Exists,
    /// The formula cannot hold.
    NotExists,
    /// The formula always holds.
    ForAll,
}

/// The condition of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The quantifier.
    pub quantifier: Quantifier,
    /// The formula.
    pub formula: Formula,
}

/// The outcome of one run: the final value of every register, then of every location; four bits each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Outcome(pub u128);

impl Outcome {
    /// The value in `slot`.
    pub fn get(self, slot: usize) -> Code {
        (self.0 >> (4 * slot) & 15) as Code
    }

    /// The outcome with another value in `slot`.
    #[must_use]
    pub fn with(self, slot: usize, code: Code) -> Outcome {
        debug_assert!(code <= ALIEN && slot <= OBSERVED_MAX);
        Outcome(self.0 & !(15 << (4 * slot)) | u128::from(code) << (4 * slot))
    }
}

/// A litmus test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// The code of each thread.
    pub threads: Vec<Vec<Instruction>>,
    /// The names of the shared words.
    pub locations: Vec<String>,
    /// The initial value of each word.
    pub initial: Vec<Code>,
    /// All registers.
    pub registers: Vec<Register>,
    /// The value of every code; the first is zero.
    pub values: Vec<i64>,
    /// The condition, if the test has one.
    pub condition: Option<Condition>,
}

impl Program {
    /// A test without threads.
    pub fn new(name: &str) -> Program {
        Program {
            name: name.to_string(),
            threads: Vec::new(),
            locations: Vec::new(),
            initial: Vec::new(),
            registers: Vec::new(),
            values: vec![0],
            condition: None,
        }
    }

    /// The location called `name`; a new one is zero at the start.
    pub fn location(&mut self, name: &str) -> u8 {
        if let Some(index) = self.find_location(name) {
            return index;
        }
        self.locations.push(name.to_string());
        self.initial.push(0);
        (self.locations.len() - 1) as u8
    }

    /// The location called `name`, if there is one.
    pub fn find_location(&self, name: &str) -> Option<u8> {
        self.locations.iter().position(|other| other == name).map(|index| index as u8)
    }

    /// A new register of `thread`, zero at the start.
    pub fn register(&mut self, thread: usize, name: &str) -> u8 {
        self.registers.push(Register { thread: thread as u8, name: name.to_string(), initial: 0 });
        (self.registers.len() - 1) as u8
    }

    /// The code of `value`; a new value gets a new code. [`Program::check`] refuses more than [`VALUES_MAX`].
    pub fn code(&mut self, value: i64) -> Code {
        self.find_code(value).unwrap_or_else(|| {
            self.values.push(value);
            (self.values.len() - 1).min(usize::from(u8::MAX)) as Code
        })
    }

    /// The code of `value`, if it can occur.
    pub fn find_code(&self, value: i64) -> Option<Code> {
        self.values.iter().position(|&other| other == value).map(|index| index as Code)
    }

    /// Whether the program is within its limits; otherwise a sentence about the exceeded limit.
    pub fn check(&self) -> Result<(), String> {
        let instructions = self.threads.iter().map(Vec::len).sum();
        let observed = self.registers.len() + self.locations.len();
        for (count, most, what) in [
            (self.threads.len(), THREADS_MAX, "threads"),
            (self.locations.len(), LOCATIONS_MAX, "locations"),
            (self.values.len(), VALUES_MAX, "different values"),
            (observed, OBSERVED_MAX, "registers and locations"),
            (instructions, INSTRUCTIONS_MAX, "instructions"),
        ] {
            if count > most {
                return Err(format!("{}: {count} {what}, and a test may have {most}", self.name));
            }
        }
        if self.threads.is_empty() {
            return Err(format!("{}: the test has no thread", self.name));
        }
        let barriers = self.barriers();
        let meets = |instruction: &&Instruction| **instruction == Instruction::Call(Call::Barrier);
        if self.threads.iter().any(|code| code.iter().filter(meets).count() != barriers) {
            return Err(format!("{}: every thread comes to each barrier of a test", self.name));
        }
        if self.locations.is_empty() {
            return Err(format!("{}: no thread of the test touches memory", self.name));
        }
        Ok(())
    }

    /// Whether a thread calls the library.
    pub fn has_calls(&self) -> bool {
        self.threads.iter().flatten().any(|instruction| matches!(instruction, Instruction::Call(_)))
    }

    /// How often each thread meets the others; none or all do.
    pub fn barriers(&self) -> usize {
        let meets = |instruction: &&Instruction| **instruction == Instruction::Call(Call::Barrier);
        self.threads.iter().map(|code| code.iter().filter(meets).count()).max().unwrap_or(0)
    }

    /// The number of locks and flags: one more than the largest.
    pub fn objects(&self) -> usize {
        let object = |instruction: &Instruction| match *instruction {
            Instruction::Call(Call::Lock(lock) | Call::Unlock(lock)) => usize::from(lock) + 1,
            Instruction::Call(Call::Set { flag, .. } | Call::Get { flag, .. }) => usize::from(flag) + 1,
            _ => 0,
        };
        self.threads.iter().flatten().map(object).max().unwrap_or(0)
    }

    /// The slot of `observed` in an [`Outcome`].
    pub fn slot(&self, observed: Observed) -> usize {
        match observed {
            Observed::Register(register) => usize::from(register),
            Observed::Location(location) => self.registers.len() + usize::from(location),
        }
    }

    /// The slot of a location in an [`Outcome`].
    pub fn location_slot(&self, location: u8) -> usize {
        self.slot(Observed::Location(location))
    }

    /// The number of slots that an outcome uses.
    pub fn slots(&self) -> usize {
        self.registers.len() + self.locations.len()
    }

    /// The registers and locations before the first step.
    pub fn start(&self) -> Outcome {
        let registers = self.registers.iter().map(|register| register.initial);
        let all = registers.chain(self.initial.iter().copied());
        all.enumerate().fold(Outcome::default(), |outcome, (slot, code)| outcome.with(slot, code))
    }

    /// The code of the value that a store writes, given the registers so far.
    pub fn operand(source: Operand, so_far: Outcome) -> Code {
        match source {
            Operand::Constant(code) => code,
            Operand::Register(register) => so_far.get(usize::from(register)),
        }
    }

    /// Whether `formula` holds for `outcome`.
    pub fn holds(&self, formula: &Formula, outcome: Outcome) -> bool {
        match formula {
            Formula::True => true,
            Formula::Equal(observed, code) => *code == Some(outcome.get(self.slot(*observed))),
            Formula::Not(inner) => !self.holds(inner, outcome),
            Formula::All(parts) => parts.iter().all(|part| self.holds(part, outcome)),
            Formula::Any(parts) => parts.iter().any(|part| self.holds(part, outcome)),
        }
    }

    /// `outcome` as text, for example `0:r0=1 1:r0=0 x=1`.
    pub fn outcome_text(&self, outcome: Outcome) -> String {
        let value = |slot: usize| match self.values.get(usize::from(outcome.get(slot))) {
            Some(value) => value.to_string(),
            None => "never-written".to_string(),
        };
        let registers =
            self.registers.iter().enumerate().map(|(slot, r)| format!("{}:{}={}", r.thread, r.name, value(slot)));
        let locations = self
            .locations
            .iter()
            .enumerate()
            .map(|(index, name)| format!("{name}={}", value(self.registers.len() + index)));
        registers.chain(locations).collect::<Vec<_>>().join(" ")
    }

    /// An instruction as text.
    pub fn instruction_text(&self, instruction: Instruction) -> String {
        let location = |index: u8| &self.locations[usize::from(index)];
        let register = |index: u8| &self.registers[usize::from(index)].name;
        let operand = |source| match source {
            Operand::Constant(code) => self.values[usize::from(code)].to_string(),
            Operand::Register(index) => register(index).clone(),
        };
        match instruction {
            Instruction::Load { register: target, location: from } => {
                format!("{} = {}", register(target), location(from))
            }
            Instruction::Store { location: to, source } => format!("{} = {}", location(to), operand(source)),
            Instruction::Exchange { register: target, location: with, source } => {
                format!("{} = exchange({}, {})", register(target), location(with), operand(source))
            }
            Instruction::Fence => "fence".to_string(),
            Instruction::Call(Call::Lock(lock)) => format!("lock({lock})"),
            Instruction::Call(Call::Unlock(lock)) => format!("unlock({lock})"),
            Instruction::Call(Call::Barrier) => "barrier".to_string(),
            Instruction::Call(Call::Set { flag, source }) => format!("set(flag {flag}, {})", operand(source)),
            Instruction::Call(Call::Get { register: target, flag }) => {
                format!("{} = get(flag {flag})", register(target))
            }
        }
    }

    /// The condition as text.
    pub fn condition_text(&self) -> Option<String> {
        let condition = self.condition.as_ref()?;
        let word = match condition.quantifier {
            Quantifier::Exists => "exists",
            Quantifier::NotExists => "~exists",
            Quantifier::ForAll => "forall",
        };
        Some(format!("{word} ({})", self.formula_text(&condition.formula)))
    }

    fn formula_text(&self, formula: &Formula) -> String {
        let joined = |parts: &[Formula], with: &str| {
            let parts: Vec<String> = parts.iter().map(|part| self.formula_text(part)).collect();
            format!("({})", parts.join(with))
        };
        match formula {
            Formula::True => "true".to_string(),
            Formula::Equal(observed, code) => {
                let value = code.and_then(|code| self.values.get(usize::from(code)));
                let value = value.map_or("never-written".to_string(), i64::to_string);
                match *observed {
                    Observed::Register(index) => {
                        let register = &self.registers[usize::from(index)];
                        format!("{}:{}={value}", register.thread, register.name)
                    }
                    Observed::Location(index) => format!("{}={value}", self.locations[usize::from(index)]),
                }
            }
            Formula::Not(inner) => format!("~({})", self.formula_text(inner)),
            Formula::All(parts) => joined(parts, " /\\ "),
            Formula::Any(parts) => joined(parts, " \\/ "),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.name)?;
        for (location, &code) in self.locations.iter().zip(&self.initial) {
            writeln!(f, "  {location} = {}", self.values[usize::from(code)])?;
        }
        for (thread, code) in self.threads.iter().enumerate() {
            let lines: Vec<String> = code.iter().map(|&one| self.instruction_text(one)).collect();
            writeln!(f, "  P{thread}: {}", lines.join("; "))?;
        }
        match self.condition_text() {
            Some(text) => writeln!(f, "  {text}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_keep_every_slot_apart() {
        let mut outcome = Outcome::default();
        for slot in 0..OBSERVED_MAX {
            outcome = outcome.with(slot, (slot % 16) as u8);
        }
        assert!((0..OBSERVED_MAX).all(|slot| outcome.get(slot) == (slot % 16) as u8));
        assert_eq!(outcome.with(3, 9).with(3, 3), outcome);
    }

    #[test]
    fn a_formula_is_asked_of_an_outcome() {
        let mut program = Program::new("test");
        let (x, one) = (program.location("x"), program.code(1));
        let r = program.register(0, "r0");
        let is_one = |what| Formula::Equal(what, Some(one));
        let both = Formula::All(vec![is_one(Observed::Register(r)), is_one(Observed::Location(x))]);
        let outcome = program.start().with(program.slot(Observed::Register(r)), one);
        assert!(!program.holds(&both, outcome));
        assert!(program.holds(&Formula::Not(Box::new(both.clone())), outcome));
        assert!(program.holds(&both, outcome.with(program.location_slot(x), one)));
        assert!(!program.holds(&Formula::Equal(Observed::Location(x), None), outcome));
        assert_eq!(program.outcome_text(outcome.with(program.location_slot(x), ALIEN)), "0:r0=1 x=never-written");
    }

    #[test]
    fn too_much_is_refused_with_a_sentence() {
        let mut program = Program::new("big");
        (0..9).for_each(|index| {
            program.location(&format!("x{index}"));
        });
        program.threads.push(Vec::new());
        assert_eq!(program.check(), Err("big: 9 locations, and a test may have 8".to_string()));
    }
}
