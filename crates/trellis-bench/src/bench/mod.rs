//! `trellis bench`: figures of this machine, each compared with its own yardstick in the same run.
//!
//! A ratio is never made of two runs. Every figure is named `what_unit_statistic`, in tables and in JSON.

mod auto;
mod checks;
pub(crate) mod cluster;
pub(crate) mod consistency;
mod delay;
pub(crate) mod events;
pub(crate) mod fault;
pub(crate) mod figures;
mod forward;
mod hosts;
mod idle;
mod jacobi;
mod least_squares;
mod links;
pub(crate) mod local_fault;
pub(crate) mod matmul;
pub(crate) mod node;
pub(crate) mod producer_consumer;
mod raw_link;
pub(crate) mod remote_paging;
mod sealed;
mod slurm;
pub(crate) mod speed;
mod start;
mod stored_words;
mod stream;
pub(crate) mod switch;
mod synchronisation;
pub(crate) mod thrash;
mod threads;
pub(crate) mod workloads;

use clap::Subcommand;

use trellis_command::exit::Ending;
use trellis_command::terminal::Progress;

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub(crate) enum Benchmark {
    LocalFault(local_fault::LocalFaultArguments),
    Fault(fault::FaultArguments),
    Thrash(thrash::ThrashArguments),
    Lock(synchronisation::LockArguments),
    Barrier(synchronisation::BarrierArguments),
    Speed(speed::SpeedArguments),
    Auto(auto::AutoArguments),
    Start(start::StartArguments),
    Hosts(hosts::HostsArguments),
    Slurm(slurm::SlurmArguments),
    Stream(stream::StreamArguments),
    Idle(idle::IdleArguments),
    Memory(idle::MemoryArguments),
    Matmul(matmul::MatmulArguments),
    Jacobi(jacobi::JacobiArguments),
    ProducerConsumer(producer_consumer::ProducerConsumerArguments),
    Events(events::EventsArguments),
    Forward(forward::ForwardArguments),
    Delay(delay::DelayArguments),
    Links(links::LinksArguments),
    Sealed(sealed::SealedArguments),
    Consistency(consistency::ConsistencyArguments),
    StoredWords(stored_words::StoredWordsArguments),
    Checks(checks::ChecksArguments),
    Switch(switch::SwitchArguments),
    RemotePaging(remote_paging::RemotePagingArguments),
}

/// Runs the `bench` subcommand.
pub(crate) fn run(benchmark: &Benchmark) -> Ending {
    let mut progress = Progress::default();
    progress.step("measuring…");
    match benchmark {
        Benchmark::LocalFault(arguments) => local_fault::run(arguments),
        Benchmark::Fault(arguments) => fault::run(arguments),
        Benchmark::Thrash(arguments) => thrash::run(arguments),
        Benchmark::Lock(arguments) => synchronisation::lock(arguments),
        Benchmark::Barrier(arguments) => synchronisation::barrier(arguments),
        Benchmark::Speed(arguments) => speed::run(arguments),
        Benchmark::Auto(arguments) => auto::run(arguments),
        Benchmark::Start(arguments) => start::run(arguments),
        Benchmark::Hosts(arguments) => hosts::run(arguments),
        Benchmark::Slurm(arguments) => slurm::run(arguments),
        Benchmark::Stream(arguments) => stream::run(arguments),
        Benchmark::Idle(arguments) => idle::run(arguments),
        Benchmark::Memory(arguments) => idle::memory(arguments),
        Benchmark::Matmul(arguments) => matmul::run(arguments),
        Benchmark::Jacobi(arguments) => jacobi::run(arguments),
        Benchmark::ProducerConsumer(arguments) => producer_consumer::run(arguments),
        Benchmark::Events(arguments) => events::run(arguments),
        Benchmark::Forward(arguments) => forward::run(arguments),
        Benchmark::Delay(arguments) => delay::run(arguments),
        Benchmark::Links(arguments) => links::run(arguments),
        Benchmark::Sealed(arguments) => sealed::run(arguments),
        Benchmark::Consistency(arguments) => consistency::run(arguments),
        Benchmark::StoredWords(arguments) => stored_words::run(arguments),
        Benchmark::Checks(arguments) => checks::run(arguments),
        Benchmark::Switch(arguments) => switch::run(arguments),
        Benchmark::RemotePaging(arguments) => remote_paging::run(arguments),
    }
}
