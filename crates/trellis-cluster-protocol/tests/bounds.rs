//! The most that a peer, or a program, can make a node keep about its objects.

use trellis_cluster_protocol::NodeId;
use trellis_cluster_protocol::sync::{
    Contribution, Demand, Effect, EventDemand, Input, Message, OBJECTS_MAX, Operation, SemaphoreDemand, Sync, Waiter,
};

/// The effects of `input` for as many objects as a node keeps, which are all fine, and for one more.
fn one_too_many(founders: u16, input: impl Fn(u64, Waiter) -> Input) -> Vec<Effect> {
    let mut sync = Sync::new(NodeId(0), founders);
    let mut effects = Vec::new();
    for number in 0..OBJECTS_MAX as u64 {
        // Every one of them has its home here.
        sync.step(input(number * u64::from(founders), number as Waiter), &mut effects);
    }
    let is_fine = |effect: &Effect| !matches!(effect, Effect::Refused(..) | Effect::Violation(..));
    assert!(effects.iter().all(is_fine), "{:?}", effects.iter().find(|effect| !is_fine(effect)));
    effects.clear();
    sync.step(input(OBJECTS_MAX as u64 * u64::from(founders), Waiter::MAX), &mut effects);
    effects
}

/// The sentence for the program of the node, or about the peer.
fn refusal(effects: &[Effect]) -> &'static str {
    match effects {
        [Effect::Refused(Waiter::MAX, why) | Effect::Violation(NodeId(1), why)] => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_program_can_use_so_many_objects_of_a_kind_and_no_more() {
    let refused = |input: fn(u64, Waiter) -> Input| refusal(&one_too_many(1, input));
    assert_eq!(refused(Input::Acquire), "too many locks at this node");
    // In a barrier of two nodes, the other one has not come.
    let arrive = |id, waiter| Input::Arrive(id, Contribution::Nothing, waiter);
    assert_eq!(refusal(&one_too_many(2, arrive)), "too many barriers at this node");
    let store = |id, waiter| Input::Operate(id, Operation::Exchange(1), waiter);
    assert_eq!(refused(store), "too many atomic words at this node");
    let release = |id, waiter| Input::Demand(id, Demand::Semaphore(SemaphoreDemand::Release(1)), waiter);
    assert_eq!(refused(release), "too many objects of this kind at their home; use fewer numbers");
    let set = |id, waiter| Input::Demand(id, Demand::Event(EventDemand::Set), waiter);
    assert_eq!(refused(set), "too many objects of this kind at their home; use fewer numbers");
}

#[test]
fn a_peer_can_make_a_home_keep_so_many_objects_and_no_more() {
    let refused = |input: fn(u64, Waiter) -> Input| refusal(&one_too_many(2, input));
    let request = |id, _| Input::Message(NodeId(1), Message::LockRequest(id, false));
    assert_eq!(refused(request), "too many locks at their home");
    let operate = |id, waiter| Input::Message(NodeId(1), Message::AtomicRequest(id, Operation::Exchange(1), waiter));
    assert_eq!(refused(operate), "too many atomic words at their home");
    let arrive = |id, _| Input::Message(NodeId(1), Message::BarrierArrive(id, 0, Contribution::Nothing));
    assert_eq!(refused(arrive), "an arrival out of turn at a barrier");
}
