//! The other commands, driven from outside: their output and exit codes, and every field of their JSON that the
//! reference promises.

mod support;

use std::fs;
use std::process::Command;

use serde_json::Value;
use support::{catcher_works, json_of, start_command, start_nodes};
use trellis_testing::Folder;

/// Runs a benchmark and checks that these fields are positive numbers.
fn benchmark(arguments: &[&str], positive: &[&str]) -> Value {
    let mut all = vec!["bench"];
    all.extend_from_slice(arguments);
    all.push("--json");
    let found = json_of(&start_command(&all).finish());
    assert_eq!(found["benchmark"], arguments[0]);
    for field in positive {
        assert!(found[*field].as_f64().is_some_and(|value| value > 0.0), "{field} in {found}");
    }
    found
}

#[test]
fn help_is_broken_where_a_line_is_full() {
    let ended = start_command(&["bench", "--help"]).finish();
    let commands = ended.stdout.split("Commands:").nth(1).expect("a list").split("Options:").next().expect("a part");
    // There are two columns; descriptions continue below their commands.
    let names: Vec<&str> = commands
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(names.contains(&"remote-paging") && names.len() > 10, "{names:?}");
    for name in names {
        let help = start_command(&["bench", name, "--help"]).finish().stdout;
        let lines: Vec<&str> = help.lines().collect();
        let longest = lines.iter().map(|line| line.chars().count()).max().expect("there are lines");
        for pair in lines.windows(2).filter(|pair| pair.iter().all(|line| line.starts_with(char::is_alphabetic))) {
            let word = pair[1].split(' ').next().expect("a word");
            let fits = pair[0].chars().count() + 1 + word.chars().count() <= longest;
            assert!(!fits, "bench {name}: `{word}` fits behind `{}`", pair[0]);
        }
    }
}

#[test]
fn the_published_options_are_those_of_the_command() {
    let published = include_str!("../../../docs/reference/options.md");
    let printed = start_command(&["manual", "--markdown"]).finish().stdout;
    let again = "print it again: cargo run -p trellis-cli -- manual --markdown > docs/reference/options.md";
    assert!(printed == published, "{again}");
}

#[test]
fn shells_and_manuals_know_every_command() {
    let folder = Folder::new();
    let ended = start_command(&["manual", &folder.argument("manual")]).finish();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""), "{ended:?}");
    let mut pages: Vec<String> = fs::read_dir(folder.file("manual"))
        .expect("a folder")
        .map(|entry| entry.expect("a page").file_name().to_string_lossy().into_owned())
        .collect();
    pages.sort();
    for page in ["trellis.1", "trellis-run.1", "trellis-controller-move.1", "trellis-completions.1"] {
        assert!(pages.iter().any(|name| name == page), "{page}: {pages:?}");
    }
    assert!(!pages.iter().any(|name| name.contains("manual") || name.contains("lab-init")), "hidden ones: {pages:?}");
    let run = fs::read_to_string(folder.file("manual").join("trellis-run.1")).expect("a page");
    for part in [".SH EXAMPLES", "\\-\\-nodes", ".TH trellis"] {
        assert!(run.contains(part), "{part}: {run}");
    }
    for (shell, part) in [("bash", "complete -F"), ("zsh", "#compdef trellis"), ("fish", "complete -c trellis")] {
        let script = start_command(&["completions", shell]).finish().stdout;
        assert!(script.contains(part) && script.contains("reproduce"), "{shell}: {script}");
    }
    let ended = start_command(&["completions", "cmd.exe"]).finish();
    assert_eq!(ended.code, Some(2), "{ended:?}");
}

#[test]
fn bench_fault_reports_the_floor_and_every_kind_of_fault() {
    if !catcher_works("bench_fault_reports_the_floor_and_every_kind_of_fault", "signal") {
        return;
    }
    let found = benchmark(
        &["fault", "--samples", "100"],
        &[
            "link_rtt_us_p50",
            "local_fault_us_p50",
            "floor_us",
            "read_us_p50",
            "read_us_p99",
            "write_us_p50",
            "upgrade_us_p50",
            "busy_read_us_p50",
            "busy_read_us_p99",
            "read_over_floor",
            "write_over_floor",
            "upgrade_over_floor",
            "samples",
        ],
    );
    assert_eq!((&found["catch"], &found["link"]), (&"signal".into(), &"tcp".into()));
    let number = |field: &str| found[field].as_f64().expect("number");
    let floor = number("link_rtt_us_p50") + number("local_fault_us_p50");
    assert!((number("floor_us") - floor).abs() <= floor / 1000.0, "{found}");
}

