//! `cargo xtask matrix --threads`: programs with threads that nobody here wrote, as Debian has them, on several nodes.
//!
//! Promises: each writes on every number of nodes what it writes alone, or ends with the sentence that says what is not
//! supported. A program that is not installed is named with its package. It prints a table of the results. It must
//! never leave a process behind.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use trellis_base::Random;
use trellis_output::programs;

use crate::workspace::{Profile, Workspace};

/// A program as Debian has it.
struct Program {
    name: &'static str,
    package: &'static str,
    arguments: &'static [&'static str],
    /// What is to be run before, alone.
    before: &'static [&'static str],
}

const fn program(name: &'static str, package: &'static str, arguments: &'static [&'static str]) -> Program {
    Program { name, package, arguments, before: &[] }
}

const CLIP: &[&str] = &[
    "ffmpeg",
    "-v",
    "error",
    "-y",
    "-f",
    "lavfi",
    "-i",
    "testsrc=duration=2:size=320x240:rate=25",
    "-pix_fmt",
    "yuv420p",
    "clip.y4m",
];

const PROGRAMS: &[Program] = &[
    program("pigz", "pigz", &["-p", "4", "-c", "text"]),
    program("pbzip2", "pbzip2", &["-p4", "-b1", "-k", "-c", "text"]),
    program("xz", "xz-utils", &["-T4", "--block-size=64KiB", "-c", "text"]),
    program("zstd", "zstd", &["-T4", "-B64KiB", "-q", "-c", "text"]),
    program("sort", "coreutils", &["--parallel=4", "-S", "1M", "text"]),
    program("clustalo", "clustalo", &["-i", "proteins", "--threads=4"]),
    program("muscle", "muscle", &["-align", "proteins", "-output", "/dev/stdout", "-threads", "4"]),
    Program {
        before: &["bwa", "index", "reference"],
        ..program("bwa", "bwa", &["mem", "-t", "4", "-v", "1", "reference", "reads"])
    },
    program("povray", "povray", &["+Iscene.pov", "+O-", "-D", "-GA", "+W160", "+H120", "+WT4", "+FP8"]),
    Program {
        before: CLIP,
        ..program(
            "ffmpeg",
            "ffmpeg",
            &[
                "-v",
                "error",
                "-nostdin",
                "-threads",
                "4",
                "-i",
                "clip.y4m",
                "-threads",
                "4",
                "-c:v",
                "mpeg4",
                "-flags",
                "+bitexact",
                "-fflags",
                "+bitexact",
                "-f",
                "avi",
                "-",
            ],
        )
    },
    program("./fftw", "libfftw3-dev", &[]),
    program(
        "/usr/bin/python3",
        "python3-numpy libopenblas0-pthread",
        &["-c", "import numpy; a = numpy.ones((300, 300)); print((a @ a).sum())"],
    ),
];
const NODES: [&str; 3] = ["1", "2", "4"];
/// When a run is ended; far more than any of them needs.
const TIMEOUT: &str = "300s";

/// Runs all programs that are installed.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    workspace.build_release()?;
    workspace.name_library(Profile::Release)?;
    let folder = workspace.target.join("matrix-threads");
    std::fs::create_dir_all(&folder)?;
    make_inputs(&folder)?;
    build_fftw(workspace, &folder);
    let mut table = String::from("| program | alone (s) | 1, 2, 4 nodes (s) | result |\n|---|---|---|---|\n");
    let mut wrong = Vec::new();
    for program in PROGRAMS {
        let is_here = match program.name.strip_prefix("./") {
            Some(own) => folder.join(own).exists(),
            None => programs::find(program.name).is_some(),
        };
        if !is_here {
            eprintln!("SKIPPED {}: it is not installed (package {})", program.name, program.package);
            continue;
        }
        let (row, is_right) = program.run(workspace, &folder)?;
        eprint!("{row}");
        table.push_str(&row);
        if !is_right {
            wrong.push(program.name);
        }
    }
    println!("{table}");
    if !wrong.is_empty() {
        bail!("wrong on several nodes: {}", wrong.join(", "));
    }
    Ok(())
}

