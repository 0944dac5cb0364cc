//! `trellis run --home memory-server`, driven from outside: unchanged programs, little memory, contended pages,
//! litmus tests, and servers that go away.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use support::{Run, start_command, start_role};
use trellis::Cluster;
use trellis_base::Random;
use trellis_testing::{Need, skip};

/// Whether a run can have its own memory server here; a test prints that it was skipped and why.
fn works(test: &str) -> bool {
    let answer = start_command(&["run", "--home", "memory-server", "--set", "region_bytes=64KiB", "true"]).finish();
    if answer.code != Some(0) {
        skip(test, Need::Namespaces, answer.stderr);
    }
    answer.code == Some(0)
}

fn nodes(count: usize, role: &str, options: &[&str]) -> Run {
    let count = count.to_string();
    start_role(role, &[&["-n", &count, "--home", "memory-server", "--stats"], options].concat())
}

#[test]
#[ignore = "a role that tests start"]
fn acts_as_a_node_when_started_as_one() {
    let Ok(role) = std::env::var("CLI_TEST_ROLE") else { return };
    let cluster = trellis::join().unwrap_or_else(|error| panic!("{error}"));
    match role.as_str() {
        "sort" => sort(&cluster),
        "alternate" => alternate(&cluster),
        "add" => add(&cluster),
        "refused" => refused(&cluster),
        "touch" => touch_until_the_end(&cluster),
        other => panic!("there is no role {other}"),
    }
    cluster.leave().unwrap_or_else(|error| panic!("{error}"));
}

fn word(cluster: &Cluster, index: usize) -> &AtomicU64 {
    assert!((index + 1) * 8 <= cluster.region().bytes());
    // SAFETY: inside the region, aligned, and only ever used as an atomic by these programs.
    unsafe { &*cluster.region().base().cast::<AtomicU64>().add(index) }
}

fn meet(cluster: &Cluster, barrier: u64) {
    cluster.barrier(barrier).unwrap_or_else(|error| panic!("{error}"));
}

/// Sorts numbers in the whole region: each node generates and sorts its part, then node 0 merges what it reads from
/// all parts.
fn sort(cluster: &Cluster) {
    let (me, nodes) = (cluster.node(), cluster.nodes());
    let each = cluster.region().bytes() / 8 / nodes;
    let mut sum = 0u64;
    {
        // SAFETY: nobody else uses this node's part before the barrier.
        let mine = unsafe { cluster.region().slice_mut::<u64>(me * each * 8, each) };
        let mut random = Random::new(me as u64);
        for number in mine.iter_mut() {
            *number = random.draw() >> 16;
            sum = sum.wrapping_add(*number);
        }
        mine.sort_unstable();
    }
    let total = cluster.atomic(1);
    total.fetch_add(sum).unwrap_or_else(|error| panic!("{error}"));
    meet(cluster, 1);
    if me == 0 {
        // SAFETY: nobody writes after the barrier.
        let all = unsafe { cluster.region().slice::<u64>(0, each * nodes) };
        let mut next: Vec<usize> = (0..nodes).map(|part| part * each).collect();
        let (mut last, mut seen) = (0, 0u64);
        for _ in 0..each * nodes {
            let left = (0..nodes).filter(|part| next[*part] < (part + 1) * each);
            let least = left.min_by_key(|part| all[next[*part]]).expect("numbers are left");
            let number = all[next[least]];
            next[least] += 1;
            assert!(number >= last, "the parts are in order");
            last = number;
            seen = seen.wrapping_add(number);
        }
        assert_eq!(seen, total.load().unwrap_or_else(|error| panic!("{error}")), "no number is lost");
        println!("sorted {} numbers", each * nodes);
    }
    meet(cluster, 2);
}

const TURNS: u64 = 1_000;

/// Word 0 says whose turn it is, and word 1, in the same page, counts.
fn alternate(cluster: &Cluster) {
    for turn in (cluster.node() as u64..2 * TURNS).step_by(2) {
        while word(cluster, 0).load(Ordering::SeqCst) != turn {
            std::thread::yield_now();
        }
        assert_eq!(word(cluster, 1).fetch_add(1, Ordering::SeqCst), turn);
        word(cluster, 0).store(turn + 1, Ordering::SeqCst);
    }
    meet(cluster, 1);
    println!("counted {}", word(cluster, 1).load(Ordering::SeqCst));
    meet(cluster, 2);
}

