//! Tests logs: sequence numbers are never reused, and entries are kept until they are trimmed.

use trellis_store::{Entry, Outcome};

use super::*;

pub(super) const CASES: &[Case] = &[
    ("entries are numbered from 1 and read in order", numbered),
    ("a log is trimmed from the front and its numbers go on", trimmed),
    ("a log that is deleted begins again", deleted),
    ("concurrent appends all get a number", concurrent),
];

fn read(context: &Context, log: &Key, after: u64, count: u32) -> (u64, u64, Vec<Entry>) {
    match context.done(&[entries(log, after, count)]).remove(0) {
        Outcome::Entries { last, first, entries } => (last, first, entries),
        other => panic!("{other:?}"),
    }
}

fn numbers(read: &(u64, u64, Vec<Entry>)) -> (u64, u64, Vec<u64>) {
    (read.0, read.1, read.2.iter().map(|entry| entry.sequence).collect())
}

fn numbered(context: &Context) {
    let (log, other) = (context.log(1), context.log(2));
    assert_eq!(read(context, &log, 0, 10), (0, 1, Vec::new()));
    for number in 1..=5u8 {
        let outcome = context.done(&[append(&log, &[number; 3])]);
        assert_eq!(outcome, [Outcome::Appended(u64::from(number))]);
    }
    let all = read(context, &log, 0, 10);
    assert_eq!(numbers(&all), (5, 1, vec![1, 2, 3, 4, 5]));
    assert!(all.2.iter().all(|entry| entry.bytes == [entry.sequence as u8; 3]));
    assert_eq!(numbers(&read(context, &log, 2, 2)), (5, 1, vec![3, 4]));
    assert_eq!(numbers(&read(context, &log, 5, 9)), (5, 1, vec![]));
    assert_eq!(numbers(&read(context, &log, 50, 9)), (5, 1, vec![]));
    assert_eq!(numbers(&read(context, &log, u64::MAX, 9)), (5, 1, vec![]));
    assert_eq!(numbers(&read(context, &log, 0, 0)), (5, 1, vec![]));
    assert_eq!(context.done(&[append(&other, b"")]), [Outcome::Appended(1)]);
    assert_eq!(read(context, &other, 0, 9), (1, 1, vec![Entry { sequence: 1, bytes: Vec::new() }]));
}

fn trimmed(context: &Context) {
    let log = context.log(3);
    assert_eq!(context.done(&[trim(&log, 3)]), [Outcome::Trimmed], "there is nothing to forget");
    assert_eq!(read(context, &log, 0, 9), (0, 1, Vec::new()));
    for number in 1..=6 {
        context.done(&[append(&log, &[number])]);
    }
    context.done(&[trim(&log, 2)]);
    assert_eq!(numbers(&read(context, &log, 0, 9)), (6, 3, vec![3, 4, 5, 6]));
    context.done(&[trim(&log, 1)]);
    assert_eq!(numbers(&read(context, &log, 3, 2)), (6, 3, vec![4, 5]), "what is forgotten stays forgotten");
    context.done(&[trim(&log, 6)]);
    assert_eq!(numbers(&read(context, &log, 0, 9)), (6, 7, vec![]));
    assert_eq!(context.done(&[append(&log, &[7])]), [Outcome::Appended(7)]);
    assert_eq!(numbers(&read(context, &log, 0, 9)), (7, 7, vec![7]));
    context.done(&[trim(&log, u64::MAX)]);
    assert_eq!(numbers(&read(context, &log, 0, 9)), (7, 8, vec![]));
    assert_eq!(context.done(&[append(&log, b"8"), trim(&log, 7)]), [Outcome::Appended(8), Outcome::Trimmed]);
    assert_eq!(numbers(&read(context, &log, 0, 9)), (8, 8, vec![8]));
}

fn deleted(context: &Context) {
    let log = context.log(4);
    context.done(&[append(&log, b"a"), append(&log, b"b"), trim(&log, 1)]);
    assert_eq!(context.done(&[delete(&log)]), [Outcome::Changed]);
    assert_eq!(read(context, &log, 0, 9), (0, 1, Vec::new()));
    assert_eq!(context.done(&[delete(&log), append(&log, b"c")]), [Outcome::Changed, Outcome::Appended(1)]);
    assert_eq!(read(context, &log, 0, 9), (1, 1, vec![Entry { sequence: 1, bytes: b"c".to_vec() }]));
    // The same numbers as before, in one call, with some of them gone again.
    context.done(&[append(&log, b"d"), append(&log, b"e")]);
    context.done(&[delete(&log), append(&log, b"f"), append(&log, b"g"), trim(&log, 1)]);
    assert_eq!(read(context, &log, 0, 9), (2, 2, vec![Entry { sequence: 2, bytes: b"g".to_vec() }]));
}

fn concurrent(context: &Context) {
    let log = context.log(5);
    let (threads, each) = (4, 50);
    let mut given: Vec<u64> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let log = log.clone();
                scope.spawn(move || {
                    let store = (context.open)();
                    let append_one = || match store.apply(&[append(&log, b"entry")], None).unwrap() {
                        Applied::Done(outcomes) => match outcomes[0] {
                            Outcome::Appended(number) => number,
                            ref other => panic!("{other:?}"),
                        },
                        other => panic!("{other:?}"),
                    };
                    (0..each).map(|_| append_one()).collect::<Vec<u64>>()
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("the thread ends well")).collect()
    });
    given.sort_unstable();
    assert!(given.into_iter().eq(1..=threads * each));
    assert_eq!(read(context, &log, 0, u32::MAX).2.len() as u64, threads * each);
}
