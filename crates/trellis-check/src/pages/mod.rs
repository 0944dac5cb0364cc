//! A small cluster whose threads load from and store to pages: the explorer's model for coherence protocols.
//!
//! Every node is a [`Shard`], as in the runtime: the protocol, its timers, its locks and its departures decide. The
//! network is a multiset: any message may arrive next. Time has no length: whatever is pending may go off next. Every
//! thread chooses each of its operations freely. The model checks, after every single effect and every access:
//!
//! 1. *Single writer or many readers*, over the views of all nodes.
//! 2. *Downgrade before read-out before send*: when bytes are sent, the supplier's view no longer allows stores (and
//!    allows nothing once the right to write goes with them).
//! 3. *Bytes stay put*: the bytes of a grant are read from the supplier when the message is delivered, and must be
//!    those of the moment when it was sent.
//! 4. *A load sees the last store*; a page that is installed without bytes must have bytes.
//! 5. *Every operation ends*: when nothing more must happen, no thread waits and no request is under way. A waiting
//!    thread tries again only after a wake. A held page leaves only after [`Input::Resumed`], which a runtime must
//!    give only after [`Effect::Hold`].
//! 6. *A lock holds*: it is given only while every page of it may be stored to here and no other lock has one of them.
//!    Until it is given back or its time is over, no view of its pages is taken away, and the change made under it is
//!    based on the last value. A thread is told that its time is over when it is, and not before.
//! 7. *Bounded overtaking*: if the instance has a bound, a waiting thread sees others get the right to store to its
//!    page a bounded number of times.
//! 8. *No messages to nodes that left*: a node that was told that another departs sends it nothing, nothing is under
//!    way to a node when it ends, and no thread waits for it.
//! 9. No step reports a violation or fails an assertion of the protocol.
//!
//! A page holds one of three things: nothing, the last value stored by any node, or an older value. That is enough to
//! detect a lost store, and keeps the number of states small.
//!
//! It must never inspect a protocol, and never decide what a node decides: it uses only [`Coherence`] and
//! [`node`](trellis_cluster_protocol::node).

mod actions;
mod cluster;
mod facts;
mod instance;
mod leaving;
mod words;

use crate::explore::{Model, Successors};
use crate::intern::{Numbered, Stepped, Steps};
use crate::model::views::check_thought;
use crate::model::{Cluster as _, Envelope, Layout, Memory};
use crate::simulate::NodeFault;
use actions::Action;
use cluster::{Activity, Cluster, PURPOSES, Thread, Used};
use facts::Fact;
use std::hash::Hash;
use trellis_cluster_protocol::coherence::{Coherence, Effect, Geometry, Input, Message, Protocol};
use trellis_cluster_protocol::node::{Order, Shard, TakeOver};
use trellis_cluster_protocol::{Access, Nanoseconds, NodeId, PageIndex, PageRange};

pub use cluster::{NODES_MAX, PAGES_MAX, THREADS_MAX};
pub use instance::{Instance, Locks, Requests};

/// The protocol of a node, which can be copied and compared.
pub trait Node: Coherence + Clone + Eq + Hash {}

impl<N: Coherence + Clone + Eq + Hash> Node for N {}

/// A set of the instance's pages, one bit each.
type PageSet = u8;

/// The node that takes over the pages of the one that leaves.
const COORDINATOR: NodeId = NodeId(0);

/// An order of a shard, and the number of the message that is sent, or of the page that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ordered {
    order: Order,
    number: u32,
}

/// The model; see the module's documentation.
pub struct Pages<N> {
    instance: Instance,
    /// What the nodes do wrong besides their protocols.
    fault: NodeFault,
    nodes: Numbered<Shard<N>>,
    /// For every node state: the answers of its queries.
    shown: Vec<Shown>,
    envelopes: Numbered<Envelope>,
    /// For every envelope: the number of the fact that it arrives.
    arrivals: Vec<u32>,
    facts: Numbered<(NodeId, Fact)>,
    steps: Steps<Ordered>,
    /// What node 0 still has to take over from the node that leaves.
    take_overs: Numbered<TakeOver>,
    start: Vec<u32>,
    actions: Vec<Action>,
    /// The state that is expanded, and the one after an action; their memory is used again.
    scratch: Option<Box<[Cluster; 2]>>,
}

#[derive(Clone, Copy)]
struct Shown {
    access: [Access; PAGES_MAX],
    is_pending: [bool; PAGES_MAX],
    /// Whether the protocol of the page may be changed, if this node is its home.
    may_hand_over: [bool; PAGES_MAX],
    /// Pages that are held for a thread, and will be let go at some time.
    held: PageSet,
    /// Alarms that are set, for each of [`PURPOSES`].
    alarms: [PageSet; PURPOSES.len()],
}

