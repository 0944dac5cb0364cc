//! `trellis run`, driven from outside: what the nodes get, how a run ends, and that nothing is left behind.
//!
//! Scripts stand for programs that do not use Trellis; this executable, started with `CLI_TEST_ROLE`, stands for
//! those that join. No test asserts a duration; a test that hangs is ended by a watchdog and fails.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use support::{alive, pid_in, signal, start, start_nodes, state, wait_until};
use trellis_testing::{Folder, Need, skip};

#[test]
fn every_line_is_prefixed_and_kept_whole() {
    let run =
        start(&["-n", "2", "sh", "-c", "printf 'a'; sleep 0.1; echo 'b {node} of {nodes}'; printf end; echo e >&2"])
            .finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    let mut lines: Vec<&str> = run.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] ab 0 of 2", "[0] end", "[1] ab 1 of 2", "[1] end"]);
    assert!(run.stderr.contains("[0] e\n") && run.stderr.contains("[1] e\n"), "{}", run.stderr);
}

#[test]
fn raw_output_is_untouched() {
    let run = start(&["--output", "raw", "printf", "x"]).finish();
    assert_eq!((run.code, run.stdout.as_str()), (Some(0), "x"));
}

#[test]
fn files_hold_each_nodes_output() {
    let folder = Folder::new();
    let directory = folder.file("logs");
    let run = start(&[
        "-n",
        "2",
        "--output",
        "files",
        "--output-directory",
        directory.to_str().expect("text"),
        "sh",
        "-c",
        "echo out {node}; echo err {node} >&2",
    ])
    .finish();
    assert_eq!((run.code, run.stdout.as_str()), (Some(0), ""));
    for node in 0..2 {
        let read = |ending: &str| fs::read_to_string(directory.join(format!("node-{node}.{ending}"))).expect("file");
        assert_eq!(read("out"), format!("out {node}\n"));
        assert_eq!(read("err"), format!("err {node}\n"));
    }
}

#[test]
fn a_program_that_is_not_there_is_one_sentence() {
    let missing = start(&["-n", "3", "/no/such/program"]).finish();
    assert_eq!(missing.code, Some(127));
    assert_eq!(missing.stderr, "trellis: program `/no/such/program` was not found; check the path\n");
    let folder = start(&["/tmp"]).finish();
    assert_eq!(folder.code, Some(126));
    assert!(folder.stderr.contains("is a directory"), "{}", folder.stderr);
}

#[test]
fn a_wrong_setting_is_told_before_anything_starts() {
    let run = start(&["-n", "2", "--set", "page_bytes=5000", "sh", "-c", "echo started"]).finish();
    assert_eq!((run.code, run.stdout.as_str()), (Some(78), ""));
    assert!(
        run.stderr.starts_with("trellis: --set page_bytes=5000: ") && run.stderr.lines().count() == 1,
        "{}",
        run.stderr
    );
    let run = start(&["--set", "page_bytes", "true"]).finish();
    assert_eq!(run.code, Some(2));
    let run = start(&["--set", "node=1", "true"]).finish();
    assert_eq!(run.code, Some(78));
    assert_eq!(start(&["-n", "0", "true"]).finish().code, Some(2));
}

#[test]
fn standard_input_goes_to_node_zero() {
    let run = start(&["-n", "2", "sh", "-c", "wc -c"]).with_input("12345").finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.stdout.contains("[0] 5\n") && run.stdout.contains("[1] 0\n"), "{}", run.stdout);
}

#[test]
fn the_failed_nodes_status_is_the_runs_status() {
    let run = start(&["-n", "3", "sh", "-c", "[ {node} = 1 ] && exit 3; sleep 600"]).finish();
    assert_eq!(run.code, Some(3));
    let sentence = run.stderr.trim_end();
    assert!(
        sentence.starts_with("trellis: node 1 (pid ")
            && sentence.ends_with("exited with status 3; nodes 0, 2 were ended"),
        "{sentence}"
    );
}

#[test]
fn a_killed_node_ends_the_others_even_if_they_refuse() {
    let run = start(&["-n", "2", "sh", "-c", "[ {node} = 1 ] && kill -9 $$; trap '' TERM INT; sleep 600; sleep 600"])
        .finish();
    assert_eq!(run.code, Some(128 + libc::SIGKILL));
    assert!(run.stderr.contains("was killed by SIGKILL; node 0 was ended"), "{}", run.stderr);
}

