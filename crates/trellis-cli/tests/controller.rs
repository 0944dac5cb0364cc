//! Memory servers with a controller, and everything that can happen to them while clients work: homes that die, move
//! and are cut off, a controller and a switch that restart, a client that is gone, a bad network. Each test has a lab
//! of its own, made without root rights, with the real processes.

#[path = "support/fabric.rs"]
mod inside;
#[path = "support/rack.rs"]
mod rack;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use inside::{LONG, client, good, in_a_lab, leased, number, written};
use rack::{CONTROLLER, Ends, Ledger, Nothing, PAGE, Rack, SHORT, Times, count_of, page_of};
use trellis::remote::leased::{LeasedOptions, LeasedPages};
use trellis::remote::{Call, Host, Pointer, RemoteError};

/// Rights last long: a busy machine loses none of them.
const STEADY: Times = Times { lease_term: Duration::from_secs(20), home_lease: Duration::from_secs(3) };
/// For a bad network, in which much is sent again.
const SLOW: Times = Times { lease_term: Duration::from_secs(2), home_lease: Duration::from_millis(1500) };
/// The impairments of that network.
const BAD: &str = "drop=10%,duplicate=5%,delay=300us,jitter=300us,seed=11";
/// The number of pages in use, unless a test chooses another.
const PAGES: usize = 64;
/// The number of commits or requests between two events.
const SOME: u64 = 200;

/// Runs a test with this many servers and three clients, the last of which has the controller.
fn in_a_rack(test: &str, servers: u16, times: Times, memory: &'static str, body: impl FnOnce(Rack)) {
    in_a_lab(test, 3, servers, |lab| body(Rack::new(lab, times, memory)));
}

/// Creates pages at `s1`, for two processes.
fn pages(rack: &Rack, bytes: u64) -> (Pointer, [LeasedPages; 2]) {
    let object = good(client(&rack.lab, "c1", LONG).create(number(&rack.lab, "s1"), bytes));
    (object, ["c1", "c2"].map(|host| leased(&rack.lab, host, &[object], Arc::new(Nothing))))
}

/// Two processes increment pages under leases while something happens; then everything that was acknowledged is
/// there.
fn raised_while(rack: &mut Rack, pages_in_use: usize, happens: impl FnOnce(&mut Rack, &Ledger)) {
    let ledger = Ledger::new(pages_in_use);
    let (object, processes) = pages(rack, ledger.bytes());
    let mut reader = client(&rack.lab, "c2", LONG);
    std::thread::scope(|scope| {
        let ends = Ends(&ledger);
        for (leased, seed) in processes.iter().zip(1..) {
            let ledger = &ledger;
            scope.spawn(move || {
                let _ends = Ends(ledger);
                println!("process {seed}: {} commits came too late", ledger.raise_under_leases(leased, seed));
            });
        }
        scope.spawn(|| {
            let _ends = Ends(&ledger);
            ledger.read(&mut reader, object, 3);
        });
        ledger.wait_for(SOME);
        happens(rack, &ledger);
        ledger.wait_for(SOME);
        drop(ends);
    });
    println!("{} calls, the slowest took {:?}", ledger.done(), ledger.slowest());
    ledger.compare(&mut client(&rack.lab, "c1", LONG), object);
}

#[test]
fn a_home_dies_and_nothing_acknowledged_is_lost() {
    in_a_rack("a_home_dies_and_nothing_acknowledged_is_lost", 2, SHORT, "16MiB", |mut rack| {
        rack.control(1);
        rack.serve("s1");
        rack.serve("s2");
        rack.is_at("s1", "s1", 1);
        raised_while(&mut rack, PAGES, |rack, _| {
            rack.kill("s1");
            rack.is_at("s1", "s2", 0);
        });
    });
}

#[test]
fn a_home_dies_twice_where_three_servers_are() {
    in_a_rack("a_home_dies_twice_where_three_servers_are", 3, SHORT, "8MiB", |mut rack| {
        rack.control(2);
        ["s1", "s2", "s3"].into_iter().for_each(|host| rack.serve(host));
        rack.is_at("s1", "s1", 2);
        raised_while(&mut rack, PAGES, |rack, ledger| {
            for left in [1, 0] {
                let home = rack.range("s1")["home"].as_u64().expect("somebody is home");
                let home = ["s1", "s2", "s3"].into_iter().find(|host| u64::from(number(&rack.lab, host).0) == home);
                rack.kill(home.expect("it is a server"));
                rack.has("s1", left);
                ledger.wait_for(SOME);
            }
        });
    });
}

