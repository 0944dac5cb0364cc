//! Tests the store `etcd` against the real server.

#![cfg(feature = "etcd")]

mod conformance;
mod servers;

use std::process::Command;

use servers::proxy::Proxy;
use servers::{ServerProcess, installed};
use trellis_store::{Applied, Change, Key, Kind, Operation, Outcome, StoreError, open};
use trellis_testing::{FullListener, Need, Port, skip};

/// An etcd of one member; `None` if it is not installed.
fn etcd(test: &str) -> Option<ServerProcess> {
    servers::kinds::Kind::Etcd.start(test, &[])
}

fn etcdctl(server: &ServerProcess, arguments: &[&str]) -> String {
    let etcdctl = installed("etcdctl").expect("etcdctl comes with etcd");
    let output = Command::new(etcdctl)
        .arg(format!("--endpoints={}", server.address()))
        .args(arguments)
        .env("ETCDCTL_API", "3")
        .output()
        .expect("etcdctl runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn add_one(key: &Key) -> Operation {
    Operation::Add { key: key.clone(), offset: 0, width: 8, delta: 1, bounds: None }
}

#[test]
fn etcd_is_a_store() {
    let Some(server) = etcd("etcd_is_a_store") else { return };
    let url = format!("etcd://{}", server.address());
    conformance::run("etcd", &|| open(&url).unwrap());
    let left = etcdctl(&server, &["get", "", "--from-key", "--keys-only"]);
    let stray: Vec<_> = left.lines().filter(|key| !key.is_empty() && !key.starts_with("trellis/r")).collect();
    assert_eq!(stray, [""; 0], "nothing but receipts is left");
}

#[test]
fn who_is_not_there_is_named() {
    let port = Port::new();
    let url = format!("etcd://{}", port.address());
    let error = open(&url).err().expect("nobody is there");
    assert!(matches!(&error, StoreError::Unreachable { store, .. } if *store == url), "{error}");
}

#[test]
fn a_server_that_comes_back_goes_on_and_nothing_is_done_twice() {
    let Some(mut server) = etcd("a_server_that_comes_back_goes_on_and_nothing_is_done_twice") else { return };
    let url = format!("etcd://{}", server.address());
    let key = Key::new(1, Kind::Synchronisation, 1);
    let log = Key::new(1, Kind::Log, 1);
    let call = [add_one(&key), Operation::Append { log: log.clone(), bytes: b"one more".to_vec() }];
    let stop = std::sync::atomic::AtomicBool::new(false);
    let added: i64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let store = open(&url).unwrap();
                    let mut added = 0;
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let applied = store.apply(&call, None).unwrap_or_else(|error| panic!("after {added}: {error}"));
                        assert!(matches!(applied, Applied::Done(_)), "{applied:?}");
                        added += 1;
                    }
                    added
                })
            })
            .collect();
        let store = open(&url).unwrap();
        let number = || match store.apply(&[Operation::Get { key: key.clone(), range: None }], None).unwrap() {
            Applied::Done(outcomes) => match &outcomes[0] {
                Outcome::Value(Some(bytes)) => i64::from_le_bytes(bytes[..].try_into().unwrap()),
                _ => 0,
            },
            other => panic!("{other:?}"),
        };
        for _ in 0..3 {
            let before = number();
            while number() < before + 20 {}
            server.kill();
            server.start_again();
        }
        let before = number();
        while number() < before + 20 {}
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().expect("the worker ends well")).sum()
    });
    let store = open(&url).unwrap();
    let found = store.get_many(&[key]).unwrap().remove(0).unwrap();
    assert_eq!(i64::from_le_bytes(found[..].try_into().unwrap()), added, "each acknowledged addition counts once");
    let Applied::Done(outcomes) = store.apply(&[Operation::Entries { log, after: 0, count: 0 }], None).unwrap() else {
        panic!("nothing can refuse this")
    };
    assert!(matches!(&outcomes[0], Outcome::Entries { last, .. } if *last as i64 == added), "{outcomes:?}");
}

#[test]
fn a_change_whose_request_or_answer_is_lost_is_done_once() {
    let Some(server) = etcd("a_change_whose_request_or_answer_is_lost_is_done_once") else { return };
    let proxy = Proxy::before(server.address());
    let store = open(&format!("etcd://{}", proxy.address())).unwrap();
    let key = Key::new(1, Kind::Synchronisation, 1);
    let lose = |round: i64| match round % 3 {
        0 => proxy.lose_request(),
        1 => proxy.lose_answer(),
        _ => {}
    };
    for round in 0..24i64 {
        lose(round);
        assert_eq!(store.apply(&[add_one(&key)], None).unwrap(), Applied::Done(vec![Outcome::Added(round)]));
        assert!(proxy.is_done());
    }
    // The result of an unconditional change is known too, from the receipt.
    for round in 0..24i64 {
        lose(round);
        let put = Operation::Change { key: key.clone(), change: Change::Put(vec![round as u8]) };
        assert_eq!(store.apply(&[put], None).unwrap(), Applied::Done(vec![Outcome::Changed]));
        assert_eq!(store.get_many(std::slice::from_ref(&key)).unwrap(), [Some(vec![round as u8])]);
    }
}

