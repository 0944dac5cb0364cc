//! `trellis bench matmul`: a product of matrices with three plain loops, on one node and on several, in one run.
//!
//! Promises: the time begins when node 0 has filled the factors, so every page that a node uses is fetched within it;
//! nothing is prefetched. A wrong product is an error and never a figure. The loops are those of `examples/matmul`.

#[path = "../../../../examples/matmul/product.rs"]
mod product;

use std::time::Instant;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trellis::config::{Config, Sources};
use trellis_cluster_protocol::coherence::Protocol;
use trellis_cluster_protocol::coherence::choices::{Layer, Waiting};

use crate::bench::cluster::{ClusterPlan, Common, numbers};
use crate::bench::figures::{Figures, p50};
use crate::bench::node::{Found, Member, Task, WorkError};
use product::{Layout, Matrices};
use trellis_command::exit::{self, Ending, Failure};

const EXAMPLES: &str = "\
Examples:
  trellis bench matmul --size 1024
  trellis bench matmul --size 512 --order kij --set 'coherence=dynamic(forward)' --json
  trellis bench matmul --lock --set 'coherence=lock(dynamic(forward))'";

/// Multiply two matrices with three loops, on one node and on several
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MatmulArguments {
    /// Nodes that share the rows
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) nodes: u8,
    /// Rows and columns
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub(crate) size: u32,
    /// The order of the loops
    #[arg(long, value_enum, default_value_t = Order::Ijk)]
    pub(crate) order: Order,
    /// Lock the pages of a row while it is computed; the protocol needs the layer `lock`
    #[arg(long)]
    pub(crate) lock: bool,
    /// How often it is computed on one node and on all
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// The order of the three loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Each element is complete before the next
    Ijk,
    /// Along the rows of all three matrices
    Kij,
}

impl Order {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Order::Ijk => "ijk",
            Order::Kij => "kij",
        }
    }
}

/// A node's task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MatmulTask {
    pub(crate) size: usize,
    pub(crate) order: Order,
    /// Whether the pages of a row are locked while it is computed.
    pub(crate) lock: bool,
    /// Threads that share the rows of a node.
    pub(crate) threads: usize,
}

/// The result of one calculation.
pub(crate) struct Product {
    pub(crate) seconds: f64,
    /// Pages received by all nodes.
    pub(crate) pages: f64,
    /// Messages sent by all nodes.
    pub(crate) messages: f64,
}

const PAGE_BYTES: usize = 4096;

/// Runs the subcommand.
pub(crate) fn run(arguments: &MatmulArguments) -> Ending {
    let (nodes, size) = (usize::from(arguments.nodes), arguments.size as usize);
    if arguments.lock {
        let sources = arguments.common.set.iter().fold(Sources::new().process_environment(), with_setting);
        // A configuration that cannot be read is refused, with its location, when the cluster starts.
        sources.load_for_all().map_or(Ok(()), |config| check_can_lock(&config))?;
    }
    let task = MatmulTask { size, order: arguments.order, lock: arguments.lock, threads: 1 };
    let (mut one, mut many, mut pages, mut messages) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        one.push(product(1, &task, &[], &arguments.common)?.seconds);
        let found = product(nodes, &task, &[], &arguments.common)?;
        many.push(found.seconds);
        pages.push(found.pages);
        messages.push(found.messages);
    }
    let (one, many) = (p50(one), p50(many));
    let mut figures = Figures::new("matmul");
    figures.add("seconds_1_node_p50", one, "one node (s, median)");
    figures.add("seconds_p50", many, "all nodes, with every fetch (s, median)");
    figures.add("speedup", one / many, "one node / all nodes");
    figures.add("pages_in", p50(pages), "pages fetched by all nodes");
    figures.add("messages", p50(messages), "messages sent by all nodes");
    figures.add_value("size", size, "rows and columns");
    figures.add_value("order", arguments.order.name(), "order of the loops");
    figures.add_value("locked", arguments.lock, "rows locked while they are calculated");
    figures.add_value("nodes", nodes, "nodes");
    figures.add_value("rounds", arguments.rounds, "rounds");
    figures.print(arguments.common.json)
}

