//! The home of a range while it is one: leases, commits, copies, and what backups have to have.
//!
//! Promises what the module above says of a home, as long as [`super::server::Server`] asks it only during its tenure.
//! It must never grant while something of the page may be in use elsewhere, nor show what a backup lacks; it never waits
//! in silence: who cannot be served now hears so, and the first of them is served when the page is free.

use super::{Answer, Ask, Bytes, Effect, Entry, Epoch, Host, Message, PageNumber, Party, Placement, Status, Timing};
use super::{epoch_of, send};
use crate::Nanoseconds;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

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
pub struct Desk<'a> {
    /// What the home's clock says.
    pub now: Nanoseconds,
    /// How long rights last.
    pub timing: &'a Timing,
    /// How many pages the range has.
    pub pages: PageNumber,
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
    /// Those of them that may lack pages.
    pub lacking: Vec<Host>,
    /// Pages below this one have been given to those that lacked them.
    pub settled: PageNumber,
    /// Which of them lack page `settled`.
    pub settling: Vec<Host>,
    /// Pages from `settled` on are not shown: they may be newer than what backups have.
    pub hides: bool,
    /// Nothing changes any more, because this backup shall be home.
    pub hand_to: Option<Host>,
    /// When a backup last answered, or was first asked.
    pub heard_at: Nanoseconds,
    /// When to say again what was not answered.
    pub retry_at: Nanoseconds,
    /// Pages that have a lease or copies or are wanted.
    pub leased: BTreeMap<PageNumber, Leased>,
}

/// What a home knows of a page that is in use.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Leased {
    /// What fences.
    pub epoch: Epoch,
    /// Who may change the page.
    pub owner: Option<Owner>,
    /// Who has copies, and until when.
    pub readers: Vec<(Party, Nanoseconds)>,
    /// Copies older than `epoch` are recalled.
    pub is_recalling: bool,
    /// Who gets the page next, by which request.
    pub next: Option<(Party, u64)>,
    /// A commit that not every backup has.
    pub staged: Option<Staged>,
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

/// A commit on its way to the backups.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Staged {
    /// Under which lease.
    pub epoch: Epoch,
    /// Who waits for it.
    pub party: Party,
    /// By which request, the last one that was heard.
    pub request: u64,
    /// The lease is given back with it.
    pub release: bool,
    /// Who lacks it.
    pub missing: Vec<Host>,
}

impl Home {
    /// A home that begins. Without `entries` it does not know who may have leases; with them, it knows all.
    pub fn new(placement: &Placement, entries: Option<Vec<Entry>>, desk: &Desk<'_>) -> Home {
        let Desk { now, timing, .. } = *desk;
        let is_known = entries.is_some();
        let owned = |party, request| Owner { party, request, until: now + timing.term };
        let leased = entries.into_iter().flatten().map(|Entry { page, epoch, owner, readers }| {
            let owner = owner.map(|(party, request)| owned(party, request));
            let readers = readers.into_iter().map(|reader| (reader, now + timing.term)).collect();
            (page, Leased { epoch, owner, readers, ..Leased::default() })
        });
        Home {
            incarnation: placement.incarnation,
            counter: 0,
            until: now,
            grace_until: if is_known { now } else { now + timing.grace },
            backups: placement.backups.clone(),
            lacking: placement.backups.clone(),
            settled: 0,
            settling: placement.backups.clone(),
            // Who handed over had nothing that a complete backup lacks.
            hides: !is_known && !placement.backups.is_empty(),
            hand_to: None,
            heard_at: now,
            retry_at: now,
            leased: leased.collect(),
        }
    }

    /// Whether every backup has every page.
    pub fn is_settled(&self) -> bool {
        self.lacking.is_empty()
    }

