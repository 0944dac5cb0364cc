//! The refusals of a server or a controller.
//!
//! Promises: every refusal is counted, by host and by reason, and reported the first time, the tenth, the hundredth and
//! so on. It must never tell more than 64 of them apart, or report more often than that times the digits of a count,
//! whatever unauthenticated peers send.

use alloc::vec::Vec;
use core::fmt;
use core::mem::{Discriminant, discriminant};
use core::net::Ipv6Addr;

use super::address::{Address, HostPrefix, Source};
use super::command::Command;
use super::datagram::Malformed;

/// The number of pairs of host and reason that are told apart; all others count as one.
const KNOWN_MAX: usize = 64;

/// The reasons of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// It is no request, or none that is handled here.
    NoRequest(Malformed),
    /// Only a controller sends that, and this server was configured with another controller.
    NoController(Command),
    /// That message is never sent to a controller.
    NotToController(Command),
    /// It comes from a controller or a server, and cannot be decoded.
    NotUnderstood(Command),
    /// It is longer than any datagram that this server takes.
    TooLong(usize),
}

/// The sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A host of a cluster.
    Host(HostPrefix),
    /// Any other address.
    Unknown(Ipv6Addr),
}

impl Sender {
    fn of(source: Address) -> Sender {
        let known = Source::decode(source)
            .map(|source| Sender::Host(HostPrefix { cluster: source.cluster, host: source.host }));
        known.unwrap_or(Sender::Unknown(Ipv6Addr::from(source.0)))
    }
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sender::Host(host) => write!(f, "host {host}"),
            Sender::Unknown(address) => write!(f, "{address}"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NoRequest(why) => {
                write!(f, "{why}; look which program sends it, and whether it has the same version")
            }
            Reason::NoController(command) => {
                write!(
                    f,
                    "{command} is what a controller says, and --controller does not name this host; name it there, or end it"
                )
            }
            Reason::NotToController(command) => {
                write!(f, "{command} is nothing that a controller is asked; look which program sends it")
            }
            Reason::NotUnderstood(command) => {
                write!(f, "this {command} is not understood; start servers and controllers of one version")
            }
            Reason::TooLong(bytes) => write!(f, "its {bytes} bytes are more than a datagram of this version has"),
        }
    }
}

/// A refusal, and how often it has happened: one sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Who sent it.
    pub sender: Sender,
    /// The reason.
    pub why: Reason,
    /// The number of refusals of that sender for that reason.
    pub times: u64,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Refusal { sender, why, times: 1 } => write!(f, "a datagram of {sender} is refused: {why}"),
            Refusal { sender, why, times } => write!(f, "{times} datagrams of {sender} were refused so far: {why}"),
        }
    }
}

/// See the documentation of this module.
#[derive(Debug, Default)]
pub struct Refusals {
    counts: Vec<(Option<(Sender, Kind)>, u64)>,
}

type Kind = (Discriminant<Reason>, Option<Discriminant<Malformed>>);

impl Refusals {
    /// Counts one. Returns the report, if one is due.
    pub fn count(&mut self, source: Address, why: Reason) -> Option<Refusal> {
        let sender = Sender::of(source);
        let malformed = match &why {
            Reason::NoRequest(why) => Some(discriminant(why)),
            _ => None,
        };
        let known = Some((sender, (discriminant(&why), malformed)));
        let place_of = |key| self.counts.iter().position(|(counted, _)| *counted == key);
        let key = known.filter(|_| self.counts.len() < KNOWN_MAX || place_of(known).is_some());
        let place = place_of(key).unwrap_or_else(|| {
            self.counts.push((key, 0));
            self.counts.len() - 1
        });
        let times = &mut self.counts[place].1;
        *times += 1;
        trellis_base::is_worth_reporting(*times).then_some(Refusal { sender, why, times: *times })
    }

    /// How many there were.
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: u16) -> Address {
        Address(Ipv6Addr::new(0xfd00, 1, host, 1, 0, 0, 0, 1).octets())
    }

    #[test]
    fn a_refusal_is_said_once_and_then_ever_more_rarely() {
        let mut refusals = Refusals::default();
        let said = |refusals: &mut Refusals, host| refusals.count(address(host), Reason::NoRequest(Malformed::Tag));
        let times: Vec<u64> = (1..=1_000).filter_map(|_| said(&mut refusals, 7)).map(|refusal| refusal.times).collect();
        assert_eq!(times, [1, 10, 100, 1_000]);
        assert_eq!(said(&mut refusals, 8).map(|refusal| refusal.times), Some(1), "another host");
        assert_eq!(refusals.total(), 1_001);
        let other = refusals.count(address(7), Reason::NoRequest(Malformed::NoKey));
        assert_eq!(other.map(|refusal| refusal.times), Some(1), "another reason");
    }

    #[test]
    fn unknown_senders_fill_nothing() {
        let mut refusals = Refusals::default();
        let said = (0..10_000).filter_map(|host| refusals.count(address(host), Reason::TooLong(1 << 16))).count();
        assert!(refusals.counts.len() <= KNOWN_MAX + 1, "{}", refusals.counts.len());
        assert!(said < KNOWN_MAX + 5, "{said}");
    }
}
