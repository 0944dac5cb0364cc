//! Carries out the effects of a step at a node of the model.
//!
//! Promises: a message leaves with the notices that its node attaches, unless the instance has a fault. It must never
//! decide anything.

use super::{Envelope, World};
use crate::model;
use crate::world::Piece;
use trellis_cluster_protocol::coherence::{self, Running};
use trellis_cluster_protocol::heap::Answer;
use trellis_cluster_protocol::node::{self, Carrier, Effects, Order, Parts, Releases, Shard};
use trellis_cluster_protocol::sync::Waiter;
use trellis_cluster_protocol::{Nanoseconds, NodeId, membership, wire};

/// A node that takes a step.
pub(super) struct Acting<'a> {
    pub(super) world: &'a mut World,
    pub(super) node: u16,
}

/// A shard of a node without pages: there is none.
pub(super) enum NoShard {}

impl Carrier for NoShard {
    type Protocol = Running;
    type Attached = ();
    type Breach = String;

    fn shard(&mut self) -> &mut Shard<Running> {
        match *self {}
    }

    fn decide(&mut self, _: coherence::Input, _: &mut Vec<coherence::Effect>) {
        match *self {}
    }

    fn order(&mut self, _: coherence::Effect) -> Order {
        match *self {}
    }

    fn carry_out(&mut self, _: Order, (): ()) -> Result<(), String> {
        match *self {}
    }

    fn send_diffs(&mut self, _: coherence::Message, _: impl Iterator<Item = NodeId>, (): ()) -> Result<(), String> {
        match *self {}
    }
}

impl Parts for Acting<'_> {
    type Held<'a>
        = NoShard
    where
        Self: 'a;
    type Breach = String;

    fn shards(&self) -> u32 {
        0
    }

    fn hold(&mut self, shard: u32) -> NoShard {
        unreachable!("there is no shard {shard}")
    }
}

impl Effects for Acting<'_> {
    type Protocol = Running;

    fn node(&mut self) -> &mut node::Node<Running> {
        &mut self.world.nodes[usize::from(self.node)]
    }

    fn now(&self) -> Nanoseconds {
        0
    }

    fn takes(&mut self, input: &node::Input) -> bool {
        !self.world.passes_over(self.node, input)
    }

    fn heeds(&mut self, effect: membership::Effect) -> Result<bool, String> {
        Err(format!("node {} watches nobody, and reports {effect:?}", self.node))
    }

    fn send(&mut self, to: NodeId, message: wire::Message, knowledge: Vec<u8>) -> Result<(), String> {
        if to.0 == self.node {
            return Err(format!("node {} writes to itself", self.node));
        }
        for (to, message) in self.world.instance.fault.sends(self.node, to, message) {
            let envelope = Envelope { from: self.node, to: to.0, message: (message, knowledge.clone()) };
            self.world.network.push(Piece::new(envelope));
        }
        Ok(())
    }

    fn attached(&mut self, to: NodeId, message: &wire::Message) -> Vec<u8> {
        let mut knowledge = Vec::new();
        if !self.world.instance.fault.sends_alone(message) {
            self.consistency().knowledge.intervals.append_notices(to, &mut knowledge);
        }
        knowledge
    }

    fn wake(&mut self, waiter: Waiter, _value: u64) -> Result<(), String> {
        Err(format!("node {} wakes {waiter}, which uses no object", self.node))
    }

    fn answer(&mut self, waiter: Waiter, answer: Answer) -> Result<(), String> {
        self.world.answer(self.node, waiter, answer)
    }

    fn breach(&mut self, by: Option<NodeId>, what: &'static str) -> Result<(), String> {
        Err(model::breach(self.node, by, what))
    }
}
