//! Encodes calls as arguments of the script `apply.lua`, which carries out a whole call inside Redis.

use super::connection::Commands;
use crate::key::{Key, Kind};
use crate::operation::{Change, Expect, Guard, Operation};
use trellis_base::fnv1a;

/// The common part of both forms of the script.
const BODY: &str = include_str!("apply.lua");

/// How the server runs the script.
pub(super) enum Runner {
    /// As a library that was loaded once (Redis 7). A call then does not have to define its functions first, which costs
    /// more than most calls.
    Library(Library),
    /// As a script that is called by its hash.
    Script(String),
}

/// The functions of a library.
pub(super) struct Library {
    /// For calls that change something.
    apply: String,
    /// For calls that only read; allowed when the server is full.
    read: String,
    /// For calls that only delete; allowed when the server is full.
    free: String,
}

/// The script in the form that `EVAL` accepts.
pub(super) fn text() -> String {
    format!("{BODY}return main(KEYS, ARGV)")
}

/// The library in the form that `FUNCTION LOAD` accepts, and its functions. Their names contain a hash of the library, so
/// that clients of different versions can use one server.
pub(super) fn library() -> (String, Library) {
    let hash = fnv1a(BODY);
    let name = |function: &str| format!("trellis_{hash:016x}_{function}");
    let library = Library { apply: name("apply"), read: name("read"), free: name("free") };
    let register = |function: &str, flags: &str| {
        format!("redis.register_function{{function_name='{function}', callback=main, flags={{{flags}}}}}\n")
    };
    let text = format!(
        "#!lua name=trellis_{hash:016x}\n{BODY}{}{}{}",
        register(&library.apply, ""),
        register(&library.read, "'no-writes'"),
        register(&library.free, "'allow-oom'")
    );
    (text, library)
}

impl Runner {
    /// The command that runs a call.
    pub(super) fn command(&self, kind: CallKind) -> [&[u8]; 2] {
        match self {
            Runner::Script(hash) => [b"EVALSHA", hash.as_bytes()],
            Runner::Library(library) => {
                let function = match kind {
                    CallKind::Changes => &library.apply,
                    CallKind::Reads => &library.read,
                    CallKind::Frees => &library.free,
                };
                [b"FCALL", function.as_bytes()]
            }
        }
    }
}

/// The effect of a call on a server that is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// It may need space.
    Changes,
    /// It changes nothing.
    Reads,
    /// It frees space.
    Frees,
}

impl CallKind {
    pub(super) fn of(operations: &[Operation]) -> CallKind {
        let frees = |operation: &Operation| {
            operation.only_reads()
                || matches!(operation, Operation::Change { change: Change::Delete, .. } | Operation::Trim { .. })
        };
        if operations.iter().all(Operation::only_reads) {
            CallKind::Reads
        } else if operations.iter().all(frees) {
            CallKind::Frees
        } else {
            CallKind::Changes
        }
    }
}

/// The prefix of every key.
pub(super) const PREFIX: &[u8] = b"trellis:";

/// The name of a key in Redis.
pub(super) fn name(key: &Key) -> Vec<u8> {
    [PREFIX, &key.encode()].concat()
}

/// Keys and arguments of a call, except for its first three arguments.
pub(super) struct Arguments {
    keys: Vec<Vec<u8>>,
    arguments: Vec<Vec<u8>>,
}

impl Arguments {
    pub(super) fn new(operations: &[Operation], guard: Option<&Guard>) -> Arguments {
        let mut all = Arguments { keys: Vec::with_capacity(operations.len() + 1), arguments: Vec::new() };
        match guard {
            None => {
                all.keys.push(Vec::new());
                all.text("");
            }
            Some(guard) => {
                all.keys.push(name(&guard.key));
                all.expect(&guard.expect);
            }
        }
        // The script continues after the guard's arguments; a call without a guard has one empty argument there.
        for operation in operations {
            all.keys.push(name(operation.key()));
            all.operation(operation);
        }
        all
    }

    /// Writes the command that calls the script: `FCALL`, `EVALSHA` or `EVAL`, and what it runs.
    pub(super) fn write(&self, commands: &mut Commands, how: [&[u8]; 2], first: [&[u8]; 3]) {
        commands.begin(3 + self.keys.len() + 3 + self.arguments.len());
        commands.parts(how);
        commands.part(self.keys.len().to_string().as_bytes());
        commands.parts(&self.keys).parts(first).parts(&self.arguments);
    }

    fn text(&mut self, text: &str) {
        self.arguments.push(text.as_bytes().to_vec());
    }

    fn number(&mut self, number: impl ToString) {
        self.arguments.push(number.to_string().into_bytes());
    }

    /// The two halves of a number: numbers in the script have 53 bits.
    fn halves(&mut self, number: i64, high_first: bool) {
        let low = number as u32;
        if high_first {
            self.number(number >> 32);
            self.number(low);
        } else {
            self.number(low);
            self.number((number >> 32) as u32);
        }
    }

    fn expect(&mut self, expect: &Expect) {
        match expect {
            Expect::Absent => self.text("A"),
            Expect::Value(bytes) => {
                self.text("V");
                self.arguments.push(bytes.clone());
            }
            Expect::Range { offset, bytes } => {
                self.text("R");
                self.number(offset);
                self.arguments.push(bytes.clone());
            }
        }
    }

    fn change(&mut self, key: &Key, change: &Change) {
        match change {
            Change::Put(bytes) => {
                self.text("P");
                self.arguments.push(bytes.clone());
            }
            Change::PutRange { offset, bytes } => {
                self.text("p");
                self.number(offset);
                self.arguments.push(bytes.clone());
            }
            Change::Delete => self.text(if key.kind() == Kind::Log { "X" } else { "D" }),
        }
    }

    fn operation(&mut self, operation: &Operation) {
        match operation {
            Operation::Get { range: None, .. } => self.text("G"),
            Operation::Get { range: Some((offset, length)), .. } => {
                self.text("g");
                self.number(offset);
                self.number(length);
            }
            Operation::Change { key, change } => self.change(key, change),
            Operation::CompareAndSwap { key, expect, change } => {
                self.text("C");
                self.expect(expect);
                self.change(key, change);
            }
            Operation::Add { offset, width, delta, bounds, .. } => {
                self.text("N");
                self.number(offset);
                self.number(width);
                self.halves(*delta, false);
                match bounds {
                    None => self.text("0"),
                    Some((least, most)) => {
                        self.text("1");
                        self.halves(*least, true);
                        self.halves(*most, true);
                    }
                }
            }
            Operation::Append { bytes, .. } => {
                self.text("A");
                self.arguments.push(bytes.clone());
            }
            Operation::Entries { after, count, .. } => {
                self.text("E");
                self.number(after);
                self.number(count);
            }
            Operation::Trim { upto, .. } => {
                self.text("T");
                self.number(upto);
            }
        }
    }
}
