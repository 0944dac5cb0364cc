//! Many calls at the same time, of any kind and at any servers.
//!
//! Promises: every call has a result of its own, and the failure of one does not end another. Calls are carried out in no
//! order; a caller that needs one before another uses two batches. Each call has the same meaning as alone, so what is
//! done once alone is done once here.

use std::ops::Range;

use trellis_fabric_protocol::wire::address::{Destination, Host, Pointer};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{Body, Extent, Operation, Reply, Status, WRITE_BYTES_MAX};

use super::super::RemoteError;
use super::Client;
use super::asking::{Failure, Wanted, pieces};

/// One call of a batch.
#[derive(Debug)]
pub enum Call<'a> {
    /// Creates an object of zeros; with [`Host::ANYWHERE`] the switch chooses a server.
    Create {
        /// The server.
        home: Host,
        /// The object's length.
        bytes: u64,
    },
    /// Creates an object of these bytes; as [`Client::create_with`].
    CreateWith {
        /// The server.
        home: Host,
        /// The object's content.
        bytes: &'a [u8],
    },
    /// Deletes an object.
    Delete {
        /// The object's first byte.
        pointer: Pointer,
    },
    /// Finds the object that contains a pointer.
    Inquire {
        /// The pointer.
        pointer: Pointer,
    },
    /// Reads a range.
    Read {
        /// Its first byte.
        pointer: Pointer,
        /// The destination; its content is undefined if the call fails.
        bytes: &'a mut [u8],
    },
    /// Writes a range.
    Write {
        /// Its first byte.
        pointer: Pointer,
        /// The bytes to write.
        bytes: &'a [u8],
    },
    /// Writes a range atomically; as [`Client::write_whole`].
    WriteWhole {
        /// Its first byte.
        pointer: Pointer,
        /// The bytes to write.
        bytes: &'a [u8],
    },
    /// Adds to eight bytes.
    FetchAdd {
        /// The first of them, at a multiple of eight.
        pointer: Pointer,
        /// The number to add, wrapping.
        addend: u64,
    },
    /// Replaces eight bytes if they are as expected.
    CompareSwap {
        /// The first of them, at a multiple of eight.
        pointer: Pointer,
        /// The expected value.
        expected: u64,
        /// The new value.
        new: u64,
    },
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A read, a write or a deletion was done.
    Done,
    /// An object was created.
    Made(Pointer),
    /// An object was found.
    Found {
        /// Its first byte.
        pointer: Pointer,
        /// Its length.
        bytes: u64,
    },
    /// The previous value of the eight bytes.
    Before(u64),
}

impl Call<'_> {
    /// The server of the call.
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

/// The requests of the calls, and the call of each; the bytes of a READ go directly into its call's destination.
#[derive(Default)]
struct Questions<'a> {
    wanted: Vec<Wanted<'a>>,
    places: Vec<(usize, Range<usize>)>,
}

type Ends = [Option<Result<Outcome, Failure>>];

impl Client {
    /// Carries out calls at the same time, in no order, and returns their results.
    pub fn batch(&mut self, calls: &mut [Call<'_>]) -> Vec<Result<Outcome, RemoteError>> {
        let mut ends = vec![None; calls.len()];
        let homes = self.homes(calls, &mut ends);
        self.open_missing_sessions(calls, &homes, &mut ends);
        let mut questions = Questions::default();
        for (number, call) in calls.iter().enumerate() {
            if ends[number].is_none()
                && let Err(failure) = self.split(number, call, homes[number], &mut questions)
            {
                questions.forget(number);
                ends[number] = Some(Err(failure));
            }
        }
        self.carry_out(calls, &questions, &mut ends);
        // Content that is longer than one request is written after the object's creation.
        let mut questions = Questions::default();
        for (number, call) in calls.iter().enumerate() {
            if let (Call::CreateWith { bytes, .. }, Some(Ok(Outcome::Made(pointer)))) = (call, ends[number].clone())
                && bytes.len() > WRITE_BYTES_MAX as usize
                && let Err(failure) = self.split_write(number, pointer, bytes, &mut questions)
            {
                ends[number] = Some(Err(failure));
            }
        }
        self.carry_out(calls, &questions, &mut ends);
        ends.into_iter().map(|end| end.unwrap_or(Ok(Outcome::Done)).map_err(RemoteError::from)).collect()
    }

    /// The server of each call; a switch chooses those that are not given.
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

    /// Servers that the switch chooses for this many requests to any server.
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

    fn open_missing_sessions(&mut self, calls: &[Call<'_>], homes: &[Host], ends: &mut Ends) {
        let is_here = |number: &usize| calls[*number].is_in_session() && ends[*number].is_none();
        let here: Vec<usize> = (0..calls.len()).filter(is_here).collect();
        let mut unknown: Vec<Host> = here.iter().map(|&number| homes[number]).collect();
        unknown.sort_unstable();
        unknown.dedup();
        let failed = self.open_sessions(&unknown);
        for number in here {
            if let Some(failure) = failed.get(&homes[number]) {
                ends[number] = Some(Err(failure.clone()));
            }
        }
    }

    /// The requests of a call.
    fn split<'a>(
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
            Call::Write { pointer, bytes } => return self.split_write(number, pointer, bytes, questions),
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

    /// The request that creates an object of these bytes, including them if they fit into one request.
    pub(super) fn create_question<'a>(&self, home: Host, epoch: u64, bytes: &'a [u8]) -> Wanted<'a> {
        let pointer = self.host_pointer(home);
        if bytes.is_empty() || bytes.len() > WRITE_BYTES_MAX as usize {
            let operation = Operation::Create { bytes: bytes.len() as u64 };
            return Wanted { epoch, ..Wanted::plain(pointer, Command::Create, operation) };
        }
        let operation = Operation::Bytes(Extent::whole(bytes.len() as u32));
        Wanted { epoch, data: bytes, ..Wanted::plain(pointer, Command::CreateWrite, operation) }
    }

    fn split_write<'a>(
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

    /// Sends the requests, and stores their results.
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
            // The first failure of a call is reported.
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

    /// Drops the requests of the last call.
    fn forget(&mut self, number: usize) {
        let first = self.places.iter().position(|place| place.0 == number).unwrap_or(self.places.len());
        self.places.truncate(first);
        self.wanted.truncate(first);
    }
}

/// Stores an answer in its call; returns whether the answer is valid.
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

/// Copies the bytes of an answer to their destination; false if their number is not as requested.
pub(super) fn put_bytes(data: &[u8], place: &mut [u8]) -> bool {
    let is_right = data.len() == place.len();
    if is_right {
        place.copy_from_slice(data);
    }
    is_right
}
