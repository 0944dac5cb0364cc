//! Parts of ranges: what goes with them when they are split and merged, who decides it, and what the controller
//! rejects.
//!
//! The explorer and the swarm of `trellis-check` cover every order of events; this file tests what no client can see.

use trellis_fabric_protocol::lease::controller::{Controller, Input as Fact, Record};
use trellis_fabric_protocol::lease::home::Stamp;
use trellis_fabric_protocol::lease::parts::{Keeps, Part, Step, are_parts, is_credible, may_keep, next, part_with};
use trellis_fabric_protocol::lease::server::{Input, RangeServer};
use trellis_fabric_protocol::lease::{
    Ask, Bytes, Effect, Host, Message, PageNumber, Party, Placement, RangeNumber, State, Status, Timing,
};
use trellis_fabric_protocol::wire::address::PARTS_FROM;

const CONTROLLER: Host = Host(9);
const HOME: Host = Host(1);
const BACKUP: Host = Host(2);
const CLIENT: Party = Party { host: Host(20), incarnation: 0x8001 };
const BOOT_ID: u16 = 7;
const PAGES: PageNumber = 10;

fn timing() -> Timing {
    Timing::new(1_000, 5_000, 10, 100)
}

fn part(since: u16) -> Part {
    Part { number: RangeNumber(PARTS_FROM), first: 3, pages: 4, since }
}

fn placement(incarnation: u16, parts: Vec<Part>) -> Placement {
    Placement {
        incarnation,
        home: HOME,
        backups: vec![BACKUP],
        hand_to: None,
        begins_empty: incarnation == 1,
        is_unserved: false,
        parts,
    }
}

fn hear(server: &mut RangeServer, now: u64, from: Party, message: Message) -> Vec<Effect> {
    let mut effects = Vec::new();
    server.step(now, Input::Message(from, message), &mut effects);
    effects
}

/// What the controller answers to the last report.
fn answer(server: &RangeServer, placement: Placement) -> Message {
    Message::Placed { request: server.reports, boot_id: BOOT_ID, placement, call: 0 }
}

/// The home of a range in incarnation 1, whose backup has every page.
fn home() -> RangeServer {
    let mut server = RangeServer::new(HOME, Party::of(CONTROLLER), PAGES, timing(), BOOT_ID, HOME);
    let mut effects = Vec::new();
    server.step(1, Input::Tick, &mut effects);
    let placed = answer(&server, placement(1, Vec::new()));
    let mut said = hear(&mut server, 1, Party::of(CONTROLLER), placed);
    while let Some((page, pages, incarnation, epoch)) = said.iter().find_map(stored) {
        said.remove(0);
        said.extend(hear(&mut server, 2, Party::of(BACKUP), Message::Stored { page, pages, incarnation, epoch }));
        said.retain(|effect| stored(effect).is_some_and(|(of, ..)| of != page));
    }
    assert!(server.home.as_ref().is_some_and(|home| home.is_settled()));
    server
}

fn stored(effect: &Effect) -> Option<(PageNumber, PageNumber, u16, u64)> {
    match effect {
        Effect::Send { message: Message::Store { page, pages, incarnation, epoch }, .. } => {
            Some((*page, *pages, *incarnation, *epoch))
        }
        _ => None,
    }
}

fn ask(server: &mut RangeServer, request: u64, page: PageNumber, ask: Ask) -> Vec<Effect> {
    hear(server, 3, CLIENT, Message::Request { page, request, ask })
}

fn granted(effects: &[Effect]) -> Option<u64> {
    effects.iter().find_map(|effect| match effect {
        Effect::Send { message: Message::Reply { status: Status::Ok, epoch, .. }, .. } => Some(*epoch),
        _ => None,
    })
}

fn reported(server: &mut RangeServer, now: u64) {
    server.report_at = Some(now);
    server.step(now, Input::Tick, &mut Vec::new());
}

#[test]
fn leases_and_versions_go_with_a_part_and_come_back() {
    let mut range = home();
    let lease = granted(&ask(&mut range, 1, 4, Ask::Update)).expect("page 4 is free");
    let beside = granted(&ask(&mut range, 2, 9, Ask::Update)).expect("page 9 is free");
    let done = granted(&ask(&mut range, 3, 5, Ask::Update)).expect("page 5 is free");
    ask(&mut range, 4, 5, Ask::Commit { epoch: done, release: false });
    let stored = Message::Stored { page: 5, pages: 1, incarnation: 1, epoch: done };
    assert!(granted(&hear(&mut range, 3, Party::of(BACKUP), stored)).is_some(), "it is committed");

    let mut of_part = range.split(4, &part(2), 1);
    assert_eq!((of_part.pages, of_part.own, of_part.memory.incarnation), (5, 1, 2));
    assert_eq!(of_part.memory.stamps.get(&2), Some(&Stamp { incarnation: 1, epoch: done }));
    assert!(!range.memory.stamps.contains_key(&5) && range.memory.stamps.is_empty());
    let leased =
        |server: &RangeServer| server.home.as_ref().map(|home| home.leased.keys().copied().collect::<Vec<_>>());
    assert_eq!((leased(&of_part), leased(&range)), (Some(vec![1, 2]), Some(vec![9])));
    // A client that repeats a commit whose answer was lost learns that it counted, and a client with a lease keeps
    // it.
    let again = ask(&mut of_part, 5, 2, Ask::Commit { epoch: done, release: false });
    assert!(granted(&again).is_some());
    assert_eq!(granted(&ask(&mut of_part, 6, 1, Ask::Renew(lease))), Some(lease));
    assert_eq!(granted(&ask(&mut range, 7, 9, Ask::Renew(beside))), Some(beside));

    range.merge(5, &part(2), of_part);
    assert_eq!(leased(&range), Some(vec![4, 5, 9]));
    assert_eq!(range.memory.stamps.get(&5), Some(&Stamp { incarnation: 1, epoch: done }));
    assert_eq!(granted(&ask(&mut range, 8, 4, Ask::Renew(lease))), Some(lease));
}

