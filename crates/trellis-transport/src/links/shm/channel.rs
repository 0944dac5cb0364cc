//! What two nodes of one host share after negotiation: two rings, and each other's wake-up descriptor and memory.
//!
//! Promises: what comes from the peer is checked before it is used; nothing of it outlives the channel.
//!
//! It must never handle frames.

#![allow(unsafe_code)]

use std::io;

use rustix::fs::OFlags;

use super::memory::{self, Mapping};
use super::ring::{RING_BYTES, Ring};
use super::sockets::Parcel;
use crate::links::descriptors::{self, Descriptor};

/// The two directions in sequence: first the one that the node with the higher number writes.
const CHANNEL_BYTES: usize = 2 * RING_BYTES;

/// The memory that two nodes share; see the module text.
pub(super) struct Channel {
    /// The ring that the peer writes.
    pub(super) incoming: Ring,
    /// The ring that this node writes.
    pub(super) outgoing: Ring,
    wake_up: Descriptor,
    /// The peer's shared memory.
    pub(super) theirs: Option<Mapping>,
    /// This node's shared memory, which the peer has mapped.
    pub(super) ours: Option<Extent>,
    /// The memory of the rings.
    _memory: Mapping,
}

/// This node's shared memory: addresses to compare with, never read through this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) start: usize,
    pub(super) bytes: usize,
}

/// Memory for a channel, created by the node with the higher number and not answered yet.
pub(super) struct Draft {
    memory: Mapping,
    pub(super) file: Descriptor,
}

impl Draft {
    pub(super) fn new() -> io::Result<Draft> {
        let file = memory::create(CHANNEL_BYTES)?;
        Ok(Draft { memory: Mapping::of(file.raw(), CHANNEL_BYTES, true)?, file })
    }

    /// Completes the channel with the answer: the peer's wake-up descriptor, and its shared memory if it has some.
    pub(super) fn finish(self, ours: Option<Extent>, theirs_bytes: usize, parcel: Parcel) -> Result<Channel, String> {
        let mut files = parcel.files.into_iter();
        let wake_up = wake_up_of(files.next())?;
        let theirs = shared(files.next(), theirs_bytes)?;
        Ok(Channel::new(self.memory, true, wake_up, theirs, ours))
    }
}

impl Channel {
    /// Accepts the offer of a peer with a higher number: the memory, its wake-up descriptor, and its shared memory if
    /// it has some.
    pub(super) fn accept(ours: Option<Extent>, theirs_bytes: usize, parcel: Parcel) -> Result<Channel, String> {
        let mut files = parcel.files.into_iter();
        let file = files.next().ok_or("it brought no memory")?;
        memory::check(&file, CHANNEL_BYTES)?;
        let mapped = Mapping::of(file.raw(), CHANNEL_BYTES, true);
        let memory = mapped.map_err(|error| format!("its memory cannot be mapped: {error}"))?;
        let wake_up = wake_up_of(files.next())?;
        let theirs = shared(files.next(), theirs_bytes)?;
        Ok(Channel::new(memory, false, wake_up, theirs, ours))
    }

    fn new(
        memory: Mapping,
        is_higher: bool,
        wake_up: Descriptor,
        theirs: Option<Mapping>,
        ours: Option<Extent>,
    ) -> Channel {
        let start = memory.start();
        // SAFETY: the mapping has CHANNEL_BYTES writable bytes at the start of a page, and lives in the result. The
        // file was zero when it was created; whatever a peer did to it since is checked where it is used.
        let (higher, lower) = unsafe { (Ring::at(start), Ring::at(start.add(RING_BYTES))) };
        let (outgoing, incoming) = if is_higher { (higher, lower) } else { (lower, higher) };
        Channel { incoming, outgoing, wake_up, theirs, ours, _memory: memory }
    }

    /// Wakes the peer, if it sleeps on its link.
    pub(super) fn wake_peer(&self) {
        descriptors::signal(&self.wake_up);
    }
}

/// Checks the peer's wake-up descriptor: it must not be able to block this node.
fn wake_up_of(file: Option<Descriptor>) -> Result<Descriptor, String> {
    let file = file.ok_or("it brought no event descriptor")?;
    let flags = file.borrowed().and_then(rustix::fs::fcntl_getfl);
    if !flags.is_ok_and(|flags| flags.contains(OFlags::NONBLOCK)) {
        return Err("its event descriptor may block".to_owned());
    }
    Ok(file)
}

fn shared(file: Option<Descriptor>, bytes: usize) -> Result<Option<Mapping>, String> {
    let Some(file) = file.filter(|_| bytes > 0) else {
        return Ok(None);
    };
    memory::check(&file, bytes)?;
    let mapped = Mapping::of(file.raw(), bytes, false);
    mapped.map(Some).map_err(|error| format!("{bytes} bytes of its region cannot be mapped: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::descriptors::Event;

    fn parcel(files: Vec<Descriptor>) -> Parcel {
        Parcel { text: Vec::new(), files }
    }

    fn duplicate(file: &Descriptor) -> Descriptor {
        Descriptor::adopt(|| rustix::io::fcntl_dupfd_cloexec(file.borrowed()?, 0)).unwrap()
    }

    #[test]
    fn an_offer_that_lacks_something_is_refused_in_words() {
        let draft = Draft::new().unwrap();
        let refused = |files, bytes| Channel::accept(None, bytes, parcel(files)).err().unwrap();
        assert_eq!(refused(Vec::new(), 0), "it brought no memory");
        assert_eq!(refused(vec![duplicate(&draft.file)], 0), "it brought no event descriptor");
        let event = Event::new().unwrap();
        assert!(refused(vec![duplicate(event.descriptor())], 0).contains("not sealed"));
        let short = memory::create(4096).unwrap();
        assert!(refused(vec![duplicate(&short)], 0).contains("has 4096 bytes and not"));
        let waits = vec![duplicate(&draft.file), duplicate(&draft.file)];
        assert_eq!(refused(waits, 0), "its event descriptor may block");
        let files = || vec![duplicate(&draft.file), duplicate(event.descriptor()), duplicate(&short)];
        assert!(refused(files(), 8192).contains("has 4096 bytes and not 8192"));
        assert!(Channel::accept(None, 4096, parcel(files())).is_ok_and(|channel| channel.theirs.is_some()));
    }
}
