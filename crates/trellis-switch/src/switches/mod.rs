//! The switches, one file or folder each, and the selection of one.
//!
//! Every switch promises what [`crate::Switch`] says; the suite in `tests/conformance` is the same for all. A file here
//! must never depend on another kind of switch.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::str::FromStr;

use crate::address::{Cluster, HOME_BITS, Page, Prefix};
use crate::clock;
use crate::entries::{CLONES_MAX, Group, PAGE_ROUTES_MAX, PORTS_MAX, Port, Redirect, Rule};
use crate::error::SwitchError;
use crate::observed::HotPage;
use crate::switch::Switch;
use crate::sys;
use directory::Entry;

#[cfg(feature = "bpf")]
pub mod bpf;
mod directory;
pub mod nft;
#[cfg(feature = "openflow")]
pub mod openflow;
mod page_routes;
pub mod user;
pub mod waits;
mod worker;

/// The default capacity for redirects.
pub const REDIRECTS: u32 = 131_072;

/// A kind of switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchKind {
    /// What it is called.
    pub name: &'static str,
    /// Whether this build includes it. If not, the cargo feature of the same name is missing.
    pub is_built: bool,
    /// Whether it works in a user namespace, without privileges over the machine.
    pub is_rootless: bool,
    /// A short description.
    pub what: &'static str,
}

/// Every kind, and whether this build includes it. By default, the first one that is possible is chosen.
pub const KINDS: [SwitchKind; 4] = [
    SwitchKind { name: "bpf", is_built: cfg!(feature = "bpf"), is_rootless: false, what: "in the kernel, the fastest" },
    SwitchKind { name: "user", is_built: true, is_rootless: true, what: "a thread, with every fault on purpose" },
    SwitchKind { name: "nft", is_built: true, is_rootless: true, what: "in the kernel's packet filter" },
    SwitchKind {
        name: "openflow",
        is_built: cfg!(feature = "openflow"),
        is_rootless: false,
        what: "Open vSwitch, told over OpenFlow 1.3",
    },
];

impl SwitchKind {
    /// This kind, if this build includes it.
    ///
    /// # Errors
    ///
    /// [`SwitchError::NotBuilt`] if not.
    pub fn built(self) -> Result<SwitchKind, SwitchError> {
        if self.is_built { Ok(self) } else { Err(SwitchError::NotBuilt { name: self.name }) }
    }
}

/// Where the switch `bpf` is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attach {
    /// XDP if each host is behind an interface of its own and that interface supports it; otherwise tc.
    #[default]
    Auto,
    /// After the receive path: works everywhere, and is the fastest for pairs of interfaces.
    Tc,
    /// Before the receive path. With a pair, the host's end must accept frames before packets are built from them, and
    /// send complete checksums (`ethtool -K e0 gro on tx off`); a lab configures this.
    Xdp,
}

impl Attach {
    /// Its name in options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Attach::Auto => "auto",
            Attach::Tc => "tc",
            Attach::Xdp => "xdp",
        }
    }
}

impl FromStr for Attach {
    type Err = String;

    fn from_str(text: &str) -> Result<Attach, String> {
        let found = [Attach::Auto, Attach::Tc, Attach::Xdp].into_iter().find(|attach| attach.name() == text);
        found.ok_or_else(|| format!("`{text}` is no place for the switch bpf; accepted: auto, tc, xdp"))
    }
}

/// The parameters of a switch.
#[derive(Clone, Debug)]
pub struct Wiring {
    /// The cluster.
    pub cluster: Cluster,
    /// The ports of hosts.
    pub ports: Vec<Port>,
    /// The capacity for redirects.
    pub redirects_max: u32,
    /// Where the switch `bpf` is attached; [`Attach::Auto`] for others.
    pub attach: Attach,
}

/// The kind of switch with this name.
///
/// # Errors
///
/// [`SwitchError::Unknown`] for an unknown name.
pub fn kind(name: &str) -> Result<SwitchKind, SwitchError> {
    let found = KINDS.into_iter().find(|kind| kind.name == name);
    let built = KINDS.into_iter().filter(|kind| kind.is_built);
    let accepted = || built.map(|kind| kind.name).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| SwitchError::Unknown { name: name.to_owned(), accepted: accepted() })
}

/// Creates a switch from interfaces of the calling thread's network namespace.
///
/// # Errors
///
/// [`SwitchError::Unknown`], [`SwitchError::NotBuilt`], [`SwitchError::Refused`] for impossible ports, and whatever the
/// system refuses.
pub fn open(name: &str, wiring: &Wiring) -> Result<Box<dyn Switch>, SwitchError> {
    let kind = kind(name)?;
    check(kind.name, wiring)?;
    match kind.name {
        #[cfg(feature = "bpf")]
        "bpf" => Ok(Box::new(bpf::Bpf::open(wiring)?)),
        "nft" => Ok(Box::new(nft::Nft::open(wiring)?)),
        "user" => Ok(Box::new(user::User::open(wiring)?)),
        #[cfg(feature = "openflow")]
        "openflow" => Ok(Box::new(openflow::OpenFlow::start(wiring)?)),
        name => Err(SwitchError::NotBuilt { name }),
    }
}

