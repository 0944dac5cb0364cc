//! A single home of leases: waiting clients are served in turn, backups that lack pages get them in order, and a
//! range is reset only if no host has anything. `trellis-check` tests what all machines do together.

use core::ops::Range;
use std::collections::VecDeque;
use trellis_fabric_protocol::lease::controller::{Controller, Input as Fact, Record};
use trellis_fabric_protocol::lease::home::Stamp;
use trellis_fabric_protocol::lease::queue::WAITERS_MAX;
use trellis_fabric_protocol::lease::server::{Input, Memory, RangeServer};
use trellis_fabric_protocol::lease::{
    Ask, Bytes, Effect, Host, Message, Party, Placement, State, Status, Timing, epoch_of,
};

const HOME: Host = Host(1);
const CONTROLLER: Host = Host(300);
const TERM: u64 = 1_000;
const HOME_LEASE: u64 = 600;
const RETRY: u64 = 10;

fn timing() -> Timing {
    Timing::new(TERM, HOME_LEASE, RETRY, 0)
}

fn client(number: u16) -> Party {
    Party { host: Host(100 + number), incarnation: 1 }
}

fn step(server: &mut RangeServer, now: u64, from: Party, message: Message) -> Vec<Effect> {
    let mut effects = Vec::new();
    server.step(now, Input::Message(from, message), &mut effects);
    effects
}

/// The answers that clients get to their requests.
fn replies(effects: &[Effect]) -> Vec<(Party, u64, Status)> {
    let reply = |effect: &Effect| match effect {
        Effect::Send { to, message: Message::Reply { request, status, .. }, .. } => Some((*to, *request, *status)),
        _ => None,
    };
    effects.iter().filter_map(reply).collect()
}

fn ask(server: &mut RangeServer, now: u64, number: u16, request: u64, ask: Ask) -> Vec<(Party, u64, Status)> {
    replies(&step(server, now, client(number), Message::Request { page: 0, request, ask }))
}

fn placement(backups: &[Host], begins_empty: bool) -> Placement {
    Placement {
        incarnation: 1,
        home: HOME,
        backups: backups.to_vec(),
        hand_to: None,
        begins_empty,
        is_unserved: false,
        parts: Vec::new(),
    }
}

fn home(pages: u64, own: u64, backups: &[Host]) -> (RangeServer, Vec<Effect>) {
    home_of_changed(pages, own, backups, 0..0)
}

/// The same with pages that were changed before any host had copies.
fn home_of_changed(pages: u64, own: u64, backups: &[Host], changed: Range<u64>) -> (RangeServer, Vec<Effect>) {
    let mut server = RangeServer { own, ..RangeServer::new(HOME, Party::of(CONTROLLER), pages, timing(), 7, HOME) };
    server.memory.stamps.extend(changed.map(|page| (page, Stamp { incarnation: 0, epoch: 1 + page })));
    let mut effects = Vec::new();
    server.step(1, Input::Tick, &mut effects);
    let placement = placement(backups, true);
    let placed = Message::Placed { request: 1, boot_id: 7, placement, call: 0 };
    let effects = step(&mut server, 1, Party::of(CONTROLLER), placed);
    assert!(server.serves(2), "{effects:?}");
    (server, effects)
}

#[test]
fn a_server_is_home_at_a_controller_that_takes_longer_than_a_retry() {
    // A home reports after each third of its lease. An answer that takes longer than a third is one to an earlier report.
    for takes in [1, RETRY, 5 * RETRY, 15 * RETRY, HOME_LEASE / 3 + RETRY, HOME_LEASE / 2] {
        let mut server = RangeServer::new(HOME, Party::of(CONTROLLER), 1, timing(), 7, HOME);
        let mut reports = VecDeque::new();
        let mut serves_from = None;
        for now in 1..5_000 {
            let mut effects = Vec::new();
            while let Some((_, request)) = reports.pop_front_if(|(at, _)| *at <= now) {
                let placement = placement(&[], serves_from.is_none());
                let placed = Message::Placed { request, boot_id: 7, placement, call: 0 };
                server.step(now, Input::Message(Party::of(CONTROLLER), placed), &mut effects);
            }
            server.step(now, Input::Tick, &mut effects);
            for effect in effects {
                if let Effect::Send { message: Message::Report { request, .. }, .. } = effect {
                    reports.push_back((now + takes, request));
                }
            }
            match serves_from {
                None if server.serves(now) => serves_from = Some(now),
                Some(_) => assert!(server.serves(now), "{takes}: not at {now}"),
                None => {}
            }
        }
        let from = serves_from.unwrap_or_else(|| panic!("a controller that takes {takes} is never heard"));
        assert!(from < 5 * takes.max(RETRY), "{takes}: {from}");
    }
}

