//! Arrays, values and objects with names over a link inside one process.

mod support;

use std::time::Duration;

use support::{on_every_kind, run};
use trellis::{Cluster, HeapError, Protocol, WaitError};

fn misuse<T>(outcome: Result<T, HeapError>) -> String {
    match outcome {
        Err(HeapError::Misuse(why)) => why,
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("it is not refused"),
    }
}

/// Every node fills its partition, and reads all of them; then each adds what its neighbour has.
fn fills_and_reads(cluster: &Cluster) {
    let (me, nodes) = (cluster.node(), cluster.nodes());
    let length = 4096 * nodes + 17;
    let mut numbers = cluster.array::<u64>("numbers", length).unwrap();
    assert_eq!(numbers.len(), length);
    assert!(numbers.mine().iter().all(|number| *number == 0), "it is zero at first");
    let own = numbers.partition(me);
    own.clone().zip(numbers.mine_mut()).for_each(|(index, number)| *number = index as u64);
    let numbers = numbers.freeze().unwrap();
    assert!(numbers.iter().enumerate().all(|(index, number)| *number == index as u64));
    assert_eq!(numbers.partition(nodes - 1).end, length);
    let theirs = numbers[numbers.partition((me + 1) % nodes)][0];
    let mut numbers = numbers.thaw().unwrap();
    numbers.mine_mut().iter_mut().for_each(|number| *number += theirs);
    let numbers = numbers.freeze().unwrap();
    for node in 0..nodes {
        let added = numbers.partition((node + 1) % nodes).start as u64;
        assert!(
            numbers.partition(node).all(|index| numbers[index] == index as u64 + added),
            "partition of node {node}"
        );
    }
}

#[test]
fn every_node_fills_its_block_and_reads_all() {
    on_every_kind_and_model(fills_and_reads);
}

/// Under every catcher and home, and under release consistency.
fn on_every_kind_and_model(program: impl Fn(&Cluster) + Sync) {
    on_every_kind(3, &program);
    run(3, |config| config.coherence = "hlrc(adaptive)".parse::<Protocol>().unwrap(), program);
}

#[test]
fn one_barrier_freezes_an_array_and_thaws_another() {
    // The partitions of the short one share a page.
    for length in [3000, 10] {
        on_every_kind_and_model(|cluster| {
            let mut next = cluster.array::<i32>("next", length).unwrap();
            let mut now = cluster.array::<i32>("now", length).unwrap().freeze().unwrap();
            for step in 1..=20 {
                let own = next.partition(cluster.node());
                own.zip(next.mine_mut()).for_each(|(index, value)| *value = now[(index + 1) % length] + 1);
                (next, now) = now.exchange(next).unwrap();
                assert!(now.iter().all(|value| *value == step), "step {step}");
            }
        });
    }
}

#[test]
fn a_value_under_a_lock_loses_nothing() {
    on_every_kind_and_model(|cluster| {
        let total = cluster.mutex_of("total", [7u64, 0]).unwrap();
        for _ in 0..100 {
            let mut value = total.lock().unwrap();
            value[0] += 1;
            value[1] += 2;
        }
        cluster.barrier("all have added").unwrap();
        let value = total.lock().unwrap();
        assert_eq!(*value, [7 + 300, 600]);
        assert!(total.try_lock().unwrap().is_none(), "it is locked");
        assert!(total.try_lock_for(Duration::from_millis(1)).unwrap().is_none());
        value.unlock().unwrap();
    });
}

#[test]
fn a_condition_takes_the_guard_of_a_value() {
    run(
        2,
        |_| (),
        |cluster| {
            let turn = cluster.mutex_of("turn", 0u32).unwrap();
            let changed = cluster.condvar("turn changed");
            for round in 0..20 {
                let mut value = turn.lock().unwrap();
                while *value as usize != 2 * round + cluster.node() {
                    changed.wait(&mut value).unwrap();
                }
                *value += 1;
                changed.notify_all().unwrap();
            }
        },
    );
}

