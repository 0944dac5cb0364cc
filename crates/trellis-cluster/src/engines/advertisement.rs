//! The addresses at which a node can be reached, and the choice of one address for each node.
//!
//! Promises: the same advertisements give the same addresses at every node. An address that several hosts have, such as
//! that of a bridge for containers, is not chosen between these hosts.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;

use trellis_transport::{Interface, interfaces, is_in};

/// The first field, which changes with the form of the others.
const FORM: &str = "1";
/// The maximum length of the text in bytes. It must fit into a question of the link, with a name and a number.
pub(super) const ADVERTISEMENT_BYTES_MAX: usize = 160;

/// The addresses at which a node can be reached. As text: `1;HOST;PORT;ADDRESS/BITS,…`, or `1;HOST;PORT;@NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Advertisement {
    /// An identifier of the host: equal for all processes that share one loopback interface, and for no others.
    host: String,
    port: u16,
    place: Place,
}

/// Where the port is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// At the addresses of the host, each in its network.
    Networks(Vec<(IpAddr, u32)>),
    /// At this name or address, whatever the host has.
    Name(String),
}

impl Advertisement {
    /// The address of one interface.
    pub(super) fn of_interface(port: u16, interface: &Interface) -> Result<Advertisement, String> {
        Ok(Advertisement {
            host: host()?,
            port,
            place: Place::Networks(vec![(interface.address, interface.prefix_bits)]),
        })
    }

    /// The name or address that the user gave.
    pub(super) fn of_name(port: u16, name: String) -> Result<Advertisement, String> {
        Ok(Advertisement { host: host()?, port, place: Place::Name(name) })
    }

    /// The addresses of this host, with a port that listens at all of them: those of IPv4, or those of both kinds.
    pub(super) fn of_this_host(port: u16, has_ipv6: bool) -> Result<Advertisement, String> {
        let mut all = interfaces().map_err(|error| format!("cannot list the interfaces: {error}"))?;
        all.retain(|interface| can_be_reached(interface.address));
        all.retain(|interface| has_ipv6 || interface.address.is_ipv4());
        // Addresses of IPv4 come first: either every host of a cluster has one, or none has.
        all.sort_by_key(|interface| interface.address.is_ipv6());
        let mut networks: Vec<(IpAddr, u32)> = all.iter().map(|one| (one.address, one.prefix_bits)).collect();
        networks.dedup();
        let host = host()?;
        loop {
            let place = Place::Networks(networks.clone());
            let advertisement = Advertisement { host: host.clone(), port, place };
            if advertisement.to_string().len() <= ADVERTISEMENT_BYTES_MAX || networks.pop().is_none() {
                return Ok(advertisement);
            }
        }
    }

    /// Reads an advertisement. Returns also what follows it after a further `;`.
    pub(super) fn parse(text: &str) -> Option<(Advertisement, Option<&str>)> {
        let mut fields = text.split(';');
        fields.next().filter(|form| *form == FORM)?;
        let (host, port, place) = (fields.next()?.to_owned(), fields.next()?.parse().ok()?, fields.next()?);
        let network = |text: &str| {
            let (address, bits) = text.split_once('/')?;
            Some((address.parse().ok()?, bits.parse().ok()?))
        };
        let place = match place.strip_prefix('@') {
            Some(name) => Place::Name(name.to_owned()),
            None => {
                let networks = place.split(',').filter(|text| !text.is_empty()).map(network);
                Place::Networks(networks.collect::<Option<_>>()?)
            }
        };
        Some((Advertisement { host, port, place }, fields.next()))
    }

    /// Its addresses, if the user named none.
    fn networks(&self) -> &[(IpAddr, u32)] {
        match &self.place {
            Place::Networks(networks) => networks,
            Place::Name(_) => &[],
        }
    }

    /// Its name and port, if the user named it.
    fn named(&self) -> Option<String> {
        match &self.place {
            Place::Networks(_) => None,
            Place::Name(name) => Some(match name.parse::<IpAddr>() {
                Ok(address) => SocketAddr::from((address, self.port)).to_string(),
                Err(_) => format!("{name}:{}", self.port),
            }),
        }
    }

    /// The identifier of the host.
    pub(super) fn host(&self) -> &str {
        &self.host
    }
}

impl fmt::Display for Advertisement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{FORM};{};{};", self.host, self.port)?;
        match &self.place {
            Place::Name(name) => write!(formatter, "@{name}"),
            Place::Networks(networks) => networks.iter().enumerate().try_for_each(|(index, (address, bits))| {
                write!(formatter, "{}{address}/{bits}", if index == 0 { "" } else { "," })
            }),
        }
    }
}

/// Whether other hosts can use the address, without the number of an interface.
fn can_be_reached(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    }
}

/// The identifier of this host. A loopback interface belongs to one network namespace of one start of a kernel.
fn host() -> Result<String, String> {
    let unreadable = |error| format!("this host cannot be told from others: {error}; is /proc mounted?");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(unreadable)?;
    let namespace = fs::metadata("/proc/self/ns/net").map_err(unreadable)?.ino();
    Ok(format!("{}.{namespace:x}", boot.trim().replace('-', "")))
}