#[test]
fn a_home_that_handed_its_range_over_is_not_made_home_by_an_earlier_answer() {
    let (mut server, _) = home(1, 0, &[]);
    let third = HOME_LEASE / 3;
    // Two reports are on their way, and the answer to the second one comes first.
    let report = |server: &mut RangeServer, now: u64| {
        let mut effects = Vec::new();
        server.step(now, Input::Tick, &mut effects);
        let mut requests = effects.iter().filter_map(|effect| match effect {
            Effect::Send { message: Message::Report { request, .. }, .. } => Some(*request),
            _ => None,
        });
        requests.next_back().unwrap_or_else(|| panic!("no report at {now}"))
    };
    let (first, second) = (report(&mut server, 1 + third), report(&mut server, 1 + 2 * third));
    let placed = |request: u64, hand_to: Option<Host>| {
        let placement = Placement { hand_to, ..placement(&[], false) };
        Message::Placed { request, boot_id: 7, placement, call: 0 }
    };
    step(&mut server, 2 + 2 * third, Party::of(CONTROLLER), placed(second, Some(Host(2))));
    step(&mut server, 3 + 2 * third, Party::of(CONTROLLER), placed(first, None));
    assert_eq!(
        server.home.as_ref().unwrap().hand_to,
        Some(Host(2)),
        "the earlier answer was followed after the later one"
    );

    let third_report = report(&mut server, 1 + 3 * third);
    let now = 5 * HOME_LEASE;
    step(&mut server, now, Party { host: Host(2), incarnation: 0 }, Message::Taken { incarnation: 1 });
    assert_eq!(server.handed, Some(1));
    step(&mut server, now + 1, Party::of(CONTROLLER), placed(third_report, None));
    assert!(!server.serves(now + 1), "a home that gave its leases away serves again");
}

#[test]
fn a_backup_that_answers_calls_late_becomes_home() {
    for takes in [1, RETRY, 5 * RETRY, 15 * RETRY] {
        let record = Record {
            begins_empty: false,
            boot_id: Some(7),
            backups: vec![Host(2)],
            complete: vec![Host(2)],
            ..Record::first(HOME)
        };
        let mut controller = Controller::new(timing(), record, 0);
        let mut calls = VecDeque::new();
        let home_at = (1..10_000).find(|&now| {
            let mut effects = Vec::new();
            while let Some((_, call)) = calls.pop_front_if(|(at, _)| *at <= now) {
                let report = Message::Report { request: now, boot_id: 3, state: State::Idle, call };
                controller.step(now, Fact::Message(Party::of(Host(2)), report), &mut effects);
            }
            controller.step(now, Fact::Tick, &mut effects);
            for effect in &effects {
                if let Effect::Send { to, message: Message::Placed { request: 0, call, .. }, .. } = effect
                    && to.host == Host(2)
                {
                    calls.push_back((now + takes, *call));
                }
            }
            controller.record.home == Host(2)
        });
        let home_at = home_at.unwrap_or_else(|| panic!("a backup that takes {takes} is never heard"));
        assert!(home_at < HOME_LEASE + 5 * takes.max(RETRY), "{takes}: {home_at}");
    }
}

