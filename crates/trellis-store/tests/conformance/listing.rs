//! Tests listings: numbers, names, regions.

use super::*;

pub(super) const CASES: &[Case] = &[
    ("the keys of a region are listed by kind", numbers),
    ("names are listed in order", names),
    ("two regions do not see each other", regions),
];

fn numbers(context: &Context) {
    for number in [300, 2, 70_000, 1, 1 << 40, 0] {
        context.done(&[put(&context.page(number), b"page")]);
    }
    context.done(&[put(&context.control(9), b"control")]);
    context.done(&[append(&context.log(4), b"entry"), append(&context.log(3), b"entry"), trim(&context.log(3), 1)]);
    let list = |kind, from, count| context.store.numbers(context.region, kind, from, count).unwrap();
    assert_eq!(list(Kind::Memory, 0, 100), [0, 1, 2, 300, 70_000, 1 << 40]);
    assert_eq!(list(Kind::Memory, 2, 2), [2, 300]);
    assert_eq!(list(Kind::Memory, 3, usize::MAX), [300, 70_000, 1 << 40]);
    assert_eq!(list(Kind::Memory, 0, 0), [0; 0]);
    assert_eq!(list(Kind::Synchronisation, 0, 100), [9]);
    assert_eq!(list(Kind::Log, 0, 100), [3, 4], "a log without entries is one as long as its numbers go on");
    assert_eq!(list(Kind::Heap, 0, 100), [0; 0]);
    context.done(&[delete(&context.page(2))]);
    context.done(&[delete(&context.log(4))]);
    assert_eq!(list(Kind::Memory, 0, 3), [0, 1, 300]);
    assert_eq!(list(Kind::Log, 0, 100), [3]);
}

fn names(context: &Context) {
    let named = |name: &[u8]| Key::named(context.region, name);
    for name in [&b"user10"[..], b"user2", b"", b"user1", b"\xff\0", b"a*[b]?\\"] {
        context.done(&[put(&named(name), name)]);
    }
    let list = |after: Option<&[u8]>, count| context.store.names(context.region, after, count).unwrap();
    let all = [&b""[..], b"a*[b]?\\", b"user1", b"user10", b"user2", b"\xff\0"];
    assert_eq!(list(None, 100), all);
    assert_eq!(list(None, 2), all[..2]);
    assert_eq!(list(Some(b""), 2), all[1..3]);
    assert_eq!(list(Some(b"user1"), 9), all[3..]);
    assert_eq!(list(Some(b"user"), 9), all[2..]);
    context.done(&[delete(&named(b"user1"))]);
    assert_eq!(list(Some(b"a"), 2), [&b"a*[b]?\\"[..], b"user10"]);
}

fn regions(context: &Context) {
    let other = context.region + 1;
    context.done(&[put(&context.page(1), b"mine")]);
    context.done(&[put(&context.control(1), b"mine"), append(&context.log(1), b"mine")]);
    context.done(&[put(&Key::named(context.region, b"name"), b"mine")]);
    let theirs = [
        Key::page(other, 1),
        Key::new(other, Kind::Synchronisation, 1),
        Key::named(other, b"name"),
        Key::new(context.region, Kind::Heap, 1),
    ];
    assert_eq!(context.store.get_many(&theirs).unwrap(), [const { None }; 4]);
    let log = Key::new(other, Kind::Log, 1);
    assert_eq!(context.done(&[append(&log, b"theirs")]), [Outcome::Appended(1)]);
    for kind in [Kind::Memory, Kind::Synchronisation] {
        assert_eq!(context.store.numbers(other, kind, 0, 9).unwrap(), [0; 0]);
    }
    assert_eq!(context.store.names(other, None, 9).unwrap(), Vec::<Vec<u8>>::new());
    context.done(&[put(&theirs[0], b"theirs")]);
    context.done(&[delete(&theirs[0])]);
    assert_eq!(context.get(&context.page(1)).unwrap(), b"mine");
}
