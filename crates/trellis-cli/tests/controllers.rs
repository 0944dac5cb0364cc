//! Three controllers with a real etcd, while clients work: the leader is killed, stopped and continued, ended, cut
//! off from the store. Another one leads, and only observers of controllers notice.

#[path = "support/fabric.rs"]
mod inside;
#[path = "support/rack.rs"]
mod rack;
#[path = "../../trellis-store/tests/servers/mod.rs"]
mod servers;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use inside::{LONG, client, good, in_a_lab, leased, number, written};
use rack::{Ends, Ledger, Nothing, Rack, SHORT, Times};
use servers::ServerProcess;
use servers::kinds::Kind;
use trellis_base::Random;

/// Homes go on for longer than it takes until another controller leads.
const STEADY: Times = Times { lease_term: Duration::from_secs(20), home_lease: Duration::from_secs(8) };
/// Like [`STEADY`], with leases that end often.
const STOPPED: Times = Times { lease_term: Duration::from_secs(1), home_lease: Duration::from_secs(4) };
const CONTROLLERS: [&str; 3] = ["c3", "c4", "c5"];
const PAGES: usize = 64;
/// The number of commits between two events.
const SOME: u64 = 200;

/// The path from a host to the store, which is at the loopback interface of another host.
struct Way {
    begins: SocketAddr,
    is_cut: Arc<AtomicBool>,
}

impl Way {
    fn new(rack: &Rack, from: &str, to: &str, store: SocketAddr) -> Way {
        let listener = rack.lab.host(from).unwrap().run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let listener = listener.expect("the host has a loopback");
        let begins = listener.local_addr().expect("it is bound");
        let is_cut = Arc::new(AtomicBool::new(false));
        let cut = Arc::clone(&is_cut);
        let carry_all = move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(store) else { continue };
                let ends = [near.try_clone(), far.try_clone()].map(|end| end.expect("one of ours"));
                let [near_again, far_again] = ends;
                for (from, to) in [(near, far_again), (far, near_again)] {
                    let cut = Arc::clone(&cut);
                    std::thread::spawn(move || carry(from, to, &cut));
                }
            }
        };
        // A thread that is started in a host stays there.
        drop(rack.lab.host(to).unwrap().run(|| std::thread::spawn(carry_all)).unwrap());
        Way { begins, is_cut }
    }

    /// Cuts the path without any error to its users, or restores it.
    fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::SeqCst);
    }
}

/// Forwards bytes one way. After bytes were lost because the path was cut, the connection is no longer usable.
fn carry(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    let mut room = [0; 16 << 10];
    let mut was_cut = false;
    while let Ok(bytes @ 1..) = from.read(&mut room) {
        was_cut |= cut.load(Ordering::SeqCst);
        if was_cut && !cut.load(Ordering::SeqCst) || !was_cut && to.write_all(&room[..bytes]).is_err() {
            break;
        }
    }
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
}

/// A rack with three controllers and their store.
struct Several {
    rack: Rack,
    ways: Vec<(&'static str, Way)>,
    /// Declared after the rack: controllers end first.
    _store: ServerProcess,
}

/// Runs a test with two hosts of clients, three controllers with an etcd, and two servers whose ranges have a backup
/// each.
fn with_several(test: &str, times: Times, leader_term: &'static str, body: impl FnOnce(&mut Several)) {
    in_a_lab(test, 5, 2, |lab| {
        // Folders of servers contain the number of their process, which is the same in the namespaces of each test.
        let mounted = Command::new("mount").args(["-t", "tmpfs", "none", "/dev/shm"]).status();
        assert!(mounted.is_ok_and(|status| status.success()), "the test has mounts of its own");
        let rack = Rack::new(lab, times, "16MiB");
        let store = rack.lab.host("c3").unwrap().run(|| Kind::Etcd.start(test, &[])).unwrap();
        let Some(store) = store else { return };
        let ways: Vec<(&str, Way)> =
            CONTROLLERS.into_iter().map(|host| (host, Way::new(&rack, host, "c3", store.address()))).collect();
        let records = ways.iter().map(|(host, way)| (*host, format!("etcd://{}", way.begins))).collect();
        let mut several = Several { rack, ways, _store: store };
        several.rack.with_controllers(records, leader_term);
        CONTROLLERS.into_iter().for_each(|host| several.rack.control_at(host, 1));
        several.rack.led_by(&CONTROLLERS);
        ["s1", "s2"].into_iter().for_each(|host| several.rack.serve(host));
        several.rack.is_at("s1", "s1", 1);
        several.rack.is_at("s2", "s2", 1);
        body(&mut several);
    });
}

fn others(host: &str) -> Vec<&'static str> {
    CONTROLLERS.into_iter().filter(|other| *other != host).collect()
}

/// Two processes increment pages under leases and one reads while something happens; then everything that was
/// acknowledged is there.
fn raised_while(several: &mut Several, happens: impl FnOnce(&mut Several, &Ledger)) {
    let lab = &several.rack.lab;
    // A server that learns of its range only at a later incarnation grants no lease for a term: somebody may have
    // one.
    let first = Ledger::new(1);
    let object = good(client(lab, "c1", LONG).create(number(lab, "s1"), first.bytes()));
    assert!(first.raise_one(&leased(lab, "c1", &[object], Arc::new(Nothing)), 0), "nobody else wants it");
    let ledger = Ledger::new(PAGES);
    let object = good(client(lab, "c1", LONG).create(number(lab, "s1"), ledger.bytes()));
    let processes = ["c1", "c2"].map(|host| leased(lab, host, &[object], Arc::new(Nothing)));
    let mut reader = client(lab, "c2", LONG);
    std::thread::scope(|scope| {
        let ends = Ends(&ledger);
        let ledger = &ledger;
        for (leased, seed) in processes.iter().zip(1..) {
            scope.spawn(move || {
                let _ends = Ends(ledger);
                println!("process {seed}: {} commits came too late", ledger.raise_under_leases(leased, seed));
            });
        }
        scope.spawn(|| {
            let _ends = Ends(ledger);
            ledger.read(&mut reader, object, 3);
        });
        ledger.wait_for(SOME);
        happens(several, ledger);
        ledger.wait_for(SOME);
        drop(ends);
    });
    println!("{} calls, the slowest took {:?}", ledger.done(), ledger.slowest());
    // A wait for a lease ends when the lease is given back, not when its term ends.
    assert!(ledger.slowest() < STEADY.lease_term / 2, "{:?}", ledger.slowest());
    ledger.compare(&mut client(&several.rack.lab, "c1", LONG), object);
}

