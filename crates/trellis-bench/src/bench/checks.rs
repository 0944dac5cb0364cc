//! `trellis bench checks`: the cost of the checks that `trellis cc` puts before accesses, where none of them has work
//! to do.
//!
//! One program (`compiler/tests/cost/cost.c`) is compiled by clang alone and by `trellis cc` in modes heap and line.
//! The programs run in turns; each round gives one difference for every kernel, and the median of the differences is
//! reported.
//!
//! Promises: both sides of a difference have the same source and options and run one after the other. What is built
//! is removed when the command ends. It must never compare with code that was compiled for another processor, or use
//! the store that the user's shell names.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use serde_json::Value;

use crate::bench::figures::{Figures, p50};
use trellis_command::exit::{self, Ending, Failure};
use trellis_command::installed;
use trellis_command::scratch::Scratch;
use trellis_command::terminal::Progress;

const EXAMPLES: &str = "\
Examples:
  trellis bench checks
  trellis bench checks --rounds 30 --json

Needs clang-19 and the parts of `trellis cc`. All figures but `native_…` are nanoseconds per access more than native.";

/// Measure the cost of the checks that `trellis cc` puts before accesses
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ChecksArguments {
    /// How often every program runs
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

const SOURCE: &str = include_str!("../../../../compiler/tests/cost/cost.c");

/// The program's kernels, and the program's names for the time of one access in each.
const KERNELS: [(&str, &str); 5] = [
    ("sum", "sum_ns"),
    ("fill", "fill_ns"),
    ("chase", "chase_ns"),
    ("multiply", "multiply_ns"),
    ("update", "update_ns"),
];

/// Names of figures: one for each kernel, and one for the largest.
struct Names {
    each: [&'static str; 5],
    words: &'static str,
}

macro_rules! names {
    ($prefix:literal, $words:literal) => {
        Names {
            each: [
                concat!($prefix, "_sum_ns_p50"),
                concat!($prefix, "_fill_ns_p50"),
                concat!($prefix, "_chase_ns_p50"),
                concat!($prefix, "_multiply_ns_p50"),
                concat!($prefix, "_update_ns_p50"),
            ],
            words: $words,
        }
    };
}

/// How a program is compiled. The native one comes first, because the others are compared with it.
const MODES: [Option<&str>; 3] = [None, Some("heap"), Some("line")];

/// One way to run a program: its index in [`MODES`], and where its data is.
struct Way {
    mode: usize,
    data: &'static str,
}

const PRIVATE: &str = "private";
const HEAP: &str = "heap";

/// The runs of a round. The runs of each pair follow each other directly.
const WAYS: [Way; 5] = [
    Way { mode: 1, data: PRIVATE },
    Way { mode: 0, data: PRIVATE },
    Way { mode: 2, data: PRIVATE },
    Way { mode: 0, data: HEAP },
    Way { mode: 2, data: HEAP },
];

/// A difference that is reported: one of [`WAYS`] minus another.
struct Difference {
    way: usize,
    native: usize,
    largest: &'static str,
    words: &'static str,
}

const DIFFERENCES: [Difference; 3] = [
    Difference { way: 0, native: 1, largest: "heap_private_ns_max", words: "mode heap, private data" },
    Difference { way: 2, native: 1, largest: "line_private_ns_max", words: "mode line, private data" },
    Difference { way: 4, native: 3, largest: "line_cached_ns_max", words: "mode line, cached data" },
];

/// The options for both compilers, and the names of the figures of these builds.
struct Build {
    options: &'static [&'static str],
    native: Names,
    differences: [Names; 3],
}

const BUILDS: [Build; 2] = [
    Build {
        options: &["-O2"],
        native: names!("native", "native, private data"),
        differences: [
            names!("heap_private", "mode heap, private data"),
            names!("line_private", "mode line, private data"),
            names!("line_cached", "mode line, cached data"),
        ],
    },
    Build {
        options: &["-O2", "-march=native"],
        native: names!("march_native", "-march=native: native, private data"),
        differences: [
            names!("march_heap_private", "-march=native: mode heap, private data"),
            names!("march_line_private", "-march=native: mode line, private data"),
            names!("march_line_cached", "-march=native: mode line, cached data"),
        ],
    },
];

/// The time of one run for each kernel.
type Times = [f64; KERNELS.len()];

/// Runs the subcommand.
pub(crate) fn run(arguments: &ChecksArguments) -> Ending {
    let mut progress = Progress::default();
    let folder = Scratch::new("checks")?;
    let mut programs = Vec::new();
    for build in &BUILDS {
        for mode in MODES {
            programs.push(compiled(&folder, build, mode)?);
        }
    }
    let mut rounds = Vec::new();
    for round in 0..arguments.rounds {
        progress.step(&format!("round {} of {}", round + 1, arguments.rounds));
        rounds.push(one_round(&programs)?);
    }
    progress.clear();
    let mut figures = figures_of(&rounds);
    figures.add_value("rounds", arguments.rounds, "rounds");
    figures.print(arguments.json)
}

/// A round: for each of [`BUILDS`], the times of all [`WAYS`].
fn one_round(programs: &[PathBuf]) -> Result<Vec<Vec<Times>>, Failure> {
    let of_build = |number: usize| {
        WAYS.iter()
            .map(|way| times(&programs[number * MODES.len() + way.mode], way.data))
            .collect::<Result<Vec<_>, _>>()
    };
    (0..BUILDS.len()).map(of_build).collect()
}

fn figures_of(rounds: &[Vec<Vec<Times>>]) -> Figures {
    let median = |of: &dyn Fn(&[Vec<Times>]) -> f64| p50(rounds.iter().map(|round| of(round)));
    let mut figures = Figures::new("checks");
    let mut largest = [f64::NEG_INFINITY; DIFFERENCES.len()];
    let mut rows = Vec::new();
    for (number, build) in BUILDS.iter().enumerate() {
        for (kernel, (word, _)) in KERNELS.iter().enumerate() {
            let native = median(&|round| round[number][DIFFERENCES[0].native][kernel]);
            rows.push((build.native.each[kernel], native, format!("{}: {word} (ns an access)", build.native.words)));
        }
        for (which, difference) in DIFFERENCES.iter().enumerate() {
            let names = &build.differences[which];
            for (kernel, (word, _)) in KERNELS.iter().enumerate() {
                let more =
                    median(&|round| round[number][difference.way][kernel] - round[number][difference.native][kernel]);
                largest[which] = largest[which].max(more);
                rows.push((names.each[kernel], more, format!("{}: {word} (ns more)", names.words)));
            }
        }
    }
    for (difference, value) in DIFFERENCES.iter().zip(largest) {
        figures.add(difference.largest, value, format!("{}: the most of all (ns more)", difference.words));
    }
    for (name, value, label) in rows {
        figures.add(name, value, label);
    }
    figures
}

/// Compiles the program with clang, or with `trellis cc` in a mode.
fn compiled(folder: &Scratch, build: &Build, mode: Option<&str>) -> Result<PathBuf, Failure> {
    let source = folder.file("cost.c");
    std::fs::write(&source, SOURCE)
        .map_err(|error| Failure::new(exit::FILE, format!("cannot write {}: {error}", source.display())))?;
    let program = folder.file([mode.unwrap_or("native"), &build.options.concat()].concat());
    let mut command = match mode {
        None => Command::new("clang-19"),
        Some(mode) => {
            let mut command = Command::new(installed::command()?);
            command.args(["cc", "--mode", mode]);
            command
        }
    };
    command.args(build.options).arg(&source).arg("-o").arg(&program);
    printed(&mut command, &format!("compiling the kernels ({})", mode.unwrap_or("native")))?;
    Ok(program)
}

fn times(program: &Path, data: &str) -> Result<Times, Failure> {
    let mut command = Command::new(program);
    command.arg(data).env("TRELLIS_STORE", "embedded:");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TRELLIS_STORE_") {
            command.env_remove(name);
        }
    }
    let what = format!("running {}", program.file_name().unwrap_or_default().to_string_lossy());
    let text = printed(&mut command, &what)?;
    parsed(&text).ok_or_else(|| Failure::new(exit::FAILED, format!("{what}: it printed no times but {text:?}")))
}

