//! `trellis bench remote-paging`: a program whose working set is larger than its memory here, with the rest at a
//! memory server, in swap, or in a mapped file.
//!
//! Promises: one program, compiled once, accesses its memory in the same way everywhere, and all runs must find the
//! same sums. Everything made here (files, a swap file, control groups, labs, servers) is gone afterwards, also when the
//! command is killed. A way that this machine does not allow is left out with its reason. It must never make a ratio
//! of two runs of the command.

mod program;
mod remote;

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};
use trellis_switch::lab::space;
use trellis_switch::switches::KINDS;

use super::figures::Figures;
use super::stored_words::limit::{Limit, START};
use super::stored_words::place::Place;
use super::stored_words::swap::Swap;
use super::switch::inside;
use trellis_command::chart::byte_text;
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::scratch::FOR_HOSTS;
use trellis_command::terminal::Progress;

use program::{PASSES, Passes, Program};
pub(crate) use remote::measure;

const EXAMPLES: &str = "\
Examples:
  trellis bench remote-paging                      128 MiB with 32 MiB of it here
  trellis bench remote-paging --bytes 1GiB --cache 256MiB --json
  trellis bench remote-paging --quick              a moment, to see that everything works

The program is examples/remote/working_set.c; a C compiler (cc) must be installed. It fills its memory and goes over it in \
order (reading; changing every word; computing something of each) and here and there. Swap and a mapped file get as much \
memory as the cache and 4 MiB for the process; limiting that needs root, and they are left out without. The memory server is \
a process of its own, reached over a bare pair of interfaces and through each switch that works here.

Exit codes: 0 fine; 1 a result was wrong or a run failed; 71 refused by the operating system; 74 a file or library is not \
there; 127 cc is not there.";

/// Compare a memory server with swap and a mapped file for a working set larger than memory
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RemotePagingArguments {
    /// The working set [default: 128MiB; with --quick: 32MiB]
    #[arg(long, value_parser = trellis_command::size::size)]
    bytes: Option<u64>,
    /// The part of it that is in local memory at a time [default: a quarter of it]
    #[arg(long, value_parser = trellis_command::size::size)]
    cache: Option<u64>,
    /// Words that are touched in random order [default: one for each page]
    #[arg(long, value_name = "N")]
    touches: Option<u64>,
    /// Bytes of memory in a datagram, a power of two; 8192 fits packets of 9,000 bytes
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    piece: u32,
    /// Where files are made, on the disk that is compared [default: /var/tmp]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Only these switches [default: each that works here]
    #[arg(long = "switch", value_name = "NAME")]
    switches: Vec<String>,
    /// Use no root rights, even if there are some
    #[arg(long)]
    rootless: bool,
    /// A small working set, to see that everything works
    #[arg(long)]
    quick: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The task of the process that makes the lab.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PagingTask {
    program: PathBuf,
    sizes: Sizes,
    piece_bytes: u32,
    /// The lab of the first one also has the bare pair.
    switches: Vec<String>,
}

/// Its results, by the name of the way: a run, or why there is none.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Found(Vec<(String, Made)>);

/// A run, or why this machine does not allow it.
type Made = Result<Passes, String>;

/// Sizes of everything.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Sizes {
    bytes: u64,
    cache_bytes: u64,
    touches: u64,
}

/// The memory that a process needs in addition to its working set.
const PROCESS_BYTES: u64 = 4 << 20;
/// The smallest cache.
const CACHE_BYTES_MIN: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;

impl Sizes {
    fn of(arguments: &RemotePagingArguments) -> Result<Sizes, Failure> {
        let bytes = arguments.bytes.unwrap_or(if arguments.quick { 32 << 20 } else { 128 << 20 });
        let cache_bytes = arguments.cache.unwrap_or(bytes / 4) / PAGE_BYTES * PAGE_BYTES;
        if cache_bytes < CACHE_BYTES_MIN || bytes < cache_bytes {
            return Err(Failure::new(
                exit::USAGE,
                format!(
                    "a cache of {} for {} makes no sense; give 1 MiB or more, and a working set that is larger",
                    byte_text(cache_bytes as f64),
                    byte_text(bytes as f64)
                ),
            ));
        }
        let touches = arguments.touches.filter(|touches| *touches > 0).unwrap_or(bytes / PAGE_BYTES);
        Ok(Sizes { bytes, cache_bytes, touches })
    }
}

