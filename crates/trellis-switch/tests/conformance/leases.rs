//! Tests the leases that the switch grants, and what it learns from a home's answers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use trellis_switch::{Event, EventKind};

use super::{COMMIT, Case, Context, DIRECT, GIVES_BACK, HOUR, READ, RELEASE, RENEW, UPDATE, WRITE, header, with_flags};

pub(super) const CASES: &[Case] = &[
    ("the first UPDATE wins and nobody steals", nobody_steals),
    ("a lease ends by itself", ends),
    ("home confirms, renews and takes back", home_decides),
    ("what home refuses is no lease", refused),
    ("a lease that the switch lost is learnt again", learnt_again),
    ("of many at once one wins", many_at_once),
    ("without leases an UPDATE is a request like others", none),
];

const FENCED: u8 = 4;
const BUSY: u8 = 5;

fn kinds(context: &Context) -> Vec<EventKind> {
    context.switch().events().unwrap().iter().map(|event: &Event| event.kind).collect()
}

fn nobody_steals(context: &mut Context) {
    context.switch().set_leases(HOUR).unwrap();
    context.goes("c1", context.pointer("s1", UPDATE, 5), "s1");
    // The bug of the paper: there, the second one would become the owner, and get what the first one writes back.
    context.goes("c2", context.pointer("s1", UPDATE, 5), "c1");
    context.goes("c1", context.pointer("s1", COMMIT, 5), "s1");
    context.goes("c3", context.pointer("s1", UPDATE, 5), "c1");
    context.goes("c2", context.pointer("s1", READ, 5), "c1");
    context.goes("c2", context.pointer("s1", WRITE, 5), "c1");
    context.goes("c2", context.with_arguments("s1", UPDATE, DIRECT, 5), "s1");
    context.goes("c1", context.pointer("s1", UPDATE, 5), "s1");
    context.goes("c2", context.pointer("s1", UPDATE, 6), "s1");
    context.goes("c1", context.pointer("s1", READ, 6), "c2");
    let events = context.switch().events().unwrap();
    let granted = |page, name| (EventKind::Granted, context.page("s1", page), context.port(name), 0);
    let granted_events: Vec<_> = events.iter().map(|event| (event.kind, event.page, event.port, event.epoch)).collect();
    assert_eq!(granted_events, [granted(5, "c1"), granted(6, "c2")]);
    assert!(events[0].time <= events[1].time && !events[0].time.is_zero());
    assert_eq!((context.counters("c1").granted, context.counters("c2").granted), (1, 1));
    assert_eq!(context.counters("c3").granted, 0);
}

fn ends(context: &mut Context) {
    context.switch().set_leases(Some(Duration::from_millis(1))).unwrap();
    context.goes("c1", context.pointer("s1", UPDATE, 5), "s1");
    context.goes("c1", context.pointer("s1", UPDATE, 6), "s1");
    // Longer than the term, in any case.
    std::thread::sleep(Duration::from_millis(10));
    context.switch().set_leases(HOUR).unwrap();
    context.goes("c2", context.pointer("s1", READ, 5), "s1");
    context.goes("c2", context.pointer("s1", UPDATE, 6), "s1");
    context.goes("c1", context.pointer("s1", UPDATE, 6), "c2");
    context.goes("c1", context.pointer("s1", COMMIT, 6), "c2");
    use EventKind::{Expired, Granted};
    let events = context.switch().events().unwrap();
    let of = |page| events.iter().filter(move |event| event.page.number == page).map(|event| event.kind);
    assert_eq!(of(5).collect::<Vec<_>>(), [Granted, Expired]);
    assert_eq!(of(6).collect::<Vec<_>>(), [Granted, Expired, Granted]);
    if !context.switch().capabilities().forgets_ended {
        // The switch notices only at a request what has ended.
        let all: Vec<_> = events.iter().map(|event| event.kind).collect();
        assert_eq!(all, [Granted, Granted, Expired, Expired, Granted]);
    }
}

fn home_decides(context: &mut Context) {
    context.switch().set_leases(HOUR).unwrap();
    let page = context.page("s1", 5);
    let epoch = |context: &Context| context.switch().redirect(page).unwrap().map(|redirect| redirect.epoch);
    let answer = |context: &mut Context, command, number, header: &[u8]| {
        context.answers("s1", context.pointer("s1", command, 5), "c1", number, header);
    };
    context.goes("c1", context.pointer("s1", UPDATE, 5), "s1");
    assert_eq!(epoch(context), Some(0));
    answer(context, UPDATE, 77, &header(0, 78, 9));
    assert_eq!(epoch(context), Some(0), "the answer to another request");
    answer(context, UPDATE, 77, &with_flags(0, 0, 77, 9));
    assert_eq!(epoch(context), Some(0), "what is no answer");
    answer(context, UPDATE, 77, &header(0, 77, 9));
    assert_eq!(epoch(context), Some(9));
    answer(context, RENEW, 78, &header(0, 78, 10));
    assert_eq!(epoch(context), Some(10));
    answer(context, COMMIT, 79, &header(FENCED, 79, 10));
    assert_eq!(epoch(context), Some(10), "a COMMIT that failed gives nothing back");
    context.answers("s1", context.pointer("s1", RELEASE, 5), "c2", 79, &header(0, 79, 10));
    assert_eq!(epoch(context), Some(10), "c2 has nothing to give back");
    answer(context, RELEASE, 80, &header(0, 80, 10));
    assert_eq!(epoch(context), None);
    context.goes("c2", context.pointer("s1", UPDATE, 5), "s1");
    context.answers("s1", context.pointer("s1", UPDATE, 5), "c2", 81, &header(0, 81, 11));
    let commit = |context: &mut Context, flags, status, number, after| {
        let (pointer, source) = (context.pointer("s1", COMMIT, 5), context.request("c2", number));
        context.send("c2", source, pointer, &with_flags(0, flags, number, 11));
        assert_eq!(context.receive("s1").1, source);
        context.answers("s1", pointer, "c2", number, &header(status, number, after));
    };
    commit(context, 0, 0, 82, 12);
    assert_eq!(epoch(context), Some(12), "a COMMIT raises the epoch");
    commit(context, GIVES_BACK, FENCED, 83, 13);
    assert_eq!(epoch(context), Some(12), "home took nothing, so nothing is over");
    commit(context, 0, 0, 84, 14);
    assert_eq!(epoch(context), Some(14));
    commit(context, GIVES_BACK, 0, 85, 15);
    assert_eq!(epoch(context), None);
    use EventKind::{Confirmed, Granted, Renewed, Returned};
    assert_eq!(kinds(context), [Granted, Confirmed, Renewed, Returned, Granted, Confirmed, Returned]);
}