/// One address for each node, by which all others reach it. If the user named a network, it is used on one host, too; a
/// name that the user gave to a host is used by other hosts.
pub(super) fn addresses(all: &[Advertisement], is_network_named: bool) -> Result<Vec<String>, String> {
    let at = |node: &Advertisement, address: IpAddr| SocketAddr::from((address, node.port)).to_string();
    let first = all.first().ok_or("the job has no nodes")?;
    if !is_network_named && all.iter().all(|node| node.host == first.host) {
        return Ok(all.iter().map(|node| at(node, Ipv4Addr::LOCALHOST.into())).collect());
    }
    let is_shared = |node: &Advertisement, address: IpAddr| {
        all.iter().any(|other| other.host != node.host && other.networks().iter().any(|(theirs, _)| *theirs == address))
    };
    let find = |node: &Advertisement, is_wanted: &dyn Fn(IpAddr) -> bool| {
        let mut addresses = node.networks().iter().map(|(address, _)| *address);
        let found = addresses.find(|address| is_wanted(*address) && !is_shared(node, *address));
        node.named().or_else(|| found.map(|address| at(node, address)))
    };
    let unnamed = all.iter().find(|node| node.named().is_none()).unwrap_or(first);
    for (prefix, bits) in unnamed.networks() {
        let there = all.iter().map(|node| find(node, &|address| is_in(*prefix, *bits, address)));
        if let Some(addresses) = there.collect() {
            return Ok(addresses);
        }
    }
    // No network has all of them, so there are routes between networks.
    let anywhere = all.iter().enumerate().map(|(number, node)| {
        find(node, &|_| true).ok_or_else(|| {
            format!(
                "node {number} has no address by which other hosts could reach it; connect its host to a network, or \
                 name one in the key network, or its own in the key advertise"
            )
        })
    });
    anywhere.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Advertisement {
        Advertisement::parse(text).expect("it is well formed").0
    }

    #[test]
    fn this_host_is_advertised_as_text_that_is_read_back() {
        let mine = Advertisement::of_this_host(7, true).expect("interfaces can be listed");
        let text = mine.to_string();
        assert!(text.len() <= ADVERTISEMENT_BYTES_MAX && !text.contains(' '), "{text}");
        assert_eq!(Advertisement::parse(&text), Some((mine.clone(), None)));
        assert_eq!(Advertisement::parse(&format!("{text};word")), Some((mine, Some("word"))));
        let of_ipv4 = Advertisement::of_this_host(7, false).expect("interfaces can be listed");
        assert!(of_ipv4.networks().iter().all(|(address, _)| address.is_ipv4()), "{of_ipv4}");
        let interface = Interface::in_network("lo").expect("every machine has it");
        let of_one = Advertisement::of_interface(7, &interface).expect("it is a host");
        assert_eq!(of_one.networks(), [(Ipv4Addr::LOCALHOST.into(), 8)]);
        assert_eq!(addresses(&[of_one.clone(), of_one], true).unwrap(), ["127.0.0.1:7", "127.0.0.1:7"]);
        for wrong in ["", "2;h;7;", "1;h;x;", "1;h;7", "1;h;7;10.0.0.1"] {
            assert_eq!(Advertisement::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_name_that_was_given_to_a_host_is_used_by_other_hosts() {
        let named = Advertisement::of_name(7, "a.example.org".to_owned()).expect("it is a host");
        assert_eq!(Advertisement::parse(&named.to_string()), Some((named.clone(), None)));
        let others = [of("1;b;8;172.17.0.1/16,10.0.0.2/24"), of("1;c;9;10.0.0.3/24")];
        let all = [std::slice::from_ref(&named), &others[..]].concat();
        assert_eq!(addresses(&all, false).unwrap(), ["a.example.org:7", "10.0.0.2:8", "10.0.0.3:9"]);
        let of_ipv6 = [of("1;a;7;@fd00::1"), of("1;b;8;@10.9.9.9")];
        assert_eq!(addresses(&of_ipv6, false).unwrap(), ["[fd00::1]:7", "10.9.9.9:8"]);
        assert_eq!(addresses(&[named.clone(), named], false).unwrap(), ["127.0.0.1:7", "127.0.0.1:7"]);
    }

    #[test]
    fn nodes_of_one_host_use_its_loopback_interface() {
        let all = [of("1;a;7;10.0.0.1/24"), of("1;a;8;10.0.0.1/24")];
        assert_eq!(addresses(&all, false).unwrap(), ["127.0.0.1:7", "127.0.0.1:8"]);
    }

    #[test]
    fn hosts_use_the_first_network_that_all_of_them_have() {
        let all = [
            of("1;a;7;172.17.0.1/16,192.168.5.1/24,10.0.0.1/24"),
            of("1;b;8;10.0.0.2/24,172.17.0.1/16"),
            of("1;b;9;10.0.0.2/24,172.17.0.1/16"),
        ];
        assert_eq!(addresses(&all, false).unwrap(), ["10.0.0.1:7", "10.0.0.2:8", "10.0.0.2:9"]);
        let six = [of("1;a;7;fd00::1/64"), of("1;b;8;10.0.0.2/24,fd00::2/64")];
        assert_eq!(addresses(&six, false).unwrap(), ["[fd00::1]:7", "[fd00::2]:8"]);
    }

    #[test]
    fn hosts_of_different_networks_use_their_first_address() {
        let all = [of("1;a;7;172.17.0.1/16,10.0.1.1/24"), of("1;b;8;172.17.0.1/16,10.0.2.1/24")];
        assert_eq!(addresses(&all, false).unwrap(), ["10.0.1.1:7", "10.0.2.1:8"]);
        let alone = [of("1;a;7;10.0.1.1/24"), of("1;b;8;")];
        assert!(addresses(&alone, false).unwrap_err().starts_with("node 1 has no address"));
    }
}
