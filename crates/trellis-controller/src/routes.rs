//! Configures the switch: where requests for the pages of a range are sent.
//!
//! A host keeps its own 48-bit prefix, whichever host is home of its range: messages of servers and controllers to it are
//! delivered there. Only requests about pages are redirected: everything below the commands that hosts send to each
//! other. Requests for the pages of a part (a subrange with a home of its own) are redirected by page ranges, in addition
//! to the prefixes of its range.
//!
//! Promises: routes are sent again after the switch was restarted, and after it refused some; a range at its own host
//! needs no entry. While this controller does not lead, it must never send anything. If it does so all the same, because
//! it was suspended in the middle of sending, the route does not last, because the leader sends ranges again in turn. If
//! the switch fails, clients find homes more slowly, and nothing else happens. Redirects of pages end after the given
//! time.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::parts::Within;
use trellis_fabric_protocol::lease::{Host, RangeNumber};
use trellis_switch::control::{At, Remote};
use trellis_switch::{Cluster, HotPage, Page, PageRange, Prefix, Redirect, Route, Switch, SwitchError};

use crate::event::Event;
use crate::ranges::{Counted, Place};

/// How often it is checked whether the switch was restarted.
const LOOK: Duration = Duration::from_millis(100);
/// The interval over which requests for pages are counted.
const HOT_OVER: Duration = Duration::from_secs(1);
/// How many pages are requested when only hot pages matter.
const HOT_PAGES: usize = 256;
/// How many pages are requested when all requests of other hosts matter: as many as a switch counts.
const HOT_PAGES_TO_REBALANCE: usize = trellis_switch::layout::HOT_MAX as usize;
/// The first byte after the host, and how many of its bits are significant: READ to RELEASE, HELLO to INVALIDATE, CLONE
/// and INVALIDATED.
const COMMANDS: [(u8, u8); 3] = [(0x00, 50), (0x40, 54), (0x44, 55)];

/// The prefixes of requests for the pages of a range.
pub fn prefixes(cluster: Cluster, range: RangeNumber) -> [Prefix; 3] {
    COMMANDS.map(|(command, bits)| {
        let address = cluster.address(range.0, command, 0, 0);
        Prefix::new(address, bits).unwrap_or_else(|_| Prefix::host(cluster, range.0))
    })
}

/// A job for the thread that configures the switch.
#[derive(Debug)]
pub(crate) enum Job {
    /// A range or part is at this place.
    Set { ticket: u64, place: Place },
    /// This number is no longer a part.
    Forget(RangeNumber),
    /// All places; any other entries of the switch are not this controller's.
    All(Vec<Place>),
    /// Requests for this page, by range and number, go to this host for this many nanoseconds, or to its home.
    Redirect { page: (RangeNumber, u64), to: Option<(Host, Nanoseconds)> },
    /// Requests to any server are answered by this one.
    Anywhere(Host),
    /// This controller no longer leads.
    Rest,
}

/// A result of the thread.
pub(crate) enum Report {
    /// The switch has the route, or refused it.
    Done(u64),
    /// Requests per second, by range and page; most first.
    Hot(Vec<Counted>),
    Say(Event),
}

/// The intended places.
#[derive(Debug, Default)]
struct Wanted {
    /// The homes by range.
    homes: BTreeMap<RangeNumber, Host>,
    /// The parts: where each was split from, its number of pages, and its home.
    parts: BTreeMap<RangeNumber, (Within, u64, Host)>,
}

impl Wanted {
    /// Sets a place; returns the range that it is, or is part of.
    fn set(&mut self, Place { number, home, part }: Place) -> RangeNumber {
        let Some((within, pages)) = part else {
            self.homes.insert(number, home);
            return number;
        };
        self.parts.insert(number, (within, pages, home));
        // A range that never moved is at its own host.
        self.homes.entry(within.range).or_insert(within.range.host());
        within.range
    }

