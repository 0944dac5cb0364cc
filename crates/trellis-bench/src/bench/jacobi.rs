//! `trellis bench jacobi`: a grid is smoothed step by step, by threads without Trellis, by one node and by several, in
//! one run.
//!
//! Promises: all three run the same loops, each on memory that its workers have filled themselves, and the time begins
//! after that. A result that differs by one bit from that of one thread is an error and never a figure.

use std::ops::Range;
use std::time::Instant;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bench::cluster::{ClusterPlan, Common, Neighbours, numbers};
use crate::bench::figures::{Figures, p50};
use crate::bench::node::{Found, Member, Task, WorkError};
use crate::bench::threads::PollingBarrier;
use trellis_command::exit::{Ending, Failure};

const EXAMPLES: &str = "\
Examples:
  trellis bench jacobi
  trellis bench jacobi --neighbours 1 --json
  trellis bench jacobi --size 1000 --set coherence=hlrc";

/// Smooth a grid step by step: threads without Trellis, one node and several
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct JacobiArguments {
    /// Nodes that share the rows; as many threads are compared with them
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) nodes: u8,
    /// Rows and columns
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(64..=32_768))]
    pub(crate) size: u32,
    /// Steps
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) steps: u32,
    /// How often each of them does it
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// A node's task.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct JacobiTask {
    size: usize,
    steps: usize,
}

impl JacobiTask {
    /// The one that the options stand for.
    pub(crate) const WHOLE: JacobiTask = JacobiTask { size: 2000, steps: 100 };
}

/// Two grids of f64, one behind the other; a step reads one and writes the other.
#[derive(Clone, Copy)]
struct Grids {
    base: *mut f64,
    size: usize,
}

// SAFETY: workers write only their own rows, and a barrier lies between that and who reads them.
unsafe impl Send for Grids {}
// SAFETY: as above.
unsafe impl Sync for Grids {}

impl Grids {
    /// Bytes of both.
    fn bytes(size: usize) -> usize {
        2 * size * size * size_of::<f64>()
    }

    fn row(&self, grid: usize, row: usize) -> &[f64] {
        // SAFETY: inside the memory of both grids; nobody writes a row that is read in this step.
        unsafe { std::slice::from_raw_parts(self.base.add((grid * self.size + row) * self.size), self.size) }
    }

    #[expect(clippy::mut_from_ref, reason = "each row has one worker")]
    fn row_mut(&self, grid: usize, row: usize) -> &mut [f64] {
        // SAFETY: inside the memory of both grids; each row has one worker, and nobody reads it in this step.
        unsafe { std::slice::from_raw_parts_mut(self.base.add((grid * self.size + row) * self.size), self.size) }
    }

    fn fill(&self, rows: Range<usize>) {
        for grid in 0..2 {
            for row in rows.clone() {
                for (column, cell) in self.row_mut(grid, row).iter_mut().enumerate() {
                    *cell = ((row * 31 + column * 17) % 1000) as f64;
                }
            }
        }
    }

    /// One step of the rows of a worker; those on the edge stay as they are.
    fn smooth(&self, step: usize, rows: Range<usize>) {
        let (from, to) = (step % 2, 1 - step % 2);
        for row in rows.start.max(1)..rows.end.min(self.size - 1) {
            let (above, here, below) = (self.row(from, row - 1), self.row(from, row), self.row(from, row + 1));
            let target = self.row_mut(to, row);
            for column in 1..self.size - 1 {
                target[column] = 0.25 * (above[column] + below[column] + here[column - 1] + here[column + 1]);
            }
        }
    }

    /// A sum in which every bit of the rows counts.
    fn checksum(&self, grid: usize, rows: Range<usize>) -> u64 {
        let cells = rows.flat_map(|row| self.row(grid, row));
        cells.fold(0, |sum: u64, cell| sum.rotate_left(5).wrapping_add(cell.to_bits()))
    }
}

