//! What arrives over tcp in the link `fabric`: hellos, wake-ups, memory addresses, and frames of peers that leave.
//!
//! Promises: a frame that arrives this way is delivered in its order among those that arrive over the fabric.
//!
//! It must never trust a length that was not checked when it was read.

use std::sync::atomic::Ordering;

use super::{Content, Early, Poll};
use crate::HEADER_BYTES;
use crate::links::fabric::peers::There;
use crate::links::fabric::rendezvous::{Hello, Said};
use crate::links::roster::lock;
use crate::links::{Link, Lost, Payload, Placement, Refused, Sink};

impl Sink for Poll<'_> {
    fn place(&mut self, index: usize, header: &[u8; HEADER_BYTES]) -> Result<Placement, Refused> {
        Ok(match Said::read(header) {
            Some(Said::Hello(bytes)) => Placement::Inline(bytes),
            Some(Said::WakeUp | Said::Seen { .. } | Said::Dropped | Said::Shared(_)) => Placement::Nothing,
            Some(Said::Detour { .. }) => Placement::Inline(HEADER_BYTES),
            Some(Said::DetourBody(bytes)) => match &mut self.inward(index).detour {
                Some((_, _, body)) if body.len() == bytes => Placement::At { pointer: body.as_mut_ptr(), bytes },
                _ => return Err("a body without a frame".into()),
            },
            None => return Err("its version of the link `fabric` says something that this one does not know".into()),
        })
    }

    fn deliver(&mut self, index: usize, header: &[u8; HEADER_BYTES], body: &[u8]) {
        let shared = self.shared;
        match Said::read(header) {
            Some(Said::Hello(_)) => self.take_hello(index, body),
            Some(Said::WakeUp) => self.inward(index).wake_up_due = true,
            Some(Said::Seen { packets, delivered }) => {
                let peer = &shared.peers[index];
                peer.has_seen(packets);
                shared.acknowledged(index, delivered);
                if peer.unseen_since.load(Ordering::Acquire) != 0 {
                    peer.unseen_since.store(shared.now(), Ordering::Release);
                }
                peer.woken_after.store(0, Ordering::Release);
                shared.progress_thread.wake();
            }
            Some(Said::Dropped) => self.leave(index, Lost::Ended),
            Some(Said::Shared(target)) => {
                // A peer tells this at most once.
                let _ = shared.peers[index].target.set(target);
            }
            Some(Said::Detour { sequence, bytes }) => {
                let Ok(header) = body.try_into() else { return };
                if bytes == 0 {
                    self.detoured(index, sequence, header, Vec::new());
                } else {
                    self.inward(index).detour = Some((sequence, header, vec![0; bytes]));
                }
            }
            Some(Said::DetourBody(_)) => {
                if let Some((sequence, header, body)) = self.inward(index).detour.take() {
                    self.detoured(index, sequence, header, body);
                }
            }
            None => {}
        }
    }

    fn connected(&mut self, index: usize) {
        let shared = self.shared;
        let address = match shared.device.address() {
            Ok(address) => address,
            Err(why) => return shared.note_broken(index, why),
        };
        let provider = shared.device.provider().to_owned();
        let hello = Hello { cookie: shared.peers[index].cookie, window: shared.window, provider, address };
        let bytes = hello.write();
        // A connection that is lost again is reported as such.
        let _ = shared.tcp.send(index, &Said::Hello(bytes.len()).write(), Payload::Copy(&bytes));
    }

    fn lost(&mut self, index: usize, why: &Lost) {
        self.leave(index, why.clone());
    }
}

impl Poll<'_> {
    fn take_hello(&mut self, index: usize, bytes: &[u8]) {
        let shared = self.shared;
        let own = shared.device.provider();
        let refuse = |why: String| Lost::NodeRefused { why };
        let Some(hello) = Hello::read(bytes) else {
            return self.leave(index, refuse("its hello over the link `fabric` cannot be read".to_owned()));
        };
        if hello.provider != own {
            let why = format!(
                "node {index} uses the libfabric provider `{}` and this node `{own}`; give both the same fabric_provider",
                hello.provider
            );
            return self.leave(index, refuse(why));
        }
        match shared.device.insert(&hello.address) {
            Ok(number) => {
                let _ = shared.peers[index].there.set(There { number, hello });
                let mut outward = lock(&shared.peers[index].outward);
                outward.owe_hello();
                shared.pump(index, &mut outward);
                shared.disquiet();
            }
            Err(why) => shared.note_broken(index, why),
        }
    }

    /// Handles a frame of a peer that leaves, over the tcp connection; it may have arrived over the fabric already.
    fn detoured(&mut self, index: usize, sequence: u64, header: [u8; HEADER_BYTES], body: Vec<u8>) {
        self.announce(index);
        let inward = self.inward(index);
        let expected = inward.expected;
        if inward.is_lost || sequence < expected {
            return;
        }
        if let Some(reading) = inward.reading.as_mut().filter(|_| sequence == expected) {
            reading.detour = Some(body);
            return self.end_reading(index);
        }
        // A body that was only offered over the fabric may no longer be readable.
        inward.early.insert(sequence, Early { header, content: Content::Here(body) });
        self.go_on(index);
    }
}
