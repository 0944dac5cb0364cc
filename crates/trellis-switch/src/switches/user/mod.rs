//! The switch `user`: a thread that receives packets from the interfaces and sends them through others, with every
//! intentional fault.
//!
//! Promises: its decisions are the contract, step by step, in `switches::directory`; faults are the same for the same
//! seed, in `impairment`. It works in a user namespace, and keeps offloaded checksums, so that hosts need no setting.
//! It must never keep a packet longer than its delay, nor more than 65,536 of them.

mod forwarder;
mod impairment;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use impairment::Impairments;

use crate::address::{Cluster, HOME_BITS, Page, PageRange, Prefix};
use crate::capabilities::Capabilities;
use crate::clock;
use crate::entries::{Group, Redirect, Route, Rule};
use crate::error::SwitchError;
use crate::faults::Faults;
use crate::layout;
use crate::observed::{Counters, Event, HotPage};
use crate::switch::Switch;
use crate::switches::directory::Directory;
use crate::switches::worker::Worker;
use crate::switches::{self, Wiring};
use crate::sys;

const NAME: &str = "user";
const PREFIXES_MAX: u32 = layout::PREFIXES_MAX;

/// The state that the thread and the callers share.
struct Shared {
    directory: Mutex<Directory>,
    impairments: Mutex<Impairments>,
}

impl Shared {
    fn directory(&self) -> MutexGuard<'_, Directory> {
        // No holder of the lock leaves the directory half changed.
        self.directory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn impairments(&self) -> MutexGuard<'_, Impairments> {
        self.impairments.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The switch; the module's text says what it promises.
pub struct User {
    cluster: Cluster,
    redirects_max: u32,
    shared: Arc<Shared>,
    /// By port, the socket that tells how many frames the kernel dropped.
    watched: HashMap<u16, sys::PacketSocket>,
    _worker: Worker,
}

impl User {
    /// Takes over the interfaces in the calling thread's network namespace.
    pub(super) fn open(wiring: &Wiring) -> Result<User, SwitchError> {
        let numbers = wiring.ports.iter().map(|port| port.number);
        let shared = Arc::new(Shared {
            directory: Mutex::new(Directory::new(wiring.cluster, numbers, wiring.redirects_max)),
            impairments: Mutex::new(Impairments::new(Faults::default())),
        });
        let plugs = wiring.ports.iter().map(forwarder::Plug::open).collect::<Result<Vec<_>, _>>()?;
        let watched = plugs.iter().map(forwarder::Plug::watched).collect::<Result<HashMap<_, _>, _>>()?;
        let work = Arc::clone(&shared);
        let worker = Worker::start(move |ringing| forwarder::Forwarder::new(work, plugs, ringing).run())?;
        let (cluster, redirects_max) = (wiring.cluster, wiring.redirects_max);
        Ok(User { cluster, redirects_max, shared, watched, _worker: worker })
    }

    fn full(&self, table: &'static str, limit: u32) -> SwitchError {
        let hint = if table == "redirects" { "wait until some end, or open the switch with more" } else { "drop some" };
        SwitchError::Full { switch: NAME, table, limit, hint }
    }
}

impl Switch for User {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all(self.redirects_max)
    }

    fn cluster(&self) -> Cluster {
        self.cluster
    }

    fn set_prefix(&self, prefix: Prefix, route: Route) -> Result<(), SwitchError> {
        switches::check_prefix(NAME, self.cluster, prefix)?;
        switches::check_port(NAME, route.port)?;
        let mut directory = self.shared.directory();
        let is_longer = prefix.bits() > HOME_BITS && !directory.has_prefix(prefix);
        if is_longer && directory.longer_prefixes() >= PREFIXES_MAX as usize {
            return Err(self.full("prefixes", PREFIXES_MAX));
        }
        directory.set_prefix(prefix, route);
        Ok(())
    }

    fn drop_prefix(&self, prefix: Prefix) -> Result<bool, SwitchError> {
        switches::check_prefix(NAME, self.cluster, prefix)?;
        Ok(self.shared.directory().drop_prefix(prefix))
    }

    fn set_page_route(&self, range: PageRange, port: u16) -> Result<(), SwitchError> {
        switches::check_port(NAME, port)?;
        let mut directory = self.shared.directory();
        if !directory.has_room_for(range) {
            return Err(switches::no_room_for_page_route(NAME));
        }
        directory.set_page_route(range, port);
        Ok(())
    }

    fn drop_page_route(&self, range: PageRange) -> Result<bool, SwitchError> {
        Ok(self.shared.directory().drop_page_route(range))
    }

    fn page_routes(&self, home: u16) -> Result<Vec<(PageRange, u16)>, SwitchError> {
        Ok(self.shared.directory().page_routes(home))
    }

    fn set_redirect(&self, page: Page, redirect: Redirect) -> Result<bool, SwitchError> {
        switches::check_port(NAME, redirect.port)?;
        let done = self.shared.directory().set_redirect(page, switches::noted(&redirect), clock::ticks_now());
        done.ok_or_else(|| self.full("redirects", self.redirects_max))
    }

    fn drop_redirect(&self, page: Page, epoch: u64) -> Result<bool, SwitchError> {
        Ok(self.shared.directory().drop_redirect(page, epoch))
    }

    fn redirect(&self, page: Page) -> Result<Option<Redirect>, SwitchError> {
        let entry = self.shared.directory().redirect(page, clock::ticks_now());
        Ok(entry.map(switches::redirect_of))
    }

    fn sweep(&self) -> Result<u32, SwitchError> {
        Ok(self.shared.directory().sweep(clock::ticks_now()) as u32)
    }

    fn set_group(&self, group: &Group) -> Result<(), SwitchError> {
        switches::check_group(NAME, self.cluster, group)?;
        match self.shared.directory().set_group(group) {
            true => Ok(()),
            false => Err(switches::no_route_to_copy(NAME, group)),
        }
    }

    fn set_rules(&self, rules: Option<&[Rule]>) -> Result<(), SwitchError> {
        let rules = rules.map(switches::rule_table);
        if rules.as_ref().is_some_and(|rules| rules.len() > layout::RULES_MAX as usize) {
            return Err(self.full("rules", layout::RULES_MAX));
        }
        self.shared.directory().set_rules(rules);
        Ok(())
    }

    fn set_leases(&self, term: Option<Duration>) -> Result<(), SwitchError> {
        self.shared.directory().set_term(term.map(clock::ticks));
        Ok(())
    }

    fn set_side(&self, port: u16, side: u32) -> Result<(), SwitchError> {
        match self.shared.directory().set_side(port, side) {
            true => Ok(()),
            false => Err(switches::nothing_plugged_in(NAME, port)),
        }
    }

    fn set_faults(&self, faults: &Faults) -> Result<(), SwitchError> {
        *self.shared.impairments() = Impairments::new(*faults);
        Ok(())
    }

    fn counters(&self, port: u16) -> Result<Counters, SwitchError> {
        switches::check_port(NAME, port)?;
        let watched = self.watched.get(&port).map_or(Ok(0), sys::PacketSocket::take_dropped);
        let dropped = watched.map_err(|error| SwitchError::system("count what an interface lost", &error))?;
        let mut directory = self.shared.directory();
        directory.overflowed(port, u64::from(dropped));
        Ok(directory.counters(port))
    }

    fn hot_pages(&self, count: usize) -> Result<Vec<HotPage>, SwitchError> {
        let pages = self.shared.directory().take_hot();
        Ok(switches::hottest(pages, count))
    }

    fn events(&self) -> Result<Vec<Event>, SwitchError> {
        Ok(self.shared.directory().take_events())
    }
}
