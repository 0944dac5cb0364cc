//! A whole cluster, driven by a seed: nodes, messages under way, and the checker of what threads may see.
//!
//! Promises: the same seed gives the same run on every machine. Any message may be the next to arrive, however long
//! others have waited; with loss, messages travel as datagrams through the recovery of the `udp` link. A run in which
//! nothing can happen, or that does not end within its bound, is a failure. It must never deliver what was not sent.

use super::effects::{Envelope, Event, Out, Packet};
use super::ghost::Ghost;
use super::node::{Doing, Node};
use super::recovery::Recovery;
use super::{Operation, Setup, Troubles, Turn};
use crate::model::twinned::Body;
use trellis_base::Random;
use trellis_cluster_protocol::sync::WaitStep;

/// Checks the events of threads against the memory model.
///
/// # Errors
///
/// An event violates it.
pub(super) fn judge<'a>(
    setup: &Setup,
    ghost: &mut Ghost,
    events: &[Event],
    nodes: impl Iterator<Item = &'a Node> + Clone,
) -> Result<(), String> {
    for &event in events {
        ghost.note(event)?;
        match event {
            Event::Published { thread } => ghost.check_homes(setup, thread, nodes.clone())?,
            Event::Changes { thread, change } => ghost.check_change(setup, thread, change, nodes.clone())?,
            _ => {}
        }
    }
    Ok(())
}

/// Nothing can happen any more: checks that this is a correct end.
///
/// # Errors
///
/// A thread or node waits, or a store is lost.
pub(super) fn check_rest<'a>(
    setup: &Setup,
    ghost: &Ghost,
    nodes: impl Iterator<Item = &'a Node> + Clone,
) -> Result<(), String> {
    if ghost.has_failed() {
        return Ok(());
    }
    for node in nodes.clone() {
        for thread in node.threads.iter().filter(|thread| thread.doing != Doing::Over) {
            let operation = thread.operation(setup);
            let may_wait = match operation {
                Operation::Notify(_) => thread.doing == Doing::Ready,
                Operation::Take { word, .. } if thread.doing == Doing::AwaitsNotice(WaitStep::Await) => {
                    ghost.may_wait(setup, word, nodes.clone())
                }
                _ => false,
            };
            if !may_wait {
                return Err(format!(
                    "thread {} of node {} waits for ever: {operation:?}, {:?}",
                    thread.number, node.me, thread.doing
                ));
            }
        }
        if setup.objects.is_some() && !node.parts.sync.is_quiet() {
            return Err(format!("all is over, but node {} remembers calls", node.me));
        }
        if !node.is_quiet() {
            return Err(format!("node {} waits for ever for what a message rests on", node.me));
        }
    }
    for page in (0..setup.pages.len()).map(|place| setup.page(place)) {
        let mut protocols = nodes.clone().map(|node| node.parts.shard(page).protocol.protocol(page));
        let first = protocols.next();
        if let Some(other) = protocols.find(|other| Some(*other) != first) {
            return Err(format!("{page} has the protocol {other} at one node, and another at others"));
        }
    }
    ghost.check_end(setup, nodes)
}

/// A thread gives up, or its node objects, in one of this many steps in which that may happen.
const TROUBLE_ONCE_IN: u64 = 16;

/// The carrier of messages.
enum Network {
    /// Messages in the order in which they were sent, and which of them are slow.
    Bag(Vec<(Envelope, bool)>),
    Lossy(Box<Recovery>),
}

/// The parameters of a run.
pub struct Pace {
    /// How often in 8 steps a thread runs instead of a message arriving.
    pub threads_of_8: u64,
    /// One of this many messages is slow: it arrives only when little else can happen. Zero: none.
    pub slow_once_in: u64,
    /// Messages are lost, duplicated and reordered below the recovery of the `udp` link.
    pub is_lossy: bool,
    /// The maximum number of steps.
    pub steps_max: u64,
}

/// The index of the next message to arrive: rarely a slow one while there are others.
fn pick(envelopes: &[(Envelope, bool)], random: &mut Random) -> usize {
    let any = random.index(envelopes.len());
    if !envelopes[any].1 || random.once_in(32) {
        return any;
    }
    let count = envelopes.len();
    (0..count).map(|step| (any + step) % count).find(|&index| !envelopes[index].1).unwrap_or(any)
}

