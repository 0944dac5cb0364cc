//! Tests pages that are split off ranges, move, return and are merged again, whatever happens to hosts and controllers
//! meanwhile.

use trellis_base::Random;
use trellis_fabric_protocol::lease::parts::PART_PAGES_MAX;
use trellis_fabric_protocol::wire::address::PARTS_FROM;

use super::*;
use crate::records::Goal;

/// Three servers with one backup each.
fn three() -> World {
    let mut world = World::new(1);
    [7, 8, 9].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(1_500);
    world
}

impl World {
    pub(super) fn move_pages(
        &mut self,
        range: RangeNumber,
        to: Host,
        first: u64,
        pages: u64,
    ) -> Result<Vec<(u64, u64)>, String> {
        let mut orders = Vec::new();
        let moved = self.ranges.move_pages(self.now, range, to, (first, pages), &mut orders);
        self.carry_out(orders);
        moved
    }

    /// The parts of a range, as operators see them: number, first page, pages, home.
    pub(super) fn parts(&self, range: RangeNumber) -> Vec<(u16, u64, u64, u16)> {
        let status = self.ranges.status(self.now);
        let parts = status.ranges.iter().filter_map(|part| {
            let within = part.within.filter(|within| within.range == range)?;
            Some((part.range.0, within.first, part.pages, part.home.0))
        });
        parts.collect()
    }

    /// Runs until a condition holds.
    pub(super) fn until(&mut self, seconds: u64, what: &str, is_so: impl Fn(&World) -> bool) {
        for _ in 0..seconds * 1_000 {
            if is_so(self) {
                return;
            }
            self.run(1);
        }
        panic!("{what} is not so: {:?}\n{:#?}", self.said, self.ranges.status(self.now));
    }

    fn is_whole(&self, range: RangeNumber) -> bool {
        self.parts(range).is_empty() && self.range(range).is_served && self.ranges.is_calm()
    }
}

#[test]
fn pages_go_to_a_host_and_come_home() {
    let mut world = three();
    let (before, own) = (world.writes, world.range(RangeNumber(7)));
    assert_eq!(world.move_pages(RangeNumber(7), Host(9), 2, 3), Ok(vec![(2, 3)]));
    assert_eq!(
        (world.writes - before, world.range(RangeNumber(7)).incarnation),
        (1, own.incarnation + 1),
        "both are one write"
    );
    assert_eq!(world.parts(RangeNumber(7)), [(PARTS_FROM, 2, 3, 7)], "it begins where its range is");
    world.until(2, "it went", |world| world.parts(RangeNumber(7)) == [(PARTS_FROM, 2, 3, 9)]);
    world.until(2, "it is backed", |world| world.range(RangeNumber(PARTS_FROM)).complete.len() == 1);
    let (part, range) = (world.range(RangeNumber(PARTS_FROM)), world.range(RangeNumber(7)));
    assert_eq!((range.home, &range.complete), (Host(7), &own.complete), "the range stays as it was");
    assert_eq!((world.routes[&RangeNumber(PARTS_FROM)], part.is_served), (Host(9), true));
    assert!(
        world.servers[&Host(9)].serves(RangeNumber(7), 4, world.now)
            && world.servers[&Host(7)].serves(RangeNumber(7), 5, world.now)
    );
    assert!(world.has_said("range fd12:3456:7::/48: pages 2 to 4 are part fd12:3456:f000::/48 from now on"));
    assert_eq!(world.move_pages(RangeNumber(7), Host(7), 0, 8), Ok(vec![(2, 3)]), "what is in these pages comes home");
    world.until(3, "it is home", |world| world.is_whole(RangeNumber(7)));
    let now = world.range(RangeNumber(7));
    assert!(
        now.incarnation > part.incarnation && now.incarnation > range.incarnation,
        "{now:?} {part:?} {range:?} {:#?}",
        world.said
    );
    assert!(world.has_said("pages 2 to 4 are home again, and part fd12:3456:f000::/48 is none any more"));
    assert!(
        !world.routes.contains_key(&RangeNumber(PARTS_FROM))
            && world.servers[&Host(7)].serves(RangeNumber(7), 4, world.now)
    );
    // The next one has another number, because hosts may know the first one.
    world.move_pages(RangeNumber(7), Host(8), 0, 1).expect("it can be");
    world.until(2, "it went", |world| world.parts(RangeNumber(7)) == [(PARTS_FROM + 1, 0, 1, 8)]);
}

