//! The parser for threads that are functions in C, with the atomics of the standard or of Linux.
//!
//! Promises: anything other than a load, store, fence or exchange of a whole location is refused.

use super::super::program::{Instruction, Operand};
use super::tokens::{Token, Tokens};
use super::{Reader, Refused};

/// The effect of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Load,
    /// A store, followed by a fence if `fence` is set.
    Store {
        fenced: bool,
    },
    Exchange,
    Fence,
    /// No effect on this machine.
    Nothing,
}

/// Words of types.
const TYPES: [&str; 16] = [
    "int",
    "unsigned",
    "signed",
    "long",
    "short",
    "char",
    "volatile",
    "const",
    "atomic_int",
    "atomic_long",
    "atomic_t",
    "intptr_t",
    "uintptr_t",
    "uint64_t",
    "int64_t",
    "u64",
];

pub(super) fn threads(reader: &mut Reader, tokens: &mut Tokens) -> Result<(), Refused> {
    while let Token::Word(word) = tokens.peek() {
        let index = reader.program.threads.len();
        if *word != format!("P{index}") {
            break;
        }
        tokens.next();
        reader.program.threads.push(Vec::new());
        parameters(reader, tokens)?;
        tokens.expect("{")?;
        while !tokens.take("}") {
            if tokens.at_end() {
                return tokens.refuse(format!("P{index} has no `}}` at its end"));
            }
            if !tokens.take(";") {
                statement(reader, tokens, index)?;
            }
        }
    }
    Ok(())
}

/// `(int *x, int *y)`: each parameter is a location.
fn parameters(reader: &mut Reader, tokens: &mut Tokens) -> Result<(), Refused> {
    tokens.expect("(")?;
    while !tokens.take(")") {
        let mut is_pointer = false;
        loop {
            match tokens.peek().clone() {
                Token::Word(word) if TYPES.contains(&word.as_str()) => tokens.next(),
                Token::Mark("*") => {
                    is_pointer = true;
                    tokens.next()
                }
                _ => break,
            };
        }
        let name = tokens.word("a parameter")?;
        if !is_pointer {
            return tokens
                .refuse(format!("the parameter `{name}` is not a pointer; threads share locations by pointers"));
        }
        reader.program.location(&name);
        if tokens.peek() != &Token::Mark(")") {
            tokens.expect(",")?;
        }
    }
    Ok(())
}

fn statement(reader: &mut Reader, tokens: &mut Tokens, thread: usize) -> Result<(), Refused> {
    let mut has_type = false;
    while matches!(tokens.peek(), Token::Word(word) if TYPES.contains(&word.as_str())) {
        tokens.next();
        has_type = true;
    }
    if !has_type && tokens.take("*") {
        let location = location(reader, tokens)?;
        tokens.expect("=")?;
        let source = value(reader, tokens, thread)?;
        reader.push(thread, Instruction::Store { location, source });
        return tokens.expect(";");
    }
    let line = tokens.line();
    let name = tokens.word("a statement")?;
    if let Some(call) = call_named(&name).filter(|_| tokens.peek() == &Token::Mark("(")) {
        let unnamed = format!("r@{}", reader.program.registers.len());
        run_call(reader, tokens, thread, call, &name, &unnamed)?;
        return tokens.expect(";");
    }
    match tokens.peek() {
        Token::Mark("=") => {
            tokens.next();
            assignment(reader, tokens, thread, &name)?;
        }
        // A declaration, possibly of several variables.
        Token::Mark("," | ";") if has_type => {
            while tokens.take(",") {
                tokens.word("a register")?;
            }
        }
        _ => {
            let there_are = "a test is a straight line of loads, stores, fences and exchanges";
            return super::refused(line, format!("`{name}` is not understood; {there_are}"));
        }
    }
    tokens.expect(";")
}