/// See the module's documentation.
pub struct Cluster {
    setup: Setup,
    nodes: Vec<Node>,
    network: Network,
    /// What may still go wrong.
    troubles: Troubles,
    ghost: Option<Ghost>,
    random: Random,
    out: Out,
    pace: Pace,
    /// Steps of the current run.
    steps: u64,
}

impl Cluster {
    /// A cluster of `setup`; its accesses are checked if `is_checked`.
    pub fn new(setup: Setup, seed: u64, pace: Pace, is_checked: bool) -> Cluster {
        let nodes = (0..setup.nodes).map(|me| Node::new(&setup, me)).collect();
        let network = if pace.is_lossy {
            Network::Lossy(Box::new(Recovery::new(setup.nodes)))
        } else {
            Network::Bag(Vec::with_capacity(32))
        };
        Cluster {
            ghost: is_checked.then(|| Ghost::new(&setup)),
            troubles: setup.troubles,
            nodes,
            network,
            random: Random::for_purpose(seed, 7),
            out: Out::default(),
            setup,
            pace,
            steps: 0,
        }
    }

    /// Records a trace from now on.
    pub fn keep_story(&mut self) {
        self.out.story = Some(Vec::new());
    }

    /// The trace so far.
    pub fn take_story(&mut self) -> Vec<String> {
        self.out.story.take().unwrap_or_default()
    }

    /// The values that a thread loaded.
    pub fn registers(&self, thread: usize) -> &[super::Value] {
        let node = &self.nodes[usize::from(self.setup.scripts[thread].node)];
        let is_it = |other: &&super::node::Thread| usize::from(other.number) == thread;
        &node.threads.iter().find(is_it).expect("a thread is at its node").registers
    }

    /// Gives the threads new scripts; all are done with the old ones.
    pub fn set_scripts(&mut self, change: impl FnOnce(&mut Setup)) {
        change(&mut self.setup);
        self.steps = 0;
        self.nodes.iter_mut().for_each(|node| node.set_scripts(&self.setup));
    }

    /// Steps of the last run.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Runs until all threads are done and, if `to_rest`, no message is under way.
    ///
    /// # Errors
    ///
    /// The problem, and whether it is that nothing can happen any more.
    pub fn run(&mut self, to_rest: bool) -> Result<(), (bool, String)> {
        loop {
            self.steps += 1;
            if self.steps > self.pace.steps_max {
                return Err((true, format!("the run does not end: {}", self.who_waits())));
            }
            if let Some((node, thread, turn)) = self.trouble() {
                self.troubles = self.troubles.after(turn);
                self.take_turn(node, thread, turn).map_err(|what| (false, what))?;
            }
            if self.ghost.as_ref().is_some_and(Ghost::has_failed) {
                return Ok(());
            }
            let able = self.able();
            let waiting = self.network_waits();
            let picks_thread = self.random.below(8) < self.pace.threads_of_8 || self.has_only_slow();
            let done = match (able, waiting) {
                (None, false) => return self.end(),
                (Some((node, thread)), waits) if picks_thread || !waits => self.take_turn(node, thread, Turn::Goes),
                (_, true) => {
                    if !to_rest && self.nodes.iter().all(Node::is_over) {
                        return Ok(());
                    }
                    self.deliver()
                }
                (Some((node, thread)), false) => self.take_turn(node, thread, Turn::Goes),
            };
            done.map_err(|what| (false, what))?;
        }
    }

    fn end(&self) -> Result<(), (bool, String)> {
        match &self.ghost {
            Some(ghost) => check_rest(&self.setup, ghost, self.nodes.iter()).map_err(|what| (true, what)),
            None if self.nodes.iter().all(Node::is_over) => Ok(()),
            None => Err((true, self.who_waits())),
        }
    }

    fn who_waits(&self) -> String {
        let threads = self.nodes.iter().flat_map(|node| &node.threads).filter(|thread| thread.doing != Doing::Over);
        let each = threads.map(|thread| format!("thread {} is {:?}", thread.number, thread.doing));
        each.collect::<Vec<_>>().join(", ")
    }