#[test]
fn a_range_without_backups_is_named_when_its_home_is_gone() {
    in_a_rack("a_range_without_backups_is_named_when_its_home_is_gone", 2, SHORT, "8MiB", |mut rack| {
        rack.control(0);
        rack.serve("s1");
        rack.serve("s2");
        rack.is_at("s1", "s1", 0);
        rack.is_at("s2", "s2", 0);
        let mut hasty = client(&rack.lab, "c1", Duration::from_secs(2));
        let [gone, kept] =
            ["s1", "s2"].map(|host| good(client(&rack.lab, "c1", LONG).create(number(&rack.lab, host), 8)));
        rack.kill("s1");
        let sentence = hasty.read(gone, &mut [0; 8]).expect_err("nobody has it").to_string();
        assert!(sentence.contains(":1001:"), "{sentence}");
        assert_eq!(good(client(&rack.lab, "c2", LONG).fetch_add(kept, 5)), 0, "the other range is well");
        let deadline = Instant::now() + LONG;
        while !rack.has_said(rack::CONTROLLER, ":1001::/48: nobody answers for it") {
            assert!(Instant::now() < deadline, "the controller names the range");
            std::thread::yield_now();
        }
        // A server that comes back without its memory begins with an empty range, in which no earlier pointer is
        // valid.
        rack.serve("s1");
        let lost = client(&rack.lab, "c1", LONG).read(gone, &mut [0; 8]).expect_err("it is gone");
        assert!(matches!(lost, RemoteError::Refused { .. }), "{lost}");
    });
}

/// Three clients read, write and add while a range moves from `s1` to `s2`.
fn moved_while(rack: &mut Rack, pages: usize, more: u64) {
    let ledger = Ledger::new(pages);
    let home = number(&rack.lab, "s1");
    let mut clients = ["c1", "c1", "c2"].map(|host| client(&rack.lab, host, LONG));
    let object = good(clients[0].create(home, ledger.bytes()));
    let counter = good(clients[0].create(home, 8));
    let [reader, writer, adder] = &mut clients;
    let added = std::thread::scope(|scope| {
        let ends = Ends(&ledger);
        let ledger = &ledger;
        scope.spawn(move || {
            let _ends = Ends(ledger);
            ledger.read(reader, object, 1);
        });
        scope.spawn(move || {
            let _ends = Ends(ledger);
            ledger.write(writer, object, 2);
        });
        let adding = scope.spawn(move || {
            let _ends = Ends(ledger);
            ledger.add(adder, counter)
        });
        ledger.wait_for(more);
        let began = Instant::now();
        rack.ask(&["move", &written(home.0), &written(number(&rack.lab, "s2").0)]);
        rack.is_at("s1", "s2", 0);
        println!("moved {} bytes in {:?}", ledger.bytes(), began.elapsed());
        ledger.wait_for(more);
        drop(ends);
        adding.join().expect("each addition is done once")
    });
    println!("{} requests, the slowest took {:?}", ledger.done(), ledger.slowest());
    // The content is at the new place, and nowhere else.
    rack.kill("s1");
    let mut client = client(&rack.lab, "c2", LONG);
    ledger.compare(&mut client, object);
    assert_eq!(good(client.fetch_add(counter, 0)), added);
}

#[test]
fn a_range_of_64_mib_moves_while_clients_work() {
    in_a_rack("a_range_of_64_mib_moves_while_clients_work", 2, STEADY, "66MiB", |mut rack| {
        rack.control(0);
        rack.serve("s1");
        rack.serve("s2");
        rack.is_at("s1", "s1", 0);
        moved_while(&mut rack, (64 << 20) / PAGE, SOME);
    });
}

