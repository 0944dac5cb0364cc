//! The home of a range while it is home: leases, commits, copies, and what backups must have.
//!
//! Promises: it keeps the contract of the parent module for a home, as long as [`super::server::RangeServer`] calls it
//! only during its home lease. It must never grant anything while a right to the page may be in use elsewhere that
//! excludes it, and must never show what a backup lacks. It never waits silently: a request that cannot be served now
//! gets an answer that says so, and the first of the waiting requests is served when the page is free.

use super::parts::runs_of;
use super::queue::Queue;
use super::settling::{Again, Settling};
use super::{Answer, Ask, Bytes, Effect, Entry, Epoch, Host, Message, PageNumber, Party, Placement, Status, Timing};
use super::{epoch_of, send};
use crate::Nanoseconds;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

/// The version of a page at a server: a later home's version is newer, then a later commit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Stamp {
    /// The incarnation of the home that committed it or handed it to this backup.
    pub incarnation: u16,
    /// The epoch of the lease under which it was committed.
    pub epoch: Epoch,
}

/// The versions of all pages that were ever committed. They are kept beside the pages' memory and last as long.
pub type Stamps = BTreeMap<PageNumber, Stamp>;

/// The environment in which a home works.
pub struct Context<'a> {
    /// The time by the home's clock.
    pub now: Nanoseconds,
    /// How long rights last.
    pub timing: &'a Timing,
    /// The versions of the pages.
    pub stamps: &'a mut Stamps,
    /// The list of effects.
    pub effects: &'a mut Vec<Effect>,
}

/// The state of a home. The fields are public for the checkers; a caller must not use them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Home {
    /// Its incarnation.
    pub incarnation: u16,
    /// The number of epochs given in it.
    pub counter: u64,
    /// When the home lease ends.
    pub until: Nanoseconds,
    /// Until then it grants nothing: a client may have a right that it does not know of.
    pub grace_until: Nanoseconds,
    /// The hosts that must have a commit.
    pub backups: Vec<Host>,
    /// The transfer to backups that may lack pages.
    pub settling: Settling,
    /// Pages that were not transferred yet are not shown: they may be newer than the versions at the backups.
    pub hides: bool,
    /// Nothing changes any more, because this backup is to become home.
    pub hand_to: Option<Host>,
    /// Since when the next home is sent all leases, and when to send them again.
    pub hands: Option<(Nanoseconds, Again)>,
    /// When each backup last answered.
    pub heard: BTreeMap<Host, Nanoseconds>,
    /// The earliest time at which an unanswered message is due again; 0 if there is none.
    pub retry_at: Nanoseconds,
    /// Pages that have a lease or copies.
    pub leased: BTreeMap<PageNumber, PageLease>,
    /// Pages that requests wait for.
    pub queues: BTreeMap<PageNumber, Queue>,
    /// Commits that some backup lacks.
    pub staged: BTreeMap<PageNumber, Staged>,
}

/// A home's record of a page that is in use.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct PageLease {
    /// The current epoch, which fences older ones.
    pub epoch: Epoch,
    /// The client that may change the page.
    pub owner: Option<Owner>,
    /// The readers that have copies.
    pub copies: Vec<Copied>,
    /// Copies older than `epoch` are recalled.
    pub is_recalling: bool,
}

/// The holder of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owner {
    /// This client.
    pub party: Party,
    /// By this request.
    pub request: u64,
    /// Until then.
    pub until: Nanoseconds,
    /// The client claimed the page; this home did not grant the lease.
    pub has_claimed: bool,
}

/// The holder of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Copied {
    /// This reader.
    pub party: Party,
    /// The request, and the epoch of the copy; 0 if the previous home gave it.
    pub by: (u64, Epoch),
    /// Until then.
    pub until: Nanoseconds,
}

/// A commit on its way to the backups.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Staged {
    /// The epoch of its lease.
    pub epoch: Epoch,
    /// The client that waits for it, with the last request that was heard; the home itself for its own changes.
    pub waits: Option<(Party, u64)>,
    /// The lease is given back with it.
    pub release: bool,
    /// The backups that lack it.
    pub missing: Vec<Host>,
    /// Since when.
    pub since: Nanoseconds,
    /// When to send it again.
    pub again: Again,
}

