//! Memberships with one rule broken: what they hear and what they order is altered.

use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::membership::{Effect, Input, Message};

/// Faults: each breaks one rule of joining or leaving on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemberFault {
    /// No fault.
    None,
    /// The coordinator lets a node in before every founder has come.
    WelcomesEarly,
    /// The coordinator lets the next node in or out while another one comes.
    TwoAtOnce,
    /// The coordinator does not name the joined nodes that are present.
    NamesFoundersOnly,
    /// A node that comes does not learn which nodes are absent.
    AbsentUntold,
    /// A node that comes counts as joined when the coordinator has let it in.
    JoinsEarly,
    /// A founder does not learn that a node has come.
    CameUntold,
    /// A request to leave is forgotten.
    ForgetsDeparture,
    /// The next node is not let in or out when a change is over.
    NoNextTurn,
    /// The coordinator lets a node go before it has taken its pages.
    TakenAtOnce,
    /// A node that leaves does not name its pages.
    NamesNoPages,
    /// A node says no farewell.
    NoFarewell,
    /// A node does not learn that another one departs.
    DepartsUntold,
    /// A node that departs counts as vanished while its messages are under way.
    VanishesEarly,
    /// A node does not learn that another one has vanished.
    VanishedUntold,
    /// A founder that is done does not wait for the coordinator.
    FounderGoes,
    /// A node that leaves waits for nobody's farewell.
    GoesAtOnce,
    /// The end of the cluster before a node was let in counts as a death.
    EndedAsDeath,
    /// A member that goes counts as dead.
    GoesAsDeath,
    /// A node does not learn that another one has died.
    DeathUntold,
    /// A node that learns of a death says nothing to the others before it ends.
    FailsSilently,
    /// A node takes the one that reports a death for the dead one.
    BlamesMessenger,
}

impl MemberFault {
    /// The inputs that a membership gets in place of `input`.
    pub(super) fn hear(self, me: NodeId, coordinator: NodeId, founders: u16, input: Input) -> Vec<Input> {
        let at_coordinator = me == coordinator;
        match (self, input) {
            (MemberFault::WelcomesEarly, Input::Connected(peer)) if at_coordinator && peer.0 < founders => {
                let others = (0..founders).map(NodeId).filter(|&other| other != me);
                others.map(Input::Connected).collect()
            }
            (MemberFault::TwoAtOnce, Input::Message(peer, Message::Join)) if at_coordinator => {
                vec![input, Input::Message(peer, Message::Joined)]
            }
            (MemberFault::TwoAtOnce, Input::Message(_, Message::Joined)) if at_coordinator => Vec::new(),
            (MemberFault::ForgetsDeparture, Input::Message(_, Message::Depart)) => Vec::new(),
            (MemberFault::NoNextTurn, Input::Message(_, Message::Joined)) => Vec::new(),
            (MemberFault::NamesNoPages, Input::Behind(_)) => Vec::new(),
            (MemberFault::TakenAtOnce, Input::Message(_, Message::Handed(_))) if at_coordinator => {
                vec![input, Input::TookOver]
            }
            (MemberFault::TakenAtOnce, Input::TookOver) => Vec::new(),
            (MemberFault::BlamesMessenger, Input::Message(peer, Message::Fail(_))) => {
                vec![Input::Message(peer, Message::Fail(peer))]
            }
            _ => vec![input],
        }
    }

    /// The effects in place of `effect`.
    pub(super) fn order(self, me: NodeId, coordinator: NodeId, founders: u16, effect: Effect) -> Vec<Effect> {
        let is_founder = me.0 < founders;
        match (self, effect) {
            (MemberFault::NamesFoundersOnly, Effect::Send(_, Message::Present(node))) if node.0 >= founders => {
                Vec::new()
            }
            (MemberFault::NamesFoundersOnly, Effect::Send(to, Message::Welcome(in_all))) if me == coordinator => {
                vec![Effect::Send(to, Message::Welcome(in_all.min(founders - 1)))]
            }
            (MemberFault::AbsentUntold, Effect::Absent(_)) => Vec::new(),
            (MemberFault::CameUntold, Effect::Came(_)) if is_founder && me != coordinator => Vec::new(),
            (MemberFault::JoinsEarly, Effect::Send(to, Message::Join)) if to != coordinator => {
                vec![effect, Effect::Joined]
            }
            (MemberFault::NoFarewell, Effect::Send(_, Message::Farewell)) if me != coordinator => Vec::new(),
            (MemberFault::DepartsUntold, Effect::Departs(_)) => Vec::new(),
            (MemberFault::VanishesEarly, Effect::Departs(peer)) => vec![effect, Effect::Vanished(peer)],
            (MemberFault::VanishesEarly | MemberFault::VanishedUntold, Effect::Vanished(_)) => Vec::new(),
            (MemberFault::FounderGoes, Effect::Send(_, Message::Leave)) if is_founder && me != coordinator => {
                vec![effect, Effect::AllLeft]
            }
            (MemberFault::GoesAtOnce, Effect::Send(_, Message::Going)) => vec![effect, Effect::AllLeft],
            (MemberFault::EndedAsDeath, Effect::Ended) => vec![Effect::Died(coordinator)],
            (MemberFault::GoesAsDeath, Effect::Vanished(peer)) => vec![Effect::Died(peer)],
            (MemberFault::DeathUntold, Effect::Died(_)) => Vec::new(),
            _ => vec![effect],
        }
    }
}