    /// The same home in a later incarnation, or with something to do.
    pub fn adopt(&mut self, placement: &Placement, desk: &mut Desk<'_>) {
        if placement.incarnation > self.incarnation {
            // Between incarnations that do not follow each other a backup may have gone and come back with nothing.
            let knows_none = self.hides || placement.incarnation != self.incarnation + 1;
            self.incarnation = placement.incarnation;
            self.counter = 0;
            self.hand_to = None;
            let is_new = |host: &Host| knows_none || !self.backups.contains(host) || self.lacking.contains(host);
            self.lacking = placement.backups.iter().copied().filter(is_new).collect();
            self.backups.clone_from(&placement.backups);
            self.settled = 0;
            self.settling.clone_from(&self.lacking);
            let pages: Vec<PageNumber> = self.leased.keys().copied().collect();
            for page in pages {
                if let Some(staged) = self.leased.get_mut(&page).and_then(|leased| leased.staged.as_mut()) {
                    staged.missing.clone_from(&self.backups);
                    self.apply(page, desk);
                }
            }
            (self.heard_at, self.retry_at) = (desk.now, desk.now);
        }
        self.hides &= !self.lacking.is_empty();
        // What was told to the next home stays true as long as this incarnation.
        if self.hand_to.is_none() && placement.hand_to.is_some() {
            self.hand_to = placement.hand_to;
            (self.heard_at, self.retry_at) = (desk.now, desk.now);
        }
    }

    fn next_epoch(&mut self) -> Epoch {
        self.counter += 1;
        epoch_of(self.incarnation) + self.counter
    }

    fn is_hidden(&self, page: PageNumber) -> bool {
        self.hides && page >= self.settled
    }

    /// A page request, during the tenure.
    pub(super) fn request(&mut self, answer: Answer, desk: &mut Desk<'_>) {
        let page = answer.page;
        if self.is_hidden(page) {
            return answer.say(Status::Restarting, 0, desk.effects);
        }
        match answer.ask {
            Ask::Read => answer.with(Status::Ok, committed(page, desk), Bytes::Page, desk.effects),
            Ask::Commit { epoch, release } => self.commit(answer, epoch, release, desk),
            Ask::Release(epoch) => self.release(page, epoch, desk),
            _ if self.hand_to.is_some() => answer.say(Status::Busy, 0, desk.effects),
            Ask::Renew(epoch) => self.renew(answer, epoch, desk),
            _ if desk.now < self.grace_until => answer.say(Status::Restarting, 0, desk.effects),
            Ask::Copy => self.copy(answer, desk),
            Ask::Update => self.update(answer, desk),
        }
    }

    fn update(&mut self, answer: Answer, desk: &mut Desk<'_>) {
        let Answer { to: party, page, request, .. } = answer;
        self.forget_ended(page, desk);
        let leased = self.leased.entry(page).or_default();
        if let Some(owner) = leased.owner.filter(|owner| owner.party == party) {
            if request <= owner.request {
                // An old request that arrives late.
                return;
            }
            if leased.staged.is_some() {
                return answer.say(Status::Busy, 0, desk.effects);
            }
            // It asks again because it knows nothing of this lease, or let it end.
            leased.owner = None;
        }
        match &mut leased.next {
            Some(next) if next.0 == party => next.1 = next.1.max(request),
            Some(_) => {}
            next => *next = Some((party, request)),
        }
        self.serve_next(page, desk);
        let is_granted = self.leased.get(&page).is_some_and(|leased| leased.owner.is_some_and(|it| it.party == party));
        if !is_granted {
            answer.say(Status::Busy, 0, desk.effects);
            self.recall(page, desk);
        }
    }

    /// Gives the page to who is next, if nothing of it is in use.
    fn serve_next(&mut self, page: PageNumber, desk: &mut Desk<'_>) {
        if self.hand_to.is_some() || desk.now >= self.until {
            return;
        }
        let Some(leased) = self.leased.get(&page) else { return };
        let is_free = leased.owner.is_none() && leased.readers.is_empty() && leased.staged.is_none();
        let Some((party, request)) = leased.next.filter(|_| is_free) else { return };
        let epoch = self.next_epoch();
        let owner = Owner { party, request, until: desk.now + desk.timing.term };
        self.leased.insert(page, Leased { epoch, owner: Some(owner), ..Leased::default() });
        Answer { to: party, page, request, ask: Ask::Update }.with(Status::Ok, epoch, Bytes::Page, desk.effects);
    }

