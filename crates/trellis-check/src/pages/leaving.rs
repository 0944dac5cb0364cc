//! The last node leaves while the others go on, and node 0 takes over what it leaves behind.
//!
//! Promises: the node carries out the steps of [`LeavingStep`] in their order, and node 0 takes over what
//! [`TakeOver`](trellis_cluster_protocol::node::TakeOver) says. What the membership promises is assumed: a node hears
//! that another departs once all pages were taken, and that it is gone once it has ended; all that was sent to it or by
//! it has arrived before. It must never let the node do anything after its end.

use super::actions::{Action, Operation};
use super::cluster::{Activity, Cluster, THRESHOLD, Thread};
use super::facts::Fact;
use super::{COORDINATOR, Node, Pages};
use crate::model::{Envelope, Layout};
use crate::simulate::NodeFault;
use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::coherence::Input;
use trellis_cluster_protocol::node::{LeavingStep, Taking, left_behind};

/// The number of steps that are over when the pages were named.
const NAMED: usize = 6;
const _: () = assert!(matches!(LeavingStep::ALL[NAMED - 1], LeavingStep::NamePages));

// The possible actions.
impl<N: Node> Pages<N> {
    /// Lists what the node that leaves, and the others because of it, may do.
    pub(super) fn enabled_leaving(&self, cluster: &Cluster, actions: &mut Vec<Action>) {
        let Some(leaver) = self.instance.leaver() else { return };
        if self.can_advance(cluster, leaver) {
            actions.push(Action::Leave);
        }
        let coordinator = usize::from(COORDINATOR.0);
        let taker = cluster.threads[coordinator][usize::from(self.instance.threads)];
        if usize::from(cluster.leaving) >= NAMED && !cluster.is_taken && taker.activity == Activity::Idle {
            actions.push(Action::Take);
        }
        if !cluster.is_taken {
            return;
        }
        let has_ended = self.has_ended(cluster, leaver);
        for node in
            (0..leaver).filter(|&node| cluster.gone >> node & 1 == 0 && !self.is_under_way(cluster, leaver, node))
        {
            match cluster.departed >> node & 1 != 0 {
                false => actions.push(Action::Depart { node }),
                true if has_ended => actions.push(Action::Vanish { node }),
                true => {}
            }
        }
    }

    /// Whether the node has left.
    pub(super) fn has_ended(&self, cluster: &Cluster, node: usize) -> bool {
        self.instance.leaver() == Some(node) && usize::from(cluster.leaving) == LeavingStep::ALL.len()
    }

    fn can_advance(&self, cluster: &Cluster, leaver: usize) -> bool {
        let shown = self.shown(cluster, leaver);
        match LeavingStep::ALL.get(usize::from(cluster.leaving)) {
            Some(step) if cluster.leaving > 0 && self.fault.skipped() == Some(*step) => true,
            Some(LeavingStep::Announce) => {
                let threads = &cluster.threads[leaver];
                threads.iter().all(|thread| thread.activity == Activity::Idle && thread.left == 0)
            }
            Some(LeavingStep::AwaitRequests) => !shown.is_pending.contains(&true),
            Some(LeavingStep::AwaitFarewells) => {
                let mut others = 0..leaver;
                others.all(|node| cluster.departed >> node & 1 != 0 && !self.is_under_way(cluster, node, leaver))
            }
            Some(LeavingStep::AnswerHeld) => shown.held != 0 || shown.alarms[THRESHOLD] == 0,
            // Nobody else leaves, and there is no synchronisation to wait for.
            Some(
                LeavingStep::AwaitTurn
                | LeavingStep::AwaitSynchronisation
                | LeavingStep::AnswerDeferred
                | LeavingStep::NamePages,
            ) => true,
            None => false,
        }
    }

    fn is_under_way(&self, cluster: &Cluster, sender: usize, receiver: usize) -> bool {
        cluster.messages().iter().any(|&number| {
            let Envelope { from, to, .. } = *self.envelopes.value(number);
            (usize::from(from), usize::from(to)) == (sender, receiver)
        })
    }
}

// The effects of actions.
impl<N: Node> Pages<N> {
    /// The last node goes on with its steps as far as it can.
    pub(super) fn leave(&mut self, cluster: &mut Cluster) -> Result<(), String> {
        let leaver = usize::from(self.instance.founders());
        loop {
            let step = LeavingStep::ALL[usize::from(cluster.leaving)];
            match step {
                step if self.fault.skipped() == Some(step) => {}
                LeavingStep::AnswerDeferred => self.happen(cluster, leaver, Fact::AnswersDeferred)?,
                LeavingStep::NamePages => self.name_pages(cluster, leaver),
                LeavingStep::AnswerHeld => {
                    self.happen(cluster, leaver, Fact::LetsGo)?;
                    if self.shown(cluster, leaver).alarms[THRESHOLD] != 0 {
                        return Ok(());
                    }
                }
                _ => {}
            }
            cluster.leaving += 1;
            cluster.memory.retire(leaver as u16);
            if !self.can_advance(cluster, leaver) {
                return Ok(());
            }
        }
    }

    fn name_pages(&mut self, cluster: &mut Cluster, leaver: usize) {
        let mut take_over = self.take_overs.value(cluster.take_over).clone();
        let protocol = &self.nodes.value(cluster.nodes[leaver]).protocol;
        for run in self.instance.runs().filter(|_| self.fault != NodeFault::NamesNothing) {
            let mut next = run.first().0;
            while let Some(behind) = left_behind(protocol, run, next) {
                next = behind.end();
                take_over.name(behind);
            }
        }
        take_over.end();
        cluster.take_over = self.take_overs.number(take_over);
    }

    /// The thread of node 0 that takes pages over takes its next step.
    pub(super) fn take_over(&mut self, cluster: &mut Cluster) -> Result<(), String> {
        let coordinator = usize::from(COORDINATOR.0);
        let mut take_over = self.take_overs.value(cluster.take_over).clone();
        let step = take_over.next_step().expect("the node that leaves has named all its pages");
        cluster.take_over = self.take_overs.number(take_over);
        match step {
            Taking::Done => {
                cluster.is_taken = true;
                Ok(())
            }
            _ if self.fault == NodeFault::TakesNothing => Ok(()),
            Taking::Announce(wanted) => {
                self.step(cluster, coordinator, Input::Prefetch { wanted, write: true, announced: true })
            }
            Taking::Page(page) => {
                let taker = usize::from(self.instance.threads);
                let place = cluster.memory.layout().place(page);
                let operation = Operation { page: place as u8, write: true, asks_write: true, ..Operation::default() };
                cluster.threads[coordinator][taker] = Thread { operation, left: 1, ..Thread::default() };
                self.access(cluster, coordinator, taker)
            }
        }
    }

    /// A node is told that the last node departs, or that it is gone.
    pub(super) fn note_departs(&mut self, cluster: &mut Cluster, node: usize) -> Result<(), String> {
        cluster.departed |= 1 << node;
        self.happen(cluster, node, self.departs())
    }

    pub(super) fn note_vanished(&mut self, cluster: &mut Cluster, node: usize) -> Result<(), String> {
        cluster.gone |= 1 << node;
        self.step(cluster, node, self.gone())
    }

    pub(super) fn departs(&self) -> Fact {
        Fact::Departs(NodeId(self.instance.founders()))
    }

    pub(super) fn gone(&self) -> Input {
        Input::Gone { node: NodeId(self.instance.founders()), successor: COORDINATOR }
    }
}
