//! The negotiation by which two nodes that met over tcp decide whether they share memory.
//!
//! Promises: every pair decides, whatever fails. A node hands memory only to a process that knows the token, which is
//! sent only over the authenticated connection. The reason why a pair stays on tcp is a sentence.
//!
//! It must never wait (each step is taken in a poll), or handle frames of the layer above.
//!
//! Invitations and verdicts are frames of the connection: a header that begins with [`MARK`], the kind, and the length
//! of the body. They are the first frame that each end gets from the other, so they need not differ from the frames of
//! the layer above.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::channel::{Channel, Draft, Extent};
use super::sockets::{self, Arrived, NAME_BYTES, Parcel};
use super::{Manner, Shm};
use crate::links::admission::shortened;
use crate::links::descriptors::{Descriptor, Event};
use crate::links::roster::{lock, try_lock};
use crate::links::{Link, Lost, Payload, Placement, Refused, Sink};
use crate::{HEADER_BYTES, INLINE_BODY_BYTES_MAX};

/// What a peer must know to be admitted through the listening socket.
pub(super) type Token = [u8; 16];
/// The identity of a host.
type Host = [u8; 16];

const MARK: [u8; 8] = *b"trellis+";
/// From the lower number to the higher: its host, and how to connect.
const INVITATION: u8 = 1;
/// From the higher number to the lower: shared memory is used.
const MEMORY: u8 = 2;
/// From the higher number to the lower: tcp is used, and why.
const TCP: u8 = 3;

const INVITATION_BYTES: usize = 48;
const OFFER_MARK: [u8; 8] = *b"offer  1";
const OFFER_BYTES: usize = 40;
const ANSWER_BYTES_MIN: usize = 9;
/// The maximum number of open negotiations; further connections are closed and counted.
pub(super) const NEGOTIATIONS_MAX: usize = 1024;

/// The socket on which this node listens for peers of this host.
pub(super) struct ListeningSocket {
    pub(super) listener: Descriptor,
    pub(super) name: [u8; NAME_BYTES],
}

impl ListeningSocket {
    pub(super) fn open() -> io::Result<ListeningSocket> {
        let name = crate::random()?;
        Ok(ListeningSocket { listener: sockets::listen(&name)?, name })
    }
}

/// An open negotiation over a local socket.
pub(super) struct Negotiation {
    token: u64,
    socket: Descriptor,
    step: Step,
}

enum Step {
    /// A peer connected to this node's socket.
    Offer,
    /// This node connected to the socket of `peer`, and offered memory.
    Answer { peer: usize, draft: Draft, ours: Option<Extent> },
}

/// The kernel's identity of the current boot of this host.
pub(super) fn host_of_this_boot() -> Result<Host, String> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(PATH).map_err(|error| format!("{PATH} cannot be read: {error}"))?;
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut host = [0; 16];
    if digits.len() != 2 * host.len() {
        return Err(format!("{PATH} does not hold an identity"));
    }
    for (byte, digits) in host.iter_mut().zip(digits.chunks(2)) {
        let digits = std::str::from_utf8(digits).unwrap_or_default();
        *byte = u8::from_str_radix(digits, 16).map_err(|_| format!("{PATH} does not hold an identity"))?;
    }
    Ok(host)
}

/// Hands memory from one end to another in this process, through a local socket.
pub(super) fn probe() -> Result<(), String> {
    let words = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    let listening = ListeningSocket::open().map_err(words("no socket can be listened on"))?;
    let draft = Draft::new().map_err(words("memory to share cannot be made"))?;
    let event = Event::new().map_err(words("an event descriptor cannot be made"))?;
    let one = sockets::connect(&listening.name).map_err(words("a process of this host cannot be reached"))?;
    let other = sockets::accept(&listening.listener, &AtomicU64::new(0))
        .map_err(words("no connection arrives at the socket"))?;
    let other = other.ok_or("a process of this user is not recognised")?;
    sockets::send(one.raw(), &OFFER_MARK, &[draft.file.raw(), event.raw()]).map_err(words("memory cannot be sent"))?;
    match sockets::receive(other.raw()) {
        Arrived::Parcel(parcel) => Channel::accept(None, 0, parcel).map(drop),
        Arrived::Nothing | Arrived::Over => Err("memory that was sent does not arrive".to_owned()),
    }
}

