//! A simulated cluster: the real shard at every node, memories with real values, messages and threads.
//!
//! Promises: any message under way may be delivered next, and whatever is pending in a shard may go off next. Effects are
//! carried out in their order. A waiting thread tries its access again only after a wake. The bytes of a grant are read at the supplier only when the message is
//! delivered, as the contract allows. An effect that breaks the contract is recorded as a problem and ends the run. It
//! must never help a protocol: it retries nothing, and delivers nothing that was not sent.

use super::program::{ALIEN, Code, LOCATIONS_MAX};
use crate::views::{Change, check_change, check_read_out};
use trellis_cluster_protocol::coherence::{Coherence, Effect, Input, Message};
use trellis_cluster_protocol::node::{Order, Resumes, Shard};
use trellis_cluster_protocol::{Access, Nanoseconds, NodeId, PageIndex, PageRange};

/// The maximum number of nodes of a simulated cluster.
pub const NODES_MAX: usize = 9;
/// The maximum number of pages: one for each location.
pub const PAGES_MAX: usize = LOCATIONS_MAX;

/// A set of pages or locations, one bit each.
pub(super) type Set = u8;

/// A message under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope {
    pub(super) from: u8,
    pub(super) to: u8,
    pub(super) priority: u32,
    pub(super) message: Message,
}

/// How long a page is held at most. No event has to wait for another, so nor does the end of that time.
const HOLD_MAX: Nanoseconds = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Activity {
    /// About to try its next instruction.
    #[default]
    Ready,
    /// The access failed; the protocol does not know yet.
    Faulted,
    Waiting,
    Woken,
    Done,
}

/// A thread and its current access.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Thread {
    pub(super) node: u8,
    pub(super) activity: Activity,
    /// The next instruction.
    pub(super) next: u8,
    pub(super) page: u8,
    pub(super) asks_write: bool,
    pub(super) priority: u32,
}

/// The state of a node besides its protocol.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    pub(super) views: [Access; PAGES_MAX],
    pub(super) words: [Code; LOCATIONS_MAX],
    /// For each page, the number of the last store that this copy contains.
    versions: [u32; PAGES_MAX],
    /// Pages that have bytes.
    present: Set,
    /// Pages that are held, and let go when their time is over.
    asked_for: Set,
}

pub(super) struct Cluster<N> {
    pub(super) nodes: Vec<Shard<N>>,
    pub(super) places: [Place; NODES_MAX],
    pub(super) threads: Vec<Thread>,
    /// Threads that can run, and those that are not done; one bit each.
    pub(super) runnable: u16,
    pub(super) unfinished: u16,
    /// Nodes at which something is pending.
    pub(super) open: u16,
    /// The protocol does not learn when a woken thread has run on. This is so where the kernel blocks the thread.
    pub(super) silent: bool,
    pub(super) messages: Vec<Envelope>,
    pub(super) now: Nanoseconds,
    pub(super) pages: u8,
    /// The locations of each page.
    words_of: [Set; PAGES_MAX],
    /// The number of stores to each page so far.
    stores: [u32; PAGES_MAX],
    effects: Vec<Effect>,
    checks_contract: bool,
    /// The first breach of the contract.
    pub(super) problem: Option<String>,
    pub(super) trace: Option<Vec<String>>,
}

impl<N: Coherence + Clone> Cluster<N> {
    pub(super) fn new() -> Cluster<N> {
        Cluster {
            nodes: Vec::new(),
            places: [Place::default(); NODES_MAX],
            threads: Vec::new(),
            runnable: 0,
            unfinished: 0,
            open: 0,
            silent: false,
            messages: Vec::with_capacity(64),
            now: 0,
            pages: 0,
            words_of: [0; PAGES_MAX],
            stores: [0; PAGES_MAX],
            effects: Vec::with_capacity(64),
            checks_contract: true,
            problem: None,
            trace: None,
        }
    }

    /// A fresh cluster, with the locations on the pages that `layout` assigns.
    pub(super) fn reset(&mut self, start: &[Shard<N>], layout: &[u8], pages: u8, checks_contract: bool) {
        self.nodes.clear();
        self.nodes.extend_from_slice(start);
        self.places[..start.len()].fill(Place::default());
        self.clear_threads();
        self.open = 0;
        self.stores = [0; PAGES_MAX];
        self.messages.clear();
        self.effects.clear();
        self.now = 0;
        self.pages = pages;
        self.words_of = [0; PAGES_MAX];
        for (location, &page) in layout.iter().enumerate() {
            self.words_of[usize::from(page)] |= 1 << location;
        }
        self.checks_contract = checks_contract;
        self.problem = None;
    }

