//! `trellis threads`: starts one program on several nodes, on which its threads run.
//!
//! The nodes are those of `trellis run`, with the same options. Node 0 runs the program's main function; its output, its
//! signals and its end are those of the program.

use clap::{Args, ValueEnum};

use super::{Output, Plan, RunArguments, races, run_plan};
use crate::exit::{self, Ending, Failure};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  trellis threads -n 2 ./program --threads 4
  trellis threads -n 4 --cpus-per-node 2 ./solver input.dat
  trellis threads --hosts a,b ./program
  trellis threads -n 2 --stats ./program
  OMP_NUM_THREADS=8 trellis threads -n 4 ./program-with-openmp
  trellis threads -n 2 --races none ./solver
  trellis threads -n 2 --races none --sequential 'done,flag_*,heap<4KiB' ./solver

The program must be linked dynamically with the C library of GNU. It runs unchanged: its variables, its heap and the \
stacks of its threads are the same memory on all nodes. Threads that it makes with pthreads, C11 or C++ go to the nodes in \
turn; teams of OpenMP span all nodes. `trellis threads` must be allowed to use userfaultfd for faults of the kernel; `trellis doctor` says whether it is.

What is not supported ends the program with a sentence: fork without exec, pthread_cancel, memory with code, shared \
mappings of files. Files, sockets and children are those of node 0. See docs/reference/threads.md.

Exit codes: the program's own status, or 128 + its signal; 70 cluster failure; 126 the program cannot run on several nodes; \
others as for `trellis run`.";

/// The least size of blocks that are under release consistency, and patterns for variables that are not; the library
/// reads it.
const RELAXED_VARIABLE: &str = "TRELLIS_THREADS_RELAXED";

/// The statement of the user about data races.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Races {
    /// It may have some: all memory is sequentially consistent
    Allowed,
    /// It has none: large variables and the heap are under release consistency
    None,
    /// The program's code decides
    Auto,
}

/// The memory that stays sequentially consistent.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rules {
    heap_bytes_below: usize,
    variables: Vec<String>,
}

impl Rules {
    fn of(items: &[String]) -> Result<Rules, Failure> {
        let mut rules = Rules::default();
        for item in items.iter().map(|item| item.trim()).filter(|item| !item.is_empty()) {
            match item.strip_prefix("heap<") {
                Some(size) => {
                    rules.heap_bytes_below = size::size(size).map(|bytes| bytes as usize).map_err(|_| {
                        let sentence = format!("--sequential: `{item}` has no size, such as heap<4KiB");
                        Failure::new(exit::USAGE, sentence)
                    })?;
                }
                None => rules.variables.push(item.to_owned()),
            }
        }
        Ok(rules)
    }

    /// The text that the library reads.
    fn text(&self) -> String {
        let bytes = std::iter::once(self.heap_bytes_below.to_string());
        bytes.chain(self.variables.iter().cloned()).collect::<Vec<_>>().join(",")
    }
}

/// The text that the library reads, if some memory is under release consistency.
fn relaxed(races: Races, rules: Rules, plan: &Plan) -> Option<String> {
    let found = match races {
        Races::Allowed => return None,
        Races::None | Races::Auto => races::ordering(&plan.program, plan.search_path(), plan.directory.as_deref()),
    };
    let report = |text: String| {
        if !plan.is_quiet {
            trellis_output::lines::report(format_args!("--races {text}"));
        }
    };
    match (races, found) {
        (Races::Auto, Ok(None)) => report(
            "auto: no atomic instruction was found, so large variables and the heap are under release consistency"
                .to_owned(),
        ),
        (Races::Auto, Ok(Some(ordering))) => {
            report(format!("auto: all memory is sequentially consistent, because {ordering}"));
            return None;
        }
        (Races::Auto, Err(why)) => {
            report(format!("auto: all memory is sequentially consistent, because {why}"));
            return None;
        }
        (_, Ok(Some(ordering))) => report(format!(
            "none: {ordering}; that orders no accesses to large variables and the heap. If the program hangs or computes \
             something else, name what it concerns with --sequential, or leave --races out"
        )),
        (_, Ok(None) | Err(_)) => {}
    }
    Some(rules.text())
}

/// Run the threads of an existing program on several nodes
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ThreadsArguments {
    /// How many processors of each node the program sees; by default the nodes of a host divide its processors
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=4096))]
    cpus_per_node: Option<u32>,
    /// Whether the program has data races: with `none`, you say that it has none and orders its threads by locks, barriers
    /// and the like, so large variables and the heap may be under release consistency, which is faster; with `auto`, the
    /// same if its code has no atomic instructions
    #[arg(long, value_enum, default_value_t = Races::Allowed)]
    races: Races,
    /// With --races, what stays sequentially consistent: patterns for names of variables, and `heap<SIZE` for blocks of the
    /// heap that are smaller, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    sequential: Vec<String>,
    #[command(flatten)]
    run: RunArguments,
}

/// Runs the `threads` subcommand.
pub fn threads(arguments: ThreadsArguments) -> Ending {
    let ThreadsArguments { cpus_per_node, races, sequential, run } = arguments;
    let rules = Rules::of(&sequential)?;
    if races == Races::Allowed && !sequential.is_empty() {
        let sentence = "--sequential: all memory is sequentially consistent without --races none or auto";
        return Err(Failure::new(exit::USAGE, sentence));
    }
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
        let moving = ["first-touch", "migrating"];
        let home = plan.settings.iter().find(|(key, value)| key == "home" && moving.contains(&&**value));
        if let Some((_, home)) = home.filter(|_| races != Races::Allowed) {
            return Err(Failure::new(
                exit::CONFIGURATION,
                format!("--set home={home}: leave it out; what --races puts under hlrc has home=migrating by itself"),
            ));
        }
        if let Some(relaxed) = relaxed(races, rules, plan) {
            plan.variables.push((RELAXED_VARIABLE.to_owned(), relaxed.into()));
        }
        match plan.settings.iter().any(|(key, value)| key == "catch" && value == "mprotect") {
            true => Err(Failure::new(
                exit::CONFIGURATION,
                "--set catch=mprotect: stacks cannot be shared with it; leave the key catch out",
            )),
            false => Ok(()),
        }
    })
}
