//! Every protocol in the runtime: real catchers, real threads, several nodes; locks of ranges, and changes of protocols
//! while the region is in use.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use support::{REGION_BYTES, on_every_protocol, run, word};
use trellis::config::Catch;
use trellis::{Cluster, Protocol, WaitError};

const PAGE_BYTES: usize = 4096;
const PAGE_WORDS: usize = PAGE_BYTES / 8;

fn protocol(text: &str) -> Protocol {
    text.parse().unwrap()
}

/// The protocols that can lock, and no others.
fn on_every_lock(nodes: usize, program: impl Fn(&Cluster) + Sync) {
    on_every_protocol(nodes, |cluster| {
        if cluster.config().coherence.can_lock() {
            program(cluster);
        }
    });
}

#[test]
fn what_one_node_writes_the_others_read_after_a_barrier() {
    on_every_protocol(3, |cluster| {
        // Neighbouring words of all nodes are on one page, and pages are many.
        let words = 3 * 4096;
        for round in 1..=2u64 {
            for index in (0..words).filter(|index| index % 3 == cluster.node()) {
                word(cluster, index).store(index as u64 * 7 + round, Ordering::Relaxed);
            }
            cluster.barrier(1).unwrap();
            for index in 0..words {
                assert_eq!(word(cluster, index).load(Ordering::Relaxed), index as u64 * 7 + round, "word {index}");
            }
            cluster.barrier(2).unwrap();
        }
    });
}

#[test]
fn a_page_with_which_nodes_take_turns_moves_with_its_load() {
    const TURNS: u64 = 40;
    let faults = |coherence: &'static str| {
        let second = AtomicU64::new(0);
        let moved = AtomicU64::new(0);
        run(
            2,
            |config| (config.coherence, config.prefetch_pages_max) = (protocol(coherence), 1),
            |cluster| {
                let counter = word(cluster, PAGE_WORDS);
                for turn in 0..TURNS {
                    if cluster.node() as u64 == turn % 2 {
                        let before = counter.load(Ordering::Relaxed);
                        assert_eq!(before, turn);
                        counter.store(before + 1, Ordering::Relaxed);
                    }
                    cluster.barrier(1).unwrap();
                }
                let counters = cluster.counters();
                second.fetch_add(counters.upgrade_faults + counters.upgrade_owner_faults, Ordering::Relaxed);
                moved.fetch_add(counters.pages_moved_with_loads, Ordering::Relaxed);
            },
        );
        (second.into_inner(), moved.into_inner())
    };
    let (plain, none) = faults("dynamic");
    assert!(plain >= TURNS - 2 && none == 0, "{plain} second faults, {none} pages");
    let (learned, moved) = faults("auto");
    // Each node learns it in its first turn, and checks it in its second one and then in every eighth.
    assert!(learned <= TURNS / 4 && moved >= TURNS - 6, "{learned} second faults, {moved} pages");
}

#[test]
fn hardware_atomics_count_across_nodes_and_threads() {
    const ROUNDS: u64 = 100;
    on_every_protocol(3, |cluster| {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        let page = round as usize % 3;
                        word(cluster, page * PAGE_WORDS + 5).fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        cluster.barrier(0).unwrap();
        let sum: u64 = (0..3).map(|page| word(cluster, page * PAGE_WORDS + 5).load(Ordering::SeqCst)).sum();
        assert_eq!(sum, 3 * 2 * ROUNDS);
    });
}

#[test]
fn a_stream_arrives_whole_whether_announced_or_not() {
    on_every_protocol(2, |cluster| {
        let words = 1024 * PAGE_WORDS;
        let every = || (0..words).step_by(64);
        if cluster.node() == 0 {
            every().for_each(|index| word(cluster, index).store(index as u64 + 1, Ordering::Relaxed));
        }
        cluster.barrier(0).unwrap();
        if cluster.node() == 1 {
            cluster.prefetch(0, words * 4, false).unwrap();
            every().for_each(|index| assert_eq!(word(cluster, index).load(Ordering::Relaxed), index as u64 + 1));
            cluster.prefetch(0, words * 8, true).unwrap();
            every().for_each(|index| word(cluster, index).store(index as u64 + 2, Ordering::Relaxed));
        }
        cluster.barrier(1).unwrap();
        every().for_each(|index| assert_eq!(word(cluster, index).load(Ordering::Relaxed), index as u64 + 2));
        cluster.barrier(2).unwrap();
    });
}

