//! Every message survives encoding, in the layout of the table. Any bytes give a value or nothing. Parts of many leases
//! come together in any order, and never those of two batches.

use super::*;
use crate::lease::parts::PART_PAGES_MAX;
use alloc::vec;
use trellis_base::Random;

const OWNER: Party = Party { host: Host(3), incarnation: 0x8123 };

fn entry(page: PageNumber, readers: usize) -> Entry {
    let reader = |number: usize| Party { host: Host(1 + number as u16), incarnation: 0x8000 };
    let owner = (readers == 0).then_some((OWNER, 1 << 50));
    Entry { page, epoch: 5 << 48 | page, owner, readers: (0..readers).map(reader).collect() }
}

fn all() -> Vec<ControlMessage> {
    let home = |is_settled, silent| State::Home { incarnation: 7, is_settled, silent };
    let placement = |backups: Vec<Host>, hand_to: Option<Host>, parts| {
        let begins_empty = hand_to.is_none();
        let is_unserved = backups.is_empty();
        Placement { incarnation: 8, home: Host(4), backups, hand_to, begins_empty, is_unserved, parts }
    };
    let (term, home_lease) = (2_000_000_000, 500_000_000);
    let about = About {
        pages: 1 << 34,
        requests: 9,
        spare_bytes: 1 << 45,
        term,
        home_lease,
        wants_back: Some(RangeNumber(0xfffe)),
    };
    let report = |state| What::Report { request: 1 << 40, boot_id: 0xfedc, state, call: 12, about };
    let placed =
        |placement, within| What::Placed { request: 0, boot_id: 1, placement, call: 1 << 60, pages: 1 << 33, within };
    let within = Within { range: RangeNumber(7), first: 1 << 33, since: 4 };
    let mut all = vec![
        What::Store { incarnation: 2, pages: 1, page: 1 << 35, epoch: 2 << 48 },
        What::Store { incarnation: 2, pages: u32::MAX, page: 0, epoch: 0 },
        What::Stored { incarnation: 2, pages: 3, page: 77, epoch: u64::MAX },
        What::Taken { incarnation: u16::MAX },
        report(State::Blank),
        report(State::Idle),
        report(home(false, None)),
        report(home(true, Some(Host(5)))),
        report(State::Handed(3)),
        placed(placement(vec![], None, vec![]), None),
        placed(placement(vec![Host(5), Host(6), Host(7)], Some(Host(6)), parts()), None),
        placed(placement(vec![Host(5), Host(6)], None, vec![]), Some(within)),
        What::Locate,
        What::Follow { page: 1 << 35, lasts: 1 << 41 },
        What::Followed { page: 3, left: 0, answered: u64::MAX },
    ];
    all.extend(parts_of(5, 99, &[]));
    all.extend(parts_of(5, 99, &[entry(1, 0), entry(2, 3)]));
    let range_of = |what: &What| match what {
        What::Placed { within: Some(_), .. } => PARTS_FROM,
        _ => 7,
    };
    all.into_iter().map(|what| ControlMessage { range: RangeNumber(range_of(&what)), what }).collect()
}

fn parts() -> Vec<Part> {
    vec![
        Part { number: RangeNumber(0xf005), first: 0, pages: PART_PAGES_MAX, since: 1 },
        Part { number: RangeNumber(0xf002), first: PART_PAGES_MAX, pages: 1, since: 8 },
        Part { number: RangeNumber(0xfffe), first: (1 << 33) - 1, pages: 1, since: 2 },
    ]
}

#[test]
fn everything_that_is_told_survives() {
    for message in all() {
        let body = message.encode();
        assert_eq!(ControlMessage::decode(message.command(), &body), Some(message.clone()), "{body:?}");
        let with_page = [&body[..], &[0xa5; PAGE_BYTES as usize]].concat();
        // Several pages have no bytes: they are zero.
        let is_of_one = matches!(message.what, What::Store { pages: 1, .. });
        assert_eq!(ControlMessage::decode(message.command(), &with_page).is_some(), is_of_one);
        for length in 0..body.len() {
            assert_eq!(ControlMessage::decode(message.command(), &body[..length]), None, "{message:?} cut to {length}");
        }
        assert_eq!(ControlMessage::decode(message.command(), &[&body[..], &[0]].concat()), None);
    }
    assert_eq!(ControlMessage::decode(Command::Read, &[0; 24]), None);
    for (pages, epoch) in [(0, 0), (0, 5), (2, 5)] {
        let store =
            ControlMessage { range: RangeNumber(1), what: What::Store { incarnation: 2, pages, page: 0, epoch } };
        assert_eq!(ControlMessage::decode(Command::Store, &store.encode()), None, "{pages} pages under epoch {epoch}");
    }
    assert_eq!(HEADER_BYTES + all()[0].encode().len(), ControlMessage::data_at());
}

