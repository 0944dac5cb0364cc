//! The views, bytes and twins of one node under release consistency, and how effects change them.
//!
//! Pages are small: four words. Diffs are made as in a runtime: those of other nodes are passed on unchanged; those of
//! this node are the current difference from the twin, which is then updated.
//!
//! Promises: every breach of the contract is an error. A page that comes overwrites only what no thread can use. It
//! must never decide anything, or know another node.

use super::views::{Change, check_change, check_thought};
use crate::release::Fault;
use trellis_cluster_protocol::coherence::hlrc::intervals::Notice;
use trellis_cluster_protocol::coherence::{Effect, Message};
use trellis_cluster_protocol::node::Order;
use trellis_cluster_protocol::{Access, NodeId, PageIndex, PageRange, PageSet};

/// The number of words of a page.
pub const PAGE_WORDS: usize = 4;

/// The value of a word; zero at the start.
pub type Value = u32;

/// The bytes of a page.
pub type Page = [Value; PAGE_WORDS];

/// The changed words of a page.
pub type Diff = Vec<(u8, Value)>;

/// The content of a message about pages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// Nothing.
    Nothing,
    /// Pages, in the order of the message's range.
    Pages(Vec<Page>),
    /// Pages whose bytes are read at the sender when the message arrives.
    Late,
    /// Diffs, in the order of the message's pages.
    Diffs(Vec<Diff>),
}

/// See the module. The lists are by place, the index of a page among those that are used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Twinned {
    /// The accesses that the application views allow.
    pub views: Vec<Access>,
    /// Whether a page was stored to since it was opened or downgraded.
    pub stored: Vec<bool>,
    /// The bytes of the pages.
    pub bytes: Vec<Page>,
    /// Their bytes at the last publication.
    pub twins: Vec<Page>,
}

impl Twinned {
    /// The node holds none of so many pages.
    pub fn new(pages: usize) -> Twinned {
        Twinned {
            views: vec![Access::None; pages],
            stored: vec![false; pages],
            bytes: vec![[0; PAGE_WORDS]; pages],
            twins: vec![[0; PAGE_WORDS]; pages],
        }
    }

    /// Whether a thread may load or store without a fault; stores are noticed otherwise with `marks`.
    pub fn allows(&self, place: usize, write: bool, marks: bool) -> bool {
        let view = self.views[place];
        view == Access::Write || view == Access::Read && (!write || marks)
    }

    /// Checks that a view is what the protocol takes it for. Where stores are marked, a view that allows loads also
    /// allows stores.
    pub fn check(&self, me: u16, place: usize, thought: Access, marks: bool) -> Result<(), String> {
        let is = self.views[place];
        if marks && (is, thought) == (Access::Read, Access::Write) {
            Ok(())
        } else {
            check_thought(me, place, thought, is)
        }
    }

    /// Stores to a page fault, or are marked, from now on.
    pub fn protect(&mut self, place: usize) {
        (self.views[place], self.stored[place]) = (Access::Read, false);
    }

    /// The stores to a page since its twin was made; updates the twin.
    fn diff(&mut self, place: usize, fault: Fault) -> Diff {
        let (bytes, twin) = (&self.bytes[place], &mut self.twins[place]);
        let changed = (0..PAGE_WORDS).filter(|&word| bytes[word] != twin[word] && fault != Fault::DiffEmpty);
        let diff: Diff = changed.map(|word| (word as u8, bytes[word])).collect();
        if fault != Fault::LeavesTwin {
            *twin = *bytes;
        }
        diff
    }
}

/// The message that came, and its content.
pub type Came<'a> = Option<(Message, &'a Body)>;

/// The part that all carriers of a [`Releasing`] node share: the clock stands still, and the orders are carried out.
/// The lifetime is that of what comes with messages.
#[macro_export]
macro_rules! obeys {
    ($came:lifetime) => {
        type Attached = $crate::model::twinned::Came<$came>;
        type Breach = String;

        fn order(&mut self, effect: Effect) -> Order {
            self.shard().order(effect, || 0, 0)
        }

        fn carry_out(&mut self, order: Order, came: Self::Attached) -> Result<(), String> {
            self.obey(order, came)
        }

        fn send_diffs(
            &mut self,
            message: Message,
            to: impl Iterator<Item = NodeId>,
            came: Self::Attached,
        ) -> Result<(), String> {
            self.send_all(message, to, came);
            Ok(())
        }
    };
}

