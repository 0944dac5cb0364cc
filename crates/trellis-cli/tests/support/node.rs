//! A program that joins a cluster, in several roles: one that works, and some that fail.

use trellis::Cluster;

/// Runs a role to its end. Failing roles do not return.
pub(crate) fn act(role: &str) {
    let cluster = trellis::join().unwrap_or_else(|error| refuse(&error));
    println!("up {} {}", cluster.node(), std::process::id());
    match role {
        "sum" => sum(&cluster),
        // Node 0 never comes, so that all others wait in the barrier until something happens to somebody.
        "barrier" if cluster.node() == 0 => std::thread::sleep(std::time::Duration::from_secs(600)),
        "barrier" => wait_for_ever(&cluster),
        "exit" if cluster.node() == 1 => std::process::exit(1),
        "vanish" if cluster.node() == 1 => std::process::exit(0),
        "panic" if cluster.node() == 1 => panic!("this is the panic of node 1"),
        _ => wait_for_ever(&cluster),
    }
    if let Err(error) = cluster.leave() {
        refuse(&error);
    }
}

fn sum(cluster: &Cluster) {
    // SAFETY: each node writes its own element and reads the others' after the barrier.
    let numbers = unsafe { cluster.region().slice_mut::<u64>(0, cluster.nodes()) };
    numbers[cluster.node()] = cluster.node() as u64;
    cluster.barrier(1).unwrap_or_else(|error| refuse(&error));
    println!("sum {}", numbers.iter().sum::<u64>());
    cluster.barrier(2).unwrap_or_else(|error| refuse(&error));
}

fn wait_for_ever(cluster: &Cluster) {
    if let Err(error) = cluster.barrier(3) {
        refuse(&error);
    }
}

/// Fails as every Trellis program does.
fn refuse(error: &dyn std::error::Error) -> ! {
    eprintln!("trellis: {error}");
    std::process::exit(70)
}