/// Whether hosts must send complete checksums: a switch that takes frames from the kernel loses offload information.
pub(crate) fn needs_whole_checksums(switch: &str, attach: Attach) -> bool {
    attach == Attach::Xdp || switch == "openflow"
}

fn check(switch: &'static str, wiring: &Wiring) -> Result<(), SwitchError> {
    if wiring.attach != Attach::Auto && switch != "bpf" {
        let what = format!("it cannot be attached to {}; the switch `bpf` can", wiring.attach.name());
        return Err(SwitchError::Unsupported { switch, what });
    }
    let mut numbers: Vec<u16> = wiring.ports.iter().map(|port| port.number).collect();
    numbers.sort_unstable();
    if numbers.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(refused(switch, "two ports have the same number; number them 1, 2, 3 and so on"));
    }
    for number in numbers {
        check_port(switch, number)?;
    }
    Ok(())
}

/// Checks a port number.
pub(crate) fn check_port(switch: &'static str, port: u16) -> Result<(), SwitchError> {
    if port == 0 || port >= PORTS_MAX {
        return Err(refused(switch, format!("there is no port {port}; ports go from 1 to {}", PORTS_MAX - 1)));
    }
    Ok(())
}

/// Checks a prefix.
pub(crate) fn check_prefix(switch: &'static str, cluster: Cluster, prefix: Prefix) -> Result<(), SwitchError> {
    if prefix.address().octets()[..4] != cluster.scope() {
        return Err(refused(
            switch,
            format!("{prefix} is not of this cluster, whose addresses are {}", cluster.everything()),
        ));
    }
    Ok(())
}

/// Checks that a prefix is a whole home.
pub(crate) fn check_home(switch: &'static str, cluster: Cluster, prefix: Prefix) -> Result<(), SwitchError> {
    check_prefix(switch, cluster, prefix)?;
    if prefix.bits() != HOME_BITS {
        return Err(refused(switch, format!("{prefix} is not a whole home; give its {HOME_BITS} bits")));
    }
    Ok(())
}

/// Checks a group.
pub(crate) fn check_group(switch: &'static str, cluster: Cluster, group: &Group) -> Result<(), SwitchError> {
    check_home(switch, cluster, group.prefix)?;
    if group.ports.len() > CLONES_MAX {
        let (ports, prefix) = (group.ports.len(), group.prefix);
        return Err(refused(
            switch,
            format!("{ports} ports for copies of {prefix} are too many; give at most {CLONES_MAX}"),
        ));
    }
    group.ports.iter().try_for_each(|&port| check_port(switch, port))
}

/// The error that a group's home has no route.
pub(crate) fn no_route_to_copy(switch: &'static str, group: &Group) -> SwitchError {
    refused(switch, format!("{} leads nowhere, so nothing can be copied; set the prefix first", group.prefix))
}

/// The error that no host is connected at a port.
pub(crate) fn nothing_plugged_in(switch: &'static str, port: u16) -> SwitchError {
    refused(switch, format!("nothing is plugged in at port {port}; give a port that the switch was opened with"))
}

/// The number of a port's interface.
pub(crate) fn interface_index(port: &Port) -> Result<u32, SwitchError> {
    let name = &port.interface;
    sys::interface_index(name).map_err(|error| SwitchError::system(format!("find the interface {name}"), &error))
}

/// The error that loss is the only supported fault.
pub(crate) fn only_loses(switch: &'static str) -> SwitchError {
    let what = "it can lose packets but not delay, repeat or reorder them; the switch `user` can".to_owned();
    SwitchError::Unsupported { switch, what }
}

/// A directory's entry for a redirect.
fn noted(redirect: &Redirect) -> Entry {
    let until = clock::ticks_until(redirect.until);
    Entry { port: redirect.port, until, epoch: redirect.epoch, is_ending: false }
}

/// The redirect of a directory's entry.
fn redirect_of(entry: Entry) -> Redirect {
    Redirect { port: entry.port, epoch: entry.epoch, until: clock::instant_of(entry.until) }
}

/// Rules by key; those with the same key are combined.
pub(crate) fn rule_table(rules: &[Rule]) -> HashMap<u32, u16> {
    let mut table = HashMap::new();
    for rule in rules {
        *table.entry(rule.key()).or_insert(0) |= rule.classes.bits();
    }
    table
}

/// The error that there is no room for another page range.
pub(crate) fn no_room_for_page_route(switch: &'static str) -> SwitchError {
    SwitchError::Full { switch, table: "page routes", limit: PAGE_ROUTES_MAX, hint: "drop some" }
}

