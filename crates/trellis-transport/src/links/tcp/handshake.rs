//! One handshake with one other end, step by step, without ever waiting.
//!
//! Promises: what is read before the other end proved that it knows the secret goes into a buffer of fixed size. A
//! listener sends nothing before that proof. A time-out ends every step.
//!
//! It must never decide whether an authenticated node is admitted (the acceptor does).

use std::time::Instant;

use rustix::event::PollFlags;
use trellis_base::{Deadline, Limit};

use super::sockets::{self, Received};
use crate::links::descriptors::Descriptor;
use crate::wrap::secure::{
    Answering, CONFIRMATION_BYTES, Carrier, Dialling, FIRST_MESSAGE_BYTES, Keys, NodeDescription, SECOND_MESSAGE_BYTES,
    Security, may_be_first_message,
};

/// How long an unauthenticated end may hold a place.
pub(crate) const UNAUTHENTICATED: Deadline = Deadline {
    who: "the link tcp",
    waits_for: "who connects, or is dialled, to prove that it knows the secret",
    limit: Limit::seconds(5),
    then: "the connection is closed; who connected is counted and said, and who was dialled is dialled again",
    tested: "crates/trellis-transport/src/links/tcp/acceptor.rs an_unauthenticated_peer_is_hung_up_on_in_the_end",
};
/// How long an authenticated node may take for its last message: its process may be stopped.
pub(crate) const CONFIRMATION: Deadline = Deadline {
    who: "the link tcp",
    waits_for: "a node that has proved it, for its last message",
    limit: Limit::seconds(60),
    then: "the connection is closed, and the node may connect again",
    tested: "crates/trellis-transport/src/links/tcp/acceptor.rs a_node_that_does_not_confirm_is_hung_up_on",
};

/// A handshake in progress.
pub(super) struct Handshake {
    pub(super) socket: Descriptor,
    pub(super) deadline: Instant,
    pub(super) step: Step,
}

/// What a handshake waits for.
pub(super) enum Step {
    /// The connection that this node dialled.
    Connection { peer: usize },
    /// The answer to this node's first message.
    Answer { peer: usize, dialling: Box<Dialling>, message: Box<Message<SECOND_MESSAGE_BYTES>> },
    /// The first message of an end that connected.
    First { message: Box<Message<FIRST_MESSAGE_BYTES>> },
    /// The last message of a node that was admitted.
    Confirmation { peer: usize, answering: Box<Answering>, message: Message<CONFIRMATION_BYTES> },
}

/// The result of one step.
pub(super) enum Progress {
    /// Nothing has happened yet.
    Waits,
    /// This node's connection is up: its first message is due.
    Connected { peer: usize },
    /// The listener's answer has arrived and is authentic.
    Answered { peer: usize, description: NodeDescription, keys: Box<Keys>, confirmation: [u8; CONFIRMATION_BYTES] },
    /// A peer that knows the secret requests admission.
    Introduced { answering: Box<Answering>, description: NodeDescription },
    /// The confirmation of the admitted node has arrived.
    Confirmed { peer: usize, keys: Box<Keys> },
    /// The handshake ended: the other end left, does not answer, or does not know the secret.
    Over(Failure),
}

/// Why a handshake ended.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing listens there, or the path is broken.
    Unreachable(std::io::Error),
    /// The listener that was dialled hung up without an answer.
    NoAnswer,
    /// The other end does not know the secret.
    Unauthenticated,
    /// An authenticated end left.
    Left,
}

/// A message of known length, as far as it has arrived.
pub(super) struct Message<const BYTES: usize> {
    bytes: [u8; BYTES],
    filled: usize,
}

impl<const BYTES: usize> Message<BYTES> {
    pub(super) fn new() -> Self {
        Message { bytes: [0; BYTES], filled: 0 }
    }

    /// Receives a part of the message, and no byte beyond it, because the following bytes belong to the next step.
    fn receive(&mut self, socket: &Descriptor) -> Arrival {
        while self.filled < BYTES {
            match sockets::receive(socket, &mut self.bytes[self.filled..]) {
                Received::Bytes(count) => self.filled += count,
                Received::Nothing => return Arrival::Partly,
                Received::End | Received::Failed(_) => return Arrival::Never,
            }
        }
        Arrival::Whole
    }
}

enum Arrival {
    Whole,
    Partly,
    Never,
}

impl Handshake {
    pub(super) fn dialled(socket: Descriptor, peer: usize, now: Instant) -> Handshake {
        Handshake { socket, deadline: unauthenticated_deadline(now), step: Step::Connection { peer } }
    }