fn rows_of(worker: usize, workers: usize, size: usize) -> Range<usize> {
    size * worker / workers..size * (worker + 1) / workers
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &JacobiArguments) -> Ending {
    let nodes = usize::from(arguments.nodes);
    let task = JacobiTask { size: arguments.size as usize, steps: arguments.steps as usize };
    let common = &arguments.common;
    let (mut alone, mut threads, mut one, mut all) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut pages = Vec::new();
    for _ in 0..arguments.rounds {
        let neighbours = Neighbours::start(common.neighbours)?;
        let (seconds, right) = with_threads(task, 1);
        alone.push(seconds);
        threads.push(with_threads(task, nodes).0);
        drop(neighbours);
        one.push(on_nodes(task, 1, common, right)?.0);
        let (seconds, pages_in) = on_nodes(task, nodes, common, right)?;
        all.push(seconds);
        pages.push(pages_in);
    }
    let (alone, threads, one, all) = (p50(alone), p50(threads), p50(one), p50(all));
    let mut figures = Figures::new("jacobi");
    figures.add("seconds_alone_p50", alone, "one thread without Trellis (s, median)");
    figures.add("seconds_threads_p50", threads, "as many threads as nodes, without Trellis (s, median)");
    figures.add("seconds_1_node_p50", one, "one node (s, median)");
    figures.add("seconds_p50", all, "all nodes (s, median)");
    figures.add("alone_over_1_node", alone / one, "one thread without Trellis / one node");
    figures.add("threads_over_nodes", threads / all, "threads / nodes");
    figures.add("pages_in", p50(pages), "pages fetched by all nodes");
    figures.add_value("size", arguments.size, "rows and columns");
    figures.add_value("steps", arguments.steps, "steps");
    figures.add_value("nodes", nodes, "nodes");
    figures.add_value("neighbours", common.neighbours, "busy neighbours");
    figures.print(common.json)
}

/// The time, and the checksum of the result.
pub(crate) fn with_threads(task: JacobiTask, workers: usize) -> (f64, u64) {
    let mut memory = vec![0.0; Grids::bytes(task.size) / size_of::<f64>()];
    let grids = Grids { base: memory.as_mut_ptr(), size: task.size };
    let barrier = PollingBarrier::new(workers);
    let work = |worker: usize| {
        let rows = rows_of(worker, workers, task.size);
        grids.fill(rows.clone());
        barrier.wait();
        let start = Instant::now();
        for step in 0..task.steps {
            grids.smooth(step, rows.clone());
            barrier.wait();
        }
        start.elapsed().as_secs_f64()
    };
    let seconds = std::thread::scope(|scope| {
        for worker in 1..workers {
            scope.spawn(move || work(worker));
        }
        work(0)
    });
    (seconds, grids.checksum(task.steps % 2, 0..task.size))
}

/// The time on a cluster of its own, and the pages that were fetched meanwhile.
pub(crate) fn on_nodes(task: JacobiTask, nodes: usize, common: &Common, right: u64) -> Result<(f64, f64), Failure> {
    let settings = vec![("region_bytes", Grids::bytes(task.size).next_multiple_of(64 << 10).to_string())];
    let wrapped = Task::Jacobi(task, right);
    let found = ClusterPlan { nodes, common, settings, task: &wrapped, with_connection: false }.run::<Value>()?;
    Ok((found[0]["seconds"].as_f64().unwrap_or(f64::NAN), numbers(&found, "pages_in").sum()))
}

/// Runs a node's part.
pub(crate) fn node(task: JacobiTask, right: u64, member: &Member) -> Found {
    let cluster = &member.cluster;
    let grids = Grids { base: cluster.region().base().cast(), size: task.size };
    let rows = rows_of(cluster.node(), cluster.nodes(), task.size);
    cluster.phase("fill");
    grids.fill(rows.clone());
    cluster.barrier(1)?;
    cluster.phase("smooth");
    let (before, start) = (cluster.counters(), Instant::now());
    for step in 0..task.steps {
        grids.smooth(step, rows.clone());
        cluster.barrier(1)?;
    }
    let (seconds, counted) = (start.elapsed().as_secs_f64(), cluster.counters().since(&before));
    cluster.phase("verify");
    if cluster.node() == 0 && grids.checksum(task.steps % 2, 0..task.size) != right {
        return Err(WorkError::from("the grid is not what one thread makes of it"));
    }
    cluster.barrier(2)?;
    Ok(json!({ "seconds": seconds, "pages_in": counted.pages_in }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_and_one_node_come_to_the_same_and_a_wrong_cell_is_found() {
        let task = JacobiTask { size: 64, steps: 7 };
        let right = with_threads(task, 1).1;
        assert_eq!(with_threads(task, 3).1, right);
        let cluster = trellis::Cluster::join(trellis::Config::default()).expect("a cluster of one node");
        let member = Member { cluster, connection: None };
        assert!(node(task, right, &member).is_ok());
        assert!(node(task, right + 1, &member).is_err());
        member.cluster.leave().expect("leaves");
    }
}