#[test]
fn every_write_may_be_the_last_of_a_controller() {
    for to_home in [false, true] {
        for counts in [true, false] {
            for left in 0.. {
                let mut world = three();
                if to_home {
                    world.move_pages(RangeNumber(7), Host(9), 2, 3).expect("it can be");
                    world.until(3, "it went", |world| {
                        world.parts(RangeNumber(7)) == [(PARTS_FROM, 2, 3, 9)] && world.ranges.is_calm()
                    });
                }
                world.dies = Some((left, counts));
                let to = if to_home { 7 } else { 9 };
                world.move_pages(RangeNumber(7), Host(to), 2, 3).expect("it can be");
                world.run(4_000);
                let is_over = world.deaths == 0;
                // The request is written with the first decision, and every later leader completes it.
                let parts = world.parts(RangeNumber(7));
                assert!(parts.len() <= 1 && parts.iter().all(|part| (part.1, part.2) == (2, 3)), "{parts:?}");
                world.until(20, "it is at rest", |world| {
                    let went = world.parts(RangeNumber(7)).iter().all(|part| part.3 == 9);
                    went && world.ranges.is_calm()
                        && [7, 8, 9].into_iter().all(|range| world.range(RangeNumber(range)).complete.len() == 1)
                });
                assert_eq!(world.range(RangeNumber(7)).home, Host(7));
                let is_written = counts || left > 0;
                assert_eq!(world.parts(RangeNumber(7)).is_empty(), to_home == is_written, "after {left} writes");
                if is_over {
                    assert!(left >= 3, "{left}");
                    break;
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_moved_is_said_with_what_can() {
    let mut world = three();
    let mut refused = |range, to, first, pages, part: &str| {
        let sentence = world.move_pages(range, to, first, pages).expect_err("it cannot be");
        assert!(sentence.contains(part), "{sentence}");
    };
    refused(RangeNumber(77), Host(8), 0, 1, "`trellis controller status` lists all");
    refused(RangeNumber(7), Host(8), 6, 3, "it has 8 pages, numbered from 0");
    refused(RangeNumber(7), Host(8), 0, 0, "it has 8 pages, numbered from 0");
    refused(RangeNumber(7), Host(8), u64::MAX, 2, "it has 8 pages, numbered from 0");
    refused(RangeNumber(7), Host(99), 0, 1, "nothing is heard of it; start it");
    world.move_pages(RangeNumber(7), Host(9), 2, 3).expect("it can be");
    world.until(3, "it went", |world| world.parts(RangeNumber(7)) == [(PARTS_FROM, 2, 3, 9)]);
    let mut refused = |range, to, first, pages, part: &str| {
        let sentence = world.move_pages(range, to, first, pages).expect_err("it cannot be");
        assert!(sentence.contains(part), "{sentence}");
    };
    refused(
        RangeNumber(7),
        Host(8),
        4,
        1,
        "pages 2 to 4 are at fd12:3456:9::/48 already; let all of them go with --pages 2-4",
    );
    refused(RangeNumber(7), Host(8), 0, 8, "or let them come home first, to fd12:3456:7::/48");
    refused(RangeNumber(7), Host(7), 3, 5, "pages 2 to 4 are a part, which comes home as a whole; say --pages 2-4");
    refused(RangeNumber(PARTS_FROM), Host(8), 0, 1, "there is none");
    let sentence = world
        .ranges
        .set_directive(world.now, RangeNumber(PARTS_FROM), None, 1, &mut Vec::new())
        .expect_err("it cannot be");
    assert!(
        sentence.contains("it is a part of range fd12:3456:7::/48, and has its backups; say that one"),
        "{sentence}"
    );
    world.order(|ranges, _, orders| ranges.drain(Host(8), true, 1, orders));
    let sentence = world.move_pages(RangeNumber(7), Host(8), 2, 3).expect_err("it cannot be");
    assert!(sentence.contains("--cancel` first"), "{sentence}");
    assert_eq!(world.move_pages(RangeNumber(7), Host(9), 2, 3), Ok(vec![(2, 3)]), "it is there");
    assert_eq!(world.move_pages(RangeNumber(7), Host(7), 5, 3), Ok(Vec::new()), "they are home");
    world.servers.remove(&Host(7));
    world.servers.remove(&Host(8));
    world.run(700);
    let sentence = world.move_pages(RangeNumber(7), Host(9), 0, 1).expect_err("it cannot be");
    assert!(sentence.contains("nobody serves it now"), "{sentence}");
}

#[test]
fn a_part_that_goes_on_goes_as_it_is() {
    let mut world = three();
    world.move_pages(RangeNumber(7), Host(9), 2, 3).expect("it can be");
    // Requested again, and differently, before it is there.
    world.move_pages(RangeNumber(7), Host(8), 2, 3).expect("it can be");
    world.until(4, "it went", |world| world.parts(RangeNumber(7)) == [(PARTS_FROM, 2, 3, 8)] && world.ranges.is_calm());
    world.move_pages(RangeNumber(7), Host(9), 2, 3).expect("it can be");
    world.until(4, "it went", |world| world.parts(RangeNumber(7)) == [(PARTS_FROM, 2, 3, 9)] && world.ranges.is_calm());
    // By its number, as a range; and to its range's home it comes home.
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(PARTS_FROM), Host(8), orders));
    world.until(4, "it went", |world| world.parts(RangeNumber(7)) == [(PARTS_FROM, 2, 3, 8)] && world.ranges.is_calm());
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(PARTS_FROM), Host(7), orders));
    world.until(4, "it is home", |world| world.is_whole(RangeNumber(7)));
    // Several at once, and beside each other.
    world.move_pages(RangeNumber(7), Host(8), 0, 2).expect("it can be");
    world.move_pages(RangeNumber(7), Host(9), 2, 2).expect("it can be");
    let sentence = world.move_pages(RangeNumber(7), Host(8), 3, 2).expect_err("they are about to be split off");
    assert!(sentence.contains("pages 2 to 3 are a"), "{sentence}");
    world.until(4, "both went", |world| {
        let homes: Vec<(u64, u64, u16)> =
            world.parts(RangeNumber(7)).into_iter().map(|part| (part.1, part.2, part.3)).collect();
        homes == [(0, 2, 8), (2, 2, 9)]
    });
    world.move_pages(RangeNumber(7), Host(7), 0, 8).expect("it can be");
    world.until(6, "both are home", |world| world.is_whole(RangeNumber(7)));
}

#[test]
fn long_runs_are_several_parts() {
    let mut world = World::new(0);
    let pages = 3 * PART_PAGES_MAX;
    world.serve_with(Host(7), pages, 0);
    world.serve(Host(8), 2 * PART_PAGES_MAX + 9);
    world.run(300);
    let sentence = world.move_pages(RangeNumber(7), Host(8), 0, 2 * PART_PAGES_MAX + 10).expect_err("there is no room");
    assert!(sentence.contains("bytes left and these pages of range fd12:3456:7::/48 take"), "{sentence}");
    let max = PART_PAGES_MAX;
    let runs = vec![(5, max), (5 + max, max), (5 + 2 * max, 4)];
    assert_eq!(world.move_pages(RangeNumber(7), Host(8), 5, 2 * max + 4), Ok(runs.clone()));
    assert_eq!(
        (world.parts(RangeNumber(7)).len(), world.range(RangeNumber(7)).splits.len()),
        (1, 2),
        "one after the other"
    );
    world.until(4, "all went", |world| world.parts(RangeNumber(7)).iter().filter(|part| part.3 == 8).count() == 3);
    assert_eq!(world.parts(RangeNumber(7)).iter().map(|part| (part.1, part.2)).collect::<Vec<_>>(), runs);
    assert_eq!(world.move_pages(RangeNumber(7), Host(8), 5, 2 * max + 4), Ok(runs), "the same again is what is there");
}

#[test]
fn a_part_whose_object_is_to_be_deleted_comes_home() {
    let mut world = three();
    world.move_pages(RangeNumber(7), Host(9), 2, 3).expect("it can be");
    world.until(3, "it went", |world| world.parts(RangeNumber(7)) == [(PARTS_FROM, 2, 3, 9)] && world.ranges.is_calm());
    // For another range, or from another host, it has no effect.
    world.servers.get_mut(&Host(8)).expect("it is there").wants_back =
        [(RangeNumber(8), RangeNumber(PARTS_FROM))].into();
    world.run(1_000);
    assert_eq!(world.range(RangeNumber(PARTS_FROM)).goal, None);
    world.servers.get_mut(&Host(7)).expect("it is there").wants_back =
        [(RangeNumber(7), RangeNumber(PARTS_FROM))].into();
    world.until(1, "it comes", |world| world.range(RangeNumber(PARTS_FROM)).goal == Some(Goal::Merge));
    world.restart_controller();
    assert_eq!(world.range(RangeNumber(PARTS_FROM)).goal, Some(Goal::Merge), "that lasts");
    world.until(4, "it is home", |world| world.is_whole(RangeNumber(7)));
}

#[test]
fn a_part_has_what_its_range_has() {
    let mut world = World::new(1);
    [7, 8, 9, 10].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(1_500);
    world.move_pages(RangeNumber(7), Host(9), 2, 3).expect("it can be");
    world.until(3, "it went", |world| world.parts(RangeNumber(7)) == [(PARTS_FROM, 2, 3, 9)] && world.ranges.is_calm());
    world.order(|ranges, now, orders| ranges.set_directive(now, RangeNumber(7), Some(Directive::Count(2)), 1, orders));
    world.until(3, "both have two", |world| {
        [7, PARTS_FROM].into_iter().all(|of| world.range(RangeNumber(of)).complete.len() == 2)
    });
    // It leaves a drained server, and another server gets what a lost one had.
    world.order(|ranges, _, orders| ranges.drain(Host(9), true, 1, orders));
    world.until(5, "it left", |world| {
        let part = world.range(RangeNumber(PARTS_FROM));
        part.home != Host(9) && !part.backups.contains(&Host(9)) && world.range(RangeNumber(9)).home != Host(9)
    });
    world.order(|ranges, _, orders| ranges.drain(Host(9), false, 2, orders));
    world.run(2_000);
    let home = world.range(RangeNumber(PARTS_FROM)).home;
    if home != Host(7) {
        world.servers.remove(&home);
        world.until(3, "another took over", |world| {
            world.range(RangeNumber(PARTS_FROM)).home != home && world.range(RangeNumber(PARTS_FROM)).is_served
        });
    }
}

#[test]
fn a_range_and_its_part_go_their_own_ways() {
    let mut world = three();
    world.move_pages(RangeNumber(7), Host(9), 2, 3).expect("it can be");
    world.until(3, "it went", |world| world.parts(RangeNumber(7)) == [(PARTS_FROM, 2, 3, 9)] && world.ranges.is_calm());
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(7), Host(8), orders));
    world.until(3, "the range went", |world| world.range(RangeNumber(7)).home == Host(8) && world.ranges.is_calm());
    assert_eq!(world.parts(RangeNumber(7)), [(PARTS_FROM, 2, 3, 9)]);
    world.servers.remove(&Host(8));
    world.until(3, "the range is elsewhere", |world| {
        world.range(RangeNumber(7)).home != Host(8) && world.range(RangeNumber(7)).is_served
    });
    assert!(world.written[&RangeNumber(7)].parts.len() == 1, "and still has its part");
    let home = world.range(RangeNumber(7)).home;
    if world.range(RangeNumber(PARTS_FROM)).home == home {
        world.until(20, "it is merged where its range came", |world| world.parts(RangeNumber(7)).is_empty());
    }
}

