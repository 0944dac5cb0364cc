//! A client of a range: it reads pages, takes leases, and commits its changes.
//!
//! Promises: it uses a page only while its lease lasts by its own clock, counted from when it sent the request. A retry is
//! a new request, so that a late answer to an old one grants nothing. Once a commit was sent, its content does not change,
//! and the client answers no request about the page until the home has reported the outcome, in answer to whichever
//! request. It must never believe any host but the home about its lease, and must never show what it has not committed.
//!
//! Changes under a lease that has ended can still be committed: the home accepts them if nobody was granted the page
//! since. A home that does not know the lease, because the home that gave it is gone, takes the client's word for it during
//! its grace period: the client *claims* the page. It may do so only if its lease had not ended when it heard from that
//! home. Then nobody else was granted the page before: the former home was gone already, and the new one grants nothing.

use super::{Answer, Ask, Belief, Bytes, Effect, Epoch, Host, Message, Outcome, PageNumber, Party, Status, Timing};
use super::{epoch_of, incarnation_of, is_of_no_lease, send};
use crate::Nanoseconds;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The number of retries after which the controller is asked which host is home.
const RETRIES_ALONE: u8 = 2;

/// A fact, or an operation of the program. There is one operation at a time for a page.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Input {
    /// Read a page, whichever host has it.
    Read(PageNumber),
    /// Take a lease.
    Update(PageNumber),
    /// Make the changes the content of the page.
    Commit {
        /// Of this page.
        page: PageNumber,
        /// Whether to give the lease back with it.
        release: bool,
    },
    /// Give the lease back and discard the changes.
    Release(PageNumber),
    /// A message arrived.
    Message(Party, Message),
    /// Time passed.
    Tick,
    /// Time passed, for a page that has something due ([`Client::due`]). A caller with many pages need not check them all.
    TickPage(PageNumber),
}

/// The state machine. The fields are public for the checkers; a caller must not use them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    /// This process.
    pub me: Party,
    /// The controller, which knows the home.
    pub controller: Party,
    /// How long rights last.
    pub timing: Timing,
    /// The host that it takes for home.
    pub belief: Belief,
    /// The number of requests made.
    pub requests: u64,
    /// Pages with a lease or an operation.
    pub pages: BTreeMap<PageNumber, Hold>,
}

/// The state of a page at a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Hold {
    /// A lease.
    pub own: Option<Own>,
    /// A request that is not answered yet.
    pub wait: Option<Wait>,
}

/// A lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Own {
    /// The epoch of the lease.
    pub epoch: Epoch,
    /// The end of the lease by the client's clock.
    pub until: Nanoseconds,
    /// When to renew it.
    pub renew_at: Nanoseconds,
    /// The page was changed, and the changes are not committed.
    pub is_changed: bool,
    /// The lease has ended, and its changes are not committed.
    pub is_over: bool,
    /// The home of this incarnation does not know the lease, which had not ended when the client heard from that home.
    pub claims: Option<u16>,
    /// A commit follows when the claim is granted; says whether it gives the lease back.
    pub then: Option<bool>,
}

impl Own {
    /// The epoch under which the lease is renewed: the first of an incarnation, which no lease has, for a claim.
    fn renewed_under(&self) -> Epoch {
        self.claims.map_or(self.epoch, epoch_of)
    }
}

/// A request that is not answered yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Wait {
    /// What is asked.
    pub ask: Ask,
    /// The number of the first request made for it.
    pub first: u64,
    /// The number of the last one.
    pub request: u64,
    /// When the last one was sent.
    pub asked_at: Nanoseconds,
    /// When it is sent again.
    pub again_at: Nanoseconds,
    /// How long it is waited for without any answer; 0 after one.
    pub waited: Nanoseconds,
    /// The number of retries. A retry asks switches not to apply redirects.
    pub retries: u8,
}

impl Wait {
    /// Whether the answer that this request was done also means that the operation in progress is done. An accepted commit
    /// stays accepted, whichever host is home when the request is repeated; for everything else only the answer to the last
    /// request says how long it holds. The epoch does not matter: the caller of the machine may not know it when the answer
    /// comes.
    fn has_counted(&self, request: u64, ask: Ask) -> bool {
        let releases = |ask: Ask| match ask {
            Ask::Commit { release, .. } => Some(release),
            _ => None,
        };
        let is_it = releases(ask).is_some() && releases(ask) == releases(self.ask);
        is_it && (self.first..=self.request).contains(&request)
    }
}

