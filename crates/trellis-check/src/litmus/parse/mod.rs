//! The parser for herd's `.litmus` files: straight lines of loads, stores, fences and exchanges.
//!
//! It accepts tests for `X86`, `X86_64` and `C`, with the header, comments, initial values, `locations`, and `exists`,
//! `~exists` or `forall` with `/\`, `\/`, `~` and brackets. X86: `MOV`, `XCHG` (with or without `LOCK`), `MFENCE`,
//! `SFENCE`, `LFENCE`. X86_64: the same in assembler syntax, `movq $1,(x)`, where `eax` is the lower half of `rax`.
//! Lines that begin with `#` are comments, unless they define something. C: `READ_ONCE`, `WRITE_ONCE`,
//! `smp_load_acquire`, `smp_store_release`, `smp_store_mb`, `atomic_load`, `atomic_store` and `atomic_exchange` with
//! or without `_explicit`, `xchg` and its variants, `*x`, the fences of Linux and C11. Loads and stores are plain
//! `mov`s in program order, whatever memory order they name. A sequentially consistent store is followed by a fence,
//! as compilers do on x86.
//!
//! Promises: a file is either understood completely or refused with one sentence that names file and line. It must
//! never guess: anything not listed is refused.

mod c;
mod tokens;
mod x86;

use super::program::{Condition, Formula, Instruction, Observed, Operand, Program, Quantifier};
use std::collections::BTreeMap;
use tokens::{Token, Tokens, without_comments};

/// Reads `path`.
pub fn parse_file(path: &std::path::Path) -> Result<Program, String> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("{name}: the litmus test cannot be read: {error}; name a file that is there"))?;
    parse(&name, &text)
}

/// Reads a test from `text`. Errors name `file` and the line.
pub fn parse(file: &str, text: &str) -> Result<Program, String> {
    read(text).map_err(|Refused { line, what }| format!("{file}:{line}: {what}"))
}

/// Why a test is refused, and at which line.
#[derive(Debug)]
struct Refused {
    line: usize,
    what: String,
}

fn refused<T>(line: usize, what: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { line, what: what.into() })
}

/// The maximum number of characters of a file.
const CHARACTERS_MAX: usize = 1 << 16;

fn read(text: &str) -> Result<Program, Refused> {
    if text.len() > CHARACTERS_MAX {
        return refused(
            1,
            format!("a litmus test has at most {CHARACTERS_MAX} characters; this file is something else"),
        );
    }
    let mut lines = text.lines().enumerate().skip_while(|(_, line)| line.trim().is_empty());
    let Some((first, header)) = lines.next() else {
        return refused(1, "the file is empty; it should begin with `X86`, `X86_64` or `C`");
    };
    let mut words = header.split_whitespace();
    let (language, name) = (words.next().unwrap_or_default(), words.next().unwrap_or("unnamed"));
    if !["C", "X86", "X86_64"].contains(&language) {
        let what = format!("tests for `{language}` are not understood; there are `X86`, `X86_64` and `C`");
        return refused(first + 1, what);
    }
    let is_c = language == "C";
    let rest = without_comments(text, 1, is_c)?;
    let mut reader = Reader { program: Program::new(name), bound: BTreeMap::new() };
    let mut tokens = Tokens::after_header(&rest, 1)?;
    if language == "X86_64" {
        tokens.name_whole_registers();
    }
    reader.initial(&mut tokens)?;
    if is_c {
        c::threads(&mut reader, &mut tokens)?
    } else {
        x86::threads(&mut reader, &mut tokens, language == "X86_64")?
    }
    reader.end(&mut tokens)?;
    reader.program.check().map_err(|what| Refused { line: first + 1, what })?;
    Ok(reader.program)
}

/// A program under construction.
struct Reader {
    program: Program,
    /// The current value of each register of each thread.
    bound: BTreeMap<(usize, String), Operand>,
}