/// A node with release consistency: what a scheduler adds to its pages.
pub trait Releasing {
    /// Its number.
    fn me(&self) -> u16;

    /// Its pages.
    fn copies(&mut self) -> &mut Twinned;

    /// The place of a page; none if it is not used.
    fn place(&self, page: PageIndex) -> Option<usize>;

    /// A message is under way from now on.
    fn send(&mut self, to: NodeId, message: Message, body: Body);

    /// The threads that wait for one of these pages look again.
    fn wake(&mut self, pages: PageRange);

    /// A node that acquires what this node releases must know this.
    fn note(&mut self, notice: Notice);

    /// A shard has published.
    fn published(&mut self);

    /// A page that was inspected differs from its twin.
    fn differs(&mut self, page: PageIndex);

    /// Stores to these pages must be noticed from now on.
    fn notice_stores(&mut self, pages: PageRange) -> Result<(), String> {
        self.each(pages, |copies, place| {
            copies.protect(place);
            Ok(())
        })
    }

    /// Whether the bytes of pages are read when their message arrives. A runtime may do either.
    fn reads_late(&self) -> bool {
        false
    }

    /// The rule that is broken on purpose.
    fn fault(&self) -> Fault {
        Fault::None
    }

    /// Does something with each used page of a range.
    fn each(
        &mut self,
        pages: PageRange,
        mut with: impl FnMut(&mut Twinned, usize) -> Result<(), String>,
    ) -> Result<(), String> {
        pages.pages().try_for_each(|page| self.place(page).map_or(Ok(()), |place| with(self.copies(), place)))
    }

    /// The bytes that come with a message are there.
    fn arrive(&mut self, message: Message, body: &Body) -> Result<(), String> {
        let (Some(range), Body::Pages(pages), me) = (message.bytes(), body, self.me()) else { return Ok(()) };
        for (page, bytes) in range.pages().zip(pages) {
            let Some(place) = self.place(page) else { continue };
            self.copies().bytes[place] = *bytes;
            if self.copies().views[place] != Access::None {
                return Err(format!("node {me}: bytes of {page} come, which is mapped"));
            }
        }
        Ok(())
    }

    /// Carries out an order of the shard.
    fn obey(&mut self, order: Order, came: Came<'_>) -> Result<(), String> {
        match order {
            Order::CarryOut(effect) => self.change(effect, came),
            Order::Send { to, message } => {
                let body = match message.bytes().or(message.piggybacked().map(PageRange::one)) {
                    Some(_) if message.bytes().is_some() && self.reads_late() => Body::Late,
                    Some(range) => Body::Pages(self.pages_of(range, |copies, place| copies.bytes[place])),
                    None => Body::Nothing,
                };
                self.send(to, message, body);
                Ok(())
            }
            // A checker without time lets go what is held when no thread was woken for it.
            Order::WakeAt { .. } => Ok(()),
            other => Err(format!("node {} orders what belongs to other protocols: {other:?}", self.me())),
        }
    }

    /// Sends diffs that came, or of what this node stored.
    fn send_all(&mut self, sent: Message, to: impl Iterator<Item = NodeId>, came: Came<'_>) {
        let pages = sent.diffs().expect("only a message with diffs goes to several nodes");
        let diffs: Vec<Diff> = match came.and_then(|(message, body)| message.diffs().zip(Some(body))) {
            Some((all, Body::Diffs(diffs))) if all.covers(pages) => {
                let of = |page: PageIndex| all.pages().position(|other| other == page).expect("it is covered");
                pages.pages().map(|page| diffs[of(page)].clone()).collect()
            }
            _ => {
                let fault = self.fault();
                let diff = |page| self.place(page).map_or(Diff::new(), |place| self.copies().diff(place, fault));
                pages.pages().map(diff).collect()
            }
        };
        to.for_each(|to| self.send(to, sent, Body::Diffs(diffs.clone())));
    }

