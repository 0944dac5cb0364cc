//! Tests redirects that are set, hot pages, and full tables.

use std::time::{Duration, Instant};

use trellis_switch::{HotPage, Redirect};

use super::{CREATE, Case, Context, DIRECT, HOUR, READ, REDIRECTS, TIMEOUT, UPDATE, WRITE};

pub(super) const CASES: &[Case] = &[
    ("a redirect leads elsewhere and the owner home", redirect),
    ("who answers in home's place may", answers),
    ("epochs decide between redirects", epochs),
    ("a redirect ends", ends),
    ("many redirects are set at once", many),
    ("hot pages are counted", hot),
    ("a full table says so", full),
    ("what has ended takes no room", room),
];

fn hour() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(3600))
}

fn redirect(context: &mut Context) {
    for (to, until) in [("c2", hour()), ("s2", None)] {
        let redirect = Redirect { port: context.port(to), epoch: 3, until };
        assert!(context.switch().set_redirect(context.page("s1", 5), redirect).unwrap());
        let found = context.switch().redirect(context.page("s1", 5)).unwrap().unwrap();
        assert_eq!((found.port, found.epoch, found.until.is_some()), (redirect.port, 3, until.is_some()));
        context.goes("c1", context.pointer("s1", READ, 5), to);
        context.goes("c1", context.pointer("s1", WRITE, 5), to);
        context.goes("c1", context.with_arguments("s1", READ, DIRECT | 3, 5), "s1");
        context.goes("c1", context.pointer("s1", READ, 4), "s1");
        context.goes("c1", context.pointer("s2", READ, 5), "s2");
        context.goes("c1", context.pointer("s1", CREATE, 5), "s1");
        context.goes(to, context.pointer("s1", WRITE, 5), "s1");
        assert!(context.switch().drop_redirect(context.page("s1", 5), 3).unwrap());
        assert!(!context.switch().drop_redirect(context.page("s1", 5), 3).unwrap());
        context.goes("c1", context.pointer("s1", READ, 5), "s1");
    }
    assert_eq!(context.counters("c1").redirected, 4);
    let nowhere = Redirect { port: 0, epoch: 0, until: None };
    assert!(context.switch().set_redirect(context.page("s1", 5), nowhere).is_err());
}

fn answers(context: &mut Context) {
    let redirect = Redirect { port: context.port("c2"), epoch: 1, until: hour() };
    context.switch().set_redirect(context.page("s1", 5), redirect).unwrap();
    context.answers("c2", context.pointer("s1", READ, 5), "c1", 9, b"from the owner");
    context.answers("s1", context.pointer("s1", READ, 5), "c1", 9, b"from home");
    for forged in [context.pointer("s1", READ, 6), context.pointer("s2", READ, 5)] {
        context.send("c2", forged, context.request("c1", 9), b"forged");
    }
    context.nothing_came("c2", "c1");
    assert_eq!(context.counters("c2").forged, 2);
    context.switch().drop_redirect(context.page("s1", 5), 1).unwrap();
    context.send("c2", context.pointer("s1", READ, 5), context.request("c1", 9), b"too late");
    context.nothing_came("c2", "c1");
    assert_eq!(context.counters("c2").forged, 3);
}

fn epochs(context: &mut Context) {
    let page = context.page("s1", 5);
    let to = |port, epoch| Redirect { port, epoch, until: hour() };
    let (c2, c3) = (context.port("c2"), context.port("c3"));
    assert!(context.switch().set_redirect(page, to(c2, 5)).unwrap());
    assert!(!context.switch().set_redirect(page, to(c3, 4)).unwrap());
    context.goes("c1", context.pointer("s1", READ, 5), "c2");
    assert!(!context.switch().drop_redirect(page, 4).unwrap());
    assert!(context.switch().set_redirect(page, to(c3, 5)).unwrap());
    context.goes("c1", context.pointer("s1", READ, 5), "c3");
    assert!(context.switch().drop_redirect(page, 6).unwrap());
    // An ended redirect does not prevent a new one.
    let past = Redirect { port: c2, epoch: 9, until: Some(Instant::now()) };
    assert!(context.switch().set_redirect(page, past).unwrap());
    assert!(context.switch().set_redirect(page, to(c3, 1)).unwrap());
    context.goes("c1", context.pointer("s1", READ, 5), "c3");
}

fn ends(context: &mut Context) {
    for number in 0..10 {
        let until = Some(Instant::now() + Duration::from_millis(if number < 6 { 1 } else { 3_600_000 }));
        let redirect = Redirect { port: context.port("c2"), epoch: 1, until };
        context.switch().set_redirect(context.page("s1", number), redirect).unwrap();
    }
    // Longer than their term, in any case.
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(context.switch().redirect(context.page("s1", 0)).unwrap(), None);
    context.goes("c1", context.pointer("s1", READ, 0), "s1");
    context.goes("c1", context.pointer("s1", READ, 9), "c2");
    context.send("c2", context.pointer("s1", READ, 1), context.request("c1", 1), b"too late");
    context.nothing_came("c2", "c1");
    let left = if context.switch().capabilities().forgets_ended { 0 } else { 5 };
    assert_eq!(context.switch().sweep().unwrap(), left, "the one that was asked for is gone already");
    assert_eq!(context.switch().sweep().unwrap(), 0);
    context.goes("c1", context.pointer("s1", READ, 8), "c2");
}

