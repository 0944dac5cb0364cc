//! The seam between a memory server and whoever keeps leases, copies and replicas of its pages.
//!
//! The server knows objects, and nothing of leases. Before it reads, writes or deletes it asks [`Leases::admit`], in the
//! same step, so that what is admitted is done before anything else happens. Requests about leases go the other way: the
//! server checks that the object is there, that the access ends inside it and that all bytes came, hands them over as
//! [`super::Effect::Lease`], and does what [`super::Input::Decided`] says: it then writes, and makes the answer.
//!
//! Contract of who keeps leases. It decides each [`Lease`] that has bytes exactly once, in the same step or later: until
//! then they keep their slot. Any other one it decides as often as there is something to say: an UPDATE that was refused
//! as BUSY is granted later. A request that came again is another [`Lease`] of the same id. It has the pages whose answers depend on it guarded ([`super::Input::Guard`]) *before* it grants anything, so
//! that no program in the kernel answers without asking. It must never ask the server anything.

use super::sessions::Client;
use crate::Nanoseconds;
use crate::wire::address::Address;
use crate::wire::datagram::{Request, Status};

/// What somebody wants to do with pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// The first page, in the server's memory.
    pub first_page: u64,
    /// How many; never none.
    pub pages: u64,
    /// What.
    pub kind: AccessKind,
    /// Who.
    pub client: Client,
}

/// What is done with pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// READ.
    Read,
    /// WRITE, FETCH_ADD, COMPARE_SWAP: without a lease.
    Write,
    /// DELETE.
    Delete,
}

/// Whether it may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Admission {
    /// Now.
    Admitted,
    /// Not now, or not by this one: the answer has this status, and nothing is done.
    Refused(Status),
    /// Not here; the answer has the address, and the epoch that says how new this is.
    Moved(Address, u64),
}

/// Whoever keeps the leases of a server's pages.
pub trait Leases {
    /// Whether this may be done now. It is done at once when it is admitted.
    fn admit(&mut self, now: Nanoseconds, access: &Access) -> Admission;

    /// The object of these pages was made with bytes: they are not zero, as those of others are.
    fn made_with_bytes(&mut self, first_page: u64, pages: u64);

    /// The object of these pages was deleted: nobody has a lease of them any more.
    fn forget(&mut self, first_page: u64, pages: u64);
}

/// Nobody keeps leases: everything is admitted. Requests about leases are refused as unknown by whoever gets
/// [`super::Effect::Lease`].
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
    /// As it came; its epoch is what its client says.
    pub request: Request,
    /// Of a COMMIT: where its bytes are.
    pub staged: Option<Staged>,
}

impl Lease {
    /// The page that it is about, in the server's memory.
    pub const fn page(&self) -> u64 {
        self.request.destination.pointer.page()
    }

    /// Who asks.
    pub const fn client(&self) -> Client {
        Client::of(&self.request.source)
    }
}

/// Bytes that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Staged {
    /// In this slot.
    pub slot: u32,
    /// So many, from its beginning.
    pub bytes: u32,
}

/// What became of a request about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// UPDATE, CLONE: granted. The answer has the bytes of the page as they are now. RENEW: for another term.
    Granted {
        /// Of the lease.
        epoch: u64,
        /// From when it was asked for.
        term: Nanoseconds,
        /// The bytes that the client said it has are these: they are left out.
        is_known: bool,
    },
    /// COMMIT: the bytes are the page's from now on. RELEASE: it has ended.
    Done {
        /// Of the page.
        epoch: u64,
    },
    /// COMMIT: the bytes were the page's before, when the request came first; they are not written again.
    Counted {
        /// Of the page; that of the request, where the lease is over.
        epoch: u64,
    },
    /// Not done.
    Refused {
        /// Why.
        status: Status,
        /// Of the page, where that helps who asked.
        epoch: u64,
    },
    /// Somebody else has it.
    Moved {
        /// Where to ask.
        to: Address,
        /// How new this is.
        epoch: u64,
    },
    /// It came again, and the first one is still being decided; nothing is said. A COMMIT gives up its bytes.
    Silent,
}
