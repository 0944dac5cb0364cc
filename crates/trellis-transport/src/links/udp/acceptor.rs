//! The acceptor: one thread per link that performs handshakes by datagrams.
//!
//! Promises: an unauthenticated peer gets no byte, holds no place, and is counted. A peer that knows the secret and is
//! refused is told why, and so is this node's user. Once all peers are up the thread sleeps.
//!
//! It must never carry frames, or touch a connection after handing it over, except to repeat the last message of the
//! handshake until the peer has sent something.
//!
//! The dialler repeats its first message until it is answered. The listener repeats the identical answer to the same
//! first message from the same address, and to nothing else. An answer is as long as the message it answers, and only
//! a peer that knows the secret gets one. So a false address gains nothing, and no cookie is needed. The third message
//! proves that the dialler is alive now, so that a recording never becomes a connection.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use rustix::event::PollFlags;
use trellis_base::{Deadline, Limit};

use super::UdpOptions;
use super::delivery::Nanoseconds;
use super::input::{CONFIRMATION_DATAGRAM_BYTES, HANDSHAKE_MAGIC};
use super::peers::{Established, Peers};
use super::sockets::{self, Wire};
use super::timer;
use crate::links::Lost;
use crate::links::addresses::Addresses;
use crate::links::admission::{self, Rules};
use crate::links::descriptors::Descriptor;
use crate::links::tcp::acceptor::spawn_without_signals;
use crate::links::tcp::sockets::{Received, wait};
use crate::wrap::secure::{
    Answering, CONFIRMATION_BYTES, Carrier, Dialling, FIRST_MESSAGE_BYTES, NodeDescription, Remembered,
    SECOND_MESSAGE_BYTES,
};

/// Answers kept for peers that did not receive them.
const ANSWERED_MAX: usize = 64;
/// How long a first message is remembered after it was answered.
pub(crate) const HANDSHAKE: Deadline = Deadline {
    who: "the link udp",
    waits_for: "a node that has proved that it knows the secret, for its last message",
    limit: Limit::seconds(60),
    then: "its answer is forgotten, and the node may begin again",
    tested: "crates/trellis-transport/src/links/udp/acceptor.rs an_answer_that_is_not_confirmed_is_forgotten",
};
/// Maximum datagrams handled before other work.
const RECEIVES_MAX: usize = 32;
/// The pause between two attempts: the first, and the maximum.
const AGAIN_NS_MIN: Nanoseconds = 20_000_000;
const AGAIN_NS_MAX: Nanoseconds = 250_000_000;
/// After so many the dialler starts again, with a new first message and the next address of the name: an attacker may
/// have been quicker with a copy of the previous one.
const ASKED_MAX: u32 = 20;
/// The number of unanswered messages that is reported as trouble.
const ASKED_UNTIL_TROUBLE: u32 = 5;

const SECOND_MAGIC: [u8; 8] = *b"trellis\x12";
const THIRD_MAGIC: [u8; 8] = *b"trellis\x13";
const SECOND_DATAGRAM_BYTES: usize = SECOND_MAGIC.len() + SECOND_MESSAGE_BYTES;
const _: () = assert!(SECOND_DATAGRAM_BYTES <= FIRST_MESSAGE_BYTES, "an answer is no longer than what it answers");
const _: () = assert!(CONFIRMATION_DATAGRAM_BYTES == THIRD_MAGIC.len() + CONFIRMATION_BYTES);

/// See the module text.
pub(super) struct Acceptor {
    peers: Arc<Peers>,
    listening: Descriptor,
    options: UdpOptions,
    dials: Vec<Dial>,
    answered: Vec<Answered>,
    remembered: Remembered,
    /// Addresses of peers that were here: late datagrams from them are not counted as from unauthenticated peers.
    known: Vec<SocketAddr>,
}

/// A peer that this node dials.
struct Dial {
    peer: usize,
    addresses: Addresses,
    due: Nanoseconds,
    step: Step,
}

enum Step {
    /// Not begun, or reset.
    Resting,
    /// The first message was sent `asked` times.
    Asking {
        wire: Wire,
        address: SocketAddr,
        dialling: Box<Dialling>,
        first: Box<[u8; FIRST_MESSAGE_BYTES]>,
        asked: u32,
    },
    /// The peer is up here, and may not know it yet.
    Confirming { wire: Arc<Wire>, third: [u8; CONFIRMATION_DATAGRAM_BYTES], said: u32 },
}

