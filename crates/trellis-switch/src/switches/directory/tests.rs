//! Tests decisions about single frames, without a network: cases that the suite over real namespaces cannot produce.

use super::*;

const CLUSTER: Cluster = Cluster::new(1);
/// One client at port 1, another at port 2, a server at port 3.
const CLIENT: u16 = 11;
const OTHER: u16 = 12;
const SERVER: u16 = 20;

fn directory() -> Directory {
    let mut directory = Directory::new(CLUSTER, [1, 2, 3].into_iter(), 4);
    for (home, port, is_memory) in [(CLIENT, 1, false), (OTHER, 2, false), (SERVER, 3, true)] {
        directory.set_prefix(Prefix::host(CLUSTER, home), Route { port, is_memory });
    }
    directory.set_term(Some(100));
    directory
}

fn pointer(command: u8, page: u64) -> Ipv6Addr {
    CLUSTER.address(SERVER, command, 0, page << layout::PAGE_SHIFT)
}

fn request_of(host: u16, number: u64) -> Ipv6Addr {
    CLUSTER.address(host, 0xb5, 0x66, number)
}

fn frame(source: Ipv6Addr, destination: Ipv6Addr, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; FRAME_BYTES + UDP_BYTES];
    frame[TYPE_AT..TYPE_AT + 2].copy_from_slice(&ETHERNET_IPV6);
    frame[NEXT_HEADER_AT] = NEXT_UDP;
    frame[SOURCE_AT..SOURCE_AT + 16].copy_from_slice(&source.octets());
    frame[DESTINATION_AT..DESTINATION_AT + 16].copy_from_slice(&destination.octets());
    frame.extend_from_slice(payload);
    frame
}

fn header(status: u8, request: u64, epoch: u64) -> Vec<u8> {
    let mut header = vec![0; layout::HEADER_BYTES];
    header[0] = layout::HEADER_VERSION;
    header[layout::HEADER_STATUS_AT] = status;
    header[layout::HEADER_FLAGS_AT] = layout::FLAG_ANSWER as u8;
    header[layout::HEADER_REQUEST_AT..][..8].copy_from_slice(&request.to_le_bytes());
    header[layout::HEADER_EPOCH_AT..][..8].copy_from_slice(&epoch.to_le_bytes());
    header
}

/// The destination of a frame at a tick.
fn goes(directory: &mut Directory, port: u16, frame: &[u8], tick: u64) -> Option<u16> {
    directory.decide(port, frame, tick << layout::TICK_SHIFT, || false).out
}

fn update(directory: &mut Directory, port: u16, host: u16, tick: u64) -> Option<u16> {
    goes(directory, port, &frame(request_of(host, 7), pointer(layout::COMMAND_UPDATE, 5), &[]), tick)
}

#[test]
fn a_lease_ends_at_its_tick_and_not_before() {
    let mut directory = directory();
    assert_eq!(update(&mut directory, 1, CLIENT, 1000), Some(3));
    assert_eq!(update(&mut directory, 2, OTHER, 1099), Some(1));
    assert_eq!(update(&mut directory, 2, OTHER, 1100), Some(3), "its term is over");
    assert_eq!(update(&mut directory, 1, CLIENT, 1101), Some(2), "and the other one has it");
    let kinds: Vec<EventKind> = directory.take_events().iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Granted, EventKind::Expired, EventKind::Granted]);
    assert!(directory.take_events().is_empty());
}

#[test]
fn a_reply_of_an_older_epoch_changes_nothing() {
    let mut directory = directory();
    let page = Page { home: SERVER, number: 5 };
    let answer = |host, epoch| {
        frame(pointer(layout::COMMAND_UPDATE, 5), request_of(host, 7), &header(layout::STATUS_OK, 7, epoch))
    };
    assert_eq!(goes(&mut directory, 3, &answer(CLIENT, 9), 0), Some(1));
    assert_eq!(directory.redirect(page, 0), Some(Entry { port: 1, until: 100, epoch: 9, is_ending: false }));
    assert_eq!(goes(&mut directory, 3, &answer(OTHER, 8), 1), Some(2));
    assert_eq!(directory.redirect(page, 1).map(|entry| entry.port), Some(1));
    assert_eq!(goes(&mut directory, 3, &answer(OTHER, 8), 100), Some(2));
    assert_eq!(directory.redirect(page, 101).map(|entry| entry.port), Some(2), "what has ended does not count");
}