#[test]
fn a_commit_under_way_is_forgotten_and_its_page_is_given_again() {
    let mut range = home();
    let lease = granted(&ask(&mut range, 1, 4, Ask::Update)).expect("page 4 is free");
    let commit = Ask::Commit { epoch: lease, release: false };
    assert_eq!(granted(&ask(&mut range, 2, 4, commit)), None, "the backup lacks it");
    let mut of_part = range.split(4, &part(2), 0);
    let status = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Send { message: Message::Reply { status, .. }, .. } => Some(*status),
            _ => None,
        })
    };
    assert_eq!(status(&ask(&mut of_part, 3, 1, Ask::Read)), Some(Status::Restarting), "the backup may have the other");
    assert_eq!(status(&ask(&mut of_part, 4, 2, Ask::Read)), Some(Status::Ok), "of this one nothing was under way");
    // In the part's first incarnation this page is sent to the backup, and no other page.
    reported(&mut of_part, 5);
    let placed = answer(&of_part, placement(2, Vec::new()));
    let said = hear(&mut of_part, 5, Party::of(CONTROLLER), placed);
    let given: Vec<_> = said.iter().filter_map(stored).collect();
    assert_eq!(given, [(1, 1, 2, 0)]);
    assert!(said.iter().any(|effect| matches!(effect, Effect::Send { bytes: Bytes::Page, .. })), "as home has it");
    hear(&mut of_part, 6, Party::of(BACKUP), Message::Stored { page: 1, pages: 1, incarnation: 2, epoch: 0 });
    assert_eq!(status(&ask(&mut of_part, 5, 1, Ask::Read)), Some(Status::Ok));
    // The lease continues, and so does the commit under it.
    let again = ask(&mut of_part, 6, 1, Ask::Commit { epoch: lease, release: false });
    assert_eq!(again.iter().find_map(stored), Some((1, 1, 2, lease)));
}

#[test]
fn a_home_gives_no_pages_of_parts() {
    let mut range = home();
    let _ = range.split(4, &part(2), 0);
    reported(&mut range, 5);
    // It has missed an incarnation, and sends all pages again.
    let placed = answer(&range, placement(3, vec![part(2)]));
    let mut said = hear(&mut range, 5, Party::of(CONTROLLER), placed);
    let mut given = Vec::new();
    while let Some((page, pages, incarnation, epoch)) = said.iter().find_map(stored) {
        given.extend(page..page + pages);
        said.retain(|effect| stored(effect).is_some_and(|(of, ..)| of != page));
        said.extend(hear(&mut range, 6, Party::of(BACKUP), Message::Stored { page, pages, incarnation, epoch }));
    }
    assert_eq!(given, [0, 1, 2, 7, 8, 9]);
    assert!(range.home.as_ref().is_some_and(|home| home.is_settled()));
}

#[test]
fn what_cannot_hold_splits_and_merges_nothing() {
    let mut range = home();
    let (with, without) = (placement(2, vec![part(2)]), placement(3, Vec::new()));
    let unasked = Message::Placed { request: 0, boot_id: 0, placement: with.clone(), call: 5 };
    assert_eq!(next(&range, &[], &unasked), Step::Hear, "a call");
    let to_other = Message::Placed { request: 77, boot_id: BOOT_ID, placement: with.clone(), call: 0 };
    assert_eq!(next(&range, &[], &to_other), Step::Hear, "not what this home asked last");
    reported(&mut range, 4);
    let placed = answer(&range, with);
    assert_eq!(next(&range, &[], &placed), Step::Split(part(2)));
    let of_part = range.split(4, &part(2), 0);
    assert_eq!(next(&range, &[part(2)], &placed), Step::Hear, "there is one");
    hear(&mut range, 4, Party::of(CONTROLLER), placed);
    reported(&mut range, 5);
    let stale = answer(&range, placement(1, Vec::new()));
    assert_eq!(next(&range, &[part(2)], &stale), Step::Hear, "it was replaced");
    let merged = answer(&range, without);
    assert_eq!(next(&range, &[part(2)], &merged), Step::Merge(part(2)));
    // Another part of the same number and pages: the previous one ends first.
    let other = answer(&range, placement(4, vec![part(4)]));
    assert_eq!(next(&range, &[part(2)], &other), Step::Merge(part(2)));
    range.merge(5, &part(2), of_part);
    assert_eq!(next(&range, &[], &other), Step::Split(part(4)));
}