fn many(context: &mut Context) {
    let to = |context: &Context, name, epoch| Redirect { port: context.port(name), epoch, until: hour() };
    context.switch().set_redirect(context.page("s1", 7), to(context, "c3", 9)).unwrap();
    let run: Vec<_> = (0..300).map(|number| (context.page("s1", number), to(context, "c2", 1))).collect();
    assert_eq!(context.switch().set_redirects(&run).unwrap(), 299, "one has a higher epoch");
    for (number, owner) in [(0, "c2"), (7, "c3"), (299, "c2"), (300, "s1")] {
        context.goes("c1", context.pointer("s1", READ, number), owner);
    }
    assert_eq!(context.switch().set_redirects(&[]).unwrap(), 0);
    // Those before a refused one are set.
    let [first, second] = [400, 401].map(|number| context.page("s1", number));
    let nowhere = Redirect { port: 0, epoch: 1, until: None };
    context.switch().set_redirects(&[(first, to(context, "c2", 1)), (second, nowhere)]).unwrap_err();
    context.goes("c1", context.pointer("s1", READ, 400), "c2");
    let more: Vec<_> = (1000..2000).map(|number| (context.page("s1", number), to(context, "c2", 1))).collect();
    assert!(context.switch().set_redirects(&more).unwrap_err().is_full());
    context.goes("c1", context.pointer("s1", READ, 1000), "c2");
    context.goes("c1", context.pointer("s1", READ, 1999), "s1");
}

fn hot(context: &mut Context) {
    context.switch().hot_pages(0).unwrap();
    for (server, page, requests) in [("s1", 1, 3), ("s2", 7, 5), ("s3", 2, 1)] {
        for _ in 0..requests {
            context.goes("c1", context.pointer(server, READ, page), server);
        }
    }
    context.goes("c1", context.pointer("s3", CREATE, 2), "s3");
    context.goes("c2", context.pointer("s1", READ, 1), "s1");
    let (c1, c2) = (context.port("c1"), context.port("c2"));
    let expected = [("s2", 7, vec![(c1, 5)]), ("s1", 1, vec![(c1, 3), (c2, 1)]), ("s3", 2, vec![(c1, 1)])];
    let is_by_port = context.switch().capabilities().counts_by_port;
    let expected = expected.map(|(server, page, by_port)| HotPage {
        page: context.page(server, page),
        requests: by_port.iter().map(|(_, requests)| requests).sum(),
        by_port: if is_by_port { by_port } else { Vec::new() },
    });
    assert_eq!(context.switch().hot_pages(10).unwrap(), expected);
    assert!(context.switch().hot_pages(10).unwrap().is_empty());
    context.goes("c1", context.pointer("s1", READ, 1), "s1");
    context.goes("c2", context.pointer("s1", READ, 2), "s1");
    assert_eq!(context.switch().hot_pages(1).unwrap().len(), 1);
}

fn full(context: &mut Context) {
    let redirect = Redirect { port: context.port("c2"), epoch: 1, until: hour() };
    let mut stored = 0;
    let error = loop {
        match context.switch().set_redirect(context.page("s1", stored), redirect) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored <= 2 * u64::from(REDIRECTS), "the table has no end");
    };
    assert!(stored >= u64::from(REDIRECTS) / 2, "{stored}");
    let sentence = format!("the table of redirects has {REDIRECTS} entries");
    assert!(error.is_full() && error.to_string().contains(&sentence), "{error}");
    context.goes("c1", context.pointer("s1", READ, stored - 1), "c2");
    context.goes("c1", context.pointer("s1", READ, stored), "s1");
    assert!(context.switch().drop_redirect(context.page("s1", 0), 1).unwrap());
    assert!(context.switch().set_redirect(context.page("s1", stored), redirect).unwrap());
}

fn room(context: &mut Context) {
    let wanted = u64::from(REDIRECTS);
    // There are no more requests for these pages, so none meets an ended redirect.
    for round in 1..3 {
        let until = Some(Instant::now() + Duration::from_millis(1));
        let ended = Redirect { port: context.port("c2"), epoch: 1, until };
        let pages = round * wanted..(round + 1) * wanted;
        let all: Vec<_> = pages.map(|number| (context.page("s2", number), ended)).collect();
        context.wait_until("there is room", |context| match context.switch().set_redirects(&all) {
            Ok(set) => set == REDIRECTS,
            // The kernel's packet filter removes what has ended a moment later.
            Err(error) => {
                assert!(error.is_full() && context.switch().capabilities().forgets_ended, "round {round}: {error}");
                false
            }
        });
        // Longer than their term, in any case.
        std::thread::sleep(Duration::from_millis(20));
    }
    context.switch().set_leases(HOUR).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    let mut page = 0;
    while context.counters("c1").granted == 0 {
        assert!(Instant::now() < deadline, "nothing is granted any more");
        context.goes("c1", context.pointer("s1", UPDATE, page), "s1");
        page += 1;
    }
    context.goes("c2", context.pointer("s1", UPDATE, page - 1), "c1");
}