/// The kernel's ways, by the names of their figures.
const MEMORY: &str = "memory";
const SWAP: &str = "swap";
const MAPPED: &str = "mapped";

/// Runs the subcommand.
pub(crate) fn run(arguments: &RemotePagingArguments) -> Ending {
    let sizes = Sizes::of(arguments)?;
    let rootless = arguments.rootless || !space::is_root();
    let switches = switches(&arguments.switches, rootless)?;
    // Before anything that takes minutes: a missing part of Trellis is reported at once.
    trellis_command::installed::preloaded_libraries()?;
    let progress = &mut Progress::default();
    let directory = arguments.directory.clone().unwrap_or_else(|| FOR_HOSTS.into());
    let place = Place::new(&directory)?;
    let program = Program::compile(&place)?;
    let mut runs = Vec::new();
    let here = |way: &str, runs: &mut Vec<(String, Made)>, progress: &mut Progress| {
        progress.step(&format!("{}: {}…", words(way), byte_text(sizes.bytes as f64)));
        here(way, &place, &program, sizes, rootless).map(|run| runs.push((way.to_owned(), run)))
    };
    for way in [MEMORY, SWAP, MAPPED] {
        here(way, &mut runs, progress)?;
    }
    progress.step("memory server…");
    let piece_bytes = arguments.piece;
    let task = PagingTask { program: program.path().to_owned(), sizes, piece_bytes, switches };
    // Last: this process can start no other one afterwards.
    let Found(remote) = inside::start(&inside::Task::Paging(task), rootless)?;
    progress.clear();
    runs.extend(remote);
    drop(place);
    compare(&runs)?;
    figures(&runs, sizes).print(arguments.json)
}

fn switches(wanted: &[String], rootless: bool) -> Result<Vec<String>, Failure> {
    if !wanted.is_empty() {
        for name in wanted {
            inside::choose(Some(name), rootless)?;
        }
        return Ok(wanted.to_vec());
    }
    let works = KINDS.iter().filter(|kind| kind.is_built && (kind.is_rootless || !rootless));
    Ok(works.map(|kind| kind.name.to_owned()).collect())
}

/// Runs it with the kernel's means.
fn here(way: &str, place: &Place, program: &Program, sizes: Sizes, rootless: bool) -> Result<Made, Failure> {
    place.settle();
    if way == MEMORY {
        return program.run(place, None, &[], sizes).map(Ok);
    }
    if rootless {
        return Ok(Err("limiting memory needs root".to_owned()));
    }
    let limit = match Limit::new(place, sizes.cache_bytes + PROCESS_BYTES, way == SWAP) {
        Ok(limit) => limit,
        Err(reason) => return Ok(Err(reason)),
    };
    if way == SWAP {
        return match Swap::on(place, sizes.bytes + (64 << 20)) {
            Ok(_swap) => program.run(place, Some(&limit), &[], sizes).map(Ok),
            Err(reason) => Ok(Err(reason)),
        };
    }
    let file = place.file("mapped");
    let run = program.run(place, Some(&limit), &["--in", &file.display().to_string()], sizes);
    place.remove("mapped");
    run.map(Ok)
}

/// Checks that all runs found the same.
fn compare(runs: &[(String, Made)]) -> Result<(), Failure> {
    let mut found = runs.iter().filter_map(|(way, run)| Some((way, run.as_ref().ok()?)));
    let Some((first, right)) = found.next() else { return Ok(()) };
    match found.find(|(_, run)| run.printed != right.printed) {
        None => Ok(()),
        Some((other, _)) => {
            let sentence = format!("{} found other sums than {}; please report it", words(other), words(first));
            Err(Failure::new(exit::FAILED, sentence))
        }
    }
}