    pub(super) fn accepted(socket: Descriptor, now: Instant) -> Handshake {
        let step = Step::First { message: Box::new(Message::new()) };
        Handshake { socket, deadline: unauthenticated_deadline(now), step }
    }

    /// Waits for the answer from now on, because this node has sent its first message.
    pub(super) fn await_answer(&mut self, peer: usize, dialling: Dialling) {
        let message = Box::new(Message::new());
        self.step = Step::Answer { peer, dialling: Box::new(dialling), message };
    }

    /// Waits for the confirmation of the peer from now on, because the peer was admitted.
    pub(super) fn await_confirmation(&mut self, peer: usize, answering: Box<Answering>, now: Instant) {
        self.deadline = now + CONFIRMATION.time();
        self.step = Step::Confirmation { peer, answering, message: Message::new() };
    }

    /// The peer that this node dialled, if it did.
    pub(super) fn dialled_peer(&self) -> Option<usize> {
        match self.step {
            Step::Connection { peer } | Step::Answer { peer, .. } => Some(peer),
            Step::First { .. } | Step::Confirmation { .. } => None,
        }
    }

    /// Whether the end that connected is still unauthenticated.
    pub(super) fn is_unauthenticated(&self) -> bool {
        matches!(self.step, Step::First { .. })
    }

    /// The events of poll(2) to wait for.
    pub(super) fn events(&self) -> PollFlags {
        match self.step {
            Step::Connection { .. } => PollFlags::OUT,
            _ => PollFlags::IN,
        }
    }

    /// The failure that a time-out means at this step.
    pub(super) fn timed_out(&self) -> Failure {
        match self.step {
            Step::Connection { .. } => Failure::Unreachable(std::io::Error::from(std::io::ErrorKind::TimedOut)),
            Step::Answer { .. } => Failure::NoAnswer,
            Step::First { .. } => Failure::Unauthenticated,
            Step::Confirmation { .. } => Failure::Left,
        }
    }

    /// Takes what has arrived. Steps that hand something over are left in a final state.
    pub(super) fn advance(&mut self, secret: &[u8; 32], security: Security) -> Progress {
        match &mut self.step {
            Step::Connection { peer } => match sockets::dialled(&self.socket) {
                Ok(()) => Progress::Connected { peer: *peer },
                Err(error) => Progress::Over(Failure::Unreachable(error)),
            },
            Step::First { message } => match message.receive(&self.socket) {
                Arrival::Whole => introduce(secret, &message.bytes),
                Arrival::Partly if may_be_first_message(&message.bytes[..message.filled]) => Progress::Waits,
                Arrival::Partly | Arrival::Never => Progress::Over(Failure::Unauthenticated),
            },
            Step::Answer { message, .. } => match message.receive(&self.socket) {
                Arrival::Whole => self.finish_dialling(security),
                Arrival::Partly => Progress::Waits,
                Arrival::Never => Progress::Over(Failure::NoAnswer),
            },
            Step::Confirmation { message, .. } => match message.receive(&self.socket) {
                Arrival::Whole => self.finish_answering(security),
                Arrival::Partly => Progress::Waits,
                Arrival::Never => Progress::Over(Failure::Left),
            },
        }
    }

    fn finish_dialling(&mut self, security: Security) -> Progress {
        let Step::Answer { peer, mut dialling, message } = self.take_step() else {
            return Progress::Over(Failure::Left);
        };
        match dialling.finish(&message.bytes, security) {
            Ok((description, keys, confirmation)) => {
                Progress::Answered { peer, description, keys: Box::new(keys), confirmation }
            }
            Err(_) => Progress::Over(Failure::Unauthenticated),
        }
    }

    fn finish_answering(&mut self, security: Security) -> Progress {
        let Step::Confirmation { peer, mut answering, message } = self.take_step() else {
            return Progress::Over(Failure::Left);
        };
        match answering.confirm(&message.bytes, security) {
            Ok(keys) => Progress::Confirmed { peer, keys: Box::new(keys) },
            Err(_) => Progress::Over(Failure::Unauthenticated),
        }
    }

    /// Takes the step by value; the replacement is never advanced, because its result ends the handshake.
    fn take_step(&mut self) -> Step {
        let nobody = Step::First { message: Box::new(Message::new()) };
        std::mem::replace(&mut self.step, nobody)
    }
}

fn introduce(secret: &[u8; 32], message: &[u8; FIRST_MESSAGE_BYTES]) -> Progress {
    match Answering::read(Carrier::Stream, secret, message) {
        Ok((answering, description)) => Progress::Introduced { answering: Box::new(answering), description },
        Err(_) => Progress::Over(Failure::Unauthenticated),
    }
}

fn unauthenticated_deadline(now: Instant) -> Instant {
    now + UNAUTHENTICATED.time()
}