fn own_header(kind: u8, bytes: usize) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MARK);
    header[8] = kind;
    header[10..12].copy_from_slice(&(bytes as u16).to_le_bytes());
    header
}

/// The kind of an invitation or a verdict, and the length of its body.
fn read_own_header(header: &[u8; HEADER_BYTES]) -> Option<(u8, usize)> {
    let bytes = usize::from(u16::from_le_bytes([header[10], header[11]]));
    (header[..8] == MARK && bytes <= INLINE_BODY_BYTES_MAX).then_some((header[8], bytes))
}

/// Wraps the sink: takes invitations and verdicts, and passes on the frames for the layer above.
pub(super) struct Through<'a> {
    pub(super) link: &'a Shm,
    pub(super) sink: &'a mut dyn Sink,
}

impl Sink for Through<'_> {
    fn place(&mut self, peer: usize, header: &[u8; HEADER_BYTES]) -> Result<Placement, Refused> {
        let pair = &self.link.pairs[peer];
        if pair.is_over_tcp() {
            return self.sink.place(peer, header);
        }
        let is_lower = self.link.node() < peer;
        match read_own_header(header) {
            _ if !pair.is_waiting() => {
                Err("it sent a frame over the connection, though frames of this pair travel in memory".into())
            }
            Some((INVITATION, bytes)) if !is_lower && pair.takes_invitation() => Ok(Placement::Inline(bytes)),
            Some((MEMORY, 0)) if is_lower && pair.channel.get().is_some() => Ok(Placement::Nothing),
            Some((TCP, bytes)) if is_lower => Ok(Placement::Inline(bytes)),
            _ => Err("it did not say first how its frames travel; give every node the same link".into()),
        }
    }

    fn deliver(&mut self, peer: usize, header: &[u8; HEADER_BYTES], body: &[u8]) {
        let pair = &self.link.pairs[peer];
        if pair.is_over_tcp() {
            return self.sink.deliver(peer, header, body);
        }
        pair.own.received(body.len());
        match read_own_header(header) {
            Some((INVITATION, _)) => {
                if let Err(why) = self.link.offer(peer, body) {
                    self.link.decide_tcp(peer, &why, self.sink);
                }
            }
            Some((MEMORY, _)) => {
                if self.link.announce(peer, self.sink) {
                    self.link.go_through_memory(peer);
                }
            }
            _ => self.link.hear_tcp(peer, &String::from_utf8_lossy(body), self.sink),
        }
    }

    fn connected(&mut self, peer: usize) {
        self.link.count_up(peer);
        if self.link.node() < peer {
            self.link.send_invitation(peer);
        }
    }

    fn lost(&mut self, peer: usize, why: &Lost) {
        self.link.connection_lost(peer, why);
    }
}

impl Shm {
    fn send_own(&self, peer: usize, kind: u8, body: &[u8]) {
        let payload = if body.is_empty() { Payload::Nothing } else { Payload::Copy(body) };
        self.pairs[peer].own.sent(body.len());
        // This fails only if the peer is lost, which a poll reports.
        let _ = self.tcp.send(peer, &own_header(kind, body.len()), payload);
    }

    /// Sends the host of this node and how the peer connects, or why it cannot.
    fn send_invitation(&self, peer: usize) {
        let invitation = || -> Result<Vec<u8>, String> {
            let (listening, host) = (self.listening.as_ref()?, self.host.as_ref()?);
            let token: Token = crate::random().map_err(|error| format!("no token can be drawn: {error}"))?;
            *lock(&self.pairs[peer].token) = Some(token);
            Ok([host.as_slice(), &listening.name, &token].concat())
        };
        match invitation() {
            Ok(invitation) => self.send_own(peer, INVITATION, &invitation),
            // Any other length is the reason why there is no invitation.
            Err(why) => {
                let mut why = shortened(&why);
                if why.len() == INVITATION_BYTES {
                    why.push(b'.');
                }
                self.send_own(peer, INVITATION, &why);
            }
        }
    }

