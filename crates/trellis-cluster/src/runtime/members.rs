//! Membership: passes facts to the pure state machine, and says why the cluster cannot go on.

use std::sync::atomic::Ordering;

use trellis_cluster_protocol::membership::{Effect, Input};
use trellis_cluster_protocol::{NodeId, node};

use super::Node;
use super::ordered::lock;

impl Node {
    pub(super) fn member_connected(&self, peer: NodeId) {
        self.member_step(Input::Connected(peer));
        self.met[usize::from(peer.0)].store(true, Ordering::Release);
    }

    /// The connection to `peer` ended; `what` follows its name in a sentence.
    pub(super) fn member_lost(&self, peer: NodeId, what: &str) {
        lock(&self.losses).push((peer, what.to_owned()));
        self.member_step(Input::Lost(peer));
    }

    /// This node's program is done.
    pub(crate) fn member_leave(&self) {
        self.member_step(Input::Leave);
    }

    /// The names of the nodes for which a leaving node waits.
    pub(crate) fn members_missing(&self) -> Vec<String> {
        lock(&self.membership).missing().map(|peer| self.name_of(peer)).collect()
    }

    /// Looks for silent peers; returns the nanoseconds until the next look.
    pub(super) fn tick(&self) -> u64 {
        self.count_of_link();
        for (peer, heard) in self.heard.iter().enumerate() {
            if heard.swap(false, Ordering::Relaxed) {
                self.member_step(Input::Heard(NodeId(peer as u16)));
            }
        }
        self.member_step(Input::Tick);
        lock(&self.membership).tick_interval()
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

    /// The membership takes a fact.
    pub(super) fn member_step(&self, input: Input) {
        let Ok(()) = node::take_fact(&mut self.carrier(), node::Input::Membership(input));
    }

    /// Carries out what the membership decided.
    pub(super) fn note_of_members(&self, effect: Effect) {
        match effect {
            Effect::AllLeft => {
                self.all_left.store(true, Ordering::SeqCst);
                self.rouse_leaver();
            }
            Effect::Ended => self.find_cluster_ended(),
            Effect::Joined => self.elastic.note_joined(),
            Effect::HandOver => self.rouse_leaver(),
            Effect::TakeOver(range) => self.take_over(range),
            Effect::TakeOverEnds => self.end_take_over(),
            Effect::Died(peer) => {
                let why = lock(&self.losses).iter().find(|(lost, _)| *lost == peer).map(|(_, why)| why.clone());
                let why = why.unwrap_or_else(|| "is gone without having left the cluster".to_owned());
                self.fail_because_of(peer, format!("{} {why}", self.name_of(peer)));
            }
            Effect::Failed(culprit) if culprit == self.me => {
                self.fail_because_of(culprit, "the other nodes gave this node up; their messages say why".to_owned());
            }
            Effect::Failed(culprit) => self.fail_because_of(
                culprit,
                format!(
                    "{} was reported as failed by another node, whose message or its own says why",
                    self.name_of(culprit)
                ),
            ),
            Effect::Silent(peer, silence) => self.fail_because_of(
                peer,
                format!(
                    "{} has been silent for {:.1} s; it may be stopped or unreachable \
                     (silence_seconds_max sets the limit)",
                    self.name_of(peer),
                    silence as f64 / 1e9
                ),
            ),
            Effect::Send(..)
            | Effect::Absent(_)
            | Effect::Came(_)
            | Effect::Departs(_)
            | Effect::Vanished(_)
            | Effect::Violation(..) => unreachable!("the protocols carry these out"),
        }
    }
}
