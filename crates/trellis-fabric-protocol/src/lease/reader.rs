//! A host that answers for pages that many clients read, from copies that it has for a time.
//!
//! Promises: it requests a copy from the home and counts the copy's term from when it sent the request. It does not use a
//! copy that the home has recalled, even if the recall arrives first. It must never answer from a copy whose term has
//! ended.

use super::{Answer, Ask, Belief, Bytes, Effect, Epoch, Host, Message, PageNumber, Party, Status, Timing};
use super::{incarnation_of, send};
use crate::Nanoseconds;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// A fact.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Input {
    /// Keep a copy of this page from now on.
    Follow(PageNumber),
    /// Do not renew it any more.
    Leave(PageNumber),
    /// The copy is no longer used: the home may know that.
    Drop(PageNumber),
    /// A message arrived.
    Message(Party, Message),
    /// Time passed.
    Tick,
    /// Time passed, for a page that has something due ([`Reader::due`]). A caller with many pages need not check them all.
    TickPage(PageNumber),
}

/// The state machine. The fields are public for the checkers; a caller must not use them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reader {
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
    /// Pages that it follows or has followed.
    pub pages: BTreeMap<PageNumber, Followed>,
}

/// The state of a page at a reader.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Followed {
    /// A copy is wanted.
    pub is_wanted: bool,
    /// The copy: its epoch, and its end by the reader's clock.
    pub copy: Option<(Epoch, Nanoseconds)>,
    /// Copies older than this were recalled.
    pub recalled: Epoch,
    /// The last request while it is not answered, and when it was sent.
    pub asked: Option<(u64, Nanoseconds)>,
    /// When to ask next.
    pub ask_at: Nanoseconds,
    /// How long the last request is waited for without any answer; 0 after one.
    pub waited: Nanoseconds,
    /// How often the home answered that it cannot be done now, since it was last done.
    pub refused: u8,
}

impl Followed {
    /// The home cannot do it now: it is asked again soon, less soon each time.
    fn pause(&mut self, now: Nanoseconds, timing: &Timing) {
        self.ask_at = self.ask_at.min(now + timing.pause_after(self.refused));
        self.refused = self.refused.saturating_add(1);
    }
}

impl Reader {
    /// A reader without copies.
    pub fn new(me: Party, controller: Party, timing: Timing, home: Host) -> Reader {
        let belief = Belief { home, incarnation: 0 };
        Reader { me, controller, timing, belief, requests: 0, pages: BTreeMap::new() }
    }