impl<N: Node> Model for Pages<N> {
    fn initial(&mut self) -> Vec<u8> {
        let cluster = Cluster::new(&self.instance, &self.start);
        let mut bytes = Vec::new();
        cluster.write(&self.instance, &mut bytes);
        bytes
    }

    fn expand(&mut self, state: &[u8], next: &mut Successors) -> Result<(), String> {
        let mut scratch = self.scratch.take().expect("one state is expanded at a time");
        let [before, after] = &mut *scratch;
        self.read(state, before);
        let mut actions = std::mem::take(&mut self.actions);
        let must_go_on = self.enabled(before, &mut actions);
        for &action in &actions {
            after.clone_from(before);
            match self.act(after, action) {
                Ok(()) => next.push(|bytes| after.write(&self.instance, bytes)),
                Err(what) => next.push_broken(what),
            }
        }
        self.actions = actions;
        let ended = if must_go_on { Ok(()) } else { self.check_end(before) };
        self.scratch = Some(scratch);
        ended
    }

    fn tell(&mut self, state: &[u8], action: usize) -> Vec<String> {
        let mut cluster = Cluster::new(&self.instance, &self.start);
        self.read(state, &mut cluster);
        let mut actions = Vec::new();
        self.enabled(&cluster, &mut actions);
        self.tell_action(&mut cluster, actions[action])
    }
}

impl<N: Node> Pages<N> {
    fn new(instance: Instance, fault: NodeFault, start: impl Fn(Geometry) -> N) -> Pages<N> {
        assert!(usize::from(instance.nodes) <= NODES_MAX && instance.nodes > 0);
        assert!(instance.pages.len() <= PAGES_MAX && instance.pages.is_sorted());
        assert!(usize::from(instance.threads) <= THREADS_MAX);
        assert!(instance.operations < 16 && instance.prefetches < 16 && instance.time_outs < 16);
        assert!(!instance.leaver || instance.nodes > 1, "somebody must stay");
        let can_lock = |protocol: Protocol| protocol.can_lock();
        let all_can_lock = can_lock(instance.protocol) && instance.change.is_none_or(can_lock);
        assert!(instance.locks == Locks::None || all_can_lock, "a protocol that cannot lock");
        let mut model = Pages {
            fault,
            nodes: Numbered::new(),
            shown: Vec::new(),
            envelopes: Numbered::new(),
            arrivals: Vec::new(),
            facts: Numbered::new(),
            steps: Steps::new(),
            take_overs: Numbered::new(),
            start: Vec::new(),
            actions: Vec::new(),
            scratch: None,
            instance,
        };
        for me in (0..model.instance.nodes).map(NodeId) {
            let geometry = Geometry {
                me,
                nodes: model.instance.nodes,
                founders: model.instance.founders(),
                pages: model.instance.pages.last().expect("an instance has pages") + 1,
                shard: 0,
                shards: 1,
                home: model.instance.home,
                marks: false,
            };
            let number = model.node_number(Shard::new(start(geometry), geometry, COORDINATOR));
            model.start.push(number);
        }
        model.take_overs.number(TakeOver::default());
        let cluster = Cluster::new(&model.instance, &model.start);
        model.scratch = Some(Box::new([cluster.clone(), cluster]));
        model
    }

    /// The protocol of `node` gets `input`.
    fn step(&mut self, cluster: &mut Cluster, node: usize, input: Input) -> Result<(), String> {
        self.happen(cluster, node, Fact::Input(input))
    }

    /// `fact` happens to `node`, and its orders are carried out.
    fn happen(&mut self, cluster: &mut Cluster, node: usize, fact: Fact) -> Result<(), String> {
        let number = self.facts.number((NodeId(node as u16), fact));
        self.happen_numbered(cluster, node, number)
    }

    fn happen_numbered(&mut self, cluster: &mut Cluster, node: usize, fact: u32) -> Result<(), String> {
        let stepped = self.stepped_numbered(cluster.nodes[node], fact)?;
        cluster.nodes[node] = stepped.after;
        for index in 0..self.steps.effects(stepped.effects).len() {
            let Ordered { order, number } = self.steps.effects(stepped.effects)[index];
            Acting { pages: self, cluster, number }.carry_out(node as u16, order)?;
        }
        if self.instance.paired {
            self.compare(cluster, node)?;
        }
        Ok(())
    }

    /// Lets `fact` happen to a node, or returns the stored result.
    fn stepped(&mut self, before: u32, node: usize, fact: Fact) -> Result<Stepped, String> {
        let number = self.facts.number((NodeId(node as u16), fact));
        self.stepped_numbered(before, number)
    }

