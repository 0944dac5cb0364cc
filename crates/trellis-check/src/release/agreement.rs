//! What must hold when all nodes change the protocol of pages together; computed beside a run.
//!
//! 1. *All or none*: where one node's change ended as agreed, that of every other node did so with as many objections.
//! 2. *Nothing is changed too early*: when the first node changes its own choice, the homes of others have their pages, and
//!    no other node has a request under way.
//! 3. *Progress*: where no node objected, made another change or waited too long, all change.
//! 4. A node whose ending may differ from that of others ends the cluster, and only after a wait that was too long.
//!
//! It must never inspect a change: it uses events, and what nodes have.

use super::effects::Event;
use super::node::Node;
use super::{Operation, Script, Setup};
use trellis_cluster_protocol::coherence::Coherence;
use trellis_cluster_protocol::node::change::Ending;
use trellis_cluster_protocol::runs;

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Agreement {
    /// By thread: how its changes ended so far. Empty if there are none.
    endings: Vec<Vec<Ending>>,
    /// A node does not know whether others have changed, and has ended the cluster.
    pub(super) has_failed: bool,
    /// The changes that need not take place, one bit each: a node objected, or makes another one.
    hindered: u8,
    /// A wait for a change was too long.
    is_late: bool,
    /// So many changes are over for some node, or are carried out by it.
    begun: usize,
}

impl Agreement {
    /// Before the first change.
    pub(super) fn new(setup: &Setup) -> Agreement {
        let all: Vec<Vec<u8>> = setup.scripts.iter().map(changes).filter(|changes| !changes.is_empty()).collect();
        let is_different = |call: &usize| all.iter().any(|changes| changes.get(*call) != all[0].get(*call));
        let calls = all.iter().map(Vec::len).max().unwrap_or(0);
        let hindered = (0..calls).filter(is_different).fold(0, |different, call| different | 1 << call);
        let endings = vec![Vec::new(); if all.is_empty() { 0 } else { setup.scripts.len() }];
        Agreement { endings, has_failed: false, hindered, is_late: false, begun: 0 }
    }

    /// Applies an event.
    ///
    /// # Errors
    ///
    /// The nodes do not agree.
    pub(super) fn note(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Objects { thread } => self.hindered |= 1 << self.call(thread),
            Event::TooLong { .. } => self.is_late = true,
            Event::Ended { thread, ending } => {
                let call = self.call(thread);
                self.endings[usize::from(thread)].push(ending);
                self.has_failed |= ending == Ending::Disagree;
                self.check(thread, call, ending)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The thread's node has changed its own choice of the protocol of these pages.
    ///
    /// # Errors
    ///
    /// Another node was not ready for that.
    pub(super) fn check_pages<'a>(
        &mut self,
        setup: &Setup,
        thread: u8,
        number: u8,
        nodes: impl Iterator<Item = &'a Node>,
    ) -> Result<(), String> {
        let call = self.call(thread);
        if call < self.begun {
            return Ok(());
        }
        self.begun = call + 1;
        let me = setup.scripts[usize::from(thread)].node;
        let (pages, _) = setup.changes[usize::from(number)].clone();
        for node in nodes.filter(|node| node.me != me) {
            for run in runs(pages.clone()) {
                let shard = node.parts.shard(run.first());
                if let Some(page) = shard.unsettled(run) {
                    return Err(format!(
                        "node {me} changes, and a request of node {} for {page} is under way",
                        node.me
                    ));
                }
                let is_away = |page| shard.is_home_of(page) && !shard.protocol.may_hand_over(page);
                if let Some(page) = run.pages().find(|&page| is_away(page)) {
                    return Err(format!("node {me} changes before {page} is at its home, node {}", node.me));
                }
            }
        }
        Ok(())
    }

    /// The number of the change that the thread makes, or makes next.
    fn call(&self, thread: u8) -> usize {
        self.endings[usize::from(thread)].len()
    }

    fn check(&self, thread: u8, call: usize, ending: Ending) -> Result<(), String> {
        let is_hindered = self.hindered >> call & 1 != 0 || self.is_late;
        if !is_hindered && !matches!(ending, Ending::Agreed { objections: 0, .. }) {
            return Err(format!("thread {thread} does not change, and nothing hinders it: {ending:?}"));
        }
        if ending == Ending::Disagree && !self.is_late {
            return Err(format!("thread {thread} does not know what others do, and no wait was too long"));
        }
        let mut others =
            self.endings.iter().enumerate().filter_map(|(other, endings)| Some((other, *endings.get(call)?)));
        match others.find(|(_, theirs)| differ(ending, *theirs)) {
            Some((other, theirs)) => Err(format!(
                "change {call} of thread {thread} ends with {ending:?}, and that of thread {other} with {theirs:?}"
            )),
            None => Ok(()),
        }
    }
}

/// The changes that a thread makes.
fn changes(script: &Script) -> Vec<u8> {
    let number = |operation: &Operation| match operation {
        Operation::Change(number) => Some(*number),
        _ => None,
    };
    script.operations.iter().filter_map(number).collect()
}

/// Whether the changes of two nodes must not end like this.
fn differ(one: Ending, other: Ending) -> bool {
    match (one, other) {
        (Ending::Disagree, _) | (_, Ending::Disagree) => false,
        (Ending::Agreed { objections: one, .. }, Ending::Agreed { objections: other, .. }) => one != other,
        (Ending::GivenUp { .. }, Ending::GivenUp { .. }) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::scripts::{Program, Size, homes, setup};
    use trellis_cluster_protocol::coherence::Protocol;

    const AGREED: Ending = Ending::Agreed { objections: 0, differs: false };
    const REFUSED: Ending = Ending::Agreed { objections: 1, differs: false };
    const GIVEN_UP: Ending = Ending::GivenUp { by: None };

    /// How two threads end their first change, and whether that may be.
    fn ends(program: Program, before: &[Event], endings: [Ending; 2]) -> bool {
        let size = Size { nodes: 2, pages: 1, intervals: 1 };
        let setup = setup(Protocol::all_release_consistent()[0], program, size, homes()[0], false);
        let mut agreement = Agreement::new(&setup);
        let ended = [0, 1].map(|thread| Event::Ended { thread, ending: endings[usize::from(thread)] });
        before.iter().chain(&ended).all(|&event| agreement.note(event).is_ok())
    }

    #[test]
    fn a_change_is_refused_for_a_reason() {
        assert!(ends(Program::Agree, &[], [AGREED; 2]));
        assert!(!ends(Program::Agree, &[], [REFUSED; 2]) && !ends(Program::Agree, &[], [GIVEN_UP; 2]));
        assert!(ends(Program::Differ, &[], [REFUSED; 2]), "the nodes make different changes");
        assert!(ends(Program::Agree, &[Event::Objects { thread: 1 }], [REFUSED; 2]));
        assert!(ends(Program::Agree, &[Event::TooLong { thread: 1 }], [GIVEN_UP; 2]));
    }

    #[test]
    fn all_change_or_none() {
        let late = [Event::TooLong { thread: 0 }];
        assert!(!ends(Program::Agree, &late, [AGREED, GIVEN_UP]) && !ends(Program::Agree, &late, [REFUSED, AGREED]));
        assert!(ends(Program::Agree, &late, [Ending::Disagree, AGREED]), "the cluster ends");
        assert!(!ends(Program::Differ, &[], [Ending::Disagree, AGREED]), "nothing took too long");
    }
}
