//! The link `fabric`: frames through libfabric. Their sender writes bodies into the receiver's memory, or their
//! receiver reads them from the sender's.
//!
//! Promises: the contract of [`crate::links`], with frames in order. The memory given to [`Link::share`] is registered
//! once. A body whose place in the receiver's shared memory is known ([`Link::send_placed`]) is written there by a
//! one-sided write. Another body that lies in the sender's shared memory is named by its frame, and the receiver reads
//! it by one-sided reads, directly to where its sink placed it. No thread at the other side handles either if the
//! hardware does. With a provider in software the thread that polls the link does, and never a thread in which the
//! program computes.
//!
//! It must never be used on untrusted networks, because it does not protect frames: they are plain. What admits a
//! process (endpoint addresses, cookies, keys of memory) is exchanged over a tcp connection between each pair, which
//! requires the cluster's secret. Cookies keep out stray packets, nothing more.
//!
//! # How it works
//!
//! Each pair has the connection of the link `tcp`. Over it the two nodes exchange their endpoint addresses; its end is
//! the end of the pair. Frames then travel as packets of at most 8 KiB into buffers that the receiver posted; there
//! are never more in flight than it has buffers for. A body travels in one of three ways:
//!
//! * *in its packet*: up to 1 KiB, and up to what a packet holds if it does not lie in the shared memory;
//! * *written*: up to 32 KiB if its place is known. A page then takes one trip. A read takes two more, because it
//!   consists of the offer, the request and the answer. A sender's copy outside of the shared memory need not be
//!   registered for peers;
//! * *read*: everything else. For a long body, two more trips do not matter. Its receiver decides how much arrives at
//!   one time, and makes its memory exist before.
//!
//! A node that leaves waits until what it wrote is confirmed, then sends everything else that is unconfirmed over the
//! tcp connection. So nothing is lost and, except for writes, no node has to wait for a peer that does not poll.
//!
//! # Writes: when they are safe, and what orders them
//!
//! The bytes arrive before the receiver has learned of their frame, so they may go only where nothing looks until
//! then. The runtime sends the bytes of requested pages in this way: from the moment at which they are sent, the
//! receiver awaits every one of these pages and its program can access none. This requires no more than delivery does:
//! a protocol allows that a message arrives at any moment after it was sent, and the receiver refuses pages in another
//! state at whichever moment they arrive. So no peer announces places in its requests; a peer that is asked to forward
//! a request would have to forward them. The receiver still asks its sink, and drops a peer that wrote to another
//! place than the sink's. A write of a lost peer may arrive until the link is closed, which a receiver of writes
//! cannot know. That does not matter, because the pages of a lost peer stay inaccessible.
//!
//! A frame with a written body is delivered after two arrivals: the packet with its header, and the word of the write
//! (FI_REMOTE_CQ_DATA: node and number of the frame), which every provider delivers only after the bytes are in place.
//! They may arrive in either order, so no ordering between messages and writes (FI_ORDER_SAW) is requested: `tcp` and
//! `shm` support it, `efa` does not. With `tcp` the word is delivered by the receiver's poll that took the last byte
//! from the socket, with `shm` by the one that copied the body from the sender's memory, with `verbs` by the write
//! with immediate data, with `efa` and `cxi` by their own event. If a provider has no words of 4 bytes, or refuses
//! such a write, its peers read. Under `shm` no process writes into another's memory: the receiver copies, inside its
//! own calls, so an end of the link is the end of writes there too.
//!
//! The sender's completion need not mean that the bytes are there (FI_DELIVERY_COMPLETE, which costs `tcp` a packet
//! for each write, is not requested); the body is kept until the frame is confirmed. A node that leaves asks its peers
//! what they have delivered, and never sends a written body over the tcp connection: the write could arrive after it,
//! over what was stored since.
//!
//! # Locks
//!
//! The receiving side has one lock, which `poll` only tries; each peer's sending half has its own. A holder of the
//! receiving side may take sending halves, one at a time.
//!
//! # Modules
//!
//! `device` (libfabric, through `libfabric.c`), `packet` and `rendezvous` (bytes of what is sent over the fabric and
//! over tcp), `outward` and `inward` (the two halves of a pair), `rdma_write` (writes), `peers`, `progress` (a thread
//! for what has no event).

