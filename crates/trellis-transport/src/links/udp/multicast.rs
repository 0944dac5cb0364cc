//! Multicasts: one datagram for several peers, where the network supports it.
//!
//! Promises: a peer that receives no multicasts, or stops receiving them, is sent to separately. A multicast is
//! accepted only if it was introduced over the authenticated connection with its sender.
//!
//! It must never send frames (`multicast_output` does), or decide what to send again (the connections do: see
//! `delivery`).
//!
//! # Receivers
//!
//! Every node with two peers or more chooses a group for what it sends: an address that all nodes share, and its own
//! port. It introduces the group to each peer over their connection, and multicasts datagrams without a fragment until
//! the peer reports that it received one. A peer that does not is tried again for some seconds, then no longer. The
//! same holds for a peer that misses [`MISSES_MAX`] multicasts in a row, because a switch or a router stopped carrying
//! them.
//!
//! # Locks
//!
//! The sending half of the group has its own lock, taken after a receiving half and before sending halves.

use std::collections::VecDeque;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::datagram::Introduction;
use super::delivery::{Attempts, Heartbeats, Nanoseconds};
use super::multicast_datagram::{ADDRESSED_MAX, Reader, Writer};
use super::multicast_output::Waiting;
use super::peers::Peers;
use super::sockets::{self, Wire};
use super::timer;
use crate::links::descriptors::Descriptor;
use crate::links::roster::lock;
use crate::wrap::faulty::Faults;
use crate::wrap::secure::{Security, multicast_cipher, multicast_number, random};

/// The number of multicasts missed in a row after which a peer is treated as one that receives none.
const MISSES_MAX: u32 = 64;
/// The range of ports that are chosen here lies below the one from which systems assign ports.
const PORT_FIRST: u16 = 10_000;
const PORTS: u64 = 20_000;
/// The minimum number of peers: with fewer, a multicast saves nothing.
pub(super) const PEERS_MIN: usize = 2;
const NEVER: Nanoseconds = Nanoseconds::MAX;

/// Whether and where a node multicasts. As text: `auto`, `off`, `239.1.2.3` or `239.1.2.3:4567`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Multicast {
    /// To an address of 239.255.0.0/16 that is derived from the secret, and a port that most likely no other process
    /// uses.
    #[default]
    Automatic,
    /// Not at all: this node sends to every peer separately, and listens to no multicast.
    Off,
    /// To this address; to this port plus the number of the node, if one is given.
    Group {
        /// An IPv4 multicast address.
        address: Ipv4Addr,
        /// The port of node 0.
        port: Option<u16>,
    },
}

impl fmt::Display for Multicast {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Multicast::Automatic => formatter.write_str("auto"),
            Multicast::Off => formatter.write_str("off"),
            Multicast::Group { address, port: None } => write!(formatter, "{address}"),
            Multicast::Group { address, port: Some(port) } => write!(formatter, "{address}:{port}"),
        }
    }
}

impl FromStr for Multicast {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || {
            format!(
                "`{text}` is no group for multicasts; use auto, off, or an address from 224.0.0.0 to 239.255.255.255 \
                 with a port behind it if you like, such as 239.1.2.3:4567"
            )
        };
        let (address, port) = match text.trim() {
            "auto" => return Ok(Multicast::Automatic),
            "off" => return Ok(Multicast::Off),
            other => match other.split_once(':') {
                Some((address, port)) => (address, Some(port.parse::<u16>().map_err(|_| wrong())?)),
                None => (other, None),
            },
        };
        let address: Ipv4Addr = address.parse().map_err(|_| wrong())?;
        if address.is_multicast() && port != Some(0) {
            return Ok(Multicast::Group { address, port });
        }
        Err(wrong())
    }
}

/// The options of this node's multicasts.
pub(super) struct Setting {
    pub(super) multicast: Multicast,
    pub(super) secret: [u8; 32],
    pub(super) security: Security,
    pub(super) faults: Option<Faults>,
}

