//! Operators' commands to a controller while clients work: servers that are drained, requested backups, ranges that
//! move and are reset, and the events meanwhile. What was acknowledged still holds when the controller is killed at
//! once.

#[path = "support/fabric.rs"]
mod inside;
#[path = "support/rack.rs"]
mod rack;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use inside::{LONG, client, good, in_a_lab, number, written};
use rack::{CONTROLLER, Ends, Ledger, Rack, Times};
use trellis::remote::RemoteError;
use trellis_fabric_protocol::wire::datagram::Status;

/// Rights last for longer than a controller needs to restart.
const STEADY: Times = Times { lease_term: Duration::from_secs(5), home_lease: Duration::from_secs(3) };

/// Three servers, whose ranges have one backup each, with one client that writes and one that reads the pages of
/// `s1`.
fn in_use(test: &str, happens: impl FnOnce(&mut Rack, &[String; 3])) {
    in_a_lab(test, 3, 3, |lab| {
        let mut rack = Rack::new(lab, STEADY, "4MiB");
        rack.control(1);
        let servers = ["s1", "s2", "s3"];
        servers.into_iter().for_each(|host| rack.serve(host));
        servers.into_iter().for_each(|host| rack.is_at(host, host, 1));
        let numbers = servers.map(|host| written(number(&rack.lab, host).0));
        let ledger = Ledger::new(16);
        let mut clients = ["c1", "c2"].map(|host| client(&rack.lab, host, LONG));
        let object = good(clients[0].create(number(&rack.lab, "s1"), ledger.bytes()));
        let [reader, writer] = &mut clients;
        std::thread::scope(|scope| {
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
            ledger.wait_for(100);
            happens(&mut rack, &numbers);
            ledger.wait_for(100);
            drop(ends);
        });
        ledger.compare(&mut client(&rack.lab, "c1", LONG), object);
    });
}

#[test]
fn a_server_is_drained_while_clients_work_and_stays_so() {
    in_use("a_server_is_drained_while_clients_work_and_stays_so", |rack, [s1, s2, _]| {
        // The decision is recorded before it is acknowledged.
        rack.ask_until_it_can_be(&["drain", s1, "--no-wait"]);
        rack.kill(CONTROLLER);
        rack.control(1);
        let printed = rack.ask_until_it_can_be(&["drain", s1]);
        assert!(printed.ends_with(": nothing is left; it may be ended\n"), "{printed}");
        assert_ne!(rack.range("s1")["home"], number(&rack.lab, "s1").0);
        rack.kill("s1");
        let output = rack.try_to_ask(&["move", s2, s1]);
        let sentence = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && sentence.contains("server"), "{sentence}");
        rack.serve("s1");
        rack.ask_until_it_can_be(&["drain", s1, "--cancel"]);
        rack.ask_until_it_can_be(&["move", s2, s1, "--wait"]);
        assert_eq!(rack.range("s2")["home"], number(&rack.lab, "s1").0);
    });
}

/// Each range has one copy besides its home, so at least two servers are needed.
#[test]
fn a_drain_that_has_nowhere_to_go_ends_with_what_is_missing() {
    in_use("a_drain_that_has_nowhere_to_go_ends_with_what_is_missing", |rack, [s1, s2, _]| {
        rack.ask_until_it_can_be(&["drain", s1]);
        let output = rack.try_to_ask(&["drain", s2]);
        let sentence = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{sentence}");
        assert!(sentence.contains("no other server has room for ") && sentence.contains("--cancel"), "{sentence}");
        // The drain continues when it can.
        rack.ask_until_it_can_be(&["drain", s1, "--cancel"]);
        rack.ask_until_it_can_be(&["drain", s2]);
    });
}

#[test]
fn a_drain_and_a_directive_that_were_answered_outlive_the_controller() {
    in_use("a_drain_and_a_directive_that_were_answered_outlive_the_controller", |rack, [s1, s2, s3]| {
        for count in [2, 0, 2, 1] {
            rack.ask_until_it_can_be(&["backups", s1, "--count", &count.to_string()]);
            rack.kill(CONTROLLER);
            rack.control(1);
            assert_eq!(rack.range("s1")["directive"]["Count"], count);
        }
        for drained in [true, false, true] {
            let arguments = ["drain", s3, if drained { "--no-wait" } else { "--cancel" }];
            rack.ask_until_it_can_be(&arguments);
            rack.kill(CONTROLLER);
            rack.control(1);
            let status = rack.status();
            let servers = status["servers"].as_array().expect("a list");
            let found = servers.iter().find(|server| server["host"] == number(&rack.lab, "s3").0).expect("it is there");
            assert_eq!(found["is_drained"], drained);
        }
        rack.ask_until_it_can_be(&["drain", s3, "--cancel"]);
        rack.ask_until_it_can_be(&["backups", s1, s2]);
        let second = number(&rack.lab, "s2").0;
        rack.wait_for("s1", |range| range["complete"] == serde_json::json!([second]));
    });
}