#[test]
fn a_part_that_is_at_home_for_no_reason_is_merged() {
    let mut world = three();
    world.move_pages(RangeNumber(7), Host(9), 2, 3).expect("it can be");
    // The host is gone before it has it.
    world.cut.insert(Host(9));
    world.until(30, "it is merged again", |world| world.is_whole(RangeNumber(7)));
    assert!(world.has_said("did not take it within its time") || world.has_said("nothing is heard of it"));
}

#[test]
fn a_range_is_reset_only_without_its_parts() {
    let mut world = World::new(0);
    [7, 8].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(300);
    world.move_pages(RangeNumber(7), Host(8), 2, 3).expect("it can be");
    world.until(3, "it went", |world| world.parts(RangeNumber(7)) == [(PARTS_FROM, 2, 3, 8)] && world.ranges.is_calm());
    for _ in 0..5 {
        world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(PARTS_FROM), Host(8), orders));
    }
    let (part, range) = (world.range(RangeNumber(PARTS_FROM)), world.range(RangeNumber(7)));
    // It comes back without what it had, shortly before its right ends; that of the part lasts for longer.
    world.servers.remove(&Host(7));
    world.run(400);
    world.serve(Host(7), 100);
    world.run(60);
    assert!(world.servers[&Host(8)].serves(RangeNumber(7), 3, world.now));
    world.until(3, "it was reset", |world| {
        world.range(RangeNumber(7)).is_served && world.parts(RangeNumber(7)).is_empty()
    });
    assert!(world.range(RangeNumber(7)).incarnation > part.incarnation.max(range.incarnation));
    assert!(!world.servers[&Host(8)].serves(RangeNumber(7), 3, world.now), "nobody is home of what was the part");
    assert!(
        world.written[&RangeNumber(7)].parts.is_empty() && world.servers[&Host(7)].serves(RangeNumber(7), 3, world.now)
    );
    world.restart_controller();
    world.run(1_000);
    assert!(world.is_whole(RangeNumber(7)), "the record of what was a part counts no more");
}

