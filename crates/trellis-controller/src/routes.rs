//! What the switch has to have: where requests for the pages of a range go.
//!
//! A host keeps its own 48 bits, whoever is home of its range: what servers and controllers tell it is delivered there.
//! Only requests about pages go elsewhere: everything below the commands that hosts tell each other.
//!
//! Promises: what was wished is told again when the switch has begun another life, and when it refused; a range that is at
//! its own host costs no entry. Nothing is told while this controller does not lead; what one that led before tells all the
//! same, because it was stopped in the middle of it, does not stay: ranges are told again in turn. The switch may fail: then
//! clients find homes more slowly, and nothing else happens. Redirects of pages end with the time that was said.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use trellis_protocol::Nanoseconds;
use trellis_protocol::lease::Host;
use trellis_switch::control::{At, Remote};
use trellis_switch::{Cluster, Page, Prefix, Redirect, Route, Switch, SwitchError};

use crate::event::Event;

/// How often it is looked whether the switch is the same.
const LOOK: Duration = Duration::from_millis(100);
/// Over how long requests for pages are counted.
const HOT_OVER: Duration = Duration::from_secs(1);
/// Of so many pages.
const HOT_PAGES: usize = 256;
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
    /// Requests for this page, by range and number, go to this host for so many nanoseconds; or home.
    Redirect { page: (Host, u64), to: Option<(Host, Nanoseconds)> },
    /// Who asks any server is answered by this one.
    Anywhere(Host),
    /// This controller says nothing any more.
    Rest,
}

/// What came of it.
pub(crate) enum Told {
    /// The switch has it, or refused.
    Done(u64),
    /// Requests a second, by range and page; most first.
    Hot(Vec<((Host, u64), u64)>),
    Say(Event),
}

/// The thread that tells a switch.
pub(crate) struct Router {
    at: Option<String>,
    switch: Remote,
    life: u64,
    /// What shall be; nothing while this controller does not lead.
    wanted: Option<BTreeMap<Host, Host>>,
    /// Who answers who asks any server.
    anywhere: Option<Host>,
    /// When pages were counted last, if they are.
    counted: Option<Instant>,
    /// The switch has not all of it.
    is_dirty: bool,
    /// What was said last of what it refused.
    complaint: Option<String>,
    /// Whether this controller leads at this moment.
    leads: Box<dyn Fn() -> bool + Send>,
    /// The range that was told last of those that are told again in turn.
    told_again: Host,
}

impl Router {
    /// Of a switch that was opened; `at` is where it is, if that is a path; `leads` says whether this controller may speak.
    pub(crate) fn new(switch: Remote, at: Option<String>, leads: Box<dyn Fn() -> bool + Send>, counts: bool) -> Router {
        let (life, counted) = (switch.life(), counts.then(Instant::now));
        let (wanted, anywhere, complaint) = (None, None, None);
        Router { at, switch, life, wanted, anywhere, counted, is_dirty: false, complaint, leads, told_again: 0 }
    }

