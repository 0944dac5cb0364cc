//! Every node writes one number into shared memory; node 0 prints them all.
//!
//! ```text
//! cargo build --example hello
//! trellis run -n 4 target/debug/examples/hello
//! ```

use std::error::Error;
use std::process::ExitCode;

use trellis::{Cluster, Config};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hello: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let cluster = Cluster::join(Config::from_environment()?)?;
    let (node, nodes) = (cluster.node(), cluster.nodes());

    // The region is plain memory at one address in every process. Rust cannot know who else uses these bytes, so it
    // asks for a promise.
    // SAFETY: before the barrier, node i uses element i only.
    let mine = &mut unsafe { cluster.region().slice_mut::<u64>(node * size_of::<u64>(), 1) }[0];
    *mine = 100 + node as u64;

    cluster.barrier(0)?; // everybody has written

    // A word at its home node: adding to it moves eight bytes, not a page.
    cluster.atomic(0).fetch_add(1)?;

    if node == 0 {
        // SAFETY: nobody writes after the barrier.
        let all = unsafe { cluster.region().slice::<u64>(0, nodes) };
        println!("hello from {nodes} nodes: {all:?}");
    }
    cluster.leave()?; // waits for the others: node 0 may still be reading what they wrote
    Ok(())
}
