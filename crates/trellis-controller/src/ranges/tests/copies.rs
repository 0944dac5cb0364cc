//! Tests the events about incomplete copies.

use super::*;

#[test]
fn copies_that_stay_incomplete_are_said_once_and_shown() {
    let mut world = World::new(1);
    world.serve(7, 100);
    world.run(1_000);
    world.loses_copies = true;
    world.serve(8, 100);
    world.serve(9, 100);
    // The home drops a backup that does not answer, and gets another one: the copies are incomplete all the while.
    world.run(5_000);
    let said =
        |world: &World| world.said.iter().filter(|sentence| sentence.contains("copies are complete for")).count();
    let range = world.range(7);
    assert!(range.is_served && range.complete.is_empty() && said(&world) == 0, "{range:?} {:?}", world.said);
    world.run(30_000);
    assert_eq!(said(&world), 3, "once for each range");
    assert!(world.has_said("range fd12:3456:7::/48: 0 of its 1 copies are complete for 10 s now"), "{:?}", world.said);
    assert!(world.has_said("what it holds is lost if its home dies"), "{:?}", world.said);
    world.loses_copies = false;
    world.run(15_000);
    assert_eq!((world.range(7).complete.len(), said(&world)), (1, 3));
}

#[test]
fn a_silent_switch_keeps_no_new_home_from_its_range() {
    let mut world = World::new(1);
    [7, 8].into_iter().for_each(|host| world.serve(host, 100));
    world.run(1_500);
    assert_eq!(world.range(7).complete, [8]);
    world.is_switch_silent = true;
    world.servers.remove(&7);
    world.run(1_000);
    assert_eq!(world.range(7).home, 8);
    assert!(world.servers[&8].serves(7, 0, world.now), "it was told that it is home");
}
