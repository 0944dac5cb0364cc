//! Leases of remote memory: who may change a page now, who answers for it, and how that moves from host to host.
//!
//! A machine of this module is about one *range* of pages. Its *home* ([`server::Server`], [`home::Home`]) keeps the
//! bytes and gives *leases*; a [`client::Client`] that has one may change the page and commits what it changed; a
//! [`reader::Reader`] keeps copies of hot pages for a time; *backups* (other [`server::Server`]s) keep what the home
//! would take with it into the grave; the [`controller::Controller`] says who is home. Who has several ranges has
//! several machines, and puts the number of the range beside each message. A run of pages may become a range of its own for
//! a time, a *part* ([`parts`]), with a home of its own.
//!
//! # The contract
//!
//! - **Home** promises: an [`Epoch`] is given once, and every grant, every commit and every recall of copies has a later
//!   one. A commit is accepted only under the page's epoch of now and before the lease's end by home's clock. No lease is
//!   given while another, or a copy, may still be in use. A commit is shown to readers, and acknowledged, only when every
//!   backup has it. A home answers only while its own lease on the range (its *tenure*) lasts by its own clock.
//! - **Client** promises: it counts the term of a lease from when it *sent* the request that was granted, and by a
//!   shorter measure than home ([`Timing`]), so it stops before home does, whatever their clocks are; under one epoch it
//!   commits one content; what it changed and did not commit it shows nobody.
//! - **Reader** promises: it answers from a copy only within the copy's term, which it counts as a client does, and never
//!   from one that was recalled, however late that copy arrives.
//! - **Backup** promises: it acknowledges what it has, and nothing of a home that was replaced. Where its memory is gone
//!   it acknowledges nothing before the controller knows that.
//! - **Controller** promises: each home of a range, and each life of it, has an *incarnation* of its own, later ones
//!   higher, and a range is given to another only when the tenure of the one before has ended by the controller's clock or
//!   that one handed it over. What it says was persisted before, so it may be restarted at any time.
//! - **Parts**: the incarnations under which a page is served rise over cuts and joins, too; leases go on under their epochs;
//!   a page has one home at an instant. A host cuts and joins by the controller's word alone, which comes with the incarnation.
//!
//! What must never happen, in whatever order messages arrive, repeatedly or not at all, wherever a switch delivers a page
//! request, whoever stops and starts, as long as clocks keep to their rates: two clients that may change a page at one
//! instant; a commit accepted that rests on anything but the last one; an acknowledged commit lost while a home or a
//! backup that is complete lives; a read that returns less than what was committed, or read, before it began; a commit
//! that takes effect after it was refused; and, once messages arrive again, somebody who waits for ever.
//!
//! # Why nothing depends on the switch
//!
//! A redirect only says where a request is delivered. Whoever gets one answers if it may by the rules above; otherwise it
//! says who is home ([`Status::Moved`], with the incarnation, so that an old opinion does not replace a newer one). No
//! host gains a right by being asked.
//!
//! # Epochs
//!
//! The upper 16 bits of an epoch are the home's incarnation, so that a home that knows nothing of its predecessor's
//! epochs gives higher ones. The lower 48 count grants, commits and recalls of the whole range: a page that is forgotten
//! needs no memory of its last epoch. That a commit, too, raises the epoch is needed: otherwise the late duplicate of an
//! owner's first commit would be accepted after its second.
//!
//! A machine has no clock: `now` is its own host's, and only differences of it are used. It never sees a page's bytes:
//! effects say which go where.

pub mod client;
pub mod controller;
pub mod home;
pub mod parts;
mod plain;
pub mod queue;
pub mod reader;
mod rights;
pub mod server;
pub mod settling;
mod words;

use crate::Nanoseconds;
use alloc::vec::Vec;
use parts::Part;

/// The number of a host in the fabric.
pub type Host = u16;

/// The number of a page in its range.
pub type PageNumber = u64;

/// Incarnation of a home, and what it counted: see the module's documentation. Zero is older than all.
pub type Epoch = u64;

/// Bits of an epoch that count.
const COUNTER_BITS: u32 = 48;

/// The first epoch of an incarnation.
pub fn epoch_of(incarnation: u16) -> Epoch {
    Epoch::from(incarnation) << COUNTER_BITS
}

/// The incarnation in an epoch.
pub fn incarnation_of(epoch: Epoch) -> u16 {
    (epoch >> COUNTER_BITS) as u16
}

/// Who sends and receives: a process on a host. Two processes, one after the other or beside each other, are two parties.
/// Servers and controllers are told by their host alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Party {
    /// Its host.
    pub host: Host,
    /// What the process drew at its start; zero of servers and controllers.
    pub incarnation: u16,
}

impl Party {
    /// The server or controller of a host.
    pub fn of(host: Host) -> Party {
        Party { host, incarnation: 0 }
    }
}

