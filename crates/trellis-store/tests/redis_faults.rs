//! Tests how a client of the Redis protocol handles lost connections, restarted servers, and peers that are no servers.

mod conformance;
mod proxy;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use conformance::{add, add_within, append, delete, entries, get, put, swap};
use proxy::{Proxy, Way};
use trellis_store::resp::{Options, RespServer};
use trellis_store::{Applied, Change, Expect, Key, Kind, Outcome, Store, StoreError, open};
use trellis_testing::{Port, redis_server::RedisServer};

fn counter() -> Key {
    Key::new(1, Kind::Synchronisation, 1)
}

fn log() -> Key {
    Key::new(1, Kind::Log, 1)
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// A call that would show whether it was done twice or not at all.
fn step(store: &dyn Store, number: i64) {
    let applied = store.apply(&[add(&counter(), 0, 8, 1), append(&log(), &number.to_le_bytes())], None);
    let expected = vec![Outcome::Added(number), Outcome::Appended(number as u64 + 1)];
    assert_eq!(applied, Ok(Applied::Done(expected)), "call {number}");
}

/// Cuts the connection at every byte of a call, one after the other.
fn cut_everywhere(server: u16) {
    let proxy = Proxy::start(server);
    let store = open(&format!("redis://127.0.0.1:{}", proxy.port)).unwrap();
    step(&*store, 0);
    proxy.passed();
    step(&*store, 1);
    let [to_server, to_client] = proxy.passed();
    assert!(to_server > 100 && to_client > 10, "{to_server} and {to_client} bytes");
    let mut number = 2;
    for (way, bytes) in [(Way::ToServer, to_server), (Way::ToClient, to_client)] {
        for place in 0..bytes {
            proxy.cut_after(way, place);
            step(&*store, number);
            number += 1;
            assert!(!proxy.mend(), "it was cut {way:?} after {place} bytes");
        }
    }
    // A refused call is refused as often as it is made.
    let refused = swap(&counter(), Expect::Absent, Change::Delete);
    for (way, bytes) in [(Way::ToServer, to_server), (Way::ToClient, to_client)] {
        for place in (0..bytes).step_by(3) {
            proxy.cut_after(way, place);
            let applied = store.apply(std::slice::from_ref(&refused), None);
            assert!(matches!(applied, Ok(Applied::Refused(..))), "cut {way:?} after {place} bytes: {applied:?}");
            proxy.mend();
        }
    }
    let Applied::Done(outcomes) = store.apply(&[entries(&log(), 0, u32::MAX)], None).unwrap() else { panic!() };
    let Outcome::Entries { entries, .. } = &outcomes[0] else { panic!("{outcomes:?}") };
    assert!(entries.iter().map(|entry| &entry.bytes[..]).eq((0..number).map(i64::to_le_bytes)), "each once, in order");
}

/// Like `cut_everywhere`, for a call that waits: at every byte of its request, of the reply that it waits, and of its
/// answer.
fn cut_everywhere_while_waiting(server: u16) {
    let proxy = Proxy::start(server);
    let direct = open(&format!("redis://127.0.0.1:{server}")).unwrap();
    let store = open(&format!("redis://127.0.0.1:{}", proxy.port)).unwrap();
    let lock = Key::new(1, Kind::Synchronisation, 2);
    let mut taken = 0;
    let mut turn = |cut: Option<(Way, usize)>| {
        if let Some((way, place)) = cut {
            proxy.cut_after(way, place);
        }
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let wait = [add_within(&counter(), -1, (0, 9)), append(&log(), b"taken")];
                let taken = store.apply_when(&wait, None, later()).unwrap();
                let wait = swap(&lock, Expect::Value(b"free".to_vec()), Change::Delete);
                assert_eq!(store.apply_when(&[wait], None, later()).unwrap(), Applied::Done(vec![Outcome::Changed]));
                taken
            });
            direct.apply(&[put(&lock, b"free")], None).unwrap();
            direct.apply(&[add(&counter(), 0, 8, 1)], None).unwrap();
            taken += 1;
            let expected = vec![Outcome::Added(1), Outcome::Appended(taken)];
            assert_eq!(waiter.join().expect("the waiter ends well"), Applied::Done(expected), "{cut:?}");
        });
        proxy.mend();
        assert_eq!(direct.get_many(&[counter()]).unwrap()[0].as_deref(), Some(&[0; 8][..]), "{cut:?}");
    };
    turn(None);
    proxy.passed();
    turn(None);
    let [to_server, to_client] = proxy.passed();
    for (way, bytes) in [(Way::ToServer, to_server), (Way::ToClient, to_client)] {
        // Whether it has to wait depends on timing, so the bytes of two rounds differ.
        for place in 0..bytes + 40 {
            turn(Some((way, place)));
        }
    }
}

