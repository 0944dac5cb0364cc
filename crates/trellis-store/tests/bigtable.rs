//! Tests the store `bigtable` against Google's emulator.

#![cfg(feature = "bigtable")]

mod conformance;
mod servers;

use std::process::Command;

use servers::ServerProcess;
use servers::proxy::Proxy;
use trellis_store::{Applied, Change, Expect, Guard, Key, Kind, Operation, Outcome, StoreError, open};
use trellis_testing::Port;

/// Google's emulator; `None` if it cannot be built.
fn emulator(test: &str) -> Option<ServerProcess> {
    servers::kinds::Kind::Bigtable.start(test, &[])
}

fn url(server: &ServerProcess, table: &str) -> String {
    servers::kinds::Kind::Bigtable.url(server, table)
}

fn put(key: &Key, bytes: &[u8]) -> Operation {
    Operation::Change { key: key.clone(), change: Change::Put(bytes.to_vec()) }
}

fn put_range(key: &Key, offset: u32, bytes: &[u8]) -> Operation {
    Operation::Change { key: key.clone(), change: Change::PutRange { offset, bytes: bytes.to_vec() } }
}

#[test]
fn bigtable_is_a_store() {
    let Some(server) = emulator("bigtable_is_a_store") else { return };
    conformance::run("bigtable", &|| open(&url(&server, "table")).unwrap());
}

#[test]
fn the_variable_names_the_emulator() {
    let Some(server) = emulator("the_variable_names_the_emulator") else { return };
    let said = opened_with("BIGTABLE_EMULATOR_HOST", &server.address().to_string());
    assert!(said.contains("it holds what was put"), "{said}");
    // No server listens there, so that the variable alone decides.
    let port = Port::new();
    let said = opened_with("BIGTABLE_EMULATOR_HOST", &port.address().to_string());
    assert!(said.contains("is it running, and reachable from here?"), "{said}");
}

#[test]
fn without_credentials_nothing_is_sent_and_the_sentence_says_where_they_come_from() {
    let said = opened_with("GOOGLE_APPLICATION_CREDENTIALS", "/nothing/is/here.json");
    assert!(said.contains("store bigtable://project/instance/table: access was denied"), "{said}");
    assert!(said.contains("gcloud auth application-default login"), "{said}");
}