#[test]
fn bench_fault_runs_with_every_catcher() {
    for catcher in ["handler", "mprotect"] {
        if !catcher_works("bench_fault_runs_with_every_catcher", catcher) {
            continue;
        }
        let found = benchmark(&["fault", "--samples", "100", "--catch", catcher], &["read_us_p50", "floor_us"]);
        assert_eq!(found["catch"], catcher);
    }
}

#[test]
fn bench_fault_runs_sealed() {
    if !catcher_works("bench_fault_runs_sealed", "signal") {
        return;
    }
    let found = benchmark(&["fault", "--samples", "100", "--security", "sealed"], &["read_us_p50"]);
    assert_eq!(found["security"], "sealed");
}

#[test]
fn bench_local_fault_measures_as_the_paper_did() {
    benchmark(
        &["local-fault", "--samples", "1000"],
        &["mprotect_pair_us_mean", "sigaction_fault_us_mean", "mprotect_fault_us_p50"],
    );
}

#[test]
fn bench_thrash_finishes_with_many_nodes() {
    if !catcher_works("bench_thrash_finishes_with_many_nodes", "signal") {
        return;
    }
    for nodes in ["2", "5"] {
        let found = benchmark(&["thrash", "--nodes", nodes, "--count", "50"], &["increments_per_second", "seconds"]);
        assert_eq!(found["count"], 50);
    }
}

#[test]
fn bench_lock_needs_no_message_to_take_a_lock_again() {
    if !catcher_works("bench_lock_needs_no_message_to_take_a_lock_again", "signal") {
        return;
    }
    let found = benchmark(&["lock", "--samples", "20"], &["reacquire_ns_mean", "handoff_us_p50"]);
    assert_eq!(found["reacquire_messages"], 0.0, "{found}");
}

#[test]
fn bench_barrier_stream_idle_and_memory_report() {
    if !catcher_works("bench_barrier_stream_idle_and_memory_report", "signal") {
        return;
    }
    benchmark(&["barrier", "--samples", "100"], &["barrier_us_p50", "link_rtt_us_p50", "barrier_over_link_rtt"]);
    benchmark(
        &["stream", "--mebibytes", "4", "--rounds", "2"],
        &["read_gb_per_s_p50", "raw_tcp_gb_per_s_p50", "read_over_raw_tcp"],
    );
    benchmark(&["idle", "--seconds", "0.2"], &["seconds"]);
    benchmark(&["start", "--rounds", "2"], &["run_ms_p50", "processes_ms_p50"]);
    benchmark(&["memory", "--gibibytes", "1"], &["resident_mib_large_max"]);
}

#[test]
fn bench_consistency_reports_each_figure_beside_its_yardstick() {
    if !catcher_works("bench_consistency_reports_each_figure_beside_its_yardstick", "signal") {
        return;
    }
    let found = benchmark(
        &["consistency", "--rounds", "3"],
        &[
            "false_sharing_ivy_us",
            "false_sharing_invalidate_us",
            "false_sharing_update_us",
            "false_sharing_adaptive_us",
            "ivy_over_hlrc",
            "sparse_mib_per_second",
            "diff_us_p50",
            "diff_apart_us_p50",
            "link_rtt_us_p50",
            "empty_barrier_us_p50",
            "barrier_over_link_rtt",
            "handoff_us_p50",
            "handoff_over_link_rtt",
            "idle_home_read_us_p50",
            "busy_home_read_us_p50",
            "busy_over_idle_home",
            "invalidate_round_us",
            "update_round_us",
            "adaptive_round_us",
            "invalidate_over_update",
            "first_store_us",
            "repeated_store_us",
        ],
    );
    // The first may be negative, and the second zero.
    assert!(found["cached_barrier_us_more"].is_number(), "{found}");
    assert!(found["first_store_faults"].as_f64().is_some_and(|faults| faults >= 0.0), "{found}");
    assert_eq!(found["rounds"], 3);
}

