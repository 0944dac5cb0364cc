//! Tests pages that move towards their clients, and away from busy servers.

use trellis_fabric_protocol::wire::address::PARTS_FROM;

use super::*;

/// Servers 7, 8 and 9, each local to one client: 1, 2 and 3. Range 7 has 200 pages.
fn three() -> World {
    let mut world = World::new(0);
    world.settings.rebalances = true;
    world.settings.locality =
        Locality::new(vec![vec![Host(7), Host(1)], vec![Host(8), Host(2)], vec![Host(9), Host(3)]])
            .expect("no host is in two groups");
    world.restart_controller();
    world.serve_with(Host(7), 200, 300);
    [8, 9].into_iter().for_each(|host| world.serve(Host(host), 300));
    world.run(300);
    world
}

impl World {
    /// The switch counts requests for a page of range 7, by clients, once a second.
    fn asked(&mut self, seconds: usize, page: u64, by: &[(Host, u64)]) {
        for _ in 0..seconds {
            let per_second = by.iter().map(|(_, count)| count).sum();
            self.fact(Fact::Hot(vec![Counted { page: (RangeNumber(7), page), per_second, by: by.to_vec() }]));
            self.run(1_000);
        }
    }

    /// First page, number of pages and home of the parts of range 7.
    fn runs(&self) -> Vec<(u64, u64, u16)> {
        let status = self.ranges.status(self.now);
        let parts = status.ranges.iter().filter_map(|part| Some((part.within?.first, part.pages, part.home.0)));
        parts.collect()
    }
}

#[test]
fn pages_go_to_the_group_that_asks_for_most_of_them() {
    let mut world = three();
    world.asked(4, 130, &[(Host(2), 80), (Host(1), 20)]);
    assert_eq!(world.runs(), [], "it may be over soon");
    world.asked(2, 130, &[(Host(2), 80), (Host(1), 20)]);
    assert_eq!(world.runs(), [(128, 64, 8)]);
    assert!(world.has_said(
        "range fd12:3456:7::/48: most of the 100 requests a second for pages 128 to 191 come from hosts near fd12:3456:8::/48"
    ));
    // They go nowhere else soon, and back only when most of it comes from there.
    world.busy = [(RangeNumber(PARTS_FROM), 100)].into();
    world.asked(50, 130, &[(Host(1), 100)]);
    assert_eq!(world.runs(), [(128, 64, 8)], "they are left alone");
    world.asked(20, 130, &[(Host(1), 70), (Host(2), 30)]);
    assert_eq!(world.runs(), [(128, 64, 8)], "that is not most of it");
    world.asked(8, 130, &[(Host(1), 75), (Host(2), 25)]);
    assert_eq!(world.runs(), [], "they are home, and the range's again");
    assert!(world.ranges.is_calm());
}

#[test]
fn pages_stay_where_they_are_for_less() {
    let mut world = three();
    world.asked(10, 3, &[(Host(2), 99)]);
    assert_eq!(world.runs(), [], "that is little");
    world.asked(10, 3, &[(Host(2), 74), (Host(1), 26)]);
    assert_eq!(world.runs(), [], "that is not most of it");
    world.asked(10, 3, &[(Host(2), 300), (Host(5), 101)]);
    assert_eq!(world.runs(), [], "others are asking, too, and are near nobody");
    for _ in 0..4 {
        world.asked(4, 3, &[(Host(2), 100)]);
        world.asked(1, 3, &[(Host(1), 100)]);
    }
    assert_eq!(world.runs(), [], "not in a row");
    for _ in 0..4 {
        world.asked(4, 3, &[(Host(2), 100)]);
        world.asked(4, 3, &[(Host(3), 100)]);
    }
    assert_eq!(world.runs(), [], "not by the same group");
    world.asked(10, 3, &[(Host(1), 500)]);
    assert!(world.runs().is_empty() && !world.has_said("most of the"), "they are near who asks");
    // Others of the same run count.
    let by = |page, host| Counted { page: (RangeNumber(7), page), per_second: 100, by: vec![(host, 100)] };
    for _ in 0..10 {
        world.fact(Fact::Hot(vec![by(3, Host(2)), by(4, Host(2)), by(5, Host(1))]));
        world.run(1_000);
    }
    assert_eq!(world.runs(), [], "what goes with it is asked for by others");
    world.order(|ranges, _, orders| ranges.drain(Host(8), true, 1, orders));
    world.run(1_000);
    world.asked(10, 3, &[(Host(2), 100)]);
    assert_eq!(world.runs(), [], "there is no server");
    world.order(|ranges, _, orders| ranges.drain(Host(8), false, 2, orders));
    world.settings.rebalances = false;
    world.restart_controller();
    world.run(1_000);
    world.asked(10, 3, &[(Host(2), 100)]);
    assert_eq!(world.runs(), [], "nobody wants that");
}

#[test]
fn neighbours_go_together_as_far_as_there_is_room() {
    let mut world = three();
    let wide = |world: &mut World, seconds: usize| {
        for _ in 0..seconds {
            let by = |page| Counted { page: (RangeNumber(7), page), per_second: 2, by: vec![(Host(2), 2)] };
            world.fact(Fact::Hot((0..200).map(by).collect()));
            world.run(1_000);
        }
    };
    wide(&mut world, 6);
    assert_eq!(world.runs(), [(0, 192, 8)], "each page has few requests, and all of a run have many");
    let mut world = three();
    world.serve(Host(8), 130);
    world.run(2_000);
    wide(&mut world, 6);
    assert_eq!(world.runs(), [(0, 128, 8)], "there is no room for more");
}

