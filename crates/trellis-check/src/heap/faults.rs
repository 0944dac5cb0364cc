//! Heaps with one rule broken: the steps of their calls, their effects or their answers are altered.

use trellis_cluster_protocol::heap::{Answer, Message, Outcome};
use trellis_cluster_protocol::{NodeId, wire};

/// Faults: each breaks one rule of the shared heap on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeapFault {
    /// No fault.
    None,
    /// Memory is freed without a publication.
    NoPublication,
    /// The publication follows the free.
    PublishesLate,
    /// The publication comes before the spans that go back are chosen.
    PublishesFirst,
    /// A program gets a block before its node has applied the published stores.
    NoRefresh,
    /// A block that another node had does not say so.
    ForeignUntold,
    /// A span that was used before counts as fresh.
    AlwaysFresh,
    /// A span comes without the notices of the directory.
    GrantWithoutNotices,
    /// A span goes back without the notices of its node.
    ReturnWithoutNotices,
    /// A free at another node comes without the notices of its sender.
    FreeWithoutNotices,
    /// Spans do not go back.
    KeepsSpans,
    /// A free is over before the directory has the span.
    ReturnAnswersEarly,
    /// Without room, empty spans do not go back.
    FullAtOnce,
    /// The directory does not pass on what it is asked about another node's block.
    NotPassedOn,
    /// A span that comes to a call that was given up stays at the node.
    LateSpanKept,
    /// A call that is given up forgets the spans that were to go back.
    SurplusForgotten,
}

impl HeapFault {
    /// Whether a publication takes place when the call orders it.
    pub(super) fn publishes_in_time(self) -> bool {
        !matches!(self, HeapFault::NoPublication | HeapFault::PublishesLate)
    }

    /// Whether the notices that belong to the message do not go with it.
    pub(super) fn sends_alone(self, message: &wire::Message) -> bool {
        match message {
            wire::Message::Heap(Message::Grant { .. }) => self == HeapFault::GrantWithoutNotices,
            wire::Message::Heap(Message::Return { .. }) => self == HeapFault::ReturnWithoutNotices,
            wire::Message::Heap(Message::Ask { .. }) => self == HeapFault::FreeWithoutNotices,
            _ => false,
        }
    }

    /// The messages that leave `node` in place of `message`.
    pub(super) fn sends(self, node: u16, to: NodeId, message: wire::Message) -> Vec<(NodeId, wire::Message)> {
        let wire::Message::Heap(message) = message else { return vec![(to, message)] };
        let sent = match (self, message) {
            (HeapFault::AlwaysFresh, Message::Grant { waiter, run, .. }) => {
                vec![(to, Message::Grant { waiter, run, is_fresh: true })]
            }
            (HeapFault::NotPassedOn, Message::Ask { requester, waiter, is_routed: true, .. })
                if requester.0 != node =>
            {
                vec![(requester, Message::Reply { waiter, outcome: Outcome::NoBlock, owner: requester })]
            }
            (HeapFault::ReturnAnswersEarly, Message::Return { requester, waiter, .. }) if requester.0 != node => {
                let reply = Message::Reply { waiter, outcome: Outcome::Freed, owner: requester };
                vec![(to, message), (requester, reply)]
            }
            _ => vec![(to, message)],
        };
        sent.into_iter().map(|(to, message)| (to, wire::Message::Heap(message))).collect()
    }

    /// The answer in place of `answer`.
    pub(super) fn answer(self, answer: Answer) -> Answer {
        match (self, answer) {
            (HeapFault::ForeignUntold, Answer::Block(mut block)) => {
                block.is_foreign = false;
                Answer::Block(block)
            }
            _ => answer,
        }
    }
}
