//! Tests requested moves that last, whatever happens to controllers, and those that are given up.

use super::*;
use crate::records::{Goal, SplitRecord};

/// Three servers with one backup each; the third one of a range has none of it.
fn three() -> (World, Host) {
    let mut world = World::new(1);
    [7, 8, 9].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(1_500);
    let other = if world.range(RangeNumber(7)).complete == [Host(8)] { Host(9) } else { Host(8) };
    (world, other)
}

impl World {
    fn says(&self, part: &str) -> usize {
        self.said.iter().filter(|sentence| sentence.contains(part)).count()
    }
}

#[test]
fn a_move_of_a_range_lasts() {
    let (mut world, other) = three();
    world.refusing.insert(other);
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(7), other, orders));
    assert_eq!(world.range(RangeNumber(7)).goal, Some(Goal::Host(other)));
    world.run(100);
    world.refusing.clear();
    world.restart_controller();
    world.until(3, "it went", |world| world.range(RangeNumber(7)).home == other && world.ranges.is_calm());
    assert_eq!(
        (world.range(RangeNumber(7)).goal, world.written[&RangeNumber(7)].goal),
        (None, None),
        "the request is fulfilled"
    );
    world.restart_controller();
    world.run(3_000);
    assert_eq!(world.range(RangeNumber(7)).home, other, "and it stays");
}

#[test]
fn a_move_of_pages_lasts_before_they_are_split_off() {
    let (mut world, other) = three();
    // While another server gets ready for a copy, nothing is split off.
    world.refusing.insert(other);
    world.order(|ranges, now, orders| ranges.set_directive(now, RangeNumber(7), Some(Directive::Count(2)), 41, orders));
    world.run(100);
    world.move_pages(RangeNumber(7), other, 2, 3).expect("it can be");
    assert!(world.parts(RangeNumber(7)).is_empty());
    assert_eq!(world.written[&RangeNumber(7)].splits, [SplitRecord { first: 2, pages: 3, to: other }]);
    world.refusing.clear();
    world.restart_controller();
    world.until(5, "they went", |world| {
        world.parts(RangeNumber(7)).iter().any(|part| (part.1, part.2, part.3) == (2, 3, other.0))
    });
    world.until(5, "all is still", |world| world.ranges.is_calm());
    assert!(world.written[&RangeNumber(7)].splits.is_empty(), "the request is fulfilled");
}

#[test]
fn every_write_may_be_the_last_of_a_controller_that_moves_a_range() {
    for counts in [true, false] {
        for left in 0.. {
            let (mut world, other) = three();
            world.dies = Some((left, counts));
            world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(7), other, orders));
            world.run(4_000);
            let is_over = world.deaths == 0;
            world.until(20, "it is at rest", |world| {
                world.ranges.is_calm() && world.range(RangeNumber(7)).complete.len() == 1
            });
            let home = if counts || left > 0 { other } else { Host(7) };
            assert_eq!(world.range(RangeNumber(7)).home, home, "after {left} writes");
            if is_over {
                assert!(left >= 2, "{left}");
                break;
            }
        }
    }
}

#[test]
fn a_request_is_answered_when_it_is_written() {
    let (mut world, other) = three();
    world.refusing.insert(other);
    let mut orders = Vec::new();
    world.ranges.move_range(world.now, RangeNumber(7), other, &mut orders).expect("it can be");
    world.ranges.answer_when_written(41, vec![RangeNumber(7)], &mut orders);
    assert!(!orders.contains(&Order::Answer(41)), "{orders:?}");
    world.carry_out(orders);
    assert_eq!((&world.answered[..], world.written[&RangeNumber(7)].goal), (&[41][..], Some(Goal::Host(other))));
}

#[test]
fn a_later_request_replaces_an_earlier_one() {
    let (mut world, other) = three();
    let backup = world.range(RangeNumber(7)).complete[0];
    world.refusing.insert(other);
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(7), other, orders));
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(7), backup, orders));
    world.until(2, "it went to the second one", |world| {
        world.range(RangeNumber(7)).home == backup && world.ranges.is_calm()
    });
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(7), other, orders));
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(7), backup, orders));
    world.refusing.clear();
    world.run(3_000);
    assert_eq!(
        (world.range(RangeNumber(7)).home, world.range(RangeNumber(7)).goal),
        (backup, None),
        "a move to its home cancels the other one"
    );
    // While it moves, such a request brings it back.
    world.loses_copies = true;
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(7), other, orders));
    world.until(2, "it moves", |world| world.range(RangeNumber(7)).moving == Some(other));
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(7), backup, orders));
    assert_eq!(world.range(RangeNumber(7)).goal, Some(Goal::Host(backup)));
    world.loses_copies = false;
    world.until(5, "it is where it was", |world| world.range(RangeNumber(7)).home == backup && world.ranges.is_calm());
}

#[test]
fn pages_that_shall_go_wait_until_somebody_serves_them() {
    let (mut world, other) = three();
    let backup = world.range(RangeNumber(7)).complete[0];
    world.refusing.insert(other);
    world.order(|ranges, now, orders| ranges.set_directive(now, RangeNumber(7), Some(Directive::Count(2)), 41, orders));
    world.run(100);
    world.cut.extend([Host(7), backup]);
    world.move_pages(RangeNumber(7), other, 2, 3).expect("it can be");
    world.until(2, "nobody answers for it", |world| !world.range(RangeNumber(7)).is_served);
    assert!(world.parts(RangeNumber(7)).is_empty(), "they are not split off yet");
    world.cut.remove(&backup);
    world.refusing.clear();
    world.until(5, "they went", |world| {
        world.parts(RangeNumber(7)).iter().any(|part| (part.1, part.2, part.3) == (2, 3, other.0))
    });
    assert_eq!(world.range(RangeNumber(7)).home, backup);
}

