//! Tests pages that move towards their clients, and away from busy servers.

use trellis_fabric_protocol::wire::address::PARTS_FROM;

use super::*;

/// Servers 7, 8 and 9, each local to one client: 1, 2 and 3. Range 7 has 200 pages.
fn three() -> World {
    let mut world = World::new(0);
    world.settings.rebalances = true;
    world.settings.locality =
        Locality::new(vec![vec![7, 1], vec![8, 2], vec![9, 3]]).expect("no host is in two groups");
    world.restart_controller();
    world.serve_with(7, 200, 300);
    [8, 9].into_iter().for_each(|host| world.serve(host, 300));
    world.run(300);
    world
}

impl World {
    /// The switch counts requests for a page of range 7, by clients, once a second.
    fn asked(&mut self, seconds: usize, page: u64, by: &[(Host, u64)]) {
        for _ in 0..seconds {
            let per_second = by.iter().map(|(_, count)| count).sum();
            self.fact(Fact::Hot(vec![Counted { page: (7, page), per_second, by: by.to_vec() }]));
            self.run(1_000);
        }
    }

    /// First page, number of pages and home of the parts of range 7.
    fn runs(&self) -> Vec<(u64, u64, Host)> {
        let status = self.ranges.status(self.now);
        let parts = status.ranges.iter().filter_map(|part| Some((part.within?.first, part.pages, part.home)));
        parts.collect()
    }
}

#[test]
fn pages_go_to_the_group_that_asks_for_most_of_them() {
    let mut world = three();
    world.asked(4, 130, &[(2, 80), (1, 20)]);
    assert_eq!(world.runs(), [], "it may be over soon");
    world.asked(2, 130, &[(2, 80), (1, 20)]);
    assert_eq!(world.runs(), [(128, 64, 8)]);
    assert!(world.has_said(
        "range fd12:3456:7::/48: most of the 100 requests a second for pages 128 to 191 come from hosts near fd12:3456:8::/48"
    ));
    // They go nowhere else soon, and back only when most of it comes from there.
    world.busy = [(PARTS_FROM, 100)].into();
    world.asked(50, 130, &[(1, 100)]);
    assert_eq!(world.runs(), [(128, 64, 8)], "they are left alone");
    world.asked(20, 130, &[(1, 70), (2, 30)]);
    assert_eq!(world.runs(), [(128, 64, 8)], "that is not most of it");
    world.asked(8, 130, &[(1, 75), (2, 25)]);
    assert_eq!(world.runs(), [], "they are home, and the range's again");
    assert!(world.ranges.is_calm());
}

#[test]
fn pages_stay_where_they_are_for_less() {
    let mut world = three();
    world.asked(10, 3, &[(2, 99)]);
    assert_eq!(world.runs(), [], "that is little");
    world.asked(10, 3, &[(2, 74), (1, 26)]);
    assert_eq!(world.runs(), [], "that is not most of it");
    world.asked(10, 3, &[(2, 300), (5, 101)]);
    assert_eq!(world.runs(), [], "others are asking, too, and are near nobody");
    for _ in 0..4 {
        world.asked(4, 3, &[(2, 100)]);
        world.asked(1, 3, &[(1, 100)]);
    }
    assert_eq!(world.runs(), [], "not in a row");
    for _ in 0..4 {
        world.asked(4, 3, &[(2, 100)]);
        world.asked(4, 3, &[(3, 100)]);
    }
    assert_eq!(world.runs(), [], "not by the same group");
    world.asked(10, 3, &[(1, 500)]);
    assert!(world.runs().is_empty() && !world.has_said("most of the"), "they are near who asks");
    // Others of the same run count.
    let by = |page, host| Counted { page: (7, page), per_second: 100, by: vec![(host, 100)] };
    for _ in 0..10 {
        world.fact(Fact::Hot(vec![by(3, 2), by(4, 2), by(5, 1)]));
        world.run(1_000);
    }
    assert_eq!(world.runs(), [], "what goes with it is asked for by others");
    world.order(|ranges, _, orders| ranges.drain(8, true, 1, orders));
    world.run(1_000);
    world.asked(10, 3, &[(2, 100)]);
    assert_eq!(world.runs(), [], "there is no server");
    world.order(|ranges, _, orders| ranges.drain(8, false, 2, orders));
    world.settings.rebalances = false;
    world.restart_controller();
    world.run(1_000);
    world.asked(10, 3, &[(2, 100)]);
    assert_eq!(world.runs(), [], "nobody wants that");
}

