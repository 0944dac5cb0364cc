//! Tests page ranges that have a port of their own.

use std::time::Duration;

use trellis_switch::{PageRange, Prefix, Redirect, Route};

use super::{
    CLONE, COMMIT, CREATE, Case, Context, DIRECT, HELLO, INQUIRE, INVALIDATE, INVALIDATED, PING, READ, RELEASE, RENEW,
    UPDATE, WRITE, header,
};

pub(super) const CASES: &[Case] = &[
    ("what is about a page of a range goes to its port", follows),
    ("of several ranges the shortest wins", shortest),
    ("a range stands over prefixes", over_prefixes),
    ("who has a range speaks for its pages", speaks),
    ("leases of a range are its port's", leases),
    ("redirects stand over ranges", redirected),
    ("ranges are gone with the switch", soft),
];

const HOUR: Option<Duration> = Some(Duration::from_secs(3600));
/// Commands that are about a page.
const ABOUT_PAGES: [u8; 9] = [READ, 0x02, WRITE, COMMIT, UPDATE, RENEW, RELEASE, CLONE, INVALIDATED];

fn range(context: &Context, server: &str, first: u64, order: u8) -> PageRange {
    PageRange::new(context.host(server).plan().number, first, order).unwrap()
}

fn set(context: &Context, server: &str, (first, order): (u64, u8), to: &str) {
    context.switch().set_page_route(range(context, server, first, order), context.port(to)).unwrap();
}

fn drop_page_route(context: &Context, server: &str, (first, order): (u64, u8)) -> bool {
    context.switch().drop_page_route(range(context, server, first, order)).unwrap()
}

fn follows(context: &mut Context) {
    let home = context.host("s1").plan().number;
    assert_eq!(context.switch().page_routes(home).unwrap(), []);
    set(context, "s1", (8, 3), "s2");
    for command in ABOUT_PAGES {
        for (page, to) in [(7, "s1"), (8, "s2"), (15, "s2"), (16, "s1")] {
            context.goes("c1", context.pointer("s1", command, page), to);
            context.goes("c1", context.with_arguments("s1", command, DIRECT | 3, page), to);
        }
    }
    for command in [CREATE, INQUIRE, HELLO, PING, INVALIDATE, 0x46] {
        context.goes("c1", context.pointer("s1", command, 8), "s1");
    }
    context.goes("c1", context.pointer("s3", READ, 8), "s3");
    let counters = context.counters("c1");
    assert_eq!((counters.delivered, counters.redirected), (9 * 8 + 7, 0));
    assert_eq!(context.switch().hot_pages(0).unwrap(), []);
    set(context, "s1", (8, 3), "s3");
    set(context, "s1", (0, 0), "s2");
    set(context, "s2", (8, 3), "s1");
    let all = [(range(context, "s1", 0, 0), context.port("s2")), (range(context, "s1", 8, 3), context.port("s3"))];
    assert_eq!(context.switch().page_routes(home).unwrap(), all);
    context.goes("c1", context.pointer("s1", READ, 8), "s3");
    context.goes("c1", context.pointer("s1", READ, 0), "s2");
    context.goes("c1", context.pointer("s2", READ, 8), "s1");
    assert!(drop_page_route(context, "s1", (8, 3)));
    assert!(
        !drop_page_route(context, "s1", (8, 3))
            && !drop_page_route(context, "s1", (8, 2))
            && !drop_page_route(context, "s3", (8, 3))
    );
    context.goes("c1", context.pointer("s1", READ, 8), "s1");
    context.goes("c1", context.pointer("s1", READ, 0), "s2");
    assert!(drop_page_route(context, "s1", (0, 0)));
    context.goes("c1", context.pointer("s1", READ, 0), "s1");
    context.goes("c1", context.pointer("s2", READ, 8), "s1");
    // A port without a host, and an impossible one.
    context.switch().set_page_route(range(context, "s1", 8, 3), 900).unwrap();
    context.send("c1", context.request("c1", 1), context.pointer("s1", READ, 9), b"nobody");
    context.goes("c1", context.pointer("s1", READ, 1), "s1");
    assert_eq!(context.counters("c1").no_port, 1);
    assert!(context.switch().set_page_route(range(context, "s1", 8, 3), 0).is_err());
}