#[test]
fn a_call_is_done_once_wherever_its_connection_is_cut() {
    let Some(server) = RedisServer::start("a_call_is_done_once_wherever_its_connection_is_cut", &[]) else { return };
    cut_everywhere(server.port());
}

#[test]
fn a_wait_ends_once_wherever_its_connection_is_cut() {
    let Some(server) = RedisServer::start("a_wait_ends_once_wherever_its_connection_is_cut", &[]) else { return };
    cut_everywhere_while_waiting(server.port());
}

#[test]
fn so_it_is_with_our_own_front_end() {
    let serve = || {
        let store = open("embedded:").unwrap();
        let server = RespServer::bind("127.0.0.1:0", store, &Options::default()).unwrap().start().unwrap();
        let port = server.address().rsplit(':').next().unwrap().parse().unwrap();
        (server, port)
    };
    let (_server, port) = serve();
    cut_everywhere(port);
    let (_server, port) = serve();
    cut_everywhere_while_waiting(port);
}

#[test]
fn a_server_that_is_started_again_has_lost_nothing() {
    let test = "a_server_that_is_started_again_has_lost_nothing";
    let options = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut server) = RedisServer::start(test, &options) else { return };
    let store = open(&server.url()).unwrap();
    assert!(store.capabilities().durable);
    let (done, progress) = channel();
    let total = 400;
    let worker = std::thread::spawn({
        let store = Arc::clone(&store);
        move || {
            for number in 0..total {
                step(&*store, number);
                done.send(number).ok();
            }
        }
    });
    for kill_at in [50, 200] {
        while progress.recv().expect("the worker goes on") < kill_at {}
        server.kill();
        server.restart();
    }
    worker.join().expect("every call is done once");
    let value = store.get_many(&[counter()]).unwrap().remove(0).unwrap();
    assert_eq!(value, total.to_le_bytes());
}

#[test]
fn who_waits_goes_on_waiting_when_the_server_is_started_again() {
    let test = "who_waits_goes_on_waiting_when_the_server_is_started_again";
    // With its default `appendfsync`, Redis answers before it has written, if the disk is busy.
    let options = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut server) = RedisServer::start(test, &options) else { return };
    let store = open(&server.url()).unwrap();
    let begun = put(&counter(), &0i64.to_le_bytes());
    store.apply(&[begun], None).unwrap();
    let waiter = std::thread::spawn({
        let store = Arc::clone(&store);
        move || store.apply_when(&[add_within(&counter(), -1, (0, 9))], None, later()).unwrap()
    });
    while !server.ask("HLEN trellis:waiting").starts_with(":1") {
        std::thread::yield_now();
    }
    server.kill();
    server.restart();
    store.apply(&[add(&counter(), 0, 8, 1)], None).unwrap();
    assert_eq!(waiter.join().expect("the waiter ends well"), Applied::Done(vec![Outcome::Added(1)]));
}

#[test]
fn a_server_that_has_lost_everything_is_a_sentence() {
    let test = "a_server_that_has_lost_everything_is_a_sentence";
    let Some(mut server) = RedisServer::start(test, &[]) else { return };
    let store = open(&server.url()).unwrap();
    store.apply(&[put(&counter(), b"1")], None).unwrap();
    server.kill();
    server.restart();
    for error in [store.get_many(&[counter()]).unwrap_err(), store.apply(&[put(&counter(), b"2")], None).unwrap_err()] {
        assert!(error.to_string().contains("has lost everything it kept"), "{error}");
    }
}

