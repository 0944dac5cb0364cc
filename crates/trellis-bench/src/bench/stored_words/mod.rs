//! `trellis bench stored-words`: a program whose text is larger than its memory, with its heap in a store, in swap,
//! or in a mapped file.
//!
//! Promises: the same program, compiled once, runs in all ways one after the other on the same disk, each time with
//! the same memory for everything in its process; all runs must print the same words. Everything made here (files, a swap
//! file, control groups, a server) is gone afterwards, also when the command is killed. A way that this machine does
//! not allow is left out with its reason.
//!
//! It must never make a ratio of two runs of the command, or give a way memory that another one does not get.

pub(super) mod limit;
pub(super) mod place;
mod program;
mod server;
pub(super) mod swap;

use std::path::PathBuf;

use clap::Args;
use trellis_base::proc_bytes;

use crate::bench::figures::Figures;
use trellis_command::chart::byte_text;
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::terminal::Progress;

use limit::Limit;
use place::Place;
use program::{Program, Run};

const EXAMPLES: &str = "\
Examples:
  sudo trellis bench stored-words            4 GiB of text in 256 MiB of memory; many minutes
  trellis bench stored-words --quick --json  512 MiB in 128 MiB, to see that everything works
  trellis bench stored-words --bytes 16GiB --cache 1GiB --directory /var/tmp

The program is examples/stored/word_count.c. Limits of memory and swap need root: without, the kernel's ways are left out, \
and the store's ways are limited by their cache alone. The disk needs room for twice the text. redis-server and a C \
compiler (cc) must be installed.

Exit codes: 0 fine; 1 a result was wrong or a run failed; 74 a file or library is not there; 127 cc is not there.";

/// Count the words of a text larger than memory: in a store, in swap and in a mapped file
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StoredWordsArguments {
    /// Size of the text [default: 4GiB; with --quick: 512MiB]
    #[arg(long, value_parser = trellis_command::size::size)]
    bytes: Option<u64>,
    /// Memory of the program, including everything in its process [default: 256MiB; with --quick: 128MiB]
    #[arg(long, value_parser = trellis_command::size::size)]
    cache: Option<u64>,
    /// A small text, to see that everything works
    #[arg(long)]
    quick: bool,
    /// Where files are made, on the disk that is compared [default: the directory for temporary files]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The smallest memory with which the program, the library and its threads run.
const CACHE_BYTES_MIN: u64 = 96 << 20;

/// Where the program's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// All of it in memory: the cost of the work itself.
    Memory,
    Durable,
    Redis,
    Swap,
    Mapped,
}

impl Way {
    const ALL: [Way; 5] = [Way::Memory, Way::Durable, Way::Redis, Way::Swap, Way::Mapped];

    fn words(self) -> &'static str {
        match self {
            Way::Memory => "all in memory",
            Way::Durable => "pages in embedded-durable",
            Way::Redis => "pages in redis",
            Way::Swap => "kernel swap",
            Way::Mapped => "mapped file",
        }
    }

    /// The names of its figures: fill, count, both, pages fetched, bytes written back, calls, why it was left out.
    fn fields(self) -> [&'static str; 7] {
        macro_rules! fields {
            ($way:literal) => {
                [
                    concat!($way, "_fill_seconds"),
                    concat!($way, "_count_seconds"),
                    concat!($way, "_seconds"),
                    concat!($way, "_pages_fetched"),
                    concat!($way, "_written_back_bytes"),
                    concat!($way, "_calls"),
                    concat!($way, "_left_out"),
                ]
            };
        }
        match self {
            Way::Memory => fields!("memory"),
            Way::Durable => fields!("durable"),
            Way::Redis => fields!("redis"),
            Way::Swap => fields!("swap"),
            Way::Mapped => fields!("mapped"),
        }
    }
}

/// Sizes of everything.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    text_bytes: u64,
    memory_bytes: u64,
}