#[test]
fn a_leader_that_is_killed_is_followed_within_its_term_and_no_lease_is_lost() {
    let test = "a_leader_that_is_killed_is_followed_within_its_term_and_no_lease_is_lost";
    with_several(test, STEADY, "2s", |several| {
        let before = several.rack.range("s1");
        raised_while(several, |several, ledger| {
            for _ in 0..3 {
                let leader = several.rack.led_by(&CONTROLLERS);
                several.rack.kill(leader);
                let killed = Instant::now();
                let next = several.rack.led_by(&others(leader));
                let after = killed.elapsed();
                println!("{next} leads {after:?} after {leader} was killed");
                ledger.wait_for(SOME);
                several.rack.control_at(leader, 1);
            }
        });
        let after = several.rack.range("s1");
        for part in ["home", "incarnation", "complete"] {
            assert_eq!(after[part], before[part], "{part}: homes went on");
        }
    });
}

#[test]
fn a_leader_and_a_home_are_killed_at_once_and_nothing_acknowledged_is_lost() {
    let test = "a_leader_and_a_home_are_killed_at_once_and_nothing_acknowledged_is_lost";
    with_several(test, SHORT, "2s", |several| {
        raised_while(several, |several, _| {
            let leader = several.rack.led_by(&CONTROLLERS);
            several.rack.kill("s1");
            several.rack.kill(leader);
            several.rack.led_by(&others(leader));
            several.rack.is_at("s1", "s2", 0);
        });
    });
}

#[test]
fn a_leader_that_was_stopped_and_goes_on_does_no_harm() {
    with_several("a_leader_that_was_stopped_and_goes_on_does_no_harm", STOPPED, "2s", |several| {
        let mut random = Random::new(5);
        raised_while(several, |several, ledger| {
            for round in 0..4 {
                let leader = several.rack.led_by(&CONTROLLERS);
                let home = several.rack.range("s1")["home"].as_u64();
                let here =
                    ["s1", "s2"].into_iter().find(|host| Some(u64::from(number(&several.rack.lab, host).0)) == home);
                let here = here.expect("a server is home");
                let there = if here == "s1" { "s2" } else { "s1" };
                let [range, to] = ["s1", there].map(|host| written(number(&several.rack.lab, host).0));
                several.rack.has("s1", 1);
                // It is stopped somewhere in the middle of the request, at another point in each round.
                let mut question = several.rack.question(leader, &["move", &range, &to]);
                let mut asks = question.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it can be started");
                std::thread::sleep(Duration::from_millis(random.below(40)));
                several.rack.signal(leader, libc::SIGSTOP);
                several.rack.led_by(&others(leader));
                // The next one decides, and its decision stays when the previous one continues.
                several.rack.has("s1", 1);
                let back = written(number(&several.rack.lab, here).0);
                several.rack.ask_until_it_can_be(&["move", &range, &back, "--wait"]);
                several.rack.has("s1", 1);
                let before = several.rack.range("s1");
                several.rack.signal(leader, libc::SIGCONT);
                let deadline = Instant::now() + LONG;
                while several.rack.status_at(leader).is_none_or(|status| status["leads"] == true) {
                    assert!(Instant::now() < deadline, "{leader} still believes that it leads");
                }
                asks.wait().expect("it is answered");
                ledger.wait_for(SOME);
                let after = several.rack.range("s1");
                for part in ["home", "incarnation"] {
                    assert_eq!(after[part], before[part], "round {round}: {before}, then {after}");
                }
            }
        });
    });
}

#[test]
fn a_leader_that_ends_is_not_waited_for() {
    // Waiting for its term would take longer than a test waits for anything; the others check eight times in a term.
    with_several("a_leader_that_ends_is_not_waited_for", STEADY, "80s", |several| {
        raised_while(several, |several, ledger| {
            let leader = several.rack.led_by(&CONTROLLERS);
            several.rack.signal(leader, libc::SIGTERM);
            assert!(several.rack.ends(leader).success(), "it ended in order");
            assert!(!several.rack.has_socket(leader));
            several.rack.led_by(&others(leader));
            ledger.wait_for(SOME);
        });
    });
}

#[test]
fn a_leader_that_is_cut_off_from_the_store_says_nothing_and_another_leads() {
    let test = "a_leader_that_is_cut_off_from_the_store_says_nothing_and_another_leads";
    with_several(test, STEADY, "2s", |several| {
        raised_while(several, |several, ledger| {
            for _ in 0..2 {
                let leader = several.rack.led_by(&CONTROLLERS);
                let way = several.ways.iter().position(|(host, _)| *host == leader).expect("it has a way");
                several.ways[way].1.cut(true);
                several.rack.led_by(&others(leader));
                assert_eq!(several.rack.status_at(leader).expect("it runs")["leads"], false, "two would lead");
                several.rack.has("s1", 1);
                ledger.wait_for(SOME);
                several.ways[way].1.cut(false);
            }
        });
    });
}