/// The multicasts of one node.
pub(super) struct Group {
    setting: Option<Setting>,
    pub(super) half: Mutex<Half>,
    /// Whether frames wait for room at their receivers.
    pub(super) is_waiting: AtomicBool,
    /// Whether this node listens to some peer's multicasts.
    pub(super) is_listening: AtomicBool,
    pub(super) packets_in: AtomicU64,
    pub(super) packets_out: AtomicU64,
    pub(super) packets_refused: AtomicU64,
}

/// The sending half.
pub(super) struct Half {
    pub(super) connection: Option<Connection>,
    /// Whether multicasts have turned out to be impossible here. They are not tried again.
    failed: bool,
    pub(super) heartbeats: Heartbeats,
    /// The attempts to introduce this group, by peer number.
    attempts: Vec<Attempts>,
    /// The buffer in which datagrams are assembled.
    pub(super) scratch: Vec<u8>,
    /// Frames that are not completely sent, in the order in which they were taken.
    pub(super) line: VecDeque<Waiting>,
}

pub(super) struct Connection {
    pub(super) wire: Wire,
    pub(super) writer: Writer,
    introduction: Introduction,
}

impl Group {
    pub(super) fn new(nodes: usize, setting: Setting) -> Group {
        let is_on = nodes > PEERS_MIN && setting.multicast != Multicast::Off;
        let half = Half {
            connection: None,
            failed: false,
            heartbeats: Heartbeats::default(),
            attempts: vec![Attempts::default(); if is_on { nodes } else { 0 }],
            scratch: Vec::new(),
            line: VecDeque::new(),
        };
        Group {
            setting: is_on.then_some(setting),
            half: Mutex::new(half),
            is_waiting: AtomicBool::new(false),
            is_listening: AtomicBool::new(false),
            packets_in: AtomicU64::new(0),
            packets_out: AtomicU64::new(0),
            packets_refused: AtomicU64::new(0),
        }
    }
}

impl Setting {
    /// Opens the group that this node sends to, through the interface with this address.
    fn connect(&self, node: usize, nodes: usize, interface: Ipv4Addr) -> Option<Connection> {
        let (epoch, salt) = (u64::from_le_bytes(random()?) | 1 << 63, random()?);
        let automatic = || {
            let [high, low] = multicast_number(&self.secret)?.to_be_bytes();
            // The address is at neither end of the range, so that it is not taken for a mask.
            Some(Ipv4Addr::new(239, 255, high, low.clamp(1, 254)))
        };
        let (address, port) = match self.multicast {
            Multicast::Off => return None,
            Multicast::Automatic => (automatic()?, None),
            Multicast::Group { address, port } => (address, port),
        };
        let port = match port {
            Some(first) => first.checked_add(u16::try_from(node).ok()?)?,
            None => PORT_FIRST + (epoch % PORTS) as u16,
        };
        let address = SocketAddrV4::new(address, port);
        let socket = sockets::multicast_sender(interface, address).ok()?;
        // No direction of a pair has this number.
        let way = (nodes * nodes + node) as u64;
        let cipher = multicast_cipher(&self.secret, node, &salt, self.security)?;
        Some(Connection {
            wire: Wire::new(socket, self.faults.as_ref(), way),
            writer: Writer::new(epoch, cipher),
            introduction: Introduction { epoch, salt, address },
        })
    }
}

impl Connection {
    /// Sends the given peers a datagram without a fragment, with the number of fragments sent to each of them.
    fn tell(&mut self, now: Nanoseconds, counts: &[(usize, u64)], scratch: &mut Vec<u8>) {
        let addressed = counts.iter().map(|&(peer, count)| (peer as u16, count));
        self.writer.head(false, addressed, None, scratch);
        self.writer.protect(scratch);
        self.wire.send_bytes(now, scratch);
    }
}

impl Peers {
    /// Schedules the introduction of a peer, which is up, to this node's multicasts.
    pub(super) fn meet(&self, peer: usize, interface: Option<Ipv4Addr>) {
        let (Some(setting), Some(interface)) = (&self.group.setting, interface) else { return };
        let mut half = lock(&self.group.half);
        if half.connection.is_none() && !half.failed {
            half.connection = setting.connect(self.roster.node, self.roster.count(), interface);
            half.failed = half.connection.is_none();
        }
        if half.connection.is_some() {
            let now = timer::now();
            half.attempts[peer].start(now);
            self.timer.set_by(now);
        }
    }

