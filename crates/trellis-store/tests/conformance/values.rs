//! One value: reading, writing, comparing, adding, limits.

use trellis_store::{Change, Expect, Kind, Outcome, StoreError};

use super::*;

pub(super) const CASES: &[Case] = &[
    ("a value is what was put", put_and_get),
    ("a range is read and written byte by byte", ranges),
    ("a comparison decides", comparisons),
    ("a range is compared and missing bytes are zero", range_comparisons),
    ("a number is added to at every width", additions),
    ("a bound refuses", bounds),
    ("every byte value survives", every_byte),
    ("values up to the limit are kept, longer ones refused", value_limits),
    ("calls beyond the limits are refused", call_limits),
    ("a log is not a value and a value no log", kinds_are_not_mixed),
];

fn put_and_get(context: &Context) {
    for key in [context.page(1), context.control(1), Key::named(context.region, b"a name")] {
        assert_eq!(context.get(&key), None);
        assert_eq!(context.done(&[get(&key)]), [Outcome::Value(None)]);
        assert_eq!(context.done(&[put(&key, b"first, and longer")]), [Outcome::Changed]);
        assert_eq!(context.done(&[put(&key, b"second")]), [Outcome::Changed]);
        assert_eq!(context.get(&key).as_deref(), Some(&b"second"[..]));
        assert_eq!(context.done(&[get(&key)]), [value(b"second")]);
        context.done(&[put(&key, b"")]);
        assert_eq!(context.get(&key), Some(Vec::new()), "an empty value is there");
        assert_eq!(context.done(&[delete(&key)]), [Outcome::Changed]);
        assert_eq!(context.get(&key), None);
        assert_eq!(context.done(&[delete(&key)]), [Outcome::Changed], "deleting what is not there is no error");
    }
    let keys: Vec<Key> = (0..40).map(|number| context.page(number)).collect();
    for number in (0..40).step_by(2) {
        context.done(&[put(&keys[number], &[number as u8])]);
    }
    let asked: Vec<Key> = keys.iter().rev().chain(&keys[..2]).cloned().collect();
    let found = context.store.get_many(&asked).unwrap();
    let expected = (0..40u8).rev().chain(0..2).map(|number| (number % 2 == 0).then(|| vec![number]));
    assert!(found.into_iter().eq(expected), "the answers are in the order of the keys");
    assert_eq!(context.store.get_many(&[]).unwrap(), Vec::<Option<Vec<u8>>>::new());
    assert_eq!(context.apply(&[]), Applied::Done(Vec::new()));
}

fn ranges(context: &Context) {
    let key = context.page(2);
    assert_eq!(context.done(&[get_range(&key, 0, 4)]), [Outcome::Value(None)]);
    context.done(&[put_range(&key, 3, b"xy")]);
    assert_eq!(context.get(&key).unwrap(), b"\0\0\0xy");
    context.done(&[put_range(&key, 1, b"ab")]);
    assert_eq!(context.get(&key).unwrap(), b"\0abxy");
    context.done(&[put_range(&key, 7, b"z")]);
    assert_eq!(context.get(&key).unwrap(), b"\0abxy\0\0z");
    for (offset, length, expected) in
        [(0, 3, &b"\0ab"[..]), (2, 2, b"bx"), (6, 9, b"\0z"), (8, 4, b""), (70, 4, b""), (3, 0, b""), (0, 1, b"\0")]
    {
        assert_eq!(context.done(&[get_range(&key, offset, length)]), [value(expected)], "{length} from {offset}");
    }
}

fn comparisons(context: &Context) {
    for key in [context.page(3), context.control(3)] {
        let absent = |to: &[u8]| swap(&key, Expect::Absent, Change::Put(to.to_vec()));
        assert_eq!(context.refused(&[swap_value(&key, b"", b"1")]), (0, None), "an empty value is not an absent one");
        assert_eq!(context.done(&[absent(b"one")]), [Outcome::Changed]);
        assert_eq!(context.refused(&[absent(b"two")]), (0, Some(b"one".to_vec())));
        assert_eq!(context.refused(&[swap_value(&key, b"on", b"two")]), (0, Some(b"one".to_vec())));
        assert_eq!(context.done(&[swap_value(&key, b"one", b"two")]), [Outcome::Changed]);
        assert_eq!(context.get(&key).unwrap(), b"two");
        let put_range = Change::PutRange { offset: 1, bytes: b"HR".to_vec() };
        context.done(&[swap(&key, Expect::Value(b"two".to_vec()), put_range)]);
        assert_eq!(context.get(&key).unwrap(), b"tHR");
        assert_eq!(
            context.refused(&[swap(&key, Expect::Value(b"no".to_vec()), Change::Delete)]),
            (0, Some(b"tHR".to_vec()))
        );
        context.done(&[swap(&key, Expect::Value(b"tHR".to_vec()), Change::Delete)]);
        assert_eq!(context.get(&key), None);
    }
}

