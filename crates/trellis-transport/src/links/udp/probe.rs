//! Tests whether this machine's interfaces carry multicasts, before a cluster runs.
//!
//! Promises: it sends one datagram for each interface, which does not leave the network of the interface, and awaits it
//! for a bounded time.
//!
//! It must never judge the network. A multicast that comes back to its host only shows that the host's kernel carries
//! multicasts. A cluster finds out at its start whether the switches between two hosts carry them.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use rustix::event::PollFlags;
use trellis_base::{Deadline, Limit};

use super::sockets;
use crate::links::descriptors::Descriptor;
use crate::links::tcp::sockets::{Received, receive, send_whole, wait};
use crate::wrap::secure::random;

/// How long a datagram may take from this host to itself.
pub(crate) const RETURN: Deadline = Deadline {
    who: "`trellis doctor`",
    waits_for: "a multicast from this host to itself",
    limit: Limit::milliseconds(500),
    then: "the interface is said not to carry multicasts",
    tested: "crates/trellis-transport/src/links/udp/probe.rs a_multicast_that_does_not_come_back_is_a_sentence",
};

/// An interface of this machine that is up and has an IPv4 address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Whether a multicast sent through it was received at it; otherwise a sentence.
    pub multicast: Result<(), String>,
}

/// Tries a multicast at every interface of this machine.
///
/// # Errors
///
/// If the system does not list its interfaces.
pub fn try_multicast() -> std::io::Result<Vec<Interface>> {
    let of_ipv4 = |interface: crate::Interface| match interface.address {
        IpAddr::V4(address) => Some(Interface { name: interface.name, address, multicast: try_one(address) }),
        IpAddr::V6(_) => None,
    };
    Ok(crate::interfaces()?.into_iter().filter_map(of_ipv4).collect())
}

fn try_one(interface: Ipv4Addr) -> Result<(), String> {
    let [high, low, port, word @ ..] =
        random::<19>().ok_or("the system has no random numbers; is /dev/urandom there?")?;
    let group = SocketAddrV4::new(Ipv4Addr::new(239, 255, high, low.clamp(1, 254)), 20_000 + u16::from(port));
    let heard = sockets::multicast_receiver(interface, group).map_err(|error| {
        format!("no group can be joined there ({error}); the interface or its driver lacks multicast")
    })?;
    let refused = |error| {
        format!("nothing can be sent to a group there ({error}); give the interface a route for 239.255.0.0/16")
    };
    let sender = sockets::multicast_sender(interface, group).map_err(refused)?;
    send_whole(sender.raw(), &word).map_err(refused)?;
    await_return(&heard, &word, RETURN.milliseconds() as i32)
}

/// Waits for the datagram that was sent to a group.
fn await_return(heard: &Descriptor, word: &[u8], timeout_ms: i32) -> Result<(), String> {
    let mut room = [0; 64];
    loop {
        wait(&[(heard, PollFlags::IN)], timeout_ms);
        match receive(heard, &mut room) {
            Received::Bytes(count) if room[..count] == *word => return Ok(()),
            // Another process sent it.
            Received::Bytes(_) => {}
            _ => return Err("what was sent to a group there did not come back; a firewall may drop it".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_multicast_that_does_not_come_back_is_a_sentence() {
        let [heard, sender] = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        sender.connect(heard.local_addr().unwrap()).unwrap();
        let heard = sockets::adopt(heard).unwrap();
        let why = await_return(&heard, b"word", 1).unwrap_err();
        assert!(why.contains("did not come back"), "{why}");
        for text in [b"another", &b"word"[..]] {
            sender.send(text).unwrap();
        }
        assert_eq!(await_return(&heard, b"word", 60_000), Ok(()));
    }

    #[test]
    fn the_loopback_interface_is_found_and_every_answer_is_a_sentence() {
        let all = try_multicast().unwrap();
        assert!(all.iter().any(|interface| interface.address.is_loopback()), "{all:?}");
        for interface in &all {
            assert!(!interface.name.is_empty());
            if let Err(why) = &interface.multicast {
                assert!(why.contains(';'), "{why}");
            }
        }
    }
}