    /// Handles the invitation of a peer with a lower number: offers it memory, if it runs on this host.
    fn offer(&self, peer: usize, invitation: &[u8]) -> Result<(), String> {
        let Ok(invitation) = <&[u8; INVITATION_BYTES]>::try_from(invitation) else {
            return Err(String::from_utf8_lossy(invitation).into_owned());
        };
        let (host, rest) = invitation.split_at(16);
        let (name, token) = rest.split_at(NAME_BYTES);
        if self.host.as_ref()? != host {
            return Err("the two run on different hosts".to_owned());
        }
        let name: [u8; NAME_BYTES] = name.try_into().map_err(|_| "the name has another length")?;
        let words = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        let draft = Draft::new().map_err(words("memory to share cannot be made"))?;
        let socket = sockets::connect(&name)
            .map_err(words("the other process cannot be reached inside this host (it may be in another container)"))?;
        let ours = *lock(&self.ours);
        let mut text = Vec::with_capacity(OFFER_BYTES);
        text.extend_from_slice(&OFFER_MARK);
        text.extend_from_slice(&(self.node() as u32).to_le_bytes());
        text.extend_from_slice(&(peer as u32).to_le_bytes());
        text.extend_from_slice(token);
        text.extend_from_slice(&shared_bytes(ours).to_le_bytes());
        let mut files = vec![draft.file.raw(), self.event.raw()];
        files.extend(ours.map(|(_, file)| file));
        sockets::send(socket.raw(), &text, &files).map_err(words("memory cannot be handed over"))?;
        let step = Step::Answer { peer, draft, ours: ours.map(|(extent, _)| extent) };
        self.meet(socket, step).map_err(words("the kernel takes no more events"))
    }

