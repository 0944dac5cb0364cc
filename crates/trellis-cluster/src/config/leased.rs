//! The home `memory-server` and the coherence `lease`: each implies the other, and both need further keys.
//!
//! Promises: a configuration with one of the two has both. A key that does not go with them is refused, at the key that
//! should be changed.

#[cfg(feature = "remote")]
use trellis_fabric_protocol::wire::address::{HostPrefix, NotAnAddress, PAGE_BYTES};

use super::draft::Draft;
use super::keys::Wrong;
#[cfg(not(feature = "remote"))]
use super::no_prefix::{HostPrefix, NotAnAddress, PAGE_BYTES};
use super::values::{self, Raw};
use super::{Catch, Config, ConfigError, Home, Reader, ranges};

/// The word for pages under leases, beside those for protocols of nodes.
pub(super) const LEASE: &str = "lease";
/// The maximum number of memory servers of a region.
const SERVERS_MAX: usize = 32;
/// The minimum number of bytes in which pages are cached.
const CACHE_BYTES_MIN: usize = 1 << 20;
#[cfg(feature = "remote")]
const _: () = assert!(CACHE_BYTES_MIN == trellis_remote::paging::ROOM_BYTES_MIN);

impl Config {
    /// Whether the bytes of the region lie at memory servers, and nodes have pages under leases.
    pub fn is_leased(&self) -> bool {
        self.home == Home::MemoryServer
    }

    /// The word for what decides who may read or write a page now, as in the configuration and in reports.
    pub fn coherence_word(&self) -> String {
        if self.is_leased() { LEASE.to_owned() } else { self.coherence.to_string() }
    }
}

/// Reads the key `coherence`: a protocol of nodes, or leases.
pub(super) fn coherence(draft: &mut Draft, raw: &Raw) -> Result<(), Wrong> {
    draft.has_leases = matches!(raw, Raw::Text(text) if text.trim() == LEASE);
    if !draft.has_leases {
        draft.config.coherence = ranges::protocol(raw)?;
    }
    Ok(())
}

/// The prefix of one host.
pub(super) fn prefix(raw: &Raw) -> Result<HostPrefix, String> {
    of_text(&values::text(raw, "the prefix of a host, such as fd12:3456:7::/48")?)
}

/// The prefixes of several hosts, each once.
pub(super) fn prefixes(raw: &Raw) -> Result<Vec<HostPrefix>, Wrong> {
    let mut hosts: Vec<HostPrefix> = Vec::new();
    for (item, line) in values::addresses(raw)? {
        let at_line = |sentence| Wrong { line, sentence };
        let host = of_text(&item).map_err(at_line)?;
        if hosts.contains(&host) {
            return Err(at_line(format!("`{item}` is there twice; accepted: every memory server once")));
        }
        hosts.push(host);
    }
    Ok(hosts)
}

fn of_text(text: &str) -> Result<HostPrefix, String> {
    text.trim().parse().map_err(|why: NotAnAddress| {
        format!("`{text}` is not a prefix of a host: {why}; accepted: a prefix such as fd12:3456:7::/48")
    })
}

impl Reader {
    /// Checks which keys go with memory servers, and which do not.
    pub(super) fn check_leases(&mut self) -> Result<(), ConfigError> {
        let is_given = |key| self.origins.contains_key(key);
        if self.draft.has_leases && !is_given("home") {
            self.draft.config.home = Home::MemoryServer;
        }
        if !self.draft.config.is_leased() {
            return self.check_no_leases();
        }
        if is_given("coherence") && !self.draft.has_leases {
            return self.refuse(
                "coherence",
                "pages that lie at memory servers are had under leases; set coherence = \"lease\", leave it out, or set \
                 another home",
            );
        }
        if self.draft.config.page_bytes as u64 != PAGE_BYTES {
            return self
                .refuse("page_bytes", "leases are of pages of 4096 bytes; set page_bytes = 4096, or another home");
        }
        if !matches!(self.draft.config.catch, Catch::Auto | Catch::Handler) {
            return self.refuse(
                "catch",
                "a thread whose page is at a memory server must wait in the kernel while others take calls for it; set \
                 catch = \"handler\", leave it out, or set another home",
            );
        }
        if !self.draft.config.coherence_ranges.is_empty() {
            return self.refuse(
                "coherence_ranges",
                "all of a region that lies at memory servers is had under leases; leave this out, or set another home",
            );
        }
        if self.draft.config.joiners_max > 0 {
            return self.refuse(
                "joiners_max",
                "nobody can join a running cluster whose region lies at memory servers; set joiners_max = 0, or another home",
            );
        }
        if self.draft.config.memory_servers.len() > SERVERS_MAX {
            let servers = self.draft.config.memory_servers.len();
            let sentence = format!("{servers} memory servers are too many; accepted: at most {SERVERS_MAX}");
            return self.refuse("memory_server", &sentence);
        }
        if self.draft.config.cache_bytes_max < CACHE_BYTES_MIN {
            let cache = self.draft.config.cache_bytes_max;
            let sentence = format!("{cache} bytes hold too few pages; accepted: 1MiB and more");
            return self.refuse("cache_bytes_max", &sentence);
        }
        self.check_fabric()
    }

