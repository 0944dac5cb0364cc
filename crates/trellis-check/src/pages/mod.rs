//! A small cluster whose threads load from and store to pages: what the explorer walks through for
//! a coherence protocol.
//!
//! The network is a bag: any message may arrive next. Every thread chooses each of its operations
//! freely. What is checked, after every single effect and every access:
//!
//! 1. *Single writer or many readers*, over the views of all nodes.
//! 2. *Downgrade before read-out before send*: when bytes are sent, the supplier's view no longer
//!    allows stores (and nothing at all once the right to write goes with them).
//! 3. *Bytes stay put*: the bytes of a grant are read from the supplier when the message is
//!    delivered, and must be those of the moment when it was sent.
//! 4. *A load sees the last store*; a page that is installed without bytes must have bytes.
//! 5. *Every operation ends*: when nothing more must happen, no thread waits and no request is
//!    under way. A thread that waits looks again only after a wake; a page that is held goes only
//!    after [`Input::Resumed`], and a runtime owes that only after [`Effect::Hold`].
//! 6. No step reports a violation, and none fails an assertion of the protocol.
//!
//! What a page holds is one of three things: nothing, the last value stored by anybody, or an
//! older one. That is enough to see a lost store, and keeps the number of states small.
//!
//! It must never look into a protocol: it knows [`Coherence`] and nothing else.

mod cluster;
mod words;

use crate::explore::{Model, Successors};
use crate::intern::{Numbered, Stepped, Steps, guarded};
use cluster::{Activity, Cluster, Thread};
use std::hash::Hash;
use trellis_protocol::coherence::{Coherence, Content, Effect, Geometry, Input, Message, Protocol, Running};
use trellis_protocol::homes::{Home, Manager};
use trellis_protocol::{Access, NodeId, PageIndex, PageRange};

pub use cluster::{NODES_MAX, PAGES_MAX, THREADS_MAX};

/// Which neighbours a request wishes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wishes {
    /// The page alone.
    Narrow,
    /// Every page of the instance that is in the same chunk.
    Wide,
    /// Either, as the thread chooses.
    Both,
}

/// The size of a cluster and what may happen in it.
#[derive(Clone, Debug)]
pub struct Instance {
    /// The protocol.
    pub protocol: Protocol,
    /// Who manages which page.
    pub home: Home,
    /// Number of nodes.
    pub nodes: u16,
    /// The pages that are used, ascending; the region ends with the last.
    pub pages: Vec<u32>,
    /// Threads of each node.
    pub threads: u8,
    /// Loads and stores of each thread.
    pub operations: u8,
    /// What requests wish for.
    pub wishes: Wishes,
    /// Announcements ([`Input::Prefetch`]) that each node may make, at any time.
    pub prefetches: u8,
    /// A fault reaches the protocol some time after the access that caused it.
    pub late_faults: bool,
    /// How often each node may say [`Input::Resumed`] before the thread ran on. Bounded, because two
    /// nodes that never let each other run could do so for ever.
    pub impatience: u8,
    /// A load may ask for the right to store.
    pub eager: bool,
    /// Compare what the protocol thinks that a view allows with what the effects made of it.
    pub paired: bool,
}

impl Instance {
    /// One thread per node and nothing special, managed by node 0.
    pub fn new(protocol: Protocol, nodes: u16, pages: u32, operations: u8) -> Instance {
        Instance {
            protocol,
            home: Home::Manager(Manager(NodeId(0))),
            nodes,
            pages: (0..pages).collect(),
            threads: 1,
            operations,
            wishes: Wishes::Narrow,
            prefetches: 0,
            late_faults: false,
            impatience: 0,
            eager: false,
            paired: true,
        }
    }

    /// The model of this instance with the real protocol at every node.
    pub fn model(&self) -> Pages<Running> {
        let protocol = self.protocol;
        self.model_of(|geometry| protocol.start(geometry))
    }

