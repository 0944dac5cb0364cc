//! Membership: which peers are present, fell silent, came late, or left.
//!
//! Promises: a peer is reported as dead, once, if its connection breaks before it announced that it leaves, or while this
//! node still needs what it serves. A peer that is connected but sends nothing for the configured time is reported as
//! silent, once per silence. The end of the program's work is reached when every connected node has announced that it
//! leaves. It must never report a peer that left when all nodes were done, nor one that never came. A cluster must never
//! fail because a node fails that was not let in.
//!
//! # Founders and joined nodes
//!
//! The first nodes are *founders*: they stay until all of them are done. Other nodes may join and leave
//! ([`Membership::elastic`]). One founder, the *coordinator*, lets one node at a time in or out, in the order of their
//! requests, so that all present nodes know each other. It lets no node in before every founder has come. Otherwise a
//! founder could meet a node while that node leaves, and would wait for a node that is gone.
//!
//! ```text
//! joins:   n → coordinator  Join          leaves:  n → coordinator  Depart
//!          n ← coordinator  Present(node) …        n ← coordinator  Turn
//!          n ← coordinator  Welcome(count)
//!          n → each of them Join                   n → coordinator  Behind(pages) …, Handed
//!          n ← each of them Welcome                    (the coordinator takes the pages over)
//!          n → coordinator  Joined                 n ← coordinator  Taken
//!                                                  n → everybody    Going
//!                                                  n ← everybody    Farewell
//! ```
//!
//! `Going` is the last message that a leaving node sends of its own accord, and `Farewell` the last that is sent to it.
//! Between the two it still serves. On a link that keeps the order of each pair, everything that was ever sent to the node
//! has arrived when it has received every farewell, and everything that it ever sent has arrived where its connection
//! ended. So no message is lost, and [`Effect::Vanished`] is pushed when no message of the node is under way any more.

use crate::Nanoseconds;
use crate::page::{NodeId, PageRange};
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

/// A fact about the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// There is a connection to this peer.
    Connected(NodeId),
    /// The connection to this peer broke.
    Lost(NodeId),
    /// A message of this module arrived.
    Message(NodeId, Message),
    /// Another message arrived from this peer, not later than `now`.
    Heard(NodeId),
    /// This node's program is done. At a joined node: it is to leave now, whatever the others do.
    Leave,
    /// After [`Effect::HandOver`]: other nodes may still send requests for these pages to this node.
    Behind(PageRange),
    /// After [`Effect::HandOver`]: all pages that are left behind were named.
    HandedOver,
    /// After [`Effect::TakeOverEnds`]: this node has taken every page that was named.
    TookOver,
    /// Time passed.
    Tick,
}

/// An order or a report to the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send this.
    Send(NodeId, Message),
    /// The peer is dead.
    Died(NodeId),
    /// A peer reports that this node failed.
    Failed(NodeId),
    /// The peer has sent nothing for this long.
    Silent(NodeId, Nanoseconds),
    /// All nodes are done, or have said farewell to this node: connections may be closed. Nothing is reported after it.
    AllLeft,
    /// The coordinator ended before it let this node in: there is no cluster any more, and no node failed.
    Ended,
    /// To this node, which is let in: this joined node is not present. It must request no pages from it, and it may request
    /// none at all before it has been told of all such nodes.
    Absent(NodeId),
    /// This node has met all other nodes.
    Joined,
    /// A joined node is present from now on.
    Came(NodeId),
    /// This node, which leaves, is to name the pages that it leaves behind.
    HandOver,
    /// Take these pages over, for stores, from a node that leaves.
    TakeOver(PageRange),
    /// No more follow; give [`Input::TookOver`] when all were taken.
    TakeOverEnds,
    /// The node is about to leave: nothing may be sent to it after the next message. From now on the coordinator receives
    /// the requests that would have gone to it.
    Departs(NodeId),
    /// The node has left, and no message from it or to it is under way.
    Vanished(NodeId),
    /// The peer sent a message that no correct peer can send.
    Violation(NodeId, &'static str),
}