impl Reader {
    /// Initial values, in braces.
    fn initial(&mut self, tokens: &mut Tokens) -> Result<(), Refused> {
        tokens.expect("{")?;
        while !tokens.take("}") {
            if tokens.take(";") {
                continue;
            }
            // Types do not matter here.
            while matches!((tokens.peek(), tokens.peek_second()), (Token::Word(_), Token::Word(_))) {
                tokens.next();
            }
            if let Token::Number(thread) = *tokens.peek() {
                tokens.next();
                tokens.expect(":")?;
                let register = tokens.word("a register")?;
                tokens.expect("=")?;
                let code = self.constant(tokens)?;
                self.bound.insert((thread as usize, register), Operand::Constant(code));
            } else {
                let location = self.location(tokens)?;
                if tokens.take("=") {
                    self.program.initial[usize::from(location)] = self.constant(tokens)?;
                }
            }
            if tokens.peek() != &Token::Mark("}") {
                tokens.expect(";")?;
            }
        }
        Ok(())
    }

    fn constant(&mut self, tokens: &mut Tokens) -> Result<u8, Refused> {
        let value = tokens.number()?;
        Ok(self.program.code(value))
    }

    /// The name of a location, optionally in square brackets.
    fn location(&mut self, tokens: &mut Tokens) -> Result<u8, Refused> {
        let has_bracket = tokens.take("[");
        let name = tokens.word("a location")?;
        if has_bracket {
            tokens.expect("]")?;
        }
        Ok(self.program.location(&name))
    }

    fn push(&mut self, thread: usize, instruction: Instruction) {
        self.program.threads[thread].push(instruction);
    }

    /// A register of the program for a load or an exchange of `thread` into `name`. The previous value stays visible
    /// under another name.
    fn load_into(&mut self, thread: usize, name: &str) -> u8 {
        let count = self.program.registers.len();
        let older = self.program.registers.iter_mut().rev();
        let mine =
            |register: &&mut super::program::Register| usize::from(register.thread) == thread && register.name == name;
        if let Some(before) = { older }.find(mine) {
            before.name = format!("{name}@{count}");
        }
        let register = self.program.register(thread, name);
        self.bound.insert((thread, name.to_string()), Operand::Register(register));
        register
    }

    /// The current value of `name`, if it is a register of `thread` that was set.
    fn value_of(&self, thread: usize, name: &str) -> Option<Operand> {
        self.bound.get(&(thread, name.to_string())).copied()
    }

    /// Parses `locations` and the condition.
    fn end(&mut self, tokens: &mut Tokens) -> Result<(), Refused> {
        if tokens.take("locations") {
            tokens.expect("[")?;
            while !tokens.take("]") {
                if tokens.at_end() {
                    return tokens.refuse("`locations` has no closing `]`");
                }
                tokens.next();
            }
        }
        if tokens.at_end() {
            return Ok(());
        }
        let quantifier = if tokens.take("exists") {
            Quantifier::Exists
        } else if tokens.take("forall") {
            Quantifier::ForAll
        } else if tokens.take("~") {
            tokens.expect("exists")?;
            Quantifier::NotExists
        } else {
            let found = tokens.peek().to_string();
            return tokens.refuse(format!("`{found}` is not understood here; there are exists, ~exists and forall"));
        };
        let formula = self.any_of(tokens, 0)?;
        self.program.condition = Some(Condition { quantifier, formula });
        if !tokens.at_end() {
            let found = tokens.peek().to_string();
            return tokens.refuse(format!("`{found}` comes after the end of the condition"));
        }
        Ok(())
    }