    /// The model of this instance with `start` in place of the real protocol.
    pub fn model_of<N: Node>(&self, start: impl Fn(Geometry) -> N) -> Pages<N> {
        Pages::new(self.clone(), start)
    }

    /// What makes this instance different from others, in a few words.
    pub fn describe(&self) -> String {
        let mut text = format!(
            "{} {} nodes={} pages={} operations={} threads={} wishes={}",
            self.protocol.name(),
            self.home.name(),
            self.nodes,
            self.pages.len(),
            self.operations,
            self.threads,
            match self.wishes {
                Wishes::Narrow => "narrow",
                Wishes::Wide => "wide",
                Wishes::Both => "both",
            },
        );
        if let Home::Manager(Manager(manager)) = self.home {
            text += &format!(" manager={}", manager.0);
        }
        if self.prefetches > 0 {
            text += &format!(" prefetches={}", self.prefetches);
        }
        if self.impatience > 0 {
            text += &format!(" impatience={}", self.impatience);
        }
        let extras = [(self.late_faults, " late-faults"), (self.eager, " eager")];
        text.extend(extras.into_iter().filter(|(on, _)| *on).map(|(_, word)| word));
        text
    }
}

/// What can stand at a node: a protocol that can be copied and compared.
pub trait Node: Coherence + Clone + Eq + Hash {}

impl<N: Coherence + Clone + Eq + Hash> Node for N {}

/// A set of the instance's pages, one bit each.
type PageSet = u8;

/// An effect, with messages and pages replaced by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Order {
    Revoke(PageSet),
    Downgrade(PageSet),
    Install { pages: PageSet, access: Access, zero: bool },
    Upgrade(PageSet),
    Send(u32),
    Wake(PageSet),
    Hold(u8),
    Broken(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Envelope {
    from: NodeId,
    to: NodeId,
    message: Message,
}

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Deliver(u32),
    Begin { node: usize, thread: usize, operation: Operation },
    Submit { node: usize, thread: usize },
    Look { node: usize, thread: usize },
    Resume { node: usize, page: usize },
    Prefetch { node: usize, wish: PageRange, write: bool, announced: bool },
}

/// One access of a thread and how it would ask for the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
struct Operation {
    page: u8,
    write: bool,
    wide: bool,
    asks_write: bool,
}

/// The model; see the module's documentation.
pub struct Pages<N> {
    instance: Instance,
    nodes: Numbered<N>,
    /// Of every node state: what its views allow, and whether requests are under way.
    shown: Vec<Shown>,
    envelopes: Numbered<Envelope>,
    inputs: Numbered<(NodeId, Input)>,
    steps: Steps<Order>,
    start: Vec<u32>,
    actions: Vec<Action>,
}

#[derive(Clone, Copy)]
struct Shown {
    access: [Access; PAGES_MAX],
    is_pending: bool,
}

impl<N: Node> Model for Pages<N> {
    fn initial(&mut self) -> Vec<u8> {
        let cluster = Cluster::new(&self.instance, &self.start);
        let mut bytes = Vec::new();
        cluster.write(&self.instance, &mut bytes);
        bytes
    }

    fn expand(&mut self, state: &[u8], next: &mut Successors) -> Result<(), String> {
        let before = Cluster::read(&self.instance, state);
        let mut actions = std::mem::take(&mut self.actions);
        let must_go_on = self.enabled(&before, &mut actions);
        for &action in &actions {
            let mut after = before.clone();
            match self.act(&mut after, action) {
                Ok(()) => next.push(|bytes| after.write(&self.instance, bytes)),
                Err(what) => next.push_broken(what),
            }
        }
        self.actions = actions;
        if must_go_on { Ok(()) } else { self.check_end(&before) }
    }

    fn tell(&mut self, state: &[u8], action: usize) -> Vec<String> {
        let mut cluster = Cluster::read(&self.instance, state);
        let mut actions = Vec::new();
        self.enabled(&cluster, &mut actions);
        self.tell_action(&mut cluster, actions[action])
    }
}

