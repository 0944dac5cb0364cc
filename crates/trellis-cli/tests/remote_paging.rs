//! Ordinary programs whose memory is at memory servers of a lab, over a good network and a bad one.

#[path = "support/lab.rs"]
mod with_servers;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use trellis_testing::{Need, compiled, skip};
use with_servers::Lab;

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// `examples/remote/working_set.c`, compiled by the machine's compiler.
fn working_set() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/remote/working_set.c");
    compiled("cc", &source, &["-O1"])
}

/// A lab with a client and two servers. `None` if none can be made, or a part is missing; then the reason is printed.
fn lab(test: &str, name: &str, more: &[&str]) -> Option<Lab> {
    let command = [env!("CARGO_BIN_EXE_trellis"), "store", "run", "--store", "embedded:", "--", "true"];
    let output = Command::new(command[0]).args(&command[1..]).output().expect("it can be started");
    if !output.status.success() {
        skip(test, Need::Part, String::from_utf8_lossy(&output.stderr));
        return None;
    }
    Lab::up(test, &format!("paging-{name}"), 1, 2, more)
}

/// Starts a memory server, and returns its prefix.
fn serve(lab: &mut Lab, host: &str) -> String {
    let line = lab.serve(host, "64MiB");
    let prefix = line.strip_prefix("serving 67108864 bytes as ").and_then(|rest| rest.split(' ').next());
    prefix.unwrap_or_else(|| panic!("{line}")).to_owned()
}

/// A program in the client, with its memory at servers.
fn store_run(lab: &Lab, store: &str, program: &Path, arguments: &[&str]) -> Command {
    let own = env!("CARGO_BIN_EXE_trellis");
    let run = ["c1", "--", own, "store", "run", "--statistics", "--store", store, "--cache", "2MiB", "--"];
    let mut command = lab.command("run", &run);
    command.arg(program).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_working_set_of_four_caches_is_the_same_over_a_bad_network() {
    let test = "a_working_set_of_four_caches_is_the_same_over_a_bad_network";
    let faults = "drop=5%,duplicate=5%,reorder=5%,seed=11";
    let Some(mut lab) = lab(test, "bad", &["--faults", faults]) else { return };
    let program = working_set();
    let servers = [serve(&mut lab, "s1"), serve(&mut lab, "s2")].join(",");
    let alone = Command::new(&program).arg("8MiB").output().expect("it can be started");
    for options in ["object=4MiB", "object=256KiB&piece=8192"] {
        let store = format!("memory-server:{servers}?{options}");
        let remote = store_run(&lab, &store, &program, &["8MiB"]).output().expect("it can be started");
        let printed = String::from_utf8_lossy(&remote.stderr);
        assert!(remote.status.success(), "{store}: {}: {printed}", remote.status);
        assert_eq!(
            String::from_utf8_lossy(&remote.stdout),
            String::from_utf8_lossy(&alone.stdout),
            "{store}: {printed}"
        );
        let fetched: u64 = printed
            .split_once(" fetched (")
            .and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok())
            .unwrap_or_else(|| panic!("{printed}"));
        assert!(fetched > 2048, "it does not fit here: {printed}");
    }
}

#[test]
fn a_server_that_is_killed_ends_the_program_with_a_sentence() {
    let test = "a_server_that_is_killed_ends_the_program_with_a_sentence";
    let Some(mut lab) = lab(test, "killed", &[]) else { return };
    let program = working_set();
    let [first, second] = [serve(&mut lab, "s1"), serve(&mut lab, "s2")];
    let store = format!("memory-server:{first},{second}?object=4MiB&deadline=3");
    // Enough touches that it cannot end before the server is gone.
    let mut child =
        store_run(&lab, &store, &program, &["8MiB", "--touches", "1000GiB"]).spawn().expect("it can be started");
    let mut lines = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
    assert!(lines.by_ref().map_while(Result::ok).any(|line| line.starts_with("work ")), "it came so far");
    let output = lab.ask("kill", &["s2"]);
    assert!(output.status.success(), "{output:?}");
    let deadline = Instant::now() + TIMEOUT;
    while child.try_wait().expect("it was started").is_none() {
        assert!(Instant::now() < deadline, "it goes on without its memory");
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().expect("it ended");
    let printed = String::from_utf8_lossy(&output.stderr);
    let sentence = printed.lines().find(|line| line.starts_with("trellis: ")).unwrap_or_default();
    assert_eq!(output.status.code(), Some(70), "{printed}");
    assert!(sentence.contains("of this program's memory, 0x2000"), "{printed}");
    // By default it would be 10 s.
    assert!((3.0..10.0).contains(&with_servers::seconds_without_answer(sentence, &second)), "{printed}");
}

#[test]
fn what_memory_servers_cannot_keep_is_said_before_the_program_starts() {
    let test = "what_memory_servers_cannot_keep_is_said_before_the_program_starts";
    let own = "fd12:3456:9::/48";
    let run = |store: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
        command.args(["store", "run", "--store", store]).args(more).args(["--", "true"]).env("TRELLIS_PREFIX", own);
        command.output().expect("it can be started")
    };
    for (store, more, sentence) in [
        ("memory-server:anywhere", &["--region", "jobs"][..], "`trellis run --home memory-server`"),
        ("memory-server:fd12::/16", &[], "is not a prefix of a host"),
        ("memory-server:anywhere?object=3", &[], "object=3 is not possible"),
    ] {
        let output = run(store, more);
        let printed = String::from_utf8_lossy(&output.stderr);
        if printed.contains("the compiler's parts") {
            return skip(test, Need::Part, printed);
        }
        assert_eq!(output.status.code(), Some(78), "{printed}");
        assert!(printed.starts_with("trellis: ") && printed.contains(sentence), "{printed}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
    let listed =
        command.args(["store", "ls", "--store", "memory-server:anywhere"]).output().expect("it can be started");
    let printed = String::from_utf8_lossy(&listed.stderr);
    assert_eq!(
        (listed.status.code(), printed.contains("which nobody else can look at")),
        (Some(78), true),
        "{printed}"
    );
}

#[test]
fn a_run_whose_host_has_no_addresses_says_so_once() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
    command.args(["run", "-n", "3", "--home", "memory-server", "--memory-server", "fd12:3456:7::/48", "true"]);
    let output = command.env_remove("TRELLIS_PREFIX").output().expect("it can be started");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), printed.lines().count()), (Some(78), 1), "{printed}");
    assert!(printed.contains("add --set prefix=PREFIX, or set TRELLIS_PREFIX"), "{printed}");
}
