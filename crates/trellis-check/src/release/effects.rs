//! The effects of the protocol, carried out on a node's memory, and the messages that leave a node.
//!
//! Promises: effects are carried out in their order. An effect that breaks the contract is a problem and ends the run.
//! Diffs are made as in a runtime: those of other nodes are passed on unchanged; those of this node are the current
//! difference from the twin, which is then updated. It must never decide anything.

use super::node::{Doing, Node};
use super::{Fault, PAGE_WORDS, Page, Setup, Value, faults};
use crate::model::views::{Change, check_change, check_thought};
use trellis_cluster_protocol::coherence::hlrc::intervals::Notice;
use trellis_cluster_protocol::coherence::{Coherence, Effect, Input, Message};
use trellis_cluster_protocol::node::Order;
use trellis_cluster_protocol::{Access, PageIndex, PageRange, PageSet, sync};

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

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Packet {
    /// About pages.
    Page {
        /// The message.
        message: Message,
        /// Its content.
        body: Body,
    },
    /// About locks, barriers and words.
    Sync {
        /// The message.
        message: sync::Message,
        /// Its sender's knowledge of intervals.
        knowledge: Vec<u8>,
    },
}

/// A message under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// Its sender.
    pub from: u16,
    /// Its receiver.
    pub to: u16,
    /// The message.
    pub packet: Packet,
}

/// An event of a thread: an access, or an operation that others may have to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Event {
    Load {
        thread: u8,
        word: u16,
        value: Value,
    },
    Store {
        thread: u8,
        word: u16,
        value: Value,
    },
    Locked {
        thread: u8,
        lock: u8,
    },
    Unlock {
        thread: u8,
        lock: u8,
    },
    Arrive {
        thread: u8,
    },
    Left {
        thread: u8,
    },
    /// The home of a flag carries out a thread's operation.
    Flag {
        thread: u8,
        flag: u8,
        is_store: bool,
    },
    /// Every store of the thread is at its home.
    Published {
        thread: u8,
    },
}

/// The result of a step of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Out {
    /// Messages, in their order.
    pub packets: Vec<Envelope>,
    /// The events of its threads, in their order.
    pub events: Vec<Event>,
    /// The first breach of the contract.
    pub problem: Option<String>,
    /// The trace, if requested.
    pub story: Option<Vec<String>>,
    pub(super) effects: Vec<Effect>,
}

impl Out {
    /// Resets it to the initial state.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.events.clear();
        self.problem = None;
    }

    pub(super) fn event(&mut self, event: Event) {
        self.tell(|| format!("    {event:?}"));
        self.events.push(event);
    }

    pub(super) fn send(&mut self, envelope: Envelope) {
        if envelope.from == envelope.to {
            self.problem(format!("node {} sends to itself", envelope.from));
        }
        self.packets.push(envelope);
    }

    fn check(&mut self, found: Result<(), String>) {
        found.unwrap_or_else(|what| self.problem(what));
    }

    pub(super) fn problem(&mut self, what: String) {
        self.problem.get_or_insert(what);
    }

    pub(super) fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(line());
        }
    }
}

impl Node {
    /// Passes one fact to the protocol and carries out its effects.
    pub(super) fn step(&mut self, setup: &Setup, input: Input, body: &Body, out: &mut Out) {
        let Some(input) = faults::alter_input(setup.fault, self, input, out) else { return };
        let taken_anyway = faults::takes_anyway(setup, self, &input);
        let mut effects = std::mem::take(&mut out.effects);
        effects.clear();
        self.pages.protocol.step(0, input, &mut effects);
        faults::alter_effects(setup.fault, setup, &input, &mut effects);
        effects.extend(taken_anyway);
        out.tell(|| format!("n{} {}", self.me, text(&input)));
        let came = match input {
            Input::Message { message, .. } => Some(message),
            _ => None,
        };
        let mut changed = Vec::new();
        let mut last: Option<(Message, Vec<Diff>)> = None;
        for &effect in &effects {
            out.tell(|| format!("    {}", text(&effect)));
            let effect = match self.pages.order(effect, || 0, 0) {
                Order::CarryOut(effect) => effect,
                Order::Send { to, message } => {
                    let body = self.body_of(setup, message, came, body, &mut last);
                    out.send(Envelope { from: self.me, to: to.0, packet: Packet::Page { message, body } });
                    continue;
                }
                other => {
                    out.problem(format!("node {} orders what belongs to other protocols: {other:?}", self.me));
                    continue;
                }
            };
            match effect {
                Effect::SendTwins { to, message } => {
                    let range = message.bytes().unwrap_or(PageRange::one(message.page()));
                    let twin = |page| setup.place(page).map_or([0; PAGE_WORDS], |place| self.twins[place]);
                    let body = Body::Pages(range.pages().map(twin).collect());
                    out.send(Envelope { from: self.me, to: to.0, packet: Packet::Page { message, body } });
                }
                Effect::Inspect(page) => {
                    let Some(place) = setup.place(page) else { continue };
                    if self.memory[place] != self.twins[place] {
                        changed.push(page);
                    }
                }
                Effect::Apply { pages, twins } => self.apply(setup, came, body, pages, twins, out),
                Effect::Merge { page, has_twin } => self.merge(setup, body, page, has_twin, out),
                _ => self.carry_out(setup, effect, out),
            }
        }
        if out.problem.is_none() {
            self.compare(setup, out);
        }
        out.effects = effects;
        while let Some(page) = changed.pop() {
            self.step(setup, Input::Changed { page }, &Body::Nothing, out);
        }
    }