/// A client that was killed while it waited acquires nothing.
#[test]
fn a_client_that_was_killed_waits_for_nothing() {
    let test = "a_client_that_was_killed_waits_for_nothing";
    let take = add_within(&counter(), -1, (0, 9));
    if let Ok(url) = std::env::var("TRELLIS_TEST_STORE") {
        open(&url).unwrap().apply_when(&[take], None, later()).unwrap();
        return;
    }
    let Some(server) = RedisServer::start(test, &[]) else { return };
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env("TRELLIS_TEST_STORE", server.url())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while !server.ask("HLEN trellis:waiting").starts_with(":1") {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let store = open(&server.url()).unwrap();
    // The server examines its connections in turns; after two answers it has noticed that one has ended.
    for _ in 0..2 {
        store.apply(&[get(&counter())], None).unwrap();
    }
    store.apply(&[add(&counter(), 0, 8, 1)], None).unwrap();
    let value = store.get_many(&[counter()]).unwrap().remove(0).unwrap();
    assert_eq!(value, 1i64.to_le_bytes(), "nothing was taken for the dead");
    assert!(server.ask("HLEN trellis:waiting").starts_with(":0"), "it is forgotten");
    assert!(server.ask("HLEN trellis:watched").starts_with(":0"), "it is forgotten");
}

fn refused(url: &str) -> StoreError {
    match open(url) {
        Ok(store) => panic!("{} opens", store.name()),
        Err(error) => error,
    }
}

#[test]
fn who_is_not_there_or_no_store_is_a_sentence() {
    let port = Port::new();
    let nobody = format!("redis://{}", port.address());
    let error = refused(&nobody);
    assert!(matches!(error, StoreError::Unreachable { .. }) && error.to_string().contains(&nobody), "{error}");
    assert!(matches!(refused("redis+unix:/nowhere/at/all"), StoreError::Unreachable { .. }));
    for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"SSH-2.0-OpenSSH_9.2\r\n", b"\0\0\0\0\n", b"+PONG\r\n"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(answer).unwrap();
            // Until the client has disconnected, so that it sees the answer and not the end.
            std::io::copy(&mut stream, &mut std::io::sink()).ok();
        });
        let error = refused(&url);
        assert!(matches!(error, StoreError::Protocol { .. }), "{error}");
        assert!(error.to_string().contains("not the Redis protocol"), "{error}");
        other.join().unwrap();
    }
}

#[test]
fn a_password_is_needed_where_there_is_one() {
    let options = ["--requirepass", "se:cr@t"];
    let Some(server) = RedisServer::start("a_password_is_needed_where_there_is_one", &options) else { return };
    for url in [server.url(), format!("redis://:wrong@127.0.0.1:{}", server.port())] {
        let error = refused(&url);
        assert!(matches!(error, StoreError::Denied { .. }), "{error}");
        assert!(!error.to_string().contains("wrong@"), "{error}");
    }
    let store = open(&format!("redis://:se%3Acr%40t@127.0.0.1:{}/5", server.port())).unwrap();
    store.apply(&[put(&counter(), b"1")], None).unwrap();
    assert_eq!(store.name(), format!("redis://127.0.0.1:{}/5", server.port()), "the password is not shown");
}