/// Hardware atomics on contended pages, and counters under locks.
fn add(cluster: &Cluster) {
    const ROUNDS: u64 = 300;
    for round in 0..ROUNDS {
        word(cluster, (round % 4 * 512) as usize).fetch_add(1, Ordering::SeqCst);
        let guard = cluster.mutex(round % 3).lock().unwrap_or_else(|error| panic!("{error}"));
        let counter = word(cluster, ((10 + round % 3) * 512) as usize);
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        drop(guard);
    }
    meet(cluster, 1);
    let sum = |pages: std::ops::Range<usize>| -> u64 {
        pages.map(|page| word(cluster, page * 512).load(Ordering::SeqCst)).sum()
    };
    println!("added {} {}", sum(0..4), sum(10..13));
    meet(cluster, 2);
}

/// Operations that pages under leases lack are refused, without any effect.
fn refused(cluster: &Cluster) {
    let lock = cluster.region().lock_range(0, 8).err().map(|error| error.to_string());
    let change = cluster.region().set_protocol(0, 4096, "migrate").err().map(|error| error.to_string());
    println!("lock: {}", lock.unwrap_or_default());
    println!("change: {}", change.unwrap_or_default());
    println!("catcher: {}, coherence: {}", cluster.region().catcher(), cluster.config().coherence_word());
}

/// Prints that it is up, and stores to one page after the other for ever.
fn touch_until_the_end(cluster: &Cluster) {
    println!("up {} {}", cluster.node(), std::process::id());
    let pages = cluster.region().bytes() / 4096;
    for round in 0.. {
        word(cluster, round % pages * 512).fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_program_sorts_four_times_what_its_caches_hold() {
    if !works("a_program_sorts_four_times_what_its_caches_hold") {
        return;
    }
    let run = nodes(2, "sort", &["--set", "region_bytes=8MiB", "--set", "heap_bytes=0", "--cache", "1MiB"]).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.stdout.contains("sorted 1048576 numbers"), "{run:?}");
    let count = |name: &str| -> u64 {
        let line = run.stderr.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("no {name}: {run:?}"));
        line.split_whitespace().filter_map(|word| word.replace(',', "").parse::<u64>().ok()).sum()
    };
    assert!(count("pages_evicted") > 1024 && count("pages_written_back") > 1024, "{run:?}");
}

#[test]
fn additions_of_all_nodes_are_all_there() {
    if !works("additions_of_all_nodes_are_all_there") {
        return;
    }
    let run = nodes(3, "add", &["--set", "region_bytes=1MiB"]).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(run.stdout.matches("added 900 900").count(), 3, "{run:?}");
}

#[test]
fn two_nodes_write_a_page_alternately() {
    if !works("two_nodes_write_a_page_alternately") {
        return;
    }
    let run = nodes(2, "alternate", &["--set", "region_bytes=64KiB"]).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(run.stdout.matches("counted 2000").count(), 2, "{run:?}");
}

#[test]
fn what_leases_have_not_is_refused_by_name() {
    if !works("what_leases_have_not_is_refused_by_name") {
        return;
    }
    let run = nodes(1, "refused", &["--set", "region_bytes=64KiB"]).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    for line in [
        "lock: the region lies at memory servers, where no range can be locked",
        "change: the region lies at memory servers, where no page has another protocol",
        "catcher: handler, coherence: lease",
    ] {
        assert!(run.stdout.contains(line), "{line}: {run:?}");
    }
    let run = start_command(&["run", "--home", "memory-server", "--set", "catch=signal", "true"]).finish();
    assert_eq!(run.code, Some(78), "{run:?}");
    assert!(run.stderr.contains("must wait in the kernel"), "{run:?}");
}

#[test]
fn litmus_tests_of_real_nodes_show_nothing_that_is_forbidden() {
    if !works("litmus_tests_of_real_nodes_show_nothing_that_is_forbidden") {
        return;
    }
    let few = ["check", "litmus", "--shape", "SB", "--nodes", "2", "--runs", "2"];
    let run = start_command(&[&few[..], &["--protocol", "ivy", "--set", "coherence=lease"]].concat()).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
}

#[test]
fn a_node_that_dies_ends_the_run() {
    if !works("a_node_that_dies_ends_the_run") {
        return;
    }
    let mut run = nodes(2, "touch", &["--set", "region_bytes=1MiB"]);
    run.wait_for_output("up ", 2);
    support::signal(run.node_pid(1), libc::SIGKILL);
    let ended = run.finish();
    assert_eq!(ended.code, Some(128 + 9), "{ended:?}");
    assert!(ended.stderr.contains("node 1"), "{ended:?}");
}
