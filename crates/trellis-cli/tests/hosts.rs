//! `trellis run --hosts`, on hosts of a lab that reach each other by the system's ssh.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use support::hosts::{Hosts, command_in, printed};
use support::{Run, command, signal, start, start_role, wait_until};
use trellis_testing::Folder;

#[test]
fn nodes_on_several_hosts_share_memory() {
    let Some(lab) = Hosts::up("nodes_on_several_hosts_share_memory", 3) else { return };
    let run = lab.start_role("sum", &["--hosts", "c1,c2:2,c3"]).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    for line in ["[0 c1] sum 6", "[1 c2] sum 6", "[2 c2] sum 6", "[3 c3] sum 6"] {
        assert!(run.stdout.contains(line), "{line}: {run:?}");
    }
    lab.wait_until_quiet();
}

#[test]
fn hosts_take_nodes_in_turn() {
    let Some(lab) = Hosts::up("hosts_take_nodes_in_turn", 3) else { return };
    let run = lab.start_role("sum", &["--hosts", "c1:1,c2:3,c3:2", "--map-by", "node"]).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    for place in ["0 c1", "1 c2", "2 c3", "3 c2", "4 c3", "5 c2"] {
        let number = &place[..1];
        let is_up = |line: &str| line.starts_with(&format!("[{place}]")) && line.contains(&format!(" up {number} "));
        assert!(run.stdout.lines().any(is_up), "{place}: {run:?}");
        assert!(run.stdout.contains(&format!("[{place}] sum 15\n")), "{place}: {run:?}");
    }
    // Standard input goes to node 0, and who is named is the node whose number it is.
    let folder = Folder::new();
    fs::write(folder.file("input"), "for the first\n").expect("it is ours");
    let script = "cat; if [ {node} = 3 ]; then sleep 0.3; exit 9; fi";
    let mut command = lab.run(&["--hosts", "c2:2,c3:2", "--map-by", "node", "sh", "-c", script]);
    command.stdin(fs::File::open(folder.file("input")).expect("it was written"));
    let run = Run::start(command).finish();
    assert!(run.code == Some(9) && run.stdout.contains("[0 c2] for the first\n"), "{run:?}");
    assert!(run.stderr.contains("node 3 (") && run.stderr.contains(" on c3)"), "{run:?}");
    let planned = Run::start(lab.run(&["--hosts", "c2:2,c3:1", "--map-by", "node", "--dry-run", "true"])).finish();
    assert!(planned.stdout.contains("nodes 0, 2 on c2\n") && planned.stdout.contains("node 1 on c3\n"), "{planned:?}");
    lab.wait_until_quiet();
}

#[test]
fn hosts_are_named_by_their_addresses() {
    let Some(lab) = Hosts::up("hosts_are_named_by_their_addresses", 3) else { return };
    let status = lab.status();
    let address = |place: usize| status["hosts"][place]["address"].as_str().expect("an address").to_owned();
    let (second, third) = (address(1), address(2));
    assert!(second.parse::<std::net::Ipv6Addr>().is_ok(), "{second}");
    // The settings for every host, which have the key, count for addresses, too.
    let run = lab.start_role("sum", &["--hosts", &format!("[{second}]:2,root@{third}")]).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    for place in [format!("[0 {second}]"), format!("[1 {second}]"), format!("[2 {third}]")] {
        assert!(run.stdout.contains(&format!("{place} sum 3\n")), "{place}: {run:?}");
    }
    // A network of IPv6 is named as one of IPv4.
    let prefix = status["hosts"][1]["prefix"].as_str().expect("a prefix");
    let run = lab.start_role("sum", &["--hosts", &second, "--network", prefix]).finish();
    assert!(run.code == Some(0) && run.stdout.contains("sum 0\n"), "{run:?}");
    let run = Run::start(lab.run(&["--hosts", &format!("{second},{third}"), "--network", prefix, "true"])).finish();
    assert_eq!(run.code, Some(78), "{run:?}");
    assert!(run.stderr.contains(&format!("host {third}: --network {prefix}: ")), "{run:?}");
    lab.wait_until_quiet();
}

#[test]
fn a_host_is_reached_at_an_address_that_it_does_not_have() {
    let Some(lab) = Hosts::up("a_host_is_reached_at_an_address_that_it_does_not_have", 2) else { return };
    let elsewhere = lab.answer_elsewhere(1);
    let advertised = format!("c2={elsewhere}");
    let two = ["--hosts", "c1,c2:2", "--advertise", &advertised];
    let run = Run::start(lab.run(&[&two[..], &["sh", "-c", "echo $TRELLIS_NODES"]].concat())).finish();
    assert!(run.code == Some(0) && run.stdout.matches(&format!("[{elsewhere}]:")).count() == 6, "{run:?}");
    let run = lab.start_role("sum", &two).finish();
    assert!(run.code == Some(0) && run.stdout.matches("sum 3\n").count() == 3, "{run:?}");
    let datagrams = Run::start(lab.run(&[&two[..], &["--set", "link=udp", "true"]].concat())).finish();
    assert!(datagrams.code == Some(78) && datagrams.stderr.contains("--advertise: over udp"), "{datagrams:?}");
    let wrong = Run::start(lab.run(&["--hosts", "c1,c2", "--advertise", "c2=2001:db8::1", "true"])).finish();
    assert!(
        wrong.code == Some(71) && wrong.stderr.contains("host c1 does not reach host c2 at [2001:db8::1]:"),
        "{wrong:?}"
    );
    let unknown = Run::start(lab.run(&["--hosts", "c1", "--advertise", "c2=a", "true"])).finish();
    assert!(unknown.code == Some(2) && unknown.stderr.contains("no node runs on a host c2"), "{unknown:?}");
    lab.wait_until_quiet();
}