    fn any_of(&mut self, tokens: &mut Tokens, depth: usize) -> Result<Formula, Refused> {
        let mut parts = vec![self.all_of(tokens, depth)?];
        while tokens.take("\\/") {
            parts.push(self.all_of(tokens, depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Formula::Any(parts) })
    }

    fn all_of(&mut self, tokens: &mut Tokens, depth: usize) -> Result<Formula, Refused> {
        let mut parts = vec![self.part(tokens, depth)?];
        while tokens.take("/\\") {
            parts.push(self.part(tokens, depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Formula::All(parts) })
    }

    fn part(&mut self, tokens: &mut Tokens, depth: usize) -> Result<Formula, Refused> {
        if depth > 50 {
            return tokens.refuse("the condition has more than 50 brackets inside each other");
        }
        if tokens.take("~") || tokens.take("not") {
            return Ok(Formula::Not(Box::new(self.part(tokens, depth + 1)?)));
        }
        if tokens.take("true") {
            return Ok(Formula::True);
        }
        if tokens.take("(") {
            let inner = self.any_of(tokens, depth + 1)?;
            tokens.expect(")")?;
            return Ok(inner);
        }
        let observed = match *tokens.peek() {
            Token::Number(thread) => {
                tokens.next();
                tokens.expect(":")?;
                let line = tokens.line();
                let name = tokens.word("a register")?;
                self.final_register(thread as usize, &name, line)?
            }
            _ => Observed::Location(self.location(tokens)?),
        };
        if !tokens.take("==") {
            tokens.expect("=")?;
        }
        let value = tokens.number()?;
        Ok(Formula::Equal(observed, self.program.find_code(value)))
    }

    /// The register that holds the final value of `name`.
    fn final_register(&mut self, thread: usize, name: &str, line: usize) -> Result<Observed, Refused> {
        if thread >= self.program.threads.len() {
            return refused(line, format!("the condition names thread {thread}, which the test does not have"));
        }
        Ok(Observed::Register(match self.value_of(thread, name) {
            Some(Operand::Register(register)) => register,
            // It holds a constant, which is the same as a register without a load.
            constant => {
                let initial = match constant {
                    Some(Operand::Constant(code)) => code,
                    _ => 0,
                };
                let register = self.program.register(thread, name);
                self.program.registers[usize::from(register)].initial = initial;
                self.bound.insert((thread, name.to_string()), Operand::Register(register));
                register
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(text: &str) -> Program {
        parse("test.litmus", text).unwrap_or_else(|sentence| panic!("{sentence}"))
    }

    #[test]
    fn an_x86_table_is_read_by_columns() {
        let text = "X86 SB+one\n\"a comment\"\nPrefetch=0:x=F\n{ x=0; 0:EBX=3; }\n P0 | P1 ;\n \
                    MOV [x],$1 | MOV [y],EAX ;\n MFENCE | XCHG [x],EAX ;\n MOV EAX,[y] | ;\n MOV [z],EBX | ;\n\
                    locations [x; y;]\nexists (0:EAX=0 /\\ 1:EAX=0)\n";
        let program = accepted(text);
        assert_eq!(program.threads.iter().map(Vec::len).collect::<Vec<_>>(), [4, 2]);
        assert_eq!(
            program.to_string(),
            "SB+one\n  x = 0\n  y = 0\n  z = 0\n  P0: x = 1; fence; EAX = y; z = 3\n  \
             P1: y = 0; EAX = exchange(x, 0)\n  exists ((0:EAX=0 /\\ 1:EAX=0))\n"
        );
    }

    #[test]
    fn a_table_of_an_assembler_is_read_as_that_of_the_manuals() {
        let text = "X86_64 SB\n# as a compiler writes it\n{ x=0; y=0; 0:rbx=3; }\n P0 | P1 ;\n \
                    movq $1,(x) | movl $1,(y) ;\n mfence | lock xchg %eax,(x) ;\n movl (y),%eax | ;\n\
                    # the lower half\n movl %ebx,(z) | ;\nexists (0:rax=0 /\\ 1:rax=0)\n";
        assert_eq!(
            accepted(text).to_string(),
            "SB\n  x = 0\n  y = 0\n  z = 0\n  P0: x = 1; fence; rax = y; z = 3\n  \
             P1: y = 1; rax = exchange(x, 0)\n  exists ((0:rax=0 /\\ 1:rax=0))\n"
        );
    }

    #[test]
    fn c_of_linux_and_of_the_standard_is_read() {
        let text = "C MP (* what (* it *) is *)\n{ int z = 7; }\nP0(int *x, atomic_int *y) {\n // first\n \
                    WRITE_ONCE(*x, 1); smp_wmb();\n atomic_store_explicit(y, 1, memory_order_release);\n \
                    atomic_store(z, 2);\n}\n\nP1(int *x, int *y)\n{\n int r0; int r1;\n r0 = smp_load_acquire(y); \
                    /* then */\n r1 = *x;\n int r2 = atomic_exchange_explicit(z, r0, memory_order_relaxed);\n}\n\
                    ~exists (1:r0=1 /\\ (1:r1=0 \\/ not (z=5)))";
        let program = accepted(text);
        assert_eq!(
            program.to_string(),
            "MP\n  z = 7\n  x = 0\n  y = 0\n  P0: x = 1; y = 1; z = 2; fence\n  \
             P1: r0 = y; r1 = x; r2 = exchange(z, r0)\n  \
             ~exists ((1:r0=1 /\\ (1:r1=0 \\/ ~(z=never-written))))\n"
        );
    }

    #[test]
    fn a_register_that_is_loaded_twice_is_asked_for_as_it_was_last() {
        let text = "X86 twice\n{}\nP0 ;\nMOV EAX,[x] ;\nMOV EAX,[y] ;\nMOV [z],EAX ;\nforall (0:EAX=0)";
        let program = accepted(text);
        assert_eq!(program.registers.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), ["EAX@1", "EAX"]);
        let asked = program.condition.as_ref().map(|condition| condition.formula.clone());
        assert_eq!(asked, Some(Formula::Equal(Observed::Register(1), Some(0))));
        assert!(program.to_string().contains("z = EAX"));
    }

    #[test]
    fn what_is_not_understood_is_refused_with_file_and_line() {
        for (text, sentence) in [
            ("", "t:1: the file is empty; it should begin with `X86`, `X86_64` or `C`"),
            ("AArch64 MP\n", "t:1: tests for `AArch64` are not understood; there are `X86`, `X86_64` and `C`"),
            ("X86 a\n{}\n#define A 1\nP0 ;\n", "t:3: `#define` is not understood; write what it stands for"),
            ("X86 a\n{ x=0; \n", "t:2: the file ends where a location is expected"),
            (
                "X86 a\n{}\nP0 ;\nINC [x] ;\n",
                "t:4: `INC` is not understood; there are MOV, XCHG, MFENCE, SFENCE and LFENCE",
            ),
            ("X86 a\n{}\nP0 | P1 ;\nMFENCE ;\n", "t:4: a row of 1 threads in a test of 2"),
            (
                "C a\n{}\nP0(int *x) {\n  int r0 = *x;\n  if (r0) *x = 1;\n}\n",
                "t:5: `if` is not understood; a test is a straight line of loads, stores, fences and exchanges",
            ),
            ("C a\n{}\nP0(int *x) {\n  *x = r0 + 1;\n}\n", "t:4: `r0` was not set before it is stored"),
            (
                "C a\n{}\nP0(int *x) {\n  *x = 1;\n}\nexists (3:r0=1)",
                "t:6: the condition names thread 3, which the test does not have",
            ),
            (
                "C a\n{}\nP0(int *x) {\n  *x = 1;\n}\nfilter (x=1)",
                "t:6: `filter` is not understood here; there are exists, ~exists and forall",
            ),
        ] {
            assert_eq!(parse("t", text), Err(sentence.to_string()), "{text}");
        }
    }

    #[test]
    fn no_beginning_of_a_test_and_no_changed_letter_stops_the_reader() {
        let text = "C a\n{ x=1; }\nP0(int *x) { int r0 = READ_ONCE(*x); WRITE_ONCE(*x, r0); }\nexists (0:r0=1 /\\ x=1)";
        for end in 0..text.len() {
            let _ = parse("t", &text[..end]);
            for letter in ["(", ")", "{", "}", ";", "*", "0", "\u{e9}", "\\"] {
                let mut changed = text.to_string();
                changed.replace_range(end..=end, letter);
                let _ = parse("t", &changed);
            }
        }
        assert!(parse("t", text).is_ok());
    }
}
