//! `trellis threads`: starts one program on several nodes, on which its threads run.
//!
//! The nodes are those of `trellis run`, with the same options. Node 0 runs the program's main function; its output, its
//! signals and its end are those of the program.

use clap::Args;

use super::{Output, RunArguments, run_plan};
use crate::exit::{self, Ending, Failure};

const EXAMPLES: &str = "\
Examples:
  trellis threads -n 2 ./program --threads 4
  trellis threads -n 4 --cpus-per-node 2 ./solver input.dat
  trellis threads --hosts a,b ./program
  trellis threads -n 2 --stats ./program
  OMP_NUM_THREADS=8 trellis threads -n 4 ./program-with-openmp

The program is one that is linked dynamically with the C library of GNU. It runs unchanged: its variables, its heap and the \
stacks of its threads are the same memory on all nodes. Threads that it makes with pthreads, C11 or C++ go to the nodes in \
turn; teams of OpenMP span all nodes. `trellis threads` must be allowed to use userfaultfd for faults of the kernel; `trellis doctor` says whether it is.

What is not supported ends the program with a sentence: fork without exec, pthread_cancel, memory with code, shared \
mappings of files. Files, sockets and children are those of node 0. See docs/reference/threads.md.

Exit codes: the program's own status, or 128 + its signal; 70 cluster failure; 126 the program cannot run on several nodes; \
others as for `trellis run`.";

/// Run the threads of an existing program on several nodes
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ThreadsArguments {
    /// How many processors of each node the program sees; its host's are divided among the nodes if nothing is said
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=4096))]
    cpus_per_node: Option<u32>,
    #[command(flatten)]
    run: RunArguments,
}

/// Runs the `threads` subcommand.
pub fn threads(arguments: ThreadsArguments) -> Ending {
    let ThreadsArguments { cpus_per_node, run } = arguments;
    if run.join.is_some() || run.rendezvous.is_some() || run.joiners_max.is_some() {
        let sentence = "trellis threads starts all its nodes itself; leave out --join, --rendezvous and --joiners-max";
        return Err(Failure::new(exit::USAGE, sentence));
    }
    let output = run.output;
    run_plan(run, |plan| {
        let here = std::thread::available_parallelism().map_or(1, usize::from);
        let nodes_of_host = if plan.hosts.is_some() { 1 } else { plan.nodes };
        let of_node = cpus_per_node.unwrap_or_else(|| (here / nodes_of_host.max(1)).max(1) as u32);
        plan.processors = Some(of_node * plan.nodes as u32);
        if output.is_none() && plan.hosts.is_none() {
            // The order of lines is that in which the program wrote them.
            plan.output = Output::Raw;
        }
        match plan.settings.iter().find(|(key, value)| key == "catch" && value != "handler") {
            Some((_, value)) => Err(Failure::new(
                exit::CONFIGURATION,
                format!(
                    "--set catch={value}: trellis threads needs the catcher `handler`, with which stacks can be shared"
                ),
            )),
            None => Ok(()),
        }
    })
}