    /// Takes one fact and pushes the effects that follow from it.
    pub fn step(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Follow(page) => {
                let followed = self.pages.entry(page).or_default();
                (followed.is_wanted, followed.ask_at) = (true, now);
                self.tick(now, page, effects);
            }
            Input::Leave(page) => {
                if let Some(followed) = self.pages.get_mut(&page) {
                    followed.is_wanted = false;
                }
            }
            Input::Drop(page) => {
                let copy = self.pages.remove(&page).and_then(|followed| followed.copy);
                if let Some((epoch, _)) = copy {
                    let home = Party::of(self.belief.home);
                    send(effects, home, Message::Invalidated { page, epoch }, Bytes::Nothing);
                }
            }
            Input::Message(from, Message::Request { page, request, ask }) => {
                self.asked(now, Answer { to: from, page, request, ask }, effects);
            }
            Input::Message(_, Message::Reply { page, request, ask: Ask::Copy, status, epoch }) => {
                self.reply(now, page, request, status, epoch, effects);
            }
            Input::Message(from, Message::Invalidate { page, epoch }) => {
                self.invalidate(page, epoch);
                send(effects, from, Message::Invalidated { page, epoch }, Bytes::Nothing);
            }
            Input::Message(_, Message::Placed { placement, .. }) => {
                self.belief.hear(placement.home, placement.incarnation);
            }
            Input::Message(..) => {}
            Input::Tick => self.tick_all(now, effects),
            Input::TickPage(page) => self.tick(now, page, effects),
        }
    }

    /// Whether it may answer for the page now.
    pub fn has(&self, now: Nanoseconds, page: PageNumber) -> bool {
        self.copy(now, page).is_some()
    }

    /// A copy of this page is no longer used, and none is wanted. Later messages of the home about it are answered as if
    /// there had never been one.
    pub fn forget(&mut self, page: PageNumber) {
        self.pages.remove(&page);
    }

    /// When to give [`Input::Tick`].
    pub fn alarm(&self) -> Option<Nanoseconds> {
        self.pages.values().filter(|followed| followed.is_wanted).map(|followed| followed.ask_at).min()
    }

    /// When to give [`Input::TickPage`].
    pub fn due(&self, page: PageNumber) -> Option<Nanoseconds> {
        self.pages.get(&page).filter(|followed| followed.is_wanted).map(|followed| followed.ask_at)
    }

    fn copy(&self, now: Nanoseconds, page: PageNumber) -> Option<Epoch> {
        self.pages.get(&page)?.copy.filter(|(_, until)| now < *until).map(|(epoch, _)| epoch)
    }

    fn asked(&self, now: Nanoseconds, answer: Answer, effects: &mut Vec<Effect>) {
        match self.copy(now, answer.page).filter(|_| answer.ask == Ask::Read) {
            Some(epoch) => answer.with(Status::Ok, epoch, Bytes::Page, effects),
            None => answer.moved(self.belief.home, self.belief.incarnation, effects),
        }
    }

    fn invalidate(&mut self, page: PageNumber, epoch: Epoch) {
        let followed = self.pages.entry(page).or_default();
        followed.recalled = followed.recalled.max(epoch);
        followed.copy = followed.copy.filter(|(copied, _)| *copied >= followed.recalled);
    }

    fn reply(
        &mut self,
        now: Nanoseconds,
        page: PageNumber,
        request: u64,
        status: Status,
        epoch: Epoch,
        effects: &mut Vec<Effect>,
    ) {
        let Timing { held, renew, .. } = self.timing;
        let Some(followed) = self.pages.get_mut(&page) else { return };
        let Some((_, at)) = followed.asked.filter(|asked| asked.0 == request) else { return };
        followed.waited = 0;
        match status {
            Status::Ok => {
                (followed.asked, followed.refused) = (None, 0);
                if epoch >= followed.recalled && now < at + held {
                    followed.copy = Some((epoch, at + held));
                    followed.ask_at = at + renew;
                    effects.push(Effect::Put(page));
                }
            }
            Status::Moved(home) => {
                if self.belief.hear(home, incarnation_of(epoch)) {
                    followed.ask_at = now;
                    self.tick(now, page, effects);
                } else {
                    followed.pause(now, &self.timing);
                }
            }
            // The home grants it in its turn, in answer to this request.
            Status::Busy if epoch > 0 => {}
            Status::Busy | Status::Fenced | Status::Restarting | Status::Unserved => {
                followed.pause(now, &self.timing);
            }
        }
    }

    fn tick_all(&mut self, now: Nanoseconds, effects: &mut Vec<Effect>) {
        let pages: Vec<PageNumber> = self.pages.keys().copied().collect();
        pages.into_iter().for_each(|page| self.tick(now, page, effects));
    }

    fn tick(&mut self, now: Nanoseconds, page: PageNumber, effects: &mut Vec<Effect>) {
        let Some(followed) = self.pages.get_mut(&page) else { return };
        if !followed.is_wanted || now < followed.ask_at {
            return;
        }
        if followed.asked.is_some() {
            send(effects, self.controller, Message::Locate, Bytes::Nothing);
        }
        self.requests += 1;
        followed.asked = Some((self.requests, now));
        followed.waited = self.timing.retry_after(followed.waited);
        followed.ask_at = now + followed.waited;
        let message = Message::Request { page, request: self.requests, ask: Ask::Copy };
        send(effects, Party::of(self.belief.home), message, Bytes::Nothing);
    }
}
