//! Programs that know nothing of memory servers, with four times as much memory as is local: psort, word count, and a
//! search and ranks of a graph. Their results are the same as in local memory, also when the server with their memory
//! is killed while they run and another one has copies. Without a copy, the error names the server.

#[path = "support/library.rs"]
mod library;
#[path = "support/lab.rs"]
mod with_servers;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use trellis_base::Random;
use trellis_testing::{Folder, Need, compiled, skip};
use with_servers::Lab;

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The local memory of a program with its heap in a store, and of a node of psort.
const CACHE: &str = "1MiB";
const NODE_CACHE: &str = "2MiB";
/// Integers that psort sorts: 8 MiB.
const INTEGERS: &str = "1000000";
const REGION: [&str; 4] = ["--set", "region_bytes=9MiB", "--set", "heap_bytes=0"];
/// After this many packets of a server, a program is in the middle of its work.
const SOME_PACKETS: u64 = 1_000;

/// An example, compiled with the machine's compiler.
fn example(compiler: &str, source: &str, more: &[String]) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(source);
    let flags = ["-O1", "-pthread"].map(str::to_owned);
    compiled(compiler, &source, &[&flags, more].concat()).display().to_string()
}

/// psort, with the library of this build. `None` if that is missing; then the reason is printed.
fn psort(test: &str) -> Option<String> {
    let mut more = library::of_this_build(test)?;
    more.push("-std=c++20".to_owned());
    Some(example("c++", "psort/psort.cpp", &more))
}

/// A program with its arguments, and its output in local memory.
struct Work {
    command: Vec<String>,
    results: Vec<String>,
}

impl Work {
    fn new(command: &[&str]) -> Work {
        let output = Command::new(command[0]).args(&command[1..]).output().expect("it can be started");
        Work { command: command.iter().map(|word| (*word).to_owned()).collect(), results: results(&output) }
    }

    /// Starts it in the first client, with its memory at a store.
    fn start(&self, lab: &Lab, store: &str) -> Child {
        let own = env!("CARGO_BIN_EXE_trellis");
        let run = ["c1", "--", own, "store", "run", "--statistics", "--store", store, "--cache", CACHE, "--"];
        let mut command = lab.command("run", &run);
        command.args(&self.command).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it can be started")
    }

    /// Checks that its results are the same, and that its memory was elsewhere.
    fn compare(&self, output: &Output) {
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(results(output), self.results, "{:?}: {printed}", self.command);
        let fetched = printed.split_once(" fetched (").and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok());
        assert!(fetched.is_some_and(|pages: u64| pages > 512), "{:?} has all of it here: {printed}", self.command);
    }
}

/// The results of a program, without times.
fn results(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let without = |line: &str| line.split(", ").filter(|part| !part.ends_with(" ms")).collect::<Vec<_>>().join(", ");
    text.lines().map(without).collect()
}

/// A generated graph, and one from a file, each with some 4 MiB.
fn graphs(folder: &Folder) -> Vec<Work> {
    let graph = example("c++", "graph/graph.cpp", &["-std=c++20".to_owned()]);
    let edges = folder.argument("edges");
    std::fs::write(&edges, edge_list(1 << 12, 1 << 16)).expect("a file");
    let common = ["--threads", "2", "--iterations", "2"];
    let all = [&[&graph[..], "--scale", "12"][..], &[&graph, "--input", &edges]];
    all.into_iter().map(|kind| Work::new(&[kind, &common].concat())).collect()
}

/// Word count, of a text of 4 MiB.
fn words(folder: &Folder) -> Work {
    let text = folder.argument("text");
    let lines: String = (0..320_000u64).map(|number| format!("word {}\n", number * number % 997)).collect();
    std::fs::write(&text, lines.repeat(2)).expect("a file");
    Work::new(&[&example("cc", "stored/word_count.c", &[]), &text])
}

/// Edges of which few vertices have the most: one end is uniformly distributed, the other is the square of a uniform
/// number.
fn edge_list(vertices: u64, edges: u64) -> String {
    let mut random = Random::new(1);
    let mut text = String::from("# from to\n");
    for _ in 0..edges {
        let (from, rank) = (random.below(vertices), random.below(vertices));
        text += &format!("{from} {}\n", rank * rank / vertices);
    }
    text
}

