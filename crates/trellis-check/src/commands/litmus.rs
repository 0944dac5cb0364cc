//! The command `litmus`: runs litmus tests in the simulator or on real processes.
//!
//! Promises: a forbidden outcome and a run that does not end are failures; the seed that is printed with a failure
//! repeats it. It must never call a series complete that was cut short.

use super::explore::protocols;
use super::real::{Host, LitmusRequest, Source};
use crate::litmus::oracle::{Memory, allowed};
use crate::litmus::simulate::{simulate, tell};
use crate::litmus::{Failure, LitmusOptions, LitmusReport, Progress, generate};
use crate::release::{litmus as released, shapes};
use clap::{Args, value_parser};
use std::io::IsTerminal;
use std::path::PathBuf;
use trellis_output::lines::say;

/// The default number of runs of each test on real processes.
const REAL_RUNS: u64 = 1_000;
/// The default number of runs of all tests together in the simulator.
const SIMULATED_RUNS: u64 = 1_000_000;

#[derive(Args, Debug)]
pub(super) struct Litmus {
    /// Tests in herd's format (C, or X86 and X86_64 with loads, stores, fences and exchanges); without any, all
    /// generated tests.
    files: Vec<PathBuf>,
    /// Run in the simulator instead of on real processes.
    #[arg(long)]
    simulated: bool,
    /// The protocol, for example `dynamic(forward)`; `all` for each that the tests cover.
    #[arg(long, default_value = "all")]
    protocol: String,
    /// Only the generated tests with these names.
    #[arg(long)]
    shape: Vec<String>,
    /// Maximum number of nodes of a simulated cluster, or number of processes to start.
    #[arg(long, value_parser = value_parser!(u8).range(1..=8))]
    nodes: Option<u8>,
    /// Number of runs: of all tests together in the simulator, of each test on each protocol on real processes.
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    runs: Option<u64>,
    /// The first seed.
    #[arg(long, default_value = "1", value_parser = seed)]
    seed: u64,
    /// Threads of this process that simulate.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// On real processes: every placement of threads and layout of pages, not only the widest.
    #[arg(long)]
    everything: bool,
    /// On real processes: override one configuration key; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
    /// With --json: an object for each test as well.
    #[arg(long)]
    details: bool,
    /// Print the last run step by step: for a seed that failed.
    #[arg(long, requires = "simulated")]
    tell: bool,
    /// Only print the names of the tests.
    #[arg(long)]
    list: bool,
}

/// A seed as it is printed: hexadecimal with `0x`, or decimal.
fn seed(text: &str) -> Result<u64, String> {
    let read = text.strip_prefix("0x").map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16));
    read.map_err(|error| format!("{error}; accepted: a number, such as 7 or 0x1f"))
}

pub(super) fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("has no equals sign; accepted: key=value, such as link=udp")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

pub(super) fn run(chosen: &Litmus, host: Option<&mut dyn Host>, json: bool) -> Result<bool, String> {
    let memory = if is_released(chosen)? { Memory::Released } else { Memory::Sequential };
    let (sources, unread) = sources(chosen)?;
    let (sources, refused) = understood(sources, unread, memory)?;
    if chosen.list {
        sources.iter().try_for_each(|source| source.program().map(|program| say!("{}", program.name)))?;
        return Ok(true);
    }
    let report = match (chosen.simulated, host) {
        (true, _) => simulated(chosen, &sources)?,
        (false, Some(host)) => on_processes(chosen, &sources, host)?,
        (false, None) => {
            return Err("this command starts no processes; use `trellis check litmus`, or --simulated".into());
        }
    };
    if json {
        say!("{}", report.to_json(chosen.details));
    } else if !chosen.tell {
        print(&report, &sources, chosen);
    }
    for sentence in &refused {
        // On standard error, because the JSON describes only tests that ran.
        progress!("trellis: {sentence}\n");
    }
    if !refused.is_empty() {
        progress!("trellis: {} files did not run\n", refused.len());
    }
    Ok(report.passed() && refused.is_empty())
}

/// The tests that can run, and sentences about the files that cannot run because they cannot be read or parsed, or have
/// too many states. One such file does not keep the others from running.
fn understood(
    sources: Vec<Source>,
    unread: Vec<String>,
    memory: Memory<'_>,
) -> Result<(Vec<Source>, Vec<String>), String> {
    let (mut good, mut refused) = (Vec::new(), unread);
    for source in sources {
        match &source {
            Source::Shape(_) => good.push(source),
            Source::File(name, _) => match source.program().map(|program| allowed(&program, memory)) {
                Ok(Ok(_)) => good.push(source),
                Ok(Err(sentence)) => refused.push(format!("{name}: {sentence}")),
                Err(sentence) => refused.push(sentence),
            },
        }
    }
    match refused.first() {
        Some(sentence) if good.is_empty() => Err(sentence.clone()),
        _ => Ok((good, refused)),
    }
}

/// The tests that were chosen, and sentences about files that cannot be read.
fn sources(chosen: &Litmus) -> Result<(Vec<Source>, Vec<String>), String> {
    let names = |names: Vec<String>| names.into_iter().map(Source::Shape).collect::<Vec<Source>>();
    if chosen.files.is_empty() && chosen.shape.is_empty() {
        let all = if is_released(chosen)? { shapes::shapes() } else { generate::shapes() };
        return Ok((names(all.into_iter().map(|program| program.name).collect()), Vec::new()));
    }
    let (mut sources, mut unread) = (names(chosen.shape.clone()), Vec::new());
    for file in &chosen.files {
        match std::fs::read_to_string(file) {
            Ok(text) => sources.push(Source::File(file.display().to_string(), text)),
            Err(error) => unread.push(format!("{}: {error}", file.display())),
        }
    }
    Ok((sources, unread))
}

