//! The command of a request for remote memory: one byte of its address, whose high nibble is the class.
//!
//! A route or an access list names a class with a prefix of 52 bits and a command with one of 56
//! ([`super::address::Prefix`]). The classes 8 to 15 are never commands: at that place an answer's address has the
//! incarnation of the client that it goes to ([`super::address::Incarnation`]). So no rule about a class ever matches an
//! answer.
//!
//! Decoding a byte is total: a byte that is no command gives `None` and must never cause a panic.

use core::fmt;

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Command {
    /// The bytes at the address. It needs no header: the address says everything.
    Read = 0x01,
    /// Writes bytes without regard to other writers (a blind write).
    Write = 0x10,
    /// Adds to 8 bytes, and answers their previous value.
    FetchAdd = 0x11,
    /// Replaces 8 bytes if they are as expected, and answers their previous value.
    CompareSwap = 0x12,
    /// Writes bytes of a page back under a lease.
    Commit = 0x13,
    /// Makes an object of zeros.
    Create = 0x20,
    /// Makes an object of the bytes that come along.
    CreateWrite = 0x21,
    /// Ends an object; its pointers are stale from then on.
    Delete = 0x22,
    /// Asks for size and generation of an object.
    Inquire = 0x23,
    /// Asks for a lease of a page; the answer has its bytes, the epoch and the term.
    Update = 0x30,
    /// Asks for another term.
    Renew = 0x31,
    /// Gives a lease back without a write.
    Release = 0x32,
    /// A client opens its session.
    Hello = 0x40,
    /// Asks whether a server is there, and for its free memory.
    Ping = 0x41,
    /// A home asks the owner of a page to write it back.
    Recall = 0x42,
    /// A home ends a reader's copy of a page.
    Invalidate = 0x43,
    /// A reader asks for a copy of a page and the right to answer for it during a term.
    Clone = 0x44,
    /// A reader says that it no longer uses a copy.
    Invalidated = 0x45,
    /// A home gives a backup a page to keep.
    Store = 0x46,
    /// The backup has it.
    Stored = 0x47,
    /// A home sends the next home all leases and copies.
    Leases = 0x48,
    /// The next home has them.
    Taken = 0x49,
    /// A server reports its state to the controller.
    Report = 0x4a,
    /// The controller names the home.
    Placed = 0x4b,
    /// A host asks the controller which host is home.
    Locate = 0x4c,
    /// A controller wants a server to answer READs of a page from a copy.
    Follow = 0x4d,
    /// The server answers whether it has one, and how often it answered.
    Followed = 0x4e,
}

/// The high nibble of a command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Class {
    /// Changes nothing.
    Reading = 0,
    /// Changes bytes.
    Changing = 1,
    /// About objects.
    Objects = 2,
    /// About leases.
    Leases = 3,
    /// Between servers, and with the controller.
    Servers = 4,
}

impl Command {
    /// Every command, in the order of their bytes.
    pub const ALL: [Command; 27] = [
        Command::Read,
        Command::Write,
        Command::FetchAdd,
        Command::CompareSwap,
        Command::Commit,
        Command::Create,
        Command::CreateWrite,
        Command::Delete,
        Command::Inquire,
        Command::Update,
        Command::Renew,
        Command::Release,
        Command::Hello,
        Command::Ping,
        Command::Recall,
        Command::Invalidate,
        Command::Clone,
        Command::Invalidated,
        Command::Store,
        Command::Stored,
        Command::Leases,
        Command::Taken,
        Command::Report,
        Command::Placed,
        Command::Locate,
        Command::Follow,
        Command::Followed,
    ];

    /// The byte of the address.
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// The command of this byte, if there is one.
    pub fn from_byte(byte: u8) -> Option<Command> {
        Command::ALL.into_iter().find(|command| command.byte() == byte)
    }

    /// Its class.
    pub const fn class(self) -> Class {
        match self.byte() >> 4 {
            0 => Class::Reading,
            1 => Class::Changing,
            2 => Class::Objects,
            3 => Class::Leases,
            _ => Class::Servers,
        }
    }

    /// Whether it is carried out once for each request id, however often its datagram arrives, without being asked to: a
    /// repetition would have another effect.
    pub const fn is_once(self) -> bool {
        matches!(
            self,
            Command::Create | Command::CreateWrite | Command::Delete | Command::FetchAdd | Command::CompareSwap
        )
    }

    /// Whether its bytes may come in several datagrams.
    pub const fn may_be_several(self) -> bool {
        matches!(self, Command::Write | Command::Commit | Command::CreateWrite)
    }

    /// Whether a home sends it to a client unasked, from the address of the page ([`super::datagram::Notice`]); it is never
    /// a request.
    pub const fn is_notice(self) -> bool {
        matches!(self, Command::Recall | Command::Invalidate)
    }

    /// Whether it is a message between servers and controllers ([`super::datagram::ControlMessage`]), which has no
    /// answer.
    pub const fn is_control(self) -> bool {
        matches!(
            self,
            Command::Store
                | Command::Stored
                | Command::Leases
                | Command::Taken
                | Command::Report
                | Command::Placed
                | Command::Locate
                | Command::Follow
                | Command::Followed
        )
    }

    /// Its name, as in the documentation.
    pub const fn name(self) -> &'static str {
        match self {
            Command::Read => "READ",
            Command::Write => "WRITE",
            Command::FetchAdd => "FETCH_ADD",
            Command::CompareSwap => "COMPARE_SWAP",
            Command::Commit => "COMMIT",
            Command::Create => "CREATE",
            Command::CreateWrite => "CREATE_WRITE",
            Command::Delete => "DELETE",
            Command::Inquire => "INQUIRE",
            Command::Update => "UPDATE",
            Command::Renew => "RENEW",
            Command::Release => "RELEASE",
            Command::Hello => "HELLO",
            Command::Ping => "PING",
            Command::Recall => "RECALL",
            Command::Invalidate => "INVALIDATE",
            Command::Clone => "CLONE",
            Command::Invalidated => "INVALIDATED",
            Command::Store => "STORE",
            Command::Stored => "STORED",
            Command::Leases => "LEASES",
            Command::Taken => "TAKEN",
            Command::Report => "REPORT",
            Command::Placed => "PLACED",
            Command::Locate => "LOCATE",
            Command::Follow => "FOLLOW",
            Command::Followed => "FOLLOWED",
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Class {
    /// Every class.
    pub const ALL: [Class; 5] = [Class::Reading, Class::Changing, Class::Objects, Class::Leases, Class::Servers];

    /// The high nibble of its commands, as a number below 16.
    pub const fn nibble(self) -> u8 {
        self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn every_byte_is_one_command_or_none() {
        let known: BTreeSet<u8> = Command::ALL.map(Command::byte).into();
        assert_eq!(known.len(), Command::ALL.len(), "no byte twice");
        for byte in 0..=u8::MAX {
            assert_eq!(Command::from_byte(byte).map(Command::byte), known.contains(&byte).then_some(byte));
        }
        assert_eq!(Command::from_byte(0), None, "a pointer that is kept has no command");
    }

    #[test]
    fn the_class_is_the_high_nibble_and_never_that_of_an_answer() {
        for command in Command::ALL {
            assert_eq!(command.class().nibble(), command.byte() >> 4, "{command}");
            assert!(command.byte() < 0x80, "{command}");
        }
        assert_eq!(Class::ALL.map(Class::nibble), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn names_are_different_and_known() {
        let names: BTreeSet<&str> = Command::ALL.map(Command::name).into();
        assert_eq!(names.len(), Command::ALL.len());
        assert!(names.contains("COMPARE_SWAP"));
    }
}
