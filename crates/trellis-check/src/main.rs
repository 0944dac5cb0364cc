//! `trellis-check`: explores the protocols and tries the mutants from the command line.
//!
//! Exit status 0 when everything passed (for `mutants`: when each was noticed), 1 otherwise.

use clap::{Parser, Subcommand, ValueEnum};
use std::io::IsTerminal;
use std::process::ExitCode;
use trellis_check::explore::{Options, Progress, Report, Verdict, explore};
use trellis_check::mutants::{TABLE, noticed, try_mutant};
use trellis_check::pages::{Instance, Wishes};
use trellis_check::synchronisation::{Program, SyncInstance};
use trellis_protocol::NodeId;
use trellis_protocol::coherence::Protocol;
use trellis_protocol::homes::{Home, Interleaved, Manager};

/// Visits every state that a small cluster can reach.
///
/// Example: trellis-check explore --nodes 3 --pages 2 --operations 2
#[derive(Parser)]
#[command(name = "trellis-check", verbatim_doc_comment)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Print results as JSON, one object per line.
    #[arg(long, global = true)]
    json: bool,
    /// Give up beyond so many states.
    #[arg(long, global = true, default_value_t = 200_000_000)]
    states_max: u64,
}

#[derive(Subcommand)]
enum Command {
    /// Explore a coherence protocol.
    Explore(Explore),
    /// Explore locks, barriers and atomic words.
    Sync(Synchronise),
    /// Break the protocols in every known way and expect the explorer to notice.
    Mutants,
}

#[derive(clap::Args)]
struct Explore {
    /// Which protocol: ivy.
    #[arg(long, default_value = "ivy")]
    protocol: String,
    /// Number of nodes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=6))]
    nodes: u16,
    /// Number of pages.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4))]
    pages: u32,
    /// Loads and stores of each thread, each of any kind and of any page.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=15))]
    operations: u8,
    /// Threads of each node.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    threads: u8,
    /// Who manages the pages.
    #[arg(long, value_enum, default_value_t = HomeName::Manager)]
    home: HomeName,
    /// The managing node, with `--home manager`.
    #[arg(long, default_value_t = 0)]
    manager: u16,
    /// What requests wish for besides the page that a thread waits for.
    #[arg(long, value_enum, default_value_t = WishName::Narrow)]
    wishes: WishName,
    /// Announcements that each node may make.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    prefetches: u8,
    /// How often each node may be declared resumed before its thread ran on.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    impatience: u8,
    /// Let time pass between an access and the fault that it causes.
    #[arg(long)]
    late_faults: bool,
    /// Let loads ask for the right to store.
    #[arg(long)]
    eager: bool,
    /// Also prove that the states form no circle.
    #[arg(long)]
    must_end: bool,
}

#[derive(clap::Args)]
struct Synchronise {
    /// What every thread does.
    #[arg(long, value_enum, default_value_t = ProgramName::Locks)]
    program: ProgramName,
    /// Number of nodes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=8))]
    nodes: u16,
    /// Threads of each node.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=4))]
    threads: u8,
    /// How often every thread does it.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=3))]
    rounds: u8,
    /// Locks or words to choose from.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
    objects: u8,
}

#[derive(Clone, Copy, ValueEnum)]
enum HomeName {
    Manager,
    Interleaved,
}

#[derive(Clone, Copy, ValueEnum)]
enum WishName {
    Narrow,
    Wide,
    Both,
}