/// The status of a lost cluster says that another node is the cause, and none ends.
#[test]
fn a_consequence_whose_cause_does_not_come_is_named() {
    let run = start(&["-n", "2", "sh", "-c", "[ {node} = 1 ] && exit 70; sleep 600"]).finish();
    assert_eq!(run.code, Some(70), "{run:?}");
    assert!(run.stderr.contains("trellis: node 1 (pid ") && run.stderr.contains("node 0 was ended"), "{}", run.stderr);
}

#[test]
fn a_nodes_children_end_with_it() {
    let folder = Folder::new();
    let script = format!("sleep 600 & echo $! > {0}/child-{{node}}; [ {{node}} = 0 ] || wait", folder.path().display());
    let other = format!("until [ -s {}/child-1 ]; do sleep 0.05; done", folder.path().display());
    let run = start(&["-n", "2", "sh", "-c", &format!("{script}; [ {{node}} = 0 ] && {other}; exit 5")]).finish();
    assert_eq!(run.code, Some(5), "{run:?}");
    for node in 0..2 {
        assert!(!alive(pid_in(&folder, &format!("child-{node}"))), "the child of node {node} is left");
    }
}

#[test]
fn what_a_node_leaves_running_is_ended_after_a_clean_run() {
    let folder = Folder::new();
    let run =
        start(&["sh", "-c", &format!("setsid sleep 600 & echo $! > {}/child; sleep 0.2", folder.path().display())])
            .finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(!alive(pid_in(&folder, "child")));
}

#[test]
fn what_refuses_to_end_after_a_failed_run_is_killed() {
    let folder = Folder::new();
    let file = folder.file("child");
    let refuses = format!("(trap '' TERM; exec setsid sh -c 'echo $$ > {}; exec sleep 600')", file.display());
    let script = format!("{refuses} & until [ -s {} ]; do sleep 0.05; done; exit 5", file.display());
    let run = start(&["sh", "-c", &script]).finish();
    assert_eq!(run.code, Some(5), "{run:?}");
    assert!(!alive(pid_in(&folder, "child")));
}

#[test]
fn ctrl_c_ends_everything() {
    let mut run = start(&["-n", "2", "sh", "-c", "echo up; sleep 600"]).begin();
    run.wait_for_output("up", 2);
    signal(run.pid(), libc::SIGINT);
    let run = run.finish();
    assert_eq!(run.code, Some(130));
    assert!(run.stderr.contains("trellis: interrupted by SIGINT; nodes 0, 1 were ended"), "{}", run.stderr);
}

#[test]
fn a_second_ctrl_c_kills_and_one_is_enough_in_the_end() {
    let program = "trap '' INT QUIT; trap 'echo asked to end' TERM; echo up; while :; do sleep 0.05; done";
    for signals in [&[libc::SIGINT, libc::SIGQUIT][..], &[libc::SIGINT]] {
        let mut run = start(&["-n", "2", "sh", "-c", program]).begin();
        run.wait_for_output("up", 2);
        // The launcher finds both ends when it goes on, however busy the machine is.
        signal(run.pid(), libc::SIGSTOP);
        wait_until("the launcher is stopped", || state(run.pid()) == Some('T'));
        signals.iter().for_each(|number| signal(run.pid(), *number));
        signal(run.pid(), libc::SIGCONT);
        let ended = run.finish();
        assert_eq!(ended.code, Some(130), "{ended:?}");
        let asked = ended.stdout.matches("asked to end").count();
        assert_eq!(
            asked,
            if signals.len() == 1 { 2 } else { 0 },
            "SIGTERM comes between one signal and SIGKILL: {ended:?}"
        );
    }
}

#[test]
fn other_signals_reach_the_program() {
    let mut run =
        start(&["-n", "2", "sh", "-c", "trap 'echo got it; exit 0' USR1; echo up; while :; do sleep 0.05; done"])
            .begin();
    run.wait_for_output("up", 2);
    signal(run.pid(), libc::SIGUSR1);
    let run = run.finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(run.stdout.matches("got it").count(), 2);
}

