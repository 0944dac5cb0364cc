//! Tests the store `datastore` against a server of this project that implements its interface; see
//! `servers/datastore/main.go` for what that server promises.

#![cfg(feature = "datastore")]

mod conformance;
mod servers;

use std::sync::atomic::{AtomicI64, Ordering};

use servers::ServerProcess;
use trellis_store::{Applied, Change, Key, Kind, Operation, Outcome, StoreError, open};
use trellis_testing::Port;

/// A server; `None` if it cannot be built.
fn server(test: &str, more: &[&str]) -> Option<ServerProcess> {
    servers::kinds::Kind::Datastore.start(test, more)
}

fn url(server: &ServerProcess, database: &str) -> String {
    servers::kinds::Kind::Datastore.url(server, database)
}

fn put(key: &Key, bytes: &[u8]) -> Operation {
    Operation::Change { key: key.clone(), change: Change::Put(bytes.to_vec()) }
}

#[test]
fn datastore_is_a_store() {
    let Some(server) = server("datastore_is_a_store", &[]) else { return };
    conformance::run("datastore", &|| open(&url(&server, "database")).unwrap());
}

#[test]
fn what_is_committed_when_an_answer_is_lost_is_not_committed_twice() {
    let test = "what_is_committed_when_an_answer_is_lost_is_not_committed_twice";
    let Some(server) = server(test, &["-lose", "3"]) else { return };
    let key = Key::new(1, Kind::Synchronisation, 1);
    let log = Key::new(1, Kind::Log, 1);
    let store = open(&url(&server, "database")).unwrap();
    // The result of a call cannot be found without an earlier entity, so the first one is created before answers are
    // lost.
    let begin = [put(&key, &0u64.to_le_bytes()), Operation::Append { log: log.clone(), bytes: b"the first".to_vec() }];
    store.apply(&begin, None).unwrap();
    let add = Operation::Add { key: key.clone(), offset: 0, width: 8, delta: 1, bounds: None };
    let call = [add, Operation::Append { log: log.clone(), bytes: b"one more".to_vec() }];
    let counts = || {
        let found = store.get_many(std::slice::from_ref(&key)).unwrap().remove(0).unwrap();
        let entries = [Operation::Entries { log: log.clone(), after: 1, count: 1000 }];
        let Applied::Done(outcomes) = store.apply(&entries, None).unwrap() else { panic!("nothing can refuse this") };
        let Outcome::Entries { entries, .. } = &outcomes[0] else { panic!("{outcomes:?}") };
        (i64::from_le_bytes(found[..].try_into().unwrap()), entries.len() as i64)
    };
    // Without other writers the result is always known.
    let alone = 60;
    for _ in 0..alone {
        assert!(matches!(store.apply(&call, None).unwrap(), Applied::Done(_)));
    }
    assert_eq!(counts(), (alone, alone));
    // Other writers may hide the result of a call; that is reported, and nothing is done twice.
    let (done, unknown) = (AtomicI64::new(0), AtomicI64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let store = open(&url(&server, "database")).unwrap();
                for _ in 0..40 {
                    match store.apply(&call, None) {
                        Ok(applied) => assert!(matches!(applied, Applied::Done(_)), "{applied:?}"),
                        Err(StoreError::OutcomeUnknown { .. }) => drop(unknown.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => panic!("{error}"),
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let (least, most) = (done.load(Ordering::Relaxed) - unknown.load(Ordering::Relaxed), done.load(Ordering::Relaxed));
    let (added, appended) = counts();
    assert_eq!(added, appended, "both or none");
    assert!((least..=most).contains(&(added - alone)), "{least} <= {} <= {most}", added - alone);
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
    let error = open(&format!("datastore://p/n?emulator={}", port.address())).err().expect("nobody is there");
    assert!(matches!(&error, StoreError::Unreachable { store, .. } if store == "datastore://p/n"), "{error}");
    for wrong in ["datastore://", "datastore://p/n/more", "datastore://p?emulator=here"] {
        let error = open(wrong).err().expect("it is not an address");
        assert!(matches!(&error, StoreError::Address { .. }), "{wrong}: {error}");
    }
}

#[test]
fn a_project_without_a_datastore_is_told_how_to_get_one() {
    let Some(server) = server("a_project_without_a_datastore_is_told_how_to_get_one", &["-project", "other"]) else {
        return;
    };
    let error = open(&url(&server, "namespace")).err().expect("there is no such project");
    assert!(matches!(&error, StoreError::Missing { .. }), "{error}");
    assert!(error.to_string().contains("gcloud firestore databases create --type=datastore-mode"), "{error}");
}

#[test]
fn namespaces_do_not_see_each_other() {
    let Some(server) = server("namespaces_do_not_see_each_other", &[]) else { return };
    let (one, two) = (open(&url(&server, "one")).unwrap(), open(&url(&server, "two")).unwrap());
    let none = open(&format!("datastore://project?emulator={}", server.address())).unwrap();
    let key = Key::page(1, 1);
    one.apply(&[put(&key, b"mine")], None).unwrap();
    for other in [two, none] {
        assert_eq!(other.get_many(std::slice::from_ref(&key)).unwrap(), [None]);
        assert!(other.numbers(1, Kind::Memory, 0, 9).unwrap().is_empty());
    }
}

#[test]
fn a_long_log_is_trimmed_and_deleted_in_full() {
    let Some(server) = server("a_long_log_is_trimmed_and_deleted_in_full", &[]) else { return };
    let store = open(&url(&server, "namespace")).unwrap();
    let log = Key::new(1, Kind::Log, 1);
    let append = |number: u32| Operation::Append { log: log.clone(), bytes: number.to_le_bytes().to_vec() };
    for hundred in 0..15 {
        let appends: Vec<Operation> = (0..100).map(|one| append(100 * hundred + one)).collect();
        store.apply(&appends, None).unwrap();
    }
    let entries = || {
        let read = [Operation::Entries { log: log.clone(), after: 0, count: 2000 }];
        let Applied::Done(outcomes) = store.apply(&read, None).unwrap() else { panic!("nothing can refuse this") };
        let Outcome::Entries { last, first, entries } = outcomes[0].clone() else { panic!("{outcomes:?}") };
        (last, first, entries.len())
    };
    assert_eq!(entries(), (1500, 1, 1500));
    // More than one commit can delete.
    store.apply(&[Operation::Trim { log: log.clone(), upto: 1300 }], None).unwrap();
    assert_eq!(entries(), (1500, 1301, 200));
    let delete = Operation::Change { key: log.clone(), change: Change::Delete };
    store.apply(&[delete.clone(), append(7)], None).unwrap();
    assert_eq!(entries(), (1, 1, 1));
    store.apply(&[delete], None).unwrap();
    assert_eq!(entries(), (0, 1, 0));
}

#[test]
fn a_server_that_stays_away_is_an_error_and_not_a_wait_without_end() {
    let test = "a_server_that_stays_away_is_an_error_and_not_a_wait_without_end";
    let Some(mut server) = server(test, &[]) else { return };
    let store = open(&url(&server, "namespace")).unwrap();
    let key = Key::page(1, 1);
    store.apply(&[put(&key, b"x")], None).unwrap();
    server.kill();
    let error = store.get_many(std::slice::from_ref(&key)).unwrap_err();
    assert!(matches!(&error, StoreError::Unreachable { .. }), "{error}");
    let error = store.apply(&[put(&key, b"y")], None).unwrap_err();
    assert!(matches!(&error, StoreError::Unreachable { .. } | StoreError::OutcomeUnknown { .. }), "{error}");
}
