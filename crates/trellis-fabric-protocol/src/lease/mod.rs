//! Leases of remote memory: which client may change a page, which host is its home, and how the home moves from host to
//! host.
//!
//! A machine of this module handles one *range* of pages. Its *home* ([`server::RangeServer`], [`home::Home`]) keeps
//! the bytes and grants *leases*. A [`client::Client`] that has a lease may change the page and commits its changes. A
//! [`reader::Reader`] keeps copies of hot pages for a time. *Backups* (other [`server::RangeServer`]s) keep what would
//! be lost with the home. The [`controller::Controller`] appoints the home. A host with several ranges has several
//! machines, and puts the number of the range beside each message. A subrange may become a range of its own for a time,
//! a *part* ([`parts`]), with a home of its own.
//!
//! # The contract
//!
//! - **Home** promises: an [`Epoch`] is given once, and every grant, every commit and every recall of copies has a later
//!   one. A commit is accepted only under the page's current epoch, so only if nobody was granted the page since, however
//!   late it comes. No lease is granted while another lease or a copy may still be in use. In its grace period it takes
//!   claims, and grants nothing else. A commit is shown to readers, and acknowledged, only
//!   when every backup has it. A home answers only while its own lease on the range (its *home lease*) lasts by its own
//!   clock.
//! - **Client** promises: it counts the term of a lease from when it *sent* the request that was granted, and by a shorter
//!   measure than the home ([`Timing`]), so it stops before the home does, whatever the offset of their clocks. Under one
//!   epoch it commits one content. It shows its changes to no other process before they are committed. It *claims* a page
//!   of a home that does not know its lease only if the lease had not ended when it heard from that home.
//! - **Reader** promises: it answers from a copy only within the copy's term, which it counts as a client does, and never
//!   from a copy that was recalled, however late that copy arrives.
//! - **Backup** promises: it acknowledges what it has, and nothing from a home that was replaced. If its memory is lost, it
//!   acknowledges nothing before the controller knows that.
//! - **Controller** promises: each home of a range, and each boot of it, has an *incarnation* of its own, later ones
//!   higher. A range is given to another home only when the home lease of the previous one has ended by the
//!   controller's clock, or when that one handed it over. A decision is persisted before it is sent, so the controller
//!   may be restarted at any time.
//! - **Parts**: the incarnations under which a page is served also rise over splits and merges, leases continue under
//!   their epochs, and a page has one home at an instant. A host splits and merges only by the controller's word, which
//!   comes with the incarnation.
//!
//! The following must never happen, as long as clocks keep to their rates. Messages may arrive in any order, repeatedly or
//! not at all; a switch may deliver a page request anywhere; hosts may stop and start.
//!
//! - Two clients may change a page at one instant.
//! - A commit is accepted that builds on anything but the last one.
//! - A commit is accepted although somebody else was granted the page since its lease was granted.
//! - An acknowledged commit is lost while a home or a complete backup lives.
//! - A read returns less than what was committed, or read, before it began.
//! - A commit takes effect after it was refused.
//! - A request waits for ever although messages arrive again.
//!
//! # Why nothing depends on the switch
//!
//! A redirect only determines where a request is delivered. The host that receives it answers if the rules above allow it.
//! Otherwise it names the home ([`Status::Moved`], with the incarnation, so that outdated knowledge does not replace
//! newer). No host gains a right by receiving a request.
//!
//! # Epochs
//!
//! The upper 16 bits of an epoch are the home's incarnation, so that a home that knows nothing about its predecessor's
//! epochs gives higher ones. The lower 48 bits count grants, commits and recalls of the whole range: a page that is
//! forgotten needs no memory of its last epoch. A commit, too, must raise the epoch: otherwise the late duplicate of an
//! owner's first commit would be accepted after its second.
//!
//! A machine has no clock: `now` comes from its own host's clock, and only differences of it are used. It never sees a
//! page's bytes: effects say which bytes go where.

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
use crate::wire::address::PARTS_FROM;
use alloc::vec::Vec;
use core::fmt;
use parts::Part;

pub use crate::wire::address::Host;

/// The number of a range, in messages. A range of a server has the number of that server's host, and a part, which is a
/// range too, one that no host has ([`PARTS_FROM`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RangeNumber(pub u16);

impl RangeNumber {
    /// The number of the range whose pointers name this host.
    pub const fn of(host: Host) -> RangeNumber {
        RangeNumber(host.0)
    }