    /// Removes the threads and leaves the rest unchanged.
    pub(super) fn clear_threads(&mut self) {
        self.threads.clear();
        (self.runnable, self.unfinished) = (0, 0);
    }

    /// Resets the words to their initial values wherever a copy is current; an outdated copy gets a value that was
    /// never written. Requests, rights and messages under way stay unchanged.
    pub(super) fn rewrite(&mut self, initial: &[Code]) {
        for place in &mut self.places[..self.nodes.len()] {
            for (location, &code) in initial.iter().enumerate() {
                let page = (0..self.pages).find(|&page| self.words_of[usize::from(page)] >> location & 1 != 0);
                let page = usize::from(page.expect("every location is on a page"));
                let is_current = place.versions[page] == self.stores[page];
                place.words[location] = if is_current { code } else { ALIEN };
            }
        }
    }

    /// The rights of all nodes and the messages under way, as text.
    pub(super) fn situation(&self) -> String {
        let views = |node: usize| {
            let views = &self.places[node].views[..usize::from(self.pages)];
            let letter = |view: &Access| ["-", "read", "write"][*view as usize];
            format!("node {node}: {}", views.iter().map(letter).collect::<Vec<_>>().join(" "))
        };
        let views: Vec<String> = (0..self.nodes.len()).map(views).collect();
        let under_way = self.messages.iter();
        let under_way: Vec<String> = under_way.map(|m| format!("; {} to {}: {}", m.from, m.to, m.message)).collect();
        format!("views of the pages: {}{}", views.join(", "), under_way.concat())
    }

    /// Adds a line to the trace if there is one.
    pub(super) fn tell(&mut self, line: impl FnOnce(&Cluster<N>) -> String) {
        if self.trace.is_some() {
            let line = line(self);
            self.trace.get_or_insert_default().push(line);
        }
    }

    /// The value at `location` of `page` at `node`, or `None` if the access faults.
    pub(super) fn load(&self, node: u8, page: u8, location: u8) -> Option<Code> {
        let place = &self.places[usize::from(node)];
        (place.views[usize::from(page)] >= Access::Read).then(|| place.words[usize::from(location)])
    }

    /// Stores a value and returns the previous one, or `None` if the access faults.
    pub(super) fn swap(&mut self, node: u8, page: u8, location: u8, code: Code) -> Option<Code> {
        let place = &mut self.places[usize::from(node)];
        if place.views[usize::from(page)] < Access::Write {
            return None;
        }
        let before = std::mem::replace(&mut place.words[usize::from(location)], code);
        self.stores[usize::from(page)] += 1;
        place.versions[usize::from(page)] = self.stores[usize::from(page)];
        if self.checks_contract {
            self.check_bytes_stay(node, page);
        }
        Some(before)
    }

    /// Sets the activity of a thread.
    pub(super) fn turn(&mut self, thread: usize, activity: Activity) {
        let bit = 1 << thread;
        self.threads[thread].activity = activity;
        let can_run = !matches!(activity, Activity::Waiting | Activity::Done);
        self.runnable = if can_run { self.runnable | bit } else { self.runnable & !bit };
        self.unfinished = if activity == Activity::Done { self.unfinished & !bit } else { self.unfinished | bit };
    }

    /// Whether a page is held at `node` for a thread that was woken and has not run yet.
    pub(super) fn is_about_to_look(&self, node: u8) -> bool {
        self.places[usize::from(node)].asked_for & self.about_to_look(node) != 0
    }

    fn about_to_look(&self, node: u8) -> Set {
        let woken = self.threads.iter().filter(|t| t.activity == Activity::Woken && t.node == node);
        woken.fold(0, |set, thread| set | 1 << thread.page)
    }

    /// The timers of `node` that may expire, and when they are due. The timer of a page that is held for a thread that
    /// has not run yet may expire only if `is_late`: the time of the thread is over.
    pub(super) fn pending(&self, node: u8, is_late: bool) -> impl Iterator<Item = (Input, Nanoseconds)> {
        let kept = if is_late { 0 } else { self.about_to_look(node) };
        let free = self.places[usize::from(node)].asked_for & !kept;
        let may = move |&(input, _): &(Input, Nanoseconds)| match input {
            Input::Resumed { page } => free >> page.0 & 1 != 0,
            _ => true,
        };
        self.nodes[usize::from(node)].timers.pending().filter(may)
    }

    /// The thread that waited for `page` has run on. Where nobody tells, the node may look at its timers by itself.
    pub(super) fn looked(&mut self, node: u8, page: u8, looks_itself: bool, draw: &mut impl FnMut() -> u32) {
        if self.silent {
            self.places[usize::from(node)].asked_for |= Set::from(looks_itself) << page;
            return;
        }
        let now = self.now;
        let resumes = self.nodes[usize::from(node)].timers.looks(PageIndex(page.into()), || now);
        if let Some(Resumes::Now(input)) = resumes {
            self.step(node, input, draw);
        }
    }

