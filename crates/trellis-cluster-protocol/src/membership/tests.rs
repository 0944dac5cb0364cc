//! Tests of membership, step by step: failures, ends, and nodes that join and leave.

use super::*;
use crate::page::PageIndex;
use alloc::collections::BTreeSet;
use trellis_base::Random;

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
    let said = step(&mut m, 3, Input::Leave);
    assert_eq!(said, [Effect::Send(NodeId(1), Message::Leave), Effect::Send(NodeId(2), Message::Leave)]);
    assert_eq!(m.missing().collect::<Vec<_>>(), [NodeId(1)]);
    assert_eq!(step(&mut m, 3, Input::Lost(NodeId(2))), [], "this node needs nothing of it any more");
    let end = step(&mut m, 4, Input::Message(NodeId(1), Message::Leave));
    assert_eq!(end, [Effect::AllLeft]);
}

#[test]
fn who_said_that_it_leaves_and_breaks_off_while_this_node_works_is_dead() {
    let mut m = Membership::new(NodeId(0), 3, 1000);
    step(&mut m, 0, Input::Connected(NodeId(1)));
    step(&mut m, 0, Input::Connected(NodeId(2)));
    step(&mut m, 1, Input::Message(NodeId(2), Message::Leave));
    assert_eq!(step(&mut m, 2, Input::Lost(NodeId(2))), [Effect::Died(NodeId(2))], "it served pages until now");
}