impl Client {
    /// A client without pages, which takes `home` for home until it learns of a newer one.
    pub fn new(me: Party, controller: Party, timing: Timing, home: Host) -> Client {
        let belief = Belief { home, incarnation: 0 };
        Client { me, controller, timing, belief, requests: 0, pages: BTreeMap::new() }
    }

    /// Takes one fact and pushes the effects that follow from it.
    pub fn step(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Read(page) => self.ask(now, page, Ask::Read, effects),
            Input::Update(page) => {
                // The changes of a lease that has ended are given up.
                if let Some(hold) = self.pages.get_mut(&page) {
                    hold.own = hold.own.filter(|own| !own.is_over);
                }
                self.ask(now, page, Ask::Update, effects);
            }
            Input::Commit { page, release } => self.commit(now, page, release, effects),
            Input::Release(page) => self.release(page, effects),
            Input::Message(from, Message::Request { page, request, ask }) => {
                self.asked(now, Answer { to: from, page, request, ask }, effects);
            }
            Input::Message(from, Message::Reply { page, request, ask, status, epoch }) => {
                self.reply(now, from.host, page, request, ask, status, epoch, effects);
            }
            Input::Message(_, Message::Recall { page, epoch }) => self.recall(page, epoch, effects),
            Input::Message(_, Message::Placed { placement, .. }) => {
                if self.belief.hear(placement.home, placement.incarnation) {
                    self.ask_all_again(now, effects);
                }
            }
            Input::Message(..) => {}
            Input::Tick => {
                let pages: Vec<PageNumber> = self.pages.keys().copied().collect();
                pages.into_iter().for_each(|page| self.tick(now, page, effects));
            }
            Input::TickPage(page) => self.tick(now, page, effects),
        }
    }

    /// Whether the program may use the page as its owner now. It may not while a commit is under way that gives the lease
    /// back: the home may have given it to another client.
    pub fn owns(&self, now: Nanoseconds, page: PageNumber) -> bool {
        let gives_back = self.waits(page).is_some_and(|wait| matches!(wait.ask, Ask::Commit { release: true, .. }));
        let is_claiming = self.own(page).is_some_and(|own| own.then == Some(true));
        self.own(page).is_some_and(|own| !own.is_over && now < own.until) && !gives_back && !is_claiming
    }

    /// Whether it has a lease of the page that has not been found to have ended.
    pub fn has(&self, page: PageNumber) -> bool {
        self.own(page).is_some_and(|own| !own.is_over)
    }

    /// Whether the program may commit what it changed, although the lease may have ended.
    pub fn may_commit(&self, page: PageNumber) -> bool {
        self.own(page).is_some_and(|own| own.is_changed && own.then.is_none()) && !self.is_committing(page)
    }

    /// The program is about to change the page. Returns whether it may.
    pub fn change(&mut self, now: Nanoseconds, page: PageNumber) -> bool {
        let may = self.owns(now, page) && !self.is_committing(page);
        if let Some(own) = self.pages.get_mut(&page).and_then(|hold| hold.own.as_mut()).filter(|_| may) {
            own.is_changed = true;
        }
        may
    }

    /// When to give [`Input::Tick`].
    pub fn alarm(&self) -> Option<Nanoseconds> {
        self.pages.values().filter_map(|hold| self.due_of(hold)).min()
    }

    /// When to give [`Input::TickPage`].
    pub fn due(&self, page: PageNumber) -> Option<Nanoseconds> {
        self.due_of(self.pages.get(&page)?)
    }

    fn due_of(&self, hold: &Hold) -> Option<Nanoseconds> {
        let again = hold.wait.map(|wait| wait.again_at);
        let own = hold.own.filter(|own| !own.is_over && own.then.is_none());
        let own = own.and_then(|own| match hold.wait.map(|wait| wait.ask) {
            None => Some(own.renew_at.min(own.until)),
            // The lease ends while it is renewed, too.
            Some(Ask::Renew(_)) => Some(own.until),
            Some(_) => None,
        });
        again.into_iter().chain(own).min()
    }

    fn own(&self, page: PageNumber) -> Option<&Own> {
        self.pages.get(&page)?.own.as_ref()
    }

    fn is_committing(&self, page: PageNumber) -> bool {
        self.waits(page).is_some_and(|wait| matches!(wait.ask, Ask::Commit { .. }))
            || self.own(page).is_some_and(|own| own.then.is_some())
    }

    /// The home of a page, which does not know the lease, has this incarnation: the client may claim the page there if its
    /// lease has not ended. Only the home's own answer counts: other hosts may speak of another part's home. Returns
    /// whether something else is asked from now on.
    fn learn(&mut self, now: Nanoseconds, page: PageNumber, incarnation: u16) -> bool {
        let Some(Hold { own: Some(own), wait }) = self.pages.get_mut(&page) else { return false };
        if own.claims != Some(incarnation) {
            let may_claim = incarnation > incarnation_of(own.epoch) && !own.is_over && now < own.until;
            own.claims = may_claim.then_some(incarnation);
        }
        let Some(Wait { ask: ask @ Ask::Renew(_), .. }) = wait else { return false };
        let renew = Ask::Renew(own.renewed_under());
        core::mem::replace(ask, renew) != renew
    }

    fn waits(&self, page: PageNumber) -> Option<Wait> {
        self.pages.get(&page)?.wait
    }

    /// Sends the first request for an operation to the home.
    fn ask(&mut self, now: Nanoseconds, page: PageNumber, ask: Ask, effects: &mut Vec<Effect>) {
        self.requests += 1;
        let (number, waited) = (self.requests, self.timing.retry_after(0));
        let wait =
            Wait { ask, first: number, request: number, asked_at: now, again_at: now + waited, waited, retries: 0 };
        self.pages.entry(page).or_default().wait = Some(wait);
        self.send_request(page, wait, effects);
    }

    /// Repeats it with a new request.
    fn ask_again(&mut self, now: Nanoseconds, page: PageNumber, effects: &mut Vec<Effect>) {
        self.requests += 1;
        let (request, timing) = (self.requests, self.timing);
        let Some(wait) = self.pages.get_mut(&page).and_then(|hold| hold.wait.as_mut()) else { return };
        let (waited, retries) = (timing.retry_after(wait.waited), wait.retries.saturating_add(1));
        *wait = Wait { request, asked_at: now, again_at: now + waited, waited, retries, ..*wait };
        let wait = *wait;
        if wait.retries >= RETRIES_ALONE {
            send(effects, self.controller, Message::Locate, Bytes::Nothing);
        }
        self.send_request(page, wait, effects);
    }

    fn ask_all_again(&mut self, now: Nanoseconds, effects: &mut Vec<Effect>) {
        self.ask_others_again(now, PageNumber::MAX, effects);
    }

    fn ask_others_again(&mut self, now: Nanoseconds, but: PageNumber, effects: &mut Vec<Effect>) {
        let waiting = self.pages.iter().filter(|(page, hold)| **page != but && hold.wait.is_some());
        let waiting: Vec<PageNumber> = waiting.map(|(page, _)| *page).collect();
        for page in waiting {
            // How long another host was waited for says nothing.
            self.was_answered(page);
            self.ask_again(now, page, effects);
        }
    }

    /// The home cannot do it now: it is asked again soon, less soon each time.
    fn pause(&mut self, now: Nanoseconds, page: PageNumber) {
        let timing = self.timing;
        if let Some(wait) = self.pages.get_mut(&page).and_then(|hold| hold.wait.as_mut()) {
            wait.again_at = wait.again_at.min(now + timing.pause_after(wait.retries));
        }
    }

    /// The home has answered, if not finally: the next request is waited for as long as a first one.
    fn was_answered(&mut self, page: PageNumber) {
        if let Some(wait) = self.pages.get_mut(&page).and_then(|hold| hold.wait.as_mut()) {
            wait.waited = 0;
        }
    }

    fn send_request(&self, page: PageNumber, wait: Wait, effects: &mut Vec<Effect>) {
        let bytes = if matches!(wait.ask, Ask::Commit { .. }) { Bytes::Page } else { Bytes::Nothing };
        let message = Message::Request { page, request: wait.request, ask: wait.ask };
        send(effects, Party::of(self.belief.home), message, bytes);
    }

    fn commit(&mut self, now: Nanoseconds, page: PageNumber, release: bool, effects: &mut Vec<Effect>) {
        let Some(own) = self.pages.get_mut(&page).and_then(|hold| hold.own.as_mut()) else {
            return self.end(page, Outcome::Fenced, effects);
        };
        own.then = own.claims.map(|_| release);
        let ask = match own.then {
            Some(_) => Ask::Renew(own.renewed_under()),
            None => Ask::Commit { epoch: own.epoch, release },
        };
        self.ask(now, page, ask, effects);
    }

    fn release(&mut self, page: PageNumber, effects: &mut Vec<Effect>) {
        if let Some(own) = self.pages.remove(&page).and_then(|hold| hold.own) {
            self.give_back(page, own.epoch, effects);
        }
    }

    fn give_back(&mut self, page: PageNumber, epoch: Epoch, effects: &mut Vec<Effect>) {
        self.requests += 1;
        let message = Message::Request { page, request: self.requests, ask: Ask::Release(epoch) };
        send(effects, Party::of(self.belief.home), message, Bytes::Nothing);
    }

    /// The operation is over, and with it the lease.
    fn end(&mut self, page: PageNumber, outcome: Outcome, effects: &mut Vec<Effect>) {
        self.pages.remove(&page);
        effects.push(Effect::Done(page, outcome));
    }

    /// A switch delivered another client's request here.
    fn asked(&mut self, now: Nanoseconds, answer: Answer, effects: &mut Vec<Effect>) {
        let page = answer.page;
        let own = self.own(page).copied().filter(|own| now < own.until && !self.is_committing(page));
        match (own, answer.ask) {
            (Some(own), Ask::Read) if !own.is_changed => {
                return answer.with(Status::Ok, own.epoch, Bytes::Page, effects);
            }
            (Some(_), Ask::Update) if answer.to != self.me => effects.push(Effect::Recalled(page)),
            _ => {}
        }
        answer.moved(self.belief.home, self.belief.incarnation, effects);
    }

    fn recall(&mut self, page: PageNumber, epoch: Epoch, effects: &mut Vec<Effect>) {
        match self.pages.get(&page) {
            Some(Hold { own: Some(_), .. }) => effects.push(Effect::Recalled(page)),
            // A grant may be on its way.
            Some(Hold { wait: Some(_), .. }) => {}
            _ => self.give_back(page, epoch, effects),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of a reply")]
    fn reply(
        &mut self,
        now: Nanoseconds,
        from: Host,
        page: PageNumber,
        request: u64,
        ask: Ask,
        status: Status,
        epoch: Epoch,
        effects: &mut Vec<Effect>,
    ) {
        let is_awaited =
            |wait: &Wait| wait.request == request || status == Status::Ok && wait.has_counted(request, ask);
        let Some(wait) = self.waits(page).filter(is_awaited) else {
            // A grant that no operation waits for any more.
            if ask == Ask::Update && status == Status::Ok && !self.pages.contains_key(&page) {
                self.give_back(page, epoch, effects);
            }
            return;
        };
        self.was_answered(page);
        match status {
            Status::Moved(home) => {
                if self.belief.hear(home, incarnation_of(epoch)) {
                    self.ask_all_again(now, effects);
                } else if wait.retries == 0 {
                    // A switch delivered it to another host: repeat it at once, straight to the home.
                    self.ask_again(now, page, effects);
                } else {
                    self.pause(now, page);
                }
            }
            Status::Busy | Status::Restarting | Status::Unserved
                if matches!(wait.ask, Ask::Renew(_)) && self.own(page).is_some_and(|own| own.then.is_none()) =>
            {
                self.stop_waiting(page);
                effects.push(Effect::Recalled(page));
            }
            // The home knows the lease, and another client waits for the page: it is committed now.
            Status::Busy if !is_of_no_lease(epoch) && matches!(wait.ask, Ask::Renew(_)) => {
                self.commit_claimed(now, page, epoch, effects);
            }
            // The home grants it in its turn, in answer to this request.
            Status::Busy if epoch > 0 && wait.ask == Ask::Update => {}
            Status::Busy | Status::Restarting | Status::Unserved => self.pause(now, page),
            Status::Ok => self.succeeded(now, page, wait, epoch, effects),
            Status::Fenced => self.fenced(now, from, page, wait.ask, epoch, effects),
        }
    }

    /// The home does not know the lease. If it is another one than before, the client may claim the page.
    fn fenced(
        &mut self,
        now: Nanoseconds,
        from: Host,
        page: PageNumber,
        ask: Ask,
        epoch: Epoch,
        effects: &mut Vec<Effect>,
    ) {
        let incarnation = incarnation_of(epoch);
        if is_of_no_lease(epoch) {
            let asks_otherwise = self.learn(now, page, incarnation);
            if self.belief.hear(from, incarnation) {
                self.ask_others_again(now, page, effects);
            }
            if asks_otherwise {
                return self.ask_again(now, page, effects);
            }
        }
        let own = self.own(page).copied();
        match ask {
            Ask::Commit { release, .. } if is_of_no_lease(epoch) && own.is_some_and(|own| own.claims.is_some()) => {
                if let Some(own) = self.pages.get_mut(&page).and_then(|hold| hold.own.as_mut()) {
                    own.then = Some(release);
                }
                self.ask(now, page, Ask::Renew(epoch), effects);
            }
            Ask::Renew(_) if own.is_none_or(|own| own.then.is_none()) => {
                self.pages.remove(&page);
                effects.push(Effect::Lost(page));
            }
            _ => self.end(page, Outcome::Fenced, effects),
        }
    }

    fn stop_waiting(&mut self, page: PageNumber) {
        let next = self.timing.renew;
        if let Some(hold) = self.pages.get_mut(&page) {
            hold.wait = None;
            if let Some(own) = &mut hold.own {
                own.renew_at += next;
            }
        }
    }

    fn succeeded(&mut self, now: Nanoseconds, page: PageNumber, wait: Wait, epoch: Epoch, effects: &mut Vec<Effect>) {
        let until = wait.asked_at + self.timing.held;
        let renew_at = wait.asked_at + self.timing.renew;
        match wait.ask {
            Ask::Read => {
                if let Some(hold) = self.pages.get_mut(&page) {
                    hold.wait = None;
                }
                self.forget(page);
                effects.push(Effect::Done(page, Outcome::Read));
            }
            // Nothing is left of the term: ask again.
            Ask::Update if now >= until => self.ask_again(now, page, effects),
            Ask::Update => {
                let is_over = false;
                let own = Own { epoch, until, renew_at, is_changed: false, is_over, claims: None, then: None };
                self.pages.insert(page, Hold { own: Some(own), wait: None });
                effects.push(Effect::Put(page));
                effects.push(Effect::Done(page, Outcome::Owned));
            }
            Ask::Renew(_) => {
                if let Some(Hold { own: Some(own), wait }) = self.pages.get_mut(&page) {
                    *wait = None;
                    (own.epoch, own.claims) = (epoch, None);
                    if !own.is_over {
                        (own.until, own.renew_at) = (until, renew_at);
                    }
                }
                self.commit_claimed(now, page, epoch, effects);
            }
            Ask::Commit { release, epoch: before } => {
                if let Some(Hold { own: Some(own), wait }) = self.pages.get_mut(&page) {
                    *wait = None;
                    (own.epoch, own.is_changed, own.claims) = (epoch, false, None);
                }
                // The home remembers the commit and knows of no lease: another content under this epoch would be taken for
                // the same commit.
                let is_over = epoch <= before || self.own(page).is_some_and(|own| own.is_over);
                if release || is_over {
                    self.pages.remove(&page);
                }
                effects.push(Effect::Done(page, Outcome::Committed));
                if is_over && !release {
                    effects.push(Effect::Lost(page));
                }
            }
            Ask::Copy | Ask::Release(_) => {}
        }
    }

    /// The commit for which the page was claimed.
    fn commit_claimed(&mut self, now: Nanoseconds, page: PageNumber, epoch: Epoch, effects: &mut Vec<Effect>) {
        let Some(own) = self.pages.get_mut(&page).and_then(|hold| hold.own.as_mut()) else { return };
        if let Some(release) = own.then.take() {
            (own.epoch, own.claims) = (epoch, None);
            self.ask(now, page, Ask::Commit { epoch, release }, effects);
        }
    }

    fn forget(&mut self, page: PageNumber) {
        if self.pages.get(&page).is_some_and(|hold| hold.own.is_none() && hold.wait.is_none()) {
            self.pages.remove(&page);
        }
    }

    fn tick(&mut self, now: Nanoseconds, page: PageNumber, effects: &mut Vec<Effect>) {
        let Some(&Hold { own, wait }) = self.pages.get(&page) else { return };
        let is_renewing = wait.is_some_and(|wait| matches!(wait.ask, Ask::Renew(_)));
        match (own, wait) {
            (Some(own), _)
                if now >= own.until && !own.is_over && own.then.is_none() && (wait.is_none() || is_renewing) =>
            {
                match self.pages.get_mut(&page) {
                    Some(Hold { own: Some(own), wait }) if own.is_changed => (own.is_over, *wait) = (true, None),
                    _ => drop(self.pages.remove(&page)),
                }
                effects.push(Effect::Lost(page));
            }
            (_, Some(wait)) if now >= wait.again_at => self.ask_again(now, page, effects),
            (Some(own), None) if now >= own.renew_at && !own.is_over => {
                self.ask(now, page, Ask::Renew(own.renewed_under()), effects);
            }
            _ => {}
        }
    }
}