#[test]
fn parts_go_on_where_somebody_is_home_of_the_range_after_all() {
    let mut world = World::new(1);
    [7, 8, 9].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(1_500);
    world.move_pages(RangeNumber(7), Host(9), 2, 3).expect("it can be");
    world.until(3, "it went", |world| world.parts(RangeNumber(7)) == [(PARTS_FROM, 2, 3, 9)] && world.ranges.is_calm());
    let backup = world.range(RangeNumber(7)).complete[0];
    world.order(|ranges, now, orders| ranges.set_directive(now, RangeNumber(7), Some(Directive::Count(0)), 1, orders));
    world.run(1_000);
    world.cut.insert(Host(7));
    world.run(1_000);
    assert!(!world.range(RangeNumber(7)).is_served);
    world.order(|ranges, now, orders| ranges.reset(now, RangeNumber(7), Some(backup), true, orders).or(Ok(())));
    world.run(30);
    world.cut.clear();
    world.until(3, "the part is served", |world| world.range(RangeNumber(7)).is_served);
    world.run(2_000);
    for (number, first, pages, _) in world.parts(RangeNumber(7)) {
        assert!(world.range(RangeNumber(number)).is_served, "{first} {pages}");
    }
}

#[test]
fn a_part_that_nobody_has_waits_for_the_operator() {
    let mut world = World::new(0);
    [7, 8].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(300);
    world.move_pages(RangeNumber(7), Host(8), 2, 3).expect("it can be");
    world.until(3, "it went", |world| world.parts(RangeNumber(7)) == [(PARTS_FROM, 2, 3, 8)] && world.ranges.is_calm());
    world.serve(Host(8), 100);
    world.run(3_000);
    assert!(!world.range(RangeNumber(PARTS_FROM)).is_served, "it would show zeros");
    assert!(world.has_said("`trellis controller reset fd12:3456:f000::/48`"), "{:?}", world.said);
}

