//! Tests the stores that wrap other stores.

mod conformance;

use std::sync::Arc;
use std::time::{Duration, Instant};

use conformance::{add, append, delete, get, put};
use trellis_store::wrap::{Counted, Counts, Delayed, Failing, Fault};
use trellis_store::{Applied, Key, Kind, Outcome, Store, StoreError, open};

fn key() -> Key {
    Key::new(1, Kind::Synchronisation, 1)
}

#[test]
fn wrapped_stores_are_stores() {
    let store = open("embedded:").unwrap();
    let counted = Counted::new(Arc::clone(&store));
    let delayed = Delayed::new(counted.clone(), Duration::from_micros(5));
    let failing = Failing::new(delayed, 0, Fault::Unreachable);
    conformance::run("wrapped", &|| failing.clone());
    assert_eq!(counted.counts().calls(), failing.calls());
}

#[test]
fn calls_are_counted_by_kind() {
    let counted = Counted::new(open("embedded:").unwrap());
    let before = counted.counts();
    counted.get_many(&[key(), key()]).unwrap();
    counted.apply(&[get(&key())], None).unwrap();
    counted.apply(&[get(&key()), put(&key(), b"1")], None).unwrap();
    counted.apply_when(&[add(&key(), 0, 1, 1)], None, Instant::now()).unwrap();
    counted.numbers(1, Kind::Memory, 0, 1).unwrap();
    counted.names(1, None, 1).unwrap();
    let expected = Counts { gets: 1, reads: 1, changes: 1, waits: 1, listings: 2, keys: 2, steps: 4 };
    assert_eq!(counted.counts().since(&before), expected);
    assert_eq!(expected.calls(), 6);
    assert_eq!(expected.to_string(), "6 calls (get 1, read 1, change 1, wait 1, list 2; 2 keys, 4 steps)");
}

#[test]
fn a_delayed_call_takes_its_round_trip_and_a_wait_takes_it_once() {
    let trip = Duration::from_millis(4);
    let delayed = Delayed::new(open("embedded:").unwrap(), trip);
    let begin = Instant::now();
    delayed.get_many(&[key()]).unwrap();
    assert!(begin.elapsed() >= trip);
    let begin = Instant::now();
    let wait = conformance::swap_value(&key(), b"never", b"");
    let applied = delayed.apply_when(&[wait], None, begin + Duration::from_millis(30)).unwrap();
    assert!(matches!(applied, Applied::Refused(..)));
    assert!(begin.elapsed() >= Duration::from_millis(30) + trip / 2, "the deadline, and the way back");
}

#[test]
fn a_chosen_call_fails() {
    let log = Key::new(1, Kind::Log, 1);
    for (fault, applied) in [
        (Fault::Unreachable, false),
        (Fault::Unknown { applied: true }, true),
        (Fault::Unknown { applied: false }, false),
        (Fault::End { applied: true }, true),
        (Fault::End { applied: false }, false),
    ] {
        let store = open("embedded:").unwrap();
        let failing = Failing::new(Arc::clone(&store), 2, fault);
        failing.apply(&[put(&key(), b"1")], None).unwrap();
        let error = failing.apply(&[delete(&key()), append(&log, b"2")], None).unwrap_err();
        assert_eq!(matches!(error, StoreError::OutcomeUnknown { .. }), matches!(fault, Fault::Unknown { .. }));
        let there = store.get_many(&[key()]).unwrap().remove(0);
        assert_eq!(there.is_none(), applied, "{fault:?}");
        let later = failing.apply(&[get(&key())], None);
        assert_eq!(later.is_err(), matches!(fault, Fault::End { .. }), "{fault:?}");
        assert_eq!(failing.calls(), 3);
    }
}

#[test]
fn a_chosen_call_kills_its_process() {
    if std::env::var_os("TRELLIS_TEST_KILL").is_some() {
        let failing = Failing::new(open("embedded:").unwrap(), 2, Fault::Kill { applied: true });
        assert_eq!(failing.apply(&[put(&key(), b"1")], None).unwrap(), Applied::Done(vec![Outcome::Changed]));
        failing.apply(&[put(&key(), b"2")], None).ok();
        std::process::exit(0);
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_chosen_call_kills_its_process"])
        .env("TRELLIS_TEST_KILL", "1")
        .output()
        .unwrap()
        .status;
    assert_eq!(status.code(), None, "a signal ended it: {status}");
}
