//! What a node knows about releases: its intervals, messages that arrived before the releases that they depend on, and what
//! every node has known since a barrier.
//!
//! Promises: a message that releases something is handed out only when this node knows everything that the sender knew.
//! After a barrier of all nodes, the node forgets what all of them knew at the barrier before. The memory for early
//! messages is bounded by `early_max` for each peer. It must never hand out a message twice.

use crate::coherence::hlrc::intervals::{Intervals, Learnt};
use crate::page::NodeId;
use crate::wire::Message;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The error for a peer that sends more early messages than can be under way.
const TOO_MANY_EARLY: &str = "more messages overtook what they rest on than can be under way";
/// The error for a peer whose notices are malformed.
const MALFORMED: &str = "its notices are none that a node can send";

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Knowledge {
    /// The intervals of this node, and those that it has learnt of.
    pub intervals: Intervals,
    /// Messages that depend on releases which have not arrived yet, in the order of their arrival.
    early: Vec<Early>,
    early_max: usize,
    /// What this node knew when it arrived at a barrier, by barrier.
    at_barriers: BTreeMap<u64, AtBarrier>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Early {
    from: NodeId,
    message: Message,
    attached: Vec<u8>,
}

/// Vector times of this node at one barrier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct AtBarrier {
    /// When this node arrived last.
    last: Vec<u64>,
    /// When this node arrived the time before. It is taken when all nodes have arrived since.
    before: Option<Vec<u64>>,
}

impl Knowledge {
    /// Keeps at most `early_max` early messages of each peer: as many as a link can deliver before one that is missing.
    pub fn new(intervals: Intervals, early_max: usize) -> Knowledge {
        Knowledge { intervals, early: Vec::new(), early_max, at_barriers: BTreeMap::new() }
    }