#[test]
fn a_manager_that_gathers_expects_late_nodes_until_the_deadline() {
    let mut m = Membership::new(NodeId(0), 3, 1000).gathered_by(NodeId(0), 500);
    step(&mut m, 0, Input::Connected(NodeId(1)));
    step(&mut m, 1, Input::Message(NodeId(1), Message::Leave));
    assert_eq!(step(&mut m, 2, Input::Leave), [Effect::Send(NodeId(1), Message::Leave)]);
    assert_eq!(m.missing().collect::<Vec<_>>(), [NodeId(2)]);
    let dies = step(&mut m.clone(), 3, Input::Lost(NodeId(1)));
    assert_eq!(dies, [Effect::Died(NodeId(1))], "node 2 may need what it has");
    let mut in_time = m.clone();
    let reported = step(&mut in_time, 499, Input::Connected(NodeId(2)));
    assert_eq!(reported, [Effect::Send(NodeId(2), Message::Leave)]);
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
    let reported = step(&mut m, 1, Input::Message(NodeId(0), Message::Fail(NodeId(1))));
    assert_eq!(reported, [Effect::Failed(NodeId(1))]);
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

/// A cluster of state machines whose messages are delivered in any order that keeps the order of each pair.
struct Cluster {
    founders: u16,
    nodes: Vec<Membership>,
    /// Connections that stand, by their two numbers.
    links: BTreeSet<(u16, u16)>,
    under_way: Vec<(NodeId, NodeId, Option<Message>)>,
    /// Pairs that are still to be connected: nodes that start late are met late.
    apart: Vec<(u16, u16)>,
    closed: BTreeSet<u16>,
    reported: Vec<Vec<Effect>>,
    random: Random,
}

const COORDINATOR: NodeId = NodeId(1);

impl Cluster {
    fn new(founders: u16, nodes: u16, seed: u64) -> Cluster {
        let mut cluster = Cluster::unconnected(founders, nodes, seed);
        while cluster.connect_some() {}
        cluster
    }

    /// No founder has met another yet.
    fn unconnected(founders: u16, nodes: u16, seed: u64) -> Cluster {
        let node = |me| Membership::new(NodeId(me), nodes, 1_000_000).elastic(founders, COORDINATOR);
        Cluster {
            founders,
            nodes: (0..nodes).map(node).collect(),
            links: BTreeSet::new(),
            under_way: Vec::new(),
            closed: BTreeSet::new(),
            reported: vec![Vec::new(); usize::from(nodes)],
            apart: (0..founders).flat_map(|node| (0..node).map(move |other| (node, other))).collect(),
            random: Random::new(seed),
        }
    }

    /// Connects two nodes that are still apart; false if there are none.
    fn connect_some(&mut self) -> bool {
        if self.apart.is_empty() {
            return false;
        }
        let picked = self.random.index(self.apart.len());
        let (node, other) = self.apart.swap_remove(picked);
        self.connect(node, other);
        true
    }

    /// Whether a founder has met all the others, before which its program does not begin.
    fn has_started(&self, founder: u16) -> bool {
        !self.apart.iter().any(|&(a, b)| a < self.founders && (a == founder || b == founder))
    }

    fn connect(&mut self, a: u16, b: u16) {
        self.links.insert((a.max(b), a.min(b)));
        self.step(NodeId(a), Input::Connected(NodeId(b)));
        self.step(NodeId(b), Input::Connected(NodeId(a)));
    }

    /// A process asks for a number and connects to all nodes that are present or were given a number before.
    fn begin_join(&mut self) -> Result<u16, NoPlace> {
        let (node, others) = self.take_place()?;
        others.into_iter().for_each(|other| self.connect(node, other));
        Ok(node)
    }

    /// The same, but it meets them one by one, at any time.
    fn begin_slow_join(&mut self) -> Result<u16, NoPlace> {
        let (node, others) = self.take_place()?;
        self.apart.extend(others.into_iter().map(|other| (node, other)));
        Ok(node)
    }

    fn take_place(&mut self) -> Result<(u16, Vec<u16>), NoPlace> {
        let node = self.nodes[usize::from(COORDINATOR.0)].reserve()?.0;
        let there = |other: &u16| !self.closed.contains(other) && !self.nodes[1].is_gone(NodeId(*other));
        Ok((node, (0..node).filter(there).collect()))
    }

    /// A node that was not let in gives up, and blames the coordinator.
    fn fail(&mut self, node: u16) {
        let peers = self.links.iter().filter(|link| link.0 == node || link.1 == node);
        let blamed = peers.map(|link| (NodeId(node), NodeId(link.0 + link.1 - node), Some(Message::Fail(COORDINATOR))));
        self.under_way.extend(blamed.collect::<Vec<_>>());
        self.close(node);
    }

    fn close(&mut self, node: u16) {
        self.closed.insert(node);
        self.apart.retain(|&(a, b)| a != node && b != node);
        for other in 0..self.nodes.len() as u16 {
            if self.links.remove(&(node.max(other), node.min(other))) {
                // Comes after everything that was sent before.
                self.under_way.push((NodeId(node), NodeId(other), None));
            }
        }
    }

    fn step(&mut self, node: NodeId, input: Input) {
        let mut effects = Vec::new();
        self.nodes[usize::from(node.0)].step(0, input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Send(to, message) => {
                    let link = (node.0.max(to.0), node.0.min(to.0));
                    assert!(
                        self.links.contains(&link),
                        "node {} sends {message:?} to {to}, which is not there",
                        node.0
                    );
                    self.under_way.push((node, to, Some(message)));
                }
                Effect::TakeOverEnds => self.reported[usize::from(node.0)].push(effect),
                Effect::HandOver => {
                    self.reported[usize::from(node.0)].push(effect);
                    self.step(node, Input::Behind(PageRange::one(PageIndex(u32::from(node.0)))));
                    self.step(node, Input::HandedOver);
                }
                Effect::AllLeft => {
                    self.reported[usize::from(node.0)].push(effect);
                    self.close(node.0);
                }
                Effect::Died(_) | Effect::Failed(_) | Effect::Violation(..) => {
                    panic!("node {} reports {effect:?}", node.0)
                }
                other => self.reported[usize::from(node.0)].push(other),
            }
        }
    }

    /// Delivers one message, or lets the coordinator end a takeover; false if there is nothing to do.
    fn go_on(&mut self) -> bool {
        let coordinator = usize::from(COORDINATOR.0);
        if let Some(ends) = self.reported[coordinator].iter().position(|effect| *effect == Effect::TakeOverEnds)
            && self.random.once_in(4)
        {
            self.reported[coordinator].remove(ends);
            self.step(COORDINATOR, Input::TookOver);
            return true;
        }
        if self.under_way.is_empty() {
            return self.reported[coordinator].contains(&Effect::TakeOverEnds);
        }
        let picked = self.random.index(self.under_way.len());
        let pair = (self.under_way[picked].0, self.under_way[picked].1);
        let first = self.under_way.iter().position(|message| (message.0, message.1) == pair).expect("it is there");
        let (from, to, message) = self.under_way.remove(first);
        match message {
            // A process that has ended receives nothing.
            _ if self.closed.contains(&to.0) => {}
            Some(message) => self.step(to, Input::Message(from, message)),
            None => self.step(to, Input::Lost(from)),
        }
        true
    }

    fn settle(&mut self) {
        while self.go_on() {}
    }

    fn heard(&self, node: u16, effect: Effect) -> usize {
        self.reported[usize::from(node)].iter().filter(|reported| **reported == effect).count()
    }
}

