//! Clusters over the link `udp`, in a network that loses, doubles and reorders datagrams: nothing of it is seen above.

mod support;

use std::sync::atomic::Ordering;

use support::{REGION_BYTES, run_over, word};
use trellis::transport::{Faults, Multicast, Security, Udp, UdpOptions};
use trellis::{Cluster, Protocol};

const PAGE_BYTES: usize = 4096;
const PAGE_WORDS: usize = PAGE_BYTES / 8;

/// Links between so many nodes over loopback.
fn mesh(nodes: usize, faults: &str) -> Vec<Udp> {
    let (sockets, addresses) = trellis_testing::datagram_sockets(nodes);
    let faults: Option<Faults> = (!faults.is_empty()).then(|| faults.parse().unwrap());
    let links = sockets.into_iter().enumerate().map(|(node, socket)| {
        let options = UdpOptions {
            node,
            addresses: addresses.clone(),
            socket: Some(socket),
            secret: [7; 32],
            security: Security::Plain,
            hello: Vec::new(),
            admit: Box::new(|_, _| Ok(())),
            refused: Box::new(|sentence| eprintln!("{sentence}")),
            faults: faults.clone(),
            multicast: Multicast::Automatic,
        };
        Udp::start(options).unwrap()
    });
    links.collect()
}

/// Pages are written in turn by every node, read by all, counted by atomics, and taken under locks.
fn program(cluster: &Cluster) {
    let (me, nodes) = (cluster.node(), cluster.nodes());
    let pages = 300;
    for round in 0..3 {
        for page in (0..pages).filter(|page| (page + round) % nodes == me) {
            word(cluster, page * PAGE_WORDS).fetch_add(page as u64 + 1, Ordering::Relaxed);
        }
        word(cluster, pages * PAGE_WORDS).fetch_add(1, Ordering::Relaxed);
        cluster.barrier(0).unwrap();
        for page in 0..pages {
            let value = word(cluster, page * PAGE_WORDS).load(Ordering::Relaxed);
            assert_eq!(value, (page as u64 + 1) * (round as u64 + 1), "page {page}");
        }
        cluster.barrier(1).unwrap();
    }
    assert_eq!(word(cluster, pages * PAGE_WORDS).load(Ordering::Relaxed), 3 * nodes as u64);
    for _ in 0..20 {
        let _guard = cluster.mutex(7).lock().unwrap();
        let counter = word(cluster, 1);
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        cluster.atomic(3).fetch_add(1).unwrap();
    }
    cluster.barrier(0).unwrap();
    assert_eq!(word(cluster, 1).load(Ordering::Relaxed), 20 * nodes as u64);
    assert_eq!(cluster.atomic(3).load().unwrap(), 20 * nodes as u64);
}

#[test]
fn a_good_network_carries_every_protocol() {
    for coherence in Protocol::all() {
        println!("{coherence}");
        run_over(mesh(3, ""), |config| config.coherence = coherence, program);
    }
}

#[test]
fn a_network_that_loses_doubles_and_reorders_is_not_seen_above() {
    for (seed, text) in ["ivy", "dynamic(forward)", "dynamic(redirect)", "migrate"].into_iter().enumerate() {
        let faults = format!("drop=10%,duplicate=5%,reorder=5%,seed={seed}");
        println!("{text}, {faults}");
        run_over(
            mesh(3, &faults),
            |config| config.coherence = text.parse().unwrap(),
            |cluster| {
                program(cluster);
                let counted = cluster.counters();
                assert!(counted.packets_out > counted.messages_out, "what is lost is sent again: {counted:?}");
            },
        );
    }
}

/// A page that goes with a lock may come later than the lock, or twice: nobody waits for it, and no count is lost.
#[test]
fn pages_that_go_with_locks_bear_a_bad_network() {
    for (seed, text) in ["hlrc(invalidate)", "hlrc(adaptive)"].into_iter().enumerate() {
        let faults = format!("drop=10%,duplicate=5%,reorder=5%,seed={seed}");
        println!("{text}, {faults}");
        run_over(
            mesh(3, &faults),
            |config| config.coherence = text.parse().unwrap(),
            |cluster| {
                let me = cluster.node();
                for round in 0..60 {
                    // Two locks, a word of each on one page, and a neighbour of this node's own.
                    let lock = round % 2;
                    let _guard = cluster.mutex(lock as u64).lock().unwrap();
                    for index in [lock, 2 + 2 * me + lock] {
                        let counter = word(cluster, index);
                        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    }
                }
                let counted = cluster.counters();
                println!("node {me}: {} piggybacked, {} fetched", counted.pages_piggybacked_in, counted.pages_in);
                cluster.barrier(0).unwrap();
                let counts = (0..8).map(|index| word(cluster, index).load(Ordering::Relaxed)).collect::<Vec<_>>();
                assert_eq!(counts, [90, 90, 30, 30, 30, 30, 30, 30]);
                cluster.barrier(1).unwrap();
            },
        );
    }
}

#[test]
fn locks_and_changes_of_protocols_bear_a_bad_network() {
    run_over(
        mesh(3, "drop=10%,duplicate=5%,reorder=5%,seed=21"),
        |config| config.coherence = "lock(dynamic)".parse().unwrap(),
        |cluster| {
            let region = cluster.region();
            for text in ["lock(ivy)", "delay(lock(dynamic(redirect)))", "lock(dynamic(forward), spin 100us)"] {
                for _ in 0..15 {
                    let _guard = region.lock_range(PAGE_BYTES - 8, 16).unwrap();
                    for index in [PAGE_WORDS - 1, PAGE_WORDS] {
                        let counter = word(cluster, index);
                        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    }
                }
                region.set_protocol(0, REGION_BYTES, text).unwrap();
            }
            for index in [PAGE_WORDS - 1, PAGE_WORDS] {
                assert_eq!(word(cluster, index).load(Ordering::Relaxed), 3 * 3 * 15);
            }
            cluster.barrier(0).unwrap();
        },
    );
}