/// A first message that was answered.
struct Answered {
    peer: usize,
    first: [u8; FIRST_MESSAGE_BYTES],
    address: SocketAddr,
    second: [u8; SECOND_DATAGRAM_BYTES],
    deadline: Nanoseconds,
    /// None if the answer was a refusal.
    welcome: Option<(Wire, Box<Answering>)>,
}

/// Starts the thread, with every signal blocked: signals belong to the application's threads.
pub(super) fn spawn(acceptor: Acceptor) -> io::Result<JoinHandle<()>> {
    spawn_without_signals(acceptor.peers.roster.node, move || acceptor.run())
}

impl Acceptor {
    pub(super) fn new(peers: Arc<Peers>, listening: Descriptor, options: UdpOptions) -> Acceptor {
        let dial = |peer| Dial { peer, addresses: Addresses::default(), due: 0, step: Step::Resting };
        // Nodes without an address are not there yet, or have left.
        let dials = (0..peers.roster.node).filter(|&peer| !options.addresses[peer].is_empty()).map(dial).collect();
        let (answered, remembered, known) = (Vec::new(), Remembered::new(), Vec::new());
        Acceptor { peers, listening, options, dials, answered, remembered, known }
    }

    fn run(mut self) {
        while !self.peers.roster.closed.load(Ordering::SeqCst) {
            self.dial_due(timer::now());
            let (waiting, timeout_ms) = self.what_to_wait_for(timer::now());
            if wait(&waiting, timeout_ms)[0] {
                self.peers.roster.wake.drain();
            }
            // All sockets are tried, readable or not, because there are few.
            for index in (0..self.dials.len()).rev() {
                self.hear_answer(index);
            }
            for index in (0..self.answered.len()).rev() {
                self.hear_confirmation(index);
            }
            self.receive_first_messages();
            self.forget(timer::now());
        }
    }

    /// Forgets answers that were not confirmed in time.
    fn forget(&mut self, now: Nanoseconds) {
        self.answered.retain(|answered| answered.deadline > now);
    }

    fn what_to_wait_for(&self, now: Nanoseconds) -> (Vec<(&Descriptor, PollFlags)>, i32) {
        let entry = |socket| (socket, PollFlags::IN);
        let mut waiting = vec![entry(self.peers.roster.wake.descriptor()), entry(&self.listening)];
        let mut next = self.answered.iter().map(|answered| answered.deadline).min().unwrap_or(Nanoseconds::MAX);
        for dial in &self.dials {
            next = next.min(dial.due);
            if let Step::Asking { wire, .. } = &dial.step {
                waiting.push(entry(&wire.socket));
            }
        }
        let welcome = self.answered.iter().filter_map(|answered| answered.welcome.as_ref());
        waiting.extend(welcome.map(|(wire, _)| entry(&wire.socket)));
        if next == Nanoseconds::MAX {
            return (waiting, -1);
        }
        // Rounded up: a wait that ends slightly too early would only cause another iteration.
        let timeout_ms = next.saturating_sub(now).div_ceil(1_000_000);
        (waiting, i32::try_from(timeout_ms).unwrap_or(i32::MAX))
    }

    fn dial_due(&mut self, now: Nanoseconds) {
        let peers = &self.peers;
        self.dials.retain(|dial| match dial.step {
            Step::Resting | Step::Asking { .. } => peers.roster.is_absent(dial.peer),
            Step::Confirming { .. } => peers.roster.is_up(dial.peer) && !peers.was_heard(dial.peer),
        });
        for index in 0..self.dials.len() {
            if self.dials[index].due <= now {
                self.dial(index, now);
            }
        }
    }

