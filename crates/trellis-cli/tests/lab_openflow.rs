//! `trellis lab up --switch openflow`: Open vSwitch starts and ends with the lab.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use trellis_switch::lab::space;
use trellis_switch::switches::openflow::OpenFlow;
use trellis_testing::{Need, skip};

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

fn lab(name: &str, task: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
    command.args(["lab", task, "--lab", name]).args(arguments).stdin(Stdio::null());
    command.output().expect("the command can be started")
}

fn fine(output: Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    text
}

/// Ends the lab however the test ends.
struct Ended<'a>(&'a str);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        // The test may already have ended it.
        lab(self.0, "down", &[]);
    }
}

fn status(name: &str) -> Value {
    serde_json::from_str(&fine(lab(name, "status", &["--json"]))).expect("JSON")
}

/// The child processes of this one that belong to Open vSwitch.
fn switches_of(parent: &Value) -> BTreeSet<String> {
    let parent = parent.to_string();
    let of_parent = |pid: &String| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        value("PPid:") == Some(&parent) && value("Name:").is_some_and(|name| name.starts_with("ovs"))
    };
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(of_parent).collect()
}

fn names_in(folder: &str) -> BTreeSet<OsString> {
    std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.file_name()).collect()
}

#[test]
fn open_vswitch_comes_and_goes_with_its_lab() {
    let test = "open_vswitch_comes_and_goes_with_its_lab";
    if !space::is_root() {
        return skip(test, Need::Root, "Open vSwitch takes root");
    }
    if let Some(lacking) = OpenFlow::lacking() {
        return skip(test, Need::Program, lacking);
    }
    let name = format!("openflow-{}", std::process::id());
    let before = names_in("/run");
    let ended = Ended(&name);
    fine(lab(&name, "up", &["--switch", "openflow", "--clients", "1", "--servers", "1", "--lease", "60000"]));
    let there = status(&name);
    let host = |name: &str| there["hosts"].as_array().and_then(|hosts| hosts.iter().find(|host| host["name"] == name));
    let address = host("s1").and_then(|host| host["address"].as_str()).expect("an address").to_owned();
    fine(lab(&name, "run", &["c1", "--", "bash", "-c", &format!("echo hello > /dev/udp/{address}/5000")]));
    let counters = |of: usize| status(&name)["hosts"][of]["counters"].clone();
    assert_eq!(counters(0)["delivered"], 1);
    assert_eq!(counters(1)["packets_out"], 1);
    let first = switches_of(&there["init_process"]);
    assert_eq!(first.len(), 2, "the database and the switch");
    // The lab, and everything that runs in it, stays when its switch restarts.
    fine(lab(&name, "restart", &[]));
    assert_eq!(status(&name)["is_without_switch"], false);
    fine(lab(&name, "run", &["c1", "--", "bash", "-c", &format!("echo hello > /dev/udp/{address}/5000")]));
    assert_eq!(counters(0)["delivered"], 1, "a new switch has counted what passed since");
    let programs = switches_of(&there["init_process"]);
    assert!(programs.len() == 2 && programs.is_disjoint(&first), "{first:?}, then {programs:?}");
    assert_eq!(names_in("/run"), before, "they write where nobody sees it");
    drop(ended);
    let deadline = Instant::now() + TIMEOUT;
    while programs.iter().any(|pid| Path::new("/proc").join(pid).exists()) {
        assert!(Instant::now() < deadline, "{programs:?} are left");
        std::thread::yield_now();
    }
    assert_eq!(names_in("/run"), before);
}
