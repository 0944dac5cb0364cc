//! Tests many concurrent writers: nothing is lost.

use trellis_store::Outcome;

use super::*;

pub(super) const CASES: &[Case] = &[
    ("neighbours of one word lose nothing", neighbours),
    ("eight threads add five hundred times each", fetch_adds),
    ("a comparison is won by one", one_winner),
    ("keys that are changed together are never seen apart", never_torn),
];

const WRITERS: u8 = 8;

fn writers(context: &Context, body: impl Fn(u8, &dyn Store) + Sync) {
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let body = &body;
            scope.spawn(move || body(writer, &*(context.open)()));
        }
    });
}

fn neighbours(context: &Context) {
    for key in [context.page(1), context.control(1)] {
        writers(context, |writer, store| {
            for round in 1..=60u8 {
                // Half of them write the byte, the others add to it.
                let operation = match writer % 2 {
                    0 => put_range(&key, u32::from(writer), &[round]),
                    _ => add(&key, u32::from(writer), 1, 1),
                };
                store.apply(&[operation], None).unwrap();
                let read = store.apply(&[get_range(&key, u32::from(writer), 1)], None).unwrap();
                assert_eq!(read, Applied::Done(vec![value(&[round])]), "writer {writer}, round {round}");
            }
        });
        assert_eq!(context.get(&key).unwrap(), [60; WRITERS as usize]);
    }
}

fn fetch_adds(context: &Context) {
    let key = context.control(2);
    let seen = std::sync::Mutex::new(Vec::new());
    writers(context, |_, store| {
        let mut mine = Vec::new();
        for _ in 0..500 {
            match store.apply(&[add(&key, 0, 8, 1)], None).unwrap() {
                Applied::Done(outcomes) => match outcomes[..] {
                    [Outcome::Added(before)] => mine.push(before),
                    _ => panic!("{outcomes:?}"),
                },
                other => panic!("{other:?}"),
            }
        }
        seen.lock().unwrap().extend(mine);
    });
    let mut seen = seen.into_inner().unwrap();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..4000), "every number is given once");
    assert_eq!(context.get(&key).unwrap(), 4000i64.to_le_bytes());
}

fn one_winner(context: &Context) {
    let wins = std::sync::atomic::AtomicU32::new(0);
    writers(context, |writer, store| {
        for round in 0..20 {
            let take = swap(&context.control(100 + round), Expect::Absent, Change::Put(vec![writer]));
            if matches!(store.apply(&[take], None).unwrap(), Applied::Done(_)) {
                wins.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    });
    assert_eq!(wins.into_inner(), 20);
}

fn never_torn(context: &Context) {
    let (one, two, log) = (context.control(1), context.control(2), context.log(1));
    context.done(&[put(&one, &0i64.to_le_bytes()), put(&two, &0i64.to_le_bytes())]);
    writers(context, |writer, store| {
        for _ in 0..40 {
            if writer < 4 {
                store.apply(&[add(&one, 0, 8, 1), append(&log, &[writer]), add(&two, 0, 8, 1)], None).unwrap();
                continue;
            }
            let Applied::Done(read) = store.apply(&[get(&one), entries(&log, 0, 0), get(&two)], None).unwrap() else {
                panic!("nothing can refuse a read")
            };
            assert_eq!(read[0], read[2], "two keys that change together");
            let Outcome::Entries { last, .. } = read[1] else { panic!("{read:?}") };
            assert_eq!(read[0], value(&last.to_le_bytes()), "a log that changes with them");
        }
    });
    assert_eq!(context.get(&one).unwrap(), 160i64.to_le_bytes());
}
