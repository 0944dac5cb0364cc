//! Every node writes one number into shared memory; node 0 prints them all.
//!
//! ```text
//! cargo build --example hello
//! trellis run -n 4 target/debug/examples/hello
//! ```

use std::error::Error;
use std::process::ExitCode;

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
    let cluster = trellis::join()?;
    let (node, nodes) = (cluster.node(), cluster.nodes());

    // Plain memory at one address in every process. Each node may change its own part of it, here one element.
    let mut numbers = cluster.array::<u64>("numbers", nodes)?;
    numbers.mine_mut()[0] = 100 + node as u64;

    // Everybody has written. From now on all of it can be read, and nobody changes it.
    let numbers = numbers.freeze()?;

    // A word at its home node: adding to it moves eight bytes, not a page.
    cluster.atomic("guests").fetch_add(1)?;

    if node == 0 {
        println!("hello from {nodes} nodes: {:?}", &numbers[..]);
    }
    drop(numbers);
    cluster.leave()?; // waits for the others: node 0 may still be reading what they wrote
    Ok(())
}
