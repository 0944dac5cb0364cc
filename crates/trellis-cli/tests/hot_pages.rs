//! Hot pages: another server answers READs of them, nothing stale is ever read, and if that server dies, requests are
//! repeated. In labs that are made without root rights, with the real processes.

#[path = "support/fabric.rs"]
mod inside;
#[path = "support/rack.rs"]
mod rack;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use inside::{LONG, client, good, in_a_lab, in_a_lab_of, number};
use rack::{Rack, Times, count_of, page_of};
use serde_json::Value;
use trellis::remote::{Call, Client, Pointer};

/// Long enough that a busy machine loses no rights.
const TIMES: Times = Times { lease_term: Duration::from_secs(3), home_lease: Duration::from_secs(2) };
/// The number of READs in a second from which a page gets a replica.
const HOT_FROM: &str = "100";
/// The number of concurrent READs of a client.
const READS: usize = 32;

/// The hot pages in the controller's status.
fn replicas(rack: &Rack) -> Vec<Value> {
    let printed = rack.ask(&["status", "--json"]);
    let status: Value = serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"));
    status["replicas"].as_array().cloned().unwrap_or_default()
}

/// Reads one page repeatedly until a condition is met; each result is the last written value, or the one being
/// written.
fn read_until(
    client: &mut Client,
    object: Pointer,
    acknowledged: &AtomicU64,
    tried: &AtomicU64,
    is_so: impl Fn() -> bool,
) {
    let (deadline, mut pages, mut last) = (Instant::now() + LONG, vec![[0; rack::PAGE]; READS], 0);
    while !is_so() {
        assert!(Instant::now() < deadline, "it never is so");
        let least = acknowledged.load(Ordering::SeqCst).max(last);
        // Many at a time: on a busy machine, single requests would not make a page hot.
        let mut calls: Vec<Call<'_>> =
            pages.iter_mut().map(|bytes| Call::Read { pointer: object, bytes: &mut bytes[..] }).collect();
        assert!(client.batch(&mut calls).iter().all(Result::is_ok));
        let most = tried.load(Ordering::SeqCst);
        for count in pages.iter().map(|bytes| count_of(bytes)) {
            assert!((least..=most).contains(&count), "it is {count}, not {least} to {most}: stale");
            last = last.max(count);
        }
    }
}

#[test]
fn a_hot_page_is_read_at_a_replica_and_never_stale() {
    in_a_lab_of("nft", "a_hot_page_is_read_at_a_replica_and_never_stale", 3, 3, |lab| {
        let mut rack = Rack::new(lab, TIMES, "8MiB");
        rack.control_with(0, &["--hot-pages", HOT_FROM]);
        ["s1", "s2", "s3"].into_iter().for_each(|host| rack.serve(host));
        rack.is_at("s1", "s1", 0);
        let mut writer = client(&rack.lab, "c2", LONG);
        let object = good(writer.create(number(&rack.lab, "s1"), rack::PAGE as u64));
        let (acknowledged, tried, is_over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let mut write = |count: u64| {
            tried.store(count, Ordering::SeqCst);
            good(writer.write(object, &page_of(count)));
            acknowledged.store(count, Ordering::SeqCst);
        };
        std::thread::scope(|scope| {
            for host in ["c1", "c1"] {
                let mut reader = client(&rack.lab, host, LONG);
                let (acknowledged, tried, is_over) = (&acknowledged, &tried, &is_over);
                scope.spawn(move || {
                    read_until(&mut reader, object, acknowledged, tried, || is_over.load(Ordering::SeqCst))
                });
            }
            let ends = Over(&is_over);
            // The replica answers.
            let replica = wait_for(&rack, |replica| replica["answered"].as_u64() > Some(200));
            println!("{replica}");
            assert_ne!(replica["host"], number(&rack.lab, "s1").0, "home is not a replica");
            // After another client writes, the next READ returns the new value.
            for count in 1..=20 {
                write(count);
            }
            wait_until(|| rack.has_said(rack::CONTROLLER, "is answered at home again, because it is being changed"));
            // The page is hot and no longer changed: there is a replica again, and that one dies.
            let replica = wait_for(&rack, |replica| replica["answered"].as_u64() > Some(200));
            let host = ["s2", "s3"].into_iter().find(|host| replica["host"] == number(&rack.lab, host).0);
            rack.kill(host.expect("it is one of the others"));
            let before = Instant::now();
            write(21);
            println!("a write after the death of the replica took {:?}", before.elapsed());
            wait_for(&rack, |replica| {
                replica["answered"].as_u64() > Some(200) && replica["host"] != number(&rack.lab, host.expect("one")).0
            });
            write(22);
            drop(ends);
        });
    });
}

/// Ends the readers, also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn wait_until(is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "it never is so");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the hot page when it satisfies a condition.
fn wait_for(rack: &Rack, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + LONG;
    loop {
        let found = replicas(rack);
        if let Some(replica) = found.iter().find(|replica| is_so(replica)) {
            return replica.clone();
        }
        assert!(Instant::now() < deadline, "hot pages: {found:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn who_asks_any_server_gets_one_that_is_there() {
    in_a_lab("who_asks_any_server_gets_one_that_is_there", 3, 2, |lab| {
        let mut rack = Rack::new(lab, TIMES, "8MiB");
        rack.control(0);
        ["s1", "s2"].into_iter().for_each(|host| rack.serve(host));
        ["s1", "s2"].into_iter().for_each(|host| rack.is_at(host, host, 0));
        let mut client = client(&rack.lab, "c1", LONG);
        // The servers know that they are homes.
        for host in ["s1", "s2"] {
            good(client.create(number(&rack.lab, host), 8));
        }
        // The one that was home first answers as long as it is there.
        let first = good(client.create(trellis::remote::Host::ANYWHERE, 8)).home();
        let is_first = |host: &&str| number(&rack.lab, host) == first;
        let (gone, other): (Vec<&str>, Vec<&str>) = ["s1", "s2"].into_iter().partition(is_first);
        let other = number(&rack.lab, other.first().expect("one of the two answers"));
        rack.kill(gone.first().expect("one of the two answers"));
        // Until its home lease has ended nobody knows that it is gone: the call waits for an answer.
        let second = good(client.create(trellis::remote::Host::ANYWHERE, 8));
        assert_eq!(second.home(), other);
    });
}
