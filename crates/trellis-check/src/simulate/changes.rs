//! Changes of the protocol of pages by all nodes together, while other threads use the pages.
//!
//! One thread of each founder makes the calls. The real [`Change`] decides, with the real barriers and words; the shard
//! decides about the pages ([`Gathering`]). A thread may wait too long in a barrier, a node may object, and one may be
//! given another change than the others.
//!
//! What must hold: either every node changes or none does. None does if one objects or was given another change. No
//! request is under way when a node changes. It must never let a node change its pages by itself.

use super::Start;
use super::events::Event;
use super::node::{Action, Doing};
use super::node_faults::NodeFault;
use super::world::World;
use crate::model::Stepping;
use trellis_base::Random;
use trellis_cluster_protocol::coherence::{Coherence, Protocol};
use trellis_cluster_protocol::node::change::{self, Change, Ending, Order};
use trellis_cluster_protocol::node::{self, GatherStep, Gathering};
use trellis_cluster_protocol::sync::{self, Contribution};
use trellis_cluster_protocol::{Access, Nanoseconds, NodeId, PageRange};

/// The first number of barriers and words of changes.
const FIRST_NUMBER: u64 = 1 << 32;
/// The pause between two looks whether the pages have come.
const POLL_NS: Nanoseconds = 20_000;
/// One of so many waits in a barrier, and for pages, may be too long; one of so many calls is objected to, or differs.
const LATE_ONCE_IN: u64 = 24;
const STUCK_ONCE_IN: u64 = 64;
const OBJECTS_ONCE_IN: u64 = 16;
const DIFFERS_ONCE_IN: u64 = 16;

/// A change under way at one node.
pub(super) struct Changing {
    /// The thread that made the call.
    thread: u8,
    turn: u32,
    change: Change,
    order: Order,
    pages: PageRange,
    protocol: Protocol,
    /// The call of the barrier to which this node came last, and whether all have come.
    barrier: (u32, bool),
    /// This node objects, or was given another change than the others.
    is_refused: bool,
    gathering: Gathering,
    /// The pages for which the last step of gathering waits.
    awaited: Option<PageRange>,
}

