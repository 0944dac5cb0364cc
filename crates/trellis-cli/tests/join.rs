//! Processes that join a running cluster and leave it, driven from outside: `trellis run --join`, `trellis leave`.
//!
//! This executable, started with `CLI_TEST_ROLE`, stands for the programs. No test asserts a duration; a test that
//! hangs is ended by a watchdog and fails.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use support::{Ended, Run, alive, command, signal, start_command, start_nodes, start_role, wait_until};

/// Founders that count until word 1000 is set, and how others join them.
struct Founders {
    run: Run,
    address: String,
    secret_file: String,
}

impl Founders {
    fn start(nodes: usize, joiners_max: usize, options: &[&str]) -> Founders {
        let joiners_max = joiners_max.to_string();
        let options: Vec<&str> = ["--joiners-max", &joiners_max].iter().chain(options).copied().collect();
        let mut run = start_nodes(nodes, "count", &options);
        run.wait_for_output("up ", nodes);
        // The two outputs are read by two threads: that one has come says nothing about the other.
        wait_until("it says how to join", || run.standard_error().contains("others join with: "));
        let said = run.standard_error();
        let line = said.lines().find(|line| line.contains("others join with: ")).expect("it was there");
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |flag: &str| words[words.iter().position(|word| *word == flag).expect("a flag") + 1].to_owned();
        Founders { run, address: after("--join"), secret_file: after("--secret-file") }
    }

    fn join(&self, role: &str, options: &[&str]) -> Run {
        self.join_with(role, &self.secret_file, options)
    }

    fn join_with(&self, role: &str, secret_file: &str, options: &[&str]) -> Run {
        let options: Vec<&str> =
            ["--join", &self.address, "--secret-file", secret_file].iter().chain(options).copied().collect();
        start_role(role, &options)
    }

    /// Ends founders that nobody can join any more.
    fn stop_full(self) -> Ended {
        signal(self.run.pid(), libc::SIGTERM);
        self.run.finish()
    }

    /// Ends the founders' work.
    fn stop(self) -> Ended {
        let stopper = self.join("stop", &[]).finish();
        assert_eq!(stopper.code, Some(0), "{stopper:?}");
        self.run.finish()
    }
}

#[test]
fn a_process_joins_works_leaves_and_what_it_wrote_stays() {
    let founders = Founders::start(3, 3, &[]);
    assert_eq!(fs::metadata(&founders.secret_file).unwrap().permissions().mode() & 0o777, 0o600);
    for number in [3, 4] {
        let visit = founders.join("visit", &[]).finish();
        assert_eq!(visit.code, Some(0), "{visit:?}");
        assert!(visit.stdout.contains(&format!("up {number} ")), "{}", visit.stdout);
        assert!(visit.stdout.lines().all(|line| line.starts_with("[+0] ")), "{}", visit.stdout);
    }
    let secret_file = founders.secret_file.clone();
    let ended = founders.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stdout.matches("counts agree").count(), 3, "{}", ended.stdout);
    assert!(!fs::exists(secret_file).unwrap(), "the secret goes with the run");
}

#[test]
fn twenty_processes_come_and_go_under_load_with_dynamic_owners() {
    let founders = Founders::start(3, 21, &["--set", "coherence=dynamic(forward)", "--set", "home=interleaved"]);
    for _ in 0..10 {
        let both = [founders.join("visit", &[]), founders.join("visit", &[])];
        for visit in both.map(Run::finish) {
            assert_eq!(visit.code, Some(0), "{visit:?}");
        }
    }
    let ended = founders.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stdout.matches("counts agree").count(), 3, "{}", ended.stdout);
}

#[test]
fn several_processes_join_at_once_and_a_full_cluster_says_so() {
    let founders = Founders::start(2, 4, &[]);
    let three = founders.join("visit", &["-n", "3"]).finish();
    assert_eq!(three.code, Some(0), "{three:?}");
    assert!((2..5).all(|number| three.stdout.contains(&format!("up {number} "))), "{}", three.stdout);
    let address = founders.address.clone();
    let secret = fs::read(&founders.secret_file).unwrap();
    let ended = founders.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");

    let founders = Founders::start(2, 1, &[]);
    let mut waits = founders.join("wait", &[]);
    waits.wait_for_output("up 2 ", 1);
    let refused = founders.join("visit", &[]).finish();
    assert_eq!(refused.code, Some(70), "{refused:?}");
    assert!(refused.stderr.contains("all 1 places were given away"), "{}", refused.stderr);
    // The secret of another cluster, and an address where nobody listens any more.
    let folder = trellis_testing::Folder::new();
    let foreign = folder.file("secret");
    fs::write(&foreign, secret).unwrap();
    fs::set_permissions(&foreign, fs::Permissions::from_mode(0o600)).unwrap();
    let visitor = founders.join_with("visit", foreign.to_str().unwrap(), &[]).finish();
    assert_eq!(visitor.code, Some(70), "{visitor:?}");
    assert!(visitor.stderr.contains("another secret"), "{}", visitor.stderr);
    // Both clusters still run: `--all` must not mean the processes of both.
    let more = Founders::start(1, 1, &[]);
    let mut other = more.join("wait", &[]);
    other.wait_for_output("up 1 ", 1);
    let both = command(&["leave", "--all"]).output().unwrap();
    assert_eq!(both.status.code(), Some(2), "{both:?}");
    let said = String::from_utf8(both.stderr).unwrap();
    assert!(said.contains("--every-cluster") && said.contains(&more.address), "{said}");
    let one = command(&["leave", "--all", "--cluster", &more.address]).output().unwrap();
    assert!(one.status.success(), "{one:?}");
    assert_eq!(other.finish().code, Some(0));
    assert_eq!(more.stop_full().code, Some(128 + libc::SIGTERM));
    let nobody = start_role("visit", &["--join", &address, "--secret-file", foreign.to_str().unwrap()]).finish();
    assert!(nobody.stderr.contains("cannot be reached"), "{}", nobody.stderr);
    let asked = command(&["leave", &waits.pid().to_string()]).output().unwrap();
    assert!(asked.status.success(), "{asked:?}");
    assert_eq!(waits.finish().code, Some(0));
    founders.stop_full();
}

