//! The link `in_process`: queues between threads, for tests of the layers above.
//!
//! Promises: the contract of [`crate::links`], with two simplifications: a pinned body is copied when it is sent, and
//! all nodes are up from the start.
//!
//! It must never use sockets. It has no security, because all nodes are one process.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

use crate::links::descriptors::{Epoll, Event};
use crate::links::roster::{Traffic, lock};
use crate::links::{
    Choice, Link, LinkStatistics, Lost, Payload, PeerStatistics, Placement, SendError, Sink, check_sendable,
};
use crate::{BODY_BYTES_MAX, HEADER_BYTES, INLINE_BODY_BYTES_MAX, QUEUE_BYTES_MAX, QUEUED_FRAME_BYTES};

/// The maximum number of frames delivered from one peer in one poll, so that a fast peer does not starve the others.
const FRAMES_PER_POLL_MAX: usize = 64;

/// One node's end of a mesh.
pub struct InProcess {
    node: usize,
    mesh: Arc<Mesh>,
}

/// Creates a mesh of `nodes` nodes in this process.
///
/// # Errors
///
/// If the operating system has no more descriptors (two for each node).
pub fn mesh(nodes: usize) -> io::Result<Vec<InProcess>> {
    let mut ends = Vec::with_capacity(nodes);
    for _ in 0..nodes {
        let (epoll, event) = (Epoll::new()?, Event::new()?);
        epoll.add(event.descriptor(), false, 0)?;
        // The event is readable from the start: all peers are up, and no sink has been told yet.
        event.signal();
        ends.push(End { epoll, event, closed: AtomicBool::new(false) });
    }
    let lanes = (0..nodes * nodes).map(|_| Lane::new()).collect();
    let mesh = Arc::new(Mesh { ends, lanes });
    Ok((0..nodes).map(|node| InProcess { node, mesh: Arc::clone(&mesh) }).collect())
}

struct Mesh {
    ends: Vec<End>,
    /// The lanes; that from node `a` to node `b` has the number `a * nodes + b`.
    lanes: Vec<Lane>,
}

struct End {
    epoll: Epoll,
    event: Event,
    closed: AtomicBool,
}

/// One direction of one pair.
struct Lane {
    queue: Mutex<Queue>,
    /// Held while the receiver of this lane is inside its callbacks.
    receiving: Mutex<Receiving>,
    /// Set by the receiver when it refused a frame or saw the sender leave.
    broken: AtomicBool,
    traffic: Traffic,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<Frame>,
    held_bytes: usize,
}

struct Frame {
    header: [u8; HEADER_BYTES],
    body: Vec<u8>,
}

#[derive(Default)]
struct Receiving {
    announced: bool,
    lost: bool,
}

impl fmt::Debug for InProcess {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("InProcess").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Link for InProcess {
    fn node(&self) -> usize {
        self.node
    }

    fn nodes(&self) -> usize {
        self.mesh.ends.len()
    }

    fn send(&self, peer: usize, header: &[u8; HEADER_BYTES], payload: Payload<'_>) -> Result<(), SendError> {
        self.check(peer, payload.bytes())?;
        let lane = self.mesh.lane(self.node, peer);
        let body = match payload {
            Payload::Nothing => Vec::new(),
            Payload::Copy(bytes) => bytes.to_vec(),
            Payload::Pinned(_, 0) => Vec::new(),
            Payload::Pinned(pointer, bytes) => {
                // SAFETY: readable by the promise of `Payload::Pinned`.
                unsafe { std::slice::from_raw_parts(pointer, bytes) }.to_vec()
            }
        };
        let mut queue = lock(&lane.queue);
        let cost = QUEUED_FRAME_BYTES + body.len();
        if queue.held_bytes + cost > QUEUE_BYTES_MAX {
            return Err(SendError::QueueFull { peer, queued_bytes: queue.held_bytes });
        }
        queue.held_bytes += cost;
        lane.traffic.sent(body.len());
        queue.frames.push_back(Frame { header: *header, body });
        drop(queue);
        self.mesh.ends[peer].event.signal();
        Ok(())
    }

    fn way(&self, _peer: usize) -> Choice {
        Choice::InProcess
    }

    fn poll(&self, sink: &mut dyn Sink) -> bool {
        let end = &self.mesh.ends[self.node];
        if end.closed.load(Ordering::SeqCst) {
            return false;
        }
        // It is drained first: a frame that is sent from now on makes it readable again.
        end.event.drain();
        let mut frames = 0;
        let mut more = false;
        for peer in (0..self.nodes()).filter(|&peer| peer != self.node) {
            let lane = self.mesh.lane(peer, self.node);
            match lane.receiving.try_lock() {
                Ok(mut receiving) => {
                    let (delivered, rest) = self.receive(peer, lane, &mut receiving, sink);
                    frames += delivered;
                    more |= rest;
                }
                // The holder may have looked at the queue before the last frame arrived.
                Err(TryLockError::WouldBlock) => more = true,
                Err(TryLockError::Poisoned(poisoned)) => {
                    let why = "a callback panicked in the middle of a frame".to_owned();
                    let mut receiving = poisoned.into_inner();
                    self.lose(peer, lane, &mut receiving, &Lost::Broken { why }, sink);
                }
            }
        }
        if more {
            end.event.signal();
        }
        frames > 0
    }

    fn readiness(&self) -> RawFd {
        self.mesh.ends[self.node].epoll.raw()
    }

    fn is_connected(&self, peer: usize) -> bool {
        peer < self.nodes() && peer != self.node && !self.is_lost(peer)
    }

