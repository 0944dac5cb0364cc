//! Barriers: a tree of fan-out four, arrivals up, the release down.
//!
//! Node 0 is the root and node `n`'s parent is `(n - 1) / 4`: a node says `arrive` to its parent
//! when its own program and everybody below has arrived. With two nodes that is one message each
//! way. Nodes that joined later are not in it. A generation number makes a late message of one use harmless in the next.

use super::{Effect, Message, OBJECTS_MAX, Place, Waiter};
use crate::page::NodeId;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

const FAN_OUT: u16 = 4;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Barriers {
    place: Place,
    barriers: BTreeMap<u64, Barrier>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Barrier {
    generation: u32,
    waiter: Option<Waiter>,
    children: [bool; FAN_OUT as usize],
    reported: bool,
}

impl Barriers {
    pub(super) fn new(place: Place) -> Barriers {
        Barriers { place, barriers: BTreeMap::new() }
    }

    pub(super) fn arrive(&mut self, id: u64, waiter: Waiter, effects: &mut Vec<Effect>) {
        if !self.place.is_founder() {
            let what = "a node that joined later is in no barrier: they are for the nodes that started the cluster; use \
                        locks and atomic words";
            return effects.push(Effect::Refused(waiter, what));
        }
        let Some(barrier) = self.barrier(id) else {
            return effects.push(Effect::Refused(waiter, "too many barriers at this node"));
        };
        if barrier.waiter.is_some() {
            let what = "a second thread of this node entered the barrier; one per node may";
            return effects.push(Effect::Refused(waiter, what));
        }
        barrier.waiter = Some(waiter);
        self.report(id, effects);
    }

    pub(super) fn child_arrived(&mut self, from: NodeId, id: u64, generation: u32, effects: &mut Vec<Effect>) {
        let child = self.children().position(|child| child == from);
        let barrier = self.barrier(id).filter(|barrier| barrier.generation == generation);
        match (barrier, child) {
            (Some(barrier), Some(child)) if !barrier.children[child] => {
                barrier.children[child] = true;
                self.report(id, effects);
            }
            _ => effects.push(Effect::Violation(from, "an arrival out of turn at a barrier")),
        }
    }

    pub(super) fn released(&mut self, from: NodeId, id: u64, generation: u32, effects: &mut Vec<Effect>) {
        let is_parent = self.parent() == Some(from);
        let barrier = self.barriers.get(&id);
        if is_parent && barrier.is_some_and(|b| b.reported && b.generation == generation) {
            self.release(id, effects);
        } else {
            effects.push(Effect::Violation(from, "a release out of turn at a barrier"));
        }
    }

    pub(super) fn missing(&self, id: u64) -> Vec<NodeId> {
        let Some(barrier) = self.barriers.get(&id) else { return Vec::new() };
        if barrier.reported {
            return self.parent().into_iter().collect();
        }
        let late = self.children().enumerate().filter(|(index, _)| !barrier.children[*index]);
        late.map(|(_, child)| child).collect()
    }

    /// Goes up, or down again at the root, once everybody here and below has arrived.
    fn report(&mut self, id: u64, effects: &mut Vec<Effect>) {
        let children = self.children().count();
        let parent = self.parent();
        let barrier = self.barriers.get_mut(&id).expect("a barrier in use");
        if barrier.waiter.is_none() || barrier.children[..children].contains(&false) {
            return;
        }
        barrier.reported = true;
        match parent {
            Some(parent) => {
                let message = Message::BarrierArrive(id, barrier.generation);
                effects.push(Effect::Send(parent, message));
            }
            None => self.release(id, effects),
        }
    }

    fn release(&mut self, id: u64, effects: &mut Vec<Effect>) {
        let barrier = self.barriers.get_mut(&id).expect("a barrier in use");
        let generation = barrier.generation;
        let waiter = barrier.waiter.take().expect("released after the program arrived");
        *barrier = Barrier { generation: generation.wrapping_add(1), ..Barrier::default() };
        for child in self.children() {
            effects.push(Effect::Send(child, Message::BarrierRelease(id, generation)));
        }
        effects.push(Effect::Wake(waiter, 0));
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
