//! The contract of a switch.
//!
//! # What happens to a packet
//!
//! A host sends at its port. Both addresses must belong to the cluster. Then, in this order:
//!
//! 1. **Source.** A host may speak for an address if this switch would deliver that address to it: by the longest prefix,
//!    by a run that has the page, by a redirect of the page (it answers in home's place), or as a member of a group. Who
//!    has the prefix may also speak for pages of runs: it had them, and its last answers are under way. Anything else is
//!    *forged*.
//! 2. **Route.** The longest prefix that fits the destination names a port. None: *no route*. Answers, which go to addresses
//!    that name requests, go there. The rest concerns requests to memory only: of these, commands that are about a page
//!    (the classes READING, CHANGING and LEASES, and CLONE and INVALIDATED) go to the port of a *run* that has the page, if
//!    there is one, also with DIRECT; of several runs that have it, the one with the fewest pages decides. That port is
//!    then what *home* means below. All other commands (OBJECTS, HELLO, PING and so on) keep the prefix's port.
//! 3. **Rules.** If rules are in force, one must allow this client, this home and this class of command; else *denied*.
//! 4. **Copies.** If the home has a group that the class is copied for, its ports get copies.
//! 5. **Page.** Requests that read, change or lease a page are counted for the page. If they are not DIRECT and a redirect
//!    stands, they go to its port; what comes from that very port goes home.
//! 6. **Lease.** An UPDATE that finds no redirect makes its sender the owner for a term, and goes home. Two at once cannot
//!    both find none. Where there is no room for it, nobody becomes the owner; what has ended takes no room for long.
//! 7. **Sides.** A packet between two sides of a partition is gone.
//!
//! # What home says
//!
//! The switch grants on suspicion; home decides. So the switch listens to what a home answers. Yes to UPDATE or RENEW sets
//! owner, epoch and term, unless a higher epoch is known; no takes the owner's redirect away. Yes to RELEASE, or to a COMMIT
//! that gives the lease back, takes it away; yes to another COMMIT raises its epoch. An answer is marked as one in its
//! header, which carries the number of the request that the destination names. Where a run has the page, only its port
//! says what home says. A redirect that has ended is as good as none.
//!
//! # What must not be assumed
//!
//! Redirects may be missing, late, stale or wrong: two packets that are under way at once may see different ones. Whoever
//! gets a request that it cannot answer says so, and the client asks home with DIRECT. A client that may lease a page may
//! for its term answer for that page; who must not, needs a rule.

use std::time::Duration;

use crate::address::{Cluster, Page, PageRun, Prefix};
use crate::capabilities::Capabilities;
use crate::entries::{Group, Redirect, Route, Rule};
use crate::error::SwitchError;
use crate::faults::Faults;
use crate::observed::{Counters, Event, HotPage};

/// Joins hosts; the module's text is the contract. Every method may be called by many threads at once, takes effect before
/// it returns, and leaves packets that are under way alone. When it is dropped, nothing is sent on any more.
pub trait Switch: Send + Sync {
    /// How sentences call it.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// The cluster that it serves.
    fn cluster(&self) -> Cluster;

    /// Sends what fits a prefix to a port, in place of what was set for the same prefix before. The prefix of home 0 is that of
    /// requests to *anywhere*: its port is the server that the switch chooses.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Refused`] for a prefix of another cluster, or a port that there cannot be;
    /// [`SwitchError::Unsupported`] for one that is longer than it routes by; [`SwitchError::Full`]; [`SwitchError::System`].
    fn set_prefix(&self, prefix: Prefix, route: Route) -> Result<(), SwitchError>;

    /// Forgets a prefix; says whether it was there.
    ///
    /// # Errors
    ///
    /// As [`Switch::set_prefix`].
    fn drop_prefix(&self, prefix: Prefix) -> Result<bool, SwitchError>;

