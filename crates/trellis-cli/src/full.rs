//! The commands that are not needed to run programs on a cluster. The cargo feature `full` has them; it is on unless a build
//! turns it off, as `cargo xtask demo` does to be fast.

use clap::Subcommand;
use trellis_command::exit::Ending;

use crate::{compile, controller, lab, manual, serve, store, switch};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Bench(trellis_bench::BenchArguments),
    Reproduce(trellis_bench::ReproduceArguments),
    Check(trellis_bench::CheckArguments),
    /// Run programs with their heap in a key-value store, and inspect or serve stores
    #[command(subcommand, after_help = store::stores_of_this_build())]
    Store(store::Task),
    /// Compile C for memory in a key-value store (`trellis cc --help`)
    Cc(compile::CompileArguments),
    /// Compile C++ for memory in a key-value store (`trellis c++ --help`)
    #[command(name = "c++")]
    Cxx(compile::CompileArguments),
    Serve(serve::ServeArguments),
    Controller(controller::ControllerArguments),
    Switch(switch::SwitchArguments),
    Lab(lab::LabArguments),
    Completions(manual::CompletionsArguments),
    /// Write the manual pages
    #[command(hide = true)]
    Manual(manual::ManualArguments),
    /// The init process of a lab
    #[command(hide = true)]
    LabInit {
        /// The order as JSON
        order: String,
    },
    /// A node of `trellis bench`
    #[command(hide = true)]
    BenchNode {
        /// The task as JSON
        task: String,
    },
    /// The process in which a benchmark makes its labs
    #[command(hide = true)]
    BenchInside {
        /// The task as JSON
        task: String,
    },
}

/// Runs one of them. `all` is the whole command line, which some of them describe. `trellis check` is not among them: it
/// decides its exit status itself.
pub(crate) fn run(command: Command, all: clap::Command) -> Ending {
    match command {
        Command::Bench(arguments) => trellis_bench::bench(&arguments),
        Command::Reproduce(arguments) => trellis_bench::reproduce(&arguments),
        Command::Check(_) => unreachable!("the caller runs it"),
        Command::Store(task) => store::run(&task),
        Command::Cc(arguments) => compile::compile(&arguments, compile::Language::C),
        Command::Cxx(arguments) => compile::compile(&arguments, compile::Language::Cxx),
        Command::Serve(arguments) => serve::serve(&arguments),
        Command::Controller(arguments) => controller::controller(&arguments),
        Command::Switch(arguments) => switch::switch(&arguments),
        Command::Lab(arguments) => lab::lab(&arguments),
        Command::Completions(arguments) => manual::completions(&arguments, all),
        Command::Manual(arguments) => manual::manual(&arguments, all),
        Command::LabInit { order } => lab::init::run(&order),
        Command::BenchNode { task } => trellis_bench::run_node(&task),
        Command::BenchInside { task } => trellis_bench::run_inside(&task),
    }
}
