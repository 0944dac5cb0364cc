//! Programs with threads, on two nodes and as they are alone, in turns.
//!
//! Promises: both runs must print the same; pictures, which have their dates in them, are compared by `cargo xtask
//! matrix --threads`. A time is that of the whole command, from its start to its end.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use trellis_output::programs;

use crate::matrix_threads;
use crate::workspace::Workspace;

/// A program of `examples/threads` with its arguments, and the name of its figure.
const PROGRAMS: [(&str, &str, &[&str]); 4] = [
    ("integrate", "integrate.c", &["2", "1000"]),
    ("matmul_1024", "matmul.c", &["2", "1024"]),
    ("jacobi_2000", "jacobi.c", &["2", "2000", "200"]),
    ("tasks", "tasks.c", &["2", "40", "22"]),
];
/// Programs of Debian with their arguments.
const OF_DEBIAN: [(&str, &[&str]); 2] = [
    ("pigz", &["-p", "2", "-c", "text"]),
    ("povray", &["+Iscene.pov", "+Oscene.ppm", "-D", "-GA", "+W1600", "+H1200", "+A0.05", "+R4", "+WT2", "+FP8"]),
];
/// Programs of `examples/parmacs`, with their arguments: locks and barriers of pthreads, as those of SPLASH use them.
const OF_PARMACS: [(&str, &[&str]); 4] =
    [("lu", &["-n", "2048"]), ("fft", &["-m", "22"]), ("radix", &["-n", "33554432"]), ("barnes", &["-n", "65536"])];
/// The user says that the program has no data races.
const NO_RACES: &[&str] = &["--races", "none"];
/// The number of tasks of the program with tasks: two for each Fibonacci number above 22, down from 40.
const TASKS: f64 = 13_528.0;
/// The number of parallel regions that do nothing.
const REGIONS: f64 = 10_000.0;
/// Each is run so often in each way; the least time counts, because others use this machine, too.
const TURNS: usize = 3;

/// Measures all once; returns the figures as one object.
pub(super) fn measure(workspace: &Workspace) -> Result<Value> {
    let folder = workspace.target.join("bench/threads");
    std::fs::create_dir_all(&folder)?;
    let mut figures = Map::new();
    for (name, source, arguments) in PROGRAMS {
        let program = folder.join(name);
        compile(workspace, source, &program)?;
        let (alone, on_nodes) = in_turns(workspace, &program, arguments, &[], &folder)?;
        figures.insert(format!("{name}_alone_ms"), (1e3 * alone).into());
        figures.insert(format!("{name}_ratio"), (alone / on_nodes).into());
        if name == "jacobi_2000" {
            let (alone, on_nodes) = in_turns(workspace, &program, arguments, NO_RACES, &folder)?;
            figures.insert("jacobi_2000_no_races_ratio".to_owned(), (alone / on_nodes).into());
        }
        if name == "tasks" {
            figures.insert("task_us".to_owned(), (1e6 * on_nodes / TASKS).into());
        }
    }
    let parmacs = folder.join("parmacs");
    crate::step::run(workspace.command("make").args(["--silent", "-C", "examples/parmacs"]).arg(flags()).arg({
        let mut out = std::ffi::OsString::from("OUT=");
        out.push(&parmacs);
        out
    }))?;
    for (name, arguments) in OF_PARMACS {
        let arguments = [&["-p", "2"], arguments].concat();
        let (alone, on_nodes) = region_in_turns(workspace, &parmacs.join(name), &arguments, &folder)?;
        figures.insert(format!("parmacs_{name}_alone_ms"), (1e3 * alone).into());
        figures.insert(format!("parmacs_{name}_no_races_ratio"), (alone / on_nodes).into());
    }
    let regions = folder.join("regions");
    compile(workspace, "regions.c", &regions)?;
    let (_, none) = in_turns(workspace, &regions, &["2", "1"], &[], &folder)?;
    let (_, many) = in_turns(workspace, &regions, &["2", &REGIONS.to_string()], &[], &folder)?;
    figures.insert("region_us".to_owned(), (1e6 * (many - none) / REGIONS).into());
    figures.insert("region_messages".to_owned(), (messages(workspace, &regions, &folder)? / REGIONS).into());
    // One thread, which has the other node beside it.
    let (alone, on_nodes) = in_turns(workspace, &folder.join("integrate"), &["1", "500"], &[], &folder)?;
    figures.insert("one_thread_ratio".to_owned(), (alone / on_nodes).into());
    // Numbers in words and digits, 256 MiB.
    let line = |number: u64| format!("{} {:x} {}\n", number % 977, number * 2_654_435_761, number * number % 10_007);
    std::fs::write(folder.join("text"), (0..11_360_000).map(line).collect::<String>())?;
    std::fs::write(folder.join("scene.pov"), matrix_threads::scene())?;
    for (program, arguments) in OF_DEBIAN {
        if programs::find(program).is_some() {
            let (alone, on_nodes) = in_turns(workspace, Path::new(program), arguments, &[], &folder)?;
            figures.insert(format!("{program}_alone_ms"), (1e3 * alone).into());
            figures.insert(format!("{program}_ratio"), (alone / on_nodes).into());
        } else {
            figures.insert(format!("{program}_ratio"), Value::Null);
            figures.insert(format!("{program}_left_out"), format!("{program} is not installed").into());
        }
    }
    let (_, nothing) = in_turns(workspace, Path::new("true"), &[], &[], &folder)?;
    figures.insert("start_and_end_ms".to_owned(), (1e3 * nothing).into());
    Ok(Value::Object(figures))
}

