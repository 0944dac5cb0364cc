//! `hlrc` in the runtime: real catchers, real threads, several nodes.
//!
//! Promises: programs without data races see what sequential consistency would show them, whatever the propagation, the
//! home, the catcher and the way in which stores are noticed.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use support::{REGION_BYTES, run};
use trellis::config::{Catch, Home, WriteDetection};
use trellis::{Cluster, Protocol};

const PAGE_BYTES: usize = 4096;
const PAGE_WORDS: usize = PAGE_BYTES / 8;

/// Every protocol with release consistency; every catcher, home and way to notice stores in turn.
fn on_every_kind(nodes: usize, program: impl Fn(&Cluster) + Sync) {
    let homes = [Home::Manager, Home::Interleaved, Home::FirstTouch, Home::Migrating];
    for coherence in Protocol::all_release_consistent() {
        for (number, home) in homes.into_iter().enumerate() {
            for detection in [WriteDetection::Auto, WriteDetection::Faults] {
                let catch = [Catch::Signal, Catch::Handler, Catch::Mprotect][number % 3];
                println!("{coherence}, {home}, {catch}, {detection}");
                let change = |config: &mut trellis::Config| {
                    (config.coherence, config.home) = (coherence, home);
                    (config.catch, config.write_detection) = (catch, detection);
                };
                run(nodes, change, &program);
            }
        }
    }
}

/// Reads a word as a program without data races does.
fn load(cluster: &Cluster, index: usize) -> u64 {
    assert!(index * 8 < REGION_BYTES);
    // SAFETY: inside the region and aligned; these tests order loads and stores by locks and barriers.
    unsafe { cluster.region().base().cast::<u64>().add(index).read_volatile() }
}

fn store(cluster: &Cluster, index: usize, value: u64) {
    assert!(index * 8 < REGION_BYTES);
    // SAFETY: as above.
    unsafe { cluster.region().base().cast::<u64>().add(index).write_volatile(value) }
}

#[test]
fn what_one_node_stores_the_others_load_after_a_barrier() {
    on_every_kind(3, |cluster| {
        // Neighbouring words of all nodes are on one page, and pages are many.
        let words = 3 * 4096;
        for round in 1..=4u64 {
            for index in (0..words).filter(|index| index % 3 == cluster.node()) {
                store(cluster, index, index as u64 * 7 + round);
            }
            cluster.barrier(1).unwrap();
            for index in 0..words {
                assert_eq!(load(cluster, index), index as u64 * 7 + round, "word {index} in round {round}");
            }
            cluster.barrier(2).unwrap();
        }
    });
}

/// With one barrier a round such pages stay open and are compared with their twins; then they rest, and are stored to
/// again.
#[test]
fn pages_that_are_stored_to_in_every_interval_lose_nothing() {
    const PAGES: usize = 40;
    let stored_in = |round: u64| !(8..13).contains(&round);
    on_every_kind(2, |cluster| {
        let me = cluster.node();
        let place = |page: usize, round: u64, node: usize| page * PAGE_WORDS + (round as usize % 50) * 2 + node;
        for round in 1..=20u64 {
            for page in (0..PAGES).filter(|_| stored_in(round)) {
                store(cluster, place(page, round, me), round << 32 | page as u64);
            }
            cluster.barrier(1).unwrap();
            for page in 0..PAGES {
                for earlier in (1..=round).filter(|&earlier| stored_in(earlier)) {
                    let found = load(cluster, place(page, earlier, 1 - me));
                    assert_eq!(found, earlier << 32 | page as u64, "page {page}, stored in {earlier}, seen in {round}");
                }
            }
        }
        cluster.barrier(2).unwrap();
    });
}