#[test]
fn a_dry_run_says_what_would_be_started_and_starts_nothing() {
    let folder = Folder::new();
    let touched = folder.file("touched");
    let program = format!("touch {}", touched.display());
    let options = ["--dry-run", "-n", "3", "--set", "region_bytes=1MiB", "--record"];
    let record = folder.file("record");
    let record = record.to_str().expect("text");
    let shell = [record, "-x", "SECRET=hidden", "sh", "-c", &program];
    let run = start(&[&options[..], &shell[..]].concat()).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    for line in ["nodes          3", "setting        region_bytes=1MiB", "variable       SECRET"] {
        assert!(run.stdout.contains(line), "{line}: {}", run.stdout);
    }
    assert!(run.stdout.starts_with("program        sh -c touch ") && !run.stdout.contains("hidden"), "{}", run.stdout);
    assert!(!touched.exists() && !Path::new(record).exists(), "nothing is started or made");
    let run = start(&["--dry-run", "--hosts", "a:2,user@b", "./program"]).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.stdout.contains("nodes 0 to 1 on a") && run.stdout.contains("node 2 on b"), "{}", run.stdout);
    for (options, code, sentence) in [
        (&["--dry-run", "--set", "page_bytes=3", "true"][..], 78, "page_bytes"),
        (&["--dry-run", "./not-here"], 127, "program `./not-here` was not found"),
        (&["--dry-run", "/etc/passwd"], 126, "/etc/passwd"),
        (&["--dry-run", "-n", "0", "true"], 2, "number of nodes"),
    ] {
        let run = start(options).finish();
        assert_eq!(run.code, Some(code), "{run:?}");
        assert!(run.stderr.contains(sentence), "{run:?}");
    }
}

#[test]
fn a_summary_says_how_every_node_ended() {
    let folder = Folder::new();
    let file = folder.file("summary.json");
    let name = file.to_str().expect("text");
    let read = || -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(&file).expect("it is written")).expect("it is JSON")
    };
    let run = start_nodes(2, "sum", &["--json", name]).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    let summary = read();
    assert_eq!((&summary["status"], &summary["error"]), (&0.into(), &serde_json::Value::Null));
    assert!(summary["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
    for node in 0..2 {
        let about = &summary["nodes"][node];
        assert_eq!((&about["node"], &about["status"]), (&node.into(), &0.into()), "{summary}");
        assert!(about["pid"].as_i64().is_some_and(|pid| pid > 1) && about["doing"].is_string(), "{about}");
        assert!(about["counters"]["barriers"].as_u64().is_some_and(|count| count > 0), "{about}");
    }
    let run = start(&["-n", "2", "--json", name, "sh", "-c", "kill -9 $$"]).finish();
    let summary = read();
    assert_eq!((run.code, &summary["status"]), (Some(137), &137.into()));
    assert_eq!(summary["nodes"][0]["status"], serde_json::Value::Null);
    assert!(summary["nodes"].as_array().expect("nodes").iter().any(|node| node["signal"] == "SIGKILL"), "{summary}");
    assert!(run.stderr.contains(summary["error"].as_str().expect("a sentence")), "{run:?}");
    let run = start(&["--json", "-", "--dry-run", "-n", "2", "true"]).finish();
    let plan: serde_json::Value = serde_json::from_str(&run.stdout).expect("it is JSON");
    assert_eq!((&plan["program"], plan["nodes"].as_array().map(Vec::len)), (&"true".into(), Some(2)));
    let run = start(&["--json", "/not/here", "true"]).finish();
    assert_eq!(run.code, Some(74), "{run:?}");
    assert!(run.stderr.contains("/not/here"), "{run:?}");
    let [work, here] = ["work", "here.json"].map(|name| folder.file(name));
    fs::create_dir(&work).expect("a folder");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_trellis"));
    command.args(["run", "--chdir", "work", "--json", "here.json", "true"]).current_dir(folder.path());
    assert!(command.status().expect("it starts").success());
    assert!(here.exists() && fs::read_dir(&work).expect("a folder").next().is_none(), "a name counts from here");
}

#[test]
fn the_launcher_says_as_much_as_is_wanted() {
    let quiet = start(&["-q", "-n", "2", "sh", "-c", "exit 3"]).finish();
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(3), ""));
    let verbose = start(&["-v", "-n", "2", "sh", "-c", "exit 0"]).finish();
    assert_eq!(verbose.code, Some(0), "{verbose:?}");
    assert!(verbose.stderr.starts_with("program        sh -c exit 0\n"), "{}", verbose.stderr);
    assert_eq!(verbose.stderr.matches(") ended with status 0").count(), 2, "{}", verbose.stderr);
    assert!(verbose.stderr.contains("the run took "), "{}", verbose.stderr);
}

