//! Create, read, update and delete of one page over libfabric: two ends of the link `fabric`, each polled by a
//! thread.
//!
//! CREATE and DELETE are a message and its answer. UPDATE is a page that the client writes into the server's memory
//! by a one-sided write, and an answer. READ is a message, and a page that the server writes into the client's
//! memory.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trellis_transport::{
    Fabric, FabricOptions, HEADER_BYTES, Link, Lost, Payload, Placement, Refused, Security, SharedMemory, Sink,
    TcpOptions,
};

use super::measure::PaperTask;
use super::requests::Requests;
use crate::bench::figures::p50;
use crate::bench::switch::served::PAGE_BYTES;
use trellis_command::exit::{self, Failure};

/// The provider that every machine has.
const PROVIDER: &str = "tcp";
const CLIENT: usize = 0;
const SERVER: usize = 1;
/// Pages that the server has.
const SLOTS: usize = 64;
/// The longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The most pages that are sent until both ends know the other's memory and one-sided writes begin.
const FIRST_MAX: usize = 10_000;

/// The operation that a frame requests or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Word {
    Create = 1,
    Read,
    Update,
    Delete,
    /// It is done; for CREATE, with the slot.
    Done,
    /// The requested page.
    Page,
    /// There is no such page, or no room.
    No,
}

impl Word {
    const ALL: [Word; 7] = [Word::Create, Word::Read, Word::Update, Word::Delete, Word::Done, Word::Page, Word::No];
}

/// A frame's header: the word, and the slot.
fn header(word: Word, slot: usize) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = word as u8;
    header[8..16].copy_from_slice(&(slot as u64).to_le_bytes());
    header
}

fn read_header(header: &[u8; HEADER_BYTES]) -> Option<(Word, usize)> {
    let word = Word::ALL.into_iter().find(|word| *word as u8 == header[0])?;
    let slot = u64::from_le_bytes(header[8..16].try_into().ok()?) as usize;
    (slot < SLOTS).then_some((word, slot))
}

/// One end: its memory, and what it received.
struct End {
    link: Arc<Fabric>,
    memory: Box<[u8]>,
    taken: [bool; SLOTS],
    heard: Option<(Word, usize)>,
    broken: Option<String>,
}

impl End {
    fn new(link: Arc<Fabric>) -> Result<End, Failure> {
        let mut memory = vec![0; SLOTS * PAGE_BYTES].into_boxed_slice();
        let shared = SharedMemory { pointer: memory.as_mut_ptr(), bytes: memory.len(), file: -1 };
        link.share(shared).map_err(|why| Failure::new(exit::SYSTEM, why))?;
        Ok(End { link, memory, taken: [false; SLOTS], heard: None, broken: None })
    }

    fn poll(&mut self) {
        let link = Arc::clone(&self.link);
        link.poll(self);
    }

    fn say(&mut self, peer: usize, word: Word, slot: usize) {
        let sent = match word {
            Word::Update | Word::Page => {
                let body = Payload::Pinned(self.memory[slot * PAGE_BYTES..].as_ptr(), PAGE_BYTES);
                self.link.send_placed(peer, &header(word, slot), body, slot * PAGE_BYTES)
            }
            _ => self.link.send(peer, &header(word, slot), Payload::Nothing),
        };
        if let Err(error) = sent {
            self.broken = Some(error.to_string());
        }
    }

    /// The server's answer.
    fn answer(&mut self, word: Word, slot: usize) {
        let (word, slot) = match word {
            Word::Create => match self.taken.iter().position(|taken| !taken) {
                Some(free) => {
                    self.taken[free] = true;
                    (Word::Done, free)
                }
                None => (Word::No, 0),
            },
            Word::Read if self.taken[slot] => (Word::Page, slot),
            Word::Update if self.taken[slot] => (Word::Done, slot),
            Word::Delete if self.taken[slot] => {
                self.taken[slot] = false;
                (Word::Done, slot)
            }
            _ => (Word::No, slot),
        };
        self.say(CLIENT, word, slot);
    }

    /// Sends a request, and waits for the answer.
    fn ask(&mut self, word: Word, slot: usize) -> Result<usize, Failure> {
        let failed =
            |what: String| Failure::new(exit::SYSTEM, format!("the link `fabric` between two threads: {what}"));
        let expected = if word == Word::Read { Word::Page } else { Word::Done };
        self.say(SERVER, word, slot);
        let deadline = Instant::now() + TIMEOUT;
        loop {
            self.poll();
            if let Some(why) = self.broken.take() {
                return Err(failed(why));
            }
            match self.heard.take() {
                Some((heard, slot)) if heard == expected => return Ok(slot),
                Some((heard, _)) => return Err(failed(format!("{word:?} was answered with {heard:?}"))),
                None if Instant::now() > deadline => return Err(failed("no answer came".to_owned())),
                // The other end may wait for this processor.
                None => std::thread::yield_now(),
            }
        }
    }
}

impl Drop for End {
    // The link uses the memory until it is closed.
    fn drop(&mut self) {
        self.link.close();
    }
}