/// The pages with the most requests, most first; among equals, the lowest page first. `counted`: pages with the requests
/// that arrived at a port; port 0 if that is not known.
pub(crate) fn hottest(counted: impl IntoIterator<Item = (Page, u16, u64)>, count: usize) -> Vec<HotPage> {
    let mut pages: HashMap<Page, HotPage> = HashMap::new();
    for (page, port, requests) in counted {
        let hot = pages.entry(page).or_insert_with(|| HotPage { page, requests: 0, by_port: Vec::new() });
        hot.requests += requests;
        if port != 0 {
            hot.by_port.push((port, requests));
        }
    }
    let mut pages: Vec<HotPage> = pages.into_values().collect();
    pages.sort_unstable_by_key(|hot| (Reverse(hot.requests), hot.page));
    pages.truncate(count);
    pages.iter_mut().for_each(|hot| hot.by_port.sort_unstable_by_key(|&(port, requests)| (Reverse(requests), port)));
    pages
}

/// The error for an invalid entry.
pub(crate) fn refused(switch: &'static str, what: impl Into<String>) -> SwitchError {
    SwitchError::Refused { switch, what: what.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_switch_is_answered_with_what_is() {
        let sentence = kind("hub").unwrap_err().to_string();
        let bpf = if cfg!(feature = "bpf") { "bpf, " } else { "" };
        let openflow = if cfg!(feature = "openflow") { ", openflow" } else { "" };
        assert_eq!(sentence, format!("there is no switch `hub` here; accepted: {bpf}user, nft{openflow}"));
    }

    #[test]
    fn a_switch_that_is_not_compiled_in_names_the_next_step() {
        let missing: Vec<&str> = [("bpf", cfg!(feature = "bpf")), ("openflow", cfg!(feature = "openflow"))]
            .into_iter()
            .filter(|(_, is_built)| !is_built)
            .map(|(name, _)| name)
            .collect();
        let refused: Vec<&str> = KINDS.iter().filter(|kind| kind.built().is_err()).map(|kind| kind.name).collect();
        assert_eq!(refused, missing);
        for name in missing {
            let wiring =
                Wiring { cluster: Cluster::new(1), ports: Vec::new(), redirects_max: REDIRECTS, attach: Attach::Auto };
            assert_eq!(
                open(name, &wiring).map(|_| ()).unwrap_err().to_string(),
                format!(
                    "this build was made without the switch {name}; `cargo xtask install --prefix PREFIX --features \
                     {name}` installs one that has it"
                )
            );
        }
    }

    #[test]
    fn entries_that_cannot_be_are_refused() {
        let cluster = Cluster::new(1);
        let prefix = |text: &str| text.parse::<Prefix>().unwrap();
        assert!(check_prefix("x", cluster, prefix("fd00:1:5::/48")).is_ok());
        assert!(check_prefix("x", cluster, prefix("fd00:2:5::/48")).unwrap_err().to_string().contains("fd00:1::/32"));
        assert!(check_prefix("x", cluster, prefix("fd00:1::/48")).is_ok(), "anywhere is where somebody decides");
        assert!(check_home("x", cluster, prefix("fd00:1:5::/52")).unwrap_err().to_string().contains("48 bits"));
        assert!(check_port("x", 0).is_err() && check_port("x", PORTS_MAX).is_err() && check_port("x", 1).is_ok());
        let port = |number| Port { number, interface: "x".to_owned(), host_mac: [2; 6], is_pair: true };
        let wiring = Wiring { cluster, ports: vec![port(3), port(3)], redirects_max: REDIRECTS, attach: Attach::Auto };
        assert!(check("x", &wiring).unwrap_err().to_string().contains("same number"));
        let wiring = Wiring { attach: Attach::Xdp, ports: Vec::new(), ..wiring };
        assert!(check("bpf", &wiring).is_ok());
        assert!(check("nft", &wiring).unwrap_err().to_string().contains("attached to xdp; the switch `bpf` can"));
    }

    #[test]
    fn the_hottest_pages_and_their_ports_come_first() {
        let page = |number| Page { home: 7, number };
        let counted = [(page(1), 1, 4), (page(2), 1, 2), (page(2), 3, 3), (page(3), 0, 5), (page(4), 0, 1)];
        let hot = |number, requests, by_port: &[(u16, u64)]| HotPage {
            page: page(number),
            requests,
            by_port: by_port.to_vec(),
        };
        assert_eq!(hottest(counted, 3), [hot(2, 5, &[(3, 3), (1, 2)]), hot(3, 5, &[]), hot(1, 4, &[(1, 4)])]);
        assert_eq!(hottest([], 3), []);
    }

    #[test]
    fn places_are_read_as_they_are_written() {
        for attach in [Attach::Auto, Attach::Tc, Attach::Xdp] {
            assert_eq!(attach.name().parse(), Ok(attach));
        }
        assert!("ebpf".parse::<Attach>().unwrap_err().contains("auto, tc, xdp"));
    }
}