    fn stepped_numbered(&mut self, before: u32, number: u32) -> Result<Stepped, String> {
        if let Some(stepped) = self.steps.known(before, number) {
            return Ok(stepped);
        }
        let (me, fact) = *self.facts.value(number);
        let mut after = self.nodes.value(before).clone();
        let mut effects = Vec::new();
        self.apply(&mut after, me, fact, &mut |effect, order| effects.push((effect, order)))?;
        // The memory checks the effects that change it.
        let is_past = |pages: PageRange| pages.pages().any(|page| !self.instance.pages.contains(&page.0));
        if effects.iter().any(|(effect, _)| match *effect {
            Effect::Wake(pages) => is_past(pages),
            Effect::Hold(page) | Effect::Alarm { page, .. } => is_past(PageRange::one(page)),
            _ => false,
        }) {
            return Err("an effect on a page past the region".to_owned());
        }
        let orders = effects.into_iter().filter_map(|(effect, order)| self.ordered(me, effect, order)).collect();
        let after = self.node_number(after);
        Ok(self.steps.remember(before, number, after, orders))
    }

    /// What there is to carry out; nothing where the shard itself remembers what was ordered.
    fn ordered(&mut self, me: NodeId, effect: Effect, order: Order) -> Option<Ordered> {
        let number = match (order, effect) {
            (Order::Send { to, message }, _) => {
                let number = self.envelopes.number(Envelope { from: me.0, to: to.0, message });
                if number as usize == self.arrivals.len() {
                    let arrives = Fact::Input(Input::Message { from: me, message });
                    self.arrivals.push(self.facts.number((to, arrives)));
                }
                number
            }
            (_, Effect::Hold(page)) if self.instance.silent => page.0,
            (Order::WakeAt { .. } | Order::Nothing, _) | (_, Effect::Chose { .. }) => return None,
            _ => 0,
        };
        Some(Ordered { order, number })
    }

    fn read(&self, state: &[u8], cluster: &mut Cluster) {
        cluster.read(&self.instance, state, |number| self.envelopes.value(number).message.bytes());
    }

    fn is_locked(&self, cluster: &Cluster, node: usize, page: PageIndex) -> bool {
        let threads = &cluster.threads[node][..self.instance.threads_of(node)];
        threads.iter().any(|thread| thread.activity == Activity::Holding && self.locks(thread.operation).contains(page))
    }

    fn compare(&self, cluster: &Cluster, node: usize) -> Result<(), String> {
        let shown = self.shown(cluster, node);
        let mut pages = self.instance.pages.iter().zip(&shown.access);
        pages.try_for_each(|(page, thought)| {
            check_thought(node, page, *thought, cluster.memory.view(node as u16, PageIndex(*page)))
        })
    }

    /// Nothing more must happen: checks that no thread or node waits for anything.
    fn check_end(&self, cluster: &Cluster) -> Result<(), String> {
        for node in 0..usize::from(self.instance.nodes) {
            for thread in &cluster.threads[node][..self.instance.threads_of(node)] {
                if !matches!(thread.activity, Activity::Idle | Activity::Expired) {
                    let page = self.page_index(usize::from(thread.operation.page));
                    return Err(format!("a thread of node {node} waits for {page} for ever"));
                }
            }
            if self.shown(cluster, node).is_pending.contains(&true) {
                return Err(format!("a request of node {node} is under way for ever"));
            }
        }
        if cluster.leaving > 0 && cluster.gone.count_ones() != u32::from(self.instance.founders()) {
            return Err("a node that leaves waits for ever".into());
        }
        if cluster.change.is_begun && cluster.change.done.count_ones() != u32::from(self.instance.nodes) {
            return Err("a change of the protocol waits for ever".into());
        }
        Ok(())
    }

    /// Whether `fact` would change anything now.
    fn matters(&mut self, cluster: &Cluster, node: usize, fact: Fact) -> bool {
        let before = cluster.nodes[node];
        // A failing step matters: it is reported when it is taken.
        self.stepped(before, node, fact)
            .map_or(true, |stepped| stepped.after != before || !self.steps.effects(stepped.effects).is_empty())
    }

    fn node_number(&mut self, node: Shard<N>) -> u32 {
        let number = self.nodes.number(node);
        if number as usize == self.shown.len() {
            self.shown.push(self.show(self.nodes.value(number)));
        }
        number
    }

    fn show(&self, node: &Shard<N>) -> Shown {
        let mut shown = Shown {
            access: [Access::None; PAGES_MAX],
            is_pending: [false; PAGES_MAX],
            may_hand_over: [false; PAGES_MAX],
            held: 0,
            alarms: [0; PURPOSES.len()],
        };
        for (place, &page) in self.instance.pages.iter().enumerate() {
            shown.access[place] = node.protocol.access(PageIndex(page));
            shown.is_pending[place] = node.protocol.is_pending(PageIndex(page));
            shown.may_hand_over[place] = node.protocol.may_hand_over(PageIndex(page));
        }
        let place = |page: PageIndex| self.instance.pages.iter().position(|&other| other == page.0);
        for (input, _) in node.timers.pending().filter(|(_, due)| *due < Nanoseconds::MAX) {
            match input {
                Input::Resumed { page } => shown.held |= place(page).map_or(0, |place| 1 << place),
                Input::Alarm { page, purpose } => {
                    let purpose = PURPOSES.iter().position(|&other| other == purpose).expect("a purpose of the list");
                    shown.alarms[purpose] |= place(page).map_or(0, |place| 1 << place);
                }
                _ => unreachable!("timers know nothing else"),
            }
        }
        shown
    }

