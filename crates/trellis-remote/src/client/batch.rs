//! Many calls at the same time, of any kind and at any servers.
//!
//! Promises: every call has an end of its own, and one that fails ends no other. They are carried out in no order: who needs
//! one call before another asks twice. Each is what it is alone, so what is done once alone is done once here.

use std::ops::Range;

use trellis_fabric_protocol::wire::address::{Destination, Host, Pointer};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{Body, Extent, Operation, Reply, Status, WRITE_BYTES_MAX};

use super::super::RemoteError;
use super::Client;
use super::asking::{Failure, Wanted, pieces};

/// One of several calls.
#[derive(Debug)]
pub enum Call<'a> {
    /// Makes an object of zeros; [`Host::ANYWHERE`] lets the switch choose a server.
    Create {
        /// The server.
        home: Host,
        /// How long it is.
        bytes: u64,
    },
    /// Makes an object of these bytes; as [`Client::create_with`].
    CreateWith {
        /// The server.
        home: Host,
        /// What is in it.
        bytes: &'a [u8],
    },
    /// Ends an object.
    Delete {
        /// Its first byte.
        pointer: Pointer,
    },
    /// Asks for the object that a pointer is into.
    Inquire {
        /// The pointer.
        pointer: Pointer,
    },
    /// Reads a range.
    Read {
        /// Its first byte.
        pointer: Pointer,
        /// Where it goes; in no order if the call fails.
        bytes: &'a mut [u8],
    },
    /// Writes a range.
    Write {
        /// Its first byte.
        pointer: Pointer,
        /// What is written.
        bytes: &'a [u8],
    },
    /// Writes a range in one step; as [`Client::write_whole`].
    WriteWhole {
        /// Its first byte.
        pointer: Pointer,
        /// What is written.
        bytes: &'a [u8],
    },
    /// Adds to eight bytes.
    FetchAdd {
        /// The first of them, at a multiple of eight.
        pointer: Pointer,
        /// What is added; what overflows is lost.
        addend: u64,
    },
    /// Puts other eight bytes where these are.
    CompareSwap {
        /// The first of them, at a multiple of eight.
        pointer: Pointer,
        /// What must be there.
        expected: u64,
        /// What is there then.
        new: u64,
    },
}

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done: a read, a write, a deletion.
    Done,
    /// An object was made.
    Made(Pointer),
    /// An object was found.
    Found {
        /// Its first byte.
        pointer: Pointer,
        /// How long it is.
        bytes: u64,
    },
    /// What the eight bytes were before.
    Before(u64),
}

impl Call<'_> {
    /// The server that it is for.
    fn home(&self) -> Host {
        match *self {
            Call::Create { home, .. } | Call::CreateWith { home, .. } => home,
            Call::Delete { pointer }
            | Call::Inquire { pointer }
            | Call::Read { pointer, .. }
            | Call::Write { pointer, .. }
            | Call::WriteWhole { pointer, .. }
            | Call::FetchAdd { pointer, .. }
            | Call::CompareSwap { pointer, .. } => pointer.home(),
        }
    }

    fn is_in_session(&self) -> bool {
        !matches!(self, Call::Inquire { .. } | Call::Read { .. })
    }
}

/// The questions that calls are made of, and which call each is of; the bytes of a READ go there into its own.
#[derive(Default)]
struct Questions<'a> {
    wanted: Vec<Wanted<'a>>,
    places: Vec<(usize, Range<usize>)>,
}

type Ends = [Option<Result<Outcome, Failure>>];