fn range_comparisons(context: &Context) {
    let key = context.page(4);
    let compare = |offset, bytes: &[u8], to: &[u8]| {
        let change = Change::PutRange { offset, bytes: to.to_vec() };
        swap(&key, Expect::Range { offset, bytes: bytes.to_vec() }, change)
    };
    assert_eq!(context.refused(&[compare(4, &[0, 1], &[7, 7])]), (0, None));
    context.done(&[compare(4, &[0, 0], &[7, 8])]);
    assert_eq!(context.get(&key).unwrap(), [0, 0, 0, 0, 7, 8]);
    assert_eq!(context.refused(&[compare(5, &[9, 0], &[1, 1])]), (0, Some(vec![0, 0, 0, 0, 7, 8])));
    context.done(&[compare(5, &[8, 0], &[1, 2])]);
    assert_eq!(context.get(&key).unwrap(), [0, 0, 0, 0, 7, 1, 2]);
    context.done(&[compare(100, &[0], &[3])]);
    assert_eq!(context.get(&key).unwrap().len(), 101);
}

fn additions(context: &Context) {
    for (place, width) in [1u8, 2, 4, 8].into_iter().enumerate() {
        for key in [context.page(5 + place as u64), context.control(5 + place as u64)] {
            let bits = 8 * u32::from(width);
            let most = (i64::MAX) >> (64 - bits);
            let least = i64::MIN >> (64 - bits);
            assert_eq!(context.done(&[add(&key, 3, width, 5)]), [Outcome::Added(0)]);
            assert_eq!(context.get(&key).unwrap().len(), 3 + usize::from(width));
            assert_eq!(context.done(&[add(&key, 3, width, -7)]), [Outcome::Added(5)]);
            assert_eq!(context.done(&[add(&key, 3, width, 0)]), [Outcome::Added(-2)]);
            // Neighbours on both sides stay.
            context.done(&[put_range(&key, 0, b"abc"), put_range(&key, 3 + u32::from(width), b"d")]);
            let to_most = most.wrapping_add(2);
            assert_eq!(context.done(&[add(&key, 3, width, to_most)]), [Outcome::Added(-2)]);
            assert_eq!(context.done(&[add(&key, 3, width, 1)]), [Outcome::Added(most)], "{width}");
            assert_eq!(context.done(&[add(&key, 3, width, -1)]), [Outcome::Added(least)], "{width}");
            assert_eq!(context.done(&[add(&key, 3, width, i64::MIN)]), [Outcome::Added(most)]);
            let after = if width == 8 { -1 } else { most };
            assert_eq!(context.done(&[add(&key, 3, width, 0)]), [Outcome::Added(after)]);
            let found = context.get(&key).unwrap();
            assert_eq!((&found[..3], found[found.len() - 1]), (&b"abc"[..], b'd'));
            let mut expected = b"abc".to_vec();
            expected.extend_from_slice(&after.to_le_bytes()[..usize::from(width)]);
            expected.push(b'd');
            assert_eq!(found, expected);
        }
    }
    // Numbers that a double cannot hold, and carries from one half to the other.
    let key = context.page(20);
    for number in [(1 << 53) + 1, i64::MAX - 1, i64::MIN + 1, 0xffff_ffff, -0x1_0000_0000, 0x7fff_ffff, -1] {
        context.done(&[put(&key, &i64::to_le_bytes(number))]);
        for delta in [1, -1, 0xffff_ffff, -0xffff_ffff, 1 << 32, i64::MAX, i64::MIN, 0x1234_5678_9abc_def1] {
            assert_eq!(context.done(&[add(&key, 0, 8, delta)]), [Outcome::Added(number)]);
            let sum = number.wrapping_add(delta);
            assert_eq!(context.get(&key).unwrap(), sum.to_le_bytes(), "{number} and {delta}");
            context.done(&[put(&key, &number.to_le_bytes())]);
        }
    }
}