impl Home {
    /// A home that begins. With `entries` it knows all leases; without them it does not know which clients may have leases.
    pub fn new(placement: &Placement, entries: Option<Vec<Entry>>, settling: Settling, context: &Context<'_>) -> Home {
        let Context { now, timing, .. } = *context;
        let (is_known, until) = (entries.is_some(), now + timing.term);
        let leased = entries.into_iter().flatten().map(|Entry { page, epoch, owner, readers }| {
            let owner = owner.map(|(party, request)| Owner { party, request, until, has_claimed: false });
            let copies = readers.into_iter().map(|party| Copied { party, by: (0, 0), until }).collect();
            (page, PageLease { epoch, owner, copies, is_recalling: false })
        });
        let mut settling = settling;
        settling.leave_out(runs_of(&placement.parts));
        settling.begin(placement.backups.clone());
        Home {
            incarnation: placement.incarnation,
            counter: 0,
            until: now,
            grace_until: if is_known { now } else { now + timing.grace },
            backups: placement.backups.clone(),
            settling,
            // A home that handed over had nothing that a complete backup lacks.
            hides: !is_known && !placement.backups.is_empty(),
            hand_to: None,
            hands: None,
            heard: BTreeMap::new(),
            retry_at: now,
            leased: leased.collect(),
            queues: BTreeMap::new(),
            staged: BTreeMap::new(),
        }
    }

    /// Whether every backup has every page.
    pub fn is_settled(&self) -> bool {
        self.settling.is_over()
    }

    /// Whether a right to the page is in use, waited for, or under way.
    pub fn is_in_use(&self, page: PageNumber) -> bool {
        self.leased.contains_key(&page) || self.queues.contains_key(&page) || self.staged.contains_key(&page)
    }

    /// The same home in a later incarnation, or with an order.
    pub fn adopt(&mut self, placement: &Placement, context: &mut Context<'_>) {
        if placement.incarnation > self.incarnation {
            // Between incarnations that do not follow each other, a backup may have gone and come back with nothing.
            let knows_none = self.incarnation.checked_add(1) != Some(placement.incarnation);
            self.incarnation = placement.incarnation;
            self.counter = 0;
            (self.hand_to, self.hands) = (None, None);
            let lacks = |host: &Host| self.settling.lacking.contains(host) || !self.backups.contains(host);
            let lacking = placement.backups.iter().copied().filter(|host| knows_none || lacks(host)).collect();
            self.backups.clone_from(&placement.backups);
            self.settling.leave_out(runs_of(&placement.parts));
            if knows_none {
                self.settling.begin(lacking);
            } else {
                self.settling.go_on_for(lacking, context.now, context.stamps);
            }
            self.heard.clear();
            let pages: Vec<PageNumber> = self.staged.keys().copied().collect();
            for page in pages {
                if let Some(staged) = self.staged.get_mut(&page) {
                    staged.missing.clone_from(&self.backups);
                    (staged.since, staged.again) = (context.now, Again::now(context.now));
                    self.apply(page, context);
                }
            }
            self.retry_at = context.now;
        }
        self.hides &= !self.settling.is_over();
        // What was sent to the next home stays true as long as this incarnation lasts.
        if self.hand_to.is_none() && placement.hand_to.is_some() {
            self.hand_to = placement.hand_to;
            self.retry_at = context.now;
        }
    }

    pub(super) fn next_epoch(&mut self) -> Epoch {
        self.counter += 1;
        epoch_of(self.incarnation) + self.counter
    }

    /// Whether a page is not shown yet.
    pub fn is_hidden(&self, page: PageNumber) -> bool {
        self.hides && !self.settling.is_given(page)
    }

    /// The home itself changes a page, during the home lease. No client ever has a lease or a copy of such a page, so
    /// there is no grace period, and no right that the next home would have to learn of. That host, as a backup, has
    /// the page before the change counts.
    pub(super) fn change(&mut self, page: PageNumber, context: &mut Context<'_>) {
        if self.is_in_use(page) {
            return context.effects.push(Effect::Changed(page, false));
        }
        let epoch = self.next_epoch();
        self.stage(page, epoch, None, true, context);
    }

    /// Sends a staged page to every backup.
    pub(super) fn stage(
        &mut self,
        page: PageNumber,
        epoch: Epoch,
        waits: Option<(Party, u64)>,
        release: bool,
        context: &mut Context<'_>,
    ) {
        let (since, again) = (context.now, self.again(context));
        let missing = self.backups.clone();
        context.effects.push(Effect::Stage(page));
        self.staged.insert(page, Staged { epoch, waits, release, missing, since, again });
        self.store_staged(page, context);
        self.apply(page, context);
    }

