//! The checks that need more than one key: sizes that must fit each other, numbers that must be nodes.
//!
//! Each error names the key that should be changed, at the place where it was given.

use super::{ConfigError, Home, LinkKind, NODES_MAX, Origin, Peers, Reader, Security};

/// Why a host cannot have another address over `udp`.
pub const DATAGRAMS_COME_FROM: &str = "over udp a node is known by the address from which its datagrams come";
pub(crate) const PAGE_BYTES_MIN: usize = 4 << 10;
const PAGE_BYTES_MAX: usize = 2 << 20;
const REGION_BYTES_MIN: usize = 64 << 10;
const REGION_BYTES_MAX: usize = 64 << 30;
/// The kernel refuses mappings below this address (`vm.mmap_min_addr`).
const ADDRESS_MIN: usize = 64 << 10;
/// The end of the lower half of 48-bit addresses, which both x86-64 and AArch64 have, less one guard page.
const ADDRESS_END: usize = (1 << 47) - 4096;

impl Reader {
    /// Checks the keys that depend on each other.
    pub(super) fn check(&mut self) -> Result<(), ConfigError> {
        self.check_page()?;
        self.round_libivy_region();
        self.check_region()?;
        self.check_heap()?;
        self.check_address()?;
        self.check_ranges()?;
        self.check_leases()?;
        self.check_consistency()?;
        self.check_engine()?;
        if self.draft.config.is_placed_by_engine() {
            // The number and the addresses of the nodes come later: see `Config::place`.
            return Ok(());
        }
        self.check_placed()
    }

    /// Checks what depends on the nodes.
    pub(super) fn check_placed(&self) -> Result<(), ConfigError> {
        self.check_link()?;
        self.check_nodes()
    }

    fn check_engine(&self) -> Result<(), ConfigError> {
        if self.draft.config.is_placed_by_engine() && self.draft.config.is_leased() {
            return Err(self.origin("home").error(
                "nodes of a region at memory servers cannot find each other through an engine or a rendezvous; list them in \
                 the key nodes, or start them with `trellis run`",
            ));
        }
        Ok(())
    }

    /// With several nodes, the configuration must say which one this process is.
    pub(super) fn check_node_is_known(&self) -> Result<(), ConfigError> {
        let nodes = self.draft.config.node_count();
        if nodes > 1 && !matches!(self.draft.config.peers, Peers::Join(_)) && !self.origins.contains_key("node") {
            return Err(self.origin("node").error(format!(
                "there are {nodes} nodes, and the number of this one is not set; start the program with \
                 `trellis run`, or set TRELLIS_NODE to a number from 0 to {}",
                nodes - 1
            )));
        }
        Ok(())
    }

    fn check_page(&self) -> Result<(), ConfigError> {
        let page = self.draft.config.page_bytes;
        if !page.is_power_of_two() || !(PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page) {
            let accepted = page.clamp(PAGE_BYTES_MIN, PAGE_BYTES_MAX).next_power_of_two();
            return Err(self.origin("page_bytes").error(format!(
                "{page} is not a page size; accepted: a power of two from 4096 to 2097152, such as {accepted}"
            )));
        }
        Ok(())
    }

    /// libivy rounds a region down to whole pages and has no minimum. A region of Trellis has at least 64 KiB, and a
    /// program that uses less does not notice.
    fn round_libivy_region(&mut self) {
        let of_libivy = self.is_libivy && matches!(self.origin("region_bytes"), Origin::File { .. });
        if of_libivy && self.draft.config.region_bytes >= self.draft.config.page_bytes {
            let least = REGION_BYTES_MIN.max(self.draft.config.page_bytes);
            let whole_pages =
                self.draft.config.region_bytes / self.draft.config.page_bytes * self.draft.config.page_bytes;
            self.draft.config.region_bytes = whole_pages.max(least);
        }
    }

    fn check_region(&self) -> Result<(), ConfigError> {
        let (region, page) = (self.draft.config.region_bytes, self.draft.config.page_bytes);
        if !(REGION_BYTES_MIN..=REGION_BYTES_MAX).contains(&region) {
            return Err(self
                .origin("region_bytes")
                .error(format!("{region} bytes are out of range; accepted: 64KiB to 64GiB")));
        }
        if !region.is_multiple_of(page) {
            return Err(self.origin("region_bytes").error(format!(
                "{region} is not a multiple of page_bytes ({page}); accepted: {} or {}",
                (region / page * page).max(REGION_BYTES_MIN.max(page)),
                region.div_ceil(page) * page
            )));
        }
        Ok(())
    }

    fn check_heap(&self) -> Result<(), ConfigError> {
        let (region, page) = (self.draft.config.region_bytes, self.draft.config.page_bytes);
        let Some(heap) = self.draft.config.heap_bytes else { return Ok(()) };
        if heap > region || !heap.is_multiple_of(page) {
            return Err(self.origin("heap_bytes").error(format!(
                "{heap} bytes are no part of the region; accepted: 0 to {region}, its region_bytes, in multiples of \
                 page_bytes ({page})"
            )));
        }
        Ok(())
    }

