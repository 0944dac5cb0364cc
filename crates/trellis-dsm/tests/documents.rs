//! The Rust that documents show to users, so that it compiles: every block stands here, word for word.
//!
//! Nothing of it is called: what such calls do is tried elsewhere. The guide to new protocols has sketches, which leave out
//! what does not matter there.
#![allow(dead_code, reason = "it has to compile")]
#![allow(unsafe_code)]

use std::path::Path;

/// Documents with blocks of Rust.
const DOCUMENTS: &[&str] = &[
    "docs/guides/a-program-in-rust.md",
    "docs/concepts/release-consistency.md",
    "docs/guides/give-a-program-the-racks-memory.md",
    "docs/guides/join-and-leave.md",
    "docs/reference/rust-api.md",
];

mod readme {
    fn main() -> Result<(), Box<dyn std::error::Error>> {
        let cluster = trellis::join()?;
        let (node, nodes, steps) = (cluster.node(), cluster.nodes(), 100_000_000);
        let points = (node..steps).step_by(nodes).map(|i| (i as f64 + 0.5) / steps as f64);
        let mut sums = cluster.array::<f64>("sums", nodes)?; // shared memory, an element for each node
        sums.mine_mut()[0] = points.map(|x| 4.0 / (1.0 + x * x) / steps as f64).sum();
        let sums = sums.freeze()?; // every node has stored its part; no node changes it from now on
        if node == 0 {
            println!("{}", sums.iter().sum::<f64>());
        }
        drop(sums);
        Ok(cluster.leave()?)
    }
}

mod release_consistency {
    use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

    fn main() -> Result<(), Box<dyn std::error::Error>> {
        let cluster = trellis::join()?;
        let (node, nodes, count) = (cluster.node(), cluster.nodes(), 100_000);
        // SAFETY: atomics may be shared; other nodes use these bytes as the same type.
        let squares = unsafe { cluster.region().slice::<AtomicI64>(0, count) };
        // SAFETY: the same.
        let total = unsafe { &cluster.region().slice::<AtomicI64>(8 * count, 1)[0] };

        for i in (node..count).step_by(nodes) {
            squares[i].store((i * i) as i64, Relaxed); // side by side with the others' stores
        }
        cluster.barrier(0)?; // releases, and acquires
        let sum: i64 = squares.iter().skip((node + 1) % nodes).step_by(nodes).map(|square| square.load(Relaxed)).sum();
        let guard = cluster.mutex(1).lock()?; // acquires
        total.store(total.load(Relaxed) + sum, Relaxed);
        drop(guard); // releases
        cluster.barrier(0)?;
        if node == 0 {
            println!("{}", total.load(Relaxed)); // 333328333350000
        }
        Ok(cluster.leave()?)
    }
}

fn containers_of_the_memory() -> Result<(), trellis::stored::StoredError> {
    use trellis::stored::{RemoteHeap, allocator_api2::vec::Vec};

    let heap = RemoteHeap::open("memory-server:fd12:3456:1001::/48", 64 << 30, 256 << 20)?;
    let mut field = Vec::with_capacity_in(1 << 30, &heap);
    field.resize(1 << 30, 0.0_f64);
    Ok(())
}

fn only_a_part_of_the_memory() -> Result<(), trellis::stored::StoredError> {
    let mut memory = trellis::stored::RemoteMemory::map("memory-server:fd12:3456:1001::/48", 8 << 30, 256 << 20)?;
    let field = memory.slice_mut::<f64>();
    field[0] = 1.0;
    Ok(())
}

fn join_and_leave() -> Result<(), Box<dyn std::error::Error>> {
    const NEXT: u64 = 1;
    const PIECES: u64 = 1000;
    let work_on = |_: &trellis::Cluster, _: u64| ();
    let cluster = trellis::join()?;
    loop {
        let piece = cluster.atomic(NEXT).fetch_add(1)?;
        if piece >= PIECES || cluster.is_leave_requested() {
            break;
        }
        work_on(&cluster, piece);
    }
    if !cluster.has_joined_later() {
        cluster.barrier(0)?;
    }
    cluster.leave()?;
    Ok(())
}

fn locked_range(cluster: &trellis::Cluster) -> Result<(), Box<dyn std::error::Error>> {
    let region = cluster.region();
    region.set_protocol(0, 1 << 20, "lock(dynamic)")?; // every node
    let guard = region.lock_range(4096, 16)?;
    // SAFETY: whoever uses these bytes locks them first.
    unsafe { region.slice_mut::<u64>(4096, 2) }.fill(7);
    drop(guard);
    Ok(())
}

mod rust_api {
    fn main() -> Result<(), Box<dyn std::error::Error>> {
        let cluster = trellis::join()?;
        let mut squares = cluster.array::<u64>("squares", 1_000)?; // every node opens it
        let first = squares.partition(cluster.node()).start;
        for (offset, square) in squares.mine_mut().iter_mut().enumerate() {
            *square = ((first + offset) as u64).pow(2); // its own partition only
        }
        let squares = squares.freeze()?; // a barrier; now a slice that nobody changes
        let largest = cluster.mutex_of("largest", 0)?;
        let mut value = largest.lock()?; // one thread of the cluster
        *value = squares.iter().copied().fold(*value, u64::max);
        Ok(())
    }
}

/// The words of lines, however they are set apart.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn what_the_documents_show_stands_here() {
    let here = words(include_str!("documents.rs"));
    for document in DOCUMENTS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(document);
        let text = std::fs::read_to_string(path).expect("a page");
        let blocks: Vec<&str> =
            text.split("```rust\n").skip(1).map(|rest| rest.split("```").next().expect("a part")).collect();
        assert!(!blocks.is_empty(), "{document} has no Rust any more");
        for block in blocks {
            assert!(here.contains(&words(block)), "{document}: this does not stand here:\n{block}");
        }
    }
}