impl Client {
    /// Carries out calls at the same time, in no order; how each ended.
    pub fn batch(&mut self, calls: &mut [Call<'_>]) -> Vec<Result<Outcome, RemoteError>> {
        let mut ends = vec![None; calls.len()];
        let homes = self.homes(calls, &mut ends);
        self.meet_homes(calls, &homes, &mut ends);
        let mut questions = Questions::default();
        for (number, call) in calls.iter().enumerate() {
            if ends[number].is_none()
                && let Err(failure) = self.cut(number, call, homes[number], &mut questions)
            {
                questions.forget(number);
                ends[number] = Some(Err(failure));
            }
        }
        self.carry_out(calls, &questions, &mut ends);
        // What is longer than one request is written into what was made.
        let mut questions = Questions::default();
        for (number, call) in calls.iter().enumerate() {
            if let (Call::CreateWith { bytes, .. }, Some(Ok(Outcome::Made(pointer)))) = (call, ends[number].clone())
                && bytes.len() > WRITE_BYTES_MAX as usize
                && let Err(failure) = self.cut_write(number, pointer, bytes, &mut questions)
            {
                ends[number] = Some(Err(failure));
            }
        }
        self.carry_out(calls, &questions, &mut ends);
        ends.into_iter().map(|end| end.unwrap_or(Ok(Outcome::Done)).map_err(RemoteError::from)).collect()
    }

    /// The server of each call; a switch chooses where nobody did.
    fn homes(&mut self, calls: &[Call<'_>], ends: &mut Ends) -> Vec<Host> {
        let mut homes: Vec<Host> = calls.iter().map(Call::home).collect();
        let makes = |call: &Call<'_>| matches!(call, Call::Create { .. } | Call::CreateWith { .. });
        let open: Vec<usize> =
            (0..calls.len()).filter(|&number| homes[number] == Host::ANYWHERE && makes(&calls[number])).collect();
        for (number, chosen) in open.iter().zip(self.choose_many(open.len())) {
            match chosen {
                Ok(home) => homes[*number] = home,
                Err(failure) => ends[*number] = Some(Err(failure)),
            }
        }
        homes
    }

    /// Servers that the switch chooses for so many requests to anywhere.
    pub(super) fn choose_many(&mut self, count: usize) -> Vec<Result<Host, Failure>> {
        let pointer = self.host_pointer(Host::ANYWHERE);
        let wanted: Vec<Wanted<'_>> =
            (0..count).map(|_| Wanted::plain(pointer, Command::Ping, Operation::Plain)).collect();
        let mut chosen = vec![Host::ANYWHERE; count];
        let ends = self.ask(&wanted.iter().collect::<Vec<_>>(), &mut |number, reply, _| {
            chosen[number] = match reply.body {
                Body::Moved(address) => Destination::decode(address)
                    .map(|there| there.pointer)
                    .or_else(|_| Pointer::decode(address))
                    .map_or(Host::ANYWHERE, Pointer::home),
                Body::Present { host, .. } => host.home(),
                _ => Host::ANYWHERE,
            };
            true
        });
        let ends = ends.into_iter().zip(chosen).zip(&wanted);
        ends.map(|((end, chosen), wanted)| match end {
            Ok(_) if chosen.is_one() => Ok(chosen),
            Ok(status) => Err(wanted.refused(status)),
            Err(why) => Err(why),
        })
        .collect()
    }

    fn meet_homes(&mut self, calls: &[Call<'_>], homes: &[Host], ends: &mut Ends) {
        let is_here = |number: &usize| calls[*number].is_in_session() && ends[*number].is_none();
        let here: Vec<usize> = (0..calls.len()).filter(is_here).collect();
        let mut strangers: Vec<Host> = here.iter().map(|&number| homes[number]).collect();
        strangers.sort_unstable();
        strangers.dedup();
        let failed = self.meet(&strangers);
        for number in here {
            if let Some(failure) = failed.get(&homes[number]) {
                ends[number] = Some(Err(failure.clone()));
            }
        }
    }

    /// The questions of a call.
    fn cut<'a>(
        &self,
        number: usize,
        call: &Call<'a>,
        home: Host,
        questions: &mut Questions<'a>,
    ) -> Result<(), Failure> {
        let epoch = self.sessions.epoch(home);
        let once = |pointer, command, operation| Wanted { epoch, ..Wanted::plain(pointer, command, operation) };
        let wanted = match *call {
            Call::Create { bytes, .. } => once(self.host_pointer(home), Command::Create, Operation::Create { bytes }),
            Call::CreateWith { bytes, .. } => self.create_question(home, epoch, bytes),
            Call::Delete { pointer } => once(pointer, Command::Delete, Operation::Plain),
            Call::Inquire { pointer } => Wanted::plain(pointer, Command::Inquire, Operation::Plain),
            Call::Read { pointer, ref bytes } => {
                for piece in pieces(pointer, bytes.len(), self.options.piece_bytes as usize) {
                    let (pointer, place) = piece?;
                    questions.add(number, place.clone(), Wanted::read(pointer, place.len()));
                }
                return Ok(());
            }
            Call::Write { pointer, bytes } => return self.cut_write(number, pointer, bytes, questions),
            Call::WriteWhole { bytes: [], .. } => return Ok(()),
            Call::WriteWhole { pointer, bytes } if bytes.len() <= WRITE_BYTES_MAX as usize => {
                Wanted::write_whole(pointer, epoch, bytes)
            }
            Call::WriteWhole { bytes, .. } => return Err(Failure::TooLong { bytes: bytes.len() as u64 }),
            Call::FetchAdd { pointer, addend } => once(pointer, Command::FetchAdd, Operation::FetchAdd { addend }),
            Call::CompareSwap { pointer, expected, new } => {
                once(pointer, Command::CompareSwap, Operation::CompareSwap { expected, new })
            }
        };
        questions.add(number, 0..0, wanted);
        Ok(())
    }

    /// How an object of these bytes is made: with them, if they are not more than one request has.
    pub(super) fn create_question<'a>(&self, home: Host, epoch: u64, bytes: &'a [u8]) -> Wanted<'a> {
        let pointer = self.host_pointer(home);
        if bytes.is_empty() || bytes.len() > WRITE_BYTES_MAX as usize {
            let operation = Operation::Create { bytes: bytes.len() as u64 };
            return Wanted { epoch, ..Wanted::plain(pointer, Command::Create, operation) };
        }
        let operation = Operation::Bytes(Extent::whole(bytes.len() as u32));
        Wanted { epoch, data: bytes, ..Wanted::plain(pointer, Command::CreateWrite, operation) }
    }

