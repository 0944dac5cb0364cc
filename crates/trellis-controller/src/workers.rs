//! Threads that wait in the controller's place: for datagrams, for the store, for the switch. What they learn goes to the
//! one thread that decides, over one channel.
//!
//! Promises: records are written in the order in which that was asked for, several at once where several wait; after one
//! that failed nothing is written under the same name. What arrives and is no report of a server, from this cluster and
//! whole, is refused here: counted, and said once. What waits to be decided is bounded: datagrams that find too many before them are dropped as a
//! network would drop them, and are said again; of the store and the switch there is one answer for each thing that was asked,
//! and of operators one question for each connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use trellis_fabric_protocol::lease::Host;
use trellis_fabric_protocol::wire::address::{Address, HostPrefix};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{HEADER_BYTES, Request, Rules, TagKind, Tags, Told};
use trellis_fabric_protocol::wire::refusals::{Reason, Refusal, Refusals};
use trellis_store::{Store, StoreError};
use trellis_transport::links::ipv6::Endpoint;

use crate::control::Asked;
use crate::leadership::{Deed, Fact, NAME_BYTES};
use crate::records::{self, Kept, RecordError, Write};
use crate::routes;

/// The longest datagram there can be.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;
/// How many datagrams wait to be decided at most: more than a second's of 400 servers.
const WAITING_MAX: usize = 4_096;
/// How many records are written at once, and those that belong to the last of them.
const AT_ONCE: usize = 64;

/// What the thread that decides hears.
pub(crate) enum Happening {
    /// A host says this.
    Told(Host, Told, Place),
    /// Something that somebody says is refused.
    Refused(Refusal),
    /// The store, about who leads.
    Leadership(Fact, Option<StoreError>),
    /// Everything that was kept, as it was when this name began to lead.
    Loaded([u8; NAME_BYTES], Result<Kept, RecordError>),
    /// These were written under this name.
    Written([u8; NAME_BYTES], Vec<u64>),
    /// Something was not, or nobody knows.
    NotWritten([u8; NAME_BYTES], RecordError),
    /// The thread that tells the switch.
    Routes(routes::Told),
    /// An operator.
    Asked(Asked),
    /// The socket fails.
    Failed(std::io::Error),
    /// This process is to end.
    Ends,
}

/// The place of a datagram among those that wait; free again with its value.
pub(crate) struct Place(Arc<AtomicUsize>);

