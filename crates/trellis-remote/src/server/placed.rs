//! A range whose home a controller assigns: the changes of its objects that wait until every backup knows them, and what
//! begins and ends with being home.
//!
//! Promises: a new object is named, and a deleted one reported as such, only when every backup has the table pages that
//! say so; until then nothing is answered about its pages. Objects are created and deleted in *batches*: one batch is
//! under way at a time, and a bounded number of requests wait meanwhile; clients repeat the others. If pages of such an
//! object have become a part meanwhile, the batch of the part is awaited, too. A new home loads the objects in its table
//! before it answers anything. A host that is no longer home must never answer a request that waited.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use trellis_fabric_protocol::lease::home::Home;
use trellis_fabric_protocol::lease::{Epoch, Host, RangeNumber, epoch_of};
use trellis_fabric_protocol::memory_server::table_pages::{TablePage, TablePages, bytes_of};
use trellis_fabric_protocol::memory_server::{Input, MemoryServer, Settings};
use trellis_fabric_protocol::wire::datagram::{Body, Reply, Request, Status};

use super::context::Context;
use super::events::Event;
use super::held::{Hand, Held};

/// The maximum number of waiting requests; clients repeat the others.
const KEPT_MAX: usize = 256;

/// Whether a request may be answered.
pub(super) enum Standing {
    /// By this server, now.
    Here,
    /// After the batch.
    Later,
    /// Only with this answer.
    Elsewhere(Status, Epoch, Body),
}

/// See the top of this file.
pub(super) struct Placed {
    /// At home, as all backups have it.
    pub(super) table: TablePages,
    /// Whether current answers may depend on objects that not every backup knows.
    pub(super) holds_back: bool,
    /// Changes that are not in a batch yet.
    touched: BTreeSet<u64>,
    /// The pages of the objects that were created or deleted.
    objects: Vec<Range<u64>>,
    /// Table pages that are being sent to the backups, by their number.
    staged: BTreeMap<u64, TablePage>,
    /// Table pages that were refused because it was not known whether this host is still home: they are sent again.
    refused: BTreeSet<u64>,
    /// Parts with pages of these objects whose backups may not know them yet.
    pub(super) awaits: BTreeSet<RangeNumber>,
    withheld: Vec<(Reply, u16)>,
    /// Waiting requests, in the order of arrival.
    kept: Vec<(Request, Vec<u8>, u16)>,
    /// For a part: whether it was split off while objects that not every backup knew were created or deleted, and its
    /// pages belong to them.
    pub(super) split_open: bool,
    /// The incarnation of the home under which this was last reported to the controller.
    reported: Option<u16>,
    /// What operators were shown.
    shown: Shown,
}

/// What operators were shown of a range.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
struct Shown {
    /// The incarnation of the home as which it serves.
    home: Option<u16>,
    backups: Vec<Host>,
    hand_to: Option<Host>,
    is_settled: bool,
    has_lapsed: bool,
    was_blank: bool,
}

impl Placed {
    pub(super) fn new(table: TablePages) -> Placed {
        Placed {
            table,
            holds_back: false,
            touched: BTreeSet::new(),
            objects: Vec::new(),
            staged: BTreeMap::new(),
            refused: BTreeSet::new(),
            awaits: BTreeSet::new(),
            withheld: Vec::new(),
            kept: Vec::new(),
            split_open: false,
            reported: None,
            shown: Shown { was_blank: true, ..Shown::default() },
        }
    }

    /// Like `new`, for a range whose table was here before.
    pub(super) fn known(table: TablePages) -> Placed {
        let placed = Placed::new(table);
        Placed { shown: Shown { was_blank: false, ..placed.shown }, ..placed }
    }

    /// Whether table pages are being sent, here or for a part.
    pub(super) fn is_under_way(&self) -> bool {
        !self.staged.is_empty() || !self.awaits.is_empty()
    }

    /// Whether an object was created or deleted and not every backup knows it.
    pub(super) fn has_touched(&self) -> bool {
        !self.objects.is_empty()
    }

    /// Whether such an object has this page.
    pub(super) fn touches(&self, page: u64) -> bool {
        self.objects.iter().any(|pages| pages.contains(&page))
    }

    /// Records that an object of these pages was created or deleted.
    pub(super) fn touch(&mut self, pages: Range<u64>) {
        self.touched.extend(TablePages::number_of(pages.start)..=TablePages::number_of(pages.end - 1));
        self.objects.push(pages);
    }

    /// Records the same for pages of a part, which every backup receives because the part was split off.
    pub(super) fn is_split_open(&mut self, objects: Vec<Range<u64>>) {
        self.split_open = !objects.is_empty();
        self.objects = objects;
    }

