//! The home of a range while it is one: leases, commits, copies, and what backups have to have.
//!
//! Promises what the module above says of a home, as long as [`super::server::Server`] asks it only during its tenure.
//! It must never grant while something of the page may be in use elsewhere, nor show what a backup lacks; it never waits
//! in silence: who cannot be served now hears so, and the first of them is served when the page is free.

use super::parts::runs_of;
use super::queue::Queue;
use super::settling::{Again, Settling};
use super::{Answer, Ask, Bytes, Effect, Entry, Epoch, Host, Message, PageNumber, Party, Placement, Status, Timing};
use super::{epoch_of, send};
use crate::Nanoseconds;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

/// Which version of a page a server has: a later home's is newer, then a later commit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Stamp {
    /// Of the home that committed it or handed it to this backup.
    pub incarnation: u16,
    /// The epoch of the lease under which it was committed.
    pub epoch: Epoch,
}

/// The versions of all pages that were ever committed, beside the pages' memory and as lasting as that.
pub type Stamps = BTreeMap<PageNumber, Stamp>;

/// What a home works with besides itself.
pub struct Context<'a> {
    /// What the home's clock says.
    pub now: Nanoseconds,
    /// How long rights last.
    pub timing: &'a Timing,
    /// The versions of the pages.
    pub stamps: &'a mut Stamps,
    /// Where orders go.
    pub effects: &'a mut Vec<Effect>,
}

/// The state of a home. The fields are open to those that check it; who runs it has no business with them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Home {
    /// In which incarnation.
    pub incarnation: u16,
    /// Epochs given in it.
    pub counter: u64,
    /// When the tenure ends.
    pub until: Nanoseconds,
    /// Before this it gives no right: somebody may have one that it does not know of.
    pub grace_until: Nanoseconds,
    /// Who has to have a commit.
    pub backups: Vec<Host>,
    /// What is given to those of them that may lack pages.
    pub settling: Settling,
    /// Pages that were not given yet are not shown: they may be newer than what backups have.
    pub hides: bool,
    /// Nothing changes any more, because this backup shall be home.
    pub hand_to: Option<Host>,
    /// Since when it is told all leases, and when to tell them again.
    pub hands: Option<(Nanoseconds, Again)>,
    /// When each backup last answered.
    pub heard: BTreeMap<Host, Nanoseconds>,
    /// Not before this something that was not answered is to be said again; 0 where there is nothing.
    pub retry_at: Nanoseconds,
    /// Pages that have a lease or copies.
    pub leased: BTreeMap<PageNumber, Leased>,
    /// Pages that somebody waits for.
    pub queues: BTreeMap<PageNumber, Queue>,
    /// Commits that not every backup has.
    pub staged: BTreeMap<PageNumber, Staged>,
}

/// What a home knows of a page that is in use.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Leased {
    /// What fences.
    pub epoch: Epoch,
    /// Who may change the page.
    pub owner: Option<Owner>,
    /// Who has copies.
    pub copies: Vec<Copied>,
    /// Copies older than `epoch` are recalled.
    pub is_recalling: bool,
}

/// Who has a lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owner {
    /// This client.
    pub party: Party,
    /// By this request.
    pub request: u64,
    /// Until then.
    pub until: Nanoseconds,
}

/// Who has a copy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Copied {
    /// This reader.
    pub party: Party,
    /// By this request, and under this epoch; 0 where the home before gave it.
    pub by: (u64, Epoch),
    /// Until then.
    pub until: Nanoseconds,
}

/// A commit on its way to the backups.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Staged {
    /// Under which lease.
    pub epoch: Epoch,
    /// Who waits for it, by which request, the last one that was heard; home itself for what it changes.
    pub waits: Option<(Party, u64)>,
    /// The lease is given back with it.
    pub release: bool,
    /// Who lacks it.
    pub missing: Vec<Host>,
    /// Since when.
    pub since: Nanoseconds,
    /// When to send it again.
    pub again: Again,
}