impl<S: Start> World<'_, S> {
    /// A thread gives the pages of `range` another protocol, for the n-th time.
    pub(super) fn begin_change(&mut self, node: u16, index: u8, pages: PageRange, turn: u32) -> Result<(), String> {
        // The same at every node.
        let mut random = Random::for_purpose(self.scenario.seed.number, FIRST_NUMBER | u64::from(turn));
        // Threads that lock pages go on doing so.
        let can_lock = self.scenario.protocol.can_lock();
        let choices: Vec<Protocol> =
            Protocol::all().into_iter().filter(|protocol| !can_lock || protocol.can_lock()).collect();
        let (protocol, other) = (random.one_of(&choices), random.one_of(&choices));
        let differs = random.once_in(DIFFERS_ONCE_IN) && node + 1 == self.scenario.founders && node > 0;
        let proposal = (u64::from(turn) + 1) * 2 + u64::from(differs);
        let begun = self.nodes[usize::from(node)].changes.begin(NodeId(node), proposal, FIRST_NUMBER);
        let (change, order) = begun.ok_or("the numbers of barriers are used up")?;
        let changing = Changing {
            thread: index,
            turn,
            change,
            order: order.clone(),
            pages,
            protocol: if differs { other } else { protocol },
            barrier: (0, true),
            is_refused: differs,
            gathering: Gathering::new(pages),
            awaited: None,
        };
        self.nodes[usize::from(node)].changing = Some(changing);
        self.follow(node, order)
    }

    /// The thread that changes a protocol looks whether it can go on.
    pub(super) fn go_on_changing(&mut self, node: u16) -> Result<(), String> {
        let order = self.changing(node).order.clone();
        self.follow(node, order)
    }

    /// A call returned; says whether it was one of a change.
    pub(super) fn returned_to_change(&mut self, node: u16, call: u32, value: u64) -> Result<bool, String> {
        let machine = &mut self.nodes[usize::from(node)];
        if machine.passed.remove(&call) {
            return Ok(true);
        }
        let Some(changing) = &mut machine.changing else { return Ok(false) };
        let waits = machine.threads[usize::from(changing.thread)].doing == Doing::Calling(call);
        if changing.barrier.0 == call {
            changing.barrier.1 = true;
            if waits {
                self.tally.calls += 1;
                self.proceed(node, change::Input::Met)?;
            }
            return Ok(true);
        }
        if waits {
            self.proceed(node, change::Input::Value(value))?;
        }
        Ok(waits)
    }

    /// The thread waits no longer in the barrier of this call, if it still does.
    pub(super) fn times_out(&mut self, node: u16, call: u32) -> Result<(), String> {
        let machine = &self.nodes[usize::from(node)];
        let Some(changing) = &machine.changing else { return Ok(()) };
        let waits = machine.threads[usize::from(changing.thread)].doing == Doing::Calling(call);
        if waits && changing.barrier == (call, false) {
            self.tally.given_up += 1;
            self.recorder.note(self.now, || format!("n{node} waits no longer for a change"));
            self.proceed(node, change::Input::TooLong)?;
        }
        Ok(())
    }

    fn changing(&mut self, node: u16) -> &mut Changing {
        self.nodes[usize::from(node)].changing.as_mut().expect("a change is under way")
    }

    /// The order has ended in this way.
    fn proceed(&mut self, node: u16, input: change::Input) -> Result<(), String> {
        let changing = self.changing(node);
        let order = changing.change.step(input);
        changing.order = order.clone();
        let pages = changing.pages;
        if order == Order::Gather
            && let Some(page) = self.nodes[usize::from(node)].pages.unsettled(pages)
        {
            return Err(format!("all nodes have settled, and a request of node {node} for {page} is under way"));
        }
        self.follow(node, order)
    }

    /// Carries out orders until one has to wait.
    fn follow(&mut self, node: u16, order: Order) -> Result<(), String> {
        match order {
            Order::Barrier(barrier) => self.come_to_barrier(node, barrier),
            Order::WaitAgain(_) => {
                let (call, all_came) = self.changing(node).barrier;
                if all_came {
                    return self.proceed(node, change::Input::Met);
                }
                self.wait_for(node, call);
                Ok(())
            }
            Order::Operate(word, operation) => {
                let call = self.nodes[usize::from(node)].ticket();
                self.wait_for(node, call);
                self.step_sync(node, sync::Input::Operate(word, operation, call))
            }
            Order::Freeze => {
                self.say_due(node)?;
                let (pages, now) = (self.changing(node).pages, self.now);
                let shard = &mut self.nodes[usize::from(node)].pages;
                if self.start.fault() != NodeFault::AsksForFrozen {
                    shard.freeze(pages.first().0..pages.end());
                }
                let objects = shard.locks.in_use(pages, now).is_some() || self.random.once_in(OBJECTS_ONCE_IN);
                self.changing(node).is_refused |= objects;
                self.proceed(node, change::Input::Frozen { objects })
            }
            Order::Settle => self.settle(node),
            Order::Gather => self.gather(node),
            Order::Change => {
                let Changing { pages, protocol, .. } = *self.changing(node);
                self.recorder.note(self.now, || format!("n{node} changes {pages} to {protocol}"));
                if let Some(page) = self.nodes[usize::from(node)].pages.unsettled(pages) {
                    return Err(format!("node {node} changes the protocol of {page}, and its request is under way"));
                }
                for input in self.nodes[usize::from(node)].pages.let_go(pages) {
                    self.step(node, input)?;
                }
                let changed = self.nodes[usize::from(node)].pages.change(pages, protocol);
                changed.map_err(|_| format!("node {node} cannot change the protocol of {pages}"))?;
                self.proceed(node, change::Input::Done)
            }
            Order::Pass(barriers) => {
                for barrier in barriers {
                    let call = self.nodes[usize::from(node)].ticket();
                    self.nodes[usize::from(node)].passed.insert(call);
                    self.step_sync(node, sync::Input::Arrive(barrier, Contribution::Nothing, call))?;
                }
                self.proceed(node, change::Input::Done)
            }
            Order::End(ending) => self.end_change(node, ending),
        }
    }

    fn come_to_barrier(&mut self, node: u16, barrier: u64) -> Result<(), String> {
        let call = self.nodes[usize::from(node)].ticket();
        self.changing(node).barrier = (call, false);
        self.wait_for(node, call);
        // A node that waits too long in the last barrier ends the cluster.
        if !self.changing(node).change.is_in_last_barrier() && self.random.once_in(LATE_ONCE_IN) {
            let at = self.now + self.random.below(40 * self.scenario.wires.latency_ns);
            let thread = self.changing(node).thread;
            self.queue.put(at, Event::GiveUp { node, thread, time_out: call });
        }
        self.step_sync(node, sync::Input::Arrive(barrier, Contribution::Nothing, call))
    }

    fn wait_for(&mut self, node: u16, call: u32) {
        let thread = self.changing(node).thread;
        self.nodes[usize::from(node)].threads[usize::from(thread)].doing = Doing::Calling(call);
    }

    /// Waits until none of this node's requests is under way.
    fn settle(&mut self, node: u16) -> Result<(), String> {
        let pages = self.changing(node).pages;
        let is_settled = self.nodes[usize::from(node)].pages.unsettled(pages).is_none();
        if is_settled || self.start.fault() == NodeFault::ChangesUnsettled {
            return self.proceed(node, change::Input::Done);
        }
        self.look_again(node)
    }

    /// Gets the pages of which this node is the home, one step after the other.
    fn gather(&mut self, node: u16) -> Result<(), String> {
        let Changing { pages, mut gathering, awaited, .. } = *self.changing(node);
        if self.geometry(node).home_of(pages.first()) != NodeId(node) || self.start.fault() == NodeFault::ChangesAway {
            return self.proceed(node, change::Input::Done);
        }
        let shard = &self.nodes[usize::from(node)].pages;
        // As in the runtime, a thread goes on when a page may be stored to, though something about it is under way.
        let is_awaited = |page| shard.protocol.is_pending(page) && shard.protocol.access(page) < Access::Write;
        if awaited.is_some_and(|awaited| awaited.pages().any(is_awaited)) {
            return self.look_again(node);
        }
        let step = gathering.next(shard);
        let awaited = match step {
            GatherStep::Request(wanted) => Some(wanted),
            GatherStep::Await(page, _) => Some(PageRange::one(page)),
            GatherStep::Done => None,
        };
        let changing = self.changing(node);
        (changing.gathering, changing.awaited) = (gathering, awaited);
        match step {
            GatherStep::Done => return self.proceed(node, change::Input::Done),
            GatherStep::Request(wanted) => self.step(node, node::gathering(wanted))?,
            GatherStep::Await(..) if self.start.fault() == NodeFault::GathersTogether => {
                return self.proceed(node, change::Input::Done);
            }
            GatherStep::Await(_, fault) => fault.map_or(Ok(()), |fault| self.step(node, fault))?,
        }
        self.look_again(node)
    }

    /// The thread goes on with the change after a while, or waits no longer.
    fn look_again(&mut self, node: u16) -> Result<(), String> {
        if self.random.once_in(STUCK_ONCE_IN) {
            self.tally.given_up += 1;
            return self.proceed(node, change::Input::TooLong);
        }
        let thread = self.changing(node).thread;
        let state = &mut self.nodes[usize::from(node)].threads[usize::from(thread)];
        state.plan.push(Action::GoOnChanging);
        state.doing = Doing::Thinking;
        self.queue.put(self.now + POLL_NS, Event::Think { node, thread });
        Ok(())
    }

    fn end_change(&mut self, node: u16, ending: Ending) -> Result<(), String> {
        let machine = &mut self.nodes[usize::from(node)];
        let Changing { thread, turn, pages, barrier, is_refused, .. } =
            machine.changing.take().expect("a change is under way");
        machine.changes.end(ending);
        if !barrier.1 {
            machine.passed.insert(barrier.0);
        }
        if self.start.fault() != NodeFault::StaysFrozen {
            machine.pages.thaw();
        }
        let has_changed = match ending {
            Ending::Agreed { objections, .. } => objections == 0,
            Ending::GivenUp { .. } => false,
            Ending::Disagree => {
                return Err(format!("node {node} does not know whether the others have changed {pages}"));
            }
        };
        self.recorder.note(self.now, || format!("n{node} ends change {turn}: {ending:?}"));
        if has_changed && is_refused {
            return Err(format!("node {node} changes {pages}, to which it objected, or otherwise than the others"));
        }
        let others = *self.changed.entry(turn).or_insert(has_changed);
        if others != has_changed {
            return Err(format!("change {turn} of {pages}: some nodes have changed, and others have not"));
        }
        self.wake(node, pages);
        self.go_on(node, thread);
        Ok(())
    }
}