/// A lab with two clients, the last of which is for a controller, and two servers. `None` if something is missing,
/// which is printed.
fn lab(test: &str, name: &str) -> Option<Lab> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
    let output = command.args(["store", "run", "--store", "embedded:", "--", "true"]).output();
    let output = output.expect("it can be started");
    if !output.status.success() {
        skip(test, Need::Part, String::from_utf8_lossy(&output.stderr));
        return None;
    }
    Lab::up(test, &format!("programs-{name}"), 2, 2, &[])
}

fn status_of(lab: &Lab) -> Value {
    let output = lab.ask("status", &["--json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The description of a host in the lab's status.
fn host(lab: &Lab, name: &str) -> Value {
    let status = status_of(lab);
    let hosts = status["hosts"].as_array().expect("hosts");
    hosts.iter().find(|host| host["name"] == name).expect("it is there").clone()
}

fn prefix(lab: &Lab, name: &str) -> String {
    host(lab, name)["prefix"].as_str().expect("a prefix").to_owned()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a controller and two servers, the second with a copy of the first's memory; returns when the copies are
/// complete.
fn place(lab: &mut Lab, folder: &Folder) {
    let controller = format!("{:#x}", host(lab, "c2")["number"].as_u64().unwrap());
    let control = folder.argument(format!("{}-control", lab.name));
    // Leases outlive the fail-over also on a machine that is busy.
    let term = ["--lease-term", "5s"];
    let run = ["controller", "run", "--records", "embedded:", "--leader-term", "500ms", "--control", &control];
    lab.start("c2", &[&run[..], &term].concat(), "controller ");
    for server in ["s1", "s2"] {
        let serve = ["serve", "--memory", "32MiB", "--backup-memory", "64MiB", "--controller", &controller];
        lab.start(server, &[&serve[..], &["--in-kernel", "off"], &term].concat(), "serving ");
    }
    wait_until("each has a copy of the other's memory", || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trellis"));
        let output = command.args(["controller", "status", "--json", "--control", &control]).output().expect("started");
        let status: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let ranges = status["ranges"].as_array().expect("ranges");
        ranges.len() == 2 && ranges.iter().all(|range| range["complete"].as_array().map(Vec::len) == Some(1))
    });
}

/// Kills a server when a program that uses its memory is in the middle of its work.
fn kill_in_the_midst(lab: &Lab, server: &str, program: &mut Child) {
    let packets = || host(lab, server)["counters"]["packets_out"].as_u64().expect("a number");
    let before = packets();
    wait_until("it uses its memory", || packets() > before + SOME_PACKETS);
    let output = lab.ask("kill", &[server]);
    assert!(output.status.success(), "{output:?}");
    assert!(program.try_wait().expect("it was started").is_none(), "it had ended before");
}

#[test]
fn words_and_graphs_have_their_memory_at_servers() {
    let test = "words_and_graphs_have_their_memory_at_servers";
    let Some(mut lab) = lab(test, "servers") else { return };
    for server in ["s1", "s2"] {
        lab.serve(server, "64MiB");
    }
    let store = format!("memory-server:{},{}?object=4MiB", prefix(&lab, "s1"), prefix(&lab, "s2"));
    let folder = Folder::new();
    for work in graphs(&folder).into_iter().chain([words(&folder)]) {
        work.compare(&work.start(&lab, &store).wait_with_output().expect("it ends"));
    }
}

#[test]
fn graphs_outlive_the_server_with_their_memory() {
    let test = "graphs_outlive_the_server_with_their_memory";
    let folder = Folder::new();
    for work in graphs(&folder) {
        let Some(mut lab) = lab(test, "outlive") else { return };
        place(&mut lab, &folder);
        let mut program = work.start(&lab, &format!("memory-server:{}?object=4MiB", prefix(&lab, "s1")));
        kill_in_the_midst(&lab, "s1", &mut program);
        work.compare(&program.wait_with_output().expect("it ends"));
    }
}

/// Sorts with two nodes of a host, and returns the output file.
fn sorted(folder: &Folder, psort: &str, begin: &[&str], options: &[&str]) -> Vec<u8> {
    let file = folder.argument("sorted");
    let (own, sort) = (env!("CARGO_BIN_EXE_trellis"), ["--", psort, INTEGERS, "--output", &file]);
    let words = [begin, &[own, "run", "-n", "2"], &REGION, options, &sort].concat();
    let output = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output().expect("it can be started");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(file).expect("it was written")
}

#[test]
fn psort_has_its_region_at_memory_servers() {
    let test = "psort_has_its_region_at_memory_servers";
    let folder = Folder::new();
    let Some(psort) = psort(test) else { return };
    let remote = ["--home", "memory-server", "--cache", NODE_CACHE];
    let tried = ["run", "--home", "memory-server", "--set", "region_bytes=64KiB", "true"];
    let tried = Command::new(env!("CARGO_BIN_EXE_trellis")).args(tried).output().expect("it can be started");
    if !tried.status.success() {
        skip(test, Need::Namespaces, String::from_utf8_lossy(&tried.stderr));
        return;
    }
    let alone = sorted(&folder, &psort, &[], &[]);
    assert_eq!(alone.len(), 8_000_000);
    assert!(sorted(&folder, &psort, &[], &remote) == alone, "at the run's own server");
    // At named servers, through the switch of a lab.
    let Some(mut lab) = Lab::up(test, "programs-psort", 1, 2, &[]) else { return };
    for server in ["s1", "s2"] {
        lab.serve(server, "64MiB");
    }
    let servers = format!("{},{}", prefix(&lab, "s1"), prefix(&lab, "s2"));
    let begin = [env!("CARGO_BIN_EXE_trellis"), "lab", "run", "--lab", &lab.name, "c1", "--"];
    let named = sorted(&folder, &psort, &begin, &[&remote[..], &["--memory-server", &servers]].concat());
    assert!(named == alone, "at two servers of a lab");
}

#[test]
fn a_run_ends_with_the_name_of_its_memory_server_that_is_killed() {
    let test = "a_run_ends_with_the_name_of_its_memory_server_that_is_killed";
    let Some(psort) = psort(test) else { return };
    let Some(mut lab) = Lab::up(test, "programs-psort-killed", 1, 2, &[]) else { return };
    for server in ["s1", "s2"] {
        lab.serve(server, "64MiB");
    }
    let (first, second) = (prefix(&lab, "s1"), prefix(&lab, "s2"));
    let servers = format!("{first},{second}");
    let begin = [&["c1", "--", env!("CARGO_BIN_EXE_trellis"), "run", "-n", "2"], &REGION[..]].concat();
    let options = ["--home", "memory-server", "--cache", NODE_CACHE, "--memory-server", &servers];
    let short = ["--set", "silence_seconds_max=3", "--", &psort, INTEGERS];
    let mut command = lab.command("run", &[&begin, &options[..], &short].concat());
    let mut run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started");
    kill_in_the_midst(&lab, "s2", &mut run);
    let output = run.wait_with_output().expect("it ends");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(70), "{printed}");
    assert!(printed.contains(&format!("of the region cannot be had at memory server {second}: ")), "{printed}");
    // By default it would be 10 s.
    assert!((3.0..10.0).contains(&with_servers::seconds_without_answer(&printed, &second.to_string())), "{printed}");
}

#[test]
fn psort_outlives_the_server_with_its_region() {
    let test = "psort_outlives_the_server_with_its_region";
    let folder = Folder::new();
    let Some(psort) = psort(test) else { return };
    let Some(mut lab) = Lab::up(test, "programs-psort-outlives", 2, 2, &[]) else { return };
    let alone = sorted(&folder, &psort, &[], &[]);
    place(&mut lab, &folder);
    let (own, file, servers) = (env!("CARGO_BIN_EXE_trellis"), folder.argument("outlived"), prefix(&lab, "s1"));
    let options = ["--home", "memory-server", "--cache", CACHE, "--memory-server", &servers];
    let begin = [&["c1", "--", own, "run", "-n", "2"], &REGION[..]].concat();
    let mut command =
        lab.command("run", &[&begin, &options[..], &["--", &psort, INTEGERS, "--output", &file]].concat());
    let mut run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started");
    // Its nodes have pages under leases, with changes that no other process has.
    kill_in_the_midst(&lab, "s1", &mut run);
    let output = run.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::read(&file).expect("it was written") == alone, "nothing is lost");
}