    /// Reports a fault to the protocol; the thread waits.
    pub(super) fn report_fault(&mut self, thread: usize, wanted: PageRange, draw: &mut impl FnMut() -> u32) {
        let Thread { node, page, asks_write, .. } = self.threads[thread];
        self.turn(thread, Activity::Waiting);
        self.step(node, Input::Fault { page: PageIndex(page.into()), write: asks_write, wanted }, draw);
    }

    /// Delivers a message; its bytes are read at the supplier only now.
    pub(super) fn deliver(&mut self, index: usize, draw: &mut impl FnMut() -> u32) {
        let Envelope { from, to, message, .. } = self.messages.swap_remove(index);
        if let Some(range) = message.bytes() {
            for page in self.pages_of(range) {
                self.copy(from, to, page);
            }
        }
        self.step(to, Input::Message { from: NodeId(from.into()), message }, draw);
    }

    /// A timer of `node` expires.
    pub(super) fn go_off(&mut self, node: u8, input: Input, due: Nanoseconds, draw: &mut impl FnMut() -> u32) {
        self.now = self.now.max(due);
        if let Input::Resumed { page } = input {
            self.places[usize::from(node)].asked_for &= !(1 << page.0);
        }
        self.nodes[usize::from(node)].timers.take(input);
        self.step(node, input, draw);
    }

    /// Passes a fact to the protocol at `node` and carries out the effects; `draw` gives the priorities of new
    /// messages.
    pub(super) fn step(&mut self, node: u8, input: Input, draw: &mut impl FnMut() -> u32) {
        self.tell(|_| format!("n{node} {input}"));
        let mut effects = std::mem::take(&mut self.effects);
        self.nodes[usize::from(node)].protocol.step(self.now, input, &mut effects);
        for effect in effects.drain(..) {
            self.carry_out(node, effect, draw);
        }
        self.effects = effects;
        let is_open = u16::from(!self.nodes[usize::from(node)].timers.is_empty());
        self.open = self.open & !(1 << node) | is_open << node;
    }

    fn carry_out(&mut self, node: u8, effect: Effect, draw: &mut impl FnMut() -> u32) {
        self.tell(|_| format!("    {effect}"));
        let now = self.now;
        match self.nodes[usize::from(node)].order(effect, || now, HOLD_MAX) {
            Order::CarryOut(effect) => self.change_pages(node, effect),
            Order::Send { to, message } => self.send(node, to, message, draw()),
            Order::WakeAt { .. } => {
                if let Effect::Hold(page) = effect {
                    self.places[usize::from(node)].asked_for |= 1 << page.0;
                }
            }
            // Litmus tests take no locks of pages, and no node leaves.
            order @ (Order::Granted { .. } | Order::Nothing | Order::Lost { .. }) => {
                self.note(|| format!("node {node} orders what nobody called for: {order:?}"));
            }
        }
    }

    fn change_pages(&mut self, node: u8, effect: Effect) {
        match effect {
            Effect::Revoke(range) => self.change(node, range, Access::None, None),
            Effect::Downgrade(range) => self.change(node, range, Access::Read, Some(Change::Downgrade)),
            Effect::Install { range, access, zero } => self.install(node, range, access, zero),
            Effect::Upgrade(range) => self.change(node, range, Access::Write, Some(Change::Upgrade)),
            Effect::Wake(range) => {
                for index in 0..self.threads.len() {
                    let Thread { node: at, page, activity, .. } = self.threads[index];
                    let page = PageIndex(page.into());
                    if at != node || activity != Activity::Waiting || !range.contains(page) {
                        continue;
                    }
                    self.turn(index, Activity::Woken);
                    let timers = &mut self.nodes[usize::from(node)].timers;
                    if self.silent {
                        timers.hold(page, self.now, HOLD_MAX);
                    } else {
                        timers.wake(page);
                    }
                }
            }
            Effect::Violation { from, what } => self.note(|| format!("node {node} reports of {from}: {what}")),
            Effect::Send { .. } | Effect::Hold(_) | Effect::Alarm { .. } | Effect::Locked { .. } => {
                unreachable!("the shard orders something else for these")
            }
            Effect::KeepTwin(_)
            | Effect::SendTwins { .. }
            | Effect::Apply { .. }
            | Effect::Merge { .. }
            | Effect::Inspect(_)
            | Effect::Notice { .. }
            | Effect::Published => {
                self.note(|| format!("node {node} orders what belongs to release consistency: {effect:?}"));
            }
        }
    }

