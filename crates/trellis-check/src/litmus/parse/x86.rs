//! The parser for threads that are columns of X86 instructions.
//!
//! Promises: a row whose number of columns differs from the number of threads is refused.

use super::super::program::{Instruction, Operand};
use super::tokens::{Token, Tokens};
use super::{Reader, Refused, refused};

/// An operand of an instruction.
enum Place {
    Memory(u8),
    Register(String),
    Constant(u8),
}

/// Parses the threads. `is_assembler` selects assembler syntax: names in small letters, the target last, locations in
/// round brackets.
pub(super) fn threads(reader: &mut Reader, tokens: &mut Tokens, is_assembler: bool) -> Result<(), Refused> {
    let (line, header) = row(tokens)?;
    for (index, cell) in header.iter().enumerate() {
        if cell[..] != [Token::Word(format!("P{index}"))] {
            return refused(
                line,
                format!("the first row should name the threads; column {} is not P{index}", index + 1),
            );
        }
    }
    reader.program.threads = vec![Vec::new(); header.len()];
    while !is_end(tokens) {
        let (line, cells) = row(tokens)?;
        if cells.len() != header.len() {
            return refused(line, format!("a row of {} threads in a test of {}", cells.len(), header.len()));
        }
        for (thread, cell) in cells.into_iter().enumerate() {
            if !cell.is_empty() {
                let cell = if is_assembler { turned(cell) } else { cell };
                instruction(reader, thread, &cell, line)?;
            }
        }
    }
    Ok(())
}

fn is_end(tokens: &Tokens) -> bool {
    match tokens.peek() {
        Token::Word(word) => ["exists", "forall", "locations", "filter"].contains(&word.as_str()),
        Token::Mark(mark) => *mark == "~",
        Token::Number(_) => false,
        Token::End => true,
    }
}

/// The cells of the next row, and its line.
fn row(tokens: &mut Tokens) -> Result<(usize, Vec<Vec<Token>>), Refused> {
    let line = tokens.line();
    let mut cells = vec![Vec::new()];
    loop {
        match tokens.next() {
            Token::Mark(";") => return Ok((line, cells)),
            Token::Mark("|") => cells.push(Vec::new()),
            Token::End => return refused(line, "a row of instructions has no `;` at its end"),
            token => cells.last_mut().expect("a row has a cell").push(token),
        }
    }
}

/// Converts assembler syntax to the syntax of the processor's manuals.
fn turned(mut cell: Vec<Token>) -> Vec<Token> {
    for token in &mut cell {
        match token {
            Token::Mark("(") => *token = Token::Mark("["),
            Token::Mark(")") => *token = Token::Mark("]"),
            _ => {}
        }
    }
    let is_name = |token: &Token| matches!(token, Token::Word(_));
    let names = if cell.len() > 1 && matches!(&cell[0], Token::Word(word) if word == "lock") { 2 } else { 1 };
    for token in cell.iter_mut().take(names).filter(|token| is_name(token)) {
        *token = Token::Word(token.to_string().to_ascii_uppercase());
    }
    let operands = cell.split_off(names.min(cell.len()));
    let halves: Vec<&[Token]> = operands.split(|token| token == &Token::Mark(",")).collect();
    cell.extend(halves.into_iter().rev().collect::<Vec<_>>().join(&Token::Mark(",")));
    cell
}