    fn check_no_leases(&self) -> Result<(), ConfigError> {
        if self.draft.has_leases {
            return self.refuse(
                "home",
                "coherence lease is for pages that lie at memory servers; set home = \"memory-server\", or another coherence",
            );
        }
        if self.origins.contains_key("memory_server") {
            return self.refuse(
                "memory_server",
                "only a region that lies at memory servers has any; set home = \"memory-server\", or leave this out",
            );
        }
        Ok(())
    }

    /// Checks that all hosts belong to one cluster.
    fn check_fabric(&self) -> Result<(), ConfigError> {
        let Some(own) = self.draft.config.prefix.or(self.draft.config.memory_servers.first().copied()) else {
            return Ok(());
        };
        match self.draft.config.memory_servers.iter().find(|server| server.cluster != own.cluster) {
            Some(other) => {
                let sentence =
                    format!("{other} is of another cluster of hosts than {own}; accepted: hosts of one cluster");
                self.refuse("memory_server", &sentence)
            }
            None => Ok(()),
        }
    }

    /// Checks what a node itself must know. A launcher may not know it yet.
    pub(super) fn check_servers_are_known(&self) -> Result<(), ConfigError> {
        let config = &self.draft.config;
        if !config.is_leased() {
            return Ok(());
        }
        if config.node == config.manager && config.memory_servers.is_empty() {
            return self.refuse(
                "memory_server",
                "no memory server is named for the region; start the program with `trellis run`, which starts one for \
                 the run, or name those that `trellis serve` runs",
            );
        }
        if config.prefix.is_none() {
            return self.refuse(
                "prefix",
                "the addresses of this host in the memory servers' network are not known; set it to a prefix such \
                 as fd12:3456:7::/48",
            );
        }
        Ok(())
    }

    fn refuse(&self, key: &'static str, sentence: &str) -> Result<(), ConfigError> {
        Err(self.origin(key).error(sentence))
    }
}

#[cfg(all(test, feature = "remote"))]
mod tests {
    use super::super::{Config, ConfigError, Home, Sources};

    fn load(settings: &[&str]) -> Result<Config, ConfigError> {
        settings.iter().fold(Sources::new(), |sources, setting| sources.set(*setting)).load()
    }

    const FULL: [&str; 2] = ["memory_server=fd12:3456:1001::/48,fd12:3456:1002::/48", "prefix=fd12:3456:7::/48"];

    #[test]
    fn either_word_means_both() {
        for word in ["home=memory-server", "coherence=lease"] {
            let config = load(&[word, FULL[0], FULL[1]]).unwrap();
            assert_eq!((config.home, config.coherence_word().as_str()), (Home::MemoryServer, "lease"));
            assert_eq!(config.memory_servers.len(), 2);
            assert!(config.agreement().contains("coherence=lease coherence_ranges=none home=memory-server"));
        }
        let config = load(&["coherence=lease", "coherence=migrate"]).unwrap();
        assert_eq!((config.home, config.coherence_word().as_str()), (Home::Manager, "migrate"), "the later one counts");
    }

    #[test]
    fn what_does_not_go_together_is_refused_where_it_was_said() {
        for (said, place, fact) in [
            ("coherence=ivy", "--set coherence=ivy: ", "had under leases"),
            ("page_bytes=16KiB", "--set page_bytes=16KiB: ", "4096 bytes"),
            ("catch=signal", "--set catch=signal: ", "set catch = \"handler\""),
            ("coherence_ranges=0-1MiB=ivy", "--set coherence_ranges=", "leave this out"),
            ("joiners_max=1", "--set joiners_max=1: ", "joiners_max = 0"),
            ("cache_bytes_max=64KiB", "--set cache_bytes_max=64KiB: ", "1MiB and more"),
            ("prefix=fd99:1:7::/48", "--set memory_server=", "another cluster"),
        ] {
            let sentence = load(&["home=memory-server", FULL[0], FULL[1], said]).unwrap_err().to_string();
            assert!(sentence.starts_with(place) && sentence.contains(fact), "{said}: {sentence}");
        }
        let sentence = load(&["memory_server=fd12:3456:7::/48"]).unwrap_err().to_string();
        assert!(sentence.contains("set home = \"memory-server\""), "{sentence}");
        assert!(
            load(&["coherence=lease", "home=manager"]).unwrap_err().to_string().starts_with("--set home=manager: ")
        );
        assert!(load(&[FULL[1]]).is_ok(), "a host may have addresses that it does not use");
        let sentence = load(&["home=memory-server", "memory_server=10.0.0.1"]).unwrap_err().to_string();
        assert!(sentence.contains("`10.0.0.1` is not a prefix of a host"), "{sentence}");
        let twice = load(&["home=memory-server", "memory_server=fd12:3456:7::/48,fd12:3456:7::/48"]).unwrap_err();
        assert!(twice.to_string().contains("twice"), "{twice}");
    }

    #[test]
    fn a_node_must_know_its_servers_and_whoever_starts_it_need_not() {
        let sentence = load(&["home=memory-server", FULL[1]]).unwrap_err().to_string();
        assert!(sentence.starts_with("memory_server: no memory server is named"), "{sentence}");
        let sentence = load(&["home=memory-server", FULL[0]]).unwrap_err().to_string();
        assert!(sentence.starts_with("prefix: the addresses of this host"), "{sentence}");
        assert!(Sources::new().set("home=memory-server").load_for_all().is_ok());
        let other = ["nodes=127.0.0.1:4001,127.0.0.1:4002", "node=1", "home=memory-server", FULL[1]];
        assert!(load(&other).is_ok(), "the manager says where the region lies");
    }
}