#[test]
fn a_controller_that_starts_again_loses_no_lease() {
    in_a_rack("a_controller_that_starts_again_loses_no_lease", 2, STEADY, "16MiB", |mut rack| {
        rack.control(1);
        rack.serve("s1");
        rack.serve("s2");
        rack.is_at("s1", "s1", 1);
        let (object, [owner, _]) = pages(&rack, PAGE as u64);
        good(owner.update(&[0], false, &mut |_, _| ()));
        rack.wait_for("s1", |range| range["is_served"] == true);
        let before = rack.range("s1");
        let ledger = Ledger::new(1);
        let count = std::thread::scope(|scope| {
            let ends = Ends(&ledger);
            let committing = scope.spawn(|| {
                let _ends = Ends(&ledger);
                let mut count = 0;
                while !ledger.is_over() {
                    count += 1;
                    let late = ledger.time(|| good(owner.commit(&[(0, &page_of(count))], false)));
                    assert_eq!(late, [0_u64; 0], "commit {count}: the lease goes on");
                }
                count
            });
            ledger.wait_for(SOME);
            for _ in 0..3 {
                rack.kill(rack::CONTROLLER);
                // A home serves for the term of a home lease without a controller. If a busy machine needs longer for
                // this many, they are done after it.
                let done = ledger.done();
                while ledger.done() < done + SOME && !ledger.is_over() && !rack.has_said("s1", "is not served") {
                    std::thread::yield_now();
                }
                rack.control(1);
                ledger.wait_for(SOME);
            }
            drop(ends);
            committing.join().expect("every commit counts")
        });
        assert_eq!(rack.range("s1")["incarnation"], before["incarnation"], "it is as it was");
        let mut bytes = vec![0; PAGE];
        good(client(&rack.lab, "c2", LONG).read(object, &mut bytes));
        assert_eq!(count_of(&bytes), count);
    });
}

#[test]
fn a_switch_that_starts_again_is_told_where_a_moved_range_is() {
    in_a_rack("a_switch_that_starts_again_is_told_where_a_moved_range_is", 2, SHORT, "8MiB", |mut rack| {
        rack.control(1);
        rack.serve("s1");
        rack.serve("s2");
        rack.is_at("s1", "s1", 1);
        raised_while(&mut rack, PAGES, |rack, ledger| {
            rack.kill("s1");
            rack.is_at("s1", "s2", 0);
            ledger.wait_for(SOME);
            // The switch learns the hosts again, and sends requests for the range to a host without a server.
            rack.lab.restart_switch().unwrap();
        });
    });
}

#[test]
fn who_asks_any_server_waits_until_one_knows_that_it_may_answer() {
    in_a_rack("who_asks_any_server_waits_until_one_knows_that_it_may_answer", 1, SHORT, "4MiB", |mut rack| {
        rack.serve("s1");
        let mut asking = client(&rack.lab, "c1", LONG);
        // On a busy machine the server's answer may need longer than the first deadlines.
        let mut deadlines = (0..8).map(|doublings| Duration::from_millis(300 << doublings));
        let answered = deadlines.find_map(|deadline| {
            let mut alone = client(&rack.lab, "c1", deadline);
            let error = alone.create(Host::ANYWHERE, 1).expect_err("nobody says that it may");
            (!matches!(error, RemoteError::NoAnswer(_))).then(|| error.to_string())
        });
        let sentence = answered.expect("the server answers");
        assert!(sentence.contains("was not done within"), "{sentence}");
        std::thread::scope(|scope| {
            let asked = scope.spawn(move || good(asking.create(Host::ANYWHERE, 1)).home());
            rack.control(0);
            assert_eq!(asked.join().expect("it is answered"), number(&rack.lab, "s1"));
        });
    });
}

/// The number of concurrent READs.
const READS: usize = 32;

/// Ends the work of other threads when it is dropped, also if a test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two ranges are at one server, both with continuous requests, while something happens that shall separate them.
fn with_a_busy_server(rack: &mut Rack, happens: impl FnOnce(&mut Rack, &dyn Fn(&Rack) -> bool)) {
    for server in ["s1", "s2"] {
        rack.serve(server);
        rack.is_at(server, server, 0);
    }
    let numbers = ["s1", "s2"].map(|server| number(&rack.lab, server));
    let mut maker = client(&rack.lab, "c1", LONG);
    let objects = numbers.map(|server| good(maker.create(server, PAGE as u64)));
    rack.ask_until_it_can_be(&["move", &written(numbers[1].0), &written(numbers[0].0)]);
    rack.is_at("s2", "s1", 0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (host, object, byte) in [("c1", objects[0], 1), ("c2", objects[1], 2)] {
            let mut client = client(&rack.lab, host, LONG);
            good(client.write(object, &[byte; PAGE]));
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    // Many at a time: on a busy machine, single requests would not make a server busy.
                    let mut parts = [[0; PAGE / READS]; READS];
                    let mut calls: Vec<Call<'_>> =
                        parts.iter_mut().map(|bytes| Call::Read { pointer: object, bytes }).collect();
                    assert!(client.batch(&mut calls).iter().all(Result::is_ok));
                    assert_eq!(parts, [[byte; PAGE / READS]; READS]);
                }
            });
        }
        let _over = Over(&is_over);
        // A range, or a part of one that is requested.
        let is_one_there = |rack: &Rack| {
            let status = rack.status();
            status["ranges"].as_array().expect("a list").iter().any(|range| range["home"] == numbers[1].0)
        };
        happens(rack, &is_one_there);
        // It stays so, also when the loads are counted, which takes a second and two reports: each server has one of
        // two equally busy ranges.
        let deadline = Instant::now() + Duration::from_secs(3);
        while Instant::now() < deadline {
            let printed = rack.ask_until_it_can_be(&["rebalance", "--dry-run"]);
            assert!(is_one_there(rack) && printed.contains("nothing"), "{printed}");
        }
    });
}

