//! The addresses of a peer that a node dials.
//!
//! Promises: each attempt gets another address of the name, in turn. It must never look a name up again after a look-up
//! has succeeded.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// The addresses of one peer.
#[derive(Default)]
pub(super) struct Addresses {
    resolved: Vec<SocketAddr>,
    attempts: usize,
}

impl Addresses {
    /// The address for the next attempt to reach `name`, a host and a port.
    pub(super) fn next(&mut self, name: &str) -> io::Result<SocketAddr> {
        if self.resolved.is_empty() {
            self.resolved = name.to_socket_addrs()?.collect();
        }
        let count = self.resolved.len();
        let Some(address) = self.resolved.get(self.attempts % count.max(1)) else {
            return Err(io::Error::other("the name has no address"));
        };
        self.attempts += 1;
        Ok(*address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_a_name_come_in_turn() {
        let [one, other] = ["127.0.0.1:1", "127.0.0.2:1"].map(|text| text.parse().expect("an address"));
        let mut addresses = Addresses { resolved: vec![one, other], attempts: 0 };
        let next: Vec<SocketAddr> = (0..3).map(|_| addresses.next("nowhere:1").expect("it is known")).collect();
        assert_eq!(next, [one, other, one]);
        assert!(Addresses::default().next("no port").is_err());
    }
}
