//! Changes of the protocol of pages by all nodes together, while other threads use the pages.
//!
//! One thread of each founder makes the calls. The real [`PageChange`] decides, with the real barriers and words. A thread may wait too long in a barrier, a node may object, and one may be
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
use std::ops::Range;
use trellis_base::Random;
use trellis_cluster_protocol::coherence::{Coherence, Protocol};
use trellis_cluster_protocol::node::change::{Ending, Input};
use trellis_cluster_protocol::node::{self, Next, PageChange, Shard};
use trellis_cluster_protocol::sync::{self, Contribution};
use trellis_cluster_protocol::{Access, Nanoseconds, NodeId, PageIndex, PageRange, runs};

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
    change: PageChange,
    pages: Range<u32>,
    protocol: Protocol,
    /// The call of the barrier to which this node came last, and whether all have come.
    barrier: (u32, bool),
    /// This node objects, or was given another change than the others.
    is_refused: bool,
    /// The pages for which the thread waits.
    awaited: PageRange,
}

impl<S: Start> World<'_, S> {
    /// A thread gives `pages` another protocol, for the n-th time.
    pub(super) fn begin_change(&mut self, node: u16, index: u8, pages: Range<u32>, turn: u32) -> Result<(), String> {
        // The same at every node.
        let mut random = Random::for_purpose(self.scenario.seed.number, FIRST_NUMBER | u64::from(turn));
        // Threads that lock pages go on doing so.
        let can_lock = self.scenario.protocol.can_lock();
        let choices: Vec<Protocol> =
            Protocol::all().into_iter().filter(|protocol| !can_lock || protocol.can_lock()).collect();
        let (protocol, other) = (random.one_of(&choices), random.one_of(&choices));
        let differs = random.once_in(DIFFERS_ONCE_IN) && node + 1 == self.scenario.founders && node > 0;
        let proposal = (u64::from(turn) + 1) * 2 + u64::from(differs);
        let protocol = if differs { other } else { protocol };
        let (changes, what) = (self.nodes[usize::from(node)].parts.changes, (pages.clone(), protocol));
        let begun = PageChange::begin(&changes, NodeId(node), what, proposal, FIRST_NUMBER);
        let (change, next) = begun.ok_or("the numbers of barriers are used up")?;
        let (barrier, is_refused) = ((0, true), differs);
        let awaited = PageRange::one(PageIndex(pages.start));
        let changing = Changing { thread: index, turn, change, pages, protocol, barrier, is_refused, awaited };
        self.nodes[usize::from(node)].changing = Some(changing);
        self.follow(node, next)
    }

    /// The thread that changes a protocol looks whether it can go on. As in the runtime, it does so when a page may be stored
    /// to, though something about it is under way.
    pub(super) fn go_on_changing(&mut self, node: u16) -> Result<(), String> {
        let awaited = self.changing(node).awaited;
        let shard = self.nodes[usize::from(node)].parts.shard(awaited.first());
        let is_awaited = |page| shard.protocol.is_pending(page) && shard.protocol.access(page) < Access::Write;
        match awaited.pages().any(is_awaited) {
            true => self.look_again(node),
            false => self.proceed(node, Input::Done),
        }
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
                self.proceed(node, Input::Met)?;
            }
            return Ok(true);
        }
        if waits {
            self.proceed(node, Input::Value(value))?;
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
            self.proceed(node, Input::TooLong)?;
        }
        Ok(())
    }

    fn changing(&mut self, node: u16) -> &mut Changing {
        self.nodes[usize::from(node)].changing.as_mut().expect("a change is under way")
    }

    /// The last step of the change has ended in this way.
    fn proceed(&mut self, node: u16, input: Input) -> Result<(), String> {
        let mut changing = self.nodes[usize::from(node)].changing.take().expect("a change is under way");
        let now = self.now;
        let next = changing.change.go_on(&mut self.at(node), now, input, 0);
        let has_settled = changing.change.has_settled();
        self.nodes[usize::from(node)].changing = Some(changing);
        if has_settled {
            self.check_settled(node)?;
        }
        self.follow(node, next?)
    }

    fn check_settled(&mut self, node: u16) -> Result<(), String> {
        let pages = self.changing(node).pages.clone();
        let node_of = &self.nodes[usize::from(node)];
        let unsettled = runs(pages).find_map(|run| node_of.parts.shard(run.first()).unsettled(run));
        let what = |page| format!("node {node} says that nothing is under way, and its request for {page} is");
        unsettled.map_or(Ok(()), |page| Err(what(page)))
    }

    /// Does what the change needs next.
    fn follow(&mut self, node: u16, next: Next) -> Result<(), String> {
        match next {
            Next::Barrier(barrier) => self.come_to_barrier(node, barrier),
            Next::Again(_) => {
                let (call, all_came) = self.changing(node).barrier;
                if all_came {
                    return self.proceed(node, Input::Met);
                }
                self.wait_for(node, call);
                Ok(())
            }
            Next::Operate(word, operation) => {
                let call = self.nodes[usize::from(node)].ticket();
                self.wait_for(node, call);
                self.synchronise(node, sync::Input::Operate(word, operation, call))
            }
            Next::Object(locked) => {
                if self.start.fault() == NodeFault::AsksForFrozen {
                    self.nodes[usize::from(node)].parts.shards.iter_mut().for_each(Shard::thaw);
                }
                let objects = locked.is_some() || self.random.once_in(OBJECTS_ONCE_IN);
                self.changing(node).is_refused |= objects;
                self.proceed(node, Input::Frozen { objects })
            }
            Next::Page(page) => {
                let is_gathering = self.changing(node).change.is_gathering();
                let fault = if is_gathering { NodeFault::GathersTogether } else { NodeFault::ChangesUnsettled };
                self.await_pages(node, PageRange::one(page), fault)
            }
            Next::Gather(wanted) => {
                if self.start.fault() != NodeFault::ChangesAway {
                    self.step(node, wanted.first(), node::gathering(wanted))?;
                }
                self.await_pages(node, wanted, NodeFault::ChangesAway)
            }
            Next::Publish => self.proceed(node, Input::Done),
            Next::Prepare => {
                let (pages, protocol) = (self.changing(node).pages.clone(), self.changing(node).protocol);
                self.recorder.note(self.now, || format!("n{node} changes {pages:?} to {protocol}"));
                self.check_settled(node)?;
                self.proceed(node, Input::Done)
            }
            Next::Pass(barriers) => {
                for barrier in barriers {
                    let call = self.nodes[usize::from(node)].ticket();
                    self.nodes[usize::from(node)].passed.insert(call);
                    self.synchronise(node, sync::Input::Arrive(barrier, Contribution::Nothing, call))?;
                }
                self.proceed(node, Input::Done)
            }
            Next::End(ending) => self.end_change(node, ending),
        }
    }

    /// The thread waits for pages, unless the node has this fault.
    fn await_pages(&mut self, node: u16, pages: PageRange, fault: NodeFault) -> Result<(), String> {
        self.changing(node).awaited = pages;
        if self.start.fault() == fault {
            self.changing(node).change.skip_pages();
            return self.proceed(node, Input::Done);
        }
        self.look_again(node)
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
        self.synchronise(node, sync::Input::Arrive(barrier, Contribution::Nothing, call))
    }

    fn wait_for(&mut self, node: u16, call: u32) {
        let thread = self.changing(node).thread;
        self.nodes[usize::from(node)].threads[usize::from(thread)].doing = Doing::Calling(call);
    }

    /// The thread goes on with the change after a while, or waits no longer.
    fn look_again(&mut self, node: u16) -> Result<(), String> {
        if self.random.once_in(STUCK_ONCE_IN) {
            self.tally.given_up += 1;
            return self.proceed(node, Input::TooLong);
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
        machine.parts.changes.end(ending);
        if !barrier.1 {
            machine.passed.insert(barrier.0);
        }
        let has_changed = match ending {
            Ending::Agreed { objections, .. } => objections == 0,
            Ending::GivenUp { .. } => false,
            Ending::Disagree => {
                return Err(format!("node {node} does not know whether the others have changed {pages:?}"));
            }
        };
        self.recorder.note(self.now, || format!("n{node} ends change {turn}: {ending:?}"));
        if has_changed && is_refused {
            return Err(format!("node {node} changes {pages:?}, to which it objected, or otherwise than the others"));
        }
        let others = *self.changed.entry(turn).or_insert(has_changed);
        if others != has_changed {
            return Err(format!("change {turn} of {pages:?}: some nodes have changed, and others have not"));
        }
        if self.start.fault() != NodeFault::StaysFrozen {
            node::thaw(&mut self.at(node), pages)?;
        }
        self.go_on(node, thread);
        Ok(())
    }
}