#[test]
fn what_is_no_reply_teaches_nothing() {
    let mut directory = directory();
    let source = pointer(layout::COMMAND_UPDATE, 5);
    let mut fragment = frame(source, request_of(CLIENT, 7), &[]);
    fragment.truncate(FRAME_BYTES);
    fragment[NEXT_HEADER_AT] = NEXT_FRAGMENT;
    fragment.extend_from_slice(&[NEXT_UDP, 0, 0, 8, 0, 0, 0, 0]);
    fragment.extend_from_slice(&[0; UDP_BYTES]);
    fragment.extend_from_slice(&header(layout::STATUS_OK, 7, 1));
    let mut first = fragment.clone();
    first[FRAME_BYTES + 3] = 1;
    let mut version = header(layout::STATUS_OK, 7, 1);
    version[0] = 2;
    let mut asks = header(layout::STATUS_OK, 7, 1);
    asks[layout::HEADER_FLAGS_AT] = 0;
    for (what, wrong) in [
        ("another number", frame(source, request_of(CLIENT, 7), &header(layout::STATUS_OK, 8, 1))),
        ("too short", frame(source, request_of(CLIENT, 7), &header(layout::STATUS_OK, 7, 1)[..31])),
        ("another version", frame(source, request_of(CLIENT, 7), &version)),
        ("no answer", frame(source, request_of(CLIENT, 7), &asks)),
        ("not the first fragment", fragment),
    ] {
        assert_eq!(goes(&mut directory, 3, &wrong, 0), Some(1), "{what}");
        assert!(directory.redirects.is_empty(), "{what}");
    }
    assert_eq!(goes(&mut directory, 3, &first, 0), Some(1));
    assert_eq!(directory.redirects.len(), 1, "the first fragment has the header");
}

#[test]
fn a_full_table_grants_nothing_and_says_so() {
    let mut directory = directory();
    for page in 0..5 {
        let request = frame(request_of(CLIENT, page), pointer(layout::COMMAND_UPDATE, page), &[]);
        assert_eq!(goes(&mut directory, 1, &request, 0), Some(3));
    }
    let counters = directory.counters(1);
    assert_eq!((counters.granted, counters.table_full, counters.delivered), (4, 1, 5));
    let page = |number| Page { home: SERVER, number };
    let entry = Entry { port: 2, until: 50, epoch: 0, is_ending: false };
    assert_eq!(directory.set_redirect(page(9), entry, 0), None);
    assert_eq!(directory.set_redirect(page(0), entry, 0), Some(true));
    assert_eq!(directory.sweep(99), 1);
    assert_eq!(directory.set_redirect(page(9), entry, 0), Some(true));
}

#[test]
fn what_has_ended_takes_no_room() {
    let mut directory = directory();
    let update = |directory: &mut Directory, page, tick| {
        let request = frame(request_of(CLIENT, page), pointer(layout::COMMAND_UPDATE, page), &[]);
        goes(directory, 1, &request, tick)
    };
    // The client is gone then, and its pages are not requested again.
    for page in 0..4 {
        assert_eq!(update(&mut directory, page, 0), Some(3));
    }
    assert!(!directory.take_has_made_room());
    assert_eq!(update(&mut directory, 10, 99), Some(3));
    assert_eq!((directory.counters(1).granted, directory.counters(1).table_full), (4, 1), "the last tick of the term");
    assert_eq!(update(&mut directory, 10, 99 + SWEEP_TICKS), Some(3));
    assert_eq!((directory.counters(1).granted, directory.counters(1).table_full), (5, 1));
    assert_eq!(directory.redirects.len(), 1);
    assert!(directory.take_has_made_room() && !directory.take_has_made_room());
    // A home's answer about an unknown lease finds room in the same way.
    let tick = 2 * SWEEP_TICKS + 100;
    for page in 11..14 {
        assert_eq!(update(&mut directory, page, 100 + SWEEP_TICKS), Some(3));
    }
    assert_eq!(directory.redirects.len(), 4);
    let answer = frame(pointer(layout::COMMAND_RENEW, 20), request_of(CLIENT, 7), &header(layout::STATUS_OK, 7, 9));
    assert_eq!(goes(&mut directory, 3, &answer, tick), Some(1));
    assert!(directory.redirect(Page { home: SERVER, number: 20 }, tick).is_some());
    // So does a redirect that is set, at any time.
    for page in 30..33 {
        assert_eq!(update(&mut directory, page, tick + 1), Some(3));
    }
    let entry = Entry { port: 2, until: u64::MAX, epoch: 0, is_ending: false };
    assert_eq!(directory.set_redirect(Page { home: SERVER, number: 40 }, entry, tick + 2), None);
    assert_eq!(directory.set_redirect(Page { home: SERVER, number: 40 }, entry, tick + 101), Some(true));
}

