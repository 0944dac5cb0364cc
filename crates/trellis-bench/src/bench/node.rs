//! The node side of a benchmark: what each node does after this executable was started again as a node.
//!
//! A node prints one line of JSON on standard output and nothing else there. It fails like any Trellis program: with
//! one sentence on standard error and exit status 70 or 78.

use std::io;
use std::net::TcpStream;
use std::os::fd::RawFd;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use trellis::config::Config;
use trellis::{Cluster, JoinError};
use trellis_base::Random;

use crate::bench::cluster::{Assignment, JOINER, NEIGHBOUR};
use crate::bench::{
    consistency, delay, events, fault, forward, idle, jacobi, local_fault, matmul, producer_consumer, raw_link, speed,
    stream, synchronisation, thrash, workloads,
};
use crate::check::nodes::{HistoryTask, LitmusTask, history_node, litmus_node};
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::terminal::say;

/// The tasks of nodes that this command starts.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    LocalFault(local_fault::LocalFaultTask),
    Fault(fault::FaultTask),
    Thrash(thrash::ThrashTask),
    Lock(synchronisation::LockTask),
    Barrier(synchronisation::BarrierTask),
    Stream(stream::StreamTask),
    Idle(idle::IdleTask),
    Memory(idle::MemoryTask),
    Sort(workloads::SortTask),
    Dot(workloads::DotTask),
    Turns(speed::TurnsTask),
    Matmul(matmul::MatmulTask),
    /// With the checksum of the right result.
    Jacobi(jacobi::JacobiTask, u64),
    ProducerConsumer(producer_consumer::ProducerConsumerTask),
    Events(events::EventsTask),
    Forward(forward::ForwardTask),
    Delay(delay::DelayTask),
    Consistency(consistency::ConsistencyTask),
    Litmus(LitmusTask),
    History(HistoryTask),
}

/// A node that joined its cluster, with its end of the plain connection if there is one.
pub(crate) struct Member {
    pub(crate) cluster: Cluster,
    pub(crate) connection: Option<TcpStream>,
}

/// Why a node's work ended early.
pub(crate) type WorkError = Box<dyn std::error::Error>;
/// A node's result.
pub(crate) type Found = Result<Value, WorkError>;

impl Member {
    fn join(connections: &[RawFd]) -> Result<Member, WorkError> {
        let cluster = Cluster::join(Config::from_environment()?)?;
        let connection = connections.get(cluster.node()).map(|end| raw_link::inherited(*end));
        Ok(Member { cluster, connection })
    }

    /// This node's end of the plain connection.
    pub(crate) fn connection(&mut self) -> io::Result<&mut TcpStream> {
        self.connection.as_mut().ok_or_else(|| io::Error::other("this node was given no connection"))
    }
}

/// Runs the hidden `bench-node` subcommand.
pub fn run(text: &str) -> Ending {
    if text == NEIGHBOUR {
        return Ok(compute_until_orphaned());
    }
    let failed = |error: WorkError| {
        let number = std::env::var("TRELLIS_NODE").unwrap_or_else(|_| "0".to_owned());
        let code = if is_configuration(error.as_ref()) { exit::CONFIGURATION } else { exit::CLUSTER };
        Failure::new(code, format!("node {number}: {error}"))
    };
    if text == JOINER {
        Member::join(&[]).and_then(|member| Ok(member.cluster.leave()?)).map_err(failed)?;
        return Ok(exit::FINE);
    }
    let assignment: Assignment<Task> = serde_json::from_str(text)
        .map_err(|error| Failure::new(exit::USAGE, format!("bench-node is for `trellis bench` alone: {error}")))?;
    say!("{}", work(assignment).map_err(failed)?);
    Ok(exit::FINE)
}

/// Ends also where whoever started it was killed.
fn compute_until_orphaned() -> u8 {
    let parent = std::os::unix::process::parent_id();
    while std::os::unix::process::parent_id() == parent {
        let state = (0..1_000_000).fold(1u64, |state, round| std::hint::black_box(state.wrapping_mul(5) + round));
        std::hint::black_box(state);
    }
    exit::FINE
}

fn is_configuration(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<trellis::config::ConfigError>() || matches!(error.downcast_ref(), Some(JoinError::Config(_)))
}

fn work(assignment: Assignment<Task>) -> Found {
    let connections = assignment.connections;
    if let Task::LocalFault(task) = assignment.task {
        return local_fault::node(&task);
    }
    let mut member = Member::join(&connections)?;
    let found = match assignment.task {
        Task::LocalFault(_) => Ok(Value::Null),
        Task::Fault(task) => fault::node(&task, &mut member),
        Task::Thrash(task) => thrash::node(&task, &member),
        Task::Lock(task) => synchronisation::lock_node(&task, &member),
        Task::Barrier(task) => synchronisation::barrier_node(&task, &mut member),
        Task::Stream(task) => stream::node(&task, &mut member),
        Task::Idle(task) => idle::node(&task, &member),
        Task::Memory(task) => idle::memory_node(&task, &member),
        Task::Sort(task) => workloads::sort_node(&task, &member),
        Task::Dot(task) => workloads::dot_node(&task, &member),
        Task::Turns(task) => speed::turns_node(&task, &member),
        Task::Matmul(task) => matmul::node(&task, &member),
        Task::Jacobi(task, right) => jacobi::node(task, right, &member),
        Task::ProducerConsumer(task) => producer_consumer::node(&task, &member),
        Task::Events(task) => events::node(&task, &member),
        Task::Forward(task) => forward::node(&task, &member),
        Task::Delay(task) => delay::node(&task, &member),
        Task::Consistency(task) => consistency::node(&task, &mut member),
        Task::Litmus(task) => litmus_node(&task, &member),
        Task::History(task) => history_node(&task, &member),
    }?;
    member.cluster.leave()?;
    Ok(found)
}

/// `first..first + count` in a random order.
pub(crate) fn shuffled(random: &mut Random, first: usize, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (first..first + count).collect();
    for index in (1..order.len()).rev() {
        order.swap(index, random.index(index + 1));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_keeps_every_number_once() {
        let mut order = shuffled(&mut Random::new(7), 10, 100);
        assert_ne!(order, (10..110).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (10..110).collect::<Vec<_>>());
    }

    #[test]
    fn nonsense_is_a_usage_error() {
        assert_eq!(run("{").expect_err("nonsense").code, exit::USAGE);
    }
}
