//! What the switch has to have: where requests for the pages of a range go.
//!
//! A host keeps its own 48 bits, whoever is home of its range: what servers and controllers tell it is delivered there.
//! Only requests about pages go elsewhere: everything below the commands that hosts tell each other.
//!
//! Promises: what was wished is told again when the switch has begun another life, and when it refused; a range that is at
//! its own host costs no entry. The switch may fail: then clients find homes more slowly, and nothing else happens.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use trellis_protocol::lease::Host;
use trellis_switch::control::{At, Remote};
use trellis_switch::{Cluster, Page, Prefix, Route, Switch, SwitchError};

use crate::event::Event;

/// How often it is looked whether the switch is the same.
const LOOK: Duration = Duration::from_millis(100);
/// The first byte behind the host, and how many bits of it count: READ to RELEASE, HELLO to INVALIDATE, CLONE and INVALIDATED.
const COMMANDS: [(u8, u8); 3] = [(0x00, 50), (0x40, 54), (0x44, 55)];

/// The prefixes of requests for the pages of a range.
pub fn prefixes(cluster: Cluster, range: Host) -> [Prefix; 3] {
    COMMANDS.map(|(command, bits)| {
        let address = cluster.address(range, command, 0, 0);
        Prefix::new(address, bits).unwrap_or_else(|_| Prefix::host(cluster, range))
    })
}

/// Something for the thread that tells the switch.
#[derive(Debug)]
pub(crate) enum Job {
    /// This range is at this host.
    Set { ticket: u64, range: Host, home: Host },
    /// All ranges; what else the switch has is none of this controller's.
    All(Vec<(Host, Host)>),
    /// This controller says nothing any more.
    Rest,
}

/// What came of it.
pub(crate) enum Told {
    /// The switch has it, or refused.
    Done(u64),
    Say(Event),
}

/// The thread that tells a switch.
pub(crate) struct Router {
    at: Option<String>,
    switch: Remote,
    life: u64,
    /// What shall be; nothing while this controller does not lead.
    wanted: Option<BTreeMap<Host, Host>>,
    /// The switch has not all of it.
    is_dirty: bool,
    /// What was said last of what it refused.
    complaint: Option<String>,
}

impl Router {
    /// Of a switch that was opened; `at` is where it is, if that is a path.
    pub(crate) fn new(switch: Remote, at: Option<String>) -> Router {
        let life = switch.life();
        Router { at, switch, life, wanted: None, is_dirty: false, complaint: None }
    }

    /// Does jobs until nobody has any more.
    pub(crate) fn run(&mut self, jobs: &Receiver<Job>, told: &Sender<Told>) {
        loop {
            match jobs.recv_timeout(LOOK) {
                Ok(Job::Set { ticket, range, home }) => {
                    if let Some(wanted) = &mut self.wanted {
                        wanted.insert(range, home);
                    }
                    self.set(range, home, told);
                    if told.send(Told::Done(ticket)).is_err() {
                        return;
                    }
                }
                Ok(Job::All(homes)) => {
                    self.wanted = Some(homes.into_iter().collect());
                    self.tell_all(told);
                }
                Ok(Job::Rest) => self.wanted = None,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look(told);
        }
    }

    /// Whether the switch is the one that was told; whatever is lacking is told again.
    fn look(&mut self, told: &Sender<Told>) {
        if self.wanted.is_none() {
            return;
        }
        // Asked for its answer's sake: a switch of another life refuses once.
        let _ = self.switch.redirect(Page { home: 0, number: 0 });
        if self.switch.life() != self.life || self.is_dirty {
            self.tell_all(told);
        }
    }

    fn tell_all(&mut self, told: &Sender<Told>) {
        let life = self.switch.life();
        if life != self.life {
            // Its ports may be others.
            if let Some(Ok(switch)) = self.at.as_ref().map(|at| Remote::open(At::Path(at.into()))) {
                self.switch = switch;
            }
        }
        let Some(wanted) = self.wanted.clone() else { return };
        self.is_dirty = false;
        for (range, home) in &wanted {
            self.set(*range, *home, told);
            if self.is_dirty {
                return;
            }
        }
        self.life = self.switch.life();
        self.complaint = None;
        let elsewhere = wanted.iter().filter(|(range, home)| range != home).count();
        let switch = self.switch.name().to_owned();
        let _ = told.send(Told::Say(Event::Routes { switch, elsewhere }));
    }

    fn set(&mut self, range: Host, home: Host, told: &Sender<Told>) {
        let Err(sentence) = self.try_set(range, home) else { return };
        self.is_dirty = true;
        if self.complaint.as_ref() != Some(&sentence) {
            self.complaint = Some(sentence.clone());
            let _ = told.send(Told::Say(Event::Switch { sentence }));
        }
    }

    fn try_set(&self, range: Host, home: Host) -> Result<(), String> {
        let said = |error: SwitchError| error.to_string();
        let cluster = self.switch.cluster();
        if range == home {
            return prefixes(cluster, range).into_iter().try_for_each(|prefix| {
                // One that was not there is what is wanted.
                self.switch.drop_prefix(prefix).map(drop).map_err(said)
            });
        }
        let ports = &self.switch.description().ports;
        let Some(port) = ports.iter().find(|port| port.host == home).map(|port| port.port) else {
            let kind = self.switch.name();
            return Err(format!(
                "the switch {kind} has no port where host {home:x} is plugged in; requests for range {range:x} are not delivered"
            ));
        };
        let route = Route { port, is_memory: true };
        prefixes(cluster, range).into_iter().try_for_each(|prefix| self.switch.set_prefix(prefix, route).map_err(said))
    }
}