#[test]
fn a_node_that_joins_meets_everybody_and_one_that_leaves_is_missed_by_nobody() {
    let mut cluster = Cluster::new(3, 5, 1);
    let node = cluster.begin_join().unwrap();
    cluster.settle();
    assert_eq!(node, 3);
    assert_eq!((cluster.heard(3, Effect::Absent(NodeId(4))), cluster.heard(3, Effect::Joined)), (1, 1));
    assert!((0..3).all(|founder| cluster.heard(founder, Effect::Came(NodeId(3))) == 1));
    cluster.step(NodeId(3), Input::Leave);
    cluster.settle();
    assert_eq!(cluster.heard(1, Effect::TakeOver(PageRange::one(PageIndex(3)))), 1);
    assert_eq!(cluster.heard(3, Effect::AllLeft), 1);
    for founder in 0..3 {
        assert_eq!(cluster.heard(founder, Effect::Departs(NodeId(3))), 1);
        assert_eq!(cluster.heard(founder, Effect::Vanished(NodeId(3))), 1);
    }
}

#[test]
fn numbers_are_given_once_by_the_coordinator_until_its_program_is_done() {
    let mut cluster = Cluster::new(3, 5, 2);
    assert_eq!(cluster.nodes[0].reserve(), Err(NoPlace::AskCoordinator));
    assert_eq!(cluster.nodes[1].reserve(), Ok(NodeId(3)));
    assert_eq!(cluster.begin_join(), Ok(4), "node 3 never came");
    assert_eq!(cluster.begin_join(), Err(NoPlace::Full));
    let mut ending = Membership::new(NodeId(0), 4, 1000).elastic(2, NodeId(0));
    step(&mut ending, 0, Input::Leave);
    assert_eq!(ending.reserve(), Err(NoPlace::Ending));
    assert_eq!(Membership::new(NodeId(0), 3, 1000).reserve(), Err(NoPlace::Full));
}

#[test]
fn founders_stay_until_a_joined_node_is_done() {
    let mut cluster = Cluster::new(2, 3, 3);
    cluster.begin_join().unwrap();
    cluster.settle();
    cluster.step(NodeId(0), Input::Leave);
    cluster.step(NodeId(1), Input::Leave);
    cluster.settle();
    assert_eq!(cluster.heard(0, Effect::AllLeft) + cluster.heard(1, Effect::AllLeft), 0);
    assert_eq!(cluster.nodes[1].missing().collect::<Vec<_>>(), [NodeId(2)]);
    cluster.step(NodeId(2), Input::Leave);
    cluster.settle();
    assert!((0..3).all(|node| cluster.heard(node, Effect::AllLeft) == 1));
}