    fn carry_out(&mut self, setup: &Setup, effect: Effect, out: &mut Out) {
        let places = |range: PageRange| range.pages().filter_map(|page| setup.place(page)).collect::<PlaceList>();
        match effect {
            Effect::Revoke(range) => places(range).each(|place| self.views[place] = Access::None),
            Effect::Downgrade(range) => {
                places(range).each(|place| {
                    out.check(check_change(self.me, place, self.views[place], Change::Downgrade));
                });
                self.notice_stores(setup, range);
            }
            Effect::Install { range, access, zero } => places(range).each(|place| {
                out.check(check_change(self.me, place, self.views[place], Change::Install));
                if zero && self.memory[place] != [0; PAGE_WORDS] {
                    out.problem(format!("node {} installs page {place} as zero, and it is not", self.me));
                }
                self.views[place] = access;
                self.stored[place] = false;
            }),
            Effect::Upgrade(range) => places(range).each(|place| {
                if self.views[place] == Access::None {
                    out.problem(format!("node {} upgrades page {place}, which is closed", self.me));
                }
                self.views[place] = Access::Write;
            }),
            Effect::KeepTwin(range) => places(range).each(|place| self.twins[place] = self.memory[place]),
            Effect::Notice { range, stamp } => self.consistency.knowledge.intervals.note(Notice { range, stamp }),
            Effect::Published => self.published(setup, out),
            Effect::Wake(range) => places(range).each(|place| {
                for thread in self.threads.iter_mut().filter(|thread| thread.doing == Doing::Waiting(place as u8)) {
                    thread.doing = Doing::Ready;
                }
            }),
            Effect::Violation { from, what } => out.problem(format!("node {} reports of {from}: {what}", self.me)),
            other => out.problem(format!("node {} orders what belongs to other protocols: {other:?}", self.me)),
        }
    }

    /// Stores to these pages must be noticed from now on: the pages are protected, or stay open and are compared.
    fn notice_stores(&mut self, setup: &Setup, range: PageRange) {
        let Node { pages, views, stored, .. } = self;
        let protect = |run: PageRange| {
            run.pages().filter_map(|page| setup.place(page)).for_each(|place| {
                (views[place], stored[place]) = (Access::Read, false);
            });
            Ok::<(), std::convert::Infallible>(())
        };
        let Ok(()) = pages.downgrade(range, protect);
    }

    /// Applies received diffs to pages and twins.
    fn apply(
        &mut self,
        setup: &Setup,
        came: Option<Message>,
        body: &Body,
        pages: PageSet,
        twins: Option<PageSet>,
        out: &mut Out,
    ) {
        let (Some(all), Body::Diffs(diffs)) = (came.and_then(|message| message.diffs()), body) else {
            return out.problem(format!("node {} applies diffs that did not come", self.me));
        };
        for (page, diff) in all.pages().zip(diffs).filter(|(page, _)| pages.contains(*page)) {
            let Some(place) = setup.place(page) else { continue };
            for &(word, value) in diff {
                self.memory[place][usize::from(word)] = value;
                if twins.is_some_and(|twins| twins.contains(page)) {
                    self.twins[place][usize::from(word)] = value;
                }
            }
        }
    }

