//! The commands that are not needed to run programs on a cluster. The cargo feature `full` has them; it is on unless a build
//! turns it off, as `cargo xtask demo` does to be fast.

use std::marker::PhantomData;
use std::os::unix::process::CommandExt;

use clap::{ArgMatches, Args, FromArgMatches, Subcommand};
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::installed;

use crate::{compile, controller, lab, manual, serve, store, switch};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Bench(Described<trellis_bench::BenchArguments>),
    Reproduce(Described<trellis_bench::ReproduceArguments>),
    Check(Described<trellis_bench::CheckArguments>),
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
    /// The first process of a host of a lab
    #[command(hide = true)]
    LabHost,
}

/// Arguments that `trellis-bench` reads. Here they are only checked, and described in help, manual pages and completions.
#[derive(Debug)]
pub(crate) struct Described<T>(PhantomData<T>);

impl<T: Args> Args for Described<T> {
    fn augment_args(command: clap::Command) -> clap::Command {
        T::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        T::augment_args_for_update(command)
    }
}

impl<T> FromArgMatches for Described<T> {
    fn from_arg_matches(_: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Described(PhantomData))
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
        Ok(())
    }
}

/// Runs one of them. `all` is the whole command line, which some of them describe.
pub(crate) fn run(command: Command, all: clap::Command) -> Ending {
    match command {
        Command::Bench(_) | Command::Reproduce(_) | Command::Check(_) => Err(become_bench()),
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
        Command::LabHost => lab::init::run_host(),
    }
}

/// Executes `trellis-bench` with the arguments of this process, which it takes as they are; returns why it cannot.
fn become_bench() -> Failure {
    let Some(program) = installed::executable(installed::BENCH) else {
        return Failure::new(
            exit::SYSTEM,
            "`bench`, `reproduce` and `check` are in the package trellis-bench, which is not installed; install it in \
             the version of this command",
        );
    };
    let error = std::process::Command::new(&program).args(std::env::args_os().skip(1)).exec();
    Failure::new(exit::SYSTEM, format!("{} cannot be executed: {error}", program.display()))
}