fn instruction(reader: &mut Reader, thread: usize, cell: &[Token], line: usize) -> Result<(), Refused> {
    let Token::Word(name) = &cell[0] else {
        return refused(line, format!("`{}` stands where an instruction is expected", cell[0]));
    };
    let operands = &cell[1..];
    match (name.as_str(), operands) {
        ("MFENCE", []) => reader.push(thread, Instruction::Fence),
        // Loads are already ordered with loads, and stores with stores.
        ("SFENCE" | "LFENCE" | "NOP", []) => {}
        ("LOCK", [Token::Word(locked), ..]) if locked.starts_with("XCHG") => {
            return instruction(reader, thread, operands, line);
        }
        ("MOV" | "MOVL" | "MOVQ", _) => {
            let (to, from) = two_places(reader, operands, line)?;
            return moves(reader, thread, to, from, line);
        }
        ("XCHG" | "XCHGL" | "XCHGQ", _) => {
            let (one, other) = two_places(reader, operands, line)?;
            return exchanges(reader, thread, one, other, line);
        }
        (other, _) => {
            let there_are = "there are MOV, XCHG, MFENCE, SFENCE and LFENCE";
            return refused(line, format!("`{other}` is not understood; {there_are}"));
        }
    }
    Ok(())
}

fn two_places(reader: &mut Reader, operands: &[Token], line: usize) -> Result<(Place, Place), Refused> {
    let mut halves = operands.split(|token| token == &Token::Mark(","));
    let (first, second, more) = (halves.next(), halves.next(), halves.next());
    match (first, second, more) {
        (Some(first), Some(second), None) => Ok((place(reader, first, line)?, place(reader, second, line)?)),
        _ => refused(line, "an instruction here has two operands with a comma between them"),
    }
}

fn place(reader: &mut Reader, operand: &[Token], line: usize) -> Result<Place, Refused> {
    match operand {
        [Token::Mark("["), Token::Word(location), Token::Mark("]")] => {
            Ok(Place::Memory(reader.program.location(location)))
        }
        [Token::Mark("$"), Token::Number(value)] | [Token::Number(value)] => {
            Ok(Place::Constant(reader.program.code(*value)))
        }
        [Token::Mark("$"), Token::Mark("-"), Token::Number(value)] => {
            Ok(Place::Constant(reader.program.code(value.wrapping_neg())))
        }
        [Token::Word(register)] => Ok(Place::Register(register.clone())),
        other => {
            let text: Vec<String> = other.iter().map(Token::to_string).collect();
            refused(line, format!("`{}` is no operand; there are [location], $number and registers", text.concat()))
        }
    }
}

/// The value of `register`; zero if it was never set, as in herd.
fn held(reader: &Reader, thread: usize, register: &str) -> Operand {
    reader.value_of(thread, register).unwrap_or(Operand::Constant(0))
}

fn moves(reader: &mut Reader, thread: usize, to: Place, from: Place, line: usize) -> Result<(), Refused> {
    match (to, from) {
        (Place::Memory(location), Place::Constant(code)) => {
            reader.push(thread, Instruction::Store { location, source: Operand::Constant(code) });
        }
        (Place::Memory(location), Place::Register(register)) => {
            let source = held(reader, thread, &register);
            reader.push(thread, Instruction::Store { location, source });
        }
        (Place::Register(name), Place::Memory(location)) => {
            let register = reader.load_into(thread, &name);
            reader.push(thread, Instruction::Load { register, location });
        }
        (Place::Register(name), Place::Constant(code)) => {
            reader.bound.insert((thread, name), Operand::Constant(code));
        }
        (Place::Register(name), Place::Register(from)) => {
            let value = held(reader, thread, &from);
            reader.bound.insert((thread, name), value);
        }
        (Place::Constant(_), _) => return refused(line, "MOV writes into its first operand, which is a number"),
        (Place::Memory(_), Place::Memory(_)) => return refused(line, "MOV has two memory operands; x86 has no such"),
    }
    Ok(())
}

fn exchanges(reader: &mut Reader, thread: usize, one: Place, other: Place, line: usize) -> Result<(), Refused> {
    let (name, location) = match (one, other) {
        (Place::Memory(location), Place::Register(name)) | (Place::Register(name), Place::Memory(location)) => {
            (name, location)
        }
        _ => return refused(line, "XCHG here has one memory operand and one register"),
    };
    let source = held(reader, thread, &name);
    let register = reader.load_into(thread, &name);
    reader.push(thread, Instruction::Exchange { register, location, source });
    Ok(())
}
