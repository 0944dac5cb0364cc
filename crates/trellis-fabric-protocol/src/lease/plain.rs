//! Accesses without a lease at a server of a range, and a server without a controller.
//!
//! Promises: no page is changed without a lease while a client may have a lease or a copy of it. A refusal for that reason
//! also asks those clients to give them back, so that a later attempt succeeds. It must never grant a right.

use super::home::{Context, Home, PageLease, Stamp};
use super::server::{Memory, RangeServer};
use super::settling::{Settling, WINDOW};
use super::{Effect, Epoch, Host, PageNumber, Party, Placement, Status, Timing};
use crate::Nanoseconds;
use alloc::vec::Vec;
use core::ops::Range;

/// How many terms after the end of a lease its changes may still come, if nobody else wants the page.
const LATE_TERMS: u64 = 16;

impl RangeServer {
    /// A server that is home of a range for its whole life, in this incarnation, without backups and without a controller.
    /// With `memory` it kept its pages but does not know which clients have leases: it waits for a term. Without it, its
    /// pages are new.
    pub fn alone(
        me: Host,
        pages: PageNumber,
        timing: Timing,
        incarnation: u16,
        now: Nanoseconds,
        memory: Option<Memory>,
    ) -> RangeServer {
        let is_new = memory.is_none();
        let fresh = RangeServer::new(me, Party::of(me), pages, timing, incarnation, me);
        let mut server = RangeServer { memory: memory.unwrap_or_default(), report_at: None, ..fresh };
        server.memory.incarnation = incarnation;
        let (backups, parts) = (Vec::new(), Vec::new());
        let (hand_to, begins_empty, is_unserved) = (None, false, false);
        let placement = Placement { incarnation, home: me, backups, hand_to, begins_empty, is_unserved, parts };
        let entries = is_new.then(Vec::new);
        let (timing, stamps, mut effects) = (&server.timing, &mut server.memory.stamps, Vec::new());
        let context = Context { now, timing, stamps, effects: &mut effects };
        let mut home = Home::new(&placement, entries, Settling::new(pages, 0, WINDOW), &context);
        home.until = Nanoseconds::MAX;
        server.home = Some(home);
        server.knows = (me, incarnation);
        server
    }

    /// Whether pages may be read now, by any client.
    pub fn may_read(&self, now: Nanoseconds, pages: Range<PageNumber>) -> Result<(), Status> {
        let home = self.at_home(now)?;
        if pages.into_iter().any(|page| home.is_hidden(page)) { Err(Status::Restarting) } else { Ok(()) }
    }

    /// Whether pages may be changed now by a client without a lease. If a lease or a copy prevents it, its holder is asked
    /// to give it back.
    pub fn may_change(
        &mut self,
        now: Nanoseconds,
        pages: Range<PageNumber>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Status> {
        self.may_read(now, pages.clone())?;
        // Backups keep only what was committed.
        if self.has_backups() {
            return Err(Status::Busy);
        }
        self.may_delete(now, pages, effects)
    }

    /// Whether the object of these pages may be deleted now. If a lease or a copy prevents it, its holder is asked to give
    /// it back. The server of objects notifies the backups.
    pub fn may_delete(
        &mut self,
        now: Nanoseconds,
        pages: Range<PageNumber>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Status> {
        self.may_read(now, pages.clone())?;
        let home = self.at_home(now)?;
        if home.hand_to.is_some() {
            return Err(Status::Busy);
        }
        if now < home.grace_until {
            return Err(Status::Restarting);
        }
        let known = home.in_use(pages);
        let mut is_free = true;
        self.with_home(now, effects, |home, context| {
            for &page in &known {
                is_free &= home.may_change(page, context);
            }
            for &page in known.iter().filter(|_| is_free) {
                home.end_turn(page, context);
            }
        });
        if is_free { Ok(()) } else { Err(Status::Busy) }
    }

    /// Whether a controller places this range.
    pub fn is_placed(&self) -> bool {
        self.controller.host != self.me
    }

    /// Whether backups must have what is changed here: then it is changed under a lease.
    pub fn has_backups(&self) -> bool {
        self.home.as_ref().is_some_and(|home| !home.backups.is_empty())
    }

    /// Pages may have been changed by a client without a lease: an earlier commit is no longer their content. If such a
    /// commit comes again, it does not count as the last one any more. The epoch returned is later than all that were
    /// given.
    pub fn changed(&mut self, pages: Range<PageNumber>) -> Epoch {
        let Some(home) = &mut self.home else { return 0 };
        let epoch = home.next_epoch();
        let stamp = Stamp { incarnation: home.incarnation, epoch };
        if self.is_placed() {
            // The next home, too, must know that an earlier version at any client is not the content of the page.
            self.memory.stamps.extend(pages.map(|page| (page, stamp)));
        } else {
            self.memory.stamps.range_mut(pages).for_each(|(_, last)| *last = stamp);
        }
        epoch
    }

    /// The object of these pages is deleted, and no client has a right to any of them.
    pub fn forget(&mut self, pages: Range<PageNumber>) {
        if let Some(home) = &mut self.home {
            for page in home.in_use(pages.clone()) {
                home.leased.remove(&page);
                home.queues.remove(&page);
                home.staged.remove(&page);
            }
            home.rest();
        }
        let known: Vec<PageNumber> = self.memory.stamps.range(pages).map(|(page, _)| *page).collect();
        for page in known {
            self.memory.stamps.remove(&page);
        }
    }

    /// Forgets copies whose terms have ended, and leases that ended long ago: until then their changes count.
    pub fn forget_ended(&mut self, now: Nanoseconds, effects: &mut Vec<Effect>) {
        self.with_home(now, effects, |home, context| {
            let late = LATE_TERMS * context.timing.term;
            let may_come =
                |leased: &PageLease| leased.owner.is_some_and(|owner| now < owner.until.saturating_add(late));
            let over = home.leased.iter().filter(|(page, leased)| !may_come(leased) || home.queues.contains_key(page));
            let pages: Vec<PageNumber> = over.map(|(page, _)| *page).collect();
            for page in pages {
                home.forget_ended(page, context);
                home.serve(page, context);
            }
        });
    }

    fn at_home(&self, now: Nanoseconds) -> Result<&Home, Status> {
        match &self.home {
            Some(home) if now < home.until => Ok(home),
            _ if self.is_unserved => Err(Status::Unserved),
            _ if self.knows.0 != self.me => Err(Status::Moved(self.knows.0)),
            _ => Err(Status::Restarting),
        }
    }
}

impl Home {
    /// Those of these pages that have a right in use, waited for, or under way.
    fn in_use(&self, pages: Range<PageNumber>) -> Vec<PageNumber> {
        let leased = self.leased.range(pages.clone()).map(|(page, _)| *page);
        let queues = self.queues.range(pages.clone()).map(|(page, _)| *page);
        let staged = self.staged.range(pages).map(|(page, _)| *page);
        let mut pages: Vec<PageNumber> = leased.chain(queues).chain(staged).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }
}