#[test]
fn who_waits_is_served_in_turn_and_copies_together() {
    let (mut server, _) = home(1, 0, &[]);
    let ok = |number, request| (client(number), request, Status::Ok);
    assert_eq!(ask(&mut server, 2, 0, 1, Ask::Update), [ok(0, 1)]);
    for (number, what) in [(1, Ask::Copy), (2, Ask::Copy), (3, Ask::Update), (4, Ask::Copy)] {
        assert_eq!(ask(&mut server, 3, number, 1, what), [(client(number), 1, Status::Busy)]);
    }
    // Asking again keeps the place; a repetition of the old request gets the same answer.
    assert_eq!(ask(&mut server, 4, 2, 5, Ask::Copy), [(client(2), 5, Status::Busy)]);
    assert_eq!(ask(&mut server, 4, 2, 1, Ask::Copy), [(client(2), 1, Status::Busy)]);
    let epoch = server.home.as_ref().unwrap().leased[&0].epoch;
    assert_eq!(ask(&mut server, 5, 0, 2, Ask::Renew(epoch)), [(client(0), 2, Status::Busy)], "others wait");
    assert_eq!(ask(&mut server, 6, 0, 3, Ask::Release(epoch)), [ok(1, 1), ok(2, 5)]);
    assert_eq!(ask(&mut server, 7, 2, 5, Ask::Copy), [], "that was answered");
    // One more copy has to wait for the earlier update.
    assert_eq!(ask(&mut server, 7, 5, 1, Ask::Copy), [(client(5), 1, Status::Busy)]);
    let epoch = server.home.as_ref().unwrap().leased[&0].epoch;
    let gone = |number| (client(number), Message::Invalidated { page: 0, epoch });
    let [first, second] = [gone(1), gone(2)].map(|(from, message)| replies(&step(&mut server, 8, from, message)));
    assert_eq!((first, second), (vec![], vec![ok(3, 1)]));
    let epoch = server.home.as_ref().unwrap().leased[&0].epoch;
    assert_eq!(ask(&mut server, 9, 3, 2, Ask::Release(epoch)), [ok(4, 1), ok(5, 1)]);
}

#[test]
fn a_queue_is_bounded_and_who_asks_no_more_has_no_place() {
    let (mut server, _) = home(1, 0, &[]);
    server.home.as_mut().unwrap().until = u64::MAX;
    ask(&mut server, 2, 0, 1, Ask::Update);
    let mut busy = |now, number| {
        let request = Message::Request { page: 0, request: now, ask: Ask::Update };
        match &step(&mut server, now, client(number), request)[0] {
            Effect::Send { message: Message::Reply { status: Status::Busy, epoch, .. }, .. } => *epoch,
            other => panic!("{other:?}"),
        }
    };
    for number in 1..=WAITERS_MAX as u16 {
        assert_eq!(busy(3, number), epoch_of(1));
    }
    assert_eq!(busy(4, 1000), 0, "there is no place left");
    // All but one have stopped asking; the lease ends, and their places are dropped.
    assert_eq!(busy(900, 40), epoch_of(1));
    let mut effects = Vec::new();
    server.step(3 + TERM, Input::Tick, &mut effects);
    assert_eq!(replies(&effects), [(client(40), 900, Status::Ok)]);
}

#[test]
fn a_commit_under_no_lease_is_not_acknowledged() {
    let (mut server, _) = home(1, 0, &[]);
    let commit = Ask::Commit { epoch: 0, release: false };
    assert_eq!(ask(&mut server, 2, 1, 1, commit), [(client(1), 1, Status::Fenced)], "nothing was ever committed");
    assert_eq!(ask(&mut server, 3, 2, 1, Ask::Update), [(client(2), 1, Status::Ok)]);
    assert_eq!(ask(&mut server, 4, 2, 2, commit), [(client(2), 2, Status::Fenced)], "nor by the holder of the lease");
}

#[test]
fn a_copy_that_was_given_up_unasked_holds_nobody_up() {
    let (mut server, _) = home(1, 0, &[]);
    ask(&mut server, 2, 0, 1, Ask::Copy);
    let first = server.home.as_ref().unwrap().leased[&0].epoch;
    ask(&mut server, 3, 0, 2, Ask::Copy);
    let second = server.home.as_ref().unwrap().leased[&0].epoch;
    // A message about the first copy does not concern the second.
    step(&mut server, 4, client(0), Message::Invalidated { page: 0, epoch: first });
    assert_eq!(server.home.as_ref().unwrap().leased[&0].copies.len(), 1);
    step(&mut server, 5, client(0), Message::Invalidated { page: 0, epoch: second });
    assert!(server.home.as_ref().unwrap().leased.is_empty());
    assert_eq!(ask(&mut server, 6, 1, 1, Ask::Update), [(client(1), 1, Status::Ok)]);
}

