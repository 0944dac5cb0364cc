//! Every way in which threads of different nodes wait for each other, on three nodes over the link inside this process
//! and over `tcp`; and what the errors of waits say whose deadline passed.

mod support;

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use support::{run, run_over, sockets, word};
use trellis::synchronisation::Reduce;
use trellis::transport::Tcp;
use trellis::{Cluster, WaitError};

const LONG: Duration = Duration::from_secs(60);
const NODES: usize = 3;
/// Objects 0, 1 and 2 have their homes at these nodes: each test uses all three.
const OBJECTS: std::ops::Range<u64> = 0..3;

/// Runs `program` on three nodes, over each link.
fn on_every_link(program: impl Fn(&Cluster) + Sync) {
    run(NODES, |_| (), &program);
    run_over(connected(), |_| (), &program);
}

/// Links over loopback.
fn connected() -> Vec<Tcp> {
    sockets(NODES).map(|options| Tcp::start(options).unwrap()).collect()
}

/// A program that gives up soon: what its waits say is kept.
fn sentences(program: impl Fn(&Cluster) -> Option<WaitError> + Sync) -> Vec<String> {
    let said = Mutex::new(Vec::new());
    run(
        NODES,
        |config| config.wait_seconds_max = 1,
        |cluster| {
            if let Some(error) = program(cluster) {
                assert!(matches!(error, WaitError::TooLong { seconds: 1, .. }), "{error}");
                said.lock().unwrap().push(error.to_string());
            }
        },
    );
    said.into_inner().unwrap()
}

fn add_one(cluster: &Cluster, index: usize) {
    let counter = word(cluster, index);
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

#[test]
fn tried_locks_keep_increments_apart() {
    on_every_link(|cluster| {
        for id in OBJECTS {
            let mut got = 0;
            for _ in 0..40 {
                if let Some(_guard) = cluster.mutex(id).try_lock().unwrap() {
                    add_one(cluster, id as usize);
                    got += 1;
                }
            }
            for _ in 0..5 {
                let _guard = cluster.mutex(id).try_lock_for(LONG).unwrap().expect("it comes in time");
                add_one(cluster, id as usize);
                got += 1;
            }
            let got = cluster.barrier_reduce(0, Reduce::Sum, got).unwrap();
            assert_eq!(word(cluster, id as usize).load(Ordering::Relaxed), got);
            cluster.barrier(1).unwrap();
        }
    });
}

#[test]
fn a_lock_that_is_held_is_refused_to_who_tries() {
    on_every_link(|cluster| {
        for id in OBJECTS {
            let guard = (cluster.node() == 0).then(|| cluster.mutex(id).lock().unwrap());
            cluster.barrier(0).unwrap();
            if guard.is_none() {
                assert!(cluster.mutex(id).try_lock().unwrap().is_none());
                assert!(cluster.mutex(id).try_lock_for(Duration::from_millis(5)).unwrap().is_none());
            }
            cluster.barrier(0).unwrap();
            drop(guard);
            // Nobody has it: who waits long enough gets it, though the token goes round those who tried.
            drop(cluster.mutex(id).try_lock_for(LONG).unwrap().expect("it is free"));
            cluster.barrier(0).unwrap();
        }
    });
}

#[test]
fn readers_see_what_writers_wrote_and_never_half_of_it() {
    on_every_link(|cluster| {
        for id in OBJECTS {
            let lock = cluster.rwlock(id);
            let (one, two) = (id as usize * 1024, id as usize * 1024 + 700);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for round in 0..30 {
                            if round % 5 == cluster.node() {
                                let _guard = lock.write().unwrap();
                                add_one(cluster, one);
                                add_one(cluster, two);
                            } else {
                                let _guard = lock.read().unwrap();
                                let read = |index| word(cluster, index).load(Ordering::Relaxed);
                                assert_eq!(read(one), read(two));
                            }
                        }
                    });
                }
            });
            cluster.barrier(0).unwrap();
            assert_eq!(word(cluster, one).load(Ordering::Relaxed), 2 * 6 * NODES as u64);
            cluster.barrier(0).unwrap();
        }
    });
}

