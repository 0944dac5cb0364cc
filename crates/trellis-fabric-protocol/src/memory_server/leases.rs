//! The interface between a memory server and the lease server: leases, copies and replicas of its pages.
//!
//! The server knows objects, and nothing about leases. Before it reads, writes or deletes, it asks [`Leases::admit`] in the
//! same step, so that what is admitted is done before anything else happens. Requests about leases go the other way. The
//! server checks that the object is there, that the access ends inside it and that all bytes came, and hands the request
//! over as [`super::Effect::Lease`]. Then it does what [`super::Input::Decided`] says: it writes, and answers.
//!
//! Contract of the lease server. It decides each [`Lease`] that has bytes exactly once, in the same step or later:
//! until then they keep their slot. Any other one it decides as often as there is something to say: an UPDATE that was
//! refused as BUSY is granted later. A repeated request is another [`Lease`] of the same id. The lease server has the
//! pages guarded whose answers depend on it ([`super::Input::Guard`]) *before* it grants anything, so that no program
//! in the kernel answers without asking. It must never ask the server anything.

use super::sessions::Client;
use crate::Nanoseconds;
use crate::wire::address::Address;
use crate::wire::datagram::{Request, Status};

/// An access of a client to pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// The first page, in the server's memory.
    pub first_page: u64,
    /// How many; never none.
    pub pages: u64,
    /// The kind of access.
    pub kind: AccessKind,
    /// The client.
    pub client: Client,
}

/// Kinds of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// READ.
    Read,
    /// WRITE, FETCH_ADD, COMPARE_SWAP: without a lease.
    Write,
    /// DELETE.
    Delete,
}

/// Whether an access may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Admission {
    /// Now.
    Admitted,
    /// Not now, or not by this client: the answer has this status, and nothing is done.
    Refused(Status),
    /// Not here: the answer has this address, and the epoch that says how new this knowledge is.
    Moved(Address, u64),
}

/// The lease server of a server's pages.
pub trait Leases {
    /// Whether this access may be done now. If admitted, it is done at once.
    fn admit(&mut self, now: Nanoseconds, access: &Access) -> Admission;

    /// The object of these pages was made with bytes: unlike those of other new objects, its pages are not zero.
    fn made_with_bytes(&mut self, first_page: u64, pages: u64);

    /// The object of these pages was deleted: no client has a lease of them any more.
    fn forget(&mut self, first_page: u64, pages: u64);
}

/// There are no leases: everything is admitted. The caller refuses each [`super::Effect::Lease`] as unknown.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLeases;

impl Leases for NoLeases {
    fn admit(&mut self, _: Nanoseconds, _: &Access) -> Admission {
        Admission::Admitted
    }

    fn made_with_bytes(&mut self, _: u64, _: u64) {}

    fn forget(&mut self, _: u64, _: u64) {}
}

/// A request about the lease of a page: UPDATE, RENEW, RELEASE, COMMIT, CLONE. The object is there, and the bytes of a
/// COMMIT are inside its page and staged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// As it came; its epoch is the one that the client named.
    pub request: Request,
    /// Of a COMMIT: where its bytes are.
    pub staged: Option<Staged>,
}

impl Lease {
    /// The page that it is about, in the server's memory.
    pub const fn page(&self) -> u64 {
        self.request.destination.pointer.page()
    }

    /// The client that asks.
    pub const fn client(&self) -> Client {
        Client::of(&self.request.source)
    }
}

/// Staged bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Staged {
    /// The slot that has them.
    pub slot: u32,
    /// Their number, from the beginning of the slot.
    pub bytes: u32,
}

/// The decision about a request for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// UPDATE, CLONE: granted. The answer has the bytes of the page as they are now. RENEW: for another term.
    Granted {
        /// The epoch of the lease.
        epoch: u64,
        /// The term, counted from the request.
        term: Nanoseconds,
        /// The client already has these bytes: they are left out.
        is_known: bool,
    },
    /// COMMIT: the bytes are the content of the page from now on. RELEASE: the lease has ended.
    Done {
        /// The epoch of the page.
        epoch: u64,
    },
    /// COMMIT: it was accepted when the request came first; the bytes are not written again.
    Counted {
        /// The epoch of the page, or that of the request if the lease is over.
        epoch: u64,
    },
    /// Not done.
    Refused {
        /// The reason.
        status: Status,
        /// The epoch of the page, if that helps the client.
        epoch: u64,
    },
    /// Another host has it.
    Moved {
        /// Where to ask.
        to: Address,
        /// How new this knowledge is.
        epoch: u64,
    },
    /// The request came again while the first one is still being decided; there is no answer. A COMMIT gives up its bytes.
    Silent,
}