fn shortest(context: &mut Context) {
    let last = (1 << 36) - 1;
    let lead = |context: &mut Context, ways: &[(u64, &str)]| {
        for &(page, to) in ways {
            context.goes("c1", context.pointer("s1", READ, page), to);
            context.goes("c1", context.pointer("s1", CLONE, page), to);
        }
    };
    set(context, "s1", (0, 36), "s2");
    set(context, "s1", (0, 4), "s3");
    lead(context, &[(0, "s3"), (15, "s3"), (16, "s2"), (last, "s2")]);
    set(context, "s1", (4, 2), "s1");
    set(context, "s1", (5, 0), "s2");
    set(context, "s1", (last, 0), "s3");
    lead(context, &[(3, "s3"), (4, "s1"), (5, "s2"), (6, "s1"), (8, "s3"), (last, "s3"), (last - 1, "s2")]);
    // Smaller ones in place of a larger one, and a larger one in place of smaller ones.
    assert!(drop_page_route(context, "s1", (5, 0)) && drop_page_route(context, "s1", (0, 4)));
    lead(context, &[(3, "s2"), (5, "s1"), (8, "s2")]);
    set(context, "s1", (0, 3), "s3");
    assert!(drop_page_route(context, "s1", (4, 2)) && drop_page_route(context, "s1", (0, 36)));
    lead(context, &[(0, "s3"), (7, "s3"), (8, "s1"), (last, "s3"), (last - 1, "s1")]);
}

fn over_prefixes(context: &mut Context) {
    let route = Route { port: context.port("s2"), is_memory: true };
    // As a controller redirects requests about pages: classes 0 to 3, and CLONE and INVALIDATED.
    let pages =
        [(0, 50), (CLONE, 55)].map(|(command, bits)| Prefix::new(context.pointer("s1", command, 0), bits).unwrap());
    set(context, "s1", (8, 3), "s3");
    for prefix in pages {
        context.switch().set_prefix(prefix, route).unwrap();
    }
    for command in ABOUT_PAGES {
        context.goes("c1", context.pointer("s1", command, 8), "s3");
        context.goes("c1", context.pointer("s1", command, 7), "s2");
    }
    context.goes("c1", context.pointer("s1", CREATE, 8), "s2");
    context.goes("c1", context.pointer("s1", HELLO, 8), "s1");
    for from in ["s1", "s2", "s3"] {
        context.answers(from, context.pointer("s1", READ, 8), "c1", 1, b"bytes");
    }
    set(context, "s1", (8, 3), "s1");
    context.goes("c1", context.pointer("s1", READ, 8), "s1");
    assert!(drop_page_route(context, "s1", (8, 3)));
    context.goes("c1", context.pointer("s1", READ, 8), "s2");
    for prefix in pages {
        context.switch().drop_prefix(prefix).unwrap();
    }
    context.goes("c1", context.pointer("s1", READ, 8), "s1");
}

fn speaks(context: &mut Context) {
    set(context, "s1", (8, 3), "s2");
    for command in [READ, COMMIT, CLONE, INVALIDATE] {
        for (from, page) in [("s2", 8), ("s2", 15), ("s1", 8), ("s1", 7)] {
            context.answers(from, context.pointer("s1", command, page), "c1", 9, b"from who may");
        }
    }
    let forged = |context: &mut Context, from: &str, page| {
        let before = context.counters(from).forged;
        context.send(from, context.pointer("s1", READ, page), context.request("c1", 9), b"forged");
        context.nothing_came(from, "c1");
        assert_eq!(context.counters(from).forged, before + 1, "{from} for {page}");
    };
    for (from, page) in [("s3", 8), ("s2", 7), ("s2", 16), ("c2", 8)] {
        forged(context, from, page);
    }
    // For a page range inside another one, answers from the other one's port do not count.
    set(context, "s1", (10, 0), "s3");
    context.answers("s3", context.pointer("s1", READ, 10), "c1", 9, b"from the range within");
    context.answers("s1", context.pointer("s1", READ, 10), "c1", 9, b"from the prefix");
    context.answers("s2", context.pointer("s1", READ, 11), "c1", 9, b"from the range");
    forged(context, "s2", 10);
    // A host that has a page by a redirect, or a copy in a group, may still use its address.
    let redirect = Redirect { port: context.port("c2"), epoch: 1, until: None };
    context.switch().set_redirect(context.page("s1", 10), redirect).unwrap();
    context.answers("c2", context.pointer("s1", READ, 10), "c1", 9, b"from the owner");
    assert!(drop_page_route(context, "s1", (10, 0)) && drop_page_route(context, "s1", (8, 3)));
    forged(context, "s2", 8);
    forged(context, "s3", 10);
    context.answers("s1", context.pointer("s1", READ, 8), "c1", 9, b"from home");
}

