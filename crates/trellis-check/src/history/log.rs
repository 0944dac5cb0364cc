//! Histories as text, one operation per line.
//!
//! ```text
//! trellis-history 1
//! thread 0
//! r 5 0
//! x 5 fffffffe00000001 0
//! w 6 fffffffd00000002 17
//! b 0
//! ```
//!
//! `thread N` begins a thread of node N. `r cell value` reads, `x cell value replaced` exchanges, `w cell value
//! version` writes, `b number` is a barrier. Cells, versions, nodes and barriers are decimal, values hexadecimal. Each
//! node writes its own file; all files together are a history.
//!
//! Promises: a history is read back as it was written; anything else is refused with file and line. It must never keep
//! more than one line of text.

use super::{History, Operation, Thread};
use std::io::{self, BufRead, Write};

/// The first line of a log.
pub const HEADER: &str = "trellis-history 1";
/// The maximum length of a line in bytes.
const LINE_MAX: u64 = 200;

/// Writes the threads of one node.
pub fn write(to: &mut dyn Write, threads: &[Thread]) -> io::Result<()> {
    writeln!(to, "{HEADER}")?;
    for thread in threads {
        writeln!(to, "thread {}", thread.node)?;
        for operation in &thread.operations {
            match *operation {
                Operation::Read { cell, value } => writeln!(to, "r {cell} {value:x}")?,
                Operation::Exchange { cell, value, replaced } => writeln!(to, "x {cell} {value:x} {replaced:x}")?,
                Operation::Write { cell, value, version } => writeln!(to, "w {cell} {value:x} {version}")?,
                Operation::Barrier { number } => writeln!(to, "b {number}")?,
            }
        }
    }
    to.flush()
}

/// Adds the threads of a log to `history`. Errors name `file` and the line.
pub fn read(file: &str, from: &mut dyn BufRead, history: &mut History) -> Result<(), String> {
    let mut line = String::new();
    let mut threads: Vec<Thread> = Vec::new();
    for number in 1.. {
        line.clear();
        let refused = |what: &str| Err(format!("{file}:{number}: {what}"));
        let mut limited = io::Read::take(&mut *from, LINE_MAX);
        if let Err(error) = limited.read_line(&mut line) {
            return refused(&format!("the history cannot be read: {error}"));
        }
        let text = line.trim_end();
        if line.is_empty() {
            break;
        }
        if number == 1 {
            if text != HEADER {
                return refused(&format!("a history begins with `{HEADER}`"));
            }
            continue;
        }
        match (parsed(text), threads.last_mut()) {
            (Some(Line::Thread(node)), _) => threads.push(Thread { node, operations: Vec::new() }),
            (Some(Line::Operation(operation)), Some(thread)) => thread.operations.push(operation),
            (Some(Line::Operation(_)), None) => return refused("an operation stands before the first `thread`"),
            (None, _) => return refused(&format!("`{text}` is not a line of a history")),
        }
    }
    if line.is_empty() && threads.is_empty() {
        return Err(format!("{file}: the history has no thread"));
    }
    history.threads.append(&mut threads);
    Ok(())
}

enum Line {
    Thread(u16),
    Operation(Operation),
}

fn parsed(text: &str) -> Option<Line> {
    let mut words = text.split(' ');
    let kind = words.next()?;
    let mut decimal = || words.next()?.parse::<u64>().ok();
    let first = decimal()?;
    let small = u32::try_from(first).ok();
    let mut value = || u64::from_str_radix(words.next()?, 16).ok();
    let line = match kind {
        "thread" => Line::Thread(u16::try_from(first).ok()?),
        "b" => Line::Operation(Operation::Barrier { number: small? }),
        "r" => Line::Operation(Operation::Read { cell: small?, value: value()? }),
        "x" => Line::Operation(Operation::Exchange { cell: small?, value: value()?, replaced: value()? }),
        "w" => {
            let value = value()?;
            Line::Operation(Operation::Write { cell: small?, value, version: words.next()?.parse().ok()? })
        }
        _ => return None,
    };
    words.next().is_none().then_some(line)
}