#[test]
fn a_page_is_kept_by_who_has_it() {
    let here = [part(3)];
    assert_eq!(part_with(&here, 3), Some(&here[0]));
    assert_eq!((part_with(&here, 2), part_with(&here, 7)), (None, None));
    assert_eq!(may_keep(&here, &(2..3), 9), Keeps::Yes);
    assert_eq!(may_keep(&here, &(6..7), 2), Keeps::No, "the range's home had not heard of the part");
    assert_eq!(may_keep(&here, &(6..7), 3), Keeps::Ask, "it has merged it");
    let of_part = home().split(4, &part(2), 0);
    let store = |incarnation| Message::Store { page: 0, pages: 1, incarnation, epoch: 1 };
    assert!(is_credible(&of_part, &store(2)) && !is_credible(&of_part, &store(3)));
    let over = [Part { first: 6, number: RangeNumber(PARTS_FROM + 1), ..part(3) }, part(3)];
    assert!(!are_parts(&over) && are_parts(&here));
}

#[test]
fn bytes_that_were_given_up_are_as_good_as_lost() {
    let mut of_part = home().split(4, &part(2), 0);
    of_part.lose_memory(5);
    let mut effects = Vec::new();
    of_part.step(5, Input::Tick, &mut effects);
    let is_blank =
        |effect: &Effect| matches!(effect, Effect::Send { message: Message::Report { state: State::Blank, .. }, .. });
    assert!(effects.iter().any(is_blank), "{effects:?}");
    assert_eq!(of_part.memory.incarnation, 2, "what an earlier part with this number was told means nothing still");
}

fn controller() -> Controller {
    let record = Record {
        boot_id: Some(BOOT_ID),
        begins_empty: false,
        backups: vec![BACKUP],
        complete: vec![BACKUP],
        ..Record::first(HOME)
    };
    Controller::new(timing(), record, 0)
}

fn settled(controller: &mut Controller, now: u64, incarnation: u16) {
    let state = State::Home { incarnation, is_settled: true, silent: None };
    let report = Message::Report { request: 1, boot_id: BOOT_ID, state, call: 0 };
    controller.step(now, Fact::Message(Party::of(HOME), report), &mut Vec::new());
}

#[test]
fn only_what_is_at_rest_is_split_and_merged() {
    let mut range = controller();
    let mut effects = Vec::new();
    assert!(range.split(1, part(0), &mut effects).is_none(), "its home has said nothing since this controller began");
    settled(&mut range, 1, 1);
    let mut of_part = range.split(2, part(0), &mut effects).expect("it is at rest");
    assert_eq!(range.record.parts, [part(2)]);
    assert_eq!(effects[0], Effect::Persist(range.record.clone()), "before anybody hears of it");
    let called: Vec<Host> = effects[1..]
        .iter()
        .filter_map(|effect| match effect {
            Effect::Send { to, message: Message::Placed { request: 0, .. }, .. } => Some(to.host),
            _ => None,
        })
        .collect();
    assert_eq!(called, [HOME, BACKUP]);
    let Record { incarnation, home, boot_id, parts, .. } = &of_part.record;
    assert_eq!((*incarnation, *home, *boot_id, parts.len()), (2, HOME, Some(BOOT_ID), 0));
    assert_eq!(of_part.until, 2 + timing().home_lease, "its home may serve the pages by the previous home lease");

    settled(&mut range, 3, 1);
    assert!(!range.is_at_rest(), "that was said of the incarnation before");
    settled(&mut range, 4, 2);
    assert!(
        range.split(5, Part { number: RangeNumber(PARTS_FROM + 1), ..part(0) }, &mut effects).is_none(),
        "these pages have a home"
    );
    assert!(!range.merge(5, RangeNumber(PARTS_FROM), &of_part, &mut effects), "the part's home has said nothing");
    settled(&mut of_part, 300, 2);
    of_part.record.incarnation = 6;
    assert!(!range.merge(301, RangeNumber(PARTS_FROM), &of_part, &mut effects), "nothing of this incarnation");
    settled(&mut of_part, 302, 6);
    assert!(!range.merge(303, RangeNumber(PARTS_FROM + 1), &of_part, &mut effects), "no part of it");
    let elsewhere = Controller { record: Record { home: BACKUP, ..of_part.record.clone() }, ..of_part.clone() };
    assert!(!range.merge(303, RangeNumber(PARTS_FROM), &elsewhere, &mut effects), "at another host");
    assert!(range.merge(303, RangeNumber(PARTS_FROM), &of_part, &mut effects));
    assert_eq!((range.record.incarnation, range.record.parts.len()), (7, 0), "above both");
    assert_eq!(range.until, of_part.until, "until then its home may serve the pages by the part's home lease");
}