#[test]
fn events_that_nobody_fetches_are_counted() {
    let mut directory = directory();
    for tick in 0..=EVENTS_MAX as u64 {
        update(&mut directory, 1, CLIENT, tick * 1000);
    }
    let lost = directory.counters(1).events_lost;
    assert_eq!(directory.take_events().len(), EVENTS_MAX);
    // Every request but the first causes two events.
    assert_eq!(lost, EVENTS_MAX as u64 + 1);
}

#[test]
fn frames_that_are_cut_or_foreign_are_refused() {
    let mut directory = directory();
    let whole = frame(request_of(CLIENT, 1), pointer(0x01, 1), &[]);
    for bytes in 0..FRAME_BYTES {
        assert_eq!(goes(&mut directory, 1, &whole[..bytes], 0), None, "{bytes}");
    }
    let mut foreign = whole.clone();
    foreign[DESTINATION_AT + 1] ^= 1;
    assert_eq!(goes(&mut directory, 1, &foreign, 0), None);
    let mut other = whole.clone();
    other[TYPE_AT] = 8;
    assert_eq!(goes(&mut directory, 1, &other, 0), None);
    assert_eq!(directory.counters(1).not_addressed, FRAME_BYTES as u64 + 2);
    assert_eq!(goes(&mut directory, 1, &whole[..FRAME_BYTES], 0), Some(3));
    assert_eq!(goes(&mut directory, 9, &whole, 0), None, "nothing is plugged in there");
}

#[test]
fn what_ended_unseen_is_reported_once() {
    let mut directory = directory();
    assert_eq!(update(&mut directory, 1, CLIENT, 1000), Some(3));
    let key = Page { home: SERVER, number: 5 }.key();
    let noted = directory.noted(key).unwrap();
    assert_eq!((noted.port, noted.until), (1, 1100));
    directory.expire(key, 1100 << layout::TICK_SHIFT);
    directory.expire(key, 1100 << layout::TICK_SHIFT);
    assert_eq!(directory.noted(key), None);
    let events: Vec<_> = directory.take_events().iter().map(|event| (event.kind, event.port)).collect();
    assert_eq!(events, [(EventKind::Granted, 1), (EventKind::Expired, 1)]);
    assert_eq!(update(&mut directory, 2, OTHER, 1101), Some(3), "nobody has it");
}

#[test]
fn where_a_run_has_the_page_only_its_port_teaches() {
    let mut directory = directory();
    let range = PageRange::new(SERVER, 4, 2).unwrap();
    let page = Page { home: SERVER, number: 5 };
    let answer =
        |epoch| frame(pointer(layout::COMMAND_UPDATE, 5), request_of(CLIENT, 7), &header(layout::STATUS_OK, 7, epoch));
    let known = |directory: &Directory| directory.redirect(page, 0).map(|entry| (entry.port, entry.epoch));
    assert_eq!(goes(&mut directory, 2, &answer(9), 0), None);
    directory.set_page_route(range, 2);
    assert_eq!(goes(&mut directory, 3, &answer(9), 0), Some(1));
    assert_eq!(known(&directory), None);
    assert_eq!(goes(&mut directory, 2, &answer(9), 0), Some(1));
    assert_eq!(known(&directory), Some((1, 9)));
    assert!(directory.drop_page_route(range));
    assert_eq!((goes(&mut directory, 2, &answer(10), 0), goes(&mut directory, 3, &answer(10), 0)), (None, Some(1)));
    assert_eq!(known(&directory), Some((1, 10)));
    let counters = directory.counters(2);
    assert_eq!((counters.forged, counters.delivered), (2, 1));
}

#[test]
fn a_redirect_to_the_port_of_a_run_is_a_delivery() {
    let mut directory = directory();
    directory.set_page_route(PageRange::new(SERVER, 4, 2).unwrap(), 2);
    let page = Page { home: SERVER, number: 5 };
    let read = |page| frame(request_of(CLIENT, 7), pointer(0x01, page), &[]);
    for (port, delivered, redirected) in [(2, 1, 0), (3, 1, 1)] {
        directory.set_redirect(page, Entry { port, until: u64::MAX, epoch: 1, is_ending: false }, 0);
        assert_eq!(goes(&mut directory, 1, &read(5), 0), Some(port));
        let counters = directory.counters(1);
        assert_eq!((counters.delivered, counters.redirected), (delivered, redirected));
    }
}