#[test]
fn nodes_listen_at_the_ports_that_a_firewall_lets_through() {
    let Some(lab) = Hosts::up("nodes_listen_at_the_ports", 2) else { return };
    let two = ["--hosts", "c1:2,c2:2", "--set", "ports=7100-7101"];
    let run = Run::start(lab.run(&[&two[..], &["sh", "-c", "echo $TRELLIS_NODES"]].concat())).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    let line = run.stdout.lines().find(|line| line.starts_with("[0 c1]")).expect("it wrote");
    let ports: Vec<&str> = line.split(',').filter_map(|address| address.rsplit(':').next()).collect();
    assert_eq!(ports, ["7100", "7101", "7100", "7101"], "{run:?}");
    let run = lab.start_role("sum", &two).finish();
    assert!(run.code == Some(0) && run.stdout.matches("sum 6\n").count() == 4, "{run:?}");
    let few = Run::start(lab.run(&["--hosts", "c1,c2:2", "--set", "ports=7100", "true"])).finish();
    assert_eq!(few.code, Some(71), "{few:?}");
    assert!(few.stderr.contains("host c2: ports: 7100: too few are free at "), "{few:?}");
    let wrong = Run::start(lab.run(&["--hosts", "c1", "--set", "ports=9-7", "true"])).finish();
    assert_eq!(wrong.code, Some(78), "{wrong:?}");
    assert!(wrong.stderr.contains("ports=9-7: `9-7` is no range of ports"), "{wrong:?}");
}

#[test]
fn the_hosts_of_a_job_of_pbs_or_lsf_are_used() {
    let Some(lab) = Hosts::up("the_hosts_of_a_job_of_pbs_or_lsf_are_used", 3) else { return };
    let folder = Folder::new();
    fs::write(folder.file("nodes"), "c2\nc2\nc3\n").expect("it is ours");
    let file = folder.file("nodes").display().to_string();
    for (name, value) in [("PBS_NODEFILE", &*file), ("LSB_DJOB_HOSTFILE", &file), ("LSB_HOSTS", "c2 c2 c3")] {
        let job = |options: &[&str]| {
            let mut command = lab.run(options);
            command.env(name, value).args(["sh", "-c", "hostname"]);
            Run::start(command).finish()
        };
        let run = job(&[]);
        assert_eq!(run.code, Some(0), "{name}: {run:?}");
        for line in ["[0 c2] c2\n", "[1 c2] c2\n", "[2 c3] c3\n"] {
            assert!(run.stdout.contains(line), "{name}: {line}: {run:?}");
        }
        let many = job(&["-n", "4"]);
        assert_eq!(many.code, Some(2), "{name}: {many:?}");
        assert!(
            many.stderr.contains(&format!("the 2 hosts have 3 slots; name more hosts or more slots, as {name} counts")),
            "{many:?}"
        );
    }
}

