//! Who is there: peers that were heard, peers that fell silent, peers that left.
//!
//! Promises: a peer whose connection breaks before it said that it leaves is reported as dead, once;
//! a peer that is connected but says nothing for the configured time is reported as silent, once
//! per silence; the end of the program's work is reached when every connected node has said that
//! it leaves. It must never report a peer that left, nor one that never came.

use crate::Nanoseconds;
use crate::page::NodeId;
use alloc::vec;
use alloc::vec::Vec;

/// A fact about the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// A connection to this peer stands.
    Connected(NodeId),
    /// The connection to this peer broke.
    Lost(NodeId),
    /// A message of this module arrived.
    Message(NodeId, Message),
    /// Something else arrived from this peer not later than `now`.
    Heard(NodeId),
    /// This node's program is done.
    Leave,
    /// Time passed.
    Tick,
}

/// An order or a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send this.
    Send(NodeId, Message),
    /// The peer is dead.
    Died(NodeId),
    /// This node failed, a peer says.
    Failed(NodeId),
    /// The peer has said nothing for so long.
    Silent(NodeId, Nanoseconds),
    /// Every node is done: connections may be closed.
    AllLeft,
}

/// What nodes tell each other about themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Message {
    /// I am here.
    Alive,
    /// My program is done; I serve until everybody's is.
    Leave,
    /// This node failed, which ends the cluster; whoever tells it tells whose failure it was.
    Fail(NodeId),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Peer {
    #[default]
    Absent,
    Present,
    Leaving,
    Gone,
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Membership {
    me: NodeId,
    peers: Vec<Peer>,
    heard: Vec<Nanoseconds>,
    reported: Vec<bool>,
    silence_max: Nanoseconds,
    said: Nanoseconds,
    leaving: bool,
    finished: bool,
    gathering: Option<Gathering>,
    now: Nanoseconds,
}

/// Nodes come when they come, and only the manager knows of all of them.
#[derive(Clone, Copy, Debug)]
struct Gathering {
    manager: NodeId,
    until: Nanoseconds,
}

impl Membership {
    /// Nobody is there yet. A peer that is silent for `silence_max` is reported; to be heard in
    /// time itself, this node says something at least four times in that span.
    pub fn new(me: NodeId, nodes: u16, silence_max: Nanoseconds) -> Membership {
        let nodes = usize::from(nodes);
        Membership {
            me,
            peers: vec![Peer::Absent; nodes],
            heard: vec![0; nodes],
            reported: vec![false; nodes],
            silence_max: silence_max.max(4),
            said: 0,
            leaving: false,
            finished: false,
            gathering: None,
            now: 0,
        }
    }

    /// For a cluster whose nodes do not wait for each other when they start, only for `manager`. A manager that is
    /// done expects those who did not come yet until `until`, and every other node stays until the manager is gone:
    /// it may not have met a late node that needs what it holds.
    #[must_use]
    pub fn gathered_by(mut self, manager: NodeId, until: Nanoseconds) -> Membership {
        self.gathering = Some(Gathering { manager, until });
        self
    }

    /// How often to say [`Input::Tick`].
    pub fn tick_interval(&self) -> Nanoseconds {
        self.silence_max / 8
    }

    /// Takes one fact, pushes what follows.
    pub fn step(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        self.now = self.now.max(now);
        match input {
            Input::Connected(peer) => {
                self.hear(now, peer);
                self.peers[usize::from(peer.0)] = Peer::Present;
                if self.leaving {
                    effects.push(Effect::Send(peer, Message::Leave));
                }
            }
            Input::Lost(peer) => self.lost(peer, effects),
            Input::Heard(peer) => self.hear(now, peer),
            Input::Message(peer, message) => {
                self.hear(now, peer);
                match message {
                    Message::Alive => {}
                    Message::Leave => self.peers[usize::from(peer.0)] = Peer::Leaving,
                    Message::Fail(culprit) => {
                        // That the messenger goes too is a consequence, and not to be taken for the cause.
                        self.peers[usize::from(peer.0)] = Peer::Gone;
                        effects.push(Effect::Failed(culprit));
                    }
                }
            }
            Input::Leave => {
                self.leaving = true;
                self.tell_all(Message::Leave, effects);
            }
            Input::Tick => self.tick(now, effects),
        }
        self.finish(effects);
    }

    /// The peers that this node still waits for while it leaves.
    pub fn missing(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.others().filter(|&peer| match self.peers[usize::from(peer.0)] {
            Peer::Present => true,
            Peer::Absent => self.gathering.is_some_and(|all| all.manager == self.me && self.now < all.until),
            Peer::Leaving => self.gathering.is_some_and(|all| all.manager == peer),
            Peer::Gone => false,
        })
    }

    fn lost(&mut self, peer: NodeId, effects: &mut Vec<Effect>) {
        let state = &mut self.peers[usize::from(peer.0)];
        if *state == Peer::Present {
            effects.push(Effect::Died(peer));
        }
        *state = Peer::Gone;
    }

    fn hear(&mut self, now: Nanoseconds, peer: NodeId) {
        self.heard[usize::from(peer.0)] = now;
        self.reported[usize::from(peer.0)] = false;
    }

    fn tick(&mut self, now: Nanoseconds, effects: &mut Vec<Effect>) {
        if now.saturating_sub(self.said) >= self.silence_max / 4 {
            self.said = now;
            self.tell_all(Message::Alive, effects);
        }
        for index in 0..self.peers.len() {
            let silence = now.saturating_sub(self.heard[index]);
            let here = matches!(self.peers[index], Peer::Present | Peer::Leaving);
            if here && silence >= self.silence_max && !self.reported[index] {
                self.reported[index] = true;
                effects.push(Effect::Silent(NodeId(index as u16), silence));
            }
        }
    }

    fn finish(&mut self, effects: &mut Vec<Effect>) {
        if self.leaving && !self.finished && self.missing().next().is_none() {
            self.finished = true;
            effects.push(Effect::AllLeft);
        }
    }

    fn tell_all(&self, message: Message, effects: &mut Vec<Effect>) {
        let there = |peer: &NodeId| matches!(self.peers[usize::from(peer.0)], Peer::Present | Peer::Leaving);
        effects.extend(self.others().filter(there).map(|peer| Effect::Send(peer, message)));
    }

    fn others(&self) -> impl Iterator<Item = NodeId> + '_ {
        (0..self.peers.len() as u16).map(NodeId).filter(|&node| node != self.me)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(m: &mut Membership, now: Nanoseconds, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        m.step(now, input, &mut effects);
        effects
    }

    #[test]
    fn a_break_without_goodbye_is_a_death_and_is_said_once() {
        let mut m = Membership::new(NodeId(0), 3, 1000);
        step(&mut m, 0, Input::Connected(NodeId(1)));
        assert_eq!(step(&mut m, 5, Input::Lost(NodeId(1))), [Effect::Died(NodeId(1))]);
        assert_eq!(step(&mut m, 6, Input::Lost(NodeId(1))), []);
        assert_eq!(step(&mut m, 6, Input::Lost(NodeId(2))), [], "never came");
    }

    #[test]
    fn leaving_waits_for_everybody_who_came() {
        let mut m = Membership::new(NodeId(0), 4, 1000);
        step(&mut m, 0, Input::Connected(NodeId(1)));
        step(&mut m, 0, Input::Connected(NodeId(2)));
        step(&mut m, 1, Input::Message(NodeId(2), Message::Leave));
        assert_eq!(step(&mut m, 2, Input::Lost(NodeId(2))), [], "it had left");
        let said = step(&mut m, 3, Input::Leave);
        assert_eq!(said, [Effect::Send(NodeId(1), Message::Leave)]);
        assert_eq!(m.missing().collect::<Vec<_>>(), [NodeId(1)]);
        let end = step(&mut m, 4, Input::Message(NodeId(1), Message::Leave));
        assert_eq!(end, [Effect::AllLeft]);
    }

    #[test]
    fn a_manager_that_gathers_expects_late_nodes_until_the_deadline() {
        let mut m = Membership::new(NodeId(0), 3, 1000).gathered_by(NodeId(0), 500);
        step(&mut m, 0, Input::Connected(NodeId(1)));
        step(&mut m, 1, Input::Message(NodeId(1), Message::Leave));
        assert_eq!(step(&mut m, 2, Input::Leave), [Effect::Send(NodeId(1), Message::Leave)]);
        assert_eq!(m.missing().collect::<Vec<_>>(), [NodeId(2)]);
        let mut in_time = m.clone();
        let told = step(&mut in_time, 499, Input::Connected(NodeId(2)));
        assert_eq!(told, [Effect::Send(NodeId(2), Message::Leave)]);
        assert!(!step(&mut in_time, 600, Input::Tick).contains(&Effect::AllLeft), "it came");
        let end = step(&mut in_time, 700, Input::Message(NodeId(2), Message::Leave));
        assert_eq!(end, [Effect::AllLeft]);
        assert!(step(&mut m, 500, Input::Tick).contains(&Effect::AllLeft), "it did not come");
    }

    #[test]
    fn a_gathered_node_stays_until_the_manager_is_gone() {
        let mut m = Membership::new(NodeId(1), 3, 1000).gathered_by(NodeId(0), 500);
        step(&mut m, 0, Input::Connected(NodeId(0)));
        step(&mut m, 1, Input::Message(NodeId(0), Message::Leave));
        step(&mut m, 2, Input::Leave);
        assert_eq!(m.missing().collect::<Vec<_>>(), [NodeId(0)], "node 2 may still come");
        assert_eq!(step(&mut m, 3, Input::Lost(NodeId(0))), [Effect::AllLeft]);
    }

    #[test]
    fn a_failure_is_told_with_its_culprit_and_the_messenger_is_not_blamed() {
        let mut m = Membership::new(NodeId(2), 3, 1000);
        step(&mut m, 0, Input::Connected(NodeId(0)));
        step(&mut m, 0, Input::Connected(NodeId(1)));
        let told = step(&mut m, 1, Input::Message(NodeId(0), Message::Fail(NodeId(1))));
        assert_eq!(told, [Effect::Failed(NodeId(1))]);
        assert_eq!(step(&mut m, 2, Input::Lost(NodeId(0))), []);
    }

    #[test]
    fn silence_is_reported_once_and_again_after_a_sign_of_life() {
        let mut m = Membership::new(NodeId(0), 2, 1000);
        step(&mut m, 0, Input::Connected(NodeId(1)));
        let silent = |effects: &[Effect]| effects.iter().any(|e| matches!(e, Effect::Silent(..)));
        assert!(!silent(&step(&mut m, 999, Input::Tick)));
        assert!(silent(&step(&mut m, 1000, Input::Tick)));
        assert!(!silent(&step(&mut m, 1500, Input::Tick)));
        step(&mut m, 1600, Input::Heard(NodeId(1)));
        assert!(silent(&step(&mut m, 2600, Input::Tick)));
    }

    #[test]
    fn a_node_is_heard_four_times_before_it_counts_as_silent() {
        let mut m = Membership::new(NodeId(0), 2, 1000);
        step(&mut m, 0, Input::Connected(NodeId(1)));
        let ticks = (1..=8).map(|tick| tick * m.tick_interval()).collect::<Vec<_>>();
        let said = ticks.into_iter().flat_map(|now| step(&mut m, now, Input::Tick));
        let alive = Effect::Send(NodeId(1), Message::Alive);
        assert_eq!(said.filter(|effect| *effect == alive).count(), 4);
    }
}
