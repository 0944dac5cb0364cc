//! Clusters over the link `fabric`, with the providers of libfabric that need no hardware.

#![cfg(feature = "fabric")]

mod support;

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;

use support::{run_over, sockets, word};
use trellis::transport::{Fabric, FabricOptions};
use trellis::{Cluster, Protocol};

const PAGE_WORDS: usize = 4096 / 8;

/// Links between so many nodes over loopback.
fn mesh(nodes: usize, provider: &str) -> Vec<Fabric> {
    let start = |tcp| Fabric::start(FabricOptions { tcp, provider: provider.to_owned() }).unwrap();
    sockets(nodes).map(start).collect()
}

/// Pages are written in turn by every node, read by all, and counted under a lock.
fn program(cluster: &Cluster) {
    let (me, nodes) = (cluster.node(), cluster.nodes());
    let pages = 200;
    for round in 0..3 {
        for page in (0..pages).filter(|page| (page + round) % nodes == me) {
            word(cluster, page * PAGE_WORDS).fetch_add(page as u64 + 1, Ordering::Relaxed);
        }
        cluster.barrier(0).unwrap();
        for page in 0..pages {
            let value = word(cluster, page * PAGE_WORDS).load(Ordering::Relaxed);
            assert_eq!(value, (page as u64 + 1) * (round as u64 + 1), "page {page}");
        }
        cluster.barrier(1).unwrap();
    }
    for _ in 0..20 {
        let _guard = cluster.mutex(7).lock().unwrap();
        let counter = word(cluster, 1);
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
    cluster.barrier(0).unwrap();
    assert_eq!(word(cluster, 1).load(Ordering::Relaxed), 20 * nodes as u64);
}

/// Whether a thread of this process sleeps, and how often it went to sleep.
fn sleeps(thread: &str) -> (bool, u64) {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    (field("State:").starts_with('S'), field("voluntary_ctxt_switches:").parse().unwrap())
}

/// The home's own thread sleeps on something that has nothing to do with the cluster while another node reads all of its
/// pages: it is not woken for any of them.
#[test]
fn reads_never_wake_the_homes_application_thread() {
    const PAGES: usize = 100;
    for provider in ["tcp", "shm"] {
        let (name_home, take_name) = channel();
        let (let_go, wait) = channel();
        let (name_home, take_name) = (Mutex::new(name_home), Mutex::new(take_name));
        let (let_go, wait) = (Mutex::new(let_go), Mutex::new(wait));
        run_over(
            mesh(2, provider),
            |config| config.prefetch_pages_max = 0,
            |cluster| {
                if cluster.node() == 0 {
                    (0..PAGES).for_each(|page| word(cluster, page * PAGE_WORDS).store(page as u64, Ordering::Relaxed));
                }
                cluster.barrier(0).unwrap();
                if cluster.node() == 0 {
                    let name = std::fs::read_link("/proc/thread-self").unwrap();
                    name_home.lock().unwrap().send(name.to_str().unwrap().to_owned()).unwrap();
                    wait.lock().unwrap().recv().unwrap();
                } else {
                    let home = take_name.lock().unwrap().recv().unwrap();
                    while !sleeps(&home).0 {
                        std::thread::yield_now();
                    }
                    let before = sleeps(&home);
                    for page in 0..PAGES {
                        assert_eq!(word(cluster, page * PAGE_WORDS).load(Ordering::Relaxed), page as u64);
                    }
                    assert_eq!(sleeps(&home), before, "{provider}");
                    let_go.lock().unwrap().send(()).unwrap();
                }
                cluster.barrier(1).unwrap();
            },
        );
    }
}

#[test]
fn the_provider_tcp_carries_every_protocol() {
    for coherence in Protocol::all() {
        println!("{coherence}");
        run_over(mesh(3, "tcp"), |config| config.coherence = coherence, program);
    }
}

#[test]
fn the_provider_shm_carries_every_protocol() {
    for coherence in Protocol::all() {
        println!("{coherence}");
        run_over(mesh(3, "shm"), |config| config.coherence = coherence, program);
    }
}
