//! Hot pages, and the servers that answer READs of them in addition to their homes.
//!
//! Promises: requests for a page go to another server only while that server reports that it has a copy, and no longer
//! than the copy lasts. A page that is changed while it has one gets no new one for a while, because each change waits
//! until the copy is gone. The same holds if the other server answers few of the requests, because they are not READs
//! that a copy can answer. Nothing of this is recorded: what a controller sent before it stopped ends by itself within
//! a term.
//!
//! It must never decide what may be read where: homes and readers do (`trellis_fabric_protocol::lease::reader`).

use std::collections::BTreeMap;

use trellis_base::{Deadline, Limit};
use trellis_fabric_protocol::Nanoseconds;
use trellis_fabric_protocol::lease::{Host, RangeNumber};
use trellis_fabric_protocol::wire::datagram::ControlMessage;
use trellis_fabric_protocol::wire::datagram::control::What;

use super::locality::Counted;
use super::{Order, Ranges, prefix};
use crate::event::{Because, Event};

/// The maximum number of pages with a replica.
pub(super) const REPLICAS_MAX: usize = 64;
/// How long a page gets no replica after it was changed, no copy of it could be made, or its replica was of no use.
const LEFT_ALONE_FOR: Nanoseconds = 10_000_000_000;
/// How long a server may take to get a copy.
pub(crate) const COPY: Deadline = Deadline {
    who: "a controller",
    waits_for: "a server that is to answer for a hot page, to have a copy of it",
    limit: Limit::seconds(3),
    then: "an event that names the server; the page has no copy for 10 s",
    tested: "crates/trellis-controller/src/ranges/tests/hot.rs a_server_that_gets_no_copy_is_given_up",
};
/// A page with fewer requests than the threshold for hot pages divided by this is cold.
const COLD_PARTS: u64 = 2;
/// How many times per term a server is sent the request again, and the maximum interval between two of them.
const TELL_PARTS: u64 = 8;
const TELL_EVERY_MAX: Nanoseconds = 250_000_000;
/// A server that answers less than the requests divided by the first value, in as many consecutive counts as the second,
/// is of no use.
const USE_PARTS: u64 = 4;
const USELESS_COUNTS: u8 = 3;

/// A page, by the number of its range and its own.
pub(super) type Page = (RangeNumber, u64);

/// The pages with replicas.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    pub(super) pages: BTreeMap<Page, Replica>,
    left_alone: BTreeMap<Page, Nanoseconds>,
}

/// A replica.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replica {
    /// The server that answers.
    pub(super) host: Host,
    since: Nanoseconds,
    tell_at: Nanoseconds,
    pub(super) has_copy: bool,
    /// The number of READs that it has answered.
    pub(super) answered: u64,
    /// That number at the last count, and in how many consecutive counts it was low.
    counted: u64,
    few: u8,
    /// Requests per second for the page, wherever they went.
    pub(super) per_second: u64,
}

impl Ranges {
    /// Handles the switch's counts of requests per second; pages that are not named had fewer, or none.
    pub(super) fn hear_hot(&mut self, now: Nanoseconds, counted: &[Counted], orders: &mut Vec<Order>) {
        let hot_from = self.settings.hot_from;
        if hot_from == 0 {
            return;
        }
        self.replicas.left_alone.retain(|_, until| now < *until);
        let rates: BTreeMap<Page, u64> = counted.iter().map(|counted| (counted.page, counted.per_second)).collect();
        for (page, replica) in &mut self.replicas.pages {
            replica.per_second = rates.get(page).copied().unwrap_or(0);
            let answered = replica.answered - std::mem::replace(&mut replica.counted, replica.answered);
            let is_few = replica.has_copy && answered < replica.per_second / USE_PARTS;
            replica.few = if is_few { replica.few + 1 } else { 0 };
        }
        let is_cold = |replica: &Replica| replica.per_second < hot_from.div_ceil(COLD_PARTS);
        self.end_replicas(now, Because::Cold, |_, replica| is_cold(replica), orders);
        self.end_replicas(now, Because::Useless, |_, replica| replica.few >= USELESS_COUNTS, orders);
        for &Counted { page, per_second, .. } in counted.iter().filter(|counted| counted.per_second >= hot_from) {
            if self.replicas.pages.len() >= REPLICAS_MAX {
                return;
            }
            if self.replicas.pages.contains_key(&page) || self.replicas.left_alone.contains_key(&page) {
                continue;
            }
            let Some(host) = self.best_replica(page) else { continue };
            let replica = Replica {
                host,
                since: now,
                tell_at: now,
                has_copy: false,
                answered: 0,
                counted: 0,
                few: 0,
                per_second,
            };
            self.replicas.pages.insert(page, replica);
        }
        self.tell_replicas(now, orders);
    }