/// The first pages of the STORE messages.
fn stores(effects: &[Effect]) -> Vec<u64> {
    runs(effects).into_iter().map(|(run, _)| run.start).collect()
}

/// The pages of the STORE messages, and the bytes that go with them.
fn runs(effects: &[Effect]) -> Vec<(Range<u64>, Bytes)> {
    let store = |effect: &Effect| match effect {
        Effect::Send { message: Message::Store { page, pages, .. }, bytes, .. } => Some((*page..page + pages, *bytes)),
        _ => None,
    };
    effects.iter().filter_map(store).collect()
}

fn stored(run: Range<u64>) -> Message {
    Message::Stored { page: run.start, pages: run.end - run.start, incarnation: 1, epoch: 0 }
}

#[test]
fn pages_that_nothing_ever_changed_are_given_by_one_message() {
    let empty = 1 << 40;
    let (mut server, effects) = home(empty, 0, &[Host(2)]);
    let most = u64::from(u32::MAX);
    assert_eq!(runs(&effects)[0], (0..most, Bytes::Zero), "an empty range, as many as the message can name");
    let mut under_way: Vec<Range<u64>> = runs(&effects).into_iter().map(|(run, _)| run).collect();
    let mut messages = under_way.len();
    while let Some(run) = under_way.pop() {
        let effects = step(&mut server, 2, Party::of(Host(2)), stored(run));
        messages += runs(&effects).len();
        under_way.extend(runs(&effects).into_iter().map(|(run, _)| run));
    }
    assert!(server.home.as_ref().is_some_and(|home| home.is_settled()) && messages < 300, "{messages} messages");
    // Changed pages go separately, with their bytes, and so do the home's own pages.
    let (mut server, effects) = home_of_changed(100, 2, &[Host(2)], 40..42);
    assert_eq!(runs(&effects), [(98..99, Bytes::Page), (99..100, Bytes::Page)]);
    let given = |server: &RangeServer| [39, 40, 42].map(|page| server.home.as_ref().unwrap().settling.is_given(page));
    step(&mut server, 2, Party::of(Host(2)), stored(98..99));
    let effects = step(&mut server, 2, Party::of(Host(2)), stored(99..100));
    let page = Bytes::Page;
    assert_eq!(runs(&effects), [(0..40, Bytes::Zero), (40..41, page), (41..42, page), (42..98, Bytes::Zero)]);
    assert_eq!(given(&server), [false; 3]);
    step(&mut server, 3, Party::of(Host(2)), stored(0..1));
    assert_eq!(given(&server), [false; 3], "one page of a run is not the run");
    step(&mut server, 3, Party::of(Host(2)), stored(0..40));
    assert_eq!(given(&server), [true, false, false]);
}

#[test]
fn a_run_of_zero_pages_that_is_said_again_says_nothing_of_what_was_changed_since() {
    let (mut server, effects) = home(40, 0, &[Host(2)]);
    assert_eq!(runs(&effects), [(0..40, Bytes::Zero)]);
    assert!(server.unchanged(0..40).eq(0..40));
    // The answer is late; meanwhile a client changes page 0, which counts once the backup has it.
    ask(&mut server, 2, 0, 1, Ask::Update);
    let epoch = server.home.as_ref().unwrap().leased[&0].epoch;
    let staged = step(
        &mut server,
        3,
        client(0),
        Message::Request { page: 0, request: 2, ask: Ask::Commit { epoch, release: false } },
    );
    assert_eq!(runs(&staged), [(0..1, Bytes::Staged)], "{staged:?}");
    step(&mut server, 4, Party::of(Host(2)), Message::Stored { page: 0, pages: 1, incarnation: 1, epoch });
    let mut effects = Vec::new();
    server.step(2 + RETRY, Input::Tick, &mut effects);
    assert_eq!(runs(&effects), [(0..40, Bytes::Zero)], "{effects:?}");
    assert!(server.unchanged(0..40).eq(1..40));
}