#[derive(Clone, Copy, ValueEnum)]
enum ProgramName {
    Locks,
    ImpatientLocks,
    Barrier,
    Words,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = Options { states_max: arguments.states_max, ..Options::default() };
    let passed = match &arguments.command {
        Command::Explore(chosen) => match instance(chosen) {
            Ok(instance) => {
                let options = Options { must_end: chosen.must_end, ..options };
                let report = explore(&mut instance.model(), options, &mut show_progress());
                print_report(&instance.describe(), &report, arguments.json)
            }
            Err(sentence) => {
                eprintln!("trellis-check: {sentence}");
                return ExitCode::from(2);
            }
        },
        Command::Sync(chosen) => {
            let instance = sync_instance(chosen);
            let report = explore(&mut instance.model(), options, &mut show_progress());
            print_report(&instance.describe(), &report, arguments.json)
        }
        Command::Mutants => try_all(options, arguments.json),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn instance(chosen: &Explore) -> Result<Instance, String> {
    let protocol = Protocol::ALL.into_iter().find(|protocol| protocol.name() == chosen.protocol);
    let protocol = protocol.ok_or_else(|| {
        let names: Vec<&str> = Protocol::ALL.iter().map(|protocol| protocol.name()).collect();
        let all = names.join(", ");
        format!("--protocol {}: there is no such protocol; there is {all}", chosen.protocol)
    })?;
    if chosen.manager >= chosen.nodes {
        let last = chosen.nodes - 1;
        return Err(format!("--manager {}: nodes are 0 to {last}", chosen.manager));
    }
    Ok(Instance {
        home: match chosen.home {
            HomeName::Manager => Home::Manager(Manager(NodeId(chosen.manager))),
            HomeName::Interleaved => Home::Interleaved(Interleaved),
        },
        threads: chosen.threads,
        wishes: match chosen.wishes {
            WishName::Narrow => Wishes::Narrow,
            WishName::Wide => Wishes::Wide,
            WishName::Both => Wishes::Both,
        },
        prefetches: chosen.prefetches,
        impatience: chosen.impatience,
        late_faults: chosen.late_faults,
        eager: chosen.eager,
        ..Instance::new(protocol, chosen.nodes, chosen.pages, chosen.operations)
    })
}

fn sync_instance(chosen: &Synchronise) -> SyncInstance {
    let program = match chosen.program {
        ProgramName::Locks => Program::Locks,
        ProgramName::ImpatientLocks => Program::ImpatientLocks,
        ProgramName::Barrier => Program::Barrier,
        ProgramName::Words => Program::Words,
    };
    let is_barrier = program == Program::Barrier;
    SyncInstance {
        program,
        nodes: chosen.nodes,
        threads: if is_barrier { 1 } else { chosen.threads },
        rounds: chosen.rounds,
        objects: if is_barrier { 1 } else { chosen.objects },
    }
}

/// Prints how far an exploration is, if somebody watches.
fn show_progress() -> impl FnMut(Progress) {
    let watched = std::io::stderr().is_terminal();
    move |progress| {
        if watched {
            eprint!("\r\x1b[K{} states, {} waiting, depth {} ", progress.states, progress.waiting, progress.depth);
        }
    }
}

fn print_report(name: &str, report: &Report, json: bool) -> bool {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    let result = match &report.verdict {
        Verdict::Passed => "passed".to_string(),
        Verdict::Broken { what, .. } => format!("broken: {what}"),
        Verdict::TooLarge => "too large: raise --states-max or choose a smaller cluster".to_string(),
        Verdict::Endless => "endless: the states form a circle".to_string(),
    };
    let seconds = report.elapsed.as_secs_f64();
    if json {
        println!(
            "{{\"instance\": \"{name}\", \"states\": {}, \"transitions\": {}, \"depth\": {}, \
             \"seconds\": {seconds:.3}, \"states_per_second\": {:.0}, \"result\": {result:?}}}",
            report.states,
            report.transitions,
            report.depth,
            report.states_per_second()
        );
    } else {
        println!("{name}");
        println!(
            "  {} states, {} transitions, depth {}, {seconds:.2} s, {:.0} states/s: {result}",
            report.states,
            report.transitions,
            report.depth,
            report.states_per_second()
        );
        if let Verdict::Broken { trace, .. } = &report.verdict {
            trace.iter().for_each(|line| println!("  {line}"));
        }
    }
    report.passed()
}

fn try_all(options: Options, json: bool) -> bool {
    let mut missed = 0;
    for row in TABLE {
        let report = try_mutant(&row, options);
        missed += usize::from(noticed(&report).is_none());
        let noticed = noticed(&report).unwrap_or("NOT NOTICED");
        if json {
            println!(
                "{{\"mutant\": \"{}\", \"broken\": \"{}\", \"states\": {}, \"noticed\": {noticed:?}}}",
                row.name, row.broken, report.states
            );
        } else {
            println!("{:20} {:>8} states: {noticed}", row.name, report.states);
        }
    }
    if !json {
        println!("{} mutants, {missed} not noticed", TABLE.len());
    }
    missed == 0
}