impl Place {
    /// The next one; nothing when all are taken.
    fn take(places: &Arc<AtomicUsize>) -> Option<Place> {
        let place = Place(Arc::clone(places));
        (places.fetch_add(1, Ordering::Relaxed) < WAITING_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Something for the thread that keeps records.
pub(crate) enum Job {
    Load([u8; NAME_BYTES]),
    Write([u8; NAME_BYTES], u64, Vec<Write>),
}

/// Checksums by the processor's own instruction, where it has one; no keys.
pub(crate) struct Hardware;

impl Tags for Hardware {
    fn checksum(&self, pieces: &[&[u8]]) -> u32 {
        pieces.iter().fold(0, |checksum, piece| crc32c::crc32c_append(checksum, piece))
    }
}

/// Room for a datagram, and what was refused so far.
pub(crate) struct Room {
    bytes: Box<[u8]>,
    refusals: Refusals,
}

/// What a host has said.
pub(crate) enum Heard {
    /// This.
    Told(Host, Told),
    /// Something that is refused.
    Refused(Refusal),
}

impl Room {
    pub(crate) fn new() -> Room {
        Room { bytes: vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice(), refusals: Refusals::default() }
    }

    /// The next thing that a host has said, or that is refused and shall be said; nothing when there is none.
    pub(crate) fn take(&mut self, endpoint: &Endpoint, me: HostPrefix) -> std::io::Result<Option<Heard>> {
        while let Some(arrived) = endpoint.receive(&mut self.bytes)? {
            let (source, destination) = (Address(arrived.source), Address(arrived.destination));
            let told = match self.bytes.get(..arrived.bytes) {
                Some(payload) => told(source, destination, payload, me),
                None => Err(Reason::TooLong(arrived.bytes)),
            };
            match told {
                Ok((from, told)) => return Ok(Some(Heard::Told(from, told))),
                Err(why) => {
                    if let Some(refusal) = self.refusals.count(source, why) {
                        return Ok(Some(Heard::Refused(refusal)));
                    }
                }
            }
        }
        Ok(None)
    }
}

/// Hears what arrives, until nobody wants to know.
pub(crate) fn hear(endpoint: &Arc<Endpoint>, me: HostPrefix, heard: &Sender<Happening>) {
    let mut room = Room::new();
    let places = Arc::default();
    loop {
        let happening = match room.take(endpoint, me) {
            Ok(Some(Heard::Refused(refusal))) => Happening::Refused(refusal),
            Ok(Some(Heard::Told(from, told))) => match Place::take(&places) {
                Some(place) => Happening::Told(from, told, place),
                None => continue,
            },
            Ok(None) => {
                endpoint.wait(Duration::from_secs(1));
                continue;
            }
            Err(error) => Happening::Failed(error),
        };
        let is_over = matches!(happening, Happening::Failed(_));
        if heard.send(happening).is_err() || is_over {
            return;
        }
    }
}

fn told(source: Address, destination: Address, payload: &[u8], me: HostPrefix) -> Result<(Host, Told), Reason> {
    let rules = Rules { cluster: me.cluster, least: TagKind::Checksum, tags: &Hardware };
    let request =
        Request::decode(source, destination, payload, &rules).map_err(|refused| Reason::NoRequest(refused.why))?;
    let command = request.command();
    // Whatever else arrives waits for nothing here.
    let is_heard = matches!(command, Command::Report | Command::Locate | Command::Followed);
    if !is_heard || request.destination.pointer.home() != me.host {
        return Err(Reason::NotToController(command));
    }
    let told = payload.get(HEADER_BYTES..).and_then(|payload| Told::decode(command, payload));
    told.map(|told| (request.source.host.0, told)).ok_or(Reason::NotUnderstood(command))
}

/// Asks the store who leads.
pub(crate) fn lead(store: &Arc<dyn Store>, region: u32, deeds: &Receiver<Deed>, heard: &Sender<Happening>) {
    for deed in deeds {
        let (fact, complaint) = records::carry_out(&**store, region, &deed);
        if heard.send(Happening::Leadership(fact, complaint)).is_err() {
            return;
        }
    }
}

/// Reads and writes records.
pub(crate) fn keep(store: &Arc<dyn Store>, region: u32, jobs: &Receiver<Job>, heard: &Sender<Happening>) {
    let mut failed: Option<[u8; NAME_BYTES]> = None;
    let mut next = None;
    while let Some(job) = next.take().or_else(|| jobs.recv().ok()) {
        let happening = match job {
            Job::Load(name) => Happening::Loaded(name, records::load(&**store, region)),
            Job::Write(name, ..) if failed == Some(name) => continue,
            Job::Write(name, ticket, mut writes) => {
                let mut tickets = vec![ticket];
                while writes.len() < AT_ONCE {
                    match jobs.try_recv() {
                        Ok(Job::Write(of, ticket, more)) if of == name => {
                            tickets.push(ticket);
                            writes.extend(more);
                        }
                        Ok(other) => {
                            next = Some(other);
                            break;
                        }
                        Err(_) => break,
                    }
                }
                match records::write(&**store, region, &name, &writes) {
                    Ok(()) => Happening::Written(name, tickets),
                    Err(error) => {
                        failed = Some(name);
                        Happening::NotWritten(name, error)
                    }
                }
            }
        };
        if heard.send(happening).is_err() {
            return;
        }
    }
}

/// Tells the switch.
pub(crate) fn route(router: &mut routes::Router, jobs: &Receiver<routes::Job>, heard: &Sender<Happening>) {
    let (sender, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for told in told {
                if heard.send(Happening::Routes(told)).is_err() {
                    return;
                }
            }
        });
        router.run(jobs, &sender);
        drop(sender);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_and_goes_on_when_something_was_taken() {
        let places = Arc::default();
        let mut waiting: Vec<Place> = (0..WAITING_MAX).filter_map(|_| Place::take(&places)).collect();
        assert_eq!(waiting.len(), WAITING_MAX);
        for _ in 0..3 {
            assert!(Place::take(&places).is_none(), "it is dropped");
        }
        waiting.pop();
        assert!(
            Place::take(&places).is_some_and(|place| Place::take(&places).is_none() && Arc::ptr_eq(&place.0, &places))
        );
    }
}