#[test]
fn a_page_that_was_changed_since_is_not_given_as_zero_in_the_next_incarnation() {
    let (mut server, effects) = home(40, 0, &[Host(2), Host(3)]);
    assert_eq!(runs(&effects), [(0..40, Bytes::Zero), (0..40, Bytes::Zero)]);
    // Both answers are late; meanwhile both backups get a change of page 5.
    step(&mut server, 2, client(0), Message::Request { page: 5, request: 1, ask: Ask::Update });
    let epoch = server.home.as_ref().unwrap().leased[&5].epoch;
    let commit = Ask::Commit { epoch, release: false };
    step(&mut server, 3, client(0), Message::Request { page: 5, request: 2, ask: commit });
    for backup in [2, 3] {
        step(&mut server, 4, Party::of(Host(backup)), Message::Stored { page: 5, pages: 1, incarnation: 1, epoch });
    }
    assert!(server.home.as_ref().unwrap().staged.is_empty());

    let third = HOME_LEASE / 3;
    server.step(1 + third, Input::Tick, &mut Vec::new());
    let request = server.reports;
    let placement = Placement { incarnation: 2, ..placement(&[Host(2)], false) };
    let placed = Message::Placed { request, boot_id: 7, placement, call: 0 };
    let effects = step(&mut server, 2 + third, Party::of(CONTROLLER), placed);
    // Backup 2 has page 5 of incarnation 1: it would take a newer zero page for the later version.
    assert_eq!(runs(&effects), [(0..5, Bytes::Zero), (5..6, Bytes::Page), (6..40, Bytes::Zero)], "{effects:?}");
}

#[test]
fn a_backup_that_hears_of_zero_pages_keeps_what_is_newer() {
    let mut server = RangeServer::new(Host(2), Party::of(CONTROLLER), 10, timing(), 7, HOME);
    let store = |page, pages, incarnation, epoch| Message::Store { page, pages, incarnation, epoch };
    let mut put = |message| {
        let effects = step(&mut server, 1, Party::of(HOME), message);
        let is_answered = effects.iter().any(|it| matches!(it, Effect::Send { message: Message::Stored { .. }, .. }));
        assert!(is_answered, "{effects:?}");
        let pages = effects.iter().filter_map(|effect| if let Effect::Put(page) = effect { Some(*page) } else { None });
        pages.collect::<Vec<u64>>()
    };
    assert_eq!(put(store(3, 1, 1, epoch_of(1) + 5)), [3], "a commit that did not count");
    assert_eq!(put(store(4, 1, 2, epoch_of(2) + 5)), [4], "one that did");
    assert_eq!(put(store(0, 10, 2, 0)), [3], "the rest is zero as it is");
    assert_eq!(put(store(0, 10, 2, 0)), [], "it arrives twice");
    assert_eq!(put(store(5, 1, 2, epoch_of(2) + 6)), [5]);
}

#[test]
fn a_new_backup_gets_homes_own_pages_first_and_all_of_them() {
    let (pages, own, window) = (300, 100, 64);
    let (mut server, effects) = home_of_changed(pages, own, &[Host(2)], 0..pages - own);
    let (mut under_way, mut order) = (stores(&effects), stores(&effects));
    let mut now = 2;
    while let Some(page) = under_way.pop() {
        assert!(under_way.len() < window);
        let is_own = |page: &u64| *page >= pages - own;
        assert!(is_own(&page) || !under_way.iter().any(is_own), "page {page} goes before {under_way:?}");
        assert!(!server.home.as_ref().unwrap().is_settled());
        let stored = stored(page..page + 1);
        // A repeated message counts once.
        for _ in 0..2 {
            let sent = stores(&step(&mut server, now, Party::of(Host(2)), stored.clone()));
            order.extend(&sent);
            under_way.extend(sent);
        }
        now += 1;
    }
    assert!(server.home.as_ref().unwrap().is_settled());
    assert_eq!(order, (pages - own..pages).chain(0..pages - own).collect::<Vec<u64>>());
}

