//! Inquiries about an object: which nodes hold it, wait for it, or have arrived at it. For the error message of a call
//! whose deadline passed.
//!
//! A node asks others and keeps their answers until it takes them. An inquiry changes nothing at the nodes that it asks,
//! and nothing depends on it: a node that does not answer in time is named as such. It must never keep more than
//! [`INQUIRIES_MAX`].

use super::{Effect, Message, Standing, Subject, Waiter};
use crate::page::NodeId;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The largest number of open inquiries of one node; a further one asks no node.
pub(super) const INQUIRIES_MAX: usize = 64;

/// The nodes that were asked, and the answer of each so far.
pub type Answers = Vec<(NodeId, Option<Standing>)>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Inquiries {
    open: BTreeMap<Waiter, Answers>,
}

impl Inquiries {
    /// Asks `peers`. The call is woken when all have answered, or at once if none was asked.
    pub(super) fn ask(
        &mut self,
        subject: Subject,
        generation: u32,
        peers: impl Iterator<Item = NodeId>,
        waiter: Waiter,
        effects: &mut Vec<Effect>,
    ) {
        let room = self.open.len() < INQUIRIES_MAX;
        let asked: Answers = peers.filter(|_| room).map(|peer| (peer, None)).collect();
        if asked.is_empty() {
            return effects.push(Effect::Wake(waiter, 0));
        }
        let message = Message::Inquiry(subject, generation, waiter);
        effects.extend(asked.iter().map(|(peer, _)| Effect::Send(*peer, message)));
        self.open.insert(waiter, asked);
    }

    /// Takes an answer. One that comes too late belongs to an inquiry that is no longer open.
    pub(super) fn answered(&mut self, from: NodeId, waiter: Waiter, standing: Standing, effects: &mut Vec<Effect>) {
        let Some(asked) = self.open.get_mut(&waiter) else { return };
        let place = asked.iter_mut().find(|(peer, answer)| *peer == from && answer.is_none());
        let Some((_, answer)) = place else {
            return effects.push(Effect::Violation(from, "an answer to what it was not asked"));
        };
        *answer = Some(standing);
        if asked.iter().all(|(_, answer)| answer.is_some()) {
            effects.push(Effect::Wake(waiter, 0));
        }
    }

    /// Ends the inquiry.
    pub(super) fn conclude(&mut self, waiter: Waiter) -> Answers {
        self.open.remove(&waiter).unwrap_or_default()
    }
}
