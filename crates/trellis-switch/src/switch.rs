//! The contract of a switch.
//!
//! # The path of a packet
//!
//! A host sends at its port. Both addresses must belong to the cluster. Then, in this order:
//!
//! 1. **Source.** A host may use a source address if this switch would deliver that address to it: by the longest prefix,
//!    by a page range that contains the page, by a redirect of the page (it answers in place of the home), or as a member
//!    of a group. The host of the prefix may also answer for pages in page ranges: it was their home before, and its last
//!    answers may be under way. Anything else is *forged*.
//! 2. **Route.** The longest prefix of the destination determines a port; without one there is *no route*. Answers, whose
//!    destinations name requests, go to that port. The rest concerns only requests to memory. Those about a page (the
//!    classes READING, CHANGING and LEASES, and CLONE and INVALIDATED) go to the port of a *page range* that contains the
//!    page, if there is one, even with DIRECT; if several do, the smallest decides. That port is called *home* below. All
//!    other commands (OBJECTS, HELLO, PING and so on) go to the prefix's port.
//! 3. **Rules.** If rules are in force, one must allow this client, this home and this class of command; otherwise the
//!    packet is *denied*.
//! 4. **Copies.** If the home has a group for which the class is copied, the group's ports get copies.
//! 5. **Page.** Requests that read, change or lease a page are counted for the page. If they are not DIRECT and there is
//!    a redirect, they go to its port; requests from that port go to the home.
//! 6. **Lease.** An UPDATE without a redirect makes its sender the owner for a term, and goes to the home. Of two at the
//!    same time, only one finds no redirect. If there is no room for the redirect, the sender does not become the owner;
//!    ended redirects do not occupy room for long.
//! 7. **Sides.** A packet between two sides of a partition is dropped.
//!
//! # A home's answers
//!
//! The switch grants leases tentatively; the home decides. The switch therefore reads a home's answers. A positive answer
//! to UPDATE or RENEW sets owner, epoch and term, unless a higher epoch is known; a negative one removes the owner's
//! redirect. A positive answer to RELEASE, or to a COMMIT that returns the lease, removes the redirect; one to another
//! COMMIT raises its epoch. An answer is marked as such in its header, which contains the number of the request that the
//! destination names. If a page range contains the page, only answers from its port count. A redirect that has ended is
//! treated as absent.
//!
//! # What must not be assumed
//!
//! Redirects may be missing, late, stale or wrong: two packets that are under way at the same time may see different
//! ones. A host that gets a request that it cannot answer says so, and the client asks the home with DIRECT. A client
//! that may lease a page may answer for that page during its term; a client that must not needs a rule against it.

use std::time::Duration;

use crate::address::{Cluster, Page, PageRange, Prefix};
use crate::capabilities::Capabilities;
use crate::entries::{Group, Redirect, Route, Rule};
use crate::error::SwitchError;
use crate::faults::Faults;
use crate::observed::{Counters, Event, HotPage};

/// Connects hosts; the module's text is the contract. Any number of threads may call every method at once. A method takes
/// effect before it returns, and does not affect packets that are under way. After the switch is dropped, no packet is
/// forwarded.
pub trait Switch: Send + Sync {
    /// Its name in messages.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Its cluster.
    fn cluster(&self) -> Cluster;

    /// Sends packets that match a prefix to a port, replacing an earlier route of the same prefix. The prefix of home 0
    /// is that of requests to *anywhere*: its port is the server that the switch chooses.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Refused`] for a prefix of another cluster, or an impossible port; [`SwitchError::Unsupported`] for
    /// a prefix longer than it supports; [`SwitchError::Full`]; [`SwitchError::System`].
    fn set_prefix(&self, prefix: Prefix, route: Route) -> Result<(), SwitchError>;

    /// Removes a prefix; returns whether it existed.
    ///
    /// # Errors
    ///
    /// As [`Switch::set_prefix`].
    fn drop_prefix(&self, prefix: Prefix) -> Result<bool, SwitchError>;

    /// Sends requests about the pages of a page range to a port, replacing an earlier port of the same page range. Only
    /// addresses of memory are affected. Overlapping page ranges stay: a caller that first sets new ones, and then drops
    /// old ones, causes no packet to go elsewhere in between.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Refused`] for an impossible port; [`SwitchError::Full`] for more than [`crate::PAGE_ROUTES_MAX`];
    /// [`SwitchError::System`].
    fn set_page_route(&self, range: PageRange, port: u16) -> Result<(), SwitchError>;