    /// The server with the fewest replicas, and of these the least load.
    fn best_replica(&self, page: Page) -> Option<Host> {
        let range = self.home_of(page).filter(|range| range.is_served())?;
        let home = range.machine.record.home;
        let others = self.servers.keys().copied().filter(|host| *host != home);
        let may = |host: &Host| self.is_there(*host) && !self.is_drained(*host);
        others.filter(may).min_by_key(|host| {
            let replicas = self.replicas.pages.values().filter(|replica| replica.host == *host).count();
            (replicas, self.load_of(*host), *host)
        })
    }

    /// Handles a server's report about a page.
    pub(super) fn followed(
        &mut self,
        now: Nanoseconds,
        from: Host,
        page: Page,
        (left, answered): (Nanoseconds, u64),
        orders: &mut Vec<Order>,
    ) {
        let Some(replica) = self.replicas.pages.get_mut(&page).filter(|replica| replica.host == from) else {
            // An earlier leader requested it.
            if left > 0 {
                orders.push(follow(from, page, 0));
            }
            return;
        };
        // A server that was restarted counts from zero.
        replica.counted = replica.counted.min(answered);
        replica.answered = answered;
        if left > 0 {
            let is_new = !std::mem::replace(&mut replica.has_copy, true);
            let per_second = replica.per_second;
            orders.push(Order::Redirect { page, to: Some((from, left)) });
            if is_new {
                let (range, host) = (prefix(&self.settings, page.0.host()), prefix(&self.settings, from));
                orders.push(Order::Say(Event::Replica { range, page: page.1, host, per_second }));
            }
        } else if replica.has_copy {
            self.end_replicas(now, Because::Changed, |of, _| *of == page, orders);
        }
    }

    /// Handles the passing of time.
    pub(super) fn tick_replicas(&mut self, now: Nanoseconds, orders: &mut Vec<Order>) {
        let lost = |ranges: &Ranges, page: &Page, replica: &Replica| {
            let home = ranges.home_of(*page).map(|range| range.machine.record.home);
            !ranges.is_there(replica.host) || ranges.is_drained(replica.host) || home == Some(replica.host)
        };
        let lost: Vec<Page> =
            self.replicas.pages.iter().filter(|(page, it)| lost(self, page, it)).map(|(page, _)| *page).collect();
        self.end_replicas(now, Because::Gone, |page, _| lost.contains(page), orders);
        let is_late = |replica: &Replica| !replica.has_copy && now > replica.since + COPY.nanoseconds();
        self.end_replicas(now, Because::NoCopy, |_, replica| is_late(replica), orders);
        self.tell_replicas(now, orders);
    }

    fn tell_replicas(&mut self, now: Nanoseconds, orders: &mut Vec<Order>) {
        let term = self.settings.timing.term;
        for (page, replica) in self.replicas.pages.iter_mut().filter(|(_, replica)| now >= replica.tell_at) {
            replica.tell_at = now + (term / TELL_PARTS).clamp(1, TELL_EVERY_MAX);
            orders.push(follow(replica.host, *page, term));
        }
    }

    fn end_replicas(
        &mut self,
        now: Nanoseconds,
        why: Because,
        which: impl Fn(&Page, &Replica) -> bool,
        orders: &mut Vec<Order>,
    ) {
        let (settings, Replicas { pages, left_alone }) = (&self.settings, &mut self.replicas);
        pages.retain(|page, replica| {
            let ends = which(page, replica);
            if ends {
                if matches!(why, Because::Changed | Because::NoCopy | Because::Useless) {
                    left_alone.insert(*page, now + LEFT_ALONE_FOR);
                }
                orders.push(Order::Redirect { page: *page, to: None });
                orders.push(follow(replica.host, *page, 0));
                let (range, host) = (prefix(settings, page.0.host()), prefix(settings, replica.host));
                let answered = replica.answered;
                orders.push(Order::Say(Event::NoReplica { range, page: page.1, host, answered, why }));
            }
            !ends
        });
    }
}

fn follow(host: Host, (range, page): Page, lasts: Nanoseconds) -> Order {
    Order::Send(host, ControlMessage { range, what: What::Follow { page, lasts } })
}
