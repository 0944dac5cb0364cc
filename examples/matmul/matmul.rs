//! Multiplies two square matrices in shared memory with three loops, every node calculating some of the rows.
//!
//! ```text
//! cargo build --release --example matmul
//! trellis run -n 2 target/release/examples/matmul 512              # the loops in the order ijk
//! trellis run -n 2 target/release/examples/matmul 512 kij
//! trellis run -n 2 --set 'coherence=lock(dynamic(forward))' target/release/examples/matmul 512 ijk --lock
//! ```
//!
//! Node 0 fills both factors. What is timed begins after that and includes bringing every page to the node that uses
//! it: nobody announces anything, the loops just load and store. With `--lock` the pages of a row stay with their node
//! while the row is calculated, for which the protocol needs the layer `lock`.
//!
//! Every product is checked: all of it up to 256 rows or with `--verify`, else a sample of its elements.

mod product;

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use product::{Layout, Matrices};

const USAGE: &str = "usage: matmul [rows] [ijk | kij] [--lock] [--verify]";

struct Options {
    size: usize,
    kij: bool,
    lock: bool,
    verify: bool,
}

impl Options {
    fn read() -> Result<Options, Box<dyn Error>> {
        let mut chosen = Options { size: 256, kij: false, lock: false, verify: false };
        for word in std::env::args().skip(1) {
            match word.as_str() {
                "--lock" => chosen.lock = true,
                "--verify" => chosen.verify = true,
                "ijk" | "kij" => chosen.kij = word == "kij",
                rows => chosen.size = rows.parse().ok().filter(|size| (1..=1 << 20).contains(size)).ok_or(USAGE)?,
            }
        }
        Ok(chosen)
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("matmul: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let chosen = Options::read()?;
    let cluster = trellis::join()?;
    let (node, nodes) = (cluster.node(), cluster.nodes());
    let matrices = Matrices { cluster: &cluster, layout: Layout::new(chosen.size, cluster.region().page_bytes()) };
    if node == 0 {
        matrices.fill();
    }
    cluster.barrier(0)?; // the factors are complete

    let start = Instant::now();
    let rows = matrices.layout.rows(node, nodes);
    if chosen.kij {
        matrices.calculate_kij(rows, chosen.lock)?;
    } else {
        matrices.calculate_ijk(rows, chosen.lock)?;
    }
    cluster.barrier(0)?; // every row is there

    let mut right = true;
    if node == 0 {
        let seconds = start.elapsed().as_secs_f64();
        right = matrices.first_wrong(chosen.verify).is_none();
        let (size, order) = (chosen.size, if chosen.kij { "kij" } else { "ijk" });
        let locked = if chosen.lock { ", locked" } else { "" };
        let verdict = if right { "verified" } else { "WRONG" };
        println!("product of {size} x {size} matrices, {order}{locked}, on {nodes} nodes in {seconds} s ({verdict})");
    }
    cluster.leave()?;
    if right { Ok(()) } else { Err("the product is wrong".into()) }
}