#[test]
fn backups_hear_of_parts_when_the_home_knows() {
    let mut world = three();
    let backup = world.range(RangeNumber(7)).complete[0];
    world.cut.insert(Host(7));
    world.move_pages(RangeNumber(7), Host(9), 2, 3).expect("it can be");
    let knows = |world: &World, host: Host| {
        world.servers[&host].parts.get(&RangeNumber(7)).is_some_and(|parts| parts.len() == 1)
    };
    world.run(100);
    assert!(!knows(&world, backup), "not before");
    world.cut.clear();
    world.until(1, "the home knows", |world| knows(world, Host(7)));
    world.until(1, "so does the backup", |world| knows(world, backup));
}

#[test]
fn nothing_is_said_of_a_part_before_it_is_written() {
    let mut world = three();
    let mut orders = Vec::new();
    world.ranges.move_pages(world.now, RangeNumber(7), Host(9), (2, 3), &mut orders).expect("it can be");
    let writes = |orders: &[Order]| {
        let of =
            |order: &Order| if let Order::Write(ticket, writes) = order { Some((*ticket, writes.len())) } else { None };
        orders.iter().filter_map(of).collect::<Vec<(u64, usize)>>()
    };
    let [(ticket, 2)] = writes(&orders)[..] else { panic!("{orders:?}") };
    for _ in 0..30 {
        world.now += 10 * MILLISECOND;
        world.ranges.step(world.now, Fact::Tick, &mut orders);
    }
    let either = [RangeNumber(7), RangeNumber(PARTS_FROM)];
    let is_about = |order: &&Order| matches!(order, Order::Send(_, message) if either.contains(&message.range));
    assert_eq!((orders.iter().find(is_about), writes(&orders).len()), (None, 1));
    world.ranges.step(world.now, Fact::Written(ticket), &mut orders);
    world.now += 10 * MILLISECOND;
    world.ranges.step(world.now, Fact::Tick, &mut orders);
    let is_told = |of: RangeNumber| {
        orders.iter().any(|order| matches!(order, Order::Send(Host(7), message) if message.range == of))
    };
    assert!(is_told(RangeNumber(7)) && is_told(RangeNumber(PARTS_FROM)), "{orders:?}");
}