    /// Does jobs until nobody has any more.
    pub(crate) fn run(&mut self, jobs: &Receiver<Job>, told: &Sender<Told>) {
        loop {
            match jobs.recv_timeout(LOOK) {
                Ok(Job::Set { ticket, range, home }) => {
                    if let Some(wanted) = &mut self.wanted {
                        wanted.insert(range, home);
                        self.set(range, home, told);
                    }
                    if told.send(Told::Done(ticket)).is_err() {
                        return;
                    }
                }
                Ok(Job::All(homes)) => {
                    self.wanted = Some(homes.into_iter().collect());
                    self.tell_all(told);
                }
                Ok(Job::Redirect { page, to }) => self.redirect(page, to),
                Ok(Job::Anywhere(host)) => {
                    self.anywhere = Some(host);
                    self.check(|router| router.try_anywhere(), told);
                }
                Ok(Job::Rest) => (self.wanted, self.anywhere) = (None, None),
                Err(RecvTimeoutError::Timeout) => self.tell_next(told),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look(told);
            self.count(told);
        }
    }

    /// How often pages were asked for.
    fn count(&mut self, told: &Sender<Told>) {
        let Some(since) = self.counted.filter(|since| since.elapsed() >= HOT_OVER && self.wanted.is_some()) else {
            return;
        };
        self.counted = Some(Instant::now());
        let milliseconds = since.elapsed().as_millis().max(1) as u64;
        // Of a switch that does not answer nothing is hot.
        let Ok(pages) = self.switch.hot_pages(HOT_PAGES) else { return };
        let rate = |(page, count): (Page, u64)| ((page.home, page.number), count.saturating_mul(1_000) / milliseconds);
        let _ = told.send(Told::Hot(pages.into_iter().map(rate).collect()));
    }

    /// Lets requests for a page go to who has a copy. What a switch refuses is asked at home.
    fn redirect(&self, (home, number): (Host, u64), to: Option<(Host, Nanoseconds)>) {
        if self.wanted.is_none() || !(self.leads)() {
            return;
        }
        let page = Page { home, number };
        let redirect = to.and_then(|(host, left)| {
            let until = Instant::now().checked_add(Duration::from_nanos(left));
            self.port_of(host).map(|port| Redirect { port, epoch: 0, until })
        });
        let _ = match redirect {
            Some(redirect) => self.switch.set_redirect(page, redirect),
            None => self.switch.drop_redirect(page, 0),
        };
    }

    /// The next range in turn is told again.
    fn tell_next(&mut self, told: &Sender<Told>) {
        let Some(wanted) = &self.wanted else { return };
        let next = wanted.range((Bound::Excluded(self.told_again), Bound::Unbounded)).next();
        if let Some((range, home)) = next.or_else(|| wanted.first_key_value()).map(|(range, home)| (*range, *home)) {
            self.told_again = range;
            self.set(range, home, told);
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
        self.check(|router| router.try_anywhere(), told);
        if self.is_dirty {
            return;
        }
        self.life = self.switch.life();
        self.complaint = None;
        let elsewhere = wanted.iter().filter(|(range, home)| range != home).count();
        let switch = self.switch.name().to_owned();
        let _ = told.send(Told::Say(Event::Routes { switch, elsewhere }));
    }

    fn set(&mut self, range: Host, home: Host, told: &Sender<Told>) {
        self.check(|router| router.try_set(range, home), told);
    }

    /// Tells the switch something; what it refuses is told again, and said.
    fn check(&mut self, tells: impl Fn(&Router) -> Result<(), String>, told: &Sender<Told>) {
        if !(self.leads)() {
            // It rests in a moment, or leads again.
            self.is_dirty = true;
            return;
        }
        let Err(sentence) = tells(self) else { return };
        self.is_dirty = true;
        if self.complaint.as_ref() != Some(&sentence) {
            self.complaint = Some(sentence.clone());
            let _ = told.send(Told::Say(Event::Switch { sentence }));
        }
    }

    fn port_of(&self, host: Host) -> Option<u16> {
        self.switch.description().ports.iter().find(|port| port.host == host).map(|port| port.port)
    }

    fn try_anywhere(&self) -> Result<(), String> {
        let Some(host) = self.anywhere else { return Ok(()) };
        let Some(port) = self.port_of(host) else {
            let kind = self.switch.name();
            return Err(format!(
                "the switch {kind} has no port where host {host:x} is plugged in; who asks any server gets no answer"
            ));
        };
        let route = Route { port, is_memory: true };
        self.switch.set_prefix(Prefix::host(self.switch.cluster(), 0), route).map_err(|error| error.to_string())
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
        let Some(port) = self.port_of(home) else {
            let kind = self.switch.name();
            return Err(format!(
                "the switch {kind} has no port where host {home:x} is plugged in; requests for range {range:x} are not delivered"
            ));
        };
        let route = Route { port, is_memory: true };
        prefixes(cluster, range).into_iter().try_for_each(|prefix| self.switch.set_prefix(prefix, route).map_err(said))
    }
}
