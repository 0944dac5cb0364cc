//! Tests hot pages, and the servers that answer for them.

use super::*;

/// What the switch has counted.
fn hot(counted: &[((RangeNumber, u64), u64)]) -> Fact {
    let of = |(page, per_second): &((RangeNumber, u64), u64)| Counted {
        page: *page,
        per_second: *per_second,
        by: Vec::new(),
    };
    Fact::Hot(counted.iter().map(of).collect())
}

impl World {
    /// A server reports its copy of a page of range 7.
    fn followed(&mut self, from: Host, page: u64, left: Nanoseconds, answered: u64) {
        let message = ControlMessage { range: RangeNumber(7), what: What::Followed { page, left, answered } };
        self.fact(Fact::Control(from, message));
    }

    /// Three servers, and page 3 of range 7 is hot; returns the host that was told to follow it.
    fn with_a_hot_page() -> (World, Host) {
        let mut world = World::new(0);
        [7, 8, 9].into_iter().for_each(|host| world.serve(Host(host), 100));
        world.run(1_000);
        world.fact(hot(&[((RangeNumber(7), 3), 1_000), ((RangeNumber(7), 4), 999), ((RangeNumber(77), 1), 5_000)]));
        let term = world.timing.term;
        assert_eq!(world.follows, [(Host(8), 3, term)], "page 4 is not hot enough, and nobody knows range 77");
        (world, Host(8))
    }
}

#[test]
fn a_hot_page_is_answered_elsewhere_only_while_there_is_a_copy() {
    let (mut world, host) = World::with_a_hot_page();
    world.followed(host, 3, 0, 0);
    assert!(world.redirects.is_empty(), "it has none yet");
    world.followed(Host(9), 3, 1_000 * MILLISECOND, 0);
    assert!(world.redirects.is_empty() && world.follows.last() == Some(&(Host(9), 3, 0)), "9 was not asked");
    world.followed(host, 3, 1_500 * MILLISECOND, 0);
    assert_eq!(world.redirects[&(RangeNumber(7), 3)], (host, world.now + 1_500 * MILLISECOND));
    assert!(
        world.has_said("range fd12:3456:7::/48: page 3 is asked for 1000 times a second; fd12:3456:8::/48 answers")
    );
    let before = world.follows.len();
    world.run(1_000);
    let times = world.follows.len() - before;
    assert!((3..=5).contains(&times), "it is told again before it forgets: {times}");
    world.fact(hot(&[((RangeNumber(7), 3), 500)]));
    assert!(world.redirects.contains_key(&(RangeNumber(7), 3)), "it is warm");
    world.followed(host, 3, 1_500 * MILLISECOND, 42);
    world.fact(hot(&[((RangeNumber(7), 3), 499)]));
    assert!(world.redirects.is_empty() && world.follows.last() == Some(&(host, 3, 0)), "it is cold");
    assert!(world.has_said("fd12:3456:8::/48 answered 42 READs"));
    world.fact(hot(&[((RangeNumber(7), 3), 1_000)]));
    assert_ne!(world.follows.last(), Some(&(host, 3, 0)), "it may be hot again at once");
}

#[test]
fn a_hot_page_that_changes_is_left_alone() {
    let (mut world, host) = World::with_a_hot_page();
    world.followed(host, 3, 1_500 * MILLISECOND, 0);
    world.followed(host, 3, 0, 7);
    assert!(world.redirects.is_empty() && world.follows.last() == Some(&(host, 3, 0)));
    let before = world.follows.len();
    world.run(9_000);
    world.fact(hot(&[((RangeNumber(7), 3), 9_000)]));
    assert_eq!(world.follows.len(), before, "each change would wait for the copy");
    world.run(1_500);
    world.fact(hot(&[((RangeNumber(7), 3), 9_000)]));
    assert_eq!(world.follows.len(), before + 1);
}

#[test]
fn a_server_that_gets_no_copy_is_given_up() {
    for does_report in [false, true] {
        let (mut world, host) = World::with_a_hot_page();
        for _ in 0..6 {
            assert_ne!(world.follows.last(), Some(&(host, 3, 0)), "it still has time");
            world.run(499);
            if does_report {
                world.followed(host, 3, 0, 0);
            }
        }
        world.run(10);
        assert_eq!(world.follows.last(), Some(&(host, 3, 0)));
        assert!(world.has_said("did not get a copy of it"), "{:?}", world.said);
        let before = world.follows.len();
        world.fact(hot(&[((RangeNumber(7), 3), 1_000)]));
        assert_eq!(world.follows.len(), before, "the page is left alone");
    }
}

#[test]
fn a_replica_that_is_gone_is_asked_no_more() {
    let (mut world, host) = World::with_a_hot_page();
    world.followed(host, 3, 1_500 * MILLISECOND, 0);
    world.cut.insert(host);
    world.run(1_500);
    assert!(world.redirects.is_empty(), "{:?}", world.redirects);
    world.fact(hot(&[((RangeNumber(7), 3), 1_000)]));
    assert_eq!(world.follows.last(), Some(&(Host(9), 3, world.timing.term)), "another one does it");
    // Who becomes home of the range answers for all of it.
    world.followed(Host(9), 3, 1_500 * MILLISECOND, 0);
    world.order(|ranges, now, orders| ranges.move_range(now, RangeNumber(7), Host(9), orders));
    world.run(2_000);
    assert_eq!((world.range(RangeNumber(7)).home, world.redirects.len()), (Host(9), 0));
}

#[test]
fn a_replica_that_answers_little_is_given_up() {
    let (mut world, host) = World::with_a_hot_page();
    let term = world.timing.term;
    world.followed(host, 3, term, 0);
    for second in 1..=3 {
        world.fact(hot(&[((RangeNumber(7), 3), 4_000)]));
        world.followed(host, 3, term, second * 1_000);
        assert!(
            world.redirects.contains_key(&(RangeNumber(7), 3)),
            "a quarter is enough, and the first count saw none"
        );
    }
    for _ in 0..4 {
        assert!(world.redirects.contains_key(&(RangeNumber(7), 3)), "little is not enough three times in turn");
        world.followed(host, 3, term, 3_500);
        world.fact(hot(&[((RangeNumber(7), 3), 4_000)]));
    }
    assert!(world.redirects.is_empty() && world.has_said("because what is asked for is not what a copy answers"));
    let before = world.follows.len();
    world.fact(hot(&[((RangeNumber(7), 3), 4_000)]));
    assert_eq!(world.follows.len(), before, "it is left alone");
}