#[test]
fn readers_are_together_and_writers_alone() {
    on_every_link(|cluster| {
        for id in OBJECTS {
            let lock = cluster.rwlock(id);
            let reader = lock.read().unwrap();
            cluster.barrier(0).unwrap();
            assert!(lock.try_write().unwrap().is_none(), "every node reads");
            assert!(lock.try_write_for(Duration::from_millis(5)).unwrap().is_none());
            cluster.barrier(0).unwrap();
            drop(reader);
            let writer = (cluster.node() == 1).then(|| lock.try_write_for(LONG).unwrap().expect("readers have gone"));
            cluster.barrier(0).unwrap();
            if writer.is_none() {
                assert!(lock.try_read().unwrap().is_none(), "node 1 writes");
                assert!(lock.try_read_for(Duration::from_millis(5)).unwrap().is_none());
            }
            cluster.barrier(0).unwrap();
            drop(writer);
            drop(lock.try_read_for(LONG).unwrap().expect("nobody writes"));
            assert!(matches!(lock.read_release(), Err(WaitError::Misuse(_))));
            assert!(matches!(lock.write_release(), Err(WaitError::Misuse(_))));
        }
    });
}

#[test]
fn a_semaphore_lets_through_as_many_as_were_posted() {
    on_every_link(|cluster| {
        for id in OBJECTS {
            let items = cluster.semaphore(id);
            if cluster.node() == 0 {
                items.release(5).unwrap();
                items.release(5).unwrap();
            } else {
                (0..5).for_each(|_| items.acquire().unwrap());
            }
            cluster.barrier(0).unwrap();
            assert_eq!(items.value().unwrap(), 0);
            assert!(!items.try_acquire().unwrap());
            assert!(!items.try_acquire_for(Duration::from_millis(5)).unwrap());
            cluster.barrier(0).unwrap();
            // A permit that was released after others gave up is there for the next thread.
            items.release(1).unwrap();
            assert!(items.try_acquire_for(LONG).unwrap());
            cluster.barrier(0).unwrap();
            assert_eq!(items.value().unwrap(), 0);
            cluster.barrier(0).unwrap();
        }
    });
}

#[test]
fn two_semaphores_hand_a_buffer_to_and_fro() {
    on_every_link(|cluster| {
        let (full, empty) = (cluster.semaphore(1), cluster.semaphore(2));
        match cluster.node() {
            0 => (0..50).for_each(|item| {
                empty.acquire().unwrap();
                word(cluster, 3).store(item * item, Ordering::Relaxed);
                full.release(1).unwrap();
            }),
            1 => (0..50).for_each(|item| {
                empty.release(1).unwrap();
                full.acquire().unwrap();
                assert_eq!(word(cluster, 3).load(Ordering::Relaxed), item * item);
            }),
            _ => {}
        }
    });
}

#[test]
fn an_event_lets_everybody_through_until_it_is_cleared() {
    on_every_link(|cluster| {
        for id in OBJECTS {
            let event = cluster.event(id);
            assert!(!event.wait_for(Duration::from_millis(5)).unwrap());
            cluster.barrier(0).unwrap();
            if cluster.node() == 2 {
                word(cluster, id as usize).store(7, Ordering::Relaxed);
                event.set().unwrap();
            }
            event.wait().unwrap();
            assert_eq!(word(cluster, id as usize).load(Ordering::Relaxed), 7);
            assert!(event.is_set().unwrap());
            cluster.barrier(0).unwrap();
            if cluster.node() == 1 {
                event.clear().unwrap();
            }
            cluster.barrier(0).unwrap();
            assert!(!event.is_set().unwrap());
        }
    });
}

#[test]
fn what_is_done_once_is_done_once_and_seen_by_all() {
    on_every_link(|cluster| {
        for id in OBJECTS {
            let index = id as usize;
            let here: u64 = std::thread::scope(|scope| {
                let callers =
                    [0; 3].map(|_| scope.spawn(|| cluster.once(id).call_once(|| add_one(cluster, index)).unwrap()));
                callers.into_iter().map(|caller| u64::from(caller.join().unwrap())).sum()
            });
            assert_eq!(word(cluster, index).load(Ordering::Relaxed), 1);
            assert!(cluster.once(id).is_completed().unwrap());
            assert_eq!(cluster.barrier_reduce(0, Reduce::Sum, here).unwrap(), 1);
        }
    });
}