#[test]
fn a_part_comes_home_without_more_room() {
    let mut world = World::new(0);
    world.serve(Host(7), 0);
    world.serve(Host(8), 100);
    world.run(300);
    world.move_pages(RangeNumber(7), Host(8), 2, 3).expect("it can be");
    world.until(3, "it went", |world| world.parts(RangeNumber(7)) == [(PARTS_FROM, 2, 3, 8)] && world.ranges.is_calm());
    // This one never heard that the host has room for it.
    world.restart_controller();
    world.run(1_000);
    world.move_pages(RangeNumber(7), Host(7), 2, 3).expect("it can be");
    world.until(3, "it is home", |world| world.is_whole(RangeNumber(7)));
}

#[test]
fn that_pages_come_home_is_answered_when_it_is_written() {
    let mut world = three();
    world.move_pages(RangeNumber(7), Host(9), 2, 3).expect("it can be");
    world.move_pages(RangeNumber(7), Host(9), 6, 2).expect("it can be");
    world.until(3, "they went", |world| {
        world.parts(RangeNumber(7)).iter().all(|part| part.3 == 9) && world.ranges.is_calm()
    });
    let mut orders = Vec::new();
    let moved = world.ranges.move_pages(world.now, RangeNumber(7), Host(7), (0, 8), &mut orders).expect("it can be");
    assert_eq!(moved, [(2, 3), (6, 2)]);
    let parts: Vec<RangeNumber> =
        moved.iter().filter_map(|(first, _)| world.ranges.part_at(RangeNumber(7), *first)).collect();
    world.ranges.answer_when_written(41, parts, &mut orders);
    for expected in [vec![], vec![41]] {
        let is_write = |order: &Order| matches!(order, Order::Write(..));
        let place = orders.iter().position(is_write).expect("each is a write");
        assert!(!orders.contains(&Order::Answer(41)), "{orders:?}");
        let Order::Write(ticket, writes) = orders.remove(place) else { unreachable!() };
        writes.into_iter().for_each(|write| world.write(write));
        world.ranges.step(world.now, Fact::Written(ticket), &mut orders);
        let is_answer = |order: &Order| if let Order::Answer(asked) = order { Some(*asked) } else { None };
        assert_eq!(orders.iter().filter_map(is_answer).collect::<Vec<u64>>(), expected);
    }
    // The next leader continues with it.
    world.restart_controller();
    world.until(4, "they are home", |world| world.is_whole(RangeNumber(7)));
}