    /// Pages of a range that are not at its home, in their order: first page, number of pages, host. Adjacent ones at one
    /// host are combined.
    fn stretches(&self, range: RangeNumber) -> Vec<(u64, u64, Host)> {
        let own = self.homes.get(&range);
        let elsewhere = self.parts.values().filter(|(within, _, home)| within.range == range && Some(home) != own);
        let mut pages: Vec<(u64, u64, Host)> =
            elsewhere.map(|(within, pages, home)| (within.first, *pages, *home)).collect();
        pages.sort_unstable();
        pages.dedup_by(|next, before| {
            let is_next = before.0 + before.1 == next.0 && before.2 == next.2;
            before.1 += if is_next { next.1 } else { 0 };
            is_next
        });
        pages
    }
}

/// The changes that turn the page ranges of a switch into the wanted ones: those that it lacks, and those that it must
/// drop.
fn differences(wanted: &BTreeMap<PageRange, u16>, set: &[(PageRange, u16)]) -> (Vec<(PageRange, u16)>, Vec<PageRange>) {
    let set: BTreeMap<PageRange, u16> = set.iter().copied().collect();
    let lacking = wanted.iter().filter(|(run, port)| set.get(run) != Some(port)).map(|(run, port)| (*run, *port));
    let surplus = set.keys().filter(|run| !wanted.contains_key(run)).copied();
    (lacking.collect(), surplus.collect())
}

/// The thread that configures a switch.
pub(crate) struct Router {
    at: Option<String>,
    switch: Remote,
    boot_id: u64,
    /// The intended state; `None` while this controller does not lead.
    wanted: Option<Wanted>,
    /// The server that answers requests to any server.
    anywhere: Option<Host>,
    /// When pages were last counted, if they are, and how many are requested.
    counted: Option<(Instant, usize)>,
    /// Whether the switch lacks some of it.
    is_dirty: bool,
    /// The last refusal that was reported.
    complaint: Option<String>,
    /// Whether this controller leads at this moment.
    leads: Box<dyn Fn() -> bool + Send>,
    /// The range that was last sent of those that are sent again in turn.
    sent_again: RangeNumber,
}

impl Router {
    /// For an open switch; `at` is its path, if it has one; `leads` says whether this controller may send. Requests are
    /// counted if hot pages are copied, or if pages move towards their clients.
    pub(crate) fn new(
        switch: Remote,
        at: Option<String>,
        leads: Box<dyn Fn() -> bool + Send>,
        (copies, rebalances): (bool, bool),
    ) -> Router {
        let pages = if rebalances { HOT_PAGES_TO_REBALANCE } else { HOT_PAGES };
        let (boot_id, counted) = (switch.boot_id(), (copies || rebalances).then(|| (Instant::now(), pages)));
        let (wanted, anywhere, complaint) = (None, None, None);
        Router {
            at,
            switch,
            boot_id,
            wanted,
            anywhere,
            counted,
            is_dirty: false,
            complaint,
            leads,
            sent_again: RangeNumber(0),
        }
    }