impl Program {
    /// A row of the table, and whether the results are right.
    fn run(&self, workspace: &Workspace, folder: &Path) -> Result<(String, bool)> {
        if let [program, arguments @ ..] = self.before {
            let mut before = Command::new(program);
            timed(before.args(arguments).current_dir(folder))?;
        }
        let mut alone = Command::new(self.name);
        let (seconds, expected, complaint) = timed(alone.args(self.arguments).current_dir(folder))?;
        if expected.is_empty() {
            bail!("{} writes nothing, alone: {complaint}", self.name);
        }
        let (mut times, mut result) = (Vec::new(), String::new());
        for nodes in NODES {
            let mut command = Command::new(workspace.trellis());
            command.args(["threads", "-n", nodes, "--timeout", TIMEOUT, self.name]).args(self.arguments);
            let (seconds, printed, _) = timed(command.current_dir(folder))?;
            times.push(format!("{seconds:.2}"));
            if significant(&printed) != significant(&expected) {
                _ = write!(result, "differs on {nodes} nodes; ");
            }
        }
        let is_right = result.is_empty();
        let result = if is_right { "the same bytes".to_owned() } else { result };
        Ok((format!("| {} | {seconds:.2} | {} | {result} |\n", self.name, times.join(", ")), is_right))
    }
}

/// What must be equal: everything but lines of a picture that say when it was made.
fn significant(output: &[u8]) -> Vec<&[u8]> {
    output.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"# Render Date")).collect()
}

/// The time of a command in seconds, and what it wrote to both outputs.
fn timed(command: &mut Command) -> Result<(f64, Vec<u8>, String)> {
    let start = Instant::now();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?} cannot be started"))?;
    Ok((start.elapsed().as_secs_f64(), output.stdout, String::from_utf8_lossy(&output.stderr).into_owned()))
}

fn build_fftw(workspace: &Workspace, folder: &Path) {
    let source: PathBuf = workspace.root.join("tests/threads/fftw.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-o"]).arg(folder.join("fftw")).arg(source).args(["-lfftw3_threads", "-lfftw3", "-lm"]);
    // Where the library is not installed, the program is not there, and is left out.
    let _ = compiler.stderr(Stdio::null()).status();
}

fn make_inputs(folder: &Path) -> Result<()> {
    let mut random = Random::for_purpose(5, 19);
    let mut letters = |of: &[u8], count: usize| -> Vec<u8> { (0..count).map(|_| of[random.index(of.len())]).collect() };
    let text: String = (0..60_000u64).map(|n| format!("{} {:x}\n", n % 977, n * 2_654_435_761)).collect();
    std::fs::write(folder.join("text"), text)?;
    let amino_acids = b"ACDEFGHIKLMNPQRSTVWY";
    let ancestor = letters(amino_acids, 150);
    let mut proteins = Vec::new();
    for number in 0..30 {
        let noise = letters(amino_acids, ancestor.len());
        let rolls = letters(b"xxxy", ancestor.len());
        proteins.extend(format!(">protein{number}\n").into_bytes());
        proteins.extend((0..ancestor.len()).map(|at| if rolls[at] == b'y' { noise[at] } else { ancestor[at] }));
        proteins.push(b'\n');
    }
    std::fs::write(folder.join("proteins"), proteins)?;
    let genome = letters(b"ACGT", 100_000);
    std::fs::write(folder.join("reference"), [b">chromosome\n", genome.as_slice(), b"\n"].concat())?;
    let mut reads = Vec::new();
    for number in 0..5_000 {
        let from = number * 7919 % (genome.len() - 100);
        reads.extend(format!("@read{number}\n").into_bytes());
        reads.extend(&genome[from..from + 100]);
        reads.extend(b"\n+\n");
        reads.extend([b'I'; 100]);
        reads.push(b'\n');
    }
    std::fs::write(folder.join("reads"), reads)?;
    std::fs::write(folder.join("scene.pov"), scene())?;
    Ok(())
}

/// Spheres that mirror each other, for povray.
pub(crate) fn scene() -> String {
    let spheres: String = (0..30)
        .map(|n| {
            let (angle, height) = (f64::from(n) * 0.7, 0.5 + f64::from(n) / 20.0);
            format!(
                "sphere {{ <{}, {height}, {}>, 0.5 pigment {{ color rgb <0.2, 0.5, 0.8> }} finish {{ reflection 0.4 }} }}\n",
                2.0 * angle.sin(),
                2.0 * angle.cos()
            )
        })
        .collect();
    let scene = "#version 3.7;\nglobal_settings { assumed_gamma 1.0 }\ncamera { location <0, 2, -5> look_at <0, 1, 0> }\n\
                 light_source { <5, 10, -10> color rgb 1 }\nplane { y, 0 pigment { checker color rgb 1, color rgb 0 } }\n";
    format!("{scene}{spheres}")
}