    fn check_address(&self) -> Result<(), ConfigError> {
        let (address, page) = (self.draft.config.base_address, self.draft.config.page_bytes);
        let wrong = |what: String| Err(self.origin("base_address").error(what));
        if !address.is_multiple_of(page) {
            let accepted = address / page * page;
            return wrong(format!(
                "{address:#x} is not a multiple of page_bytes ({page}); accepted: {accepted:#x}, for example"
            ));
        }
        let fits = address >= ADDRESS_MIN
            && address.checked_add(self.draft.config.region_bytes).is_some_and(|region_end| region_end <= ADDRESS_END);
        if !fits {
            return wrong(format!(
                "a region of {} bytes at {address:#x} is outside of what a process can map; accepted: {ADDRESS_MIN:#x} \
                 to {:#x}",
                self.draft.config.region_bytes,
                ADDRESS_END - self.draft.config.region_bytes
            ));
        }
        Ok(())
    }

    fn check_link(&self) -> Result<(), ConfigError> {
        if self.draft.config.advertise.is_some() && self.draft.config.link.has_datagrams() {
            let sentence = format!("{DATAGRAMS_COME_FROM}; set link = auto, or leave this key out");
            return Err(self.origin("advertise").error(sentence));
        }
        match self.draft.config.link {
            LinkKind::Fabric { .. } if cfg!(not(feature = "fabric")) => Err(self.origin("link").error(
                "this build has no link fabric; `cargo xtask install --prefix PREFIX --features fabric` installs one that has \
                 it, or set link = auto",
            )),
            LinkKind::Fabric { .. } if self.draft.config.security_in_use() != Security::InsecurePlain => {
                Err(self.origin("security").error(
                    "the link fabric carries frames as they are, so that a peer can read and change memory on its way; \
                     set security = insecure-plain where the network is trusted, or link = auto",
                ))
            }
            LinkKind::Fabric { .. } if self.draft.config.joiners_max > 0 => Err(self
                .origin("joiners_max")
                .error("no process can join a running cluster over fabric; set link = auto, or joiners_max = 0")),
            LinkKind::Udp { .. } if self.draft.config.joiners_max > 0 => Err(self
                .origin("joiners_max")
                .error("no process can join a running cluster over udp; set link = auto, or joiners_max = 0")),
            _ => Ok(()),
        }
    }

    /// Checks keys that only release consistency has, and those that it does not have.
    fn check_consistency(&mut self) -> Result<(), ConfigError> {
        let is_used = self.draft.config.has_release_consistency();
        if self.draft.config.coherence.is_release_consistent() && !self.origins.contains_key("home") {
            // A node usually works on the pages that it fills, and a home needs no message for its pages.
            self.draft.config.home = Home::FirstTouch;
        }
        if is_used && self.draft.config.joiners_max > 0 {
            return Err(self.origin("joiners_max").error(
                "under hlrc every node meets in barriers, and a node that joins later does not; set joiners_max = 0, or \
                 another coherence",
            ));
        }
        if !is_used && matches!(self.draft.config.home, Home::FirstTouch | Home::Migrating) {
            return Err(self.origin("home").error(
                "first-touch and migrating are for the protocol hlrc, under which a home is where the master copy is; set \
                 coherence = \"hlrc\", or home = \"interleaved\"",
            ));
        }
        Ok(())
    }

    fn check_ranges(&self) -> Result<(), ConfigError> {
        let (region, page) = (self.draft.config.region_bytes, self.draft.config.page_bytes);
        for range in &self.draft.config.coherence_ranges {
            let wrong = |what: String| Err(self.origin("coherence_ranges").error(format!("`{range}` {what}")));
            if range.end > region {
                return wrong(format!("ends outside of the region; accepted: at most {region}, its region_bytes"));
            }
            for byte in [range.first, range.end] {
                if !byte.is_multiple_of(page) {
                    return wrong(format!(
                        "begins or ends at byte {byte}, inside a page; accepted: multiples of page_bytes ({page})"
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_nodes(&self) -> Result<(), ConfigError> {
        let nodes = self.draft.config.node_count();
        if self.draft.config.capacity() > NODES_MAX {
            let joiners = self.draft.config.joiners_max;
            return Err(self.origin("joiners_max").error(format!(
                "{joiners} with {nodes} nodes are too many; accepted: at most {}, so that there are never more than \
                 {NODES_MAX} nodes",
                NODES_MAX.saturating_sub(nodes)
            )));
        }
        for (name, number) in [("manager", self.draft.config.manager), ("node", self.draft.config.node)] {
            if number >= nodes {
                let range = if nodes == 1 { "0, the only node".to_owned() } else { format!("0 to {}", nodes - 1) };
                return Err(self.origin(name).error(format!("there is no node {number}; accepted: {range}")));
            }
        }
        Ok(())
    }
}