    /// Which of these pages belong to such objects.
    pub(super) fn touched_in(&self, pages: &Range<u64>) -> Vec<Range<u64>> {
        let inside = |object: &Range<u64>| object.start.max(pages.start)..object.end.min(pages.end);
        self.objects.iter().map(inside).filter(|run| !run.is_empty()).collect()
    }

    pub(super) fn withhold(&mut self, reply: Reply, port: u16) {
        self.withheld.push((reply, port));
    }

    /// Keeps a request that is answered after the batch.
    pub(super) fn keep(&mut self, request: &Request, payload: &[u8], port: u16) {
        let is_known = |(kept, _, _): &(Request, Vec<u8>, u16)| kept == request;
        if self.kept.len() < KEPT_MAX && !self.kept.iter().any(is_known) {
            self.kept.push((*request, payload.to_vec(), port));
        }
    }

    /// The new bytes of a table page.
    pub(super) fn staged(&self, number: u64) -> Vec<u8> {
        self.staged.get(&number).map_or_else(|| self.table.bytes(number), |page| bytes_of(page))
    }

    /// Records that every backup has a table page or, if not `counts`, that nothing was sent because it was not known
    /// whether this host is still home.
    pub(super) fn changed(&mut self, page: u64, counts: bool) {
        let Some(number) = page.checked_sub(self.table.pages()) else { return };
        if !counts {
            self.refused.insert(number);
        } else if let Some(page) = self.staged.remove(&number) {
            self.table.replace(number, &page);
        }
    }

    fn forget_batch(&mut self) {
        self.touched.clear();
        self.objects.clear();
        self.staged.clear();
        self.refused.clear();
        self.awaits.clear();
        self.split_open = false;
        self.withheld.clear();
    }
}

impl Held {
    /// After facts: sends created and deleted objects to the backups, and continues what waited for that.
    pub(super) fn go_on(&mut self, context: &mut Context) {
        loop {
            self.begin_batch(context);
            let Some(placed) = &mut self.placed else { return };
            let is_settled = self.leases.server().home.as_ref().is_some_and(Home::is_settled);
            if placed.is_under_way() || placed.split_open && !is_settled {
                return;
            }
            placed.split_open = false;
            placed.objects.clear();
            let withheld = std::mem::take(&mut placed.withheld);
            for (reply, port) in withheld {
                // None of these answers contains bytes of memory.
                context.reply(&reply, None, 0, port);
            }
            let is_handing = self.leases.server().home.as_ref().is_some_and(|home| home.hand_to.is_some());
            let Some(placed) = self.placed.as_mut().filter(|placed| !placed.kept.is_empty() && !is_handing) else {
                return;
            };
            for (request, payload, port) in std::mem::take(&mut placed.kept) {
                self.asked(context, &request, &payload, port);
            }
        }
    }

    fn begin_batch(&mut self, context: &mut Context) {
        let now = context.now();
        let (Some(placed), Some(logic)) = (&mut self.placed, &self.logic) else { return };
        if placed.is_under_way() {
            if !placed.refused.is_empty() && self.leases.server().serves(now) {
                let refused = std::mem::take(&mut placed.refused);
                self.change(context, refused.into_iter().collect());
            }
            return;
        }
        if placed.touched.is_empty() {
            return;
        }
        let since = self.leases.next_epoch();
        for number in std::mem::take(&mut placed.touched) {
            if let Some(page) = placed.table.changed(number, logic, since) {
                placed.staged.insert(number, page);
            }
        }
        let numbers = placed.staged.keys().copied().collect();
        self.change(context, numbers);
    }

    fn change(&mut self, context: &mut Context, numbers: Vec<u64>) {
        let pages = self.placed.as_ref().map_or(0, |placed| placed.table.pages());
        for number in numbers {
            self.leases.change(context.now(), pages + number);
            self.obey(context, Hand::default());
        }
    }

    /// Handles the passing of time, for objects and sessions.
    pub(super) fn tick(&mut self, context: &mut Context) {
        let now = context.now();
        if let Some(placed) = &self.placed {
            let server = self.leases.server();
            let is_handing = server.home.as_ref().is_some_and(|home| home.hand_to.is_some());
            // Objects are deleted with their sessions.
            if !server.serves(now) || is_handing || placed.has_touched() {
                return;
            }
        }
        // Answers about objects that are deleted with their sessions wait, too.
        self.hold_back(true);
        self.step(context, Input::Tick, Hand::default());
        self.hold_back(false);
    }

    fn hold_back(&mut self, holds_back: bool) {
        if let Some(placed) = &mut self.placed {
            placed.holds_back = holds_back;
        }
    }