    fn is_lost(&self, peer: usize) -> bool {
        peer < self.nodes() && peer != self.node && self.mesh.lane(peer, self.node).broken.load(Ordering::SeqCst)
    }

    fn statistics(&self) -> LinkStatistics {
        let mut all = LinkStatistics::default();
        for peer in 0..self.nodes() {
            let (inward, outward) = (self.mesh.lane(peer, self.node), self.mesh.lane(self.node, peer));
            let (received, sent) = (inward.traffic.read(), outward.traffic.read());
            let queued_bytes = lock(&outward.queue).held_bytes as u64;
            let one =
                PeerStatistics { frames_in: received.frames_in, bytes_in: received.bytes_in, queued_bytes, ..sent };
            all.add_peer(one, inward.traffic.frames_refused());
        }
        (all.packets_in, all.packets_out) = (all.frames_in, all.frames_out);
        all
    }

    fn close(&self) {
        if self.mesh.ends[self.node].closed.swap(true, Ordering::SeqCst) {
            return;
        }
        // The sent frames are in the peers' queues already; the peers only have to look.
        for end in &self.mesh.ends {
            end.event.signal();
        }
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.close();
    }
}

impl InProcess {
    fn check(&self, peer: usize, bytes: usize) -> Result<(), SendError> {
        check_sendable(self.node, self.nodes(), peer, bytes)?;
        if self.mesh.ends[self.node].closed.load(Ordering::SeqCst) {
            return Err(SendError::Closed);
        }
        if self.is_lost(peer) || self.mesh.ends[peer].closed.load(Ordering::SeqCst) {
            return Err(SendError::Lost { peer, why: Lost::Ended });
        }
        Ok(())
    }

    /// Delivers what is queued; returns the number of frames and whether there is more.
    fn receive(&self, peer: usize, lane: &Lane, receiving: &mut Receiving, sink: &mut dyn Sink) -> (usize, bool) {
        if receiving.lost {
            return (0, false);
        }
        // Both are read before the queue, so the queue holds everything sent before.
        let ended = self.mesh.ends[peer].closed.load(Ordering::SeqCst);
        let refused_there = self.mesh.lane(self.node, peer).broken.load(Ordering::SeqCst);
        if !receiving.announced {
            receiving.announced = true;
            sink.connected(peer);
        }
        for delivered in 0..FRAMES_PER_POLL_MAX {
            let frame = {
                let mut queue = lock(&lane.queue);
                let frame = queue.frames.pop_front();
                if let Some(frame) = &frame {
                    queue.held_bytes -= QUEUED_FRAME_BYTES + frame.body.len();
                }
                frame
            };
            let Some(frame) = frame else {
                if ended || refused_there {
                    self.lose(peer, lane, receiving, &Lost::Ended, sink);
                }
                return (delivered, false);
            };
            if let Err(lost) = deliver(peer, lane, &frame, sink) {
                lane.traffic.refused();
                self.lose(peer, lane, receiving, &lost, sink);
                return (delivered, false);
            }
        }
        (FRAMES_PER_POLL_MAX, true)
    }

    /// Ends a pair on this side; the other side learns of it in its own poll.
    fn lose(&self, peer: usize, lane: &Lane, receiving: &mut Receiving, why: &Lost, sink: &mut dyn Sink) {
        if std::mem::replace(&mut receiving.lost, true) {
            return;
        }
        lane.broken.store(true, Ordering::SeqCst);
        *lock(&lane.queue) = Queue::default();
        self.mesh.ends[peer].event.signal();
        sink.lost(peer, why);
    }
}

impl Mesh {
    fn lane(&self, from: usize, to: usize) -> &Lane {
        &self.lanes[from * self.ends.len() + to]
    }
}

impl Lane {
    fn new() -> Lane {
        Lane {
            queue: Mutex::default(),
            receiving: Mutex::default(),
            broken: AtomicBool::new(false),
            traffic: Traffic::default(),
        }
    }
}

/// Puts one frame in its place. A stream cannot carry a body of another length than the receiver expects; a queue
/// could, so here that is an error.
fn deliver(peer: usize, lane: &Lane, frame: &Frame, sink: &mut dyn Sink) -> Result<(), Lost> {
    let refuse = |why: String| Lost::FrameRefused { why };
    let placement = sink.place(peer, &frame.header).map_err(|refused| refuse(refused.why.into_owned()))?;
    let (expected, shown): (usize, &[u8]) = match placement {
        Placement::Nothing => (0, &[]),
        Placement::Inline(bytes) if bytes <= INLINE_BODY_BYTES_MAX => (bytes, &frame.body),
        Placement::At { bytes, .. } if bytes <= BODY_BYTES_MAX => (bytes, &[]),
        Placement::Inline(bytes) | Placement::At { bytes, .. } => {
            let why = format!("its body of {bytes} bytes is longer than any frame may be");
            return Err(refuse(why));
        }
    };
    if expected != frame.body.len() {
        let why = format!("its body has {} bytes and not {expected}", frame.body.len());
        return Err(refuse(why));
    }
    if let Placement::At { pointer, bytes } = placement
        && bytes > 0
    {
        // SAFETY: writable for `bytes` bytes by the sink's promise; a queued frame is elsewhere.
        unsafe { pointer.copy_from_nonoverlapping(frame.body.as_ptr(), bytes) };
    }
    lane.traffic.received(frame.body.len());
    sink.deliver(peer, &frame.header, shown);
    Ok(())
}