    /// Removes exactly this page range; returns whether it existed.
    ///
    /// # Errors
    ///
    /// [`SwitchError::System`].
    fn drop_page_route(&self, range: PageRange) -> Result<bool, SwitchError>;

    /// The page ranges of a home and their ports, in the order of their first pages.
    ///
    /// # Errors
    ///
    /// [`SwitchError::System`].
    fn page_routes(&self, home: u16) -> Result<Vec<(PageRange, u16)>, SwitchError>;

    /// Sends requests for a page to another port. Returns whether it did: a redirect with a higher epoch that has not
    /// ended stays.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Refused`] for an impossible port or page; [`SwitchError::Full`]; [`SwitchError::System`].
    fn set_redirect(&self, page: Page, redirect: Redirect) -> Result<bool, SwitchError>;

    /// Like [`Switch::set_redirect`], for many pages, which some switches do for little more than the cost of one.
    /// Returns how many it set; those before a refused one are set.
    ///
    /// # Errors
    ///
    /// As [`Switch::set_redirect`].
    fn set_redirects(&self, redirects: &[(Page, Redirect)]) -> Result<u32, SwitchError> {
        redirects
            .iter()
            .try_fold(0, |done, (page, redirect)| Ok(done + u32::from(self.set_redirect(*page, *redirect)?)))
    }

    /// Sends requests for a page to its home again, unless its redirect has a higher epoch than this; returns whether
    /// there was one.
    ///
    /// # Errors
    ///
    /// [`SwitchError::System`].
    fn drop_redirect(&self, page: Page, epoch: u64) -> Result<bool, SwitchError>;

    /// The redirect of a page, if it has not ended.
    ///
    /// # Errors
    ///
    /// [`SwitchError::System`].
    fn redirect(&self, page: Page) -> Result<Option<Redirect>, SwitchError>;

    /// Removes redirects that have ended and were not met by a request since; returns how many. This is never required to
    /// make room: a switch whose table is full does it by itself.
    ///
    /// # Errors
    ///
    /// [`SwitchError::System`].
    fn sweep(&self) -> Result<u32, SwitchError>;

    /// Copies requests to a home, replacing an earlier group. A group without ports copies nothing.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Refused`] for a prefix that is not a whole home with a route, or for more than
    /// [`crate::CLONES_MAX`] ports; [`SwitchError::Full`]; [`SwitchError::System`].
    fn set_group(&self, group: &Group) -> Result<(), SwitchError>;

    /// From now on, lets only those requests to memory pass that a rule allows; `None` allows all.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Full`]; [`SwitchError::System`].
    fn set_rules(&self, rules: Option<&[Rule]>) -> Result<(), SwitchError>;

    /// Sets for how long an UPDATE makes its sender the owner; `None` means never.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Unsupported`] without [`Capabilities::grants`]; [`SwitchError::System`].
    fn set_leases(&self, term: Option<Duration>) -> Result<(), SwitchError>;

    /// Puts a port on a side of a partition; initially all are on side 0.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Refused`] for a port without a host; [`SwitchError::System`].
    fn set_side(&self, port: u16, side: u32) -> Result<(), SwitchError>;

    /// Drops, delays and duplicates packets on purpose; the random numbers start again from the seed.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Unsupported`] for faults that [`Capabilities::delays`] excludes; [`SwitchError::System`].
    fn set_faults(&self, faults: &Faults) -> Result<(), SwitchError>;

    /// The counters of a port.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Refused`] for an impossible port; [`SwitchError::System`].
    fn counters(&self, port: u16) -> Result<Counters, SwitchError>;

    /// The pages with the most requests since the last call, most first, at most `count`; counting then restarts. Pages
    /// with few requests may be missing, and so may ports at which few of them arrived.
    ///
    /// # Errors
    ///
    /// [`SwitchError::System`].
    fn hot_pages(&self, count: usize) -> Result<Vec<HotPage>, SwitchError>;

    /// The events since the last call, oldest first.
    ///
    /// # Errors
    ///
    /// [`SwitchError::System`].
    fn events(&self) -> Result<Vec<Event>, SwitchError>;
}
