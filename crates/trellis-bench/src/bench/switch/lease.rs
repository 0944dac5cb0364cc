//! UPDATE and RELEASE from one thread, through the same exchange of datagrams as a client's READ.
//!
//! Elsewhere a process keeps a lease and answers for its page; here only the grant is timed.

use std::time::{Duration, Instant};

use trellis::remote::{HostPrefix, Pointer};
use trellis_fabric_protocol::wire::address::{Address, Arguments, Incarnation, PORT, Source};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{
    Body, HEADER_BYTES, Operation, Reply, Request, Rules, Status, TagKind, Tags, seal,
};
use trellis_switch::lab::Host;
use trellis_transport::links::ipv6::{Ask, Endpoint, Exchange, Timing, Verdict};

use super::courses::Step;
use super::inside;
use super::served::{PAGE_BYTES, Pages, is_page};
use trellis_command::exit::{self, Failure};

/// The longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Checksums by the processor's own instruction, as servers and clients compute them.
struct Hardware;

impl Tags for Hardware {
    fn checksum(&self, pieces: &[&[u8]]) -> u32 {
        pieces.iter().fold(0, |checksum, piece| crc32c::crc32c_append(checksum, piece))
    }
}

/// A requester of leases.
pub(super) struct Leases {
    exchange: Exchange,
    prefix: HostPrefix,
    incarnation: Incarnation,
}

impl Leases {
    pub(super) fn open(host: &Host, prefix: HostPrefix) -> Result<Leases, Failure> {
        let endpoint = host.run(|| Endpoint::open(0)).map_err(|error| inside::failure(&error))?;
        let endpoint = endpoint.map_err(|error| Failure::new(exit::SYSTEM, format!("no socket for UDP: {error}")))?;
        // It equals the random number of the client on the same host only with probability 1/32,768.
        let incarnation = Incarnation::new(std::process::id() as u16 ^ 0x2a2a);
        let source = Source { cluster: prefix.cluster, host: prefix.host, incarnation, request: 0 }.encode();
        let first = *source.0.first_chunk().expect("an address is longer than half of it");
        Ok(Leases { exchange: Exchange::new(endpoint, first, PORT, 1, Timing::default()), prefix, incarnation })
    }

    /// Sends one request about a page; returns the status, the epoch, and the bytes if there are some.
    fn ask(&mut self, command: Command, pointer: Pointer, epoch: u64, page: &mut [u8]) -> Result<Reply, Failure> {
        let HostPrefix { cluster, host } = self.prefix;
        let number = self.exchange.numbers(1);
        let source = Source { cluster, host, incarnation: self.incarnation, request: number };
        let request = Request {
            source,
            destination: pointer.request(command, Arguments::NONE),
            tag_kind: TagKind::Checksum,
            is_once: false,
            is_release: false,
            epoch,
            operation: Operation::Plain,
        };
        let (mut header, small): ([u8; HEADER_BYTES], _) = request.encode();
        let to = request.destination.encode();
        seal(&mut header, source.encode(), to, [small.bytes(), &[]], &Hardware);
        let parts: [&[u8]; 2] = [&header, small.bytes()];
        let rules = Rules { cluster, least: TagKind::Checksum, tags: &Hardware };
        let mut found = None;
        let asked = self.exchange.ask(
            number,
            &[Ask { to: to.0, parts: &parts, is_more: false }],
            Instant::now() + TIMEOUT,
            &mut |_, arrived, payload| match Reply::decode(
                Address(arrived.source),
                Address(arrived.destination),
                payload,
                &rules,
            ) {
                Ok(reply) => {
                    if let Body::Leased { bytes, .. } = reply.body
                        && bytes as usize == page.len()
                    {
                        page.copy_from_slice(&payload[reply.body.data_at()..][..bytes as usize]);
                    }
                    found = Some(reply);
                    Verdict::Accepted
                }
                Err(_) => Verdict::Ignored,
            },
        );
        match (found, asked.into_iter().next()) {
            (Some(reply), _) => Ok(reply),
            (None, Some((_, error))) => Err(Failure::new(exit::SYSTEM, error.to_string())),
            (None, None) => Err(Failure::new(exit::SYSTEM, "a question has no end")),
        }
    }
}

/// A grant for each page in turn, given back after the round.
pub(super) struct Updates {
    leases: Leases,
    pages: Pages,
    next: usize,
    /// Page and epoch of each grant.
    granted: Vec<(usize, u64)>,
}

impl Updates {
    /// The inner error is the reason why the server grants nothing.
    pub(super) fn new(leases: Leases, pages: Pages) -> Result<Result<Updates, String>, Failure> {
        let mut updates = Updates { leases, pages, next: 0, granted: Vec::new() };
        match updates.update()? {
            Status::Ok => updates.settle().map(|()| Ok(updates)),
            status => Ok(Err(format!("the memory server grants no leases: {status}"))),
        }
    }

    fn update(&mut self) -> Result<Status, Failure> {
        let page = self.next % self.pages.count;
        self.next += 1;
        let mut bytes = [0; PAGE_BYTES];
        let reply = self.leases.ask(Command::Update, self.pages.pointer(page), 0, &mut bytes)?;
        if reply.status == Status::Ok {
            is_page(page, &bytes)?;
            self.granted.push((page, reply.epoch));
        }
        Ok(reply.status)
    }
}

impl Step for Updates {
    fn step(&mut self) -> Result<(), Failure> {
        match self.update()? {
            Status::Ok => Ok(()),
            status => Err(Failure::new(exit::FAILED, format!("a page that nobody has was not leased: {status}"))),
        }
    }

    fn settle(&mut self) -> Result<(), Failure> {
        for (page, epoch) in std::mem::take(&mut self.granted) {
            let reply = self.leases.ask(Command::Release, self.pages.pointer(page), epoch, &mut [])?;
            if reply.status != Status::Ok {
                let status = reply.status;
                return Err(Failure::new(exit::FAILED, format!("a lease could not be given back: {status}")));
            }
        }
        Ok(())
    }
}