    /// Does jobs until the channel is closed.
    pub(crate) fn run(&mut self, jobs: &Receiver<Job>, reports: &Sender<Report>) {
        loop {
            match jobs.recv_timeout(LOOK) {
                Ok(Job::Set { ticket, place }) => {
                    if let Some(range) = self.wanted.as_mut().map(|wanted| wanted.set(place)) {
                        self.set(range, reports);
                    }
                    if reports.send(Report::Done(ticket)).is_err() {
                        return;
                    }
                }
                Ok(Job::Forget(part)) => {
                    let of = self.wanted.as_mut().and_then(|wanted| wanted.parts.remove(&part));
                    if let Some((within, ..)) = of {
                        self.set(within.range, reports);
                    }
                }
                Ok(Job::All(places)) => {
                    let mut wanted = Wanted::default();
                    for place in places {
                        wanted.set(place);
                    }
                    self.wanted = Some(wanted);
                    self.tell_all(reports);
                }
                Ok(Job::Redirect { page, to }) => self.redirect(page, to),
                Ok(Job::Anywhere(host)) => {
                    self.anywhere = Some(host);
                    self.check(|router| router.try_anywhere(), reports);
                }
                Ok(Job::Rest) => (self.wanted, self.anywhere) = (None, None),
                Err(RecvTimeoutError::Timeout) => self.tell_next(reports),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look(reports);
            self.count(reports);
        }
    }

    /// Reads how often pages were requested.
    fn count(&mut self, reports: &Sender<Report>) {
        let is_due = |(since, _): &(Instant, usize)| since.elapsed() >= HOT_OVER && self.wanted.is_some();
        let Some((since, pages_max)) = self.counted.filter(is_due) else { return };
        self.counted = Some((Instant::now(), pages_max));
        let milliseconds = since.elapsed().as_millis().max(1) as u64;
        // If the switch does not answer, no page counts as hot.
        let Ok(pages) = self.switch.hot_pages(pages_max) else { return };
        // Rounded to the nearest: for many pages with few requests each, truncation would lose everything.
        let rate = |count: u64| (count.saturating_mul(1_000) + milliseconds / 2) / milliseconds;
        let ports = &self.switch.description().ports;
        let host = |number: u16| ports.iter().find(|port| port.port == number).map(|port| port.host);
        let rate = |HotPage { page, requests, by_port }: HotPage| Counted {
            page: (RangeNumber(page.home), page.number),
            per_second: rate(requests),
            by: by_port.into_iter().filter_map(|(port, count)| Some((Host(host(port)?), rate(count)))).collect(),
        };
        let _ = reports.send(Report::Hot(pages.into_iter().map(rate).collect()));
    }

    /// Sends requests for a page to a host that has a copy. Requests that a switch refuses to redirect go to the home.
    fn redirect(&self, (range, number): (RangeNumber, u64), to: Option<(Host, Nanoseconds)>) {
        if self.wanted.is_none() || !(self.leads)() {
            return;
        }
        let page = Page { home: range.0, number };
        let redirect = to.and_then(|(host, left)| {
            let until = Instant::now().checked_add(Duration::from_nanos(left));
            self.port_of(host).map(|port| Redirect { port, epoch: 0, until })
        });
        let _ = match redirect {
            Some(redirect) => self.switch.set_redirect(page, redirect),
            None => self.switch.drop_redirect(page, 0),
        };
    }

    /// Sends the next range in turn again.
    fn tell_next(&mut self, reports: &Sender<Report>) {
        let Some(Wanted { homes, .. }) = &self.wanted else { return };
        let next = homes.range((Bound::Excluded(self.sent_again), Bound::Unbounded)).next();
        if let Some(range) = next.or_else(|| homes.first_key_value()).map(|(range, _)| *range) {
            self.sent_again = range;
            self.set(range, reports);
        }
    }

    /// Checks whether the switch is still the one that was configured; sends again what it lacks.
    fn look(&mut self, reports: &Sender<Report>) {
        if self.wanted.is_none() {
            return;
        }
        // Sent for the sake of the answer: a switch that was restarted refuses once.
        let _ = self.switch.redirect(Page { home: 0, number: 0 });
        if self.switch.boot_id() != self.boot_id || self.is_dirty {
            self.tell_all(reports);
        }
    }

    fn tell_all(&mut self, reports: &Sender<Report>) {
        let boot_id = self.switch.boot_id();
        if boot_id != self.boot_id {
            // Its ports may have changed.
            if let Some(Ok(switch)) = self.at.as_ref().map(|at| Remote::open(At::Path(at.into()))) {
                self.switch = switch;
            }
        }
        let Some(wanted) = &self.wanted else { return };
        let ranges: Vec<RangeNumber> = wanted.homes.keys().copied().collect();
        let elsewhere = wanted.homes.iter().filter(|(range, home)| range.host() != **home).count();
        self.is_dirty = false;
        for range in ranges {
            self.set(range, reports);
            if self.is_dirty {
                return;
            }
        }
        self.check(|router| router.try_anywhere(), reports);
        if self.is_dirty {
            return;
        }
        self.boot_id = self.switch.boot_id();
        self.complaint = None;
        let switch = self.switch.name().to_owned();
        let _ = reports.send(Report::Say(Event::Routes { switch, elsewhere }));
    }

    fn set(&mut self, range: RangeNumber, reports: &Sender<Report>) {
        let Some(wanted) = &self.wanted else { return };
        let Some(home) = wanted.homes.get(&range).copied() else { return };
        let stretches = wanted.stretches(range);
        self.check(|router| router.try_set(range, home), reports);
        self.check(|router| router.try_set_page_routes(range, &stretches), reports);
    }

    /// Sends something to the switch; a refusal is reported, and the route is sent again later.
    fn check(&mut self, tells: impl Fn(&Router) -> Result<(), String>, reports: &Sender<Report>) {
        if !(self.leads)() {
            // The controller will stop soon, or lead again.
            self.is_dirty = true;
            return;
        }
        let Err(sentence) = tells(self) else { return };
        self.is_dirty = true;
        if self.complaint.as_ref() != Some(&sentence) {
            self.complaint = Some(sentence.clone());
            let _ = reports.send(Report::Say(Event::Switch { sentence }));
        }
    }

    fn port_of(&self, host: Host) -> Option<u16> {
        self.switch.description().ports.iter().find(|port| port.host == host.0).map(|port| port.port)
    }

    fn try_anywhere(&self) -> Result<(), String> {
        let Some(host) = self.anywhere else { return Ok(()) };
        let Some(port) = self.port_of(host) else {
            let kind = self.switch.name();
            return Err(format!(
                "the switch {kind} has no port where host {host:#x} is plugged in; who asks any server gets no answer"
            ));
        };
        let route = Route { port, is_memory: true };
        self.switch.set_prefix(Prefix::host(self.switch.cluster(), 0), route).map_err(|error| error.to_string())
    }

    /// Sends requests for these pages of a range to their hosts, and all others to the range's home.
    fn try_set_page_routes(&self, range: RangeNumber, stretches: &[(u64, u64, Host)]) -> Result<(), String> {
        let (mut wanted, mut without) = (BTreeMap::new(), Ok(()));
        for &(first, pages, host) in stretches {
            match self.port_of(host) {
                Some(port) => {
                    wanted.extend(PageRange::cover(range.0, first, pages).into_iter().map(|run| (run, port)));
                }
                None => {
                    without =
                        Err(self.no_port(host, &format!("pages {first} to {} of range", first + pages - 1), range))
                }
            }
        }
        let said = |error: SwitchError| error.to_string();
        let (lacking, surplus) = differences(&wanted, &self.switch.page_routes(range.0).map_err(said)?);
        // New entries first, so that no request goes elsewhere in between. An entry for which there is no room is added
        // when others were dropped.
        let set = lacking.into_iter().try_for_each(|(run, port)| self.switch.set_page_route(run, port).map_err(said));
        surplus.into_iter().try_for_each(|run| self.switch.drop_page_route(run).map(drop).map_err(said))?;
        set.and(without)
    }

    fn no_port(&self, host: Host, what: &str, range: RangeNumber) -> String {
        let kind = self.switch.name();
        format!(
            "the switch {kind} has no port where host {host:#x} is plugged in; requests for {what} {range:#x} are not delivered"
        )
    }

    fn try_set(&self, range: RangeNumber, home: Host) -> Result<(), String> {
        let said = |error: SwitchError| error.to_string();
        let cluster = self.switch.cluster();
        if range.host() == home {
            return prefixes(cluster, range).into_iter().try_for_each(|prefix| {
                // A missing entry is the desired result.
                self.switch.drop_prefix(prefix).map(drop).map_err(said)
            });
        }
        let port = self.port_of(home).ok_or_else(|| self.no_port(home, "range", range))?;
        let route = Route { port, is_memory: true };
        prefixes(cluster, range).into_iter().try_for_each(|prefix| self.switch.set_prefix(prefix, route).map_err(said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: RangeNumber, first: u64, pages: u64, home: Host) -> Place {
        Place { number, home, part: Some((Within { range: RangeNumber(7), first, since: 2 }, pages)) }
    }

    fn range(number: RangeNumber, home: Host) -> Place {
        Place { number, home, part: None }
    }

    fn run(first: u64, order: u8) -> PageRange {
        PageRange::new(7, first, order).expect("it is aligned")
    }

    #[test]
    fn neighbours_at_one_host_are_covered_together() {
        let mut wanted = Wanted::default();
        for place in [
            range(RangeNumber(7), Host(7)),
            range(RangeNumber(8), Host(9)),
            part(RangeNumber(0xf004), 12, 4, Host(8)),
            part(RangeNumber(0xf000), 0, 4, Host(8)),
            part(RangeNumber(0xf001), 4, 4, Host(8)),
            part(RangeNumber(0xf002), 8, 2, Host(9)),
            part(RangeNumber(0xf003), 20, 9, Host(7)),
        ] {
            wanted.set(place);
        }
        assert_eq!(
            wanted.stretches(RangeNumber(7)),
            [(0, 8, Host(8)), (8, 2, Host(9)), (12, 4, Host(8))],
            "what is at the range's home goes there anyhow"
        );
        assert_eq!(wanted.stretches(RangeNumber(8)), []);
        let runs: Vec<PageRange> =
            wanted.stretches(RangeNumber(7)).iter().flat_map(|it| PageRange::cover(7, it.0, it.1)).collect();
        assert_eq!(runs, [run(0, 3), run(8, 1), run(12, 2)]);
        // The range moves: its parts stay, and those that were at its home are elsewhere now.
        assert_eq!(wanted.set(range(RangeNumber(7), Host(8))), RangeNumber(7));
        assert_eq!(wanted.stretches(RangeNumber(7)), [(8, 2, Host(9)), (20, 9, Host(7))]);
        assert_eq!(
            wanted.set(part(RangeNumber(0xf002), 8, 2, Host(7))),
            RangeNumber(7),
            "it is told which range that concerns"
        );
        assert_eq!(wanted.stretches(RangeNumber(7)), [(8, 2, Host(7)), (20, 9, Host(7))]);
        wanted.parts.clear();
        assert_eq!(wanted.stretches(RangeNumber(7)), []);
        // A range that never moved is sent with its first part.
        let mut wanted = Wanted::default();
        wanted.set(part(RangeNumber(0xf000), 0, 4, Host(8)));
        assert_eq!((wanted.homes, wanted.parts.len()), ([(RangeNumber(7), Host(7))].into(), 1));
    }

    #[test]
    fn a_switch_is_told_what_it_lacks_and_what_it_has_too_much() {
        let wanted = [(run(0, 3), 1), (run(8, 1), 2), (run(12, 2), 1)].into();
        assert_eq!(differences(&wanted, &[]).0.len(), 3, "one that forgot everything");
        let set: Vec<(PageRange, u16)> = vec![(run(0, 3), 1), (run(8, 1), 3), (run(0, 2), 1)];
        assert_eq!(differences(&wanted, &set), (vec![(run(8, 1), 2), (run(12, 2), 1)], vec![run(0, 2)]));
        let all: Vec<(PageRange, u16)> = wanted.iter().map(|(run, port)| (*run, *port)).collect();
        assert_eq!(differences(&wanted, &all), (vec![], vec![]));
        assert_eq!(differences(&BTreeMap::new(), &all).1.len(), 3, "nothing is elsewhere any more");
    }
}