    fn change(&mut self, node: u8, range: PageRange, to: Access, change: Option<Change>) {
        for page in self.pages_of(range) {
            let view = &mut self.places[usize::from(node)].views[usize::from(page)];
            let before = std::mem::replace(view, to);
            self.check(change.map_or(Ok(()), |change| check_change(node, page, before, change)));
            self.check_holders(node, page);
        }
    }

    fn install(&mut self, node: u8, range: PageRange, access: Access, zero: bool) {
        for page in self.pages_of(range) {
            let place = &mut self.places[usize::from(node)];
            let before = std::mem::replace(&mut place.views[usize::from(page)], access);
            let has_bytes = place.present >> page & 1 != 0;
            if !has_bytes {
                place.present |= 1 << page;
                let content = if zero { 0 } else { ALIEN };
                for location in members(self.words_of[usize::from(page)].into()) {
                    place.words[usize::from(location)] = content;
                }
            }
            self.check(check_change(node, page, before, Change::Install));
            if self.checks_contract && !has_bytes && !zero {
                self.note(|| format!("node {node} installs page {page}, of which it has no bytes"));
            }
            self.check_holders(node, page);
        }
    }

    fn send(&mut self, from: u8, to: NodeId, message: Message, priority: u32) {
        if to.0 == u16::from(from) || usize::from(to.0) >= self.nodes.len() {
            return self.note(|| format!("node {from} sends to {to}: {}", message));
        }
        if let (Some(range), Message::Grant { write, .. }) = (message.bytes(), message) {
            for page in self.pages_of(range) {
                self.check(check_read_out(from, page, self.places[usize::from(from)].views[usize::from(page)], write));
            }
        }
        self.messages.push(Envelope { from, to: to.0 as u8, priority, message });
    }

    /// Copies the bytes of a page from node to node.
    fn copy(&mut self, from: u8, to: u8, page: u8) {
        let source = self.places[usize::from(from)];
        let target = &mut self.places[usize::from(to)];
        let has_bytes = source.present >> page & 1 != 0;
        for location in members(self.words_of[usize::from(page)].into()) {
            target.words[usize::from(location)] = if has_bytes { source.words[usize::from(location)] } else { ALIEN };
        }
        target.present |= 1 << page;
        target.versions[usize::from(page)] = source.versions[usize::from(page)];
        if self.checks_contract && target.views[usize::from(page)] != Access::None {
            self.note(|| format!("bytes arrive for page {page}, which node {to} has mapped"));
        }
    }

    /// Checks that the supplier does not write the bytes of a grant under way.
    fn check_bytes_stay(&mut self, node: u8, page: u8) {
        let is_under_way = |envelope: &Envelope| {
            envelope.from == node
                && envelope.message.bytes().is_some_and(|range| range.contains(PageIndex(page.into())))
        };
        if self.messages.iter().any(is_under_way) {
            self.note(|| format!("node {node} stores to page {page} while its bytes are on their way"));
        }
    }

    /// Checks the rule: a single writer or many readers.
    fn check_holders(&mut self, node: u8, page: u8) {
        let mine = self.places[usize::from(node)].views[usize::from(page)];
        if !self.checks_contract || mine == Access::None {
            return;
        }
        for other in (0..self.nodes.len() as u8).filter(|&other| other != node) {
            let theirs = self.places[usize::from(other)].views[usize::from(page)];
            if mine.max(theirs) == Access::Write && mine.min(theirs) != Access::None {
                self.note(|| {
                    format!("page {page}: the view of node {node} allows {mine:?}, that of node {other} {theirs:?}")
                });
            }
        }
    }

    /// The pages of a range; a range beyond the region is a problem.
    fn pages_of(&mut self, range: PageRange) -> std::ops::Range<u8> {
        if range.end() > u32::from(self.pages) {
            let pages = self.pages;
            self.note(|| format!("{range} is named, and the region has {pages}"));
            return 0..0;
        }
        range.first().0 as u8..range.end() as u8
    }

    fn check(&mut self, found: Result<(), String>) {
        if let (true, Err(problem)) = (self.checks_contract, found) {
            self.note(|| problem);
        }
    }

    fn note(&mut self, problem: impl FnOnce() -> String) {
        if self.problem.is_none() {
            self.problem = Some(problem());
        }
    }
}

/// The members of a set, ascending.
pub(super) fn members(set: u16) -> impl Iterator<Item = u8> {
    let mut left = set;
    std::iter::from_fn(move || {
        let next = (left != 0).then(|| left.trailing_zeros() as u8)?;
        left &= left - 1;
        Some(next)
    })
}
