//! Clusters over the link `shm`, alone and beside tcp in one cluster: pages are copied out of the peer's region, and
//! nothing of it is seen above.

mod support;

use std::sync::atomic::Ordering;

use support::{run_over, sockets, word};
use trellis::transport::{Manner, Shm, ShmOptions, TcpOptions};
use trellis::{Cluster, Protocol};

const PAGE_WORDS: usize = 4096 / 8;

/// Links between so many nodes; `host` says where each takes itself to be.
fn mesh(nodes: usize, manner: Manner, host: impl Fn(usize) -> u8) -> Vec<Shm> {
    let start = |tcp: TcpOptions| {
        let host = Some([host(tcp.node); 16]);
        Shm::start(ShmOptions { tcp, manner, host }).unwrap()
    };
    sockets(nodes).map(start).collect()
}

/// Every node writes its share of the pages, and reads what the others wrote.
fn program(cluster: &Cluster) {
    let (me, nodes) = (cluster.node(), cluster.nodes());
    let pages = 200;
    for round in 0..3 {
        for page in (0..pages).filter(|page| (page + round) % nodes == me) {
            for at in [0, 100, PAGE_WORDS - 1] {
                word(cluster, page * PAGE_WORDS + at).fetch_add((page + at) as u64 + 1, Ordering::Relaxed);
            }
        }
        cluster.barrier(0).unwrap();
        for page in 0..pages {
            for at in [0, 100, PAGE_WORDS - 1] {
                let value = word(cluster, page * PAGE_WORDS + at).load(Ordering::Relaxed);
                assert_eq!(value, ((page + at) as u64 + 1) * (round as u64 + 1), "page {page}, word {at}");
            }
        }
        cluster.barrier(1).unwrap();
    }
    for _ in 0..50 {
        let _guard = cluster.mutex(7).lock().unwrap();
        let counter = word(cluster, 1);
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
    cluster.barrier(0).unwrap();
    assert_eq!(word(cluster, 1).load(Ordering::Relaxed), 50 * nodes as u64);
}

#[test]
fn shared_memory_carries_every_protocol() {
    for text in ["ivy", "dynamic(forward)", "dynamic(redirect)", "auto", "migrate", "lock(ivy)"] {
        println!("{text}");
        let coherence: Protocol = text.parse().unwrap();
        run_over(mesh(3, Manner::Require, |_| 0), |config| config.coherence = coherence, program);
    }
}

#[test]
fn a_cluster_may_have_pairs_with_and_without_shared_memory() {
    let links = mesh(4, Manner::Prefer, |node| (node / 2) as u8);
    run_over(links, |config| config.coherence = "dynamic(forward)".parse().unwrap(), program);
}