/// Whether the protocols have release consistency; one command uses one memory model.
fn is_released(chosen: &Litmus) -> Result<bool, String> {
    Ok(protocols(&chosen.protocol)?.iter().all(|protocol| protocol.is_release_consistent()))
}

fn simulated(chosen: &Litmus, sources: &[Source]) -> Result<LitmusReport, String> {
    let mut options = LitmusOptions::new(protocols(&chosen.protocol)?, chosen.runs.unwrap_or(SIMULATED_RUNS));
    options.programs = sources.iter().map(Source::program).collect::<Result<_, _>>()?;
    options.seed = chosen.seed;
    options.jobs = usize::from(chosen.jobs);
    options.nodes_max = chosen.nodes.unwrap_or(options.nodes_max);
    let is_released = is_released(chosen)?;
    if chosen.tell {
        let story = if is_released { released::tell(&options)? } else { tell(&options)? };
        story.iter().for_each(|line| say!("{line}"));
    }
    let watched = std::io::stderr().is_terminal();
    let mut progress = |progress: Progress| {
        if watched {
            progress!("\r\x1b[K{} runs, {} failed ", progress.runs, progress.failures);
        }
    };
    let report =
        if is_released { released::simulate(&options, &mut progress) } else { simulate(&options, &mut progress) };
    clear(watched);
    report
}

fn on_processes(chosen: &Litmus, sources: &[Source], host: &mut dyn Host) -> Result<LitmusReport, String> {
    let watched = std::io::stderr().is_terminal();
    let began = std::time::Instant::now();
    let mut sum = LitmusReport::default();
    for protocol in protocols(&chosen.protocol)? {
        if watched {
            progress!(
                "\r\x1b[K{protocol}: {} runs so far, {} failed ",
                sum.runs,
                sum.runs - sum.completed + sum.forbidden
            );
        }
        let report = host.litmus(&LitmusRequest {
            protocol,
            sources: sources.to_vec(),
            nodes: chosen.nodes.unwrap_or(2),
            runs: chosen.runs.unwrap_or(REAL_RUNS),
            everything: chosen.everything,
            seed: chosen.seed,
            settings: chosen.set.clone(),
        })?;
        sum.merge(report);
    }
    clear(watched);
    sum.seconds = began.elapsed().as_secs_f64();
    Ok(sum)
}

fn clear(watched: bool) {
    if watched {
        progress!("\r\x1b[K");
    }
}

fn print(report: &LitmusReport, sources: &[Source], chosen: &Litmus) {
    for shape in &report.shapes {
        let condition =
            shape.condition.as_ref().map_or(String::new(), |(text, held)| format!("; {text}: {held} times"));
        let (seen, allowed) = (shape.outcomes_seen(), shape.seen.len());
        say!("{:24} {:>10} runs, {seen} of {allowed} allowed outcomes seen{condition}", shape.name, shape.runs);
    }
    for failure in &report.failures {
        say!("{} on {}: {}: {}", failure.shape, failure.protocol, failure.kind.name(), failure.what);
        if chosen.simulated {
            say!("  again: {}", again(failure, sources, chosen.nodes));
        }
    }
    say!(
        "{} tests on {} protocols: {} runs, {} completed, {} forbidden, {} stuck, {} broken; {:.0} runs/s",
        report.shapes.len(),
        report.protocols.len(),
        report.runs,
        report.completed,
        report.forbidden,
        report.stuck,
        report.broken,
        report.runs_per_second()
    );
}

/// The command that prints a simulated failure step by step.
fn again(failure: &Failure, sources: &[Source], nodes: Option<u8>) -> String {
    let is_it = |source: &&Source| {
        matches!(source, Source::File(..)) && source.program().is_ok_and(|program| program.name == failure.shape)
    };
    let test = match sources.iter().find(is_it) {
        Some(Source::File(name, _)) => quoted(name),
        _ => format!("--shape {}", quoted(&failure.shape)),
    };
    let nodes = nodes.map_or_else(String::new, |nodes| format!(" --nodes {nodes}"));
    format!(
        "trellis check litmus {test} --simulated --tell --protocol {} --seed {:#x} --runs {}{nodes}",
        quoted(&failure.protocol),
        failure.seed,
        failure.number + 1
    )
}

/// A word quoted so that a shell leaves it unchanged.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::litmus::Kind;

    #[test]
    fn a_failure_of_a_file_is_repeated_with_the_file() {
        let text = include_str!("../../tests/litmus/store-buffering.litmus");
        let file = Source::File("it's/here.litmus".to_owned(), text.to_owned());
        let sources = [Source::Shape("MP".to_owned()), file];
        let failure = |shape: String| Failure {
            index: 9,
            kind: Kind::Forbidden,
            seed: 0x2a,
            number: 3,
            protocol: "lock(ivy)".to_owned(),
            shape,
            what: String::new(),
        };
        assert_eq!(
            again(&failure(sources[1].program().expect("parses").name), &sources, Some(3)),
            r"trellis check litmus 'it'\''s/here.litmus' --simulated --tell --protocol 'lock(ivy)' --seed 0x2a --runs 4 --nodes 3"
        );
        assert_eq!(
            again(&failure("MP".to_owned()), &sources, None),
            "trellis check litmus --shape 'MP' --simulated --tell --protocol 'lock(ivy)' --seed 0x2a --runs 4"
        );
    }
}
