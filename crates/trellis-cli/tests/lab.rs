//! `trellis lab`, driven from outside, in a user namespace and, if the tests run as root, without one.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use trellis_testing::{Folder, Need, skip};

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A lab that ends with this value, however the test ends.
struct Lab {
    name: String,
}

impl Lab {
    fn up(name: &str, more: &[&str]) -> Lab {
        Lab::up_in(name, more, Path::new("."))
    }

    /// The folder is that in which the lab is started.
    fn up_in(name: &str, more: &[&str], folder: &Path) -> Lab {
        let lab = Lab { name: format!("{name}-{}", std::process::id()) };
        let output = lab.command("up", more).current_dir(folder).output().expect("the command can be started");
        assert!(output.status.success(), "{}", printed(&output));
        lab
    }

    fn command(&self, task: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
        command.args(["lab", task, "--lab", &self.name]).args(arguments).stdin(Stdio::null());
        command
    }

    fn ask(&self, task: &str, arguments: &[&str]) -> Output {
        self.command(task, arguments).output().expect("the command can be started")
    }

    fn status(&self) -> Value {
        let output = self.ask("status", &["--json"]);
        assert!(output.status.success(), "{}", printed(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    fn host(&self, name: &str) -> Value {
        let status = self.status();
        let hosts = status["hosts"].as_array().expect("hosts");
        hosts.iter().find(|host| host["name"] == name).expect("the host is there").clone()
    }

    fn count(&self, host: &str, counter: &str) -> u64 {
        self.host(host)["counters"][counter].as_u64().expect("a number")
    }

    /// Sends a datagram from one host to another's address, with a tool that every machine has.
    fn send(&self, from: &str, to: &str) {
        let address = self.host(to)["address"].as_str().expect("an address").to_owned();
        let script = format!("echo hello > /dev/udp/{address}/5000");
        let output = self.ask("run", &[from, "--", "bash", "-c", &script]);
        assert!(output.status.success(), "{}", printed(&output));
    }

    /// Starts something that does not end by itself, and waits until it is in the host.
    fn start(&self, host: &str) -> Child {
        let before = self.processes(host);
        let child = self.command("run", &[host, "--", "sleep", "1000"]).spawn().expect("started");
        wait_until("it runs", || self.processes(host) == before + 1);
        child
    }

    fn processes(&self, host: &str) -> usize {
        self.host(host)["processes"].as_array().expect("processes").len()
    }

    fn is_listed(&self) -> bool {
        let output = Command::new(env!("CARGO_BIN_EXE_trellis")).args(["lab", "ls"]).output().expect("started");
        String::from_utf8_lossy(&output.stdout).lines().any(|line| line == self.name)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // The test may already have ended it.
        let _ = self.ask("down", &[]);
    }
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::yield_now();
    }
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().expect("id");
    output.stdout == b"0\n"
}

/// The ways in which labs can be made here; prints a message if there is none.
fn ways(test: &str) -> Vec<&'static [&'static str]> {
    let mut ways: Vec<&[&str]> = Vec::new();
    let possible =
        Command::new("unshare").args(["--user", "--map-root-user", "--net", "--pid", "--fork", "true"]).status();
    if possible.is_ok_and(|status| status.success()) {
        ways.push(&["--rootless", "--switch", "user"]);
        ways.push(&["--rootless", "--switch", "nft"]);
    }
    if is_root() {
        ways.push(&["--switch", "user"]);
        #[cfg(feature = "bpf")]
        ways.push(&["--switch", "bpf"]);
    }
    if ways.is_empty() {
        skip(test, Need::Namespaces, "this machine lets this user make no namespaces");
    }
    ways
}

#[test]
fn a_lab_carries_packets_and_is_divided_and_healed() {
    for way in ways("a_lab_carries_packets_and_is_divided_and_healed") {
        println!("{way:?}");
        let lab = Lab::up("carries", way);
        let status = lab.status();
        assert_eq!(status["switch"], *way.last().expect("a switch"));
        assert_eq!(status["rootless"], way[0] == "--rootless");
        assert_eq!(status["hosts"].as_array().map(Vec::len), Some(6));
        lab.send("c1", "s1");
        wait_until("it arrives", || lab.count("s1", "packets_out") == 1);
        assert_eq!(lab.count("c1", "delivered"), 1);
        assert!(lab.ask("partition", &["c1,c2", "s1"]).status.success());
        assert_eq!((lab.host("c2")["side"].as_u64(), lab.host("s1")["side"].as_u64()), (Some(1), Some(2)));
        lab.send("c1", "s1");
        wait_until("it is stopped", || lab.count("c1", "partitioned") == 1);
        assert!(lab.ask("partition", &["--heal"]).status.success());
        lab.send("c2", "s1");
        wait_until("it arrives again", || lab.count("s1", "packets_out") == 2);
        assert!(lab.ask("faults", &["drop=100%"]).status.success());
        lab.send("c1", "s2");
        wait_until("it is lost", || lab.count("c1", "dropped") == 1);
        let text = printed(&lab.ask("status", &[]));
        assert!(text.contains("faults: drop=100%") && text.contains("\nc1 "), "{text}");
    }
}

#[test]
fn a_lab_runs_commands_and_ends_with_their_status() {
    for way in ways("a_lab_runs_commands_and_ends_with_their_status") {
        println!("{way:?}");
        let lab = Lab::up("runs", way);
        let code = |arguments: &[&str]| lab.ask("run", arguments).status.code();
        assert_eq!(code(&["c1", "--", "sh", "-c", "exit 7"]), Some(7));
        assert_eq!(code(&["c1", "--", "sh", "-c", "kill -TERM $$"]), Some(128 + 15));
        assert_eq!(code(&["c1", "--", "no-such-command-anywhere"]), Some(127));
        assert_eq!(code(&["x1", "--", "true"]), Some(1));
        let output = lab.ask("run", &["s2", "--", "sh", "-c", "echo $TRELLIS_LAB $TRELLIS_LAB_HOST $TRELLIS_PREFIX"]);
        let prefix = lab.host("s2")["prefix"].as_str().expect("a prefix").to_owned();
        assert_eq!(printed(&output), format!("{} s2 {prefix}\n", lab.name));
        let mut running = [lab.start("s1"), lab.start("s1"), lab.start("s2")];
        let killed = printed(&lab.ask("kill", &["s1"]));
        assert_eq!(killed, "s1: 2 processes\n");
        let ended: Vec<_> = running[..2].iter_mut().map(|child| child.wait().expect("ended").code()).collect();
        assert_eq!(ended, [Some(128 + 9); 2]);
        assert_eq!((lab.processes("s1"), lab.processes("s2")), (0, 1));
        // A signal reaches the command, and `lab run` ends after it.
        let script = "trap 'sleep 0.3; echo cleaned up; exit 3' TERM; echo ready; while :; do sleep 0.01; done";
        let mut asked = lab.command("run", &["s2", "--", "sh", "-c", script]);
        let mut asked = asked.stdout(Stdio::piped()).spawn().expect("it can be started");
        let mut lines = BufReader::new(asked.stdout.take().expect("a pipe")).lines();
        assert_eq!(lines.next().expect("a line").expect("text"), "ready");
        let kill = Command::new("kill").args(["-TERM", &asked.id().to_string()]).status();
        assert!(kill.expect("kill").success());
        assert_eq!(asked.wait().expect("ended").code(), Some(3));
        assert_eq!(lines.next().expect("a line").expect("text"), "cleaned up");
        // When `lab run` is killed, its command ends with it.
        running[2].kill().expect("signalled");
        running[2].wait().expect("ended");
        wait_until("it has gone along", || lab.processes("s2") == 0);
    }
}

#[test]
fn a_host_has_its_own_name_mounts_and_temporary_files() {
    for way in ways("a_host_has_its_own_name_mounts_and_temporary_files") {
        println!("{way:?}");
        let lab = Lab::up("own", way);
        let run = |host: &str, script: &str| {
            let output = lab.command("run", &[host, "--", "sh", "-c", script]).current_dir("/").output();
            printed(&output.expect("it can be started"))
        };
        assert_eq!(run("c2", "uname -n; cat /etc/hostname"), "c2\nc2\n");
        let address = lab.host("s1")["address"].as_str().expect("an address").to_owned();
        let found = run("c1", "getent hosts s1");
        assert_eq!(found.split_whitespace().collect::<Vec<_>>(), [&*address, "s1"]);
        // Another command of the host sees what one mounts, and nobody else.
        assert_eq!(
            run("c1", "mount -t tmpfs none /mnt && touch /mnt/mounted-in-a-lab && ls /mnt"),
            "mounted-in-a-lab\n"
        );
        assert_eq!(run("c1", "ls /mnt"), "mounted-in-a-lab\n");
        assert!(!run("c2", "ls /mnt").contains("mounted-in-a-lab") && !fs::exists("/mnt/mounted-in-a-lab").expect("/"));
        assert_eq!(run("c1", "touch /tmp/mine-alone; cd /tmp; ls -A mine*"), "mine-alone\n");
        assert!(!run("c2", "ls -A /tmp").contains("mine-alone"));
        assert_eq!(run("c1", "ls -A /dev/shm; touch /dev/shm/mine; ls -A /dev/shm"), "mine\n");
        assert_eq!(run("c2", "ls -A /dev/shm"), "");
        // A user that one host adds is one of no other.
        assert_eq!(run("c1", "echo someone:x:4242:4242::/:/bin/sh >> /etc/passwd; id -un 4242"), "someone\n");
        assert!(run("c2", "id -un 4242").contains("no such user"));
        assert!(!fs::read_to_string("/etc/passwd").expect("every machine has it").contains("someone"));
        let folder = Folder::of_this_machine();
        let elsewhere = lab.command("run", &["c1", "--", "true"]).current_dir(folder.path()).output();
        let elsewhere = elsewhere.expect("it can be started");
        let place = folder.path().display().to_string();
        assert!(elsewhere.status.code() == Some(71) && printed(&elsewhere).contains(&place), "{}", printed(&elsewhere));
    }
}

#[test]
fn a_host_has_its_own_processes() {
    for way in ways("a_host_has_its_own_processes") {
        println!("{way:?}");
        let lab = Lab::up("processes", way);
        let run = |host: &str, script: &str| {
            let output = lab.command("run", &[host, "--", "sh", "-c", script]).current_dir("/").output();
            printed(&output.expect("it can be started"))
        };
        let spaces = [run("c1", "readlink /proc/self/ns/pid"), run("c2", "readlink /proc/self/ns/pid")];
        let here = fs::read_link("/proc/self/ns/pid").expect("Linux").display().to_string() + "\n";
        assert!(spaces[0].starts_with("pid:[") && spaces[0] != spaces[1] && !spaces.contains(&here), "{spaces:?}");
        let mut running = lab.start("c1");
        let all = "for file in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $file; echo; done";
        assert!(run("c1", all).contains("sleep 1000 \n"), "a host sees its own processes");
        assert!(!run("c2", all).contains("sleep 1000"), "no other host sees them");
        // A signal to every process of one host reaches none of another one.
        run("c2", "kill -KILL -1");
        assert_eq!(lab.processes("c1"), 1);
        assert!(lab.ask("kill", &["c1"]).status.success());
        assert_eq!(running.wait().expect("ended").code(), Some(128 + 9));
    }
}

#[test]
fn hosts_find_what_lies_below_tmp_where_the_lab_is_started() {
    for way in ways("hosts_find_what_lies_below_tmp_where_the_lab_is_started") {
        println!("{way:?}");
        let (folder, other) = (Folder::of_this_machine(), Folder::of_this_machine());
        let (program, elsewhere) = (folder.write("program", "here"), other.write("program", "there"));
        let lab = Lab::up_in("below", way, folder.path());
        let read = |file: &Path| {
            let file = file.display().to_string();
            printed(
                &lab.command("run", &["c1", "--", "cat", &file]).current_dir("/").output().expect("it can be started"),
            )
        };
        assert_eq!(read(&program), "here");
        assert!(read(&elsewhere).contains("No such file"));
    }
}

#[test]
fn a_lab_leaves_nothing_however_it_ends() {
    for way in ways("a_lab_leaves_nothing_however_it_ends") {
        println!("{way:?}");
        let lab = Lab::up("ends", way);
        assert!(lab.is_listed());
        let again = lab.ask("up", way);
        assert_eq!(again.status.code(), Some(1), "{}", printed(&again));
        let mut running = lab.start("c1");
        assert!(lab.ask("down", &[]).status.success());
        assert_eq!(running.wait().expect("ended").code(), Some(128 + 9));
        assert!(!lab.is_listed());
        let gone = lab.ask("status", &[]);
        assert_eq!(gone.status.code(), Some(1));
        assert!(printed(&gone).contains("there is no lab"), "{}", printed(&gone));
        // The same name is free again; this time the init process crashes.
        assert!(lab.ask("up", way).status.success());
        let mut running = lab.start("c1");
        let init = lab.status()["init_process"].to_string();
        assert!(Command::new("kill").args(["-KILL", &init]).status().expect("kill").success());
        assert_eq!(running.wait().expect("ended").code(), Some(128 + 9));
        wait_until("its name is gone", || !lab.is_listed());
    }
}

#[test]
fn a_lab_has_a_switch_that_others_tell_what_to_do() {
    for way in ways("a_lab_has_a_switch_that_others_tell_what_to_do") {
        println!("{way:?}");
        let lab = Lab::up("told", way);
        let trellis = env!("CARGO_BIN_EXE_trellis");
        let switch = |arguments: &[&str]| {
            let mut command = Command::new(trellis);
            command.arg("switch").args(arguments).args(["--lab", &lab.name]).output().expect("it can be started")
        };
        let done = |arguments: &[&str]| {
            let output = switch(arguments);
            assert!(output.status.success(), "{arguments:?}: {}", printed(&output));
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let prefix = lab.host("s1")["prefix"].as_str().expect("a prefix").to_owned();
        let page = prefix.replace("::/48", ":100::5000");
        let port = lab.host("c2")["port"].to_string();
        done(&["redirect", &page, &port]);
        // In a host the command uses the connection that the host was given.
        let inside = lab.ask("run", &["c1", "--", trellis, "switch", "status", "--json"]);
        let status: Value = serde_json::from_slice(&inside.stdout).expect("JSON");
        assert_eq!(
            (status["switch"].as_str(), status["ports"].as_array().map(Vec::len)),
            (way.last().copied(), Some(6))
        );
        let runs = || {
            let status: Value = serde_json::from_str(&done(&["status", "--json"])).expect("JSON");
            let runs = status["page_routes"].as_array().expect("page routes").iter();
            runs.map(|run| format!("{} {} {}", run["first"], run["pages"], run["port"])).collect::<Vec<_>>()
        };
        done(&["route", &prefix, &port, "--pages", "3-8"]);
        assert_eq!(runs(), [format!("3 1 {port}"), format!("4 4 {port}"), format!("8 1 {port}")]);
        assert!(done(&["status"]).contains("4 to 7"));
        done(&["route", &prefix, "--pages", "4-7"]);
        assert_eq!(runs(), [format!("3 1 {port}"), format!("8 1 {port}")]);
        let folder = Folder::new();
        let rules = folder.write("rules", "any any reading # and nothing else\n").display().to_string();
        done(&["allow", &rules]);
        // A WRITE is of the class changing, a READ is not.
        let before = lab.count("c1", "delivered");
        for command in ["1000", "100"] {
            let pointer = prefix.replace("::/48", &format!(":{command}::9000"));
            let script = format!("echo hello > /dev/udp/{pointer}/5000");
            assert!(lab.ask("run", &["c1", "--", "bash", "-c", &script]).status.success());
        }
        wait_until("one passes", || lab.count("c1", "delivered") == before + 1);
        assert_eq!(lab.count("c1", "denied"), 1);
        done(&["allow", "--all"]);
        for (arguments, code, sentence) in [
            (&["redirect", "fd00::1", &port][..], 1, "is not of this cluster"),
            (&["route", "fd00:1:7::/48"], 1, "is not of this cluster"),
            (&["route", "fd00:1:7::/48", &port, "--pages", "3"], 1, "is not a whole home of this cluster"),
            (&["route", &prefix, "--pages", "4-7"], 1, "has no route of exactly these pages"),
            (&["route", &prefix, "--pages", "7-6"], 2, "names no pages"),
            (&["redirect", &page, "77777"], 2, "invalid value"),
            (&["copy", &prefix, "--classes", "writing"], 2, "accepted: reading"),
        ] {
            let output = switch(arguments);
            assert!(output.status.code() == Some(code) && printed(&output).contains(sentence), "{}", printed(&output));
        }
        for words in [&["route", "fd00::/48", "99"][..], &["redirect", "fd00::", "99"], &["copy", "fd00::/48", "99"]] {
            let refused = switch(words);
            assert_eq!(refused.status.code(), Some(1));
            assert!(printed(&refused).contains("nothing is plugged in at port 99"), "{}", printed(&refused));
        }
        // It forgets its entries, and goes on.
        assert!(lab.ask("restart", &[]).status.success());
        let forgotten = switch(&["redirect", &page]);
        assert!(forgotten.status.code() == Some(1) && printed(&forgotten).contains("has no redirect"));
        assert!(runs().is_empty());
        lab.send("c1", "s1");
        wait_until("it arrives", || lab.count("s1", "packets_out") == 1);
        assert_eq!(lab.status()["is_without_switch"], false);
        // The reader of the output may go away; here nobody has ever read it.
        for words in [&["lab", "status", "--lab"][..], &["switch", "status", "--lab"], &["switch", "pages", "--lab"]] {
            let (reader, writer) = std::io::pipe().expect("a pipe");
            drop(reader);
            let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
            let output = command.args(words).arg(&lab.name).stdout(writer).output().expect("it starts");
            assert!(output.status.code() == Some(141) && output.stderr.is_empty(), "{words:?}: {}", printed(&output));
        }
        // If the switch cannot restart, the lab reports that and keeps everything that runs in it.
        let mut child = lab.start("s1");
        assert!(lab.ask("run", &["c2", "--", "ip", "link", "delete", "e0"]).status.success());
        assert_eq!(lab.ask("restart", &[]).status.code(), Some(71));
        assert_eq!((lab.status()["is_without_switch"].clone(), lab.processes("s1")), (Value::Bool(true), 1));
        let again = "lab restart` tries once more";
        for (task, arguments) in [("status", &[][..]), ("faults", &["drop=1%"]), ("partition", &["c1"])] {
            assert!(printed(&lab.ask(task, arguments)).contains(again), "{task}");
        }
        assert!(lab.ask("down", &[]).status.success());
        // Its command ended with the lab.
        child.wait().expect("waited for");
    }
}

#[test]
fn what_a_killed_controller_listened_at_goes_with_its_lab() {
    for way in ways("what_a_killed_controller_listened_at_goes_with_its_lab").into_iter().take(1) {
        let lab = Lab::up("sockets", way);
        let folder = Folder::new();
        // The check of a folder tries to write to it.
        let is_socket = |entry: &fs::DirEntry| entry.path().extension().is_some_and(|name| name == "sock");
        let sockets = || fs::read_dir(folder.path()).expect("it is there").flatten().filter(is_socket).count();
        let start = |records: &str| {
            let arguments = ["c1", "--", env!("CARGO_BIN_EXE_trellis"), "controller", "run", "--records", records];
            lab.command("run", &arguments).env("XDG_RUNTIME_DIR", folder.path()).spawn().expect("started")
        };
        let mut child = start("embedded:");
        wait_until("it listens", || sockets() == 1);
        assert!(lab.ask("kill", &["c1"]).status.success());
        child.wait().expect("waited for");
        assert_eq!(sockets(), 1, "what was killed takes nothing away");
        let down = lab.command("down", &[]).env("XDG_RUNTIME_DIR", folder.path()).status().expect("started");
        assert!(down.success());
        fs::remove_dir(folder.path()).expect("nothing is left");
    }
}

#[test]
fn a_lab_runs_a_switch_that_takes_only_its_own_socket_away() {
    let Some(way) = ways("a_lab_runs_a_switch_that_takes_only_its_own_socket_away").into_iter().next() else {
        return;
    };
    let lab = Lab::up("asked", way);
    let scratch = trellis_testing::Folder::new();
    let folder = scratch.path();
    // A host of the lab is its machine: it has an interface, and rights over it.
    let run = |script: &str| {
        let host = "server e0 02:00:00:00:00:07 fd12:3456:7::/48";
        let trellis = env!("CARGO_BIN_EXE_trellis");
        let command = format!("'{trellis}' switch run --cluster fd12:3456::/32 --switch user --host '{host}'");
        let script = format!("cd '{}'; {}", folder.display(), script.replace("RUN", &command));
        lab.ask("run", &["c1", "--", "bash", "-c", &script])
    };
    let script = "coproc RUN --control socket; read line <&\"${COPROC[0]}\"; kill -TERM $COPROC_PID; wait $!";
    let output = run(script);
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    assert!(!folder.join("socket").exists());
    std::fs::write(folder.join("letter"), "dear").expect("written");
    let output = run("RUN --control letter");
    assert!(output.status.code() == Some(71) && printed(&output).contains("is not a socket"), "{}", printed(&output));
    assert_eq!(std::fs::read_to_string(folder.join("letter")).expect("it is there"), "dear");
}

#[test]
fn a_lab_does_not_meet_another() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    // Sockets of other programs may have names that are not text.
    let name = [b"\xff\xfe-".as_slice(), &std::process::id().to_ne_bytes()].concat();
    let other = SocketAddr::from_abstract_name(name).and_then(|name| UnixListener::bind_addr(&name));
    let _other = other.expect("the name is free");
    for way in ways("a_lab_does_not_meet_another") {
        println!("{way:?}");
        let (one, other) = (Lab::up("one", way), Lab::up("other", way));
        assert!(one.is_listed() && other.is_listed());
        assert_ne!(one.host("s1")["prefix"], other.host("s1")["prefix"]);
        one.send("c1", "s1");
        wait_until("it arrives", || one.count("s1", "packets_out") == 1);
        assert_eq!(other.count("s1", "packets_out"), 0);
        assert!(one.ask("down", &[]).status.success());
        other.send("c1", "s1");
        wait_until("the other one goes on", || other.count("s1", "packets_out") == 1);
    }
}

#[cfg(not(feature = "openflow"))]
#[test]
fn a_switch_that_this_build_lacks_names_the_next_step() {
    let lab = Lab { name: format!("lacks-{}", std::process::id()) };
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
        command.args(["switch", "run", "--cluster", "fd12:3456::/32"]);
        command.args(["--host", "server 1 02:00:00:00:00:07 fd12:3456:7::/48"]).args(more).stdin(Stdio::null());
        command.output().expect("it can be started")
    };
    let mut refused = vec![run(&["--switch", "openflow"]), run(&["--openflow", "ptcp:6653"])];
    // Another user is told first that it takes root.
    if is_root() {
        refused.push(lab.ask("up", &["--switch", "openflow"]));
    }
    for output in refused {
        let sentence = "this build was made without the switch openflow; `cargo xtask install --prefix PREFIX \
                        --features openflow` installs one that has it";
        assert!(output.status.code() == Some(78) && printed(&output).contains(sentence), "{}", printed(&output));
    }
    assert!(!lab.is_listed());
}

#[test]
fn a_lab_that_cannot_be_is_refused() {
    if ways("a_lab_that_cannot_be_is_refused").is_empty() {
        return;
    }
    let lab = Lab { name: format!("refused-{}", std::process::id()) };
    for (arguments, code, part) in [
        (&["--switch", "hub"][..], 78, "accepted: "),
        (&["--rootless", "--switch", "bpf"], 78, "give --switch user"),
        (&["--rootless", "--clients", "0", "--servers", "0"], 78, "1 to 1000"),
        (&["--rootless", "--mtu", "100"], 78, "1280 to 65535"),
        (&["--rootless", "--faults", "lose=1%"], 78, "accepted: drop"),
        (&["--clients", "x"], 2, "invalid value"),
        (&["--redirects", "0"], 2, "invalid value"),
    ] {
        let output = lab.ask("up", arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", printed(&output));
        assert!(printed(&output).contains(part), "{arguments:?}: {}", printed(&output));
        assert!(!lab.is_listed(), "{arguments:?}");
    }
}
