//! Tests the store `embedded-durable`, and what remains when its process is killed.

mod conformance;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;

use conformance::{add, append, entries, get, put, put_range};
use trellis_store::{Applied, Key, Kind, Outcome, StoreError, open};
use trellis_testing::Folder;

/// The address of the store in this folder.
fn url(folder: &Folder) -> String {
    format!("embedded-durable:{folder}/store")
}

#[test]
fn embedded_durable_is_a_store() {
    let folder = Folder::in_memory();
    let store = open(&url(&folder)).unwrap();
    conformance::run("embedded-durable", &|| Arc::clone(&store));
}

#[test]
fn a_file_that_cannot_be_had_is_a_sentence() {
    let folder = Folder::in_memory();
    let _store = open(&url(&folder)).unwrap();
    let Err(error) = open(&url(&folder)) else { panic!("two have the file") };
    assert!(matches!(error, StoreError::Denied { .. }), "{error}");
    let Err(error) = open("embedded-durable:relative") else { panic!("a relative path") };
    assert!(matches!(error, StoreError::Address { .. }), "{error}");
    let Err(error) = open(&format!("embedded-durable:{folder}/no/where")) else { panic!("no folder") };
    assert!(matches!(error, StoreError::Missing { .. }), "{error}");
    assert!(error.to_string().contains("/no does not exist; make it"), "{error}");
    let text = folder.write("text", "this is something else, and long enough that nothing is missing at its end");
    let Err(error) = open(&format!("embedded-durable:{}", text.display())) else { panic!("not a store") };
    assert!(matches!(error, StoreError::Protocol { .. }), "{error}");
    assert!(error.to_string().contains("name a file that a store made"), "{error}");
}

/// What the child writes in each call: a counter, a log, and two pages.
fn call(round: u64) -> [trellis_store::Operation; 4] {
    [
        add(&Key::new(1, Kind::Synchronisation, 1), 0, 8, 1),
        append(&Key::new(1, Kind::Log, 1), &round.to_le_bytes()),
        put(&Key::page(1, round % 64), &round.to_le_bytes().repeat(512)),
        put_range(&Key::page(1, 100), (round % 512) as u32 * 8, &round.to_le_bytes()),
    ]
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    if let Ok(url) = std::env::var("TRELLIS_TEST_STORE") {
        let store = open(&url).unwrap();
        for round in 1.. {
            store.apply(&call(round), None).unwrap();
            println!("\nacknowledged {round}");
            std::io::stdout().flush().unwrap();
        }
    }
    let folder = Folder::in_memory();
    for kill_after in [1, 7, 30] {
        std::fs::remove_file(folder.file("store")).ok();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "what_was_acknowledged_survives_a_kill", "--nocapture"])
            .env("TRELLIS_TEST_STORE", url(&folder))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut acknowledged = 0;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let Some(round) = line.unwrap().strip_prefix("acknowledged ").map(|round| round.parse::<u64>().unwrap())
            else {
                continue;
            };
            acknowledged = round;
            // What it prints between here and its end is read too.
            if round == kill_after {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let store = open(&url(&folder)).unwrap();
        let Applied::Done(found) = store
            .apply(
                &[
                    get(&Key::new(1, Kind::Synchronisation, 1)),
                    entries(&Key::new(1, Kind::Log, 1), 0, u32::MAX),
                    get(&Key::page(1, 100)),
                ],
                None,
            )
            .unwrap()
        else {
            panic!("nothing refuses a read")
        };
        let Outcome::Value(Some(counter)) = &found[0] else { panic!("{found:?}") };
        let count = u64::from_le_bytes(counter[..].try_into().unwrap());
        assert!(count >= acknowledged && acknowledged >= kill_after, "{count} of {acknowledged} acknowledged");
        let Outcome::Entries { last, entries, .. } = &found[1] else { panic!("{found:?}") };
        assert_eq!((*last, entries.len() as u64), (count, count), "the log is as long as the counter says");
        let Outcome::Value(Some(page)) = &found[2] else { panic!("{found:?}") };
        let place = (count % 512) as usize * 8;
        assert_eq!(page[place..place + 8], count.to_le_bytes(), "the page has what the last call wrote");
        let last_page = store.get_many(&[Key::page(1, count % 64)]).unwrap().remove(0).unwrap();
        assert_eq!(last_page, count.to_le_bytes().repeat(512));
    }
}