fn refused(context: &mut Context) {
    context.switch().set_leases(HOUR).unwrap();
    context.goes("c1", context.pointer("s1", UPDATE, 5), "s1");
    context.answers("s1", context.pointer("s1", UPDATE, 5), "c2", 7, &header(BUSY, 7, 0));
    context.goes("c2", context.pointer("s1", READ, 5), "c1");
    context.answers("s1", context.pointer("s1", UPDATE, 5), "c1", 7, &header(BUSY, 7, 0));
    context.goes("c2", context.pointer("s1", READ, 5), "s1");
    assert_eq!(kinds(context), [EventKind::Granted, EventKind::Refused]);
}

fn learnt_again(context: &mut Context) {
    context.switch().set_leases(HOUR).unwrap();
    // The switch has no entry; the home renews what it granted.
    context.answers("s1", context.pointer("s1", RENEW, 5), "c1", 7, &header(0, 7, 4));
    context.goes("c2", context.pointer("s1", READ, 5), "c1");
    // An answer of an owner in place of the home changes nothing.
    context.answers("c1", context.pointer("s1", UPDATE, 5), "c2", 8, &header(0, 8, 99));
    context.goes("c2", context.pointer("s1", READ, 5), "c1");
    // DIRECT bypasses the switch's redirects, and the answer passes through it.
    context.goes("c3", context.with_arguments("s1", UPDATE, DIRECT, 5), "s1");
    context.answers("s1", context.with_arguments("s1", UPDATE, DIRECT, 5), "c3", 9, &header(0, 9, 5));
    context.goes("c2", context.pointer("s1", READ, 5), "c3");
    context.answers("s1", context.pointer("s1", RENEW, 5), "c1", 9, &header(0, 9, 4));
    context.goes("c2", context.pointer("s1", READ, 5), "c3");
    use EventKind::{Confirmed, Renewed};
    assert_eq!(kinds(context), [Renewed, Confirmed]);
}

fn many_at_once(context: &mut Context) {
    // No more at once than fit into the queue of a switch that gets no processor for a while.
    const PAGES: u64 = 100;
    // `openflow` decides on one thread, and receives each page that is forwarded in a time in which others do a hundred.
    let rounds = if context.lab.plan().switch == "openflow" { 4 } else { 20 };
    context.switch().set_leases(HOUR).unwrap();
    let clients = ["c1", "c2"];
    for round in 0..rounds {
        let ready = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for client in clients {
                let (context, ready) = (&*context, &ready);
                scope.spawn(move || {
                    let socket = context.host(client).socket(context.request(client, 1), 0).unwrap();
                    for page in 0..PAGES {
                        // Spinning, so that they continue within nanoseconds of each other if there are enough cores.
                        ready.fetch_add(1, Ordering::AcqRel);
                        while ready.load(Ordering::Acquire) < (page + 1) * clients.len() as u64 {
                            std::thread::yield_now();
                        }
                        socket.send_to(client.as_bytes(), (context.pointer("s1", UPDATE, page), super::PORT)).unwrap();
                    }
                });
            }
        });
        // Everything that was sent has passed when what is sent after it has.
        for client in clients {
            let marker = context.with_arguments("s2", READ, DIRECT, 1);
            context.goes(client, marker, "s2");
        }
        let events = context.switch().events().unwrap();
        let mut winners: Vec<_> = events.iter().map(|event| (event.page, event.port)).collect();
        winners.sort_unstable();
        assert!(events.iter().all(|event| event.kind == EventKind::Granted));
        let pages: Vec<_> = winners.iter().map(|(page, _)| page.number).collect();
        assert_eq!(pages, (0..PAGES).collect::<Vec<_>>(), "every page has one owner, in round {round}");
        for (page, port) in winners {
            assert_eq!(context.switch().redirect(page).unwrap().map(|redirect| redirect.port), Some(port));
            assert!(context.switch().drop_redirect(page, 0).unwrap());
        }
    }
}

fn none(context: &mut Context) {
    context.goes("c1", context.pointer("s1", UPDATE, 5), "s1");
    context.goes("c2", context.pointer("s1", UPDATE, 5), "s1");
    context.answers("s1", context.pointer("s1", UPDATE, 5), "c1", 7, &header(0, 7, 3));
    context.goes("c2", context.pointer("s1", READ, 5), "s1");
    context.switch().set_leases(HOUR).unwrap();
    context.goes("c1", context.pointer("s1", UPDATE, 5), "s1");
    context.switch().set_leases(None).unwrap();
    // A granted lease stays until it ends.
    context.goes("c2", context.pointer("s1", UPDATE, 5), "c1");
    assert_eq!(kinds(context), [EventKind::Granted]);
}