#[test]
fn fields_are_where_the_table_says() {
    let state = State::Home { incarnation: 0x0b0c, is_settled: true, silent: Some(Host(0x0d0e)) };
    let (term, home_lease, wants_back) = (0x66, 0x77, Some(RangeNumber(0xf011)));
    let about = About { pages: 0x33, requests: 0x44, spare_bytes: 0x55, term, home_lease, wants_back };
    let report = ControlMessage {
        range: RangeNumber(0x0102),
        what: What::Report { request: 0x11, boot_id: 0x0304, state, call: 0x22, about },
    };
    #[rustfmt::skip]
    let expected = [
        2, 1, 4, 3, 2, 1, 0x0c, 0x0b, 0x0e, 0x0d, 0x11, 0xf0, 0, 0, 0, 0,
        0x11, 0, 0, 0, 0, 0, 0, 0, 0x22, 0, 0, 0, 0, 0, 0, 0, 0x33, 0, 0, 0, 0, 0, 0, 0, 0x44, 0, 0, 0, 0, 0, 0, 0,
        0x55, 0, 0, 0, 0, 0, 0, 0, 0x66, 0, 0, 0, 0, 0, 0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(report.encode(), expected);
    let parts = vec![Part { number: RangeNumber(0xf102), first: 0x0201, pages: 0x0403, since: 0x0506 }];
    let placement = Placement {
        incarnation: 3,
        home: Host(4),
        backups: vec![Host(6)],
        hand_to: Some(Host(5)),
        begins_empty: true,
        is_unserved: false,
        parts,
    };
    let what = What::Placed { request: 7, boot_id: 2, placement, call: 8, pages: 0x0900, within: None };
    #[rustfmt::skip]
    let expected = [
        1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 1, 0, 1, 0, 1, 0, 7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0,
        0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0,
        2, 0xf1, 6, 5, 3, 4, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(ControlMessage { range: RangeNumber(1), what }.encode(), expected);
    let message = ControlMessage { range: RangeNumber(1), what: parts_of(2, 3, &[entry(4, 0)]).remove(0) };
    #[rustfmt::skip]
    let expected = [
        1, 0, 2, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0,
        4, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 5, 0, 3, 0, 0x23, 0x81, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0,
    ];
    assert_eq!(message.encode(), expected);
}

#[test]
fn parts_that_cannot_be_are_refused() {
    let decode = |range, parts: &[Part], pages, within| {
        let (backups, parts) = (vec![Host(5)], parts.to_vec());
        let placement = Placement {
            incarnation: 8,
            home: Host(4),
            backups,
            hand_to: None,
            begins_empty: false,
            is_unserved: false,
            parts,
        };
        let what = What::Placed { request: 1, boot_id: 1, placement, call: 0, pages, within };
        let message = ControlMessage { range, what };
        let decoded = ControlMessage::decode(Command::Placed, &message.encode());
        assert!(decoded.is_none() || decoded == Some(message));
        decoded.is_some()
    };
    let part = |number, first, pages| Part { number, first, pages, since: 1 };
    let two = [part(RangeNumber(0xf001), 4, 4), part(RangeNumber(0xf000), 8, 2)];
    let is_read = |parts: &[Part]| decode(RangeNumber(7), parts, 1 << 40, None);
    assert!(is_read(&[]) && is_read(&two) && decode(RangeNumber(7), &two, 0, None), "pages that are not known");
    assert!(decode(RangeNumber(7), &two, 10, None) && !decode(RangeNumber(7), &two, 9, None), "past the last page");
    for (parts, what) in [
        ([two[1], two[0]], "not in order"),
        ([two[0], part(RangeNumber(0xf000), 7, 2)], "over each other"),
        ([two[0], part(RangeNumber(0xf001), 8, 2)], "the same twice"),
        ([two[0], part(RangeNumber(0xf000), 8, 0)], "without pages"),
        ([two[0], part(RangeNumber(0xf000), 8, PART_PAGES_MAX + 1)], "too long"),
        ([two[0], part(RangeNumber(0xf000), u64::MAX, 2)], "past all pages"),
        ([two[0], part(RangeNumber(0xefff), 8, 2)], "the number of a host"),
        ([two[0], part(RangeNumber(0xffff), 8, 2)], "no number"),
    ] {
        assert!(!is_read(&parts), "{what}");
    }
    let many =
        |count: u16| (0..count).map(|at| part(RangeNumber(PARTS_FROM + at), at.into(), 1)).collect::<Vec<Part>>();
    assert!(is_read(&many(PARTS_MAX as u16)) && !is_read(&many(PARTS_MAX as u16 + 1)), "too many");
    let within = |range| Some(Within { range, first: 3, since: 1 });
    assert!(decode(RangeNumber(PARTS_FROM), &[], 2, within(RangeNumber(7))), "a part");
    assert!(!decode(RangeNumber(PARTS_FROM), &[], 2, None), "a part of nothing");
    assert!(!decode(RangeNumber(7), &[], 2, within(RangeNumber(8))), "a range within another");
    assert!(!decode(RangeNumber(PARTS_FROM), &[], 2, within(RangeNumber(PARTS_FROM + 1))), "a part within another");
    assert!(!decode(RangeNumber(PARTS_FROM), &two, 20, within(RangeNumber(7))), "a part that has parts");
    assert!(
        !decode(RangeNumber(PARTS_FROM), &[], 2, Some(Within { range: RangeNumber(7), first: 3, since: 0 })),
        "since never"
    );
    assert!(!is_read(&[Part { since: 0, ..two[0] }]), "since never");
}

#[test]
fn many_leases_come_together_from_parts_in_any_order() {
    let entries: Vec<Entry> = (0..2000).map(|page| entry(page, page as usize % 5)).chain([entry(5000, 9000)]).collect();
    let parts = parts_of(5, 1, &entries);
    assert!(parts.len() > 2);
    for part in &parts {
        let message = ControlMessage { range: RangeNumber(7), what: part.clone() };
        let body = message.encode();
        assert!(body.len() <= CONTROL_BYTES_MAX, "{}", body.len());
        assert_eq!(ControlMessage::decode(Command::Leases, &body), Some(message));
    }
    let add = |whole: &mut Whole, part: &What| match part.clone() {
        What::Leases { incarnation, batch, total, first, entries } => {
            whole.add(incarnation, batch, total, first, entries)
        }
        other => panic!("{other:?}"),
    };
    let mut whole = Whole::default();
    let (last, others) = parts.split_first().unwrap();
    for part in others.iter().rev().chain(others) {
        assert_eq!(add(&mut whole, part), None);
    }
    assert_eq!(add(&mut whole, last).as_ref(), Some(&entries));
    // A later batch replaces an earlier one, and an earlier one is not heard any more.
    let later = parts_of(5, 2, &entries);
    assert_eq!(add(&mut whole, &later[1]), None);
    for part in &parts {
        assert_eq!(add(&mut whole, part), None);
    }
    let none = parts_of(6, 1, &[]);
    assert_eq!(add(&mut whole, &none[0]), Some(Vec::new()));
}

#[test]
fn any_bytes_are_read_or_refused() {
    let mut random = Random::new(1);
    let (mut read, mut refused) = (0, 0);
    let all = all();
    for round in 0..50_000 {
        let message = &all[round % all.len()];
        let mut body = message.encode();
        for _ in 0..random.below(3) {
            let at = random.index(body.len());
            body[at] = random.draw() as u8;
        }
        match ControlMessage::decode(message.command(), &body) {
            Some(other) => {
                assert_eq!(other.encode(), body, "what is read is what was written");
                read += 1;
            }
            None => refused += 1,
        }
    }
    assert!(read > 1000 && refused > 1000, "{read} read and {refused} refused");
}
