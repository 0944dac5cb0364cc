//! The thread of the switch `user`: receives frames, asks the directory, and sends them when they are due.
//!
//! It must never wait for a port: a frame that cannot be sent at once is lost, as in a switch whose queue is full.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::Shared;
use super::impairment::{Impairment, Leaving, Waiting};
use crate::entries::Port;
use crate::error::SwitchError;
use crate::sys;

/// The bytes before each frame, which describe its checksum offload.
const OFFLOAD_BYTES: usize = sys::PacketSocket::OFFLOAD_BYTES;
/// The maximum length of a frame, which an interface may segment later.
const FRAME_BYTES_MAX: usize = 65_536 + 64;
/// The maximum number of frames taken from one port before the others are checked.
const FRAMES_AT_ONCE: usize = 64;

/// The port of a host.
pub(super) struct Plug {
    number: u16,
    host_mac: [u8; 6],
    socket: sys::PacketSocket,
}

impl Plug {
    pub(super) fn open(port: &Port) -> Result<Plug, SwitchError> {
        let open = || sys::PacketSocket::open(sys::interface_index(&port.interface)?);
        let socket =
            open().map_err(|error| SwitchError::system(format!("open the interface {}", port.interface), &error))?;
        Ok(Plug { number: port.number, host_mac: port.host_mac, socket })
    }

    /// Its number, and the socket that tells how many frames the kernel dropped for it.
    pub(super) fn watched(&self) -> Result<(u16, sys::PacketSocket), SwitchError> {
        let socket = self.socket.again().map_err(|error| SwitchError::system("watch an interface", &error))?;
        Ok((self.number, socket))
    }
}

/// The state of the thread.
pub(super) struct Forwarder {
    shared: Arc<Shared>,
    plugs: Vec<Plug>,
    /// The index of a port's plug.
    places: HashMap<u16, usize>,
    ringing: sys::Ringing,
    waiting: Waiting,
    leaving: Vec<Leaving>,
}

impl Forwarder {
    pub(super) fn new(shared: Arc<Shared>, plugs: Vec<Plug>, ringing: sys::Ringing) -> Forwarder {
        let places = plugs.iter().enumerate().map(|(place, plug)| (plug.number, place)).collect();
        Forwarder { shared, plugs, places, ringing, waiting: Waiting::default(), leaving: Vec::new() }
    }

    /// Runs until the alarm is dropped.
    pub(super) fn run(mut self) {
        let mut buffer = vec![0; OFFLOAD_BYTES + FRAME_BYTES_MAX];
        loop {
            let timeout = self.waiting.next_in(sys::monotonic_ns());
            let descriptors: Vec<BorrowedFd<'_>> = std::iter::once(self.ringing.as_fd())
                .chain(self.plugs.iter().map(|plug| plug.socket.as_fd()))
                .collect();
            let ready = sys::wait_readable(&descriptors, timeout);
            if ready.first() == Some(&0) {
                return;
            }
            for place in ready {
                for _ in 0..FRAMES_AT_ONCE {
                    let Some(bytes) = self.plugs[place - 1].socket.receive(&mut buffer) else { break };
                    self.take(place - 1, &buffer[..bytes]);
                }
            }
            self.waiting.due(sys::monotonic_ns(), &mut self.leaving);
            self.put_out();
        }
    }

    /// Decides about a frame, given with the bytes before it.
    fn take(&mut self, place: usize, bytes: &[u8]) {
        if bytes.len() < OFFLOAD_BYTES {
            return;
        }
        let port = self.plugs[place].number;
        let now_ns = sys::monotonic_ns();
        let impairment = self.shared.impairments().next(port);
        let verdict = self.shared.directory().decide(port, &bytes[OFFLOAD_BYTES..], now_ns, || impairment.is_lost);
        let mut has_room = true;
        for to in verdict.copies.into_iter().chain(verdict.out) {
            has_room &= self.send(now_ns, to, bytes, &impairment);
        }
        if !has_room {
            self.shared.directory().overflowed(port, 1);
        }
        self.put_out();
    }

    fn send(&mut self, now_ns: u64, port: u16, bytes: &[u8], impairment: &Impairment) -> bool {
        let Some(&place) = self.places.get(&port) else { return true };
        let mut frame = bytes.to_vec();
        // The destination's hardware address comes first.
        if let Some(mac) = frame.get_mut(OFFLOAD_BYTES..OFFLOAD_BYTES + 6) {
            mac.copy_from_slice(&self.plugs[place].host_mac);
        }
        let packet = Leaving { port, frame };
        let again = impairment.is_repeated.then(|| packet.clone());
        let mut has_room = self.waiting.push(now_ns, packet, impairment, &mut self.leaving);
        if let Some(packet) = again {
            let plain = Impairment { is_overtaken: false, ..*impairment };
            has_room &= self.waiting.push(now_ns, packet, &plain, &mut self.leaving);
        }
        has_room
    }

    fn put_out(&mut self) {
        for packet in self.leaving.drain(..) {
            let Some(&place) = self.places.get(&packet.port) else { continue };
            if !self.plugs[place].socket.send(&packet.frame) {
                self.shared.directory().overflowed(packet.port, 1);
            }
        }
    }
}