/// The messages of nodes about themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Message {
    /// I am here.
    Alive,
    /// My program is done; I serve until the programs of all nodes are.
    Leave,
    /// This node failed, which ends the cluster. A node that passes this on names the node that failed.
    Fail(NodeId),
    /// To the coordinator: I came later, let me in. To the others: I was let in.
    Join,
    /// From the coordinator, which lets you in: this node is present.
    Present(NodeId),
    /// You are in. From the coordinator, with the number of nodes that it named; they may have been overtaken.
    Welcome(u16),
    /// I have met all other nodes.
    Joined,
    /// I came later and want to leave.
    Depart,
    /// It is your turn to leave: name the pages that you leave behind.
    Turn,
    /// Other nodes may still send me requests for these pages.
    Behind(PageRange),
    /// These were all pages; this many messages named them.
    Handed(u32),
    /// I have taken your pages over.
    Taken,
    /// I leave. From now on I only pass messages on.
    Going,
    /// I send nothing more.
    Farewell,
}

/// Why a node cannot join.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoPlace {
    /// Every number was given to a node, and none is given twice.
    Full,
    /// The program of the coordinator is done.
    Ending,
    /// This node is not the coordinator.
    AskCoordinator,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
enum Peer {
    /// Did not come, or is connected and was not let in yet.
    #[default]
    Absent,
    Present,
    Leaving,
    /// A joined node to which farewell was said.
    Departing,
    Gone,
}

/// The state machine of membership.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Membership {
    me: NodeId,
    peers: Vec<Peer>,
    linked: Vec<bool>,
    heard: Vec<Nanoseconds>,
    reported: Vec<bool>,
    silence_max: Nanoseconds,
    said: Nanoseconds,
    leaving: bool,
    finished: bool,
    gathering: Option<Gathering>,
    elastic: Option<Elastic>,
    now: Nanoseconds,
}

/// The nodes start at any time, and only the manager knows all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Gathering {
    manager: NodeId,
    until: Nanoseconds,
}

/// What a node knows in a cluster that others may join.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Elastic {
    founders: u16,
    coordinator: NodeId,
    /// The stage of this node, if it is no founder.
    stage: Stage,
    /// Whether this node must meet the node with this number.
    expected: Vec<bool>,
    /// The number of these nodes, as the coordinator said it.
    expected_in_all: Option<u16>,
    /// The number of messages that named pages: sent by this node, or received from the one that leaves.
    named: u32,
    /// At the coordinator: the number of these messages in total.
    named_in_all: Option<u32>,
    /// At the coordinator: numbers given out.
    reserved: u16,
    /// At the coordinator: the node that joins or leaves now.
    change: Option<Change>,
    /// At the coordinator: the nodes that join or leave next.
    waiting: VecDeque<Change>,
}

/// The stages of a joined node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
enum Stage {
    /// Waits for the coordinator's welcome.
    Calling,
    /// Connects to the others.
    Connecting,
    Member,
    /// Wants to leave, and waits for its turn.
    Departing,
    /// Names its pages, and waits until they were taken.
    HandingOver,
    /// Waits for the farewell of all other nodes.
    Going,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
enum Change {
    Comes(NodeId),
    Goes(NodeId),
}

/// What node `me`, which cannot go on because of `culprit`, tells every other of `nodes` that it can reach.
pub fn failure_messages(me: NodeId, nodes: u16, culprit: NodeId) -> impl Iterator<Item = (NodeId, Message)> {
    let others = (0..nodes).map(NodeId).filter(move |&peer| peer != me);
    others.map(move |peer| (peer, Message::Fail(culprit)))
}

impl Membership {
    /// No peer is present yet. A peer that is silent for `silence_max` is reported. To be heard in time itself, this node
    /// sends something at least four times in that span.
    pub fn new(me: NodeId, nodes: u16, silence_max: Nanoseconds) -> Membership {
        let nodes = usize::from(nodes);
        Membership {
            me,
            peers: vec![Peer::Absent; nodes],
            linked: vec![false; nodes],
            heard: vec![0; nodes],
            reported: vec![false; nodes],
            silence_max: silence_max.max(4),
            said: 0,
            leaving: false,
            finished: false,
            gathering: None,
            elastic: None,
            now: 0,
        }
    }

