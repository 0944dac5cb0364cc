//! Tells in words what happens in a cluster.

use super::{Action, Cluster, Envelope, Node, Operation, Order, PageSet, Pages};
use trellis_protocol::coherence::{Content, Message};
use trellis_protocol::{Access, PageRange};

impl<N: Node> Pages<N> {
    /// Carries out `action` and tells it, with everything that the protocol ordered.
    pub(super) fn tell_action(&mut self, cluster: &mut Cluster, action: Action) -> Vec<String> {
        let mut lines = vec![self.headline(cluster, action)];
        let stepped = self.last_input(cluster, action).map(|(node, input)| {
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

    fn last_input(&self, cluster: &Cluster, action: Action) -> Option<(usize, trellis_protocol::coherence::Input)> {
        use trellis_protocol::coherence::Input;
        let fault = |node: usize, operation: Operation| {
            let page = self.page_index(usize::from(operation.page));
            let wish = self.wish(operation.page, operation.wide);
            (node, Input::Fault { page, write: operation.asks_write, wish })
        };
        let retires = |node: usize, operation: Operation| {
            let needed = if operation.write { Access::Write } else { Access::Read };
            cluster.places[node][usize::from(operation.page)].access >= needed
        };
        match action {
            Action::Deliver(number) => {
                let Envelope { from, to, message } = *self.envelopes.value(number);
                Some((usize::from(to.0), Input::Message { from, message }))
            }
            Action::Begin { node, operation, .. } => {
                let silent = retires(node, operation) || self.instance.late_faults;
                (!silent).then(|| fault(node, operation))
            }
            Action::Look { node, thread } => {
                let operation = cluster.threads[node][thread].operation;
                let silent = retires(node, operation) || self.instance.late_faults;
                (!silent).then(|| fault(node, operation))
            }
            Action::Submit { node, thread } => Some(fault(node, cluster.threads[node][thread].operation)),
            Action::Resume { node, page } => Some((node, Input::Resumed { page: self.page_index(page) })),
            Action::Prefetch { node, wish, write, announced } => {
                Some((node, Input::Prefetch { wish, write, announced }))
            }
        }
    }

    fn headline(&self, cluster: &Cluster, action: Action) -> String {
        let of_thread = |node: usize, thread: usize, verb: &str, operation: Operation| {
            let what = if operation.write { "store to" } else { "load from" };
            let page = self.page_index(usize::from(operation.page));
            let mut text = format!("node {node} thread {thread} {verb}: {what} {page}");
            if operation.asks_write && !operation.write {
                text += ", asks for the right to store";
            }
            if operation.wide {
                text += ", wishes for all";
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
            Action::Resume { node, page } => {
                format!("node {node}: resumed {}", self.page_index(page))
            }
            Action::Prefetch { node, wish, write, announced } => {
                let verb = if announced { "announces" } else { "guesses" };
                let what = if write { "stores" } else { "loads" };
                format!("node {node} {verb} {what}: {wish}")
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
        format!("{}->{} {}", from.0, to.0, message_text(message))
    }
}

fn message_text(message: &Message) -> String {
    let run = |name: &str, range: PageRange, write: bool| {
        format!("{name} {range} for {}", if write { "stores" } else { "loads" })
    };
    match *message {
        Message::Request { demand, range, write, announced } => {
            let announced = if announced { ", announced" } else { "" };
            format!("{} ({demand} waited for{announced})", run("request", range, write))
        }
        Message::Forward { range, write, requester, after, sequence, .. } => {
            let text = run("forward", range, write);
            format!("{text} to {requester}, after {after}, number {sequence}")
        }
        Message::Grant { range, write, content, sequence, .. } => {
            let content = match content {
                Content::Kept => "kept",
                Content::Zero => "zero",
                Content::Bytes => "with bytes",
            };
            format!("{}, {content}, number {sequence}", run("grant", range, write))
        }
        Message::Confirm { range, .. } => format!("confirm {range}"),
        Message::Invalidate { page } => format!("invalidate {page}"),
        Message::Invalidated { page } => format!("invalidated {page}"),
    }
}
