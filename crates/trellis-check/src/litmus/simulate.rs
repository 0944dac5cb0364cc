//! Runs litmus tests on the real state machines, in one thread, millions of times.
//!
//! Copies are first spread *through the protocol* (random loads, and stores of the initial values), because a cluster
//! in which no node holds anything hides a whole class of bugs. Then the threads run, and at the end one node reads
//! every location. The next run of a block begins with the copies, the rights and the messages under way, and only the
//! words are reset.
//!
//! Promises: those of `super::series`.

use super::oracle::Memory;
use super::run::{NODES_MAX, Simulator};
use super::series::Series;
use super::{LitmusOptions, LitmusReport, Progress};
use trellis_cluster_protocol::coherence::{Coherence, Geometry, Protocol};

pub use super::series::BLOCK;

/// Runs the programs on the real protocols.
pub fn simulate(options: &LitmusOptions, progress: &mut dyn FnMut(Progress)) -> Result<LitmusReport, String> {
    simulate_with(options, |protocol, geometry| protocol.start(geometry), progress)
}

/// Runs the programs with `start` in place of the real protocols.
pub fn simulate_with<N: Coherence + Clone>(
    options: &LitmusOptions,
    start: impl Fn(Protocol, Geometry) -> N + Sync,
    progress: &mut dyn FnMut(Progress),
) -> Result<LitmusReport, String> {
    let series = series(options)?;
    Ok(series.simulate(|| Simulator::new(&series, &start), progress))
}

/// Repeats the first block of `options`, up to its number of runs, and describes the last of them step by step. The
/// last line says how it ended.
pub fn tell(options: &LitmusOptions) -> Result<Vec<String>, String> {
    tell_with(options, |protocol, geometry| protocol.start(geometry))
}

/// As [`tell`], with `start` in place of the real protocols.
pub fn tell_with<N: Coherence + Clone>(
    options: &LitmusOptions,
    start: impl Fn(Protocol, Geometry) -> N,
) -> Result<Vec<String>, String> {
    let series = series(options)?;
    Ok(series.tell(Simulator::new(&series, start)))
}

fn series(options: &LitmusOptions) -> Result<Series<'_>, String> {
    let nodes_max = usize::from(options.nodes_max);
    if !(1..NODES_MAX).contains(&nodes_max) {
        return Err(format!("litmus tests run on 1 to {} nodes, not on {nodes_max}", NODES_MAX - 1));
    }
    Series::new(options, Memory::Sequential)
}