/// The processors of each node that ran `grep Cpus_allowed_list`, in the order of their numbers.
fn processors(run: &support::Ended) -> Vec<String> {
    assert_eq!(run.code, Some(0), "{run:?}");
    let mut lines: Vec<&str> = run.stdout.lines().collect();
    lines.sort_unstable();
    lines.iter().map(|line| line.rsplit('\t').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn nodes_are_bound_to_processors() {
    const SHOW: [&str; 3] = ["grep", "Cpus_allowed_list", "/proc/self/status"];
    let all = processors(&start(&SHOW).finish()).remove(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for hosts in [&["-n", "2"][..], &["--hosts", "localhost:2"]] {
        let with = |what| start(&[hosts, &["--bind-to", what], &SHOW].concat()).finish();
        assert_eq!(processors(&with("none")), [all.clone(), all.clone()]);
        let sockets = processors(&with("socket"));
        assert_eq!(sockets.len(), 2);
        let of_cores = with("core");
        if of_cores.code == Some(71) {
            assert!(of_cores.stderr.contains("--bind-to core: 2 nodes cannot have a core each"), "{of_cores:?}");
            continue;
        }
        let of_cores = processors(&of_cores);
        assert!(of_cores[0] != of_cores[1] && of_cores.iter().all(|set| *set != all), "{of_cores:?}");
    }
    let many = (cores + 1).to_string();
    for hosts in [&["-n", &many][..], &["--hosts", &format!("localhost:{many}")], &["-n", &many, "--dry-run"]] {
        let run = start(&[hosts, &["--bind-to", "core", "echo", "started"]].concat()).finish();
        assert_eq!(run.code, Some(71), "{run:?}");
        assert!(run.stderr.contains(&format!("--bind-to core: {many} nodes cannot have a core each")), "{run:?}");
        assert!(!run.stdout.contains("started"), "{run:?}");
    }
    // Only the processors that a scheduler or a user allows are divided.
    let mut command = std::process::Command::new("taskset");
    command.args(["-c", "0", env!("CARGO_BIN_EXE_trellis"), "run", "--bind-to", "socket"]).args(SHOW);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    assert_eq!(processors(&Run::start(command).finish()), ["0"]);
}

#[test]
fn nodes_run_in_the_same_place_with_the_variables_that_were_given() {
    let Some(lab) = Hosts::up("nodes_run_in_the_same_place", 2) else { return };
    let folder = Folder::new();
    fs::write(folder.file("hosts"), "# two\nc1 slots=1\nc2:1\n").expect("it is ours");
    fs::write(folder.file("variables"), "COLOUR=blue green\n").expect("it is ours");
    let script = "echo \"$(hostname) $(pwd) $COLOUR $SHAPE {node}/{nodes}\"; echo complaint >&2";
    let mut command = lab.run(&["--hostfile", "hosts", "--env-file", "variables", "-x", "SHAPE", "sh", "-c", script]);
    command.current_dir(folder.path()).env("SHAPE", "round");
    let run = Run::start(command).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    let place = folder.path().display();
    assert!(run.stdout.contains(&format!("[1 c2] c2 {place} blue green round 1/2\n")), "{run:?}");
    assert!(run.stderr.contains("[0 c1] complaint\n") && run.stderr.contains("[1 c2] complaint\n"), "{run:?}");

    let elsewhere = Run::start(lab.run(&["--hosts", "c2", "--chdir", "/nowhere", "true"])).finish();
    assert_eq!(elsewhere.code, Some(74), "{elsewhere:?}");
    assert!(elsewhere.stderr.contains("host c2: cannot go to the directory /nowhere"), "{elsewhere:?}");
    let text = folder.file("variables").display().to_string();
    let denied = Run::start(lab.run(&["--hosts", "c1,c2", &text])).finish();
    assert_eq!(denied.code, Some(126), "{denied:?}");
    assert!(denied.stderr.contains(&format!("program `{text}` may not be executed")), "{denied:?}");
    lab.wait_until_quiet();
    let missing = Run::start(lab.run(&["--hosts", "c1,c2", "./no-such-program"])).finish();
    assert_eq!(missing.code, Some(127), "{missing:?}");
    assert!(missing.stderr.contains("host c2: program `./no-such-program` was not found"), "{missing:?}");
}

#[test]
fn a_program_is_copied_to_hosts_and_removed_from_them() {
    let Some(lab) = Hosts::up("a_program_is_copied_to_hosts", 2) else { return };
    let folder = Folder::new();
    let script = "#!/bin/sh\necho \"$(hostname) runs $0\"; stat -c 'mode %a' $0\n# and much more\n";
    let program = folder.file("program");
    // More than one piece.
    fs::write(&program, script.to_owned() + &"#".repeat(300_000)).expect("it is ours");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let mut command = lab.run(&["--hosts", "c1,c2", "--copy", "./program"]);
    command.current_dir(folder.path());
    let run = Run::start(command).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    let line = run.stdout.lines().find(|line| line.starts_with("[1 c2] c2 runs /")).expect("node 1 wrote it");
    let copy = std::path::Path::new(line.rsplit(' ').next().expect("a path"));
    assert!(copy.ends_with("program") && !copy.starts_with(folder.path()), "{line}");
    assert!(run.stdout.contains("[0 c1] mode 700\n"), "{run:?}");
    assert!(!copy.exists() && !copy.parent().expect("a folder").exists(), "{line}");
    let run = lab.start_role("sum", &["--hosts", "c1,c2", "--copy"]).finish();
    assert!(run.code == Some(0) && run.stdout.contains("[1 c2] sum 1"), "{run:?}");
}

#[test]
fn standard_input_goes_to_node_zero_on_its_host() {
    let Some(lab) = Hosts::up("standard_input_goes_to_node_zero", 2) else { return };
    let folder = Folder::new();
    // More than may be on its way at once.
    let text: String = (0..200_000).map(|line| format!("line {line}\n")).collect();
    fs::write(folder.file("input"), &text).expect("it is ours");
    let mut command = lab.run(&["--hosts", "c2,c1", "--output", "raw", "sh", "-c", "sleep 0.2; cat"]);
    command.stdin(fs::File::open(folder.file("input")).expect("it was written"));
    let run = Run::start(command).finish();
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stdout == text, "{} bytes of {}", run.stdout.len(), text.len());
    // A node that does not read keeps nobody waiting.
    let mut command = lab.run(&["--hosts", "c2,c1", "true"]);
    command.stdin(fs::File::open(folder.file("input")).expect("it was written"));
    assert_eq!(Run::start(command).finish().code, Some(0));
}

#[test]
fn a_reader_that_pauses_for_long_loses_nothing() {
    let Some(lab) = Hosts::up("a_reader_that_pauses", 2) else { return };
    let script =
        "i=0; while [ $i -lt 30000 ]; do echo \"line $i of some length, so that pipes fill\"; i=$((i + 1)); done";
    let mut command = lab.run(&["--hosts", "c1,c2", "--set", "silence_seconds_max=2", "sh", "-c", script]);
    let mut child = command.spawn().expect("it starts");
    // Longer than anybody may be silent.
    std::thread::sleep(Duration::from_secs(4));
    let mut text = String::new();
    let output = child.stdout.as_mut().expect("it was asked for");
    std::io::Read::read_to_string(output, &mut text).expect("it is text");
    assert!(child.wait().expect("it ends").success(), "{} bytes", text.len());
    assert_eq!(text.lines().count(), 60_000);
    assert!(text.contains("[1 c2] line 29999 of some length"));
}

#[test]
fn files_and_records_of_all_hosts_are_here() {
    let Some(lab) = Hosts::up("files_and_records_of_all_hosts", 2) else { return };
    let folder = Folder::new();
    let (files, record) = (folder.file("files").display().to_string(), folder.file("record").display().to_string());
    let options =
        ["--hosts", "c1,c2", "--output", "files", "--output-directory", &files, "--record", &record, "--stats"];
    let run = lab.start_role("sum", &options).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    let written = fs::read_to_string(folder.file("files").join("node-1.out")).expect("node 1 wrote");
    assert!(written.contains("sum 1\n"), "{written}");
    assert!(run.stderr.contains("node 0          node 1"), "{run:?}");
    let report = command(&["report", &record]).output().expect("the command can be started");
    assert!(report.status.success(), "{}", printed(&report));
    assert_eq!(fs::read_dir(&record).expect("a folder").filter_map(Result::ok).count(), 3, "two records and a report");
}

#[test]
fn a_node_that_fails_is_named_with_its_host() {
    let Some(lab) = Hosts::up("a_node_that_fails_is_named", 2) else { return };
    let run = lab.start_role("exit", &["--hosts", "c1,c2"]).finish();
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(
        run.stderr.contains("trellis: node 1 (pid ") && run.stderr.contains(" on c2) exited with status 1"),
        "{run:?}"
    );
    let mut run = lab.start_role("barrier", &["--hosts", "c1,c2"]);
    run.wait_for_output("up", 2);
    lab.signal_node(&run, "c2", 1, "KILL");
    let run = run.finish();
    assert_eq!(run.code, Some(128 + libc::SIGKILL), "{run:?}");
    assert!(run.stderr.contains(" on c2) was killed by SIGKILL"), "{run:?}");
    lab.wait_until_quiet();
}

#[test]
fn a_signal_to_the_launcher_ends_everything_everywhere() {
    let Some(lab) = Hosts::up("a_signal_to_the_launcher", 3) else { return };
    let mut run = lab.start_role("barrier", &["--hosts", "c1,c2,c3"]);
    run.wait_for_output("up", 3);
    signal(run.pid(), libc::SIGTERM);
    let ended = run.finish();
    assert_eq!(ended.code, Some(128 + libc::SIGTERM), "{ended:?}");
    assert!(ended.stderr.contains("interrupted by SIGTERM"), "{ended:?}");
    lab.wait_until_quiet();
    // What ignores it, and what it started, is killed.
    let script = "trap '' TERM; sh -c 'trap \"\" TERM; while :; do sleep 1; done' & echo up; while :; do sleep 1; done";
    let mut run = Run::start(lab.run(&["--hosts", "c2,c3", "sh", "-c", script]));
    run.wait_for_output("up", 2);
    signal(run.pid(), libc::SIGTERM);
    assert_eq!(run.finish().code, Some(128 + libc::SIGTERM));
    lab.wait_until_quiet();
}

#[test]
fn a_killed_launcher_leaves_nothing_on_any_host() {
    let Some(lab) = Hosts::up("a_killed_launcher_leaves_nothing", 3) else { return };
    let mut run = lab.start_role("barrier", &["--hosts", "c1,c2,c3"]);
    run.wait_for_output("up", 3);
    signal(command_in(&run), libc::SIGKILL);
    assert_eq!(run.finish().code, Some(128 + libc::SIGKILL));
    lab.wait_until_quiet();
}

#[test]
fn an_agent_ends_its_nodes_when_the_launcher_says_nothing_any_more() {
    let Some(lab) = Hosts::up("an_agent_ends_its_nodes", 2) else { return };
    let mut run = lab.start_role("barrier", &["--hosts", "c2", "-n", "2", "--set", "silence_seconds_max=2"]);
    run.wait_for_output("up", 2);
    let launcher = command_in(&run);
    signal(launcher, libc::SIGSTOP);
    wait_until("the agent has ended its nodes", || lab.processes()[1] == 0);
    signal(launcher, libc::SIGCONT);
    let run = run.finish();
    assert_ne!(run.code, Some(0), "{run:?}");
    lab.wait_until_quiet();
}

#[test]
fn a_run_on_several_hosts_can_be_stopped_for_long_and_continued() {
    let Some(lab) = Hosts::up("a_run_can_be_stopped_for_long", 2) else { return };
    let mut run = lab.start_role("pace", &["--hosts", "c1,c2", "--set", "silence_seconds_max=2"]);
    run.wait_for_output("up", 2);
    let launcher = command_in(&run);
    signal(launcher, libc::SIGTSTP);
    wait_until("it is stopped", || support::state(launcher) == Some('T'));
    // Longer than anybody may be silent.
    std::thread::sleep(Duration::from_secs(5));
    signal(launcher, libc::SIGCONT);
    let run = run.finish();
    assert_eq!(run.code, Some(0), "{run:?}");
}

#[test]
fn a_host_that_vanishes_ends_the_run_with_its_name() {
    let Some(lab) = Hosts::up("a_host_that_vanishes", 3) else { return };
    let mut run = lab.start_role("barrier", &["--hosts", "c1,c2,c3", "--set", "silence_seconds_max=2"]);
    run.wait_for_output("up", 3);
    assert!(lab.ask("partition", &["c1,c2", "c3"]).status.success());
    let run = run.finish();
    assert_eq!(run.code, Some(70), "{run:?}");
    assert!(run.stderr.lines().last().is_some_and(|line| line.contains(" on c3)")), "{run:?}");
    // Its agent hears nothing, either.
    lab.wait_until_quiet();
}

/// Hosts c2 and so on: c1 is where the launcher runs.
fn others(count: usize) -> String {
    (2..count + 2).map(|host| format!("c{host}")).collect::<Vec<_>>().join(",")
}

#[test]
fn sixteen_hosts_are_at_most_two_logins_away_in_a_tree() {
    let Some(lab) = Hosts::up("sixteen_hosts_are_at_most_two_logins_away_in_a_tree", 17) else { return };
    let folder = Folder::new();
    fs::write(folder.file("input"), "for all\n").expect("it is ours");
    let (hosts, script) = (others(16), "cat; echo $COLOUR; echo way $SSH_CONNECTION");
    let options = ["--tree", "--hosts", &hosts, "--input", "all", "-x", "COLOUR=green", "sh", "-c", script];
    let mut command = lab.run(&options);
    command.stdin(fs::File::open(folder.file("input")).expect("it was written"));
    let run = Run::start(command).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    for line in ["for all", "green"] {
        assert_eq!(run.stdout.matches(&format!("] {line}\n")).count(), 16, "{line}: {run:?}");
    }
    // sshd(8): from where each host was reached, and at which address.
    let ways: BTreeMap<&str, &str> =
        run.stdout.lines().filter_map(|line| line.split_once("] way ")).fold(BTreeMap::new(), |mut ways, (_, way)| {
            let words: Vec<&str> = way.split(' ').collect();
            ways.insert(words[2], words[0]);
            ways
        });
    assert_eq!(ways.len(), 16, "{run:?}");
    let depth = |host: &str| std::iter::successors(Some(host), |host| ways.get(host).copied()).count() - 1;
    let of_depth = |wanted| ways.keys().filter(|host| depth(host) == wanted).count();
    assert_eq!((of_depth(1), of_depth(2)), (4, 12), "{ways:?}");
    let logins = |from: &str| ways.values().filter(|reached| **reached == from).count();
    assert!(ways.keys().all(|host| logins(host) <= 4), "{ways:?}");
    let run = lab.start_role("sum", &["--tree", "--hosts", &hosts]).finish();
    assert!(run.code == Some(0) && run.stdout.matches("] sum 120\n").count() == 16, "{run:?}");
    lab.wait_until_quiet();
}

#[test]
fn a_tree_ends_everywhere_and_names_the_host_that_is_lost() {
    let Some(lab) = Hosts::up("a_tree_ends_everywhere_and_names_the_host_that_is_lost", 8) else { return };
    let hosts = others(7);
    let options = ["--tree", "--hosts", &hosts, "--set", "silence_seconds_max=2"];
    let mut run = lab.start_role("barrier", &options);
    run.wait_for_output("up", 7);
    signal(run.pid(), libc::SIGTERM);
    assert_eq!(run.finish().code, Some(128 + libc::SIGTERM));
    lab.wait_until_quiet();
    let mut run = lab.start_role("barrier", &options);
    run.wait_for_output("up", 7);
    signal(command_in(&run), libc::SIGKILL);
    assert_eq!(run.finish().code, Some(128 + libc::SIGKILL));
    lab.wait_until_quiet();
    // The others are reached through c2, or directly.
    let mut run = lab.start_role("barrier", &options);
    run.wait_for_output("up", 7);
    assert!(lab.ask("partition", &["c2", "c1,c3,c4,c5,c6,c7,c8"]).status.success());
    let run = run.finish();
    assert_eq!(run.code, Some(70), "{run:?}");
    assert!(run.stderr.lines().last().is_some_and(|line| line.contains(" on c2)")), "{run:?}");
    lab.wait_until_quiet();
}

#[test]
fn a_host_of_a_tree_that_cannot_be_reached_is_named_with_the_one_before_it() {
    let Some(lab) = Hosts::up("a_host_of_a_tree_that_cannot_be_reached", 5) else { return };
    let hosts = format!("{},nowhere.invalid", others(4));
    let run = Run::start(lab.run(&["--tree", "--hosts", &hosts, "echo", "started"])).finish();
    assert_eq!(run.code, Some(71), "{run:?}");
    assert!(run.stderr.contains("host nowhere.invalid: ") && run.stderr.contains(" on host c2"), "{run:?}");
    assert!(run.stdout.is_empty(), "{run:?}");
    lab.wait_until_quiet();
}

#[test]
fn a_host_that_cannot_be_reached_is_named_before_anything_starts() {
    let Some(lab) = Hosts::up("a_host_that_cannot_be_reached", 2) else { return };
    let run = Run::start(lab.run(&["--hosts", "c2,nowhere.invalid", "echo", "started"])).finish();
    assert_eq!(run.code, Some(71), "{run:?}");
    assert!(run.stderr.contains("trellis: host nowhere.invalid: ssh: Could not resolve hostname"), "{run:?}");
    assert!(!run.stdout.contains("started"), "{run:?}");
    lab.wait_until_quiet();
}

#[test]
fn doctor_measures_the_way_between_all_hosts_and_names_those_that_are_not_there() {
    let Some(lab) = Hosts::up("doctor_measures_the_way", 3) else { return };
    let status = lab.status();
    let prefix = status["hosts"][2]["prefix"].as_str().expect("a prefix");
    let closed = lab.ask("run", &["c2", "--", "ip", "-6", "route", "add", "unreachable", prefix]);
    assert!(closed.status.success(), "{}", printed(&closed));
    let doctor = |more: &[&str]| {
        let mut command = lab.task("run", &["c1", "--", env!("CARGO_BIN_EXE_trellis"), "doctor", "--ssh", &lab.ssh]);
        command.args(more);
        Run::start(command).finish()
    };
    let found = doctor(&["--hosts", "c1,c2,c3,nowhere.invalid", "--json"]);
    assert_eq!(found.code, Some(1), "{found:?}");
    let survey: Value = serde_json::from_str(&found.stdout).expect("JSON");
    assert!(
        survey["failures"][0].as_str().is_some_and(|failure| failure.starts_with("host nowhere.invalid: ")),
        "{survey}"
    );
    let way = |from: usize, to: usize| &survey["hosts"][from]["ways"][to];
    assert!(way(0, 1)["round_trip_us"].as_f64().is_some_and(|time| time > 0.0), "{survey}");
    assert!(way(2, 0)["bytes_per_second"].as_f64().is_some_and(|bytes| bytes > 0.0), "{survey}");
    assert!(way(1, 1).is_null() && way(1, 2)["why"].is_string(), "{survey}");
    let fine = doctor(&["--hosts", "c1,c2"]);
    assert_eq!(fine.code, Some(0), "{fine:?}");
    assert!(fine.stdout.contains("round trip (us), from the host of the row to that of the column"), "{fine:?}");
    lab.wait_until_quiet();
}

#[test]
fn a_firewall_between_two_hosts_is_named() {
    let Some(lab) = Hosts::up("a_firewall_between_two_hosts", 3) else { return };
    let status = lab.status();
    let prefix = status["hosts"][2]["prefix"].as_str().expect("a prefix");
    let closed = lab.ask("run", &["c2", "--", "ip", "-6", "route", "add", "unreachable", prefix]);
    assert!(closed.status.success(), "{}", printed(&closed));
    let run = Run::start(lab.run(&["--hosts", "c2,c3", "echo", "started"])).finish();
    assert_eq!(run.code, Some(71), "{run:?}");
    assert!(run.stderr.contains("host c2 does not reach host c3 at ["), "{run:?}");
    assert!(run.stderr.contains("open the firewall between them"), "{run:?}");
    assert!(!run.stdout.contains("started"), "{run:?}");
}

/// A command in place of ssh, which says this.
fn other_ssh(folder: &Folder, script: &str) -> String {
    let path = folder.file("ssh");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("it is ours");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    path.display().to_string()
}

#[test]
fn a_host_with_another_version_or_without_the_command_is_named() {
    let folder = Folder::new();
    let said = |script: &str| {
        let ssh = other_ssh(&folder, script);
        let run = start(&["--hosts", "far", "--ssh", &ssh, "true"]).finish();
        assert_eq!(run.code, Some(71), "{run:?}");
        run.stderr
    };
    let hello = |version: &str, architecture: &str| {
        format!(
            "printf Welcome; echo; echo 'trellis-agent {{\"version\":\"{version}\",\"architecture\":\"{architecture}\",\
             \"own_address\":null,\"launcher_address\":null}}'; cat"
        )
    };
    let own = env!("CARGO_PKG_VERSION");
    let other = said(&hello("0.0.7", "x86_64"));
    assert!(other.contains(&format!("host far: it has version 0.0.7 of trellis, and this is {own}")), "{other}");
    let other = said(&hello(own, "riscv64"));
    assert!(other.contains("host far: it is of architecture riscv64"), "{other}");
    let none = said("echo 'sh: 1: exec: trellis: not found' >&2; exit 127");
    assert!(none.contains("host far: no trellis can be run there, neither at /"), "{none}");
    assert!(none.contains("install the same version: sh: 1: exec: trellis: not found"), "{none}");
    let other = said("echo 'trellis: cannot execute binary file: Exec format error' >&2; exit 126");
    assert!(other.contains("host far: its trellis cannot be run; it may be of another architecture: "), "{other}");
    let denied = said("echo 'me@far: Permission denied (publickey).' >&2; exit 255");
    assert!(denied.contains("host far: me@far: Permission denied (publickey).; `/"), "{denied}");
    assert!(denied.contains(" far true` must succeed without a question"), "{denied}");
    let noise = said("yes");
    assert!(noise.contains("host far: its login prints too much"), "{noise}");
}

#[test]
fn the_secret_is_in_no_argument_and_in_no_variable_of_an_agent() {
    let folder = Folder::new();
    // The agent is started here, with everything that it gets on another host written down.
    let log = folder.file("log").display().to_string();
    let script = format!(
        "echo \"$*\" >> {log}; env >> {log}; shift $(($# - 1)); SSH_CONNECTION='127.0.0.1 1 127.0.0.1 22' sh -c \"$1\""
    );
    let ssh = other_ssh(&folder, &script);
    let secret = folder.file("secret");
    fs::write(&secret, [b'Q'; 32]).expect("it is ours");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let secret = secret.display().to_string();
    let run = start(&["--hosts", "far", "--ssh", &ssh, "--secret-file", &secret, "-x", "TOKEN=abc", "env"]).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.stdout.contains("[0 far] TOKEN=abc\n"), "{run:?}");
    let log = fs::read_to_string(&log).expect("it was written");
    assert!(!log.contains("QQQQ") && !log.contains("abc"), "{log}");
}

#[test]
fn options_that_need_hosts_say_so() {
    for (options, sentence) in [
        (&["--network", "lo"][..], "--network needs hosts"),
        (&["--map-by", "node"], "--map-by needs hosts"),
        (&["--hosts", "a:0"], "--hosts: `0` in `a:0` is no number of nodes"),
        (&["--hosts", "a:2", "-n", "3"], "-n 3: the 1 hosts have 2 slots"),
        (&["--hostfile", "/nonexistent"], "--hostfile /nonexistent: cannot be read"),
        (&["--hosts", "localhost", "--home", "memory-server"], "name them with --memory-server"),
    ] {
        let run = start(&[options, &["true"]].concat()).finish();
        assert_ne!(run.code, Some(0), "{run:?}");
        assert!(run.stderr.contains(sentence), "{run:?}");
    }
}

#[test]
fn this_machine_needs_no_ssh() {
    let run = start(&["--hosts", "localhost:2", "sh", "-c", "echo $TRELLIS_NODES"]).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.stdout.contains("[1 localhost] 127.0.0.1:"), "{run:?}");
    // `--ssh` applies to this machine, too.
    let run = start(&["--hosts", "localhost", "--ssh", "false", "true"]).finish();
    assert_eq!(run.code, Some(71), "{run:?}");
}