mod device;
mod inward;
mod outward;
mod packet;
mod peers;
mod progress;
mod rdma_write;
mod rendezvous;

use std::fmt;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::JoinHandle;

use thiserror::Error;

use self::device::Device;
pub use self::device::providers;
use self::inward::Poll;
use self::outward::NOWHERE;
use self::peers::Shared;
use crate::HEADER_BYTES;
use crate::links::roster::lock;
use crate::links::tcp::acceptor::spawn_without_signals;
use crate::links::tcp::{Answer, StartError, Tcp, TcpOptions};
use crate::links::{Choice, Link, LinkStatistics, Payload, SendError, SharedMemory, Sink};
use crate::wrap::secure::Security;

/// The options of one node's fabric link.
#[derive(Debug)]
pub struct FabricOptions {
    /// The connections over which nodes exchange addresses; their security must be [`Security::Plain`].
    pub tcp: TcpOptions,
    /// A provider of libfabric, such as `tcp`, `shm`, `verbs`, `efa` or `cxi`; empty for libfabric's own choice.
    pub provider: String,
}

/// Why a link could not be started.
#[derive(Debug, Error)]
pub enum FabricError {
    /// The connections could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Frames would be sent plain although that was not requested.
    #[error(
        "the link `fabric` carries frames as they are, and the nodes are to protect them; use it on loopback, or give \
         security = \"insecure-plain\" where the network is trusted"
    )]
    NotPlain,
    /// There is no endpoint.
    #[error(
        "the link `fabric` of node {node} cannot be made: {why}; `trellis doctor` lists the providers that are here"
    )]
    Device {
        /// The node's number.
        node: usize,
        /// The error message of libfabric.
        why: String,
    },
}

/// The fabric link of one node.
pub struct Fabric {
    shared: Arc<Shared>,
    progress_thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Fabric {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Fabric")
            .field("node", &self.shared.node)
            .field("nodes", &self.shared.peers.len())
            .field("provider", &self.provider())
            .finish_non_exhaustive()
    }
}

impl Fabric {
    /// Opens the endpoint and starts to connect to the peers; returns before any is connected.
    ///
    /// # Errors
    ///
    /// If no endpoint or socket is available, or if frames must not be sent plain.
    pub fn start(options: FabricOptions) -> Result<Fabric, FabricError> {
        Fabric::start_and_answer(options, Box::new(|_, _| Err("this cluster admits no new nodes".to_owned())))
    }

    /// Starts like [`Fabric::start`], and answers questions as the link `tcp` does.
    ///
    /// # Errors
    ///
    /// As [`Fabric::start`].
    pub fn start_and_answer(options: FabricOptions, answer: Answer) -> Result<Fabric, FabricError> {
        let (node, nodes) = (options.tcp.node, options.tcp.addresses.len());
        if options.tcp.security != Security::Plain {
            return Err(FabricError::NotPlain);
        }
        let host = options.tcp.addresses.get(node).and_then(|address| address.rsplit_once(':')).map(|(host, _)| host);
        let host = host.unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let device = open(node, options.provider, host, nodes.saturating_sub(1))?;
        let tcp = Tcp::start_and_answer(options.tcp, answer)?;
        let system = |source| FabricError::Start(StartError::System { node, source });
        let shared = Arc::new(Shared::new(tcp, device).map_err(system)?);
        let progress_thread = progress::spawn(&shared).map_err(system)?;
        Ok(Fabric { shared, progress_thread: Mutex::new(Some(progress_thread)) })
    }

    /// The provider that is used, by libfabric's name.
    pub fn provider(&self) -> &str {
        self.shared.device.provider()
    }

    /// The number of one-sided reads that this node began.
    pub fn one_sided_reads(&self) -> u64 {
        self.shared.one_sided_reads.load(Ordering::Relaxed)
    }

    /// The number of one-sided writes that this node began.
    pub fn one_sided_writes(&self) -> u64 {
        self.shared.one_sided_writes.load(Ordering::Relaxed)
    }
}