/// A system call announces the memory that it is about to copy, whose ends lie within pages.
#[test]
fn memory_that_is_about_to_be_copied_comes_whole() {
    let words = 600 * PAGE_WORDS;
    let every = || (3..words).step_by(64);
    let value = |index: usize, turn: usize| (index + turn) as u64;
    let announce = |cluster: &Cluster, write| {
        let start = std::ptr::from_ref(word(cluster, 3)) as usize;
        trellis::memory::announce(start, (words - 3) * 8, write);
    };
    for coherence in Protocol::all() {
        run(
            2,
            |config| (config.coherence, config.catch) = (coherence, Catch::Signal),
            |cluster| {
                for turn in 0..4 {
                    if cluster.node() == turn % 2 {
                        if turn > 0 {
                            announce(cluster, turn == 3);
                            let loaded = |index| word(cluster, index).load(Ordering::Relaxed);
                            every().for_each(|index| assert_eq!(loaded(index), value(index, turn - 1)));
                        }
                        announce(cluster, true);
                        every().for_each(|index| word(cluster, index).store(value(index, turn), Ordering::Relaxed));
                    }
                    cluster.barrier(0).unwrap();
                }
            },
        );
    }
}

#[test]
fn every_fault_is_counted_as_the_event_that_it_is() {
    run(
        2,
        |config| (config.coherence, config.prefetch_pages_max) = (Protocol::DYNAMIC, 0),
        |cluster| {
            let value = word(cluster, 0);
            if cluster.node() == 1 {
                value.store(1, Ordering::Relaxed);
            }
            cluster.barrier(0).unwrap();
            if cluster.node() == 0 {
                assert_eq!(value.load(Ordering::Relaxed), 1);
            }
            cluster.barrier(1).unwrap();
            // Node 1 owns the page, which is shared now.
            if cluster.node() == 1 {
                value.store(2, Ordering::Relaxed);
            }
            cluster.barrier(2).unwrap();
            if cluster.node() == 0 {
                assert_eq!(value.load(Ordering::Relaxed), 2);
                value.store(3, Ordering::Relaxed);
            }
            cluster.barrier(3).unwrap();
            let counted = cluster.counters();
            let events =
                [counted.read_faults, counted.write_faults, counted.upgrade_owner_faults, counted.upgrade_faults];
            let expected = [[2, 0, 0, 1], [0, 1, 1, 0]][cluster.node()];
            assert_eq!(events, expected, "reads, writes, upgrades of the owner and of others");
        },
    );
}

#[test]
fn a_requester_that_is_sent_on_counts_it() {
    run(
        3,
        |config| (config.coherence, config.prefetch_pages_max) = (protocol("dynamic(redirect)"), 0),
        |cluster| {
            if cluster.node() == 1 {
                word(cluster, 0).store(1, Ordering::Relaxed);
            }
            cluster.barrier(0).unwrap();
            if cluster.node() == 2 {
                assert_eq!(word(cluster, 0).load(Ordering::Relaxed), 1);
            }
            cluster.barrier(1).unwrap();
            // The home gave the page to node 1 and says so.
            assert_eq!(cluster.counters().redirects, u64::from(cluster.node() == 2));
        },
    );
}

#[test]
fn a_locked_range_is_seen_by_nobody_in_between() {
    const ROUNDS: u64 = 60;
    on_every_lock(3, |cluster| {
        // Across a page and, in the second range, across a chunk.
        for first in [PAGE_WORDS - 1, 512 * PAGE_WORDS - 1] {
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for _ in 0..ROUNDS {
                            let guard = cluster.region().lock_range(first * 8, 16).unwrap();
                            let [one, two] = [word(cluster, first), word(cluster, first + 1)];
                            let before = one.load(Ordering::Relaxed);
                            assert_eq!(two.load(Ordering::Relaxed), before, "half of another call's update");
                            one.store(before + 1, Ordering::Relaxed);
                            std::thread::yield_now();
                            two.store(before + 1, Ordering::Relaxed);
                            drop(guard);
                        }
                    });
                }
            });
        }
        cluster.barrier(0).unwrap();
        assert_eq!(word(cluster, PAGE_WORDS).load(Ordering::Relaxed), 3 * 2 * ROUNDS);
        assert_eq!(word(cluster, 512 * PAGE_WORDS).load(Ordering::Relaxed), 3 * 2 * ROUNDS);
        let counted = cluster.counters();
        assert!(counted.lock_acquires >= 4 * ROUNDS, "each call is counted: {counted:?}");
    });
}