#[test]
fn what_nobody_comes_to_serve_stays() {
    let mut world = World::new(0);
    [7, 8, 9].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(500);
    world.refusing.extend([Host(8), Host(9)]);
    world.order(|ranges, now, orders| ranges.set_directive(now, RangeNumber(7), Some(Directive::Count(1)), 41, orders));
    world.run(100);
    world.move_pages(RangeNumber(7), Host(9), 2, 3).expect("it can be");
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(8), Host(9), orders));
    world.cut.extend([Host(7), Host(8)]);
    world.run(29_000);
    assert_eq!(world.says("because there is no home"), 0, "{:?}", world.said);
    world.run(2_000);
    assert!(world.has_said("range fd12:3456:7::/48: pages 2 to 4 stay where they are, because there is no home"));
    assert!(world.has_said("range fd12:3456:8::/48: it stays where it is, because there is no home"));
    assert_eq!(world.says("because there is no home"), 2, "{:?}", world.said);
    assert_eq!((&world.written[&RangeNumber(7)].splits[..], world.written[&RangeNumber(8)].goal), (&[][..], None));
}

#[test]
fn a_server_that_does_not_get_ready_is_asked_again_and_then_given_up() {
    let (mut world, other) = three();
    world.refusing.insert(other);
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(7), other, orders));
    world.run(29_000);
    assert!(world.says("8::/48 did not take it") + world.says("9::/48 did not take it") > 1, "{:?}", world.said);
    assert_eq!(world.says("it stays where it is"), 0, "{:?}", world.said);
    world.run(11_000);
    assert_eq!(world.says("did not get ready"), 1, "{:?}", world.said);
    assert_eq!((world.range(RangeNumber(7)).goal, world.range(RangeNumber(7)).home), (None, Host(7)));
}

#[test]
fn a_server_that_is_gone_gets_nothing() {
    let (mut world, other) = three();
    world.cut.insert(other);
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(7), other, orders));
    // A controller that has just begun to lead does not know yet whether it is there.
    world.restart_controller();
    world.run(1_000);
    assert_eq!(world.range(RangeNumber(7)).goal, Some(Goal::Host(other)));
    world.run(3_000);
    assert_eq!(world.says("it stays where it is, because nothing is heard of server"), 1, "{:?}", world.said);
    assert_eq!((world.range(RangeNumber(7)).goal, world.range(RangeNumber(7)).home), (None, Host(7)));
}

#[test]
fn a_move_that_is_carried_out_is_not_given_up() {
    let (mut world, other) = three();
    world.loses_copies = true;
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(7), other, orders));
    world.until(2, "it moves", |world| world.range(RangeNumber(7)).moving == Some(other));
    world.order(|ranges, _, orders| ranges.drain(other, true, 41, orders));
    world.run(200);
    assert_eq!((world.says("it stays where it is"), world.range(RangeNumber(7)).goal), (0, Some(Goal::Host(other))));
    world.loses_copies = false;
    world.until(10, "it went, and left the drained server again", |world| {
        world.range(RangeNumber(7)).home != other && world.ranges.is_calm()
    });
    assert_eq!(world.says("it stays where it is"), 0, "{:?}", world.said);
}

#[test]
fn a_range_that_begins_without_content_has_no_requests() {
    let mut world = World::new(0);
    [7, 8, 9].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(500);
    world.refusing.extend([Host(8), Host(9)]);
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(7), Host(8), orders));
    world.move_pages(RangeNumber(7), Host(9), 2, 3).expect("it can be");
    world.serve(Host(7), 100);
    world.until(3, "it was reset", |world| {
        world.range(RangeNumber(7)).is_served && world.range(RangeNumber(7)).incarnation > 1
    });
    assert_eq!((world.range(RangeNumber(7)).goal, &world.written[&RangeNumber(7)].splits[..]), (None, &[][..]));
    assert!(world.has_said("7::/48: it stays where it is, because the range begins without content"));
    assert!(world.has_said("7::/48: pages 2 to 4 stay where they are, because the range begins without content"));
}

#[test]
fn pages_that_are_needed_at_home_go_nowhere_and_that_is_said() {
    let (mut world, other) = three();
    world.move_pages(RangeNumber(7), other, 2, 3).expect("it can be");
    world.until(3, "they went", |world| {
        world.parts(RangeNumber(7)).iter().any(|part| part.3 == other.0) && world.ranges.is_calm()
    });
    let part = world.parts(RangeNumber(7))[0].0;
    world.serve(Host(10), 100);
    world.run(500);
    world.refusing.insert(Host(10));
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(part), Host(10), orders));
    world.servers.get_mut(&Host(7)).expect("it is there").wants_back = [(RangeNumber(7), RangeNumber(part))].into();
    world.until(3, "they come home", |world| world.written[&RangeNumber(part)].goal == Some(Goal::Merge));
    assert_eq!(world.says("because the home of their range needs them for an object"), 1, "{:?}", world.said);
    world.until(5, "they are home", |world| world.parts(RangeNumber(7)).is_empty());
}

#[test]
fn a_new_leader_knows_the_room_that_it_has_given_away() {
    let mut world = World::new(0);
    world.serve(Host(7), 0);
    world.serve(Host(8), PAGES);
    world.run(300);
    world.loses_copies = true;
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(7), Host(8), orders));
    world.run(100);
    world.restart_controller();
    world.loses_copies = false;
    world.until(20, "it went", |world| world.range(RangeNumber(7)).home == Host(8) && world.ranges.is_calm());
    assert_eq!(world.says("has no room"), 0, "{:?}", world.said);
}