#[test]
fn doctor_says_what_is_chosen() {
    let found = json_of(&start_command(&["doctor", "--json"]).finish());
    assert_eq!(found["works"], true);
    assert!(found["catch"].is_string() && found["capabilities"].is_array(), "{found}");
    let tried = found["behind_a_switch"].as_array().expect("a list");
    let switch =
        |name: &str| tried.iter().find(|row| row["name"] == format!("switch `{name}`")).expect("each kind is there");
    assert!(switch("bpf")["detail"].is_string() && switch("openflow")["detail"].is_string(), "{found}");
    let possible = Command::new("unshare").args(["--user", "--map-root-user", "--net", "true"]).status();
    if possible.is_ok_and(|status| status.success()) {
        assert_eq!(switch("user")["works"], true, "{found}");
    }
    let text = start_command(&["doctor"]).finish();
    let chosen = format!("the catcher `{}` is used", found["catch"].as_str().expect("word"));
    assert!(text.stdout.contains(&chosen), "{}", text.stdout);
}

#[test]
fn reproduce_draws_pictures() {
    if !catcher_works("reproduce_draws_pictures", "signal") {
        return;
    }
    let folder = Folder::new();
    let directory = folder.path().to_str().expect("text");
    let run =
        start_command(&["reproduce", "libivy", "figure5", "--runs", "1", "--directory", directory, "--json"]).finish();
    let found = json_of(&run);
    let pictures = found["figure5"]["pictures"].as_array().expect("pictures");
    assert_eq!(pictures.len(), 4);
    for picture in pictures {
        let text = fs::read_to_string(picture.as_str().expect("path")).expect("file");
        assert!(text.starts_with("<?xml") && text.contains("node 3") && text.contains("<circle"), "{picture}");
    }
}

#[test]
fn report_turns_records_into_one_page() {
    let folder = Folder::new();
    let record = folder.file("record");
    let run = start_nodes(2, "sum", &["--record", record.to_str().expect("text")]).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    let report = start_command(&["report", record.to_str().expect("text")]).finish();
    assert_eq!(report.code, Some(0), "{report:?}");
    let page = fs::read_to_string(report.stdout.trim()).expect("page");
    assert!(page.contains("Faults per page") && page.contains("</html>"));
    let found = json_of(&start_command(&["report", record.to_str().expect("text"), "--json"]).finish());
    assert_eq!(found["node"].as_array().map(Vec::len), Some(2));
}

#[test]
fn report_without_records_says_where_they_come_from() {
    let folder = Folder::new();
    let run = start_command(&["report", folder.path().to_str().expect("text")]).finish();
    assert_eq!(run.code, Some(74));
    assert!(run.stderr.starts_with("trellis: ") && run.stderr.contains("TRELLIS_RECORD"), "{}", run.stderr);
}

#[test]
fn every_command_explains_itself_with_an_example() {
    for arguments in [
        &["run"][..],
        &["doctor"],
        &["report"],
        &["reproduce", "libivy"],
        &["bench", "local-fault"],
        &["bench", "fault"],
        &["bench", "thrash"],
        &["bench", "lock"],
        &["bench", "barrier"],
        &["bench", "stream"],
        &["bench", "idle"],
        &["bench", "start"],
        &["bench", "memory"],
        &["bench", "consistency"],
    ] {
        let mut all = arguments.to_vec();
        all.push("--help");
        let help = start_command(&all).finish();
        assert_eq!(help.code, Some(0));
        assert!(help.stdout.contains(&format!("trellis {}", arguments.join(" "))), "{arguments:?}: {}", help.stdout);
        assert!(help.stdout.contains("Example"), "{arguments:?} has no example");
    }
    assert_eq!(start_command(&["bench", "nonsense"]).finish().code, Some(2));
}

#[test]
#[ignore = "a role that tests start"]
fn acts_as_a_node_when_started_as_one() {
    if let Ok(role) = std::env::var("CLI_TEST_ROLE") {
        support::node::act(&role);
    }
}