    /// Takes a message that releases something ([`Message::releases`]), with the notices attached to it. Returns the
    /// message if it may be used now; otherwise [`Knowledge::next_usable`] hands it out later.
    ///
    /// # Errors
    ///
    /// No correct peer sends this. The text says why, and nothing has changed.
    pub fn hear(&mut self, from: NodeId, message: Message, attached: &[u8]) -> Result<Option<Message>, &'static str> {
        match self.intervals.learn(from, attached) {
            Ok(Learnt::Known) => Ok(Some(message)),
            Ok(Learnt::TooEarly) if self.early_from(from) < self.early_max => {
                self.early.push(Early { from, message, attached: attached.to_vec() });
                Ok(None)
            }
            Ok(Learnt::TooEarly) => Err(TOO_MANY_EARLY),
            Err(_) => Err(MALFORMED),
        }
    }

    /// The next early message that may be used now because the releases that it depends on have been learnt. Returns the
    /// sender, and the message or the reason why no correct peer sent it. Call it after [`Knowledge::hear`] until it
    /// returns `None`.
    pub fn next_usable(&mut self) -> Option<(NodeId, Result<Message, &'static str>)> {
        let Knowledge { intervals, early, .. } = self;
        let (index, learnt) =
            early.iter().enumerate().find_map(|(index, early)| match intervals.learn(early.from, &early.attached) {
                Ok(Learnt::TooEarly) => None,
                Ok(Learnt::Known) => Some((index, Ok(early.message))),
                Err(_) => Some((index, Err(MALFORMED))),
            })?;
        Some((early.remove(index).from, learnt))
    }

    /// Whether no message waits for a release that it depends on.
    pub fn is_quiet(&self) -> bool {
        self.early.is_empty()
    }

    /// This node arrives at a barrier of all nodes. At its end, every node will know what this node has released until now.
    pub fn comes_to_barrier(&mut self, id: u64) {
        let time = self.intervals.time().to_vec();
        let at = self.at_barriers.entry(id).or_default();
        let before = core::mem::replace(&mut at.last, time);
        at.before = (!before.is_empty()).then_some(before);
    }

    /// The barrier is over for this node. If all nodes came, all of them have left its previous round and know what this node
    /// knew then. Otherwise this node no longer waits.
    pub fn leaves_barrier(&mut self, id: u64, all_came: bool) {
        if !all_came {
            self.at_barriers.remove(&id);
        } else if let Some(before) = self.at_barriers.get_mut(&id).and_then(|at| at.before.take()) {
            self.intervals.everybody_knows(&before);
        }
    }

    fn early_from(&self, from: NodeId) -> usize {
        self.early.iter().filter(|early| early.from == from).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coherence::hlrc::intervals::Notice;
    use crate::page::{PageIndex, PageRange};
    use crate::sync;

    const EARLY_MAX: usize = 2;

    fn knowledge(me: u16) -> Knowledge {
        Knowledge::new(Intervals::new(NodeId(me), 2, 100, false), EARLY_MAX)
    }

    fn token(lock: u64) -> Message {
        Message::Sync(sync::Message::LockToken(lock))
    }

    /// What node 0 attaches to its next message after it has changed a page.
    fn release(node: &mut Knowledge, page: u32) -> Vec<u8> {
        node.intervals.note(Notice { range: PageRange::one(PageIndex(page)), stamp: u64::from(page) });
        node.intervals.close();
        let mut sent = Vec::new();
        node.intervals.append_notices(NodeId(1), &mut sent);
        sent
    }

    #[test]
    fn a_message_waits_for_what_it_rests_on() {
        let (mut one, mut other) = (knowledge(0), knowledge(1));
        let sent: Vec<Vec<u8>> = (1..=3).map(|page| release(&mut one, page)).collect();
        assert_eq!(other.hear(NodeId(0), token(3), &sent[2]), Ok(None));
        assert_eq!(other.hear(NodeId(0), token(2), &sent[1]), Ok(None));
        assert_eq!(other.next_usable(), None);
        assert!(!other.is_quiet());
        assert_eq!(other.hear(NodeId(0), token(1), &sent[0]), Ok(Some(token(1))));
        assert_eq!(other.next_usable(), Some((NodeId(0), Ok(token(2)))));
        assert_eq!(other.next_usable(), Some((NodeId(0), Ok(token(3)))));
        assert_eq!(other.next_usable(), None);
        assert!(other.is_quiet());
    }

    #[test]
    fn more_early_messages_than_can_be_under_way_are_refused() {
        let (mut one, mut other) = (knowledge(0), knowledge(1));
        let sent: Vec<Vec<u8>> = (1..=4).map(|page| release(&mut one, page)).collect();
        assert_eq!(other.hear(NodeId(0), token(4), &sent[3]), Ok(None));
        assert_eq!(other.hear(NodeId(0), token(3), &sent[2]), Ok(None));
        assert_eq!(other.hear(NodeId(0), token(2), &sent[1]), Err(TOO_MANY_EARLY));
    }

    #[test]
    fn an_early_message_with_malformed_notices_is_refused_and_not_used() {
        let (mut one, mut other) = (knowledge(0), knowledge(1));
        let (first, mut second) = (release(&mut one, 1), release(&mut one, 2));
        second.truncate(second.len() - 1);
        assert_eq!(other.hear(NodeId(0), token(2), &second), Ok(None), "its number says that another comes before");
        assert_eq!(other.hear(NodeId(0), token(1), &first), Ok(Some(token(1))));
        assert_eq!(other.next_usable(), Some((NodeId(0), Err(MALFORMED))));
        assert!(other.is_quiet());
    }

    #[test]
    fn what_all_knew_at_the_barrier_before_is_forgotten() {
        let mut node = knowledge(0);
        release(&mut node, 1);
        node.comes_to_barrier(7);
        node.leaves_barrier(7, true);
        assert!(node.intervals.kept() > 0, "nobody is known to know it");
        node.comes_to_barrier(7);
        node.leaves_barrier(7, true);
        assert_eq!(node.intervals.kept(), 0);
    }

    #[test]
    fn a_barrier_that_was_given_up_says_nothing() {
        let mut node = knowledge(0);
        release(&mut node, 1);
        for all_came in [false, true] {
            node.comes_to_barrier(7);
            node.leaves_barrier(7, all_came);
        }
        assert!(node.intervals.kept() > 0, "the others did not come the time before");
    }
}
