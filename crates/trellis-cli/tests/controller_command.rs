//! The output of `trellis controller`: sentences that name the next step, a status for programs, and one leader of
//! several. Ranges and servers are in `controller.rs`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use trellis_testing::Folder;
use trellis_testing::redis_server::RedisServer;

const PREFIX: &str = "fd12:3456:c8::/48";

fn trellis(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
    command.arg("controller").args(arguments).stdin(Stdio::null());
    command.env_remove("TRELLIS_PREFIX").env_remove("TRELLIS_SWITCH").env_remove("TRELLIS_CONTROLLER");
    command
}

fn output(arguments: &[&str]) -> Output {
    trellis(arguments).output().expect("it can be started")
}

/// The sentence and the exit code of a refused command.
fn refused(arguments: &[&str]) -> (String, Option<i32>) {
    let output = output(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code())
}

/// A controller that ends with its value.
struct Running {
    child: Child,
    said: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Running {
    fn start(records: &str, control: &Path, more: &[&str]) -> Running {
        let control = control.display().to_string();
        let arguments = ["run", "--records", records, "--control", &control, "--port", "0", "--leader-term", "2s"];
        let mut child =
            trellis(&[&arguments[..], more].concat()).stdout(Stdio::piped()).spawn().expect("it can be started");
        let mut said = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        let first = said.next().expect("it says something").expect("text");
        assert!(first.starts_with("controller fd12:3456:"), "{first}");
        Running { child, said }
    }

    /// Returns when it prints this.
    fn says(&mut self, part: &str) {
        let found = self.said.by_ref().map_while(Result::ok).any(|line| line.contains(part));
        assert!(found, "it ended before it said {part}");
    }

    fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn status(control: &Path) -> Value {
    let output = output(&["status", "--json", "--control", &control.display().to_string()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn what_cannot_be_is_said_with_what_can() {
    let (sentence, code) = refused(&["status", "--control", "/nowhere/at/all"]);
    assert_eq!(code, Some(1));
    assert!(sentence.contains("start it with `trellis controller run`"), "{sentence}");
    let run = |more: &[&str]| refused(&[&["run", "--prefix", PREFIX], more].concat());
    let (sentence, code) = run(&["--records", "nosql://here"]);
    assert!(code == Some(78) && sentence.contains("accepted: embedded:"), "{sentence}");
    let (sentence, code) = run(&["--records", "embedded:", "--switch", "/nowhere/at/all"]);
    assert!(code == Some(1) && sentence.contains("start it with `trellis switch run`"), "{sentence}");
    let (sentence, code) = run(&["--records", "embedded:", "--home-lease", "1ms"]);
    assert!(code == Some(78) && sentence.contains("give 10 ms or more"), "{sentence}");
    let (sentence, code) = run(&["--records", "embedded:", "--leader-term", "1ms"]);
    assert!(code == Some(78) && sentence.contains("give 100 ms or more"), "{sentence}");
    let (sentence, code) =
        refused(&["run", "--prefix", "fd12:3456:f000::/48", "--records", "embedded:", "--port", "0"]);
    assert!(code == Some(78) && sentence.contains("numbers from 0xf000 on name parts of ranges"), "{sentence}");
    let near = ["--records", "embedded:", "--rebalance", "--locality", "1,2", "--locality"];
    let (sentence, code) = run(&[&near[..], &["3,2"]].concat());
    assert!(code == Some(78) && sentence.contains("host 0x2 is near the hosts of two groups"), "{sentence}");
    let (sentence, code) = run(&[&near[..], &["3,0x3"]].concat());
    assert!(code == Some(78) && sentence.contains("host 0x3 is named twice in a group"), "{sentence}");
    let (sentence, code) = run(&[&near[..], &["3,0xf000"]].concat());
    assert!(code == Some(2) && sentence.contains("name parts of ranges"), "{sentence}");
    let (sentence, code) = run(&["--records", "embedded:", "--locality", "1,2"]);
    assert!(code == Some(2) && sentence.contains("--rebalance"), "{sentence}");
    for pages in ["", "-", "7-", "9-3", "0x10", "1-2-3", "0-18446744073709551615"] {
        let (sentence, code) = refused(&["move", "7", "8", &format!("--pages={pages}")]);
        assert!(code == Some(2) && sentence.contains("give the first and the last, as 64-127"), "{sentence}");
    }
    let (sentence, code) = refused(&["move", "7", "0xf000"]);
    assert!(code == Some(2) && sentence.contains("give the number of a server"), "{sentence}");
    let (sentence, code) = refused(&["move", "seven", "8"]);
    assert!(code == Some(2) && sentence.contains("write 0x1001"), "{sentence}");
    let (sentence, code) = refused(&["run", "--prefix", "fd12:3456:c8::/64", "--records", "embedded:"]);
    assert!(code == Some(2) && sentence.contains("48"), "{sentence}");
}

#[test]
fn a_controller_without_servers_answers() {
    let folder = Folder::new();
    let control = folder.file("control");
    let records = format!("embedded-durable:{}", folder.argument("records"));
    let more = ["--prefix", PREFIX, "--backups", "2"];
    let mut running = Running::start(&records, &control, &more);
    running.says("this controller leads from now on; there are records of 0 ranges");
    let found = status(&control);
    assert_eq!((&found["leads"], &found["leader"], &found["backups"]), (&true.into(), &200.into(), &2.into()));
    assert_eq!(found["ranges"].as_array().map(Vec::len), Some(0));
    let shown = control.display().to_string();
    let ask = |arguments: &[&str]| refused(&[arguments, &["--control", &shown]].concat());
    let pages = ["move", "7", "8", "--pages", "0-63", "--wait"];
    for arguments in
        [&["move", "7", "8"][..], &pages, &["backups", "7", "--count", "2"], &["reset", "7"], &["drain", "7"]]
    {
        let (sentence, code) = ask(arguments);
        assert!(
            code == Some(1) && sentence.contains("`trellis controller status` lists")
                || sentence.contains("nothing is heard of it"),
            "{arguments:?}: {sentence}"
        );
    }
    // The number alone would mean another host here.
    for arguments in [&["move", "7", "fdaa:1:8::/48"][..], &["drain", "fdaa:1:7::/48", "--cancel"]] {
        let (sentence, code) = ask(arguments);
        assert!(code == Some(1) && sentence.contains("is of another cluster"), "{arguments:?}: {sentence}");
    }
    let (sentence, code) =
        refused(&["run", "--prefix", PREFIX, "--records", "embedded:", "--rebalance", "--locality", "fdaa:1:7::/48,8"]);
    assert!(code == Some(78) && sentence.contains("--locality: fdaa:1:7::/48 is of another cluster"), "{sentence}");
    let printed = output(&["events", "--control", &shown]);
    assert!(String::from_utf8_lossy(&printed.stdout).contains("this controller leads from now on"));
    let printed = output(&["rebalance", "--dry-run", "--control", &shown]);
    assert!(String::from_utf8_lossy(&printed.stdout).starts_with("nothing to move"));
    // Another controller at the same socket, and one with the same records.
    let (sentence, code) =
        refused(&["run", "--prefix", PREFIX, "--records", "embedded:", "--port", "0", "--control", &shown]);
    assert!(code == Some(71) && sentence.contains("a controller runs there"), "{sentence}");
    let other = folder.argument("other");
    let (sentence, _) =
        refused(&["run", "--prefix", PREFIX, "--records", &records, "--port", "0", "--control", &other]);
    assert!(sentence.contains("another process has it open"), "{sentence}");
    // Its socket is taken over, and there is no wait: the file had one owner.
    running.kill();
    assert!(control.exists());
    Running::start(&records, &control, &more).says("this controller leads from now on");
}

#[test]
fn the_only_controller_of_a_machine_is_found() {
    let folder = Folder::new();
    let shown = |arguments: &[&str]| {
        let mut command = trellis(arguments);
        command.env("XDG_RUNTIME_DIR", folder.path()).output().expect("it can be started")
    };
    let control = folder.file("trellis-controller-123456-00c8.sock");
    let _first = Running::start("embedded:", &control, &["--prefix", PREFIX]);
    for arguments in [&["status"][..], &["status", "--controller", "0xc8", "--prefix", "fd12:3456:7::/48"]] {
        let output = shown(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let other = folder.file("trellis-controller-654321-0001.sock");
    let _second = Running::start("embedded:", &other, &["--prefix", "fd12:3456:1::/48"]);
    let output = shown(&["status"]);
    let sentence = String::from_utf8_lossy(&output.stderr);
    assert!(sentence.contains("several controllers run") && sentence.contains("654321-0001.sock"), "{sentence}");
    assert!(shown(&["status", "--prefix", PREFIX]).status.success(), "one of them is of this cluster");
}

#[test]
fn one_of_two_leads_and_the_other_follows() {
    let folder = Folder::new();
    let Some(redis) = RedisServer::start("one_of_two_leads_and_the_other_follows", &[]) else { return };
    let records = redis.socket_url();
    let sockets = ["one", "other"].map(|name| folder.file(name));
    let mut first = Running::start(&records, &sockets[0], &["--prefix", PREFIX]);
    first.says("this controller leads from now on");
    let mut second = Running::start(&records, &sockets[1], &["--prefix", "fd12:3456:c9::/48"]);
    second.says("controller fd12:3456:c8::/48 leads; this one waits until it is gone");
    let found = status(&sockets[1]);
    assert_eq!((&found["leads"], &found["leader"]), (&false.into(), &200.into()));
    let shown = sockets[1].display().to_string();
    let (sentence, code) = refused(&["move", "7", "8", "--control", &shown]);
    assert!(code == Some(1) && sentence.contains("does not lead; ask the one of fd12:3456:c8::/48"), "{sentence}");
    first.kill();
    second.says("this controller leads from now on");
    assert_eq!(status(&sockets[1])["leads"], true);
    // Without its store no controller leads, and that is reported.
    drop(redis);
    second.says("this controller says nothing any more");
    let found = status(&sockets[1]);
    // It was the last leader that it knows, and sends no operator to itself.
    assert_eq!((&found["leads"], found["leader"].is_null()), (&false.into(), true), "{found}");
    let (sentence, _) = refused(&["move", "7", "8", "--control", &shown]);
    assert!(!sentence.contains("ask the one of"), "{sentence}");
}

/// Clients would rely on it, and lose what they wrote when the memory is needed.
#[test]
fn a_server_promises_no_memory_that_the_machine_lacks() {
    for more in
        [&["--memory", "1000TiB"][..], &["--memory", "1MiB", "--backup-memory", "1000TiB", "--controller", "0xc9"]]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
        command.args(["serve", "--prefix", PREFIX]).args(more).stdin(Stdio::null());
        let output = command.output().expect("it can be started");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{said}");
        assert!(said.contains("cannot be promised: ") && said.contains("give less"), "{said}");
    }
}