fn with_setting(sources: Sources, (key, value): &(String, String)) -> Sources {
    sources.set(format!("{key}={value}"))
}

/// Refuses a cluster in which no page can be locked before it is started.
fn check_can_lock(config: &Config) -> Result<(), Failure> {
    let protocol = config.coherence;
    if protocol.can_lock() || config.coherence_ranges.iter().any(|range| range.protocol.can_lock()) {
        return Ok(());
    }
    let locked = |protocol: Protocol| protocol.within(Layer::Lock(Waiting::Sleep));
    let same = locked(protocol).filter(|same| Some(*same) != locked(Protocol::DYNAMIC));
    let same = same.map_or_else(String::new, |same| format!(" or 'coherence={same}'"));
    Err(Failure::new(
        exit::USAGE,
        format!(
            "--lock: `{protocol}` cannot lock pages; choose one that can with --set 'coherence=lock(dynamic)'{same}"
        ),
    ))
}

/// The time in which threads of one process calculate the same from memory of their own.
pub(crate) fn with_threads(size: usize, threads: usize) -> Result<f64, Failure> {
    let layout = Layout::new(size, PAGE_BYTES);
    let elements = layout.bytes / size_of::<f64>();
    let (mut left, mut right, mut product) = (vec![0.0; elements], vec![0.0; elements], vec![0.0; elements]);
    layout.fill(0, &mut left);
    layout.fill(1, &mut right);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let mut rest = product.as_mut_slice();
        for thread in 0..threads {
            let rows = layout.rows(thread, threads);
            let (own, others) = rest.split_at_mut(rows.len() * layout.pitch);
            rest = others;
            let (left, right, layout) = (&left, &right, &layout);
            scope.spawn(move || {
                for (row, place) in rows.zip(own.chunks_mut(layout.pitch)) {
                    layout.calculate_row(&left[row * layout.pitch..][..layout.pitch], right, place);
                }
            });
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    match layout.first_wrong(&product, false) {
        None => Ok(seconds),
        Some((row, column)) => {
            Err(Failure::new(exit::CLUSTER, format!("the product of threads is wrong in row {row}, column {column}")))
        }
    }
}

/// Runs one calculation on a cluster of its own.
pub(crate) fn product(
    nodes: usize,
    task: &MatmulTask,
    more: &[(&'static str, String)],
    common: &Common,
) -> Result<Product, Failure> {
    let region_bytes = (3 * Layout::new(task.size, PAGE_BYTES).bytes).max(64 << 10);
    let mut settings = vec![("region_bytes", region_bytes.to_string()), ("page_bytes", PAGE_BYTES.to_string())];
    settings.extend_from_slice(more);
    let wrapped = Task::Matmul(task.clone());
    let found = ClusterPlan { nodes, common, settings, task: &wrapped, with_connection: false }.run::<Value>()?;
    Ok(Product {
        seconds: found[0]["seconds"].as_f64().unwrap_or(f64::NAN),
        pages: numbers(&found, "pages_in").sum(),
        messages: numbers(&found, "messages").sum(),
    })
}

/// Runs a node's part.
pub(crate) fn node(task: &MatmulTask, member: &Member) -> Found {
    let cluster = &member.cluster;
    let matrices = Matrices { cluster, layout: Layout::new(task.size, PAGE_BYTES) };
    if cluster.node() == 0 {
        cluster.phase("fill");
        matrices.fill();
    }
    cluster.barrier(1)?;
    let before = cluster.counters();
    let start = Instant::now();
    cluster.phase("multiply");
    calculate_with_threads(task, &matrices)?;
    cluster.barrier(2)?;
    let seconds = start.elapsed().as_secs_f64();
    let counted = cluster.counters().since(&before);
    if cluster.node() == 0
        && let Some((row, column)) = matrices.first_wrong(false)
    {
        return Err(format!("the product is wrong in row {row}, column {column}").into());
    }
    cluster.barrier(3)?;
    Ok(json!({ "seconds": seconds, "pages_in": counted.pages_in, "messages": counted.messages_out }))
}

/// Computes the rows of this node, divided among its threads.
fn calculate_with_threads(task: &MatmulTask, matrices: &Matrices) -> Result<(), WorkError> {
    let (node, workers) = (matrices.cluster.node(), matrices.cluster.nodes() * task.threads);
    let calculate = |thread: usize| {
        let rows = matrices.layout.rows(node * task.threads + thread, workers);
        match task.order {
            Order::Ijk => matrices.calculate_ijk(rows, task.lock),
            Order::Kij => matrices.calculate_kij(rows, task.lock),
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..task.threads).map(|thread| scope.spawn(move || calculate(thread))).collect();
        calculate(0)?;
        for other in others {
            other.join().map_err(|_| "a thread that calculates panicked")??;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_one_worker_and_no_page_has_two() {
        for size in [1, 2, 100, 256, 512, 513, 1024] {
            let layout = Layout::new(size, PAGE_BYTES);
            assert!(layout.pitch >= size && layout.bytes >= size * layout.pitch * 8);
            assert!(layout.bytes.is_multiple_of(PAGE_BYTES));
            for workers in 1..=5 {
                let mut next = 0;
                for worker in 0..workers {
                    let rows = layout.rows(worker, workers);
                    assert_eq!(rows.start, next, "{size} rows, worker {worker} of {workers}");
                    assert!(rows.is_empty() || (rows.start * layout.pitch * 8).is_multiple_of(PAGE_BYTES));
                    next = rows.end;
                }
                assert_eq!(next, size, "{workers} workers");
            }
        }
    }

    #[test]
    fn locked_rows_need_a_protocol_that_can_lock() {
        let of = |setting: &str| check_can_lock(&Sources::new().set(setting).load_for_all().expect("a configuration"));
        for refused in ["ivy", "dynamic", "migrate", "delay(ivy)"] {
            let failure = of(&format!("coherence={refused}")).expect_err("no lock layer");
            assert_eq!(failure.code, exit::USAGE, "{failure}");
            assert!(failure.sentence.contains("--set 'coherence=lock(dynamic)'"), "{failure}");
        }
        assert!(of("coherence=ivy").is_err_and(|failure| failure.sentence.contains("'coherence=lock(ivy)'")));
        for accepted in ["coherence=lock(ivy)", "coherence=delay(lock(dynamic))", "coherence_ranges=0-64KiB=lock(ivy)"]
        {
            assert_eq!(of(accepted), Ok(()), "{accepted}");
        }
    }

    #[test]
    fn threads_are_right() {
        for (size, threads) in [(7, 2), (40, 3), (600, 2)] {
            assert!(with_threads(size, threads).is_ok_and(|seconds| seconds > 0.0), "{size} {threads}");
        }
    }

    #[test]
    fn both_orders_are_right_and_a_wrong_element_is_found() {
        let cluster = trellis::Cluster::join(trellis::Config::default()).expect("a cluster of one node");
        for (size, order, threads) in [(7, Order::Ijk, 1), (40, Order::Kij, 3), (600, Order::Kij, 2)] {
            let matrices = Matrices { cluster: &cluster, layout: Layout::new(size, PAGE_BYTES) };
            matrices.fill();
            matrices.place(2, &(0..size)).fill(0.0);
            let task = MatmulTask { size, order, lock: false, threads };
            calculate_with_threads(&task, &matrices).expect("calculates");
            assert_eq!(matrices.first_wrong(false), None, "{task:?}");
            matrices.place(2, &(0..1))[0] += 1.0;
            assert_eq!(matrices.first_wrong(false), Some((0, 0)), "{task:?}");
        }
        cluster.leave().expect("leaves");
    }
}
