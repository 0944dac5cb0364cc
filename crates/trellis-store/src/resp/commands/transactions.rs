//! Transactions: commands that are queued and then carried out without any other command in between.
//!
//! This holds if one thread serves every client and the store is in this process. In all other cases `MULTI` is refused,
//! because its promise would not be kept.

use super::{After, Call, Failure, RequestParts};
use crate::key::Key;
use crate::resp::request::Place;

/// The maximum number of commands of a transaction.
const COMMANDS_MAX: usize = 10_000;
/// The maximum number of bytes of all its commands.
const BYTES_MAX: usize = 64 << 20;

/// A command: its bytes, and the places of its parts.
type QueuedCommand = (Vec<u8>, Vec<Place>);

/// A transaction that a client has begun, and the keys that the client watches.
#[derive(Default)]
pub(super) struct Transaction {
    open: bool,
    /// Whether a command was refused, so that the transaction must not run.
    spoiled: bool,
    commands: Vec<QueuedCommand>,
    bytes: usize,
    watched: Vec<(Key, Option<Vec<u8>>)>,
}

impl Transaction {
    /// Whether a command is queued instead of carried out.
    pub(super) fn keeps(&self, name: &str) -> bool {
        self.open && !matches!(name, "EXEC" | "DISCARD" | "MULTI" | "WATCH" | "QUIT" | "RESET")
    }

    /// Queues a command.
    pub(super) fn keep(&mut self, parts: RequestParts) -> Result<(), Failure> {
        if parts.is(0, "TRELLIS.APPLY") || parts.is(0, "HELLO") {
            self.spoiled = true;
            return Err(Failure::Text("ERR this command cannot be part of a transaction"));
        }
        let end = parts.places.last().map_or(0, |(_, to)| *to);
        if self.commands.len() == COMMANDS_MAX || self.bytes + end > BYTES_MAX {
            self.spoiled = true;
            return Err(Failure::Text("ERR this transaction is too long"));
        }
        self.bytes += end;
        self.commands.push((parts.bytes[..end].to_vec(), parts.places.to_vec()));
        Ok(())
    }

    /// Records that a command was refused.
    pub(super) fn spoil(&mut self) {
        self.spoiled |= self.open;
    }
}

pub(super) fn begin(call: &mut Call) -> Result<(), Failure> {
    if call.session.transaction.open {
        return Err(Failure::Text("ERR MULTI calls can not be nested"));
    }
    if !call.shared.alone {
        return Err(Failure::Sentence(
            "transactions need a store of this process and one thread; send the commands without MULTI".into(),
        ));
    }
    call.session.transaction.open = true;
    call.reply.ok();
    Ok(())
}

pub(super) fn discard(call: &mut Call) -> Result<(), Failure> {
    if !call.session.transaction.open {
        return Err(Failure::Text("ERR DISCARD without MULTI"));
    }
    call.session.transaction = Transaction::default();
    call.reply.ok();
    Ok(())
}

pub(super) fn execute(call: &mut Call) -> Result<(), Failure> {
    let transaction = std::mem::take(&mut call.session.transaction);
    if !transaction.open {
        return Err(Failure::Text("ERR EXEC without MULTI"));
    }
    if transaction.spoiled {
        return Err(Failure::Text("EXECABORT Transaction discarded because of previous errors."));
    }
    for (key, value) in &transaction.watched {
        if call.read(key)? != *value {
            call.reply.null_array();
            return Ok(());
        }
    }
    let mut answers = Vec::new();
    for (bytes, places) in &transaction.commands {
        let parts = RequestParts { bytes, places };
        if let After::Close = super::run(call.shared, call.session, parts, &mut answers) {
            call.after = After::Close;
        }
    }
    call.reply.array(transaction.commands.len());
    call.reply.append(&answers);
    Ok(())
}

pub(super) fn watch(call: &mut Call) -> Result<(), Failure> {
    if call.session.transaction.open {
        return Err(Failure::Text("ERR WATCH inside MULTI is not allowed"));
    }
    if !call.shared.alone {
        return Err(Failure::Sentence("transactions need a store of this process and one thread".into()));
    }
    for name in call.parts.from(1) {
        let key = call.key(name);
        let value = call.read(&key)?;
        call.session.transaction.watched.push((key, value));
    }
    if call.session.transaction.watched.len() > COMMANDS_MAX {
        call.session.transaction.watched.clear();
        return Err(Failure::Text("ERR too many keys are watched; they are no longer"));
    }
    call.reply.ok();
    Ok(())
}

pub(super) fn unwatch(call: &mut Call) -> Result<(), Failure> {
    call.session.transaction.watched.clear();
    call.reply.ok();
    Ok(())
}
