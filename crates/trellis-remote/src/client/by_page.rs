//! Reads whose bytes are at several homes, because the border of a part (a subrange with a home of its own) lies
//! between them; each home answers for its own pages.
//!
//! Promises: such a READ is sent page by page, all pages at the same time, and ends when all have been answered: with
//! all its bytes, or as the first page that was refused. It must never divide a page: no page has two homes.

use std::time::Instant;

use trellis_fabric_protocol::wire::address::PAGE_BYTES;
use trellis_fabric_protocol::wire::datagram::{Body, Operation, Status};

use super::Client;
use super::asking::{End, Failure, Take, Wanted, plus};
use super::waiting::{Wait, Way, places};

/// The requested part of one page of a READ: its index, its offset and its length.
#[derive(Clone, Copy)]
struct Piece {
    place: usize,
    at: usize,
    bytes: usize,
}

impl Client {
    /// Reads what is open and has to be read page by page.
    pub(super) fn read_by_page(
        &mut self,
        wanted: &[&Wanted<'_>],
        waits: &mut [Wait],
        deadline: Instant,
        take: Take<'_>,
    ) {
        let here = places(waits, |wait| wait.way == Way::ByPage);
        let (mut pieces, mut asked) = (Vec::new(), Vec::new());
        for &place in &here {
            match pieces_of(place, wanted[place]) {
                Ok(some) => {
                    for (piece, wanted) in some {
                        pieces.push(piece);
                        asked.push(wanted);
                    }
                }
                Err(failure) => waits[place].end = Some(Err(failure)),
            }
        }
        if asked.is_empty() {
            return;
        }
        let mut read: Vec<Vec<u8>> = here.iter().map(|&place| vec![0; bytes_of(wanted[place])]).collect();
        let row = |place: usize| here.iter().position(|it| *it == place).expect("it is one of these");
        let asks: Vec<&Wanted<'_>> = asked.iter().collect();
        let ends = self.ask_until(&asks, deadline, &mut |number, reply, data| {
            let Piece { place, at, bytes } = pieces[number];
            let is_all = reply.status != Status::Ok || data.len() == bytes;
            if is_all && reply.status == Status::Ok {
                read[row(place)][at..at + bytes].copy_from_slice(data);
            }
            is_all
        });
        for (end, piece) in ends.into_iter().zip(&pieces) {
            let wait = &mut waits[piece.place];
            match (end, &wait.end) {
                // The first failure is reported.
                (_, Some(_)) | (Ok(Status::Ok), _) => {}
                (end, None) => wait.end = Some(of_question(end, wanted[piece.place])),
            }
        }
        for (&place, bytes) in here.iter().zip(&read) {
            if waits[place].end.is_none() {
                let reply = self.answer(wanted[place], Status::Ok, Body::Bytes(bytes.len() as u32));
                let is_taken = take(place, &reply, bytes);
                debug_assert!(is_taken, "it is an answer to that");
                waits[place].end = Some(Ok(Status::Ok));
            }
        }
    }
}

/// The pages of a READ, and the request for each.
fn pieces_of(place: usize, wanted: &Wanted<'_>) -> Result<Vec<(Piece, Wanted<'static>)>, Failure> {
    let whole = bytes_of(wanted);
    let (mut at, mut pieces) = (0, Vec::new());
    while at < whole {
        let pointer = plus(wanted.pointer, at as u64, whole as u64)?;
        let left = (PAGE_BYTES - pointer.offset() % PAGE_BYTES) as usize;
        let bytes = left.min(whole - at);
        pieces.push((Piece { place, at, bytes }, Wanted::read(pointer, bytes)));
        at += bytes;
    }
    Ok(pieces)
}

fn bytes_of(wanted: &Wanted<'_>) -> usize {
    match wanted.operation {
        Operation::Read { bytes } => bytes as usize,
        _ => 0,
    }
}

/// Turns the result of a page's READ into that of the caller's.
fn of_question(end: End, wanted: &Wanted<'_>) -> End {
    match end {
        Err(Failure::Refused { status, .. }) => Err(wanted.refused(status)),
        end => end,
    }
}