impl<N: Node> Pages<N> {
    fn new(instance: Instance, start: impl Fn(Geometry) -> N) -> Pages<N> {
        assert!(usize::from(instance.nodes) <= NODES_MAX && instance.nodes > 0);
        assert!(instance.pages.len() <= PAGES_MAX && instance.pages.is_sorted());
        assert!(usize::from(instance.threads) <= THREADS_MAX);
        assert!(instance.prefetches < 16 && instance.impatience < 16);
        let mut model = Pages {
            nodes: Numbered::new(),
            shown: Vec::new(),
            envelopes: Numbered::new(),
            inputs: Numbered::new(),
            steps: Steps::new(),
            start: Vec::new(),
            actions: Vec::new(),
            instance,
        };
        for me in (0..model.instance.nodes).map(NodeId) {
            let node = start(Geometry {
                me,
                nodes: model.instance.nodes,
                pages: model.instance.pages.last().expect("an instance has pages") + 1,
                shard: 0,
                shards: 1,
                home: model.instance.home,
            });
            let number = model.node_number(node);
            model.start.push(number);
        }
        model
    }

    /// How many node states and steps of the protocol were met so far.
    pub fn distinct(&self) -> (usize, usize) {
        (self.nodes.len(), self.steps.len())
    }

    /// Lists what can happen; returns whether something of it must happen some time.
    fn enabled(&mut self, cluster: &Cluster, actions: &mut Vec<Action>) -> bool {
        actions.clear();
        let mut last = None;
        for &envelope in cluster.messages() {
            if last.replace(envelope) != Some(envelope) {
                actions.push(Action::Deliver(envelope));
            }
        }
        for node in 0..usize::from(self.instance.nodes) {
            for thread in 0..usize::from(self.instance.threads) {
                self.enabled_of_thread(cluster.threads[node][thread], node, thread, actions);
            }
        }
        let mut must_go_on = !actions.is_empty();
        for node in 0..usize::from(self.instance.nodes) {
            for page in 0..self.instance.pages.len() {
                must_go_on |= self.enabled_resume(cluster, node, page, actions);
            }
            if cluster.prefetches[node] > 0 {
                self.enabled_prefetches(node, actions);
            }
        }
        must_go_on
    }

    fn enabled_of_thread(&self, state: Thread, node: usize, thread: usize, actions: &mut Vec<Action>) {
        match state.activity {
            Activity::Idle if state.left == 0 => {}
            Activity::Idle => {
                for page in 0..self.instance.pages.len() as u8 {
                    for (write, asks_write) in [(false, false), (false, true), (true, true)] {
                        if write != asks_write && !self.instance.eager {
                            continue;
                        }
                        for wide in self.widths() {
                            let operation = Operation { page, write, wide: *wide, asks_write };
                            actions.push(Action::Begin { node, thread, operation });
                        }
                    }
                }
            }
            Activity::Faulted => actions.push(Action::Submit { node, thread }),
            Activity::Waiting => {}
            Activity::Woken => actions.push(Action::Look { node, thread }),
        }
    }