#[test]
fn a_busy_server_gives_one_of_its_ranges_to_one_that_is_not() {
    in_a_rack("a_busy_server_gives_one_of_its_ranges_to_one_that_is_not", 2, SHORT, "4MiB", |mut rack| {
        rack.control(0);
        with_a_busy_server(&mut rack, |rack, is_one_there| {
            let deadline = Instant::now() + LONG;
            // A server counts as busy only after its requests were counted for a while.
            while !is_one_there(rack) && Instant::now() < deadline {
                rack.ask_until_it_can_be(&["rebalance"]);
            }
        });
    });
}

#[test]
fn a_busy_server_gives_one_of_its_ranges_away_by_itself() {
    in_a_rack("a_busy_server_gives_one_of_its_ranges_away_by_itself", 2, SHORT, "4MiB", |mut rack| {
        rack.control_with(0, &["--rebalance"]);
        with_a_busy_server(&mut rack, |rack, is_one_there| {
            let deadline = Instant::now() + LONG;
            while !is_one_there(rack) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(100));
            }
        });
    });
}

#[test]
fn what_is_no_report_leaves_a_controller_as_it_was() {
    in_a_rack("what_is_no_report_leaves_a_controller_as_it_was", 1, STEADY, "4MiB", |mut rack| {
        rack.control(0);
        rack.serve("s1");
        rack.is_at("s1", "s1", 0);
        rack.wait_for("s1", |range| range["is_served"] == true);
        let before = rack.range("s1");
        let (cluster, controller) = (rack.lab.cluster(), number(&rack.lab, CONTROLLER).0);
        let own = cluster.address(number(&rack.lab, "c1").0, 0x80, 1, 7);
        let socket = rack.lab.host("c1").unwrap().socket(own, 0).unwrap();
        // Truncated, oversized, without a valid tag, of every command.
        let header = [&[1, 0, 1, 0, 8, 0, 0, 0, 7][..], &[0; 23]].concat();
        let payloads =
            [vec![], vec![1], vec![0xff; 20], header.clone(), [&header[..], &[0xff; 9]].concat(), vec![0xff; 40_000]];
        for command in 0..=u8::MAX {
            let to = cluster.address(controller, command, 0, 0);
            for payload in &payloads {
                socket.send_to(payload, (to, trellis::remote::PORT)).unwrap();
            }
        }
        // The controller still works: its decisions need reports of servers.
        rack.ask_until_it_can_be(&["backups", &written(number(&rack.lab, "s1").0), "--count", "0"]);
        let after = rack.range("s1");
        let kept = ["home", "incarnation", "is_served", "pages"];
        assert_eq!(kept.map(|of| after[of].clone()), kept.map(|of| before[of].clone()));
        let sender = format!("a datagram of host {} is refused: ", inside::prefix(&rack.lab, "c1"));
        assert!(rack.has_said(CONTROLLER, &sender), "{sender}");
    });
}

