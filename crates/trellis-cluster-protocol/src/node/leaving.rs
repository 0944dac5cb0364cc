//! Nodes that leave while the others go on: the steps of the node that leaves, and what the others do in place of sending
//! to it.
//!
//! [`crate::membership`] decides when a node leaves. A node that leaves carries out [`LeavingStep::ALL`] in order. Every
//! other node keeps the [`Departures`] of its pages: once a node has departed, nothing is sent to it, and
//! [`Departures::route`] says what happens to a message instead.
//!
//! Promises: a node that has left holds no page that other nodes may request, and owes no node an answer. A message about
//! pages for a departed node is answered as that node would have answered, or it goes to a node that can answer it. It
//! must never be sent to the departed node.

use crate::coherence::{Coherence, Input, Message};
use crate::page::{NodeId, PageIndex, PageRange};
use alloc::vec;
use alloc::vec::Vec;

/// A step of a node that leaves. Each step begins when the previous one is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeavingStep {
    /// The node passes on the tokens that it has ([`crate::sync::Input::Depart`]), and asks the coordinator to leave
    /// ([`crate::membership::Input::Leave`]). Its program does not use the region any more.
    Announce,
    /// It waits for its turn ([`crate::membership::Effect::HandOver`]).
    AwaitTurn,
    /// It waits until no token is on its way to it, and no home owes it an answer ([`crate::sync::Sync::is_clear`]).
    AwaitSynchronisation,
    /// It answers the nodes that it told to ask again ([`Departures::take_deferred`]). They may do so only after it has
    /// left.
    AnswerDeferred,
    /// It waits until none of its own requests is under way ([`Coherence::is_pending`]).
    AwaitRequests,
    /// It names the pages that it leaves behind ([`left_behind`], [`crate::membership::Input::Behind`]), and says that
    /// these were all ([`crate::membership::Input::HandedOver`]).
    NamePages,
    /// It serves until every other node has said farewell ([`crate::membership::Effect::AllLeft`]).
    AwaitFarewells,
    /// It lets the pages go that are held for its threads, and waits for the alarms that hold back answers
    /// ([`super::Timers`]). After that no node waits for it.
    AnswerHeld,
}

impl LeavingStep {
    /// All steps, in order.
    pub const ALL: [LeavingStep; 8] = [
        LeavingStep::Announce,
        LeavingStep::AwaitTurn,
        LeavingStep::AwaitSynchronisation,
        LeavingStep::AnswerDeferred,
        LeavingStep::AwaitRequests,
        LeavingStep::NamePages,
        LeavingStep::AwaitFarewells,
        LeavingStep::AnswerHeld,
    ];
}

/// The first pages from `from` to the end of `run` that a node leaves behind: other nodes may still send it requests for
/// them. Call it again with the end of the result.
pub fn left_behind<C: Coherence>(protocol: &C, run: PageRange, from: u32) -> Option<PageRange> {
    let is_left = |page: &u32| protocol.leaves_behind(PageIndex(*page));
    let first = (from..run.end()).find(is_left)?;
    let end = (first..run.end()).find(|page| !is_left(page)).unwrap_or(run.end());
    Some(PageRange::around(PageIndex(first), first, end))
}

/// What happens to a message about pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// It is sent to this node.
    To(NodeId),
    /// The departed node would have answered with this message. It is handled as if it had come from that node.
    Answered(Message),
    /// It is dropped, because the departed node waits for nothing.
    Dropped,
    /// No node is left that could answer it: the protocol is broken.
    Lost,
}

/// The nodes that have departed, as far as the pages of one shard are concerned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Departures {
    has_departed: Vec<bool>,
    /// At a node that may leave: the nodes that it told to ask for a page again, later; ascending, each once.
    deferred: Vec<(PageIndex, NodeId)>,
    may_leave: bool,
}

impl Departures {
    /// No node has departed. `may_leave` is whether this node may leave before the others.
    pub fn new(nodes: u16, may_leave: bool) -> Departures {
        Departures { has_departed: vec![false; usize::from(nodes)], deferred: Vec::new(), may_leave }
    }

