//! Tests several steps in one call: atomicity and fencing.

use trellis_store::{Atomic, Change, Expect, Outcome, StoreError};

use super::*;

pub(super) const CASES: &[Case] = &[
    ("steps see what earlier steps did", steps_see_earlier_steps),
    ("a refused call changes nothing and reads what is there", refused_changes_nothing),
    ("pages and control keys are changed together", pages_and_control),
    ("a guard fences", fencing),
    ("a call that cannot be atomic is refused", mixed_is_refused),
];

fn steps_see_earlier_steps(context: &Context) {
    let (one, two, log) = (context.control(1), context.control(2), context.log(1));
    let outcomes = context.done(&[
        get(&one),
        put(&one, b"abc"),
        get(&one),
        put_range(&one, 2, b"xyz"),
        get_range(&one, 1, 3),
        swap_value(&one, b"abxyz", b"new"),
        delete(&one),
        get(&one),
        add(&two, 0, 4, 7),
        add(&two, 0, 4, 1),
        append(&log, b"e1"),
        append(&log, b"e2"),
        entries(&log, 0, 10),
        trim(&log, 1),
        entries(&log, 0, 10),
        swap(&one, Expect::Absent, Change::Put(b"end".to_vec())),
    ]);
    let log_entry = |sequence, bytes: &[u8]| trellis_store::Entry { sequence, bytes: bytes.to_vec() };
    let expected = [
        Outcome::Value(None),
        Outcome::Changed,
        value(b"abc"),
        Outcome::Changed,
        value(b"bxy"),
        Outcome::Changed,
        Outcome::Changed,
        Outcome::Value(None),
        Outcome::Added(0),
        Outcome::Added(7),
        Outcome::Appended(1),
        Outcome::Appended(2),
        Outcome::Entries { last: 2, first: 1, entries: vec![log_entry(1, b"e1"), log_entry(2, b"e2")] },
        Outcome::Trimmed,
        Outcome::Entries { last: 2, first: 2, entries: vec![log_entry(2, b"e2")] },
        Outcome::Changed,
    ];
    assert_eq!(outcomes, expected);
    assert_eq!((context.get(&one).unwrap(), context.get(&two).unwrap()), (b"end".to_vec(), vec![8, 0, 0, 0]));
}

fn refused_changes_nothing(context: &Context) {
    let (one, two, log) = (context.control(1), context.control(2), context.log(1));
    let (fresh, fresh_log) = (context.control(3), context.log(2));
    context.done(&[put(&one, b"one"), put(&two, &[5]), append(&log, b"a"), append(&log, b"b")]);
    let call = [
        put(&one, b"changed"),
        get(&one),
        add(&two, 0, 1, 1),
        put(&fresh, b"fresh"),
        append(&log, b"c"),
        append(&fresh_log, b"first"),
        trim(&log, 2),
        entries(&log, 0, 9),
        swap_value(&one, b"not this", b"never"),
        put_range(&one, 1, b"!"),
        get(&two),
        entries(&fresh_log, 0, 9),
        delete(&one),
        delete(&log),
    ];
    for round in 0..2 {
        let Applied::Refused(refused, outcomes) = context.apply(&call) else { panic!("it must be refused") };
        assert_eq!(refused, Refused { step: 8, found: Some(b"changed".to_vec()) }, "as the step saw it");
        let kept = vec![entry(1, b"a"), entry(2, b"b")];
        let mut expected = vec![Outcome::Skipped; call.len()];
        expected[1] = value(b"one");
        expected[7] = Outcome::Entries { last: 2, first: 1, entries: kept };
        expected[10] = value(&[5]);
        expected[11] = Outcome::Entries { last: 0, first: 1, entries: Vec::new() };
        assert_eq!(outcomes, expected, "round {round}");
        assert_eq!(context.get(&one).unwrap(), b"one");
        assert_eq!(context.get(&two).unwrap(), [5]);
        assert_eq!(context.get(&fresh), None);
    }
    assert_eq!(context.done(&[append(&log, b"c")]), [Outcome::Appended(3)], "a refused append takes no number");
    // A bound refuses like a comparison.
    let bounded = Operation::Add { key: two.clone(), offset: 0, width: 1, delta: 1, bounds: Some((0, 5)) };
    assert_eq!(context.refused(&[delete(&one), bounded]), (1, Some(vec![5])));
    assert_eq!(context.get(&one).unwrap(), b"one");
    let deleted = [delete(&log), append(&log, b"next"), swap(&one, Expect::Absent, Change::Delete)];
    assert_eq!(context.refused(&deleted), (2, Some(b"one".to_vec())));
    let Outcome::Entries { last, first, entries } = context.done(&[entries(&log, 0, 9)]).remove(0) else { panic!() };
    assert_eq!((last, first, entries.len()), (3, 1, 3), "a log that was deleted in a refused call is as it was");
}