#[test]
fn counters_under_locks_count_although_they_share_pages() {
    const ROUNDS: usize = 100;
    on_every_kind(3, |cluster| {
        for round in 0..ROUNDS {
            // Each lock has a word on each of two pages, beside those of the other locks.
            let lock = round % 4;
            let _guard = cluster.mutex(lock as u64).lock().unwrap();
            for page in 0..2 {
                let index = page * PAGE_WORDS + lock;
                store(cluster, index, load(cluster, index) + 1);
            }
        }
        cluster.barrier(0).unwrap();
        for index in (0..4).flat_map(|lock| [lock, PAGE_WORDS + lock]) {
            assert_eq!(load(cluster, index), 3 * ROUNDS as u64 / 4, "word {index}");
        }
        cluster.barrier(1).unwrap();
    });
}

/// Nodes count in words of one page, two of them in turn. Once they have it, nobody fetches it any more.
fn count(nodes: usize, counting: std::ops::Range<usize>, change: impl Fn(&mut trellis::Config)) {
    const EACH: u64 = 90;
    let in_turn = counting.len() == 2;
    let (fetched, piggybacked) = (AtomicU64::new(0), AtomicU64::new(0));
    run(nodes, change, |cluster| {
        let node = cluster.node();
        let mut left = if counting.contains(&node) { EACH } else { 0 };
        while left > 0 {
            let _guard = cluster.mutex(0).lock().unwrap();
            let count = load(cluster, 1);
            if !in_turn || counting.start as u64 + count % 2 == node as u64 {
                // Its own word, and one that all share.
                store(cluster, 2 + node, load(cluster, 2 + node) + 1);
                store(cluster, 1, count + 1);
                left -= 1;
            }
        }
        let counted = cluster.counters();
        fetched.fetch_add(counted.pages_in, Ordering::Relaxed);
        piggybacked.fetch_add(counted.pages_piggybacked_in, Ordering::Relaxed);
        cluster.barrier(0).unwrap();
        assert_eq!(load(cluster, 1), EACH * counting.len() as u64);
        for other in counting.clone() {
            assert_eq!(load(cluster, 2 + other), EACH, "node {other}");
        }
        cluster.barrier(1).unwrap();
    });
    let (fetched, piggybacked) = (fetched.into_inner(), piggybacked.into_inner());
    println!("fetched {fetched}, piggybacked {piggybacked}");
    assert!(fetched <= 2 * counting.len() as u64, "{fetched} pages were fetched");
    // In turn it changes hands each time; where one of the two is its home, that one has the diffs.
    assert!(!in_turn || piggybacked >= EACH - 4, "only {piggybacked} pages were piggybacked");
}

#[test]
fn a_page_goes_with_its_lock_and_is_not_fetched() {
    for coherence in ["hlrc(invalidate)", "hlrc(adaptive)"] {
        for (number, detection) in [WriteDetection::Auto, WriteDetection::Faults].into_iter().enumerate() {
            for (nodes, counting) in [(2, 0..2), (3, 1..3), (3, 0..3), (4, 1..4)] {
                let catch = [Catch::Signal, Catch::Handler, Catch::Mprotect][(number + nodes) % 3];
                println!("{coherence}, {catch}, {detection}, nodes {counting:?} of {nodes}");
                count(nodes, counting, |config| {
                    (config.coherence, config.home) = (coherence.parse().unwrap(), Home::Manager);
                    (config.catch, config.write_detection) = (catch, detection);
                });
            }
        }
    }
}

#[test]
fn what_was_learnt_is_passed_on() {
    on_every_kind(3, |cluster| {
        for round in 1..=20u64 {
            // Node 0 stores and hands on to 1, which hands on to 2, which never met 0.
            let me = cluster.node();
            if me == 0 {
                store(cluster, 5, round);
                cluster.atomic(1).store(round).unwrap();
            } else {
                while cluster.atomic(me as u64).load().unwrap() < round {}
                if me == 1 {
                    cluster.atomic(2).store(round).unwrap();
                } else {
                    assert_eq!(load(cluster, 5), round);
                }
            }
            cluster.barrier(0).unwrap();
        }
    });
}