    fn widths(&self) -> &'static [bool] {
        match self.instance.wishes {
            Wishes::Narrow => &[false],
            Wishes::Wide => &[true],
            Wishes::Both => &[false, true],
        }
    }

    /// A thread that was granted the page has run on, or may be declared late; returns whether
    /// somebody waits for that.
    fn enabled_resume(&mut self, cluster: &Cluster, node: usize, page: usize, actions: &mut Vec<Action>) -> bool {
        let place = cluster.places[node][page];
        let about_to_look = cluster.is_about_to_look(node, page);
        let may = if about_to_look { cluster.impatience[node] > 0 } else { place.owes_resume || place.is_wanted };
        if !may || !(place.is_wanted || self.resume_matters(cluster, node, page)) {
            return false;
        }
        actions.push(Action::Resume { node, page });
        place.is_wanted && !about_to_look
    }

    fn enabled_prefetches(&self, node: usize, actions: &mut Vec<Action>) {
        for (write, announced) in [(false, false), (true, false), (true, true)] {
            let mut last = None;
            for page in 0..self.instance.pages.len() as u8 {
                let wish = self.wish(page, true);
                if last.replace(wish) != Some(wish) {
                    actions.push(Action::Prefetch { node, wish, write, announced });
                }
            }
        }
    }

    fn act(&mut self, cluster: &mut Cluster, action: Action) -> Result<(), String> {
        match action {
            Action::Deliver(envelope) => self.deliver(cluster, envelope),
            Action::Begin { node, thread, operation } => {
                cluster.threads[node][thread].operation = operation;
                self.access(cluster, node, thread)
            }
            Action::Submit { node, thread } => self.submit(cluster, node, thread),
            Action::Look { node, thread } => {
                let page = usize::from(cluster.threads[node][thread].operation.page);
                cluster.places[node][page].owes_resume = self.resume_matters(cluster, node, page);
                self.access(cluster, node, thread)
            }
            Action::Resume { node, page } => {
                if cluster.is_about_to_look(node, page) {
                    cluster.impatience[node] -= 1;
                }
                let place = &mut cluster.places[node][page];
                place.owes_resume = false;
                place.is_wanted = false;
                self.step(cluster, node, Input::Resumed { page: self.page_index(page) })
            }
            Action::Prefetch { node, wish, write, announced } => {
                cluster.prefetches[node] -= 1;
                self.step(cluster, node, Input::Prefetch { wish, write, announced })
            }
        }
    }

    /// A thread tries its instruction: it retires, or faults.
    fn access(&mut self, cluster: &mut Cluster, node: usize, thread: usize) -> Result<(), String> {
        let operation = cluster.threads[node][thread].operation;
        let needed = if operation.write { Access::Write } else { Access::Read };
        if cluster.places[node][usize::from(operation.page)].access < needed {
            if !self.instance.late_faults {
                return self.submit(cluster, node, thread);
            }
            cluster.threads[node][thread].activity = Activity::Faulted;
            return Ok(());
        }
        if operation.write {
            self.store(cluster, node, usize::from(operation.page))?;
        } else {
            cluster.load(node, usize::from(operation.page))?;
        }
        cluster.threads[node][thread].retire();
        Ok(())
    }

    fn store(&self, cluster: &mut Cluster, node: usize, page: usize) -> Result<(), String> {
        for &number in cluster.messages() {
            let envelope = self.envelopes.value(number);
            let bytes = envelope.message.bytes();
            if bytes.is_some_and(|range| range.contains(self.page_index(page))) {
                return Err(format!(
                    "node {node} stores to {} while its bytes are on their way from {} to {}",
                    self.page_index(page),
                    envelope.from,
                    envelope.to
                ));
            }
        }
        cluster.store(node, page);
        Ok(())
    }

    fn submit(&mut self, cluster: &mut Cluster, node: usize, thread: usize) -> Result<(), String> {
        let operation = cluster.threads[node][thread].operation;
        cluster.threads[node][thread].activity = Activity::Waiting;
        let page = self.page_index(usize::from(operation.page));
        let wish = self.wish(operation.page, operation.wide);
        self.step(cluster, node, Input::Fault { page, write: operation.asks_write, wish })
    }

    /// The bytes of a grant are put in place, read from the supplier only now; then the protocol
    /// hears of it.
    fn deliver(&mut self, cluster: &mut Cluster, number: u32) -> Result<(), String> {
        cluster.remove_message(number);
        let Envelope { from, to, message } = *self.envelopes.value(number);
        let receiver = usize::from(to.0);
        if let Some(range) = message.bytes() {
            for page in self.places_of(range)? {
                if !cluster.holds_last_value(usize::from(from.0), page) {
                    return Err(format!(
                        "the bytes of {} changed at {from} before {to} had them",
                        self.page_index(page)
                    ));
                }
                if cluster.places[receiver][page].access != Access::None {
                    return Err(format!("bytes arrive for {}, which {to} has mapped", self.page_index(page)));
                }
                cluster.copy(receiver, page);
            }
        }
        self.step(cluster, receiver, Input::Message { from, message })
    }

    fn step(&mut self, cluster: &mut Cluster, node: usize, input: Input) -> Result<(), String> {
        let stepped = self.stepped(cluster.nodes[node], node, input)?;
        cluster.nodes[node] = stepped.after;
        for index in 0..self.steps.effects(stepped.effects).len() {
            let order = self.steps.effects(stepped.effects)[index];
            self.carry_out(cluster, node, order)?;
        }
        if self.instance.paired {
            self.compare(cluster, node)?;
        }
        Ok(())
    }

    /// Runs the protocol, or remembers what it did.
    fn stepped(&mut self, before: u32, node: usize, input: Input) -> Result<Stepped, String> {
        let me = NodeId(node as u16);
        let number = self.inputs.number((me, input));
        if let Some(stepped) = self.steps.known(before, number) {
            return Ok(stepped);
        }
        let mut after = self.nodes.value(before).clone();
        let mut effects = Vec::new();
        guarded(|| after.step(0, input, &mut effects))
            .map_err(|what| format!("the protocol at {me} stopped: {what}"))?;
        let orders = effects.into_iter().map(|effect| self.order(me, effect)).collect();
        let after = self.node_number(after);
        Ok(self.steps.remember(before, number, after, orders))
    }

    fn order(&mut self, me: NodeId, effect: Effect) -> Order {
        let set = |range: PageRange| {
            let places = self.places_of(range).map_err(|_| "an effect on a page past the region");
            places.map(|places| places.fold(0u8, |set, page| set | 1 << page))
        };
        let order = match effect {
            Effect::Revoke(range) => set(range).map(Order::Revoke),
            Effect::Downgrade(range) => set(range).map(Order::Downgrade),
            Effect::Install { range, access, zero } => set(range).map(|pages| Order::Install { pages, access, zero }),
            Effect::Upgrade(range) => set(range).map(Order::Upgrade),
            Effect::Wake(range) => set(range).map(Order::Wake),
            Effect::Hold(page) => set(PageRange::one(page)).map(|set| Order::Hold(set.trailing_zeros() as u8)),
            Effect::Send { to, .. } if to == me || to.0 >= self.instance.nodes => {
                Err("a message to this node itself or to nobody")
            }
            Effect::Send { to, message } => Ok(Order::Send(self.envelopes.number(Envelope { from: me, to, message }))),
            Effect::Violation { what, .. } => Err(what),
        };
        order.unwrap_or_else(Order::Broken)
    }

    fn carry_out(&mut self, cluster: &mut Cluster, node: usize, order: Order) -> Result<(), String> {
        match order {
            Order::Revoke(pages) => cluster.revoke(node, pages),
            Order::Downgrade(pages) => cluster.downgrade(node, pages)?,
            Order::Install { pages, access, zero } => {
                cluster.install(node, pages, access, zero)?;
            }
            Order::Upgrade(pages) => cluster.upgrade(node, pages)?,
            Order::Send(number) => {
                self.read_out(cluster, node, number)?;
                cluster.add_message(number);
            }
            Order::Wake(pages) => cluster.wake(node, pages),
            Order::Hold(page) => cluster.places[node][usize::from(page)].is_wanted = true,
            Order::Broken(what) => return Err(format!("node {node} reports: {what}")),
        }
        Ok(())
    }

    /// The moment at which the bytes of a grant count as read.
    fn read_out(&self, cluster: &Cluster, node: usize, number: u32) -> Result<(), String> {
        let message = self.envelopes.value(number).message;
        let Message::Grant { range, write, content: Content::Bytes, .. } = message else {
            return Ok(());
        };
        let allowed = if write { Access::None } else { Access::Read };
        for page in self.places_of(range)? {
            if cluster.places[node][page].access > allowed {
                return Err(format!(
                    "node {node} sends the bytes of {} while its own view allows {:?}",
                    self.page_index(page),
                    cluster.places[node][page].access
                ));
            }
            if !cluster.holds_last_value(node, page) {
                return Err(format!(
                    "node {node} sends bytes of {} that are not the last ones stored",
                    self.page_index(page)
                ));
            }
        }
        Ok(())
    }

    fn compare(&self, cluster: &Cluster, node: usize) -> Result<(), String> {
        let shown = &self.shown[cluster.nodes[node] as usize];
        for page in 0..self.instance.pages.len() {
            if shown.access[page] != cluster.places[node][page].access {
                return Err(format!(
                    "node {node} thinks that its view of {} allows {:?}, but it allows {:?}",
                    self.page_index(page),
                    shown.access[page],
                    cluster.places[node][page].access
                ));
            }
        }
        Ok(())
    }

    /// Nothing more must happen: nobody may wait for anything.
    fn check_end(&self, cluster: &Cluster) -> Result<(), String> {
        for node in 0..usize::from(self.instance.nodes) {
            for thread in 0..usize::from(self.instance.threads) {
                let thread = cluster.threads[node][thread];
                if thread.activity != Activity::Idle {
                    let page = self.page_index(usize::from(thread.operation.page));
                    return Err(format!("a thread of node {node} waits for {page} for ever"));
                }
            }
            if self.shown[cluster.nodes[node] as usize].is_pending {
                return Err(format!("a request of node {node} is under way for ever"));
            }
        }
        Ok(())
    }

    /// Whether [`Input::Resumed`] would change anything now.
    fn resume_matters(&mut self, cluster: &Cluster, node: usize, page: usize) -> bool {
        let input = Input::Resumed { page: self.page_index(page) };
        let before = cluster.nodes[node];
        // A step that fails matters: it is told when it is taken.
        self.stepped(before, node, input)
            .map_or(true, |stepped| stepped.after != before || !self.steps.effects(stepped.effects).is_empty())
    }

    fn node_number(&mut self, node: N) -> u32 {
        let number = self.nodes.number(node);
        if number as usize == self.shown.len() {
            let node = self.nodes.value(number);
            let mut shown = Shown { access: [Access::None; PAGES_MAX], is_pending: false };
            for (place, &page) in self.instance.pages.iter().enumerate() {
                shown.access[place] = node.access(PageIndex(page));
                shown.is_pending |= node.is_pending(PageIndex(page));
            }
            self.shown.push(shown);
        }
        number
    }

    fn wish(&self, page: u8, wide: bool) -> PageRange {
        let page = self.page_index(usize::from(page));
        if !wide {
            return PageRange::one(page);
        }
        let mut first = page.0;
        let mut end = page.0 + 1;
        while self.instance.pages.contains(&end) {
            end += 1;
        }
        while first > 0 && self.instance.pages.contains(&(first - 1)) {
            first -= 1;
        }
        PageRange::around(page, first, end)
    }

    fn page_index(&self, place: usize) -> PageIndex {
        PageIndex(self.instance.pages[place])
    }

    /// The places of the pages of `range` in the instance.
    fn places_of(&self, range: PageRange) -> Result<impl Iterator<Item = usize> + use<N>, String> {
        let first = self.instance.pages.iter().position(|&page| page == range.first().0);
        let first = first.ok_or("a page that does not exist")?;
        let end = first + range.count() as usize;
        let last = self.instance.pages.get(end - 1).copied();
        if last == Some(range.end() - 1) { Ok(first..end) } else { Err("too long a run".into()) }
    }
}