/// Nodes join, leave and end in every mixture; each run is one order of events, chosen at random from its seed.
#[test]
fn whatever_the_order_everybody_comes_goes_and_ends() {
    for seed in 0..3000 {
        let founders = 1 + (seed % 3) as u16 + 1;
        let mut cluster = Cluster::new(founders, founders + 4, seed);
        let (mut joined, mut leaving, mut done) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        let mut reserved_only = 0;
        for _ in 0..200 {
            match cluster.random.below(12) {
                0 if done.is_empty() => {
                    if let Ok(node) = cluster.begin_join() {
                        joined.push(node);
                    }
                }
                1 if done.is_empty() && cluster.random.once_in(4) && cluster.nodes[1].reserve().is_ok() => {
                    reserved_only += 1;
                }
                2 => {
                    let ready = |node: &u16| cluster.heard(*node, Effect::Joined) == 1 && !leaving.contains(node);
                    if let Some(node) = joined.iter().copied().find(ready) {
                        leaving.insert(node);
                        cluster.step(NodeId(node), Input::Leave);
                    }
                }
                3 if cluster.random.once_in(8) => {
                    let founder = cluster.random.below(founders.into()) as u16;
                    if done.insert(founder) {
                        cluster.step(NodeId(founder), Input::Leave);
                    }
                }
                _ => {
                    cluster.go_on();
                }
            }
        }
        cluster.settle();
        // A node that asks when all founders are about to end may come too late, and is told so; all other nodes are let
        // in.
        let is_late = |node: &u16| cluster.heard(*node, Effect::Ended) == 1;
        let late: Vec<u16> = joined.iter().copied().filter(is_late).collect();
        assert!(late.is_empty() || done.len() == usize::from(founders), "seed {seed}: {late:?} are told of an end");
        joined.retain(|node| !late.contains(node));
        for &node in &joined {
            assert_eq!(cluster.heard(node, Effect::Joined), 1, "seed {seed}: node {node} is let in");
        }
        for &node in joined.iter().filter(|node| !leaving.contains(node)) {
            cluster.step(NodeId(node), Input::Leave);
        }
        (0..founders).filter(|founder| !done.contains(founder)).for_each(|founder| {
            cluster.step(NodeId(founder), Input::Leave);
        });
        cluster.settle();
        for node in (0..founders).chain(joined.iter().copied()) {
            assert_eq!(cluster.heard(node, Effect::AllLeft), 1, "seed {seed}: node {node} ends");
        }
        let vanished = joined.iter().map(|node| cluster.heard(1, Effect::Vanished(NodeId(*node)))).sum::<usize>();
        assert_eq!(vanished, joined.len(), "seed {seed}: {reserved_only} numbers were not used");
    }
}

/// Founders start late, and other nodes join in the meantime, leave at once, give up, or come while the cluster ends. No
/// node is reported (see [`Cluster::step`]), and all nodes end.
#[test]
fn whoever_comes_early_late_or_in_vain_ends_no_cluster() {
    let (mut met, mut too_late, mut gave_up) = (0, 0, 0);
    for seed in 0..4000 {
        let founders = 2 + (seed % 3) as u16;
        let mut cluster = Cluster::unconnected(founders, founders + 4, seed);
        let mut joiners = BTreeSet::new();
        let mut leaving = BTreeSet::new();
        let mut steps = 0;
        // After this many steps the founders' programs end.
        let ends = cluster.random.below(40);
        while cluster.closed.len() < usize::from(founders) + joiners.len() {
            steps += 1;
            assert!(steps < 5000, "seed {seed}: {:?} ended, of {founders} and {joiners:?}", cluster.closed);
            match cluster.random.below(10) {
                0 => joiners.extend(cluster.begin_slow_join()),
                1 | 2 => {
                    cluster.connect_some();
                }
                3 => {
                    let founder = cluster.random.below(founders.into()) as u16;
                    let may = cluster.has_started(founder) && steps > ends;
                    if may && leaving.insert(founder) {
                        cluster.step(NodeId(founder), Input::Leave);
                    }
                }
                4 => {
                    let ready = |node: &u16| cluster.heard(*node, Effect::Joined) == 1 && !leaving.contains(node);
                    if let Some(node) = joiners.iter().copied().find(ready) {
                        met += 1;
                        leaving.insert(node);
                        cluster.step(NodeId(node), Input::Leave);
                    }
                }
                5 => {
                    let open = |node: &u16| !cluster.closed.contains(node);
                    let ended = |node: &u16| cluster.heard(*node, Effect::Ended) == 1;
                    // Nothing listens at the coordinator's address, or this node does not want to wait for it.
                    let waits = |node: &u16| !cluster.links.contains(&(*node, COORDINATOR.0));
                    if let Some(node) = joiners.iter().copied().filter(open).find(ended) {
                        too_late += 1;
                        cluster.fail(node);
                    } else if let Some(node) = joiners.iter().copied().filter(open).find(waits)
                        && !leaving.contains(&node)
                        && cluster.nodes[usize::from(node)].stage() == Some(Stage::Calling)
                        && (cluster.closed.contains(&COORDINATOR.0) || cluster.random.once_in(8))
                    {
                        gave_up += 1;
                        cluster.fail(node);
                    }
                }
                _ => {
                    cluster.go_on();
                }
            }
        }
        // A node that was let in has met every founder, however late, and has said farewell to each.
        let let_in = joiners.iter().filter(|node| cluster.heard(**node, Effect::Joined) == 1);
        for (&node, founder) in let_in.flat_map(|node| (0..founders).map(move |founder| (node, founder))) {
            let heard = |effect| cluster.heard(founder, effect);
            let both = (heard(Effect::Came(NodeId(node))), heard(Effect::Departs(NodeId(node))));
            assert_eq!(both, (1, 1), "seed {seed}: founder {founder} knows of node {node}");
        }
    }
    assert!(met > 1000 && too_late > 20 && gave_up > 100, "{met} let in, {too_late} too late, {gave_up} gave up");
}

