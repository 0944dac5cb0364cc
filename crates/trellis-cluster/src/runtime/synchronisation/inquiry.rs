//! Finds out who is in the way of a call whose deadline passed: asks every node and makes a sentence of the answers.
//! The shared heap uses it to find silent nodes.
//!
//! Promises: a sentence names the nodes that hold the object, those that are missing, and those that did not answer.
//! Asking takes no longer than [`Wait::Inquiry`] says. It must never guess: a sentence contains only what a node said.

use trellis_cluster_protocol::sync::{Kind, Standing, Subject};
use trellis_cluster_protocol::{NodeId, PageIndex, node};

use super::{Node, Wait, lock};
use crate::runtime::carrier::NodeCarrier;

/// What the nodes said, including this one, in the order of their numbers.
struct Answers {
    reports: Vec<(NodeId, Standing)>,
    silent: Vec<NodeId>,
}

impl Node {
    /// The nodes or threads for which a call waits, as a part of its sentence.
    pub(in crate::runtime) fn whom(&self, wait: Wait) -> String {
        let subject = |kind, id| Subject { kind, id };
        let page = |page: u64| PageIndex(page as u32);
        match wait {
            Wait::Start | Wait::Inquiry => format!("waiting for {}", self.names(&self.silent_nodes())),
            Wait::Leave => format!("waiting for {}", self.members_missing().join(", ")),
            Wait::ReadFault(at) | Wait::WriteFault(at) | Wait::Fetch(at) | Wait::TakeOver(at) => {
                self.who_has_page(page(at))
            }
            Wait::LockRange(at) => format!("page {at} did not come: {}", self.who_has_page(page(at))),
            Wait::Placement(at) => format!("waiting for {}", self.name_of(self.home_of(page(at)))),
            Wait::Barrier(id) => self.who_has_not_come(id),
            Wait::CountingBarrier(id) => self.who_has_come(id, None),
            Wait::Lock(id) => self.who_has(subject(Kind::Lock, id)),
            Wait::ReadWriteLock(id) => self.who_has(subject(Kind::ReadWriteLock, id)),
            Wait::Once(id) => self.who_has(subject(Kind::Once, id)),
            Wait::Semaphore(id) => self.nobody_has("released", subject(Kind::Semaphore, id)),
            Wait::Event(id) => self.nobody_has("set", subject(Kind::Event, id)),
            Wait::Condition(id) => self.nobody_has("notified", subject(Kind::Condition, id)),
            Wait::Atomic(id) => self.whose_home(id),
            Wait::Publication => self.homes_that_owe_an_answer(),
            Wait::ProtocolChange => "every node must make the same call of set_protocol".to_owned(),
            Wait::Heap => self.who_owes(None),
        }
    }

    /// Which nodes hold a lock or a read-write lock, or do what is done once, and which others wait.
    fn who_has(&self, subject: Subject) -> String {
        let answers = self.ask_around(subject);
        let holders: Vec<String> = answers
            .reports
            .iter()
            .filter(|(_, standing)| standing.holds > 0)
            .map(|&(node, standing)| match standing.holds {
                _ if node == self.me => "another thread of this node".to_owned(),
                1 => self.name_of(node),
                count => format!("{} ({count} times)", self.name_of(node)),
            })
            .collect();
        let verb = if subject.kind == Kind::Once { "do" } else { "hold" };
        let first = match holders.as_slice() {
            [] if answers.silent.is_empty() => "nobody holds it at this moment".to_owned(),
            [] => "nobody who answered holds it".to_owned(),
            [one] if verb == "do" => format!("{one} does it"),
            [one] => format!("{one} holds it"),
            several => format!("{} {verb} it", several.join(" and ")),
        };
        self.with_the_others(first, subject, &answers)
    }

    /// Which nodes have not come to a barrier of all nodes.
    fn who_has_not_come(&self, id: u64) -> String {
        let answers = self.ask_around(Subject { kind: Kind::Barrier, id });
        let missing = answers.reports.iter().filter(|(node, standing)| node.0 < self.founders && standing.waits == 0);
        let mut missing: Vec<NodeId> = missing.map(|(node, _)| *node).collect();
        missing.sort_unstable();
        let silent = answers.silent.iter().filter(|node| node.0 < self.founders).copied().collect::<Vec<_>>();
        let mut parts = Vec::new();
        if !missing.is_empty() {
            parts.push(format!("waiting for {}, which {} not come", self.names(&missing), have(missing.len())));
        }
        if !silent.is_empty() {
            parts.push(format!("{} did not answer", self.names(&silent)));
        }
        if parts.is_empty() {
            return "every node has come to it, and the news is on its way".to_owned();
        }
        parts.join("; ")
    }