#[test]
fn a_member_that_takes_no_connection_is_left_for_the_next() {
    let Some(server) = etcd("a_member_that_takes_no_connection_is_left_for_the_next") else { return };
    let full = FullListener::new();
    let store = open(&format!("etcd://{},{}", full.address(), server.address())).expect("the second member answers");
    let put = Operation::Change { key: Key::page(1, 1), change: Change::Put(b"x".to_vec()) };
    assert_eq!(store.apply(&[put], None).unwrap(), Applied::Done(vec![Outcome::Changed]));
}

#[test]
fn a_server_that_stays_away_is_an_error_and_not_a_wait_without_end() {
    let Some(mut server) = etcd("a_server_that_stays_away_is_an_error_and_not_a_wait_without_end") else { return };
    let store = open(&format!("etcd://{}", server.address())).unwrap();
    let put = Operation::Change { key: Key::page(1, 1), change: Change::Put(b"x".to_vec()) };
    store.apply(std::slice::from_ref(&put), None).unwrap();
    server.kill();
    let error = store.apply(std::slice::from_ref(&put), None).unwrap_err();
    assert!(matches!(&error, StoreError::Unreachable { .. } | StoreError::OutcomeUnknown { .. }), "{error}");
    let error = store.get_many(&[Key::page(1, 1)]).unwrap_err();
    assert!(matches!(&error, StoreError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("is it running"), "{error}");
}

#[test]
fn users_are_let_in_with_their_password_only() {
    let Some(server) = etcd("users_are_let_in_with_their_password_only") else { return };
    if installed("etcdctl").is_none() {
        skip("etcd users_are_let_in_with_their_password_only", Need::Program, "etcdctl is not installed");
        return;
    }
    etcdctl(&server, &["role", "add", "memory"]);
    etcdctl(&server, &["role", "grant-permission", "memory", "readwrite", "--prefix=true", "trellis/"]);
    etcdctl(&server, &["user", "add", "root:secret"]);
    etcdctl(&server, &["user", "grant-role", "root", "root"]);
    for user in ["trellis:word", "stranger:word"] {
        etcdctl(&server, &["user", "add", user]);
    }
    etcdctl(&server, &["user", "grant-role", "trellis", "memory"]);
    etcdctl(&server, &["auth", "enable"]);
    let address = server.address();
    for wrong in [
        format!("etcd://{address}"),
        format!("etcd://trellis:guess@{address}"),
        format!("etcd://stranger:word@{address}"),
    ] {
        let error = open(&wrong).err().unwrap_or_else(|| panic!("{wrong} was let in"));
        let sentence = error.to_string();
        assert!(matches!(&error, StoreError::Denied { .. }), "{wrong}: {sentence}");
        assert!(sentence.contains("ETCDCTL_USER") && !sentence.contains("guess"), "{sentence}");
    }
    let store = open(&format!("etcd://trellis:word@{address}")).unwrap();
    let put = Operation::Change { key: Key::page(1, 1), change: Change::Put(b"mine".to_vec()) };
    assert!(matches!(store.apply(&[put], None).unwrap(), Applied::Done(_)));
    assert_eq!(store.get_many(&[Key::page(1, 1)]).unwrap(), [Some(b"mine".to_vec())]);
}

#[test]
fn more_than_a_transaction_takes_is_refused_with_the_limit() {
    let Some(server) = etcd("more_than_a_transaction_takes_is_refused_with_the_limit") else { return };
    let store = open(&format!("etcd://{}", server.address())).unwrap();
    let limit = store.capabilities().value_bytes_max;
    for page in [1, 2] {
        let put = Operation::Change { key: Key::page(1, page), change: Change::Put(vec![7; limit]) };
        store.apply(&[put], None).unwrap();
    }
    // Few bytes are sent, but whole values are written.
    let touch = |page| {
        let change = Change::PutRange { offset: 0, bytes: vec![8] };
        Operation::Change { key: Key::page(1, page), change }
    };
    let error = store.apply(&[touch(1), touch(2)], None).unwrap_err();
    assert!(matches!(&error, StoreError::TooLarge { .. }), "{error}");
    assert!(store.get_many(&[Key::page(1, 1)]).unwrap()[0].as_ref().unwrap().iter().all(|byte| *byte == 7));
    let logs: Vec<Operation> =
        (0..100).map(|log| Operation::Append { log: Key::new(1, Kind::Log, log), bytes: vec![] }).collect();
    let error = store.apply(&logs, None).unwrap_err();
    assert!(matches!(&error, StoreError::Unsupported { .. }), "{error}");
    assert!(store.numbers(1, Kind::Log, 0, 9).unwrap().is_empty());
}