    /// When a message that is sent now is to be sent again.
    pub(super) fn again(&mut self, context: &Context<'_>) -> Again {
        let again = Again::after(context.now, context.timing);
        self.retry_at = if self.has_pending() { self.retry_at.min(again.at) } else { again.at };
        again
    }

    fn store_staged(&self, page: PageNumber, context: &mut Context<'_>) {
        let Some(staged) = self.staged.get(&page) else { return };
        for &host in &staged.missing {
            let message = Message::Store { page, pages: 1, incarnation: self.incarnation, epoch: staged.epoch };
            send(context.effects, Party::of(host), message, Bytes::Staged);
        }
    }

    /// A commit that every backup has becomes the content of the page.
    fn apply(&mut self, page: PageNumber, context: &mut Context<'_>) {
        if !self.staged.get(&page).is_some_and(|staged| staged.missing.is_empty()) {
            return;
        }
        let Some(Staged { epoch, waits, release, .. }) = self.staged.remove(&page) else { return };
        let raised = self.next_epoch();
        context.effects.push(Effect::Apply(page));
        context.stamps.insert(page, Stamp { incarnation: self.incarnation, epoch });
        if let Some(leased) = self.leased.get_mut(&page) {
            leased.epoch = raised;
            leased.owner = leased.owner.filter(|_| !release);
        }
        match waits {
            Some((to, request)) => {
                let answer = Answer { to, page, request, ask: Ask::Commit { epoch, release } };
                answer.say(Status::Ok, raised, context.effects);
            }
            None => context.effects.push(Effect::Changed(page, true)),
        }
        self.forget_ended(page, context);
        self.serve(page, context);
    }

    /// A backup has a version of a page, or of each page of a range.
    pub fn stored(
        &mut self,
        from: Host,
        run: Range<PageNumber>,
        incarnation: u16,
        epoch: Epoch,
        context: &mut Context<'_>,
    ) {
        if incarnation != self.incarnation {
            return;
        }
        let page = run.start;
        self.heard.insert(from, context.now);
        if let Some(staged) = self.staged.get_mut(&page).filter(|staged| staged.epoch == epoch) {
            staged.missing.retain(|&host| host != from);
            self.apply(page, context);
        }
        self.settling.stored(from, &run);
        self.settle(context);
        self.hand_over(context);
    }

    /// Continues with the pages that some backup lacks.
    fn settle(&mut self, context: &mut Context<'_>) {
        if self.settling.is_over() {
            return;
        }
        let again = self.again(context);
        for page in self.settling.go_on(context.now, again, context.stamps) {
            self.store_settling(page, context);
        }
        self.hides &= !self.settling.is_over();
    }

    fn store_settling(&self, page: PageNumber, context: &mut Context<'_>) {
        let Some(lacked) = self.settling.under_way.get(&page) else { return };
        let (pages, incarnation) = (lacked.pages, self.incarnation);
        let (epoch, bytes) = if lacked.are_zero { (0, Bytes::Zero) } else { (committed(page, context), Bytes::Page) };
        for &host in &lacked.missing {
            send(context.effects, Party::of(host), Message::Store { page, pages, incarnation, epoch }, bytes);
        }
    }

    /// Whether this home is to be handed over, and no change is under way. During the grace period there may be leases that
    /// it does not know of: the next home would not know them either, and would have no grace period.
    pub fn is_frozen(&self, now: Nanoseconds) -> bool {
        self.hand_to.is_some() && self.staged.is_empty() && self.settling.is_over() && now >= self.grace_until
    }

    /// A backup that has not answered for so long that the controller should remove it.
    pub fn silent(&self, now: Nanoseconds, timing: &Timing) -> Option<Host> {
        let staged = self.staged.values().map(|staged| (&staged.missing, staged.since));
        let lacked = self.settling.under_way.values().map(|lacked| (&lacked.missing, lacked.since));
        let is_silent = |host: &Host, since: Nanoseconds| {
            now >= self.heard.get(host).map_or(since, |heard| since.max(*heard)) + timing.home_lease
        };
        let mut awaited =
            staged.chain(lacked).filter_map(|(missing, since)| missing.iter().find(|host| is_silent(host, since)));
        let next = || self.hand_to.filter(|_| self.hands.is_some_and(|(since, _)| now >= since + timing.home_lease));
        awaited.next().copied().or_else(next)
    }

