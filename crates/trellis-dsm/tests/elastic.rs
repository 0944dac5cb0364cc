//! Nodes that join a running cluster and leave it while others work, over a link inside one process.

mod support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use support::{ADDRESS_STEP, NEXT_BASE, REGION_BYTES, word};
use trellis::config::Peers;
use trellis::transport::links::in_process::{self, InProcess};
use trellis::{Cluster, Config, Protocol, WaitError};

fn config(founders: usize, joiners: usize, node: usize, coherence: Protocol) -> Config {
    Config {
        peers: Peers::Listed((0..founders).map(|node| format!("localhost:{}", 1 + node)).collect()),
        node,
        manager: founders - 1,
        joiners_max: joiners,
        coherence,
        region_bytes: REGION_BYTES,
        base_address: NEXT_BASE.fetch_add(ADDRESS_STEP, Ordering::Relaxed),
        start_seconds_max: 20,
        silence_seconds_max: 20,
        wait_seconds_max: 60,
        ..Config::default()
    }
}

/// Starts the founders, each with `founder`, and calls `others` with the links of those that may join.
fn run(
    founders: usize,
    joiners: usize,
    coherence: Protocol,
    founder: impl Fn(&Cluster) + Sync,
    others: impl FnOnce(Vec<(Config, InProcess)>),
) {
    let links = in_process::mesh(founders + joiners).expect("descriptors can be made");
    let mut ends: Vec<_> = links.into_iter().enumerate().collect();
    let late = ends.split_off(founders);
    std::thread::scope(|scope| {
        for (node, link) in ends {
            let (founder, config) = (&founder, config(founders, joiners, node, coherence));
            scope.spawn(move || {
                let cluster = Cluster::join_over(config, Box::new(link)).expect("the node joins");
                founder(&cluster);
                cluster.leave().expect("the node leaves");
            });
        }
        others(late.into_iter().map(|(node, link)| (config(founders, joiners, node, coherence), link)).collect());
    });
}

#[test]
fn what_a_node_that_left_has_written_stays() {
    for coherence in Protocol::all() {
        println!("{coherence}");
        let stage = AtomicUsize::new(0);
        run(
            2,
            1,
            coherence,
            |cluster| {
                assert_eq!(cluster.nodes(), 2);
                (cluster.node()..600).step_by(2).for_each(|page| word(cluster, page * 512).store(7, Ordering::Relaxed));
                cluster.barrier(0).unwrap();
                stage.fetch_add(1, Ordering::SeqCst);
                while stage.load(Ordering::SeqCst) < 3 {
                    std::thread::yield_now();
                }
                assert_eq!(cluster.members(), 2);
                for page in 0..800 {
                    let expected = if page % 3 == 0 { 8 } else { 7 * u64::from(page < 600) };
                    assert_eq!(word(cluster, page * 512).load(Ordering::Relaxed), expected, "page {page}");
                    assert_eq!(word(cluster, page * 512 + 1).load(Ordering::Relaxed), u64::from(page % 3 == 0));
                }
            },
            |late| {
                while stage.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
                let (config, link) = late.into_iter().next().unwrap();
                let cluster = Cluster::join_over(config, Box::new(link)).expect("it joins");
                assert_eq!((cluster.node(), cluster.nodes(), cluster.members()), (2, 2, 3));
                for page in (0..800).step_by(3) {
                    assert_eq!(word(&cluster, page * 512).swap(8, Ordering::Relaxed), 7 * u64::from(page < 600));
                    word(&cluster, page * 512 + 1).store(1, Ordering::Relaxed);
                }
                assert_eq!(word(&cluster, 512).load(Ordering::Relaxed), 7, "a page that it only reads");
                cluster.leave().expect("it leaves while the others work");
                stage.fetch_add(1, Ordering::SeqCst);
            },
        );
    }
}

