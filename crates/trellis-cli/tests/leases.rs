//! Pages under leases in a lab of this machine, through a switch that redirects requests to owners, over a good network and a
//! bad one.

#[path = "support/lab.rs"]
mod lab;

use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lab::Lab;
use trellis::remote::leased::{Bytes, Events, Leased, LeasedOptions};
use trellis::remote::{Client, ClientOptions, Host, HostPrefix, Pointer, RemoteError};

/// Set where this test program is a client in a host of the lab: the object, and how many rounds.
const OBJECT: &str = "TRELLIS_TEST_OBJECT";
const ROUNDS: &str = "TRELLIS_TEST_ROUNDS";
/// The number of the server `s1` in a lab.
const SERVER: Host = Host(0x1001);
const PAGE: usize = 4096;

/// Starts a test of this program in a host.
fn run(lab: &Lab, host: &str, test: &str, object: &str, rounds: u64) -> Child {
    let own = std::env::current_exe().expect("it has a path");
    let mut command = lab.command("run", &[host, "--"]);
    command.arg(own).args(["--exact", test, "--nocapture"]).env(ROUNDS, rounds.to_string()).env(OBJECT, object);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started")
}

/// What a process said, when it ended well.
fn told(child: Child) -> String {
    let output = child.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    told
}

fn good<T>(result: Result<T, RemoteError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn prefix() -> HostPrefix {
    std::env::var("TRELLIS_PREFIX").expect("the lab says it").parse().expect("a prefix")
}

fn client() -> Client {
    good(Client::open(ClientOptions { deadline: Duration::from_secs(60), ..ClientOptions::new(prefix()) }))
}

/// Nothing is kept between calls here.
struct Nothing;

impl Events for Nothing {
    fn invalidate(&self, _: u64) {}

    fn recalled(&self, _: u64) {}

    fn lost(&self, _: u64) {}
}

/// What a host of the lab does; nothing in a plain run.
#[test]
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

/// What a host of the lab does; nothing in a plain run.
#[test]
fn who_increments() {
    let (Ok(object), Ok(rounds)) = (std::env::var(OBJECT), std::env::var(ROUNDS)) else { return };
    let object: Pointer = object.parse().expect("a pointer");
    let options = LeasedOptions { deadline: Duration::from_secs(60), ..LeasedOptions::new(prefix(), object) };
    let leased = good(Leased::open(options, Arc::new(Nothing)));
    for round in 0..rounds.parse().expect("a number") {
        let page = round % 2;
        let mut all = Vec::new();
        good(leased.update(&[page], false, &mut |_, bytes| match bytes {
            Bytes::New(bytes) => all = bytes.to_vec(),
            Bytes::Same => panic!("nothing is here"),
        }));
        let next = u64::from_le_bytes(*all.first_chunk().expect("a page")) + 1;
        all[..8].copy_from_slice(&next.to_le_bytes());
        assert_eq!(good(leased.commit(&[(page, &all)], true)), [0_u64; 0], "round {round}: the lease was held");
    }
}

fn both_count(test: &str, name: &str, more: &[&str], rounds: u64) {
    let Some(mut lab) = Lab::up(test, &format!("leases-{name}"), 2, 1, more) else { return };
    lab.serve("s1", "16MiB");
    let made = told(run(&lab, "c1", "who_makes_the_object", "", 0));
    let object = made.lines().find_map(|line| line.split_once("made ")).expect("it says which").1.trim().to_owned();
    let clients = ["c1", "c2"].map(|host| run(&lab, host, "who_increments", &object, rounds));
    clients.into_iter().for_each(|client| drop(told(client)));
    let counted = told(run(&lab, "c2", "who_makes_the_object", &object, 0));
    assert!(counted.contains(&format!("counted [{rounds}, {rounds}]")), "{counted}");
}

#[test]
fn two_hosts_change_pages_one_after_the_other() {
    both_count("two_hosts_change_pages_one_after_the_other", "good", &[], 200);
}

#[test]
fn what_is_lost_repeated_or_late_changes_no_page_twice() {
    let faults = ["--faults", "drop=10%,duplicate=5%,reorder=5%,delay=200us,seed=7"];
    both_count("what_is_lost_repeated_or_late_changes_no_page_twice", "bad", &faults, 40);
}
