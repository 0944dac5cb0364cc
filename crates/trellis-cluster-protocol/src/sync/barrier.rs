//! Barriers: a tree of fan-out four. Arrivals go up and the release goes down, and with them a value from every node.
//!
//! Node 0 is the root, and the parent of node `n` is `(n - 1) / 4`. A node sends `arrive` to its parent when its own
//! program and every node below it have arrived. With two nodes that is one message in each direction. Nodes that joined
//! later are not in the tree. A generation number makes a late message of one use harmless in the next.
//!
//! An arrival stands: a call whose deadline passed leaves its node in the barrier. The node's next call for the same
//! barrier continues the wait, or returns at once if the barrier has opened in the meantime.

use super::{ABANDONED, Contribution, Effect, Message, OBJECTS_MAX, Place, Waiter};
use crate::page::NodeId;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

const FAN_OUT: u16 = 4;
const MIXED: &str =
    "the nodes came to this barrier with different reductions; give the same reduction, or none, in every node";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Barriers {
    place: Place,
    barriers: BTreeMap<u64, Barrier>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Barrier {
    generation: u32,
    /// This node's program has arrived, with this contribution.
    own: Option<Contribution>,
    /// The call that waits for it; `None` if it was abandoned.
    waiter: Option<Waiter>,
    children: [Option<Contribution>; FAN_OUT as usize],
    reported: bool,
    /// The barrier opened, with this result, for a call that had been abandoned.
    opened: Option<Contribution>,
}

impl Barriers {
    pub(super) fn new(place: Place) -> Barriers {
        Barriers { place, barriers: BTreeMap::new() }
    }

    pub(super) fn arrive(&mut self, id: u64, own: Contribution, waiter: Waiter, effects: &mut Vec<Effect>) {
        if !self.place.is_founder() {
            let what = "a node that joined later is in no barrier of all nodes: they are for the nodes that started the \
                        cluster; use a counting barrier, locks and atomic words";
            return effects.push(Effect::Refused(waiter, what));
        }
        let Some(barrier) = self.barrier(id) else {
            return effects.push(Effect::Refused(waiter, "too many barriers at this node"));
        };
        if let Some(result) = barrier.opened.take() {
            return effects.push(outcome(waiter, result));
        }
        if barrier.waiter.is_some() {
            let what = "a second thread of this node entered the barrier; one per node may";
            return effects.push(Effect::Refused(waiter, what));
        }
        barrier.waiter = Some(waiter);
        if barrier.own.is_none() {
            barrier.own = Some(own);
            self.report(id, effects);
        }
    }

    pub(super) fn abandon(&mut self, id: u64, waiter: Waiter, effects: &mut Vec<Effect>) {
        let Some(barrier) = self.barriers.get_mut(&id).filter(|barrier| barrier.waiter == Some(waiter)) else { return };
        barrier.waiter = None;
        effects.push(Effect::Refused(waiter, ABANDONED));
    }

    pub(super) fn child_arrived(
        &mut self,
        from: NodeId,
        id: u64,
        generation: u32,
        brought: Contribution,
        effects: &mut Vec<Effect>,
    ) {
        let child = self.children().position(|child| child == from);
        let barrier = self.barrier(id).filter(|barrier| barrier.generation == generation);
        match (barrier, child) {
            (Some(barrier), Some(child)) if barrier.children[child].is_none() => {
                barrier.children[child] = Some(brought);
                self.report(id, effects);
            }
            _ => effects.push(Effect::Violation(from, "an arrival out of turn at a barrier")),
        }
    }

    pub(super) fn released(
        &mut self,
        from: NodeId,
        id: u64,
        generation: u32,
        result: Contribution,
        effects: &mut Vec<Effect>,
    ) {
        let is_parent = self.parent() == Some(from);
        let barrier = self.barriers.get(&id);
        if is_parent && barrier.is_some_and(|b| b.reported && b.generation == generation) {
            self.release(id, result, effects);
        } else {
            effects.push(Effect::Violation(from, "a release out of turn at a barrier"));
        }
    }

    pub(super) fn missing(&self, id: u64) -> Vec<NodeId> {
        let Some(barrier) = self.barriers.get(&id) else { return Vec::new() };
        if barrier.reported {
            return self.parent().into_iter().collect();
        }
        let late = self.children().enumerate().filter(|(index, _)| barrier.children[*index].is_none());
        late.map(|(_, child)| child).collect()
    }

    /// The use of the barrier that this node is in, or enters next.
    pub(super) fn generation(&self, id: u64) -> u32 {
        self.barriers.get(&id).map_or(0, |barrier| barrier.generation)
    }

    /// Whether this node's program has arrived at that use of the barrier, or at a later one.
    pub(super) fn has_come(&self, id: u64, generation: u32) -> bool {
        let Some(barrier) = self.barriers.get(&id) else { return false };
        // A node is at most one use ahead of another; the difference wraps around with the number.
        let ahead = barrier.generation.wrapping_sub(generation) as i32;
        ahead > 0 || ahead == 0 && barrier.own.is_some()
    }

    /// Sends the arrival up, or at the root the release down, once this node and every node below have arrived.
    fn report(&mut self, id: u64, effects: &mut Vec<Effect>) {
        let children = self.children().count();
        let parent = self.parent();
        let barrier = self.barriers.get_mut(&id).expect("a barrier in use");
        let below = barrier.children[..children].iter().copied();
        let Some(brought) = below.fold(barrier.own, |sum, child| Some(sum?.combine(child?))) else { return };
        barrier.reported = true;
        match parent {
            Some(parent) => {
                let message = Message::BarrierArrive(id, barrier.generation, brought);
                effects.push(Effect::Send(parent, message));
            }
            None => self.release(id, brought, effects),
        }
    }

    fn release(&mut self, id: u64, result: Contribution, effects: &mut Vec<Effect>) {
        let barrier = self.barriers.get_mut(&id).expect("a barrier in use");
        debug_assert!(barrier.own.is_some(), "released after the program arrived");
        let generation = barrier.generation;
        let waiter = barrier.waiter.take();
        *barrier = Barrier { generation: generation.wrapping_add(1), ..Barrier::default() };
        if waiter.is_none() {
            barrier.opened = Some(result);
        }
        for child in self.children() {
            effects.push(Effect::Send(child, Message::BarrierRelease(id, generation, result)));
        }
        effects.extend(waiter.map(|waiter| outcome(waiter, result)));
    }

    fn parent(&self) -> Option<NodeId> {
        self.place.me.0.checked_sub(1).map(|below| NodeId(below / FAN_OUT))
    }

    fn children(&self) -> impl Iterator<Item = NodeId> + use<> {
        let first = u32::from(self.place.me.0) * u32::from(FAN_OUT) + 1;
        let founders = u32::from(self.place.founders);
        (first..(first + u32::from(FAN_OUT)).min(founders)).map(|child| NodeId(child as u16))
    }

    fn barrier(&mut self, id: u64) -> Option<&mut Barrier> {
        if self.barriers.len() >= OBJECTS_MAX && !self.barriers.contains_key(&id) {
            return None;
        }
        Some(self.barriers.entry(id).or_default())
    }
}

/// The result that a call gets from a barrier that opened.
fn outcome(waiter: Waiter, result: Contribution) -> Effect {
    match result {
        Contribution::Nothing => Effect::Wake(waiter, 0),
        Contribution::Value(_, value) => Effect::Wake(waiter, value),
        Contribution::Mixed => Effect::Refused(waiter, MIXED),
    }
}
