//! The runtime over a link inside one process: several nodes, each with its own views of its own region, joined by
//! real catchers and the real protocol. Every test runs with every catcher and every home.

mod addresses;
mod support;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use addresses::addresses;
use support::{REGION_BYTES, on_every_kind, run, sockets, word};
use trellis::config::{Catch, Peers};
use trellis::transport::links::in_process;
use trellis::transport::{Link, Tcp};
use trellis::{Cluster, Config};

#[test]
fn what_one_node_writes_the_others_read_after_a_barrier() {
    on_every_kind(3, |cluster| {
        let words = 3 * 4096;
        for index in (0..words).filter(|index| index % 3 == cluster.node()) {
            word(cluster, index).store(index as u64 * 7 + 1, Ordering::Relaxed);
        }
        cluster.barrier(1).unwrap();
        for index in 0..words {
            assert_eq!(word(cluster, index).load(Ordering::Relaxed), index as u64 * 7 + 1, "word {index}");
        }
        cluster.barrier(2).unwrap();
    });
}

#[test]
fn hardware_atomics_count_across_nodes_and_threads() {
    const ROUNDS: u64 = 300;
    on_every_kind(3, |cluster| {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        word(cluster, 5).fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        cluster.barrier(0).unwrap();
        assert_eq!(word(cluster, 5).load(Ordering::SeqCst), 3 * 2 * ROUNDS);
    });
}