/// How long rights last. The giver counts `term` (`tenure`) from when it gave, the taker `held` (`tenure_held`) from when
/// it asked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Timing {
    /// A lease or a copy, by home's clock.
    pub term: Nanoseconds,
    /// The same by the clock of who has it.
    pub held: Nanoseconds,
    /// How long after asking the taker asks for another term.
    pub renew: Nanoseconds,
    /// How long a home that does not know the leases of the home before gives none.
    pub grace: Nanoseconds,
    /// A home's right to a range, by the controller's clock.
    pub tenure: Nanoseconds,
    /// The same by home's clock.
    pub tenure_held: Nanoseconds,
    /// How long to wait before something is said again. Much shorter than a term: who answers late finds a new request.
    pub retry: Nanoseconds,
}

impl Timing {
    /// For clocks whose rates are wrong by at most `rate_error_ppm` millionths: one that is slow by that, counting `held`,
    /// is done before one that is fast by that has counted `term`.
    pub fn new(term: Nanoseconds, tenure: Nanoseconds, retry: Nanoseconds, rate_error_ppm: u32) -> Timing {
        let error = u128::from(rate_error_ppm.min(999_999));
        let held = |whole: Nanoseconds| (u128::from(whole) * (1_000_000 - error) / (1_000_000 + error)) as Nanoseconds;
        let (held, tenure_held) = (held(term), held(tenure));
        let renew = (held / 3).max(1);
        Timing { term, held, renew, grace: term, tenure, tenure_held, retry: retry.max(1) }
    }
}

/// What is asked of a page's home, wherever a switch delivers it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Ask {
    /// READ: the bytes.
    Read,
    /// CLONE: the bytes, and the right to answer for them during a term.
    Copy,
    /// UPDATE: a lease, with the bytes.
    Update,
    /// RENEW: the lease under this epoch for another term.
    Renew(Epoch),
    /// COMMIT: these bytes are the page's.
    Commit {
        /// Under which lease.
        epoch: Epoch,
        /// The lease is given back with it.
        release: bool,
    },
    /// RELEASE: the lease is given back, and nothing was changed. It has no reply: what is lost runs out.
    Release(Epoch),
}

/// What a reply says.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Status {
    /// Done.
    Ok,
    /// Not here: ask this host. The epoch beside it is the first of that home's incarnation.
    Moved(Host),
    /// The epoch is not the page's: the lease is over, and what was not committed never will be.
    Fenced,
    /// Somebody else has it: try again, or wait.
    Busy,
    /// This home may not say yet.
    Restarting,
    /// Not here, and nowhere else: the home does not answer its controller, and nobody else has all of the range.
    Unserved,
}

/// Who answers for a range.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Placement {
    /// Its number: a later one has a higher one.
    pub incarnation: u16,
    /// The home.
    pub home: Host,
    /// Who has to have a commit before it is acknowledged.
    pub backups: Vec<Host>,
    /// The home shall hand the range over to this backup.
    pub hand_to: Option<Host>,
    /// The range begins with this incarnation: a home that has nothing of it has all that there is.
    pub anew: bool,
    /// Nobody serves the range: the tenure of the home has ended, and nobody else has everything.
    pub is_unserved: bool,
    /// Which of its pages have a home of their own; in their order.
    pub parts: Vec<Part>,
}

/// What a server says of itself to the controller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// It has lost its memory, or never had any of the range.
    Blank,
    /// It has what it has: it restarted and kept its memory, or was told to be home.
    Idle,
    /// It is home.
    Home {
        /// In this incarnation.
        incarnation: u16,
        /// Every backup has every page.
        is_settled: bool,
        /// This backup has not answered for a tenure: do without it.
        silent: Option<Host>,
    },
    /// It was home in this incarnation, and answers no more: the one that it was told to hand over to has everything.
    Handed(u16),
}

/// A page's lease and copies, as a home hands them over.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Entry {
    /// The page.
    pub page: PageNumber,
    /// Its epoch.
    pub epoch: Epoch,
    /// Who has the lease, and by which request.
    pub owner: Option<(Party, u64)>,
    /// Who has copies.
    pub readers: Vec<Party>,
}