#[test]
fn what_panics_is_done_by_the_next() {
    on_every_link(|cluster| {
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            cluster.once(1).call_once(|| assert!(cluster.node() != 0, "node 0 does not do it"))
        }));
        // It may have been done by another node before node 0 came.
        assert!(failed.is_ok() || cluster.node() == 0);
        cluster.once(1).call_once(|| ()).unwrap();
        assert!(cluster.once(1).is_completed().unwrap());
        assert!(matches!(cluster.once(1).done(), Err(WaitError::Misuse(_))));
    });
}

#[test]
fn a_queue_under_a_lock_with_conditions_loses_nothing() {
    const ITEMS: u64 = 60;
    on_every_link(|cluster| {
        for id in OBJECTS {
            let (added, taken) = (cluster.condvar(2 * id), cluster.condvar(2 * id + 1));
            let base = id as usize * 16;
            let (filled, sum) = (word(cluster, base), word(cluster, base + 1));
            if cluster.node() == 0 {
                for _ in 0..ITEMS {
                    let mut guard = cluster.mutex(id).lock().unwrap();
                    taken.wait_while(&mut guard, || filled.load(Ordering::Relaxed) == 4).unwrap();
                    add_one(cluster, base);
                    added.notify_one().unwrap();
                }
            } else {
                for _ in 0..ITEMS / 2 {
                    let mut guard = cluster.mutex(id).lock().unwrap();
                    added.wait_while(&mut guard, || filled.load(Ordering::Relaxed) == 0).unwrap();
                    filled.store(filled.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
                    sum.store(sum.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    taken.notify_one().unwrap();
                }
            }
            cluster.barrier(0).unwrap();
            assert_eq!((filled.load(Ordering::Relaxed), sum.load(Ordering::Relaxed)), (0, ITEMS));
            cluster.barrier(0).unwrap();
        }
    });
}

#[test]
fn everybody_who_waits_is_woken_by_a_broadcast() {
    on_every_link(|cluster| {
        for id in OBJECTS {
            let index = id as usize;
            let go = word(cluster, index);
            if cluster.node() == 0 {
                // Both others wait before the lock can be had: they hold it until they are enrolled.
                cluster.semaphore(id).acquire().unwrap();
                cluster.semaphore(id).acquire().unwrap();
                let _guard = cluster.rwlock(id).write().unwrap();
                go.store(1, Ordering::Relaxed);
                assert_eq!(cluster.condvar(id).notify_all().unwrap(), 2);
            } else {
                let mut guard = cluster.rwlock(id).write().unwrap();
                cluster.semaphore(id).release(1).unwrap();
                cluster.condvar(id).wait(&mut guard).unwrap();
                assert_eq!(go.load(Ordering::Relaxed), 1);
            }
            cluster.barrier(0).unwrap();
        }
    });
}

#[test]
fn a_wait_for_a_condition_ends_at_its_time_with_the_lock() {
    on_every_link(|cluster| {
        let condition = cluster.condvar(cluster.node() as u64);
        let mut guard = cluster.mutex(1).lock().unwrap();
        assert!(!condition.wait_for(&mut guard, Duration::from_millis(5)).unwrap());
        assert!(cluster.mutex(1).try_lock().unwrap().is_none(), "this node holds it");
        drop(guard);
        assert!(!condition.notify_one().unwrap(), "nobody waits any more");
        cluster.barrier(0).unwrap();
    });
}

#[test]
fn barriers_reduce_and_broadcast() {
    on_every_link(|cluster| {
        let me = cluster.node() as u64;
        for round in 0..20u64 {
            let sum = cluster.barrier_reduce(3, Reduce::Sum, me + round).unwrap();
            assert_eq!(sum, 3 + 3 * round);
            assert_eq!(cluster.barrier_reduce(3, Reduce::Greatest, -5 - me as i64).unwrap(), -5);
            assert_eq!(cluster.barrier_reduce(3, Reduce::Least, -5 - me as i64).unwrap(), -7);
            assert_eq!(cluster.barrier_reduce(3, Reduce::Or, 1u64 << me).unwrap(), 0b111);
            assert_eq!(cluster.barrier_reduce(3, Reduce::Sum, 0.5 * me as f64).unwrap(), 1.5);
            assert_eq!(cluster.broadcast(3, 2, 1.25 * me as f64).unwrap(), 2.5);
        }
        assert!(matches!(cluster.barrier_reduce(3, Reduce::And, 1.0), Err(WaitError::Misuse(_))));
        assert!(matches!(cluster.broadcast(3, 3, 1u64), Err(WaitError::Misuse(_))));
        let other = if me == 1 { Reduce::Sum } else { Reduce::Or };
        let Err(WaitError::Misuse(why)) = cluster.barrier_reduce(3, other, me) else { panic!("nodes differ") };
        assert!(why.contains("different reductions"), "{why}");
        cluster.barrier(3).unwrap();
    });
}

#[test]
fn counting_barriers_have_any_participants() {
    on_every_link(|cluster| {
        for id in OBJECTS {
            // Nodes 0 and 1 with two threads each; node 2 is in none.
            if cluster.node() == 2 {
                continue;
            }
            let index = id as usize;
            let last: u64 = std::thread::scope(|scope| {
                let threads = [0; 2].map(|_| {
                    scope.spawn(|| {
                        let mut last = 0;
                        for round in 1..=10u64 {
                            word(cluster, index).fetch_add(1, Ordering::Relaxed);
                            last += u64::from(cluster.barrier_of(id, 4).wait().unwrap());
                            assert_eq!(word(cluster, index).load(Ordering::Relaxed), 4 * round);
                            last += u64::from(cluster.barrier_of(id, 4).wait().unwrap());
                        }
                        last
                    })
                });
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            cluster.atomic(100 + id).fetch_add(last).unwrap();
            cluster.barrier_of(50, 2).wait().unwrap();
            assert_eq!(cluster.atomic(100 + id).load().unwrap(), 20, "one is the last each time");
        }
    });
}

#[test]
fn the_numbers_of_trellis_itself_are_refused() {
    run(
        1,
        |_| (),
        |cluster| {
            let id = u64::MAX - 5;
            let refused = |result: Result<(), WaitError>| assert!(matches!(result, Err(WaitError::Misuse(_))));
            refused(cluster.rwlock(id).write().map(drop));
            refused(cluster.semaphore(id).release(1));
            refused(cluster.event(id).set());
            refused(cluster.once(id).begin().map(drop));
            refused(cluster.condvar(id).notify_one().map(drop));
            refused(cluster.barrier_of(id, 1).wait().map(drop));
            refused(cluster.barrier_of(1, 0).wait().map(drop));
            refused(cluster.mutex(id).try_lock().map(drop));
            let mut guard = cluster.mutex(1).lock().unwrap();
            refused(cluster.condvar(id).wait(&mut guard));
            drop(guard);
            refused(cluster.mutex(1).release());
        },
    );
}

#[test]
fn a_stuck_lock_names_its_holder() {
    let said = sentences(|cluster| {
        let guard = (cluster.node() == 2).then(|| cluster.mutex(4).lock().unwrap());
        cluster.barrier_of(9, 3).wait().unwrap();
        let error = (cluster.node() == 0).then(|| cluster.mutex(4).lock().map(drop).expect_err("node 2 has it"));
        meet_patiently(cluster);
        drop(guard);
        error
    });
    assert_eq!(said.len(), 1);
    assert!(said[0].contains("waiting for lock 4: node 2 (localhost:3) holds it"), "{}", said[0]);
}

#[test]
fn a_stuck_barrier_names_who_is_missing_and_the_next_call_waits_on() {
    let said = sentences(|cluster| {
        if cluster.node() == 1 {
            // Comes when the others have given up.
            cluster.semaphore(3).try_acquire_for(LONG).unwrap();
            cluster.semaphore(3).try_acquire_for(LONG).unwrap();
            cluster.barrier(8).unwrap();
            return None;
        }
        let error = cluster.barrier(8).expect_err("node 1 is missing");
        cluster.semaphore(3).release(1).unwrap();
        while cluster.barrier(8).is_err() {}
        Some(error)
    });
    assert_eq!(said.len(), 2);
    for sentence in said {
        assert!(
            sentence.contains("waiting in barrier 8: waiting for node 1 (localhost:2), which has not come"),
            "{sentence}"
        );
    }
}

#[test]
fn other_stuck_waits_say_what_is_missing() {
    let said = sentences(|cluster| {
        let writer = (cluster.node() == 1).then(|| cluster.rwlock(4).write().unwrap());
        let turn = (cluster.node() == 1).then(|| cluster.once(5).begin().unwrap());
        cluster.barrier_of(9, 3).wait().unwrap();
        if cluster.node() == 0 {
            let explains = |result: Result<(), WaitError>, expected: &str| {
                let sentence = result.expect_err("nobody lets it through").to_string();
                assert!(sentence.contains(expected), "{sentence}");
            };
            explains(cluster.rwlock(4).read().map(drop), "read-write lock 4: node 1 (localhost:2) holds it");
            explains(cluster.once(5).begin().map(drop), "once 5: node 1 (localhost:2) does it");
            explains(cluster.semaphore(6).acquire(), "semaphore 6: nobody has released it; its home is node 0");
            explains(cluster.event(7).wait(), "event 7: nobody has set it; its home is node 1");
            explains(
                cluster.barrier_of(8, 2).wait().map(drop),
                "1 of 2 participants have come (1 of node 0 (localhost:1))",
            );
            let mut guard = cluster.mutex(1).lock().unwrap();
            explains(cluster.condvar(1).wait(&mut guard), "condition 1: nobody has notified it");
            drop(guard);
            explains(cluster.mutex(1).release(), "not held");
        }
        meet_patiently(cluster);
        drop(writer);
        if turn.is_some() {
            cluster.once(5).failed().unwrap();
        }
        None
    });
    assert!(said.is_empty());
}

/// A meeting of all three that no deadline disturbs.
fn meet_patiently(cluster: &Cluster) {
    if cluster.node() == 0 {
        cluster.event(1000).set().unwrap();
    }
    assert!(cluster.event(1000).wait_for(LONG).unwrap());
}

/// It would wait until the deadline, and block every other node meanwhile.
#[test]
fn a_thread_that_would_wait_for_itself_hears_it_at_once() {
    run(
        2,
        |config| config.coherence = "lock(dynamic)".parse().unwrap(),
        |cluster| {
            let own = |error: Result<(), WaitError>, part: &str| match error {
                Err(WaitError::Misuse(sentence)) => assert!(sentence.contains(part), "{sentence}"),
                other => panic!("{part}: {other:?}"),
            };
            let me = cluster.node() as u64;
            // Numbers with their home here and elsewhere.
            for id in [10 + me, 11 + me] {
                let guard = cluster.mutex(100 * (me + 1) + id).lock().unwrap();
                let again = 100 * (me + 1) + id;
                own(cluster.mutex(again).lock().map(drop), "holds lock");
                assert!(cluster.mutex(again).try_lock().unwrap().is_none(), "who only tries does not wait");
                assert!(cluster.mutex(again).try_lock_for(Duration::from_millis(1)).unwrap().is_none());
                // Another thread of this node waits as one of another node does.
                std::thread::scope(|scope| {
                    let other =
                        scope.spawn(|| cluster.mutex(again).try_lock_for(Duration::from_millis(1)).unwrap().is_none());
                    assert!(other.join().unwrap());
                });
                drop(guard);
                drop(cluster.mutex(again).lock().unwrap());
                let read = cluster.rwlock(again).read().unwrap();
                own(cluster.rwlock(again).write().map(drop), "reads under");
                drop(read);
                let written = cluster.rwlock(again).write().unwrap();
                own(cluster.rwlock(again).write().map(drop), "writes under");
                own(cluster.rwlock(again).read().map(drop), "writes under");
                drop(written);
                drop(cluster.rwlock(again).write().unwrap());
                assert!(cluster.once(again).begin().unwrap());
                own(cluster.once(again).begin().map(drop), "this thread does once");
                cluster.once(again).done().unwrap();
            }
            // What another thread gives back is not this one's any more.
            cluster.mutex(500 + me).acquire().unwrap();
            std::thread::scope(|scope| scope.spawn(|| cluster.mutex(500 + me).release().unwrap()).join().unwrap());
            drop(cluster.mutex(500 + me).lock().unwrap());
            let page = cluster.region().page_bytes();
            let range = cluster.region().lock_range(me as usize * 8 * page, 2 * page).unwrap();
            own(cluster.region().lock_range((me as usize * 8 + 1) * page, page).map(drop), "pages");
            drop(range);
            drop(cluster.region().lock_range(me as usize * 8 * page, page).unwrap());
        },
    );
}