#[test]
fn a_home_that_is_cut_off_stops_and_its_commits_come_too_late() {
    in_a_rack("a_home_that_is_cut_off_stops_and_its_commits_come_too_late", 2, SHORT, "8MiB", |mut rack| {
        rack.control(1);
        rack.serve("s1");
        rack.serve("s2");
        rack.is_at("s1", "s1", 1);
        let ledger = Ledger::new(PAGES);
        let (object, [with_home, with_heir]) = pages(&rack, ledger.bytes());
        for page in 0..PAGES {
            ledger.raise(&with_home, page);
        }
        good(with_home.update(&[0], false, &mut |_, _| ()));
        // The holder of a lease is with the old home, and cannot learn that there is another one.
        rack.lab.partition(&[vec!["s1".to_owned(), "c1".to_owned()]]).unwrap();
        std::thread::scope(|scope| {
            let late = scope.spawn(|| good(with_home.commit(&[(0, &page_of(1000))], true)));
            for page in 0..PAGES {
                // The heir is home.
                ledger.raise(&with_heir, page);
            }
            rack.lab.partition(&[]).unwrap();
            assert_eq!(late.join().expect("it ends"), [0], "nobody took it");
        });
        rack.is_at("s1", "s2", 1);
        ledger.compare(&mut client(&rack.lab, "c1", LONG), object);
        for page in 0..PAGES {
            // It goes on with the heir.
            ledger.raise(&with_home, page);
        }
    });
}

/// The role of a host of the lab, in a process of its own, in which it is killed; does nothing in a plain run.
#[test]
#[ignore = "a role that tests start"]
fn who_dies_with_a_lease() {
    let Ok(object) = std::env::var("TRELLIS_TEST_OBJECT") else { return };
    let prefix = std::env::var("TRELLIS_PREFIX").expect("it is said").parse().expect("a prefix");
    let object: Pointer = object.parse().expect("a pointer");
    let options = LeasedOptions::new(prefix, &[object]);
    let leased = good(LeasedPages::open(options, Arc::new(Nothing)));
    good(leased.update(&[0], false, &mut |_, _| ()));
    println!("it has the page");
    std::thread::sleep(LONG * 10);
}

#[test]
fn a_client_that_dies_with_a_lease_holds_nobody_up_for_ever() {
    in_a_rack("a_client_that_dies_with_a_lease_holds_nobody_up_for_ever", 2, SHORT, "8MiB", |mut rack| {
        use std::io::{BufRead, BufReader};
        rack.control(1);
        rack.serve("s1");
        rack.serve("s2");
        rack.is_at("s1", "s1", 1);
        let ledger = Ledger::new(1);
        let (object, [other, _]) = pages(&rack, ledger.bytes());
        ledger.raise(&other, 0);
        let own = std::env::current_exe().unwrap();
        let mut command = Command::new(own);
        command.args(["--ignored", "--exact", "who_dies_with_a_lease", "--nocapture"]);
        command.env("TRELLIS_TEST_OBJECT", object.to_string());
        command.env("TRELLIS_PREFIX", inside::prefix(&rack.lab, "c2").to_string());
        command.stdout(Stdio::piped());
        let mut dies = rack.lab.host("c2").unwrap().run(|| command.spawn()).unwrap().expect("it can be started");
        let mut lines = BufReader::new(dies.stdout.take().expect("it is a pipe")).lines();
        assert!(lines.by_ref().map_while(Result::ok).any(|line| line == "it has the page"));
        dies.kill().expect("it runs");
        dies.wait().expect("it ended");
        // It is granted when the term of the dead has ended.
        ledger.raise(&other, 0);
        ledger.compare(&mut client(&rack.lab, "c1", LONG), object);
    });
}

#[test]
fn a_bad_network_while_a_home_dies_loses_nothing() {
    in_a_rack("a_bad_network_while_a_home_dies_loses_nothing", 2, SLOW, "4MiB", |mut rack| {
        rack.control(1);
        rack.serve("s1");
        rack.serve("s2");
        rack.is_at("s1", "s1", 1);
        rack.lab.switch().set_faults(&BAD.parse().unwrap()).unwrap();
        raised_while(&mut rack, PAGES, |rack, _| {
            rack.kill("s1");
            rack.is_at("s1", "s2", 0);
        });
    });
}

#[test]
fn a_bad_network_while_a_range_moves_loses_nothing() {
    in_a_rack("a_bad_network_while_a_range_moves_loses_nothing", 2, STEADY, "4MiB", |mut rack| {
        rack.control(0);
        rack.serve("s1");
        rack.serve("s2");
        rack.is_at("s1", "s1", 0);
        rack.lab.switch().set_faults(&BAD.parse().unwrap()).unwrap();
        moved_while(&mut rack, PAGES, SOME);
    });
}