#[test]
fn a_cluster_of_a_thousand_nodes_names_each_to_one_that_comes_in_any_order() {
    let nodes = 1024;
    let (coordinator, me) = (NodeId(0), NodeId(nodes - 1));
    let mut m = Membership::new(me, nodes, 1000).elastic(2, coordinator);
    let from = |message| Input::Message(coordinator, message);
    step(&mut m, 0, Input::Connected(coordinator));
    assert_eq!(step(&mut m, 1, from(Message::Welcome(nodes - 3))), [], "they may be overtaken");
    let present: Vec<u16> = (1..nodes - 1).filter(|node| *node != 700).collect();
    for node in &present[1..] {
        assert_eq!(step(&mut m, 2, from(Message::Present(NodeId(*node)))), []);
    }
    assert!(matches!(step(&mut m, 2, from(Message::Present(NodeId(9))))[..], [Effect::Violation(..)]), "twice");
    assert_eq!(step(&mut m, 3, from(Message::Present(NodeId(present[0])))), [Effect::Absent(NodeId(700))]);
    for node in present {
        let met = step(&mut m, 4, Input::Connected(NodeId(node)));
        assert_eq!(met, [Effect::Send(NodeId(node), Message::Join)]);
        let last = step(&mut m, 5, Input::Message(NodeId(node), Message::Welcome(0)));
        assert_eq!(last.contains(&Effect::Joined), node == nodes - 2);
    }
}

#[test]
fn nobody_is_let_in_before_every_founder_has_come() {
    let mut m = Membership::new(NodeId(0), 5, 1000).elastic(3, NodeId(0));
    step(&mut m, 0, Input::Connected(NodeId(2)));
    step(&mut m, 0, Input::Connected(NodeId(3)));
    assert_eq!(step(&mut m, 1, Input::Message(NodeId(3), Message::Join)), []);
    let let_in = step(&mut m, 2, Input::Connected(NodeId(1)));
    let send = |message| Effect::Send(NodeId(3), message);
    let [one, two] = [1, 2].map(|node| send(Message::Present(NodeId(node))));
    assert_eq!(let_in, [one, two, Effect::Came(NodeId(3)), send(Message::Welcome(2))]);
}

#[test]
fn the_end_before_the_welcome_is_no_death_and_the_failure_of_a_node_that_was_not_let_in_is_not_the_clusters() {
    let mut joiner = Membership::new(NodeId(2), 4, 1000).elastic(2, NodeId(0));
    step(&mut joiner, 0, Input::Connected(NodeId(0)));
    let mut informed = joiner.clone();
    assert_eq!(step(&mut joiner, 1, Input::Lost(NodeId(0))), [Effect::Ended]);
    let failed = step(&mut informed, 1, Input::Message(NodeId(0), Message::Fail(NodeId(1))));
    assert_eq!(failed, [Effect::Failed(NodeId(1))], "a founder knows");
    let mut founder = Membership::new(NodeId(1), 4, 1000).elastic(2, NodeId(0));
    step(&mut founder, 0, Input::Connected(NodeId(0)));
    step(&mut founder, 0, Input::Connected(NodeId(2)));
    let blame = Input::Message(NodeId(2), Message::Fail(NodeId(0)));
    let mut met = founder.clone();
    assert_eq!(step(&mut founder, 1, blame), []);
    step(&mut met, 1, Input::Message(NodeId(2), Message::Join));
    assert_eq!(step(&mut met, 2, blame), [Effect::Failed(NodeId(0))], "it was let in");
}

#[test]
fn whoever_comes_to_a_node_that_is_done_is_not_let_in() {
    let mut m = Membership::new(NodeId(0), 3, 1000).elastic(1, NodeId(0));
    step(&mut m, 0, Input::Connected(NodeId(1)));
    assert_eq!(step(&mut m, 1, Input::Leave), [Effect::AllLeft]);
    assert_eq!(step(&mut m, 2, Input::Message(NodeId(1), Message::Join)), []);
    assert_eq!(step(&mut m, 3, Input::Lost(NodeId(1))), []);
}