    /// Sends the next message to a peer that is dialled.
    fn dial(&mut self, index: usize, now: Nanoseconds) {
        let no_answer = no_answer_sentence(&self.options.addresses[self.dials[index].peer]);
        let dial = &mut self.dials[index];
        match &mut dial.step {
            Step::Resting => self.begin(index, now),
            Step::Asking { wire, first, asked, .. } => {
                *asked += 1;
                if *asked == ASKED_UNTIL_TROUBLE {
                    self.peers.roster.set_trouble(dial.peer, Some(no_answer));
                }
                if *asked > ASKED_MAX {
                    dial.step = Step::Resting;
                    return;
                }
                dial.due = now + again_ns(*asked);
                wire.send_bytes(now, &first[..]);
                wire.release(now);
            }
            Step::Confirming { wire, third, said } => {
                *said += 1;
                dial.due = now + again_ns(*said);
                wire.send_bytes(now, third);
            }
        }
    }

    /// Looks up the peer's address, opens a socket and sends the first message.
    fn begin(&mut self, index: usize, now: Nanoseconds) {
        let peer = self.dials[index].peer;
        let (description, way) = (self.rules().description(peer, false, &self.options.hello), self.way(peer));
        let text = &self.options.addresses[peer];
        let dial = &mut self.dials[index];
        dial.due = now + AGAIN_NS_MAX;
        let (address, socket) =
            match dial.addresses.next(text).and_then(|address| Ok((address, sockets::dial(&address)?))) {
                Ok(dialled) => dialled,
                Err(error) => {
                    let sentence = format!("{text} cannot be reached: {error}");
                    return self.peers.roster.set_trouble(peer, Some(sentence));
                }
            };
        let Ok((dialling, first)) = Dialling::start(Carrier::Datagrams, &self.options.secret, &description) else {
            return;
        };
        let wire = Wire::new(socket, self.options.faults.as_ref(), way);
        wire.send_bytes(now, &first);
        dial.due = now + AGAIN_NS_MIN;
        dial.step = Step::Asking { wire, address, dialling: Box::new(dialling), first: Box::new(first), asked: 0 };
    }