#[test]
fn a_run_can_be_stopped_and_continued() {
    let folder = Folder::new();
    let script = format!("echo $$ > {}/node-{{node}}; echo up; read line < {0}/go; exit 0", folder.path().display());
    let made = std::process::Command::new("mkfifo").arg(folder.file("go")).status().expect("mkfifo");
    assert!(made.success());
    let mut run = start(&["-n", "2", "sh", "-c", &script]).begin();
    run.wait_for_output("up", 2);
    let processes = [run.pid(), pid_in(&folder, "node-0"), pid_in(&folder, "node-1")];
    signal(run.pid(), libc::SIGTSTP);
    for pid in processes {
        wait_until("everything stopped", || state(pid) == Some('T'));
    }
    signal(run.pid(), libc::SIGCONT);
    for pid in processes {
        wait_until("everything goes on", || state(pid).is_some_and(|state| state != 'T'));
    }
    let go = fs::OpenOptions::new().read(true).write(true).open(folder.file("go")).expect("fifo");
    std::io::Write::write_all(&mut &go, b"go\ngo\n").expect("fifo");
    assert_eq!(run.finish().code, Some(0));
}

#[test]
fn a_run_that_takes_too_long_is_ended_and_says_what_its_nodes_did() {
    let run = start(&["-n", "2", "--timeout", "300ms", "sh", "-c", "trap '' TERM; sleep 600 & wait; wait"]).finish();
    assert_eq!(run.code, Some(124), "{run:?}");
    for part in ["the run took longer than --timeout 300ms: node 0 (pid ", "; node 1 (pid ", " was in no cluster"] {
        assert!(run.stderr.contains(part), "{part}: {run:?}");
    }
    let run = start(&["--timeout", "1h", "sh", "-c", "exit 3"]).finish();
    assert_eq!(run.code, Some(3), "a run that ends before is like any other: {run:?}");
    let refused = start(&["--timeout", "soon", "true"]).finish();
    assert!(refused.code == Some(2) && refused.stderr.contains("is no time; write a number with ms, s, min or h"));
}

#[test]
fn the_program_starts_with_no_signal_blocked() {
    let run = start(&["sh", "-c", "grep SigBlk /proc/self/status"]).finish();
    assert!(run.stdout.contains("0000000000000000"), "{}", run.stdout);
}

#[test]
fn a_killed_launcher_takes_the_nodes_and_their_children_along() {
    let folder = Folder::new();
    let script = format!(
        "sleep 600 & echo $! > {0}/child-{{node}}; echo $$ > {0}/node-{{node}}; echo up; wait",
        folder.path().display()
    );
    let mut run = start(&["-n", "2", "sh", "-c", &script]).begin();
    run.wait_for_output("up", 2);
    signal(run.pid(), libc::SIGKILL);
    assert_eq!(run.finish().code, None);
    for name in ["node-0", "node-1", "child-0", "child-1"] {
        let pid = pid_in(&folder, name);
        wait_until(&format!("{name} is gone"), || !alive(pid));
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_run_quietly() {
    let run = start(&["-n", "2", "yes"]).close_output_after(4096).finish();
    assert_eq!(run.code, Some(128 + libc::SIGPIPE));
    assert_eq!(run.stderr, "");
}

#[test]
fn nodes_inherit_only_what_is_theirs() {
    let run = start(&["-n", "3", "sh", "-c", "ls -l /proc/self/fd | grep -c socket"]).finish();
    let mut lines: Vec<&str> = run.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] 1", "[1] 1", "[2] 1"], "each node has its own listening socket and no other");
}

#[test]
fn members_run_and_leave() {
    let run = start_nodes(3, "sum", &["--stats"]).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(run.stdout.matches("sum 3").count(), 3, "{}", run.stdout);
    assert!(run.stderr.contains("barriers"), "the counters are shown: {}", run.stderr);
    assert!(run.stderr.contains("advice"), "and advice is given: {}", run.stderr);
}

#[test]
fn advice_names_what_a_phase_lost() {
    let run = start_nodes(2, "share", &["--advise", "--phase", "share"]).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    let advice = run.stderr.lines().find(|line| line.contains("false sharing, ")).unwrap_or_else(|| panic!("{run:?}"));
    assert!(advice.contains("nodes 0 and 1") && advice.contains("bytes 0x0 to 0xfff of the region"), "{advice}");
    assert!(!run.stderr.contains("read_faults"), "no table was asked for: {}", run.stderr);
    let run = start_nodes(2, "share", &["--stats", "--phase", "solve"]).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.stderr.contains("no phase is named solve; the program names end, share"), "{}", run.stderr);
}

