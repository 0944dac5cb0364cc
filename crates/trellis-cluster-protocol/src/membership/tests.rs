//! Tests of membership, step by step: failures, ends, and nodes that join and leave.

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

#[test]
fn numbers_are_given_once_by_the_coordinator_until_its_program_is_done() {
    let node = |me| Membership::new(NodeId(me), 5, 1000).elastic(3, NodeId(1));
    assert_eq!(node(0).reserve(), Err(NoPlace::AskCoordinator));
    let mut coordinator = node(1);
    assert_eq!(coordinator.reserve(), Ok(NodeId(3)));
    assert_eq!(coordinator.reserve(), Ok(NodeId(4)), "node 3 never came");
    assert_eq!(coordinator.reserve(), Err(NoPlace::Full));
    let mut ending = Membership::new(NodeId(0), 4, 1000).elastic(2, NodeId(0));
    step(&mut ending, 0, Input::Leave);
    assert_eq!(ending.reserve(), Err(NoPlace::Ending));
    assert_eq!(Membership::new(NodeId(0), 3, 1000).reserve(), Err(NoPlace::Full));
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