fn assignment(reader: &mut Reader, tokens: &mut Tokens, thread: usize, target: &str) -> Result<(), Refused> {
    if tokens.take("*") {
        let location = location(reader, tokens)?;
        let register = reader.load_into(thread, target);
        reader.push(thread, Instruction::Load { register, location });
        return Ok(());
    }
    if let (Token::Word(name), Token::Mark("(")) = (tokens.peek().clone(), tokens.peek_second().clone()) {
        let Some(call) = call_named(&name) else {
            let there_are = "loads and exchanges are written READ_ONCE, atomic_load, atomic_exchange, xchg and so on";
            return tokens.refuse(format!("`{name}` is not understood; {there_are}"));
        };
        if !matches!(call, Call::Load | Call::Exchange) {
            return tokens.refuse(format!("`{name}` gives no value"));
        }
        tokens.next();
        return run_call(reader, tokens, thread, call, &name, target);
    }
    let value = value(reader, tokens, thread)?;
    reader.bound.insert((thread, target.to_string()), value);
    Ok(())
}

fn call_named(name: &str) -> Option<Call> {
    Some(match name {
        "READ_ONCE" | "smp_load_acquire" | "atomic_load" | "atomic_load_explicit" | "atomic_read" => Call::Load,
        "WRITE_ONCE" | "smp_store_release" | "atomic_store_explicit" | "atomic_set" => Call::Store { fenced: false },
        "atomic_store" | "smp_store_mb" => Call::Store { fenced: true },
        "atomic_exchange"
        | "atomic_exchange_explicit"
        | "xchg"
        | "xchg_relaxed"
        | "xchg_acquire"
        | "xchg_release"
        | "atomic_xchg" => Call::Exchange,
        "smp_mb" | "atomic_thread_fence" => Call::Fence,
        "smp_rmb" | "smp_wmb" | "barrier" => Call::Nothing,
        _ => return None,
    })
}

/// Reads `(...)` and carries out the call.
fn run_call(
    reader: &mut Reader,
    tokens: &mut Tokens,
    thread: usize,
    call: Call,
    name: &str,
    target: &str,
) -> Result<(), Refused> {
    tokens.expect("(")?;
    match call {
        Call::Load => {
            let location = location(reader, tokens)?;
            order(tokens)?;
            let register = reader.load_into(thread, target);
            reader.push(thread, Instruction::Load { register, location });
        }
        Call::Store { fenced } => {
            let location = location(reader, tokens)?;
            tokens.expect(",")?;
            let source = value(reader, tokens, thread)?;
            let order = order(tokens)?;
            reader.push(thread, Instruction::Store { location, source });
            if fenced || order.as_deref() == Some("memory_order_seq_cst") {
                reader.push(thread, Instruction::Fence);
            }
        }
        Call::Exchange => {
            let location = location(reader, tokens)?;
            tokens.expect(",")?;
            let source = value(reader, tokens, thread)?;
            order(tokens)?;
            let register = reader.load_into(thread, target);
            reader.push(thread, Instruction::Exchange { register, location, source });
        }
        Call::Fence => {
            let is_full = match tokens.peek().clone() {
                Token::Word(order) => {
                    tokens.next();
                    order == "memory_order_seq_cst"
                }
                _ if name == "smp_mb" => true,
                _ => return tokens.refuse(format!("`{name}` needs an order, for example memory_order_seq_cst")),
            };
            if is_full {
                reader.push(thread, Instruction::Fence);
            }
        }
        Call::Nothing => {}
    }
    tokens.expect(")")
}

/// `x`, `*x` or `&x`.
fn location(reader: &mut Reader, tokens: &mut Tokens) -> Result<u8, Refused> {
    if !tokens.take("*") {
        tokens.take("&");
    }
    let name = tokens.word("a location")?;
    Ok(reader.program.location(&name))
}

/// `, memory_order_…`, if it is there.
fn order(tokens: &mut Tokens) -> Result<Option<String>, Refused> {
    if !tokens.take(",") {
        return Ok(None);
    }
    let order = tokens.word("a memory order")?;
    if !order.starts_with("memory_order_") {
        return tokens.refuse(format!("`{order}` stands where a memory order is expected"));
    }
    Ok(Some(order))
}

/// A number, or a register that was set.
fn value(reader: &mut Reader, tokens: &mut Tokens, thread: usize) -> Result<Operand, Refused> {
    if let Token::Word(name) = tokens.peek().clone() {
        let Some(value) = reader.value_of(thread, &name) else {
            return tokens.refuse(format!("`{name}` was not set before it is stored"));
        };
        tokens.next();
        return Ok(value);
    }
    let number = tokens.number()?;
    Ok(Operand::Constant(reader.program.code(number)))
}
