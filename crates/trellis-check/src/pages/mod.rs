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
//! It must never inspect a protocol, and never decide what a node decides: it uses only [`Coherence`] and [`node`].

mod actions;
mod cluster;
mod facts;
mod instance;
mod leaving;
mod words;

use crate::explore::{Model, Successors};
use crate::intern::{Numbered, Stepped, Steps};
use crate::simulate::NodeFault;
use crate::views::{check_read_out, check_thought};
use actions::Action;
use cluster::{Activity, Cluster, PURPOSES, Thread, members};
use facts::Fact;
use std::hash::Hash;
use trellis_cluster_protocol::coherence::{Coherence, Content, Effect, Geometry, Input, Message, Protocol};
use trellis_cluster_protocol::node::{self, Shard, TakeOver};
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

/// An order of a shard, with messages and pages replaced by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Order {
    Revoke(PageSet),
    Downgrade(PageSet),
    Install {
        pages: PageSet,
        access: Access,
        zero: bool,
    },
    Upgrade(PageSet),
    Send(u32),
    Wake(PageSet),
    /// The node lets the page go when its time is over.
    LetGoLater(u8),
    Granted {
        pages: PageSet,
        call: u32,
    },
    Broken(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Envelope {
    from: NodeId,
    to: NodeId,
    message: Message,
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
    steps: Steps<Order>,
    /// What node 0 still has to take over from the node that leaves.
    take_overs: Numbered<TakeOver>,
    start: Vec<u32>,
    actions: Vec<Action>,
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
        model
    }

    /// The number of distinct node states and steps of the protocol so far.
    pub fn distinct(&self) -> (usize, usize) {
        (self.nodes.len(), self.steps.len())
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
            let order = self.steps.effects(stepped.effects)[index];
            self.carry_out(cluster, node, order)?;
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
        let orders = effects.into_iter().filter_map(|(effect, order)| self.order(me, effect, order)).collect();
        let after = self.node_number(after);
        Ok(self.steps.remember(before, number, after, orders))
    }

    /// What there is to carry out; nothing where the shard itself remembers what was ordered.
    fn order(&mut self, me: NodeId, effect: Effect, order: node::Order) -> Option<Order> {
        let set = |range: PageRange| {
            let places = self.places_of(range).map_err(|_| "an effect on a page past the region");
            places.map(|places| places.fold(0u8, |set, page| set | 1 << page))
        };
        let order = match order {
            node::Order::CarryOut(effect) => match effect {
                Effect::Revoke(range) => set(range).map(Order::Revoke),
                Effect::Downgrade(range) => set(range).map(Order::Downgrade),
                Effect::Install { range, access, zero } => {
                    set(range).map(|pages| Order::Install { pages, access, zero })
                }
                Effect::Upgrade(range) => set(range).map(Order::Upgrade),
                Effect::Wake(range) => set(range).map(Order::Wake),
                Effect::Violation { what, .. } => Err(what),
                _ => Err("an effect that belongs to release consistency"),
            },
            node::Order::Send { to, .. } if to == me || to.0 >= self.instance.nodes => {
                Err("a message to this node itself or to nobody")
            }
            node::Order::Send { to, message } => {
                let number = self.envelopes.number(Envelope { from: me, to, message });
                if number as usize == self.arrivals.len() {
                    let arrives = Fact::Input(Input::Message { from: me, message });
                    self.arrivals.push(self.facts.number((to, arrives)));
                }
                Ok(Order::Send(number))
            }
            node::Order::Granted { range, call } => set(range).map(|pages| Order::Granted { pages, call }),
            node::Order::WakeAt { .. } => match effect {
                Effect::Hold(page) => {
                    set(PageRange::one(page)).map(|pages| Order::LetGoLater(pages.trailing_zeros() as u8))
                }
                Effect::Alarm { page, .. } => Err(set(PageRange::one(page)).err()?),
                _ => Err("a time to look at timers without a reason"),
            },
            node::Order::Nothing => return None,
            node::Order::Lost { .. } => Err("a message for a node that departed, which no node can answer"),
        };
        Some(order.unwrap_or_else(Order::Broken))
    }

    fn carry_out(&mut self, cluster: &mut Cluster, node: usize, order: Order) -> Result<(), String> {
        match order {
            Order::Revoke(pages) => {
                self.check_unlocked(cluster, node, pages, "revokes")?;
                cluster.revoke(node, pages);
            }
            Order::Downgrade(pages) => {
                self.check_unlocked(cluster, node, pages, "downgrades")?;
                cluster.downgrade(node, pages)?;
            }
            Order::Install { pages, access, zero } => {
                cluster.install(node, pages, access, zero)?;
                if access == Access::Write {
                    self.overtake(cluster, node, pages)?;
                }
            }
            Order::Upgrade(pages) => {
                cluster.upgrade(node, pages)?;
                self.overtake(cluster, node, pages)?;
            }
            Order::Send(number) => {
                self.check_receiver(cluster, node, number)?;
                self.read_out(cluster, node, number)?;
                cluster.add_message(number);
            }
            Order::Wake(pages) => self.wake(cluster, node, pages)?,
            Order::LetGoLater(page) => cluster.places[node][usize::from(page)].is_asked_for = self.instance.silent,
            Order::Granted { pages, call } => self.locked(cluster, node, pages, call)?,
            Order::Broken(what) => return Err(format!("node {node} reports: {what}")),
        }
        Ok(())
    }

    fn overtake(&self, cluster: &mut Cluster, node: usize, pages: PageSet) -> Result<(), String> {
        self.instance.overtaken_max.map_or(Ok(()), |bound| cluster.overtake(node, pages, bound))
    }

    /// The threads that wait for one of `pages` may look again, and the pages stay for them.
    fn wake(&mut self, cluster: &mut Cluster, node: usize, pages: PageSet) -> Result<(), String> {
        for thread in 0..self.instance.threads_of(node) {
            let Thread { activity, operation, .. } = cluster.threads[node][thread];
            if activity != Activity::Waiting || pages >> operation.page & 1 == 0 {
                continue;
            }
            cluster.threads[node][thread].activity = Activity::Woken;
            if !self.instance.is_taker(node, thread) {
                // In the middle of the orders of a step, whose others are still to be carried out.
                let woken = Fact::Woken(self.page_index(usize::from(operation.page)));
                cluster.nodes[node] = self.stepped(cluster.nodes[node], node, woken)?.after;
            }
        }
        Ok(())
    }

    /// Checks that no message is sent to a node of which the sender was told that it departs.
    fn check_receiver(&self, cluster: &Cluster, node: usize, number: u32) -> Result<(), String> {
        let to = usize::from(self.envelopes.value(number).to.0);
        match cluster.departed >> node & 1 != 0 && self.instance.leaver() == Some(to) {
            true => Err(format!("node {node} sends a message to node {to}, which departed")),
            false => Ok(()),
        }
    }

    /// Checks a lock that is given: every page may be stored to here, and is in no other lock.
    fn locked(&self, cluster: &mut Cluster, node: usize, pages: PageSet, call: u32) -> Result<(), String> {
        let thread = call as usize;
        let asked = cluster.threads[node].get(thread).copied().unwrap_or_default();
        if asked.activity != Activity::Locking || self.pages_of(asked.operation) != pages {
            return Err(format!("node {node} gives a lock to thread {thread}, which does not wait for it"));
        }
        for page in members(pages) {
            if cluster.places[node][page].access != Access::Write {
                return Err(format!("node {node} locks page {page}, which it may not store to"));
            }
            if (0..usize::from(self.instance.nodes)).any(|other| self.is_locked(cluster, other, page)) {
                return Err(format!("page {page} is locked twice"));
            }
        }
        cluster.threads[node][thread].activity = Activity::Holding;
        cluster.threads[node][thread].overtaken = 0;
        Ok(())
    }

    fn is_locked(&self, cluster: &Cluster, node: usize, page: usize) -> bool {
        let threads = &cluster.threads[node][..self.instance.threads_of(node)];
        let holding = threads.iter().filter(|thread| thread.activity == Activity::Holding);
        holding.into_iter().any(|thread| self.pages_of(thread.operation) >> page & 1 != 0)
    }

    fn check_unlocked(&self, cluster: &Cluster, node: usize, pages: PageSet, does: &str) -> Result<(), String> {
        if self.instance.locks == Locks::None {
            return Ok(());
        }
        match members(pages).find(|&page| self.is_locked(cluster, node, page)) {
            Some(page) => Err(format!("node {node} {does} page {page}, which a thread has locked")),
            None => Ok(()),
        }
    }

    /// Checks the moment at which the bytes of a grant count as read.
    fn read_out(&self, cluster: &Cluster, node: usize, number: u32) -> Result<(), String> {
        let message = self.envelopes.value(number).message;
        let Message::Grant { range, write, content: Content::Bytes, .. } = message else {
            return Ok(());
        };
        for page in self.places_of(range)? {
            check_read_out(node, self.instance.pages[page], cluster.places[node][page].access, write)?;
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
        let shown = self.shown(cluster, node);
        let mut places = self.instance.pages.iter().zip(&shown.access).zip(&cluster.places[node]);
        places.try_for_each(|((page, thought), place)| check_thought(node, page, *thought, place.access))
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

    /// The indexes of the pages of `range` in the instance.
    fn places_of(&self, range: PageRange) -> Result<impl Iterator<Item = usize> + use<N>, String> {
        let first = self.instance.pages.iter().position(|&page| page == range.first().0);
        let first = first.ok_or("a page that does not exist")?;
        let end = first + range.count() as usize;
        let last = self.instance.pages.get(end - 1).copied();
        if last == Some(range.end() - 1) { Ok(first..end) } else { Err("too long a run".into()) }
    }
}