    /// Merges a page that was piggybacked into the copy.
    fn merge(&mut self, setup: &Setup, body: &Body, page: PageIndex, has_twin: bool, out: &mut Out) {
        let (Some(place), Body::Pages(pages)) = (setup.place(page), body) else {
            return out.problem(format!("node {} merges a page that did not come", self.me));
        };
        if self.views[place] == Access::None {
            return out.problem(format!("node {} merges page {place}, which is closed", self.me));
        }
        let before = if has_twin { self.twins[place] } else { self.memory[place] };
        for (word, &later) in pages[0].iter().enumerate() {
            if later != before[word] || setup.fault == Fault::MergesWhole {
                self.memory[place][word] = later;
            }
        }
        if has_twin && setup.fault != Fault::MergePassesOverTwin {
            self.twins[place] = pages[0];
        }
    }

    fn body_of(
        &mut self,
        setup: &Setup,
        sent: Message,
        came: Option<Message>,
        body: &Body,
        last: &mut Option<(Message, Vec<Diff>)>,
    ) -> Body {
        if let Some(page) = sent.carried() {
            return Body::Pages(self.bytes_of(setup, PageRange::one(page)));
        }
        if let Some(range) = sent.bytes() {
            if setup.late_bytes {
                return Body::Late;
            }
            return Body::Pages(self.bytes_of(setup, range));
        }
        let Some(pages) = sent.diffs() else { return Body::Nothing };
        if let (Some(all), Body::Diffs(diffs)) = (came.and_then(|came| came.diffs()), body)
            && all.covers(pages)
        {
            let of = |page: PageIndex| all.pages().position(|other| other == page).expect("it is covered");
            return Body::Diffs(pages.pages().map(|page| diffs[of(page)].clone()).collect());
        }
        if let Some((_, diffs)) = last.as_ref().filter(|(message, _)| *message == sent) {
            return Body::Diffs(diffs.clone());
        }
        let diffs: Vec<Diff> = pages.pages().map(|page| self.diff_of(setup, page)).collect();
        *last = Some((sent, diffs.clone()));
        Body::Diffs(diffs)
    }

    /// The current bytes of a range of pages.
    pub fn bytes_of(&self, setup: &Setup, range: PageRange) -> Vec<Page> {
        let bytes = |page| setup.place(page).map_or([0; PAGE_WORDS], |place| self.memory[place]);
        range.pages().map(bytes).collect()
    }

    fn diff_of(&mut self, setup: &Setup, page: PageIndex) -> Diff {
        let Some(place) = setup.place(page) else { return Diff::new() };
        let (memory, twin) = (&self.memory[place], &mut self.twins[place]);
        let changed = (0..PAGE_WORDS).filter(|&word| memory[word] != twin[word]);
        let changed = changed.filter(|_| setup.fault != Fault::DiffEmpty);
        let diff: Diff = changed.map(|word| (word as u8, memory[word])).collect();
        if !faults::leaves_twin(setup.fault) {
            *twin = *memory;
        }
        diff
    }

    /// Checks that the views are what the protocol assumes.
    fn compare(&self, setup: &Setup, out: &mut Out) {
        for (place, &is) in self.views.iter().enumerate() {
            let thought = self.pages.protocol.access(setup.page(place));
            // Where stores are marked, a view that allows loads also allows stores.
            if !(setup.marks(self.me) && (is, thought) == (Access::Read, Access::Write)) {
                out.check(check_thought(self.me, place, thought, is));
            }
        }
    }
}

/// The indexes of pages; a range has few.
#[derive(Default)]
struct PlaceList {
    places: [u8; 16],
    count: usize,
}

impl PlaceList {
    fn each(&self, mut with: impl FnMut(usize)) {
        self.places[..self.count].iter().for_each(|&place| with(usize::from(place)));
    }
}

impl FromIterator<usize> for PlaceList {
    fn from_iter<I: IntoIterator<Item = usize>>(places: I) -> PlaceList {
        let mut list = PlaceList::default();
        for place in places {
            list.places[list.count] = place as u8;
            list.count += 1;
        }
        list
    }
}

/// The debug text, shortened.
pub(super) fn text(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    let text = text.replace("PageIndex", "").replace("NodeId", "").replace("PageRange ", "").replace("PageSet ", "");
    text.replace("Message { from: ", "hears { from: ")
}