#[test]
fn a_joined_node_that_dies_is_a_death() {
    let mut m = Membership::new(NodeId(0), 3, 1000).elastic(2, NodeId(0));
    step(&mut m, 0, Input::Connected(NodeId(2)));
    assert_eq!(step(&mut m, 1, Input::Lost(NodeId(2))), [], "it was not let in");
    let mut m = Membership::new(NodeId(0), 3, 1000).elastic(2, NodeId(0));
    step(&mut m, 0, Input::Connected(NodeId(1)));
    step(&mut m, 0, Input::Connected(NodeId(2)));
    step(&mut m, 1, Input::Message(NodeId(2), Message::Join));
    assert_eq!(step(&mut m, 2, Input::Lost(NodeId(2))), [Effect::Died(NodeId(2))]);
}

#[test]
fn a_founder_that_breaks_off_while_a_joined_node_needs_it_is_dead_though_all_programs_are_done() {
    let mut coordinator = Membership::new(NodeId(0), 3, 1000).elastic(2, NodeId(0));
    step(&mut coordinator, 0, Input::Connected(NodeId(1)));
    step(&mut coordinator, 0, Input::Connected(NodeId(2)));
    step(&mut coordinator, 1, Input::Message(NodeId(2), Message::Join));
    step(&mut coordinator, 2, Input::Message(NodeId(1), Message::Leave));
    step(&mut coordinator, 3, Input::Leave);
    assert_eq!(step(&mut coordinator, 4, Input::Lost(NodeId(1))), [Effect::Died(NodeId(1))]);
    let mut leaver = Membership::new(NodeId(2), 3, 1000).elastic(2, NodeId(0));
    step(&mut leaver, 0, Input::Connected(NodeId(0)));
    step(&mut leaver, 1, Input::Message(NodeId(0), Message::Welcome(0)));
    step(&mut leaver, 2, Input::Message(NodeId(0), Message::Leave));
    step(&mut leaver, 3, Input::Leave);
    assert_eq!(step(&mut leaver, 4, Input::Lost(NodeId(0))), [Effect::Died(NodeId(0))], "it waits for its turn");
}

#[test]
fn a_node_that_has_failed_before_its_turn_to_come_is_not_let_in() {
    let mut m = Membership::new(NodeId(0), 4, 1000).elastic(2, NodeId(0));
    for peer in [1, 2, 3] {
        step(&mut m, 0, Input::Connected(NodeId(peer)));
    }
    step(&mut m, 1, Input::Message(NodeId(2), Message::Join));
    step(&mut m, 2, Input::Message(NodeId(3), Message::Join));
    assert_eq!(step(&mut m, 3, Input::Message(NodeId(3), Message::Fail(NodeId(2)))), []);
    assert_eq!(step(&mut m, 4, Input::Message(NodeId(2), Message::Joined)), [], "nobody waits");
    assert_eq!(step(&mut m, 5, Input::Lost(NodeId(3))), [], "it is not blamed");
}

#[test]
fn words_out_of_turn_change_nothing() {
    let violates = |effects: &[Effect]| matches!(effects, [Effect::Violation(..)]);
    let mut m = Membership::new(NodeId(0), 4, 1000).elastic(2, NodeId(0));
    step(&mut m, 0, Input::Connected(NodeId(1)));
    step(&mut m, 0, Input::Connected(NodeId(2)));
    for message in [
        Message::Present(NodeId(1)),
        Message::Welcome(0),
        Message::Turn,
        Message::Taken,
        Message::Farewell,
        Message::Joined,
        Message::Handed(0),
        Message::Going,
    ] {
        assert!(violates(&step(&mut m, 1, Input::Message(NodeId(2), message))), "{message:?}");
    }
    assert!(violates(&step(&mut m, 1, Input::Message(NodeId(1), Message::Join))), "a founder");
    assert!(!violates(&step(&mut m, 1, Input::Message(NodeId(2), Message::Join))));
    assert!(violates(&step(&mut m, 1, Input::Message(NodeId(2), Message::Join))), "twice");
}
