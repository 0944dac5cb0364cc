//! Heaps with one rule broken: the steps of their calls, their effects or their answers are altered.

use trellis_cluster_protocol::heap::{Answer, Effect, Message, Outcome};

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

    /// Whether the message carries notices.
    pub(super) fn releases(self, message: &Message) -> bool {
        let is_cut = match message {
            Message::Grant { .. } => self == HeapFault::GrantWithoutNotices,
            Message::Return { .. } => self == HeapFault::ReturnWithoutNotices,
            Message::Ask { .. } => self == HeapFault::FreeWithoutNotices,
            _ => false,
        };
        message.releases() && !is_cut
    }

    /// The effect in place of `effect`.
    pub(super) fn order(self, node: u16, effect: Effect) -> Effect {
        match (self, effect) {
            (HeapFault::AlwaysFresh, Effect::Send(to, Message::Grant { waiter, run, .. })) => {
                Effect::Send(to, Message::Grant { waiter, run, is_fresh: true })
            }
            (HeapFault::NotPassedOn, Effect::Send(_, Message::Ask { requester, waiter, is_routed: true, .. }))
                if requester.0 != node =>
            {
                let owner = requester;
                Effect::Send(requester, Message::Reply { waiter, outcome: Outcome::NoBlock, owner })
            }
            _ => effect,
        }
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