#[test]
fn updates_of_overlapping_ranges_happen_one_after_the_other() {
    const ROUNDS: usize = 40;
    on_every_lock(2, |cluster| {
        let region = cluster.region();
        for round in 0..ROUNDS {
            // Ranges of one to four pages that overlap in different ways on the nodes.
            let first = (round + cluster.node()) % 3 * PAGE_BYTES;
            let bytes = (1 + (round * 7 + cluster.node()) % 4) * PAGE_BYTES;
            let change = |range: &mut [u8]| range.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
            // SAFETY: these bytes are only used by updates until the barrier.
            unsafe { region.update(first, bytes, change) }.unwrap();
        }
        cluster.barrier(0).unwrap();
        let mut expected = vec![0u8; 8];
        for (round, node) in (0..ROUNDS).flat_map(|round| [(round, 0), (round, 1)]) {
            let first = (round + node) % 3;
            (first..first + 1 + (round * 7 + node) % 4).for_each(|page| expected[page] += 1);
        }
        // SAFETY: nobody writes after the barrier.
        let bytes = unsafe { region.slice::<u8>(0, 8 * PAGE_BYTES) };
        for (page, expected) in expected.into_iter().enumerate() {
            assert!(bytes[page * PAGE_BYTES..][..PAGE_BYTES].iter().step_by(64).all(|byte| *byte == expected));
        }
    });
}

#[test]
fn a_lock_for_a_time_ends_by_itself() {
    on_every_lock(2, |cluster| {
        let region = cluster.region();
        if cluster.node() == 0 {
            let guard = region.lock_range_for(0, 8, Duration::from_millis(20)).unwrap();
            word(cluster, 0).store(1, Ordering::Relaxed);
            cluster.barrier(0).unwrap();
            // The other node gets it although nobody gives it back.
            cluster.barrier(1).unwrap();
            let sentence = guard.unlock().unwrap_err().to_string();
            assert!(sentence.contains("the time of this lock was over"), "{sentence}");
            let in_time = region.lock_range_for(0, 8, Duration::from_secs(600)).unwrap();
            in_time.unlock().unwrap();
        } else {
            cluster.barrier(0).unwrap();
            let guard = region.lock_range(0, 8).unwrap();
            assert_eq!(word(cluster, 0).load(Ordering::Relaxed), 1);
            drop(guard);
            cluster.barrier(1).unwrap();
        }
        cluster.barrier(2).unwrap();
    });
}

#[test]
fn a_node_that_leaves_gives_back_what_it_holds() {
    on_every_lock(2, |cluster| {
        let region = cluster.region();
        if cluster.node() == 0 {
            region.lock_range_acquire(0, 2 * PAGE_BYTES, None).unwrap();
            word(cluster, 0).store(5, Ordering::Relaxed);
        }
        cluster.barrier(0).unwrap();
        if cluster.node() == 1 {
            let _guard = region.lock_range(0, 8).unwrap();
            assert_eq!(word(cluster, 0).load(Ordering::Relaxed), 5);
        }
    });
}

#[test]
fn a_load_of_a_locked_page_waits_until_it_is_given_back() {
    on_every_lock(2, |cluster| {
        if cluster.node() == 0 {
            let guard = cluster.region().lock_range(0, 8).unwrap();
            cluster.barrier(0).unwrap();
            for value in 1..=1000 {
                word(cluster, 0).store(value, Ordering::Relaxed);
            }
            drop(guard);
        } else {
            cluster.barrier(0).unwrap();
            assert_eq!(word(cluster, 0).load(Ordering::Relaxed), 1000);
        }
        cluster.barrier(1).unwrap();
    });
}

