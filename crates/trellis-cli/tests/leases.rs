//! Pages under leases in a lab of this machine, through a switch that grants leases and redirects requests to owners:
//! over a good network and a bad one, with one server and with a controller that makes another one keep copies.

#[path = "support/lab.rs"]
mod lab;

use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use lab::Lab;
use serde_json::Value;
use trellis::remote::leased::{Bytes, Events, LeasedOptions, LeasedPages};
use trellis::remote::{Client, ClientOptions, Host, HostPrefix, Pointer, RemoteError};

/// Set where this test program is a client in a host of the lab: the object, and the number of rounds.
const OBJECT: &str = "TRELLIS_TEST_OBJECT";
const ROUNDS: &str = "TRELLIS_TEST_ROUNDS";
/// The number of the server `s1` in a lab.
const SERVER: Host = Host(0x1001);
const PAGE: usize = 4096;
/// For what must happen, however slow the machine is.
const LONG: Duration = Duration::from_secs(60);
/// The switch sends a request for a page to the host that asked before, until that host gives the page back.
const GRANTS: [&str; 2] = ["--lease", "60000"];
/// The impairments of a bad network.
const FAULTS: &str = "drop=10%,duplicate=5%,reorder=5%,delay=200us,seed=7";
/// In this many first rounds, the lease of the first page is held until the other client wants it, so that each
/// client requests a page that the other one has.
const HELD: u64 = 16;

/// Starts a role of this program in a host.
fn run(lab: &Lab, host: &str, test: &str, object: &str, rounds: u64) -> Child {
    let own = std::env::current_exe().expect("it has a path");
    let mut command = lab.command("run", &[host, "--"]);
    command
        .arg(own)
        .args(["--ignored", "--exact", test, "--nocapture"])
        .env(ROUNDS, rounds.to_string())
        .env(OBJECT, object);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started")
}

/// The output of a process that ended well.
fn printed(child: Child) -> String {
    let output = child.wait_with_output().expect("it ends");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

fn good<T>(result: Result<T, RemoteError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn prefix() -> HostPrefix {
    std::env::var("TRELLIS_PREFIX").expect("the lab says it").parse().expect("a prefix")
}

fn client() -> Client {
    good(Client::open(ClientOptions { deadline: LONG, ..ClientOptions::new(prefix()) }))
}

/// Whether another client wants the page that is held.
#[derive(Default)]
struct Wanted(Mutex<bool>, Condvar);

impl Wanted {
    fn set(&self, is_wanted: bool) {
        *self.0.lock().expect("nobody panics with it") = is_wanted;
        self.1.notify_all();
    }

    fn wait(&self) {
        let is_wanted = self.0.lock().expect("nobody panics with it");
        let waited = self.1.wait_timeout_while(is_wanted, LONG, |is_wanted| !*is_wanted);
        assert!(!waited.expect("nobody panics with it").1.timed_out(), "nobody wanted the page");
    }
}

impl Events for Wanted {
    fn invalidate(&self, _: u64) {}

    fn recalled(&self, page: u64) {
        if page == 0 {
            self.set(true);
        }
    }

    fn lost(&self, _: u64) {}
}

/// The role of a host of the lab; does nothing in a plain run.
#[test]
#[ignore = "a role that tests start"]
fn who_makes_the_object() {
    let Ok(object) = std::env::var(OBJECT) else { return };
    let mut client = client();
    if object.is_empty() {
        println!("made {}", good(client.create(SERVER, 2 * PAGE as u64)));
        return;
    }
    let object: Pointer = object.parse().expect("a pointer");
    let mut counts = [[0; 8]; 2];
    for (page, count) in counts.iter_mut().enumerate() {
        good(client.read(object.plus((page * PAGE) as u64).expect("it is inside"), count));
    }
    println!("counted {:?}", counts.map(u64::from_le_bytes));
}

/// The role of a host of the lab; does nothing in a plain run.
#[test]
#[ignore = "a role that tests start"]
fn who_increments() {
    let (Ok(object), Ok(rounds)) = (std::env::var(OBJECT), std::env::var(ROUNDS)) else { return };
    let object: Pointer = object.parse().expect("a pointer");
    let options = LeasedOptions { deadline: LONG, ..LeasedOptions::new(prefix(), &[object]) };
    let wanted = Arc::<Wanted>::default();
    let leased = good(LeasedPages::open(options, wanted.clone()));
    for round in 0..rounds.parse().expect("a number") {
        let page = round % 2;
        let mut all = Vec::new();
        wanted.set(false);
        good(leased.update(&[page], false, &mut |_, bytes| match bytes {
            Bytes::New(bytes) => all = bytes.to_vec(),
            Bytes::Same => panic!("nothing is here"),
        }));
        if page == 0 && round < HELD {
            wanted.wait();
        }
        let next = u64::from_le_bytes(*all.first_chunk().expect("a page")) + 1;
        all[..8].copy_from_slice(&next.to_le_bytes());
        assert_eq!(good(leased.commit(&[(page, &all)], true)), [0_u64; 0], "round {round}: the lease was held");
    }
}

/// How often the switch did this, in total.
fn counted(lab: &Lab, what: &str) -> u64 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
    let output = command.args(["switch", "status", "--json", "--lab", &lab.name]).output().expect("it can be started");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let ports = found["ports"].as_array().expect("a list");
    ports.iter().map(|port| port["counters"][what].as_u64().expect("a number")).sum()
}

fn both_count(lab: &Lab, rounds: u64) {
    let made = printed(run(lab, "c1", "who_makes_the_object", "", 0));
    let object = made.lines().find_map(|line| line.split_once("made ")).expect("it says which").1.trim().to_owned();
    let clients = ["c1", "c2"].map(|host| run(lab, host, "who_increments", &object, rounds));
    clients.into_iter().for_each(|client| drop(printed(client)));
    let printed = printed(run(lab, "c2", "who_makes_the_object", &object, 0));
    assert!(printed.contains(&format!("counted [{rounds}, {rounds}]")), "{printed}");
    for what in ["granted", "redirected"] {
        assert!(counted(lab, what) > 0, "the switch has {what} nothing");
    }
}

#[test]
fn two_hosts_change_pages_one_after_the_other() {
    let test = "two_hosts_change_pages_one_after_the_other";
    let Some(mut lab) = Lab::up(test, "leases-good", 2, 1, &GRANTS) else { return };
    lab.serve("s1", "16MiB");
    both_count(&lab, 200);
}

#[test]
fn what_is_lost_repeated_or_late_changes_no_page_twice() {
    let test = "what_is_lost_repeated_or_late_changes_no_page_twice";
    let Some(mut lab) = Lab::up(test, "leases-bad", 2, 1, &[&GRANTS[..], &["--faults", FAULTS]].concat()) else {
        return;
    };
    lab.serve("s1", "16MiB");
    both_count(&lab, 40);
}

#[test]
fn what_two_servers_keep_is_changed_once_over_a_bad_network() {
    let test = "what_two_servers_keep_is_changed_once_over_a_bad_network";
    let Some(mut lab) = Lab::up(test, "leases-backups", 3, 2, &GRANTS) else { return };
    // No server is considered dead because reports are lost: a lease would then end.
    lab.serve_with_copies("c3", "16MiB", &["--home-lease", "6s"]);
    assert!(lab.ask("faults", &[FAULTS]).status.success());
    both_count(&lab, 40);
}