#[test]
fn a_lock_keeps_plain_increments_apart() {
    const ROUNDS: u64 = 100;
    on_every_kind(3, |cluster| {
        for _ in 0..ROUNDS {
            let _guard = cluster.mutex(42).lock().unwrap();
            let counter = word(cluster, 0);
            counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        cluster.barrier(0).unwrap();
        assert_eq!(word(cluster, 0).load(Ordering::Relaxed), 3 * ROUNDS);
    });
}

#[test]
fn a_lock_taken_again_by_its_last_holder_costs_no_message() {
    run(
        2,
        |_| (),
        |cluster| {
            if cluster.node() == 1 {
                drop(cluster.mutex(2).lock().unwrap());
                let before = cluster.counters();
                for _ in 0..100 {
                    drop(cluster.mutex(2).lock().unwrap());
                }
                let since = cluster.counters().since(&before);
                assert_eq!((since.lock_acquires, since.lock_acquires_local), (100, 100));
                assert_eq!(since.messages_out, 0);
            }
            cluster.barrier(0).unwrap();
        },
    );
}

#[test]
fn words_at_their_home_are_atomic() {
    on_every_kind(3, |cluster| {
        let mine: Vec<u64> = (0..50).map(|_| cluster.atomic(7).fetch_add(1).unwrap()).collect();
        assert!(mine.windows(2).all(|pair| pair[0] < pair[1]));
        cluster.barrier(0).unwrap();
        assert_eq!(cluster.atomic(7).load().unwrap(), 150);
        let won = cluster.atomic(8).compare_exchange(0, 1 + cluster.node() as u64).unwrap().is_ok();
        cluster.atomic(9).fetch_add(u64::from(won)).unwrap();
        cluster.barrier(0).unwrap();
        assert_eq!(cluster.atomic(9).load().unwrap(), 1, "exactly one exchange wins");
    });
}

#[test]
fn many_threads_fault_on_the_same_pages_at_once() {
    on_every_kind(2, |cluster| {
        if cluster.node() == 0 {
            (0..64).for_each(|page| word(cluster, page * 512).store(page as u64, Ordering::Relaxed));
        }
        cluster.barrier(0).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8usize {
                scope.spawn(move || {
                    for step in 0..64 {
                        let page = (step * 7 + thread) % 64;
                        assert_eq!(word(cluster, page * 512).load(Ordering::Relaxed), page as u64);
                        word(cluster, page * 512 + 1 + thread).fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        cluster.barrier(1).unwrap();
        for page in 0..64 {
            for thread in 0..8 {
                assert_eq!(word(cluster, page * 512 + 1 + thread).load(Ordering::Relaxed), 2, "page {page}");
            }
        }
    });
}

#[test]
fn nodes_that_take_turns_on_one_word_all_get_there() {
    for catch in [Catch::Signal, Catch::Handler, Catch::Mprotect] {
        run(
            4,
            |config| config.catch = catch,
            |cluster| {
                let (me, nodes) = (cluster.node() as u64, cluster.nodes() as u64);
                loop {
                    let counter = word(cluster, 9).load(Ordering::SeqCst);
                    if counter >= 50 {
                        break;
                    }
                    if counter % nodes == me {
                        word(cluster, 9).store(counter + 1, Ordering::SeqCst);
                    }
                    std::hint::spin_loop();
                }
                cluster.barrier(0).unwrap();
            },
        );
    }
}

#[test]
fn a_sequential_reader_faults_far_less_than_once_a_page() {
    run(
        2,
        |config| config.catch = Catch::Signal,
        |cluster| {
            let words = REGION_BYTES / 8;
            if cluster.node() == 0 {
                (0..words).for_each(|index| word(cluster, index).store(index as u64, Ordering::Relaxed));
            }
            cluster.barrier(0).unwrap();
            if cluster.node() == 1 {
                let sum = (0..words).map(|index| word(cluster, index).load(Ordering::Relaxed)).sum::<u64>();
                assert_eq!(sum, (0..words as u64).sum::<u64>());
                let faults = cluster.counters().read_faults;
                assert!(faults < 100, "{faults} read faults for {} pages", REGION_BYTES / 4096);
            }
            cluster.barrier(1).unwrap();
        },
    );
}

#[test]
fn announced_pages_are_there_when_they_are_touched() {
    on_every_kind(2, |cluster| {
        if cluster.node() == 0 {
            (0..1024).for_each(|page| word(cluster, page * 512).store(page as u64, Ordering::Relaxed));
        }
        cluster.barrier(0).unwrap();
        if cluster.node() == 1 {
            cluster.prefetch(0, 1024 * 4096, true).unwrap();
            let before = cluster.counters();
            for page in 0..1024 {
                assert_eq!(word(cluster, page * 512).fetch_add(1, Ordering::Relaxed), page as u64);
            }
            let since = cluster.counters().since(&before);
            let faults = since.read_faults + since.write_faults + since.upgrade_faults;
            assert_eq!(faults, 0, "every page was announced");
        }
        cluster.barrier(1).unwrap();
    });
}

#[test]
fn memory_that_is_about_to_be_copied_is_there_when_it_is_touched() {
    run(
        2,
        |config| config.catch = Catch::Signal,
        |cluster| {
            let (from, pages) = (word(cluster, 512), 700);
            let every = || (512..512 + pages * 512).step_by(512);
            if cluster.node() == 0 {
                every().for_each(|index| word(cluster, index).store(index as u64, Ordering::Relaxed));
            }
            cluster.barrier(0).unwrap();
            if cluster.node() == 1 {
                let before = cluster.counters();
                trellis::memory::announce(std::ptr::from_ref(from) as usize, pages * 4096, true);
                every().for_each(|index| {
                    assert_eq!(word(cluster, index).fetch_add(1, Ordering::Relaxed), index as u64);
                });
                // The node does not request pages that it has.
                trellis::memory::announce(std::ptr::from_ref(from) as usize, pages * 4096, true);
                let since = cluster.counters().since(&before);
                assert_eq!(since.read_faults + since.write_faults + since.upgrade_faults, 0);
                assert_eq!(since.prefetched_pages, pages as u64);
            }
            cluster.barrier(1).unwrap();
        },
    );
}

#[test]
fn larger_pages_travel_whole() {
    for page_bytes in [64 << 10, 2 << 20] {
        run(
            2,
            |config| config.page_bytes = page_bytes,
            |cluster| {
                if cluster.node() == 0 {
                    for index in 0..REGION_BYTES / 8 {
                        word(cluster, index).store(index as u64, Ordering::Relaxed);
                    }
                }
                cluster.barrier(0).unwrap();
                let every = (0..REGION_BYTES / 8).step_by(97);
                every.for_each(|index| assert_eq!(word(cluster, index).load(Ordering::Relaxed), index as u64));
                cluster.barrier(1).unwrap();
            },
        );
    }
}

#[test]
fn a_range_outside_the_region_is_refused() {
    run(
        1,
        |_| (),
        |cluster| {
            let error = cluster.prefetch(REGION_BYTES - 1, 2, false).unwrap_err();
            assert!(error.to_string().contains("not inside the region"), "{error}");
            assert!(cluster.mutex(3).release().unwrap_err().to_string().contains("lock 3 is not held"));
        },
    );
}

/// A header as docs/reference/wire-format.md draws it: kind, epoch, page, count, flags.
fn header(kind: u8, epoch: u8, page: u32, count: u32, flags: u8) -> [u8; 32] {
    let mut header = [0u8; 32];
    header[..8].copy_from_slice(&[b'T', b'R', trellis_cluster_protocol::wire::VERSION, kind, epoch, 0, 0, 0]);
    header[8..12].copy_from_slice(&page.to_le_bytes());
    header[16..20].copy_from_slice(&count.to_le_bytes());
    header[30] = flags;
    header
}

/// Whoever sent it waits for an answer, and would for ever if the frame were thrown away.
#[test]
fn a_frame_of_a_peer_that_cannot_be_used_ends_the_cluster_with_a_sentence_that_names_the_peer() {
    use trellis::transport::Payload;
    let frames = [
        ("a page past the region", header(1, 1, 256, 1, 0), Payload::Nothing),
        ("bytes of pages past the region", header(3, 1, 9_999, 2, 4), Payload::Copy(&[7; 8192])),
        ("another epoch", header(1, 2, 3, 1, 0), Payload::Nothing),
        ("a diff of no page", header(11, 1, 30, 1, 0), Payload::Copy(&[0; 24])),
        ("another version", [b'T'; 32], Payload::Nothing),
    ];
    for (what, header, payload) in frames {
        let mut links = in_process::mesh(2).expect("descriptors can be made");
        let peer = links.pop().unwrap();
        let mut config = support::config(0, 2);
        config.region_bytes = 1 << 20;
        let (joined, is_joined) = std::sync::mpsc::channel();
        let node = std::thread::spawn(move || {
            let cluster = Cluster::join_over(config, Box::new(links.pop().unwrap())).unwrap();
            joined.send(()).unwrap();
            let failed = cluster.mutex(1).lock().map(drop).and_then(|()| cluster.barrier(0)).unwrap_err();
            (failed.to_string(), cluster.counters().frames_refused)
        });
        // A node that is still joining does not join.
        is_joined.recv().unwrap();
        peer.send(0, &header, payload).unwrap();
        let (failed, refused) = node.join().unwrap();
        assert!(failed.contains("node 1 (localhost:2) sent what this node refuses"), "{what}: {failed}");
        assert_eq!(refused, 1, "{what}");
        drop(peer);
    }
}

#[test]
fn runs_of_large_pages_stay_small_enough_for_a_frame() {
    run(
        2,
        |config| (config.page_bytes, config.region_bytes) = (2 << 20, 64 << 20),
        |cluster| {
            let words = (64 << 20) / 8;
            if cluster.node() == 0 {
                (0..words).step_by(512).for_each(|index| word(cluster, index).store(index as u64, Ordering::Relaxed));
            }
            cluster.barrier(0).unwrap();
            (0..words)
                .step_by(512)
                .for_each(|index| assert_eq!(word(cluster, index).load(Ordering::Relaxed), index as u64));
            cluster.barrier(1).unwrap();
        },
    );
}

#[test]
fn a_signal_handler_of_the_program_may_touch_the_region_while_its_thread_waits_for_a_page() {
    static WORDS: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn on_timer(_signal: i32) {
        let base = WORDS.load(Ordering::Relaxed) as *const AtomicU64;
        for page in (0..REGION_BYTES / 4096).step_by(64) {
            // SAFETY: inside the region; words of the region are only used as atomics here.
            unsafe { (*base.add(page * 512 + 1)).fetch_add(1, Ordering::Relaxed) };
        }
    }
    // A thread that polls, and one that sleeps at once.
    for spin_microseconds_max in [200, 0] {
        run(
            2,
            |config| {
                (config.catch, config.prefetch_pages_max) = (Catch::Signal, 1);
                config.spin_microseconds_max = spin_microseconds_max;
            },
            |cluster| {
                if cluster.node() == 1 {
                    WORDS.store(cluster.region().base() as usize, Ordering::Relaxed);
                    // SAFETY: the handler only uses atomics; SIGUSR2 is used by no other test, and sent to this thread only.
                    unsafe { libc::signal(libc::SIGUSR2, on_timer as *const () as libc::sighandler_t) };
                    // SAFETY: pthread_self has no conditions.
                    let this_thread = unsafe { libc::pthread_self() } as usize;
                    let stop = std::sync::atomic::AtomicBool::new(false);
                    std::thread::scope(|scope| {
                        scope.spawn(|| {
                            while !stop.load(Ordering::Relaxed) {
                                // SAFETY: the thread outlives this scope.
                                unsafe { libc::pthread_kill(this_thread as libc::pthread_t, libc::SIGUSR2) };
                                std::thread::yield_now();
                            }
                        });
                        for round in 0..20 {
                            for page in 0..REGION_BYTES / 4096 {
                                word(cluster, page * 512).fetch_add(round, Ordering::Relaxed);
                            }
                        }
                        stop.store(true, Ordering::Relaxed);
                    });
                } else {
                    for _ in 0..20 {
                        for page in 0..REGION_BYTES / 4096 {
                            word(cluster, page * 512 + 2).fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                cluster.barrier(0).unwrap();
            },
        );
    }
}

#[test]
fn a_node_that_leaves_as_soon_as_it_joined_is_missed_by_nobody() {
    for round in 0..100 {
        run(2 + round % 3, |_| (), |_| ());
    }
}

/// Who connects with another secret gets no answer, but whoever starts the cluster must hear of it.
#[test]
fn a_node_that_waits_for_a_peer_with_another_secret_says_so() {
    let mut links: Vec<Tcp> = sockets(2)
        .map(|mut options| {
            options.secret = [options.node as u8; 32];
            Tcp::start(options).unwrap()
        })
        .collect();
    let listening = loop {
        if let Some(listening) = links.iter().position(|link| link.statistics().unauthenticated_refused > 0) {
            break links.swap_remove(listening);
        }
        std::thread::yield_now();
    };
    let mut config = support::config(listening.node(), 2);
    config.start_seconds_max = 1;
    let error = Cluster::join_over(config, Box::new(listening)).unwrap_err().to_string();
    assert!(error.contains("did not come") && error.contains("give every node the same secret_file"), "{error}");
}

#[test]
fn a_file_says_that_a_node_takes_part() {
    let folder = trellis_testing::Folder::new();
    let file = |node: usize| folder.file(format!("ready-{node}"));
    run(2, |config| config.ready_file = Some(file(config.node)), |cluster| assert!(file(cluster.node()).exists()));
    assert!((0..2).all(|node| !file(node).exists()), "both have left");
    let config = Config { ready_file: Some(folder.file("nowhere/ready")), ..support::config(0, 0) };
    let refused = Cluster::join(config).unwrap_err().to_string();
    assert!(refused.contains("ready_file cannot be written"), "{refused}");
}

/// The sentence of the node that waits is its last, and has the reason.
#[test]
fn a_node_that_waits_for_a_peer_with_another_configuration_says_in_what_they_differ() {
    let nodes = addresses(2);
    let folder = trellis_testing::Folder::new();
    let secret = folder.file("secret");
    std::fs::write(&secret, [5; 32]).unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let errors: Vec<String> = std::thread::scope(|scope| {
        let start = |node: usize| {
            // Nodes of one process cannot have their regions at one address.
            let mut config = support::config(node, 2);
            (config.peers, config.secret_file) = (Peers::Listed(nodes.clone()), Some(secret.clone()));
            config.start_seconds_max = 3;
            scope.spawn(move || Cluster::join(config).unwrap_err().to_string())
        };
        [start(0), start(1)].map(|node| node.join().unwrap()).to_vec()
    });
    // One of them refused the other, which heard why at once.
    assert!(errors.iter().all(|error| error.contains("it has base_address")), "{errors:?}");
}