fn compile(workspace: &Workspace, source: &str, program: &Path) -> Result<()> {
    let mut compiler = workspace.command("cc");
    compiler.args(["-O3", "-fopenmp", "-o"]).arg(program).arg(workspace.root.join("examples/threads").join(source));
    crate::step::run(&mut compiler)
}

/// How many messages both nodes send in a run of the program that begins regions.
fn messages(workspace: &Workspace, program: &Path, folder: &Path) -> Result<f64> {
    let summary = folder.join("summary.json");
    let mut command = Command::new(workspace.trellis());
    command.args(["threads", "-n", "2", "--json"]).arg(&summary).arg(program).args(["2", &REGIONS.to_string()]);
    timed(&mut command, folder)?;
    let summary: Value = serde_json::from_slice(&std::fs::read(&summary)?)?;
    let nodes = summary["nodes"].as_array().context("the summary has nodes")?;
    Ok(nodes.iter().filter_map(|node| node["counters"]["messages_out"].as_f64()).sum())
}

/// The least times of a program alone and on two nodes, in seconds.
fn in_turns(
    workspace: &Workspace,
    program: &Path,
    arguments: &[&str],
    options: &[&str],
    folder: &Path,
) -> Result<(f64, f64)> {
    let mut least = (f64::INFINITY, f64::INFINITY);
    for _ in 0..TURNS {
        let [mut alone, mut on_nodes] = commands(workspace, program, arguments, options, folder);
        let ((first, expected), (second, printed)) = (timed(&mut alone, folder)?, timed(&mut on_nodes, folder)?);
        if expected != printed {
            bail!("{} prints something else on two nodes", program.display());
        }
        least = (least.0.min(first), least.1.min(second));
    }
    Ok(least)
}

/// The program alone, and on two nodes.
fn commands(
    workspace: &Workspace,
    program: &Path,
    arguments: &[&str],
    options: &[&str],
    folder: &Path,
) -> [Command; 2] {
    let mut alone = Command::new(program);
    let mut on_nodes = Command::new(workspace.trellis());
    on_nodes.args(["threads", "-n", "2"]).args(options).arg(program);
    for command in [&mut alone, &mut on_nodes] {
        command.args(arguments).current_dir(folder);
    }
    [alone, on_nodes]
}

/// Barriers of SPLASH sleep at once; those of these programs look at a word for a while, which is a data race to Trellis.
fn flags() -> &'static str {
    "CFLAGS=-std=gnu11 -O3 -DPARMACS_LOOKS_MAX=0"
}

/// The least times that a program of PARMACS prints, as SPLASH's do, for what comes after its start: alone, and without
/// races on two nodes.
fn region_in_turns(workspace: &Workspace, program: &Path, arguments: &[&str], folder: &Path) -> Result<(f64, f64)> {
    let mut least = [f64::INFINITY; 2];
    for _ in 0..TURNS {
        for (least, command) in least.iter_mut().zip(commands(workspace, program, arguments, NO_RACES, folder)) {
            let mut command = command;
            let (_, printed) = timed(&mut command, folder)?;
            let printed = String::from_utf8_lossy(&printed);
            let value = |name: &str| printed.split_whitespace().find_map(|word| word.strip_prefix(name));
            if value("verified=") != Some("yes") {
                bail!("{command:?} computes something else: {printed}");
            }
            let seconds = value("seconds=").and_then(|seconds| seconds.parse().ok()).context("no time was printed")?;
            *least = least.min(seconds);
        }
    }
    Ok(least.into())
}

/// Runs a command; how long it took, in seconds, and what it printed. It prints to a file, so that nobody reads
/// meanwhile.
fn timed(command: &mut Command, folder: &Path) -> Result<(f64, Vec<u8>)> {
    let printed = folder.join("printed");
    let start = Instant::now();
    command.stdin(Stdio::null()).stdout(File::create(&printed)?);
    let output = command.output().context("the program cannot be started")?;
    let seconds = start.elapsed().as_secs_f64();
    if !output.status.success() {
        bail!("{command:?} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok((seconds, std::fs::read(&printed)?))
}