    /// What is pending at `node`; nothing at one that has left.
    fn pending(&self, cluster: &Cluster, node: usize) -> Shown {
        let shown = *self.shown(cluster, node);
        if self.has_ended(cluster, node) { Shown { held: 0, alarms: [0; PURPOSES.len()], ..shown } } else { shown }
    }

    fn shown(&self, cluster: &Cluster, node: usize) -> &Shown {
        &self.shown[cluster.nodes[node] as usize]
    }

    fn page_index(&self, place: usize) -> PageIndex {
        PageIndex(self.instance.pages[place])
    }
}

/// An order of one node is being carried out.
struct Acting<'a, N> {
    pages: &'a mut Pages<N>,
    cluster: &'a mut Cluster,
    number: u32,
}

impl<N: Node> crate::model::Cluster for Acting<'_, N> {
    type Layout = Used;
    type Bytes = ();

    fn memory(&mut self) -> &mut Memory<Used> {
        &mut self.cluster.memory
    }

    /// No message is sent to a node of which the sender was told that it departs.
    fn put_under_way(&mut self, node: u16, to: NodeId, message: Message) -> Result<(), String> {
        let instance = &self.pages.instance;
        if to.0 >= instance.nodes {
            return Err(format!("node {node} sends {message} to nobody"));
        }
        if self.cluster.departed >> node & 1 != 0 && instance.leaver() == Some(usize::from(to.0)) {
            return Err(format!("node {node} sends a message to {to}, which departed"));
        }
        self.cluster.add_message(self.number);
        Ok(())
    }

    /// The pages stay for the threads.
    fn look_again(&mut self, node: u16, range: PageRange) -> Result<(), String> {
        let (pages, node) = (&mut *self.pages, usize::from(node));
        for thread in 0..pages.instance.threads_of(node) {
            let Thread { activity, operation, .. } = self.cluster.threads[node][thread];
            let page = pages.page_index(usize::from(operation.page));
            if activity != Activity::Waiting || !range.contains(page) {
                continue;
            }
            self.cluster.threads[node][thread].activity = Activity::Woken;
            if !pages.instance.is_taker(node, thread) {
                // In the middle of the orders of a step, whose others are still to be carried out.
                self.cluster.nodes[node] = pages.stepped(self.cluster.nodes[node], node, Fact::Woken(page))?.after;
            }
        }
        Ok(())
    }

    /// The node lets the page go when its time is over.
    fn has_timer(&mut self, node: u16, _due: Nanoseconds) {
        self.cluster.asked_for[usize::from(node)] |= 1 << self.cluster.memory.layout().place(PageIndex(self.number));
    }

    /// No other lock has one of the pages.
    fn has_locked(&mut self, node: u16, range: PageRange, call: u32) -> Result<(), String> {
        let (pages, node, thread) = (&*self.pages, usize::from(node), call as usize);
        let asked = self.cluster.threads[node].get(thread).copied().unwrap_or_default();
        if asked.activity != Activity::Locking || pages.locks(asked.operation) != range {
            return Err(format!("node {node} gives a lock to thread {thread}, which does not wait for it"));
        }
        let is_locked = |page: &PageIndex| {
            (0..usize::from(pages.instance.nodes)).any(|other| pages.is_locked(self.cluster, other, *page))
        };
        if let Some(page) = range.pages().find(is_locked) {
            return Err(format!("{page} is locked twice"));
        }
        self.cluster.threads[node][thread].activity = Activity::Holding;
        self.cluster.threads[node][thread].overtaken = 0;
        Ok(())
    }

    fn check_unlocked(&self, node: u16, range: PageRange) -> Result<(), String> {
        if self.pages.instance.locks == Locks::None {
            return Ok(());
        }
        match range.pages().find(|&page| self.pages.is_locked(self.cluster, node.into(), page)) {
            Some(page) => Err(format!("{page} leaves node {node}, where a thread has locked it")),
            None => Ok(()),
        }
    }

    fn opened(&mut self, node: u16, range: PageRange, access: Access) -> Result<(), String> {
        match self.pages.instance.overtaken_max {
            Some(bound) if access == Access::Write => self.cluster.overtake(node.into(), range, bound),
            _ => Ok(()),
        }
    }
}