#[test]
fn advice_changes_neither_the_status_of_a_run_nor_its_record() {
    let folder = Folder::new();
    let start = |options: &[&str], temporary: &Path| {
        let mut command = support::command(&[&["run", "-n", "2"], options, &["--"]].concat());
        support::in_role(&mut command, "sum");
        command.env("TMPDIR", temporary).env("TRELLIS_RECORD", folder.file("record"));
        support::Run::start(command).finish()
    };
    let kept = start(&["--stats"], folder.path());
    assert_eq!(kept.code, Some(0), "{kept:?}");
    assert!(kept.stderr.contains("advice"), "{kept:?}");
    let names = |path: PathBuf| {
        let mut names: Vec<_> =
            fs::read_dir(path).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names(folder.file("record")), ["node-0.json", "node-1.json"], "where the environment says");
    assert_eq!(names(folder.path().to_owned()), ["record"], "and nothing else is left");
    let run = start_nodes(2, "sum", &["--stats", "--set", "record_faults_max=0"]).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    let nowhere = {
        let mut command = support::command(&["run", "-n", "2", "--advise", "--"]);
        support::in_role(&mut command, "sum");
        command.env("TMPDIR", folder.file("nowhere"));
        support::Run::start(command).finish()
    };
    assert_eq!(nowhere.code, Some(0), "{nowhere:?}");
    assert!(nowhere.stderr.contains("trellis: there is no advice: cannot make a folder in"), "{nowhere:?}");
    let killed = start_nodes(2, "vanish", &["--advise"]).finish();
    assert_eq!(killed.code, Some(70), "{killed:?}");
    assert!(killed.stderr.contains("trellis: there is no advice: no node left a record"), "{killed:?}");
}

#[test]
fn a_killed_member_is_named_with_what_it_was_doing() {
    let mut run = start_nodes(3, "barrier", &[]);
    run.wait_for_output("up", 3);
    let victim = run.node_pid(1);
    // From then on it is known that it waits.
    wait_until("the report of its wait", || run.standard_error().contains("node 1: waiting in barrier 3"));
    signal(victim, libc::SIGKILL);
    let run = run.finish();
    assert_eq!(run.code, Some(128 + libc::SIGKILL), "{run:?}");
    let expected = format!("trellis: node 1 (pid {victim}) was killed by SIGKILL while waiting in barrier 3");
    assert!(run.stderr.contains(&expected), "{}", run.stderr);
}

#[test]
fn every_member_may_be_the_one_that_dies() {
    for node in 0..3 {
        let mut run = start_nodes(3, "barrier", &[]);
        run.wait_for_output("up", 3);
        signal(run.node_pid(node), libc::SIGKILL);
        let run = run.finish();
        assert_eq!(run.code, Some(128 + libc::SIGKILL), "node {node}: {run:?}");
        assert!(run.stderr.contains(&format!("trellis: node {node} (pid ")), "{}", run.stderr);
    }
}

#[test]
fn a_member_that_exits_or_panics_is_the_cause() {
    let exited = start_nodes(3, "exit", &[]).finish();
    assert_eq!(exited.code, Some(1), "{exited:?}");
    assert!(exited.stderr.contains("exited with status 1"), "{}", exited.stderr);
    let panicked = start_nodes(3, "panic", &[]).finish();
    assert_eq!(panicked.code, Some(101), "{panicked:?}");
    assert!(panicked.stderr.contains("exited with status 101 (a Rust panic)"), "{}", panicked.stderr);
}

/// The others end at once. On a busy machine it may end with status 70 before its own time is over.
#[test]
fn a_node_that_failed_and_has_not_ended_yet_is_the_cause() {
    let run = start_nodes(3, "fail slowly", &[]).finish();
    let said = run.stderr.lines().last().unwrap_or_default();
    assert!(matches!(run.code, Some(7 | 70)) && said.starts_with("trellis: node 1 (pid "), "{run:?}");
}

/// Others end with status 70 because of it, so its own status proves nothing.
#[test]
fn a_member_that_ends_with_the_status_of_a_lost_cluster_is_the_cause() {
    for role in ["seventy", "give up"] {
        for round in 0..5 {
            let run = start_nodes(4, role, &[]).finish();
            assert_eq!(run.code, Some(70), "{role}: {run:?}");
            let said = run.stderr.lines().last().unwrap_or_default();
            assert!(said.starts_with("trellis: node 1 (pid "), "{role}, round {round}: {}", run.stderr);
            assert!(role == "seventy" || said.contains("UNLOCK: lock 5 is not held"), "{said}");
        }
    }
}