fn leases(context: &mut Context) {
    context.switch().set_leases(HOUR).unwrap();
    set(context, "s1", (8, 3), "s2");
    let page = context.page("s1", 9);
    let epoch = |context: &Context| context.switch().redirect(page).unwrap().map(|redirect| redirect.epoch);
    context.goes("c1", context.pointer("s1", UPDATE, 9), "s2");
    context.goes("c2", context.pointer("s1", UPDATE, 9), "c1");
    context.goes("c2", context.pointer("s1", READ, 9), "c1");
    context.goes("c1", context.pointer("s1", COMMIT, 9), "s2");
    context.goes("c2", context.with_arguments("s1", UPDATE, DIRECT, 9), "s2");
    assert_eq!((epoch(context), context.counters("c1").granted), (Some(0), 1));
    context.answers("s1", context.pointer("s1", UPDATE, 9), "c1", 77, &header(0, 77, 9));
    assert_eq!(epoch(context), Some(0), "who had the page says nothing about it any more");
    context.answers("s2", context.pointer("s1", UPDATE, 9), "c1", 78, &header(0, 78, 9));
    assert_eq!(epoch(context), Some(9));
    context.answers("s1", context.pointer("s1", RELEASE, 9), "c1", 79, &header(0, 79, 9));
    assert_eq!(epoch(context), Some(9));
    context.answers("s2", context.pointer("s1", RELEASE, 9), "c1", 80, &header(0, 80, 9));
    assert_eq!(epoch(context), None);
    // Outside the page range, the prefix's port is home.
    context.goes("c1", context.pointer("s1", UPDATE, 7), "s1");
    context.answers("s1", context.pointer("s1", UPDATE, 7), "c1", 81, &header(0, 81, 5));
    let found = context.switch().redirect(context.page("s1", 7)).unwrap();
    assert_eq!(found.map(|redirect| redirect.epoch), Some(5));
    // A lease survives the move of its page: what its owner writes back goes to the page's home.
    context.goes("c3", context.pointer("s1", UPDATE, 10), "s2");
    set(context, "s1", (8, 3), "s3");
    context.goes("c1", context.pointer("s1", READ, 10), "c3");
    context.goes("c3", context.pointer("s1", COMMIT, 10), "s3");
    context.answers("s3", context.pointer("s1", UPDATE, 10), "c3", 82, &header(0, 82, 6));
    assert!(drop_page_route(context, "s1", (8, 3)));
    context.goes("c1", context.pointer("s1", READ, 10), "c3");
    context.goes("c3", context.pointer("s1", COMMIT, 10), "s1");
}

fn redirected(context: &mut Context) {
    set(context, "s1", (8, 3), "s2");
    let redirect = |context: &Context, to| Redirect { port: context.port(to), epoch: 3, until: None };
    let page = context.page("s1", 9);
    // An owner, the page's previous home, and the port of the page range itself.
    for to in ["c2", "s1", "s2"] {
        assert!(context.switch().set_redirect(page, redirect(context, to)).unwrap());
        context.goes("c1", context.pointer("s1", READ, 9), to);
        context.goes("c1", context.pointer("s1", WRITE, 9), to);
        context.goes("c1", context.with_arguments("s1", READ, DIRECT, 9), "s2");
        context.goes("c1", context.pointer("s1", CLONE, 9), "s2");
        context.goes("c1", context.pointer("s1", READ, 10), "s2");
        if to != "s1" {
            // What s1 sends to its own addresses never reaches the switch.
            context.goes(to, context.pointer("s1", WRITE, 9), "s2");
        }
    }
    let before = context.counters("c1");
    assert!(context.switch().set_redirect(page, redirect(context, "c2")).unwrap());
    context.goes("c1", context.pointer("s1", READ, 9), "c2");
    assert_eq!(context.counters("c1").redirected, before.redirected + 1);
    assert!(drop_page_route(context, "s1", (8, 3)));
    context.goes("c1", context.pointer("s1", READ, 9), "c2");
    context.goes("c2", context.pointer("s1", READ, 9), "s1");
    set(context, "s1", (9, 0), "s3");
    context.goes("c1", context.pointer("s1", READ, 9), "c2");
    assert!(context.switch().drop_redirect(page, 3).unwrap());
    context.goes("c1", context.pointer("s1", READ, 9), "s3");
}

fn soft(context: &mut Context) {
    set(context, "s1", (8, 3), "s2");
    context.goes("c1", context.pointer("s1", READ, 9), "s2");
    context.lab.restart_switch().unwrap();
    let home = context.host("s1").plan().number;
    assert_eq!(context.lab.switch().page_routes(home).unwrap(), []);
    let socket = context.host("c1").socket(context.request("c1", 1), 0).unwrap();
    socket.send_to(b"home", (context.pointer("s1", READ, 9), super::PORT)).unwrap();
    assert_eq!(context.receive("s1").0, b"home");
}