#[test]
fn a_lock_that_does_not_come_names_who_holds_it() {
    run(
        2,
        |config| (config.coherence, config.wait_seconds_max) = (protocol("lock(ivy)"), 1),
        |cluster| {
            let region = cluster.region();
            if cluster.node() == 1 {
                let guard = region.lock_range(0, PAGE_BYTES).unwrap();
                let sentence = || region.lock_range(0, 1).map(drop).unwrap_err().to_string();
                let own = sentence();
                assert!(own.starts_with("this thread holds page 0 already"), "{own}");
                let own = std::thread::scope(|scope| scope.spawn(sentence).join().unwrap());
                assert!(own.contains("waiting to lock page 0: another thread of this node holds it"), "{own}");
                cluster.atomic(1).store(1).unwrap();
                while cluster.atomic(1).load().unwrap() == 1 {
                    std::thread::yield_now();
                }
                drop(guard);
            } else {
                while cluster.atomic(1).load().unwrap() == 0 {
                    std::thread::yield_now();
                }
                let error = region.lock_range(0, PAGE_BYTES).map(drop).unwrap_err();
                assert!(matches!(error, WaitError::TooLong { .. }));
                assert!(error.to_string().contains("it is locked at node 1 (localhost:2)"), "{error}");
                assert_eq!(cluster.counters().retries, 1);
                cluster.atomic(1).store(2).unwrap();
                // What was given up is not in anybody's way.
                drop(region.lock_range(0, PAGE_BYTES).unwrap());
            }
        },
    );
}

#[test]
fn what_cannot_be_locked_or_changed_is_refused_in_one_sentence() {
    run(
        1,
        |_| (),
        |cluster| {
            let region = cluster.region();
            let refusal = |error: WaitError| match error {
                WaitError::Misuse(sentence) => sentence,
                other => panic!("{other}"),
            };
            assert_eq!(
                refusal(region.lock_range(0, 4 * PAGE_BYTES).map(drop).unwrap_err()),
                "pages 0 to 3 are under ivy, which has no locks; choose lock(ivy) with set_protocol or the key coherence"
            );
            region.set_protocol(0, PAGE_BYTES, "lock(ivy)").unwrap();
            let sentence = refusal(region.lock_range(0, 2 * PAGE_BYTES).map(drop).unwrap_err());
            assert!(sentence.starts_with("page 1 is under ivy, which has no locks"), "{sentence}");
            assert!(refusal(region.lock_range(0, 0).map(drop).unwrap_err()).contains("is empty"));
            let outside = region.lock_range(REGION_BYTES, 1).map(drop).unwrap_err();
            assert!(refusal(outside).contains("not inside the region"));
            let not_held = refusal(region.lock_range_release(0, 8).unwrap_err());
            assert_eq!(not_held, "the range of bytes 0 to 8 is not locked by this node");
            assert!(refusal(region.set_protocol(8, PAGE_BYTES, "ivy").unwrap_err()).contains("inside a page"));
            assert!(
                refusal(region.set_protocol(0, PAGE_BYTES, "ivi").unwrap_err()).contains("`ivi` is not a protocol")
            );
            let guard = region.lock_range(0, PAGE_BYTES).unwrap();
            let locked = refusal(region.set_protocol(0, 2 * PAGE_BYTES, "migrate").unwrap_err());
            assert!(locked.contains("holds or waits for a lock of page 0"), "{locked}");
            assert_eq!(region.protocol(0), protocol("lock(ivy)"));
            drop(guard);
            for microseconds in 1..=14 {
                region.set_protocol(0, PAGE_BYTES, format!("delay(ivy, {microseconds}us)")).unwrap();
            }
            let sentence = refusal(region.set_protocol(0, PAGE_BYTES, "migrate").unwrap_err());
            assert!(sentence.contains("16 different protocols, and migrate would be one more"), "{sentence}");
            region.set_protocol(0, PAGE_BYTES, "lock(ivy)").unwrap();
            assert!(refusal(cluster.barrier(u64::MAX).unwrap_err()).contains("kept for Trellis itself"));
            assert!(refusal(cluster.mutex(u64::MAX).acquire().unwrap_err()).contains("kept for Trellis itself"));
            assert!(refusal(cluster.atomic(u64::MAX).load().unwrap_err()).contains("kept for Trellis itself"));
        },
    );
}