#[test]
fn a_server_that_cannot_be_a_store_says_why() {
    let test = "a_server_that_cannot_be_a_store_says_why";
    for (options, part) in [
        (&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"][..], "it forgets keys when it is full"),
        (&["--replicaof", "127.0.0.1 1"], "it is a replica"),
        (&["--rename-command", "FUNCTION", "", "--rename-command", "SCRIPT", ""], "it cannot run scripts"),
        (&["--cluster-enabled", "yes"], "Redis Cluster"),
    ] {
        let Some(server) = RedisServer::start(test, options) else { return };
        let error = refused(&server.url());
        assert!(error.to_string().contains(part), "{options:?}: {error}");
    }
}

#[test]
fn a_full_server_changes_nothing_of_a_call() {
    let options = ["--maxmemory", "4mb", "--maxmemory-policy", "noeviction"];
    let Some(server) = RedisServer::start("a_full_server_changes_nothing_of_a_call", &options) else { return };
    let store = open(&server.url()).unwrap();
    let kept = Key::page(1, 1000);
    store.apply(&[put(&kept, b"kept"), append(&log(), b"one")], None).unwrap();
    let page = vec![7; 65536];
    let error = (0..200).find_map(|number| store.apply(&[put(&Key::page(1, number), &page)], None).err());
    let error = error.expect("it is full at some time").to_string();
    assert!(error.contains("it is full"), "{error}");
    for first in [delete(&kept), conformance::trim(&log(), 1), delete(&log())] {
        let error = store.apply(&[first, put(&Key::page(1, 999), &page)], None).unwrap_err();
        assert!(error.to_string().contains("it is full"), "{error}");
    }
    assert_eq!(store.get_many(&[kept]).unwrap()[0].as_deref(), Some(&b"kept"[..]), "nothing was deleted");
    // Reading and freeing space continue to work.
    let Applied::Done(outcomes) = store.apply(&[entries(&log(), 0, 9)], None).unwrap() else { panic!() };
    assert!(matches!(&outcomes[0], Outcome::Entries { first: 1, last: 1, .. }), "{outcomes:?}");
    for number in 0..40 {
        store.apply(&[delete(&Key::page(1, number))], None).unwrap();
    }
    store.apply(&[put(&Key::page(1, 999), &page)], None).unwrap();
}

#[test]
fn a_server_without_libraries_and_one_that_forgot_them_run_the_script() {
    let test = "a_server_without_libraries_and_one_that_forgot_them_run_the_script";
    let Some(server) = RedisServer::start(test, &["--rename-command", "FUNCTION", ""]) else { return };
    conformance::run("redis without libraries", &|| open(&server.url()).unwrap());
    let store = open(&server.url()).unwrap();
    step(&*store, 0);
    server.ask("SCRIPT FLUSH");
    step(&*store, 1);
    let Some(server) = RedisServer::start(test, &[]) else { return };
    let store = open(&server.url()).unwrap();
    step(&*store, 0);
    server.ask("FUNCTION FLUSH");
    step(&*store, 1);
    // The same library may be loaded already.
    step(&*open(&server.url()).unwrap(), 2);
}

/// A server that loads for longer than the deadline is waited for, because it makes progress.
#[test]
fn a_server_that_loads_is_waited_for_while_it_gets_on() {
    let Some(mut server) = RedisServer::start("a_server_that_loads_is_waited_for_while_it_gets_on", &[]) else {
        return;
    };
    let store = open(&format!("{}?deadline=2", server.url())).unwrap();
    step(&*store, 0);
    // 600 keys of 10 ms each: three deadlines long.
    for key in 0..600 {
        server.ask(&format!("SET filler:{key} {}", "x".repeat(2_000)));
    }
    assert!(server.ask("SAVE").starts_with("+OK"), "it keeps all");
    server.kill();
    let slow = ["--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024"];
    server.restart_with(&slow);
    assert!(server.ask("PING").starts_with("-LOADING"), "it loads for seconds");
    step(&*store, 1);
    let reopened = open(&format!("{}?deadline=2", server.url())).unwrap();
    step(&*reopened, 2);
}

/// A server that loads without progress is an error when the deadline has passed, and the message says how to extend it.
#[test]
fn a_server_that_gets_no_further_with_loading_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut request = [0; 4096];
                while let Ok(1..) = stream.read(&mut request) {
                    stream.write_all(b"-LOADING Redis is loading the dataset in memory\r\n").ok();
                }
            });
        }
    });
    let refused = open(&format!("redis://127.0.0.1:{port}?deadline=1")).err().expect("it never is there").to_string();
    assert!(refused.contains("still loads") && refused.contains("within 1 s"), "{refused}");
    assert!(refused.contains("?deadline=SECONDS"), "{refused}");
}