impl Sink for End {
    fn place(&mut self, _: usize, header: &[u8; HEADER_BYTES]) -> Result<Placement, Refused> {
        match read_header(header) {
            Some((Word::Update | Word::Page, slot)) => {
                Ok(Placement::At { pointer: self.memory[slot * PAGE_BYTES..].as_mut_ptr(), bytes: PAGE_BYTES })
            }
            Some(_) => Ok(Placement::Nothing),
            None => Err("a header that means nothing".into()),
        }
    }

    fn deliver(&mut self, peer: usize, header: &[u8; HEADER_BYTES], _: &[u8]) {
        let Some((word, slot)) = read_header(header) else { return };
        match peer {
            CLIENT => self.answer(word, slot),
            _ => self.heard = Some((word, slot)),
        }
    }

    fn connected(&mut self, _: usize) {}

    fn lost(&mut self, _: usize, why: &Lost) {
        self.broken = Some(why.to_string());
    }
}

/// Both ends of a link on loopback.
fn links() -> Result<[Arc<Fabric>; 2], Failure> {
    let failed =
        |what: &dyn std::fmt::Display| Failure::new(exit::SYSTEM, format!("no link `fabric` on loopback: {what}"));
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    for _ in [CLIENT, SERVER] {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| failed(&error))?;
        addresses.push(listener.local_addr().map_err(|error| failed(&error))?.to_string());
        listeners.push(listener);
    }
    let mut made = Vec::new();
    for (node, listener) in listeners.into_iter().enumerate() {
        let tcp = TcpOptions {
            node,
            addresses: addresses.clone(),
            listener: Some(listener),
            // Both ends are in this process, and the secret protects nothing beyond this run.
            secret: [0x5a; 32],
            security: Security::Plain,
            hello: Vec::new(),
            admit: Box::new(|_, _| Ok(())),
            refused: Box::new(|_| {}),
        };
        let link =
            Fabric::start(FabricOptions { tcp, provider: PROVIDER.to_owned() }).map_err(|error| failed(&error))?;
        made.push(Arc::new(link));
    }
    made.try_into().map_err(|_| failed(&"there are two ends"))
}

/// One object after the other is created, written, read and deleted.
pub(super) fn over_fabric(task: &PaperTask) -> Result<Requests, Failure> {
    let [near, far] = links()?;
    let over = AtomicBool::new(false);
    let found = std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut server = End::new(Arc::clone(&far))?;
            while !over.load(Ordering::Relaxed) && server.broken.is_none() {
                server.poll();
                std::thread::yield_now();
            }
            Ok(())
        });
        let found = ask_all(task, &near);
        over.store(true, Ordering::Relaxed);
        let served = serving.join().unwrap_or_else(|_| Err(Failure::new(exit::FAILED, "the server of a link broke")));
        found.and_then(|found| served.map(|()| found))
    })?;
    Ok(Requests { over: format!("libfabric, {}", near.provider()), us_p50: found.map(p50) })
}

fn ask_all(task: &PaperTask, link: &Arc<Fabric>) -> Result<[Vec<f64>; 4], Failure> {
    let mut client = End::new(Arc::clone(link))?;
    for _ in 0..FIRST_MAX {
        if link.one_sided_writes() > 0 {
            break;
        }
        let slot = client.ask(Word::Create, 0)?;
        client.ask(Word::Update, slot)?;
        client.ask(Word::Read, slot)?;
        client.ask(Word::Delete, slot)?;
    }
    let mut times = [(); 4].map(|()| Vec::new());
    for number in 0..task.pages * task.runs as usize {
        let mut timed = |operation: usize, client: &mut End, word, slot| {
            let start = Instant::now();
            let answer = client.ask(word, slot);
            times[operation].push(start.elapsed().as_secs_f64() * 1e6);
            answer
        };
        let slot = timed(0, &mut client, Word::Create, 0)?;
        let page = slot * PAGE_BYTES..(slot + 1) * PAGE_BYTES;
        client.memory[page.clone()].fill(number as u8);
        timed(2, &mut client, Word::Update, slot)?;
        client.memory[page.clone()].fill(!(number as u8));
        timed(1, &mut client, Word::Read, slot)?;
        if client.memory[page].iter().any(|byte| *byte != number as u8) {
            return Err(Failure::new(exit::FAILED, "what was read over libfabric is not what was written"));
        }
        timed(3, &mut client, Word::Delete, slot)?;
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_what_and_where() {
        for word in Word::ALL {
            assert_eq!(read_header(&header(word, 5)), Some((word, 5)));
        }
        assert_eq!(read_header(&header(Word::Read, SLOTS)), None);
        assert_eq!(read_header(&[0; HEADER_BYTES]), None);
    }

    #[test]
    fn pages_come_back_as_they_went() {
        let task = PaperTask { switch: String::new(), pages: 20, runs: 1, has_faults: false, has_requests: true };
        let found = over_fabric(&task).expect("two threads talk");
        assert!(found.over.starts_with("libfabric, tcp"), "{}", found.over);
        assert!(found.us_p50.iter().all(|us| *us > 0.0));
    }
}