#[test]
fn a_start_that_is_refused_ends_the_run() {
    // A program that is there and cannot be executed is found when it is started.
    let folder = Folder::new();
    let program = folder.file("program");
    fs::write(&program, "#!/no/such/interpreter\n").expect("it is ours");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let program = program.display().to_string();
    for more in [&["--stats"][..], &[]] {
        let run = start(&[&["--hosts", "localhost:2"], more, &[&program]].concat()).finish();
        assert_eq!(run.code, Some(126), "{run:?}");
        assert!(
            run.stderr.contains("host localhost: program `/") && run.stderr.contains("names an interpreter"),
            "{run:?}"
        );
    }
}

#[test]
fn a_host_without_room_for_the_region_is_named_before_anything_starts() {
    let folder = Folder::new();
    let ssh = other_ssh(
        &folder,
        "shift $(($# - 1)); ulimit -v 3000000; SSH_CONNECTION='127.0.0.1 1 127.0.0.1 22' exec sh -c \"$1\"",
    );
    let run = start(&["--hosts", "far", "--ssh", &ssh, "--set", "region_bytes=2GiB", "echo", "started"]).finish();
    assert_eq!(run.code, Some(71), "{run:?}");
    assert!(run.stderr.contains("host far: its nodes cannot have the region: region_bytes: "), "{run:?}");
    assert!(run.stderr.contains("(`ulimit -v`)") && !run.stdout.contains("started"), "{run:?}");
}