fn bounds(context: &Context) {
    for key in [context.page(6), context.control(6)] {
        assert_eq!(context.refused(&[add_within(&key, -1, (0, 3))]), (0, None));
        assert_eq!(context.get(&key), None, "a refused addition does not make a value");
        assert_eq!(context.done(&[add_within(&key, 3, (0, 3))]), [Outcome::Added(0)]);
        assert_eq!(context.refused(&[add_within(&key, 1, (0, 3))]), (0, Some(3i64.to_le_bytes().to_vec())));
        assert_eq!(context.done(&[add_within(&key, -3, (0, 3))]), [Outcome::Added(3)]);
        let most = i64::MAX;
        for (number, delta, bounds, allowed) in [
            (most - 1, 1, (0, most), true),
            (most, 1, (0, most), false),
            (most, 1, (i64::MIN, -1), true),
            (-5, -1, (-6, -6), true),
            (-5, -1, (-5, most), false),
            ((1 << 53) - 1, 2, (0, 1 << 53), false),
            (1 << 53, 1, (0, (1 << 53) + 1), true),
            (0xffff_ffff, 1, (0, 0xffff_ffff), false),
            (-1, 0xffff_ffff, (0, 0xffff_fffe), true),
        ] {
            context.done(&[put(&key, &number.to_le_bytes())]);
            let applied = context.apply(&[add_within(&key, delta, bounds)]);
            assert_eq!(matches!(applied, Applied::Done(_)), allowed, "{number} + {delta} in {bounds:?}: {applied:?}");
        }
        context.done(&[put(&key, &[0x7f])]);
        let narrow = Operation::Add { key: key.clone(), offset: 0, width: 1, delta: 1, bounds: Some((0, 200)) };
        assert_eq!(context.refused(&[narrow]), (0, Some(vec![0x7f])), "128 is -128 in one byte");
    }
}

fn every_byte(context: &Context) {
    let all: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
    for key in [context.page(7), context.control(7), Key::named(context.region, &all)] {
        context.done(&[put(&key, &all)]);
        assert_eq!(context.get(&key).unwrap(), all);
        context.done(&[put_range(&key, 100, &all)]);
        assert_eq!(context.done(&[get_range(&key, 100, 512)]), [value(&all)]);
        let whole = context.get(&key).unwrap();
        context.done(&[swap(&key, Expect::Value(whole), Change::Put(all.clone()))]);
    }
    let largest = Key::new(u32::MAX, Kind::Memory, u64::MAX);
    context.done(&[put(&largest, &all)]);
    assert_eq!(context.get(&largest).unwrap(), all);
    context.done(&[delete(&largest)]);
}

fn value_limits(context: &Context) {
    let can = context.store.capabilities();
    let key = context.page(8);
    let longest: Vec<u8> = (0..can.value_bytes_max).map(|place| (place / 7) as u8).collect();
    context.done(&[put(&key, &longest)]);
    assert!(context.get(&key).unwrap() == longest, "a value of {} bytes", longest.len());
    let too_long = vec![1; can.value_bytes_max + 1];
    let offset = can.value_bytes_max as u32 - 4;
    for call in [put(&key, &too_long), put_range(&key, offset, b"12345"), add(&key, offset, 8, 1)] {
        let error = context.store.apply(&[call], None).unwrap_err();
        assert!(matches!(&error, StoreError::TooLarge { .. }), "{error}");
        assert!(error.to_string().contains(&can.value_bytes_max.to_string()), "{error}");
    }
    assert!(context.get(&key).unwrap() == longest, "what was refused changed nothing");
}

fn call_limits(context: &Context) {
    let can = context.store.capabilities();
    let key = context.page(9);
    let most: Vec<Operation> = (0..can.operations_max).map(|_| put_range(&key, 0, b"a")).collect();
    assert_eq!(context.done(&most).len(), can.operations_max, "as many steps as the store says it takes");
    let more = vec![put_range(&key, 1, b"b"); can.operations_max + 1];
    let error = context.store.apply(&more, None).unwrap_err();
    assert!(matches!(&error, StoreError::Unsupported { .. }), "{error}");
    let large = vec![7; can.value_bytes_max.min(can.call_bytes_max)];
    let large = vec![put(&key, &large); can.call_bytes_max / large.len() + 1];
    if large.len() <= can.operations_max {
        let error = context.store.apply(&large, None).unwrap_err();
        assert!(matches!(&error, StoreError::TooLarge { .. }), "{error}");
    }
    assert_eq!(context.get(&key).unwrap(), b"a", "what was refused changed nothing");
}

fn kinds_are_not_mixed(context: &Context) {
    let (log, control) = (context.log(9), context.control(9));
    for call in [
        get(&log),
        put(&log, b"1"),
        put_range(&log, 0, b"1"),
        add(&log, 0, 8, 1),
        swap_value(&log, b"", b"1"),
        append(&control, b"1"),
        entries(&control, 0, 1),
        trim(&control, 1),
        add(&control, 0, 3, 1),
    ] {
        let error = context.store.apply(std::slice::from_ref(&call), None).unwrap_err();
        assert!(matches!(&error, StoreError::Unsupported { .. }), "{call:?}: {error}");
    }
    let error = context.store.get_many(std::slice::from_ref(&log)).unwrap_err();
    assert!(matches!(&error, StoreError::Unsupported { .. }), "{error}");
}