    /// Accepts waiting connections.
    pub(super) fn accept_waiting(&self) {
        let Ok(listening) = &self.listening else { return };
        while let Ok(Some(socket)) = sockets::accept(&listening.listener, &self.unauthenticated) {
            if lock(&self.negotiations).len() >= NEGOTIATIONS_MAX {
                self.unauthenticated.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            // A peer whose connection is closed here stays on tcp.
            let _ = self.meet(socket, Step::Offer);
        }
    }

    fn meet(&self, socket: Descriptor, step: Step) -> io::Result<()> {
        let mut negotiations = lock(&self.negotiations);
        // Open sockets have distinct numbers, so the number of a socket is a unique token.
        let token = socket.raw() as u64;
        self.epoll.add(&socket, false, token)?;
        negotiations.push(Negotiation { token, socket, step });
        Ok(())
    }

    /// Handles an event of a negotiation.
    pub(super) fn go_on_negotiating(&self, token: u64, sink: &mut dyn Sink) -> bool {
        let (negotiation, arrived) = {
            // The holder of the lock handles it.
            let Some(mut negotiations) = try_lock(&self.negotiations) else { return false };
            let Some(index) = negotiations.iter().position(|negotiation| negotiation.token == token) else {
                return false;
            };
            let arrived = sockets::receive(negotiations[index].socket.raw());
            if matches!(arrived, Arrived::Nothing) {
                return false;
            }
            let negotiation = negotiations.swap_remove(index);
            self.epoll.remove(&negotiation.socket);
            (negotiation, arrived)
        };
        match (negotiation.step, arrived) {
            (Step::Offer, Arrived::Parcel(parcel)) => self.take_offer(&negotiation.socket, parcel),
            (Step::Answer { peer, draft, ours }, Arrived::Parcel(parcel)) => match take_answer(draft, ours, parcel) {
                Ok(channel) => self.decide_memory(peer, channel, sink),
                Err(why) => self.decide_tcp(peer, &why, sink),
            },
            (Step::Answer { peer, .. }, _) => {
                self.decide_tcp(peer, "the other process did not take the memory that it was offered", sink);
            }
            // A process that hangs up before it makes an offer was refused nothing; it may be a node that ended.
            (Step::Offer, _) => {}
        }
        true
    }

    /// Handles an offer of memory: accepts it, or answers why not.
    fn take_offer(&self, socket: &Descriptor, parcel: Parcel) {
        let ours = *lock(&self.ours);
        let Ok((peer, theirs_bytes)) = self.read_offer(&parcel.text) else {
            // A process that does not know the token gets no answer.
            self.unauthenticated.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let pair = &self.pairs[peer];
        let accepted = Channel::accept(ours.map(|(extent, _)| extent), theirs_bytes, parcel)
            .and_then(|channel| pair.channel.set(channel.into()).map_err(|_| "it offered memory twice".to_owned()));
        let mut answer = vec![u8::from(accepted.is_ok())];
        answer.extend_from_slice(&shared_bytes(ours).to_le_bytes());
        let mut files: Vec<RawFd> = Vec::new();
        match &accepted {
            Ok(()) => {
                files.push(self.event.raw());
                files.extend(ours.map(|(_, file)| file));
            }
            Err(why) => answer.extend_from_slice(&shortened(why)),
        }
        // A peer that hung up meanwhile sends its decision over the connection, or is lost.
        let _ = sockets::send(socket.raw(), &answer, &files);
    }

    fn read_offer(&self, text: &[u8]) -> Result<(usize, usize), ()> {
        let text: &[u8; OFFER_BYTES] = text.try_into().map_err(|_| ())?;
        let number = |at: usize| text[at..at + 4].try_into().map(|bytes| u32::from_le_bytes(bytes) as usize);
        let (from, to) = (number(8).map_err(|_| ())?, number(12).map_err(|_| ())?);
        let bytes = text[32..40].try_into().map(u64::from_le_bytes).map_err(|_| ())?;
        let bytes = usize::try_from(bytes).map_err(|_| ())?;
        let pair = self.pairs.get(from).ok_or(())?;
        let mut token = lock(&pair.token);
        let is_known = token.is_some_and(|token| text[16..32] == token);
        if text[..8] != OFFER_MARK || to != self.node() || !is_known || !pair.is_waiting() {
            return Err(());
        }
        // A token is valid once.
        *token = None;
        Ok((from, bytes))
    }

    /// Decides for memory; this node has the higher number.
    fn decide_memory(&self, peer: usize, channel: Channel, sink: &mut dyn Sink) {
        if self.pairs[peer].channel.set(channel.into()).is_ok() && self.announce(peer, sink) {
            self.send_own(peer, MEMORY, &[]);
            self.go_through_memory(peer);
        }
    }

    /// Decides for tcp; this node has the higher number.
    fn decide_tcp(&self, peer: usize, why: &str, sink: &mut dyn Sink) {
        let verdict = || self.send_own(peer, TCP, &shortened(why));
        match self.manner {
            Manner::Require => {
                verdict();
                self.refuse(peer, why);
            }
            Manner::Prefer => {
                if self.announce(peer, sink) {
                    self.stay_on_tcp(peer, why, verdict);
                }
            }
        }
    }

    /// Handles the decision for tcp of a peer with a higher number.
    fn hear_tcp(&self, peer: usize, why: &str, sink: &mut dyn Sink) {
        match self.manner {
            Manner::Require => self.refuse(peer, why),
            Manner::Prefer => {
                if self.announce(peer, sink) {
                    self.stay_on_tcp(peer, why, || ());
                }
            }
        }
    }

    fn refuse(&self, peer: usize, why: &str) {
        let why = format!(
            "nodes {} and {peer} cannot share memory: {why}; start all nodes on one host, or set link = auto",
            self.node()
        );
        self.note_loss(peer, Lost::NodeRefused { why });
    }
}

fn shared_bytes(ours: Option<(Extent, RawFd)>) -> u64 {
    ours.map_or(0, |(extent, _)| extent.bytes as u64)
}

fn take_answer(draft: Draft, ours: Option<Extent>, parcel: Parcel) -> Result<Channel, String> {
    let text = &parcel.text;
    if text.len() < ANSWER_BYTES_MIN {
        return Err("its answer is too short".to_owned());
    }
    let (said, why) = text.split_at(ANSWER_BYTES_MIN);
    if said[0] == 0 {
        return Err(String::from_utf8_lossy(why).into_owned());
    }
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&said[1..]);
    let bytes = usize::try_from(u64::from_le_bytes(bytes)).map_err(|_| "its region is too large".to_owned())?;
    draft.finish(ours, bytes, parcel)
}