/// What hosts tell each other.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Message {
    /// A page request. Only these may be delivered to anybody.
    Request {
        /// About this page.
        page: PageNumber,
        /// The sender's number of it; later ones are higher.
        request: u64,
        /// What.
        ask: Ask,
    },
    /// The answer.
    Reply {
        /// About this page.
        page: PageNumber,
        /// To this request.
        request: u64,
        /// Which asked this.
        ask: Ask,
        /// What came of it.
        status: Status,
        /// The page's epoch, where it is granted, committed, read or copied.
        epoch: Epoch,
    },
    /// Home to an owner: somebody wants the page.
    Recall {
        /// This page.
        page: PageNumber,
        /// The lease under this epoch.
        epoch: Epoch,
    },
    /// Home to a reader: copies older than this epoch are not to be used any more.
    Invalidate {
        /// Of this page.
        page: PageNumber,
        /// Older than this.
        epoch: Epoch,
    },
    /// The reader to home: they are not.
    Invalidated {
        /// Of this page.
        page: PageNumber,
        /// As it was told.
        epoch: Epoch,
    },
    /// Home to a backup: keep these bytes.
    Store {
        /// Of this page.
        page: PageNumber,
        /// Of so many pages from that one on. Several are given at once only where all of them are zero.
        pages: PageNumber,
        /// By the home of this incarnation.
        incarnation: u16,
        /// Committed under this epoch.
        epoch: Epoch,
    },
    /// The backup to home: these, or later ones, are kept.
    Stored {
        /// Of this page.
        page: PageNumber,
        /// As it was told.
        pages: PageNumber,
        /// As it was told.
        incarnation: u16,
        /// As it was told.
        epoch: Epoch,
    },
    /// Home to the backup that becomes home: all leases and copies.
    Leases {
        /// Of the home of this incarnation.
        incarnation: u16,
        /// All that may be in use.
        entries: Vec<Entry>,
    },
    /// The backup to home: it has them.
    Taken {
        /// As it was told.
        incarnation: u16,
    },
    /// A server to the controller: here I am; may I (still) be home?
    Report {
        /// The sender's number of it.
        request: u64,
        /// What the server drew when it started.
        life: u16,
        /// What it is.
        state: State,
        /// The last call that it heard.
        call: u64,
    },
    /// Anybody to the controller: who is home?
    Locate,
    /// The controller's answer. Or, as request and life 0, unasked: report to me.
    Placed {
        /// To this request.
        request: u64,
        /// To this life of the server.
        life: u16,
        /// Who is home. If it is who asked, its tenure begins anew.
        placement: Placement,
        /// The number of the call, where it is one.
        call: u64,
    },
}

/// Which bytes go with a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Bytes {
    /// None.
    Nothing,
    /// None: what the message is about is zero.
    Zero,
    /// The page's.
    Page,
    /// Those that were staged for the page.
    Staged,
}

/// What a page operation of a client came to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Outcome {
    /// The bytes that arrive are the page's.
    Read,
    /// The client has a lease, and the bytes that arrive.
    Owned,
    /// What it changed is the page now.
    Committed,
    /// The lease is over. What was changed is lost, unless the commit was accepted and only its acknowledgement was lost;
    /// in any case it takes no effect from now on.
    Fenced,
}

/// An order to who runs a machine. Orders are carried out in the order of the list.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Effect {
    /// Send this.
    Send {
        /// To whom. A [`Message::Request`] goes to the page's address, as if this host were home.
        to: Party,
        /// What.
        message: Message,
        /// With these bytes, as they are now.
        bytes: Bytes,
    },
    /// The bytes that came with the message that is handled are the page's now (a client's, a reader's: its copy).
    Put(PageNumber),
    /// The bytes that came with the message that is handled, or that home itself makes the page's, are kept beside the page.
    Stage(PageNumber),
    /// What was staged is the page's now.
    Apply(PageNumber),
    /// What home itself changed in this page is the page now; or was refused, and nothing happened.
    Changed(PageNumber, bool),
    /// A client's operation is over.
    Done(PageNumber, Outcome),
    /// The client's lease ended before anything was committed under it.
    Lost(PageNumber),
    /// Somebody wants a page that this client has: commit or release it soon. Its lease is not renewed any more.
    Recalled(PageNumber),
    /// Make this durable before anything that follows is carried out.
    Persist(controller::Record),
    /// The tenure of the range's home has ended, and nobody else has its pages: tell the operator, by the range's name.
    Unserved,
}

/// Adds an order to send.
fn send(effects: &mut Vec<Effect>, to: Party, message: Message, bytes: Bytes) {
    effects.push(Effect::Send { to, message, bytes });
}

/// The reply to a page request.
#[derive(Clone, Copy)]
struct Answer {
    to: Party,
    page: PageNumber,
    request: u64,
    ask: Ask,
}

impl Answer {
    fn say(self, status: Status, epoch: Epoch, effects: &mut Vec<Effect>) {
        self.with(status, epoch, Bytes::Nothing, effects);
    }

    fn with(self, status: Status, epoch: Epoch, bytes: Bytes, effects: &mut Vec<Effect>) {
        // A release asks for no reply.
        if !matches!(self.ask, Ask::Release(_)) {
            let Answer { to, page, request, ask } = self;
            send(effects, to, Message::Reply { page, request, ask, status, epoch }, bytes);
        }
    }

    /// Who is asked is not home, and by `placement` somebody else is.
    fn moved(self, home: Host, incarnation: u16, effects: &mut Vec<Effect>) {
        self.say(Status::Moved(home), epoch_of(incarnation), effects);
    }
}

/// Whom a client or reader takes for home.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Belief {
    /// This host.
    pub home: Host,
    /// In this incarnation.
    pub incarnation: u16,
}

impl Belief {
    /// Hears that `home` is it; says whether that is news. What is older than what it knows is none.
    fn hear(&mut self, home: Host, incarnation: u16) -> bool {
        let is_news = incarnation > self.incarnation;
        if is_news {
            *self = Belief { home, incarnation };
        }
        is_news
    }
}