/// Counters under hardware atomics, under locks, and words; everybody counts, and nothing may be lost.
#[test]
fn twenty_nodes_come_and_go_while_everybody_counts() {
    const VISITS: usize = 20;
    const ROUNDS: u64 = 12;
    for coherence in Protocol::all() {
        println!("{coherence}");
        let counted = AtomicU64::new(0);
        let done = AtomicBool::new(false);
        let count = |cluster: &Cluster, round: u64| {
            let page = (round as usize * 7 + cluster.node()) % 40;
            word(cluster, page * 512 + 9).fetch_add(1, Ordering::SeqCst);
            let id = round % 5;
            let guard = cluster.mutex(id).lock().unwrap();
            let place = word(cluster, (50 + id as usize) * 512);
            place.store(place.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            drop(guard);
            cluster.atomic(round % 7).fetch_add(1).unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
        };
        run(
            3,
            VISITS,
            coherence,
            |cluster| {
                let mut round = 0;
                while !done.load(Ordering::SeqCst) {
                    count(cluster, round);
                    round += 1;
                }
                cluster.barrier(1).unwrap();
                let in_all = counted.load(Ordering::SeqCst);
                let sum = |places: &mut dyn Iterator<Item = usize>| {
                    places.map(|place| word(cluster, place).load(Ordering::SeqCst)).sum::<u64>()
                };
                assert_eq!(sum(&mut (0..40).map(|page| page * 512 + 9)), in_all, "{coherence}");
                assert_eq!(sum(&mut (50..55).map(|page| page * 512)), in_all, "{coherence}");
                assert_eq!((0..7).map(|id| cluster.atomic(id).load().unwrap()).sum::<u64>(), in_all);
                cluster.barrier(2).unwrap();
            },
            |late| {
                // Two at a time, so that they also meet, join while another leaves, and leave together.
                let late = Mutex::new(late.into_iter());
                std::thread::scope(|scope| {
                    for _ in 0..2 {
                        scope.spawn(|| {
                            while let Some((config, link)) = { late.lock().unwrap().next() } {
                                let cluster = Cluster::join_over(config, Box::new(link)).expect("it joins");
                                (0..ROUNDS).for_each(|round| count(&cluster, round));
                                cluster.leave().expect("it leaves");
                            }
                        });
                    }
                });
                done.store(true, Ordering::SeqCst);
            },
        );
    }
}

#[test]
fn a_node_that_joined_later_is_in_no_barrier_and_leaves_without_locks_only() {
    let done = AtomicBool::new(false);
    run(
        1,
        1,
        Protocol::IVY,
        |_| {
            while !done.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        },
        |late| {
            let (config, link) = late.into_iter().next().unwrap();
            let cluster = Cluster::join_over(config, Box::new(link)).expect("it joins");
            assert!(cluster.has_joined_later() && !cluster.is_leave_requested());
            let misuse = |result: Result<(), WaitError>| match result {
                Err(WaitError::Misuse(sentence)) => sentence,
                other => panic!("{other:?}"),
            };
            assert!(misuse(cluster.barrier(0)).contains("joined later is in no barrier"));
            let change = cluster.region().set_protocol(0, 4096, Protocol::DYNAMIC);
            assert!(misuse(change).contains("keeps the protocols that it starts with"));
            cluster.mutex(3).acquire().unwrap();
            assert!(misuse(cluster.leave()).contains("lock 3 is held"));
            cluster.mutex(3).release().unwrap();
            cluster.rwlock(4).read_acquire().unwrap();
            assert!(misuse(cluster.leave()).contains("read-write lock 4 is held; give it back"));
            cluster.rwlock(4).read_release().unwrap();
            assert!(cluster.once(5).begin().unwrap());
            assert!(misuse(cluster.leave()).contains("once 5 was begun here; say that it is done"));
            cluster.once(5).done().unwrap();
            cluster.leave().expect("now it may");
            cluster.leave().expect("twice does nothing");
            done.store(true, Ordering::SeqCst);
        },
    );
}

#[test]
fn a_joined_node_may_outlive_the_founders_programs() {
    run(
        2,
        1,
        "dynamic(forward)".parse().unwrap(),
        |_| (),
        |late| {
            let (config, link) = late.into_iter().next().unwrap();
            // Either it is let in before the last founder is done, or it hears that the cluster is over.
            if let Ok(cluster) = Cluster::join_over(config, Box::new(link)) {
                (0..300).for_each(|page| word(&cluster, page * 512).store(1, Ordering::Relaxed));
                cluster.leave().expect("the founders waited");
            }
        },
    );
}

/// Whoever was told to ask again for a locked page must not ask a node that has gone.
#[test]
fn a_node_that_had_pages_locked_leaves_at_once_and_nobody_waits_for_ever() {
    const VISITS: usize = 6;
    const PAGE: usize = 3;
    for coherence in Protocol::all().into_iter().filter(|protocol| protocol.can_lock()) {
        println!("{coherence}");
        let counted = AtomicU64::new(0);
        let done = AtomicBool::new(false);
        run(
            2,
            VISITS,
            coherence,
            |cluster| {
                while !done.load(Ordering::SeqCst) {
                    word(cluster, PAGE * 512).fetch_add(1, Ordering::SeqCst);
                    counted.fetch_add(1, Ordering::SeqCst);
                }
                cluster.barrier(0).unwrap();
                assert_eq!(word(cluster, PAGE * 512).load(Ordering::SeqCst), counted.load(Ordering::SeqCst));
                cluster.barrier(1).unwrap();
            },
            |late| {
                for (config, link) in late {
                    let cluster = Cluster::join_over(config, Box::new(link)).expect("it joins");
                    for _ in 0..5 {
                        let guard = cluster.region().lock_range(PAGE * 4096, 4096).expect("the page is locked");
                        let place = word(&cluster, PAGE * 512);
                        place.store(place.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        counted.fetch_add(1, Ordering::SeqCst);
                        drop(guard);
                    }
                    cluster.leave().expect("it leaves");
                }
                done.store(true, Ordering::SeqCst);
            },
        );
    }
}

/// A lock for a time is not held when that is over, whether it was given back or not.
#[test]
fn a_lock_whose_time_is_over_keeps_nobody_from_leaving() {
    let done = AtomicBool::new(false);
    run(
        1,
        1,
        "lock(ivy)".parse().unwrap(),
        |_| {
            while !done.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        },
        |late| {
            let (config, link) = late.into_iter().next().unwrap();
            let cluster = Cluster::join_over(config, Box::new(link)).expect("it joins");
            let hour = std::time::Duration::from_secs(3600);
            let held = cluster.region().lock_range_for(4 * 4096, 4096, hour).expect("locked");
            match cluster.leave() {
                Err(WaitError::Misuse(sentence)) => assert!(sentence.contains("locked or waited for"), "{sentence}"),
                other => panic!("{other:?}"),
            }
            held.unlock().expect("in time");
            let moment = std::time::Duration::from_millis(1);
            let guard = cluster.region().lock_range_for(0, 8192, moment).expect("locked");
            std::thread::sleep(2 * moment);
            cluster.leave().expect("nothing is held");
            drop(guard);
            done.store(true, Ordering::SeqCst);
        },
    );
}
