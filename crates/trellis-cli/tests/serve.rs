//! `trellis serve` in a lab of this machine, through a switch, over a good network and a bad one.

#[path = "support/lab.rs"]
mod lab;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lab::Lab;
use trellis::remote::{Client, ClientOptions, Host, HostPrefix, RemoteError};
use trellis_fabric_protocol::wire::datagram::Status;

/// Set where this test program is a client in a host of the lab: the number of rounds.
const ROUNDS: &str = "TRELLIS_TEST_ROUNDS";
/// The number of the server `s1` in a lab.
const SERVER: Host = Host(0x1001);
/// The quota of each host, and its notation.
const QUOTA_BYTES: u64 = 1 << 20;
const QUOTA: &str = "1MiB";

/// Starts this test program as a client.
fn client(lab: &Lab, host: &str, rounds: u32) -> Child {
    let own = std::env::current_exe().expect("it has a path");
    let mut command = lab.command("run", &[host, "--"]);
    command.arg(own).args(["--ignored", "--exact", "a_client", "--nocapture"]).env(ROUNDS, rounds.to_string());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started")
}

fn good<T>(result: Result<T, RemoteError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// The role of a host of the lab; does nothing in a plain run.
#[test]
#[ignore = "a role that tests start"]
fn a_client() {
    let Ok(rounds) = std::env::var(ROUNDS) else { return };
    let rounds: u32 = rounds.parse().expect("a number");
    let prefix: HostPrefix = std::env::var("TRELLIS_PREFIX").expect("the lab says it").parse().expect("a prefix");
    let options = ClientOptions { deadline: Duration::from_secs(60), ..ClientOptions::new(prefix) };
    let mut client = good(Client::open(options));
    // Two words, and for each round another word of its page.
    let counter = good(client.create(SERVER, 16 + 8 * u64::from(rounds)));
    let word = |number: u32| counter.plus(8 * u64::from(number)).expect("it is inside");
    for round in 0..rounds {
        // Sizes below, at and above the size of a datagram, and of a page.
        let bytes: Vec<u8> = (0..1 + round * 977 % 20_000).map(|at| (at + round) as u8).collect();
        let object = good(client.create_with(SERVER, &bytes));
        let mut read = vec![0; bytes.len()];
        good(client.read(object, &mut read));
        assert!(read == bytes, "round {round}");
        assert_eq!(good(client.inquire(object)), (object, bytes.len() as u64));
        good(client.delete(object));
        assert!(matches!(client.read(object, &mut read), Err(RemoteError::Refused { .. })), "round {round}");
        assert_eq!(good(client.fetch_add(counter, 1)), u64::from(round), "each addition is done once");
        // A repeated exchange would find its own new value, and return it.
        let (swapped, at) = (word(1), u64::from(round));
        assert_eq!(good(client.compare_swap(swapped, at, at + 1)), at, "each exchange is done once");
        assert_eq!(good(client.compare_swap(swapped, at, 0)), at + 1, "and none that does not find what it expects");
        // A late exchange must not restore the old value.
        let turned = word(2 + round);
        assert_eq!(good(client.compare_swap(turned, 0, 1)), 0);
        assert_eq!(good(client.compare_swap(turned, 1, 0)), 1);
        // All of the quota but the page of these words is left, whatever the other host uses.
        let refused = client.create(SERVER, QUOTA_BYTES);
        assert!(matches!(refused, Err(RemoteError::Refused { status: Status::Quota, .. })), "{refused:?}");
        good(client.create(SERVER, QUOTA_BYTES - 4096).and_then(|most| client.delete(most)));
    }
    for round in 0..rounds {
        assert_eq!(good(client.fetch_add(word(2 + round), 0)), 0, "round {round}: what came late was done again");
    }
    good(client.delete(counter));
    let welcome = good(client.hello(SERVER));
    assert_eq!(welcome.quota_bytes, QUOTA_BYTES);
    println!("{} kept {} of its server's memory", prefix.host, welcome.used_bytes);
}

fn both_clients_are_right(test: &str, name: &str, more: &[&str], rounds: u32) {
    let Some(mut lab) = Lab::up(test, &format!("serve-{name}"), 2, 1, more) else { return };
    let line = lab.start("s1", &["serve", "--memory", "16MiB", "--quota", QUOTA], "serving ");
    assert!(line.starts_with("serving 16777216 bytes as fd"), "{line}");
    let clients = ["c1", "c2"].map(|host| client(&lab, host, rounds));
    for (client, host) in clients.into_iter().zip(["host 0x1", "host 0x2"]) {
        let output = client.wait_with_output().expect("it ends");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
        assert!(printed.contains(&format!("{host} kept 0 of its server's memory")), "{printed}");
    }
}

#[test]
fn memory_is_served_through_a_switch() {
    both_clients_are_right("memory_is_served_through_a_switch", "good", &[], 60);
}

#[test]
fn what_is_lost_repeated_or_late_is_done_once() {
    let faults = ["--faults", "drop=10%,duplicate=5%,reorder=5%,delay=200us,seed=7"];
    both_clients_are_right("what_is_lost_repeated_or_late_is_done_once", "bad", &faults, 30);
}

#[test]
fn a_packet_of_1500_bytes_is_enough() {
    both_clients_are_right("a_packet_of_1500_bytes_is_enough", "small", &["--mtu", "1500"], 20);
}

#[test]
fn what_is_no_memory_or_no_prefix_is_one_sentence() {
    for (arguments, code, sentence) in [
        (["--memory", "5000", "--prefix", "fd12:3456:7::/48"], 78, "the next one is 8192"),
        (["--memory", "much", "--prefix", "fd12:3456:7::/48"], 2, "is not a size"),
        (["--memory", "8KiB", "--prefix", "2001:db8::/48"], 2, "and those of remote memory with fd"),
        (["--memory", "8KiB", "--prefix", "fd12:3456::/48"], 2, "a machine has a number from 0x1 to 0xfffe"),
        (["--memory", "8KiB", "--prefix", "fd12:3456:7::/64"], 2, "fd12:3456:7::/48"),
    ] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_trellis")).arg("serve").args(arguments).output().expect("it runs");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && printed.contains(sentence), "{arguments:?}: {printed}");
    }
}

#[test]
fn what_does_not_fit_a_controller_is_one_sentence() {
    for (arguments, code, sentence) in [
        (&["--controller", "7"][..], 78, "cannot be the controller of the server at host 0x7"),
        (&["--controller", "0"], 2, "`0`: the address names host 0x0, and a machine has a number from 0x1 to 0xfffe"),
        (&["--controller", "200"], 2, "write 0x1001 or fd12:3456:1001::/48"),
        (&["--controller", "0xc8", "--in-kernel", "on"], 78, "leave out --in-kernel or --controller"),
        (&["--device", "lo", "--in-kernel", "off"], 78, "leave out --device or --in-kernel off"),
        (&["--port", "0"], 2, "0 is not in 1..=65535"),
        (&["--controller", "0xc8", "--home-lease", "1ms"], 78, "give 10 ms or more"),
        (&["--controller", "0xc8", "--home-lease", "soon"], 2, "write a number with ms, s, min or h"),
        (&["--backup-memory", "1GiB"], 2, "--controller"),
        (&["--home-lease", "1s"], 2, "--controller"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
        command.args(["serve", "--memory", "8KiB", "--prefix", "fd12:3456:7::/48"]).args(arguments);
        let output = command.output().expect("it runs");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && printed.contains(sentence), "{arguments:?}: {printed}");
    }
}