    /// The node has departed, or, as far as this node knows, it has not come yet: nothing is sent to it.
    pub fn depart(&mut self, node: NodeId) {
        self.has_departed[usize::from(node.0)] = true;
    }

    /// The node has come.
    pub fn come(&mut self, node: NodeId) {
        self.has_departed[usize::from(node.0)] = false;
    }

    /// What happens to a message that this node, `me`, would send to `to`.
    ///
    /// A departed node holds no page: it would give up a copy at once, and pass on a request. The request goes to
    /// `coordinator`, which took over the pages of the node; from the coordinator it goes to the home of its page.
    pub fn route(
        &self,
        me: NodeId,
        coordinator: NodeId,
        to: NodeId,
        message: Message,
        home_of: impl FnOnce(PageIndex) -> NodeId,
    ) -> Route {
        if !self.has_departed[usize::from(to.0)] {
            return Route::To(to);
        }
        match message {
            Message::Invalidate { page, .. } => Route::Answered(Message::Invalidated { page }),
            Message::Request { demand, .. } => {
                let instead = if coordinator == me { home_of(demand) } else { coordinator };
                if instead == me { Route::Lost } else { Route::To(instead) }
            }
            _ => Route::Dropped,
        }
    }

    /// Takes note of a message that is sent to `to`, if this node may leave.
    pub fn note_sent(&mut self, to: NodeId, message: Message) {
        if let Message::Retry { page } = message
            && self.may_leave
            && let Err(place) = self.deferred.binary_search(&(page, to))
        {
            self.deferred.insert(place, (page, to));
        }
    }

    /// The inputs by which the nodes that were told to ask again are answered now. Nothing is locked any more at a node
    /// that leaves.
    pub fn take_deferred(&mut self) -> Vec<Input> {
        let again = |(page, from)| Input::Message { from, message: Message::Again { page } };
        core::mem::take(&mut self.deferred).into_iter().map(again).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageIndex = PageIndex(3);
    const ME: NodeId = NodeId(0);
    const COORDINATOR: NodeId = NodeId(1);
    const LEAVER: NodeId = NodeId(3);

    #[test]
    fn nothing_is_sent_to_a_departed_node_and_each_message_has_its_answer() {
        let mut departures = Departures::new(4, false);
        let retry = Message::Retry { page: PAGE };
        let route = |departures: &Departures, message| departures.route(ME, COORDINATOR, LEAVER, message, |_| ME);
        assert_eq!(route(&departures, retry), Route::To(LEAVER));
        departures.depart(LEAVER);
        assert_eq!(route(&departures, retry), Route::Dropped);
        let invalidate = Message::Invalidate { page: PAGE, owner: ME };
        assert_eq!(route(&departures, invalidate), Route::Answered(Message::Invalidated { page: PAGE }));
        let (range, requester) = (PageRange::one(PAGE), NodeId(2));
        let request = Message::Request { demand: PAGE, range, write: true, announced: false, requester, hops: 0 };
        assert_eq!(route(&departures, request), Route::To(COORDINATOR));
        let at_coordinator = |home| departures.route(COORDINATOR, COORDINATOR, LEAVER, request, |_| home);
        assert_eq!((at_coordinator(ME), at_coordinator(COORDINATOR)), (Route::To(ME), Route::Lost));
        let other = departures.route(ME, COORDINATOR, NodeId(2), retry, |_| ME);
        assert_eq!(other, Route::To(NodeId(2)));
        departures.come(LEAVER);
        assert_eq!(route(&departures, retry), Route::To(LEAVER));
    }

    #[test]
    fn a_node_that_may_leave_answers_each_node_that_it_told_to_ask_again_once() {
        let mut departures = Departures::new(4, true);
        for to in [LEAVER, LEAVER, COORDINATOR] {
            departures.note_sent(to, Message::Retry { page: PAGE });
        }
        let again = |from| Input::Message { from, message: Message::Again { page: PAGE } };
        assert_eq!(departures.take_deferred(), [again(COORDINATOR), again(LEAVER)]);
        assert_eq!(departures.take_deferred(), []);
        let mut stays = Departures::new(4, false);
        stays.note_sent(LEAVER, Message::Retry { page: PAGE });
        assert_eq!(stays.take_deferred(), []);
    }
}
