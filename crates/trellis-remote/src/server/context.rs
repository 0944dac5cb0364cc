//! What all ranges of a server share: the socket, the clock, the clients' ports, and the sending of messages.
//!
//! Promises: an answer is sent from the address of the request, a notice from the page's address, and a message to
//! servers and controllers from an address of this process. A datagram that cannot be sent counts as lost: the host that
//! waits for it asks again.

use std::collections::BTreeMap;
use std::time::Instant;

use trellis_fabric_protocol::lease::parts::Within;
use trellis_fabric_protocol::lease::{Epoch, RangeNumber};
use trellis_fabric_protocol::memory_server::Client;
use trellis_fabric_protocol::wire::address::{
    Address, Arguments, Destination, Host, HostPrefix, Incarnation, Pointer, Source,
};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::control::What;
use trellis_fabric_protocol::wire::datagram::{ControlMessage, Notice, Operation, Reply, Request, TagKind, seal};
use trellis_transport::links::ipv6::{Endpoint, Way};

use super::super::memory::ServerMemory;
use super::super::{Hardware, nanoseconds};
use super::controllers::Controllers;
use super::events::{Event, Place};

/// See the top of this file.
pub(super) struct Context {
    pub(super) endpoint: Endpoint,
    pub(super) prefix: HostPrefix,
    /// The port on which all servers and controllers listen.
    pub(super) port: u16,
    pub(super) began: Instant,
    /// The ports of clients that use leases, and when each was last heard.
    pub(super) ports: BTreeMap<Client, (u16, u64)>,
    /// The incarnation in the source addresses of this process's own messages.
    pub(super) incarnation: Incarnation,
    /// The number of notices and messages sent, counted from a random value.
    pub(super) sent: u64,
    /// A buffer for outgoing bytes.
    pub(super) room: Vec<u8>,
    /// Events for operators, in this order.
    pub(super) events: Vec<Event>,
    /// The controllers to which it reports.
    pub(super) controllers: Controllers,
    /// The memory left for ranges of other hosts.
    pub(super) spare_bytes: u64,
}

impl Context {
    pub(super) fn now(&self) -> u64 {
        nanoseconds(self.began)
    }

    /// The prefix of a host number.
    pub(super) fn prefix_of(&self, host: Host) -> HostPrefix {
        HostPrefix { host, ..self.prefix }
    }

    /// A part of a range with this many pages, by name.
    pub(super) fn place_of(&self, number: RangeNumber, within: Within, pages: u64) -> Place {
        Place { range: self.prefix_of(within.range.host()), part: Some(number), pages: (within.first, pages) }
    }

    /// Sends this answer to a client at a port; its bytes are those of `memory` from `offset` on.
    pub(super) fn reply(&mut self, reply: &Reply, memory: Option<&dyn ServerMemory>, offset: u64, port: u16) {
        let (mut header, small) = reply.encode();
        let (from, to) = (self.own(reply.from), reply.to.encode());
        let mut room = std::mem::take(&mut self.room);
        // The place of a refused request need not exist.
        let data = match (u64::from(reply.body.data_bytes()), memory) {
            (0, _) | (_, None) => &[],
            (bytes, Some(memory)) => memory.read(offset..offset + bytes, &mut room),
        };
        if seal(&mut header, from, to, [small.bytes(), data], &Hardware) {
            let _ = self.endpoint.send(&Way { from: from.0, to: to.0, port }, &[&header, small.bytes(), data]);
        }
        self.room = room;
    }

    /// Sends a notice about a page to a client without a current request.
    pub(super) fn notify(&mut self, to: Client, page: Pointer, command: Command, epoch: Epoch) {
        let Some(&(port, _)) = self.ports.get(&to) else { return };
        self.sent += 1;
        let Client { host, incarnation } = to;
        let to = Source { cluster: self.prefix.cluster, host, incarnation, request: self.sent };
        let from = page.request(command, Arguments::NONE);
        let mut header = Notice { from, to, tag_kind: TagKind::Checksum, epoch }.encode();
        let (from, to) = (from.encode(), to.encode());
        if seal(&mut header, from, to, [&[], &[]], &Hardware) {
            let _ = self.endpoint.send(&Way { from: from.0, to: to.0, port }, &[&header]);
        }
    }

    /// Sends an answer whose bytes are not from a memory of this server.
    pub(super) fn reply_with(&self, reply: &Reply, data: &[u8], port: u16) {
        let (mut header, small) = reply.encode();
        let (from, to) = (reply.from, reply.to.encode());
        if seal(&mut header, from, to, [small.bytes(), data], &Hardware) {
            let _ = self.endpoint.send(&Way { from: from.0, to: to.0, port }, &[&header, small.bytes(), data]);
        }
    }

    /// Sends a request to a home, as a client does; answers and notices come to this process. Under this number, or any.
    pub(super) fn ask(&mut self, number: Option<u64>, destination: Destination, epoch: Epoch) {
        let HostPrefix { cluster, host } = self.prefix;
        self.sent += 1;
        let source = Source { cluster, host, incarnation: self.incarnation, request: number.unwrap_or(self.sent) };
        let (operation, tag_kind) = (Operation::Plain, TagKind::Checksum);
        let request = Request { source, destination, tag_kind, is_once: false, is_release: false, epoch, operation };
        let (mut header, small) = request.encode();
        let (from, to) = (source.encode(), destination.encode());
        if seal(&mut header, from, to, [small.bytes(), &[]], &Hardware) {
            let way = Way { from: from.0, to: to.0, port: self.port };
            let _ = self.endpoint.send(&way, &[&header, small.bytes()]);
        }
    }

    /// Sends a message to another server or a controller.
    pub(super) fn send(&mut self, to: Host, message: &ControlMessage, page: &[u8]) {
        let body = message.encode();
        let HostPrefix { cluster, host } = self.prefix;
        self.sent += 1;
        let source = Source { cluster, host, incarnation: self.incarnation, request: self.sent };
        let destination = Pointer::to_host(cluster, to).request(message.command(), Arguments::NO_REPLY);
        let operation = Operation::Control { bytes: (body.len() + page.len()) as u32 };
        let tag_kind = TagKind::Checksum;
        let request = Request { source, destination, tag_kind, is_once: false, is_release: false, epoch: 0, operation };
        let (mut header, _) = request.encode();
        let (from, to) = (source.encode(), destination.encode());
        if seal(&mut header, from, to, [&body, page], &Hardware) {
            let _ = self.endpoint.send(&Way { from: from.0, to: to.0, port: self.port }, &[&header, &body, page]);
        }
    }

    /// Reports to the current controller.
    pub(super) fn report(&mut self, range: RangeNumber, what: What) {
        let Some((host, silent)) = self.controllers.report(self.now()) else { return };
        if let Some(before) = silent {
            let [host, before] = [host, before].map(|host| self.prefix_of(host));
            self.events.push(Event::Controller { host, before });
        }
        self.send(host, &ControlMessage { range, what }, &[]);
    }

    /// A request to any server, or to all, is answered from this server's address: a switch drops packets from addresses
    /// without a host.
    fn own(&self, from: Address) -> Address {
        match Destination::decode(from) {
            Ok(asked) if !asked.pointer.home().is_one() => {
                let HostPrefix { cluster, host } = self.prefix;
                Pointer::to_host(cluster, host).request(asked.command, asked.arguments).encode()
            }
            _ => from,
        }
    }
}