#[test]
fn who_describes_a_name_differently_is_told() {
    run(
        2,
        |_| (),
        |cluster| {
            let me = cluster.node();
            if me == 0 {
                drop(cluster.array::<f64>("u", 100).unwrap());
                drop(cluster.mutex_of("u", 1u8).unwrap());
            }
            cluster.barrier("made").unwrap();
            let found = |outcome| {
                if me == 1 {
                    assert_eq!(
                        misuse(outcome),
                        "array `u` has 100 f64, as node 0 asked; this node asks for 200 structures of 24 bytes"
                    );
                }
            };
            if me == 1 {
                found(cluster.array::<[f64; 3]>("u", 200).map(drop));
                let error = misuse(cluster.array::<f64>("u", 99));
                assert!(error.ends_with("this node asks for 99 f64"), "{error}");
                let error = misuse(cluster.mutex_of("u", 1i16));
                assert_eq!(error, "value `u` has 1 u8, as node 0 asked; this node asks for 1 i16");
                // What was refused can be asked for rightly.
                drop(cluster.array::<f64>("u", 100).unwrap());
            }
            let error = misuse(cluster.array::<f64>("u", 100));
            assert!(error.starts_with("array `u` was opened at this node before"), "{error}");
            assert_eq!(
                misuse(cluster.array::<u8>("", 1)),
                "a name has 1 to 255 bytes, none of them zero; this one has 0"
            );
            assert!(misuse(cluster.mutex_of(&"n".repeat(256), 1u8)).contains("this one has 256"));
        },
    );
}

#[test]
fn an_array_without_room_can_be_asked_for_again_with_less() {
    run(
        2,
        |_| (),
        |cluster| {
            let error = cluster.array::<u64>("large", 1 << 40).unwrap_err();
            assert!(matches!(error, HeapError::NoRoom(_)), "{error}");
            assert!(matches!(cluster.array::<[u8; 32]>("large", usize::MAX).unwrap_err(), HeapError::NoRoom(_)));
            cluster.barrier("refused").unwrap();
            assert_eq!(cluster.array::<u64>("large", 10).unwrap().freeze().unwrap().len(), 10);
        },
    );
}

#[test]
fn a_node_leaves_only_without_handles() {
    run(
        2,
        |_| (),
        |cluster| {
            let array = cluster.array::<u8>("held", 10).unwrap();
            let refused = WaitError::Misuse("array `held` is still in use; drop its handle before leaving".to_owned());
            assert_eq!(cluster.leave(), Err(refused));
            drop(array);
            let value = cluster.mutex_of("held", 1.5f32).unwrap();
            assert!(cluster.leave().unwrap_err().to_string().starts_with("value `held` is still in use"));
            drop(value);
            cluster.barrier("still there").unwrap();
            cluster.leave().unwrap();
            assert!(misuse(cluster.array::<u8>("late", 10)).contains("has left the cluster"));
        },
    );
}

#[test]
fn texts_name_every_kind_of_object() {
    run(
        2,
        |_| (),
        |cluster| {
            assert_eq!(cluster.id("queue"), cluster.id(&String::from("queue")));
            assert_ne!(cluster.id("queue"), cluster.id("queues"));
            cluster.atomic("count").fetch_add(1).unwrap();
            cluster.barrier("counted").unwrap();
            assert_eq!(cluster.atomic("count").load().unwrap(), 2);
            cluster.rwlock("table").write().unwrap().unlock().unwrap();
            cluster.semaphore("permits").release(1).unwrap();
            cluster.semaphore("permits").acquire().unwrap();
            cluster.event("ready").set().unwrap();
            cluster.event("ready").wait().unwrap();
            cluster.once("setup").call_once(|| ()).unwrap();
            assert!(cluster.once("setup").is_completed().unwrap());
            cluster.barrier_of("both", 2).wait().unwrap();
        },
    );
}