#[test]
fn who_gets_a_part_hears_of_it_before_it_is_given_anything() {
    let mut world = three();
    for (to, parts) in [(9, vec![(PARTS_FROM, 2, 3, 9)]), (8, vec![(PARTS_FROM, 2, 3, 8)]), (7, vec![])] {
        world.move_pages(RangeNumber(7), Host(to), 2, 3).expect("it can be");
        world.until(4, "they went", |world| world.parts(RangeNumber(7)) == parts && world.ranges.is_calm());
    }
    assert_eq!(world.disbelieved, 0, "what is not believed is said again later");
}

#[test]
fn no_host_has_the_number_of_a_part() {
    let mut world = World::new(0);
    world.serve(Host(7), 100);
    world.run(100);
    let about = About { pages: 8, term: world.timing.term, home_lease: world.timing.home_lease, ..About::default() };
    let report = |from: Host, range: RangeNumber| {
        let what = What::Report { request: 1, boot_id: 3, state: State::Blank, call: 0, about };
        Fact::Control(from, ControlMessage { range, what })
    };
    world.fact(report(Host(PARTS_FROM), RangeNumber(PARTS_FROM)));
    world.fact(report(Host(PARTS_FROM), RangeNumber(PARTS_FROM)));
    let said = |world: &World, part: &str| world.said.iter().filter(|sentence| sentence.contains(part)).count();
    assert_eq!(said(&world, "numbers from f000 on name parts of ranges, and no host"), 1);
    world.fact(report(Host(7), RangeNumber(PARTS_FROM)));
    assert_eq!(said(&world, "tells of it and no record names it"), 1);
    assert!(!world.written.contains_key(&RangeNumber(PARTS_FROM)));
}

