//! One handshake with one other end, step by step, without ever waiting.
//!
//! Promised: what is read before the other end proved that it knows the secret goes into a buffer of
//! fixed size; a listener sends nothing before that; a time-out ends every step.
//!
//! Never done here: deciding whether an authenticated node is welcome (the acceptor does).

use std::time::{Duration, Instant};

use super::sockets::{self, Received};
use crate::links::descriptors::Descriptor;
use crate::wrap::secure::{
    Answering, CONFIRMATION_BYTES, Card, Carrier, Dialling, FIRST_MESSAGE_BYTES, Keys, SECOND_MESSAGE_BYTES, Security,
    may_be_first_message,
};

/// How long an end that has not proved anything may hold a place.
const STRANGER_MS_MAX: u64 = 5_000;
/// How long a node that proved itself may take for its last message: its process may be stopped.
const CONFIRMATION_MS_MAX: u64 = 60_000;

/// A handshake on its way.
pub(super) struct Greeting {
    pub(super) socket: Descriptor,
    pub(super) deadline: Instant,
    pub(super) step: Step,
}

/// What a handshake waits for.
pub(super) enum Step {
    /// The connection that this node began.
    Connection { peer: usize },
    /// The answer to this node's first message.
    Answer { peer: usize, dialling: Box<Dialling>, message: Box<Message<SECOND_MESSAGE_BYTES>> },
    /// The first message of whoever connected.
    First { message: Box<Message<FIRST_MESSAGE_BYTES>> },
    /// The last message of a node that was let in.
    Confirmation { peer: usize, answering: Box<Answering>, message: Message<CONFIRMATION_BYTES> },
}

/// What came of one step.
pub(super) enum Progress {
    /// Nothing yet.
    Waits,
    /// This node's connection is there: its first message is due.
    Connected { peer: usize },
    /// The listener's answer is here and authentic.
    Answered { peer: usize, card: Card, keys: Box<Keys>, confirmation: [u8; CONFIRMATION_BYTES] },
    /// Somebody who knows the secret wants in.
    Introduced { answering: Box<Answering>, card: Card },
    /// The node that was let in is here.
    Confirmed { peer: usize, keys: Box<Keys> },
    /// It ended: the other end left, does not answer, or is a stranger.
    Over(Failure),
}

/// Why a handshake ended.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nobody listens, or the way there is broken.
    Unreachable(std::io::Error),
    /// The listener that was dialled hung up without an answer.
    NoAnswer,
    /// The other end does not know the secret.
    Stranger,
    /// An end that proved itself went away.
    Left,
}

/// A message of known length, as far as it has come.
pub(super) struct Message<const BYTES: usize> {
    bytes: [u8; BYTES],
    filled: usize,
}

impl<const BYTES: usize> Message<BYTES> {
    pub(super) fn new() -> Self {
        Message { bytes: [0; BYTES], filled: 0 }
    }

    /// Receives no byte beyond the message: what follows belongs to the next step.
    fn receive(&mut self, socket: &Descriptor) -> Arrival {
        while self.filled < BYTES {
            match sockets::receive(socket.raw(), &mut self.bytes[self.filled..]) {
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

impl Greeting {
    pub(super) fn dialled(socket: Descriptor, peer: usize, now: Instant) -> Greeting {
        Greeting { socket, deadline: stranger_deadline(now), step: Step::Connection { peer } }
    }

    pub(super) fn accepted(socket: Descriptor, now: Instant) -> Greeting {
        let step = Step::First { message: Box::new(Message::new()) };
        Greeting { socket, deadline: stranger_deadline(now), step }
    }

    /// This node said its first message: now the answer is due.
    pub(super) fn await_answer(&mut self, peer: usize, dialling: Dialling) {
        let message = Box::new(Message::new());
        self.step = Step::Answer { peer, dialling: Box::new(dialling), message };
    }

    /// The peer was let in: now its confirmation is due.
    pub(super) fn await_confirmation(&mut self, peer: usize, answering: Box<Answering>, now: Instant) {
        self.deadline = now + Duration::from_millis(CONFIRMATION_MS_MAX);
        self.step = Step::Confirmation { peer, answering, message: Message::new() };
    }

    /// The peer this node dialled, if it did.
    pub(super) fn dialled_peer(&self) -> Option<usize> {
        match self.step {
            Step::Connection { peer } | Step::Answer { peer, .. } => Some(peer),
            Step::First { .. } | Step::Confirmation { .. } => None,
        }
    }

    /// Whether whoever connected has proved nothing yet.
    pub(super) fn is_stranger(&self) -> bool {
        matches!(self.step, Step::First { .. })
    }

    /// What to wait for.
    pub(super) fn events(&self) -> i16 {
        match self.step {
            Step::Connection { .. } => libc::POLLOUT,
            _ => libc::POLLIN,
        }
    }

    /// How it failed if its time is over.
    pub(super) fn timed_out(&self) -> Failure {
        match self.step {
            Step::Connection { .. } => Failure::Unreachable(std::io::Error::from(std::io::ErrorKind::TimedOut)),
            Step::Answer { .. } => Failure::NoAnswer,
            Step::First { .. } => Failure::Stranger,
            Step::Confirmation { .. } => Failure::Left,
        }
    }

    /// Takes what is there. Steps that hand something over are left in a state that is over.
    pub(super) fn advance(&mut self, secret: &[u8; 32], security: Security) -> Progress {
        match &mut self.step {
            Step::Connection { peer } => match sockets::dialled(self.socket.raw()) {
                Ok(()) => Progress::Connected { peer: *peer },
                Err(error) => Progress::Over(Failure::Unreachable(error)),
            },
            Step::First { message } => match message.receive(&self.socket) {
                Arrival::Whole => introduce(secret, &message.bytes),
                Arrival::Partly if may_be_first_message(&message.bytes[..message.filled]) => Progress::Waits,
                Arrival::Partly | Arrival::Never => Progress::Over(Failure::Stranger),
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
            Ok((card, keys, confirmation)) => Progress::Answered { peer, card, keys: Box::new(keys), confirmation },
            Err(_) => Progress::Over(Failure::Stranger),
        }
    }

    fn finish_answering(&mut self, security: Security) -> Progress {
        let Step::Confirmation { peer, mut answering, message } = self.take_step() else {
            return Progress::Over(Failure::Left);
        };
        match answering.confirm(&message.bytes, security) {
            Ok(keys) => Progress::Confirmed { peer, keys: Box::new(keys) },
            Err(_) => Progress::Over(Failure::Stranger),
        }
    }

    /// The step, by value; what stays behind is never advanced, as its result ends the greeting.
    fn take_step(&mut self) -> Step {
        let nobody = Step::First { message: Box::new(Message::new()) };
        std::mem::replace(&mut self.step, nobody)
    }
}

fn introduce(secret: &[u8; 32], message: &[u8; FIRST_MESSAGE_BYTES]) -> Progress {
    match Answering::read(Carrier::Stream, secret, message) {
        Ok((answering, card)) => Progress::Introduced { answering: Box::new(answering), card },
        Err(_) => Progress::Over(Failure::Stranger),
    }
}

fn stranger_deadline(now: Instant) -> Instant {
    now + Duration::from_millis(STRANGER_MS_MAX)
}
