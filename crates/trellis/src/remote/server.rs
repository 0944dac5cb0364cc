//! A memory server: one socket, one memory, one thread that answers.
//!
//! The thread takes a datagram, lets [`MemoryServer`] decide, and carries out what it orders, all of it before the next
//! datagram; so nothing here needs a lock, and an atomic addition is an addition.
//!
//! Must never answer whom it cannot tell, nor anything that says of itself that it is an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use trellis_memory::Arena;
use trellis_protocol::memory_server::{
    Decision, Effect, Input, MemoryServer, NoLeases, SessionLimits, Settings, StagingLimits, Statistics,
};
use trellis_protocol::wire::address::{Address, Destination, HostPrefix, PAGE_BYTES, Pointer};
use trellis_protocol::wire::datagram::{Body, Reply, Request, Rules, Status, TagKind, WRITE_BYTES_MAX, seal};
use trellis_transport::links::ipv6::{Arrived, Endpoint, Way};

use super::{Hardware, RemoteError, drawn, nanoseconds};

/// How often a server that hears nothing looks whether it shall stop, and how often time passes for what it remembers.
const TICK: Duration = Duration::from_millis(250);
/// The longest datagram there can be.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;
const SECOND: u64 = 1_000_000_000;

/// What a server keeps, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Its addresses: `fdCC:CCCC:HHHH::/48`.
    pub prefix: HostPrefix,
    /// How much memory it gives, in whole pages of 4 KiB.
    pub memory_bytes: u64,
    /// What one host may have of it; `None` for all.
    pub quota_bytes: Option<u64>,
    /// Where it listens.
    pub port: u16,
    /// The weakest tag that it takes.
    pub least: TagKind,
}

/// Ends a [`Server::serve`] from another thread or a signal handler.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Within a quarter of a second.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The server.
pub struct Server {
    endpoint: Endpoint,
    options: ServerOptions,
    logic: MemoryServer,
    arena: Arena,
    /// By their number, where they were needed.
    slots: Vec<Vec<u8>>,
    effects: Vec<Effect>,
    began: Instant,
    refused: u64,
}

