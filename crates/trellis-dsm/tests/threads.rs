//! A node has three threads of its own, the service thread, the watchdog and the acceptor, however many peers it has.
//!
//! Threads of this whole process are counted, so this file has one test.

mod support;

use support::{run_over, sockets};
use trellis::transport::Tcp;

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("this process has threads").count()
}

#[test]
fn a_node_has_no_thread_for_a_peer() {
    const NODES: usize = 6;
    let before = threads();
    let links: Vec<Tcp> = sockets(NODES).map(|options| Tcp::start(options).unwrap()).collect();
    run_over(
        links,
        |_| (),
        |cluster| {
            cluster.barrier(0).unwrap();
            if cluster.node() == 0 {
                // With the thread that is its program here.
                assert_eq!(threads() - before, NODES * 4);
            }
            cluster.barrier(1).unwrap();
        },
    );
}
