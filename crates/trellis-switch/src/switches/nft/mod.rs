//! The switch `nft`: a table of the kernel's packet filter, of the family that processes what arrives at a device.
//!
//! Promises: works in a user namespace, and needs no program, because it talks to the kernel directly (`netlink`). The
//! table ends with this value, or with the process. Leases are granted in the path of the packet, by adding to a map
//! that can contain a page only once; redirects end automatically. A home's answers about leases are passed to a
//! thread, which changes the map a moment later, or to the next call, whichever is first. A `Directory` here therefore
//! records what the kernel's tables cannot: epochs, events, whether an owner is about to return a lease. It must never
//! touch another table than its own.

mod expressions;
mod netlink;
mod ruleset;
mod tables;

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::address::{Cluster, Page, PageRange, Prefix};
use crate::capabilities::Capabilities;
use crate::entries::{Group, Redirect, Route, Rule};
use crate::error::SwitchError;
use crate::faults::Faults;
use crate::observed::{Counters, Event, HotPage};
use crate::switch::Switch;
use crate::switches::worker::Worker;
use crate::switches::{self, Wiring};
use crate::sys;
use tables::Tables;

const NAME: &str = "nft";
/// How long a home's answer about a lease may wait if another one was just handled. A redirect that is wrong for this
/// long costs the client one more answer, from the previous owner.
const HEARS_EVERY: Duration = Duration::from_millis(1);

/// The switch; the module's text says what it promises.
pub struct Nft {
    cluster: Cluster,
    redirects_max: u32,
    tables: Arc<Mutex<Tables>>,
    _worker: Worker,
}

impl Nft {
    /// Creates the table for the interfaces in the calling thread's network namespace.
    pub(super) fn open(wiring: &Wiring) -> Result<Nft, SwitchError> {
        let tables = Tables::make(wiring)?;
        let reports = tables.descriptor()?;
        let tables = Arc::new(Mutex::new(tables));
        let shared = Arc::clone(&tables);
        let worker = Worker::start(move |ringing| {
            while sys::wait_readable(&[ringing.as_fd(), reports.as_fd()], None).first() != Some(&0) {
                locked(&shared).hear();
                // Answers that arrive meanwhile are handled together: waking the thread for each would cost packets more
                // than all the rules.
                if !sys::wait_readable(&[ringing.as_fd()], Some(HEARS_EVERY)).is_empty() {
                    break;
                }
            }
        })?;
        let (cluster, redirects_max) = (wiring.cluster, wiring.redirects_max);
        Ok(Nft { cluster, redirects_max, tables, _worker: worker })
    }

    /// The tables, after all answers about leases that have arrived.
    fn tables(&self) -> MutexGuard<'_, Tables> {
        let mut tables = locked(&self.tables);
        tables.hear();
        tables
    }
}

fn locked(tables: &Mutex<Tables>) -> MutexGuard<'_, Tables> {
    // No holder of the lock leaves the tables half changed.
    tables.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Switch for Nft {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            learns_at_once: false,
            forgets_ended: true,
            delays: false,
            ..Capabilities::all(self.redirects_max)
        }
    }

    fn cluster(&self) -> Cluster {
        self.cluster
    }

    fn set_prefix(&self, prefix: Prefix, route: Route) -> Result<(), SwitchError> {
        switches::check_prefix(NAME, self.cluster, prefix)?;
        switches::check_port(NAME, route.port)?;
        self.tables().set_prefix(prefix, route)
    }

    fn drop_prefix(&self, prefix: Prefix) -> Result<bool, SwitchError> {
        switches::check_prefix(NAME, self.cluster, prefix)?;
        self.tables().drop_prefix(prefix)
    }

    fn set_page_route(&self, range: PageRange, port: u16) -> Result<(), SwitchError> {
        switches::check_port(NAME, port)?;
        self.tables().set_page_route(range, port)
    }

    fn drop_page_route(&self, range: PageRange) -> Result<bool, SwitchError> {
        self.tables().drop_page_route(range)
    }

    fn page_routes(&self, home: u16) -> Result<Vec<(PageRange, u16)>, SwitchError> {
        Ok(self.tables().page_routes(home))
    }

    fn set_redirect(&self, page: Page, redirect: Redirect) -> Result<bool, SwitchError> {
        Ok(self.set_redirects(&[(page, redirect)])? > 0)
    }

    fn set_redirects(&self, redirects: &[(Page, Redirect)]) -> Result<u32, SwitchError> {
        let refused = redirects
            .iter()
            .enumerate()
            .find_map(|(index, (_, redirect))| Some(index).zip(switches::check_port(NAME, redirect.port).err()));
        let entry = |(page, redirect): &(Page, Redirect)| (*page, switches::noted(redirect));
        let valid = &redirects[..refused.as_ref().map_or(redirects.len(), |(index, _)| *index)];
        let done = self.tables().set_redirects(&valid.iter().map(entry).collect::<Vec<_>>())?;
        refused.map_or(Ok(done), |(_, error)| Err(error))
    }

    fn drop_redirect(&self, page: Page, epoch: u64) -> Result<bool, SwitchError> {
        self.tables().drop_redirect(page, epoch)
    }

    fn redirect(&self, page: Page) -> Result<Option<Redirect>, SwitchError> {
        let entry = self.tables().redirect(page);
        Ok(entry.map(switches::redirect_of))
    }

    fn sweep(&self) -> Result<u32, SwitchError> {
        // Everything that has ended is removed before the query.
        drop(self.tables());
        Ok(0)
    }

    fn set_group(&self, group: &Group) -> Result<(), SwitchError> {
        switches::check_group(NAME, self.cluster, group)?;
        self.tables().set_group(group)
    }

    fn set_rules(&self, rules: Option<&[Rule]>) -> Result<(), SwitchError> {
        self.tables().set_rules(rules)
    }

    fn set_leases(&self, term: Option<Duration>) -> Result<(), SwitchError> {
        self.tables().set_leases(term)
    }

    fn set_side(&self, port: u16, side: u32) -> Result<(), SwitchError> {
        self.tables().set_side(port, side)
    }

    fn set_faults(&self, faults: &Faults) -> Result<(), SwitchError> {
        if !faults.only_drop() {
            return Err(switches::only_loses(NAME));
        }
        self.tables().set_loss(faults.drop_ppm)
    }

    fn counters(&self, port: u16) -> Result<Counters, SwitchError> {
        switches::check_port(NAME, port)?;
        self.tables().counters(port)
    }

    fn hot_pages(&self, count: usize) -> Result<Vec<HotPage>, SwitchError> {
        let pages = self.tables().take_hot()?;
        Ok(switches::hottest(pages, count))
    }

    fn events(&self) -> Result<Vec<Event>, SwitchError> {
        Ok(self.tables().take_events())
    }
}
