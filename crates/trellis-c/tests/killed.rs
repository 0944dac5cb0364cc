//! A peer that prevents every wait from ending. If it is killed, every call and every page fault that waits for it
//! fails at once and names it. If it is only late, the call reports after its time-out who holds the object or who is
//! missing.
//!
//! Promises: real processes, each a child of the test, over every link that needs no hardware. A peer is stopped
//! before the others call and killed when they sleep, so that they do wait for it. Silence is allowed for an hour, so
//! that only the death itself is noticed.

mod support;

use std::path::Path;

use support::{C, Node};

/// The waits of `programs/killed.c`, and whether the call returns an error: a page fault cannot return one, and ends
/// the process.
const WAITS: &[(&str, bool)] = &[
    ("barrier", true),
    ("reduce", true),
    ("broadcast", true),
    ("count", true),
    ("count-at-victim", true),
    ("lock", true),
    ("lock-at-victim", true),
    ("try-lock-for", true),
    ("try-lock-for-at-victim", true),
    ("rwlock-read", true),
    ("rwlock-write", true),
    ("rwlock-try-read-for", true),
    ("rwlock-try-write-for", true),
    ("rwlock-at-victim", true),
    ("condition", true),
    ("condition-at-other", true),
    ("condition-for", true),
    ("notify-at-victim", true),
    ("semaphore", true),
    ("semaphore-at-victim", true),
    ("semaphore-for", true),
    ("release-at-victim", true),
    ("event", true),
    ("event-at-victim", true),
    ("event-for", true),
    ("set-at-victim", true),
    ("once", true),
    ("once-at-victim", true),
    ("word-at-victim", true),
    ("allocate", true),
    ("free-at-victim", true),
    ("measure-at-victim", true),
    ("read-fault", false),
    ("write-fault", false),
    ("publish", true),
    ("update", true),
    ("change-protocol", true),
    ("leave", true),
];

/// The message of a call that timed out only because node 1 is late.
const LATE: &[(&str, &str)] = &[
    ("barrier", "waiting in barrier 2: waiting for node 1 ("),
    ("reduce", "waiting in barrier 2: waiting for node 1 ("),
    ("count", "of 3 participants have come (1 of node "),
    ("lock", "waiting for lock 302: node 1 ("),
    ("rwlock-read", "waiting for read-write lock 302: node 1 ("),
    ("rwlock-write", "waiting for read-write lock 302: "),
    ("once", "waiting for once 302: node 1 ("),
    ("semaphore", "waiting for semaphore 302: nobody has released it"),
    ("event", "waiting for event 302: nobody has set it"),
    ("condition", "waiting for condition 301: nobody has notified it"),
];

const NODES: usize = 3;
const LINKS: [&str; 3] = ["tcp", "shm", "udp"];
const COHERENCE: [&str; 3] = ["hlrc(invalidate)", "hlrc(update)", "hlrc(adaptive)"];

/// A cluster of `killed.c`, in which every node has prepared the wait.
struct Cluster {
    folder: std::path::PathBuf,
    nodes: Vec<Node>,
}

impl Cluster {
    fn start(
        program: &Path,
        wait: &str,
        victim: usize,
        link: &str,
        coherence: &str,
        wait_seconds_max: &str,
    ) -> Cluster {
        let folder = support::fresh_folder(&format!("killed-{wait}-{victim}-{link}"));
        let variables = [
            ("TRELLIS_LINK", link),
            ("TRELLIS_COHERENCE", coherence),
            ("TRELLIS_HOME", "interleaved"),
            ("TRELLIS_REGION_BYTES", "8MiB"),
            ("TRELLIS_SILENCE_SECONDS_MAX", "3600"),
            ("TRELLIS_WAIT_SECONDS_MAX", wait_seconds_max),
        ];
        let nodes = support::start_cluster(&folder, program, NODES, &[wait, &victim.to_string()], &variables);
        let mut cluster = Cluster { folder, nodes };
        cluster.nodes.iter_mut().for_each(|node| drop(node.until_printed("ready")));
        cluster
    }

    fn write(&self, file: &str) {
        std::fs::write(self.folder.join(file), "").unwrap();
    }
}

#[test]
fn a_killed_peer_is_named_by_every_wait_for_it() {
    let Some(program) = support::compile("killed", &C, &support::program("killed.c"), &[]) else { return };
    for (row, &(wait, returns)) in WAITS.iter().enumerate() {
        for victim in [0, 1] {
            // Node 0 keeps the heap's pages: other nodes get theirs whoever else is lost.
            if wait == "allocate" && victim != 0 {
                continue;
            }
            // A few rows combine every wait with every link; `update` needs copies that are kept.
            let link = LINKS[(row + victim) % LINKS.len()];
            let coherence =
                if wait == "update" { COHERENCE[1] } else { COHERENCE[(row / 3 + victim) % COHERENCE.len()] };
            kill(&program, wait, returns, victim, link, coherence);
        }
    }
}

