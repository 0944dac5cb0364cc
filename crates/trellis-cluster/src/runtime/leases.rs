//! A region that lies at memory servers: its making, the announcement of its place, and the connection of its pages to
//! the rest of the node.
//!
//! The manager makes the region's objects when all nodes have met, and tells the others where they are in reserved
//! words. It deletes the objects when all nodes have left. In between, nodes request pages from the servers
//! ([`trellis_remote::paging`]), not from each other. Everything else goes over the link as under any protocol.
//!
//! Promises: no node's program begins before the node knows where the region is. A node has committed all its changes
//! when it says that it leaves. A page that cannot be fetched is a failure of the node, which its peers hear like any
//! other.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use trellis_base::{Deadline, Limit};
use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::sync::{Demand, EventDemand, Operation};
use trellis_fabric_protocol::wire::address::{Cluster, Host, HostPrefix, Pointer};

use super::synchronisation::Timeout;
use super::{Node, synchronisation::RESERVED_FIRST};
use crate::cluster::WaitError;
use crate::launch::MEMORY_ENDS_VARIABLE;
use crate::waits::Wait;
use trellis_record::{FaultKind, LiveCounters};
use trellis_remote::paging::{self, Paging, objects};

/// The limit of calls of memory servers.
pub(crate) const SERVER: Deadline = Deadline {
    who: "a node whose region lies at memory servers",
    waits_for: "a server",
    limit: Limit::Other("`silence_seconds_max`"),
    then: "the node ends (exit status 70); the server, and which part of the region lies there",
    tested: "crates/trellis-cli/tests/remote_programs.rs a_run_ends_with_the_name_of_its_memory_server_that_is_killed",
};
/// How long a node waits to hear where the region lies. A node that joined late hears it at once.
pub(crate) const WHERE: Deadline = Deadline {
    waits_for: "the manager, to say where that is",
    limit: Limit::Other("`start_seconds_max`"),
    then: "`WaitError::TooLong`; the manager",
    tested: "the manager says it, or ends the cluster because it cannot",
    ..SERVER
};
/// The event that is set when the words below say where the region is. Trellis itself uses no other word or event when
/// pages are leased.
const KNOWN: u64 = RESERVED_FIRST;
/// The word with the number of objects.
const COUNT: u64 = RESERVED_FIRST + 1;
/// The first of the words that name the objects, two for each.
const FIRST: u64 = RESERVED_FIRST + 2;

/// This node's pages, and where they lie.
pub(super) struct Leases {
    paging: Arc<Paging>,
    objects: Vec<Pointer>,
    prefix: HostPrefix,
}

impl Leases {
    pub(super) fn prefetch(&self, pages: Range<u32>, write: bool) {
        self.paging.prefetch(pages, write);
    }
}

/// The node, as its pages see it. The reference does not keep the node alive.
struct Owner(Weak<Node>);

impl paging::Host for Owner {
    fn count(&self, counter: fn(&LiveCounters) -> &AtomicU64, amount: u64) {
        if let Some(node) = self.0.upgrade() {
            LiveCounters::add(counter(node.counters()), amount);
        }
    }

    fn served(&self, page: u64, kind: FaultKind, waited: Duration) {
        if let Some(node) = self.0.upgrade() {
            let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
            node.count_fault(page as u32, None, kind, node.now().saturating_sub(waited), waited);
        }
    }

    fn fail(&self, sentence: String) -> ! {
        match self.0.upgrade() {
            Some(node) => {
                node.fail(sentence);
                node.end_after_failure()
            }
            None => super::failure::end_process(&sentence),
        }
    }
}