/// Starts nodes that wait in a barrier through a command that sets the action of SIGHUP: the tests themselves may run
/// under `nohup`.
fn start_through(starter: &[&str]) -> support::Run {
    let mut command = std::process::Command::new(starter[0]);
    command.args(&starter[1..]).args([env!("CARGO_BIN_EXE_trellis"), "run", "-n", "3", "--"]);
    command
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    support::in_role(&mut command, "barrier");
    let mut run = support::Run::start(command);
    run.wait_for_output("up", 3);
    run
}

#[test]
fn a_terminal_that_hangs_up_ends_everything_and_nobody_is_blamed() {
    let run = start_through(&["env", "--default-signal=HUP"]);
    signal(run.pid(), libc::SIGHUP);
    let run = run.finish();
    assert_eq!(run.code, Some(128 + libc::SIGHUP), "{run:?}");
    assert!(run.stderr.contains("trellis: interrupted by SIGHUP; nodes 0, 1, 2 were ended"), "{}", run.stderr);
}

#[test]
fn a_terminal_that_hangs_up_ends_nothing_that_was_started_with_nohup() {
    let run = start_through(&["nohup"]);
    signal(run.pid(), libc::SIGHUP);
    // Another signal ends it, so that the two can be told apart.
    signal(run.pid(), libc::SIGTERM);
    let run = run.finish();
    assert_eq!(run.code, Some(128 + libc::SIGTERM), "{run:?}");
    assert!(run.stderr.contains("interrupted by SIGTERM"), "{}", run.stderr);
}

/// A user who may not handle faults of the kernel gets another catcher than root does, and is told so.
#[test]
fn an_ordinary_user_hears_which_catcher_is_used_and_why() {
    let test = "an_ordinary_user_hears_which_catcher_is_used_and_why";
    let allowed = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    if allowed.is_ok_and(|allowed| allowed.trim() == "1") {
        skip(test, Need::Machine, "every user may have faults of the kernel handled here");
        return;
    }
    // By default system calls work, and nothing needs to be said.
    for (settings, lines) in [(&[][..], 0), (&["--set", "catch=handler"][..], 1)] {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_trellis"), "run"]);
        command.args(["-n", "2"]).args(settings).arg("--").stdin(std::process::Stdio::null());
        support::in_role(&mut command, "sum");
        let output = command.output().expect("setpriv is in util-linux");
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("setpriv: ") {
            skip(test, Need::Root, said);
            return;
        }
        assert!(output.status.success(), "{said}");
        assert_eq!(said.matches("[0] trellis: node 0: catch = \"handler\": ").count(), lines, "{said}");
        assert_eq!(said.matches("EFAULT").count(), lines, "{said}");
        assert!(!said.contains("node 1: catch"), "{said}");
    }
}

#[test]
fn a_member_that_vanishes_with_status_zero_is_the_cause() {
    let run = start_nodes(3, "vanish", &[]).finish();
    assert_eq!(run.code, Some(70), "{run:?}");
    assert!(
        run.stderr.contains("trellis: node 1 (pid ") && run.stderr.contains("without leaving the cluster"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_stopped_member_is_named() {
    let mut run = start_nodes(2, "barrier", &["--set", "silence_seconds_max=1"]);
    run.wait_for_output("up", 2);
    let victim = run.node_pid(1);
    signal(victim, libc::SIGSTOP);
    let run = run.finish();
    assert_eq!(run.code, Some(70), "{run:?}");
    assert!(run.stderr.contains(&format!("trellis: node 1 (pid {victim}) is stopped")), "{}", run.stderr);
}

#[test]
fn ctrl_c_ends_members() {
    let mut run = start_nodes(3, "barrier", &[]);
    run.wait_for_output("up", 3);
    signal(run.pid(), libc::SIGINT);
    let run = run.finish();
    assert_eq!(run.code, Some(130), "{run:?}");
    assert!(run.stderr.contains("interrupted by SIGINT"), "{}", run.stderr);
}

#[test]
#[ignore = "a role that tests start"]
fn acts_as_a_node_when_started_as_one() {
    if let Ok(role) = std::env::var("CLI_TEST_ROLE") {
        support::node::act(&role);
    }
}