    /// Checks whether this server has become home of the range, or no longer is.
    pub(super) fn look(&mut self, context: &mut Context) {
        self.look_with(context, Hand::default());
    }

    /// Like [`Held::look`], with a current datagram: orders that result from it are carried out before this server stops
    /// being home.
    pub(super) fn look_with(&mut self, context: &mut Context, hand: Hand<'_>) {
        let now = context.now();
        let Some(placed) = &self.placed else { return };
        let server = self.leases.server();
        let home = server.home.as_ref().map(|home| home.incarnation);
        match (placed.shown.home, home) {
            (None, Some(incarnation)) => self.begin(context, incarnation),
            (Some(_), None) => {
                self.carry_out_orders(context, hand);
                self.end(context);
            }
            _ => {}
        }
        if let Some(placed) = self.placed.as_mut().filter(|placed| placed.reported != home) {
            // The controller's next step waits for a home that knows what was done last.
            placed.reported = home;
            self.leases.report(now);
        }
        self.show(context, now);
    }

    /// Begins as home: the objects are those in the table.
    fn begin(&mut self, context: &mut Context, incarnation: u16) {
        let place = self.place(context);
        let Some(placed) = &mut self.placed else { return };
        let (entries, makers) = placed.table.objects();
        // No session of an earlier home may be valid here. The incarnation distinguishes two that began in the same
        // second.
        let settings = Settings { incarnation: super::seconds().wrapping_add(incarnation), ..self.settings };
        let maker = |page| makers.get(&page).copied().unwrap_or(self.settings.home);
        match MemoryServer::restored(settings, &entries, maker) {
            Ok(mut logic) => {
                self.parts.iter().for_each(|part| logic.lend(part.first, part.pages));
                // What is not a complete object is free from now on, before this home has assigned any epoch.
                let since = epoch_of(incarnation);
                for number in 0..trellis_fabric_protocol::memory_server::table_pages::table_pages(placed.table.pages())
                {
                    if let Some(page) = placed.table.changed(number, &logic, since) {
                        placed.table.replace(number, &page);
                    }
                }
                let objects = logic.statistics().objects;
                let backups = self.leases.server().home.iter().flat_map(|home| home.backups.iter().copied());
                let backups: Vec<Host> = backups.collect();
                let begins_empty = std::mem::take(&mut placed.shown.was_blank);
                placed.shown = Shown { home: Some(incarnation), backups: backups.clone(), ..Shown::default() };
                let backups = backups.into_iter().map(|host| context.prefix_of(host)).collect();
                context.events.push(Event::Began { place, incarnation, backups, begins_empty, objects });
                self.logic = Some(logic);
            }
            Err(why) => {
                placed.shown.home = Some(incarnation);
                context.events.push(Event::NoTable { place, why: why.to_string() });
            }
        }
    }

    /// Ends being home. The content becomes a backup of the next home, if it wants one.
    fn end(&mut self, context: &mut Context) {
        let Some(placed) = &mut self.placed else { return };
        let server = self.leases.server();
        let is_handed = server.handed.is_some();
        let home = placed.shown.hand_to.filter(|_| is_handed).unwrap_or(server.knows.0);
        placed.shown = Shown::default();
        placed.forget_batch();
        (self.logic, self.misses) = (None, None);
        self.is_home_no_more(context.now());
        let (place, home) = (self.place(context), context.prefix_of(home));
        context.events.push(Event::Ended { place, home, is_handed });
    }

    /// Reports to operators what has changed.
    fn show(&mut self, context: &mut Context, now: u64) {
        let place = self.place(context);
        let Some(placed) = &mut self.placed else { return };
        let server = self.leases.server();
        placed.shown.was_blank = server.memory.is_blank;
        let Some(home) = &server.home else { return };
        placed.shown.hand_to = home.hand_to;
        if placed.shown.backups != home.backups {
            placed.shown.backups.clone_from(&home.backups);
            placed.shown.is_settled = false;
            let backups = home.backups.iter().map(|host| context.prefix_of(*host)).collect();
            context.events.push(Event::Backups { place, backups });
        }
        let is_settled = home.is_settled() && !home.backups.is_empty();
        if is_settled && !placed.shown.is_settled {
            context.events.push(Event::Settled { place });
        }
        placed.shown.is_settled = is_settled;
        let has_lapsed = now >= home.until;
        if has_lapsed != placed.shown.has_lapsed {
            placed.shown.has_lapsed = has_lapsed;
            let silence = Duration::from_nanos(server.timing.home_lease_held);
            context.events.push(if has_lapsed { Event::Lapsed { place, silence } } else { Event::Resumed { place } });
        }
    }
}
