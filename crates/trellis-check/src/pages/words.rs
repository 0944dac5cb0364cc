//! Descriptions of the actions of a cluster.

use super::actions::{Action, Operation};
use super::cluster::Cluster;
use super::{COORDINATOR, Node, Pages};
use crate::model::Envelope;
use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::node::Order;

impl<N: Node> Pages<N> {
    /// Carries out `action` and describes it, with all effects of the protocol.
    pub(super) fn tell_action(&mut self, cluster: &mut Cluster, action: Action) -> Vec<String> {
        if action == Action::RetryAll {
            let alarms = self.retries(cluster);
            return alarms.into_iter().flat_map(|alarm| self.tell_action(cluster, alarm)).collect();
        }
        let mut lines = vec![self.headline(cluster, action)];
        if let Some((node, fact)) = self.fact_of(cluster, action) {
            let mut shard = self.nodes.value(cluster.nodes[node]).clone();
            // What went wrong is told when the action is carried out.
            let _ = self.apply(&mut shard, NodeId(node as u16), fact, &mut |effect, order| {
                let word = if order == Order::Nothing { "not done: " } else { "" };
                lines.push(format!("    {word}{effect}"));
            });
        }
        if let Err(what) = self.act(cluster, action) {
            lines.push(format!("    ! {what}"));
        }
        lines
    }

    fn headline(&self, cluster: &Cluster, action: Action) -> String {
        let of_thread = |node: usize, thread: usize, verb: &str, operation: Operation| {
            let what = match (operation.lock, operation.write) {
                (true, _) => "lock",
                (_, true) => "store to",
                (_, false) => "load from",
            };
            let page = self.page_index(usize::from(operation.page));
            let mut text = format!("node {node} thread {thread} {verb}: {what} {page}");
            if operation.asks_write && !operation.write {
                text += ", asks for the right to store";
            }
            if operation.wide {
                text += ", asks for all pages";
            }
            text
        };
        match action {
            Action::Deliver(number) => format!("arrives: {}", self.envelope_text(number)),
            Action::Begin { node, thread, operation } => of_thread(node, thread, "begins", operation),
            Action::Submit { node, thread } => {
                of_thread(node, thread, "reports its fault", cluster.threads[node][thread].operation)
            }
            Action::Look { node, thread } => {
                of_thread(node, thread, "looks again", cluster.threads[node][thread].operation)
            }
            Action::Change { node, thread } => {
                of_thread(node, thread, "changes and unlocks", cluster.threads[node][thread].operation)
            }
            Action::Abandon { node, thread } => {
                of_thread(node, thread, "gives up or comes too late", cluster.threads[node][thread].operation)
            }
            Action::Due { node, due } => format!("node {node} {due}"),
            Action::RetryAll => "every node that was told to retry does so".to_string(),
            Action::Leave => format!("node {} goes on leaving", self.instance.founders()),
            Action::Take => format!("node {} goes on taking pages over", COORDINATOR.0),
            Action::Depart { node } => format!("node {node} is told that node {} departs", self.instance.founders()),
            Action::Vanish { node } => format!("node {node} is told that node {} left", self.instance.founders()),
            Action::Gather { node, page } => format!("node {node} gets {}", self.page_index(page)),
            Action::Barrier => "all threads meet to change the protocol".to_string(),
            Action::Switch { node } => format!("node {node} changes the protocol"),
            Action::Prefetch { node, wanted, write, announced } => {
                let verb = if announced { "announces" } else { "guesses" };
                let what = if write { "stores" } else { "loads" };
                format!("node {node} {verb} {what}: {wanted}")
            }
        }
    }

    fn envelope_text(&self, number: u32) -> String {
        let Envelope { from, to, message } = self.envelopes.value(number);
        format!("{from}->{to} {message}")
    }
}