    /// Listens to the multicasts of a peer that introduced them. Returns the socket to watch for readiness.
    pub(super) fn listen(
        &self,
        peer: usize,
        introduction: &Introduction,
        interface: Ipv4Addr,
    ) -> Option<(Descriptor, Reader)> {
        let setting = self.group.setting.as_ref()?;
        // Its sender knows the secret, and still must not make this host listen to any address.
        if !introduction.address.ip().is_multicast() {
            return None;
        }
        let cipher = multicast_cipher(&setting.secret, peer, &introduction.salt, setting.security)?;
        let socket = sockets::multicast_receiver(interface, introduction.address).ok()?;
        Some((socket, Reader::new(self.roster.node as u16, introduction.epoch, cipher)))
    }

    /// Does what is due by the clock; returns when something is due next.
    pub(super) fn serve_group(&self, now: Nanoseconds) -> Nanoseconds {
        if self.group.setting.is_none() {
            return NEVER;
        }
        let mut half = lock(&self.group.half);
        self.advance(&mut half, now);
        let waiting = half.line.front().map_or(NEVER, |waiting| waiting.until);
        let Half { connection: Some(connection), heartbeats, attempts, scratch, .. } = &mut *half else { return NEVER };
        let mut counts = Vec::new();
        for (peer, attempts) in attempts.iter_mut().enumerate().filter(|(_, attempts)| attempts.due() <= now) {
            if !self.roster.is_up(peer) || self.hears_bytes(peer).is_some() {
                attempts.end();
                continue;
            }
            let mut output = lock(&self.roster.peers[peer].own.output);
            output.introduce(now, &connection.introduction);
            if !attempts.make(now) {
                counts.push((peer, output.fragments()));
            }
        }
        if heartbeats.due() <= now {
            let before = counts.len();
            let waiting = |peer: usize| Some((peer, lock(&self.roster.peers[peer].own.output).waits_for_multicast()?));
            let hearing = (0..self.roster.count()).filter(|&peer| self.hears_bytes(peer).is_some());
            counts.extend(hearing.filter_map(waiting));
            heartbeats.update(now, counts.len() > before);
        }
        for counts in counts.chunks(ADDRESSED_MAX) {
            connection.tell(now, counts, scratch);
            self.group.packets_out.fetch_add(1, Ordering::Relaxed);
        }
        connection.wire.release(now);
        let attempts = attempts.iter().map(Attempts::due).min().unwrap_or(NEVER);
        waiting.min(heartbeats.due()).min(attempts).min(connection.wire.due().unwrap_or(NEVER))
    }

    /// Notes that a peer reports receiving this node's multicasts, or misses too many of them.
    #[inline]
    pub(super) fn note_hearing(&self, peer: usize, says_so: bool, misses: u32, datagram_bytes: Option<usize>) {
        let to = &self.roster.peers[peer].own;
        match self.hears_bytes(peer) {
            Some(_) if misses >= MISSES_MAX => to.set_hears(None, true),
            // A peer that was marked deaf stays so.
            None if says_so && self.group.setting.is_some() => to.set_hears(datagram_bytes, false),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_as_they_are_written_and_wrong_ones_say_what_to_write() {
        for text in ["auto", "off", "239.1.2.3", "224.0.0.250:4567"] {
            assert_eq!(text.parse::<Multicast>().unwrap().to_string(), text);
        }
        let group = Multicast::Group { address: Ipv4Addr::new(239, 1, 2, 3), port: Some(70) };
        assert_eq!("239.1.2.3:70".parse(), Ok(group));
        for wrong in ["", "on", "10.0.0.1", "240.0.0.1", "239.1.2.3:", "239.1.2.3:0", "239.1.2.3:70000", "ff02::1"] {
            let sentence = wrong.parse::<Multicast>().unwrap_err();
            assert!(sentence.contains("use auto, off"), "{sentence}");
        }
    }
}