#[test]
fn who_tells_of_what_was_a_part_hears_of_its_range() {
    let mut world = three();
    world.move_pages(RangeNumber(7), Host(9), 2, 3).expect("it can be");
    world.until(3, "it went", |world| world.parts(RangeNumber(7)) == [(PARTS_FROM, 2, 3, 9)] && world.ranges.is_calm());
    world.move_pages(RangeNumber(7), Host(7), 2, 3).expect("it can be");
    world.until(4, "it is home", |world| world.is_whole(RangeNumber(7)));
    for restarts in [false, true] {
        if restarts {
            world.restart_controller();
        }
        let about =
            About { pages: 3, term: world.timing.term, home_lease: world.timing.home_lease, ..About::default() };
        let report = What::Report { request: 5, boot_id: 3, state: State::Idle, call: 0, about };
        let mut answers = |from: Host, what: &What| {
            let mut orders = Vec::new();
            world.ranges.step(
                world.now,
                Fact::Control(from, ControlMessage { range: RangeNumber(PARTS_FROM), what: what.clone() }),
                &mut orders,
            );
            let tell = |order: Order| {
                if let Order::Send(to, message) = order { Some((to, message.range, message.what)) } else { None }
            };
            orders.into_iter().filter_map(tell).collect::<Vec<(Host, RangeNumber, What)>>()
        };
        for what in [&report, &What::Locate] {
            let [(Host(7), RangeNumber(7), What::Placed { request: 0, placement, .. })] = &answers(Host(7), what)[..]
            else {
                panic!("{what:?}")
            };
            assert!(placement.parts.is_empty(), "its home merges it");
        }
        let [(Host(9), RangeNumber(PARTS_FROM), What::Placed { request: 5, boot_id: 3, placement, within, .. })] =
            &answers(Host(9), &report)[..]
        else {
            panic!("it hears that nobody counts on it")
        };
        assert_eq!(
            (placement.home, &placement.backups[..], within.map(|within| within.first)),
            (Host(7), &[][..], Some(2))
        );
        assert_eq!(answers(Host(9), &What::Locate), [], "it has nothing");
        assert!(!world.has_said("no record names it"));
    }
}

#[test]
fn whatever_happens_each_page_is_in_one_place() {
    const HOSTS: [Host; 4] = [Host(7), Host(8), Host(9), Host(10)];
    const RANGES: [RangeNumber; 4] = [RangeNumber(7), RangeNumber(8), RangeNumber(9), RangeNumber(10)];
    for seed in 0..4 {
        let (mut random, mut world) = (Random::new(seed), World::new(1));
        HOSTS.into_iter().for_each(|host| world.serve(host, 100));
        world.run(1_500);
        for _ in 0..50 {
            let (range, to) = (RANGES[random.index(2)], random.one_of(&HOSTS));
            match random.below(10) {
                0..=3 => {
                    let (first, pages) = random.one_of(&[(0, 2), (2, 3), (5, 3), (0, 8)]);
                    // Impossible moves are refused.
                    let _ = world.move_pages(range, to, first, pages);
                }
                4 => {
                    let (mut orders, now) = (Vec::new(), world.now);
                    let _ = world.ranges.move_range(now, range, to, &mut orders);
                    world.carry_out(orders);
                }
                5 => world.restart_controller(),
                6 => world.dies = Some((random.index(3), random.once_in(2))),
                7 => world.cut = [to].into(),
                8 => world.cut.clear(),
                _ => {
                    let part = world.parts(range).first().map_or(0, |part| part.0);
                    world
                        .servers
                        .values_mut()
                        .for_each(|played| played.wants_back = [(range, RangeNumber(part))].into());
                }
            }
            // It holds at every moment that no page is in two.
            world.run(1 + random.below(700));
        }
        world.cut.clear();
        world.dies = None;
        world.servers.values_mut().for_each(|played| played.wants_back.clear());
        let is_well = |world: &World| {
            let numbers: Vec<RangeNumber> = RANGES
                .into_iter()
                .chain(RANGES.into_iter().flat_map(|of| world.parts(of)).map(|part| RangeNumber(part.0)))
                .collect();
            let is_backed = |number: RangeNumber| {
                let range = world.range(number);
                range.is_served && range.complete.len() == 1
            };
            let serves = |range: RangeNumber, page: u64| {
                world.servers.values().any(|played| played.serves(range, page, world.now))
            };
            world.ranges.is_calm()
                && numbers.into_iter().all(is_backed)
                && RANGES.into_iter().all(|range| (0..PAGES).all(|page| serves(range, page)))
        };
        world.until(60, "all is well", is_well);
        for range in RANGES {
            let home = world.range(range).home;
            world.move_pages(range, home, 0, PAGES).expect("they can come home");
        }
        world.until(60, "all are whole", |world| RANGES.into_iter().all(|range| world.is_whole(range)));
    }
}