/// Opens the endpoint on a separate thread with all signals blocked: threads that a provider starts inherit that.
fn open(node: usize, provider: String, host: String, peers: usize) -> Result<Device, FabricError> {
    let (give, take) = std::sync::mpsc::channel();
    let run = move || {
        // The caller waits for it below.
        let _ = give.send(Device::open(&provider, &host, peers::receives_wanted(peers)));
    };
    let thread = spawn_without_signals(node, run).map_err(|source| StartError::System { node, source })?;
    // This wait ends with the thread, when libfabric has opened or refused the device.
    let opened = take.recv().unwrap_or_else(|_| Err("libfabric panicked".to_owned()));
    // The thread has sent its result and ends.
    let _ = thread.join();
    opened.map_err(|why| FabricError::Device { node, why })
}

impl Link for Fabric {
    fn node(&self) -> usize {
        self.shared.node
    }

    fn nodes(&self) -> usize {
        self.shared.peers.len()
    }

    fn send(&self, peer: usize, header: &[u8; HEADER_BYTES], payload: Payload<'_>) -> Result<(), SendError> {
        self.shared.send(peer, header, payload, NOWHERE)
    }

    fn send_placed(
        &self,
        peer: usize,
        header: &[u8; HEADER_BYTES],
        payload: Payload<'_>,
        place: usize,
    ) -> Result<(), SendError> {
        self.shared.send(peer, header, payload, place as u64)
    }

    fn share(&self, memory: SharedMemory) -> Result<(), String> {
        let _receive = lock(&self.shared.receive);
        if self.shared.closed.load(Ordering::SeqCst) {
            return Err("this link is closed".to_owned());
        }
        self.shared.device.share(memory)?;
        self.shared.tell_of_memory();
        Ok(())
    }

    fn way(&self, _peer: usize) -> Choice {
        Choice::Fabric
    }

    fn poll(&self, sink: &mut dyn Sink) -> bool {
        if self.shared.closed.load(Ordering::Relaxed) || self.shared.is_forked() {
            return false;
        }
        let mut receive = match self.shared.receive.try_lock() {
            Ok(receive) => receive,
            Err(TryLockError::WouldBlock) => return false,
            Err(TryLockError::Poisoned(poisoned)) => {
                self.shared.receive.clear_poison();
                poisoned.into_inner()
            }
        };
        if self.shared.closed.load(Ordering::SeqCst) {
            return false;
        }
        Poll { shared: &self.shared, receive: &mut receive, sink }.run()
    }

    fn readiness(&self) -> RawFd {
        self.shared.epoll.raw()
    }

    fn is_connected(&self, peer: usize) -> bool {
        self.shared.peers.get(peer).is_some_and(|peer| peer.stage.is_up())
    }

    fn is_lost(&self, peer: usize) -> bool {
        self.shared.peers.get(peer).is_some_and(|peer| peer.stage.is_lost())
    }

    fn trouble(&self, peer: usize) -> Option<String> {
        let there = self.shared.peers.get(peer)?;
        if let Some((_, why)) = &*lock(&there.broken) {
            return Some(format!("libfabric ({}) does not reach it: {why}", self.provider()));
        }
        if self.shared.tcp.is_connected(peer) && there.stage.is_absent() {
            return Some(format!("it is there, and libfabric ({}) has not opened the way to it yet", self.provider()));
        }
        self.shared.tcp.trouble(peer)
    }

    fn statistics(&self) -> LinkStatistics {
        self.shared.statistics()
    }

    fn close(&self) {
        let shared = &self.shared;
        // A forked child shares neither thread nor endpoint with the process that started the link.
        if shared.is_forked() || shared.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        shared.progress_thread.unpark();
        if let Some(thread) = lock(&self.progress_thread).take() {
            // A panic of the thread was printed when it happened, and is not propagated. The thread was woken, and ends
            // when it sees that the link is closed.
            let _ = thread.join();
        }
        let mut receive = lock(&shared.receive);
        let passed_over = shared.finish_writes();
        for index in (0..shared.peers.len()).filter(|&index| index != shared.node) {
            shared.detour(index);
        }
        shared.tcp.close();
        drop(passed_over);
        shared.end(&mut receive);
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            // Endpoint and thread are the parent's: ending them here would end them there.
            std::mem::forget(Arc::clone(&self.shared));
            std::mem::forget(lock(&self.progress_thread).take());
            return;
        }
        self.close();
    }
}