#[test]
fn neighbours_go_together_as_far_as_there_is_room() {
    let mut world = three();
    let wide = |world: &mut World, seconds: usize| {
        for _ in 0..seconds {
            let by = |page| Counted { page: (7, page), per_second: 2, by: vec![(2, 2)] };
            world.fact(Fact::Hot((0..200).map(by).collect()));
            world.run(1_000);
        }
    };
    wide(&mut world, 6);
    assert_eq!(world.runs(), [(0, 192, 8)], "each page has few requests, and all of a run have many");
    let mut world = three();
    world.serve(8, 130);
    world.run(2_000);
    wide(&mut world, 6);
    assert_eq!(world.runs(), [(0, 128, 8)], "there is no room for more");
}

#[test]
fn what_nobody_has_does_not_keep_the_rest_where_it_is() {
    let mut world = three();
    world.cut.insert(9);
    world.run(10_000);
    assert!(!world.range(9).is_served);
    world.asked(6, 130, &[(2, 200)]);
    assert_eq!(world.runs(), [(128, 64, 8)]);
}

#[test]
fn a_run_has_no_pages_of_others() {
    let mut world = three();
    world.order(|ranges, now, orders| ranges.move_pages(now, 7, 9, (60, 10), orders).map(drop));
    world.order(|ranges, now, orders| ranges.move_pages(now, 7, 9, (100, 10), orders).map(drop));
    world.run(3_000);
    assert_eq!(world.runs(), [(60, 10, 9), (100, 10, 9)]);
    world.busy = [(PARTS_FROM, 100), (PARTS_FROM + 1, 100)].into();
    world.asked(6, 70, &[(2, 200)]);
    assert_eq!(world.runs(), [(60, 10, 9), (100, 10, 9), (70, 30, 8)]);
    world.busy.insert(PARTS_FROM + 2, 100);
    world.asked(6, 199, &[(2, 200)]);
    assert_eq!(world.runs().last(), Some(&(192, 8, 8)), "no more than there are");
    world.busy.insert(PARTS_FROM + 3, 100);
    world.asked(6, 69, &[(2, 200)]);
    assert_eq!(world.runs().first(), Some(&(60, 10, 8)), "a part goes as it is");
}

#[test]
fn pages_that_nobody_asks_for_come_home() {
    let mut world = three();
    world.asked(6, 3, &[(2, 200)]);
    assert_eq!(world.runs(), [(0, 64, 8)]);
    world.busy = [(PARTS_FROM, 100)].into();
    world.run(70_000);
    assert_eq!(world.runs(), [(0, 64, 8)], "somebody does");
    world.busy = [(7, 2_000)].into();
    world.run(70_000);
    assert_eq!(world.runs(), [(0, 64, 8)], "its range's home is busy");
    world.busy.clear();
    world.run(5_000);
    assert_eq!(world.runs(), []);
}

#[test]
fn of_a_busy_range_the_pages_go_that_make_it_so() {
    let mut world = three();
    let counted =
        |page, per_second| Counted { page: (7, page), per_second, by: vec![(1, per_second / 2), (2, per_second / 2)] };
    world.busy = [(7, 9_000), (8, 100)].into();
    world.run(3_000);
    world.fact(Fact::Hot(vec![counted(3, 4_000), counted(70, 1_000)]));
    let whole = Moved { range: 7, to: 9, pages: None };
    assert_ne!(
        world.ranges.rebalancing().map(|moved| moved.pages),
        Some(Some((0, 64))),
        "that is less than half of it"
    );
    world.fact(Fact::Hot(vec![counted(3, 4_000), counted(4, 1_000), counted(70, 1_000)]));
    let moved = world.ranges.rebalancing();
    assert_eq!(moved, Some(Moved { pages: Some((0, 64)), ..whole }));
    let moved = moved.expect("it is there");
    world.order(|ranges, now, orders| ranges.let_go(now, moved, orders));
    world.run(2_000);
    assert_eq!(world.runs(), [(0, 64, 9)]);
    // Most of it comes from hosts near 8: it goes there, and nowhere else.
    let near = |page, per_second| Counted { page: (7, page), per_second, by: vec![(2, per_second)] };
    world.fact(Fact::Hot(vec![near(130, 5_000)]));
    assert_eq!(world.ranges.rebalancing(), Some(Moved { range: 7, to: 8, pages: Some((128, 64)) }));
}

#[test]
fn a_host_is_in_one_group() {
    let sentence = Locality::new(vec![vec![1, 2], vec![3, 2]]).expect_err("2 is in two");
    assert!(sentence.contains("host 0x2 is near the hosts of two groups"), "{sentence}");
    assert!(Locality::default().is_empty() && !Locality::new(vec![vec![1]]).expect("one").is_empty());
}