    /// Sends the next home all rights that are in use, when it is time.
    fn hand_over(&mut self, context: &mut Context<'_>) {
        let now = context.now;
        let is_due = self.is_frozen(now) && self.hands.is_none_or(|(_, again)| now >= again.at);
        let Some(to) = self.hand_to.filter(|_| is_due) else { return };
        let entry = |(&page, leased): (&PageNumber, &PageLease)| Entry {
            page,
            epoch: leased.epoch,
            owner: leased.owner.filter(|owner| now < owner.until).map(|owner| (owner.party, owner.request)),
            readers: leased.copies.iter().filter(|copied| now < copied.until).map(|copied| copied.party).collect(),
        };
        let in_use = |entry: &Entry| entry.owner.is_some() || !entry.readers.is_empty();
        let entries = self.leased.iter().map(entry).filter(in_use).collect();
        let first = self.again(context);
        let (_, again) = self.hands.get_or_insert((now, first));
        if now >= again.at {
            again.put_off(now, context.timing);
        }
        let message = Message::Leases { incarnation: self.incarnation, entries };
        send(context.effects, Party::of(to), message, Bytes::Nothing);
    }

    /// Forgets rights that have ended, and the page if nothing is left. Until then a lease that has ended counts for its
    /// holder: nobody else was granted the page since.
    pub(super) fn forget_ended(&mut self, page: PageNumber, context: &Context<'_>) {
        self.forget_waiters(page, context.now);
        let is_staged = self.staged.contains_key(&page);
        let Some(leased) = self.leased.get_mut(&page) else { return };
        leased.owner = leased.owner.filter(|owner| is_staged || context.now < owner.until);
        leased.copies.retain(|copied| context.now < copied.until);
        leased.is_recalling &= !leased.copies.is_empty();
        if leased.owner.is_none() && leased.copies.is_empty() && !is_staged {
            self.leased.remove(&page);
        }
    }

    /// Forgets clients that waited for the page and no longer ask.
    pub(super) fn forget_waiters(&mut self, page: PageNumber, now: Nanoseconds) {
        if let Some(queue) = self.queues.get_mut(&page) {
            queue.forget_ended(now);
            if queue.waiters.is_empty() {
                self.queues.remove(&page);
            }
        }
    }

    /// Whether a message was sent that has to be sent again if it is not answered.
    fn has_pending(&self) -> bool {
        let is_waiting = !self.staged.is_empty() || !self.queues.is_empty();
        is_waiting || !self.settling.is_over() || self.hand_to.is_some()
    }

    /// When [`Home::tick`] has something to do.
    pub fn alarm(&self) -> Option<Nanoseconds> {
        self.has_pending().then_some(self.retry_at)
    }

    /// Nothing is left to be sent again.
    pub(super) fn rest(&mut self) {
        if !self.has_pending() {
            self.retry_at = 0;
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, context: &mut Context<'_>) {
        if context.now < self.retry_at || !self.has_pending() {
            return;
        }
        let now = context.now;
        self.retry_at = now + context.timing.retry;
        for page in self.settling.due(now, context.timing) {
            self.store_settling(page, context);
        }
        self.settle(context);
        let due = self.staged.iter_mut().filter(|(_, staged)| now >= staged.again.at);
        let due = due.map(|(&page, staged)| {
            staged.again.put_off(now, context.timing);
            page
        });
        for page in due.collect::<Vec<PageNumber>>() {
            self.store_staged(page, context);
        }
        let due: Vec<PageNumber> =
            self.queues.iter().filter(|(_, queue)| now >= queue.again_at).map(|(page, _)| *page).collect();
        for page in due {
            self.queues.entry(page).and_modify(|queue| queue.again_at = now + context.timing.retry);
            self.forget_ended(page, context);
            self.serve(page, context);
            self.recall(page, context);
        }
        self.hand_over(context);
        let lacked = self.settling.under_way.values().map(|lacked| lacked.again.at);
        let staged = self.staged.values().map(|staged| staged.again.at);
        let queues = self.queues.values().map(|queue| queue.again_at);
        let hands = self.hands.filter(|_| self.is_frozen(now)).map(|(_, again)| again.at);
        let next = lacked.chain(staged).chain(queues).chain(hands).min();
        // A home that is to hand over and may not do so yet has no other timer.
        self.retry_at = next.unwrap_or(now + context.timing.retry);
    }
}

/// The epoch under which a server's version of a page was committed.
pub(super) fn committed(page: PageNumber, context: &Context<'_>) -> Epoch {
    context.stamps.get(&page).map_or(0, |stamp| stamp.epoch)
}
