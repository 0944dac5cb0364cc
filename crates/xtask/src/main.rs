//! The tasks of the project, subcommands of `cargo xtask`: setup, demo, test, ci, documents, matrix, soak, tidy,
//! pages, site, bench, install, package.
//!
//! Promises: every long step reports on standard error what it does and how long it took; results go to standard
//! output. A task never changes anything outside the target folder, except `setup` (system packages), `install` (the
//! given prefix), `bench` (a new folder in `benchmarks/runs`) and `pages` (the documentation).

mod bench;
mod checks;
mod ci;
mod compiler;
mod demo;
mod dependencies;
mod documents;
mod fabric;
mod features;
mod image;
#[path = "../../trellis-c/install.rs"]
mod install;
mod instructions;
mod kubernetes;
mod load;
mod matrix;
mod matrix_hosts;
mod matrix_threads;
mod optional;
mod package;
mod pages;
mod parallel;
mod programs;
mod pure;
mod setup;
mod site;
mod soak;
mod spelling;
mod step;
mod test;
mod test_programs;
mod tidy;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use workspace::Workspace;

/// Tasks of the Trellis project.
#[derive(Parser)]
#[command(name = "cargo xtask", after_help = "Start with `cargo xtask demo`, then `cargo xtask test`.")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what the system must provide: compilers, CMake, pkg-config, and what the checks and the features need.
    Setup,
    /// Build everything, sort ten million integers on 1, 2 and 4 nodes, and compare with a plain sort.
    Demo {
        /// The number of integers to sort.
        #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
        elements: u64,
    },
    /// Run every test, and compare the skipped ones with the list of expected skips.
    Test,
    /// Run the checks of every change: files, format, licences, layers, lints, documentation, tests, protocols, programs.
    Ci {
        /// Also carry out the documents, make and try the packages, and test the features.
        #[arg(long)]
        full: bool,
    },
    /// Carry out the commands of the README and the guides as they are written.
    Documents {
        /// Only documents with this in their path, for example tutorial.
        #[arg(long)]
        only: Option<String>,
    },
    /// Run the PARMACS programs, which verify themselves, in every way a cluster can be set up; takes hours.
    Matrix {
        /// About two hundred runs, which combine every three values of different settings.
        #[arg(long)]
        quick: bool,
        /// Stop after this time; the default is to run everything.
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        minutes: Option<u32>,
        /// Run programs of Debian with threads on several nodes instead: those that are installed.
        #[arg(long, conflicts_with_all = ["quick", "minutes"])]
        threads: bool,
        /// Run the programs on several hosts of a lab instead, started by ssh and by each engine.
        #[arg(long, conflicts_with_all = ["quick", "minutes", "threads"])]
        hosts: bool,
    },
    /// Explore more, try new seeds, and repeat the tests that have threads and processes, for a chosen time.
    Soak {
        /// The duration, without building.
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        minutes: u32,
        /// Run the tests beside this many computing threads instead: the whole suite once, and those that wait or
        /// name peers ten times.
        #[arg(long, conflicts_with = "minutes", value_parser = clap::value_parser!(u32).range(1..=1_000))]
        load: Option<u32>,
        /// With --load, only these test programs ten times, or `suite` for the whole suite.
        #[arg(long, requires = "load", value_delimiter = ',', value_name = "PROGRAM,...")]
        only: Vec<String>,
    },
    /// Run only the checks of the files: sizes, openings, unsafe code, links. Takes a second.
    Tidy,
    /// Count the instructions that the protocols execute for a fault, and compare them with the table.
    Instructions {
        /// Put the counts into the table.
        #[arg(long)]
        rewrite: bool,
    },
    /// Put the generated tables into their pages: scripts of protocols, figures of speed.
    Pages,
    /// Make the documentation a web site with a search, in `site/html` of the target folder, and check its links.
    Site {
        /// Also search in it with a browser.
        #[arg(long)]
        check: bool,
    },
    /// Measure, compare with the targets, and keep the result in `benchmarks/runs`.
    Bench {
        /// How often each benchmark runs; the median counts.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
        runs: u32,
        /// Only print the result; do not keep it.
        #[arg(long)]
        no_record: bool,
        /// Only these benchmarks, by their name in `trellis bench`, with or without the first of their arguments.
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
        /// Also measure the programs that this task built in another checkout, in turns with these, and print the ratio.
        #[arg(long, value_name = "CHECKOUT")]
        against: Option<PathBuf>,
    },
    /// Install the command, the library, the headers, and the files for pkg-config and CMake.
    Install {
        /// The prefix, for example /usr/local.
        #[arg(long)]
        prefix: PathBuf,
        /// Features that the default build omits: the stores bigtable, datastore, etcd, spanner (all: stores), the
        /// switches bpf and openflow, the link fabric; `all` for all of them.
        #[arg(long, value_delimiter = ',', value_name = "FEATURE,...")]
        features: Vec<String>,
    },
    /// Make what people install: an archive with an installer, a .deb, an .rpm, and an archive of symbols.
    Package {
        /// Make everything twice, compare, and try it: the .deb on a system with nothing else, and what crates.io gets.
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments.task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    let workspace = Workspace::find()?;
    match task {
        Task::Setup => setup::install(&setup::everything()).and_then(|()| spelling::install(&workspace).map(drop)),
        Task::Demo { elements } => demo::run(&workspace, elements),
        Task::Test => test::run(&workspace),
        Task::Ci { full } => ci::run(&workspace, full),
        Task::Documents { only } => documents::run(&workspace, only.as_deref()),
        Task::Matrix { hosts: true, .. } => matrix_hosts::run(&workspace),
        Task::Matrix { threads: true, .. } => matrix_threads::run(&workspace),
        Task::Matrix { quick, minutes, .. } => matrix::run(&workspace, quick, minutes),
        Task::Soak { load: Some(count), only, .. } => load::run(&workspace, count, &only),
        Task::Soak { minutes, .. } => soak::run(&workspace, minutes),
        Task::Tidy => tidy::check(&workspace.root),
        Task::Instructions { rewrite } => instructions::run(&workspace, rewrite),
        Task::Pages => pages::write(&workspace.root),
        Task::Site { check: true } => site::check(&workspace),
        Task::Site { check: false } => site::run(&workspace).map(|first| println!("{}", first.display())),
        Task::Bench { runs, no_record, only, against } => {
            bench::run(&workspace, &bench::Options { runs, keep: !no_record, only: &only, against: against.as_deref() })
        }
        Task::Install { prefix, features } => demo::install_under(&workspace, &prefix, &features),
        Task::Package { check: true } => package::check(&workspace),
        Task::Package { check: false } => {
            package::run(&workspace).map(|made| made.iter().for_each(|file| println!("{}", file.display())))
        }
    }
}
