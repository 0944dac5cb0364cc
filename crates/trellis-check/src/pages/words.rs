//! Descriptions of the actions of a cluster.

use super::actions::{Action, Operation};
use super::cluster::{Cluster, PURPOSES};
use super::{Envelope, Node, Order, PageSet, Pages};

impl<N: Node> Pages<N> {
    /// Carries out `action` and describes it, with all effects of the protocol.
    pub(super) fn tell_action(&mut self, cluster: &mut Cluster, action: Action) -> Vec<String> {
        if action == Action::RetryAll {
            let alarms = self.retries(cluster);
            return alarms.into_iter().flat_map(|alarm| self.tell_action(cluster, alarm)).collect();
        }
        let mut lines = vec![self.headline(cluster, action)];
        let stepped = self.input_of(cluster, action).map(|(node, input)| {
            let before = cluster.nodes[node];
            self.stepped(before, node, input)
        });
        if let Some(Ok(stepped)) = stepped {
            let orders = self.steps.effects(stepped.effects).to_vec();
            lines.extend(orders.into_iter().map(|order| format!("    {}", self.order_text(order))));
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
            Action::Alarm { node, page, purpose } => {
                format!("node {node}: alarm {:?} of {}", PURPOSES[purpose], self.page_index(page))
            }
            Action::RetryAll => "every node that was told to retry does so".to_string(),
            Action::Leave => format!("node {} begins to leave", self.instance.founders()),
            Action::TakeOver { node, page } => format!("node {node} takes over {}", self.page_index(page)),
            Action::Tell { node } => format!("node {node} is told that node {} left", self.instance.founders()),
            Action::Barrier => "all threads meet to change the protocol".to_string(),
            Action::Switch { node } => format!("node {node} changes the protocol"),
            Action::Resume { node, page } => {
                format!("node {node}: resumed {}", self.page_index(page))
            }
            Action::Prefetch { node, wanted, write, announced } => {
                let verb = if announced { "announces" } else { "guesses" };
                let what = if write { "stores" } else { "loads" };
                format!("node {node} {verb} {what}: {wanted}")
            }
        }
    }

    fn order_text(&self, order: Order) -> String {
        match order {
            Order::Revoke(pages) => format!("revoke {}", self.set_text(pages)),
            Order::Downgrade(pages) => format!("downgrade {}", self.set_text(pages)),
            Order::Install { pages, access, zero } => {
                let zero = if zero { ", zero" } else { "" };
                format!("install {} for {access:?}{zero}", self.set_text(pages))
            }
            Order::Upgrade(pages) => format!("upgrade {}", self.set_text(pages)),
            Order::Send(number) => format!("send {}", self.envelope_text(number)),
            Order::Wake(pages) => format!("wake {}", self.set_text(pages)),
            Order::Hold(page) => format!("hold {}", self.page_index(usize::from(page))),
            Order::Alarm { page, purpose } => {
                let page = self.page_index(usize::from(page));
                format!("alarm {:?} of {page}", PURPOSES[usize::from(purpose)])
            }
            Order::Locked { pages, call } => format!("locked {} for thread {call}", self.set_text(pages)),
            Order::Broken(what) => format!("violation: {what}"),
        }
    }

    fn set_text(&self, pages: PageSet) -> String {
        let members = (0..self.instance.pages.len()).filter(|page| pages >> page & 1 != 0);
        let names: Vec<String> = members.map(|page| self.instance.pages[page].to_string()).collect();
        format!("page {}", names.join(" "))
    }

    fn envelope_text(&self, number: u32) -> String {
        let Envelope { from, to, message } = self.envelopes.value(number);
        format!("{}->{} {}", from.0, to.0, message)
    }
}
