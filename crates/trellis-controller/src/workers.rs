//! Threads that wait on the controller's behalf: for datagrams, for the store, for the switch. They pass what they learn
//! to the one thread that decides, over one channel.
//!
//! Promises: records are written in the order of the requests, several at once if several wait; after a failed write,
//! nothing more is written under the same name. A datagram that is not an intact report of a server of this cluster is
//! refused, counted and reported once. The input that waits for decisions is bounded: datagrams beyond the limit are
//! dropped as by a network, and senders repeat them. From the store and the switch there is one answer to each request,
//! and from operators one request for each connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use trellis_fabric_protocol::lease::Host;
use trellis_fabric_protocol::wire::address::{Address, HostPrefix};
use trellis_fabric_protocol::wire::command::Command;
use trellis_fabric_protocol::wire::datagram::{ControlMessage, HEADER_BYTES, Request, Rules, TagKind, Tags};
use trellis_fabric_protocol::wire::refusals::{Reason, Refusal, Refusals};
use trellis_store::{Store, StoreError};
use trellis_transport::links::ipv6::Endpoint;

use crate::control::Asked;
use crate::leadership::{Action, Fact, NAME_BYTES};
use crate::records::{self, RecordError, Records, Write};
use crate::routes;

/// The maximum length of a datagram.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;
/// The maximum number of datagrams that wait to be handled: more than 400 servers send in a second.
const WAITING_MAX: usize = 4_096;
/// How many records are written at once, plus those that belong to the last of them.
const AT_ONCE: usize = 64;

/// An input of the deciding thread.
pub(crate) enum WorkerEvent {
    /// A message of a host.
    Control(Host, ControlMessage, Place),
    /// A refused datagram.
    Refused(Refusal),
    /// The store's answer about the leadership.
    Leadership(Fact, Option<StoreError>),
    /// All records, as of the time at which this name began to lead.
    Loaded([u8; NAME_BYTES], Result<Records, RecordError>),
    /// These were written under this name.
    Written([u8; NAME_BYTES], Vec<u64>),
    /// A write failed, or its result is unknown.
    NotWritten([u8; NAME_BYTES], RecordError),
    /// A result of the thread that configures the switch.
    Routes(routes::Report),
    /// A request of an operator.
    Asked(Asked),
    /// The socket failed.
    Failed(std::io::Error),
    /// This process is being stopped.
    Ends,
}

/// The place of a datagram in the bounded queue; freed when it is dropped.
pub(crate) struct Place(Arc<AtomicUsize>);

impl Place {
    /// The next place; `None` if all are taken.
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

/// A job for the thread that reads and writes records.
pub(crate) enum Job {
    Load([u8; NAME_BYTES]),
    Write([u8; NAME_BYTES], u64, Vec<Write>),
}

/// Checksums with the processor's own instruction, if it has one; no keys.
pub(crate) struct Hardware;

impl Tags for Hardware {
    fn checksum(&self, pieces: &[&[u8]]) -> u32 {
        pieces.iter().fold(0, |checksum, piece| crc32c::crc32c_append(checksum, piece))
    }
}

/// A buffer for a datagram, and the refusals so far.
pub(crate) struct Room {
    bytes: Box<[u8]>,
    refusals: Refusals,
}

/// A received datagram.
pub(crate) enum Received {
    /// A message of a host.
    Control(Host, ControlMessage),
    /// A refused datagram.
    Refused(Refusal),
}

impl Room {
    pub(crate) fn new() -> Room {
        Room { bytes: vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice(), refusals: Refusals::default() }
    }

    /// The next message, or the next refusal to be reported; `None` if there is none.
    pub(crate) fn take(&mut self, endpoint: &Endpoint, me: HostPrefix) -> std::io::Result<Option<Received>> {
        while let Some(arrived) = endpoint.receive(&mut self.bytes)? {
            let (source, destination) = (Address(arrived.source), Address(arrived.destination));
            let message = match self.bytes.get(..arrived.bytes) {
                Some(payload) => control_message(source, destination, payload, me),
                None => Err(Reason::TooLong(arrived.bytes)),
            };
            match message {
                Ok((from, message)) => return Ok(Some(Received::Control(from, message))),
                Err(why) => {
                    if let Some(refusal) = self.refusals.count(source, why) {
                        return Ok(Some(Received::Refused(refusal)));
                    }
                }
            }
        }
        Ok(None)
    }
}

/// Receives datagrams until the channel is closed.
pub(crate) fn hear(endpoint: &Arc<Endpoint>, me: HostPrefix, heard: &Sender<WorkerEvent>) {
    let mut room = Room::new();
    let places = Arc::default();
    loop {
        let worker_event = match room.take(endpoint, me) {
            Ok(Some(Received::Refused(refusal))) => WorkerEvent::Refused(refusal),
            Ok(Some(Received::Control(from, message))) => match Place::take(&places) {
                Some(place) => WorkerEvent::Control(from, message, place),
                None => continue,
            },
            Ok(None) => {
                endpoint.wait(Duration::from_secs(1));
                continue;
            }
            Err(error) => WorkerEvent::Failed(error),
        };
        let is_over = matches!(worker_event, WorkerEvent::Failed(_));
        if heard.send(worker_event).is_err() || is_over {
            return;
        }
    }
}

fn control_message(
    source: Address,
    destination: Address,
    payload: &[u8],
    me: HostPrefix,
) -> Result<(Host, ControlMessage), Reason> {
    let rules = Rules { cluster: me.cluster, least: TagKind::Checksum, tags: &Hardware };
    let request =
        Request::decode(source, destination, payload, &rules).map_err(|refused| Reason::NoRequest(refused.why))?;
    let command = request.command();
    // No other message is expected here.
    let is_heard = matches!(command, Command::Report | Command::Locate | Command::Followed);
    if !is_heard || request.destination.pointer.home() != me.host {
        return Err(Reason::NotToController(command));
    }
    let message = payload.get(HEADER_BYTES..).and_then(|payload| ControlMessage::decode(command, payload));
    message.map(|message| (request.source.host, message)).ok_or(Reason::NotUnderstood(command))
}

/// Carries out the leadership's deeds in the store.
pub(crate) fn lead(store: &Arc<dyn Store>, region: u32, actions: &Receiver<Action>, heard: &Sender<WorkerEvent>) {
    for action in actions {
        let (fact, complaint) = records::carry_out(&**store, region, &action);
        if heard.send(WorkerEvent::Leadership(fact, complaint)).is_err() {
            return;
        }
    }
}

/// Reads and writes records.
pub(crate) fn keep(store: &Arc<dyn Store>, region: u32, jobs: &Receiver<Job>, heard: &Sender<WorkerEvent>) {
    let mut failed: Option<[u8; NAME_BYTES]> = None;
    let mut next = None;
    // Ends with a job, or with the controller.
    while let Some(job) = next.take().or_else(|| jobs.recv().ok()) {
        let worker_event = match job {
            Job::Load(name) => WorkerEvent::Loaded(name, records::load(&**store, region)),
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
                    Ok(()) => WorkerEvent::Written(name, tickets),
                    Err(error) => {
                        failed = Some(name);
                        WorkerEvent::NotWritten(name, error)
                    }
                }
            }
        };
        if heard.send(worker_event).is_err() {
            return;
        }
    }
}

/// Configures the switch.
pub(crate) fn route(router: &mut routes::Router, jobs: &Receiver<routes::Job>, heard: &Sender<WorkerEvent>) {
    let (sender, reports) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for report in reports {
                if heard.send(WorkerEvent::Routes(report)).is_err() {
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