    /// The host that pointers into this range name. No pointer names that of a part; only sentences for operators do.
    pub const fn host(self) -> Host {
        Host(self.0)
    }

    /// Whether it is that of a part.
    pub const fn is_part(self) -> bool {
        PARTS_FROM <= self.0 && self.0 < u16::MAX
    }
}

/// The number alone, for traces and counterexamples.
impl fmt::Debug for RangeNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::LowerHex for RangeNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// The number of a page in its range.
pub type PageNumber = u64;

/// The incarnation of a home and its counter: see the documentation of this module. Zero is older than all others.
pub type Epoch = u64;

/// The number of bits of an epoch that count.
const COUNTER_BITS: u32 = 48;

/// The first epoch of an incarnation.
pub fn epoch_of(incarnation: u16) -> Epoch {
    Epoch::from(incarnation) << COUNTER_BITS
}

/// The incarnation in an epoch.
pub fn incarnation_of(epoch: Epoch) -> u16 {
    (epoch >> COUNTER_BITS) as u16
}

/// Whether no lease has this epoch: it is the first of its incarnation, and stands for that.
pub fn is_of_no_lease(epoch: Epoch) -> bool {
    epoch == epoch_of(incarnation_of(epoch))
}

/// A sender or receiver: a process on a host. Two processes, one after the other or side by side, are two parties. Servers
/// and controllers are identified by their host alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Party {
    /// Its host.
    pub host: Host,
    /// The random number that the process chose at its start; zero for servers and controllers.
    pub incarnation: u16,
}

impl Party {
    /// The server or controller of a host.
    pub fn of(host: Host) -> Party {
        Party { host, incarnation: 0 }
    }
}

/// The divisor of a term that gives [`Timing::retry_max`].
const RETRY_PARTS: Nanoseconds = 4;
/// The factor of [`Timing::retry`] that gives it, if that is less.
const RETRY_FACTOR: Nanoseconds = 16;

/// How often the pause after an answer that something cannot be done now doubles, until it is [`Timing::retry`].
const PAUSE_DOUBLINGS: u8 = 6;

/// How long rights last. The giver counts `term` (`home_lease`) from when it granted, the taker `held`
/// (`home_lease_held`) from when it sent the request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Timing {
    /// The term of a lease or a copy, by the home's clock.
    pub term: Nanoseconds,
    /// The same by the clock of its holder.
    pub held: Nanoseconds,
    /// How long after its request the taker requests another term.
    pub renew: Nanoseconds,
    /// How long a home that does not know the leases of the previous home grants none.
    pub grace: Nanoseconds,
    /// The home lease of a range, by the controller's clock.
    pub home_lease: Nanoseconds,
    /// The same by the home's clock.
    pub home_lease_held: Nanoseconds,
    /// The time-out after which a message is sent again for the first time. Much shorter than a term.
    pub retry: Nanoseconds,
    /// The longest time-out of a request about a page, unless `retry` is longer: each silence doubles it.
    pub retry_max: Nanoseconds,
}

impl Timing {
    /// For clocks whose rates are wrong by at most `rate_error_ppm` millionths: a clock that is slow by that much has
    /// counted `held` before a clock that is fast by that much has counted `term`.
    pub fn new(term: Nanoseconds, home_lease: Nanoseconds, retry: Nanoseconds, rate_error_ppm: u32) -> Timing {
        let error = u128::from(rate_error_ppm.min(999_999));
        let held = |whole: Nanoseconds| (u128::from(whole) * (1_000_000 - error) / (1_000_000 + error)) as Nanoseconds;
        let (held, home_lease_held) = (held(term), held(home_lease));
        let renew = (held / 3).max(1);
        let retry_max = (held / RETRY_PARTS).min(retry.saturating_mul(RETRY_FACTOR));
        Timing { term, held, renew, grace: term, home_lease, home_lease_held, retry: retry.max(1), retry_max }
    }

    /// How long a request about a page is waited for; `before` is how long the request before it was waited for without
    /// any answer, or 0. An answer to an older request grants nothing, so a host that takes longer than
    /// [`Timing::retry`] is heard only if a retry waits longer than that.
    pub(crate) fn retry_after(&self, before: Nanoseconds) -> Nanoseconds {
        self.doubled(before, self.retry_max)
    }