    /// Some thread that can continue.
    fn able(&mut self) -> Option<(usize, usize)> {
        let count = self.setup.scripts.len();
        let first = self.random.index(count.max(1));
        (0..count).map(|index| (first + index) % count).find_map(|number| {
            let node = usize::from(self.setup.scripts[number].node);
            let thread = self.nodes[node].threads.iter().position(|thread| usize::from(thread.number) == number)?;
            self.nodes[node].can_take(&self.setup, thread, Turn::Goes).then_some((node, thread))
        })
    }

    /// Rarely, a thread that gives up waiting, or whose node objects.
    fn trouble(&mut self) -> Option<(usize, usize, Turn)> {
        if self.troubles == Troubles::default() || !self.random.once_in(TROUBLE_ONCE_IN) {
            return None;
        }
        let nodes = self.nodes.iter().enumerate();
        let threads = nodes.flat_map(|(node, state)| (0..state.threads.len()).map(move |thread| (node, thread)));
        let turns = |(node, thread)| [Turn::GivesUp, Turn::Objects].map(|turn| (node, thread, turn));
        let can = |&(node, thread, turn): &(usize, usize, Turn)| {
            self.troubles.allow(turn) && self.nodes[node].can_take(&self.setup, thread, turn)
        };
        threads.flat_map(turns).find(can)
    }

    fn network_waits(&self) -> bool {
        match &self.network {
            Network::Bag(envelopes) => !envelopes.is_empty(),
            Network::Lossy(recovery) => recovery.is_busy(),
        }
    }

    /// Whether all messages under way are slow, so that usually threads run first.
    fn has_only_slow(&mut self) -> bool {
        match &self.network {
            Network::Bag(envelopes) => envelopes.iter().all(|(_, is_slow)| *is_slow) && !self.random.once_in(32),
            Network::Lossy(_) => false,
        }
    }

    fn take_turn(&mut self, node: usize, thread: usize, turn: Turn) -> Result<(), String> {
        let number = self.nodes[node].threads[thread].number;
        self.out.tell(|| format!("thread {number} of node {node} {}", turn.words()));
        self.nodes[node].take_turn(&self.setup, thread, turn, &mut self.out);
        self.after()
    }

    fn deliver(&mut self) -> Result<(), String> {
        let envelope = match &mut self.network {
            Network::Bag(envelopes) => {
                let mut index = pick(envelopes, &mut self.random);
                if self.setup.is_ordered {
                    let ends = |(envelope, _): &(Envelope, bool)| (envelope.from, envelope.to);
                    let mine = ends(&envelopes[index]);
                    index = envelopes.iter().position(|other| ends(other) == mine).expect("it is there");
                    envelopes.remove(index).0
                } else {
                    envelopes.swap_remove(index).0
                }
            }
            Network::Lossy(recovery) => match recovery.go_on(&mut self.random)? {
                Some(envelope) => envelope,
                None => return Ok(()),
            },
        };
        let Envelope { from, to, message: mut packet } = envelope;
        if let Packet::Page { message, body: body @ Body::Late } = &mut packet {
            let range = message.bytes().expect("it has bytes");
            *body = Body::Pages(self.nodes[usize::from(from)].bytes_of(&self.setup, range));
        }
        self.out.tell(|| format!("{from}->{to} arrives: {packet}"));
        self.nodes[usize::from(to)].deliver(&self.setup, from, &packet, &mut self.out);
        self.after()
    }

    fn after(&mut self) -> Result<(), String> {
        if let Some(problem) = self.out.problem.take() {
            return Err(problem);
        }
        if let Some(ghost) = &mut self.ghost {
            judge(&self.setup, ghost, &self.out.events, self.nodes.iter())?;
        }
        self.out.events.clear();
        for envelope in self.out.packets.drain(..) {
            match &mut self.network {
                Network::Bag(envelopes) => {
                    let is_slow = self.pace.slow_once_in > 0 && self.random.once_in(self.pace.slow_once_in);
                    envelopes.push((envelope, is_slow));
                }
                Network::Lossy(recovery) => recovery.submit(envelope),
            }
        }
        Ok(())
    }
}