/// The name of a way, for people.
fn words(way: &str) -> String {
    match way {
        MEMORY => "all in memory".to_owned(),
        SWAP => "kernel swap".to_owned(),
        MAPPED => "mapped file".to_owned(),
        remote::VETH => "memory server, bare pair".to_owned(),
        other => format!("memory server, switch {}", other.trim_start_matches("remote_")),
    }
}

fn figures(runs: &[(String, Made)], sizes: Sizes) -> Figures {
    let mut figures = Figures::new("remote-paging");
    figures.add_value("bytes", sizes.bytes, "working set (B)");
    figures.add_value("cache_bytes", sizes.cache_bytes, "of it in memory (B)");
    figures.add_value("touches", sizes.touches, "words that are touched here and there");
    let named = |parts: &[&str]| -> &'static str { parts.join("_").leak() };
    for (way, run) in runs {
        match run {
            Ok(run) => {
                for (pass, label) in PASSES {
                    figures.add(
                        named(&[way, pass, "seconds"]),
                        run.seconds(pass),
                        format!("{}: {label} (s)", words(way)),
                    );
                }
                if let Some(pages) = &run.pages {
                    figures.add_value(named(&[way, "faults"]), pages.faults, format!("{}: faults", words(way)));
                    figures.add_value(
                        named(&[way, "pages_fetched"]),
                        pages.fetched,
                        format!("{}: pages fetched", words(way)),
                    );
                    let label = format!("{}: written back (B)", words(way));
                    figures.add_value(named(&[way, "written_back_bytes"]), pages.written_bytes, label);
                }
            }
            Err(reason) => {
                figures.add_value(named(&[way, "left_out"]), reason.as_str(), format!("{}: left out", words(way)));
            }
        }
    }
    let of = |wanted: &str| runs.iter().find(|(way, _)| way == wanted).and_then(|(_, run)| run.as_ref().ok());
    for (way, run) in runs.iter().filter(|(way, _)| way != MEMORY) {
        for (pass, label) in PASSES {
            let name = named(&[way, pass, "over_memory"]);
            let label = format!("{} / all in memory: {label}", words(way));
            match (run, of(MEMORY)) {
                (Ok(run), Some(memory)) => figures.add(name, run.seconds(pass) / memory.seconds(pass), label),
                _ => figures.add_value(name, serde_json::Value::Null, label),
            }
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(printed: &str, seconds: f64) -> Made {
        let passes = PASSES.iter().map(|(pass, _)| ((*pass).to_owned(), seconds)).collect();
        Ok(Passes { printed: printed.to_owned(), passes, pages: None })
    }

    #[test]
    fn other_sums_are_an_error() {
        let runs = |other: &str| [(MEMORY.to_owned(), made("1", 1.0)), ("remote_user".to_owned(), made(other, 2.0))];
        assert_eq!(compare(&runs("1")), Ok(()));
        let wrong = compare(&runs("2")).expect_err("they differ");
        assert!(
            wrong.sentence.starts_with("memory server, switch user found other sums than all in memory"),
            "{wrong}"
        );
    }

    #[test]
    fn ratios_are_to_all_local_memory_and_what_is_missing_has_its_reason() {
        let runs = [
            (MEMORY.to_owned(), made("1", 2.0)),
            (SWAP.to_owned(), Err("limiting memory needs root".to_owned())),
            ("remote_user".to_owned(), made("1", 3.0)),
        ];
        let sizes = Sizes { bytes: 4 << 20, cache_bytes: 1 << 20, touches: 1024 };
        let figures = serde_json::to_value(figures(&runs, sizes)).expect("JSON");
        assert_eq!(
            (&figures["remote_user_scan_over_memory"], &figures["memory_scan_seconds"]),
            (&1.5.into(), &2.0.into())
        );
        assert_eq!(figures["swap_left_out"], "limiting memory needs root");
        assert!(figures.get("swap_scan_seconds").is_none());
        assert!(figures["swap_scan_over_memory"].is_null() && figures.get("swap_scan_over_memory").is_some());
    }
}