    /// For a cluster whose nodes at their start wait only for `manager`, not for each other. A manager that is done expects
    /// the nodes that did not come yet until `until`, and every other node stays until the manager is gone: it may not have
    /// met a late node that needs what it holds.
    #[must_use]
    pub fn gathered_by(mut self, manager: NodeId, until: Nanoseconds) -> Membership {
        self.gathering = Some(Gathering { manager, until });
        self
    }

    /// For a cluster of `founders` nodes that others may join, up to the number of nodes. `coordinator`, a founder, lets
    /// them in. Founders stay until the coordinator is gone, for nodes that come late.
    #[must_use]
    pub fn elastic(mut self, founders: u16, coordinator: NodeId) -> Membership {
        assert!(coordinator.0 < founders, "the coordinator is a founder");
        let stage = if self.me.0 < founders { Stage::Member } else { Stage::Calling };
        self.gathering.get_or_insert(Gathering { manager: coordinator, until: 0 });
        self.elastic = Some(Elastic {
            founders,
            coordinator,
            stage,
            expected: vec![false; self.peers.len()],
            expected_in_all: None,
            named: 0,
            named_in_all: None,
            reserved: 0,
            change: None,
            waiting: VecDeque::new(),
        });
        self
    }

    /// At the coordinator: gives a number to a node that wants to join. It is given once.
    pub fn reserve(&mut self) -> Result<NodeId, NoPlace> {
        let nodes = self.peers.len() as u16;
        let (me, leaving) = (self.me, self.leaving);
        let Some(elastic) = &mut self.elastic else { return Err(NoPlace::Full) };
        if elastic.coordinator != me {
            return Err(NoPlace::AskCoordinator);
        }
        if leaving {
            return Err(NoPlace::Ending);
        }
        let number = elastic.founders + elastic.reserved;
        if number >= nodes {
            return Err(NoPlace::Full);
        }
        elastic.reserved += 1;
        Ok(NodeId(number))
    }

    /// How often to give [`Input::Tick`].
    pub fn tick_interval(&self) -> Nanoseconds {
        self.silence_max / 8
    }

    /// Takes one fact and pushes the effects that follow from it.
    pub fn step(&mut self, now: Nanoseconds, input: Input, effects: &mut Vec<Effect>) {
        self.now = self.now.max(now);
        match input {
            Input::Connected(peer) => self.connected(now, peer, effects),
            // A message to a node that is done comes too late, and must not be made a failure.
            Input::Lost(_) | Input::Message(..) | Input::Tick if self.finished => {}
            Input::Lost(peer) => self.lost(peer, effects),
            Input::Heard(peer) => self.hear(now, peer),
            Input::Message(peer, message) => {
                self.hear(now, peer);
                self.message(peer, message, effects);
            }
            Input::Leave => self.leave(effects),
            Input::Behind(range) => {
                let elastic = self.elastic.as_mut().expect("only a joined node leaves something behind");
                elastic.named += 1;
                effects.push(Effect::Send(elastic.coordinator, Message::Behind(range)));
            }
            Input::HandedOver => {
                let elastic = self.elastic.as_ref().expect("only a joined node hands over");
                effects.push(Effect::Send(elastic.coordinator, Message::Handed(elastic.named)));
            }
            Input::TookOver => {
                if let Some(Change::Goes(node)) = self.elastic.as_ref().and_then(|elastic| elastic.change) {
                    effects.push(Effect::Send(node, Message::Taken));
                }
            }
            Input::Tick => self.tick(now, effects),
        }
        self.finish(effects);
    }

    /// The peers that this node still waits for while it leaves.
    pub fn missing(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.others().filter(|&peer| self.is_missing(peer))
    }