    /// How many participants have come to a counting barrier, and from which nodes.
    pub(super) fn who_has_come(&self, id: u64, participants: Option<u32>) -> String {
        let answers = self.ask_around(Subject { kind: Kind::CountingBarrier, id });
        let come = answers.reports.iter().filter(|(_, standing)| standing.waits > 0);
        let come: Vec<(NodeId, u32)> = come.map(|(node, standing)| (*node, standing.waits)).collect();
        let count: u32 = come.iter().map(|(_, count)| count).sum();
        let of: Vec<String> = come.iter().map(|(node, count)| format!("{count} of {}", self.name_of(*node))).collect();
        let all = participants.map_or(String::new(), |all| format!(" of {all}"));
        let first = format!("{count}{all} participants have come ({})", of.join(", "));
        self.add_silent(first, &answers)
    }

    /// Says that no node has done what was waited for, and which others wait.
    fn nobody_has(&self, done: &str, subject: Subject) -> String {
        let answers = self.ask_around(subject);
        self.with_the_others(format!("nobody has {done} it"), subject, &answers)
    }

    fn with_the_others(&self, first: String, subject: Subject, answers: &Answers) -> String {
        let waiting = answers.reports.iter().filter(|(node, standing)| *node != self.me && standing.waits > 0);
        let waiting: Vec<NodeId> = waiting.map(|(node, _)| *node).collect();
        let mut sentence = first;
        if !waiting.is_empty() {
            let verb = if waiting.len() == 1 { "waits" } else { "wait" };
            sentence += &format!("; {} {verb} for it too", self.names(&waiting));
        }
        sentence += &format!("; {}", self.whose_home(subject.id));
        self.add_silent(sentence, answers)
    }

    fn add_silent(&self, sentence: String, answers: &Answers) -> String {
        if answers.silent.is_empty() {
            return sentence;
        }
        format!("{sentence}; {} did not answer", self.names(&answers.silent))
    }

    /// The other nodes that do not answer now.
    pub(in crate::runtime) fn silent_nodes(&self) -> Vec<NodeId> {
        // The object does not matter: no program can have this one.
        self.ask_around(Subject { kind: Kind::Event, id: u64::MAX }).silent
    }

    pub(in crate::runtime) fn names(&self, nodes: &[NodeId]) -> String {
        let names: Vec<String> = nodes.iter().map(|&node| self.name_of(node)).collect();
        names.join(", ")
    }

    /// Asks every present node whether it holds the object or waits for it, and adds this node's answer.
    fn ask_around(&self, subject: Subject) -> Answers {
        let peers: Vec<NodeId> = {
            let members = lock(&self.membership);
            let others = (0..self.nodes).map(NodeId).filter(|&node| node != self.me);
            others.filter(|&node| node.0 < self.founders || members.is_present(node)).collect()
        };
        let ticket = self.waiters.take();
        let own = {
            let mut objects = NodeCarrier { node: self, held: lock(&self.synchronisation) };
            let Ok(()) = node::inquire(&mut objects, subject, peers.iter().copied(), ticket.name());
            objects.held.sync.own_standing(subject)
        };
        self.wait_unseen(None, &ticket, self.now().saturating_add(Wait::Inquiry.limit_ns(&self.config)));
        let asked = lock(&self.synchronisation).sync.conclude(ticket.name());
        let mut answers = Answers { reports: vec![(self.me, own)], silent: Vec::new() };
        for (node, answer) in asked {
            match answer {
                Some(standing) => answers.reports.push((node, standing)),
                None => answers.silent.push(node),
            }
        }
        answers.reports.sort_unstable_by_key(|(node, _)| *node);
        answers
    }
}

fn have(count: usize) -> &'static str {
    if count == 1 { "has" } else { "have" }
}