    /// Says to who has the page that somebody else wants it.
    fn recall(&mut self, page: PageNumber, desk: &mut Desk<'_>) {
        let is_first = self.leased.get(&page).is_some_and(|leased| !leased.readers.is_empty() && !leased.is_recalling);
        let raised = if is_first { self.next_epoch() } else { 0 };
        let Some(leased) = self.leased.get_mut(&page) else { return };
        if is_first {
            (leased.epoch, leased.is_recalling) = (raised, true);
        }
        let epoch = leased.epoch;
        if let Some(owner) = leased.owner {
            send(desk.effects, owner.party, Message::Recall { page, epoch }, Bytes::Nothing);
        }
        for &(reader, _) in &leased.readers {
            send(desk.effects, reader, Message::Invalidate { page, epoch }, Bytes::Nothing);
        }
        self.retry_at = desk.now + desk.timing.retry;
    }

    /// A reader's copy is not in use any more.
    pub fn invalidated(&mut self, from: Party, page: PageNumber, epoch: Epoch, desk: &mut Desk<'_>) {
        let Some(leased) = self.leased.get_mut(&page).filter(|leased| leased.epoch == epoch && leased.is_recalling)
        else {
            return;
        };
        leased.readers.retain(|(reader, _)| *reader != from);
        leased.is_recalling = !leased.readers.is_empty();
        self.serve_next(page, desk);
    }

    fn renew(&mut self, answer: Answer, epoch: Epoch, desk: &mut Desk<'_>) {
        let term_end = desk.now + desk.timing.term;
        let leased = self.leased.get_mut(&answer.page).filter(|leased| leased.epoch == epoch);
        let status = match leased {
            Some(Leased { next: Some(_), owner: Some(_), .. }) => Status::Busy,
            Some(Leased { owner: Some(owner), .. }) if desk.now < owner.until => {
                owner.until = term_end;
                Status::Ok
            }
            _ => Status::Fenced,
        };
        answer.say(status, epoch, desk.effects);
    }

    fn copy(&mut self, answer: Answer, desk: &mut Desk<'_>) {
        let Answer { to: party, page, .. } = answer;
        self.forget_ended(page, desk);
        let leased = self.leased.entry(page).or_default();
        if leased.owner.is_some() || leased.staged.is_some() || leased.is_recalling || leased.next.is_some() {
            return answer.say(Status::Busy, 0, desk.effects);
        }
        // An epoch of its own: what recalled an earlier copy is not taken for what recalls this one.
        let epoch = self.next_epoch();
        let leased = self.leased.entry(page).or_default();
        leased.epoch = epoch;
        leased.readers.retain(|(reader, _)| *reader != party);
        leased.readers.push((party, desk.now + desk.timing.term));
        answer.with(Status::Ok, epoch, Bytes::Page, desk.effects);
    }

    fn commit(&mut self, answer: Answer, epoch: Epoch, release: bool, desk: &mut Desk<'_>) {
        let Answer { to: party, page, request, .. } = answer;
        let is_waiting = self.waits_for_backups();
        let leased = self.leased.get_mut(&page);
        if committed(page, desk) == epoch {
            // Its acknowledgement was lost.
            let now = leased.filter(|leased| leased.owner.is_some_and(|owner| owner.party == party));
            return answer.say(Status::Ok, now.map_or(epoch, |leased| leased.epoch), desk.effects);
        }
        if self.hand_to.is_some() {
            return answer.say(Status::Busy, 0, desk.effects);
        }
        let Some(leased) = leased.filter(|leased| leased.epoch == epoch) else {
            return answer.say(Status::Fenced, epoch, desk.effects);
        };
        if let Some(staged) = &mut leased.staged {
            staged.request = staged.request.max(request);
            return;
        }
        if leased.owner.is_none_or(|owner| desk.now >= owner.until) {
            return answer.say(Status::Fenced, epoch, desk.effects);
        }
        let missing = self.backups.clone();
        desk.effects.push(Effect::Stage(page));
        leased.staged = Some(Staged { epoch, party, request, release, missing });
        if !is_waiting {
            self.heard_at = desk.now;
        }
        self.retry_at = desk.now + desk.timing.retry;
        self.store_staged(page, desk);
        self.apply(page, desk);
    }