    /// Sends what is about the pages of a run to a port, in place of what was set for the same run before. Only addresses of
    /// memory are meant. Other runs that have some of the pages stay: who sets new ones first, and drops old ones then,
    /// sends no packet to anybody else in between.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Refused`] for a port that there cannot be; [`SwitchError::Full`] for more than
    /// [`crate::RUNS_MAX`]; [`SwitchError::System`].
    fn set_run(&self, run: PageRun, port: u16) -> Result<(), SwitchError>;

    /// Forgets a run, this very one; says whether it was there.
    ///
    /// # Errors
    ///
    /// [`SwitchError::System`].
    fn drop_run(&self, run: PageRun) -> Result<bool, SwitchError>;

    /// The runs of a home and their ports, in the order of their first pages.
    ///
    /// # Errors
    ///
    /// [`SwitchError::System`].
    fn runs(&self, home: u16) -> Result<Vec<(PageRun, u16)>, SwitchError>;

    /// Sends requests for a page to another port. Says whether it did: a redirect with a higher epoch that has not ended
    /// stays.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Refused`] for a port or a page that there cannot be; [`SwitchError::Full`]; [`SwitchError::System`].
    fn set_redirect(&self, page: Page, redirect: Redirect) -> Result<bool, SwitchError>;

    /// The same for many pages, which costs some switches little more than one. Says how many it set; those before one that
    /// is refused are set.
    ///
    /// # Errors
    ///
    /// As [`Switch::set_redirect`].
    fn set_redirects(&self, redirects: &[(Page, Redirect)]) -> Result<u32, SwitchError> {
        redirects
            .iter()
            .try_fold(0, |done, (page, redirect)| Ok(done + u32::from(self.set_redirect(*page, *redirect)?)))
    }

    /// Sends requests for a page home again, if its redirect has no higher epoch than this; says whether there was one.
    ///
    /// # Errors
    ///
    /// [`SwitchError::System`].
    fn drop_redirect(&self, page: Page, epoch: u64) -> Result<bool, SwitchError>;

    /// The redirect of a page that has not ended.
    ///
    /// # Errors
    ///
    /// [`SwitchError::System`].
    fn redirect(&self, page: Page) -> Result<Option<Redirect>, SwitchError>;

    /// Forgets redirects that have ended and that no request has come across since; says how many. Nobody needs to call it
    /// for want of room: a switch whose table is full does so by itself.
    ///
    /// # Errors
    ///
    /// [`SwitchError::System`].
    fn sweep(&self) -> Result<u32, SwitchError>;

    /// Copies requests to a home, in place of what was copied before. A group without ports copies nothing.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Refused`] for a prefix that is no whole home with a route, or for more than
    /// [`crate::CLONES_MAX`] ports; [`SwitchError::Full`]; [`SwitchError::System`].
    fn set_group(&self, group: &Group) -> Result<(), SwitchError>;

    /// Lets only those requests to memory pass that some rule allows, from now on; none lifts that.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Full`]; [`SwitchError::System`].
    fn set_rules(&self, rules: Option<&[Rule]>) -> Result<(), SwitchError>;

    /// For how long an UPDATE makes its sender the owner; none: never.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Unsupported`] where [`Capabilities::grants`] is not; [`SwitchError::System`].
    fn set_leases(&self, term: Option<Duration>) -> Result<(), SwitchError>;

    /// Puts a port on a side of a partition; at first all are on side 0.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Refused`] for a port where nothing is plugged in; [`SwitchError::System`].
    fn set_side(&self, port: u16, side: u32) -> Result<(), SwitchError>;

    /// Loses, delays, repeats packets on purpose; random numbers begin anew.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Unsupported`] for what [`Capabilities::delays`] excludes; [`SwitchError::System`].
    fn set_faults(&self, faults: &Faults) -> Result<(), SwitchError>;

    /// What became of the packets of a port.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Refused`] for a port that there cannot be; [`SwitchError::System`].
    fn counters(&self, port: u16) -> Result<Counters, SwitchError>;

    /// The pages with the most requests since the last call, most first, at most `count`; counting begins anew. Pages that
    /// few asked for may be missing, and so may ports that few of the requests came in at.
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