#[test]
fn a_text_and_its_number_are_one_object() {
    run(
        1,
        |_| (),
        |cluster| {
            let guard = cluster.mutex(cluster.id("queue")).lock().unwrap();
            assert!(cluster.mutex("queue").try_lock().unwrap().is_none());
            assert!(cluster.mutex("queues").try_lock().unwrap().is_some());
            let again = cluster.mutex("queue").lock().map(drop).unwrap_err().to_string();
            assert!(again.starts_with("this thread holds lock `queue` already"), "{again}");
            drop(guard);
            let value = cluster.mutex_of("queue", 0u8).unwrap();
            let guard = value.lock().unwrap();
            let again = value.lock().map(drop).unwrap_err().to_string();
            assert!(again.starts_with("this thread holds lock `queue` already"), "{again}");
            drop(guard);
        },
    );
}

#[test]
fn nothing_that_a_program_can_name_reaches_what_belongs_to_memory() {
    run(
        1,
        |config| config.wait_seconds_max = 1,
        |cluster| {
            let array = cluster.array::<u64>("u", 10).unwrap();
            let value = cluster.mutex_of("v", 5u64).unwrap();
            let guard = value.lock().unwrap();
            // The texts from which their numbers are made are other objects.
            for text in ["u", "v", "array u", "value v"] {
                assert_eq!(cluster.atomic(text).load().unwrap(), 0);
                assert!(cluster.once(text).begin().unwrap());
                cluster.once(text).failed().unwrap();
                assert!(cluster.mutex(text).try_lock().unwrap().is_some(), "{text}");
            }
            for number in [3 << 62, u64::MAX - 0xffff, u64::MAX] {
                let refusal = |outcome: Result<(), WaitError>| match outcome {
                    Err(WaitError::Misuse(why)) => assert!(why.contains("kept for Trellis itself"), "{why}"),
                    other => panic!("{number:#x}: {other:?}"),
                };
                refusal(cluster.mutex(number).acquire());
                refusal(cluster.mutex(number).release());
                refusal(cluster.rwlock(number).read().map(drop));
                refusal(cluster.barrier(number));
                refusal(cluster.barrier_of(number, 1).wait().map(drop));
                refusal(cluster.atomic(number).store(0));
                refusal(cluster.once(number).begin().map(drop));
                refusal(cluster.event(number).set());
                refusal(cluster.semaphore(number).release(1));
                refusal(cluster.condvar(number).notify_all().map(drop));
            }
            assert_eq!(*guard, 5);
            drop((guard, array));
        },
    );
}

#[test]
fn what_belongs_to_another_cluster_is_refused() {
    run(
        1,
        |_| (),
        |one| {
            run(
                1,
                |_| (),
                |other| {
                    let (own, foreign) = (one.mutex_of("v", 1u8).unwrap(), other.mutex_of("v", 2u8).unwrap());
                    let (own, mut foreign) = (own.lock().unwrap(), foreign.lock().unwrap());
                    let wait = one.condvar("c").wait_for(&mut foreign, Duration::from_millis(1));
                    assert!(wait.unwrap_err().to_string().contains("a lock of another cluster"));
                    assert_eq!((*own, *foreign), (1, 2), "both are still locked");
                    let now = one.array::<u8>("now", 10).unwrap().freeze().unwrap();
                    let exchange = now.exchange(other.array::<u8>("next", 10).unwrap());
                    assert!(exchange.unwrap_err().to_string().contains("arrays of two clusters"));
                },
            );
        },
    );
}

#[test]
fn sentences_say_the_name() {
    run(
        1,
        |config| config.wait_seconds_max = 1,
        |cluster| {
            let error = cluster.event("harvest").wait().unwrap_err().to_string();
            assert!(error.starts_with("gave up after 1 s waiting for event `harvest`: nobody has set it"), "{error}");
        },
    );
}
