//! Clusters inside this process: every node a thread, joined by queues.
//!
//! Promises: each cluster has addresses of its own, so that tests run at the same time; a node that cannot join or leave
//! fails its test.

// Each test program uses its own part of this.
#![allow(dead_code)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use trellis::config::{Catch, Home, Peers};
use trellis::transport::links::in_process;
use trellis::transport::{Link, Security, TcpOptions};
use trellis::{Cluster, Config, Protocol};

/// Where the next cluster's first node maps its region: tests run at the same time in one process.
pub(crate) static NEXT_BASE: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
pub(crate) const REGION_BYTES: usize = 8 << 20;
/// Room for the largest region, and between two.
pub(crate) const ADDRESS_STEP: usize = 512 << 20;

pub(crate) fn on_every_kind(nodes: usize, program: impl Fn(&Cluster) + Sync) {
    for catch in [Catch::Signal, Catch::Handler, Catch::Mprotect] {
        for home in [Home::Manager, Home::Interleaved] {
            run(nodes, |config| (config.catch, config.home) = (catch, home), &program);
        }
    }
}

pub(crate) fn run(nodes: usize, change: impl Fn(&mut Config), program: impl Fn(&Cluster) + Sync) {
    let links = in_process::mesh(nodes).expect("descriptors can be made");
    run_over(links, change, program);
}

/// Runs `program` on every node, joined by these links.
pub(crate) fn run_over<L: Link + 'static>(
    links: Vec<L>,
    change: impl Fn(&mut Config),
    program: impl Fn(&Cluster) + Sync,
) {
    let nodes = links.len();
    std::thread::scope(|scope| {
        for (node, link) in links.into_iter().enumerate() {
            let mut config = config(node, nodes);
            change(&mut config);
            let program = &program;
            scope.spawn(move || {
                let cluster = Cluster::join_over(config, Box::new(link)).expect("the node joins");
                program(&cluster);
                cluster.leave().expect("the node leaves");
            });
        }
    });
}

/// What links between so many nodes over loopback are started with: plain frames, and nobody is refused.
pub(crate) fn sockets(nodes: usize) -> impl Iterator<Item = TcpOptions> {
    let (listeners, addresses) = trellis_testing::listeners(nodes);
    listeners.into_iter().enumerate().map(move |(node, listener)| TcpOptions {
        node,
        addresses: addresses.clone(),
        listener: Some(listener),
        secret: [7; 32],
        security: Security::Plain,
        hello: Vec::new(),
        admit: Box::new(|_, _| Ok(())),
        refused: Box::new(|sentence| eprintln!("{sentence}")),
    })
}

/// What node `node` of `nodes` in this process is told; regions of the nodes lie at different addresses.
pub(crate) fn config(node: usize, nodes: usize) -> Config {
    Config {
        peers: Peers::Listed((0..nodes).map(|node| format!("localhost:{}", 1 + node)).collect()),
        node,
        region_bytes: REGION_BYTES,
        base_address: NEXT_BASE.fetch_add(ADDRESS_STEP, Ordering::Relaxed),
        start_seconds_max: 20,
        silence_seconds_max: 20,
        wait_seconds_max: 60,
        ..Config::default()
    }
}

/// A word of the region as an atomic, because other nodes write it at the same time.
pub(crate) fn word(cluster: &Cluster, index: usize) -> &AtomicU64 {
    assert!(index * 8 < cluster.region().bytes());
    // SAFETY: inside the region, aligned, and only ever used as an atomic by these tests.
    unsafe { &*cluster.region().base().cast::<AtomicU64>().add(index) }
}

/// Every protocol that the tests run, with every catcher and every home in turn.
pub(crate) fn on_every_protocol(nodes: usize, program: impl Fn(&Cluster) + Sync) {
    for (number, coherence) in Protocol::all().into_iter().enumerate() {
        let catch = [Catch::Signal, Catch::Handler, Catch::Mprotect][number % 3];
        let home = [Home::Manager, Home::Interleaved][number / 3 % 2];
        println!("{coherence}, {catch}, {home}");
        run(nodes, |config| (config.coherence, config.catch, config.home) = (coherence, catch, home), &program);
    }
}
