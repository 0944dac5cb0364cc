//! The network interfaces of this machine.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The names and addresses of the interfaces that are up.
///
/// # Errors
///
/// Those of getifaddrs(3).
pub fn interfaces() -> io::Result<Vec<(String, IpAddr)>> {
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
        if let Some(address) = address_of(entry) {
            // SAFETY: the name ends with a zero.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            all.push((name.to_string_lossy().into_owned(), address));
        }
    }
    // SAFETY: returned by `getifaddrs`, and freed once; nothing of it is kept.
    unsafe { libc::freeifaddrs(first) };
    Ok(all)
}

fn address_of(entry: &libc::ifaddrs) -> Option<IpAddr> {
    // SAFETY: an address, where there is one, begins with its family.
    let family = i32::from(unsafe { entry.ifa_addr.as_ref() }?.sa_family);
    // SAFETY: the family tells the kind of address.
    unsafe {
        match family {
            libc::AF_INET => {
                let address = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()).into())
            }
            libc::AF_INET6 => {
                let address = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
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
    fn the_loopback_interface_is_there() {
        let all = interfaces().expect("every machine has some");
        assert!(all.iter().any(|(name, address)| name == "lo" && address.is_loopback()), "{all:?}");
    }
}
