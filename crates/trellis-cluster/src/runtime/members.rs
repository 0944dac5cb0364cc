//! Membership: passes facts to the pure state machine and carries out its effects.

use std::sync::atomic::Ordering;

use trellis_cluster_protocol::membership::{Effect, Input, Message};
use trellis_cluster_protocol::{NodeId, node, wire};

use super::Node;
use super::ordered::lock;

impl Node {
    pub(super) fn member_connected(&self, peer: NodeId) {
        self.member_step(Input::Connected(peer), "");
        self.met[usize::from(peer.0)].store(true, Ordering::Release);
    }

    /// The connection to `peer` ended; `what` follows its name in a sentence.
    pub(super) fn member_lost(&self, peer: NodeId, what: &str) {
        self.member_step(Input::Lost(peer), what);
    }

    pub(super) fn member_message(&self, from: NodeId, message: Message) {
        self.member_step(Input::Message(from, message), "");
    }

    /// This node's program is done.
    pub(crate) fn member_leave(&self) {
        self.member_step(Input::Leave, "");
    }

    /// The names of the nodes for which a leaving node waits.
    pub(crate) fn members_missing(&self) -> Vec<String> {
        lock(&self.membership).0.missing().map(|peer| self.name_of(peer)).collect()
    }

    /// Looks for silent peers; returns the nanoseconds until the next look.
    pub(super) fn tick(&self) -> u64 {
        self.count_of_link();
        for (peer, heard) in self.heard.iter().enumerate() {
            if heard.swap(false, Ordering::Relaxed) {
                self.member_step(Input::Heard(NodeId(peer as u16)), "");
            }
        }
        self.member_step(Input::Tick, "");
        lock(&self.membership).0.tick_interval()
    }

    /// How frames travelled to each peer that has connected, and, if the link had a choice, why not in a better way.
    pub(super) fn ways(&self) -> Vec<String> {
        let way = |peer: usize| {
            if peer == usize::from(self.me.0) || !self.has_met(peer) {
                return String::new();
            }
            let way = self.link.way(peer);
            self.link.trouble(peer).map_or_else(|| way.to_string(), |why| format!("{way}: {why}"))
        };
        (0..self.link.nodes()).map(way).collect()
    }

    /// Copies the counters that only the link has.
    pub(crate) fn count_of_link(&self) {
        let (statistics, counters) = (self.link.statistics(), self.counters());
        for (counter, count) in [
            (&counters.unauthenticated_refused, statistics.unauthenticated_refused),
            (&counters.nodes_refused, statistics.nodes_refused),
            (&counters.packets_refused, statistics.packets_refused),
            (&counters.packets_in, statistics.packets_in),
            (&counters.packets_out, statistics.packets_out),
        ] {
            counter.store(count, Ordering::Relaxed);
        }
    }

    fn members_changed(&self, effect: Effect) {
        let Ok(()) = node::members_changed(&mut self.carrier(), effect, NodeId(self.config.manager as u16));
    }

    pub(super) fn member_step(&self, input: Input, why: &str) {
        let now = self.now();
        let mut members = lock(&self.membership);
        let mut effects = std::mem::take(&mut members.1);
        members.0.step(now, input, &mut effects);
        let (mut sentence, mut vanished, mut took_over, mut ended) = (None, None, false, false);
        for effect in effects.drain(..) {
            match effect {
                Effect::Send(peer, message) => self.send(peer, &wire::Message::Membership(message)),
                Effect::AllLeft => {
                    self.all_left.store(true, Ordering::SeqCst);
                    self.waiters.signal(self.leaver.load(Ordering::SeqCst), 0);
                }
                Effect::Ended => ended = true,
                Effect::Joined => self.elastic.note_joined(),
                Effect::HandOver => {
                    self.elastic.note_turn();
                    self.rouse_leaver();
                }
                Effect::TakeOver(range) => self.take_over(range),
                Effect::TakeOverEnds => took_over = self.end_take_over(),
                Effect::Came(_) | Effect::Absent(_) | Effect::Departs(_) => self.members_changed(effect),
                Effect::Vanished(_) => vanished = Some(effect),
                Effect::Violation(peer, what) => {
                    sentence = Some((peer, self.refused(peer, what)));
                }
                Effect::Died(peer) => {
                    sentence = Some((peer, format!("{} {why}", self.name_of(peer))));
                }
                Effect::Failed(culprit) if culprit == self.me => {
                    sentence = Some((culprit, "the other nodes gave this node up; their messages say why".to_owned()));
                }
                Effect::Failed(culprit) => {
                    sentence = Some((
                        culprit,
                        format!(
                            "{} was reported as failed by another node, whose message or its own says why",
                            self.name_of(culprit)
                        ),
                    ));
                }
                Effect::Silent(peer, silence) => {
                    let silent = format!(
                        "{} has been silent for {:.1} s; it may be stopped or unreachable \
                         (silence_seconds_max sets the limit)",
                        self.name_of(peer),
                        silence as f64 / 1e9
                    );
                    sentence = Some((peer, silent));
                }
            }
        }
        members.1 = effects;
        drop(members);
        if let Some(effect) = vanished {
            self.members_changed(effect);
        }
        if took_over {
            self.member_took_over();
        }
        if ended {
            self.find_cluster_ended();
        }
        if let Some((culprit, sentence)) = sentence {
            self.fail_because_of(culprit, sentence);
        }
    }
}