fn parsed(text: &str) -> Option<Times> {
    let value: Value = serde_json::from_str(text).ok()?;
    let mut times = [0.0; KERNELS.len()];
    for (time, (_, field)) in times.iter_mut().zip(KERNELS) {
        *time = value[field].as_f64()?;
    }
    Some(times)
}

/// Returns what a command prints on standard output.
fn printed(command: &mut Command, what: &str) -> Result<String, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Failure::new(exit::SYSTEM, format!("{program} is not installed; `apt-get install {program}` brings it"))
        }
        _ => Failure::new(exit::SYSTEM, format!("{what}: cannot start {program}: {error}")),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let code = if output.status.code() == Some(i32::from(exit::SYSTEM)) { exit::SYSTEM } else { exit::FAILED };
    let why = said.lines().last().map_or_else(|| output.status.to_string(), ToOwned::to_owned);
    Err(Failure::new(code, format!("{what}: {}", why.strip_prefix("trellis: ").unwrap_or(&why))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_of_the_program_is_measured() {
        for (word, field) in KERNELS {
            assert!(SOURCE.contains(&format!("\\\"{field}\\\":")), "{field} is not printed");
            assert!(SOURCE.contains(&format!(" {word}(")) || SOURCE.contains(&format!("*{word}(")), "no kernel {word}");
        }
        let line = r#"{"sum_ns":0.1,"fill_ns":0.2,"chase_ns":2,"multiply_ns":0.3,"update_ns":0.4}"#;
        assert_eq!(parsed(line), Some([0.1, 0.2, 2.0, 0.3, 0.4]));
        assert_eq!(parsed(r#"{"sum_ns":0.1}"#), None);
    }

    #[test]
    fn medians_are_of_differences_within_a_round() {
        // The machine gets slower from round to round; the difference of a pair stays the same.
        let round = |slow: f64| {
            let way = |more: f64| [slow + more; KERNELS.len()];
            vec![vec![way(0.2), way(0.0), way(0.1), way(1.0), way(1.4)]; BUILDS.len()]
        };
        let figures = figures_of(&[round(1.0), round(2.0), round(9.0)]);
        for (name, value) in [
            ("heap_private_ns_max", 0.2),
            ("line_private_ns_max", 0.1),
            ("line_cached_ns_max", 0.4),
            ("march_line_cached_update_ns_p50", 0.4),
            ("native_sum_ns_p50", 2.0),
        ] {
            assert_eq!(figures.get(name), Some(value), "{name}");
        }
    }
}