fn kill(program: &Path, wait: &str, returns: bool, victim: usize, link: &str, coherence: &str) {
    let before = shared_by_name();
    let mut cluster = Cluster::start(program, wait, victim, link, coherence, "3600");
    let case = format!("{wait}, node {victim} killed, {link}, {coherence}");
    // On a slow machine, nodes have complained of others that start late.
    let at_start = cluster.nodes.iter().map(|node| node.complained().len()).collect::<Vec<_>>();
    cluster.nodes[victim].stop();
    cluster.write("over");
    cluster.write("go");
    let survivors: Vec<usize> = (0..NODES).filter(|&node| node != victim).collect();
    for &node in &survivors {
        cluster.nodes[node].until_begun("waits");
        // The node that writes continuously sleeps only occasionally.
        if wait != "update" {
            cluster.nodes[node].until_asleep();
        }
    }
    cluster.nodes[victim].kill();
    for &node in &survivors {
        let status = cluster.nodes[node].end();
        let (printed, complained) = (cluster.nodes[node].printed(), cluster.nodes[node].complained());
        assert_eq!(status.code(), Some(70), "{case}: node {node} printed {printed} and complained {complained}");
        let report = match returns {
            true => printed.split_once("told: ").map_or("", |(_, report)| report).to_owned(),
            // A complaint of a long wait is not about the death.
            false => complained[at_start[node]..]
                .lines()
                .filter(|line| !line.ends_with(" at the latest"))
                .collect::<Vec<_>>()
                .join("\n"),
        };
        assert!(report.contains(&format!("node {victim} (127.0.0.1:")), "{case}: node {node} says {report:?}");
        for other in survivors.iter().filter(|&&other| other != node) {
            assert!(!report.contains(&format!("node {other} (")), "{case}: node {node} blames a survivor: {report}");
        }
    }
    assert_nothing_is_left(&cluster.folder, &before, &case);
}

/// Asserts that the nodes left only the files that the test made them write, and nothing new in named shared memory.
fn assert_nothing_is_left(folder: &Path, before: &[String], case: &str) {
    for node in 0..NODES {
        assert_eq!(names(&folder.join(node.to_string())), ["stderr", "stdout"], "{case}");
    }
    let left: Vec<String> = shared_by_name().into_iter().filter(|name| !before.contains(name)).collect();
    assert!(left.is_empty(), "{case}: {left:?} in /dev/shm");
}

/// All names of Trellis in named shared memory, whoever created them, except the folders of other tests.
fn shared_by_name() -> Vec<String> {
    let is_ours = |name: &String| name.contains("trellis") && !name.starts_with("trellis-test-");
    names(Path::new("/dev/shm")).into_iter().filter(is_ours).collect()
}

/// The names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).map(|entries| entries.flatten().collect::<Vec<_>>()).unwrap_or_default();
    let mut names: Vec<String> = entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_late_peer_is_named_when_the_deadline_passes() {
    let Some(program) = support::compile("late", &C, &support::program("killed.c"), &[]) else { return };
    for (row, (wait, expected)) in LATE.iter().enumerate() {
        let coherence = COHERENCE[row % COHERENCE.len()];
        let mut cluster = Cluster::start(&program, wait, 1, LINKS[row % LINKS.len()], coherence, "2");
        cluster.write("go");
        for node in [0, 2] {
            let printed = cluster.nodes[node].until_begun("told: ");
            let complained = (0..NODES).map(|node| cluster.nodes[node].complained()).collect::<Vec<_>>();
            let is_reported = printed.contains("told: gave up after 2 s ") && printed.contains(expected);
            assert!(is_reported, "{wait}, node {node}: {printed}; complaints: {complained:?}");
        }
    }
}

/// Node 0 keeps the heap's directory; if it passes a question on to the node that has the block, it is not to blame.
#[test]
fn the_node_that_owes_the_heap_an_answer_is_named() {
    let Some(program) = support::compile("stopped", &C, &support::program("killed.c"), &[]) else { return };
    for (row, (wait, victim, what)) in [
        ("free-at-victim", 1, "which has the block"),
        ("measure-at-victim", 1, "which has the block"),
        ("free-at-victim", 0, "which keeps the heap's directory"),
        ("allocate", 0, "which keeps the heap's directory"),
    ]
    .into_iter()
    .enumerate()
    {
        let coherence = COHERENCE[row % COHERENCE.len()];
        let mut cluster = Cluster::start(&program, wait, victim, LINKS[row % LINKS.len()], coherence, "2");
        cluster.nodes[victim].stop();
        cluster.write("go");
        for node in (0..NODES).filter(|&node| node != victim) {
            let printed = cluster.nodes[node].until_begun("told: ");
            let report = printed.split_once("told: ").map_or("", |(_, report)| report).lines().next().unwrap_or("");
            let begin = format!("gave up after 2 s waiting for the shared heap: no answer from node {victim} (");
            assert!(report.starts_with(&begin) && report.ends_with(what), "{wait}, node {node}: {report}");
        }
    }
}