    /// Carries out an effect of the protocol.
    fn change(&mut self, effect: Effect, came: Came<'_>) -> Result<(), String> {
        let me = self.me();
        match effect {
            Effect::SendTwins { to, message } => {
                let range = message.bytes().unwrap_or(PageRange::one(message.page()));
                let body = Body::Pages(self.pages_of(range, |copies, place| copies.twins[place]));
                self.send(to, message, body);
            }
            Effect::Inspect(page) => {
                let Some(place) = self.place(page) else { return Ok(()) };
                let copies = self.copies();
                if copies.bytes[place] != copies.twins[place] {
                    self.differs(page);
                }
            }
            Effect::Revoke(range) => {
                return self.each(range, |copies, place| {
                    copies.views[place] = Access::None;
                    Ok(())
                });
            }
            Effect::Downgrade(range) => {
                self.each(range, |copies, place| check_change(me, place, copies.views[place], Change::Downgrade))?;
                return self.notice_stores(range);
            }
            Effect::Install { range, access, zero } => {
                return self.each(range, |copies, place| {
                    check_change(me, place, copies.views[place], Change::Install)?;
                    if zero && copies.bytes[place] != [0; PAGE_WORDS] {
                        return Err(format!("node {me} installs page {place} as zero, and it is not"));
                    }
                    (copies.views[place], copies.stored[place]) = (access, false);
                    Ok(())
                });
            }
            Effect::Upgrade(range) => {
                return self.each(range, |copies, place| {
                    let before = std::mem::replace(&mut copies.views[place], Access::Write);
                    let what = || format!("node {me} upgrades page {place}, which is closed");
                    (before != Access::None).then_some(()).ok_or_else(what)
                });
            }
            Effect::KeepTwin(range) => {
                return self.each(range, |copies, place| {
                    copies.twins[place] = copies.bytes[place];
                    Ok(())
                });
            }
            Effect::Apply { pages, twins } => return self.apply(pages, twins, came),
            Effect::Merge { page, has_twin } => return self.merge(page, has_twin, came),
            Effect::Notice { range, stamp } => self.note(Notice { range, stamp }),
            Effect::Published => self.published(),
            Effect::Chose { .. } => {}
            Effect::Wake(range) => self.wake(range),
            Effect::Violation { from, what } => return Err(format!("node {me} reports of {from}: {what}")),
            other => return Err(format!("node {me} orders what belongs to other protocols: {other:?}")),
        }
        Ok(())
    }

    /// Applies received diffs to pages and twins.
    fn apply(&mut self, pages: PageSet, twins: Option<PageSet>, came: Came<'_>) -> Result<(), String> {
        let Some((Some(all), Body::Diffs(diffs))) = came.map(|(message, body)| (message.diffs(), body)) else {
            return Err(format!("node {} applies diffs that did not come", self.me()));
        };
        for (page, diff) in all.pages().zip(diffs).filter(|(page, _)| pages.contains(*page)) {
            let Some(place) = self.place(page) else { continue };
            let copies = self.copies();
            for &(word, value) in diff {
                copies.bytes[place][usize::from(word)] = value;
                if twins.is_some_and(|twins| twins.contains(page)) {
                    copies.twins[place][usize::from(word)] = value;
                }
            }
        }
        Ok(())
    }

    /// Merges a page that was piggybacked into the copy.
    fn merge(&mut self, page: PageIndex, has_twin: bool, came: Came<'_>) -> Result<(), String> {
        let (me, fault) = (self.me(), self.fault());
        let (Some(place), Some((_, Body::Pages(pages)))) = (self.place(page), came) else {
            return Err(format!("node {me} merges a page that did not come"));
        };
        let copies = self.copies();
        if copies.views[place] == Access::None {
            return Err(format!("node {me} merges page {place}, which is closed"));
        }
        let before = if has_twin { copies.twins[place] } else { copies.bytes[place] };
        for (word, &later) in pages[0].iter().enumerate() {
            if later != before[word] || fault == Fault::MergesWhole {
                copies.bytes[place][word] = later;
            }
        }
        if has_twin && fault != Fault::MergePassesOverTwin {
            copies.twins[place] = pages[0];
        }
        Ok(())
    }

    /// Bytes of a range of pages; zero where a page is not used.
    fn pages_of(&mut self, range: PageRange, which: impl Fn(&Twinned, usize) -> Page) -> Vec<Page> {
        let bytes = |page| self.place(page).map_or([0; PAGE_WORDS], |place| which(self.copies(), place));
        range.pages().map(bytes).collect()
    }
}