#[test]
fn what_is_not_answered_is_said_again_ever_more_rarely() {
    let (mut server, effects) = home_of_changed(300, 0, &[Host(2)], 0..300);
    assert_eq!(stores(&effects).len(), 64);
    server.home.as_mut().unwrap().until = u64::MAX;
    let (mut now, mut said) = (1, Vec::new());
    while now < 1 + HOME_LEASE {
        now = server.home.as_ref().unwrap().alarm().unwrap().max(now + 1);
        let mut effects = Vec::new();
        server.step(now, Input::Tick, &mut effects);
        said.extend((!stores(&effects).is_empty()).then_some(now));
    }
    let pauses: Vec<u64> = said.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(said[0] == 1 + RETRY && pauses.is_sorted() && pauses.len() < 8, "{said:?}");
    assert!(pauses.iter().all(|pause| *pause <= HOME_LEASE / 3), "{said:?}");
    let home = server.home.as_ref().unwrap();
    assert_eq!(home.silent(now, &timing()), Some(Host(2)));
    assert_eq!(home.settling.window, 1, "answers do not keep up");
}

#[test]
fn one_backups_answers_do_not_hide_that_another_is_silent() {
    let (mut server, effects) = home(1, 0, &[Host(2), Host(3)]);
    assert_eq!(stores(&effects), [0, 0]);
    for now in 2..=1 + HOME_LEASE {
        step(&mut server, now, Party::of(Host(2)), Message::Stored { page: 0, pages: 1, incarnation: 1, epoch: 0 });
    }
    let home = server.home.as_ref().unwrap();
    assert_eq!((home.silent(HOME_LEASE, &timing()), home.silent(1 + HOME_LEASE, &timing())), (None, Some(Host(3))));
}

#[test]
fn a_range_begins_where_nobody_has_anything_and_is_reset_when_that_is_lost() {
    let report = |boot_id, request| Message::Report { request, boot_id, state: State::Blank, call: 0 };
    let mut controller = Controller::new(timing(), Record::first(HOME), 0);
    let tell = |controller: &mut Controller, now, fact| {
        let mut effects = Vec::new();
        controller.step(now, fact, &mut effects);
        let placed = effects.iter().find_map(|effect| match effect {
            Effect::Send { message: Message::Placed { placement, request: 1.., .. }, .. } => Some(placement.clone()),
            _ => None,
        });
        (placed, effects)
    };
    let from = Party::of(HOME);
    let (placed, effects) = tell(&mut controller, 1, Fact::Message(from, report(7, 1)));
    let placed = placed.expect("it may begin");
    assert!(placed.begins_empty && placed.incarnation == 1);
    assert!(matches!(&effects[0], Effect::Persist(record) if record.boot_id == Some(7) && record.begins_empty));
    // A server without memory needs that; no client can have a lease, so it grants one at once.
    let blank = Memory { is_blank: true, ..Memory::default() };
    let mut server =
        RangeServer { memory: blank, ..RangeServer::new(HOME, Party::of(CONTROLLER), 4, timing(), 7, HOME) };
    server.step(1, Input::Tick, &mut Vec::new());
    let not_reset = Placement { begins_empty: false, ..placed.clone() };
    for (placement, serves) in [(not_reset, false), (placed, true)] {
        step(&mut server, 2, Party::of(CONTROLLER), Message::Placed { request: 1, boot_id: 7, placement, call: 0 });
        assert_eq!(server.serves(3), serves);
    }
    assert_eq!(ask(&mut server, 3, 0, 1, Ask::Update), [(client(0), 1, Status::Ok)]);
    // A server with another boot id and no memory is told nothing until the range is reset.
    assert_eq!(tell(&mut controller, 4, Fact::Message(from, report(8, 1))).0, None);
    tell(&mut controller, 5, Fact::Reset(HOME));
    assert_eq!(controller.record.incarnation, 1, "the home lease lasts");
    tell(&mut controller, 1 + HOME_LEASE, Fact::Tick);
    assert_eq!((controller.record.incarnation, controller.record.begins_empty), (2, true));
    let placed = tell(&mut controller, 2 + HOME_LEASE, Fact::Message(from, report(8, 2))).0.expect("it is reset");
    assert!(placed.begins_empty && placed.incarnation == 2 && placed.backups.is_empty());
}