#[test]
fn ranges_held_without_a_guard_are_given_back_by_their_bytes() {
    run(
        1,
        |config| config.coherence = protocol("lock(dynamic)"),
        |cluster| {
            let region = cluster.region();
            region.lock_range_acquire(0, 8, None).unwrap();
            region.lock_range_acquire(PAGE_BYTES, 8, None).unwrap();
            assert!(region.lock_range_release(0, 16).is_err());
            region.lock_range_release(0, 8).unwrap();
            region.lock_range_release(PAGE_BYTES, 8).unwrap();
            region.lock_range_acquire(0, 8, Some(Duration::from_millis(1))).unwrap();
            // It can only come because the first one ends by itself.
            region.lock_range_acquire(0, 8, None).unwrap();
            region.lock_range_release(0, 8).unwrap();
            assert!(region.lock_range_release(0, 8).is_err(), "the one that ended is forgotten");
        },
    );
}

#[test]
fn parts_of_the_region_have_their_own_protocols() {
    let all = Protocol::all();
    let chunk = 512 * PAGE_BYTES;
    run(
        3,
        |config| {
            // Several per chunk, with borders in the middle of streams, and one across two chunks.
            config.coherence_ranges = (all.iter().enumerate())
                .map(|(number, protocol)| trellis::config::CoherenceRange {
                    first: number * 100 * PAGE_BYTES,
                    end: (number * 100 + 60) * PAGE_BYTES,
                    protocol: *protocol,
                })
                .collect();
        },
        |cluster| {
            let pages = REGION_BYTES / PAGE_BYTES;
            assert_eq!(cluster.region().protocol(chunk - 1), all[5]);
            assert_eq!(cluster.region().protocol(chunk), all[5]);
            assert_eq!(cluster.region().protocol(99 * PAGE_BYTES), Protocol::IVY);
            for round in 0..3u64 {
                let writer = round as usize % 3;
                if cluster.node() == writer {
                    for page in 0..pages {
                        word(cluster, page * PAGE_WORDS).fetch_add(page as u64, Ordering::Relaxed);
                    }
                }
                cluster.barrier(0).unwrap();
                for page in 0..pages {
                    let value = word(cluster, page * PAGE_WORDS).load(Ordering::Relaxed);
                    assert_eq!(value, page as u64 * (round + 1), "page {page}");
                }
                cluster.barrier(1).unwrap();
            }
            // A lock across the border of two lockable protocols.
            let region = cluster.region();
            region.set_protocol(200 * PAGE_BYTES, 2 * PAGE_BYTES, "lock(ivy)").unwrap();
            region.set_protocol(202 * PAGE_BYTES, 2 * PAGE_BYTES, "lock(dynamic)").unwrap();
            for _ in 0..20 {
                let _guard = region.lock_range(201 * PAGE_BYTES, 2 * PAGE_BYTES).unwrap();
                let (one, two) = (word(cluster, 202 * PAGE_WORDS - 1), word(cluster, 202 * PAGE_WORDS));
                let before = one.load(Ordering::Relaxed);
                one.store(before + 1, Ordering::Relaxed);
                two.store(two.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
            cluster.barrier(2).unwrap();
            assert_eq!(word(cluster, 202 * PAGE_WORDS - 1).load(Ordering::Relaxed), 60);
        },
    );
}

#[test]
fn protocols_change_back_and_forth_and_bytes_stay() {
    let all = Protocol::all();
    run(
        3,
        |config| config.home = trellis::config::Home::Interleaved,
        |cluster| {
            let region = cluster.region();
            let pages = REGION_BYTES / PAGE_BYTES;
            let mut added = 0;
            for (number, protocol) in all.iter().cycle().take(2 * all.len()).enumerate() {
                // Pages wander: each node writes its third, shifted from round to round.
                for page in (0..pages).filter(|page| (page + number) % 3 == cluster.node()) {
                    word(cluster, page * PAGE_WORDS + 3).fetch_add(page as u64, Ordering::Relaxed);
                }
                added += 1;
                let first = number % 5 * 100 * PAGE_BYTES;
                region.set_protocol(first, REGION_BYTES - first - number % 3 * PAGE_BYTES, *protocol).unwrap();
                assert_eq!(region.protocol(first), *protocol);
                for page in (0..pages).step_by(1 + number % 7) {
                    let value = word(cluster, page * PAGE_WORDS + 3).load(Ordering::Relaxed);
                    assert_eq!(value, added * page as u64, "page {page} after the change to {protocol}");
                }
                cluster.barrier(0).unwrap();
            }
        },
    );
}

#[test]
fn a_change_shows_what_was_stored_before_it_wherever_the_home_is() {
    for home in [trellis::config::Home::Interleaved, trellis::config::Home::FirstTouch] {
        let configure = |config: &mut trellis::Config| (config.coherence, config.home) = (protocol("hlrc"), home);
        run(2, configure, |cluster| {
            // The first page changes its protocol, and the second one does not.
            let words = [word(cluster, 0), word(cluster, PAGE_WORDS)];
            for writer in [1, 0] {
                // The writer is the first to touch the pages, and the other one keeps copies.
                if cluster.node() == writer {
                    words.iter().for_each(|word| word.store(1, Ordering::Relaxed));
                }
                cluster.barrier(0).unwrap();
                words.iter().for_each(|word| assert_eq!(word.load(Ordering::Relaxed), 1));
                cluster.barrier(0).unwrap();
                if cluster.node() == writer {
                    words.iter().for_each(|word| word.store(2, Ordering::Relaxed));
                }
                for coherence in ["ivy", "hlrc"] {
                    cluster.region().set_protocol(0, PAGE_BYTES, coherence).unwrap();
                    words.iter().for_each(|word| assert_eq!(word.load(Ordering::Relaxed), 2));
                }
                cluster.barrier(0).unwrap();
            }
        });
    }
}

#[test]
fn threads_go_on_while_the_protocol_of_their_pages_changes() {
    let texts = ["lock(ivy)", "dynamic(redirect)", "delay(lock(dynamic(forward)))", "migrate", "ivy", "lock(dynamic)"];
    for catch in [trellis::config::Catch::Signal, trellis::config::Catch::Handler, trellis::config::Catch::Mprotect] {
        run(
            2,
            |config| config.catch = catch,
            |cluster| {
                let done = std::sync::atomic::AtomicBool::new(false);
                let added: u64 = std::thread::scope(|scope| {
                    let adders: Vec<_> = (0..2)
                        .map(|thread| {
                            let done = &done;
                            scope.spawn(move || {
                                let mut added = 0;
                                while !done.load(Ordering::Relaxed) {
                                    // Pages on both sides of the border.
                                    let page = (added as usize * 7 + thread) % 96;
                                    word(cluster, page * PAGE_WORDS).fetch_add(1, Ordering::Relaxed);
                                    added += 1;
                                }
                                added
                            })
                        })
                        .collect();
                    for text in texts {
                        cluster.region().set_protocol(0, 64 * PAGE_BYTES, text).unwrap();
                    }
                    done.store(true, Ordering::Relaxed);
                    adders.into_iter().map(|adder| adder.join().unwrap()).sum()
                });
                cluster.atomic(1).fetch_add(added).unwrap();
                cluster.barrier(0).unwrap();
                let counted: u64 = (0..96).map(|page| word(cluster, page * PAGE_WORDS).load(Ordering::Relaxed)).sum();
                assert_eq!(counted, cluster.atomic(1).load().unwrap());
                cluster.barrier(1).unwrap();
            },
        );
    }
}

#[test]
fn a_change_that_one_node_refuses_happens_nowhere() {
    run(
        3,
        |config| config.coherence = protocol("lock(ivy)"),
        |cluster| {
            let region = cluster.region();
            let guard = (cluster.node() == 1).then(|| region.lock_range(0, 8).unwrap());
            let sentence = region.set_protocol(0, PAGE_BYTES, "migrate").unwrap_err().to_string();
            match cluster.node() {
                1 => {
                    assert!(sentence.contains("this node's program holds or waits for a lock of page 0"), "{sentence}")
                }
                _ => assert!(sentence.contains("another node refuses"), "{sentence}"),
            }
            assert_eq!(region.protocol(0), protocol("lock(ivy)"));
            drop(guard);
            // Different arguments are noticed, and the next change works.
            let mine = ["migrate", "ivy", "migrate"][cluster.node()];
            assert!(region.set_protocol(0, PAGE_BYTES, mine).is_err());
            region.set_protocol(0, PAGE_BYTES, "migrate").unwrap();
            assert_eq!(region.protocol(0), protocol("migrate"));
        },
    );
}

/// Whether the change happened; both nodes must say the same. Nobody may refuse it.
fn changes_in_time(cluster: &Cluster, bytes: usize, text: &str) -> bool {
    match cluster.region().set_protocol(0, bytes, text) {
        Ok(()) => true,
        Err(WaitError::TooLong { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

/// Waits for a word without a deadline: the other node may take as long as this machine takes.
fn wait_for(cluster: &Cluster, id: u64, value: u64) {
    while cluster.atomic(id).load().unwrap() < value {
        std::thread::yield_now();
    }
}

#[test]
fn a_change_to_which_a_node_comes_too_late_happens_nowhere_and_the_next_one_works() {
    run(
        3,
        |config| config.wait_seconds_max = 1,
        |cluster| {
            let region = cluster.region();
            word(cluster, 0).fetch_add(1, Ordering::Relaxed);
            if cluster.node() == 1 {
                // The others have given up when this one comes.
                wait_for(cluster, 1, 2);
            }
            let sentence = region.set_protocol(0, PAGE_BYTES, "migrate").unwrap_err().to_string();
            match cluster.node() {
                1 => assert!(sentence.contains("could not wait any longer, and nothing has changed"), "{sentence}"),
                _ => assert!(sentence.contains("gave up after 1 s changing the protocol"), "{sentence}"),
            }
            assert_eq!(region.protocol(0), Protocol::IVY);
            cluster.atomic(1).fetch_add(1).unwrap();
            wait_for(cluster, 1, 3);
            // A node may be late again, but then for all.
            while !changes_in_time(cluster, PAGE_BYTES, "dynamic") {
                assert_eq!(region.protocol(0), Protocol::IVY);
            }
            assert_eq!(region.protocol(0), Protocol::DYNAMIC);
            word(cluster, 0).fetch_add(1, Ordering::Relaxed);
            cluster.atomic(2).fetch_add(1).unwrap();
            wait_for(cluster, 2, 3);
            assert_eq!(word(cluster, 0).load(Ordering::Relaxed), 6);
        },
    );
}

#[test]
fn a_node_that_cannot_wait_for_a_page_any_longer_gives_up_for_all() {
    run(
        2,
        // A page that came to node 1 stays there for longer than anybody waits.
        |config| (config.coherence, config.wait_seconds_max) = (protocol("delay(ivy, 5000000us)"), 1),
        |cluster| {
            let region = cluster.region();
            let count = word(cluster, 0);
            if cluster.node() == 1 {
                count.fetch_add(1, Ordering::Relaxed);
            }
            cluster.atomic(1).fetch_add(1).unwrap();
            wait_for(cluster, 1, 2);
            // Node 1 waits for node 0, which waits for the page.
            assert!(!changes_in_time(cluster, PAGE_BYTES, "migrate"));
            assert_eq!(region.protocol(0), protocol("delay(ivy, 5000000us)"));
            count.fetch_add(1, Ordering::Relaxed);
            while !changes_in_time(cluster, PAGE_BYTES, "migrate") {}
            assert_eq!(region.protocol(0), protocol("migrate"));
            count.fetch_add(1, Ordering::Relaxed);
            cluster.atomic(2).fetch_add(1).unwrap();
            wait_for(cluster, 2, 2);
            assert_eq!(count.load(Ordering::Relaxed), 5);
        },
    );
}

#[test]
fn a_change_is_refused_while_another_node_waits_for_a_locked_page() {
    run(
        2,
        |config| config.coherence = protocol("lock(ivy)"),
        |cluster| {
            let region = cluster.region();
            std::thread::scope(|scope| {
                let guard = (cluster.node() == 0).then(|| region.lock_range(0, 8).unwrap());
                cluster.barrier(0).unwrap();
                if cluster.node() == 1 {
                    scope.spawn(|| assert_eq!(word(cluster, 0).load(Ordering::Relaxed), 7));
                    // It was told that the page is locked.
                    while cluster.counters().retries == 0 {
                        std::thread::yield_now();
                    }
                }
                // The guard is given back only after this call, which must not wait for it.
                let sentence = region.set_protocol(0, 2 * PAGE_BYTES, "lock(migrate)").unwrap_err().to_string();
                let expected = ["holds or waits for a lock of page 0", "another node refuses"][cluster.node()];
                assert!(sentence.contains(expected), "{sentence}");
                if guard.is_some() {
                    word(cluster, 0).store(7, Ordering::Relaxed);
                }
                drop(guard);
            });
            cluster.barrier(1).unwrap();
            region.set_protocol(0, 2 * PAGE_BYTES, "lock(migrate)").unwrap();
            assert_eq!(word(cluster, 0).load(Ordering::Relaxed), 7);
        },
    );
}

#[test]
fn a_change_that_waits_for_another_node_keeps_nobody_from_its_pages() {
    run(
        2,
        |config| config.coherence = protocol("lock(ivy)"),
        |cluster| {
            let region = cluster.region();
            std::thread::scope(|scope| {
                if cluster.node() == 0 {
                    scope.spawn(|| {
                        let guard = region.lock_range(0, 8).unwrap();
                        cluster.barrier(0).unwrap();
                        // This node's call has long begun to wait for node 1, which waits for the locked page.
                        wait_for(cluster, 1, 2);
                        word(cluster, PAGE_WORDS).store(3, Ordering::Relaxed);
                        let other = region.lock_range(2 * PAGE_BYTES, 8).unwrap();
                        drop(other);
                        drop(guard);
                    });
                    wait_for(cluster, 1, 1);
                    let seen = cluster.counters().messages_in;
                    scope.spawn(move || {
                        // Not before the call below could have begun: what it would do wrong, it would do at once.
                        while cluster.counters().messages_in < seen + 50 {
                            cluster.atomic(2).load().unwrap();
                            cluster.atomic(3).load().unwrap();
                        }
                        cluster.atomic(1).store(2).unwrap();
                    });
                } else {
                    cluster.barrier(0).unwrap();
                    cluster.atomic(1).store(1).unwrap();
                    word(cluster, 0).store(1, Ordering::Relaxed);
                }
                region.set_protocol(PAGE_BYTES, 3 * PAGE_BYTES, "lock(dynamic)").unwrap();
            });
            assert_eq!(word(cluster, PAGE_WORDS).load(Ordering::Relaxed), 3);
        },
    );
}

#[test]
fn locks_across_the_border_go_on_while_protocols_change() {
    const ROUNDS: u64 = 60;
    run(
        3,
        |config| config.coherence = protocol("lock(ivy)"),
        |cluster| {
            let region = cluster.region();
            let (one, two) = (word(cluster, 2 * PAGE_WORDS - 1), word(cluster, 2 * PAGE_WORDS));
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for _ in 0..ROUNDS {
                            let _guard = region.lock_range(PAGE_BYTES, 2 * PAGE_BYTES).unwrap();
                            let before = one.load(Ordering::Relaxed);
                            assert_eq!(two.load(Ordering::Relaxed), before, "half of another call's update");
                            one.store(before + 1, Ordering::Relaxed);
                            two.store(before + 1, Ordering::Relaxed);
                        }
                    });
                }
                for number in 0..20 {
                    let text = ["lock(dynamic)", "lock(migrate)", "delay(lock(ivy))"][number % 3];
                    let before = region.protocol(2 * PAGE_BYTES);
                    let expected = match region.set_protocol(2 * PAGE_BYTES, 2 * PAGE_BYTES, text) {
                        Ok(()) => protocol(text),
                        Err(WaitError::Misuse(_)) => before,
                        Err(other) => panic!("{other}"),
                    };
                    assert_eq!(region.protocol(2 * PAGE_BYTES), expected);
                    // All nodes have the same.
                    let changed = u64::from(expected == protocol(text));
                    let agreeing = cluster.atomic(100 + number as u64).fetch_add(changed).unwrap();
                    assert!(agreeing == 0 || changed == 1, "only some nodes changed");
                }
            });
            cluster.barrier(0).unwrap();
            assert_eq!([one, two].map(|word| word.load(Ordering::Relaxed)), [3 * 2 * ROUNDS; 2]);
            for number in 0..20 {
                assert!([0, 3].contains(&cluster.atomic(100 + number).load().unwrap()), "change {number}");
            }
        },
    );
}