#[test]
fn output_is_shown_of_the_nodes_that_were_chosen_and_written_of_all() {
    let folder = Folder::new();
    let files = folder.path().display().to_string();
    for hosts in [&["--hosts", "localhost:3"][..], &["-n", "3"]] {
        let options = ["--output", "tee", "--output-directory", &files, "--show", "0,2-5", "echo", "node {node}"];
        let run = start(&[hosts, &options].concat()).finish();
        assert_eq!(run.code, Some(0), "{run:?}");
        assert!(run.stdout.contains("node 0\n") && run.stdout.contains("node 2\n"), "{run:?}");
        assert!(!run.stdout.contains("node 1\n"), "{run:?}");
        assert_eq!(fs::read_to_string(folder.file("node-1.out")).expect("it was written"), "node 1\n");
        assert_eq!(fs::read_to_string(folder.file("node-2.out")).expect("it was written"), "node 2\n");
    }
    let wrong = start(&["--show", "a", "true"]).finish();
    assert!(wrong.code == Some(2) && wrong.stderr.contains("`a` is no node"), "{wrong:?}");
}

#[test]
fn standard_input_goes_to_all_nodes_that_want_it() {
    let Some(lab) = Hosts::up("standard_input_goes_to_all_nodes", 2) else { return };
    let folder = Folder::new();
    let text: String = (0..100_000).map(|line| format!("line {line}\n")).collect();
    fs::write(folder.file("input"), &text).expect("it is ours");
    let input = || fs::File::open(folder.file("input")).expect("it was written");
    let script = "if [ {node} = 1 ]; then head -1 > /dev/null; echo enough; else sleep 0.{node}; cksum; fi";
    let sums = |run: &support::Ended| run.stdout.lines().filter(|line| line.ends_with(&text.len().to_string())).count();
    let mut command = lab.run(&["--hosts", "c1:2,c2:2", "--input", "all", "sh", "-c", script]);
    command.stdin(input());
    let run = Run::start(command).finish();
    assert!(run.code == Some(0) && sums(&run) == 3 && run.stdout.contains("enough"), "{run:?}");
    let mut command = support::command(&["run", "-n", "4", "--input", "all", "sh", "-c", script]);
    command.stdin(input());
    let run = Run::start(command).finish();
    assert!(run.code == Some(0) && sums(&run) == 3 && run.stdout.contains("enough"), "{run:?}");
    let none = start(&["-n", "2", "--input", "none", "cksum"]).with_input("text").finish();
    assert!(none.stdout.contains("[0] 4294967295 0\n"), "{none:?}");
}

