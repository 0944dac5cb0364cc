//! Nodes with memory that they share over the link `fabric`, and a sink that receives pages into it.

use std::sync::Arc;

use super::{Form, HANG_SECONDS, header, read_header};
use trellis_transport::{Fabric, HEADER_BYTES, Link, Lost, Placement, Refused, SharedMemory, Sink};

pub const PROVIDERS: [&str; 2] = ["tcp", "shm"];
pub const PAGE_BYTES: usize = 4096;

/// Memory of a node, and the sink that receives pages into it.
pub struct Memory {
    pub bytes: Box<[u8]>,
    pub pages: Vec<u64>,
    pub connected: bool,
    pub lost: Option<Lost>,
}

impl Memory {
    pub fn new(bytes: usize) -> Memory {
        Memory { bytes: vec![0; bytes].into(), pages: Vec::new(), connected: false, lost: None }
    }

    pub fn shared(&mut self) -> SharedMemory {
        SharedMemory { pointer: self.bytes.as_mut_ptr(), bytes: self.bytes.len(), file: -1 }
    }
}

/// A header that states the page it brings and the length of the body.
pub fn page_header(page: u64, bytes: usize) -> [u8; HEADER_BYTES] {
    header(Form::At, 0, page, bytes)
}

impl Sink for Memory {
    fn place(&mut self, _peer: usize, header: &[u8; HEADER_BYTES]) -> Result<Placement, Refused> {
        let seen = read_header(header);
        let at = seen.sequence as usize * PAGE_BYTES;
        Ok(Placement::At { pointer: self.bytes[at..at + seen.bytes].as_mut_ptr(), bytes: seen.bytes })
    }

    fn deliver(&mut self, _peer: usize, header: &[u8; HEADER_BYTES], _body: &[u8]) {
        self.pages.push(read_header(header).sequence);
    }

    fn connected(&mut self, _peer: usize) {
        self.connected = true;
    }

    fn lost(&mut self, _peer: usize, why: &Lost) {
        assert!(self.lost.is_none(), "lost comes once");
        self.lost = Some(why.clone());
    }
}

pub fn poll_both(links: &[Arc<Fabric>], memories: &mut [Memory], mut done: impl FnMut(&[Memory]) -> bool) {
    let start = std::time::Instant::now();
    while !done(memories) {
        for (link, memory) in links.iter().zip(memories.iter_mut()) {
            link.poll(memory);
        }
        assert!(start.elapsed().as_secs() < HANG_SECONDS, "the test hangs");
        std::thread::yield_now();
    }
}