impl Server {
    /// Takes memory and socket.
    ///
    /// # Errors
    ///
    /// When the memory is no whole page, or the system gives neither.
    pub fn open(options: ServerOptions) -> Result<Server, RemoteError> {
        let bytes = options.memory_bytes;
        if bytes < PAGE_BYTES || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(RemoteError::Setting(format!(
                "a memory of {bytes} bytes is no whole number of pages of {PAGE_BYTES} bytes; the next one is {}",
                bytes.max(1).next_multiple_of(PAGE_BYTES)
            )));
        }
        let arena = Arena::new(bytes).map_err(|error| RemoteError::Memory { bytes, error })?;
        let port = options.port;
        let endpoint = Endpoint::open(port).map_err(|error| RemoteError::Socket { port, error })?;
        // Its memory is new: no pointer and no session of a life before may mean anything now. Two lives within 18 hours
        // differ by their seconds, and pointers of one by 16 bits that were drawn.
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let slots = 1024;
        let settings = Settings {
            cluster: options.prefix.cluster,
            home: options.prefix.host,
            memory_bytes: bytes,
            generation: drawn()? as u16,
            incarnation: seconds as u16,
            quota_bytes: options.quota_bytes.unwrap_or(bytes),
            objects_max: 1 << 20,
            sessions: SessionLimits {
                sessions_max: 16 << 10,
                sessions_per_host_max: 1 << 10,
                silence_max: 60 * SECOND,
            },
            staging: StagingLimits { slots, slots_per_host_max: slots / 4, silence_max: 5 * SECOND },
        };
        let logic = MemoryServer::new(settings);
        let (slots, effects) = (vec![Vec::new(); slots], Vec::new());
        Ok(Server { endpoint, options, logic, arena, slots, effects, began: Instant::now(), refused: 0 })
    }

    /// Answers until it is told to stop.
    ///
    /// # Errors
    ///
    /// When the socket fails.
    pub fn serve(&mut self, stop: &Stop) -> Result<(), RemoteError> {
        let mut room = vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice();
        let mut ticked = Instant::now();
        while !stop.0.load(Ordering::Relaxed) {
            match self.endpoint.receive(&mut room).map_err(RemoteError::Failed)? {
                Some(arrived) if arrived.bytes <= room.len() => self.answer(&arrived, &room[..arrived.bytes]),
                Some(_) => self.refused += 1,
                None => self.endpoint.wait(TICK),
            }
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                self.step(Input::Tick, &[], 0);
            }
        }
        Ok(())
    }

    /// What happened so far, and what there is.
    pub fn statistics(&self) -> Statistics {
        self.logic.statistics()
    }

    /// How many datagrams were no requests.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn answer(&mut self, arrived: &Arrived, payload: &[u8]) {
        let (source, destination) = (Address(arrived.source), Address(arrived.destination));
        let rules = Rules { cluster: self.options.prefix.cluster, least: self.options.least, tags: &Hardware };
        match Request::decode(source, destination, payload, &rules) {
            Ok(request) => self.step(Input::Request(request), payload, arrived.port),
            Err(refused) => {
                self.refused += 1;
                let Some((to, status)) = refused.answer else { return };
                let (tag_kind, body) = (TagKind::Checksum, Body::Nothing);
                let reply = Reply {
                    to,
                    from: destination,
                    status,
                    tag_kind,
                    is_several: false,
                    is_last: false,
                    epoch: 0,
                    body,
                };
                self.send(&reply, 0, arrived.port);
            }
        }
    }

    /// Lets a fact be decided, and carries out what follows from it.
    fn step(&mut self, input: Input, payload: &[u8], port: u16) {
        let mut effects = std::mem::take(&mut self.effects);
        let mut next = Some(input);
        while let Some(input) = next.take() {
            self.logic.step(nanoseconds(self.began), input, &mut NoLeases, &mut effects);
            for effect in effects.drain(..) {
                if let Some(fact) = self.carry_out(effect, payload, port) {
                    debug_assert!(next.is_none(), "a request asks for one thing at a time");
                    next = Some(fact);
                }
            }
        }
        self.effects = effects;
    }

    /// Does one thing; what is a fact because of it.
    fn carry_out(&mut self, effect: Effect, payload: &[u8], port: u16) -> Option<Input> {
        let part = |at: u32, bytes: u32| &payload[at as usize..at as usize + bytes as usize];
        match effect {
            Effect::Reply { reply, offset } => self.send(&reply, offset, port),
            Effect::Write { offset, at, bytes } => {
                self.arena.write(offset..offset + u64::from(bytes)).copy_from_slice(part(at, bytes));
            }
            Effect::Stage { slot, position, at, bytes } => {
                let slot = &mut self.slots[slot as usize];
                slot.resize(WRITE_BYTES_MAX as usize, 0);
                let position = position as usize;
                slot[position..position + bytes as usize].copy_from_slice(part(at, bytes));
            }
            Effect::WriteStaged { slot, offset, bytes } => {
                let slot = &self.slots[slot as usize][..bytes as usize];
                self.arena.write(offset..offset + u64::from(bytes)).copy_from_slice(slot);
            }
            Effect::Zero { offset, bytes } => self.arena.zero(offset..offset + bytes),
            Effect::FetchAdd { request, offset, addend } => {
                return Some(self.replace(request, offset, |before| Some(before.wrapping_add(addend))));
            }
            Effect::CompareSwap { request, offset, expected, new } => {
                return Some(self.replace(request, offset, |before| (before == expected).then_some(new)));
            }
            // Nobody but this thread reads entries.
            Effect::Publish { .. } => {}
            Effect::Lease(lease) => {
                let decision = Decision::Refused { status: Status::UnknownCommand, epoch: 0 };
                return Some(Input::Decided(lease, decision));
            }
        }
        None
    }

    fn replace(&mut self, request: Request, offset: u64, with: impl Fn(u64) -> Option<u64>) -> Input {
        let bytes = self.arena.write(offset..offset + 8);
        let before = u64::from_le_bytes((&*bytes).try_into().expect("eight bytes"));
        if let Some(after) = with(before) {
            bytes.copy_from_slice(&after.to_le_bytes());
        }
        Input::Before(request, before)
    }

    fn send(&mut self, reply: &Reply, offset: u64, port: u16) {
        let (mut header, small) = reply.encode();
        let data = self.arena.read(offset..offset + u64::from(reply.body.data_bytes()));
        let (from, to) = (self.own(reply.from), reply.to.encode());
        if !seal(&mut header, from, to, [small.bytes(), data], &Hardware) {
            return;
        }
        let way = Way { from: from.0, to: to.0, port };
        // One that cannot go is as good as lost: whoever waits for it asks again.
        let _ = self.endpoint.send(&way, &[&header, small.bytes(), data]);
    }

    /// What was asked of any server, or of all, is answered by this one: a switch lets nothing pass that comes from an
    /// address of nobody.
    fn own(&self, from: Address) -> Address {
        match Destination::decode(from) {
            Ok(asked) if !asked.pointer.home().is_one() => {
                let HostPrefix { cluster, host } = self.options.prefix;
                Pointer::to_host(cluster, host).request(asked.command, asked.arguments).encode()
            }
            _ => from,
        }
    }
}