    /// Whether the peer is present: it came, was let in, and did not leave.
    pub fn is_present(&self, peer: NodeId) -> bool {
        matches!(self.peers[usize::from(peer.0)], Peer::Present | Peer::Leaving)
    }

    /// Whether the peer was present and left.
    pub fn is_gone(&self, peer: NodeId) -> bool {
        matches!(self.peers[usize::from(peer.0)], Peer::Departing | Peer::Gone)
    }

    /// Whether the other founders stay until this node is gone: it waits for late nodes, or lets others in.
    /// Whether it is, or was, this node's turn to leave ([`Effect::HandOver`]).
    pub fn may_hand_over(&self) -> bool {
        matches!(self.stage(), Some(Stage::HandingOver | Stage::Going))
    }

    /// Whether no other node needs this one any more ([`Effect::AllLeft`]).
    pub fn has_finished(&self) -> bool {
        self.finished
    }

    fn gathers(&self) -> bool {
        self.gathering.is_some_and(|all| all.manager == self.me)
    }

    fn is_missing(&self, peer: NodeId) -> bool {
        let state = self.peers[usize::from(peer.0)];
        if self.is_joined_node(self.me) {
            // For a node that leaves, a peer that said farewell is gone; the others stay as long as this node is present.
            return matches!(state, Peer::Present | Peer::Leaving);
        }
        let gathers = self.gathers();
        let is_founder = !self.is_joined_node(peer);
        match state {
            Peer::Present => true,
            Peer::Absent if is_founder => gathers && self.gathering.is_some_and(|all| self.now < all.until),
            Peer::Absent => gathers && self.is_waiting(peer) && self.founders_are_there(),
            Peer::Leaving => self.gathering.is_some_and(|all| all.manager == peer),
            Peer::Departing => gathers,
            Peer::Gone => false,
        }
    }

    fn connected(&mut self, now: Nanoseconds, peer: NodeId, effects: &mut Vec<Effect>) {
        self.hear(now, peer);
        let index = usize::from(peer.0);
        self.linked[index] = true;
        if self.is_joined_node(self.me) {
            self.call(peer, effects);
        } else if !self.is_joined_node(peer) {
            self.peers[index] = Peer::Present;
            if self.leaving {
                effects.push(Effect::Send(peer, Message::Leave));
            }
            if self.coordinates() && !self.finished {
                // It may be the last founder that nodes which want to join wait for.
                self.begin_next(effects);
            }
        }
    }

    /// A joined node introduces itself to the nodes that it must meet: the coordinator first.
    fn call(&self, peer: NodeId, effects: &mut Vec<Effect>) {
        let Some(elastic) = &self.elastic else { return };
        let wanted = match elastic.stage {
            Stage::Calling => peer == elastic.coordinator,
            Stage::Connecting => elastic.expected[usize::from(peer.0)],
            Stage::Member | Stage::Departing | Stage::HandingOver | Stage::Going => false,
        };
        if wanted && self.linked[usize::from(peer.0)] && self.peers[usize::from(peer.0)] == Peer::Absent {
            effects.push(Effect::Send(peer, Message::Join));
        }
    }

