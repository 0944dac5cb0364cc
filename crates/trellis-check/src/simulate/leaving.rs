//! Nodes that leave while the others go on, and the coordinator that takes their pages over.
//!
//! Promises: a node leaves as [`Leaving`] says, as in the runtime. When it has left, no message to it or from it is
//! under way. It must never let a node go that holds what another node still needs.

use super::Start;
use super::events::Event;
use super::node::{State, Taker, Thread};
use super::node_faults::NodeFault;
use super::world::World;
use crate::model::Stepping;
use trellis_cluster_protocol::coherence::Input;
use trellis_cluster_protocol::membership::Input as Fact;
use trellis_cluster_protocol::node::{Leaving, Taking, locked};
use trellis_cluster_protocol::sync::Waiter;
use trellis_cluster_protocol::{Nanoseconds, PageRange};

/// The thread that takes pages over, where it waits.
pub(super) const TAKER: Waiter = Waiter::MAX;
/// How often a node that waits looks again.
const POLL_NS: Nanoseconds = 10_000;

impl<S: Start> World<'_, S> {
    /// A thread is done. The last one of a joined node makes the node leave.
    pub(super) fn thread_ended(&mut self, node: u16) -> Result<(), String> {
        let is_joined = node >= self.scenario.founders;
        let state = &mut self.nodes[usize::from(node)];
        if is_joined && self.scenario.faults.leave && state.threads.iter().all(Thread::is_over) {
            state.parts.leaving = Some(Leaving::new(self.scenario.layout.pages()));
            let now = self.now;
            if let Some(range) = locked(&mut self.at(node), now) {
                return Err(format!("node {node} leaves while its program locks {range}"));
            }
            self.members.changing += 1;
            self.recorder.note(self.now, || format!("n{node} wants to leave"));
            self.queue.put(self.now + POLL_NS, Event::Leave { node });
            // A program may announce what it then does not touch.
            let layout = self.scenario.layout;
            let wanted = PageRange::one(layout.page(self.members.random.below(u64::from(layout.places())) as u32));
            self.step(node, wanted.first(), Input::Prefetch { wanted, write: true, announced: true })?;
        }
        self.take_over(node)
    }

    /// The node goes on with its steps as far as it can.
    pub(super) fn advance_leaving(&mut self, node: u16) -> Result<(), String> {
        let Some(mut leaving) = self.nodes[usize::from(node)].parts.leaving else { return Ok(()) };
        let now = self.now;
        let awaited = leaving.go_on(&mut self.at(node), now, 0)?;
        let is_over = awaited.is_none() && self.may_close(node)?;
        self.nodes[usize::from(node)].parts.leaving = (!is_over).then_some(leaving);
        if !is_over {
            self.queue.put(self.now + POLL_NS, Event::Leave { node });
        }
        Ok(())
    }

    /// The process ends when the link has delivered everything that the node sent. Then the others notice that the
    /// connection is closed.
    fn may_close(&mut self, node: u16) -> Result<bool, String> {
        let others = (0..self.nodes.len() as u16).filter(|&other| other != node);
        if others.clone().any(|other| self.members.under_way(node, other) > 0) {
            return Ok(false);
        }
        if let Some(other) = others.clone().find(|&other| self.members.under_way(other, node) > 0) {
            return Err(format!("node {node} has left, and a message of node {other} to it is under way"));
        }
        self.recorder.note(self.now, || format!("n{node} has left"));
        self.end_node(node, State::Left);
        self.members.changing -= 1;
        for other in others {
            let at = self.now + self.members.random.below(4 * self.scenario.wires.latency_ns);
            self.queue.put(at, Event::Lost { node: other, peer: node });
        }
        Ok(true)
    }

    /// The coordinator goes on taking pages over. It does so when pages were named, and when one that its thread waits
    /// for may have come.
    pub(super) fn take_over(&mut self, node: u16) -> Result<(), String> {
        while self.nodes[usize::from(node)].taker == Taker::Ready {
            let mut take_over = std::mem::take(&mut self.nodes[usize::from(node)].parts.take_over);
            let now = self.now;
            let step = take_over.go_on(&mut self.at(node), now, TAKER);
            self.nodes[usize::from(node)].parts.take_over = take_over;
            match step? {
                None => break,
                Some(Taking::Done) => return self.member(node, Fact::TookOver),
                Some(Taking::Announce(wanted)) => {
                    self.step(node, wanted.first(), Input::Prefetch { wanted, write: true, announced: true })?;
                }
                Some(Taking::Page(_)) if self.start.fault() == NodeFault::TakesEarly => {
                    self.nodes[usize::from(node)].parts.take_over.skip_page();
                    self.nodes[usize::from(node)].taker = Taker::Ready;
                }
                Some(Taking::Page(_)) => {}
            }
        }
        Ok(())
    }
}
