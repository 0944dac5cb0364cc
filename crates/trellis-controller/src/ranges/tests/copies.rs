//! Tests the events about copies: those that stay incomplete, and servers that do not take any.

use super::*;

#[test]
fn copies_that_stay_incomplete_are_said_once_and_shown() {
    let mut world = World::new(1);
    world.serve(Host(7), 100);
    world.run(1_000);
    world.loses_copies = true;
    world.serve(Host(8), 100);
    world.serve(Host(9), 100);
    // The home drops a backup that does not answer, and gets another one: the copies are incomplete all the while.
    world.run(5_000);
    let said =
        |world: &World| world.said.iter().filter(|sentence| sentence.contains("copies are complete for")).count();
    let range = world.range(RangeNumber(7));
    assert!(range.is_served && range.complete.is_empty() && said(&world) == 0, "{range:?} {:?}", world.said);
    world.run(30_000);
    assert_eq!(said(&world), 3, "once for each range");
    assert!(world.has_said("range fd12:3456:7::/48: 0 of its 1 copies are complete for 10 s now"), "{:?}", world.said);
    assert!(world.has_said("what it holds is lost if its home dies"), "{:?}", world.said);
    world.loses_copies = false;
    world.run(15_000);
    assert_eq!((world.range(RangeNumber(7)).complete.len(), said(&world)), (1, 3));
}

#[test]
fn a_silent_switch_keeps_no_new_home_from_its_range() {
    let mut world = World::new(1);
    [7, 8].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(1_500);
    assert_eq!(world.range(RangeNumber(7)).complete, [Host(8)]);
    world.is_switch_silent = true;
    world.servers.remove(&Host(7));
    world.run(1_000);
    assert_eq!(world.range(RangeNumber(7)).home, Host(8));
    assert!(world.servers[&Host(8)].serves(RangeNumber(7), 0, world.now), "it was told that it is home");
}

#[test]
fn a_server_without_room_or_with_other_times_is_said() {
    let mut world = World::new(1);
    world.serve(Host(7), 0);
    world.serve(Host(8), 0);
    world.run(1_000);
    assert!(world.range(RangeNumber(7)).backups.is_empty() && world.range(RangeNumber(8)).backups.is_empty());
    let refused = world.ranges.move_range(world.now, RangeNumber(7), Host(8), &mut Vec::new()).unwrap_err();
    assert!(refused.contains("it has 0 bytes left"), "{refused}");
    let refused = world.ranges.move_range(world.now, RangeNumber(7), Host(99), &mut Vec::new()).unwrap_err();
    assert!(refused.contains("nothing is heard of it"), "{refused}");
    let about = About { pages: 1, term: 1, home_lease: 2, ..About::default() };
    let what = What::Report { request: 1, boot_id: 3, state: State::Blank, call: 0, about };
    world.fact(Fact::Control(Host(99), ControlMessage { range: RangeNumber(99), what }));
    assert!(world.has_said("server fd12:3456:63::/48 has leases of 1ns and a home lease of 2ns"));
    assert!(!world.written.contains_key(&RangeNumber(99)));
}

#[test]
fn a_server_that_does_not_take_a_range_is_said_and_left_alone() {
    let mut world = World::new(1);
    world.refusing.insert(Host(8));
    [7, 8].into_iter().for_each(|host| world.serve(Host(host), 100));
    let says = |world: &World| world.said.iter().filter(|said| said.contains("8::/48 did not take it")).count();
    world.run(2_900);
    assert_eq!(says(&world), 0, "{:?}", world.said);
    world.run(300);
    assert_eq!((says(&world), world.range(RangeNumber(7)).backups.len()), (1, 0), "{:?}", world.said);
    world.serve(Host(9), 100);
    world.run(2_000);
    assert_eq!(world.range(RangeNumber(7)).complete, [Host(9)], "another one is asked");
    world.servers.remove(&Host(9));
    world.run(6_000);
    assert_eq!(says(&world), 1, "it is left alone");
    world.run(10_000);
    assert!(says(&world) > 1, "it is asked again: {:?}", world.said);
}
