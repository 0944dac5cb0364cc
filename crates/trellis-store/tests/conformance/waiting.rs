//! Waiting until a call is not refused.

use std::sync::mpsc;
use std::time::Instant;

use trellis_store::Outcome;

use super::*;

pub(super) const CASES: &[Case] = &[
    ("what need not wait does not", at_once),
    ("a wait ends with the change it waits for", woken),
    ("a wait ends at its deadline", deadline),
    ("a wait ends when it is fenced", fenced),
    ("every token wakes one, and nobody is forgotten", tokens),
    ("a value that is deleted wakes", woken_by_deletion),
];

fn soon() -> Instant {
    Instant::now() + TIMEOUT
}

fn at_once(context: &Context) {
    let (key, log) = (context.control(1), context.log(1));
    let call = [add_within(&key, 1, (0, 1)), append(&log, b"x"), entries(&log, 0, 9)];
    let applied = context.store.apply_when(&call, None, soon()).unwrap();
    let Applied::Done(outcomes) = applied else { panic!("{applied:?}") };
    assert_eq!(outcomes[..2], [Outcome::Added(0), Outcome::Appended(1)]);
    let applied = context.store.apply_when(&call, None, Instant::now()).unwrap();
    assert!(matches!(applied, Applied::Refused(Refused { step: 0, .. }, _)), "{applied:?}");
}

fn woken(context: &Context) {
    let (key, log, page) = (context.control(2), context.log(2), context.page(2));
    std::thread::scope(|scope| {
        for turn in 0..5i64 {
            let (started, starts) = mpsc::channel();
            let waiter = scope.spawn({
                let (key, log) = (key.clone(), log.clone());
                move || {
                    let store = (context.open)();
                    started.send(()).unwrap();
                    let wait = [add_within(&key, -1, (0, 100)), entries(&log, turn as u64, 9)];
                    store.apply_when(&wait, None, soon()).unwrap()
                }
            });
            starts.recv().unwrap();
            // Some waiters come first, some wakers; and what does not help must not disturb.
            if turn % 2 == 0 {
                std::thread::sleep(Duration::from_millis(20));
                context.done(&[add_within(&key, 0, (0, 100))]);
                context.done(&[put(&page, b"nobody waits for this")]);
            }
            context.done(&[append(&log, &[turn as u8])]);
            context.done(&[add(&key, 0, 8, 1)]);
            let applied = waiter.join().expect("the waiter ends well");
            let Applied::Done(outcomes) = applied else { panic!("{applied:?}") };
            assert_eq!(outcomes[0], Outcome::Added(1));
            let Outcome::Entries { entries, .. } = &outcomes[1] else { panic!("{outcomes:?}") };
            assert_eq!(entries.iter().map(|entry| &entry.bytes[..]).collect::<Vec<_>>(), [[turn as u8]]);
        }
    });
}

fn deadline(context: &Context) {
    let key = context.control(3);
    context.done(&[put(&key, b"held")]);
    let begin = Instant::now();
    let wait = [get(&key), swap_value(&key, b"free", b"mine")];
    let applied = context.store.apply_when(&wait, None, begin + Duration::from_millis(60)).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(60), "not before the deadline");
    let refused = Refused { step: 1, found: Some(b"held".to_vec()) };
    assert_eq!(applied, Applied::Refused(refused, vec![value(b"held"), Outcome::Skipped]));
    // Who gave up takes nothing later.
    context.done(&[put(&key, b"free")]);
    assert_eq!(context.get(&key).unwrap(), b"free");
    context.done(&[swap_value(&key, b"free", b"mine")]);
}

fn fenced(context: &Context) {
    let (key, token) = (context.control(4), context.control(5));
    context.done(&[put(&key, b"held"), put(&token, b"1")]);
    let wait = [swap_value(&key, b"free", b"mine")];
    let applied = context.store.apply_when(&wait, Some(&guard(&token, b"2")), soon()).unwrap();
    assert_eq!(applied, Applied::Fenced { found: Some(b"1".to_vec()) }, "at once");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| (context.open)().apply_when(&wait, Some(&guard(&token, b"1")), soon()).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        context.done(&[put(&token, b"2")]);
        let applied = waiter.join().expect("the waiter ends well");
        assert_eq!(applied, Applied::Fenced { found: Some(b"2".to_vec()) }, "while it waits");
    });
    assert_eq!(context.get(&key).unwrap(), b"held");
}

fn tokens(context: &Context) {
    // A buffer of one place between four producers and four consumers.
    let (empty, full) = (context.control(6), context.control(7));
    let each = 12;
    context.done(&[put(&empty, &1i64.to_le_bytes()), put(&full, &0i64.to_le_bytes())]);
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let (from, to) = if worker % 2 == 0 { (&empty, &full) } else { (&full, &empty) };
            scope.spawn(move || {
                let store = (context.open)();
                for round in 0..each {
                    let applied = store.apply_when(&[add_within(from, -1, (0, 1))], None, soon()).unwrap();
                    assert!(matches!(applied, Applied::Done(_)), "worker {worker}, round {round}: {applied:?}");
                    let applied = store.apply(&[add_within(to, 1, (0, 1))], None).unwrap();
                    assert!(matches!(applied, Applied::Done(_)), "worker {worker}, round {round}: {applied:?}");
                }
            });
        }
    });
    let numbers = [context.get(&empty).unwrap(), context.get(&full).unwrap()];
    assert_eq!(numbers, [1i64.to_le_bytes().to_vec(), 0i64.to_le_bytes().to_vec()]);
}

fn woken_by_deletion(context: &Context) {
    let key = context.control(8);
    context.done(&[put(&key, b"held")]);
    std::thread::scope(|scope| {
        let take = swap(&key, Expect::Absent, Change::Put(b"mine".to_vec()));
        let waiter = scope.spawn(move || (context.open)().apply_when(&[take], None, soon()).unwrap());
        std::thread::sleep(Duration::from_millis(10));
        context.done(&[delete(&key)]);
        assert_eq!(waiter.join().expect("the waiter ends well"), Applied::Done(vec![Outcome::Changed]));
    });
    assert_eq!(context.get(&key).unwrap(), b"mine");
}