    /// How long after the answer that something cannot be done now it is asked for again, for the time after this number
    /// of attempts.
    pub(crate) fn pause_after(&self, attempts: u8) -> Nanoseconds {
        (self.retry >> PAUSE_DOUBLINGS.saturating_sub(attempts)).max(1)
    }

    /// The same for what servers and controllers ask each other. A home is heard if its controller takes no longer than
    /// that (see [`server`]), so a server that is to become home waits as long.
    pub(crate) fn report_after(&self, before: Nanoseconds) -> Nanoseconds {
        self.doubled(before, self.home_lease_held * 2 / 3)
    }

    fn doubled(&self, before: Nanoseconds, most: Nanoseconds) -> Nanoseconds {
        before.saturating_mul(2).min(most).max(self.retry)
    }
}

/// What is requested from a page's home, wherever a switch delivers it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Ask {
    /// READ: the bytes.
    Read,
    /// CLONE: the bytes, and the right to answer for them during a term.
    Copy,
    /// UPDATE: a lease, with the bytes.
    Update,
    /// RENEW: another term for the lease under this epoch; with the first epoch of the home's incarnation, a claim.
    Renew(Epoch),
    /// COMMIT: make these bytes the content of the page.
    Commit {
        /// The epoch of the lease.
        epoch: Epoch,
        /// The lease is given back with it.
        release: bool,
    },
    /// RELEASE: give the lease back; nothing was changed. It has no reply: if it is lost, the lease expires.
    Release(Epoch),
}

/// The status of a reply.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Status {
    /// Done.
    Ok,
    /// Not here: ask this host. The epoch beside it is the first one of that home's incarnation.
    Moved(Host),
    /// The epoch is not the page's: the lease is over, unless the client may claim the page.
    Fenced,
    /// Another client has it: try again, or wait.
    Busy,
    /// This home must not answer yet.
    Restarting,
    /// Unserved: the home does not answer its controller, and no other host has all of the range.
    Unserved,
}

/// The placement of a range.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Placement {
    /// Its incarnation: a later placement has a higher one.
    pub incarnation: u16,
    /// The home.
    pub home: Host,
    /// The hosts that must have a commit before it is acknowledged.
    pub backups: Vec<Host>,
    /// The home is to hand the range over to this backup.
    pub hand_to: Option<Host>,
    /// The range starts with this incarnation (a reset): a home without any of its pages has all that there is.
    pub begins_empty: bool,
    /// The range is unserved: the home lease has ended, and no other host has everything.
    pub is_unserved: bool,
    /// Its parts, which have a home of their own; in order.
    pub parts: Vec<Part>,
}

/// The state that a server reports to the controller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// It has lost its memory, or never had any of the range.
    Blank,
    /// It has what it has: it restarted and kept its memory, or has been appointed home.
    Idle,
    /// It is home.
    Home {
        /// In this incarnation.
        incarnation: u16,
        /// Every backup has every page.
        is_settled: bool,
        /// This backup has not answered for the term of a home lease: remove it.
        silent: Option<Host>,
    },
    /// It was home in this incarnation and no longer answers: the host that it had to hand over to has everything.
    Handed(u16),
}

/// A page's lease and copies, as a home hands them over.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Entry {
    /// The page.
    pub page: PageNumber,
    /// Its epoch.
    pub epoch: Epoch,
    /// The holder of the lease, and its request.
    pub owner: Option<(Party, u64)>,
    /// The holders of copies.
    pub readers: Vec<Party>,
}