/// The message when the store is opened by its address alone, with only this variable set.
fn opened_with(variable: &str, value: &str) -> String {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", "a_store_by_its_address_alone", "--nocapture"])
        .env_remove("BIGTABLE_EMULATOR_HOST")
        .env("TRELLIS_TEST_ADDRESS_ALONE", "1")
        .env(variable, value)
        .output()
        .expect("this program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Does something only when [`opened_with`] runs it.
#[test]
#[ignore = "a role that tests start"]
fn a_store_by_its_address_alone() {
    if std::env::var_os("TRELLIS_TEST_ADDRESS_ALONE").is_none() {
        return;
    }
    let store = match open("bigtable://project/instance/table") {
        Ok(store) => store,
        Err(error) => return println!("{error}"),
    };
    let key = Key::page(1, 1);
    store.apply(&[put(&key, b"here")], None).unwrap();
    assert_eq!(store.get_many(&[key]).unwrap(), [Some(b"here".to_vec())]);
    println!("it holds what was put");
}

#[test]
fn who_is_not_there_is_named() {
    let port = Port::new();
    let error = open(&format!("bigtable://p/i/t?emulator={}", port.address())).err().expect("nobody is there");
    assert!(matches!(&error, StoreError::Unreachable { store, .. } if store == "bigtable://p/i/t"), "{error}");
    for wrong in ["bigtable://p/i", "bigtable://p/i/t/more", "bigtable://p/i/t?emulator=here", "bigtable://p/i/t?x=y"] {
        let error = open(wrong).err().expect("it is not an address");
        assert!(matches!(&error, StoreError::Address { .. }), "{wrong}: {error}");
    }
}

#[test]
fn a_guard_an_entry_and_a_lock_change_together_or_not_at_all() {
    let Some(server) = emulator("a_guard_an_entry_and_a_lock_change_together_or_not_at_all") else { return };
    let store = open(&url(&server, "control")).unwrap();
    let (token, lock) = (Key::new(1, Kind::Member, 1), Key::new(1, Kind::Synchronisation, 1));
    let log = Key::new(1, Kind::Log, 1);
    store.apply(&[put(&token, b"7"), put(&lock, b"held")], None).unwrap();
    let release = |expect: &[u8]| {
        let (expect, change) = (Expect::Value(expect.to_vec()), Change::Put(b"free".to_vec()));
        [
            Operation::Append { log: log.clone(), bytes: b"pages 1 to 4".to_vec() },
            Operation::CompareAndSwap { key: lock.clone(), expect, change },
        ]
    };
    let guard = |value: &[u8]| Guard { key: token.clone(), expect: Expect::Value(value.to_vec()) };
    let fenced = store.apply(&release(b"held"), Some(&guard(b"6"))).unwrap();
    assert_eq!(fenced, Applied::Fenced { found: Some(b"7".to_vec()) });
    assert!(matches!(store.apply(&release(b"lost"), Some(&guard(b"7"))).unwrap(), Applied::Refused(..)));
    let entries = [Operation::Entries { log: log.clone(), after: 0, count: 9 }];
    let nothing = Outcome::Entries { last: 0, first: 1, entries: Vec::new() };
    assert_eq!(store.apply(&entries, None).unwrap(), Applied::Done(vec![nothing]));
    let done = store.apply(&release(b"held"), Some(&guard(b"7"))).unwrap();
    assert_eq!(done, Applied::Done(vec![Outcome::Appended(1), Outcome::Changed]));
    assert_eq!(store.get_many(std::slice::from_ref(&lock)).unwrap(), [Some(b"free".to_vec())]);
    let elsewhere = Guard { key: Key::new(2, Kind::Member, 1), expect: Expect::Absent };
    let error = store.apply(&release(b"free"), Some(&elsewhere)).unwrap_err();
    assert!(matches!(&error, StoreError::Unsupported { .. }), "{error}");
}

#[test]
fn a_change_whose_request_or_answer_is_lost_is_done_once() {
    let Some(server) = emulator("a_change_whose_request_or_answer_is_lost_is_done_once") else { return };
    let proxy = Proxy::before(server.address());
    let store = open(&format!("bigtable://project/instance/table?emulator={}", proxy.address())).unwrap();
    for key in [Key::page(1, 1), Key::new(1, Kind::Synchronisation, 1)] {
        store.apply(&[put(&key, &0u64.to_le_bytes())], None).unwrap();
        let add = [Operation::Add { key: key.clone(), offset: 0, width: 8, delta: 1, bounds: None }];
        let mut unknown = 0;
        for round in 0..24i64 {
            // Either the read or the change is affected.
            match round % 4 {
                0 => proxy.lose_request(),
                1 => proxy.lose_answer(),
                _ => {}
            }
            let before = store.apply(&add, None).unwrap();
            assert_eq!(before, Applied::Done(vec![Outcome::Added(round)]));
            assert!(proxy.is_done());
        }
        // An unconditional change is sent once; its result is read from its mark, or the error says that it is unknown.
        for round in 0..24u8 {
            let lost = round % 3;
            match lost {
                0 => proxy.lose_request(),
                1 => proxy.lose_answer(),
                _ => {}
            }
            match (store.apply(&[put(&key, &[round; 8])], None), lost) {
                (Ok(applied), 1 | 2) => assert_eq!(applied, Applied::Done(vec![Outcome::Changed])),
                (Err(StoreError::OutcomeUnknown { .. }), 0) => unknown += 1,
                other => panic!("{other:?}"),
            }
            let expected = if lost == 0 { round.checked_sub(1) } else { Some(round) };
            let found = store.get_many(std::slice::from_ref(&key)).unwrap().remove(0).unwrap();
            assert_eq!(found, expected.map_or(24u64.to_le_bytes().to_vec(), |round| vec![round; 8]));
        }
        assert_eq!(unknown, 8);
    }
}

#[test]
fn short_long_and_whole_writes_of_one_page_make_one_value() {
    let Some(server) = emulator("short_long_and_whole_writes_of_one_page_make_one_value") else { return };
    let store = open(&url(&server, "pages")).unwrap();
    let (one, two) = (Key::page(1, 1), Key::page(1, 2));
    let mut model = vec![0; 4096];
    let mut write = |offset: u32, bytes: &[u8]| {
        // A second page in the same call, so that rows that are read and rows that are not are mixed.
        store.apply(&[put_range(&one, offset, bytes), put(&two, bytes)], None).unwrap();
        model[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        let end = model.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let found = store.get_many(&[one.clone(), two.clone()]).unwrap();
        assert_eq!(found[0].as_ref().unwrap()[..end], model[..end], "after {} bytes at {offset}", bytes.len());
        assert_eq!(found[1].as_ref().unwrap(), bytes);
    };
    for (round, length) in [1, 8, 256, 257, 4096, 3, 256, 1000, 8].into_iter().enumerate() {
        let offset = (round as u32 * 977) % (4096 - length as u32 + 1);
        write(offset, &vec![round as u8 + 1; length]);
    }
}

#[test]
fn a_server_that_stays_away_is_an_error_and_not_a_wait_without_end() {
    let Some(mut server) = emulator("a_server_that_stays_away_is_an_error_and_not_a_wait_without_end") else { return };
    let store = open(&url(&server, "table")).unwrap();
    let lock = Key::new(1, Kind::Synchronisation, 1);
    store.apply(&[put(&lock, b"held")], None).unwrap();
    server.kill();
    let error = store.get_many(std::slice::from_ref(&lock)).unwrap_err();
    assert!(matches!(&error, StoreError::Unreachable { .. }), "{error}");
    let error = store.apply(&[put(&lock, b"free")], None).unwrap_err();
    assert!(matches!(&error, StoreError::Unreachable { .. } | StoreError::OutcomeUnknown { .. }), "{error}");
    // The emulator loses its tables when it ends; the message then says how to create one.
    server.start_again();
    let error = store.get_many(&[lock]).unwrap_err();
    assert!(matches!(&error, StoreError::Missing { .. }), "{error}");
    assert!(
        error.to_string().contains("cbt -project project -instance instance createtable table families=t"),
        "{error}"
    );
}
