//! Tests the store `spanner` against a server of this project that implements its interface; see
//! `servers/spanner/main.go` for what that server promises.

#![cfg(feature = "spanner")]

mod conformance;
mod servers;

use servers::ServerProcess;
use trellis_store::{Applied, Change, Key, Kind, Operation, Outcome, StoreError, open};
use trellis_testing::Port;

/// A server; `None` if it cannot be built.
fn server(test: &str, more: &[&str]) -> Option<ServerProcess> {
    servers::kinds::Kind::Spanner.start(test, more)
}

fn url(server: &ServerProcess, database: &str) -> String {
    servers::kinds::Kind::Spanner.url(server, database)
}

fn put(key: &Key, bytes: &[u8]) -> Operation {
    Operation::Change { key: key.clone(), change: Change::Put(bytes.to_vec()) }
}

#[test]
fn spanner_is_a_store() {
    let Some(server) = server("spanner_is_a_store", &[]) else { return };
    conformance::run("spanner", &|| open(&url(&server, "database")).unwrap());
}

#[test]
fn what_is_committed_when_an_answer_is_lost_is_not_committed_twice() {
    let test = "what_is_committed_when_an_answer_is_lost_is_not_committed_twice";
    let Some(server) = server(test, &["-lose", "3"]) else { return };
    let key = Key::new(1, Kind::Synchronisation, 1);
    let log = Key::new(1, Kind::Log, 1);
    let (threads, each) = (3, 40);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let store = open(&url(&server, "database")).unwrap();
                let add = Operation::Add { key: key.clone(), offset: 0, width: 8, delta: 1, bounds: None };
                let append = Operation::Append { log: log.clone(), bytes: b"one more".to_vec() };
                for _ in 0..each {
                    let applied = store.apply(&[add.clone(), append.clone()], None).unwrap();
                    assert!(matches!(applied, Applied::Done(_)), "{applied:?}");
                }
            });
        }
    });
    let store = open(&url(&server, "database")).unwrap();
    let found = store.get_many(&[key]).unwrap().remove(0).unwrap();
    assert_eq!(i64::from_le_bytes(found[..].try_into().unwrap()), threads * each);
    let entries = [Operation::Entries { log, after: 0, count: 1000 }];
    let Applied::Done(outcomes) = store.apply(&entries, None).unwrap() else { panic!("nothing can refuse this") };
    let Outcome::Entries { last, entries, .. } = &outcomes[0] else { panic!("{outcomes:?}") };
    assert_eq!((*last as i64, entries.len() as i64), (threads * each, threads * each));
}

#[test]
fn entries_that_were_forgotten_are_not_waited_for() {
    let Some(server) = server("entries_that_were_forgotten_are_not_waited_for", &[]) else { return };
    let store = open(&url(&server, "database")).unwrap();
    let log = Key::new(1, Kind::Log, 1);
    let appends: Vec<Operation> =
        (1..=20u8).map(|number| Operation::Append { log: log.clone(), bytes: vec![number] }).collect();
    store.apply(&appends, None).unwrap();
    store.apply(&[Operation::Trim { log: log.clone(), upto: 12 }], None).unwrap();
    // Whether the call only reads or also writes, the kept entries are found after those that were requested first.
    let entries = Operation::Entries { log: log.clone(), after: 2, count: 3 };
    for more in [Vec::new(), vec![put(&Key::page(1, 1), b"x")]] {
        let applied = store.apply(&[vec![entries.clone()], more].concat(), None).unwrap();
        let Applied::Done(outcomes) = applied else { panic!("{applied:?}") };
        let Outcome::Entries { last, first, entries } = &outcomes[0] else { panic!("{outcomes:?}") };
        let found: Vec<u8> = entries.iter().map(|entry| entry.bytes[0]).collect();
        assert_eq!((*last, *first, found), (20, 13, vec![13, 14, 15]));
    }
}

#[test]
fn who_is_not_there_is_named() {
    let port = Port::new();
    let error = open(&format!("spanner://p/i/d?emulator={}", port.address())).err().expect("nobody is there");
    assert!(matches!(&error, StoreError::Unreachable { store, .. } if store == "spanner://p/i/d"), "{error}");
    for wrong in ["spanner://p/i", "spanner://p/i/d/more", "spanner://p/i/d?emulator=here"] {
        let error = open(wrong).err().expect("it is not an address");
        assert!(matches!(&error, StoreError::Address { .. }), "{wrong}: {error}");
    }
}

#[test]
fn a_server_that_goes_away_and_comes_back_empty_is_two_sentences() {
    let Some(mut server) = server("a_server_that_goes_away_and_comes_back_empty_is_two_sentences", &[]) else { return };
    let store = open(&url(&server, "database")).unwrap();
    let key = Key::page(1, 1);
    store.apply(&[put(&key, b"x")], None).unwrap();
    server.kill();
    let error = store.get_many(std::slice::from_ref(&key)).unwrap_err();
    assert!(matches!(&error, StoreError::Unreachable { .. }), "{error}");
    let error = store.apply(&[put(&key, b"y")], None).unwrap_err();
    assert!(matches!(&error, StoreError::Unreachable { .. }), "{error}");
    server.start_again();
    let error = store.get_many(&[key]).unwrap_err();
    assert!(matches!(&error, StoreError::Missing { .. }), "{error}");
    let sentence = error.to_string();
    assert!(
        sentence.contains("gcloud spanner databases create database --project=project --instance=instance"),
        "{sentence}"
    );
    assert!(sentence.contains("CREATE TABLE Trellis"), "{sentence}");
}

#[test]
fn a_session_that_the_service_forgot_is_replaced() {
    let Some(mut server) = server("a_session_that_the_service_forgot_is_replaced", &[]) else { return };
    let store = open(&url(&server, "database")).unwrap();
    let key = Key::page(1, 1);
    store.apply(&[put(&key, b"x")], None).unwrap();
    server.kill();
    server.start_again();
    // The database is created again elsewhere; the old handle continues with a new session.
    open(&url(&server, "database")).unwrap();
    store.apply(&[put(&key, b"y")], None).unwrap();
    assert_eq!(store.get_many(&[key]).unwrap(), [Some(b"y".to_vec())]);
}