    fn store_staged(&self, page: PageNumber, desk: &mut Desk<'_>) {
        let Some(staged) = self.leased.get(&page).and_then(|leased| leased.staged.as_ref()) else { return };
        for &host in &staged.missing {
            let message = Message::Store { page, incarnation: self.incarnation, epoch: staged.epoch };
            send(desk.effects, Party::of(host), message, Bytes::Staged);
        }
    }

    /// A commit that every backup has is the page.
    fn apply(&mut self, page: PageNumber, desk: &mut Desk<'_>) {
        let is_kept = |leased: &Leased| leased.staged.as_ref().is_some_and(|staged| staged.missing.is_empty());
        if !self.leased.get(&page).is_some_and(is_kept) {
            return;
        }
        let raised = self.next_epoch();
        let Some(leased) = self.leased.get_mut(&page) else { return };
        let Some(Staged { epoch, party, request, release, .. }) = leased.staged.take() else { return };
        desk.effects.push(Effect::Apply(page));
        desk.stamps.insert(page, Stamp { incarnation: self.incarnation, epoch });
        leased.epoch = raised;
        if release {
            leased.owner = None;
        }
        let answer = Answer { to: party, page, request, ask: Ask::Commit { epoch, release } };
        answer.say(Status::Ok, raised, desk.effects);
        self.forget_ended(page, desk);
        self.serve_next(page, desk);
    }

    fn release(&mut self, page: PageNumber, epoch: Epoch, desk: &mut Desk<'_>) {
        let Some(leased) = self.leased.get_mut(&page) else { return };
        if self.hand_to.is_none() && leased.epoch == epoch && leased.staged.is_none() {
            leased.owner = None;
            self.forget_ended(page, desk);
            self.serve_next(page, desk);
        }
    }

    /// A backup has a version of a page.
    pub fn stored(&mut self, from: Host, page: PageNumber, incarnation: u16, epoch: Epoch, desk: &mut Desk<'_>) {
        if incarnation != self.incarnation {
            return;
        }
        self.heard_at = desk.now;
        if let Some(staged) = self.leased.get_mut(&page).and_then(|leased| leased.staged.as_mut())
            && staged.epoch == epoch
        {
            staged.missing.retain(|&host| host != from);
            self.apply(page, desk);
        }
        if page == self.settled && !self.lacking.is_empty() {
            self.settling.retain(|&host| host != from);
            self.settle(desk);
        }
    }

    /// Goes on to the next page that somebody lacks.
    fn settle(&mut self, desk: &mut Desk<'_>) {
        if self.lacking.is_empty() || !self.settling.is_empty() {
            return;
        }
        self.settled += 1;
        if self.settled < desk.pages {
            self.settling.clone_from(&self.lacking);
            self.store_settling(desk);
        } else {
            self.lacking.clear();
            self.hides = false;
        }
    }

    fn store_settling(&self, desk: &mut Desk<'_>) {
        let page = self.settled;
        for &host in &self.settling {
            let message = Message::Store { page, incarnation: self.incarnation, epoch: committed(page, desk) };
            send(desk.effects, Party::of(host), message, Bytes::Page);
        }
    }

    /// Whether this home is to be handed over, and nothing that changes is under way. During grace there may be leases that
    /// it does not know of: the next home would know as little, and have no grace.
    pub fn is_frozen(&self, now: Nanoseconds) -> bool {
        let is_still = self.leased.values().all(|leased| leased.staged.is_none());
        self.hand_to.is_some() && is_still && self.lacking.is_empty() && now >= self.grace_until
    }

