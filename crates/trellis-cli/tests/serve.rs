//! `trellis serve` in a lab of this machine, through a switch, over a good network and a bad one.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use trellis::remote::{Client, ClientOptions, Host, HostPrefix, RemoteError};

/// Set where this test program is a client in a host of the lab; it says how many rounds.
const ROUNDS: &str = "TRELLIS_TEST_ROUNDS";
/// The number of the server `s1` in a lab.
const SERVER: Host = Host(0x1001);

struct Lab {
    name: String,
    server: Option<Child>,
}

impl Lab {
    /// None where nobody may make one; the reason is said.
    fn up(test: &str, name: &str, more: &[&str]) -> Option<Lab> {
        let lab = Lab { name: format!("serve-{name}-{}", std::process::id()), server: None };
        let output = lab.ask("up", &[&["--clients", "2", "--servers", "1", "--switch", "user"], more].concat());
        let told = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(71) && told.contains("user namespace") {
            println!("SKIPPED {test}: {told}");
            return None;
        }
        assert!(output.status.success(), "{told}");
        Some(lab)
    }

    fn command(&self, task: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
        command.args(["lab", task, "--name", &self.name]).args(arguments).stdin(Stdio::null());
        command
    }

    fn ask(&self, task: &str, arguments: &[&str]) -> Output {
        self.command(task, arguments).output().expect("the command can be started")
    }

    /// Returns when the server says that clients may come.
    fn serve(&mut self, more: &[&str]) {
        let arguments = [&["s1", "--", env!("CARGO_BIN_EXE_trellis"), "serve", "--memory", "16MiB"], more].concat();
        let mut child = self.command("run", &arguments).stdout(Stdio::piped()).spawn().expect("it can be started");
        let mut line = String::new();
        let output = child.stdout.take().expect("it is a pipe");
        BufReader::new(output).read_line(&mut line).expect("it is text");
        assert!(line.starts_with("serving 16777216 bytes as fd") && line.ends_with("/48 at port 5000\n"), "{line}");
        self.server = Some(child);
    }

    /// Starts this test program as a client.
    fn client(&self, host: &str, rounds: u32) -> Child {
        let own = std::env::current_exe().expect("it has a path");
        let mut command = self.command("run", &[host, "--"]);
        command.arg(own).args(["--exact", "a_client", "--nocapture"]).env(ROUNDS, rounds.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let output = self.ask("down", &[]);
        if let Some(mut server) = self.server.take() {
            server.wait().expect("it ends with the lab");
        }
        assert!(output.status.success() || std::thread::panicking(), "{output:?}");
    }
}

fn good<T>(result: Result<T, RemoteError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// What a host of the lab does; nothing in a plain run.
#[test]
fn a_client() {
    let Ok(rounds) = std::env::var(ROUNDS) else { return };
    let rounds: u32 = rounds.parse().expect("a number");
    let prefix: HostPrefix = std::env::var("TRELLIS_PREFIX").expect("the lab says it").parse().expect("a prefix");
    let options = ClientOptions { deadline: Duration::from_secs(60), ..ClientOptions::new(prefix) };
    let mut client = good(Client::open(options));
    let counter = good(client.create(SERVER, 8));
    for round in 0..rounds {
        // Sizes below, at and above what goes into a datagram, and into a page.
        let bytes: Vec<u8> = (0..1 + round * 977 % 20_000).map(|at| (at + round) as u8).collect();
        let object = good(client.create_with(SERVER, &bytes));
        let mut read = vec![0; bytes.len()];
        good(client.read(object, &mut read));
        assert!(read == bytes, "round {round}");
        assert_eq!(good(client.inquire(object)), (object, bytes.len() as u64));
        good(client.delete(object));
        assert!(matches!(client.read(object, &mut read), Err(RemoteError::Refused { .. })), "round {round}");
        assert_eq!(good(client.fetch_add(counter, 1)), u64::from(round), "each addition is done once");
    }
    good(client.delete(counter));
    println!("{} kept {} of its server's memory", prefix.host, good(client.hello(SERVER)).used_bytes);
}

fn both_clients_are_right(test: &str, name: &str, more: &[&str], rounds: u32) {
    let Some(mut lab) = Lab::up(test, name, more) else { return };
    lab.serve(&[]);
    let clients = ["c1", "c2"].map(|host| lab.client(host, rounds));
    for (client, host) in clients.into_iter().zip(["host 1", "host 2"]) {
        let output = client.wait_with_output().expect("it ends");
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
        assert!(told.contains(&format!("{host} kept 0 of its server's memory")), "{told}");
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
        (["--memory", "much", "--prefix", "fd12:3456:7::/48"], 2, "is no size"),
        (["--memory", "8KiB", "--prefix", "2001:db8::/48"], 2, "and those of remote memory with fd"),
        (["--memory", "8KiB", "--prefix", "fd12:3456::/48"], 2, "a machine has a number from 1 to 65534"),
        (["--memory", "8KiB", "--prefix", "fd12:3456:7::/64"], 2, "fd12:3456:7::/48"),
    ] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_trellis")).arg("serve").args(arguments).output().expect("it runs");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && told.contains(sentence), "{arguments:?}: {told}");
    }
}