#[test]
fn a_range_is_not_reset_while_somebody_has_it() {
    let record = Record {
        begins_empty: false,
        boot_id: Some(7),
        backups: vec![Host(2)],
        complete: vec![Host(2)],
        ..Record::first(HOME)
    };
    let mut controller = Controller::new(timing(), record.clone(), 0);
    let mut effects = Vec::new();
    controller.step(1, Fact::Reset(HOME), &mut effects);
    controller.step(HOME_LEASE, Fact::Tick, &mut effects);
    assert!(controller.is_open && controller.record == record, "a backup has everything");
    let report = Message::Report { request: 1, boot_id: 4, state: State::Idle, call: controller.call };
    controller.step(HOME_LEASE + 1, Fact::Message(Party::of(Host(2)), report), &mut effects);
    assert_eq!((controller.record.home, controller.begins_at), (Host(2), None));
}

#[test]
fn who_asks_for_what_nobody_has_hears_that() {
    // The range has been reset for that boot id, and its home has not reported yet.
    let record = Record { begins_empty: true, boot_id: Some(7), backups: vec![Host(2)], ..Record::first(HOME) };
    let mut controller = Controller::new(timing(), record, 0);
    let mut backup = RangeServer::new(Host(2), Party::of(CONTROLLER), 10, timing(), 3, HOME);
    backup.memory.incarnation = 1;
    // The backup asks, as it does when it is called, and is told.
    let tell = |controller: &mut Controller, backup: &mut RangeServer, now, cause| {
        let mut effects = Vec::new();
        controller.step(now, cause, &mut effects);
        for effect in effects {
            let Effect::Send { to, message, .. } = effect else { continue };
            let mut said =
                if to == Party::of(Host(2)) { step(backup, now, Party::of(CONTROLLER), message) } else { Vec::new() };
            while let Some(Effect::Send { message: report, .. }) = said.pop() {
                let mut answers = Vec::new();
                controller.step(now, Fact::Message(Party::of(Host(2)), report), &mut answers);
                for answer in answers {
                    let Effect::Send { message, .. } = answer else { continue };
                    step(backup, now, Party::of(CONTROLLER), message);
                }
            }
        }
    };
    let read = |backup: &mut RangeServer, now| ask(backup, now, 0, now, Ask::Read)[0].2;
    tell(&mut controller, &mut backup, 1, Fact::Tick);
    assert_eq!(read(&mut backup, 1), Status::Moved(HOME), "its home lease lasts");
    tell(&mut controller, &mut backup, HOME_LEASE, Fact::Tick);
    assert_eq!(read(&mut backup, HOME_LEASE), Status::Unserved, "this backup lacks some of it");
    assert_eq!(backup.may_read(HOME_LEASE, 0..1), Err(Status::Unserved));
    // A home that lost its pages is told so, too, and tells the clients that ask there.
    let mut effects = Vec::new();
    let report = |boot_id, state| Message::Report { request: 1, boot_id, state, call: 0 };
    controller.step(HOME_LEASE + 1, Fact::Message(Party::of(HOME), report(8, State::Blank)), &mut effects);
    let placed = effects.iter().find_map(|effect| match effect {
        Effect::Send { to, message: Message::Placed { placement, request: 1, .. }, .. } if *to == Party::of(HOME) => {
            Some(placement.clone())
        }
        _ => None,
    });
    let blank = Memory { is_blank: true, incarnation: 1, ..Memory::default() };
    let mut home =
        RangeServer { memory: blank, ..RangeServer::new(HOME, Party::of(CONTROLLER), 10, timing(), 8, HOME) };
    home.step(HOME_LEASE + 1, Input::Tick, &mut Vec::new());
    let placed = Message::Placed { request: 1, boot_id: 8, placement: placed.expect("it is answered"), call: 0 };
    step(&mut home, HOME_LEASE + 2, Party::of(CONTROLLER), placed);
    assert!(!home.serves(HOME_LEASE + 2), "it may not be home");
    assert_eq!(read(&mut home, HOME_LEASE + 2), Status::Unserved);
    // The home is heard again, with its pages: hosts to which it gives pages name it.
    controller.step(HOME_LEASE + 3, Fact::Message(Party::of(HOME), report(7, State::Idle)), &mut effects);
    assert!(!controller.is_unserved());
    let store = Message::Store { page: 0, pages: 1, incarnation: controller.record.incarnation, epoch: 0 };
    step(&mut backup, HOME_LEASE + 4, Party::of(HOME), store);
    assert!(matches!(read(&mut backup, HOME_LEASE + 4), Status::Moved(HOME)));
}