    fn message(&mut self, peer: NodeId, message: Message, effects: &mut Vec<Effect>) {
        match message {
            Message::Alive => {}
            Message::Leave if !self.is_joined_node(peer) => self.peers[usize::from(peer.0)] = Peer::Leaving,
            // A node that was not let in has nothing whose loss could matter, and may not know that the cluster has ended.
            // It ends, and must not be let in any more.
            Message::Fail(_) if self.was_not_let_in(peer) => self.forget_request(peer),
            Message::Fail(culprit) => {
                // That the messenger leaves too is a consequence, and must not be taken for the cause.
                self.peers[usize::from(peer.0)] = Peer::Gone;
                effects.push(Effect::Failed(culprit));
            }
            Message::Join => self.join_of(peer, effects),
            Message::Present(node) if self.hears_coordinator(peer, Stage::Calling) => {
                self.expect(peer, node, effects);
            }
            Message::Welcome(in_all) => self.welcomed(peer, in_all, effects),
            Message::Joined => self.change_is_over(Change::Comes(peer), effects),
            Message::Depart if self.coordinates() && self.is_joined_node(peer) => {
                self.ask_for(Change::Goes(peer), effects);
            }
            Message::Behind(_) | Message::Handed(_) if self.changes() == Some(Change::Goes(peer)) => {
                self.takes_over(message, effects);
            }
            Message::Turn if self.hears_coordinator(peer, Stage::Departing) => {
                self.set_stage(Stage::HandingOver);
                effects.push(Effect::HandOver);
            }
            Message::Taken if self.hears_coordinator(peer, Stage::HandingOver) => {
                self.set_stage(Stage::Going);
                self.tell_all(Message::Going, effects);
            }
            Message::Going if self.is_joined_node(peer) && self.is_present(peer) => {
                self.peers[usize::from(peer.0)] = Peer::Departing;
                effects.push(Effect::Departs(peer));
                effects.push(Effect::Send(peer, Message::Farewell));
            }
            Message::Farewell if self.stage() == Some(Stage::Going) => self.peers[usize::from(peer.0)] = Peer::Gone,
            _ => effects.push(Effect::Violation(peer, "a word about joining or leaving out of turn")),
        }
    }

    /// A joined node wants to be let in, or introduces itself.
    fn join_of(&mut self, peer: NodeId, effects: &mut Vec<Effect>) {
        if !self.is_joined_node(peer) || self.peers[usize::from(peer.0)] != Peer::Absent {
            return effects.push(Effect::Violation(peer, "a second introduction"));
        }
        if self.coordinates() {
            return self.ask_for(Change::Comes(peer), effects);
        }
        self.let_in(peer, 0, effects);
    }

    /// Welcomes a node, to which this node has named `members` nodes.
    fn let_in(&mut self, peer: NodeId, members: u16, effects: &mut Vec<Effect>) {
        self.peers[usize::from(peer.0)] = Peer::Present;
        effects.push(Effect::Came(peer));
        effects.push(Effect::Send(peer, Message::Welcome(members)));
        if self.leaving && !self.is_joined_node(self.me) {
            effects.push(Effect::Send(peer, Message::Leave));
        }
    }

    /// The coordinator names a node that is present.
    fn expect(&mut self, coordinator: NodeId, node: NodeId, effects: &mut Vec<Effect>) {
        let elastic = self.elastic.as_mut().expect("a joined node");
        let is_new =
            elastic.expected.get_mut(usize::from(node.0)).is_some_and(|known| !core::mem::replace(known, true));
        if !is_new || node == self.me {
            return effects.push(Effect::Violation(coordinator, "a node that is named twice, or is no peer"));
        }
        self.connect_if_all_are_named(effects);
    }

    /// A node let this node in.
    fn welcomed(&mut self, peer: NodeId, in_all: u16, effects: &mut Vec<Effect>) {
        if self.hears_coordinator(peer, Stage::Calling) {
            let elastic = self.elastic.as_mut().expect("a joined node");
            elastic.expected_in_all = Some(in_all);
            self.connect_if_all_are_named(effects);
        } else if self.stage() == Some(Stage::Connecting) {
            self.peers[usize::from(peer.0)] = Peer::Present;
            self.join_if_all_are_met(effects);
        } else {
            effects.push(Effect::Violation(peer, "a welcome that was not asked for"));
        }
    }