#[test]
fn an_agent_that_is_lost_before_all_output_came_is_named() {
    let folder = Folder::new();
    let agent = folder.file("agent").display().to_string();
    // A process that the node leaves running would write later. The agent is killed before that.
    let script = format!("(sleep 0.2; kill -9 $(cat {agent}); sleep 60; echo late) & exit 0");
    let ssh = other_ssh(
        &folder,
        &format!("shift $(($# - 1)); echo $$ > {agent}; SSH_CONNECTION='127.0.0.1 1 127.0.0.1 22' exec sh -c \"$1\""),
    );
    let run = start(&["--hosts", "far", "--ssh", &ssh, "sh", "-c", &script]).finish();
    assert_eq!(run.code, Some(70), "{run:?}");
    assert!(
        run.stderr.contains("host far: output of its nodes, or a record, is missing: its connection ended"),
        "{run:?}"
    );
}

#[test]
fn the_shortest_silence_is_long_enough_for_those_who_are_there() {
    let run = start_role("pace", &["--hosts", "localhost:2", "--set", "silence_seconds_max=1"]).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
}

#[test]
fn the_variable_path_and_a_directory_count_as_on_this_host() {
    let folder = Folder::new();
    let program = folder.file("only-here");
    fs::create_dir(folder.file("inside")).expect("it is ours");
    fs::write(&program, "#!/bin/sh\npwd\n").expect("it is ours");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
    for hosts in [&["--hosts", "localhost"][..], &[]] {
        let path = format!("PATH={}:/usr/bin:/bin", folder.path().display());
        let mut command = command(&["run"]);
        command.args(hosts).args(["-x", &path, "--chdir", "inside", "only-here"]);
        command.current_dir(folder.path()).stdin(Stdio::null());
        let run = Run::start(command).finish();
        assert_eq!(run.code, Some(0), "{run:?}");
        assert!(run.stdout.ends_with(&format!("{}\n", folder.file("inside").display())), "{run:?}");
    }
}

#[test]
#[ignore = "a role that tests start"]
fn acts_as_a_node_when_started_as_one() {
    if let Ok(role) = std::env::var("CLI_TEST_ROLE") {
        support::node::act(&role);
    }
}