#[test]
fn threads_of_a_node_share_its_pages_with_other_nodes() {
    on_every_kind(2, |cluster| {
        std::thread::scope(|scope| {
            for thread in 0..3usize {
                scope.spawn(move || {
                    for _ in 0..60 {
                        let _guard = cluster.mutex(thread as u64).lock().unwrap();
                        let index = thread * 2;
                        store(cluster, index, load(cluster, index) + 1);
                    }
                });
            }
        });
        cluster.barrier(0).unwrap();
        for thread in 0..3 {
            assert_eq!(load(cluster, thread * 2), 120);
        }
        cluster.barrier(1).unwrap();
    });
}

#[test]
fn many_pages_of_another_home_are_published_together() {
    on_every_kind(2, |cluster| {
        let pages = REGION_BYTES / PAGE_BYTES;
        for round in 1..=2u64 {
            for page in (0..pages).filter(|page| page % 2 == cluster.node()) {
                for word in (0..PAGE_WORDS).step_by(64) {
                    store(cluster, page * PAGE_WORDS + word, round * (page + word) as u64);
                }
            }
            cluster.barrier(0).unwrap();
            for page in 0..pages {
                let word = page % 8 * 64;
                assert_eq!(load(cluster, page * PAGE_WORDS + word), round * (page + word) as u64, "page {page}");
            }
            cluster.barrier(1).unwrap();
        }
    });
}

#[test]
fn pages_change_between_consistencies_with_what_they_hold() {
    let protocols = ["ivy", "hlrc(update)", "dynamic", "hlrc(invalidate)", "migrate", "hlrc(adaptive)"];
    for (catch, detection) in [
        (Catch::Signal, WriteDetection::Auto),
        (Catch::Handler, WriteDetection::Auto),
        (Catch::Signal, WriteDetection::Faults),
        (Catch::Mprotect, WriteDetection::Auto),
    ] {
        for home in [Home::Interleaved, Home::Manager] {
            println!("{catch}, {detection}, {home}");
            let change = |config: &mut trellis::Config| {
                (config.catch, config.write_detection, config.home) = (catch, detection, home);
                config.coherence = "hlrc(invalidate)".parse().unwrap();
            };
            run(3, change, |cluster| {
                let (me, words) = (cluster.node(), 64 * PAGE_WORDS);
                let region = cluster.region();
                for (round, protocol) in protocols.into_iter().enumerate() {
                    for index in (me..words).step_by(3) {
                        store(cluster, index, (round * words + index) as u64);
                    }
                    let protocol: Protocol = protocol.parse().unwrap();
                    region.set_protocol(0, words * 8, protocol).unwrap();
                    assert_eq!(region.protocol(0), protocol);
                    for index in (0..words).step_by(17) {
                        assert_eq!(load(cluster, index), (round * words + index) as u64, "word {index} in {protocol}");
                    }
                    cluster.barrier(0).unwrap();
                }
            });
        }
    }
}

#[test]
fn two_ranges_have_two_consistencies() {
    for detection in [WriteDetection::Auto, WriteDetection::Faults] {
        let change = |config: &mut trellis::Config| {
            config.coherence = "hlrc(update)".parse().unwrap();
            config.write_detection = detection;
            config.coherence_ranges =
                vec![trellis::config::CoherenceRange { first: 0, end: 4096, protocol: Protocol::DYNAMIC }];
        };
        run(3, change, |cluster| {
            // A flag that is spun upon is under sequential consistency, and so is what is counted with atomics.
            for round in 1..=50u64 {
                support::word(cluster, 1).fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                store(cluster, PAGE_WORDS + cluster.node(), round);
                cluster.barrier(0).unwrap();
                for node in 0..3 {
                    assert_eq!(load(cluster, PAGE_WORDS + node), round);
                }
                cluster.barrier(1).unwrap();
            }
            assert_eq!(support::word(cluster, 1).load(std::sync::atomic::Ordering::SeqCst), 150);
            cluster.barrier(2).unwrap();
        });
    }
}