    /// Once the coordinator has named every node that is present, this node introduces itself to them.
    fn connect_if_all_are_named(&mut self, effects: &mut Vec<Effect>) {
        let elastic = self.elastic.as_ref().expect("a joined node");
        let named = elastic.expected.iter().filter(|&&is_expected| is_expected).count();
        if elastic.expected_in_all.map(usize::from) != Some(named) {
            return;
        }
        let is_absent = |node: &NodeId| self.is_joined_node(*node) && !elastic.expected[usize::from(node.0)];
        effects.extend(self.others().filter(is_absent).map(Effect::Absent));
        let coordinator = &mut self.peers[usize::from(elastic.coordinator.0)];
        if *coordinator == Peer::Absent {
            *coordinator = Peer::Present;
        }
        self.set_stage(Stage::Connecting);
        for other in self.others() {
            self.call(other, effects);
        }
        self.join_if_all_are_met(effects);
    }

    fn join_if_all_are_met(&mut self, effects: &mut Vec<Effect>) {
        let elastic = self.elastic.as_ref().expect("a joined node");
        let is_met = |other: &NodeId| {
            let index = usize::from(other.0);
            !elastic.expected[index] || self.peers[index] != Peer::Absent
        };
        if self.others().all(|other| is_met(&other)) {
            effects.push(Effect::Send(elastic.coordinator, Message::Joined));
            effects.push(Effect::Joined);
            self.set_stage(Stage::Member);
        }
    }

    fn leave(&mut self, effects: &mut Vec<Effect>) {
        self.leaving = true;
        match &mut self.elastic {
            Some(elastic) if self.me.0 >= elastic.founders => {
                elastic.stage = Stage::Departing;
                effects.push(Effect::Send(elastic.coordinator, Message::Depart));
            }
            _ => self.tell_all(Message::Leave, effects),
        }
    }

    /// At the coordinator: a node that joins or leaves waits for those that asked before.
    fn ask_for(&mut self, change: Change, effects: &mut Vec<Effect>) {
        let elastic = self.elastic.as_mut().expect("the coordinator of an elastic cluster");
        if elastic.change == Some(change) || elastic.waiting.contains(&change) {
            let (Change::Comes(peer) | Change::Goes(peer)) = change;
            return effects.push(Effect::Violation(peer, "the same request twice"));
        }
        elastic.waiting.push_back(change);
        self.begin_next(effects);
    }

    fn begin_next(&mut self, effects: &mut Vec<Effect>) {
        let there = self.founders_are_there();
        let Some(elastic) = &mut self.elastic else { return };
        if elastic.change.is_some() || !there {
            return;
        }
        elastic.change = elastic.waiting.pop_front();
        (elastic.named, elastic.named_in_all) = (0, None);
        match elastic.change {
            Some(Change::Comes(peer)) => {
                let present = self.others().filter(|&other| self.is_present(other));
                let mut members = 0;
                effects.extend(present.map(|other| {
                    members += 1;
                    Effect::Send(peer, Message::Present(other))
                }));
                self.let_in(peer, members, effects);
            }
            Some(Change::Goes(peer)) => effects.push(Effect::Send(peer, Message::Turn)),
            None => {}
        }
    }

    fn change_is_over(&mut self, change: Change, effects: &mut Vec<Effect>) {
        let (Change::Comes(peer) | Change::Goes(peer)) = change;
        match &mut self.elastic {
            Some(elastic) if elastic.change == Some(change) => {
                elastic.change = None;
                self.begin_next(effects);
            }
            _ => effects.push(Effect::Violation(peer, "the end of what did not begin")),
        }
    }

    /// At the coordinator: the pages that the leaving node leaves behind.
    fn takes_over(&mut self, message: Message, effects: &mut Vec<Effect>) {
        let elastic = self.elastic.as_mut().expect("the coordinator of an elastic cluster");
        match message {
            Message::Behind(range) => {
                elastic.named += 1;
                effects.push(Effect::TakeOver(range));
            }
            Message::Handed(in_all) => elastic.named_in_all = Some(in_all),
            _ => {}
        }
        // The messages may have overtaken each other.
        if elastic.named_in_all == Some(elastic.named) {
            effects.push(Effect::TakeOverEnds);
        }
    }