fn entry(sequence: u64, bytes: &[u8]) -> trellis_store::Entry {
    trellis_store::Entry { sequence, bytes: bytes.to_vec() }
}

fn pages_and_control(context: &Context) {
    if context.store.capabilities().atomic == Atomic::Control {
        return;
    }
    let (page, other, lock, log) = (context.page(1), context.page(2), context.control(1), context.log(1));
    context.done(&[put(&page, b"before"), put(&lock, b"held")]);
    let release = |expect: &[u8]| {
        [
            put_range(&page, 0, b"AFTER"),
            put(&other, b"new"),
            append(&log, b"notice"),
            swap_value(&lock, expect, b"free"),
        ]
    };
    assert_eq!(context.refused(&release(b"lost")), (3, Some(b"held".to_vec())));
    assert_eq!((context.get(&page).unwrap(), context.get(&other)), (b"before".to_vec(), None));
    context.done(&release(b"held"));
    assert_eq!((context.get(&page).unwrap(), context.get(&other).unwrap()), (b"AFTERe".to_vec(), b"new".to_vec()));
    assert_eq!(context.done(&[append(&log, b"")]), [Outcome::Appended(2)]);
}

fn fencing(context: &Context) {
    let (token, page, control) = (context.control(1), context.control(2), context.control(3));
    context.done(&[put(&token, b"7"), put(&page, b"before")]);
    let call = [get(&control), put(&page, b"after")];
    let fenced = |guard: &Guard| context.store.apply(&call, Some(guard)).unwrap();
    assert_eq!(fenced(&guard(&token, b"8")), Applied::Fenced { found: Some(b"7".to_vec()) });
    let absent = |key: &Key| Guard { key: key.clone(), expect: Expect::Absent };
    assert_eq!(fenced(&absent(&token)), Applied::Fenced { found: Some(b"7".to_vec()) });
    assert_eq!(context.get(&page).unwrap(), b"before");
    assert_eq!(fenced(&guard(&control, b"8")), Applied::Fenced { found: None });
    assert_eq!(fenced(&guard(&token, b"7")), Applied::Done(vec![Outcome::Value(None), Outcome::Changed]));
    assert_eq!(fenced(&absent(&control)), Applied::Done(vec![Outcome::Value(None), Outcome::Changed]));
    assert_eq!(context.get(&page).unwrap(), b"after");
    let range = Expect::Range { offset: 0, bytes: b"7\0".to_vec() };
    assert!(matches!(fenced(&Guard { key: token.clone(), expect: range }), Applied::Done(_)));
    // A guard is checked before the comparisons.
    let refused = [swap_value(&page, b"no", b"never")];
    let applied = context.store.apply(&refused, Some(&guard(&token, b"8"))).unwrap();
    assert_eq!(applied, Applied::Fenced { found: Some(b"7".to_vec()) });
    let applied = context.store.apply(&refused, Some(&guard(&token, b"7"))).unwrap();
    assert!(matches!(applied, Applied::Refused(Refused { step: 0, .. }, _)), "{applied:?}");
    // A call may change its own guard's key.
    let applied = context.store.apply(&[put(&token, b"8")], Some(&guard(&token, b"7"))).unwrap();
    assert_eq!(applied, Applied::Done(vec![Outcome::Changed]));
    assert_eq!(context.get(&token).unwrap(), b"8");
}

fn mixed_is_refused(context: &Context) {
    if context.store.capabilities().atomic != Atomic::Control {
        return;
    }
    let elsewhere = Key::new(context.region + 1, Kind::Synchronisation, 1);
    for other in [context.page(1), elsewhere] {
        let error = context.store.apply(&[put(&context.control(1), b"1"), put(&other, b"1")], None).unwrap_err();
        assert!(matches!(&error, StoreError::Unsupported { .. }), "{error}");
        assert_eq!(context.get(&context.control(1)), None, "what was refused changed nothing");
    }
}