impl Home {
    /// A home that begins. Without `entries` it does not know who may have leases; with them, it knows all.
    pub fn new(placement: &Placement, entries: Option<Vec<Entry>>, settling: Settling, context: &Context<'_>) -> Home {
        let Context { now, timing, .. } = *context;
        let (is_known, until) = (entries.is_some(), now + timing.term);
        let leased = entries.into_iter().flatten().map(|Entry { page, epoch, owner, readers }| {
            let owner = owner.map(|(party, request)| Owner { party, request, until });
            let copies = readers.into_iter().map(|party| Copied { party, by: (0, 0), until }).collect();
            (page, Leased { epoch, owner, copies, is_recalling: false })
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
            // Who handed over had nothing that a complete backup lacks.
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

    /// Whether something of the page is in use, or waited for, or under way.
    pub fn is_in_use(&self, page: PageNumber) -> bool {
        self.leased.contains_key(&page) || self.queues.contains_key(&page) || self.staged.contains_key(&page)
    }

    /// The same home in a later incarnation, or with something to do.
    pub fn adopt(&mut self, placement: &Placement, context: &mut Context<'_>) {
        if placement.incarnation > self.incarnation {
            // Between incarnations that do not follow each other a backup may have gone and come back with nothing.
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
                self.settling.go_on_for(lacking, context.now);
            }
            self.heard.clear();
            let pages: Vec<PageNumber> = self.staged.keys().copied().collect();
            for page in pages {
                if let Some(staged) = self.staged.get_mut(&page) {
                    staged.missing.clone_from(&self.backups);
                    (staged.since, staged.again) = (context.now, Again::anew(context.now));
                    self.apply(page, context);
                }
            }
            self.retry_at = context.now;
        }
        self.hides &= !self.settling.is_over();
        // What was told to the next home stays true as long as this incarnation.
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

    /// Home itself changes a page, during the tenure. Nobody ever has a lease or a copy of such a page, so there is no term of
    /// grace to wait for, and nothing of it that the next home would have to be told: that one has it, as a backup, before it
    /// counts.
    pub(super) fn change(&mut self, page: PageNumber, context: &mut Context<'_>) {
        if self.is_in_use(page) {
            return context.effects.push(Effect::Changed(page, false));
        }
        let epoch = self.next_epoch();
        self.stage(page, epoch, None, true, context);
    }

    /// Sends what was staged to every backup.
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

    /// When something that is said now is to be said again.
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

    /// A commit that every backup has is the page.
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

    /// A backup has a version of a page, or of each of a run of pages.
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

    /// Goes on with the pages that somebody lacks.
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

    /// Whether this home is to be handed over, and nothing that changes is under way. During grace there may be leases that
    /// it does not know of: the next home would know as little, and have no grace.
    pub fn is_frozen(&self, now: Nanoseconds) -> bool {
        self.hand_to.is_some() && self.staged.is_empty() && self.settling.is_over() && now >= self.grace_until
    }

    /// A backup that has not answered for so long that the controller should do without it.
    pub fn silent(&self, now: Nanoseconds, timing: &Timing) -> Option<Host> {
        let staged = self.staged.values().map(|staged| (&staged.missing, staged.since));
        let lacked = self.settling.under_way.values().map(|lacked| (&lacked.missing, lacked.since));
        let is_silent = |host: &Host, since: Nanoseconds| {
            now >= self.heard.get(host).map_or(since, |heard| since.max(*heard)) + timing.tenure
        };
        let mut awaited =
            staged.chain(lacked).filter_map(|(missing, since)| missing.iter().find(|host| is_silent(host, since)));
        let next = || self.hand_to.filter(|_| self.hands.is_some_and(|(since, _)| now >= since + timing.tenure));
        awaited.next().copied().or_else(next)
    }

    /// Tells who will be home what is in use, when it is time.
    fn hand_over(&mut self, context: &mut Context<'_>) {
        let now = context.now;
        let is_due = self.is_frozen(now) && self.hands.is_none_or(|(_, again)| now >= again.at);
        let Some(to) = self.hand_to.filter(|_| is_due) else { return };
        let entry = |(&page, leased): (&PageNumber, &Leased)| Entry {
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

    /// Forgets what has ended, and the page if nothing is left.
    pub(super) fn forget_ended(&mut self, page: PageNumber, context: &Context<'_>) {
        if let Some(queue) = self.queues.get_mut(&page) {
            queue.forget_ended(context.now);
            if queue.waiters.is_empty() {
                self.queues.remove(&page);
            }
        }
        let is_staged = self.staged.contains_key(&page);
        let Some(leased) = self.leased.get_mut(&page) else { return };
        leased.owner = leased.owner.filter(|owner| is_staged || context.now < owner.until);
        leased.copies.retain(|copied| context.now < copied.until);
        leased.is_recalling &= !leased.copies.is_empty();
        if leased.owner.is_none() && leased.copies.is_empty() && !is_staged {
            self.leased.remove(&page);
        }
    }

    /// Whether something was said that has to be said again if it is not answered.
    fn has_pending(&self) -> bool {
        let is_waiting = !self.staged.is_empty() || !self.queues.is_empty();
        is_waiting || !self.settling.is_over() || self.hand_to.is_some()
    }

    /// When [`Home::tick`] has something to do.
    pub fn alarm(&self) -> Option<Nanoseconds> {
        self.has_pending().then_some(self.retry_at)
    }

    /// Nothing is left of what was to be said again.
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
        // A home that shall hand over and may not yet has nothing that says when.
        self.retry_at = next.unwrap_or(now + context.timing.retry);
    }
}

/// Under which epoch what a server has of a page was committed.
pub(super) fn committed(page: PageNumber, context: &Context<'_>) -> Epoch {
    context.stamps.get(&page).map_or(0, |stamp| stamp.epoch)
}