    fn cut_write<'a>(
        &self,
        number: usize,
        pointer: Pointer,
        bytes: &'a [u8],
        questions: &mut Questions<'a>,
    ) -> Result<(), Failure> {
        let epoch = self.sessions.epoch(pointer.home());
        for piece in pieces(pointer, bytes.len(), self.options.piece_bytes as usize) {
            let (pointer, place) = piece?;
            questions.add(number, 0..0, Wanted::write(pointer, epoch, &bytes[place]));
        }
        Ok(())
    }

    /// Asks, and puts what comes of it where it belongs.
    fn carry_out(&mut self, calls: &mut [Call<'_>], questions: &Questions<'_>, ends: &mut Ends) {
        let Questions { wanted, places } = questions;
        let ended = self.ask_all(wanted, &mut |place, reply, data| {
            let (number, at) = &places[place];
            put(&mut calls[*number], at.clone(), reply, data, &mut ends[*number])
        });
        for (place, end) in ended.into_iter().enumerate() {
            let failure = match end {
                Ok(Status::Ok | Status::Mismatch) => continue,
                Ok(status) => wanted[place].refused(status),
                Err(why) => why,
            };
            let end = &mut ends[places[place].0];
            // The first of them is told.
            if !matches!(end, Some(Err(_))) {
                *end = Some(Err(failure));
            }
        }
    }
}

impl<'a> Questions<'a> {
    fn add(&mut self, number: usize, place: Range<usize>, wanted: Wanted<'a>) {
        self.places.push((number, place));
        self.wanted.push(wanted);
    }

    /// Nothing is asked for the call that came last.
    fn forget(&mut self, number: usize) {
        let first = self.places.iter().position(|place| place.0 == number).unwrap_or(self.places.len());
        self.places.truncate(first);
        self.wanted.truncate(first);
    }
}

/// What an answer means for its call; whether it is one.
fn put(
    call: &mut Call<'_>,
    at: Range<usize>,
    reply: &Reply,
    data: &[u8],
    end: &mut Option<Result<Outcome, Failure>>,
) -> bool {
    let outcome = match (reply.body, call) {
        (Body::Bytes(_), Call::Read { bytes, .. }) => return put_bytes(data, &mut bytes[at]),
        (Body::Value(value), _) => Outcome::Before(value),
        (Body::Object { pointer, bytes }, Call::Inquire { .. }) => Outcome::Found { pointer, bytes },
        (Body::Object { pointer, .. }, _) => Outcome::Made(pointer),
        _ => return true,
    };
    *end = Some(Ok(outcome));
    true
}

/// Puts the bytes of an answer where they belong; false when they are not as many as were asked for.
pub(super) fn put_bytes(data: &[u8], place: &mut [u8]) -> bool {
    let is_right = data.len() == place.len();
    if is_right {
        place.copy_from_slice(data);
    }
    is_right
}