    fn waits_for_backups(&self) -> bool {
        !self.lacking.is_empty() || self.leased.values().any(|leased| leased.staged.is_some())
    }

    /// A backup that has not answered for so long that the controller should do without it.
    pub fn silent(&self, now: Nanoseconds, timing: &Timing) -> Option<Host> {
        let staged = self.leased.values().filter_map(|leased| leased.staged.as_ref());
        let missing = staged.flat_map(|staged| &staged.missing).copied();
        let settling = self.settling.iter().copied().filter(|_| !self.lacking.is_empty());
        let next = self.hand_to.filter(|_| self.is_frozen(now));
        missing
            .chain(settling)
            .chain(next)
            .next()
            .filter(|_| now >= self.heard_at.max(self.grace_until) + timing.tenure)
    }

    /// Tells who will be home what is in use.
    fn tell_leases(&self, to: Host, desk: &mut Desk<'_>) {
        let now = desk.now;
        let entry = |(&page, leased): (&PageNumber, &Leased)| Entry {
            page,
            epoch: leased.epoch,
            owner: leased.owner.filter(|owner| now < owner.until).map(|owner| (owner.party, owner.request)),
            readers: leased.readers.iter().filter(|(_, until)| now < *until).map(|(reader, _)| *reader).collect(),
        };
        let in_use = |entry: &Entry| entry.owner.is_some() || !entry.readers.is_empty();
        let entries = self.leased.iter().map(entry).filter(in_use).collect();
        let message = Message::Leases { incarnation: self.incarnation, entries };
        send(desk.effects, Party::of(to), message, Bytes::Nothing);
    }

    /// Forgets what has ended, and the page if nothing is left.
    fn forget_ended(&mut self, page: PageNumber, desk: &Desk<'_>) {
        let Some(leased) = self.leased.get_mut(&page) else { return };
        if leased.staged.is_none() {
            leased.owner = leased.owner.filter(|owner| desk.now < owner.until);
        }
        leased.readers.retain(|(_, until)| desk.now < *until);
        leased.is_recalling &= !leased.readers.is_empty();
        if leased.owner.is_none() && leased.readers.is_empty() && leased.next.is_none() && leased.staged.is_none() {
            self.leased.remove(&page);
        }
    }

    /// Whether something was said that has to be said again if it is not answered.
    fn has_pending(&self) -> bool {
        let waits = |leased: &Leased| leased.staged.is_some() || leased.next.is_some();
        !self.settling.is_empty() && !self.lacking.is_empty()
            || self.hand_to.is_some()
            || self.leased.values().any(waits)
    }

    /// When [`Home::tick`] has something to do.
    pub fn alarm(&self) -> Option<Nanoseconds> {
        self.has_pending().then_some(self.retry_at)
    }

    /// Time has passed.
    pub fn tick(&mut self, desk: &mut Desk<'_>) {
        if desk.now < self.retry_at || !self.has_pending() {
            return;
        }
        self.retry_at = desk.now + desk.timing.retry;
        if !self.lacking.is_empty() {
            self.store_settling(desk);
        }
        let pages: Vec<PageNumber> = self.leased.keys().copied().collect();
        for page in pages {
            self.store_staged(page, desk);
            self.forget_ended(page, desk);
            self.serve_next(page, desk);
            if self.leased.get(&page).is_some_and(|leased| leased.next.is_some()) {
                self.recall(page, desk);
            }
        }
        if let Some(to) = self.hand_to.filter(|_| self.is_frozen(desk.now)) {
            self.tell_leases(to, desk);
        }
    }
}

/// Under which epoch what a server has of a page was committed.
fn committed(page: PageNumber, desk: &Desk<'_>) -> Epoch {
    desk.stamps.get(&page).map_or(0, |stamp| stamp.epoch)
}