    /// Handles the answers of a dialled peer.
    fn hear_answer(&mut self, index: usize) {
        let mut room = [0; SECOND_DATAGRAM_BYTES + 1];
        for _ in 0..RECEIVES_MAX {
            let Dial { peer, step: Step::Asking { wire, dialling, asked, .. }, .. } = &mut self.dials[index] else {
                return;
            };
            let peer = *peer;
            let count = match wire.receive(&mut room) {
                Received::Bytes(count) => count,
                Received::End => continue,
                Received::Nothing => return,
                Received::Failed(_) => {
                    // The peer does not listen there yet; there is no reason to slow down.
                    *asked = 0;
                    let sentence = format!("no process listens at {} yet", self.options.addresses[peer]);
                    self.peers.roster.set_trouble(peer, Some(sentence));
                    continue;
                }
            };
            let second = room[..count].strip_prefix(&SECOND_MAGIC).and_then(|second| second.try_into().ok());
            let finished = second.and_then(|second| dialling.finish(second, self.options.security).ok());
            let Some((description, keys, confirmation)) = finished else {
                self.peers.roster.unauthenticated.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            if description.refused {
                let why = String::from_utf8_lossy(&description.text).into_owned();
                return self.turn_away_dialled(index, peer, format!("node {peer} refused this node: {why}"));
            }
            if let Err(why) = self.judge(peer, &description) {
                return self.turn_away_dialled(index, peer, format!("node {peer} was refused: {why}"));
            }
            let mut third = [0; CONFIRMATION_DATAGRAM_BYTES];
            third[..THIRD_MAGIC.len()].copy_from_slice(&THIRD_MAGIC);
            third[THIRD_MAGIC.len()..].copy_from_slice(&confirmation);
            let dial = &mut self.dials[index];
            if let Step::Asking { wire, address, .. } = std::mem::replace(&mut dial.step, Step::Resting) {
                let (now, wire) = (timer::now(), Arc::new(wire));
                wire.send_bytes(now, &third);
                dial.step = Step::Confirming { wire: Arc::clone(&wire), third, said: 0 };
                dial.due = now + AGAIN_NS_MIN;
                self.peers.install(peer, Established { wire, address, keys, confirmation: None });
            }
            return;
        }
    }

    /// Handles what arrives at this node's own address: first messages, and anything from unauthenticated peers.
    fn receive_first_messages(&mut self) {
        let mut room = [0; FIRST_MESSAGE_BYTES + 1];
        for _ in 0..RECEIVES_MAX {
            let Some((count, address)) = sockets::receive_from(&self.listening, &mut room) else { return };
            let first: Option<&[u8; FIRST_MESSAGE_BYTES]> = room[..count].try_into().ok();
            let is_known = self.known.contains(&address);
            let Some(first) = first else {
                // A former peer may still send what it sent before it knew that it is lost.
                self.peers.roster.unauthenticated.fetch_add(u64::from(!is_known), Ordering::Relaxed);
                continue;
            };
            let again = self.answered.iter().find(|answered| answered.first == *first && answered.address == address);
            if let Some(answered) = again {
                answered.answer(&self.listening);
                continue;
            }
            // The same message after it led to a connection: it was duplicated in transit.
            if is_known && !first.starts_with(&Carrier::Datagrams.magic()) {
                continue;
            }
            match Answering::read(Carrier::Datagrams, &self.options.secret, first) {
                Ok((answering, description)) => {
                    self.answer(*first, address, Box::new(answering), &description, is_known)
                }
                Err(_) => {
                    self.peers.roster.unauthenticated.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Handles the first message of a peer that knows the secret: admits it, or tells it why not.
    fn answer(
        &mut self,
        first: [u8; FIRST_MESSAGE_BYTES],
        address: SocketAddr,
        mut answering: Box<Answering>,
        description: &NodeDescription,
        is_known: bool,
    ) {
        let peer = description.from as usize;
        // A first message that was meant for another node, or that was received before, is a recording: no answer, as
        // for any unauthenticated peer.
        if description.to as usize != self.peers.roster.node || !self.remembered.is_new(answering.ephemeral()) {
            self.peers.roster.unauthenticated.fetch_add(u64::from(!is_known), Ordering::Relaxed);
            return;
        }
        let met = !self.peers.roster.is_absent(peer);
        let verdict = self.rules().judge_dialler(description, met).and_then(|()| self.judge(peer, description));
        let text = match &verdict {
            Ok(()) => self.options.hello.clone(),
            Err(why) => admission::shortened(why),
        };
        let reply = self.rules().description(peer, verdict.is_err(), &text);
        let Ok(message) = answering.answer(&reply) else { return };
        let mut second = [0; SECOND_DATAGRAM_BYTES];
        second[..SECOND_MAGIC.len()].copy_from_slice(&SECOND_MAGIC);
        second[SECOND_MAGIC.len()..].copy_from_slice(&message);
        let deadline = timer::now() + HANDSHAKE.nanoseconds();
        let mut welcome = None;
        match verdict {
            Ok(()) => {
                // Without a descriptor the dialler gets no answer, and sends its first message again.
                let Ok(socket) = sockets::answer(&self.listening, &address) else { return };
                let wire = Wire::new(socket, self.options.faults.as_ref(), self.way(peer));
                welcome = Some((wire, answering));
                // Of two attempts of one peer the later one counts.
                self.answered.retain(|answered| answered.peer != peer || answered.welcome.is_none());
            }
            Err(why) => {
                self.peers.roster.nodes_refused.fetch_add(1, Ordering::Relaxed);
                (self.options.refused)(format!("node {peer} was refused: {why}"));
            }
        }
        if self.answered.len() >= ANSWERED_MAX {
            self.answered.remove(0);
        }
        let answered = Answered { peer, first, address, second, deadline, welcome };
        answered.answer(&self.listening);
        self.answered.push(answered);
    }

    /// Handles the confirmation of a peer that was admitted.
    fn hear_confirmation(&mut self, index: usize) {
        let mut room = [0; FIRST_MESSAGE_BYTES + 1];
        for _ in 0..RECEIVES_MAX {
            let answered = &mut self.answered[index];
            let Some((wire, answering)) = &mut answered.welcome else { return };
            let count = match wire.receive(&mut room) {
                Received::Bytes(count) => count,
                Received::Nothing => return,
                Received::End | Received::Failed(_) => continue,
            };
            if room[..count] == answered.first {
                // The answer was lost. (With a socket for this peer, the kernel delivers everything from it there.)
                answered.answer(&self.listening);
                continue;
            }
            // The peer sends again what it sent before its confirmation arrived.
            let third: Option<&[u8; CONFIRMATION_DATAGRAM_BYTES]> = room[..count].try_into().ok();
            let Some(third) = third.filter(|third| third.starts_with(&THIRD_MAGIC)) else { continue };
            let tag: &[u8; CONFIRMATION_BYTES] = third[THIRD_MAGIC.len()..].try_into().expect("the rest of it");
            let Ok(keys) = answering.confirm(tag, self.options.security) else {
                self.peers.roster.unauthenticated.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            let confirmation = Some(*third);
            let Answered { peer, address, welcome, .. } = self.answered.remove(index);
            if let Some((wire, _)) = welcome {
                self.known.push(address);
                self.peers.install(peer, Established { wire: Arc::new(wire), address, keys, confirmation });
            }
            return;
        }
    }

    /// The checks that both sides make.
    fn judge(&self, peer: usize, description: &NodeDescription) -> Result<(), String> {
        self.rules().judge(peer, description)?;
        (self.options.admit)(peer, &description.text)
    }

    fn rules(&self) -> Rules {
        Rules { node: self.peers.roster.node, nodes: self.peers.roster.count(), security: self.options.security }
    }

    /// A number for the direction from here to a peer.
    fn way(&self, peer: usize) -> u64 {
        (self.peers.roster.node * self.peers.roster.count() + peer) as u64
    }

    /// A peer that this node dialled and that refuses or is refused: reported once, never dialled again.
    fn turn_away_dialled(&mut self, index: usize, peer: usize, why: String) {
        drop(self.dials.swap_remove(index));
        self.peers.roster.nodes_refused.fetch_add(1, Ordering::Relaxed);
        self.peers.give_up(peer, Lost::NodeRefused { why: why.clone() });
        (self.options.refused)(why);
    }
}

impl Answered {
    fn answer(&self, listening: &Descriptor) {
        match &self.welcome {
            Some((wire, _)) => {
                wire.send_bytes(timer::now(), &self.second);
            }
            None => sockets::send_to(listening, &self.second, &self.address),
        }
    }
}

fn again_ns(times: u32) -> Nanoseconds {
    (AGAIN_NS_MIN << times.min(8)).min(AGAIN_NS_MAX)
}

fn no_answer_sentence(address: &str) -> String {
    format!(
        "{address} does not answer: its process is not that far yet, has another secret, or is not a node of this cluster"
    )
}

const _: () = assert!(HANDSHAKE_MAGIC.len() + 1 == SECOND_MAGIC.len());

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::super::multicast::{Group, Multicast, Setting};
    use super::*;
    use crate::Security;

    #[test]
    fn an_answer_that_is_not_confirmed_is_forgotten() {
        let (security, secret) = (Security::Sealed, [0; 32]);
        let [own, dialler] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let address = dialler.local_addr().unwrap();
        let options = UdpOptions {
            node: 0,
            addresses: vec![String::new(); 2],
            socket: None,
            secret,
            security,
            hello: Vec::new(),
            admit: Box::new(|_, _| Ok(())),
            refused: Box::new(|_| {}),
            faults: None,
            multicast: Multicast::Off,
        };
        let setting = Setting { multicast: Multicast::Off, secret, security, faults: None };
        let peers = Arc::new(Peers::new(0, 2, Group::new(2, setting)).unwrap());
        let mut acceptor = Acceptor::new(peers, sockets::adopt(own).unwrap(), options);
        let description = Rules { node: 1, nodes: 2, security }.description(0, false, &[]);
        let (_, first) = Dialling::start(Carrier::Datagrams, &secret, &description).unwrap();
        let Ok((answering, description)) = Answering::read(Carrier::Datagrams, &secret, &first) else {
            panic!("it knows the secret");
        };
        let before = timer::now();
        acceptor.answer(first, address, Box::new(answering), &description, false);
        let after = timer::now();
        acceptor.forget(before + HANDSHAKE.nanoseconds() - 1);
        assert!(acceptor.answered.iter().any(|answered| answered.welcome.is_some()), "its place is kept");
        acceptor.forget(after + HANDSHAKE.nanoseconds());
        assert!(acceptor.answered.is_empty());
    }
}