#[test]
fn what_nobody_has_does_not_keep_the_rest_where_it_is() {
    let mut world = three();
    world.cut.insert(Host(9));
    world.run(10_000);
    assert!(!world.range(RangeNumber(9)).is_served);
    world.asked(6, 130, &[(Host(2), 200)]);
    assert_eq!(world.runs(), [(128, 64, 8)]);
}

#[test]
fn a_run_has_no_pages_of_others() {
    let mut world = three();
    world.order(|ranges, now, orders| ranges.move_pages(now, RangeNumber(7), Host(9), (60, 10), orders).map(drop));
    world.order(|ranges, now, orders| ranges.move_pages(now, RangeNumber(7), Host(9), (100, 10), orders).map(drop));
    world.run(3_000);
    assert_eq!(world.runs(), [(60, 10, 9), (100, 10, 9)]);
    world.busy = [(RangeNumber(PARTS_FROM), 100), (RangeNumber(PARTS_FROM + 1), 100)].into();
    world.asked(6, 70, &[(Host(2), 200)]);
    assert_eq!(world.runs(), [(60, 10, 9), (100, 10, 9), (70, 30, 8)]);
    world.busy.insert(RangeNumber(PARTS_FROM + 2), 100);
    world.asked(6, 199, &[(Host(2), 200)]);
    assert_eq!(world.runs().last(), Some(&(192, 8, 8)), "no more than there are");
    world.busy.insert(RangeNumber(PARTS_FROM + 3), 100);
    world.asked(6, 69, &[(Host(2), 200)]);
    assert_eq!(world.runs().first(), Some(&(60, 10, 8)), "a part goes as it is");
}

#[test]
fn pages_that_nobody_asks_for_come_home() {
    let mut world = three();
    world.asked(6, 3, &[(Host(2), 200)]);
    assert_eq!(world.runs(), [(0, 64, 8)]);
    world.busy = [(RangeNumber(PARTS_FROM), 100)].into();
    world.run(70_000);
    assert_eq!(world.runs(), [(0, 64, 8)], "somebody does");
    world.busy = [(RangeNumber(7), 2_000)].into();
    world.run(70_000);
    assert_eq!(world.runs(), [(0, 64, 8)], "its range's home is busy");
    world.busy.clear();
    world.run(5_000);
    assert_eq!(world.runs(), []);
}

#[test]
fn of_a_busy_range_the_pages_go_that_make_it_so() {
    let mut world = three();
    let counted = |page, per_second| Counted {
        page: (RangeNumber(7), page),
        per_second,
        by: vec![(Host(1), per_second / 2), (Host(2), per_second / 2)],
    };
    world.busy = [(RangeNumber(7), 9_000), (RangeNumber(8), 100)].into();
    world.run(3_000);
    world.fact(Fact::Hot(vec![counted(3, 4_000), counted(70, 1_000)]));
    let whole = Moved { range: RangeNumber(7), to: Host(9), pages: None };
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
    let near = |page, per_second| Counted { page: (RangeNumber(7), page), per_second, by: vec![(Host(2), per_second)] };
    world.fact(Fact::Hot(vec![near(130, 5_000)]));
    assert_eq!(world.ranges.rebalancing(), Some(Moved { range: RangeNumber(7), to: Host(8), pages: Some((128, 64)) }));
}

#[test]
fn a_host_is_in_one_group() {
    let sentence = Locality::new(vec![vec![Host(1), Host(2)], vec![Host(3), Host(2)]]).expect_err("2 is in two");
    assert!(sentence.contains("host 0x2 is near the hosts of two groups"), "{sentence}");
    assert!(Locality::default().is_empty() && !Locality::new(vec![vec![Host(1)]]).expect("one").is_empty());
}

#[test]
fn the_busiest_server_gives_something_away() {
    let mut world = World::new(0);
    [7, 8].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(500);
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(8), Host(7), orders));
    world.run(500);
    assert_eq!(world.range(RangeNumber(8)).home, Host(7));
    assert_eq!(world.ranges.rebalancing(), None, "nobody is busy");
    world.busy = [(RangeNumber(7), 9_000), (RangeNumber(8), 6_000)].into();
    world.run(3_000);
    let moved = world.ranges.rebalancing().expect("one is busy and the other is not");
    assert_eq!((moved.to, moved.pages), (Host(8), None));
    world.order(|ranges, now, orders| ranges.let_go(now, moved, orders));
    world.run(3_000);
    assert_eq!(world.ranges.rebalancing(), None, "that is as good as it gets");
}

#[test]
fn nothing_goes_before_what_went_last_is_counted_where_it_is() {
    let mut world = World::new(0);
    [7, 8, 9].into_iter().for_each(|host| world.serve(Host(host), 100));
    world.run(500);
    for range in [8, 9] {
        world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(range), Host(7), orders));
        world.run(500);
    }
    world.busy = [(RangeNumber(7), 4_000), (RangeNumber(8), 4_000), (RangeNumber(9), 4_000)].into();
    world.run(3_000);
    let mut to = Vec::new();
    for _ in 0..2 {
        let moved = world.ranges.rebalancing().expect("one server does everything");
        to.push(moved.to);
        world.order(|ranges, now, orders| ranges.let_go(now, moved, orders));
        while world.range(moved.range).home != moved.to {
            world.run(10);
        }
        world.run(200);
        assert_eq!(world.ranges.rebalancing(), None, "nobody knows yet what that made of it");
        world.run(3_000);
    }
    to.sort_unstable();
    assert_eq!((to, world.ranges.rebalancing()), (vec![Host(8), Host(9)], None));
}