impl Sizes {
    fn of(arguments: &StoredWordsArguments) -> Result<Sizes, Failure> {
        let (text_bytes, memory_bytes) = if arguments.quick { (512 << 20, 128 << 20) } else { (4 << 30, 256 << 20) };
        let sizes = Sizes {
            text_bytes: arguments.bytes.unwrap_or(text_bytes),
            memory_bytes: arguments.cache.unwrap_or(memory_bytes),
        };
        if sizes.memory_bytes < CACHE_BYTES_MIN {
            let least = byte_text(CACHE_BYTES_MIN as f64);
            return Err(Failure::new(
                exit::USAGE,
                format!("--cache is the memory of a whole process; give {least} or more"),
            ));
        }
        Ok(sizes)
    }

    /// The part of the memory for pages; the rest is for the store's own cache and for data on its way.
    fn page_bytes(self) -> u64 {
        self.memory_bytes / 2
    }
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &StoredWordsArguments) -> Ending {
    let sizes = Sizes::of(arguments)?;
    let progress = &mut Progress::default();
    let directory = arguments.directory.clone().unwrap_or_else(std::env::temp_dir);
    let place = Place::new(&directory)?;
    let program = Program::compile(&place)?;
    let mut runs = Vec::new();
    for way in Way::ALL {
        progress.step(&format!("{}: {} of text…", way.words(), byte_text(sizes.text_bytes as f64)));
        runs.push((way, make(way, &place, &program, sizes)?));
    }
    progress.clear();
    drop(place);
    compare(&runs)?;
    figures(&runs, sizes).print(arguments.json)
}

/// A run, or why this machine does not allow it.
type Made = Result<Run, String>;

fn make(way: Way, place: &Place, program: &Program, sizes: Sizes) -> Result<Made, Failure> {
    let text = sizes.text_bytes.to_string();
    place.settle();
    if way == Way::Memory {
        if available_bytes() < sizes.text_bytes + (1 << 30) {
            return Ok(Err("the text and 1 GiB more do not fit into this machine's memory".to_owned()));
        }
        return program.run(place, None, None, &["--generate", &text]).map(Ok);
    }
    let limit = match Limit::new(place, sizes.memory_bytes, way == Way::Swap) {
        Ok(limit) => Some(limit),
        Err(_) if matches!(way, Way::Durable | Way::Redis) => None,
        Err(reason) => return Ok(Err(reason)),
    };
    let limit = limit.as_ref();
    let cache = sizes.page_bytes();
    match way {
        Way::Memory | Way::Mapped => {
            let file = place.file("mapped");
            let run = program.run(place, limit, None, &["--generate", &text, "--in", &file.display().to_string()]);
            place.remove("mapped");
            run.map(Ok)
        }
        Way::Durable => {
            let url = format!("embedded-durable:{}", place.file("store").display());
            let run = program.run(place, limit, Some((url.as_str(), cache)), &["--generate", &text]);
            place.remove("store");
            run.map(Ok)
        }
        Way::Redis => {
            let server = match server::ServerProcess::start(place) {
                Ok(server) => server,
                Err(reason) => return Ok(Err(reason)),
            };
            program.run(place, limit, Some((server.url(), cache)), &["--generate", &text]).map(Ok)
        }
        Way::Swap => match swap::Swap::on(place, sizes.text_bytes + (256 << 20)) {
            Ok(_swap) => program.run(place, limit, None, &["--generate", &text]).map(Ok),
            Err(reason) => Ok(Err(reason)),
        },
    }
}

/// Checks that all runs found the same.
fn compare(runs: &[(Way, Made)]) -> Result<(), Failure> {
    let mut found = runs.iter().filter_map(|(way, run)| Some((way, run.as_ref().ok()?)));
    let Some((first, right)) = found.next() else { return Ok(()) };
    match found.find(|(_, run)| run.printed != right.printed) {
        None => Ok(()),
        Some((other, run)) => {
            let line = |run: &Run| run.printed.lines().next().unwrap_or("nothing").to_owned();
            let sentence = format!(
                "{} found other words than {}: `{}`, `{}`; please report it",
                other.words(),
                first.words(),
                line(run),
                line(right)
            );
            Err(Failure::new(exit::FAILED, sentence))
        }
    }
}