#[test]
fn pages_go_and_come_home_with_the_command_while_clients_work() {
    in_use("pages_go_and_come_home_with_the_command_while_clients_work", |rack, [s1, s2, s3]| {
        let printed = rack.ask_until_it_can_be(&["move", s1, s2, "--pages", "4-11", "--wait"]);
        assert!(printed.contains(": pages 4 to 11 are at host ") && printed.ends_with(" s\n"), "{printed}");
        let part = |rack: &Rack| {
            let status = rack.status();
            let ranges = status["ranges"].as_array().expect("a list").clone();
            ranges.into_iter().find(|range| !range["within"].is_null())
        };
        let found = part(rack).expect("there is a part");
        assert_eq!((&found["home"], &found["pages"]), (&number(&rack.lab, "s2").0.into(), &8.into()), "{found}");
        assert_eq!(found["within"]["range"], number(&rack.lab, "s1").0);
        let shown = rack.ask(&["status"]);
        assert!(shown.contains(&format!("pages 4-11 of {:#x}", number(&rack.lab, "s1").0)), "{shown}");
        let output = rack.try_to_ask(&["move", s1, s3, "--pages", "8-9"]);
        let sentence = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && sentence.contains("let all of them go with --pages 4-11"), "{sentence}");
        // What was acknowledged holds when the controller is killed at once, and another one continues with it.
        rack.kill(CONTROLLER);
        rack.control(1);
        rack.ask_until_it_can_be(&["move", s1, s3, "--pages", "4-11", "--wait"]);
        rack.ask_until_it_can_be(&["move", s1, s1, "--pages", "4-11"]);
        rack.kill(CONTROLLER);
        rack.control(1);
        let deadline = Instant::now() + LONG;
        while let Some(part) = part(rack) {
            assert!(Instant::now() < deadline, "it comes home: {part}");
        }
    });
}

#[test]
fn pages_go_to_a_server_near_who_asks_for_them() {
    in_a_lab("pages_go_to_a_server_near_who_asks_for_them", 3, 3, |lab| {
        let mut rack = Rack::new(lab, STEADY, "4MiB");
        let near = ["c1", "s2"].map(|host| written(number(&rack.lab, host).0)).join(",");
        rack.control_with(0, &["--rebalance", "--locality", &near]);
        let servers = ["s1", "s2", "s3"];
        servers.into_iter().for_each(|host| rack.serve(host));
        servers.into_iter().for_each(|host| rack.is_at(host, host, 0));
        let mut client = client(&rack.lab, "c1", LONG);
        // Two page ranges, which go together. Each 64 pages need 100 requests in a second, five seconds long, also on a
        // machine that is busy with other things.
        const PAGES: u64 = 128;
        let object = good(client.create(number(&rack.lab, "s1"), PAGES * 4096));
        let (near, deadline) = (number(&rack.lab, "s2").0, Instant::now() + LONG);
        let is_there = |rack: &Rack| {
            let status = rack.status();
            let ranges = status["ranges"].as_array().expect("a list").clone();
            let there = ranges.iter().filter(|range| !range["within"].is_null() && range["home"] == near);
            there.filter_map(|range| range["pages"].as_u64()).sum::<u64>() >= PAGES
        };
        while !is_there(&rack) {
            assert!(Instant::now() < deadline, "the pages stay: {}", rack.status());
            // All at once: single requests would be too few in a second on a loaded machine.
            let pointers = (0..PAGES).map(|page| object.plus(page * 4096).expect("it is in the object"));
            let mut bytes = vec![[0; 8]; PAGES as usize];
            let mut reads: Vec<_> = pointers.zip(bytes.iter_mut().map(|bytes| &mut bytes[..])).collect();
            good(client.read_many(&mut reads));
        }
        assert!(rack.has_said(CONTROLLER, "come from hosts near"));
        good(client.read(object, &mut [0; 8]));
    });
}

#[test]
fn events_are_followed_and_what_nobody_has_is_reset() {
    in_a_lab("events_are_followed_and_what_nobody_has_is_reset", 3, 1, |lab| {
        let mut rack = Rack::new(lab, rack::SHORT, "4MiB");
        rack.control(1);
        let mut follows = rack.question(CONTROLLER, &["events", "--follow"]);
        let mut follows = follows.stdout(Stdio::piped()).spawn().expect("it can be started");
        let mut lines = BufReader::new(follows.stdout.take().expect("it is a pipe")).lines().map_while(Result::ok);
        let mut says = |part: &str| assert!(lines.any(|line| line.contains(part)), "it ended before it said {part}");
        rack.serve("s1");
        says("it is new, with 1024 pages");
        let s1 = written(number(&rack.lab, "s1").0);
        let refused = |rack: &Rack| String::from_utf8_lossy(&rack.try_to_ask(&["reset", &s1]).stderr).into_owned();
        // On a busy machine, its home lease may have ended just then.
        let sentence = std::iter::repeat_with(|| {
            rack.wait_for("s1", |range| range["is_served"] == true);
            refused(&rack)
        });
        let sentence = sentence.take(100).find(|sentence| !sentence.is_empty()).expect("it is refused");
        assert!(sentence.contains("serves it; nothing was reset"), "{sentence}");
        says("it shall have more than 0 backups, and no other server has the 4194304 bytes of a copy left");
        rack.wait_for("s1", |range| range["lacks_room"] == true);
        let lost = good(client(&rack.lab, "c1", LONG).create(number(&rack.lab, "s1"), 8));
        rack.kill("s1");
        says("nobody answers for it");
        rack.serve("s1");
        says("came back without it");
        // A client learns that nobody has the range, not that another server is home or that it shall wait.
        let deadline = Instant::now() + LONG;
        loop {
            let refused = client(&rack.lab, "c1", Duration::from_secs(1)).read(lost, &mut [0; 8]);
            let sentence = refused.as_ref().map_or_else(ToString::to_string, |()| "it was read".to_owned());
            if matches!(refused, Err(RemoteError::Unserved { status: Status::Unserved, .. })) {
                assert!(sentence.contains("`trellis controller reset`"), "{sentence}");
                break;
            }
            assert!(Instant::now() < deadline, "{sentence}");
        }
        rack.ask(&["reset", &s1]);
        says("begins empty");
        let before = Instant::now();
        let gone = client(&rack.lab, "c1", LONG).read(lost, &mut [0; 8]);
        assert!(gone.is_err() && before.elapsed() < LONG, "{gone:?}");
        follows.kill().expect("it runs");
        follows.wait().expect("it ends");
    });
}
