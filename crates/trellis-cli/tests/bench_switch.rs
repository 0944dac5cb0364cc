//! `trellis bench switch`, `trellis bench remote-paging` and `trellis reproduce bluebridge` in a user namespace:
//! everything works and nothing is left.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use trellis_testing::{Need, skip};

/// The sources of a faulting page; each is measured, or there is a reason.
const CONDITIONS: [&str; 6] =
    ["with_directory", "without_directory", "signal", "in_kernel", "local_cached", "local_disk"];

/// `None` if no user namespace can be made; the reason is printed.
fn output(test: &str, arguments: &[&str]) -> Option<Output> {
    let output = Command::new(env!("CARGO_BIN_EXE_trellis")).args(arguments).output().expect("it can be started");
    let printed = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(71) && printed.contains("user namespace") {
        skip(test, Need::Namespaces, printed);
        return None;
    }
    Some(output)
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn every_figure_is_there_or_has_a_reason() {
    let test = "every_figure_is_there_or_has_a_reason";
    let arguments = ["bench", "switch", "--switch", "user", "--rootless", "--quick", "--json"];
    let Some(output) = output(test, &arguments) else { return };
    let found = json(&output);
    assert_eq!((&found["switch"], &found["rootless"]), (&"user".into(), &true.into()));
    for figure in ["veth_us_p50", "read_64_us_p50", "read_4k_us_p50", "directory_us_p50", "full_table_us_p50"] {
        assert!(found[figure].as_f64().is_some_and(|us| us > 0.0), "{figure}: {found}");
    }
    for ratio in ["read_4k_over_veth", "directory_over_read_4k", "full_table_over_read_4k"] {
        assert!(found[ratio].as_f64().is_some_and(f64::is_finite), "{ratio}: {found}");
    }
    for what in ["in_kernel", "update"] {
        let value = &found[format!("{what}_us_p50")];
        assert!(value.is_number() || found[format!("{what}_left_out")].is_string(), "{what}: {found}");
    }
    assert_eq!((&found["rack_reads"], &found["rack_unanswered"]), (&100.0.into(), &0.0.into()));
    assert!(found["requests_per_second"].as_f64() > Some(0.0) && found["failover_gap_ms_max"].is_number());
    for moved in ["migration", "pages_migration"] {
        let of = |figure: &str| &found[format!("{moved}_{figure}")];
        assert_eq!((of("lost"), of("wrong")), (&0.0.into(), &0.0.into()), "{moved}: {found}");
        assert!(of("requests").as_f64() > Some(256.0) && of("slowest_ms").is_number(), "{moved}: {found}");
    }
}

#[test]
fn every_way_to_page_has_every_pass_or_a_reason() {
    let test = "every_way_to_page_has_every_pass_or_a_reason";
    let sizes = ["--bytes", "4MiB", "--cache", "1MiB"];
    let arguments = [&["bench", "remote-paging", "--rootless", "--json"][..], &sizes].concat();
    let Some(output) = output(test, &arguments) else { return };
    let printed = String::from_utf8_lossy(&output.stderr);
    if printed.contains("the compiler's parts") {
        return skip(test, Need::Part, printed);
    }
    let found = json(&output);
    let passes = ["fill", "scan", "update", "work", "touch"];
    for way in ["memory", "swap", "mapped", "remote_veth", "remote_user", "remote_nft"] {
        let reason = found[format!("{way}_left_out")].as_str();
        for pass in passes {
            let seconds = found[format!("{way}_{pass}_seconds")].as_f64();
            assert!(seconds.is_some_and(|seconds| seconds > 0.0) != reason.is_some(), "{way}, {pass}: {found}");
            let ratio = &found[format!("{way}_{pass}_over_memory")];
            assert!(way == "memory" || ratio.is_number() != reason.is_some(), "{way}, {pass}: {found}");
        }
    }
    // The memory is four times the cache: in local memory and at a server, whatever else this machine allows.
    for way in ["memory", "remote_veth", "remote_user"] {
        assert!(found[format!("{way}_left_out")].is_null(), "{found}");
    }
    assert!(found["remote_veth_pages_fetched"].as_f64() > Some(1024.0), "{found}");
    assert!(found["remote_veth_written_back_bytes"].as_f64() > Some(4e6), "{found}");
}

#[test]
fn the_papers_numbers_stand_beside_ours() {
    let test = "the_papers_numbers_stand_beside_ours";
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bluebridge-{}", std::process::id()));
    let folder = directory.to_str().expect("it is text");
    let common = ["--switch", "user", "--rootless", "--quick", "--directory", folder];
    let Some(output) = output(test, &[&["reproduce", "bluebridge", "--json"][..], &common].concat()) else { return };
    let found = json(&output);
    assert_eq!(found["figure4"]["paper"]["local_us"], 24.304);
    for condition in CONDITIONS {
        let of = |figure: &str| &found[figure]["ours"][condition]["us_p50"];
        let is_left_out = |figure: &str| found[figure]["left_out"][condition].is_string();
        let is_whole = of("figure4").as_f64() > Some(0.0);
        assert!(is_whole != is_left_out("figure4"), "{condition}: {found}");
        let is_of_parts = of("figure5").as_array().is_some_and(|parts| parts.len() == 4);
        assert!(is_of_parts != is_left_out("figure5"), "{condition}: {found}");
    }
    let operations = found["table1"]["ours"][0]["us_p50"].as_array().expect("four operations");
    assert!(operations.len() == 4 && operations.iter().all(|us| us.as_f64() > Some(0.0)), "{found}");
    let left_out = found["table1"]["fabric_left_out"].as_str();
    let over = found["table1"]["ours"][1]["over"].as_str();
    if cfg!(feature = "fabric") {
        assert!(left_out.is_none() && over.is_some_and(|over| over.starts_with("libfabric, tcp")), "{found}");
    } else {
        assert!(left_out.is_some_and(|why| why.contains("--features fabric")) && over.is_none(), "{found}");
    }
    for picture in ["figure4.svg", "figure5.svg"] {
        let text = std::fs::read_to_string(directory.join(picture)).expect("it was written");
        assert!(text.contains("<svg") && text.contains("as directory"), "{text}");
    }
    std::fs::remove_dir_all(&directory).expect("it is ours");
}

#[test]
fn what_cannot_be_is_one_sentence() {
    for (arguments, code, sentence) in [
        (&["bench", "switch", "--switch", "hub"][..], 78, "there is no switch `hub` here"),
        (
            &["bench", "switch", "--switch", "bpf", "--rootless"],
            78,
            "the switch bpf takes root; without, give --switch",
        ),
        (&["bench", "switch", "--rounds", "0"], 2, "0"),
        (&["reproduce", "bluebridge", "figure9"], 2, "figure4"),
        (&["bench-inside", "{}"], 0, ""),
    ] {
        let is_hidden = arguments[0] == "bench-inside";
        let program = if is_hidden { env!("CARGO_BIN_EXE_trellis-bench") } else { env!("CARGO_BIN_EXE_trellis") };
        let output = Command::new(program).args(arguments).output().expect("it can be started");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && printed.contains(sentence), "{arguments:?}: {printed}");
    }
}
