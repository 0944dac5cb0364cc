//! The network interfaces of this machine.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address of an interface that is up, and the network around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// The number of leading bits of the address that all hosts of its network share.
    pub prefix_bits: u32,
}

impl Interface {
    /// The interface of this host in a network: a prefix such as `10.1.0.0/16`, or the name of an interface.
    ///
    /// # Errors
    ///
    /// A sentence that lists the interfaces of this machine.
    pub fn in_network(network: &str) -> Result<Interface, String> {
        let all = interfaces().map_err(|error| format!("cannot list the interfaces: {error}"))?;
        let is_wanted = |interface: &&Interface| match prefix(network) {
            Some((prefix, bits)) => is_in(prefix, bits, interface.address),
            None => interface.name == network,
        };
        // The kernel lists the addresses of an interface with IPv4 first.
        all.iter().find(is_wanted).cloned().ok_or_else(|| {
            let here: Vec<String> = all.iter().map(|one| format!("{} {}", one.name, one.address)).collect();
            format!("no address is in {network}; there are {}", here.join(", "))
        })
    }
}

fn prefix(text: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = text.split_once('/')?;
    Some((address.parse().ok()?, bits.parse().ok()?))
}

/// Whether an address begins with the first `bits` bits of a prefix.
pub fn is_in(prefix: IpAddr, bits: u32, address: IpAddr) -> bool {
    // A shift by the whole width gives `None`: with 0 bits, every address fits.
    match (prefix, address) {
        (IpAddr::V4(prefix), IpAddr::V4(address)) => {
            (prefix.to_bits() ^ address.to_bits()).checked_shr(32u32.saturating_sub(bits)).unwrap_or(0) == 0
        }
        (IpAddr::V6(prefix), IpAddr::V6(address)) => {
            (prefix.to_bits() ^ address.to_bits()).checked_shr(128u32.saturating_sub(bits)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// The addresses of the interfaces that are up.
///
/// # Errors
///
/// The errors of getifaddrs(3).
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `first` is writable; the list is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut all = Vec::new();
    let mut next = first;
    // SAFETY: each entry is valid until the list is freed, and the last one's `ifa_next` is null.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 {
            continue;
        }
        // SAFETY: getifaddrs made both, or left them null.
        let (address, mask) = unsafe { (address_of(entry.ifa_addr), address_of(entry.ifa_netmask)) };
        if let Some(address) = address {
            // SAFETY: the name ends with a zero.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
            // An address without a mask is a network of its own.
            let prefix_bits = match mask {
                Some(IpAddr::V4(mask)) => mask.to_bits().leading_ones(),
                Some(IpAddr::V6(mask)) => mask.to_bits().leading_ones(),
                None => 128,
            };
            all.push(Interface { name, address, prefix_bits });
        }
    }
    // SAFETY: returned by `getifaddrs`, and freed once; nothing of it is kept.
    unsafe { libc::freeifaddrs(first) };
    Ok(all)
}

/// # Safety
///
/// `given` is null, or an address of the family with which it begins.
unsafe fn address_of(given: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: an address, if there is one, begins with its family.
    let family = i32::from(unsafe { given.as_ref() }?.sa_family);
    // SAFETY: the family tells the kind of address.
    unsafe {
        match family {
            libc::AF_INET => {
                let address = given.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()).into())
            }
            libc::AF_INET6 => {
                let address = given.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_prefixes_or_interfaces() {
        let found = Interface::in_network("127.0.0.0/8").expect("every machine has a loopback interface");
        assert!(found.address.is_loopback() && found.name == "lo" && found.prefix_bits == 8, "{found:?}");
        assert_eq!(Interface::in_network("lo"), Ok(found));
        let missing = Interface::in_network("203.0.113.0/24").unwrap_err();
        assert!(missing.starts_with("no address is in 203.0.113.0/24; there are lo 127"), "{missing}");
    }

    #[test]
    fn a_prefix_contains_what_begins_with_it() {
        let contains = |prefix: &str, bits, address: &str| {
            is_in(prefix.parse().expect("an address"), bits, address.parse().expect("an address"))
        };
        assert!(contains("10.77.0.0", 24, "10.77.0.9") && !contains("10.77.0.0", 24, "10.77.1.9"));
        assert!(contains("fd00:1::", 32, "fd00:1:2::3") && !contains("fd00:1::", 32, "fd00:2::3"));
        assert!(contains("0.0.0.0", 0, "10.1.1.1") && !contains("0.0.0.0", 0, "fd00::1"));
    }
}