    fn lost(&mut self, peer: NodeId, effects: &mut Vec<Effect>) {
        let index = usize::from(peer.0);
        let before = core::mem::replace(&mut self.peers[index], Peer::Gone);
        self.linked[index] = false;
        match before {
            Peer::Present => effects.push(Effect::Died(peer)),
            // Its program is done, but it serves until the programs of all nodes are: this node's is not. It also serves
            // longer than any joined node, and than a manager that gathers, which goes before the others.
            Peer::Leaving if !self.leaving || self.gathers() || self.is_joined_node(self.me) => {
                effects.push(Effect::Died(peer));
            }
            // No other node can let this node in.
            Peer::Absent if self.hears_coordinator(peer, Stage::Calling) => effects.push(Effect::Ended),
            // It came and went before it was let in: its number is not given again.
            Peer::Absent => self.forget_request(peer),
            Peer::Departing => {
                effects.push(Effect::Vanished(peer));
                if self.changes() == Some(Change::Goes(peer)) {
                    self.change_is_over(Change::Goes(peer), effects);
                }
            }
            Peer::Leaving | Peer::Gone => {}
        }
    }

    fn forget_request(&mut self, peer: NodeId) {
        if let Some(elastic) = &mut self.elastic {
            elastic.waiting.retain(|&change| change != Change::Comes(peer));
        }
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
            let here = self.is_present(NodeId(index as u16));
            if here && silence >= self.silence_max && !self.reported[index] {
                self.reported[index] = true;
                effects.push(Effect::Silent(NodeId(index as u16), silence));
            }
        }
    }

    fn finish(&mut self, effects: &mut Vec<Effect>) {
        let may = self.leaving && matches!(self.stage(), None | Some(Stage::Member | Stage::Going));
        if may && !self.finished && self.missing().next().is_none() {
            self.finished = true;
            effects.push(Effect::AllLeft);
        }
    }

    fn tell_all(&self, message: Message, effects: &mut Vec<Effect>) {
        let there = self.others().filter(|&peer| self.is_present(peer));
        effects.extend(there.map(|peer| Effect::Send(peer, message)));
    }

    fn others(&self) -> impl Iterator<Item = NodeId> + use<> {
        let me = self.me;
        (0..self.peers.len() as u16).map(NodeId).filter(move |&node| node != me)
    }

    fn is_joined_node(&self, node: NodeId) -> bool {
        self.elastic.as_ref().is_some_and(|elastic| node.0 >= elastic.founders)
    }

    /// Whether the peer is a joined node that this node has not met.
    fn was_not_let_in(&self, peer: NodeId) -> bool {
        self.is_joined_node(peer) && self.peers[usize::from(peer.0)] == Peer::Absent
    }

    /// Whether every founder has come, as far as this node knows.
    fn founders_are_there(&self) -> bool {
        let founders = self.elastic.as_ref().map_or(0, |elastic| elastic.founders);
        let mut others = (0..founders).filter(|&node| node != self.me.0);
        others.all(|node| self.peers[usize::from(node)] != Peer::Absent)
    }

    fn coordinates(&self) -> bool {
        self.elastic.as_ref().is_some_and(|elastic| elastic.coordinator == self.me)
    }

    fn changes(&self) -> Option<Change> {
        self.elastic.as_ref().and_then(|elastic| elastic.change)
    }

    fn is_waiting(&self, peer: NodeId) -> bool {
        self.elastic.as_ref().is_some_and(|elastic| elastic.waiting.contains(&Change::Comes(peer)))
    }

    fn stage(&self) -> Option<Stage> {
        self.elastic.as_ref().map(|elastic| elastic.stage)
    }

    fn set_stage(&mut self, stage: Stage) {
        if let Some(elastic) = &mut self.elastic {
            elastic.stage = stage;
        }
    }

    /// Whether `peer` is the coordinator, and this node is a joined one at this stage.
    fn hears_coordinator(&self, peer: NodeId, stage: Stage) -> bool {
        self.is_joined_node(self.me)
            && self.elastic.as_ref().is_some_and(|elastic| elastic.coordinator == peer && elastic.stage == stage)
    }
}

#[cfg(test)]
mod tests;