/// The messages between hosts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Message {
    /// A page request. Only these may be delivered to any host.
    Request {
        /// About this page.
        page: PageNumber,
        /// The sender's number of the request; later ones are higher.
        request: u64,
        /// What it requests.
        ask: Ask,
    },
    /// The answer.
    Reply {
        /// About this page.
        page: PageNumber,
        /// To this request.
        request: u64,
        /// What that request asked.
        ask: Ask,
        /// The status.
        status: Status,
        /// The page's epoch, if it was granted, committed, read or copied.
        epoch: Epoch,
    },
    /// Home to an owner: another client wants the page.
    Recall {
        /// This page.
        page: PageNumber,
        /// The lease under this epoch.
        epoch: Epoch,
    },
    /// Home to a reader: copies older than this epoch must not be used any more.
    Invalidate {
        /// Of this page.
        page: PageNumber,
        /// Older than this.
        epoch: Epoch,
    },
    /// The reader to the home: they are no longer used.
    Invalidated {
        /// Of this page.
        page: PageNumber,
        /// As in the message.
        epoch: Epoch,
    },
    /// Home to a backup: keep these bytes.
    Store {
        /// Of this page.
        page: PageNumber,
        /// The number of pages from that one on. Several are sent at once only if all of them are zero.
        pages: PageNumber,
        /// By the home of this incarnation.
        incarnation: u16,
        /// Committed under this epoch.
        epoch: Epoch,
    },
    /// The backup to the home: these versions, or later ones, are kept.
    Stored {
        /// Of this page.
        page: PageNumber,
        /// As in the message.
        pages: PageNumber,
        /// As in the message.
        incarnation: u16,
        /// As in the message.
        epoch: Epoch,
    },
    /// Home to the next home: all leases and copies.
    Leases {
        /// Of the home of this incarnation.
        incarnation: u16,
        /// All rights that may be in use.
        entries: Vec<Entry>,
    },
    /// The backup to home: it has them.
    Taken {
        /// As in the message.
        incarnation: u16,
    },
    /// A server to the controller: here I am; may I be, or stay, home?
    Report {
        /// The sender's number of the report.
        request: u64,
        /// The boot id of the server: a random number that it chose when it started.
        boot_id: u16,
        /// Its state.
        state: State,
        /// The last call that it heard.
        call: u64,
    },
    /// Any host to the controller: which host is home?
    Locate,
    /// The controller's answer. Unasked, with request and boot id 0, it means: report to me.
    Placed {
        /// To this request.
        request: u64,
        /// To this boot of the server.
        boot_id: u16,
        /// The placement. If the home is the host that asked, its home lease starts again.
        placement: Placement,
        /// The number of the call, if it is one.
        call: u64,
    },
}

/// The bytes that go with a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Bytes {
    /// None.
    Nothing,
    /// None: the pages of the message are zero.
    Zero,
    /// Those of the page.
    Page,
    /// Those that were staged for the page.
    Staged,
}

/// The outcome of a client's operation on a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Outcome {
    /// The bytes that arrive are the content of the page.
    Read,
    /// The client has a lease, and the bytes that arrive.
    Owned,
    /// Its changes are the content of the page now.
    Committed,
    /// The lease is over. The changes are lost, unless the commit was accepted and only its acknowledgement was lost. In
    /// any case they take no effect from now on.
    Fenced,
}

/// An order to the caller of a machine. Orders are carried out in the order of the list.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Effect {
    /// Send this.
    Send {
        /// The receiver. A [`Message::Request`] goes to the page's address, as if this host were home.
        to: Party,
        /// The message.
        message: Message,
        /// With these bytes, as they are now.
        bytes: Bytes,
    },
    /// The bytes that came with the message at hand are now the content of the page (at a client), or of its copy (at a
    /// reader).
    Put(PageNumber),
    /// The bytes that came with the message at hand, or that the home itself wants to make the content of the page, are
    /// kept beside the page.
    Stage(PageNumber),
    /// The staged bytes are now the content of the page.
    Apply(PageNumber),
    /// The home's own change of this page is now its content; or it was refused, and nothing happened.
    Changed(PageNumber, bool),
    /// A client's operation is over.
    Done(PageNumber, Outcome),
    /// The client's lease ended before its changes were committed. They may still be ([`client::Client::may_commit`]).
    Lost(PageNumber),
    /// Another client wants a page that this client has: commit or release it soon. Its lease is no longer renewed.
    Recalled(PageNumber),
    /// Make this durable before any later effect is carried out.
    Persist(controller::Record),
    /// The home lease of the range's home has ended, and no other host has its pages: notify the operator, with the
    /// range's name.
    Unserved,
}

/// Pushes an effect to send.
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

    /// The host that was asked is not home; by `placement` another one is.
    fn moved(self, home: Host, incarnation: u16, effects: &mut Vec<Effect>) {
        self.say(Status::Moved(home), epoch_of(incarnation), effects);
    }
}

/// The host that a client or reader takes for home.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Belief {
    /// This host.
    pub home: Host,
    /// In this incarnation.
    pub incarnation: u16,
}

impl Belief {
    /// Notes that `home` is home. Returns whether that is news; an incarnation that is older than the known one is not.
    fn hear(&mut self, home: Host, incarnation: u16) -> bool {
        let is_news = incarnation > self.incarnation;
        if is_news {
            *self = Belief { home, incarnation };
        }
        is_news
    }
}