#[test]
fn a_joined_process_that_is_killed_ends_the_run_and_is_named() {
    let founders = Founders::start(2, 1, &[]);
    let mut joined = founders.join("wait", &[]);
    joined.wait_for_output("up 2 ", 1);
    signal(joined.node_pid(2), libc::SIGKILL);
    let ended = founders.run.finish();
    assert_eq!(ended.code, Some(70), "{ended:?}");
    // Both founders notice its end. The one whose sentence is printed may have heard of it from the other first.
    let sentences = ["is gone", "was reported as failed by another node"];
    let named = |sentence: &str| ended.stderr.contains(&format!("node 2 (which joined later) {sentence}"));
    assert!(sentences.into_iter().any(named), "{}", ended.stderr);
    let joined = joined.finish();
    assert_eq!(joined.code, Some(128 + libc::SIGKILL));
    assert!(joined.stderr.contains("trellis: node 2 (pid ") && joined.stderr.contains("was killed by SIGKILL"));
}

#[test]
fn those_who_joined_are_listed_and_asked_to_leave_while_the_others_work() {
    let founders = Founders::start(2, 3, &[]);
    let mut joined = founders.join("wait", &["-n", "2"]);
    joined.wait_for_output("up ", 2);
    let launcher = joined.pid();
    let list = || {
        let listed = command(&["leave", "--cluster", &founders.address]).output().unwrap();
        (listed.status.code(), String::from_utf8(listed.stdout).unwrap())
    };
    let (code, table) = list();
    assert_eq!(code, Some(0));
    for number in [2, 3] {
        let pid = joined.node_pid(number).to_string();
        let line = table.lines().find(|line| line.starts_with(&number.to_string())).expect("a line for the node");
        assert!(line.contains(&pid) && line.contains(&launcher.to_string()), "{table}");
    }
    let pid = joined.node_pid(2);
    let asked = command(&["leave", "--node", "2", "--cluster", &founders.address]).output().unwrap();
    assert!(String::from_utf8(asked.stdout).unwrap().starts_with(&format!("node 2 (pid {pid}) of the cluster at ")));
    wait_until("node 2 has left", || !alive(pid));
    assert!(alive(joined.node_pid(3)), "node 3 was not asked");
    assert!(!list().1.lines().any(|line| line.starts_with('2')), "it is no longer listed");
    let asked = command(&["leave", &launcher.to_string()]).output().unwrap();
    assert!(asked.status.success(), "{asked:?}");
    let ended = joined.finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let nobody = start_command(&["leave", "--cluster", &founders.address]).finish();
    assert_eq!(nobody.code, Some(1));
    assert!(nobody.stderr.contains("no process of this user joined"), "{}", nobody.stderr);
    let ended = founders.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn a_cluster_without_places_takes_nobody_in() {
    let folder = trellis_testing::Folder::new();
    let secret = folder.file("secret");
    fs::write(&secret, [9u8; 32]).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let secret = secret.to_str().unwrap();
    let mut founders = start_nodes(2, "address", &["--secret-file", secret]);
    founders.wait_for_output("address ", 2);
    let address = founders.standard_output();
    let address = address.lines().find_map(|line| line.split_once("address ")).expect("it says it").1.to_owned();
    let refused = start_role("visit", &["--join", &address, "--secret-file", secret]).finish();
    assert_eq!(refused.code, Some(70), "{refused:?}");
    assert!(refused.stderr.contains("started without places for others"), "{}", refused.stderr);
    // The founders report both the refused process and an unauthenticated peer that sends garbage.
    let mut visitor = std::net::TcpStream::connect(address.trim()).expect("it listens");
    std::io::Write::write_all(&mut visitor, &[7; 512]).expect("it is taken");
    for said in [
        "was refused, and told of this cluster: it was started without places for others",
        "attempts to connect are refused (1 so far)",
    ] {
        wait_until(said, || founders.standard_error().contains(said));
    }
    signal(founders.pid(), libc::SIGTERM);
    founders.finish();
    let wrong = start_command(&["run", "--join", "nowhere", "true"]).finish();
    assert_eq!(wrong.code, Some(78), "{wrong:?}");
}

/// Not a test of its own: what runs inside the processes that the tests above start.
#[test]
#[ignore = "a role that tests start"]
fn acts_as_a_node_when_started_as_one() {
    if let Ok(role) = std::env::var("CLI_TEST_ROLE") {
        support::node::act(&role);
    }
}