fn figures(runs: &[(Way, Made)], sizes: Sizes) -> Figures {
    let mut figures = Figures::new("stored-words");
    figures.add_value("bytes", sizes.text_bytes, "text (B)");
    figures.add_value("memory_bytes", sizes.memory_bytes, "memory of the program's process (B)");
    figures.add_value("page_cache_bytes", sizes.page_bytes(), "of it, cache of pages where they lie in a store (B)");
    for (way, run) in runs {
        let [fill, count, both, fetched, written, calls, left_out] = way.fields();
        let words = way.words();
        match run {
            Ok(run) => {
                figures.add(fill, run.fill_seconds, format!("{words}: fill (s)"));
                figures.add(count, run.count_seconds, format!("{words}: count (s)"));
                figures.add(both, run.seconds(), format!("{words}: both (s)"));
                if let Some(pages) = &run.pages {
                    figures.add_value(fetched, pages.fetched, format!("{words}: pages fetched"));
                    figures.add_value(written, pages.written_bytes, format!("{words}: written back (B)"));
                    figures.add_value(calls, pages.calls, format!("{words}: calls of the store"));
                }
            }
            Err(reason) => figures.add_value(left_out, reason.as_str(), format!("{words}: left out")),
        }
    }
    let seconds = |wanted: Way| {
        let run = runs.iter().find(|(way, _)| *way == wanted).and_then(|(_, run)| run.as_ref().ok());
        run.map_or(f64::NAN, Run::seconds)
    };
    let ratios = [
        ("durable_over_swap", Way::Durable, Way::Swap),
        ("durable_over_mapped", Way::Durable, Way::Mapped),
        ("redis_over_swap", Way::Redis, Way::Swap),
        ("redis_over_mapped", Way::Redis, Way::Mapped),
    ];
    for (name, of, over) in ratios {
        figures.add(name, seconds(of) / seconds(over), format!("{} / {}", of.words(), over.words()));
    }
    let store = seconds(Way::Durable).min(seconds(Way::Redis));
    let kernel = seconds(Way::Swap).min(seconds(Way::Mapped));
    figures.add("store_over_kernel", store / kernel, "faster of the stores / faster of the kernel's ways");
    figures.add("load", load(), "load of the machine at the end, this benchmark included");
    figures
}

/// The unused memory of the machine.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    proc_bytes(&text, "MemAvailable").unwrap_or(0)
}

/// The load average of the last minute.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use program::Pages;

    fn run(printed: &str, seconds: f64) -> Run {
        Run {
            printed: printed.to_owned(),
            fill_seconds: seconds / 4.0,
            count_seconds: seconds * 3.0 / 4.0,
            pages: Some(Pages { fetched: 7, written_bytes: 4096, calls: 3 }),
        }
    }

    #[test]
    fn other_words_are_an_error() {
        let runs = |other: &str| [(Way::Redis, Ok(run("9 words\n", 1.0))), (Way::Swap, Ok(run(other, 2.0)))];
        assert_eq!(compare(&runs("9 words\n")), Ok(()));
        let wrong = compare(&runs("8 words\n")).expect_err("they differ");
        assert!(wrong.sentence.starts_with("kernel swap found other words than pages in redis: `8 words`"), "{wrong}");
    }

    #[test]
    fn ratios_are_made_of_what_was_measured() {
        let runs = [
            (Way::Durable, Ok(run("", 6.0))),
            (Way::Redis, Ok(run("", 3.0))),
            (Way::Swap, Err("no root".to_owned())),
            (Way::Mapped, Ok(run("", 4.0))),
        ];
        let figures = figures(&runs, Sizes { text_bytes: 1 << 30, memory_bytes: 64 << 20 });
        assert_eq!(figures.get("redis_over_mapped"), Some(0.75));
        assert_eq!(figures.get("durable_over_mapped"), Some(1.5));
        assert_eq!(figures.get("store_over_kernel"), Some(0.75));
        assert_eq!(figures.get("redis_over_swap"), None);
        let text = serde_json::to_string(&figures).expect("json");
        assert!(text.contains(r#""swap_left_out":"no root""#) && text.contains(r#""redis_pages_fetched":7"#), "{text}");
    }
}