impl Node {
    /// Makes the region usable; does nothing when the region does not lie at memory servers.
    ///
    /// # Errors
    ///
    /// A sentence: the servers do not answer, the manager does not say where the region lies, or threads cannot be
    /// started.
    pub(crate) fn begin_leases(self: &Arc<Node>) -> Result<(), String> {
        if !self.config.is_leased() {
            return Ok(());
        }
        let prefix = self.config.prefix.ok_or("prefix: the addresses of this host are not known")?;
        let pages = self.region.pages() as u64;
        let objects = match usize::from(self.me.0) == self.config.manager {
            true => {
                let objects = objects::create(&self.config.memory_servers, prefix, pages, self.timeout())?;
                self.tell_where(&objects).map_err(|error| error.to_string())?;
                objects
            }
            false => self.hear_where().map_err(|error| error.to_string())?,
        };
        let no_threads =
            |error| format!("threads for pages cannot be started ({error}); look at `ulimit -u` and `ulimit -n`");
        let owner = Box::new(Owner(Arc::downgrade(self)));
        let paging = Paging::new(Arc::clone(&self.region), self.config.cache_bytes_max, owner).map_err(no_threads)?;
        let paging = Arc::new(paging);
        let from = objects::Objects::open(&objects, prefix, pages, self.timeout(), &paging)?;
        paging.start(Arc::new(from)).map_err(no_threads)?;
        // This is called once.
        let _ = self.leases.set(Leases { paging, objects, prefix });
        Ok(())
    }

    /// Writes all changes to the servers. No thread of the program may use the region any more.
    pub(crate) fn flush_leases(&self) {
        if let Some(leases) = self.leases.get() {
            leases.paging.flush();
        }
    }

    /// Stops serving pages, when all nodes have left or the cluster has failed. The manager then deletes the objects.
    pub(crate) fn end_leases(&self) {
        let Some(leases) = self.leases.get() else { return };
        leases.paging.stop();
        let ends_anyway = std::env::var_os(MEMORY_ENDS_VARIABLE).is_some();
        if usize::from(self.me.0) == self.config.manager
            && !ends_anyway
            && let Err(sentence) = objects::delete(&leases.objects, leases.prefix, self.timeout())
        {
            trellis_output::lines::report(format_args!("node {}: {sentence}", self.me.0));
        }
    }

    /// How long a memory server may be silent.
    fn timeout(&self) -> Duration {
        Duration::from_secs(self.config.silence_seconds_max)
    }

    fn tell_where(&self, objects: &[Pointer]) -> Result<(), WaitError> {
        let put = |id, value| self.operate_as(id, Operation::Exchange(value), Wait::Atomic(id)).map(drop);
        for (number, object) in (0..).zip(objects) {
            let [one, two] = words_of(*object);
            put(FIRST + 2 * number, one)?;
            put(FIRST + 2 * number + 1, two)?;
        }
        put(COUNT, objects.len() as u64)?;
        self.demand_as(KNOWN, Demand::Event(EventDemand::Set), Timeout::Configured).map(drop)
    }

    fn hear_where(&self) -> Result<Vec<Pointer>, WaitError> {
        let wait = Demand::Event(EventDemand::Wait);
        let timeout = Duration::from_secs(self.config.start_seconds_max);
        if self.demand_as(KNOWN, wait, Timeout::For(timeout))?.is_none() {
            return Err(WaitError::TooLong {
                what: "waiting to hear where the region lies".to_owned(),
                seconds: self.config.start_seconds_max,
                whom: format!("{} did not say it", self.name_of(NodeId(self.config.manager as u16))),
            });
        }
        let load = |id| self.operate_as(id, Operation::Load, Wait::Atomic(id));
        let unknown =
            || WaitError::Misuse("where the region lies was told in words that this version does not know".to_owned());
        (0..load(COUNT)?)
            .map(|number| object_of([load(FIRST + 2 * number)?, load(FIRST + 2 * number + 1)?]).ok_or_else(unknown))
            .collect()
    }
}

/// Encodes a pointer in two words.
fn words_of(object: Pointer) -> [u64; 2] {
    let host = u64::from(object.home().0) << 48;
    [host | object.offset(), u64::from(object.cluster().number()) << 16 | u64::from(object.generation())]
}

fn object_of([one, two]: [u64; 2]) -> Option<Pointer> {
    let (host, offset) = (Host((one >> 48) as u16), one & ((1 << 48) - 1));
    Pointer::new(Cluster::new((two >> 16) as u32)?, host, two as u16, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_an_object_is_survives_two_words() {
        let cluster = Cluster::new(0x12_3456).expect("24 bits");
        for (host, generation, offset) in [(1, 0, 0), (0xfffe, 0xffff, (1 << 48) - 4096), (7, 0x1234, 0x5678_9000)] {
            let object = Pointer::new(cluster, Host(host), generation, offset).expect("an address");
            assert_eq!(object_of(words_of(object)), Some(object));
        }
    }
}
